"""The operands of `--ab A B`: what they match, in which order, and errors with the choices."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from podium.comparison.ab.operands import Readers, Side, find_side, locate_logs
from podium.comparison.load import RunCache, load_results
from podium.comparison.result import Result
from podium.core.errors import UsageError
from podium.run.source import Source
from tests.podium.comparison.conftest import make_result, make_run
from tests.podium.comparison.own import RunFactory, read

RESULTS = [
    make_result(submitter="NVIDIA", system="dgx_n8"),
    make_result(submitter="NVIDIA", system="dgx_n64"),
    make_result(submitter="NVIDIA", system="dgx_n8", round="v2.1"),
    make_result(submitter="Dell", system="xe box", round="v2.1"),
]


@pytest.fixture
def run_factory(tmp_path: Path) -> RunFactory:
    return RunFactory(tmp_path)


def make_readers(run_factory: RunFactory) -> Readers:
    return Readers(
        lambda path: load_results([path], RunCache(None)).results, read, run_factory.folders, run_factory.top
    )


def side(run_factory: RunFactory, operand: str | Path, results: Sequence[Result] = RESULTS) -> Side:
    return find_side(str(operand), results, make_readers(run_factory))


def refusal(run_factory: RunFactory, operand: str | Path) -> str:
    with pytest.raises(UsageError) as refused:
        side(run_factory, operand)
    assert str(refused.value).startswith(f"--ab {str(operand)!r}: ")
    return str(refused.value)


@pytest.mark.parametrize(
    ("operand", "name"),
    [
        ("dgx_n64", "v2.0 NVIDIA dgx_n64"),
        ("v2.1/nvidia/DGX_N8", "v2.1 NVIDIA dgx_n8"),
        ("v2.0 NVIDIA dgx_n8", "v2.0 NVIDIA dgx_n8"),
        ("dell/xe box", "v2.1 Dell xe box"),
        ("xe box", "v2.1 Dell xe box"),
        ("v2.1 n8", "v2.1 NVIDIA dgx_n8"),
        ("dell", "v2.1 Dell xe box"),
    ],
)
def test_results_are_found_by_name_or_parts_of_it(run_factory: RunFactory, operand: str, name: str) -> None:
    assert side(run_factory, operand).name == name


def test_several_matching_results_are_an_error(run_factory: RunFactory) -> None:
    assert refusal(run_factory, "dgx_n8").endswith(
        "matches 2 results; name one of them: v2.0/NVIDIA/dgx_n8, v2.1/NVIDIA/dgx_n8"
    )
    assert "matches 3 results" in refusal(run_factory, "nvidia")


@pytest.mark.parametrize("operand", ["nothing", "", "/", "a\0b", "x" * 5000, "--all", "HEAD~1", "*[", "é" * 300])
def test_an_operand_without_a_match_is_an_error(run_factory: RunFactory, operand: str) -> None:
    run_factory.make([100.0], Source("ab" * 32, None))
    if operand == "/":
        operand = str(run_factory.top / "nowhere")
    assert "there is no such result, path or commit" in refusal(run_factory, operand)
    assert "code with runs: abababababab" in refusal(run_factory, operand)


def test_sets_runs_and_folders_of_logs_are_operands(run_factory: RunFactory) -> None:
    first = run_factory.make([100.0, 101.0, 102.0])
    run_factory.make([110.0, 111.0], size="tiny")
    whole = side(run_factory, first)
    assert [run.seconds for run in whole.runs] == [100.0, 101.0, 102.0]
    assert whole.full_size and whole.configured and whole.settings["optimizer.algorithm"] == ("lamb",)
    assert whole.facts == {"number_of_nodes": ("1",), "framework": ("PyTorch",)}
    assert not {"seed", "system", "description.framework", "launch.rendezvous"} & set(whole.settings)
    assert [run.seconds for run in side(run_factory, first / "run_1").runs] == [101.0]
    folder = side(run_factory, run_factory.folders.results / "mine" / "bert")
    assert [run.seconds for run in folder.runs] == [110.0, 111.0]
    assert folder.configured and not folder.full_size and folder.settings["size"] == ("tiny",)


def test_several_sets_by_a_pattern(run_factory: RunFactory) -> None:
    """They must have one system and one configuration, such as sets of different seeds."""
    first, *_ = [run_factory.make([100.0 + n], seed=n) for n in range(3)]
    found = side(run_factory, first.parent / "2026-*")
    assert [run.seconds for run in found.runs] == [100.0, 101.0, 102.0] and found.name == "3 sets, mine"
    two_sets = f"{first},{run_factory.sets[2]}"
    assert [run.seconds for run in side(run_factory, two_sets).runs] == [100.0, 102.0]
    assert "there is no such result" in refusal(run_factory, f"{first},nowhere")
    other = run_factory.make([200.0], system="other")
    assert "these runs are on 2 systems" in refusal(run_factory, run_factory.folders.runs / "*" / "2026-*")
    run_factory.make([300.0], recipe="padded")
    assert "differ in recipe" in refusal(run_factory, first.parent / "2026-*")
    assert [run.seconds for run in side(run_factory, other.parent / "*0*").runs] == [200.0]


def test_a_set_with_its_logs_has_the_system_of_its_folder(run_factory: RunFactory) -> None:
    run_factory.previous_layout = False
    first = run_factory.make([100.0, 101.0], size="tiny")
    run_factory.make([110.0, 111.0])
    assert locate_logs(first) == ("mine", run_factory.folders)
    (result,) = load_results([first], RunCache(None)).results
    assert result.system == "mine" and len(result.runs) == 2
    found = side(run_factory, str(first), [result])
    assert [run.seconds for run in found.runs] == [100.0, 101.0] and found.name == f"set {first.name}, mine"


def test_results_that_a_later_set_moved_are_found(run_factory: RunFactory) -> None:
    first = run_factory.make([100.0, 101.0], size="tiny")
    second = run_factory.make([110.0, 111.0])
    moved = side(run_factory, second / "replaced_results")
    assert [run.seconds for run in moved.runs] == [100.0, 101.0]
    assert moved.configured and not moved.full_size and moved.name == f"set {first.name}, mine"


def test_runs_of_another_working_folder_are_not_used(run_factory: RunFactory, tmp_path: Path) -> None:
    other = RunFactory(tmp_path / "other")
    other.make([100.0, 101.0], size="tiny")  # of a published round, by the dates of its logs
    found = side(run_factory, other.folders.results / "mine" / "bert")
    assert not found.configured and found.name == "v2.0 ORG mine"


def test_a_configuration_beside_logs_is_not_a_run(run_factory: RunFactory) -> None:
    run_factory.make([100.0, 101.0])
    folder = run_factory.folders.results / "mine" / "bert"
    (folder / "config.yaml").write_text("seed: 3\n", encoding="utf-8")
    assert [run.seconds for run in side(run_factory, folder).runs] == [100.0, 101.0]


def test_a_folder_of_several_sets_is_an_error(run_factory: RunFactory) -> None:
    sets = [run_factory.make([100.0 + n]) for n in range(2)]
    message = refusal(run_factory, sets[0].parent)
    assert "is a folder of sets of runs (2); name one, or several" in message and all(
        str(one) in message for one in sets
    )


def test_a_path_takes_precedence_over_parts_of_names(run_factory: RunFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_factory.make([100.0])
    monkeypatch.chdir(folder.parent)
    (folder.parent / "dell").symlink_to(folder)
    assert [run.seconds for run in side(run_factory, "dell").runs] == [100.0]


def test_duplicate_logs_count_once(run_factory: RunFactory) -> None:
    with_duplicate = make_result([make_run(1.0), make_run(2.0), make_run(1.0)])
    found = side(run_factory, "SYS", [with_duplicate])
    assert [run.seconds for run in found.runs] == [1.0, 2.0]
    assert found.notes == ("1 of its logs are duplicates and not counted",)


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_runs_of_a_commit(run_factory: RunFactory) -> None:
    """The commit is a revision, a tag or the start of a hash, with or without a system."""
    git(run_factory.top, "init", "-q")
    commits = []
    for message in ("one", "two"):
        git(run_factory.top, "commit", "-q", "--allow-empty", "-m", message)
        commits.append(git(run_factory.top, "rev-parse", "HEAD"))
    git(run_factory.top, "tag", "first", commits[0])
    run_factory.make([100.0, 101.0], Source("ab" * 32, commits[0]))
    run_factory.make([120.0, 121.0], Source("cd" * 32, commits[1]))
    run_factory.make([102.0], Source("ab" * 32, commits[0]))
    for operand in ("HEAD~1", "first", commits[0][:9], "ababababab", f"{commits[0]}:MINE"):
        found = side(run_factory, operand)
        assert [run.seconds for run in found.runs] == [100.0, 101.0, 102.0], operand
        assert found.facts["code"] == ("ab" * 32,) and found.name == f"2 sets of {commits[0][:12]}, mine"
    assert [run.seconds for run in side(run_factory, "HEAD").runs] == [120.0, 121.0]

    run_factory.make([300.0], Source("cd" * 32, commits[1]), system="other")
    assert refusal(run_factory, "HEAD").endswith("these runs are on 2 systems; name one of them: HEAD:mine, HEAD:other")
    assert [run.seconds for run in side(run_factory, "HEAD:other").runs] == [300.0]
    assert "has no run of third that" in refusal(run_factory, "HEAD:third")
    assert "(it has runs of mine, other)" in refusal(run_factory, "HEAD:third")

    changed = run_factory.make([400.0], Source("cd" * 32, commits[1]), global_batch_size=512)
    message = refusal(run_factory, "HEAD:mine")
    assert "differ in global_batch_size" in message and str(changed) in message

    run_factory.make([500.0], Source("ef" * 32, commits[0]))
    assert refusal(run_factory, "first").endswith("name one by its hash: abababababab, efefefefefef")
    git(run_factory.top, "commit", "-q", "--allow-empty", "-m", "three")
    assert "has no run that commit" in refusal(run_factory, "HEAD")
