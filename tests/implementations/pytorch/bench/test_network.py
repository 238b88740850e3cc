"""The network benchmark: its modes, each with each bucket size, and invalid sizes."""

import argparse

import pytest

from implementations.pytorch.bench.network import main, synchronisation_modes
from podium.config.load import load_system


def test_each_mode_is_timed_with_each_bucket_size() -> None:
    config = load_system("laptop", settings=["launch.processes_per_node=2"])
    arguments = argparse.Namespace(bucket_mib=(0.25, 4.0), wire=False)
    found = synchronisation_modes(arguments)
    assert list(found) == [(mode, size) for size in (0.25, 4.0) for mode in ("after", "bucket", "before")]
    for (mode, size), changes in found.items():
        changed = config.model_copy(update=changes)
        assert changed.clipping is not None
        assert (changed.clipping.when, changed.gradient_bucket_mib, changed.wire) == (mode, size, "fp32")
    with_wire = synchronisation_modes(argparse.Namespace(bucket_mib=(1.0,), wire=True))
    assert [changes.get("gradient_wire") for changes in with_wire.values()] == [None, None, None, "bf16"]


@pytest.mark.parametrize("text", ["0", "1,-2", "1,,2", "large"])
def test_invalid_bucket_sizes_exit_with_code_2(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["network", "--bucket-mib", text])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "--bucket-mib" in capsys.readouterr().err
