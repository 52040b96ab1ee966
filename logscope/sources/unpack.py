"""Compressed streams: which form a stream has, told by its first bytes, and its text in bounded steps.

This module is responsible for gz, bz2, xz and zst: members and frames that follow each other, archives that end too
early or are damaged, and bombs. It must not know what a file, a line or a log is: it is given a function that reads.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Form: TypeAlias = Literal["gz", "bz2", "xz", "zst"]
Read: TypeAlias = "Callable[[int], bytes]"

# One call takes and gives at most this much: a bomb stays small, and a call that meets damage loses little good text
# (larger steps are not faster).
STEP = 16 << 10
# Both formats let a file ask for gigabytes of window; the usual presets stay below 128 MiB.
_WINDOW_LIMIT = 128 << 20

_MAGIC: tuple[tuple[bytes, Form], ...] = (
    (b"\x1f\x8b\x08", "gz"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zst"),
)
_STRAY = "is followed by bytes that belong to no archive; they were not read"
_BZ2_FIRST_BLOCK = (b"1AY&SY", b"\x17rE8P\x90")  # a block, or the end of an empty archive
HEAD = 18  # bytes that are needed to tell the form, and to read a zstd frame header


class Damage(Exception):  # noqa: N818 - a state of the input, told by the reader as a warning
    """An archive that cannot be read further; the text says why."""


def form_of(head: bytes) -> Form | None:
    """Return the compressed form that a stream beginning with these bytes (HEAD of them are enough) has, or None."""
    for magic, form in _MAGIC:
        if head.startswith(magic):
            if form == "bz2" and (head[3:4] not in b"123456789" or not head[4:10].startswith(_BZ2_FIRST_BLOCK)):
                return None  # text may begin with "BZh"
            return form
    return "zst" if _is_skippable(head) else None


def unpack(form: Form, read: Read) -> Iterator[bytes]:
    """Yield the text of a compressed stream in small pieces (of zstd one block, 128 KiB; else STEP bytes at most).

    ``read(n)`` returns up to n compressed bytes, none at the end.

    Raises
    ------
    Damage
        After all text that could be had: all of it when the archive only ends too early; where it is damaged, up to
        STEP bytes (zstd: one block) before that place are lost.

    """
    return _zstd(read) if form == "zst" else _members(form, read)


def _members(form: Form, read: Read) -> Iterator[bytes]:
    """Yield the text of gz, bz2 or xz members that stand one behind the other, zero padding between them allowed."""
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
            if len(text) == STEP:  # there may be more in what it already has; zlib hands back what it did not take
                data = getattr(unpacker, "unconsumed_tail", b"")
            else:
                data = read(STEP)
                if not data:
                    raise Damage("ends too early")
        data = _next_member(form, unpacker.unused_data, read)


def _unpacker(form: Form) -> Any:
    """Return a fresh unpacker. The three share decompress(data, max_length), eof and unused_data."""
    if form == "gz":
        return zlib.decompressobj(wbits=31)
    if form == "bz2":
        return bz2.BZ2Decompressor()
    return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_WINDOW_LIMIT)


def _next_member(form: Form, data: bytes, read: Read) -> bytes:
    """Return the beginning of the next member, or nothing at the end of the stream."""
    data = data.lstrip(b"\0")
    while len(data) < HEAD and (more := read(STEP)):
        data = (data + more).lstrip(b"\0")
    if data and form_of(data) != form:
        raise Damage(_STRAY)
    return data


class _Feed:
    """A stream out of which exact amounts are taken."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._data = b""
        self._at = 0

    def peek(self, count: int) -> bytes:
        """Return the next bytes, fewer than count only at the end."""
        while len(self._data) - self._at < count and (more := self._read(STEP)):
            self._data = self._data[self._at :] + more
            self._at = 0
        return self._data[self._at : self._at + count]

    def take(self, count: int) -> bytes:
        """Return exactly count bytes. Raises EOFError when there are fewer."""
        data = self.peek(count)
        if len(data) < count:
            raise EOFError
        self._at += count
        return data


def _zstd(read: Read) -> Iterator[bytes]:
    """Yield the text of zstd frames that stand one behind the other.

    The binding tells neither a cut frame from a whole one nor bounds what one call unpacks. Walking the block
    headers (RFC 8878, 3.1.1) gives both: a block holds at most 128 KiB of text.
    """
    import zstandard  # noqa: PLC0415 - only who reads .zst pays for the import

    feed = _Feed(read)
    while head := feed.peek(HEAD):
        if form_of(head) != "zst":
            raise Damage(_STRAY)
        try:
            if _is_skippable(head):
                _skip(feed)
            else:
                yield from _zstd_frame(feed, head)
        except EOFError as error:
            raise Damage("ends too early") from error
        except zstandard.ZstdError as error:
            raise Damage(f"is damaged ({error})") from error


def _zstd_frame(feed: _Feed, head: bytes) -> Iterator[bytes]:
    """Yield the text of one frame, block by block. Raises EOFError when it is cut, ZstdError when it is damaged."""
    import zstandard  # noqa: PLC0415 - imported by now

    try:
        frame = zstandard.get_frame_parameters(head)
    except zstandard.ZstdError:
        feed.take(HEAD)  # says so when the header is cut
        raise
    unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW_LIMIT).decompressobj()
    unpacker.decompress(feed.take(zstandard.frame_header_size(head)))
    last = False
    while not last:
        block, last = _zstd_block(feed)
        text = unpacker.decompress(block)
        if text:
            yield text
    if frame.has_checksum:
        unpacker.decompress(feed.take(4))


def _zstd_block(feed: _Feed) -> tuple[bytes, bool]:
    """Take one block with its header, and tell whether it is the last one of its frame."""
    head = feed.take(3)
    value = int.from_bytes(head, "little")
    run_length = (value >> 1) & 3 == 1
    return head + feed.take(1 if run_length else value >> 3), bool(value & 1)


def _is_skippable(head: bytes) -> bool:
    """Tell whether a zstd frame without text begins here (pzstd and the seekable form write such frames)."""
    return head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F  # RFC 8878, 3.1.2


def _skip(feed: _Feed) -> None:
    """Go past a frame without text, in bounded steps: it may claim 4 GiB."""
    left = int.from_bytes(feed.take(8)[4:], "little")
    while left:
        left -= len(feed.take(min(left, STEP)))
