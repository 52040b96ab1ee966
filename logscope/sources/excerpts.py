"""The raw text behind events: a record's own bytes, or the physical lines around it, read a second time.

This module is responsible for finding places again in a source that was read before. It must not know what stands
there, nor how it is shown. Memory stays flat: places are wanted in file order.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, NamedTuple

from logscope.sources.blocks import Block
from logscope.sources.places import joined, part_of, position
from logscope.sources.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from logscope.sources.streams import Source

# What is kept of one line of context: a line may be as long as a file.
LONGEST = 4096


class Line(NamedTuple):
    """A physical line: its 1-based number, its bytes without the newline, whether a wanted record starts on it."""

    number: int
    text: bytes
    wanted: bool


def read_again(source: Source) -> Iterator[Block]:
    """Yield the blocks of a source as records were found in them: the text inside a wrapper, with its places."""
    return (block for block in unwrap(source.blocks()) if block is not None)


def texts(blocks: Iterable[Block], spans: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """Yield the bytes of each span (offset in the file, length of the text), which come in rising order of offset.

    Of unwrapped blocks, the text that stood there.
    """
    source = iter(blocks)
    held = Block("", 0, 1, b"")
    for offset, length in spans:
        start = position(held, offset)
        while start + length > len(held.data) and (block := next(source, None)) is not None:
            # Behind a gap of a filtered copy, or where nothing of it is wanted, what is held cannot be continued.
            held = block if block.gap or start >= len(held.data) else joined(part_of(held, max(start, 0)), block)
            start = position(held, offset)
        yield held.data[max(start, 0) : max(start + length, 0)]


def lines_around(blocks: Iterable[Block], wanted: Sequence[int], around: int) -> Iterator[Line | None]:
    """Yield the wanted lines (rising numbers) with ``around`` lines on either side; None where lines were left out."""
    places = iter(wanted)
    following = next(places, None)
    before: list[Line] = []
    after = 0
    last = 0
    for number, text in physical_lines(blocks):
        hit = number == following
        while following is not None and following <= number:
            following = next(places, None)
        if not hit and not after:
            if following is None:
                return
            before.append(Line(number, text, wanted=False))
            del before[: -around or len(before)]
            continue
        ready = [*before, Line(number, text, hit)] if hit else [Line(number, text, wanted=False)]
        before.clear()
        if last and ready[0].number > last + 1:
            yield None
        yield from ready
        last = number
        after = around if hit else after - 1


def physical_lines(blocks: Iterable[Block]) -> Iterator[tuple[int, bytes]]:
    """Yield every line with its number, at most LONGEST bytes of it; of unwrapped blocks, the lines of the text."""
    text = b""
    for block in blocks:
        number, start = block.line, 0
        if not block.continues:
            text = b""
        for part in io.BytesIO(block.data):
            if block.places is not None:
                number = int(block.places.find([start])[0][0])
            text = (text + part.removesuffix(b"\n"))[:LONGEST]
            start += len(part)
            if part.endswith(b"\n"):
                yield number, text.removesuffix(b"\r")
                number += 1
                text = b""
        if block.final and text:
            yield number, text
