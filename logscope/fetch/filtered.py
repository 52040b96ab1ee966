"""Copies that hold only some lines of a file, each with its number and offset in the original.

This module is responsible for the filtered form: its first line, its entries, how grep's output becomes entries, and
how a copy in that form goes on. It must not know which texts are anchors, nor how the form is read.

    %logscope-filtered 1 {"lines": N, "bytes": M, ...}      N and M of the original, as far as it was looked at
    LINE:OFFSET:TEXT                                        one entry per kept line, in rising order

LINE is 1-based, OFFSET is the byte of the line's first byte in the original. Lines that are not there were left out.
The first line also says where the next look begins, so the file alone tells how to go on. That holds for the part, too:
it is the next state of the copy, with the first line of the last one until it is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from logscope.errors import RemoteError
from logscope.fetch.copy import Copy, check_room, digest, sync
from logscope.fetch.manifest import NEW, beside

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logscope.fetch.node import Stat

MAGIC = b"%logscope-filtered 1 "
# Tensor text goes on for up to so many lines without a tag (the -A of the grep on the node).
CONTEXT = 3
_LONG_LINE = 1 << 20
_ENTRY = re.compile(rb"(?m)^(\d+):(\d+):(.*)\n")
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
        """Return the first line of the form; blanks at its end leave room for larger numbers in its place."""
        values = asdict(self)
        values = {"lines": values.pop("lines"), "bytes": values.pop("size"), **values}
        return MAGIC + json.dumps(values).encode().ljust(200 + len(json.dumps(self.anchors))) + b"\n"


def read_selection(file: Path) -> Selection | None:
    """Return what the first line of a file says, or None when there is no file in the filtered form."""
    try:
        with file.open("rb") as data:
            first = data.readline(1 << 20)
        values = json.loads(first.removeprefix(MAGIC)) if first.startswith(MAGIC) else {}
        return Selection(size=values.pop("bytes"), **values)
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return None


class FromBytes:
    """Turns the bytes of a range into entries: every line is kept.

    Args:
        line: the number of the range's first line.
        offset: the range's first byte, which is that line's.

    ``reached`` is the original's byte it has got to.
    """

    _form = re.compile(rb"[^\n]+\n?|\n")

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
        data = self._carry + data
        cut = data.rfind(b"\n") + 1
        if len(data) - cut > _LONG_LINE:
            cut = len(data)
        self._carry = data[cut:]
        return self._entries(data[:cut])

    def close(self) -> bytes:
        """Return the entry of an unfinished last line, with an end."""
        out = self._entries(self._carry)
        return out + b"\n" * self._inside

    def _entries(self, data: bytes) -> bytes:
        if not data:
            return b""
        end = (data.find(b"\n") + 1 or len(data)) if self._inside else 0
        self._inside = not data.endswith(b"\n")
        self.reached += end
        out, found = self._form.subn(self._entry, data[end:])
        if found != data.count(b"\n", end) + (self._inside and end < len(data)):
            raise RemoteError(
                "grep on the node prints another form than GNU grep",
                help="fetch the whole file: leave --debug-only away",
            )
        return data[:end] + out

    def _entry(self, found: re.Match[bytes]) -> bytes:
        self._line += 1
        entry = b"%d:%d:%s" % (self._line, self.reached, found[0])
        self.reached += len(found[0])
        return entry


class FromGrep(FromBytes):
    """The same of ``N:B:text`` of matches, ``N-B-text`` of lines after them and ``--`` between groups.

    So GNU grep prints them. Numbers count from the start of the range: its first line and byte are added.
    """

    _form = re.compile(rb"(?m)^(?:--\n|(\d+)([:-])(\d+)\2)")

    def close(self) -> bytes:
        """Return nothing: grep ends every line."""
        if self._carry or self._inside:
            raise RemoteError("the output of grep on the node was cut off")
        return b""

    def _entry(self, found: re.Match[bytes]) -> bytes:
        if found[1] is None:
            return b""
        self.reached = int(found[3]) + self._offset
        return b"%d:%d:" % (int(found[1]) + self._line, self.reached)


class Entry(NamedTuple):
    """One kept line; ``at`` and ``end`` are where the entry begins and ends in the local file."""

    line: int
    offset: int
    text: bytes
    at: int
    end: int


def last_entries(file: Path, wanted: int = CONTEXT + 2) -> list[Entry]:
    """Return the last complete entries of a file that holds entries (after a first line, where there is one)."""
    size, length = file.stat().st_size, 1 << 16
    while True:
        start = max(0, size - length)
        with file.open("rb") as data:
            data.seek(start)
            block = data.read()
        # Unless it is the file's beginning, the first line may be cut.
        found = _ENTRY.finditer(block, min(1, start))
        entries = [Entry(int(e[1]), int(e[2]), e[3], start + e.start(), start + e.end()) for e in found]
        if len(entries) >= wanted or start == 0:
            return entries[-wanted:]
        length *= 4


class FilteredCopy(Copy):
    """A copy in the filtered form: of the lines that hold an anchor and those behind them, or of all lines."""

    form = "filtered"

    @property
    def anchors(self) -> list[str]:
        """The anchors as the first line names them."""
        return [os.fsdecode(anchor) for anchor in self.options.anchors]

    def finish(self) -> None:
        """Look how far a copy goes that got its name and was not noted."""
        manifest, selection = self.manifest, read_selection(self.file)
        if selection is not None and selection.size != manifest.size:
            manifest.size, manifest.tail, manifest.sha256 = selection.size, None, None

    def local_is_ours(self) -> bool:
        """Look at the first line."""
        return read_selection(self.file) is not None

    def fits(self, stat: Stat) -> bool:
        """Compare the last entry of the part."""
        last = last_entries(self.part, 1) if self.part.exists() else []
        for _, offset, text, _, _ in last:
            if stat.size < offset + len(text) or self.node.read(offset, len(text)) != text:
                self.cut_back()
        return True

    def sum_of(self, start: int, length: int) -> str:
        """Ask the node: the copy may not hold these bytes."""
        return self.node.sums((start, length))[0]

    def cut_back(self) -> None:
        """Forget the part: entries are confirmed only all together."""
        self.part.unlink(missing_ok=True)

    close_part = cut_back

    def transfer(self, target: int) -> None:
        """Bring the entries of what is new, and count the lines."""
        manifest = self.manifest
        last, since = self.options.last, self.options.since
        wanted = max(
            0 if last is None else self.node.line_start(target - last, target),
            0 if since is None else self._since(target, since),
        )
        part, kept = self._usable(self.part, wanted), self._usable(self.file, wanted)
        if part is not None or kept is None or kept.size != target:
            self.result.compress = self.node.pack(self.path)
            self._receive(target, wanted, part or self._begin(kept, wanted))
            self.result.action = "new" if kept is None else "appended"
            manifest.sha256 = None
        if self.options.digest and manifest.sha256 is None:
            manifest.sha256 = digest(self.file)

    def _usable(self, file: Path, wanted: int) -> Selection | None:
        """Return the selection of a file that holds the same kind of lines, from early enough on."""
        found = read_selection(file)
        return found if found and found.anchors == self.anchors and found.first_byte <= wanted else None

    def _begin(self, kept: Selection | None, wanted: int) -> Selection:
        """Begin a part: with what the copy holds, or, without a copy to continue, where lines are wanted from."""
        line = 1 if kept else 1 + self.node.count(0, wanted)[0]
        begun = kept or Selection(anchors=self.anchors, first_byte=wanted, resume_line=line, resume_byte=wanted)
        new = beside(self.file, NEW)
        with new.open("wb") as out:
            out.write(begun.line())
            if kept:
                check_room(self.file, self.file.stat().st_size)
                with self.file.open("rb") as old:
                    old.readline()
                    shutil.copyfileobj(old, out, 1 << 20)
        self.manifest.save(self.file)
        new.replace(self.part)
        return begun

    def _receive(self, target: int, wanted: int, begun: Selection) -> None:
        line, offset, at = self._go_on(begun, wanted)
        with self.writing() as out:
            out.truncate(at)
            former = FromGrep(line, offset) if self.options.anchors else FromBytes(line, offset)
            if self.options.anchors:
                length = max(0, target - offset)
                pack = self.node.pack(self.path)
                for data in self.node.grep(pack, offset, length, self.beginning.bytes, self.options.anchors):
                    out.write(former.feed(data))
                    self.advance(former.reached, target)
                self.confirm(target)
            else:
                for data, _ in self.pieces(offset, target):
                    out.write(former.feed(data))
            out.write(former.close())
        newlines, unfinished = self.node.count(offset, target - offset)
        lines = line - 1 + newlines
        done = Selection(
            lines + (unfinished > 0), target, self.anchors, begun.first_byte, lines + 1, target - unfinished
        )
        with self.part.open("r+b") as out:
            out.write(done.line())
            sync(out)
        self.part.replace(self.file)

    def _go_on(self, begun: Selection, wanted: int) -> tuple[int, int, int]:
        """Return the line and the offset of the original at which the part goes on, and where in the part."""
        entries = last_entries(self.part)
        # The last entry comes once more: what lies behind it was looked at only as far as the first line says.
        line, offset = max([(begun.resume_line, begun.resume_byte), *((e.line, e.offset) for e in entries[-1:])])
        for entry in entries:
            # So does an anchor while lines behind it may still be due.
            if entry.line < line <= entry.line + CONTEXT and any(
                anchor in entry.text for anchor in self.options.anchors
            ):
                line, offset = entry.line, entry.offset
                break
        if wanted > offset:
            line, offset = line + self.node.count(offset, wanted - offset)[0], wanted
        end = entries[-1].end if entries else len(begun.line())
        return line, offset, next((entry.at for entry in entries if entry.line >= line), end)

    def _since(self, target: int, since: str) -> int:
        """Return the first byte behind the last line whose time is before ``since``; times are taken to rise.

        Lines without a time may belong to the time before or behind them: those between the last earlier and the
        first later time are brought. Where the log has no times nothing is left out.
        """
        since = since.replace("T", " ")
        low, high, newest = 0, target, ""
        with contextlib.suppress(LookupError):
            while high - low > _PROBE:
                middle = (low + high) // 2
                behind, time = next(self._times(middle, high), (high, since))
                low, high = (low, middle) if time >= since else (behind, high)
            start = low
            for behind, newest in self._times(low, target):
                if newest >= since:
                    return start
                start = behind
            if newest or low:
                self.notice(f"no line of {self.name} has a time from {since} on")
                return start
        self.notice(f"--since is left aside: too few lines of {self.name} begin with a date and a time")
        return 0

    def _times(self, offset: int, end: int) -> Iterator[tuple[int, str]]:
        """Yield the times on lines that begin at or behind an offset, each with the first byte behind its line.

        Raises:
            LookupError: too many lines in a row have none.

        """
        start, length = max(0, offset - 1), _PROBE
        while start < end:
            block = self.node.read(start, min(length, end - start))
            # Only lines that begin and end in the window; the byte before the offset tells whether one begins there.
            first = block.find(b"\n") + 1 if start else 0
            last = len(block) if start + len(block) >= end else block.rfind(b"\n") + 1
            any_time = False
            for found in _STAMP.finditer(block, first, last) if first or not start else ():
                any_time = True
                behind = block.find(b"\n", found.end(), last) + 1 or last
                yield start + behind, f"{found[1].decode()} {found[2].decode()}"
            if not any_time and length >= _LARGEST_PROBE:
                raise LookupError
            if start + len(block) >= end:
                return
            length = _PROBE if any_time else length * 4
            start += max(last - 1, 0) if any_time else 0
