"""The rule about ranks: tensor-parallel writers print the same records, so what differs between copies is a fault.

This module is responsible for R101, inside one file (copies of one record; what each rank prints at all) and across
files (each rank's prints in a file of its own). It must not know what the values mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from logscope.model import CAPTURE_EVENTS, Finding, Place
from logscope.queries.words import and_list, count, layer_name, percent
from logscope.rules.evidence import _values_of, add, same
from logscope.rules.registry import Checked, rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logscope.model import Payload
    from logscope.rules.evidence import Array, Life, Onset, View

# Below this two ranks may differ by the order in which they add numbers up (the largest noise of two equal runs).
_NOISE = 2e-4
# Passes two files must share, and the share of them that must have the same form, before they are ranks of one run.
_LEAST_COMMON = 3
_SAME_FORM = 0.95
_MARKED_OR_EQUAL = 0.5
# Passes of another file that are looked for at the beginning of the first.
_LOOKED_FOR = 256
# A record that one writer never prints: so many passes, and more than half of them.
_LEAST_MISSING = 3
# Passes without a copy of every writer, to the end, before a writer has stopped printing: more than the last block of
# a buffer, which a killed server loses.
_LASTING = 17
# Records that a rank is behind the others before it is called silent: more than a buffer of one process holds.
_SILENT = 128
_COUNTED = frozenset({"embed_capture", "layer_capture", "forward_end", "forward", "fc_output"})
Kind = tuple[str, int | None]


class _Printed(NamedTuple):
    """How often a rank printed one kind of record, and the first and the last line."""

    times: int
    first: int
    last: int

    def __add__(self, other: _Printed) -> _Printed:  # type: ignore[override]
        """Return both as one."""
        return _Printed(self.times + other.times, self.first, max(self.last, other.last))


@dataclass
class Passes:
    """The passes of one file in brief, to be compared with the same passes of another file (32 bytes each)."""

    columns: list[Array]  # [passes, (form, shapes, values, line)]
    ranks: set[int]

    def __add__(self, other: Passes) -> Passes:
        """Return both as one."""
        return Passes(self.columns + other.columns, self.ranks | other.ranks)

    @property
    def table(self) -> Array:
        """All passes."""
        return np.concatenate(self.columns) if self.columns else np.zeros((0, 4), np.int64)


@rule(
    "R101",
    "rank-disagreement",
    "error",
    group="ranks",
    needs="several copies of one record: ranks that print to one file, or one file for each rank",
    message="Ranks disagree {little}on {name} in {pass_}: {what}.",
    expected="{expected}",
    actual="{actual}",
    evidence="{lines}; {onset}",
    help="one rank computes, or receives, something else: compare its weights, its device and its collectives",
)
def rank_disagreement(view: View) -> dict[str, Any]:
    """Copies of one record differ between writers, or one writer never prints it."""
    part: dict[str, Any] = {"passes": _brief(view)}
    looked = view.real & ~view.edge & view.compared
    found = _Differing(view)
    for name, mask, little in (("values", found.values, ""), ("noise", found.noise, "by rounding only ")):
        bad, line = found.passes(mask)
        part[name] = view.onset(looked, bad, line, partial(found.detail, mask, little))
    several = view.real & view.complete & ~view.edge & view.clean & (view.expected > 1)
    if several.any():
        part["missing"] = _lacking(view, several)
        part["marked"] = _marked(view)
    return part


class _Differing:
    """The copies that say something else than the usual one: which by more than rounding, and how."""

    def __init__(self, view: View) -> None:
        self.view, table = view, view.differing
        self.record = table["record"].to_numpy() - view.base
        self.line, heads = table["line"].to_numpy(), view.tables.heads
        self.mine, self.theirs = view.taken(self.record), _values_of(table)
        self.norm, self.head = same(self.mine, self.theirs)
        pairs = list(zip(self.mine["head"].tolist(), table["head"].to_list(), strict=True))
        words = {pair: _said(heads[pair[0]], heads[pair[1]]) for pair in set(pairs)}
        self.said = [words[pair] for pair in pairs]
        shape, other = (
            np.array(flags, np.bool_)
            for flags in ([one is None for one in self.said], [bool(one) for one in self.said])
        )
        differs = ~shape & view.usable[self.record] & ((self.norm == 0) | (self.head == 0) | other)
        one, two = self.mine["norm"], self.theirs["norm"]
        with np.errstate(invalid="ignore"):
            apart = np.abs(self.mine["values"] - self.theirs["values"])
            size = np.fmax(np.abs(self.mine["values"]), np.abs(self.theirs["values"])).max(
                axis=1, initial=0.0, where=~np.isnan(apart)
            )
            near = ~(apart > 0.01 * size[:, None]).any(axis=1) & np.isfinite(one) & np.isfinite(two) & ~other
            little = differs & near & (np.abs(one - two) <= _NOISE * np.abs(one))
        self.values, self.noise = differs & ~little, little

    def passes(self, mask: Array) -> tuple[Array, Array]:
        """Return the passes with such a copy, and the line of the first one of each."""
        first = np.full(self.view.size, -1)
        places = np.flatnonzero(mask)
        order = places[np.argsort(self.record[places], kind="stable")][::-1]
        first[self.view.of[self.record[order]]] = order
        return first >= 0, self.line[first] if len(self.line) else first

    def detail(self, mask: Array, little: str, row: int) -> dict[str, Any]:
        """Return what the first such copy of a pass shows."""
        view = self.view
        mine = np.flatnonzero(mask & (view.of[self.record] == row))
        at = int(mine[np.argmin(self.record[mine])])
        place, parts = int(self.record[at]), []
        if self.norm[at] == 0:
            parts.append(f"norm {float(self.mine['norm'][at])} against {float(self.theirs['norm'][at])}")
        if self.head[at] == 0:
            one, two = float(self.mine["values"][at, 0]), float(self.theirs["values"][at, 0])
            parts.append("first values differ" if parts else f"first values {one:.6g} against {two:.6g}")
        parts += [text] if (text := self.said[at]) else []
        differ, copies, ranks = view.writers(place)
        return {
            "little": little,
            "name": view.name(place),
            "what": "; ".join(parts),
            "expected": count(copies, "equal copy", "equal copies"),
            "actual": f"{differ} of {count(copies, 'copy', 'copies')} {'differs' if differ == 1 else 'differ'}"
            + (f" ({', '.join(ranks)})" if ranks else ""),
            "lines": f"lines {view.records['line'][place]} and {self.line[at]}",
        }


def _said(one: Payload, other: Payload) -> str | None:
    """Return in words how two copies differ beside their values; None: in their shape, which is S103's."""
    if one.shape != other.shape:
        return None
    parts = []
    if one.layer != other.layer:
        parts.append(f"{layer_name(one.event, one.layer)} against {layer_name(other.event, other.layer)}")
    if one.mode != other.mode:
        parts.append(f"mode {one.mode} against {other.mode}")
    residual = [payload.fields.get("residual_is_none") for payload in (one, other)]
    if residual[0] != residual[1] and None not in residual:
        parts.append(f"residual_is_none={residual[0]} against {residual[1]}")
    return "; ".join(parts)


def _lacking(view: View, several: Array) -> dict[tuple[str, Kind], Onset]:
    """Return by kind of record, event and layer, the passes in which it has fewer copies than writers."""
    found = {}
    known = view.usable & (view.event >= 0) & several[view.of]
    kinds = 2 * (view.event * 100_000 + view.records["layer"] + 1) + view.target[view.of]
    for number in np.unique(kinds[known]).tolist():
        at = view.lead(known & (kinds == number))
        copies = view.records["copies"][at]

        def detail(row: int, copies: Array = copies) -> dict[str, Any]:
            return {"have": int(copies[row]), "expected": int(view.expected[row])}

        place = int(at[at >= 0][0])
        layer = int(view.records["layer"][place])
        kind = (view.event_name(place), None if layer < 0 else layer)
        onset = view.onset(at >= 0, copies < view.expected, view.records["line"][at], detail)
        found["target" if number % 2 else "draft", kind] = onset
    return found


def _marked(view: View) -> dict[tuple[Any, ...], dict[Kind, dict[int, _Printed]]]:
    """Return what each marked rank prints: by scheduler, kind of record and rank."""
    ranks = np.array([-1 if one.tp_rank is None else one.tp_rank for one in view.tables.prefixes], np.int64)
    prints = view.tables.prints.filter(pl.col("record").is_between(view.base, view.base + len(view.of) - 1))
    record, rank = prints["record"].to_numpy() - view.base, ranks[prints["prefix"].to_numpy()]
    head = prints["head"].cast(pl.Int64).fill_null(pl.Series(view.records["head"][record]))
    columns = {"group": view.group[view.of[record]], "head": head, "rank": rank, "line": prints["line"]}
    kept = pl.DataFrame(columns).filter((rank >= 0) & view.real[view.of[record]])
    line = pl.col("line")
    times = [pl.len(), line.first().alias("first"), line.last().alias("last")]
    made: dict[tuple[Any, ...], dict[Kind, dict[int, _Printed]]] = {}
    for group, said, one, *printed in (
        kept.group_by("group", "head", "rank", maintain_order=True).agg(times).iter_rows()
    ):
        payload = view.tables.heads[said]
        # What a join is, target or draft, only its pass tells.
        if payload.event in _COUNTED:
            kinds = made.setdefault(view.tables.groups[group], {})
            mine = kinds.setdefault((payload.event, payload.layer), {})
            mine[one] = add(mine.get(one), _Printed(*printed))
    return made


@rank_disagreement.checked
def _(part: dict[str, Any], _life: Life) -> Checked:
    return Checked(part["values"].seen)


@rank_disagreement.answer
def _(part: dict[str, Any], life: Life) -> Iterator[Finding]:
    absent = [one for kinds in part.get("marked", {}).values() for one in _absences(kinds, life)]
    if absent and life.rows_may_differ is None:
        yield from absent
        return
    if part["values"].bad and life.copies_known:
        yield rank_disagreement.told(part["values"])
    elif part["noise"].bad:
        yield rank_disagreement.told(part["noise"], severity="note")
    yield from _missing(part.get("missing", {}))


def _absences(kinds: dict[Kind, dict[int, _Printed]], life: Life) -> Iterator[Finding]:
    """Yield the ranks that went silent, else those that lack one kind while they print the rest."""
    ranks = sorted({rank for printed in kinds.values() for rank in printed})
    top = {kind: max(one.times for one in printed.values()) for kind, printed in kinds.items()}
    lacking = {
        rank: {kind: top[kind] - (printed[rank].times if rank in printed else 0) for kind, printed in kinds.items()}
        for rank in ranks
    }

    def few(*some: Kind) -> bool:
        """Return whether the ranks that are behind are no more than the others: else nothing says who is right."""
        return 2 * sum(all(lacking[rank][kind] >= _LEAST_MISSING for kind in some) for rank in ranks) <= len(ranks)

    for rank in ranks:
        mine = lacking[rank]
        if all(mine.values()) and sum(mine.values()) >= _SILENT:
            last = max(printed[rank].last for printed in kinds.values() if rank in printed)
            if few(*kinds):
                yield _gone(life, rank, None, last, last, sum(mine.values()), sum(top.values()), len(ranks))
            continue
        usual = min((mine[kind] for kind in kinds if kind[0] in CAPTURE_EVENTS or kind[0] == "forward_end"), default=0)
        for kind, printed in kinds.items():
            if kind[0] in CAPTURE_EVENTS and mine[kind] - usual >= _LEAST_MISSING and few(kind):
                last_one = printed[rank].last if rank in printed else None
                line = last_one or min(one.first for one in printed.values())
                yield _gone(life, rank, kind, line, last_one, mine[kind] - usual, top[kind] - usual, len(ranks))


def _gone(
    life: Life, rank: int, kind: Kind | None, line: int, last: int | None, lacking: int, of: int, ranks: int
) -> Finding:
    """Answer for a rank that stops printing."""
    others = f"{count(ranks - 1, 'other rank')} {'goes' if ranks == 2 else 'go'} on"
    what, lacks, noun = "nothing more", "", "record"
    if kind is not None:
        name = _name(kind)
        what, lacks, noun = f"no {name}" + (" any more" if last else ""), f" of {name}", "print"
    return rank_disagreement.finding(
        f"TP{rank} prints {what} from line {line:,} on, while {others}.",
        Place(life.segment.file, line),
        severity="warning",
        expected=f"{count(of, noun)}{lacks}, as other ranks print",
        actual=count(of - lacking, noun),
        evidence=f"its last one stands at line {last}" if last else "it never does",
        help="the rank stopped, or prints into another file"
        if kind is None
        else "one rank captures something else: compare its code and its layer ids with the others'",
    )


def _missing(missing: dict[tuple[str, Kind], Onset]) -> Iterator[Finding]:
    """Answer for records that do not have a copy of every writer, those of one model at once.

    A copy that is missing now and then may be lost on the way into the log. What most writers never print, or all but
    one of a whole model, is printed under a condition: a note, nobody can say that it is missing. When no record has a
    copy of every writer, their number is in doubt, not the run.
    """
    if not any(one.seen > one.bad for one in missing.values()):
        return

    def lasts(one: Onset) -> bool:
        return (one.bad >= _LASTING and one.bad * 10 > one.since * 9) or (
            one.bad >= _LEAST_MISSING and one.bad * 2 > one.seen
        )

    for role in ("target", "draft"):
        every = {kind: onset for (of, kind), onset in missing.items() if of == role}
        lacking = {kind: onset for kind, onset in every.items() if lasts(onset)}
        whole = len(lacking) == len(every)

        def meant(onset: Onset, whole: bool = whole) -> bool:
            have, of = onset.first.detail["have"], onset.first.detail["expected"]
            return onset.bad == onset.seen and (have * 2 < of or (whole and have == 1))

        # One print in the code serves all layers: a condition around it holds for each of them, or for none.
        layers = {kind in lacking and meant(lacking[kind]) for kind in every if kind[0] in CAPTURE_EVENTS}
        for note in (True, False):
            mine = {kind: onset for kind, onset in lacking.items() if (meant(onset) and len(layers) < 2) == note}
            if not mine:
                continue
            onset = min(mine.values(), key=lambda one: one.first.place.line)
            have, of = onset.first.detail["have"], onset.first.detail["expected"]
            less = count(of - have, "writer")
            what = and_list(list(dict.fromkeys(map(_name, mine)))) if note or not whole else "anything"
            yield rank_disagreement.finding(
                f"Only {count(have, 'writer')} of {of} {'prints' if have == 1 else 'print'} {what} of {role} passes."
                if note
                else f"{less} of {of} {'does' if of - have == 1 else 'do'} not print {what} of {role} passes.",
                onset.first.place,
                severity="note" if note else "warning",
                expected=count(of, "copy", "copies"),
                actual=count(have, "copy", "copies"),
                evidence=onset.words,
                help="prints of one rank only (if rank == 0) look like this, and nothing is missing then"
                if note
                else "one rank stopped, prints into another file, or captures something else: marks would name it",
            )


def _name(kind: Kind) -> str:
    return layer_name(*kind) if kind[0] in CAPTURE_EVENTS else kind[0].replace("_", " ")


# -------------------------------------------------------------------------------------------------------- across files


def _brief(view: View) -> Passes:
    """Return the passes of real requests as numbers that are equal where their form, shapes and values are."""
    rows = np.flatnonzero(view.real)
    if not len(rows):
        return Passes([], set())
    records = view.records
    with np.errstate(over="ignore"):
        place = (np.arange(len(view.of)) - view.first[view.of]).astype(np.uint64) * np.uint64(2) + np.uint64(1)

        def mixed(*columns: Array) -> Array:
            found = np.zeros(len(columns[0]), np.uint64)
            for column in columns:
                found = (found ^ column.view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
                found ^= found >> np.uint64(29)
            return found

        def bits(values: Array) -> Array:
            return np.where(np.isnan(values), np.nan, values + 0.0)

        shapes = np.add.reduceat(
            mixed(view.event, records["layer"], records["rows"], records["width"]) * place, view.first
        )
        values = np.add.reduceat(mixed(bits(records["norm"]), bits(records["values"][:, 0].copy())) * place, view.first)
    form = mixed(view.target.astype(np.int64), view.last - view.first, records["rows"][view.first])
    table = np.stack([form.view(np.int64), shapes.view(np.int64), values.view(np.int64), view.line], axis=1)[rows]
    prints = view.tables.prints["prefix"]
    own = {view.tables.prefixes[one].tp_rank for one in prints.gather(view.table["print"]).unique().to_list()}
    return Passes([table], {rank for rank in own if rank is not None})


def across(lives: Sequence[Life], select: set[str]) -> Iterator[Finding]:
    """Compare files that are ranks of one run with the first of them; yield S103 and R101.

    Files are ranks of one run when at most one of them is a server's own log, their passes have the same form in the
    same order, and either their prefixes name different ranks or most of their values are equal.
    """
    files: dict[str, list[Life]] = {}
    for life in lives:
        files.setdefault(life.segment.file, []).append(life)
    known = {}
    for file, own in files.items():
        parts = [life.parts["R101"]["passes"] for life in own if life.parts.get("R101")]
        if parts:
            whole = parts[0]
            for part in parts[1:]:
                whole = whole + part
            if len(whole.table) >= _LEAST_COMMON:
                known[file] = whole
    names = list(known)
    for name in names[1:]:
        if _one_server(files[names[0]], files[name]):
            yield from _pair(names[0], name, known[names[0]], known[name], select)


def _pair(name: str, other_name: str, one: Passes, other: Passes, select: set[str]) -> Iterator[Finding]:
    mine, theirs = one.table, other.table
    equal = np.flatnonzero(mine[:_LOOKED_FOR, 2] == theirs[0, 2])
    mine = mine[int(equal[0]) if len(equal) else 0 :]
    common = min(len(mine), len(theirs))
    if common < _LEAST_COMMON:
        return
    mine, theirs = mine[:common], theirs[:common]
    alike = mine[:, 0] == theirs[:, 0]
    shapes, values = alike & (mine[:, 1] == theirs[:, 1]), alike & (mine[:, 2] == theirs[:, 2])
    number = int(values.sum())
    marked = bool(one.ranks and other.ranks and not one.ranks & other.ranks)
    if alike.sum() < _SAME_FORM * common or (not marked and number < _MARKED_OR_EQUAL * common):
        return
    share = f"{number:,} of {count(common, 'pass')} equal ({percent(number, common)})"
    for code, what, bad, note in (
        ("S103", "disagree on a shape", alike & ~shapes, "a tensor is sharded, sliced or padded on one rank only"),
        (
            "R101",
            "print different values",
            shapes & ~values,
            "one rank computes, or receives, something else: `logscope diff` shows where it begins",
        ),
    ):
        if bad.any() and code in select:
            at = int(bad.argmax())
            yield Finding(
                code,
                "error",
                f"Two ranks {what}: {name} and {other_name}.",
                Place(other_name, int(theirs[at, 3])),
                evidence=f"first at {name}:{int(mine[at, 3])} against {other_name}:{int(theirs[at, 3])}, after"
                f" {int(values[:at].sum()):,} equal passes; {share}",
                help=note,
            )


def _one_server(one: Sequence[Life], other: Sequence[Life]) -> bool:
    """Return whether two files can be of one server: one of them has no start-up lines, or they are its nodes."""
    nodes = []
    for lives in (one, other):
        args = [life.segment.server_args for life in lives if life.segment.server_args]
        if len(args) > 1:
            return False
        nodes.append(args[0] if args else None)
    if nodes[0] is None or nodes[1] is None:
        return True
    return nodes[0].get("nnodes", 1) > 1 and nodes[0].get("node_rank") != nodes[1].get("node_rank")
