"""Counts as the rows of tables: one of a bucket of passes, one of a kind of record.

This module is responsible for what every question tells of passes and of states, so that a number has one name and one
meaning in all of them. It must not know which table a row stands in.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from logscope.model import states
from logscope.queries.counts import TREND, Bucket, Cell, cells_of
from logscope.queries.words import EMBEDDING, and_list, axes, span, state_name, width_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logscope.queries.setup import Sizes


def pass_row(bucket: Bucket, sizes: Sizes) -> dict[str, Any]:
    """Return what is known of the passes of a bucket, as a row; what only the target has is null for the draft."""
    target, usual, modes = bucket.key.role == "target", bucket.usual, bucket.of_event("aux_concat").numbers("mode")
    per_pass = len(usual) if usual is not None else _per_pass(bucket)
    return {
        **bucket.key._asdict(),
        "passes": bucket.passes,
        "incomplete": bucket.total("incomplete"),
        "rows_min": bucket.rows[0],
        "rows_max": bucket.rows[1],
        "hidden_captures": bucket.captures if target else None,
        "per_pass": per_pass if target else None,
        "layers": layers_cell(usual) if usual is not None else "varies" if bucket.sets else "",
        "joined": "; ".join(joined_words(bucket, sizes)),
        "mode": ", ".join(sorted(modes, key=lambda mode: -modes[mode])),
        "copies": bucket.copies,
        "known_by": bucket.mostly("evidence"),
        "reasons": list(bucket.of("reason"))[:3],
    }


def _per_pass(bucket: Bucket) -> str | None:
    """Return the captures of one pass where these differ: ``3 in 249, 2 in 1``."""
    numbers: Counter[int] = Counter()
    for layers, seen in bucket.sets.items():
        numbers[len(layers)] += seen.number
    return ", ".join(f"{number} in {passes:,}" for number, passes in numbers.most_common()) or None


def state_row(bucket: Bucket, cell: Cell, sizes: Sizes) -> dict[str, Any]:
    """Return what is known of one kind of record of a bucket, as a row; rms = norm / sqrt(rows x width)."""
    rms, shapes, hidden = cell.rms, cell.of("shape"), sizes.of(bucket)
    change, first = rms.change, cell.first("non_finite")
    heights = [shape[0] for shape in shapes if len(shape) > 1]
    by_width: dict[int, list[int]] = {}
    for shape in shapes:
        by_width.setdefault(shape[-1], []).extend(shape[:-1][:1])
    words = [f"{_rows_words(rows)}{width_words(width, hidden)}" for width, rows in by_width.items() if rows]
    words += [axes(shape, hidden) for shape in shapes if len(shape) < 2]
    return {
        **bucket.key._asdict(),
        "site": cell.site,
        "event": cell.event,
        "layer": cell.layer,
        "state": state_name(cell.event, cell.layer, bucket.key.role),
        "count": cell.total("record"),
        "damaged": cell.total("damaged"),
        "copies": cell.mostly("copies"),
        "shapes": "; ".join(words),
        "rows": span(min(heights), max(heights)) if heights else "",
        "width": "; ".join(dict.fromkeys(states(shape[-1], hidden) for shape in shapes)),
        "first": str(bucket.place(cell.first("record") or 0)),
        "rms_min": rms.low if rms.number else None,
        "rms_median": rms.median,
        "rms_max": rms.high if rms.number else None,
        "change": change,
        "trend": "" if rms.number < TREND else "steady" if change is None else f"{100 * change:+.1f} %",
        "non_finite": cell.total("non_finite"),
        "first_non_finite": None if first is None else str(bucket.place(first)),
        "zero": cell.total("zero"),
        "without_norm": cell.total("without_norm"),
        "derived": bool(cell.total("derived")),
        "digest": cell.digest,
    }


def _rows_words(heights: Sequence[int]) -> str:
    height = span(min(heights), max(heights))
    return f"{height} row{'s' * (height != '1')} x "


def layers_cell(layers: Iterable[int | None]) -> str:
    """Return ``embedding, 3, 31, 59``."""
    return ", ".join(EMBEDDING if layer == 0 else "?" if layer is None else str(layer) for layer in layers)


def joined_words(bucket: Bucket, sizes: Sizes) -> list[str]:
    """Return the joined widths of a bucket as k x hidden, the most common first."""
    ordered = sorted(bucket.of("join").items(), key=lambda each: -each[1].number)
    return list(dict.fromkeys(states(width, sizes.of(bucket)) for (_, width), _ in ordered if width is not None))


def same_states(buckets: Iterable[Bucket]) -> list[str]:
    """Say when several logs print the very same states: the files of one run's writers, not several runs."""
    prints: dict[str, list[str]] = {}
    for bucket, cell in cells_of(bucket for bucket in buckets if bucket.key.role == "target"):
        if cell.prints:
            name = f"{bucket.key.phase} {cell.event} {cell.layer} {cell.digest}"
            prints.setdefault(bucket.key.file, []).append(name)
    logs: dict[tuple[str, ...], list[str]] = {}
    for file, names in prints.items():
        logs.setdefault(tuple(sorted(names)), []).append(file)
    return [
        f"{and_list(files)} print the same states: files of one run's writers, or the same work served twice; their "
        "numbers stand apart and are not to be added up"
        for files in logs.values()
        if len(files) > 1
    ]
