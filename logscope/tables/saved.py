"""A saved run: a folder with a manifest and Parquet tables, from which the whole run is opened again.

This module is responsible for that format and its version. It must not know what the tables are used for.

    manifest.json        format and logscope version, files, groups, segments, and what the caller adds
    passes, records, server .parquet
                         the tables
    lines.parquet        prints and server rows, merged into file order
    payloads.parquet     what heads say and, behind them, what each server row says
    prefixes.parquet     what prefixes say

Lines, offsets and row numbers are written as steps from one row to the next, which hardly take room. A query reads the
columns that it names and nothing else.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import polars as pl

from logscope import __version__
from logscope.errors import SavedRunError
from logscope.model import Payload, Prefix, Segment
from logscope.report import plain
from logscope.tables.frames import Held
from logscope.tables.schema import LINES, PAYLOADS, PREFIXES, TABLES
from logscope.tables.tables import Tables, value_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FORMAT = 3
MANIFEST = "manifest.json"
_SCHEMAS: dict[str, pl.Schema] = {
    **{name: TABLES[name] for name in ("passes", "records", "server")},
    "lines": pl.Schema({name: dtype for name, dtype in LINES.items() if name != "record"}),
    "payloads": PAYLOADS,
    "prefixes": PREFIXES,
}
_STEPS = {"key", "number", "line", "offset", "first", "last", "join", "pass", "print", "ref", "said"}
# Rows of one part of a table: what a reader holds at a time.
_ROWS = 1 << 17


def save(tables: Tables, path: str | Path, more: dict[str, Any]) -> None:
    """Write a run into a new or empty folder, or over a saved run; ``more`` is plain values to be kept with it.

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
    held = Held(tables)
    manifest = {
        "logscope_run": FORMAT,
        "logscope": __version__,
        "files": tables.files,
        "groups": tables.groups,
        "heads": held.heads,
        "segments": [{name: getattr(one, name) for name in Segment.__slots__} for one in tables.segments],
        "more": more,
    }
    try:
        with _writing():
            folder.mkdir(parents=True, exist_ok=True)
            # Written last: a folder without a manifest is no saved run.
            (folder / MANIFEST).unlink(missing_ok=True)
            for name, schema in _SCHEMAS.items():
                columns = [_packed(held, name, column) for column in schema if column != "values_key"]
                pl.DataFrame(columns).write_parquet(folder / f"{name}.parquet", row_group_size=_ROWS)
            (folder / MANIFEST).write_text(json.dumps(plain(manifest), ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        raise SavedRunError(f"cannot write '{folder}'", why=error.strerror or str(error)) from error


def _packed(held: Held, table: str, name: str) -> pl.Series:
    column = held.column(table, name)
    if name == "head" and table != "payloads":
        return held.head_rows(column).alias(name)
    return column - column.forward_fill().shift(1).fill_null(0) if name in _STEPS else column


def write_events(batches: Iterable[pl.DataFrame], path: Path) -> None:
    """Write the events table as a Parquet file, with one batch of it in memory at a time.

    The batches are files of their own first (Arrow's cost little), in a folder beside it: polars does not append, and a
    stream that it draws itself cannot be interrupted in order.

    Raises what ``batches`` raises, and OSError when the file cannot be written.
    """
    with TemporaryDirectory(prefix=f"{path.name}.", dir=path.parent) as folder, _writing():
        parts = []
        for number, batch in enumerate(batches):
            parts.append(Path(folder) / f"{number}.arrow")
            batch.write_ipc(parts[-1], compression="zstd")
        pl.scan_ipc(parts).sink_parquet(path, row_group_size=_ROWS)


@contextmanager
def _writing() -> Iterator[None]:
    """Raise what polars says of a full disk as an OSError with its number."""
    try:
        yield
    except (pl.exceptions.PolarsError, OSError) as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


class Saved:
    """A saved run: its columns, read when they are asked for (:class:`~logscope.tables.frames.Columns`).

    Raises
    ------
    SavedRunError
        it is not there, is damaged (also later, when a column is read), or was written by another version of logscope.

    """

    def __init__(self, path: str | Path) -> None:
        self._folder = Path(path)
        manifest = _manifest(self._folder)
        self.files: list[str] = manifest["files"]
        self.heads: int = manifest["heads"]
        self.groups = [tuple(group) for group in manifest["groups"]]
        self.segments = [Segment(**one) for one in manifest["segments"]]
        self.more: dict[str, Any] = manifest["more"]
        self._read: dict[tuple[str, str], pl.Series] = {}
        with self._sound():
            for name in _SCHEMAS:
                pl.read_parquet_schema(self._folder / f"{name}.parquet")

    def head_rows(self, heads: pl.Series) -> pl.Series:
        """Return where in ``payloads`` these heads stand: at their own number."""
        return heads

    def column(self, table: str, name: str) -> pl.Series:
        """Return a column; it is read once."""
        found = self._read.get((table, name))
        if found is None:
            if name == "values_key":
                found = value_keys(self.column(table, "values"))
            else:
                with self._sound():
                    found = pl.read_parquet(self._folder / f"{table}.parquet", columns=[name]).to_series()
                found = found.cum_sum() if name in _STEPS else found
            found = self._read[table, name] = found.cast(_SCHEMAS[table][name]).alias(name)
        return found

    def _table(self, name: str) -> pl.DataFrame:
        return pl.DataFrame([self.column(name, column) for column in _SCHEMAS[name]])

    def tables(self) -> Tables:
        """Return the whole run."""
        records = self._table("records")
        payloads = [_payload(row) for row in self._table("payloads").iter_rows(named=True)]
        return Tables(
            files=self.files,
            groups=self.groups,
            segments=self.segments,
            passes=self._table("passes"),
            records=records,
            prints=self._table("lines").filter(pl.col("ref") < records.height).rename({"ref": "record"}),
            server=self._table("server"),
            heads=payloads[: self.heads],
            prefixes=[_prefix(row) for row in self._table("prefixes").iter_rows(named=True)],
            said=list(payloads[self.heads :]),
        )

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """Tell of a table that cannot be read."""
        try:
            yield
        except (OSError, pl.exceptions.PolarsError) as error:
            raise SavedRunError(
                f"the saved run '{self._folder}' is damaged",
                why=str(error).splitlines()[0],
                help="save it again from the log",
            ) from error


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
        logs = ", ".join(map(repr, manifest.get("files", []))) or "'server.log'"
        raise SavedRunError(
            f"'{folder}' was saved by {age} logscope ({manifest.get('logscope')})",
            why=f"it has format {version}, this logscope reads format {FORMAT}",
            help=f"make it anew from the log: logscope.load({logs}).save({str(folder)!r})",
        )
    result: dict[str, Any] = manifest
    return result


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
