"""Following a log from the command line: what is printed, when, and how Ctrl-C ends it; local and over ssh."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

import pytest
from conftest import real_bytes
from sshfarm import Wire, write_through_trouble

import logscope
from logscope.asking import Asked
from logscope.grammar import load as load_grammar
from logscope.queries.summarize import Summarize
from logscope.reading import Reading, _noting, followed_batches
from logscope.sources.tail import follow

pytest_plugins = ["fetch_fixtures"]

COMMAND = [sys.executable, "-m", "logscope"]
HEALTH = b'INFO:     127.0.0.1:41452 - "GET /health HTTP/1.1" 200 OK\n'
PATIENCE = 30  # seconds; what is waited for takes a fraction of one


class Following:
    """A following command whose standard output is collected, line by line with the time of each."""

    def __init__(self, *words: str, terminal: bool = False, program: list[str] = COMMAND, **env: str) -> None:
        here, there = pty.openpty() if terminal else os.pipe()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            [*program, *words], stdout=there, stderr=self._stderr, env={**os.environ, **env, "COLUMNS": "120"}
        )
        os.close(there)
        self.lines: list[tuple[float, bytes]] = []
        self._reader = threading.Thread(target=self._read, args=(here,))
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE)
        self._stderr.close()

    def _read(self, fd: int) -> None:
        with open(fd, "rb") as stream, contextlib.suppress(OSError):  # a terminal ends with an error
            # What is drawn ends in no newline.
            pieces = iter(stream.read1, b"") if stream.isatty() else stream
            self.lines.extend((time.monotonic(), piece) for piece in pieces)

    @property
    def text(self) -> str:
        """What was written so far."""
        return b"".join(line for _, line in self.lines).decode()

    @property
    def said(self) -> str:
        """What was said on standard error so far."""
        return os.pread(self._stderr.fileno(), 1 << 20, 0).decode()

    def wait_for(self, what, why: str) -> None:
        """Wait until a question is answered with yes."""
        end = time.monotonic() + PATIENCE
        while not what():
            assert time.monotonic() < end, why
            assert self.process.poll() is None, self.said
            time.sleep(0.02)

    def has_read(self, path: Path) -> bool:
        """Tell whether the command holds a file open that it has read to its end."""
        held = Path(f"/proc/{self.process.pid}/fd")
        with contextlib.suppress(OSError):  # a descriptor that was closed meanwhile
            for entry in held.iterdir():
                if entry.resolve() == path.resolve():
                    position = (held.parent / "fdinfo" / entry.name).read_text().split()[1]
                    return int(position) == path.stat().st_size
        return False

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> int:
        """Press Ctrl-C, or send another signal, wait for the end, and return the exit code."""
        self.process.send_signal(number)
        return self.wait_for_end()

    def wait_for_end(self) -> int:
        """Wait for the end, and return the exit code."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code


def events_of(*files) -> list[dict]:
    """Return the events of finished logs, without the log's name."""
    found = []
    for file in files:
        answer = subprocess.run([*COMMAND, "events", str(file), "-f", "ndjson"], capture_output=True, check=True)
        found += [nameless(line) for line in answer.stdout.splitlines()]
    return found


def nameless(line: bytes) -> dict:
    """Return an event without the log's name."""
    event = json.loads(line)
    del event["file"]
    return event


def as_finished(lines, whole: list[dict]) -> list[dict]:
    """Return followed events with what the finished log says where they came before that was known."""
    found = [nameless(line) for _, line in lines]
    for event, known in zip(found, whole, strict=False):
        if event["fields"].get("reason") == "not settled":
            assert (event["phase"], event["evidence"]) == ("unknown", "none")
            event.update({name: known[name] for name in ("phase", "evidence", "pass", "fields")})
    return found


@pytest.fixture
def unfinished(tmp_path):
    """Write a log that ends in the middle of a forward pass."""
    path = tmp_path / "server.log"
    path.write_bytes(b"".join(real_bytes("healthy-topk1").splitlines(keepends=True)[:2000]))
    return path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_ctrl_c_writes_the_events_of_the_unfinished_pass(unfinished, number):
    """What was held because its pass may still grow is labelled from what there is, and written."""
    whole = events_of(unfinished)
    with Following("events", str(unfinished), "--follow", "-f", "ndjson") as following:
        following.wait_for(lambda: len(following.lines) > len(whole) // 2, "no events")
        assert following.interrupt(number) == 0
    assert as_finished(following.lines, whole) == whole


@pytest.mark.parametrize("command", ["summarize", "check"])
def test_ctrl_c_answers_as_for_the_finished_log(command, unfinished):
    """The last answer of a followed log is that of the log as it stands."""
    answer = subprocess.run([*COMMAND, command, str(unfinished), "-f", "json"], capture_output=True, check=False)
    with Following(command, str(unfinished), "--follow", "-f", "json") as following:
        following.wait_for(lambda: following.has_read(unfinished), "the log is not read")
        assert following.interrupt() == answer.returncode
    assert json.loads(following.text) == json.loads(answer.stdout)


def test_a_kill_gives_the_terminal_back(unfinished):
    """SIGTERM ends the live table as Ctrl-C does: the first screen and the cursor are there again."""
    with Following("summarize", str(unfinished), "--follow", terminal=True) as following:
        following.wait_for(lambda: "Ctrl-C ends" in following.text, "nothing is drawn")
        assert following.interrupt(signal.SIGTERM) == 0
    live, _, last = following.text.rpartition("\x1b[?25h\x1b[?1049l")
    assert live
    assert re.search(r"verify +\d+", last)


@pytest.mark.parametrize("command", ["events", "summarize", "check"])
def test_nothing_recognised_is_1_when_following_too(command):
    """A pipe that ended without a record, as when its writer failed at once, is no answer: exit 1, and it is said."""
    for text, what in ((b"", "is empty"), (b"Error: no such pod\n", "nothing is recognised")):
        run = subprocess.run([*COMMAND, command, "-", "--follow"], input=text, capture_output=True, check=False)
        assert (run.returncode, run.stdout) == (1, b"")
        assert what in run.stderr.decode()


def test_parquet_does_not_follow(unfinished, tmp_path):
    """Parquet is written once: with --follow it is refused, not written and left."""
    words = ["events", str(unfinished), "--follow", "-o", str(tmp_path / "events.parquet")]
    run = subprocess.run([*COMMAND, *words], capture_output=True, check=False)
    assert run.returncode == 2
    assert "--follow cannot be joined with Parquet" in run.stderr.decode()


def test_events_say_what_became_of_log_and_connection(farm, node_dir):
    """A lost connection and a rotation are said on stderr when they happen, not at the end, and not among the events."""
    log = node_dir / "server.log"
    log.write_bytes(b"".join(real_bytes("healthy-topk1").splitlines(keepends=True)[:500]))
    wire = Wire(farm.ports["node"])
    ssh = shlex.join(farm.through(wire.port, "follow-said"))
    with Following("events", f"node:{log}", "--follow", "-f", "ndjson", LOGSCOPE_SSH=ssh) as following:
        following.wait_for(lambda: following.lines, "no events")
        wire.cut()
        following.wait_for(lambda: "connected to node again" in following.said, "the lost connection is not said")
        assert "trying again" in following.said
        log.rename(node_dir / "server.log.1")
        log.write_bytes(b"x\n")
        following.wait_for(lambda: "generation 2 begins" in following.said, "the rotation is not said")
        assert following.interrupt() == 0
    wire.close()
    assert all(json.loads(line) for _, line in following.lines)


def test_ctrl_c_does_not_wait_for_a_host_that_hangs(farm, node_dir):
    """A connection that stands and brings nothing, as when the network is gone, does not keep who wants to leave."""
    log = node_dir / "server.log"
    log.write_bytes(b"".join(real_bytes("healthy-topk1").splitlines(keepends=True)[:500]))
    farm.kill_connections()
    with Following("events", f"node:{log}", "--follow", "-f", "ndjson", LOGSCOPE_SSH=shlex.join(farm.ssh)) as following:
        following.wait_for(lambda: following.lines, "no events")
        hanging = farm.connections()
        try:
            for process in hanging:
                os.kill(process, signal.SIGSTOP)
            time.sleep(0.5)
            began = time.monotonic()
            assert following.interrupt() == 0
            assert time.monotonic() - began < 8
        finally:
            for process in hanging:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)
    whole = events_of(log)
    assert as_finished(following.lines, whole) == whole


@pytest.mark.parametrize("command", ["events", "summarize"])
def test_a_host_that_refuses_later_leaves_the_answer(command, farm, unfinished, tmp_path):
    """A connection lost for good after a while, as without the agent's key: all that was read, the error, and exit 2."""
    ssh, refuse, brought = tmp_path / "ssh", tmp_path / "refuse", tmp_path / "brought"
    ssh.write_text(
        f"#!/bin/sh\nif [ -e '{refuse}' ]; then echo 'me@node: Permission denied (publickey).' >&2; exit 255; fi\n"
        f"{shlex.join(farm.ssh)} \"$@\" | tee -a '{brought}'\n"
    )
    ssh.chmod(0o755)
    last = unfinished.read_bytes().splitlines()[-1]
    size = b" %d " % unfinished.stat().st_size

    def is_read() -> bool:
        """Tell whether the host was asked again after it had sent the last line: what it sent was taken then.

        Every answer of the host ends with what stat says of the open file and of the file of that name.
        """
        came = brought.read_bytes() if brought.exists() else b""
        return last in came and came.rpartition(last)[2].count(size) > 2

    whole = subprocess.run([*COMMAND, command, str(unfinished), "-f", "ndjson"], capture_output=True, check=True)
    name = f"node:{unfinished}"
    with Following(command, name, "--follow", "-f", "ndjson", LOGSCOPE_SSH=shlex.quote(str(ssh))) as following:
        following.wait_for(is_read, "the log is not read")
        refuse.touch()
        farm.kill_connections()
        assert following.wait_for_end() == 2
        assert "did not accept the key" in following.said
    if command == "events":
        finished = [nameless(line) for line in whole.stdout.splitlines()]
        assert as_finished(following.lines, finished) == finished
    else:
        assert json.loads(following.lines[0][1])["accounting"] == json.loads(whole.stdout.splitlines()[0])["accounting"]


def test_two_rotations_between_two_looks(tmp_path):
    """A reader that could not look for a while (its pipe was full) reads the file between, too, like one over ssh."""
    log = tmp_path / "server.log"
    log.write_bytes(b"first\n")
    said: list[str] = []
    blocks = follow(log, poll=0.01, idle=0.5, warn=said.append)
    data = next(blocks).data
    with log.open("ab") as out:
        out.write(b"end of first\n")
    log.rename(tmp_path / "server.log.2")
    (tmp_path / "server.log.1").write_bytes(b"second\n")
    (tmp_path / "server-0.log").write_bytes(b"another rank\n")
    log.write_bytes(b"third\n")
    data += b"".join(block.data for block in blocks if block is not None)
    assert data == b"first\nend of first\nsecond\nthird\n"
    assert "more than once" in said[0]
    assert "replaced" in said[1]


def test_a_summary_goes_on_through_a_rotation(tmp_path):
    """What the first file said of the server is still said, and the passes of both files are counted."""
    lines = real_bytes("healthy-topk1").splitlines(keepends=True)
    log = tmp_path / "server.log"
    log.write_bytes(b"".join(lines[:1500]))
    whole = summary_of(b"".join(lines[:2500]), tmp_path / "whole.log")
    grammar, reading, query = load_grammar(), Reading(), Asked(Summarize())
    seen = 0
    for found in followed_batches(str(log), grammar, reading, idle=0.5):
        if found is not None:
            query.add(found)
            seen += 1
        elif seen and not (tmp_path / "server.log.1").exists():
            log.rename(tmp_path / "server.log.1")
            log.write_bytes(b"".join(lines[1500:2500]))
    told = query.report(reading.context())
    report = told.as_dict()
    (segment,) = report["tables"]["segments"]
    assert segment | {"file": ""} == whole["tables"]["segments"][0] | {"file": ""}
    cut, uncut = (
        {(row["role"], row["phase"]): row["passes"] for row in one["tables"]["phases"]} for one in (report, whole)
    )
    # The draft decode that the rotation cuts is one pass, and its output in the new file another, of a phase not told.
    assert cut.pop(("draft", "unknown")) == 1
    assert cut == uncut
    assert report["accounting"]["whole"] == whole["accounting"]["whole"]
    assert not any("ready to roll" in note for note in told.notes)


def summary_of(data, log):
    log.write_bytes(data)
    return logscope.load(log).summarize().as_dict()


def test_a_report_repeats_the_last_notices_only():
    """However often a connection is lost, what is said of it does not hide the answer."""
    reading, told = Reading(["server.log"], warnings=["kept"]), []
    note = _noting(reading, told.append)
    for number in range(20):
        note(f"lost {number % 19}")
    assert len(told) == 20
    assert reading.warnings == ["kept", "lost 15", "lost 16", "lost 17", "lost 18", "lost 0"]


def test_ten_thousand_events_over_ssh_with_a_rotation_and_a_drop(farm, node_dir):
    """2,000 lines a second: every event once, in order, and while the log is written, not when it ends."""
    lines = [line for line in real_bytes("healthy-topk1").splitlines(keepends=True) if b"EAGLE3_DEBUG[" in line]
    lines = (lines * (10_000 // len(lines) + 1))[:10_000]
    log = node_dir / "server.log"
    log.write_bytes(HEALTH)
    wire = Wire(farm.ports["node"])
    ssh = shlex.join(farm.through(wire.port, "follow-events"))
    with Following("events", f"node:{log}", "--follow", "-f", "ndjson", LOGSCOPE_SSH=ssh) as following:
        following.wait_for(lambda: following.lines, "the first line is missing")
        written, spare = write_through_trouble(log, lines, wire)
        following.wait_for(lambda: len(following.lines) == 1 + 10_000, "events are missing")
        assert following.interrupt() == 0
    wire.close()
    first, second = events_of(node_dir / "server.log.1"), events_of(log)
    passes = max(event["pass"] or 0 for event in first)
    second = [event | {"pass": event["pass"] + passes} for event in second]  # the life goes on
    assert as_finished(following.lines, first + second) == first + second
    assert len(following.lines) == 1 + 10_000
    delays = [when - then for (when, _), then in zip(following.lines[1:], written, strict=True)]
    assert min(delays) > 0
    # In seconds it is a fraction of one, on a machine that does nothing else.
    assert not spare or statistics.median(delays) < (written[-1] - written[0]) / 2


def test_live_summary_over_ssh(farm, node_dir):
    """The table on a terminal grows with the remote log, through a rotation and a lost connection."""
    lines = real_bytes("healthy-topk1").splitlines(keepends=True)
    parts = [lines[:1000], lines[1000:2000], lines[2000:3000]]
    log = node_dir / "server.log"
    log.write_bytes(b"".join(parts[0]))
    wire = Wire(farm.ports["node"])
    ssh = shlex.join(farm.through(wire.port, "follow-table"))

    def shown() -> int:
        """Return the verify passes in the table drawn last."""
        return int(([0, *re.findall(r"verify +([0-9]+)", following.text)])[-1])

    with Following("summarize", f"node:{log}", "--follow", terminal=True, LOGSCOPE_SSH=ssh) as following:
        following.wait_for(shown, "the table does not show the first part")
        assert "Ctrl-C ends" in following.text
        first = shown()
        wire.cut()
        # While nothing is written to the log, too.
        following.wait_for(lambda: "connected to node again" in following.text, "the lost connection is not shown")
        with log.open("ab") as out:
            out.writelines(parts[1])
        following.wait_for(lambda: shown() > first + 50, "what came after the connection was lost is not shown")
        second = shown()
        log.rename(node_dir / "server.log.1")
        log.write_bytes(b"".join(parts[2]))
        following.wait_for(lambda: shown() > second + 50, "the new file after the rotation is not shown")
        assert following.interrupt() == 0
        assert following.said == ""  # it stands in the answer
    wire.close()
    # What stands on the terminal in the end counts every record of both files, once.
    records = sum(len(events_of(file)) for file in (node_dir / "server.log.1", log))
    newlines = sum(line.count(b"\n") for part in parts for line in part)
    assert f"{newlines:,} lines, all {records:,} records whole" in following.text.rpartition("\x1b[?1049l")[2]
