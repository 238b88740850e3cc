"""Both published rounds were accepted: they have no error, and their warnings are those that were reviewed by hand."""

import tarfile
from collections import Counter
from pathlib import Path

import pytest

from podium.mllog.results_tree import find_packages
from podium.mllog.rulesets import ruleset
from podium.submission.checks.all_checks import check_package

DATA = Path(__file__).resolve().parents[5] / "shared" / "data"
FOUND = {
    "v2.0": {
        "weight_decay_zero": 350,
        "system_not_text": 2,
        "org_differs": 80,
        "train_samples": 70,
        "system_name": 58,
        "cache_clear": 50,
        "platform": 40,
        "epoch_num": 40,
        "contradiction": 40,
        "evaluation_schedule": 40,
        "seed_missing": 30,
        "log_after_block": 30,
        "times_backwards": 30,
        "status_differs": 20,
        "log_number": 20,
        "code_missing": 17,
        "overlap": 14,
        "one_not_converged": 7,
        "system_json": 4,
        "no_results": 4,
        "result_names": 1,
        "log_keyboard": 1,
        "eval_accuracy_repeated": 1,
    },
    "v2.1": {
        "evaluation_schedule": 122,
        "platform": 100,
        "system_not_text": 2,
        "weight_decay_zero": 90,
        "org": 50,
        "status_differs": 50,
        "system_name": 47,
        "cache_clear": 40,
        "train_samples": 40,
        "epoch_num": 30,
        "seed_missing": 20,
        "org_differs": 20,
        "log_after_block": 20,
        "times_backwards": 20,
        "log_point_in_time": 20,
        "code_missing": 16,
        "overlap": 15,
        "division_differs": 10,
        "log_number": 10,
        "contradiction": 4,
        "no_results": 2,
        "result_names": 3,
        "one_not_converged": 3,
        "unknown_file": 1,
        "run_stop_missing": 1,
        "time_digits": 1,
        "settings_differ": 1,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("v2.0", marks=pytest.mark.exhaustive), "v2.1"])
def test_a_published_round_has_no_error(name: str, tmp_path: Path) -> None:
    archive = DATA / f"published-bert-{name}.tar.xz"
    if not archive.is_file():
        pytest.skip(f"{archive} is not here")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    rules = ruleset(f"{name[1:]}.0")
    packages = find_packages(tmp_path / name)
    found = [one for package in packages for one in check_package(package, rules, other_results=True)]
    assert [finding for finding in found if finding.severity == "error"] == []
    assert Counter(finding.rule for finding in found) == FOUND[name]
