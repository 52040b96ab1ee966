"""The fixed event record: all keys, file order, the same events from every form of the same bytes, typed events."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import math
import os
import threading
from collections import Counter
from pathlib import Path

import pytest
import zstandard
from conftest import CASE_LOGS, REAL_RUNS, real_bytes, real_log

import logscope as ls
from logscope.model import EVENT_KEYS

KEYS = [
    "file",
    "line",
    "offset",
    "segment",
    "during",
    "time",
    "origin",
    "pid",
    "dp_rank",
    "pp_rank",
    "tp_rank",
    "ep_rank",
    "site",
    "event",
    "role",
    "phase",
    "evidence",
    "pass",
    "layer",
    "rows",
    "width",
    "shape",
    "norm",
    "head",
    "capture_hidden_mode",
    "intact",
    "fields",
]


def event_dicts(*inputs: object) -> list[dict]:
    """Return the event records of inputs, without the file's name."""
    found = list(ls.load(*inputs).tables.event_rows())
    for record in found:
        del record["file"]
    return found


def test_keys_are_the_fixed_ones() -> None:
    """The record has exactly the keys other people's scripts rely on, in their order."""
    assert list(EVENT_KEYS) == KEYS
    for record in ls.load(real_log("healthy-topk1")).tables.event_rows():
        assert list(record) == KEYS
        json.dumps(record, allow_nan=False)


def test_not_finite_numbers_have_names() -> None:
    """Numbers that are nan or inf in norm and head are the strings JSON readers can hold."""
    log = next(log for log in CASE_LOGS if log.stem.startswith("11"))
    records = {record["line"]: record for record in event_dicts(log)}
    assert records[4]["norm"] == "inf"
    assert records[4]["head"][3] == "inf"
    assert records[5]["head"] == ["nan"] * 5
    assert records[19]["head"] == [0.0, -0.0, 0.0, 0.0, -0.0]


@pytest.mark.parametrize("name", ["cuda-graph", "style-alt"])
@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(lambda data: data, id="plain"),
        pytest.param(gzip.compress, id="gz"),
        pytest.param(bz2.compress, id="bz2"),
        pytest.param(lzma.compress, id="xz"),
        pytest.param(lambda data: zstandard.ZstdCompressor().compress(data), id="zst"),
    ],
)
def test_same_events_from_every_form(name: str, pack, tmp_path: Path) -> None:
    """A file, its compressed forms and a file object give the same events in every key."""
    data = real_bytes(name)
    expected = event_dicts(io.BytesIO(data))
    path = tmp_path / "server.log"
    path.write_bytes(pack(data))
    assert event_dicts(path) == expected
    assert event_dicts(io.BytesIO(pack(data))) == expected


def test_same_events_from_a_pipe() -> None:
    """A pipe gives the same events as the file, written a few bytes at a time."""
    data = real_bytes("fault-embed-captured")
    expected = event_dicts(io.BytesIO(data))
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as pipe:
            for start in range(0, len(data), 700):
                pipe.write(data[start : start + 700])

    writer = threading.Thread(target=write)
    writer.start()
    with os.fdopen(reading, "rb") as pipe:
        assert event_dicts(pipe) == expected
    writer.join()


def test_crlf_copy_differs_in_offsets_only(tmp_path: Path) -> None:
    """A copy with CRLF line ends gives the same events but for their offsets."""
    data = real_bytes("healthy-topk1-specv1")
    path = tmp_path / "crlf.log"
    path.write_bytes(data.replace(b"\n", b"\r\n"))
    expected, got = event_dicts(io.BytesIO(data)), event_dicts(path)
    for record in (*expected, *got):
        del record["offset"]
    assert got == expected


class OneByte(io.RawIOBase):
    """A stream that gives one byte at a time, as the slowest writer would."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer) -> int:
        """Give one byte."""
        one = self._data.read(1)
        buffer[: len(one)] = one
        return len(one)


@pytest.mark.parametrize("stem", ["09", "16", "18", "19", "36b"])
def test_one_byte_at_a_time_through_stream(stem: str) -> None:
    """Typed events streamed one byte at a time are those of the file."""
    log = next(log for log in CASE_LOGS if log.stem.startswith(stem))
    streamed = [json.loads(event.model_dump_json(by_alias=True)) for event in ls.stream(OneByte(log.read_bytes()))]
    for record in streamed:
        del record["file"]
    assert streamed == event_dicts(log)


def test_typed_events_are_frozen_and_keep_numbers() -> None:
    """A typed event cannot be changed, and nan is a float in it."""
    log = next(log for log in CASE_LOGS if log.stem.startswith("11"))
    events = list(ls.stream(log))
    assert math.isnan(next(event for event in events if event.line == 5).norm)
    with pytest.raises(ValueError, match="frozen"):
        events[0].line = 3


@pytest.mark.parametrize("run", REAL_RUNS)
def test_labels_are_whole_and_in_order(run: str) -> None:
    """In every real log events come in file order, each once, and every debug event of a pass has a role and phase."""
    loaded = ls.load(real_log(run))
    events = list(loaded.tables.event_rows())
    offsets = [event["offset"] for event in events]
    assert offsets == sorted(offsets)
    assert len(events) == loaded.accounting.records
    for event in events:
        if event["pass"] is not None:
            assert event["role"] in ("target", "draft")
            assert event["phase"] is not None
            assert event["evidence"] is not None
    assert Counter(event["site"] for event in events)[None] < len(events) or run == "no-speculation"


def test_several_files_in_one_call(tmp_path: Path) -> None:
    """Files are read one after the other; segments and passes count per file."""
    one, two = tmp_path / "a.log", tmp_path / "b.log"
    one.write_bytes(real_bytes("fault-embed-captured"))
    two.write_bytes(real_bytes("cuda-graph"))
    run = ls.load(one, two)
    assert run.files == [str(one), str(two)]
    assert [segment.file for segment in run.segments] == [str(one), str(two)]
    assert run.accounting.bytes == one.stat().st_size + two.stat().st_size


def test_copies_are_events_of_their_own() -> None:
    """Eight writers print eight events; they share pass and labels, and none is lost."""
    log = next(log for log in CASE_LOGS if log.stem.startswith("36a"))
    records = event_dicts(log)
    captures = [record for record in records if record["event"] == "embed_capture"]
    assert len(captures) == 32
    assert Counter((record["pass"], record["phase"]) for record in captures).most_common(1)[0][1] == 8


def test_fetched_log_says_where_it_came_from(tmp_path: Path) -> None:
    """A log that `logscope fetch` brought shows host, path, times, size and checksum in its summary."""
    from logscope.fetch.manifest import Manifest

    log = tmp_path / "server.log"
    log.write_bytes(real_bytes("fault-embed-captured"))
    manifest = Manifest("node7", "/var/log/server.log", size=log.stat().st_size, sha256="ab" * 32, verified=True)
    manifest.first_fetched = manifest.last_fetched = "2026-11-29T12:00:00Z"
    manifest.save(log)
    report = ls.load(log).summarize()
    origin = report.facts["origins"][str(log)]
    assert (origin["host"], origin["path"], origin["sha256"]) == ("node7", "/var/log/server.log", "ab" * 32)
    [row] = report.tables["origins"].rows
    assert "node7" in str(row)
    assert ls.load(real_log("fault-embed-captured")).reading.origins == {}
