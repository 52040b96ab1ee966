"""What stands before lines and no form knows: labels are learned where they recur, and said where they cannot be told.

The logs are made here: a wrapper of our own around lines whose writer is known, so that the right origin of each line is
known without logscope.
"""

from __future__ import annotations

import gzip
import random
from io import BytesIO
from typing import Any

import pytest
from doors import Parser, grammar
from hypothesis import given, settings
from hypothesis import strategies as st
from test_unwrap import KINDS, Made

from logscope.scan.labels import Labels
from logscope.sources.inputs import expand
from logscope.sources.unwrap import unwrap

STATS = "[2026-09-20 10:00:{:02} TP0] Decode batch, #running-req: 1, #token: 800, token usage: 0.01, accept len: 2.80, accept rate: 0.60, cuda graph: True, gen throughput (token/s): 150.00, #queue-req: 0"
TRACE = [
    "[2026-09-20 10:00:03 TP0] Scheduler hit an exception: Traceback (most recent call last):",
    '  File "/sgl/scheduler.py", line 10, in run_batch',
    "    self.forward(batch)",
    "RuntimeError: of {}",
]
# A wrapper as its author would print it, with the label it names; {} is the server's name, {time} the time.
WRAPPERS: dict[str, str] = {
    "{}> ": "{}",
    "<{}|INFO|{time}> ": "{}",
    "{}/main :: ": "{}/main",
    "{time} fleet-{} | ": "fleet-{}",
    "[{}] (node 7) ": "{}/node/7",
    "@{}#job-4# ": "{}/job-4",
    "\x1b[36m{}-1  |\x1b[0m ": "{}-1",
}
SERVERS = ("blue", "green", "decode-a.ns")


def read(data: bytes, size: int = 8 << 20) -> tuple[list[Any], Parser, list[str]]:
    """Return the records of a file, read as the product reads it, and the warnings."""
    (source,) = expand(BytesIO(data))
    parser = Parser()
    found = []
    for block in unwrap(source.blocks(size=size), source.warn, lambda: Labels(grammar())):
        assert block is not None
        found += parser.feed(block)
    return found, parser, [warning.partition(": ")[2] for warning in source.warnings]


def rows(found: list[Any]) -> list[tuple[Any, ...]]:
    """Return records as comparable rows."""
    return [
        (line, offset, prefix, payload.event, payload.intact, repr(payload.fields))
        for line, offset, prefix, payload in found
    ]


def wrapped(wrapper: str, lines: list[tuple[str, str]]) -> str:
    """Return lines behind the wrapper; ``lines`` are pairs of server and text."""
    return "".join(
        wrapper.format(server, time=f"2026-09-20 10:00:{at % 60:02}.125") + text + "\n"
        for at, (server, text) in enumerate(lines)
    )


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("variant", ["plain", "crlf", "gz", "pieces"])
def test_labels_are_learned(wrapper: str, variant: str) -> None:
    """Every line gets its label as origin, its own place, and each server its own traceback, whoever prints between."""
    rnd = random.Random(wrapper)
    left = {
        server: [STATS.format(at) for at in range(4)] + [line.format(server) for line in TRACE] for server in SERVERS
    }
    lines = []
    while any(left.values()):
        server = rnd.choice([name for name, texts in left.items() if texts])
        lines.append((server, left[server].pop(0)))
    text = wrapped(wrapper, lines)
    data = text.replace("\n", "\r\n").encode() if variant == "crlf" else text.encode()
    found, parser, warnings = read(
        gzip.compress(data) if variant == "gz" else data, 50 if variant == "pieces" else 8 << 20
    )
    assert warnings == []
    starts = [at for at, (_, text) in enumerate(lines) if text.startswith("[")]
    assert [one[0] - 1 for one in found] == starts
    assert [one[2].origin for one in found] == [WRAPPERS[wrapper].format(lines[at][0]) for at in starts]
    for line, offset, _, payload in found:
        assert (
            data.decode()
            .encode()[offset:]
            .startswith(b"Decode batch" if payload.event == "decode_stats" else b"Traceback")
        )
        assert data.count(b"\n", 0, offset) == line - 1
    ends = {one[2].origin: one[3].fields for one in found if one[3].event == "traceback"}
    assert {origin: fields["message"] for origin, fields in ends.items()} == {
        WRAPPERS[wrapper].format(server): f"of {server}" for server in SERVERS
    }
    assert {fields["last_frame"] for fields in ends.values()} == {"/sgl/scheduler.py:10 in run_batch"}
    assert (parser.accounting.bytes, parser.accounting.lines) == (len(data), len(lines))
    assert parser.accounting.glued == 0


def test_indentation_that_a_collector_strips() -> None:
    """Frames and the exception line are found where every line begins at its label."""
    lines = [
        (server, text.format(server).strip())
        for server in SERVERS
        for text in [STATS.format(1), *TRACE, STATS.format(2)]
    ]
    found, _, _ = read(wrapped("{}> ", lines).encode())
    traces = [(one[2].origin, one[3].fields) for one in found if one[3].event == "traceback"]
    assert [origin for origin, _ in traces] == list(SERVERS)
    assert {fields["exception"] for _, fields in traces} == {"RuntimeError"}
    assert {fields["last_frame"] for _, fields in traces} == {"/sgl/scheduler.py:10 in run_batch"}


@pytest.mark.parametrize(
    ("before", "count"),
    [
        (lambda at: f"req-{'abcdefghi'[at]}{at}x> ", 9),
        (lambda at: f"{at}/23 [00:00<?, ?it/s]", 0),
        (lambda at: f"{10 * at}%|####  | ", 0),
        (lambda at: f"{1000 + 7 * at}; ", 0),
        (lambda _: "0.25, 0.5], norm=", 0),
        (lambda at: ["torn ", "a (b) ", "[x] y: ", "- "][at % 4] if at < 4 else "", 0),
    ],
    ids=["requests", "bar", "percent", "counter", "torn", "odd"],
)
def test_what_does_not_recur_stays_glued(before: Any, count: int) -> None:
    """A bar, a torn record, a counter or the number of a request is no label; texts that may be labels are said."""
    texts = [before(at) + STATS.format(at) for at in range(9)]
    found, parser, warnings = read(("\n".join(texts) + "\n").encode())
    assert [one[2].origin for one in found] == [None] * 9
    assert parser.accounting.glued == sum(not text.startswith("[") or before(at) != "" for at, text in enumerate(texts))
    assert [warning.partition(" different")[0] for warning in warnings] == ([str(count)] if count else [])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [200, 8 << 20])
def test_records_inside_wrappers_have_their_place_in_the_file(kind: str, size: int) -> None:
    """Line and offset are those of the physical file, in every wrapper; what the wrapper says stands in the prefix."""
    made = Made()
    texts = [text.format(at) for at in range(3) for text in (STATS, "", *TRACE)]
    for text in texts:
        KINDS[kind](made, text)
    found, parser, _ = read(bytes(made.raw), size)
    # Where the records of the text stand, found without logscope.
    places = sorted(at for word in (b"Decode batch", b"Traceback") for at in positions(bytes(made.text), word))
    assert [(line, offset) for line, offset, _, _ in found] == [(made.lines[at], made.offsets[at]) for at in places]
    assert {one[3].fields["exception"] for one in found if one[3].event == "traceback"} == {"RuntimeError"}
    assert {one[2].time for one in found} == {f"2026-09-20T10:00:0{at}" for at in range(4)}
    labelled = kind not in ("docker", "cri")
    assert {"sglang-0" in (one[2].origin or "") for one in found} == {labelled}
    assert (parser.accounting.bytes, parser.accounting.lines) == (len(made.raw), made.raw.count(b"\n"))
    assert parser.accounting.glued == 0


def positions(text: bytes, word: bytes) -> list[int]:
    """Return where a word stands."""
    found, at = [], text.find(word)
    while at >= 0:
        found.append(at)
        at = text.find(word, at + 1)
    return found


PARTS = ["{}> ", "", "{}> {}> ", "10%|# | ", "<{}|x> "]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(PARTS), st.sampled_from(SERVERS), st.sampled_from([STATS.format(1), *TRACE, "", "noise"])
        ),
        max_size=90,
    ),
    st.integers(1, 400),
    st.booleans(),
)
def test_blocks_of_any_size_give_the_same(lines: list[tuple[str, str, str]], size: int, ended: bool) -> None:
    """Whatever is before lines, in whatever blocks they come: records, places, origins and counts are the same."""
    data = (
        "log\n" + "\n".join(part.replace("{}", server) + text for part, server, text in lines) + "\n" * ended
    ).encode()
    whole, one, said = read(data)
    pieces, other, again = read(data, size)
    assert rows(whole) == rows(pieces)
    assert one.accounting == other.accounting
    assert said == again
    assert (one.accounting.bytes, one.accounting.lines) == (len(data), data.count(b"\n") + (not data.endswith(b"\n")))
