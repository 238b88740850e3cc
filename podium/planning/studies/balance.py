"""Studies of who takes which samples: small local batches, other lengths, more GPUs and other datasets."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.sizes import LARGE, SEQUENCE_LENGTH, VOCABULARY_SIZE
from podium.config.load import load_system
from podium.planning.balance_report import GPUS_PER_NODE, Balance, balances_of
from podium.planning.balancing.interface import Deal
from podium.planning.prediction.constants import load_constants
from podium.planning.prediction.from_config import plan_of_config
from podium.planning.prediction.predict import network_of, step_of
from podium.planning.prediction.scaling import machine_of
from podium.planning.samplers import Sampler, StratifiedSampler, shares, stratum_bounds
from podium.planning.studies.study import Cell, Chart, Line, Study, Table, crossing

BY_NODE = "node strata"  # presorted, but with fixed counts of strata in a node's samples and not in each rank's
COMPARED = ("random", "stratified", "presorted", "exchanged", "indexed")
SYSTEM = "dgxa100_n128"  # of 1,024 A100s, as Samsung trained
BATCH = 16_384
WON = 0.05  # share of a step that counts as a win
RUN_SAMPLES = 2_932_736  # that Samsung's run of round 2.0 was trained on


def deal_of(ranks: int) -> Deal:
    """Nodes of eight, with the costs of BERT-large's matrix products."""
    per_node = GPUS_PER_NODE if ranks % GPUS_PER_NODE == 0 else ranks
    return Deal(ranks, per_node, *LARGE.relative_costs(VOCABULARY_SIZE))


def strata_of(histogram: np.ndarray) -> np.ndarray:
    """[strata] samples of a histogram in each length stratum."""
    bounds = stratum_bounds(len(histogram) - 1)
    stratum = np.searchsorted(bounds, np.arange(len(histogram)))
    sizes: np.ndarray = np.bincount(stratum, weights=histogram, minlength=len(bounds))
    return sizes


def small_batches(
    shapes: Sequence[tuple[int, int]] = ((1024, 16), (2048, 8), (4096, 4), (8192, 2), (1024, 8), (1024, 4), (1024, 2)),
    steps: int = 20,
) -> Study:
    """Balance with few samples a rank, at a constant global batch size and at a constant number of ranks."""
    histogram = wikipedia_histogram()
    found = {shape: balances_of(COMPARED, histogram, deal_of(shape[0]), shape[1], steps=steps)[0] for shape in shapes}
    for (ranks, local), balances in found.items():
        nodes, _ = balances_of(
            ("presorted",), histogram, deal_of(ranks), local, steps=steps, strata_batch=GPUS_PER_NODE * local
        )
        balances |= {BY_NODE: nodes["presorted"]} if nodes else {}
    names = (*COMPARED, BY_NODE)
    balance_rows: list[tuple[Cell, ...]] = []
    for kind in ("tokens", "cost"):
        for (ranks, local), balances in found.items():
            values = [_over(balances.get(name), kind) for name in names]
            balance_rows.append((f"{ranks:,} × {local}", kind, *[v if v is not None else "refused" for v in values]))
    share_rows, refused = _share_rows(histogram, sorted({local for _, local in shapes} | {1, 3, 5, 6, 12, 32}))
    by_rank = [shape for shape in shapes if shape[0] * shape[1] == shapes[0][0] * shapes[0][1]]
    lines = tuple(
        Line(
            name,
            tuple(float(local) for ranks, local in by_rank if name in found[ranks, local]),
            tuple(100 * (found[s][name].max_over_mean_cost - 1) for s in by_rank if name in found[s]),
        )
        for name in names
    )
    whole = {local for local in range(1, 33)} - set(refused)
    return Study(
        "small-batches",
        "What is left of local presorting where a rank has few samples?",
        (
            f"Stratified sampling, and presorting with it, refuses local batches of {_span(refused)}, where largest "
            "remainder leaves a stratum without a slot: its samples would never be drawn.",
            f"From {min(whole)} on it does not refuse but draws other shares of the strata than the data has: the "
            "second table has how often a stratum's samples come, in terms of the data's.",
            "Fixed counts for a node's samples, which presorting distributes in the node anyway, need no slots for "
            "each rank: that is the column “node strata”. It is not published, and no recipe has it.",
            *_small_findings(found),
        ),
        (
            Table(
                f"max/mean over ranks, mean of {steps} steps, Wikipedia's lengths",
                "computed with the strategies",
                ("ranks × samples", "of", *names),
                ("", "", *[".3f"] * len(names)),
                tuple(balance_rows),
            ),
            Table(
                "Slots of the strata by largest remainder, and how often a stratum's samples come",
                "computed with the strategies",
                ("samples a rank", "slots", "1–128", "129–256", "257–384", "385–512", "mean length"),
                ("d", "", *[".2f"] * 4, ".3f"),
                tuple(share_rows),
            ),
        ),
        Chart(
            "Waiting for the busiest rank by samples a rank, global batch constant",
            "samples a rank",
            "cost of the busiest rank above the mean, %",
            lines,
            log_x=True,
        ),
    )


def _over(balance: Balance | None, kind: str) -> float | None:
    if balance is None:
        return None
    return balance.max_over_mean_tokens if kind == "tokens" else balance.max_over_mean_cost


def _share_rows(histogram: np.ndarray, batches: Sequence[int]) -> tuple[list[tuple[Cell, ...]], list[int]]:
    """For each local batch its slots and by how much each stratum and the mean length are off; which are refused."""
    sizes = strata_of(histogram)
    bounds = stratum_bounds(len(histogram) - 1)
    stratum = np.searchsorted(bounds, np.arange(len(histogram)))
    lengths = np.bincount(stratum, weights=histogram * np.arange(len(histogram))) / sizes
    rows: list[tuple[Cell, ...]] = []
    for batch in batches:
        slots = shares(sizes.astype(np.int64), batch)
        drawn = slots / batch / (sizes / sizes.sum())
        mean = float(slots @ lengths / batch / (sizes @ lengths / sizes.sum())) if slots.min() else None
        rows.append((batch, "/".join(map(str, slots.tolist())) + ("" if mean else " refused"), *drawn.tolist(), mean))
    return rows, [batch for batch in range(1, 33) if not shares(sizes.astype(np.int64), batch).all()]


def _span(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _small_findings(found: Mapping[tuple[int, int], Mapping[str, Balance]]) -> list[str]:
    sentences = []
    for (ranks, local), balances in found.items():
        names = [name for name in ("presorted", BY_NODE, "exchanged") if name in balances]
        over = [balances[name].max_over_mean_cost / balances["indexed"].max_over_mean_cost - 1 for name in names]
        listed = ", ".join(f"{name} {100 * value:.1f}%" for name, value in zip(names, over, strict=True))
        sentences.append(f"{ranks:,} × {local}: longer than with a global assignment: {listed}.")
    return sentences


def histograms() -> dict[str, np.ndarray]:
    """[513] samples of 0 to 512 tokens, a million or so of each kind."""
    n, longest = np.arange(SEQUENCE_LENGTH + 1), SEQUENCE_LENGTH
    place = (n - 1) % (longest // 4) + 1  # within its stratum, from 1 on

    def normal(mean: float, deviation: float) -> np.ndarray:
        density: np.ndarray = np.exp(-0.5 * ((n - mean) / deviation) ** 2)
        return density

    logarithm = np.log(np.maximum(n, 1))
    heavy = np.exp(-0.5 * ((logarithm - np.log(96)) / 0.9) ** 2) / np.maximum(n, 1)
    heavy[longest] += heavy.sum() * 0.033  # what would be longer is cut to the longest
    few_short = np.where(n == longest, 0.94, 0.06 / 128 * (n <= 128))
    shapes = {
        "Wikipedia": wikipedia_histogram().astype(np.float64),
        "uniform": np.ones(longest + 1),
        "bimodal": normal(64, 24) + normal(448, 24),
        "heavy-tailed": heavy,
        "long, few short": few_short,
        "strata of one length": (place == 64).astype(np.float64),
        "strata of two ends": ((place <= 4) | (place > 124)).astype(np.float64),
    }
    for histogram in shapes.values():
        histogram[:3] = 0
    return {name: 1e6 * histogram / histogram.sum() for name, histogram in shapes.items()}


def spread_strata(spread: float) -> np.ndarray:
    """Samples as many in each stratum as Wikipedia has, half of them `spread`·64 below its middle and half above."""
    sizes, histogram = strata_of(wikipedia_histogram()), np.zeros(SEQUENCE_LENGTH + 1)
    for number, size in enumerate(sizes):
        middle, away = 128 * number + 64, min(63, round(64 * spread))
        histogram[max(3, middle - away)] += size / 2
        histogram[middle + away] += size / 2
    return histogram


def variation_within(histogram: np.ndarray) -> float:
    """Standard deviation of a sample's cost within its stratum, over the mean cost."""
    cost = deal_of(8).costs(np.arange(len(histogram)))
    stratum = np.searchsorted(stratum_bounds(len(histogram) - 1), np.arange(len(histogram)))
    sizes = np.bincount(stratum, weights=histogram)
    used = sizes > 0
    means = np.bincount(stratum, weights=histogram * cost)[used] / sizes[used]
    squares = np.bincount(stratum, weights=histogram * cost**2)[used]
    variance = (squares - sizes[used] * means**2).sum() / histogram.sum()
    return float(np.sqrt(max(0.0, variance)) / ((histogram @ cost) / histogram.sum()))


def lengths(ranks: int = 1024, local_batches: Sequence[int] = (16, 8, 4), points: int = 7, steps: int = 20) -> Study:
    """Where presorting breaks as lengths change, and the threshold of a 5% win for a global assignment."""
    compared = ("presorted", "exchanged", "indexed")
    deal = deal_of(ranks)
    rows: list[tuple[Cell, ...]] = []
    marked: dict[int, list[tuple[float, float]]] = {local: [] for local in local_batches}
    for name, histogram in histograms().items():
        variation = variation_within(histogram)
        for local in local_batches:
            found, impossible = balances_of(compared, histogram, deal, local, steps=steps)
            values: list[Cell] = [_over(found.get(one), "cost") for one in compared]
            won = None
            if "presorted" not in impossible:
                won = found["presorted"].max_over_mean_cost / found["indexed"].max_over_mean_cost - 1
                marked[local].append((variation, won))
            rows.append((name, local, variation, *[v if v is not None else "refused" for v in values], won))
    swept: dict[int, list[tuple[float, float]]] = {}
    for local in local_batches:
        swept[local] = []
        for spread in np.linspace(0.0, 1.0, points):
            histogram = spread_strata(float(spread))
            found, _ = balances_of(("presorted", "indexed"), histogram, deal, local, steps=steps)
            if "presorted" in found:
                won = found["presorted"].max_over_mean_cost / found["indexed"].max_over_mean_cost - 1
                swept[local].append((variation_within(histogram), won))
    thresholds = {
        local: crossing([x for x, _ in line], [y for _, y in line], WON) for local, line in swept.items() if line
    }
    threshold_rows = tuple(
        (local, threshold, None if threshold is None else threshold / np.sqrt(GPUS_PER_NODE * local))
        for local, threshold in thresholds.items()
    )
    chart_lines = [
        Line(f"{local} samples a rank", tuple(x for x, _ in line), tuple(100 * y for _, y in line))
        for local, line in swept.items()
        if line
    ] + [
        Line(f"the seven kinds, {local}", tuple(x for x, _ in line), tuple(100 * y for _, y in line), joined=False)
        for local, line in marked.items()
        if line
    ]
    return Study(
        "lengths",
        "Where does presorting break as lengths change?",
        (
            "What decides is how much the cost varies inside a stratum, since strata even out what lies between them: "
            "nodes of eight draw different samples and never exchange any.",
            *(_threshold_finding(local, thresholds) for local in local_batches),
            "It refuses sooner than it breaks: a stratum with few samples (bimodal, long with few short) gets no slot.",
            "Where strata are of nearly one length presorting wins, since it draws as many samples of each for every "
            "rank, and no assignment of equal counts makes a random batch as even.",
        ),
        (
            Table(
                f"{ranks:,} ranks: max/mean of cost by variation in strata, and what indexed wins over presorted",
                "computed with the strategies",
                ("lengths", "a rank", "variation", *compared, "won"),
                ("", "d", ".3f", ".3f", ".3f", ".3f", ".1%"),
                tuple(rows),
            ),
            Table(
                f"Variation of cost in strata from which a global assignment wins {WON:.0%}",
                "computed with the strategies",
                ("a rank", "variation", "variation / √samples of a node"),
                ("d", ".3f", ".4f"),
                threshold_rows,
            ),
        ),
        Chart(
            f"What a global assignment wins over presorting, {ranks:,} ranks",
            "standard deviation of cost within strata, over the mean cost",
            "% of a step's compute",
            tuple(chart_lines),
            limit=100 * WON,
        ),
    )


def _threshold_finding(local: int, thresholds: Mapping[int, float | None]) -> str:
    if local not in thresholds:
        return f"{local} samples a rank: presorting refuses Wikipedia's strata."
    threshold = thresholds[local]
    if threshold is None:
        return f"{local} samples a rank: a global assignment wins less than {WON:.0%} of the compute at every spread."
    return (
        f"{local} samples a rank: a global assignment wins {WON:.0%} of a step's compute where the standard deviation "
        f"of cost within strata exceeds {threshold:.2f} of the mean cost."
    )


def dataset(histogram: np.ndarray, count: int) -> np.ndarray:
    """`count` lengths uint16 at evenly spaced quantiles of a histogram, shortest first, in little memory."""
    ends = np.floor(histogram.cumsum() / histogram.sum() * count + 0.5).astype(np.int64)
    return np.repeat(np.arange(len(histogram), dtype=np.uint16), np.diff(ends, prepend=0))


def scaling(
    ranks: Sequence[int] = (8, 64, 512, 1024, 4096, 16_384),
    local_batch: int = 16,
    datasets: Sequence[int] = (100_000, 1_000_000, 16_279_552, 160_000_000),
    steps: int = 8,
) -> Study:
    """Balance and predicted step from 8 to 16,384 GPUs, and what a run draws of datasets of different sizes."""
    constants, histogram = load_constants(), wikipedia_histogram()
    plan = plan_of_config(load_system(SYSTEM), None, constants)
    balance_rows: list[tuple[Cell, ...]] = []
    step_rows: list[tuple[Cell, ...]] = []
    values: dict[str, list[float]] = {name: [] for name in COMPARED}
    for count in ranks:
        found, _ = balances_of(COMPARED, histogram, deal_of(count), local_batch, steps=steps)
        for name in COMPARED:
            values[name].append(100 * (found[name].max_over_mean_cost - 1))
        balance_rows.append((count, *[found[name].max_over_mean_cost for name in COMPARED]))
        machine = machine_of(plan.machine, count)
        step = {
            name: step_of(
                replace(plan, machine=machine, global_batch_size=count * local_batch, strategy=name),
                network_of(replace(plan, machine=machine), constants),
                constants,
            )
            for name in ("random", "presorted", "indexed")
        }
        one = step["presorted"]
        step_rows.append(
            (
                count,
                *[1000 * value for value in (one.compute, one.communication, one.optimizer)],
                *[1000 * split.seconds for split in step.values()],
                step["presorted"].seconds / step["indexed"].seconds - 1,
            )
        )
    return Study(
        "scaling",
        "What changes from 8 to 16,384 GPUs, and with the size of the dataset?",
        (
            f"With {local_batch} samples a rank the busiest rank of random samples costs {values['random'][0]:.0f}% "
            f"above the mean on {ranks[0]:,} ranks and {values['random'][-1]:.0f}% on {ranks[-1]:,}; presorted "
            f"{values['presorted'][0]:.1f} and {values['presorted'][-1]:.1f}%, indexed {values['indexed'][0]:.2f} and "
            f"{values['indexed'][-1]:.2f}%.",
            "The size of the dataset changes no balance but what an epoch consists of: strata have epochs of their "
            "own length, so that samples of one stratum come more often than those of another by the same factor at "
            "every size, and only in a small dataset do they come again at all.",
        ),
        (
            Table(
                f"max/mean of cost over ranks with {local_batch} samples each",
                "computed with the strategies",
                ("ranks", *COMPARED),
                (",d", *[".4f"] * len(COMPARED)),
                tuple(balance_rows),
            ),
            Table(
                f"A step on A100s with {local_batch} samples each, ms (parts: with presorted)",
                "predicted by the model",
                ("GPUs", "compute", "exposed", "optimizer", "random", "presorted", "indexed", "indexed wins"),
                (",d", *[".1f"] * 6, ".1%"),
                tuple(step_rows),
            ),
            _dataset_table(histogram, datasets, steps=max(2, steps // 2)),
        ),
        Chart(
            f"Waiting for the busiest rank by number of ranks, {local_batch} samples each",
            "ranks",
            "cost of the busiest rank above the mean, %",
            tuple(Line(name, tuple(map(float, ranks)), tuple(found)) for name, found in values.items()),
            log_x=True,
        ),
    )


def _dataset_table(histogram: np.ndarray, datasets: Sequence[int], steps: int) -> Table:
    """What a run of Samsung's length draws of each dataset."""
    rows: list[tuple[Cell, ...]] = []
    for size in datasets:
        pool = dataset(histogram, size)
        stratified = StratifiedSampler(pool, batch=16, seed=0, max_length=len(histogram) - 1)
        sizes = strata_of(np.bincount(pool, minlength=len(histogram)))
        epochs = RUN_SAMPLES * stratified.counts / 16 / sizes
        order = Sampler(size, 0)
        batches = min(RUN_SAMPLES // BATCH, -(-2 * size // BATCH))  # up to two epochs, in which every kind of batch is
        twice = 0
        for number in range(batches):
            first, last = number * BATCH, (number + 1) * BATCH
            if first // size != (last - 1) // size:  # a sample can come twice only where one epoch follows another
                drawn = order.samples(first, BATCH)
                twice += len(np.unique(drawn)) < len(drawn)
        balances, _ = balances_of(("presorted", "indexed"), histogram, deal_of(1024), 16, steps=steps, pool=pool)
        rows.append(
            (
                size,
                RUN_SAMPLES / size,
                float(epochs.min()),
                float(epochs.max()),
                twice / batches,
                balances["presorted"].max_over_mean_cost,
                balances["indexed"].max_over_mean_cost,
            )
        )
    return Table(
        f"A run of {RUN_SAMPLES:,} samples on 1,024 × 16: epochs of all data, the slowest and the fastest stratum; "
        "batches with a sample twice; max/mean of cost",
        "computed with the strategies",
        ("dataset", "epochs", "slowest", "fastest", "twice", "presorted", "indexed"),
        (",d", ".3f", ".3f", ".3f", ".2%", ".4f", ".4f"),
        tuple(rows),
    )
