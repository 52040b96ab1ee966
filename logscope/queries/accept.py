"""``logscope accept``: what was accepted, since when, and beside what.

This module is responsible for collecting the statistics lines of every process, in flat memory. It must not know how a
line is read (intervals.py), how numbers are added up (series.py), or how the answer is worded (acceptance.py).
``summarize`` and the rules of ``check`` use the same fold: :meth:`Accept.summary_rows`, :meth:`Accept.all_series`,
:meth:`Accept.verdicts`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

from logscope.errors import UsageError
from logscope.model import ForwardPass, Place, Segment
from logscope.queries.acceptance import NAMED, Answer, Key, Places, Server, Total
from logscope.queries.clock import Clock, Moment, server_label, writer_label
from logscope.queries.intervals import Interval, bonus_of, cumulative, number, read, share
from logscope.queries.rates import RateRanges, Verdict
from logscope.queries.series import Series, Stats

if TYPE_CHECKING:
    from collections.abc import Callable

    from logscope.model import ServerEvent
    from logscope.report import Context, Item, Report

By: TypeAlias = Literal["rank", "segment", "engine"]
BY: tuple[By, ...] = ("rank", "segment", "engine")

# A process prints a moment late: only a larger step back of another process of its server is one.
_LATE = 2.0
_WINDOW = re.compile(r"(\d+)([smhd]?)")
_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Window(NamedTuple):
    """A window of so many seconds, or of so many lines of one process; exactly one is set."""

    seconds: int | None = None
    lines: int | None = None


def parse_window(text: str) -> Window:
    """Return the window a user typed: ``30s``, ``5m``, ``2h``, ``1d``, or a bare number of lines.

    Raises
    ------
    UsageError
        when it is neither, or zero.

    """
    found = _WINDOW.fullmatch(text.strip())
    if found is None or int(found[1]) == 0:
        raise UsageError(
            f"'{text}' is no window",
            why="a window is a time such as 30s, 5m, 2h, 1d, or a number of lines",
            help="for example --window 5m, or --window 100 for a hundred lines of each process",
        )
    if found[2]:
        return Window(seconds=int(found[1]) * _UNIT[found[2]])
    return Window(lines=int(found[1]))


@dataclass(slots=True)
class _Engine:
    """An engine line of vLLM that waits for the metrics line behind it."""

    name: str
    running: float | None
    usage: float | None
    throughput: float | None
    used: bool = False


@dataclass(slots=True)
class _File:
    """What is followed per file: its clock, and the last time of every server and process."""

    clock: Clock
    servers: dict[str, Moment] = field(default_factory=dict)
    writers: dict[str, Moment] = field(default_factory=dict)


class Accept:
    """The fold behind ``logscope accept``.

    by
        one row per process (``rank``, the default), per server (``segment``: its ranks together), or per vLLM engine.
    window
        also per window of time or of lines, see :func:`parse_window`.
    min
        a finding for every row whose mean accept len is below it.
    below, above
        count the lines with an accept len below, an accept rate above these.
    year
        the year of the first time that prints none.

    Lines that a server prints before it says that it is ready belong to its warm-up and are left out.

    Raises
    ------
    UsageError
        a window or a grouping there is not.

    """

    kind: ClassVar[str] = "accept"

    def __init__(
        self,
        *,
        by: By | None = None,
        window: Window | str | None = None,
        min: float | None = None,  # noqa: A002 - the option's name
        below: float | None = None,
        above: float | None = None,
        year: int | None = None,
    ) -> None:
        self.by: By = by or "rank"
        if self.by not in BY:
            raise UsageError(f"'{by}' is no way to group", why=f"one row can stand for each {' or '.join(BY)}")
        self.window = parse_window(window) if isinstance(window, str) else window
        self.minimum = min
        self.below, self.above = below, above
        self.rates: dict[Server, RateRanges] = {}
        self.year = year
        self.segments: dict[tuple[str, int], Segment] = {}
        self.series: dict[Key, Series] = {}
        # The draft steps of a process since its last line that changes them.
        self._steps: dict[Key, int] = {}
        self._keys: dict[tuple[Any, ...], Key] = {}
        self.windows: dict[tuple[Key, Any], Stats] = {}
        self.files: dict[str, _File] = {}
        self._engines: dict[tuple[Any, ...], _Engine] = {}
        self._engine_names: dict[tuple[Any, ...], set[str]] = {}
        self.totals: dict[Key, Total] = {}
        self.verifies: dict[tuple[str, int], int] = {}
        self.fields: dict[str, int] = {}
        self.graphs: dict[str, dict[str, int]] = {}
        self.readings: dict[str, Places] = {}
        self.violations: list[dict[str, Any]] = []
        # where the cache is first full, the share of it in use, and the requests that wait
        self.full: tuple[Place, float, float | None] | None = None
        self.counts: dict[str, Places] = {}
        self.warnings: dict[tuple[str, int, str], Places] = {}
        self.warners: dict[tuple[str, int, str], set[str]] = {}
        self.repeated = 0

    # ------------------------------------------------------------------------------------------------------ the fold

    def see(self, item: Item) -> None:
        """Take one item."""
        if isinstance(item, Segment):
            self.segments[item.file, item.number] = item
            return
        if isinstance(item, ForwardPass):
            if item.phase == "verify" and item.during != "graph_capture":
                key = (item.file, item.segment)
                self.verifies[key] = self.verifies.get(key, 0) + 1
            return
        handle = self._HANDLERS.get(item.payload.event)
        if handle is not None:
            handle(self, item)

    def _usable(self, item: ServerEvent) -> bool:
        """Tell whether a statistics line counts; count those that do not."""
        if not item.payload.usable:
            self._note("damaged", item)
            return False
        return True

    def _note(self, what: str, item: ServerEvent) -> None:
        self.counts.setdefault(what, Places()).add(item.file, item.line)

    def _moment(self, item: ServerEvent) -> Moment | None:
        """Return when a line was printed, and count it when that is earlier than the line before it."""
        file = self.files.get(item.file)
        if file is None:
            file = self.files[item.file] = _File(Clock(self.year))
        prefix = item.prefix
        moment = file.clock.read(prefix.time, item.line)
        if moment is None:
            return None
        key = self._key(item)
        last = file.servers.get(key.server, moment)
        own = file.writers.get(key.origin, moment)
        if (last.kind == moment.kind and last.seconds - moment.seconds > _LATE) or (
            own.kind == moment.kind and own.seconds > moment.seconds
        ):
            self._note("out of order", item)
        file.servers[key.server] = moment
        file.writers[key.origin] = moment
        if moment.kind != "dated":
            self._note(moment.kind, item)
        return moment

    def _shown(self, item: ServerEvent) -> str | None:
        return self.files[item.file].clock.shown(item.prefix.time)

    def _key(self, item: ServerEvent, engine: str | None = None) -> Key:
        prefix = item.prefix
        quick = (item.file, item.segment, prefix.writer, prefix.extra, engine)
        key = self._keys.get(quick)
        if key is None:
            label = writer_label(prefix)
            key = self._keys[quick] = Key(item.file, item.segment, server_label(prefix), label, engine)
        return key

    def _one(self, key: Key) -> Series:
        series = self.series.get(key)
        if series is None:
            segment = self.segments.get((key.file, key.segment))
            series = self.series[key] = Series(segment.decode_log_interval if segment else None)
            series.maximum, series.bonus = highest(segment), bonus_of(segment)
        return series

    def _interval(self, item: ServerEvent) -> None:
        """Take a line that reports one interval."""
        interval = read(item.payload)
        if interval is None or not self._usable(item):
            return
        moment = self._moment(item)
        self._repeats(item)
        sglang = item.payload.event == "decode_stats"
        engine = None if sglang else self._engine(item, interval)
        key = self._key(item, engine)
        if sglang:
            self._decode_fields(item, interval)
        else:
            self._drafts(item, interval)
        if interval.length is None:
            if interval.no_drafts:
                self._note("no drafts", item)
            elif item.payload.intact == "whole":
                self._note("without accept len", item)
            return
        series = self._one(key)
        weight = series.weigh(interval)
        time = self._shown(item)
        drafting = self._drafting(item, key)
        if not drafting:
            self._note("drafting off", item)
        series.add(interval, weight, item.line, time, moment, drafting=drafting)
        if interval.rate is not None:
            ranges = self.rates.setdefault(Server(*key[:3]), RateRanges(series.bonus))
            ranges.add(item.line, interval.length, interval.rate, weight)
            if self.above is not None and interval.rate > self.above:
                self._note("above", item)
        if self.below is not None and interval.length < self.below:
            self._note("below", item)
        if self.window is not None:
            at = self._window_of(series, moment)
            stats = self.windows.setdefault((key, at), Stats())
            stats.add(interval, interval.length, weight, item.line, time)
            stats.ceiling += series.at_ceiling(interval)

    def _window_of(self, series: Series, moment: Moment | None) -> Any:
        """Return which window a line just added falls into."""
        if self.window is None:
            return None
        if self.window.lines is not None:
            return (series.stats.lines - 1) // self.window.lines
        return None if moment is None else (moment.kind, int(moment.seconds // (self.window.seconds or 1)))

    def _decode_fields(self, item: ServerEvent, interval: Interval) -> None:
        """Note what a decode line prints besides the known fields, and a cache that is full."""
        fields = item.payload.fields
        for name, value in fields.items():
            if name in _KNOWN:
                continue
            if name.endswith("graph"):
                kinds = self.graphs.setdefault(name.replace("_", " "), {})
                kinds[str(value)] = kinds.get(str(value), 0) + 1
            elif name in self.fields or len(self.fields) < 200:
                self.fields[name] = self.fields.get(name, 0) + 1
        if interval.usage is not None and interval.usage >= 0.995 and self.full is None:
            self.full = (item.place, interval.usage, number(fields.get("queue_req")))

    def _drafts(self, item: ServerEvent, interval: Interval) -> None:
        """Note what a line that counts draft tokens says about itself."""
        if interval.without_bonus:
            self._note("without bonus", item)
        if interval.reading is not None:
            self.readings.setdefault(interval.reading, Places()).add(item.file, item.line)
        if interval.violations:
            self._note("violations", item)
        for violation in interval.violations:
            if len(self.violations) < NAMED:
                self.violations.append({"where": str(item.place), "violation": violation})

    def _repeats(self, item: ServerEvent) -> None:
        times = number(item.payload.fields.get("repeated"))
        if times:
            self._note("repeated", item)
            self.repeated += int(times)

    def _engine(self, item: ServerEvent, interval: Interval) -> str | None:
        """Return the engine of a metrics line: the one of the engine line before it in the same process.

        An engine line speaks for one metrics line; further ones keep it only where the process has a single engine.
        """
        writer = (item.file, item.segment, item.prefix.writer)
        engine = self._engines.get(writer)
        if engine is None or (engine.used and len(self._engine_names[writer]) > 1):
            return None
        if not engine.used:
            interval.usage, interval.throughput = engine.usage, engine.throughput
            # vLLM prints what runs at the moment of printing; drafts are counted over the interval.
            interval.running = engine.running
        engine.used = True
        return engine.name

    def _engine_line(self, item: ServerEvent) -> None:
        name = item.payload.fields.get("engine")
        if name is None or not self._usable(item):
            return
        fields = item.payload.fields
        writer = (item.file, item.segment, item.prefix.writer)
        self._moment(item)
        self._engine_names.setdefault(writer, set()).add(str(name))
        self._engines[writer] = _Engine(
            str(name),
            number(fields.get("running")),
            share(fields, "kv_cache_usage"),
            number(fields.get("avg_generation_throughput")),
        )

    def _prefill(self, item: ServerEvent) -> None:
        """Remember the cached tokens of a prefill for the interval in which it lies."""
        if not self._usable(item):
            return
        self._moment(item)
        self._repeats(item)
        cached = number(item.payload.fields.get("cached_token"))
        key = self._key(item)
        if cached is not None and key in self.series:
            since = self.series[key].prefills_since
            since[0] += cached
            since[1] += 1

    def _cumulative(self, item: ServerEvent) -> None:
        if not self._usable(item):
            return
        self._moment(item)
        found = cumulative(item.payload)
        total = self.totals.get(self._key(item))
        if total is None:
            self.totals[self._key(item)] = Total(found, item.line, found, item.line)
        else:
            total.last, total.last_line = found, item.line
            total.lines += 1

    def _ready(self, item: ServerEvent) -> None:
        """Forget what this server printed before it was ready: it was the warm-up.

        Whether a line is of the warm-up cannot be told when it is read, since a log need not have a ready line.
        """
        server = Server(item.file, item.segment, server_label(item.prefix))
        for key in [key for key in self.series if Server(*key[:3]) == server]:
            stats = self.series.pop(key).stats
            self.counts.setdefault("of the warm-up", Places()).add(key.file, stats.first_line, stats.lines)
        self.rates.pop(server, None)
        for key, at in [found for found in self.windows if Server(*found[0][:3]) == server]:
            del self.windows[key, at]

    def _warning(self, item: ServerEvent) -> None:
        key = (item.file, item.segment, item.payload.event)
        self.warnings.setdefault(key, Places()).add(item.file, item.line)
        self.warners.setdefault(key, set()).add(writer_label(item.prefix))

    def _switch(self, item: ServerEvent) -> None:
        self._note("switches", item)
        steps = item.payload.fields.get("steps_to")
        if isinstance(steps, int):
            self._steps[self._key(item)] = steps

    def _drafting(self, item: ServerEvent, key: Key) -> bool:
        """Tell whether anything was drafted: a server may verify one token a request, whose length is always 1.00."""
        segment = self.segments.get((item.file, item.segment))
        settled = segment.server_args if segment is not None else {}
        return self._steps.get(key, settled.get("speculative_num_steps")) != 0

    def _retract(self, item: ServerEvent) -> None:
        self._note("retractions", item)

    _HANDLERS: ClassVar[dict[str, Callable[[Accept, ServerEvent], None]]] = {
        "decode_stats": _interval,
        "spec_metrics": _interval,
        "trtllm_iteration": _interval,
        "llamacpp_acceptance": _interval,
        "spec_metrics_cumulative": _cumulative,
        "engine_stats": _engine_line,
        "prefill_stats": _prefill,
        "nan_logits_warning": _warning,
        "invalid_tree_warning": _warning,
        "adaptive_switch": _switch,
        "retract": _retract,
        "ready": _ready,
    }

    # ------------------------------------------------------------------------------------------------ for the rules

    def all_series(self) -> list[tuple[Key, Series]]:
        """Return every process (and engine) with its series, in the order of the log."""
        return list(self.series.items())

    def verdicts(self, server: Server) -> list[Verdict]:
        """Return the definition of accept rate in each range of lines of a server, in file order."""
        segment = self.segments.get((server.file, server.segment))
        steps = segment.num_steps if segment else None
        tokens = segment.num_draft_tokens if segment else None
        ranges = self.rates[server].ranges if server in self.rates else []
        return [found.decide(steps, tokens) for found in ranges]

    def definition(self, server: Server, stats: Stats) -> tuple[str | None, str | None]:
        """Return the definition and formula that hold over some lines of a server, ``mixed`` for several."""
        ranges = self.rates.get(server)
        if ranges is None or not stats.rate[1]:
            return None, None
        here = {
            (verdict.definition, verdict.rule)
            for found, verdict in zip(ranges.ranges, self.verdicts(server), strict=True)
            if found.first_line <= stats.last_line and found.last_line >= stats.first_line
        }
        names = {name for name, _ in here}
        rules = sorted(rule for _, rule in here)
        # One letter with several formulas is one definition only where the bonus token is left out (N changed).
        name = names.pop() if len(here) == 1 or names == {"C"} else "mixed"
        return name, ", ".join(rules[:4]) + (", ..." if len(rules) > 4 else "")

    def summary_rows(self) -> list[dict[str, Any]]:
        """Return the rows of summarize's ``accept`` table: one per segment and process (and engine)."""
        rows = []
        for key, series in self.series.items():
            stats = series.stats
            rows.append(
                {
                    "file": key.file,
                    "segment": key.segment,
                    "origin": key.name,
                    "lines": stats.lines,
                    "accept_len_mean": None if stats.mean is None else round(stats.mean, 4),
                    "min": stats.quantile(0),
                    "max": stats.quantile(1),
                    "rate_definition": self.definition(Server(*key[:3]), stats)[0],
                }
            )
        return rows

    def report(self, context: Context) -> Report:
        """Answer."""
        return Answer(self).report(context)


_KNOWN = frozenset(
    {
        "running_req",
        "token",
        "token_usage",
        "accept_len",
        "accept_rate",
        "gen_throughput",
        "queue_req",
        "units",
        "iter",
        "repeated",
        "spec tokens",
        "spec rounds",
    }
)


def highest(segment: Segment | None) -> int | None:
    """Return the highest accept len a segment's settings allow: all steps accepted, and what comes for nothing."""
    if segment is None:
        return None
    known = [segment.num_draft_tokens, None if segment.num_steps is None else segment.num_steps + 1]
    values = [value for value in known if value is not None]
    return min(values) + bonus_of(segment) - 1 if values else None
