"""What the server lines of two runs say differs: set-up, errors, acceptance.

This module is responsible for asking both runs the same questions (``config``, ``errors``, ``accept``), for joining
the answers on their keys, and for adding what differs to the report of a diff. It must not know how passes are
compared, nor how those questions read a log.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from logscope.asking import Asked
from logscope.model import Finding, Place
from logscope.queries.acceptance import Accept
from logscope.queries.arguments import NOT_PRINTED, differences, shown
from logscope.queries.config import Config
from logscope.queries.errors import Errors
from logscope.queries.words import and_list, count
from logscope.report import Column, Table

if TYPE_CHECKING:
    from logscope.report import Context, Report
    from logscope.tables.tables import Tables

SIDES = ("baseline", "candidate")
# Settings that other lines than the arguments tell, or do not.
_INFERRED = frozenset({"spec_version", "kv_tokens", "graphs_captured"}) | {
    f"{role}_{what}" for role in ("target", "draft") for what in ("type", "quant", "dtype", "attention_backend")
}
# Arguments that decide how much fits and how it is scheduled, not what is computed.
_SCHEDULING = ("memory", "other")
# What can explain other states or another acceptance by itself, the most telling first.
_EXPLAINS = ("quant", "dtype", "type", "attention", "layers", "model_path", "algorithm")
# A change of the mean accept len that matters: as large as rule A103 asks for, on the verify rounds that A101 needs,
# and so many standard errors beyond chance.
_SHARE, _ROUNDS, _Z = 0.15, 80, 4.0
# Warnings that speak of the model's values, and the most records outside of passes that are looked at in a batch.
_WARNED = ("nan_logits_warning", "invalid_tree_warning")
_MOST = 10_000


@dataclass(slots=True)
class Seen:
    """Something that was printed: where first, and how often."""

    place: Place
    count: int = 0


class Asking:
    """The questions about a run that both sides of a diff are asked, while its batches come."""

    def __init__(self) -> None:
        self._asked = [Asked(question) for question in (Config(), Errors(), Accept())]
        self._warned: dict[str, Seen] = {}
        self._strays: dict[tuple[Any, ...], Seen] = {}

    def add(self, tables: Tables) -> None:
        """Take the next batch."""
        for asked in self._asked:
            asked.add(tables)
        event = pl.col("event").cast(pl.String)
        rows = tables.server.with_row_index("row").filter(kind="event")
        for name, line, file in rows.filter(event.is_in(_WARNED)).select(event, "line", "file").iter_rows():
            self._warned.setdefault(name, Seen(Place(tables.files[file], line))).count += 1
        strays = rows.filter(pl.col("site").is_not_null() & (event != "capture_plan"))
        for row, name, line, file in strays.select("row", event, "line", "file").head(_MOST).iter_rows():
            said = tables.payload(row)
            key = name, said.layer, said.shape, said.norm
            self._strays.setdefault(key, Seen(Place(tables.files[file], line))).count += 1

    def answers(self, context: Context) -> Answers:
        """Return what they found."""
        config, errors, accept = (asked.report(context) for asked in self._asked)
        return Answers(config, errors, accept, self._warned, self._strays)


class Answers:
    """What server lines of one run say: ``runs`` (server lives whose set-up is known), ``errors``, ``accept`` rows."""

    def __init__(self, config: Report, errors: Report, accept: Report, warned: Any, strays: Any) -> None:
        self.warned: dict[str, Seen] = warned
        self.strays: dict[tuple[Any, ...], Seen] = strays
        self.runs = [run for run in config.facts["runs"] if run["server_args"] or run["derived"]]
        self.errors = {(row["exception"], row["message"]): row for row in errors.facts["errors"]}
        rows = accept.tables["accept"].rows if "accept" in accept.tables else []
        self.accept = [row for row in rows if row["window"] is None and row["accept_len_mean"] is not None]
        rates = accept.tables["rates"].rows if "rates" in accept.tables else []
        self.rules = {(row["definition"], row["rule"]) for row in rates}

    @property
    def rule(self) -> tuple[str, str] | None:
        """The one definition of accept rate the run follows, None when it prints no rate, ``mixed`` for several."""
        return ("mixed", "several definitions") if len(self.rules) > 1 else next(iter(self.rules), None)

    def whole(self) -> dict[str, Any] | None:
        """Return the acceptance of all processes together, weighed by verify rounds; None when none is printed."""
        if not self.accept:
            return None
        rounds = sum(row["rounds"] for row in self.accept)
        return {
            "lines": sum(row["lines"] for row in self.accept),
            "rounds": rounds,
            "accept_len_mean": _mean(self.accept, "accept_len_mean"),
            "min": min(row["min"] for row in self.accept),
            "max": max(row["max"] for row in self.accept),
            "accept_rate_mean": _mean(self.accept, "accept_rate_mean") if self.rules else None,
            "definition": self.rule and self.rule[0],
            "rule": self.rule and self.rule[1],
            "running": _sum(self.accept, "running"),
            "tokens_per_second": _sum(self.accept, "throughput"),
        }


def _mean(rows: list[dict[str, Any]], name: str) -> float | None:
    known = [(row[name], row["rounds"] or row["lines"]) for row in rows if row[name] is not None]
    weight = sum(number for _, number in known)
    return round(sum(value * number for value, number in known) / weight, 4) if weight else None


def _sum(rows: list[dict[str, Any]], name: str) -> float | None:
    """Return what runs at one moment in all processes."""
    known = [row[name] for row in rows if row[name] is not None]
    return round(sum(known), 4) if known else None


def add_table(
    report: Report, name: str, rows: list[dict[str, Any]], title: str, names: str, caption: str | None = None
) -> None:
    """Add a table when it has rows; columns that are empty throughout are not shown.

    ``names`` are its columns: ``=heading``, then ``!`` behind one that is always shown, ``>`` behind one that is set
    right.
    """
    columns = []
    for word in names.split():
        key, _, heading = word.rstrip("!>").partition("=")
        told = heading.replace("_", " ") or None
        column = Column(key, told, "right" if ">" in word else "left", always="!" in word)
        if column.always or any(row.get(key) for row in rows):
            columns.append(column)
    if rows:
        report.tables[name] = Table(columns, rows, title, caption)


def configuration(sides: tuple[Answers, Answers], report: Report) -> list[str]:
    """Add what differs in the set-up; return what decides about states and acceptance, what can explain most first."""
    runs = sides[0].runs, sides[1].runs
    if not all(runs):
        lacking = [f"the {name} prints none" for name, known in zip(SIDES, runs, strict=True) if not known]
        report.notes.append(f"server arguments are not compared: {and_list(lacking)}")
        return []
    if len(runs[0]) != len(runs[1]):
        numbers = " and ".join(str(len(known)) for known in runs)
        report.notes.append(f"the runs hold {numbers} server lives: the set-up of the first of each is compared")
    rows, mattering = [], []
    number = len(runs[0]) if len(runs[0]) == len(runs[1]) else 1
    for one, other in zip(runs[0][:number], runs[1], strict=False):
        for found in differences(*(run["server_args"] | run["derived"] for run in (one, other))):
            reason = found.reason
            if reason is None and found.key in _INFERRED and NOT_PRINTED in (found.a, found.b):
                reason = "not told by one of the logs"
            elif reason is None and found.group in _SCHEDULING:
                reason = "decides what fits and when, not what is computed"
            a, b = shown(found.key, found.a), shown(found.key, found.b)
            row = {"argument": found.key, "baseline": a, "candidate": b, "matters": reason is None, "reason": reason}
            rows.append(row | {"segment": one["segment"]})
            if reason is None:
                mattering.append((found.key, f"{found.key} {a} -> {b}"))
                places = [Place(run["file"], run["line"] or 1) for run in (one, other)]
                said = f"{found.key} differs: {a} against {b}"
                report.findings.append(Finding("D101", "warning", said, places[1], a, b, f"baseline {places[0]}"))
    report.facts["configuration"] = [row["argument"] for row in rows if row["matters"]]
    title = "configuration: what differs, what matters first"
    add_table(report, "configuration", rows, title, "argument! baseline! candidate! matters reason=why_not")
    return [words for _, words in sorted(mattering, key=lambda item: _telling(item[0]))]


def _telling(key: str) -> int:
    return next((at for at, part in enumerate(_EXPLAINS) if part in key), len(_EXPLAINS))


def errors(sides: tuple[Answers, Answers], report: Report) -> None:
    """Add errors that only one run prints: the first of a run as a finding, all in the table."""
    rows = []
    for side, name in enumerate(SIDES):
        masked = {_masked(key) for key in sides[1 - side].errors}
        alone = [row for key, row in sides[side].errors.items() if _masked(key) not in masked]
        texts = [": ".join(filter(None, (row["exception"], row["message"]))) for row in alone]
        places = [Place(row["file"], row["line"]) for row in alone]
        rows += [
            {"only_in": name, "message": text, "times": row["count"], "first": str(place)}
            for row, text, place in zip(alone, texts, places, strict=True)
        ]
        if alone:
            more = f" (and {count(len(alone) - 1, 'further message')})" if len(alone) > 1 else ""
            report.findings.append(Finding("D105", "error", f"only the {name} prints {texts[0]}{more}", places[0]))
    for side, name in enumerate(SIDES):
        for event, seen in sides[side].warned.items():
            if event not in sides[1 - side].warned:
                said = event.replace("_", " ")
                rows.append({"only_in": name, "message": said, "times": seen.count, "first": str(seen.place)})
                report.findings.append(Finding("D105", "warning", f"only the {name} prints {said}", seen.place))
    add_table(report, "errors", rows, "errors that only one run prints", "only_in! message! times> first")


def _masked(key: tuple[str | None, str | None]) -> tuple[str, ...]:
    """Return an error without its numbers."""
    return tuple("".join("#" if letter.isdigit() else letter for letter in part or "") for part in key)


def strays(sides: tuple[Answers, Answers], report: Report) -> None:
    """Add debug records outside of any pass that the runs print differently often."""
    one, other = sides[0].strays, sides[1].strays
    for key in {**one, **other}:
        numbers = [found[key].count if key in found else 0 for found in (one, other)]
        if numbers[0] != numbers[1]:
            where = (one if numbers[0] > numbers[1] else other)[key].place
            times = " in the baseline, ".join(count(number, "time") for number in numbers)
            message = f"{key[0]} stands outside of any pass {times} in the candidate"
            report.findings.append(Finding("D103", "warning", message, where))


def acceptance(sides: tuple[Answers, Answers], report: Report) -> None:
    """Compare accept len and, where both follow one definition, accept rate."""
    whole = sides[0].whole(), sides[1].whole()
    rows = []
    for name, side, total in zip(SIDES, sides, whole, strict=True):
        if total is not None:
            rows.append({"side": name, "process": "all", **total})
            for row in side.accept if len(side.accept) > 1 else []:
                own = {"side": name, "process": row["origin"] or "", "tokens_per_second": row["throughput"]}
                rows.append({**total, **row, **own})
    names = "side! process lines> rounds> accept_len_mean=accept_len!> min> max> accept_rate_mean=accept_rate> "
    names += "definition rule running> tokens_per_second=token/s>"
    keys = [word.rstrip("!>").partition("=")[0] for word in names.split()]
    title = "acceptance and throughput, one row per process and all together"
    add_table(report, "acceptance", [{key: row[key] for key in keys} for row in rows], title, names)
    if whole[0] is None or whole[1] is None:
        lacking = [name for name, total in zip(SIDES, whole, strict=True) if total is None]
        if len(lacking) == 1:
            report.notes.append(f"acceptance is not compared: the {lacking[0]} prints none")
        return
    fact = ("lines", "rounds", "accept_len_mean", "accept_rate_mean", "definition", "running")
    report.facts["acceptance"] = {
        name: {key: total[key] for key in fact} for name, total in zip(SIDES, whole, strict=True) if total
    }
    _rates(sides, report)
    _change(sides, (whole[0], whole[1]), report)


def _rates(sides: tuple[Answers, Answers], report: Report) -> None:
    """Say whether the printed rates may be compared."""
    one, other = sides[0].rule, sides[1].rule
    report.facts["acceptance"]["rates_comparable"] = (
        one == other and one is not None and one[0] not in ("ambiguous", "mixed")
    )
    if one != other and one is not None and other is not None:
        follow = f"the baseline's follow {one[1]} ({one[0]}), the candidate's {other[1]} ({other[0]})"
        report.findings.append(Finding("A104", "note", f"accept rates are not compared: {follow}", _place(sides[1])))


def _place(side: Answers) -> Place:
    """Return the first acceptance line."""
    return Place(side.accept[0]["file"], side.accept[0]["first_line"])


def _change(sides: tuple[Answers, Answers], whole: tuple[dict[str, Any], dict[str, Any]], report: Report) -> None:
    """Judge a change of the mean accept len: the evidence is verify rounds, however few lines tell of them."""
    means, rounds = [total["accept_len_mean"] for total in whole], [total["rounds"] for total in whole]
    if not means[0]:
        return
    fact = report.facts["acceptance"]
    fact["change"] = (means[1] - means[0]) / means[0]
    error = math.sqrt(
        sum(_variance(side, mean) / max(number, 1) for side, mean, number in zip(sides, means, rounds, strict=True))
    )
    strong = min(rounds) >= _ROUNDS and abs(means[1] - means[0]) > _Z * error
    fact["evidence"] = "strong" if strong else "weak"
    # Relative to the larger mean, so that a rise and the same fall weigh alike.
    if abs(means[1] - means[0]) < _SHARE * max(means):
        return
    text = f"accept len {means[0]:.2f} -> {means[1]:.2f} ({100 * fact['change']:+.0f} %)"
    if fact["rates_comparable"] and sides[0].rule is not None:
        rates = " -> ".join(f"{total['accept_rate_mean']:.2f}" for total in whole)
        text += f", accept rate {rates} (both {sides[0].rule[1]}, definition {sides[0].rule[0]})"
    evidence = f"{rounds[0]:,.0f} against {rounds[1]:,.0f} verify rounds, "
    evidence += f"{whole[0]['lines']:,} against {whole[1]['lines']:,} lines"
    for name, side in zip(SIDES, sides, strict=True):
        found = [row["accept_len_mean"] for row in side.accept]
        if len(found) > 1:
            evidence += (
                f"; {name}: {min(found):.4g} to {max(found):.4g} over {count(len(found), 'process', 'processes')}"
            )
    if strong:
        report.findings.append(Finding("D104", "warning", text, _place(sides[1]), evidence=evidence))
    else:
        report.findings.append(Finding("D104", "note", f"{text}: weak evidence, {evidence}", _place(sides[1])))


def _variance(side: Answers, mean: float) -> float:
    """Return the most that accept lens of single rounds with this mean can vary: between 1 and their maximum.

    (mean - 1) x (maximum - mean), the bound of Bhatia and Davis; without a maximum that of a geometric distribution.
    """
    highest = max((row["maximum"] or 0 for row in side.accept), default=0)
    return max(0.0, (mean - 1) * (highest - mean if highest > mean else mean))
