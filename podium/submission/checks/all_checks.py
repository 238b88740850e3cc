"""Podium's checks of what the official tools accept or get wrong: tables of functions by subject.

An error is what the rules reject, or what invalidates a score. What occurs in published and accepted packages is at
most a warning: something that a reviewer should look at.
"""

from collections.abc import Mapping

from podium.config.schema import RunConfig
from podium.core.finding import Finding
from podium.mllog.results_tree import Package
from podium.mllog.rulesets import Ruleset
from podium.submission.checks.context import read_package_logs
from podium.submission.checks.disclosure import CONFIGURATION_CHECKS, DISCLOSURE_CHECKS
from podium.submission.checks.layout import LAYOUT_CHECKS, check_has_results
from podium.submission.checks.power import POWER_CHECKS
from podium.submission.checks.runs import EVALUATION_CHECKS, SETTING_CHECKS, check_configured, check_integrity
from podium.submission.checks.sets import SET_CHECKS
from podium.submission.checks.systems import SYSTEM_CHECKS
from podium.submission.checks.timing import TIMING_CHECKS


def check_package(
    package: Package,
    ruleset: Ruleset,
    configurations: Mapping[int, RunConfig] | None = None,
    other_results: bool = False,
) -> list[Finding]:
    """Return the findings of all of Podium's checks on a package, in the order of files and lines.

    `configurations` are those of Podium's own runs by seed; logs with these seeds are compared with them. With
    `other_results` another package of the same check has results, so that this one may have none. Raises WorkError
    where a file cannot be read.
    """
    checked = read_package_logs(package, ruleset)
    found = list(check_has_results(checked, ruleset, other_results))
    for check_whole in (*SYSTEM_CHECKS, *LAYOUT_CHECKS, *CONFIGURATION_CHECKS):
        found.extend(check_whole(checked, ruleset))
    for runs in checked.sets:
        for check_set in (*SET_CHECKS, *POWER_CHECKS):
            found.extend(check_set(runs, ruleset))
        for run in runs.runs:
            for check_run in (check_integrity, *TIMING_CHECKS, *EVALUATION_CHECKS, *SETTING_CHECKS, *DISCLOSURE_CHECKS):
                found.extend(check_run(run, ruleset))
            found.extend(check_configured(run, configurations or {}))
    return sorted(set(found), key=lambda finding: (finding.path, finding.line or 0, finding.rule, finding.message))
