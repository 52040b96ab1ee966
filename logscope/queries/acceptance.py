"""The answer of ``logscope accept``: what was accepted, since when, and beside what, in words and tables.

This module is responsible for the report alone. It must not know records or how they are collected (accept.py), nor how
a report is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from logscope.model import Finding, Place
from logscope.queries.intervals import DEFAULT_ROUNDS
from logscope.queries.series import DECLINE_ROUNDS, EXACT_LINES, Decline, Level, Series, Stats
from logscope.queries.tables import table, without_empty
from logscope.queries.trend import rank_correlation, same_order
from logscope.queries.words import and_list, count
from logscope.report import Column, Report, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from logscope.queries.accept import Accept
    from logscope.queries.intervals import Cumulative
    from logscope.report import Context

# How many places a list in the report names; all of them are counted.
NAMED = 20
# Points of the chart.
_POINTS = 60
# So much lower is a level a dip, or a process apart from the others; levels before, in and after a dip.
_APART = 0.15
_DIP_LEVELS = 3


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
        return _name(self.origin, self.engine)


class Server(NamedTuple):
    """One server in one segment of one file: its lines follow one definition of accept rate at a time."""

    file: str
    segment: int
    server: str


class Places:
    """Counts places and remembers the first few of them."""

    __slots__ = ("count", "first")

    def __init__(self) -> None:
        self.count = 0
        self.first: list[Place] = []

    def add(self, file: str, line: int, number: int = 1) -> None:
        """Take one, or a number of which it is the first."""
        self.count += number
        if len(self.first) < NAMED:
            self.first.append(Place(file, line))

    def fact(self) -> dict[str, Any]:
        """Return the count and the first places as JSON holds them."""
        return {"count": self.count, "places": [str(place) for place in self.first]}

    def __str__(self) -> str:
        """Return ``line 3, 7`` of the file, or full places when there are several files."""
        files = {place.file for place in self.first}
        more = f" and {self.count - len(self.first):,} more" if self.count > len(self.first) else ""
        if len(files) == 1:
            word = "lines" if len(self.first) > 1 else "line"
            return f"{word} {', '.join(str(place.line) for place in self.first)}{more}"
        return ", ".join(str(place) for place in self.first) + more


@dataclass(slots=True)
class Total:
    """The cumulative lines of one process: the first and the last."""

    first: Cumulative
    first_line: int
    last: Cumulative
    last_line: int
    lines: int = 1


class Answer:
    """Puts the collected lines into a report."""

    def __init__(self, fold: Accept) -> None:
        self.fold = fold
        self.levels = {key: series.levels() for key, series in fold.series.items()}
        self.declines = {key: series.decline(self.levels[key]) for key, series in fold.series.items()}

    def report(self, context: Context) -> Report:
        """Answer."""
        report = Report(self.fold.kind, self._headline(), accounting=context.accounting)
        report.notes.extend(context.warnings)
        rows = self._rows()
        report.tables["accept"] = _accept_table(rows)
        self._gate(rows, report)
        self._definitions(report)
        self._movement(report)
        self._uneven(report)
        self._extremes(report)
        self._positions(report)
        self._cumulative_table(report)
        self._weights(report)
        self._remarks(report)
        self._facts(report)
        if not self.fold.series and report.verdict == "ok":
            report.verdict = "unknown"
        return report

    def _groups(self) -> Iterator[tuple[Key, str | None, Stats, list[Series]]]:
        """Yield a key, a window's name, its sums and the series behind it, per row of the table."""
        items: Iterable[tuple[Key, Any, Stats]]
        if self.fold.window is None:
            items = [(key, None, series.stats) for key, series in self.fold.series.items()]
        else:
            items = [(key, at, stats) for (key, at), stats in self.fold.windows.items()]
        groups: dict[tuple[Key, Any], tuple[Stats, list[Series]]] = {}
        for key, at, stats in items:
            group = key
            if self.fold.by != "rank":
                group = key._replace(origin=key.server, engine=key.engine if self.fold.by == "engine" else None)
            if (group, at) not in groups:
                groups[group, at] = (Stats(), [])
            total, members = groups[group, at]
            total.merge(stats)
            members.append(self.fold.series[key])
        order = {key: at for at, (key, _) in enumerate(reversed(list(groups)))}
        for (key, _), (stats, members) in sorted(
            groups.items(), key=lambda group: (-order[group[0][0]], group[1][0].first_line)
        ):
            name = None if self.fold.window is None else str(stats.first_time or f"line {stats.first_line}")
            yield key, name, stats, members

    def _rows(self) -> list[dict[str, Any]]:
        rows = []
        for key, window, stats, members in self._groups():
            definition, rule = self.fold.definition(Server(*key[:3]), stats)
            speed = stats.speed()
            rounds_per_line = members[0].rounds_per_line or DEFAULT_ROUNDS
            one = definition is not None and definition != "mixed" and "," not in (rule or "")
            rows.append(
                {
                    "file": key.file,
                    "segment": key.segment,
                    "origin": key.origin,
                    "engine": key.engine,
                    "engine_evidence": None if key.engine is None else "inferred from the engine line before",
                    "window": window,
                    "lines": stats.lines,
                    "rounds": round(stats.rounds + stats.open_lines * rounds_per_line),
                    "accept_len_mean": _rounded(stats.mean, 4),
                    "min": stats.quantile(0),
                    "p10": _rounded(stats.quantile(0.1), 3),
                    "median": _rounded(stats.quantile(0.5), 3),
                    "p90": _rounded(stats.quantile(0.9), 3),
                    "max": stats.quantile(1),
                    "at_ceiling": stats.ceiling,
                    "maximum": members[0].maximum,
                    "rate_definition": definition,
                    "rate_rule": rule,
                    "accept_rate_mean": _rounded(stats.rate_mean, 4) if one else None,
                    "accepted": round(stats.accepted) if stats.drafted else None,
                    "drafted": round(stats.drafted) if stats.drafted else None,
                    "running": _mean(stats.running, 2),
                    "context": _mean(stats.context, 1),
                    "token_usage": _mean(stats.usage, 4),
                    "cached_per_prefill": _rounded(stats.cached / stats.prefills, 1) if stats.prefills else None,
                    "throughput": _rounded(speed.mean, 2) if speed else None,
                    "throughput_min": speed.slowest if speed else None,
                    "throughput_max": speed.fastest if speed else None,
                    "pauses": speed.left_out if speed else None,
                    "first_line": stats.first_line,
                    "last_line": stats.last_line,
                    "from": stats.first_time,
                    "to": stats.last_time,
                    "chart": _chart(members[0])[0] if len(members) == 1 and window is None else None,
                }
            )
        return rows

    def _headline(self) -> str:
        """Say the answer in one sentence; several servers are never averaged."""
        if not self.fold.series:
            without = self.fold.counts.get("without accept len")
            if without:
                return (
                    f"no line reports accept len: {count(without.count, 'decode line')} without it "
                    "(speculation is off, or not reported)"
                )
            if self.fold.totals:
                return (
                    f"only cumulative acceptance is printed, by {count(len(self.fold.totals), 'process', 'processes')}"
                )
            return "no line reports acceptance"
        servers: dict[Server, Stats] = {}
        engines = set()
        for key, series in self.fold.series.items():
            engines.add((*key[:3], key.engine))
            servers.setdefault(Server(*key[:3]), Stats()).merge(series.stats)
        fall = self._falls()
        if len(servers) == 1 and len(engines) == 1:
            (stats,) = servers.values()
            text = f"accept len {stats.mean or 0:.2f} over {count(stats.lines, 'line')}"
            processes = len(self.fold.series)
            text += f" of {count(processes, 'process', 'processes')}" if processes > 1 else ""
        else:
            means = [series.stats.mean or 0.0 for series in self.fold.series.values()]
            if len(servers) == 1:
                what = count(len(engines), "engine")
            elif len({server[2] for server in servers}) == 1 and len({server.server for server in servers}) == 1:
                what = count(len(servers), "run")
            else:
                what = count(len(servers), "server")
            text = f"accept len {min(means):.2f} to {max(means):.2f} across {what}"
        if fall is not None:
            return f"{text}; {fall}"
        apart = "; ".join(words for _, words in self._apart())
        return f"{text}{self._extreme_words()}{'; ' if apart else ''}{apart}"

    def _apart(self) -> Iterator[tuple[Key, str]]:
        """Yield the processes of one server that accept clearly less than all its others, in words.

        Nine of ten of their lines lie below nine of ten lines of every other process, and they are no more than the
        others: then nothing would say which of the two is the odd one.
        """
        servers: dict[Server, list[tuple[Key, Series]]] = {}
        for key, series in self.fold.series.items():
            if series.rounds >= DECLINE_ROUNDS and series.stats.mean is not None:
                servers.setdefault(Server(*key[:3]), []).append((key, series))
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
            (found.change, key, found) for key, found in self.declines.items() if found is not None and found.lasting
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
        series = [one for _, one in self.fold.series.items() if one.stats.lines]
        if all(len(one.bins) and one.stats.histogram.keys() <= {float(one.bonus)} for one in series):
            return ": nothing is accepted"
        if all(one.stats.ceiling * 2 > one.stats.lines for one in series):
            return ": at its maximum in most lines, which is suspicious rather than good"
        return ""

    def _gate(self, rows: Sequence[dict[str, Any]], report: Report) -> None:
        """Add a finding for every row below the minimum; without any line the gate cannot be passed."""
        if self.fold.minimum is None:
            return
        if not rows:
            message = f"no line reports accept len, so it cannot be shown to be at least {self.fold.minimum:g}"
            report.findings.append(Finding("accept-min", "error", message))
        for row in rows:
            mean = row["accept_len_mean"]
            if mean is not None and mean < self.fold.minimum:
                who = _who(row)
                report.findings.append(
                    Finding(
                        rule="accept-min",
                        severity="error",
                        message=f"accept len {mean:.2f}{who} is below {self.fold.minimum:g}",
                        where=Place(row["file"], row["first_line"]),
                        expected=f"at least {self.fold.minimum:g}",
                        actual=f"{mean:.4f}",
                        evidence=f"{count(row['lines'], 'line')}, {row['min']:.2f} to {row['max']:.2f}",
                    )
                )
        if report.findings:
            report.verdict = "findings"

    def _definitions(self, report: Report) -> None:
        """Add the ranges of lines in which each definition of accept rate holds."""
        rows = []
        for server, ranges in self.fold.rates.items():
            verdicts = self.fold.verdicts(server)
            for found, verdict in zip(ranges.ranges, verdicts, strict=True):
                rows.append(
                    {
                        "file": server.file,
                        "segment": server.segment,
                        "origin": server.server,
                        "definition": verdict.definition,
                        "rule": verdict.rule,
                        "draft_tokens": verdict.draft_tokens,
                        "first_line": found.first_line,
                        "last_line": found.last_line,
                        "lines": found.lines,
                        "accept_rate_mean": _rounded(found.mean, 4),
                        "min": found.smallest,
                        "max": found.largest,
                        "unexplained": found.unexplained,
                    }
                )
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
        if rows:
            uno = ", D = (len-2)/(N-1)" if any(row["definition"] == "D" for row in rows) else ""
            caption = (
                f"A = len/(s+1), B = len/N, C = (len-1)/(N-1){uno}, with s draft steps and N draft tokens a round; "
                "A|B cannot be told apart, ambiguous fits more than one"
            )
            columns = [
                Column("file"),
                Column("segment", "run", "right"),
                Column("origin"),
                Column("definition", always=True),
                Column("rule", always=True),
                Column("draft_tokens", "N", "right"),
                Column("first_line", align="right", always=True),
                Column("last_line", align="right", always=True),
                Column("lines", align="right"),
                Column("accept_rate_mean", "accept rate", "right"),
                Column("min", align="right"),
                Column("max", align="right"),
                Column("unexplained", align="right"),
            ]
            report.tables["rates"] = table(
                columns,
                rows,
                title="definition of accept rate",
                caption=caption,
                optional=("file", "segment", "origin", "unexplained"),
            )

    # ------------------------------------------------------------------------------------- levels, falls, companions

    def _movement(self, report: Report) -> None:
        """Add levels, holes, companions and the chart of every process."""
        level_rows: list[dict[str, Any]] = []
        charts: list[dict[str, Any]] = []
        beside_rows: list[dict[str, Any]] = []
        for key, series in self.fold.series.items():
            who = {"file": key.file, "segment": key.segment, "origin": key.origin, "engine": key.engine}
            levels = self.levels[key]
            previous: Level | None = None
            for at, level in enumerate(levels, 1):
                change = None if previous is None else _rounded(100 * (level.mean / previous.mean - 1), 1)
                level_rows.append({**who, "level": at, **_level_row(level), "change_percent": change})
                previous = level
            beside = _beside(series, levels)
            charts.append({**who, "points": _chart(series)[1], "beside": beside})
            if len(levels) > 1:
                beside_rows.extend({**who, **row} for row in beside)
            self._movement_notes(report, key, series, levels, beside)
        if len(level_rows) > len(self.fold.series):
            report.tables["levels"] = _levels_table(level_rows)
        if beside_rows:
            report.tables["beside"] = _beside_table(beside_rows)
        report.facts["series"] = charts

    def _movement_notes(
        self, report: Report, key: Key, series: Series, levels: Sequence[Level], beside: Sequence[dict[str, Any]]
    ) -> None:
        who = _of(key.name)
        found = self.declines[key]
        dip = _dip(levels, found)
        if dip is not None:
            low, back = dip
            report.notes.append(
                f"accept len{who} falls to {low.mean:.2f} over {count(low.lines, 'line')} from"
                f" {Place(key.file, low.first_line)} on, and rises again: {back.mean:.2f} from"
                f" {Place(key.file, back.first_line)} on"
            )
        elif found is not None:
            lasting = "" if found.lasting else ": short, small or not significant"
            if found.seen_before and found.low is not None:
                lasting = ": it was as low before, and rose again"
            report.notes.append(
                f"accept len{who} falls {self._fall_words(key, found)}; rank tests: "
                f"trend z = {found.trend_z:.1f}, levels z = {found.levels_z:.1f}{lasting}"
            )
        elif len(levels) > 1:
            first, last = levels[0], levels[-1]
            report.notes.append(
                f"accept len{who} changes its level {count(len(levels) - 1, 'time')}, from {first.mean:.2f} to "
                f"{last.mean:.2f}: at {_places(key.file, levels)}"
            )
        if len(levels) > 1:
            report.notes.extend(_beside_words(levels, beside, series))
        for hole in series.holes():
            between = ""
            for number_, (level, after) in enumerate(pairwise(levels), 1):
                if level.last_line <= hole.after_line and hole.before_line <= after.first_line:
                    between = f", between levels {number_} and {number_ + 1}"
            report.notes.append(
                f"no line{who} for {_duration(hole.seconds)} after {Place(key.file, hole.after_line)} "
                f"({hole.after_time} to {hole.before_time}){between}"
            )
        if series.bins.size > 1:
            report.notes.append(
                f"more than {EXACT_LINES:,} lines{who}: trends are computed on means of {series.bins.size} lines, "
                "with the extremes kept"
            )

    def _uneven(self, report: Report) -> None:
        """Say which process accepts less than the others of its server, and what may explain it."""
        for key, words in self._apart():
            place = Place(key.file, self.fold.series[key].stats.first_line)
            report.notes.append(
                f"{words}, from {place} on, in nine of ten lines: other requests, or a fault of that rank alone"
            )

    def _extremes(self, report: Report) -> None:
        """Say where nothing or everything was accepted, and which warnings stand beside it."""
        for key, series in self.fold.series.items():
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

    def _warned(self, key: Key, until: int) -> str:
        """Return the warnings printed in the same segment up to a line."""
        parts = []
        for event, words in (("nan_logits_warning", "NaN in the logits"), ("invalid_tree_warning", "an invalid tree")):
            places = self.fold.warnings.get((key.file, key.segment, event))
            if places is not None and places.first[0].line <= until:
                writers = len(self.fold.warners[key.file, key.segment, event])
                by = f" by {writers} processes" if writers > 1 else ""
                parts.append(f"{words} was warned of {count(places.count, 'time')}{by}, first at {places.first[0]}")
        return f"; {and_list(parts)}" if parts else ""

    def _positions(self, report: Report) -> None:
        """Add what lines that count draft tokens say: positions, readings, contradictions."""
        rows = []
        for key, series in self.fold.series.items():
            for length, sums in sorted(series.stats.positions.items()):
                if sums[0]:
                    rows.append(
                        {
                            "file": key.file,
                            "segment": key.segment,
                            "origin": key.origin,
                            "engine": key.engine,
                            "draft_tokens": length,
                            "drafts": round(sums[0]),
                            "positions": [round(value / sums[0], 4) for value in sums[1:]],
                        }
                    )
        if rows:
            report.tables["positions"] = table(
                [
                    Column("file"),
                    Column("segment", "run", "right"),
                    Column("origin"),
                    Column("engine"),
                    Column("draft_tokens", "k", "right"),
                    Column("drafts", align="right"),
                    Column("positions", "accepted at position 1, 2, ...", always=True),
                ],
                rows,
                title="acceptance by position",
                caption="k is the length of the printed list; means are weighted by drafts",
                optional=("file", "segment", "origin", "engine"),
            )
        for reading, places in self.fold.readings.items():
            report.notes.append(f"{places}: {reading}")
        if self.fold.violations:
            report.tables["violations"] = Table(
                [Column("where", always=True), Column("violation", always=True)],
                self.fold.violations,
                title="lines that contradict themselves",
            )
            total = self.fold.counts["violations"]
            be = "contradicts its" if total.count == 1 else "contradict their"
            report.notes.append(f"{count(total.count, 'metrics line')} {be} own numbers ({total})")

    def _cumulative_table(self, report: Report) -> None:
        """Add the lines of vLLM V0, which count since the start and are mixed with nothing."""
        rows = []
        for key, total in self.fold.totals.items():
            last = total.last
            rows.append(
                {
                    "file": key.file,
                    "segment": key.segment,
                    "origin": key.origin,
                    "lines": total.lines,
                    "line": total.last_line,
                    "draft_tokens": last.draft_tokens,
                    "tokens_per_verify": _rounded(last.tokens_per_verify, 3),
                    "rate": last.rate,
                    "system_efficiency": last.efficiency,
                    "accepted": last.accepted,
                    "drafted": last.drafted,
                    "emitted": last.emitted,
                    "accepted_since_first": _difference(last.accepted, total.first.accepted),
                    "drafted_since_first": _difference(last.drafted, total.first.drafted),
                }
            )
        if rows:
            report.tables["cumulative"] = table(
                [
                    Column("file"),
                    Column("segment", "run", "right"),
                    Column("origin"),
                    Column("lines", align="right"),
                    Column("draft_tokens", "k", "right"),
                    Column("tokens_per_verify", align="right", always=True),
                    Column("rate", align="right"),
                    Column("system_efficiency", align="right"),
                    Column("accepted", align="right"),
                    Column("drafted", align="right"),
                    Column("emitted", align="right"),
                    Column("accepted_since_first", align="right"),
                    Column("drafted_since_first", align="right"),
                ],
                rows,
                title="cumulative since the server's start, last line",
                caption="positions behind a rejection count as accepted here: this rate compares with no other",
                optional=("file", "segment", "origin"),
            )

    # -------------------------------------------------------------------------------------------------- how it is known

    def _weights(self, report: Report) -> None:
        """State the weights of the means, and the rounds that no line covers."""
        for (file, number_), members in groupby(
            self.fold.series.items(), key=lambda pair: (pair[0].file, pair[0].segment)
        ):
            found = list(members)
            where = f" of run {number_} of {file}" if len(self.fold.segments) > 1 else ""
            open_lines = [series for _, series in found if series.stats.open_lines]
            if len(open_lines) < len(found) or any(series.stats.rounds for _, series in found):
                report.notes.append(f"means{where} are weighted by the verifies that lines print or their drafts give")
            if open_lines:
                report.notes.append(_weight_words(open_lines, where))
                self._unprinted(report, file, number_, open_lines, where)

    def _unprinted(self, report: Report, file: str, number_: int, series: Sequence[Series], where: str) -> None:
        per_line = series[0].rounds_per_line or DEFAULT_ROUNDS
        covered = sum(one.stats.open_lines for one in series) * per_line
        seen = self.fold.verifies.get((file, number_), 0)
        if seen >= covered:
            text = (
                f"{count(seen, 'verify', 'verifies')}{where} are printed and the lines cover {covered:,} rounds: "
                f"{count(seen - covered, 'round')} in no line"
            )
        else:
            text = (
                f"the lines{where} cover {covered:,} rounds; up to {per_line - 1} rounds of each process after its "
                "last line are in no line"
            )
        report.notes.append(text)

    def _remarks(self, report: Report) -> None:
        """Say what was left out, assumed or inferred."""
        notes, counts = report.notes, self.fold.counts
        pauses = sum(speed.left_out for series in self.fold.series.values() if (speed := series.stats.speed()))
        if pauses:
            cover = (
                "covers a pause or prints no speed and is" if pauses == 1 else "cover a pause or print no speed and are"
            )
            notes.append(f"{count(pauses, 'line')} {cover} left out of the throughput")
        if "without accept len" in counts:
            places = counts["without accept len"]
            notes.append(
                f"{count(places.count, 'decode line')} without accept len ({places}): speculation is off or not "
                "reported there, which is not zero acceptance"
            )
        if "drafting off" in counts:
            places = counts["drafting off"]
            notes.append(
                f"{count(places.count, 'line')} while drafting was switched off ({places}): 1.00 is all there can be"
            )
        if "no drafts" in counts:
            places = counts["no drafts"]
            notes.append(f"{count(places.count, 'line')} without drafts ({places}): neither zero acceptance nor full")
        if "without bonus" in counts:
            notes.append(
                f"{counts['without bonus']}: the printed length leaves the bonus token out (older vLLM); 1 is added"
            )
        if any(key.engine is not None for key in self.fold.series):
            notes.append("engine numbers are inferred from the engine line before each metrics line of a process")
        if "damaged" in counts:
            places = counts["damaged"]
            be = "is damaged and enters" if places.count == 1 else "are damaged and enter"
            notes.append(f"{count(places.count, 'statistics line')} {be} no statistic ({places})")
        if "of the warm-up" in counts:
            places = counts["of the warm-up"]
            be = "is" if places.count == 1 else "are"
            notes.append(f"{count(places.count, 'line')} of the warm-up {be} left out, from {places.first[0]}")
        if "switches" in counts:
            notes.append(
                f"the number of draft tokens was switched {count(counts['switches'].count, 'time')} "
                f"({counts['switches']}): accept len and rate have another maximum after each"
            )
        if "repeated" in counts:
            notes.append(
                f"{counts['repeated']} stands for {self.fold.repeated} more lines that Ray hid; counts and sums are "
                "lower bounds from there on"
            )
        self._memory(report)
        if "out of order" in counts:
            places = counts["out of order"]
            notes.append(f"time goes back at {count(places.count, 'line')} ({places}); lines are taken in file order")
        for file in self.fold.files.values():
            notes.extend(file.clock.assumptions())

    def _memory(self, report: Report) -> None:
        if self.fold.full is None:
            return
        place, usage, queue = self.fold.full
        queued = f" with {queue:,.0f} queued requests" if queue else ""
        retractions = self.fold.counts.get("retractions")
        retracted = f"; requests are retracted ({retractions})" if retractions else ""
        report.notes.append(f"token usage is {usage:.2f}{queued} at {place}: the cache is full{retracted}")

    def _facts(self, report: Report) -> None:
        facts = report.facts
        servers: dict[Server, Stats] = {}
        for key, series in self.fold.series.items():
            servers.setdefault(Server(*key[:3]), Stats()).merge(series.stats)
        engines = {key.engine for key in self.fold.series}
        if len(servers) == 1 and len(engines) == 1:
            (stats,) = servers.values()
            facts["accept_len_mean"] = _rounded(stats.mean, 4)
        facts["lines"] = sum(series.stats.lines for series in self.fold.series.values())
        for name, places in self.fold.counts.items():
            if name not in ("below", "above"):
                facts[f"lines_{name.replace(' ', '_')}"] = places.fact()
        if self.fold.below is not None:
            facts["lines_below"] = {"limit": self.fold.below, **self.fold.counts.get("below", Places()).fact()}
            report.notes.append(f"{facts['lines_below']['count']} lines have an accept len below {self.fold.below:g}")
        if self.fold.above is not None:
            facts["lines_above"] = {"limit": self.fold.above, **self.fold.counts.get("above", Places()).fact()}
            report.notes.append(f"{facts['lines_above']['count']} lines have an accept rate above {self.fold.above:g}")
        if self.fold.fields:
            facts["other_fields"] = dict(self.fold.fields)
        if self.fold.graphs:
            facts["graphs"] = self.fold.graphs
        if self.fold.year is not None:
            facts["year"] = self.fold.year


# ------------------------------------------------------------------------------------------------------------ wording


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _mean(sums: Sequence[float], digits: int) -> float | None:
    return round(sums[0] / sums[1], digits) if sums[1] else None


def _difference(last: float | None, first: float | None) -> float | None:
    return None if last is None or first is None else last - first


def _dip(levels: Sequence[Level], fall: Decline | None) -> tuple[Level, Level] | None:
    """Return the level of a fall that was made good, and the one after it; None for a fall that lasts, or none."""
    if len(levels) < _DIP_LEVELS or (fall is not None and fall.lasting):
        return None
    at = min(range(1, len(levels) - 1), key=lambda number: levels[number].mean)
    low, before = levels[at], max(level.mean for level in levels[:at])
    back = next((level for level in levels[at + 1 :] if low.mean <= (1 - _APART) * level.mean), None)
    lasts = low.mean <= (1 - _APART) * levels[-1].mean
    return (low, back) if back is not None and lasts and low.mean <= (1 - _APART) * before else None


def _name(origin: str, engine: str | None) -> str:
    return origin if engine is None else f"{origin} engine {engine}".strip()


def _of(name: str) -> str:
    return f" of {name}" if name else ""


def _who(row: dict[str, Any]) -> str:
    window = f" from {row['window']}" if row["window"] else ""
    return f"{_of(_name(row['origin'], row['engine']))}{window}"


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


def _weight_words(series: Sequence[Series], where: str) -> str:
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
        f"each line{where} counts as {rounds}; means are weighted by rounds x running requests, the mean of the "
        "numbers printed at both ends of its interval"
    )


def _level_row(level: Level) -> dict[str, Any]:
    return {
        "lines": level.lines,
        "rounds": round(level.rounds),
        "accept_len_mean": round(level.mean, 4),
        "first_line": level.first_line,
        "last_line": level.last_line,
        "from": level.time,
        "to": level.end_time,
        "running": _rounded(level.running, 2),
        "context": _rounded(level.context, 1),
        "token_usage": _rounded(level.usage, 4),
        "cached_per_prefill": _rounded(level.cached, 1),
        "seconds_per_round": _rounded(level.step, 5),
    }


# ---------------------------------------------------------------------------------------------- companions of a change

_COMPANIONS = (
    # name, attribute of a level, column of the bins, column of its lines, format
    ("running requests", "running", "running", "running_lines", "{:g}"),
    ("context", "context", "context", "context_lines", "{:,.0f} tokens"),
    ("token usage", "usage", "usage", "usage_lines", "{:.2f}"),
    ("cached tokens a prefill", "cached", "cached", "prefills", "{:,.0f}"),
)


def _beside(series: Series, levels: Sequence[Level]) -> list[dict[str, Any]]:
    """Return how every companion moved with accept len: rank correlation over lines, means and order over levels."""
    columns, lengths = series.bins.columns, series.bins.means()
    rows = []
    for name, attribute, column, lines, _ in _COMPANIONS:
        pairs = [
            (length, value / number_)
            for length, value, number_ in zip(lengths, columns[column], columns[lines], strict=True)
            if number_
        ]
        if not pairs:
            continue
        # Rounded: sums of the same numbers in another order are not a difference.
        by_level = [_rounded(getattr(level, attribute), 4) for level in levels]
        known = [value for value in by_level if value is not None]
        order = 0
        if len(levels) > 1 and len(known) == len(levels):
            order = same_order([level.mean for level in levels], known)
        correlation = rank_correlation([one for one, _ in pairs], [other for _, other in pairs])
        rows.append(
            {
                "companion": name,
                "min": round(min(value for _, value in pairs), 4),
                "max": round(max(value for _, value in pairs), 4),
                "rank_correlation": _rounded(correlation, 3),
                "by_level": by_level,
                "order": {1: "same", -1: "opposite", 0: None}[order],
            }
        )
    return rows


def _beside_words(levels: Sequence[Level], rows: Sequence[dict[str, Any]], series: Series) -> list[str]:
    """Say what moved together with accept len and what cannot be the cause, as far as the levels show it."""
    out, together = [], []
    formats = {name: form for name, _, _, _, form in _COMPANIONS}
    for row in rows:
        name, form = row["companion"], formats[row["companion"]]
        correlation = row["rank_correlation"]
        if name == "running requests" and row["min"] == row["max"] and series.stats.running_range[0] == row["min"]:
            out.append(f"running requests stay at {row['min']:g} throughout: the batch size is not the cause")
        # Two levels are always ordered; only together with the single lines does that say anything.
        elif row["order"] is not None and (len(levels) > 2 or (correlation is not None and abs(correlation) >= 0.5)):
            first, last = row["by_level"][0], row["by_level"][-1]
            together.append(f"{name} {form.format(first)} -> {form.format(last)} ({row['order']} order)")
    if together:
        every = "both levels" if len(levels) == 2 else f"all {len(levels)} levels"
        out.append(f"with accept len goes, in {every}: {', '.join(together)}; going together is no proof of a cause")
    steps = [level.step for level in levels if level.step is not None]
    if len(steps) == len(levels) and max(steps) <= 1.03 * min(steps):
        out.append(
            f"the time of a round stays the same ({1000 * steps[0]:.1f} ms): throughput changed because accept len did"
        )
    return out


# -------------------------------------------------------------------------------------------------------------- tables


def _chart(series: Series) -> tuple[list[float], list[dict[str, Any]]]:
    """Return at most 60 points of a series, in order: means for the chart, and rows with their extremes."""
    bins = series.bins
    total = len(bins)
    step = max(1, -(-total // _POINTS))
    means, rows = [], []
    columns = bins.columns
    for start in range(0, total, step):
        stop = min(start + step, total)
        mean = round(bins.total("weighted", start, stop) / bins.total("weight", start, stop), 3)
        means.append(mean)
        rows.append(
            {
                "line": int(columns["first"][start]),
                "time": bins.times[start],
                "lines": int(bins.total("lines", start, stop)),
                "accept_len": mean,
                "min": min(columns["smallest"][start:stop]),
                "max": max(columns["largest"][start:stop]),
                "running": _rounded(bins.mean("running", start, stop, "running_lines"), 2),
                "token_usage": _rounded(bins.mean("usage", start, stop, "usage_lines"), 4),
            }
        )
    return means, rows


_WHO = (Column("file"), Column("segment", "run", "right"), Column("origin"), Column("engine"))
_OPTIONAL = ("file", "segment", "engine")


def _accept_table(rows: list[dict[str, Any]]) -> Table:
    columns = [
        *_WHO,
        Column("window"),
        Column("lines", align="right"),
        Column("rounds", align="right"),
        Column("accept_len_mean", "accept len", "right", always=True),
        Column("min", align="right", always=True),
        Column("median", align="right"),
        Column("max", align="right", always=True),
        Column("at_ceiling", "at max", "right"),
        Column("rate_definition", "rate", always=True),
        Column("rate_rule", "formula"),
        Column("accept_rate_mean", "accept rate", "right"),
        Column("accepted", align="right"),
        Column("drafted", align="right"),
        Column("running", align="right"),
        Column("context", align="right"),
        Column("token_usage", align="right"),
        Column("cached_per_prefill", "cached", "right"),
        Column("throughput", align="right", unit="token/s"),
        Column("chart", "accept len over time", spark=True),
    ]
    return table(without_empty(columns, rows), rows, title="acceptance", optional=_OPTIONAL)


def _levels_table(rows: list[dict[str, Any]]) -> Table:
    columns = [
        *_WHO,
        Column("level", align="right"),
        Column("lines", align="right"),
        Column("rounds", align="right"),
        Column("accept_len_mean", "accept len", "right", always=True),
        Column("change_percent", "change", "right", unit="%"),
        Column("first_line", "from line", "right", always=True),
        Column("from", always=True),
        Column("running", align="right"),
        Column("context", align="right"),
        Column("token_usage", align="right"),
        Column("cached_per_prefill", "cached", "right"),
        Column("seconds_per_round", "round", "right", unit="s"),
    ]
    return table(without_empty(columns, rows), rows, title="levels", optional=(*_OPTIONAL, "origin"))


def _beside_table(rows: list[dict[str, Any]]) -> Table:
    columns = [
        *_WHO,
        Column("companion", always=True),
        Column("min", align="right"),
        Column("max", align="right"),
        Column("rank_correlation", align="right", always=True),
        Column("by_level", spark=True),
        Column("order"),
    ]
    return table(
        columns,
        rows,
        title="beside accept len",
        caption="rank correlation with accept len over lines (Spearman); the order over levels, same or opposite",
        optional=(*_OPTIONAL, "origin", "order"),
    )
