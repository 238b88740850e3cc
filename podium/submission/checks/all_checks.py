"""Podium's own checks, for what the official tools let through or get wrong: tables of functions by subject.

An error is what the rules reject, or what makes a score worthless. What occurs in published and accepted packages is
at most a warning: something that a reviewer would ask about.
"""

from collections.abc import Mapping

from podium.config.schema import RunConfig
from podium.core.finding import Finding
from podium.mllog.results_tree import Package
from podium.mllog.rulesets import Ruleset
from podium.submission.checks.context import whole
from podium.submission.checks.layout import LAYOUT, check_judged
from podium.submission.checks.runs import EVALUATING, SETTINGS, check_configured, check_integrity
from podium.submission.checks.sets import SETS
from podium.submission.checks.systems import SYSTEMS
from podium.submission.checks.timing import CLOCK


def check_package(
    package: Package,
    ruleset: Ruleset,
    configurations: Mapping[int, RunConfig] | None = None,
    judged_elsewhere: bool = False,
) -> list[Finding]:
    """Everything that Podium finds in a package, in the order of files and lines.

    `configurations` are those of Podium's own runs by their seeds, with which their logs are compared. With
    `judged_elsewhere` another package of the same check has BERT results, and this one needs none. Raises WorkError.
    """
    everything = whole(package)
    found = list(check_judged(everything, judged_elsewhere))
    for check_whole in (*SYSTEMS, *LAYOUT):
        found.extend(check_whole(everything, ruleset))
    for runs in everything.sets:
        for check_set in SETS:
            found.extend(check_set(runs, ruleset))
        for run in runs.runs:
            for check_run in (check_integrity, *CLOCK, *EVALUATING, *SETTINGS):
                found.extend(check_run(run, ruleset))
            found.extend(check_configured(run, configurations or {}))
    return sorted(set(found), key=lambda one: (one.path, one.line or 0, one.rule, one.message))
