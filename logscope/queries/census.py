"""``logscope events`` on a terminal: which kinds of events there are, how many of each, where the first one stands.

This module is responsible for counting events by kind. It must not know what any kind means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from logscope.model import Place
from logscope.queries.words import count
from logscope.report import Column, Report, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logscope.report import Context
    from logscope.tables.tables import Tables

_KIND = ("event", "role", "layer")


class Census:
    """The question; its part is one row a kind: events of one name, model and layer."""

    def partial(self, tables: Tables) -> pl.DataFrame:
        """Return what a batch contributes."""
        return _summed(tables.events([*_KIND, "file", "line"]).with_columns(events=pl.lit(1)))

    def combine(self, parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """Add batches up."""
        return _summed(pl.concat(parts)) if parts else pl.DataFrame()

    def report(self, part: pl.DataFrame, context: Context) -> Report:
        """Return the answer, the most frequent kinds first."""
        rows = part.sort("events", descending=True, maintain_order=True).to_dicts()
        columns = [
            Column("event", always=True), Column("role"), Column("layer", align="right"),
            Column("events", align="right", always=True), Column("first"),
        ]  # fmt: skip
        for row in rows:
            row["first"] = context.at(Place(row.pop("file"), row.pop("line")))
        headline = f"{count(sum(row['events'] for row in rows), 'event')} of {count(len(rows), 'kind')}"
        table = Table(columns, rows)
        out = Report("events", headline, tables={"kinds": table}, accounting=context.accounting)
        out.screen = [context.heading(), headline, "", table]
        out.next = f"{context.command('events')} --event {rows[0]['event']}" if rows and context.command("") else None
        return out


def _summed(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row a kind, with the place of its first."""
    first = (pl.col("file").first(), pl.col("line").first(), pl.col("events").sum())
    return rows.group_by(_KIND, maintain_order=True).agg(*first)
