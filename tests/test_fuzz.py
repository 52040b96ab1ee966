"""Fuzzing: whatever the bytes, nothing is lost, invented or slow, and no question breaks. Found inputs are replayed.

Logs are generated from the grammars' own samples with values, keys, labels and prefixes of any kind, and mutated out
of real ones. ``LOGSCOPE_FUZZ=N`` multiplies the number of examples; benchmarks/fuzz has the coverage-guided fuzzers.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import re
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
from conftest import CASE_LOGS, DATA, real_bytes
from doors import Parser, answered, batches, label
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logscope import grammar as grammars
from logscope.check import Checker
from logscope.errors import GrammarError
from logscope.grammar import inside_quotes, proof
from logscope.model import ForwardPass, Payload, ServerEvent
from logscope.queries.acceptance import Accept
from logscope.queries.captures import Captures
from logscope.queries.config import Config
from logscope.queries.errors import Errors
from logscope.queries.norms import Norms
from logscope.queries.shapes import Shapes
from logscope.queries.summarize import Summarize
from logscope.render.html import fragment
from logscope.render.machine import to_csv, to_github, to_json, to_ndjson
from logscope.render.markdown import to_markdown
from logscope.render.terminal import plain_report
from logscope.report import Context, Item
from logscope.sources.blocks import Block

TIMES = int(os.environ.get("LOGSCOPE_FUZZ", "1"))
FOUND = DATA / "fuzz"
GRAMMAR = grammars.load()
CONTRACT = {"aux_layers": [3, 31, 59], "hidden_size": 7168, "target_num_hidden_layers": 61, "num_draft_tokens": 4}


def _harnesses() -> ModuleType:
    """Return benchmarks/fuzz/harnesses.py: the same checks that atheris runs."""
    path = Path(__file__).parents[1] / "benchmarks" / "fuzz" / "harnesses.py"
    spec = importlib.util.spec_from_file_location("harnesses", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["harnesses"] = module
    spec.loader.exec_module(module)
    return module


HARNESSES = _harnesses()
fuzz = settings(
    max_examples=60 * TIMES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=TIMES == 1,
    database=None,
)

# ------------------------------------------------------------------------------------------------- generated logs

SAMPLES = [sample.text for file in GRAMMAR.files for sample in file.samples]
NUMBERS = [
    "0", "1", "-1", "3", "4", "21", "7168", "21504", "28672", "1.5", "10.6277", "123.4567", "1.00", "2.50", "3.00", "0.54",
    "nan", "inf", "-inf", "-nan", "0.0", "-0.0", "1e5", "1e38", "1e99", "1e-320", "1e308", "1e999", "0x10", "1_000",
    "True", "None", "[1]", "'x'", "''", "(1,)", "{}", "-", "...", "<A.B: 2>", "CaptureHiddenMode.FULL", "FULL", "2", "100%",
    "-5", "2147483648", "9223372036854775808", "9" * 20, "9" * 400, "9" * 5000, "", "\x00", "\x1b[31m7", "\u0663",
    "e\u0301",
]  # fmt: skip
KEYS = [
    "shape", "norm", "first5", "residual_is_none", "mode", "capture_hidden_mode", "num_aux", "embeds", "hidden_states",
    "hidden_shape", "layer_id", "layer", "mean", "std", "absmax", "head", "shapes", "requested", "layers_to_capture",
    "num_hidden_layers", "hidden_size", "count", "res", "x", "|h|", "event", "line",
]  # fmt: skip
SITES = ["dsv2", "dsv2", "logits", "eagle3", "x", "a b", "\u00e9"]
LABELS = [
    "embed capture", "layer 3 capture", "layer 31 capture", "layer 59 capture", "layer -1 capture", "forward end",
    "layer 999999999 capture", f"layer {'9' * 5000} capture", "aux concat", "forward", "fc output", "fc", "capture plan",
    "capture@L3", "end", "cat", "in", "weird", "", "layer x capture", "5", "layer 3 layer 4",
]  # fmt: skip
ARGUMENTS = [
    "model_path", "tp_size", "dp_size", "pp_size", "speculative_num_steps", "speculative_eagle_topk",
    "speculative_num_draft_tokens", "decode_log_interval", "disable_cuda_graph", "speculative_algorithm", "page_size",
    "cuda_graph_bs", "enable_dp_attention",
]  # fmt: skip
STATISTICS = [
    "#running-req", "#token", "token usage", "accept len", "accept rate", "cuda graph", "gen throughput (token/s)",
    "#queue-req", "#new-seq", "#new-token", "#cached-token", "spec rounds", "spec tokens", "full token usage",
]  # fmt: skip
SCRAPS = [
    b"\n", b"\r", b"\r\n", b"\x00", b"\xff", b"EAGLE3_DEBUG[", b"'", b'"', b"9", b".", b"]", b"[", b" ", b", ", b"e+",
    b"\xef\xbf\xbd[0;36m", b"\x1b[0m", b" 0%|   | 0/4 [00:00<?, ?it/s]", b"Traceback (most recent call last):",
]  # fmt: skip


class Writer:
    """Writes logs that a random source decides on."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def one(self, items: Any) -> Any:
        """Return one of several."""
        return items[self.random.randrange(len(items))]

    def shape(self) -> str:
        """Return a shape, of any length and content, or nearly one."""
        axes = [
            self.one(["4", "1", "21", "7168", "21504", "0", self.one(NUMBERS)])
            for _ in range(self.one([0, 1, 2, 2, 2, 3]))
        ]
        return str(self.one(["torch.Size([%s])", "(%s)", "[%s]", "torch.Size(%s)", "torch.Size([%s]"])) % ", ".join(
            axes
        )

    def numbers(self) -> str:
        """Return a list."""
        return "[" + ", ".join(self.one(NUMBERS) for _ in range(self.one([0, 1, 5, 5, 9]))) + "]"

    def value(self, depth: int = 0) -> str:
        """Return any printed value, nested up to a few levels."""
        kind = self.random.randrange(8 if depth < 3 else 5)
        if kind < 3:
            return str(self.one(NUMBERS))
        if kind == 3:
            return self.shape()
        if kind == 4:
            return self.numbers()
        inner = self.value(depth + 1)
        return (
            str(self.one(["tensor(%s, device='cuda:0')", "tensor(%s)", "{'a': %s}", "f(a=%s)", "<X %s>", '"%s"']))
            % inner
        )

    def debug(self) -> str:
        """Return a record of the debug tag with any label and keys."""
        keys = [self.one(KEYS) for _ in range(self.one([0, 1, 3, 4, 6]))]
        fields = ", ".join(
            f"{key}={self.shape() if 'shape' in key and self.random.random() < 0.8 else self.value()}" for key in keys
        )
        return f"EAGLE3_DEBUG[{self.one(SITES)}] {self.one(LABELS)}{self.one([': ', ' ', ':'])}{fields}"

    def whole_pass(self, before: str) -> list[str]:
        """Return the lines of one target pass and its draft, of a healthy form."""
        rows = self.one([1, 3, 4, 21])
        head = "first5=[0.5, 0.25, -1.0, 0.125, 2.0]"
        tag = before + "EAGLE3_DEBUG"
        lines = [
            f"{tag}[dsv2] layer {layer} capture: shape=torch.Size([{rows}, 7168]), residual_is_none=False,"
            f" norm={self.random.randrange(1, 10**6) / 10**4:.4f}, {head}"
            for layer in self.one([(3, 31, 59), (2, 30, 58), (3, 31)])
        ]
        norm, width = self.one(NUMBERS), self.one([21504, 7168, 28672])
        lines += [
            f"{tag}[dsv2] forward end: num_aux=3, hidden_shape=[{rows}, 7168]",
            f"{tag}[logits] aux concat: num_aux=3, shape=torch.Size([{rows}, 21504]), capture_hidden_mode=FULL, norm={norm}, {head}",
            f"{tag}[eagle3] forward: hidden_states=torch.Size([{rows}, {width}]), embeds=torch.Size([{rows}, 7168]), norm={norm}, {head}",
            f"{tag}[eagle3] fc output: shape=torch.Size([{rows}, 7168]), norm=1.0000, first5={self.numbers()}",
            f"{tag}[logits] aux concat: num_aux=1, shape=torch.Size([{rows}, 7168]), capture_hidden_mode=LAST, norm={norm}, {head}",
        ]
        return lines[: self.one([len(lines), len(lines), 3, 4])]

    def sample(self) -> str:
        """Return a sample of a shipped grammar, some of its numbers replaced."""
        text = str(self.one(SAMPLES))
        if self.random.random() < 0.5:
            return text
        return re.sub(
            r"\d+(?:\.\d+)?", lambda found: self.one(NUMBERS) if self.random.random() < 0.3 else found[0], text
        )

    def server(self) -> str:
        """Return a statistics line or the arguments of a server."""
        if self.random.random() < 0.2:
            arguments = ", ".join(f"{self.one(ARGUMENTS)}={self.value()}" for _ in range(self.one([0, 3, 12])))
            return f"server_args=ServerArgs({arguments}{self.one([')', ''])}"
        what = self.one(["Decode batch", "Decode batch", "Prefill batch", "SpecDecoding metrics:", "Engine 000:"])
        pairs = ", ".join(f"{self.one(STATISTICS)}: {self.one(NUMBERS)}" for _ in range(self.one([0, 1, 5, 9])))
        return f"{what}{self.one([', ', '. '])}{pairs}"

    def prefix(self) -> str:
        """Return what stands before a record, often nothing."""
        if self.random.random() < 0.4:
            return ""
        time_ = self.one(
            ["2026-02-11 15:21:12", "2026-02-11 15:21:61", "2026-13-45 99:99:99", "15:21:12", "9999-12-31 23:59:59"]
        )
        rank = self.one(
            [
                "",
                " TP0",
                " TP1",
                " DP0 TP1",
                " DP1 TP0",
                " DP0 PP1 ATTN_CP0 TP3 EP3 PID7",
                " TP999999999",
                " TP" + "9" * 5000,
            ]
        )
        outer = self.one(
            ["", "", "", "(A pid=7, ip=1.2.3.4) ", "w-1  | ", "[rank1]: ", "2026-08-06T09:53:45.271828182Z "]
        )
        return f"{outer}[{time_}{rank}] "

    def log(self) -> bytes:
        """Return a log of some lines, damaged here and there."""
        lines: list[str] = []
        for _ in range(self.one([1, 3, 8, 25])):
            kind = self.random.randrange(10)
            if kind < 3:
                lines.append(self.prefix() + self.debug())
            elif kind < 5:
                lines += self.whole_pass(self.prefix())
            elif kind < 7:
                lines.append(self.prefix() + self.server())
            else:
                lines.append(self.prefix() + self.sample())
        return self.damaged("\n".join(lines).encode())

    def damaged(self, data: bytes) -> bytes:
        """Cut, glue, insert and copy at some places."""
        text = bytearray(data)
        for _ in range(self.one([0, 0, 1, 2, 4])):
            at = self.random.randrange(len(text) + 1)
            kind = self.random.randrange(4)
            if kind == 0:
                del text[at : at + self.random.randrange(1, 40)]
            elif kind < 3:
                text[at:at] = self.one(SCRAPS)
            else:
                other = self.random.randrange(len(text) + 1)
                text[at:at] = text[other : other + self.random.randrange(1, 100)]
        return bytes(text)

    def mutated(self, data: bytes) -> bytes:
        """Return a part of a real log: lines shuffled, repeated, left out, torn into writers that interleave."""
        lines = data.split(b"\n")
        start = self.random.randrange(max(1, len(lines) - 40))
        lines = lines[start : start + self.one([5, 20, 40])]
        kind = self.random.randrange(5)
        if kind == 0:
            self.random.shuffle(lines)
        elif kind == 1:
            lines = [line for line in lines for _ in range(self.one([0, 1, 1, 2, 8]))]
        elif kind == 2:
            lines = self.interleaved(lines)
        elif kind == 3:
            lines = [
                self.one([b"", b"[2026-02-11 15:21:12 TP%d] " % self.random.randrange(4)]) + line for line in lines
            ]
        return self.damaged(self.one([b"\n", b"\n", b"\r\n", b""]).join(lines))

    def interleaved(self, lines: list[bytes]) -> list[bytes]:
        """Let several unbuffered writers print the same lines: pieces of theirs stand on one line."""
        streams = [list(b"\n".join(lines).split(b", ")) for _ in range(self.one([2, 3]))]
        out = b""
        while any(streams):
            stream = self.one([stream for stream in streams if stream])
            out += stream.pop(0) + b", "
        return out.split(b"\n")


WRITERS = st.randoms(use_true_random=False).map(Writer)
REAL = [real_bytes(run)[-200_000:] for run in ("healthy-topk1", "style-alt", "cuda-graph", "fault-embed-captured")]
REAL += [log.read_bytes() for log in CASE_LOGS]


def read(data: bytes) -> tuple[Parser, list[Item]]:
    """Parse and label bytes."""
    parser = Parser(GRAMMAR, "x.log")
    parser.feed(Block("x.log", 0, 1, data, final=True))
    return parser, label(data)


def questions() -> list[Any]:
    """Return every question there is, and the checker with and without a contract."""
    asked: list[Any] = [Summarize(), Captures(), Shapes(), Norms(), Accept(), Config(), Errors()]
    return [*asked, Checker(), Checker(CONTRACT), Checker({"aux_layer_ids": [2, 30, 58]})]


def answer(data: bytes) -> None:
    """Ask everything of a log and show it in every form."""
    parser = Parser(GRAMMAR, "x.log")
    parser.feed(Block("x.log", 0, 1, data, final=True))
    context = Context(["x.log"], parser.accounting, [], {})
    found = batches(data, file="x.log")
    for question in questions():
        report = question.report(question.combine([question.partial(part) for part in found]), context)
        shown = json.loads(to_json(report))
        counts = shown["accounting"]
        parts = ("whole", "partial", "rejoined", "cut", "unparsed")
        assert counts["records"] == sum(counts[part] for part in parts)
        for form in (to_ndjson, plain_report, to_github, to_markdown, fragment):
            form(report)
        for name in report.tables:
            to_csv(report, name)


def strict_anchors(data: bytes) -> list[int]:
    """Return where anchors stand that always begin a record, outside quotes, found without the parser."""
    pattern = re.compile("|".join(re.escape(anchor) for anchor in sorted(GRAMMAR.strict, key=len, reverse=True)))
    places = []
    at = 0
    for text in re.split(r"(?<=[\r\n])", data.decode("latin-1")):
        places += [at + found.start() for found in pattern.finditer(text) if not inside_quotes(text, found.start())]
        at += len(text)
    return places


# ----------------------------------------------------------------------------------------------------------- replay


@pytest.mark.parametrize("path", sorted(FOUND.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_found_inputs(path: Path) -> None:
    """What the fuzzers began with and what they once broke keeps every promise."""
    door = {"pipeline": answer}.get(path.parent.name) or HARNESSES.HARNESSES[path.parent.name]
    door(path.read_bytes())


# ------------------------------------------------------------------------------------------------------- properties


@fuzz
@given(WRITERS)
def test_generated_logs_are_parsed_alike(writer: Writer) -> None:
    """Any values, keys, labels and damage: quickly, exactly and in small blocks the same, and accounted for."""
    HARNESSES.parse(writer.log())


@fuzz
@given(WRITERS)
def test_mutated_logs_are_parsed_alike(writer: Writer) -> None:
    """Real logs, cut, glued, shuffled and interleaved: quickly, exactly, in small blocks the same, accounted for."""
    HARNESSES.parse(writer.mutated(writer.one(REAL)))


@fuzz
@given(WRITERS)
def test_every_question_answers(writer: Writer) -> None:
    """No log breaks the labeller, a question, a rule or a form of output."""
    answer(writer.log() if writer.random.random() < 0.6 else writer.mutated(writer.one(REAL)))


@fuzz
@given(WRITERS)
def test_no_anchor_is_lost(writer: Writer) -> None:
    """Every anchor outside quotes is a record, or is counted as quoted, or stands inside a value of a record."""
    data = writer.log() if writer.random.random() < 0.5 else writer.mutated(writer.one(REAL))
    parser = Parser(GRAMMAR, "x.log")
    found = parser.feed(Block("x.log", 0, 1, data, final=True))
    begun = {offset for _, offset, _, payload in found if payload.kind != "mark"}
    anchors = strict_anchors(data)
    lost = [at for at in anchors if at not in begun]
    assert len(lost) <= parser.accounting.quoted, (lost, [data[at : at + 60] for at in lost])


NUMBER = re.compile(rb"[-+]?(?:nan|inf(?:inity)?|(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)", re.IGNORECASE)


def printed(data: bytes) -> Counter[float | str]:
    """Return every number that stands in a text, as a number."""
    out: Counter[float | str] = Counter()
    for found in NUMBER.finditer(data):
        text = found[0].replace(b"_", b"")
        number = float(text)
        out["nan" if number != number else number] += 1
    return out


def said(payload: Payload) -> list[float]:
    """Return the numbers a record gives to statistics."""
    numbers = [*(payload.head or ()), *(payload.shape or ())]
    if payload.norm is not None and not payload.norm_derived:
        numbers.append(payload.norm)
    return list(map(float, numbers))


@fuzz
@given(WRITERS)
def test_values_stand_in_the_text(writer: Writer) -> None:
    """Every number of a usable record stands, with all its digits, in the bytes of that record."""
    data = writer.log() if writer.random.random() < 0.5 else writer.mutated(writer.one(REAL))
    found = Parser(GRAMMAR, "x.log").feed(Block("x.log", 0, 1, data, final=True))
    for _, offset, _, payload in found:
        if payload.kind != "event" or not payload.usable:
            continue
        # A tensor goes on in the next line, behind the prefix of that line.
        text = (
            data[offset : offset + payload.length + 2000]
            if b"tensor" in data
            else data[offset : offset + payload.length]
        )
        there = printed(text)
        for number in said(payload):
            key = "nan" if number != number else number
            assert there[key] > 0, (number, text)


@fuzz
@given(WRITERS)
def test_damaged_values_enter_no_statistic(writer: Writer) -> None:
    """Taking the numbers out of cut and rejoined records changes no answer but the accounting."""
    data = writer.mutated(writer.one(REAL))
    parser, items = read(data)
    context = Context(["x.log"], parser.accounting, [], {})
    before = [answered(question, items, context).as_dict() for question in (Norms(), Accept())]
    for item in items:
        payloads = []
        if isinstance(item, ServerEvent):
            payloads = [item.payload]
        elif isinstance(item, ForwardPass):
            payloads = [one[3] for record in item.records for one in (record.first, *record.others, *record.variants)]
        for payload in payloads:
            if payload.intact in ("cut", "rejoined"):
                payload.norm = None if payload.norm is None else 1e9
                payload.head = None if payload.head is None else (1e9,) * len(payload.head)
                if payload.event in ("decode_stats", "spec_metrics"):
                    payload.fields = dict.fromkeys(payload.fields)
    after = [answered(question, items, context).as_dict() for question in (Norms(), Accept())]
    assert before == after


TOML = """
schema = 1
name = "own"
[family.f]
reader = "tagged"
anchors = ["TICK["]
pattern = 'TICK\\[(?P<site>\\w+)\\]'
[[event]]
name = "tick"
family = "f"
label = 'tick (?P<layer>\\d+)'
usual = ["norm"]
bare = ["shape"]
has = ["norm"]
lists = ["x"]
layer = 3
keys = { first5 = "head" }
types = { a = "text" }
decimals = { norm = 4 }
[[sample]]
text = "TICK[a] tick 4: shape=(1, 2), norm=1.5000, a=1"
event = "tick"
expect = { norm = 1.5 }
[[prefix]]
name = "wrapper"
pattern = '<(?P<origin>\\w+) (?P<pid>\\d+)> '
[[sample]]
text = "<a 1> "
prefix = "wrapper"
expect = { origin = "a", pid = 1 }
"""
WRONG: list[Any] = [
    0, -1, 1.5, True, "", "x", "TICK[", "tagged", "pairs", "call", "pattern", "keyvalue", "traceback", [], ["x"], [1],
    [["x"]], {}, {"a": 1}, {"a": "b"}, {"a": [1]}, {"a": {"b": 1}}, "(", "(?P<layer>\\w+)", "TICK\\[(?P<layer>\\w+)", ".*",
    "(?P<label>\\w*)", "shape", "float", [{}], [{"name": "x"}], 10**30, "norm", "layer", "mark", "null", "(?P<x>a)?TICK",
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to everything inside a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in inner for found in ((*path, key), *places(item, (*path, key)))]


@fuzz
@given(WRITERS)
def test_grammars_of_any_kind(writer: Writer) -> None:
    """A grammar file with anything anywhere loads, or says what is wrong with it; it never crashes."""
    table = copy.deepcopy(tomllib.loads(TOML))
    for _ in range(writer.one([1, 2, 4])):
        *path, last = writer.one(places(table))
        holder: Any = table
        for key in path:
            holder = holder[key]
        holder[last] = copy.deepcopy(writer.one(WRONG))
    try:
        proof.proved("own.toml", TOML, table)
    except GrammarError as error:
        assert str(error)  # noqa: PT017 - many of the tables load


@pytest.mark.parametrize("run", ["healthy-topk1", "style-alt", "cuda-graph"])
def test_time_is_linear(run: str) -> None:
    """Twice as much damaged log takes at most about twice as long to parse exactly."""
    writer = Writer(Random(7))
    pieces = [writer.mutated(real_bytes(run)) + b"\n" for _ in range(12)]

    def seconds(data: bytes) -> float:
        begun = time.process_time()
        Parser(GRAMMAR, "x.log", quick=False).feed(Block("x.log", 0, 1, data, final=True))
        return time.process_time() - begun

    half = b"".join(pieces)
    # The same work twice: what differs is the length alone. A busy machine spoils one pair, not each of five.
    assert min(seconds(half + half) / seconds(half) for _ in range(5)) <= 2.6
