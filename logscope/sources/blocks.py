"""Blocks: a stream of bytes cut after newlines, with true line numbers and offsets, in bounded memory.

This module is responsible for where a stream may be cut, for lines that are longer than memory should be, and for the
filtered form that ``logscope fetch --debug-only`` writes. It must not know where bytes come from, nor what they say.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from logscope.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from logscope.sources.places import Places

BLOCK_SIZE = 8 << 20  # bytes of a block, as far as its lines allow
LINE_SLACK = 16 << 20  # bytes a block may grow beyond its size before a line is given in pieces
LINES = 1 << 18  # lines of a block: a reader of lines holds tens of bytes for each, and a hostile line has none
FILTERED = b"%logscope-filtered "
_PROBE = 16 << 10  # a long line is read on by at least so much
_PLACE = re.compile(rb"(\d{1,18}):(\d{1,18}):")


@dataclass(slots=True)
class Block:
    r"""A part of one file that ends with a newline, unless it is the file's end or a piece of a very long line.

    file
        the name as the user gave it; ``-`` for standard input.
    offset
        of data[0], in bytes of the unpacked stream.
    line
        1-based number of the physical line that holds data[0]; only ``\n`` counts.
    data
        the bytes, as they are. Empty only in an empty file's one block, or in a last block whose only news is its gap.
    final
        the last block of this file; every file has exactly one. In a followed file: of this generation of it.
    continues
        data[0] continues a line begun in the block before.
    gap
        lines were left out before this block (of a filtered copy).
    newlines
        the number of ``\n`` in data: counted once, for everybody.
    places
        where each byte of data stood in the file, when the text was unwrapped; None: data is the file's own bytes.
    read
        bytes and lines of the file that were read for this block; None: those of data.
    """

    file: str
    offset: int
    line: int
    data: bytes
    final: bool = False
    continues: bool = False
    gap: bool = False
    newlines: int = 0
    places: Places | None = None
    read: tuple[int, int] | None = None


class Window:
    """The bytes of a stream from where it stands, looked at before they are taken. Positions count from there.

    ``read(n)`` returns the next bytes, about n (more is taken too), none at the end; it may be asked again after that
    (a file that is followed).
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._data = bytearray()

    @property
    def held(self) -> int:
        """How many bytes are there without reading on."""
        return len(self._data)

    def fill(self, count: int) -> int:
        """Return how many of the next count bytes there are: fewer only when the stream ends (for now) before."""
        while len(self._data) < count and (piece := self._read(count - len(self._data))):
            self._data += piece
        return min(len(self._data), count)

    def find(self, byte: bytes, start: int, end: int, *, last: bool = False) -> int:
        """Return the first (or last) position of a byte in start..end, both filled, or -1."""
        return (self._data.rfind if last else self._data.find)(byte, start, end)

    def peek(self, count: int) -> bytes:
        """Return the next count bytes (fewer at the end) and stay where it stands."""
        count = self.fill(count)
        return bytes(memoryview(self._data)[:count])

    def take(self, count: int) -> bytes:
        """Return the next count bytes (fewer at the end) and go past them."""
        data = self.peek(count)
        del self._data[: len(data)]
        return data


def cut(window: Window, size: int, slack: int) -> int:
    r"""Return how many bytes the next block takes: whole lines, as many as fit in size, or one that is longer.

    A line longer than ``size + slack`` is given in pieces, cut behind its last lone ``\r`` where it has one: records
    begin and end there. A piece may end inside a character, never between ``\r`` and ``\n``. Less than whole lines
    comes too where the stream ends.
    """
    have = window.fill(size)
    if have < size:
        return have
    end = window.find(b"\n", 0, have, last=True) + 1
    limit = size + slack
    while not end:
        if have == limit:
            # No newline so far: every \r but a last one is a lone one.
            end = window.find(b"\r", 0, have - 1, last=True) + 1
            return end or (have - (have > 1 and window.find(b"\r", have - 1, have) >= 0))
        searched = have
        wanted = min(searched + max(size, _PROBE), limit)
        have = window.fill(wanted)
        end = window.find(b"\n", searched, have) + 1
        if not end and have < wanted:
            return have
    return end


def cut_blocks(window: Window, file: str, *, size: int = BLOCK_SIZE, slack: int = LINE_SLACK) -> Iterator[Block]:
    """Yield a stream as blocks of at most ``size + slack`` bytes: at least one, the last one final."""
    offset, line, continues = 0, 1, False
    final = False
    while not final:
        data = window.take(cut(window, size, slack))
        final = not window.fill(1)
        parts = _parts(data)
        del data  # before the next one is read
        while parts:
            part, newlines = parts.pop()
            yield Block(file, offset, line, part, final=final and not parts, continues=continues, newlines=newlines)
            offset += len(part)
            line += newlines
            continues = not part.endswith(b"\n")
            del part


def _parts(data: bytes) -> list[tuple[bytes, int]]:
    """Return what a block is given in, with the lines of each, the last one first: as it is, unless it has too many."""
    newlines = data.count(b"\n")
    if newlines <= LINES:
        return [(data, newlines)]
    middle = data.rfind(b"\n", 0, len(data) // 2) + 1 or data.find(b"\n", len(data) // 2) + 1
    return _parts(data[middle:]) + _parts(data[:middle])


def filtered_header(first_line: bytes, file: str) -> dict[str, Any]:
    """Return what the first line of a filtered copy says of the original. Raises InputError when it cannot be read."""
    version, _, text = first_line[len(FILTERED) :].partition(b" ")
    if version != b"1":
        raise InputError(
            f"'{file}' is a filtered copy of form {version.decode(errors='replace')!r}, and only form 1 is known",
            help="it was written by another version of logscope: read it with that one, or fetch the log again",
        )
    try:
        header = json.loads(text)
    except ValueError as error:
        raise InputError(f"the first line of the filtered copy '{file}' is damaged", why=str(error)) from error
    if not isinstance(header, dict):
        raise InputError(f"the first line of the filtered copy '{file}' is damaged", why="it holds no JSON object")
    return header


def original_blocks(
    blocks: Iterable[Block], file: str, header: dict[str, Any], warn: Callable[[str], None], *, size: int = BLOCK_SIZE
) -> Iterator[Block]:
    """Yield the blocks of a filtered copy as parts of the original: its own lines and offsets, gaps marked.

    The form: ``%logscope-filtered 1 {json}``, then ``<line>:<offset>:<text>`` for every line that was kept, in rising
    order; ``blocks`` begin behind the first line. Neighbours are joined into one block, of about ``size`` bytes at
    most. When the header tells how long the original was, a last line without a newline gets none, and lines left out
    at the end make an empty last block.
    """
    total = header.get("bytes")
    total = total if isinstance(total, int) else None
    held = Block(file, 0, 1, b"")  # the last block is only known to be the last when nothing follows
    for block in _runs(blocks, file, warn, size, total):
        if held.data:
            yield held
        held = block
    if total is None or held.offset + len(held.data) >= total:
        held.final = True
        yield held
        return
    if held.data:
        yield held
    lines = header.get("lines")
    line = lines + 1 if isinstance(lines, int) else held.line + held.newlines
    yield Block(file, total, line, b"", final=True, gap=True)


def _runs(
    blocks: Iterable[Block], file: str, warn: Callable[[str], None], size: int, total: int | None
) -> Iterator[Block]:
    """Yield contiguous lines of the original as blocks; ``final`` is left to the caller."""
    run = Block(file, 0, 1, b"")
    parts: list[bytes] = []  # of the run's text
    line, offset = 1, 0  # where the next line of the run would stand
    held = damaged = unordered = 0
    inside = False  # the text goes on with a line begun before
    for text in (text for block in blocks for text in io.BytesIO(block.data)):
        here = (line, offset)
        kept = text
        if not inside:
            place = _PLACE.match(text)
            if place is None:
                damaged += 1
                continue
            kept = text[place.end() :]
            here = (int(place[1]), int(place[2]))
            unordered += here[0] < line or here[1] < offset
        if parts and (here != (line, offset) or held >= size):
            yield replace(run, data=b"".join(parts))
            parts.clear()
        if not parts:
            run = Block(file, here[1], here[0], b"", continues=inside, gap=here != (line, offset))
            held = 0
        inside = not text.endswith(b"\n")
        if here[1] + len(kept) - 1 == total and not inside:  # the original's last line had no newline
            kept = kept[:-1]
        parts.append(kept)
        held += len(kept)
        run.newlines += kept.endswith(b"\n")
        line, offset = here[0] + kept.endswith(b"\n"), here[1] + len(kept)
        if inside:  # a piece of a line too long to be held
            yield replace(run, data=b"".join(parts))
            parts.clear()
    if parts:
        yield replace(run, data=b"".join(parts))
    if damaged:
        warn(f"{damaged} lines of the filtered copy do not begin with line:offset: and were left out")
    if unordered:
        warn(f"{unordered} lines of the filtered copy are not in rising order; their places may be wrong")
