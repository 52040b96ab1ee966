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

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from logscope.diffing.align import (
    CAPTURE,
    JOIN,
    NAMES,
    READ,
    Points,
    Side,
    Slot,
    close,
    is_capture,
    next_verify,
    paired_records,
)

if TYPE_CHECKING:
    from logscope.diffing.align import Alignment, Array

RTOL = 2.0**-9
HEAD_TOLERANCE = 0.25
# Above a lowest state that agrees only up to noise, the noise grows, and rows that are not printed may hold other
# tokens: only beyond this many tolerances, and in most such pairs, is it a difference.
NEAR_FACTOR = 10.0
# How a joined record came out, in this order; a state that one side alone prints, or damaged, is not compared.
NOTHING, NOT_COMPARED, EQUAL, WITHIN, BEYOND = range(5)

# What may differ: in form, then in value.
VALUES = ("norm", "head", "not_finite")
WHATS = ("record", "captures", "mode", "joined", "copies", "rank", "shape", *VALUES)
RECORD, CAPTURES, MODE, STATES, COPIES, RANK, SHAPE, NORM, HEAD, NOT_FINITE = range(len(WHATS))

_BOTH = (pl.col("a") >= 0) & (pl.col("b") >= 0)
_FIRST = (pl.col("pair") != pl.col("pair").shift()).fill_null(value=True)
_READS = pl.col("phase").is_in(["extend", "draft_extend"])


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
        what could not be compared; ``largest`` relative difference, and the records of it (``largest_at``).
    paired
        by ground, pairs of the leading role and how many of them print equal states throughout; ``drafts``: the same
        of draft passes behind a target.
    left
        passes that are not comparable (``why``), or that only one run has (no ``why``): side, role, phase, why,
        at_end, number, first (its row).
    fragments
        passes only one run has that lack what their like have, a record printed once too often: side, role, phase,
        place.
    """

    cells: pl.DataFrame = field(default_factory=pl.DataFrame)
    differences: list[Difference] = field(default_factory=list)
    paired: dict[str, tuple[int, int]] = field(default_factory=dict)
    drafts: tuple[int, int] = (0, 0)
    left: pl.DataFrame = field(default_factory=pl.DataFrame)
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


class _Comparer:
    """Joins the records of pairs and keeps the books.

    A *case* is two passes under comparison: ``place`` is 0 for the leading pass of a round, then 1, 2, ... for those
    that follow. A weak case rests on its place alone: equal values are equal, others prove nothing.
    """

    def __init__(self, sides: tuple[Side, Side], alignment: Alignment, terms: Terms) -> None:
        self.sides, self.alignment, self.terms = sides, alignment, terms
        self.usual = [side.usual() for side in sides]
        self.joined = [side.joined() for side in sides]
        self.edges = [_edges(side, rounds) for side, rounds in zip(sides, alignment.rounds, strict=True)]
        self.out = Comparison()
        self.left: list[pl.DataFrame] = []

    def run(self) -> Comparison:
        """Compare every pair, then account for what has no partner."""
        pairs = self.alignment.pairs.with_columns(at=pl.col("one") + pl.col("other"), first="one")
        pairs = pairs.sort("at", pl.min_horizontal("one", "other"), maintain_order=True).with_row_index("pair")
        self._apart("context", pairs.filter(~pl.col("supported")))
        self._apart("pieces", pairs.filter("supported", ground="pieces"), leads=False)
        pairs = pairs.filter("supported").with_columns(place=pl.lit(0, pl.Int64), weak=pl.col("ground") == "place")
        leads = self._cases(pairs.with_columns(self._united(pairs, side) for side in (0, 1)))
        rows = self._rows(leads)
        cases = leads = _summed(leads, rows)
        counted = leads.filter(role=self.alignment.role or "").group_by("ground", maintain_order=True)
        for ground, number, identical in counted.agg(pl.len(), pl.col("identical").sum()).iter_rows():
            self.out.paired[ground] = number, identical
        if self.alignment.role == "target":
            drafts, more = self._followers(leads.filter(pl.col("ground") != "pieces", role="target"))
            self.out.drafts = drafts.height, int(drafts["identical"].sum())
            rows = pl.concat([rows, more.with_columns(pl.col("case") + leads.height)])
            cases = pl.concat([leads, drafts], how="diagonal")
        self._books(cases, rows)
        self._rest()
        return self.out

    def _united(self, pairs: pl.DataFrame, side: int) -> pl.Series:
        """Return the leading passes of pairs, of a prefill that was cut one pass of all its pieces."""
        rows = pairs[NAMES[side]].to_list()
        for at in (pairs["ground"] == "pieces").arg_true().to_list():
            pieces = self.alignment.pieces[pairs["first"][at]][side]
            rows[at] = self.sides[side].unite(pieces) if len(pieces) > 1 else rows[at]
        return pl.Series(NAMES[side], rows, dtype=pl.Int64)

    def _points(self, one: pl.Series, other: pl.Series) -> list[Points]:
        """Return the states of records of both sides."""
        return [Points.of(side, rows.to_numpy()) for side, rows in zip(self.sides, (one, other), strict=True)]

    # pairs of passes, and their records side by side

    def _cases(self, pairs: pl.DataFrame) -> pl.DataFrame:
        """Add what the passes are: a case has the phase of the baseline, the candidate's where that is unknown."""
        one, other = (
            side.passes.select("role", "phase", "during", "expected").gather(pairs[name])
            for side, name in zip(self.sides, NAMES, strict=True)
        )
        cases = pairs.with_columns(
            one["role", "during"], mine=one["phase"], theirs=other["phase"], expected0=one["expected"],
            expected1=other["expected"],
        )  # fmt: skip
        kinds = cases.select("role", "mine", "theirs").unique()
        slots = [self.captured_apart((r, p), (r, q)) if r == "target" else None for r, p, q in kinds.iter_rows()]
        kinds = kinds.with_columns(apart=pl.Series(slots, dtype=pl.Int64))
        return cases.join(kinds, on=["role", "mine", "theirs"], maintain_order="left").with_columns(
            phase=pl.when(mine="unknown").then("theirs").otherwise("mine"),
            heads=~pl.col("ground").is_in(["order", "near"]),
        )

    def _rows(self, cases: pl.DataFrame) -> pl.DataFrame:
        """Return the joined records of cases, each judged.

        ``a`` and ``b`` are rows of both sides, -1 for none. ``grade`` counts for the case, ``cell`` in the table of
        states; ``beyond``: before doubts, ``doubt``: noise may be the reason; ``exact``: printed the very same;
        ``alike``: first values too, at the coarser print; ``form``: bits of what differs in form.
        """
        rows = paired_records(self.sides, cases["one"].to_numpy(), cases["other"].to_numpy())
        of_case = cases.select("ground", "apart", "weak", "heads", "expected0", "expected1")
        rows = pl.concat([rows, of_case.gather(rows["case"])], how="horizontal")
        # Where the runs capture other states, what is made of these is not compared.
        kept = [Slot(event).number >> 32 for event in (CAPTURE, "forward_end")]
        use = _BOTH & (pl.col("apart").is_null() | (pl.col("slot") // (1 << 32)).is_in(kept))
        for side, record, end in zip(self.sides, "ab", "01", strict=True):
            at = rows.select(pl.when(use).then(record)).to_series()
            said = side.records.select("form", "norm", "key", "state", "copies", "differ").gather(at)
            of_form = side.forms.select("shape", "rows", "usable", "mode", "states").gather(said["form"])
            both = pl.concat([said, of_form], how="horizontal")
            rows = pl.concat([rows, both.select(pl.all().name.suffix(end))], how="horizontal")

        def same(*names: str) -> pl.Expr:
            return pl.all_horizontal(pl.col(f"{name}0") == pl.col(f"{name}1") for name in names).fill_null(value=False)

        def differs(name: str) -> pl.Expr:
            return (pl.col(f"{name}0") != pl.col(f"{name}1")).fill_null(value=False)

        usable, stated = pl.col("usable0") & pl.col("usable1"), pl.col("state0") & pl.col("state1")
        other_shape = (usable & differs("shape") & (pl.col("shape0") * pl.col("shape1") != 0)).fill_null(value=False)
        good = (stated & ~other_shape & same("rows")).fill_null(value=False)
        exact = good & same("shape", "key", "norm")
        nothing = (usable & ~other_shape & ~pl.col("state0") & ~pl.col("state1")).fill_null(value=False)
        grade = pl.when(exact).then(EQUAL).when(other_shape).then(BEYOND).when(nothing | ~_BOTH).then(NOTHING)
        # A number and a name are two prints of a mode that nothing in the log sets equal.
        digits = [pl.col(f"mode{end}").str.contains(r"^\d+$") for end in "01"]
        odd = [(pl.col(f"expected{end}") != pl.col(f"copies{end}")).fill_null(value=False) for end in "01"]
        single = pl.col("ground") != "pieces"
        forms = {
            MODE: differs("mode") & (digits[0] == digits[1]), STATES: differs("states") & pl.col("apart").is_null(),
            COPIES: (odd[0] != odd[1]) & differs("copies") & single, SHAPE: other_shape,
            RANK: ((pl.col("differ0") > 0) != (pl.col("differ1") > 0)) & single,
        }  # fmt: skip
        known = exact & pl.col("norm0").is_finite() & (pl.col("norm0") != 0)
        bits = pl.sum_horizontal(pl.when(mask).then(1 << what).otherwise(0) for what, mask in forms.items())
        rows = rows.with_columns(
            good=good, grade=grade.otherwise(NOT_COMPARED), what=pl.lit(SHAPE), alike=exact, form=bits,
            relative=pl.when(known).then(0.0).otherwise(np.nan),
            exact=exact & (pl.col("differ0") == 0) & (pl.col("differ1") == 0), same_rows=same("rows"),
            same_shape=same("shape"), stated=stated.fill_null(value=False),
        )  # fmt: skip
        at = rows.select((pl.col("good") & ~pl.col("alike")).arg_true()).to_series()
        one, other = self._points(rows["a"].gather(at), rows["b"].gather(at))
        found = judge(one, other, self.terms.rtol, rows["heads"].gather(at).to_numpy())
        judged = {**dict(zip(("grade", "relative", "what"), found, strict=True)), "alike": one.alike(other)}
        judged["alike"] &= one.count > 0
        for name, values in judged.items():
            rows = rows.with_columns(rows[name].scatter(at, values))
        # Noise grows above a state that agrees up to noise: what most of such pairs show is decided at the end.
        far = ~(pl.col("relative").abs() <= NEAR_FACTOR * self.terms.rtol) | pl.col("relative").is_nan()
        beyond = pl.col("grade") == BEYOND
        noisy = (pl.col("ground") == "near") & pl.col("good") & beyond & (pl.col("what") == NORM)
        rows = rows.with_columns(beyond=beyond, noisy=noisy, doubt=noisy & far)
        rows = _weakened(rows, pl.col("weak") & pl.col("good")).with_columns(
            cell=pl.when("noisy").then(NOT_COMPARED).otherwise("grade"),
            grade=pl.when("noisy").then(WITHIN).otherwise("grade"), form=pl.col("form") | self._one_sided(cases, rows),
        )  # fmt: skip
        return rows.select(
            "case", "slot", "a", "b", "grade", "cell", "what", "relative", "beyond", "doubt", "exact", "alike", "form",
            "same_rows", "same_shape", "stated",
        )  # fmt: skip

    def _one_sided(self, cases: pl.DataFrame, rows: pl.DataFrame) -> pl.Series:
        """Return RECORD or CAPTURES, as bits, where only one of two passes has a record.

        Nothing where a cut edge (before the first record of the log, behind the last one) or a way of printing explains
        it.
        """
        out = np.zeros(rows.height, np.int32)
        rows = rows.select("case", "slot", "a", "b").with_row_index("row").filter(~_BOTH)
        of_case = cases.select(*NAMES, "role", "mine", "theirs", "apart", "ground").gather(rows["case"])
        rows = pl.concat([rows, of_case], how="horizontal").filter(pl.col("ground") != "pieces")
        for lacking, record in enumerate("ab"):
            alone = rows.filter(pl.col(record) < 0).join(
                self.edges[lacking], left_on=NAMES[lacking], right_on="p", how="left"
            )
            alone = alone.filter(pl.col("slot").is_between("low", "high").fill_null(value=True))
            for (role, *phases, apart, slot), same in alone.group_by("role", "mine", "theirs", "apart", "slot"):
                has, lacks = (slot in self.usual[side].get((role, phases[side]), ()) for side in (1 - lacking, lacking))
                if not (has and not lacks and not slot & 0xFF):
                    out[same["row"].to_numpy()] = 1 << RECORD
                elif is_capture(slot) and apart is not None:
                    out[same["row"].to_numpy()] = 1 << CAPTURES
        return pl.Series(out)

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

    # the draft passes of a round

    def _followers(self, leads: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Compare the draft passes of rounds, as far as what they were given agrees: cases and their records."""
        cases = self._side_by_side(leads)
        rows, columns = self._rows(cases), cases.columns
        cases = cases.with_columns(case=pl.int_range(pl.len()))
        states = rows.filter(_BOTH, "stated").select(
            "case", "slot", "a", "b", "beyond", "same_rows", "same_shape", of="what"
        )
        for slot, suffix in ((READ, ""), (JOIN, "_kept")):
            found = states.filter(slot=slot).drop("slot")
            cases = cases.join(found, on="case", how="left", suffix=suffix or "_", maintain_order="left")
        marks = rows.group_by("case").agg(pl.col("alike").any(), pl.col("exact").all())
        left_out = [
            side.passes["rows"].gather(cases[name]).ne_missing(side.passes["rows"].gather(cases[lead]))
            for side, name, lead in zip(self.sides, NAMES, ("lead", "other_lead"), strict=True)
        ]
        known, same_rows, same_shape = pl.col("a").is_not_null(), pl.col("same_rows"), pl.col("same_shape")
        cases = cases.join(marks, on="case", how="left", maintain_order="left").with_columns(
            left_out=left_out[0] | left_out[1], handed=self._handed_otherwise(cases)
        )
        differs = known & same_rows & same_shape & pl.col("beyond") & ~pl.col("alike")
        cases = cases.with_columns(differs=differs.fill_null(value=False))
        alone = ~known & ~pl.col("alike") & ~pl.col("exact")
        stale = pl.col("trusted") & ~pl.col("left_out") & ~((pl.col("of") == NORM) & (self.terms.topk > 1))
        why = (
            pl.when((pl.col("phase") == "draft_extend") & (not self.terms.same_spec)).then(pl.lit("spec"))
            .when(alone & ~pl.col("trusted")).then(pl.lit("joined"))
            .when(~known).then(pl.lit(""))
            .when(~same_rows).then(pl.lit("rows"))
            .when(~same_shape & ~pl.col("trusted")).then(pl.lit("joined"))
            .when(~pl.col("differs")).then(pl.lit(""))
            .when(_READS & ~pl.col("trusted")).then(pl.lit("joined"))
            .when(_READS & ~stale).then(pl.lit("rows"))
            .when(~_READS & (_FIRST | ~pl.col("handed"))).then(pl.lit("draft"))
            .otherwise(pl.lit(""))
        )  # fmt: skip
        # A draft step is comparable behind one that was compared; what reads the target's state begins anew.
        cases = cases.with_columns(alone=alone, why=why).with_columns(
            bad=((pl.col("why") != "") | (_FIRST & ~_READS)).cast(pl.Int64), chain=(_READS | _FIRST).cum_sum()
        )
        behind = (pl.col("bad").cum_sum() - pl.col("bad")).over("chain") > 0
        cases = cases.with_columns(
            why=pl.when(~_READS & (behind | _FIRST)).then(pl.lit("draft")).otherwise("why")
        ).with_columns(good=pl.col("why") == "")
        for side, name in enumerate(NAMES):
            self._leave(side, cases.filter(~pl.col("good")).select("why", p=name))
        shown = pl.col("same_shape_kept") & pl.col("beyond_kept") & (pl.col("of_kept") != NOT_FINITE)
        at = cases.select((shown & pl.col("good") & ~pl.col("differs")).fill_null(value=False).arg_true()).to_series()
        skip = np.zeros(cases.height, bool)
        skip[at.to_numpy()] = self._other_token(cases.gather(at))
        of_case = cases.select("good", "alone", only="differs", skip=pl.Series(skip), new=pl.col("good").cum_sum() - 1)
        rows = pl.concat([rows, of_case.gather(rows["case"])], how="horizontal")
        rows = _weakened(rows, pl.col("alone") & (pl.col("what") != SHAPE), "grade", "cell")
        skipped = pl.col("skip") & (pl.col("slot") == JOIN) & _BOTH
        rows = rows.filter(pl.col("good") & (~pl.col("only") | (pl.col("slot") == READ))).with_columns(
            grade=pl.when(skipped).then(NOTHING).otherwise("grade"),
            cell=pl.when(skipped).then(NOT_COMPARED).otherwise("cell"),
            form=pl.when(skipped).then(0).otherwise("form"), case=pl.col("new").cast(pl.Int64),
        ).drop(of_case.columns)  # fmt: skip
        cases = cases.filter("good").select(columns)
        return _summed(cases, rows), rows

    def _side_by_side(self, leads: pl.DataFrame) -> pl.DataFrame:
        """Return the draft passes of rounds side by side: in order where there are equally many, else by phase."""
        parts = []
        for rounds, name in zip(self.alignment.rounds, NAMES, strict=True):
            pair = leads.select("pair", p=name).join(rounds.filter(place=0).select("p", "round"), on="p")
            found = rounds.filter(pl.col("place") > 0).join(pair.select("pair", "round"), on="round")
            parts.append(found.select("pair", "place", "phase", pl.col("p").alias(name), number=pl.len().over("pair")))
        sizes = [part.select("pair", "number").unique() for part in parts]
        even = pl.col("pair").is_in(sizes[0].join(sizes[1], on=["pair", "number"])["pair"].implode())
        nth = pl.when(even).then("place").otherwise(pl.int_range(pl.len()).over("pair", "phase"))
        parts = [part.with_columns(nth=nth, kind=pl.when(~even).then("phase")) for part in parts]
        both = parts[0].join(parts[1], on=["pair", "kind", "nth"], how="full", coalesce=True, nulls_equal=True)
        for side, (name, lacks) in enumerate((NAMES, NAMES[::-1])):
            self._leave(side, both.filter(pl.col(lacks).is_null()).select(p=name))
        both = both.select("pair", "place", *NAMES).drop_nulls().sort("pair", "place")
        lead = leads.select("pair", "ground", "lowest", "trusted", "at", "first", lead="one", other_lead="other")
        both = both.join(lead, on="pair", maintain_order="left")
        return self._cases(both.with_columns(weak=pl.col("ground") == "place"))

    def _handed_otherwise(self, cases: pl.DataFrame) -> pl.Series:
        """Return whether one run hands on the output of the draft pass before, and the other something else."""
        found = np.zeros(cases.height, bool)
        before = cases.select(pl.col("a_kept", "b_kept").shift())
        at = cases.select(
            (before["a_kept"].is_not_null() & pl.col("beyond")).fill_null(value=False).arg_true()
        ).to_series()
        given = self._points(*before.gather(at))
        got = self._points(*cases.select("a", "b").gather(at))
        handed = [one.alike(other) for one, other in zip(given, got, strict=True)]
        found[at.to_numpy()] = given[0].alike(given[1]) & (handed[0] != handed[1])
        return pl.Series(found)

    def _other_token(self, cases: pl.DataFrame) -> Array:
        """Return whether the next verify pass shows that the draft was given another token in the two runs.

        The draft also reads the token the target just sampled, which no line prints. It is the first row of the next
        verify pass, whose lowest state tells whether the tokens were the same. Without such a pass they are assumed to
        be.
        """
        found = np.zeros(cases.height, bool)
        lowest = [
            next_verify(side, rounds, cases[lead].to_numpy(), cases["lowest"].to_numpy())
            for side, rounds, lead in zip(self.sides, self.alignment.rounds, ("lead", "other_lead"), strict=True)
        ]
        good = np.flatnonzero((lowest[0] >= 0) & (lowest[1] >= 0))
        one, other = (Points.of(side, rows[good]) for side, rows in zip(self.sides, lowest, strict=True))
        same_first = one.same_head(other) | (one.distance(other) <= HEAD_TOLERANCE / 10)
        found[good] = ~one.alike(other) & (~same_first | (cases["of_kept"].to_numpy()[good] == NORM))
        return found

    # the books

    def _books(self, cases: pl.DataFrame, rows: pl.DataFrame) -> None:
        """Count what every state came to, and describe each way of differing at its first place."""
        order = cases.select(pl.arg_sort_by("pair", "place")).to_series()
        equal = pl.col("agreed") & pl.col("identical")
        self.cases = cases.gather(order).with_row_index("case").with_columns(
            equal_before=equal.cum_sum() - equal, agreeing_before=pl.col("agreed").cum_sum() - pl.col("agreed"),
            previous=pl.when("agreed").then("case").forward_fill().shift(1),
        )  # fmt: skip
        self.rows = rows.with_columns(case=order.arg_sort().gather(rows["case"]))
        kinds = self.cases.select("role", "phase", near=pl.col("ground") == "near").gather(self.rows["case"])
        table = pl.concat([self.rows, kinds], how="horizontal").with_columns(pl.col("relative").fill_nan(None))
        key = ["role", "phase", "slot"]
        near = table.filter("near", pl.col("grade") >= EQUAL).group_by(key).agg(pl.len(), pl.col("doubt").sum())
        settled = near.filter(2 * pl.col("doubt") > pl.col("len")).select(*key, most=pl.lit(value=True))
        table = table.join(settled, on=key, how="left", maintain_order="left").with_columns(
            cell=pl.when(pl.col("doubt") & pl.col("most")).then(BEYOND).otherwise("cell")
        )
        judged = pl.col("cell") >= EQUAL
        largest = pl.when(judged).then(pl.col("relative").abs()).arg_max()
        self.out.cells = table.group_by(key).agg(
            pairs=judged.sum(), equal=(pl.col("cell") == EQUAL).sum(), within=(pl.col("cell") == WITHIN).sum(),
            beyond=(pl.col("cell") == BEYOND).sum(), largest=pl.col("relative").get(largest),
            largest_at=pl.concat_list("a", "b").get(largest), only_baseline=(pl.col("b") < 0).sum(),
            only_candidate=(pl.col("a") < 0).sum(), not_compared=(pl.col("cell") == NOT_COMPARED).sum(),
        )  # fmt: skip
        values = table.filter((pl.col("cell") == BEYOND) & (pl.col("what") > SHAPE)).with_columns(kind=pl.lit(-1))
        forms = [
            table.filter(pl.col("form") & (1 << what) > 0).with_columns(
                kind=pl.lit(what), what=pl.lit(what), relative=pl.lit(None, pl.Float64)
            )
            for what in range(SHAPE + 1)
        ]
        every = pl.concat([values, *forms], how="vertical_relaxed").sort("case", "slot", "what").with_columns(
            state=pl.when(pl.col("what") != CAPTURES).then("slot"),
            lacking=(pl.col("what") == RECORD) & (pl.col("a") < 0),
        )  # fmt: skip
        for _, same in every.group_by("kind", "role", "phase", "state", "lacking", maintain_order=True):
            difference = self._difference(same.row(0, named=True))
            difference.count = int((same["slot"] == same["slot"][0]).sum())
            at = same["relative"].abs().arg_max()
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
            one, other = self._points(*(pl.Series([record]) for record in records))
            same_head = bool(one.same_head(other)[0]) if one.count[0] and other.count[0] else None
        here = self.rows.filter(
            pl.col("slot") < found["slot"], pl.col("grade").is_in([EQUAL, WITHIN]), case=found["case"]
        )
        previous = None
        if case["previous"] is not None:
            before = self.cases.row(case["previous"], named=True)
            previous = self.spot(0, before["one"]), self.spot(1, before["other"])
        pieces = self.alignment.pieces.get(case["first"], ([0], [0])) if case["ground"] == "pieces" else ([0], [0])
        return Difference(
            WHATS[what], case["role"], case["phase"], case["during"], found["slot"], case["ground"],
            (case["at"], case["place"], found["slot"]), (spots[0], spots[1]), passes, found["relative"],
            found["relative"], (len(pieces[0]), len(pieces[1])), same_head, 1, case["equal_before"],
            case["agreeing_before"], sorted(here["slot"].to_list()), previous,
        )  # fmt: skip

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
            self.out.differences.append(Difference(
                WHATS[CAPTURES], *key, self.sides[0].passes["during"][firsts[0]], slot, None, (sum(firsts), 0, slot),
                (spots[0], spots[1]), (firsts[0], firsts[1]), equal_before=int(before["identical"].sum()),
                agreeing_before=before.height,
            ))  # fmt: skip

    # what has no partner

    def _leave(self, side: int, passes: pl.DataFrame) -> None:
        """Take passes (p, why, at_end) that are not compared."""
        kept = passes.with_columns(self.sides[side].passes.select("role", "phase").gather(passes["p"]))
        empty = {"why": pl.lit(""), "at_end": pl.lit(value=False)}
        kept = kept.with_columns(**{name: value for name, value in empty.items() if name not in passes.columns})
        self.left.append(kept.select("p", "role", "phase", "why", "at_end", side=pl.lit(side)))

    def _apart(self, why: str, pairs: pl.DataFrame, *, leads: bool = True) -> None:
        """Leave out the rounds of pairs, as not comparable; without ``leads`` only the draft passes in them."""
        for side, (name, rounds) in enumerate(zip(NAMES, self.alignment.rounds, strict=True)):
            pieces = (
                self.alignment.pieces.get(one, ([row], [row]))[side]
                for one, row in pairs.select("first", name).iter_rows()
            )
            within = rounds.filter(pl.col("p").is_in([row for rows in pieces for row in rows]))["round"].implode()
            passes = rounds.filter(pl.col("round").is_in(within) & ((pl.col("place") > 0) | leads))
            self._leave(side, passes.select("p", why=pl.lit(why)))

    def _rest(self) -> None:
        """Account for rounds without a partner, their draft passes with them, and find the fragments among them."""
        for side, (name, rounds) in enumerate(zip(NAMES, self.alignment.rounds, strict=True)):
            rest = self.alignment.rest.filter(pl.col(name) >= 0).select("at_end", p=name, why="reason")
            lead = rounds.select("p", "round").join(rest, on="p").drop("p")
            self._leave(side, rounds.select("p", "round").join(lead, on="round"))
        left = pl.concat(self.left).sort("side", "p", maintain_order=True)
        kinds = left.group_by("side", "role", "phase", "why", "at_end", maintain_order=True)
        self.out.left = kinds.agg(number=pl.len(), first=pl.col("p").first())
        for side, kept in enumerate(self.sides):
            gone = left.filter(side=side, why="").join(self.edges[side], on="p", how="left", maintain_order="left")
            slots: dict[int, set[int]] = {row: set() for row in gone["p"].to_list()}
            records = kept.records.select(pl.col("p").cast(pl.Int64), "slot").filter(pl.col("p").is_in(list(slots)))
            for row, slot in records.iter_rows():
                slots[row].add(slot)
            for row, role, phase, low, high in gone.select("p", "role", "phase", "low", "high").iter_rows():
                lacks = self.usual[side].get((role, phase), frozenset()) - slots[row]
                if any(low is None or low <= slot <= high for slot in lacks):
                    self.out.fragments.append((side, role, phase, self.spot(side, row)))


def _weakened(rows: pl.DataFrame, weak: pl.Expr, *names: str) -> pl.DataFrame:
    """Let values of weak cases that are not equal prove nothing."""
    nothing = weak & (pl.col("grade") > EQUAL)
    return rows.with_columns(
        pl.when(nothing).then(NOT_COMPARED).otherwise(name).alias(name) for name in names or ("grade",)
    )


def _summed(cases: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Add to cases whether all that was compared is equal, nothing is beyond tolerance, the joined states agree."""
    grade, join = pl.col("grade"), pl.col("slot") == JOIN
    sums = rows.group_by("case").agg(
        bad=((grade == BEYOND) | (pl.col("form") > 0)).any(), within=(grade == WITHIN).any(),
        some=(grade >= EQUAL).any(), joins=(join & (grade >= EQUAL)).any(),
        good_join=(join & grade.is_in([EQUAL, WITHIN])).any(),
    )  # fmt: skip
    cases = cases.drop("case", strict=False).with_columns(case=pl.int_range(pl.len()))
    cases = cases.join(sums, on="case", how="left", maintain_order="left").with_columns(
        pl.col(sums.columns[1:]).fill_null(value=False)
    )
    whole = ~pl.col("joins") & ~pl.col("bad") & ~pl.col("weak") & pl.col("apart").is_null()
    return cases.with_columns(
        identical=~pl.col("bad") & ~pl.col("within"), agreed=~pl.col("bad") & pl.col("some"),
        trusted=whole | pl.col("good_join"),
    ).drop(sums.columns)  # fmt: skip


def _edges(side: Side, rounds: pl.DataFrame) -> pl.DataFrame:
    """Return the first and last pass (p) of every lane, with the slots (low, high) a cut log lacks beyond."""
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
    rows = [(row, *ends) for row, ends in found.items()]
    return pl.DataFrame(rows, schema=dict.fromkeys(("p", "low", "high"), pl.Int64), orient="row")
