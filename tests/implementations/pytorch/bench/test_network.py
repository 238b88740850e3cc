"""The network bench's ways: each way of clipping with each size of bucket, and what is no size."""

import argparse

import pytest

from implementations.pytorch.bench.network import main, ways_of
from podium.config.load import load_system


def test_each_way_is_taken_with_each_size() -> None:
    config = load_system("laptop", settings=["launch.processes_per_node=2"])
    arguments = argparse.Namespace(bucket_mib=(0.25, 4.0), wire=False)
    found = ways_of(arguments)
    assert list(found) == [(way, size) for size in (0.25, 4.0) for way in ("after", "bucket", "before")]
    for (way, size), changes in found.items():
        changed = config.model_copy(update=changes)
        assert changed.clipping is not None
        assert (changed.clipping.when, changed.gradient_bucket_mib, changed.wire) == (way, size, "fp32")
    halves = ways_of(argparse.Namespace(bucket_mib=(1.0,), wire=True))
    assert [changes.get("gradient_wire") for changes in halves.values()] == [None, None, None, "bf16"]


@pytest.mark.parametrize("text", ["0", "1,-2", "1,,2", "large"])
def test_what_is_no_size_is_wrong_use(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["network", "--bucket-mib", text])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "--bucket-mib" in capsys.readouterr().err
