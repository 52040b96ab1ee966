"""Where each byte of an unwrapped text stood in the file, and what the wrapper said beside it.

This module is responsible for keeping the two together while blocks are cut, joined and unwrapped once more. It must
not know any wrapper.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from logscope.model import NO_PREFIX, Prefix, within
from logscope.sources.blocks import Block

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]


@dataclass(slots=True)
class Places:
    """Where each byte of an unwrapped text stood in the file.

    at, line, offset, record
        arrays of one length, by rising position in the text (``at``, from 0): from there to the next position the
        bytes stood one behind the other, the first at this 1-based line and this offset (bytes), in this record.
    step
        bytes in the file for one byte of text: 1, or 2 for ASCII in UTF-16.
    times, origin
        of each record (a wrapped line, with all its parts): its time as ISO 8601 text as the wrapper says it, or None,
        and an index into ``origins``, distinct prefixes without a time: what else the wrapper says.
    """

    at: Ints
    line: Ints
    offset: Ints
    record: Ints
    step: int = 1
    times: list[str | None] = field(default_factory=lambda: [None])
    origin: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    origins: list[Prefix] = field(default_factory=lambda: [NO_PREFIX])
    order: Ints | None = None  # by offset; see position()
    known: dict[int, Prefix] = field(default_factory=dict)  # see prefix()

    def find(self, positions: Ints | list[int]) -> tuple[Ints, Ints, Ints]:
        """Return line, offset and record of each position in the text."""
        positions = np.asarray(positions, np.int64)
        index = np.maximum(np.searchsorted(self.at, positions, side="right") - 1, 0)
        return self.line[index], self.offset[index] + (positions - self.at[index]) * self.step, self.record[index]

    def prefix(self, record: int) -> Prefix:
        """Return what was said around a record."""
        if record not in self.known:
            origin, time = self.origins[int(self.origin[record])], self.times[record]
            self.known[record] = origin if time is None else replace(origin, time=time)
        return self.known[record]

    def part(self, start: int, end: int) -> Places:
        """Return the places of text[start:end]."""
        first, last = np.searchsorted(self.at, [start + 1, max(end, start + 1)])
        line, offset, record = self.find([start])
        inside = slice(int(first), int(last))
        record = np.concatenate([record, self.record[inside]])  # rises
        records = slice(int(record[0]), int(record[-1]) + 1)
        return Places(
            np.concatenate([[0], self.at[inside] - start]),
            np.concatenate([line, self.line[inside]]),
            np.concatenate([offset, self.offset[inside]]),
            record - record[0],
            self.step,
            self.times[records],
            self.origin[records],
            self.origins,
        )


class Line(NamedTuple):
    """A wrapped line: where it begins in the data, its text in pieces with their places there, and what goes with it.

    ``more``: the text goes on in the next line with the same ``key``. A line without a key stands as it was.
    """

    start: int
    pieces: list[tuple[bytes, int]]
    key: object = None
    more: bool = False
    time: str | None = None
    origin: Prefix = NO_PREFIX


def plain_places(block: Block) -> Places:
    """Return the places of a block that holds the file's own bytes."""
    starts = np.flatnonzero(np.frombuffer(block.data, np.uint8) == ord("\n")) + 1
    at = np.concatenate([[0], starts[starts < len(block.data)]])
    return Places(at, block.line + np.arange(len(at)), block.offset + at, np.zeros(len(at), np.int64))


def position(block: Block, offset: int) -> int:
    """Return where in the text of a block the byte at an offset of the file stands; outside where it is not there."""
    places = block.places
    if places is None:
        return offset - block.offset
    if places.order is None:
        places.order = np.argsort(places.offset, kind="stable")
    index = np.searchsorted(places.offset, offset, side="right", sorter=places.order) - 1
    index = places.order[max(int(index), 0)]
    return int(places.at[index] + (offset - places.offset[index]) // places.step)


def part_of(block: Block, start: int, end: int | None = None, *, final: bool = False) -> Block:
    """Return a part of a block."""
    end = len(block.data) if end is None else end
    data = block.data[start:end]
    before = block.data.count(b"\n", 0, start)
    places = block.places and block.places.part(start, end)
    line, offset = block.line + before, block.offset + start
    if places is not None:
        line, offset = int(places.line[0]), int(places.offset[0])
    inside = block.continues if not start else block.data[start - 1 : start] != b"\n"
    gap = block.gap and not start
    return Block(block.file, offset, line, data, final, inside, gap, data.count(b"\n"), places)


def joined(held: Block, block: Block) -> Block:
    """Return two neighbours as one block."""
    data = held.data + block.data
    newlines = held.newlines + block.newlines
    if held.places is None and block.places is None:
        return replace(held, data=data, newlines=newlines, final=block.final)
    a, b = held.places or plain_places(held), block.places or plain_places(block)
    known = {origin: index for index, origin in enumerate(a.origins)}
    index = np.array([known.setdefault(origin, len(known)) for origin in b.origins])
    places = Places(
        np.concatenate([a.at, b.at + len(held.data)]),
        np.concatenate([a.line, b.line]),
        np.concatenate([a.offset, b.offset]),
        np.concatenate([a.record, b.record + len(a.times)]),
        a.step,
        [*a.times, *b.times],
        np.concatenate([a.origin, index[b.origin]]),
        list(known),
    )
    return replace(held, data=data, newlines=newlines, final=block.final, places=places)


def through(lines: list[Line], outer: Places) -> Places:
    """Return the places of the text of lines that come from a text with places of its own.

    Where those have a break inside a piece, there is one in the new text too.
    """
    counts = np.array([len(line.pieces) for line in lines])
    source = np.array([place for line in lines for _, place in line.pieces])
    size = np.array([len(piece) for line in lines for piece, _ in line.pieces])
    at = np.cumsum(size) - size
    record = np.repeat(np.arange(len(lines)), counts)
    line, offset, around = outer.find(source)
    around = around[np.cumsum(counts) - counts]  # of the first piece of each line
    order = np.argsort(source, kind="stable")
    place = np.searchsorted(source[order], outer.at, side="right") - 1
    piece = order[np.maximum(place, 0)]
    beyond = outer.at - source[piece]
    inside = (place >= 0) & (beyond > 0) & (beyond < size[piece])
    if inside.any():
        piece = piece[inside]
        at = np.concatenate([at, at[piece] + beyond[inside]])
        line = np.concatenate([line, outer.line[inside]])
        offset = np.concatenate([offset, outer.offset[inside]])
        record = np.concatenate([record, record[piece]])
        order = np.argsort(at, kind="stable")
        at, line, offset, record = at[order], line[order], offset[order], record[order]
    known: dict[tuple[int, Prefix], int] = {}
    pairs = zip(outer.origin[around].tolist(), [line.origin for line in lines], strict=True)
    origin = np.array([known.setdefault(pair, len(known)) for pair in pairs])
    times = [line.time or outer.times[number] for line, number in zip(lines, around.tolist(), strict=True)]
    return Places(at, line, offset, record, outer.step, times, origin, [within(outer.origins[o], i) for o, i in known])
