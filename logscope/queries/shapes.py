"""``shapes``: every shape with its axes named, and every pair a reader would stumble over explained.

This module is responsible for telling rows from states: two shapes may differ because other tokens were read (rows),
because other hidden states were joined (width), or because the server was configured otherwise. It must not judge
which of them is wrong; where an error in the log says what was due, it names the state that is too many or missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from logscope.asking import Summed
from logscope.model import Place, Segment, states
from logscope.queries.counts import Bucket, Cell, Counts, Seen, cells_of, together
from logscope.queries.setup import Sizes, hidden_sizes
from logscope.queries.sizes import WidthErrors
from logscope.queries.tables import TELLING, columns, table
from logscope.queries.words import and_list, axes, count, layer_list, source_name, span, state_name, width_words
from logscope.report import Context, Line, Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logscope.tables.tables import Tables

MAX_LISTED = 200
# Extends that are looked at for prompts read in pieces.
MAX_EXTENDS = 20_000
# A prompt read in pieces of an unknown size is only claimed for pieces at least this long.
MIN_CHUNK = 256

_KINDS = columns(f"{TELLING} what! phase! count> rows!> width! rows_are")
_SHAPE = "shape! seen_as phases! count!> first=first_at!"
_SHAPES, _NOT_SERVING = columns(f"{TELLING} {_SHAPE}"), columns(f"{TELLING} during {_SHAPE}")


class Extends(dict[tuple[str, int, str], list[tuple["int | None", int]]]):
    """Rows and line of the target's extends by (file, segment, source), in order; None for other passes."""

    @classmethod
    def of(cls, tables: Tables) -> Extends:
        """Take those of a batch."""
        made, names = cls(), ("file", "segment", "group")
        rows = pl.when(pl.col("phase") == "extend").then("rows")
        target = tables.passes.filter(pl.col("role") == "target").select(*names, "line", rows=rows)
        border = pl.col("rows").is_null() & pl.col("rows").shift(fill_value=0).over(names).is_null()
        for file, segment, group, line, number in target.filter(~border).iter_rows():
            where = (tables.files[file], segment, source_name(tables.groups[group]))
            made.setdefault(where, []).append((number, line))
        return made

    @classmethod
    def sum(cls, parts: Iterable[Extends]) -> Extends:
        """Return those of several batches, in their order."""
        made = cls()
        for part in parts:
            for where, extends in part.items():
                known = made.setdefault(where, [])
                known += extends[: MAX_EXTENDS - len(known)]
        return made


class Shapes(Summed):
    """The question behind ``logscope shapes``."""

    kinds = (Counts, WidthErrors, Extends)

    def report(self, part: tuple[Counts, WidthErrors, Extends], context: Context) -> Report:
        """Answer."""
        return _Answer(part, context).report()


def _prompts(extends: Sequence[tuple[int | None, int]]) -> Iterable[tuple[tuple[int, ...], int]]:
    """Yield the rows of the pieces of every prompt that may have been read in pieces, and its first line.

    All pieces but the last are equally long; another pass, or more rows than before, is a border.
    """
    pieces: list[int] = []
    first = 0
    for rows, line in (*extends, (None, 0)):
        if pieces and (rows is None or rows > pieces[-1] or pieces[-1] < pieces[0]):
            if len(pieces) > 1:
                yield tuple(pieces), first
            pieces = []
        if rows is not None:
            first = first if pieces else line
            pieces.append(rows)


class _Answer:
    """The answer while it is made."""

    def __init__(self, part: tuple[Counts, WidthErrors, Extends], context: Context) -> None:
        self._counts, self._errors, self._extends = part
        self._context, self._sizes = context, hidden_sizes(part[0])

    def report(self) -> Report:
        counts, sizes, context = self._counts, self._sizes, self._context
        buckets, apart = counts.ordered(serving=True), counts.ordered(serving=False)
        report = Report("shapes", "", accounting=context.accounting)
        kinds = [row for bucket in buckets or apart for row in self._kind_rows(bucket)]
        report.tables["kinds"] = table(_KINDS, kinds, title="what each width is, and what its rows are")
        rows, left_out = self._shape_rows(buckets)
        caption = f"{left_out:,} further shapes are counted in the table above only." if left_out else None
        report.tables["shapes"] = table(_SHAPES, rows, title="every shape while serving", caption=caption)
        if others := self._shape_rows(apart)[0]:
            title = "in warm-up and graph capture (dummy input)"
            report.tables["not_serving"] = table(_NOT_SERVING, others, title=title)
        errors, explained = [said for _, said in self._errors.words(counts, sizes)], self._explanations()
        report.notes = [*errors, *explained]
        report.headline = _headline(buckets or apart, sizes, serving=bool(buckets))
        report.facts = {"hidden": sizes.facts(), "shapes": len(rows) + left_out}
        lines = [Line("error", "width", said) for said in errors]
        lines.append(Line("ok" if sizes else "unknown", "shapes", report.headline))
        report.screen = [context.heading(), "", *map(context.short, lines)]
        report.screen += ["", table(_KINDS, kinds)] if kinds else []
        notes = [context.short(Line(None, "note", said)) for said in explained[:2]]
        report.screen += ["", *notes] if notes else []
        report.next = context.command("captures")
        return report

    def _kind_rows(self, bucket: Bucket) -> list[dict[str, Any]]:
        key, hidden = bucket.key, self._sizes.of(bucket)
        grouped: dict[tuple[str, int], list[tuple[Cell, tuple[int, ...], int]]] = {}
        for cell in bucket.cells.values():
            for shape, number in cell.numbers("shape").items():
                grouped.setdefault((cell_name(cell, key.role), shape[-1]), []).append((cell, shape, number))
        out = []
        for (what, width), found in grouped.items():
            heights = [shape[0] for _, shape, _ in found if len(shape) > 1]
            layers = list(dict.fromkeys(cell.layer for cell, _, _ in found if cell.captured))
            ordered = layer_list(sorted(layers, key=lambda each: -1 if each is None else each))
            out.append(
                {
                    **key._asdict(),
                    "what": f"{what}, {ordered}" if layers else what,
                    "count": sum(number for _, _, number in found),
                    "rows": span(min(heights), max(heights)) if heights else "",
                    "width": states(width, hidden) if hidden else width_words(width, None),
                    "rows_are": self._rows_are(bucket, found[0][0]),
                }
            )
        return out

    def _rows_are(self, bucket: Bucket, cell: Cell) -> str:
        """Say in words what a row of this kind is, as far as the set-up tells."""
        key, mode = bucket.key, cell.mostly("mode")
        if mode in ("LAST", "1") and key.role == "draft":
            return f"{'all rows' if key.phase == 'decode' else 'the last row of each request'} (mode {mode})"
        segment = self._counts.segments.get(key[:2])
        number, topk = (segment.num_draft_tokens, segment.topk) if segment is not None else (None, None)
        tokens = "draft tokens" if number is None else f"{number} draft tokens"
        fixed = {
            "decode": "requests" if key.role == "target" else f"requests x topk{'' if topk is None else f' {topk}'}",
            "extend": "new tokens of the prompts",
            "verify": f"requests x {tokens}",
            "draft_extend": "accepted tokens only" if self._kept(*key[:2]) else f"requests x {tokens}",
        }
        return fixed.get(key.phase, "not known")

    def _kept(self, *run: Any) -> dict[tuple[int, ...], Seen]:
        """Return what draft passes read that kept accepted rows only: rows, verified rows and where these stand."""
        return together(one for one in self._counts.buckets.values() if one.key[:2] == run).of("kept")

    def _shape_rows(self, buckets: Iterable[Bucket]) -> tuple[list[dict[str, Any]], int]:
        """Return one row per distinct shape of a run, by width and rows, and how many are left out."""
        found: dict[tuple[Any, ...], dict[str, Any]] = {}
        left_out = 0
        for bucket, cell in cells_of(buckets):
            key, name = bucket.key, cell_name(cell, bucket.key.role)
            left_out += cell.left_out.get("shape", 0)
            said = [(name, each) for each in cell.of("shape").items()]
            for name, (shape, seen) in [*said, *(("embeds", each) for each in cell.of("embeds").items())]:
                named = axes(shape, self._sizes.of(bucket))
                where = {each: getattr(key, each) for each in ("file", "segment", "source", "during")}
                told = {"sizes": list(shape), "seen_as": {}, "phases": {}, "count": 0, "line": seen.first}
                row = found.setdefault((*where.values(), named), {**where, "shape": named, **told})
                row["count"] += seen.number
                row["line"] = min(row["line"], seen.first)
                row["seen_as"][name] = None
                row["phases"][f"{key.role} {key.phase}".replace("draft draft_extend", "draft_extend")] = None
        rows = sorted(found.values(), key=lambda row: (row["file"], row["segment"], row["sizes"][::-1]))
        for row in rows:
            row["first"] = str(Place(row["file"], row["line"]))
            row |= {name: ", ".join(row[name]) for name in ("seen_as", "phases")}
        return rows[:MAX_LISTED], left_out + max(0, len(rows) - MAX_LISTED)

    # -- what needs words ---------------------------------------------------------------------------------------------

    def _explanations(self) -> list[str]:
        counts, notes = self._counts, []
        for (file, number), segment in counts.segments.items():
            run = (file, number, "serving")
            served = [one for one in counts.buckets.values() if (*one.key[:2], one.key.during) == run]
            notes += [counts.in_run(file, number, said) for said in self._within(segment, served)]
        return [*notes, *_between(counts), *_models(self._sizes)]

    def _within(self, segment: Segment, buckets: list[Bucket]) -> list[str]:
        """Explain what a reader would stumble over inside one run."""
        notes = []
        where, draft_tokens = (segment.file, segment.number), segment.num_draft_tokens
        known = self._sizes.in_segment(*where)
        hidden = known.size if known is not None else None
        joins = {number for bucket in buckets if bucket.key.role == "target" for number, _ in bucket.of("join")}
        if draft_tokens and draft_tokens in joins:
            sets = [bucket.usual for bucket in buckets if bucket.usual and len(bucket.usual) == draft_tokens]
            named = f" ({layer_list(sets[0])})" if sets else ""
            notes.append(
                f"{draft_tokens} rows and {draft_tokens} states are different things: verify reads {draft_tokens} rows "
                f"= 1 request x {draft_tokens} draft tokens, and {draft_tokens} states{named} stand side by side in one"
                f" row{f' of {draft_tokens * hidden}' if hidden else ''}"
            )
        if kept := self._kept(*where):
            # A reader stumbles over 3 rows beside 4.
            clear = next((each for each in kept if each[0] == each[1] - 1), next(iter(kept)))
            rows, verified, line = clear
            read = f"verify reads {count(verified, 'row')}"
            if draft_tokens:
                read = f"verify reads {count(verified // draft_tokens, 'request')} x {draft_tokens} draft tokens"
            passes = together(buckets).total("kept")
            notes.append(
                f"{verified} rows and {count(rows, 'row')} of the same width differ in rows, not in states: {read} "
                f"({Place(segment.file, line)}), draft_extend kept {count(rows, 'accepted row')} "
                f"({Place(segment.file, kept[clear].first)}); so in {count(passes, 'pass')} (spec v1)"
            )
        by_role = (together(bucket for bucket in buckets if bucket.key.role == role) for role in ("target", "draft"))
        target, draft = ((one.mostly("join") or (None, None))[1] for one in by_role)
        if target is not None and draft is not None and target != draft:
            notes.append(
                f"aux concat prints two widths: {states(target, hidden)} is what the target joined, "
                f"{states(draft, hidden)} is the draft's own output (the draft shares the logits processor)"
            )
        inputs = [bucket.of_event("forward") for bucket in buckets if bucket.key.role == "draft"]
        read_widths = {shape[-1] for each in inputs for shape in each.of("shape")}
        if hidden and len(read_widths) > 1 and hidden in read_widths:
            notes.append(
                f"the draft reads {states(max(read_widths), hidden)} after a target pass, and {hidden} in its decode "
                "steps, where it continues from its own output and needs no fc"
            )
        return [*notes, *_ambiguous_rows(buckets), *_odd_rows(buckets, draft_tokens), *self._pieces(segment)]

    def _pieces(self, segment: Segment) -> list[str]:
        """Say when several extends are one prompt that was read in pieces."""
        size = segment.server_args.get("chunked_prefill_size")
        prompts = [
            (line, pieces)
            for key, extends in self._extends.items() if key[:2] == (segment.file, segment.number)
            for pieces, line in _prompts(extends)
            if pieces[0] == size or (size is None and pieces[0] >= MIN_CHUNK and pieces[1] == pieces[0])
        ]  # fmt: skip
        if not prompts:
            return []
        line, pieces = min(prompts)
        how = f"chunked_prefill_size is {size}" if size is not None else "they follow each other and are equally long"
        rows, place = f"{span(min(pieces), max(pieces))} rows", Place(segment.file, line)
        said = (
            f"{len(pieces)} extend passes of {rows} from {place} are one prompt of {sum(pieces):,} rows read in pieces "
            f"({how}), not more captures; norms of pieces add in quadrature"
        )
        return [said + (f"; so {len(prompts)} times" if len(prompts) > 1 else "")]


def _between(counts: Counts) -> list[str]:
    """Explain rows that differ between runs because the servers were configured otherwise."""
    tokens: dict[int, list[str]] = {}
    for (_, number), segment in counts.segments.items():
        if segment.num_draft_tokens is not None:
            tokens.setdefault(segment.num_draft_tokens, []).append(str(number))
    if len(tokens) < 2:
        return []
    parts = [f"{each} rows a request in run{'s' * (len(runs) > 1)} {and_list(runs)}" for each, runs in tokens.items()]
    numbers = and_list([str(each) for each in tokens])
    why = "a difference of configuration in rows, not of states and not an error"
    return [f"verify reads {and_list(parts)}, because num_draft_tokens is {numbers}: {why}"]


def _headline(buckets: list[Bucket], sizes: Sizes, *, serving: bool) -> str:
    if not buckets:
        return "no forward pass is printed in this log, so there is no shape to explain."
    hidden = sorted({size.size for size in sizes.values()})
    targets = [bucket for bucket in buckets if bucket.key.role == "target"]
    joins = [(width, sizes.of(bucket)) for bucket in targets for _, width in bucket.of("join")]
    joined = [states(width, size) for width, size in joins if width is not None]
    rows = [f"{bucket.key.phase} {span(*bucket.rows)}" for bucket in targets if bucket.rows[0] is not None]
    parts = [f"hidden {and_list([str(size) for size in hidden])}"] if hidden else ["hidden size not known"]
    if joined:
        parts.append(f"joined {and_list(list(dict.fromkeys(joined)))}")
    if rows:
        parts.append(f"target rows: {', '.join(dict.fromkeys(rows))}")
    return ("" if serving else "no serving pass; ") + "; ".join(parts) + "."


def cell_name(cell: Cell, role: str) -> str:
    """Return what a record holds, in words, whatever its layer."""
    return "hidden capture" if cell.captured else state_name(cell.event, cell.layer, role)


def _heights(bucket: Bucket) -> dict[int, int]:
    """Return the rows of the captures of a bucket, each with the first line where they stand."""
    rows: dict[int, int] = {}
    for cell in bucket.cells.values():
        for shape, seen in cell.of("shape").items() if cell.captured else ():
            if len(shape) > 1:
                rows[shape[0]] = min(seen.first, rows.get(shape[0], seen.first))
    return rows


def _ambiguous_rows(buckets: list[Bucket]) -> list[str]:
    """Name a row count that is an extend in one place and a verify in another: rows alone do not tell them apart."""
    found: dict[str, dict[int, tuple[Place, str]]] = {"extend": {}, "verify": {}}
    for bucket in buckets:
        if bucket.key.role == "target" and bucket.key.phase in found:
            for rows, line in _heights(bucket).items():
                found[bucket.key.phase].setdefault(rows, (bucket.place(line), str(bucket.mostly("evidence"))))
    for rows in sorted(found["extend"].keys() & found["verify"].keys())[:1]:
        (at, one), (there, other) = found["extend"][rows], found["verify"][rows]
        said, tokens = f"{count(rows, 'row')} can be either", count(rows, "new token")
        how = and_list(sorted({one, other}))
        return [f"{said}: an extend of {tokens} at {at}, a verify at {there} (known by {how})"]
    return []


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
