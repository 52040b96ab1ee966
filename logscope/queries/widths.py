"""Widths that the log itself says were wrong: which state arrived beside what was due, or is missing.

This module is responsible for collecting size errors and fc calls that cannot fit, and for naming the state that is too
many or missing from the captures before them. It must not know contracts: what was due is what the log says was due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from logscope.model import ForwardPass, Place, ServerEvent
from logscope.queries.words import count, layer_list

if TYPE_CHECKING:
    from logscope.model import Payload
    from logscope.queries.setup import Hidden
    from logscope.queries.tally import Tally
    from logscope.report import Item

MAX_KEPT = 64


class Due(NamedTuple):
    """A width the log says was due, beside the one that arrived. ``rows`` is None where it is not printed."""

    got: int
    want: int
    rows: int | None
    place: Place
    segment: int


class WidthErrors:
    """The fold: the distinct width errors of every run, and the captures of the last target pass before each."""

    __slots__ = ("_last", "found")

    def __init__(self) -> None:
        self.found: list[tuple[Due, ForwardPass | None]] = []
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
        elif isinstance(item, ServerEvent) and item.occurrence[3].event == "matmul_mismatch":
            fields = item.payload.fields
            got, want = fields.get("got_width"), fields.get("want_width")
            if isinstance(got, int) and isinstance(want, int):
                self._add(Due(got, want, fields.get("rows"), item.place, item.segment))

    def _fc(self, item: ForwardPass, payload: Payload, line: int) -> None:
        weight, given = payload.fields.get("weight"), payload.fields.get("input")
        if isinstance(weight, list) and isinstance(given, list) and weight and given and weight[-1] != given[-1]:
            rows = given[0] if len(given) > 1 else None
            self._add(Due(given[-1], weight[-1], rows, Place(item.file, line), item.segment))

    def _add(self, due: Due) -> None:
        key = (due.got, due.want, due.place.file, due.segment)
        known = {(each.got, each.want, each.place.file, each.segment) for each, _ in self.found}
        if key not in known and len(self.found) < MAX_KEPT:
            self.found.append((due, self._last.get((due.place.file, due.segment))))

    def words(self, tally: Tally, sizes: dict[tuple[str, int, str | None], Hidden]) -> list[str]:
        """Explain each: which states came, which were due, and that rows are not states."""
        return [_words(due, before, tally, sizes) for due, before in self.found]


def _words(due: Due, before: ForwardPass | None, tally: Tally, sizes: dict[tuple[str, int, str | None], Hidden]) -> str:
    where = (due.place.file, due.segment)
    hidden = next((size.size for key, size in sizes.items() if key[:2] == where), None)
    rows = ""
    if due.rows is not None:
        rows = f"; the {count(due.rows, 'row is', 'rows are')} the tokens of the pass and no part of the mismatch"
    if not hidden or due.got % hidden or due.want % hidden:
        return f"{due.got} arrived where {due.want} was due ({due.place}){rows}"
    got, want = due.got // hidden, due.want // hidden
    arrived, wanted = f"{count(got, 'state')} x {hidden}", f"{count(want, 'state')} x {hidden}"
    requested: Any = next((plan[2].fields.get("layers_to_capture") for plan in tally.plans if plan[:2] == where), None)
    which = _which(got, want, before, requested)
    return f"{due.got} = {arrived} arrived where {due.want} = {wanted} was due ({due.place}): {which}{rows}"


def _which(got: int, want: int, before: ForwardPass | None, requested: Any) -> str:
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
    if isinstance(requested, list):
        extra = [layer for layer in layers if layer not in requested]
        if extra:
            return f"{layer_list(extra)} was not asked for by the capture plan"
    return f"{count(got - want, 'state is', 'states are')} too many{captured}"
