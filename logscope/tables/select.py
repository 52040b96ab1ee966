"""Which part of a run a question is asked about: phase, role, rank, site, layer, stage, time.

This module is responsible for reading the selection a user wrote, with the nearest word where one is unknown, and for
telling which rows belong to it. It must not know how tables are filled, and it holds no state of a run.

What each selection means:

- ``phase``, ``role``: of a forward pass. Names of SGLang's forward modes are understood (``TARGET_VERIFY``); numbers
  are refused, since they changed between versions. Server lines belong to no pass and are kept.
- ``site``, ``layer``, ``event``: of a record. A pass is kept when it has such a record, with those only. A server line
  has an event.
- ``rank``: ``3`` is tensor-parallel rank 3 (where a prefix has no TP rank: DP rank 3); ``dp1``, ``pp0``, ``ep2``,
  ``dp1.tp0`` name others. A record without a printed rank is never selected by rank.
- ``during``: startup, graph_capture, warmup, serving.
- ``since``, ``until``: both ends included. A bound is compared by the parts it and the printed time have in common:
  ``12:30`` is 12:30 of every day in the log, and a log that prints no year is compared by month, day and clock.
  ``--since 23:00 --until 01:00`` goes over midnight. Zones are not converted: a time is what the log prints. A record
  without a printed time has the time of the last one before it in its file. There is no ``-10m``: the end that it
  would be counted from is not known while a pipe or a growing log is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from logscope.errors import UsageError, did_you_mean
from logscope.model import DURING, PHASES, ROLES
from logscope.tables.frames import prefix_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from logscope.tables.tables import Tables

# SGLang's names of forward modes, and what people call them.
PHASE_ALIASES = {
    "target_verify": "verify", "draft_extend_v2": "draft_extend", "mixed": "extend", "prefill": "extend",
}  # fmt: skip
_BOUND = re.compile(
    r"(?:(?:(?P<year>\d{4})-)?(?P<month>\d\d)-(?P<day>\d\d))?"
    r"(?:(?<=\d)[T ](?=\d))?(?:(?P<clock>\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)(?P<zone>Z|[+-]\d\d:?\d\d)?)?"
)


class Time(NamedTuple):
    """A printed time, or a bound, as far as it goes: ``2026``, ``02-10``, ``12:00:00.123``; None is not said."""

    year: str | None
    date: str | None
    clock: str | None

    def __str__(self) -> str:
        """Return it as the log prints it."""
        day = "-".join(part for part in (self.year, self.date) if part)
        return "T".join(part for part in (day, self.clock) if part)


def read_time(text: str) -> Time | None:
    """Return the parts of a time as printed or as a user writes it, None when it is none."""
    found = _BOUND.fullmatch(text)
    if found is None or not text:
        return None
    date = f"{found['month']}-{found['day']}" if found["month"] else None
    if date and not ("01" <= found["month"] <= "12" and "01" <= found["day"] <= "31"):
        return None
    clock = found["clock"]
    if clock and not (clock[:2] <= "24" and clock[3:5] <= "59"):
        return None
    return Time(found["year"], date, clock.replace(",", ".") if clock else None)


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank selection: the ranks that must be printed, by column; ``bare`` is a number without a name."""

    columns: tuple[tuple[str, int], ...] = ()
    bare: int | None = None

    def __str__(self) -> str:
        """Return it as a user writes it."""
        if self.bare is not None:
            return str(self.bare)
        return ".".join(f"{column.removesuffix('_rank')}{number}" for column, number in self.columns)

    def accepts(self) -> pl.Expr:
        """Return the test whether these ranks are printed, on the columns of prefixes or events."""
        if self.bare is None:
            return pl.all_horizontal(pl.col(name) == number for name, number in self.columns)
        shown = pl.coalesce("tp_rank", "dp_rank") == self.bare
        return shown.fill_null(value=False) | (pl.col("origin") == f"rank{self.bare}")


@dataclass(frozen=True, slots=True)
class Select:
    """A selection. Empty tuples and None select everything; make one from a user's words with :meth:`of`."""

    phase: tuple[str, ...] = ()
    role: tuple[str, ...] = ()
    rank: tuple[Rank, ...] = ()
    site: tuple[str, ...] = ()
    layer: tuple[range, ...] = ()
    event: tuple[str, ...] = ()
    during: tuple[str, ...] = ()
    since: Time | None = None
    until: Time | None = None

    @classmethod
    def of(
        cls,
        *,
        phase: str | Sequence[str] = (),
        role: str | Sequence[str] = (),
        rank: str | Sequence[str] = (),
        site: str | Sequence[str] = (),
        layer: str | Sequence[str] = (),
        event: str | Sequence[str] = (),
        during: str | Sequence[str] = (),
        since: str | None = None,
        until: str | None = None,
    ) -> Select:
        """Read a selection from words; each may hold several, separated by commas.

        Raises :class:`UsageError` for a word that names nothing.
        """
        return cls(
            phase=tuple(_phase(word) for word in _words(phase)),
            role=tuple(_word("role", word, ROLES) for word in _words(role)),
            rank=tuple(_rank(word) for word in _words(rank)),
            site=tuple(_words(site)),
            layer=tuple(_layer(word) for word in _words(layer)),
            event=tuple(_words(event)),
            during=tuple(_word("stage of a run", word, DURING) for word in _words(during)),
            since=_time("since", since),
            until=_time("until", until),
        )

    def __bool__(self) -> bool:
        """Return False when everything is selected."""
        return self != Select()

    def __str__(self) -> str:
        """Return the selection in words: ``phase verify, extend; layer 31``."""
        layers = (str(one.start) if len(one) == 1 else f"{one.start}-{one.stop - 1}" for one in self.layer)
        lists: dict[str, Iterable[object]] = {"phase": self.phase, "role": self.role, "rank": self.rank}
        lists |= {"site": self.site, "layer": layers, "event": self.event, "during": self.during}
        parts = {name: ", ".join(map(str, values)) for name, values in lists.items()}
        parts |= {"since": str(self.since or ""), "until": str(self.until or "")}
        return "; ".join(f"{name} {words}" for name, words in parts.items() if words) or "everything"

    @property
    def of_passes(self) -> bool:
        """True when it speaks of something only forward passes have."""
        return bool(self.phase or self.role or self.site or self.layer)

    def found(self, part: Tables) -> int:
        """Return how much of a selected part it speaks of: server lines, kept with passes, are not what was meant."""
        return part.passes.height + (0 if self.of_passes else part.server.height)

    def there(self, tables: Tables) -> dict[str, set[str]]:
        """Return what a batch has of each kind that is selected, of times the first and the last."""
        frames = (tables.passes, tables.records, tables.server)
        names = [name for name in ("phase", "role", "site", "layer", "event", "during") if getattr(self, name)]
        found = {
            name: {str(value) for frame in frames if name in frame for value in frame[name].drop_nulls().unique()}
            for name in [*names, *["time"] * bool(self.since or self.until)]
        }
        if "time" in found:
            found["time"] = {end for end in (min(found["time"], default=""), max(found["time"], default="")) if end}
        if self.rank:
            ranks = prefix_frame(tables.prefixes).select("dp_rank", "pp_rank", "tp_rank", "ep_rank")
            found["rank"] = {f"{one.name[:2]}{rank}" for one in ranks for rank in one.drop_nulls().unique()}
        return found

    def filter(self, tables: Tables) -> Tables:
        """Return the selected part of a batch: the passes and server lines that belong to it.

        Of a pass the records of selected sites, layers and ranks are kept, with all their copies; one without such
        records goes. Server lines have no phase, role, site or layer, and stay.
        """
        writers = _mask(prefix_frame(tables.prefixes), self._tests("rank"))
        passes = _mask(tables.passes, self._tests("phase", "role", "during", times=tables.passes["time"]))
        records = passes.gather(tables.passes["key"].search_sorted(tables.records["pass"]))
        records &= _mask(tables.records, self._tests("site", "layer", "event"))
        if self.rank:
            printed = tables.prints["record"].filter(writers.gather(tables.prints["prefix"]))
            records &= pl.int_range(len(records), eager=True).is_in(printed.unique().implode())
        lines = _mask(tables.server, self._tests("event", "during", times=tables.server["time"]))
        return tables.keep(records, lines & writers.gather(tables.server["prefix"]))

    def of_events(self, column: Callable[[str], pl.Series]) -> pl.Series:
        """Tell which events belong to the selection, from columns of the events frame and ``seen``, their time.

        An event that has no phase, role, site or layer does not belong to a selection of one: unlike :meth:`filter`,
        this leaves server lines out then, and the copies of other ranks.
        """
        times = column("seen").alias("seen") if self.since or self.until else None
        tests = self._tests("phase", "role", "site", "event", "during", "layer", "rank", times=times)
        names = sorted({"line"}.union(*(test.meta.root_names() for test in tests)))
        return _mask(pl.DataFrame([column(name).alias(name) for name in names]), tests)

    def _tests(self, *names: str, times: pl.Series | None = None) -> list[pl.Expr]:
        """Return what these parts ask of columns of these names, and the bounds of the column of times."""
        tests = []
        for name in (name for name in names if getattr(self, name)):
            if name == "rank":
                tests.append(pl.any_horizontal(rank.accepts() for rank in self.rank))
            elif name == "layer":
                ranges = (pl.col("layer").is_between(one.start, one.stop - 1) for one in self.layer)
                tests.append(pl.any_horizontal(ranges))
            else:
                tests.append(pl.col(name).cast(pl.String).is_in(getattr(self, name)))
        if times is not None and (self.since or self.until):
            within = [time for time in times.unique().drop_nulls() if self.accepts_time(time)]
            tests.append(pl.col(times.name).is_in(within))
        return tests

    def accepts_time(self, time: str) -> bool:
        """Tell whether a printed time lies within the bounds.

        Compared are the parts that it has in common with a bound, most significant first; ``12:30`` includes all of
        that minute, a date all of that day. One that has no part in common (a clock against a date) lies outside.
        """
        printed, inside = read_time(time), []
        for bound in (self.since, self.until):
            common = [(one, end) for one, end in zip(printed or (), bound or (), strict=False) if one and end]
            if bound is not None and not common:
                return False
            mine, its = [one for one, _ in common], [end for _, end in common]
            shortened = [one[: len(end)] for one, end in common]
            inside.append(mine >= its if bound is self.since else shortened <= its)
        since, until = self.since, self.until
        if since and until and since.date is None and until.date is None and str(since) > str(until):  # over midnight
            return any(inside)
        return all(inside)


def _mask(table: pl.DataFrame, tests: Sequence[pl.Expr]) -> pl.Series:
    """Tell which rows pass all tests; what is not known does not."""
    if not tests:
        return pl.Series([True]).new_from_index(0, table.height)
    return table.select(pl.all_horizontal(tests).fill_null(value=False)).to_series()


def _words(values: str | Sequence[str]) -> list[str]:
    """Split at commas, leave out blanks; one text is one value, not its letters."""
    if isinstance(values, str):
        values = (values,)
    return [word for value in values for word in (part.strip() for part in value.split(",")) if word]


def _word(what: str, word: str, known: Sequence[str]) -> str:
    """Return a known word in its own spelling, or raise with the nearest one."""
    spelled = word.lower().replace("-", "_")
    if spelled in known:
        return spelled
    raise UsageError(f"no {what} '{word}'", help=did_you_mean(spelled, known) or f"it is one of: {', '.join(known)}")


def _phase(word: str) -> str:
    """Return a phase, from its name or from SGLang's name of the forward mode."""
    if word.isdigit():
        raise UsageError(
            f"no phase '{word}'",
            why="the numbers of SGLang's forward modes changed between versions, so they are not interpreted",
            help=f"give a name: {', '.join(PHASES)}",
        )
    spelled = word.lower().replace("-", "_").removeprefix("forwardmode.")
    return _word("phase", PHASE_ALIASES.get(spelled, spelled), PHASES)


def _rank(word: str) -> Rank:
    """Return a rank selection from ``3``, ``rank3``, ``tp3``, ``DP1``, ``dp1.tp3``."""
    if found := re.fullmatch(r"(?:rank)?(\d+)", word, re.IGNORECASE):
        return Rank(bare=int(found[1]))
    named = [re.fullmatch(r"(dp|pp|tp|ep)(\d+)", part, re.IGNORECASE) for part in re.split(r"[.\s_/]+", word)]
    if None in named:
        raise UsageError(f"no rank '{word}'", help="a rank is 3 (tensor-parallel), dp1, pp0, tp3, ep2 or dp1.tp3")
    return Rank(tuple((f"{one[1].lower()}_rank", int(one[2])) for one in named if one))


def _layer(word: str) -> range:
    """Return the layers ``31`` or ``0-30``, as printed."""
    found = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", word)
    if found is None:
        raise UsageError(f"no layer '{word}'", help="a layer is a number as printed (31) or a range (0-30)")
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise UsageError(f"the range of layers '{word}' is empty", help=f"did you mean '{last}-{first}'?")
    return range(first, last + 1)


def _time(name: str, text: str | None) -> Time | None:
    """Return a bound, or raise with the forms there are."""
    if text is None:
        return None
    time = read_time(text.strip())
    if time is not None:
        return time
    relative = re.fullmatch(r"[+-]?\d+\s*[a-z]+", text.strip(), re.IGNORECASE)
    raise UsageError(
        f"--{name} '{text}' is no time",
        why="a relative time counts from the end of the log, which a pipe does not show" if relative else None,
        help="give a time as the log prints it: 12:30, 12:30:05, 2026-02-10, 2026-02-10T12:30, 02-10 12:30",
    )
