"""Strict reading of YAML: a duplicate key, an alias, or a file that is too large is an error."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from podium.core.errors import UsageError
from podium.core.files import open_regular
from podium.core.text import truncate

MAX_YAML_BYTES = 128 << 10  # parsing takes up to 4 s; a list of 500 paths has 50 kB
MAX_INTEGER_DIGITS = 100  # Python raises ValueError when it prints an integer of more than 4,300 digits


def read_yaml(path: Path, text_keys: Collection[str] = (), all_text: bool = False) -> dict[str, Any]:
    """Read a YAML file that contains a mapping; values below `text_keys`, or all of them, are kept as text.

    Raises UsageError if the file cannot be read (with its path) or is not strict YAML with text keys (with the line).
    """
    try:
        with open_regular(path) as file:
            content = file.read(MAX_YAML_BYTES + 1)
        if len(content) > MAX_YAML_BYTES:
            raise UsageError(f"{path}: is larger than the allowed {MAX_YAML_BYTES:,} bytes; name another file")
        text = content.decode("utf-8").replace("\r\n", "\n")
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror}); check that it exists and its permissions"
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not UTF-8 text; save it as UTF-8") from None
    document = parse_yaml(text, str(path), all_text)
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise UsageError(f"{path}: contains no keys; a mapping of keys to values is expected")
    for key in document.keys() & text_keys:
        document[key] = parse_yaml(text, str(path), as_text=True)[key]
    return document


def parse_yaml(text: str, source: str, as_text: bool = False) -> Any:
    """Parse strict YAML; with `as_text` every scalar is kept as text, so that version 22.10 stays 22.10.

    Raises UsageError, which begins with `source`, if the text is too long or not strict YAML.
    """
    if len(text) > MAX_YAML_BYTES:
        raise UsageError(f"{source}: is longer than {MAX_YAML_BYTES:,} characters; give a shorter one")
    try:
        return yaml.load(text, Loader=_TextLoader if as_text else _ValueLoader)  # noqa: S506 — both derive from safe loaders
    except Exception as error:  # noqa: BLE001 — PyYAML also passes on ValueError, RecursionError etc.
        reason = " ".join(str(error).split()).replace('in "<unicode string>", ', "").replace('"<unicode string>", ', "")
        raise UsageError(f"{source}: is not valid YAML ({truncate(reason, 200)}); fix it") from None


def dump_yaml(document: Any) -> str:
    """Dump a document of plain types as YAML, with keys in their order."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


_NOT_TEXT = re.compile("[\0\ud800-\udfff]")


class _StrictLoader:
    """Mixin of YAML loaders that refuses duplicate keys, of which PyYAML would take the last, and aliases."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        # Nested aliases expand exponentially (a "YAML bomb") and can refer to themselves.
        if self.check_event(yaml.AliasEvent):  # type: ignore[attr-defined]
            mark = self.peek_event().start_mark  # type: ignore[attr-defined]
            raise yaml.composer.ComposerError(
                None, None, "aliases (*name) are not supported, write the value out", mark
            )
        return super().compose_node(parent, index)  # type: ignore[misc]

    def construct_scalar(self, node: Any) -> Any:
        if isinstance(node.value, str) and _NOT_TEXT.search(node.value):
            raise yaml.constructor.ConstructorError(
                None, None, "text must not contain a NUL or a lone surrogate", node.start_mark
            )
        return super().construct_scalar(node)  # type: ignore[misc]

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen or key.value == "<<":
                fault = "is given twice" if key.value in seen else "is not supported, write the keys out"
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} {fault}", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)  # type: ignore[misc]


class _ValueLoader(_StrictLoader, yaml.SafeLoader):
    """Loader that keeps 4:00:00 as text, which YAML 1.1 would read as the base-60 integer 14,400."""

    def construct_number(self, node: Any) -> Any:
        if ":" in node.value:
            return self.construct_scalar(node)
        if node.tag.endswith("float"):
            return self.construct_yaml_float(node)
        if len(node.value) > MAX_INTEGER_DIGITS:
            fault = f"a number of more than {MAX_INTEGER_DIGITS} digits is not supported"
            raise yaml.constructor.ConstructorError(None, None, fault, node.start_mark)
        return self.construct_yaml_int(node)


for _kind in ("int", "float"):
    _ValueLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _ValueLoader.construct_number)


class _TextLoader(_StrictLoader, yaml.BaseLoader):
    """Loader that keeps every scalar as text."""
