"""``captures``: which hidden states the target captured, in which phase, how many per pass, and what is missing.

This module is responsible for setting out hidden captures so that copies, dummy passes and other runs never inflate a
number, and for comparing what was requested with what was captured. It must not judge layers against a contract.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import polars as pl

from logscope.asking import Summed
from logscope.model import CAPTURE_EVENTS, Segment
from logscope.queries.clock import writer_label
from logscope.queries.counts import Bucket, Cell, Counts, Seens, Tallies, owned, tally, together
from logscope.queries.rows import joined_words, layers_cell, pass_row, state_row
from logscope.queries.setup import Sizes, hidden_by_graphs, hidden_sizes
from logscope.queries.tables import TELLING, add, columns, table, without_empty
from logscope.queries.words import and_list, count, layer_list, outputs_of, phase_list, span, whole_numbers
from logscope.report import Context, Line, Mark, Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logscope.tables.tables import Tables

MAX_ROWS = 40
# Passes on each side of a change of layers before it is one, and no odd pass at the end.
_LEAST_TURN = 2
_PASSES = "phase! passes!> captures=hidden_captures!> per_pass!> layers=captured_before_layer!"
_PHASES = columns(f"{TELLING} {_PASSES} joined=joined_width mode=capture_hidden_mode copies>")
_NOT_SERVING = columns(f"{TELLING} during! {_PASSES}")
_LAYERS = columns(f"{TELLING} layer! phase! captures=hidden_captures!> copies> rows> width first=first_at")
_WRITERS = columns(
    f"{TELLING} writer! captures=prints_of_captures!> layers=captured_before_layer per_layer!> "
    "differ=differ_from_the_others>"
)
_DEVIATIONS = columns(f"{TELLING} where! phase! captured! missing extra")
_REQUESTED = columns("where! requested! captured!")


class Writers(Tallies):
    """Prints of served captures by (file, segment, named writer): layers under ``print`` and ``differ``."""

    @classmethod
    def of(cls, tables: Tables) -> Writers:
        """Count the prints of a batch, every copy."""
        found = cls()
        # Texts of a prefix differ by their time: who printed is one of few.
        names = pl.Series([writer_label(one) for one in tables.prefixes], dtype=pl.String)
        prints = tables.prints.select("record", "line", "same", writer=names.gather(tables.prints["prefix"]))
        prints = prints.filter(pl.col("writer") != "")
        if prints.is_empty():
            return found
        served = tables.passes.filter((pl.col("role") == "target") & (pl.col("during") == "serving"))
        captured = pl.col("event").cast(pl.String).is_in(list(CAPTURE_EVENTS))
        records = tables.records.with_columns(record=pl.int_range(pl.len(), dtype=pl.Int64)).filter(captured)
        records = records.join(served, left_on="pass", right_on="key", how="semi")
        table = prints.join(records.select("file", "segment", "layer", "record"), on="record", maintain_order="left")
        owners, rows = owned(tables, table, found, ["file", "segment", "writer"])
        tally(owners, "print", rows, "layer")
        tally(owners, "differ", rows.filter(~pl.col("same")), "layer")
        return found


class Captures(Summed):
    """The question behind ``logscope captures``."""

    kinds = (Counts, Writers)

    def report(self, part: tuple[Counts, Writers], context: Context) -> Report:
        """Answer."""
        counts, by_writer = part
        sizes = hidden_sizes(counts)
        serving = [bucket for bucket in counts.ordered(serving=True) if bucket.key.role == "target"]
        others = [bucket for bucket in counts.ordered(serving=False) if bucket.key.role == "target"]
        apart = [bucket for bucket in others if bucket.captures]
        hidden = hidden_lines(counts)
        deviations, left_out = _deviations([*others, *serving])
        report, rows = Report("captures", "", accounting=context.accounting), [_pass_row(one, sizes) for one in serving]
        shown = without_empty(_PHASES, rows) or _PHASES
        report.tables["phases"] = table(shown, rows, title="target passes while serving")
        layers = [_layer_row(bucket, cell, sizes) for bucket in serving for cell in bucket.captured]
        report.tables["layers"] = table(_LAYERS, layers)
        said = "Dummy passes of graph capture and the warm-up request; no number above includes them."
        add(
            report,
            "not_serving",
            _NOT_SERVING,
            [_pass_row(one, sizes) for one in apart],
            "not counted as serving",
            said,
        )
        writers = [_writer_row(*each) for each in by_writer.items()]
        add(report, "writers", _WRITERS, writers if len(writers) > 1 else [], "prints by writer, every copy counted")
        title = "passes that captured something else than usual"
        add(report, "deviations", _DEVIATIONS, deviations, title, left_out)
        requested = _requested(counts, serving or apart)
        add(report, "requested", _REQUESTED, requested, "requested against captured")
        report.headline = _headline(serving, apart, sizes, counts, hidden=bool(hidden))
        if not (serving or apart) and (named := [_named(counts, row) for row in requested if row["source"]]):
            report.headline = f"no hidden capture is printed; {'; '.join(named)}."
        report.facts = {
            "hidden_captures": sum(bucket.captures for bucket in serving),
            "target_passes": sum(bucket.passes for bucket in serving),
            "layers": captured_layers(serving),
            "hidden": sizes.facts(),
            "hidden_by_graph": [segment.number for segment, _ in hidden],
            "evidence": _evidence(serving),
        }
        lines = [line for _, line in hidden] + _lines(counts, [*others, *serving], serving, deviations)
        report.notes = [line.text for line in lines]
        mark: Mark = "ok" if serving and all(bucket.usual is not None for bucket in serving) else "unknown"
        first = Line(mark, "captured", report.headline.removeprefix("hidden captures: "))
        report.screen = [context.heading(), "", *map(context.short, [first, *lines])]
        if rows:
            report.screen += ["", table(shown, rows)]
        report.next = context.command("check")
        return report


def hidden_lines(counts: Counts) -> list[tuple[Segment, Line]]:
    """Say of which runs verify prints are hidden by CUDA graphs."""
    said = [(one, hidden_by_graphs(counts, one)) for one in counts.segments.values()]
    return [(one, Line("warning", "hidden", counts.in_run(one.file, one.number, text))) for one, text in said if text]


def _writer_row(key: tuple[Any, ...], seens: Seens) -> dict[str, Any]:
    prints = seens.numbers("print")
    return dict(zip(("file", "segment", "writer"), key, strict=True)) | {
        "captures": sum(prints.values()),
        "layers": layers_cell(sorted(prints, key=lambda layer: -1 if layer is None else layer)),
        "per_layer": span(min(prints.values()), max(prints.values())),
        "differ": seens.total("differ"),
    }


def mode_notes(buckets: Iterable[Bucket]) -> list[str]:
    """Say when extend and verify of one run join with different hidden modes: both need all rows (FULL)."""
    seen: dict[tuple[Any, ...], dict[str, list[str]]] = {}
    for bucket in buckets:
        mode = bucket.of_event("aux_concat").mostly("mode")
        if mode and bucket.key.role == "target":
            seen.setdefault((*bucket.key[:2], bucket.key.site), {}).setdefault(mode, []).append(bucket.key.phase)
    return [
        f"capture_hidden_mode is {and_list([f'{mode} in {phase_list(phases)}' for mode, phases in by_mode.items()])}"
        for by_mode in seen.values()
        if len(by_mode) > 1
    ]


def _pass_row(bucket: Bucket, sizes: Sizes) -> dict[str, Any]:
    """Return what a bucket captured; copies as a span, since one that is missing is what is looked for here."""
    row = pass_row(bucket, sizes)
    copies = [each for cell in bucket.captured for each in cell.of("copies")]
    return row | {"captures": row["hidden_captures"], "copies": span(min(copies), max(copies)) if copies else ""}


def _layer_row(bucket: Bucket, cell: Cell, sizes: Sizes) -> dict[str, Any]:
    row, copies = state_row(bucket, cell, sizes), cell.of("copies")
    return row | {"layer": row["state"], "captures": row["count"], "copies": span(min(copies), max(copies))}


def _deviations(buckets: Sequence[Bucket]) -> tuple[list[dict[str, Any]], str | None]:
    """Return a row for each pass whose captures differ from the usual set of its bucket, and how many are not shown."""
    rows: list[dict[str, Any]] = []
    total = 0
    for bucket in buckets:
        usual = bucket.usual
        if usual is None or bucket.key.during == "graph_capture":
            continue
        for layers, seen in bucket.of("set").items():
            # A damaged record has lost its layer number, not its capture.
            if layers == usual or (None in layers and len(layers) == len(usual)):
                continue
            total += seen.number
            told = {
                "captured": layers_cell(layers) or "nothing",
                "missing": layers_cell(layer for layer in usual if layer not in layers),
                "extra": layers_cell(layer for layer in layers if layer not in usual),
            }
            rows += [{**bucket.key._asdict(), "where": str(bucket.place(line)), **told} for line in seen.places]
    shown = rows[:MAX_ROWS]
    return shown, f"{total - len(shown):,} more are not listed." if total > len(shown) else None


def _requested(counts: Counts, buckets: Sequence[Bucket]) -> list[dict[str, Any]]:
    """Return a row for each plan of captures: a debug print's, or with ``source`` one that an engine names at start."""
    rows = []
    for file, segment, payload, place in counts.plans:
        requested = whole_numbers(payload.fields.get("layers_to_capture", payload.fields.get("requested")))
        if requested is None:
            continue
        captured = captured_layers(bucket for bucket in buckets if bucket.key[:2] == (file, segment))
        missing = [layer for layer in requested if layer not in captured]
        extra = [layer for layer in captured if layer not in requested]
        parts = [f"without {layer_list(missing)}"] * bool(missing) + [f"and {layer_list(extra)} besides"] * bool(extra)
        said = f"{layers_cell(captured) or 'nothing'} ({', '.join(parts) or 'the same'})"
        source = payload.fields.get("source") if payload.site is None else None
        if source and not captured:
            said = "not printed"
        told = {"where": str(place), "segment": segment, "requested": layers_cell(requested), "captured": said}
        rows.append(told | {"file": file, "layers": requested, "source": source})
    return rows


def _named(counts: Counts, row: dict[str, Any]) -> str:
    """Say which layers an engine names at its start: index i is the input of block i."""
    why = "a default, as the draft's config names none" if row["source"] == "model" else f"from the {row['source']}"
    layers = layer_list(row["layers"])
    said = f"{layers} are named at start-up ({why}): the {outputs_of(row['layers'])}"
    return counts.in_run(row["file"], row["segment"], said)


def _lines(
    counts: Counts, targets: Sequence[Bucket], serving: Sequence[Bucket], deviations: Sequence[dict[str, Any]]
) -> list[Line]:
    """Return what a reader must know, each with its mark."""
    lines = [Line("ok", "copies", said) for said in copies_notes(counts, serving)]
    lines += [Line("unknown", "phase", said) for said in unknown_notes(serving)]
    for bucket in targets:
        for (event, said, seen), differs in bucket.of("differs").items():
            captured = count(seen, "hidden capture is", "hidden captures are")
            rest = f"{seen - said} captured and not joined" if said < seen else f"{said - seen} joined and not printed"
            where = f"{count(differs.number, 'pass')} (first {bucket.place(differs.first)})"
            text = f"{event} counts {count(said, 'state')} where {captured} printed, so {rest}, in {where}"
            lines.append(Line("warning", "joined", text))
    lines += [Line("warning", "mode", said) for said in mode_notes(serving)]
    turned = [said for bucket in serving if (said := _turn(bucket))]
    for first in deviations[: 0 if turned else 1]:
        words = [f"lacks {first['missing']}" * bool(first["missing"]), f"adds {first['extra']}" * bool(first["extra"])]
        turned = [f"not every pass captures the same: {first['where']} {' and '.join(filter(None, words))}"]
    lines += [Line("warning", "layers", said) for said in turned]
    if incomplete := sum(bucket.total("incomplete") for bucket in serving):
        why = "a cut edge, damage, or other records): counted, not compared with the others"
        lines.append(Line("unknown", "not whole", f"{count(incomplete, 'pass')} not whole as most are ({why}"))
    return lines


def _turn(bucket: Bucket) -> str | None:
    """Say at which pass a bucket goes over from one set of layers to another for good; None when it does not."""
    sets = sorted(bucket.sets.items(), key=lambda pair: pair[1].first)
    if len(sets) != 2 or any(seen.number < _LEAST_TURN for _, seen in sets):
        return None
    (old, before), (new, after) = sets
    if before.last >= after.first:
        return None
    where = bucket.key.source
    return (
        f"the captured layers change in {bucket.key.phase}{f' of {where}' if where else ''}:"
        f" {layers_cell(old) or 'none'} until {bucket.place(before.last)},"
        f" {layers_cell(new) or 'none'} from {bucket.place(after.first)} on"
    )


def unknown_notes(buckets: Iterable[Bucket]) -> list[str]:
    """Say why the phase of some passes is not known, in the words of who labelled them."""
    reasons = Counter(together(buckets).numbers("reason")).most_common(3)
    return [f"the phase of {count(number, 'pass')} is unknown: {reason}" for reason, number in reasons]


def copies_notes(counts: Counts, buckets: Iterable[Bucket]) -> list[str]:
    """Say that copies of several writers are counted once, and how the number of writers is known."""
    found: dict[tuple[int, int | None], set[str]] = {}
    for bucket in buckets:
        copies = bucket.copies
        segment = counts.segments.get(bucket.key[:2])
        if copies is not None and copies > 1 and segment is not None:
            writers, how = segment.writers, segment.writers_evidence or ""
            if writers is None and bucket.of("marked"):
                writers, how = copies, "their prefixes name them"
            found.setdefault((copies, writers), set()).add(how)
    notes = []
    for (copies, writers), evidence in found.items():
        # Of several runs each has its own evidence; the facts of summarize hold it.
        how = f" ({next(iter(evidence))})" if len(evidence) == 1 and "" not in evidence else ""
        if writers is None:
            notes.append(f"identical records stand {copies} times; how many writers print cannot be told{how}")
        else:
            said = f"{count(writers, 'writer prints', 'writers print')} the same records{how}"
            notes.append(f"{said}; {copies} copies are one hidden capture, so numbers are per forward pass")
    return notes


def _headline(serving: Sequence[Bucket], apart: Sequence[Bucket], sizes: Sizes, counts: Counts, *, hidden: bool) -> str:
    seen = [bucket for bucket in serving if bucket.captures]
    if seen:
        graphs = "; verify is hidden by CUDA graphs" if hidden else ""
        return f"hidden captures: {captured_words(seen, sizes, counts)}{graphs}."
    if not apart:
        return "no hidden capture is printed in this log."
    names = {"warmup": "warm-up", "graph_capture": "graph capture (dummy input)", "startup": "start-up"}
    parts = [
        f"during {name}: {captured_words(found, sizes, counts)}"
        for during, name in names.items()
        if (found := [bucket for bucket in apart if bucket.key.during == during])
    ]
    return f"no hidden capture while serving; {'; '.join(parts)}."


def captured_words(buckets: Iterable[Bucket], sizes: Sizes, counts: Counts) -> str:
    """Return what target passes captured: ``3 per target pass (layers 3, 31, 59) in extend and verify, joined ...``."""
    parts = [
        counts.in_run(*run, f"{said}{f', joined width {joined}' * bool(joined)}")
        for run, said, joined in captured_by_run(buckets, sizes)
    ]
    return "; ".join(parts)


def captured_by_run(buckets: Iterable[Bucket], sizes: Sizes) -> list[tuple[tuple[str, int], str, str]]:
    """Return the run, what its target passes captured and what width they joined; passes alike are named together."""
    groups: dict[tuple[Any, ...], list[Bucket]] = {}
    for bucket in buckets:
        joined = " or ".join(joined_words(bucket, sizes))
        groups.setdefault((*bucket.key[:2], bucket.key.site, bucket.usual, joined), []).append(bucket)
    sites = {key[2] for key in groups}
    found = []
    for (file, segment, site, usual, joined), some in groups.items():
        what = (
            f"{len(usual)} per target pass ({layer_list(usual)})" if usual is not None else "not the same in every pass"
        )
        phases = phase_list(bucket.key.phase for bucket in some)
        found.append(((file, segment), f"{f'{site}: ' * (len(sites) > 1)}{what} in {phases}", joined))
    return found


def captured_layers(buckets: Iterable[Bucket]) -> list[int]:
    """Return every captured layer, rising; 0 is the embedding."""
    return sorted({cell.layer for bucket in buckets for cell in bucket.captured if cell.layer is not None})


def _evidence(buckets: Iterable[Bucket]) -> dict[str, str]:
    """Return by role and phase how the phase is known, the most common evidence first."""
    known = Seens()
    for bucket in buckets:
        for evidence, seen in bucket.of("evidence").items():
            known.add(f"{bucket.key.role} {bucket.key.phase}", evidence, seen)
    return {kind: str(known.mostly(kind)) for kind in known.kinds}
