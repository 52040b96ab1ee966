"""The states of a run in flat memory, and when two printed states are alike.

This module is responsible for keeping what a comparison needs of every forward pass (:class:`PassStore`: arrays, no
text, no objects) and for the measures of likeness: equal at the coarser print, near, apart. It must not know which pass
belongs to which, nor what a difference means.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from logscope.model import CAPTURE_EVENTS

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from logscope.model import ForwardPass, Payload

CAPTURE = "capture"
# A phase of fewer passes than this does not show what is usual in it.
_FEW = 3
T = TypeVar("T", bound="Hashable")

# The data's way through a pass: of the draft forward, fc, fc output; of the target the captures and their join.
_WAY = {"forward": 0, "fc": 1, CAPTURE: 2, "fc_output": 3, "forward_end": 4, "aux_concat": 5}


class Codes(Generic[T]):
    """Numbers for values, in the order met: the same value, the same number, on both sides of a comparison."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._codes: dict[T, int] = {}

    def of(self, value: T) -> int:
        """Return the number of a value, a new one when it is new."""
        code = self._codes.get(value)
        if code is None:
            code = self._codes[value] = len(self.values)
            self.values.append(value)
        return code


class Slot(NamedTuple):
    """Where in a pass a record stands: its event (captures share one), layer, and which of several alike."""

    event: str
    layer: int | None = None
    nth: int = 0

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key: in the order of the data's way through a pass."""
        layer = math.inf if self.layer is None else self.layer
        return (_WAY.get(self.event, len(_WAY)), int(min(layer, 1 << 40)), self.nth)


class Kind(NamedTuple):
    """What many passes have in common: role, phase, when, and who printed them."""

    role: str
    phase: str
    during: str
    complete: bool
    file: str
    segment: int
    group: tuple[Any, ...]
    copies: int | None


class Detail(NamedTuple):
    """What a record says beside its values, as far as it belongs to the computation and not to the print."""

    mode: str | None
    num_aux: int | None
    shapes: tuple[tuple[int, ...], ...] | None
    residual_is_none: bool | None


FORWARD = Slot("forward")
JOIN = Slot("aux_concat")


@dataclass(slots=True)
class Tables:
    """The numbered values two stores share."""

    slots: Codes[Slot] = field(default_factory=Codes)
    kinds: Codes[Kind] = field(default_factory=Codes)
    shapes: Codes[tuple[int, ...] | None] = field(default_factory=Codes)
    details: Codes[Detail] = field(default_factory=Codes)
    heads: Codes[tuple[float, ...] | None] = field(default_factory=Codes)


class Variant(NamedTuple):
    """A copy of a record that another writer printed with other values."""

    line: int
    norm: float | None


class _Usual:
    """Counts in how many passes each slot occurs, apart for complete ones."""

    def __init__(self) -> None:
        self.passes = 0
        self._complete = 0
        self._found: tuple[Counter[int], Counter[int]] = (Counter(), Counter())

    def add(self, slots: set[int], *, complete: bool) -> None:
        """Take a pass."""
        self.passes += 1
        self._complete += complete
        self._found[complete].update(slots)

    def slots(self) -> set[int]:
        """Return what more than half of them have: of the complete ones, where there are any."""
        passes = self._complete or self.passes
        return {slot for slot, number in self._found[bool(self._complete)].items() if 2 * number > passes}


class PassStore:
    """The forward passes of one run as flat arrays: about 60 bytes a record, whatever the length of its text.

    Passes and records are numbered from 0 in the order they came; everything is asked for by such a number.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._kind = array("I")
        self._number = array("Q")
        self._rows = array("q")
        self._start = array("Q", [0])
        self._slot = array("I")
        self._line = array("Q")
        self._shape = array("I")
        self._detail = array("I")
        self._norm = array("d")
        self._slack = array("f")
        self._head = array("f")
        self._head_start = array("Q", [0])
        self._head_slack = array("I")
        self._copies = array("I")
        self._damaged: set[int] = set()
        self._normless: set[int] = set()
        self.variants: dict[int, list[Variant]] = {}
        self.derived = False
        self.rounded = False

    def usual(self) -> dict[tuple[str, str], set[Slot]]:
        """Return by role and phase the slots that more than half of the passes have.

        Complete passes only, where there are any. A phase of fewer than three passes says little: its role decides.
        """
        phases: dict[tuple[str, str], _Usual] = {}
        roles: dict[str, _Usual] = {}
        for index in range(len(self)):
            kind = self.kind(index)
            if kind.during != "graph_capture":
                slots = {self._slot[record] for record in self.records(index)}
                phases.setdefault(kind[:2], _Usual()).add(slots, complete=kind.complete)
                roles.setdefault(kind.role, _Usual()).add(slots, complete=kind.complete)
        values = self.tables.slots.values
        return {
            (role, phase): {values[slot] for slot in (found if found.passes >= _FEW else roles[role]).slots()}
            for (role, phase), found in phases.items()
        }

    def joined(self) -> dict[tuple[str, str], int]:
        """Return by role and phase how many states are usually joined, as far as the joins say it."""
        found: dict[tuple[str, str], Counter[int]] = {}
        join = self.tables.slots.of(JOIN)
        for index in range(len(self)):
            record = self.find(index, join)
            number = self.detail(record).num_aux if record >= 0 else None
            if number is not None:
                found.setdefault(self.kind(index)[:2], Counter())[number] += 1
        return {key: counts.most_common(1)[0][0] for key, counts in found.items()}

    def reunite(self) -> None:
        """Put passes together again that a repeated line has cut in two.

        A record that the pass already has looks like the first of the next pass. Where two neighbours of one role have
        no other record in common, the second begins with the very record the first ends with, and one of them lacks
        what its like have, they are one pass, and the record is its second of that slot.
        """
        roles: dict[str, _Usual] = {}
        for index in range(len(self)):
            slots = {self._slot[record] for record in self.records(index)}
            roles.setdefault(self.kind(index).role, _Usual()).add(slots, complete=False)
        usual = {role: found.slots() for role, found in roles.items()}
        joined: list[int] = []
        for index in range(1, len(self)):
            before, here = self.kind(index - 1), self.kind(index)
            if before.role != here.role or (before.file, before.segment, before.group) != here[4:7]:
                continue
            mine, theirs = self.records(index - 1), self.records(index)
            if not mine or not theirs or not self._repeats(mine[-1], theirs[0]) or (joined and joined[-1] == index - 1):
                continue
            sets = [{self._slot[record] for record in records} for records in (mine, theirs)]
            if len(sets[0] & sets[1]) == 1 and any(usual[here.role] - found for found in sets):
                joined.append(index)
        for index in reversed(joined):
            repeated = self._start[index]
            slot = self.slot_of(repeated)
            self._slot[repeated] = self.tables.slots.of(slot._replace(nth=slot.nth + 1))
            longer = index if len(self.records(index)) > len(self.records(index - 1)) else index - 1
            for column in (self._kind, self._number, self._rows):
                column[index - 1] = column[longer]
                del column[index]
            del self._start[index]

    def _repeats(self, one: int, other: int) -> bool:
        """Return whether two records say the same."""
        return (
            self._slot[one] == self._slot[other]
            and self._shape[one] == self._shape[other]
            and self._detail[one] == self._detail[other]
            and self._norm[one : one + 1].tobytes() == self._norm[other : other + 1].tobytes()
            and self.head(one) == self.head(other)
        )

    def __len__(self) -> int:
        """Return the number of passes."""
        return len(self._kind)

    def add(self, item: ForwardPass) -> None:
        """Take one pass; nothing of it is held afterwards."""
        tables = self.tables
        group = tuple(item.group)
        kind = Kind(
            item.role, item.phase, item.during, item.complete, item.file, item.segment, group, item.expected_copies
        )
        self._kind.append(tables.kinds.of(kind))
        self._number.append(item.number)
        rows = item.rows
        self._rows.append(-1 if rows is None else rows)
        seen: dict[tuple[str, int | None], int] = {}
        for record in item.records:
            payload = record.payload
            if payload.kind != "event":
                continue
            at = len(self._slot)
            name = (CAPTURE if payload.event in CAPTURE_EVENTS else payload.event, payload.layer)
            nth = seen.get(name, 0)
            seen[name] = nth + 1
            self._slot.append(tables.slots.of(Slot(*name, nth)))
            self._line.append(record.line)
            self._shape.append(tables.shapes.of(payload.shape))
            self._detail.append(tables.details.of(detail(payload)))
            if payload.norm is None:
                self._normless.add(at)
            self._norm.append(math.nan if payload.norm is None else payload.norm)
            self._slack.append(payload.norm_resolution)
            self._head.extend(payload.head or ())
            self._head_start.append(len(self._head))
            self._head_slack.append(tables.heads.of(payload.head_resolution))
            self._copies.append(record.copies)
            self.derived = self.derived or payload.norm_derived
            self.rounded = self.rounded or payload.head_resolution is not None
            if not payload.usable:
                self._damaged.add(at)
            if record.variants:
                self.variants[at] = [Variant(line, other.norm) for line, _, _, other in record.variants]
        self._start.append(len(self._slot))

    def kind(self, index: int) -> Kind:
        """Return what the pass has in common with others."""
        return self.tables.kinds.values[self._kind[index]]

    def number(self, index: int) -> int:
        """Return the pass's printed number."""
        return self._number[index]

    def rows(self, index: int) -> int | None:
        """Return the rows of the pass."""
        rows = self._rows[index]
        return None if rows < 0 else rows

    def records(self, index: int) -> range:
        """Return the records of the pass."""
        return range(self._start[index], self._start[index + 1])

    def find(self, index: int, slot: int) -> int:
        """Return the record of the pass in a slot, -1 when it has none."""
        for record in range(self._start[index], self._start[index + 1]):
            if self._slot[record] == slot:
                return record
        return -1

    def slot(self, record: int) -> int:
        """Return the number of the record's slot."""
        return self._slot[record]

    def slot_of(self, record: int) -> Slot:
        """Return the record's slot."""
        return self.tables.slots.values[self._slot[record]]

    def line(self, record: int) -> int:
        """Return the record's line."""
        return self._line[record]

    def first_line(self, index: int) -> int:
        """Return the line of the pass's first record, 0 for a pass without one."""
        start = self._start[index]
        return self._line[start] if start < self._start[index + 1] else 0

    def shape(self, record: int) -> tuple[int, ...] | None:
        """Return the printed shape."""
        return self.tables.shapes.values[self._shape[record]]

    def detail(self, record: int) -> Detail:
        """Return mode, number of states and the rest."""
        return self.tables.details.values[self._detail[record]]

    def norm(self, record: int) -> float | None:
        """Return the printed norm."""
        return None if record in self._normless else self._norm[record]

    def slack(self, record: int) -> float:
        """Return half the last printed digit of the norm."""
        return self._slack[record]

    def head(self, record: int) -> array[float]:
        """Return the first values, empty when none are printed."""
        return self._head[self._head_start[record] : self._head_start[record + 1]]

    def head_slack(self, record: int) -> tuple[float, ...] | None:
        """Return half the last printed digit of each first value, None when they are exact."""
        return self.tables.heads.values[self._head_slack[record]]

    def copies(self, record: int) -> int:
        """Return how many writers printed it."""
        return self._copies[record]

    def usable(self, record: int) -> bool:
        """Return whether its values may be compared."""
        return record not in self._damaged

    def state(self, record: int) -> State | None:
        """Return the record as a state, None without a norm or when damaged."""
        if record < 0 or record in self._damaged or record in self._normless:
            return None
        head = tuple(self.head(record))
        slack = self.head_slack(record)
        shape = self.shape(record)
        return State(
            self._shape[record],
            shape[0] if shape is not None and len(shape) > 1 else 1,
            self._norm[record],
            self._slack[record],
            head,
            slack if slack is not None else (0.0,) * len(head),
        )

    def key(self, record: int) -> bytes | None:
        """Return shape, norm and head as printed, for equality; None without a norm or when damaged."""
        if record < 0 or record in self._damaged or record in self._normless:
            return None
        return b"%d|%s%s" % (
            self._shape[record],
            self._norm[record : record + 1].tobytes(),
            self.head(record).tobytes(),
        )


def detail(payload: Payload) -> Detail:
    """Return mode, number of joined states, their shapes and whether a residual was there, None where not printed."""
    fields = payload.fields
    number = fields.get("num_aux", fields.get("count"))
    shapes = fields.get("shapes")
    residual = fields.get("residual_is_none")
    return Detail(
        payload.mode,
        number if isinstance(number, int) and not isinstance(number, bool) else None,
        tuple(tuple(shape) for shape in shapes if isinstance(shape, list)) if isinstance(shapes, list) else None,
        residual if isinstance(residual, bool) else None,
    )


def close(one: float, other: float, slack: float) -> bool:
    """Return whether two printed values may be one number; nan equals nan, inf equals inf.

    The last term pays for keeping first values in single precision, the factor for the binary form of a decimal half.
    """
    if one == other:
        return True
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return abs(one - other) <= 1.001 * slack + 1e-7 * abs(one)


def head_distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Return |a - b| / max(|a|, |b|) over the values both print: 0 for equal, about 1.4 for unrelated ones.

    Taken over all of them, because a single value near zero may lose every digit to bf16 without meaning anything.
    Infinite when a value is finite on one side only.
    """
    square = size_one = size_other = 0.0
    for mine, theirs in zip(one, other, strict=False):  # prints of different length are compared as far as both go
        if close(mine, theirs, 0.0):
            if math.isfinite(mine):
                size_one += mine * mine
                size_other += theirs * theirs
            continue
        if not (math.isfinite(mine) and math.isfinite(theirs)):
            return math.inf
        square += (mine - theirs) ** 2
        size_one += mine * mine
        size_other += theirs * theirs
    largest = max(size_one, size_other)
    return math.sqrt(square / largest) if largest else 0.0


class State(NamedTuple):
    """A printed state as a point that others can be near to; ``shape`` is the number of its shape."""

    shape: int
    rows: int
    norm: float
    slack: float
    head: tuple[float, ...]
    head_slack: tuple[float, ...]

    @property
    def printed_head(self) -> bool:
        """True when first values are printed."""
        return bool(self.head)

    def printed_alike(self, other: State) -> bool:
        """Return whether both prints may stand for one state, at the coarser of the two."""
        return self.shape == other.shape and self.same_norm(other) and self.same_head(other)

    def same_norm(self, other: State) -> bool:
        """Return whether both norms may be one number, at the coarser print."""
        return close(self.norm, other.norm, self.slack + other.slack)

    def same_head(self, other: State) -> bool:
        """Return whether the first values may be the same, as far as both are printed, at the coarser print."""
        return all(
            close(mine, theirs, fine + coarse)
            for mine, theirs, fine, coarse in zip(
                self.head, other.head, self.head_slack, other.head_slack, strict=False
            )
        )  # prints of different length are compared as far as both go
