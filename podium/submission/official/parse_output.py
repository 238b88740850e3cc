"""Convert the output of the official tools to findings, by its text; their exit codes are not reliable."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from podium.core.finding import Finding, Severity
from podium.core.text import printable, truncate
from podium.mllog.rulesets import Ruleset

MAX_LENGTH = 400
MAX_FINDINGS_PER_FILE = 25  # findings of one tool about one file that are reported; the rest is counted

_FAILED_CHECK = re.compile(
    r"CHECK for '(?P<key>.*?)' failed in line (?P<line>\d+):\n(?P<text>.*?)\nfailed test: (?P<test>.*?)\n", re.S
)
_FAILED_END_CHECK = re.compile(r"failed test: (?P<test>.*?)\ncurrent context", re.S)
_FAILED_CODE = re.compile(
    r"Failed executing (?P<what>CHECK code:.*?|code \w+ code) ?triggered by line ?:\n(?P<text>.*?)(\n|$)", re.S
)

# Patterns of the package checker's messages → rule and severity; None where another finding has the same content.
_PACKAGE_PATTERNS: tuple[tuple[str, str, Severity | None], ...] = (
    (r"Seed checker failed and found the following errors: ", "seed", "error"),
    (r"RCP Test Failed: ", "rcp", "error"),
    (r"Incorrect number of files in dir|Expected at least", "file_count", "error"),
    (r"files do not comply, accepting", "one_failed", "warning"),
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


_NAMED_FILE = re.compile(r"Result file \S*/(?P<name>[^/ ]+\.txt) (?P<text>.*)")


def parse_compliance(answer: dict[str, Any], path: str) -> list[Finding]:
    """Return the findings of the compliance checker on one log."""
    tool = "compliance_checker"
    if answer.get("refused"):
        message = (
            "submission_division or submission_benchmark names rules outside of the checker's folder "
            f"({printable(answer['refused'])}), which it would execute; the official tools were stopped; log plain "
            "names"
        )
        return [Finding.error(path, "foreign_rules", message)]
    if answer["crash"]:
        return [crash_finding(tool, answer["crash"], path)]
    lines = answer["lines"]
    found = [_compliance_finding(text, "error", path, lines) for text in answer["errors"]]
    found += [_compliance_finding(text, "warning", path, lines) for text in answer["warnings"]]
    if not answer["valid"] and not answer["errors"]:
        found.append(Finding.error(path, "compliance", "FAILED, without a reason", source=tool))
    problems = [text for _, text in answer["messages"] if text.startswith("   ^^  ")]
    found += [
        Finding.warning(path, "unparsed", f"a line is not an event: {_shorten(message[7:])}", source=tool)
        for message in problems
    ]
    return _limit_findings(found, path, tool)


def parse_package(
    answer: dict[str, Any], path: str, folder: Path, ruleset: Ruleset, unit: str = "samples"
) -> list[Finding]:
    """Return the findings of the package checker on one result; `folder` is where it ran.

    `unit` is that of the benchmark's reference convergence points.
    """
    tool = "package_checker"
    if "'conv_epoch'" in (answer["crash"] or ""):
        return [crash_finding(tool, "no samples are counted before run_stop; log train_samples before run_stop", path)]
    if answer["crash"]:
        return [crash_finding(tool, _strip_folder(answer["crash"], folder), path)]
    found = [
        f
        for level, message in answer["messages"]
        for f in _package_findings(level, _strip_folder(message, folder), path, ruleset)
    ]
    found = [
        replace(f, message=f.message + _format_figures(answer["figures"], unit)) if f.rule == "rcp" else f
        for f in found
    ]
    verdicts = [message for _, message in answer["messages"] if message.startswith("PACKAGE CHECKER FOUND")]
    if not verdicts:
        found.append(crash_finding(tool, "it ended without a verdict", path))
    return _limit_findings(found, path, tool)


def parse_summary(answer: dict[str, Any], path: str, folder: Path) -> list[Finding]:
    """Return the findings of the result summarizer on one system's results.

    Its RCP verdict is left out, since it takes any epoch_num for a number of samples.
    """
    tool = "result_summarizer"
    if answer["crash"]:
        return [crash_finding(tool, _strip_folder(answer["crash"], folder), path)]
    printed = [_strip_folder(line, folder) for line in answer["printed"]]
    found = [
        Finding.error(path, "no_score", _shorten(p), source=tool) for p in printed if p.startswith("CRITICAL ERROR")
    ]
    found += [Finding.warning(path, "dropped_run", _shorten(p), source=tool) for p in printed if p.startswith("NOTICE")]
    if answer["minutes"] is None and not found:
        found.append(Finding.error(path, "no_score", "there is no score: too few of its logs comply", source=tool))
    return found


def parse_description(answer: dict[str, Any], path: str) -> list[Finding]:
    """Return the findings of the system description checker on one systems/NAME.json."""
    tool = "system_desc_checker"
    if answer["crash"]:
        return [crash_finding(tool, answer["crash"], path)]
    texts = [
        re.sub(r"^\s*System description checker failed for .*? : ", "", w)
        for level, w in answer["messages"]
        if level == "ERROR"
    ]
    if not answer["valid"] and not texts:
        texts = ["FAILED, without a reason"]
    return [Finding.error(path, "description", _shorten(text), source=tool) for text in texts]


def parse_repository(answer: dict[str, Any], path: str, folder: Path) -> list[Finding]:
    """Return the findings of the repository checker on a package whose folder was `folder`."""
    tool = "repo_checker"
    if answer["crash"]:
        return [crash_finding(tool, _strip_folder(answer["crash"], folder.parent), path)]
    found = []
    for level, message in answer["messages"]:
        if level != "ERROR" or message.startswith("Please"):
            continue
        what, _, names = message.partition(": ")
        for name in names.strip().splitlines():
            inside = name.strip().removeprefix(str(folder)).strip("/")
            location = "/".join(part for part in (path, inside) if part and part != ".") or "."
            found.append(
                Finding.error(printable(location), "repository", f"{_shorten(what)}; rename or remove it", source=tool)
            )
    if not any(message.startswith(("CHECKS FAILED", "ALL CHECKS")) for _, message in answer["messages"]):
        found.append(crash_finding(tool, "it ended without a verdict", path))
    return _limit_findings(found, path, tool)


def crash_finding(tool: str, reason: str, path: str) -> Finding:
    return Finding.error(path, "unread", f"the official {tool} could not read this: {_shorten(reason)}", source=tool)


def _compliance_finding(text: str, severity: Severity, path: str, lines: Sequence[int]) -> Finding:
    line = None
    if match := _FAILED_CHECK.search(text):
        number = int(match["line"])
        line = lines[number] if number < len(lines) else None
        message = f"CHECK for '{match['key']}' failed: {match['test']}: {match['text']}"
    elif match := _FAILED_CODE.search(text):
        message = f"failed executing {match['what'].replace(' code', '')} of: {match['text']}"
    elif match := _FAILED_END_CHECK.match(text):
        message = f"failed test at the end of the log: {match['test']}"
    else:
        message = text
    return Finding("compliance", severity, _shorten(message), path=path, source="compliance_checker", line=line)


def _package_findings(level: str, message: str, path: str, ruleset: Ruleset) -> Iterator[Finding]:
    tool = "package_checker"
    if level not in ("ERROR", "WARNING"):
        return
    for pattern, rule, severity in _PACKAGE_PATTERNS:
        if not (match := re.search(pattern, message.strip())):
            continue
        if severity is None:
            return
        if rule == "seed":
            for line in message.strip()[match.end() :].splitlines():
                named = _NAMED_FILE.match(line)
                location, text = (f"{path}/{named['name']}", named["text"]) if named else (path, line)
                if ruleset.seeds_checked:
                    yield Finding.error(location, rule, _shorten(text), source=tool)
                else:
                    yield Finding.warning(
                        location, rule, f"{_shorten(text)} (not a rule of {ruleset.name})", source=tool
                    )
        else:
            yield Finding(rule, severity, _shorten(message), path=path, source=tool)
        return
    yield Finding("package", "error" if level == "ERROR" else "warning", _shorten(message), path=path, source=tool)


def _format_figures(figures: Mapping[str, float | None], unit: str) -> str:
    """Return the figures that the RCP checker compared, as text; empty where it broke off before."""
    found, mean, least = (figures[name] for name in ("samples", "reference_samples", "least_samples"))
    if found is None or mean is None or least is None:
        return ""
    digits = ",.0f" if unit == "samples" else ",.4g"
    return (
        f": {found:{digits}} {unit} on average; the reference needs {mean:{digits}}, and the minimum accepted is "
        f"{least:{digits}}"
    )


def _strip_folder(message: str, folder: Path) -> str:
    """Replace the path of the copy in a message."""
    return message.replace(f"{folder}/", "").replace(str(folder), ".")


def _shorten(message: str) -> str:
    """Return a message as one printable line of bounded length."""
    return truncate(printable(" ".join(message[: 4 * MAX_LENGTH].split())), MAX_LENGTH)


def _limit_findings(findings: list[Finding], path: str, tool: str) -> list[Finding]:
    """Keep the most severe findings and replace the rest by their number, with the worst severity among them."""
    ordered = sorted(findings, key=lambda finding: finding.severity)
    rest = ordered[MAX_FINDINGS_PER_FILE:]
    if not rest:
        return findings
    return [
        *ordered[:MAX_FINDINGS_PER_FILE],
        Finding("more", rest[0].severity, f"{len(rest)} more findings of this tool", path=path, source=tool),
    ]
