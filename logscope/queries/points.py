"""What the charts of a page and a notebook show, reduced to what an eye can tell apart.

This module is responsible for choosing points: rms per state over passes, hidden captures per pass, joined width and
rows, copies that disagree. It must not know how a chart is drawn. A large run gives at most a few thousand points:
neighbours are merged, the smallest and the largest of them are kept, and values that are not finite always are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from logscope.model import CAPTURE_EVENTS
from logscope.report import Column, Report, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logscope.report import Context
    from logscope.tables.tables import Tables

# Points kept of one series, and of one list of exceptional values.
SERIES = 400
EXCEPTIONS = 200
_SERIES = {"rms": ["file", "segment", "phase", "role", "state"], "rows": ["file", "segment", "phase"]}
_ALIKE = ["file", "segment", "phase", "captures", "width", "states"]


@dataclass(slots=True)
class Part:
    """What a batch contributes: frames of points, and how many passes stand behind two of them.

    ``rms`` and ``rows`` hold the smallest and the largest value of every ``merged`` pass numbers of a series.
    """

    frames: dict[str, pl.DataFrame] = field(default_factory=dict)
    passes: int = 0
    merged: int = 1
    left_out: int = 0


class Charts:
    """The points of every chart, as tables: rms, captures, rows, ranks, odd."""

    def partial(self, tables: Tables) -> Part:
        """Choose those of a batch; only passes that are served are drawn."""
        names = pl.Series("file", tables.files, dtype=pl.String)
        passes = tables.passes.filter(pl.col("during") == "serving").with_columns(
            file=names.gather(tables.passes.filter(pl.col("during") == "serving")["file"]),
            phase=pl.col("phase").cast(pl.String),
            role=pl.col("role").cast(pl.String),
        )
        common = passes.select("key", "file", "segment", "phase", "number", "role")
        records = tables.records.with_row_index("record").select(
            "record", "pass", "line", "norm", "usable", "layer", event=pl.col("event").cast(pl.String),
            rms=pl.col("norm") / (pl.col("rows") * pl.col("width")).cast(pl.Float64).sqrt(),
        )  # fmt: skip
        states = records.join(common, left_on="pass", right_on="key", maintain_order="left").with_columns(
            state=_state()
        )
        shown = states.filter(pl.col("usable") & pl.col("rms").is_not_null())
        point: list[Any] = ["file", "segment", "phase", pl.col("number").alias("pass"), "line", "state", "role"]
        finite = pl.col("rms").is_finite()
        odd = shown.filter(~finite).select(*point, rms=pl.lit(None, pl.Float64), value=pl.col("norm").cast(pl.String))
        differing = tables.prints.filter(~pl.col("same")).select("record", "line", variant="norm")
        ranks = differing.join(states.drop("line"), on="record", maintain_order="left").select(
            "file", "segment", "phase", pl.col("number").alias("pass"), "line", "state",
            norm=pl.col("variant"), majority=pl.col("norm"),
        )  # fmt: skip
        target = passes.filter(pl.col("role") == "target")
        target = target.with_columns(width=tables.records["width"].gather(target["join"]))
        captures = target.select(
            "file", "segment", "phase", first="number", last="number", line="line", passes=pl.lit(1),
            captures="captures", width="width", states="states",
        )  # fmt: skip
        rows = target.filter(pl.col("rows").is_not_null())
        made = {
            "rms": shown.filter(finite).select(*point, "rms"),
            "captures": _stretches(captures),
            "rows": rows.select("file", "segment", "phase", pl.col("number").alias("pass"), "line", "rows", "states"),
            "ranks": ranks.head(EXCEPTIONS),
            "odd": odd.head(EXCEPTIONS),
        }
        return _thinned(Part(made, passes.height))

    def combine(self, parts: Sequence[Part]) -> Part:
        """Add batches up."""
        if not parts:
            return Part()
        frames = {name: pl.concat([part.frames[name] for part in parts if part.frames]) for name in parts[0].frames}
        frames |= {name: frames[name].head(EXCEPTIONS) for name in ("ranks", "odd") if name in frames}
        frames |= {"captures": _stretches(frames["captures"])} if frames else {}
        return _thinned(
            Part(
                frames,
                sum(part.passes for part in parts),
                max(part.merged for part in parts),
                sum(part.left_out for part in parts),
            )
        )

    def report(self, part: Part, context: Context) -> Report:
        """Return the points as tables."""
        report = Report("charts", f"{part.passes} passes drawn.", accounting=context.accounting)
        if part.merged > 1:
            report.notes.append(
                f"up to {part.merged} neighbouring passes are drawn as their smallest and largest value"
            )
        frames = dict(part.frames)
        if frames:
            # The usual number of captures of its phase: that of most passes.
            kind = ["file", "segment", "phase"]
            usual = frames["captures"].group_by(*kind, "captures").agg(pl.col("passes").sum())
            usual = usual.sort("passes", "captures").group_by(kind).agg(usual=pl.col("captures").last())
            compared = pl.col("captures") - pl.col("usual")
            words = (
                pl.when(compared < 0)
                .then(pl.lit("fewer than usual"))
                .when(compared > 0)
                .then(pl.lit("more than usual"))
            )
            frames["captures"] = (
                frames["captures"]
                .join(usual, on=kind, maintain_order="left")
                .with_columns(compared=words.otherwise(pl.lit("as usual")))
            )
            if part.left_out:
                report.notes.append(f"{part.left_out} further changes of captures per pass are not drawn")
        for name in ("rms", "captures", "rows", "ranks", "odd"):
            rows = frames[name].to_dicts() if name in frames else []
            report.tables[name] = Table([Column(column) for column in (rows[0] if rows else ())], rows)
        return report


def _state() -> pl.Expr:
    """Name a state as the charts' legends do."""
    event, layer = pl.col("event"), pl.col("layer")
    join = pl.when(pl.col("role") == "draft").then(pl.lit("draft output")).otherwise(pl.lit("joined state"))
    return (
        pl.when(event.is_in(list(CAPTURE_EVENTS)) & (layer == 0)).then(pl.lit("embedding"))
        .when(event.is_in(list(CAPTURE_EVENTS))).then(pl.format("layer {}", layer))
        .when(event == "aux_concat").then(join)
        .when(event == "forward").then(pl.lit("draft input"))
        .when(event == "fc_output").then(pl.lit("fc output"))
        .otherwise(event)
    )  # fmt: skip


def _stretches(captures: pl.DataFrame) -> pl.DataFrame:
    """Join equal values of neighbouring passes of a kind: first pass, last pass, line of the first."""
    kind = ["file", "segment", "phase"]
    changes = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift()).over(kind) for name in _ALIKE[3:])
    numbered = captures.with_columns(stretch=changes.fill_null(value=True).cast(pl.Int32).cum_sum().over(kind))
    joined = numbered.group_by(*kind, "stretch", maintain_order=True).agg(
        pl.col("first", "line").first(), pl.col("last").last(), pl.col("passes").sum(), pl.col(_ALIKE[3:]).first()
    )
    return joined.select(captures.columns)


def _thinned(part: Part) -> Part:
    """Keep of every ``merged`` neighbouring passes of a series the smallest and the largest value."""
    if not part.frames:
        return part

    def most() -> int:
        sizes = [part.frames[value].group_by(keys).len()["len"].max() or 0 for value, keys in _SERIES.items()]
        return max(int(size) for size in sizes)  # type: ignore[arg-type]

    while most() > 2 * SERIES:
        part.merged *= 2
        for value, keys in _SERIES.items():
            table = part.frames[value]
            by = [*keys, pl.col("pass") // part.merged]
            low, high = pl.col(value).arg_min(), pl.col(value).arg_max()
            at = pl.int_range(pl.len())
            edge = ((at == low) | (at == high)).over(by)
            part.frames[value] = table.filter(edge)
    stretches = part.frames["captures"]
    kept = stretches.group_by("file", "segment", "phase", maintain_order=True).head(2 * SERIES)
    part.left_out += stretches.height - kept.height
    part.frames["captures"] = kept
    return part
