"""Rules about the log itself: what was not understood, what is damaged, what graphs hide, what contradicts itself.

This module is responsible for L101 to L104. It must not judge the run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from logscope.model import DEBUG_EVENTS, Place, num_aux
from logscope.queries.words import count
from logscope.rules.evidence import SERVING, VERIFY, First
from logscope.rules.registry import Checked, rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from logscope.model import Finding, Payload
    from logscope.rules.evidence import Life, View

# Reasons that are read in a batch; a log that is all damage says the same all over.
_MOST_REASONS = 1000
_DAMAGED = ("cut", "rejoined")
# Said once for all row counts: what is wrong is the print, not the pass.
_ROWS = (
    "num_aux of an aux concat is its number of rows; the states are packed in one tensor, and there are as many as its"
    " width holds hidden sizes"
)
_CHUNK = (
    "a list's print counts and loops over rows there: print aux.chunk(K, dim=-1), as `logscope grammar snippet` does"
)


@dataclass
class Lines:
    """Records that are counted: how many of how many, the first, why, and where the last record stands."""

    looked: int = 0
    number: int = 0
    first: tuple[Place, Payload] | None = None
    reasons: Counter[str] = field(default_factory=Counter)
    end: int = 0

    def __add__(self, other: Lines) -> Lines:
        """Return both as one."""
        first = min(filter(None, (self.first, other.first)), key=lambda one: one[0].line, default=None)
        reasons = self.reasons + other.reasons
        return Lines(self.looked + other.looked, self.number + other.number, first, reasons, max(self.end, other.end))

    def take(self, number: int, found: Iterable[tuple[Place, Payload]]) -> Lines:
        """Take so many records, of which these are looked at for their reasons."""
        self.number += number
        some = sorted(found, key=lambda one: one[0].line)
        self.first = self.first or (some[0] if some else None)
        self.reasons.update(payload.reason or "no reason is known" for _, payload in some)
        return self

    @property
    def why(self) -> str:
        """The most frequent reasons."""
        return "; ".join(
            f"{reason} ({times})" if times > 1 else reason for reason, times in self.reasons.most_common(3)
        )


def _looked(view: View) -> Lines:
    lines = [int(view.server["line"].max() or 0), int(view.records["line"].max(initial=0))]  # type: ignore[arg-type]
    lines.append(int(view.torn["line"].max() or 0))  # type: ignore[arg-type]
    copies = view.records["copies"]
    return Lines(int(copies.sum()) + view.server.height, end=max(lines))


def _of_server(view: View, rows: pl.DataFrame) -> list[tuple[Place, Payload]]:
    said = rows.head(_MOST_REASONS).select("line", "said").iter_rows()
    tables = view.tables
    found = ((Place(view.file, line), tables.said[number]) for line, number in said)
    return [(place, payload) for place, payload in found if not isinstance(payload, bytes)]


@rule("L101", "unparsed", "warning", group="parsing", needs="records")
def unparsed(view: View) -> Lines:
    """Records with a known anchor that no event of the grammar matched."""
    rows = view.server.filter(pl.col("kind") == "unparsed")
    return _looked(view).take(rows.height, _of_server(view, rows))


@unparsed.answer
def _(part: Lines, life: Life) -> Iterator[Finding]:
    if part.first is not None:
        place, payload = part.first
        what = "record has a known anchor and was" if part.number == 1 else "records have a known anchor and were"
        yield unparsed.finding(
            f"{part.number:,} {what} not understood.",
            place,
            actual=payload.event if payload.event not in ("", "unparsed") else None,
            evidence=part.why,
            help="`logscope grammar` says where reading stopped and suggests an event for it",
        )


@rule("L102", "damaged", "warning", group="parsing", needs="records")
def damaged(view: View) -> Lines:
    """Records that are cut, or were put together again from two lines."""
    part = _looked(view)
    rows = view.server.filter((pl.col("kind") == "event") & pl.col("intact").is_in(list(_DAMAGED)))
    found = _of_server(view, rows)
    number = rows.height
    heads = view.tables.heads
    for line, head in view.torn.select("line", "head").iter_rows():
        if heads[head].intact in _DAMAGED:
            number += 1
            found.append((Place(view.file, line), heads[head]))
    worded = Counter((view.torn["record"] - view.base).to_list())
    for place in np.flatnonzero(~view.usable).tolist():
        # Of a record that speaks damaged, the copies that say the same.
        payload = view.payload(place)
        if payload.intact in _DAMAGED:
            number += max(1, int(view.records["copies"][place]) - worded[place])
            found.append((Place(view.file, int(view.records["line"][place])), payload))
    return part.take(number, found[: 4 * _MOST_REASONS])


@damaged.answer
def _(part: Lines, life: Life) -> Iterator[Finding]:
    if part.first is None:
        return
    place, payload = part.first
    if part.number == 1 and payload.intact == "cut" and place.line >= part.end:
        yield damaged.finding(
            "The log ends inside a record. Its unfinished value enters no statistic.",
            place,
            severity="note",
            actual=f"{payload.event} (cut)",
            evidence=f"{part.why}; no record stands behind it",
            help="the log was copied while it grew, or the server was killed with text in its buffer",
        )
        return
    yield damaged.finding(
        f"{count(part.number, 'record')} {'is' if part.number == 1 else 'are'} damaged: cut, or put together from two"
        " lines. Their values enter no statistic.",
        place,
        actual=f"{payload.event} ({payload.intact})",
        evidence=part.why,
        help="several writers share one pipe without locking: let each rank print to a file of its own",
    )


for _rule in (unparsed, damaged):
    _rule.checked(lambda part, _life: Checked(part.looked, "record"))


@rule(
    "L103",
    "hidden-by-graph",
    "note",
    group="parsing",
    needs="statistics lines that say whether a CUDA graph ran, beside debug prints",
)
def hidden_by_graph(view: View) -> dict[str, Any]:
    """Prints of replayed CUDA graphs are missing by design."""
    lines = view.server.filter((pl.col("event") == "decode_stats") & pl.col("graph").is_not_null())
    ran = lines.filter("graph")
    part: dict[str, Any] = {
        "lines": lines.height,
        "ran": ran.height,
        "prints": view.size,
        "verifies": int(((view.phase == VERIFY) & (view.during == SERVING)).sum()),
    }
    if ran.height:
        part["first"] = First(Place(view.file, ran["line"][0]))
    return part


@hidden_by_graph.answer
def _(part: dict[str, Any], life: Life) -> Iterator[Finding]:
    if part["ran"] and part["prints"] and not part["verifies"]:
        yield hidden_by_graph.finding(
            f"The prints of {count(part['ran'], 'interval')} are hidden: the rounds ran in CUDA graphs, where Python"
            " code does not run.",
            part["first"].value,
            expected="hidden captures in every verify",
            actual="none printed",
            evidence=f"{part['ran']:,} of {count(part['lines'], 'line')} say that a graph ran",
            help="start the server with --disable-cuda-graph for the debugging run",
        )


@hidden_by_graph.checked
def _(part: dict[str, Any], _life: Life) -> Checked:
    return Checked(part["lines"] if part["prints"] else 0, "line")


@rule("L104", "contradiction", "note", group="parsing", needs="debug records")
def contradiction(view: View) -> dict[str, Any]:
    """A record contradicts its own name or another of its fields."""
    found: dict[str, tuple[int, Place]] = {}
    sized = view.hidden[view.target & (view.hidden > 0)]
    hidden = int(sized[0]) if len(sized) else None
    heads, firsts, times = np.unique(view.records["head"][view.usable], return_index=True, return_counts=True)
    lines = view.records["line"][view.usable][firsts]
    said = [
        (view.tables.heads[head], line, number)
        for head, line, number in zip(heads.tolist(), lines.tolist(), times.tolist(), strict=True)
    ]
    stray = [one for one in view.lines(*DEBUG_EVENTS) if one.payload.usable]
    said += [(one.payload, one.line, 1) for one in stray]
    for payload, line, number in said:
        what = _contradicts(payload, hidden)
        if what is not None:
            before = found.get(what, (0, Place(view.file, line)))
            found[what] = (before[0] + number, min(before[1], Place(view.file, line)))
    shown = {what: _Found(number, place) for what, (number, place) in sorted(found.items(), key=lambda one: one[1][1])}
    return {"found": shown, "looked": len(view.of) + len(stray)}


@dataclass
class _Found:
    """How often, and where first."""

    number: int
    place: Place

    def __add__(self, other: _Found) -> _Found:
        return _Found(self.number + other.number, self.place)


@contradiction.answer
def _(part: dict[str, Any], life: Life) -> Iterator[Finding]:
    for what, found in part["found"].items():
        yield contradiction.finding(
            f"A record contradicts itself: {what}.",
            found.place,
            evidence=count(found.number, "record"),
            help=_CHUNK
            if what == _ROWS
            else "the print says one thing twice, and differently: look at the line and at the code that prints it",
        )


@contradiction.checked
def _(part: dict[str, Any], _life: Life) -> Checked:
    return Checked(part["looked"], "record")


def counts_rows(payload: Payload, hidden: int | None) -> bool:
    """Tell whether a join's ``num_aux`` is its rows: a list's print of one packed [rows, states x hidden] tensor.

    Targets of the DeepSeek family hand their captures on in this form from SGLang 0.5.17 on.
    """
    printed, width = num_aux(payload), payload.width
    if printed is None or printed != payload.rows or not hidden or not width or width % hidden:
        return False
    return width // hidden not in (1, printed)


def _contradicts(payload: Payload, hidden: int | None) -> str | None:
    """Return what contradicts what in a debug record, None when nothing does."""
    fields = payload.fields
    residual = fields.get("residual_is_none")
    if payload.event == "embed_capture" and residual is False:
        return "an embedding capture with residual_is_none=False; the embedding has no residual yet"
    if payload.event == "layer_capture" and residual is True and payload.layer != 0:
        return "a layer capture with residual_is_none=True; only the embedding has no residual"
    if payload.event == "aux_concat" and counts_rows(payload, hidden):
        return _ROWS
    joined = num_aux(payload)
    wide = payload.width // hidden if hidden and payload.width and payload.width % hidden == 0 else None
    if payload.event == "aux_concat" and joined is not None and joined > 1 and wide not in (joined, None):
        return f"an aux concat of {joined} states that is {wide} states wide"
    shapes = fields.get("shapes")
    if payload.event == "forward_end" and joined is not None and isinstance(shapes, list) and len(shapes) != joined:
        return f"a forward end of {joined} states that lists {len(shapes)} shapes"
    return None
