"""Logs of a simulated server: real small tensors, rounded to bfloat16, printed as the debug prints do.

Everything a healthy server keeps to holds by construction: a join is its captures side by side, the draft reads it, a
norm is that of the whole tensor, first values are those of row 0. A fault is a changed tensor, never a changed text.
"""

from __future__ import annotations

import math
import random
import struct

HIDDEN = 64


def bf16(value):
    """Return a number as bfloat16 holds it."""
    bits = struct.unpack(">I", struct.pack(">f", value))[0]
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return struct.unpack(">f", struct.pack(">I", bits))[0]


class Tensor:
    """Rows of numbers."""

    def __init__(self, rows):
        self.rows = rows

    @classmethod
    def random(cls, chance, rows, scale=1.0, width=HIDDEN):
        """Return rows of normal numbers."""
        return cls([[bf16(chance.gauss(0, scale)) for _ in range(width)] for _ in range(rows)])

    def __len__(self):
        return len(self.rows)

    def __mul__(self, factor):
        return Tensor([[bf16(value * factor) for value in row] for row in self.rows])

    @property
    def size(self):
        """The shape as torch prints it."""
        return f"torch.Size([{len(self.rows)}, {len(self.rows[0])}])"

    def __str__(self):
        norm = math.sqrt(sum(value * value for row in self.rows for value in row))
        return f"norm={norm:.4f}, first5=[{', '.join(repr(value) for value in self.rows[0][:5])}]"


def join(states):
    """Return states side by side."""
    return Tensor([[value for state in states for value in state.rows[row]] for row in range(len(states[0]))])


class Server:
    """A server that prints; ``lines`` is its log."""

    def __init__(self, seed=0, *, layers=(3, 31, 59), steps=3, tokens=4, topk=1, version="v2", args=True):
        self.chance = random.Random(seed)
        self.layers, self.steps, self.tokens, self.topk, self.version = layers, steps, tokens, topk, version
        self.lines = []
        self.seconds = 0
        if args:
            self.say(
                "server_args=ServerArgs(model_path='/models/target', tp_size=1, speculative_algorithm='EAGLE3', "
                f"speculative_num_steps={steps}, speculative_eagle_topk={topk}, speculative_num_draft_tokens={tokens}, "
                "disable_cuda_graph=True, decode_log_interval=40, nsa_decode_backend='flashmla')"
            )
            self.say("The server is fired up and ready to roll!")

    def say(self, text):
        """Print a line of the server."""
        self.seconds += 1
        self.lines.append(f"[2026-03-02 10:{self.seconds // 60:02d}:{self.seconds % 60:02d}] {text}")

    def states(self, rows, count=None):
        """Return fresh states, larger from layer to layer."""
        return [Tensor.random(self.chance, rows, 0.3 * (at + 1)) for at in range(count or len(self.layers))]

    def target(self, rows, states=None, joined=None, *, layers=None, mode="FULL"):
        """Print a target pass; return what it joined."""
        states = states or self.states(rows)
        joined = joined or join(states)
        kept = joined if mode == "FULL" else Tensor(joined.rows[-1:])
        count = len(joined.rows[0]) // HIDDEN
        for layer, state in zip(layers or self.layers, states, strict=True):
            self.lines.append(
                f"EAGLE3_DEBUG[dsv2] layer {layer} capture: shape={state.size}, residual_is_none=False, {state}"
            )
        sizes = ", ".join([states[0].size] * count)
        self.lines += [
            f"EAGLE3_DEBUG[dsv2] forward end: num_aux={count}, shapes=[{sizes}], hidden_shape={states[0].size}",
            f"EAGLE3_DEBUG[logits] aux concat: num_aux={count}, shape={kept.size}, "
            f"capture_hidden_mode=CaptureHiddenMode.{mode}, {kept}",
        ]
        return kept

    def draft(self, read, *, keeps=1, mode="LAST"):
        """Print a draft pass that reads a state."""
        rows = len(read)
        out = Tensor.random(self.chance, rows if mode == "FULL" else keeps, 0.3)
        self.lines.append(
            f"EAGLE3_DEBUG[eagle3] forward: hidden_states={read.size}, embeds=torch.Size([{rows}, {HIDDEN}]), {read}"
        )
        if len(read.rows[0]) != HIDDEN:
            combined = Tensor.random(self.chance, rows, 0.4)
            self.lines.append(f"EAGLE3_DEBUG[eagle3] fc output: shape={combined.size}, {combined}")
        self.lines.append(
            f"EAGLE3_DEBUG[logits] aux concat: num_aux=1, shape={out.size}, "
            f"capture_hidden_mode=CaptureHiddenMode.{mode}, {out}"
        )

    def extend(self, rows, **options):
        """Print a prefill: the target's extend and the draft's."""
        self.draft(self.target(rows, **options))
        self.say(f"Prefill batch, #new-seq: 1, #new-token: {rows}, #cached-token: 0, token usage: 0.00")

    def round(self, read=None, requests=1, **options):
        """Print one round: draft steps, verify, and the draft after it. ``read`` changes what the draft is given."""
        for _ in range(self.steps - 1):
            self.draft(Tensor.random(self.chance, requests * self.topk, 0.3), keeps=requests * self.topk)
        joined = self.target(self.tokens * requests, **options)
        given = read(joined) if read is not None else self.kept(joined)
        self.draft(given, keeps=requests, mode="FULL" if self.version == "v2" else "LAST")
        return joined

    def kept(self, joined):
        """Return what a healthy server gives the draft after a verify."""
        if self.version == "v1":
            ends = [start + self.chance.randint(1, self.steps + 1) for start in range(0, len(joined), self.tokens)]
            starts = range(0, len(joined), self.tokens)
            return Tensor([joined.rows[row] for start, end in zip(starts, ends, strict=True)
                           for row in range(start, min(end, start + self.tokens))])  # fmt: skip
        if self.topk > 1 and self.chance.random() < 0.5:
            # Accepted rows move to the front of each request's block; the rows they leave stay as they are.
            rows = [*joined.rows]
            for start in range(0, len(rows), self.tokens):
                rows[start + 1] = joined.rows[start + self.chance.randint(1, self.tokens - 1)]
            return Tensor(rows)
        return joined

    def decode(self, length):
        """Print a statistics line."""
        rate = (length - 1) / (self.tokens - 1)
        self.say(
            f"Decode batch, #running-req: 1, #token: 100, token usage: 0.01, accept len: {length:.2f}, "
            f"accept rate: {rate:.2f}, cuda graph: False, gen throughput (token/s): 95.10, #queue-req: 0"
        )

    def serve(self, requests=3):
        """Print some requests of random size, one to three at a time."""
        for _ in range(requests):
            self.extend(self.chance.choice([1, 3, self.tokens, 2 * self.tokens, 17]))
            together = self.chance.choice([1, 1, 2, 3])
            for _ in range(self.chance.randint(1, 5)):
                self.round(requests=together)
            self.decode(1.9)
        return self
