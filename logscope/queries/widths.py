"""Widths that the log itself says were wrong: which state arrived beside what was due, or is missing.

This module is responsible for collecting size errors and fc calls that cannot fit, and for naming the state that is too
many or missing from the captures before them. It must not know contracts: what was due is what the log says was due.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from logscope.model import CAPTURE_EVENTS, Place
from logscope.queries.sizes import VOCABULARIES, SizeReading, explain_sizes
from logscope.queries.words import count, layer_list, whole_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logscope.queries.counts import Counts
    from logscope.queries.setup import Sizes
    from logscope.tables.tables import Tables

MAX_KEPT = 64
# (layer, line) of the hidden captures of one target pass.
Captured = list[tuple[int | None, int]]


class Wrong(NamedTuple):
    """One width that did not fit: what the message says, where, and what the target pass before it captured."""

    event: str
    fields: dict[str, Any]
    place: Place
    segment: int
    before: Captured | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from another."""
        sizes = [self.fields.get(name) for name in ("got_width", "want_width", "a", "b")]
        return (self.place.file, self.segment, *sizes)


@dataclass(slots=True)
class WidthErrors:
    """The distinct width errors of every run, and the captures of its last target pass."""

    found: list[Wrong] = field(default_factory=list)
    last: dict[tuple[str, int], Captured] = field(default_factory=dict)

    @classmethod
    def of(cls, tables: Tables) -> WidthErrors:
        """Find those of a batch."""
        passes = tables.passes.filter(pl.col("role") == "target").select("file", "segment", "line", "first", "last")
        last = {
            (tables.files[file], segment): _captured(tables, some.tail(1)) or []
            for (file, segment), some in passes.group_by("file", "segment")
        }
        errors: dict[tuple[Any, ...], Wrong] = {}
        for error in sorted([*_lines(tables), *_fc_calls(tables)], key=lambda one: one.place.line):
            errors.setdefault(error.key, error)
        found = []
        for error in list(errors.values())[:MAX_KEPT]:
            here = (pl.col("file") == tables.files.index(error.place.file)) & (pl.col("segment") == error.segment)
            before = passes.filter(here & (pl.col("line") < error.place.line)).tail(1)
            found.append(error._replace(before=_captured(tables, before)))
        return cls(found, last)

    @classmethod
    def sum(cls, parts: Iterable[WidthErrors]) -> WidthErrors:
        """Return those of several batches, in their order."""
        made: dict[tuple[Any, ...], Wrong] = {}
        last: dict[tuple[str, int], Captured] = {}
        for part in parts:
            for error in part.found:
                before = last.get((error.place.file, error.segment)) if error.before is None else error.before
                made.setdefault(error.key, error._replace(before=before))
            last |= part.last
        return cls(list(made.values())[:MAX_KEPT], last)

    def words(self, counts: Counts, sizes: Sizes) -> list[tuple[Wrong, str]]:
        """Explain each that is a matter of states: which came, which were due, and that rows are not states."""
        out = []
        for wrong in self.found:
            where = (wrong.place.file, wrong.segment)
            hidden = sizes.in_segment(*where)
            buckets = [bucket for bucket in counts.buckets.values() if bucket.key[:2] == where]
            reading = explain_sizes(
                wrong.event,
                wrong.fields,
                hidden=hidden.size if hidden is not None else None,
                hidden_from=hidden.evidence if hidden is not None else None,
                delivered={width for bucket in buckets for _, width in bucket.of("join") if width is not None},
            )
            # Two tensors of other sizes than states (rows, heads) are for the errors question to explain.
            if reading is not None and (wrong.event == "matmul_mismatch" or reading.unit is not None):
                out.append((wrong, _words(wrong, reading, counts, known=hidden is not None)))
        return out


def _lines(tables: Tables) -> Iterable[Wrong]:
    """Yield the size errors that are raised."""
    sizes = pl.col("event").cast(pl.String).is_in(["matmul_mismatch", "size_mismatch"])
    wanted = tables.server.with_row_index("row").filter(sizes)
    for row, file, segment, line in wanted.select("row", "file", "segment", "line").iter_rows():
        payload = tables.payload(row)
        yield Wrong(payload.event, payload.fields, Place(tables.files[file], line), segment)


def _fc_calls(tables: Tables) -> Iterable[Wrong]:
    """Yield calls of the draft's fc whose input does not fit its weight: an error before it is raised."""
    calls = tables.records.filter(pl.col("event") == "fc").unique("head", keep="first", maintain_order=True)
    for head, file, segment, line in calls.select("head", "file", "segment", "line").iter_rows():
        fields = tables.heads[head].fields
        weight, given = whole_numbers(fields.get("weight")), whole_numbers(fields.get("input"))
        if weight is not None and given is not None and weight[-1] != given[-1]:
            sizes = {"got_width": given[-1], "want_width": weight[-1], "rows": given[0] if len(given) > 1 else None}
            yield Wrong("matmul_mismatch", {**sizes, "out_width": weight[0]}, Place(tables.files[file], line), segment)


def _captured(tables: Tables, passes: pl.DataFrame) -> Captured | None:
    """Return the captures of a pass (of no or one row), None without one."""
    for *_, first, last in passes.iter_rows():
        records = tables.records[first : last + 1]
        captured = records.filter(pl.col("event").cast(pl.String).is_in(list(CAPTURE_EVENTS)))
        return list(captured.select("layer", "line").iter_rows())
    return None


def _words(wrong: Wrong, reading: SizeReading, counts: Counts, *, known: bool) -> str:
    rows = ""
    if reading.rows is not None:
        rows = f"; the {count(reading.rows, 'row is', 'rows are')} the tokens of the pass and no part of the mismatch"
    got, want, unit = reading.got_states, reading.want_states, reading.unit
    if got is None or want is None or unit is None:
        return f"{reading.got} arrived where {reading.want} was due ({wrong.place}){rows}"
    arrived, due = (f"{number * unit} = {count(number, 'state')} x {unit}" for number in (got, want))
    plan = next((plan for plan in counts.plans if plan[:2] == (wrong.place.file, wrong.segment)), None)
    requested = whole_numbers(plan[2].fields.get("layers_to_capture")) if plan is not None else None
    which = _which(got, want, wrong.before, requested)
    unit_from = "" if known else f"; {unit} is {reading.unit_from}"
    also = f"; {got * unit} is also a vocabulary size in use" if got * unit in VOCABULARIES else ""
    return f"{arrived} arrived where {due} was due ({wrong.place}): {which}{rows}{unit_from}{also}"


def _which(got: int, want: int, before: Captured | None, requested: Sequence[int] | None) -> str:
    """Name the state that is too many or missing."""
    layers = [layer for layer, _ in before or []]
    captured = f"; captured: {layer_list(layers)}" if layers else ""
    if got < want:
        return f"{count(want - got, 'state is', 'states are')} missing{captured}"
    embedding = next((line for layer, line in before or [] if layer == 0), None)
    if embedding is not None and got - want == 1 and len(layers) == got:
        others = layer_list([layer for layer in layers if layer != 0])
        return f"the embedding is the extra state (captured at line {embedding} beside {others})"
    if requested is not None:
        extra = [layer for layer in layers if layer not in requested]
        if extra:
            return f"{layer_list(extra)} was not asked for by the capture plan"
    part = f", or a whole tensor came where a part of 1 in {got} was meant" if want == 1 else ""
    return f"{count(got - want, 'state is', 'states are')} too many{part}{captured}"
