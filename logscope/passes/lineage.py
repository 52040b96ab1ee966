"""What was joined and what the draft read: each input beside the state it should be.

This module is responsible for :class:`Lineage`: for every pass the joined state that was due, and how many target
passes back the state stands that its input equals. It must not know rules, nor how passes are found.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from logscope.passes.cut import DRAFT, NONE, TARGET, Kinds, Passes
from logscope.passes.phases import DECODE, DRAFT_EXTEND, EXTEND, UNKNOWN
from logscope.passes.segments import CAPTURING

# How many joined states back an input is looked for.
REMEMBERED = 4
STATE = ("norm", "slack", "key", "rows", "width", "line", "rounded")
NORM_AND_HEAD, NORM, HEAD = 0, 1, 2
Columns = dict[str, Any]


def _nothing(count: int) -> Columns:
    state: Columns = {name: np.full(count, np.nan if name in ("norm", "slack") else NONE) for name in STATE}
    state["key"] = np.zeros(count, np.uint64)
    state["rounded"] = np.zeros(count, np.bool_)
    state["values"] = np.full((count, 5), np.nan)
    state["count"] = np.zeros(count, np.int16)
    return state


def _joined(parts: list[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class Lineage:
    """Follows one scheduler; remembers the last joined states of the target, and the draft's last output."""

    def __init__(self) -> None:
        self._joins = _nothing(0)
        self._output = _nothing(0)
        self._fresh = False

    def trace(
        self,
        made: Passes,
        rows: slice,
        phase: np.ndarray,
        during: np.ndarray,
        records: Columns,
        of: Kinds,
        topk: int | None,
        *,
        known: bool,
    ) -> Columns:
        """Return, for these passes in order, what was due and what was read (logscope/tables/schema.py).

        ``known`` False: passes of several schedulers stand here, and which target pass a draft pass follows is not.
        """
        role, join, read = made.role[rows], made.join[rows], made.input[rows]
        phase, real = phase[rows], during[rows] != CAPTURING
        count = len(role)

        def states(places: np.ndarray) -> Columns:
            found = {
                name: records[name][places] for name in ("norm", "slack", "key", "line", "rounded", "values", "count")
            }
            return found | {"rows": of.rows[places], "width": of.width[places]}

        target, draft = (role == TARGET) & real, (role == DRAFT) & real
        has = target & (join >= 0)
        joins = _joined([self._joins, states(join[has])])
        before = len(self._joins["norm"]) + np.cumsum(has) - has  # joins that stand before each pass
        outputs_at = draft & (join >= 0)
        outputs = _joined([self._output, states(join[outputs_at])])
        output_before = len(self._output["norm"]) + np.cumsum(outputs_at) - outputs_at
        wide = (phase == EXTEND) | (phase == DRAFT_EXTEND) | ((phase == UNKNOWN) & (made.fc[rows] >= 0))
        reads = draft & (read >= 0) & wide
        # Fresh: the last target pass printed its join, and nothing was read since.
        events = np.where(target, np.where(has, 1, 0), np.where(reads, 0, NONE))
        last = np.maximum.accumulate(np.where(events >= 0, np.arange(count), NONE))
        shifted = np.concatenate([[NONE], last[:-1]]) if count else last
        fresh = np.where(shifted >= 0, events[np.maximum(shifted, 0)] == 1, self._fresh)
        fresh &= known
        mine = states(np.maximum(read, 0))
        due_at = before - 1
        ago, how = np.full(count, NONE), np.full(count, NONE)
        looked = np.flatnonzero(reads & fresh & (due_at >= 0))
        for back in range(REMEMBERED):
            there = looked[(ago[looked] < 0) & (due_at[looked] - back >= 0)]
            if not len(there):
                break
            found = _agreement(_taken(mine, there), _taken(joins, due_at[there] - back), topk)
            ago[there[found >= 0]] = back
            if not back:
                how[there] = found
        first = _taken(joins, np.maximum(due_at, 0)) if len(joins["norm"]) else _nothing(count)
        tells = _told(mine, first)
        traced = np.full(count, NONE)
        traced[looked] = np.where(ago[looked] == 0, 1, np.where(tells[looked], 0, NONE))
        out = {f"due_{name}": first[name] for name in STATE}
        missing = (due_at < 0) | (role != DRAFT)
        out["due_line"] = np.where(missing, NONE, out["due_line"])
        own = draft & (read >= 0) & (phase == DECODE) & (output_before > 0)
        own_states = _taken(outputs, np.maximum(output_before - 1, 0)) if len(outputs["norm"]) else _nothing(count)
        at = np.flatnonzero(own)
        if len(at):
            found = _own(_taken(mine, at), _taken(own_states, at))
            how[at], traced[at] = found, np.where(found >= 0, 1, NONE)
        out |= {f"own_{name}": own_states[name] for name in STATE}
        out["own_line"] = np.where((output_before > 0) & (role == DRAFT), out["own_line"], NONE)
        out |= {"due_fresh": fresh, "ago": ago, "how": how, "traced": traced}
        self._joins = {name: column[-REMEMBERED:] for name, column in joins.items()}
        self._output = {name: column[-1:] for name, column in outputs.items()}
        if count and last[-1] >= 0:
            self._fresh = bool(events[last[-1]] == 1)
        return out


def _taken(states: Columns, rows: np.ndarray) -> Columns:
    return {name: column[rows] for name, column in states.items()}


def same_norm(one: Columns, other: Columns) -> np.ndarray:
    """Return 1 where two norms agree at the coarser print (nan equals nan), 0 where not, -1 where one is missing."""
    a, b = one["norm"], other["norm"]
    with np.errstate(invalid="ignore"):
        near = np.abs(a - b) <= one["slack"] + other["slack"] + 1e-12 * np.abs(a)
    same = (a == b) | near | (np.isnan(a) & np.isnan(b))
    return np.where((one["slack"] >= 0) & (other["slack"] >= 0), same.astype(np.int64), NONE)


def same_head(one: Columns, other: Columns) -> np.ndarray:
    """Return 1 where first values agree as far as both are printed, 0 where not, -1 where one is missing."""
    printed = (one["count"] > 0) & (other["count"] > 0)
    same = one["key"] == other["key"]
    loose = np.flatnonzero(printed & ~same & (one["rounded"] | other["rounded"] | (one["count"] != other["count"])))
    if len(loose):
        a, b = one["values"][loose], other["values"][loose]
        width = np.minimum(one["count"][loose], other["count"][loose])
        with np.errstate(invalid="ignore"):
            slack = 5e-5 + 5e-4 * np.abs(b)
            near = (a == b) | (np.isnan(a) & np.isnan(b))
            rough = (one["rounded"] | other["rounded"])[loose][:, None] & (np.abs(a - b) <= slack)
        same[loose] = ((near | rough) | (np.arange(a.shape[1]) >= width[:, None])).all(axis=1)
    return np.where(printed, same.astype(np.int64), NONE)


def _agreement(read: Columns, join: Columns, topk: int | None) -> np.ndarray:
    """Return what shows that inputs are these joined states (NORM_AND_HEAD, NORM, HEAD), -1: nothing does."""
    head, norm = same_head(read, join), same_norm(read, join)
    width = read["width"] == join["width"]
    even = read["rows"] == join["rows"]
    fewer = (read["rows"] <= join["rows"]) | (read["rows"] < 0) | (join["rows"] < 0)
    # With topk above 1 the accepted rows are moved to the front of each block: row 0 stays, the norm may not.
    loose = (norm < 0) | (topk is None) | (topk is not None and topk > 1)
    found = np.select(
        [
            even & (norm == 1) & (head == 1),
            even & (norm == 1) & (head < 0),
            even & (head == 1) & loose,
            ~even & fewer & (head == 1),
        ],
        [NORM_AND_HEAD, NORM, HEAD, HEAD],
        NONE,
    )
    return np.where(width & (head != 0), found, NONE)


def _told(read: Columns, join: Columns) -> np.ndarray:
    """Tell whether enough is printed to say that an input is not a joined state."""
    head, norm = same_head(read, join), same_norm(read, join)
    fewer = (read["rows"] >= 0) & (join["rows"] >= 0) & (read["rows"] < join["rows"])
    told: np.ndarray = ~((head < 0) & (fewer | (norm < 0)))
    return told


def _own(read: Columns, output: Columns) -> np.ndarray:
    """Compare decode inputs with the draft's last output: it is a row of it, and only row 0 is printed."""
    head, norm = same_head(read, output), same_norm(read, output)
    even = (read["rows"] == output["rows"]) & (norm == 1)
    return np.select([(head == 1) & even, head == 1, (head < 0) & even], [NORM_AND_HEAD, HEAD, NORM], NONE)
