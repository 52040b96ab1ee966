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
from logscope.report import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from logscope.labelled import Labelled
    from logscope.model import ForwardPass, Payload, Prefix, ServerEvent
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
    """Collects labelled events and turns them into one frame of EVENTS_SCHEMA."""

    def __init__(self) -> None:
        self._line = array("q")
        self._offset = array("q")
        self._prefix = array("I")
        self._payload = array("I")
        self._label = array("I")
        self._prefixes: dict[int, int] = {}
        self._payloads: dict[Any, int] = {}
        self._labels: dict[tuple[Any, ...], int] = {}
        self._prefix_rows: list[Prefix] = []
        self._payload_rows: list[Payload] = []
        self._extra: list[dict[str, int]] = []
        self._texts: dict[int, str] = {}

    def __len__(self) -> int:
        """Return the number of events collected."""
        return len(self._line)

    def add(self, labelled: Labelled) -> None:
        """Take one event."""
        line, offset, prefix, payload = labelled.occurrence
        self._line.append(line)
        self._offset.append(offset)
        index = self._prefixes.get(id(prefix))
        if index is None:
            index = self._prefixes[id(prefix)] = len(self._prefix_rows)
            self._prefix_rows.append(prefix)
        self._prefix.append(index)
        # Ranks without a column stand among the fields, so a payload is one row for every set of them.
        key: Any = id(payload) if not prefix.extra else (id(payload), prefix.extra)
        index = self._payloads.get(key)
        if index is None:
            index = self._payloads[key] = len(self._payload_rows)
            self._payload_rows.append(payload)
            self._extra.append(dict(prefix.extra))
        self._payload.append(index)
        label = (
            labelled.file,
            labelled.segment,
            labelled.during,
            payload.role or labelled.role,
            labelled.phase,
            labelled.evidence,
            labelled.number,
        )
        self._label.append(self._labels.setdefault(label, len(self._labels)))

    def frame(self) -> pl.DataFrame:
        """Return the frame."""
        if not len(self):
            return pl.DataFrame(schema=EVENTS_SCHEMA)
        prefixes = pl.DataFrame(
            {name: [getattr(prefix, name) for prefix in self._prefix_rows] for name in PREFIX_SCHEMA},
            schema=PREFIX_SCHEMA,
        )
        labels = pl.DataFrame(list(self._labels), schema=LABEL_SCHEMA, orient="row")
        parts = [
            pl.DataFrame({"line": self._line, "offset": self._offset}, schema={"line": pl.Int64, "offset": pl.Int64}),
            prefixes[pl.Series(self._prefix, dtype=pl.UInt32)],
            self._payload_frame()[pl.Series(self._payload, dtype=pl.UInt32)],
            labels[pl.Series(self._label, dtype=pl.UInt32)],
        ]
        return pl.concat(parts, how="horizontal").select(list(EVENTS_SCHEMA))

    def _payload_frame(self) -> pl.DataFrame:
        rows = self._payload_rows
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
                "fields": [self._fields(payload, extra) for payload, extra in zip(rows, self._extra, strict=True)],
            },
            schema=PAYLOAD_SCHEMA,
        )

    def _fields(self, payload: Payload, extra: dict[str, int]) -> str:
        """Return the fields as JSON text; payloads read the quick way share one dict."""
        if extra:
            return json.dumps(plain({**payload.fields, **extra}), ensure_ascii=False)
        key = id(payload.fields)
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = json.dumps(plain(payload.fields), ensure_ascii=False)
        return text


def event_frame(events: Iterable[Labelled]) -> pl.DataFrame:
    """Return labelled events as one frame."""
    table = EventTable()
    for labelled in events:
        table.add(labelled)
    return table.frame()


def event_batches(events: Iterable[Labelled], size: int = BATCH) -> Iterator[pl.DataFrame]:
    """Return labelled events as frames of about ``size`` rows, each as soon as it is full."""
    table = EventTable()
    for labelled in events:
        table.add(labelled)
        if len(table) >= size:
            yield table.frame()
            table = EventTable()
    yield table.frame()


def write_events(events: Iterable[Labelled], path: Path) -> None:
    """Write labelled events as a Parquet file, with one batch of them in memory at a time.

    The batches are files of their own first, in a folder beside it: polars does not append, and a stream that it draws
    itself cannot be interrupted in order.

    Raises what ``events`` raises, and OSError when the file cannot be written.
    """
    with TemporaryDirectory(prefix=f"{path.name}.", dir=path.parent) as folder, _writing():
        parts = []
        for number, batch in enumerate(event_batches(events)):
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
    return event_frame(run.labelled())


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
