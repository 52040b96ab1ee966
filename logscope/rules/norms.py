"""Rules about values: finite, not zero, not twins, and the identities that hold in every healthy run.

This module is responsible for N101 to N107, and for saying that N201 is ``diff``'s. How two prints are compared is said
in :mod:`logscope.passes.lineage`; what a broken identity means is said here. A value that one writer alone prints is
judged beside the usual one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from logscope.model import Place
from logscope.passes.lineage import same_head, same_norm
from logscope.queries.lineage import joined_of
from logscope.queries.words import and_list, count, percent
from logscope.rules.evidence import (
    DRAFT_EXTEND,
    EMBED,
    EXTEND,
    FC_OUTPUT,
    JOIN,
    LAYER,
    UNKNOWN,
    VERIFY,
    Onset,
    Times,
    add,
    one_of,
)  # fmt: skip
from logscope.rules.registry import Checked, earliest, rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logscope.model import Finding
    from logscope.rules.evidence import Array, Columns, Life, Seen, View

# Inputs of spec v1 that must be comparable before their share means anything.
_LEAST_V1_INPUTS = 5
# Passes in a row that print an unchanged state before it is called frozen.
_FROZEN = 3
# Captures up to which every choice of them, or of their writers' values, is tried.
_MOST_CHOICES = 6


def head_words(values: Sequence[float]) -> str:
    """Return the first printed values, three of them."""
    return f"first values {', '.join(f'{value:.6g}' for value in values[:3])}" if values else "no first values"


def line_list(*lines: int) -> str:
    """Return ``lines 80, 83, 86``, the records' places for the eye."""
    return f"line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}"


def _by_record(view: View, looked: Array, mine: Array, theirs: Array, detail: Any) -> Onset:
    """Return the onset of a fault of single records: of all their writers, else of those that print one value."""
    both, either = mine & (theirs | ~view.parted), (mine | theirs) & view.parted & ~(mine & theirs)
    first, alone = view.lead(both), view.lead(either)

    def told(places: Array) -> Any:
        return lambda row: {
            **detail(int(places[row]), other=not mine[places[row]]),
            "writers": view.writers(int(places[row]), speaker=bool(mine[places[row]])),
        }

    lines = np.where(mine, view.records["line"], view.others["line"])
    return view.onset(
        looked, first >= 0, lines[first], told(first), alone >= 0, told(alone), lines[alone]
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------- finite, zero, twins


@rule(
    "N101",
    "not-finite",
    "error",
    group="norms",
    needs="records that print a norm or first values",
    message="Non-finite values from {name} on: {kinds} first in {pass_}.",
    expected="finite values",
    actual="{actual}",
)
def not_finite(view: View) -> dict[str, Any]:
    """A norm or a first value is nan or inf."""

    def bad(of: Columns) -> Array:
        printed = np.arange(of["values"].shape[1]) < of["count"][:, None]
        return ((of["slack"] >= 0) & ~np.isfinite(of["norm"])) | (printed & ~np.isfinite(of["values"])).any(axis=1)

    shown = (view.records["slack"] >= 0) | (view.records["count"] > 0)
    looked = np.zeros(view.size, np.bool_)
    looked[view.of[shown]] = True
    mine = bad(view.records) & view.usable
    theirs = bad(view.others) & view.usable & view.parted

    def detail(place: int, *, other: bool) -> dict[str, Any]:
        source = view.others if other else view.records
        norm, values = float(source["norm"][place]), view.values(place, other=other)
        every = [*([norm] if source["slack"][place] >= 0 else []), *values]
        kinds = and_list([name for name, test in (("inf", math.isinf), ("nan", math.isnan)) if any(map(test, every))])
        finite = " with finite first values" if values and all(map(math.isfinite, values)) else ""
        before = [view.name(at) for at in range(int(view.first[view.of[place]]), place) if shown[at]]
        return {
            "name": view.name(place),
            "kinds": kinds,
            "inf": math.isinf(norm),
            "actual": (f"norm={norm}" if source["slack"][place] >= 0 else "") + finite or kinds,
            "before": f"; {and_list(before)} before it in the same pass {'is' if len(before) == 1 else 'are'} finite"
            if before
            else "",
        }

    warned: dict[Any, Times] = {}
    for event in view.lines("nan_logits_warning"):
        warned[event.prefix.writer] = add(warned.get(event.prefix.writer), Times(1, event.place))
    return {"onset": _by_record(view, looked & view.real, mine, theirs, detail), "warned": warned}


@not_finite.answer
def _(part: dict[str, Any], life: Life) -> Iterator[Finding]:
    writers_, warned = list(part["warned"].values()), ""
    if writers_:
        who = count(len(writers_), "process", "processes")
        warned = f"NaN in the logits was reported by {who}, first at {writers_[0].place}; their order says nothing"
    onset, alone = earliest(part["onset"], life)
    if onset is not None:
        detail = onset.first.detail
        name = detail["name"]
        half = life.segment.server_args.get("dtype") in ("float16", "half")
        largest = " (the server runs in float16, whose largest number is 65504)" if half else ""
        advice = f"look at what computes {name}; with NaN logits accept len rises to its maximum or falls to 1.00"
        if detail["inf"]:
            advice = f"an overflow{largest}: look at the layer below {name}; a rising accept len is no good sign then"
        evidence = f"{onset.words}{detail['before']}{f'; {warned}' if warned else ''}"
        yield not_finite.told(onset, alone=alone, evidence=evidence.replace("{", "("), help=advice)
    elif warned:
        yield not_finite.finding(
            "The server reports NaN in the logits, and no printed hidden state shows where it begins.",
            writers_[0].place,
            actual=count(sum(one.number for one in writers_), "warning"),
            evidence=warned,
            help="print norms of more layers, or run with --disable-cuda-graph so that verify passes print",
        )


@not_finite.checked
def _(part: dict[str, Any], _life: Life) -> Checked:
    return Checked(part["onset"].seen + bool(part["warned"]))


@rule(
    "N102",
    "zero",
    "error",
    group="norms",
    needs="captures or joined states that print a norm",
    message="All values of {name} are zero in {pass_}.",
    expected="a norm above 0",
    actual="norm=0.0000, first values 0",
    evidence="{onset}",
    help="a buffer that was allocated and never written, or a weight that was not loaded",
)
def zero(view: View) -> Onset:
    """A captured, joined or combined state is all zero."""
    state = np.isin(view.event, (LAYER, EMBED, JOIN, FC_OUTPUT)) & view.usable

    def bad(of: Columns) -> Array:
        nothing = (np.arange(of["values"].shape[1]) >= of["count"][:, None]) | (of["values"] == 0)
        return (
            state & (of["slack"] >= 0) & (of["norm"] == 0) & (of["rows"] != 0) & (of["width"] > 0) & nothing.all(axis=1)
        )

    looked = np.zeros(view.size, np.bool_)
    looked[view.of[state & (view.records["slack"] >= 0)]] = True
    looked &= view.real & ~view.edge

    def detail(place: int, *, other: bool) -> dict[str, Any]:
        return {"name": view.name(place)}

    return _by_record(view, looked, bad(view.records), bad(view.others) & view.parted, detail)


@rule(
    "N103",
    "twin-layers",
    "error",
    group="norms",
    needs="target passes with two or more captures that print norm and first values",
    message="{one} and {other} print the same state.",
    expected="two different states",
    actual="norm={norm} and the same first values twice",
    evidence="{lines}; {onset}",
    help="one buffer is captured twice, or the layers between them are skipped",
)
def twin_layers(view: View) -> Onset:
    """Two layers print the same state."""
    states = view.taken(view.captures)
    telling = _telling(states)
    columns = [states.at((slice(None), number)) for number in range(view.captures.shape[1])]
    pair = np.full((view.size, 2), -1)
    for one, other in combinations(range(min(view.captures.shape[1], 4 * _MOST_CHOICES)), 2):
        mine, theirs = columns[one], columns[other]
        equal = (same_norm(mine, theirs) == 1) & (same_head(mine, theirs) == 1) & (mine["layer"] != theirs["layer"])
        new = equal & telling[:, one] & telling[:, other] & (pair[:, 0] < 0)
        pair[new] = (one, other)

    def detail(row: int) -> dict[str, Any]:
        places = view.captures[row, pair[row]].tolist()
        lines = view.records["line"][places].tolist()
        names = [view.name(place) for place in places]
        return {
            "one": names[0].capitalize(),
            "other": names[1],
            "norm": float(view.records["norm"][places[0]]),
            "lines": f"lines {lines[0]} and {lines[1]}",
        }

    second = view.capture(pair[:, 1])
    looked = view.target & view.real & (telling.sum(axis=1) > 1)
    return view.onset(looked, pair[:, 0] >= 0, view.records["line"][second] if len(view.of) else None, detail)


def _telling(states: Columns) -> Array:
    """Return which prints tell one state from another: a finite norm above 0 and two or more first values."""
    printed = np.arange(states["values"].shape[-1]) < states["count"][..., None]
    finite = (np.isfinite(states["values"]) | ~printed).all(axis=-1) & np.isfinite(states["norm"])
    return finite & (states["norm"] != 0) & (states["count"] > 1) & (states["slack"] >= 0)


# ------------------------------------------------------------------------------------------------------ joined states


class Sums(NamedTuple):
    """How norm(join)^2 relates to the captures of each pass.

    holds, residual, tolerance
        1, 0, -1 (cannot be told); relative to norm(join)^2.
    joined
        which captures were joined: all, or the only choice of as many as were joined that fits; [passes, captures].
    alone
        where another writer's join is the sum of no choice of what writers captured.
    rows
        where the join has the rows of its captures.
    """

    holds: Array
    residual: Array
    tolerance: Array
    joined: Array
    alone: Array
    rows: Array


def sums_of(view: View) -> Sums:
    """Compare every joined state of the target with the captures of its pass, once for a view."""
    if view.sums is None:
        view.sums = _sums(view)
    found: Sums = view.sums
    return found


def _sums(view: View) -> Sums:
    """Compare every joined state of the target with the captures of its pass (:mod:`logscope.queries.lineage`)."""
    states, join, there = view.taken(view.captures), view.taken(view.join), view.captures >= 0
    begin = view.taken(view.capture(np.zeros(view.size, np.int64)))["rows"]
    even = (begin < 0) | (join["rows"] < 0) | (join["rows"] == begin)
    told = view.target & (view.join >= 0) & (view.captured > 0) & ~view.piece & even
    told &= ((states["slack"] >= 0) & np.isfinite(states["norm"]) | ~there).all(axis=1)
    told &= (join["slack"] >= 0) & np.isfinite(join["norm"]) & (join["norm"] > 1e-150)
    norms = np.where(there & np.isfinite(states["norm"]), states["norm"], 0.0)
    slacks = 2 * norms * np.where(there, states["slack"], 0.0)

    def of(squares: Array, joins: Columns, counted: Array, chosen: Array) -> tuple[Array, ...]:
        norm = np.where(told, joins["norm"], 1.0)
        return joined_of(norm**2, 2 * norm * joins["slack"], squares, slacks, told, counted, chosen)

    joined, residual, fits, tolerance = of(norms**2, join, view.states, there)
    alone = np.zeros(view.size, np.bool_)
    parted = told & (view.differ > 0)
    if parted.any() and there.shape[1] <= _MOST_CHOICES:
        # Which print is whose is not known: a join is right when any choice of the writers' captures makes it.
        other = np.where(there, view.taken(view.captures, others=True)["norm"] ** 2, 0.0)
        theirs, nothing = view.taken(view.join, others=True), np.zeros(view.size, np.int64)
        mixed = [np.where(np.array(one), other, norms**2) for one in product((False, True), repeat=there.shape[1])]
        fine, fine_too = (
            np.any([of(squares, joins, nothing, joined)[2] for squares in mixed], axis=0) for joins in (join, theirs)
        )
        split = parted & np.isfinite(theirs["norm"])
        alone = split & (fine != fine_too)
        fits = np.where(split, fine | fine_too, fits | fine)
    return Sums(np.where(told, fits.astype(np.int64), -1), residual, tolerance, joined, alone, even)


def _short_floats(view: View, states: Columns, join: Columns) -> Array:
    """Return what norms that were computed in a short float type before printing may be off by, relatively."""
    norms = np.concatenate([states["norm"], join["norm"][:, None]], axis=1)
    mantissa = np.frexp(np.nan_to_num(norms))[0]
    off = np.zeros(view.size)
    for bits in (11, 8):
        scaled = mantissa * 2.0**bits
        # Half of the last bit of each norm; twice that in its square; once for the join, once for the sum.
        off = np.where((scaled == np.floor(scaled)).all(axis=1), 4 * 2.0**-bits, off)
    return off


@rule(
    "N104",
    "join-norm",
    "error",
    group="norms",
    needs="target passes that print the norm of every capture and of the joined state",
    message="What is joined is not what was captured: norm^2 of the joined state differs from the sum over its captures"
    " by {residual:.1e} in {pass_}{factor}.",
    expected="norm {sum:.4f} (the root of the captures' squares)",
    actual="norm {norm:.4f}",
    evidence="{lines}; tolerance {tolerance:.1e}; {onset}",
    help="a state is changed, exchanged or read from another pass between its capture and the join",
)
def join_norm(view: View) -> dict[str, Any]:
    """norm(joined)^2 is not the sum of the captures' norm^2: what was joined is not what was captured."""
    found, join = sums_of(view), view.taken(view.join)
    # A number of states that does not fit the captures is S101's or H103's, unless more was captured than joined.
    fewer = found.joined.sum(axis=1)
    looked = (
        view.judged
        & (found.holds >= 0)
        & ~((view.states > 0) & ((view.states > fewer) | ((view.states < fewer) & (found.holds == 0))))
    )
    off = np.abs(found.residual)
    bad = looked & (found.holds == 0)
    if bad.any():
        bad &= off > _short_floats(view, view.taken(np.where(found.joined, view.captures, -1)), join) + found.tolerance

    def detail(row: int) -> dict[str, Any]:
        places = view.captures[row][found.joined[row]]
        total = math.sqrt(float((view.records["norm"][places] ** 2).sum()))
        factor = _factor(view, int(places[0]), int(view.join[row]), total)
        return {
            "residual": abs(float(found.residual[row])),
            "factor": f": the join is {factor:.4g} times its captures" if factor is not None else "",
            "sum": total,
            "norm": float(join["norm"][row]),
            "tolerance": float(found.tolerance[row]),
            "lines": line_list(*view.records["line"][[*places, view.join[row]]].tolist()),
            "writers": view.writers(int(view.join[row])),
        }

    worst = int(np.where(looked & ~found.alone, off, -1).argmax()) if looked.any() else None
    part: dict[str, Any] = {"onset": view.onset(looked, bad, join["line"], detail, looked & found.alone)}
    if worst is not None:
        part["worst"] = _Worst(float(off[worst]), float(found.tolerance[worst]))
    return part


class _Worst(NamedTuple):
    """The largest value seen, and what is allowed."""

    value: float
    allowed: float

    def __add__(self, other: _Worst) -> _Worst:  # type: ignore[override]
        return max(self, other)


@join_norm.answer
def _(part: dict[str, Any], life: Life) -> Iterator[Finding]:
    yield from join_norm.first_fault(part["onset"], life)


@join_norm.checked
def _(part: dict[str, Any], _life: Life) -> Checked:
    worst = part.get("worst")
    words = None if worst is None else f"{worst.value:.1e} of {worst.allowed:.1e} allowed"
    return Checked(part["onset"].seen, "pass", words)


def _factor(view: View, first: int, join: int, norm: float) -> float | None:
    """Return the one factor between the captures and the join, None when there is none.

    It must be the same for every first value and for the norms (``norm``: of all captures together): a factor of the
    first state alone, or of another one, is none of the join.
    """
    mine, theirs, whole = view.values(first), view.values(join), float(view.records["norm"][join])
    ratios = [b / a for a, b in zip(mine, theirs, strict=False) if a]
    if len(ratios) < 2 or not whole or not norm:
        return None
    if abs(ratios[0] - 1) < 1e-3 or max(ratios) - min(ratios) > 1e-2 * abs(ratios[0]):
        return None
    factor = sum(ratios) / len(ratios)
    # First values are printed as a short float type holds them; the distance from 1 must agree, not only the size.
    return whole / norm if abs(abs(factor) - whole / norm) <= 0.2 * abs(whole / norm - 1) else None


@rule(
    "N105",
    "join-order",
    "error",
    group="norms",
    needs="first values of the captures and of the joined state (or of the draft's input, when it has the join's norm)",
    message="The joined state {begins}, in {pass_}.",
    expected="{expected}",
    actual="{actual}",
    evidence="{lines}; {onset}",
    help="{advice}",
)
def join_order(view: View) -> Onset:
    """The first values of the joined state are not those of its first capture: order or content differs."""
    found, join = sums_of(view), view.taken(view.join)
    printed = view.join.copy()
    # Where the join prints no first values, the draft's input with the same norm stands for it.
    bare = view.target & (view.join >= 0) & (join["count"] == 0)
    if bare.any():
        due = view.due["at"]
        told = view.due["fresh"] & view.passes["how"].eq_missing("norm").to_numpy() & (view.read >= 0) & (due >= 0)
        told &= bare[view.of[due]]
        printed[view.of[due[told]]] = view.read[told]
    told = view.judged & view.target & (view.join >= 0) & (view.captured > 0)
    told &= found.rows
    chosen = found.joined.sum(axis=1)
    # What is captured and not joined is the embedding, where nothing else is known.
    skips = (chosen != view.states) & (view.states == view.captured - 1) & (view.captured > 1)
    told &= (view.states < 0) | (chosen == view.states) | (skips & (view.layer_of(0) == 0))
    begin = np.where(skips, 1, found.joined.argmax(axis=1) if found.joined.shape[1] else 0)
    at = view.capture(begin)
    holds = same_head(view.taken(at), view.taken(printed))
    alone, bad = np.zeros(view.size, np.bool_), holds == 0
    if view.differing.height:
        mine, theirs = (view.taken(at, others=one) for one in (False, True))
        out = [view.taken(printed, others=one) for one in (False, True)]
        fine = [(same_head(mine, one) != 0) | (same_head(theirs, one) != 0) for one in out]
        alone, bad = fine[0] != fine[1], ~fine[0] & ~fine[1]

    def detail(row: int, *, other: bool = False) -> dict[str, Any]:
        place, first = int(printed[row]), int(at[row])
        values = view.values(place, other=other)
        one = one_of(view.others if other else view.records, place)
        which = [
            int(capture)
            for capture in view.captures[row, : view.captured[row]].tolist()
            if same_head(one_of(view.records, capture), one)[0] == 1
        ]
        lines = [int(view.records["line"][first]), *(int(view.records["line"][one]) for one in which[:1])]
        source = view.others if other else view.records
        advice = "the first part of the join is another tensor, or other rows of this one"
        begins = f"does not begin with its first capture, {view.name(first)}, nor with another"
        if which:
            begins = f"begins with {view.name(which[0])}, not with {view.name(first)}"
            advice = "the states are joined in another order than the layers': the draft's fc expects rising layers"
        return {
            "begins": begins,
            "expected": head_words(view.values(first)),
            "actual": head_words(values),
            "lines": line_list(*lines, int(source["line"][place])),
            "advice": advice,
            "writers": view.writers(place, speaker=not other),
        }

    def detail_alone(row: int) -> dict[str, Any]:
        return detail(row, other=bool(fine[0][row]))

    line = view.taken(printed)["line"]
    return view.onset(told & (holds >= 0), bad, line, detail, alone, detail_alone if view.differing.height else None)


# ------------------------------------------------------------------------------------------------- the draft's input


@rule(
    "N106",
    "draft-input",
    "error",
    group="norms",
    needs="the joined state of a target pass and the draft's input right after it, with norm or first values",
    expected="{expected}",
    actual="{actual}",
)
def draft_input(view: View) -> dict[str, Any]:
    """The draft's k x hidden input is not the last joined state: stale, or wrong rows."""
    table, due, of = view.passes, view.due, view.due["at"]
    traced = table["traced"].cast(pl.Int64).fill_null(-1).to_numpy()
    reads = view.judged & ~view.target & (view.read >= 0) & due["fresh"] & (due["line"] >= 0)
    fed = (view.phase == EXTEND) | (view.phase == DRAFT_EXTEND) | ((view.phase == UNKNOWN) & (view.fc >= 0))
    read = view.taken(view.read)
    # One state where several were joined is S104's.
    looked = reads & fed & ~((read["width"] == read["embeds"]) & (read["width"] != due["width"]))
    bad = traced == 0
    kept = (read["rows"] >= 0) & (due["rows"] >= 0) & (read["rows"] < due["rows"])
    # Rows of a tree change their order, so without first values of the join nothing is told by the norm; by those of
    # its first capture it is.
    bare = looked & (due["count"] == 0) & (traced != 1)
    tree = bare & (view.segment.topk != 1)
    if tree.any():
        first = np.where(of >= 0, view.capture(np.zeros(view.size, np.int64))[view.of[of]], -1)
        holds = same_head(read, view.taken(first))
        bad = np.where(tree, holds == 0, bad)
        traced = np.where(tree, holds, traced)
    untold = looked & (traced < 0)
    looked &= traced >= 0
    ago = table["ago"].fill_null(-1).to_numpy()
    # What one writer alone reads: only where all writers joined one state.
    alone = np.zeros(view.size, np.bool_)
    if view.differing.height:
        split = looked & view.parted[np.maximum(view.read, 0)]
        alone, bad = _one_reader(view, split, of, bad)

    def detail(row: int, *, other: bool = False) -> dict[str, Any]:
        place = int(view.read[row])
        source = view.others if other else view.records
        values = view.values(place, other=other)
        zeros = source["norm"][place] == 0 and source["rows"][place] != 0 and not any(values)
        joined = due["norm"][row]
        theirs = view.values(int(of[row])) if of[row] >= 0 else []
        return {
            "zeros": bool(zeros),
            "ago": 0 if other else int(ago[row]),
            "differs": _difference(view.taken(view.read, others=other), due, row, values, theirs),
            "due_line": int(due["line"][row]),
            "expected": _print(int(due["rows"][row]), float(joined) if due["slack"][row] >= 0 else None, theirs),
            "actual": _print(
                int(source["rows"][place]),
                float(source["norm"][place]) if source["slack"][place] >= 0 else None,
                values,
            ),
            "writers": view.writers(place, speaker=not other),
        }

    def detail_alone(row: int) -> dict[str, Any]:
        return detail(row, other=traced[row] == 1)

    line = np.where(alone & (traced == 1), view.taken(view.read, others=True)["line"], read["line"])
    part: dict[str, Any] = {"untold": int(untold.sum()), "trees": int((untold & tree).sum())}
    for name, mask in (("every", looked), ("whole", looked & ~kept), ("kept", looked & kept)):
        part[name] = view.onset(mask, bad, line, detail, alone, detail_alone)
    return part


def _one_reader(view: View, split: Array, of: Array, bad: Array) -> tuple[Array, Array]:
    """Return where one writer alone reads another state than was joined, and where all do.

    Of an input that writers print differently both values are compared with the joined state; where its own writers
    joined different ones, which of them is due cannot be told.
    """
    agreed = split & (of >= 0) & ~view.parted[np.maximum(of, 0)]
    due_state = view.taken(of)
    theirs = view.taken(view.read, others=True)
    fine = (same_norm(theirs, due_state) != 0) & (same_head(theirs, due_state) != 0)
    alone = agreed & (fine == bad)
    return alone, np.where(split, agreed & bad & ~fine, bad)


def _print(rows: int, norm: float | None, values: Sequence[float]) -> str:
    return f"{count(max(rows, 0), 'row')}, {'' if norm is None else f'norm {norm:.4f}, '}{head_words(values)}"


def _difference(read: Columns, due: Columns, row: int, mine: Sequence[float], theirs: Sequence[float]) -> str:
    """Say in words how an input differs from the joined state before it."""
    if read["width"][row] != due["width"][row]:
        return f"width {read['width'][row]} against {due['width'][row]}"
    if read["rows"][row] > due["rows"][row] >= 0:
        return f"{read['rows'][row]} rows read, {due['rows'][row]} rows joined"
    if read["count"][row] and (read["key"][row] != due["key"][row] or not due["count"][row]) and mine != theirs:
        return "the first values differ"
    return f"norm {float(read['norm'][row])} against {float(due['norm'][row])}"


@draft_input.answer
def _(part: dict[str, Any], life: Life) -> Iterator[Finding]:
    # Spec v1 keeps the accepted rows of the requests that go on: when request 0 has just ended, row 0 is another.
    most = part["kept"].seen >= _LEAST_V1_INPUTS and part["kept"].bad * 2 > part["kept"].seen
    names = ("every",) if life.segment.spec_version == "v2" else ("whole", "kept") if most else ("whole",)
    found = [(one, alone) for one, alone in (earliest(part[name], life) for name in names) if one is not None]
    if not found:
        return
    onset, alone = min(found, key=lambda one: one[0].first.place.line)
    detail, every = onset.first.detail, [onset] if alone else [part[name] for name in names]
    bad, seen = (sum(getattr(one, name) for one in every) for name in ("bad", "seen"))
    if detail["zeros"]:
        what = "it is all zero"
        advice = "a buffer that was never written reaches the draft: look at what copies the joined state"
    elif detail["ago"] > 0:
        what = "it is the one before it" if detail["ago"] == 1 else f"it is {detail['ago']} target passes older"
        advice = "a buffer is read before the new states are written into it: look at the order of copy and forward"
    else:
        what = detail["differs"]
        advice = "other rows, or another buffer, reach the draft: compare both lines"
    yield draft_input.told(
        onset,
        alone=alone,
        message="The draft's input is not the state that was joined last: here {what}; "
        f"{percent(bad, seen)} of {count(seen, 'input')}.",
        evidence="{onset}; the joined state before it stands at line {due_line}",
        help=advice,
        what=what,
    )


@draft_input.why_not
def _(part: dict[str, Any], _life: Life) -> str | None:
    if part["trees"]:
        return "rows of a tree change their order, and no first values are printed"
    return "too little of the joined states and inputs is printed to compare" if part["untold"] else None


@draft_input.checked
def _(part: dict[str, Any], life: Life) -> Checked:
    kept = part["kept"]
    v1 = kept.bad and life.segment.spec_version != "v2"
    worst = f"{kept.bad} of {kept.seen} inputs of spec v1 begin with another row" if v1 else None
    return Checked(part["every"].seen, "input", worst)


# ----------------------------------------------------------------------------------------------------- frozen states


@dataclass
class Frozen:
    """States of one source from pass to pass.

    first, last
        the passes at its edges, as many as a streak needs: a streak over a border stands in them.
    found
        by layer the first pass that repeats a state, of a streak that is long enough.
    """

    seen: int
    width: int
    first: Columns
    last: Columns
    found: dict[int, Seen]

    def __add__(self, other: Frozen) -> Frozen:
        """Return both as one."""
        seen, width, found = _streaks(_beside(self.last, other.first))
        return Frozen(
            self.seen + other.seen + seen - _streaks(self.last)[0] - _streaks(other.first)[0],
            max(self.width, other.width, width),
            _some(_beside(self.first, other.first), slice(0, _FROZEN)),
            _some(_beside(self.last, other.last), slice(-_FROZEN, None)),
            {**other.found, **found, **self.found},
        )


def _some(passes: Columns, rows: slice) -> Columns:
    return {name: column[rows] for name, column in passes.items()}


def _beside(one: Columns, other: Columns) -> Columns:
    """Return the passes of both; the one with fewer captures is filled up with none."""
    wide = max(part["layer"].shape[1] for part in (one, other))
    filled = [
        {name: np.pad(column, [(0, 0), (0, wide - column.shape[1])], constant_values=0) if column.ndim > 1 else column
         for name, column in part.items()} for part in (one, other)
    ]  # fmt: skip
    return {name: np.concatenate([part[name] for part in filled]) for name in one}


@rule(
    "N107",
    "frozen",
    "error",
    group="norms",
    needs="target passes with two or more layer captures that print first values",
    message="{what} from pass to pass, while {but}.",
    expected="another state in every pass",
    actual="norm {norm} and the same first values in more than {passes} passes in a row",
    evidence="the first repetition is in {pass_}, line {line}",
    help="what is captured is a view of a buffer that is not written any more",
)
def frozen(view: View) -> dict[Any, Frozen]:
    """A captured state does not change from pass to pass while the others do, or none changes from verify to verify."""
    made = {}
    useful = view.target & view.judged & (view.captured > 0)
    for group in np.unique(view.group[useful]).tolist():
        rows = np.flatnonzero(useful & (view.group == group))
        taken = view.taken(view.captures[rows])
        every: Columns = {name: taken[name] for name in ("layer", "norm", "key", "line")}
        every |= {"telling": _telling(taken) & (taken["layer"] > 0), "verify": view.phase[rows] == VERIFY}
        every["seen"] = np.fromiter(map(view.seen, rows.tolist()), object, len(rows))
        seen, width, found = _streaks(every)
        edges = (_some(every, slice(0, _FROZEN)), _some(every, slice(-_FROZEN, None)))
        made[view.tables.groups[group]] = Frozen(seen, width, *edges, found)
    return made


def _streaks(passes: Columns) -> tuple[int, int, dict[int, Seen]]:
    """Return the comparisons of passes with the one before, the most layers in one, and by layer the first streak."""
    now, before = _some(passes, slice(1, None)), _some(passes, slice(-1))
    both = now["telling"] & before["telling"] & (now["layer"] == before["layer"])
    heads, norms = (now["key"] == before["key"]) & both, now["norm"] == before["norm"]
    amount = both.sum(axis=1)
    # All of them unchanged is the same prompt again, unless it is a verify: its tokens are new every time.
    every = (heads | ~both).all(axis=1) & ~(now["verify"] & (norms | ~both).all(axis=1))
    still = heads & ((amount > 1) & ~every)[:, None]
    found: dict[int, Seen] = {}
    for layer in np.unique(now["layer"][still]).tolist():
        mask = (still & (now["layer"] == layer)).any(axis=1)
        run = np.convolve(mask, np.ones(_FROZEN, np.int64), "valid") == _FROZEN if len(mask) >= _FROZEN else mask[:0]
        if run.any():
            at = int(run.argmax())
            column = int((now["layer"][at] == layer).argmax())
            seen = now["seen"][at]
            place = Place(seen.place.file, int(now["line"][at, column]))
            found[layer] = seen._replace(place=place, detail={"norm": f"{float(now['norm'][at, column]):.4f}"})
    return int((amount > 1).sum()), int(amount.max(initial=0)), found


@frozen.answer
def _(part: dict[Any, Frozen], life: Life) -> Iterator[Finding]:
    found: dict[int, Seen] = {}
    for source in part.values():
        for layer, seen in source.found.items():
            found[layer] = min(found.get(layer, seen), seen, key=lambda one: one.place.line)
    told = sorted(found.items())
    whole = len(found) == max((one.width for one in part.values()), default=0) > 1
    if whole:
        told = [min(found.items(), key=lambda one: one[1].place.line)]
    for layer, first in told:
        what = "No captured state changes" if whole else f"The state of layer {layer} does not change"
        but = "new tokens change every state" if whole else "other layers' do"
        detail = {**first.detail, "what": what, "but": but, "passes": _FROZEN, "line": first.place.line}
        yield frozen.told(Onset(1, 1, 1, first._replace(detail=detail)))


@frozen.checked
def _(part: dict[Any, Frozen], life: Life) -> Checked:
    return Checked(sum(one.seen for one in part.values()))


@rule("N201", "drift", "warning", group="norms", needs="a second run to compare with: logscope diff GOOD THIS")
def drift(_view: View) -> None:
    """A state's rms differs from that of a good run. ``check`` never decides it: it is ``diff``'s."""


@drift.why_not
def _(_part: None, _life: Life) -> str:
    return (
        "whether the fc's output is right, whether two states after the first are exchanged before they are captured,"
        " and whether a whole pass is scaled cannot be decided without a baseline: logscope diff GOOD THIS"
    )
