"""Hostile inputs through the command line: time, peak memory over all processes, and whether the answer is right.

    python benchmarks/hostile/hostile.py                 all, at full size (tens of minutes, 2 GB of temporary files)
    python benchmarks/hostile/hostile.py torn --scale 0.1
    python benchmarks/hostile/hostile.py --list

Every input is run at half and at full size: the ratio of the times tells whether the cost grows with the length or
faster. An input is OK when the answer is what the input holds, memory stays within its bound and the ratio below 3.
Sizes shown are those of the input as logscope reads it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1 << 20
CAPTURE = (
    b"EAGLE3_DEBUG[dsv2] layer %d capture: shape=torch.Size([%d, 7168]), residual_is_none=False, norm=%d.2500,"
    b" first5=[0.5, 0.25, -1.0, 0.125, 2.0]"
)
DECODE = (
    b"Decode batch, #running-req: 1, #token: 108, token usage: 0.00, accept len: 2.17, accept rate: 0.54,"
    b" cuda graph: True, gen throughput (token/s): 0.39, #queue-req: 0"
)
SLOW = r"""
schema = 1
name = "slow"
[[event]]
name = "slow"
anchors = ["SLOW:"]
reader = "pattern"
pattern = 'SLOW: (?P<x>(?:(?:a|b|ab)+)+)c'
[[sample]]
text = "SLOW: abc"
event = "slow"
"""


@dataclass(slots=True)
class Case:
    """One hostile input: how it is written for a size of 0 to 1, how it is given, and what must come out.

    ``expect`` gets the report (None when there is none) and the size; it returns what is wrong, or nothing.
    """

    about: str
    write: Callable[[float], Iterator[bytes]]
    expect: Callable[[dict[str, Any], float], str | None]
    command: tuple[str, ...] = ("summarize",)
    how: str = "file"
    memory: int = 250
    slow: bool = False


def repeated(text: bytes, count: float) -> Iterator[bytes]:
    """Yield a text so many times, in pieces of about a megabyte."""
    left = int(count)
    at_once = max(1, MIB // len(text))
    while left > 0:
        yield text * min(left, at_once)
        left -= at_once


def numbered(make: Callable[[int], bytes], count: float) -> Iterator[bytes]:
    """Yield a text per number, a few hundred at a time."""
    total = int(count)
    for start in range(0, total, 500):
        yield b"".join(make(number) for number in range(start, min(total, start + 500)))


def counts(**wanted: Callable[[float], float]) -> Callable[[dict[str, Any], float], str | None]:
    """Expect numbers of the accounting."""

    def expect(report: dict[str, Any], size: float) -> str | None:
        wrong = [
            f"{name} is {report['accounting'][name]}, not {int(want(size))}"
            for name, want in wanted.items()
            if report["accounting"][name] != int(want(size))
        ]
        parts = ("whole", "partial", "rejoined", "cut", "unparsed")
        if report["accounting"]["records"] != sum(report["accounting"][part] for part in parts):
            wrong.append("the accounting does not add up")
        return "; ".join(wrong) or None

    return expect


def nothing(report: dict[str, Any], _size: float) -> str | None:
    """Expect that nothing is recognised."""
    return None if not report else "something was recognised"


def _torn(number: int) -> bytes:
    line = CAPTURE % (3, 4, number)
    cut = 60 + number % 60
    return line[:cut] + b"\n" + line[cut:] + b"\n"


def _tracebacks(size: float) -> Iterator[bytes]:
    writers = int(10_000 * size)
    for text in (b"Traceback (most recent call last):\n", b'  File "a.py", line 3, in f\n', b"    x = y\n"):
        for writer in range(writers):
            yield b"[2026-02-11 15:21:12 TP%d] " % writer + text
    for writer in range(writers):
        yield b"[2026-02-11 15:21:12 TP%d] ValueError: writer %d\n" % (writer, writer)


def _copies(size: float) -> Iterator[bytes]:
    """Eight unmarked writers of the same records, one of them 10,000 records behind."""
    total = int(50_000 * size)
    late = int(10_000 * size)
    for number in range(total + late):
        if number < total:
            yield (CAPTURE % ((3, 31, 59)[number % 3], 4, number // 3) + b"\n") * 7
        if number >= late:
            yield CAPTURE % ((3, 31, 59)[(number - late) % 3], 4, (number - late) // 3) + b"\n"


def _jumps(number: int) -> bytes:
    year = (1970, 2026, 9999, 2025)[number % 4]
    return b"[%d-0%d-11 15:%02d:12 TP0] " % (year, number % 9 + 1, number * 7 % 60) + DECODE + b"\n"


CASES: dict[str, Case] = {
    "one-line": Case(
        "1 GB without a newline",
        lambda size: repeated(b"x" * 4096, 262_144 * size),
        nothing,
        how="pipe",
    ),
    "one-line-of-records": Case(
        "64 MB of records on one line",
        lambda size: repeated(CAPTURE % (3, 4, 7), 550_000 * size),
        counts(records=lambda size: 550_000 * size, lines=lambda _: 1),
        memory=1500,
    ),
    "empty-lines": Case("10 million empty lines", lambda size: repeated(b"\n", 10_000_000 * size), nothing),
    "carriage-returns": Case("100 million CR", lambda size: repeated(b"\r", 100_000_000 * size), nothing),
    "brackets": Case(
        "a value of a million brackets",
        lambda size: iter([b"EAGLE3_DEBUG[x] deep: a=", b"[" * int(10**6 * size), b"]" * int(10**6 * size), b"\n"]),
        counts(records=lambda _: 1),
    ),
    "digits": Case(
        "numbers of 100,000 digits",
        lambda size: repeated(
            b"EAGLE3_DEBUG[x] big: a=" + b"9" * 100_000 + b", b=1." + b"9" * 100_000 + b"\n", 20 * size
        ),
        counts(whole=lambda size: 20 * size),
    ),
    "keys-in-a-record": Case(
        "100,000 keys in one record",
        lambda size: iter(
            [b"EAGLE3_DEBUG[x] wide: ", *numbered(lambda n: b"k%d=%d, " % (n, n), 100_000 * size), b"\n"]
        ),
        counts(whole=lambda _: 1),
    ),
    "keys-in-a-file": Case(
        "100,000 records, each with a key of its own",
        lambda size: numbered(lambda n: b"EAGLE3_DEBUG[x] odd: k%d=%d\n" % (n, n), 100_000 * size),
        counts(whole=lambda size: 100_000 * size),
    ),
    "labels": Case(
        "100,000 labels",
        lambda size: numbered(
            lambda n: b"EAGLE3_DEBUG[x] label%s: a=1\n" % bytes(97 + int(digit) for digit in str(n)), 100_000 * size
        ),
        counts(whole=lambda size: 100_000 * size),
        memory=500,
    ),
    "layers": Case(
        "100,000 layers in one pass: every record of a pass is kept until it ends",
        lambda size: numbered(lambda n: CAPTURE % (n, 4, n) + b"\n", 100_000 * size),
        counts(whole=lambda size: 100_000 * size),
        memory=1500,
    ),
    "bomb": Case(
        "1 GB of zeros in a .gz of 1 MB", lambda size: repeated(b"\0" * 4096, 262_144 * size), nothing, how="gz"
    ),
    "fifo": Case(
        "a named pipe",
        lambda size: numbered(lambda _: DECODE + b"\n", 100_000 * size),
        counts(whole=lambda size: 100_000 * size),
        how="fifo",
    ),
    "zero": Case("/dev/zero", lambda _: iter(()), nothing, how="/dev/zero"),
    "slow-pattern": Case(
        "10,000 lines of 10 kB for a pattern with catastrophic backtracking",
        lambda size: iter([DECODE + b"\n", *numbered(lambda n: b"SLOW: " + b"ab" * 5000 + b"%d\n" % n, 10_000 * size)]),
        counts(unparsed=lambda size: 10_000 * size),
        slow=True,
    ),
    "server-args": Case(
        "server_args of 1 MB, 20 times",
        lambda size: repeated(
            b"server_args=ServerArgs(model_path='/m', tp_size=8, chat_template='" + b"{% if x %}\\n" * 80_000 + b"')\n",
            20 * size,
        ),
        counts(whole=lambda size: 20 * size),
        memory=400,
    ),
    "traceback": Case(
        "a traceback of 100,000 lines",
        lambda size: iter(
            [
                b"Traceback (most recent call last):\n",
                *repeated(b'  File "a.py", line 3, in f\n    f()\n', 50_000 * size),
                b"RecursionError: too deep\n",
            ]
        ),
        counts(records=lambda _: 1),
        command=("errors",),
    ),
    "tracebacks": Case(
        "10,000 tracebacks that interleave line by line",
        _tracebacks,
        counts(records=lambda size: 10_000 * size),
        command=("errors",),
        memory=400,
    ),
    "torn": Case(
        "a million torn records",
        lambda size: numbered(_torn, 1_000_000 * size),
        counts(records=lambda size: 1_000_000 * size),
        memory=700,
    ),
    "torn-on-a-line": Case(
        "20,000 torn records between carriage returns",
        lambda size: repeated(b"EAGLE3_DEBUG[dsv2] layer 3 capture: shape=torch.Size([21, 71\rfoo\r", 20_000 * size),
        counts(cut=lambda size: 20_000 * size),
    ),
    "writers": Case(
        "a million writers",
        lambda size: numbered(lambda n: b"(Worker pid=%d) " % n + CAPTURE % (3, 4, 7) + b"\n", 1_000_000 * size),
        counts(whole=lambda size: 1_000_000 * size),
        memory=2500,
    ),
    "jumps": Case(
        "200,000 time stamps that jump by centuries",
        lambda size: numbered(_jumps, 200_000 * size),
        counts(whole=lambda size: 200_000 * size),
        command=("accept",),
    ),
    "copies": Case(
        "8 writers, one 10,000 records behind",
        _copies,
        counts(whole=lambda size: 8 * int(50_000 * size)),
        memory=700,
    ),
    "copies-check": Case(
        "the same, checked",
        _copies,
        counts(whole=lambda size: 8 * int(50_000 * size)),
        command=("check",),
        memory=700,
    ),
}


class Memory(threading.Thread):
    """Watches the resident memory of a process and its children, in bytes."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.peak = 0
        self.ended = False

    def run(self) -> None:
        """Look every 20 ms."""
        while not self.ended:
            self.peak = max(self.peak, sum(map(_resident, _tree(self.pid))))
            time.sleep(0.02)


def _tree(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return [pid]
    return [pid, *(inner for child in children for inner in _tree(int(child)))]


def _resident(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGESIZE")


@dataclass(slots=True)
class Outcome:
    """What one run took and said."""

    seconds: float
    peak: int
    size: int
    report: dict[str, Any]
    error: str
    code: int


def run(case: Case, size: float, folder: Path, limit: float) -> Outcome:
    """Run logscope once on a case."""
    name = folder / ("input.log.gz" if case.how == "gz" else "input.log")
    name.unlink(missing_ok=True)
    given, total = str(name), 0
    feeding: Callable[[Any], None] | None = None
    if case.how == "file":
        with name.open("wb") as out:
            for piece in case.write(size):
                total += out.write(piece)
    elif case.how == "gz":
        with gzip.open(name, "wb", compresslevel=9) as packed:
            for piece in case.write(size):
                total += packed.write(piece)
    elif case.how == "/dev/zero":
        given, total = "/dev/zero", 256 * MIB
    else:

        def feeding(out: Any) -> None:
            for piece in case.write(size):
                try:
                    out.write(piece)
                except BrokenPipeError:
                    return

        total = sum(map(len, case.write(size)))
        given = "-" if case.how == "pipe" else given
        if case.how == "fifo":
            os.mkfifo(name)
    options: list[str] = []
    if case.slow:
        grammar = folder / "slow.toml"
        grammar.write_text(SLOW, encoding="utf-8")
        options = ["--grammar", str(grammar)]
    command = [sys.executable, "-m", "logscope", *case.command, "-f", "json", *options, given]
    begun = time.perf_counter()
    out_path, error_path = folder / "out", folder / "err"
    with out_path.open("wb") as out, error_path.open("wb") as err:
        stdin = subprocess.PIPE if case.how == "pipe" else subprocess.DEVNULL
        process = subprocess.Popen(command, stdout=out, stderr=err, stdin=stdin)
        memory = Memory(process.pid)
        memory.start()
        if feeding is not None:
            target = process.stdin if case.how == "pipe" else name.open("wb")
            assert target is not None  # noqa: S101 - Popen was asked for a pipe
            with target:
                feeding(target)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = -1
        seconds = time.perf_counter() - begun
        memory.ended = True
        memory.join()
    text = out_path.read_text(encoding="utf-8")
    try:
        report = json.loads(text) if text.strip() else {}
    except ValueError:
        report = {}
    error = error_path.read_text(encoding="utf-8", errors="replace").strip()
    return Outcome(seconds, memory.peak, total, report, error, code)


def verdict(case: Case, size: float, half: Outcome, whole: Outcome) -> str:
    """Say what is wrong, or OK."""
    wrong = []
    if whole.code == -1:
        return "TOO SLOW: stopped"
    if whole.code == 2 or "Traceback" in whole.error or "this is a bug" in whole.error:
        wrong.append(f"exit {whole.code}: {whole.error.splitlines()[0] if whole.error else ''}")
    elif case.expect is not nothing and not whole.report:
        wrong.append(f"no report (exit {whole.code}): {whole.error[:80]}")
    else:
        wrong.append(case.expect(whole.report, size) or "")
    if whole.peak > case.memory * MIB:
        wrong.append(f"memory above {case.memory} MiB")
    if whole.seconds > 2 and whole.seconds > 3 * half.seconds:
        wrong.append("time grows faster than the input")
    return "; ".join(filter(None, wrong)) or "OK"


def main() -> None:
    """Run the cases named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the inputs, 1 = as described")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds one run may take")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(f"{name:22} {case.about}" for name, case in CASES.items()))
        return
    print(f"{'input':22} {'MB':>7} {'s':>7} {'s half':>7} {'ratio':>6} {'peak MiB':>9}  verdict", flush=True)
    failed = False
    for name in arguments.names or CASES:
        case = CASES[name]
        with tempfile.TemporaryDirectory() as folder:
            half = run(case, arguments.scale / 2, Path(folder), arguments.limit)
            whole = run(case, arguments.scale, Path(folder), arguments.limit)
        said = verdict(case, arguments.scale, half, whole)
        failed = failed or said != "OK"
        ratio = whole.seconds / half.seconds
        print(
            f"{name:22} {whole.size / 1e6:7.1f} {whole.seconds:7.2f} {half.seconds:7.2f} {ratio:6.2f}"
            f" {whole.peak / MIB:9.0f}  {said}",
            flush=True,
        )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
