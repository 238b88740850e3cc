"""All 100 published results of rounds 2.0 and 2.1, against what others made of the same logs."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from podium.comparison.load import Comparison, RunCache, gather
from podium.comparison.result import Result
from podium.mllog.results_tree import find_packages
from podium.mllog.rulesets import ruleset
from podium.submission.archive import Limits, Tally, archive_stem, unpack
from podium.submission.official.runner import run_official_tools

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
ARCHIVES = tuple(SHARED / f"published-bert-{name}.tar.xz" for name in ("v2.0", "v2.1"))
KNOWN = SHARED / "published_bert_scores_v2.0_v2.1.json"
CLOSE = 1e-6 / 60
"""A microsecond, in minutes."""
RULESET = "2.0.0"
"""For both rounds: 2.1.0 asks for opt_lamb_epsilon today, which its round did not log, and refuses most of it."""
SAMPLE = {"v2.0": ("Baidu", "MosaicML", "HazyResearch"), "v2.1": ("Azure-HazyResearch", "Intel", "MosaicML")}
"""Submitters with an aborted run, scaled scores, a time of 14 digits, no accelerators, results of the open division."""


@pytest.fixture(scope="module")
def known() -> dict[tuple[str, str, str], dict[str, Any]]:
    for path in (*ARCHIVES, KNOWN):
        if not path.is_file():
            pytest.skip(f"{path} is not here")
    rows = json.loads(KNOWN.read_text(encoding="utf-8"))
    return {(row["round"], row["submitter"], row["system"]): row for row in rows}


@pytest.fixture(scope="module")
def found(known: object, tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return gather(ARCHIVES, RunCache(tmp_path_factory.mktemp("cache")))


def key(result: Result) -> tuple[str, str, str]:
    assert result.round is not None
    return result.round, result.submitter, result.system


@pytest.mark.slow
def test_every_result(found: Comparison, known: dict[tuple[str, str, str], dict[str, Any]]) -> None:
    """Scores to well below a millisecond; times, batches, sizes and samples as they are."""
    assert len(found.results) == 100 and {key(result) for result in found.results} == set(known)
    assert sum(len(result.runs) for result in found.results) == 1_000
    for result in found.results:
        row = known[key(result)]
        assert result.score_minutes == pytest.approx(row["score_minutes"], abs=CLOSE), key(result)
        assert result.score_minutes_scaled == pytest.approx(row["score_minutes_scaled"], abs=CLOSE)
        assert result.scaling_factor == (pytest.approx(row["scaling_factor"]) if row["scaling_factor"] else None)
        assert result.division == row["division"] and result.global_batch_size == row["global_batch_size"]
        assert result.accelerators == row["number_of_nodes"] * row["accelerators_per_node"]
        assert len(result.runs) - len(result.converged) == row["n_nonconverged"]


@pytest.mark.slow
def test_every_run(found: Comparison, known: dict[tuple[str, str, str], dict[str, Any]]) -> None:
    """A run that did not converge may have another time than is known of it: it has no run_stop."""
    for result in found.results:
        row = known[key(result)]
        times = Counter(round(seconds, 3) for seconds in row["run_times_s"] if seconds is not None)
        ours = Counter(round(run.seconds, 3) for run in result.converged if run.seconds is not None)
        assert not ours - times and sum((times - ours).values()) <= row["n_nonconverged"], key(result)
        samples = Counter(row["train_samples_to_converge"])
        assert Counter(run.samples for run in result.runs) == samples, key(result)


@pytest.mark.slow
def test_rounds_are_told_apart_and_repeats_are_found(found: Comparison) -> None:
    assert Counter(result.round for result in found.results) == {"v2.0": 53, "v2.1": 47}
    repeats = [result for result in found.results if result.repeats is not None]
    assert {result.round for result in repeats} == {"v2.1"}
    assert ("v2.1", "Samsung") in {(result.round, result.submitter) for result in repeats}
    assert all(result.repeats is not None and result.repeats.startswith("v2.0 ") for result in repeats)


def _summarized(name: str, submitters: tuple[str, ...] | None, found: Comparison, folder: Path) -> tuple[int, int]:
    """Assert that the official summarizer's scores are Podium's; how many it gives, and how many it does not."""
    archive = next(path for path in ARCHIVES if name in path.name)
    tally = Tally(Limits())
    unpack(archive, folder / archive_stem(archive), tally)
    assert tally.whole
    packages = [
        package
        for package in find_packages(_top(folder / archive_stem(archive)))
        if submitters is None or package.name in submitters
    ]
    (folder / "scratch").mkdir()
    official = run_official_tools(packages, folder, folder / "scratch", ruleset(RULESET))
    ours = {(Path(result.source).parts[-4], result.system): result for result in found.results if result.round == name}
    compared = 0
    for score in official.scores:
        result = ours[Path(score.path).parts[-4], Path(score.path).parts[-2]]
        if score.minutes is not None:
            assert result.score_minutes == pytest.approx(score.minutes, abs=CLOSE), score.path
            compared += 1
    assert len(official.scores) == sum(len(package.results) for package in packages)
    return compared, len(official.scores) - compared


def _top(folder: Path) -> Path:
    inner = [path for path in folder.iterdir() if path.is_dir()]
    return inner[0] if len(inner) == 1 else folder


@pytest.mark.slow
@pytest.mark.parametrize(("name", "counts"), [("v2.0", (5, 0)), ("v2.1", (8, 0))])
def test_the_official_summarizer_on_a_sample(
    found: Comparison, name: str, counts: tuple[int, int], tmp_path: Path
) -> None:
    assert _summarized(name, SAMPLE[name], found, tmp_path) == counts


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "counts"), [("v2.0", (53, 0)), ("v2.1", (47, 0))])
def test_the_official_summarizer_on_all(found: Comparison, name: str, counts: tuple[int, int], tmp_path: Path) -> None:
    assert _summarized(name, None, found, tmp_path) == counts
