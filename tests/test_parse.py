"""The parser: every record once, in order, with its place, its values and its damage; the same from any bytes."""

from __future__ import annotations

import io
import random
import re
from collections import Counter
from typing import Any

import pytest
from conftest import CASE_LOGS, REAL_RUNS, real_bytes, sidecar
from doors import Parser, tables
from hypothesis import given, settings
from hypothesis import strategies as st

from logscope.grammar import load
from logscope.model import Occurrence
from logscope.sources.blocks import Block
from logscope.sources.inputs import expand

GRAMMAR = load()
KNOWN = {"embed_capture", "layer_capture", "forward_end", "forward", "fc_output", "fc", "aux_concat"}


def parse_bytes(data: bytes, *, quick: bool = True) -> tuple[Parser, list[Occurrence]]:
    """Parse bytes as one final block."""
    parser = Parser(GRAMMAR, "x.log", quick=quick)
    return parser, parser.feed(Block("x.log", 0, 1, data, final=True))


def parse_through_source(data: bytes, size: int) -> tuple[Parser, list[Occurrence]]:
    """Parse bytes through the real reader in blocks of about ``size`` bytes."""
    parser = Parser(GRAMMAR, "x.log")
    out: list[Occurrence] = []
    for source in expand(io.BytesIO(data)):
        for block in source.blocks(size=size):
            out.extend(parser.feed(block))
    out.extend(parser.close())
    return parser, out


def records(occurrences: list[Occurrence]) -> list[Occurrence]:
    """Leave out marks, which are no records."""
    return [occurrence for occurrence in occurrences if occurrence[3].kind != "mark"]


def columns(occurrence: Occurrence) -> tuple[Any, ...]:
    """Return everything an occurrence says, in a form where nan equals nan."""
    line, offset, prefix, payload = occurrence
    values = {name: getattr(payload, name) for name in type(payload).__slots__}
    return line, offset, repr(prefix), repr(values)


# Sidecar names that stand for lines, parts or groups of events rather than for an event of that name.
NO_EVENTS = {"orphan_tail_lines", "empty_lines", "nccl_or_gloo_noise", "other_recognised_or_plain", "source_text"}
OTHER_NAMES = {
    "error_line": "size_mismatch",
    "tensor_print_prefixed": "tensor_print",
    "iter_lines": "iteration",
    "matmul_mismatch_own": "matmul_mismatch",
}


@pytest.mark.parametrize("log", CASE_LOGS, ids=lambda log: log.stem)
def test_case_counts(log) -> None:
    """Every case has exactly the events, by name and intactness, that its sidecar counted independently."""
    parser, occurrences = parse_bytes(log.read_bytes())
    found: Counter[tuple[str, str]] = Counter(
        (o[3].event, o[3].intact) for o in records(occurrences) if o[3].kind == "event"
    )
    expected = sidecar(log)["events"]

    def count(name: str, *intact: str) -> int:
        return sum(found[name, one] for one in intact)

    for key, wanted in expected.items():
        if key in NO_EVENTS:
            continue
        if key == "cut_records":
            assert sum(n for (_, intact), n in found.items() if intact == "cut") == wanted
        elif key == "matmul_mismatch_quoted":
            assert parser.accounting.quoted == wanted
        elif key == "eagle_debug_other":
            assert count("draft_extend", "whole") + count("tree_mode", "whole") + count("debug", "whole") == wanted
        elif key.endswith(("_torn", "_damaged")):
            assert count(key.rpartition("_")[0], "cut", "rejoined") == wanted, key
        elif key.endswith(("_whole", "_partial")):
            name, _, intact = key.rpartition("_")
            assert count(name, intact) == wanted, key
        else:
            name = OTHER_NAMES.get(key, key)
            assert count(name, "whole", "rejoined") == wanted, key
    if not expected:
        assert not found
    assert parser.accounting.bytes == sidecar(log)["bytes"]
    assert parser.accounting.lines == sidecar(log)["physical_lines"]


@pytest.mark.parametrize("run", REAL_RUNS)
def test_real_logs_complete(run: str) -> None:
    """In every real log each debug tag is one event, in order, with its true line and offset; the counts add up."""
    data = real_bytes(run)
    parser, occurrences = parse_bytes(data)
    tagged = [o for o in occurrences if o[3].site in ("dsv2", "logits", "eagle3")]
    offsets = [found.start() for found in re.finditer(rb"EAGLE3_DEBUG\[", data)]
    assert [o[1] for o in tagged] == offsets
    newlines = [found.start() for found in re.finditer(rb"\n", data)]
    line, at = 1, 0
    for occurrence in tagged:
        while at < len(newlines) and newlines[at] < occurrence[1]:
            at += 1
            line += 1
        assert occurrence[0] == line
    accounting = parser.accounting
    assert accounting.records == len(records(occurrences))
    assert accounting.bytes == len(data)
    assert accounting.lines == data.count(b"\n") + (not data.endswith(b"\n"))
    assert accounting.unparsed == accounting.cut == accounting.rejoined == 0
    assert accounting.invalid_utf8_bytes == 0


@pytest.mark.parametrize("log", CASE_LOGS, ids=lambda log: log.stem)
@pytest.mark.parametrize("size", [1, 7, 300])
def test_block_size_changes_nothing(log, size: int) -> None:
    """The same events and accounting come out whatever the size of the blocks, down to a byte."""
    data = log.read_bytes()
    parser, whole = parse_bytes(data)
    other, pieces = parse_through_source(data, size)
    assert list(map(columns, whole)) == list(map(columns, pieces))
    assert parser.accounting == other.accounting


@pytest.mark.parametrize("log", CASE_LOGS, ids=lambda log: log.stem)
def test_crlf_changes_only_offsets(log) -> None:
    """A copy with CRLF line ends gives the same events, offsets aside."""
    data = log.read_bytes()
    crlf = re.sub(rb"(?<!\r)\n", b"\r\n", data)
    plain_events = [columns(o)[0:1] + columns(o)[2:] for o in parse_bytes(data)[1]]
    crlf_events = [columns(o)[0:1] + columns(o)[2:] for o in parse_bytes(crlf)[1]]
    assert plain_events == crlf_events


@pytest.mark.parametrize("run", ["healthy-topk1", "style-alt", "fault-nan-layer30", "cuda-graph", "style-noflush"])
def test_quick_equals_exact(run: str) -> None:
    """The fast way and the exact grammar give the same payload for every record, column by column."""
    data = real_bytes(run)
    quick, fast = parse_bytes(data)
    exact, slow = parse_bytes(data, quick=False)
    assert list(map(columns, fast)) == list(map(columns, slow))
    assert quick.accounting == exact.accounting


def damaged(data: bytes, seed: int) -> bytes:
    """Cut, glue, repeat and overwrite parts of a log at random places."""
    random_ = random.Random(seed)
    lines = data.split(b"\n")
    start = random_.randrange(max(1, len(lines) - 60))
    lines = lines[start : start + 60]
    for _ in range(random_.randrange(1, 12)):
        at = random_.randrange(len(lines))
        line = lines[at]
        match random_.randrange(7):
            case 0:
                lines[at] = line[: random_.randrange(len(line) + 1)]
            case 1 if at + 1 < len(lines):
                lines[at : at + 2] = [line + lines[at + 1]]
            case 2:
                cut = random_.randrange(len(line) + 1)
                other = lines[random_.randrange(len(lines))]
                lines[at] = line[:cut] + other
                lines.insert(at + 1, line[cut:])
            case 3:
                cut = random_.randrange(len(line) + 1)
                lines[at] = line[:cut] + bytes(random_.randrange(256) for _ in range(random_.randrange(4))) + line[cut:]
            case 4:
                lines.insert(at, line)
            case 5:
                lines[at] = b"\r".join([line, lines[random_.randrange(len(lines))]])
            case _:
                random_.shuffle(lines)
    return b"\n".join(lines)


@pytest.mark.parametrize("run", ["healthy-topk1", "style-alt", "cuda-graph"])
def test_damage_loses_nothing(run: str) -> None:
    """In a damaged log every anchor still ends as exactly one record or is quoted, both ways agree, counts add up."""
    data = real_bytes(run)
    for seed in range(150):
        text = damaged(data, seed)
        parser, fast = parse_bytes(text)
        _, slow = parse_bytes(text, quick=False)
        assert list(map(columns, fast)) == list(map(columns, slow)), seed
        kept = records(fast)
        assert parser.accounting.records == len(kept), seed
        offsets = [o[1] for o in fast]
        assert offsets == sorted(offsets), seed
        tags = [found.start() for found in re.finditer(rb"EAGLE3_DEBUG", text)]
        seen = {o[1] for o in kept} | {o[1] + 1 for o in kept}
        missing = [at for at in tags if at not in seen]
        assert len(missing) <= parser.accounting.quoted, seed


def test_values_of_damaged_records_are_true() -> None:
    """A value that a cut record keeps stood whole in the log: a cut anywhere never invents a number."""
    line = real_bytes("healthy-topk1").split(b"\n")[42]
    _, [whole] = parse_bytes(line + b"\n")
    for cut in range(len(b"EAGLE3_DEBUG"), len(line)):
        _, found = parse_bytes(line[:cut] + b"\n" + b"\n" * 6)
        if not found:
            continue
        [(_, _, _, payload)] = found
        if payload.kind != "event":
            continue
        assert payload.event == "layer_capture", cut
        assert payload.intact in ("cut", "partial"), cut
        for name in ("norm", "shape", "head"):
            assert getattr(payload, name) in (None, getattr(whole[3], name)), (cut, name)
        assert payload.intact == "cut" or payload.norm in (None, whole[3].norm)


@pytest.mark.parametrize("magic", [b"x^", b"x\x01", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"])
def test_text_that_begins_like_an_archive(magic: bytes) -> None:
    """A block whose first bytes an archive could have is read as the text it is."""
    data = magic + b"EAGLE3_DEBUG[a] x: norm=1.5\nEAGLE3_DEBUG[a] y: norm=2.5\n"
    assert [columns(o) for o in parse_bytes(data)[1]] == [columns(o) for o in parse_bytes(data, quick=False)[1]]
    assert [o[3].norm for o in parse_bytes(data)[1]] == [1.5, 2.5]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from(
                [
                    b"EAGLE3_DEBUG[dsv2] embed capture: shape=torch.Size([21, 7168]), residual_is_none=True, norm=10.6277, first5=[0.5]",
                    b"EAGLE3_DEBUG[x] head: a=tensor([1.0,",
                    b"EAGLE3_DEBUG[",
                    b"[2026-02-11 15:21:12 TP0] ",
                    b"Decode batch, #running-req: 1, ",
                    b"#token: 12, accept len: 2.50, gen throughput (token/s): 1.0, #queue-req: 0",
                    b"Traceback (most recent call last):",
                    b"\n",
                    b"\r",
                    b"\r\n",
                    b'  File "a.py", line 1, in f',
                    b"RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)",
                    b"server_args=ServerArgs(a='",
                    b"'",
                    b'"',
                    b"]",
                    b"\x00",
                    b"Finish: obj=R(",
                    b", out={'text': '",
                    b"'}",
                    b"\xef\xbf\xbd[0;36m",
                    b"\x1b[0m",
                    b" 0%|",
                    b"norm=nan, first5=[nan, inf]",
                ]
            ),
        ),
        max_size=14,
    )
)
def test_any_bytes(parts: list[bytes]) -> None:
    """Any bytes are read without an error, alike in any block size, and the accounting adds up."""
    # A first line, so that no compressed form is recognised by its magic bytes.
    data = b"log\n" + b"".join(parts)
    parser, whole = parse_bytes(data)
    other, pieces = parse_through_source(data, 5)
    assert list(map(columns, whole)) == list(map(columns, pieces))
    assert parser.accounting == other.accounting
    assert parser.accounting.records == len(records(whole))
    assert 0 <= parser.accounting.other_lines <= parser.accounting.lines


def test_a_cut_inside_a_label_makes_no_event() -> None:
    """A record that ends inside a known label is that label's, cut, or unparsed; only a label of its own is an event."""
    for label in (b"aux concat", b"forward end", b"layer 31 capture", b"embed capture", b"fc output", b"capture plan"):
        for end in range(1, len(label)):
            parser, found = parse_bytes(b"EAGLE3_DEBUG[dsv2] " + label[:end] + b"\n" * 8)
            (payload,) = (payload for _, _, _, payload in found)
            assert payload.kind == "unparsed" or payload.intact != "whole", (label, end)
            assert payload.kind == "unparsed" or payload.event in KNOWN | {"capture_plan"}, (label, end)
            assert payload.layer in (None, 31), (label, end)
            assert parser.accounting.whole == 0
    _, ((_, _, _, payload),) = parse_bytes(b"EAGLE3_DEBUG[dsv2] my own label\n")
    assert (payload.event, payload.intact) == ("my_own_label", "whole")
    torn = (
        b"EAGLE3_DEBUG[logits] aux conca\nt: num_aux=1, shape=torch.Size([1, 7168]), "
        b"capture_hidden_mode=CaptureHiddenMode.FULL, norm=31.5582, first5=[0.5, 0.25]\n"
    )
    _, ((_, _, _, payload),) = parse_bytes(torn)
    assert (payload.event, payload.intact, payload.norm) == ("aux_concat", "rejoined", 31.5582)


def test_follow_finishes_a_cut_tail() -> None:
    """Case 18: when the rest of the last line arrives, the record is whole with norm 10.6277."""
    log = next(log for log in CASE_LOGS if log.stem.startswith("18"))
    data = log.read_bytes() + b"77, first5=[0.1, 0.2, 0.3, 0.4, 0.5]\n"
    last = parse_bytes(data)[1][-1]
    assert (last[0], last[3].norm, last[3].intact) == (9, 10.6277, "whole")


def test_quoted_records_are_counted_not_read() -> None:
    """A record inside a prompt, a template or source code is no event; it is counted as quoted."""
    text = (
        b"""print("EAGLE3_DEBUG[dsv2] embed capture: shape=%s" % (x.shape,))\n"""
        b"""[2026-02-11 15:21:00] Finish: obj=G(text='say EAGLE3_DEBUG[dsv2] embed capture: norm=1.0'), out={'text': 'x'}\n"""
        b"""EAGLE3_DEBUG[dsv2] embed capture: shape={x.shape}, norm={n:.4f}\n"""
    )
    parser, found = parse_bytes(text)
    assert [o[3].event for o in found] == ["request_finish"]
    assert parser.accounting.quoted == 3
    assert parser.accounting.unparsed == 0


def test_gap_is_never_a_cut() -> None:
    """Where a filtered copy left lines out, an unfinished record is partial and says so; it is not called cut."""
    parser = Parser(GRAMMAR, "x")
    head = b"EAGLE3_DEBUG[dsv2] capture@L3 x=(3, 7168) bf16 res=yes mean=1.0 std=1.0 absmax=1.0 head=tensor([1.0,\n"
    parser.feed(Block("x", 0, 1, head))
    found = parser.feed(Block("x", 900, 40, b"The server is fired up and ready to roll!\n", final=True, gap=True))
    assert [(o[0], o[3].event, o[3].intact) for o in found] == [(1, "layer_capture", "partial"), (40, "ready", "whole")]
    assert "left out" in (found[0][3].reason or "")


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(
            log,
            id=log.stem,
            # That a prefill is of the warm-up is told by the `ready` behind it.
            marks=[pytest.mark.xfail(strict=True, reason="open")] if log.stem.startswith("01-sglang") else [],
        )
        for log in CASE_LOGS
    ],
)
def test_blocks_of_any_size_give_the_same_tables(log) -> None:
    """Passes, records, prints and server lines are the same, column by column, in whatever blocks a log comes."""
    data = log.read_bytes()
    whole = tables(data)
    for step in (100, 3000):
        parts = tables(data, step=step)
        for name in ("passes", "records", "prints", "server"):
            one, other = (
                # What counts in lists of the run itself (segments, prefixes, heads, texts) is no value.
                frame.drop("segment", "prefix", "head", "said", strict=False)
                for frame in (getattr(whole, name), getattr(parts, name))
            )
            assert one.equals(other, null_equal=True), (name, step)
