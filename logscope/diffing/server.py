"""What the server lines of two runs say differs: set-up, errors, acceptance.

This module is responsible for comparing what is no forward pass, and for adding it to the report of a diff. It must not
know how passes are compared.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from logscope.diffing.side import ERRORS
from logscope.diffing.words import SIDES
from logscope.model import Finding, Place
from logscope.queries.acceptance.series import DECLINE_SHARE, DECLINE_Z, STRETCH_LINES, STRETCH_ROUNDS
from logscope.queries.arguments import NOT_PRINTED, shown
from logscope.queries.config import differences, settings
from logscope.queries.words import and_list, count
from logscope.report import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from logscope.diffing.side import Side
    from logscope.queries.acceptance import Stats
    from logscope.report import Report

# Settings that are no argument but are told by other lines, or not.
_INFERRED = frozenset({"spec_version", "draft_type", "target_type", "kv_tokens", "graphs_captured"})
# Arguments that decide how much fits and how it is scheduled, not what is computed.
_SCHEDULING = ("memory", "other")
_ALL = "all"


def add_table(
    report: Report, name: str, rows: list[dict[str, Any]], columns: list[Column], title: str, caption: str | None = None
) -> None:
    """Add a table when it has rows; columns that are empty throughout are not shown."""
    if rows:
        kept = [column for column in columns if column.always or any(row.get(column.name) for row in rows)]
        report.tables[name] = Table(kept, rows, title, caption)


class Servers:
    """Compares the server lines of two sides and adds what differs to a report."""

    def __init__(self, sides: tuple[Side, Side], report: Report) -> None:
        self.sides = sides
        self.report = report

    def configuration(self) -> list[str]:
        """Add what differs in the set-up; return what of it decides about states and acceptance, in words."""
        lives = [side.lives() for side in self.sides]
        if not lives[0] or not lives[1]:
            lacking = [f"the {name} prints none" for name, known in zip(SIDES, lives, strict=True) if not known]
            self.report.notes.append(f"server arguments are not compared: {and_list(lacking)}")
            return []
        several = len(lives[0]) == len(lives[1]) > 1
        if len(lives[0]) != len(lives[1]):
            numbers = " and ".join(str(len(known)) for known in lives)
            self.report.notes.append(
                f"the runs hold {numbers} server lives: the set-up of the first of each is compared"
            )
        rows, mattering = [], []
        for one, other in zip(lives[0] if several else lives[0][:1], lives[1], strict=False):
            for found in differences(settings(one), settings(other)):
                reason = found.reason
                if reason is None and found.key in _INFERRED and NOT_PRINTED in (found.a, found.b):
                    reason = "not told by one of the logs"
                elif reason is None and found.group in _SCHEDULING:
                    reason = "decides what fits and when, not what is computed"
                matters = reason is None
                values = shown(found.key, found.a), shown(found.key, found.b)
                rows.append(
                    {
                        "argument": found.key,
                        "baseline": values[0],
                        "candidate": values[1],
                        "matters": matters,
                        "reason": reason,
                        "segment": one.segment.number,
                    }
                )
                if matters:
                    mattering.append(f"{found.key} {values[0]} -> {values[1]}")
                    self.report.findings.append(
                        Finding(
                            "D101",
                            "warning",
                            f"{found.key} differs: {values[0]} against {values[1]}",
                            other.place,
                            values[0],
                            values[1],
                            f"baseline {one.place}",
                        )
                    )
        self.report.facts["configuration"] = [row["argument"] for row in rows if row["matters"]]
        columns = [Column("argument", always=True), Column("baseline", always=True), Column("candidate", always=True)]
        columns += [Column("matters"), Column("reason", "why not")]
        add_table(self.report, "configuration", rows, columns, "configuration: what differs, what matters first")
        return mattering

    def errors(self) -> None:
        """Add errors that only one run prints: the first of a run as a finding, all in the table."""
        rows = []
        for side, name in enumerate(SIDES):
            mine, theirs = self.sides[side].errors, self.sides[1 - side].errors
            alone = [(key[0], seen) for key, seen in mine.items() if key not in theirs]
            rows += [
                {"only_in": name, "event": event, "message": seen.text, "times": seen.count, "first": str(seen.place)}
                for event, seen in alone
            ]
            if alone:
                event, seen = alone[0]
                more = f" (and {count(len(alone) - 1, 'further message')})" if len(alone) > 1 else ""
                severity = min((ERRORS[event] for event, _ in alone), key=("error", "warning", "note").index)
                message = f"only the {name} prints {event.replace('_', ' ')}: {seen.text}{more}"
                self.report.findings.append(Finding("D105", severity, message, seen.place))
        columns = [
            Column("only_in", "only in", always=True),
            Column("event", always=True),
            Column("message", always=True),
        ]
        columns += [Column("times", align="right"), Column("first")]
        add_table(self.report, "errors", rows, columns, "errors that only one run prints")

    def acceptance(self) -> None:
        """Compare accept len and, where both follow one definition, accept rate."""
        totals = [side.total() for side in self.sides]
        rows = [row for name, side in zip(SIDES, self.sides, strict=True) for row in _accept_rows(name, side)]
        columns = [Column("side", always=True), Column("process"), Column("lines", align="right")]
        columns += [Column("accept_len_mean", "accept len", align="right", always=True)]
        columns += [Column(name, align="right") for name in ("min", "max")]
        columns += [Column("accept_rate_mean", "accept rate", align="right"), Column("definition"), Column("rule")]
        columns += [Column("running", align="right"), Column("tokens_per_second", "token/s", align="right")]
        add_table(
            self.report, "acceptance", rows, columns, "acceptance and throughput, one row per process and all together"
        )
        if totals[0] is None or totals[1] is None:
            lacking = [name for name, total in zip(SIDES, totals, strict=True) if total is None]
            if len(lacking) == 1:
                self.report.notes.append(f"acceptance is not compared: the {lacking[0]} prints none")
            return
        self.report.facts["acceptance"] = fact = {
            name: {key: row[key] for key in ("lines", "accept_len_mean", "accept_rate_mean", "definition", "running")}
            for name in SIDES
            for row in rows
            if row["side"] == name and row["process"] == _ALL
        }
        self._definitions(fact)
        self._accept_change((totals[0], totals[1]), fact)

    def _accept_change(self, totals: tuple[Stats, Stats], fact: dict[str, Any]) -> None:
        """Judge a change of the mean accept len.

        It is worth a warning when it is as much as rule A103 asks for, on the lines and rounds that A101 needs, and
        beyond chance.
        """
        means = totals[0].mean or 0.0, totals[1].mean or 0.0
        if not means[0]:
            return
        change = fact["change"] = (means[1] - means[0]) / means[0]
        rounds = [side.rounds() for side in self.sides]
        enough = min(rounds) >= STRETCH_ROUNDS and all(
            one.lines >= STRETCH_LINES or one.sums["drafted"] for one in totals
        )
        z = _z(totals)
        text = f"accept len {means[0]:.2f} -> {means[1]:.2f} ({100 * change:+.0f} %){self._rate_words(fact)}"
        lines = " against ".join(f"{count(one.lines, 'line')}, {one.sums['weight']:,.0f} verifies" for one in totals)
        # Relative to the larger mean, so that a rise and the same fall weigh alike.
        large = abs(means[1] - means[0]) >= DECLINE_SHARE * max(means)
        fact["evidence"] = "strong" if enough and z > DECLINE_Z else "weak"
        if not large:
            return
        place = self._accept_place()
        if fact["evidence"] == "strong":
            spread = _spread(self.sides)
            self.report.findings.append(Finding("D104", "warning", text, place, evidence=f"{lines}{spread}"))
        else:
            message = f"{text}: weak evidence, {lines} of the log"
            self.report.findings.append(Finding("D104", "note", message, place))

    def _rate_words(self, fact: dict[str, Any]) -> str:
        """Return how the accept rate changes, where both runs define it alike."""
        if not fact["rates_comparable"]:
            return ""
        one, other = fact[SIDES[0]], fact[SIDES[1]]
        rule = _definition(self.sides[0])
        meaning = f"{rule[1]}, definition {rule[0]}" if rule is not None else ""
        return f", accept rate {one['accept_rate_mean']:.2f} -> {other['accept_rate_mean']:.2f} (both {meaning})"

    def _accept_place(self) -> Place | None:
        """Return the candidate's first acceptance line."""
        firsts = [(key.file, series.stats.first_line) for key, series in self.sides[1].accept.series.items()]
        return Place(*firsts[0]) if firsts else None

    def _definitions(self, fact: dict[str, Any]) -> None:
        """Say whether the printed rates may be compared."""
        rules = [_definition(side) for side in self.sides]
        fact["rates_comparable"] = rules[0] == rules[1] and rules[0] is not None and rules[0][0] != "ambiguous"
        if rules[0] == rules[1] or None in rules:
            return
        one, other = (f"{rule[1]} ({rule[0]})" if rule is not None else "" for rule in rules)
        message = f"accept rates are not compared: the baseline's follow {one}, the candidate's {other}"
        self.report.findings.append(Finding("A104", "note", message, self._accept_place()))


def _accept_rows(name: str, side: Side) -> Iterator[dict[str, Any]]:
    """Yield one row per process that prints acceptance, and one for all when there are several."""
    total = side.total()
    if total is None:
        return
    rule = _definition(side)
    parts = [(key.origin or key.server or "", series.stats) for key, series in side.accept.series.items()]
    rows = []
    for process, stats in parts:
        mean = stats.running[0] / stats.running[1] if stats.running[1] else None
        rows.append(_accept_row(name, process, stats, mean, rule))
    whole = _accept_row(name, _ALL, total, None, rule)
    # Requests that run, and tokens that come, at one moment: those of all processes, not the sum over lines.
    for key in ("running", "tokens_per_second"):
        known = [row[key] for row in rows if row[key] is not None]
        whole[key] = round(sum(known), 4) if known else None
    yield whole
    if len(parts) > 1:
        yield from rows


def _accept_row(
    name: str, process: str, stats: Stats, running: float | None, rule: tuple[str, str] | None
) -> dict[str, Any]:
    lengths = sorted(stats.histogram)
    speed = stats.speed()
    return {
        "side": name,
        "process": process,
        "lines": stats.lines,
        "accept_len_mean": _rounded(stats.mean),
        "min": lengths[0] if lengths else None,
        "max": lengths[-1] if lengths else None,
        "accept_rate_mean": _rounded(stats.rate_mean) if rule is not None else None,
        "definition": rule[0] if rule is not None else None,
        "rule": rule[1] if rule is not None else None,
        "running": _rounded(running),
        "tokens_per_second": None if speed is None else round(speed.mean, 1),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _definition(side: Side) -> tuple[str, str] | None:
    """Return the one definition of accept rate a run follows, None when it prints no rate, ``mixed`` for several."""
    found = {
        (verdict.definition, verdict.rule) for server in side.accept.rates for verdict in side.accept.verdicts(server)
    }
    if len(found) > 1:
        return ("mixed", "several definitions")
    return found.pop() if found else None


def _z(totals: tuple[Stats, Stats]) -> float:
    """Return how many standard errors the mean accept lens of two sides lie apart."""
    apart = abs((totals[0].mean or 0.0) - (totals[1].mean or 0.0))
    error = math.hypot(totals[0].error, totals[1].error)
    return apart / error if error else math.inf if apart else 0.0


def _spread(sides: Iterable[Side]) -> str:
    """Say whether all processes of a side accept alike."""
    words = []
    for name, side in zip(SIDES, sides, strict=True):
        means = [series.stats.mean for series in side.accept.series.values() if series.stats.mean is not None]
        if len(means) > 1:
            words.append(
                f"{name}: {min(means):.4g} to {max(means):.4g} over {count(len(means), 'process', 'processes')}"
            )
    return f"; {'; '.join(words)}" if words else ""
