"""``captures``: which hidden states the target captured, in which phase, how many per pass, and what is missing.

This module is responsible for counting hidden captures so that copies, dummy passes and other runs never inflate the
count, and for comparing what was requested with what was captured. It must not judge layers against a contract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from logscope.model import CAPTURE_EVENTS, ForwardPass, ServerEvent, states
from logscope.queries.clock import writer_label
from logscope.queries.setup import Graphs, hidden_facts, hidden_of, hidden_sizes
from logscope.queries.tables import TELLING, table, without_empty
from logscope.queries.tally import Tally
from logscope.queries.words import (
    EMBEDDING,
    and_list,
    count,
    layer_list,
    layer_name,
    most_common,
    phase_list,
    source_name,
    span,
    whole_numbers,
)
from logscope.report import Column, Context, Item, Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logscope.model import Segment
    from logscope.queries.setup import Sizes
    from logscope.queries.tally import Bucket

MAX_ROWS = 40

_PHASES = [
    *TELLING,
    Column("phase", always=True),
    Column("passes", align="right", always=True),
    Column("captures", "hidden captures", align="right", always=True),
    Column("per_pass", "per pass", align="right", always=True),
    Column("layers", "captured before layer", always=True),
    Column("joined", "joined width"),
    Column("mode", "capture hidden mode"),
    Column("copies", align="right"),
]
_LAYERS = [
    *TELLING,
    Column("layer", always=True),
    Column("phase", always=True),
    Column("captures", "hidden captures", align="right", always=True),
    Column("copies", align="right"),
    Column("rows", align="right"),
    Column("width"),
    Column("first", "first at"),
]
_NOT_SERVING = [
    *TELLING,
    Column("during", always=True),
    Column("phase", always=True),
    Column("passes", align="right", always=True),
    Column("captures", "hidden captures", align="right", always=True),
    Column("per_pass", "per pass", align="right"),
    Column("layers", "captured before layer"),
]
_WRITERS = [
    *TELLING,
    Column("writer", always=True),
    Column("captures", "prints of captures", align="right", always=True),
    Column("layers", "captured before layer"),
    Column("per_layer", "per layer", align="right", always=True),
    Column("differ", "differ from the others", align="right"),
]
_DEVIATIONS = [
    *TELLING,
    Column("where", always=True),
    Column("phase", always=True),
    Column("captured", always=True),
    Column("missing"),
    Column("extra"),
]
_REQUESTED = [Column("where", always=True), Column("requested", always=True), Column("captured", always=True)]


# Passes on each side of a change of layers before it is one, and no odd pass at the end.
_LEAST_TURN = 2


class Captures:
    """The fold behind ``logscope captures``."""

    kind: ClassVar[str] = "captures"
    # What is printed by which writer can be told only when reading keeps the copies of a record.
    keep_copies: ClassVar[bool] = True

    def __init__(self) -> None:
        self._tally = Tally()
        self._graphs = Graphs()
        # (file, segment, writer) -> layer -> [while serving, differing copies]; only where prefixes name writers
        self._writers: dict[tuple[str, int, str], dict[int | None, list[int]]] = {}
        self._copies_kept = True
        self._labels: dict[tuple[Any, ...], str] = {}

    def see(self, item: Item) -> None:
        """Take one item."""
        self._tally.see(item)
        if isinstance(item, ForwardPass):
            if item.role == "target" and item.during == "serving":
                self._by_writer(item)
        elif isinstance(item, ServerEvent) and item.occurrence[3].event == "decode_stats":
            self._graphs.see(item)

    def _by_writer(self, item: ForwardPass) -> None:
        """Count the captures of a pass by who printed them; the copies are there when they were kept on reading."""
        for record in item.captures:
            layer = record.first[3].layer
            self._copies_kept &= record.copies <= 1 + len(record.others) + len(record.variants)
            for differs, printed in ((0, (record.first, *record.others)), (1, record.variants)):
                for occurrence in printed:
                    writer = occurrence[2].writer
                    label = self._labels.get(writer)
                    if label is None:
                        label = self._labels[writer] = writer_label(occurrence[2])
                    if label:
                        layers = self._writers.setdefault((item.file, item.segment, label), {})
                        counts = layers.setdefault(layer, [0, 0])
                        counts[0] += 1
                        counts[1] += differs

    def _writer_rows(self) -> list[dict[str, Any]]:
        rows = []
        for (file, segment, label), layers in self._writers.items():
            numbers = [printed for printed, _ in layers.values()]
            ordered = sorted(layers, key=lambda layer: -1 if layer is None else layer)
            rows.append(
                {
                    "file": file,
                    "segment": segment,
                    "writer": label,
                    "captures": sum(numbers),
                    "layers": layers_cell(ordered),
                    "per_layer": span(min(numbers), max(numbers)),
                    "differ": sum(differing for _, differing in layers.values()),
                }
            )
        return rows

    def report(self, context: Context) -> Report:
        """Answer."""
        tally = self._tally
        sizes = hidden_sizes(tally)
        targets = [bucket for bucket in tally.ordered() if bucket.key.role == "target"]
        serving = [bucket for bucket in targets if bucket.key.during == "serving"]
        apart = [bucket for bucket in targets if bucket.key.during != "serving" and bucket.captures]
        hidden_by_graphs = [
            (segment, said) for segment in tally.segments.values() if (said := self._graphs.hidden(segment, tally))
        ]
        deviations, left_out = _deviations(targets)
        report = Report("captures", "", accounting=context.accounting)
        rows = [phase_row(bucket, sizes) for bucket in serving]
        columns = without_empty(_PHASES, rows) or _PHASES
        report.tables["phases"] = table(columns, rows, title="target passes while serving")
        report.tables["layers"] = table(_LAYERS, [row for bucket in serving for row in _layer_rows(bucket, sizes)])
        if apart:
            others = [phase_row(bucket, sizes) for bucket in apart]
            report.tables["not_serving"] = table(
                _NOT_SERVING,
                others,
                title="not counted as serving",
                caption="Dummy passes of graph capture and the warm-up request; no number above includes them.",
            )
        writers = self._writer_rows()
        # Where only the first of several copies was kept, counts by writer would be those of who printed first.
        if len(writers) > 1 and self._copies_kept:
            title = "prints by writer, every copy counted"
            report.tables["writers"] = table(without_empty(_WRITERS, writers), writers, title=title)
        if deviations:
            report.tables["deviations"] = table(
                _DEVIATIONS, deviations, title="passes that captured something else than usual", caption=left_out
            )
        requested = _requested(tally, serving or apart)
        if requested:
            report.tables["requested"] = table(_REQUESTED, requested, title="requested against captured")
        report.notes = _notes(tally, targets, hidden_by_graphs, deviations)
        report.headline = _headline(serving, apart, sizes, hidden_by_graphs, tally)
        report.facts = _facts(serving, sizes, hidden_by_graphs)
        return report


def phase_row(bucket: Bucket, sizes: Sizes) -> dict[str, Any]:
    """Return what one bucket of target passes captured, as a row."""
    key = bucket.key
    usual = bucket.usual
    layers = layers_cell(usual) if usual is not None else "varies" if bucket.known_sets else ""
    return {
        "file": key.file,
        "segment": key.segment,
        "source": source_name(key.group),
        "site": key.site,
        "during": key.during,
        "role": key.role,
        "phase": key.phase,
        "passes": bucket.passes,
        "incomplete": bucket.incomplete,
        "captures": bucket.captures,
        "per_pass": per_pass(bucket),
        "layers": layers,
        "joined": "; ".join(joined_words(bucket, sizes)),
        "mode": ", ".join(modes_of(bucket)),
        "copies": copies_words(bucket),
    }


def modes_of(bucket: Bucket) -> list[str]:
    """Return the capture_hidden_mode of its joined states as printed, the most common first."""
    counts: dict[str, int] = {}
    for cell in bucket.cells.values():
        if cell.event == "aux_concat":
            for mode, number in cell.modes.items():
                counts[mode] = counts.get(mode, 0) + number
    return sorted(counts, key=lambda mode: -counts[mode])


def mode_notes(buckets: Iterable[Bucket]) -> list[str]:
    """Say when extend and verify of one run join with different hidden modes: both need all rows (FULL)."""
    seen: dict[tuple[Any, ...], dict[str, list[str]]] = {}
    for bucket in buckets:
        modes = modes_of(bucket)
        if modes and bucket.key.role == "target":
            by_mode = seen.setdefault((bucket.key.file, bucket.key.segment, bucket.key.site), {})
            by_mode.setdefault(modes[0], []).append(bucket.key.phase)
    return [
        f"capture_hidden_mode is {and_list([f'{mode} in {phase_list(phases)}' for mode, phases in by_mode.items()])}"
        for by_mode in seen.values()
        if len(by_mode) > 1
    ]


def layers_cell(layers: Iterable[int | None]) -> str:
    """Return ``embedding, 3, 31, 59``."""
    return ", ".join(EMBEDDING if layer == 0 else "?" if layer is None else str(layer) for layer in layers)


def per_pass(bucket: Bucket) -> int | str | None:
    """Return the captures of one pass: a number where all complete passes agree, else ``3 in 249, 2 in 1``."""
    numbers: dict[int, int] = {}
    for layers, captured in bucket.known_sets.items():
        numbers[len(layers)] = numbers.get(len(layers), 0) + captured.count
    if not numbers:
        return None
    if len(numbers) == 1:
        return next(iter(numbers))
    return ", ".join(f"{number} in {passes:,}" for number, passes in sorted(numbers.items(), key=lambda each: -each[1]))


def joined_words(bucket: Bucket, sizes: Sizes) -> list[str]:
    """Return the joined widths of a bucket as k x hidden, the most common first."""
    hidden = hidden_of(bucket, sizes)
    ordered = sorted(bucket.joins.items(), key=lambda each: -each[1][0])
    words = [states(width, hidden) for (_, width), _ in ordered if width is not None]
    return list(dict.fromkeys(words))


def copies_words(bucket: Bucket, events: Iterable[str] = CAPTURE_EVENTS) -> str:
    """Return ``8``, or ``7 to 8`` where some writer's print is missing."""
    wanted = frozenset(events)
    copies = [number for cell in bucket.cells.values() if cell.event in wanted for number in cell.copies]
    return span(min(copies), max(copies)) if copies else ""


def _layer_rows(bucket: Bucket, sizes: Sizes) -> list[dict[str, Any]]:
    key = bucket.key
    hidden = hidden_of(bucket, sizes)
    rows = []
    for cell in sorted(bucket.cells.values(), key=lambda cell: -1 if cell.layer is None else cell.layer):
        if cell.event not in CAPTURE_EVENTS:
            continue
        heights = [shape[0] for shape in cell.shapes if len(shape) > 1]
        widths = dict.fromkeys(states(shape[-1], hidden) for shape in cell.shapes)
        rows.append(
            {
                "file": key.file,
                "segment": key.segment,
                "source": source_name(key.group),
                "site": cell.site,
                "layer": layer_name(cell.event, cell.layer),
                "event": cell.event,
                "phase": key.phase,
                "captures": cell.count,
                "damaged": cell.damaged,
                "copies": span(min(cell.copies), max(cell.copies)),
                "rows": span(min(heights), max(heights)) if heights else "",
                "width": "; ".join(widths),
                "first": str(cell.first),
            }
        )
    return rows


def _deviations(buckets: Sequence[Bucket]) -> tuple[list[dict[str, Any]], str | None]:
    """Return a row for each pass whose captures differ from the usual set of its bucket, and how many are not shown."""
    rows: list[dict[str, Any]] = []
    total = 0
    for bucket in buckets:
        usual = bucket.usual
        if usual is None or bucket.key.during == "graph_capture":
            continue
        for layers, captured in bucket.sets.items():
            # A damaged record has lost its layer number, not its capture.
            if layers == usual or (None in layers and len(layers) == len(usual)):
                continue
            total += captured.count
            missing = [layer for layer in usual if layer not in layers]
            extra = [layer for layer in layers if layer not in usual]
            rows.extend(
                {
                    "file": bucket.key.file,
                    "segment": bucket.key.segment,
                    "source": source_name(bucket.key.group),
                    "site": bucket.key.site,
                    "where": str(place),
                    "phase": bucket.key.phase,
                    "captured": layers_cell(layers) or "nothing",
                    "missing": layers_cell(missing),
                    "extra": layers_cell(extra),
                }
                for place in captured.places
            )
    shown = rows[:MAX_ROWS]
    return shown, f"{total - len(shown):,} more are not listed." if total > len(shown) else None


def _requested(tally: Tally, buckets: Sequence[Bucket]) -> list[dict[str, Any]]:
    rows = []
    for file, segment, payload, place in tally.plans:
        requested = whole_numbers(payload.fields.get("layers_to_capture", payload.fields.get("requested")))
        if requested is None:
            continue
        captured = set(captured_layers(bucket for bucket in buckets if bucket.key[:2] == (file, segment)))
        missing = [layer for layer in requested if layer not in captured]
        extra = sorted(captured.difference(requested))
        same = "the same" if not missing and not extra else ""
        parts = [
            f"without {layer_list(missing)}" * bool(missing),
            f"and {layer_list(extra)} besides" * bool(extra),
            same,
        ]
        rows.append(
            {
                "where": str(place),
                "segment": segment,
                "requested": layers_cell(requested),
                "captured": f"{layers_cell(sorted(captured)) or 'nothing'} ({', '.join(filter(None, parts))})",
            }
        )
    return rows


def _notes(
    tally: Tally,
    targets: Sequence[Bucket],
    hidden_by_graphs: Sequence[tuple[Segment, str]],
    deviations: Sequence[dict[str, Any]],
) -> list[str]:
    notes = [in_run(tally, segment.file, segment.number, said) for segment, said in hidden_by_graphs]
    serving = [bucket for bucket in targets if bucket.key.during == "serving"]
    notes += copies_notes(tally, serving)
    notes += unknown_notes(serving)
    for bucket in targets:
        for (event, said, seen), differs in bucket.num_aux_differs.items():
            captured = count(seen, "hidden capture is", "hidden captures are")
            rest = f"{seen - said} captured and not joined" if said < seen else f"{said - seen} joined and not printed"
            notes.append(
                f"{event} counts {count(said, 'state')} where {captured} printed, so {rest}, in "
                f"{count(differs.count, 'pass')} (first {differs.places[0]})"
            )
    notes += mode_notes(serving)
    turned = list(filter(None, map(_turn, serving)))
    if turned:
        notes += turned
    elif deviations:
        first = deviations[0]
        words = [f"lacks {first['missing']}" * bool(first["missing"]), f"adds {first['extra']}" * bool(first["extra"])]
        notes.append(f"not every pass captures the same: {first['where']} {' and '.join(filter(None, words))}")
    incomplete = sum(bucket.incomplete for bucket in serving)
    if incomplete:
        notes.append(
            f"{count(incomplete, 'pass')} not whole as most are (a cut edge, damage, or other records): counted, not"
            " compared with the others"
        )
    return notes


def _turn(bucket: Bucket) -> str | None:
    """Say at which pass a bucket goes over from one set of layers to another for good; None when it does not."""
    sets = sorted(bucket.known_sets.items(), key=lambda pair: pair[1].places[0].line)
    if len(sets) != 2 or any(captured.count < _LEAST_TURN for _, captured in sets):
        return None
    (old, before), (new, after) = sets
    if before.last is None or before.last.line >= after.places[0].line:
        return None
    where = source_name(bucket.key.group)
    return (
        f"the captured layers change in {bucket.key.phase}{f' of {where}' if where else ''}:"
        f" {layers_cell(old) or 'none'} until {before.last},"
        f" {layers_cell(new) or 'none'} from {after.places[0]} on"
    )


def unknown_notes(buckets: Iterable[Bucket]) -> list[str]:
    """Say why the phase of some passes is not known, in the words of who labelled them."""
    reasons: dict[str, int] = {}
    for bucket in buckets:
        if bucket.key.phase == "unknown":
            for reason, number in bucket.reasons.items():
                reasons[reason] = reasons.get(reason, 0) + number
    ordered = sorted(reasons.items(), key=lambda each: -each[1])
    return [f"the phase of {count(number, 'pass')} is unknown: {reason}" for reason, number in ordered[:3]]


def copies_notes(tally: Tally, buckets: Iterable[Bucket]) -> list[str]:
    """Say that copies of several writers are counted once, and how the number of writers is known."""
    found: dict[tuple[int, int | None], set[str]] = {}
    for bucket in buckets:
        copies = bucket.copies
        segment = tally.segments.get((bucket.key.file, bucket.key.segment))
        if copies is not None and copies > 1 and segment is not None:
            writers, how = segment.writers, segment.writers_evidence or ""
            if writers is None and bucket.marked:
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


def _headline(
    serving: Sequence[Bucket],
    apart: Sequence[Bucket],
    sizes: Sizes,
    hidden_by_graphs: Sequence[tuple[Segment, str]],
    tally: Tally,
) -> str:
    seen = [bucket for bucket in serving if bucket.captures]
    if seen:
        hidden = "; verify is hidden by CUDA graphs" if hidden_by_graphs else ""
        return f"hidden captures: {captured_words(seen, sizes, tally)}{hidden}."
    if not apart:
        return "no hidden capture is printed in this log."
    parts = []
    for during, name in (
        ("warmup", "warm-up"),
        ("graph_capture", "graph capture (dummy input)"),
        ("startup", "start-up"),
    ):
        found = [bucket for bucket in apart if bucket.key.during == during]
        if found:
            parts.append(f"during {name}: {captured_words(found, sizes, tally)}")
    return f"no hidden capture while serving; {'; '.join(parts)}."


def in_run(tally: Tally, file: str, segment: int, said: str) -> str:
    """Return a sentence with the run it is about in front, where there are several."""
    name = tally.run_name(file, segment)
    return f"{name}: {said}" if name else said


def captured_words(buckets: Iterable[Bucket], sizes: Sizes, tally: Tally) -> str:
    """Return what target passes captured: ``3 per target pass (layers 3, 31, 59) in extend and verify, joined ...``.

    Passes that captured and joined the same are named together; where there are several runs, each is named.
    """
    groups: dict[tuple[Any, ...], list[Bucket]] = {}
    for bucket in buckets:
        same = (bucket.usual, tuple(joined_words(bucket, sizes)))
        groups.setdefault((bucket.key.file, bucket.key.segment, bucket.key.site, *same), []).append(bucket)
    sites = {key[2] for key in groups}
    parts = []
    for (file, segment, site, usual, joined), found in groups.items():
        name = in_run(tally, file, segment, "") + f"{site}: " * (len(sites) > 1)
        what = "not the same in every pass"
        if usual is not None:
            what = f"{len(usual)} per target pass ({layer_list(usual)})"
        width = f", joined width {' or '.join(joined)}" if joined else ""
        parts.append(f"{name}{what} in {phase_list(bucket.key.phase for bucket in found)}{width}")
    return "; ".join(parts)


def _facts(
    serving: Sequence[Bucket],
    sizes: Sizes,
    hidden_by_graphs: Sequence[tuple[Segment, str]],
) -> dict[str, Any]:
    return {
        "hidden_captures": sum(bucket.captures for bucket in serving),
        "target_passes": sum(bucket.passes for bucket in serving),
        "layers": captured_layers(serving),
        "hidden": hidden_facts(sizes),
        "hidden_by_graph": [segment.number for segment, _ in hidden_by_graphs],
        "evidence": most_evidence(serving),
    }


def captured_layers(buckets: Iterable[Bucket]) -> list[int]:
    """Return every captured layer, rising; 0 is the embedding."""
    cells = [cell for bucket in buckets for cell in bucket.cells.values() if cell.event in CAPTURE_EVENTS]
    return sorted({cell.layer for cell in cells if cell.layer is not None})


def most_evidence(buckets: Iterable[Bucket]) -> dict[str, str]:
    """Return by role and phase how the phase is known, the most common evidence first."""
    seen: dict[str, dict[str, int]] = {}
    for bucket in buckets:
        known = seen.setdefault(f"{bucket.key.role} {bucket.key.phase}", {})
        for evidence, number in bucket.evidence.items():
            known[evidence] = known.get(evidence, 0) + number
    return {name: str(most_common(known)) for name, known in seen.items()}
