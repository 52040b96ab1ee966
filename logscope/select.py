"""Which part of a run a question is asked about: phase, role, rank, site, layer, stage, time.

This module is responsible for reading the selection a user wrote, with the nearest word where one is unknown, and for
telling whether an item belongs to it. It must not know how items are read, and it holds no state of a run.

What each selection means:

- ``phase``, ``role``: of a forward pass. Names of SGLang's forward modes are understood (``TARGET_VERIFY``); numbers
  are refused, since they changed between versions. Server lines belong to no pass and are kept.
- ``site``, ``layer``: of a record. A pass is kept when it has such a record; :meth:`Select.narrow` keeps those only.
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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from logscope.errors import UsageError, did_you_mean
from logscope.model import DURING, PHASES, ROLES, ForwardPass, Segment, ServerEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from logscope.labelled import Labelled
    from logscope.model import Occurrence, Prefix, Record
    from logscope.report import Item

# SGLang's names of forward modes, and what people call them.
PHASE_ALIASES = {
    "target_verify": "verify",
    "draft_extend_v2": "draft_extend",
    "mixed": "extend",
    "prefill": "extend",
}
_RANK_NAMES = {"dp": "dp_rank", "pp": "pp_rank", "tp": "tp_rank", "ep": "ep_rank"}
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


def _before(printed: Time, bound: Time) -> bool:
    """Tell whether a printed time lies before a bound, by the parts both have."""
    return _parts(printed, bound) < _parts(bound, printed)


def _after(printed: Time, bound: Time) -> bool:
    """Tell whether a printed time lies after a bound; ``12:30`` includes all of that minute, a date all of that day."""
    mine, its = _parts(printed, bound), _parts(bound, printed)
    return [part[: len(end)] for part, end in zip(mine, its, strict=True)] > its


def _parts(time: Time, other: Time) -> list[str]:
    """Return the parts of a time that the other has too, most significant first."""
    return [part for part, theirs in zip(time, other, strict=True) if part is not None and theirs is not None]


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

    def accepts(self, prefix: Prefix) -> bool:
        """Tell whether a prefix names these ranks."""
        if self.bare is not None:
            shown = prefix.tp_rank if prefix.tp_rank is not None else prefix.dp_rank
            return shown == self.bare or prefix.origin == f"rank{self.bare}"
        return all(getattr(prefix, column) == number for column, number in self.columns)


@dataclass(frozen=True, slots=True)
class Select:
    """A selection. Empty tuples and None select everything; make one from a user's words with :meth:`of`."""

    phase: tuple[str, ...] = ()
    role: tuple[str, ...] = ()
    rank: tuple[Rank, ...] = ()
    site: tuple[str, ...] = ()
    layer: tuple[range, ...] = ()
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
            during=tuple(_word("stage of a run", word, DURING) for word in _words(during)),
            since=_time("since", since),
            until=_time("until", until),
        )

    def __bool__(self) -> bool:
        """Return False when everything is selected."""
        return self != Select()

    @property
    def of_passes(self) -> bool:
        """True when it speaks of something only forward passes have."""
        return bool(self.phase or self.role or self.site or self.layer)

    def __str__(self) -> str:
        """Return the selection in words: ``phase verify, extend; layer 31``."""
        parts = {
            "phase": ", ".join(self.phase),
            "role": ", ".join(self.role),
            "rank": ", ".join(map(str, self.rank)),
            "site": ", ".join(self.site),
            "layer": ", ".join(str(r.start) if len(r) == 1 else f"{r.start}-{r.stop - 1}" for r in self.layer),
            "during": ", ".join(self.during),
            "since": str(self.since or ""),
            "until": str(self.until or ""),
        }
        return "; ".join(f"{name} {words}" for name, words in parts.items() if words) or "everything"

    def filter(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the selected items of a run in order, passes narrowed to the selected records.

        Lines without a time take the time of the last one before them in their file.
        """
        last: dict[str, str] = {}
        for item in items:
            time = _item_time(item)
            if time is not None:
                last[item.file] = time
            if self.accepts(item, last.get(item.file)):
                yield self.narrow(item)

    def accepts(self, item: Item, time: str | None = None) -> bool:
        """Tell whether an item belongs to the selection.

        ``time`` stands in where the item itself has none. A segment always belongs: it says what the others mean.
        """
        if isinstance(item, Segment):
            return True
        if self.during and item.during not in self.during:
            return False
        if not self.accepts_time(_item_time(item) or time):
            return False
        if isinstance(item, ServerEvent):
            return self.accepts_writer(item.prefix)
        if (self.phase and item.phase not in self.phase) or (self.role and item.role not in self.role):
            return False
        return any(self._keeps(record) for record in item.records)

    def narrow(self, item: Item) -> Item:
        """Return an accepted item with the selected records only; the item itself when it has no others."""
        if not isinstance(item, ForwardPass) or not (self.site or self.layer or self.rank):
            return item
        kept = [record for record in item.records if self._keeps(record)]
        return item if len(kept) == len(item.records) else replace(item, records=kept)

    def accepts_writer(self, prefix: Prefix) -> bool:
        """Tell whether what a prefix says of ranks belongs to the selection."""
        return not self.rank or any(rank.accepts(prefix) for rank in self.rank)

    def accepts_time(self, time: str | None) -> bool:
        """Tell whether a printed time lies within the bounds.

        One that is not known, or has no part in common with a bound (a clock against a date), lies outside any.
        """
        since, until = self.since, self.until
        if since is None and until is None:
            return True
        printed = read_time(time) if time is not None else None
        if printed is None or not all(_parts(printed, bound) for bound in (since, until) if bound is not None):
            return False
        late = since is None or not _before(printed, since)
        early = until is None or not _after(printed, until)
        if since is not None and until is not None and _over_midnight(since, until):
            return late or early
        return late and early

    def filter_events(self, events: Iterable[Labelled]) -> Iterator[Labelled]:
        """Yield the selected events of a run in order; one without a time takes that of the last one before it."""
        last: dict[str, str] = {}
        for event in events:
            time = event.occurrence[2].time
            if time is not None:
                last[event.file] = time
            if self.accepts_event(event, last.get(event.file, "")):
                yield event

    def accepts_event(self, event: Labelled, time: str | None = None) -> bool:
        """Tell whether one event belongs to the selection.

        An event that has no phase, role, site or layer does not belong to a selection of one: unlike :meth:`accepts`,
        this leaves server lines out then. ``time`` stands in where the event prints none; without either the time is
        not looked at, as for an event of an item that was accepted already.
        """
        _, _, prefix, payload = event.occurrence
        time = prefix.time or time
        return (
            (not self.phase or event.phase in self.phase)
            and (not self.role or (payload.role or event.role) in self.role)
            and (not self.site or payload.site in self.site)
            and (not self.layer or _in_ranges(payload.layer, self.layer))
            and (not self.during or event.during in self.during)
            and self.accepts_writer(prefix)
            and (time is None or self.accepts_time(time))
        )

    def _keeps(self, record: Record) -> bool:
        """Tell whether a record of a pass has a selected site, layer and writer."""
        payload = record.payload
        if self.site and payload.site not in self.site:
            return False
        if self.layer and not _in_ranges(payload.layer, self.layer):
            return False
        return not self.rank or any(self.accepts_writer(occurrence[2]) for occurrence in _occurrences(record))


def _occurrences(record: Record) -> Iterator[Occurrence]:
    """Yield every occurrence of a record that was kept."""
    yield record.first
    yield from record.others
    yield from record.variants


def _in_ranges(layer: int | None, ranges: tuple[range, ...]) -> bool:
    """Tell whether a layer was selected."""
    return layer is not None and any(layer in wanted for wanted in ranges)


def _item_time(item: Item) -> str | None:
    """Return the time an item prints, None for one that prints none."""
    if isinstance(item, ForwardPass):
        return item.time
    return item.prefix.time if isinstance(item, ServerEvent) else None


def _over_midnight(since: Time, until: Time) -> bool:
    """Tell whether two bounds without a date enclose a midnight."""
    return (
        since.date is None
        and until.date is None
        and since.clock is not None
        and until.clock is not None
        and since.clock > until.clock
    )


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
    if word.isdigit():
        return Rank(bare=int(word))
    found = re.fullmatch(r"rank(\d+)", word, re.IGNORECASE)
    if found:
        return Rank(bare=int(found[1]))
    columns = []
    for part in re.split(r"[.\s_/]+", word):
        named = re.fullmatch(r"(dp|pp|tp|ep)(\d+)", part, re.IGNORECASE)
        if named is None:
            raise UsageError(f"no rank '{word}'", help="a rank is 3 (tensor-parallel), dp1, pp0, tp3, ep2 or dp1.tp3")
        columns.append((_RANK_NAMES[named[1].lower()], int(named[2])))
    return Rank(tuple(columns))


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
