"""``shapes``: every shape with its axes named, and every pair a reader would stumble over explained.

This module is responsible for telling rows from states: two shapes may differ because other tokens were read (rows),
because other hidden states were joined (width), or because the server was configured otherwise. It must not judge
which of them is wrong; where an error in the log says what was due, it names the state that is too many or missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from logscope.model import CAPTURE_EVENTS, ForwardPass, Place, states
from logscope.queries.captures import in_run
from logscope.queries.setup import hidden_facts, hidden_of, hidden_sizes
from logscope.queries.tables import TELLING, table
from logscope.queries.tally import Tally
from logscope.queries.widths import WidthErrors
from logscope.queries.words import (
    and_list,
    axes,
    count,
    layer_list,
    layer_name,
    most_common,
    source_name,
    span,
    whole_numbers,
    width_words,
)
from logscope.report import Column, Context, Item, Report

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logscope.model import Segment
    from logscope.queries.setup import Sizes
    from logscope.queries.tally import Bucket, Cell

MAX_LISTED = 200
# A prompt read in pieces of an unknown size is only claimed for pieces at least this long.
MIN_CHUNK = 256

_KINDS = [
    *TELLING,
    Column("what", always=True),
    Column("phase", always=True),
    Column("count", align="right"),
    Column("rows", align="right", always=True),
    Column("width", always=True),
    Column("rows_are", "rows are"),
]
_SHAPES = [
    *TELLING,
    Column("shape", always=True),
    Column("seen_as", "seen as"),
    Column("phases", always=True),
    Column("count", align="right", always=True),
    Column("first", "first at", always=True),
]


class Shapes:
    """The fold behind ``logscope shapes``."""

    kind: ClassVar[str] = "shapes"

    def __init__(self) -> None:
        self._tally = Tally()
        self._errors = WidthErrors()
        self._last_target: dict[tuple[Any, ...], ForwardPass] = {}
        # (file, segment) -> draft_extend passes that kept fewer rows than were verified: [passes, rows, of, places]
        self._kept: dict[tuple[str, int], list[Any]] = {}
        # (file, segment, group) -> the run of extends being read: [rows of each piece, first place]
        self._pieces: dict[tuple[Any, ...], tuple[list[int], Place]] = {}
        self._chunked: dict[tuple[str, int], list[Any]] = {}
        self._embeds: dict[tuple[Any, ...], list[Any]] = {}

    def see(self, item: Item) -> None:
        """Take one item."""
        self._tally.see(item)
        self._errors.see(item)
        if isinstance(item, ForwardPass):
            if item.role == "target":
                self._target(item)
            else:
                self._draft(item)

    def _target(self, item: ForwardPass) -> None:
        where = (item.file, item.segment, item.group)
        self._last_target[where] = item
        rows = item.rows
        if item.phase != "extend" or rows is None:
            self._close_pieces(where)
            return
        pieces, place = self._pieces.get(where, ([], item.place))
        # All pieces but the last are equally long.
        if pieces and (rows > pieces[-1] or pieces[-1] != pieces[0]):
            self._close_pieces(where)
            pieces, place = [], item.place
        pieces.append(rows)
        self._pieces[where] = (pieces, place)

    def _close_pieces(self, where: tuple[Any, ...]) -> None:
        pieces, place = self._pieces.pop(where, ([], None))
        if len(pieces) < 2:
            return
        segment = self._tally.segments.get(where[:2])
        size = segment.server_args.get("chunked_prefill_size") if segment is not None else None
        if pieces[0] != size and (size is not None or pieces[0] < MIN_CHUNK or pieces[1] != pieces[0]):
            return
        seen = self._chunked.get(where[:2])
        if seen is None:
            self._chunked[where[:2]] = [1, list(pieces), place, pieces[0] == size]
        else:
            seen[0] += 1

    def _draft(self, item: ForwardPass) -> None:
        where = (item.file, item.segment, item.group)
        read = item.input
        if read is not None:
            embeds = whole_numbers(read.first[3].fields.get("embeds"))
            if embeds is not None:
                self._embed(item, read.line, embeds)
        target = self._last_target.get(where)
        rows = item.rows
        if item.phase != "draft_extend" or target is None or target.phase != "verify" or rows is None:
            return
        verified = target.rows
        if verified is not None and rows < verified and item.during == "serving":
            seen = self._kept.setdefault(where[:2], [0, rows, verified, target.place, item.place])
            # The clearest example is the one a reader stumbles over: 3 rows beside 4.
            if seen[1] < seen[2] - 1 and rows == verified - 1:
                seen[1:] = rows, verified, target.place, item.place
            seen[0] += 1

    def _embed(self, item: ForwardPass, line: int, embeds: list[int]) -> None:
        key = (item.file, item.segment, item.group, item.phase, item.during, tuple(embeds))
        seen = self._embeds.get(key)
        if seen is not None:
            seen[0] += 1
        elif len(self._embeds) < MAX_LISTED:
            self._embeds[key] = [1, line]

    def report(self, context: Context) -> Report:
        """Answer."""
        tally = self._tally
        for where in list(self._pieces):
            self._close_pieces(where)
        sizes = hidden_sizes(tally)
        buckets = [bucket for bucket in tally.ordered() if bucket.key.during == "serving"]
        apart = [bucket for bucket in tally.ordered() if bucket.key.during != "serving"]
        report = Report("shapes", "", accounting=context.accounting)
        kinds = [row for bucket in buckets or apart for row in self._kind_rows(bucket, sizes)]
        report.tables["kinds"] = table(_KINDS, kinds, title="what each width is, and what its rows are")
        rows, left_out = self._shape_rows(buckets, sizes, ())
        caption = f"{left_out:,} further shapes are counted in the table above only." if left_out else None
        report.tables["shapes"] = table(_SHAPES, rows, title="every shape while serving", caption=caption)
        others, _ = self._shape_rows(apart, sizes, ("during",))
        if others:
            columns = [*TELLING, Column("during"), *_SHAPES[len(TELLING) :]]
            report.tables["not_serving"] = table(columns, others, title="in warm-up and graph capture (dummy input)")
        report.notes = self._explanations(sizes)
        report.headline = self._headline(buckets or apart, sizes, serving=bool(buckets))
        report.facts = {
            "hidden": hidden_facts(sizes),
            "shapes": len(rows) + left_out,
        }
        return report

    def _kind_rows(self, bucket: Bucket, sizes: Sizes) -> list[dict[str, Any]]:
        key = bucket.key
        hidden = hidden_of(bucket, sizes)
        grouped: dict[tuple[str, int], list[tuple[Cell, tuple[int, ...], int]]] = {}
        for cell in bucket.cells.values():
            for shape, (number, _) in cell.shapes.items():
                grouped.setdefault((cell_name(cell, key.role), shape[-1]), []).append((cell, shape, number))
        out = []
        for (what, width), found in grouped.items():
            heights = [shape[0] for _, shape, _ in found if len(shape) > 1]
            layers = list(dict.fromkeys(cell.layer for cell, _, _ in found if cell.event in CAPTURE_EVENTS))
            out.append(
                {
                    "file": key.file,
                    "segment": key.segment,
                    "source": source_name(key.group),
                    "site": key.site,
                    "what": f"{what}, {layer_list(sorted(layers, key=lambda each: -1 if each is None else each))}"
                    if layers
                    else what,
                    "phase": key.phase,
                    "during": key.during,
                    "count": sum(number for _, _, number in found),
                    "rows": span(min(heights), max(heights)) if heights else "",
                    "width": states(width, hidden) if hidden else width_words(width, None),
                    "rows_are": self._rows_are(bucket, found[0][0]),
                }
            )
        return out

    def _rows_are(self, bucket: Bucket, cell: Cell) -> str:
        """Say in words what a row of this kind is, as far as the set-up tells."""
        key = bucket.key
        mode = most_common(cell.modes)
        if mode in ("LAST", "1") and key.role == "draft":
            if key.phase == "decode":
                return f"all rows (mode {mode})"
            return f"the last row of each request (mode {mode})"
        segment = self._tally.segments.get((key.file, key.segment))
        draft_tokens = segment.num_draft_tokens if segment is not None else None
        topk = segment.topk if segment is not None else None
        tokens = f"{draft_tokens} draft tokens" if draft_tokens is not None else "draft tokens"
        if key.phase == "extend":
            return "new tokens of the prompts"
        if key.phase == "verify":
            return f"requests x {tokens}"
        if key.phase == "draft_extend":
            return "accepted tokens only" if (key.file, key.segment) in self._kept else f"requests x {tokens}"
        if key.phase == "decode" and key.role == "draft":
            return f"requests x topk {topk}" if topk is not None else "requests x topk"
        return "requests" if key.phase == "decode" else "not known"

    def _shape_rows(
        self, buckets: Iterable[Bucket], sizes: Sizes, more: tuple[str, ...]
    ) -> tuple[list[dict[str, Any]], int]:
        """Return one row per distinct shape of a run, by width and rows, and how many are left out."""
        found: dict[tuple[Any, ...], dict[str, Any]] = {}
        left_out = 0
        for bucket in buckets:
            key = bucket.key
            hidden = hidden_of(bucket, sizes)
            entries = [
                (shape, cell_name(cell, key.role), number, line)
                for cell in bucket.cells.values()
                for shape, (number, line) in cell.shapes.items()
            ]
            left_out += sum(cell.shapes_left_out for cell in bucket.cells.values())
            for (file, segment, group, phase, during, shape), (number, line) in self._embeds.items():
                if (file, segment, group, phase, during) == (*key[:3], key.phase, key.during) and key.role == "draft":
                    entries.append((shape, "embeds", number, line))
            for shape, name, number, line in entries:
                named = axes(shape, hidden)
                at = (*key[:3], named, *(getattr(key, field) for field in more))
                row = found.get(at)
                if row is None:
                    row = found[at] = {
                        "file": key.file,
                        "segment": key.segment,
                        "source": source_name(key.group),
                        "during": key.during,
                        "shape": named,
                        "sizes": list(shape),
                        "seen_as": {},
                        "phases": {},
                        "count": 0,
                        "line": line,
                    }
                row["count"] += number
                row["line"] = min(row["line"], line)
                row["seen_as"][name] = None
                row["phases"][f"{key.role} {key.phase}".replace("draft draft_extend", "draft_extend")] = None
        rows = sorted(found.values(), key=lambda row: (row["file"], row["segment"], row["sizes"][::-1]))
        for row in rows:
            row["first"] = str(Place(row["file"], row["line"]))
            row["seen_as"] = ", ".join(row["seen_as"])
            row["phases"] = ", ".join(row["phases"])
        return rows[:MAX_LISTED], left_out + max(0, len(rows) - MAX_LISTED)

    # -- what needs words ---------------------------------------------------------------------------------------------

    def _explanations(self, sizes: Sizes) -> list[str]:
        tally = self._tally
        notes = [said for _, said in self._errors.words(tally, sizes)]
        for (file, number), segment in tally.segments.items():
            buckets = [
                bucket
                for bucket in tally.buckets.values()
                if bucket.key[:2] == (file, number) and bucket.key.during == "serving"
            ]
            notes += [in_run(tally, file, number, said) for said in self._within(segment, buckets, sizes)]
        notes += self._between()
        notes += _models(sizes)
        return notes

    def _within(self, segment: Segment, buckets: list[Bucket], sizes: Sizes) -> list[str]:
        """Explain what a reader would stumble over inside one run."""
        notes = []
        where = (segment.file, segment.number)
        draft_tokens = segment.num_draft_tokens
        hidden = next((size.size for key, size in sizes.items() if key[:2] == where), None)
        joins = [(bucket, number, width) for bucket in buckets for number, width in bucket.joins]
        numbers = sorted({number for bucket, number, _ in joins if bucket.key.role == "target" and number})
        for number in numbers:
            if number == draft_tokens:
                sets = [bucket.usual for bucket in buckets if bucket.usual and len(bucket.usual) == number]
                named = f" ({layer_list(sets[0])})" if sets else ""
                notes.append(
                    f"{number} rows and {number} states are different things: verify reads {number} rows = 1 request x "
                    f"{draft_tokens} draft tokens, and {number} states{named} stand side by side in one row"
                    + (f" of {number * hidden}" if hidden else "")
                )
        kept = self._kept.get(where)
        if kept is not None:
            passes, rows, verified, verify_at, kept_at = kept
            read = f"verify reads {count(verified, 'row')}"
            if draft_tokens:
                read = f"verify reads {count(verified // draft_tokens, 'request')} x {draft_tokens} draft tokens"
            notes.append(
                f"{verified} rows and {count(rows, 'row')} of the same width differ in rows, not in states: {read} "
                f"({verify_at}), draft_extend kept {count(rows, 'accepted row')} ({kept_at}); so in "
                f"{count(passes, 'pass')} (spec v1)"
            )
        both = _widths_of_join(buckets)
        if both is not None:
            target, draft = both
            notes.append(
                f"aux concat prints two widths: {states(target, hidden)} is what the target joined, "
                f"{states(draft, hidden)} is the draft's own output (the draft shares the logits processor)"
            )
        read_widths = {
            shape[-1]: bucket.key.phase
            for bucket in buckets
            if bucket.key.role == "draft"
            for cell in bucket.cells.values()
            if cell.event == "forward"
            for shape in cell.shapes
        }
        if hidden and len(read_widths) > 1 and hidden in read_widths:
            wide = max(read_widths)
            notes.append(
                f"the draft reads {states(wide, hidden)} after a target pass, and {hidden} in its decode steps, where "
                "it continues from its own output and needs no fc"
            )
        notes += _ambiguous_rows(buckets)
        notes += _odd_rows(buckets, draft_tokens)
        chunked = self._chunked.get(where)
        if chunked is not None:
            times, pieces, place, known = chunked
            how = f"chunked_prefill_size is {pieces[0]}" if known else "they follow each other and are equally long"
            notes.append(
                f"{len(pieces)} extend passes of {span(min(pieces), max(pieces))} rows from {place} are one prompt of "
                f"{sum(pieces):,} rows read in pieces ({how}), not more captures; norms of pieces add in quadrature"
                + (f"; so {times} times" if times > 1 else "")
            )
        return notes

    def _between(self) -> list[str]:
        """Explain rows that differ between runs because the servers were configured otherwise."""
        tokens: dict[int, list[str]] = {}
        for (_, number), segment in self._tally.segments.items():
            if segment.num_draft_tokens is not None:
                tokens.setdefault(segment.num_draft_tokens, []).append(str(number))
        if len(tokens) < 2:
            return []
        parts = [
            f"{draft_tokens} rows a request in run{'s' * (len(runs) > 1)} {and_list(runs)}"
            for draft_tokens, runs in tokens.items()
        ]
        numbers = and_list([str(each) for each in tokens])
        why = "a difference of configuration in rows, not of states and not an error"
        return [f"verify reads {and_list(parts)}, because num_draft_tokens is {numbers}: {why}"]

    def _headline(self, buckets: list[Bucket], sizes: Sizes, *, serving: bool) -> str:
        if not buckets:
            return "no forward pass is printed in this log, so there is no shape to explain."
        hidden = sorted({size.size for size in sizes.values()})
        joined: list[str] = []
        for bucket in buckets:
            if bucket.key.role == "target":
                size = hidden_of(bucket, sizes)
                joined += [states(width, size) for _, width in bucket.joins if width is not None]
        rows = [
            f"{bucket.key.phase} {span(bucket.rows_min, bucket.rows_max)}"
            for bucket in buckets
            if bucket.key.role == "target" and bucket.rows_min is not None
        ]
        parts = [f"hidden {and_list([str(size) for size in hidden])}"] if hidden else ["hidden size not known"]
        if joined:
            parts.append(f"joined {and_list(list(dict.fromkeys(joined)))}")
        if rows:
            parts.append(f"target rows: {', '.join(dict.fromkeys(rows))}")
        return ("" if serving else "no serving pass; ") + "; ".join(parts) + "."


def cell_name(cell: Cell, role: str) -> str:
    """Return what a record holds, in words: the event names of two dialects mean the same tensor."""
    if cell.event in CAPTURE_EVENTS:
        return "hidden capture"
    if cell.event == "aux_concat":
        return "joined state" if role == "target" else "draft output"
    return {
        "forward": "draft input",
        "fc_output": "fc output",
        "forward_end": "target output",
    }.get(cell.event, cell.event.replace("_", " "))


def state_name(cell: Cell, role: str) -> str:
    """Return the same with the layer of a capture."""
    return layer_name(cell.event, cell.layer) if cell.event in CAPTURE_EVENTS else cell_name(cell, role)


def _widths_of_join(buckets: list[Bucket]) -> tuple[int, int] | None:
    """Return the widths of the target's and the draft's ``aux_concat`` where they differ."""
    widths: dict[str, dict[int, int]] = {"target": {}, "draft": {}}
    for bucket in buckets:
        for (_, width), (passes, _) in bucket.joins.items():
            if width is not None:
                counts = widths[bucket.key.role]
                counts[width] = counts.get(width, 0) + passes
    target, draft = most_common(widths["target"]), most_common(widths["draft"])
    return (target, draft) if target is not None and draft is not None and target != draft else None


def _heights(bucket: Bucket) -> dict[int, int]:
    """Return the rows of the captures of a bucket, each with the first line where they stand."""
    rows: dict[int, int] = {}
    for cell in bucket.cells.values():
        if cell.event in CAPTURE_EVENTS:
            for shape, (_, line) in cell.shapes.items():
                if len(shape) > 1:
                    rows[shape[0]] = min(line, rows.get(shape[0], line))
    return rows


def _ambiguous_rows(buckets: list[Bucket]) -> list[str]:
    """Name a row count that is an extend in one place and a verify in another: rows alone do not tell them apart."""
    extend: dict[int, tuple[Bucket, int]] = {}
    verify: dict[int, tuple[Bucket, int]] = {}
    for bucket in buckets:
        into = {"extend": extend, "verify": verify}.get(bucket.key.phase)
        if bucket.key.role == "target" and into is not None:
            for rows, line in _heights(bucket).items():
                into.setdefault(rows, (bucket, line))
    shared = sorted(extend.keys() & verify.keys())
    if not shared:
        return []
    rows = shared[0]
    (first, first_line), (other, other_line) = extend[rows], verify[rows]
    how = and_list(sorted({str(most_common(first.evidence)), str(most_common(other.evidence))}))
    at, there = Place(first.key.file, first_line), Place(other.key.file, other_line)
    tokens = count(rows, "new token")
    return [f"{count(rows, 'row')} can be either: an extend of {tokens} at {at}, a verify at {there} (known by {how})"]


def _odd_rows(buckets: list[Bucket], draft_tokens: int | None) -> list[str]:
    """Name target passes outside extend whose rows are no multiple of the draft tokens."""
    notes = []
    for bucket in buckets:
        if bucket.key.role != "target" or bucket.key.phase not in ("decode", "unknown") or not draft_tokens:
            continue
        odd = {rows: line for rows, line in _heights(bucket).items() if rows % draft_tokens}
        if odd:
            rows, line = min(odd.items(), key=lambda each: each[1])
            notes.append(
                f"{count(rows, 'row')} at {Place(bucket.key.file, line)} {'is' if rows == 1 else 'are'} no multiple of "
                f"{draft_tokens} draft tokens: a plain decode step or a round without a draft, no verify"
            )
    return notes


def _models(sizes: Sizes) -> list[str]:
    """Say when models of different hidden size print into one run."""
    seen: dict[tuple[str, int], dict[int, str]] = {}
    for (file, segment, site), size in sizes.items():
        if site is not None:
            seen.setdefault((file, segment), {}).setdefault(size.size, site)
    several = [[f"{site} is {size} wide" for size, site in found.items()] for found in seen.values() if len(found) > 1]
    return [f"{and_list(widths)}: different models, counted apart" for widths in several]
