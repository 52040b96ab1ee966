"""Debug logs of any size, from a seed, with the results to expect of them beside.

    python benchmarks/generate.py dense.log --size 1GB
    python benchmarks/generate.py sparse.log --size 1GB --kind sparse
    python benchmarks/generate.py dirty.log --size 100MB --kind dirty --ranks 1

The log is that of an SGLang server with EAGLE-3 (spec v2, 3 steps, 4 draft tokens, hidden 7168, layers 3, 31 and 59),
restarted a few times, each life printing behind another kind of prefix. Its forward passes are consistent: a joined
state has the norm and head of its captures, the draft reads the state that was joined before, decode steps read the
draft's own output. ``LOG.expected.json`` says what was written, counted while writing it; nothing of logscope is used.

kind      debug lines  other lines                                              faults a line
dense     85 %         decode 0.8 %, prefill 0.1 %, requests 2 %, the rest plain  1e-5
sparse    5 %          decode 3 %, prefill 0.3 %, requests 6 %, the rest plain    1e-5
server    none         decode 60 %, prefill 10 %, requests 30 %                   none
dirty     85 %         as dense                                                 1.2e-3

Faults: a record torn by a newline, its rest on the next line or the one after; two records on one line; bytes that
are no UTF-8, colours, lone carriage returns (in plain lines).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
from collections import Counter
from pathlib import Path
from typing import BinaryIO

HIDDEN = 7168
LAYERS = (3, 31, 59)
TOKENS = 4
STEPS = 3
SHARES = {  # of all lines: debug, decode, prefill, requests
    "dense": (0.85, 0.008, 0.001, 0.02),
    "sparse": (0.05, 0.03, 0.003, 0.06),
    "server": (0.0, 0.6, 0.1, 0.3),
    "dirty": (0.85, 0.008, 0.001, 0.02),
}
FAULTS = {"dense": 1e-5, "sparse": 1e-5, "server": 0.0, "dirty": 1.2e-3}
# One life for each entry, over and over: what the printing ranks put before a record.
STYLES = ("plain", "plain", "stamped", "compose", "plain", "actor", "pod", "plain")
LIFE_BYTES = 40 << 20  # the least size of a life
_PLAIN = (
    "node-a:{n}:{n} [{r}] NCCL INFO Channel 0{r}/0 : {r}[{r}] -> {q}[{q}] via P2P/CUMEM",
    "{t} WARNING custom_all_reduce.py:{n}: skipping {n} of {m} buckets on device {r}",
    "{t} Memory pool end. avail mem={r}.{n} GB",
    "{t} INFO:     worker {r} heartbeat {m} ok, queue depth {q}, lag {r}.{n} ms",
    "{t} gc collected {m} objects of generation {q} in {r}.{n} s",
    "{t} Cache hit of radix tree: node {m}, prefix length {n}, evictable {m}",
    "Loading safetensors checkpoint shards: {r}{q}% Completed | {r}/{q} [00:{n}<00:{n}, {r}.{q}s/it]",
    "{t} request req-{m:08x}{n:08x} finished: {n} tokens, {q} rounds, accepted {r}.{q}",
    '  File "/srv/sglang/python/sglang/srt/managers/scheduler.py", line {n}, in event_loop_overlap',
    "",
    "{t} metrics flushed: {m} series, {n} dropped, took {r}.{q} ms",
    "{t} detokenizer batch of {r}: {m} ids, {n} surrogates held back",
)


def half(number: float) -> float:
    """Return the nearest bfloat16."""
    mantissa, exponent = math.frexp(number)
    return math.ldexp(round(mantissa * 256) / 256, exponent)


def size_of(text: str) -> int:
    """Return bytes: ``100MB``, ``1GB``, ``4096``."""
    found = re.fullmatch(r"([\d.]+)\s*([kMG]?)B?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size")
    return int(float(found[1]) * {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}[found[2]])


class Expected:
    """What was written, counted independently of any reader."""

    def __init__(self, kind: str, ranks: int, seed: int) -> None:
        self.head = {"kind": kind, "ranks": ranks, "seed": seed}
        self.prints: Counter[str] = Counter()  # records written, each rank's: event, layer
        self.norms: dict[str, float] = {}  # sums of the printed norms over all prints
        self.passes: Counter[str] = Counter()  # forward passes: role and phase
        self.captures: dict[str, list[float]] = {}  # phase and layer: count, rms min, rms max
        self.server: Counter[str] = Counter()
        self.accept = [0, 0.0]
        self.faults: Counter[str] = Counter()
        self.lines = 0
        self.bytes = 0
        self.invalid = 0
        self.lives = 0

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        records = sum(self.prints.values()) + sum(self.server.values())
        return {
            **self.head,
            "lives": self.lives,
            "bytes": self.bytes,
            "lines": self.lines,
            "records": records,
            "whole": records - self.faults["torn"],
            "invalid_utf8_bytes": self.invalid,
            "faults": dict(self.faults),
            "debug_records": sum(self.prints.values()),
            "prints": dict(sorted(self.prints.items())),
            "norm_sums": {key: round(total, 4) for key, total in sorted(self.norms.items())},
            "passes": dict(sorted(self.passes.items())),
            "captures": {key: [int(n), low, high] for key, (n, low, high) in sorted(self.captures.items())},
            "server": dict(sorted(self.server.items())),
            "accept_len": {"lines": self.accept[0], "sum": round(self.accept[1], 2)},
        }


class Round:
    """The records one rank prints between two server lines: text, name, norm."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.names: list[str] = []
        self.norms: list[float | None] = []

    def add(self, name: str, text: str, norm: float | None = None) -> None:
        """Append a record."""
        self.texts.append(text)
        self.names.append(name)
        self.norms.append(norm)


class Model:
    """Target and draft: states with norms and heads that fit together."""

    def __init__(self, rnd: random.Random, expected: Expected) -> None:
        self.rnd = rnd
        self.expected = expected
        self.kept = (0.0, "")
        self.batch = 0
        self.values = [repr(half(rnd.gauss(0.0, 0.4))) for _ in range(4096)]

    def head(self) -> str:
        """Return five printed values of a state."""
        return "[" + ", ".join(self.rnd.choices(self.values, k=5)) + "]"

    def norm(self, rows: int, rms: float) -> float:
        """Return a printed norm."""
        return round(math.sqrt(rows * HIDDEN) * rms * self.rnd.uniform(0.9, 1.1), 4)

    def target(self, out: Round, phase: str, rows: int) -> tuple[float, str]:
        """Print a target pass; return norm and head of the joined state."""
        self.expected.passes["target " + phase] += 1
        shape = f"torch.Size([{rows}, {HIDDEN}])"
        total, first = 0.0, ""
        for layer, rms in zip(LAYERS, (0.14, 0.43, 0.6), strict=True):
            norm, head = self.norm(rows, rms), self.head()
            first = first or head
            total += norm * norm
            out.add(
                f"layer_capture {layer}",
                f"EAGLE3_DEBUG[dsv2] layer {layer} capture: shape={shape}, residual_is_none=False, "
                f"norm={norm:.4f}, first5={head}",
                norm,
            )
            size = norm / math.sqrt(rows * HIDDEN)
            seen = self.expected.captures.setdefault(f"{phase} {layer}", [0, size, size])
            seen[:] = [seen[0] + 1, min(seen[1], size), max(seen[2], size)]
        out.add(
            "forward_end",
            f"EAGLE3_DEBUG[dsv2] forward end: num_aux=3, shapes=[{shape}, {shape}, {shape}], hidden_shape={shape}",
        )
        norm = round(math.sqrt(total), 4)
        out.add(
            "aux_concat 3",
            f"EAGLE3_DEBUG[logits] aux concat: num_aux=3, shape=torch.Size([{rows}, {3 * HIDDEN}]), "
            f"capture_hidden_mode=CaptureHiddenMode.FULL, norm={norm:.4f}, first5={first}",
            norm,
        )
        return norm, first

    def draft(self, out: Round, phase: str, rows: int, kept: int, read: tuple[float, str]) -> tuple[float, str]:
        """Print a draft pass that reads a state; return norm and head of its output."""
        self.expected.passes["draft " + phase] += 1
        wide = phase != "decode"
        norm, head = read
        out.add(
            "forward",
            f"EAGLE3_DEBUG[eagle3] forward: hidden_states=torch.Size([{rows}, {3 * HIDDEN if wide else HIDDEN}]), "
            f"embeds=torch.Size([{rows}, {HIDDEN}]), norm={norm:.4f}, first5={head}",
            norm,
        )
        if wide:
            norm, head = self.norm(rows, 0.42), self.head()
            out.add(
                "fc_output",
                f"EAGLE3_DEBUG[eagle3] fc output: shape=torch.Size([{rows}, {HIDDEN}]), norm={norm:.4f}, first5={head}",
                norm,
            )
        norm, head = self.norm(kept, 0.4), self.head()
        mode = "FULL" if phase == "draft_extend" else "LAST"
        out.add(
            "aux_concat 1",
            f"EAGLE3_DEBUG[logits] aux concat: num_aux=1, shape=torch.Size([{kept}, {HIDDEN}]), "
            f"capture_hidden_mode=CaptureHiddenMode.{mode}, norm={norm:.4f}, first5={head}",
            norm,
        )
        return norm, head

    def extend(self, out: Round, rows: int) -> None:
        """Print what a prefill of ``rows`` tokens prints."""
        self.kept = self.draft(out, "extend", rows, 1, self.target(out, "extend", rows))
        self.batch = 1

    def verify(self, out: Round, batch: int) -> None:
        """Print a round of speculation for a batch of requests: the draft's steps, the verify, the draft's extend."""
        read = self.kept
        if batch != self.batch or self.rnd.random() < 0.7:
            # Another row of what the draft kept, or rows of several batches.
            read = (self.norm(batch, 0.4), self.head())
        for _ in range(STEPS - 1):
            read = self.draft(out, "decode", batch, batch, read)
        rows = TOKENS * batch
        _, head = self.draft(out, "draft_extend", rows, rows, self.target(out, "verify", rows))
        self.kept = (self.norm(batch, 0.4), head)
        self.batch = batch


class Log:
    """Writes lives of a server into a file until it has its size."""

    def __init__(self, file: BinaryIO, size: int, kind: str, ranks: int, seed: int) -> None:
        self.rnd = random.Random(seed)
        self.file = file
        self.size = size
        self.ranks = ranks
        self.debug, self.decode, self.prefill, self.requests = SHARES[kind]
        self.fault_rate = FAULTS[kind]
        self.expected = Expected(kind, ranks, seed)
        self.model = Model(self.rnd, self.expected)
        self.second = 0.0
        self.style = "plain"
        self.orders = {}
        self.owed = 0.0  # other lines to be written so that the shares are right
        self.due = [0.0, 0.0]  # of them decode, requests

    def time(self) -> str:
        """Return the time of a line, which passes as lines are written."""
        minutes, seconds = divmod(int(self.second), 60)
        hours, minutes = divmod(minutes, 60)
        return f"2026-02-{10 + hours // 24:02d} {hours % 24:02d}:{minutes:02d}:{seconds:02d}"

    def outer(self, rank: int) -> str:
        """Return what the life's surroundings put before every line of a process."""
        return {
            "compose": "sglang-1  | ",
            "pod": "[pod/eagle-0/sglang] ",
            "actor": f"(SchedulerActor pid={41000 + rank}, ip=192.0.2.7) ",
        }.get(self.style, "")

    def order(self, count: int) -> list[tuple[int, int]]:
        """Return (record, rank) in one of the orders in which ranks a few records apart print ``count`` records."""
        known = self.orders.setdefault(count, [])
        if len(known) < 64:
            done = [0] * self.ranks
            order = []
            while min(done) < count:
                least = min(done)
                rank = self.rnd.randrange(self.ranks)
                if done[rank] < count and done[rank] <= least + 6:
                    order.append((done[rank], rank))
                    done[rank] += 1
            known.append(order)
            return order
        return self.rnd.choice(known)

    def prints(self, made: Round) -> list[str]:
        """Return the lines of all ranks, interleaved."""
        expected = self.expected
        for name, norm in zip(made.names, made.norms, strict=True):
            expected.prints[name] += self.ranks
            if norm is not None:
                expected.norms[name] = expected.norms.get(name, 0.0) + norm * self.ranks
        texts = made.texts
        if self.style == "plain":
            return [texts[record] for record, _ in self.order(len(texts))]
        if self.style == "stamped":
            before = [f"[{self.time()} TP{rank}] " for rank in range(self.ranks)]
        else:
            before = [self.outer(rank) for rank in range(self.ranks)]
        return [before[rank] + texts[record] for record, rank in self.order(len(texts))]

    def said(self, text: str, event: str | None = None) -> str:
        """Return a server line."""
        if event is not None:
            self.expected.server[event] += 1
        return f"{self.outer(0)}[{self.time()}{' TP0' if self.style == 'stamped' else ''}] {text}"

    def decode_line(self, batch: int) -> str:
        """Return a ``Decode batch`` line whose rate fits its length."""
        accepted = round(self.rnd.uniform(1.2, 3.4), 2)
        self.expected.accept[0] += 1
        self.expected.accept[1] += accepted
        return self.said(
            f"Decode batch, #running-req: {batch}, #token: {self.rnd.randrange(90000)}, token usage: "
            f"{self.rnd.random():.2f}, accept len: {accepted:.2f}, accept rate: {(accepted - 1) / (TOKENS - 1):.2f}, "
            f"cuda graph: False, gen throughput (token/s): {self.rnd.uniform(50, 900):.2f}, #queue-req: "
            f"{self.rnd.randrange(9)}",
            "decode_stats",
        )

    def prefill_line(self, rows: int) -> str:
        """Return a ``Prefill batch`` line."""
        return self.said(
            f"Prefill batch, #new-seq: 1, #new-token: {rows}, #cached-token: {self.rnd.randrange(500)}, token usage: "
            f"{self.rnd.random():.2f}, #running-req: {self.rnd.randrange(8)}, #queue-req: {self.rnd.randrange(9)}, "
            f"#pending-token: 0, cuda graph: False, input throughput (token/s): {self.rnd.uniform(50, 9000):.2f}",
            "prefill_stats",
        )

    def request_line(self) -> str:
        """Return an access line."""
        port = self.rnd.randrange(30000, 60000)
        return self.said(f'INFO:     127.0.0.1:{port} - "POST /generate HTTP/1.1" 200 OK', "http_access")

    def plain_line(self) -> str:
        """Return a line without a record."""
        rnd = self.rnd
        text = rnd.choice(_PLAIN)
        if rnd.random() < 0.01:
            bars = rnd.randrange(2, 9)
            text = "\r".join(f"Capturing batches: {10 * k}%|{'█' * k}| {k}/10" for k in range(bars))
        r = rnd.randrange(8)
        return self.outer(0) + text.format(
            t=f"[{self.time()}]", r=r, q=7 - r, n=rnd.randrange(100, 999), m=rnd.randrange(1 << 20)
        )

    def fault(self, lines: list[str]) -> list[str]:
        """Damage some lines."""
        faults = self.expected.faults
        rnd = self.rnd
        for at in range(len(lines) - 2, -1, -1):
            if rnd.random() >= self.fault_rate:
                continue
            line = lines[at]
            begin = line.find("EAGLE3_DEBUG")
            if begin < 0:
                # Bytes of no character, as the surrogates that stand for them.
                kind = rnd.choice(("invalid", "colour", "return"))
                if "batch" in line or "INFO:     " in line or not line:
                    continue
                faults[kind] += 1
                if kind == "invalid":
                    lines[at] = line + " \udcff\udc80"
                    self.expected.invalid += 2
                else:
                    lines[at] = f"\x1b[33m{line}\x1b[0m" if kind == "colour" else f"\r{line}"
            elif "EAGLE3_DEBUG" in lines[at + 1] and rnd.random() < 0.5:
                faults["glued"] += 1
                lines[at : at + 2] = [line + lines[at + 1]]
            else:
                faults["torn"] += 1
                cut = rnd.randrange(begin + 20, len(line) - 1)
                later = rnd.random() < 0.5
                lines[at : at + 2] = [
                    line[:cut],
                    *([lines[at + 1], line[cut:]] if later else [line[cut:], lines[at + 1]]),
                ]
        return lines

    def write(self, lines: list[str]) -> None:
        """Write lines."""
        if self.fault_rate:
            lines = self.fault(lines)
        text = "\n".join(lines) + "\n"
        data = text.encode("utf-8", "surrogateescape")
        self.file.write(data)
        self.expected.bytes += len(data)
        self.expected.lines += len(lines)
        self.second += 0.05

    def begin(self) -> None:
        """Write the first lines of a life."""
        self.expected.lives += 1
        args = (
            f"server_args=ServerArgs(model_path='/models/target', tp_size={self.ranks}, dp_size=1, "
            "speculative_algorithm='EAGLE3', speculative_draft_model_path='/models/draft', "
            f"speculative_num_steps={STEPS}, speculative_eagle_topk=1, speculative_num_draft_tokens={TOKENS}, "
            "decode_log_interval=1, disable_cuda_graph=True)"
        )
        lines = [
            self.said(args, "server_args"),
            self.said("Load weight begin. avail mem=79.10 GB", "load_weight_begin"),
        ]
        lines.append(self.said("The server is fired up and ready to roll!", "ready"))
        faults, self.fault_rate = self.fault_rate, 0.0
        self.write(lines)
        self.fault_rate = faults

    def round(self, number: int) -> None:
        """Write one round: records of all ranks, and other lines among them."""
        rnd = self.rnd
        lines: list[str] = []
        after: list[str] = []
        batch = rnd.choice((1, 1, 2, 4, 8))
        if self.debug:
            made = Round()
            if number == 0 or rnd.random() < 0.08:
                rows = rnd.randrange(5, 300)
                self.model.extend(made, rows)
                after.append(self.prefill_line(rows))
            else:
                self.model.verify(made, batch)
            lines = self.prints(made)
            total = len(lines) / self.debug
        else:
            total = 100.0
            after += [self.prefill_line(rnd.randrange(5, 300)) for _ in range(int(100 * self.prefill))]
        self.owed += total - len(lines)
        self.due[0] += total * self.decode
        self.due[1] += total * self.requests
        others: list[str] = []
        while self.due[1] >= 1:
            self.due[1] -= 1
            others.append(self.request_line())
        while self.due[0] >= 1:
            self.due[0] -= 1
            after.append(self.decode_line(batch))
        plain = int(self.owed) - len(others) - len(after)
        others += [self.plain_line() for _ in range(max(0, plain))]
        self.owed -= len(others) + len(after)
        if self.debug >= 0.5:
            for line in others:
                lines.insert(rnd.randrange(len(lines) + 1), line)
        else:
            rnd.shuffle(others)
            lines = others[::2] + lines + others[1::2]
        self.write(lines + after)

    def run(self) -> Expected:
        """Write the log."""
        life = max(LIFE_BYTES, self.size // len(STYLES))
        while self.expected.bytes < self.size:
            self.style = STYLES[self.expected.lives % len(STYLES)]
            until = min(self.size, self.expected.bytes + life)
            self.begin()
            number = 0
            while self.expected.bytes < until:
                self.round(number)
                number += 1
        return self.expected


def generate(path: Path, size: int, kind: str = "dense", ranks: int = 8, seed: int = 1) -> dict[str, object]:
    """Write a log of about ``size`` bytes and what to expect of it; return the latter."""
    with path.open("wb", buffering=1 << 20) as file:
        expected = Log(file, size, kind, ranks, seed).run().as_dict()
    Path(f"{path}.expected.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")
    return expected


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--size", type=size_of, default=10**8)
    parser.add_argument("--kind", choices=sorted(SHARES), default="dense")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    expected = generate(options.log, options.size, options.kind, options.ranks, options.seed)
    print(f"{options.log}: {expected['bytes']:,} bytes, {expected['lines']:,} lines, {expected['records']:,} records")


if __name__ == "__main__":
    main()
