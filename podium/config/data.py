"""The key `data`: where samples come from."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, model_validator

from podium.config.settings import Settings


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str | Path) else value


Paths = Annotated[tuple[Path, ...], BeforeValidator(_as_list)]


class DataSettings(Settings):
    """Where samples come from: prepared shards, text to prepare them from, or (neither) the embedded language."""

    text: Paths = ()
    """Text files to train on, in the official format."""
    evaluation_text: Path | None = None
    """A text file whose samples are evaluated on."""
    store: Path | None = None
    """A folder of prepared shards to train on."""
    evaluation_store: Path | None = None
    """A folder of prepared shards to evaluate on."""
    vocabulary: Path | None = None
    """vocab.txt of the text or the store."""

    @property
    def kind(self) -> Literal["embedded", "text", "store"]:
        return "store" if self.store else "text" if self.text else "embedded"

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.text and self.store:
            raise ValueError("name either text or store, not both")
        needed = {
            "text": ("evaluation_text", "vocabulary"),
            "store": ("evaluation_store", "vocabulary"),
            "embedded": (),
        }[self.kind]
        for key in type(self).model_fields:
            given = getattr(self, key) not in (None, ())
            if key in needed and not given:
                raise ValueError(f"{key} is missing: with {self.kind}, {' and '.join(needed)} must be named too")
            if given and key not in (*needed, self.kind):
                raise ValueError(f"{key} has no use without {'store' if key == 'evaluation_store' else 'text'}")
        return self
