"""Files of prices: what they may say, and what is refused."""

from pathlib import Path

import pytest

from benchmarks.bert.accelerators import accelerator_named
from benchmarks.errors import UsageError
from podium.comparison.cost.prices import Entry, Prices, plain, read_prices
from podium.config.loading import ROOT
from tests.podium.comparison.conftest import make_result

PLAIN = "currency: USD\nprices:\n  - {per: node-hour, price: 2}\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "prices.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(tmp_path: Path, text: str) -> str:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as refused:
        read_prices(path)
    words = str(refused.value)
    assert all(line.startswith(str(path)) for line in words.splitlines() if not line.startswith("and "))
    return words.replace(f"{path}: ", "")


def test_the_example_says_that_it_is_invented_and_is_read() -> None:
    example = ROOT / "docs" / "prices.yaml"
    assert "These prices are invented" in example.read_text(encoding="utf-8")
    prices = read_prices(example)
    assert len(prices.prices) == 4 and prices.prices[0].price == 27.2 and prices.billing_seconds == 1
    assert plain(prices)["prices"][3] == {"per": "system-hour", "price": 0.02, "system": "laptop"}


@pytest.mark.parametrize(
    ("price", "words"),
    [
        ("-1", "found '-1'; allowed: greater than 0"),
        ("0", "found '0'; allowed: greater than 0"),
        (".nan", "found '.nan'"),
        ("nan", "found 'nan'; allowed: a finite number"),
        ("inf", "found 'inf'; allowed: a finite number"),
        ("1e999", "found '1e999'; allowed: a finite number"),
        ("1e10", "found '1e10'; allowed: less than or equal to 1000000000"),
        ("2:50", "found '2:50'; allowed: a valid number"),
        ("0x10", "found '0x10'; allowed: a valid number"),
        ("2,50", "found '2,50'"),
        ("[2]", "found ['2']; allowed: a valid number"),
        ("{a: 2}", "allowed: a valid number"),
        ("true", "found 'true'; allowed: a valid number"),
        ("", "found ''; allowed: a valid number"),
        ("9" * 5000, "prices.0.price"),
    ],
)
def test_prices_that_are_none(tmp_path: Path, price: str, words: str) -> None:
    block = f"currency: USD\nprices:\n  - per: node-hour\n    price: {price}\n"
    found = refusal(tmp_path, block)
    assert found.startswith("prices.0.price: found ") and words in found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("currency: USD\n", "prices: is missing; add it"),
        (PLAIN.replace("price: 2", "price: 2, prize: 3"), "prices.0.prize: there is no such key (did you mean price?)"),
        (PLAIN.replace("node-hour", "node-day"), "prices.0.per: found 'node-day'; allowed is 'accelerator-hour'"),
        (PLAIN + "currency: EUR\n", "the key 'currency' is given twice"),
        (PLAIN.replace("price: 2", "price: 2, price: 3"), "the key 'price' is given twice"),
        (PLAIN + "minimum_minutes: -1\n", "minimum_minutes: found '-1'"),
        (PLAIN + "billing_seconds: 0\n", "billing_seconds: found '0'"),
        (PLAIN + "initialisation: maybe\n", "initialisation: found 'maybe'"),
        (PLAIN.replace("USD", '"\\e[2J"'), "currency: found '\\x1b[2J'"),
        (PLAIN.replace("USD", "=SUM(A1)"), "currency: found '=SUM(A1)'"),
        ("currency: USD\nprices: []\n", "prices: found 0 entries; allowed are 1 to 1,000"),
        ("currency: USD\nprices: 3\n", "prices: found '3'"),
        ("currency: USD\nprices: [3]\n", "prices.0: found '3'"),
        ("- 1\n", "holds no keys"),
        ("", "holds no keys"),
        ("a: !!python/object/apply:os.system [x]\n", "there is no such key"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "aliases (*name) are not used here"),
        ("a: " + "[" * 100_000, "is not valid YAML here"),
        (PLAIN.replace("per:", f"system: {'x' * 300}, per:"), "prices.0.system: found 'xxx"),
        (PLAIN + "#" * (1 << 20), "is larger than 1,048,576 bytes"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, words: str) -> None:
    assert words in refusal(tmp_path, text)


def test_no_file_and_no_text(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            read_prices(path)
    (tmp_path / "latin.yaml").write_bytes(b"currency: \xff\n")
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        read_prices(tmp_path / "latin.yaml")
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(UsageError, match="is larger than"):
        read_prices(huge)


def test_many_faults_are_not_all_told(tmp_path: Path) -> None:
    text = "currency: USD\nprices:\n" + "  - {per: node-hour, price: -1}\n" * 50
    assert refusal(tmp_path, text).endswith("\nand 40 more of the kind")
    assert "prices: found 1,050 entries" in refusal(
        tmp_path, text.replace("-1", "1") + "  - {per: node-hour, price: 1}\n" * 1000
    )


@pytest.mark.parametrize(
    ("patterns", "fits"),
    [
        ({}, True),
        ({"accelerator": "nvidia a100 sxm"}, True),  # as it is usually called
        ({"accelerator": "NVIDIA A100-SXM4-80GB"}, True),  # as the description has it
        ({"accelerator": "A100"}, False),
        ({"accelerator": "*a100*"}, True),
        ({"accelerator": "nvidia.*"}, False),
        ({"system": "s?s", "submitter": "OR*", "round": "V2.0"}, True),
        ({"system": "s?s", "submitter": "OR*", "round": "v2.1"}, False),
        ({"system": "[rs]ys"}, True),
    ],
)
def test_patterns(patterns: dict[str, str], fits: bool) -> None:
    assert Entry(per="node-hour", price=1, **patterns).fits(make_result()) == fits


def test_own_results_and_results_without_an_accelerator() -> None:
    cpu = make_result(accelerators=0, accelerator=None, kind=None, round=None)
    assert Entry(per="node-hour", price=1, round="own").fits(cpu)
    assert not Entry(per="node-hour", price=1, accelerator="*").fits(cpu)


def test_patterns_take_no_time() -> None:
    slow = Entry(per="node-hour", price=1, system="*a" * 100)
    assert not slow.fits(make_result(system="a" * 150 + "b"))


def test_the_first_entry_that_fits_counts() -> None:
    kinds = ("NVIDIA H100*", "*A100*", "*")
    entries = [Entry(per="node-hour", price=n + 1, accelerator=kind) for n, kind in enumerate(kinds)]
    prices = Prices(currency="EUR", prices=tuple(entries))
    tpu = make_result(accelerator="TPU-v4", kind=accelerator_named("TPU-v4"))
    assert [prices.entry_for(one) for one in (make_result(), tpu)] == [1, 2]
    assert prices.entry_for(make_result(accelerator=None, kind=None)) is None
