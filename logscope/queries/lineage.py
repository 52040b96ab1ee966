"""Where a state came from: which captures were joined, and which joined state the draft read.

This module is responsible for the identities of a healthy run, as measured on real servers, as pure comparisons
of printed values, and for following them through a run pass by pass. It must not judge: whether a broken identity is a
fault is for the rules to say.

* A joined state is its captures side by side, so ``norm(join)^2 = sum of norm(capture)^2`` and the first printed values
  are those of the lowest captured layer.
* After a target pass the draft reads the joined state: all of it (equal norm and equal first values), the same rows in
  another order (topk above 1: equal first values only), or the accepted rows alone (fewer rows: equal first values,
  unless request 0 has just finished).

Values are compared at the coarser of the two prints: a tensor printed with four decimals equals the exact one.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from logscope.model import CAPTURE_EVENTS, Place, num_aux

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from logscope.model import ForwardPass, Payload, Record

# Relative slack of norm(join)^2 against the sum; the worst healthy value measured was 1.3e-6 (bf16 sums on a GPU).
JOIN_TOLERANCE = 5e-6
# How many joined states are remembered, to say *which* earlier one a stale input equals.
REMEMBERED = 4

How: TypeAlias = Literal["norm and head", "norm", "head"]


def close(one: float, other: float, slack: float) -> bool:
    """Return whether two printed values may be the same number; nan equals nan, inf equals inf."""
    if one == other:
        return True
    if one != one or other != other:
        return one != one and other != other
    gap = abs(one - other)
    # The last term allows for the binary form of a decimal half; no slack makes inf and another value one.
    return gap < math.inf and gap <= slack + 1e-12 * abs(one)


def same_norm(one: Payload, other: Payload) -> bool | None:
    """Return whether two norms agree at the coarser print; None when one is not printed."""
    if one.norm is None or other.norm is None:
        return None
    return close(one.norm, other.norm, one.norm_resolution + other.norm_resolution)


def same_head(one: Payload, other: Payload) -> bool | None:
    """Return whether the first values agree, as far as both are printed, at the coarser print; None when one is not."""
    if not one.head or not other.head:
        return None
    if one.head_resolution is None and other.head_resolution is None and one.head == other.head:
        return True  # the usual case, and the fast one
    length = min(len(one.head), len(other.head))
    slack = (0.0,) * length
    mine = one.head_resolution or slack
    theirs = other.head_resolution or slack
    return all(
        close(a, b, fine + coarse)
        for a, b, fine, coarse in zip(one.head, other.head, mine, theirs, strict=False)  # different lengths are normal
    )


class Identity(NamedTuple):
    """How a joined state relates to the captures of its pass.

    holds
        norm(join)^2 equals the sum over ``joined`` within ``tolerance``; None when a norm is missing or not finite.
    residual, tolerance
        relative to norm(join)^2.
    joined
        the captures whose sum it is: all of them, or the only subset of the right size that fits.
    head_of
        the capture whose first values the join begins with; None when none does or heads are not printed.
    head_holds
        whether that is the lowest of the joined captures; None when heads are not printed.
    """

    holds: bool | None
    residual: float | None
    tolerance: float
    joined: tuple[Record, ...]
    head_of: Record | None
    head_holds: bool | None


def identity(captures: Sequence[Record], join: Payload, num_aux: int | None = None) -> Identity:
    """Compare a joined state with the captures of its pass, in printed order (which is layer order).

    ``num_aux`` is the number of states that were joined, where printed. More captures than that: the subset whose
    norms fit is looked for, so that a state that is captured but not joined is seen.
    """
    joined = tuple(captures)
    holds, residual, tolerance = _sum_of_squares(joined, join)
    if holds is False and num_aux is not None and 0 < num_aux < len(joined) <= 8:
        fits = [some for some in combinations(joined, num_aux) if _sum_of_squares(some, join)[0]]
        if len(fits) == 1:
            joined = fits[0]
            holds, residual, tolerance = _sum_of_squares(joined, join)
    head_holds = same_head(joined[0].first[3], join) if joined else None
    head_of: Record | None = None
    if head_holds:
        head_of = joined[0]
    elif head_holds is False:
        head_of = next((record for record in captures if same_head(record.first[3], join)), None)
    return Identity(holds, residual, tolerance, joined, head_of, head_holds)


def _sum_of_squares(captures: Sequence[Record], join: Payload) -> tuple[bool | None, float | None, float]:
    """Return (holds, relative residual, relative tolerance) of norm(join)^2 = SUM norm(capture)^2."""
    norm = join.norm
    if norm is None or not captures or not math.isfinite(norm) or norm <= 0:
        return None, None, JOIN_TOLERANCE
    whole = norm * norm
    if not whole:
        # A norm below 1e-162 has no square.
        return None, None, JOIN_TOLERANCE
    total = 0.0
    slack = 2 * norm * join.norm_resolution
    for record in captures:
        payload = record.first[3]
        one = payload.norm
        if one is None or not math.isfinite(one) or not payload.usable:
            return None, None, JOIN_TOLERANCE
        total += one * one
        slack += 2 * one * payload.norm_resolution
    tolerance = JOIN_TOLERANCE + slack / whole
    residual = total / whole - 1
    return abs(residual) <= tolerance, residual, tolerance


class Trace(NamedTuple):
    """Where one k x hidden input of the draft came from.

    how
        what agrees with the joined state before it; None: nothing, or it cannot be told.
    traced
        True: it is that state. False: it is another. None: cannot be told, see ``reason``.
    rows_kept
        (rows read, rows joined) when fewer rows were kept.
    passes_ago
        for an untraced input: it equals the joined state this many target passes earlier (1 = the one before the last).
    source
        where the joined state stands that an untraced input was compared with.
    reason
        in words, for what is not traced or cannot be told.
    """

    how: How | None
    traced: bool | None
    rows_kept: tuple[int, int] | None = None
    passes_ago: int | None = None
    source: Place | None = None
    reason: str | None = None


# By far the most common traces, made once.
_TRACED: dict[How, Trace] = {how: Trace(how, traced=True) for how in ("norm and head", "norm", "head")}


def reads_target(item: ForwardPass) -> bool:
    """Return whether a draft pass reads the target's joined state, not the draft's own output.

    Extend and draft_extend do; where the phase is unknown, a pass that ran its fc does.
    """
    if item.phase == "unknown":
        return item.first_of("fc_output", "fc") is not None
    return item.phase in ("extend", "draft_extend")


class Follower:
    """Follows one writer group through a run and traces every k x hidden input of the draft (extend, draft_extend)."""

    __slots__ = ("_fresh", "_joins")

    def __init__(self) -> None:
        self._joins: deque[tuple[Payload, ForwardPass]] = deque(maxlen=REMEMBERED)
        self._fresh = False

    def target(self, item: ForwardPass) -> None:
        """Remember the joined state of a target pass, if it prints one."""
        self.joined(item, item.join)

    def joined(self, item: ForwardPass, join: Record | None) -> None:
        """Do the same for a caller who has found the joined state already."""
        # Where it is not printed, comparing the next input with an older one would blame the run.
        self._fresh = join is not None
        if join is not None:
            self._joins.appendleft((join.first[3], item))

    def draft(self, item: ForwardPass, topk: int | None) -> Trace | None:
        """Trace the input of a draft pass; None for one that reads the draft's own output (decode) or prints none."""
        read = item.input
        return None if read is None or not reads_target(item) else self.read(read.first[3], topk)

    def read(self, payload: Payload, topk: int | None) -> Trace:
        """Trace an input that should be the target's joined state."""
        if not self._joins:
            return Trace(None, None, reason="no joined state is printed before it")
        if not self._fresh:
            return Trace(None, None, reason="no joined state is printed since the input before it")
        self._fresh = False
        join, origin = self._joins[0]
        how = _agreement(payload, join, topk)
        kept = None
        if payload.rows is not None and join.rows is not None and payload.rows < join.rows:
            kept = (payload.rows, join.rows)
        if how is not None:
            return _TRACED[how] if kept is None else Trace(how, traced=True, rows_kept=kept)
        if same_head(payload, join) is None and (kept is not None or same_norm(payload, join) is None):
            return Trace(None, None, kept, source=origin.place, reason="too little of it is printed to compare")
        ago = next((at for at, (older, _) in enumerate(self._joins) if at and _agreement(payload, older, topk)), None)
        reason = _difference(payload, join)
        return Trace(None, traced=False, rows_kept=kept, passes_ago=ago, source=origin.place, reason=reason)


def _agreement(read: Payload, join: Payload, topk: int | None) -> How | None:
    """Return what shows that a draft input is this joined state, or None."""
    if read.width != join.width:
        return None
    head = same_head(read, join)
    if head is False:
        return None
    if read.rows == join.rows:
        norm = same_norm(read, join)
        if norm and head:
            return "norm and head"
        if norm and head is None:
            return "norm"
        # With topk above 1 the accepted rows are moved to the front of each block: row 0 stays, the norm may not.
        return "head" if head and (norm is None or topk is None or topk > 1) else None
    if read.rows is not None and join.rows is not None and read.rows > join.rows:
        return None
    return "head" if head else None


def _difference(read: Payload, join: Payload) -> str:
    """Say in words how a draft input differs from the joined state before it."""
    if read.width != join.width:
        return f"width {read.width} against {join.width}"
    if read.rows is not None and join.rows is not None and read.rows > join.rows:
        return f"{read.rows} rows read, {join.rows} rows joined"
    if same_head(read, join) is False:
        return "the first values differ"
    return f"norm {read.norm} against {join.norm}"


@dataclass(slots=True, eq=False)
class Joins:
    """The joined states of one kind of target pass against their captures, added up."""

    passes: int = 0
    warmup: int = 0
    norms: int = 0
    norms_hold: int = 0
    worst: float = 0.0
    first_norm_off: Place | None = None
    heads: int = 0
    heads_hold: int = 0
    first_head_off: Place | None = None
    # layers that were joined -> passes; only where the norms show it
    joined: dict[tuple[int | None, ...], int] = field(default_factory=dict)
    # where the head is not that of the lowest capture: layer whose head it is -> passes
    heads_of: dict[int | str | None, int] = field(default_factory=dict)

    def add(self, found: Identity, place: Place) -> None:
        """Take one joined state."""
        self.passes += 1
        if found.holds is not None:
            self.norms += 1
            if found.residual is not None:
                self.worst = max(self.worst, abs(found.residual))
            if found.holds:
                self.norms_hold += 1
                layers = tuple([record.first[3].layer for record in found.joined])
                self.joined[layers] = self.joined.get(layers, 0) + 1
            elif self.first_norm_off is None:
                self.first_norm_off = place
        if found.head_holds is not None:
            self.heads += 1
            if found.head_holds:
                self.heads_hold += 1
            else:
                layer = found.head_of.first[3].layer if found.head_of is not None else "none"
                self.heads_of[layer] = self.heads_of.get(layer, 0) + 1
                if self.first_head_off is None:
                    self.first_head_off = place


@dataclass(slots=True, eq=False)
class Inputs:
    """The inputs of one kind of draft pass against the state they should come from, added up.

    ``own``: they should come from the draft's own output (decode), not from the target.
    """

    own: bool = False
    inputs: int = 0
    warmup: int = 0
    by: dict[How, int] = field(default_factory=dict)
    not_traced: int = 0
    first_not_traced: Place | None = None
    first_source: Place | None = None
    # of the untraced ones
    fewer_rows: int = 0
    stale: dict[int, int] = field(default_factory=dict)
    cannot_tell: int = 0
    cannot_tell_why: dict[str, int] = field(default_factory=dict)

    @property
    def traced(self) -> int:
        """How many are the state they should be."""
        return sum(self.by.values())

    @property
    def explained(self) -> bool:
        """True when what is not traced is what spec v1 does: of accepted rows alone, row 0 is another request's.

        That happens where request 0 has just finished, so in a minority of passes.
        """
        return self.fewer_rows == self.not_traced and 2 * self.not_traced <= self.told

    @property
    def told(self) -> int:
        """How many could be compared at all."""
        return self.traced + self.not_traced

    def add(self, trace: Trace, place: Place) -> None:
        """Take one input."""
        self.inputs += 1
        if trace.how is not None:
            self.by[trace.how] = self.by.get(trace.how, 0) + 1
        elif trace.traced is None:
            self.cannot_tell += 1
            why = trace.reason or ""
            self.cannot_tell_why[why] = self.cannot_tell_why.get(why, 0) + 1
        else:
            self.not_traced += 1
            if self.first_not_traced is None:
                self.first_not_traced, self.first_source = place, trace.source
            self.fewer_rows += trace.rows_kept is not None
            if trace.passes_ago is not None:
                self.stale[trace.passes_ago] = self.stale.get(trace.passes_ago, 0) + 1


class Lineage:
    """The fold over forward passes: what was joined, and what the draft read.

    ``joins`` and ``inputs`` are keyed by (file, segment, group, phase). Decode inputs stand in ``inputs`` too, compared
    with the draft's own last output. The identities hold for every real pass: those of the warm-up request are
    included (and counted in ``warmup``), the dummy passes of graph capture are not.
    """

    __slots__ = ("_followers", "_outputs", "inputs", "joins")

    def __init__(self) -> None:
        self._followers: dict[tuple[Any, ...], Follower] = {}
        self._outputs: dict[tuple[Any, ...], Payload] = {}
        self.joins: dict[tuple[Any, ...], Joins] = {}
        self.inputs: dict[tuple[Any, ...], Inputs] = {}

    def see(self, item: ForwardPass, topk: int | None) -> None:
        """Take one pass; ``topk`` is that of its segment, None when not known."""
        during = item.during
        if during == "graph_capture":
            return
        where = (item.file, item.segment, item.group)
        follower = self._followers.get(where)
        if follower is None:
            follower = self._followers[where] = Follower()
        key = (*where, item.phase)
        captures: list[Record] = []
        join: Record | None = None
        read: Record | None = None
        has_fc = False
        # One walk instead of one for each question: this runs for every pass of a gigabyte.
        for record in item.records:
            payload = record.first[3]
            event = payload.event
            if event in CAPTURE_EVENTS:
                captures.append(record)
            elif event == "aux_concat":
                if join is None and payload.usable:
                    join = record
            elif event == "forward":
                if read is None and payload.usable:
                    read = record
            elif event in ("fc_output", "fc"):
                has_fc = True
        phase = item.phase
        if item.role == "target":
            follower.joined(item, join)
            if join is not None and captures and item.complete:
                payload = join.first[3]
                joins = self.joins.get(key)
                if joins is None:
                    joins = self.joins[key] = Joins()
                joins.add(identity(captures, payload, num_aux(payload)), Place(item.file, join.line))
                joins.warmup += during != "serving"
            return
        own = phase == "decode"
        if read is not None and (own or phase in ("extend", "draft_extend") or (phase == "unknown" and has_fc)):
            payload = read.first[3]
            trace = _own(payload, self._outputs.get(where)) if own else follower.read(payload, topk)
            inputs = self.inputs.get(key)
            if inputs is None:
                inputs = self.inputs[key] = Inputs(own)
            inputs.add(trace, Place(item.file, read.line))
            inputs.warmup += during != "serving"
        if join is not None:
            self._outputs[where] = join.first[3]


def _own(read: Payload, output: Payload | None) -> Trace:
    """Compare a decode input with the draft's last output: it is a row of it, and only row 0 is printed."""
    if output is None:
        return Trace(None, None, reason="no output of the draft is printed before it")
    if same_head(read, output):
        same = read.rows == output.rows and same_norm(read, output)
        return _TRACED["norm and head" if same else "head"]
    if not read.head or not output.head:
        if read.rows == output.rows and same_norm(read, output):
            return _TRACED["norm"]
        return Trace(None, None, reason="too little of it is printed to compare")
    return Trace(None, None, reason="it is another row of the draft's output than the printed one")
