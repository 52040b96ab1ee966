"""Where a text stood in its file, and what a collector said around it: the physical side of what is read.

This module is responsible for turning positions in a block's text into lines and offsets of the file, and for what is
known of a record from outside and from inside. It must not know records, nor how a wrapper looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logscope.model import NO_PREFIX, Prefix

if TYPE_CHECKING:
    from logscope.sources.blocks import Block
    from logscope.sources.places import Places


@dataclass(slots=True)
class Here:
    """Where a line of text begins: line and offset in the file, position in its block, and what stood around it."""

    line: int
    offset: int
    start: int = 0
    outer: Prefix = NO_PREFIX
    places: Places | None = None

    def place(self, at: int) -> tuple[int, int]:
        """Return line and offset in the file of the byte at a position of the line."""
        if self.places is None:
            return self.line, self.offset + at
        line, offset, _ = self.places.find([self.start + at])
        return int(line[0]), int(offset[0])


class Outer:
    """What a collector said around the lines of a block."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._known: dict[int, Prefix] = {}

    def here(self, line: int, start: int) -> Here:
        """Return where a line of the text stands; ``line`` is its number where the text is the file's own."""
        places = self._block.places
        if places is None:
            return Here(line, self._block.offset + start)
        lines, offsets, records = places.find([start])
        return Here(int(lines[0]), int(offsets[0]), start, self.of(int(records[0])), places)

    def of(self, record: int) -> Prefix:
        """Return what was said around one of the block's wrapped lines."""
        places = self._block.places
        known = self._known.get(record)
        if known is not None or places is None:
            return known or NO_PREFIX
        time, origin = places.times[record], places.origins[int(places.origin[record])]
        ranks: dict[str, Any] = dict(origin.ranks)
        extra: list[tuple[str, int | str]] = [("level", origin.level)] if origin.level else []
        if "rank" in ranks:  # of no known kind: it tells no writers apart
            extra.append(("rank", ranks.pop("rank")))
        self._known[record] = made = Prefix(time, origin.label, extra=tuple(extra), **ranks)
        return made


def within(outer: Prefix, inner: Prefix) -> Prefix:
    """Return what is known of a record from a collector and from itself: what stands further in overrides."""
    if outer is NO_PREFIX:
        return inner
    labels = [label for label in (outer.origin, inner.origin) if label]
    columns = {
        name: getattr(outer if getattr(inner, name) is None else inner, name)
        for name in ("time", "pid", "dp_rank", "pp_rank", "tp_rank", "ep_rank")
    }
    return Prefix(origin="/".join(labels) or None, extra=outer.extra + inner.extra, peeled=inner.peeled, **columns)
