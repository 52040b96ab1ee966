"""How long after a write its event comes out of a followed log: through every door, on this machine or over ssh.

    python benchmarks/live.py [LOG] [--writes 200] [--rate 10] [--host HOST]

Each door follows a file to which ``--rate`` times a second something is written, with a rotation in the middle.
``--host``: under the name ``HOST:/path``; HOST is a name under which ssh reaches this machine, LOGSCOPE_SSH says how.

A delay is counted from the write of a statistics line: to its event (``events``, ``stream``), to the headline that
counts it (``accept``, ``summarize``), from a crash to E101 (``check``, once). With LOG, a log of one rank, ``events``
is measured on the records of its passes, too: one pass a write, and from the write that begins the second pass behind
it, which tells its phase.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

STREAM = (
    "import logscope, sys\n"
    "for one in logscope.stream(sys.argv[1], follow=True): print(one.model_dump_json(by_alias=True), flush=True)"
)
DECODE = (
    "[2026-11-29 12:14:{:02d}] Decode batch, #running-req: 1, #token: {}, token usage: 0.00, accept len: 2.50, "
    "accept rate: 0.50, cuda graph: False, gen throughput (token/s): 50.00, #queue-req: 0\n"
)
CRASH = 'Traceback (most recent call last):\n  File "/srv/scheduler.py", line 7, in run\nRuntimeError: CUDA error\n'
LIMIT = 60.0


class Door:
    """A command that follows, with the time of every line it prints."""

    def __init__(self, door: str, name: str) -> None:
        words = ["-m", "logscope", door, name, "--follow", *(["-f", "ndjson"] if door == "events" else [])]
        command = [sys.executable, *(["-c", STREAM, name] if door == "stream" else words)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.lines: list[tuple[float, str]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append((time.monotonic(), line.decode()))

    def wait(self, text: str, start: int = 0) -> float:
        """Return when a line with this text came."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            for when, line in self.lines[start:]:
                if text in line:
                    return when
            time.sleep(0.005)
        raise TimeoutError(f"{text!r} did not come")


def passes(path: Path) -> list[bytes]:
    """Return what a log holds before the first pass that is served, then the records of one pass each."""
    raw = path.read_bytes()
    lines = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).splitlines(keepends=True)
    command = [sys.executable, "-m", "logscope", "events", str(path), "-f", "ndjson"]
    found = [json.loads(line) for line in subprocess.run(command, capture_output=True, check=True).stdout.splitlines()]
    by_pass: dict[int, list[bytes]] = {}
    first = len(lines)
    for event in found:
        if event["pass"] and event["during"] == "serving":
            by_pass.setdefault(event["pass"], []).append(lines[event["line"] - 1])
            first = min(first, event["line"])
    return [b"".join(lines[: first - 1]), *map(b"".join, by_pass.values())]


def measure(door: str, arguments: argparse.Namespace, log: Path, parts: list[bytes]) -> list[float]:
    """Return the delays of one door, in seconds; ``parts``: what stands there at first, and what is written then."""
    start, *rest = parts or [b""]
    log.write_bytes(start + DECODE.format(0, 1).encode())
    following = Door(door, f"{arguments.host}:{log}" if arguments.host else str(log))
    if door != "check":
        following.wait("accept", 0)
    time.sleep(2)
    written: list[float] = []
    begun = len(following.lines)
    for number in range(1, arguments.writes + 1):
        if number == arguments.writes // 2:
            log.rename(f"{log}.1")
        with log.open("ab") as out:
            out.write(rest[number - 1] if rest else DECODE.format(number % 60, 40 * number).encode())
        written.append(time.monotonic())
        time.sleep(1 / arguments.rate)
    if door == "check":
        with log.open("ab") as out:
            out.write(CRASH.encode())
        written = [time.monotonic()]
        delays = [following.wait("E101") - written[0]]
    elif door in ("accept", "summarize"):
        following.wait(f" {len(written) + 1:,} {'lines' if door == 'accept' else 'decode lines'}")
        # A later headline counts the line as well.
        told = [(when, re.search(r"([\d,]+) (?:decode )?lines", line)) for when, line in following.lines]
        counts = [(when, int(found[1].replace(",", ""))) for when, found in told if found]
        delays = [min(when for when, lines in counts if lines > at + 1) - then for at, then in enumerate(written)]
    elif rest:
        delays = []
        time.sleep(2)
        events = [(when, json.loads(line)) for when, line in following.lines[begun:]]
        bounds = [part.count(b"\n") for part in rest[: len(written)]]
        owners = [at for at, count in enumerate(bounds) for _ in range(count)]
        for owner, (when, event) in zip(owners, events, strict=False):
            if owner + 2 < len(written) and event["fields"].get("reason") is None:
                delays.append(max(0.0, when - written[owner + 2]))
    else:
        following.wait(f"{40 * arguments.writes}", begun)
        delays = [when - then for (when, _), then in zip(following.lines[begun:], written, strict=True)]
    following.process.terminate()
    following.process.wait()
    return delays


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", nargs="?", type=Path)
    parser.add_argument("--writes", type=int, default=200)
    parser.add_argument("--rate", type=float, default=10.0)
    parser.add_argument("--host")
    arguments = parser.parse_args()
    kinds: list[tuple[str, list[bytes]]] = [(door, []) for door in ("events", "stream", "accept", "summarize", "check")]
    if arguments.log is not None:
        kinds.append(("events", passes(arguments.log)))
    with tempfile.TemporaryDirectory() as folder:
        for number, (door, parts) in enumerate(kinds):
            delays = sorted(1000 * delay for delay in measure(door, arguments, Path(folder, f"{number}.log"), parts))
            median, most = delays[len(delays) // 2], delays[int(0.95 * (len(delays) - 1))]
            what = f"{door}, passes" if parts else door
            print(f"{what:16} {len(delays):5} delays   median {median:6.0f} ms   95 % {most:6.0f} ms   max {delays[-1]:6.0f} ms")  # fmt: skip


if __name__ == "__main__":
    main()
