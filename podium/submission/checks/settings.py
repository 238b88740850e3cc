"""What a log says of its settings: who submits, seeds, hyper-parameters; and what in it contradicts itself."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from benchmarks.text import quoted
from podium.reading.run_log import RunLog, as_number
from podium.submission.checks.subjects import CheckedRun, Findings
from podium.submission.rulesets import Ruleset

DIVISIONS = ("closed", "open")
PLACEHOLDER = "PLACEHOLDER"
STATUS_OF_LOG = {
    "onprem": ("available on-premise", "onprem", "available", "available on-prem", "on-premise"),
    "cloud": ("available cloud", "cloud", "available"),
    "preview": ("preview",),
    "research": ("research, development, or internal (rdi)", "research", "rdi"),
}
"""submission_status → what a system's description then says, in the spellings of all rounds."""
RANGES: Mapping[str, tuple[str, Callable[[float], bool]]] = MappingProxyType(
    {
        "global_batch_size": ("a whole number from 1", lambda x: x >= 1 and x == int(x)),
        "gradient_accumulation_steps": ("a whole number from 1", lambda x: x >= 1 and x == int(x)),
        "opt_base_learning_rate": ("above 0", lambda x: x > 0),
        "opt_learning_rate_training_steps": ("0 or more", lambda x: x >= 0),
        "opt_learning_rate_warmup_steps": ("0 or more", lambda x: x >= 0),
        "num_warmup_steps": ("0 or more", lambda x: x >= 0),
        "opt_lamb_beta_1": ("from 0 to below 1", lambda x: 0 <= x < 1),
        "opt_lamb_beta_2": ("from 0 to below 1", lambda x: 0 <= x < 1),
        "opt_epsilon": ("above 0", lambda x: x > 0),
        "opt_lamb_epsilon": ("above 0", lambda x: x > 0),
        "opt_lamb_weight_decay_rate": ("0 or more", lambda x: x >= 0),
    }
)
TWINS = (("opt_learning_rate_warmup_steps", "num_warmup_steps"), ("opt_epsilon", "opt_lamb_epsilon"))
"""Keys of different rounds for one thing."""


def _division(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """A closed package's log that says open was held to the open rules alone; the other way, to the harder ones."""
    event = run.log.first("submission_division")
    found, described = run.log.text("submission_division"), (run.system or {}).get("division")
    if event is None:
        yield run.error("division", "there is no submission_division; a log says closed or open")
    elif found not in DIVISIONS:
        yield run.error(
            "division",
            f"submission_division is {quoted(event.value)}; allowed are closed and open, so spelled",
            event,
        )
    elif described in DIVISIONS and found != described:
        message = f"submission_division is {found}, but the system's description says {described}"
        if described == "closed":
            yield run.error("division_differs", f"{message}; the log is held to the open rules", event)
        else:
            yield run.warning("division_differs", message, event)


def _names(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """submission_benchmark, _org, _platform, _status: that they are said, and agree with the system's description."""
    log, system = run.log, run.system or {}
    if log.text("submission_benchmark") != "bert":
        event = log.first("submission_benchmark")
        found = quoted(event.value) if event is not None else "missing"
        yield run.error("benchmark", f"submission_benchmark is {found}; here it is bert", event)
    for key, rule, required in (
        ("submission_org", "org", ruleset.log_names),
        ("submission_platform", "platform", ruleset.log_names),
        ("submission_status", "log_status", ruleset.log_status),
    ):
        event = log.first(key)
        if event is None:
            if required:
                yield run.error(rule, f"there is no {key}; ruleset {ruleset.name} wants one")
        elif not isinstance(event.value, str) or not event.value.strip():
            yield run.error(rule, f"{key} is {quoted(event.value)}; name it", event)
        elif PLACEHOLDER in event.value:
            yield run.warning(rule, f"{key} is {quoted(event.value)}: a placeholder was left; name it", event)
    org, submitter = log.text("submission_org"), system.get("submitter")
    if org and isinstance(submitter, str) and PLACEHOLDER not in org and org.casefold() != submitter.casefold():
        message = f"submission_org is {quoted(org)}, but the system's submitter is {quoted(submitter)}"
        yield run.warning("org_differs", message, log.first("submission_org"))
    status, described = log.text("submission_status"), system.get("status")
    if status is not None and status not in STATUS_OF_LOG:
        allowed = ", ".join(STATUS_OF_LOG)
        message = f"submission_status is {quoted(status)}; allowed are {allowed}"
        yield run.error("log_status", message, log.first("submission_status"))
    elif status is not None and isinstance(described, str) and described.casefold() not in STATUS_OF_LOG[status]:
        message = f"submission_status is {status}, but the system's description says {quoted(described)}"
        yield run.warning("status_differs", message, log.first("submission_status"))


def _seeds(run: CheckedRun, ruleset: Ruleset) -> Findings:
    events = run.log.all("seed")
    make = run.error if ruleset.seeds_checked else run.warning
    if not events:
        yield make("seed_missing", "no seed is logged; every run logs the one that it used")
    for event in events:
        number = as_number(event.value)
        if number is None or number != int(number):
            yield make("seed_missing", f"the seed {quoted(event.value)} is no integer", event)


def _twice(run: CheckedRun, ruleset: Ruleset) -> Findings:
    """Settings that are logged more than once, with different values; ranks may well say the same thing."""
    for key, events in run.log.by_key.items():
        if key.startswith(("submission_", "opt_")) or key in RANGES or key in ("train_samples", "eval_samples"):
            other = next((event for event in events if event.value != events[0].value), None)
            if other is not None:
                yield run.error(
                    "logged_twice",
                    f"{key} is {quoted(other.value)} here and {quoted(events[0].value)} in line {events[0].line}; a "
                    f"log says one thing",
                    other,
                )


def _ranges(run: CheckedRun, ruleset: Ruleset) -> Findings:
    for key, (allowed, is_allowed) in RANGES.items():
        event = run.log.first(key)
        if event is not None:
            number = as_number(event.value)
            if number is None or not is_allowed(number):
                yield run.error("setting", f"{key} is {quoted(event.value)}; it is {allowed}", event)


def _weight_decay(run: CheckedRun, ruleset: Ruleset) -> Findings:
    event = run.log.first("opt_lamb_weight_decay_rate")
    if event is not None and as_number(event.value) == 0:
        yield run.warning(
            "weight_decay_zero",
            "opt_lamb_weight_decay_rate is 0: many logs tell an optimizer's default and not the value that was used; "
            "log what the parameter groups hold",
            event,
        )


def _contradictions(run: CheckedRun, ruleset: Ruleset) -> Findings:
    log = run.log
    for one, other in TWINS:
        a, b = log.number(one), log.number(other)
        if a is not None and b is not None and a != b:
            message = f"{other} is {b:g}, but {one} is {a:g}; both name one thing"
            yield run.warning("contradiction", message, log.first(other))
    batch, accumulated = log.number("global_batch_size"), log.number("gradient_accumulation_steps")
    if batch and accumulated and batch % accumulated:
        message = f"global_batch_size {batch:g} is no multiple of gradient_accumulation_steps {accumulated:g}"
        yield run.warning("contradiction", message, log.first("gradient_accumulation_steps"))
    warmup, decay = log.number("opt_learning_rate_warmup_steps"), log.number("opt_learning_rate_training_steps")
    if warmup and decay and warmup > decay:
        message = f"{warmup:g} warm-up steps are more than the {decay:g} of the whole schedule"
        yield run.warning("contradiction", message, log.first("opt_learning_rate_warmup_steps"))
    if decay == 0:
        message = "opt_learning_rate_training_steps is 0; log the steps over which the learning rate falls"
        yield run.warning("contradiction", message, log.first("opt_learning_rate_training_steps"))
    yield from _learning_rate_end(run, log, batch, decay)
    names = [event.value for event in log.all("opt_name") if isinstance(event.value, str)]
    if run.closed and any(name.casefold() != "lamb" for name in names):
        message = f"opt_name is {quoted(names[0])}; in the closed division it is lamb"
        yield run.error("optimizer", message, log.first("opt_name"))


def _learning_rate_end(run: CheckedRun, log: RunLog, batch: float | None, decay: float | None) -> Findings:
    """The learning rate falls to its end value by the last step of the schedule; training beyond that is odd."""
    samples = log.samples
    if batch and decay and samples and samples / batch > decay * 1.001 and not log.number("opt_end_learning_rate"):
        yield run.warning(
            "contradiction",
            f"the run takes {samples / batch:,.0f} steps, but the learning rate is 0 from step {decay:,.0f} on; see "
            f"whether opt_learning_rate_training_steps is the value used",
            log.first("opt_learning_rate_training_steps"),
        )


SETTINGS: Mapping[str, Callable[[CheckedRun, Ruleset], Findings]] = MappingProxyType(
    {
        "division": _division,
        "names": _names,
        "seeds": _seeds,
        "twice": _twice,
        "ranges": _ranges,
        "weight_decay": _weight_decay,
        "contradictions": _contradictions,
    }
)
