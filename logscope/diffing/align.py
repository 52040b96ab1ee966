"""Which forward pass of one run is which pass of another: by what the passes hold, not by where they stand.

This module is responsible for keeping what a comparison needs of a run (:class:`Side`), for when two printed states are
alike (:class:`Points`), and for pairing passes, each pair with the ground it stands on (docs/explanation/diff.md). It
must not judge whether a pair agrees above the state it was recognised by.

A target pass is recognised by its *lowest common state*, the lowest hidden capture that both runs print: what the pass
was given shows there, and what went wrong above does not yet. A *round* is a target pass with the draft passes that
follow it; the draft passes go where their target pass goes. Runs without target passes are paired draft pass by draft
pass, by what each reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np
import polars as pl

from logscope.model import CAPTURE_EVENTS, Payload, num_aux
from logscope.passes.sequences import rising
from logscope.tables.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]

# How far the lowest states of one pass may lie apart in two runs that compute in bf16, in norm (as a share of the
# tolerance for values: whatever is let in here is compared above) and in head. Noise between healthy runs whose batches
# were composed differently: up to 4.3e-4 in norm and 0.018 in head.
NEAR_SHARE, NEAR_HEAD = 0.25, 0.025
# How exactly a norm must be printed to recognise a pass by it alone, where row order hides the head.
FINE = 1e-5
# How many neighbours in norm a state is held against: bounds the work where all norms are alike (normalised states).
_NEIGHBOURS = 64
# More pieces than this no prefill is looked for in; more first values than this are not compared.
_MOST_PIECES, _MOST_VALUES = 4096, 8
# A phase of fewer passes than this does not show what is usual in it.
_FEW = 3

# The columns of both sides in tables of pairs.
NAMES = ("one", "other")
# The most rounds between a round and the verify pass that shows which token it sampled.
_REACH = 4
CAPTURE = "capture"
# The data's way through a pass: of the draft forward, fc, fc output; of the target the captures and their join.
_WAY = {"forward": 0, "fc": 1, CAPTURE: 2, "fc_output": 3, "forward_end": 4, "aux_concat": 5}
_LANE = ("file", "segment", "group")
_KEPT = (*_LANE, "number", "role", "phase", "during", "complete", "expected", "line", "rows", "key", "first", "last")
_FORMS: dict[str, Any] = {
    "slot": pl.Int64, "shape": pl.Int64, "rows": pl.Int64, "width": pl.Int64, "mode": pl.String, "states": pl.Int64,
    "value_slack": pl.Float64, "coarse": pl.Boolean, "usable": pl.Boolean,
}  # fmt: skip


class Slot(NamedTuple):
    """Where in a pass a record stands: its event (captures share one), layer, and which of several alike.

    ``number`` says the same, rising in the order of the data's way through a pass.
    """

    event: str
    layer: int | None = None
    nth: int = 0

    @property
    def number(self) -> int:
        """The slot as a number."""
        way = _WAY.get(self.event, len(_WAY) + crc32(self.event.encode()) % 9999)
        layer = 0xFFFFFF if self.layer is None else min(max(self.layer, 0), 0xFFFFFE)
        return (way << 32) + (layer << 8) + self.nth


JOIN, READ = Slot("aux_concat").number, Slot("forward").number


def is_capture(slot: int) -> bool:
    """Return whether a slot is the first of a captured state."""
    return slot >> 32 == _WAY[CAPTURE] and not slot & 0xFF


class Side:
    """What is kept of one run: numbers, whatever the length of its text.

    passes
        one row a pass, in order: its columns of the passes table that are needed, ``first`` and ``last`` record, and
        ``ordinal``: which of its role and phase it is, from 1 (graph capture counts by itself).
    records
        one row a record: p (row of its pass), slot, form, line, state (whether it holds one: a norm of usable text),
        norm (nan: none), slack, key, count and values of the first values, copies, differ. ``array`` has the columns.
    forms
        what records say beside their values: slot, shape (a number, 0 for none), rows, width, mode, states (joined),
        value_slack (of the first values), coarse (rounded or derived), usable. ``heads`` has the rest.
    """

    def __init__(self) -> None:
        self._parts: list[Tables] = []
        self.array: dict[str, Array] = {}
        self.add(Tables())

    def add(self, tables: Tables) -> None:
        """Take the next batch."""
        values = tables.records["values"]
        count = values.list.len().fill_null(0).to_numpy().astype(np.int64)
        records = tables.records.select(
            "pass", "file", "head", "norm", "copies", "differ", "print", pl.col("line").cast(pl.UInt32),
            pl.col("slack").cast(pl.Float32), pl.col("values_key").fill_null(0).alias("key"),
            pl.Series("count", np.minimum(count, _MOST_VALUES), dtype=pl.UInt8), _padded(values, count),
        )  # fmt: skip
        passes = tables.passes.select(*_KEPT, "join", "input", "fc", "end")
        server, prints = tables.server.clear(), tables.prints.filter(~pl.col("same"))
        self._parts.append(replace(tables, passes=passes, records=records, prints=prints, server=server, said=[]))

    def settle(self) -> None:
        """Put the batches together; to be called after the last one."""
        whole, self._parts = Tables.concat(self._parts), []
        self.files, self.groups, self.segments, self.heads = whole.files, whole.groups, whole.segments, whole.heads
        self.deviating = whole.prints.select("record", "line", "norm").unique("record", keep="first")
        self.passes = whole.passes.cast(dict.fromkeys(("role", "phase", "during"), pl.String)).drop(
            "join", "input", "fc", "end"
        )
        self.slots = {slot.number: slot for slot in map(_slot, self.heads)}
        self.forms = pl.DataFrame([_form(head) for head in self.heads], schema=_FORMS, orient="row")
        place = whole.passes["key"].search_sorted(whole.records["pass"]).cast(pl.UInt32)
        said = self.forms.select("slot", "usable").gather(whole.records["head"])
        self.records = whole.records.rename({"head": "form"}).drop("pass", "file", "print").with_columns(
            pl.col("norm").fill_null(math.nan), p=place, slot=said["slot"],
            state=said["usable"] & pl.col("norm").is_not_null(),
        )  # fmt: skip
        self._reunite()
        records = self.records.select("p", "slot")
        if not records.select((pl.col("slot").diff() > 0) | (pl.col("p").diff() != 0)).to_series().all():
            nth = records.select(pl.int_range(pl.len()).over("p", "slot").clip(0, 0xFF)).to_series()
            self.records = self.records.with_columns(pl.col("slot") + nth)
            again = self.records["slot"].filter(nth > 0).unique().to_list()
            self.slots |= {slot: self.slots[slot & ~0xFF]._replace(nth=slot & 0xFF) for slot in again}
        group = (*_LANE, "role", "phase", pl.col("during") == "graph_capture")
        self.passes = self.passes.with_columns(ordinal=pl.int_range(1, pl.len() + 1).over(group))
        self._expose()

    def _expose(self) -> None:
        self.array = {name: self.records[name].to_numpy() for name in self.records.columns}
        self.array |= {name: self.forms[name].to_numpy() for name in ("shape", "rows", "value_slack", "usable")}

    def _reunite(self) -> None:
        """Put passes together again that a repeated line has cut in two.

        A record that the pass already has looks like the first of the next pass. Where two neighbours of one role have
        no other record in common, the second begins with the very record the first ends with, and one of them lacks
        what its like have, they are one pass.
        """
        first, last = self.passes["first"].to_numpy(), self.passes["last"].to_numpy()
        said = self.records.select("form", "norm", "key")
        alike = np.all([said[n].gather(last[:-1]).eq_missing(said[n].gather(first[1:])) for n in said.columns], axis=0)
        alike &= np.all([self.passes[n][:-1] == self.passes[n][1:] for n in (*_LANE, "role")], axis=0)
        role, slots = self.passes["role"].to_numpy(), self.records["slot"].to_numpy()
        usual = {each: self._often(role == each) for each in set(role[:-1][alike])}
        gone, longer = np.zeros(len(role), bool), np.arange(len(role))
        for at in (np.flatnonzero(alike) + 1).tolist():
            one, other = (set(slots[first[p] : last[p] + 1].tolist()) for p in (at - 1, at))
            if (
                not gone[at - 1]
                and len(one & other) == 1
                and usual[role[at]] - (one & other)
                and (usual[role[at]] - one or usual[role[at]] - other)
            ):
                gone[at] = True
                # What is said of the pass as a whole is what its longer part says.
                longer[at - 1] = at if len(other) > len(one) else at - 1
        if gone.any():
            place = pl.Series(np.cumsum(~gone) - 1, dtype=pl.UInt32)
            self.records = self.records.with_columns(place.gather(self.records["p"]).alias("p"))
            lines, ends = self.passes["line"].filter(~gone), np.flatnonzero(~np.append(gone[1:], False))
            self.passes = self.passes.gather(longer[~gone]).with_columns(lines, first=first[~gone], last=last[ends])

    def unite(self, rows: list[int]) -> int:
        """Add a pass that is several pieces of one prefill: rows add up, norms add in quadrature; return its row.

        The first values are the first piece's: row 0 is in it. It has the slots that every piece has.
        """
        pieces = self.records.filter(pl.col("p").is_in(rows))
        square = (pl.col("norm") ** 2).sum().sqrt()
        pieces = pieces.with_columns(self.forms["rows"].gather(pieces["form"]))
        whole = pieces.group_by("slot", maintain_order=True).agg(
            pl.exclude("norm", "slack", "rows", "state").first(), pl.col("rows").sum(), pl.col("state").all(),
            norm=square, number=pl.len(), slack=((pl.col("norm") * pl.col("slack")).sum() / square).cast(pl.Float32),
        ).filter(pl.col("number") == len(rows)).sort("slot")  # fmt: skip
        new, last, form = self.passes.height, self.records.height, pl.Series(range(whole.height), dtype=pl.UInt32)
        forms = self.forms.gather(whole["form"]).with_columns(whole["rows"], shape=pl.lit(0, pl.Int64))
        self.heads = self.heads + [self.heads[at] for at in whole["form"]]
        whole = whole.with_columns(form=form + self.forms.height, p=pl.lit(new, pl.UInt32))
        self.forms, self.records = self.forms.vstack(forms), self.records.vstack(whole.select(self.records.columns))
        ends = {"first": pl.lit(last, pl.Int64), "last": pl.lit(last + whole.height - 1, pl.Int64)}
        self.passes = self.passes.vstack(self.passes[rows[0]].with_columns(**ends))
        self._expose()
        return new

    # what is usual

    def usual(self) -> dict[tuple[str, str], frozenset[int]]:
        """Return by role and phase the slots that more than half of the complete passes have.

        Of all passes where none is complete. A phase of fewer than three passes says little: its role decides.
        """
        role, phase, during, complete = (
            self.passes[name].to_numpy() for name in ("role", "phase", "during", "complete")
        )
        real, usual = during != "graph_capture", {}
        for kind in set(zip(role[real], phase[real], strict=True)):
            like = real & (role == kind[0])
            same = like & (phase == kind[1])
            like = same if same.sum() >= _FEW else like
            usual[kind] = self._often(like & complete if (like & complete).any() else like)
        return usual

    def _often(self, passes: Array) -> frozenset[int]:
        """Return the slots that more than half of some passes (a mask) have."""
        slots = self.records["slot"].filter(passes[self.records["p"].to_numpy()]).value_counts()
        return frozenset(slots.filter(2 * pl.col("count") > passes.sum())["slot"].to_list())

    def joined(self) -> dict[tuple[str, str], int]:
        """Return by role and phase how many states are usually joined, as far as the joins say it."""
        joins = self.records.filter(slot=JOIN).select("p", "form")
        said = self.passes.select("role", "phase").gather(joins["p"])
        said = said.with_columns(self.forms["states"].gather(joins["form"])).drop_nulls()
        counted = said.group_by("role", "phase", "states", maintain_order=True).len().sort("len", maintain_order=True)
        return {(role, phase): states for role, phase, states, _ in counted.iter_rows()}

    def phases(self, role: str | None) -> dict[str, int]:
        """Count the passes of a role by phase, without the dummies of graph capture."""
        real = self.passes.filter((pl.col("role") == role) & (pl.col("during") != "graph_capture"))
        return dict(real.group_by("phase", maintain_order=True).len().iter_rows())


def _padded(values: pl.Series, count: Array) -> pl.Series:
    """Return lists as rows of one width, what is too much left out, nan for what is not there."""
    out = np.full((len(count), _MOST_VALUES), np.nan, np.float32)
    flat = values.filter(pl.Series(count > 0)).explode().to_numpy()
    place = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    kept = place < _MOST_VALUES
    out[np.repeat(np.arange(len(count)), count)[kept], place[kept]] = flat[kept]
    return pl.Series("values", out, dtype=pl.Array(pl.Float32, _MOST_VALUES))


def _slot(head: Payload) -> Slot:
    return Slot(CAPTURE if head.event in CAPTURE_EVENTS else head.event, head.layer)


def _form(head: Payload) -> tuple[Any, ...]:
    shape = head.shape or ()
    coarse = head.norm_derived or head.head_resolution is not None
    return (_slot(head).number, hash(shape) if shape else 0, shape[0] if len(shape) > 1 else 1, head.width, head.mode,
            num_aux(head), max(head.head_resolution or (0.0,)), coarse, head.usable)  # fmt: skip


# -- when two prints are of one state -------------------------------------------------------------------------------


@dataclass(slots=True)
class Points:
    """The states of records as arrays, one row each. ``count`` first values are printed, the others are nan."""

    shape: Array
    rows: Array
    norm: Array
    slack: Array
    key: Array
    count: Array
    value_slack: Array
    values: Array

    @classmethod
    def of(cls, side: Side, records: Array) -> Points:
        """Return the states of these records."""
        form = side.array["form"][records]
        of_form = {"shape", "rows", "value_slack"}
        return cls(
            **{each.name: side.array[each.name][form if each.name in of_form else records] for each in fields(cls)}
        )

    def take(self, at: Array) -> Points:
        """Return some rows."""
        return Points(*(getattr(self, column.name)[at] for column in fields(self)))

    def _both(self, other: Points) -> tuple[Array, Array, Array]:
        """Return the first values of both, and which of them both print."""
        printed = np.arange(_MOST_VALUES) < np.minimum(self.count, other.count)[:, None]
        return self.values.astype(float), other.values.astype(float), printed

    def same_norm(self, other: Points) -> Array:
        """Return whether norms may be one number, at the coarser print."""
        return close(self.norm, other.norm, self.slack + other.slack)

    def same_head(self, other: Points) -> Array:
        """Return whether first values may be the same, as far as both are printed, at the coarser print."""
        mine, theirs, printed = self._both(other)
        same = close(mine, theirs, (self.value_slack + other.value_slack)[:, None]) | ~printed
        return np.asarray(same.all(axis=1))

    def finite_head(self) -> Array:
        """Return whether all first values are finite."""
        fine = np.isfinite(self.values) | (np.arange(_MOST_VALUES) >= self.count[:, None])
        return np.asarray(fine.all(axis=1))

    def alike(self, other: Points) -> Array:
        """Return whether two prints may stand for one state, at the coarser of the two."""
        found: Array = (self.shape == other.shape) & self.same_norm(other)
        at = np.flatnonzero(found)
        found[at] = self.take(at).same_head(other.take(at))
        return found

    def distance(self, other: Points) -> Array:
        """Return |a - b| / max(|a|, |b|) over the first values both print: 0 for equal, about 1.4 for unrelated ones.

        Taken over all of them, because a single value near zero may lose every digit to bf16 without meaning anything.
        Infinite when a value is finite on one side only.
        """
        mine, theirs, printed = self._both(other)
        finite = printed & np.isfinite(mine) & np.isfinite(theirs)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            apart = np.where(
                close(mine, theirs, 0.0) | ~printed, 0.0, np.where(finite, (mine - theirs) ** 2, np.inf)
            ).sum(1)
            largest = np.maximum(*(np.where(finite, each**2, 0.0).sum(1) for each in (mine, theirs)))
            found = np.where(apart > 0, np.sqrt(apart / largest), 0.0)
        return np.where(np.isnan(found), np.inf, found)


def close(one: Array, other: Array, slack: Array | float) -> Array:
    """Return whether two printed values may be one number; nan equals nan, inf equals inf.

    The last term pays for keeping first values in single precision, the factor for the binary form of a decimal half.
    """
    with np.errstate(invalid="ignore"):
        near = np.abs(one - other) <= 1.001 * slack + 1e-7 * np.abs(one)
    found: Array = (one == other) | (np.isnan(one) & np.isnan(other)) | (near & np.isfinite(one) & np.isfinite(other))
    return found


# -- pairing --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Alignment:
    """The pairs of two runs. ``role`` is the role the rounds are led by, None when nothing can be paired at all.

    rounds
        for each side one row a pass: p (its row), lane, round (its number), place (0 leads), role, phase, rows.
    pairs
        ground, one and other (rows of the leading passes), moved (stands in another order than the pairs around it),
        supported (False: the ground is weak and no neighbour agrees too), lowest (the slot it was recognised by).
        ``pieces`` holds all passes of a pair on that ground, by the first of the baseline.
    rest
        leading passes without a partner: two that stand in the same place with the reason why they are no pair, or one
        where the other run has none (-1); at_end: behind the last pair.
    """

    role: str | None
    rounds: tuple[pl.DataFrame, pl.DataFrame]
    merged: bool
    pairs: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_PAIR))
    rest: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_REST))
    pieces: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)


_PAIR: dict[str, Any] = {
    "ground": pl.String, "one": pl.Int64, "other": pl.Int64, "moved": pl.Boolean, "supported": pl.Boolean,
    "lowest": pl.Int64,
}  # fmt: skip
_REST: dict[str, Any] = {"one": pl.Int64, "other": pl.Int64, "reason": pl.String, "at_end": pl.Boolean}


def align(sides: tuple[Side, Side], rtol: float) -> Alignment:
    """Pair the passes of two runs. ``rtol`` is the relative tolerance of a norm."""
    roles = [set(side.passes.filter(pl.col("during") != "graph_capture")["role"].to_list()) for side in sides]
    role = next((role for role in ("target", "draft") if role in roles[0] & roles[1]), None)
    rounds = _rounds(sides[0], by_target=role != "draft"), _rounds(sides[1], by_target=role != "draft")
    leads = [each.filter(place=0) for each in rounds]
    lanes = [each["lane"].n_unique() for each in leads]
    out = Alignment(role, rounds, lanes[0] != lanes[1])
    for lane in range(1 if out.merged else lanes[0]):
        rows = [(each.sort("p") if out.merged else each.filter(lane=lane))["p"].to_numpy() for each in leads]
        pairing = _Pairing(sides, rounds, (rows[0], rows[1]), role, rtol)
        pairs, rest = pairing.run()
        out.pairs, out.rest = pl.concat([out.pairs, pairs]), pl.concat([out.rest, rest])
        out.pieces |= pairing.pieces
    return out


def _rounds(side: Side, *, by_target: bool) -> pl.DataFrame:
    """Cut the passes into rounds, lane by lane; a lane is what one scheduler printed in one server life.

    Lanes stand by file and server life as they came, then by rank: which rank prints first is chance.
    """
    passes = side.passes.with_row_index("p").filter(pl.col("during") != "graph_capture")
    passes = passes.cast({"p": pl.Int64}).filter((pl.col("role") == "draft") | by_target)
    lanes = passes.select(*_LANE).unique(keep="first", maintain_order=True)
    lives: dict[Any, int] = {}
    keys = []
    for file, segment, group in lanes.iter_rows():
        ranks = [(part is not None, str(part).rjust(12)) for part in side.groups[group][::-1]]
        keys.append((lives.setdefault((file, segment), len(lives)), ranks))
    order = sorted(range(len(keys)), key=keys.__getitem__)
    number = pl.Series("lane", np.argsort(order), dtype=pl.Int64)
    passes = passes.join(lanes.with_columns(number), on=_LANE, maintain_order="left").sort("lane", maintain_order=True)
    leads = (pl.col("lane").diff().fill_null(1) != 0) | (pl.col("role") == "target") | (not by_target)
    found = passes.select("p", "lane", "role", "phase", "rows", round=leads.cast(pl.Int64).cum_sum())
    return found.with_columns(place=pl.int_range(pl.len()).over("round"))


class _Pairing:
    """The pairing of one lane, ground by ground, from the strongest to the weakest. Places count along the lane."""

    def __init__(self, sides: Any, rounds: Any, leads: tuple[Array, Array], role: str | None, rtol: float) -> None:
        self.sides, self.rounds, self.leads, self.role, self.rtol = sides, rounds, leads, role, rtol
        self.kinds = [side.passes.gather(rows) for side, rows in zip(sides, leads, strict=True)]
        self.phases = [kinds["phase"].to_numpy() for kinds in self.kinds]
        self.rows = [kinds["rows"].fill_null(-1).to_numpy() for kinds in self.kinds]
        self.partner = [np.full(len(rows), -1) for rows in leads]
        self.ground = np.full(len(leads[0]), "", object)
        self.moved, self.weak, self.spine = np.zeros((3, len(leads[0])), bool)
        self.pieces: dict[int, tuple[list[int], list[int]]] = {}
        # Rows of the records that hold a state, by side and slot, -1 for none; the slots that both sides hold.
        self.held: list[dict[int, Array]] = [{}, {}]
        self.common: list[int] = []
        self.lowest = -1
        self.same_captures = True

    def run(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Pair what can be paired; return pairs and leftovers as :class:`Alignment` holds them."""
        self._find_common()
        if self.common:
            self._stage("state", self.lowest, _alike_with_heads, moved=True)
            self._stage("state", self.lowest, _known_by_norm, accept=self._one_without_head)
            for slot in self.common[1:]:
                self._stage("other", slot, _alike_with_heads)
            if self.lowest != Slot(CAPTURE, 0).number:
                self._stage("near", self.lowest, self._near)
            for slot in self.common:
                self._stage("order", slot, _row_order, accept=self._norms_agree)
            if self.role == "target":
                self._cut_prefills()
                self._follows()
                self._first()
        rest = self._leftovers()
        if self.common:
            self._support()
        at = np.flatnonzero(self.ground != "")
        pairs = {
            "ground": self.ground[at].tolist(), "one": self.leads[0][at], "other": self.leads[1][self.partner[0][at]],
            "moved": self.moved[at], "supported": ~self.weak[at], "lowest": np.full(len(at), self.lowest),
        }  # fmt: skip
        return pl.DataFrame(pairs, schema=_PAIR), rest

    def _find_common(self) -> None:
        """Find the states that the leading passes of both sides print, lowest first."""
        counts: list[dict[int, int]] = []
        for side, rows, kinds, held in zip(self.sides, self.leads, self.kinds, self.held, strict=True):
            place = np.full(side.passes.height, -1)
            place[rows] = np.arange(len(rows))
            slots, at = side.array["slot"], place[side.array["p"]]
            kept = np.flatnonzero((at >= 0) & side.array["state"] & (slots & 0xFF == 0))
            lead = (kinds["role"] == (self.role or "")).to_numpy()[at[kept]]
            # Of a draft pass that leads a round of a cut log, what it reads stands for the lowest state.
            for slot in {-1, *np.unique(slots[kept]).tolist()}:
                part = kept[lead & (slots[kept] == slot)] if slot >= 0 else kept[~lead & (slots[kept] == READ)]
                held[slot] = np.full(len(rows), -1)
                held[slot][at[part]] = part
            counts.append({slot: n for slot, at in held.items() if slot >= 0 and (n := int((at >= 0).sum()))})
        captured = [set(filter(is_capture, found)) for found in counts]
        usual = [{n for n in slots if 2 * counts[at][n] > len(self.leads[at])} for at, slots in enumerate(captured)]
        self.same_captures = usual[0] == usual[1]
        common = sorted(counts[0].keys() & counts[1].keys())
        if not common or (all(captured) and not captured[0] & captured[1]):
            return  # no layer in common: their join may be compared no more than they
        often = [slot for slot in common if all(2 * found[slot] >= max(found.values()) for found in counts)]
        self.lowest = (often or common)[0]
        self.common = [self.lowest, *(slot for slot in common if slot != self.lowest)]
        for held in self.held:
            held[self.lowest] = np.maximum(held[self.lowest], held[-1])

    def _points(self, side: int, places: Array, slot: int) -> Points:
        """Return the states of places in a slot, which have one each."""
        return Points.of(self.sides[side], self.held[side][slot][places])

    def _free(self, side: int, slot: int | None = None) -> Array:
        """Return the places without a partner, those with a state in a slot."""
        free = self.partner[side] < 0
        return np.flatnonzero(free if slot is None else free & (self.held[side][slot] >= 0))

    # stages

    def _stage(
        self, ground: str, slot: int, alike: Callable[[Points, Points], Array], *, moved: bool = False,
        accept: Callable[[Array, Array], Array] | None = None,
    ) -> None:  # fmt: skip
        """Pair states that are alike: in order between the pairs there are, then, with ``moved``, anywhere."""
        places = self._free(0, slot), self._free(1, slot)
        if not len(places[0]) or not len(places[1]):
            return
        found: list[tuple[int, int]] = []
        classes = self._classes(places, slot, alike)
        for mine, theirs in self._gaps():
            if len(mine) and len(theirs):
                pairs = in_order(classes[0][mine].tolist(), classes[1][theirs].tolist())
                found += [(mine[one], theirs[other]) for one, other in pairs]
        one, other = np.array(found, np.int64).reshape(-1, 2).T
        good = np.ones(len(one), bool) if accept is None else accept(one, other)
        self._join(ground, one[good], other[good])
        self.spine[one[good]] = True
        if moved:
            waiting: dict[int, list[int]] = {}
            mine, theirs = (free[self._has_head(side, free)] for side in (0, 1) for free in [self._free(side, slot)])
            for at in theirs[::-1].tolist():
                waiting.setdefault(int(classes[1][at]), []).append(at)
            for at in mine.tolist():
                partners = waiting.get(int(classes[0][at])) if classes[0][at] >= 0 else None
                if partners:
                    self._join(ground, np.array([at]), np.array([partners.pop()]), moved=True)

    def _classes(self, places: tuple[Array, Array], slot: int, alike: Callable[[Points, Points], Array]) -> list[Array]:
        """Return a number for every place, the same for states that are alike; each is held against its neighbours."""
        parts = [self._points(side, at, slot) for side, at in enumerate(places)]
        whole = Points(*(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(Points)))
        order = np.lexsort((whole.key, whole.norm, whole.shape))
        whole = whole.take(order)
        root = np.arange(len(order)).tolist()

        def top(code: int) -> int:
            while root[code] != code:
                root[code] = root[root[code]]
                code = root[code]
            return code

        for lag in range(1, min(_NEIGHBOURS, len(order) - 1) + 1):
            # Nothing that is alike lies further apart than this; the exact test follows.
            reach = self.rtol * np.abs(whole.norm[lag:]) + 1.01 * (whole.slack[lag:] + whole.slack[:-lag])
            with np.errstate(invalid="ignore"):
                far = whole.norm[lag:] - whole.norm[:-lag] > reach
            near = np.flatnonzero((whole.shape[lag:] == whole.shape[:-lag]) & ~far)
            if not len(near):
                break
            for one in near[alike(whole.take(near), whole.take(near + lag))].tolist():
                root[top(one + lag)] = top(one)
        codes = np.full(len(parts[0].norm) + len(parts[1].norm), -1)
        codes[order] = [top(code) for code in range(len(order))]
        out = [np.full(len(rows), -1) for rows in self.leads]
        out[0][places[0]], out[1][places[1]] = np.split(codes, [len(places[0])])
        return out

    def _near(self, one: Points, other: Points) -> Array:
        """Return whether two lowest states may be one, up to the noise of bf16."""
        near = np.abs(one.norm - other.norm) <= NEAR_SHARE * self.rtol * np.maximum(one.norm, other.norm)
        found: Array = (one.count > 0) & (other.count > 0) & near & (one.distance(other) <= NEAR_HEAD)
        return found

    def _norms_agree(self, mine: Array, theirs: Array) -> Array:
        """Return whether the norms of all states both passes print agree, and there are at least two."""
        agreeing, apart = np.zeros((2, len(mine)), int)
        for slot in self.common:
            at = np.flatnonzero((self.held[0][slot][mine] >= 0) & (self.held[1][slot][theirs] >= 0))
            one, other = self._points(0, mine[at], slot), self._points(1, theirs[at], slot)
            slack = one.slack + other.slack + self.rtol * np.maximum(np.abs(one.norm), np.abs(other.norm))
            agrees = (one.shape == other.shape) & close(one.norm, other.norm, slack)
            agreeing[at] += agrees
            apart[at] += ~agrees
        found: Array = (apart == 0) & (agreeing > 1)
        return found

    def _has_head(self, side: int, places: Array) -> Array:
        """Return whether the lowest state of passes is printed with first values."""
        found: Array = self.sides[side].array["count"][self.held[side][self.lowest][places]] > 0
        return found

    def _one_without_head(self, mine: Array, theirs: Array) -> Array:
        """Return whether one of two passes prints first values and the other does not."""
        found: Array = self._has_head(0, mine) != self._has_head(1, theirs)
        return found

    def _gaps(self) -> Iterator[tuple[Array, Array]]:
        """Yield the places without a partner between one pair of the spine and the next, of both sides."""
        ends = np.flatnonzero(self.spine)
        free = self._free(0), self._free(1)
        gaps = np.searchsorted(ends, free[0]), np.searchsorted(np.sort(self.partner[0][ends]), free[1])
        numbers = np.union1d(*gaps)
        cuts = [np.searchsorted(gap, numbers[1:]) for gap in gaps]
        yield from zip(*(np.split(places, cut) for places, cut in zip(free, cuts, strict=True)), strict=True)

    def _join(self, ground: str, one: Array, other: Array, *, moved: bool = False) -> None:
        """Make places pairs."""
        self.partner[0][one], self.partner[1][other] = other, one
        self.ground[one], self.moved[one] = ground, moved

    def _cut_prefills(self) -> None:
        """Pair prefills cut differently: rows add up, norms add in quadrature, the first piece's head is equal."""
        places = [self._free(side, self.lowest) for side in (0, 1)]
        places = [at[self.phases[side][at] == "extend"] for side, at in enumerate(places)]
        known = [self._points(side, at, self.lowest) for side, at in enumerate(places)]
        if not len(places[0]) or not len(places[1]):
            return
        order = np.argsort(known[1].values[:, 0], kind="stable")
        starts = known[1].values[order, 0]
        used: set[int] = set()
        at = 0
        while at < len(places[0]):
            mine = known[0].take(np.array([at]))
            value = mine.values[0, 0]
            reach = NEAR_HEAD * math.sqrt(np.nansum(mine.values.astype(float) ** 2)) + 2 * mine.value_slack[0]
            near = order[slice(*np.searchsorted(starts, [value - reach, value + reach]) + np.array([0, 1]))]
            one, other = mine.take(np.zeros(len(near), int)), known[1].take(near)
            alike = (one.same_head(other) | (one.distance(other) <= NEAR_HEAD)) & (one.count > 0) & (other.count > 0)
            for start in near[alike].tolist():
                ends = self._same_prefill(known, at, start)
                if ends is not None and used.isdisjoint(range(start, ends[1])):
                    used.update(range(start, ends[1]))
                    found = places[0][at : ends[0]], places[1][start : ends[1]]
                    self._join("pieces", found[0][:1], found[1][:1])
                    self.partner[0][found[0]], self.partner[1][found[1]] = found[1][0], found[0][0]
                    rows = [self.leads[side][found[side]].tolist() for side in (0, 1)]
                    self.pieces[rows[0][0]] = rows[0], rows[1]
                    at = ends[0] - 1
                    break
            at += 1

    def _same_prefill(self, known: list[Points], mine: int, theirs: int) -> tuple[int, int] | None:
        """Return where extends end that add up to the same rows and norm from two places on, None when they do not."""
        starts, ends, rows, squares = (mine, theirs), [mine, theirs], [0, 0], [0.0, 0.0]
        while rows[0] != rows[1] or not rows[0]:
            side = int(rows[0] > rows[1])
            at = ends[side]
            if at >= len(known[side].rows) or at - starts[side] >= _MOST_PIECES:
                return None
            rows[side] += int(known[side].rows[at])
            squares[side] += float(known[side].norm[at]) ** 2
            ends[side] += 1
        if ends[0] - mine == ends[1] - theirs == 1:
            return None  # nothing was cut: two prefills of the same length
        norms = np.sqrt(squares)
        return (ends[0], ends[1]) if close(norms[:1], norms[1:], self.rtol * norms.max())[0] else None

    def _follows(self) -> None:
        """Pair verify passes whose lowest states differ although the draft passes before them are all equal.

        What a verify pass is given comes from those: the same drafts on the same states are the same input.
        """
        one = self._free(0)
        one = one[(one > 0) & (self.phases[0][one] == "verify")]
        one = one[np.isin(self.ground[one - 1], ("state", "other"))]
        other = np.minimum(self.partner[0][one - 1] + 1, len(self.leads[1]) - 1)
        good = (self.partner[1][other] < 0) & (self.phases[1][other] == "verify")
        good &= self.rows[0][one] == self.rows[1][other]
        one, other = one[good], other[good]
        if len(one):
            same = self._same_drafts(self.leads[0][one - 1], self.leads[1][other - 1])
            self._join("follows", one[same], other[same])
            self.spine[one[same]] = True

    def _same_drafts(self, mine: Array, theirs: Array) -> Array:
        """Return whether the draft passes behind leading passes are the same and print the same, and there are any."""
        found = []
        for rounds, leads in zip(self.rounds, (mine, theirs), strict=True):
            pair = pl.DataFrame({"p": leads, "pair": np.arange(len(leads))}).join(rounds.filter(place=0), on="p")
            drafts = rounds.filter(pl.col("place") > 0).join(pair.select("round", "pair"), on="round")
            found.append(drafts.select("pair", "place", "p"))
        both = found[0].join(found[1], on=["pair", "place"], how="full", coalesce=True)
        whole = both.drop_nulls()
        rows = paired_records(self.sides, whole["p"].to_numpy(), whole["p_right"].to_numpy())
        case, a, b = (rows[name].to_numpy() for name in ("case", "a", "b"))
        known = (a >= 0) & (b >= 0)
        one, other = (Points.of(side, rows[known]) for side, rows in zip(self.sides, (a, b), strict=True))
        same = np.zeros(len(mine), bool)
        same[both["pair"].to_numpy()] = True
        same[both.filter(pl.any_horizontal(pl.all().is_null()))["pair"].to_numpy()] = False
        same[whole["pair"].to_numpy()[np.append(case[~known], case[known][~one.alike(other)])]] = False
        return same

    def _first(self) -> None:
        """Pair the first prefills while they have the same rows in the same order, and no prefill has a partner.

        Only where both runs capture the same states: with other states joined, other values prove nothing. Several
        prefills of one length prove nothing either (a benchmark with prompts cut to size), unless the first is the
        server's own warm-up.
        """
        extends = [np.flatnonzero(phases == "extend") for phases in self.phases]
        if not self.same_captures or any((self.partner[side][at] >= 0).any() for side, at in enumerate(extends)):
            return
        number = min(map(len, extends))  # the shorter run decides how far
        shapes = []
        for side, at in enumerate(extends):
            records = self.held[side][self.lowest][at[:number]]
            shape = self._points(side, at[:number], self.lowest).shape
            shapes.append(np.where(records >= 0, shape, -1 - side))
        number = int(np.argmin(np.append(shapes[0] == shapes[1], False)))
        one, other = extends[0][:number], extends[1][:number]
        warm = number and all(
            self.kinds[side]["during"][int(at[0])] == "warmup" for side, at in enumerate((one, other))
        )
        if number == 1 or warm or len(set(shapes[0][:number])) > 1:
            self._join("first", one, other)
            self.spine[one] = True

    # what is weak, and what is left

    def _support(self) -> None:
        """Mark pairs that rest on the embedding alone, or on a norm without a head, and have no pair beside them.

        The embedding shows the tokens and not what stands before them; a norm alone may be met by chance.
        """
        by_embedding = self.lowest == Slot(CAPTURE, 0).number
        one = np.flatnonzero(self.ground == "state")
        other = self.partner[0][one]
        prefill = np.isin([self.phases[0][one], self.phases[1][other]], ("extend", "unknown")).all(0)
        known = self._has_head(0, one) & self._has_head(1, other) & (prefill | (not by_embedding))
        around = np.concatenate([[-1], self.partner[0], [-2]])
        beside = (around[one] == other - 1) & ((one == 0) == (other == 0))
        self.weak[one] = ~known & ~beside & ((around[one + 2] != other + 1) | by_embedding)

    def _leftovers(self) -> pl.DataFrame:
        """Put what is left between two pairs side by side, phase by phase, and say why it is no pair."""
        last = np.flatnonzero(self.spine)[-1:].tolist()
        end = (last[0], int(self.partner[0][last[0]])) if last else (-1, -1)
        kinds = [kinds.select("role", "phase").rows() for kinds in self.kinds]
        found: list[tuple[int, int]] = []
        for mine, theirs in self._gaps():
            waiting: dict[tuple[str, str], list[int]] = {}
            for at in theirs[::-1].tolist():
                waiting.setdefault(kinds[1][at], []).append(at)
            queues = ((at, waiting.get(kinds[0][at])) for at in mine.tolist())
            found += [(at, queue.pop() if queue else -1) for at, queue in queues]
            found += [(-1, at) for at in sorted(chain.from_iterable(waiting.values()))]
        one, other = np.array(found, np.int64).reshape(-1, 2).T
        both = (one >= 0) & (other >= 0)
        if self.common:
            why, held = "state", [each[self.lowest] >= 0 for each in self.held]
        else:
            why = "layers"
            states = [side.array["p"][side.array["state"]] for side in self.sides]
            held = [np.isin(leads, each) for leads, each in zip(self.leads, states, strict=True)]
        mine, theirs = _at(held[0], one, default=False), _at(held[1], other, default=False)
        apart = mine & theirs if self.common else mine | theirs
        rows = _at(self.rows[0], one, -1) != _at(self.rows[1], other, -1)
        place = both & ~rows & ~apart
        self._join("place", one[place], other[place])
        reason = np.where(both, np.where(rows, "rows", why), "")
        lead = [_at(leads, at, -1) for at, leads in zip((one, other), self.leads, strict=True)]
        at_end = ((one < 0) | (one > end[0])) & ((other < 0) | (other > end[1]))
        columns = {"one": lead[0], "other": lead[1], "reason": reason.tolist(), "at_end": at_end}
        return pl.DataFrame(columns, schema=_REST).filter(~place)


def _at(values: Array, places: Array, default: Any) -> Array:
    """Return the values at places, the default at -1."""
    found: Array = np.append(values, default)[places]
    return found


def paired_records(sides: tuple[Side, Side], one: Array, other: Array) -> pl.DataFrame:
    """Join the records of paired passes on case (which pair) and slot: a and b are rows of both, -1 for none."""
    found = []
    for side, rows, name in zip(sides, (one, other), "ab", strict=True):
        first, last = (side.passes[end].to_numpy()[rows] for end in ("first", "last"))
        number = last - first + 1
        at = np.arange(number.sum()) + np.repeat(first - np.cumsum(number) + number, number)
        case = np.repeat(np.arange(len(rows)), number)
        found.append(pl.DataFrame({"case": case, "slot": side.array["slot"][at], name: at}))
    both = found[0].join(found[1], on=["case", "slot"], how="full", coalesce=True, maintain_order="left_right")
    return both.with_columns(pl.col("a", "b").fill_null(-1))


def next_verify(side: Side, rounds: pl.DataFrame, leads: Array, lowest: Array) -> Array:
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


def _alike_with_heads(one: Points, other: Points) -> Array:
    """Return whether two prints may be of one state, with first values both or without them both."""
    found: Array = ((one.count > 0) == (other.count > 0)) & one.alike(other)
    return found


def _known_by_norm(one: Points, other: Points) -> Array:
    """Return whether two prints may be of one state, of which only one has first values."""
    found: Array = ((one.count > 0) != (other.count > 0)) & one.same_norm(other)
    return found


def _row_order(one: Points, other: Points) -> Array:
    """Return whether two states may be the same rows in another order: their norms agree to many digits."""
    fine = one.slack + other.slack <= FINE * one.norm
    found: Array = (one.rows > 1) & fine & one.same_norm(other)
    return found


def in_order(one: Sequence[int], other: Sequence[int]) -> list[tuple[int, int]]:
    """Return pairs of places that hold the same class, rising on both sides; -1 is no class.

    A patience diff: equal beginnings and ends first, then the classes that stand once on each side, of these the
    longest rising sequence, then the same between them. Repeated classes are paired first with first.
    """
    found: list[tuple[int, int]] = []
    waiting = [(0, len(one), 0, len(other))]
    while waiting:
        first, last, begin, end = waiting.pop()
        while first < last and begin < end and one[first] == other[begin] != -1:
            found.append((first, begin))
            first, begin = first + 1, begin + 1
        while first < last and begin < end and one[last - 1] == other[end - 1] != -1:
            last, end = last - 1, end - 1
            found.append((last, end))
        anchors = _anchors(one, other, range(first, last), range(begin, end))
        found += anchors
        if anchors:
            marks = [(first - 1, begin - 1), *anchors, (last, end)]
            waiting += [(a + 1, c, b + 1, d) for (a, b), (c, d) in pairwise(marks) if a + 1 < c and b + 1 < d]
    return sorted(found)


def _anchors(one: Sequence[int], other: Sequence[int], mine: range, theirs: range) -> list[tuple[int, int]]:
    """Return the longest rising sequence of places that hold a class found once on each side, else k-th with k-th."""
    places: tuple[dict[int, list[int]], dict[int, list[int]]] = ({}, {})
    for found, sequence, span in zip(places, (one, other), (mine, theirs), strict=True):
        for at in span:
            found.setdefault(sequence[at], []).append(at)
    both = [(at, places[1][code]) for code, at in places[0].items() if code != -1 and code in places[1]]
    once = [(a[0], b[0]) for a, b in both if len(a) == len(b) == 1]
    pairs = sorted(once or [pair for a, b in both for pair in zip(a, b, strict=False)])  # the rest stays alone
    return rising(pairs)
