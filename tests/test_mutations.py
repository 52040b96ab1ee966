"""Faults made from healthy logs are named at their place, and changes that mean nothing change nothing.

Every mutation starts from the log of a real healthy server and changes text alone, with a fixed seed.
"""

from __future__ import annotations

import io
import random
import re
from functools import lru_cache

import pytest
from conftest import DATA, real_bytes

from logscope.check import check
from logscope.run import load

DRAFT = str(DATA / "draft-config.json")
# Lines of debug prints a mutated log keeps: enough for a dozen rounds, and quick.
_KEPT = 240
_LAYER = re.compile(r"\] layer (\d+) capture")
_NORM = re.compile(r"norm=([\d.]+)")
MUTATED = ["healthy-topk1", "healthy-topk4", "healthy-topk1-specv1", "0.5.15.post1-healthy-topk1"]
TRANSFORMED = [
    *MUTATED, "healthy-chunked", "load-topk1", "style-logger", "style-alt", "style-noflush", "cuda-graph",
    "0.5.15.post1-healthy-topk4", "0.5.15.post1-healthy-chunked", "0.5.15.post1-cuda-graph",
    "0.5.15.post1-layer-ids-from-1",
]  # fmt: skip


@lru_cache(maxsize=32)
def whole(run):
    """Return a run's lines, and where its first debug line stands."""
    lines = real_bytes(run).decode("utf-8", "replace").split("\n")
    return lines, next(number for number, line in enumerate(lines) if "EAGLE3_DEBUG[" in line)


def head_of(run, kept=_KEPT):
    """Return a run's start-up lines and the first debug lines."""
    lines, first = whole(run)
    return lines[: first + kept]


def check_lines(lines, contract=DRAFT):
    return check(load(io.BytesIO("\n".join(lines).encode())), contract)


def passes_of(lines):
    """Return the line numbers (from 0) of every target pass after the warm-up: its captures, its join."""
    found, captures = [], []
    ready = next(number for number, line in enumerate(lines) if "ready to roll" in line)
    for number, line in enumerate(lines[ready:], ready):
        if _LAYER.search(line):
            captures.append(number)
        elif "aux concat: num_aux=3" in line:
            found.append((captures, number))
            captures = []
    return found


def value(line):
    return line[line.index("norm=") :]


def with_value(line, text):
    return line[: line.index("norm=")] + text


def scaled(line, factor):
    return _NORM.sub(lambda found: f"norm={float(found[1]) * factor:.4f}", line, count=1)


def worst(report, rule):
    """Return the findings of a rule that are errors or warnings."""
    return [finding for finding in report.findings if finding.rule == rule and finding.severity != "note"]


@pytest.fixture(params=MUTATED)
def healthy(request):
    """Return a healthy log, its target passes and a pass to spoil, chosen by a fixed seed."""
    lines = head_of(request.param)
    passes = passes_of(lines)
    return lines, passes, random.Random(request.param).choice(passes[3:-2])


@pytest.mark.parametrize("run", MUTATED)
def test_what_is_mutated_is_healthy(run):
    """Before a mutation the logs are silent, so that what is found afterwards is the mutation's."""
    assert check_lines(head_of(run)).findings == []


def test_first_capture_exchanged_with_another(healthy):
    """Norm and head of the first capture swapped with another's: the sum still holds, the order does not: N105."""
    lines, _, (captures, join) = healthy
    first, other = captures[0], captures[2]
    one, two = value(lines[first]), value(lines[other])
    lines[first], lines[other] = with_value(lines[first], two), with_value(lines[other], one)
    report = check_lines(lines)
    (finding,) = worst(report, "N105")
    assert finding.where.line == join + 1
    assert report.findings[0] is finding
    assert worst(report, "N104") == []


@pytest.mark.parametrize("which", [0, 1, 2, "join"])
def test_one_norm_changed_by_a_thousandth(healthy, which):
    """One capture or join norm off by 0.1 %: N104 at the pass, its lines named."""
    lines, _, (captures, join) = healthy
    at = join if which == "join" else captures[which]
    lines[at] = scaled(lines[at], 1.001)
    (finding,) = worst(check_lines(lines), "N104")
    assert finding.where.line == join + 1
    assert ", ".join(str(number + 1) for number in (*captures, join)) in finding.evidence
    assert finding.evidence.count("1 of ") == 1


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_layer_line_dropped(healthy, which):
    """A capture line that is missing: H103 names the layer, and that the join still has its state."""
    lines, _, (captures, _) = healthy
    layer = _LAYER.search(lines[captures[which]])[1]
    del lines[captures[which]]
    (finding,) = worst(check_lines(lines), "H103")
    assert f"layer {layer} missing" in finding.message
    assert "line is missing in the log" in finding.help
    assert captures[0] <= finding.where.line <= captures[0] + 1


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_layer_line_repeated(healthy, which):
    """A capture that one writer prints twice: H103 extra."""
    lines, _, (captures, _) = healthy
    layer = _LAYER.search(lines[captures[which]])[1]
    lines.insert(captures[which], lines[captures[which]])
    (finding,) = worst(check_lines(lines), "H103")
    assert f"layer {layer}" in finding.message
    assert "extra" in finding.message


def test_captures_scaled_but_not_the_join(healthy):
    """What was captured is not what was joined: N104."""
    lines, _, (captures, join) = healthy
    for at in captures:
        lines[at] = scaled(lines[at], 1.5)
    report = check_lines(lines)
    assert worst(report, "N104")[0].where.line == join + 1
    assert report.findings[0].rule == "N104"


def test_layer_ids_replaced(healthy):
    """All layers renumbered: H103 against the contract, in every pass."""
    lines, _, _ = healthy
    lines = [_LAYER.sub(lambda found: f"] layer {int(found[1]) + 5} capture", line) for line in lines]
    (finding,) = worst(check_lines(lines), "H103")
    assert "shifted by 5" in finding.message or "shifted by 6" in finding.message
    assert finding.severity == "error"


def test_nan_in_one_head(healthy):
    """A nan among first values: N101 at the line."""
    lines, _, (captures, _) = healthy
    lines[captures[1]] = re.sub(r"first5=\[[^,]*", "first5=[nan", lines[captures[1]])
    report = check_lines(lines)
    assert worst(report, "N101")[0].where.line == captures[1] + 1
    assert report.findings[0].rule == "N101"


def test_draft_input_delayed_by_one_pass(healthy):
    """Every k x hidden input prints what the one before it should: N106, and the older state is recognised."""
    lines, _, _ = healthy
    reads = [number for number, line in enumerate(lines) if re.search(r"forward: hidden_states=.*\b21504\]", line)]
    old = [value(lines[number]) for number in reads]
    for number, late in zip(reads[1:], old, strict=False):
        lines[number] = with_value(lines[number], late)
    report = check_lines(lines)
    assert worst(report, "N106")
    assert report.findings[0].rule == "N106"


def test_a_state_that_stands_still(healthy):
    """One layer repeats its state while the others move on: N107 with the pass where it begins."""
    lines, passes, _ = healthy
    still = value(lines[passes[4][0][1]])
    for captures, _ in passes[4:]:
        lines[captures[1]] = with_value(lines[captures[1]], still)
    report = check_lines(lines)
    assert worst(report, "N107")[0].where.line == passes[5][0][1] + 1


def test_what_needs_a_baseline_is_said_to_be_undecidable(healthy):
    """The fc's output, two later states exchanged, a whole pass scaled: no finding, and said to be not decidable."""
    for spoil in (_spoil_fc, _exchange_later, _scale_passes):
        lines, passes, _ = healthy
        report = check_lines(spoil([*lines], passes))
        assert [finding for finding in report.findings if finding.severity != "note" and finding.rule[0] != "L"] == []
        (reason,) = [row["because"] for row in report.tables["not_checked"].rows if row["rule"] == "N201"]
        for word in ("fc", "exchanged", "scaled", "baseline"):
            assert word in reason


def _spoil_fc(lines, _):
    return [scaled(line, 1.3) if "fc output" in line else line for line in lines]


def _exchange_later(lines, passes):
    for captures, _ in passes:
        one, two = value(lines[captures[1]]), value(lines[captures[2]])
        lines[captures[1]], lines[captures[2]] = (
            with_value(lines[captures[1]], two),
            with_value(lines[captures[2]], one),
        )
    return lines


def _scale_passes(lines, passes):
    numbers = {number for captures, join in passes for number in (*captures, join, join + 1)}
    return [scaled(line, 1.5) if number in numbers and "norm=" in line else line for number, line in enumerate(lines)]


# -------------------------------------------------------------------------------------------- changes that mean nothing

PREFIXES = ("server-1  | ", "2026-11-29T12:18:55.271828182Z ", "[pod/decode-0/sglang] ", "\x1b[32m")
NOISE = (
    "some text of another program",
    '[2026-11-29 12:18:55] INFO:     127.0.0.1:41 - "GET /health HTTP/1.1" 200 OK',
    "",
    "[2026-11-29 12:18:55] Ignore import error when loading sglang.srt.models.x: y",
    "node-a:235:235 [1] NCCL INFO Channel 00/0 :",
)


def units(lines):
    """Return (is a debug record, its lines) for everything, glued texts taken apart, continuation lines kept."""
    out = []
    rest = iter(lines)
    for line in rest:
        if "EAGLE3_DEBUG[" not in line:
            out.append((False, [line]))
            continue
        before, *records = re.split(r"(?=EAGLE3_DEBUG\[)", line)
        if before:
            out.append((False, [before]))
        for record in records:
            text, *server = re.split(r"(?=\[2026-\d\d-\d\d \d\d:)", record, maxsplit=1)
            more = [next(rest, "")] if "tensor(" in text and "dtype" not in text else []
            out.append((True, [text, *more]))
            out += [(False, [one]) for one in server]
    return out


def copied(lines, writers, chance, *, marked):
    """Return the log of several ranks, each in its own order.

    A rank is at most a dozen records ahead where prefixes name it; else, and while graphs are captured, one, as the
    collectives of real servers hold ranks together.
    """
    every = units(lines)
    ahead = 12 if marked and not any("graph begin" in line.lower() for line in lines) else 1
    at = [0] * writers
    out = []
    while min(at) < len(every):
        low = min(at)
        rank = chance.choice([rank for rank in range(writers) if at[rank] < len(every) and at[rank] - low < ahead])
        for _ in range(chance.randint(1, 4)):
            if at[rank] >= len(every) or at[rank] - low >= ahead:
                break
            debug, text = every[at[rank]]
            at[rank] += 1
            if debug or rank == 0:
                mark = f"[2026-11-29 12:18:55 TP{rank}] " if marked and debug else ""
                out += [mark + text[0], *text[1:]]
    return [line.replace("tp_size=1,", f"tp_size={writers},") for line in out]


def noisy(lines, chance):
    """Return the log with lines of other programs between, after start-up and never inside a record of two lines."""
    start = next((number for number, line in enumerate(lines) if "ready to roll" in line), 0)
    out = []
    for number, line in enumerate(lines):
        out.append(line)
        if number > start and chance.random() < 0.05 and not ("tensor(" in line and "dtype" not in line):
            out.append(chance.choice(NOISE))
    return out


def transformed(lines, chance):
    """Return the log after a random choice of changes that mean nothing, and what they were."""
    what = []
    if chance.random() < 0.5:
        marked = chance.random() < 0.5 or any("tensor(" in line for line in lines)
        writers = chance.choice([2, 4, 8])
        lines = copied(lines, writers, chance, marked=marked)
        what.append(f"{writers} {'marked' if marked else 'unmarked'} writers")
    if chance.random() < 0.5:
        prefix = chance.choice(PREFIXES)
        lines = [prefix + line for line in lines]
        what.append(repr(prefix))
    if chance.random() < 0.5:
        lines = noisy(lines, chance)
        what.append("noise")
    if chance.random() < 0.2:
        lines = [line + "\r" for line in lines]
        what.append("CRLF")
    if chance.random() < 0.4:
        lines = lines[: chance.randint(len(lines) // 2, len(lines) - 1)]
        what.append(f"cut after line {len(lines)}")
        if chance.random() < 0.5:
            lines = [*lines[:-1], lines[-1][: chance.randint(0, len(lines[-1]))]]
            what.append("and inside it")
    return lines, what


@pytest.mark.parametrize("seed", range(20))
def test_changes_that_mean_nothing_change_nothing(seed):
    """200 random prefixes, copies, orders of ranks, noise lines and cut tails: no finding but damage."""
    chance = random.Random(seed)
    for _ in range(10):
        run = chance.choice(TRANSFORMED)
        lines, what = transformed(head_of(run, chance.randint(120, 300)), chance)
        report = check_lines(lines)
        found = [
            f"{finding.rule} {finding.where}: {finding.message}"
            for finding in report.findings
            if finding.severity != "note" and finding.rule not in ("L101", "L102")
        ]
        assert found == [], f"{run}: {', '.join(what)}"
