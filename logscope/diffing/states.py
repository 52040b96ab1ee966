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

from logscope.model import CAPTURE_EVENTS, num_aux

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from logscope.model import ForwardPass, Payload

CAPTURE = "capture"
_NORMLESS, _DAMAGED = 1, 2
_USABLE = ("whole", "partial")
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


class Pattern(NamedTuple):
    """What passes of one form have in common, as numbers: kind, slots, details."""

    kind: int
    slots: bytes
    details: bytes


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
        self._flags = array("B")
        self._patterns: Counter[Pattern] = Counter()
        self.variants: dict[int, list[Variant]] = {}
        self.derived = False
        self.rounded = False

    def __len__(self) -> int:
        """Return the number of passes."""
        return len(self._kind)

    def add(self, item: ForwardPass) -> None:
        """Take one pass; nothing of it is held afterwards."""
        tables, flags = self.tables, self._flags
        first = len(flags)
        seen: set[Slot] = set()
        for record in item.records:
            payload = record.payload
            if payload.kind != "event":
                continue
            event = CAPTURE if payload.event in CAPTURE_EVENTS else payload.event
            slot = Slot(event, payload.layer)
            while slot in seen:
                slot = slot._replace(nth=slot.nth + 1)
            seen.add(slot)
            self._slot.append(tables.slots.of(slot))
            self._line.append(record.first[0])
            self._shape.append(tables.shapes.of(payload.shape))
            self._detail.append(tables.details.of(detail(payload)))
            norm = payload.norm
            self._norm.append(math.nan if norm is None else norm)
            self._slack.append(payload.norm_resolution)
            if payload.head:
                self._head.extend(payload.head)
            self._head_start.append(len(self._head))
            self._head_slack.append(tables.heads.of(payload.head_resolution))
            self._copies.append(record.copies)
            if payload.norm_derived:
                self.derived = True
            if payload.head_resolution is not None:
                self.rounded = True
            if record.variants:
                self.variants[len(flags)] = [Variant(line, other.norm) for line, _, _, other in record.variants]
            flags.append((norm is None) * _NORMLESS | (payload.intact not in _USABLE) * _DAMAGED)
        kind = Kind(
            item.role,
            item.phase,
            item.during,
            item.complete,
            item.file,
            item.segment,
            tuple(item.group),
            item.expected_copies,
        )
        rows = item.rows
        self._kind.append(tables.kinds.of(kind))
        self._number.append(item.number)
        self._rows.append(-1 if rows is None else rows)
        self._start.append(len(flags))
        self._patterns[self._pattern(len(self._kind) - 1, first, len(flags))] += 1

    def _pattern(self, index: int, first: int, last: int) -> Pattern:
        """Return the form of a pass."""
        return Pattern(self._kind[index], self._slot[first:last].tobytes(), self._detail[first:last].tobytes())

    # what is usual

    def usual(self) -> dict[tuple[str, str], set[Slot]]:
        """Return by role and phase the slots that more than half of the passes have.

        Complete passes only, where there are any. A phase of fewer than three passes says little: its role decides.
        """
        groups: dict[tuple[str, str], list[tuple[Pattern, int]]] = {}
        roles: dict[str, list[tuple[Pattern, int]]] = {}
        for pattern, number in self._patterns.items():
            kind = self.tables.kinds.values[pattern.kind]
            if kind.during != "graph_capture":
                groups.setdefault(kind[:2], []).append((pattern, number))
                roles.setdefault(kind.role, []).append((pattern, number))
        return {
            key: self._most(found if sum(number for _, number in found) >= _FEW else roles[key[0]])
            for key, found in groups.items()
        }

    def _most(self, patterns: list[tuple[Pattern, int]], *, complete: bool = True) -> set[Slot]:
        """Return the slots that more than half of the passes of these forms have."""
        kinds = self.tables.kinds.values
        whole = [(pattern, number) for pattern, number in patterns if kinds[pattern.kind].complete]
        chosen = whole if whole and complete else patterns
        found: Counter[int] = Counter()
        for pattern, number in chosen:
            for slot in set(array("I", pattern.slots)):
                found[slot] += number
        total = sum(number for _, number in chosen)
        return {self.tables.slots.values[slot] for slot, number in found.items() if 2 * number > total}

    def phases(self, role: str | None) -> Counter[str]:
        """Count the passes of a role by phase, without the dummies of graph capture."""
        found: Counter[str] = Counter()
        for pattern, number in self._patterns.items():
            kind = self.tables.kinds.values[pattern.kind]
            if number and kind.role == role and kind.during != "graph_capture":
                found[kind.phase] += number
        return found

    def joined(self) -> dict[tuple[str, str], int]:
        """Return by role and phase how many states are usually joined, as far as the joins say it."""
        found: dict[tuple[str, str], Counter[int]] = {}
        join = self.tables.slots.of(JOIN)
        for pattern, number in self._patterns.items():
            for slot, code in zip(array("I", pattern.slots), array("I", pattern.details), strict=True):
                joined = self.tables.details.values[code].num_aux
                if slot == join and joined is not None:
                    key = self.tables.kinds.values[pattern.kind][:2]
                    found.setdefault(key, Counter())[joined] += number
        return {key: counts.most_common(1)[0][0] for key, counts in found.items()}

    # one pass that a repeated line has cut in two

    def reunite(self) -> None:
        """Put passes together again that a repeated line has cut in two; to be called once, after the last pass.

        A record that the pass already has looks like the first of the next pass. Where two neighbours of one role have
        no other record in common, the second begins with the very record the first ends with, and one of them lacks
        what its like have, they are one pass, and the record is its second of that slot.
        """
        usual = {
            role: self._most(
                [item for item in self._patterns.items() if self.tables.kinds.values[item[0].kind].role == role],
                complete=False,
            )
            for role in ("target", "draft")
        }
        cuts: list[int] = []
        for index in range(1, len(self)):
            if self._cut_here(index, usual) and (not cuts or cuts[-1] != index - 1):
                cuts.append(index)
        if cuts:
            self._join(cuts)

    def _cut_here(self, index: int, usual: dict[str, set[Slot]]) -> bool:
        """Return whether a pass is the rest of the one before it."""
        first, middle, last = self._start[index - 1], self._start[index], self._start[index + 1]
        if first == middle or middle == last or self._slot[middle - 1] != self._slot[middle]:
            return False
        before, here = self.kind(index - 1), self.kind(index)
        if before.role != here.role or before[4:7] != here[4:7] or self._form(middle - 1) != self._form(middle):
            return False
        sets = [{self.slot_of(record) for record in range(*ends)} for ends in ((first, middle), (middle, last))]
        return len(sets[0] & sets[1]) == 1 and any(usual[here.role] - found for found in sets)

    def _form(self, record: int) -> tuple[Any, ...]:
        """Return everything a record says, for equality."""
        return (
            self._shape[record],
            self._detail[record],
            self._norm[record : record + 1].tobytes(),
            self.head(record).tobytes(),
        )

    def _join(self, cuts: list[int]) -> None:
        """Join each of these passes to the one before it; what belongs to the pass is taken from the longer part."""
        gone = set(cuts)
        columns = (self._kind, self._number, self._rows)
        for index in cuts:
            first, middle, last = self._start[index - 1], self._start[index], self._start[index + 1]
            for part, ends in ((index - 1, (first, middle)), (index, (middle, last))):
                self._patterns[self._pattern(part, *ends)] -= 1
            slot = self.slot_of(middle)
            self._slot[middle] = self.tables.slots.of(slot._replace(nth=slot.nth + 1))
            for column in columns:
                column[index - 1] = column[index if last - middle > middle - first else index - 1]
            self._patterns[self._pattern(index - 1, first, last)] += 1
        kept = [index for index in range(len(self)) if index not in gone]
        self._start = array("Q", [*(self._start[index] for index in kept), self._start[-1]])
        self._kind = array("I", (self._kind[index] for index in kept))
        self._number = array("Q", (self._number[index] for index in kept))
        self._rows = array("q", (self._rows[index] for index in kept))

    # one pass

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

    def kind_code(self, index: int) -> int:
        """Return the number of the pass's kind."""
        return self._kind[index]

    def form(self, index: int) -> bytes:
        """Return which slots the pass has and which of them hold a norm, for equality."""
        first, last = self._start[index], self._start[index + 1]
        return self._slot[first:last].tobytes() + self._flags[first:last].tobytes()

    def printed(self, index: int) -> bytes | None:
        """Return all that the pass prints, for equality; None when a part is damaged or a writer deviates."""
        first, last = self._start[index], self._start[index + 1]
        flags = self._flags[first:last].tobytes()
        if max(flags, default=0) >= _DAMAGED or (
            self.variants and any(at in self.variants for at in range(first, last))
        ):
            return None
        columns = (self._slot, self._shape, self._detail, self._norm, self._slack, self._head_slack, self._copies)
        parts = [column[first:last].tobytes() for column in columns]
        head = self._head[self._head_start[first] : self._head_start[last]]
        return b"".join((flags, *parts, head.tobytes()))

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
        return not self._flags[record] & _DAMAGED

    def state(self, record: int) -> State | None:
        """Return the record as a state, None without a norm or when damaged."""
        if record < 0 or self._flags[record]:
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
        if record < 0 or self._flags[record]:
            return None
        return b"%d|%s%s" % (
            self._shape[record],
            self._norm[record : record + 1].tobytes(),
            self.head(record).tobytes(),
        )


def detail(payload: Payload) -> Detail:
    """Return mode, number of joined states, their shapes and whether a residual was there, None where not printed."""
    fields = payload.fields
    shapes = fields.get("shapes")
    residual = fields.get("residual_is_none")
    return Detail(
        payload.mode,
        num_aux(payload),
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
