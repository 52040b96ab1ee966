"""Live logs: what is handed out, and when, while a log grows; through every door, here and on another host.

A busy machine fails none of these: each waits for what must come although nothing more is written, and the writer goes
on when it has come. How fast it comes is measured by ``benchmarks/live.py``.
"""

from __future__ import annotations

import json
import re
import shlex
import sys

import doors
import pytest
from conftest import DATA, real_bytes
from test_cli_follow import HEALTH, Following, as_finished, events_of

from logscope.asking import Asked
from logscope.queries.summarize import Summarize
from logscope.report import Context
from logscope.tables.tables import Tables

pytest_plugins = ["fetch_fixtures"]

STREAM = "import logscope, sys\nfor one in logscope.stream(sys.argv[1], follow=True): print(one.model_dump_json(by_alias=True), flush=True)"
DECODE = (
    b"[2026-11-29 12:14:%02d] Decode batch, #running-req: 1, #token: %d, token usage: 0.00, accept len: %s, "
    b"accept rate: 0.23, cuda graph: False, gen throughput (token/s): 50.00, #queue-req: 0\n"
)
CRASH = (
    b"Traceback (most recent call last):\n"
    b'  File "/srv/sglang/scheduler.py", line 7, in run\n'
    b"    step()\n"
    b"RuntimeError: CUDA error: an illegal memory access was encountered\n"
)


def decode(number: int, length: bytes = b"1.00") -> bytes:
    """Return a statistics line of 40 verify rounds."""
    return DECODE % (number % 60, 40 * number, length)


@pytest.fixture(params=["local", "ssh"])
def place(request, farm, node_dir, monkeypatch):
    """Give the path of a log, and the name it has here or on another host."""
    log = node_dir / "server.log"
    log.write_bytes(HEALTH)
    if request.param == "local":
        return log, str(log)
    monkeypatch.setenv("LOGSCOPE_SSH", shlex.join(farm.ssh))
    return log, f"node:{log}"


def append(log, data: bytes) -> None:
    """Write at the end of a log."""
    with log.open("ab") as out:
        out.write(data)


@pytest.mark.parametrize("door", ["events", "stream"])
def test_every_event_comes_while_the_writer_waits(door, place):
    """A server line at once, a debug record whose pass goes on early; a rotation changes nothing of it."""
    log, name = place
    debug = [line for line in real_bytes("healthy-topk1").splitlines(keepends=True) if b"EAGLE3_DEBUG[" in line]
    program = [sys.executable, "-c", STREAM, name]
    words = ("events", name, "--follow", "-f", "ndjson") if door == "events" else ()
    with Following(*words, **({} if words else {"program": program})) as following:

        def come(total: int, what: str) -> None:
            following.wait_for(lambda: len(following.lines) == total, f"{what}: {len(following.lines)} of {total}")

        come(1, "what stood there before")
        append(log, decode(1))
        come(2, "a server line")
        append(log, b"".join(debug[:600]))
        come(602, "debug records, the last of them early")
        append(log, decode(2))
        come(603, "a server line behind a pass that may go on")
        append(log, b"".join(debug[600:700]))
        come(703, "the rest of the pass, and more")
        first = log.rename(log.with_name("server.log.1"))
        log.write_bytes(decode(3))
        come(704, "a server line in the new file")
        append(log, b"".join(debug[700:720]))
        come(724, "debug records in the new file")
        assert following.interrupt() == (0 if words else -2)
    before, after = events_of(first), events_of(log)
    assert before[0]["event"] == "http_access"
    passes = max(event["pass"] or 0 for event in before)
    after = [event | {"pass": event["pass"] and event["pass"] + passes} for event in after]
    assert as_finished(following.lines, before + after) == before + after
    early = [json.loads(line)["fields"].get("reason") == "not settled" for _, line in following.lines]
    assert early[723]
    assert not any(early[:2] + early[602:603] + early[703:704])


def test_check_tells_a_finding_once_when_it_stands(place):
    """A101 after its rounds, E101 when its last line is written, behind a pass that may go on; each once."""
    log, name = place
    debug = [line for line in real_bytes("healthy-topk1").splitlines(keepends=True) if b"EAGLE3_DEBUG[" in line]
    append(log, b"".join(debug[:50]) + decode(1))
    with Following("check", name, "--follow") as following:
        append(log, decode(2))
        following.wait_for(lambda: "A101" in following.text, "accept len 1.00 over 80 rounds is not told")
        log.rename(log.with_name("server.log.1"))
        log.write_bytes(b"".join(debug[50:60]) + CRASH)
        following.wait_for(lambda: "E101" in following.text, "the crash is not told")
        told = following.text
        assert following.interrupt() == 1
    assert re.findall(r"^(?:error|warning) ([A-Z]\d+) ", told, re.MULTILINE).count("A101") == 1
    assert re.findall(r"^(?:error|warning) ([A-Z]\d+) ", told, re.MULTILINE).count("E101") == 1
    assert following.text.startswith(told)
    assert "CUDA error" in following.text.removeprefix(told)  # the final answer


@pytest.mark.parametrize(("command", "terminal"), [("accept", True), ("summarize", False)])
def test_accept_len_is_shown_as_it_changes(command, terminal, place):
    """Piped a line for each new headline; on a terminal the screen is drawn anew."""
    log, name = place
    append(log, decode(1, b"3.00"))
    with Following(command, name, "--follow", terminal=terminal) as following:

        def shown(length: str) -> bool:
            return re.search(rf"accept len +{length}", re.sub(r"\x1b\[[\d;?]*\w", "", following.text)) is not None

        following.wait_for(lambda: shown("3.00"), "the first line is not shown")
        append(log, decode(2, b"2.00"))
        following.wait_for(lambda: shown("2.50"), "the second line is not shown")
        log.rename(log.with_name("server.log.1"))
        log.write_bytes(decode(3, b"1.00"))
        following.wait_for(lambda: shown("2.00"), "the line in the new file is not shown")
        assert following.interrupt() == 0


LOGS = {
    "several steps": real_bytes("healthy-topk1"),
    "spec v1": real_bytes("healthy-topk1-specv1"),
    "graphs": real_bytes("cuda-graph"),
    "two ranks": (DATA / "ranks" / "rank1-nan.log").read_bytes(),
    "two schedulers": (DATA / "ranks" / "dp2-mixed.log").read_bytes(),
    "crash": (DATA / "cases" / "06-aux-count-two-of-three-tp-tracebacks.log").read_bytes(),
}


@pytest.mark.parametrize("log", LOGS)
def test_what_came_early_changes_nothing_later(log):
    """Looking at what is held, after each of many blocks, gives every event once, and leaves passes and answers alone."""
    data = LOGS[log][:60_000]
    data = data[: data.rfind(b"\n") + 1]
    asked, plain = Asked(Summarize()), Asked(Summarize())
    rows = []
    found = doors.batches(data, step=3000, early=True)
    for tables in found:
        rows += tables.event_rows()
        asked.add(tables)
    whole = doors.batches(data, step=3000)
    expected = [row for tables in whole for row in tables.event_rows()]
    assert [row["offset"] for row in rows] == [row["offset"] for row in expected]
    for row, known in zip(rows, expected, strict=True):
        assert row["phase"] in ("unknown", known["phase"])
        assert row["pass"] == known["pass"] or log.startswith("two")  # of ranks that were not counted yet
    once = Tables.concat(one for one in found if not one.early)
    for name in ("passes", "records", "prints", "server"):
        assert getattr(once, name).equals(getattr(Tables.concat(whole), name))
    for tables in whole:
        plain.add(tables)
    assert asked.report(Context(["log"])).as_dict() == plain.report(Context(["log"])).as_dict()


def test_spec_v1_is_held_by_a_pass():
    """Once it is known how the server drafts, no more than three passes wait, in a log of spec v1 too."""
    data = real_bytes("healthy-topk1-specv1")[:60_000]
    held = [tables.passes.height for tables in doors.batches(data, step=800, early=True) if tables.early]
    assert sum(held) > len(held)
    assert max(held[len(held) // 2 :]) <= 3
