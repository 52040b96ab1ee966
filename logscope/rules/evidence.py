"""What rules look at and how they keep it: one life's part of a batch, and since when something is wrong.

This module is responsible for :class:`View` (the passes and lines of one server life in one batch, as arrays),
:class:`Onset` (how many of how many, the first bad pass, the last good one before it), :class:`Life` (what is known of
a server life when all of it was seen) and for adding parts up. It must not know any rule.

A row of the arrays is a forward pass (``view.line[i]``) or a record of one (``view.records["norm"][j]``); -1 says that
something is not printed. Where writers printed different values, ``view.records`` holds the usual one (the majority's,
else the first) and ``view.others`` the first that differs from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from logscope.model import CAPTURE_EVENTS, DURING, PHASES, Payload, Place, ServerEvent
from logscope.passes.lineage import same_head, same_norm
from logscope.queries.clock import writer_label
from logscope.queries.words import count, layer_name, percent, source_name, whole_numbers
from logscope.versions import SIGNS, EraWatch, Known

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logscope.contract import Contract, Reading
    from logscope.model import Segment
    from logscope.tables.tables import Tables

    Array = Any  # of numpy; what it holds stands beside it
    Columns = dict[str, Any]

# First values that are compared and shown; more captures of a pass than these are not looked at.
_VALUES = 8
_MOST_CAPTURES = 64
# Widths, or sets of layers, that a run is likely to show; a log with more of them is described by the first ones.
_MOST_KINDS = 64
# Passes without a join that may be pieces of the next one with a join.
_PIECES = 8
# Passes at the cut beginning of a log that may lack records without a fault.
_EDGE = 2
# Copies that say what the first one of their pass says, where nothing else says how many writers there are.
_AGREED = 4
# Passes on each side in which a copy is looked for before it is called another value.
_AROUND = 16
# Of so many passes one is full: then records are printed by some writers only, and full passes are no measure.
_HARDLY = 5
CAPTURING, SERVING = DURING.index("graph_capture"), DURING.index("serving")
EXTEND, DECODE, VERIFY, DRAFT_EXTEND, IDLE, UNKNOWN = range(len(PHASES))
# Events of records that have a place in a forward, by number.
_STATISTICS = frozenset({"decode_stats", "prefill_stats"})
EVENTS = ("layer_capture", "embed_capture", "forward_end", "aux_concat", "forward", "fc_output", "fc", "capture_plan")
LAYER, EMBED, END, JOIN, FORWARD, FC_OUTPUT, FC, PLAN = range(len(EVENTS))


# ------------------------------------------------------------------------------------------------------- adding up


def add(one: Any, other: Any) -> Any:
    """Return two parts of a rule as one, in the order of the log: None is nothing, dicts add up key by key."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, dict):
        return one | {key: add(one.get(key), value) for key, value in other.items()}
    return one | other if isinstance(one, (set, frozenset)) else one + other


class Times(NamedTuple):
    """How often something was seen, and where first."""

    number: int
    place: Place

    def __add__(self, other: Times) -> Times:  # type: ignore[override]
        """Return both as one, this one first."""
        return Times(self.number + other.number, self.place)


@dataclass(slots=True)
class First:
    """The first of its kind: of two the earlier stays."""

    value: Any

    def __add__(self, _other: First) -> First:
        """Return itself."""
        return self


class Seen(NamedTuple):
    """A pass that was seen, as far as a finding names it; ``detail`` are the values that show what is wrong."""

    place: Place
    number: int
    role: str
    phase: str
    source: tuple[Any, ...]
    detail: dict[str, Any] = {}  # noqa: RUF012 - never changed


NOWHERE = Seen(Place("", 0), 0, "", "", ())


def pass_name(item: Seen) -> str:
    """Return ``target verify pass 12``; the phase is left out where it is not known."""
    phase = "" if item.phase == "unknown" else f"{item.phase} "
    return f"{item.role} {phase}pass {item.number}"


def record_name(event: str, layer: int | None, role: str) -> str:
    """Return ``layer 31``, ``the joined state``, ``the fc output``, ``the draft's input`` for a record."""
    if event in CAPTURE_EVENTS:
        return layer_name(event, layer)
    joined = "the joined state" if role == "target" else "the draft's output state"
    names = {"aux_concat": joined, "fc_output": "the fc output", "forward": "the draft's input"}
    return names.get(event, event.replace("_", " "))


@dataclass(slots=True)
class Onset:
    """How many of how many passes are bad, the first bad one, and the last good one before it from the same source.

    since
        passes looked at from the first bad one on.
    last_good
        by source, its last good pass before the first bad one of all. A source is an origin (a pod, a service) with its
        DP and PP rank: one log may hold several, and only one of them be at fault.
    phases
        by phase, how many good and how many bad passes.
    alone
        the same of passes in which the value of one writer alone is bad.
    """

    seen: int = 0
    bad: int = 0
    since: int = 0
    first: Seen = NOWHERE
    last_good: dict[tuple[Any, ...], Seen | None] = field(default_factory=dict)
    bad_in: frozenset[tuple[Any, ...]] = frozenset()
    phases: dict[str, tuple[int, int]] = field(default_factory=dict)
    alone: Onset | None = None

    def __add__(self, other: Onset) -> Onset:
        """Return both as one, this one first."""
        phases = dict(self.phases)
        for phase, (good, bad) in other.phases.items():
            mine = phases.get(phase, (0, 0))
            phases[phase] = (mine[0] + good, mine[1] + bad)
        last_good = {**other.last_good, **self.last_good}
        if not self.bad:
            last_good = {**self.last_good, **{key: seen for key, seen in other.last_good.items() if seen is not None}}
        return Onset(
            self.seen + other.seen,
            self.bad + other.bad,
            self.since + other.seen if self.bad else other.since,
            self.first if self.bad else other.first,
            last_good,
            self.bad_in | other.bad_in,
            phases,
            add(self.alone, other.alone),
        )

    @property
    def goods(self) -> Onset:
        """The same passes as if none were bad, to be looked at for a fault that is not among them."""
        return Onset(
            self.seen, last_good=self.last_good, phases={phase: (sum(both), 0) for phase, both in self.phases.items()}
        )

    @property
    def good_before(self) -> Seen | None:
        """The last good pass before the first bad one, of its source."""
        return self.last_good.get(self.first.source)

    @property
    def words(self) -> str:
        """Since when and how often, for the evidence of a finding."""
        if not self.bad:
            return "never"
        share = f"{self.bad:,} of {count(self.seen, 'pass')} ({percent(self.bad, self.seen)})"
        where = self.at_fault
        if self.bad == self.seen:
            return f"in {'the only pass' if self.seen == 1 else f'all {self.seen:,} passes'} looked at"
        phase = self.only_phase
        if phase is not None:
            return (
                f"in all {self.bad:,} {phase} passes looked at, and in none of {self.seen - self.bad:,} others{where}"
            )
        before = self.good_before
        if before is None:
            return f"from the first pass on, {share}{where}"
        later = "" if self.since == self.seen or self.bad == 1 else f"; {self.bad:,} of {self.since:,} since then"
        good = f"the last good one before it is pass {before.number} ({before.place})"
        return f"{share}; first in {pass_name(self.first)}{later}; {good}{where}"

    @property
    def at_fault(self) -> str:
        """Which source is at fault, where the log holds several; nothing when its lines carry no mark."""
        name = source_name(self.first.source) if len(self.last_good) > 1 else ""
        if not name or len(self.bad_in) == 1:
            return f"; all of them in {name}" if name else ""
        return f"; first in {name}, in {len(self.bad_in)} of {len(self.last_good)} sources"

    @property
    def only_phase(self) -> str | None:
        """The phase all bad passes have and no good one has; None when it is not that simple, or not known."""
        bad = [phase for phase, (_, times) in self.phases.items() if times]
        # Good passes behind the first bad one: else it may as well be a change in time.
        only = len(bad) == 1 and "unknown" not in self.phases and 1 < self.bad < self.since
        return bad[0] if only and not self.phases[bad[0]][0] else None


@dataclass
class Kinds:
    """By what passes show (a width, a set of layers) the onset of *that*, and ``every``: of all passes looked at."""

    every: Onset
    found: dict[Any, Onset] = field(default_factory=dict)

    def __add__(self, other: Kinds) -> Kinds:
        """Return both as one: what only one of them saw has other passes in the other."""
        keys = list(dict.fromkeys([*self.found, *other.found]))[:_MOST_KINDS]
        found = {key: self.found.get(key, self.every) + other.found.get(key, other.every) for key in keys}
        return Kinds(self.every + other.every, found)


# ---------------------------------------------------------------------------------------------------- a batch's view


class Taken(dict[str, Any]):
    """Columns of records at some places (of any shape), each made when it is first asked for."""

    def __init__(self, source: Columns, places: Array) -> None:
        super().__init__()
        self._source, self._places = source, places

    def __missing__(self, name: str) -> Array:
        """Return a column, and keep it."""
        column, places = self._source[name], self._places
        found: Array = column[places] if len(column) else np.zeros((*places.shape, *column.shape[1:]), column.dtype)
        found[places < 0] = _ABSENT.get(name, -1)
        self[name] = found
        return found

    def at(self, place: Any) -> Taken:
        """Return the same of one column of places, or of some of their rows."""
        return Taken(self._source, self._places[place])


def one_of(source: Columns, place: int) -> Taken:
    """Return the columns of one record."""
    return Taken(source, np.array([place]))


def views(tables: Tables, contract: Contract | None) -> Iterator[View]:
    """Yield the view of every server life that has rows in a batch, in file order."""
    order = pl.concat([one.select("file", "segment").unique() for one in (tables.passes, tables.server)]).unique()
    segments = {(one.file, one.number): one for one in tables.segments}
    for file, number in sorted(order.iter_rows()):
        segment = segments.get((tables.files[file], number))
        if segment is not None:
            yield View(tables, file, segment, contract, alone=order.height == 1)


class View:
    """One server life's part of a batch, as arrays over its passes.

    first, last, join, read, fc, end
        row numbers of records; -1: none. captures: [passes, most captures], in printed order.
    judged
        what most rules may look at: real input, not at the cut beginning of the log, not idle, with rows.
    clean
        False where damaged records stand among its lines: what is missing may have been lost in the log.
    """

    def __init__(self, tables: Tables, file: int, segment: Segment, contract: Contract | None, *, alone: bool) -> None:
        self.tables, self.segment, self.contract, self.file = tables, segment, contract, segment.file
        passes, server = tables.passes, tables.server
        records, base = tables.records, 0
        if not alone:
            mine = (pl.col("file") == file) & (pl.col("segment") == segment.number)
            passes, server = passes.filter(mine), server.filter(mine)
            base = int(passes["first"].min() or 0)  # type: ignore[arg-type]
            records = records.slice(base, int(passes["last"].max() or 0) + 1 - base if passes.height else 0)  # type: ignore[arg-type]
        self.server = server
        # Worked out once for two rules each.
        self.sums: Any = None
        self.passes, self.base, self.table = passes, base, records
        self.size = passes.height
        self.number, self.line, self.group = (_ints(passes, name) for name in ("number", "line", "group"))
        self.rows, self.hidden, self.states = (_ints(passes, name) for name in ("rows", "hidden", "states"))
        self.copies, self.expected, self.differ = (_ints(passes, name) for name in ("copies", "expected", "differ"))
        self.first, self.last, self.join, self.read, self.fc, self.end = (
            np.where((found := _ints(passes, name)) >= 0, found - base, -1)
            for name in ("first", "last", "join", "input", "fc", "end")
        )
        self.complete = passes["complete"].to_numpy()
        self.target = (passes["role"] == "target").to_numpy()
        self.phase, self.during = _ints(passes, "phase"), _ints(passes, "during")
        self.real = self.during != CAPTURING
        cut = segment.server_args_line is None
        self.edge = ~self.complete & (self.number <= _EDGE) & cut
        self._records()
        self._captures()
        self.judged = self.real & ~self.edge & (self.rows != 0) & (self.phase != IDLE) & ~self.piece & self.told_apart

    # -- records

    def _records(self) -> None:
        table = self.table
        made = _values_of(table)
        for name in ("rows", "width", "num_aux", "embeds", "copies", "differ", "line", "head"):
            made[name] = _ints(table, name)
        event = table["event"]
        self.event = np.full(table.height, -1)
        for number, name in enumerate(EVENTS):
            self.event[(event == name).to_numpy()] = number
        made["layer"] = np.where(self.event == EMBED, 0, _ints(table, "layer"))
        self.usable = table["usable"].to_numpy()
        self.records = made
        self.of = np.repeat(np.arange(self.size), self.last - self.first + 1) if self.size else np.zeros(0, np.int64)
        printed = self.tables.prints
        shown = printed.filter(pl.col("head").is_not_null())
        shown = shown.filter(pl.col("record").is_between(self.base, self.base + table.height - 1))
        self.torn = shown.filter(pl.col("same"))
        #: every print of a writer that said something else, in file order.
        self.differing = shown.filter(~pl.col("same"))
        self.others = made
        self.parted = np.zeros(table.height, np.bool_)
        if self.differing.height:
            different = self.differing.unique("record", keep="first", maintain_order=True)
            rows = different["record"].to_numpy() - self.base
            self.parted[rows] = True
            heads = [self.tables.heads[head] for head in different["head"].to_list()]
            self.others = {name: column.copy() for name, column in made.items()}
            for name, column in _values_of(different).items():
                self.others[name][rows] = column
            self.others["line"][rows] = different["line"].to_numpy()
            self.others["head"][rows] = different["head"].to_numpy()
            self.others["layer"][rows] = [-1 if head.layer is None else head.layer for head in heads]

    def _captures(self) -> None:
        """Put the captures of every pass side by side; a pass that repeats the start of the next one is its piece."""
        places = np.flatnonzero(((self.event == LAYER) | (self.event == EMBED)) & self.usable)
        of = self.of[places]
        counted = np.bincount(of, minlength=self.size) if self.size else np.zeros(0, np.int64)
        nth = np.arange(len(places)) - np.repeat(np.cumsum(counted) - counted, counted)
        kept = nth < _MOST_CAPTURES
        wide = int(min(counted.max(initial=0), _MOST_CAPTURES))
        self.captures = np.full((self.size, wide), -1)
        self.captures[of[kept], nth[kept]] = places[kept]
        self.captured = np.minimum(counted, _MOST_CAPTURES)
        self.piece = np.zeros(self.size, np.bool_)
        self.split = np.zeros(self.size, np.bool_)
        self._pieces()
        self.layers = self.taken(self.captures)["layer"]

    def _pieces(self) -> None:
        """Put passes together that only their prints cut: a layer that stands twice, or with other rows or shape.

        The passes right before a joined state that neither join nor end are pieces of its pass when all of them
        together captured just as many layers as were joined.
        """
        lacks = self.target & (self.join >= 0) & (self.states > 0)
        loose = self.target & (self.join < 0) & (self.end < 0) & (self.captured > 0)
        lacks[1:] &= loose[:-1]
        for at in np.flatnonzero(lacks[1:]) + 1:
            begin, layers = int(at), self.captures[at, : self.captured[at]]
            while begin and loose[begin - 1] and self.group[begin - 1] == self.group[at] and at - begin < _PIECES:
                begin -= 1
                layers = np.concatenate([self.captures[begin, : self.captured[begin]], layers])
                known = self.records["layer"][layers].tolist()
                if len(set(known)) == self.states[at]:
                    self._join(begin, int(at), layers, known)
                    break

    def _join(self, begin: int, at: int, places: Array, layers: list[int]) -> None:
        """Make one pass of those from ``begin`` to ``at``; its captures stand at these places."""
        copies, norms = self.records["copies"], self.records["norm"]
        shared = [(one, other) for one, other in pairwise(range(len(places))) if layers[one] == layers[other]]
        apart = [one for one, other in shared if copies[places[one]] + copies[places[other]] == self.expected[at]]
        if len(shared) > len(apart) and any(norms[places[one]] != norms[places[other]] for one, other in shared):
            return
        if self.expected[at] > 1:
            self.split[at] = bool(apart)
            places = np.delete(places, apart)
        if len(places) > self.captures.shape[1]:
            self.captures = np.pad(
                self.captures, ((0, 0), (0, len(places) - self.captures.shape[1])), constant_values=-1
            )
        self.captures[begin : at + 1], self.captured[begin:at] = -1, 0
        self.captures[at, : len(places)], self.captured[at] = places, len(places)
        self.piece[begin:at], self.complete[at], self.line[at] = True, True, self.line[begin]

    def taken(self, places: Array, *, others: bool = False) -> Taken:
        """Return the columns of records at these places; a place of -1 is a record that prints nothing."""
        return Taken(self.others if others else self.records, places)

    def capture(self, number: Array) -> Array:
        """Return the record of one capture of each pass by its place, -1 where there is none."""
        wide = self.captures.shape[1]
        found = np.full(self.size, -1)
        rows = np.flatnonzero((number >= 0) & (number < wide))
        found[rows] = self.captures[rows, number[rows]]
        return found

    def lead(self, mask: Array) -> Array:
        """Return the first record of each pass for which this holds, -1: none."""
        found = np.full(self.size, -1)
        places = np.flatnonzero(mask)[::-1]
        found[self.of[places]] = places
        return found

    def layer_of(self, number: int) -> Array:
        """Return the layer of one capture of each pass, -1 where there is none."""
        return self.layers[:, number] if number < self.layers.shape[1] else np.full(self.size, -1)

    def joins_at(self, lines: Array) -> Array:
        """Return the join record that stands at each of these lines, -1: none of this batch."""
        places = np.flatnonzero(self.event == JOIN)
        known = self.records["line"][places]
        order = np.argsort(known)
        at = np.minimum(np.searchsorted(known[order], lines), max(len(places) - 1, 0))
        if not len(places):
            return np.full(len(lines), -1)
        return np.where(known[order][at] == lines, places[order][at], -1)

    def event_name(self, place: int) -> str:
        """Return the event of a record."""
        return str(self.table["event"][place])

    def payload(self, place: int, *, other: bool = False) -> Payload:
        """Return the head of a record's payload: everything but norm and first values."""
        return self.tables.heads[int((self.others if other else self.records)["head"][place])]

    def mode(self, place: int) -> str | None:
        """Return the printed mode of a record."""
        return self.payload(place).mode

    def values(self, place: int, *, other: bool = False) -> list[float]:
        """Return the first values of a record, as far as they are kept."""
        source = self.others if other else self.records
        return list(source["values"][place][: int(source["count"][place])].tolist())

    def name(self, place: int) -> str:
        """Return the name of a record."""
        layer = int(self.records["layer"][place])
        role = "target" if self.target[self.of[place]] else "draft"
        return record_name(self.event_name(place), None if layer < 0 else layer, role)

    # -- damage

    @cached_property
    def clean(self) -> Array:
        """Where no damaged record stands among the lines of a pass."""
        heads = self.tables.heads
        usable = [heads[head].usable for head in self.torn["head"].to_list()]
        torn = self.torn["line"].to_numpy()[[not one for one in usable]] if usable else np.zeros(0, np.int64)
        lost = self.server.filter((pl.col("kind") == "unparsed") | ~pl.col("intact").is_in(["whole", "partial"]))
        lines = np.sort(np.concatenate([torn, lost["line"].to_numpy(), self.records["line"][~self.usable]]))
        if not len(lines) or not self.size:
            return np.ones(self.size, np.bool_)
        ends = np.maximum.reduceat(self.records["line"], self.first)
        at = np.searchsorted(lines, self.line)
        return (at == len(lines)) | (lines[np.minimum(at, len(lines) - 1)] > ends)

    @cached_property
    def due(self) -> Columns:
        """The joined state that each draft pass should have read, as the finder says; ``at``: its record, -1: none."""
        table = self.passes
        due: Columns = {name: _ints(table, f"due_{name}") for name in ("rows", "width", "line")}
        due |= {
            "norm": table["due_norm"].fill_null(np.nan).to_numpy(),
            "slack": np.where(
                table["due_norm"].is_null().to_numpy(), -1.0, table["due_slack"].fill_null(0.0).to_numpy()
            ),
            "key": table["due_key"].fill_null(0).to_numpy(),
            "rounded": table["due_rounded"].fill_null(value=False).to_numpy(),
            "fresh": table["due_fresh"].to_numpy(),
            "at": self.joins_at(due["line"]),
        }
        return due | {"count": np.where(due["at"] >= 0, self.taken(due["at"])["count"], 1)}

    @cached_property
    def fewest(self) -> Array:
        """The fewest copies of a record of each pass."""
        copies = np.where(self.usable, self.records["copies"], 1 << 30)
        return np.minimum.reduceat(copies, self.first) if self.size else self.first

    @cached_property
    def full(self) -> Array:
        """Where every record of a pass has a copy of every writer."""
        return (self.fewest >= self.expected) & ~self.split & ~self.confused

    @cached_property
    def confused(self) -> Array:
        """Where a copy of a capture is what another record says: its writer was ahead, behind, or left one out."""
        found = np.zeros(self.size, np.bool_)
        if not self.differing.height:
            return found
        record = self.differing["record"].to_numpy() - self.base
        captures = np.flatnonzero((self.event == LAYER) | (self.event == EMBED))
        layers = [self.tables.heads[head].layer or 0 for head in self.differing["head"].to_list()]
        theirs = self.differing["values_key"].fill_null(0).to_numpy() + np.array(layers, np.uint64)
        said = np.concatenate(
            [self.records["key"][captures] + self.records["layer"][captures].astype(np.uint64), theirs]
        )
        places = np.concatenate([captures, record])
        order = np.lexsort((places, said))
        near = (said[order][1:] == said[order][:-1]) & (places[order][1:] != places[order][:-1])
        near &= self.of[places[order][1:]] - self.of[places[order][:-1]] <= _AROUND
        twice = np.zeros(len(said), np.bool_)
        twice[order[1:][near]], twice[order[:-1][near]] = True, True
        # Zeros and nan are the same everywhere, and say nothing of where they belong.
        tells = self.differing["norm"].is_finite().fill_null(value=False) & (self.differing["norm"] != 0)
        mine = twice[len(captures) :] & np.isin(self.event[record], (LAYER, EMBED)) & tells.to_numpy()
        found[self.of[record[mine]]] = True
        return found

    @cached_property
    def compared(self) -> Array:
        """Where copies may be compared: a pass is full, or all its prints have a mark."""
        if not self.size:
            return np.zeros(0, np.bool_)
        named = [one.tp_rank is not None for one in self.tables.prefixes]
        mark = np.array(named, np.bool_)[self.tables.prints["prefix"].gather(self.table["print"]).to_numpy()]
        marked = np.logical_and.reduceat(mark, self.first) & ~self.confused & (2 * self.fewest > self.expected)
        return (self.full | marked) & (self.copies > 1)

    @cached_property
    def told_apart(self) -> Array:
        """Where the copies of a pass are told from its neighbours'.

        Where writers interleave, a record that misses a copy may have given it to another pass, or taken one. Passes of
        a role of which hardly any is full are judged all the same: one writer prints less than the others.
        """
        told: Array = self.compared | (self.expected <= 1)
        for role in (self.target, ~self.target):
            if told[role].sum() * _HARDLY < role.sum():
                told = told | role
        return told

    # -- server lines

    def lines(self, *events: str) -> Iterator[ServerEvent]:
        """Yield the server lines of these events, in full."""
        if not self.server.height:
            return
        wanted = self.tables.server.with_row_index("row").filter(
            (pl.col("event").is_in(events)) & (pl.col("segment") == self.segment.number)
        )
        for row in wanted.select("row", "file", "line", "offset", "prefix", "during").iter_rows():
            at, file, line, offset, prefix, during = row
            if self.tables.files[file] == self.file:
                said = (line, offset, self.tables.prefixes[prefix], self.tables.payload(at))
                yield ServerEvent(said, self.segment.number, during, self.file)

    # -- what is kept

    def seen(self, row: int, line: int | None = None, detail: dict[str, Any] | None = None) -> Seen:
        """Return what a finding needs of a pass."""
        place = Place(self.file, int(self.line[row]) if line is None else int(line))
        role = "target" if self.target[row] else "draft"
        source = self.tables.groups[int(self.group[row])]
        return Seen(place, int(self.number[row]), role, PHASES[int(self.phase[row])], source, detail or {})

    def onset(
        self,
        looked: Array,
        bad: Array,
        line: Array | None = None,
        detail: Callable[[int], dict[str, Any]] | None = None,
        alone: Array | None = None,
        detail_alone: Callable[[int], dict[str, Any]] | None = None,
        line_alone: Array | None = None,
    ) -> Onset:
        """Return the onset of a fault over the passes looked at.

        ``line`` says where the fault stands in each pass, ``detail`` what shows it; ``alone`` where one writer alone
        is at fault.
        """
        rows = np.flatnonzero(looked)
        made = Onset(len(rows))
        if not len(rows):
            return made
        faulty = bad[rows]
        kinds = np.bincount(2 * self.phase[rows] + faulty, minlength=2 * len(PHASES)).reshape(-1, 2)
        made.phases = {PHASES[at]: (good, wrong) for at, (good, wrong) in enumerate(kinds.tolist()) if good or wrong}
        before, groups = rows, self.group[rows]
        if faulty.any():
            start = int(faulty.argmax())
            row = int(rows[start])
            made.bad, made.since, before = int(faulty.sum()), len(rows) - start, rows[:start]
            made.first = self.seen(row, None if line is None else line[row], detail(row) if detail else None)
            made.bad_in = frozenset(self.tables.groups[one] for one in np.unique(groups[faulty]).tolist())
        for group in np.unique(groups).tolist():
            good = before[self.group[before] == group]
            made.last_good[self.tables.groups[group]] = self.seen(int(good[-1])) if len(good) else None
        if alone is not None and self.differing.height:
            made.alone = self.onset(looked, alone, line if line_alone is None else line_alone, detail_alone or detail)
        return made

    def kinds(
        self,
        looked: Array,
        what: Array,
        key: Callable[[int], Any],
        line: Array | None = None,
        detail: Callable[[int], dict[str, Any]] | None = None,
    ) -> Kinds:
        """Return the onset of everything that passes show: ``what`` by number, named by the ``key`` of a pass."""
        rows = np.flatnonzero(looked)
        named: dict[Any, list[int]] = {}
        for row in rows[np.sort(np.unique(what[rows], return_index=True)[1])][:_MOST_KINDS].tolist():
            named.setdefault(key(row), []).append(int(what[row]))
        found = {one: self.onset(looked, np.isin(what, numbers), line, detail) for one, numbers in named.items()}
        return Kinds(self.onset(looked, np.zeros(self.size, np.bool_)), found)

    def writers(self, place: int, *, speaker: bool = False) -> tuple[int, int, tuple[str, ...]]:
        """Return how many writers print another value of a record than the usual one, of how many, and their ranks.

        ``speaker``: those that print the usual one.
        """
        of, differ = int(self.records["copies"][place]), int(self.records["differ"][place])
        prints = self.tables.prints.filter((pl.col("record") == place + self.base) & (pl.col("same") == speaker))
        ranks = {self.tables.prefixes[one].tp_rank for one in prints["prefix"].to_list()} - {None}
        return (of - differ if speaker else differ), of, tuple(f"TP{rank}" for rank in sorted(ranks, key=str))


def distinct(layers: Array) -> Array:
    """Return a number for every row of layers, the same where rows are the same."""
    keys = np.zeros(len(layers), np.int64)
    for column in range(layers.shape[1]):
        keys = keys * 1_000_003 + layers[:, column] + 2
    return keys


_ABSENT: dict[str, Any] = {"norm": np.nan, "count": 0, "key": 0, "rounded": False, "values": np.nan}


def _ints(table: pl.DataFrame, name: str) -> Array:
    column = table[name]
    column = column.to_physical() if isinstance(column.dtype, pl.Enum) else column
    return column.cast(pl.Int64).fill_null(-1).to_numpy(writable=True)


def _values_of(table: pl.DataFrame) -> Columns:
    """Return norms and first values as comparisons of states take them (:mod:`logscope.passes.lineage`)."""
    norm = table["norm"]
    values = table["values"]
    amount = values.list.len().fill_null(0).to_numpy().astype(np.int64)
    matrix = np.full((table.height, _VALUES), np.nan)
    flat = values.filter(values.list.len() > 0).explode().to_numpy()
    rows = np.repeat(np.arange(table.height), amount)
    columns = np.arange(len(rows)) - np.repeat(np.cumsum(amount) - amount, amount)
    few = columns < _VALUES
    matrix[rows[few], columns[few]] = flat[few]
    rounded = table["rounded"] if "rounded" in table.columns else pl.repeat(False, table.height, eager=True)
    return {
        "norm": norm.fill_null(np.nan).to_numpy(writable=True),
        "slack": np.where(norm.is_not_null().to_numpy(), table["slack"].fill_null(0.0).to_numpy(), -1.0),
        "values": matrix,
        "count": np.minimum(amount, _VALUES).astype(np.int64),
        "key": table["values_key"].fill_null(0).to_numpy(writable=True),
        "rounded": rounded.fill_null(value=False).to_numpy(writable=True),
    }


def same(one: Columns, other: Columns) -> tuple[Array, Array]:
    """Return whether norms, and whether first values, are the same at the coarser print (1, 0; -1: not printed)."""
    return same_norm(one, other), same_head(one, other)


# ------------------------------------------------------------------------------------------- what is known in the end


@dataclass(slots=True)
class Life:
    """One server life when all of it was seen: its settings, what was captured, the parts of all rules.

    ``facts`` are the sums of :func:`facts_of`; ``parts`` those of the rules by code.
    """

    segment: Segment
    contract: Contract | None = None
    given: Known | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    acceptance: Any = None
    failures: Any = None
    cache: dict[str, Any] = field(default_factory=dict)

    def __add__(self, other: Life) -> Life:
        """Return both as one, this one first."""
        return replace(other, facts=add(self.facts, other.facts), parts=add(self.parts, other.parts))

    def fact(self, name: str) -> Any:
        """Return a fact; None when nothing shows it."""
        found = self.facts.get(name)
        return found.value if isinstance(found, First) else found

    @property
    def hidden(self) -> int | None:
        """Width of one state of the target."""
        found: int | None = self.fact("hidden")
        return found

    @property
    def watch(self) -> EraWatch:
        """What its lines say about its release and the classes it loaded."""
        watch = EraWatch(self.segment)
        for payload in self.facts.get("signs", {}).values():
            watch.server(payload.value)
        return watch

    @property
    def era(self) -> Known:
        """The era of SGLang: as the user gives it, else as the log tells it."""
        return self.given if self.given is not None else self.watch.known()

    @property
    def readings(self) -> tuple[Reading, ...]:
        """The contract's layers as this era and target print them; none without a contract that names layers."""
        return () if self.contract is None else self.contract.readings(self.era.era, self.watch.target_type)

    @property
    def is_eagle3(self) -> bool:
        """False when server_args names another way of speculating (EAGLE, NEXTN, NGRAM) or none."""
        args = self.segment.server_args
        if "speculative_algorithm" not in args:
            return not args or len(args) < 50  # a shortened line need not name it
        return str(args["speculative_algorithm"]).upper() == "EAGLE3"

    @property
    def topk(self) -> int | None:
        """The topk of server_args; 1 when a draft decode of one row was seen, which no tree has."""
        return self.segment.topk if self.segment.topk is not None else (1 if self.fact("chain") else None)

    @property
    def blocked(self) -> str | None:
        """Why passes of this log cannot be judged: schedulers that print without a mark, or padded passes."""
        padded = bool(self.segment.server_args.get("enable_dp_attention"))
        if self.fact("unmarked") is not None and padded:
            return (
                "under data-parallel attention passes without a request are padded with other rows, and lines without"
                " a DP rank do not tell them from real ones"
            )
        if self.fact("unmarked") is not None and self.segment.schedulers > 1:
            several = f"{self.segment.schedulers} schedulers print into this log without a mark"
            return f"{several}: their passes are not told apart"
        return None

    @property
    def rows_may_differ(self) -> str | None:
        """Return why rows of one pass need not agree."""
        if self.segment.server_args.get("enable_dp_attention"):
            return "under data-parallel attention rows are padded and scattered over ranks"
        return None

    @property
    def copies_known(self) -> bool:
        """Whether copies of one record are known to be just that: the number of writers is no guess of prints alone.

        It is said (``tp_size``, ranks in prefixes), or copies agree often.
        """
        said, counted = self.segment.tp_size, self.fact("writers")
        if said is not None and counted is not None and not self.fact("marked"):
            return bool(said == counted)
        return bool(self.fact("marked")) or self.facts.get("agree", 0) >= _AGREED


def facts_of(view: View) -> dict[str, Any]:
    """Return what a batch says about a life: counts, widths, its capture plan, signs of a release."""
    real = view.real & ~view.piece
    facts: dict[str, Any] = {
        "target": int((real & view.target).sum()),
        "draft": int((real & ~view.target).sum()),
        "lines": view.server.height,
        "signs": _signs(view),
    }
    reads = view.taken(view.read)
    sized = view.target & (view.hidden > 0)
    own = ~view.target & (reads["embeds"] > 0)
    for name, mask, values in (("hidden", sized, view.hidden), ("draft_hidden", own, reads["embeds"])):
        if mask.any():
            row = int(mask.argmax())
            facts |= {name: First(int(values[row])), f"first_{name}": First(view.seen(row).place)}
    if (real & ~view.target & (view.phase == DECODE) & (view.rows == 1)).any():
        facts["chain"] = First(True)
    if any(view.tables.groups[one][1] is None for one in np.unique(view.group).tolist()):
        facts["unmarked"] = First(True)
    several = view.real & (view.expected > 1)
    if several.any():
        facts["writers"] = First(int(view.expected[several].max()))
        facts["agree"] = int((view.copies - 1)[several & view.compared & (view.differ == 0)].sum())
        prefixes = view.tables.prints["prefix"].unique().to_list()
        if any(view.tables.prefixes[one].tp_rank is not None for one in prefixes):
            facts["marked"] = First(True)
    if (view.target & ((view.captured > 0) | (view.end >= 0))).any():
        facts["target_lines"] = First(True)
    plans = np.flatnonzero((view.event == PLAN) & view.usable)
    found = [(view.payload(at), Place(view.file, int(view.records["line"][at]))) for at in plans[:1].tolist()]
    said = [one for one in view.lines("capture_plan") if one.payload.usable]
    found += [(one.payload, one.place) for one in said]
    for one in said:
        layers = whole_numbers(one.payload.fields.get("layers_to_capture"))
        if one.payload.site is None and layers:
            key = (tuple(sorted(layers)), str(one.payload.fields.get("source")))
            server = facts.setdefault("named", {}).setdefault((one.prefix.origin or "").rpartition("/")[0], {})
            server.setdefault(key, {}).setdefault(writer_label(one.prefix), First(one.place))
    if found:
        facts["plan"] = First(min(found, key=lambda one: one[1].line))
    return facts


def _signs(view: View) -> dict[Any, First]:
    """Return the lines that can tell a release or a class; of statistics the first and the last of a batch."""
    found: dict[Any, First] = {}
    for event in view.lines(*(SIGNS - _STATISTICS)):
        fields = event.payload.fields
        key = (event.payload.event, frozenset(fields), *(str(fields.get(name)) for name in ("type", "what")))
        found.setdefault(key, First(event.payload))
    table = view.server.filter(pl.col("event").is_in(list(_STATISTICS)))
    for at in {0, table.height - 1} if table.height else ():
        said = view.tables.said[table["said"][at]]
        payload = said if isinstance(said, Payload) else view.tables.read(said) if view.tables.read else None
        if payload is not None:
            found.setdefault((payload.event, frozenset(payload.fields)), First(payload))
    return found
