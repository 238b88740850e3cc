#!/usr/bin/env python3
"""Carry the packages of requirements/ that training needs to a machine without a network, such as a bare CUDA image.

    python3 tools/carry.py       # where there is a network: download wheels into carried/

Then copy the repository with carried/, and on the machine:

    python3 -m pip install --no-index --no-deps --target /tmp/carried carried/*.whl
    export PYTHONPATH=/tmp/carried   # train, bench and the GPU tests then run; what is installed stays as it is

The machine is assumed to have IMAGE, with Python 3.12 on x86-64 (--python and --platform change that). CARRIED is the
rest, at the versions and with the SHA-256 of requirements/. It was found by runs with IMAGE alone, and
tests/test_carry.py compares it with what the code imports. Needs pip. Exit codes: 0 done, 1 a package is not locked or
all are too large, 2 pip failed or the folder cannot be written. Wheels in the folder are replaced at the end, and only
those of CARRIED.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKS = (ROOT / "requirements" / "test.txt", ROOT / "requirements" / "torch-cuda.txt")
FOLDER = ROOT / "carried"
# What an image with PyTorch, Triton, transformers, numba, h5py and typer has, with all that these depend on.
IMAGE = (
    *("torch", "triton", "transformers", "numba", "numpy", "h5py", "typer", "llvmlite", "safetensors", "tokenizers"),
    *("packaging", "pygments", "pyyaml", "rich"),
)
# For train, bench and the roofline: the configuration and MLPerf's log; pydantic needs newer typing-extensions than
# PyTorch. For the GPU tests: pytest, and what the conftest.py files and the test files beside them import.
CARRIED = (
    *("pydantic", "pydantic-core", "annotated-types", "typing-inspection", "typing-extensions", "mlperf-logging"),
    *("pytest", "pluggy", "iniconfig", "hypothesis", "sortedcontainers", "protobuf", "google-crc32c"),
    "nvidia-cudnn-frontend",  # attention: cudnn, which auto is on Hopper
)
# pip takes wheels of exactly these platforms.
PLATFORMS = tuple(
    f"manylinux{tag}_x86_64" for tag in ("_2_28", "_2_27", "_2_24", "_2_17", "2014", "_2_12", "2010", "1")
)
LARGEST_MB = 40


def locked(names: Sequence[str]) -> str:
    """Return the lines of the lock files for these packages."""
    text = "".join(lock.read_text(encoding="utf-8") for lock in LOCKS)
    entries = [re.search(rf"^{re.escape(name)}==(?:.*\\\n)*.*\n", text, re.MULTILINE) for name in names]
    missing = [name for name, entry in zip(names, entries, strict=True) if entry is None]
    if missing:
        files = " and ".join(str(lock) for lock in LOCKS)
        sys.exit(f"tools/carry.py: {files} lack {', '.join(missing)}; update CARRIED, or run `make lock`")
    return "".join(entry[0] for entry in entries if entry)


def download(folder: Path, python: str, platforms: Sequence[str]) -> None:
    """Download the wheels of CARRIED, print their sizes, and then put them in place of older ones."""
    lines = locked(CARRIED)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(dir=folder, prefix=".carry_")  # in it, since it may be a mount
    except OSError as error:
        nearest = next(path for path in (folder, *folder.parents) if path.exists())
        reason = error.strerror if nearest.is_dir() else f"{nearest} is not a folder"
        print(f"tools/carry.py: --folder: {folder} cannot be written: {reason}; name another folder", file=sys.stderr)
        sys.exit(2)
    with temporary as written:
        requirements = Path(written, "requirements.txt")
        requirements.write_text(lines, encoding="utf-8")
        options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--implementation", "cp", "--quiet"]
        options += ["--python-version", python, *(part for each in platforms for part in ("--platform", each))]
        pip = [sys.executable, "-m", "pip", "download", *options, "--dest", written, "--requirement", str(requirements)]
        if subprocess.run(pip, check=False).returncode:
            print("tools/carry.py: pip failed; its message is above", file=sys.stderr)
            sys.exit(2)
        wheels = sorted(Path(written).glob("*.whl"))
        for wheel in wheels:
            print(f"{wheel.stat().st_size / 1e6:6.2f} MB  {wheel.name}")
        total = sum(wheel.stat().st_size for wheel in wheels) / 1e6
        if total > LARGEST_MB:
            message = f"{total:.0f} MB, but a machine may take only {LARGEST_MB} MB; carry fewer packages"
            sys.exit(f"tools/carry.py: {message}")
        for old in folder.glob("*.whl"):
            if re.sub(r"[-_.]+", "-", old.name.partition("-")[0]).lower() in CARRIED:
                old.unlink()
        for wheel in wheels:
            wheel.replace(folder / wheel.name)
    print(f"{total:6.2f} MB  in {folder}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Download what a machine without a network lacks; see the head of this file."
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder for the wheels (default: carried/)")
    parser.add_argument("--python", default="3.12", help="the machine's Python (default: 3.12)")
    parser.add_argument("--platform", action="append", help="the machine's platforms, as pip names them")
    arguments = parser.parse_args()
    download(arguments.folder.resolve(), arguments.python, arguments.platform or PLATFORMS)


if __name__ == "__main__":
    main()
