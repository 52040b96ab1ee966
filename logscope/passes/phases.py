"""The phase of every forward pass, with how it is known: what is printed, the order, the rows, server lines.

This module is responsible for :class:`Learned` (what the passes of one scheduler have shown so far) and for
:func:`label`: a table of rules over the columns of passes and of those before and behind them; the first that holds
decides. It must not know how records are read or gathered. With several draft steps a server runs::

    extend -> draft extend -> (draft decode)* -> verify -> draft_extend -> (draft decode)* -> verify -> ...

Every verify directly follows a draft decode and no extend does. With one step there is no draft decode, and what
follows decides: a draft pass that keeps all rows (FULL) follows a verify of spec v2, one that keeps a row a request
(LAST) an extend. What none of the rules decides is unknown, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from logscope.model import PHASES, Evidence
from logscope.passes.cut import DRAFT, NONE, TARGET
from logscope.passes.segments import ANY, MOST_DRAFT_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logscope.model import Payload, Phase
    from logscope.passes.segments import Lives

EXTEND, DECODE, VERIFY, DRAFT_EXTEND, IDLE, UNKNOWN = (PHASES.index(p) for p in
    ("extend", "decode", "verify", "draft_extend", "idle", "unknown"))  # fmt: skip
PRINTED, ROWS, ORDER, SERVER, NOTHING = (get_args(Evidence).index(e) for e in
    ("printed", "rows", "order", "server", "none"))  # fmt: skip
# How the output of a draft pass was kept.
LAST, FULL = 1, 2
# SGLang's names of forward modes, and what patches make of them. Numbers are never read: they changed between versions.
MODE_NAMES: dict[str, Phase] = {
    "extend": "extend", "mixed": "extend", "prefill": "extend", "split_prefill": "extend", "decode": "decode",
    "verify": "verify", "target_verify": "verify", "draft_extend": "draft_extend", "draft_extend_v2": "draft_extend",
    "idle": "idle",
}  # fmt: skip
_MODE_KEYS = frozenset({"forward_mode", "mode", "phase", "fmode", "forward_batch_mode"})
# A Prefill line stands before its extend, or up to so many target passes behind its beginning.
REACH = 3
# Where no draft prints, so many passes behind one show where Prefill lines usually stand.
AHEAD = 64
# Passes that show how a server drafts, whatever they show.
ENOUGH = 128


def printed_phase(payload: Payload) -> int:
    """Return the phase a record itself names in a field like ``forward_mode=ForwardMode.TARGET_VERIFY``, or -1."""
    for key, value in payload.fields.items():
        if key in _MODE_KEYS and isinstance(value, str):
            phase = MODE_NAMES.get(value.rsplit(".", 1)[-1].strip("<>: 0123456789").lower())
            if phase is not None:
                return PHASES.index(phase)
    return NONE


class Shown(NamedTuple):
    """What passes of one scheduler show, in order, as columns (-1: not known)."""

    role: np.ndarray
    rows: np.ndarray
    wide: np.ndarray
    join_rows: np.ndarray
    mode: np.ndarray  # number of the capture_hidden_mode as printed, in Learned.modes
    read: np.ndarray  # whether it prints its input
    printed: np.ndarray
    region: np.ndarray  # number of the graph that is captured
    fresh: np.ndarray  # the first that is served after a start-up
    offset: np.ndarray
    steps: np.ndarray
    tokens: np.ndarray
    doubt: np.ndarray  # its records may be other passes'

    def part(self, rows: Any) -> Shown:
        """Return some of them."""
        return Shown(*(column[rows] for column in self))


@dataclass(slots=True)
class Learned:
    """What the passes of one scheduler have shown so far.

    apart
        whether several writers print: lines of one then slip against passes of another.
    drafts, decodes, wide
        draft passes; one directly behind another (several draft steps, printed); one that reads several states.
    version, why
        ``v2`` when a verify is followed by a draft pass with all rows, ``v1`` when by the accepted rows only.
    verify_rows
        greatest common divisor of the rows of all verifies known by order: draft tokens divide it.
    captured_rows
        the most rows of a target pass that was captured into a graph: smaller verifies are replayed and print nothing.
    modes, last, full
        modes as printed, and which were seen to keep a row a request, or all rows (a number means nothing before).
    extends_said, extends_unsaid
        extends known by their rows that were, or were not, followed by their Prefill line.
    shares
        how often rows of a target pass were so many times the rows its draft pass kept.
    """

    apart: bool = False
    targets: int = 0
    drafts: int = 0
    decodes: bool = False
    wide: bool = False
    version: str | None = None
    why: str | None = None
    verify_rows: int = 0
    captured_rows: int = 0
    captured_drafts: bool = False
    modes: dict[str, int] = field(default_factory=lambda: {"LAST": LAST, "FULL": FULL})
    last: set[int] = field(default_factory=lambda: {LAST})
    full: set[int] = field(default_factory=lambda: {FULL})
    extends_said: int = 0
    extends_unsaid: int = 0
    shares: dict[int, int] = field(default_factory=dict)

    @property
    def settled(self) -> bool:
        """Whether enough was seen to label passes one by one: later ones add to it, and take nothing back."""
        many = self.drafts > 0 and self.targets + self.drafts >= ENOUGH
        return many or (self.decodes and self.version is not None)

    def kept(self, of: Shown) -> np.ndarray:
        """Return how each pass kept its output: FULL (all rows), LAST (a row a request), 0: cannot be told."""
        fewer = (of.join_rows >= 0) & (of.rows >= 0) & (of.join_rows < of.rows)
        last = np.isin(of.mode, list(self.last))
        return np.where(fewer | last, LAST, np.where(np.isin(of.mode, list(self.full)), FULL, 0))

    def learn(self, of: Shown, said: np.ndarray, sized: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
        """Learn from passes in order; the first three are those before the fourth (role -1: none).

        ``said``: whether a Prefill line of so many tokens stands right behind the draft pass that follows.
        """
        new = np.arange(len(of.role)) >= 3
        served = of.region < 0
        back = np.roll(np.arange(len(of.role)), 1)
        draft = (of.role == DRAFT) & new
        target = (of.role == TARGET) & new
        self.targets += int(target.sum())
        graph = target & ~served & (of.rows >= 0)
        if graph.any():
            self.captured_rows = max(self.captured_rows, int(of.rows[graph].max()))
        self.drafts += int(draft.sum())
        self.captured_drafts |= bool((draft & ~served).any())
        draft &= served
        self.wide |= bool((draft & (of.wide == 1)).any())
        shown = draft & (of.join_rows >= 0) & (of.rows >= 0) & (of.read == 1) & (of.mode >= 0)
        for mode in np.unique(of.mode[shown & (of.join_rows < of.rows)]).tolist():
            self.last.add(mode)
            self.full.discard(mode)
        every = shown & (of.join_rows == of.rows) & (of.rows > 1)
        numbers = {number for name, number in self.modes.items() if name.isdigit()}
        if len(self.last) > 1:
            self.full |= (set(np.unique(of.mode[every]).tolist()) & numbers) - self.last
        kept = self.kept(of)
        decode = decodes(of)
        if (draft & decode & (of.wide == 0) & (of.read == 1)).any():
            self.decodes = True
        behind = draft & (of.role[back] == TARGET) & served[back]
        verify = behind & decode[back[back]] & (of.rows[back] > 0)
        for rows in np.unique(of.rows[back][verify]).tolist():
            self.verify_rows = gcd(self.verify_rows, rows)
        extend = behind & sized(of.rows[back], of.tokens[back])
        self.extends_said += int((extend & said[back]).sum())
        self.extends_unsaid += int((extend & ~said[back]).sum())
        share = behind & (of.rows[back] >= 0) & (of.join_rows > 0)
        parts = np.where(
            of.rows[back] % np.maximum(of.join_rows, 1) == 0, of.rows[back] // np.maximum(of.join_rows, 1), 0
        )
        for part, count in zip(*np.unique(parts[share], return_counts=True), strict=True):
            self.shares[int(part)] = self.shares.get(int(part), 0) + int(count)
        if self.version is None:
            all_rows = draft & (of.rows > 1) & (kept == FULL)
            fewer = behind & (kept == LAST) & (of.rows >= 0) & (of.rows < of.rows[back])
            lasts = draft & (of.wide == 1) & decode[back] & (kept == LAST)
            firsts = [
                (int(np.flatnonzero(mask)[0]), number)
                for number, mask in enumerate((all_rows, fewer, lasts))
                if mask.any()
            ]
            if firsts:
                number = min(firsts)[1]
                self.version = "v1" if number else "v2"
                self.why = (
                    "the draft keeps all rows (FULL) after a verify",
                    "the draft reads accepted rows only after a verify",
                    "the draft keeps a row a request after its last decode step",
                )[number]

    def never_verified(self, rows: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """Tell whether verifies of ``rows / kept`` draft tokens are too rare to be verifies at all.

        A request is extended once and verified many times, so in a log that prints verifies at least half of the
        target passes have the rows of one number of draft tokens. Asked where no draft decode step tells.
        """
        total = sum(self.shares.values())
        if total < 8:
            return np.zeros(len(rows), np.bool_)
        kept = np.maximum(kept, 1)
        share = np.array([self.shares.get(part, 0) for part in (rows // kept).tolist()])
        odd: np.ndarray = (rows % kept != 0) | (4 * share < total)
        return odd


def decodes(of: Shown) -> np.ndarray:
    """Tell which passes are decode steps of the draft: a draft pass before it, and one state a row."""
    back = np.roll(np.arange(len(of.role)), 1)
    found: np.ndarray = (of.role == DRAFT) & (of.role[back] == DRAFT) & (of.wide != 1) & (of.rows[back] != 0)
    found &= (of.region == of.region[back]) & ~(of.doubt[back] > 0)
    found[:1] = False
    return found


class Labels(NamedTuple):
    """Phases as numbers of PHASES, evidence as numbers, and the reason of what is unknown (0: none)."""

    phase: np.ndarray
    evidence: np.ndarray
    why: np.ndarray


# Reasons, by number.
WHY = [
    "",
    "graphs are captured, and no line tells of which draft pass",
    "the target pass before it is unknown, so extend or draft_extend",
    "it is no draft pass of the target pass before it: lines between are lost",
    "nothing stands before it, and no draft pass that reads several states",
    "the target pass before it is not in the log",
    "nothing that decides stands before it, and nothing follows",
    "no draft pass follows",
    "{rows} rows fit an extend and a verify with everything accepted, and spec v1 prints the same after both",
    "{rows} rows fit an extend and a verify, and so does the draft pass that follows",
    "verify with speculation, decode without, and no line tells which",
    "no record of it prints its rows",
    "{rows} rows: nothing else in the log tells extend from verify or decode",
    "{rows} rows, and the log does not say how many draft tokens a round has",
    "{rows} rows are no multiple of {tokens} draft tokens, and no Prefill line names them",
    "a verify of {rows} rows runs from a graph, and no Prefill line names an extend",
    "{rows} rows are more than as many requests verify as run",
    "{rows} rows fit an extend and a verify of {tokens} draft tokens a request, and no draft prints",
    "two schedulers print without a mark, and its rows fit more than one step of a round",
    "data-parallel attention: ranks without a request run padded passes that look like real ones",
    "several writers print the same text in pass after pass, so their order cannot be told",
]


def label(
    of: Shown, learned: Learned, lives: Lives, known: Sequence[tuple[int, int, int]], *, final: bool
) -> tuple[Labels, np.ndarray]:
    """Return the phases of passes, and which of them may be handed out (their next pass is there, or ``final``).

    The first passes are those before, with the labels that are ``known`` of them.
    """
    total = len(of.role)
    at = np.arange(total)
    segment = lives.here
    topk = segment.topk or NONE
    version = learned.version or segment.spec_version
    role, rows, region = of.role, of.rows, of.region
    target, draft = role == TARGET, role == DRAFT
    served = region < 0
    back, after = np.maximum(at - 1, 0), np.minimum(at + 1, total - 1)
    # Passes of another region are not neighbours.
    doubt = of.doubt > 0
    has_back = (at > 0) & (region[back] == region) & (role[back] >= 0) & ~doubt[back]
    has_after = (at < total - 1) & (region[after] == region) & ~doubt[after]
    decode = decodes(of) & served
    kept = learned.kept(of)
    tokens = of.tokens
    steps = of.steps
    back_draft, back_target = has_back & draft[back], has_back & target[back]
    back_decode = has_back & decode[back]
    read_after = np.where(has_after & draft[after], kept[after], 0)
    rows_after, kept_after = rows[after], of.join_rows[after]
    said = lives.said_behind(of.offset, rows)  # a Prefill line of its rows right behind the draft pass that follows
    no_verify = verifies_not(rows, tokens, learned.verify_rows if not lives.adaptive else 0)

    phase = np.full(total, UNKNOWN)
    evidence = np.full(total, NOTHING)
    why = np.zeros(total, np.int64)
    open_ = np.ones(total, np.bool_)
    if known:
        phase[: len(known)], evidence[: len(known)], why[: len(known)] = np.array(known).T
        open_[: len(known)] = False

    def rule(mask: Any, name: int, known: int, reason: int = 0) -> None:
        """Decide the passes that are not decided and for which this holds."""
        nonlocal open_
        hit = open_ & np.asarray(mask, np.bool_)
        phase[hit], evidence[hit], why[hit] = name, known, reason
        open_ = open_ & ~hit

    for number in np.unique(of.printed[of.printed >= 0]).tolist():
        rule(of.printed == number, number, PRINTED)
    rule(doubt, UNKNOWN, NOTHING, 20)
    rule(rows == 0, IDLE, ROWS)
    if lives.padded:
        rule(served, UNKNOWN, NOTHING, 19)
    if (~served).any():
        _captured(of, learned, lives, rule)

    # Targets.
    if learned.drafts:
        rule(target & of.fresh, EXTEND, ORDER)
        lost = (rows >= 0) & (tokens > 0) & (rows % np.maximum(tokens, 1) != 0)
        both = (rows >= 0) & (rows[back] >= 0) & (tokens > 0) & (topk > 0)
        other = both & (rows * topk != rows[back] * tokens)
        behind = target & back_decode & ~lost
        rule(behind & ~other & ~(lives.may_hide(version) & said), VERIFY, ORDER)
        rule(target & (read_after == FULL) & (rows_after > 1), VERIFY, ORDER)
        known_draft = has_back[back] & ((of.wide[back] >= 0) | decode[back]) & (rows[back] != 0)
        stands = (back_target | (back_draft & (known_draft | of.fresh[back]))) & ~(behind & other)
        if learned.decodes or not lives.adaptive:
            several = learned.decodes | ((steps >= 2) & (not lives.draft_graphs))
            rule(target & stands & several & ~(lives.adaptive & (steps < 2)), EXTEND, ORDER)
        rule(target & no_verify, EXTEND, ROWS)
        rule(target & (rows >= 0) & (rows <= learned.captured_rows), EXTEND, SERVER)
        rule(target & ~has_after, UNKNOWN, NOTHING, 6)
        follows = target & target[after]
        if version == "v1":
            rule(follows, VERIFY, ORDER)
        rule(follows, UNKNOWN, NOTHING, 7)
        last = target & (read_after == LAST)
        if version == "v2":
            rule(last, EXTEND, ORDER)
        rule(last & (rows >= 0) & (rows_after >= 0) & (rows_after < rows), VERIFY, ORDER)
        same = last & (rows_after == rows) & (kept_after > 0)
        rule(same & (tokens > 0) & (kept_after * tokens != rows), EXTEND, ROWS)
        rule(same & (rows > MOST_DRAFT_TOKENS * kept_after), EXTEND, ROWS)
        if version != "v1":
            rule(same & learned.never_verified(rows, kept_after), EXTEND, ROWS)
        rule(last & said, EXTEND, SERVER)
        if version == "v1" and learned.extends_said >= 2 and not learned.extends_unsaid and not segment.buffered:
            rule(last, VERIFY, SERVER)
        rule(last, UNKNOWN, NOTHING, 8)
        rule(target, UNKNOWN, NOTHING, 9)
    else:
        _alone(of, learned, lives, rule)

    # Drafts: those behind a target pass have its phase.
    narrow = of.wide == 0
    differs = (rows >= 0) & (rows[back] >= 0) & (rows != rows[back])
    foreign = differs & ((rows > rows[back]) | (phase[back] == EXTEND) | (version != "v1"))
    behind = draft & back_target
    rule(behind & narrow & learned.wide & foreign, UNKNOWN, NOTHING, 3)
    as_known = np.where(evidence[back] == PRINTED, PRINTED, ORDER)
    for name, then in ((EXTEND, EXTEND), (VERIFY, DRAFT_EXTEND)):
        for told in (PRINTED, ORDER):
            rule(behind & (phase[back] == name) & (as_known == told), then, told)
    rule(behind, UNKNOWN, NOTHING, 2)
    rule(draft & decode & (narrow | bool(learned.targets)), DECODE, ORDER)
    alone = draft & ~has_back & narrow & ~of.fresh
    rule(alone & learned.wide, DECODE, ROWS)
    rule(alone, UNKNOWN, NOTHING, 4)
    # Drafts whose target pass is not in the log: hidden by a graph, not printed, or cut off.
    if learned.decodes:
        rule(draft & back_draft & ~decode[back] & (rows[back] != 0) & (steps != 1), EXTEND, ORDER)
        after_decode = draft & back_decode
        rule(after_decode & ((version == "v2") | (kept == FULL)), DRAFT_EXTEND, ORDER)
        many = (rows >= 0) & (rows[back] >= 0) & (tokens > 0) & (rows * max(topk, 1) > rows[back] * tokens)
        rule(after_decode & many, EXTEND, ROWS)
        own = lives.said_behind(of.offset, rows, passes=1)
        rule(after_decode & own, EXTEND, SERVER)
        if lives.prefill_lines and not segment.buffered:
            rule(after_decode & has_after, DRAFT_EXTEND, SERVER)
    out = np.where(rows >= 0, rows, of.join_rows)
    rule(draft & (kept == FULL) & (out > 1), DRAFT_EXTEND, ROWS)
    if version == "v2":
        rule(draft & (of.wide == 1) & (kept == LAST), EXTEND, ROWS)
    rule(draft & of.fresh, EXTEND, ORDER)
    rule(draft, UNKNOWN, NOTHING, 5)
    ready = np.ones(total, np.bool_) if final else at < total - (2 if learned.drafts else AHEAD)
    return Labels(phase, evidence, why), ready


def verifies_not(rows: np.ndarray, tokens: np.ndarray, verified: int) -> np.ndarray:
    """Tell which rows can be no verify: it has draft tokens rows for each request.

    Where the number is not known, it divides the rows of every verify seen (``verified``, their common divisor).
    """
    unknown = np.gcd(rows, verified) == 1 if verified > 1 else np.zeros(len(rows), np.bool_)
    return (rows >= 0) & np.where(tokens > 0, rows % np.maximum(tokens, 1) != 0, unknown)


def _captured(of: Shown, learned: Learned, lives: Lives, rule: Callable[..., None]) -> None:
    """Label passes with dummy input, run while graphs are captured."""
    for number in np.unique(of.region[of.region >= 0]).tolist():
        what = lives.regions[number]
        mine = of.region == number
        target, draft = mine & (of.role == TARGET), mine & (of.role == DRAFT)
        if "verify" in what:
            rule(target, VERIFY, SERVER)
        elif "piecewise" in what or "prefill" in what:
            rule(target, EXTEND, SERVER)
        elif learned.drafts:
            rule(target, VERIFY, ORDER)
        elif lives.speculating is None:
            rule(target, UNKNOWN, NOTHING, 10)
        else:
            rule(target, VERIFY if lives.speculating else DECODE, SERVER)
        extend = "extend" in what
        # Where the target joins several states, only a draft pass that reads as many can be a draft_extend.
        tells = (of.wide == 1) | ((of.wide == 0) & learned.wide)
        if extend or "decode" in what or what.strip() == "draft":
            # The line that names the graph may lag behind other writers; the width does not.
            agrees = ~tells | ((of.wide == 1) == extend)
            rule(draft & agrees, DRAFT_EXTEND if extend else DECODE, SERVER)
        rule(draft & tells & (of.wide == 1), DRAFT_EXTEND, ROWS)
        rule(draft & tells, DECODE, ROWS)
        rule(draft, UNKNOWN, NOTHING, 1)


def _alone(of: Shown, learned: Learned, lives: Lives, rule: Callable[..., None]) -> None:
    """Label target passes of a log in which no draft prints: server lines and rows are all there is."""
    target = (of.role == TARGET) & (of.region < 0)
    rows, tokens = of.rows, of.tokens
    mine = np.flatnonzero(of.role == TARGET)
    named, near = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    named[mine], near[mine] = lives.named(of.offset[mine], rows[mine], tokens[mine], REACH, apart=learned.apart)
    odd = (rows >= 0) & (tokens > 0) & (rows % np.maximum(tokens, 1) != 0)
    many = (tokens > 0) & (lives.most_running * tokens > 0) & (lives.most_running * tokens < rows)
    every = lives.prefill_lines and learned.targets <= lives.prefill_lines
    rule(target & named, EXTEND, SERVER)
    rule(target & near & (odd | many | (tokens < 0) | bool(every)), EXTEND, SERVER)
    rule(target & of.fresh, EXTEND, ORDER)
    rule(target & (rows < 0), UNKNOWN, NOTHING, 11)
    if not lives.speculating:
        if lives.speculating is False and lives.prefill_lines:
            rule(target & ~near, DECODE, SERVER)
        rule(target, UNKNOWN, NOTHING, 12)
    rule(target & (tokens < 0), UNKNOWN, NOTHING, 13)
    if not lives.prefill_lines:
        rule(target & odd & (rows > tokens), EXTEND, ROWS)
    rule(target & odd, UNKNOWN, NOTHING, 14)
    rule(target & (rows <= learned.captured_rows), UNKNOWN, NOTHING, 15)
    rule(target & many, UNKNOWN, NOTHING, 16)
    if lives.prefill_lines:
        rule(target & ~near, VERIFY, SERVER)
    elif lives.running is not None:
        rule(target & (lives.running * tokens == rows), VERIFY, SERVER)
    rule(target, UNKNOWN, NOTHING, 17)


__all__ = ["ANY", "WHY", "Labels", "Learned", "Shown", "label", "printed_phase"]
