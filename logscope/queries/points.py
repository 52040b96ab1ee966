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
from logscope.report import Column, Context, Report, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        passes = tables.passes.filter(pl.col("during") == "serving")
        file = pl.Series("file", tables.files, dtype=pl.String).gather(passes["file"])
        passes = passes.with_columns(
            file, pl.col("phase", "role").cast(pl.String), width=tables.records["width"].gather(passes["join"])
        ).rename({"number": "pass", "key": "of"})
        records = tables.records.with_row_index("record").select(
            "record", "line", "norm", "usable", "layer", of="pass", event=pl.col("event").cast(pl.String),
            rms=pl.col("norm") / (pl.col("rows") * pl.col("width")).cast(pl.Float64).sqrt(),
        )  # fmt: skip
        kind = ["file", "segment", "phase", "pass"]
        states = records.join(passes.select(*kind, "of", "role"), on="of", maintain_order="left")
        states = states.with_columns(state=_state())
        shown, finite = states.filter(pl.col("usable") & pl.col("rms").is_not_null()), pl.col("rms").is_finite()
        point = [*kind, "line", "state", "role"]
        nothing, said = pl.lit(None, pl.Float64), pl.col("norm").cast(pl.String)
        differing = tables.prints.filter(~pl.col("same")).select("record", "line", variant="norm")
        ranks = differing.join(states.drop("line"), on="record", maintain_order="left")
        target = passes.filter(pl.col("role") == "target")
        number, once = pl.col("pass"), pl.lit(1).alias("passes")
        stretch = [*kind[:3], number.alias("first"), number.alias("last"), "line", once, "captures", "width", "states"]
        made = {
            "rms": shown.filter(finite).select(*point, "rms"),
            "captures": _stretches(target.select(stretch)),
            "rows": target.filter(pl.col("rows").is_not_null()).select(*kind, "line", "rows", "states"),
            "ranks": ranks.select(*kind, "line", "state", norm="variant", majority="norm").head(EXCEPTIONS),
            "odd": shown.filter(~finite).select(*point, rms=nothing, value=said).head(EXCEPTIONS),
        }
        return _thinned(Part(made, passes.height))

    def combine(self, parts: Sequence[Part]) -> Part:
        """Add batches up."""
        held = [part for part in parts if part.frames]
        frames = {name: pl.concat([part.frames[name] for part in held]) for name in (held[0].frames if held else ())}
        frames |= {name: frames[name].head(EXCEPTIONS) for name in ("ranks", "odd") if held}
        frames |= {"captures": _stretches(frames["captures"])} if held else {}
        merged, left_out = max((part.merged for part in held), default=1), sum(part.left_out for part in held)
        return _thinned(Part(frames, sum(part.passes for part in held), merged, left_out))

    def report(self, part: Part, context: Context) -> Report:
        """Return the points as tables."""
        report = Report("charts", f"{part.passes} passes drawn.", accounting=context.accounting)
        if part.merged > 1:
            said = f"up to {part.merged} neighbouring passes are drawn as their smallest and largest value"
            report.notes.append(said)
        if part.left_out:
            report.notes.append(f"{part.left_out} further changes of captures per pass are not drawn")
        frames = dict(part.frames)
        if frames:
            # The usual number of captures of its phase: that of most passes.
            kind, off = ["file", "segment", "phase"], pl.col("captures") - pl.col("usual")
            usual = frames["captures"].group_by(*kind, "captures").agg(pl.col("passes").sum())
            usual = usual.sort("passes", "captures").group_by(kind).agg(usual=pl.col("captures").last())
            words = {-1: "fewer than usual", 0: "as usual", 1: "more than usual"}
            frames["captures"] = (
                frames["captures"].join(usual, on=kind, maintain_order="left")
                .with_columns(compared=off.sign().replace_strict(words, return_dtype=pl.String))
            )  # fmt: skip
        for name in ("rms", "captures", "rows", "ranks", "odd"):
            rows = frames[name].to_dicts() if name in frames else []
            report.tables[name] = Table([Column(column) for column in (rows[0] if rows else ())], rows)
        return report


def _state() -> pl.Expr:
    """Name a state as the charts' legends do."""
    event, layer = pl.col("event"), pl.col("layer")
    captured = event.is_in(list(CAPTURE_EVENTS))
    return (
        pl.when(captured & (layer == 0)).then(pl.lit("embedding"))
        .when(captured).then(pl.format("layer {}", layer))
        .when((event == "aux_concat") & (pl.col("role") == "draft")).then(pl.lit("draft output"))
        .otherwise(event.replace({"aux_concat": "joined state", "forward": "draft input", "fc_output": "fc output"}))
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

    def most() -> Any:
        return max(part.frames[value].group_by(keys).len()["len"].max() or 0 for value, keys in _SERIES.items())

    while most() > 2 * SERIES:
        part.merged *= 2
        for value, keys in _SERIES.items():
            at, low, high = pl.int_range(pl.len()), pl.col(value).arg_min(), pl.col(value).arg_max()
            edge = ((at == low) | (at == high)).over([*keys, pl.col("pass") // part.merged])
            part.frames[value] = part.frames[value].filter(edge)
    stretches = part.frames["captures"]
    kept = stretches.group_by("file", "segment", "phase", maintain_order=True).head(2 * SERIES)
    part.left_out += stretches.height - kept.height
    part.frames["captures"] = kept
    return part
