"""``norms``: a fingerprint of every state, which states are joined, and where the draft's input came from.

This module is responsible for setting out the statistics of printed norms and the lineage of states. NaN and inf never
enter a mean: they are counted and pointed at. It must not judge drift between two runs (that is ``diff``) nor call a
broken identity a fault (that is ``check``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from logscope.queries.counts import RELATIVE, Counts
from logscope.queries.lineage import Lineage
from logscope.queries.rows import state_row
from logscope.queries.setup import hidden_sizes
from logscope.queries.tables import TELLING, columns, table, without_empty
from logscope.queries.words import and_list, count, layer_list, layer_name, most_common, percent, state_name
from logscope.report import Line, Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logscope.model import Place
    from logscope.queries.counts import Bucket, Cell
    from logscope.queries.lineage import Inputs, Joins
    from logscope.queries.setup import Sizes
    from logscope.report import Context
    from logscope.tables.tables import Tables

    Part = tuple[Counts, Lineage]

_NORMS = columns(
    f"{TELLING} during role! phase! state! count> rms_min!> rms_median=median!> rms_max=max!> trend! "
    "non_finite=nan_or_inf!> zero> digest"
)
_JOINS = columns(
    f"{TELLING} phase! passes> warmup=in_warm-up> joined=joined_states! norm=norm_identity! worst=worst_relative "
    "head=begins_with_the_lowest!"
)
_LINEAGE = columns(
    f"{TELLING} phase! inputs!> traced!> share!> not_traced!> since=not_traced_since! cannot_tell> reads by "
    "warmup=in_warm-up>"
)
TARGET = "target's joined state"
OWN = "draft's own output"


class Norms:
    """The question behind ``logscope norms``."""

    def partial(self, tables: Tables) -> Part:
        """Count a batch and follow its states."""
        return Counts.of(tables), Lineage.of(tables)

    def combine(self, parts: Sequence[Part]) -> Part:
        """Add batches up."""
        return Counts.sum(counts for counts, _ in parts), Lineage.sum(lineage for _, lineage in parts)

    def report(self, part: Part, context: Context) -> Report:
        """Answer."""
        counts, lineage = part
        serving, apart = counts.ordered(serving=True), counts.ordered(serving=False)
        sizes = hidden_sizes(counts)
        report = Report("norms", "", accounting=context.accounting)
        rows = norm_rows(serving, sizes)
        optional = ("file", "segment", "source", "site", "during")
        shown = without_empty(_NORMS, rows)
        report.tables["norms"] = table(
            shown,
            rows,
            title="rms = norm / sqrt(rows x width), while serving",
            caption=f"Medians are within {100 * RELATIVE:g} %.",
            optional=optional,
        )
        joins = [join_row(key, found) for key, found in lineage.joins.items()]
        if joins:
            title = "joined state against its captures"
            report.tables["joins"] = table(without_empty(_JOINS, joins), joins, title=title)
        inputs = [input_row(key, found) for key, found in lineage.inputs.items()]
        if inputs:
            own = any(found.own and found.cannot_tell for found in lineage.inputs.values())
            report.tables["lineage"] = table(
                without_empty(_LINEAGE, inputs),
                inputs,
                title="where the draft's input came from",
                caption="A decode step reads a row of the draft's last output; only row 0 is printed." if own else None,
            )
        others = norm_rows(apart, sizes)
        if others:
            title = "in warm-up and graph capture (dummy input), counted nowhere above"
            short = [
                column for column in _NORMS if column.name not in ("rms_min", "rms_max", "trend", "zero", "digest")
            ]
            report.tables["not_serving"] = table(without_empty(short, others), others, title=title)
        lines = state_lines(counts, serving or apart, lineage)
        derived = "norms of some records are computed from the printed mean and std: the norm is not printed"
        report.notes = [
            *lineage_notes(lineage),
            *(line.text for line in lines if line.mark in ("error", "warning") and line.name != "draft reads"),
            *[derived] * any(row["derived"] for row in rows),
        ]
        report.headline = _headline(counts, serving, apart, lineage)
        report.facts = lineage_facts(lineage)
        # Of each matter the first is said, which says the most.
        lines = list({line.name: line for line in reversed(lines)}.values())[::-1]
        lines = lines or [Line("unknown", "norms", report.headline)]
        report.screen = [context.heading(), "", *map(context.short, lines)]
        if rows:
            one_site = len({(row["role"], row["site"]) for row in rows}) == len({row["role"] for row in rows})
            left_out = ("digest", "zero", "count", *["site"] * one_site)
            short = [column for column in shown if column.name not in left_out]
            report.screen += ["", table(short, rows, optional=optional)]
        report.next = context.command("check")
        return report


def _headline(counts: Counts, serving: Sequence[Bucket], apart: Sequence[Bucket], lineage: Lineage) -> str:
    if not serving and not apart:
        return "no forward pass is printed in this log, so there is no norm to show."
    worst = first_non_finite(serving or apart)
    finite = "all norms are finite"
    if worst is not None:
        bucket, cell = worst
        place = bucket.place(cell.first("non_finite") or 0)
        finite = f"{state_name(cell.event, cell.layer, bucket.key.role)} is nan or inf first, at {place}"
    elif not any(cell.rms.number for bucket in serving or apart for cell in bucket.cells.values()):
        finite = "no norm is printed"
    parts = [(worst is not None, finite)]
    facts = lineage_facts(lineage)
    checked, held = facts["joined_states"], facts["joined_states_hold"]
    if checked:
        parts.append((held < checked, f"{held:,} of {count(checked, 'joined state')} have the norm of their captures"))
    told, traced, since = facts["draft_inputs"], facts["draft_inputs_traced"], facts["not_traced_since"]
    if told and all(found.explained for found in _read_from_target(lineage)):
        parts.append((False, f"the draft reads the state joined before it in {traced:,} of {count(told, 'pass')}"))
    elif told:
        not_traced = f"{told - traced:,} of {count(told, 'draft input')}"
        parts.append((True, f"{not_traced} are not the state joined before them, since {since}"))
    parts += [(True, said) for said in variant_notes(serving, _writers(counts, serving))[:1]]
    # What is wrong comes first.
    words = [said for _, said in sorted(parts, key=lambda part: not part[0])]
    return f"{'' if serving else 'no serving pass; '}{'; '.join(words)}."


def norm_rows(buckets: Iterable[Bucket], sizes: Sizes) -> list[dict[str, Any]]:
    """Return one row for each kind of record that prints a norm, in the order of the pass."""
    return [
        state_row(bucket, cell, sizes) | {"site": bucket.key.site}
        for bucket in buckets
        for cell in bucket.cells.values()
        if cell.rms.bins or cell.of("non_finite") or cell.of("zero")
    ]


def _read_from_target(lineage: Lineage) -> list[Inputs]:
    """Return the inputs that should be the target's joined state."""
    return [inputs for inputs in lineage.inputs.values() if not inputs.own]


def join_row(key: tuple[Any, ...], found: Joins) -> dict[str, Any]:
    """Return what is known of the joined states of one phase, as a row."""
    file, segment, source, phase = key
    layers = most_common(found.joined)
    return {
        "file": file,
        "segment": segment,
        "source": source,
        "phase": phase,
        "passes": found.passes,
        "warmup": found.warmup,
        "joined": layer_list(layers) if layers is not None else "not shown by norms",
        "norm": f"{found.norms_hold:,} of {found.norms:,}" if found.norms else "not checked",
        "worst": f"{found.worst:.1e}" if found.norms else "",
        "head": f"{found.heads_hold:,} of {found.heads:,}" if found.heads else "not printed",
        "first_norm_off": None if found.first_norm_off is None else str(found.first_norm_off),
        "first_head_off": None if found.first_head_off is None else str(found.first_head_off),
    }


def input_row(key: tuple[Any, ...], found: Inputs) -> dict[str, Any]:
    """Return what is known of the inputs of one phase of the draft, as a row."""
    file, segment, source, phase = key
    told = found.told
    return {
        "file": file,
        "segment": segment,
        "source": source,
        "phase": phase,
        "reads": OWN if found.own else TARGET,
        "inputs": found.inputs,
        "warmup": found.warmup,
        "traced": found.traced,
        "share": percent(found.traced, told) if told else "",
        "by": ", ".join(f"{how} {number:,}" for how, number in found.by.items()),
        "not_traced": found.not_traced,
        "cannot_tell": found.cannot_tell,
        "cannot_tell_why": dict(found.cannot_tell_why),
        "since": "" if found.first_not_traced is None else str(found.first_not_traced),
        "stale": dict(found.stale),
        "fewer_rows": found.fewer_rows,
    }


def state_lines(counts: Counts, buckets: Sequence[Bucket], lineage: Lineage) -> list[Line]:
    """Return what is to be said first of states: whether the joins are right, what the draft reads, nan, ranks."""
    if not buckets:
        return []
    joins = lineage.joins.values()
    total = sum(found.norms for found in joins)
    wrong = [Line("error", "joined", said) for said in join_notes(lineage)]
    fine = Line("ok", "joined", f"the captures of its pass, by norm, in all {total:,}")
    if not total:
        fine = Line("unknown", "joined", "no norm of a joined state and its captures is printed")
    reads = _reads_line(lineage)
    lines = [*(wrong or ([fine] if joins else [])), *([reads] if reads is not None else [])]
    values = [Line("error", "values", said) for said in non_finite_notes(buckets)]
    values += [Line("warning", "values", said) for said in zero_notes(buckets)]
    ranks = [Line("error", "ranks", said) for said in variant_notes(buckets, _writers(counts, buckets))]
    printed = any(cell.rms.bins for bucket in buckets for cell in bucket.cells.values())
    none = Line("ok", "values", "all finite, none zero") if printed else Line("unknown", "values", "no norm is printed")
    writers = _writers(counts, buckets)
    same = Line("ok", "ranks", "1 writer" if writers == 1 else f"{writers} writers print the same")
    # Where writers differ, the rest may only follow from it.
    lines = [*lines, *(values or [none]), same] if not ranks else [*ranks, *lines, *(values or [none])]
    doubt = not_told_apart(counts, buckets)
    return [line if line.mark == "ok" or not doubt else replace(line, mark="unknown", text=doubt) for line in lines]


def not_told_apart(counts: Counts, buckets: Iterable[Bucket]) -> str | None:
    """Say why passes are not judged, where those of several schedulers stand in one log; None where they are."""
    segments = counts.segments.values()
    if any(segment.server_args.get("enable_dp_attention") for segment in segments):
        return "not judged: with dp attention ranks hold other requests, and idle passes are padded"
    if any(segment.schedulers > 1 for segment in segments) and not all(bucket.key.source for bucket in buckets):
        return "not judged: several schedulers print unmarked into one log"
    return None


def _writers(counts: Counts, buckets: Iterable[Bucket]) -> int:
    """Return how many writers print, as far as copies or the server's arguments tell."""
    return max(
        [1, *(bucket.copies or 1 for bucket in buckets), *(one.writers or 1 for one in counts.segments.values())]
    )


def _reads_line(lineage: Lineage) -> Line | None:
    read = [(key, found) for key, found in lineage.inputs.items() if not found.own]
    off = [(key, found) for key, found in read if found.not_traced and not found.explained]
    if off:
        key, found = max(off, key=lambda each: each[1].not_traced)
        ago = most_common(found.stale)
        what = "another state than the joined one" if ago is None else f"the state joined {ago} passes before its own"
        what = "the previous pass's state" if ago == 1 else what
        said = f"{what} since {found.first_not_traced} ({found.not_traced:,} of {found.told:,} {key[3]} passes)"
        return Line("error", "draft reads", said)
    told, traced = sum(found.told for _, found in read), sum(found.traced for _, found in read)
    if told:
        rest = "; the others kept accepted rows only (spec v1)" if traced < told else ""
        number = f"all {told:,} passes" if traced == told > 1 else f"{traced:,} of {count(told, 'pass')}"
        return Line("ok", "draft reads", f"the state joined before it in {number}{rest}")
    return Line("unknown", "draft reads", "no input and joined state stand together to compare") if read else None


def _heads_of(joins: Iterable[Joins]) -> dict[int | None, int]:
    """Return which layers joined states begin with that are not the lowest, and how often."""
    layers: dict[int | None, int] = {}
    for found in joins:
        for layer, number in found.heads_of.items():
            layers[layer] = layers.get(layer, 0) + number
    return layers


def first_non_finite(buckets: Iterable[Bucket]) -> tuple[Bucket, Cell] | None:
    """Return the record kind whose first nan or inf stands first in its file, None when all is finite."""
    bad = [(bucket, cell) for bucket in buckets for cell in bucket.cells.values() if cell.total("non_finite")]
    return min(bad, key=lambda each: (each[1].first("non_finite"), each[0].key.file)) if bad else None


def non_finite_notes(buckets: Sequence[Bucket]) -> list[str]:
    """Say where nan or inf begins, how often, and what is still finite before it."""
    worst = first_non_finite(buckets)
    if worst is None:
        return []
    bucket, cell = worst
    cells = [(each, other) for each in buckets for other in each.cells.values()]
    same = [
        other
        for each, other in cells
        if each.key[:4] == bucket.key[:4] and (other.event, other.layer) == (cell.event, cell.layer)
    ]
    bad, total = sum(other.total("non_finite") for other in same), sum(other.total("record") for other in same)
    captured = [other for other in bucket.cells.values() if other.captured and other is not cell]
    finite, others = (
        [layer_name(other.event, other.layer) for other in captured if bool(other.total("non_finite")) is odd]
        for odd in (False, True)
    )
    after = f", and {and_list(others)} with it" if others else ""
    before = f"; {and_list(finite)} {'stays' if len(finite) == 1 else 'stay'} finite" if finite else ""
    left_out = sum(other.total("non_finite") for _, other in cells)
    left = f"{count(left_out, 'norm is', 'norms are')} left out of every statistic"
    since = f"since {bucket.place(cell.first('non_finite') or 0)}, in {bad:,} of {count(total, 'pass')}"
    name = state_name(cell.event, cell.layer, bucket.key.role)
    return [f"{name} is nan or inf {since}{after}{before}; {left}"]


def zero_notes(buckets: Sequence[Bucket]) -> list[str]:
    """Say which states are all zero."""
    return [
        f"{state_name(cell.event, cell.layer, bucket.key.role)} is all zero in "
        f"{count(cell.total('zero'), f'{bucket.key.phase} pass')} (first {bucket.place(first)})"
        for bucket in buckets
        for cell in bucket.cells.values()
        if (first := cell.first("zero")) is not None
    ]


def variant_notes(buckets: Sequence[Bucket], writers: int) -> list[str]:
    """Say that writers differ, in which state first, and who does where prefixes name it; then each kind of state."""
    odd = [
        (first, bucket, cell)
        for bucket in buckets
        for cell in bucket.cells.values()
        if (first := cell.first("variant")) is not None
    ]
    if not odd:
        return []
    first, bucket, cell = min(odd, key=lambda each: each[0])
    names = sorted({name for _, _, each in odd for name in each.of("variant") if name})
    who = f"{and_list(names[:4])} of {writers} writers differ" if names else f"{writers} writers differ"
    some = {id(each): each for _, each, _ in odd}.values()
    passes = f"{sum(each.total('odd') for each in some):,} of {sum(each.passes for each in some):,} passes"
    state = state_name(cell.event, cell.layer, bucket.key.role)
    return [
        f"{who}, first in {state} at {bucket.place(first)}, in {passes}",
        *(
            f"{count(cell.total('variant'), 'copy differs', 'copies differ')} from what the other writers print of "
            f"{state_name(cell.event, cell.layer, bucket.key.role)} in {bucket.key.phase} (first {bucket.place(first)})"
            for first, bucket, cell in odd
        ),
    ]


def lineage_notes(lineage: Lineage) -> list[str]:
    """Say how many of the draft's inputs are not the joined state before them, since when, and what they are."""
    notes = []
    for key, found in lineage.inputs.items():
        if found.own or not found.not_traced:
            continue
        phase = key[3]
        said = (
            f"{found.not_traced:,} of {count(found.told, f'{phase} input')} of the draft "
            f"{'is' if found.not_traced == 1 else 'are'} not the joined state of the target pass before, since "
            f"{found.first_not_traced} (joined at {found.first_source})"
        )
        if found.stale:
            ago, number = max(found.stale.items(), key=lambda each: each[1])
            passes = "target pass" if ago == 1 else "target passes"
            said += f"; {number:,} of them equal the state joined {ago} {passes} earlier: stale"
        elif found.explained:
            said += "; accepted rows only, compared by row 0: it differs where request 0 has just finished (spec v1)"
        notes.append(said)
    return notes


def join_notes(lineage: Lineage) -> list[str]:
    """Say where joined states are not their captures, or begin with another one than the lowest."""
    notes = []
    joins = list(lineage.joins.items())
    off = [(key[3], found.norms - found.norms_hold, found) for key, found in joins if found.norms_hold < found.norms]
    if off:
        first = min(found.first_norm_off for _, _, found in off if found.first_norm_off)
        notes.append(
            f"{_of_all(off, sum(found.norms for _, found in joins))} do not have the norm of their captures (first "
            f"{first}): something else was joined"
        )
    off = [(key[3], found.heads - found.heads_hold, found) for key, found in joins if found.heads_hold < found.heads]
    if off:
        first = min(found.first_head_off for _, _, found in off if found.first_head_off)
        layer = most_common(_heads_of(found for _, _, found in off))
        what = "no capture" if layer is None else layer_list([layer])
        notes.append(
            f"{_of_all(off, sum(found.heads for _, found in joins))} begin with {what} and not with the lowest layer "
            f"(first {first}): joined in another order, or from something else"
        )
    return notes


def _of_all(off: Sequence[tuple[str, int, Joins]], total: int) -> str:
    """Return ``436 of 451 joined states (verify)``."""
    phases = and_list(list(dict.fromkeys(phase for phase, _, _ in off)))
    return f"{sum(number for _, number, _ in off):,} of {count(total, 'joined state')} ({phases})"


def lineage_facts(lineage: Lineage) -> dict[str, Any]:
    """Return the totals as plain values; warm-up is included, graph capture is not."""
    joins, read = lineage.joins.values(), _read_from_target(lineage)
    own = [found for found in lineage.inputs.values() if found.own]
    first: Place | None = min((found.first_not_traced for found in read if found.first_not_traced), default=None)
    return {
        "joined_states": sum(found.norms for found in joins),
        "joined_states_hold": sum(found.norms_hold for found in joins),
        "draft_inputs": sum(found.told for found in read),
        "draft_inputs_traced": sum(found.traced for found in read),
        "draft_inputs_not_traced": sum(found.not_traced for found in read),
        "not_traced_since": None if first is None else str(first),
        "decode_inputs": sum(found.inputs for found in own),
        "decode_inputs_traced": sum(found.traced for found in own),
    }
