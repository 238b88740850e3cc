"""Fixtures of the browser tests: a headless Chromium and pages. Without Chromium the tests are skipped."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from podium.comparison.load import Comparison
from podium.comparison.page.page import comparison_page
from podium.comparison.result import Result
from podium.html.page import write_page
from tests.browser.devtools import Page, browser, find_chromium
from tests.podium.comparison.conftest import make_result, make_run
from tests.podium.html.conftest import HOSTILE


@pytest.fixture(scope="session")
def tab() -> Iterator[Page]:
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium is installed")
    with browser(program) as page:
        yield page


def make_sized_result(number: int, **changes: object) -> Result:
    """Return a result that is twice as fast as that of `number` − 1, on twice the accelerators."""
    seconds = 2000.0 / 2**number
    runs = [make_run(seconds * (1 + n / 100), evaluating_seconds=seconds / 10) for n in range(10)]
    fields = {"accelerators": 8 * 2**number, "system": f"system-{number}", "submitter": "ABC"[number % 3], **changes}
    return make_result(runs, **fields)


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Page with seven results of two kinds of accelerators: one has no score, and one is the user's."""
    results = [
        *(make_sized_result(number) for number in range(4)),
        make_sized_result(2, accelerator="Other", kind=None, round="v2.1", system="other-2"),
        make_result([], system="timeless", anomalies=("has no logs",)),
        make_sized_result(1, round=None, system="mine", submitter="Me"),
    ]
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_page(path, comparison_page(Comparison(tuple(results), ("a note",))))
    return path


@pytest.fixture(scope="session")
def hostile_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Page in which every name is one of the HOSTILE strings, such as a script tag."""
    results = []
    for number, name in enumerate(HOSTILE):
        fields = {"submitter": name, "system": name, "round": name, "accelerator": name, "division": name}
        results.append(make_sized_result(number % 8, **fields, kind=None, repeats=name, anomalies=(f"{name} is odd",)))
        results.append(make_sized_result(number % 8, system=name, round=None))
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    write_page(path, comparison_page(Comparison(tuple(results), HOSTILE), title=HOSTILE[0]))
    return path


@pytest.fixture(scope="session")
def long_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Page with a thousand results."""
    results = [
        make_sized_result(
            number % 8, system=f"system-{number:04d}", submitter=f"S{number % 40}", round=f"v{number % 7}.0"
        )
        for number in range(1000)
    ]
    path = tmp_path_factory.mktemp("long") / "report.html"
    write_page(path, comparison_page(Comparison(tuple(results))))
    return path
