"""Hostile logs: whatever stands in one, reading takes time and memory by its length, and showing it does no harm.

The inputs too large for a test are in benchmarks/hostile.
"""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import CASE_LOGS, CASES
from doors import Parser

import logscope
from logscope import grammar as grammars
from logscope.cli import main
from logscope.errors import GrammarError
from logscope.grammar import OVERTIMES, TIME_LIMIT
from logscope.model import Accounting, Occurrence
from logscope.redact import Redactor
from logscope.render.machine import to_csv, to_json, to_ndjson
from logscope.render.markdown import to_markdown
from logscope.sources.blocks import Block
from logscope.sources.inputs import expand

if TYPE_CHECKING:
    from collections.abc import Callable

GRAMMAR = grammars.load()
RECORD = (
    b"EAGLE3_DEBUG[dsv2] layer 3 capture: shape=torch.Size([21, 7168]), residual_is_none=False, norm=10.6277,"
    b" first5=[0.5, 0.5]"
)
TORN = b"EAGLE3_DEBUG[dsv2] layer 3 capture: shape=torch.Size([21, 71"
DECODE = b"[2026-02-11 15:21:12 TP0] Decode batch, #running-req: 1, #token: 12, accept len: 2.50, #queue-req: 0"
STAMP = b"2026-01-01T00:00:00Z"
OPEN = b"EAGLE3_DEBUG[x] foo: a="
FRAME = b'  File "a.py", line 1, in f\n'


def parse(data: bytes, grammar: grammars.Grammar = GRAMMAR) -> tuple[Accounting, list[Occurrence]]:
    """Parse bytes as one file."""
    parser = Parser(grammar, "x.log")
    found = parser.feed(Block("x.log", 0, 1, data, final=True))
    return parser.accounting, found


# Texts that can be made as long as one likes, with the length at which reading them takes some milliseconds.
LONG: dict[str, tuple[Callable[[int], bytes], int]] = {
    "glued records": (lambda n: RECORD * n, 60),
    "glued torn records": (lambda n: TORN * n, 100),
    "torn records between CR": (lambda n: (TORN + b"\rfoo\r") * n, 60),
    "quoted anchors": (lambda n: b"'EAGLE3_DEBUG[dsv2] " * n, 2000),
    "a quote that never closes": (lambda n: b"x = '" + b" EAGLE3_DEBUG[dsv2] layer 3 capture: a=1 " * n, 100),
    "quotes, then anchors": (lambda n: b" '" * n + b"EAGLE3_DEBUG[x] foo: a=1 " * n, 60),
    "anchors of other text": (lambda n: b"Capture " * n, 500),
    "anchors of engines": (lambda n: b"Engine 001: " * n, 500),
    "anchors of iterations": (lambda n: b"iter = 198, " * n, 300),
    "anchors of requests": (lambda n: b'INFO:     127.0.0.1:41452 - "GET /' * n, 500),
    "bars": (lambda n: b"Capturing batches (bs=8 avail_mem=23.90 GB):   0%|    | 0/4 [00:00<?, ?it/s]" * n, 100),
    "open reprs": (lambda n: b"Finish: obj=G(a=1, " * n, 60),
    "reprs in quotes": (lambda n: b"Finish: obj=G(a='" + b" Finish: obj=G(b=1, " * n + b"')", 1000),
    "mismatches": (lambda n: b"mat1 and mat2 shapes cannot be multiplied (112x151552 and 12288x4096)" * n, 200),
    "arguments": (lambda n: b"server_args=ServerArgs(" + b",".join(b"k%d=%d" % (i, i) for i in range(n)) + b")", 2000),
    "keys": (lambda n: OPEN + b", ".join(b"k%d=%d" % (i, i) for i in range(n)), 1000),
    "keys before a record": (lambda n: OPEN + b", ".join(b"k%d=%d" % (i, i) for i in range(n)) + b" " + RECORD, 1000),
    "values without keys": (lambda n: OPEN + b"1, " + b", ".join(b"w%d" % i for i in range(n)), 1500),
    "pairs": (lambda n: DECODE + b", " + b", ".join(b"k%d: %d" % (i, i) for i in range(n)), 800),
    "open parentheses in pairs": (lambda n: DECODE + b", k" + b"(" * n + b"a), " * n, 5000),
    "sentences in pairs": (lambda n: DECODE + b", " + b"a. " * n, 5000),
    "odd blanks in pairs": (lambda n: DECODE + b", " + b"\x0b" * n + b"b", 50_000),
    "digits in pairs": (lambda n: DECODE + b", a: " + b"1" * n + b"!", 50_000),
    "blanks before a label": (lambda n: b"EAGLE3_DEBUG[x]" + b" " * n + b",", 10_000),
    "blanks in a label": (lambda n: b"EAGLE3_DEBUG[x] a" + b" " * n + b",", 10_000),
    "words of a label": (lambda n: b"EAGLE3_DEBUG[x] " + b"a  " * n + b",", 1000),
    "a long label": (lambda n: b"EAGLE3_DEBUG[x] " + b"a" * n + b",", 10_000),
    "placeholders": (lambda n: b"EAGLE3_DEBUG[x] %" + b"0" * n + b" a=1", 10_000),
    "blanks behind a stamp": (lambda n: STAMP + b" " * n + b"x " + RECORD, 20_000),
    "colours behind a stamp": (lambda n: TORN + b"\n" + STAMP + b"\x1b[0m" * n + b"x\n", 10_000),
    "hosts and pods": (lambda n: TORN + b"\n" + b"a-1" * n + b"x\n", 20_000),
    "labels behind a stamp": (lambda n: TORN + b"\n" + STAMP + b" {" + b'a="b", ' * n + b"x\n", 5000),
    "structured data": (lambda n: TORN + b"\n<1>1 - h a 1 - " + b'[a b="c"]' * n + b"x\n", 5000),
    "prefixes": (lambda n: b"[12:00:00 TP0] " * n + RECORD, 5000),
    "brackets": (lambda n: OPEN + b"[" * n + b"]" * n, 50_000),
    "calls": (lambda n: OPEN + b"f(" * n, 20_000),
    "tensors in tensors": (lambda n: OPEN + b"tensor(a=" * n, 5000),
    "objects": (lambda n: OPEN + b"<b>, " * n, 1000),
    "escapes": (lambda n: OPEN + b"'" + b"\\a" * n, 50_000),
    "a tensor of many lines": (lambda n: OPEN + b"tensor([1.0,\n" + b"1.0, 2.0, \n" * n + b"])\n", 3000),
    "a tensor of open brackets": (lambda n: OPEN + b"tensor([1.0,\n" + b"(1.0),\n" * n + b"])\n", 3000),
    "digits behind a tensor": (lambda n: OPEN + b"tensor([1.0,\n" + b"1" * n + b"!\n", 20_000),
    "open tracebacks": (lambda n: b"\r".join([b"[15:21:12 TP1] Traceback (most recent call last):"] * n), 300),
    "frames": (lambda n: b"Traceback (most recent call last):\n" + FRAME * n, 5000),
    "frames between CR": (lambda n: b"Traceback (most recent call last):\n" + FRAME.replace(b"\n", b"\r") * n, 1000),
    "a dotted exception": (lambda n: b"Traceback (most recent call last):\n" + b"A." * n + b"!\n", 20_000),
    "bytes that are no UTF-8": (lambda n: b"\xff" * n + b"\n", 100_000),
    "empty lines": (lambda n: b"\n" * n, 20_000),
    "carriage returns": (lambda n: TORN + b"\n" + b"\r" * n, 50_000),
}


def seconds(work: Callable[[Any], object], data: bytes | str) -> float:
    """Return the processor time that work on a text takes; below some milliseconds what is done once decides."""
    begun = time.process_time()
    work(data)
    return max(time.process_time() - begun, 0.004)


@pytest.mark.parametrize("name", LONG)
def test_time_grows_with_the_length(name: str) -> None:
    """A text four times as long takes about four times as long to read, not sixteen times."""
    make, length = LONG[name]
    parse(make(8))
    short, long = make(length), make(4 * length)
    # A busy machine spoils one pair, not each of four.
    assert min(seconds(parse, long) / seconds(parse, short) for _ in range(4)) < 9


def test_memory_does_not_keep_long_lines() -> None:
    """Reading many long lines, all different, keeps none of them: what is remembered is bounded in bytes."""
    parser = Parser(GRAMMAR, "x.log")
    tracemalloc.start()
    try:
        for number in range(60):
            lines = [b"request %d.%d: " % (number, each) + b"lorem ipsum, %d " % each * 5000 for each in range(12)]
            data = b"\n".join(lines) + b"\n"
            parser.feed(Block("x.log", number << 24, 1 + 12 * number, data))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert parser.accounting.bytes > 50_000_000
    assert held < 30_000_000


def test_numbers_no_tensor_can_hold() -> None:
    """Digits glued together (norms of 1e200, axes below nought, layers of 5,000 digits) are damage, not values."""
    shape = b"shape=torch.Size([21, 7168])"
    for text in (
        b"EAGLE3_DEBUG[dsv2] embed capture: %b, norm=1e200" % shape,
        b"EAGLE3_DEBUG[dsv2] embed capture: %b, norm=1e999" % shape,
        b"EAGLE3_DEBUG[dsv2] embed capture: %b, norm=%b" % (shape, b"9" * 5000),
        b"EAGLE3_DEBUG[dsv2] embed capture: shape=torch.Size([-21, 7168]), norm=1.0000",
        b"EAGLE3_DEBUG[dsv2] embed capture: shape=torch.Size([%b, 7168]), norm=1.0000" % (b"9" * 30),
        b"EAGLE3_DEBUG[dsv2] embed capture: shape=(%b), norm=1.0000" % (b"9, " * 65),
    ):
        accounting, [(_, _, _, payload)] = parse(text + b"\n")
        assert accounting.cut == 1, text[:80]
        assert not payload.usable
        assert payload.norm is None or payload.shape is None
    _, [(_, _, _, payload)] = parse(b"EAGLE3_DEBUG[dsv2] layer %b capture: %b, norm=1.0000\n" % (b"9" * 5000, shape))
    assert payload.layer is None


def test_printed_infinity_is_one() -> None:
    """``inf`` and ``nan`` are values; a finite number too large for a float is kept as its text."""
    _, [(_, _, _, payload)] = parse(b"EAGLE3_DEBUG[x] foo: a=inf, b=1e999, c=%b\n" % (b"9" * 400))
    assert payload.fields == {"a": float("inf"), "b": "1e999", "c": "9" * 400}


def test_lines_are_counted_in_their_turn() -> None:
    """Lines that hold records stay right while an open traceback holds the records behind it back."""
    data = b"Traceback (most recent call last):\n" + FRAME + (DECODE + b"\n") * 3 + b"ValueError: x\nplain\n"
    accounting, _ = parse(data)
    assert (accounting.lines, accounting.other_lines) == (7, 1)


def slow_grammar(sample: str = "SLOW: abc") -> str:
    """Return a grammar whose pattern and lead take exponential time on some texts."""
    return f"""
schema = 1
name = "slow"
[[event]]
name = "slow"
anchors = ["SLOW:"]
reader = "pattern"
pattern = 'SLOW: (?P<x>(?:(?:a|b|ab)+)+)c'
[[event]]
name = "led"
anchors = ["LED:"]
reader = "pattern"
lead = '(?:(?:a|b|ab)+)+c '
pattern = 'LED: '
[[sample]]
text = "{sample}"
event = "slow"
[[sample]]
text = "LED: "
event = "led"
"""


def test_a_slow_pattern_is_given_up(tmp_path: Path) -> None:
    """A pattern that takes too long on 4 texts is not tried on 10,000 more; the records say so; the next file tries."""
    path = tmp_path / "slow.toml"
    path.write_text(slow_grammar(), encoding="utf-8")
    grammar = grammars.join([grammars.load_file(path)])
    lines = b"".join(b"SLOW: %b%d\n" % (b"ab" * 200, number) for number in range(10_000))
    begun = time.process_time()
    accounting, found = parse(lines, grammar)
    assert time.process_time() - begun < 10 * OVERTIMES * TIME_LIMIT
    assert accounting.unparsed == 10_000
    assert "on this text" in (found[0][3].reason or "")
    assert "on 4 texts before" in (found[-1][3].reason or "")
    accounting, _ = parse(b"SLOW: abc\n", grammar)
    assert accounting.whole == 1


def test_a_slow_lead_is_given_up(tmp_path: Path) -> None:
    """Words before an anchor that a pattern takes too long on are no words of the record."""
    path = tmp_path / "slow.toml"
    path.write_text(slow_grammar(), encoding="utf-8")
    grammar = grammars.join([grammars.load_file(path)])
    accounting, _ = parse(b"".join(b"%d%b LED: \n" % (number, b"ab" * 300) for number in range(200)), grammar)
    assert (accounting.whole, accounting.glued) == (200, 200)


def test_a_slow_sample_is_named(tmp_path: Path) -> None:
    """A sample its own pattern takes too long on is an error with the place and the reason."""
    path = tmp_path / "slow.toml"
    path.write_text(slow_grammar("SLOW: " + "ab" * 1000), encoding="utf-8")
    with pytest.raises(GrammarError, match="takes longer than") as caught:
        grammars.load_file(path)
    assert caught.value.message.where is not None


# ------------------------------------------------------------------------------------------- what is shown of a log

EVIL = "\x1b[31m\x1b]0;title\x07\u202eabc\u2066\u200b\u200d\ufeff\u2028\x85\x9b\x00<script>alert(1)</script>&amp;=1+1`$(x)`|"
DANGER = list("\x1b\x07\u202e\u2066\u200b\u200d\ufeff\u2028\x85\x9b\x00\x08")
EVIL_LOG = "\n".join(
    [
        f"[2026-02-11 15:21:12 TP0] server_args=ServerArgs(model_path='{EVIL}', tp_size=1, speculative_num_steps=3)",
        f"(Worker{EVIL} pid=1) EAGLE3_DEBUG[{EVIL[:20]}] {EVIL}: shape=torch.Size([4, 7168]), norm=1.0, {EVIL}={EVIL}",
        f"EAGLE3_DEBUG[\u202edsv2] layer 3 capture: shape=torch.Size([4, 7168]), norm=1.0000, first5=[0.5], x='{EVIL}'",
        "EAGLE3_DEBUG[=cmd|x] =HYPERLINK capture: shape=torch.Size([4, 7168]), norm=1.0000, a='=1+1', b=@SUM(1)",
        f"EAGLE3_DEBUG{EVIL}",
        f"[2026-02-11 15:21:13 TP0] Decode batch, #running-req: 1, #token: 9, accept len: 2.50, {EVIL}: {EVIL}",
        "Traceback (most recent call last):",
        f'  File "{EVIL}", line 3, in {EVIL}',
        f"RuntimeError: {EVIL}",
        f"[pod/{EVIL.replace(' ', '')}] ValueError: mat1 and mat2 shapes cannot be multiplied (3x28672 and 21504x7168)",
        f"[2026-02-11 15:21:13] Finish: obj=G(rid='{EVIL}'), out={{'text': '{EVIL}'}}",
    ]
)
MISMATCHES = {"matmul_mismatch", "size_mismatch", "weight_shape_mismatch"}
FORMS = ("table", "csv", "md", "html", "github")


def tool(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run logscope as a user does."""
    return subprocess.run([sys.executable, "-m", "logscope", *arguments], input=stdin, capture_output=True, check=False)


@pytest.mark.parametrize("command", ["summarize", "captures", "shapes", "norms", "config", "errors", "check", "events"])
def test_text_of_a_log_does_no_harm(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences, bidirectional and invisible characters, HTML and formulas in a log are shown, never obeyed."""
    run = logscope.load(io.BytesIO(EVIL_LOG.encode()))
    log = tmp_path / "evil.log"
    log.write_text(EVIL_LOG, encoding="utf-8")
    assert run.accounting.records >= 8
    for form in FORMS:
        if command == "events" and form not in ("table", "csv"):
            continue
        code = main([command, "-f", form, str(log)])
        shown = "".join(capsys.readouterr())
        assert code in (0, 1), shown
        assert shown.strip()
        assert [char for char in DANGER if char in shown] == []
        if form == "html":
            assert "<script>alert" not in shown
        if form == "csv":
            cells = [cell for line in shown.splitlines() for cell in line.replace('"', "").split(",")]
            assert [cell for cell in cells if cell.startswith(("=", "@", "+"))] == []


@pytest.mark.parametrize("log", CASE_LOGS, ids=lambda log: log.stem)
def test_own_output_holds_no_records(log: Path) -> None:
    """A log in which somebody pasted tables, pages or JSON of logscope has no record more.

    What an exception said is a record wherever it stands bare, and tables and pages say it bare.
    """
    run = logscope.load(log)
    for report in (run.summarize(), run.check(), run.errors(), run.captures()):
        bare = [str(report), to_markdown(report), *(to_csv(report, name) for name in report.tables)]
        for text in (to_json(report), to_ndjson(report)):
            accounting, _ = parse(text.encode())
            assert accounting.records == 0
        for text in bare:
            accounting, found = parse(text.encode())
            assert [one.event for *_, one in found if one.kind == "event" and one.event not in MISMATCHES] == []
            assert accounting.unparsed == 0


def test_own_raw_output_is_the_log_again() -> None:
    """``events --raw`` gives records back that are read as they were: the same events, the same values."""
    log = CASES / "10-graph-capture-and-hidden-verify.log"
    done = tool("events", "--raw", str(log))
    _, again = parse(done.stdout)
    _, before = parse(log.read_bytes())

    def said(found: list[Occurrence]) -> list[Any]:
        return [(p.event, p.layer, p.shape, p.norm, p.head, p.fields) for *_, p in found if p.kind == "event"]

    assert said(again) == said(before)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: "a-" * n + "@",
        lambda n: "a." * n,
        lambda n: "/a" * n,
        lambda n: "'" + "/" * n,
        lambda n: "text='" + "\\" * n,
        lambda n: "1:" * n,
        lambda n: "abc1" * n,
        lambda n: "host=" + "a-" * n,
        lambda n: "key" * n + "=",
        lambda n: "http://" + "a" * n,
        lambda n: "req-" * n,
    ],
)
def test_redaction_time_grows_with_the_length(make: Callable[[int], str]) -> None:
    """A text four times as long takes about four times as long to redact."""

    def redact(text: str) -> str:
        return Redactor().text(text)

    redact(make(10))
    assert min(seconds(redact, make(8000)) / seconds(redact, make(2000)) for _ in range(4)) < 9


# ------------------------------------------------------------------------------------------------- through the reader


def test_a_bomb_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """An archive of zeros, 1000 to 1, is read to its end, and nothing is recognised in it."""
    path = tmp_path / "bomb.log.gz"
    with gzip.open(path, "wb", compresslevel=9) as packed:
        for _ in range(64):
            packed.write(bytes(1 << 20))
    assert path.stat().st_size < 70_000
    tracemalloc.start()
    try:
        run = logscope.load(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert run.accounting.bytes == 64 << 20
    assert run.accounting.records == 0
    # Blocks of 24 MiB, joined from their pieces, and their text.
    assert peak < 150 << 20


def test_a_file_that_shrinks(tmp_path: Path) -> None:
    """A file cut off while it is read gives what was left and a warning; no record is invented."""
    path = tmp_path / "server.log"
    path.write_bytes((RECORD + b"\n") * 20_000)
    source = expand(str(path))[0]
    parser = Parser(GRAMMAR, "x.log")
    found = []
    for block in source.blocks(size=1 << 16):
        if block.offset == 0:
            os.truncate(path, 1_000_000)
        found += parser.feed(block)
    assert parser.accounting.bytes == 1_000_000
    assert len(found) == parser.accounting.records == 1_000_000 // (len(RECORD) + 1) + 1
    assert parser.accounting.cut + parser.accounting.partial == 1
    assert "became shorter" in source.warnings[0]


def test_loops_of_links_end(tmp_path: Path) -> None:
    """A folder that contains itself through links is read once."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "server.log").write_bytes(DECODE + b"\n")
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    (tmp_path / "a" / "self").symlink_to("self")
    run = logscope.load(tmp_path)
    assert run.accounting.records == 1


def test_time_stamps_that_jump() -> None:
    """Stamps that go back, forward by centuries, or name no day at all break no answer."""
    stamps = ["9999-12-31 23:59:59", "0001-01-01 00:00:00", "2026-02-30 25:61:61", "2026-02-11 15:21:12", "15:21:12"]
    text = "".join(f"[{stamps[n % 5]} TP0] {DECODE.decode().partition('] ')[2]}\n" for n in range(500))
    run = logscope.load(io.BytesIO(text.encode()))
    assert run.accounting.records == 500
    report = run.accept()
    assert report.tables
    assert str(report)


def test_many_writers_and_late_copies() -> None:
    """Records of one writer that come thousands of lines late are all kept, in about the time of the others."""
    texts = [RECORD.replace(b"10.6277", b"%d.2500" % number) + b"\n" for number in range(4000)]
    late = 1000
    lines = [text * 7 + (texts[number - late] if number >= late else b"") for number, text in enumerate(texts)]
    data = b"".join(lines) + b"".join(texts[-late:])
    begun = time.process_time()
    run = logscope.load(io.BytesIO(data))
    report = run.summarize()
    taken = time.process_time() - begun
    assert run.accounting.whole == 8 * 4000
    assert report.accounting.records == 8 * 4000
    assert taken < 20


@pytest.mark.parametrize("data", [b"\n" * 1_000_000, b"\r" * 3_000_000, b"\0" * 3_000_000], ids=["LF", "CR", "NUL"])
def test_a_log_of_nothing_but_noise(data: bytes) -> None:
    """Empty lines, CRs and NULs alone hold nothing, take bounded memory, and nothing is what the command line says."""
    tracemalloc.start()
    try:
        run = logscope.load(io.BytesIO(data))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert run.accounting.bytes == len(data)
    assert run.accounting.records == 0
    assert peak < 60 << 20
    done = tool("summarize", "-", stdin=data)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"nothing is recognised" in done.stderr
