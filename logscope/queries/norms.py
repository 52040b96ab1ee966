"""``norms``: a fingerprint of every state, which states are joined, and where the draft's input came from.

This module is responsible for setting out the statistics of printed norms and the lineage of states. NaN and inf never
enter a mean: they are counted and pointed at. It must not judge drift between two runs (that is ``diff``) nor call a
broken identity a fault (that is ``check``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from logscope.asking import Summed
from logscope.queries.counts import RELATIVE, Bucket, Cell, Counts, cells_of, together
from logscope.queries.lineage import Followed, Lineage
from logscope.queries.rows import state_row
from logscope.queries.setup import Sizes, hidden_sizes
from logscope.queries.tables import TELLING, add, columns, table, without_empty
from logscope.queries.words import and_list, count, layer_list, most_common, percent, state_name
from logscope.report import Context, Line, Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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


class Norms(Summed):
    """The question behind ``logscope norms``."""

    kinds = (Counts, Lineage)

    def report(self, part: tuple[Counts, Lineage], context: Context) -> Report:
        """Answer."""
        counts, lineage = part
        serving, apart = counts.ordered(serving=True), counts.ordered(serving=False)
        sizes = hidden_sizes(counts)
        report = Report("norms", "", accounting=context.accounting)
        rows = _norm_rows(serving, sizes)
        shown = without_empty(_NORMS, rows)
        title, caption = "rms = norm / sqrt(rows x width), while serving", f"Medians are within {100 * RELATIVE:g} %."
        report.tables["norms"] = table(shown, rows, title=title, caption=caption)
        joins, inputs = ([*each.values()] for each in (lineage.joins, lineage.inputs))
        add(report, "joins", _JOINS, list(map(_join_row, joins)), "joined state against its captures")
        own = any(found.own and found.total("unknown") for found in inputs)
        said = "A decode step reads a row of the draft's last output; only row 0 is printed." if own else None
        add(report, "lineage", _LINEAGE, list(map(_input_row, inputs)), "where the draft's input came from", said)
        title = "in warm-up and graph capture (dummy input), counted nowhere above"
        of_dummies = ("rms_min", "rms_max", "trend", "zero", "digest")
        short = [column for column in _NORMS if column.name not in of_dummies]
        add(report, "not_serving", short, _norm_rows(apart, sizes), title)
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
            report.screen += ["", table(short, rows)]
        report.next = context.command("check")
        return report


def _headline(counts: Counts, serving: Sequence[Bucket], apart: Sequence[Bucket], lineage: Lineage) -> str:
    if not serving and not apart:
        return "no forward pass is printed in this log, so there is no norm to show."
    worst, facts = _first_non_finite(serving or apart), lineage_facts(lineage)
    finite = "all norms are finite"
    if worst is not None:
        bucket, cell = worst
        finite = f"{_named(bucket, cell)} is nan or inf first, at {bucket.place(cell.first('non_finite') or 0)}"
    elif not any(cell.rms.bins for _, cell in cells_of(serving or apart)):
        finite = "no norm is printed"
    parts = [(worst is not None, finite)]
    if checked := facts["joined_states"]:
        held = facts["joined_states_hold"]
        parts.append((held < checked, f"{held:,} of {count(checked, 'joined state')} have the norm of their captures"))
    told, traced = facts["draft_inputs"], facts["draft_inputs_traced"]
    if told and all(found.explained for found in _read_from_target(lineage)):
        parts.append((False, f"the draft reads the state joined before it in {traced:,} of {count(told, 'pass')}"))
    elif told:
        not_traced = f"{told - traced:,} of {count(told, 'draft input')}"
        parts.append((True, f"{not_traced} are not the state joined before them, since {facts['not_traced_since']}"))
    parts += [(True, said) for said in _variant_notes(serving, _writers(counts, serving))[:1]]
    # What is wrong comes first.
    words = [said for _, said in sorted(parts, key=lambda part: not part[0])]
    return f"{'' if serving else 'no serving pass; '}{'; '.join(words)}."


def _named(bucket: Bucket, cell: Cell) -> str:
    return state_name(cell.event, cell.layer, bucket.key.role)


def _norm_rows(buckets: Iterable[Bucket], sizes: Sizes) -> list[dict[str, Any]]:
    """Return one row for each kind of record that prints a norm, in the order of the pass."""
    printed = [each for each in cells_of(buckets) if each[1].rms.bins or each[1].of("non_finite") or each[1].of("zero")]
    return [state_row(bucket, cell, sizes) | {"site": bucket.key.site} for bucket, cell in printed]


def _read_from_target(lineage: Lineage) -> list[Followed]:
    """Return the inputs that should be the target's joined state."""
    return [inputs for inputs in lineage.inputs.values() if not inputs.own]


def _followed_row(found: Followed) -> dict[str, Any]:
    return dict(zip(("file", "segment", "source", "phase"), found.key, strict=True)) | {"warmup": found.total("warmup")}


def _join_row(found: Followed) -> dict[str, Any]:
    """Return what is known of the joined states of one phase, as a row."""
    layers, norms, heads = found.mostly("joined"), found.total("norm"), found.total("head")
    norm_off, head_off = found.place("norm", value=False), found.place("head", value=False)
    return _followed_row(found) | {
        "passes": found.total("pass"),
        "joined": layer_list(layers) if layers is not None else "not shown by norms",
        "norm": f"{found.held('norm'):,} of {norms:,}" if norms else "not checked",
        "worst": f"{found.worst:.1e}" if norms else "",
        "head": f"{found.held('head'):,} of {heads:,}" if heads else "not printed",
        "first_norm_off": norm_off and str(norm_off),
        "first_head_off": head_off and str(head_off),
    }


def _input_row(found: Followed) -> dict[str, Any]:
    """Return what is known of the inputs of one phase of the draft, as a row."""
    told, since = found.told, found.place("off")
    return _followed_row(found) | {
        "reads": "draft's own output" if found.own else "target's joined state",
        "inputs": found.total("pass"),
        "traced": found.total("traced"),
        "share": percent(found.total("traced"), told) if told else "",
        "by": ", ".join(f"{how} {number:,}" for how, number in found.numbers("traced").items()),
        "not_traced": found.total("off"),
        "cannot_tell": found.total("unknown"),
        "cannot_tell_why": found.numbers("unknown"),
        "since": "" if since is None else str(since),
        "stale": _stale(found),
        "fewer_rows": found.total("fewer"),
    }


def _stale(found: Followed) -> dict[int, int]:
    """Return how many inputs are a known state of an earlier pass, by how many passes."""
    return {ago: number for ago, number in found.numbers("off").items() if ago is not None}


def state_lines(counts: Counts, buckets: Sequence[Bucket], lineage: Lineage) -> list[Line]:
    """Return what is to be said first of states: whether the joins are right, what the draft reads, nan, ranks."""
    if not buckets:
        return []
    writers = _writers(counts, buckets)
    total = sum(found.total("norm") for found in lineage.joins.values())
    printed = any(cell.rms.bins for _, cell in cells_of(buckets))
    held = f"the captures of its pass, by norm, in all {total:,}"
    joined = [Line("error", "joined", said) for said in _join_notes(lineage)] or (
        [Line("ok", "joined", held) if total else
         Line("unknown", "joined", "no norm of a joined state and its captures is printed")] * bool(lineage.joins)
    )  # fmt: skip
    values = [
        *(Line("error", "values", said) for said in _non_finite_notes(buckets)),
        *(Line("warning", "values", said) for said in _zero_notes(buckets)),
    ] or [Line("ok", "values", "all finite, none zero") if printed else Line("unknown", "values", "no norm is printed")]
    ranks = [Line("error", "ranks", said) for said in _variant_notes(buckets, writers)]
    same = Line("ok", "ranks", "1 writer" if writers == 1 else f"{writers} writers print the same")
    lines = [*joined, *_reads_line(lineage), *values]
    # Where writers differ, the rest may only follow from it.
    lines = [*ranks, *lines] if ranks else [*lines, same]
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


def _reads_line(lineage: Lineage) -> list[Line]:
    read = _read_from_target(lineage)
    off = [found for found in read if found.total("off") and not found.explained]
    if off:
        found = max(off, key=lambda each: each.total("off"))
        ago = most_common(_stale(found))
        what = "another state than the joined one" if ago is None else f"the state joined {ago} passes before its own"
        what = "the previous pass's state" if ago == 1 else what
        number = f"{found.total('off'):,} of {found.told:,} {found.key[3]} passes"
        return [Line("error", "draft reads", f"{what} since {found.place('off')} ({number})")]
    told, traced = sum(found.told for found in read), sum(found.total("traced") for found in read)
    if told:
        rest = "; the others kept accepted rows only (spec v1)" if traced < told else ""
        number = f"all {told:,} passes" if traced == told > 1 else f"{traced:,} of {count(told, 'pass')}"
        return [Line("ok", "draft reads", f"the state joined before it in {number}{rest}")]
    said = "no input and joined state stand together to compare"
    return [Line("unknown", "draft reads", said)] if read else []


def _first_non_finite(buckets: Iterable[Bucket]) -> tuple[Bucket, Cell] | None:
    """Return the record kind whose first nan or inf stands first in its file, None when all is finite."""
    bad = [each for each in cells_of(buckets) if each[1].total("non_finite")]
    return min(bad, key=lambda each: (each[1].first("non_finite"), each[0].key.file), default=None)


def _non_finite_notes(buckets: Sequence[Bucket]) -> list[str]:
    """Say where nan or inf begins, how often, and what is still finite before it."""
    worst = _first_non_finite(buckets)
    if worst is None:
        return []
    bucket, cell = worst
    kind = (*bucket.key[:4], cell.event, cell.layer)
    same = [other for each, other in cells_of(buckets) if (*each.key[:4], other.event, other.layer) == kind]
    bad, total = sum(other.total("non_finite") for other in same), sum(other.total("record") for other in same)
    finite, others = (
        [_named(bucket, each) for each in bucket.cells.values()
         if each.captured and each is not cell and bool(each.total("non_finite")) is odd]
        for odd in (False, True)
    )  # fmt: skip
    after = f", and {and_list(others)} with it" if others else ""
    before = f"; {and_list(finite)} {'stays' if len(finite) == 1 else 'stay'} finite" if finite else ""
    left_out = count(sum(other.total("non_finite") for _, other in cells_of(buckets)), "norm is", "norms are")
    since = f"since {bucket.place(cell.first('non_finite') or 0)}, in {bad:,} of {count(total, 'pass')}"
    return [f"{_named(bucket, cell)} is nan or inf {since}{after}{before}; {left_out} left out of every statistic"]


def _zero_notes(buckets: Sequence[Bucket]) -> list[str]:
    """Say which states are all zero."""
    return [
        f"{_named(bucket, cell)} is all zero in {count(cell.total('zero'), f'{bucket.key.phase} pass')} (first "
        f"{bucket.place(first)})"
        for bucket, cell in cells_of(buckets)
        if (first := cell.first("zero")) is not None
    ]


def _variant_notes(buckets: Sequence[Bucket], writers: int) -> list[str]:
    """Say that writers differ, in which state first, and who does where prefixes name it; then each kind of state."""
    cells = [(cell.first("variant"), bucket, cell) for bucket, cell in cells_of(buckets)]
    odd = [(first, bucket, cell) for first, bucket, cell in cells if first is not None]
    if not odd:
        return []
    first, bucket, cell = min(odd, key=lambda each: each[0])
    names = sorted({name for _, _, each in odd for name in each.of("variant") if name})
    who = f"{and_list(names[:4])} of {writers} writers differ" if names else f"{writers} writers differ"
    some = {id(each): each for _, each, _ in odd}.values()
    passes = f"{sum(each.total('odd') for each in some):,} of {sum(each.passes for each in some):,} passes"
    return [
        f"{who}, first in {_named(bucket, cell)} at {bucket.place(first)}, in {passes}",
        *(
            f"{count(cell.total('variant'), 'copy differs', 'copies differ')} from what the other writers print of "
            f"{_named(bucket, cell)} in {bucket.key.phase} (first {bucket.place(first)})"
            for first, bucket, cell in odd
        ),
    ]


def lineage_notes(lineage: Lineage) -> list[str]:
    """Say how many of the draft's inputs are not the joined state before them, since when, and what they are."""
    notes = []
    for found in _read_from_target(lineage):
        off, stale = found.total("off"), _stale(found)
        said = (
            f"{off:,} of {count(found.told, f'{found.key[3]} input')} of the draft {'is' if off == 1 else 'are'} not "
            "the joined state of the target pass before, "
            f"since {found.place('off')} (joined at {found.place('source')})"
        )
        if stale:
            ago = most_common(stale)
            passes = "target pass" if ago == 1 else "target passes"
            said += f"; {stale[ago]:,} of them equal the state joined {ago} {passes} earlier: stale"
        elif found.explained:
            said += "; accepted rows only, compared by row 0: it differs where request 0 has just finished (spec v1)"
        notes += [said] if off else []
    return notes


def _join_notes(lineage: Lineage) -> list[str]:
    """Say where joined states are not their captures, or begin with another one than the lowest."""
    notes, every = [], together(lineage.joins.values())
    for kind in ("norm", "head"):
        off = [found for found in lineage.joins.values() if found.numbers(kind).get(False)]
        if not off:
            continue
        phases = and_list(list(dict.fromkeys(found.key[3] for found in off)))
        bad = f"{every.numbers(kind)[False]:,} of {count(every.total(kind), 'joined state')} ({phases})"
        first = min(place for found in off if (place := found.place(kind, value=False)))
        layer = every.mostly("head of")
        said = f"do not have the norm of their captures (first {first}): something else was joined"
        if kind == "head":
            said = (
                f"begin with {'no capture' if layer is None else layer_list([layer])} and not with the lowest layer "
                f"(first {first}): joined in another order, or from something else"
            )
        notes.append(f"{bad} {said}")
    return notes


def lineage_facts(lineage: Lineage) -> dict[str, Any]:
    """Return the totals as plain values; warm-up is included, graph capture is not."""
    joins, read = lineage.joins.values(), _read_from_target(lineage)
    own = [found for found in lineage.inputs.values() if found.own]
    first = min((place for found in read if (place := found.place("off"))), default=None)
    return {
        "joined_states": sum(found.total("norm") for found in joins),
        "joined_states_hold": sum(found.held("norm") for found in joins),
        "draft_inputs": sum(found.told for found in read),
        "draft_inputs_traced": sum(found.total("traced") for found in read),
        "draft_inputs_not_traced": sum(found.total("off") for found in read),
        "not_traced_since": None if first is None else str(first),
        "decode_inputs": sum(found.total("pass") for found in own),
        "decode_inputs_traced": sum(found.total("traced") for found in own),
    }
