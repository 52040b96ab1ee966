"""One batch of a run, or all of it, as four tables and what is said in them once.

This module is responsible for :class:`Tables`: how batches add up, how a part is cut out, what a row says in full, and
for the view of a batch as objects. It must not know how tables are filled, nor any question.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from logscope.model import CAPTURE_EVENTS, Payload, Prefix, Segment
from logscope.report import plain
from logscope.scan import chunk
from logscope.scan.chunk import VALUES
from logscope.tables import frames, objects
from logscope.tables.schema import INDICES, PASSES, TABLES, frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from logscope.report import Item
    from logscope.tables.select import Select

    Shift = int | NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Tables:
    """A batch of a run, or a whole run. Row numbers count within it; ``passes.key`` is unique in the run.

    files
        names as given; the tables hold the index.
    groups
        what the passes of one scheduler share (:class:`~logscope.model.ForwardPass`); ``passes.group`` is the index.
    segments
        server lives, shared with the reader, which may still learn about the last one.
    passes, records, prints, server
        see :mod:`logscope.tables.schema`.
    heads
        what distinct records say but for norm, its resolution, first values and length; ``head`` is the index.
    prefixes
        what distinct prefixes say.
    said
        what server rows say: the payload, or the text of one, which ``read`` reads by the grammar when it is asked for.
    early, given
        of a log that is followed. ``early``: as if it ended here; all of it comes once more when it is known. Up to the
        offset ``given`` everything came early before.

    Batches of one reading that hold the very same list of heads or prefixes share it when they add up.
    """

    files: list[str] = field(default_factory=list)
    groups: list[tuple[Any, ...]] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    passes: pl.DataFrame = field(default_factory=lambda: frame(TABLES["passes"], {}))
    records: pl.DataFrame = field(default_factory=lambda: frame(TABLES["records"], {}))
    prints: pl.DataFrame = field(default_factory=lambda: frame(TABLES["prints"], {}))
    server: pl.DataFrame = field(default_factory=lambda: frame(TABLES["server"], {}))
    heads: list[Payload] = field(default_factory=list)
    prefixes: list[Prefix] = field(default_factory=list)
    said: list[Payload | bytes] = field(default_factory=list)
    read: Callable[[bytes], Payload] | None = None
    early: bool = False
    given: int = -1

    @classmethod
    def concat(cls, parts: Iterable[Tables]) -> Tables:
        """Add batches up, in order: of one reading, or of several, whose files follow each other."""
        parts = list(parts)
        if len(parts) == 1:
            return parts[0]
        whole = cls(read=next((part.read for part in parts if part.read is not None), None))
        found: dict[str, list[pl.DataFrame]] = {name: [] for name in TABLES}
        heights: dict[str, Shift] = dict.fromkeys(TABLES, 0)
        starts = {}
        for name in ("heads", "prefixes", "said"):
            values, starts[name] = _joined([getattr(part, name) for part in parts])
            setattr(whole, name, values)
        known: set[int] = set()
        for number, part in enumerate(parts):
            shifts: dict[str, Shift] = heights | {name: start[number] for name, start in starts.items()}
            shifts |= {"files": _places(part.files, whole.files), "groups": _places(part.groups, whole.groups)}
            for name, tables in found.items():
                tables.append(_moved(name, getattr(part, name), shifts))
            heights = {name: sum(table.height for table in tables) for name, tables in found.items()}
            whole.segments += [one for one in part.segments if id(one) not in known]
            known.update(map(id, part.segments))
        for name, tables in found.items():
            if tables:
                setattr(whole, name, pl.concat(tables))
        return whole

    def keep(self, records: pl.Series, server: pl.Series) -> Tables:
        """Return the part with these records and server rows (masks), and the passes that have such records.

        What a pass of which records go says of them (rows, captures, copies, where its join stands) is said anew.
        """
        kept = replace(self, server=self.server.filter(server))
        if records.all():
            return kept
        prints = records.gather(self.prints["record"])
        shifts: dict[str, Shift] = {"records": _renumbered(records), "prints": _renumbered(prints)}
        kept.records = _moved("records", self.records.filter(records), shifts)
        kept.prints = _moved("prints", self.prints.filter(prints), shifts)
        kept.passes = self.passes.filter(self.passes["key"].is_in(kept.records["pass"].implode()))
        narrowed = kept.records.height < (kept.passes["last"] - kept.passes["first"] + 1).sum()
        if narrowed:
            kept.passes = with_records(kept.passes, kept.records)
        else:
            kept.passes = _moved("passes", kept.passes, shifts)
        return kept

    def payload(self, row: int) -> Payload:
        """Return what a server row says."""
        return self.saying(self.server.item(row, "said"))

    def saying(self, number: int) -> Payload:
        """Return what an entry of ``said`` says."""
        said = self.said[number]
        if isinstance(said, Payload):
            return said
        if self.read is None:
            raise TypeError("nothing can read the texts of these tables")
        return self.read(said)

    def fields(self, row: int) -> dict[str, Any]:
        """Return every key = value of a server row as typed JSON: nan and inf as their names."""
        found: dict[str, Any] = plain(self.payload(row).fields)
        return found

    def events(self, names: Sequence[str] | None = None, select: Select | None = None) -> pl.DataFrame:
        """Return one row per (selected) event, copies included, in file order; ``names`` are the columns wanted."""
        return frames.events(frames.Held(self), names, select)

    def event_rows(self, select: Select | None = None) -> Iterator[dict[str, Any]]:
        """Yield the fixed event records of the (selected) events, in file order, those that came early but once.

        What comes early has no phase but one that is printed, and ``reason`` among its fields.
        """
        tables = self
        if self.early:
            open_ = ~pl.col("printed")
            labels = {"phase": "unknown", "evidence": "none"}
            values = {
                name: pl.when(open_).then(pl.lit(word, PASSES[name])).otherwise(name) for name, word in labels.items()
            }
            tables = replace(self, passes=self.passes.with_columns(**values))
        for row in frames.event_rows(tables.events(select=select).filter(pl.col("offset") > self.given)):
            if self.early and row["evidence"] == "none":
                row["fields"] = row["fields"] | {"reason": "not settled"}
            yield row

    def items(self) -> Iterator[Item]:
        """Yield the same as objects (:func:`logscope.tables.objects.items`)."""
        return objects.items(self)


def with_records(passes: pl.DataFrame, records: pl.DataFrame) -> pl.DataFrame:
    """Return the passes that have records, with what these say of them: rows, captures, where its join stands.

    ``records`` are those of a batch, in the order of its passes. A pass has the rows of its first record but the join,
    which may have kept fewer; the width of one state is that of the first capture, in the draft that of the embeddings.
    """
    event, usable, row = pl.col("event"), pl.col("usable"), pl.int_range(pl.len())
    capture = event.is_in(list(CAPTURE_EVENTS))
    kinds = {"join": ["aux_concat"], "input": ["forward"], "fc": ["fc", "fc_output"], "end": ["forward_end"]}
    found = (
        records.with_columns(row=row, **{name: usable & event.is_in(events) for name, events in kinds.items()})
        .group_by("pass", maintain_order=True)
        .agg(
            pl.col("line").first(),
            pl.col("row").first().alias("first"),
            pl.col("row").last().alias("last"),
            *(pl.col("row").filter(name).first().alias(name) for name in kinds),
            pl.col("rows").filter(event != "aux_concat").drop_nulls().first(),
            capture.sum().alias("captures"),
            pl.col("layer").filter(capture).drop_nulls().alias("layers"),
            pl.col("width").filter(capture & usable & (pl.col("width") > 0)).first().alias("hidden"),
            pl.col("copies", "differ").max(),
        )
    )

    def of(name: str, column: str) -> pl.Series:
        return records[column].gather(found[name])

    read, joined, embeds = of("input", "width"), of("join", "width"), of("input", "embeds")
    draft = passes["role"].filter(passes["key"].is_in(found["pass"].implode())) == "draft"
    found = found.with_columns(
        pl.coalesce("rows", of("join", "rows")),
        hidden=pl.when(draft)
        .then(pl.coalesce(embeds, of("fc", "width"), joined))
        .otherwise(pl.coalesce("hidden", of("end", "width"))),
        wide=pl.when(draft).then(read > pl.coalesce(embeds, joined)),
    )
    whole = pl.when(joined % pl.col("hidden") == 0).then(joined // pl.col("hidden"))
    told = found.with_columns(states=whole)
    told = told.cast({name: dtype for name, dtype in PASSES.items() if name in told.columns})
    kept = passes.drop(*told.columns, strict=False)
    return kept.join(told, left_on="key", right_on="pass", maintain_order="left").select(*PASSES)


def value_keys(values: pl.Series) -> pl.Series:
    """Return the scan's number for every list of first values: equal where these are; null for none printed."""
    count = values.list.len().fill_null(0).clip(0, VALUES).to_numpy()
    table = np.full((len(values), VALUES), np.nan)
    table[np.arange(VALUES) < count[:, None]] = values.filter(count > 0).list.head(VALUES).explode().to_numpy()
    return pl.Series(chunk.value_keys(table, count)).set(pl.Series(count == 0), None)


def _joined(lists: list[list[Any]]) -> tuple[list[Any], list[int]]:
    """Return lists one after the other, and where each begins; the very same list stands there once."""
    values: list[Any] = []
    starts: list[int] = []
    known: dict[int, int] = {}
    for one in lists:
        if id(one) not in known:
            known[id(one)] = len(values)
            values.extend(one)
        starts.append(known[id(one)])
    return (lists[0] if len(known) == 1 else values), starts


def _places(values: list[Any], known: list[Any]) -> NDArray[np.int64]:
    """Return where each value stands among the known ones; new ones are added to them."""
    for value in values:
        if value not in known:
            known.append(value)
    return np.array([known.index(value) for value in values], np.int64)


def _renumbered(kept: pl.Series) -> NDArray[np.int64]:
    """Return the new row number of every row of a mask; -1 for one that goes."""
    mask = kept.to_numpy()
    return np.where(mask, np.cumsum(mask) - 1, -1)


def _moved(name: str, table: pl.DataFrame, shifts: Mapping[str, Shift]) -> pl.DataFrame:
    """Return a table with its row numbers moved: by a distance, or each to its new place; -1 becomes null."""
    moved = []
    for column, to in INDICES[name].items():
        shift = shifts.get(to, 0)
        if isinstance(shift, int):
            if shift:
                moved.append(table[column] + shift)
        else:
            places = pl.Series(shift).gather(table[column])
            moved.append(places.set(places == -1, None).cast(table.schema[column]).alias(column))
    return table.with_columns(moved)
