"""The acceptance of one process over time, as numbers: sums, stretches, levels, declines, holes.

This module is responsible for describing how accept len moved, from settled rows (lines.py). It must not judge or put
anything into words, and it must not know servers' formats. Means weigh every line by its verifies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from logscope.queries.acceptance.lines import WHO, Key, Server, bonus_of, highest
from logscope.queries.acceptance.trend import level_starts, rank_difference, rank_trend
from logscope.queries.words import rounded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logscope.model import Segment
    from logscope.queries.acceptance.lines import Lines
    from logscope.queries.acceptance.rates import RateRanges, Verdict

# Acceptance rules look at stretches of at least so many lines and verify rounds.
STRETCH_LINES = 2
STRETCH_ROUNDS = 80
# A decline is lasting and large from here on.
DECLINE_ROUNDS = 300
DECLINE_SHARE = 0.15
DECLINE_Z = 4.0
# A line whose round takes this many times the usual covers a pause too.
PAUSE = 3.0
# Accepted draft tokens a verify below this share of the draft's steps are next to nothing: a step of the smallest
# draft costs about a twentieth of a pass of the target. Fewer verifies are thin evidence.
BARELY = 0.05
BARELY_VERIFIES = 100
_HOLE, _SHORTEST_HOLE, _MOST_HOLES = 5.0, 60.0, 5
_MOST_STRETCHES = 50
# Columns of rows that are not summed.
_EXTREMES = {
    "smallest": "min", "running_low": "min", "slowest": "min", "largest": "max", "running_high": "max",
    "fastest": "max",
}  # fmt: skip
_NOT_SUMMED = frozenset((*_EXTREMES, "growth", "seconds", "end_seconds"))
# Means of rows: one sum over another.
_MEANS = {
    "mean": ("weighted", "weight"), "rate": ("rate", "rate_weight"), "running": ("running", "running_lines"),
    "context": ("context", "context_lines"), "usage": ("usage", "usage_lines"), "cached": ("cached", "prefills"),
    "step": ("step", "step_lines"),
}  # fmt: skip


class Stats:
    """Sums over rows: of a process, a server, a window. ``lines`` counts those that report acceptance.

    mean
        mean accept len, weighted by verifies: 1 + accepted / verifies where a server prints counts.
    rate
        mean printed rate, weighted alike. Means nothing where definitions are mixed.
    running, context, usage, cached, step
        means of what runs beside: requests, tokens in the cache of the process, the share of it in use, cached prompt
        tokens a prefill, seconds a round; None where they were never printed.
    """

    mean: float | None
    rate: float | None
    running: float | None
    context: float | None
    usage: float | None
    cached: float | None
    step: float | None

    def __init__(self, rows: pl.DataFrame) -> None:
        self.rows = rows
        numbers = [
            name for name, dtype in rows.schema.items() if dtype == pl.Float64 and name not in _NOT_SUMMED
        ]  # fmt: skip
        extremes = (getattr(pl.col(name), how)() for name, how in _EXTREMES.items())
        self.sums: dict[str, Any] = rows.select(pl.col(*numbers).sum(), *extremes).row(0, named=True)
        for name, (total, by) in _MEANS.items():
            setattr(self, name, self.sums[total] / self.sums[by] if self.sums[by] else None)
        counted = rows.filter(pl.col("lines") > 0)
        ends = (counted if counted.height else rows).sort("first")
        self.first_line, self.first_time = ends.select("first", "time").row(0)
        self.last_line, self.last_time = ends.sort("last").select("last", "end_time").row(-1)
        self.lines, self.open_lines, self.ceiling = (int(self.sums[name]) for name in ("lines", "open", "ceiling"))

    @cached_property
    def _lengths(self) -> tuple[list[float], list[float]]:
        """Which lengths there are, and how many lines (or their weight in many lines) have each."""
        known = self.rows.filter(pl.col("lengths") > 0).select(
            length=(pl.col("plain") / pl.col("lengths")).round(4), lines="lengths"
        )
        told = known.group_by("length").agg(pl.col("lines").sum()).sort("length")
        return told["length"].to_list(), told["lines"].to_list()

    def quantile(self, share: float) -> float | None:
        """Return the accept len below which this share of the lines lies (the mean of the two middle ones for 0.5)."""
        lengths, lines = self._lengths
        if not lengths:
            return None
        if share in (0, 1):
            return float(self.sums["smallest" if share == 0 else "largest"])
        upto = np.cumsum(lines)
        at = share * (upto[-1] - 1)
        below, above = (int(np.searchsorted(upto, edge, side="right")) for edge in (math.floor(at), math.ceil(at)))
        return (lengths[below] + lengths[min(above, len(lengths) - 1)]) / 2

    def speed(self) -> Speed | None:
        """Return the throughput of the lines that cover no pause, None when none is printed."""
        rows = self.rows.filter(pl.col("step_lines") > 0)
        rows = rows.with_columns(each=pl.col("step") / pl.col("step_lines")).sort("each")
        if not rows.height:
            return None
        upto = rows["step_lines"].cum_sum()
        usual = rows["each"][int((upto * 2 < upto[-1]).sum())]
        kept = rows.filter(pl.col("each") <= PAUSE * usual)
        left = self.sums["speed_lines"] - kept["step_lines"].sum()
        tokens, seconds, slowest, fastest = kept.select(
            pl.col("speed_tokens", "speed_seconds").sum(), pl.col("slowest").min(), pl.col("fastest").max()
        ).row(0)
        return Speed(tokens / seconds, slowest, fastest, int(left))


class Speed(NamedTuple):
    """Tokens per second: mean over time, slowest and fastest line, and how many lines were left out."""

    mean: float
    slowest: float
    fastest: float
    left_out: int


@dataclass(slots=True)
class Stretch:
    """Consecutive lines of one process at an extreme. ``rounds`` is what its lines stand for."""

    first_line: int
    first_time: str | None
    last_line: int
    lines: int
    rounds: float
    length: float
    counted: bool = False


class Hole(NamedTuple):
    """A time without lines of a process, longer than its usual distance."""

    seconds: float
    after_line: int
    before_line: int
    after_time: str | None
    before_time: str | None


class Level(Stats):
    """Lines over which accept len keeps its level; ``start`` and ``stop`` count the values of the series."""

    mean: float

    def __init__(self, rows: pl.DataFrame, start: int, stop: int) -> None:
        super().__init__(rows[start:stop])
        self.mean = self.mean or 0.0
        self.start, self.stop, self.time, self.rounds = start, stop, self.first_time, float(self.sums["rounds"])


@dataclass(frozen=True, slots=True)
class Decline:
    """A fall of accept len that lasts to the end of the series.

    before
        the level it falls from, the highest one; ``begin`` is the first level after it.
    after
        the last level.
    low, low_rounds, low_mean
        the first level from which on all stay at least 15 % under ``before``, the rounds and the weighted mean from
        there to the end; without such a level ``low`` is None.
    seen_before
        True when an earlier level was as low and was left again: acceptance varies, and this is no decline yet.
    trend_z
        of the rank trend test from ``before`` to the end.
    levels_z
        of the rank test of ``before`` against what lies lower (without ``low``: against the last level). A single step
        late in a long series shows here and hardly in the trend.
    """

    before: Level
    begin: Level
    after: Level
    low: Level | None
    low_rounds: float
    low_mean: float
    seen_before: bool
    trend_z: float
    levels_z: float

    @property
    def z(self) -> float:
        """The clearer of the two tests."""
        return min(self.trend_z, self.levels_z)

    @property
    def change(self) -> float:
        """The last level against the one before the fall: -0.43 for 3.33 to 1.90."""
        return self.after.mean / self.before.mean - 1

    @property
    def lasting(self) -> bool:
        """True when it is large, long, significant and new: a warning, not a note."""
        long = self.low is not None and self.low_rounds >= DECLINE_ROUNDS
        return long and not self.seen_before and self.z < -DECLINE_Z


class Barely(NamedTuple):
    """Next to nothing accepted: accepted draft tokens a verify, the bound, the draft's steps, and the verifies."""

    accepted: float
    bound: float
    steps: float
    verifies: float


class Series:
    """What one process (or one engine of it) reports in one segment, in file order.

    maximum
        the highest accept len its settings allow, None when unknown.
    bonus
        the accept len of a round in which no draft token is accepted.
    rounds_per_line
        decode_log_interval where the settings say it, else None (SGLang's default stands for it).
    """

    def __init__(self, rows: pl.DataFrame, segment: Segment | None) -> None:
        self.stats = Stats(rows)
        self.rounds_per_line = segment.decode_log_interval if segment is not None else None
        self.maximum, self.bonus = highest(segment), bonus_of(segment)
        self.rounds = float(self.stats.sums["rounds"])
        self.rows = rows.filter(pl.col("lengths") > 0)
        # Where nothing was drafted, nothing is said of acceptance.
        self._drafted = self.rows.filter(pl.col("drafting") > 0)

    @cached_property
    def floor(self) -> list[Stretch]:
        """The stretches in which nothing is accepted, the longest ones, in file order."""
        return self._stretches("floor")

    @cached_property
    def ceiling(self) -> list[Stretch]:
        """The stretches in which everything is accepted."""
        return self._stretches("ceiling")

    def _stretches(self, name: str) -> list[Stretch]:
        inside = pl.col(name) == pl.col("lengths")
        runs = self.rows.with_columns(run=inside.rle_id(), inside=inside).filter("inside")
        found = runs.group_by("run").agg(
            pl.col("first", "time").first(), pl.col("last").last(), pl.col("lengths").sum().cast(pl.Int64),
            pl.col("rounds").sum(), (pl.col("plain") / pl.col("lengths")).last(), pl.col("drafted").sum() > 0,
        ).drop("run")  # fmt: skip
        longest = found.sort(-pl.col("rounds"), "first").head(_MOST_STRETCHES)
        return [Stretch(*row) for row in longest.sort("first").iter_rows()]

    def long(self, stretches: Sequence[Stretch]) -> list[Stretch]:
        """Return the stretches an acceptance rule looks at: 2 lines and 80 rounds, or every line of a shorter run.

        A line that prints its own counts is as strong as its rounds.
        """
        whole = self.rounds < STRETCH_ROUNDS
        return [
            one
            for one in stretches
            if (one.rounds >= STRETCH_ROUNDS and (one.lines >= STRETCH_LINES or one.counted))
            or (whole and one.lines == self.stats.sums["lengths"])
        ]

    @property
    def barely(self) -> Barely | None:
        """Return the numbers of next to nothing accepted; None where more is, or where the evidence is thin.

        The bound is a share of the draft's steps: k printed, else the steps in force. Exactly nothing is another
        matter (:attr:`floor`).
        """
        sums = self.stats.sums
        steps = sums["steps_sum"] / sums["weight"] if sums["weight"] else 0.0
        if sums["weight"] < BARELY_VERIFIES or not steps or self.stats.mean is None:
            return None
        accepted = self.stats.mean - self.bonus
        bound = BARELY * steps
        return Barely(accepted, bound, steps, sums["weight"]) if 0 < accepted < bound else None

    def growth(self) -> float | None:
        """Return the rounds of a line as the cache's growth shows them; None for fewer than 3 or scattered values."""
        grown = self.rows["growth"].drop_nulls().round(1)
        if len(grown) < 3:
            return None
        low, middle, high = (float(grown.quantile(share, "lower") or 0.0) for share in (0.1, 0.5, 0.9))
        return middle if high - low <= 0.15 * middle else None

    def holes(self) -> list[Hole]:
        """Return the longest times without lines that are far above the usual distance, in file order."""
        rows = self.rows.filter(pl.col("kind").is_not_null())
        gaps = rows.select(
            seconds=pl.col("seconds") - pl.col("end_seconds").shift(),
            after_line=pl.col("last").shift(), before_line="first", after_time=pl.col("end_time").shift(),
            before_time="time", same=pl.col("kind") == pl.col("kind").shift(),
        ).filter(pl.col("same") & (pl.col("seconds") > 0)).drop("same")  # fmt: skip
        if gaps.height < 3:
            return []
        limit = max(_SHORTEST_HOLE, _HOLE * float(gaps["seconds"].median() or 0.0))  # type: ignore[arg-type]
        long = gaps.filter(pl.col("seconds") >= limit).sort("seconds", descending=True).head(_MOST_HOLES)
        return [Hole(*row) for row in long.sort("after_line").iter_rows()]

    @cached_property
    def values(self) -> list[float]:
        """The mean length of every row on which levels stand."""
        exact = pl.when(pl.col("lengths") == 1).then("plain").otherwise(pl.col("weighted") / pl.col("weight"))
        found: list[float] = self._drafted.select(exact).to_series().to_list()
        return found

    def points(self, most: int) -> list[dict[str, Any]]:
        """Return at most so many points of the series, in order: means, extremes and companions."""
        rows = self._drafted
        step = max(1, -(-rows.height // most))
        told = rows.group_by(pl.int_range(pl.len()) // step, maintain_order=True).agg(
            line=pl.col("first").first(), time=pl.col("time").first(), lines=pl.col("lengths").sum().cast(pl.Int64),
            accept_len=(pl.col("weighted").sum() / pl.col("weight").sum()).round(3),
            min=pl.col("smallest").min(), max=pl.col("largest").max(),
            running=(pl.col("running").sum() / pl.col("running_lines").sum()).round(2),
            token_usage=(pl.col("usage").sum() / pl.col("usage_lines").sum()).round(4),
        )  # fmt: skip
        return told.drop(told.columns[0]).with_columns(pl.col("running", "token_usage").fill_nan(None)).to_dicts()

    @cached_property
    def levels(self) -> list[Level]:
        """The levels of accept len in order, one when it never changes, none where nothing was drafted."""
        starts = level_starts(self.values)
        return [Level(self._drafted, *bounds) for bounds in pairwise([*starts, len(self.values)])]

    @cached_property
    def decline(self) -> Decline | None:
        """The fall from the highest level to the last one, None when the last is the highest or the only one."""
        levels, values = self.levels, self.values
        if len(levels) < 2:
            return None
        top = max(range(len(levels)), key=lambda at: levels[at].mean)
        if top == len(levels) - 1:
            return None
        before = levels[top]
        limit = (1 - DECLINE_SHARE) * before.mean
        first_low = len(levels)
        while first_low > top + 1 and levels[first_low - 1].mean <= limit:
            first_low -= 1
        low = levels[first_low:]
        rounds = sum(level.rounds for level in low)
        mean = sum(level.mean * level.rounds for level in low) / rounds if rounds else levels[-1].mean
        lower = low[0] if low else levels[-1]
        return Decline(
            before=before, begin=levels[top + 1], after=levels[-1], low=low[0] if low else None, low_rounds=rounds,
            low_mean=mean, seen_before=any(level.mean <= 1.01 * mean for level in levels[:first_low]),
            trend_z=rank_trend(values[before.start :]) or 0.0,
            levels_z=rank_difference(values[before.start : before.stop], values[lower.start :]) or 0.0,
        )  # fmt: skip


class Acceptance:
    """All that lines say of acceptance, settled: the one place that questions, rules and comparisons ask.

    series
        every process (and engine) that reports acceptance, in the order of the log.
    rates
        the ranges of lines in which each definition of accept rate holds, by server.
    """

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        lines.settle()
        self.rates: dict[Server, RateRanges] = lines.state.rates
        rows = lines.settled[0] if lines.settled else pl.DataFrame()
        self.processes: dict[Key, Series] = {}
        if rows.height:
            for who, mine in rows.group_by(list(WHO), maintain_order=True):
                key = Key(*who)
                self.processes[key] = Series(mine, lines.segments.get((key.file, key.segment)))
        self.series = {key: one for key, one in self.processes.items() if one.stats.lines}

    def verdicts(self, server: Server) -> list[Verdict]:
        """Return the definition of accept rate in each range of lines of a server, in file order."""
        segment = self.lines.segments.get((server.file, server.segment))
        steps, tokens = (None, None) if segment is None else (segment.num_steps, segment.num_draft_tokens)
        ranges = self.rates[server].ranges if server in self.rates else []
        return [found.decide(steps, tokens) for found in ranges]

    def definition(self, server: Server, stats: Stats) -> tuple[str | None, str | None]:
        """Return the definition and formula that hold over some lines of a server, ``mixed`` for several."""
        if server not in self.rates or not stats.sums["rate_weight"]:
            return None, None
        here = {
            (verdict.definition, verdict.rule)
            for found, verdict in zip(self.rates[server].ranges, self.verdicts(server), strict=True)
            if found.first_line <= stats.last_line and found.last_line >= stats.first_line
        }
        names = {name for name, _ in here}
        rules = sorted(rule for _, rule in here)
        # One letter with several formulas is one definition only where the bonus token is left out (N changed).
        name = names.pop() if len(here) == 1 or names == {"C"} else "mixed"
        return name, ", ".join(rules[:4]) + (", ..." if len(rules) > 4 else "")

    def summary_rows(self) -> list[dict[str, Any]]:
        """Return the rows of summarize's ``accept`` table: one per segment and process (and engine).

        A process that prints a throughput but no length has a row as well: ``lines`` counts lengths, so it is 0 there.
        """
        out = []
        for key, series in self.processes.items():
            stats = series.stats
            definition, rule = self.definition(Server(*key[:3]), stats)
            each = stats.rows.select(pl.col("throughput") / pl.col("throughput_lines")).to_series().drop_nans()
            if not stats.lines and not len(each):
                continue
            out.append(
                {
                    "file": key.file, "segment": key.segment, "origin": key.name, "lines": stats.lines,
                    "accept_len_mean": rounded(stats.mean, 4),
                    "min": rounded(stats.quantile(0), 2), "max": rounded(stats.quantile(1), 2),
                    "rate_definition": definition, "rate_rule": rule, "throughput_median": each.median(),
                    "throughput_max": each.max(),
                }
            )  # fmt: skip
        return out
