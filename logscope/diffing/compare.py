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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from logscope.diffing.align import JOIN, READ, Points, Side, close, is_capture, paired_records

if TYPE_CHECKING:
    from logscope.diffing.align import Alignment, Array

RTOL = 2.0**-9
HEAD_TOLERANCE = 0.25
# Above a lowest state that agrees only up to noise, the noise grows, and rows that are not printed may hold other
# tokens: only beyond this many tolerances, and in most such pairs, is it a difference.
NEAR_FACTOR = 10.0
# The most rounds between a round and the verify pass that shows which token it sampled.
_REACH = 4
# Rows of joined records that are judged at a time.
_SLICE = 1 << 20
# How a joined record came out, in this order; a state that one side alone prints, or damaged, is not compared.
NOTHING, NOT_COMPARED, EQUAL, WITHIN, BEYOND = range(5)

What: TypeAlias = Literal[
    "norm", "head", "not_finite", "mode", "joined", "shape", "record", "copies", "rank", "captures"
]
# What differs in value, not in form.
VALUES = ("norm", "head", "not_finite")
_WHATS = ("record", "captures", "mode", "joined", "copies", "rank", "shape", *VALUES)


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

    what: What
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
    what = np.select([ill, norm, head], ["not_finite", "norm", "head"], "norm")
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
        self.usual = sides[0].usual(), sides[1].usual()
        self.joined = sides[0].joined(), sides[1].joined()
        self.edges = tuple(map(_edges, sides, alignment.rounds))
        self.out = Comparison()
        self.gone: list[pl.DataFrame] = []

    def run(self) -> Comparison:
        """Compare every pair, then account for what has no partner."""
        pairs = self.alignment.pairs.with_columns(at=pl.col("one") + pl.col("other"), first="one")
        pairs = pairs.sort("at", pl.min_horizontal("one", "other"), maintain_order=True).with_row_index("pair")
        self._apart("context", pairs.filter(~pl.col("supported")))
        self._apart("pieces", pairs.filter("supported", ground="pieces"), leads=False)
        pairs = pairs.filter("supported").with_columns(place=pl.lit(0, pl.Int32), weak=pl.col("ground") == "place")
        leads = self._cases(pairs.with_columns(self._united(pairs, side) for side in (0, 1)))
        rows, found = self._rows(leads)
        leads = _summed(leads, rows, found)
        for role, ground, number, identical in (
            leads.group_by("role", "ground", maintain_order=True).agg(pl.len(), pl.col("identical").sum()).iter_rows()
        ):
            self.out.paired[role, ground], self.out.identical[role, ground] = number, identical
        parts = [(leads, rows, found)]
        if self.alignment.role == "target":
            parts.append(self._followers(leads.filter(pl.col("ground") != "pieces", role="target")))
            self.out.drafts, self.out.identical_drafts = parts[1][0].height, parts[1][0]["identical"].sum()
        self._books(*(pl.concat(each, how="diagonal") for each in zip(*parts, strict=True)))
        self._rest()
        return self.out

    def _united(self, pairs: pl.DataFrame, side: int) -> pl.Series:
        """Return the leading passes of pairs, of a prefill that was cut one pass of all its pieces."""
        name = ("one", "other")[side]
        pieces = {found[side][0]: found[side] for found in self.alignment.pieces.values() if len(found[side]) > 1}
        cut = pairs["ground"] == "pieces"
        return pl.Series(name, [self.sides[side].unite(pieces[row]) if cut_ and row in pieces else row
                                for row, cut_ in zip(pairs[name].to_list(), cut.to_list(), strict=True)], dtype=pl.Int64)  # fmt: skip

    # pairs of passes, and their records side by side

    def _cases(self, pairs: pl.DataFrame) -> pl.DataFrame:
        """Add what the passes of pairs are: a case has the phase of the baseline, the candidate's where that is unknown."""
        one, other = (side.passes.select("role", "phase", "during").gather(pairs[name])
                      for side, name in zip(self.sides, ("one", "other"), strict=True))  # fmt: skip
        cases = pairs.with_columns(one, other=pairs["other"], theirs=other["phase"])
        kinds = cases.select("role", "phase", "theirs").unique()
        slots = [self.captured_apart((r, p), (r, q)) if r == "target" else None for r, p, q in kinds.iter_rows()]
        cases = cases.join(
            kinds.with_columns(apart=pl.Series(slots, dtype=pl.Int64)), on=kinds.columns, maintain_order="left"
        )
        return cases.with_columns(
            pl.when(phase="unknown").then("theirs").otherwise("phase").alias("phase"),
            mine="phase",
            heads=~pl.col("ground").is_in(["order", "near"]),
        )

    def _rows(self, cases: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the joined records of cases, each judged, and their differences of form."""
        joined = paired_records(self.sides, cases["one"].to_numpy(), cases["other"].to_numpy())
        parts = [self._judged(cases, part) for part in (*joined.iter_slices(_SLICE), joined.clear())]
        found = pl.concat([self._one_sided(cases, joined), *(part[1] for part in parts)])
        return pl.concat([part[0] for part in parts]), found

    def _judged(self, cases: pl.DataFrame, part: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Judge joined records: ``grade`` counts for the case, ``cell`` in the table of states."""
        case = cases.select("pair", "place", "heads", "weak", "ground", "apart", "one", "other").gather(part["case"])
        part = part.with_columns(case.select("pair", "place", "ground", "one", "other"))
        # Where the runs capture other states, what is made of these is not compared.
        hidden = case["apart"].is_not_null() & ~(part["slot"] // (1 << 32)).is_in([2, 4])
        both = (part["a"].is_not_null() & part["b"].is_not_null()).to_numpy()
        use = np.flatnonzero(both & ~hidden.to_numpy())
        rows = [part[name].gather(use) for name in "ab"]
        records = [side.records.select("form", "norm", "values_key", "copies", "differ").gather(row)
                   for side, row in zip(self.sides, rows, strict=True)]  # fmt: skip
        forms = [side.forms.gather(each["form"]) for side, each in zip(self.sides, records, strict=True)]
        usable = (forms[0]["usable"] & forms[1]["usable"]).to_numpy()
        state = [usable & each["norm"].is_not_null().to_numpy() for each in records]
        shape = (forms[0]["shape"] == forms[1]["shape"]).to_numpy()
        other_shape = usable & ~shape & (forms[0]["shape"] != 0).to_numpy() & (forms[1]["shape"] != 0).to_numpy()
        good = ~other_shape & state[0] & state[1] & (forms[0]["rows"] == forms[1]["rows"]).to_numpy()
        exact = good & shape & np.all([records[0][n].eq_missing(records[1][n]) for n in ("norm", "values_key")], axis=0)
        norm = records[0]["norm"].to_numpy()
        relative = np.where(exact & np.isfinite(norm) & (norm != 0), 0.0, np.nan)
        grade = np.where(exact, EQUAL, np.where(other_shape, BEYOND, NOT_COMPARED))
        grade[~good & usable & ~other_shape & ~state[0] & ~state[1]] = NOTHING
        what = np.full(len(use), _WHATS.index("shape"), np.int8)
        alike = exact.copy()
        at = np.flatnonzero(good & ~exact)
        if len(at):
            one, other = (
                Points.of(side, row.gather(at).to_numpy()) for side, row in zip(self.sides, rows, strict=True)
            )
            heads = case["heads"].gather(use[at]).to_numpy()
            grade[at], relative[at], words = judge(one, other, self.terms.rtol, heads)
            what[at] = [_WHATS.index(word) for word in words]
            alike[at] = one.alike(other) & (one.count > 0)
        exact &= ((records[0]["differ"] == 0) & (records[1]["differ"] == 0)).to_numpy()
        raw = grade == BEYOND
        weak, near = case["weak"].gather(use).to_numpy(), (case["ground"].gather(use) == "near").to_numpy()
        judged = good & (grade >= EQUAL)
        grade[judged & weak & (grade != EQUAL)] = NOT_COMPARED
        cell = grade.copy()
        # Noise grows above a state that agrees up to noise: what most of such pairs show is decided at the end.
        noisy = judged & near & (grade == BEYOND) & (what == _WHATS.index("norm"))
        grade[noisy], cell[noisy] = WITHIN, NOT_COMPARED
        with np.errstate(invalid="ignore"):
            doubt = noisy & ~(np.abs(relative) <= NEAR_FACTOR * self.terms.rtol)
        columns = {
            "grade": (grade, np.int8, NOTHING), "cell": (cell, np.int8, NOT_COMPARED), "what": (what, np.int8, 0),
            "relative": (relative, np.float64, np.nan), "exact": (exact, bool, False), "alike": (alike, bool, False),
            "doubt": (doubt, bool, False), "raw": (raw, bool, False),
        }  # fmt: skip
        out = []
        for name, (values, dtype, start) in columns.items():
            whole = np.full(part.height, start, dtype)
            whole[use] = values
            out.append(pl.Series(name, whole))
        out[1] = out[1].zip_with(pl.Series(both), pl.zeros(part.height, pl.Int8, eager=True))
        judged_rows = part.select("pair", "place", "slot", "a", "b", "ground").with_columns(out)
        expected = [
            side.passes["expected"].gather(part[name].gather(use))
            for side, name in zip(self.sides, ("one", "other"), strict=True)
        ]
        single = case["ground"].gather(use) != "pieces"
        modes, digits = [each["mode"] for each in forms], [each["mode"].str.contains(r"^\d+$") for each in forms]
        odd = [(expect != each["copies"]).fill_null(False) for expect, each in zip(expected, records, strict=True)]
        masks = {
            # A number and a name are two prints of a mode that nothing in the log sets equal.
            "mode": (modes[0] != modes[1]) & (digits[0] == digits[1]),
            "joined": (forms[0]["states"] != forms[1]["states"]) & case["apart"].gather(use).is_null(),
            "copies": (odd[0] != odd[1]) & (records[0]["copies"] != records[1]["copies"]) & single,
            "rank": ((records[0]["differ"] > 0) != (records[1]["differ"] > 0)) & single,
            "shape": pl.Series(other_shape),
        }
        place = part.select("pair", "place", "slot", "a", "b")
        found = [
            place.gather(use[np.flatnonzero(mask.fill_null(False).to_numpy())]).with_columns(
                what=pl.lit(_WHATS.index(word), pl.Int8)
            )
            for word, mask in masks.items()
        ]
        return judged_rows, pl.concat(found)

    def _one_sided(self, cases: pl.DataFrame, joined: pl.DataFrame) -> pl.DataFrame:
        """Return records that only one of two passes has, unless a cut edge or a way of printing explains it."""
        alone = joined.filter(pl.col("a").is_null() | pl.col("b").is_null())
        alone = alone.with_columns(
            cases.select("pair", "place", "ground", "role", "mine", "theirs", "apart", "one", "other").gather(
                alone["case"]
            )
        )
        alone = alone.filter(pl.col("ground") != "pieces")
        # A record may be missing because the log is cut: before its first or behind its last one.
        for name, there, edges in (("one", "b", self.edges[0]), ("other", "a", self.edges[1])):
            cut = alone.join(edges, left_on=name, right_on="p", how="left", maintain_order="left")
            cut_off = ((pl.col("slot") < pl.col("low")) | (pl.col("slot") > pl.col("high"))) & pl.col(
                there
            ).is_not_null()
            alone = alone.filter(~cut.select(cut_off.fill_null(value=False)).to_series())
        kinds = alone.select(
            "role", "mine", "theirs", "slot", "apart", lacking=pl.col("b").is_null().cast(pl.Int8)
        ).unique()
        words = []
        for role, mine, theirs, slot, apart, lacking in kinds.iter_rows():
            keys = (role, mine), (role, theirs)
            has, lacks = (slot in self.usual[side].get(keys[side], ()) for side in (1 - lacking, lacking))
            usual = has and not lacks and not slot & 0xFF
            word = None if usual and not (is_capture(slot) and apart is not None) else "captures" if usual else "record"
            words.append(None if word is None else _WHATS.index(word))
        kinds = kinds.with_columns(what=pl.Series(words, dtype=pl.Int8))
        alone = alone.with_columns(lacking=pl.col("b").is_null().cast(pl.Int8)).join(
            kinds, on=kinds.columns[:-1], nulls_equal=True
        )
        return alone.filter(pl.col("what").is_not_null()).select("pair", "place", "slot", "a", "b", "what")

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

    def _followers(self, leads: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        """Compare the draft passes of rounds, as far as what they were given agrees."""
        cases = self._side_by_side(leads)
        rows, found = self._rows(cases)
        read, kept = (_of_slot(cases, rows, slot, self.sides) for slot in (READ, JOIN))
        by_case = rows.group_by("pair", "place").agg(
            pl.col("alike").any(), (pl.col("exact") & pl.col("a").is_not_null()).all()
        )
        sums = cases.select("pair", "place").join(by_case, on=["pair", "place"], how="left", maintain_order="left")
        alike, exact = (sums[name].fill_null(False).to_numpy() for name in ("alike", "exact"))
        trusted, reads = cases["trusted"].to_numpy(), cases["phase"].is_in(["extend", "draft_extend"]).to_numpy()
        draft_rows = [
            side.passes["rows"].gather(cases[name]) for side, name in zip(self.sides, ("one", "other"), strict=True)
        ]
        left_out = ~np.all(
            [
                mine.eq_missing(lead)
                for mine, lead in zip(draft_rows, (cases["lead_rows"], cases["other_rows"]), strict=True)
            ],
            axis=0,
        )
        spec = (cases["phase"] == "draft_extend").to_numpy() & (not self.terms.same_spec)
        first = cases.select(pl.col("pair").diff().fill_null(1) != 0).to_series().to_numpy()
        handed = self._handed_otherwise(read, kept) & ~first
        known = read.known
        differs = known & read.same_rows & read.same_shape & read.beyond & ~alike
        stale = reads & trusted & ~left_out & ~((read.what == _WHATS.index("norm")) & (self.terms.topk > 1))
        why = np.select(
            [
                spec, exact & known, ~known & ~alike & ~exact & ~trusted, ~known, ~read.same_rows, ~read.same_shape & ~trusted,
                ~differs, reads & ~trusted, reads & ~stale, ~reads & ~handed,
            ],
            ["spec", "", "joined", "", "rows", "joined", "", "joined", "rows", "draft"],
            "",
        )  # fmt: skip
        # A draft step is comparable behind one that was compared; what reads the target's state begins anew.
        bad = (why != "") | (first & ~reads)
        run = np.cumsum(reads | first)
        before = (
            pl.DataFrame({"run": run, "bad": bad})
            .select((pl.col("bad").cum_sum() - pl.col("bad")).over("run"))
            .to_series()
            .to_numpy()
        )
        why = np.where(~reads & ((before > 0) | first) & (why != "spec"), "draft", why)
        only = differs & (why == "") & ~(exact & known)
        shown = (
            kept.known & kept.same_shape & kept.beyond & (kept.what != _WHATS.index("not_finite")) & (why == "") & ~only
        )
        skip = np.zeros(len(why), bool)
        at = np.flatnonzero(shown)
        skip[at] = self._other_token(cases.gather(at), kept.what[at])
        cases = cases.with_columns(why=pl.Series(why.tolist(), dtype=pl.String), only=only, skip=skip,
                                   weak=pl.Series(~known & ~alike & ~exact) | pl.col("weak"))  # fmt: skip
        for side, name in enumerate(("one", "other")):
            self._count_apart(side, cases.filter(pl.col("why") != "").select(pl.col(name).alias("p"), "why"))
        cases = cases.filter(why="")
        state = cases.select("pair", "place", "only", "skip", late="weak")
        rows = rows.join(state, on=["pair", "place"]).filter(~pl.col("only") | (pl.col("slot") == READ))
        skipped = pl.col("skip") & (pl.col("slot") == JOIN) & pl.col("a").is_not_null() & pl.col("b").is_not_null()
        weak = pl.col("late") & (pl.col("grade") > EQUAL) & (pl.col("what") != _WHATS.index("shape"))
        rows = rows.with_columns(
            pl.when(skipped)
            .then(NOTHING)
            .when(weak)
            .then(NOT_COMPARED)
            .otherwise("grade")
            .alias("grade")
            .cast(pl.Int8),
            pl.when(skipped | weak).then(NOT_COMPARED).otherwise("cell").alias("cell").cast(pl.Int8),
        ).drop("only", "skip", "late")
        found = found.join(state, on=["pair", "place"])
        both = pl.col("a").is_not_null() & pl.col("b").is_not_null()
        found = found.filter(
            (~pl.col("only") | (pl.col("slot") == READ)) & ~(pl.col("skip") & (pl.col("slot") == JOIN) & both)
        )
        found = found.drop("only", "skip", "late")
        return _summed(cases, rows, found), rows, found

    def _side_by_side(self, leads: pl.DataFrame) -> pl.DataFrame:
        """Return the draft passes of rounds side by side: in order where there are equally many, else by phase."""
        parts = []
        for rounds, name, side in zip(self.alignment.rounds, ("one", "other"), self.sides, strict=True):
            pair = leads.select("pair", p=name).join(rounds.select("p", "round"), on="p").select("pair", "round")
            found = rounds.filter(pl.col("place") > 0).join(pair, on="round").sort("pair", "place")
            parts.append(found.select("pair", "phase", pl.col("p").alias(name), pl.col("place").alias(f"{name}_place"),
                                      number=pl.len().over("pair"), nth=pl.int_range(pl.len()).over("pair", "phase")))  # fmt: skip
        numbers = [part.select("pair", "number").unique() for part in parts]
        even = numbers[0].join(numbers[1], on=["pair", "number"])["pair"].implode()
        keyed = [
            part.with_columns(
                key=pl.when(pl.col("pair").is_in(even)).then(pl.col(f"{name}_place").cast(pl.String))
                .otherwise(pl.concat_str("phase", "nth"))
            ).select("pair", "key", name, f"{name}_place")
            for part, name in zip(parts, ("one", "other"), strict=True)
        ]  # fmt: skip
        both = keyed[0].join(keyed[1], on=["pair", "key"], how="full", coalesce=True)
        for side, (name, lacks) in enumerate((("one", "other"), ("other", "one"))):
            self.gone.append(
                both.filter(pl.col(lacks).is_null()).select(p=name, side=pl.lit(side), at_end=pl.lit(value=False))
            )
        both = (
            both.drop_nulls(["one", "other"])
            .sort("pair", "one_place")
            .with_columns(place=pl.col("one_place").cast(pl.Int32))
        )
        lead = leads.select("pair", "ground", "lowest", "trusted", "at", "first", lead="one", other_lead="other")
        both = both.select("pair", "place", "one", "other").join(lead, on="pair", maintain_order="left")
        rows = {name: side.passes["rows"].gather(both[lead]) for name, side, lead in
                zip(("lead_rows", "other_rows"), self.sides, ("lead", "other_lead"), strict=True)}  # fmt: skip
        return self._cases(both.with_columns(weak=pl.col("ground") == "place", **rows))

    def _handed_otherwise(self, read: _Of, kept: _Of) -> Array:
        """Return whether one run hands on the output of the draft pass before, and the other something else."""
        before = [np.roll(each, 1) for each in (kept.a, kept.b)]
        good = np.flatnonzero((np.roll(kept.known, 1)) & read.known)
        found = np.zeros(len(read.a), bool)
        given = [Points.of(side, row[good]) for side, row in zip(self.sides, before, strict=True)]
        got = [Points.of(side, row[good]) for side, row in zip(self.sides, (read.a, read.b), strict=True)]
        handed = [one.alike(other) for one, other in zip(given, got, strict=True)]
        found[good] = given[0].alike(given[1]) & (handed[0] != handed[1])
        return found

    def _other_token(self, cases: pl.DataFrame, what: Array) -> Array:
        """Return whether the next verify pass shows that the draft was given another token in the two runs.

        The draft also reads the token the target just sampled, which no line prints. It is the first row of the next
        verify pass, whose lowest state tells whether the tokens were the same. Without such a pass they are assumed to
        be.
        """
        found = np.zeros(cases.height, bool)
        lowest = [
            _next_verify(side, rounds, cases[lead], cases["lowest"])
            for side, rounds, lead in zip(self.sides, self.alignment.rounds, ("lead", "other_lead"), strict=True)
        ]
        good = np.flatnonzero((lowest[0] >= 0) & (lowest[1] >= 0))
        one, other = (Points.of(side, rows[good]) for side, rows in zip(self.sides, lowest, strict=True))
        same_first = one.same_head(other) | (one.distance(other) <= HEAD_TOLERANCE / 10)
        found[good] = ~one.alike(other) & (~same_first | (what[good] == _WHATS.index("norm")))
        return found

    # the books

    def _books(self, cases: pl.DataFrame, rows: pl.DataFrame, found: pl.DataFrame) -> None:
        """Count what every state came to, and describe each way of differing at its first place."""
        cases = cases.sort("pair", "place").with_row_index("case").with_columns(
            equal_before=(pl.col("agreed") & pl.col("identical")).cum_sum() - (pl.col("agreed") & pl.col("identical")),
            agreeing_before=pl.col("agreed").cum_sum() - pl.col("agreed"),
            previous=pl.when("agreed").then("case").forward_fill().shift(1),
        )  # fmt: skip
        rows = rows.join(cases.select("pair", "place", "role", "phase", "case"), on=["pair", "place"])
        key = ["role", "phase", "slot"]
        near = rows.filter(pl.col("grade") >= EQUAL, ground="near").group_by(key).agg(pl.len(), pl.col("doubt").sum())
        settled = near.filter(2 * pl.col("doubt") > pl.col("len")).select(*key, most=pl.lit(value=True))
        rows = rows.join(settled, on=key, how="left").with_columns(
            doubt=pl.col("doubt") & pl.col("most").fill_null(value=False)
        )
        rows = rows.with_columns(cell=pl.when("doubt").then(BEYOND).otherwise("cell")).sort("case", "slot")
        judged = pl.col("cell") >= EQUAL
        size = pl.when(judged).then(pl.col("relative").fill_nan(None).abs())
        self.out.cells = rows.group_by(key, maintain_order=True).agg(
            pairs=judged.sum(), equal=(pl.col("cell") == EQUAL).sum(), within=(pl.col("cell") == WITHIN).sum(),
            beyond=(pl.col("cell") == BEYOND).sum(), not_compared=(pl.col("cell") == NOT_COMPARED).sum(),
            only_baseline=pl.col("b").is_null().sum(), only_candidate=pl.col("a").is_null().sum(),
            **{name: pl.col(name).gather(size.arg_max()).first() for name in ("relative", "a", "b")},
        )  # fmt: skip
        values = rows.filter((pl.col("cell") == BEYOND) & (pl.col("what") != _WHATS.index("shape")))
        found = found.join(cases.select("pair", "place", "role", "phase", "case"), on=["pair", "place"])
        columns = ["case", "role", "phase", "slot", "a", "b", "what", "relative"]
        found = pl.concat(
            [found.with_columns(relative=pl.lit(None, pl.Float64)).select(columns), values.select(columns)]
        )
        found = found.sort("case", "slot", "what").with_columns(
            pl.col("relative").fill_nan(None),
            kind=pl.when(pl.col("what") >= _WHATS.index("norm")).then(-1).otherwise("what"),
            state=pl.when(pl.col("what") == _WHATS.index("captures")).then(None).otherwise("slot"),
            lacking=(pl.col("what") == 0) & pl.col("a").is_null(),
        )
        for _, same in found.group_by("kind", "role", "phase", "state", "lacking", maintain_order=True):
            difference = self._difference(cases, rows, same.row(0, named=True))
            difference.count = (same["slot"] == same["slot"][0]).sum()
            sizes = same["relative"].abs().drop_nulls()
            difference.largest = same["relative"][same["relative"].abs().arg_max()] if len(sizes) else None
            self.out.differences.append(difference)
        self._other_captures(cases)
        self.out.differences.sort(key=lambda difference: difference.order)

    def _difference(self, cases: pl.DataFrame, rows: pl.DataFrame, found: dict[str, Any]) -> Difference:
        """Describe a difference at its first place."""
        case = cases.row(found["case"], named=True)
        what: Any = _WHATS[found["what"]]
        passes = case["one"], case["other"]
        values = [
            None if row is None else self._value(what, side, row, passes[side])
            for side, row in enumerate((found["a"], found["b"]))
        ]
        if what == "captures":
            values = [self._captured(side, passes[side]) for side in (0, 1)]
        spots = [
            self.spot(side, passes[side], row, value, missing=what == "record" and row is None)
            for side, (row, value) in enumerate(zip((found["a"], found["b"]), values, strict=True))
        ]
        agreeing = rows.filter(
            (pl.col("case") == found["case"])
            & (pl.col("slot") < found["slot"])
            & pl.col("grade").is_in([EQUAL, WITHIN])
        )
        pieces = self.alignment.pieces.get(case["first"] if case["ground"] == "pieces" else -1, ([0], [0]))
        same_head = None
        if what in VALUES:
            one, other = (
                Points.of(side, np.array([row])) for side, row in zip(self.sides, (found["a"], found["b"]), strict=True)
            )
            same_head = bool(one.same_head(other)[0]) if one.count[0] and other.count[0] else None
        previous = None
        if case["previous"] is not None:
            before = cases.row(case["previous"], named=True)
            previous = self.spot(0, before["one"]), self.spot(1, before["other"])
        return Difference(
            what, case["role"], case["phase"], case["during"], found["slot"], case["ground"],
            (case["at"], case["place"], found["slot"]), (spots[0], spots[1]), passes,
            (self.sides[0].passes["rows"][passes[0]], self.sides[1].passes["rows"][passes[1]]), found["relative"],
            found["relative"], (len(pieces[0]), len(pieces[1])), same_head, 1, case["equal_before"],
            case["agreeing_before"], agreeing["slot"].to_list(), previous,
        )  # fmt: skip

    def _value(self, what: What, side: int, record: int, row: int) -> Any:
        """Return what one side prints of a difference."""
        said = self.sides[side].records.row(record, named=True)
        form = self.sides[side].forms.row(said["form"], named=True)
        if what == "rank":
            other = self.sides[side].deviating.filter(record=record)
            return None if other.is_empty() else other.row(0, named=True)
        if what == "shape":
            return self.sides[side].heads[said["form"]].shape
        return {"head": tuple(said["values"] or ()), "mode": form["mode"], "joined": form["states"],
                "copies": said["copies"]}.get(what, said["norm"])  # fmt: skip

    def spot(self, side: int, row: int, record: int | None = None, value: Any = None, *, missing: bool = False) -> Spot:
        """Return where a record, or a pass, stands."""
        kept = self.sides[side]
        file, line, number, ordinal = kept.passes.select("file", "line", "number", "ordinal").row(row)
        line = None if missing else line if record is None else kept.records["line"][record]
        return Spot(kept.files[file], line, number, ordinal, value)

    def _captured(self, side: int, row: int) -> tuple[int | None, ...]:
        """Return the layers a pass captures, the embedding as 0."""
        first, last = self.sides[side].passes.select("first", "last").row(row)
        slots = self.sides[side].records["slot"][first : last + 1].to_list()
        return tuple(self.sides[side].slots[slot].layer for slot in slots if is_capture(slot))

    def _other_captures(self, cases: pl.DataFrame) -> None:
        """Name other captured layers also where no pass of the phase could be paired: at the first of both runs."""
        known = {(each.role, each.phase) for each in self.out.differences if each.what == "captures"}
        for key in sorted(self.usual[0].keys() & self.usual[1].keys() - known):
            slot = self.captured_apart(key, key) if key[0] == "target" else None
            if slot is None:
                continue
            firsts = []
            for side in self.sides:
                real = side.passes.with_row_index("p").filter(
                    pl.col("during") != "graph_capture", role=key[0], phase=key[1]
                )
                firsts.append(real.sort("complete", descending=True, maintain_order=True)["p"][0])
            before = cases.filter((pl.col("at") < sum(firsts)) & pl.col("agreed"))
            spots = [self.spot(side, row, None, self._captured(side, row)) for side, row in enumerate(firsts)]
            rows = [side.passes["rows"][row] for side, row in zip(self.sides, firsts, strict=True)]
            self.out.differences.append(
                Difference("captures", *key, self.sides[0].passes["during"][firsts[0]], slot, None, (sum(firsts), 0, slot),
                           (spots[0], spots[1]), (firsts[0], firsts[1]), (rows[0], rows[1]),
                           equal_before=before["identical"].sum(), agreeing_before=before.height)
            )  # fmt: skip

    # what has no partner

    def _rest(self) -> None:
        """Account for rounds without a partner, their draft passes with them."""
        for side, name in enumerate(("one", "other")):
            rounds, rest = self.alignment.rounds[side], self.alignment.rest.filter(pl.col(name) >= 0)
            lead = rounds.select("p", "round").join(rest.select("reason", "at_end", p=name), on="p").drop("p")
            passes = rounds.select("p", "round").join(lead, on="round")
            self.gone.append(
                passes.filter(pl.col("reason").is_null()).select("p", pl.lit(side).alias("side"), "at_end")
            )
            self._count_apart(side, passes.select("p", why="reason").drop_nulls())
        for side in (0, 1):
            self._alone(side, pl.concat([each.filter(side=side) for each in self.gone]).sort("p"))

    def _alone(self, side: int, gone: pl.DataFrame) -> None:
        """Count passes that only one run has; keep those by themselves that are fragments."""
        kept = self.sides[side]
        kinds = gone.with_columns(kept.passes.select("role", "phase").gather(gone["p"]))
        counted = kinds.group_by("role", "phase", "at_end", maintain_order=True).agg(pl.len(), pl.col("p").first())
        for role, phase, at_end, number, first in counted.iter_rows():
            self.out.alone[side, role, phase, at_end] = number, self.spot(side, first)
        usual = pl.DataFrame([(*key, slot) for key, slots in self.usual[side].items() for slot in slots],
                             schema={"role": pl.String, "phase": pl.String, "slot": pl.Int64}, orient="row")  # fmt: skip
        wanted = (
            kinds.select("p", "role", "phase")
            .join(usual, on=["role", "phase"])
            .with_columns(pl.col("p").cast(pl.UInt32))
        )
        lacks = wanted.join(kept.records.select("p", "slot"), on=["p", "slot"], how="anti").cast({"p": pl.Int64})
        lacks = lacks.join(self.edges[side], on="p", how="left")
        cut = (pl.col("slot") < pl.col("low")) | (pl.col("slot") > pl.col("high"))
        for row, role, phase in (
            lacks.filter(~cut.fill_null(value=False)).select("p", "role", "phase").unique().sort("p").iter_rows()
        ):
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


class _Of(NamedTuple):
    """The records of cases in one slot: rows of both (-1), whether both hold a state, and how these came out."""

    a: Array
    b: Array
    known: Array
    same_rows: Array
    same_shape: Array
    beyond: Array
    what: Array


def _of_slot(cases: pl.DataFrame, rows: pl.DataFrame, slot: int, sides: tuple[Side, Side]) -> _Of:
    """Return the records of cases in a slot."""
    found = cases.select("pair", "place").join(
        rows.filter(slot=slot), on=["pair", "place"], how="left", maintain_order="left"
    )
    a, b = (found[name].fill_null(-1).to_numpy() for name in "ab")
    forms = [
        side.forms.select("rows", "shape").gather(side.records["form"].gather(np.maximum(each, 0)))
        for side, each in zip(sides, (a, b), strict=True)
    ]
    state = [
        side.has_state().gather(np.maximum(each, 0)).to_numpy() & (each >= 0)
        for side, each in zip(sides, (a, b), strict=True)
    ]
    same = [(forms[0][name] == forms[1][name]).to_numpy() for name in ("rows", "shape")]
    return _Of(
        a,
        b,
        state[0] & state[1],
        *same,
        found["raw"].fill_null(False).to_numpy(),
        found["what"].fill_null(0).to_numpy(),
    )


def _summed(cases: pl.DataFrame, rows: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """Add to cases whether all that was compared is equal, whether nothing is beyond tolerance or missing."""
    grades = rows.group_by("pair", "place").agg(
        worst=pl.col("grade").max(),
        compared=(pl.col("grade") >= EQUAL).any(),
        join=pl.col("grade").filter((pl.col("slot") == JOIN) & (pl.col("grade") >= EQUAL)).first(),
    )
    sound = found.select("pair", "place", unsound=pl.lit(value=True)).unique()
    cases = cases.join(grades, on=["pair", "place"], how="left", maintain_order="left")
    cases = cases.join(sound, on=["pair", "place"], how="left", maintain_order="left")
    agrees = (pl.col("worst").fill_null(0) < BEYOND) & pl.col("unsound").is_null()
    whole = pl.col("join").is_null() & agrees & ~pl.col("weak") & pl.col("apart").is_null()
    return cases.with_columns(
        identical=agrees & (pl.col("worst").fill_null(0) <= EQUAL),
        agreed=agrees & pl.col("compared").fill_null(value=False),
        trusted=whole | pl.col("join").is_in([EQUAL, WITHIN]).fill_null(value=False),
    ).drop("worst", "compared", "join", "unsound")


def _edges(side: Side, rounds: pl.DataFrame) -> pl.DataFrame:
    """Return the first and last pass of every lane (p) with its lowest and highest slot: a cut log may lack others."""
    ends = rounds.group_by("lane", maintain_order=True).agg(first=pl.col("p").first(), last=pl.col("p").last())
    found: dict[int, list[int | None]] = {}
    for at, name in enumerate(("first", "last")):
        for row in ends[name].to_list():
            first, last, during = side.passes.select("first", "last", "during").row(row)
            slots = side.records["slot"][first : last + 1]
            # A warm-up is known by the start-up lines before it: nothing is cut off there.
            if at or during != "warmup":
                found.setdefault(row, [None, None])[at] = int(slots.max() if at else slots.min())  # type: ignore[arg-type]
    rows = [(row, *limits) for row, limits in found.items()]
    return pl.DataFrame(rows, schema={"p": pl.Int64, "low": pl.Int64, "high": pl.Int64}, orient="row")


def _next_verify(side: Side, rounds: pl.DataFrame, leads: pl.Series, lowest: pl.Series) -> Array:
    """Return the record of the lowest state of the next verify pass of the lane, a few rounds on at most; -1 for none."""
    lead = rounds.filter(place=0)
    where = np.full(side.passes.height, -1)
    where[lead["p"].to_numpy()] = np.arange(lead.height)
    at, lane, verify = where[leads.to_numpy()], lead["lane"].to_numpy(), (lead["phase"] == "verify").to_numpy()
    found, going = np.full(len(at), -1), np.ones(len(at), bool)
    for step in range(1, _REACH + 1):
        later = np.minimum(at + step, lead.height - 1)
        going &= (at + step < lead.height) & (lane[later] == lane[at]) & (found < 0)
        found = np.where(going & verify[later], lead["p"].to_numpy()[later], found)
    wanted = pl.DataFrame({"p": found, "slot": lowest}, schema={"p": pl.Int64, "slot": pl.Int64})
    records = side.records.select(pl.col("p").cast(pl.Int64), "slot", r=pl.int_range(pl.len())).filter(side.has_state())
    return wanted.join(records, on=["p", "slot"], how="left", maintain_order="left")["r"].fill_null(-1).to_numpy()
