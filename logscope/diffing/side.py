"""What is kept of one run while it streams by, for a comparison with another.

This module is responsible for :class:`Side`: the passes in flat memory, and what server lines say of set-up, acceptance
and errors. It must not know the other run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logscope.diffing.states import PassStore, Tables
from logscope.model import Accounting, ForwardPass, Place, Segment, ServerEvent, Severity
from logscope.queries.config import Life, settings
from logscope.queries.folded import Accepted, Configured

if TYPE_CHECKING:
    from logscope.queries.acceptance import Acceptance, Stats
    from logscope.report import Item

# Errors and warnings of a server that are compared, the ones that end it first.
ERRORS: dict[str, Severity] = {
    "traceback": "error",
    "matmul_mismatch": "error",
    "weight_shape_mismatch": "error",
    "size_mismatch": "error",
    "watchdog_timeout": "error",
    "collective_timeout": "error",
    "child_crashed": "error",
    "health_check_failed": "error",
    "nan_logits_warning": "warning",
    "invalid_tree_warning": "warning",
}
# The most different errors, and records outside of passes, that are kept.
_MOST = 10_000
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+", re.IGNORECASE)


@dataclass(slots=True)
class Seen:
    """Something that was printed: how often, and where first."""

    place: Place
    text: str
    count: int = 0


class Side:
    """What is kept of one run while it streams by."""

    def __init__(self, tables: Tables) -> None:
        self.passes = PassStore(tables)
        self.segments: list[Segment] = []
        self.config = Configured()
        self._accept = Accepted()
        self.errors: dict[tuple[str, str], Seen] = {}
        self.strays: dict[tuple[Any, ...], Seen] = {}
        self.files: list[str] = []
        self.accounting = Accounting()
        self.warnings: list[str] = []

    def see(self, item: Item) -> None:
        """Take one item, in order."""
        self.config.see(item)
        self._accept.see(item)
        if isinstance(item, ForwardPass):
            self.passes.add(item)
        elif isinstance(item, Segment):
            self.segments.append(item)
        else:
            self._event(item)

    def _event(self, item: ServerEvent) -> None:
        """Count an error, and a debug record that belongs to no pass."""
        payload = item.payload
        if payload.event in ERRORS and not payload.fields.get("quoted"):
            text = _error_text(item)
            key = (payload.event, _NUMBERS.sub("#", text))
            if key in self.errors or len(self.errors) < _MOST:
                self.errors.setdefault(key, Seen(item.place, text)).count += 1
        elif payload.kind == "event" and payload.site is not None and payload.event != "capture_plan":
            stray = (payload.event, payload.layer, payload.shape, payload.norm)
            if stray in self.strays or len(self.strays) < _MOST:
                self.strays.setdefault(stray, Seen(item.place, payload.event)).count += 1

    @property
    def accept(self) -> Acceptance:
        """What its lines say of acceptance."""
        return self._accept.found

    def lives(self) -> list[Life]:
        """Return the server lives whose set-up is known."""
        return [life for life in self.config.part.values() if settings(life)]

    def known(self, name: str) -> list[int]:
        """Return the values of a number the segments say."""
        values = (getattr(segment, name) for segment in self.segments)
        return [value for value in values if isinstance(value, int)]

    def spec_versions(self) -> set[str]:
        """Return the versions of speculation the segments tell."""
        return {segment.spec_version for segment in self.segments if segment.spec_version is not None}

    def total(self) -> Stats | None:
        """Return the acceptance of all its processes together, None when none is printed."""
        return self.accept.total()

    def rounds(self) -> float:
        """Return the verify rounds its acceptance lines stand for."""
        return sum(series.rounds for series in self.accept.series.values())


def _error_text(item: ServerEvent) -> str:
    """Return an error in one line."""
    fields = item.payload.fields
    if item.payload.event == "traceback":
        return ": ".join(str(fields[key]) for key in ("exception", "message") if fields.get(key))
    if item.payload.event == "matmul_mismatch":
        got, want = fields.get("got_width"), fields.get("want_width")
        return f"{got} wide where {want} is wanted ({fields.get('rows')} rows)"
    return ", ".join(f"{key} {value}" for key, value in fields.items() if not isinstance(value, (dict, list)))
