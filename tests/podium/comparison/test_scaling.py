"""Published factors, and those that the official checker finds for one's own runs."""

from pathlib import Path

import pytest

from benchmarks.errors import WorkError
from podium.comparison import scaling
from podium.comparison.scaling import factor
from podium.reading.package import ResultFolder, read_results
from podium.submission.packaging.scaling import Convergence
from tests.podium.comparison.conftest import log_text, make_result


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "SYS" / "bert"
    path.mkdir(parents=True)
    for number in range(10):
        (path / f"result_{number}.txt").write_text(log_text(1000.0 + number), encoding="utf-8")
    return path


def of(path: Path) -> ResultFolder:
    return read_results(path, "SYS", "bert")


def test_as_published(folder: Path) -> None:
    (folder / "scaling.json").write_text('{"scaling_factor": 1.0096578558028884}', encoding="utf-8")
    odd: list[str] = []
    assert factor(make_result(), of(folder), odd) == 1.0096578558028884 and odd == []
    assert factor(make_result(round=None), of(folder), odd) == 1.0096578558028884


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{", "is no JSON"),
        (b"[1.01]", "has no scaling_factor"),
        (b'{"scaling_factor": "1.01"}', "has no scaling_factor"),
        (b'{"scaling_factor": 0.5}', "has no scaling_factor from 1 to 2"),
        (b'{"scaling_factor": 1e999}', "has no scaling_factor"),
        (b'{"scaling_factor": 50}', "has no scaling_factor from 1 to 2"),
        (b"\xff", "utf-8"),
        (b" " * 100_000, "is larger than"),
    ],
)
def test_a_file_that_tells_nothing(folder: Path, text: bytes, words: str) -> None:
    (folder / "scaling.json").write_bytes(text)
    odd: list[str] = []
    assert factor(make_result(), of(folder), odd) is None
    assert len(odd) == 1 and "scaling.json is not used" in odd[0] and words in odd[0]


def test_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "else").write_text('{"scaling_factor": 1.01}', encoding="utf-8")
    (folder / "scaling.json").symlink_to(tmp_path / "else")
    odd: list[str] = []
    assert factor(make_result(), of(folder), odd) is None and "is no plain file" in odd[0]


def test_published_results_without_a_file_are_not_scaled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "convergence", lambda logs, rules: pytest.fail("the official checker was asked"))
    for changes in (
        {},
        {"round": None, "division": "open"},
        {"round": None, "full_size": False},
        {"round": None, "runs": ()},
    ):
        assert factor(make_result(**changes), of(folder), []) is None


def test_own_results_are_scaled_as_they_will_be(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Convergence(True, "", 1.02, 2.4e6, 2.45e6, 2.3e6, 448, b"{}")
    monkeypatch.setattr(scaling, "convergence", lambda logs, rules: found)
    assert factor(make_result(round=None), of(folder), []) == 1.02


def test_own_results_that_are_not_accepted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd: list[str] = []
    found = Convergence(False, "RCP found, no", 1.5, 1e6, 2.45e6, 2.3e6, 448, None)
    monkeypatch.setattr(scaling, "convergence", lambda logs, rules: found)
    assert factor(make_result(round=None), of(folder), odd) is None
    assert odd == ["needs fewer samples than ruleset 5.0.0 accepts: RCP found, no"]

    def broken(logs: object, rules: object) -> Convergence:
        raise WorkError("it broke off")

    monkeypatch.setattr(scaling, "convergence", broken)
    assert factor(make_result(round=None), of(folder), odd) is None and "it broke off" in odd[1]


def test_the_official_checker_scales_own_results(folder: Path) -> None:
    """The reference needs 2,414,421 samples at batch size 448, and the least accepted are 2,274,732."""
    for number in range(10):
        text = log_text(1000.0 + number).replace('"epoch_num": 1792000', '"epoch_num": 2350000')
        (folder / f"result_{number}.txt").write_text(text, encoding="utf-8")
    odd: list[str] = []
    found = factor(make_result(round=None), of(folder), odd)
    assert found == pytest.approx(2_414_421 / 2_350_000, rel=1e-4), odd
