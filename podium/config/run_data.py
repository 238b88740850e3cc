"""The data of a run: the manifest of each of its stores, kept in its folder; checkpoints keep their digests."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bert.manifest import Manifest
from podium.core.errors import WorkError
from podium.core.files import write_whole
from podium.core.json_files import read_json
from podium.core.text import cut, printable

FORMAT, VERSION = "podium-data", 1
LARGEST_BYTES = 2**26


@dataclass(frozen=True)
class RunData:
    """The manifests of the stores of a run by their keys in its configuration, data.evaluation_store included."""

    manifests: Mapping[str, Manifest]

    @property
    def digests(self) -> dict[str, str]:
        """What identifies the samples of each store."""
        return {key: manifest.digest for key, manifest in self.manifests.items()}

    def difference(self, expected: "RunData", folders: Mapping[str, Path], other: str) -> str:
        """Where this first differs from what is expected, as a sentence; empty where it does not.

        `folders` are those of these stores, `other` names what they are compared with.
        """
        for key in {**self.manifests, **expected.manifests}:
            if key not in self.manifests or key not in expected.manifests:
                there, lacking = ("this run", other) if key in self.manifests else (other, "this run")
                return f"{there} has a store {key}, {lacking} has none"
            found, wanted = self.manifests[key], expected.manifests[key]
            if found != wanted:
                return f"{key}: {next(found.differences(wanted)).sentence(folders[key], other)}"
        return ""

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        stores = {key: manifest.document() for key, manifest in self.manifests.items()}
        return {"format": FORMAT, "version": VERSION, "stores": stores}

    @classmethod
    def of_document(cls, document: Any) -> "RunData":
        """From JSON of any origin. Raises ValueError with the reason where it is no data of a run."""
        if not isinstance(document, dict) or document.get("format") != FORMAT or document.get("version") != VERSION:
            raise ValueError(f"its format is not {FORMAT!r} of version {VERSION}")
        if not isinstance(stores := document.get("stores"), dict):
            raise ValueError("it lists no stores")
        return cls({key: Manifest.of_document(manifest) for key, manifest in stores.items()})


def write_run_data(path: Path, data: RunData) -> None:
    """Keep with a run what it is trained and evaluated on."""
    write_whole(path, json.dumps(data.document(), indent=1) + "\n")


def read_run_data(path: Path) -> RunData | None:
    """Read what `write_run_data` wrote; None where there is no file, as with runs of older versions, else WorkError."""
    if not path.exists():
        return None
    try:
        return RunData.of_document(read_json(path, LARGEST_BYTES))
    except ValueError as error:
        raise WorkError(
            f"{path}: cannot be used ({printable(cut(str(error), 300))}); put back what `podium run` wrote there"
        ) from None
