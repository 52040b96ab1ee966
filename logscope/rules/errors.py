"""Rules about exceptions: which one was first, and what the sizes of a size error mean.

This module is responsible for E101 and E102 as rules, and for processes that fell silent while others went on. How
errors are grouped, relayed ones put under their origin and sizes read is the errors question's
(:mod:`logscope.queries.failures`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from logscope.model import Place
from logscope.queries.clock import Clock, writer_label
from logscope.queries.failures import Failures, first_error, size_error
from logscope.rules.registry import Checked, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logscope.model import Finding
    from logscope.rules.evidence import Life, View

_ERRORS = (
    "traceback", "matmul_mismatch", "weight_shape_mismatch", "size_mismatch", "watchdog_timeout", "collective_timeout",
    "health_check_failed", "sigquit", "child_crashed", "capture_plan", "fc", "aux_concat",
)  # fmt: skip
_MOST = 2000
# A process that prints this long nothing, and so many of its usual distances, is silent; lines that are looked at.
_SILENT, _USUAL, _LATEST = 60.0, 5, 256


class Heard(NamedTuple):
    """When a process was last heard of: printed time and line; the time and number of the first ones that were kept."""

    time: str
    line: int
    first: str
    number: int

    def __add__(self, other: Heard) -> Heard:  # type: ignore[override]
        """Return both as one."""
        return Heard(other.time, other.line, self.first, self.number + other.number)


class Last(NamedTuple):
    """The last line with a time."""

    time: str
    line: int

    def __add__(self, other: Last) -> Last:  # type: ignore[override]
        """Return the later one."""
        return other


@rule("E101", "first-error", "error", group="failures", needs="records")
def first_of_errors(view: View) -> dict[str, Any]:
    """The first error of a server life and its process, not the ones that only relay it."""
    return _kept(view)


def _kept(view: View) -> dict[str, Any]:
    """Return what both rules keep: errors, what was joined, and when each process was last heard of."""
    if view.failures is not None:
        return view.failures
    part: dict[str, Any] = {"looked": view.size + view.server.height, "events": list(view.lines(*_ERRORS))[:_MOST]}
    joins = view.taken(view.join)
    rows = np.flatnonzero((joins["width"] > 0) & view.target)
    for width, at in zip(*np.unique(joins["width"][rows], return_index=True), strict=True):
        part.setdefault("widths", {})[int(width)] = _Place(view.file, int(joins["line"][rows[at]]))
    part["heard"] = _heard(view)
    timed = view.server.filter(pl.col("time").is_not_null())
    if timed.height:
        part["end"] = Last(timed["time"][-1], timed["line"][-1])
    view.failures = part
    return part


class _Place(NamedTuple):
    file: str
    line: int

    def __add__(self, _other: _Place) -> _Place:  # type: ignore[override]
        return self


def _heard(view: View) -> dict[str, Heard]:
    """Return when each process last printed statistics."""
    table = view.server.filter(pl.col("event").is_in(["decode_stats", "prefill_stats"])).tail(_LATEST)
    found: dict[str, Heard] = {}
    for number, line in table.select("prefix", "line").iter_rows():
        prefix = view.tables.prefixes[number]
        if prefix.time is None:
            continue
        who = writer_label(prefix)
        before = found.get(who)
        found[who] = Heard(
            prefix.time, line, before.first if before else prefix.time, (before.number if before else 0) + 1
        )
    return found


def silent(part: dict[str, Any]) -> list[str]:
    """Return the processes that the log goes on without, in sentences."""
    end: Last | None = part.get("end")
    said = []
    for who, heard in part["heard"].items():
        clock = Clock()
        first, last = clock.read(heard.first, 0), clock.read(heard.time, heard.line)
        now = clock.read(end.time, end.line) if end is not None else None
        if first is None or last is None or now is None or len({first.kind, last.kind, now.kind}) > 1:
            continue
        usual = (last.seconds - first.seconds) / max(heard.number - 1, 1)
        quiet = now.seconds - last.seconds
        if quiet > max(_SILENT, _USUAL * usual):
            said.append(
                f"{who or 'the server'} printed nothing behind line {heard.line:,} ({heard.time}), while the log goes"
                f" on for {quiet:,.0f} s"
            )
    return said


def _failures(part: dict[str, Any], life: Life) -> Failures:
    """Return what the errors question makes of the life's events."""
    found: Failures | None = life.cache.get("failures")
    if found is None:
        found = life.cache["failures"] = Failures()
        found.see(life.segment)
        (known,) = found.lives.values()
        place = life.fact("first_hidden")
        if life.hidden is not None:
            known.hidden, known.hidden_from = life.hidden, f"the width of the hidden capture at {_at(place)}"
        known.delivered.update({width: _at(place) for width, place in part.get("widths", {}).items()})
        plan = life.fact("plan")
        if plan is not None:
            known.plan = (plan[1], plan[0].fields)
        for event in part["events"]:
            found.see(event)
    return found


def _at(place: Any) -> Place:
    return Place(*place)


@first_of_errors.answer
def _(part: dict[str, Any], life: Life) -> Iterator[Finding]:
    for known in _failures(part, life).lives.values():
        for group in list(known.groups.values())[:1]:
            found = first_error(group, known.plan)
            help_ = "`logscope errors` shows what the process did before, and what only followed"
            yield replace(found, message=_sentence(found.message), help=found.help or help_)


@rule("E102", "matmul", "error", group="failures", needs="records")
def size_errors(view: View) -> dict[str, Any]:
    """A size error, both sides named as k x hidden, rows told apart from states."""
    return _kept(view)


@size_errors.answer
def _(part: dict[str, Any], life: Life) -> Iterator[Finding]:
    for group in _failures(part, life).groups():
        if group.reading is not None:
            found = size_error(group, group.reading)
            # The sizes are the message; how the unit is known, and what else it could be, is for who verifies.
            what, *how = found.message.split("; ")
            means = f"; {how.pop(0)}" if how else ""
            by = f"In {group.first.process}: " if group.first.process else ""
            yield replace(
                found,
                message=_sentence(f"{by}{what}{means}"),
                evidence="; ".join([*how, *([found.evidence] if found.evidence else [])]),
                help="compare what the target captures with what the draft takes (S101, H103, `logscope captures`)",
            )


for _rule in (first_of_errors, size_errors):
    _rule.checked(lambda part, _life: Checked(part["looked"], "record"))


def _sentence(text: str) -> str:
    """Return a text as one sentence: a capital first, a full stop last."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
