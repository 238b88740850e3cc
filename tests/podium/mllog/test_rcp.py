"""Reference convergence points: the same statistics, verdicts and factors as the official checker's."""

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from mlperf_logging.rcp_checker import rcp_checker

from podium.core.errors import UsageError, WorkError
from podium.mllog import rcp
from podium.mllog.rcp import Reference
from tests.podium.mllog.official_rcp import all_references, official, random_set

REFERENCES = all_references()
NAMES = [f"{one.benchmark}-{one.ruleset}" for one in REFERENCES]


def named(benchmark: str, ruleset: str = "5.1.0") -> Reference:
    return rcp.require_reference(benchmark, ruleset)


def test_every_benchmark_with_points_and_every_ruleset_is_read() -> None:
    files = [path for path in rcp.FOLDER.glob("training_*/rcps_*.json")]
    assert len(REFERENCES) == len(files) >= 78
    assert rcp.rulesets()[0] == "1.0.0" and {"5.1.0", "6.1.0"} <= set(rcp.rulesets())
    assert list(rcp.rulesets()) == sorted(rcp.rulesets(), key=rcp.version)


def test_the_numbers_of_runs_are_the_official_ones() -> None:
    numbers = {one.benchmark: one.runs for one in REFERENCES}
    official_numbers = rcp_checker.submission_runs["training"] | {"dlrm": 5}  # which it no longer lists
    assert numbers == {name: official_numbers[name] for name in numbers}


@pytest.mark.parametrize("reference", REFERENCES, ids=NAMES)
def test_points_have_the_official_statistics(reference: Reference) -> None:
    checker = official(reference.benchmark, reference.ruleset)
    expected = [
        (record["BS"], record["RCP Mean"], record["RCP Stdev"], record["Min Epochs"])
        for record in checker.rcp_data.values()
    ]
    assert [(record.batch_size, record.mean, record.sd, record.least) for record in reference.points] == expected
    pruned = [record["BS"] for record in checker.pruned_rcp_data.values()]
    assert [record.batch_size for record in reference.pruned] == pruned


@pytest.mark.parametrize("sets", [15, pytest.param(300, marks=pytest.mark.exhaustive)])
def test_random_sets_have_the_official_verdict_message_and_factor(sets: int) -> None:
    numbers = random.Random(sets)
    seen = set()
    for reference in REFERENCES:
        checker = official(reference.benchmark, reference.ruleset)
        for _ in range(sets):
            batch_size, runs = random_set(reference, numbers)
            found = reference.verdict(batch_size, runs)
            assert (found.passed, found.message, found.factor) == checker.verdict(batch_size, runs), (batch_size, runs)
            seen.add((found.passed, found.message.partition(",")[0], found.factor > 1))
    assert len(seen) == 11, seen  # each message with each verdict that it can have, scaled or not


def test_a_run_that_did_not_converge_counts_as_the_slowest_once() -> None:
    reference = named("llama31_8b")
    assert reference.verdict(16, [160_000] * 9 + [None]).samples == 160_000
    assert reference.verdict(16, [160_000] * 8 + [None] * 2).message == "Insufficient convergence"
    unet3d = named("unet3d", "3.0.0")
    assert unet3d.verdict(84, [2000.0] * 36 + [None] * 4).samples == 2000
    assert not unet3d.verdict(84, [2000.0] * 35 + [None] * 5).passed


def test_llama31_405b_is_allowed_one_evaluation_interval_from_5_0_0() -> None:
    point, record = named("llama31_405b").at(2304), named("llama31_405b").pruned[1]
    assert point is not None and point.least == record.least - 46_080
    assert named("llama31_405b").verdict(2304, [record.least - 40_000] * 3).passed
    assert not named("llama31_405b").verdict(2304, [record.least - 50_000] * 3).passed


def test_kinds_of_batch_sizes() -> None:
    reference = named("llama2_70b_lora")
    kinds = {size: point.kind if (point := reference.at(size)) else "missing" for size in (4, 8, 12, 32, 128, 129)}
    assert kinds == {4: "smallest", 8: "found", 12: "interpolated", 32: "interpolated", 128: "found", 129: "missing"}
    assert 32 in [record.batch_size for record in reference.points]  # pruned


def test_fewer_runs_than_the_mean_leaves_out_are_refused() -> None:
    with pytest.raises(ValueError, match="2 runs of llama31_8b: more than 2 are needed"):
        named("llama31_8b").verdict(16, [1.0, 2.0])


@pytest.mark.parametrize(
    ("benchmark", "ruleset", "unit", "key"),
    [
        ("bert", "5.0.0", "samples", "epoch_num"),
        ("llama31_8b", "5.1.0", "samples", "samples_count"),
        ("retinanet", "5.1.0", "epochs", "epoch_num"),
        ("unet3d", "3.0.0", "epochs", "epoch_num"),
        ("unet3d", "3.1.0", "samples", "epoch_num"),
        ("gpt3", "4.1.0", "tokens", "epoch_num"),
        ("stable_diffusion", "3.1.0", "steps", "step_num"),
        ("stable_diffusion", "5.0.0", "samples", "samples_count"),
    ],
)
def test_units(benchmark: str, ruleset: str, unit: str, key: str) -> None:
    reference = named(benchmark, ruleset)
    assert (reference.unit, reference.log_key) == (unit, key)


def test_an_unknown_benchmark_or_ruleset_lists_those_that_exist() -> None:
    with pytest.raises(UsageError, match=r"'bert' has no reference points under ruleset 6\.1\.0; .* llama31_8b"):
        rcp.require_reference("bert", "6.1.0")
    with pytest.raises(UsageError, match=r"'../5\.0\.0': .* 5\.1\.0, 6\.0\.0"):
        rcp.reference("bert", "../5.0.0")
    assert rcp.reference("../training_5.1.0/rcps_flux1", "5.1.0") is None


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"a": 1}', '{"a": {"BS": 8}}', '{"a": {"BS": 8, "Epochs to converge": [1, "2", 3]}}'],
)
def test_a_damaged_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    folder = tmp_path / "training_9.9.9"
    folder.mkdir()
    (folder / "rcps_bert.json").write_text(content, encoding="utf-8")
    monkeypatch.setattr(rcp, "FOLDER", tmp_path)
    monkeypatch.setattr(rcp, "benchmarks", lambda _: ("bert",))
    with pytest.raises(WorkError, match=r"rcps_bert\.json: the reference points cannot be read"):
        rcp.reference.__wrapped__("bert", "9.9.9")


def test_equal_runs_of_the_reference_accept_no_smaller_mean() -> None:
    assert rcp.least_accepted_mean(4608.0, 0.0, 4, 3) == 4608


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 6.313752), (2, 2.919986), (3, 2.353363), (24, 1.710882)])
def test_quantiles_of_t_are_those_of_tables(degrees: int, quantile: float) -> None:
    assert rcp._t_quantile(degrees) == pytest.approx(quantile, abs=1e-6)


def test_verdicts_need_no_scipy() -> None:
    """Importing it takes half a second, and `podium compare` checks hundreds of results."""
    program = (
        "import sys; from podium.mllog import rcp; "
        "rcp.require_reference('bert', '5.0.0').verdict(3000, [2.6e6] * 10); print('scipy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_pruning_depends_on_the_mean_alone() -> None:
    """A point above the line between its neighbours is left out, and its batch size is interpolated."""
    reference = named("llama2_70b_lora")
    low, middle, high = reference.points[0], reference.points[1], reference.points[-1]
    slow = middle._replace(mean=high.mean)
    changed = replace(reference, points=(low, slow, high))
    assert changed.pruned == (low, high)
    point = changed.at(slow.batch_size)
    assert point is not None and point.kind == "interpolated" and low.mean < point.mean < high.mean
    assert json.dumps(point.records[0].values)  # plain numbers
