"""The raw text behind events: a record's own bytes, or the physical lines around it, read a second time.

This module is responsible for finding places again in a source that was read before. It must not know what stands
there, nor how it is shown. Memory stays flat: places are wanted in file order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from logscope.sources.blocks import Block

# What is kept of one line of context: a line may be as long as a file.
LONGEST = 4096


class Line(NamedTuple):
    """A physical line: its 1-based number, its bytes without the newline, whether a wanted record starts on it."""

    number: int
    text: bytes
    wanted: bool


def texts(blocks: Iterable[Block], spans: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """Yield the bytes of each span (offset, length), which come in rising order of offset."""
    source = iter(blocks)
    held, start, ended = b"", 0, False
    for offset, length in spans:
        while not ended and start + len(held) < offset + length:
            block = next(source, None)
            if block is None:
                ended = True
            elif block.offset > start + len(held) or block.offset + len(block.data) <= offset:
                # A gap of a filtered copy, or nothing of it is wanted: what is held so far cannot be continued.
                held, start = block.data, block.offset
            else:
                drop = min(max(0, offset - start), len(held))
                held, start = held[drop:] + block.data, start + drop
        yield held[max(0, offset - start) : max(0, offset - start + length)]


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
    """Yield every physical line with its number, at most LONGEST bytes of it."""
    open_line: tuple[int, bytes] | None = None
    for block in blocks:
        parts = block.data.split(b"\n")
        for index, part in enumerate(parts):
            number = block.line + index
            if index == 0 and block.continues and open_line is not None:
                text = (open_line[1] + part)[:LONGEST]
            elif index == len(parts) - 1 and not part:
                open_line = None
                break
            else:
                text = part[:LONGEST]
            if index == len(parts) - 1:
                open_line = (number, text)
            else:
                open_line = None
                yield number, text.removesuffix(b"\r")
        if open_line is not None and block.final:
            yield open_line
            open_line = None
