"""What forward passes print, counted: the one part under summarize, captures, shapes and norms.

This module is responsible for counting a batch of tables by segment, writer group, model, ``during``, role and phase
(:class:`Counts`), for adding such counts up, and for the spread of rms values in flat memory (:class:`Spread`). It must
not put anything into words, and it must not merge what is not the same: runs, models, sources and dummy passes are
counted apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from logscope.model import CAPTURE_EVENTS, DURING, During, Payload, Place, Segment, num_aux
from logscope.queries.clock import writer_label
from logscope.queries.words import most_common, source_name, whole_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from logscope.tables.tables import Tables

# Bounds that keep memory flat on a hostile log; what they leave out is counted.
MAX_VALUES = 2048
MAX_SETS = 64
MAX_PLACES = 8
# Kinds whose values damage makes up without end.
_WIDE = frozenset({"set", "every set", "join", "reason", "kept"})
# The median of a state is known within this share of its value.
RELATIVE = 0.0005
_BIN = math.log((1 + RELATIVE) / (1 - RELATIVE))
# Sums over time are kept for at least so many stretches of passes (and at most four times as many).
_STRETCHES = 128
# Fewer values have no trend.
TREND = 16
# What makes the name of a state: so many of its first prints.
_NAMED_BY = 8
# The order of a speculative round.
_ROUND = (
    ("target", "extend"), ("draft", "extend"), ("draft", "decode"), ("target", "verify"), ("draft", "draft_extend"),
    ("target", "decode"),
)  # fmt: skip


class Key(NamedTuple):
    """What tells one bucket from another; ``source`` names the writer group, ``site`` the model."""

    file: str
    segment: int
    source: str
    site: str | None
    during: During
    role: str
    phase: str


class Seen:
    """How often something was seen, on which line first and last, and where the first few are."""

    __slots__ = ("first", "last", "number", "places")

    def __init__(self, number: int = 0, first: int = 0, last: int = 0, places: Sequence[int] = ()) -> None:
        self.number, self.first, self.last = number, first, last
        self.places = list(places)

    def add(self, other: Seen) -> None:
        """Add what was seen later in the log."""
        self.first = min(self.first, other.first) if self.number else other.first
        self.last = max(self.last, other.last)
        self.number += other.number
        if len(self.places) < MAX_PLACES:
            self.places = sorted(self.places + other.places)[:MAX_PLACES]


class Seens:
    """What was seen under a name, by kind and value; values beyond a bound are counted under ``left_out``."""

    __slots__ = ("_kinds", "left_out", "name")

    def __init__(self, *name: Any) -> None:
        self.name = name
        self._kinds: dict[str, dict[Any, Seen]] = {}
        self.left_out: dict[str, int] = {}

    def add(self, kind: str, value: Any, seen: Seen) -> None:
        """Add one."""
        values = self._kinds.setdefault(kind, {})
        if value in values or len(values) < (MAX_SETS if kind in _WIDE else MAX_VALUES):
            values.setdefault(value, Seen()).add(seen)
        else:
            self.left_out[kind] = self.left_out.get(kind, 0) + seen.number

    def merge(self, other: Seens) -> None:
        """Add all of another."""
        for kind, values in other._kinds.items():
            for value, seen in values.items():
                self.add(kind, value, seen)
        for kind, number in other.left_out.items():
            self.left_out[kind] = self.left_out.get(kind, 0) + number

    @property
    def kinds(self) -> list[str]:
        """The kinds seen."""
        return list(self._kinds)

    def of(self, kind: str) -> dict[Any, Seen]:
        """Return the values of a kind, in the order seen."""
        return self._kinds.get(kind, {})

    def numbers(self, kind: str) -> dict[Any, int]:
        """Return how often each value of a kind was seen."""
        return {value: seen.number for value, seen in self.of(kind).items()}

    def total(self, kind: str) -> int:
        """Return how often any value of a kind was seen."""
        return sum(self.numbers(kind).values()) + self.left_out.get(kind, 0)

    def mostly(self, kind: str) -> Any:
        """Return the most common value of a kind, None when there is none."""
        return most_common(self.numbers(kind))

    def first(self, kind: str) -> int | None:
        """Return the first line of a kind."""
        return min((seen.first for seen in self.of(kind).values()), default=None)


def together(some: Iterable[Seens]) -> Seens:
    """Return what several say, as one."""
    made = Seens()
    for one in some:
        made.merge(one)
    return made


class Tallies(dict[Any, Any]):
    """What was seen, by key."""

    def add(self, other: Mapping[Any, Seens]) -> None:
        """Add what was seen later; that stays as it is."""
        for key, seens in other.items():
            if key not in self:
                self[key] = type(seens)(*seens.name)
            self[key].merge(seens)

    @classmethod
    def sum(cls, parts: Iterable[Mapping[Any, Seens]]) -> Any:
        """Return what several batches say, in their order."""
        made = cls()
        for part in parts:
            made.add(part)
        return made


def owned(
    tables: Tables, rows: pl.DataFrame, into: Tallies, names: Sequence[str], kind: Any = Seens
) -> tuple[list[Any], pl.DataFrame]:
    """Make what counts the rows of each value of some columns; return all of it, and the rows with their owner.

    A key says a file by its name and a group by its source.
    """
    keys = rows.select(names).unique(maintain_order=True)
    owners: dict[tuple[Any, ...], int] = {}
    numbers = []
    for row in keys.iter_rows():
        key = tuple(
            tables.files[value] if name == "file" else source_name(tables.groups[value]) if name == "group" else value
            for name, value in zip(names, row, strict=True)
        )
        into.setdefault(key, kind(*key))
        numbers.append(owners.setdefault(key, len(owners)))
    keys = keys.with_columns(owner=pl.Series(numbers, dtype=pl.Int64))
    return [into[key] for key in owners], rows.join(keys, on=names, nulls_equal=True, maintain_order="left")


def tally(owners: Sequence[Seens], kind: str, rows: pl.DataFrame, *values: str) -> None:
    """Count rows (``owner``: a place in ``owners``, ``line``) by the values of some columns, under a kind."""
    line = pl.col("line")
    seen = (pl.len(), line.min().alias("first"), line.max().alias("last"), line.head(MAX_PLACES).alias("places"))
    found = rows.group_by("owner", *values, maintain_order=True).agg(*seen) if rows.height else rows.clear()
    for owner, *some, number, first, last, places in found.iter_rows():
        value = tuple(tuple(each) if isinstance(each, list) else each for each in some) or (None,)
        owners[owner].add(kind, value if len(value) > 1 else value[0], Seen(number, first, last, places))


@dataclass(slots=True)
class Spread:
    """Finite, non-negative numbers in flat memory: extremes, median, change over time.

    They are counted in bins whose bounds grow by a constant factor, so that the median is known within RELATIVE (the
    scheme of DDSketch, Masson, Rim and Lee 2019, VLDB 12(12); exactly where its bin holds one value), and summed up by
    stretches of passes: both come out the same however the log was cut into batches.
    """

    low: float = math.inf
    high: float = -math.inf
    squares: float = 0.0
    # (values, their sum) of each bin, and of each stretch of `width` pass numbers
    bins: dict[int, tuple[int, float]] = field(default_factory=dict)
    stretches: dict[int, tuple[int, float]] = field(default_factory=dict)
    width: int = 1

    @classmethod
    def of(cls, values: NDArray[np.float64], passes: NDArray[np.int64]) -> Spread:
        """Return the spread of some values; ``passes`` are the (rising) numbers of the passes they stand in."""
        if not len(values):
            return cls()
        with np.errstate(divide="ignore"):
            bins = np.where(values > 0, np.ceil(np.log(values) / _BIN), -(1 << 62)).astype(np.int64)
        low, high, squares = float(values.min()), float(values.max()), float(values @ values)
        width = 1 << max(0, int(passes[-1] - passes[0]).bit_length() - _STRETCHES.bit_length() + 1)
        return cls(low, high, squares, _summed(bins, values), _summed(passes // width, values), width)

    def add(self, other: Spread) -> None:
        """Add the values that follow."""
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.squares += other.squares
        self.bins = _merged((self.bins, 1), (other.bins, 1))
        width = max(self.width, other.width)
        while len(made := _merged(*((one.stretches, width // one.width) for one in (self, other)))) > 2 * _STRETCHES:
            width *= 2
        self.stretches, self.width = made, width

    @property
    def number(self) -> int:
        """How many values were taken."""
        return sum(number for number, _ in self.bins.values())

    @property
    def median(self) -> float | None:
        """The middle value, None without values."""
        rest = (self.number - 1) // 2
        for bin_ in sorted(self.bins):
            number, total = self.bins[bin_]
            rest -= number
            if rest < 0:
                return total / number
        return None

    @property
    def change(self) -> float | None:
        """Mean of the last quarter over mean of the first, minus one; None without a clear change or with few values.

        Clear means: larger than three standard errors of the difference of two such means. Values that merely scatter
        have no trend.
        """
        count_ = self.number
        if count_ < TREND:
            return None
        stretches = [self.stretches[at] for at in sorted(self.stretches)]
        first, last = _mean_of_first(stretches, count_ // 4), _mean_of_first(stretches[::-1], count_ // 4)
        mean = sum(total for _, total in stretches) / count_
        error = math.sqrt(2 * max(0.0, self.squares / count_ - mean * mean) / (count_ // 4))
        if first <= 0 or abs(last - first) <= max(3 * error, 1e-9 * first):
            return None
        return last / first - 1


def _summed(keys: NDArray[np.int64], values: NDArray[np.float64]) -> dict[int, tuple[int, float]]:
    """Return how many values have each key, and their sum."""
    known, back = np.unique(keys, return_inverse=True)
    numbers, sums = np.bincount(back), np.bincount(back, weights=values)
    return dict(zip(known.tolist(), zip(numbers.tolist(), sums.tolist(), strict=True), strict=True))


def _merged(*parts: tuple[dict[int, tuple[int, float]], int]) -> dict[int, tuple[int, float]]:
    """Add such sums up, in each part so many keys as one."""
    made: dict[int, tuple[int, float]] = {}
    for sums, factor in parts:
        for key, (number, total) in sums.items():
            before = made.get(key // factor, (0, 0.0))
            made[key // factor] = (before[0] + number, before[1] + total)
    return made


def _mean_of_first(stretches: Iterable[tuple[int, float]], wanted: int) -> float:
    """Return the mean of about the first ``wanted`` values of stretches of (number, sum)."""
    number, total = 0, 0.0
    for size, part in stretches:
        if number >= wanted:
            break
        number += size
        total += part
    return total / number


class Cell(Seens):
    """One kind of record within a bucket: an event, a layer, the site of the record itself.

    Kinds: ``copies``; of usable ones ``mode``, ``shape``, ``embeds``; without a value ``record``, ``damaged``,
    ``derived``, ``without_norm``, ``non_finite``, ``zero``; ``variant``: prints of another value, by writer (as far as
    its prefix names it).
    """

    __slots__ = ("event", "layer", "prints", "rms", "site")

    def __init__(self, event: str, layer: int | None, site: str | None) -> None:
        super().__init__(event, layer, site)
        self.event, self.layer, self.site = event, layer, site
        self.rms = Spread()
        # norm and first values of its first prints
        self.prints: list[tuple[float | None, ...]] = []

    def merge(self, other: Any) -> None:
        """Add all of another, values too."""
        super().merge(other)
        self.rms.add(other.rms)
        self.prints = (self.prints + other.prints)[:_NAMED_BY]

    @property
    def captured(self) -> bool:
        """True for a hidden capture."""
        return self.event in CAPTURE_EVENTS

    @property
    def digest(self) -> str:
        """A short name for its first prints: equal prints have equal names on every machine; nothing without prints.

        Values are rounded to three significant digits, so that two precisions of one tensor nearly always agree.
        """
        if not self.prints:
            return ""
        import hashlib  # noqa: PLC0415 - OpenSSL takes a hundredth of the time a small log takes

        words = [" ".join("-" if value is None else f"{value:.2e}" for value in each) for each in self.prints]
        return hashlib.blake2s("\n".join(words).encode(), digest_size=4).hexdigest()


class Bucket(Seens):
    """The passes of one key.

    Kinds: ``pass``, ``incomplete``, ``odd`` (writers differ), ``marked`` (prefixes tell its writers apart),
    ``evidence``, ``reason``, ``rows``; ``set`` and ``every set`` (captured layers of complete and of all passes),
    ``join`` (states, width), ``differs`` (event, states it says, captured), ``kept`` (rows, verified rows and where, of
    draft passes that read fewer than verified).
    """

    __slots__ = ("cells", "key")

    def __init__(self, *key: Any) -> None:
        super().__init__(*key)
        self.key = Key(*key)
        self.cells = Tallies()

    def merge(self, other: Any) -> None:
        """Add all of another, its kinds of records too."""
        super().merge(other)
        self.cells.add(other.cells)

    @property
    def passes(self) -> int:
        """How many forward passes."""
        return self.total("pass")

    @property
    def captures(self) -> int:
        """How many hidden captures."""
        return sum(cell.total("record") for cell in self.captured)

    @property
    def captured(self) -> list[Cell]:
        """Its kinds of hidden captures, by layer."""
        found = [cell for cell in self.cells.values() if cell.captured]
        return sorted(found, key=lambda cell: -1 if cell.layer is None else cell.layer)

    @property
    def rows(self) -> tuple[int | None, int | None]:
        """The least and the most rows of a pass."""
        known = self.of("rows")
        return (min(known), max(known)) if known else (None, None)

    @property
    def _sets(self) -> str:
        return "set" if 2 * self.total("set") > self.passes else "every set"

    @property
    def sets(self) -> dict[tuple[int | None, ...], Seen]:
        """The sets of captured layers of its complete passes; where these are the minority, of all its passes."""
        return self.of(self._sets)

    @property
    def usual(self) -> tuple[int | None, ...] | None:
        """The set of captured layers of more than half of its passes, None when there is no such set."""
        layers: tuple[int | None, ...] | None = self.mostly(self._sets)
        return layers if layers is not None and 2 * self.sets[layers].number > self.total(self._sets) else None

    @property
    def copies(self) -> int | None:
        """The usual number of copies of its records."""
        usual: int | None = together(self.cells.values()).mostly("copies")
        return usual

    def of_event(self, event: str) -> Seens:
        """Return what was seen of the records of an event."""
        return together(cell for cell in self.cells.values() if cell.event == event)

    def place(self, line: int) -> Place:
        """Return where a line of its log stands."""
        return Place(self.key.file, line)


def cells_of(buckets: Iterable[Bucket]) -> list[tuple[Bucket, Cell]]:
    """Return every kind of record of some buckets."""
    return [(bucket, cell) for bucket in buckets for cell in bucket.cells.values()]


class Counts:
    """All of it: buckets and segments in the order they appear, capture plans, server lines.

    ``plans``: what was asked to be captured, before any pass. ``lines``: what server lines of a (file, segment) say,
    under ``event``, ``error`` (event and first words), ``stray`` (events of debug records of no pass), and of decode
    lines ``graph`` (whether one was replayed) and ``speculating``.
    """

    __slots__ = ("buckets", "lines", "plans", "segments")

    def __init__(self) -> None:
        self.buckets, self.lines = Tallies(), Tallies()
        self.segments: dict[tuple[str, int], Segment] = {}
        self.plans: list[tuple[str, int, Payload, Place]] = []

    @classmethod
    def of(cls, tables: Tables) -> Counts:
        """Count a batch."""
        made = cls()
        made.segments = {(one.file, one.number): one for one in tables.segments}
        made._server(tables)
        if tables.passes.height:
            made._passes(tables)
        return made

    @classmethod
    def sum(cls, parts: Iterable[Counts]) -> Counts:
        """Return the counts of several batches, in their order; the parts stay as they are."""
        made = cls()
        for part in parts:
            made.segments |= part.segments
            made.buckets.add(part.buckets)
            made.lines.add(part.lines)
            for plan in part.plans:
                made._plan(*plan)
        return made

    # -- one batch ----------------------------------------------------------------------------------------------------

    def _plan(self, file: str, segment: int, payload: Payload, place: Place) -> None:
        known = [(plan[:2], plan[2].fields) for plan in self.plans]
        if len(self.plans) < MAX_SETS and ((file, segment), payload.fields) not in known:
            self.plans.append((file, segment, payload, place))

    def _server(self, tables: Tables) -> None:
        server = tables.server.with_row_index("row").with_columns(
            pl.col("event").cast(pl.String), speculating=pl.col("accept_len").is_not_null()
        )
        owners, lines = owned(tables, server, self.lines, ["file", "segment"])
        decode = lines.filter((pl.col("event") == "decode_stats") & pl.col("intact").is_in(["whole", "partial"]))
        strays = lines.filter(pl.col("site").is_not_null())
        for kind, some, column in (
            ("event", lines, "event"),
            ("stray", strays, "event"),
            ("graph", decode, "graph"),
            ("speculating", decode, "speculating"),
        ):
            tally(owners, kind, some, column)
        plans = lines.filter(pl.col("event") == "capture_plan")
        for row, file, segment, line in plans.select("row", "file", "segment", "line").iter_rows():
            if (payload := tables.payload(row)).usable:
                self._plan(tables.files[file], segment, payload, Place(tables.files[file], line))

    def _passes(self, tables: Tables) -> None:
        passes, records = tables.passes, tables.records
        first = records.select("site", "role", "print").with_row_index("row")[passes["first"]]
        names = ["file", "segment", "group", "role"]
        marks = pl.Series([(one.pid, one.tp_rank, one.ep_rank) != (None, None, None) for one in tables.prefixes])
        # A pass of which only the logits record is printed (a cut edge) is one of the model that this group printed.
        site = pl.when(first["role"].is_not_null()).then(first["site"].cast(pl.String)).alias("site")
        passes = passes.with_columns(site, marked=marks.gather(tables.prints["prefix"].gather(first["print"])))
        passes = passes.with_columns(pl.col("site").forward_fill().backward_fill().over(names))
        buckets, passes = owned(tables, passes, self.buckets, [*names[:3], *Key._fields[3:]], Bucket)
        _count_passes(passes, records, buckets)
        of_record = passes.select("owner", "number")[passes["key"].search_sorted(records["pass"])]
        cells, of_cell = self._cells(tables, of_record["owner"].to_numpy(), buckets)
        _count_values(tables, of_record["number"], cells, of_cell)

    def _cells(
        self, tables: Tables, of_record: NDArray[np.int64], buckets: Sequence[Bucket]
    ) -> tuple[list[Cell], NDArray[np.int64]]:
        """Count what records say apart from their values; return the cells, and which one each record belongs to."""
        cells: dict[int, Cell] = {}
        of_cell = np.zeros(len(of_record), np.int64)
        table = tables.records.select("head", "copies", "line", bucket=of_record).with_row_index("row")
        alike = table.group_by("bucket", "head", "copies", maintain_order=True)
        for at, head, copies, number, line, rows in alike.agg(pl.len(), pl.col("line").min(), "row").iter_rows():
            bucket, payload, seen = buckets[at], tables.heads[head], Seen(number, line, line)
            name = (payload.event, payload.layer, payload.site)
            cell = bucket.cells.setdefault(name, Cell(*name))
            cells.setdefault(id(cell), cell)
            of_cell[rows] = list(cells).index(id(cell))
            cell.add("record", None, seen)
            cell.add("copies", copies, seen)
            if payload.event == "aux_concat":
                bucket.add("join", (num_aux(payload), payload.width), seen)
            if not payload.usable:
                cell.add("damaged", None, seen)
                continue
            embeds = whole_numbers(payload.fields.get("embeds")) if payload.event == "forward" else None
            said = {"mode": payload.mode, "shape": payload.shape, "embeds": None if embeds is None else tuple(embeds)}
            for kind, value in said.items():
                if value is not None:
                    cell.add(kind, value, seen)
            if payload.event == "capture_plan":
                self._plan(bucket.key.file, bucket.key.segment, payload, bucket.place(line))
        return list(cells.values()), of_cell

    # -- what the counts say ------------------------------------------------------------------------------------------

    def ordered(self, *, serving: bool) -> list[Bucket]:
        """Return the served (or the other) buckets by run, source and model, then in the order of a round."""

        def order(bucket: Bucket) -> tuple[Any, ...]:
            key = bucket.key
            kind = (key.role, key.phase)
            at = _ROUND.index(kind) if kind in _ROUND else len(_ROUND)
            return (key.file, key.segment, key.source, DURING.index(key.during), at, key.site or "")

        wanted = [bucket for bucket in self.buckets.values() if (bucket.key.during == "serving") is serving]
        return sorted(wanted, key=order)

    def in_run(self, file: str, segment: int, said: str) -> str:
        """Return a sentence with the run it is about in front (``run 2: ...``), where there are several."""
        if len(self.segments) < 2:
            return said
        files = {other for other, _ in self.segments}
        several = sum(1 for other, _ in self.segments if other == file) > 1
        parts = [file] * (len(files) > 1) + [f"run {segment}"] * (several or len(files) == 1)
        return f"{' '.join(parts)}: {said}"


def _count_passes(passes: pl.DataFrame, records: pl.DataFrame, buckets: Sequence[Bucket]) -> None:
    """Count passes by what the table of passes says of them."""
    complete, unnamed = pl.col("complete"), pl.col("captures") - pl.col("layers").list.len()
    # A damaged capture has no layer, and is one all the same.
    target = passes.filter(pl.col("role") == "target").with_columns(
        pl.col("layers").list.concat(pl.lit(None, pl.Int32).repeat_by(unnamed))
    )
    fewer = (
        (pl.col("phase") == "draft_extend") & (pl.col("during") == "serving") & (pl.col("rows") < pl.col("due_rows"))
    )
    tally(buckets, "pass", passes)
    tally(buckets, "incomplete", passes.filter(~complete))
    tally(buckets, "marked", passes.filter("marked"))
    tally(buckets, "odd", passes.filter(pl.col("differ") > 0))
    tally(buckets, "evidence", passes, "evidence")
    tally(buckets, "reason", passes.filter((pl.col("phase") == "unknown") & pl.col("why").is_not_null()), "why")
    tally(buckets, "rows", passes.filter(pl.col("rows").is_not_null()), "rows")
    tally(buckets, "kept", passes.filter(fewer), "rows", "due_rows", "due_line")
    tally(buckets, "set", target.filter(complete), "layers")
    tally(buckets, "every set", target, "layers")
    for name, event in (("end", "forward_end"), ("join", "aux_concat")):
        said = target.with_columns(said=records["num_aux"].gather(target[name]), event=pl.lit(event))
        odd = complete & (pl.col("captures") > 0) & (pl.col("said") != pl.col("captures"))
        tally(buckets, "differs", said.filter(odd), "event", "said", "captures")


def _count_values(tables: Tables, numbers: pl.Series, cells: Sequence[Cell], of_cell: NDArray[np.int64]) -> None:
    """Take the norms of a batch: what is finite into the spread of its cell, the rest counted and pointed at.

    ``numbers``: of the pass of each record, as its file counts them, so that the answer is the same in any company.
    """
    records = tables.records
    norm, usable, total = pl.col("norm"), pl.col("usable"), pl.col("values").list.sum().fill_null(0.0)
    size = (pl.col("rows") * pl.col("width")).cast(pl.Float64)
    finite = usable & norm.is_finite().fill_null(value=False) & total.is_finite()
    table = records.with_columns(owner=of_cell, number=numbers, rms=pl.when(size > 0).then(norm / size.sqrt()))
    for kind, wanted in {
        "non_finite": usable & ~(norm.is_finite().fill_null(value=True) & total.is_finite()),
        "without_norm": usable & norm.is_null() & total.is_finite(),
        "zero": finite & (norm == 0) & (pl.col("rows") != 0).fill_null(value=True),
        "derived": finite & pl.col("derived").fill_null(value=False),
    }.items():
        tally(cells, kind, table.filter(wanted))
    differing = tables.prints.filter(~pl.col("same"))
    writers = pl.Series([writer_label(prefix) for prefix in tables.prefixes], dtype=pl.String)
    table_ = differing.select(
        "line", owner=pl.Series(of_cell).gather(differing["record"]), writer=writers.gather(differing["prefix"])
    )
    tally(cells, "variant", table_, "writer")
    some = table.filter(finite).select("owner", "rms", "number", "norm", "values").sort("owner", maintain_order=True)
    rms, of_pass = some["rms"].to_numpy(), some["number"].to_numpy()
    owners, starts, numbers_ = np.unique(some["owner"].to_numpy(), return_index=True, return_counts=True)
    for owner, start, number in zip(owners.tolist(), starts.tolist(), numbers_.tolist(), strict=True):
        stop = start + number
        sized = start + np.flatnonzero(rms[start:stop] >= 0)  # a norm below zero is none
        cells[owner].rms = Spread.of(rms[sized], of_pass[sized])
        named = some[start : min(stop, start + _NAMED_BY), ["norm", "values"]]
        cells[owner].prints = [(one, *(values or ())) for one, values in named.iter_rows()]
