"""The frames that users see, looked up in the tables: events, passes, unparsed; and SQL over them.

This module is responsible for what docs/reference/frames.md promises. It must not know whether the tables are in memory
or in a folder: it asks for one column after the other, and only for those that are wanted.
"""

from __future__ import annotations

import json
import re
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import polars as pl

from logscope.errors import UsageError
from logscope.model import EVENT_KEYS
from logscope.report import plain
from logscope.tables.schema import EVENTS, FORWARDS, PASSES, PAYLOADS, PREFIX, PREFIXES, UNPARSED, frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from logscope.model import Payload, Prefix
    from logscope.tables.select import Select
    from logscope.tables.tables import Tables

class Columns(Protocol):
    """Where columns come from.

    Tables are ``passes``, ``records`` and ``server``; ``lines``: prints and server rows merged into file order, with
    the columns of prints and ``server``, the row number there; ``payloads``: what heads and, behind them, the server
    rows say; ``prefixes``: what prefixes say. ``files`` are the names, ``heads`` the number of heads.
    """

    files: list[str]
    heads: int

    def column(self, table: str, name: str) -> pl.Series:
        """Return a column."""

    def head_rows(self, heads: pl.Series) -> pl.Series:
        """Return where in ``payloads`` these heads stand."""


class Held:
    """The columns of tables in memory. Batches share their heads: only those of this one are looked at."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._kept: dict[str, pl.DataFrame] = {}
        self._used = pl.concat([tables.records["head"], tables.prints["head"].drop_nulls()]).unique().sort()
        self.files, self.heads = tables.files, len(self._used)

    def head_rows(self, heads: pl.Series) -> pl.Series:
        """Return where in ``payloads`` these heads stand."""
        return self._used.search_sorted(heads).set(heads.is_null(), None)

    def column(self, table: str, name: str) -> pl.Series:
        """Return a column; what is no table of its own is made when it is first asked for."""
        if table not in self._kept:
            made = {"lines": self._lines, "payloads": self._payloads, "prefixes": self._prefixes}.get(table)
            self._kept[table] = made() if made is not None else getattr(self._tables, table)
        return self._kept[table][name]

    def _prefixes(self) -> pl.DataFrame:
        return prefix_frame(self._tables.prefixes)

    def _payloads(self) -> pl.DataFrame:
        tables = self._tables
        return payload_frame(
            [*(tables.heads[at] for at in self._used), *map(tables.payload, range(len(tables.server)))]
        )

    def _lines(self) -> pl.DataFrame:
        prints, server = self._tables.prints, self._tables.server
        file = self._tables.records["file"].gather(prints["record"])
        # A file's number and an offset in it as one number: 2^47 bytes of log are more than there will be.
        mine, theirs = (
            file.to_numpy().astype(np.int64) << 47 | table["offset"].to_numpy()
            for file, table in ((file, prints), (server["file"], server))
        )
        order = np.insert(np.arange(len(mine)), np.searchsorted(mine, theirs), len(mine) + np.arange(len(theirs)))
        rows = server.select("line", "offset", "prefix", server=pl.int_range(pl.len(), dtype=pl.Int64))
        return pl.concat([prints, rows], how="diagonal")[order]


def prefix_frame(prefixes: Sequence[Prefix]) -> pl.DataFrame:
    """Return prefixes as columns."""
    columns: dict[str, Any] = {name: [getattr(one, name) for one in prefixes] for name in PREFIXES}
    return frame(PREFIXES, columns | {"extra": [json.dumps(one.extra) for one in prefixes]})


def payload_frame(payloads: Sequence[Payload]) -> pl.DataFrame:
    """Return payloads as columns; their fields as JSON text, in which Python writes NaN and Infinity."""
    columns: dict[str, Any] = {name: [getattr(one, name) for one in payloads] for name in PAYLOADS}
    texts = [json.dumps(one.fields, ensure_ascii=False, default=str) for one in payloads]
    return frame(PAYLOADS, columns | {"fields": texts})


def events(source: Columns, names: Sequence[str] | None = None, select: Select | None = None) -> pl.DataFrame:
    """Return these columns of the (selected) events, copies included, in file order; all of them by default."""
    looked = _Events(source, select)
    return pl.DataFrame([looked.column(name).cast(EVENTS[name]).alias(name) for name in names or EVENTS])


class _Events:
    """The columns of the events: each line looked up in what it is a print of."""

    def __init__(self, source: Columns, select: Select | None = None) -> None:
        self.source = source
        self._rows: pl.Series | None = None
        self._record, self._server = self.line("record"), self.line("server")
        unparsed = (source.column("server", "kind") == "unparsed").arg_true()
        if len(unparsed):
            self._restrict(~self._server.is_in(unparsed.implode()).fill_null(value=False))
        if select:
            self._restrict(select.of_events(self.column))

    def _restrict(self, rows: pl.Series) -> None:
        """Leave out rows of those that are left."""
        self._rows = rows.arg_true() if self._rows is None else self._rows.filter(rows)
        self._record, self._server = self.line("record"), self.line("server")
        self.__dict__.pop("said", None)

    def line(self, name: str) -> pl.Series:
        column = self.source.column("lines", name)
        return column if self._rows is None else column.gather(self._rows)

    def of_record(self, name: str) -> pl.Series:
        return self.source.column("records", name).gather(self._record)

    def of_server(self, name: str) -> pl.Series:
        return self.source.column("server", name).gather(self._server)

    def of_pass(self, name: str) -> pl.Series:
        keys = self.source.column("passes", "key")
        at = pl.Series(keys.search_sorted(self.source.column("records", "pass")))
        return self.source.column("passes", name).gather(at.gather(self._record))

    def either(self, name: str) -> pl.Series:
        return _first_of(self.of_record(name), self.of_server(name))

    @cached_property
    def said(self) -> pl.Series:
        """Where in the payloads stands what a line says."""
        head = self.source.head_rows(_first_of(self.line("head"), self.of_record("head")))
        return _first_of(head, self._server + self.source.heads)

    def of_payload(self, name: str) -> pl.Series:
        return self.source.column("payloads", name).gather(self.said)

    def value(self, name: str, said: str) -> pl.Series:
        """Return norm or first values: a print's own, else its record's; of a server row the payload's."""
        head = self.line("head")
        printed = self.of_record(name)
        if head.null_count() < len(head):
            printed = self.line(name).zip_with(head.is_not_null(), printed)
        return printed.zip_with(self._server.is_null(), self.of_payload(said))

    def column(self, name: str) -> pl.Series:
        """Return a column of the events frame, or ``seen``: the time printed last, up to a line."""
        if name in PREFIX:
            return self.of_prefix(name)
        made = _LOOKED_UP.get(name)
        return made(self) if made is not None else self.of_payload(name)

    def of_prefix(self, name: str) -> pl.Series:
        column = self.source.column("prefixes", "time" if name == "time_printed" else name)
        return (as_time(column) if name == "time" else column).gather(self.line("prefix"))

    def seen(self) -> pl.Series:
        """Return the time of every line: its own, or that of the last one before it in its file."""
        printed = pl.DataFrame({"file": self.either("file"), "time": self.of_prefix("time_printed")})
        last = printed.select(pl.col("time").forward_fill().over("file")).to_series()
        return _first_of(last, _first_of(self.of_pass("time"), self.of_server("time")))

    def fields(self) -> pl.Series:
        """Return fields as JSON text, with the ranks of a prefix that have no column of their own."""
        told = self.source.column("payloads", "fields")
        odd = told.str.contains("NaN|Infinity")
        if odd.any():
            told = told.clone().scatter(odd.arg_true(), [_text(json.loads(text)) for text in told.filter(odd)])
        found = told.gather(self.said)
        extra = self.source.column("prefixes", "extra").gather(self.line("prefix"))
        more = (extra != "[]").arg_true()
        joined = [
            _text(json.loads(text) | dict(json.loads(ranks)))
            for text, ranks in zip(found.gather(more), extra.gather(more), strict=True)
        ]
        return found.scatter(more, joined) if joined else found


# How the columns are looked up that are neither a prefix's nor, under their own name, a payload's.
_LOOKED_UP: dict[str, Callable[[_Events], pl.Series]] = {
    "line": lambda of: of.line("line"),
    "offset": lambda of: of.line("offset"),
    "file": lambda of: pl.Series(of.source.files, dtype=pl.String).gather(of.either("file")),
    "segment": lambda of: of.either("segment"),
    "during": lambda of: _first_of(of.of_pass("during"), of.of_server("during")),
    "phase": lambda of: of.of_pass("phase"),
    "evidence": lambda of: of.of_pass("evidence"),
    "pass": lambda of: of.of_pass("number"),
    "role": lambda of: _first_of(of.of_payload("role"), of.of_pass("role").cast(pl.String)),
    "rows": lambda of: _rows(of.of_payload("shape")),
    "width": lambda of: of.of_payload("shape").list.last(),
    "shape": lambda of: of.source.column("payloads", "shape").cast(pl.List(pl.String)).list.join("x").gather(of.said),
    "norm": lambda of: of.value("norm", "norm"),
    "head": lambda of: of.value("values", "head"),
    "capture_hidden_mode": lambda of: of.of_payload("mode"),
    "accept_len": lambda of: of.of_server("accept_len"),
    "fields": lambda of: of.fields(),
    "seen": lambda of: of.seen(),
}


def _text(fields: dict[str, Any]) -> str:
    return json.dumps(plain(fields), ensure_ascii=False)


def _first_of(one: pl.Series, other: pl.Series) -> pl.Series:
    if one.null_count() == len(one):  # the usual case for what only differing writers have
        return other
    return one.zip_with(one.is_not_null(), other)


def _rows(shapes: pl.Series) -> pl.Series:
    return shapes.list.first().set(shapes.list.len() < 2, None)


def as_time(printed: pl.Series) -> pl.Series:
    """Return printed times as they stand there, without their zone; null where date or year is not printed."""
    bare = printed.str.replace(r"(Z|[+-]\d\d:?\d\d)$", "")
    return bare.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", strict=False, time_unit="us")


def event_rows(found: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield rows of the events frame as fixed event records: all of EVENT_KEYS; nan and inf by their names.

    Rows that say the same share their fields: they are to be read.
    """
    columns = found.select(*EVENT_KEYS).with_columns(time=found["time_printed"])
    shapes = {None: None} | {
        text: [int(axis) for axis in text.split("x")] for text in found["shape"].unique().drop_nulls()
    }
    fields: dict[str, Any] = {}
    for row in columns.iter_rows(named=True):
        norm, head, text = row["norm"], row["head"], row["fields"]
        row["shape"] = shapes[row["shape"]]
        if norm is not None and not isfinite(norm):
            row["norm"] = plain(norm)
        if head is not None and not all(map(isfinite, head)):
            row["head"] = plain(head)
        row["fields"] = fields[text] if text in fields else fields.setdefault(text, json.loads(text))
        yield row


def forwards(source: Columns) -> pl.DataFrame:
    """Return one row per forward pass."""

    def of(name: str) -> pl.Series:
        return source.column("passes", name)

    def at(record: str, name: str) -> pl.Series:
        return source.column("records", name).gather(of(record))

    same = {name: of(name) for name in FORWARDS if name in PASSES and name not in ("file", "time", "copies")}
    records = pl.DataFrame([source.column("records", name) for name in ("pass", "copies", "differ")])
    by_pass = records.group_by("pass", maintain_order=True).agg(pl.col("copies").max(), pl.col("differ").sum())
    return frame(
        FORWARDS,
        same
        | {
            "file": pl.Series(source.files, dtype=pl.String).gather(of("file")),
            "pass": of("number"),
            "reason": of("why"),
            "time": as_time(of("time")),
            "time_printed": of("time"),
            "hidden_captures": of("captures"),
            "joined_width": at("join", "width"),
            "joined_norm": at("join", "norm"),
            "mode": at("join", "mode"),
            "input_width": at("input", "width"),
            "input_norm": at("input", "norm"),
            "copies": by_pass["copies"],
            "expected_copies": of("expected"),
            "variants": by_pass["differ"],
        },
    )


def unparsed(source: Columns) -> pl.DataFrame:
    """Return one row per record that no event matched."""
    rows = (source.column("server", "kind") == "unparsed").arg_true()
    said = rows.cast(pl.Int64) + source.heads
    columns = {name: source.column("server", name).gather(rows) for name in ("line", "offset")}
    columns |= {"anchor": source.column("server", "event").gather(rows)}
    columns |= {name: source.column("payloads", name).gather(said) for name in ("column", "reason")}
    files = pl.Series(source.files, dtype=pl.String).gather(source.column("server", "file").gather(rows))
    return frame(UNPARSED, {"file": files, **columns})


def sql(source: Columns, query: str, select: Select | None = None) -> pl.DataFrame:
    """Run a query over ``events`` (the selected ones), ``passes`` and ``unparsed``.

    Raises
    ------
    UsageError
        polars does not understand it.

    """
    asked = re.sub(r"count\s*\(\s*\*\s*\)", "", query.lower())
    # A column, or a table, that is not named is not looked up.
    names = [name for name in EVENTS if name == "line" or name in asked or "*" in asked]
    made: dict[str, tuple[pl.Schema, Callable[[], pl.DataFrame]]] = {
        "events": (EVENTS, lambda: events(source, names, select)),
        "passes": (FORWARDS, lambda: forwards(source)),
        "unparsed": (UNPARSED, lambda: unparsed(source)),
    }
    named = [name for name in made if name in asked]
    try:
        return pl.SQLContext({name: made[name][1]() for name in named}).execute(query, eager=True)
    except (pl.exceptions.PolarsError, ValueError) as error:
        raise UsageError(
            "this query is not understood",
            why=str(error).splitlines()[0].split("; valid columns")[0],
            note=f"tables: {', '.join(made)}",
            help="; ".join(f"columns of {name}: {', '.join(made[name][0])}" for name in named)
            or "columns: docs/reference/frames.md",
        ) from error


def spans(source: Columns, select: Select | None = None) -> list[tuple[int, int, int]]:
    """Return where the (selected) events stand: line, byte offset, bytes of the record's own text."""
    looked = _Events(source, select)
    columns = (looked.line("line"), looked.line("offset"), looked.value("length", "length"))
    return list(zip(*(column.to_list() for column in columns), strict=True))
