"""Templates: lines of one kind are read by one expression, and it says what the exact grammar says."""

from __future__ import annotations

import random
import re

import pytest
from conftest import CASE_LOGS, REAL_RUNS, real_bytes
from test_parse import GRAMMAR, columns, parse_bytes

from logscope.scan.line_kinds import learn
from logscope.sources.blocks import Block

SAMPLES = sorted({sample.text for file in GRAMMAR.files for sample in file.samples if "\n" not in sample.text})
PREFIXES = (
    "",
    "[2026-02-10 12:00:00] ",
    "[2026-02-10 12:00:00 DP0 TP3] ",
    "(SGLangEngine pid=111711, ip=192.0.2.7) [2025-12-31 03:45:20 TP0] ",
    "sglang-1  | ",
    "2025-12-02 14:56:34 INFO  128139 [ TP0 EP0 scheduler_metrics_mixin.py:241] ",
    "\x1b[36m(Worker_TP1 pid=412)\x1b[0m INFO 07-20 18:11:49 [metrics.py:101] ",
)


@pytest.fixture(autouse=True)
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a kind have its template after a few lines, so that short logs try it."""
    monkeypatch.setattr("logscope.scan.scanner._SIGHTINGS", 4)


def varied(rnd: random.Random, text: str) -> str:
    """Return the text with other digits; now and then with longer or shorter numbers."""
    digits = lambda run: "".join(rnd.choices("0123456789", k=max(1, len(run[0]) + rnd.choice((0, 0, 0, -1, 1, 9)))))  # noqa: E731
    keep = rnd.random() < 0.2
    return re.sub(r"\d+", lambda run: run[0] if keep or "EAGLE" in text[: run.start()][-6:] else digits(run), text)


@pytest.mark.parametrize("number", range(0, len(SAMPLES), 6))
def test_templates_equal_the_grammar(number: int) -> None:
    """Two dozen lines that differ from each shipped sample in digits, behind every prefix, read alike both ways."""
    rnd = random.Random(number)
    lines = [
        varied(rnd, prefix) + varied(rnd, sample)
        for sample in SAMPLES[number : number + 6]
        for prefix in PREFIXES
        for _ in range(24)
    ]
    rnd.shuffle(lines)
    data = "\n".join(lines).encode("utf-8", "surrogateescape")
    quick, fast = parse_bytes(data)
    exact, slow = parse_bytes(data, quick=False)
    assert list(map(columns, fast)) == list(map(columns, slow))
    assert quick.accounting == exact.accounting


@pytest.mark.parametrize("run", REAL_RUNS)
def test_real_logs_read_twice(run: str) -> None:
    """A real log written twice, whose second half meets the kinds learned in the first, reads alike both ways."""
    data = real_bytes(run)[:150_000]
    data = data[: data.rfind(b"\n") + 1] * 2
    assert list(map(columns, parse_bytes(data)[1])) == list(map(columns, parse_bytes(data, quick=False)[1]))


@pytest.mark.parametrize("log", CASE_LOGS, ids=lambda log: log.stem)
def test_cases_with_other_digits(log) -> None:
    """A case's lines, eight times over with other digits, read alike both ways."""
    rnd = random.Random(log.stem)
    lines = log.read_bytes()[:20_000].decode("latin-1").split("\n")
    data = "\n".join(varied(rnd, line) for line in lines for _ in range(8)).encode("latin-1")
    quick, fast = parse_bytes(data)
    exact, slow = parse_bytes(data, quick=False)
    assert list(map(columns, fast)) == list(map(columns, slow))
    assert quick.accounting == exact.accounting


def test_server_lines_get_a_template() -> None:
    """After a few lines of a kind the exact grammar is asked no more."""
    parser, _ = parse_bytes(b"")
    line = "[2026-02-10 12:00:{s:02d} TP0] Decode batch, #running-req: {s}, token usage: 0.{s:02d}, gen throughput (token/s): {s}.00, #queue-req: {s}"
    parser, _ = parse_bytes("\n".join(line.format(s=second) for second in range(10, 20)).encode())
    asked: list[bytes] = []
    parser._line = lambda raw, *_args, **_kinds: asked.append(raw)  # type: ignore[method-assign,assignment]
    out = parser.feed(Block("x.log", 0, 1, line.format(s=33).encode() + b"\n", final=True))
    assert not asked
    assert out[0][2].time == "2026-02-10T12:00:33"
    assert out[0][3].fields["gen_throughput"] == 33.0
    assert out[0][3].fields["token_usage"] == 0.33


def test_what_depends_on_more_than_places_is_not_learned() -> None:
    """A reading that looks at the digits themselves gets no template, and neither does one that refuses a length."""
    read = lambda text: {"even": int(re.sub(r"\D", "", text)) % 2 == 0}  # noqa: E731
    assert learn("number 1734", read) is None

    def three(text: str) -> dict[str, int] | None:
        found = re.fullmatch(r"status (\d{3})", text)
        return {"status": int(found[1])} if found else None

    template = learn("status 200", three)
    assert template is not None
    assert template.read(b"status 404") == {"status": 404}
    assert template.read(b"status 4040") is None
    assert template.read(b"status 040") is None
