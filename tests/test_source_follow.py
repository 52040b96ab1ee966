"""Following a log that grows: every line once, in order, whatever becomes of the file."""

from __future__ import annotations

import contextlib
import gzip
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logscope.errors import InputError
from logscope.sources.tail import follow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logscope.sources.blocks import Block

POLL = 0.003


class Follower:
    """Follows step by step: what one look after another brings, without a second thread."""

    def __init__(self, path: object, **options: object) -> None:
        self.warnings: list[str] = []
        self.stop = threading.Event()
        self._blocks = follow(path, poll=POLL, stop=self.stop, warn=self.warnings.append, **options)

    def new(self) -> list[Block]:
        """Return the blocks up to the moment nothing has happened for some polls."""
        found = []
        idle = 0
        while idle < 5:  # one more than a rotation needs
            block = next(self._blocks)
            idle = 0 if block is not None else idle + 1
            if block is not None:
                found.append(block)
        return found

    def text(self) -> bytes:
        """Return the bytes of what is new."""
        return b"".join(block.data for block in self.new())

    def end(self) -> list[Block]:
        """Stop, and return what is left."""
        self.stop.set()
        return [block for block in self._blocks if block is not None]


@pytest.fixture
def log(tmp_path) -> Path:
    path = tmp_path / "server.log"
    path.write_bytes(b"")
    return path


@contextlib.contextmanager
def appending(path: Path) -> Iterator[object]:
    with path.open("ab", buffering=0) as file:
        yield file


def test_lines_come_when_they_are_complete(log):
    """A last line without its newline waits, and then comes once, with its true place."""
    follower = Follower(log)
    with appending(log) as file:
        file.write(b"one\ntw")
        (block,) = follower.new()
        assert (block.line, block.offset, block.data, block.final) == (1, 0, b"one\n", False)
        file.write(b"o")
        assert follower.new() == []
        file.write(b"\nthree\nfo")
        (block,) = follower.new()
        assert (block.line, block.offset, block.data) == (2, 4, b"two\nthree\n")
    (block,) = follower.end()
    assert (block.line, block.offset, block.data, block.final) == (4, 14, b"fo", True)
    assert follower.warnings == []


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"bcd", b"x\ny\n"]), max_size=12), st.integers(1, 6))
def test_any_rhythm_of_writes_gives_the_same_text(tmp_path_factory, writes, size):
    """However the writes fall and however small the blocks, they re-join to the bytes, with true lines and offsets."""
    path = tmp_path_factory.getbasetemp() / "rhythm.log"
    path.write_bytes(b"")
    follower = Follower(path, size=size, slack=3)
    blocks = []
    with appending(path) as file:
        for data in writes:
            file.write(data)
            blocks += follower.new()
    blocks += follower.end()
    text = b"".join(writes)
    offset = 0
    for block in blocks:
        assert block.data == text[offset : offset + len(block.data)]
        assert (block.offset, block.line) == (offset, 1 + text.count(b"\n", 0, offset))
        assert block.newlines == block.data.count(b"\n")
        assert block.continues == (offset > 0 and text[offset - 1 : offset] != b"\n")
        assert block.final or len(block.data) <= size + 3
        offset += len(block.data)
    assert offset == len(text)
    assert [block.final for block in blocks] == [False] * (len(blocks) - 1) + [True]


def test_a_very_long_line_comes_in_pieces_while_it_grows(log):
    """A line without end does not gather in memory."""
    follower = Follower(log, size=1000, slack=1000)
    with appending(log) as file:
        for _ in range(10):
            file.write(b"x" * 1000)
            for block in follower.new():
                assert len(block.data) == 2000
                assert block.line == 1
    assert len(follower.end()[-1].data) <= 2000


def test_rotation_reads_the_old_file_to_its_end(log):
    """After a rename, what is still written to the old file comes first; the new file begins at line 1."""
    follower = Follower(log)
    with appending(log) as old:
        old.write(b"a1\n")
        assert follower.text() == b"a1\n"
        log.rename(log.with_suffix(".log.1"))
        assert follower.new() == []
        log.write_bytes(b"")
        old.write(b"a2\n")
        assert follower.text() == b"a2\n"  # an empty successor: the writer may not have turned to it yet
        old.write(b"a3\nhalf")
        with appending(log) as new:
            new.write(b"b1\n")
            blocks = follower.new()
            assert [(b.data, b.line, b.offset, b.final) for b in blocks] == [
                (b"a3\n", 3, 6, False),
                (b"half", 4, 9, True),
                (b"b1\n", 1, 0, False),
            ]
            new.write(b"b2\n")
            assert follower.text() == b"b2\n"
    assert any("replaced by a new file" in warning for warning in follower.warnings)


def test_truncation_begins_a_new_generation(log):
    """A log emptied in place (copytruncate) is read again from its beginning, and that is said."""
    follower = Follower(log)
    log.write_bytes(b"one\ntwo\nthr")
    assert follower.text() == b"one\ntwo\n"
    os.truncate(log, 0)
    (rest,) = follower.new()
    assert (rest.data, rest.final, rest.line) == (b"thr", True, 3)
    with appending(log) as file:
        file.write(b"new\n")
    (block,) = follower.new()
    assert (block.data, block.line, block.offset) == (b"new\n", 1, 0)
    (warning,) = follower.warnings
    assert "truncated" in warning


@pytest.mark.parametrize("text", [b"ONE\nTWO\n", b"another text, longer than before\n"])
def test_a_file_written_anew_is_noticed_by_its_content(log, text):
    """A restart that overwrites the log with as much or more text than was read is not taken for an append."""
    follower = Follower(log)
    log.write_bytes(b"one\ntwo\n")
    assert follower.text() == b"one\ntwo\n"
    log.write_bytes(text)
    blocks = follower.new()
    assert [(b.data, b.line, b.offset, b.final) for b in blocks] == [(b"", 3, 8, True), (text, 1, 0, False)]


def test_deletion_and_return(log):
    """A deleted log is waited for, said once, and read from its beginning when it is there again."""
    follower = Follower(log)
    log.write_bytes(b"one\n")
    assert follower.text() == b"one\n"
    log.unlink()
    assert follower.new() == []
    assert follower.new() == []
    assert len(follower.warnings) == 1
    assert "waiting for it to come back" in follower.warnings[0]
    log.write_bytes(b"two\n")
    assert [(b.data, b.line, b.final) for b in follower.new()] == [(b"", 2, True), (b"two\n", 1, False)]


def test_ten_thousand_lines_and_a_rotation(log):
    """Written by a thread in odd pieces, renamed while it writes on, then a new file: each line once, in order."""
    lines = [b"line %d\n" % number for number in range(10_000)]

    def write() -> None:
        for half in (b"".join(lines[:5000]), b"".join(lines[5000:])):
            with log.open("ab", buffering=0) as file:
                for count, at in enumerate(range(0, len(half), 997)):
                    file.write(half[at : at + 997])
                    time.sleep(0.0005)
                    if count == 30 and not log.with_suffix(".1").exists():
                        log.rename(log.with_suffix(".1"))

    thread = threading.Thread(target=write)
    thread.start()
    stop, quiet, got = threading.Event(), 0, []
    for block in follow(log, poll=POLL, stop=stop):
        if block is not None:
            got.append(block)
        elif not thread.is_alive():  # however long it took
            quiet += 1
            if quiet == 5:  # more than a rotation needs
                stop.set()
    thread.join()
    assert log.with_suffix(".1").stat().st_size + log.stat().st_size == len(b"".join(lines))
    assert b"".join(block.data for block in got) == b"".join(lines)
    assert [block.line for block in got if block.offset == 0] == [1, 1]
    assert sum(block.final for block in got) == 2


def test_stop_and_idle_end_it(log):
    """A stop is seen within one poll, idling ends by itself, and both end in a final block."""
    log.write_bytes(b"line\n")
    stop = threading.Event()
    blocks = follow(log, poll=10, stop=stop)
    assert next(blocks).data == b"line\n"
    assert next(blocks) is None
    threading.Timer(0.05, stop.set).start()
    begin = time.monotonic()
    assert next(blocks).final
    assert time.monotonic() - begin < 5
    assert list(blocks) == []
    begin = time.monotonic()
    found = list(follow(log, poll=POLL, idle=0.1))
    assert 0.1 <= time.monotonic() - begin < 5
    assert [block for block in found if block is not None][-1].final


def test_idling_costs_no_processor_time(log):
    """Half a second of idling at the usual poll takes less than 1 % of a processor."""
    blocks = follow(log, idle=0.5)
    next(blocks)
    begin = time.thread_time()
    assert sum(block is None for block in blocks) >= 5
    assert time.thread_time() - begin < 0.005


def test_a_pipe_is_followed_until_its_writer_ends():
    """Lines come as they are written; the end of the writer is the end, with what is left."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as file:
        follower = Follower(file)
        assert follower.new() == []
        os.write(writer, b"one\ntw")
        assert follower.text() == b"one\n"
        os.write(writer, b"o\nend")
        assert follower.text() == b"two\n"
        os.close(writer)
        (block,) = [block for block in follower._blocks if block is not None]
        assert (block.data, block.final, block.line) == (b"end", True, 3)


def test_a_redirected_file_grows_too(log):
    """An open file (``logscope ... --follow - < server.log``) is followed through its descriptor."""
    log.write_bytes(b"one\n")
    with log.open("rb") as file:
        follower = Follower(file)
        assert follower.text() == b"one\n"
        with appending(log) as other:
            other.write(b"two\n")
        (block,) = follower.new()
        assert (block.file, block.line, block.data) == (str(log), 2, b"two\n")
        assert follower.end()[-1].final
        assert not file.closed


def test_a_fifo_waits_for_its_writer(tmp_path):
    """A named pipe that nobody has opened yet is idle, not at its end."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    follower = Follower(path)
    assert follower.new() == []
    path.write_bytes(b"one\n")
    blocks = [block for block in follower._blocks if block is not None]
    assert [block.data for block in blocks] == [b"one\n", b""]
    assert blocks[-1].final


def test_what_cannot_be_followed(tmp_path):
    """Archives, filtered copies, folders, objects without a descriptor and missing files: a clear message at once."""
    (tmp_path / "a.log").write_bytes(gzip.compress(b"line\n"))
    (tmp_path / "b.log").write_bytes(b"%logscope-filtered 1 {}\n1:0:a\n")
    for name, said in (("a.log", "gz archive"), ("b.log", "filtered"), ("", "directory"), ("c.log", "did you mean")):
        with pytest.raises(InputError, match=said):
            follow(tmp_path / name)
    reader, writer = os.pipe()
    os.write(writer, gzip.compress(b"\n" * 5000))
    os.close(writer)
    with os.fdopen(reader, "rb") as file, pytest.raises(InputError, match="gz archive"):
        list(follow(file, poll=POLL))
