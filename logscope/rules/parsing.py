"""Rules about the log itself: what was not understood, what is damaged, what graphs hide, what contradicts itself.

This module is responsible for L101 to L104. It must not judge the run.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from logscope.model import DEBUG_EVENTS, Place, num_aux
from logscope.queries.setup import GRAPHS
from logscope.queries.words import count
from logscope.rules.base import Checked, Rule, counts_rows, is_embedding, register

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logscope.model import Finding, Payload, ServerEvent
    from logscope.rules.base import Scene, View


# Said once for all row counts: what is wrong is the print, not the pass.
_ROWS = (
    "num_aux of an aux concat is its number of rows; the states are packed in one tensor, and there are as many as its"
    " width holds hidden sizes"
)
_CHUNK = (
    "a list's print counts and loops over rows there: print aux.chunk(K, dim=-1), as `logscope grammar snippet` does"
)


class _Places:
    """Counts something and remembers the first place and the reasons."""

    __slots__ = ("count", "first", "reasons")

    def __init__(self) -> None:
        self.count = 0
        self.first: tuple[Place, Payload] | None = None
        self.reasons: Counter[str] = Counter()

    def add(self, place: Place, payload: Payload) -> None:
        self.count += 1
        if self.first is None or (place.file == self.first[0].file and place.line < self.first[0].line):
            self.first = (place, payload)
        if len(self.reasons) < 64 or payload.reason in self.reasons:
            self.reasons[payload.reason or "no reason is known"] += 1

    def why(self) -> str:
        """Return the most frequent reasons."""
        return "; ".join(
            f"{reason} ({times})" if times > 1 else reason for reason, times in self.reasons.most_common(3)
        )


class _Reading(Rule):
    """What the rules about unreadable records share: every record counts as looked at."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._found = _Places()

    def _wanted(self, payload: Payload) -> bool:
        raise NotImplementedError

    def see(self, view: View) -> None:
        """Look at the damaged records and copies of a pass."""
        self.looked += sum(record.copies for record in view.item.records)
        for line, _, _, payload in view.damaged:
            if self._wanted(payload):
                self._found.add(Place(view.item.file, line), payload)

    def server(self, event: ServerEvent) -> None:
        """Look at a record outside of passes."""
        self.looked += 1
        if self._wanted(event.payload):
            self._found.add(event.place, event.payload)

    def checked(self) -> Checked:
        """Return the records looked at."""
        return Checked(self.looked, "record")


@register("L101", "unparsed", "warning", group="parsing", needs="records")
class Unparsed(_Reading):
    """Records with a known anchor that no event of the grammar matched."""

    def _wanted(self, payload: Payload) -> bool:
        return payload.kind == "unparsed"

    def findings(self) -> Iterator[Finding]:
        """Answer with their number and the first one."""
        if self._found.first is not None:
            place, payload = self._found.first
            what = (
                "record has a known anchor and was"
                if self._found.count == 1
                else "records have a known anchor and were"
            )
            yield self.finding(
                f"{self._found.count:,} {what} not understood.",
                place,
                actual=payload.event if payload.event not in ("", "unparsed") else None,
                evidence=self._found.why(),
                help="`logscope grammar` says where reading stopped and suggests an event for it",
            )


@register("L102", "damaged", "warning", group="parsing", needs="records")
class Damaged(_Reading):
    """Records that are cut, or were put together again from two lines."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        # The last line a record stands on: a record that is cut there was not damaged, the log ends.
        self._end = 0

    def _wanted(self, payload: Payload) -> bool:
        return payload.kind == "event" and payload.intact in ("cut", "rejoined")

    def see(self, view: View) -> None:
        """Look at a pass; remember where its last record stands."""
        super().see(view)
        lines = [(record.others[-1] if record.others else record.first)[0] for record in view.item.records]
        self._end = max(self._end, *lines, *[line for line, _, _, _ in view.damaged])

    def server(self, event: ServerEvent) -> None:
        """Look at a record outside of passes; remember where it stands."""
        super().server(event)
        self._end = max(self._end, event.place.line)

    def findings(self) -> Iterator[Finding]:
        """Answer with their number and the first one; a record that is cut where the log ends is a note."""
        if self._found.first is None:
            return
        place, payload = self._found.first
        if self._found.count == 1 and payload.intact == "cut" and place.line >= self._end:
            yield self.finding(
                "The log ends inside a record. Its unfinished value enters no statistic.",
                place,
                severity="note",
                actual=f"{payload.event} (cut)",
                evidence=f"{self._found.why()}; no record stands behind it",
                help="the log was copied while it grew, or the server was killed with text in its buffer",
            )
        else:
            yield self.finding(
                f"{count(self._found.count, 'record')} {'is' if self._found.count == 1 else 'are'} damaged: cut, or put"
                " together from two lines. Their values enter no statistic.",
                place,
                actual=f"{payload.event} ({payload.intact})",
                evidence=self._found.why(),
                help="several writers share one pipe without locking: let each rank print to a file of its own",
            )


@register(
    "L103",
    "hidden-by-graph",
    "note",
    group="parsing",
    needs="statistics lines that say whether a CUDA graph ran, beside debug prints",
)
class HiddenByGraph(Rule):
    """Prints of replayed CUDA graphs are missing by design."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._first: Place | None = None
        self._with = self._without = 0
        self._prints = False
        self._verifies = 0

    def see(self, view: View) -> None:
        """See whether there are prints at all, and verifies among them."""
        self._prints = True
        if view.item.phase == "verify" and view.item.during == "serving":
            self._verifies += 1

    def server(self, event: ServerEvent) -> None:
        """Take a statistics line."""
        if event.payload.event != "decode_stats":
            return
        said = [event.payload.fields.get(name) for name in GRAPHS]
        if True in said:
            self._with += 1
            self._first = self._first or event.place
        elif False in said:
            self._without += 1

    def findings(self) -> Iterator[Finding]:
        """Answer when rounds ran in graphs and prints would have been expected."""
        if self._first is not None and self._prints and self._verifies == 0:
            yield self.finding(
                f"The prints of {count(self._with, 'interval')} are hidden: the rounds ran in CUDA graphs, where Python"
                " code does not run.",
                self._first,
                expected="hidden captures in every verify",
                actual="none printed",
                evidence=f"{self._with:,} of {count(self._with + self._without, 'line')} say that a graph ran",
                help="start the server with --disable-cuda-graph for the debugging run",
            )

    def checked(self) -> Checked:
        """Statistics lines, where something is printed."""
        return Checked((self._with + self._without) if self._prints else 0, "line")


@register("L104", "contradiction", "note", group="parsing", needs="debug records")
class Contradiction(Rule):
    """A record contradicts its own name or another of its fields."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._found: dict[str, list[Any]] = {}

    def see(self, view: View) -> None:
        """Look at the records of one pass."""
        for record in view.item.records:
            self.looked += 1
            what = _contradicts(record.payload, self.scene.hidden) if record.payload.usable else None
            if what is not None:
                self._add(what, Place(view.item.file, record.line))

    def server(self, event: ServerEvent) -> None:
        """Look at a debug record that belongs to no pass."""
        payload = event.payload
        if payload.event in DEBUG_EVENTS and payload.usable:
            self.looked += 1
            what = _contradicts(payload, self.scene.hidden)
            if what is not None:
                self._add(what, event.place)

    def _add(self, what: str, place: Place) -> None:
        seen = self._found.setdefault(what, [0, place])
        seen[0] += 1

    def findings(self) -> Iterator[Finding]:
        """Answer once for each kind of contradiction."""
        for what, (times, place) in self._found.items():
            yield self.finding(
                f"A record contradicts itself: {what}.",
                place,
                evidence=f"{count(times, 'record')}",
                help=_CHUNK
                if what == _ROWS
                else "the print says one thing twice, and differently: look at the line and at the code that prints it",
            )

    def checked(self) -> Checked:
        """Debug records looked at."""
        return Checked(self.looked, "record")


def _contradicts(payload: Payload, hidden: int | None) -> str | None:
    """Return what contradicts what in a debug record, None when nothing does."""
    fields = payload.fields
    residual = fields.get("residual_is_none")
    if payload.event == "embed_capture" and residual is False:
        return "an embedding capture with residual_is_none=False; the embedding has no residual yet"
    if payload.event == "layer_capture" and residual is True and not is_embedding(payload):
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
