"""Record of a run's data: the manifests of its stores, in the run's folder; checkpoints contain their digests."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bert.manifest import Manifest
from podium.core.errors import WorkError
from podium.core.files import write_atomically
from podium.core.json_files import read_json
from podium.core.text import printable, truncate

FORMAT, VERSION = "podium-data", 1
MAX_BYTES = 2**26


@dataclass(frozen=True)
class RunData:
    """Manifests of a run's stores by their keys in the configuration, data.evaluation_store included."""

    manifests: Mapping[str, Manifest]

    @property
    def digests(self) -> dict[str, str]:
        """Digest that identifies the samples of each store, by key."""
        return {key: manifest.digest for key, manifest in self.manifests.items()}

    def difference(self, expected: "RunData", folders: Mapping[str, Path], other: str) -> str:
        """Describe the first difference from `expected` in one sentence; empty if there is none.

        `folders` are the folders of these stores, `other` is the name of the expected data in the sentence.
        """
        for key in {**self.manifests, **expected.manifests}:
            if key not in self.manifests or key not in expected.manifests:
                present, absent = ("this run", other) if key in self.manifests else (other, "this run")
                return f"{present} has a store {key}, {absent} has none"
            found, wanted = self.manifests[key], expected.manifests[key]
            if found != wanted:
                return f"{key}: {next(found.differences(wanted)).sentence(folders[key], other)}"
        return ""

    def document(self) -> dict[str, Any]:
        """The JSON document of `of_document`."""
        stores = {key: manifest.document() for key, manifest in self.manifests.items()}
        return {"format": FORMAT, "version": VERSION, "stores": stores}

    @classmethod
    def of_document(cls, document: Any) -> "RunData":
        """Parse an untrusted JSON document. Raises ValueError with the reason if it is not a record of a run's data."""
        if not isinstance(document, dict) or document.get("format") != FORMAT or document.get("version") != VERSION:
            raise ValueError(f"its format is not {FORMAT!r} of version {VERSION}")
        if not isinstance(stores := document.get("stores"), dict):
            raise ValueError("it lists no stores")
        return cls({key: Manifest.of_document(manifest) for key, manifest in stores.items()})


def write_run_data(path: Path, data: RunData) -> None:
    """Write the record of the data that a run is trained and evaluated on, atomically."""
    write_atomically(path, json.dumps(data.document(), indent=1) + "\n")


def read_run_data(path: Path) -> RunData | None:
    """Read the record of a run's data; None if missing, as in runs of older versions; WorkError if invalid."""
    if not path.exists():
        return None
    try:
        return RunData.of_document(read_json(path, MAX_BYTES))
    except ValueError as error:
        raise WorkError(
            f"{path}: cannot be used ({printable(truncate(str(error), 300))}); restore the file that `podium run` wrote"
        ) from None
