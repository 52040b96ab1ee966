"""Logs as they are pasted: every right value of a field case, asked for through the command line as JSON.

``ROWS`` are the handed cases, ``VARIANTS`` logs of the same kinds with other labels, orders and damage. Right values are
those of the cases' sources, or computed here from the counts that a line prints (``length``).
"""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import DATA
from field import Holds, Row, ask, both, event, exits, fires, lacks, numbers, says, silent, table, value

FIELD = DATA / "field"
CONTRACT = FIELD / "oe2-draft-config.json"


def length(accepted: int, verifies: int) -> float:
    """Return the accept len of counts: accepted draft tokens a verify, and the bonus token."""
    return 1 + accepted / verifies


FIRST = "facts.errors.0"
THRASH = "The controller flips steps 3 <-> 5 several times a second; every line spans a switch"
BOOTS = "three runs, begun at lines 1, 5, 8"
WORKERS = "first error: Worker_TP1, AcceleratorError; the second traceback of TP1 is the same exception, re-raised"
QUANT = "the draft differs: quant modelopt_mixed against None"
CAPTURE = "one error (TP2, during graph capture), re-raised once; the sigquit follows"
LLAMA = "old form: 1186 of 1207, 690 drafts, 2.72 tokens a verify; new form: 87 drafts, 2.92; two different servers"
CRI = "first error TP2: RuntimeError: CUDA error: an illegal memory access; last frame eagle_worker.py:325; same on TP0"
NCCL = "first error: rank 3, CUDA error: device-side assert triggered (NCCL watchdog), 2025-11-17 21:22:11"
PACKED = "factor 2 in a weight that is being loaded: packing or sharding; nothing about captured states"
NGRAM = "engine 000: 34 of 220, 44 drafts, 1.773; engine 001: 27 of 75, 15 drafts, 2.800; all: 1 + 61/59 = 2.034"
UNITS = "sglang-a 2.80, sglang-b 1.00 in every line: nothing accepted there (A101)"
DOCKER = "2 decode lines (2.10, 2.30, N = 4), one size error 3 x 2880 against 2 x 2880"
DEPTH = "line 1: 1 verify, 2.00; line 2: no drafts; line 3: 100 verifies; all: 1 + 221/101 = 3.188"
EMPTY = "two windows with 2.80; two without verifies, which are neither zero acceptance nor full; no finding"
REQUESTS = "325 of 548, 184 verifies, 1 + 325/184 = 2.766; line 10, a CUDA error; line 12 is the same abort"
GUESSED = "captured (2, 40, 77), from model: a default of vLLM; the contract says 24, 48, 72: another set"
VERIFIED = "150 drafts, 1 + 200/150 = 2.333; of all drafts 0.900, 0.400, 0.033; where reached 0.900, 0.500, 0.500"

ROWS = [
    # -------------------------------------------------------------- a draft length that flips within every interval
    Row("50", "accept", table("accept", 0.001, accept_len_mean=[3.76]), "(4.20 + 4.10 + 2.98) / 3 = 3.76"),
    Row("50", "accept", says(r"switched 5 times", r"4, 6, 9, 11, 14"), "5 switches (lines 4, 6, 9, 11, 14)"),
    Row("50", "check", silent("A102"), "4.20 and 4.10 are below the maximum in force (6)"),
    Row("50", "accept", lacks("at its maximum"), "NOT everything accepted"),
    Row("50", "accept", table("accept", at_ceiling=[0]), "NOT everything accepted"),
    Row("50", "accept", table("accept", accept_rate_mean=[None]), "its rate has no one denominator"),
    Row("50", "accept", table("accept", rate_definition=[None]), "its rate has no one denominator"),
    Row("50", "accept", says("thrash"), THRASH),
    Row("50", "events", event("adaptive_params", 5, steps_from=5, steps_to=3, ema_accept_len=1.51), "EMA 1.51"),
    Row("50", "accept", says(r"1\.45", r"2\.76"), "EMA values are the issue's: 1.45 to 2.76"),
    # --------------------------------------------------------------------------------------- boots of one container
    Row("51", "accept", table("accept", 0.005, accept_len_mean=[3.493, 1.459, 1.052]), BOOTS),
    Row("51", "accept", table("accept", accepted=[1795, 234, 26], drafted=[2160, 1530, 1500]), BOOTS),
    Row("51", "accept", table("accept", rounds=[720, 510, 500]), "2160, 1530, 1500 drafted / 3"),
    Row("51", "summarize", value("facts.segments", 3), BOOTS),
    Row("51", "summarize", table("segments", line=[1, 5, 8]), BOOTS),
    Row("51", "config", says("mtp", r"0\.27\.2"), "method mtp, v0.27.2"),
    Row("51", "config", says(r'"(?:tp|tensor_parallel)_size": 6'), "tp 6 (line 1)"),
    Row("51", "config", says(r'"num_spec\w*tokens": 3'), "3 speculative tokens (line 1)"),
    Row("51", "accept --min 1.5", exits(1), "accept --min 1.5 must fail"),
    Row("51", "accept --min 1.0", exits(0), "every boot has an accept len of at least 1.05"),
    Row("51", "check", fires("A105"), "the third accepts next to nothing"),
    # ------------------------------------------------------------------------------------- workers of one server die
    Row("53", "errors", value(f"{FIRST}.process", "Worker_TP1 pid=252"), WORKERS),
    Row("53", "errors", value(f"{FIRST}.exception", "torch.AcceleratorError"), WORKERS),
    Row("53", "errors", value(f"{FIRST}.count", 2), WORKERS),
    Row("53", "errors", value("tables.errors.0.last_frame", re.compile(r"3575 in synchronize_input_prep")), WORKERS),
    Row("53", "errors", table("errors", line=[4, 6]), "the second traceback of TP1 is the same exception"),
    Row(
        "53",
        "errors",
        both(value("facts.errors.1.line", 6), value("facts.errors.1.exception", None)),
        "TP0's traceback is cut before its exception line",
    ),
    Row("53", "errors", says("died unexpectedly"), "engine: died unexpectedly follows from it"),
    Row("53", "accept", table("accept", 0.0005, accept_len_mean=[3.2762]), "1 + (966+97)/(422+45)"),
    Row("53", "accept", table("accept", rounds=[467]), "422 + 45 drafts"),
    Row("53", "accept", table("positions", drafts=[467]), "422 + 45 drafts"),
    Row("53", "config", says("mtp", r"0\.20\.2"), "config: mtp, v0.20.2"),
    Row(
        "53",
        "config",
        says(r'"(?:tp|tensor_parallel)_size": 4', r'"num_spec\w*tokens": 5'),
        "5 tokens, tp 4",
    ),
    Row("53", "summarize", value("facts.segments", 1), "a dump of the whole config is no boot"),
    # ------------------------------------------------------------------------------- means from counts, thin evidence
    Row("54", "accept", table("accept", 0.0001, accept_len_mean=[2.6436]), "1 + 1545/940 = 2.6436"),
    Row("54", "accept", table("accept", rounds=[940], accepted=[1545]), "drafts 471 + 469 = 940; accepted 1545"),
    Row("55a", "accept", table("accept", 0.0001, accept_len_mean=[2.6112]), "1 + 8056/5000 = 2.611"),
    Row("55b", "accept", table("accept", 0.0001, accept_len_mean=[1.0364]), "1 + 240/6590 = 1.0364"),
    Row("55a 55b", "diff", exits(1), "different beyond doubt, exit 1"),
    Row("55a 55b", "diff", says("5,?000", "6,?590"), "5000 and 6590 verifies"),
    Row("55b", "check", fires("A105"), "next to nothing is accepted"),
    Row("55a", "check", silent(), "80.56 % with the native one"),
    # ------------------------------------------------------------------------------------------------ start-up facts
    Row("56a", "accept", table("accept", 0.001, accept_len_mean=[3.70]), "3.70"),
    Row("56b", "accept", table("accept", 0.001, accept_len_mean=[1.64]), "1.64"),
    Row("56a 56b", "diff", both(fires("D104"), says(r"3\.70", r"1\.64")), "diff: 3.70 -> 1.64, rate 0.90 -> 0.21"),
    Row("56a 56b", "config", value("headline", re.compile("quant", re.IGNORECASE)), QUANT),
    Row("56a 56b", "diff", says("modelopt_mixed"), QUANT),
    # ----------------------------------------------------------------------------------- one error, raised and again
    Row("58", "errors", value(f"{FIRST}.process", "TP2"), CAPTURE),
    Row("58", "errors", value(f"{FIRST}.line", 3), CAPTURE),
    Row("58", "errors", table("errors", line=[3]), CAPTURE),
    Row("58", "errors", value(f"{FIRST}.relayed.0.line", 23), CAPTURE),
    Row("58", "errors", says(r"(?:during|in|while)\b.{0,20} graph.capture"), CAPTURE),
    Row("58", "events", event("graph_capture_failed", 2, tp_rank=2), "TP2, during graph capture"),
    # ------------------------------------------------------------------------------------------------------ llama.cpp
    Row("59", "events", event("llamacpp_acceptance", 4, accepted=1186, drafted=1207), LLAMA),
    Row("59", "events", event("llamacpp_statistics", 5, speculator="mtp", calls_accept=690), LLAMA),
    Row("59", "events", event("llamacpp_acceptance", 6, slot=1, task=0, mean_acceptance_length=2.92), LLAMA),
    Row("59", "accept", table("accept", 0.005, accept_len_mean=[2.719, 2.92]), LLAMA),
    Row(
        "59",
        "accept",
        table("accept", rounds=[690, 87], accepted=[1186, 167], drafted=[1207, 259]),
        LLAMA,
    ),
    Row("oe1", "accept", table("accept", accepted=[325], drafted=[548], rounds=[184]), REQUESTS),
    Row("oe1", "accept", table("accept", 0.0005, accept_len_mean=[2.7663]), REQUESTS),
    Row("oe1", "events", event("llamacpp_acceptance", 9, slot=0, task=90, mean_acceptance_length=2.63), REQUESTS),
    Row("oe1", "errors", value(f"{FIRST}.line", 10), REQUESTS),
    Row("oe1", "errors", says("illegal memory access"), REQUESTS),
    Row("oe1", "errors", table("errors", line=[10]), "line 12 is the same abort"),
    Row("oe1", "check", fires("E101"), "end of life: line 10, a CUDA error"),
    # ------------------------------------------------------------------------------------------------- CRI log files
    Row("60", "errors", value(f"{FIRST}.process", "TP2"), CRI),
    Row("60", "errors", value(f"{FIRST}.exception", "RuntimeError"), CRI),
    Row("60", "errors", value("tables.errors.0.last_frame", re.compile(r"eagle_worker\.py:325")), CRI),
    Row("60", "errors", value(f"{FIRST}.processes", {"TP2": 1, "TP0": 1}), CRI),
    Row("60", "errors", value(f"{FIRST}.relayed.0.line", 17), "the sigquit follows"),
    Row("60", "errors", lacks("without its exception line"), "the exception is printed in line 9"),
    Row(
        "60b",
        "events",
        event("server_args", 1, speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4),
        "one server_args: 3 steps, topk 1, 4 draft tokens",
    ),
    Row("60b", "accept", table("accept", rounds=[20]), "the decode line stands for 20 rounds"),
    # ------------------------------------------------------------------------------------------- killed by a watchdog
    Row("63", "events", event("process_group_abort", 4, rank=3), NCCL),
    Row("63", "events", event("fatal_python_error", 11, message="Aborted"), "then Fatal Python error: Aborted"),
    Row("63", "errors", value(f"{FIRST}.line", 4), NCCL),
    Row("63", "errors", says("device-side assert", "rank ?3"), NCCL),
    Row("63", "errors", value("tables.errors.0.time", re.compile(r"21:22:11")), NCCL),
    Row("63", "check", lacks("no fault found"), "a crash is called no fault found"),
    Row("63", "check", fires("E101"), NCCL),
    Row("63", "accept", table("accept", accept_len_mean=[2.00, 2.50]), "DP0 2.00, DP7 2.50"),
    # ---------------------------------------------------------------------------------------- sizes while weights load
    Row("64", "errors", value(f"{FIRST}.process", "Worker_TP1 pid=1268"), "first error Worker_TP1 in load_model"),
    Row("64", "errors", value(f"{FIRST}.relayed.0.line", 8), "EngineCore's exception follows"),
    Row("64", "check", both(fires("E102"), says("3072", "6144")), "3072 against 6144"),
    Row("64", "check", says("packing|packed", "shard"), PACKED),
    Row("64", "errors", lacks(r"\d+ states?\b"), PACKED),
    # ---------------------------------------------------------------------------------------------------- DP engines
    Row("66", "accept", table("accept", 0.003, engine=["000", "001"], accept_len_mean=[1.7727, 2.80]), NGRAM),
    Row("66", "accept", table("accept", engine=["000", "001"], accepted=[34, 27], drafted=[220, 75]), NGRAM),
    Row("66", "accept", table("positions", engine=["000", "001"], drafts=[44, 15]), NGRAM),
    Row("66", "accept", table("accept", engine=["000", "001"], rounds=[44, 15]), NGRAM),
    Row("66", "accept --by segment", table("accept", 0.0005, accept_len_mean=[2.0339]), NGRAM),
    # ---------------------------------------------------------------------------------------- collectors and encodings
    Row("70b", "accept", table("accept", accept_len_mean=[2.80, 1.00], lines=[2, 2]), UNITS),
    Row("70b", "check", fires("A101"), UNITS),
    Row("71a", "accept", table("accept", 0.001, accept_len_mean=[2.20], lines=[2]), DOCKER),
    Row("71a", "accept", table("accept", min=[2.10], max=[2.30]), DOCKER),
    Row("71a", "errors", says(r"3 x 2880", r"2 x 2880"), DOCKER),
    Row("71a", "errors", value(f"{FIRST}.line", 5), DOCKER),
    Row(
        "74",
        "accept",
        table("accept", 0.001, lines=[3], max=[2.80], min=[1.00]),
        "3 decode lines as in 70b",
    ),
    Row("76", "accept", table("accept", accept_len_mean=[3.20], lines=[2], rounds=[80]), "two decode lines of 3.20"),
    # ------------------------------------------------------------------------------- depths that change, empty windows
    Row("72", "accept", table("accept", 0.0005, accept_len_mean=[length(221, 101)]), DEPTH),
    Row("72", "accept", table("accept", rounds=[101]), DEPTH),
    Row("72", "accept", table("violations"), "line 1 does not contradict itself"),
    Row("72", "accept", says("1 line without drafts"), "line 2: no drafts"),
    Row("73", "accept", table("accept", accept_len_mean=[2.80], lines=[2]), EMPTY),
    Row("73", "accept", table("accept", min=[2.80], max=[2.80]), EMPTY),
    Row("73", "check", silent(), EMPTY),
    Row("oe4", "accept", table("accept", 0.0005, accept_len_mean=[length(200, 150)]), VERIFIED),
    Row("oe4", "accept", table("accept", rounds=[150], accepted=[200]), VERIFIED),
    Row("oe4", "accept", numbers(0.9, 0.4, 5 / 150), VERIFIED),
    Row("oe4", "accept", numbers(0.9, 0.5, 0.5), VERIFIED),
    Row("oe4", "accept", table("violations"), "no line contradicts itself"),
    # -------------------------------------------------------------------------------------- layers named at start-up
    Row("oe2", "events", event("capture_plan", 3, layers_to_capture=[2, 40, 77], source="model", tp_rank=0), GUESSED),
    Row("oe2", "captures", numbers(2, 40, 77), GUESSED),
    Row("oe2", f"check --contract {CONTRACT} {{0}}", fires("H103"), GUESSED),
    Row("oe2", f"check --contract {CONTRACT} {{0}}", says("default"), "a default that nobody asked for"),
    Row("oe2", "check", fires("A105"), "acceptance 1.2 % of 500 drafts"),
    Row("oe2", "accept", table("accept", 0.0005, accept_len_mean=[1.036], accepted=[18]), GUESSED),
    Row("oe2", "accept", numbers(0.034, 0.002, 0.0), "positions 0.034, 0.002, 0.000"),
    Row("oe2", "config", says(r"0\.27\.2", "eagle3", "/models/draft"), "vLLM 0.27.2, eagle3, draft path"),
    Row(
        "oe2",
        "config",
        says(r'"(?:tp|tensor_parallel)_size": 2', r'"num_spec\w*tokens": 3'),
        "3 tokens, tp 2",
    ),
    Row("oe2", "summarize", value("facts.segments", 1), "lines 1 and 2 agree: one boot"),
    Row("oe2", "errors", value(f"{FIRST}.line", 8), "VllmWorker-1 died unexpectedly, line 8"),
    Row("oe2", "errors", says("VllmWorker-1"), "killed from outside or by the driver"),
]


@pytest.fixture
def clean(tmp_path, monkeypatch):
    """Stand in an empty folder with no settings of a user's own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def case(number: str) -> bytes:
    """Return the bytes of the case with this number."""
    (found,) = FIELD.glob(f"{number}-*.log")
    return found.read_bytes()


def laid(folder: Path, logs: list[bytes], ending: str = "log") -> list[str]:
    """Write logs into a folder, under names that say nothing of what is in them; return their paths."""
    paths = [folder / f"{'abcdef'[at]}.{ending}" for at in range(len(logs))]
    for path, log in zip(paths, logs, strict=True):
        path.write_bytes(log)
    return [str(path) for path in paths]


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=f"{row.files}-{row.command.split(' ')[0]}-{at}") for at, row in enumerate(ROWS)]
)
def test_case(row: Row, clean, capsys):
    """A handed case: what its source says must be reported."""
    row.holds(ask(row.command, laid(clean, [case(number) for number in row.files.split()]), capsys))


# ------------------------------------------------------------------------------------------------------- follow (76)


def test_events_are_written_while_a_log_without_debug_prints_grows(clean):
    """Each event is written when its line is complete: `events --follow` on an ordinary server."""
    log = Path(laid(clean, [b""])[0])
    command = [sys.executable, "-m", "logscope", "events", str(log), "--follow", "-f", "ndjson"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as reader:
        try:
            time.sleep(1.0)
            log.write_bytes(case("76"))
            assert reader.stdout is not None
            os.set_blocking(reader.stdout.fileno(), False)
            lines, until = 0, time.monotonic() + 30
            while lines < 4 and time.monotonic() < until:
                time.sleep(0.1)
                lines += (reader.stdout.read() or b"").count(b"\n")
            assert lines == 4
        finally:
            reader.kill()


# ---------------------------------------------------------------------------------------------- variants: same values


def prefixed(prefix: str) -> Callable[[bytes], bytes]:
    """Return a change that puts a collector's words before every line."""
    return lambda log: b"".join(prefix.encode() + line for line in log.splitlines(keepends=True))


def among_others(log: bytes) -> bytes:
    """Put lines of another program between a log's lines."""
    return b"".join(b"nginx: 192.0.2.7 GET /v1/models 200 in 3 ms\n" + line for line in log.splitlines(keepends=True))


def torn(log: bytes) -> bytes:
    """End a log in the middle of one more line of the kind it ends with."""
    return log.rstrip(b"\n") + b"\n" + log.rstrip(b"\n").splitlines()[-1][:70]


def recoloured(log: bytes) -> bytes:
    """Colour the process mark of vLLM as a terminal shows it."""
    return re.sub(rb"(?m)^(\(\w+ pid=\d+\)) ", b"\x1b[1;36m\\1\x1b[0;0m ", log)


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "crlf": lambda log: log.replace(b"\n", b"\r\n"),
    "gz": gzip.compress,
    "compose": prefixed("server-1  | "),
    "pod": prefixed("[pod/llm-0/server] "),
    "stamped": prefixed("2026-09-26T10:00:00.000000000Z "),
    "among-others": among_others,
    "torn": torn,
    "recoloured": recoloured,
}
SIX = "crlf gz compose pod stamped among-others"
WRAPPED = "crlf gz among-others"
# A kind: its handed row, and the changes that leave the value as it is.
KINDS = [
    (Row("50", "accept", table("accept", 0.001, accept_len_mean=[3.76]), "3.76"), f"{SIX} torn"),
    (Row("50", "check", silent("A102"), "below the maximum in force"), SIX),
    (Row("51", "accept", table("accept", 0.005, accept_len_mean=[3.493, 1.459, 1.052]), BOOTS), f"{SIX} torn recoloured"),
    (Row("53", "errors", both(value(f"{FIRST}.process", re.compile("Worker_TP1")), value(f"{FIRST}.exception", "torch.AcceleratorError")), WORKERS), f"{SIX} recoloured"),
    (Row("54", "accept", table("accept", 0.0001, accept_len_mean=[2.6436]), "1 + 1545/940"), f"{SIX} torn recoloured"),
    (Row("55b", "check", fires("A105"), "next to nothing is accepted"), f"{SIX} torn"),
    (Row("55a 55b", "diff", exits(1), "different beyond doubt"), SIX),
    (Row("56a 56b", "config", value("headline", re.compile("quant", re.IGNORECASE)), QUANT), SIX),
    (Row("56a 56b", "diff", fires("D104"), "diff: 3.70 -> 1.64"), f"{SIX} torn"),
    (Row("58", "errors", both(table("errors", process=[re.compile("TP2")], error=[re.compile("RuntimeError")]), value("facts.errors.1", None)), CAPTURE), SIX),
    (Row("59", "accept", table("accept", 0.005, accept_len_mean=[2.719, 2.92]), LLAMA), WRAPPED),
    (Row("60", "errors", value(f"{FIRST}.exception", "RuntimeError"), CRI), WRAPPED),
    (Row("63", "errors", says("device-side assert", "rank ?3"), NCCL), SIX),
    (Row("63", "check", lacks("no fault found"), NCCL), SIX),
    (Row("64", "check", says("packing|packed", "shard"), PACKED), f"{SIX} recoloured"),
    (Row("66", "accept", table("positions", engine=["000", "001"], drafts=[44, 15]), NGRAM), f"{SIX} torn recoloured"),
    (Row("66", "accept", table("accept", engine=["000", "001"], rounds=[44, 15]), NGRAM), SIX),
    (Row("70b", "accept", table("accept", accept_len_mean=[2.80, 1.00]), UNITS), f"{WRAPPED} stamped torn"),
    (Row("71a", "accept", table("accept", 0.001, accept_len_mean=[2.20]), DOCKER), WRAPPED),
    (Row("72", "accept", table("accept", 0.0005, accept_len_mean=[length(221, 101)]), DEPTH), f"{SIX} torn recoloured"),
    (Row("73", "accept", table("accept", accept_len_mean=[2.80]), EMPTY), f"{SIX} torn"),
    (Row("73", "check", silent(), EMPTY), SIX),
    (Row("oe1", "accept", table("accept", 0.0005, accept_len_mean=[2.7663]), REQUESTS), WRAPPED),
    (Row("oe1", "errors", says("illegal memory access"), REQUESTS), SIX),
    (Row("oe2", "captures", numbers(2, 40, 77), GUESSED), f"{SIX} recoloured"),
    (Row("oe2", "errors", says("VllmWorker-1"), GUESSED), f"{SIX} recoloured"),
    (Row("oe4", "accept", table("accept", 0.0005, accept_len_mean=[length(200, 150)]), VERIFIED), f"{SIX} torn recoloured"),
]  # fmt: skip


def changed() -> list[object]:
    """Return every kind with every change."""
    cases = [(row, change) for row, all_of in KINDS for change in all_of.split()]
    return [
        pytest.param(row, change, id=f"{row.files}-{row.command}-{change}-{at}")
        for at, (row, change) in enumerate(cases)
    ]


@pytest.mark.parametrize(("row", "change"), changed())
def test_change(row: Row, change: str, clean, capsys):
    """A handed case under another collector, line end or packing, or with a torn tail: the value is the same."""
    logs = [CHANGES[change](case(number)) for number in row.files.split()]
    row.holds(ask(row.command, laid(clean, logs, "log.gz" if change == "gz" else "log"), capsys))


# ------------------------------------------------------------------------------------------ variants: logs of our own


def decode(second: int, accept_len: str, rate: str, rank: str = " TP0") -> str:
    """Return a line of SGLang's decode statistics, one a second."""
    return (
        f"[2026-09-20 10:{second // 60:02}:{second % 60:02}{rank}] Decode batch, #running-req: 1, #token: 800, "
        f"token usage: 0.01, accept len: {accept_len}, accept rate: {rate}, cuda graph: True, "
        f"gen throughput (token/s): 150.00, #queue-req: 0\n"
    )


def args(**extra: object) -> str:
    """Return SGLang's line of arguments, four draft tokens a round."""
    known: dict[str, object] = {
        "model_path": "/models/target",
        "tp_size": 1,
        "speculative_algorithm": "EAGLE3",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
        "decode_log_interval": 40,
    }
    inside = ", ".join(f"{name}={thing!r}" for name, thing in {**known, **extra}.items())
    return f"[2026-09-20 09:59:00] server_args=ServerArgs({inside})\n"


def switch(second: int, before: int, after: int) -> str:
    """Return a switch of SGLang's adaptive controller between two numbers of steps."""
    return (
        f"[2026-09-20 10:00:{second:02}] Switch adaptive runtime state: steps {before} -> {after}, "
        f"draft_tokens {before + 1} -> {after + 1}\n"
    )


def metrics(
    accepted: int, drafted: int, verifies: int, positions: str, second: int = 6, more: str = "", **how: str
) -> str:
    """Return vLLM's line of one interval; the length is that of the counts, with two digits."""
    mean = how.get("mean", f"{length(accepted, verifies):.2f}" if verifies else "nan")
    percent = f"{100 * accepted / drafted:.1f}" if drafted else "nan"
    return (
        f"{how.get('mark', '(APIServer pid=1) ')}INFO 09-02 11:01:{second:02} [metrics.py:125] SpecDecoding metrics: "
        f"Mean acceptance length: {mean}, {more}Accepted throughput: {accepted / 10:.2f} tokens/s, "
        f"Drafted throughput: {drafted / 10:.2f} tokens/s, Accepted: {accepted} tokens, Drafted: {drafted} tokens, "
        f"Per-position acceptance rate: {positions}, Avg Draft acceptance rate: {percent}%\n"
    )


def engine(name: str, second: int = 6, running: int = 1) -> str:
    """Return vLLM's line of an engine (``Engine 000``, ``2 Engines Aggregated``)."""
    return (
        f"(APIServer pid=1) INFO 09-02 11:01:{second:02} [loggers.py:310] {name}: Avg prompt throughput: 1.0 tokens/s, "
        f"Avg generation throughput: 50.0 tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, "
        f"Prefix cache hit rate: 0.0%\n"
    )


def boot(version: str, method: str = "eagle3", tokens: int = 3, hour: int = 10) -> str:
    """Return vLLM's line of a boot."""
    return (
        f"(EngineCore pid=101) INFO 09-02 {hour}:00:10 [core.py:110] Initializing a V1 LLM engine (v{version}) with "
        f"config: model='/models/target', speculative_config=SpeculativeConfig(method='{method}', model='/models/draft', "
        f"num_spec_tokens={tokens}), tokenizer='/models/target', dtype=torch.bfloat16, tensor_parallel_size=2\n"
    )


def aux(layers: str, origin: str = "config", rank: int = 0) -> str:
    """Return the line in which a vLLM worker names the layers it captures."""
    return (
        f"(Worker_TP{rank} pid={201 + rank}) INFO 09-02 10:01:00 [eagle3_utils.py:28] "
        f"Using Eagle3 auxiliary layers from {origin}: {layers}\n"
    )


def slot(
    task: int, accepted: int, drafted: int, tail: str = "", words: str = "draft acceptance", before: str = ""
) -> str:
    """Return llama.cpp's line of a finished request."""
    return (
        f"{before}0.06.896.{task:03} I slot print_timing: id  1 | task {task} | "
        f"{words} = {accepted / drafted:.5f} ({accepted:5} accepted / {drafted:5} generated){tail}\n"
    )


def statistics(accepted: int, drafted: int, verifies: int, before: str = "") -> str:
    """Return llama.cpp's cumulative line of a speculator."""
    return (
        f"{before}statistics draft-eagle3: #calls(b,g,a) = 1 {verifies} {verifies}, #gen drafts = {verifies}, "
        f"#acc drafts = 9, #gen tokens = {drafted}, #acc tokens = {accepted}, dur(b,g,a) = 0.005, 325.555, 0.114 ms\n"
    )


TRACE = """[2026-09-20 10:00:03 TP1] Scheduler hit an exception: Traceback (most recent call last):
  File "/sgl/scheduler.py", line 10, in run_batch
    self.forward(batch)
RuntimeError: the cause
"""
SECOND_HALF = """
Traceback (most recent call last):
  File "/sgl/scheduler.py", line 20, in run
    raise ServerError(
ServerError: gave up
"""
DURING = "\nDuring handling of the above exception, another exception occurred:\n"
DIRECT = "\nThe above exception was the direct cause of the following exception:\n"
SERVED = args() + decode(0, "2.80", "0.60") + decode(1, "2.80", "0.60")
ABORT = "Process group watchdog thread terminated with exception: "
DIED = "(EngineCore pid=101) ERROR 09-02 11:02:07 [multiproc_executor.py:284] Worker proc VllmWorker-2 died unexpectedly, shutting down executor.\n"
STOPPED = """(EngineCore pid=101) INFO 09-02 11:02:00 [core.py:1238] Shutdown initiated (timeout=0)
(EngineCore pid=101) INFO 09-02 11:02:00 [core.py:1261] Shutdown complete
(APIServer pid=1) INFO:     Application shutdown complete.
(APIServer pid=1) ERROR 09-02 11:02:01 [core_client.py:562] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.
"""
SIGTERM = """[2026-09-20 10:00:09] SIGTERM received. signum=None frame=None. Draining requests and shutting down...
[2026-09-20 10:00:10] Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].
"""
PACKED8 = """(Worker_TP0 pid=9) ERROR 04-28 07:10:22 [multiproc_executor.py:857] WorkerProc failed to start.
(Worker_TP0 pid=9) ERROR 04-28 07:10:22 [multiproc_executor.py:857] Traceback (most recent call last):
(Worker_TP0 pid=9) ERROR 04-28 07:10:22 [multiproc_executor.py:857]   File "/srv/vllm/model_loader/default_loader.py", line 64, in load_weights
(Worker_TP0 pid=9) ERROR 04-28 07:10:22 [multiproc_executor.py:857] RuntimeError: The size of tensor a (512) must match the size of tensor b (4096) at non-singleton dimension 0
"""
RUNNING = PACKED8.replace("model_loader/default_loader.py", "v1/spec_decode/eagle.py").replace(
    "load_weights", "propose"
)
UNIT_A, UNIT_B = decode(0, "2.80", "0.60"), decode(0, "1.00", "0.00")
LINE = decode(0, "2.20", "0.40").rstrip("\n")
FULL = decode(0, "4.00", "1.00") + decode(1, "4.00", "1.00") + decode(2, "4.00", "1.00")
CALM = switch(1, 3, 5) + decode(2, "3.10", "0.42") + decode(3, "3.20", "0.44") + decode(4, "3.15", "0.43")


def own(log: str | list[str], command: str, holds: Holds, source: str) -> Row:
    """Return a row whose files are texts of our own, joined by a form feed."""
    return Row("\f".join([log] if isinstance(log, str) else log), command, holds, source)


VARIANTS = [
    # adaptive lengths: other tiers; a calm controller; a ceiling that is one
    own(
        args(speculative_num_steps=1, speculative_num_draft_tokens=2) + switch(1, 1, 4) + decode(2, "2.00", "1.00")
        + switch(2, 4, 1) + decode(3, "2.00", "1.00") + switch(3, 1, 4) + decode(4, "2.00", "1.00"),
        "check", silent("A102"), "2.00 is full only under one step, and five tokens were in force",
    ),
    own(args() + FULL, "check", fires("A102"), "without a switch 4.00 of 4 is full"),
    own(args() + CALM, "check", silent("A102"), "3.2 of 6 after the only switch"),
    own(args() + CALM, "accept", lacks("thrash"), "one switch in a log is no thrash"),
    own(args() + switch(1, 3, 5) + "".join(decode(at, "4.00", "0.60") for at in (2, 3, 4)), "check", silent("A102"), "4.00 of 6 is not full"),
    # boots: of the API server's line, of both lines, of the same version, one alone, two files
    own(
        "INFO 05-02 10:00:00 [api_server.py:1043] vLLM API server version 0.8.5\n" + metrics(100, 300, 100, "0.5, 0.3, 0.2")
        + "INFO 05-02 12:00:00 [api_server.py:1043] vLLM API server version 0.8.5\n" + metrics(30, 300, 100, "0.2, 0.1, 0.0"),
        "accept", table("accept", 0.001, accept_len_mean=[2.0, 1.3]), "two boots: 1 + 100/100, 1 + 30/100",
    ),
    own(boot("0.27.2") + metrics(100, 300, 100, "0.5, 0.3, 0.2") + boot("0.28.0", hour=12) + metrics(30, 300, 100, "0.2, 0.1, 0.0"),
        "accept", table("accept", 0.001, accept_len_mean=[2.0, 1.3]), "two boots of two versions"),
    own("(APIServer pid=1) INFO 09-02 10:00:00 [utils.py:240] non-default args: {'model': '/models/target'}\n" + boot("0.27.2") + metrics(100, 300, 100, "0.5, 0.3, 0.2"),
        "summarize", value("facts.segments", 1), "arguments and boot belong together"),
    own(boot("0.27.2", "mtp", 1), "config", says("mtp", r"0\.27\.2"), "a boot alone says its set-up"),
    own([boot("0.27.2") + metrics(100, 300, 100, "0.5, 0.3, 0.2"), boot("0.27.2", hour=12) + metrics(30, 300, 100, "0.2, 0.1, 0.0")],
        "accept --min 1.5", exits(1), "two files, the second has 1.3"),
    own(boot("0.27.2") + metrics(100, 300, 100, "0.5, 0.3, 0.2") + boot("0.27.2", hour=12), "accept", table("accept", 0.001, accept_len_mean=[2.0]), "a boot without an interval is no row of nought"),
    # dying and ending
    own(boot("0.27.2") + metrics(100, 300, 100, "0.5, 0.3, 0.2") + DIED, "errors", says("VllmWorker-2"), "killed: no traceback at all"),
    own(boot("0.27.2") + metrics(100, 300, 100, "0.5, 0.3, 0.2") + DIED, "check", lacks("no fault found"), "a worker died"),
    own(boot("0.27.2") + metrics(100, 300, 100, "0.5, 0.3, 0.2") + STOPPED, "check", silent("E101"), "the client's line behind a wanted end is no crash"),
    own(SERVED + SIGTERM, "check", silent("E101"), "shutdown on SIGTERM is not an error"),
    own(SERVED + SIGTERM + "[2026-09-20 10:00:11] SIGQUIT received. signum=None, frame=None. It usually means one child failed.\n",
        "check", silent("E101"), "the sigquit of a wanted end follows from it"),
    own(SERVED + "[2026-09-20 10:00:09 TP0] Subprocess scheduler_0 (pid=9) exit code -9\n", "errors", says("exit code -9|SIGKILL"), "exit codes and signals of children"),
    # means from counts; forms without a length; the rate as a fraction
    own(metrics(1, 300, 100, "0.01, 0.0, 0.0") + metrics(2, 3000, 1000, "0.002, 0.0, 0.0", 16), "accept", table("accept", 0.0001, accept_len_mean=[1 + 3 / 1100]), "1 + 3/1100"),
    own("INFO 04-10 10:00:00 [metrics.py:61] SpecDecoding metrics: Draft acceptance rate: 41.2%, Accepted: 1236 tokens, Drafted: 3000 tokens\n",
        "check", silent("L102"), "V3a: the line is whole and gives the rate"),
    own("INFO 04-10 10:00:00 [metrics.py:61] SpecDecoding metrics: Draft acceptance rate: 41.2%, Accepted: 1236 tokens, Drafted: 3000 tokens\n",
        "accept", table("accept", accepted=[1236], drafted=[3000]), "V3a: A and D of the interval"),
    own("".join(f"INFO 04-01 10:00:{at}0 [metrics.py:61] Speculative metrics: Draft acceptance rate: 0.500, Number of accepted tokens: {n}, Number of draft tokens: {2 * n}, \n" for at, n in enumerate((50, 30))),
        "accept", table("accept", accepted=[80], drafted=[160]), "V2: intervals, not since start: 50 + 30 of 160"),
    own(metrics(5001, 15000, 5000, "0.5, 0.3, 0.2") + metrics(5002, 15000, 5000, "0.5, 0.3, 0.2", 16), "accept", table("accept", 0.00005, accept_len_mean=[2.0003]), "1 + 10003/10000"),
    own(metrics(0, 0, 0, "") + metrics(100, 300, 100, "0.5, 0.3, 0.2", 16), "accept", table("accept", 0.0001, accept_len_mean=[2.0], rounds=[100]), "an interval without verifies leaves the mean"),
    # evidence
    own([metrics(50, 100, 50, "0.6, 0.4"), metrics(52, 100, 50, "0.6, 0.44")], "diff", exits(0), "50 verifies each, 2.00 and 2.04: no difference"),
    own([metrics(5000, 10000, 5000, "0.6, 0.4"), metrics(1000, 10000, 5000, "0.15, 0.05")], "diff", exits(1), "5000 verifies each, 2.0 and 1.2"),
    own(metrics(1, 20, 10, "0.1, 0.0"), "check", silent("A105"), "10 verifies are thin evidence"),
    own(metrics(90, 90000, 30000, "0.003, 0.0, 0.0"), "check", fires("A105"), "1.003 over 30,000 verifies"),
    own(metrics(18000, 30000, 10000, "0.9, 0.6, 0.3"), "check", silent("A105"), "2.80 over 10,000 verifies"),
    # start-up facts
    own([args(attention_backend="fa3") + decode(0, "3.00", "0.67"), args(attention_backend="triton") + decode(0, "1.50", "0.17")],
        "config", value("headline", re.compile("attention_backend")), "the fact that can explain"),
    own([args(dtype="bfloat16"), args(dtype="float16")], "config", value("headline", re.compile("dtype")), "dtype differs"),
    own([boot("0.27.2"), boot("0.27.2").replace("bfloat16", "float16")], "config", value("headline", re.compile("dtype")), "dtype differs, in vLLM's line"),
    own([boot("0.27.2"), boot("0.28.0")], "config", value("headline", re.compile("version")), "only the version differs"),
    own([args(), args()], "config", value("headline", re.compile("nothing|same|no difference")), "nothing differs"),
    # chained halves
    own(TRACE + DURING + SECOND_HALF, "errors", table("errors", line=[1]), "one error, re-raised"),
    own(TRACE + DIRECT + SECOND_HALF, "errors", table("errors", line=[1]), "one error, with its consequence"),
    own(TRACE + DURING + SECOND_HALF, "errors", value(f"{FIRST}.message", "the cause"), "the cause is named"),
    own(TRACE + TRACE.replace("TP1", "TP0").replace("the cause", "another cause"), "errors", table("errors", line=[1, 5]), "two causes are two errors"),
    own(TRACE.replace("RuntimeError: the cause", "AssertionError").replace("self.forward(batch)", "assert rows == 4"), "errors", says("assert rows == 4"), "a bare AssertionError shows the statement"),
    # llama.cpp
    own(slot(0, 167, 259, words="draft acceptance rate") + statistics(167, 259, 87), "accept", table("accept", 0.001, accept_len_mean=[length(167, 87)], rounds=[87]), "the length is that of the statistics"),
    own(slot(0, 167, 259), "accept", table("accept", accepted=[167], drafted=[259]), "counts without a length are counts"),
    own(slot(0, 167, 259, ", mean len =  2.92") + slot(9, 158, 289, ", mean len =  2.63"), "accept", table("accept", accepted=[325], drafted=[548]), "two requests"),
    own(slot(0, 167, 259, ", mean len =  2.92", before="[39385] ") + slot(9, 10, 100, ", mean len =  1.25", before="[39386] "),
        "accept", table("accept", 0.001, accept_len_mean=[2.92, 1.25]), "two ports of a router are two servers"),
    own(slot(0, 167, 259, ", mean acceptance length =  2.92, acceptance rate per position = (0.805, 0.632, 0.483)"), "accept", numbers(0.805, 0.632, 0.483), "positions / V"),
    own(statistics(167, 259, 87) + statistics(325, 548, 184), "accept", table("accept", 0.001, accept_len_mean=[length(325, 184)]), "cumulative: the last line stands for all"),
    own("/src/ggml/src/ggml.c:3012: GGML_ASSERT(ggml_can_mul_mat(a, b)) failed\n", "errors", says("GGML_ASSERT"), "an abort of ggml"),
    # endings without a Python exception line
    own(SERVED + f"[rank1]:[E920 10:00:11.441603074 ProcessGroupNCCL.cpp:2068] [PG ID 0 PG GUID 0(default_pg) Rank 1] {ABORT}NCCL error: remote process exited\n", "errors", says("remote process exited"), "NCCL watchdog"),
    own(SERVED + "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: an illegal instruction was encountered\n", "errors", says("c10::Error", "illegal instruction"), "terminate called / what()"),
    own(SERVED + '!!!!!!! Segfault encountered !!!!!!!\n  File "<unknown>", line 0, in exit\n', "check", lacks("no fault found"), "segfault banner"),
    own(SERVED + "kernel: Out of memory: Killed process 4242 (sglang::schedul) total-vm:81788928kB\n", "errors", says("4242"), "the OOM killer"),
    own(SERVED + 'Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007ee43dfff640 (most recent call first):\n  File "/sgl/eagle_worker.py", line 325 in verify\n', "errors", says(r"eagle_worker\.py"), "top frame named"),
    own(SERVED + "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1369: indexSelectLargeIndex: block: [44,0,0], thread: [96,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n" * 3, "errors", both(says("srcIndex < srcSelectDimSize"), table("errors", line=[4])), "device-side assert: one error of many lines"),
    own("[TRT-LLM] [E] Hang detected on rank 3 in PyExecutor; hard-killing and propagating to peer ranks.\n", "errors", says("hang", "rank ?3"), "TensorRT-LLM's hang"),
    # sizes while weights load, and while serving
    own(PACKED8, "check", says("packing|packed"), "512 against 4096: eight values of 4 bits in 32"),
    own(PACKED8, "errors", lacks(r"\d+ states?\b"), "nothing about captured states"),
    own(PACKED8.replace("at non-singleton dimension 0", "at non-singleton dimension 1"), "errors", lacks(r"\d+ states?\b"), "nothing about captured states"),
    own(RUNNING, "check", fires("E102"), "the same sizes while it serves"),
    own(RUNNING, "check", lacks("packing"), "no weights are loaded in propose"),
    # engines
    own(engine("Engine 000") + metrics(10, 50, 10, "0.5, 0.3, 0.1, 0.1, 0.0") + engine("Engine 001", running=7) + metrics(20, 50, 10, "0.9, 0.6, 0.3, 0.1, 0.1"), "accept", table("accept", 0.001, engine=["000", "001"], accept_len_mean=[2.0, 3.0]), "1 + 10/10, 1 + 20/10"),
    own(engine("Engine 001", running=7) + metrics(20, 50, 10, "0.9, 0.6, 0.3, 0.1, 0.1") + engine("Engine 000") + metrics(10, 50, 10, "0.5, 0.3, 0.1, 0.1, 0.0"), "accept", table("accept", engine=["000", "001"], rounds=[10, 10]), "verifies, whatever runs at the interval's end"),
    own(engine("2 Engines Aggregated", running=4) + metrics(30, 100, 20, "0.7, 0.4, 0.2, 0.1, 0.1"), "events", event("engine_stats", 1, engines=2, running=4), "N Engines Aggregated"),
    own(engine("2 Engines Aggregated", running=4) + metrics(30, 100, 20, "0.7, 0.4, 0.2, 0.1, 0.1"), "accept", table("accept", 0.001, accept_len_mean=[2.5], rounds=[20]), "the metrics line sums all engines"),
    own(engine("Engine 000") + metrics(10, 30, 10, "0.5, 0.3, 0.2") + engine("Engine 001") + metrics(0, 0, 0, ""), "accept", table("accept", 0.001, engine=["000"], accept_len_mean=[2.0]), "an engine without drafts is no row of nought"),
    # labels
    own(f"0: {UNIT_A}1: {UNIT_B}0: {UNIT_A}1: {UNIT_B}", "accept", table("accept", accept_len_mean=[2.80, 1.00]), "srun -l"),
    own(f"gpu-01: {UNIT_A}gpu-02: {UNIT_B}gpu-01: {UNIT_A}gpu-02: {UNIT_B}", "accept", table("accept", accept_len_mean=[2.80, 1.00]), "pdsh"),
    own(f"a-1  | {UNIT_A}b-1  | {UNIT_B}" * 2, "accept", table("accept", accept_len_mean=[2.80, 1.00]), "docker compose"),
    own(f"[pod/a-0/sglang] {UNIT_A}[pod/b-0/sglang] {UNIT_B}" * 2, "check", fires("A101"), "kubectl logs --prefix"),
    own(f"llm-a sglang {UNIT_A}llm-b sglang {UNIT_B}" * 2, "accept", table("accept", accept_len_mean=[2.80, 1.00]), "stern"),
    own([UNIT_A * 2, UNIT_B * 2], "check", fires("A101"), "a file for each server"),
    # JSON around the line
    *(
        own(f'{{"ts": "2026-09-26T10:00:00Z", "{key}": "{LINE}", "level": "info"}}\n' * 2, "accept", table("accept", 0.001, accept_len_mean=[2.20], lines=[2]), f"JSON lines, key {key}")
        for key in ("log", "message", "msg", "text", "line")
    ),
    # encodings
    *(
        own(f"{encoding}\v" + UNIT_A + UNIT_A, "accept", table("accept", 0.001, accept_len_mean=[2.80], lines=[2]), f"{encoding} with a byte order mark")
        for encoding in ("utf-16-le", "utf-16-be", "utf-8-sig", "utf-16-le odd", "utf-16-le crlf")
    ),
    # varying draft lengths
    own(metrics(150, 273, 100, "0.800, 0.500, 0.200", more="Current speculative depth: 3, "), "accept", table("accept", 0.01, accept_len_mean=[2.50], rounds=[100]), "V = A / (length - 1), whatever D"),
    own(metrics(150, 273, 100, "0.800, 0.500, 0.200"), "accept", table("violations"), "ngram and suffix draft what they find"),
    own(metrics(0, 70, 50, "0.000, 0.000, 0.000, 0.000, 0.000"), "accept", table("accept", accept_len_mean=[1.00]), "nothing accepted of a varying draft"),
    own(metrics(20, 40, 20, "0.600, 0.400, 0.000, 0.000", more="Current speculative depth: 2, "), "accept", table("accept", 0.001, rounds=[20]), "depth 2 of 4: 40 / 2"),
    own(metrics(60, 60, 20, "1.000, 1.000, 1.000"), "check", fires("A102"), "all of 3 accepted over 20 verifies"),
    # windows without verifies
    own(args() + decode(0, "0.00", "0.00") * 3, "check", silent("A101"), "nothing was verified, so nothing was refused"),
    own(args() + decode(0, "nan", "nan") + decode(1, "2.80", "0.60"), "accept", table("accept", accept_len_mean=[2.80], lines=[1]), "nan of a window without verifies"),
    own(args() + decode(0, "1.00", "0.00") + decode(1, "1.00", "0.00") + decode(2, "1.00", "0.00"), "check", fires("A101"), "1.00 is zero acceptance"),
    own(args() + decode(0, "2.80", "0.60", " DP0 TP0") + decode(0, "0.00", "0.00", " DP1 TP1") + decode(1, "2.80", "0.60", " DP0 TP0"), "check", silent(), "an idle rank"),
    own(args() + decode(0, "0.00", "0.00") + decode(1, "2.80", "0.60"), "accept", says(r"1 (?:line|window|interval)s? without (?:drafts|verif)"), "counted, and said"),
    # captured layers
    own(boot("0.27.2") + aux("(24, 48, 72)") + aux("(24, 48, 72)", rank=1), f"check --contract {CONTRACT} {{0}}", silent("H103"), "the contract's own layers"),
    own(boot("0.27.2") + aux("[2, 32, 61]", "model"), "captures", numbers(2, 32, 61), "a list, from the model"),
    own(boot("0.27.2") + aux("(25, 49, 73)"), f"check --contract {CONTRACT} {{0}}", both(fires("H103"), says("both|either|two readings")), "off by one cannot be decided from the line alone"),
    own(boot("0.27.2") + aux("(24, 48)"), f"check --contract {CONTRACT} {{0}}", fires("H103"), "one layer of three is missing"),
    own(aux("(2, 40, 77)").replace("Eagle3 auxiliary layers from config", "auxiliary layers from speculative config"), "captures", numbers(2, 40, 77), "the older runner's words"),
    own(boot("0.27.2") + aux("(2, 40, 77)", "model") + aux("(2, 41, 77)", "model", 1), "check", fires("H103"), "workers that capture different layers"),
    # verification depth: V = D / d, positions of those that were reached
    own(metrics(30, 60, 40, "0.500, 0.500, -----", more="Mean verification depth: 1.50/3, ").replace(", Avg", ", Per-position verification coverage: 1.000, 0.500, 0.000, Avg"),
        "accept", table("accept", 0.01, accept_len_mean=[1.75], rounds=[40]), "60 / 1.5 = 40 verifies"),
    own(metrics(0, 40, 40, "0.000, -----, -----", more="Mean verification depth: 1.00/3, "), "accept", table("accept", accept_len_mean=[1.00], rounds=[40]), "40 / 1.00"),
    own(metrics(30, 60, 40, "0.500, 0.500, -----", more="Mean verification depth: 1.50/3, "), "accept", table("violations"), "dashes contradict nothing"),
    own(metrics(30, 60, 40, "0.500, 0.500, -----", more="Mean verification depth: 1.50/3, "), "events", event("spec_metrics", 1, mean_verification_depth=[1.5, 3], per_position=[0.5, 0.5, None]), "depth and k"),
    own(metrics(30, 120, 40, "0.500, 0.200, 0.050", more="Mean verification depth: 3.00/3, "), "accept", table("accept", 0.01, accept_len_mean=[1.75], rounds=[40]), "at full depth as in the older form"),
    # what stands before a line of another engine
    own(metrics(100, 300, 100, "0.5, 0.3, 0.2", mark="\x1b[0;36m(APIServer pid=1)\x1b[0;0m \x1b[32m").replace("INFO 09-02 11:01:06 [metrics.py:125]", "INFO\x1b[0m \x1b[90m09-02 11:01:06\x1b[0m \x1b[90m[metrics.py:125]\x1b[0m"),
        "events", event("spec_metrics", 1, time="09-02T11:01:06", origin="APIServer", accepted=100), "level, stamp and file part coloured one by one"),
    own("[04/28/2025-09:56:44] [TRT-LLM] [RANK 3] [I] iter = 198, global_rank = 3, rank = 3, states = {'num_generation_tokens': 10}\n",
        "events", event("trtllm_iteration", 1, time="2025-04-28T09:56:44"), "time is lost with any rank mark"),
    own("[04/28/2026-09:56:44] [TRT-LLM] [I] [_torch][RANK 3] iter = 198, global_rank = 3, rank = 3, states = {'num_generation_tokens': 10}\n",
        "events", event("trtllm_iteration", 1, time="2026-04-28T09:56:44"), "time is lost with any rank mark"),
    own(SERVED + f"[rank1]:[E920 10:00:11.441603074 ProcessGroupNCCL.cpp:2068] [PG ID 0 PG GUID 0(default_pg) Rank 1] {ABORT}NCCL error: x\n",
        "events", event("process_group_abort", 4, time="09-20T10:00:11.441603074", origin="rank1", rank=1), "glog's stamp: month, day, time"),
    own(slot(7, 167, 259, ", mean len =  2.92", before="[39385] "), "events", event("llamacpp_acceptance", 1, slot=1, task=7), "slot and task behind a router's port"),
]  # fmt: skip


def encoded(text: str) -> bytes:
    """Return a log's bytes; a text that begins with an encoding's name and a vertical tab is written in it."""
    name, tab, log = text.rpartition("\v")
    if not tab:
        return text.encode()
    encoding, _, how = name.partition(" ")
    log = log.replace("\n", "\r\n") if how == "crlf" else log
    mark = "\ufeff" if encoding.startswith("utf-16") else ""
    return (mark + log).encode(encoding) + (b"\n" if how == "odd" else b"")


@pytest.mark.parametrize("row", [pytest.param(row, id=f"{at}-{row.source[:40]}") for at, row in enumerate(VARIANTS)])
def test_variant(row: Row, clean, capsys):
    """A log of our own, of a handed case's kind: the value follows from the counts it prints."""
    row.holds(ask(row.command, laid(clean, [encoded(text) for text in row.files.split("\f")]), capsys))
