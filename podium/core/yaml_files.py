"""YAML files, read strictly: a key given twice, an alias, or a file that is too large is an error."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from podium.core.errors import UsageError
from podium.core.files import open_regular
from podium.core.text import cut

LARGEST = 128 << 10  # bytes of a document that is read, which take up to 4 s; 500 paths of text files have 50 kB
LONGEST_NUMBER = 100  # digits of an integer


def read_yaml(path: Path, text_keys: Collection[str] = (), all_text: bool = False) -> dict[str, Any]:
    """The mapping that a YAML file holds; values below `text_keys`, or all of them, are text as it is written.

    UsageError, which names the file and the line, for a file that cannot be read or is not strict YAML with keys.
    """
    try:
        with open_regular(path) as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise UsageError(f"{path}: is larger than {LARGEST:,} bytes, and so no such file; name another one")
        text = content.decode("utf-8").replace("\r\n", "\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); see that it exists and may be read") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not UTF-8 text; save it as UTF-8") from None
    document = parse_yaml(text, str(path), all_text)
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise UsageError(f"{path}: holds no keys; a mapping of keys to values is expected")
    for key in document.keys() & text_keys:
        document[key] = parse_yaml(text, str(path), as_text=True)[key]
    return document


def parse_yaml(text: str, source: str, as_text: bool = False) -> Any:
    """The value of strict YAML; with `as_text` every scalar is text, so that version 22.10 stays 22.10.

    UsageError, which begins with `source`, for anything else.
    """
    if len(text) > LARGEST:
        raise UsageError(f"{source}: is longer than {LARGEST:,} characters; give a shorter one")
    try:
        return yaml.load(text, Loader=_TextLoader if as_text else _ValueLoader)  # noqa: S506 — both are safe loaders
    except Exception as error:  # noqa: BLE001 — PyYAML lets through whatever its conversions raise
        words = " ".join(str(error).split()).replace('in "<unicode string>", ', "").replace('"<unicode string>", ', "")
        raise UsageError(f"{source}: is not valid YAML here ({cut(words, 200)}); mend it") from None


def dump_yaml(document: Any) -> str:
    """YAML of plain types, keys in their order."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


_NO_TEXT = re.compile("[\0\ud800-\udfff]")


class _Strict:
    """For a YAML loader: a key given twice is refused instead of taking the last, and so are aliases."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):  # type: ignore[attr-defined]
            mark = self.peek_event().start_mark  # type: ignore[attr-defined]
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not used here, write it out", mark)
        return super().compose_node(parent, index)  # type: ignore[misc]

    def construct_scalar(self, node: Any) -> Any:
        if isinstance(node.value, str) and _NO_TEXT.search(node.value):
            raise yaml.constructor.ConstructorError(
                None, None, "it holds a NUL or half a character, which no text has", node.start_mark
            )
        return super().construct_scalar(node)  # type: ignore[misc]

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen or key.value == "<<":
                fault = "is given twice" if key.value in seen else "is not used here, write it out"
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} {fault}", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)  # type: ignore[misc]


class _ValueLoader(_Strict, yaml.SafeLoader):
    """Numbers are numbers, but 4:00:00 is text: YAML 1.1 would make it 14,400."""

    def construct_number(self, node: Any) -> Any:
        if ":" in node.value:
            return self.construct_scalar(node)
        if node.tag.endswith("float"):
            return self.construct_yaml_float(node)
        if len(node.value) > LONGEST_NUMBER:
            fault = f"a number of more than {LONGEST_NUMBER} digits is not read"
            raise yaml.constructor.ConstructorError(None, None, fault, node.start_mark)
        return self.construct_yaml_int(node)


for _kind in ("int", "float"):
    _ValueLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _ValueLoader.construct_number)


class _TextLoader(_Strict, yaml.BaseLoader):
    """Every scalar is text."""
