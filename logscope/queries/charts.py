"""What the charts of a page and a notebook show, reduced to what an eye can tell apart.

This module is responsible for choosing points: rms per state over passes, hidden captures per pass, joined width and
rows, copies that disagree. It must not know how a chart is drawn. A large run gives at most a few thousand points:
neighbours are merged, the smallest and the largest of them are kept, and values that are not finite always are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from logscope.model import CAPTURE_EVENTS, ForwardPass
from logscope.report import Column, Report, Table

if TYPE_CHECKING:
    from logscope.model import Payload
    from logscope.report import Context, Item

# Points kept of one series, and of one list of exceptional values.
SERIES = 400
EXCEPTIONS = 200
_STATES = {"aux_concat": "joined state", "forward": "draft input", "fc_output": "fc output"}


@dataclass(slots=True)
class Thinned:
    """A series of points of which, however long it grows, at most 2 x SERIES are kept: extremes of neighbours."""

    value: str
    points: list[dict[str, Any]] = field(default_factory=list)
    merged: int = 1
    _open: list[dict[str, Any]] = field(default_factory=list)

    def add(self, point: dict[str, Any]) -> None:
        """Take a point; the points come in order."""
        self._open.append(point)
        if len(self._open) < self.merged:
            return
        self.points.extend(_extremes(self._open, self.value))
        self._open.clear()
        if len(self.points) > 2 * SERIES:
            self.points = [
                kept
                for start in range(0, len(self.points), 4)
                for kept in _extremes(self.points[start : start + 4], self.value)
            ]
            self.merged *= 2

    def all(self) -> list[dict[str, Any]]:
        """Return the points kept."""
        return self.points + _extremes(self._open, self.value)


def _extremes(points: list[dict[str, Any]], value: str) -> list[dict[str, Any]]:
    """Return the smallest and the largest of some points, in their order."""
    if len(points) <= 2:
        return list(points)
    low = min(range(len(points)), key=lambda index: points[index][value])
    high = max(range(len(points)), key=lambda index: points[index][value])
    return [points[index] for index in sorted({low, high})]


@dataclass(slots=True)
class Runs:
    """Equal values of neighbouring passes as one stretch: first pass, last pass, line of the first."""

    stretches: list[dict[str, Any]] = field(default_factory=list)
    left_out: int = 0

    def add(self, number: int, line: int, values: dict[str, Any]) -> None:
        """Take the values of one pass."""
        last = self.stretches[-1] if self.stretches else None
        if last is not None and all(last[name] == value for name, value in values.items()):
            last["last"] = number
            last["passes"] += 1
            return
        if len(self.stretches) >= 2 * SERIES:
            # A series that changes all the time is told by its first changes; how many more there are is said.
            self.left_out += 1
            return
        self.stretches.append({"first": number, "last": number, "line": line, "passes": 1, **values})


class Charts:
    """The points of every chart, as tables: rms, captures, rows, ranks, odd."""

    kind: ClassVar[str] = "charts"

    def __init__(self) -> None:
        self.rms: dict[tuple[Any, ...], Thinned] = {}
        self.rows: dict[tuple[Any, ...], Thinned] = {}
        self.captures: dict[tuple[Any, ...], Runs] = {}
        self.counts: dict[tuple[Any, ...], dict[int, int]] = {}
        self.ranks: list[dict[str, Any]] = []
        self.odd: list[dict[str, Any]] = []
        self.passes = 0

    def see(self, item: Item) -> None:
        """Take one item; only forward passes while serving are drawn."""
        if not isinstance(item, ForwardPass) or item.during != "serving":
            return
        self.passes += 1
        common = {"file": item.file, "segment": item.segment, "phase": item.phase}
        for record in item.records:
            payload = record.payload
            self._record(item, payload, record.line, common)
            for variant in record.variants:
                if len(self.ranks) < EXCEPTIONS:
                    self.ranks.append(
                        {
                            **common,
                            "pass": item.number,
                            "line": variant[0],
                            "state": _state(payload, item),
                            "norm": variant[3].norm,
                            "majority": payload.norm,
                        }
                    )
        if item.role == "target":
            self._captures(item, common)

    def _record(self, item: ForwardPass, payload: Payload, line: int, common: dict[str, Any]) -> None:
        rms = payload.rms
        if rms is None or not payload.usable:
            return
        state = _state(payload, item)
        point = {**common, "pass": item.number, "line": line, "state": state, "role": item.role, "rms": rms}
        if not math.isfinite(rms):
            if len(self.odd) < EXCEPTIONS:
                self.odd.append({**point, "rms": None, "value": str(payload.norm)})
            return
        key = (item.file, item.segment, item.phase, item.role, state)
        series = self.rms.get(key)
        if series is None:
            series = self.rms[key] = Thinned("rms")
        series.add(point)

    def _captures(self, item: ForwardPass, common: dict[str, Any]) -> None:
        captures = item.captures
        key = (item.file, item.segment, item.phase)
        join = item.join
        width = join.payload.width if join is not None else None
        hidden = next((record.payload.width for record in captures if record.payload.width), None)
        states = width // hidden if width and hidden and width % hidden == 0 else None
        counts = self.counts.setdefault(key, {})
        counts[len(captures)] = counts.get(len(captures), 0) + 1
        self.captures.setdefault(key, Runs()).add(
            item.number,
            item.line,
            {**common, "captures": len(captures), "width": width, "states": states},
        )
        if item.rows is not None:
            series = self.rows.get(key)
            if series is None:
                series = self.rows[key] = Thinned("rows")
            series.add({**common, "pass": item.number, "line": item.line, "rows": item.rows, "states": states})

    def report(self, context: Context) -> Report:
        """Return the points as tables."""
        stretches = []
        left_out = 0
        for key, runs in self.captures.items():
            usual = max(self.counts[key].items(), key=lambda pair: (pair[1], pair[0]))[0]
            left_out += runs.left_out
            for stretch in runs.stretches:
                compared = stretch["captures"] - usual
                words = "as usual" if not compared else ("fewer than usual" if compared < 0 else "more than usual")
                stretches.append({**stretch, "compared": words, "usual": usual})
        report = Report(self.kind, f"{self.passes} passes drawn.", accounting=context.accounting)
        merged = max((series.merged for series in (*self.rms.values(), *self.rows.values())), default=1)
        if merged > 1:
            report.notes.append(f"up to {merged} neighbouring passes are drawn as their smallest and largest value")
        if left_out:
            report.notes.append(f"{left_out} further changes of captures per pass are not drawn")
        report.tables = {
            "rms": _table([point for series in self.rms.values() for point in series.all()]),
            "captures": _table(stretches),
            "rows": _table([point for series in self.rows.values() for point in series.all()]),
            "ranks": _table(self.ranks),
            "odd": _table(self.odd),
        }
        return report


def _table(rows: list[dict[str, Any]]) -> Table:
    names = list(rows[0]) if rows else []
    return Table([Column(name) for name in names], rows)


def _state(payload: Payload, item: ForwardPass) -> str:
    """Name a state as the charts' legends do."""
    if payload.event in CAPTURE_EVENTS:
        return "embedding" if payload.layer == 0 else f"layer {payload.layer}"
    if payload.event == "aux_concat" and item.role == "draft":
        return "draft output"
    return _STATES.get(payload.event, payload.event)
