"""``logscope accept``: what was accepted, since when, and beside what, in words and tables.

This module is responsible for the question and its report. It must not know records or how lines are read (lines.py),
nor how a report is shown.
"""

from __future__ import annotations

import re
from itertools import groupby, pairwise
from statistics import median_low
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

import polars as pl

from logscope.errors import UsageError
from logscope.model import Finding, Place
from logscope.queries.acceptance.lines import (
    DEFAULT_ROUNDS,
    EXACT_LINES,
    WHO,
    Key,
    Lines,
    Places,
    Server,
    Switches,
    gather,
)
from logscope.queries.acceptance.series import DECLINE_ROUNDS, Acceptance, Decline, Level, Series, Stats, Stretch
from logscope.queries.clock import Clock
from logscope.queries.tables import add, columns, table, without_empty
from logscope.queries.words import and_list, count, rounded, span
from logscope.report import Chart, Line, Mark, Report

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logscope.report import Context
    from logscope.tables.tables import Tables

By: TypeAlias = Literal["rank", "segment", "engine"]
BY: tuple[By, ...] = ("rank", "segment", "engine")
# Points of the chart, in JSON and on the screen.
_POINTS, _SHOWN = 60, 40
# So much lower is a level a dip, or a process apart from the others; levels before, in and after a dip.
_APART, _DIP_LEVELS = 0.15, 3
# What moves by less goes together with nothing.
_MOVED = 0.1
# Servers that are named one by one on the screen.
# So many servers make an odd one out; so many processes that accept less are named in the headline.
_SERVERS, _NAMED = 3, 3
_FEW = 8
_WINDOW = re.compile(r"(\d+)([smhd]?)")
_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_WHO = "file segment=run> origin engine "
_ACCEPT = columns(
    f"{_WHO} window lines> rounds> accept_len_mean=accept_len!> min!> median> max!> at_ceiling=at_max> "
    "rate_definition=rate! rate_rule=formula accept_rate_mean=accept_rate> accepted> drafted> running> "
    "context=cached_tokens> token_usage> cached_per_prefill=cached> throughput>token/s chart=accept_len_over_time~"
)
_RATES = columns(
    f"{_WHO} definition! rule! draft_tokens=N> first_line!> last_line!> lines> accept_rate_mean=accept_rate> min> max> "
    "unexplained>"
)
_LEVELS = columns(
    f"{_WHO} level> lines> rounds> accept_len_mean=accept_len!> change_percent=change>% first_line=from_line!> from! "
    "running> context=cached_tokens> token_usage> cached_per_prefill=cached> seconds_per_round=round>s"
)
_POSITIONS = columns(
    f"{_WHO} draft_tokens=k> drafts> positions=accepted_at_position_1,_2,_...! reached=of_those_that_got_there"
)
_CUMULATIVE = columns(
    f"{_WHO} lines> draft_tokens=k> tokens_per_verify!> rate> system_efficiency> accepted> drafted> emitted> "
    "accepted_since_first> drafted_since_first>"
)
# What is said of lines that are counted under a name.
_REMARKS = {
    "no drafts": "without drafts: neither zero acceptance nor full",
    "without verifies": "without verifies: neither zero acceptance nor full",
    "without accept len": "without accept len: what a line does not print is not counted",
    "drafting off": "with drafting switched off: an accept len of 1.00 is all there can be there",
    "without bonus": "whose length leaves the bonus token out (older vLLM): 1 is added",
    "damaged": "with damage, in no statistic",
    "of the warm-up": "of the warm-up, left out",
    "violations": "with numbers that contradict each other",
    "of a request": "of llama.cpp, each of one request from its start to its end",
    "out of order": "where time goes back: lines are taken in file order",
}
# What may move together with accept len: a level's attribute, its name, its form.
_COMPANIONS = (
    ("running", "running requests", "g"), ("context", "tokens in the cache", ",.0f"), ("usage", "token usage", ".2f"),
    ("cached", "cached tokens a prefill", ",.0f"),
)  # fmt: skip


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
    return Window(seconds=int(found[1]) * _UNIT[found[2]]) if found[2] else Window(lines=int(found[1]))


class Accept:
    """The question behind ``logscope accept``.

    by
        one row per process (``rank``, the default), per server (``segment``: its ranks together), or per vLLM engine.
    window
        also per window of time or of lines, see :func:`parse_window`.
    min
        a finding for every row whose mean accept len is below it, worst first.
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
        self.year = year

    def partial(self, tables: Tables) -> Lines:
        """Return what a batch says of acceptance."""
        found = gather(tables, self.below, self.above)
        found.year = self.year
        return found

    def combine(self, parts: Sequence[Lines]) -> Lines:
        """Add parts up, in order."""
        whole = Lines()
        for part in parts:
            whole.merge(part)
        return whole

    def report(self, part: Lines, context: Context) -> Report:
        """Answer."""
        return _Answer(self, Acceptance(self.combine([part])), context).answer()


class _Answer:
    """Puts settled lines into a report."""

    def __init__(self, asked: Accept, found: Acceptance, context: Context) -> None:
        self.asked, self.found, self.context = asked, found, context
        self.lines, self.series, self.counts = found.lines, found.series, found.lines.counts
        # Those with a length: a line may print counts alone.
        self.lengths = {key: one for key, one in self.series.items() if one.stats.mean is not None}
        self.apart = dict(self._apart())
        self.report = Report(asked.kind, self._headline(), accounting=context.accounting)
        self.notes = self.report.notes

    def answer(self) -> Report:
        """Answer."""
        report = self.report
        self.notes += self.context.warnings
        rows = list(self._rows())
        report.tables["accept"] = table(without_empty(_ACCEPT, rows), rows, title="acceptance")
        self._gate(rows)
        self._definitions()
        self._movement()
        for key, words in self.apart.items():
            place = Place(key.file, self.series[key].stats.first_line)
            self.notes.append(
                f"{words}, from {place} on, in nine of ten lines: other requests, or a fault of that process alone"
            )
        self._extremes()
        self._positions()
        self._cumulative()
        self._weights()
        self._remarks()
        self._facts()
        if report.findings:
            report.verdict = "findings"
        elif not self.series:
            report.verdict = "unknown"
        self._screen(rows)
        return report

    # --------------------------------------------------------------------------------------------------------- the rows

    def _rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of the table: one a process (or what is asked for) and window, in the order of the log."""
        if not self.series:
            return
        rows = pl.concat([one.stats.rows for one in self.series.values()]).filter(pl.col("lines") > 0)
        who, window = list(WHO), self.asked.window
        at: pl.Expr = pl.lit(0)
        if window is not None and window.lines is not None:
            at = ((pl.col("lines").cum_sum().over(who) - 1) // window.lines).cast(pl.Int32)
        elif window is not None:
            at = pl.struct("kind", (pl.col("seconds") // (window.seconds or 1)).alias("at"))
        rows = rows.with_columns(window=at, row=pl.struct(who))
        if self.asked.by != "rank":
            engine = pl.col("engine") if self.asked.by == "engine" else pl.lit(None, pl.String)
            rows = rows.with_columns(origin="server", engine=engine)
        order = {who: at for at, who in enumerate(rows.select(who).unique(maintain_order=True).iter_rows())}
        parts = rows.group_by(*who, "window", maintain_order=True)
        made = [
            (Key(*key[:-1]), Stats(part.drop("window", "row")), part["row"].unique().to_list()) for key, part in parts
        ]
        for key, stats, members in sorted(made, key=lambda one: (order[one[0]], one[1].first_line)):
            yield self._row(key, stats, [self.series[Key(**member)] for member in members])

    def _row(self, key: Key, stats: Stats, members: Sequence[Series]) -> dict[str, Any]:
        definition, rule = self.found.definition(Server(*key[:3]), stats)
        one = definition is not None and definition != "mixed" and "," not in (rule or "")
        sums, speed, window = stats.sums, stats.speed(), self.asked.window
        alone = len(members) == 1 and window is None
        quantiles = {"min": 0, "p10": 0.1, "median": 0.5, "p90": 0.9, "max": 1}
        return {
            **key.who,
            "engine_evidence": None if key.engine is None else "inferred from the engine line before",
            "window": None if window is None else str(stats.first_time or f"line {stats.first_line}"),
            "lines": stats.lines, "rounds": round(sums["rounds"]), "verifies": round(sums["weight"]),
            "accept_len_mean": rounded(stats.mean, 4),
            **{name: rounded(stats.quantile(at), 4 if at in (0, 1) else 3) for name, at in quantiles.items()},
            "at_ceiling": stats.ceiling, "maximum": members[0].maximum,
            "rate_definition": definition, "rate_rule": rule,
            "accept_rate_mean": rounded(stats.rate, 4) if one else None,
            **{name: round(sums[name]) if sums["drafted"] else None for name in ("accepted", "drafted")},
            **_companions(stats),
            "throughput": rounded(speed.mean, 2) if speed else None,
            "throughput_min": speed and speed.slowest, "throughput_max": speed and speed.fastest,
            "pauses": speed and speed.left_out, "first_line": stats.first_line, "last_line": stats.last_line,
            "from": stats.first_time, "to": stats.last_time,
            "chart": [point["accept_len"] for point in members[0].points(_POINTS)] if alone else None,
        }  # fmt: skip

    # -------------------------------------------------------------------------------------------------------- sentences

    def _headline(self) -> str:
        """Say the answer in one sentence; several servers are never averaged."""
        if not self.lengths:
            return self._without_length()
        servers, engines = {key[:3] for key in self.lengths}, {(*key[:3], key.engine) for key in self.lengths}
        processes = len(self.lengths)
        if len(engines) == 1:
            stats = self._together()
            text = f"accept len {stats.mean or 0:.2f} over {count(stats.lines, 'line')}"
            text += f" of {count(processes, 'process', 'processes')}" if processes > 1 else ""
        else:
            what = "run" if len({server[2] for server in servers}) == 1 else "server"
            across = count(len(engines), "engine") if len(servers) == 1 else count(len(servers), what)
            means = [series.stats.mean or 0.0 for series in self.lengths.values()]
            text = f"accept len {span(min(means), max(means), '.2f')} across {across}"
        declines = [(key, one.decline) for key, one in self.lengths.items() if one.decline and one.decline.lasting]
        if declines:
            return f"{text}; it falls {_fall_words(*min(declines, key=lambda each: each[1].change))}"
        series = self.lengths.values()
        if all(one.stats.sums["floor"] == one.stats.sums["lengths"] for one in series):
            text += ": nothing is accepted"
        elif all(one.stats.ceiling * 2 > one.stats.lines for one in series):
            text += ": at its maximum in most lines, which is suspicious rather than good"
        apart = list(self.apart.values())
        more = [f"{len(apart) - _NAMED} more accept less"] if len(apart) > _NAMED else []
        return "; ".join([text, *apart[:_NAMED], *more])

    def _without_length(self) -> str:
        """Say why there is no accept len."""
        none, counts = "no line reports accept len", self.counts
        if self.series:
            sums = [one.stats.sums for one in self.series.values()]
            accepted, drafted = (round(sum(one[name] for one in sums)) for name in ("accepted", "drafted"))
            return f"{none}: {accepted:,} of {drafted:,} draft tokens accepted without it, no verifies to divide by"
        if without := counts.get("without accept len"):
            return f"{none}: {count(without.count, 'decode line')} without it (speculation is off, or not reported)"
        if self.lines.totals:
            printing = count(len(self.lines.totals), "process", "processes")
            return f"only cumulative acceptance is printed, by {printing}"
        idle = counts.get("without verifies") or counts.get("no drafts")
        return "no line reports acceptance" + (f": {count(idle.count, 'line')} without verifies" if idle else "")

    def _together(self) -> Stats:
        return Stats(pl.concat([one.stats.rows for one in self.lengths.values()]))

    def _apart(self) -> Iterator[tuple[Key, str]]:
        """Yield the processes that accept clearly less than all others of their server, or of three and more, in words.

        Nine of ten of their lines lie below nine of ten of most others, and they are no more than the others: then
        nothing would say which of the two is the odd one.
        """
        servers: dict[Any, list[tuple[float, Key, Stats]]] = {}
        for key, series in self.lengths.items():
            if series.rounds >= DECLINE_ROUNDS:
                servers.setdefault(key[:3], []).append((series.stats.mean or 0.0, key, series.stats))
        if len(servers) >= _SERVERS:
            servers[None] = [one for found in servers.values() for one in found]
        for server, found in servers.items():
            found.sort(key=lambda one: one[0])
            for number in range(len(found) // 2, 0, -1):
                few, rest = found[:number], found[number:]
                top = max(stats.quantile(0.9) or 0.0 for _, _, stats in few)
                bottom = median_low(stats.quantile(0.1) or 0.0 for _, _, stats in rest)
                if top < bottom and few[-1][0] <= (1 - _APART) * median_low(mean for mean, *_ in rest):
                    others = span(rest[0][0], rest[-1][0], ".2f")
                    for mean, key, _ in few:
                        name = key.name if server is not None else self._named(key)
                        yield key, f"{name} accepts less, {mean:.2f} against {others}"
                    break

    def _named(self, key: Key) -> str:
        """Return what tells a process from those of other servers."""
        files = len({other.file for other in self.series}) > 1
        runs = not files and len({other.segment for other in self.series}) > 1
        return " ".join(filter(None, (key.file.rpartition("/")[2] * files, f"run {key.segment}" * runs, key.name)))

    def _gate(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add a finding for every row below the minimum, worst first; without any length nothing is decided."""
        minimum, findings = self.asked.minimum, self.report.findings
        if minimum is None:
            return
        known = [row for row in rows if row["accept_len_mean"] is not None]
        if not known:
            self.report.verdict = "unknown"
            why = f"no line reports accept len, so it cannot be shown to be at least {minimum:g}"
            self.report.facts["undecided"] = why
        several = len({(row["file"], row["segment"]) for row in rows}) > 1
        for row in sorted(known, key=lambda row: row["accept_len_mean"]):
            mean = row["accept_len_mean"]
            if mean < minimum:
                run = f" of run {row['segment']}" if several else ""
                window = f" from {row['window']}" if row["window"] else ""
                said = f"accept len {mean:.2f}{run}{_of(_key(row).name)}{window} is below {minimum:g}"
                evidence = f"{count(row['lines'], 'line')}, {row['verifies']:,} verifies, "
                evidence += span(row["min"], row["max"], ".2f")
                where, due = Place(row["file"], row["first_line"]), f"at least {minimum:g}"
                findings.append(Finding("accept-min", "error", said, where, due, f"{mean:.4f}", evidence))

    def _definitions(self) -> None:
        """Add the ranges of lines in which each definition of accept rate holds."""
        rows = []
        for server, ranges in self.found.rates.items():
            ruled = list(zip(ranges.ranges, self.found.verdicts(server), strict=True))
            for found, verdict in ruled:
                who = {"file": server.file, "segment": server.segment, "origin": server.server}
                told = {name: getattr(verdict, name) for name in ("definition", "rule", "draft_tokens")}
                told |= {name: getattr(found, name) for name in ("first_line", "last_line", "lines")}
                told |= {"accept_rate_mean": rounded(found.mean, 4), "min": found.smallest, "max": found.largest}
                rows.append({**who, **told, "unexplained": found.unexplained})
                if verdict.contradicts:
                    self.notes.append(
                        f"accept rate follows {verdict.rule} at {Place(server.file, found.first_line)}, which does not "
                        "fit the draft tokens and steps of server_args"
                    )
            if len({(verdict.definition, verdict.rule) for _, verdict in ruled}) > 1:
                parts = [
                    f"{verdict.rule} ({verdict.definition}) in lines {span(found.first_line, found.last_line, 'd')}"
                    for found, verdict in ruled[:6]
                ]
                more = f", and {len(ruled) - 6} more ranges" if len(ruled) > 6 else ""
                self.notes.insert(
                    0,
                    f"accept rate changes its meaning{_of(server.server)}: {', '.join(parts)}{more}; "
                    "it is never averaged across them, accept len may be",
                )
            if ranges.dropped:
                self.notes.append(f"{count(ranges.dropped, 'line')} behind the last listed range of accept rate")
        uno = ", D = (len-2)/(N-1)" if any(row["definition"] == "D" for row in rows) else ""
        caption = f"A = len/(s+1), B = len/N, C = (len-1)/(N-1){uno}, with s draft steps and N draft tokens a round; "
        caption += "A|B cannot be told apart, ambiguous fits more than one"
        add(self.report, "rates", _RATES, rows, "definition of accept rate", caption)

    # ------------------------------------------------------------------------------------- levels, falls, companions

    def _movement(self) -> None:
        """Add levels, holes and the chart of every process."""
        rows: list[dict[str, Any]] = []
        for key, series in self.lengths.items():
            before: Level | None = None
            for at, level in enumerate(series.levels, 1):
                change = None if before is None else rounded(100 * (level.mean / before.mean - 1), 1)
                rows.append({**key.who, "level": at, **_level_row(level), "change_percent": change})
                before = level
            self.notes += self._moved(key, series)
        add(self.report, "levels", _LEVELS, rows if len(rows) > len(self.lengths) else [], "levels")
        self.report.facts["series"] = [
            {**key.who, "points": series.points(_POINTS)} for key, series in self.lengths.items()
        ]

    def _moved(self, key: Key, series: Series) -> Iterator[str]:
        """Yield what a process's accept len did."""
        who, levels, fall = _of(key.name), series.levels, series.decline
        dip = _dip(levels, fall)
        if dip is not None:
            low, back = dip
            yield (
                f"accept len{who} falls to {low.mean:.2f} over {count(low.lines, 'line')} from"
                f" {Place(key.file, low.first_line)} on, and rises again: {back.mean:.2f} from"
                f" {Place(key.file, back.first_line)} on"
            )
        elif fall is not None:
            doubt = "" if fall.lasting else ": short, small or not significant"
            doubt = ": it was as low before, and rose again" if fall.seen_before and fall.low is not None else doubt
            tests = f"rank tests: trend z = {fall.trend_z:.1f}, levels z = {fall.levels_z:.1f}"
            yield f"accept len{who} falls {_fall_words(key, fall)}; {tests}{doubt}"
        elif len(levels) > 1:
            places = [
                f"{Place(key.file, level.first_line)}" + (f" ({level.time})" if level.time else "")
                for level in levels[1:6]
            ]
            more = f" and {len(levels) - 6} more" if len(levels) > 6 else ""
            changes = count(len(levels) - 1, "time")
            ends = f"from {levels[0].mean:.2f} to {levels[-1].mean:.2f}"
            yield f"accept len{who} changes its level {changes}, {ends}: at {', '.join(places)}{more}"
        if len(levels) > 1:
            yield from _beside(series)
        for hole in series.holes():
            between = ""
            for number, (level, after) in enumerate(pairwise(levels), 1):
                if level.last_line <= hole.after_line and hole.before_line <= after.first_line:
                    between = f", between levels {number} and {number + 1}"
            yield (
                f"no line{who} for {_duration(hole.seconds)} after {Place(key.file, hole.after_line)} "
                f"({hole.after_time} to {hole.before_time}){between}"
            )
        most = max(series.rows["lengths"], default=1)
        if most > 1:
            yield (
                f"more than {EXACT_LINES:,} lines{who}: trends are computed on means of {most:.0f} lines, "
                "with the extremes kept"
            )

    def _extremes(self) -> None:
        """Say where nothing, next to nothing or everything was accepted, and which warnings stand beside it."""
        for key, series in self.lengths.items():
            who = _of(key.name)
            for stretches, what in (
                (series.floor, f"{series.bonus:.2f}, nothing is accepted"),
                (series.ceiling, "at its maximum, suspicious rather than good"),
            ):
                long = series.long(stretches)
                for stretch in long[:3]:
                    since = f" ({stretch.first_time})" if stretch.first_time else ""
                    self.notes.append(
                        f"accept len{who} is {what}: {stretch.length:.2f} over {count(stretch.lines, 'line')} and "
                        f"{stretch.rounds:,.0f} rounds from {Place(key.file, stretch.first_line)}{since}"
                        f"{self._warned(key, stretch.last_line)}"
                    )
                if len(long) > 3:
                    self.notes.append(f"{len(long) - 3} more such stretches{who}")
            if (barely := series.barely) is not None:
                self.notes.append(
                    f"accept len{who} is next to nothing above 1: {barely.accepted:.3f} draft tokens a verify over"
                    f" {barely.verifies:,.0f} verifies, less than {barely.steps:.3g} draft steps cost"
                    f" ({barely.bound:.2f})"
                )

    def _warned(self, key: Key, until: int) -> str:
        """Return the warnings printed in the same segment up to a line."""
        parts = []
        for event, words in (("nan_logits_warning", "NaN in the logits"), ("invalid_tree_warning", "an invalid tree")):
            where = (key.file, key.segment, event)
            places = self.lines.warnings.get(where)
            if places is not None and places.first[0].line <= until:
                writers = len(places.names)
                by = f" by {writers} processes" if writers > 1 else ""
                parts.append(f"{words} was warned of {count(places.count, 'time')}{by}, first at {places.first[0]}")
        return f"; {and_list(parts)}" if parts else ""

    def _positions(self) -> None:
        """Add what lines that count draft tokens say: positions, readings, contradictions."""
        rows = []
        order = {key: at for at, key in enumerate(self.series)}
        told = sorted(self.lines.state.positions.items(), key=lambda one: (order.get(one[0][0], 0), one[0][1]))
        for (key, length), (sums, there, got) in told:
            row = {**key.who, "draft_tokens": length, "drafts": round(sums[0])}
            row["positions"] = [round(value / sums[0], 4) for value in sums[1:]]
            if there:
                row["reached"] = [round(a / b, 4) if b else None for a, b in zip(got, there, strict=True)]
            rows.append(row)
        caption = "k is the length of the printed list; means are weighted by drafts"
        add(self.report, "positions", _POSITIONS, rows, "acceptance by position", caption)
        self.notes += [f"{places}: {reading}" for reading, places in self.lines.readings.items()]
        title = "lines that contradict themselves"
        add(self.report, "violations", columns("where! violation!"), self.lines.violations, title)

    def _cumulative(self) -> None:
        """Add the lines of vLLM V0, which count since the start and are mixed with nothing.

        Positions behind a rejection count as accepted there, so their rate compares with nothing else; emitted tokens
        over drafted / k have accept len's meaning.
        """
        rows = []
        for key, (first, last, lines) in self.lines.totals.items():
            drafted, k, emitted = last["drafted"], last["k"], last["emitted"]
            told = drafted and k and emitted is not None
            row = {**key.who, **last, "lines": lines, "draft_tokens": int(k) if k else None}
            row["tokens_per_verify"] = round(emitted * k / drafted, 3) if told else None
            for name in ("accepted", "drafted"):
                known = None not in (last[name], first[name])
                row[f"{name}_since_first"] = last[name] - first[name] if known else None
            rows.append(row)
        title = "cumulative since the server's start, last line"
        caption = "positions behind a rejection count as accepted here: this rate compares with no other"
        add(self.report, "cumulative", _CUMULATIVE, rows, title, caption)

    # -------------------------------------------------------------------------------------------------- how it is known

    def _weights(self) -> None:
        """State the weights of the means, and the rounds that no line covers."""
        several = len({key[:2] for key in self.lengths}) > 1
        said: dict[str, None] = {}
        for (file, number), found in groupby(self.lengths.items(), key=lambda pair: pair[0][:2]):
            members = [one for _, one in found]
            if any(one.stats.sums["lengths"] > one.stats.open_lines for one in members):
                said["means are weighted by the verifies that lines print or their drafts give"] = None
            members = [one for one in members if one.stats.open_lines]
            if not members:
                continue
            said[_weight_words(members)] = None
            per_line = members[0].rounds_per_line or DEFAULT_ROUNDS
            covered = sum(one.stats.open_lines for one in members) * per_line
            seen, where = self.lines.verifies.get((file, number), 0), f" of run {number} of {file}" * several
            if seen >= covered:
                printed = (
                    f"{count(seen, 'verify', 'verifies')}{where} are printed and the lines cover {covered:,} rounds"
                )
                said[f"{printed}: {count(seen - covered, 'round')} in no line"] = None
            elif not several:
                behind = f"up to {per_line - 1} rounds of each process after its last line are in no line"
                said[f"the lines cover {covered:,} rounds; {behind}"] = None
        self.notes += said

    def _remarks(self) -> None:
        """Say what was left out, assumed or inferred."""
        notes, counts = self.notes, self.counts
        pauses = sum(speed.left_out for one in self.lengths.values() if (speed := one.stats.speed()))
        if pauses:
            notes.append(f"{count(pauses, 'line')} without a speed, or over a pause, not in the throughput")
        for name, words in _REMARKS.items():
            if name in counts and (self.series or name != "without accept len"):
                notes.append(f"{count(counts[name].count, 'line')} {words} ({counts[name]})")
        if any(key.engine is not None for key in self.series):
            notes.append("engine numbers are inferred from the engine line before each metrics line of a process")
        for key, switched in self.lines.switches.items():
            notes += self._switched(key, switched)
        if "repeated" in counts:
            hidden = f"{counts['repeated']} stands for {self.lines.repeated} more lines that Ray hid"
            notes.append(f"{hidden}; counts and sums are lower bounds from there on")
        if self.lines.full is not None:
            place, usage, queue = self.lines.full
            queued = f" with {queue:,.0f} queued requests" if queue else ""
            retracted = f"; requests are retracted ({counts['retractions']})" if "retractions" in counts else ""
            notes.append(f"token usage is {usage:.2f}{queued} at {place}: the cache is full{retracted}")
        for clock in self.lines.state.clocks.values():
            notes += [one for one in clock.assumptions() if one not in notes]

    def _switched(self, key: Key, switched: Switches) -> Iterator[str]:
        """Yield what is to be said of switches of the draft length: how many, how often, and whether they thrash."""
        if not switched.count:
            return
        clock, often = Clock(self.asked.year), ""
        moments = [moment.seconds for time in switched.times if (moment := clock.read(time, 0))]
        if len(moments) == 2 and moments[1] > moments[0]:
            apart = moments[1] - moments[0] + 1  # stamps of whole seconds
            often = f", {60 * switched.count / apart:.3g} a minute over {_duration(apart)}"
        averages = (
            f"; ema_accept_len {span(min(switched.averages), max(switched.averages), 'g')}" if switched.averages else ""
        )
        times = f"{count(switched.count, 'time')}{_of(key.name)}"
        yield (
            f"the number of draft tokens was switched {times} ({switched}){often}{averages}: accept len and "
            "rate have another maximum after each"
        )
        mine = [one.stats.sums for other, one in self.lengths.items() if other == key]
        mine = mine or [one.stats.sums for other, one in self.lengths.items() if other[:3] == key[:3]]
        spanning, lines = (sum(one[name] for one in mine) for name in ("spanning", "lengths"))
        if switched.count > max(1, lines / 2) and 2 * spanning > lines:
            yield (
                f"the controller of draft lengths thrashes{_of(key.name)}: {spanning:.0f} of"
                f" {count(int(lines), 'interval')} span a switch; such an interval has no one maximum, and"
                " its accept rate no one denominator"
            )

    def _facts(self) -> None:
        facts, asked = self.report.facts, self.asked
        if len({(*key[:3], key.engine) for key in self.lengths}) == 1:
            facts["accept_len_mean"] = rounded(self._together().mean, 4)
        facts["lines"] = sum(one.stats.lines for one in self.series.values())
        facts |= {f"lines_{name.replace(' ', '_')}": places.fact() for name, places in self.counts.items()}
        for name, limit, words in (("below", asked.below, "len below"), ("above", asked.above, "rate above")):
            if limit is not None:
                facts[f"lines_{name}"] = {"limit": limit, **self.counts.get(name, Places()).fact()}
                self.notes.append(f"{facts[f'lines_{name}']['count']} lines have an accept {words} {limit:g}")
        if self.lines.fields:
            facts["other_fields"] = dict(self.lines.fields)
        for (graph, kind), times in self.lines.graphs.items():
            facts.setdefault("graphs", {}).setdefault(graph, {})[kind] = times
        if asked.year is not None:
            facts["year"] = asked.year

    # ------------------------------------------------------------------------------------------------------- the screen

    def _screen(self, rows: Sequence[dict[str, Any]]) -> None:
        """Set the first screen: a line for each server that differs, worst first, with its chart; then what to know."""
        report, context = self.report, self.context
        failed = {(finding.where.file, finding.where.line) for finding in report.findings if finding.where is not None}
        unnamed = "accept len" if len(rows) == 1 else "no mark"
        fine: list[float] = []
        lines: list[Line] = []
        for row in sorted(rows, key=lambda row: -1.0 if row["accept_len_mean"] is None else row["accept_len_mean"]):
            key = _key(row)
            found = ((one, series) for one, series in self.lengths.items() if one._replace(server="") == key)
            of, series = next(found, (key, None))
            mark, why = self._judged(of, series, (row["file"], row["first_line"]) in failed)
            switched = series is not None and series.stats.sums["spanning"] > 0
            limit = f" of {row['maximum']}" if row["maximum"] and not switched else ""
            mean = row["accept_len_mean"]
            said = f"{row['accepted']:,} of {row['drafted']:,} draft tokens" if mean is None else f"{mean:.2f}{limit}"
            said += f"   {count(row['rounds'], 'round')}, {context.at(Place(row['file'], row['first_line']))}{why}"
            charted = series is not None and row["window"] is None and self.asked.by == "rank"
            name = " ".join(filter(None, (self._named(key), row["window"]))) or unnamed
            lines.append(Line(mark, name, said, chart=_chart(series) if charted and series is not None else None))
            fine += [mean] if mark == "ok" else []
        order = ("error", "warning", "unknown", "ok", None)
        lines.sort(key=lambda line: order.index(line.mark))
        if len(lines) > _FEW and len(fine) > 1:
            lines = [line for line in lines if line.mark != "ok"]
            others = f"{len(fine)} others" if lines else f"all {len(fine)}"
            lines.append(Line("ok", others, f"accept len {span(min(fine), max(fine), '.2f')}"))
        notes = [Line(None, note) for note in self.notes if note not in context.warnings][:4]
        headline = context.short(Line(None, report.headline)).name
        report.screen = [headline, "", *lines, *[""] * bool(notes), *map(context.short, notes)]
        report.next = context.command("check")

    def _judged(self, key: Key, series: Series | None, failed: bool) -> tuple[Mark, str]:
        """Return the mark of a row, and why it is no check mark, in words."""
        if failed:
            return "error", f"   below the minimum of {self.asked.minimum:g}"
        if series is None:
            return "unknown", ""
        if series.long(series.floor):
            return "warning", "   nothing accepted"
        if series.barely is not None:
            return "warning", "   next to nothing accepted"
        if series.decline is not None and series.decline.lasting:
            return "warning", f"   falls by {-series.decline.change:.0%}"
        if series.long(series.ceiling):
            return "warning", "   at its maximum"
        if (less := self.apart.get(key)) is not None:
            return "warning", f"   accepts less than {less.rpartition(' against ')[2]} of the others"
        sums = series.stats.sums
        if 2 * sums["spanning"] > sums["lengths"] > 1:
            return "warning", "   most intervals span a switch of the draft length"
        return "ok", ""


# ------------------------------------------------------------------------------------------------------------ wording


def _key(row: dict[str, Any]) -> Key:
    return Key(row["file"], row["segment"], "", row["origin"], row["engine"])


def _of(name: str) -> str:
    return f" of {name}" if name else ""


def _fall_words(key: Key, fall: Decline) -> str:
    when = f" ({fall.begin.time})" if fall.begin.time else ""
    return (
        f"from {fall.before.mean:.2f} to {fall.after.mean:.2f} ({100 * fall.change:+.0f}%), "
        f"beginning at {Place(key.file, fall.begin.first_line)}{when}"
    )


def _dip(levels: Sequence[Level], fall: Decline | None) -> tuple[Level, Level] | None:
    """Return the level of a fall that was made good, and the one after it; None for a fall that lasts, or none."""
    if len(levels) < _DIP_LEVELS or (fall is not None and fall.lasting):
        return None
    at = min(range(1, len(levels) - 1), key=lambda number: levels[number].mean)
    low, before = levels[at], max(level.mean for level in levels[:at])
    back = next((level for level in levels[at + 1 :] if low.mean <= (1 - _APART) * level.mean), None)
    lasts = low.mean <= (1 - _APART) * levels[-1].mean
    return (low, back) if back is not None and lasts and low.mean <= (1 - _APART) * before else None


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _weight_words(series: Sequence[Series]) -> str:
    """State the rounds of a line, how they are known, and the weight."""
    per_line = series[0].rounds_per_line
    known = f"{per_line} verify rounds (decode_log_interval of server_args)"
    if per_line is None:
        grown = [growth for one in series if (growth := one.growth()) is not None]
        tokens = f"; by the growth of #token {span(min(grown), max(grown), 'g')}" if grown else ""
        known = f"{DEFAULT_ROUNDS} verify rounds (SGLang's default; the log does not say decode_log_interval{tokens})"
    return (
        f"each line counts as {known}; means are weighted by rounds x running requests, the mean of the numbers "
        "printed at both ends of its interval"
    )


def _companions(stats: Stats) -> dict[str, Any]:
    """Return what runs beside accept len, as a row holds it."""
    return {
        "running": rounded(stats.running, 2), "context": rounded(stats.context, 1),
        "token_usage": rounded(stats.usage, 4), "cached_per_prefill": rounded(stats.cached, 1),
    }  # fmt: skip


def _level_row(level: Level) -> dict[str, Any]:
    return {
        "lines": level.lines, "rounds": round(level.rounds), "accept_len_mean": round(level.mean, 4),
        "first_line": level.first_line, "last_line": level.last_line, "from": level.time, "to": level.last_time,
        **_companions(level), "seconds_per_round": rounded(level.step, 5),
    }  # fmt: skip


def _beside(series: Series) -> Iterator[str]:
    """Say what moved together with accept len and what cannot be the cause, as far as the levels show it."""
    levels, sums, together = series.levels, series.stats.sums, []
    for attribute, name, form in _COMPANIONS:
        # Rounded: sums of the same numbers in another order are not a difference.
        values = [rounded(getattr(level, attribute), 4) for level in sorted(levels, key=lambda level: level.mean)]
        if None in values:
            continue
        if attribute == "running" and sums["running_low"] == sums["running_high"]:
            yield f"running requests stay at {values[0]:g} throughout: the batch size is not the cause"
            continue
        steps = [other - one for one, other in pairwise(values)]  # type: ignore[operator]
        order = "same" if min(steps) > 0 else "opposite" if max(steps) < 0 else None
        first, last = (getattr(level, attribute) for level in (levels[0], levels[-1]))
        # Two levels are always ordered; only a clear change says anything then.
        if order is not None and (len(levels) > 2 or abs(last - first) >= _MOVED * max(first, last)):
            together.append(f"{name} {first:{form}} -> {last:{form}} ({order} order)")
    if together:
        every = "both levels" if len(levels) == 2 else f"all {len(levels)} levels"
        yield f"with accept len goes, in {every}: {', '.join(together)}; going together is no proof of a cause"
    times = [level.step for level in levels if level.step is not None]
    if len(times) == len(levels) and max(times) <= 1.03 * min(times):
        yield (
            f"the time of a round stays the same ({1000 * times[0]:.1f} ms): throughput changed because accept len did"
        )


def _chart(series: Series) -> Chart | None:
    """Return the chart of a process with its worst stretch marked: where nothing is accepted, or the lowest level."""
    points = series.points(_SHOWN)
    if len(points) < 2:
        return None
    values = [point["accept_len"] for point in points]
    worst: Stretch | Level | None = max(series.long(series.floor), key=lambda one: one.rounds, default=None)
    if worst is None and len(series.levels) > 1:
        worst = min(series.levels, key=lambda level: level.mean)
    inside = [
        at for at, point in enumerate(points)
        if worst is not None and worst.first_line <= point["line"] <= worst.last_line
    ]  # fmt: skip
    bounds = (inside[0], inside[-1] + 1) if inside and len(inside) < len(values) else None
    return Chart(values, low=1, high=max(series.maximum or 0, *values), worst=bounds)
