"""Events with their labels, in file order: the fixed event record that other people's scripts read.

This module is responsible for putting the occurrences of labelled items back into file order, copies included, and
for the fixed form of one event. It must not know how labels are found, and it has no opinion on output formats.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logscope.model import During, Evidence, ForwardPass, Occurrence, Phase, Role, ServerEvent
from logscope.report import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from logscope.report import Item

# The keys of an event record, in their fixed order.
EVENT_KEYS = (
    "file", "line", "offset", "segment", "during", "time", "origin", "pid", "dp_rank", "pp_rank", "tp_rank",
    "ep_rank", "site", "event", "role", "phase", "evidence", "pass", "layer", "rows", "width", "shape", "norm", "head",
    "capture_hidden_mode", "intact", "fields",
)  # fmt: skip


@dataclass(slots=True, eq=False)
class Labelled:
    """One occurrence with the labels of the pass or segment it belongs to."""

    file: str
    occurrence: Occurrence
    segment: int
    during: During
    role: Role | None = None
    phase: Phase | None = None
    evidence: Evidence | None = None
    number: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fixed event record: always all of EVENT_KEYS, None when unknown; nan and inf by their names."""
        line, offset, prefix, payload = self.occurrence
        fields = dict(payload.fields)
        if prefix.extra:
            fields.update(prefix.extra)
        return {
            "file": self.file,
            "line": line,
            "offset": offset,
            "segment": self.segment,
            "during": self.during,
            "time": prefix.time,
            "origin": prefix.origin,
            "pid": prefix.pid,
            "dp_rank": prefix.dp_rank,
            "pp_rank": prefix.pp_rank,
            "tp_rank": prefix.tp_rank,
            "ep_rank": prefix.ep_rank,
            "site": payload.site,
            "event": payload.event,
            "role": payload.role or self.role,
            "phase": self.phase,
            "evidence": self.evidence,
            "pass": self.number,
            "layer": payload.layer,
            "rows": payload.rows,
            "width": payload.width,
            "shape": None if payload.shape is None else list(payload.shape),
            "norm": plain(payload.norm),
            "head": None if payload.head is None else [plain(value) for value in payload.head],
            "capture_hidden_mode": payload.mode,
            "intact": payload.intact,
            "fields": plain(fields),
        }


class FileOrder:
    """Puts the occurrences of items back into file order, one file after the other.

    Items come in the order of their first line, but a pass of eight interleaved writers ends long after the next one
    began; an occurrence is let out when nothing before it can still come.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Labelled]] = []
        self._serial = 0

    def take(self, file: str, items: Iterable[Item], watermark: int | None) -> Iterator[Labelled]:
        """Take the next items of a file; yield, in order, the events that stand before the watermark.

        None ends the file: all that are left.
        """
        for item in items:
            self._add(file, item)
        heap = self._heap
        while heap and (watermark is None or heap[0][0] < watermark):
            yield heapq.heappop(heap)[2]

    def _add(self, file: str, item: Item) -> None:
        """Take an item's occurrences; unparsed text is no event and is left out."""
        if isinstance(item, ServerEvent):
            if item.payload.kind == "event":
                self._push(Labelled(file, item.occurrence, item.segment, item.during))
        elif isinstance(item, ForwardPass):
            for record in item.records:
                for occurrence in (record.first, *record.others, *record.variants):
                    self._push(
                        Labelled(
                            file,
                            occurrence,
                            item.segment,
                            item.during,
                            item.role,
                            item.phase,
                            item.evidence,
                            item.number,
                        )
                    )

    def _push(self, labelled: Labelled) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (labelled.occurrence[1], self._serial, labelled))
