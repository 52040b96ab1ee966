"""Who printed a record and when: names of processes, and printed times with the assumptions they need.

This module is responsible for telling one process from another by its prefix, and for turning a printed time into
seconds where that can be done. It must not know any record, and it invents no year and no date: whatever is assumed is
said by :meth:`Clock.assumptions`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from polars import DataFrame, Series

    from logscope.model import Prefix
    from logscope.tables.tables import Tables

Kind: TypeAlias = Literal["dated", "no year", "no date"]

_TIME = re.compile(
    r"(?:(?:(?P<year>\d{4})-)?(?P<month>\d\d)-(?P<day>\d\d)T)?(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
    r"(?P<fraction>\.\d+)?(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
# A leap year, so that every printed day exists; used for differences only.
_SOME_YEAR = 2024
_DAY = 86_400.0


def writer_label(prefix: Prefix) -> str:
    """Return the name of the process that printed, as its prefix gives it: ``pod/decode-1 DP1 TP1 EP1``.

    Empty when nothing told processes apart. A rank that the origin already names (``Worker_TP1``) is not repeated.
    """
    origin = prefix.origin or ""
    ranks = [("DP", prefix.dp_rank), ("PP", prefix.pp_rank), *prefix.extra, ("TP", prefix.tp_rank)]
    ranks.append(("EP", prefix.ep_rank))
    parts = [f"{name}{rank}" for name, rank in ranks if rank is not None]
    words = [part for part in parts if f"_{part}" not in origin]
    if origin:
        words.insert(0, origin)
    if prefix.pid is not None:
        words.append(f"pid={prefix.pid}")
    return " ".join(words)


def server_label(prefix: Prefix) -> str:
    """Return the name of the server a process belongs to: its origin without ranks.

    A process number next to an origin names another server (two Ray actors); alone it is one rank of one server.
    """
    if prefix.origin is None:
        return ""
    return prefix.origin if prefix.pid is None else f"{prefix.origin} pid={prefix.pid}"


def writers(tables: Tables, prefixes: Series) -> DataFrame:
    """Return who printed under each of these prefixes, and when: columns prefix, server, origin, time."""
    import polars as pl  # noqa: PLC0415 - the clock needs none

    numbers = prefixes.unique()
    labels: dict[Any, tuple[str, str]] = {}
    rows = []
    for number in numbers.to_list():
        prefix = tables.prefixes[number]
        mark = (prefix.writer, prefix.extra)
        if mark not in labels:
            labels[mark] = (server_label(prefix), writer_label(prefix))
        rows.append((number, *labels[mark], prefix.time))
    schema: dict[str, Any] = {"prefix": numbers.dtype, "server": pl.String, "origin": pl.String, "time": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


class Moment(NamedTuple):
    """A time in seconds. Moments of different ``kind`` cannot be compared."""

    kind: Kind
    seconds: float


class Clock:
    """Reads the printed times of one file, in file order.

    Times without a year stand in one run of years: a step back by more than half a year is the next year. Times without
    a date stand in one run of days: a step back by more than half a day is the next midnight. ``year`` is the year of
    the first time that prints none.
    """

    __slots__ = ("_day", "_last", "_last_clock", "_last_date", "_year", "count", "first", "year")

    def __init__(self, year: int | None = None) -> None:
        self.year = year
        self._year = year if year is not None else _SOME_YEAR
        self._day = 0
        self._last: tuple[str, Moment | None] = ("", None)
        self._last_date: float | None = None
        self._last_clock: float | None = None
        self.count: dict[Kind, int] = {"dated": 0, "no year": 0, "no date": 0}
        self.first: dict[Kind, int] = {}

    def read(self, time: str | None, line: int) -> Moment | None:
        """Return the moment of a printed time, None when it is not printed or no time."""
        if time is None:
            return None
        if time != self._last[0]:
            self._last = (time, self._read(time))
        moment = self._last[1]
        if moment is not None:
            self.count[moment.kind] += 1
            self.first.setdefault(moment.kind, line)
        return moment

    def _read(self, time: str) -> Moment | None:
        found = _TIME.fullmatch(time)
        if found is None:
            return None
        hour, minute, second = int(found["hour"]), int(found["minute"]), int(found["second"])
        clock = hour * 3600.0 + minute * 60.0 + second + float(found["fraction"] or 0)
        if found["month"] is None:
            if self._last_clock is not None and clock < self._last_clock - _DAY / 2:
                self._day += 1
            self._last_clock = clock
            return Moment("no date", self._day * _DAY + clock)
        month, day = int(found["month"]), int(found["day"])
        if found["year"] is not None:
            start = _midnight(int(found["year"]), month, day, _zone(found["zone"]))
            return None if start is None else Moment("dated", start + clock)
        start = _midnight(self._year, month, day, UTC)
        if start is None:
            return None
        if self._last_date is not None and start + clock < self._last_date - 183 * _DAY:
            self._year += 1
            start = _midnight(self._year, month, day, UTC) or start
        self._last_date = start + clock
        return Moment("no year", start + clock)

    def shown(self, time: str | None) -> str | None:
        """Return a printed time as it is shown: as printed, with the year before it when the user gave one."""
        if time is None or self.year is None or re.match(r"\d\d-\d\dT", time) is None:
            return time
        return f"{self._year}-{time}"

    def assumptions(self) -> list[str]:
        """Return a sentence for every assumption that was needed."""
        out = []
        if self.count["no year"] and self.year is None:
            out.append(
                f"{self.count['no year']} stamps print no year (first at line {self.first['no year']}); they are shown "
                "as printed and compared as one run of days; --year sets the year"
            )
        elif self.count["no year"]:
            out.append(f"{self.count['no year']} stamps print no year; {self.year} was given for the first")
        if self.count["no date"]:
            out.append(
                f"{self.count['no date']} stamps print no date (first at line {self.first['no date']}); they are shown "
                "as printed, never compared with dated ones, and a step back by half a day counts as midnight"
            )
        return out


def _midnight(year: int, month: int, day: int, zone: timezone) -> float | None:
    try:
        return datetime(year, month, day, tzinfo=zone).timestamp()
    except (ValueError, OverflowError):
        return None


def _zone(text: str | None) -> timezone:
    """Return the printed offset; a time without one is local to its machine, and only differences matter."""
    if not text or text == "Z":
        return UTC
    digits = text[1:].replace(":", "")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    if offset >= timedelta(days=1):
        return UTC
    return timezone(-offset if text[0] == "-" else offset)
