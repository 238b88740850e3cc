"""Kinds of anomalies in logs, and whether they may affect a figure: a score, samples, throughput or a size.

An anomaly of a kind that affects no figure is cosmetic: every value is read as it would be without it.
"""

from typing import NamedTuple


class AnomalyKind(NamedTuple):
    """What the anomalies of one kind have in common."""

    affects_figures: bool
    lines: str  # description of several lines or logs with it
    damages: bool = False  # loses or changes an event


KINDS: dict[str, AnomalyKind] = {
    # of lines
    "crlf": AnomalyKind(False, "line(s) end in CR LF"),
    "lone_cr": AnomalyKind(False, "line(s) end in a lone CR"),
    "prefix": AnomalyKind(False, "line(s) have something before the token"),
    "keyboard": AnomalyKind(False, "line(s) have backspaces before the token, as from a keyboard"),
    "long_line": AnomalyKind(True, "line(s) are longer than 1 MiB and not read", damages=True),
    "two_events": AnomalyKind(True, "line(s) have more than one event, of which only the last is read", damages=True),
    "token": AnomalyKind(True, "line(s) have a damaged token", damages=True),
    "json": AnomalyKind(True, "line(s) cannot be read", damages=True),
    "fields": AnomalyKind(True, "line(s) are not events", damages=True),
    "event": AnomalyKind(
        True, "line(s) are events with invalid metadata, or with an invalid or missing event_type", damages=True
    ),
    "not_utf8": AnomalyKind(False, "line(s) are not UTF-8 and read as Latin-1", damages=True),
    "odd_json": AnomalyKind(True, "line(s) have numbers or duplicate keys that JSON does not allow", damages=True),
    "cut_off": AnomalyKind(True, "last line is cut off", damages=True),
    # of whole logs
    "too_long": AnomalyKind(True, "log(s) are not read to their end"),
    "empty": AnomalyKind(True, "log(s) have no event"),
    "truncated": AnomalyKind(True, "log(s) are truncated"),
    "time": AnomalyKind(True, "log(s) have times that are not plausible"),
    "clock": AnomalyKind(True, "log(s) have a clock that goes back between events that figures depend on"),
    "backwards": AnomalyKind(False, "log(s) have lines that are earlier than those before them"),
    "number": AnomalyKind(False, "log(s) have a value that is no integer where one is required, and is read anyway"),
    "no_number": AnomalyKind(True, "log(s) have a batch size or samples that are not numbers"),
    "point_in_time": AnomalyKind(False, "log(s) have an end of an interval as POINT_IN_TIME"),
    "after_target": AnomalyKind(False, "log(s) have evaluations after the target was reached"),
    "after_block": AnomalyKind(False, "log(s) have an evaluation after its block, with an earlier time"),
    "epoch_num": AnomalyKind(True, "log(s) have an epoch_num that does not count samples"),
    "accuracy": AnomalyKind(True, "log(s) have an accuracy that is not a number"),
}


def affects_figures(kind: str) -> bool:
    """Whether an anomaly of this kind may affect a figure; True for a kind that is not in the table."""
    return kind not in KINDS or KINDS[kind].affects_figures


DAMAGED = frozenset(kind for kind, one in KINDS.items() if one.damages)
