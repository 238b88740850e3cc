"""Comparison page in a browser: no requests, no console messages; sorting, filters, tooltips, print and speed."""

from pathlib import Path
from typing import Any

import pytest

from tests.browser.devtools import Page

FIRST_TABLE = "document.querySelector('table')"
VISIBLE_SYSTEMS_SCRIPT = (
    f"Array.from({FIRST_TABLE}.tBodies[0].rows).filter((row) => !row.hidden).map((row) => row.cells[0].textContent)"
)


def visible_systems(tab: Page) -> Any:
    """Return the visible systems of the first table, in order."""
    return tab.evaluate(VISIBLE_SYSTEMS_SCRIPT)


def assert_no_messages(tab: Page, path: Path) -> None:
    """Check that the page logged nothing, opened no dialog and requested only its file."""
    assert tab.console_messages == [] and tab.dialogs == []
    assert set(tab.requests) <= {path.absolute().as_uri(), "data:,"}


def header_cell(title: str) -> str:
    return f"Array.from({FIRST_TABLE}.tHead.rows[0].cells).find((cell) => cell.textContent === '{title}')"


def press_until(tab: Page, key: str, reached: str, max_presses: int = 60) -> None:
    """Press a key until the expression is true."""
    for _ in range(max_presses):
        tab.press(key)
        if tab.evaluate(reached):
            return
    raise AssertionError(f"{max_presses} × {key} did not make {reached} true")


def test_dialogs_console_messages_and_requests_are_recorded(tab: Page, tmp_path: Path) -> None:
    path = tmp_path / "loud.html"
    path.write_text("<script>alert(1); console.warn(2)</script><img src=http://127.0.0.1:9/x><script>throw 3</script>")
    tab.open(path).wait()
    assert tab.dialogs == ["1"] and "http://127.0.0.1:9/x" in tab.requests
    assert any('"warning"' in one for one in tab.console_messages) and any(
        "Uncaught" in one for one in tab.console_messages
    )


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("width", "height", "phone"), [(1440, 900, False), (390, 844, True), (320, 600, True)])
def test_page_fits_the_window_without_messages_or_requests(
    tab: Page, report: Path, width: int, height: int, phone: bool, dark: bool
) -> None:
    tab.set_viewport(width, height, dark, phone)
    tab.open(report).wait()
    assert_no_messages(tab, report)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    sizes = tab.evaluate(
        "Array.from(document.querySelectorAll('.chart svg text')).filter((text) => text.checkVisibility())"
        ".map((text) => { const {a, b} = text.getScreenCTM(); "
        "return parseFloat(getComputedStyle(text).fontSize) * Math.hypot(a, b); })"
    )
    assert len(sizes) > 50 and min(sizes) >= 9
    background = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")


def test_hostile_names_execute_nothing(tab: Page, hostile_report: Path) -> None:
    tab.set_viewport(1440, 900)
    tab.open(hostile_report).wait(0.5)
    assert_no_messages(tab, hostile_report)
    assert tab.evaluate("document.querySelectorAll('script, img, iframe, object, base, form').length") == 1
    tab.evaluate("document.querySelectorAll('thead button').forEach((button) => button.click())")
    for point in range(3):
        tab.evaluate(f"document.querySelectorAll('[data-group]')[{point}].focus()")
        assert tab.evaluate("document.getElementById('tip').childElementCount") == 0
    tab.evaluate("document.querySelectorAll('select').forEach((one) => { one.selectedIndex = 1; })")
    tab.evaluate("document.querySelectorAll('input').forEach((one) => { one.value = '<img src=x onerror=alert(1)>'; })")
    tab.evaluate("document.querySelectorAll('.controls').forEach((one) => one.dispatchEvent(new Event('input')))")
    tab.wait(0.3)
    assert_no_messages(tab, hostile_report)


def test_content_security_policy_blocks_injected_scripts_and_requests(tab: Page, report: Path) -> None:
    tab.set_viewport(1440, 900)
    tab.open(report)
    tab.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=http://127.0.0.1:9/ onerror=\"window.ran = 1\">')"
    )
    tab.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))"
    )
    tab.wait()
    assert tab.evaluate("window.ran === undefined")
    assert tab.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
    assert any("Content Security Policy" in message for message in tab.console_messages)


def test_tables_sort_by_mouse(tab: Page, report: Path) -> None:
    tab.set_viewport(1440, 900)
    tab.open(report)
    before = visible_systems(tab)
    assert before[-1] == "mine" and "timeless" in before
    for expected in ("ascending", "descending"):
        x, y = tab.evaluate(
            f"(() => {{ {FIRST_TABLE}.scrollIntoView(); const box = {header_cell('Score (min)')}.firstChild"
            ".getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        tab.click(x, y)
        assert tab.evaluate(f"{header_cell('Score (min)')}.getAttribute('aria-sort')") == expected
        assert visible_systems(tab)[-1] == "timeless", "rows without a value are last in both directions"
        order = tab.evaluate(
            f"Array.from({FIRST_TABLE}.tBodies[0].rows).slice(0, -1)"
            f".map((row) => Number(row.cells[{header_cell('Score (min)')}.cellIndex].dataset.key))"
        )
        assert order == sorted(order, reverse=expected == "descending") and len(set(order)) > 3


def test_tables_sort_by_keyboard(tab: Page, report: Path) -> None:
    tab.set_viewport(1440, 900)
    tab.open(report)
    press_until(tab, "Tab", "document.activeElement.textContent === 'System'")
    tab.press("Enter")
    assert visible_systems(tab) == sorted(visible_systems(tab))
    tab.press(" ")
    assert visible_systems(tab) == sorted(visible_systems(tab), reverse=True)
    assert tab.evaluate("document.activeElement.textContent") == "System"


def test_tables_filter(tab: Page, report: Path) -> None:
    tab.set_viewport(1440, 900)
    tab.open(report)
    count = "document.querySelector('output').textContent"
    everything = visible_systems(tab)
    assert tab.evaluate(count) == "7 of 7"
    tab.evaluate("document.querySelector('input').focus()")
    tab.type("SYSTEM a100")
    assert visible_systems(tab) == ["system-0", "system-1", "system-2", "system-3"] and tab.evaluate(count) == "4 of 7"
    tab.press("Escape")
    assert visible_systems(tab) == everything
    choose = "((select, text) => {{ select.value = Array.from(select.options).find((one) => one.text === text).value; \
        select.dispatchEvent(new Event('input', {{bubbles: true}})); }})(document.querySelectorAll('select')[{}], '{}')"
    tab.evaluate(choose.format(1, "v2.1"))
    assert visible_systems(tab) == ["other-2"]
    tab.evaluate(choose.format(0, "A"))
    assert visible_systems(tab) == [] and tab.evaluate(count) == "0 of 7"
    tab.evaluate("document.querySelector('.controls button').click()")
    assert visible_systems(tab) == everything and tab.evaluate("document.activeElement.type") == "search"


def test_chart_points_are_reachable_by_keyboard(tab: Page, report: Path) -> None:
    tab.set_viewport(1440, 900)
    tab.open(report)
    tip = "document.getElementById('tip')"
    press_until(tab, "Tab", "'group' in document.activeElement.dataset")
    tooltips = [tab.evaluate(f"{tip}.textContent")]
    assert tab.evaluate("document.querySelector('.hint').checkVisibility()"), "the hint for the keyboard is visible"
    box = tab.evaluate(
        "(({top, bottom}) => [top, bottom])(document.activeElement.closest('svg').getBoundingClientRect())"
    )
    assert box[0] >= -1 and box[1] <= 901, "the whole chart is visible"
    assert tab.evaluate(f"!{tip}.hidden") and tooltips[0].startswith("A system-0 (v2.0, closed)\n8×NVIDIA A100 SXM\n")
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "End", "Home", "ArrowDown", "ArrowUp"):
        tab.press(key)
        tooltips.append(tab.evaluate(f"{tip}.textContent"))
    names = [text.split(" (")[0] for text in tooltips]
    assert names == [
        "A system-0",
        "B system-1",
        "C system-2",
        "B system-1",
        "Me mine",
        "A system-0",
        "C other-2",
        "A system-0",
    ]
    assert tab.evaluate("document.activeElement.getAttribute('aria-label')") == tooltips[-1]
    tab.press("Escape")
    assert tab.evaluate(f"{tip}.hidden")
    tab.press("Tab")
    assert tab.evaluate(
        "!document.activeElement.closest('figure') || document.activeElement.closest('figure') !== "
        "document.querySelector('figure')"
    ), "a chart is one tab stop"


def test_chart_points_show_a_tooltip_by_mouse_and_touch(tab: Page, report: Path) -> None:
    for phone in (False, True):
        tab.set_viewport(390 if phone else 1440, 844, phone=phone)
        tab.open(report)
        x, y = tab.evaluate(
            "(() => { const point = Array.from(document.querySelectorAll('figure [data-group]')).find((one) => "
            "one.checkVisibility()); point.scrollIntoView({block: 'center', behavior: 'instant'}); "
            "const box = point.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        tab.move_mouse(x + 6, y + 6)
        assert tab.evaluate("document.getElementById('tip').textContent").startswith("A system-0 (v2.0, closed)")
        box = tab.evaluate("(({left, right}) => [left, right])(document.getElementById('tip').getBoundingClientRect())")
        assert box[0] >= 0 and box[1] <= (390 if phone else 1440)
        tab.move_mouse(2, 2)
        assert tab.evaluate("document.getElementById('tip').hidden")


def test_first_tab_stop_is_the_skip_link(tab: Page, report: Path) -> None:
    tab.set_viewport(1440, 900)
    tab.open(report)
    tab.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert tab.evaluate("document.activeElement.getBoundingClientRect().left") == 0
    tab.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "main"


def test_page_is_complete_without_scripts(tab: Page, report: Path) -> None:
    tab.set_viewport(1440, 900)
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(report)
        assert len(visible_systems(tab)) == 7
        assert tab.evaluate("document.querySelectorAll('button, input, select').length") == 0
        assert tab.evaluate("document.querySelector('[data-group] title').textContent").startswith("A system-0")
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)


def test_printed_page_is_light_and_complete_without_controls(tab: Page, report: Path, tmp_path: Path) -> None:
    tab.set_viewport(1000, 700, dark=True)
    tab.open(report)
    tab.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert tab.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ground')") == "#ffffff"
    hidden = tab.evaluate(
        "['nav', '.controls', '.skip', '.narrow', 'thead button'].map((name) => "
        "document.querySelector(name).checkVisibility())"
    )
    assert hidden == [False] * 5
    assert tab.evaluate(f"getComputedStyle({header_cell('Round')}, '::before').content") == '"Round"'
    assert tab.evaluate("getComputedStyle(document.querySelector('.box')).overflow") == "visible"
    tab.print(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_a_thousand_results_are_fast(tab: Page, long_report: Path) -> None:
    tab.set_viewport(1440, 900)
    tab.open(long_report)
    assert_no_messages(tab, long_report)
    milliseconds = tab.evaluate(f"""(() => {{
        const begin = performance.now();
        {header_cell("Samples/s")}.firstChild.click();
        document.body.getBoundingClientRect();
        const search = document.querySelector('input');
        search.value = 'system-09';
        search.dispatchEvent(new Event('input', {{bubbles: true}}));
        document.body.getBoundingClientRect();
        return performance.now() - begin;
    }})()""")
    assert len(visible_systems(tab)) == 100
    assert milliseconds < 2000, "milliseconds for sorting, searching and layout"
