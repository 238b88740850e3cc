"""Composition of a system file from its parts, the check that it can be loaded, and writing it to systems/."""

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from podium.config.load import USER_SYSTEMS, load_system
from podium.config.reference import SCHEMA_FILE
from podium.config.schema import SYSTEM_NAME, RunConfig
from podium.core.errors import UsageError, WorkError, attempt
from podium.core.files import make_folder, write_atomically
from podium.core.paths import user_and_shipped_paths
from podium.core.text import short_repr
from podium.system_files.files import SCHEMA_LINE, comment, section

DATA = {
    "store": "wikipedia",
    "evaluation_store": "evaluation",
    "vocabulary": "vocab.txt",
}  # keys of `bert.data` and names in the folder of the data, as docs/data.md makes them
FOLDERS = ("costs", "search")  # in systems/, of files that are no systems
CHECKPOINT = "large.safetensors"


@dataclass(frozen=True)
class Draft:
    """The parts of a system file."""

    head: tuple[str, ...]  # paragraphs of the comment at its head
    description: Mapping[str, str]
    launch: Mapping[str, Any]
    bert: Mapping[str, Any]
    reproduces: Mapping[str, Any] = field(default_factory=dict)
    comments: Mapping[str, str] = field(default_factory=dict)  # above keys of `launch` and `bert`
    notes: tuple[str, ...] = ()  # for the user, not part of the file

    @property
    def text(self) -> str:
        """The content of the file."""
        schema = USER_SYSTEMS / SCHEMA_FILE.name
        head = f"{SCHEMA_LINE} $schema={schema.name}\n" if schema.is_file() else ""
        head += "#\n".join(comment(paragraph) for paragraph in self.head)
        parts = {"description": self.description, "launch": self.launch, "bert": self.bert}
        sections = [section(name, values, self.comments) for name, values in parts.items() if values]
        if self.reproduces:
            sections.append(section("reproduces", self.reproduces))
        return head + "".join(sections)


def data_settings(folder: str) -> dict[str, Any]:
    """Return the keys of `bert` that name samples, vocabulary and checkpoint in a folder."""
    data = {key: f"{folder}/{name}" for key, name in DATA.items()}
    return {"data": data, "initial_checkpoint": f"{folder}/{CHECKPOINT}"}


def target_path(name: str) -> Path:
    """Return the path of a new system's file. Raises UsageError if the name is not allowed or taken."""
    if not re.fullmatch(SYSTEM_NAME, name):
        raise UsageError(
            f"{short_repr(name)} cannot be the name of a system, which names folders and jobs; allowed are up to 100 "
            "letters, digits and _ . + - that begin with a letter or a digit"
        )
    if name in FOLDERS:
        raise UsageError(f"{name}: is the name of a folder in systems/; choose another name for the system")
    path = USER_SYSTEMS / f"{name}.yaml"
    taken = next((one for one in user_and_shipped_paths(path) if one.exists()), None)
    if taken is not None:
        raise UsageError(f"{taken}: exists already and is not replaced; choose another name, or remove the file")
    return path


def load_draft(draft: Draft, name: str) -> RunConfig:
    """Return the configuration that a draft resolves to. Raises UsageError as for a file of that name."""
    with tempfile.TemporaryDirectory(prefix="podium-system-") as folder:
        path = Path(folder) / f"{name}.yaml"
        path.write_text(draft.text, encoding="utf-8")
        try:
            return load_system(str(path))
        except UsageError as error:
            raise UsageError(str(error).replace(f"{path}: ", "")) from None


def checked(draft: Draft, name: str) -> Draft:
    """Return the draft, in the open division if the closed one refuses it. WorkError if it cannot be loaded at all."""
    error = attempt(load_draft, draft, name)[1]
    if error is None:
        return draft
    if draft.description.get("division") == "closed":
        why = str(error).splitlines()[0]
        opened = replace(
            draft,
            description={**draft.description, "division": "open"},
            notes=(*draft.notes, f"division: open, since the closed division refuses it ({why})"),
        )
        error = attempt(load_draft, opened, name)[1]
        if error is None:
            return opened
    raise WorkError(f"{name}: no system file can be written from these values: {error}")


def write_system(draft: Draft, name: str) -> tuple[Path, Draft]:
    """Check a draft and write it to systems/NAME.yaml, which must not exist. Returns the path and what was written."""
    path = target_path(name)
    accepted = checked(draft, name)
    make_folder(path.parent)
    write_atomically(path, accepted.text)
    return path, accepted
