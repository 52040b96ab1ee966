"""Following over ssh: every byte once and in order, through rotation, truncation and broken connections."""

from __future__ import annotations

import itertools
import os
import random
import statistics
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from sshfarm import Wire, write_through_trouble

from logscope.fetch import Options, parse, remote_follow
from logscope.fetch.follow import Chunk
from logscope.fetch.node import Node
from logscope.fetch.ssh import SshError
from logscope.sources.blocks import Block
from logscope.sources.inputs import expand
from logscope.sources.remote import follow_blocks, remote_sources

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytest_plugins = ["fetch_fixtures"]


def wait_until(what: Callable[[], object]) -> None:
    """Wait for what a busy machine may take long for."""
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


class Reader(threading.Thread):
    """Follows in a thread, as a command would: keeps every chunk with the time of its arrival."""

    def __init__(self, farm, path: Path, ssh: tuple[str, ...] | None = None, start: int = 0) -> None:
        super().__init__(daemon=True)
        options = farm.options()
        self.options = replace(options, ssh=ssh) if ssh else options
        self.spec = parse(f"node:{path}")
        self.begin = start
        self.stop = threading.Event()
        self.chunks: list[tuple[float, Chunk]] = []
        self.notices: list[str] = []
        self.looks = 0  # that found nothing new
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Collect until told to stop."""
        try:
            for chunk in remote_follow(
                self.spec, self.options, start=self.begin, notice=self.notices.append, stop=self.stop, interval=0.02
            ):
                if chunk.data:
                    self.chunks.append((time.monotonic(), chunk))
                else:
                    self.looks += 1
        except SshError as error:
            self.error = error

    def text(self) -> dict[int, bytes]:
        """Return what was read of each generation, after checking that offsets rise without a gap."""
        out: dict[int, bytes] = {}
        for _, chunk in self.chunks:
            held = out.setdefault(chunk.generation, b"" if chunk.offset == 0 else bytes(self.begin))
            assert chunk.offset == len(held)
            out[chunk.generation] = held + chunk.data
        return out

    def wait_for(self, *texts: bytes) -> None:
        """Wait until the generations hold these texts, then a little for anything too much."""
        wanted = {number: text for number, text in enumerate(texts, 1) if text}
        wait_until(lambda: self.text() == wanted or self.error)
        assert self.error is None
        self.settle()
        assert self.text() == wanted

    def settle(self) -> None:
        """Wait until several looks found nothing new."""
        before = self.looks
        wait_until(lambda: self.looks > before + 2)

    def wait_for_notice(self, text: str) -> None:
        """Wait until something is said."""
        wait_until(lambda: any(text in notice for notice in self.notices))

    def end(self) -> None:
        """Stop and wait."""
        self.stop.set()
        self.join(60)
        assert not self.is_alive()


@pytest.fixture
def follow(farm):
    """Start readers, and end them with the test."""
    readers: list[Reader] = []

    def begin(path: Path, **more: object) -> Reader:
        readers.append(Reader(farm, path, **more))
        return readers[-1]

    yield begin
    for reader in readers:
        reader.end()


def test_ten_thousand_lines_with_a_rotation_and_a_drop(farm, node_dir, follow):
    """10,000 lines at 2,000 a second, the file rotated once, the connection broken once: each line once, in order.

    Half of them are there within 0.5 s of being written, where the machine has time.
    """
    log = node_dir / "server.log"
    log.touch()
    wire = Wire(farm.ports["node"])
    reader = follow(log, ssh=farm.through(wire.port, "follow"))
    reader.settle()
    text = [b"line %05d of a growing log\n" % number for number in range(10_000)]
    written, calm = write_through_trouble(log, text, wire)
    reader.wait_for((node_dir / "server.log.1").read_bytes(), log.read_bytes())
    wire.close()
    lines: list[tuple[float, bytes]] = []
    rest = {1: b"", 2: b""}
    for when, chunk in reader.chunks:
        *whole, rest[chunk.generation] = (rest[chunk.generation] + chunk.data).split(b"\n")
        lines += [(when, line) for line in whole]
    assert [int(line.split()[1]) for _, line in lines] == list(range(10_000))
    delays = [when - then for (when, _), then in zip(lines, written, strict=True)]
    assert min(delays) > 0
    assert statistics.median(delays) < 0.5 or not calm
    assert any("trying again" in notice for notice in reader.notices)
    assert any("generation 2 begins" in notice for notice in reader.notices)


def test_rotation_while_the_connection_is_down(farm, node_dir, follow):
    """Rotated twice while nobody could look: the rest of the old file and the whole one between are read first."""
    log = node_dir / "server.log"
    log.write_bytes(b"first\n")
    wire = Wire(farm.ports["node"])
    reader = follow(log, ssh=farm.through(wire.port, "down"))
    reader.wait_for(b"first\n")
    wire.open = False
    wire.cut()
    with log.open("ab") as out:
        out.write(b"end of first\n")
    log.rename(node_dir / "server.log.1")
    os.utime(node_dir / "server.log.1", (1, 1))
    log.write_bytes(b"second\n")
    (node_dir / "server.log.1").rename(node_dir / "server.log.2")
    log.rename(node_dir / "server.log.1")
    os.utime(node_dir / "server.log.1", (2, 2))
    (node_dir / "server.log.err").write_bytes(b"something else\n")
    log.write_bytes(b"third\n")
    reader.wait_for_notice("trying again")
    wire.open = True
    reader.wait_for(b"first\nend of first\n", b"second\n", b"third\n")
    wire.close()


def test_any_history_of_rotations_and_broken_connections(tmp_path):
    """Written, rotated and cut off at random for some seconds: what is read is what was written, life after life.

    A script that runs the remote command here stands in for ssh, and is killed again and again.
    """
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nfor command; do :; done\nexec sh -c "$command"\n')
    ssh.chmod(0o755)
    folder = tmp_path / "node"
    folder.mkdir()
    log = folder / "server.log"
    rng = random.Random(41)
    lives = [b""]
    got: dict[int, bytes] = {}
    nodes: list[Node] = []
    stop = threading.Event()

    def append(lines: int) -> None:
        text = b"".join(b"life %d line %d\n" % (len(lives), rng.randrange(10**6)) for _ in range(lines))
        lives[-1] += text
        with log.open("ab") as out:
            out.write(text)

    def read() -> None:
        spec = parse(f"node:{log}")
        options = Options(ssh=(str(ssh),), delay=0.01)
        for chunk in remote_follow(spec, options, stop=stop, interval=0.02):
            held = got.get(chunk.generation, b"")
            assert chunk.offset == len(held)
            got[chunk.generation] = held + chunk.data

    with pytest.MonkeyPatch.context() as patched:
        made = Node.__init__

        def remember(self: Node, *args: object) -> None:
            made(self, *args)
            nodes.append(self)

        patched.setattr(Node, "__init__", remember)
        append(5)
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        wait_until(lambda: got)
    breaks = 0
    while min(len(lives), breaks) < 5:
        time.sleep(rng.uniform(0, 0.04))
        append(rng.randrange(1, 30))
        if rng.random() < 0.1:
            for number in range(len(lives), 0, -1):
                if (folder / f"server.log.{number}").exists():
                    (folder / f"server.log.{number}").rename(folder / f"server.log.{number + 1}")
            log.rename(folder / "server.log.1")
            lives.append(b"")
            log.touch()
        session = nodes[0]._session
        if rng.random() < 0.1 and session is not None:
            session.kill()
            breaks += 1
    wait_until(lambda: sum(map(len, got.values())) >= sum(map(len, lives)))
    stop.set()
    reader.join(60)
    assert b"".join(got[number] for number in sorted(got)) == b"".join(lives)


def test_truncation_in_place(node_dir, follow):
    """A file truncated and written anew, smaller or larger than before, begins a generation; it is said what may miss."""
    log = node_dir / "server.log"
    log.write_bytes(b"first one\n" * 50)
    reader = follow(log)
    reader.wait_for(b"first one\n" * 50)
    log.write_bytes(b"second\n")
    reader.wait_for(b"first one\n" * 50, b"second\n")
    log.write_bytes(b"third\n" * 500)
    reader.wait_for(b"first one\n" * 50, b"second\n", b"third\n" * 500)
    assert "after byte 500" in reader.notices[0]


@pytest.mark.parametrize("step", ["truncated", "rotated"])
def test_the_log_of_another_rank_stays_out(node_dir, follow, step):
    """A younger log beside the followed one, with a number in its name, is not taken for a part of it."""
    log = node_dir / "server.log"
    log.write_bytes(b"first\n")
    os.utime(log, (1, 1))
    reader = follow(log)
    reader.wait_for(b"first\n")
    (node_dir / "server-0.log").write_bytes(b"another rank\n")
    (node_dir / "server-30001.log").write_bytes(b"another port\n")
    if step == "rotated":
        log.rename(node_dir / "server.log.1")
    log.write_bytes(b"next\n")
    reader.wait_for(b"first\n", b"next\n")


def test_copytruncate(node_dir, follow):
    """What was written before a log was copied aside and truncated is read from the copy."""
    log = node_dir / "server.log"
    log.write_bytes(b"first\n" * 100)
    reader = follow(log)
    reader.settle()
    # Both steps between two looks at the file.
    (node_dir / "server.log.1").write_bytes(b"first\n" * 100 + b"end\n")
    log.write_bytes(b"second\n")
    reader.wait_for(b"first\n" * 100 + b"end\n", b"second\n")


def test_deleted_and_created_again(node_dir, follow):
    """A file that goes away is waited for, which is said once; what is in it when it comes back is read."""
    log = node_dir / "server.log"
    log.write_bytes(b"first\n")
    reader = follow(log)
    reader.wait_for(b"first\n")
    log.unlink()
    reader.wait_for_notice("waiting for it")
    reader.settle()
    log.write_bytes(b"second\n")
    reader.wait_for(b"first\n", b"second\n")
    assert sum("waiting for it" in notice for notice in reader.notices) == 1


def test_a_start_in_the_middle(node_dir, follow):
    """Following can begin at a byte; what was before it still tells whether it is the same file after a truncation."""
    log = node_dir / "server.log"
    log.write_bytes(b"0123456789\n")
    reader = follow(log, start=5)
    reader.wait_for(bytes(5) + b"56789\n")
    log.write_bytes(b"9876543210\nmore\n")
    reader.wait_for(bytes(5) + b"56789\n", b"9876543210\nmore\n")


def test_a_stop_ends_waiting_for_a_connection(farm, node_dir):
    """Told to stop while the host is away, following ends at once and without an error."""
    log = node_dir / "server.log"
    log.write_bytes(b"first\n")
    wire = Wire(farm.ports["node"])
    options = farm.options(ssh=farm.through(wire.port, "stopped"), delay=10.0)
    stop, waiting = threading.Event(), threading.Event()
    chunks = remote_follow(parse(f"node:{log}"), options, notice=lambda _: waiting.set(), stop=stop)
    assert next(chunks).data == b"first\n"
    wire.close()
    threading.Thread(target=lambda: waiting.wait(20) and stop.set(), daemon=True).start()
    began = time.monotonic()
    assert not any(chunk.data for chunk in chunks)
    assert waiting.is_set()
    assert time.monotonic() - began < 8


def test_a_host_that_stays_away_is_spoken_of_once(farm):
    """Called again and again without end, a host that does not answer is named once for each way it does not."""
    notices: list[str] = []
    node = Node(parse("node:/x").host, farm.options(delay=0.0), notices.append)
    assert node.session
    node.drop()
    for kind in ("lost", "refused", "refused", "refused", "timeout"):
        node.recover(SshError(kind, f"node is {kind}", why=None), endless=True)
    assert notices == [f"node is {kind}: trying again until it answers" for kind in ("lost", "refused", "timeout")]


def test_the_first_failure_is_an_error(farm, node_dir):
    """A host that cannot be reached and a file that is not there are errors at the start, not something to wait for."""
    for source, what in ((f"closed:{node_dir}/x", "refuses"), (f"node:{node_dir}/none.log", "there is no")):
        with pytest.raises(Exception, match=what):
            next(remote_follow(parse(source), farm.options()))


def test_a_caller_may_leave_at_any_time(farm, node_dir):
    """Closing the iteration ends the connection."""
    log = node_dir / "server.log"
    log.write_bytes(b"first\n")
    farm.kill_connections()
    chunks = remote_follow(parse(f"node:{log}"), farm.options())
    assert next(chunks) == Chunk(b"first\n", 0, 1)
    assert farm.connections()
    chunks.close()
    wait_until(lambda: farm.connections() == [])


def test_remote_blocks_are_those_of_a_local_log(farm, node_dir):
    """Followed over ssh a log gives whole lines with true numbers and offsets, and a final block per generation."""
    log = node_dir / "server.log"
    log.write_bytes(b"one\ntwo\nhal")
    stop = threading.Event()
    blocks: list[Block] = []
    warnings: list[str] = []

    def run() -> None:
        blocks.extend(
            block
            for block in follow_blocks(f"node:{log}", farm.options(), stop=stop, warn=warnings.append)
            if block is not None
        )

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def append() -> None:
        with log.open("ab") as out:
            out.write(b"f\nthree\nrest")

    for wanted, step in ((1, append), (2, lambda: log.write_bytes(b"new\n")), (4, None)):
        wait_until(lambda wanted=wanted: len(blocks) >= wanted or not thread.is_alive())
        if step is not None:
            step()
    stop.set()
    thread.join(60)
    name = f"node:{log}"
    assert blocks == [
        Block(name, 0, 1, b"one\ntwo\n", newlines=2),
        Block(name, 8, 3, b"half\nthree\n", newlines=2),
        Block(name, 19, 5, b"rest", final=True, newlines=0),
        Block(name, 0, 1, b"new\n", newlines=1),
        Block(name, 4, 2, b"", final=True, newlines=0),
    ]
    assert any("truncated" in warning for warning in warnings)


def test_a_filtered_copy_is_read_with_the_places_of_the_original(farm, node_dir, tmp_path, monkeypatch):
    """Read through the cache, a remote log has its remote name; a filtered copy gives the original's lines, gaps marked."""
    log = node_dir / "server.log"
    lines = [b"plain %d\n" % number if number % 10 else b"EAGLE %d\n" % number for number in range(1000)]
    log.write_bytes(b"".join(lines))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    [source] = remote_sources(f"node:{log}", farm.options())
    assert source.name == f"node:{log}"
    assert b"".join(block.data for block in source.blocks()) == log.read_bytes()
    [file] = farm.fetch(f"node:{log}", dest=tmp_path, anchors=(b"EAGLE",)).files
    [source] = expand(file.file)
    starts = list(itertools.accumulate(map(len, lines), initial=0))
    seen = 0
    for block in source.blocks():
        for number, line in enumerate(block.data.splitlines(keepends=True), block.line - 1):
            assert line == lines[number]
            seen += 1
        assert block.offset == starts[block.line - 1]
        assert block.gap == (block.offset > 0)
    assert seen == 400
