"""`podium submit check` has the official checker's verdict on every published BERT log of rounds 2.0 and 2.1."""

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from podium.mllog.rulesets import ruleset
from podium.submission.archive import Limits, Tally, unpack
from podium.submission.check import Report, check

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"


@pytest.fixture(scope="module", params=["2.0", "2.1"])
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A round's ruleset, and the folder of its packages."""
    archive = SHARED / f"published-bert-v{request.param}.tar.xz"
    if not archive.is_file():
        pytest.skip(f"{archive} is not here")
    folder, tally = tmp_path_factory.mktemp("published") / "round", Tally(Limits())
    unpack(archive, folder, tally)
    assert tally.whole and tally.findings == []
    inner = [path for path in folder.iterdir() if path.is_dir()]
    return f"{request.param}.0", inner[0] if len(inner) == 1 else folder


def official_verdict(log: Path, rules: str, folder: Path) -> str:
    """Return the verdict of the official compliance checker when it is run directly."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mlperf_logging.compliance_checker",
            "--usage",
            "training",
            "--ruleset",
            rules,
            str(log),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return "passed" if done.returncode == 0 and "SUCCESS" in done.stderr else "failed"


def assert_same_verdicts(report: Report, root: Path, logs: Sequence[str], folder: Path) -> dict[str, int]:
    """Assert that Podium and the official checker agree on these logs; return the number of each verdict."""
    verdicts = {file.path: file.official for file in report.files}
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda log: official_verdict(root / log, report.ruleset, folder), logs))
    assert {log: verdicts[log] for log in logs} == dict(zip(logs, found, strict=True))
    return {verdict: found.count(verdict) for verdict in ("passed", "failed")}


@pytest.mark.parametrize("organisation", ["Baidu", "Intel-HabanaLabs"])
def test_verdicts_on_two_packages_equal_the_official_checkers(
    published: tuple[str, Path], organisation: str, tmp_path: Path
) -> None:
    rules, root = published
    report = check(root / organisation, ruleset(rules))
    logs = [file.path for file in report.files if not file.path.endswith(".json")]
    assert len(logs) >= 10
    failed = [file.path for file in report.files if file.official == "failed"]
    assert_same_verdicts(report, root / organisation, sorted({*failed[:2], *logs[:3]}), tmp_path)
    assert not any("could not read" in finding.message for finding in report.findings)


@pytest.mark.exhaustive
def test_verdicts_on_every_log_of_a_round_equal_the_official_checkers(
    published: tuple[str, Path], tmp_path: Path
) -> None:
    """Ruleset 2.1.0 now requires opt_lamb_epsilon, but its round logged opt_epsilon: 400 of its 470 logs fail."""
    rules, root = published
    report = check(root, ruleset(rules))
    logs = [file.path for file in report.files if not file.path.endswith(".json")]
    counts = assert_same_verdicts(report, root, logs, tmp_path)
    assert counts == {"2.0.0": {"passed": 523, "failed": 7}, "2.1.0": {"passed": 70, "failed": 400}}[rules]
    assert not any("could not read" in finding.message for finding in report.findings)
