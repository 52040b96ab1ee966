"""``norms``: a fingerprint of every state, which states are joined, and where the draft's input came from.

This module is responsible for setting out the statistics of printed norms and the lineage of states. NaN and inf never
enter a mean: they are counted and pointed at. It must not judge drift between two runs (that is ``diff``) nor call a
broken identity a fault (that is ``check``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from logscope.model import CAPTURE_EVENTS, ForwardPass
from logscope.queries.fold import RELATIVE
from logscope.queries.lineage import Lineage
from logscope.queries.shapes import state_name
from logscope.queries.tables import TELLING, table, without_empty
from logscope.queries.tally import Tally
from logscope.queries.words import and_list, count, layer_list, most_common, percent, source_name
from logscope.report import Column, Context, Item, Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logscope.model import Place
    from logscope.queries.lineage import Inputs, Joins
    from logscope.queries.tally import Bucket, Cell

_NORMS = [
    *TELLING,
    Column("during"),
    Column("role", always=True),
    Column("phase", always=True),
    Column("state", always=True),
    Column("count", align="right"),
    Column("rms_min", "rms min", align="right", always=True),
    Column("rms_median", "median", align="right", always=True),
    Column("rms_max", "max", align="right", always=True),
    Column("trend", always=True),
    Column("non_finite", "nan or inf", align="right", always=True),
    Column("zero", align="right"),
    Column("digest"),
]
_JOINS = [
    *TELLING,
    Column("phase", always=True),
    Column("passes", align="right"),
    Column("warmup", "in warm-up", align="right"),
    Column("joined", "joined states", always=True),
    Column("norm", "norm identity", always=True),
    Column("worst", "worst relative"),
    Column("head", "begins with the lowest", always=True),
]
_LINEAGE = [
    *TELLING,
    Column("phase", always=True),
    Column("inputs", align="right", always=True),
    Column("traced", align="right", always=True),
    Column("share", align="right", always=True),
    Column("not_traced", "not traced", align="right", always=True),
    Column("since", "not traced since", always=True),
    Column("cannot_tell", "cannot tell", align="right"),
    Column("reads"),
    Column("by"),
    Column("warmup", "in warm-up", align="right"),
]
TARGET = "target's joined state"
OWN = "draft's own output"


class Norms:
    """The fold behind ``logscope norms``."""

    kind: ClassVar[str] = "norms"

    def __init__(self) -> None:
        self._tally = Tally()
        self._lineage = Lineage()

    def see(self, item: Item) -> None:
        """Take one item."""
        self._tally.see(item)
        if isinstance(item, ForwardPass):
            segment = self._tally.segments.get((item.file, item.segment))
            self._lineage.see(item, None if segment is None else segment.topk)

    def report(self, context: Context) -> Report:
        """Answer."""
        tally, lineage = self._tally, self._lineage
        serving = [bucket for bucket in tally.ordered() if bucket.key.during == "serving"]
        apart = [bucket for bucket in tally.ordered() if bucket.key.during != "serving"]
        report = Report("norms", "", accounting=context.accounting)
        rows = [row for bucket in serving for row in norm_rows(bucket)]
        inexact = any(not row["median_exact"] for row in rows)
        report.tables["norms"] = table(
            without_empty(_NORMS, rows),
            rows,
            title="rms = norm / sqrt(rows x width), while serving",
            caption=f"Medians marked by many values are within {100 * RELATIVE:g} %." if inexact else None,
            optional=("file", "segment", "source", "site", "during"),
        )
        joins = [join_row(key, found) for key, found in lineage.joins.items()]
        if joins:
            columns = without_empty(_JOINS, joins)
            report.tables["joins"] = table(columns, joins, title="joined state against its captures")
        inputs = [input_row(key, found) for key, found in lineage.inputs.items()]
        if inputs:
            columns = without_empty(_LINEAGE, inputs)
            own = any(found.own and found.cannot_tell for found in lineage.inputs.values())
            report.tables["lineage"] = table(
                columns,
                inputs,
                title="where the draft's input came from",
                caption="A decode step reads a row of the draft's last output; only row 0 is printed." if own else None,
            )
        others = [row for bucket in apart for row in norm_rows(bucket)]
        if others:
            title = "in warm-up and graph capture (dummy input), counted nowhere above"
            report.tables["not_serving"] = table(_short(others), others, title=title)
        report.notes = [
            *non_finite_notes(serving or apart),
            *zero_notes(serving or apart),
            *variant_notes(serving),
            *lineage_notes(lineage),
            *join_notes(lineage),
        ]
        if any(row["derived"] for row in rows):
            report.notes.append(
                "norms of some records are computed from the printed mean and std: the norm is not printed"
            )
        report.headline = self._headline(serving, apart)
        report.facts = lineage_facts(lineage)
        return report

    def _headline(self, serving: Sequence[Bucket], apart: Sequence[Bucket]) -> str:
        if not serving and not apart:
            return "no forward pass is printed in this log, so there is no norm to show."
        worst = first_non_finite(serving or apart)
        finite = "all norms are finite" if serving or apart else ""
        if worst is not None:
            bucket, cell = worst
            finite = f"{state_name(cell, bucket.key.role)} is nan or inf first, at {cell.first_non_finite}"
        elif not any(cell.rms.count for bucket in serving or apart for cell in bucket.cells.values()):
            finite = "no norm is printed"
        parts = [(worst is not None, finite)]
        facts = lineage_facts(self._lineage)
        checked, held = facts["joined_states"], facts["joined_states_hold"]
        if checked:
            parts.append(
                (held < checked, f"{held:,} of {count(checked, 'joined state')} have the norm of their captures")
            )
        told, traced, since = facts["draft_inputs"], facts["draft_inputs_traced"], facts["not_traced_since"]
        if told and all(found.explained for found in _read_from_target(self._lineage)):
            parts.append((False, f"the draft reads the state joined before it in {traced:,} of {count(told, 'pass')}"))
        elif told:
            not_traced = f"{told - traced:,} of {count(told, 'draft input')}"
            parts.append((True, f"{not_traced} are not the state joined before them, since {since}"))
        # What is wrong comes first.
        words = [said for _, said in sorted(parts, key=lambda part: not part[0])]
        prefix = "" if serving else "no serving pass; "
        return f"{prefix}{'; '.join(words)}."


def norm_rows(bucket: Bucket) -> list[dict[str, Any]]:
    """Return one row for each kind of record that prints a norm, in the order of the pass."""
    key = bucket.key
    rows = []
    for cell in bucket.cells.values():
        rms = cell.rms
        if not rms.count and not cell.non_finite and not cell.zero:
            continue
        change = rms.change
        rows.append(
            {
                "file": key.file,
                "segment": key.segment,
                "source": source_name(key.group),
                "site": key.site,
                "during": key.during,
                "role": key.role,
                "phase": key.phase,
                "state": state_name(cell, key.role),
                "event": cell.event,
                "layer": cell.layer,
                "count": cell.count,
                "rms_min": rms.smallest,
                "rms_median": rms.median,
                "median_exact": rms.exact,
                "rms_max": rms.largest,
                "change": change,
                "trend": "" if rms.count < 16 else "steady" if change is None else f"{100 * change:+.1f} %",
                "non_finite": cell.non_finite,
                "first_non_finite": None if cell.first_non_finite is None else str(cell.first_non_finite),
                "zero": cell.zero,
                "without_norm": cell.without_norm,
                "damaged": cell.damaged,
                "derived": cell.derived,
                "digest": str(cell.digest),
            }
        )
    return rows


def _short(rows: Sequence[dict[str, Any]]) -> list[Column]:
    names = (
        "file",
        "segment",
        "source",
        "site",
        "during",
        "role",
        "phase",
        "state",
        "count",
        "rms_median",
        "non_finite",
    )
    return without_empty([column for column in _NORMS if column.name in names], rows)


def _read_from_target(lineage: Lineage) -> list[Inputs]:
    """Return the inputs that should be the target's joined state."""
    return [inputs for inputs in lineage.inputs.values() if not inputs.own]


def join_row(key: tuple[Any, ...], found: Joins) -> dict[str, Any]:
    """Return what is known of the joined states of one phase, as a row."""
    file, segment, group, phase = key
    layers = most_common(found.joined)
    return {
        "file": file,
        "segment": segment,
        "source": source_name(group),
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
    file, segment, group, phase = key
    told = found.told
    return {
        "file": file,
        "segment": segment,
        "source": source_name(group),
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


def first_non_finite(buckets: Iterable[Bucket]) -> tuple[Bucket, Cell] | None:
    """Return the record kind whose first nan or inf stands first in its file, None when all is finite."""
    bad = [(bucket, cell) for bucket in buckets for cell in bucket.cells.values() if cell.first_non_finite is not None]
    return min(bad, key=lambda each: (each[1].first_non_finite or each[1].first)[::-1]) if bad else None


def non_finite_notes(buckets: Sequence[Bucket]) -> list[str]:
    """Say where nan or inf begins, how often, and what is still finite before it."""
    worst = first_non_finite(buckets)
    if worst is None:
        return []
    bucket, cell = worst
    name = state_name(cell, bucket.key.role)
    same = [
        other
        for each in buckets
        if each.key[:4] == bucket.key[:4]
        for other in each.cells.values()
        if (other.event, other.layer) == (cell.event, cell.layer)
    ]
    bad, total = sum(other.non_finite for other in same), sum(other.count for other in same)
    finite = [
        state_name(other, bucket.key.role)
        for other in bucket.cells.values()
        if other.event in CAPTURE_EVENTS and not other.non_finite
    ]
    others = [
        state_name(other, bucket.key.role)
        for other in bucket.cells.values()
        if other is not cell and other.non_finite and other.event in CAPTURE_EVENTS
    ]
    after = f", and {and_list(others)} with it" if others else ""
    before = f"; {and_list(finite)} {'stays' if len(finite) == 1 else 'stay'} finite" if finite else ""
    left_out = sum(other.non_finite for each in buckets for other in each.cells.values())
    left = f"{count(left_out, 'norm is', 'norms are')} left out of every statistic"
    since = f"since {cell.first_non_finite}, in {bad:,} of {count(total, 'pass')}"
    return [f"{name} is nan or inf {since}{after}{before}; {left}"]


def zero_notes(buckets: Sequence[Bucket]) -> list[str]:
    """Say which states are all zero."""
    return [
        f"{state_name(cell, bucket.key.role)} is all zero in {count(cell.zero, f'{bucket.key.phase} pass')} "
        f"(first {cell.first_zero})"
        for bucket in buckets
        for cell in bucket.cells.values()
        if cell.zero
    ]


def variant_notes(buckets: Sequence[Bucket]) -> list[str]:
    """Say which copies differ between writers."""
    return [
        f"{count(cell.variants, 'copy differs', 'copies differ')} from what the other writers print of "
        f"{state_name(cell, bucket.key.role)} in {bucket.key.phase} (first {cell.first_variant})"
        for bucket in buckets
        for cell in bucket.cells.values()
        if cell.variants
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
        layers: dict[int | str | None, int] = {}
        for _, _, found in off:
            for layer, number in found.heads_of.items():
                layers[layer] = layers.get(layer, 0) + number
        layer = most_common(layers)
        what = "no capture" if layer == "none" else layer_list([layer])
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
