"""``summarize``: one screen that says what a log holds and the two or three things a reader must know first.

This module is responsible for choosing what comes first; the numbers are those of the other questions, counted once for
all of them. Names and columns of its tables are fixed. It must not judge against a contract, and it adds up nothing
that belongs to different runs, models or sources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from logscope.model import CAPTURE_EVENTS, ForwardPass, Segment, states
from logscope.queries.captures import (
    captured_layers,
    captured_words,
    copies_notes,
    in_run,
    joined_words,
    mode_notes,
    per_pass,
    unknown_notes,
)
from logscope.queries.folded import Accepted
from logscope.queries.lineage import Lineage
from logscope.queries.norms import (
    first_non_finite,
    join_notes,
    lineage_facts,
    lineage_notes,
    non_finite_notes,
    norm_rows,
    variant_notes,
    zero_notes,
)
from logscope.queries.setup import Graphs, hidden_of, hidden_sizes
from logscope.queries.shapes import state_name
from logscope.queries.tables import FILE, SEGMENT, SITE, SOURCE, table, without_empty
from logscope.queries.tally import Tally
from logscope.queries.widths import WidthErrors
from logscope.queries.words import and_list, axes, count, layer_list, most_common, source_name, span, width_words
from logscope.report import Column, Context, Item, Report, Table
from logscope.versions import SIGNS, EraWatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logscope.model import ServerEvent
    from logscope.queries.setup import Sizes
    from logscope.queries.tally import Bucket, Cell
    from logscope.queries.widths import Wrong

# What ends a run or makes its numbers doubtful; each is shown with its first place.
ERRORS = {
    "matmul_mismatch": "size error in a matrix product",
    "weight_shape_mismatch": "weight of another shape",
    "size_mismatch": "size error",
    "traceback": "traceback",
    "watchdog_timeout": "watchdog timeout",
    "collective_timeout": "timeout of a collective",
    "sigquit": "child process died",
    "child_crashed": "child process crashed",
    "health_check_failed": "health check failed",
    "nan_logits_warning": "NaN in the logits",
    "invalid_tree_warning": "invalid draft tree",
    "retract": "requests retracted for want of memory",
}
MAX_NOTES = 6
_SEGMENTS = [
    FILE,
    SEGMENT,
    Column("line", "from line", align="right"),
    Column("spec", always=True),
    Column("num_steps", "draft steps", align="right", always=True),
    Column("topk", align="right", always=True),
    Column("num_draft_tokens", "draft tokens", align="right", always=True),
    Column("tp_size", "tp", align="right"),
    Column("graphs", "CUDA graphs", always=True),
    Column("writers", align="right"),
    Column("ready", "ready at line", align="right"),
    Column("version", "SGLang"),
    Column("model"),
]
_PHASES = [
    FILE,
    SEGMENT,
    SOURCE,
    SITE,
    Column("role", always=True),
    Column("phase", always=True),
    Column("passes", align="right", always=True),
    Column("rows_min", "rows min", align="right", always=True),
    Column("rows_max", "max", align="right", always=True),
    Column("hidden_captures", "hidden captures", align="right", always=True),
    Column("per_pass", "per pass", align="right", always=True),
    Column("copies", align="right"),
    Column("known_by", "phase known by"),
]
_STATISTICS = [
    Column("rms_min", "rms min", align="right"),
    Column("rms_median", "median", align="right"),
    Column("rms_max", "max", align="right"),
    Column("non_finite", "nan or inf", align="right", always=True),
    Column("zero", align="right", always=True),
]
# Less needed to the right: a narrow window gives up columns from there.
_CAPTURES = [
    FILE,
    SEGMENT,
    SOURCE,
    Column("layer", "before layer", align="right", always=True),
    Column("phase", always=True),
    Column("count", align="right", always=True),
    Column("shapes", always=True),
    *_STATISTICS,
    Column("copies", align="right"),
    Column("event"),
    SITE,
    Column("role"),
]
_STATES = [
    FILE,
    SEGMENT,
    SOURCE,
    Column("state", always=True),
    Column("phase", always=True),
    Column("count", align="right", always=True),
    Column("shapes", always=True),
    *_STATISTICS,
    Column("copies", align="right"),
    Column("role"),
]
_ACCEPT = [
    FILE,
    SEGMENT,
    Column("origin", always=True),
    Column("lines", align="right", always=True),
    Column("accept_len_mean", "accept len mean", align="right", always=True),
    Column("min", align="right", always=True),
    Column("max", align="right", always=True),
    Column("rate_words", "accept rate is", always=True),
    Column("throughput_median", "throughput median", align="right", unit="token/s"),
    Column("throughput_max", "max", align="right", unit="token/s"),
]
_DURING = Column("during", always=True)
_APART = [
    FILE,
    SEGMENT,
    SOURCE,
    _DURING,
    Column("role", always=True),
    Column("phases", always=True),
    Column("hidden_captures", "hidden captures", align="right", always=True),
]


_ORIGINS = [
    Column("file", always=True),
    Column("origin", "from", always=True),
    Column("fetched", always=True),
    Column("copy"),
]


class Note(NamedTuple):
    """One thing to know: the sentence, and its short form where it belongs into the headline."""

    text: str
    headline: str | None = None


class Summarize:
    """The fold behind ``logscope summarize``."""

    kind: ClassVar[str] = "summarize"

    def __init__(self) -> None:
        self._tally = Tally()
        self._graphs = Graphs()
        self._lineage = Lineage()
        self._errors = WidthErrors()
        self._eras: dict[tuple[str, int], EraWatch] = {}
        self._lengths = Accepted()
        self._seen: dict[str, int] = {}
        # (file, segment, event) -> [count, first place, in words]
        self._trouble: dict[tuple[str, int, str], list[Any]] = {}

    def see(self, item: Item) -> None:
        """Take one item."""
        if isinstance(item, ForwardPass):
            self._tally.see(item)
            segment = self._tally.segments.get((item.file, item.segment))
            self._lineage.see(item, None if segment is None else segment.topk)
            self._errors.see(item)
        elif isinstance(item, Segment):
            self._tally.see(item)
            self._lengths.see(item)
            self._eras[item.file, item.number] = EraWatch(item)
        else:
            self._server(item)

    def _server(self, item: ServerEvent) -> None:
        payload = item.occurrence[3]
        event = payload.event
        self._seen[event] = self._seen.get(event, 0) + 1
        if payload.site is not None:
            self._tally.see(item)
            return
        self._lengths.see(item)
        if event == "decode_stats":
            self._graphs.see(item)
        elif event in ERRORS:
            self._errors.see(item)
            self._note_trouble(item)
        if event in SIGNS and (era := self._eras.get((item.file, item.segment))) is not None:
            era.server(payload)

    def _note_trouble(self, item: ServerEvent) -> None:
        payload = item.payload
        key = (item.file, item.segment, payload.event)
        seen = self._trouble.get(key)
        if seen is None:
            said = payload.fields.get("exception")
            message = payload.fields.get("message")
            words = f"{said}: {message}" if said and message else said or ""
            self._trouble[key] = [1, item.place, str(words)]
        else:
            seen[0] += 1

    # -- the answer ---------------------------------------------------------------------------------------------------

    def report(self, context: Context) -> Report:
        """Answer."""
        tally = self._tally
        sizes = hidden_sizes(tally)
        serving = [bucket for bucket in tally.ordered() if bucket.key.during == "serving"]
        apart = [bucket for bucket in tally.ordered() if bucket.key.during != "serving"]
        report = Report("summarize", "", accounting=context.accounting)
        segments = self._segment_rows()
        report.tables["segments"] = table(
            without_empty(_SEGMENTS, segments), segments, title="runs", optional=("file",)
        )
        models = {bucket.key.site for bucket in serving if bucket.key.role == "target"}
        columns = [column for column in _PHASES if column is not SITE or len(models) > 1]
        report.tables["phases"] = table(columns, _phase_rows(serving), title="forward passes while serving")
        captures = [row for bucket in serving for row in _state_rows(bucket, sizes, captures=True)]
        optional = ("file", "segment", "source", "site", "event", "role", "copies")
        report.tables["captures"] = table(
            _quiet(_CAPTURES, captures),
            captures,
            title="hidden captures while serving, rms = norm / sqrt(rows x width)",
            optional=optional,
        )
        others = [row for bucket in serving for row in _state_rows(bucket, sizes, captures=False)]
        if others:
            report.tables["states"] = table(
                _quiet(_STATES, others), others, title="other states while serving", optional=optional
            )
        rows = self._accept_rows()
        report.tables["accept"] = table(
            without_empty(_ACCEPT, rows) or _ACCEPT, rows, title="acceptance and throughput"
        )
        if apart:
            title = "passes not counted as serving (warm-up; dummy input of graph capture)"
            # Where nothing is served, they are all there is: in full then.
            report.tables["not_serving"] = (
                table(_APART, _apart_rows(apart), title=title)
                if serving
                else table([_DURING, *columns], _phase_rows(apart), title=title)
            )
        if context.origins:
            report.tables["origins"] = Table(_ORIGINS, _origin_rows(context.origins), title="fetched logs")
        # What a log does not hold comes last: a log of another server has no passes to show.
        report.tables = dict(sorted(report.tables.items(), key=lambda each: not each[1].rows))
        notes = self._notes(context, serving, apart, sizes)
        report.notes = [note.text for note in notes[:MAX_NOTES]]
        report.headline = self._headline(serving, apart, sizes, rows, notes)
        report.facts = self._facts(context, serving, sizes, notes)
        return report

    def _segment_rows(self) -> list[dict[str, Any]]:
        rows = []
        for (file, number), segment in self._tally.segments.items():
            args = segment.server_args
            era = self._eras.get((file, number))
            known = era.known() if era is not None else None
            spec = " ".join(
                str(part) for part in (args.get("speculative_algorithm"), segment.spec_version) if part is not None
            )
            rows.append(
                {
                    "file": file,
                    "segment": number,
                    "line": segment.line,
                    "model": args.get("model_path"),
                    "tp_size": segment.tp_size,
                    "dp_size": segment.dp_size,
                    "num_steps": segment.num_steps,
                    "topk": segment.topk,
                    "num_draft_tokens": segment.num_draft_tokens,
                    "spec": spec or None,
                    "spec_evidence": segment.spec_evidence,
                    "graphs": self._graphs.words(segment),
                    "writers": segment.writers,
                    "writers_evidence": segment.writers_evidence,
                    "version": None if known is None else known.release or known.era,
                    "version_evidence": known.how if known is not None else None,
                    "ready": segment.ready_line,
                    "server_args_line": segment.server_args_line,
                }
            )
        return rows

    def _accept_rows(self) -> list[dict[str, Any]]:
        rows = self._lengths.found.summary_rows()
        for row in rows:
            name = row["rate_definition"]
            row["rate_words"] = f"{name}: {row['rate_rule']}" if name is not None and row.get("rate_rule") else name
        return rows

    # -- what to know first -------------------------------------------------------------------------------------------

    def _notes(
        self,
        context: Context,
        serving: Sequence[Bucket],
        apart: Sequence[Bucket],
        sizes: Sizes,
    ) -> list[Note]:
        """Return what must be known first, the most important first."""
        tally = self._tally
        buckets = serving or apart
        notes = self._trouble_notes(self._errors.words(tally, sizes))
        worst = first_non_finite(buckets)
        if worst is not None:
            name = state_name(worst[1], worst[0].key.role)
            headline = f"{name} is nan or inf since {worst[1].first_non_finite}"
            notes += [Note(said, headline) for said in non_finite_notes(buckets)]
        notes += [Note(said, _until(said, " (first")) for said in zero_notes(buckets)]
        for segment in tally.segments.values():
            hidden = self._graphs.hidden(segment, tally)
            if hidden is not None:
                notes.append(Note(in_run(tally, segment.file, segment.number, hidden), _until(hidden, ": ")))
        notes += [Note(said, _until(said, ", since")) for said in lineage_notes(self._lineage) if "spec v1" not in said]
        notes += [Note(said, _until(said, " (first")) for said in join_notes(self._lineage)]
        if not self._errors.found:
            notes += [Note(said) for said in _joined_notes(serving, sizes)]
        notes += [Note(said, said) for said in mode_notes(buckets)]
        notes += [Note(said) for said in _varying_notes(buckets)]
        notes += [Note(said, _until(said, " (first")) for said in variant_notes(buckets)]
        notes += [Note(said) for said in copies_notes(tally, buckets)]
        notes += [Note(said) for said in unknown_notes(buckets)]
        notes += [Note(said) for said in _same_states_notes(serving)]
        notes += [Note(said) for said in self._reading_notes(context)]
        return notes

    def _trouble_notes(self, explained: Sequence[tuple[Wrong, str]]) -> list[Note]:
        """Return the errors of the log by place; a size error is explained, and the traceback around it left out."""
        found = [(wrong.place, Note(said, f"{_until(said, '): ')})")) for wrong, said in explained]
        events = {wrong.event for wrong, _ in explained}
        hidden = events | ({"traceback"} if events else set())
        for (_, _, event), (number, place, words) in self._trouble.items():
            if event in hidden:
                continue
            times = f", {number:,} times" if number > 1 else ""
            said = f"{ERRORS[event]}{f' {words}' if words else ''}{times} (first {place}); see logscope errors"
            found.append((place, Note(said, f"{ERRORS[event]} at {place}" if event != "retract" else None)))
        return [note for _, note in sorted(found, key=lambda each: each[0])]

    def _reading_notes(self, context: Context) -> list[str]:
        """Return what limits the numbers: no ready line, buffered prints, damage, repeats, the reader's warnings."""
        notes = []
        never = [segment for segment in self._tally.segments.values() if segment.ready_line is None]
        early = {bucket.key[:2] for bucket in self._tally.buckets.values() if bucket.key.during == "warmup"}
        # A server that died on the way there has said so itself.
        if not self._trouble and any((segment.file, segment.number) in early for segment in never):
            notes.append(
                "start-up lines but no 'ready to roll' line: every pass stands before it and counts as warm-up, not as "
                "serving"
            )
        buffered = [segment for segment in self._tally.segments.values() if segment.buffered]
        if buffered:
            notes.append(
                "prints are block-buffered (server lines are glued to the end of records): they stand later in the "
                "file than they happened, and the last ones may be missing"
            )
        found = context.accounting
        damaged, unparsed = found.cut + found.rejoined, found.unparsed
        if damaged:
            notes.append(
                f"{count(damaged, 'record is', 'records are')} damaged ({found.cut:,} cut, {found.rejoined:,} "
                "rejoined): unfinished values enter no number here"
            )
        if unparsed:
            notes.append(f"{count(unparsed, 'record')} could not be read; logscope events lists them with the reason")
        strays: dict[str, int] = {}
        for (_, _, _, event), (number, _) in self._tally.strays.items():
            if event != "capture_plan":
                strays[event] = strays.get(event, 0) + number
        if strays:
            total = count(sum(strays.values()), "debug record belongs", "debug records belong")
            notes.append(f"{total} to no forward pass ({', '.join(list(strays)[:5])}); logscope events shows them")
        if self._lengths.part.repeated:
            hidden = count(self._lengths.part.repeated, "repeated line")
            notes.append(f"Ray hid {hidden}: counts and sums of server lines are lower bounds")
        return [*notes, *context.warnings]

    def _headline(
        self,
        serving: Sequence[Bucket],
        apart: Sequence[Bucket],
        sizes: Sizes,
        accept: Sequence[dict[str, Any]],
        notes: Sequence[Note],
    ) -> str:
        parts = []
        runs = len(self._tally.segments)
        files = len({file for file, _ in self._tally.segments})
        if runs > files:
            parts.append(f"{runs} server runs" + (f" in {files} logs" if files > 1 else ""))
        elif files > 1:
            parts.append(f"{files} logs")
        targets = [bucket for bucket in serving if bucket.key.role == "target"]
        others = [bucket for bucket in apart if bucket.captures and bucket.key.during == "warmup"]
        if targets:
            said = captured_words(targets, sizes, self._tally)
            parts.append(f"hidden captures: {said}" if said.count("; ") < 2 else "hidden captures differ, see below")
        elif others:
            said = captured_words(others, sizes, self._tally)
            parts.append(f"no target pass while serving; hidden captures in warm-up: {said}")
        else:
            parts.append("no target pass while serving" if serving or apart else self._without_passes(accept))
        lengths = [row for row in accept if row["accept_len_mean"] is not None]
        if len(lengths) == 1:
            parts.append(f"accept len {lengths[0]['accept_len_mean']:.2f}")
        elif lengths:
            means = [row["accept_len_mean"] for row in lengths]
            low, high = f"{min(means):.2f}", f"{max(means):.2f}"
            parts.append(f"accept len {low if low == high else f'{low} to {high}'} in {len(lengths)} processes")
        facts = lineage_facts(self._lineage)
        if targets and facts["draft_inputs"]:
            traced, inputs = facts["draft_inputs_traced"], facts["draft_inputs"]
            parts.append(f"the draft reads the state joined before it in {traced:,} of {count(inputs, 'pass')}")
        trouble = next((note.headline for note in notes if note.headline), None)
        return "; ".join([trouble, *parts] if trouble else parts) + "."

    def _without_passes(self, accept: Sequence[dict[str, Any]]) -> str:
        """Say what a log holds that prints no forward pass."""
        lines = [
            count(self._seen[event], words)
            for event, words in (("decode_stats", "decode line"), ("prefill_stats", "prefill line"))
            if self._seen.get(event)
        ]
        speculating = any(row["lines"] for row in accept)
        said = f"; {and_list(lines)}" if lines else ""
        return f"no forward pass is printed{said}" + ("" if speculating or not lines else ", none with an accept len")

    def _facts(
        self,
        context: Context,
        serving: Sequence[Bucket],
        sizes: Sizes,
        notes: Sequence[Note],
    ) -> dict[str, Any]:
        segments = list(self._tally.segments.values())
        targets = [bucket for bucket in serving if bucket.key.role == "target"]
        facts: dict[str, Any] = {
            "segments": len(segments),
            "tp_size": _agreed(segment.tp_size for segment in segments),
            "num_draft_tokens": _agreed(segment.num_draft_tokens for segment in segments),
            "topk": _agreed(segment.topk for segment in segments),
            "num_steps": _agreed(segment.num_steps for segment in segments),
            "hidden": _agreed(size.size for size in sizes.values()),
            "layers": captured_layers(targets),
            "cuda_graph": _agreed(self._graphs.in_use(segment) for segment in segments),
            "hidden_evidence": sorted({size.evidence for size in sizes.values()}),
            "joined": sorted({word for bucket in targets for word in joined_words(bucket, sizes)}),
            "server_lines": dict(sorted(self._seen.items(), key=lambda each: -each[1])),
            **lineage_facts(self._lineage),
        }
        if context.origins:
            facts["origins"] = context.origins
        if len(notes) > MAX_NOTES:
            facts["further_notes"] = [note.text for note in notes[MAX_NOTES:]]
        return facts


def _agreed(values: Iterable[Any]) -> Any:
    """Return the one value all runs have, the list of them (in order) where they differ, None where none is known."""
    known = [value for value in dict.fromkeys(values) if value is not None]
    return known[0] if len(known) == 1 else known or None


def _until(text: str, mark: str) -> str:
    return text.partition(mark)[0]


def _phase_rows(buckets: Iterable[Bucket]) -> list[dict[str, Any]]:
    rows = []
    for bucket in buckets:
        key = bucket.key
        target = key.role == "target"
        usual = bucket.usual
        rows.append(
            {
                "file": key.file,
                "segment": key.segment,
                "source": source_name(key.group),
                "site": key.site,
                "during": key.during.replace("_", " "),
                "role": key.role,
                "phase": key.phase,
                "passes": bucket.passes,
                "rows_min": bucket.rows_min,
                "rows_max": bucket.rows_max,
                "hidden_captures": bucket.captures if target else None,
                "per_pass": None if not target else per_pass(bucket) if usual is None else len(usual),
                "copies": bucket.copies,
                "incomplete": bucket.incomplete,
                "known_by": str(most_common(bucket.evidence)) if bucket.evidence else None,
                "reasons": list(bucket.reasons)[:3],
            }
        )
    return rows


def _state_rows(bucket: Bucket, sizes: Sizes, *, captures: bool) -> list[dict[str, Any]]:
    """Return one row for each captured layer, or for each other state, of a bucket."""
    key = bucket.key
    hidden = hidden_of(bucket, sizes)
    norms = {(row["event"], row["layer"]): row for row in norm_rows(bucket)}
    rows = []
    for cell in bucket.cells.values():
        if (cell.event in CAPTURE_EVENTS) is not captures or (not captures and not cell.rms.count):
            continue
        known = norms.get((cell.event, cell.layer), {})
        rows.append(
            {
                "file": key.file,
                "segment": key.segment,
                "source": source_name(key.group),
                "site": cell.site,
                "event": cell.event,
                "layer": cell.layer,
                "state": state_name(cell, key.role),
                "role": key.role,
                "phase": key.phase,
                "count": cell.count,
                "damaged": cell.damaged,
                "copies": most_common(cell.copies),
                "shapes": _shape_words(cell, hidden),
                "first": str(cell.first),
                **{column.name: known.get(column.name) for column in _STATISTICS},
            }
        )
    return rows


def _shape_words(cell: Cell, hidden: int | None) -> str:
    """Return the shapes of a record kind: ``4 to 16 rows x 7168 hidden``."""
    by_width: dict[int, list[int]] = {}
    words = []
    for shape in cell.shapes:
        if len(shape) > 1:
            by_width.setdefault(shape[-1], []).append(shape[0])
        else:
            words.append(axes(shape, hidden))
    for width, rows in by_width.items():
        height = span(min(rows), max(rows))
        words.insert(0, f"{height} row{'s' * (height != '1')} x {width_words(width, hidden)}")
    return "; ".join(words)


def _quiet(columns: list[Column], rows: Sequence[dict[str, Any]]) -> list[Column]:
    """Return the columns without those of a fault that no row has."""
    empty = {name for name in ("non_finite", "zero") if not any(row.get(name) for row in rows)}
    return [column for column in columns if column.name not in empty]


def _origin_rows(origins: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return where each fetched log came from, when, and whether the copy is whole."""
    rows = []
    for file, known in origins.items():
        parts = ["verified"] * bool(known.get("verified")) + ["filtered: not all lines"] * bool(known.get("filtered"))
        source = ":".join(str(known[name]) for name in ("host", "path") if known.get(name))
        rows.append({"file": file, "origin": source, "fetched": known.get("last_fetched"), "copy": ", ".join(parts)})
    return rows


def _apart_rows(buckets: Sequence[Bucket]) -> list[dict[str, Any]]:
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for bucket in buckets:
        key = bucket.key
        row = rows.setdefault(
            (*key[:3], key.during, key.role),
            {
                "file": key.file,
                "segment": key.segment,
                "source": source_name(key.group),
                "during": key.during.replace("_", " "),
                "role": key.role,
                "phases": "",
                "by_phase": {},
                "passes": 0,
                "hidden_captures": 0,
            },
        )
        row["passes"] += bucket.passes
        row["by_phase"][key.phase] = row["by_phase"].get(key.phase, 0) + bucket.passes
        row["hidden_captures"] += bucket.captures
    for row in rows.values():
        row["phases"] = ", ".join(f"{phase} {passes:,}" for phase, passes in row["by_phase"].items())
    return list(rows.values())


def _joined_notes(buckets: Sequence[Bucket], sizes: Sizes) -> list[str]:
    """Say when the embedding is among the joined states: the state most often joined by mistake."""
    notes = []
    for bucket in buckets:
        layers = bucket.usual
        if bucket.key.role != "target" or not layers or 0 not in layers or not bucket.joins:
            continue
        number, width = most_common({key: each[0] for key, each in bucket.joins.items()})
        if number is not None and number == len(layers):
            joined = states(width, hidden_of(bucket, sizes))
            notes.append(
                f"{joined} is joined in {bucket.key.phase}: {layer_list(layers)}; whether the draft was trained on the "
                "embedding is for its config to say (logscope check --contract)"
            )
    return notes[:1]


def _same_states_notes(buckets: Sequence[Bucket]) -> list[str]:
    """Say when several logs print the very same states: the files of one run's writers, not several runs."""
    prints: dict[str, list[str]] = {}
    for bucket in buckets:
        if bucket.key.role == "target":
            names = [(cell, str(cell.digest)) for cell in bucket.cells.values()]
            known = [f"{bucket.key.phase} {cell.event} {cell.layer} {name}" for cell, name in names if name]
            if known:
                prints.setdefault(bucket.key.file, []).extend(known)
    logs: dict[tuple[str, ...], list[str]] = {}
    for file, name in prints.items():
        logs.setdefault(tuple(sorted(name)), []).append(file)
    return [
        f"{and_list(files)} print the same states: files of one run's writers, or the same work served twice; their "
        "numbers stand apart and are not to be added up"
        for files in logs.values()
        if len(files) > 1
    ]


def _varying_notes(buckets: Sequence[Bucket]) -> list[str]:
    """Say when passes of one kind do not all capture the same layers."""
    notes = []
    for bucket in buckets:
        if bucket.key.role != "target" or bucket.key.during == "graph_capture" or len(bucket.sets) < 2:
            continue
        usual = bucket.usual
        odd = [captured for layers, captured in bucket.sets.items() if layers != usual]
        number = sum(captured.count for captured in odd)
        if usual is None:
            notes.append(f"{bucket.key.phase} passes capture different layers; see logscope captures")
        else:
            what = f"{count(number, f'{bucket.key.phase} pass', f'{bucket.key.phase} passes')}"
            notes.append(
                f"{what} of {bucket.passes:,} captured something else than {layer_list(usual)} "
                f"(first {odd[0].places[0]})"
            )
    return notes
