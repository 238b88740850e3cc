"""Text files of a package: READMEs, shell scripts, and the configuration with which the runs can be repeated."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from benchmarks.bert.rules import RUNS
from podium.config.sbatch import resource_options
from podium.config.schema import DataSettings, Launch, RunConfig
from podium.core.paths import WORKING_FOLDER
from podium.core.text import printable
from podium.core.yaml_files import dump_yaml
from podium.launch.mounts import INSIDE, on_host
from podium.run.results import BENCHMARK
from podium.submission.package.code import Code
from podium.submission.package.select_runs import WindowSelection
from podium.submission.rcp import Convergence

EMBEDDED = "embedded"  # the folder in data/ with the samples of the embedded text
# Paths in the package of inputs that the runs read from outside of the repository and their container's mounts.
PACKAGE_PATHS = {
    "store": "data/training",
    "evaluation_store": "data/evaluation",
    "vocabulary": "data/vocab.txt",
    "initial_checkpoint": "data/initial.safetensors",
}


def submitted_config(config: RunConfig, current: RunConfig) -> RunConfig:
    """Return the runs' configuration without what belongs to one run or one machine.

    The seed is left out, since each run draws one, as are names of hosts, accounts and folders. Paths are relative to
    the package's code folder. A run in a container or a Slurm job records how processes were started inside; how the
    container or job is started is taken from `current`, the present system file, if it starts as many processes.
    """
    same = (current.launch.nodes, current.launch.processes_per_node) == (
        config.launch.nodes,
        config.launch.processes_per_node,
    )
    launch = current.launch if same and current.launch.launcher != config.launch.launcher else config.launch
    paths = {
        key: _package_path(key, path, launch) for key, path in config.data if key in PACKAGE_PATHS and path is not None
    }
    data = DataSettings() if _is_embedded(config) else config.data.model_copy(update=paths)
    checkpoint = config.initial_checkpoint and _package_path("initial_checkpoint", config.initial_checkpoint, launch)
    phases = tuple(
        phase.model_copy(update={"store": _phase_path(config, phase.store, f"phase-{number}", launch)})
        for number, phase in enumerate(config.phases)
    )
    update = {
        "seed": None,
        "launch": _portable_launch(launch),
        "initial_checkpoint": checkpoint,
        "data": data,
        "phases": phases,
    }
    return config.model_copy(update=update)


def _portable_launch(launch: Launch) -> Launch:
    """Return the launch settings without names of one cluster's hosts, folders, accounts and people.

    The host folder of a container's mount becomes one in the package's data/.
    """
    update: dict[str, Any] = {"rendezvous": None, "slurm_options": resource_options(launch.slurm_options)}
    if launch.container is not None:
        image, mounts = launch.container.image, tuple(map(_portable_mount, launch.container.mounts))
        names = {"image": PurePath(image).name if image.startswith("/") else image, "mounts": mounts}
        update["container"] = launch.container.model_copy(update=names)
    return launch.model_copy(update=update)


def _portable_mount(mount: str) -> str:
    host, inside = mount.split(":", 1)
    source = PurePath(host)
    if not source.is_absolute() and ".." not in source.parts:
        return mount
    return f"{PurePath('data', *PurePath(inside.removesuffix(':ro')).parts[1:])}:{inside}"


def render_system_file(config: RunConfig) -> str:
    """Return a configuration as the YAML of a system file, for `podium run FILE`."""
    values: dict[str, Any] = config.model_dump(mode="json", by_alias=True, exclude={"system", "seed"})
    document = {key: values.pop(key) for key in ("description", "launch")}
    reproduces = values.pop("reproduces")
    others = {} if reproduces is None else {"reproduces": reproduces}
    return dump_yaml(document | {"bert": values} | others)


def _phase_path(config: RunConfig, store: Path | None, name: str, launch: Launch) -> Path | None:
    """Return a phase's store relative to the package's code folder; None if a run makes it beside the embedded data."""
    if store is None or (_is_embedded(config) and config.data.store and store.parent == config.data.store.parent):
        return None
    return _package_path(name, store, launch)


def _is_embedded(config: RunConfig) -> bool:
    """Whether the samples are those of the embedded text, which a run makes if they are missing."""
    store = config.data.store
    if store is None:
        return config.data.kind == "embedded"
    return store.parent.parent.name == EMBEDDED and store.parent.name.startswith("samples-")


def _package_path(key: str, path: Path, launch: Launch) -> Path:
    for root in (WORKING_FOLDER, INSIDE):
        if path.is_relative_to(root):
            return path.relative_to(root)
    return path if on_host(path, launch) != path else Path(PACKAGE_PATHS.get(key, f"data/{key}"))


IMPLEMENTATION = "podium"
PODIUM = ".venv/bin/podium"


@dataclass(frozen=True)
class SubmittedSystem:
    """A system and all that goes into its package."""

    system: str  # MLPerf's system_name, also of its folder and file
    config: RunConfig  # as written into the package
    selection: WindowSelection
    convergence: Convergence | None  # None in the open division, which is not compared with MLPerf's reference
    code: Code
    implementation: str = IMPLEMENTATION  # the name of the code's folder
    compared: tuple[str, ...] = ()  # what was compared with the runs' records and agrees
    notes: tuple[str, ...] = ()  # what could not be compared

    benchmark = BENCHMARK
    unit = "samples"  # of the reference's points

    @property
    def label(self) -> str:
        """The result's name in the output."""
        return self.system

    @property
    def division(self) -> str:
        return self.config.division

    @property
    def code_rows(self) -> list[tuple[str, str]]:
        """What the output states about the code."""
        certain = "" if self.code.made_the_runs else ", not certain"
        return [("code", f"commit {self.code.commit[:12]}{certain}")] + [("", self.code.doubt)] * bool(self.code.doubt)

    @property
    def code_json(self) -> dict[str, Any]:
        """The same for --json."""
        return {"commit": self.code.commit, "commit_made_the_runs": self.code.made_the_runs}

    @property
    def configuration(self) -> str:
        """The path of the system file, from the code folder."""
        return self.config.config_filename

    @property
    def code_folder(self) -> str:
        """The path of the code folder, from the system's folder."""
        return f"../implementations/{self.implementation}"


@dataclass(frozen=True)
class SubmittedLogs:
    """Logs of one benchmark by any framework, and all that goes into the package with them."""

    system: str  # the name of the system's folder and file
    benchmark: str
    division: str
    framework: str
    selection: WindowSelection
    convergence: Convergence | None  # None in the open division, and where the benchmark has no reference points
    unit: str  # of the reference's points
    code: Path  # the folder of the code
    implementation: str  # the name of the code's folder in the package
    notes: tuple[str, ...] = ()  # what the package lacks
    compared: tuple[str, ...] = ()  # nothing: only Podium's runs have records

    @property
    def label(self) -> str:
        """The result's name in the output."""
        return f"{self.system}, {self.benchmark}"

    @property
    def code_rows(self) -> list[tuple[str, str]]:
        """What the output states about the code."""
        return [("code", str(self.code))]

    @property
    def code_json(self) -> dict[str, Any]:
        """The same for --json."""
        return {"code": str(self.code), "implementation": self.implementation}


RUN_SCRIPTS = ("setup.sh", "init_datasets.sh", "run_and_time.sh")  # that the rules require for each system


def logs_readme(submitted: SubmittedLogs) -> str:
    """Return the README of benchmarks/BENCHMARK/SYSTEM of logs by any framework."""
    names = [run.name for run in submitted.selection.selected_runs]
    parts = [
        f"# {submitted.benchmark} on {submitted.system}",
        f"The code is in ../implementations/{submitted.implementation}; its README has the exact command.",
        score_sentences(submitted.selection, submitted.convergence, submitted.unit),
        "The logs are unchanged, in the order of run_start:",
        "\n".join(f"- result_{number}.txt: `{printable(name)}`" for number, name in enumerate(names)),
        *("\n".join(["Notes:\n", *(f"- {text}" for text in submitted.notes)]) for _ in submitted.notes[:1]),
    ]
    return "\n\n".join(parts) + "\n"


def logs_json(submitted: SubmittedLogs) -> str:
    """Return the content of SYSTEM_IMPLEMENTATION.json of logs by any framework."""
    content = {
        "system": submitted.system,
        "implementation": submitted.implementation,
        "benchmark": submitted.benchmark,
        "framework": submitted.framework,
        "code": f"../implementations/{submitted.implementation}",
    }
    return json.dumps(content, indent=4) + "\n"


def forwarding_script(submitted: SubmittedLogs, name: str) -> str:
    """Return the script of a system that runs the script of the same name in the code's folder."""
    code = shlex.quote(f"../implementations/{submitted.implementation}")
    return (
        f"#!/usr/bin/env bash\n# {name} of {submitted.system}: runs that of the code.\nset -euo pipefail\n"
        f'cd "$(dirname "${{BASH_SOURCE[0]}}")"/{code}\nexec bash ./{name} "$@"\n'
    )


def setup_script(submitted: SubmittedSystem) -> str:
    """Return the script that installs everything into the code folder's .venv, once."""
    return _render_script(submitted, "setup.sh", "needs Python 3.11 or newer with venv.", 'source ./setup.sh ""\n')


def run_and_time_script(submitted: SubmittedSystem) -> str:
    """Return the script that makes the runs."""
    comment = f"run_and_time.sh [options of podium run]: makes {RUNS} runs, or runs with the given options."
    command = f"exec ./run_and_time.sh {shlex.quote(submitted.configuration)}"
    return _render_script(
        submitted, "run_and_time.sh", comment, f'[ $# -gt 0 ] || set -- --runs {RUNS}\n{command} "$@"\n'
    )


def init_datasets_script(submitted: SubmittedSystem) -> str:
    """Return the script that makes the samples and the checkpoint where the configuration reads them."""
    if submitted.config.data.kind == "embedded":
        comment = "nothing is to be done: the first run makes the data from the text that is embedded in the code."
        return _render_script(submitted, "init_datasets.sh", comment, f"echo {shlex.quote(comment)}\n")
    comment = (
        "init_datasets.sh INPUTS: makes samples and checkpoint from MLPerf's inputs in the folder INPUTS, which has "
        "part-*, eval.txt, vocab.txt and model.ckpt-28252.*."
    )
    commands = "".join(f"{line}\n" for line in _preparation_commands(submitted.config))
    return _render_script(submitted, "init_datasets.sh", comment, commands, before=READ_INPUTS_ARGUMENT)


# Read before the script changes its folder, since the argument may be a relative path.
READ_INPUTS_ARGUMENT = """\
inputs="${1:?name the folder that holds part-*, eval.txt and vocab.txt}"
inputs="$(cd "$inputs" && pwd)"
"""


def _preparation_commands(config: RunConfig) -> list[str]:
    data = config.data
    assert data.store and data.evaluation_store and data.vocabulary
    store, evaluation, vocabulary = (
        _quote_path(path, config) for path in (data.store, data.evaluation_store, data.vocabulary)
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
                f"--out {_quote_path(phase.store, config)} "
                f"--max-sequence-length {phase.generation.max_sequence_length} "
                f"--max-predictions {phase.generation.max_predictions}"
            )
    verify = f"{PODIUM} data verify {store} --evaluation {evaluation} --vocab {vocabulary}"
    if config.initial_checkpoint is not None:
        checkpoint = _quote_path(config.initial_checkpoint, config)
        lines.append(f'mkdir -p "$(dirname {checkpoint})"')
        lines.append(f'{PODIUM} data checkpoint "$inputs/model.ckpt-28252" {checkpoint} --size {config.size}')
        verify += f" --checkpoint {checkpoint} --size {config.size}"
    return [*lines, verify + (" --official" if config.division == "closed" else "")]


def _quote_path(path: Path, config: RunConfig) -> str:
    return shlex.quote(on_host(path, config.launch).as_posix())


def _render_script(submitted: SubmittedSystem, name: str, comment: str, commands: str, before: str = "") -> str:
    code = shlex.quote(submitted.code_folder)
    head = (
        f"#!/usr/bin/env bash\n# {name} of {submitted.system}: {comment.removeprefix(name + ' ')}\nset -euo pipefail\n"
    )
    return f'{head}{before}cd "$(dirname "${{BASH_SOURCE[0]}}")"/{code}\n{commands}'


def write_script(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


# The name of the project's README in a package, whose README.md is about the submitted runs.
PROJECT_README = "README_PODIUM.md"


def code_readme(systems: Sequence[SubmittedSystem], left_out: Sequence[str], licences: Sequence[str], org: str) -> str:
    """Return the README of a code folder, whose code made the results of these systems."""
    names, code = ", ".join(submitted.system for submitted in systems), systems[0].code
    parts = [
        f"# BERT by Podium, submitted by {org}",
        f"Results: {names}. The code is that of Podium's commit {code.commit}. {_code_paragraph(code)}"
        f"{_left_out_sentence(left_out)} Podium's own README is in {PROJECT_README}.",
        "## Set up\n\nLinux and Python 3.11 or newer with venv; everything else is installed into .venv by\n\n"
        '```console\n$ source ./setup.sh ""\n```\n\n'
        "Libraries and their versions are in requirements/, their licences in THIRD_PARTY.md.",
        _licence_section(licences),
        *(_system_section(submitted) for submitted in systems),
    ]
    return "\n\n".join(parts) + "\n"


def system_readme(submitted: SubmittedSystem) -> str:
    """Return the README of benchmarks/bert/SYSTEM."""
    config = submitted.config
    inputs = "" if config.data.kind == "embedded" else " INPUTS"
    parts = [
        f"# BERT on {submitted.system}",
        f"{config.description.framework}, {_format_processes(config)}, recipe {config.recipe}, "
        f"{config.global_batch_size:,} samples a step. The code is in {submitted.code_folder}, the configuration in "
        f"{submitted.configuration} there.",
        f"```console\n$ ./setup.sh\n$ ./init_datasets.sh{inputs}\n$ ./run_and_time.sh\n```",
        _data_sentence(config),
        score_sentences(submitted.selection, submitted.convergence),
        "\n".join(["What was compared when this package was made:\n", *(f"- {text}" for text in submitted.compared)]),
        *(
            "\n".join(["What could not be compared:\n", *(f"- {text}" for text in submitted.notes)])
            for _ in submitted.notes[:1]
        ),
    ]
    return "\n\n".join(parts) + "\n"


def third_party_notice(libraries: Sequence[tuple[str, str, str]]) -> str:
    """Return the table of (name, version, licence) of the pinned libraries, which are not part of the package."""
    rows = "\n".join(f"| {name} | {version} | {licence} |" for name, version, licence in libraries)
    return (
        "# Third-party libraries\n\nThey are installed from PyPI and are not part of this folder. Licences are those "
        f"in the metadata of the installed packages.\n\n| library | version | licence |\n|---|---|---|\n{rows}\n"
    )


def implementation_json(submitted: SubmittedSystem) -> str:
    """Return the content of SYSTEM_IMPLEMENTATION.json; MLPerf names this file but does not define its content."""
    config = submitted.config
    content = {
        "system": submitted.system,
        "implementation": submitted.implementation,
        "benchmark": "bert",
        "framework": config.description.framework,
        "commit": submitted.code.commit,
        "commit_made_the_runs": submitted.code.made_the_runs,
        "configuration": f"{submitted.code_folder}/{submitted.configuration}",
        "starting_weights": str(config.initial_checkpoint or "drawn from the seed"),
        "recipe": config.recipe,
        "global_batch_size": config.global_batch_size,
        "processes": config.launch.ranks,
    }
    return json.dumps(content, indent=4) + "\n"


def _system_section(submitted: SubmittedSystem) -> str:
    config = submitted.config
    return (
        f"## {submitted.system}\n\n{_format_processes(config)}, recipe {config.recipe}; all settings are in "
        f"{submitted.configuration}. {_data_sentence(config)}\n\n"
        f"```console\n$ ./run_and_time.sh {submitted.configuration} --runs {RUNS}\n```\n\n"
        f"{score_sentences(submitted.selection, submitted.convergence)}"
    )


def _format_processes(config: RunConfig) -> str:
    launch = config.launch
    nodes = f"{launch.nodes} node{'s' if launch.nodes > 1 else ''}"
    return f"{nodes} with {launch.processes_per_node} process{'es' if launch.processes_per_node > 1 else ''} each"


def _data_sentence(config: RunConfig) -> str:
    if config.data.kind == "embedded":
        return "The first run makes the data from the text that is embedded in the code."
    checkpoint = f", starting weights in {config.initial_checkpoint}" if config.initial_checkpoint else ""
    return (
        f"Training samples are in {config.data.store}, evaluation samples in {config.data.evaluation_store}"
        f"{checkpoint}. init_datasets.sh makes them from MLPerf's inputs."
    )


def score_sentences(selection: WindowSelection, found: Convergence | None, unit: str = "samples") -> str:
    """Return the score, how its runs were selected, and how it is scaled, for a README."""
    dropped = selection.dropped
    ends = "the fastest and the slowest" if dropped == 1 else f"the {dropped} fastest and the {dropped} slowest"
    text = f"The score of the {selection.length} runs, without {ends}, is {selection.score:.3f} s."
    if len(selection.scores) > 1:
        text += (
            f" {len(selection.runs)} consecutive runs were made; of the {len(selection.scores)} windows of "
            f"{selection.length} consecutive ones the one with the median score is submitted; it begins with run "
            f"{selection.window + 1}."
        )
    if found is not None and found.samples is not None and found.reference_samples is not None:
        needed, reference = format_progress(found.samples, unit), format_progress(found.reference_samples, unit)
        text += (
            f" They needed {needed} {unit}, the reference {reference}"
            + (f"; the score is scaled by {found.factor:.6f} (scaling.json)" if found.scaling else "")
            + "."
        )
    return text


def format_progress(amount: float, unit: str) -> str:
    """Format a mean number of samples, or of another unit of reference points; epochs are few."""
    return f"{amount:,.3f}" if unit == "epochs" else f"{amount:,.0f}"


def _code_paragraph(code: Code) -> str:
    if code.made_the_runs:
        return "Each run recorded the hash of its code, and it is that of this commit."
    return f"**It is not certain that this is the code of the runs: {code.doubt}.**"


def _left_out_sentence(names: Sequence[str]) -> str:
    if not names:
        return ""
    return (
        f" Left out, since MLPerf's repositories do not accept such names: {', '.join(f'`{name}`' for name in names)}."
    )


def _licence_section(files: Sequence[str]) -> str:
    if files:
        return f"## Licence\n\nSee {', '.join(files)}."
    return "## Licence\n\nPodium has no licence file; the submitter has to settle its use before uploading."
