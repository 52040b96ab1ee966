"""Reading one input as blocks: forms, cuts, places, memory, damage."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import itertools
import json
import lzma
import os
import subprocess
import sys
import threading
import tracemalloc
import zlib
from functools import partial
from typing import TYPE_CHECKING

import pytest
import zstandard
from conftest import CASE_LOGS, need_tool
from hypothesis import example, given, settings
from hypothesis import strategies as st

from logscope.errors import InputError
from logscope.sources.blocks import Block
from logscope.sources.inputs import expand
from logscope.sources.streams import STEP, Source, form_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": partial(lzma.compress, preset=0),
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
MIB = 1 << 20


def lines(count: int, seed: int = 1) -> bytes:
    """Return text that does not compress to nothing: numbered lines of digests."""
    numbers = range(1, count + 1)
    return b"".join(b"%d %s\n" % (n, hashlib.sha256(b"%d %d" % (seed, n)).hexdigest().encode()) for n in numbers)


def in_memory(data: bytes) -> Source:
    (source,) = expand(io.BytesIO(data))
    return source


def checked(blocks: Iterable[Block], text: bytes, *, size: int | None = None, slack: int = 0) -> list[Block]:
    """Compare blocks with the text they came from, byte by byte and place by place."""
    found = list(blocks)
    offset = 0
    for block in found:
        assert block.offset == offset
        assert block.data == text[offset : offset + len(block.data)]
        assert block.line == 1 + text.count(b"\n", 0, offset)
        assert block.newlines == block.data.count(b"\n")
        assert block.continues == (offset > 0 and text[offset - 1 : offset] != b"\n")
        assert not block.gap
        assert size is None or len(block.data) <= size + slack
        offset += len(block.data)
    assert offset == len(text)
    assert [block.final for block in found] == [False] * (len(found) - 1) + [True]
    return found


texts = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"\x00", b"\xff", b"line\n"])).map(b"".join)


@settings(max_examples=150, deadline=None)
@given(texts, st.integers(1, 12), st.integers(0, 12), st.sampled_from(["stream", "file", *PACK]))
@example(b"", 1, 0, "file")
@example(b"ab\r\ncd", 3, 0, "stream")
def test_blocks_rejoin_to_the_text(tmp_path_factory, text, size, slack, form):
    """From a file, a stream and every archive, blocks of any size give the same bytes, lines and offsets, bounded."""
    if form == "stream":
        source = in_memory(text)
    elif form == "file":
        path = tmp_path_factory.getbasetemp() / "blocks.log"
        path.write_bytes(text)
        source = Source(str(path), path=str(path))
    else:
        source = in_memory(PACK[form](text))
    blocks = checked(source.blocks(size=size, slack=slack), text, size=size, slack=slack)
    for block in blocks[:-1]:
        # Not behind a newline only where a line is too long, and then never between \r and \n if there is a choice.
        if not block.data.endswith(b"\n"):
            assert b"\n" not in block.data
            assert size + slack <= 1 or not text.startswith(b"\r\n", block.offset + len(block.data) - 1)
    assert source.warnings == []


@settings(max_examples=100, deadline=None)
@given(texts, st.integers(1, 12), st.integers(0, 12))
def test_every_way_of_reading_cuts_in_the_same_places(tmp_path_factory, text, size, slack):
    """A plain file, which is read by ranges, is cut exactly as a stream is."""
    path = tmp_path_factory.getbasetemp() / "same.log"
    path.write_bytes(text)
    from_file = [block.data for block in Source("x", path=str(path)).blocks(size=size, slack=slack)]
    assert from_file == [block.data for block in in_memory(text).blocks(size=size, slack=slack)]


@pytest.mark.parametrize("log", CASE_LOGS, ids=lambda log: log.stem)
def test_field_cases_come_through_unchanged(log):
    """Every field case (CRLF, lone carriage returns, NUL, invalid UTF-8, a cut tail) arrives byte for byte."""
    text = log.read_bytes()
    for size in (1, 17, 4096, 8 * MIB):
        (source,) = expand(log)
        assert source.size == len(text)
        checked(source.blocks(size=size), text)


def test_a_lone_carriage_return_is_no_line():
    r"""Only ``\n`` counts: a bar of a hundred ``\r`` stands on one line, and ``\r\n`` stays as it is."""
    text = b"1%\r" * 100 + b"\r\nnext\r\n"
    (first, second) = checked(in_memory(text).blocks(size=300), text)
    assert (first.line, first.newlines, second.line, second.data) == (1, 1, 2, b"next\r\n")


def test_default_blocks_are_whole_lines_of_eight_mebibytes():
    """Blocks are as large as lines allow, up to 8 MiB."""
    text = b"x" * 99 + b"\n"
    text *= 200_000
    blocks = checked(in_memory(text).blocks(), text)
    assert [len(block.data) for block in blocks] == [8388600, 8388600, 20_000_000 - 2 * 8388600]


def test_a_line_of_forty_megabytes_comes_in_pieces(tmp_path):
    """A 40 MB line stays in bounded memory: three pieces, whether from a file, a stream or an archive."""
    text = b"start\n" + b"x" * 40_000_000 + b"\nend\n"
    plain, packed = tmp_path / "long.log", tmp_path / "long.log.zst"
    plain.write_bytes(text)
    packed.write_bytes(PACK["zst"](text))
    size, slack = MIB, 2 * MIB
    pieces = 40_000_000 // (size + slack)
    with plain.open("rb") as stream:
        for source in (*expand([plain, packed]), Source("stream", stream=stream)):
            tracemalloc.start()
            places = [(block.line, len(block.data), block.continues) for block in source.blocks(size=size, slack=slack)]
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert places[0] == (1, 6, False)
            assert places[1] == (2, size + slack, False)
            assert places[2 : pieces + 1] == [(2, size + slack, True)] * (pieces - 1)
            assert sum(length for _, length, _ in places) == len(text)
            # The piece the caller still holds, the next one, and the buffer it is taken from, which grows ahead.
            assert peak < 3 * (size + slack) + 3 * MIB


def test_a_long_line_is_cut_at_its_last_lone_carriage_return():
    r"""A billion ``\r`` is one line: it is cut behind a ``\r``, where records begin and end."""
    text = b"45%|####  |\r" * 1000 + b"done\n"
    blocks = checked(in_memory(text).blocks(size=100, slack=1000), text)
    assert all(block.data.endswith(b"\r") for block in blocks[:-1])
    assert {block.line for block in blocks} == {1}


@pytest.mark.parametrize("form", PACK)
def test_archives_are_known_by_their_first_bytes(tmp_path, form):
    """The name plays no part: a packed file with a plain name, and a pipe, are unpacked."""
    text = lines(2000)
    path = tmp_path / "server.log"
    path.write_bytes(PACK[form](text))
    (source,) = expand(path)
    assert (source.compressed, source.size) == (form, None)
    checked(source.blocks(size=5000), text)
    checked(source.blocks(), text)  # again: a file can be read twice
    assert source.warnings == []


@pytest.mark.parametrize("form", PACK)
def test_members_and_frames_are_joined(form):
    """Archives appended to each other, an empty one and zero padding between them are read as one text."""
    parts = [lines(300, seed) for seed in range(3)]
    data = b"".join(PACK[form](part) for part in (parts[0], b"", parts[1], parts[2]))
    source = in_memory(data)
    checked(source.blocks(), b"".join(parts))
    assert source.warnings == []
    if form != "zst":
        source = in_memory(PACK[form](parts[0]) + bytes(8) + PACK[form](parts[1]) + bytes(512))
        checked(source.blocks(), parts[0] + parts[1])
        assert source.warnings == []


def test_skippable_zstd_frames_are_skipped():
    """Frames without text (written by pzstd and the seekable form) may stand before, between and behind."""
    skippable = b"\x5e\x2a\x4d\x18" + (70_000).to_bytes(4, "little") + bytes(70_000)
    text = lines(100)
    source = in_memory(skippable + PACK["zst"](text) + skippable + PACK["zst"](text) + skippable)
    checked(source.blocks(), text + text)
    assert (source.compressed, source.warnings) == ("zst", [])


@pytest.mark.parametrize("form", PACK)
@pytest.mark.parametrize("share", [0.2, 0.5, 0.999])
def test_a_truncated_archive_gives_what_is_there(form, share):
    """All text the cut archive holds is given, as the format's own tool would give it, with one warning."""
    text = lines(30_000)
    packed = PACK[form](text)
    cut = packed[: int(len(packed) * share)]
    source = in_memory(cut)
    got = b"".join(block.data for block in source.blocks(size=100_000))
    unpacker = {
        "gz": lambda: zlib.decompressobj(31),
        "bz2": bz2.BZ2Decompressor,
        "xz": lzma.LZMADecompressor,
        "zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
    }[form]()
    assert got == unpacker.decompress(cut)
    assert text.startswith(got)
    (warning,) = source.warnings
    assert "ends too early" in warning
    assert f"{len(got)} bytes" in warning


@pytest.mark.parametrize("form", PACK)
def test_every_possible_cut_is_noticed(form):
    """An archive that lacks its last 1, 2, 3, ... bytes is never taken for a whole one, and never an exception."""
    text = lines(20)
    packed = PACK[form](text)
    for length in range(6, len(packed)):
        source = in_memory(packed[:length])
        if form_of(packed[:length]) is None:
            continue  # fewer bytes than tell the form
        got = b"".join(block.data for block in source.blocks())
        assert text.startswith(got)
        assert len(source.warnings) == 1, length


@pytest.mark.parametrize("form", PACK)
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_damaged_archive_is_a_warning_never_an_exception(form, data):
    """Whatever bytes of an archive change, reading ends with the text before the damage and one warning at most."""
    text = lines(1000)
    packed = bytearray(PACK[form](text))
    at = data.draw(st.integers(20, len(packed) - 1))
    packed[at] ^= data.draw(st.integers(1, 255))
    source = in_memory(bytes(packed))
    blocks = list(source.blocks(size=10_000))
    got = b"".join(block.data for block in blocks)
    assert blocks[-1].final
    assert got == text or len(source.warnings) == 1
    assert len(source.warnings) <= 1


@pytest.mark.parametrize("form", PACK)
def test_little_is_lost_before_the_damage(form):
    """Damage in the second of two archives loses nothing of the first; in the middle of one, it loses one step."""
    first, second = lines(20_000, 1), lines(20_000, 2)
    broken = bytearray(PACK[form](second))
    broken[len(broken) // 2 : len(broken) // 2 + 64] = bytes(64)
    source = in_memory(PACK[form](first) + bytes(broken))
    got = b"".join(block.data for block in source.blocks())
    assert got.startswith(first)
    assert "is damaged" in source.warnings[0]
    if form in {"gz", "zst"}:  # bz2 gives whole blocks of 900 kB only, xz reads on without noticing for long
        unpacked = zstandard.ZstdDecompressor().decompressobj() if form == "zst" else zlib.decompressobj(31)
        before = unpacked.decompress(bytes(broken[: len(broken) // 2]))
        assert len(got) >= len(first) + len(before) - STEP


def test_bytes_behind_an_archive_are_reported():
    """Text glued behind an archive is not silently dropped."""
    for pack in PACK.values():
        source = in_memory(pack(b"inside\n") + b"outside, and long enough to be seen\n")
        checked(source.blocks(), b"inside\n")
        assert "bytes that belong to no archive" in source.warnings[0]


def bomb(form: str, count: int) -> bytes:
    """Return an archive of count MiB of NUL, in one member."""
    packer = {
        "gz": lambda: zlib.compressobj(9, zlib.DEFLATED, 31),
        "bz2": bz2.BZ2Compressor,
        "xz": lambda: lzma.LZMACompressor(preset=0),
        "zst": lambda: zstandard.ZstdCompressor().compressobj(),
    }[form]()
    return b"".join(packer.compress(bytes(MIB)) for _ in range(count)) + packer.flush()


@pytest.mark.parametrize("form", PACK)
def test_a_bomb_stays_in_bounded_memory(form):
    """60 MiB of NUL out of some kilobytes, without a newline, need no more memory than any other long line."""
    data = bomb(form, 60)
    assert len(data) < MIB / 8
    source = in_memory(data)
    tracemalloc.start()
    total = sum(len(block.data) for block in source.blocks(size=MIB, slack=MIB))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 60 * MIB
    assert peak < 8 * MIB


def test_an_archive_that_wants_too_much_memory_is_refused_with_a_warning():
    """A zstd frame with a window of 2 GiB is not unpacked, and that is said."""
    header = b"\x28\xb5\x2f\xfd" + b"\x00" + bytes([(31 - 10) << 3])  # RFC 8878, 3.1.1.1: window of 2^31
    source = in_memory(header + b"\x01\x00\x00" + bytes(40))
    checked(source.blocks(), b"")
    assert "memory" in source.warnings[0]


def test_a_file_that_shrinks_gives_its_beginning(tmp_path):
    """A file truncated while it is read ends where it ends, with a warning that counts what is missing."""
    path = tmp_path / "server.log"
    path.write_bytes(lines(1000))
    whole = path.read_bytes()
    (source,) = expand(path)
    blocks = source.blocks(size=1000)
    first = next(blocks)
    os.truncate(path, 5500)
    checked([first, *blocks], whole[:5500])
    assert str(len(whole) - 5500) in source.warnings[0]


def test_a_file_that_grows_is_read_to_the_size_first_seen(tmp_path):
    """A log that is being written comes to an end."""
    path = tmp_path / "server.log"
    path.write_bytes(lines(100))
    whole = path.read_bytes()
    blocks = expand(path)[0].blocks(size=1000)
    first = next(blocks)
    with path.open("ab") as file:
        file.write(b"later\n" * 1000)
    checked([first, *blocks], whole)


def test_an_empty_input_is_one_empty_final_block(tmp_path):
    """Empty is an honest answer, not an error: from a file, a stream and an empty archive."""
    path = tmp_path / "empty.log"
    path.touch()
    for source in (*expand(path), in_memory(b""), in_memory(gzip.compress(b""))):
        assert list(source.blocks()) == [Block(source.name, 0, 1, b"", final=True)]
        assert source.warnings == []


def test_a_pipe_is_read_like_a_file():
    """The unpacked log and its archives give the same blocks from a pipe with any rhythm of writes."""
    text = lines(3000)
    for data in (text, *(pack(text) for pack in PACK.values())):
        reader, writer = os.pipe()

        def write(fd: int = writer, data: bytes = data) -> None:
            with os.fdopen(fd, "wb", buffering=0) as file:
                at = 0
                for count in itertools.cycle((1, 700, 20_000, 3)):
                    at += file.write(data[at : at + count])
                    if at == len(data):
                        return

        thread = threading.Thread(target=write)
        thread.start()
        with os.fdopen(reader, "rb") as file:
            (source,) = expand(file)
            checked(source.blocks(size=7000), text)
        thread.join()


def test_standard_input_is_read_once():
    """``-`` reads a pipe and a redirected archive, names itself ``-``, and says so when it is asked twice."""
    script = (
        "from logscope.sources.inputs import expand\n"
        "(s,) = expand(['-'])\n"
        "b = list(s.blocks(size=100))\n"
        "print(s.name, s.compressed, b[0].file, b[-1].line, b[-1].offset + len(b[-1].data))\n"
        "try: list(s.blocks())\n"
        "except Exception as error: print(type(error).__name__)\n"
    )
    text = lines(50)
    run = subprocess.run([sys.executable, "-c", script], input=gzip.compress(text), capture_output=True, check=True)
    assert run.stdout.split() == [b"-", b"gz", b"-", b"50", str(len(text)).encode(), b"InputError"]


def test_a_closed_standard_input_is_an_input_error():
    """``logscope ... - <&-`` is a clear message."""
    script = "from logscope.sources.inputs import expand\ntry: expand('-')\nexcept Exception as error: print(error)"
    run = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" -c "$1" <&-', sys.executable, script], capture_output=True, check=True
    )
    assert run.stdout == b"standard input is closed\n"


def test_file_objects_of_every_kind(tmp_path):
    """Binary, text and in-memory objects are read from where they stand, twice where they can seek, and left open."""
    path = tmp_path / "a.log"
    text = "first\r\nsécond\n".encode()
    path.write_bytes(text)
    with path.open("rb") as file:
        (source,) = expand(file)
        assert source.name == str(path)
        checked(source.blocks(), text)
        checked(source.blocks(), text)
        assert not file.closed
    with path.open(encoding="utf-8") as file:
        checked(expand(file)[0].blocks(), text)
    with path.open(encoding="utf-8") as file:
        assert file.readline() == "first\n"  # decoding has read further than that
        checked(expand(file)[0].blocks(), text[7:])
    with path.open("rb", buffering=0) as file:
        checked(expand(file)[0].blocks(), text)
    checked(expand(io.StringIO("first\r\nsécond\n", newline=""))[0].blocks(), text)
    checked(expand(io.StringIO("\udcff\n"))[0].blocks(), b"\xff\n")  # a byte that was no UTF-8 comes back
    checked(expand(io.StringIO("\ud800\n"))[0].blocks(), b"\xed\xa0\x80\n")


def test_a_descriptor_that_does_not_wait_is_waited_for():
    """A pipe that some other program set to non-blocking is read to its end."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)

    def write() -> None:
        for _ in range(3):
            threading.Event().wait(0.02)
            os.write(writer, b"line\n")
        os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    with os.fdopen(reader, "rb") as file:
        checked(expand(file)[0].blocks(), b"line\n" * 3)
    thread.join()


def test_a_fifo_is_read(tmp_path):
    """A named pipe is opened when it is read, not before."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    (source,) = expand(path)
    assert source.size is None
    thread = threading.Thread(target=path.write_bytes, args=(b"one\ntwo\n",))
    thread.start()
    checked(source.blocks(), b"one\ntwo\n")
    thread.join()


def test_devices_have_a_limit(monkeypatch):
    """/dev/zero ends at the limit that devices have, with a warning; /dev/null is empty."""
    monkeypatch.setattr("logscope.sources.streams.DEVICE_LIMIT", 3_000_000)
    (source,) = expand("/dev/zero")
    checked(source.blocks(size=MIB, slack=0), bytes(3_000_000))
    assert source.warnings == ["/dev/zero: only the first 3000000 bytes were read"]
    checked(expand("/dev/null")[0].blocks(), b"")


def test_files_without_a_size_are_read():
    """Files of /proc claim zero bytes and hold some."""
    text = b"".join(block.data for block in expand("/proc/self/status")[0].blocks())
    assert text.startswith(b"Name:")


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"PK\x03\x04" + bytes(50), "zip"),
        (b"\x04\x22\x4d\x18" + bytes(50), "lz4"),
        (b"a.log".ljust(257, b"\0") + b"ustar" + bytes(300), "tar"),
        (gzip.compress(b"a.log".ljust(257, b"\0") + b"ustar" + bytes(300), mtime=0), "tar"),
        (gzip.compress(gzip.compress(b"twice\n", mtime=0), mtime=0), "twice"),
    ],
)
def test_what_is_no_plain_text_is_said(data, word):
    """Forms that are not read are named, with what to do; their bytes come all the same."""
    source = in_memory(data)
    assert sum(len(block.data) for block in source.blocks()) > 0
    assert word in source.warnings[0]


def test_archives_of_the_common_tools(tmp_path):
    """What gzip, bzip2, xz and zstd themselves write is read."""
    text = lines(2000)
    plain = tmp_path / "a.log"
    for tool, suffix in (("gzip", "gz"), ("bzip2", "bz2"), ("xz", "xz"), ("zstd", "zst")):
        need_tool(tool)
        plain.write_bytes(text)
        subprocess.run([tool, "-q", str(plain)], check=True)
        (source,) = expand(f"{plain}.{suffix}")
        checked(source.blocks(), text)
        assert source.warnings == []
        plain.unlink(missing_ok=True)


# Filtered copies: %logscope-filtered 1 {json}, then line:offset:text of every kept line.


def filtered(text: bytes, kept: set[int], *, header: dict[str, object] | None = None) -> bytes:
    """Return the filtered copy of a text that keeps the lines with these 1-based numbers."""
    rows = text.split(b"\n")
    if not rows[-1]:
        rows.pop()
    if header is None:
        header = {"lines": len(rows), "bytes": len(text)}
    out = [b"%logscope-filtered 1 " + json.dumps(header).encode() + b"\n"]
    offset = 0
    for number, row in enumerate(rows, 1):
        if number in kept:
            out.append(b"%d:%d:%s\n" % (number, offset, row))
        offset += len(row) + 1
    return b"".join(out)


def check_filtered(blocks: list[Block], text: bytes, kept: set[int]) -> None:
    """Compare the blocks of a filtered copy with the original text."""
    rows = text.splitlines(keepends=True) if b"\r" not in text else None
    got: list[bytes] = []
    end = 0
    for block in blocks:
        assert text[block.offset : block.offset + len(block.data)] == block.data
        assert block.line == 1 + text.count(b"\n", 0, block.offset) or not block.data
        assert block.newlines == block.data.count(b"\n")
        assert block.gap == (block.offset != end)
        inside = block.offset > 0 and text[block.offset - 1 : block.offset] != b"\n"
        assert block.continues == (inside and bool(block.data))
        end = block.offset + len(block.data)
        got.append(block.data)
    assert [block.final for block in blocks] == [False] * (len(blocks) - 1) + [True]
    if rows is not None:
        assert b"".join(got) == b"".join(row for number, row in enumerate(rows, 1) if number in kept)


originals = st.lists(st.sampled_from([b"a", b"12:34:x", b":", b"", b"\xff", b"tensor([1,"]), max_size=12).map(
    b"\n".join
)


@settings(max_examples=150, deadline=None)
@given(originals, st.booleans(), st.sets(st.integers(1, 12)), st.integers(1, 40), st.booleans())
def test_a_filtered_copy_names_the_lines_of_the_original(text, ended, kept, size, packed):
    """Any subset of lines gives blocks at the original's places: one per contiguous run, gaps marked, any size."""
    text += b"\n" if ended and text else b""
    rows = len(text.split(b"\n")) - text.endswith(b"\n") if text else 0
    kept = {number for number in kept if number <= rows}
    data = filtered(text, kept)
    source = in_memory(gzip.compress(data) if packed else data)
    blocks = list(source.blocks(size=size))
    check_filtered(blocks, text, kept)
    assert source.warnings == []
    if blocks[-1].data:
        assert blocks[-1].offset + len(blocks[-1].data) == len(text)
    elif text:
        assert (blocks[-1].offset, blocks[-1].line) == (len(text), rows + 1)


def test_neighbours_in_a_filtered_copy_are_one_block():
    """Lines 1, 2 and 4 of five: two runs, and what was left out at the end is marked too."""
    text = b"one\ntwo\nthree\nfour\nfive\n"
    blocks = list(in_memory(filtered(text, {1, 2, 4})).blocks())
    assert [(b.line, b.offset, b.data, b.gap, b.final) for b in blocks] == [
        (1, 0, b"one\ntwo\n", False, False),
        (4, 14, b"four\n", True, False),
        (6, 24, b"", True, True),
    ]


def test_a_filtered_copy_without_totals():
    """Where the node could not count, the last kept line is the last that is known."""
    blocks = list(in_memory(filtered(b"one\ntwo\nthree\n", {2}, header={})).blocks())
    assert [(b.line, b.offset, b.data, b.gap, b.final) for b in blocks] == [(2, 4, b"two\n", True, True)]


def test_a_long_line_of_a_filtered_copy_comes_in_pieces():
    """Pieces of a kept line have true offsets, and only the first is marked as behind a gap."""
    text = b"left out\n" + b"x" * 30_000 + b"\nlast\n"
    blocks = list(in_memory(filtered(text, {2, 3})).blocks(size=5000, slack=5000))
    check_filtered(blocks, text, {2, 3})
    assert len(blocks) > 2
    assert [block.gap for block in blocks] == [True] + [False] * (len(blocks) - 1)


def test_pieces_of_a_filtered_copy_keep_their_place():
    """However small the blocks asked for, the place before a kept line is never cut in two."""
    text = b"".join(b"%d%s\n" % (number, b"y" * number * 30) for number in range(300, 400))
    kept = set(range(3, 101, 2))
    check_filtered(list(in_memory(filtered(text, kept)).blocks(size=1, slack=0)), text, kept)


def test_neighbours_by_number_alone_are_not_joined():
    """Where the next number stands at another offset than the line before ends at, something is missing."""
    blocks = list(in_memory(b"%logscope-filtered 1 {}\n1:0:one\n2:9:two\n").blocks())
    assert [(block.offset, block.gap) for block in blocks] == [(0, False), (9, True)]


@pytest.mark.parametrize(
    ("body", "warning"),
    [
        (b"1:0:one\nno place\n3:8:three\n", "1 lines of the filtered copy do not begin with line:offset:"),
        (b"5:40:five\n1:0:one\n", "not in rising order"),
    ],
)
def test_a_damaged_filtered_copy_is_said(body, warning):
    """Lines without a place, or out of order, are told in a warning."""
    source = in_memory(b"%logscope-filtered 1 {}\n" + body)
    assert list(source.blocks())[-1].final
    assert warning in source.warnings[0]


@pytest.mark.parametrize(
    "head", [b"%logscope-filtered 2 {}\n", b"%logscope-filtered 1 {", b"%logscope-filtered 1 []\n"]
)
def test_a_filtered_copy_that_cannot_be_read_is_an_input_error(head):
    """A newer form, or a damaged first line: nothing is guessed."""
    with pytest.raises(InputError, match="filtered copy"):
        list(in_memory(head).blocks())


def test_a_pipe_that_was_begun_goes_on():
    """Of a pipe whose first line somebody read, the rest is read: what Python holds of it is not lost."""
    out, into = os.pipe()
    os.write(into, b"one\ntwo\n")
    os.close(into)
    with open(out, "rb") as pipe:  # noqa: PTH123 - a descriptor has no path
        assert pipe.readline() == b"one\n"
        assert b"".join(block.data for block in Source("pipe", stream=pipe).blocks()) == b"two\n"
