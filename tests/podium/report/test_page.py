"""The page of local runs: its content, and escaping of untrusted text."""

import json
from pathlib import Path
from typing import Any

import pytest

from podium.report.find import find_runs
from podium.report.load import read_sets
from podium.report.page import label_runs, page_html
from tests.podium.html.conftest import HOSTILE, Parsed, assert_only_page_content, charts_of, data_of
from tests.podium.report.conftest import PHASES, SETTINGS, MakeRun, evaluation, lines, step, summary
from tests.podium.report.test_rates import log

CHARTS = {
    "Masked-LM accuracy",
    "Masked-LM loss",
    "Next-sentence loss",
    "Learning rate",
    "Gradient norm",
    "Phases of a step",
    "Distribution of the balance",
    "Balance over the run",
    "Padding share",
}

PLOTLY = 1_250_000  # bytes of the script in a page


def html_of(*folders: Path) -> str:
    """Render the page of runs."""
    found = find_runs(folders)
    return page_html(read_sets(found), found.notes)


def charts(html: str) -> set[str]:
    return set(charts_of(html))


def lines_of(html: str, title: str) -> dict[str, list[tuple[float, float]]]:
    """Return the points of a chart's lines by the label of their run; that of the mean by its series."""
    return {
        trace.get("text", trace["series"]): list(zip(trace["x"], trace["y"], strict=True))
        for trace in charts_of(html)[title]["traces"]
        if "fill" not in trace
    }


def test_page_of_a_run_has_all_charts_and_its_outcome(make_run: MakeRun) -> None:
    folder = make_run(totals=summary())
    html = html_of(folder)
    parsed = Parsed(html)
    assert charts(html) == CHARTS
    assert "mine, recipe indexed; the run reached its target accuracy; 40.00 s, 640 samples." in parsed.texts_in("p")
    facts = dict(zip(parsed.texts_in("dt"), parsed.texts_in("dd"), strict=True))
    assert facts["time"] == "40.00 s" and facts["precision"] == "auto: bf16" and facts["learning rate"] == "0.0015"
    assert lines_of(html, "Masked-LM accuracy")["run_0"][-1] == (640, 0.73)
    assert lines_of(html, "Masked-LM loss")["run_0"][0] == (16, 5.99)
    forward = charts_of(html)["Phases of a step"]["traces"][1]
    assert forward["series"] == "forward" and forward["x"] == [20]
    assert forward["hovertext"] == ["run_0, forward<br>20.00 ms per step, 25.0%"]
    assert lines_of(html, "Distribution of the balance")["run_0"][-1] == pytest.approx((1.1, 100), rel=1e-4)
    assert data_of(html)["filters"] is None, "one run needs no filter"
    assert html == html_of(folder), "the same runs give the same page"


def test_several_runs_are_drawn_with_their_mean(make_run: MakeRun) -> None:
    make_run(0, totals=summary(seconds=40.0))
    metrics = [*(step(one) for one in range(1, 61)), evaluation(320, 0.2), evaluation(640, 0.6), evaluation(960, 0.8)]
    slower = summary(seconds=50.0, phases_ms=PHASES | {"forward": 60.0})
    make_run(1, metrics=metrics, totals=slower, settings={**SETTINGS, "seed": 8})
    folder = make_run(2, metrics=metrics, settings={**SETTINGS, "seed": 9}).parent
    html = html_of(folder)
    parsed = Parsed(html)
    lines = lines_of(html, "Masked-LM accuracy")
    assert lines["run_1"][-1] == (960, 0.8) and (320, 0.4) in lines["run_0"]
    assert (320, 0.266667) in lines["mean of 3 runs"]
    assert 960 not in dict(lines["mean of 3 runs"]), "run_0 had ended"
    phases = charts_of(html)["Phases of a step"]
    assert phases["labels"] == ["run_0", "run_1"] and phases["traces"][1]["x"] == [20, 60]
    filters = data_of(html)["filters"]
    assert filters["names"] == ["run_0", "run_1", "run_2"] and filters["facets"][0]["key"] == "outcome"
    assert "45.00 ± 7.07 s" in parsed.texts_in("dd")
    assert any(
        "All runs have the same schedule; run_1, which trained longest" in caption
        for caption in parsed.texts_in("figcaption")
    )
    assert {"run_0", "run_1"} <= set(parsed.texts_in("th"))


def test_learning_rates_of_different_schedules_are_all_drawn(make_run: MakeRun) -> None:
    make_run(0)
    optimizer = {"algorithm": "adamw", "learning_rate": 0.002}
    html = html_of(make_run(1, settings={**SETTINGS, "optimizer": optimizer}).parent)
    assert set(lines_of(html, "Learning rate")) == {"run_0", "run_1"}


def test_run_without_a_target_is_not_highlighted(make_run: MakeRun) -> None:
    make_run(0, totals=summary())
    make_run(1, totals=summary(reached_target=False), settings={**SETTINGS, "target_accuracy": None})
    folder = make_run(2, totals=summary(reached_target=False)).parent
    assert [one.get("class") for one in Parsed(html_of(folder)).all("tr")][1:4] == [None, None, "marked"]


def test_the_band_shows_a_spike_among_many_steps(make_run: MakeRun) -> None:
    metrics = [step(one, masked_lm_loss=5000.0 if one == 1501 else 5.0) for one in range(1, 3_001)]
    area, line = charts_of(html_of(make_run(metrics=metrics)))["Masked-LM loss"]["traces"]
    assert "mean of %{customdata[2]:,d} steps" in line["hovertemplate"] and len(line["x"]) < 1_600
    assert max(high for _, high, _ in line["customdata"]) == 5000 == max(area["y"])
    html = html_of(make_run(1, metrics=[step(1), step(2, masked_lm_loss=5000.0), step(3)]))
    assert (32, 5000) in lines_of(html, "Masked-LM loss")["run_1"]


def test_labels_of_several_sets_have_their_differing_settings(make_run: MakeRun) -> None:
    make_run(0, totals=summary())
    first = make_run(1, totals=summary()).parent
    padded = {**SETTINGS, "recipe": "padded"}
    second = make_run(0, totals=summary(), settings=padded, set_name="2026-11-21_12-00-00").parent
    sets = read_sets(find_runs([first, second]))
    assert [one.label for one in label_runs(sets)] == ["indexed, run_0", "indexed, run_1", "padded"]
    assert [(one.number, one.group) for one in label_runs(sets)] == [
        (0, "indexed"),
        (0, "indexed"),
        (1, "padded"),
    ]
    html = html_of(first, second)
    parsed = Parsed(html)
    drawn = charts_of(html)
    assert {one["series"] for one in drawn["Masked-LM loss"]["traces"] if "text" in one} == {"indexed", "padded"}
    assert drawn["Phases of a step"]["labels"] == ["indexed, run_0", "indexed, run_1", "padded"]
    assert [one["name"] for one in data_of(html)["filters"]["facets"]] == ["Set", "Outcome"]
    assert "2 sets of runs" in parsed.texts_in("h1") and "3 runs: 3 succeeded." in parsed.texts_in("p")
    assert {"indexed", "padded"} <= set(parsed.texts_in("th"))


def test_throughput_chart_needs_a_log(make_run: MakeRun) -> None:
    folder = make_run(totals=summary(), result__partial__txt=log())
    html = html_of(folder)
    assert charts(html) == CHARTS | {"Throughput over the run"}
    assert (640, 80) in lines_of(html, "Throughput over the run")["run_0"]


def test_single_rank_has_no_balance_chart(make_run: MakeRun) -> None:
    metrics = [step(one, max_over_mean_tokens=1.0) for one in range(1, 10)]
    html = html_of(make_run(metrics=metrics, totals=summary()))
    assert charts(html) == CHARTS - {"Distribution of the balance", "Balance over the run", "Masked-LM accuracy"}
    assert "All ranks had the same number of tokens in every step, as with one rank." in html


@pytest.mark.parametrize(
    ("files", "absent"),
    [
        ({}, {"Phases of a step"}),
        ({"metrics": "", "totals": summary()}, CHARTS - {"Phases of a step"}),
        ({"metrics": "x\n{", "settings": None}, CHARTS),
        ({"metrics": lines([{"event": "step", "samples": 16, "masked_lm_loss": 1.0}])}, CHARTS - {"Masked-LM loss"}),
    ],
)
def test_charts_without_data_are_omitted(make_run: MakeRun, files: dict[str, Any], absent: set[str]) -> None:
    assert charts(html_of(make_run(**files))) == CHARTS - absent


def test_failures_notes_and_restarts_are_listed(make_run: MakeRun) -> None:
    make_run(0, totals=summary(), restarts__jsonl='{"samples": 320}\n')
    failed = make_run(1, failure__json=json.dumps({"exit_code": 1, "message": "a rank died"}), settings=None)
    points = Parsed(html_of(failed.parent)).texts_in("li")
    assert "run_1 failed: a rank died" in points
    assert "run_1: config.yaml: is missing, so that settings are unknown" in points
    assert "run_0: restarted after 320 samples, so that it is not a valid result" in points


@pytest.mark.parametrize("value", [1e99, -1e99])
def test_values_of_any_size_are_drawn(make_run: MakeRun, value: float) -> None:
    names = ("masked_lm_loss", "gradient_norm", "learning_rate", "max_over_mean_tokens")
    metrics = [step(1), step(2, **dict.fromkeys(names, value)), evaluation(0, 0.0)]
    totals = summary(seconds=1e300, phases_ms=PHASES | {"forward": 1e99})
    html = html_of(make_run(metrics=metrics, totals=totals))
    assert {"Masked-LM loss", "Gradient norm", "Phases of a step"} <= charts(html)


def test_page_of_many_runs_is_bounded(make_run: MakeRun) -> None:
    metrics = lines([step(one) for one in range(1, 601)])
    folders = [make_run(number, metrics=metrics, totals=summary()) for number in range(10)]
    assert len(html_of(folders[0].parent)) < PLOTLY + 700_000


def test_page_of_a_run_with_thousands_of_evaluations_is_bounded(make_run: MakeRun) -> None:
    evaluations = [evaluation(16 * one, 0.9 if one == 1_234 else 0.1) for one in range(1, 5_001)]
    html = html_of(make_run(metrics=[step(1), *evaluations]))
    assert (19_744, 0.9) in lines_of(html, "Masked-LM accuracy")["run_0"]
    assert "The last 500 of 5,000." in html and len(html) < PLOTLY + 150_000


def test_number_of_runs_in_charts_is_limited(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podium.report.page.MAX_RUNS_IN_CHART", 2)
    folder = [make_run(number, totals=summary()) for number in range(3)][-1].parent
    html = html_of(folder)
    parsed = Parsed(html)
    assert "Charts show the first 2 of 3 runs; tables have all of them." in parsed.texts_in("li")
    assert set(lines_of(html, "Masked-LM loss")) == {"run_0", "run_1"} and "run_2" in parsed.texts_in("th")


def test_hostile_text_is_escaped(make_run: MakeRun) -> None:
    for number, name in enumerate(HOSTILE):
        named = dict.fromkeys(("system", "recipe", "seed", "precision", f"key {number}"), name)
        source = json.dumps({"code": name, "commit": name})
        if number % 2:
            files = {"totals": summary(precision=name, phases_ms={name or "x": 1.0})}
        else:
            files = {"failure__json": json.dumps({"exit_code": 1, "message": name})}
        folder = make_run(
            number, metrics=[step(1)], settings={**SETTINGS, **named}, source__json=source, **files
        ).parent
    parsed = Parsed(html_of(folder))
    assert_only_page_content(parsed)
    assert "<script>alert(1)</script>" in " ".join(parsed.texts_in("td"))
    assert any("<script>alert(1)</script>" in item for item in parsed.texts_in("li"))


def test_page_has_no_paths_of_this_machine(make_run: MakeRun) -> None:
    """Settings, failures and the set's folder have paths."""
    failure = {"exit_code": 1, "message": "/lustre/secret/shard.h5: is broken", "final": True}
    folder = make_run(
        settings=SETTINGS | {"data": {"store": "/lustre/secret/store"}}, failure__json=json.dumps(failure)
    )
    html = page_html(read_sets(find_runs([folder])), [f"{folder}: a note"])
    assert "secret" not in html and str(folder.parent) not in html
    assert "shard.h5: is broken" in html
