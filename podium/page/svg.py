"""matplotlib's SVG made fit to stand in a page: its colours, fonts and ids are the page's, its points can be asked."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from podium.page.colours import variables

LINK = "{http://www.w3.org/1999/xlink}href"
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_FONT_FAMILY = re.compile(r"font-family:[^;]*;?\s*")
_FONT = re.compile(r"font: (?:[a-z0-9]+ )*?([\d.]+px) [^;]*")
_REFERENCE = re.compile(r"url\(#([^)]*)\)")


def inlined(svg: str, prefix: str, group: str, told: Sequence[Sequence[str]], label: str) -> str:
    """An SVG document as an element of an HTML page.

    Ids become `prefix` and a number, and those that nothing refers to go. The points of the element with the id
    `group` + n get what `told[n]` says as their <title>, and the attribute data-group. ValueError where the numbers of
    points do not agree.
    """
    root = ElementTree.fromstring(svg)  # noqa: S314 — matplotlib has just written it
    for parent in list(root.iter()):
        for child in list(parent):
            if _local(child.tag) in ("metadata", "style"):
                parent.remove(child)
    for number, texts in enumerate(told):
        _tell(root, f"{group}{number}", number, texts)
    for element in root.iter():
        _plain(element)
    _rename(root, prefix)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "group")
    root.set("aria-label", label)
    return ElementTree.tostring(root, encoding="unicode")


def _tell(root: Element, identity: str, number: int, texts: Sequence[str]) -> None:
    holder = next((element for element in root.iter() if element.get("id") == identity), None)
    found = [] if holder is None else [one for one in holder.iter() if _local(one.tag) == "use"]
    if holder is not None and not found:
        found = [one for one in holder if _local(one.tag) == "path"]
    if len(found) != len(texts):
        raise ValueError(f"{len(texts)} points tell something and {len(found)} are drawn: one is not finite or outside")
    for point, text in zip(found, texts, strict=True):
        point.set("data-group", str(number))
        title = ElementTree.SubElement(point, "title")
        title.text = text


def _plain(element: Element) -> None:
    """Without namespaces, long decimals and fonts; colours as variables; one style for points that look the same."""
    element.tag = _local(element.tag)
    if element.tag != "title":
        element.text = element.text if element.tag in ("text", "tspan") else None
    element.tail = None
    if LINK in element.attrib:
        element.set("href", element.attrib.pop(LINK))
    for name in ("d", "x", "y", "transform", "points"):
        if name in element.attrib:
            element.set(name, _LONG_NUMBER.sub(_shortened, element.attrib[name]).replace(" \n", "").replace("\n", ""))
    if "style" in element.attrib:
        element.set("style", _page_style(element.attrib["style"]))
    elif len(element) > 1 and all(_local(child.tag) == "use" for child in element):
        styles = {child.get("style", "") for child in element}
        if len(styles) == 1:
            element.set("style", _page_style(styles.pop()))
            for child in element:
                child.attrib.pop("style", None)


def _page_style(style: str) -> str:
    style = _FONT.sub(r"font-size: \1", _FONT_FAMILY.sub("", style))
    return _COLOUR.sub(lambda found: _variables().get(found.group(), found.group()), style)


@cache
def _variables() -> Mapping[str, str]:
    return {colour.light: f"var(--{name})" for name, colour in variables().items()}


def _shortened(number: re.Match[str]) -> str:
    return f"{float(number.group()):.2f}".rstrip("0").rstrip(".")


def _rename(root: Element, prefix: str) -> None:
    referred = {value[1:] for element in root.iter() if (value := element.get("href", "")).startswith("#")}
    for element in root.iter():
        referred.update(name for value in element.attrib.values() for name in _REFERENCE.findall(value))
    identities: dict[str, str] = {}
    for element in root.iter():
        identity = element.attrib.pop("id", None)
        if identity in referred:
            identities[identity] = f"{prefix}{len(identities)}"
            element.set("id", identities[identity])
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "href":
                element.set(name, f"#{identities[value[1:]]}")
            elif "url(#" in value:
                element.set(name, _REFERENCE.sub(lambda found: f"url(#{identities[found.group(1)]})", value))


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]
