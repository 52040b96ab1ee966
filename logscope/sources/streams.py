"""One input, opened and read as blocks: a plain file, a pipe, a device, a file object, packed or filtered or neither.

This module is responsible for :class:`Source`. It must not know how a user names inputs, nor what stands in a log.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from logscope.errors import InputError
from logscope.sources.blocks import (
    BLOCK_SIZE,
    FILTERED,
    LINE_SLACK,
    Block,
    FileWindow,
    StreamWindow,
    Window,
    cut_blocks,
    filtered_header,
    first_bytes,
    original_blocks,
)
from logscope.sources.unpack import HEAD, Damage, Form, form_of, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PIPE_SIZE = 1 << 20
_HEADER_LIMIT = 1 << 20
_SNIFF = 4 << 10

# Things people hand over that are no logs, told by their first bytes, and what to do about them.
_HINTS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\xff\xfe", "is UTF-16 text, which is not read as such; convert it: iconv -f UTF-16 -t UTF-8 FILE"),
    (0, b"\xfe\xff", "is UTF-16 text, which is not read as such; convert it: iconv -f UTF-16 -t UTF-8 FILE"),
    (257, b"ustar", "is a tar archive, whose files are read as one text here; unpack it: tar -xf FILE"),
    (0, b"PK\x03\x04", "is a zip archive, which is not unpacked here: unzip -p FILE | logscope COMMAND -"),
    (0, b"\x04\x22\x4d\x18", "is an lz4 archive, which is not unpacked here: lz4 -dc FILE | logscope COMMAND -"),
)


@dataclass(slots=True, eq=False)
class Source:
    """One input that can be read as blocks; files as often as wanted, pipes once.

    name
        as the user gave it; ``-`` for standard input; members of a directory carry the directory's name.
    path, stream
        what is opened: a path, or a binary (or text) file object, which is left open.
    size
        bytes of the text: None when unknown (compressed, pipe, device).
    compressed
        ``gz``, ``bz2``, ``xz``, ``zst`` or None; of a pipe known once it is read.
    limit
        bytes of text that are read at most.
    saved_run
        True for a folder that ``Run.save`` wrote: it has no blocks.
    original
        what a filtered copy says of the log it was made from (``lines``, ``bytes``, ...), once it is read.

    ``warnings`` are sentences about this input, for the user; complete when the blocks have been read.
    """

    name: str
    path: str | None = None
    stream: Any = field(default=None, repr=False)
    size: int | None = None
    compressed: Form | None = None
    limit: int | None = None
    saved_run: bool = False
    original: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)
    _start: int | None = field(default=None, repr=False)
    _opened: bool = field(default=False, repr=False)

    def warn(self, sentence: str) -> None:
        """Add a sentence about this input, once."""
        sentence = f"{self.name}: {sentence}"
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def blocks(self, *, size: int = BLOCK_SIZE, slack: int = LINE_SLACK, limit: int | None = None) -> Iterator[Block]:
        """Yield the text as blocks: at least one, the last one final. An empty input is one empty block.

        ``size`` and ``slack`` (bytes) are explained at :func:`~logscope.sources.blocks.cut`; no block is longer than their
        sum. ``limit`` bytes are read at most.

        A damaged archive, or a file that becomes shorter meanwhile, gives what could be read and a warning.

        Raises
        ------
        InputError
            When the input cannot be opened or read, or is a pipe that was read before.

        """
        if size < 1 or slack < 0:
            raise ValueError("a block has at least one byte")
        if self.saved_run:
            raise InputError(f"'{self.name}' is a saved run, not a log")
        limit = min((value for value in (limit, self.limit) if value is not None), default=None)
        return self._blocks(size, slack, limit)

    def _blocks(self, size: int, slack: int, limit: int | None) -> Iterator[Block]:
        try:
            with self._window() as raw:
                window: Window = raw
                self.compressed = form_of(raw.peek(HEAD))
                if self.compressed is not None:
                    window = StreamWindow(partial(next, self._unpacked(self.compressed, raw), b""))
                found = self._understood(window, size, slack)
                yield from found if limit is None else first_bytes(found, limit, self.warn)
                if isinstance(raw, FileWindow) and raw.missing:
                    self.warn(f"became shorter while it was read: {raw.missing} bytes are missing at its end")
        except OSError as error:
            raise unreadable(self.name, error) from error

    def _understood(self, window: Window, size: int, slack: int) -> Iterator[Block]:
        """Return the blocks of a log, or of the original of a filtered copy; warn of what is no log at all."""
        head = window.peek(_SNIFF)
        for at, magic, hint in _HINTS:
            if head.startswith(magic, at):
                self.warn(hint)
        if self.compressed is not None and form_of(head) is not None:
            self.warn("is compressed twice, and only the outer archive was unpacked")
        if not head.startswith(FILTERED):
            return cut_blocks(window, self.name, size=size, slack=slack)
        have = window.fill(_HEADER_LIMIT)
        self.original = filtered_header(window.take(window.find(b"\n", 0, have) + 1 or have), self.name)
        # The first piece of a long line must hold the whole place before its text.
        kept = cut_blocks(window, self.name, size=max(size, _SNIFF), slack=slack)
        return original_blocks(kept, self.name, self.original, self.warn, size=size)

    def _unpacked(self, form: Form, raw: Window) -> Iterator[bytes]:
        """Yield the text of an archive, as far as it can be had, and warn of the rest."""

        def read(count: int) -> bytes:
            return raw.take(raw.fill(count))

        given = 0
        try:
            for text in unpack(form, read):
                given += len(text)
                yield text
        except Damage as damage:
            self.warn(f"the {form} archive {damage}; {given} bytes of text were read")

    @contextlib.contextmanager
    def _window(self) -> Iterator[Window]:
        """Open the input."""
        if self.path is None:
            yield StreamWindow(self._stream_reader())
            return
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            # Files of /proc have no size before they are read.
            if stat.S_ISREG(status.st_mode) and status.st_size:
                yield FileWindow(fd, status.st_size)
            else:
                widen(fd)
                yield StreamWindow(partial(os.read, fd, PIPE_SIZE))
        finally:
            os.close(fd)

    def _stream_reader(self) -> Callable[[], bytes]:
        """Return what reads the file object on; from where it stood at first, when it is read again."""
        stream = self.stream
        seekable = getattr(stream, "seekable", None)
        if seekable is not None and seekable():
            if self._start is None:
                self._start = stream.tell()
            stream.seek(self._start)
        elif self._opened:
            raise InputError(f"'{self.name}' was read before and cannot be read again", help="save it to a file first")
        self._opened = True
        with contextlib.suppress(OSError, ValueError, AttributeError):  # it may have no descriptor
            widen(stream.fileno())
        return partial(_read_stream, stream)


def widen(fd: int) -> None:
    """Let a pipe hold 1 MiB, where it is one and the system allows it: the usual 64 KiB halve the speed."""
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_SIZE)


def _read_stream(stream: Any) -> bytes:
    """Read a file object on: its bytes, or the UTF-8 form of its text."""
    data = stream.read(PIPE_SIZE)
    while data is None:  # nothing yet, of a descriptor opened not to wait
        time.sleep(0.05)
        data = stream.read(PIPE_SIZE)
    if isinstance(data, str):
        try:
            return data.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return data.encode("utf-8", "surrogatepass")
    return bytes(data)


def standard_input() -> Any:
    """Return standard input as a binary file object where it is one, or None when it is closed."""
    return getattr(sys.stdin, "buffer", sys.stdin)


def unreadable(name: str, error: Exception) -> InputError:
    """Return the error for something that is there and cannot be read."""
    reason = (getattr(error, "strerror", None) or str(error)).lower()
    advice = "as another user: sudo cat FILE | logscope COMMAND -" if isinstance(error, PermissionError) else None
    return InputError(f"'{name}' cannot be read: {reason}", help=advice)
