"""The version of a run's code: its hash depends on the files alone, not on their location."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from podium.core.paths import CODE_FOLDER
from podium.run.source import BASE_IMAGE, Source, code_hash, commit_of, current_source, read_source, write_source


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name in (
        "benchmarks/a.py",
        "implementations/deep/b.yaml",
        "podium/c.py",
        "pyproject.toml",
        "requirements/run.txt",
        "systems/d.yaml",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{name}\n", encoding="utf-8")
    return root


def append(root: Path) -> None:
    with (root / "podium" / "c.py").open("a", encoding="utf-8") as file:
        file.write("\n")


def rename(root: Path) -> None:
    (root / "podium" / "c.py").rename(root / "podium" / "d.py")


def move(root: Path) -> None:
    (root / "podium" / "c.py").rename(root / "benchmarks" / "c.py")


def add(root: Path) -> None:
    (root / "implementations" / "mine.yaml").write_text("", encoding="utf-8")


def remove(root: Path) -> None:
    (root / "implementations" / "deep" / "b.yaml").unlink()


def swap(root: Path) -> None:
    one, other = root / "podium" / "c.py", root / "benchmarks" / "a.py"
    one_text, other_text = one.read_bytes(), other.read_bytes()
    one.write_bytes(other_text)
    other.write_bytes(one_text)


def change_ranges(root: Path) -> None:
    (root / "pyproject.toml").write_text("other ranges\n", encoding="utf-8")


def change_versions(root: Path) -> None:
    (root / "requirements" / "run.txt").write_text("numpy==1.0\n", encoding="utf-8")


@pytest.mark.parametrize("change", [append, rename, move, add, remove, swap, change_ranges, change_versions])
def test_every_change_of_the_code_changes_the_hash(tree: Path, change: Callable[[Path], None]) -> None:
    before = code_hash(tree)
    change(tree)
    assert code_hash(tree) != before


def test_caches_hidden_files_and_other_folders_do_not_change_the_hash(tree: Path, tmp_path: Path) -> None:
    before = code_hash(tree)
    other = Path(shutil.copytree(tree, tmp_path / "elsewhere"))
    (other / "podium" / "__pycache__").mkdir()
    for name in ("podium/__pycache__/c.pyc", "podium/.c.py.swp", "systems/d.yaml", "README.md"):
        (other / name).write_text("something else", encoding="utf-8")
    assert code_hash(other) == before


def test_bytes_moved_between_files_change_the_hash(tree: Path) -> None:
    """The hash includes the lengths of names and contents."""
    (tree / "podium" / "c.py").write_bytes(b"xy")
    (tree / "podium" / "d.py").write_bytes(b"z")
    before = code_hash(tree)
    (tree / "podium" / "c.py").write_bytes(b"x")
    (tree / "podium" / "d.py").write_bytes(b"yz")
    assert code_hash(tree) != before


def test_commit_is_that_of_the_folders_repository(tree: Path) -> None:
    assert commit_of(tree) is None
    git = ["git", "-C", str(tree), "-c", "user.name=T", "-c", "user.email=t@example.org"]
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "First"]):
        subprocess.run([*git, *arguments], check=True)
    commit = commit_of(tree)
    assert commit is not None and len(commit) == 40
    assert commit_of(tree, commit) == commit
    assert commit_of(tree, "0" * 40) is None and commit_of(tree, "--all") is None
    assert commit_of(tree / "podium") is None


def test_source_is_written_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "source.json"
    later = (Source("ab", "cd"), Source("ef", None), Source("ef", None))
    pinned = Source("ab", None, later, f"nvcr.io/nvidia/pytorch@sha256:{'5' * 64}")
    for source in (Source("ab", "cd"), Source("ab", None), Source("ab", None, later), pinned):
        write_source(path, source)
        assert read_source(path) == source
    assert source.codes == ("ab", "ef")


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "[]",
        "{}",
        '{"code": 1, "commit": null}',
        '{"code": "a", "commit": 3}',
        '{"code": "a", "commit": null, "resumed": 3}',
        '{"code": "a", "commit": null, "resumed": ["b"]}',
    ],
)
def test_invalid_file_is_read_as_none(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "source.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    assert read_source(path) is None


def test_this_code_has_a_hash() -> None:
    assert current_source() == current_source() and len(current_source().code) == 64


def test_base_image_of_a_container_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """docker/Dockerfile sets the variable to FROM_IMAGE, which docker/build.sh pins by its digest."""
    assert current_source().base_image is None
    dockerfile = (CODE_FOLDER / "docker" / "Dockerfile").read_text(encoding="utf-8")
    assert f"ENV {BASE_IMAGE}=${{FROM_IMAGE}}" in dockerfile
    monkeypatch.setenv(BASE_IMAGE, "registry.example/torch@sha256:12")
    assert current_source().base_image == "registry.example/torch@sha256:12"
