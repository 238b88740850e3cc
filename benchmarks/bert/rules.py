"""MLPerf Training's rules for BERT that a run must follow to pass the official checkers.

The quality target, the evaluation schedule, the limits of the closed division, and the rulesets that include BERT.
"""

TARGET_ACCURACY = 0.72  # masked-LM accuracy to reach (≥), over all masked tokens of the evaluation samples

# The rulesets that one log can comply with; 5.0.0 was BERT's last.
RULESETS = ("1.1.0", "2.0.0", "2.1.0", "3.0.0", "3.1.0", "4.0.0", "4.1.0", "5.0.0")

RUNS = 10  # of a result; its score is the mean without the fastest and the slowest run
DROPPED = 1  # runs at each end that the score leaves out

CLOSED_DROPOUT = 0.1
CLOSED_EVALUATION_SAMPLES = 10_000
CLOSED_INITIAL_CHECKPOINT = "the reference's checkpoint, made with `podium data checkpoint`"
MAX_SEED = 2**31 - 1


def evaluation_interval(global_batch_size: int) -> int:
    """Samples between evaluations: 5% of those that the batch size is expected to need, rounded down to 25,000s."""
    return int(0.05 * (230.23 * global_batch_size + 3_000_000) / 25_000) * 25_000


def closed_division_violations(
    *,
    size: str,
    optimizer: str,
    dropout: float,
    target_accuracy: float | None,
    evaluation_samples: int,
    interval_samples: int,
    global_batch_size: int,
    initial_checkpoint: bool,
    phases: int = 0,
) -> list[str]:
    """One message for each rule of the closed division that this configuration breaks, in the order of the rules."""
    checks: tuple[tuple[str, str, object, object], ...] = (
        ("Model", "size", size, "large"),
        ("Optimizer", "optimizer.algorithm", optimizer, "lamb"),
        ("Hyper-parameters", "dropout", dropout, CLOSED_DROPOUT),
        ("Quality target", "target_accuracy", target_accuracy, TARGET_ACCURACY),
        ("Evaluation", "evaluation.samples", evaluation_samples, CLOSED_EVALUATION_SAMPLES),
        (
            "Evaluation frequency",
            "evaluation.interval_samples",
            interval_samples,
            evaluation_interval(global_batch_size),
        ),
        ("Data set", "phases", phases, 0),  # training continues the checkpoint with samples of one length
        (
            "Initial checkpoint",
            "initial_checkpoint",
            CLOSED_INITIAL_CHECKPOINT if initial_checkpoint else "missing",
            CLOSED_INITIAL_CHECKPOINT,
        ),
    )
    return [
        f"closed division, {rule}: {key} is {found}, allowed is {allowed}"
        for rule, key, found, allowed in checks
        if found != allowed
    ]
