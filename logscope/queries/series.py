"""The acceptance of one process over time, in flat memory: statistics, stretches, levels, decline.

This module is responsible for adding up intervals and for describing how accept len moved, as numbers. It must not
judge them or put them into words, and it must not know servers' formats. Means weigh every interval by its verifies
(one per request and round).
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from logscope.queries.intervals import DEFAULT_ROUNDS
from logscope.queries.trend import level_starts, rank_difference, rank_trend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logscope.queries.clock import Moment
    from logscope.queries.intervals import Interval

# Up to this many lines of one process every line is kept; beyond, neighbours are joined two by two.
EXACT_LINES = 2**15
# Acceptance rules look at stretches of at least so many lines and verify rounds.
STRETCH_LINES = 2
STRETCH_ROUNDS = 80
# A decline is lasting and large from here on.
DECLINE_ROUNDS = 300
DECLINE_SHARE = 0.15
DECLINE_Z = 4.0
# A line whose round takes this many times the usual covers a pause too.
PAUSE = 3.0
_HOLE = 5.0
_SHORTEST_HOLE = 60.0
_MOST_STRETCHES = 50
_MOST_HOLES = 5
_HALF_DIGIT = 0.005
_FULL_RATE = 0.995

_COLUMNS = (
    "first",
    "last",
    "lines",
    "rounds",
    "weight",
    "weighted",
    "smallest",
    "largest",
    "running",
    "running_lines",
    "context",
    "context_lines",
    "usage",
    "usage_lines",
    "cached",
    "prefills",
    "step",
    "step_lines",
)


class Stats:
    """Sums over intervals: of a process, a server, a window. Two can be added.

    ``rounds`` counts what lines print themselves; ``open_lines`` are those that print none.
    """

    __slots__ = (
        "accepted",
        "cached",
        "ceiling",
        "context",
        "drafted",
        "first_line",
        "first_time",
        "histogram",
        "last_line",
        "last_time",
        "lines",
        "open_lines",
        "positions",
        "prefills",
        "rate",
        "rounds",
        "running",
        "running_range",
        "speeds",
        "usage",
        "weight",
        "weighted",
    )

    def __init__(self) -> None:
        self.lines = self.open_lines = self.ceiling = self.prefills = 0
        self.rounds = self.weight = self.weighted = self.accepted = self.drafted = self.cached = 0.0
        self.first_line, self.last_line = 0, 0
        self.first_time: str | None = None
        self.last_time: str | None = None
        self.histogram: Counter[float] = Counter()
        # [sum, lines] each; the rate as [weighted sum, weight]
        self.running, self.context, self.usage, self.rate = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
        self.running_range = [math.inf, -math.inf]
        # number of positions -> [weight, sum per position ...]
        self.positions: dict[int, list[float]] = {}
        # logarithm of the seconds a round takes -> [lines, tokens, seconds, slowest, fastest token/s]
        self.speeds: dict[int, list[float]] = {}

    def add(self, interval: Interval, length: float, weight: float, line: int, time: str | None) -> None:
        """Take one interval that has a length."""
        if not self.lines:
            self.first_line, self.first_time = line, time
        self.last_line, self.last_time = line, time
        self.lines += 1
        self.weight += weight
        self.weighted += weight * length
        self.histogram[round(length, 2)] += 1
        if interval.verifies is None:
            self.open_lines += 1
        else:
            self.rounds += interval.verifies / (interval.running or 1)
        for value, sums in (
            (interval.running, self.running),
            (interval.context, self.context),
            (interval.usage, self.usage),
        ):
            if value is not None:
                sums[0] += value
                sums[1] += 1
        if interval.running is not None:
            low, high = self.running_range
            self.running_range = [min(low, interval.running), max(high, interval.running)]
        if interval.rate is not None:
            self.rate[0] += weight * interval.rate
            self.rate[1] += weight
        self.accepted += interval.accepted or 0.0
        self.drafted += interval.drafted or 0.0
        if interval.positions:
            sums = self.positions.setdefault(len(interval.positions), [0.0] * (len(interval.positions) + 1))
            sums[0] += weight
            for at, value in enumerate(interval.positions, 1):
                sums[at] += weight * value
        self._speed(interval, length)

    def _speed(self, interval: Interval, length: float) -> None:
        step = seconds_per_round(interval)
        if interval.throughput is None:
            return
        # Lines that print no speed at all stand in a bucket of their own, above every other.
        bucket = 10**6 if step is None else round(8 * math.log(step))
        tokens = length * (interval.running or 1.0)
        seconds = tokens / interval.throughput if interval.throughput else 0.0
        found = self.speeds.setdefault(bucket, [0.0, 0.0, 0.0, math.inf, 0.0])
        found[0] += 1
        found[1] += tokens
        found[2] += seconds
        found[3] = min(found[3], interval.throughput)
        found[4] = max(found[4], interval.throughput)

    def merge(self, other: Stats) -> None:
        """Add another's sums to these."""
        if other.lines:
            if not self.lines or other.first_line < self.first_line:
                self.first_line, self.first_time = other.first_line, other.first_time
            if other.last_line > self.last_line:
                self.last_line, self.last_time = other.last_line, other.last_time
        for name in ("lines", "open_lines", "ceiling", "prefills", "rounds", "weight", "weighted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("accepted", "drafted", "cached"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.histogram.update(other.histogram)
        for name in ("running", "context", "usage", "rate"):
            mine, theirs = getattr(self, name), getattr(other, name)
            mine[0] += theirs[0]
            mine[1] += theirs[1]
        low, high = other.running_range
        self.running_range = [min(low, self.running_range[0]), max(high, self.running_range[1])]
        for count, sums in other.positions.items():
            mine = self.positions.setdefault(count, [0.0] * len(sums))
            for at, value in enumerate(sums):
                mine[at] += value
        for bucket, theirs in other.speeds.items():
            mine = self.speeds.setdefault(bucket, [0.0, 0.0, 0.0, math.inf, 0.0])
            for at in range(3):
                mine[at] += theirs[at]
            mine[3], mine[4] = min(mine[3], theirs[3]), max(mine[4], theirs[4])

    @property
    def mean(self) -> float | None:
        """Mean accept len, weighted by verifies."""
        return self.weighted / self.weight if self.weight else None

    @property
    def rate_mean(self) -> float | None:
        """Mean printed rate, weighted alike. Means nothing where definitions are mixed."""
        return self.rate[0] / self.rate[1] if self.rate[1] else None

    def quantile(self, share: float) -> float | None:
        """Return the accept len below which this share of the lines lies (the mean of the two middle ones for 0.5)."""
        if not self.lines:
            return None
        ordered = sorted(self.histogram.items())
        below, above = math.floor(share * (self.lines - 1)), math.ceil(share * (self.lines - 1))
        return (_nth(ordered, below) + _nth(ordered, above)) / 2

    def speed(self) -> Speed | None:
        """Return the throughput of the lines that cover no pause, None when none is printed."""
        known = sorted((bucket, sums) for bucket, sums in self.speeds.items() if bucket != 10**6)
        lines = sum(sums[0] for _, sums in known)
        if not lines:
            return None
        seen, usual = 0.0, known[0][0]
        for bucket, sums in known:
            seen += sums[0]
            if seen * 2 >= lines:
                usual = bucket
                break
        kept = [sums for bucket, sums in known if bucket <= usual + 8 * math.log(PAUSE)]
        left = lines - sum(sums[0] for sums in kept) + self.speeds.get(10**6, [0.0])[0]
        tokens, seconds = math.fsum(sums[1] for sums in kept), math.fsum(sums[2] for sums in kept)
        return Speed(tokens / seconds, min(sums[3] for sums in kept), max(sums[4] for sums in kept), int(left))


class Speed(NamedTuple):
    """Tokens per second: mean over time, slowest and fastest line, and how many lines were left out."""

    mean: float
    slowest: float
    fastest: float
    left_out: int


def seconds_per_round(interval: Interval) -> float | None:
    """Return running requests x accept len / throughput: how long one round took, in seconds."""
    if not interval.throughput or not interval.running or not interval.length:
        return None
    return interval.running * interval.length / interval.throughput


def _nth(ordered: Sequence[tuple[float, int]], at: int) -> float:
    seen = 0
    for value, count in ordered:
        seen += count
        if seen > at:
            return value
    return ordered[-1][0]


class Bins:
    """The lines of one process in order; beyond :data:`EXACT_LINES` each bin holds 2, 4, 8 ... of them.

    Every bin keeps the sums, the smallest and the largest length, so that no extreme is lost.
    """

    __slots__ = ("columns", "size", "times")

    def __init__(self) -> None:
        self.size = 1
        self.columns = {name: array("d") for name in _COLUMNS}
        self.times: list[str | None] = []

    def __len__(self) -> int:
        """Return the number of bins."""
        return len(self.times)

    def add(self, values: dict[str, float], time: str | None) -> None:
        """Take one line: a value per column."""
        columns = self.columns
        if self.times and columns["lines"][-1] < self.size:
            _join(columns, len(self.times) - 1, values)
            return
        if len(self.times) == EXACT_LINES:
            self._halve()
            self.add(values, time)
            return
        for name, column in columns.items():
            column.append(values[name])
        self.times.append(time)

    def _halve(self) -> None:
        columns = self.columns
        for name, column in columns.items():
            evens, odds = column[0::2], column[1::2]
            if name == "first":
                columns[name] = evens
            elif name == "last":
                columns[name] = odds
            elif name == "smallest":
                columns[name] = array("d", map(min, evens, odds))
            elif name == "largest":
                columns[name] = array("d", map(max, evens, odds))
            else:
                columns[name] = array("d", (a + b for a, b in zip(evens, odds, strict=True)))
        self.times = self.times[0::2]
        self.size *= 2

    def means(self) -> list[float]:
        """Return the weighted mean length of every bin."""
        pairs = zip(self.columns["weighted"], self.columns["weight"], strict=True)
        return [total / weight for total, weight in pairs]

    def total(self, name: str, start: int, stop: int) -> float:
        """Return the sum of a column over some bins."""
        return math.fsum(self.columns[name][start:stop])

    def mean(self, name: str, start: int, stop: int, lines: str) -> float | None:
        """Return a column's mean over some bins, None when it was never printed there."""
        count = self.total(lines, start, stop)
        return self.total(name, start, stop) / count if count else None


def _join(columns: dict[str, array[float]], at: int, values: dict[str, float]) -> None:
    for name, column in columns.items():
        if name == "first":
            continue
        if name == "last":
            column[at] = values[name]
        elif name == "smallest":
            column[at] = min(column[at], values[name])
        elif name == "largest":
            column[at] = max(column[at], values[name])
        else:
            column[at] += values[name]


@dataclass(slots=True)
class Stretch:
    """Consecutive lines of one process at an extreme. ``rounds`` is what its lines stand for."""

    first_line: int
    first_time: str | None
    last_line: int = 0
    lines: int = 0
    rounds: float = 0.0
    length: float = 0.0


class Stretches:
    """Collects the stretches in which every line is at an extreme; keeps the longest ones."""

    __slots__ = ("_kept", "_open")

    def __init__(self) -> None:
        self._open: Stretch | None = None
        self._kept: list[tuple[float, int, Stretch]] = []

    def add(self, inside: bool, line: int, time: str | None, rounds: float, length: float) -> None:
        """Take the next line of the process; ``inside`` says whether it is at the extreme."""
        if not inside:
            self._close()
            return
        if self._open is None:
            self._open = Stretch(line, time)
        stretch = self._open
        stretch.last_line, stretch.length = line, length
        stretch.lines += 1
        stretch.rounds += rounds

    def _close(self) -> None:
        if self._open is not None:
            heapq.heappush(self._kept, (self._open.rounds, -self._open.first_line, self._open))
            if len(self._kept) > _MOST_STRETCHES:
                heapq.heappop(self._kept)
            self._open = None

    def all(self) -> list[Stretch]:
        """Return the stretches in file order, one that has not ended included."""
        found = [stretch for _, _, stretch in self._kept]
        if self._open is not None:
            found.append(self._open)
        return sorted(found, key=lambda stretch: stretch.first_line)


class Hole(NamedTuple):
    """A time without lines of a process, longer than its usual distance."""

    seconds: float
    after_line: int
    before_line: int
    after_time: str | None
    before_time: str | None


@dataclass(frozen=True, slots=True)
class Level:
    """Lines over which accept len keeps its level; ``start`` and ``stop`` count the values of the series.

    The companions are means over its lines, ``cached`` cached prompt tokens a prefill, ``step`` seconds a round; None
    where they were never printed.
    """

    start: int
    stop: int
    first_line: int
    last_line: int
    time: str | None
    end_time: str | None
    lines: int
    rounds: float
    mean: float
    running: float | None = None
    context: float | None = None
    usage: float | None = None
    cached: float | None = None
    step: float | None = None


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


def decline(levels: Sequence[Level], values: Sequence[float]) -> Decline | None:
    """Return the fall from the highest level to the last one, None when the last is the highest or the only one."""
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
    trend = rank_trend(values[before.start :]) or 0.0
    lower = low[0] if low else levels[-1]
    apart = rank_difference(values[before.start : before.stop], values[lower.start :]) or 0.0
    return Decline(
        before=before,
        begin=levels[top + 1],
        after=levels[-1],
        low=low[0] if low else None,
        low_rounds=rounds,
        low_mean=mean,
        seen_before=any(level.mean <= 1.01 * mean for level in levels[:first_low]),
        trend_z=trend,
        levels_z=apart,
    )


class Series:
    """What one process (or one engine of it) reports in one segment, in file order.

    maximum
        the highest accept len its settings allow, None when unknown.
    bonus
        the accept len of a round in which no draft token is accepted.
    rounds_per_line
        decode_log_interval where the settings say it, else SGLang's default.
    """

    __slots__ = (
        "_gaps",
        "_growth",
        "_holes",
        "_last",
        "_last_interval",
        "_last_moment",
        "_last_running",
        "bins",
        "bonus",
        "ceiling",
        "floor",
        "maximum",
        "prefills_since",
        "rounds_per_line",
        "stats",
    )

    def __init__(self, rounds_per_line: int | None) -> None:
        self.rounds_per_line = rounds_per_line
        self.maximum: int | None = None
        self.bonus = 1
        self.stats = Stats()
        self.bins = Bins()
        self.floor, self.ceiling = Stretches(), Stretches()
        # cached prompt tokens and prefill lines since the last interval
        self.prefills_since = [0.0, 0]
        self._last_running: float | None = None
        self._last_interval: Interval | None = None
        self._last: tuple[int, str | None] = (0, None)
        self._last_moment: Moment | None = None
        self._gaps: Counter[int] = Counter()
        self._holes: list[Hole] = []
        self._growth: Counter[float] = Counter()

    def weigh(self, interval: Interval) -> float:
        """Return how many verifies an interval stands for.

        Exact where the line tells; else rounds x running requests, the mean of the numbers printed at both ends of the
        interval, since a line shows only the moment in which it was printed.
        """
        if interval.verifies is not None:
            return interval.verifies
        running = interval.running
        if running is None:
            running = 1.0
        elif self._last_running is not None:
            running = (running + self._last_running) / 2
        return (self.rounds_per_line or DEFAULT_ROUNDS) * (running or 1.0)

    def add(
        self,
        interval: Interval,
        weight: float,
        line: int,
        time: str | None,
        moment: Moment | None,
        *,
        drafting: bool = True,
    ) -> None:
        """Take one interval that has a length, with its weight; one without drafts says nothing of acceptance."""
        length = interval.length or 0.0
        rounds = self.rounds_of(interval)
        full = self.at_ceiling(interval)
        stats = self.stats
        stats.add(interval, length, weight, line, time)
        stats.ceiling += full
        stats.cached += self.prefills_since[0]
        stats.prefills += int(self.prefills_since[1])
        self.floor.add(drafting and length <= self.bonus + _HALF_DIGIT, line, time, rounds, length)
        self.ceiling.add(full, line, time, rounds, length)
        step = seconds_per_round(interval)
        if drafting:
            self._bin(interval, weight, line, time, rounds, step)
        self._grow(interval)
        self._gap(line, time, moment)
        self._last_running = interval.running
        self._last_interval = interval
        self.prefills_since = [0.0, 0]

    def _bin(
        self, interval: Interval, weight: float, line: int, time: str | None, rounds: float, step: float | None
    ) -> None:
        length = interval.length or 0.0
        self.bins.add(
            {
                "first": line,
                "last": line,
                "lines": 1,
                "rounds": rounds,
                "weight": weight,
                "weighted": weight * length,
                "smallest": length,
                "largest": length,
                "running": interval.running or 0.0,
                "running_lines": interval.running is not None,
                "context": interval.context or 0.0,
                "context_lines": interval.context is not None,
                "usage": interval.usage or 0.0,
                "usage_lines": interval.usage is not None,
                "cached": self.prefills_since[0],
                "prefills": self.prefills_since[1],
                "step": step or 0.0,
                "step_lines": step is not None,
            },
            time,
        )

    def rounds_of(self, interval: Interval) -> float:
        """Return the verify rounds of one interval: what it prints, else the log interval."""
        if interval.verifies is not None:
            return interval.verifies / (interval.running or 1)
        return float(self.rounds_per_line or DEFAULT_ROUNDS)

    def at_ceiling(self, interval: Interval) -> bool:
        """Tell whether everything that could be accepted was; a rate of 1.00 means that under every definition."""
        if interval.rate is not None and interval.rate >= _FULL_RATE:
            return True
        limit = interval.draft_tokens + 1 if interval.draft_tokens is not None else self.maximum
        return limit is not None and limit > 1 and (interval.length or 0.0) >= limit - _HALF_DIGIT - 1e-9

    def _grow(self, interval: Interval) -> None:
        """Estimate the rounds of a line from the growth of the cache, where nothing else changed it."""
        last = self._last_interval
        if (
            last is None
            or interval.verifies is not None
            or self.prefills_since[1]
            or not interval.running
            or interval.running != last.running
            or interval.context is None
            or last.context is None
            or interval.context <= last.context
        ):
            return
        self._growth[round((interval.context - last.context) / (interval.running * (interval.length or 1)), 1)] += 1

    def growth(self) -> float | None:
        """Return the rounds of a line as the cache's growth shows them; None for fewer than 3 or scattered values."""
        count = sum(self._growth.values())
        if count < 3:
            return None
        ordered = sorted(self._growth.items())
        low, middle, high = (_nth(ordered, int(share * (count - 1))) for share in (0.1, 0.5, 0.9))
        return middle if high - low <= 0.15 * middle else None

    def _gap(self, line: int, time: str | None, moment: Moment | None) -> None:
        last, self._last_moment = self._last_moment, moment
        (last_line, last_time), self._last = self._last, (line, time)
        if last is None or moment is None or last.kind != moment.kind or moment.seconds <= last.seconds:
            return
        gap = moment.seconds - last.seconds
        self._gaps[round(16 * math.log(gap))] += 1
        heapq.heappush(self._holes, Hole(gap, last_line, line, last_time, time))
        if len(self._holes) > _MOST_HOLES:
            heapq.heappop(self._holes)

    def holes(self) -> list[Hole]:
        """Return the longest times without lines that are far above the usual distance, in file order."""
        count = sum(self._gaps.values())
        if count < 3:
            return []
        usual = math.exp(_nth(sorted(self._gaps.items()), count // 2) / 16)
        limit = max(_SHORTEST_HOLE, _HOLE * usual)
        return sorted((hole for hole in self._holes if hole.seconds >= limit), key=lambda hole: hole.after_line)

    @property
    def rounds(self) -> float:
        """The verify rounds its lines stand for."""
        return self.stats.rounds + self.stats.open_lines * (self.rounds_per_line or DEFAULT_ROUNDS)

    def long(self, stretches: Stretches) -> list[Stretch]:
        """Return the stretches an acceptance rule looks at: 2 lines and 80 rounds, or every line of a shorter run."""
        whole = self.rounds < STRETCH_ROUNDS
        return [
            stretch
            for stretch in stretches.all()
            if (stretch.lines >= STRETCH_LINES and stretch.rounds >= STRETCH_ROUNDS)
            or (whole and stretch.lines == self.stats.lines)
        ]

    def levels(self) -> list[Level]:
        """Return the levels of accept len in order, one when it never changes, none where nothing was drafted."""
        bins = self.bins
        values = bins.means()
        if not values:
            return []
        starts = level_starts(values)
        out = []
        for start, stop in zip(starts, [*starts[1:], len(values)], strict=True):
            out.append(
                Level(
                    start=start,
                    stop=stop,
                    first_line=int(bins.columns["first"][start]),
                    last_line=int(bins.columns["last"][stop - 1]),
                    time=bins.times[start],
                    end_time=bins.times[stop - 1],
                    lines=int(bins.total("lines", start, stop)),
                    rounds=bins.total("rounds", start, stop),
                    mean=bins.total("weighted", start, stop) / bins.total("weight", start, stop),
                    running=bins.mean("running", start, stop, "running_lines"),
                    context=bins.mean("context", start, stop, "context_lines"),
                    usage=bins.mean("usage", start, stop, "usage_lines"),
                    cached=bins.mean("cached", start, stop, "prefills"),
                    step=bins.mean("step", start, stop, "step_lines"),
                )
            )
        return out

    def decline(self, levels: Sequence[Level] | None = None) -> Decline | None:
        """Return the fall of accept len to the end of the series, None when there is none.

        ``levels`` are its own, from a caller who has asked for them already.
        """
        return decline(self.levels() if levels is None else levels, self.bins.means())
