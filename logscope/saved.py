"""A saved run: a folder with a manifest and Parquet tables, from which the whole run is opened again.

This module is responsible for that format and its version. It must not know what the tables are used for.

The tables are in normal form, so that a gigabyte of log is a few dozen megabytes: what was said once is one row.

    manifest.json        format version, logscope version, files, accounting, warnings, segments
    payloads.parquet     one row per distinct payload
    prefixes.parquet     one row per distinct prefix
    items.parquet        one row per forward pass, server line or segment, in order
    occurrences.parquet  one row per record, in file order: which item, which place in it, line, offset, payload, prefix

A run is opened without making an object per record: the events table is these tables, looked up in each other, and the
passes are made when they are asked for.
"""

from __future__ import annotations

import json
from array import array
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from logscope import __version__, frames
from logscope.errors import SavedRunError
from logscope.model import Accounting, ForwardPass, Payload, Prefix, Record, Segment, ServerEvent
from logscope.report import plain
from logscope.run import Reading, Run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logscope.model import Occurrence
    from logscope.report import Item

FORMAT = 2
MANIFEST = "manifest.json"
_SEGMENT, _PASS, _SERVER = 0, 1, 2
_FIRST, _COPY, _VARIANT = 0, 1, 2

_PREFIX_SCHEMA: dict[str, Any] = {**frames.PREFIX_SCHEMA, "extra": pl.String, "peeled": pl.Boolean}
_PAYLOAD_SCHEMA: dict[str, Any] = {
    "kind": pl.String,
    "event": pl.String,
    "site": pl.String,
    "role": pl.String,
    "layer": pl.Int64,
    "shape": pl.List(pl.Int64),
    "norm": pl.Float64,
    "norm_resolution": pl.Float64,
    "norm_derived": pl.Boolean,
    "head": pl.List(pl.Float64),
    "head_resolution": pl.List(pl.Float64),
    "mode": pl.String,
    "fields": pl.String,
    "intact": pl.String,
    "reason": pl.String,
    "column": pl.Int64,
    "length": pl.Int64,
}
_ITEM_SCHEMA: dict[str, Any] = {
    "type": pl.Int8,
    "file": pl.Int32,
    "segment": pl.Int32,
    "number": pl.Int64,
    "group": pl.String,
    "role": pl.String,
    "phase": pl.String,
    "evidence": pl.String,
    "reason": pl.String,
    "during": pl.String,
    "complete": pl.Boolean,
    "expected_copies": pl.Int32,
    "time": pl.String,
}
_OCCURRENCE_SCHEMA: dict[str, Any] = {
    "item": pl.UInt32,
    "record": pl.UInt32,
    "part": pl.Int8,
    "copies": pl.UInt32,
    "line": pl.Int64,
    "offset": pl.Int64,
    "prefix": pl.UInt32,
    "payload": pl.UInt32,
}
_TABLES = ("prefixes", "payloads", "items", "occurrences")


class _Writer:
    """Collects the tables of a run."""

    def __init__(self) -> None:
        self.prefixes: dict[int, int] = {}
        self.payloads: dict[int, int] = {}
        self.prefix_rows: list[Prefix] = []
        self.payload_rows: list[Payload] = []
        self.items: list[tuple[Any, ...]] = []
        self.occurrences = {name: array("q") for name in _OCCURRENCE_SCHEMA}
        self.segments: list[dict[str, Any]] = []

    def occurrence(self, item: int, record: int, part: int, copies: int, occurrence: Occurrence) -> None:
        line, offset, prefix, payload = occurrence
        prefix_index = self.prefixes.setdefault(id(prefix), len(self.prefix_rows))
        if prefix_index == len(self.prefix_rows):
            self.prefix_rows.append(prefix)
        payload_index = self.payloads.setdefault(id(payload), len(self.payload_rows))
        if payload_index == len(self.payload_rows):
            self.payload_rows.append(payload)
        values = (item, record, part, copies, line, offset, prefix_index, payload_index)
        for column, value in zip(self.occurrences.values(), values, strict=True):
            column.append(value)

    def add(self, file: int, item: Item) -> None:
        index = len(self.items)
        if isinstance(item, Segment):
            values = {name: getattr(item, name) for name in Segment.__slots__ if name != "file"}
            self.segments.append(values)
            self.items.append((_SEGMENT, file, item.number, len(self.segments) - 1, *(None,) * 9))
        elif isinstance(item, ServerEvent):
            self.items.append((_SERVER, file, item.segment, None, *(None,) * 5, item.during, *(None,) * 3))
            self.occurrence(index, 0, _FIRST, 1, item.occurrence)
        else:
            self.items.append(
                (
                    _PASS,
                    file,
                    item.segment,
                    item.number,
                    json.dumps(plain(item.group)),
                    item.role,
                    item.phase,
                    item.evidence,
                    item.reason,
                    item.during,
                    item.complete,
                    item.expected_copies,
                    item.time,
                )
            )
            for number, record in enumerate(item.records):
                self.occurrence(index, number, _FIRST, record.copies, record.first)
                for other in record.others:
                    self.occurrence(index, number, _COPY, 0, other)
                for variant in record.variants:
                    self.occurrence(index, number, _VARIANT, 0, variant)


def save_run(run: Run, path: str | Path) -> None:
    """Write a run into a new or empty folder, or over a saved run.

    Raises
    ------
    SavedRunError
        the folder holds something else, or cannot be written.

    """
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / MANIFEST).is_file())):
        raise SavedRunError(
            f"'{folder}' holds something that is not a saved run", help="name a new or empty folder, such as good.run"
        )
    writer = _Writer()
    files: list[str] = []
    for file, items in run.by_file():
        files.append(file)
        for item in items:
            writer.add(len(files) - 1, item)
    manifest = {
        "logscope_run": FORMAT,
        "logscope": __version__,
        "files": run.files,
        "item_files": files,
        "accounting": {name: getattr(run.accounting, name) for name in Accounting.__slots__},
        "warnings": run.warnings,
        "origins": run.reading.origins,
        "segments": plain(writer.segments),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        rows = pl.DataFrame(writer.items, schema=_ITEM_SCHEMA, orient="row")
        tables = (
            _prefix_frame(writer.prefix_rows),
            _payload_frame(writer.payload_rows),
            rows,
            _occurrence_frame(writer.occurrences, rows),
        )
        for name, table in zip(_TABLES, tables, strict=True):
            table.write_parquet(folder / f"{name}.parquet")
        # Written last: a folder without a manifest is no saved run.
        (folder / MANIFEST).write_text(json.dumps(manifest, ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        raise SavedRunError(f"cannot write '{folder}'", why=error.strerror or str(error)) from error


def _prefix_frame(rows: list[Prefix]) -> pl.DataFrame:
    table = {name: [getattr(prefix, name) for prefix in rows] for name in frames.PREFIX_SCHEMA}
    return pl.DataFrame(
        {**table, "extra": [json.dumps(p.extra) for p in rows], "peeled": [p.peeled for p in rows]},
        schema=_PREFIX_SCHEMA,
    )


def _payload_frame(rows: list[Payload]) -> pl.DataFrame:
    listed = ("shape", "head", "head_resolution")
    table: dict[str, list[Any]] = {
        name: [getattr(payload, name) for payload in rows]
        for name in _PAYLOAD_SCHEMA
        if name not in (*listed, "fields")
    }
    for name in listed:
        table[name] = [None if (value := getattr(p, name)) is None else list(value) for p in rows]
    table["fields"] = [json.dumps(payload.fields, ensure_ascii=False, default=str) for payload in rows]
    return pl.DataFrame({name: table[name] for name in _PAYLOAD_SCHEMA}, schema=_PAYLOAD_SCHEMA)


def _occurrence_frame(columns: dict[str, array[int]], items: pl.DataFrame) -> pl.DataFrame:
    """Return the occurrences in file order, the files one after the other as their items are."""
    found = pl.DataFrame(
        {name: pl.Series(column, dtype=pl.Int64).cast(_OCCURRENCE_SCHEMA[name]) for name, column in columns.items()}
    )
    return found.sort(items["file"].gather(found["item"]), "offset")


def open_run(path: str | Path) -> Run:
    """Open a saved run; it answers every question the original did.

    Raises
    ------
    SavedRunError
        it is not there, is damaged, or was written by another version of logscope.

    """
    folder = Path(path)
    manifest = _manifest(folder)
    accounting = Accounting(**manifest["accounting"])
    reading = Reading(manifest["files"], accounting, manifest["warnings"], manifest["origins"])
    tables = Tables(folder, manifest)
    with tables.sound():
        for name in _TABLES:
            pl.read_parquet_schema(folder / f"{name}.parquet")
    return Run.kept(reading, tables)


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except OSError as error:
        raise SavedRunError(f"'{folder}' is not a saved run", why=f"{MANIFEST}: {error.strerror}") from error
    except ValueError as error:
        raise SavedRunError(f"the saved run '{folder}' is damaged", why=f"{MANIFEST}: {error}") from error
    version = manifest.get("logscope_run") if isinstance(manifest, dict) else None
    if not isinstance(version, int):
        raise SavedRunError(f"'{folder}' is not a saved run", why=f"its {MANIFEST} does not say so")
    if version != FORMAT:
        age = "a newer" if version > FORMAT else "an older"
        raise SavedRunError(
            f"'{folder}' was saved by {age} logscope ({manifest.get('logscope')})",
            why=f"it has format {version}, this logscope reads format {FORMAT}",
            help="save it again from the log, or use the logscope that saved it",
        )
    result: dict[str, Any] = manifest
    return result


class Tables:
    """The tables of one folder, read when they are needed."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self._folder = folder
        self._manifest = manifest

    @contextmanager
    def sound(self) -> Iterator[None]:
        """Tell of a table that cannot be read."""
        try:
            yield
        except (OSError, pl.exceptions.PolarsError) as error:
            raise SavedRunError(
                f"the saved run '{self._folder}' is damaged",
                why=str(error).splitlines()[0],
                help="save it again from the log",
            ) from error

    def items(self) -> list[tuple[str, Item]]:
        """Make segments, passes and server lines."""
        manifest = self._manifest
        with self.sound():
            tables = {name: pl.read_parquet(self._folder / f"{name}.parquet") for name in _TABLES}
        files: list[str] = manifest["item_files"]
        prefixes = [_prefix(row) for row in tables["prefixes"].iter_rows(named=True)]
        payloads = [_payload(row) for row in tables["payloads"].iter_rows(named=True)]
        out: list[tuple[str, Item]] = []
        built: list[Item] = []
        for row in tables["items"].iter_rows(named=True):
            file = files[row["file"]]
            item: Item
            if row["type"] == _SEGMENT:
                item = Segment(file=file, **manifest["segments"][row["number"]])
            elif row["type"] == _SERVER:
                item = ServerEvent((0, 0, prefixes[0], payloads[0]), row["segment"], row["during"], file)
            else:
                names = ("number", "segment", "role", "phase", "evidence", "reason", "during", "complete")
                values = {name: row[name] for name in (*names, "expected_copies", "time")}
                item = ForwardPass(group=tuple(json.loads(row["group"])), file=file, **values)
            built.append(item)
            out.append((file, item))
        # Stable: copies and variants of a record stay in file order.
        in_records = tables["occurrences"].sort("item", "record", "part", maintain_order=True)
        for index, _, part, copies, line, offset, prefix, payload in in_records.iter_rows():
            occurrence: Occurrence = (line, offset, prefixes[prefix], payloads[payload])
            item = built[index]
            if isinstance(item, ServerEvent):
                item.occurrence = occurrence
            elif isinstance(item, ForwardPass):
                if part == _FIRST:
                    item.records.append(Record(occurrence, copies))
                elif part == _COPY:
                    item.records[-1].others.append(occurrence)
                else:
                    item.records[-1].variants.append(occurrence)
        return out

    def events(self) -> pl.DataFrame | None:
        """Return the events table; None as :meth:`lazy_events` says."""
        with self.sound():
            found = self.lazy_events()
            return found.collect() if found is not None else None

    def lazy_events(self) -> pl.LazyFrame | None:
        """Return the events table, of which only the columns that are asked for are looked up.

        None where ranks without a column of their own were printed: they stand among the fields of every single event.
        """
        folder, files = self._folder, self._manifest["item_files"]
        prefixes = pl.read_parquet(folder / "prefixes.parquet")
        if (prefixes["extra"] != "[]").any():
            return None
        labels = ("segment", "during", "phase", "evidence")
        items = pl.read_parquet(folder / "items.parquet", columns=["type", "file", "number", "role", *labels]).select(
            *("role", *labels),
            **{"pass": pl.when(pl.col("type") == _PASS).then("number")},
            file=pl.col("file").replace_strict(range(len(files)), files, return_dtype=pl.String),
        )
        shape = pl.col("shape")
        payloads = pl.scan_parquet(folder / "payloads.parquet", row_index_name="payload").select(
            *("payload", "kind", "site", "event", "layer", "norm", "head", "intact"),
            said_role="role",
            rows=pl.when(shape.list.len() > 1).then(shape.list.first()),
            width=shape.list.last(),
            shape=shape.cast(pl.List(pl.String)).list.join("x"),
            capture_hidden_mode="mode",
            fields=pl.col("fields").map_batches(_plain_fields, return_dtype=pl.String),
        )

        def looked_up(table: pl.DataFrame, name: str, by: str) -> pl.Expr:
            # Not a join, which is made whether or not one of its columns is asked for.
            return pl.lit(table[name].rename("")).gather(pl.col(by))

        columns = {name: pl.col(name) for name in ("line", "offset", *frames.PAYLOAD_SCHEMA)}
        columns |= {name: looked_up(prefixes, name, "prefix") for name in frames.PREFIX_SCHEMA}
        columns |= {name: looked_up(items, name, "item") for name in frames.LABEL_SCHEMA}
        columns["role"] = pl.coalesce("said_role", columns["role"])
        told = pl.scan_parquet(folder / "occurrences.parquet").join(
            payloads.filter(pl.col("kind") == "event"), on="payload", maintain_order="left"
        )
        return told.select(columns[name].alias(name) for name in frames.EVENTS_SCHEMA)


def _prefix(row: dict[str, Any]) -> Prefix:
    extra = tuple((name, rank) for name, rank in json.loads(row.pop("extra")))
    return Prefix(extra=extra, **row)


def _payload(row: dict[str, Any]) -> Payload:
    shape = row["shape"]
    for name in ("shape", "head", "head_resolution"):
        row[name] = None if row[name] is None else tuple(row[name])
    row["fields"] = json.loads(row["fields"])
    rows = shape[0] if shape and len(shape) > 1 else None
    return Payload(rows=rows, width=shape[-1] if shape else None, **row)


def _plain_fields(fields: pl.Series) -> pl.Series:
    """Return fields as the events table has them: nan and inf by their names."""
    texts = fields.unique()
    told = [json.dumps(plain(json.loads(text)), ensure_ascii=False) for text in texts]
    return fields.replace_strict(texts, told, return_dtype=pl.String)
