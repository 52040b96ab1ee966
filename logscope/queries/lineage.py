"""Where a state came from: which captures were joined, and which joined state the draft read.

This module is responsible for the identities of a healthy run, as measured on real servers, as comparisons of printed
values, and for adding them up (:class:`Lineage`). It must not judge: whether a broken identity is a fault is for the
rules to say. What a draft pass should have read, the finder has found (``due_*``, ``traced``, ``how``, ``ago``).

A joined state is its captures side by side, so ``norm(join)^2 = sum of norm(capture)^2`` and the first printed values
are those of the lowest captured layer. Values are compared at the coarser of two prints.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from logscope.model import CAPTURE_EVENTS, Place
from logscope.passes.lineage import same_head
from logscope.queries.counts import Seens, Tallies, owned, tally

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from logscope.tables.tables import Tables

# Relative slack of norm(join)^2 against the sum; the worst healthy value measured was 1.3e-6 (bf16 sums on a GPU).
JOIN_TOLERANCE = 5e-6
# Of more captures than these it is not asked which of them were joined.
_MOST_CAPTURES = 8
# First values that are compared.
_VALUES = 5
_JOINED: Any = pl.Schema(
    {  # type: ignore[arg-type]
        "row": pl.UInt32, "line": pl.Int64, "residual": pl.Float64, "holds": pl.Boolean, "joined": pl.List(pl.Int32),
        "head_holds": pl.Boolean, "head_of": pl.Int32,
    }
)  # fmt: skip


def joined_states(tables: Tables) -> pl.DataFrame:
    """Return one row a joined state of a complete target pass with captures, outside graph capture.

    Columns: ``row`` (of the pass), ``line`` (of the join), ``residual`` (relative to norm(join)^2), ``holds`` (null: a
    norm is missing or not finite), ``joined`` (the layers whose sum it is: all captured ones, or the only subset of as
    many as were joined that fits), ``head_holds`` (it begins as the lowest of these; null: not printed), ``head_of``
    (the layer that it begins as instead; null: none does).
    """
    records = tables.records
    wanted = (pl.col("role") == "target") & pl.col("complete") & (pl.col("captures") > 0) & pl.col("join").is_not_null()
    rows = tables.passes.with_row_index("row").filter(wanted & (pl.col("during") != "graph_capture"))
    # What is damaged has no norm.
    norm = np.where(records["usable"].to_numpy(), records["norm"].fill_null(math.nan).to_numpy(), math.nan)
    slack = 2 * np.abs(np.where(np.isfinite(norm), norm, math.nan)) * records["slack"].to_numpy()
    captured = records["event"].cast(pl.String).is_in(list(CAPTURE_EVENTS)).to_numpy()
    places, before = np.flatnonzero(captured), np.cumsum(captured) - captured
    found = [pl.DataFrame(schema=_JOINED)]
    for (number,), some in rows.group_by("captures", maintain_order=True):
        join = some["join"].to_numpy()
        states = places[before[some["first"].to_numpy()][:, None] + np.arange(number)]
        counted = records["num_aux"].gather(some["join"]).fill_null(0).to_numpy()
        whole, squares = norm[join] ** 2, norm[states] ** 2
        told = np.isfinite(whole) & (whole > 0) & np.isfinite(squares).all(axis=1)
        chosen, residual, holds, _ = joined_of(whole, slack[join], squares, slack[states], told, counted)
        joins = _values(tables, join)
        head = same_head(_values(tables, states[np.arange(len(join)), chosen.argmax(axis=1)]), joins)
        of = np.full(len(join), -1)
        for each in range(number if (head == 0).any() else 0):
            begins = (head == 0) & (of < 0) & (same_head(_values(tables, states[:, each]), joins) == 1)
            of[begins] = states[begins, each]
        layers = np.array(records["layer"].gather(states.ravel()).to_list(), object).reshape(states.shape)
        columns = {
            "row": some["row"], "line": records["line"].gather(join), "told": told, "residual": residual,
            "holds": holds, "joined": [layers[row, kept].tolist() for row, kept in enumerate(chosen)], "head": head,
            "of": of,
        }  # fmt: skip
        found.append(
            pl.DataFrame(columns, schema_overrides=_JOINED).select(
                "row", "line", pl.when("told").then("residual"), pl.when("told").then("holds"), "joined",
                head_holds=pl.when(pl.col("head") >= 0).then(pl.col("head") == 1),
                head_of=records["layer"].gather(pl.Series(of).set(pl.Series(of < 0), None)),
            )
        )  # fmt: skip
    return pl.concat(found).sort("row")


def joined_of(
    whole: NDArray[Any], own: NDArray[Any], squares: NDArray[Any], slacks: NDArray[Any], told: NDArray[Any],
    counted: NDArray[Any], there: NDArray[Any] | None = None,
) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:  # fmt: skip
    """Tell which captures (a row a pass) were joined, what their squares leave of the join's, and whether that is none.

    Where fewer were joined than captured (``counted``), it is the only choice whose squares fit. ``there``: which
    places of a row hold a capture at all. The last is what may be left.
    """
    number = squares.shape[1]
    chosen = np.ones(squares.shape, np.bool_) if there is None else there.copy()
    captured = chosen.sum(axis=1)

    def compared(of: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
        with np.errstate(all="ignore"):
            residual = np.where(of, squares, 0.0).sum(axis=1) / whole - 1
            allowed = JOIN_TOLERANCE + (own + np.where(of, slacks, 0.0).sum(axis=1)) / whole
            return residual, np.abs(residual) <= allowed, allowed

    off = told & ~compared(chosen)[1] & (counted > 0) & (counted < captured) & (captured <= _MOST_CAPTURES)
    for size in np.unique(counted[off]).tolist():
        choices = [np.isin(np.arange(number), of) for of in combinations(range(min(number, _MOST_CAPTURES)), size)]
        mine = off & (counted == size)
        fits = np.array([compared(of)[1] & mine & (chosen | ~of).all(axis=1) for of in choices])
        for of, fit in zip(choices, fits & (fits.sum(axis=0) == 1), strict=True):
            chosen[fit] = of
    return chosen, *compared(chosen)


def _values(tables: Tables, rows: NDArray[Any]) -> dict[str, Any]:
    """Return the first values of records as they are compared (:mod:`logscope.passes.lineage`)."""
    some = tables.records.select("values", "values_key", "rounded")[rows]
    number = some["values"].list.len().fill_null(0).to_numpy()
    values = np.full((len(number), _VALUES), math.nan)
    shown = np.arange(_VALUES) < number[:, None]
    values[shown] = some["values"].list.head(_VALUES).filter(number > 0).explode().fill_null(math.nan).to_numpy()
    return {
        "values": values,
        "count": number,
        "key": some["values_key"].fill_null(0).to_numpy(),
        "rounded": some["rounded"].fill_null(value=False).to_numpy(),
    }


class Followed(Seens):
    """The joined states of one kind of target pass, or the inputs of one kind of draft pass.

    ``key``: file, segment, source, phase. Kinds of both: ``pass``, ``warmup``. Of joined states: ``norm`` and ``head``
    (whether they hold, False and True), ``joined`` (layers, where norms show them), ``head of`` (whose head stands
    where it is wrong); ``worst`` is the largest residual. Of inputs: ``traced`` (by what), ``off`` (how many passes
    old, None: no known state), ``source`` (what was due there), ``fewer`` (of these, accepted rows only), ``unknown``
    (why it cannot be told).
    """

    __slots__ = ("key", "worst")

    def __init__(self, *key: Any) -> None:
        super().__init__(*key)
        self.key, self.worst = key, 0.0

    def merge(self, other: Any) -> None:
        """Add all of another."""
        super().merge(other)
        self.worst = max(self.worst, other.worst)

    def held(self, kind: str) -> int:
        """Return how many norms or heads hold."""
        return self.numbers(kind).get(True, 0)

    def place(self, kind: str, value: Any = None) -> Place | None:
        """Return where something (a value) of a kind was seen first."""
        first = self.first(kind) if value is None else self.of(kind)[value].first if value in self.of(kind) else None
        return None if first is None else Place(self.key[0], first)

    @property
    def own(self) -> bool:
        """True for inputs that should be the draft's own output (decode)."""
        return bool(self.key[3] == "decode")

    @property
    def told(self) -> int:
        """How many inputs could be compared at all."""
        return self.total("traced") + self.total("off")

    @property
    def explained(self) -> bool:
        """True when what is not traced is what spec v1 does: of accepted rows alone, row 0 is another request's.

        That happens where request 0 has just finished, so in a minority of passes.
        """
        return self.total("fewer") == self.total("off") and 2 * self.total("off") <= self.told


class Lineage:
    """What was joined, and what the draft read, of a run.

    ``joins`` and ``inputs`` are keyed by (file, segment, source, phase). Decode inputs stand in ``inputs`` too,
    compared with the draft's own last output. The identities hold for every real pass: those of the warm-up request are
    included (and counted in ``warmup``), the dummy passes of graph capture are not.
    """

    __slots__ = ("inputs", "joins")

    def __init__(self) -> None:
        self.joins, self.inputs = Tallies(), Tallies()

    @classmethod
    def of(cls, tables: Tables) -> Lineage:
        """Follow the states of a batch."""
        made = cls()
        if tables.passes.height:
            made._joins(tables)
            made._inputs(tables)
        return made

    @classmethod
    def sum(cls, parts: Iterable[Lineage]) -> Lineage:
        """Return what several batches say, in their order."""
        made = cls()
        for part in parts:
            made.joins.add(part.joins)
            made.inputs.add(part.inputs)
        return made

    def _joins(self, tables: Tables) -> None:
        found = joined_states(tables)
        passes = tables.passes.select("file", "segment", "group", "phase", "during")[found["row"]]
        owners, rows = _followed(tables, found.with_columns(passes), self.joins)
        tally(owners, "norm", rows.filter(pl.col("holds").is_not_null()), "holds")
        tally(owners, "head", rows.filter(pl.col("head_holds").is_not_null()), "head_holds")
        tally(owners, "joined", rows.filter("holds"), "joined")
        tally(owners, "head of", rows.filter(~pl.col("head_holds")), "head_of")
        for owner, worst in rows.group_by("owner").agg(pl.col("residual").abs().max()).iter_rows():
            owners[owner].worst = worst or 0.0

    def _inputs(self, tables: Tables) -> None:
        wide = pl.col("phase").is_in(["extend", "draft_extend"]) | (
            (pl.col("phase") == "unknown") & pl.col("fc").is_not_null()
        )
        own = pl.col("phase") == "decode"
        reads = (pl.col("role") == "draft") & pl.col("input").is_not_null() & (pl.col("during") != "graph_capture")
        some = tables.passes.filter(reads & (wide | own))
        printed = tables.records["values_key"].gather(some["input"]).is_not_null() & some["own_key"].is_not_null()
        why = (
            pl.when(own & pl.col("own_line").is_null()).then(pl.lit("no output of the draft is printed before it"))
            .when(own & printed).then(pl.lit("it is another row of the draft's output than the printed one"))
            .when(~own & pl.col("due_line").is_null()).then(pl.lit("no joined state is printed before it"))
            .when(~own & ~pl.col("due_fresh")).then(pl.lit("no joined state is printed since the input before it"))
            .otherwise(pl.lit("too little of it is printed to compare"))
        )  # fmt: skip
        table = some.with_columns(line=tables.records["line"].gather(some["input"]), why=why)
        owners, rows = _followed(tables, table, self.inputs)
        off = rows.filter(~pl.col("traced"))
        tally(owners, "traced", rows.filter("traced"), "how")
        tally(owners, "off", off, "ago")
        tally(owners, "fewer", off.filter(pl.col("rows") < pl.col("due_rows")))
        tally(owners, "source", off.with_columns(line="due_line"))
        tally(owners, "unknown", rows.filter(pl.col("traced").is_null()), "why")


def _followed(tables: Tables, rows: pl.DataFrame, into: Tallies) -> tuple[list[Any], pl.DataFrame]:
    """Return what follows these rows, by file, segment, source and phase, and the rows with their owner."""
    made, table = owned(tables, rows, into, ["file", "segment", "group", "phase"], Followed)
    tally(made, "pass", table)
    tally(made, "warmup", table.filter(pl.col("during") != "serving"))
    return made, table
