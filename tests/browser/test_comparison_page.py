"""The page of a comparison in a browser: it asks for nothing, complains of nothing, and does what it offers."""

from pathlib import Path
from typing import Any

import pytest

from tests.browser.devtools import Page

FIRST_TABLE = "document.querySelector('table')"
SHOWN = f"Array.from({FIRST_TABLE}.tBodies[0].rows).filter((row) => !row.hidden).map((row) => row.cells[0].textContent)"


def shown(tab: Page) -> Any:
    """The systems in the first table, as they stand."""
    return tab.value(SHOWN)


def quiet(tab: Page, path: Path) -> None:
    assert tab.complaints == [] and tab.dialogs == []
    assert set(tab.requests) <= {path.absolute().as_uri(), "data:,"}


def heading(title: str) -> str:
    return f"Array.from({FIRST_TABLE}.tHead.rows[0].cells).find((cell) => cell.textContent === '{title}')"


def keys_until(tab: Page, key: str, reached: str, most: int = 60) -> None:
    """Press a key until the expression is true."""
    for _ in range(most):
        tab.press(key)
        if tab.value(reached):
            return
    raise AssertionError(f"{most} × {key} do not come to {reached}")


def test_what_a_page_does_is_seen(tab: Page, tmp_path: Path) -> None:
    path = tmp_path / "loud.html"
    path.write_text("<script>alert(1); console.warn(2)</script><img src=http://127.0.0.1:9/x><script>throw 3</script>")
    tab.open(path).settle()
    assert tab.dialogs == ["1"] and "http://127.0.0.1:9/x" in tab.requests
    assert any('"warning"' in one for one in tab.complaints) and any("Uncaught" in one for one in tab.complaints)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("width", "height", "phone"), [(1440, 900, False), (390, 844, True), (320, 600, True)])
def test_it_opens_in_silence_and_fits(
    tab: Page, report: Path, width: int, height: int, phone: bool, dark: bool
) -> None:
    tab.show(width, height, dark, phone)
    tab.open(report).settle()
    quiet(tab, report)
    assert tab.value("document.documentElement.scrollWidth") <= width
    sizes = tab.value(
        "Array.from(document.querySelectorAll('.chart svg text')).filter((text) => text.checkVisibility())"
        ".map((text) => { const {a, b} = text.getScreenCTM(); "
        "return parseFloat(getComputedStyle(text).fontSize) * Math.hypot(a, b); })"
    )
    assert len(sizes) > 50 and min(sizes) >= 9
    grounds = tab.value("getComputedStyle(document.body).backgroundColor")
    assert grounds == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")


def test_hostile_names_run_nothing(tab: Page, hostile_report: Path) -> None:
    tab.show(1440, 900)
    tab.open(hostile_report).settle(0.5)
    quiet(tab, hostile_report)
    assert tab.value("document.querySelectorAll('script, img, iframe, object, base, form').length") == 1
    tab.value("document.querySelectorAll('thead button').forEach((button) => button.click())")
    for point in range(3):
        tab.value(f"document.querySelectorAll('[data-group]')[{point}].focus()")
        assert tab.value("document.getElementById('tip').childElementCount") == 0
    tab.value("document.querySelectorAll('select').forEach((one) => { one.selectedIndex = 1; })")
    tab.value("document.querySelectorAll('input').forEach((one) => { one.value = '<img src=x onerror=alert(1)>'; })")
    tab.value("document.querySelectorAll('.controls').forEach((one) => one.dispatchEvent(new Event('input')))")
    tab.settle(0.3)
    quiet(tab, hostile_report)


def test_even_what_gets_in_can_neither_run_nor_send(tab: Page, report: Path) -> None:
    tab.show(1440, 900)
    tab.open(report)
    tab.value(
        "document.body.insertAdjacentHTML('beforeend', '<img src=http://127.0.0.1:9/ onerror=\"window.ran = 1\">')"
    )
    tab.value("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))")
    tab.settle()
    assert tab.value("window.ran === undefined")
    assert tab.value("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
    assert any("Content Security Policy" in complaint for complaint in tab.complaints)


def test_tables_sort_by_mouse(tab: Page, report: Path) -> None:
    tab.show(1440, 900)
    tab.open(report)
    before = shown(tab)
    assert before[-1] == "mine" and "timeless" in before
    for expected in ("ascending", "descending"):
        x, y = tab.value(
            f"(() => {{ {FIRST_TABLE}.scrollIntoView(); const box = {heading('Score (min)')}.firstChild"
            ".getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        tab.click(x, y)
        assert tab.value(f"{heading('Score (min)')}.getAttribute('aria-sort')") == expected
        assert shown(tab)[-1] == "timeless", "what has no value is last in both directions"
        order = tab.value(
            f"Array.from({FIRST_TABLE}.tBodies[0].rows).slice(0, -1)"
            f".map((row) => Number(row.cells[{heading('Score (min)')}.cellIndex].dataset.key))"
        )
        assert order == sorted(order, reverse=expected == "descending") and len(set(order)) > 3


def test_tables_sort_by_keyboard(tab: Page, report: Path) -> None:
    tab.show(1440, 900)
    tab.open(report)
    keys_until(tab, "Tab", "document.activeElement.textContent === 'System'")
    tab.press("Enter")
    assert shown(tab) == sorted(shown(tab))
    tab.press(" ")
    assert shown(tab) == sorted(shown(tab), reverse=True)
    assert tab.value("document.activeElement.textContent") == "System"


def test_tables_filter(tab: Page, report: Path) -> None:
    tab.show(1440, 900)
    tab.open(report)
    count = "document.querySelector('output').textContent"
    everything = shown(tab)
    assert tab.value(count) == "7 of 7"
    tab.value("document.querySelector('input').focus()")
    tab.type("SYSTEM a100")
    assert shown(tab) == ["system-0", "system-1", "system-2", "system-3"] and tab.value(count) == "4 of 7"
    tab.press("Escape")
    assert shown(tab) == everything
    choose = "((select, text) => {{ select.value = Array.from(select.options).find((one) => one.text === text).value; \
        select.dispatchEvent(new Event('input', {{bubbles: true}})); }})(document.querySelectorAll('select')[{}], '{}')"
    tab.value(choose.format(1, "v2.1"))
    assert shown(tab) == ["other-2"]
    tab.value(choose.format(0, "A"))
    assert shown(tab) == [] and tab.value(count) == "0 of 7"
    tab.value("document.querySelector('.controls button').click()")
    assert shown(tab) == everything and tab.value("document.activeElement.type") == "search"


def test_points_are_asked_by_keyboard(tab: Page, report: Path) -> None:
    tab.show(1440, 900)
    tab.open(report)
    tip = "document.getElementById('tip')"
    keys_until(tab, "Tab", "'group' in document.activeElement.dataset")
    tips = [tab.value(f"{tip}.textContent")]
    assert tab.value("document.querySelector('.hint').checkVisibility()"), "the hint on how to continue is shown"
    box = tab.value("(({top, bottom}) => [top, bottom])(document.activeElement.closest('svg').getBoundingClientRect())")
    assert box[0] >= -1 and box[1] <= 901, "the whole chart is in sight"
    assert tab.value(f"!{tip}.hidden") and tips[0].startswith("A system-0 (v2.0, closed)\n8 × NVIDIA A100 SXM\n")
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "End", "Home", "ArrowDown", "ArrowUp"):
        tab.press(key)
        tips.append(tab.value(f"{tip}.textContent"))
    names = [text.split(" (")[0] for text in tips]
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
    assert tab.value("document.activeElement.getAttribute('aria-label')") == tips[-1]
    tab.press("Escape")
    assert tab.value(f"{tip}.hidden")
    tab.press("Tab")
    assert tab.value(
        "!document.activeElement.closest('figure') || document.activeElement.closest('figure') !== "
        "document.querySelector('figure')"
    ), "a chart is one stop of the tabulator"


def test_points_are_asked_by_mouse_and_finger(tab: Page, report: Path) -> None:
    for phone in (False, True):
        tab.show(390 if phone else 1440, 844, phone=phone)
        tab.open(report)
        x, y = tab.value(
            "(() => { const point = Array.from(document.querySelectorAll('figure [data-group]')).find((one) => "
            "one.checkVisibility()); point.scrollIntoView({block: 'center', behavior: 'instant'}); "
            "const box = point.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        tab.point(x + 6, y + 6)
        assert tab.value("document.getElementById('tip').textContent").startswith("A system-0 (v2.0, closed)")
        box = tab.value("(({left, right}) => [left, right])(document.getElementById('tip').getBoundingClientRect())")
        assert box[0] >= 0 and box[1] <= (390 if phone else 1440)
        tab.point(2, 2)
        assert tab.value("document.getElementById('tip').hidden")


def test_it_begins_with_a_way_past_everything(tab: Page, report: Path) -> None:
    tab.show(1440, 900)
    tab.open(report)
    tab.press("Tab")
    assert tab.value("document.activeElement.textContent") == "Skip to the content"
    assert tab.value("document.activeElement.getBoundingClientRect().left") == 0
    tab.press("Enter")
    assert tab.value("document.activeElement.id") == "main"


def test_without_scripts_it_shows_the_same(tab: Page, report: Path) -> None:
    tab.show(1440, 900)
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(report)
        assert len(shown(tab)) == 7
        assert tab.value("document.querySelectorAll('button, input, select').length") == 0
        assert tab.value("document.querySelector('[data-group] title').textContent").startswith("A system-0")
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)


def test_on_paper_it_is_light_whole_and_has_no_controls(tab: Page, report: Path, tmp_path: Path) -> None:
    tab.show(1000, 700, dark=True)
    tab.open(report)
    tab.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert tab.value("getComputedStyle(document.documentElement).getPropertyValue('--ground')") == "#ffffff"
    hidden = tab.value(
        "['nav', '.controls', '.skip', '.narrow', 'thead button'].map((name) => "
        "document.querySelector(name).checkVisibility())"
    )
    assert hidden == [False] * 5
    assert tab.value(f"getComputedStyle({heading('Round')}, '::before').content") == '"Round"'
    assert tab.value("getComputedStyle(document.querySelector('.box')).overflow") == "visible"
    tab.print(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_a_thousand_results_are_fast(tab: Page, long_report: Path) -> None:
    tab.show(1440, 900)
    tab.open(long_report)
    quiet(tab, long_report)
    spent = tab.value(f"""(() => {{
        const begin = performance.now();
        {heading("Seq/s")}.firstChild.click();
        document.body.getBoundingClientRect();
        const search = document.querySelector('input');
        search.value = 'system-09';
        search.dispatchEvent(new Event('input', {{bubbles: true}}));
        document.body.getBoundingClientRect();
        return performance.now() - begin;
    }})()""")
    assert len(shown(tab)) == 100
    assert spent < 2000, "milliseconds, sorted, searched and laid out"
