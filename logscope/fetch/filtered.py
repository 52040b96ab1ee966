"""Copies that hold only some lines of a file, each with its number and offset in the original.

This module is responsible for the filtered form: its first line, its entries, how grep's output becomes entries, and
how a copy in that form goes on. It must not know which texts are anchors, nor how the form is read.

    %logscope-filtered 1 {"lines": N, "bytes": M, ...}      N and M of the original, as far as it was looked at
    LINE:OFFSET:TEXT                                        one entry per kept line, in rising order

LINE is 1-based, OFFSET is the byte of the line's first byte in the original. Lines that are not there were left out.
The first line also says where the next look begins, so the file alone tells how to go on.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Protocol

from logscope.errors import RemoteError
from logscope.fetch.copy import Changed, Copy, check_room, digest, write
from logscope.fetch.manifest import EDGE, NEW, Edge, Part, beside
from logscope.fetch.ssh import SshError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logscope.fetch.link import Link
    from logscope.fetch.node import Node, Pack, Stat

MAGIC = b"%logscope-filtered 1 "
# Tensor text goes on for up to so many lines without a tag (the -A of the grep on the node).
CONTEXT = 3
_PIECE = 32 << 20
_LONG_LINE = 1 << 20
_GREP = re.compile(rb"(?m)^(?:--\n|(\d+)([:-])(\d+)\2)")
# A time near the beginning of a line, behind whatever collectors put there; the first one counts.
_STAMP = re.compile(rb"(?m)^.{0,100}?(?<!\d)(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)")
_PROBE, _LARGEST_PROBE = 1 << 16, 1 << 23


@dataclass(slots=True)
class Selection:
    """The JSON of the first line.

    ``lines`` and ``size`` (``bytes`` in the JSON) are of the original, an unfinished last line included;
    ``first_byte`` is where the first look began; the next one begins at ``resume_byte``, which is the first byte of
    line ``resume_line``.
    """

    lines: int = 0
    size: int = 0
    anchors: list[str] = field(default_factory=list)
    first_byte: int = 0
    resume_line: int = 1
    resume_byte: int = 0

    def line(self) -> bytes:
        """Return the first line of the form."""
        values = asdict(self)
        values = {"lines": values.pop("lines"), "bytes": values.pop("size"), **values}
        return MAGIC + json.dumps(values).encode() + b"\n"


def read_selection(file: Path) -> Selection | None:
    """Return what the first line of a file says, or None when the file is not in the filtered form."""
    with file.open("rb") as data:
        first = data.readline(1 << 20)
    if not first.startswith(MAGIC):
        return None
    try:
        values = json.loads(first[len(MAGIC) :])
        return Selection(size=values.pop("bytes"), **values)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


class Former(Protocol):
    """Turns what comes from the node into entries; ``reached`` is the original's byte it has got to."""

    reached: int

    def feed(self, data: bytes) -> bytes:
        """Return the entries of complete lines so far."""
        ...

    def close(self) -> bytes:
        """Return the entry of an unfinished last line."""
        ...


class FromGrep:
    """``N:B:text`` of matches, ``N-B-text`` of lines after them and ``--`` between groups, as GNU grep prints them.

    Numbers count from the start of the range that grep saw: its first line and byte are added.
    """

    def __init__(self, line: int, offset: int) -> None:
        self._line, self._offset = line - 1, offset
        self.reached = offset
        self._carry = b""
        self._inside = False  # a line too long to be held, whose beginning has gone out

    def feed(self, data: bytes) -> bytes:
        """Return the entries of complete lines so far.

        Raises:
            RemoteError: a line is not of the known form.

        """
        out = b""
        if self._inside:
            cut = data.find(b"\n") + 1
            if not cut:
                return data
            out, data, self._inside = data[:cut], data[cut:], False
        data = self._carry + data
        cut = data.rfind(b"\n") + 1
        out += self._entries(data[:cut], data.count(b"\n"))
        self._carry = data[cut:]
        if len(self._carry) > _LONG_LINE:
            out += self._entries(self._carry, 1)
            self._carry, self._inside = b"", True
        return out

    def close(self) -> bytes:
        """Return nothing: grep ends every line."""
        if self._carry:
            raise RemoteError("the output of grep on the node was cut off")
        return b""

    def _entries(self, data: bytes, lines: int) -> bytes:
        out, found = _GREP.subn(self._number, data)
        if found != lines:
            raise RemoteError(
                "grep on the node prints another form than GNU grep",
                help="fetch the whole file: leave --debug-only away",
            )
        return out

    def _number(self, found: re.Match[bytes]) -> bytes:
        if found[1] is None:
            return b""
        self.reached = int(found[3]) + self._offset
        return b"%d:%d:" % (int(found[1]) + self._line, self.reached)


class FromBytes:
    """The bytes of a range that begins at a line's first byte: every line is kept."""

    def __init__(self, line: int, offset: int) -> None:
        self._line, self.reached = line, offset
        self._inside = False

    def feed(self, data: bytes) -> bytes:
        """Return what has come, with line and offset before each line."""
        out = []
        for text in _lines(data):
            if not self._inside:
                out.append(b"%d:%d:" % (self._line, self.reached))
            out.append(text)
            self.reached += len(text)
            self._inside = not text.endswith(b"\n")
            self._line += not self._inside
        return b"".join(out)

    def close(self) -> bytes:
        """End an unfinished last line."""
        return b"\n" if self._inside else b""


def _lines(data: bytes) -> Iterator[bytes]:
    """Cut at newlines alone: bytes.splitlines cuts at a carriage return, too."""
    parts = data.split(b"\n")
    yield from (part + b"\n" for part in parts[:-1])
    if parts[-1]:
        yield parts[-1]


@dataclass(frozen=True, slots=True)
class Entry:
    """One kept line; ``at`` is where the entry begins in the local file."""

    line: int
    offset: int
    text: bytes
    at: int


def last_entries(file: Path, wanted: int = CONTEXT + 2) -> list[Entry]:
    """Return the last complete entries of a file that holds entries (after a first line, where there is one)."""
    size = file.stat().st_size
    length = 1 << 16
    with file.open("rb") as data:
        while True:
            start = max(0, size - length)
            data.seek(start)
            block = data.read(size - start)
            block = block[: block.rfind(b"\n") + 1]
            # Unless it is the file's beginning, the first line may be cut.
            skip = block.find(b"\n") + 1 if start else 0
            entries, at = [], start + skip
            for text in _lines(block[skip:]):
                line, colon, rest = text.partition(b":")
                offset, more, content = rest.partition(b":")
                if colon and more and line.isdigit() and offset.isdigit():
                    entries.append(Entry(int(line), int(offset), content[:-1], at))
                at += len(text)
            if len(entries) >= wanted or start == 0:
                return entries[-wanted:]
            length *= 4


class FilteredCopy(Copy):
    """A copy in the filtered form. Only the part and the first line tell where it goes on.

    Args:
        anchors: the texts of which a kept line holds one; without any, every line is kept.

    """

    form = "filtered"

    def __init__(
        self, link: Link, path: bytes, file: Path, advance: Callable[[int, int], None], anchors: tuple[bytes, ...]
    ) -> None:
        super().__init__(link, path, file, advance)
        self.anchors = anchors
        self.names = [os.fsdecode(anchor) for anchor in anchors]

    def local_is_ours(self) -> bool:
        """Look at the first line."""
        return read_selection(self.file) is not None

    def fits(self, node: Node, stat: Stat) -> bool:
        """Compare the last entry of a part that another process wrote."""
        part = self.manifest.part
        if part is None:
            return True
        last = last_entries(self.part, 1) if self.part.exists() else []
        ours = part.anchors == self.names and all(
            stat.size >= entry.offset + len(entry.text)
            and (not self.fresh or node.read(entry.offset, len(entry.text)) == entry.text)
            for entry in last
        )
        if not ours:
            self.cut_back()
        return True

    def cut_back(self) -> None:
        """Forget the part: entries are confirmed only all together."""
        self.manifest.part = None
        self.part.unlink(missing_ok=True)

    close_part = cut_back

    def join(self) -> None:
        """Give the new file its name."""
        manifest = self.manifest
        new = beside(self.file, NEW)
        if new.exists():
            new.replace(self.file)
        selection = read_selection(self.file) if self.file.exists() else None
        if selection is not None:
            manifest.size, manifest.tail = selection.size, None
        manifest.part = None
        manifest.sha256 = None

    def transfer(self, node: Node, stat: Stat, target: int) -> None:
        """Bring the entries of what is new, count the lines, and write the form anew."""
        manifest = self.manifest
        old = read_selection(self.file) if self.file.exists() else None
        part = manifest.part
        wanted = self._wanted_from(node, target)
        # What the copy holds is of use when it holds the same kind of lines, from early enough on.
        if old is not None and (old.anchors != self.names or wanted < old.first_byte):
            old = None
        base = old.resume_byte if old else 0
        if part is not None and (part.anew != (old is None) or part.base > max(wanted, base)):
            self.cut_back()
            part = None
        if part is not None or old is None or old.size != target:
            if part is None:
                part = self._new_part(node, wanted, old)
            self._receive(node, target, part)
            self._write(node, target, part, old)
            self.result.action = "new" if part.anew else "appended"
        manifest.size = target
        length = min(EDGE, target)
        head, tail = node.sums((0, length), (target - length, length))
        manifest.head, manifest.tail = Edge(length, head), Edge(length, tail)
        if self.options.digest and manifest.sha256 is None:
            manifest.sha256 = digest(self.file)
        self.done(stat)

    def _wanted_from(self, node: Node, target: int) -> int:
        """Return the byte from which lines are wanted, by --last and --since."""
        last, since = self.options.last, self.options.since
        return max(
            0 if last is None else node.line_start(target - last, target),
            0 if since is None else self._since(node, target, since),
        )

    def _new_part(self, node: Node, wanted: int, old: Selection | None) -> Part:
        """Begin a part: behind what the copy holds, or, without a copy to continue, where lines are wanted from."""
        line, base = (old.resume_line, old.resume_byte) if old else (1, 0)
        if wanted > base:
            line, base = line + node.count(base, wanted - base).newlines, wanted
        part = Part(base, line=line, anchors=self.names, anew=old is None)
        self.manifest.part = part
        self.part.unlink(missing_ok=True)
        self.manifest.save(self.file)
        return part

    def _receive(self, node: Node, target: int, part: Part) -> None:
        self.result.compress = pack = self.link.pack(self.path)
        line, at, held = part.line, part.base, 0
        entries = last_entries(self.part) if self.part.exists() else []
        if entries:
            # The last entry comes once more, or the last anchor while lines after it may still be due.
            again = [
                entry for entry in entries[:-1] if self._is_anchor(entry) and entry.line + CONTEXT >= entries[-1].line
            ]
            entry = [*again, entries[-1]][0]
            line, at, held = entry.line, entry.offset, entry.at
        out = os.open(self.part, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.ftruncate(out, held)
            former: Former = FromGrep(line, at) if self.anchors else FromBytes(line, at)
            for data in self._stream(node, pack, at, target, former):
                write(out, data)
                self.link.progress()
            write(out, former.close())
            os.fsync(out)
        except Changed:
            self.link.drop()
            self.cut_back()
            raise
        except (RemoteError, OSError):
            self.link.drop()
            raise
        finally:
            os.close(out)

    def _stream(self, node: Node, pack: Pack, at: int, target: int, former: Former) -> Iterator[bytes]:
        head = self.beginning
        if self.anchors:
            for data in node.grep(pack, at, max(0, target - at), head.bytes, self.anchors):
                yield former.feed(data)
                self.advance(former.reached, target)
            self.confirm(node, target)
            return
        for start in range(at, target, _PIECE):
            length = min(_PIECE, target - start)
            node.ask(pack, start, length, head.bytes)
            for data in node.answer(pack):
                at += len(data)
                yield former.feed(data)
                self.advance(at, target)
            self.confirm(node, start + length)
            if at < start + length:
                raise SshError("lost", f"{self.name} could not be read to its end", why="the node sent too little")

    def _is_anchor(self, entry: Entry) -> bool:
        return any(anchor in entry.text for anchor in self.anchors)

    def _write(self, node: Node, target: int, part: Part, old: Selection | None) -> None:
        """Write first line, old entries and new entries as a new file, and give it the copy's name."""
        counted = node.count(part.base, target - part.base)
        complete = part.line - 1 + counted.newlines
        resume_line, resume_byte = complete + 1, target - counted.unfinished
        for entry in last_entries(self.part):
            # Lines after an anchor that are not written yet belong to it.
            if self._is_anchor(entry) and entry.line + CONTEXT > complete:
                resume_line, resume_byte = min((resume_line, resume_byte), (entry.line, entry.offset))
        first = old.first_byte if old else part.base
        lines = complete + (counted.unfinished > 0)
        selection = Selection(lines, target, self.names, first, resume_line, resume_byte)
        check_room(self.file, self.part.stat().st_size + (self.file.stat().st_size if self.file.exists() else 0))
        new = beside(self.file, NEW)
        with new.open("wb") as out:
            out.write(selection.line())
            if old is not None:
                self._copy_before(part.line, out.write)
            with self.part.open("rb") as entries:
                while block := entries.read(1 << 20):
                    out.write(block)
            out.flush()
            os.fsync(out.fileno())
        part.complete = True
        self.manifest.save(self.file)
        self.join()

    def _copy_before(self, line: int, put: Callable[[bytes], int]) -> None:
        """Copy the entries before a line. Only the last few can be others: they are looked for at the end."""
        late = [entry for entry in last_entries(self.file) if entry.line >= line]
        end = late[0].at if late else self.file.stat().st_size
        with self.file.open("rb") as data:
            left = end - len(data.readline())
            while left > 0 and (block := data.read(min(left, 1 << 20))):
                put(block)
                left -= len(block)

    def _since(self, node: Node, target: int, since: str) -> int:
        """Return the first byte behind the last line whose time is before ``since``; times are taken to rise.

        Lines without a time may belong to the time before or behind them: those between the last earlier and the
        first later time are brought. Where the log has no times nothing is left out.
        """
        since = since.replace("T", " ")
        low, high = 0, target
        while high - low > _PROBE:
            middle = (low + high) // 2
            times = next(self._times(node, middle, high), [])
            if times is None:
                return self._without_times()
            if times and times[0][1] < since:
                low = times[0][0]
            else:
                high = middle
        start, newest = low, None
        for times in self._times(node, low, target):
            if times is None:
                return self._without_times()
            for behind, time in times:
                newest = time
                if time >= since:
                    return start
                start = behind
        if newest is None and low == 0:
            return self._without_times()
        self.notice(f"no line of {self.name} has a time from {since} on")
        return start

    def _without_times(self) -> int:
        self.notice(f"--since is left aside: too few lines of {self.name} begin with a date and a time")
        return 0

    def _times(self, node: Node, offset: int, end: int) -> Iterator[list[tuple[int, str]] | None]:
        """Yield, for one window after another, the times on lines that begin at or behind an offset.

        A time comes with the first byte behind its line. Windows without any are passed over; None when there were too
        many of these.
        """
        start, length = max(0, offset - 1), _PROBE
        while start < end:
            block = node.read(start, min(length, end - start))
            # Only lines that begin and end in the window; the byte before the offset tells whether one begins there.
            first = block.find(b"\n") + 1 if start else 0
            last = len(block) if start + len(block) >= end else block.rfind(b"\n") + 1
            times = []
            for found in _STAMP.finditer(block, first, last) if first or not start else ():
                behind = block.find(b"\n", found.end(), last) + 1 or last
                times.append((start + behind, f"{found[1].decode()} {found[2].decode()}"))
            if times:
                yield times
            elif length >= _LARGEST_PROBE:
                yield None
            length = _PROBE if times else length * 4
            if start + len(block) >= end:
                return
            start += max(last - 1, 0) if times else 0
