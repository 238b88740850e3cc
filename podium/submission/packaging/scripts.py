"""The shell scripts of a system in a package: set up, prepare the data, run. Each may be called from anywhere."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bert.rules import RUNS
from podium.config import RunConfig
from podium.submission.packaging.resolved import on_host

PODIUM = ".venv/bin/podium"


@dataclass(frozen=True)
class Placed:
    """Where a system's files are in a package."""

    system: str
    implementation: str

    @property
    def configuration(self) -> str:
        """The system file, from the code folder."""
        return f"submitted/{self.system}.yaml"

    @property
    def code(self) -> str:
        """The code folder, from the system's own."""
        return f"../implementations/{self.implementation}"


def setup(placed: Placed) -> str:
    """Everything is installed into .venv of the code folder, once."""
    return _script(placed, "setup.sh", "Python 3.11 or newer with venv is all that it needs.", 'source ./setup.sh ""\n')


def run_and_time(placed: Placed) -> str:
    says = f"run_and_time.sh [options of podium run]: makes {RUNS} runs, or what the options say."
    command = f"exec ./run_and_time.sh {shlex.quote(placed.configuration)}"
    return _script(placed, "run_and_time.sh", says, f'[ $# -gt 0 ] || set -- --runs {RUNS}\n{command} "$@"\n')


def init_datasets(placed: Placed, config: RunConfig) -> str:
    """Makes the samples, and the checkpoint, where the configuration wants them."""
    if config.data.kind == "embedded":
        says = "nothing is to be done: the data is made from the text that is embedded in the code, at the first run."
        return _script(placed, "init_datasets.sh", says, f"echo {shlex.quote(says)}\n")
    says = (
        "init_datasets.sh INPUTS: makes samples and checkpoint of MLPerf's inputs in the folder INPUTS, which holds "
        "part-*, eval.txt, vocab.txt and model.ckpt-28252.*."
    )
    commands = "".join(f"{line}\n" for line in _preparation(config))
    return _script(placed, "init_datasets.sh", says, commands, before=INPUTS)


INPUTS = """\
inputs="${1:?name the folder that holds part-*, eval.txt and vocab.txt}"
inputs="$(cd "$inputs" && pwd)"
"""
"""Read before the folder is changed, since it may be a relative path."""


def _preparation(config: RunConfig) -> list[str]:
    data = config.data
    assert data.store and data.evaluation_store and data.vocabulary
    store, evaluation, vocabulary = (
        _quoted(path, config) for path in (data.store, data.evaluation_store, data.vocabulary)
    )
    lines = [
        'source ./setup.sh ""',
        f'mkdir -p "$(dirname {vocabulary})"',
        f'[ "$inputs/vocab.txt" -ef {vocabulary} ] || cp "$inputs/vocab.txt" {vocabulary}',
        f'{PODIUM} data prepare --text "$inputs"/part-* --vocab {vocabulary} --out {store}',
        f'{PODIUM} data prepare --text "$inputs/eval.txt" --evaluation {config.evaluation_samples} '
        f"--vocab {vocabulary} --out {evaluation}",
    ]
    verify = f"{PODIUM} data verify {store} --evaluation {evaluation} --vocab {vocabulary}"
    if config.initial_checkpoint is not None:
        checkpoint = _quoted(config.initial_checkpoint, config)
        lines.append(f'mkdir -p "$(dirname {checkpoint})"')
        lines.append(f'{PODIUM} data checkpoint "$inputs/model.ckpt-28252" {checkpoint} --size {config.size}')
        verify += f" --checkpoint {checkpoint} --size {config.size}"
    return [*lines, verify + (" --official" if config.division == "closed" else "")]


def _quoted(path: Path, config: RunConfig) -> str:
    return shlex.quote(on_host(path, config.launch).as_posix())


def _script(placed: Placed, name: str, says: str, commands: str, before: str = "") -> str:
    code = shlex.quote(placed.code)
    head = f"#!/usr/bin/env bash\n# {name} of {placed.system}: {says.removeprefix(name + ' ')}\nset -euo pipefail\n"
    return f'{head}{before}cd "$(dirname "${{BASH_SOURCE[0]}}")"/{code}\n{commands}'


EXECUTABLE = 0o755


def write_script(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(EXECUTABLE)
