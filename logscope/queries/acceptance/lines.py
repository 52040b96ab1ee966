"""The statistics lines of a batch as rows: one row a line, numbers only, with what happened since the line before it.

This module is responsible for gathering them (:func:`gather`), for adding gathered batches up, and for settling them
(:func:`settle`): who printed each, when, how many verifies stand behind it, whether everything was accepted. Beyond
:data:`EXACT_LINES` of one process, neighbours are joined two by two, so memory is flat. It must not judge anything.

Verify rounds of a line of SGLang: those it prints, else the difference of its iteration to the line before (prefills
are no rounds), else ``decode_log_interval``, else SGLang's default. Verifies are rounds x running requests, the mean of
the numbers printed at both ends of the interval; a line of another server gives them itself (intervals.py).
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import polars as pl

from logscope.model import Place
from logscope.queries.acceptance.intervals import EVENTS, number, read, share
from logscope.queries.acceptance.rates import UNO_BONUS, RateRanges
from logscope.queries.clock import Clock, writers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logscope.model import Segment
    from logscope.tables.tables import Tables

# SGLang's default for decode_log_interval: the rounds a line stands for when it does not print them.
DEFAULT_ROUNDS = 40
# Up to this many rows of one process, and of all, every line is a row.
EXACT_LINES = 2**15
EXACT_ROWS = 2**17
# How many places a list in the report names; all of them are counted.
NAMED = 20
# A process prints a moment late: only a larger step back of another process of its server is one.
_LATE = 2.0
_HALF_DIGIT = 0.005
_FULL_RATE = 0.995
# Fields of a decode line that are no news.
_KNOWN = {
    "running_req", "token", "token_usage", "accept_len", "accept_rate", "gen_throughput", "queue_req", "units", "iter",
    "repeated", "spec tokens", "spec rounds",
}  # fmt: skip
_EXACT = {"spec rounds", "iter", "units"}
_MOST_FIELDS = 200

WHO = ("file", "segment", "server", "origin", "engine")
_NUMBERS = (
    "length", "rate", "verifies", "running", "context", "usage", "throughput", "iteration", "accepted", "drafted", "k",
    "cached", "prefills", "switches", "top", "tokens", "steps",
)  # fmt: skip
# One row a statistics line (`stat`), or what stands behind the last one of a process and belongs to the next.
# `tokens`, `steps`: draft tokens and steps in force from there on; `top`: the most that were in force before.
RAW = pl.Schema({
    "file": pl.String(), "segment": pl.Int32(), "server": pl.String(), "origin": pl.String(), "engine": pl.String(),
    "line": pl.Int64(), "time": pl.String(), "stat": pl.Boolean(), "old": pl.Boolean(),
    **{name: pl.Float64() for name in _NUMBERS},
    "positions": pl.List(pl.Float64()), "reached": pl.List(pl.Float64()),
})  # fmt: skip
_FIRST = ("first", "time", "kind", "seconds", "growth")
_LAST = ("last", "end_time", "end_seconds")
_LEAST = ("smallest", "running_low", "slowest")
_MOST = ("largest", "running_high", "fastest")


class Key(NamedTuple):
    """What tells one series from another. ``server`` is the origin without ranks, ``origin`` the process."""

    file: str
    segment: int
    server: str
    origin: str
    engine: str | None = None

    @property
    def name(self) -> str:
        """The process, with its engine where it has several; empty when nothing tells processes apart."""
        return self.origin if self.engine is None else f"{self.origin} engine {self.engine}".strip()

    @property
    def who(self) -> dict[str, Any]:
        """What names it in the row of a table."""
        return {"file": self.file, "segment": self.segment, "origin": self.origin, "engine": self.engine}


class Server(NamedTuple):
    """One server in one segment of one file: its lines follow one definition of accept rate at a time."""

    file: str
    segment: int
    server: str


@dataclass(slots=True)
class Places:
    """Counts places and remembers the first few of them, and which processes printed there where that is asked."""

    count: int = 0
    first: list[Place] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def add(self, places: Iterable[tuple[str, int]], more: int = 0) -> Self:
        """Take places in order, and so many more that are only counted."""
        named = [Place(file, line) for file, line in places]
        self.count += len(named) + more
        self.first += named[: NAMED - len(self.first)]
        return self

    def merge(self, other: Self) -> None:
        """Take those of a later part."""
        self.add(((place.file, place.line) for place in other.first), other.count - len(other.first))
        self.names |= other.names

    def fact(self) -> dict[str, Any]:
        """Return the count and the first places as JSON holds them."""
        return {"count": self.count, "places": [str(place) for place in self.first]}

    def __str__(self) -> str:
        """Return ``line 3, 7`` of the file, or full places when there are several files."""
        more = f" and {self.count - len(self.first):,} more" if self.count > len(self.first) else ""
        if len({place.file for place in self.first}) == 1:
            word = "lines" if len(self.first) > 1 else "line"
            return f"{word} {', '.join(str(place.line) for place in self.first)}{more}"
        return ", ".join(map(str, self.first)) + more


@dataclass(slots=True)
class Switches(Places):
    """Switches of the draft length of one process: from when to when, and the averages they followed."""

    times: list[str] = field(default_factory=list)
    averages: list[float] = field(default_factory=list)

    def merge(self, other: Self) -> None:
        """Take those of a later part."""
        Places.merge(self, other)
        times, averages = self.times + other.times, self.averages + other.averages
        self.times, self.averages = times[:1] + times[1:][-1:], [min(averages), max(averages)] if averages else []


@dataclass(slots=True)
class Lines:
    """What some batches say of acceptance. Adds up (:meth:`merge`), in order.

    raw, metrics
        rows not settled yet: of SGLang, and of servers whose lines speak for each other (an engine's line for the
        metrics behind it, llama.cpp's statistics for the request before).
    settled, state
        the rows before them, and what settling goes on from.
    """

    segments: dict[tuple[str, int], Segment] = field(default_factory=dict)
    raw: pl.DataFrame = field(default_factory=RAW.to_frame)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    settled: list[pl.DataFrame] = field(default_factory=list)
    state: State = field(default_factory=lambda: State())  # noqa: PLW0108 - it stands below
    ready: dict[Server, int] = field(default_factory=dict)
    verifies: Counter[tuple[str, int]] = field(default_factory=Counter)
    counts: dict[str, Places] = field(default_factory=dict)
    readings: dict[str, Places] = field(default_factory=dict)
    warnings: dict[tuple[str, int, str], Places] = field(default_factory=dict)
    switches: dict[Key, Switches] = field(default_factory=dict)
    totals: dict[Key, list[Any]] = field(default_factory=dict)
    violations: list[dict[str, Any]] = field(default_factory=list)
    fields: Counter[str] = field(default_factory=Counter)
    # (graph, value) of decode lines
    graphs: Counter[tuple[str, str]] = field(default_factory=Counter)
    repeated: int = 0
    # where the cache is first full, the share of it in use, and the requests that wait
    full: tuple[Place, float, float | None] | None = None
    # the year of the first time that prints none, as the user says
    year: int | None = None

    def note(self, what: str, rows: pl.DataFrame) -> None:
        """Count lines under a name."""
        if rows.height:
            named = rows.select("file", "line").head(NAMED).rows()
            self.counts.setdefault(what, Places()).add(named, rows.height - len(named))

    def one(self, what: str, file: str, line: int) -> None:
        """Count a line under a name."""
        self.counts.setdefault(what, Places()).add([(file, line)])

    def repeat(self, file: str, line: int, fields: dict[str, Any]) -> None:
        """Count the lines that Ray hid behind this one."""
        if times := number(fields.get("repeated")):
            self.one("repeated", file, line)
            self.repeated += int(times)

    def merge(self, other: Lines) -> None:
        """Add a later part."""
        self.segments |= other.segments
        if other.settled:
            self.settle()
            self.settled += other.settled
            self.state = other.state
        self.raw = pl.concat([self.raw, other.raw]) if other.raw.height else self.raw
        self.metrics += other.metrics
        for name in ("counts", "readings", "warnings", "switches"):
            mine = getattr(self, name)
            for key, value in getattr(other, name).items():
                mine.setdefault(key, type(value)()).merge(value)
        for name in ("verifies", "fields", "graphs"):
            getattr(self, name).update(getattr(other, name))
        for key, (first, last, lines) in other.totals.items():
            before = self.totals.get(key)
            self.totals[key] = [first, last, lines] if before is None else [before[0], last, before[2] + lines]
        self.ready |= other.ready
        self.violations = (self.violations + other.violations)[:NAMED]
        self.repeated += other.repeated
        self.full = self.full or other.full
        self.year = self.year if self.year is not None else other.year
        if self.raw.height + len(self.metrics) > EXACT_ROWS:
            self.settle()

    def settle(self) -> None:
        """Give the rows that are not settled yet their weights and times, and join neighbours where there are many."""
        rows = settle(self)
        if rows.height:
            self.settled = [thinned(pl.concat([*self.settled, rows], how="diagonal_relaxed"))]
        self.raw, self.metrics = RAW.to_frame(), []


@dataclass(slots=True)
class State:
    """What settling goes on from: the last row of every process, clocks, ranges of rates, lines that wait."""

    tail: pl.DataFrame = field(default_factory=RAW.to_frame)
    clocks: dict[str, Clock] = field(default_factory=dict)
    rates: dict[Server, RateRanges] = field(default_factory=dict)
    engines: dict[Any, dict[str, Any]] = field(default_factory=dict)
    names: dict[Any, set[str]] = field(default_factory=dict)
    statistics: dict[Any, tuple[float, float, float]] = field(default_factory=dict)
    waiting: dict[Any, list[dict[str, Any]]] = field(default_factory=dict)
    # (process, k) -> [V, sum of V x share at each position], and [sum of V x coverage, ...] of those that got there
    positions: dict[tuple[Key, int], list[list[float]]] = field(default_factory=dict)


# ---------------------------------------------------------------------------------------------------------- gathering


def gather(tables: Tables, below: float | None = None, above: float | None = None) -> Lines:
    """Return what a batch says. ``below``, ``above``: accept lens and rates beyond which lines are counted."""
    out = Lines({(one.file, one.number): one for one in tables.segments})
    verified = tables.passes.filter((pl.col("phase") == "verify") & (pl.col("during") != "graph_capture"))
    for file, segment, passes in verified.group_by("file", "segment").len().iter_rows():
        out.verifies[tables.files[file], segment] = passes
    heard = tables.server.filter((pl.col("kind") == "event") & pl.col("event").is_in([*_BULK, *_SINGLE]))
    if not heard.height:
        return out
    # Who printed each line, its own time, and whether its values count.
    heard = heard.drop("time").join(writers(tables, heard["prefix"]), on="prefix", maintain_order="left")
    heard = heard.with_columns(
        file=pl.Series(tables.files).gather(heard["file"]), engine=pl.lit(None, pl.String),
        usable=pl.col("intact").is_in(["whole", "partial"]),
    )  # fmt: skip
    bulk = heard.filter(pl.col("event").is_in(_BULK))
    if bulk.height:
        _bulk(tables, out, bulk, below, above)
    names = ("said", "event", "usable", *WHO, "line", "time")
    for row in heard.filter(pl.col("event").is_in(list(_SINGLE))).select(names).iter_rows(named=True):
        _SINGLE[row["event"]](out, row, tables.saying(row.pop("said")).fields)
    return out


def _bulk(tables: Tables, out: Lines, rows: pl.DataFrame, below: float | None, above: float | None) -> None:
    """Take the lines that SGLang prints by the thousand: decode and prefill statistics."""
    out.note("damaged", rows.filter(~pl.col("usable")))
    rows = rows.filter("usable")
    stat, cached = pl.col("event") == "decode_stats", pl.col("cached").is_not_null()
    sane = {
        "rate": pl.col("accept_rate"), "running": pl.col("running").cast(pl.Float64),
        "throughput": pl.col("gen_throughput"), "context": pl.when(stat).then(pl.col("token").cast(pl.Float64)),
        "usage": pl.coalesce("said_usage", "token_usage"),
    }  # fmt: skip
    rows = rows.hstack(_fields(tables, out, rows)).select(
        *WHO, "line", "time", "cached", "verifies", pl.col("queue").cast(pl.Float64), stat=stat,
        old=pl.lit(value=False), length=pl.coalesce("said_length", "accept_len"),
        iteration=pl.coalesce("said_iteration", "iteration"), prefills=pl.when(~stat & cached).then(1.0),
        **{name: pl.when(value.is_between(0, 1e15, closed="left")).then(value) for name, value in sane.items()},
    )  # fmt: skip
    stats = rows.filter("stat")
    for row in stats.filter(pl.col("usage") >= _FULL_RATE).head(1).iter_rows(named=True):
        out.full = (Place(row["file"], row["line"]), row["usage"], row["queue"])
    # nan and 0.00: nothing was verified, which is neither zero acceptance nor full.
    length = pl.col("length")
    idle = (length.is_nan() | (length <= 0)).fill_null(value=False)
    out.note("without verifies", stats.filter(idle))
    out.note("without accept len", stats.filter(length.is_null()))
    out.note("below", stats.filter(~idle & (length < below)) if below is not None else stats.clear())
    out.note("above", stats.filter(~idle & (pl.col("rate") > above)) if above is not None else stats.clear())
    kept = rows.filter(~(pl.col("stat") & idle)).drop("queue")
    out.raw = _grouped(pl.concat([out.raw, kept], how="diagonal_relaxed"))


def _fields(tables: Tables, out: Lines, rows: pl.DataFrame) -> pl.DataFrame:
    """Note what lines print besides the known fields; return what the table of server lines has no column for.

    Columns: cached (tokens of a prefill); exact counts of a fork (said_length, verifies), said_iteration, said_usage
    where it is printed in percent.
    """
    names = ("cached", "said_length", "verifies", "said_iteration", "said_usage")
    told: dict[str, list[float | None]] = {name: [None] * rows.height for name in names}
    kinds: Counter[tuple[str, ...]] = Counter()
    rare: dict[tuple[str, ...], list[str]] = {}
    for at, (said, event, file, line) in enumerate(rows.select("said", "event", "file", "line").iter_rows()):
        fields = tables.saying(said).fields
        if "repeated" in fields:
            out.repeat(file, line, fields)
        if event == "prefill_stats":
            told["cached"][at] = number(fields.get("cached_token"))
            continue
        kind = tuple(fields)
        kinds[kind] += 1
        if kind not in rare:
            rare[kind] = [name for name in kind if name in _EXACT or name.endswith("graph")]
        for name in rare[kind]:
            if name.endswith("graph"):
                out.graphs[name.replace("_", " "), str(fields[name])] += 1
            elif name == "iter":
                told["said_iteration"][at] = number(fields[name])
            elif name == "spec rounds":
                tokens, rounds = number(fields.get("spec tokens")), number(fields[name])
                if tokens is not None and rounds:
                    told["said_length"][at], told["verifies"][at] = tokens / rounds, rounds
            elif "token_usage" in fields[name]:
                told["said_usage"][at] = share(fields, "token_usage")
    for kind, times in kinds.items():
        for name in set(kind) - _KNOWN:
            if not name.endswith("graph") and (name in out.fields or len(out.fields) < _MOST_FIELDS):
                out.fields[name] += times
    return pl.DataFrame(told, schema=dict.fromkeys(names, pl.Float64))


def _grouped(rows: pl.DataFrame) -> pl.DataFrame:
    """Give every statistics line what its process printed since the one before it; the rest stays behind the last."""
    who, summed, kept = list(WHO), ("cached", "prefills", "switches"), ("tokens", "steps")
    turn = (pl.col("stat").cum_sum() - pl.col("stat").cast(pl.UInt32)).over(who)
    rows = rows.with_columns(pl.col(summed).fill_null(0.0), turn=turn)
    if rows["stat"].all():
        return rows.select(*RAW)
    made = rows.group_by(*who, "turn", maintain_order=True).agg(
        pl.col(summed).sum(), pl.col("top").max(), pl.col(kept).drop_nulls().last(),
        pl.exclude(*summed, "top", *kept).last(),
    )  # fmt: skip
    return made.select(*RAW)


def _row(row: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {name: row[name] for name in (*WHO, "line", "time")} | {"stat": True, "old": False} | more


def _metrics(out: Lines, row: dict[str, Any], fields: dict[str, Any]) -> None:
    """Take a line that counts draft tokens."""
    found, place = read(row["event"], fields), (row["file"], row["line"])
    if found is None:
        return
    if not row["usable"]:
        out.one("damaged", *place)
        return
    out.repeat(*place, fields)
    for name, holds in (
        ("no drafts", found.no_drafts), ("without bonus", found.without_bonus), ("violations", found.violations),
        ("of a request", row["event"] == "llamacpp_acceptance"),
    ):  # fmt: skip
        if holds:
            out.one(name, *place)
    if found.reading is not None:
        out.readings.setdefault(found.reading, Places()).add([place])
    out.violations += [{"where": "{}:{}".format(*place), "violation": one} for one in found.violations]
    told = {
        name: getattr(found, name) for name in ("length", "verifies", "accepted", "drafted", "positions", "reached")
    }
    out.metrics.append(_row(row, event="" if found.no_drafts else row["event"], k=found.draft_tokens, **told))


def _engine(out: Lines, row: dict[str, Any], fields: dict[str, Any]) -> None:
    """Take an engine's line of vLLM: it waits for the metrics line behind it."""
    name, several = fields.get("engine"), number(fields.get("engines"))
    if row["usable"] and (name is not None or several is not None):
        made = _row(row, event="engine_stats", name=f"{several:.0f} engines" if name is None else str(name))
        made |= {"running": number(fields.get("running")), "usage": share(fields, "kv_cache_usage")}
        out.metrics.append(made | {"throughput": number(fields.get("avg_generation_throughput"))})


def _statistics(out: Lines, row: dict[str, Any], fields: dict[str, Any]) -> None:
    """Take a cumulative line of llama.cpp: its difference to the one before speaks for the request between them."""
    counts = [number(fields.get(name)) for name in ("accepted", "drafted", "calls_accept")]
    if row["usable"] and None not in counts:
        out.metrics.append(_row(row, event="llamacpp_statistics", name=str(fields.get("speculator")), counts=counts))


def _cumulative(out: Lines, row: dict[str, Any], fields: dict[str, Any]) -> None:
    """Take a line of vLLM V0, which counts since the start: the first and the last of a process are kept."""
    if not row["usable"]:
        out.one("damaged", row["file"], row["line"])
        return
    said = {"line": row["line"]} | {name: number(fields.get(name)) for name in ("accepted", "drafted", "emitted")}
    said |= {"k": number(fields.get("speculative_tokens")), "rate": share(fields, "draft_acceptance_rate")}
    said["system_efficiency"] = share(fields, "system_efficiency")
    known = out.totals.setdefault(Key(*(row[name] for name in WHO)), [said, said, 0])
    known[1:] = [said, known[2] + 1]


def _ready(out: Lines, row: dict[str, Any], fields: dict[str, Any]) -> None:  # noqa: ARG001 - one of a kind
    """Remember until where a server warmed up: a log need not say so, and says it behind those lines."""
    out.ready[Server(row["file"], row["segment"], row["server"])] = row["line"]


def _warning(out: Lines, row: dict[str, Any], fields: dict[str, Any]) -> None:  # noqa: ARG001 - one of a kind
    known = out.warnings.setdefault((row["file"], row["segment"], row["event"]), Places())
    known.add([(row["file"], row["line"])]).names.add(row["origin"])


def _switch(out: Lines, row: dict[str, Any], fields: dict[str, Any]) -> None:
    """Take a switch of the draft length, or the average that it follows."""
    known, place = out.switches.setdefault(Key(*(row[name] for name in WHO)), Switches()), (row["file"], row["line"])
    average = number(fields.get("ema_accept_len"))
    said = Switches(averages=[] if average is None else [average])
    if row["event"] == "adaptive_switch":
        said.add([place])
        said.times = [row["time"]] if row["time"] else []
        out.one("switches", *place)
        tokens = [number(fields.get(f"draft_tokens_{side}")) for side in ("from", "to")]
        most = max((one for one in tokens if one is not None), default=None)
        steps = number(fields.get("steps_to"))
        out.metrics.append(_row(row, event="", switches=1.0, top=most, tokens=tokens[1], steps=steps) | {"stat": False})
    known.merge(said)


def _retract(out: Lines, row: dict[str, Any], fields: dict[str, Any]) -> None:  # noqa: ARG001 - one of a kind
    out.one("retractions", row["file"], row["line"])


_BULK = ("decode_stats", "prefill_stats")
_SINGLE = {
    **dict.fromkeys(EVENTS, _metrics), "engine_stats": _engine, "llamacpp_statistics": _statistics,
    "spec_metrics_cumulative": _cumulative, "ready": _ready, "nan_logits_warning": _warning,
    "invalid_tree_warning": _warning, "adaptive_switch": _switch, "adaptive_params": _switch, "retract": _retract,
}  # fmt: skip

# ----------------------------------------------------------------------------------------------------------- settling


def settle(lines: Lines) -> pl.DataFrame:
    """Return the rows that are not settled yet, settled; ``lines.state`` is then that behind them.

    The columns of a settled row add up: sums, extremes, first and last. ``weight`` is its verifies, ``rounds`` their
    rounds, ``open`` how many of its lines print neither, ``weighted`` verifies x length (V + A where both are printed).
    """
    state = lines.state = copy.deepcopy(lines.state)
    metrics = pl.DataFrame(_told(state, lines.metrics), schema=RAW, orient="row") if lines.metrics else RAW.to_frame()
    raw = _shared(pl.concat([state.tail, lines.raw, metrics]))
    if not raw.height:
        return pl.DataFrame()
    files = raw["file"].unique(maintain_order=True)
    place = pl.col("file").replace_strict(files, range(len(files)), return_dtype=pl.Int32)
    raw = _grouped(raw.sort(place, "line", maintain_order=True)).sort(place, "line", maintain_order=True)
    who = list(WHO)
    raw = raw.with_columns(pl.col("tokens", "steps").forward_fill().over(who))
    ends = pl.col("stat") & (pl.col("stat").cum_sum().over(who) == pl.col("stat").sum().over(who))
    state.tail = raw.filter(ends | ~pl.col("stat")).with_columns(old=pl.col("stat"))
    rows = raw.filter("stat").join(_settings(lines), on=["file", "segment"], how="left", maintain_order="left")
    if not rows.height:
        return pl.DataFrame()
    running, length, verifies = pl.col("running"), pl.col("length"), pl.col("verifies")
    ran, iteration, context = (pl.col(name).shift().over(who) for name in ("running", "iteration", "context"))
    # The mean of the numbers printed at both ends of the interval.
    requests = pl.coalesce((running + ran) / 2, running, 1.0)
    counted, known = pl.col("drafted").is_not_null(), length.is_not_null()
    passed = pl.col("iteration") - iteration - pl.col("prefills")
    shared = pl.when(~counted & (running > 0)).then(verifies / running).otherwise(verifies)
    alike = (pl.col("prefills") == 0) & (running > 0) & (running == ran) & (pl.col("context") > context)
    rows = rows.with_columns(
        shown=pl.coalesce(shared, pl.when(passed > 0).then(passed)),
        requests=pl.when(requests == 0).then(1.0).otherwise(requests),
        tokens=pl.coalesce("tokens", "settled_tokens"),
        steps=pl.coalesce("steps", "settled_steps"),
        growth=pl.when(alike & verifies.is_null()).then((pl.col("context") - context) / (running * length)),
    ).filter(~pl.col("old"))
    rows = _timed(lines, _ready_only(lines, rows))
    limit = pl.coalesce(pl.col("k") + 1, pl.min_horizontal("tokens", pl.col("steps") + 1) + pl.col("bonus") - 1)
    weight = pl.coalesce(
        verifies,
        pl.when(~counted).then(pl.coalesce("shown", "interval") * pl.col("requests")),
        pl.when(pl.col("accepted").is_null() | (pl.col("accepted") == 0)).then(1.0),
    )
    total = (pl.col("rate") >= _FULL_RATE).fill_null(value=False)
    total |= ((limit > 1) & (length >= limit - _HALF_DIGIT - 1e-9)).fill_null(value=False)
    rows = rows.with_columns(
        weight=pl.when(known).then(weight).otherwise(0.0).fill_null(0.0),
        full=known & (pl.col("switches") == 0) & total,
        drafting=known & (pl.col("steps") != 0).fill_null(value=True),
        rate=pl.when(pl.col("switches") == 0).then(pl.col("rate")),
    )
    _rates(state, rows.filter(known & pl.col("rate").is_not_null()))
    _positions(state, rows)
    lines.note("drafting off", rows.filter(known & ~pl.col("drafting")))
    speed, drafting, rated = (
        pl.col("throughput").is_not_null() & known,
        pl.col("drafting"),
        pl.col("rate").is_not_null(),
    )
    step = pl.when((pl.col("throughput") > 0) & (running > 0)).then(running * length / pl.col("throughput"))
    tokens, paced = length * running.fill_null(1.0), speed & step.is_not_null()
    exact = counted & verifies.is_not_null() & pl.col("accepted").is_not_null()
    emitted = pl.when(exact).then(pl.col("weight") + pl.col("accepted")).otherwise(pl.col("weight") * length)

    # One token accepted in ten thousand verifies prints 1.00: where tokens are counted, the count says it.
    nothing = pl.coalesce(pl.col("accepted") == 0, length <= pl.col("bonus") + _HALF_DIGIT)

    def where(holds: pl.Expr, value: Any) -> pl.Expr:
        """Return a value where something holds and it is printed, else 0."""
        return pl.when(holds).then(value).otherwise(0.0).fill_null(0.0)

    def summed(name: str, value: pl.Expr, holds: pl.Expr = known) -> dict[str, pl.Expr]:
        return {name: where(holds, value), f"{name}_lines": (holds & value.is_not_null()).cast(pl.Float64)}

    return rows.select(
        *WHO, "time", "kind", "seconds", first="line", last="line", end_time="time", end_seconds="seconds",
        growth=pl.when(drafting).then("growth"),
        lines=where(known | counted, 1.0), lengths=where(known, 1.0), plain=length.fill_null(0.0),
        rounds=where(known, pl.coalesce("shown", "interval")),
        open=where(known & pl.col("shown").is_null() & ~counted, 1.0),
        weight="weight",
        weighted=emitted.fill_null(0.0),
        smallest=length, largest=length, ceiling=pl.col("full").cast(pl.Float64),
        floor=where(drafting & nothing, 1.0), drafting=drafting.cast(pl.Float64),
        spanning=where(pl.col("switches") > 0, 1.0),
        accepted=pl.col("accepted").fill_null(0.0), drafted=pl.col("drafted").fill_null(0.0),
        steps_sum=pl.when(counted).then(pl.coalesce("k", "steps")).otherwise("steps").fill_null(0.0) * pl.col("weight"),
        **summed("running", running),
        running_low=pl.when(known).then(running), running_high=pl.when(known).then(running),
        **summed("context", pl.col("context")), **summed("usage", pl.col("usage")), **summed("step", step),
        cached=where(known, pl.col("cached")), prefills=where(known, pl.col("prefills")),
        speed_lines=speed.cast(pl.Float64), speed_tokens=where(paced, tokens),
        speed_seconds=where(paced, tokens / pl.col("throughput")),
        slowest=pl.when(speed).then("throughput"), fastest=pl.when(speed).then("throughput"),
        **summed("throughput", pl.col("throughput"), ~counted),
        rate=where(rated, pl.col("rate") * pl.col("weight")), rate_weight=where(rated, pl.col("weight")),
    )  # fmt: skip


def _shared(raw: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with switches that no process with statistics prints given to all of their server."""
    who = list(WHO)
    processes = raw.filter("stat").select(who).unique(maintain_order=True)
    switch = ~pl.col("stat") & (pl.col("switches") > 0)
    loose = raw.filter(switch).join(processes, on=who, how="anti", nulls_equal=True)
    if not loose.height or not processes.height:
        return raw
    given = loose.drop("origin", "engine").join(processes, on=who[:3]).select(*RAW)
    return pl.concat([raw.join(loose.select(*who, "line"), on=[*who, "line"], how="anti", nulls_equal=True), given])


def _told(state: State, metrics: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """Return rows of lines that speak for each other, as they come."""
    out = []
    for told in metrics:
        one = dict(told)
        event = one.pop("event")
        writer = (one["file"], one["segment"], one["origin"])
        if event == "engine_stats":
            state.names.setdefault(writer, set()).add(one["name"])
            state.engines[writer] = one | {"used": False}
            continue
        if event == "llamacpp_statistics":
            speculator, counts = (*writer, one.pop("name")), one.pop("counts")
            since = state.statistics.get(speculator, (0.0, 0.0, 0.0))
            if any(now < then for now, then in zip(counts, since, strict=True)):
                since = (0.0, 0.0, 0.0)  # another start
            accepted, drafted, verifies = (now - then for now, then in zip(counts, since, strict=True))
            state.statistics[speculator] = tuple(counts)
            waiting = state.waiting.pop(writer, [])
            if not waiting and verifies:
                one |= {"accepted": accepted, "drafted": drafted}
                waiting = [one]
                out.append(one)
            first = waiting[0] if len(waiting) == 1 and verifies else {}
            if first.get("accepted") == accepted and first.get("length") is None:
                first |= {"verifies": verifies, "length": 1 + accepted / verifies}
            continue
        if event == "llamacpp_acceptance":
            state.waiting.setdefault(writer, []).append(one)
            del state.waiting[writer][:-NAMED]
        elif event == "" and one["stat"] and writer not in state.engines:
            continue
        if one["stat"] and event != "llamacpp_acceptance":
            _of_engine(state, writer, one)
        if event or not one["stat"]:
            out.append(one)
    return [[one.get(name) for name in RAW] for one in out]


def _of_engine(state: State, writer: Any, one: dict[str, Any]) -> None:
    """Name the engine of a metrics line: the one of the engine line before it in the same process.

    An engine line speaks for one metrics line; further ones keep it only where the process has a single engine. What
    runs is that of the moment of printing; drafts are counted over the interval.
    """
    engine = state.engines.get(writer)
    if engine is None or (engine["used"] and len(state.names[writer]) > 1):
        return
    if not engine["used"]:
        one |= {name: engine[name] for name in ("running", "usage", "throughput")}
    engine["used"] = True
    one["engine"] = engine["name"]


def highest(segment: Segment | None) -> int | None:
    """Return the highest accept len a segment's settings allow: all steps accepted, and what comes for nothing."""
    if segment is None:
        return None
    known = [segment.num_draft_tokens, None if segment.num_steps is None else segment.num_steps + 1]
    values = [value for value in known if value is not None]
    return min(values) + bonus_of(segment) - 1 if values else None


def bonus_of(segment: Segment | None) -> int:
    """Return how many tokens a round gives without an accepted draft, by the algorithm of server_args."""
    uno = segment is not None and str(segment.server_args.get("speculative_algorithm")).upper() == "UNO"
    return UNO_BONUS if uno else 1


def _steps_of(segment: Segment) -> int | None:
    """Return the draft steps of server_args, 0 where drafting is switched off."""
    said = segment.server_args.get("speculative_num_steps")
    return 0 if said == 0 else segment.num_steps


def _settings(lines: Lines) -> pl.DataFrame:
    """Return what the settings of each run say of its lines."""
    numbers = dict.fromkeys(("interval", "bonus", "settled_tokens", "settled_steps"), pl.Float64)
    told = [
        (file, number_, one.decode_log_interval or DEFAULT_ROUNDS, bonus_of(one), one.num_draft_tokens, _steps_of(one))
        for (file, number_), one in lines.segments.items()
    ]
    schema = {"file": pl.String, "segment": pl.Int32, **numbers}
    return pl.DataFrame(told, schema=schema, orient="row", strict=False)


def _ready_only(lines: Lines, rows: pl.DataFrame) -> pl.DataFrame:
    """Leave out what a server printed before it said that it is ready."""
    for server, line in lines.ready.items():
        mine = pl.all_horizontal(pl.col(name) == value for name, value in zip(WHO, server, strict=False))
        early = mine & (pl.col("line") < line)
        lines.note("of the warm-up", rows.filter(early))
        rows = rows.filter(~early)
    return rows


def _timed(lines: Lines, rows: pl.DataFrame) -> pl.DataFrame:
    """Add when each line was printed, in seconds that compare within a kind; count the lines that step back."""
    clocks = lines.state.clocks
    dated = pl.col("time").str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", strict=False).dt.epoch("us") / 1e6
    rows = rows.with_columns(seconds=dated).with_columns(
        kind=pl.when(pl.col("seconds").is_not_null()).then(pl.lit("dated"))
    )
    # What is not plainly dated needs the lines before it.
    odd = pl.col("time").is_not_null() & pl.col("seconds").is_null()
    told = []
    for at, file, line, time in rows.with_row_index("at").filter(odd).select("at", "file", "line", "time").iter_rows():
        clock = clocks.setdefault(file, Clock(lines.year))
        moment = clock.read(time, line)
        told.append((at, None if moment is None else moment.kind, moment and moment.seconds, clock.shown(time)))
    if told:
        columns = list(zip(*told, strict=True))
        for name, values in zip(("kind", "seconds", "time"), columns[1:], strict=True):
            rows = rows.with_columns(rows[name].scatter(columns[0], pl.Series(values, dtype=rows.schema[name])))
    timed = rows.filter(pl.col("kind").is_not_null())
    if not timed.height:
        return rows

    def back(who: Sequence[str], least: float) -> pl.Expr:
        same = pl.col("kind").shift().over(who) == pl.col("kind")
        return same & (pl.col("seconds").shift().over(who) - pl.col("seconds") > least)

    back_ = back(["file", "segment", "server"], _LATE) | back(["file", "segment", "origin"], 0.0)
    lines.note("out of order", timed.filter(back_))
    for kind in ("no year", "no date"):
        lines.note(kind, timed.filter(pl.col("kind") == kind))
    return rows


def _rates(state: State, rows: pl.DataFrame) -> None:
    for (file, segment, name), mine in rows.group_by(WHO[:3], maintain_order=True):
        bonus = int(mine["bonus"].fill_null(1.0)[0])
        ranges = state.rates.setdefault(Server(file, segment, name), RateRanges(bonus))
        ranges.extend(*(mine[column].to_list() for column in ("line", "length", "rate", "weight")))


def _positions(state: State, rows: pl.DataFrame) -> None:
    """Add up what lines say of each position, weighted by their verifies."""
    listed = rows.filter(pl.col("positions").is_not_null() & (pl.col("weight") > 0))
    for row in listed.select(*WHO, "weight", "positions", "reached").iter_rows():
        *who, weight, positions, reached = row
        sums = state.positions.setdefault((Key(*who), len(positions)), [[0.0] * (len(positions) + 1), [], []])
        sums[0] = [total + weight * value for total, value in zip(sums[0], [1.0, *positions], strict=True)]
        if reached is not None:
            # of all = of those that got there x coverage
            there = [
                weight * of_all / of_those if of_those else 0.0
                for of_all, of_those in zip(positions, reached, strict=True)
            ]
            sums[1] = [a + b for a, b in zip(sums[1] or [0.0] * len(positions), there, strict=True)]
            sums[2] = [a + weight * b for a, b in zip(sums[2] or [0.0] * len(positions), positions, strict=True)]


def thinned(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with neighbours of one process joined two by two, where it has more than are kept."""
    who = list(WHO)
    while True:
        sizes = rows.group_by(who, maintain_order=True).len()
        most = min(EXACT_LINES, max(EXACT_ROWS // sizes.height, 16))
        over = sizes.filter(pl.col("len") > (EXACT_LINES if rows.height <= EXACT_ROWS else most))
        if not over.height:
            return rows
        many = rows.join(over.select(who), on=who, how="semi", nulls_equal=True, maintain_order="left")
        few = rows.join(over.select(who), on=who, how="anti", nulls_equal=True, maintain_order="left")
        many = many.with_columns(pair=pl.int_range(pl.len()).over(who) // 2)
        joined = many.group_by(*who, "pair", maintain_order=True).agg(
            pl.col(*_FIRST).first(), pl.col(*_LAST).last(), pl.col(*_LEAST).min(), pl.col(*_MOST).max(),
            pl.exclude(*_FIRST, *_LAST, *_LEAST, *_MOST).sum(),
        )  # fmt: skip
        rows = pl.concat([few, joined.select(rows.columns)])
