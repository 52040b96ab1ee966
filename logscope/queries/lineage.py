"""Where a state came from: which captures were joined, and which joined state the draft read.

This module is responsible for the identities of a healthy run, as measured on real servers, as comparisons of printed
values, and for adding them up (:class:`Lineage`). It must not judge: whether a broken identity is a fault is for the
rules to say. What a draft pass should have read, the finder has found (``due_*``, ``traced``, ``how``, ``ago``).

A joined state is its captures side by side, so ``norm(join)^2 = sum of norm(capture)^2`` and the first printed values
are those of the lowest captured layer. Values are compared at the coarser of two prints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from logscope.model import CAPTURE_EVENTS, Place
from logscope.queries.words import source_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from logscope.tables.tables import Tables

# Relative slack of norm(join)^2 against the sum; the worst healthy value measured was 1.3e-6 (bf16 sums on a GPU).
JOIN_TOLERANCE = 5e-6
# Of more captures than these it is not asked which of them were joined.
_MOST_CAPTURES = 8
_JOINED: Any = pl.Schema(
    {  # type: ignore[arg-type]
        "row": pl.UInt32, "line": pl.Int64, "residual": pl.Float64, "tolerance": pl.Float64, "holds": pl.Boolean,
        "joined": pl.List(pl.Int32), "head_holds": pl.Boolean, "head_of": pl.Int32,
    }
)  # fmt: skip


def joined_states(tables: Tables) -> pl.DataFrame:
    """Return one row a joined state of a complete target pass with captures, outside graph capture.

    Columns: ``row`` (of the pass), ``line`` (of the join), ``residual`` and ``tolerance`` (relative to norm(join)^2),
    ``holds`` (null: a norm is missing or not finite), ``joined`` (the layers whose sum it is: all captured ones, or the
    only subset of as many as were joined that fits), ``head_holds`` (it begins as the lowest of these; null: not
    printed), ``head_of`` (the layer that it begins as instead; null: none does).
    """
    records = tables.records
    wanted = (pl.col("role") == "target") & pl.col("complete") & (pl.col("captures") > 0) & pl.col("join").is_not_null()
    rows = tables.passes.with_row_index("row").filter(wanted & (pl.col("during") != "graph_capture"))
    # What is damaged has no norm.
    norm = np.where(records["usable"].to_numpy(), records["norm"].fill_null(math.nan).to_numpy(), math.nan)
    slack = records["slack"].to_numpy()
    captured = records["event"].cast(pl.String).is_in(list(CAPTURE_EVENTS)).to_numpy()
    places, before = np.flatnonzero(captured), np.cumsum(captured) - captured
    found = [pl.DataFrame(schema=_JOINED)]
    for (number,), some in rows.group_by("captures", maintain_order=True):
        join = some["join"].to_numpy()
        states = places[before[some["first"].to_numpy()][:, None] + np.arange(number)]
        sums = _Sums(norm[join], slack[join], norm[states], slack[states])
        counted = records["num_aux"].gather(some["join"]).fill_null(0).to_numpy()
        chosen = sums.joined(counted)
        at = np.arange(len(join))
        head = _same_heads(tables, states[at, chosen.argmax(axis=1)], join)
        head_of = np.full(len(join), -1)
        for each in range(number if (head == 0).any() else 0):
            begins = (head == 0) & (head_of < 0) & (_same_heads(tables, states[:, each], join) == 1)
            head_of[begins] = states[begins, each]
        layers: Any = some["layers"]
        if not chosen.all():
            of = records["layer"].to_list()
            pairs = zip(states.tolist(), chosen.tolist(), strict=True)
            layers = [[of[row] for row, kept in zip(*pair, strict=True) if kept] for pair in pairs]
        columns = {
            "row": some["row"], "line": records["line"].gather(join),
            "residual": _where(sums.told, sums.residual), "tolerance": sums.tolerance,
            "holds": _where(sums.told, sums.holds),
            "joined": layers,
            "head_holds": _where(head >= 0, head == 1),
            "head_of": records["layer"].gather(pl.Series(_where(head_of >= 0, head_of), dtype=pl.Int64)),
        }  # fmt: skip
        found.append(pl.DataFrame(columns, schema_overrides=_JOINED))
    return pl.concat(found).sort("row")


def _where(known: NDArray[np.bool_], values: NDArray[Any]) -> pl.Series:
    """Return values as a column, null where they are not known."""
    return pl.Series(values).set(pl.Series(~known), None)


class _Sums:
    """The squares of joined states beside the sums of the squares of their captures (a matrix, a row a pass)."""

    def __init__(self, join: NDArray[Any], join_slack: NDArray[Any], norm: NDArray[Any], slack: NDArray[Any]) -> None:
        self._whole, self._own = join**2, 2 * np.abs(join) * join_slack
        self._squares, self._slacks = norm**2, 2 * np.abs(norm) * slack
        self.told = np.isfinite(self._whole) & (self._whole > 0) & np.isfinite(self._squares).all(axis=1)
        self.residual, self.tolerance = self._compared(list(range(norm.shape[1])))
        self.holds = np.abs(self.residual) <= self.tolerance

    def _compared(self, of: list[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        with np.errstate(all="ignore"):
            residual = self._squares[:, of].sum(axis=1) / self._whole - 1
            return residual, JOIN_TOLERANCE + (self._own + self._slacks[:, of].sum(axis=1)) / self._whole

    def joined(self, counted: NDArray[Any]) -> NDArray[np.bool_]:
        """Tell which captures were joined; where fewer were (``counted``), the only ones whose squares fit."""
        number = self._squares.shape[1]
        chosen = np.ones(self._squares.shape, np.bool_)
        off = self.told & ~self.holds
        for size in np.unique(counted[off]).tolist():
            if not 0 < size < number <= _MOST_CAPTURES:
                continue
            tried = [(list(of), *self._compared(list(of))) for of in combinations(range(number), size)]
            fits = (
                np.array([np.abs(residual) <= tolerance for _, residual, tolerance in tried]) & off & (counted == size)
            )
            for (of, residual, tolerance), fit in zip(tried, fits & (fits.sum(axis=0) == 1), strict=True):
                chosen[fit] = np.isin(np.arange(number), of)
                self.residual[fit], self.tolerance[fit], self.holds[fit] = residual[fit], tolerance[fit], True
        return chosen


def _same_heads(tables: Tables, one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.int64]:
    """Return 1 where the first values of two records agree, 0 where not, -1 where one has none."""
    values, keys, rounded = (tables.records[name] for name in ("values", "values_key", "rounded"))
    a, b = keys.gather(one), keys.gather(other)
    printed = (a.is_not_null() & b.is_not_null()).to_numpy()
    same = np.where(printed, (a == b).fill_null(value=False).to_numpy().astype(np.int64), -1)
    sizes = values.list.len()
    loose = (sizes.gather(one) != sizes.gather(other)) | rounded.gather(one) | rounded.gather(other)
    for at in np.flatnonzero((same == 0) & loose.fill_null(value=False).to_numpy()).tolist():
        rows = int(one[at]), int(other[at])
        # Half the last printed digit of each, None where they are printed exactly.
        slack = [tables.heads[tables.records["head"][row]].head_resolution or [0.0] * 99 for row in rows]
        # Of different lengths: as far as both go.
        pairs = zip(*(values[row] for row in rows), *slack, strict=False)
        same[at] = all(close(a, b, fine + coarse) for a, b, fine, coarse in pairs)
    return same


def close(one: float, other: float, slack: float) -> bool:
    """Return whether two printed values may be the same number; nan equals nan, inf equals inf."""
    if one == other or (one != one and other != other):
        return True
    gap = abs(one - other)
    # The last term allows for the binary form of a decimal half; no slack makes inf and another value one.
    return gap < math.inf and gap <= slack + 1e-12 * abs(one)


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
    # where the head is not that of the lowest capture: layer whose head it is (None: of none) -> passes
    heads_of: dict[int | None, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Inputs:
    """The inputs of one kind of draft pass against the state they should come from, added up.

    ``own``: they should come from the draft's own output (decode), not from the target.
    """

    own: bool = False
    inputs: int = 0
    warmup: int = 0
    by: dict[str, int] = field(default_factory=dict)
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


def added(one: Any, other: Any) -> Any:
    """Return two sums of the same class as one: numbers and counts add up, of places the first stays."""
    made = type(one)()
    for name in made.__slots__:
        mine, theirs = getattr(one, name), getattr(other, name)
        if isinstance(mine, dict):
            value: Any = {
                key: mine.get(key, 0) + theirs.get(key, 0)
                for key in [*mine, *(key for key in theirs if key not in mine)]
            }
        elif isinstance(mine, bool):
            value = mine or theirs
        elif name == "worst":
            value = max(mine, theirs)
        elif isinstance(mine, (int, float)):
            value = mine + theirs
        else:
            value = mine if mine is not None else theirs
        setattr(made, name, value)
    return made


class Lineage:
    """What was joined, and what the draft read, of a run.

    ``joins`` and ``inputs`` are keyed by (file, segment, source, phase). Decode inputs stand in ``inputs`` too,
    compared with the draft's own last output. The identities hold for every real pass: those of the warm-up request are
    included (and counted in ``warmup``), the dummy passes of graph capture are not.
    """

    __slots__ = ("inputs", "joins")

    def __init__(self) -> None:
        self.joins: dict[tuple[Any, ...], Joins] = {}
        self.inputs: dict[tuple[Any, ...], Inputs] = {}

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
            for mine, theirs in ((made.joins, part.joins), (made.inputs, part.inputs)):
                for key, found in theirs.items():
                    mine[key] = added(mine[key], found) if key in mine else found  # type: ignore[assignment]
        return made

    def _joins(self, tables: Tables) -> None:
        found = joined_states(tables)
        passes = tables.passes.select("file", "segment", "group", "phase", "during")[found["row"]]
        table = found.with_columns(
            passes, joined=pl.col("joined").cast(pl.List(pl.String)).list.join(",", ignore_nulls=False)
        )
        for key, some in _by_source(tables, table):
            joined = _numbers(some.filter("holds")["joined"])
            file, norm_off, head_off = key[0], some.filter(~pl.col("holds")), some.filter(~pl.col("head_holds"))
            self.joins[key] = Joins(
                some.height, _warmup(some),
                some["holds"].count(), some["holds"].sum(), float(some["residual"].abs().max() or 0.0),  # type: ignore[arg-type]
                _first(file, norm_off["line"]),
                some["head_holds"].count(), int(some["head_holds"].sum()), _first(file, head_off["line"]),
                {tuple(map(int, layers.split(","))): number for layers, number in joined.items() if layers},
                _numbers(head_off["head_of"]),
            )  # fmt: skip

    def _inputs(self, tables: Tables) -> None:
        wide = pl.col("phase").is_in(["extend", "draft_extend"]) | (
            (pl.col("phase") == "unknown") & pl.col("fc").is_not_null()
        )
        own = pl.col("phase") == "decode"
        reads = (pl.col("role") == "draft") & pl.col("input").is_not_null() & (pl.col("during") != "graph_capture")
        some = tables.passes.filter(reads & (wide | own))
        table = some.with_columns(
            line=tables.records["line"].gather(some["input"]),
            fewer=(pl.col("rows") < pl.col("due_rows")).fill_null(value=False),
            printed=tables.records["values_key"].gather(some["input"]).is_not_null() & pl.col("own_key").is_not_null(),
        )
        why = (
            pl.when(own & pl.col("own_line").is_null()).then(pl.lit("no output of the draft is printed before it"))
            .when(own & pl.col("printed")).then(pl.lit("it is another row of the draft's output than the printed one"))
            .when(~own & pl.col("due_line").is_null()).then(pl.lit("no joined state is printed before it"))
            .when(~own & ~pl.col("due_fresh")).then(pl.lit("no joined state is printed since the input before it"))
            .otherwise(pl.lit("too little of it is printed to compare"))
        )  # fmt: skip
        for key, read in _by_source(tables, table.with_columns(reason=why)):
            off, unknown = read.filter(~pl.col("traced")), read.filter(pl.col("traced").is_null())
            self.inputs[key] = Inputs(
                key[3] == "decode", read.height, _warmup(read), _numbers(read.filter("traced")["how"]),
                off.height, _first(key[0], off["line"]), _first(key[0], off["due_line"]), int(off["fewer"].sum()),
                _numbers(off["ago"].drop_nulls()), unknown.height, _numbers(unknown["reason"]),
            )  # fmt: skip


def _by_source(tables: Tables, table: pl.DataFrame) -> Iterable[tuple[tuple[Any, ...], pl.DataFrame]]:
    """Yield the rows of each (file, segment, source, phase)."""
    for (file, segment, group, phase), some in table.group_by("file", "segment", "group", "phase", maintain_order=True):
        yield (tables.files[file], segment, source_name(tables.groups[group]), phase), some


def _warmup(some: pl.DataFrame) -> int:
    return int((some["during"] != "serving").sum())


def _first(file: str, lines: pl.Series) -> Place | None:
    return Place(file, lines[0]) if len(lines) else None


def _numbers(values: pl.Series) -> dict[Any, int]:
    """Return how often each value stands there, in order of appearance."""
    return dict(values.to_frame().group_by(values.name, maintain_order=True).len().iter_rows())
