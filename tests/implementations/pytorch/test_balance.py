"""What is said of a strategy is what dealing out samples by it gives."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.sizes import LARGE
from benchmarks.errors import UsageError
from implementations.pytorch import balance
from implementations.pytorch.balance import balance_of
from implementations.pytorch.data.balancing import STRATEGIES, Deal

PAIR_COST, _ = LARGE.relative_costs(30_522)


def two_lengths(short: int, long: int) -> np.ndarray:
    """As many samples of the one as of the other length, of at most `long` tokens."""
    histogram = np.zeros(long + 1)
    histogram[[short, long]] = 1
    return histogram


def test_equal_samples_are_balanced_and_padding_is_counted() -> None:
    histogram = np.zeros(513)
    histogram[128] = 7
    found = balance_of("random", histogram, Deal(4, 4, PAIR_COST), 8, steps=3)
    assert found.max_over_mean_tokens == found.max_over_mean_cost_p99 == 1
    assert found.padding_share == 0
    padded = balance_of("padded", histogram, Deal(4, 4, PAIR_COST), 8, steps=3)
    assert padded.padding_share == 0.75
    assert padded.max_over_mean_tokens == 1


def test_one_sample_a_rank_of_two_lengths_can_be_worked_out() -> None:
    """With ranks of one sample each, the busiest has the longest there is and the mean rank the mean of both."""
    found = balance_of("random", two_lengths(100, 300), Deal(512, 8, 0.001), 1, steps=20)
    assert found.max_over_mean_tokens == pytest.approx(300 / 200, rel=0.03)
    cost = (300 + 90, 100 + 10)
    assert found.max_over_mean_cost == pytest.approx(cost[0] / (sum(cost) / 2), rel=0.03)
    assert found.max_over_mean_cost < found.max_over_mean_cost_p99 < 1.1 * found.max_over_mean_cost


def test_micro_batches_are_added_up_by_rank() -> None:
    once = balance_of("random", wikipedia_histogram(), Deal(4, 4, PAIR_COST), 8, steps=5)
    twice = balance_of("random", wikipedia_histogram(), Deal(4, 4, PAIR_COST), 8, accumulation_steps=2, steps=5)
    assert once.max_over_mean_tokens == pytest.approx(twice.max_over_mean_tokens)


def test_packed_rows_are_equal_and_nearly_full() -> None:
    found = balance_of("packed", wikipedia_histogram(), Deal(8, 8, PAIR_COST), 56, steps=3)
    assert found.max_over_mean_tokens == 1
    assert 0 < found.padding_share < 0.03


def test_the_project_s_own_is_the_best_and_sends_nothing() -> None:
    found = {
        name: balance_of(name, wikipedia_histogram(), Deal(64, 8, PAIR_COST), 16, steps=5)
        for name in ("random", "exchanged", "presorted", "indexed")
    }
    by_cost = sorted(found, key=lambda name: found[name].max_over_mean_cost)
    assert by_cost == ["indexed", "presorted", "exchanged", "random"] or by_cost[0] == "indexed"
    assert found["indexed"].max_over_mean_cost < 1.005
    assert 1 <= found["indexed"].least_cost <= found["indexed"].max_over_mean_cost
    assert found["indexed"].bytes_per_step == 0
    assert found["exchanged"].bytes_per_step > found["presorted"].bytes_per_step > 0


TINY = "a file of a millionth of a sample"


@pytest.fixture(autouse=True)
def tiny_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(TINY).write_text("[0, 0, 1e-6]")


def run(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["balance", *words])
    code = balance.main()
    out, err = capsys.readouterr()
    return code, out, err


def test_it_prints_every_strategy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["--ranks", "8", "--local-batch", "16", "--steps", "2"], monkeypatch, capsys)
    found = json.loads(out)
    assert code == 0
    assert list(found["strategies"]) == list(STRATEGIES)
    assert found["pair_cost"] == pytest.approx(PAIR_COST)
    for row in found["strategies"].values():
        assert row["max_over_mean_tokens"] >= 1
        assert row["max_over_mean_cost_p99"] >= 1
        assert 0 <= row["padding_share"] < 1
        assert row["milliseconds"] > 0


def test_packing_is_what_the_packers_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """40 sequences of 30 tokens and 40 of 34 fill rows of 64, the longest that there is, in pairs."""
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps([0] * 29 + [40, 0, 0, 0, 40] + [0] * 29 + [1]))
    words = ["--ranks", "1", "--local-batch", "4", "--lengths", str(path), "--strategies", "random", "--packing"]
    code, out, _ = run([*words, "--steps", "1"], monkeypatch, capsys)
    rows = json.loads(out)["packing"]
    assert code == 0
    assert [(row["method"], row["depth"]) for row in rows][:3] == [
        ("least squares", 3),
        ("shortest pack first", 2),
        ("shortest pack first", 3),
    ]
    assert len(rows) == 13
    assert all(row["efficiency"] == 1 for row in rows)
    assert rows[0]["sequences_per_row"] == pytest.approx(81 / 41)


def test_what_is_impossible_is_told_beside_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(["--ranks", "8", "--local-batch", "2", "--steps", "1"], monkeypatch, capsys)
    found = json.loads(out)
    assert code == 0
    assert "local batches of 2" in found["impossible"]["stratified"]
    assert found["strategies"].keys() | found["impossible"].keys() == STRATEGIES.keys()


def test_the_lengths_are_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps([0, 0, *[0] * 61, 1, *[0] * 63, 1]))  # 64 and 128 tokens
    words = ["--ranks", "2", "--local-batch", "400", "--lengths", str(path), "--strategies", "padded", "--steps", "2"]
    code, out, _ = run(words, monkeypatch, capsys)
    assert code == 0
    assert json.loads(out)["strategies"]["padded"]["padding_share"] == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--ranks", "0", "--local-batch", "4"], "--ranks: found 0, allowed is 1 or more"),
        (["--ranks", "4", "--local-batch", "4", "--steps", "0"], "--steps: found 0"),
        (["--ranks", "4", "--local-batch", "4", "--ranks-per-node", "3"], "--ranks-per-node: found 3"),
        (["--ranks", "4", "--local-batch", "4", "--accumulation-steps", "3"], "--accumulation-steps: found 3"),
        (["--ranks", "4096", "--local-batch", "4096"], "allowed are up to 4,194,304 samples"),
        (["--ranks", "4", "--local-batch", "4", "--strategies", "best"], "--strategy: found best, allowed are all, "),
        (["--ranks", "4", "--local-batch", "4", "--lengths", "/no/such"], "--lengths: /no/such cannot be read"),
        (["--ranks", "4", "--local-batch", "2", "--strategies", "stratified"], "local batches of 2"),
        (["--ranks", "4", "--local-batch", "2", "--steps", "1", "--lengths", TINY, "--packing"], "half a sample"),
    ],
)
def test_what_cannot_be_dealt_out_is_a_sentence(
    words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(words, monkeypatch, capsys)
    assert (code, out) == (UsageError.exit_code, "")
    assert sentence in err
    assert len(err.strip().splitlines()) == 1
