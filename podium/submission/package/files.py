"""The text files of a package: READMEs, shell scripts, and the configuration from which the runs can be repeated."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from benchmarks.bert.rules import RUNS
from podium.config.sbatch import without_names
from podium.config.schema import DataSettings, Launch, RunConfig
from podium.core.paths import WORKING_FOLDER
from podium.core.yaml_files import dump_yaml
from podium.launch.mounts import INSIDE, on_host
from podium.submission.package.code import Code
from podium.submission.package.select_runs import Choice
from podium.submission.rcp import Convergence

EMBEDDED = "embedded"  # the folder under data/ in which samples of the embedded text are
# Where the package looks for what the runs read from elsewhere than the repository or a mount of their container.
PLACES = {
    "store": "data/training",
    "evaluation_store": "data/evaluation",
    "vocabulary": "data/vocab.txt",
    "initial_checkpoint": "data/initial.safetensors",
}


def submitted(config: RunConfig, now: RunConfig) -> RunConfig:
    """The runs' configuration without what belongs to one run or to one machine.

    The seed is left out, since every run draws its own, and so are names of hosts, accounts and folders. Paths are seen
    from the package's code folder. A run in a container or a Slurm job records how its processes were started there;
    how that is entered is taken from `now`, what the system's file says at present, where it starts as many processes.
    """
    same = (now.launch.nodes, now.launch.processes_per_node) == (config.launch.nodes, config.launch.processes_per_node)
    launch = now.launch if same and now.launch.launcher != config.launch.launcher else config.launch
    paths = {key: _place(key, path, launch) for key, path in config.data if key in PLACES and path is not None}
    data = DataSettings() if _is_embedded(config) else config.data.model_copy(update=paths)
    checkpoint = config.initial_checkpoint and _place("initial_checkpoint", config.initial_checkpoint, launch)
    phases = tuple(
        phase.model_copy(update={"store": _phase_place(config, phase.store, f"phase-{number}", launch)})
        for number, phase in enumerate(config.phases)
    )
    update = {
        "seed": None,
        "launch": _without_places(launch),
        "initial_checkpoint": checkpoint,
        "data": data,
        "phases": phases,
    }
    return config.model_copy(update=update)


def _without_places(launch: Launch) -> Launch:
    """How processes are started, without names of one cluster's hosts, folders, accounts and people.

    A folder of this machine that a container sees becomes one in the package's data/.
    """
    update: dict[str, Any] = {"rendezvous": None, "slurm_options": without_names(launch.slurm_options)}
    if launch.container is not None:
        image, mounts = launch.container.image, tuple(map(_own_mount, launch.container.mounts))
        names = {"image": PurePath(image).name if image.startswith("/") else image, "mounts": mounts}
        update["container"] = launch.container.model_copy(update=names)
    return launch.model_copy(update=update)


def _own_mount(mount: str) -> str:
    here, there = mount.split(":", 1)
    source = PurePath(here)
    if not source.is_absolute() and ".." not in source.parts:
        return mount
    return f"{PurePath('data', *PurePath(there.removesuffix(':ro')).parts[1:])}:{there}"


def system_file(config: RunConfig) -> str:
    """A submitted configuration as YAML with the sections of a system file, as `podium run FILE` takes it."""
    values: dict[str, Any] = config.model_dump(mode="json", by_alias=True, exclude={"system", "seed"})
    document = {key: values.pop(key) for key in ("description", "launch")} | {"bert": values}
    return dump_yaml(document)


def _phase_place(config: RunConfig, store: Path | None, name: str, launch: Launch) -> Path | None:
    """A phase's store as the package's code folder sees it; None where a run finds or makes it beside the data's."""
    if store is None or (_is_embedded(config) and config.data.store and store.parent == config.data.store.parent):
        return None
    return _place(name, store, launch)


def _is_embedded(config: RunConfig) -> bool:
    """Whether the samples are of the embedded text, which every run finds or makes."""
    store = config.data.store
    if store is None:
        return config.data.kind == "embedded"
    return store.parent.parent.name == EMBEDDED and store.parent.name.startswith("samples-")


def _place(key: str, path: Path, launch: Launch) -> Path:
    for root in (WORKING_FOLDER, INSIDE):
        if path.is_relative_to(root):
            return path.relative_to(root)
    return path if on_host(path, launch) != path else Path(PLACES.get(key, f"data/{key}"))


IMPLEMENTATION = "podium"
PODIUM = ".venv/bin/podium"


@dataclass(frozen=True)
class Submitted:
    """A system with what goes into the package of it."""

    system: str  # MLPerf's system_name: of its folder and its file
    config: RunConfig  # as it goes into the package
    choice: Choice
    convergence: Convergence | None  # None in the open division, which is not compared with MLPerf's reference
    code: Code
    implementation: str = IMPLEMENTATION  # the name of the code's folder
    compared: tuple[str, ...] = ()  # what was found to be as the runs recorded it
    notes: tuple[str, ...] = ()  # what could not be compared

    @property
    def configuration(self) -> str:
        """The system file, from the code folder."""
        return f"submitted/{self.system}.yaml"

    @property
    def code_folder(self) -> str:
        """From the system's own."""
        return f"../implementations/{self.implementation}"


def setup(one: Submitted) -> str:
    """Everything is installed into .venv of the code folder, once."""
    return _script(one, "setup.sh", "Python 3.11 or newer with venv is all that it needs.", 'source ./setup.sh ""\n')


def run_and_time(one: Submitted) -> str:
    says = f"run_and_time.sh [options of podium run]: makes {RUNS} runs, or what the options say."
    command = f"exec ./run_and_time.sh {shlex.quote(one.configuration)}"
    return _script(one, "run_and_time.sh", says, f'[ $# -gt 0 ] || set -- --runs {RUNS}\n{command} "$@"\n')


def init_datasets(one: Submitted) -> str:
    """Makes the samples, and the checkpoint, where the configuration wants them."""
    if one.config.data.kind == "embedded":
        says = "nothing is to be done: the data is made from the text that is embedded in the code, at the first run."
        return _script(one, "init_datasets.sh", says, f"echo {shlex.quote(says)}\n")
    says = (
        "init_datasets.sh INPUTS: makes samples and checkpoint of MLPerf's inputs in the folder INPUTS, which holds "
        "part-*, eval.txt, vocab.txt and model.ckpt-28252.*."
    )
    commands = "".join(f"{line}\n" for line in _preparation(one.config))
    return _script(one, "init_datasets.sh", says, commands, before=INPUTS)


# Read before the folder is changed, since it may be a relative path.
INPUTS = """\
inputs="${1:?name the folder that holds part-*, eval.txt and vocab.txt}"
inputs="$(cd "$inputs" && pwd)"
"""


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
    for phase in config.phases:
        if phase.store is not None:
            lines.append(
                f'{PODIUM} data prepare --text "$inputs"/part-* --vocab {vocabulary} '
                f"--out {_quoted(phase.store, config)} --max-sequence-length {phase.generation.max_sequence_length} "
                f"--max-predictions {phase.generation.max_predictions}"
            )
    verify = f"{PODIUM} data verify {store} --evaluation {evaluation} --vocab {vocabulary}"
    if config.initial_checkpoint is not None:
        checkpoint = _quoted(config.initial_checkpoint, config)
        lines.append(f'mkdir -p "$(dirname {checkpoint})"')
        lines.append(f'{PODIUM} data checkpoint "$inputs/model.ckpt-28252" {checkpoint} --size {config.size}')
        verify += f" --checkpoint {checkpoint} --size {config.size}"
    return [*lines, verify + (" --official" if config.division == "closed" else "")]


def _quoted(path: Path, config: RunConfig) -> str:
    return shlex.quote(on_host(path, config.launch).as_posix())


def _script(one: Submitted, name: str, says: str, commands: str, before: str = "") -> str:
    code = shlex.quote(one.code_folder)
    head = f"#!/usr/bin/env bash\n# {name} of {one.system}: {says.removeprefix(name + ' ')}\nset -euo pipefail\n"
    return f'{head}{before}cd "$(dirname "${{BASH_SOURCE[0]}}")"/{code}\n{commands}'


def write_script(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


# What the project's own README is called in a package, whose README says how the submitted runs are made.
PROJECT_README = "README_PODIUM.md"


def code_readme(systems: Sequence[Submitted], left_out: Sequence[str], licences: Sequence[str], org: str) -> str:
    """Of a code folder, whose code made the results of these systems."""
    names, code = ", ".join(one.system for one in systems), systems[0].code
    parts = [
        f"# BERT by Podium, submitted by {org}",
        f"Results: {names}. The code is that of Podium's commit {code.commit}. {_trust(code)}"
        f"{_left_out(left_out)} Podium's own README is in {PROJECT_README}.",
        "## Set up\n\nLinux and Python 3.11 or newer with venv; everything else is installed into .venv by\n\n"
        '```console\n$ source ./setup.sh ""\n```\n\n'
        "Libraries and their versions are in requirements/, their licences in THIRD_PARTY.md.",
        _licence(licences),
        *(_system(one) for one in systems),
    ]
    return "\n\n".join(parts) + "\n"


def system_readme(one: Submitted) -> str:
    """Of benchmarks/bert/SYSTEM."""
    config = one.config
    inputs = "" if config.data.kind == "embedded" else " INPUTS"
    parts = [
        f"# BERT on {one.system}",
        f"{config.description.framework}, {_processes(config)}, recipe {config.recipe}, "
        f"{config.global_batch_size:,} samples a step. The code is in {one.code_folder}, the configuration in "
        f"{one.configuration} there.",
        f"```console\n$ ./setup.sh\n$ ./init_datasets.sh{inputs}\n$ ./run_and_time.sh\n```",
        _data(config),
        _runs(one),
        "\n".join(["What was compared when this package was made:\n", *(f"- {text}" for text in one.compared)]),
        *("\n".join(["What could not be:\n", *(f"- {text}" for text in one.notes)]) for _ in one.notes[:1]),
    ]
    return "\n\n".join(parts) + "\n"


def third_party_notice(libraries: Sequence[tuple[str, str, str]]) -> str:
    """The pinned libraries, none of which is part of the package."""
    rows = "\n".join(f"| {name} | {version} | {licence} |" for name, version, licence in libraries)
    return (
        "# Libraries of others\n\nThey are installed from PyPI and are no part of this folder. Licences are as the "
        f"metadata of the installed packages states them.\n\n| library | version | licence |\n|---|---|---|\n{rows}\n"
    )


def implementation_json(one: Submitted) -> str:
    """SYSTEM_IMPLEMENTATION.json. MLPerf names this file without saying what is in it."""
    config = one.config
    content = {
        "system": one.system,
        "implementation": one.implementation,
        "benchmark": "bert",
        "framework": config.description.framework,
        "commit": one.code.commit,
        "commit_made_the_runs": one.code.made_the_runs,
        "configuration": f"{one.code_folder}/{one.configuration}",
        "starting_weights": str(config.initial_checkpoint or "drawn from the seed"),
        "recipe": config.recipe,
        "global_batch_size": config.global_batch_size,
        "processes": config.launch.ranks,
    }
    return json.dumps(content, indent=4) + "\n"


def _system(one: Submitted) -> str:
    config = one.config
    return (
        f"## {one.system}\n\n{_processes(config)}, recipe {config.recipe}; everything that was set is in "
        f"{one.configuration}. {_data(config)}\n\n"
        f"```console\n$ ./run_and_time.sh {one.configuration} --runs {RUNS}\n```\n\n{_runs(one)}"
    )


def _processes(config: RunConfig) -> str:
    launch = config.launch
    nodes = f"{launch.nodes} node{'s' if launch.nodes > 1 else ''}"
    return f"{nodes} with {launch.processes_per_node} process{'es' if launch.processes_per_node > 1 else ''} each"


def _data(config: RunConfig) -> str:
    if config.data.kind == "embedded":
        return "The data is made at the first run from the text that is embedded in the code."
    checkpoint = f", starting weights in {config.initial_checkpoint}" if config.initial_checkpoint else ""
    return (
        f"Training samples are in {config.data.store}, evaluation samples in {config.data.evaluation_store}"
        f"{checkpoint}. init_datasets.sh makes them of MLPerf's inputs."
    )


def _runs(one: Submitted) -> str:
    choice = one.choice
    words = f"The score of the {RUNS} runs, without the fastest and the slowest, is {choice.score:.3f} s."
    if len(choice.scores) > 1:
        words += (
            f" {len(choice.runs)} consecutive runs were made; of the {len(choice.scores)} windows of {RUNS} "
            f"consecutive ones the one at the median was taken, which begins with run {choice.window + 1}."
        )
    found = one.convergence
    if found is not None and found.samples is not None and found.reference_samples is not None:
        words += (
            f" They needed {found.samples:,.0f} samples, the reference {found.reference_samples:,.0f}"
            + (f"; the score is scaled by {found.factor:.6f} (scaling.json)" if found.scaling else "")
            + "."
        )
    return words


def _trust(code: Code) -> str:
    if code.made_the_runs:
        return "Each run recorded the hash of its code, and it is that of this commit."
    return f"**It is not certain that this is the code of the runs: {code.doubt}.**"


def _left_out(names: Sequence[str]) -> str:
    if not names:
        return ""
    return f" Left out, since MLPerf's repositories take no such names: {', '.join(f'`{name}`' for name in names)}."


def _licence(files: Sequence[str]) -> str:
    if files:
        return f"## Licence\n\nSee {', '.join(files)}."
    return "## Licence\n\nPodium comes without a licence file; its use is the submitter's to settle before uploading."
