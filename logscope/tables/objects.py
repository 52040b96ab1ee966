"""The tables of a batch as objects: segments, forward passes with their records, server lines.

This module is responsible for that view, which people use who look at one pass after the other. No question does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from logscope.model import NO_PREFIX, ForwardPass, Record, ServerEvent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logscope.model import Occurrence, Payload
    from logscope.report import Item
    from logscope.tables.tables import Tables


def items(tables: Tables) -> Iterator[Item]:
    """Yield segments, forward passes and server lines, file by file, in the order of their first lines."""
    places = [
        table.select("file", "offset", row=pl.int_range(pl.len()) * sign + shift)
        for table, sign, shift in ((tables.passes, 1, 0), (tables.server, -1, -1))
    ]
    order = pl.concat(places).sort("file", "offset", maintain_order=True)["row"].to_list()
    passes, server = _forwards(tables), _server_events(tables)
    waiting = tables.segments
    at = {(one.file, one.number): number for number, one in enumerate(waiting)}
    told = 0
    for row in order:
        item = passes[row] if row >= 0 else server[-1 - row]
        begins = at.get((item.file, item.segment), -1)
        yield from waiting[told : begins + 1]
        told = max(told, begins + 1)
        yield item
    yield from waiting[told:]


def _server_events(tables: Tables) -> list[ServerEvent]:
    rows = tables.server.select("line", "offset", "prefix", "segment", "during", "file").iter_rows()
    return [
        ServerEvent((line, offset, tables.prefixes[prefix], tables.payload(row)), segment, during, tables.files[file])
        for row, (line, offset, prefix, segment, during, file) in enumerate(rows)
    ]


def _forwards(tables: Tables) -> list[ForwardPass]:
    records = _records(tables)
    names = ("number", "segment", "group", "role", "file", "phase", "evidence", "why", "during", "complete")
    made = []
    for row in tables.passes.select(*names, "expected", "time", "first", "last").iter_rows():
        number, segment, group, role, file, *told, first, last = row
        made.append(ForwardPass(number, segment, tables.groups[group], role, tables.files[file], *told))
        made[-1].records = records[first : last + 1]
    return made


def _records(tables: Tables) -> list[Record]:
    columns = tables.records.select("head", "norm", "slack", "values", "length", "copies")
    made: list[Record] = []
    said: list[Payload] = []
    for head, norm, slack, values, length, number in columns.iter_rows():
        said.append(tables.heads[head].filled(norm, slack, values, length))
        made.append(Record((0, 0, NO_PREFIX, said[-1]), number))
    firsts = set(tables.records["print"].to_list())
    prints = tables.prints.with_row_index("row")
    for row, record, line, offset, prefix, same, norm, slack, values, _, head, length in prints.iter_rows():
        payload = said[record] if head is None else tables.heads[head].filled(norm, slack, values, length)
        occurrence: Occurrence = (line, offset, tables.prefixes[prefix], payload)
        if row in firsts:
            made[record].first = occurrence
        else:
            (made[record].others if same else made[record].variants).append(occurrence)
    return made
