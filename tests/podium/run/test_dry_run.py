"""`podium run --dry-run`: warnings about what this machine lacks."""

from pathlib import Path

from podium.run.dry_run import commands
from podium.run.run_set import RunRequest


def test_data_that_this_machine_lacks_is_a_warning(tmp_path: Path) -> None:
    present = tmp_path / "vocab.txt"
    present.write_text("[PAD]\n", encoding="utf-8")
    settings = [
        f"data.store={tmp_path}/none",
        f"data.evaluation_store={tmp_path}/none_either",
        f"data.vocabulary={present}",
    ]
    warnings = [line for line in commands(RunRequest("laptop", settings)) if line.startswith("# WARNING")]
    assert warnings == [
        f"# WARNING: data.store: {tmp_path}/none does not exist on this machine: `podium run` would fail here",
        f"# WARNING: data.evaluation_store: {tmp_path}/none_either does not exist on this machine: `podium run` would "
        "fail here",
    ]


def test_the_embedded_text_needs_no_file() -> None:
    assert not any(line.startswith("# WARNING") for line in commands(RunRequest("laptop")))
