"""Widths that the log itself says were wrong: which state arrived beside what was due, or is missing.

This module is responsible for collecting size errors and fc calls that cannot fit, and for naming the state that is too
many or missing from the captures before them. It must not know contracts: what was due is what the log says was due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from logscope.model import ForwardPass, Place, ServerEvent
from logscope.queries.sizes import VOCABULARIES, explain_sizes
from logscope.queries.words import count, layer_list, whole_numbers

if TYPE_CHECKING:
    from logscope.model import Payload
    from logscope.queries.setup import Sizes
    from logscope.queries.sizes import SizeReading
    from logscope.queries.tally import Tally
    from logscope.report import Item

MAX_KEPT = 64
_SIZES = ("matmul_mismatch", "size_mismatch")


class Wrong(NamedTuple):
    """One width that did not fit: what the message says, where, and the target pass before it."""

    event: str
    fields: dict[str, Any]
    place: Place
    segment: int
    before: ForwardPass | None


class WidthErrors:
    """The fold: the distinct width errors of every run, and the captures of the last target pass before each."""

    __slots__ = ("_last", "found")

    def __init__(self) -> None:
        self.found: list[Wrong] = []
        self._last: dict[tuple[str, int], ForwardPass] = {}

    def see(self, item: Item) -> None:
        """Take one item."""
        if isinstance(item, ForwardPass):
            if item.role == "target":
                self._last[item.file, item.segment] = item
                return
            for record in item.records:
                if record.first[3].event == "fc":
                    self._fc(item, record.first[3], record.line)
        elif isinstance(item, ServerEvent) and item.occurrence[3].event in _SIZES:
            self._add(item.payload.event, item.payload.fields, item.place, item.segment)

    def _fc(self, item: ForwardPass, payload: Payload, line: int) -> None:
        """Take a call of the draft's fc; one whose input does not fit its weight is an error before it is raised."""
        weight, given = whole_numbers(payload.fields.get("weight")), whole_numbers(payload.fields.get("input"))
        if weight is not None and given is not None and weight[-1] != given[-1]:
            sizes = {"got_width": given[-1], "want_width": weight[-1], "rows": given[0] if len(given) > 1 else None}
            self._add("matmul_mismatch", {**sizes, "out_width": weight[0]}, Place(item.file, line), item.segment)

    def _add(self, event: str, fields: dict[str, Any], place: Place, segment: int) -> None:
        numbers = ("got_width", "want_width", "a", "b")
        key = (place.file, segment, *(fields.get(name) for name in numbers))
        known = {(each.place.file, each.segment, *(each.fields.get(name) for name in numbers)) for each in self.found}
        if key not in known and len(self.found) < MAX_KEPT:
            self.found.append(Wrong(event, fields, place, segment, self._last.get((place.file, segment))))

    def words(self, tally: Tally, sizes: Sizes) -> list[tuple[Wrong, str]]:
        """Explain each that is a matter of states: which came, which were due, and that rows are not states."""
        out = []
        for wrong in self.found:
            where = (wrong.place.file, wrong.segment)
            hidden = next((size for key, size in sizes.items() if key[:2] == where), None)
            joined = {
                width
                for bucket in tally.buckets.values()
                if bucket.key[:2] == where
                for _, width in bucket.joins
                if width is not None
            }
            reading = explain_sizes(
                wrong.event,
                wrong.fields,
                hidden=hidden.size if hidden is not None else None,
                hidden_from=hidden.evidence if hidden is not None else None,
                delivered=joined,
            )
            # Two tensors of other sizes than states (rows, heads) are for the errors question to explain.
            if reading is not None and (wrong.event == "matmul_mismatch" or reading.unit is not None):
                out.append((wrong, _words(wrong, reading, tally, known=hidden is not None)))
        return out


def _words(wrong: Wrong, reading: SizeReading, tally: Tally, *, known: bool) -> str:
    rows = ""
    if reading.rows is not None:
        rows = f"; the {count(reading.rows, 'row is', 'rows are')} the tokens of the pass and no part of the mismatch"
    got, want, unit = reading.got_states, reading.want_states, reading.unit
    if got is None or want is None or unit is None:
        return f"{reading.got} arrived where {reading.want} was due ({wrong.place}){rows}"
    arrived = f"{got * unit} = {count(got, 'state')} x {unit}"
    wanted = f"{want * unit} = {count(want, 'state')} x {unit}"
    plan = next((plan for plan in tally.plans if plan[:2] == (wrong.place.file, wrong.segment)), None)
    requested = whole_numbers(plan[2].fields.get("layers_to_capture")) if plan is not None else None
    which = _which(got, want, wrong.before, requested)
    unit_from = "" if known else f"; {unit} is {reading.unit_from}"
    also = f"; {got * unit} is also a vocabulary size in use" if got * unit in VOCABULARIES else ""
    return f"{arrived} arrived where {wanted} was due ({wrong.place}): {which}{rows}{unit_from}{also}"


def _which(got: int, want: int, before: ForwardPass | None, requested: list[int] | None) -> str:
    """Name the state that is too many or missing."""
    captures = before.captures if before is not None else []
    layers = [record.first[3].layer for record in captures]
    captured = f"; captured: {layer_list(layers)}" if layers else ""
    if got < want:
        return f"{count(want - got, 'state is', 'states are')} missing{captured}"
    embedding = next((record for record in captures if record.first[3].layer == 0), None)
    if embedding is not None and got - want == 1 and len(layers) == got:
        others = layer_list([layer for layer in layers if layer != 0])
        return f"the embedding is the extra state (captured at line {embedding.line} beside {others})"
    if requested is not None:
        extra = [layer for layer in layers if layer not in requested]
        if extra:
            return f"{layer_list(extra)} was not asked for by the capture plan"
    part = f", or a whole tensor came where a part of 1 in {got} was meant" if want == 1 else ""
    return f"{count(got - want, 'state is', 'states are')} too many{part}{captured}"
