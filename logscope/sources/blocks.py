"""Blocks: a stream of bytes cut after newlines, with true line numbers and offsets, in bounded memory.

This module is responsible for where a stream may be cut, for lines that are longer than memory should be, and for the
filtered form that ``logscope fetch --debug-only`` writes. It must not know where bytes come from, nor what they say.
"""

from __future__ import annotations

import json
import os
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from logscope.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

BLOCK_SIZE = 8 << 20  # bytes of a block, as far as its lines allow
LINE_SLACK = 16 << 20  # bytes a block may grow beyond its size before a line is given in pieces
LINES = 1 << 18  # lines of a block: a reader of lines holds tens of bytes for each, and a hostile line has none
FILTERED = b"%logscope-filtered "
_PROBE = 16 << 10  # the first look for a newline; lines are shorter than this
_PROBE_LIMIT = 256 << 10


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
        lines were left out before this block (of a filtered copy, or of a file followed from its end).
    newlines
        the number of ``\n`` in data: counted once, for everybody.
    """

    file: str
    offset: int
    line: int
    data: bytes
    final: bool = False
    continues: bool = False
    gap: bool = False
    newlines: int = 0


class Window(Protocol):
    """The bytes of a stream from where it stands, looked at before they are taken. Positions count from there."""

    def fill(self, count: int) -> int:
        """Return how many of the next count bytes there are: fewer only when the stream ends (for now) before."""

    def find(self, byte: bytes, start: int, end: int) -> int:
        """Return the first position of a byte in start..end, both filled, or -1."""

    def rfind(self, byte: bytes, start: int, end: int) -> int:
        """Return the last position of a byte in start..end, both filled, or -1."""

    def peek(self, count: int) -> bytes:
        """Return the next count bytes (fewer at the end) and stay where it stands."""

    def take(self, count: int) -> bytes:
        """Return the next count bytes, which are filled, and go past them."""


class StreamWindow:
    """A window on anything that can only be read forward.

    ``read`` returns the next bytes, none at the end; it may be asked again after that (a file that is followed).
    """

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read = read
        self._pieces: deque[bytes] = deque()
        self._start = 0  # taken bytes of the first piece: slicing it off would copy the rest every time
        self.held = 0

    def fill(self, count: int) -> int:
        """See :class:`Window`. Holds at most one piece more than asked for."""
        while self.held < count and (piece := self._read()):
            self._pieces.append(piece)
            self.held += len(piece)
        return min(self.held, count)

    def find(self, byte: bytes, start: int, end: int) -> int:
        """See :class:`Window`."""
        base = -self._start
        for piece in self._pieces:
            if base >= end:
                break
            if base + len(piece) > start:
                at = piece.find(byte, max(start - base, 0), end - base)
                if at >= 0:
                    return base + at
            base += len(piece)
        return -1

    def rfind(self, byte: bytes, start: int, end: int) -> int:
        """See :class:`Window`."""
        base = self.held
        for piece in reversed(self._pieces):
            base -= len(piece)
            if base < end:
                at = piece.rfind(byte, max(start - base, 0), end - base)
                if at >= 0:
                    return base + at
                if base <= start:
                    break
        return -1

    def peek(self, count: int) -> bytes:
        """See :class:`Window`."""
        parts: list[bytes | memoryview] = []
        left = self.fill(count)
        start = self._start
        for piece in self._pieces:
            if not left:
                break
            part = memoryview(piece)[start : start + left]
            parts.append(part)
            left -= len(part)
            start = 0
        return b"".join(parts)

    def take(self, count: int) -> bytes:
        """See :class:`Window`."""
        data = self.peek(count)
        self.held -= len(data)
        self._start += len(data)
        while self._pieces and self._start >= len(self._pieces[0]):
            self._start -= len(self._pieces.popleft())
        return data


class FileWindow:
    """A window on a plain file: the newline is found by small probes, the block is then read once, never copied.

    Reads up to ``end``, the size first seen, so that a log that grows faster than it is read comes to an end.
    ``missing`` is how many bytes of it were gone when their turn came.
    """

    def __init__(self, fd: int, end: int) -> None:
        self._fd = fd
        self._at = 0
        self._end = end
        self.missing = 0

    def fill(self, count: int) -> int:
        """See :class:`Window`."""
        return min(count, self._end - self._at)

    def find(self, byte: bytes, start: int, end: int) -> int:
        """See :class:`Window`."""
        probe = _PROBE
        while start < end:
            at = os.pread(self._fd, min(probe, end - start), self._at + start).find(byte)
            if at >= 0:
                return start + at
            start += probe
            probe = min(2 * probe, _PROBE_LIMIT)
        return -1

    def rfind(self, byte: bytes, start: int, end: int) -> int:
        """See :class:`Window`."""
        probe = _PROBE
        while start < end:
            begin = max(start, end - probe)
            at = os.pread(self._fd, end - begin, self._at + begin).rfind(byte)
            if at >= 0:
                return begin + at
            end = begin
            probe = min(2 * probe, _PROBE_LIMIT)
        return -1

    def peek(self, count: int) -> bytes:
        """See :class:`Window`."""
        return os.pread(self._fd, self.fill(count), self._at)

    def take(self, count: int) -> bytes:
        """See :class:`Window`."""
        data = os.pread(self._fd, count, self._at)
        while len(data) < count:
            more = os.pread(self._fd, count - len(data), self._at + len(data))
            if not more:  # the file became shorter
                self.missing = self._end - self._at - len(data)
                self._end = self._at + len(data)
                break
            data += more
        self._at += len(data)
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
    end = window.rfind(b"\n", 0, have) + 1
    limit = size + slack
    while not end:
        if have == limit:
            # No newline so far: every \r but a last one is a lone one.
            end = window.rfind(b"\r", 0, have - 1) + 1
            return end or (have - (have > 1 and window.rfind(b"\r", have - 1, have) >= 0))
        searched = have
        wanted = min(searched + max(size, _PROBE), limit)
        have = window.fill(wanted)
        end = window.find(b"\n", searched, have) + 1
        if not end and have < wanted:
            return have
    return end


def cut_blocks(window: Window, file: str, *, size: int = BLOCK_SIZE, slack: int = LINE_SLACK) -> Iterator[Block]:
    """Yield a stream as blocks: at least one, the last one final.

    A block has at most ``size + slack`` bytes; a stream (not a plain file) holds them twice while it joins its pieces.
    """
    offset, line, continues = 0, 1, False
    while True:
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
        if final:
            return


def _parts(data: bytes) -> list[tuple[bytes, int]]:
    """Return what a block is given in, with the lines of each, the last one first: as it is, unless it has too many."""
    newlines = data.count(b"\n")
    if newlines <= LINES:
        return [(data, newlines)]
    middle = data.rfind(b"\n", 0, len(data) // 2) + 1 or data.find(b"\n", len(data) // 2) + 1
    return _parts(data[middle:]) + _parts(data[:middle])


def first_bytes(blocks: Iterable[Block], limit: int, warn: Callable[[str], None]) -> Iterator[Block]:
    """Yield the blocks of the first ``limit`` bytes, the last of them final; warns when there are more."""
    for block in blocks:
        left = limit - block.offset
        if len(block.data) < left or (len(block.data) == left and block.final):
            yield block
            continue
        data = block.data[:left]
        warn(f"only the first {limit} bytes were read")
        yield replace(block, data=data, final=True, newlines=data.count(b"\n"))
        return


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
    blocks: Iterable[Block],
    file: str,
    header: dict[str, Any],
    warn: Callable[[str], None],
    *,
    size: int = BLOCK_SIZE,
) -> Iterator[Block]:
    """Yield the blocks of a filtered copy as parts of the original: its own lines and offsets, gaps marked.

    The form: ``%logscope-filtered 1 {json}``, then ``<line>:<offset>:<text>`` for every line that was kept, in rising
    order; ``blocks`` begin behind the first line. Neighbours are joined into one block, of about ``size`` bytes at
    most. When the header tells how long the original was, a last line without a newline gets none, and lines left out
    at the end make an empty last block.
    """
    total = header.get("bytes")
    total = total if isinstance(total, int) else None
    held: Block | None = None  # the last block is only known to be the last when nothing follows
    for block in _runs(blocks, file, warn, size, total):
        if held is not None:
            yield held
        held = block
    if held is None:
        held = Block(file, 0, 1, b"")
    end = held.offset + len(held.data)
    if total is None or end >= total:
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
    parts: list[bytes] = []  # text of the run that is being collected
    line, offset, gap, continues = 1, 0, False, False  # where the run begins
    next_line, next_offset = 1, 0  # where its next line would stand
    held = newlines = damaged = unordered = 0
    inside = False  # the last line is not complete: the block before held a piece of it

    def run() -> Block:
        return Block(file, offset, line, b"".join(parts), continues=continues, gap=gap, newlines=newlines)

    for block in blocks:
        lines = block.data.split(b"\n")
        last = len(lines) - 1
        for index, text in enumerate(lines):
            if index == last and not text:
                break
            ended = index < last
            if not inside:
                number, _, other = text.partition(b":")
                at, colon, text = other.partition(b":")  # noqa: PLW2901 - the line without its place
                if not (colon and number.isdigit() and at.isdigit()):
                    damaged += 1
                    continue
                new_line, new_offset = int(number), int(at)
                unordered += new_line < next_line or new_offset < next_offset
                joined = new_line == next_line and new_offset == next_offset
                if parts and (not joined or held >= size):
                    yield run()
                    parts.clear()
                if not parts:
                    line, offset, gap, continues = new_line, new_offset, not joined, False
                    held = newlines = 0
                next_line, next_offset = new_line, new_offset
            elif not parts:
                line, offset, gap, continues = next_line, next_offset, False, True
                held = newlines = 0
            if ended and next_offset + len(text) != total:  # the original's last line may have had no newline
                text += b"\n"  # noqa: PLW2901 - the line as it was
                newlines += 1
                next_line += 1
            parts.append(text)
            held += len(text)
            next_offset += len(text)
            inside = not ended
        if inside and parts:  # a piece of a line too long to be held
            yield run()
            parts.clear()
    if parts:
        yield run()
    if damaged:
        warn(f"{damaged} lines of the filtered copy do not begin with line:offset: and were left out")
    if unordered:
        warn(f"{unordered} lines of the filtered copy are not in rising order; their places may be wrong")
