"""``summarize``: one screen that says what a log holds and the two or three things a reader must know first.

This module is responsible for choosing what comes first; the numbers are those of the other questions, counted once for
all of them. Names and columns of its tables are fixed. It must not judge against a contract, and it adds up nothing
that belongs to different runs, models or sources.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import polars as pl

from logscope.asking import Summed
from logscope.model import Place, Segment, states
from logscope.queries.acceptance.report import Accept
from logscope.queries.acceptance.series import Acceptance
from logscope.queries.captures import (
    captured_by_run,
    captured_layers,
    captured_words,
    copies_notes,
    hidden_lines,
    mode_notes,
    unknown_notes,
)
from logscope.queries.counts import Bucket, Counts, cells_of, together
from logscope.queries.errors import Errors, groups, silence_words, silences
from logscope.queries.lineage import Lineage
from logscope.queries.norms import lineage_facts, lineage_notes, not_told_apart, state_lines
from logscope.queries.rows import joined_words, pass_row, same_states, state_row
from logscope.queries.setup import Sizes, graphs, hidden_sizes
from logscope.queries.sizes import WidthErrors
from logscope.queries.tables import TELLING, add, columns, table, without_empty
from logscope.queries.words import EMBEDDING, and_list, count, layer_list, most_common, span
from logscope.report import Column, Context, Line, Mark, Report, Table
from logscope.versions import SIGNS, EraWatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logscope.tables.tables import Tables

# What is no error and makes numbers doubtful, by event: what it is a matter of, and in words.
_DOUBTS = {
    "nan_logits_warning": ("errors", "NaN in the logits"),
    "invalid_tree_warning": ("errors", "invalid draft tree"),
    "retract": ("memory", "requests retracted for want of memory"),
}
MAX_NOTES = 6
# On the screen: matters in order, and how many lines of one at most (1 unless said).
_ORDER = (
    "errors", "silent", "accept", "captured", "joined", "draft reads", "values", "ranks", "hidden", "mode", "embedding",
    "memory", "phase", "same", "reading", "passes",
)  # fmt: skip
_MOST = {"errors": 2, "accept": 3, "captured": 4, "reading": 3}
# Matters that lead the headline when they are bad news, those that are noted though they are none, and where a sentence
# may end.
_LEADING = frozenset({"errors", "joined", "draft reads", "values", "ranks", "hidden", "mode"})
_NOTED = frozenset({"embedding", "copies", "phase", "same", "reading"})
_SHORT = re.compile(r" \(first |, since |; |: |, in ")
_SETUP = {
    "spec": "{}", "num_steps": "{} steps", "topk": "topk {}", "num_draft_tokens": "{} draft tokens", "tp_size": "tp {}",
    "graphs": "graphs {}", "version": "SGLang {}",
}  # fmt: skip
_SEGMENTS = columns(
    "file segment=run> line=from_line> spec! num_steps=draft_steps!> topk!> num_draft_tokens=draft_tokens!> "
    "tp_size=tp> graphs=CUDA_graphs! writers> ready=ready_at_line> version=SGLang model"
)
_PHASES = columns(
    f"{TELLING} role! phase! passes!> rows_min!> rows_max=max!> hidden_captures!> per_pass!> copies> "
    "known_by=phase_known_by"
)
# Less needed to the right: a narrow window gives up columns from there.
_CELLS = "rms_min> rms_median=median> rms_max=max> non_finite=nan_or_inf!> zero!> copies>"
_CAPTURES = columns(f"file segment=run> source layer=before_layer!> phase! count!> shapes! {_CELLS} event site role")
_STATES = columns(f"file segment=run> source state! phase! count!> shapes! {_CELLS} role")
_ACCEPT = columns(
    "file segment=run> origin! lines!> accept_len_mean!> min!> max!> rate_words=accept_rate_is! "
    "throughput_median>token/s throughput_max=max>token/s"
)
_APART = columns("file segment=run> source during! role! phases! hidden_captures!>")
_ORIGINS = columns("file! origin=from! fetched! copy")


class Signs(dict[Any, Any]):
    """The distinct lines that tell the release, by (file, segment) and what tells it."""

    @classmethod
    def of(cls, tables: Tables) -> Signs:
        """Take those of a batch. Statistics lines of one server are alike; of the others there are few."""
        made, where, event = cls(), ["file", "segment", "event"], pl.col("event").cast(pl.String)
        signs = tables.server.with_row_index("row").filter(event.is_in(list(SIGNS)))
        often = event.is_in(["decode_stats", "prefill_stats"])
        kept = pl.int_range(pl.len()).over(where) < pl.when(often).then(2).otherwise(64)
        for row, file, segment, name in signs.filter(kept).select("row", *where).iter_rows():
            payload = tables.payload(row)
            told = (name, frozenset(payload.fields), *(str(payload.fields.get(each)) for each in ("what", "type")))
            made.setdefault((tables.files[file], segment, *told), payload)
        return made

    @classmethod
    def sum(cls, parts: Iterable[Signs]) -> Signs:
        """Return the first of each."""
        made = cls()
        for part in parts:
            for key, payload in part.items():
                made.setdefault(key, payload)
        return made


class Summarize(Summed):
    """The question behind ``logscope summarize``."""

    def __init__(self) -> None:
        self._accept = Accept()
        accept, failures = (SimpleNamespace(of=one.partial, sum=one.combine) for one in (self._accept, Errors()))
        self.kinds = (Counts, Lineage, WidthErrors, Signs, accept, failures)

    def report(self, part: tuple[Any, ...], context: Context) -> Report:
        """Answer."""
        return _Answer(part, context, self._accept).report()


class _Answer:
    """The answer while it is made."""

    def __init__(self, part: tuple[Any, ...], context: Context, accept: Accept) -> None:
        self.counts, self.lineage, self.widths, signs, self.lines, failures = part
        failures = Errors().combine([failures])
        self.failures, self.silences = groups(failures), silences(failures)
        self.context, self.sizes = context, hidden_sizes(self.counts)
        self.serving, self.apart = self.counts.ordered(serving=True), self.counts.ordered(serving=False)
        self.accept_rows = _accept_rows(Acceptance(accept.combine([self.lines])))
        self.accept_report = accept.report(self.lines, context)
        said = together(self.counts.lines.values())
        self.events, self.strays = said.numbers("event"), said.numbers("stray")
        self.eras = {key: EraWatch(segment) for key, segment in self.counts.segments.items()}
        for (file, number, *_), payload in signs.items():
            if (file, number) in self.eras:
                self.eras[file, number].server(payload)

    def report(self) -> Report:
        """Answer."""
        serving, apart, context = self.serving, self.apart, self.context
        report = Report("summarize", "", accounting=context.accounting)
        segments = [self._segment_row(segment) for segment in self.counts.segments.values()]
        tables = report.tables
        tables["segments"] = table(without_empty(_SEGMENTS, segments), segments, title="runs")
        models = {bucket.key.site for bucket in serving if bucket.key.role == "target"}
        shown = [column for column in _PHASES if column.name != "site" or len(models) > 1]
        tables["phases"] = table(shown, _phase_rows(serving, self.sizes), title="forward passes while serving")
        cells = cells_of(serving)
        captures = [state_row(*each, self.sizes) for each in cells if each[1].captured]
        title = "hidden captures while serving, rms = norm / sqrt(rows x width)"
        tables["captures"] = table(_quiet(_CAPTURES, captures), captures, title=title)
        others = [state_row(*each, self.sizes) for each in cells if not each[1].captured and each[1].rms.bins]
        add(report, "states", _quiet(_STATES, others), others, "other states while serving")
        rows = self.accept_rows
        tables["accept"] = table(without_empty(_ACCEPT, rows) or _ACCEPT, rows, title="acceptance and throughput")
        if apart:
            title = "passes not counted as serving (warm-up; dummy input of graph capture)"
            # Where nothing is served, they are all there is: in full then.
            in_full = ([*columns("during!"), *shown], _phase_rows(apart, self.sizes))
            tables["not_serving"] = table(*((_APART, _apart_rows(apart)) if serving else in_full), title=title)
        if context.origins:
            tables["origins"] = Table(_ORIGINS, _origin_rows(context.origins), title="fetched logs")
        # What a log does not hold comes last: a log of another server has no passes to show.
        report.tables = dict(sorted(report.tables.items(), key=lambda each: not each[1].rows))
        found = self._found()
        notes = self._notes(found)
        report.notes = [line.text for line in notes[:MAX_NOTES]]
        report.headline = self._headline(notes)
        report.facts = self._facts(notes)
        report.screen = [context.heading(), *filter(None, [self._setup(segments)]), "", *self._screen(found)]
        report.next = context.command("check")
        return report

    def _segment_row(self, segment: Segment) -> dict[str, Any]:
        args = segment.server_args
        known = self.eras[segment.file, segment.number].known()
        spec = " ".join(
            str(part) for part in (args.get("speculative_algorithm"), segment.spec_version) if part is not None
        )
        same = ("tp_size", "dp_size", "num_steps", "topk", "num_draft_tokens", "spec_evidence", "writers")
        return {
            "file": segment.file,
            "segment": segment.number,
            "line": segment.line,
            "model": args.get("model_path"),
            **{name: getattr(segment, name) for name in (*same, "writers_evidence", "server_args_line")},
            "spec": spec or None,
            "graphs": graphs(self.counts, segment)[1],
            "version": None if known is None else known.release or known.era,
            "version_evidence": known.how if known is not None else None,
            "ready": segment.ready_line,
        }

    # -- what to know first -------------------------------------------------------------------------------------------

    def _setup(self, rows: Sequence[dict[str, Any]]) -> str:
        """Return the set-up of the runs in one sentence, as far as they agree."""
        said = [] if len(rows) < 2 else [f"{len(rows)} server runs"]
        for name, words in _SETUP.items():
            values = list(dict.fromkeys(str(row[name]) for row in rows if row[name] is not None))
            if values and (len(values) == 1 or "{} " in words):
                said.append(words.format(" or ".join(values)))
        return ", ".join(said)

    def _found(self) -> list[Line]:
        """Return all there is to know, by name of what it is about."""
        counts, serving = self.counts, self.serving
        buckets = serving or self.apart
        doubt = not_told_apart(counts, buckets)
        embedding = [] if self.widths.found else _joined_notes(serving, self.sizes)
        return [
            *(Line("error", name, said) for name, said in self._trouble()),
            *(Line("warning", "silent", said) for said in map(silence_words, self.silences)),
            *state_lines(counts, buckets, self.lineage),
            *(line for _, line in hidden_lines(counts)),
            *(Line("unknown", "embedding", said) for said in embedding),
            *(Line("warning", "mode", said) for said in mode_notes(buckets)),
            *(Line("unknown" if doubt else "warning", "captured", said) for said in _varying_notes(buckets)),
            *(Line("ok", "copies", said) for said in copies_notes(counts, buckets)),
            *(Line("unknown", "phase", said) for said in unknown_notes(buckets)),
            *(Line("unknown", "same", said) for said in same_states(serving)),
            *(Line("unknown", "reading", said) for said in self._reading_notes()),
        ]

    def _notes(self, found: Sequence[Line]) -> list[Line]:
        """Return what is no good news, and how copies are counted; what the draft reads in full."""
        reads = [Line("error", "draft reads", said) for said in lineage_notes(self.lineage) if "spec v1" not in said]
        notes = []
        for line in found:
            if line.name == "draft reads":
                notes += reads if line.mark == "error" else []
            elif line.mark in ("error", "warning") or line.name in _NOTED:
                notes.append(line)
        return notes

    def _screen(self, found: Sequence[Line]) -> list[str | Line | Table]:
        """Return one or two lines on each matter, in the order of a pass, cut to what they begin with."""
        buckets = self.serving or [bucket for bucket in self.apart if bucket.key.during == "warmup"]
        targets = [bucket for bucket in buckets if bucket.key.role == "target"]
        lines = [*found, *self._accept_lines(), *self._captured_lines(targets)]
        if not buckets:
            lines.append(Line("unknown", "passes", self._without_passes()))
        joined = " or ".join(dict.fromkeys(word for bucket in targets for word in joined_words(bucket, self.sizes)))
        shown: list[str | Line | Table] = []
        for name in _ORDER:
            # Processes stand behind "accept".
            some = [line for line in lines if line.name == name or line.name.startswith(f"{name} ")]
            for line in some[: _MOST.get(name, 1)]:
                fine = name == "joined" and line.mark == "ok"
                said = f"{joined}, by norm the captures of its pass" if fine else line.text
                said = said if name == "passes" else said.partition("; ")[0]
                shown.append(self.context.short(replace(line, text=said)))
        table_ = self._states_table()
        return shown if table_ is None else [*shown, "", table_]

    def _accept_lines(self) -> list[Line]:
        lines = [item for item in self.accept_report.screen if isinstance(item, Line) and item.mark is not None]
        return [replace(one, name="accept len" if len(lines) == 1 else f"accept {one.name}") for one in lines]

    def _captured_lines(self, targets: Sequence[Bucket]) -> list[Line]:
        """Say what target passes captured, runs that captured the same together, those that differ first."""
        groups: dict[str, list[str]] = {}
        doubt = not_told_apart(self.counts, targets)
        for run, said, _ in captured_by_run(targets, self.sizes):
            groups.setdefault(said, []).append(self.counts.in_run(*run, "")[:-2])
        lines = []
        for said, runs in sorted(groups.items(), key=lambda each: len(each[1])):
            rest = f" and {len(runs) - 3} more" if len(runs) > 3 else ""
            which = f" ({', '.join(runs[:3])}{rest})" if len(groups) > 1 and runs[0] else ""
            mark: Mark = "ok" if "not the same" not in said else "unknown" if doubt else "warning"
            lines.append(Line(mark, "captured", f"{said}{which}"))
        return lines

    def _states_table(self) -> Table | None:
        """Return rows and rms of the captures of every served target phase, a row a phase."""
        rows: list[dict[str, Any]] = []
        layers: dict[str, float | None] = {}
        for bucket in self.serving:
            if bucket.key.role == "target" and bucket.captures:
                states_ = {
                    f"rms_{EMBEDDING if cell.layer == 0 else cell.layer}": cell.rms.median for cell in bucket.captured
                }
                heights = span(*bucket.rows).replace(" to ", "-")
                rows.append({**bucket.key._asdict(), "passes": bucket.passes, "rows": heights, **states_})
                layers |= states_
        words = " ".join(f"{name}!>" for name in layers)
        return table(columns(f"{TELLING} phase=! passes!> rows! {words}"), rows) if rows else None

    def _trouble(self) -> list[tuple[str, str]]:
        """Return the errors of the log by place; a size error is explained by what was captured before it."""
        explained = self.widths.words(self.counts, self.sizes)
        found = [(wrong.place, "errors", said) for wrong, said in explained]
        for group in self.failures:
            if group.reading is None or not explained:
                by = f" in {group.first.process}" if group.first.process else ""
                said = f"{group.first.what.rstrip('.')}{by}{_times(group.count)}"
                found.append((group.first.place, "errors", f"{said} (first {group.first.place}); see logscope errors"))
        for (file, _), lines in self.counts.lines.items():
            for event, seen in lines.of("event").items():
                if event in _DOUBTS:
                    (name, said), place = _DOUBTS[event], Place(file, seen.first)
                    found.append((place, name, f"{said}{_times(seen.number)} (first {place}); see logscope errors"))
        return [(name, said) for _, name, said in sorted(found)]

    def _reading_notes(self) -> list[str]:
        """Return what limits the numbers: no ready line, buffered prints, damage, repeats, the reader's warnings."""
        segments, found = self.counts.segments.values(), self.context.accounting
        never = {(segment.file, segment.number) for segment in segments if segment.ready_line is None}
        early = {bucket.key[:2] for bucket in self.apart if bucket.key.during == "warmup"}
        damaged = found.cut + found.rejoined
        strays = {event: number for event, number in self.strays.items() if event != "capture_plan"}
        be = count(damaged, "record is", "records are")
        belong = count(sum(strays.values()), "debug record belongs", "debug records belong")
        notes = {
            # A server that died on the way there has said so itself.
            "start-up lines but no 'ready to roll' line: every pass stands before it and counts as warm-up, not as "
            "serving": not self.failures and never & early,
            "prints are block-buffered (server lines are glued to the end of records): they stand later in the file "
            "than they happened, and the last ones may be missing": any(segment.buffered for segment in segments),
            f"{be} damaged ({found.cut:,} cut, {found.rejoined:,} rejoined): unfinished values enter no number "
            "here": damaged,
            f"{count(found.unparsed, 'record')} could not be read; logscope events lists them with the "
            "reason": found.unparsed,
            f"{belong} to no forward pass ({', '.join(list(strays)[:5])}); logscope events shows them": strays,
            f"Ray hid {count(self.lines.repeated, 'repeated line')}: counts and sums of server lines are lower "
            "bounds": self.lines.repeated,
        }
        return [*(said for said, holds in notes.items() if holds), *self.context.warnings]

    def _headline(self, notes: Sequence[Line]) -> str:
        parts = []
        runs = len(self.counts.segments)
        files = len({file for file, _ in self.counts.segments})
        if runs > files:
            parts.append(f"{runs} server runs" + (f" in {files} logs" if files > 1 else ""))
        elif files > 1:
            parts.append(f"{files} logs")
        targets = [bucket for bucket in self.serving if bucket.key.role == "target"]
        others = [bucket for bucket in self.apart if bucket.captures and bucket.key.during == "warmup"]
        if targets:
            said = captured_words(targets, self.sizes, self.counts)
            parts.append(f"hidden captures: {said}" if said.count("; ") < 2 else "hidden captures differ, see below")
        elif others:
            said = captured_words(others, self.sizes, self.counts)
            parts.append(f"no target pass while serving; hidden captures in warm-up: {said}")
        else:
            passes = self.serving or self.apart
            parts.append("no target pass while serving" if passes else self._without_passes())
        means = [row["accept_len_mean"] for row in self.accept_rows if row["accept_len_mean"] is not None]
        if means:
            low, high = f"{min(means):.2f}", f"{max(means):.2f}"
            among = f" in {len(means)} processes" if len(means) > 1 else ""
            parts.append(f"accept len {low if low == high else f'{low} to {high}'}{among}")
        facts = lineage_facts(self.lineage)
        if targets and facts["draft_inputs"]:
            traced, inputs = facts["draft_inputs_traced"], facts["draft_inputs"]
            parts.append(f"the draft reads the state joined before it in {traced:,} of {count(inputs, 'pass')}")
        trouble = [_SHORT.split(line.text)[0] for line in notes if line.name in _LEADING]
        return "; ".join([*trouble[:1], *parts]) + "."

    def _without_passes(self) -> str:
        """Say what a log holds that prints no forward pass."""
        seen = self.events
        words = {"decode_stats": "decode line", "prefill_stats": "prefill line"}
        lines = [count(seen[event], word) for event, word in words.items() if seen.get(event)]
        speculating = any(row["lines"] for row in self.accept_rows)
        said = f"; {and_list(lines)}" if lines else ""
        return f"no forward pass is printed{said}" + ("" if speculating or not lines else ", none with an accept len")

    def _facts(self, notes: Sequence[Line]) -> dict[str, Any]:
        segments = list(self.counts.segments.values())
        targets = [bucket for bucket in self.serving if bucket.key.role == "target"]
        names = ("tp_size", "num_draft_tokens", "topk", "num_steps")
        facts: dict[str, Any] = {
            "segments": len(segments),
            **{name: _agreed(getattr(segment, name) for segment in segments) for name in names},
            "hidden": _agreed(size.size for size in self.sizes.values()),
            "layers": captured_layers(targets),
            "cuda_graph": _agreed(graphs(self.counts, segment)[0] for segment in segments),
            "hidden_evidence": sorted({size.evidence for size in self.sizes.values()}),
            "joined": sorted({word for bucket in targets for word in joined_words(bucket, self.sizes)}),
            "server_lines": dict(sorted(self.events.items(), key=lambda each: -each[1])),
            **lineage_facts(self.lineage),
        }
        if self.context.origins:
            facts["origins"] = self.context.origins
        if len(notes) > MAX_NOTES:
            facts["further_notes"] = [line.text for line in notes[MAX_NOTES:]]
        return facts


def _times(number: int) -> str:
    return f", {number:,} times" if number > 1 else ""


def _accept_rows(acceptance: Acceptance) -> list[dict[str, Any]]:
    rows = acceptance.summary_rows()
    for row in rows:
        name = row["rate_definition"]
        row["rate_words"] = f"{name}: {row['rate_rule']}" if name is not None and row.get("rate_rule") else name
    return rows


def _agreed(values: Iterable[Any]) -> Any:
    """Return the one value all runs have, the list of them (in order) where they differ, None where none is known."""
    known = [value for value in dict.fromkeys(values) if value is not None]
    return known[0] if len(known) == 1 else known or None


def _phase_rows(buckets: Iterable[Bucket], sizes: Sizes) -> list[dict[str, Any]]:
    return [pass_row(bucket, sizes) | {"during": bucket.key.during.replace("_", " ")} for bucket in buckets]


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
        first = {**key._asdict(), "during": key.during.replace("_", " "), "by_phase": Counter()}
        row = rows.setdefault((*key[:3], key.during, key.role), {**first, "passes": 0, "hidden_captures": 0})
        row["passes"] += bucket.passes
        row["by_phase"][key.phase] += bucket.passes
        row["hidden_captures"] += bucket.captures
    for row in rows.values():
        row["phases"] = ", ".join(f"{phase} {passes:,}" for phase, passes in row["by_phase"].items())
    return list(rows.values())


def _joined_notes(buckets: Sequence[Bucket], sizes: Sizes) -> list[str]:
    """Say when the embedding is among the joined states: the state most often joined by mistake."""
    notes = []
    for bucket in buckets:
        layers, joins = bucket.usual, bucket.numbers("join")
        if bucket.key.role != "target" or not layers or 0 not in layers or not joins:
            continue
        number, width = most_common(joins)
        if number is not None and number == len(layers):
            notes.append(
                f"{states(width, sizes.of(bucket))} is joined in {bucket.key.phase}: {layer_list(layers)}; whether the"
                " draft was trained on the embedding is for its config to say (logscope check --contract)"
            )
    return notes[:1]


def _varying_notes(buckets: Sequence[Bucket]) -> list[str]:
    """Say when passes of one kind do not all capture the same layers."""
    notes = []
    for bucket in buckets:
        sets, usual, phase = bucket.of("set"), bucket.usual, bucket.key.phase
        if bucket.key.role != "target" or bucket.key.during == "graph_capture" or len(sets) < 2:
            continue
        if usual is None:
            notes.append(f"{phase} passes capture different layers; see logscope captures")
            continue
        odd = [seen for layers, seen in sets.items() if layers != usual]
        number = count(sum(seen.number for seen in odd), f"{phase} pass", f"{phase} passes")
        where = bucket.place(min(seen.first for seen in odd))
        else_ = f"captured something else than {layer_list(usual)} (first {where})"
        notes.append(f"{number} of {bucket.passes:,} {else_}")
    return notes
