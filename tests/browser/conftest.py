"""A headless Chromium for tests that look at pages as a reader does; without one they are skipped."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from podium.comparison.load import Comparison
from podium.comparison.page.page import comparison_page
from podium.comparison.result import Result
from podium.html.page import write_page
from tests.browser.devtools import Page, browser, chromium
from tests.podium.comparison.conftest import make_result, make_run
from tests.podium.html.conftest import HOSTILE


@pytest.fixture(scope="session")
def tab() -> Iterator[Page]:
    program = chromium()
    if program is None:
        pytest.skip("no Chromium is installed")
    with browser(program) as page:
        yield page


def sized(number: int, **changes: object) -> Result:
    """A result that is twice as fast as the one before."""
    seconds = 2000.0 / 2**number
    runs = [make_run(seconds * (1 + n / 100), evaluating_seconds=seconds / 10) for n in range(10)]
    fields = {"accelerators": 8 * 2**number, "system": f"system-{number}", "submitter": "ABC"[number % 3], **changes}
    return make_result(runs, **fields)


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six results of two kinds of accelerators, one without a time, and one's own."""
    results = [
        *(sized(number) for number in range(4)),
        sized(2, accelerator="Other", kind=None, round="v2.1", system="other-2"),
        make_result([], system="timeless", oddities=("has no logs",)),
        sized(1, round=None, system="mine", submitter="Me"),
    ]
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_page(path, comparison_page(Comparison(tuple(results), ("a note",))))
    return path


@pytest.fixture(scope="session")
def hostile_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything in it is called what would do harm."""
    results = []
    for number, name in enumerate(HOSTILE):
        fields = {"submitter": name, "system": name, "round": name, "accelerator": name, "division": name}
        results.append(sized(number % 8, **fields, kind=None, repeats=name, oddities=(f"{name} is odd",)))
        results.append(sized(number % 8, system=name, round=None))
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    write_page(path, comparison_page(Comparison(tuple(results), HOSTILE), title=HOSTILE[0]))
    return path


@pytest.fixture(scope="session")
def long_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thousand results."""
    results = [
        sized(number % 8, system=f"system-{number:04d}", submitter=f"S{number % 40}", round=f"v{number % 7}.0")
        for number in range(1000)
    ]
    path = tmp_path_factory.mktemp("long") / "report.html"
    write_page(path, comparison_page(Comparison(tuple(results))))
    return path
