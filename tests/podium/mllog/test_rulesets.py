"""Rulesets: those of mlperf-logging, with the same benchmarks and numbers of runs."""

from pathlib import Path

import pytest
from mlperf_logging import benchmark_meta, compliance_checker, rcp_checker

from podium.core.errors import UsageError
from podium.mllog.rulesets import bert_ruleset, ruleset, ruleset_of_round, rulesets

CHECKER, REFERENCES = (Path(str(module.__file__)).parent for module in (compliance_checker, rcp_checker))


@pytest.mark.parametrize("name", rulesets())
def test_the_benchmarks_of_a_ruleset_are_those_of_the_official_tools(name: str) -> None:
    """Except for Minigo, which has no reference convergence points, the RCP checker has a file for each."""
    found = ruleset(name).benchmarks
    assert set(found) == set(benchmark_meta.get_allowed_benchmarks("training", name))
    counts = benchmark_meta.get_result_file_counts("training")
    assert {one.name: one.runs for one in found.values()} == {one: counts[one] for one in found}
    references = {path.stem.removeprefix("rcps_") for path in (REFERENCES / f"training_{name}").glob("*.json")}
    assert set(found) - {"minigo"} <= references


@pytest.mark.parametrize("name", rulesets())
def test_required_names_are_those_of_the_compliance_checker(name: str) -> None:
    text = (CHECKER / f"training_{name}" / "common.yaml").read_text(encoding="utf-8")
    assert ("submission_org" in text) == ("submission_platform" in text) == ruleset(name).log_names
    assert ("submission_status" in text) == ruleset(name).log_status


def test_a_ruleset_is_found_by_its_round() -> None:
    found = ruleset_of_round("v5.1")
    assert found is not None and found.name == "5.1.0" and found.round == "v5.1"
    assert ruleset_of_round("v0.5") is None


def test_an_unknown_ruleset_is_refused_with_those_that_exist() -> None:
    with pytest.raises(
        UsageError, match=r"--ruleset 7\.0\.0: there is no such ruleset; allowed are 1\.1\.0, .* 6\.1\.0"
    ):
        ruleset("7.0.0")


def test_rulesets_without_bert_are_refused_for_bert() -> None:
    assert bert_ruleset("5.0.0") is ruleset("5.0.0")
    with pytest.raises(
        UsageError, match=r"not a benchmark of that round, but of rounds v0.7 to v5.0; allowed are 1.1.0"
    ):
        bert_ruleset("5.1.0")
