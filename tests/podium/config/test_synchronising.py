"""Keys of gradient synchronisation and of the optimizer's backend: accepted and refused combinations."""

from collections.abc import Callable
from typing import Any

import pytest

from podium.config.load import load_resolved, load_system, write_resolved
from podium.core.errors import UsageError

LAMB, ADAMW = "optimizer.algorithm=lamb", "optimizer.algorithm=adamw"


def test_defaults() -> None:
    config = load_system("laptop")
    assert config.clipping is not None
    assert (config.clipping.max_norm, config.clipping.when) == (1.0, "after")
    assert (config.gradient_wire, config.wire, config.gradient_bucket_mib) == ("auto", "fp32", None)
    assert (config.optimizer.backend, config.optimizer.sharded_from) == ("podium", None)
    assert config.loss_scaling.initial == 1024  # published runs that began at 2^17 skipped steps until they reached it


@pytest.mark.parametrize(
    ("device", "processes", "wire"), [("cuda", 2, "fp16"), ("cuda", 1, "fp32"), ("cpu", 2, "fp32")]
)
def test_gradients_are_sent_in_half_precision_between_gpus(device: str, processes: int, wire: str) -> None:
    launch = [f"launch.device={device}", f"launch.processes_per_node={processes}"]
    assert load_system("laptop", settings=launch).wire == wire
    assert load_system("laptop", settings=[*launch, "gradient_wire=bf16"]).wire == "bf16"


def test_resolved_file_has_all_keys(tmp_path: Any) -> None:
    settings = [
        "clipping.when=bucket",
        "gradient_wire=bf16",
        "gradient_bucket_mib=2.5",
        LAMB,
        "optimizer.sharded_from=2",
    ]
    config = load_system("laptop", settings=settings)
    path = tmp_path / "config.yaml"
    write_resolved(config, path)
    assert load_resolved(path) == config
    assert config.clipping is not None
    assert (config.clipping.when, config.gradient_wire, config.gradient_bucket_mib) == ("bucket", "bf16", 2.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["clipping.when=never"], "--set clipping.when: found 'never'; allowed are 'after', 'before', 'bucket'"),
        (["gradient_wire=fp8"], "--set gradient_wire: found 'fp8'; allowed are 'auto', 'fp32', 'fp16', 'bf16'"),
        (["gradient_bucket_mib=0"], "--set gradient_bucket_mib: found 0; allowed: greater than 0"),
        (["gradient_bucket_mib=true"], "--set gradient_bucket_mib: found true; a truth value is not allowed here"),
        (["optimizer.backend=cuda"], "--set optimizer.backend: found 'cuda'; allowed are 'podium', 'apex'"),
        (["optimizer.sharded_from=0"], "optimizer.sharded_from: found 0; allowed: greater than or equal to 1"),
        (
            [ADAMW, "optimizer.sharded_from=2"],
            "sharded_from is set, which requires lamb, but algorithm is adamw; leave it out",
        ),
        (
            [ADAMW, "optimizer.backend=apex"],
            "backend is apex, which requires lamb, but algorithm is adamw; leave it out",
        ),
        ([LAMB, "optimizer.backend=apex"], "optimizer.backend is apex, which needs a GPU, but launch.device is cpu"),
        (
            [LAMB, "optimizer.backend=apex", "optimizer.sharded_from=2"],
            "sharded_from is set, but backend is apex; leave one of them out",
        ),
        (
            [LAMB, "optimizer.backend=apex", "optimizer.weight_decay=0"],
            "backend is apex, which takes no trust ratios without weight decay, but weight_decay is 0; allowed with it",
        ),
    ],
)
def test_invalid_combinations_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        load_system("laptop", settings=settings)
    assert message in str(error.value)


def test_apex_is_accepted_on_a_gpu(write_system: Callable[..., Any]) -> None:
    path = write_system({"launch.device": "cuda", "bert.optimizer": {"backend": "apex"}})
    assert load_system(str(path)).optimizer.backend == "apex"
