"""A run as polars frames: events, passes, unparsed; the same tables for SQL, Parquet and notebooks.

This module is responsible for the columns and types of these tables (docs/reference/frames.md) and for building them
without a Python object per cell: what is said once (payloads, prefixes, labels) becomes one row each, and occurrences
only point to it. It must not know how a run was read.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import polars as pl

from logscope.errors import UsageError
from logscope.labelled import EVENT_KEYS
from logscope.model import ForwardPass, ServerEvent
from logscope.report import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from logscope.labelled import Labelled
    from logscope.model import Occurrence, Payload, Prefix, Role
    from logscope.report import Item
    from logscope.run import Run

# Rows of one batch when a table is written without being held in memory.
BATCH = 1 << 15


def _schema(columns: Mapping[str, pl.DataType | type[pl.DataType]]) -> pl.Schema:
    """``pl.Schema`` of plain types and of types with a parameter side by side, which it takes and does not declare."""
    return pl.Schema(columns)


PREFIX_SCHEMA = _schema(
    {
        "time": pl.String,
        "origin": pl.String,
        "pid": pl.Int64,
        "dp_rank": pl.Int32,
        "pp_rank": pl.Int32,
        "tp_rank": pl.Int32,
        "ep_rank": pl.Int32,
    }
)
PAYLOAD_SCHEMA = _schema(
    {
        "site": pl.String,
        "event": pl.String,
        "layer": pl.Int64,
        "rows": pl.Int64,
        "width": pl.Int64,
        "shape": pl.String,
        "norm": pl.Float64,
        "head": pl.List(pl.Float64),
        "capture_hidden_mode": pl.String,
        "intact": pl.String,
        "fields": pl.String,
    }
)
LABEL_SCHEMA = _schema(
    {
        "file": pl.String,
        "segment": pl.Int32,
        "during": pl.String,
        "role": pl.String,
        "phase": pl.String,
        "evidence": pl.String,
        "pass": pl.Int64,
    }
)
_EVENT_COLUMNS: dict[str, Any] = {
    "line": pl.Int64, "offset": pl.Int64, **PREFIX_SCHEMA, **PAYLOAD_SCHEMA, **LABEL_SCHEMA
}  # fmt: skip
EVENTS_SCHEMA = _schema({name: _EVENT_COLUMNS[name] for name in EVENT_KEYS})
PASSES_SCHEMA = _schema(
    {
        "file": pl.String,
        "line": pl.Int64,
        "segment": pl.Int32,
        "pass": pl.Int64,
        "role": pl.String,
        "phase": pl.String,
        "evidence": pl.String,
        "reason": pl.String,
        "during": pl.String,
        "complete": pl.Boolean,
        "time": pl.String,
        "rows": pl.Int64,
        "hidden_captures": pl.Int32,
        "layers": pl.List(pl.Int64),
        "joined_width": pl.Int64,
        "joined_norm": pl.Float64,
        "mode": pl.String,
        "input_width": pl.Int64,
        "input_norm": pl.Float64,
        "copies": pl.Int32,
        "expected_copies": pl.Int32,
        "variants": pl.Int32,
    }
)
UNPARSED_SCHEMA = _schema(
    {
        "file": pl.String,
        "line": pl.Int64,
        "offset": pl.Int64,
        "anchor": pl.String,
        "column": pl.Int64,
        "reason": pl.String,
    }
)


class EventTable:
    """Collects events and turns them into frames of EVENTS_SCHEMA."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._line = array("q")
        self._offset = array("q")
        self._prefix = array("I")
        self._payload = array("I")
        self._label = array("I")
        self._prefixes: dict[int, int] = {}
        self._payloads: dict[Any, int] = {}
        self._labels: dict[tuple[Any, ...], int] = {}
        self._prefix_rows: list[Prefix] = []
        self._payload_rows: list[tuple[Payload, tuple[tuple[str, int | str], ...]]] = []
        self._texts: dict[int, str] = {}

    def __len__(self) -> int:
        """Return the number of events that wait to be taken."""
        return len(self._line)

    def add(self, labelled: Labelled) -> None:
        """Take one event."""
        label = (labelled.file, labelled.segment, labelled.during)
        self._add([labelled.occurrence], label, labelled.role, (labelled.phase, labelled.evidence, labelled.number))

    def add_item(self, item: Item) -> None:
        """Take all events of an item, copies included; unparsed text is no event and is left out."""
        if isinstance(item, ForwardPass):
            label = (item.file, item.segment, item.during)
            told = (item.phase, item.evidence, item.number)
            for record in item.records:
                self._add([record.first, *record.others, *record.variants], label, item.role, told)
        elif isinstance(item, ServerEvent) and item.payload.kind == "event":
            self._add([item.occurrence], (item.file, item.segment, item.during), None, (None, None, None))

    def _add(self, found: list[Occurrence], label: tuple[Any, ...], role: Role | None, told: tuple[Any, ...]) -> None:
        """Take occurrences with the same labels but for the role, which some records have of their own."""
        last: Payload | None = None
        for line, offset, prefix, payload in found:
            self._line.append(line)
            self._offset.append(offset)
            self._prefix.append(self._prefix_row(prefix))
            if payload is not last or prefix.extra:
                last = payload
                number = self._payload_row(payload, prefix.extra)
                labelled = self._label_row((*label, payload.role or role, *told))
            self._payload.append(number)
            self._label.append(labelled)

    def _prefix_row(self, prefix: Prefix) -> int:
        index = self._prefixes.get(id(prefix))
        if index is None:
            index = self._prefixes[id(prefix)] = len(self._prefix_rows)
            self._prefix_rows.append(prefix)
        return index

    def _payload_row(self, payload: Payload, extra: tuple[tuple[str, int | str], ...]) -> int:
        """Return the row of a payload: ranks without a column stand among the fields, so it has one for every set."""
        key = (id(payload), extra)
        index = self._payloads.get(key)
        if index is None:
            index = self._payloads[key] = len(self._payload_rows)
            self._payload_rows.append((payload, extra))
        return index

    def _label_row(self, label: tuple[Any, ...]) -> int:
        return self._labels.setdefault(label, len(self._labels))

    def take(self, watermark: int | None = None) -> pl.DataFrame:
        """Return the events in the order of their offsets, those before the watermark; the others wait."""
        if not len(self):
            return pl.DataFrame(schema=EVENTS_SCHEMA)
        numbers = pl.DataFrame(
            {
                "line": self._line,
                "offset": self._offset,
                "prefix": self._prefix,
                "payload": self._payload,
                "label": self._label,
            }
        ).sort("offset", maintain_order=True)
        end = numbers.height if watermark is None else int(numbers["offset"].search_sorted(watermark))
        taken = self._looked_up(numbers[:end])
        prefixes, payloads, labels = self._prefix_rows, self._payload_rows, list(self._labels)
        self._clear()
        for line, offset, prefix, payload, label in numbers[end:].iter_rows():
            self._line.append(line)
            self._offset.append(offset)
            self._prefix.append(self._prefix_row(prefixes[prefix]))
            self._payload.append(self._payload_row(*payloads[payload]))
            self._label.append(self._label_row(labels[label]))
        return taken

    def _looked_up(self, numbers: pl.DataFrame) -> pl.DataFrame:
        prefixes = pl.DataFrame(
            {name: [getattr(prefix, name) for prefix in self._prefix_rows] for name in PREFIX_SCHEMA},
            schema=PREFIX_SCHEMA,
        )
        labels = pl.DataFrame(list(self._labels), schema=LABEL_SCHEMA, orient="row")
        parts = [
            numbers.select("line", "offset"),
            prefixes[numbers["prefix"]],
            self._payload_frame()[numbers["payload"]],
            labels[numbers["label"]],
        ]
        return pl.concat(parts, how="horizontal").select(list(EVENTS_SCHEMA))

    def _payload_frame(self) -> pl.DataFrame:
        rows = [payload for payload, _ in self._payload_rows]
        heads = [None if payload.head is None else list(payload.head) for payload in rows]
        return pl.DataFrame(
            {
                "site": [payload.site for payload in rows],
                "event": [payload.event for payload in rows],
                "layer": [payload.layer for payload in rows],
                "rows": [payload.rows for payload in rows],
                "width": [payload.width for payload in rows],
                "shape": [None if p.shape is None else "x".join(map(str, p.shape)) for p in rows],
                "norm": [payload.norm for payload in rows],
                "head": pl.Series(heads, dtype=pl.List(pl.Float64)),
                "capture_hidden_mode": [payload.mode for payload in rows],
                "intact": [payload.intact for payload in rows],
                "fields": [self._fields(payload, extra) for payload, extra in self._payload_rows],
            },
            schema=PAYLOAD_SCHEMA,
        )

    def _fields(self, payload: Payload, extra: tuple[tuple[str, int | str], ...]) -> str:
        """Return the fields as JSON text; payloads read the quick way share one dict."""
        if extra:
            return json.dumps(plain({**payload.fields, **dict(extra)}), ensure_ascii=False)
        key = id(payload.fields)
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = json.dumps(plain(payload.fields), ensure_ascii=False)
        return text


def event_batches(events: Iterable[Labelled], size: int = BATCH) -> Iterator[pl.DataFrame]:
    """Return labelled events, file by file in file order, as frames of about ``size`` rows."""
    table = EventTable()
    file: str | None = None
    for labelled in events:
        if len(table) >= size or (labelled.file != file and len(table)):
            yield table.take()
        file = labelled.file
        table.add(labelled)
    yield table.take()


def item_batches(steps: Iterable[tuple[str, Iterable[Item], int | None]], size: int = BATCH) -> Iterator[pl.DataFrame]:
    """Return the events of items, in file order, as frames of about ``size`` rows.

    A step is a file, its next items, and the offset before which nothing is missing any more; None ends the file.
    Events of a pass stand among those of passes that come later: what is behind that offset waits.
    """
    table = EventTable()
    for _, items, watermark in steps:
        for item in items:
            table.add_item(item)
        if watermark is None or len(table) >= size:
            yield table.take(watermark)


def write_events(batches: Iterable[pl.DataFrame], path: Path) -> None:
    """Write the events table as a Parquet file, with one batch of it in memory at a time.

    The batches are files of their own first, in a folder beside it: polars does not append, and a stream that it draws
    itself cannot be interrupted in order.

    Raises what ``batches`` raises, and OSError when the file cannot be written.
    """
    with TemporaryDirectory(prefix=f"{path.name}.", dir=path.parent) as folder, _writing():
        parts = []
        for number, batch in enumerate(batches):
            parts.append(Path(folder) / f"{number}.parquet")
            batch.write_parquet(parts[-1])
        pl.scan_parquet(parts).sink_parquet(path, row_group_size=4 * BATCH)


@contextmanager
def _writing() -> Iterator[None]:
    """Raise what polars says of a full disk as the OSError it is."""
    try:
        yield
    except pl.exceptions.PolarsError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def events(run: Run) -> pl.DataFrame:
    """One row per event, copies included."""
    if run.select is not None:
        return pl.concat(event_batches(run.labelled()))
    return pl.concat(
        [pl.DataFrame(schema=EVENTS_SCHEMA), *item_batches((file, items, None) for file, items in run.by_file())]
    )


def passes(run: Run) -> pl.DataFrame:
    """One row per forward pass."""
    rows = [_pass_row(one) for one in run.forwards]
    return pl.DataFrame(rows, schema=PASSES_SCHEMA, orient="row")


def _pass_row(one: ForwardPass) -> tuple[Any, ...]:
    join, read = one.join, one.input
    copies = max((record.copies for record in one.records), default=0)
    return (
        one.file,
        one.line,
        one.segment,
        one.number,
        one.role,
        one.phase,
        one.evidence,
        one.reason,
        one.during,
        one.complete,
        one.time,
        one.rows,
        len(one.captures),
        [record.payload.layer for record in one.captures if record.payload.layer is not None],
        join.payload.width if join else None,
        join.payload.norm if join else None,
        join.payload.mode if join else None,
        read.payload.width if read else None,
        read.payload.norm if read else None,
        copies,
        one.expected_copies,
        sum(len(record.variants) for record in one.records),
    )


def unparsed(run: Run) -> pl.DataFrame:
    """One row per record no event matched."""
    rows = [_unparsed_row(event) for event in run.server if event.payload.kind == "unparsed"]
    return pl.DataFrame(rows, schema=UNPARSED_SCHEMA, orient="row")


def _unparsed_row(event: ServerEvent) -> tuple[Any, ...]:
    payload = event.payload
    return event.file, event.line, event.occurrence[1], payload.event, payload.column, payload.reason


def sql(run: Run, query: str) -> pl.DataFrame:
    """Run a query over ``events``, ``passes`` and ``unparsed``.

    Raises
    ------
    UsageError
        polars does not understand it.

    """
    # A table that is not named is not made.
    tables = {name: run.lazy(name) for name in ("events", "passes", "unparsed") if name in query.lower()}
    try:
        return pl.SQLContext(tables).execute(query, eager=True)
    except (pl.exceptions.PolarsError, ValueError) as error:
        raise UsageError(
            "this query is not understood",
            why=str(error).splitlines()[0],
            note="tables: events, passes, unparsed",
            help="columns: docs/reference/frames.md",
        ) from error
