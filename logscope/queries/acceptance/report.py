"""``logscope accept``: what was accepted, since when, and beside what, in words and tables.

This module is responsible for the question and its report. It must not know records or how lines are read (lines.py),
nor how a report is shown.
"""

from __future__ import annotations

import re
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

import polars as pl

from logscope.errors import UsageError
from logscope.model import Finding, Place
from logscope.queries.acceptance.lines import DEFAULT_ROUNDS, EXACT_LINES, WHO, Key, Lines, Places, Server, gather
from logscope.queries.acceptance.series import DECLINE_ROUNDS, Acceptance, Decline, Level, Series, Stats
from logscope.queries.acceptance.trend import rank_correlation, same_order
from logscope.queries.clock import Clock
from logscope.queries.tables import table, without_empty
from logscope.queries.words import and_list, count
from logscope.report import Chart, Column, Line, Report, Table

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
# Servers that are named one by one on the screen.
_FEW = 8
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
        return _Answer(self, Acceptance(self.combine([part]))).report(context)


class _Answer:
    """Puts settled lines into a report."""

    def __init__(self, asked: Accept, found: Acceptance) -> None:
        self.asked = asked
        self.found = found
        self.lines = found.lines
        self.series = found.series
        self.counts = found.lines.counts
        # Those with a length: a line may print counts alone.
        self.lengths = {key: one for key, one in self.series.items() if one.stats.mean is not None}

    def report(self, context: Context) -> Report:
        """Answer."""
        report = Report(self.asked.kind, self._headline(), accounting=context.accounting)
        report.notes.extend(context.warnings)
        rows = self._rows()
        report.tables["accept"] = _accept_table(rows)
        self._gate(rows, report)
        self._definitions(report)
        self._movement(report)
        for key, words in self._apart():
            place = Place(key.file, self.series[key].stats.first_line)
            report.notes.append(
                f"{words}, from {place} on, in nine of ten lines: other requests, or a fault of that rank alone"
            )
        self._extremes(report)
        self._positions(report)
        self._cumulative(report)
        self._weights(report)
        self._remarks(report)
        self._facts(report)
        if not self.series and report.verdict == "ok":
            report.verdict = "unknown"
        self._screen(report, rows, context)
        return report

    # --------------------------------------------------------------------------------------------------------- the rows

    def _groups(self) -> Iterator[tuple[Key, str | None, Stats, list[Series]]]:
        """Yield a key, a window's name, its sums and the series behind it, per row of the table."""
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
            name = None if window is None else str(stats.first_time or f"line {stats.first_line}")
            yield key, name, stats, [self.series[Key(**member)] for member in members]

    def _rows(self) -> list[dict[str, Any]]:
        rows = []
        for key, window, stats, members in self._groups():
            definition, rule = self.found.definition(Server(*key[:3]), stats)
            speed = stats.speed()
            one = definition is not None and definition != "mixed" and "," not in (rule or "")
            sums = stats.sums
            rows.append(
                {
                    "file": key.file, "segment": key.segment, "origin": key.origin, "engine": key.engine,
                    "engine_evidence": None if key.engine is None else "inferred from the engine line before",
                    "window": window, "lines": stats.lines, "rounds": round(sums["rounds"]),
                    "verifies": round(sums["weight"]), "accept_len_mean": _rounded(stats.mean, 4),
                    "min": _rounded(stats.quantile(0), 4), "p10": _rounded(stats.quantile(0.1), 3),
                    "median": _rounded(stats.quantile(0.5), 3), "p90": _rounded(stats.quantile(0.9), 3),
                    "max": _rounded(stats.quantile(1), 4), "at_ceiling": stats.ceiling, "maximum": members[0].maximum,
                    "rate_definition": definition, "rate_rule": rule,
                    "accept_rate_mean": _rounded(stats.rate_mean, 4) if one else None,
                    "accepted": round(sums["accepted"]) if sums["drafted"] else None,
                    "drafted": round(sums["drafted"]) if sums["drafted"] else None,
                    "running": _rounded(stats.ratio("running", "running_lines"), 2),
                    "context": _rounded(stats.ratio("context", "context_lines"), 1),
                    "token_usage": _rounded(stats.ratio("usage", "usage_lines"), 4),
                    "cached_per_prefill": _rounded(stats.ratio("cached", "prefills"), 1),
                    "throughput": _rounded(speed.mean, 2) if speed else None,
                    "throughput_min": speed.slowest if speed else None,
                    "throughput_max": speed.fastest if speed else None, "pauses": speed.left_out if speed else None,
                    "first_line": stats.first_line, "last_line": stats.last_line, "from": stats.first_time,
                    "to": stats.last_time,
                    "chart": [one["accept_len"] for one in members[0].points(_POINTS)]
                    if len(members) == 1 and window is None
                    else None,
                }
            )  # fmt: skip
        return rows

    # -------------------------------------------------------------------------------------------------------- sentences

    def _headline(self) -> str:
        """Say the answer in one sentence; several servers are never averaged."""
        if not self.lengths:
            without = self.counts.get("without accept len")
            if self.series:
                return f"no line reports accept len: {self._counted()} without it, no verifies to divide by"
            if without:
                return (
                    f"no line reports accept len: {count(without.count, 'decode line')} without it "
                    "(speculation is off, or not reported)"
                )
            if self.lines.totals:
                number_ = len(self.lines.totals)
                return f"only cumulative acceptance is printed, by {count(number_, 'process', 'processes')}"
            idle = self.counts.get("without verifies") or self.counts.get("no drafts")
            return "no line reports acceptance" + (f": {count(idle.count, 'line')} without verifies" if idle else "")
        servers, engines = {key[:3] for key in self.lengths}, {(*key[:3], key.engine) for key in self.lengths}
        if len(servers) == 1 and len(engines) == 1:
            stats = self._together()
            text = f"accept len {stats.mean or 0:.2f} over {count(stats.lines, 'line')}"
            processes = len(self.lengths)
            text += f" of {count(processes, 'process', 'processes')}" if processes > 1 else ""
        else:
            means = [series.stats.mean or 0.0 for series in self.lengths.values()]
            text = f"accept len {min(means):.2f} to {max(means):.2f} across {self._what(servers, engines)}"
        fall = self._falls()
        if fall is not None:
            return f"{text}; {fall}"
        apart = "; ".join(words for _, words in self._apart())
        return f"{text}{self._extreme_words()}{'; ' if apart else ''}{apart}"

    @staticmethod
    def _what(servers: set[Any], engines: set[Any]) -> str:
        """Name what the rows are: engines of one server, runs of one, or servers."""
        if len(servers) == 1:
            return count(len(engines), "engine")
        one = len({server[2] for server in servers}) == 1
        return count(len(servers), "run" if one else "server")

    def _counted(self) -> str:
        sums = [one.stats.sums for one in self.series.values()]
        accepted, drafted = (round(sum(one[name] for one in sums)) for name in ("accepted", "drafted"))
        return f"{accepted:,} of {drafted:,} draft tokens accepted"

    def _together(self) -> Stats:
        return Stats(pl.concat([one.stats.rows for one in self.lengths.values()]))

    def _apart(self) -> Iterator[tuple[Key, str]]:
        """Yield the processes of one server that accept clearly less than all its others, in words.

        Nine of ten of their lines lie below nine of ten lines of every other process, and they are no more than the
        others: then nothing would say which of the two is the odd one.
        """
        servers: dict[Any, list[tuple[Key, Series]]] = {}
        for key, series in self.lengths.items():
            if series.rounds >= DECLINE_ROUNDS:
                servers.setdefault(key[:3], []).append((key, series))
        for found in servers.values():
            ordered = sorted(found, key=lambda pair: pair[1].stats.mean or 0.0)
            for number_ in range(1, len(ordered) // 2 + 1):
                few, rest = ordered[:number_], ordered[number_:]
                top = max(series.stats.quantile(0.9) or 0.0 for _, series in few)
                bottom = min(series.stats.quantile(0.1) or 0.0 for _, series in rest)
                means = [series.stats.mean or 0.0 for _, series in rest]
                if top < bottom and (few[-1][1].stats.mean or 0.0) <= (1 - _APART) * means[0]:
                    others = " to ".join(dict.fromkeys(f"{mean:.2f}" for mean in (means[0], means[-1])))
                    for key, series in few:
                        yield key, f"{key.name} accepts less, {series.stats.mean or 0.0:.2f} against {others}"
                    break

    def _falls(self) -> str | None:
        """Return the largest lasting fall in words, None when there is none."""
        falls = [
            (one.decline.change, key, one.decline)
            for key, one in self.lengths.items()
            if one.decline and one.decline.lasting
        ]
        if not falls:
            return None
        _, key, found = min(falls, key=lambda fall: fall[0])
        return f"it falls {self._fall_words(key, found)}"

    def _fall_words(self, key: Key, found: Decline) -> str:
        when = f" ({found.begin.time})" if found.begin.time else ""
        return (
            f"from {found.before.mean:.2f} to {found.after.mean:.2f} ({100 * found.change:+.0f}%), "
            f"beginning at {Place(key.file, found.begin.first_line)}{when}"
        )

    def _extreme_words(self) -> str:
        """Return what the headline adds when every process that matters is at an extreme."""
        series = list(self.lengths.values())
        if all(one.stats.sums["floor"] == one.stats.sums["lengths"] for one in series):
            return ": nothing is accepted"
        if all(one.stats.ceiling * 2 > one.stats.lines for one in series):
            return ": at its maximum in most lines, which is suspicious rather than good"
        return ""

    def _gate(self, rows: Sequence[dict[str, Any]], report: Report) -> None:
        """Add a finding for every row below the minimum, worst first; without any length the gate cannot be passed."""
        minimum = self.asked.minimum
        if minimum is None:
            return
        known = [row for row in rows if row["accept_len_mean"] is not None]
        if not known:
            message = f"no line reports accept len, so it cannot be shown to be at least {minimum:g}"
            report.findings.append(Finding("accept-min", "error", message))
        several = len({(row["file"], row["segment"]) for row in rows}) > 1
        for row in sorted(known, key=lambda row: row["accept_len_mean"]):
            mean = row["accept_len_mean"]
            if mean < minimum:
                run = f" of run {row['segment']}" if several else ""
                window = f" from {row['window']}" if row["window"] else ""
                name = Key(*(row[name] for name in ("file", "segment", "origin", "origin", "engine"))).name
                report.findings.append(
                    Finding(
                        rule="accept-min",
                        severity="error",
                        message=f"accept len {mean:.2f}{run}{_of(name)}{window} is below {minimum:g}",
                        where=Place(row["file"], row["first_line"]),
                        expected=f"at least {minimum:g}",
                        actual=f"{mean:.4f}",
                        evidence=f"{count(row['lines'], 'line')}, {row['verifies']:,} verifies,"
                        f" {row['min']:.2f} to {row['max']:.2f}",
                    )
                )
        if report.findings:
            report.verdict = "findings"

    def _definitions(self, report: Report) -> None:
        """Add the ranges of lines in which each definition of accept rate holds."""
        rows = []
        for server, ranges in self.found.rates.items():
            verdicts = self.found.verdicts(server)
            for found, verdict in zip(ranges.ranges, verdicts, strict=True):
                rows.append(
                    {
                        "file": server.file, "segment": server.segment, "origin": server.server,
                        "definition": verdict.definition, "rule": verdict.rule, "draft_tokens": verdict.draft_tokens,
                        "first_line": found.first_line, "last_line": found.last_line, "lines": found.lines,
                        "accept_rate_mean": _rounded(found.mean, 4), "min": found.smallest, "max": found.largest,
                        "unexplained": found.unexplained,
                    }
                )  # fmt: skip
                if verdict.contradicts:
                    report.notes.append(
                        f"accept rate follows {verdict.rule} at {Place(server.file, found.first_line)}, which does not "
                        "fit the draft tokens and steps of server_args"
                    )
            if len({(verdict.definition, verdict.rule) for verdict in verdicts}) > 1:
                parts = [
                    f"{verdict.rule} ({verdict.definition}) in {_lines(found.first_line, found.last_line)}"
                    for found, verdict in zip(ranges.ranges[:6], verdicts, strict=False)  # the first six are named
                ]
                more = f", and {len(verdicts) - 6} more ranges" if len(verdicts) > 6 else ""
                report.notes.insert(
                    0,
                    f"accept rate changes its meaning{_of(server.server)}: {', '.join(parts)}{more}; "
                    "it is never averaged across them, accept len may be",
                )
            if ranges.dropped:
                report.notes.append(f"{count(ranges.dropped, 'line')} behind the last listed range of accept rate")
        uno = ", D = (len-2)/(N-1)" if any(row["definition"] == "D" for row in rows) else ""
        _add(
            report, "rates", rows, "definition of accept rate",
            "definition! rule! draft_tokens=N> first_line!> last_line!> lines> "
            "accept_rate_mean=accept_rate> min> max> unexplained>",
            caption=f"A = len/(s+1), B = len/N, C = (len-1)/(N-1){uno}, with s draft steps and N draft tokens a round; "
            "A|B cannot be told apart, ambiguous fits more than one",
        )  # fmt: skip

    # ------------------------------------------------------------------------------------- levels, falls, companions

    def _movement(self, report: Report) -> None:
        """Add levels, holes, companions and the chart of every process."""
        level_rows: list[dict[str, Any]] = []
        charts: list[dict[str, Any]] = []
        beside_rows: list[dict[str, Any]] = []
        for key, series in self.lengths.items():
            who = {"file": key.file, "segment": key.segment, "origin": key.origin, "engine": key.engine}
            previous: Level | None = None
            for at, level in enumerate(series.levels, 1):
                change = None if previous is None else _rounded(100 * (level.mean / previous.mean - 1), 1)
                level_rows.append({**who, "level": at, **_level_row(level), "change_percent": change})
                previous = level
            beside = _beside(series)
            charts.append({**who, "points": series.points(_POINTS), "beside": beside})
            if len(series.levels) > 1:
                beside_rows.extend({**who, **row} for row in beside)
            report.notes += self._moved(key, series, beside)
        _add(
            report, "levels", level_rows if len(level_rows) > len(self.lengths) else [], "levels",
            "level> lines> rounds> accept_len_mean=accept_len!> change_percent=change>% first_line=from_line!> from! "
            "running> context=cached_tokens> token_usage> cached_per_prefill=cached> seconds_per_round=round>s",
        )  # fmt: skip
        _add(
            report, "beside", beside_rows, "beside accept len",
            "companion! min> max> rank_correlation!> by_level~ order",
            caption="rank correlation with accept len over lines (Spearman); the order over levels, same or opposite",
        )  # fmt: skip
        report.facts["series"] = charts

    def _moved(self, key: Key, series: Series, beside: Sequence[dict[str, Any]]) -> Iterator[str]:
        """Yield what a process's accept len did."""
        who, levels, found = _of(key.name), series.levels, series.decline
        dip = _dip(levels, found)
        if dip is not None:
            low, back = dip
            yield (
                f"accept len{who} falls to {low.mean:.2f} over {count(low.lines, 'line')} from"
                f" {Place(key.file, low.first_line)} on, and rises again: {back.mean:.2f} from"
                f" {Place(key.file, back.first_line)} on"
            )
        elif found is not None:
            lasting = "" if found.lasting else ": short, small or not significant"
            if found.seen_before and found.low is not None:
                lasting = ": it was as low before, and rose again"
            yield (
                f"accept len{who} falls {self._fall_words(key, found)}; rank tests: "
                f"trend z = {found.trend_z:.1f}, levels z = {found.levels_z:.1f}{lasting}"
            )
        elif len(levels) > 1:
            yield (
                f"accept len{who} changes its level {count(len(levels) - 1, 'time')}, from {levels[0].mean:.2f} to "
                f"{levels[-1].mean:.2f}: at {_places(key.file, levels)}"
            )
        if len(levels) > 1:
            yield from _beside_words(levels, beside, series)
        for hole in series.holes():
            between = ""
            for number_, (level, after) in enumerate(pairwise(levels), 1):
                if level.last_line <= hole.after_line and hole.before_line <= after.first_line:
                    between = f", between levels {number_} and {number_ + 1}"
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

    def _extremes(self, report: Report) -> None:
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
                    report.notes.append(
                        f"accept len{who} is {what}: {stretch.length:.2f} over {count(stretch.lines, 'line')} and "
                        f"{stretch.rounds:,.0f} rounds from {Place(key.file, stretch.first_line)}{since}"
                        f"{self._warned(key, stretch.last_line)}"
                    )
                if len(long) > 3:
                    report.notes.append(f"{len(long) - 3} more such stretches{who}")
            barely = series.barely
            if barely is not None:
                report.notes.append(
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
                writers = len(self.lines.warners[where])
                by = f" by {writers} processes" if writers > 1 else ""
                parts.append(f"{words} was warned of {count(places.count, 'time')}{by}, first at {places.first[0]}")
        return f"; {and_list(parts)}" if parts else ""

    def _positions(self, report: Report) -> None:
        """Add what lines that count draft tokens say: positions, readings, contradictions."""
        rows = []
        order = {key: at for at, key in enumerate(self.series)}
        told = sorted(self.lines.state.positions.items(), key=lambda one: (order.get(one[0][0], 0), one[0][1]))
        for (key, length), (sums, there, got) in told:
            reached = (
                {"reached": [round(a / b, 4) if b else None for a, b in zip(got, there, strict=True)]} if there else {}
            )
            rows.append(
                {
                    "file": key.file, "segment": key.segment, "origin": key.origin, "engine": key.engine,
                    "draft_tokens": length, "drafts": round(sums[0]),
                    "positions": [round(value / sums[0], 4) for value in sums[1:]], **reached,
                }
            )  # fmt: skip
        _add(
            report, "positions", rows, "acceptance by position",
            "draft_tokens=k> drafts> positions=accepted_at_position_1,_2,_...! reached=of_those_that_got_there",
            caption="k is the length of the printed list; means are weighted by drafts",
        )  # fmt: skip
        for reading, places in self.lines.readings.items():
            report.notes.append(f"{places}: {reading}")
        if self.lines.violations:
            report.tables["violations"] = Table(
                [Column("where", always=True), Column("violation", always=True)],
                self.lines.violations,
                title="lines that contradict themselves",
            )
            total = self.counts["violations"]
            be = "contradicts its" if total.count == 1 else "contradict their"
            report.notes.append(f"{count(total.count, 'metrics line')} {be} own numbers ({total})")

    def _cumulative(self, report: Report) -> None:
        """Add the lines of vLLM V0, which count since the start and are mixed with nothing.

        Positions behind a rejection count as accepted there, so their rate compares with nothing else; emitted tokens
        over drafted / k have accept len's meaning.
        """
        rows = []
        for key, (first, last, lines) in self.lines.totals.items():
            drafted, k, emitted = last["drafted"], last["k"], last["emitted"]
            since = {
                name: None if last[name] is None or first[name] is None else last[name] - first[name]
                for name in ("accepted", "drafted")
            }
            rows.append(
                {
                    "file": key.file, "segment": key.segment, "origin": key.origin, "lines": lines,
                    "line": last["line"], "draft_tokens": None if not k else int(k),
                    "tokens_per_verify": round(emitted * k / drafted, 3)
                    if drafted and k and emitted is not None
                    else None,
                    "rate": last["rate"], "system_efficiency": last["efficiency"], "accepted": last["accepted"],
                    "drafted": drafted, "emitted": emitted,
                    **{f"{name}_since_first": value for name, value in since.items()},
                }
            )  # fmt: skip
        _add(
            report, "cumulative", rows, "cumulative since the server's start, last line",
            "lines> draft_tokens=k> tokens_per_verify!> rate> system_efficiency> accepted> drafted> emitted> "
            "accepted_since_first> drafted_since_first>",
            caption="positions behind a rejection count as accepted here: this rate compares with no other",
        )  # fmt: skip

    # -------------------------------------------------------------------------------------------------- how it is known

    def _weights(self, report: Report) -> None:
        """State the weights of the means, and the rounds that no line covers."""
        several = len({key[:2] for key in self.lengths}) > 1
        said: dict[str, None] = {}
        for (file, number_), found in groupby(self.lengths.items(), key=lambda pair: pair[0][:2]):
            members = [one for _, one in found]
            where = f" of run {number_} of {file}" if several else ""
            open_lines = [one for one in members if one.stats.open_lines]
            if len(open_lines) < len(members) or any(
                one.stats.sums["lengths"] > one.stats.open_lines for one in members
            ):
                said["means are weighted by the verifies that lines print or their drafts give"] = None
            if not open_lines:
                continue
            said[_weight_words(open_lines)] = None
            per_line = open_lines[0].rounds_per_line or DEFAULT_ROUNDS
            covered = sum(one.stats.open_lines for one in open_lines) * per_line
            seen = self.lines.verifies.get((file, number_), 0)
            if seen >= covered:
                said[
                    f"{count(seen, 'verify', 'verifies')}{where} are printed and the lines cover {covered:,} rounds: "
                    f"{count(seen - covered, 'round')} in no line"
                ] = None
            elif not several:
                said[
                    f"the lines cover {covered:,} rounds; up to {per_line - 1} rounds of each process after its "
                    "last line are in no line"
                ] = None
        report.notes += said

    def _remarks(self, report: Report) -> None:
        """Say what was left out, assumed or inferred."""
        notes, counts = report.notes, self.counts
        pauses = sum(speed.left_out for one in self.lengths.values() if (speed := one.stats.speed()))

        def told(number_: int, one: str, more: str) -> str:
            return f"{count(number_, 'line')} {one if number_ == 1 else more}"

        if pauses:
            cover = told(pauses, "covers a pause or prints no speed and is", "cover a pause or print no speed and are")
            notes.append(f"{cover} left out of the throughput")
        for name, words in (
            ("no drafts", "without drafts: neither zero acceptance nor full"),
            ("without verifies", "without verifies: neither zero acceptance nor full"),
            ("without accept len", "without accept len: what a line does not print is not counted"),
        ):
            if name in counts and (self.series or name != "without accept len"):
                notes.append(f"{count(counts[name].count, 'line')} {words} ({counts[name]})")
        if "drafting off" in counts:
            off = counts["drafting off"]
            notes.append(f"drafting was switched off at {off}: an accept len of 1.00 is all there can be there")
        if "without bonus" in counts:
            notes.append(
                f"{counts['without bonus']}: the printed length leaves the bonus token out (older vLLM); 1 is added"
            )
        if any(key.engine is not None for key in self.series):
            notes.append("engine numbers are inferred from the engine line before each metrics line of a process")
        if "damaged" in counts:
            be = "is damaged and enters" if counts["damaged"].count == 1 else "are damaged and enter"
            notes.append(f"{count(counts['damaged'].count, 'statistics line')} {be} no statistic ({counts['damaged']})")
        if "of the warm-up" in counts:
            places = counts["of the warm-up"]
            notes.append(
                f"{told(places.count, 'of the warm-up is', 'of the warm-up are')} left out, from {places.first[0]}"
            )
        for key, switched in self.lines.switches.items():
            notes += self._switched(key, switched)
        if "repeated" in counts:
            notes.append(
                f"{counts['repeated']} stands for {self.lines.repeated} more lines that Ray hid; counts and sums are "
                "lower bounds from there on"
            )
        if self.lines.full is not None:
            place, usage, queue = self.lines.full
            queued = f" with {queue:,.0f} queued requests" if queue else ""
            retracted = f"; requests are retracted ({counts['retractions']})" if "retractions" in counts else ""
            notes.append(f"token usage is {usage:.2f}{queued} at {place}: the cache is full{retracted}")
        if "out of order" in counts:
            places = counts["out of order"]
            notes.append(f"time goes back at {count(places.count, 'line')} ({places}); lines are taken in file order")
        for clock in self.lines.state.clocks.values():
            notes += [one for one in clock.assumptions() if one not in notes]

    def _switched(self, key: Key, switched: Any) -> Iterator[str]:
        """Yield what is to be said of switches of the draft length: how many, how often, and whether they thrash."""
        places = switched.places
        if not places.count:
            return
        clock = Clock(self.asked.year)
        times = [clock.read(time, 0) for time in (switched.first, switched.last)]
        often = ""
        if places.count > 1 and times[0] is not None and times[1] is not None and times[1].seconds > times[0].seconds:
            apart = times[1].seconds - times[0].seconds + 1  # stamps of whole seconds
            often = f", {60 * places.count / apart:.3g} a minute over {_duration(apart)}"
        low_high = (
            f"; ema_accept_len {switched.averages[0]:g} to {switched.averages[-1]:g}" if switched.averages else ""
        )
        yield (
            f"the number of draft tokens was switched {count(places.count, 'time')}{_of(key.name)} ({places}){often}"
            f"{low_high}: accept len and rate have another maximum after each"
        )
        mine = [one.stats.sums for other, one in self.lengths.items() if other == key]
        mine = mine or [one.stats.sums for other, one in self.lengths.items() if other[:3] == key[:3]]
        spanning, lines = (sum(one[name] for one in mine) for name in ("spanning", "lengths"))
        if spanning and places.count > lines / 2 and 2 * spanning > lines and places.count > 1:
            yield (
                f"the controller of draft lengths thrashes{_of(key.name)}: {spanning:.0f} of"
                f" {count(int(lines), 'interval')} span a switch; such an interval has no one maximum, and"
                " its accept rate no one denominator"
            )

    def _facts(self, report: Report) -> None:
        facts, asked = report.facts, self.asked
        if len({key[:3] for key in self.lengths}) == 1 and len({key.engine for key in self.lengths}) == 1:
            facts["accept_len_mean"] = _rounded(self._together().mean, 4)
        facts["lines"] = sum(one.stats.lines for one in self.series.values())
        for name, places in self.counts.items():
            if name not in ("below", "above"):
                facts[f"lines_{name.replace(' ', '_')}"] = places.fact()
        for name, limit, words in (("below", asked.below, "len below"), ("above", asked.above, "rate above")):
            if limit is not None:
                facts[f"lines_{name}"] = {"limit": limit, **self.counts.get(name, Places()).fact()}
                report.notes.append(f"{facts[f'lines_{name}']['count']} lines have an accept {words} {limit:g}")
        if self.lines.fields:
            facts["other_fields"] = dict(self.lines.fields)
        for (graph, kind), times in self.lines.graphs.items():
            facts.setdefault("graphs", {}).setdefault(graph, {})[kind] = times
        if asked.year is not None:
            facts["year"] = asked.year

    # ------------------------------------------------------------------------------------------------------- the screen

    def _screen(self, report: Report, rows: Sequence[dict[str, Any]], context: Context) -> None:
        """Set the first screen: a line for each server that differs, worst first, with its chart; then what to know."""
        report.screen = [report.headline, ""]
        failed = {(finding.where.file, finding.where.line) for finding in report.findings if finding.where is not None}
        lines = []
        files = len({row["file"] for row in rows}) > 1
        runs = len({(row["file"], row["segment"]) for row in rows}) > 1
        for row in sorted(rows, key=lambda row: -1.0 if row["accept_len_mean"] is None else row["accept_len_mean"]):
            key = Key(row["file"], row["segment"], "", row["origin"], row["engine"])
            name = " ".join(
                part
                for part in (
                    row["file"].rpartition("/")[2] if files else "",
                    f"run {row['segment']}" if runs and not files else "",
                    key.name,
                    row["window"] or "",
                )
                if part
            )
            series = next((one for other, one in self.lengths.items() if other._replace(server="") == key), None)
            mark, words = self._judged(series, (row["file"], row["first_line"]) in failed)
            mean = row["accept_len_mean"]
            limit = f" of {row['maximum']}" if row["maximum"] else ""
            text = (
                f"{mean:.2f}{limit}" if mean is not None else f"{row['accepted']:,} of {row['drafted']:,} draft tokens"
            )
            evidence = f"{count(row['rounds'], 'round')}, {context.at(Place(row['file'], row['first_line']))}"
            chart = None
            if series is not None and row["window"] is None and self.asked.by == "rank":
                chart = _chart(series)
            lines.append(
                (mark, name, mean, Line(mark, name or "accept len", f"{text}   {evidence}{words}", chart=chart))
            )
        order = ("error", "warning", "unknown", "ok", None)
        lines.sort(key=lambda line: order.index(line[0]))
        fine = [line for line in lines if line[0] == "ok"]
        if len(lines) > _FEW and len(fine) > 1:
            means = [mean for _, _, mean, _ in fine if mean is not None]
            lines = [line for line in lines if line[0] != "ok"]
            span = f"{min(means):.2f}" if min(means) == max(means) else f"{min(means):.2f} to {max(means):.2f}"
            others = f"{len(fine)} others" if lines else f"all {len(fine)}"
            lines.append(("ok", "", None, Line("ok", others, f"accept len {span}")))
        report.screen += [line for *_, line in lines]
        notes = [note for note in report.notes if note not in context.warnings]
        if notes:
            report.screen += ["", *(Line(None, note) for note in notes[:4])]
        if len(context.files) == 1:
            # The log is named by whoever asks: places are lines of it.
            for at, item in enumerate(report.screen):
                if isinstance(item, str):
                    report.screen[at] = item.replace(f"{context.files[0]}:", ":")
                elif isinstance(item, Line):
                    item.name = item.name.replace(f"{context.files[0]}:", ":")
        report.next = context.command("check")

    def _judged(self, series: Series | None, failed: bool) -> tuple[Any, str]:
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
        return "ok", ""


# ------------------------------------------------------------------------------------------------------------ wording


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _dip(levels: Sequence[Level], fall: Decline | None) -> tuple[Level, Level] | None:
    """Return the level of a fall that was made good, and the one after it; None for a fall that lasts, or none."""
    if len(levels) < _DIP_LEVELS or (fall is not None and fall.lasting):
        return None
    at = min(range(1, len(levels) - 1), key=lambda number_: levels[number_].mean)
    low, before = levels[at], max(level.mean for level in levels[:at])
    back = next((level for level in levels[at + 1 :] if low.mean <= (1 - _APART) * level.mean), None)
    lasts = low.mean <= (1 - _APART) * levels[-1].mean
    return (low, back) if back is not None and lasts and low.mean <= (1 - _APART) * before else None


def _of(name: str) -> str:
    return f" of {name}" if name else ""


def _lines(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first} to {last}"


def _places(file: str, levels: Sequence[Level]) -> str:
    shown = [f"{Place(file, level.first_line)}" + (f" ({level.time})" if level.time else "") for level in levels[1:6]]
    more = f" and {len(levels) - 6} more" if len(levels) > 6 else ""
    return ", ".join(shown) + more


def _duration(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def _weight_words(series: Sequence[Series]) -> str:
    """State the rounds of a line, how they are known, and the weight."""
    per_line = series[0].rounds_per_line
    if per_line is not None:
        rounds = f"{per_line} verify rounds (decode_log_interval of server_args)"
    else:
        grown = [growth for one in series if (growth := one.growth()) is not None]
        rounds = f"{DEFAULT_ROUNDS} verify rounds (SGLang's default; the log does not say decode_log_interval"
        if grown:
            low, high = min(grown), max(grown)
            says = f"{low:g}" if low == high else f"{low:g} to {high:g}"
            agrees = all(abs(growth - DEFAULT_ROUNDS) <= 0.1 * DEFAULT_ROUNDS for growth in grown)
            rounds += f"; the growth of #token {'agrees' if agrees else 'says otherwise'}: {says}"
        rounds += ")"
    return (
        f"each line counts as {rounds}; means are weighted by rounds x running requests, the mean of the "
        "numbers printed at both ends of its interval"
    )


def _level_row(level: Level) -> dict[str, Any]:
    return {
        "lines": level.lines, "rounds": round(level.rounds), "accept_len_mean": round(level.mean, 4),
        "first_line": level.first_line, "last_line": level.last_line, "from": level.time, "to": level.end_time,
        "running": _rounded(level.running, 2), "context": _rounded(level.context, 1),
        "token_usage": _rounded(level.usage, 4), "cached_per_prefill": _rounded(level.cached, 1),
        "seconds_per_round": _rounded(level.step, 5),
    }  # fmt: skip


def _chart(series: Series) -> Chart | None:
    """Return the chart of a process with its worst stretch marked: where nothing is accepted, or the lowest level."""
    points = series.points(_SHOWN)
    if len(points) < 2:
        return None
    values = [point["accept_len"] for point in points]
    starts = [point["line"] for point in points]
    worst = None
    stretches = series.long(series.floor)
    low = min(series.levels, key=lambda level: level.mean) if len(series.levels) > 1 else None
    if stretches:
        longest = max(stretches, key=lambda one: one.rounds)
        worst = (longest.first_line, longest.last_line)
    elif low is not None:
        worst = (low.first_line, low.last_line)
    inside = [at for at, line in enumerate(starts) if worst is not None and worst[0] <= line <= worst[1]]
    bounds = (inside[0], inside[-1] + 1) if inside and len(inside) < len(values) else None
    return Chart(values, low=1, high=max(series.maximum or 0, *values), worst=bounds)


# ---------------------------------------------------------------------------------------------- companions of a change

_COMPANIONS = (
    # name, attribute of a level, column of the rows, column of its lines, format
    ("running requests", "running", "running", "running_lines", "{:g}"),
    ("tokens in the cache", "context", "context", "context_lines", "{:,.0f}"),
    ("token usage", "usage", "usage", "usage_lines", "{:.2f}"),
    ("cached tokens a prefill", "cached", "cached", "prefills", "{:,.0f}"),
)


def _beside(series: Series) -> list[dict[str, Any]]:
    """Return how every companion moved with accept len: rank correlation over lines, means and order over levels."""
    rows = []
    levels = series.levels
    for name, attribute, column, lines, _ in _COMPANIONS:
        pairs = series.companion(column, lines)
        if not pairs:
            continue
        # Rounded: sums of the same numbers in another order are not a difference.
        by_level = [_rounded(getattr(level, attribute), 4) for level in levels]
        known = [value for value in by_level if value is not None]
        order = 0
        if len(levels) > 1 and len(known) == len(levels):
            order = same_order([level.mean for level in levels], known)
        rows.append(
            {
                "companion": name,
                "min": round(min(value for _, value in pairs), 4),
                "max": round(max(value for _, value in pairs), 4),
                "rank_correlation": _rounded(rank_correlation([one for one, _ in pairs], [two for _, two in pairs]), 3),
                "by_level": by_level,
                "order": {1: "same", -1: "opposite", 0: None}[order],
            }
        )
    return rows


def _beside_words(levels: Sequence[Level], rows: Sequence[dict[str, Any]], series: Series) -> Iterator[str]:
    """Say what moved together with accept len and what cannot be the cause, as far as the levels show it."""
    together = []
    formats = {name: form for name, _, _, _, form in _COMPANIONS}
    for row in rows:
        name, form = row["companion"], formats[row["companion"]]
        correlation = row["rank_correlation"]
        if name == "running requests" and row["min"] == row["max"] == series.stats.sums["running_low"]:
            yield f"running requests stay at {row['min']:g} throughout: the batch size is not the cause"
        # Two levels are always ordered; only together with the single lines does that say anything.
        elif row["order"] is not None and (len(levels) > 2 or (correlation is not None and abs(correlation) >= 0.5)):
            first, last = row["by_level"][0], row["by_level"][-1]
            together.append(f"{name} {form.format(first)} -> {form.format(last)} ({row['order']} order)")
    if together:
        every = "both levels" if len(levels) == 2 else f"all {len(levels)} levels"
        yield f"with accept len goes, in {every}: {', '.join(together)}; going together is no proof of a cause"
    steps = [level.step for level in levels if level.step is not None]
    if len(steps) == len(levels) and max(steps) <= 1.03 * min(steps):
        yield (
            f"the time of a round stays the same ({1000 * steps[0]:.1f} ms): throughput changed because accept len did"
        )


# -------------------------------------------------------------------------------------------------------------- tables

_WHO = (Column("file"), Column("segment", "run", "right"), Column("origin"), Column("engine"))


def _columns(words: str) -> list[Column]:
    """Return columns from words: ``name=title``, ``!`` always shown, ``>`` to the right and its unit, ``~`` a chart."""
    out = []
    for word in words.split():
        found = re.fullmatch(r"([\w]+)(?:=([^!>~]+))?(!?)(>?)([^~]*)(~?)", word)
        if found is None:
            raise ValueError(word)
        name, title, always, right, unit, spark = found.groups()
        title = title.replace("_", " ") if title else None
        out.append(Column(name, title, "right" if right else "left", unit or None, bool(always), bool(spark)))
    return out


def _add(
    report: Report, name: str, rows: list[dict[str, Any]], title: str, words: str, caption: str | None = None
) -> None:
    """Add a table when it has rows; its columns are those of a process and the named ones that have a value."""
    if rows:
        columns = without_empty([*_WHO, *_columns(words)], rows)
        optional = ("file", "segment", "engine", "origin")
        report.tables[name] = table(columns, rows, title=title, caption=caption, optional=optional)


def _accept_table(rows: list[dict[str, Any]]) -> Table:
    words = (
        "window lines> rounds> accept_len_mean=accept_len!> min!> median> max!> at_ceiling=at_max> "
        "rate_definition=rate! rate_rule=formula accept_rate_mean=accept_rate> accepted> drafted> running> "
        "context=cached_tokens> token_usage> "
        "cached_per_prefill=cached> throughput>token/s chart=accept_len_over_time~"
    )
    columns = without_empty([*_WHO, *_columns(words)], rows)
    return table(columns, rows, title="acceptance", optional=("file", "segment", "engine"))
