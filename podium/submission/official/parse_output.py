"""Findings from the output of the official tools, by its text, never by their exit codes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from podium.core.finding import Finding, Severity
from podium.core.text import cut, printable
from podium.mllog.rulesets import Ruleset

MAX_LENGTH = 400
MAX_A_FILE = 25  # findings of one tool about one file that are told; the rest is counted

_CHECK = re.compile(
    r"CHECK for '(?P<key>.*?)' failed in line (?P<line>\d+):\n(?P<text>.*?)\nfailed test: (?P<test>.*?)\n", re.S
)
_END_CHECK = re.compile(r"failed test: (?P<test>.*?)\ncurrent context", re.S)
_CODE = re.compile(
    r"Failed executing (?P<what>CHECK code:.*?|code \w+ code) ?triggered by line ?:\n(?P<text>.*?)(\n|$)", re.S
)

# Patterns of the package checker's words → rule and severity; None where another finding says the same.
_PACKAGE: tuple[tuple[str, str, Severity | None], ...] = (
    (r"Seed checker failed and found the following errors: ", "seed", "error"),
    (r"RCP Test Failed: ", "rcp", "error"),
    (r"Incorrect number of files in dir|Expected at least", "file_count", "error"),
    (r"files do not comply", "too_many_failed", "error"),
    (r"logs more than one seeds", "several_seeds", "warning"),
    (r"Unknown files in result directory", "unknown_files", "warning"),
    (r"1 file does not comply", "one_failed", "warning"),
    (r"Run incomplete or did not converge", "not_converged", "warning"),
    (
        r"Detected \d+ total files|Seed checker failed$|[Ss]ystem description (file )?checker|^ ?Skipping benchmark",
        "",
        None,
    ),
    (r"RCP test failed but allowed|Please be ready", "rcp_bypass", "warning"),
)


_OF_FILE = re.compile(r"Result file \S*/(?P<name>[^/ ]+\.txt) (?P<text>.*)")


def of_compliance(answer: dict[str, Any], path: str) -> list[Finding]:
    """The compliance checker on one log."""
    tool = "compliance_checker"
    if answer.get("refused"):
        message = (
            "submission_division or submission_benchmark names rules out of the checker's own folder "
            f"({printable(answer['refused'])}), which it would execute; the official tools were stopped: log plain "
            "names"
        )
        return [Finding.error(path, "foreign_rules", message)]
    if answer["crash"]:
        return [crashed(tool, answer["crash"], path)]
    lines = answer["lines"]
    found = [_compliance(text, "error", path, lines) for text in answer["errors"]]
    found += [_compliance(text, "warning", path, lines) for text in answer["warnings"]]
    if not answer["valid"] and not answer["errors"]:
        found.append(Finding.error(path, "compliance", "FAILED, without a word why", source=tool))
    problems = [words for _, words in answer["words"] if words.startswith("   ^^  ")]
    found += [
        Finding.warning(path, "unparsed", f"a line is no event: {_short(words[7:])}", source=tool) for words in problems
    ]
    return _fewer(found, path, tool)


def of_package(answer: dict[str, Any], path: str, folder: Path, ruleset: Ruleset) -> list[Finding]:
    """The package checker on one system's results; `folder` is where it ran."""
    tool = "package_checker"
    if "'conv_epoch'" in (answer["crash"] or ""):
        return [crashed(tool, "no samples are counted before run_stop; log train_samples before run_stop", path)]
    if answer["crash"]:
        return [crashed(tool, _plain(answer["crash"], folder), path)]
    found = [f for level, words in answer["words"] for f in _package(level, _plain(words, folder), path, ruleset)]
    found = [replace(f, message=f.message + _figures(answer["figures"])) if f.rule == "rcp" else f for f in found]
    verdicts = [words for _, words in answer["words"] if words.startswith("PACKAGE CHECKER FOUND")]
    if not verdicts:
        found.append(crashed(tool, "it ended without a verdict", path))
    return _fewer(found, path, tool)


def of_summary(answer: dict[str, Any], path: str, folder: Path) -> list[Finding]:
    """The result summarizer on one system's results. Its RCP verdict takes epoch_num at its word, so it is not told."""
    tool = "result_summarizer"
    if answer["crash"]:
        return [crashed(tool, _plain(answer["crash"], folder), path)]
    printed = [_plain(line, folder) for line in answer["printed"]]
    found = [Finding.error(path, "no_score", _short(p), source=tool) for p in printed if p.startswith("CRITICAL ERROR")]
    found += [Finding.warning(path, "dropped_run", _short(p), source=tool) for p in printed if p.startswith("NOTICE")]
    if answer["minutes"] is None and not found:
        found.append(Finding.error(path, "no_score", "there is no score: too few of its logs comply", source=tool))
    return found


def of_description(answer: dict[str, Any], path: str) -> list[Finding]:
    """The system description checker on one systems/NAME.json."""
    tool = "system_desc_checker"
    if answer["crash"]:
        return [crashed(tool, answer["crash"], path)]
    words = [
        re.sub(r"^\s*System description checker failed for .*? : ", "", w)
        for level, w in answer["words"]
        if level == "ERROR"
    ]
    if not answer["valid"] and not words:
        words = ["FAILED, without a word why"]
    return [Finding.error(path, "description", _short(text), source=tool) for text in words]


def of_repository(answer: dict[str, Any], path: str, folder: Path) -> list[Finding]:
    """The repository checker on a package whose folder was `folder`."""
    tool = "repo_checker"
    if answer["crash"]:
        return [crashed(tool, _plain(answer["crash"], folder.parent), path)]
    found = []
    for level, words in answer["words"]:
        if level != "ERROR" or words.startswith("Please"):
            continue
        what, _, names = words.partition(": ")
        for name in names.strip().splitlines():
            inside = name.strip().removeprefix(str(folder)).strip("/")
            place = "/".join(part for part in (path, inside) if part and part != ".") or "."
            found.append(
                Finding.error(printable(place), "repository", f"{_short(what)}; rename or remove it", source=tool)
            )
    if not any(words.startswith(("CHECKS FAILED", "ALL CHECKS")) for _, words in answer["words"]):
        found.append(crashed(tool, "it ended without a verdict", path))
    return _fewer(found, path, tool)


def crashed(tool: str, why: str, path: str) -> Finding:
    return Finding.error(path, "unread", f"the official {tool} could not read this: {_short(why)}", source=tool)


def _compliance(text: str, severity: Severity, path: str, lines: Sequence[int]) -> Finding:
    line = None
    if match := _CHECK.search(text):
        number = int(match["line"])
        line = lines[number] if number < len(lines) else None
        words = f"CHECK for '{match['key']}' failed: {match['test']}: {match['text']}"
    elif match := _CODE.search(text):
        words = f"failed executing {match['what'].replace(' code', '')} of: {match['text']}"
    elif match := _END_CHECK.match(text):
        words = f"failed test at the end of the log: {match['test']}"
    else:
        words = text
    return Finding("compliance", severity, _short(words), path=path, source="compliance_checker", line=line)


def _package(level: str, words: str, path: str, ruleset: Ruleset) -> Iterator[Finding]:
    tool = "package_checker"
    if level not in ("ERROR", "WARNING"):
        return
    for pattern, rule, severity in _PACKAGE:
        if not (match := re.search(pattern, words.strip())):
            continue
        if severity is None:
            return
        if rule == "seed":
            for line in words.strip()[match.end() :].splitlines():
                named = _OF_FILE.match(line)
                place, text = (f"{path}/{named['name']}", named["text"]) if named else (path, line)
                if ruleset.seeds_checked:
                    yield Finding.error(place, rule, _short(text), source=tool)
                else:
                    yield Finding.warning(place, rule, f"{_short(text)} (no rule of {ruleset.name} yet)", source=tool)
        else:
            yield Finding(rule, severity, _short(words), path=path, source=tool)
        return
    yield Finding("package", "error" if level == "ERROR" else "warning", _short(words), path=path, source=tool)


def _figures(figures: Mapping[str, float | None]) -> str:
    """What the RCP checker compared; nothing where it did not come so far."""
    found, mean, least = (figures[name] for name in ("samples", "reference_samples", "least_samples"))
    if found is None or mean is None or least is None:
        return ""
    return f": {found:,.0f} samples on average; the reference takes {mean:,.0f}, and the least accepted is {least:,.0f}"


def _plain(words: str, folder: Path) -> str:
    """Without the path of the copy."""
    return words.replace(f"{folder}/", "").replace(str(folder), ".")


def _short(words: str) -> str:
    """On one line, of bounded length, and fit to be shown."""
    return cut(printable(" ".join(words[: 4 * MAX_LENGTH].split())), MAX_LENGTH)


def _fewer(findings: list[Finding], path: str, tool: str) -> list[Finding]:
    """No more of them than somebody would read; the number of the others, as bad as the worst of them."""
    ordered = sorted(findings, key=lambda finding: finding.severity)
    rest = ordered[MAX_A_FILE:]
    if not rest:
        return findings
    return [
        *ordered[:MAX_A_FILE],
        Finding("more", rest[0].severity, f"{len(rest)} findings more of this tool", path=path, source=tool),
    ]
