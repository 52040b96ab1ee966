"""One input, opened and read as blocks: a plain file, a pipe, a device, a file object, packed or filtered or neither.

This module is responsible for :class:`Source` and for gz, bz2, xz and zst: members that follow each other, archives
that end too early or are damaged, and bombs. It must not know how a user names inputs, nor what stands in a log.
"""

from __future__ import annotations

import bz2
import contextlib
import fcntl
import io
import lzma
import os
import select
import stat
import sys
import time
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from logscope.errors import InputError
from logscope.sources.blocks import (
    BLOCK_SIZE,
    FILTERED,
    LINE_SLACK,
    Block,
    Window,
    cut_blocks,
    filtered_header,
    original_blocks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Form: TypeAlias = Literal["gz", "bz2", "xz", "zst"]
Read: TypeAlias = "Callable[[int], bytes]"

PIPE_SIZE = 1 << 20
DEVICE_LIMIT = 256 << 20  # bytes read of a device: /dev/zero has no end
HEAD = 18  # bytes that are needed to tell the form of an archive
# One call takes and gives at most this much: a bomb stays small, and a call that meets damage loses little good text
# (larger steps are not faster).
STEP = 16 << 10
# Both formats let a file ask for gigabytes of window; the usual presets stay below 128 MiB.
_WINDOW_LIMIT = 128 << 20
_HEADER_LIMIT = 1 << 20
_SNIFF = 4 << 10

_MAGIC: tuple[tuple[bytes, Form], ...] = (
    (b"\x1f\x8b\x08", "gz"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zst"),
)
_BZ2_FIRST_BLOCK = (b"1AY&SY", b"\x17rE8P\x90")  # a block, or the end of an empty archive
# Things people hand over that are no logs, told by their first bytes, and what to do about them.
_HINTS: tuple[tuple[int, bytes, str], ...] = (
    (257, b"ustar", "is a tar archive, whose files are read as one text here; unpack it: tar -xf FILE"),
    (0, b"PK\x03\x04", "is a zip archive, which is not unpacked here: unzip -p FILE | logscope COMMAND -"),
    (0, b"PAR1", "is a Parquet file, no log: polars reads it, and a saved run is opened by the name of its folder"),
    (0, b'{"file": ', "holds events that logscope wrote, no log"),
    (0, b"file,line,offset,segment,", "holds events that logscope wrote, no log"),
    (0, b'{\n  "schema": ', "is a report that logscope wrote, no log"),
    (0, b"<!DOCTYPE html>", "is a page for a browser, no log"),
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
    saved_run
        True for a folder that ``Run.save`` wrote: it has no blocks.

    ``warnings`` are sentences about this input, for the user; complete when the blocks have been read.
    """

    name: str
    path: str | None = None
    stream: Any = field(default=None, repr=False)
    size: int | None = None
    compressed: Form | None = None
    saved_run: bool = False
    warnings: list[str] = field(default_factory=list)
    _start: int | None = field(default=None, repr=False)
    _opened: bool = field(default=False, repr=False)

    def warn(self, sentence: str) -> None:
        """Add a sentence about this input, once."""
        sentence = f"{self.name}: {sentence}"
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def blocks(self, *, size: int = BLOCK_SIZE, slack: int = LINE_SLACK) -> Iterator[Block]:
        """Yield the text as blocks: at least one, the last one final. An empty input is one empty block.

        ``size`` and ``slack`` (bytes) are explained at :func:`.blocks.cut`; no block is longer than their sum.

        A damaged archive, or a file that becomes shorter meanwhile, gives what could be read and a warning.

        Raises
        ------
        InputError
            When the input cannot be opened or read, or is a pipe that was read before.

        """
        if self.saved_run:
            raise InputError(f"'{self.name}' is a saved run, not a log")
        try:
            with self._window() as raw:
                window = raw
                self.compressed = form_of(raw.peek(HEAD))
                if self.compressed is not None:
                    text = self._unpacked(self.compressed, raw)
                    window = Window(lambda _: next(text, b""))
                yield from self._understood(window, size, slack)
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
        header = filtered_header(window.take(window.find(b"\n", 0, have) + 1 or have), self.name)
        # The first piece of a long line must hold the whole place before its text.
        kept = cut_blocks(window, self.name, size=max(size, _SNIFF), slack=slack)
        return original_blocks(kept, self.name, header, self.warn, size=size)

    def _unpacked(self, form: Form, window: Window) -> Iterator[bytes]:
        """Yield the text of an archive, as far as it can be had, and warn of the rest."""
        given = 0
        try:
            for text in unpack(form, window.take):
                given += len(text)
                yield text
        except Damage as damage:
            self.warn(f"the {form} archive {damage}; {given} bytes of text were read")

    @contextlib.contextmanager
    def _window(self) -> Iterator[Window]:
        """Open the input."""
        if self.path is None:
            yield Window(self._stream_reader())
            return
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            widen(fd)
            # Files of /proc have no size before they are read.
            if stat.S_ISREG(status.st_mode) and status.st_size:
                yield Window(self._file_reader(fd, status.st_size))
                return
            read = _heard(fd, lambda _: os.read(fd, PIPE_SIZE))
            device = stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)
            yield Window(self._limited(read) if device else read)
        finally:
            os.close(fd)

    def _file_reader(self, fd: int, left: int) -> Read:
        """Return what reads a file up to the size first seen: a log that grows faster than it is read has an end."""

        def read(count: int) -> bytes:
            nonlocal left
            data = os.read(fd, min(count, left, PIPE_SIZE))
            if left and not data:
                self.warn(f"became shorter while it was read: {left} bytes are missing at its end")
            left -= len(data)
            return data

        return read

    def _limited(self, read: Read) -> Read:
        """Return what reads the beginning of a device."""
        left = DEVICE_LIMIT

        def first(count: int) -> bytes:
            nonlocal left
            data = read(count)[:left]
            left -= len(data)
            if data and not left:
                self.warn(f"only the first {DEVICE_LIMIT} bytes were read")
            return data

        return first

    def _stream_reader(self) -> Read:
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
            if isinstance(stream, io.BufferedReader) and not stream.seekable():
                return _heard(stream.fileno(), lambda _: stream.read1(PIPE_SIZE))

        def read(_: int) -> bytes:
            """Return the next bytes, or the UTF-8 form of the next text."""
            while (data := stream.read(PIPE_SIZE)) is None:  # nothing yet, of a descriptor opened not to wait
                time.sleep(0.05)
            if not isinstance(data, str):
                return bytes(data)
            try:
                return data.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:
                return data.encode("utf-8", "surrogatepass")

        return read


def _heard(fd: int, read: Read) -> Read:
    """Return what waits for a descriptor before it reads: polars lets an interrupted read go on, deaf to Ctrl-C."""

    def waiting(count: int) -> bytes:
        select.select([fd], [], [])
        return read(count)

    return waiting


class Damage(Exception):  # noqa: N818 - a state of the input, told by the reader as a warning
    """An archive that cannot be read further; the text says why."""


def form_of(head: bytes) -> Form | None:
    """Return the compressed form that a stream beginning with these bytes (HEAD of them are enough) has, or None."""
    for magic, form in _MAGIC:
        if head.startswith(magic):
            if form == "bz2" and (head[3:4] not in b"123456789" or not head[4:10].startswith(_BZ2_FIRST_BLOCK)):
                return None  # text may begin with "BZh"
            return form
    # pzstd and the seekable form write frames without text (RFC 8878, 3.1.2).
    return "zst" if head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F else None


def unpack(form: Form, read: Read) -> Iterator[bytes]:
    """Yield the text of archives that stand one behind the other, zero padding between them allowed, in small pieces.

    ``read(n)`` returns up to n compressed bytes, none at the end.

    Raises
    ------
    Damage
        After all text that could be had: all of it when the archive only ends too early; where it is damaged, up to
        STEP bytes (zstd: one block, 128 KiB) before that place are lost.

    """
    data = read(STEP)
    while data:
        unpacker = _unpacker(form)
        while True:
            try:
                text = unpacker.decompress(data, STEP)
            except (zlib.error, lzma.LZMAError, OSError) as error:
                raise Damage(f"is damaged ({error})") from error
            if text:
                yield text
            if unpacker.eof:
                break
            data = getattr(unpacker, "unconsumed_tail", b"")  # bz2 and xz keep theirs
            if not data and len(text) < STEP and not (data := read(STEP)):
                raise Damage("ends too early")
        data = unpacker.unused_data.lstrip(b"\0")
        while len(data) < HEAD and (more := read(STEP)):
            data = (data + more).lstrip(b"\0")
        if data and form_of(data) != form:
            raise Damage("is followed by bytes that belong to no archive; they were not read")


def _unpacker(form: Form) -> Any:
    """Return a fresh unpacker. All share decompress(data, max_length), eof and unused_data."""
    if form == "gz":
        return zlib.decompressobj(wbits=31)
    if form == "bz2":
        return bz2.BZ2Decompressor()
    return _Zstd() if form == "zst" else lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_WINDOW_LIMIT)


class _Zstd:
    """One zstd frame, unpacked in steps: the binding does not bound what one call gives, so little is given to it.

    A block of 4 bytes can hold 128 KiB (RFC 8878, 3.1.1.2). Where that happens, calls get 16 bytes; else up to 1 KiB.
    """

    def __init__(self) -> None:
        import zstandard  # noqa: PLC0415 - only who reads .zst pays for the import

        self._error: type[Exception] = zstandard.ZstdError
        self._frame = zstandard.ZstdDecompressor(max_window_size=_WINDOW_LIMIT).decompressobj()
        self._step = 16
        self.eof = False
        self.unconsumed_tail = self.unused_data = b""

    def decompress(self, data: bytes, _: int) -> bytes:
        """Return the text of the first bytes; the others are left in ``unconsumed_tail``."""
        try:
            text = self._frame.decompress(data[: self._step])
        except self._error as error:
            raise OSError(str(error)) from error
        self.unconsumed_tail = data[self._step :]
        self._step = min(2 * self._step, 1 << 10) if len(text) < 1 << 18 else 16
        self.eof = self._frame.eof
        self.unused_data = self._frame.unused_data + self.unconsumed_tail if self.eof else b""
        return text


def widen(fd: int) -> None:
    """Let a pipe hold 1 MiB, where it is one and the system allows it: the usual 64 KiB halve the speed."""
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_SIZE)


def standard_input() -> Any:
    """Return standard input as a binary file object where it is one, or None when it is closed."""
    return getattr(sys.stdin, "buffer", sys.stdin)


def unreadable(name: str, error: Exception) -> InputError:
    """Return the error for something that is there and cannot be read."""
    reason = (getattr(error, "strerror", None) or str(error)).lower()
    advice = "as another user: sudo cat FILE | logscope COMMAND -" if isinstance(error, PermissionError) else None
    return InputError(f"'{name}' cannot be read: {reason}", help=advice)
