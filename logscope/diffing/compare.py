"""What paired forward passes hold on each side: state by state, equal, within tolerance or beyond, and what is missing.

This module is responsible for judging the pairs that :mod:`logscope.diffing.align` found: their records joined, which
of them may be compared at all, how far they lie apart, and where each difference begins. It must not know
configuration, acceptance or words for people.

Tolerances, and what they rest on (docs/explanation/diff.md has the measurements):

``RTOL`` of a norm is 2^-9, the rounding of one single bf16 value; a norm over thousands of them is far better known.
Noise of equal inputs stays under 0.02 %, the smallest real drift on record is 0.9 %. ``HEAD_TOLERANCE`` of the first
values, taken as a vector, is a quarter of its length: noise reached 0.18 of it at layer 59, unrelated values stand at
about 1.4.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from logscope.diffing.align import CAPTURE, JOIN, READ, Points, Side, Slot, close, is_capture, paired_records

if TYPE_CHECKING:
    from logscope.diffing.align import Alignment, Array

RTOL = 2.0**-9
HEAD_TOLERANCE = 0.25
# Above a lowest state that agrees only up to noise, the noise grows, and rows that are not printed may hold other
# tokens: only beyond this many tolerances, and in most such pairs, is it a difference.
NEAR_FACTOR = 10.0
# The most rounds between a round and the verify pass that shows which token it sampled.
_REACH = 4
# How a joined record came out, in this order; a state that one side alone prints, or damaged, is not compared.
NOTHING, NOT_COMPARED, EQUAL, WITHIN, BEYOND = range(5)

# What may differ: in form, then in value.
VALUES = ("norm", "head", "not_finite")
WHATS = ("record", "captures", "mode", "joined", "copies", "rank", "shape", *VALUES)
RECORD, CAPTURES, MODE, STATES, COPIES, RANK, SHAPE, NORM, HEAD, NOT_FINITE = range(len(WHATS))


class Spot(NamedTuple):
    """Where one side of a difference stands; line None: nowhere, the record is not there.

    ``number`` is the pass's own, ``ordinal`` which of its role and phase it is. ``value`` is a norm, first values, a
    mode, a shape, a number of states or copies, the deviating copy, or the captured layers, as the difference says.
    """

    file: str
    line: int | None
    number: int
    ordinal: int
    value: Any = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else "not printed"


@dataclass(slots=True)
class Difference:
    """One way in which the runs differ: its first place, and how often it comes again.

    ``sides`` are baseline and candidate, ``passes`` their passes. ``relative`` is (candidate - baseline) over baseline
    of the first norm, ``largest`` the largest of all; None where norms say nothing. ``equal_before`` and
    ``agreeing_before`` count the passes compared before it, ``agreeing`` are the states of the same pass that agree,
    ``previous`` is the last pass that does. ``pieces`` are the numbers of passes when a prefill was cut.
    """

    what: str
    role: str
    phase: str
    during: str
    slot: int
    ground: str | None
    order: tuple[int, ...]
    sides: tuple[Spot, Spot]
    passes: tuple[int, int]
    rows: tuple[int | None, int | None]
    relative: float | None = None
    largest: float | None = None
    pieces: tuple[int, int] = (1, 1)
    same_head: bool | None = None
    count: int = 1
    equal_before: int = 0
    agreeing_before: int = 0
    agreeing: list[int] = field(default_factory=list)
    previous: tuple[Spot, Spot] | None = None


class Terms(NamedTuple):
    """What the comparison must know of both set-ups. ``topk`` is the larger of the two, 1 when unknown."""

    rtol: float = RTOL
    topk: int = 1
    same_spec: bool = True


@dataclass(slots=True)
class Comparison:
    """What pairs and leftovers say.

    cells
        one row a role, phase and slot: pairs compared and how they came out, records that only one side has, and
        what could not be compared; ``largest`` relative difference, and the lines of it.
    paired, identical
        pairs by role and ground; those that print equal states throughout. ``drafts``: of draft passes behind a target.
    apart
        passes that are not comparable by (side, role, phase, reason).
    alone
        passes only one run has by (side, role, phase, at_end), with the first; ``fragments`` those that lack what
        their like have: a record printed once too often.
    """

    cells: pl.DataFrame = field(default_factory=pl.DataFrame)
    differences: list[Difference] = field(default_factory=list)
    paired: Counter[tuple[str, str]] = field(default_factory=Counter)
    identical: Counter[tuple[str, str]] = field(default_factory=Counter)
    drafts: int = 0
    identical_drafts: int = 0
    apart: Counter[tuple[int, str, str, str]] = field(default_factory=Counter)
    alone: dict[tuple[int, str, str, bool], tuple[int, Spot]] = field(default_factory=dict)
    fragments: list[tuple[int, str, str, Spot]] = field(default_factory=list)


def judge(one: Points, other: Points, rtol: float, heads: Array) -> tuple[Array, Array, Array]:
    """Return how states agree (EQUAL, WITHIN, BEYOND), the relative difference of norms (nan: none), what differs.

    Equal is meant at the coarser of the two prints. ``heads`` tells whether the first rows are the same row.
    """
    ill = np.isfinite(one.norm) != np.isfinite(other.norm)
    ill |= (one.finite_head() != other.finite_head()) & heads
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.where(np.isfinite(one.norm) & (one.norm != 0) & ~ill, (other.norm - one.norm) / one.norm, np.nan)
        slack = one.slack + other.slack + rtol * np.maximum(np.abs(one.norm), np.abs(other.norm))
    same_norm, same_head = one.same_norm(other), one.same_head(other) | ~heads
    norm = ~same_norm & ~close(one.norm, other.norm, slack)
    head = ~same_head & (one.distance(other) > HEAD_TOLERANCE)
    what = np.select([ill, norm, head], [NOT_FINITE, NORM, HEAD], NORM)
    grade = np.where(ill | norm | head, BEYOND, np.where(same_norm & same_head, EQUAL, WITHIN))
    return grade, relative, what


def compare(sides: tuple[Side, Side], alignment: Alignment, terms: Terms) -> Comparison:
    """Judge every pair of an alignment, in the order of the runs, then account for what has no partner."""
    return _Comparer(sides, alignment, terms).run()


@dataclass(slots=True)
class _Rows:
    """Joined records of cases, as arrays: ``a`` and ``b`` are rows of both sides, -1 for none.

    ``grade`` counts for the case, ``cell`` in the table of states; ``beyond``: before doubts, ``doubt``: noise may be
    the reason; ``exact``: printed the very same; ``alike``: first values too, at the coarser print.
    """

    case: Array
    slot: Array
    a: Array
    b: Array
    grade: Array
    cell: Array
    what: Array
    relative: Array
    beyond: Array
    doubt: Array
    exact: Array
    alike: Array

    def take(self, at: Array) -> _Rows:
        """Return some rows."""
        return _Rows(*(getattr(self, column.name)[at] for column in fields(self)))


# Differences of form: the row of the joined record, and what differs.
_Found: TypeAlias = "list[tuple[Array, int]]"


class _Comparer:
    """Joins the records of pairs and keeps the books.

    A *case* is two passes under comparison: ``place`` is 0 for the leading pass of a round, then 1, 2, ... for those
    that follow. A weak case rests on its place alone: equal values are equal, others prove nothing.
    """

    def __init__(self, sides: tuple[Side, Side], alignment: Alignment, terms: Terms) -> None:
        self.sides, self.alignment, self.terms = sides, alignment, terms
        self.usual = sides[0].usual(), sides[1].usual()
        self.joined = sides[0].joined(), sides[1].joined()
        self.edges = [_edges(side, rounds) for side, rounds in zip(sides, alignment.rounds, strict=True)]
        self.out = Comparison()
        self.gone: list[pl.DataFrame] = []

    def run(self) -> Comparison:
        """Compare every pair, then account for what has no partner."""
        pairs = self.alignment.pairs.with_columns(at=pl.col("one") + pl.col("other"), first="one")
        pairs = pairs.sort("at", pl.min_horizontal("one", "other"), maintain_order=True).with_row_index("pair")
        self._apart("context", pairs.filter(~pl.col("supported")))
        self._apart("pieces", pairs.filter("supported", ground="pieces"), leads=False)
        pairs = pairs.filter("supported").with_columns(place=pl.lit(0, pl.Int64), weak=pl.col("ground") == "place")
        leads = self._cases(pairs.with_columns(self._united(pairs, side) for side in (0, 1)))
        leads, rows, found = self._summed(leads, *self._rows(leads))
        counted = leads.group_by("role", "ground", maintain_order=True).agg(pl.len(), pl.col("identical").sum())
        for role, ground, number, identical in counted.iter_rows():
            self.out.paired[role, ground], self.out.identical[role, ground] = number, identical
        cases = leads
        if self.alignment.role == "target":
            drafts, more, others = self._followers(leads.filter(pl.col("ground") != "pieces", role="target"))
            self.out.drafts, self.out.identical_drafts = drafts.height, int(drafts["identical"].sum())
            more.case += leads.height
            found += [(at + len(rows.case), what) for at, what in others]
            rows = _Rows(
                *(np.concatenate([getattr(part, each.name) for part in (rows, more)]) for each in fields(_Rows))
            )
            cases = pl.concat([leads, drafts], how="diagonal")
        self._books(cases, rows, found)
        self._rest()
        return self.out

    def _united(self, pairs: pl.DataFrame, side: int) -> pl.Series:
        """Return the leading passes of pairs, of a prefill that was cut one pass of all its pieces."""
        rows = pairs[("one", "other")[side]].to_list()
        for at in (pairs["ground"] == "pieces").arg_true().to_list():
            pieces = self.alignment.pieces[pairs["first"][at]][side]
            rows[at] = self.sides[side].unite(pieces) if len(pieces) > 1 else rows[at]
        return pl.Series(("one", "other")[side], rows, dtype=pl.Int64)

    # pairs of passes, and their records side by side

    def _cases(self, pairs: pl.DataFrame) -> pl.DataFrame:
        """Add what the passes are: a case has the phase of the baseline, the candidate's where that is unknown."""
        one, other = (side.passes.select("role", "phase", "during").gather(pairs[name]) for side, name in
                      zip(self.sides, ("one", "other"), strict=True))  # fmt: skip
        cases = pairs.with_columns(one["role", "during"], mine=one["phase"], theirs=other["phase"])
        kinds = cases.select("role", "mine", "theirs").unique()
        slots = [self.captured_apart((r, p), (r, q)) if r == "target" else None for r, p, q in kinds.iter_rows()]
        kinds = kinds.with_columns(apart=pl.Series(slots, dtype=pl.Int64))
        return cases.join(kinds, on=["role", "mine", "theirs"], maintain_order="left").with_columns(
            phase=pl.when(mine="unknown").then("theirs").otherwise("mine"),
            heads=~pl.col("ground").is_in(["order", "near"]),
        )

    def _rows(self, cases: pl.DataFrame) -> tuple[_Rows, _Found]:
        """Return the joined records of cases, each judged, and their differences of form."""
        case, slot, a, b = paired_records(self.sides, cases["one"].to_numpy(), cases["other"].to_numpy())
        number, single = len(case), (cases["ground"] != "pieces").to_numpy()
        grade, cell, what = np.zeros((3, number), np.int8)
        beyond, doubt, was_exact, alike = np.zeros((4, number), bool)
        out = _Rows(case, slot, a, b, grade, cell, what, np.full(number, np.nan), beyond, doubt, was_exact, alike)
        # Where the runs capture other states, what is made of these is not compared.
        kept = [Slot(event).number >> 32 for event in (CAPTURE, "forward_end")]
        hidden = cases["apart"].is_not_null().to_numpy()[case] & ~np.isin(slot >> 32, kept)
        both = (a >= 0) & (b >= 0)
        out.grade[both] = out.cell[both] = NOT_COMPARED
        out.what[:] = SHAPE
        use = np.flatnonzero(both & ~hidden)
        said = [{name: side.array[name][rows[use]] for name in ("form", "norm", "key", "state", "copies", "differ")}
                for side, rows in zip(self.sides, (a, b), strict=True)]  # fmt: skip
        form = [{name: side.array[name][each["form"]] for name in ("shape", "rows", "usable")}
                for side, each in zip(self.sides, said, strict=True)]  # fmt: skip
        shape, usable = form[0]["shape"] == form[1]["shape"], form[0]["usable"] & form[1]["usable"]
        other_shape = usable & ~shape & (form[0]["shape"] != 0) & (form[1]["shape"] != 0)
        good = said[0]["state"] & said[1]["state"] & ~other_shape & (form[0]["rows"] == form[1]["rows"])
        norm = said[0]["norm"]
        exact = (
            good
            & shape
            & (said[0]["key"] == said[1]["key"])
            & ((norm == said[1]["norm"]) | (np.isnan(norm) & np.isnan(said[1]["norm"])))
        )
        nothing = usable & ~other_shape & ~said[0]["state"] & ~said[1]["state"]
        out.grade[use] = np.select([exact, other_shape, nothing], [EQUAL, BEYOND, NOTHING], NOT_COMPARED)
        out.relative[use[exact & np.isfinite(norm) & (norm != 0)]] = 0.0
        out.alike[use] = exact
        out.exact[use] = exact & (said[0]["differ"] == 0) & (said[1]["differ"] == 0)
        at = use[good & ~exact]
        one, other = (Points.of(side, rows[at]) for side, rows in zip(self.sides, (a, b), strict=True))
        out.grade[at], out.relative[at], out.what[at] = judge(
            one, other, self.terms.rtol, cases["heads"].to_numpy()[case[at]]
        )
        out.alike[at] = one.alike(other) & (one.count > 0)
        out.beyond[:] = out.grade == BEYOND
        values = np.zeros(number, bool)
        values[use[good]] = True
        self._weaken(out, values & cases["weak"].to_numpy()[case])
        # Noise grows above a state that agrees up to noise: what most of such pairs show is decided at the end.
        near = (cases["ground"] == "near").to_numpy()[case] & values
        noisy = near & out.beyond & (out.what == NORM) & (out.grade == BEYOND)
        out.cell[values | (out.grade >= EQUAL) | (out.grade == NOTHING)] = out.grade[
            values | (out.grade >= EQUAL) | (out.grade == NOTHING)
        ]
        out.cell[noisy], out.grade[noisy] = NOT_COMPARED, WITHIN
        with np.errstate(invalid="ignore"):
            out.doubt[:] = noisy & ~(np.abs(out.relative) <= NEAR_FACTOR * self.terms.rtol)
        mode, states = (
            [side.forms[name].gather(each["form"]) for side, each in zip(self.sides, said, strict=True)]
            for name in ("mode", "states")
        )
        expected = [
            side.passes["expected"].gather(cases[name]).fill_null(-1).to_numpy()[case[use]]
            for side, name in zip(self.sides, ("one", "other"), strict=True)
        ]
        odd = [(expect >= 0) & (expect != each["copies"]) for expect, each in zip(expected, said, strict=True)]
        # A number and a name are two prints of a mode that nothing in the log sets equal.
        digits = [each.str.contains(r"^\d+$") for each in mode]
        masks = {
            MODE: ((mode[0] != mode[1]) & (digits[0] == digits[1])).fill_null(value=False).to_numpy(),
            STATES: (states[0] != states[1]).fill_null(value=False).to_numpy()
            & cases["apart"].is_null().to_numpy()[case[use]],
            COPIES: (odd[0] != odd[1]) & (said[0]["copies"] != said[1]["copies"]) & single[case[use]],
            RANK: ((said[0]["differ"] > 0) != (said[1]["differ"] > 0)) & single[case[use]],
            SHAPE: other_shape,
        }
        return out, [(use[mask], what) for what, mask in masks.items()] + self._one_sided(cases, out, single)

    @staticmethod
    def _weaken(rows: _Rows, weak: Array) -> None:
        """Let values of weak cases that are not equal prove nothing."""
        at = weak & (rows.grade > EQUAL)
        rows.grade[at] = rows.cell[at] = NOT_COMPARED

    def _one_sided(self, cases: pl.DataFrame, rows: _Rows, single: Array) -> _Found:
        """Return records that only one of two passes has, unless a cut edge or a way of printing explains it."""
        at = np.flatnonzero(((rows.a < 0) | (rows.b < 0)) & single[rows.case])
        # A record may be missing because the log is cut: before its first or behind its last one.
        for name, there, edges in (("one", rows.b, self.edges[0]), ("other", rows.a, self.edges[1])):
            cut = np.isin(cases[name].to_numpy()[rows.case[at]], list(edges)) & (there[at] >= 0)
            ends = [edges[row] for row in cases[name].to_numpy()[rows.case[at[cut]]].tolist()]
            gone = [
                not low <= slot <= high for (low, high), slot in zip(ends, rows.slot[at[cut]].tolist(), strict=True)
            ]
            at = np.delete(at, np.flatnonzero(cut)[gone])
        alone = cases.select("role", "mine", "theirs", "apart").gather(rows.case[at])
        alone = alone.with_columns(slot=rows.slot[at], lacking=(rows.b[at] < 0).astype(np.int8))
        kinds, words = alone.unique(), []
        for role, mine, theirs, apart, slot, lacking in kinds.iter_rows():
            has, lacks = (
                slot in self.usual[side].get((role, (mine, theirs)[side]), ()) for side in (1 - lacking, lacking)
            )
            usual = has and not lacks and not slot & 0xFF
            words.append(RECORD if not usual else CAPTURES if is_capture(slot) and apart is not None else -1)
        kinds = kinds.with_columns(what=pl.Series(words, dtype=pl.Int8))
        what = alone.join(kinds, on=alone.columns, nulls_equal=True, maintain_order="left")["what"].to_numpy()
        return [(at[what == each], each) for each in (RECORD, CAPTURES)]

    def captured_apart(self, one: tuple[str, str], other: tuple[str, str]) -> int | None:
        """Return the lowest slot that only one run captures in passes of a role and phase, None when there is none.

        A run that joins as many states and prints only some of them, or none, captures them all the same.
        """
        captured = [
            frozenset(filter(is_capture, usual.get(key, ())))
            for usual, key in zip(self.usual, (one, other), strict=True)
        ]
        fewer = captured[0] <= captured[1] or captured[1] <= captured[0]
        numbers = self.joined[0].get(one), self.joined[1].get(other)
        if fewer and (not all(captured) or (numbers[0] is not None and numbers[0] == numbers[1])):
            return None
        return min(captured[0] ^ captured[1], default=None)

    def _summed(self, cases: pl.DataFrame, rows: _Rows, found: _Found) -> tuple[pl.DataFrame, _Rows, _Found]:
        """Add to cases whether all that was compared is equal, nothing is beyond tolerance, the joined states agree."""
        number = cases.height

        def any_of(mask: Array) -> Array:
            return np.bincount(rows.case[mask], minlength=number) > 0

        unsound = np.zeros(number, bool)
        for at, _ in found:
            unsound[rows.case[at]] = True
        compared, join = rows.grade >= EQUAL, rows.slot == JOIN
        agrees = ~any_of(rows.grade == BEYOND) & ~unsound
        whole = ~any_of(join & compared) & agrees & ~cases["weak"].to_numpy() & cases["apart"].is_null().to_numpy()
        cases = cases.with_columns(
            identical=agrees & ~any_of(rows.grade == WITHIN), agreed=agrees & any_of(compared),
            trusted=whole | any_of(join & compared & (rows.grade != BEYOND)),
        )  # fmt: skip
        return cases, rows, found

    # the draft passes of a round

    def _followers(self, leads: pl.DataFrame) -> tuple[pl.DataFrame, _Rows, _Found]:
        """Compare the draft passes of rounds, as far as what they were given agrees."""
        cases = self._side_by_side(leads)
        rows, found = self._rows(cases)
        number = cases.height
        read, kept = np.full(number, -1), np.full(number, -1)
        for at, slot in ((read, READ), (kept, JOIN)):
            there = np.flatnonzero((rows.slot == slot) & (rows.a >= 0) & (rows.b >= 0))
            there = there[self.sides[0].array["state"][rows.a[there]] & self.sides[1].array["state"][rows.b[there]]]
            at[rows.case[there]] = there
        alike = np.bincount(rows.case[rows.alike], minlength=number) > 0
        exact = np.bincount(rows.case[~rows.exact], minlength=number) == 0
        trusted, reads = cases["trusted"].to_numpy(), cases["phase"].is_in(["extend", "draft_extend"]).to_numpy()
        known, inputs, outputs = read >= 0, rows.take(read), rows.take(kept)
        same_rows, same_shape = self._same(inputs, "rows"), self._same(inputs, "shape")
        left_out = np.zeros(number, bool)
        for side, names in zip(self.sides, (("one", "lead"), ("other", "other_lead")), strict=True):
            lengths = [side.passes["rows"].gather(cases[name]).fill_null(-1).to_numpy() for name in names]
            left_out |= lengths[0] != lengths[1]
        spec = (cases["phase"] == "draft_extend").to_numpy() & (not self.terms.same_spec)
        first = np.diff(cases["pair"].to_numpy().astype(int), prepend=-1) != 0
        differs = known & same_rows & same_shape & inputs.beyond & ~alike
        stale = trusted & ~left_out & ~((inputs.what == NORM) & (self.terms.topk > 1))
        handed = self._handed_otherwise(inputs, outputs, read, kept)
        why = np.select(
            [spec, ~known & ~alike & ~exact & ~trusted, ~known, ~same_rows, ~same_shape & ~trusted, ~differs,
             reads & ~trusted, reads & ~stale, ~reads & (first | ~handed)],
            ["spec", "joined", "", "rows", "joined", "", "joined", "rows", "draft"], "",
        )  # fmt: skip
        # A draft step is comparable behind one that was compared; what reads the target's state begins anew.
        bad = np.cumsum((why != "") | (first & ~reads))
        start = np.maximum.accumulate(np.where(reads | first, np.arange(number), 0))
        before = np.append(0, bad)[:-1] - np.append(0, bad)[start]
        why = np.where(~reads & ((before > 0) | first), "draft", why)
        good, only = why == "", differs & (why == "")
        shown = (kept >= 0) & self._same(outputs, "shape") & outputs.beyond & (outputs.what != NOT_FINITE)
        skip, at = np.zeros(number, bool), np.flatnonzero(shown & good & ~only)
        skip[at] = self._other_token(cases[at], outputs.what[at])
        reasons = cases.with_columns(why=pl.Series(why.tolist(), dtype=pl.String)).filter(~good)
        self._count_apart(0, reasons.select("why", p="one"))
        self._count_apart(1, reasons.select("why", p="other"))
        self._weaken(rows, (~known & ~alike & ~exact)[rows.case] & (rows.what != SHAPE))
        both = (rows.a >= 0) & (rows.b >= 0)
        skipped = skip[rows.case] & (rows.slot == JOIN) & both
        rows.grade[skipped], rows.cell[skipped] = NOTHING, NOT_COMPARED
        wanted = good[rows.case] & (~only[rows.case] | (rows.slot == READ))
        place = np.cumsum(wanted) - 1
        found = [(place[at[wanted[at] & ~skipped[at]]], what) for at, what in found]
        rows = rows.take(wanted)
        rows.case = (np.cumsum(good) - 1)[rows.case]
        return self._summed(cases.filter(good), rows, found)

    def _same(self, rows: _Rows, name: str) -> Array:
        """Return whether the shapes, or numbers of rows, of joined records are the same."""
        one, other = (
            side.array[name][side.array["form"][at]] for side, at in zip(self.sides, (rows.a, rows.b), strict=True)
        )
        found: Array = one == other
        return found

    def _side_by_side(self, leads: pl.DataFrame) -> pl.DataFrame:
        """Return the draft passes of rounds side by side: in order where there are equally many, else by phase."""
        parts = []
        for rounds, name in zip(self.alignment.rounds, ("one", "other"), strict=True):
            pair = leads.select("pair", p=name).join(rounds.filter(place=0).select("p", "round"), on="p")
            found = rounds.filter(pl.col("place") > 0).join(pair.select("pair", "round"), on="round")
            parts.append(found.select("pair", "place", "phase", pl.col("p").alias(name), number=pl.len().over("pair")))
        sizes = [part.select("pair", "number").unique() for part in parts]
        even = sizes[0].join(sizes[1], on=["pair", "number"])["pair"].implode()
        in_order, by_phase = (
            [part.filter(pl.col("pair").is_in(even) == each).with_columns(nth=nth) for part in parts]
            for each, nth in ((True, pl.col("place")), (False, pl.int_range(pl.len()).over("pair", "phase")))
        )
        both = pl.concat([
            one.join(other, on=on, how="full", coalesce=True).select("pair", "place", "one", "other")
            for (one, other), on in ((in_order, ["pair", "nth"]), (by_phase, ["pair", "phase", "nth"]))
        ])  # fmt: skip
        for side, (name, lacks) in enumerate((("one", "other"), ("other", "one"))):
            self.gone.append(both.filter(pl.col(lacks).is_null()).select(p=name, side=side, at_end=pl.lit(value=False)))
        both = both.drop_nulls().sort("pair", "place")
        lead = leads.select("pair", "ground", "lowest", "trusted", "at", "first", lead="one", other_lead="other")
        return self._cases(
            both.join(lead, on="pair", maintain_order="left").with_columns(weak=pl.col("ground") == "place")
        )

    def _handed_otherwise(self, read: _Rows, kept: _Rows, has_read: Array, has_kept: Array) -> Array:
        """Return whether one run hands on the output of the draft pass before, and the other something else."""
        found = np.zeros(len(has_read), bool)
        at = np.flatnonzero((np.roll(has_kept, 1) >= 0) & (has_read >= 0) & read.beyond)
        given = [Points.of(side, rows[at - 1]) for side, rows in zip(self.sides, (kept.a, kept.b), strict=True)]
        got = [Points.of(side, rows[at]) for side, rows in zip(self.sides, (read.a, read.b), strict=True)]
        handed = [one.alike(other) for one, other in zip(given, got, strict=True)]
        found[at] = given[0].alike(given[1]) & (handed[0] != handed[1])
        return found

    def _other_token(self, cases: pl.DataFrame, what: Array) -> Array:
        """Return whether the next verify pass shows that the draft was given another token in the two runs.

        The draft also reads the token the target just sampled, which no line prints. It is the first row of the next
        verify pass, whose lowest state tells whether the tokens were the same. Without such a pass they are assumed to
        be.
        """
        found = np.zeros(cases.height, bool)
        lowest = [
            _next_verify(side, rounds, cases[lead].to_numpy(), cases["lowest"].to_numpy())
            for side, rounds, lead in zip(self.sides, self.alignment.rounds, ("lead", "other_lead"), strict=True)
        ]
        good = np.flatnonzero((lowest[0] >= 0) & (lowest[1] >= 0))
        one, other = (Points.of(side, rows[good]) for side, rows in zip(self.sides, lowest, strict=True))
        same_first = one.same_head(other) | (one.distance(other) <= HEAD_TOLERANCE / 10)
        found[good] = ~one.alike(other) & (~same_first | (what[good] == NORM))
        return found

    # the books

    def _books(self, cases: pl.DataFrame, rows: _Rows, found: _Found) -> None:
        """Count what every state came to, and describe each way of differing at its first place."""
        order = cases.select(pl.arg_sort_by("pair", "place")).to_series().to_numpy()
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        equal = pl.col("agreed") & pl.col("identical")
        self.cases = cases[order].with_row_index("case").with_columns(
            equal_before=equal.cum_sum() - equal, agreeing_before=pl.col("agreed").cum_sum() - pl.col("agreed"),
            previous=pl.when("agreed").then("case").forward_fill().shift(1),
        )  # fmt: skip
        rows.case = rank[rows.case]
        self.rows = rows
        kinds = self.cases.select("role", "phase", near=pl.col("ground") == "near").gather(rows.case)
        names = ("case", "slot", "a", "b", "cell", "relative", "doubt", "what")
        table = kinds.with_columns(**{name: getattr(rows, name) for name in names}, graded=rows.grade >= EQUAL)
        key = ["role", "phase", "slot"]
        near = table.filter("near", "graded").group_by(key).agg(pl.len(), pl.col("doubt").sum())
        settled = near.filter(2 * pl.col("doubt") > pl.col("len")).select(*key, most=pl.lit(value=True))
        table = table.join(settled, on=key, how="left", maintain_order="left").with_columns(
            pl.when(pl.col("doubt") & pl.col("most")).then(BEYOND).otherwise("cell").alias("cell"),
            pl.col("relative").fill_nan(None),
        )
        judged = pl.col("cell") >= EQUAL
        largest = pl.when(judged).then(pl.col("relative").abs()).arg_max()
        self.out.cells = table.group_by(key).agg(
            pairs=judged.sum(), equal=(pl.col("cell") == EQUAL).sum(), within=(pl.col("cell") == WITHIN).sum(),
            beyond=(pl.col("cell") == BEYOND).sum(), largest=pl.col("relative").get(largest),
            largest_at=pl.concat_list("a", "b").get(largest), only_baseline=(pl.col("b") < 0).sum(),
            only_candidate=(pl.col("a") < 0).sum(), not_compared=(pl.col("cell") == NOT_COMPARED).sum(),
        )  # fmt: skip
        values = table.filter((pl.col("cell") == BEYOND) & (pl.col("what") > SHAPE))
        forms = [
            table[at].with_columns(what=pl.lit(what, pl.Int8), relative=pl.lit(None, pl.Float64)) for at, what in found
        ]
        every = pl.concat([values, *forms]).sort("case", "slot", "what").with_columns(
            kind=pl.when(pl.col("what") > SHAPE).then(-1).otherwise("what"),
            state=pl.when(pl.col("what") == CAPTURES).then(None).otherwise("slot"),
            lacking=(pl.col("what") == RECORD) & (pl.col("a") < 0),
        )  # fmt: skip
        for _, same in every.group_by("kind", "role", "phase", "state", "lacking", maintain_order=True):
            difference = self._difference(same.row(0, named=True))
            difference.count = int((same["slot"] == same["slot"][0]).sum())
            sizes = same["relative"].abs()
            at = sizes.arg_max()
            difference.largest = None if at is None else same["relative"][at]
            self.out.differences.append(difference)
        self._other_captures()
        self.out.differences.sort(key=lambda difference: difference.order)

    def _difference(self, found: dict[str, Any]) -> Difference:
        """Describe a difference at its first place."""
        case, what = self.cases.row(found["case"], named=True), found["what"]
        passes, records = (case["one"], case["other"]), (found["a"], found["b"])
        spots = []
        for side, (row, record) in enumerate(zip(passes, records, strict=True)):
            if what == CAPTURES:
                spots.append(self.spot(side, row, -1, self._captured(side, row)))
            else:
                value = self._value(what, side, record) if record >= 0 else None
                spots.append(self.spot(side, row, record, value, missing=what == RECORD and record < 0))
        same_head = None
        if what > SHAPE:
            one, other = (Points.of(side, np.array([record])) for side, record in zip(self.sides, records, strict=True))
            same_head = bool(one.same_head(other)[0]) if one.count[0] and other.count[0] else None
        here = (
            (self.rows.case == found["case"])
            & (self.rows.slot < found["slot"])
            & np.isin(self.rows.grade, (EQUAL, WITHIN))
        )
        previous = None
        if case["previous"] is not None:
            before = self.cases.row(case["previous"], named=True)
            previous = self.spot(0, before["one"]), self.spot(1, before["other"])
        pieces = self.alignment.pieces.get(case["first"], ([0], [0])) if case["ground"] == "pieces" else ([0], [0])
        return Difference(
            WHATS[what], case["role"], case["phase"], case["during"], found["slot"], case["ground"],
            (case["at"], case["place"], found["slot"]), (spots[0], spots[1]), passes, self._lengths(passes),
            found["relative"], found["relative"], (len(pieces[0]), len(pieces[1])), same_head, 1, case["equal_before"],
            case["agreeing_before"], sorted(self.rows.slot[here].tolist()),
            previous,
        )  # fmt: skip

    def _lengths(self, passes: tuple[int, int]) -> tuple[int | None, int | None]:
        return self.sides[0].passes["rows"][passes[0]], self.sides[1].passes["rows"][passes[1]]

    def _value(self, what: int, side: int, record: int) -> Any:
        """Return what one side prints of a difference."""
        kept = self.sides[side]
        said = kept.records.row(record, named=True)
        form = kept.forms.row(said["form"], named=True)
        other = kept.deviating.filter(record=record).rows(named=True) if what == RANK else []
        return {
            HEAD: tuple(said["values"][: said["count"]]), MODE: form["mode"], STATES: form["states"],
            COPIES: said["copies"], SHAPE: kept.heads[said["form"]].shape, RANK: next(iter(other), None),
        }.get(what, said["norm"])  # fmt: skip

    def spot(self, side: int, row: int, record: int = -1, value: Any = None, *, missing: bool = False) -> Spot:
        """Return where a record, or a pass, stands."""
        kept = self.sides[side]
        file, line, number, ordinal = kept.passes.select("file", "line", "number", "ordinal").row(row)
        line = None if missing else line if record < 0 else kept.records["line"][record]
        return Spot(kept.files[file], line, number, ordinal, value)

    def _captured(self, side: int, row: int) -> tuple[int | None, ...]:
        """Return the layers a pass captures, the embedding as 0."""
        first, last = self.sides[side].passes.select("first", "last").row(row)
        slots = self.sides[side].records["slot"][first : last + 1].to_list()
        return tuple(self.sides[side].slots[slot].layer for slot in slots if is_capture(slot))

    def _other_captures(self) -> None:
        """Name other captured layers also where no pass of the phase could be paired: at the first of both runs."""
        known = {(each.role, each.phase) for each in self.out.differences if each.what == "captures"}
        for key in sorted(self.usual[0].keys() & self.usual[1].keys() - known):
            slot = self.captured_apart(key, key) if key[0] == "target" else None
            if slot is None:
                continue
            firsts = []
            for side in self.sides:
                like = side.passes.with_row_index("p").filter(
                    pl.col("during") != "graph_capture", role=key[0], phase=key[1]
                )
                firsts.append(like.sort("complete", descending=True, maintain_order=True)["p"][0])
            before = self.cases.filter((pl.col("at") < sum(firsts)) & pl.col("agreed"))
            spots = [self.spot(side, row, -1, self._captured(side, row)) for side, row in enumerate(firsts)]
            passes = firsts[0], firsts[1]
            self.out.differences.append(Difference(
                WHATS[CAPTURES], *key, self.sides[0].passes["during"][firsts[0]], slot, None, (sum(firsts), 0, slot),
                (spots[0], spots[1]), passes, self._lengths(passes), equal_before=int(before["identical"].sum()),
                agreeing_before=before.height,
            ))  # fmt: skip

    # what has no partner

    def _rest(self) -> None:
        """Account for rounds without a partner, their draft passes with them."""
        for side, name in enumerate(("one", "other")):
            rounds, rest = self.alignment.rounds[side], self.alignment.rest.filter(pl.col(name) >= 0)
            lead = rounds.select("p", "round").join(rest.select("reason", "at_end", p=name), on="p").drop("p")
            passes = rounds.select("p", "round").join(lead, on="round")
            self.gone.append(passes.filter(pl.col("reason") == "").select("p", pl.lit(side).alias("side"), "at_end"))
            self._count_apart(side, passes.select("p", why="reason").filter(pl.col("why") != ""))
        for side in (0, 1):
            self._alone(side, pl.concat([each.filter(side=side) for each in self.gone]).sort("p"))

    def _alone(self, side: int, gone: pl.DataFrame) -> None:
        """Count passes that only one run has; keep those by themselves that are fragments."""
        kept = self.sides[side]
        kinds = gone.with_columns(kept.passes.select("role", "phase").gather(gone["p"]))
        counted = kinds.group_by("role", "phase", "at_end", maintain_order=True).agg(pl.len(), pl.col("p").first())
        for role, phase, at_end, number, first in counted.iter_rows():
            self.out.alone[side, role, phase, at_end] = number, self.spot(side, first)
        slots: dict[int, set[int]] = {row: set() for row in kinds["p"].to_list()}
        for row, slot in (
            kept.records.select(pl.col("p").cast(pl.Int64), "slot").filter(pl.col("p").is_in(list(slots))).iter_rows()
        ):
            slots[row].add(slot)
        for row, role, phase in kinds.select("p", "role", "phase").iter_rows():
            low, high = self.edges[side].get(row, (-1, 1 << 60))
            if any(low <= slot <= high for slot in self.usual[side].get((role, phase), frozenset()) - slots[row]):
                self.out.fragments.append((side, role, phase, self.spot(side, row)))

    def _apart(self, why: str, pairs: pl.DataFrame, *, leads: bool = True) -> None:
        """Count the rounds of pairs as not comparable; without ``leads`` only the draft passes in them."""
        for side, name in enumerate(("one", "other")):
            rows = [
                row
                for one, row in pairs.select("first", name).iter_rows()
                for row in self.alignment.pieces.get(one, ([row], [row]))[side]
            ]
            rounds = self.alignment.rounds[side]
            within = rounds.filter(pl.col("p").is_in(rows))["round"].implode()
            passes = rounds.filter(pl.col("round").is_in(within) & ((pl.col("place") > 0) | leads))
            self._count_apart(side, passes.select("p", why=pl.lit(why)))

    def _count_apart(self, side: int, passes: pl.DataFrame) -> None:
        """Count passes that are not comparable, with the reason."""
        kinds = passes.with_columns(self.sides[side].passes.select("role", "phase").gather(passes["p"]))
        for role, phase, why, number in kinds.group_by("role", "phase", "why").len().iter_rows():
            self.out.apart[side, role, phase, why] += number


def _edges(side: Side, rounds: pl.DataFrame) -> dict[int, tuple[int, int]]:
    """Return the lowest and highest slot of the first and last pass of every lane: a cut log may lack those beyond."""
    ends = rounds.group_by("lane").agg(first=pl.col("p").first(), last=pl.col("p").last())
    found: dict[int, tuple[int, int]] = {}
    for name in ("first", "last"):
        for row in ends[name].to_list():
            first, last, during = side.passes.select("first", "last", "during").row(row)
            slots = side.array["slot"][first : last + 1]
            low, high = found.get(row, (-1, 1 << 60))
            # A warm-up is known by the start-up lines before it: nothing is cut off there.
            low = int(slots.min()) if name == "first" and during != "warmup" else low
            found[row] = low, int(slots.max()) if name == "last" else high
    return found


def _next_verify(side: Side, rounds: pl.DataFrame, leads: Array, lowest: Array) -> Array:
    """Return the record of the lowest state of the next verify pass of the lane, a few rounds on; -1 for none."""
    lead = rounds.filter(place=0)
    rows, lane, verify = lead["p"].to_numpy(), lead["lane"].to_numpy(), (lead["phase"] == "verify").to_numpy()
    where = np.full(side.passes.height, -1)
    where[rows] = np.arange(len(rows))
    at, found = where[leads], np.full(len(leads), -1)
    for step in range(1, _REACH + 1):
        later = np.minimum(at + step, len(rows) - 1)
        going = (at + step < len(rows)) & (lane[later] == lane[at]) & (found < 0)
        found = np.where(going & verify[later], rows[later], found)
    first, last = (side.passes[name].to_numpy()[found] for name in ("first", "last"))
    out = np.full(len(leads), -1)
    for step in range(int((last - first).max(initial=-1)) + 1):
        record = np.minimum(first + step, last)
        hit = (found >= 0) & (out < 0) & (side.array["slot"][record] == lowest) & side.array["state"][record]
        out = np.where(hit, record, out)
    return out
