"""Podium as a wheel, unpacked into a separate environment: everything is found, and nothing is written there.

The packages that Podium needs are those of the environment that runs the tests.
"""

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bert import demo_text
from benchmarks.bert.preparation.prepare import prepare
from podium.cli.main import app
from podium.core import paths
from podium.core.errors import UsageError
from podium.core.files import user_cache_folder
from podium.core.paths import CODE_FOLDER, PACKAGES
from podium.run.source import code_hash

PARTS = (*PACKAGES, "docker", "requirements", "systems")
FILES = ("pyproject.toml", "setup.py", "README.md")
SCRIPT = "import sys\nfrom podium.cli.main import main\nsys.exit(main())\n"
SEVERAL = """
import json, sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from podium.cli.main import main
done = []
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
    done.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(done))
"""
WITHOUT_TRAINING = "import sys\nsys.modules['torch'] = sys.modules['optuna'] = None\n" + SCRIPT
BUILD = "import sys\nfrom setuptools import build_meta\nbuild_meta.build_wheel(sys.argv[1])\n"
FOREIGN = "raise RuntimeError('this is not the package of Podium')\n"
WHERE = "import benchmarks, implementations, podium; print(benchmarks.__file__, implementations.__file__)"
VERSIONS = """
from types import SimpleNamespace
from podium.doctor.diagnose import places
from podium.doctor.versions import check_libraries, check_python
for check in (check_python, check_libraries):
    for finding in check(SimpleNamespace(places=places())):
        print(finding.rule, finding.severity)
"""
START = f"""
import os, subprocess, sys
from podium.core.paths import child_environment
subprocess.run([sys.executable, "-c", {WHERE!r}], env=os.environ | child_environment(), check=True)
"""


@dataclass(frozen=True)
class Installation:
    python: Path
    # site-packages.
    packages: Path
    home: Path

    def start(
        self, folder: Path, arguments: list[str], expected: tuple[int, ...] = (0,), **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """The interpreter with these arguments, in this folder."""
        done = subprocess.run(
            [self.python, *arguments],
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.home), "COLUMNS": "200", "NO_COLOR": "1", **environment},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode in expected, done.stderr
        return done

    def podium(
        self, folder: Path, *arguments: str, code: int = 0, program: str = SCRIPT, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return self.start(folder, ["-c", program, *arguments], (code,), **environment)

    def several(self, folder: Path, *commands: Sequence[str]) -> list[tuple[int, str, str]]:
        """Exit code, output and errors of several commands, one after another in one process."""
        done = self.start(folder, ["-c", SEVERAL, json.dumps(commands)])
        return [(code, out, err) for code, out, err in json.loads(done.stdout)]

    def contents(self) -> dict[str, str]:
        files = (path for path in self.packages.rglob("*") if path.is_file())
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """The wheel as pip would build and install it."""
    folder = tmp_path_factory.mktemp("wheel")
    source, built = folder / "source", folder / "dist"
    for part in PARTS:
        shutil.copytree(CODE_FOLDER / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(CODE_FOLDER / name, source)
    built.mkdir()
    build = [sys.executable, "-c", BUILD, str(built)]
    done = subprocess.run(build, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    packages = environment / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    (wheel,) = built.iterdir()
    shutil.unpack_archive(wheel, packages, "zip")
    # A folder named so is searched, and its own .pth files, such as that of the editable Podium, are not read.
    (packages / "needed.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    ours = [str(packages / package) for package in PACKAGES]
    subprocess.run([python, "-m", "compileall", "-q", *ours], check=True)
    (folder / "home").mkdir()
    for path in (packages, *packages.rglob("*")):
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    yield Installation(python, packages, folder / "home")
    for path in (packages, *packages.rglob("*")):
        path.chmod(path.stat().st_mode | stat.S_IWUSR)


@pytest.fixture(scope="module")
def before(installation: Installation) -> dict[str, str]:
    return installation.contents()


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A run of very few samples, whose data are prepared already."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_text, "ARTICLES_PER_PART", 4)
        patch.setattr(demo_text, "EVALUATION_ARTICLES", 2)
        text = demo_text.write_embedded_text(folder / "text")
    prepare(text.training, text.vocabulary, folder / "training", processes=1)
    prepare((text.evaluation,), text.vocabulary, folder / "evaluation", processes=1)
    pairs = {
        "data.store": folder / "training",
        "data.evaluation_store": folder / "evaluation",
        "data.vocabulary": text.vocabulary,
        "target_accuracy": "null",
        "global_batch_size": 4,
        "max_samples": 8,
        "evaluation.samples": 4,
        "evaluation.interval_samples": 8,
        "kernels": "eager",
    }
    return [word for key, value in pairs.items() for word in ("--set", f"{key}={value}")]


def write_foreign(folder: Path, with_init: bool = True) -> Path:
    """Packages of our names that are not ours, as a submission to MLPerf has them."""
    for package in ("benchmarks", "implementations"):
        (folder / package / "bert").mkdir(parents=True)
        if with_init:
            (folder / package / "__init__.py").write_text(FOREIGN, encoding="utf-8")
    return folder


@dataclass(frozen=True)
class Made:
    # Where it was made.
    folder: Path
    run: dict[str, Any]


@pytest.fixture(scope="module")
def made(
    installation: Installation, before: dict[str, str], settings: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Made:
    """A run from a folder, and with a PYTHONPATH, that have packages of our names.

    The functions that it needs compiled are those of the repository, and are compiled for other tests already.
    """
    folder = write_foreign(tmp_path_factory.mktemp("current"))
    foreign = write_foreign(tmp_path_factory.mktemp("foreign"))
    done = installation.podium(
        folder,
        "run",
        "laptop",
        "--json",
        *settings,
        PYTHONPATH=str(foreign),
        XDG_CACHE_HOME=str(user_cache_folder().parent),
    )
    return Made(folder, json.loads(done.stdout))


@pytest.mark.slow
def test_a_run_goes_into_the_current_folder(made: Made) -> None:
    assert sorted(path.name for path in made.folder.iterdir()) == ["benchmarks", "implementations", "results", "runs"]
    assert list((made.folder / "results").iterdir()) == []  # a run without a target is no result to show
    assert Path(made.run["result_file"]) == Path(made.run["run_folder"]).parent / "result_0.txt"
    assert made.run["samples"] == 8 and all(made.run["compliance"].values())


def test_the_code_is_that_of_the_repository(made: Made) -> None:
    """So every file that a run may need is in the wheel."""
    source = json.loads((Path(made.run["run_folder"]) / "source.json").read_text(encoding="utf-8"))
    assert source == {"code": code_hash(CODE_FOLDER), "commit": None}


def test_results_are_compared_and_checked_without_what_only_training_needs(
    installation: Installation, made: Made
) -> None:
    log = made.run["result_file"]
    copied = made.folder / "others" / "results" / "laptop" / "bert"
    copied.mkdir(parents=True)
    shutil.copy(log, copied)
    compared = installation.podium(made.folder, "compare", "others/results", "--json", program=WITHOUT_TRAINING)
    assert [row["system"] for row in json.loads(compared.stdout)] == ["laptop"]
    arguments = ("submit", "check", log, "--json")
    checked = installation.podium(made.folder, *arguments, program=WITHOUT_TRAINING)
    assert json.loads(checked.stdout)["accepted"]
    page = installation.podium(made.folder, "report", "runs/laptop", "--html", "page.html", program=WITHOUT_TRAINING)
    assert b"plotly.js (basic - minified)" in (made.folder / "page.html").read_bytes(), page.stderr
    licence = installation.packages / "podium" / "html" / "vendor" / "LICENSE"
    assert "MIT" in licence.read_text(encoding="utf-8")


def test_the_doctor_finds_the_locked_versions(installation: Installation, tmp_path: Path) -> None:
    done = installation.start(tmp_path, ["-c", VERSIONS]).stdout
    assert done.splitlines() == ["python ok", "libraries ok"]


def test_own_systems_come_first(installation: Installation, tmp_path: Path) -> None:
    shipped = (CODE_FOLDER / "systems" / "laptop.yaml").read_text(encoding="utf-8")
    (tmp_path / "systems").mkdir()
    for name in ("laptop", "mine"):
        own = tmp_path / "systems" / f"{name}.yaml"
        own.write_text(shipped.replace("processes_per_node: 1", "processes_per_node: 4"), encoding="utf-8")
    names = ("laptop", "mine", "laptop_2x", "theirs")
    done = installation.several(tmp_path, *(("run", name, "--dry-run") for name in names))
    for (code, output, _), processes in zip(done, (4, 4, 2), strict=False):
        assert code == 0
        assert f"--nproc-per-node={processes} \\\n" in output
    code, _, refused = done[3]
    assert code == 2
    assert f"no system 'theirs' in {tmp_path}/systems or {installation.packages}/podium/systems" in refused
    assert "laptop, laptop_2x, mine" in refused


def test_what_needs_a_clone_is_refused(installation: Installation, tmp_path: Path) -> None:
    package = ("submit", "package", "laptop", "--out", "package", "--org", "Podium")
    for code, _, refused in installation.several(tmp_path, ("run", "dgxa100_n8"), package):
        assert code == 2
        assert "clone" in refused and len(refused.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("with_init", [True, False])
def test_processes_import_our_packages(installation: Installation, tmp_path: Path, with_init: bool) -> None:
    """Beside packages of our names in the current folder, and before and after ours on the path."""
    current, first, last = (write_foreign(tmp_path / name, with_init) for name in ("current", "first", "last"))
    program = f"import sys; sys.path.append({str(last)!r})\n{START}"
    found = installation.start(current, ["-c", program], PYTHONPATH=f"{first}{os.pathsep}{tmp_path}").stdout.split()
    assert found == [str(installation.packages / name / "__init__.py") for name in ("benchmarks", "implementations")]


def test_workers_import_our_packages(installation: Installation, tmp_path: Path) -> None:
    """Those of a pool of processes are given this process's path."""
    program = """
import podium.cli
from pathlib import Path
from benchmarks.bert.published.reading import read_runs
from podium.core.processes import run_jobs_in_processes
if __name__ == "__main__":
    print(len(*(found for _, found in run_jobs_in_processes(read_runs, {Path("runs"): ()}, 1))))
"""
    write_foreign(tmp_path)
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    assert installation.start(tmp_path, ["program.py"], PYTHONPATH=str(tmp_path)).stdout == "75\n"


def test_a_package_that_was_written_over_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(package, encoding="utf-8")
    recorded = {f"{name}/__init__.py": hashlib.sha256(name.encode()).digest() for name in PACKAGES}
    monkeypatch.setattr(paths, "INSTALLED", True)
    monkeypatch.setattr(paths, "CODE_FOLDER", tmp_path)
    monkeypatch.setattr(paths, "_recorded_hash", recorded.get)
    paths.require_podium_packages()
    (tmp_path / "benchmarks" / "__init__.py").write_text(FOREIGN, encoding="utf-8")
    with pytest.raises(UsageError, match="another distribution, which has a package `benchmarks` too"):
        paths.require_podium_packages()


def test_the_record_has_the_hashes(installation: Installation, tmp_path: Path) -> None:
    names = [f"{package}/__init__.py" for package in PACKAGES]
    program = f"from podium.core.paths import _recorded_hash; print(*[_recorded_hash(n).hex() for n in {names}])"
    hashes = [hashlib.sha256((CODE_FOLDER / name / "__init__.py").read_bytes()).hexdigest() for name in PACKAGES]
    assert installation.start(tmp_path, ["-c", program]).stdout.split() == hashes


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "laptop"],
        ["bench", "laptop"],
        ["doctor", "laptop"],
        ["tune", "laptop"],
        ["data", "verify", "store", "--evaluation", "store", "--vocab", "vocab", "--checkpoint", __file__],
    ],
)
def test_training_without_pytorch_is_refused(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r"pip install 'podium\[train\]'"):
        app(arguments, standalone_mode=False)


def test_nothing_was_written_among_the_packages(installation: Installation, before: dict[str, str], made: Made) -> None:
    """After all of the above."""
    assert installation.contents() == before
