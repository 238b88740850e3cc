"""The page of local runs: its content, and escaping of untrusted text."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from podium.report.find import find_runs
from podium.report.load import read_sets
from podium.report.page import label_runs, page_html
from tests.podium.html.conftest import HOSTILE, Parsed, assert_only_page_content, sketch_charts
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


def html_of(*folders: Path, drawn: Collection[str] = ()) -> str:
    """Render the page of runs, with sketches of all charts except those with these titles."""
    found = find_runs(folders)
    with sketch_charts(drawn):
        return page_html(read_sets(found), found.notes)


def charts(parsed: Parsed) -> set[str]:
    return {str(one["aria-label"]) for one in parsed.all("svg")}


def tooltips(parsed: Parsed) -> list[str]:
    """Return the tooltips of all points, of the wide and of the narrow charts."""
    return parsed.texts_in("title")[1:]


def test_page_of_a_run_has_all_charts_and_its_outcome(make_run: MakeRun) -> None:
    folder = make_run(totals=summary())
    html = html_of(folder, drawn=CHARTS)
    parsed = Parsed(html)
    assert charts(parsed) == CHARTS
    assert "mine, recipe indexed; the run reached its target accuracy; 40.00 s, 640 samples." in parsed.texts_in("p")
    facts = dict(zip(parsed.texts_in("dt"), parsed.texts_in("dd"), strict=True))
    assert facts["time"] == "40.00 s" and facts["precision"] == "auto: bf16" and facts["learning rate"] == "0.0015"
    texts = tooltips(parsed)
    assert texts.count("run_0, 640 samples\naccuracy 0.7300") == 1
    assert "run_0, 16 samples\nmasked-LM loss 5.99" in texts
    assert "run_0, forward\n20.00 ms per step, 25.0%" in texts
    assert "run_0, 100% of steps\nmax/mean at most 1.1000" in texts
    assert html == html_of(folder, drawn=CHARTS), "the same runs give the same page"


def test_several_runs_are_drawn_with_their_mean(make_run: MakeRun) -> None:
    make_run(0, totals=summary(seconds=40.0))
    metrics = [*(step(one) for one in range(1, 61)), evaluation(320, 0.2), evaluation(640, 0.6), evaluation(960, 0.8)]
    slower = summary(seconds=50.0, phases_ms=PHASES | {"forward": 60.0})
    make_run(1, metrics=metrics, totals=slower, settings={**SETTINGS, "seed": 8})
    folder = make_run(2, metrics=metrics, settings={**SETTINGS, "seed": 9}).parent
    parsed = Parsed(html_of(folder, drawn={"Masked-LM accuracy", "Masked-LM loss", "Phases of a step"}))
    texts = tooltips(parsed)
    assert "run_1, 960 samples\naccuracy 0.8000" in texts and "run_0, 320 samples\naccuracy 0.4000" in texts
    assert "mean of 3 runs, 320 samples\naccuracy 0.2667, sd 0.1155" in texts
    assert not any("mean of" in one and "runs, 960 samples" in one for one in texts), "run_0 had ended"
    assert "run_0, forward\n20.00 ms per step, 25.0%" in texts and "run_1, forward\n60.00 ms per step, 50.0%" in texts
    assert "45.00 ± 7.07 s" in parsed.texts_in("dd")
    assert any(
        "All runs have the same schedule; run_1, which trained longest" in caption
        for caption in parsed.texts_in("figcaption")
    )
    assert {"run_0", "run_1"} <= set(parsed.texts_in("th"))


def test_learning_rates_of_different_schedules_are_all_drawn(make_run: MakeRun) -> None:
    make_run(0)
    optimizer = {"algorithm": "adamw", "learning_rate": 0.002}
    texts = tooltips(Parsed(html_of(make_run(1, settings={**SETTINGS, "optimizer": optimizer}).parent)))
    assert {one[:5] for one in texts if "learning rate" in one} == {"run_0", "run_1"}


def test_run_without_a_target_is_not_highlighted(make_run: MakeRun) -> None:
    make_run(0, totals=summary())
    make_run(1, totals=summary(reached_target=False), settings={**SETTINGS, "target_accuracy": None})
    folder = make_run(2, totals=summary(reached_target=False)).parent
    assert [one.get("class") for one in Parsed(html_of(folder)).all("tr")][1:4] == [None, None, "marked"]


def test_tooltips_show_a_spike_among_many_steps(make_run: MakeRun) -> None:
    metrics = [step(one, masked_lm_loss=5000.0 if one == 1501 else 5.0) for one in range(1, 3_001)]
    texts = [one for one in tooltips(Parsed(html_of(make_run(metrics=metrics)))) if "masked-LM loss" in one]
    assert all("mean of 2" in one or "mean of 3" in one for one in texts), "mean of several steps per point"
    parsed = Parsed(html_of(make_run(1, metrics=[step(1), step(2, masked_lm_loss=5000.0), step(3)])))
    assert "run_1, 32 samples\nmasked-LM loss 5,000" in tooltips(parsed)


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
    parsed = Parsed(html_of(first, second, drawn={"Phases of a step"}))
    named = parsed.texts_in("text")
    assert named.count("indexed") > 4 and named.count("indexed, run_0") == 2, "a legend names sets, a bar its run"
    assert "2 sets of runs" in parsed.texts_in("h1") and "3 runs: 3 succeeded." in parsed.texts_in("p")
    assert {"indexed", "padded"} <= set(parsed.texts_in("th"))


def test_throughput_chart_needs_a_log(make_run: MakeRun) -> None:
    folder = make_run(totals=summary(), result__partial__txt=log())
    parsed = Parsed(html_of(folder))
    assert charts(parsed) == CHARTS | {"Throughput over the run"}
    assert "run_0, 640 samples\n80.0 sequences/s" in tooltips(parsed)


def test_single_rank_has_no_balance_chart(make_run: MakeRun) -> None:
    metrics = [step(one, max_over_mean_tokens=1.0) for one in range(1, 10)]
    parsed = Parsed(html_of(make_run(metrics=metrics, totals=summary())))
    assert charts(parsed) == CHARTS - {"Distribution of the balance", "Balance over the run", "Masked-LM accuracy"}
    assert "All ranks had the same number of tokens in every step, as with one rank." in parsed.texts_in("p")


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
    parsed = Parsed(html_of(make_run(**files)))
    assert charts(parsed) == CHARTS - absent


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
    drawn = {"Masked-LM loss", "Learning rate", "Phases of a step"}  # which has log and linear axes, and bars
    html = html_of(make_run(metrics=metrics, totals=totals), drawn=drawn)
    assert {"Masked-LM loss", "Gradient norm", "Phases of a step"} <= charts(Parsed(html))


def test_page_of_many_runs_is_bounded(make_run: MakeRun) -> None:
    metrics = lines([step(one) for one in range(1, 601)])
    folders = [make_run(number, metrics=metrics, totals=summary()) for number in range(10)]
    html = html_of(folders[0].parent, drawn={"Masked-LM loss"})
    assert len(html) < 400_000, "with one of nine charts drawn"


def test_page_of_a_run_with_thousands_of_evaluations_is_bounded(make_run: MakeRun) -> None:
    evaluations = [evaluation(16 * one, 0.9 if one == 1_234 else 0.1) for one in range(1, 5_001)]
    html = html_of(make_run(metrics=[step(1), *evaluations]))
    assert "run_0, 19,744 samples\naccuracy 0.9000" in tooltips(Parsed(html))
    assert "The last 500 of 5,000." in html and len(html) < 150_000


def test_number_of_runs_in_charts_is_limited(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podium.report.page.MAX_RUNS_IN_CHART", 2)
    folder = [make_run(number, totals=summary()) for number in range(3)][-1].parent
    parsed = Parsed(html_of(folder))
    assert "Charts show the first 2 of 3 runs; tables have all of them." in parsed.texts_in("li")
    assert not any("run_2" in one for one in tooltips(parsed)) and "run_2" in parsed.texts_in("th")


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
    parsed = Parsed(html_of(folder, drawn={"Masked-LM loss", "Phases of a step"}))
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
