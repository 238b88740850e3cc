"""The loader's benchmark: its output is consistent, and invalid options are errors."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from implementations.pytorch.bench import loader
from implementations.pytorch.data.reader import StepReader


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory,
    write_store: Callable[..., Path],
    wikipedia_lengths: Callable[[int, int], np.ndarray],
) -> Path:
    return write_store(tmp_path_factory.mktemp("bench"), wikipedia_lengths(60, 1)).parent


@pytest.mark.parametrize("cold", [False, True])
def test_every_repetition_is_reported(folder: Path, capsys: pytest.CaptureFixture[str], cold: bool) -> None:
    options = ["--ranks", "2", "--steps", "5", "--repeat", "2", "--step-milliseconds", "3", *["--cold"] * cold]
    assert loader.main(["--store", str(folder), "--local-batch", "6", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["cold"] is cold
    assert found["settings"]["store"] == str(folder)
    assert len(found["turns"]) == 2
    for turn in found["turns"]:
        assert turn["seconds"] >= 5 * 0.003
        assert turn["sequences_per_second"] == pytest.approx(5 * 6 / turn["seconds"])
        assert turn["mean_wait_ms"] * 5 / 1000 <= turn["seconds"] - 5 * 0.003
        assert turn["first_wait_ms"] + turn["longest_later_wait_ms"] <= turn["mean_wait_ms"] * 5 + 1e-6
    rates = sorted(turn["sequences_per_second"] for turn in found["turns"])
    assert rates[0] <= found["sequences_per_second"] <= rates[1]


def test_repetitions_differ_and_use_the_window(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[int, list[int]]] = []
    read = StepReader.read
    monkeypatch.setattr(
        StepReader,
        "read",
        lambda self, global_batch: (
            taken.append((self._window, global_batch.indices.tolist())),
            read(self, global_batch),
        )[1],
    )
    assert loader.main(["--store", str(folder), "--local-batch", "8", "--steps", "2", "--window", "9"]) == 0
    capsys.readouterr()
    assert [window for window, _ in taken] == [9] * 6
    assert len({tuple(indices) for _, indices in taken}) == 6


def test_cold_shards_are_dropped_from_the_cache_and_warm_ones_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("drop_from_page_cache", "read_into_page_cache"):
        plain = getattr(loader, name)
        monkeypatch.setattr(loader, name, lambda paths, name=name, plain=plain: (calls.append(name), plain(paths)))
    common = ["--store", str(folder), "--local-batch", "4", "--steps", "1", "--repeat", "1"]
    loader.main(common)
    assert calls == ["read_into_page_cache"]
    calls.clear()
    loader.main([*common, "--cold"])
    assert calls == ["drop_from_page_cache", "drop_from_page_cache"]


def test_invalid_options_are_errors(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert loader.main(["--store", str(tmp_path), "--local-batch", "4"]) == 2
    assert "podium data prepare" in capsys.readouterr().err
    required = ["--local-batch", "4"]
    for wrong in (
        ["--local-batch", "0"],
        [*required, "--loader", "other"],
        [*required, "--window", "-1"],
        [*required, "--depth", "0"],
    ):
        with pytest.raises(SystemExit) as exited:
            loader.main(["--store", str(folder), *wrong])
        assert exited.value.code == 2
