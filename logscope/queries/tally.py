"""Counts what the forward passes print: the one fold under summarize, captures, shapes and norms.

This module is responsible for adding up passes and their records by segment, writer group, model, ``during``, role and
phase, in flat memory and at a few microseconds a pass. It must not put anything into words or tables, and it must not
merge what is not the same: runs, models, sources and dummy passes are counted apart.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from logscope.model import CAPTURE_EVENTS, DURING, ForwardPass, Place, Segment, num_aux
from logscope.queries.fold import Digest, Running
from logscope.queries.words import most_common

if TYPE_CHECKING:
    from logscope.model import During, Payload, Record, ServerEvent
    from logscope.report import Item

# Bounds that keep memory flat on a hostile log; what they leave out is counted.
MAX_SHAPES = 2048
MAX_SETS = 64
MAX_PLACES = 8
# The order of a speculative round.
_ROUND = {
    ("target", "extend"): 0,
    ("draft", "extend"): 1,
    ("draft", "decode"): 2,
    ("target", "verify"): 3,
    ("draft", "draft_extend"): 4,
    ("target", "decode"): 5,
}


class Key(NamedTuple):
    """What tells one bucket from another."""

    file: str
    segment: int
    group: tuple[Any, ...]
    site: str | None
    during: During
    role: str
    phase: str


class Cell:
    """One kind of record (event and layer) within a bucket: counts, shapes and the statistics of its norm."""

    __slots__ = (
        "copies",
        "count",
        "damaged",
        "derived",
        "digest",
        "event",
        "first",
        "first_non_finite",
        "first_variant",
        "first_zero",
        "layer",
        "modes",
        "non_finite",
        "rms",
        "shapes",
        "shapes_left_out",
        "site",
        "variants",
        "without_norm",
        "zero",
    )

    def __init__(self, payload: Payload, place: Place) -> None:
        self.event = payload.event
        self.layer = payload.layer
        self.site = payload.site
        self.first = place
        self.count = 0
        self.damaged = 0
        self.copies: dict[int, int] = {}
        self.variants = 0
        self.first_variant: Place | None = None
        # shape -> [count, first line]
        self.shapes: dict[tuple[int, ...], list[int]] = {}
        self.shapes_left_out = 0
        # capture_hidden_mode as printed -> count
        self.modes: dict[str, int] = {}
        self.rms = Running()
        self.digest = Digest()
        self.derived = False
        self.without_norm = 0
        self.non_finite = 0
        self.first_non_finite: Place | None = None
        self.zero = 0
        self.first_zero: Place | None = None


class Captured:
    """One set of captured layers: how many passes of a bucket print exactly it, where the first are, and the last."""

    __slots__ = ("count", "last", "places")

    def __init__(self) -> None:
        self.count = 0
        self.places: list[Place] = []
        self.last: Place | None = None

    def add(self, other: Captured) -> None:
        """Add the passes of another one."""
        self.count += other.count
        self.places = sorted(self.places + other.places, key=lambda place: place.line)[:MAX_PLACES]
        if other.last is not None and (self.last is None or self.last.line < other.last.line):
            self.last = other.last

    def copy(self) -> Captured:
        """Return an equal one that can be added to."""
        new = Captured()
        new.add(self)
        return new


class Bucket:
    """The passes of one key."""

    __slots__ = (
        "captures",
        "cells",
        "cut_sets",
        "evidence",
        "first",
        "incomplete",
        "joins",
        "key",
        "marked",
        "num_aux_differs",
        "passes",
        "reasons",
        "rows_max",
        "rows_min",
        "sets",
        "sets_left_out",
    )

    def __init__(self, key: Key, place: Place, *, marked: bool = False) -> None:
        self.key = key
        self.first = place
        # whether prefixes tell the writers of its records apart
        self.marked = marked
        self.passes = 0
        self.incomplete = 0
        self.rows_min: int | None = None
        self.rows_max: int | None = None
        self.captures = 0
        self.evidence: dict[str, int] = {}
        self.reasons: dict[str, int] = {}
        self.cells: dict[tuple[str, int | None, str | None], Cell] = {}
        # layers captured -> passes; incomplete passes apart, since one that was cut may have captured more
        self.sets: dict[tuple[int | None, ...], Captured] = {}
        self.cut_sets: dict[tuple[int | None, ...], Captured] = {}
        self.sets_left_out = 0
        # (num_aux as printed, width) -> [passes, first line]
        self.joins: dict[tuple[int | None, int | None], list[int]] = {}
        # passes whose forward_end or aux_concat counts other states than the captures printed: (kind, said, seen)
        self.num_aux_differs: dict[tuple[str, int, int], Captured] = {}

    @property
    def usual(self) -> tuple[int | None, ...] | None:
        """The set of captured layers of more than half of its passes, None when there is no such set."""
        sets = self.known_sets
        layers = most_common({key: captured.count for key, captured in sets.items()})
        if layers is None:
            return None
        total = sum(captured.count for captured in sets.values()) + self.sets_left_out
        return layers if 2 * sets[layers].count > total else None

    @property
    def known_sets(self) -> dict[tuple[int | None, ...], Captured]:
        """The sets of captured layers of its complete passes; where these are the minority, of all its passes."""
        complete = sum(captured.count for captured in self.sets.values())
        if 2 * complete > self.passes or not self.cut_sets:
            return self.sets
        merged = {layers: captured.copy() for layers, captured in self.sets.items()}
        for layers, captured in self.cut_sets.items():
            merged.setdefault(layers, Captured()).add(captured)
        return merged

    @property
    def copies(self) -> int | None:
        """The usual number of copies of its records."""
        seen: dict[int, int] = {}
        for cell in self.cells.values():
            for copies, number in cell.copies.items():
                seen[copies] = seen.get(copies, 0) + number
        usual: int | None = most_common(seen)
        return usual


class Tally:
    """The fold. ``buckets`` and ``segments`` are in order of first appearance."""

    __slots__ = ("_roots", "_sites", "buckets", "plans", "segments", "strays")

    def __init__(self) -> None:
        self.buckets: dict[Key, Bucket] = {}
        self.segments: dict[tuple[str, int], Segment] = {}
        self._sites: dict[tuple[Any, ...], str | None] = {}
        self._roots: dict[tuple[int, int], float] = {}
        # capture_plan records: what was asked to be captured, before any pass
        self.plans: list[tuple[str, int, Payload, Place]] = []
        # debug records that belong to no pass, by event: (file, segment, site, event) -> [count, first line]
        self.strays: dict[tuple[str, int, str | None, str], list[int]] = {}

    def ordered(self) -> list[Bucket]:
        """Return the buckets by run, source and model, then in the order of a speculative round."""
        return sorted(
            self.buckets.values(),
            key=lambda bucket: (
                bucket.key.file,
                bucket.key.segment,
                str(bucket.key.group),
                DURING.index(bucket.key.during),
                _ROUND.get((bucket.key.role, bucket.key.phase), len(_ROUND)),
                bucket.key.site or "",
            ),
        )

    def run_name(self, file: str, segment: int) -> str:
        """Return what tells a run from the others in a sentence: nothing, ``run 2``, ``a.log`` or ``a.log run 2``."""
        if len(self.segments) < 2:
            return ""
        files = {other for other, _ in self.segments}
        several = sum(1 for other, _ in self.segments if other == file) > 1
        parts = [file] * (len(files) > 1) + [f"run {segment}"] * (several or len(files) == 1)
        return " ".join(parts)

    def see(self, item: Item) -> Bucket | None:
        """Take one item; return the bucket of a forward pass."""
        if isinstance(item, ForwardPass):
            return self._pass(item)
        if isinstance(item, Segment):
            self.segments[item.file, item.number] = item
        elif item.occurrence[3].site is not None:
            self._stray(item)
        return None

    def _stray(self, item: ServerEvent) -> None:
        payload = item.payload
        key = (item.file, item.segment, payload.site, payload.event)
        seen = self.strays.get(key)
        if seen is not None:
            seen[0] += 1
        elif len(self.strays) < MAX_SHAPES:
            self.strays[key] = [1, item.line]
        if payload.event == "capture_plan" and payload.usable:
            self._plan(item.file, item.segment, payload, item.place)

    def _plan(self, file: str, segment: int, payload: Payload, place: Place) -> None:
        if len(self.plans) < MAX_SETS and all(known[2] is not payload for known in self.plans):
            self.plans.append((file, segment, payload, place))

    def _site(self, item: ForwardPass) -> str | None:
        """Return the site of the model of a pass: of its first record that names a role of its own."""
        key = (item.file, item.segment, item.group, item.role)
        for record in item.records:
            payload = record.first[3]
            if payload.role is not None:
                self._sites[key] = payload.site
                return payload.site
        # Only its logits record was printed (a cut edge): the model is the one this group printed last.
        return self._sites.get(key)

    def _pass(self, item: ForwardPass) -> Bucket:
        file = item.file
        first = item.records[0].first[3]
        site = first.site if first.role is not None else self._site(item)
        key = Key(file, item.segment, item.group, site, item.during, item.role, item.phase)
        bucket = self.buckets.get(key)
        if bucket is None:
            prefix = item.records[0].first[2]
            marked = (prefix.pid, prefix.tp_rank, prefix.ep_rank) != (None, None, None)
            bucket = self.buckets[key] = Bucket(key, item.place, marked=marked)
        bucket.passes += 1
        evidence = item.evidence
        bucket.evidence[evidence] = bucket.evidence.get(evidence, 0) + 1
        if item.reason is not None and item.phase == "unknown" and len(bucket.reasons) < MAX_SETS:
            bucket.reasons[item.reason] = bucket.reasons.get(item.reason, 0) + 1
        rows = item.rows
        if rows is not None:
            if bucket.rows_min is None or rows < bucket.rows_min:
                bucket.rows_min = rows
            if bucket.rows_max is None or rows > bucket.rows_max:
                bucket.rows_max = rows
        layers: list[int | None] = []
        said: dict[str, int] = {}
        cells = bucket.cells
        for record in item.records:
            payload = record.first[3]
            event = payload.event
            cell = cells.get((event, payload.layer, payload.site))
            if cell is None:
                cell = cells[event, payload.layer, payload.site] = Cell(payload, Place(file, record.first[0]))
                if event == "capture_plan" and payload.usable:
                    self._plan(file, item.segment, payload, cell.first)
            self._record(cell, record, payload, file)
            if event in CAPTURE_EVENTS:
                layers.append(payload.layer)
            elif event in ("aux_concat", "forward_end"):
                number = num_aux(payload)
                if number is not None:
                    said[event] = number
                if event == "aux_concat":
                    join = (number, payload.width)
                    seen = bucket.joins.get(join)
                    if seen is not None:
                        seen[0] += 1
                    elif len(bucket.joins) < MAX_SETS:
                        bucket.joins[join] = [1, record.first[0]]
        bucket.captures += len(layers)
        if item.role == "target":
            self._captured(bucket, item, layers, said)
        if not item.complete:
            bucket.incomplete += 1
        return bucket

    def _record(self, cell: Cell, record: Record, payload: Payload, file: str) -> None:
        cell.count += 1
        copies = record.copies
        cell.copies[copies] = cell.copies.get(copies, 0) + 1
        if record.variants:
            cell.variants += len(record.variants)
            if cell.first_variant is None:
                cell.first_variant = Place(file, record.variants[0][0])
        intact = payload.intact
        if intact != "whole" and intact != "partial":
            cell.damaged += 1
            return
        mode = payload.mode
        if mode is not None:
            cell.modes[mode] = cell.modes.get(mode, 0) + 1
        shape = payload.shape
        if shape is not None:
            seen = cell.shapes.get(shape)
            if seen is not None:
                seen[0] += 1
            elif len(cell.shapes) < MAX_SHAPES:
                cell.shapes[shape] = [1, record.first[0]]
            else:
                cell.shapes_left_out += 1
        norm, head = payload.norm, payload.head
        # A sum is finite when all parts are; x - x is 0 for every finite x and nan for nan and inf.
        total = sum(head) if head is not None else 0.0
        if norm is None:
            if total - total == 0.0:
                cell.without_norm += 1
                return
        elif norm - norm == 0.0 and total - total == 0.0:
            if norm == 0.0 and payload.rows != 0:
                cell.zero += 1
                if cell.first_zero is None:
                    cell.first_zero = Place(file, record.first[0])
            if payload.norm_derived:
                cell.derived = True
            size = (payload.rows or 0, payload.width or 0)
            root = self._roots.get(size)
            if root is None:
                if len(self._roots) > MAX_SHAPES:
                    self._roots.clear()
                root = self._roots[size] = math.sqrt(size[0] * size[1])
            if root:
                cell.rms.add(norm / root)
            if cell.digest.left:
                cell.digest.add(norm, head)
            return
        # nan and inf enter no statistic; they are counted and pointed at
        cell.non_finite += 1
        if cell.first_non_finite is None:
            cell.first_non_finite = Place(file, record.first[0])

    def _captured(self, bucket: Bucket, item: ForwardPass, layers: list[int | None], said: dict[str, int]) -> None:
        key = tuple(layers)
        sets = bucket.sets if item.complete else bucket.cut_sets
        captured = sets.get(key)
        if captured is None:
            if len(sets) >= MAX_SETS:
                bucket.sets_left_out += item.complete
                return
            captured = sets[key] = Captured()
        captured.count += 1
        captured.last = item.place
        if len(captured.places) < MAX_PLACES:
            captured.places.append(item.place)
        for event, number in said.items():
            if number != len(layers) and layers and item.complete:
                differs = bucket.num_aux_differs.setdefault((event, number, len(layers)), Captured())
                differs.count += 1
                if len(differs.places) < MAX_PLACES:
                    differs.places.append(item.place)
