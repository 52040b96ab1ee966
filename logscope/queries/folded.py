"""Items back into a batch of tables, for rules and comparisons that still see items one by one.

This module is responsible for that bridge, and goes when they stand on tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from logscope.model import ForwardPass, Segment
from logscope.queries.acceptance import Accept, Acceptance
from logscope.queries.config import Config
from logscope.queries.errors import Errors, groups
from logscope.tables import schema
from logscope.tables.tables import Tables

if TYPE_CHECKING:
    from logscope.report import Item


class Folded:
    """A question that is fed items: ``part`` is what they say."""

    def __init__(self, question: Any) -> None:
        self._question = question
        self._items: list[Item] = []
        self._part: Any = None

    def see(self, item: Item) -> None:
        """Take one item."""
        self._items.append(item)
        self._part = None

    @property
    def part(self) -> Any:
        """What all items say."""
        if self._part is None:
            self._part = self._question.combine([self._question.partial(tables_of(self._items))])
        return self._part


class Accepted(Folded):
    """The acceptance of items."""

    def __init__(self) -> None:
        super().__init__(Accept())
        self._of: Any = None
        self._found: Acceptance | None = None

    @property
    def found(self) -> Acceptance:
        """All of it, settled."""
        if self._of is not self.part or self._found is None:
            self._of, self._found = self.part, Acceptance(self._question.combine([self.part]))
        return self._found


class Failed(Folded):
    """The errors of items."""

    def __init__(self) -> None:
        super().__init__(Errors())

    def groups(self) -> list[Any]:
        """Return every group of equal errors, the earliest first."""
        return groups(self.part)

    @property
    def lives(self) -> Any:
        """What is known of every run."""
        return self.part.lives


class Configured(Folded):
    """The set-up of items."""

    def __init__(self) -> None:
        super().__init__(Config())


def tables_of(items: list[Item]) -> Tables:
    """Return the server lines and passes of items as one batch."""
    made = Tables(segments=[item for item in items if isinstance(item, Segment)])
    server: dict[str, list[Any]] = {}
    passes: dict[str, list[Any]] = {}
    records: dict[str, list[Any]] = {}

    def put(columns: dict[str, list[Any]], **values: Any) -> None:
        for name, value in values.items():
            columns.setdefault(name, []).append(value)

    def file(name: str) -> int:
        if name not in made.files:
            made.files.append(name)
        return made.files.index(name)

    for segment in made.segments:
        file(segment.file)
    for item in items:
        if isinstance(item, Segment):
            continue
        where = {"file": file(item.file), "segment": item.segment, "during": item.during, "line": item.line}
        if isinstance(item, ForwardPass):
            made.groups.append(item.group)
            join = item.join
            at = len(records.get("line", []))
            for record in item.records:
                payload = record.payload
                said = {name: getattr(payload, name) for name in ("event", "rows", "width", "usable")}
                put(records, **said, file=where["file"], segment=item.segment, line=record.line, head=len(made.heads))
                made.heads.append(payload)
            number = None if join is None else at + item.records.index(join)
            told = {"role": item.role, "phase": item.phase, "rows": item.rows, "captures": len(item.captures)}
            put(passes, **where, **told, group=len(made.groups) - 1, join=number)
            continue
        _, offset, prefix, payload = item.occurrence
        values: dict[str, Any] = dict.fromkeys(schema.SERVER_VALUES)
        if payload.event in ("decode_stats", "prefill_stats"):
            for name, dtype in schema.SERVER_VALUES.items():
                known = (payload.fields.get(key) for key in schema.SERVER_FIELDS.get(name, (name,)))
                value = next((one for one in known if one is not None), None)
                fits = isinstance(value, bool) == (dtype == pl.Boolean) and isinstance(value, (int, float))
                values[name] = value if fits and (dtype != pl.Int64 or isinstance(value, int)) else None
        said = {"kind": payload.kind, "event": payload.event, "intact": payload.intact, "time": prefix.time}
        put(server, **where, **said, **values, offset=offset, prefix=len(made.prefixes), said=len(made.said))
        made.prefixes.append(prefix)
        made.said.append(payload)
    made.server = schema.frame(schema.SERVER, server)
    made.passes = schema.frame(schema.PASSES, passes)
    made.records = schema.frame(schema.RECORDS, records)
    return made
