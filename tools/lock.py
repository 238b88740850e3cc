#!/usr/bin/env python3
"""Write requirements/: the exact version and the SHA-256 of every package that setup.sh installs.

    make lock                                   # versions stay where pyproject.toml allows them
    .venv/bin/python tools/lock.py --upgrade    # the newest versions that pyproject.toml allows

The files hold for Python 3.11 to 3.14 on Linux, x86_64 and aarch64. Needs a network and uv (`pip install uv`).

    run.txt         what training and all commands need, except torch and the CUDA libraries
    test.txt        the same and the extra `test`
    dali.txt        the same and the extra `dali`
    torch-cuda.txt  torch as PyPI has it, built for CUDA, with the CUDA libraries and Triton that it needs, and the
                    package through which Podium calls cuDNN
    torch-cpu.txt   torch built for CPUs, as PyTorch's own index has it
    uv.txt          uv, with which tools/install.py installs these
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "requirements"
TORCH = "2.13.0"
# Extras that are not locked: loggers, large and each user's choice, which no timed process imports.
UNLOCKED = {"tensorboard", "wandb", "mlflow"}
# For `attention: cudnn`; cuDNN itself comes with torch. Release 1.32 also needs nvidia-cutlass-dsl and others.
CUDNN_FRONTEND = "nvidia-cudnn-frontend==1.22.0"
# torch is installed without its dependencies, which are these; the CUDA build also needs what CUDA_PACKAGE matches.
TORCH_NEEDS = ("filelock", "fsspec", "Jinja2", "networkx", "setuptools>=77.0.3", "sympy>=1.13.3", "typing-extensions")
CUDA_PACKAGE = re.compile(r"(nvidia|cuda)-.*|triton|torch")
MARKER = re.compile(r" ; (.*?)(?: \\)?$")
PYTHONS, MACHINES = ("311", "312", "313", "314"), ("x86_64", "aarch64")
PYTORCH_INDEX = "https://download.pytorch.org/whl/cpu/torch/"
# Wheels of Linux alone, and one version for all Pythons, so that tests on one Python test the versions of all.
LINUX = "sys_platform == 'linux' and platform_python_implementation == 'CPython' and python_full_version < '3.15'"
SETTINGS = f"""\
[tool.uv]
environments = [
    "{LINUX} and platform_machine == 'x86_64'",
    "{LINUX} and platform_machine == 'aarch64'",
]
fork-strategy = "fewest"
"""
HEADER = "# Written by tools/lock.py; do not edit. {what}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write requirements/ anew; see the head of this file.")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that pyproject.toml allows")
    upgrade = parser.parse_args().upgrade
    uv = shutil.which("uv") or sys.exit("tools/lock.py: there is no uv here; install it: pip install uv")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: needs for name, needs in project["optional-dependencies"].items() if name not in UNLOCKED}
    base = [*project["dependencies"], *extras["train"]]
    cuda = [f"torch=={TORCH}", CUDNN_FRONTEND]
    everything = [*base, *(need for needs in extras.values() for need in needs), *cuda, "uv"]
    with tempfile.TemporaryDirectory() as folder:
        lock = Lock(uv, Path(folder))
        known = [] if upgrade else sorted(lock.pins_of(FOLDER.glob("*.txt")))
        lock.constraints = lock.resolve(everything, prefer=known)
        run = [need for need in base if not need.startswith("torch")] + list(TORCH_NEEDS)
        names = lock.write("run.txt", run, "What training and all commands need, except torch.")
        for extra in extras.keys() - {"train"}:
            lock.write(f"{extra}.txt", [*run, *extras[extra]], f"run.txt and the extra `{extra}`.")
        what = "torch as PyPI has it, built for CUDA, and the CUDA libraries that it needs; the others are in run.txt."
        found = lock.write("torch-cuda.txt", cuda, what, leave_out=names)
        lock.write("uv.txt", ["uv"], "uv, with which tools/install.py installs the other files.")
    unknown = sorted(name for name in found if not CUDA_PACKAGE.fullmatch(name))
    if unknown:
        sys.exit(f"tools/lock.py: torch {TORCH} also needs {', '.join(unknown)}: add them to TORCH_NEEDS")
    write_cpu()


class Lock:
    """Calls of `uv pip compile` in one temporary folder."""

    def __init__(self, uv: str, folder: Path) -> None:
        self.uv, self.folder = uv, folder
        self.constraints: list[str] = []
        (folder / "pyproject.toml").write_text(SETTINGS, encoding="utf-8")

    def resolve(self, needs: Iterable[str], *options: str, prefer: Iterable[str] = ()) -> list[str]:
        """The lines of the resolved requirements. `prefer` are versions that are kept where they are allowed."""
        for name, lines in (("in", needs), ("out", prefer), ("constraints", self.constraints)):
            (self.folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        command = [self.uv, "pip", "compile", "in", "--output-file=out", "--constraints=constraints", "--universal"]
        command += ["--python-version=3.11", "--no-header", "--no-annotate", *options]
        subprocess.run(command, cwd=self.folder, check=True, stdout=subprocess.DEVNULL, env=environment())
        lines = (self.folder / "out").read_text(encoding="utf-8").splitlines()
        # Nearly all lines have the marker of the environments, which installing tests once and for all.
        markers = Counter(match[1] for line in lines if (match := MARKER.search(line)))
        common = f" ; {markers.most_common(1)[0][0]}"
        return [line.replace(common, "") if MARKER.search(line) else line for line in lines]

    def write(self, file: str, needs: Iterable[str], what: str, leave_out: Iterable[str] = ()) -> list[str]:
        """Write one file with hashes, and return the names of its packages."""
        hidden = [f"--no-emit-package={name}" for name in leave_out]
        lines = self.resolve(needs, "--generate-hashes", *hidden)
        text = HEADER.format(what=what) + "".join(f"{line}\n" for line in lines)
        (FOLDER / file).write_text(text, encoding="utf-8")
        return [line.partition("==")[0] for line in lines if "==" in line and not line.startswith(" ")]

    @staticmethod
    def pins_of(files: Iterable[Path]) -> set[str]:
        """`name==version`, with its marker, of every package in the files."""
        lines = (line for file in files for line in file.read_text(encoding="utf-8").splitlines())
        return {line.removesuffix("\\").strip() for line in lines if re.match(r"[\w.-]+==[\w.]+(?!\+)[ \\]", line)}


def environment() -> dict[str, str]:
    """This process's, without settings of uv: another index may have other files under the same names."""
    return {key: value for key, value in os.environ.items() if not key.startswith("UV_")}


def write_cpu() -> None:
    """Write torch-cpu.txt from PyTorch's index; where that cannot be reached, a file of the same version stays."""
    path = FOLDER / "torch-cpu.txt"
    wheel = rf"torch-{re.escape(TORCH)}(?:%2B|\+)cpu-cp({'|'.join(PYTHONS)})-cp\1-manylinux_2_28_({'|'.join(MACHINES)})"
    try:
        with urllib.request.urlopen(PYTORCH_INDEX, timeout=20) as page:
            text = page.read().decode()
    except OSError as error:
        if not path.exists() or f"torch=={TORCH}+cpu" not in path.read_text(encoding="utf-8"):
            sys.exit(
                f"tools/lock.py: {PYTORCH_INDEX} cannot be read ({error}), so torch-cpu.txt stays of another version"
            )
        print(f"tools/lock.py: {PYTORCH_INDEX} cannot be read ({error}); torch-cpu.txt stays as it is", file=sys.stderr)
        return
    found = {match[:2]: match[2] for match in re.findall(rf"{wheel}\.whl#sha256=([0-9a-f]{{64}})", text)}
    missing = [f"cp{python} {machine}" for machine in MACHINES for python in PYTHONS if (python, machine) not in found]
    if missing:
        sys.exit(f"tools/lock.py: {PYTORCH_INDEX} has no hash of torch {TORCH}+cpu for {', '.join(missing)}")
    path.write_text(cpu_text(found), encoding="utf-8")


def cpu_text(hashes: dict[tuple[str, str], str]) -> str:
    """torch-cpu.txt, from the SHA-256 by Python and machine."""
    what = "torch as PyTorch's index has it, built for CPUs; the packages that it needs are in run.txt."
    lines = [HEADER.format(what=what) + f"# https://download.pytorch.org/whl/cpu\ntorch=={TORCH}+cpu"]
    lines += [f"    --hash=sha256:{hashes[python, machine]}" for machine in MACHINES for python in PYTHONS]
    return " \\\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
