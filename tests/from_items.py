"""From the items of the labeller to tables: what the tables are developed against until the finder fills them.

This module is responsible for filling every column of :mod:`logscope.tables.schema` from forward passes and server
lines. It goes when the finder is there.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import Any

import polars as pl

from logscope.model import NO_PREFIX, ForwardPass, Payload, Segment, ServerEvent, num_aux
from logscope.tables.schema import PASSES, PRINTS, RECORDS, SERVER, SERVER_FIELDS, SERVER_VALUES, frame
from logscope.tables.tables import Tables, value_keys, with_records

REMEMBERED = 8


def close(one: float, other: float, slack: float) -> bool:
    """Return whether two printed values may be the same number; nan equals nan, inf equals inf."""
    if one == other or (one != one and other != other):
        return True
    gap = abs(one - other)
    # The last term allows for the binary form of a decimal half; no slack makes inf and another value one.
    return gap < math.inf and gap <= slack + 1e-12 * abs(one)


def same_norm(one: Payload, other: Payload) -> bool | None:
    """Return whether two norms agree at the coarser print; None when one is not printed."""
    if one.norm is None or other.norm is None:
        return None
    return close(one.norm, other.norm, one.norm_resolution + other.norm_resolution)


def same_head(one: Payload, other: Payload) -> bool | None:
    """Return whether the first values agree, as far as both are printed, at the coarser print; None when one is not."""
    if not one.head or not other.head:
        return None
    if one.head_resolution is None and other.head_resolution is None and one.head == other.head:
        return True  # the usual case, and the fast one
    length = min(len(one.head), len(other.head))
    slack = (0.0,) * length
    mine = one.head_resolution or slack
    theirs = other.head_resolution or slack
    return all(
        close(a, b, fine + coarse)
        for a, b, fine, coarse in zip(one.head, other.head, mine, theirs, strict=False)  # different lengths are normal
    )


def _agreement(read: Payload, join: Payload, topk: int | None) -> str | None:
    """Return what shows that a draft input is this joined state, or None."""
    if read.width != join.width:
        return None
    head = same_head(read, join)
    if head is False:
        return None
    if read.rows == join.rows:
        norm = same_norm(read, join)
        if norm and head:
            return "norm and head"
        if norm and head is None:
            return "norm"
        # With topk above 1 the accepted rows are moved to the front of each block: row 0 stays, the norm may not.
        return "head" if head and (norm is None or topk is None or topk > 1) else None
    if read.rows is not None and join.rows is not None and read.rows > join.rows:
        return None
    return "head" if head else None


def _own(read: Any, output: Any) -> Any:
    """Compare a decode input with the draft's last output: it is a row of it, and only row 0 is printed."""
    if output is None:
        return None, None
    same = read.rows == output.rows and same_norm(read, output)
    if same_head(read, output):
        return ("norm and head" if same else "head"), True
    return ("norm", True) if same and (not read.head or not output.head) else (None, None)


class _Rows:
    """Rows of a table, column by column."""

    def __init__(self, names: Any) -> None:
        self.columns: dict[str, list[Any]] = {name: [] for name in names}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def add(self, **values: Any) -> None:
        for name, column in self.columns.items():
            column.append(values.pop(name, None))
        assert not values, values


class _Distinct:
    """Distinct things and their numbers."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._known: dict[Any, int] = {}

    def number(self, key: Any, value: Any) -> int:
        found = self._known.setdefault(key, len(self.values))
        if found == len(self.values):
            self.values.append(value)
        return found


class _Maker:
    def __init__(self, files: list[str], key: int) -> None:
        self.key = key
        self.files = files
        self.groups = _Distinct()
        self.heads, self.prefixes = _Distinct(), _Distinct()
        self.said: list[Any] = []
        self.segments: dict[tuple[str, int], Segment] = {}
        self.passes, self.records, self.prints, self.server = map(_Rows, (PASSES, RECORDS, PRINTS, SERVER))
        self.times: dict[str, str | None] = {}
        self.joins: dict[Any, deque[Any]] = {}
        self.fresh: dict[Any, bool] = {}
        self.outputs: dict[Any, Any] = {}

    def file(self, name: str) -> int:
        if name not in self.files:
            self.files.append(name)
        return self.files.index(name)

    def head(self, payload: Any) -> int:
        head = replace(payload, norm=None, norm_resolution=0.0, head=None, length=0)
        return self.heads.number(repr(head), head)

    def prefix(self, prefix: Any) -> int:
        return self.prefixes.number(id(prefix), prefix)

    def add_server(self, item: ServerEvent) -> None:
        line, offset, prefix, payload = item.occurrence
        self.times[item.file] = prefix.time or self.times.get(item.file)
        values: dict[str, Any] = {}
        if payload.kind == "event" and payload.usable:
            for name in SERVER_VALUES:
                printed = [payload.fields[key] for key in SERVER_FIELDS.get(name, (name,)) if key in payload.fields]
                wanted = (bool,) if name == "graph" else (int, float)
                if printed and type(printed[0]) in wanted:
                    values[name] = printed[0]
        self.server.add(
            file=self.file(item.file), segment=item.segment, during=item.during, line=line, offset=offset,
            prefix=self.prefix(prefix), time=self.times[item.file], kind=payload.kind, event=payload.event,
            site=payload.site, intact=payload.intact, said=len(self.said), **values,
        )  # fmt: skip
        self.said.append(payload)

    def add_pass(self, item: ForwardPass) -> None:
        self.times[item.file] = item.time or self.times.get(item.file)
        key = self.key + len(self.passes)
        # A damaged copy may stand before the whole one that speaks for the record.
        begin = min(one[1] for one in (item.records[0].first, *item.records[0].others, *item.records[0].variants))
        self.passes.add(
            key=key, file=self.file(item.file), segment=item.segment, group=self.groups.number(item.group, item.group),
            number=item.number, role=item.role, phase=item.phase, evidence=item.evidence, why=item.reason,
            during=item.during, complete=item.complete, line=item.line, offset=begin, time=item.time,
            expected=item.expected_copies, printed=item.evidence == "printed", **self.lineage(item),
        )  # fmt: skip
        for record in item.records:
            self.add_record(key, item, record)

    def add_record(self, key: int, item: ForwardPass, record: Any) -> None:
        line, offset, _, payload = record.first
        embeds = payload.fields.get("embeds")
        number = len(self.records)
        self.records.add(
            **{"pass": key}, file=self.file(item.file), segment=item.segment, line=line, offset=offset,
            event=payload.event, site=payload.site, role=payload.role, layer=payload.layer, rows=payload.rows,
            width=payload.width, norm=payload.norm, slack=payload.norm_resolution, derived=payload.norm_derived,
            values=None if payload.head is None else list(payload.head), rounded=payload.head_resolution is not None,
            num_aux=num_aux(payload), mode=payload.mode,
            embeds=embeds[-1] if isinstance(embeds, list) and embeds and isinstance(embeds[-1], int) else None,
            residual_none=payload.fields.get("residual_is_none"), intact=payload.intact, usable=payload.usable,
            copies=record.copies, differ=len(record.variants), head=self.head(payload), length=payload.length,
            print=len(self.prints),
        )  # fmt: skip
        for occurrence, same in [
            (record.first, True), *((one, True) for one in record.others), *((one, False) for one in record.variants)
        ]:  # fmt: skip
            line, offset, prefix, said = occurrence
            own: dict[str, Any] = {}
            if said is not payload and repr(said) != repr(payload):
                own = {"norm": said.norm, "slack": said.norm_resolution, "head": self.head(said), "length": said.length}
                own["values"] = None if said.head is None else list(said.head)
            self.prints.add(record=number, line=line, offset=offset, prefix=self.prefix(prefix), same=same, **own)

    def lineage(self, item: ForwardPass) -> dict[str, Any]:
        """Return what a draft pass should have read, and whether it did, as queries/lineage.py says it."""
        if item.during == "graph_capture":
            return {}
        where = (item.file, item.segment, item.group)
        joins = self.joins.setdefault(where, deque(maxlen=REMEMBERED))
        join, read = item.join, item.input
        if item.role == "target":
            self.fresh[where] = join is not None
            if join is not None:
                joins.appendleft(join)
            return {}
        segment = self.segments.get((item.file, item.segment))
        topk = segment.topk if segment is not None else None
        told: dict[str, Any] = {}
        own = self.outputs.get(where)
        if own is not None:
            told |= _state("own", own)
        if joins:
            told |= _state("due", joins[0]) | {"due_fresh": self.fresh[where]}
        wide = item.phase in ("extend", "draft_extend") or (
            item.phase == "unknown" and item.first_of("fc_output", "fc") is not None
        )
        if read is not None and item.phase == "decode":
            told["how"], told["traced"] = _own(read.payload, own.payload if own is not None else None)
        elif read is not None and wide and joins:
            said, due = read.payload, joins[0].payload
            if self.fresh[where]:
                told["how"] = _agreement(said, due, None)
                found = [_agreement(said, one.payload, topk) is not None for one in joins]
                told["traced"] = found[0]
                fewer = said.rows is not None and due.rows is not None and said.rows < due.rows
                if not found[0] and same_head(said, due) is None and (fewer or same_norm(said, due) is None):
                    told["traced"] = None
                elif any(found):
                    told["ago"] = found.index(True)
            self.fresh[where] = False
        if join is not None:
            self.outputs[where] = join
        return told


def _state(prefix: str, record: Any) -> dict[str, Any]:
    payload = record.payload
    told = {
        "norm": payload.norm, "slack": payload.norm_resolution, "rows": payload.rows, "width": payload.width,
        "line": record.line, "rounded": payload.head_resolution is not None, "key": payload.head,
    }  # fmt: skip
    return {f"{prefix}_{name}": value for name, value in told.items()}


def _keys(values: list[Any]) -> pl.Series:
    return value_keys(pl.Series([None if one is None else list(one) for one in values], dtype=pl.List(pl.Float64)))


def from_items(items: Any, *, files: list[str] | None = None, key: int = 0) -> Tables:
    """Return the tables of items, in their order; copies must have been kept. ``key`` is that of the first pass."""
    maker = _Maker(list(files or []), key)
    for item in items:
        if isinstance(item, Segment):
            maker.segments[item.file, item.number] = item
            maker.file(item.file)
        elif isinstance(item, ServerEvent):
            maker.add_server(item)
        else:
            maker.add_pass(item)
    # In file order, as the finder gives them.
    prints = maker.prints.columns
    in_file = [maker.records.columns["file"][record] for record in prints["record"]]
    order = sorted(range(len(in_file)), key=lambda row: (in_file[row], prints["offset"][row]))
    place = {row: number for number, row in enumerate(order)}
    maker.records.columns["print"] = [place[row] for row in maker.records.columns["print"]]
    for columns in (maker.records.columns, prints):
        columns["values_key"] = _keys(columns["values"])
    for name in ("due_key", "own_key"):
        maker.passes.columns[name] = _keys(maker.passes.columns[name])
    records = frame(RECORDS, maker.records.columns)
    return Tables(
        files=maker.files,
        groups=maker.groups.values,
        segments=list(maker.segments.values()),
        passes=with_records(frame(PASSES, maker.passes.columns), records),
        records=records,
        prints=frame(PRINTS, prints)[order],
        server=frame(SERVER, maker.server.columns),
        heads=maker.heads.values,
        prefixes=maker.prefixes.values or [NO_PREFIX],
        said=maker.said,
    )
