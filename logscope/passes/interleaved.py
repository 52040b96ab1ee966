"""Passes of several schedulers that print into one log without a mark: which record goes on with which pass.

This module is responsible for :func:`untangle` (records to passes) and :func:`label` (phases that rows and values
prove, order being of no use). It must not know how copies are told. Schedulers of data parallelism share nothing, so
nothing says whose a record is but the order of a forward, its rows, and a draft input that is a joined state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logscope.passes.cut import DRAFT, FC, FORWARD, JOIN, NONE, OTHER, TARGET, Kinds, order_of, usual
from logscope.passes.phases import (
    DECODE,
    DRAFT_EXTEND,
    EXTEND,
    FULL,
    LAST,
    NOTHING,
    ROWS,
    UNKNOWN,
    VERIFY,
    Labels,
    Learned,
    Shown,
    verifies_not,
)  # fmt: skip

if TYPE_CHECKING:
    from logscope.passes.cut import Passes

Columns = dict[str, Any]
# Why a pass of several schedulers has no phase (phases.WHY).
_WHOSE = 18
# How far apart the pieces of one pass stand; how many pairs, and which share of the pieces, tell of two schedulers.
_APART, _PAIRS, _PAIRED = 8, 4, 0.6


def stand_mixed(of: Kinds, made: Passes) -> bool:
    """Tell whether passes, cut as those of one scheduler, are pieces of passes that stand in each other.

    Then nearly every piece without its end has one without its beginning a few passes behind it, of its model and rows.
    Lost lines leave pieces, too, but seldom such pairs.
    """
    order = order_of(of)
    begins, ends = order[made.first], order[made.last]
    head, tail = np.zeros(len(begins), np.bool_), np.zeros(len(begins), np.bool_)
    for role in (TARGET, DRAFT):
        mine = made.role == role
        if mine.any():
            head |= mine & (ends < usual(ends[mine]))
            tail |= mine & (begins > usual(begins[mine]))
    waiting: list[int] = []
    pairs = 0
    for at in np.flatnonzero(head | tail).tolist():
        waiting = [one for one in waiting if at - one <= _APART]
        if tail[at]:
            rows = made.rows[at]
            fits = [
                one
                for one in waiting
                if made.role[one] == made.role[at] and ends[one] < begins[at]
                if at - one > 1 and (rows < 0 or made.rows[one] < 0 or rows == made.rows[one])
            ]
            if fits:
                waiting.remove(fits[0])
                pairs += 1
        if head[at]:
            waiting.append(at)
    return pairs >= _PAIRS and pairs > _PAIRED * int(head[:-_APART].sum())


def untangle(of: Kinds, keys: np.ndarray, schedulers: int) -> tuple[np.ndarray, np.ndarray, list[set[int]]]:
    """Return the pass of each record (-1: none), by first record; which are open; which may have taken each other's.

    A scheduler prints one pass at a time. A record goes on with the open pass whose order it rises in, of its model
    and rows. A joined state begins like the first capture of its pass. Where two passes still fit, it goes with the one
    that waits for it longer, and either may be its own. ``keys`` name first values.
    """
    order, number = order_of(of), np.full(len(of.what), NONE)
    opened: list[list[int]] = []  # pass, role, order, rows, whether it is wide, first values
    doubts: list[set[int]] = []
    # Passes whose end may be another's, as they were before it, and those that one of these ends may belong to.
    maybe: list[list[int]] = []
    waiting: set[int] = set()
    count = 0
    for at in range(len(of.what)):
        what = int(of.what[at])
        if what == OTHER:
            continue
        role, rows, mine = int(of.role[at]), int(of.rows[at]), int(order[at])
        several = of.embeds[at] if what == FORWARD else 0
        fits, may = (
            [
                one
                for one in some
                if mine > one[2]
                and (role < 0 or role == one[1])
                and (what != JOIN or (of.num[at] == 1) == (one[1] == DRAFT) or of.num[at] < 0)
                and (rows < 0 or one[3] < 0 or (rows <= one[3] if what == JOIN else rows == one[3]))
                and not (what >= FC and one[4] == 0)
            ]
            for some in (opened, maybe)
        )
        if what == JOIN and len(fits) > 1:
            fits = [one for one in fits if one[1] == TARGET and one[5] == int(keys[at])] or fits
        if fits:
            one = fits[0]
            if len(fits) + len(may) > 1:
                doubts.append({fit[0] for fit in (*fits, *may)})
                if what == JOIN:
                    maybe.append([*one])
                    waiting.update(doubts[-1])
        else:
            if role < 0:
                role = DRAFT if of.num[at] == 1 else TARGET
            one = [count, role, mine, rows, 1, int(keys[at])]
            count += 1
            opened.append(one)
            if len(opened) > schedulers:
                opened.pop(0)
        number[at] = one[0]
        one[2] = mine
        if what == FORWARD:
            one[4] = int(of.width[at] > several) if several > 0 else 1
        if what == JOIN:
            opened.remove(one)
            if not any(one[0] in waiting for one in opened):
                maybe.clear()
                waiting.clear()
    still = np.zeros(count, np.bool_)
    still[[one[0] for one in opened]] = True
    return number, still, doubts


def label(
    of: Shown,
    made: Passes,
    records: Columns,
    learned: Learned,
    known: list[tuple[int, int, int]],
    doubts: list[set[int]],
) -> Labels:
    """Return the phases that rows and values prove; none where passes that may have taken each other's have several."""
    total = len(of.role)
    phase, evidence, why = np.full(total, UNKNOWN), np.full(total, NOTHING), np.full(total, _WHOSE)
    kept = learned.kept(of)
    wide, narrow = (of.role == DRAFT) & (of.wide == 1), (of.role == DRAFT) & (of.wide == 0)
    source = links(made, records)
    linked = source >= 0
    fewer = linked & (of.rows < of.rows[np.maximum(source, 0)]) & (of.rows >= 0)
    whole = np.where(
        of.role == TARGET, (made.join >= 0) & (made.captures == made.captures.max(initial=0)), of.join_rows >= 0
    )
    phase[narrow & learned.wide] = DECODE
    phase[wide & ((kept == FULL) | fewer)] = DRAFT_EXTEND
    v2 = learned.version == "v2"
    phase[wide & (kept == LAST) & ~fewer & v2] = EXTEND
    extends = verifies_not(of.rows, of.tokens, 0)
    phase[wide & linked & (phase == UNKNOWN) & extends[np.maximum(source, 0)] & ~fewer] = EXTEND
    phase[(of.role == TARGET) & extends] = EXTEND
    for at in np.flatnonzero(linked).tolist():
        if phase[at] in (EXTEND, DRAFT_EXTEND):
            phase[source[at]] = EXTEND if phase[at] == EXTEND else VERIFY
    phase[~whole] = UNKNOWN
    for doubt in doubts:
        if len({int(phase[at]) for at in doubt}) > 1:
            phase[list(doubt)] = UNKNOWN
    decided = phase != UNKNOWN
    evidence[decided], why[decided] = ROWS, 0
    for at, labels in enumerate(known):
        phase[at], evidence[at], why[at] = labels
    return Labels(phase, evidence, why)


def links(made: Passes, records: Columns) -> np.ndarray:
    """Return for each draft pass the target pass whose joined state begins like its input, NONE: not one alone."""
    source = np.full(len(made.role), NONE)
    joins: dict[int, list[int]] = {}
    for at in range(len(made.role)):
        if made.role[at] == TARGET:
            if made.join[at] >= 0 and records["count"][made.join[at]]:
                joins.setdefault(int(records["key"][made.join[at]]), []).append(at)
        elif made.input[at] >= 0 and made.wide[at] == 1 and records["count"][made.input[at]]:
            found = joins.get(int(records["key"][made.input[at]]), [])
            if len(found) == 1 and at - found[0] <= 64:
                source[at] = found[0]
                joins.pop(int(records["key"][made.input[at]]))
    return source
