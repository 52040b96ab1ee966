"""Logs whose lines were wrapped by something that changes their bytes: Kubernetes, docker, JSON loggers, UTF-16.

This module is responsible for the text inside the wrapper and for where each byte of it stood in the file: line and
offset of a record stay those of the physical file, and what the wrapper says (time, host, pod, container, stream,
level, ranks) is kept beside it. It must not know a record of any server, nor a prefix that stands in the text itself.

The wrapper is found out from lines, per file; a log without one passes untouched, at the price of a look at some lines
of each block. A line that does not fit is passed on as it stands. Wrappers may lie in one another (a JSON logger below
Kubernetes, either saved as UTF-16): each is a layer, and places are looked up through all of them.

Source of CRI's form: the Kubernetes design proposal "kubelet-cri-logging".
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from logscope.sources.blocks import LINE_SLACK, Block
from logscope.sources.json_lines import JsonLines, end_line, is_pretty
from logscope.sources.places import Line, Places, joined, part_of, plain_places, through

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_LAYERS = 4
_SAMPLE = 32  # lines looked at in one place of a block
_RECENT = 8  # lines of a growing file that decide
_LARGE = 64 << 10  # a block from which lines are looked at in several places: a banner may stand before wrapped lines
# A line waits so long for its next part, or an object for its end; what stands behind it waits too.
_HELD, _HELD_LINES = 1 << 20, 512


def unwrap(
    blocks: Iterable[Block | None],
    warn: Callable[[str], None] = lambda _: None,
    labels: Callable[[], Layer] | None = None,
) -> Iterator[Block | None]:
    """Yield the blocks of a file, or of several generations of one, with the text inside their wrapper.

    A block whose text was unwrapped has ``places``; its ``line`` and ``offset`` are those of its first byte. Blocks
    without a wrapper pass as they are, and so does None (a poll that brought nothing). ``warn`` is told, at the end of
    a file, what did not fit. Lines may be held back, at most 1 MiB of them, until the next part of the first has come.
    ``labels`` makes the layer that learns what stands before lines, innermost, for each file.
    """
    layers: list[Layer] = []
    learned: list[Layer] = []  # none, or the one of this file
    recent: deque[tuple[bool, ...]] = deque(maxlen=_RECENT)
    size = lines = 0  # of the file, read since the last block was given
    for block in blocks:
        if block is None:
            yield None
            continue
        ready = physical = [block]
        for number in range(_LAYERS):
            if number == len(layers):
                if not ready or (found := _wrapper(ready[0], recent, first=not layers)) is None:
                    break
                layers.append(found)
                recent.clear()
            ready = [inner for outer in ready for inner in layers[number].take(outer)]
            if isinstance(layers[number], _Utf16):  # lines are those of its signs, not of its bytes
                physical = ready
        if labels is not None:
            learned = learned or [labels()]
            ready = [inner for outer in ready for inner in learned[0].take(outer)]
        if layers or learned:
            size += len(block.data)
            lines += sum(part.newlines or part.data.count(b"\n") for part in physical)
            lines += bool(block.final and physical[-1].data) and not physical[-1].data.endswith(b"\n")
            for part in ready:
                part.read, size, lines = (size, lines), 0, 0
        yield from ready
        if block.final:
            for layer in [*layers, *learned]:
                layer.tell(warn)
            layers, learned = [], []
            recent.clear()


class Layer(Protocol):
    """One wrapper of one file."""

    def take(self, block: Block) -> list[Block]:
        """Return the text of a block, with what was held of those before, as far as it is complete."""

    def tell(self, warn: Callable[[str], None]) -> None:
        """Say what did not fit."""


def _wrapper(block: Block, recent: deque[tuple[bool, ...]], *, first: bool) -> Layer | None:
    """Return the wrapper that half of the lines, somewhere in what is looked at of a block, lie in."""
    data = block.data
    if first and not block.offset:
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            return _Utf16("<u2" if data[:1] == b"\xff" else ">u2")
        if is_pretty(data):
            return Lines(JsonLines())
    for place in [0] if len(data) < _LARGE else [len(data) * quarter // 4 for quarter in range(4)]:
        lines = recent if not place else deque[tuple[bool, ...]](maxlen=_RECENT)
        start = data.find(b"\n", place) + 1 if place else 0
        for number in range(1, _SAMPLE + 1):
            end = data.find(b"\n", start) + 1 or len(data)
            if not data[start:end].isspace() and end > start:
                lines.append(tuple(form.fits(data, start, end) for form in _FORMS))
            start = end
            enough = len(lines) == _RECENT or start == len(data) or number == _SAMPLE
            for form, fits in zip(_FORMS, zip(*lines, strict=True), strict=False):
                if enough and 2 * sum(fits) >= len(fits):
                    return Lines(form())
            if start == len(data):
                break
    return None


class Form(Protocol):
    """A way to wrap single lines; one that is known by itself also has ``fits(data, start, end)``, asked of a line."""

    name: str

    def lines(self, data: bytes, *, final: bool) -> Iterator[Line]:
        """Yield every line of the data; ends early where the last one is not complete and may still become so."""


# What begins so is no continuation: the last part of the line before was lost.
_BEGINS = re.compile(rb"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d")


class Lines:
    """A layer of lines that are wrapped one by one; parts of one line are joined in the place of the first."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._held: Block | None = None
        self._lines = self._odd = self._broken = 0
        self._turned: bool | None = None

    def take(self, block: Block) -> list[Block]:
        """See :class:`Layer`."""
        done: list[Block] = []
        start, end = 0, len(block.data)
        if block.continues:  # the rest of a line too long to be held: as it stands
            start = block.data.find(b"\n") + 1 or end
        if not block.final:
            end = max(block.data.rfind(b"\n") + 1, start)
        whole = block if end - start == len(block.data) else part_of(block, start, end, final=block.final)
        if start:
            done.append(part_of(block, 0, start, final=block.final and start == end))
        if self._held is not None and (start or block.gap):
            done = [*self._convert(replace(self._held, final=True)), *done]
            self._held = None
        if self._held is not None:
            whole = joined(self._held, whole)
        if whole.data or (block.final and not start):
            done += self._convert(whole, last=end < len(block.data))
        if end < len(block.data):
            done.append(part_of(block, end))
        for index, ready in enumerate(done):
            ready.final = block.final and index == len(done) - 1
        return done

    def tell(self, warn: Callable[[str], None]) -> None:
        """See :class:`Layer`."""
        if self._odd:
            warn(f"{self._odd} of {self._lines} lines are no {self._form.name} like the others and stand as they are")
        if self._broken:
            warn(f"{self._broken} lines that came in parts ({self._form.name}) lack their last part")
        if self._turned:
            warn("stands newest first, as exports do: its passes and onsets are only right when it is sorted by time")

    def _convert(self, block: Block, *, last: bool = False) -> list[Block]:
        """Return the text of whole lines; keep the rest. ``last``: nothing is kept."""
        keep = not (block.final or last)
        lines, used = self._gathered(block, keep=keep)
        self._held = part_of(block, used) if used < len(block.data) else None
        self._lines += len(lines)
        self._odd += sum(line.key is None and line.pieces[0][0].strip(b" \t\r\n[],") != b"" for line in lines)
        data = b"".join([piece for line in lines for piece, _ in line.pieces])
        if not data:
            return [part_of(block, 0, 0, final=True)] if block.final else []
        if self._turned is None and sum(line.time is not None for line in lines) > 2:
            times = [line.time for line in lines if line.time is not None]
            self._turned = times[0] > times[-1] and times == sorted(times, reverse=True)
        places = through(lines, block.places or plain_places(block))
        line, offset = int(places.line[0]), int(places.offset[0])
        return [replace(block, line=line, offset=offset, data=data, newlines=data.count(b"\n"), places=places)]

    def _gathered(self, block: Block, *, keep: bool) -> tuple[list[Line], int]:
        """Return the lines of a block, parts joined, and how many bytes of it they take."""
        data = block.data
        lines: list[Line] = []
        waiting: dict[object, int] = {}  # lines that lack parts
        used = len(data)
        for line in self._form.lines(data, final=not keep):
            if not line.pieces:  # not complete yet
                used = line.start
                break
            at = waiting.pop(line.key, None) if waiting else None
            if at is not None and _BEGINS.match(line.pieces[0][0]):
                self._broken += 1
                end_line(lines[at].pieces, 0)
                at = None
            if at is None:
                at = len(lines)
                lines.append(line)
            else:
                lines[at].pieces.extend(line.pieces)
            if line.more:
                waiting[line.key] = at
        if waiting:
            first = min(waiting.values())
            if keep and len(data) - lines[first].start < _HELD and len(lines) - first < _HELD_LINES:
                used = lines[first].start
                del lines[first:]
            else:
                self._broken += len(waiting)
                for at in waiting.values():
                    end_line(lines[at].pieces, 0)
        return lines, used


# CRI: TIME stdout|stderr F|P text

_CRI = re.compile(
    rb"(?:\xef\xbb\xbf)?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)) (stdout|stderr) ([FP])"
    rb"(?::[^ \n]*)?(?: |(?=\r?\n)|\Z)"
)


class CriLines:
    """Container logs of a Kubernetes node."""

    name = "CRI"

    @staticmethod
    def fits(data: bytes, start: int, end: int) -> bool:
        """See :class:`Form`."""
        return _CRI.match(data, start, end) is not None

    def lines(self, data: bytes, *, final: bool) -> Iterator[Line]:  # noqa: ARG002 - a line is complete
        """See :class:`Form`."""
        start, length = 0, len(data)
        while start < length:
            end = data.find(b"\n", start) + 1 or length
            found = _CRI.match(data, start, end)
            if found is None:
                yield Line(start, [(data[start:end], start)])
            else:
                time, stream, tag = found.groups()
                more = tag == b"P"
                # The newline of a part is not of the text, nor a \r before it.
                text = data[found.end() : end].rstrip(b"\r\n") if more else data[found.end() : end]
                yield Line(start, [(text, found.end())], stream, more, time.decode())
            start = end


_FORMS: tuple[type[CriLines | JsonLines], ...] = (CriLines, JsonLines)


# UTF-16 with a byte order mark, as PowerShell writes it.


class _Utf16:
    """A file in UTF-16: lines are those of its characters, each of which takes two bytes or four."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._held = b""
        self._line = 1
        self._inside = False  # the last block given ended inside a line

    def take(self, block: Block) -> list[Block]:
        """See :class:`Layer`. A line is given when the byte behind its newline is there: it may be another sign's."""
        offset = block.offset - len(self._held)
        data = self._held + block.data
        if not offset:  # the mark
            offset, data = 2, data[2:]
        units = np.frombuffer(data, self._unit, len(data) // 2)
        high = (units >= 0xD800) & (units < 0xDC00)
        end = len(units)
        if not block.final:
            newlines = np.flatnonzero(units == ord("\n"))
            if len(newlines):
                end = int(newlines[-1]) + 1
            elif len(data) < LINE_SLACK:
                end = 0
            elif end:
                end -= int(high[end - 1])
        self._held = data[2 * end :]
        units, high = units[:end], high[:end]
        text = units.astype("<u2").tobytes().decode("utf-16-le", "surrogatepass").encode("utf-8", "surrogatepass")
        if block.final:
            text += self._held  # half a character
        if not (text or block.final):
            return []
        # What a unit takes in UTF-8; of a pair, the first takes all.
        follows = np.append(units[1:], 0)
        pair = high & (follows >= 0xDC00) & (follows < 0xE000)
        size = 1 + (units >= 0x80) + (units >= 0x800) + pair  # numpy adds truth values to numbers
        size[1:][pair[:-1]] = 0
        breaks = (units == ord("\n")) | (units >= 0x80)
        begins = np.flatnonzero(np.append(True, breaks))
        at = np.append(0, np.cumsum(size))[begins]
        line = self._line + np.append(0, np.cumsum(units == ord("\n")))[begins]
        places = Places(at, line, offset + 2 * begins, np.zeros(len(at), np.int64), 2)
        count = text.count(b"\n")
        made = Block(block.file, offset, self._line, text, block.final, self._inside, block.gap, count, places)
        self._line += count
        self._inside = not text.endswith(b"\n")
        return [made]

    def tell(self, warn: Callable[[str], None]) -> None:
        """See :class:`Layer`."""
        if self._held:
            warn("is UTF-16 with an odd byte at its end, which is half a character")
