"""The frames that users see, looked up in the tables: events, passes, unparsed; and SQL over them.

This module is responsible for what docs/reference/frames.md promises. It must not know whether the tables are in memory
or in a folder: it asks for one column after the other, and only for those that are wanted.
"""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import polars as pl

from logscope.errors import UsageError, did_you_mean
from logscope.model import EVENT_KEYS
from logscope.report import plain
from logscope.tables.schema import EVENTS, FORWARDS, PASSES, PAYLOADS, PREFIX, PREFIXES, UNPARSED, frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from logscope.model import Payload, Prefix
    from logscope.tables.saved import Saved
    from logscope.tables.select import Select
    from logscope.tables.tables import Tables

    Columns: TypeAlias = "Held | Saved"


class Held:
    """The columns of tables in memory. Batches share their heads: only those of this one are looked at.

    Tables are ``passes``, ``records``, ``server``; ``lines`` (LINES); ``payloads``: what heads and, behind them, server
    rows say; ``prefixes``: what prefixes say. ``files`` are the names, ``heads`` is the number of heads.
    :class:`~logscope.tables.saved.Saved` gives the same of a saved run.
    """

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
        behind = pl.int_range(pl.len(), dtype=pl.Int64) + self._tables.records.height
        rows = server.select("line", "offset", "prefix", ref=behind)
        return pl.concat([prints.with_columns(ref="record"), rows], how="diagonal")[order]


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
    """The columns of the events, looked up in what the lines are prints of: records and, behind them, server rows.

    There are far fewer of those than lines: what can be is worked out for them, and handed to their lines at the end.
    """

    def __init__(self, source: Columns, select: Select | None = None) -> None:
        self.source = source
        self.heads = source.head_rows(source.column("records", "head"))
        keys = source.column("passes", "key")
        self.passes = pl.Series(keys.search_sorted(source.column("records", "pass")))
        self._rows: pl.Series | None = None
        unparsed = source.column("server", "kind") == "unparsed"
        if unparsed.any():
            self._restrict(~self._handed_out(pl.Series([False]).new_from_index(0, len(self.heads)), unparsed))
        if select:
            self._restrict(select.of_events(self.column))

    def _restrict(self, rows: pl.Series) -> None:
        """Leave out rows of those that are left."""
        self._rows = rows.arg_true() if self._rows is None else self._rows.filter(rows)

    def line(self, name: str) -> pl.Series:
        """Return what stands with the lines."""
        column = self.source.column("lines", name)
        return column if self._rows is None else column.gather(self._rows)

    def _handed_out(self, records: pl.Series, server: pl.Series | None) -> pl.Series:
        """Return for every line what its record or server row says (None: null)."""
        if server is None:
            server = records.clear(len(self.source.column("server", "kind")))
        return pl.concat([records, server.cast(records.dtype).alias(records.name)]).gather(self.line("ref"))

    def of_both(self, name: str) -> pl.Series:
        """Return what records and server rows have."""
        return self._handed_out(self.source.column("records", name), self.source.column("server", name))

    def of_pass(self, name: str, server: str | None = None) -> pl.Series:
        """Return what a pass says to all its lines, and a server row under another name."""
        column = self.source.column("passes", name).gather(self.passes)
        return self._handed_out(column, None if server is None else self.source.column("server", server))

    def of_server(self, name: str) -> pl.Series:
        """Return what only server rows have."""
        column = self.source.column("server", name)
        return self._handed_out(column.clear(len(self.heads)), column)

    def _own(self, shared: pl.Series, own: Callable[[pl.Series], pl.Series]) -> pl.Series:
        """Put in what a print says that is not worded as its record: ``own`` of its head."""
        heads = self.line("head")
        return shared if heads.null_count() == len(heads) else own(heads).zip_with(heads.is_not_null(), shared)

    def of_payload(self, name: str, change: Callable[[pl.Series], pl.Series] = lambda column: column) -> pl.Series:
        """Return what a line says, changed first."""
        column = change(self.source.column("payloads", name))
        shared = self._handed_out(column.gather(self.heads), column[self.source.heads :])
        return self._own(shared, lambda heads: column.gather(self.source.head_rows(heads)))

    def value(self, name: str, said: str) -> pl.Series:
        """Return norm or first values, which stand with the records and not with their heads."""
        payloads = self.source.column("payloads", said)[self.source.heads :]
        return self._own(self._handed_out(self.source.column("records", name), payloads), lambda _: self.line(name))

    def column(self, name: str) -> pl.Series:
        """Return a column of the events frame, or ``seen``: the time printed last, up to a line."""
        if name in PREFIX:
            return self.of_prefix(name)
        made = _LOOKED_UP.get(name)
        return made(self) if made is not None else self.of_payload(name)

    def of_prefix(self, name: str) -> pl.Series:
        """Return what a line's prefix says."""
        column = self.source.column("prefixes", "time" if name == "time_printed" else name)
        return (as_time(column) if name == "time" else column).gather(self.line("prefix"))

    def seen(self) -> pl.Series:
        """Return the time of every line: its own, or that of the last one before it in its file."""
        printed = pl.DataFrame({"file": self.of_both("file"), "time": self.of_prefix("time_printed")})
        last = printed.select(pl.col("time").forward_fill().over("file")).to_series()
        return _first_of(last, self.of_pass("time", "time"))

    def fields(self) -> pl.Series:
        """Return fields as JSON text, with the ranks of a prefix that have no column of their own."""
        found = self.of_payload("fields", _plain_texts)
        extra = self.of_prefix("extra")
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
    "file": lambda of: pl.Series(of.source.files, dtype=pl.String).gather(of.of_both("file")),
    "segment": lambda of: of.of_both("segment"),
    "during": lambda of: of.of_pass("during", "during"),
    "phase": lambda of: of.of_pass("phase"),
    "evidence": lambda of: of.of_pass("evidence"),
    "pass": lambda of: of.of_pass("number"),
    "role": lambda of: _first_of(of.of_payload("role"), of.of_pass("role").cast(pl.String)),
    "rows": lambda of: of.of_payload("shape", lambda s: s.list.first().set(s.list.len() < 2, None)),
    "width": lambda of: of.of_payload("shape", lambda shapes: shapes.list.last()),
    "shape": lambda of: of.of_payload("shape", lambda shapes: shapes.cast(pl.List(pl.String)).list.join("x")),
    "norm": lambda of: of.value("norm", "norm"),
    "head": lambda of: of.value("values", "head"),
    "capture_hidden_mode": lambda of: of.of_payload("mode"),
    "accept_len": lambda of: of.of_server("accept_len"),
    "fields": lambda of: of.fields(),
    "seen": lambda of: of.seen(),
}


def _plain_texts(texts: pl.Series) -> pl.Series:
    """Return JSON texts with nan and inf by their names."""
    odd = texts.str.contains("NaN|Infinity")
    if not odd.any():
        return texts
    return texts.clone().scatter(odd.arg_true(), [_text(json.loads(text)) for text in texts.filter(odd)])


def _text(fields: dict[str, Any]) -> str:
    return json.dumps(plain(fields), ensure_ascii=False)


def _first_of(one: pl.Series, other: pl.Series) -> pl.Series:
    return one.zip_with(one.is_not_null(), other)


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
    names = [name for name in EVENTS if name in asked.replace("events", "") or "*" in asked] or ["line"]
    made: dict[str, tuple[pl.Schema, Callable[[], pl.DataFrame]]] = {
        "events": (EVENTS, lambda: events(source, names, select)),
        "passes": (FORWARDS, lambda: forwards(source)),
        "unparsed": (UNPARSED, lambda: unparsed(source)),
    }
    named = [name for name in made if name in asked]
    try:
        return pl.SQLContext({name: made[name][1]() for name in named}).execute(query, eager=True)
    except (pl.exceptions.PolarsError, ValueError) as error:
        relation = re.search(r"relation '(.*)' was not found", str(error))
        near = did_you_mean(relation[1], made) if relation else None
        columns = [f"columns of {name}: {', '.join(made[name][0])}" for name in named or ["events"]]
        raise UsageError(
            "this query is not understood",
            why=str(error).splitlines()[0].split("; valid columns")[0],
            note=f"tables: {', '.join(made)}",
            help="\n".join([*([near] if near else []), *columns]),
        ) from error


def spans(source: Columns, select: Select | None = None) -> list[tuple[int, int, int]]:
    """Return where the (selected) events stand: line, byte offset, bytes of the record's own text."""
    looked = _Events(source, select)
    columns = (looked.line("line"), looked.line("offset"), looked.value("length", "length"))
    return list(zip(*(column.to_list() for column in columns), strict=True))
