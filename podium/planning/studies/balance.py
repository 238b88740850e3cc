"""Studies of the assignment of samples to ranks: small local batches, other lengths, more GPUs, other datasets."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.bert.lengths import wikipedia_histogram
from benchmarks.bert.sizes import LARGE, SEQUENCE_LENGTH, VOCABULARY_SIZE
from podium.config.load import load_system
from podium.planning.balance_report import GPUS_PER_NODE, Balance, measure_balances
from podium.planning.balancing.interface import AssignmentSpec
from podium.planning.prediction.constants import load_constants
from podium.planning.prediction.from_config import plan_from_config
from podium.planning.prediction.predict import build_network, predict_step
from podium.planning.prediction.scaling import machine_with_gpus
from podium.planning.samplers import Sampler, StratifiedSampler, apportion, stratum_bounds
from podium.planning.studies.study import Cell, Chart, Line, Study, Table, crossing

NODE_STRATA = "node strata"  # presorted, but with strata counts fixed per node instead of per rank
COMPARED_STRATEGIES = ("random", "stratified", "presorted", "exchanged", "indexed")
SYSTEM = "dgxa100_n128"  # 1,024 A100s, as Samsung's
GLOBAL_BATCH = 16_384
WIN_THRESHOLD = 0.05  # share of a step's compute that counts as a win
RUN_SAMPLES = 2_932_736  # of Samsung's run of round 2.0


def node_assignment_spec(ranks: int) -> AssignmentSpec:
    """Return the assignment options for nodes of eight ranks, with the costs of BERT-large's matrix products."""
    per_node = GPUS_PER_NODE if ranks % GPUS_PER_NODE == 0 else ranks
    return AssignmentSpec(ranks, per_node, *LARGE.relative_costs(VOCABULARY_SIZE))


def count_per_stratum(histogram: np.ndarray) -> np.ndarray:
    """Return [strata]: the samples of a histogram in each length stratum."""
    bounds = stratum_bounds(len(histogram) - 1)
    stratum = np.searchsorted(bounds, np.arange(len(histogram)))
    sizes: np.ndarray = np.bincount(stratum, weights=histogram, minlength=len(bounds))
    return sizes


def small_batches(
    shapes: Sequence[tuple[int, int]] = ((1024, 16), (2048, 8), (4096, 4), (8192, 2), (1024, 8), (1024, 4), (1024, 2)),
    steps: int = 20,
) -> Study:
    """Study the balance with few samples per rank, at a constant global batch size and a constant number of ranks."""
    histogram = wikipedia_histogram()
    found = {
        shape: measure_balances(COMPARED_STRATEGIES, histogram, node_assignment_spec(shape[0]), shape[1], steps=steps)[
            0
        ]
        for shape in shapes
    }
    for (ranks, local), balances in found.items():
        nodes, _ = measure_balances(
            ("presorted",),
            histogram,
            node_assignment_spec(ranks),
            local,
            steps=steps,
            strata_batch=GPUS_PER_NODE * local,
        )
        balances |= {NODE_STRATA: nodes["presorted"]} if nodes else {}
    names = (*COMPARED_STRATEGIES, NODE_STRATA)
    balance_rows: list[tuple[Cell, ...]] = []
    for kind in ("tokens", "cost"):
        for (ranks, local), balances in found.items():
            values = [_max_over_mean(balances.get(name), kind) for name in names]
            balance_rows.append((f"{ranks:,} × {local}", kind, *[v if v is not None else "refused" for v in values]))
    share_rows, refused = _stratum_share_rows(histogram, sorted({local for _, local in shapes} | {1, 3, 5, 6, 12, 32}))
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
        "How well does local presorting balance if a rank has few samples?",
        (
            f"Stratified sampling, and therefore presorting, refuses local batches of {_join_numbers(refused)}: "
            "largest remainder gives one stratum no slot, so its samples would never be drawn.",
            f"From {min(whole)} on it is accepted, but draws strata in other shares than the data: the second table "
            "has the share of each stratum relative to the data.",
            "Counts fixed per node need no slots in each rank, since presorting distributes samples in the node: "
            "column “node strata”. This is not published, and no recipe has it.",
            *_small_batch_findings(found),
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
                "Slots of the strata by largest remainder, and the share of each stratum relative to the data",
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


def _max_over_mean(balance: Balance | None, kind: str) -> float | None:
    if balance is None:
        return None
    return balance.max_over_mean_tokens if kind == "tokens" else balance.max_over_mean_cost


def _stratum_share_rows(histogram: np.ndarray, batches: Sequence[int]) -> tuple[list[tuple[Cell, ...]], list[int]]:
    """Return (rows, refused local batches).

    A row has a local batch, its slots, and the shares of the strata and the mean length relative to the data.
    """
    sizes = count_per_stratum(histogram)
    bounds = stratum_bounds(len(histogram) - 1)
    stratum = np.searchsorted(bounds, np.arange(len(histogram)))
    lengths = np.bincount(stratum, weights=histogram * np.arange(len(histogram))) / sizes
    rows: list[tuple[Cell, ...]] = []
    for batch in batches:
        slots = apportion(sizes.astype(np.int64), batch)
        drawn = slots / batch / (sizes / sizes.sum())
        mean = float(slots @ lengths / batch / (sizes @ lengths / sizes.sum())) if slots.min() else None
        rows.append((batch, "/".join(map(str, slots.tolist())) + ("" if mean else " refused"), *drawn.tolist(), mean))
    return rows, [batch for batch in range(1, 33) if not apportion(sizes.astype(np.int64), batch).all()]


def _join_numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _small_batch_findings(found: Mapping[tuple[int, int], Mapping[str, Balance]]) -> list[str]:
    sentences = []
    for (ranks, local), balances in found.items():
        names = [name for name in ("presorted", NODE_STRATA, "exchanged") if name in balances]
        over = [balances[name].max_over_mean_cost / balances["indexed"].max_over_mean_cost - 1 for name in names]
        listed = ", ".join(f"{name} {100 * value:.1f}%" for name, value in zip(names, over, strict=True))
        sentences.append(f"{ranks:,} × {local}: time above that of a global assignment: {listed}.")
    return sentences


def length_histograms() -> dict[str, np.ndarray]:
    """Return length distributions by name: [513] samples of 0 to 512 tokens, a million in each."""
    n, longest = np.arange(SEQUENCE_LENGTH + 1), SEQUENCE_LENGTH
    place = (n - 1) % (longest // 4) + 1  # position within the stratum, from 1

    def normal(mean: float, deviation: float) -> np.ndarray:
        density: np.ndarray = np.exp(-0.5 * ((n - mean) / deviation) ** 2)
        return density

    logarithm = np.log(np.maximum(n, 1))
    heavy = np.exp(-0.5 * ((logarithm - np.log(96)) / 0.9) ** 2) / np.maximum(n, 1)
    heavy[longest] += heavy.sum() * 0.033  # longer texts are cut to the maximum length
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


def spread_histogram(spread: float) -> np.ndarray:
    """Return a histogram with Wikipedia's count in each stratum, at `spread`·64 tokens below and above its middle."""
    sizes, histogram = count_per_stratum(wikipedia_histogram()), np.zeros(SEQUENCE_LENGTH + 1)
    for number, size in enumerate(sizes):
        middle, away = 128 * number + 64, min(63, round(64 * spread))
        histogram[max(3, middle - away)] += size / 2
        histogram[middle + away] += size / 2
    return histogram


def cost_variation_within_strata(histogram: np.ndarray) -> float:
    """Return the standard deviation of a sample's cost within its stratum, divided by the mean cost."""
    cost = node_assignment_spec(8).costs(np.arange(len(histogram)))
    stratum = np.searchsorted(stratum_bounds(len(histogram) - 1), np.arange(len(histogram)))
    sizes = np.bincount(stratum, weights=histogram)
    used = sizes > 0
    means = np.bincount(stratum, weights=histogram * cost)[used] / sizes[used]
    squares = np.bincount(stratum, weights=histogram * cost**2)[used]
    variance = (squares - sizes[used] * means**2).sum() / histogram.sum()
    return float(np.sqrt(max(0.0, variance)) / ((histogram @ cost) / histogram.sum()))


def lengths(ranks: int = 1024, local_batches: Sequence[int] = (16, 8, 4), points: int = 7, steps: int = 20) -> Study:
    """Study presorting with other lengths, and the variation from which a global assignment wins WIN_THRESHOLD."""
    compared = ("presorted", "exchanged", "indexed")
    spec = node_assignment_spec(ranks)
    rows: list[tuple[Cell, ...]] = []
    marked: dict[int, list[tuple[float, float]]] = {local: [] for local in local_batches}
    for name, histogram in length_histograms().items():
        variation = cost_variation_within_strata(histogram)
        for local in local_batches:
            found, impossible = measure_balances(compared, histogram, spec, local, steps=steps)
            values: list[Cell] = [_max_over_mean(found.get(one), "cost") for one in compared]
            gain = None
            if "presorted" not in impossible:
                gain = found["presorted"].max_over_mean_cost / found["indexed"].max_over_mean_cost - 1
                marked[local].append((variation, gain))
            rows.append((name, local, variation, *[v if v is not None else "refused" for v in values], gain))
    swept: dict[int, list[tuple[float, float]]] = {}
    for local in local_batches:
        swept[local] = []
        for spread in np.linspace(0.0, 1.0, points):
            histogram = spread_histogram(float(spread))
            found, _ = measure_balances(("presorted", "indexed"), histogram, spec, local, steps=steps)
            if "presorted" in found:
                gain = found["presorted"].max_over_mean_cost / found["indexed"].max_over_mean_cost - 1
                swept[local].append((cost_variation_within_strata(histogram), gain))
    thresholds = {
        local: crossing([x for x, _ in line], [y for _, y in line], WIN_THRESHOLD)
        for local, line in swept.items()
        if line
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
        "With which lengths does presorting lose its balance?",
        (
            "The variation of cost inside a stratum decides, since equal counts of strata remove the variation between "
            "them: nodes of eight draw different samples and never exchange any.",
            *(_threshold_finding(local, thresholds) for local in local_batches),
            "It is refused before its balance is poor: a stratum with few samples (bimodal, long with few short) gets "
            "no slot.",
            "If the samples of a stratum have nearly one length, presorting wins: it draws the same number of each "
            "stratum for every rank, and no assignment with equal counts makes a random batch as even.",
        ),
        (
            Table(
                f"{ranks:,} ranks: max/mean of cost by variation in strata, and the gain of indexed over presorted",
                "computed with the strategies",
                ("lengths", "a rank", "variation", *compared, "gain"),
                ("", "d", ".3f", ".3f", ".3f", ".3f", ".1%"),
                tuple(rows),
            ),
            Table(
                f"Variation of cost in strata from which a global assignment wins {WIN_THRESHOLD:.0%}",
                "computed with the strategies",
                ("a rank", "variation", "variation / √samples of a node"),
                ("d", ".3f", ".4f"),
                threshold_rows,
            ),
        ),
        Chart(
            f"Gain of a global assignment over presorting, {ranks:,} ranks",
            "standard deviation of cost within strata, over the mean cost",
            "% of a step's compute",
            tuple(chart_lines),
            limit=100 * WIN_THRESHOLD,
        ),
    )


def _threshold_finding(local: int, thresholds: Mapping[int, float | None]) -> str:
    if local not in thresholds:
        return f"{local} samples a rank: presorting refuses Wikipedia's strata."
    threshold = thresholds[local]
    if threshold is None:
        return (
            f"{local} samples a rank: a global assignment wins less than {WIN_THRESHOLD:.0%} of the compute at every "
            "spread."
        )
    return (
        f"{local} samples a rank: a global assignment wins {WIN_THRESHOLD:.0%} of a step's compute where the "
        f"standard deviation of cost within strata exceeds {threshold:.2f} of the mean cost."
    )


def quantile_lengths(histogram: np.ndarray, count: int) -> np.ndarray:
    """Return uint16 [count]: lengths at evenly spaced quantiles of a histogram, shortest first.

    The values of `benchmarks.bert.lengths.quantiles`, in less memory.
    """
    # Rounding cumulative counts, not those of each length, keeps the total at `count`.
    ends = np.floor(histogram.cumsum() / histogram.sum() * count + 0.5).astype(np.int64)
    return np.repeat(np.arange(len(histogram), dtype=np.uint16), np.diff(ends, prepend=0))


def scaling(
    ranks: Sequence[int] = (8, 64, 512, 1024, 4096, 16_384),
    local_batch: int = 16,
    datasets: Sequence[int] = (100_000, 1_000_000, 16_279_552, 160_000_000),
    steps: int = 8,
) -> Study:
    """Study balance and predicted step time from 8 to 16,384 GPUs, and the epochs of datasets of different sizes."""
    constants, histogram = load_constants(), wikipedia_histogram()
    plan = plan_from_config(load_system(SYSTEM), None, constants)
    balance_rows: list[tuple[Cell, ...]] = []
    step_rows: list[tuple[Cell, ...]] = []
    values: dict[str, list[float]] = {name: [] for name in COMPARED_STRATEGIES}
    for count in ranks:
        found, _ = measure_balances(
            COMPARED_STRATEGIES, histogram, node_assignment_spec(count), local_batch, steps=steps
        )
        for name in COMPARED_STRATEGIES:
            values[name].append(100 * (found[name].max_over_mean_cost - 1))
        balance_rows.append((count, *[found[name].max_over_mean_cost for name in COMPARED_STRATEGIES]))
        machine = machine_with_gpus(plan.machine, count)
        step = {
            name: predict_step(
                replace(plan, machine=machine, global_batch_size=count * local_batch, strategy=name),
                build_network(replace(plan, machine=machine), constants),
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
            "The size of the dataset does not change the balance, only the epochs: each stratum has a different epoch "
            "length, so samples of one stratum are drawn more often than those of another by the same factor at every "
            "size, and only a small dataset is drawn more than once.",
        ),
        (
            Table(
                f"max/mean of cost over ranks with {local_batch} samples each",
                "computed with the strategies",
                ("ranks", *COMPARED_STRATEGIES),
                (",d", *[".4f"] * len(COMPARED_STRATEGIES)),
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
    """Return the epochs and the balance of a run of RUN_SAMPLES samples for each size of dataset."""
    rows: list[tuple[Cell, ...]] = []
    for size in datasets:
        pool = quantile_lengths(histogram, size)
        stratified = StratifiedSampler(pool, batch=16, seed=0, max_length=len(histogram) - 1)
        sizes = count_per_stratum(np.bincount(pool, minlength=len(histogram)))
        epochs = RUN_SAMPLES * stratified.counts / 16 / sizes
        order = Sampler(size, 0)
        batches = min(
            RUN_SAMPLES // GLOBAL_BATCH, -(-2 * size // GLOBAL_BATCH)
        )  # two epochs contain every kind of batch
        twice = 0
        for number in range(batches):
            first, last = number * GLOBAL_BATCH, (number + 1) * GLOBAL_BATCH
            if first // size != (last - 1) // size:  # only a batch that spans two epochs can repeat a sample
                drawn = order.samples(first, GLOBAL_BATCH)
                twice += len(np.unique(drawn)) < len(drawn)
        balances, _ = measure_balances(
            ("presorted", "indexed"), histogram, node_assignment_spec(1024), 16, steps=steps, pool=pool
        )
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
        "batches that repeat a sample; max/mean of cost",
        "computed with the strategies",
        ("dataset", "epochs", "slowest", "fastest", "twice", "presorted", "indexed"),
        (",d", ".3f", ".3f", ".3f", ".2%", ".4f", ".4f"),
        tuple(rows),
    )
