"""Sets of runs as written by `podium run`, with any number and times of runs, and the repository of their code."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from podium.config.load import load_resolved, load_system, write_resolved
from podium.config.run_folder import RunFolder
from podium.config.schema import RunConfig
from podium.core.files import make_folder, sha256_of
from podium.core.paths import CODE_FOLDER
from podium.mllog.read import read_log
from podium.mllog.rulesets import ruleset
from podium.run import records
from podium.run.set_record import EndedRun, SetRecord, write_set
from podium.run.source import Source, code_hash, commit_of, write_source
from podium.submission import rcp
from podium.submission.official import runner
from podium.submission.official.runner import ToolProcess
from podium.submission.package.build import PackageRequest

START_MS = 1_700_000_000_000
GAP_MS = 1_000_000
GIT = ["git", "-c", "user.name=Tester", "-c", "user.email=tester@example.org", "-c", "commit.gpgsign=false"]


class SharedToolProcess(ToolProcess):
    """A worker of the official tools that several checks share: starting one takes more than a second."""

    def __init__(self, folder: Path, free: list["SharedToolProcess"]) -> None:
        super().__init__(scratch=folder)
        self.free = free

    def stop(self) -> None:
        """Do nothing: the last job of a check has ended by then."""

    def close(self) -> None:
        self.free.append(self)


@pytest.fixture(scope="session")
def free_tools() -> Iterator[list[SharedToolProcess]]:
    free: list[SharedToolProcess] = []
    yield free
    for process in free:
        ToolProcess.close(process)


@pytest.fixture(autouse=True, scope="module")
def shared_tools(free_tools: list[SharedToolProcess], tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let checks within this process share workers of the official tools; commands start separate ones."""
    folder = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        for module in (runner, rcp):
            patch.setattr(
                module,
                "ToolProcess",
                lambda **_: free_tools.pop() if free_tools else SharedToolProcess(folder, free_tools),
            )
        yield


@pytest.fixture(scope="session")
def made_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small repository with the files that a package needs, and with entries that must be left out."""
    root = tmp_path_factory.mktemp("repository")
    for name in ("pyproject.toml", "setup.py", "README.md", "setup.sh", "run_and_time.sh"):
        shutil.copy(CODE_FOLDER / name, root / name)
    shutil.copytree(CODE_FOLDER / "requirements", root / "requirements")
    for name in ("benchmarks/one.py", "implementations/two.py", "podium/three.py"):
        make_folder((root / name).parent)
        (root / name).write_text(f"NAME = {name!r}\n", encoding="utf-8")
    make_folder(root / ".ci")
    (root / ".ci" / "run").write_text("true\n", encoding="utf-8")
    (root / ".gitignore").write_text("/runs/\n", encoding="utf-8")
    (root / "a name with spaces.txt").write_text("left out\n", encoding="utf-8")
    (root / "link").symlink_to("/etc/passwd")
    subprocess.run([*GIT, "init", "--quiet", str(root)], check=True)
    commit_all(root, "First")
    return root


@pytest.fixture
def repository(made_repository: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return Path(shutil.copytree(made_repository, tmp_path / "repository", symlinks=True))


def commit_all(root: Path, message: str) -> str:
    subprocess.run([*GIT, "-C", str(root), "add", "--all"], check=True)
    subprocess.run([*GIT, "-C", str(root), "commit", "--quiet", "--message", message], check=True)
    commit = commit_of(root)
    assert commit is not None
    return commit


def source_of(root: Path) -> Source:
    return Source(code_hash(root), commit_of(root))


@dataclass(frozen=True)
class MadeSet:
    """Paths of a set's results and run folders, below the folders that are named on the command line."""

    system: Path
    results: Path
    runs: Path

    @property
    def name(self) -> str:
        return self.system.stem

    @property
    def logs(self) -> list[Path]:
        folder = self.results / self.name / "bert"
        return sorted(folder.glob("result_*.txt"), key=lambda path: int(path.stem.rpartition("_")[2]))

    @property
    def set_folder(self) -> Path:
        return self.runs / self.name / "set"

    def folder(self, number: int) -> Path:
        return self.set_folder / f"run_{number}"

    def remove_set_record(self) -> None:
        """Remove set.json and the set's logs, as in older versions, which kept logs in results/ only."""
        for path in (self.set_folder / "set.json", *self.set_folder.glob("result_*.txt")):
            path.unlink()

    def record(self) -> list[Path]:
        """Write summaries, metrics and set record that match the present logs; return the files written."""
        written, ended = list[Path](), []
        for log in self.logs:
            number = int(log.stem.rpartition("_")[2])
            run, folder = read_log(log), RunFolder(self.folder(number))
            totals = {
                "reached_target": run.status == "success",
                "seconds": run.elapsed_seconds,
                "samples": run.train_samples,
                "accuracy": run.evaluations[-1].accuracy if run.evaluations else None,
                "restarts": 0,
            }
            folder.summary.write_text(json.dumps(totals), encoding="utf-8")
            lines = [
                {"event": "evaluation", "samples": event.metadata["epoch_num"], "accuracy": event.value}
                for event in run.all("eval_accuracy")
            ]
            folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
            shutil.copy(log, self.set_folder / log.name)
            written += [folder.summary, folder.metrics, self.set_folder / log.name]
            ended.append(EndedRun(number, run.status, log.name, sha256_of(log)))
        write_set(self.set_folder, SetRecord(self.name, len(ended), tuple(ended)))
        return [*written, self.set_folder / "set.json"]


def edit(log: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change a log's events in place."""
    events = [json.loads(line.partition(" ")[2]) for line in log.read_text(encoding="utf-8").splitlines()]
    change(events)
    log.write_text("".join(f":::MLLOG {json.dumps(event)}\n" for event in events), encoding="utf-8")


def set_value(key: str, value: Any) -> Callable[[list[dict[str, Any]]], None]:
    def change(events: list[dict[str, Any]]) -> None:
        found = [event for event in events if event["key"] == key]
        assert found
        for event in found:
            event["value"] = value

    return change


def set_times(start_ms: float, seconds: float) -> Callable[[list[dict[str, Any]]], None]:
    """Spread the run's events evenly over `seconds` from `start_ms`, with one second before run_start."""

    def change(events: list[dict[str, Any]]) -> None:
        keys = [event["key"] for event in events]
        first, last = keys.index("run_start"), keys.index("run_stop")
        for number, event in enumerate(events):
            share = min(1.0, max(0.0, (number - first) / (last - first)))
            event["time_ms"] = round(start_ms + share * 1000 * seconds) if number >= first else round(start_ms - 1000)

    return change


@pytest.fixture(scope="session")
def written_sets() -> dict[str, dict[Path, bytes]]:
    """Cached files of sets by their parameters: writing the logs of ten runs takes half a second."""
    return {}


@pytest.fixture(autouse=True, scope="module")
def loaded_once(loaded_configurations: dict[bytes, RunConfig]) -> Iterator[None]:
    """Parse equal configurations of runs once; they are the same in every test."""

    def load(path: Path) -> RunConfig:
        content = path.read_bytes()
        if content not in loaded_configurations:
            loaded_configurations[content] = load_resolved(path)
        return loaded_configurations[content]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "load_resolved", load)
        yield


@pytest.fixture(scope="session")
def loaded_configurations() -> dict[bytes, RunConfig]:
    return {}


@pytest.fixture
def make_set(
    tmp_path: Path,
    write_system: Any,
    write_log: Any,
    repository: Path,
    written_sets: dict[str, dict[Path, bytes]],
) -> Any:
    """Make a set of runs that take `seconds` each; those in `failed` do not reach the target."""

    def write(made: MadeSet, seconds: Sequence[float], accuracies: Sequence[tuple[float, ...]]) -> Iterator[Path]:
        config = load_system(str(made.system))
        for number, duration in enumerate(seconds):
            seeded = config.model_copy(update={"seed": 1000 + number})
            log = write_log(seeded, accuracies[number], name=f"results/{made.name}/bert/result_{number}.txt", tensors=2)
            edit(log, set_times(START_MS + GAP_MS * number, duration))
            folder = RunFolder(make_folder(made.folder(number)))
            write_resolved(seeded, folder.config)
            yield from (log, folder.config)
        if seconds:
            yield from made.record()

    def make(
        seconds: Sequence[float] = tuple(range(100, 110)),
        changes: dict[str, Any] | None = None,
        name: str = "mine",
        failed: Sequence[int] = (),
        accuracies: Callable[[int], tuple[float, ...]] = lambda number: (0.4 + number / 1000, 0.73 + number / 1000),
        source: Source | None = None,
    ) -> MadeSet:
        system = write_system({"description.system_name": name, **(changes or {})}, name=name)
        made = MadeSet(system, tmp_path / "results", tmp_path / "runs")
        given = [(0.3, 0.4) if number in failed else accuracies(number) for number in range(len(seconds))]
        key = repr((name, system.read_bytes(), list(seconds), given))
        if key not in written_sets:
            written_sets[key] = {path.relative_to(tmp_path): path.read_bytes() for path in write(made, seconds, given)}
        for path, content in written_sets[key].items():
            make_folder((tmp_path / path).parent)
            (tmp_path / path).write_bytes(content)
        recorded = source or source_of(repository)
        for number in range(len(seconds)):
            write_source(RunFolder(made.folder(number)).source, recorded)
        return made

    return make


@pytest.fixture(scope="session")
def written_packages() -> dict[int | None, dict[Path, bytes]]:
    return {}


@pytest.fixture
def write_package(write_package: Any, tmp_path: Path, written_packages: dict[int | None, dict[Path, bytes]]) -> Any:
    """As the fixture of the level above, with files written once for all tests."""

    def write(tensors: int | None = 2) -> Path:
        if tensors not in written_packages:
            files = [path for path in write_package(tensors).rglob("*") if path.is_file()]
            written_packages[tensors] = {path.relative_to(tmp_path): path.read_bytes() for path in files}
        for path, content in written_packages[tensors].items():
            make_folder((tmp_path / path).parent)
            (tmp_path / path).write_bytes(content)
        return tmp_path / "ORG"

    return write


@pytest.fixture
def make_request(tmp_path: Path, repository: Path) -> Any:
    """Make the request for a package of sets."""

    def make(*sets: MadeSet, **more: Any) -> PackageRequest:
        given = {"out": tmp_path / "out", "org": "Podium", "ruleset": ruleset("5.0.0"), "repository": repository}
        given |= {"results": sets[0].results, "runs": sets[0].runs}
        return PackageRequest(**(given | {"systems": tuple(str(one.system) for one in sets)} | more))

    return make


@pytest.fixture
def closed_set(make_set: Any, closed_changes: dict[str, Any]) -> Any:
    """Make ten closed runs at batch size 448 with the given numbers of evaluations, one every 150,000 samples."""

    def make(evaluations: Sequence[int] = (16, 17) * 5, name: str = "large") -> MadeSet:
        def accuracies(number: int) -> tuple[float, ...]:
            return (*[0.5 + 0.01 * n + number / 1000 for n in range(evaluations[number] - 1)], 0.7204 + number / 10_000)

        made = make_set(changes=closed_changes, name=name, accuracies=accuracies)
        assert isinstance(made, MadeSet)
        return made

    return make


OFFICIAL = """
import json, os, runpy, sys, traceback
import mlperf_logging.package_checker.package_checker, mlperf_logging.result_summarizer.result_summarizer
import mlperf_logging.repo_checker.repo_checker, mlperf_logging.system_desc_checker.system_desc_checker
for line in sys.stdin:
    folder, arguments = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(folder)
        for number in (1, 2):
            os.dup2(os.open("printed.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        sys.argv[1:] = arguments[1:]
        try:
            runpy.run_module("mlperf_logging." + arguments[0], run_name="__main__", alter_sys=True)
        except SystemExit:
            pass
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(child, 0)
    print(flush=True)
"""


@pytest.fixture(scope="session")
def official_tools() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported the official tools, which takes a second, and forks for each run of one."""
    command = [sys.executable, "-c", OFFICIAL]
    environment = os.environ | {"COLUMNS": "300"}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def official(tmp_path: Path, official_tools: subprocess.Popen[str]) -> Any:
    """Run an official tool on a copy of a package and return its output."""

    def run_tool(tool: str, package: Path, *arguments: str, of: str = "") -> str:
        copy = tmp_path / f"copy_{len(list(tmp_path.glob('copy_*')))}"
        shutil.copytree(package, copy / package.name)
        assert official_tools.stdin is not None and official_tools.stdout is not None
        job = [str(copy), [tool, str(copy / package.name / of), *arguments]]
        official_tools.stdin.write(json.dumps(job) + "\n")
        official_tools.stdin.flush()
        assert official_tools.stdout.readline() == "\n"
        csv = copy / "summary.csv"
        text = (copy / "printed.txt").read_text(encoding="utf-8")
        text += csv.read_text(encoding="utf-8") if csv.is_file() else ""
        assert "Traceback" not in text, text
        return re.sub(re.escape(str(copy)), "", text)

    return run_tool


def resolved(made: MadeSet, number: int = 0) -> RunConfig:
    return load_resolved(made.folder(number) / "config.yaml")
