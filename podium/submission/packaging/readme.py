"""The texts of a package: how to set up, prepare data and run, with which code, and what others wrote of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.bert.rules import RUNS
from podium.config import RunConfig
from podium.submission.packaging.choosing import Choice
from podium.submission.packaging.code import Code
from podium.submission.packaging.scaling import Convergence
from podium.submission.packaging.scripts import Placed

PROJECT_README = "README_PODIUM.md"
"""What the project's own README is called in a package, whose README says how the submitted runs are made."""


@dataclass(frozen=True)
class Submitted:
    """A system of a package with all that its texts speak of."""

    placed: Placed
    config: RunConfig
    """As it goes into the package."""
    choice: Choice
    convergence: Convergence | None
    """None in the open division, which is not held against MLPerf's reference."""


def code_readme(
    systems: Sequence[Submitted], code: Code, left_out: Sequence[str], licences: Sequence[str], org: str
) -> str:
    """Of a code folder."""
    names = ", ".join(one.placed.system for one in systems)
    return (
        "\n\n".join(
            [
                f"# BERT by Podium, submitted by {org}",
                f"Results: {names}. The code is that of Podium's commit {code.commit}. {_trust(code)}"
                f"{_left_out(left_out)} Podium's own README is in {PROJECT_README}.",
                "## Set up\n\nLinux and Python 3.11 or newer with venv; everything else is installed into .venv by\n\n"
                '```console\n$ source ./setup.sh ""\n```\n\n'
                "Libraries and their versions are in pyproject.toml, their licences in THIRD_PARTY.md.",
                _licence(licences),
                *(_system(one) for one in systems),
            ]
        )
        + "\n"
    )


def system_readme(one: Submitted) -> str:
    """Of benchmarks/bert/SYSTEM."""
    config = one.config
    return (
        "\n\n".join(
            [
                f"# BERT on {one.placed.system}",
                f"{config.description.framework}, {_processes(config)}, recipe {config.recipe}, "
                f"{config.global_batch_size:,} samples a step. The code is in {one.placed.code}, the configuration in "
                f"{one.placed.configuration} there.",
                "```console\n$ ./setup.sh\n$ ./init_datasets.sh"
                + ("" if config.data.kind == "embedded" else " INPUTS")
                + "\n$ ./run_and_time.sh\n```",
                _data(config),
                _runs(one),
            ]
        )
        + "\n"
    )


def third_party_notice(libraries: Sequence[tuple[str, str, str]]) -> str:
    """The pinned libraries, none of which is part of the package."""
    rows = "\n".join(f"| {name} | {version} | {licence} |" for name, version, licence in libraries)
    return (
        "# Libraries of others\n\nThey are installed from PyPI and are no part of this folder. Licences are as the "
        f"metadata of the installed packages states them.\n\n| library | version | licence |\n|---|---|---|\n{rows}\n"
    )


def implementation_json(one: Submitted, code: Code) -> str:
    """SYSTEM_IMPLEMENTATION.json. MLPerf names this file without saying what is in it."""
    config = one.config
    content = {
        "system": one.placed.system,
        "implementation": one.placed.implementation,
        "benchmark": "bert",
        "framework": config.description.framework,
        "commit": code.commit,
        "commit_made_the_runs": code.made_the_runs,
        "configuration": f"{one.placed.code}/{one.placed.configuration}",
        "starting_weights": str(config.initial_checkpoint or "drawn from the seed"),
        "recipe": config.recipe,
        "global_batch_size": config.global_batch_size,
        "processes": config.launch.ranks,
    }
    return json.dumps(content, indent=4) + "\n"


def _system(one: Submitted) -> str:
    config = one.config
    return (
        f"## {one.placed.system}\n\n{_processes(config)}, recipe {config.recipe}; everything that was set is in "
        f"{one.placed.configuration}. {_data(config)}\n\n"
        f"```console\n$ ./run_and_time.sh {one.placed.configuration} --runs {RUNS}\n```\n\n{_runs(one)}"
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
