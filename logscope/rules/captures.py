"""Rules about what is captured: in which passes, in which mode, from which layers.

This module is responsible for H101 to H105. It must not look at norms beyond what tells a printed state from a joined
one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from logscope.contract import DEFAULT_STATES
from logscope.model import Finding, Place, states
from logscope.queries.words import and_list, count, layer_list, outputs_of, source_name, whole_numbers
from logscope.rules.evidence import (
    DRAFT_EXTEND,
    EMBED,
    EXTEND,
    SERVING,
    VERIFY,
    First,
    Onset,
    Seen,
    add,
    at_fault,
    distinct,
    pass_name,
)  # fmt: skip
from logscope.rules.norms import sums_of
from logscope.rules.registry import Checked, rule
from logscope.versions import default_layers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from logscope.contract import Reading
    from logscope.model import Payload, Segment
    from logscope.rules.evidence import Array, Life, View

_MOST_SETS = 64
# Signs of rounds between two printed extends before silent verifies are believed in; and where verifies were printed
# until then, the rounds of the draft without one, to the end, that show that they are printed no more.
_SIGNS = 2
_STOPPED = 8
# Passes that lack layers, and passes that have them twice, from which on both come from mixed-up writers.
_MIXED = 3
# Passes at the end of a batch of which one is the last of its source.
_EDGE = 64


# ------------------------------------------------------------------------------------------------- verifies without


@dataclass
class Silent:
    """Rounds of one scheduler behind its last verify, of which none is printed, and the extends around them.

    signs, first
        draft_extends without a verify, and statistics lines of rounds without a graph; between extends where there is
        no verify.
    extend
        the first extend with captures behind the first sign: prints were not simply switched off.
    """

    verify: Seen | None = None
    begun: bool = False
    signs: int = 0
    first: Place | None = None
    extend: Place | None = None
    lead: tuple[Place, ...] = ()

    def __add__(self, other: Silent) -> Silent:
        """Return both as one."""
        if other.verify is not None:
            return other
        if not (self.begun or self.verify):
            return replace(other, begun=self.begun or other.begun)
        if self.first is not None and other.lead and self.extend is None:
            extend: Place | None = other.lead[0]
        else:
            extend = self.extend or other.extend
        lead = (*self.lead, *other.lead)[:1]
        return Silent(self.verify, True, self.signs + other.signs, self.first or other.first, extend, lead)


@rule(
    "H101",
    "none-in-verify",
    "error",
    group="captures",
    needs="verify passes of real requests, or rounds of the draft around them, outside CUDA graphs",
    message="Verify passes have no hidden capture, and no CUDA graph explains it.",
    expected="hidden captures in every verify",
    actual="none",
    evidence="{onset}",
    help="the target captures in extend only: look at the condition around its capture code",
)
def none_in_verify(view: View) -> dict[str, Any]:
    """Serving verify passes have no hidden capture, and no graph explains it."""
    serving, has = (view.during == SERVING) & ~view.piece, view.captured > 0
    verify = serving & view.target & (view.phase == VERIFY) & (view.complete | (view.end >= 0))
    other = serving & view.target & (view.phase != EXTEND)
    extend = serving & view.target & (view.phase == EXTEND) & has & view.complete
    # A second draft_extend behind one joined state: a verify ran and printed nothing.
    told = view.passes["due_line"].is_not_null().to_numpy() & ~view.passes["due_fresh"].to_numpy()
    second = serving & ~view.target & (view.phase == DRAFT_EXTEND) & told
    lines = view.server.filter((pl.col("event") == "decode_stats") & (pl.col("during") == "serving"))
    eager = lines.filter(~pl.col("graph") & pl.col("accept_len").is_not_null())["line"].to_list()
    silent = {}
    for group in np.unique(view.group[serving]).tolist():
        mine = serving & (view.group == group)
        last = np.flatnonzero(other & mine)
        extends = view.line[extend & mine].tolist()
        start = int(view.line[last[-1]]) if len(last) else min(extends, default=0)
        # Where the draft prints nothing, statistics lines tell of its rounds.
        rounds = eager if view.target[mine].all() else view.line[second & mine].tolist()
        signs = sorted(line for line in rounds if line > start > 0)
        behind = [Place(view.file, line) for line in extends if line > start or not len(last)]
        after = [place for place in behind if signs and place.line > signs[0]]
        silent[view.tables.groups[group]] = Silent(
            view.seen(int(last[-1])) if len(last) else None,
            bool(extends),
            len(signs),
            Place(view.file, signs[0]) if signs else None,
            after[0] if after else None,
            tuple(behind[:1]),
        )
    return {
        "onset": view.onset(verify & (has | view.clean), ~has),
        "graph": bool(lines["graph"].any()),
        "silent": silent,
    }


def _silent(part: dict[str, Any], life: Life) -> Silent | None:
    """Return the scheduler of which no verify is printed (any more) while rounds and extends go on."""
    if life.segment.graphs_captured or part["graph"] or not life.fact("target_lines"):
        return None
    enough = (
        one for one in part["silent"].values() if one.signs >= (_STOPPED if one.verify else _SIGNS) and one.extend
    )
    return next(enough, None)


@none_in_verify.answer
def _(part: dict[str, Any], life: Life) -> Iterator[Finding]:
    onset, silent = part["onset"], _silent(part, life)
    if onset.bad and life.fact("target_lines") and not life.segment.graphs_captured:
        if onset.bad * 2 > onset.since:
            yield none_in_verify.told(onset)
    elif silent is not None:
        verify, rounds = silent.verify, count(silent.signs, "round")
        before = (
            f"the last verify is pass {verify.number} ({verify.place})" if verify else f"rounds ran at {silent.first}"
        )
        where = source_name(verify.source) if verify and len(part["silent"]) > 1 else ""
        message = "Extends print hidden captures, verifies print none, and the rounds ran without CUDA graphs."
        if verify:
            message = f"No verify is printed any more from {silent.first} on, while rounds and extends go on."
        yield none_in_verify.finding(
            message,
            silent.first,
            severity="warning",
            expected=none_in_verify.says["expected"],
            actual=f"{rounds} without one",
            evidence=f"{before}; the next extend at {silent.extend} prints captures again, and the rounds ran without"
            f" CUDA graphs{f'; in {where}' if where else ''}",
            help="something switches captures, or their prints, off in verify",
        )


@none_in_verify.checked
def _(part: dict[str, Any], life: Life) -> Checked:
    looked = part["onset"].seen if life.fact("target_lines") else 0
    return Checked(looked + (_silent(part, life) is not None))


@none_in_verify.why_not
def _(part: dict[str, Any], life: Life) -> str | None:
    if part["graph"] or life.segment.graphs_captured:
        return "verify passes ran in CUDA graphs, where nothing prints (L103)"
    if part["onset"].seen:
        return "no line of the target's own is in this log: captures are not printed at all"
    return None


# ----------------------------------------------------------------------------------------------------------- the mode


@rule(
    "H102",
    "hidden-mode",
    "error",
    group="captures",
    needs="the joined state of a target pass with its capture_hidden_mode, or with fewer rows than its captures",
    message="The target's{what} passes keep hidden states in mode {name} where the draft needs FULL{kept}.",
    expected="FULL",
    actual="{name}",
    evidence="{onset}",
    help="the draft reads a state for every token: use FULL for target extend and verify",
)
def hidden_mode(view: View) -> dict[str, Onset]:
    """capture_hidden_mode is not FULL where the draft needs every row: in target extend and verify."""
    mode = view.table["mode"]
    numeric = mode.str.contains(r"^\d+$")
    place = np.maximum(view.join, 0)

    def of(column: pl.Series) -> Array:
        flags = column.fill_null(value=False).to_numpy()
        return (view.join >= 0) & (flags[place] if len(flags) else np.False_)

    named, full = of(mode.is_not_null() & ~numeric), of(mode == "FULL")
    have = view.taken(view.join)["rows"]
    rows = np.where(view.captured > 0, view.taken(view.capture(np.zeros(view.size, np.int64)))["rows"], view.rows)
    sized = (rows >= 0) & (have >= 0) & (not view.segment.server_args.get("enable_dp_attention"))
    # A mode that is printed as a number is confirmed by rows.
    bad = np.where(named, ~full, have < rows)
    looked = view.target & (view.join >= 0) & view.judged & (named | sized)

    def detail(row: int) -> dict[str, Any]:
        printed, kept = view.mode(int(view.join[row])), ""
        said = (
            printed if printed is not None and not printed.isdigit() else f"{printed or 'a mode'} that keeps fewer rows"
        )
        if rows[row] >= 0 and have[row] >= 0:
            kept = f": {count(int(have[row]), 'row')} of {rows[row]} kept"
            if have[row] == rows[row]:
                same = count(int(rows[row]), "row")
                kept = f"; all {same} stand in the join all the same" if rows[row] != 1 else ""
        phase = view.seen(row).phase
        return {"what": "" if phase == "unknown" else f" {phase}", "name": said, "kept": kept}

    line = view.taken(view.join)["line"]
    phases = np.unique(view.phase[looked]).tolist()
    found = {phase: view.onset(looked & (view.phase == phase), bad, line, detail) for phase in phases}
    return dict(sorted(found.items(), key=lambda pair: pair[1].first.place.line if pair[1].first else 0))


@hidden_mode.answer
def _(part: dict[str, Onset], life: Life) -> Iterator[Finding]:
    for onset in part.values() if life.is_eagle3 else ():
        yield from hidden_mode.first_fault(onset, life)


@hidden_mode.checked
def _(part: dict[str, Onset], life: Life) -> Checked:
    return Checked(sum(onset.seen for onset in part.values()) if life.is_eagle3 else 0)


# --------------------------------------------------------------------------------------------------------- the layers


class _Layers(NamedTuple):
    """The decoder layers one pass captured, sorted; ``twice`` more than once; ``rising``: printed in layer order."""

    layers: tuple[int, ...]
    twice: tuple[int, ...] = ()
    rising: bool = True


@dataclass
class _Set:
    """All passes that captured one set of layers.

    ``before``: the last pass of every other set before its first one, from the same source. ``start``: how many passes
    had been looked at.
    """

    count: int
    first: Seen
    start: int
    before: dict[_Layers, Seen]
    states: int | None
    lines: list[int]
    sources: set[tuple[Any, ...]]
    phases: dict[str, int]
    last: dict[tuple[Any, ...], Seen]

    @property
    def place(self) -> Place:
        """Where its first pass begins."""
        return self.first.place


@dataclass
class Sets:
    """What H103 keeps: passes looked at, by pipeline rank every set of layers, and what one writer alone captured."""

    looked: int = 0
    stages: dict[int | None, dict[_Layers, _Set]] = field(default_factory=dict)
    alone: dict[tuple[_Layers, _Layers], Onset] = field(default_factory=dict)
    ends: dict[tuple[Any, ...], int] = field(default_factory=dict)  # by source its last target pass

    def __add__(self, other: Sets) -> Sets:
        """Return both as one."""
        stages = {stage: dict(sets) for stage, sets in self.stages.items()}
        for stage, sets in other.stages.items():
            mine = stages.setdefault(stage, {})
            latest = _latest(mine)
            for key, new in sets.items():
                old = mine.get(key)
                if old is None and len(mine) < _MOST_SETS:
                    mine[key] = replace(
                        new, start=self.looked + new.start, before={**latest.get(new.first.source, {}), **new.before}
                    )
                elif old is not None:
                    mine[key] = replace(
                        old,
                        count=old.count + new.count,
                        sources=old.sources | new.sources,
                        phases=add(old.phases, new.phases),
                        last={**old.last, **new.last},
                    )
        return Sets(self.looked + other.looked, stages, add(self.alone, other.alone), {**self.ends, **other.ends})


def _latest(sets: dict[_Layers, _Set]) -> dict[tuple[Any, ...], dict[_Layers, Seen]]:
    """Return by source its last pass with each set."""
    found: dict[tuple[Any, ...], dict[_Layers, Seen]] = {}
    for key, one in sets.items():
        for source, seen in one.last.items():
            found.setdefault(source, {})[key] = seen
    return found


@rule(
    "H103",
    "layers",
    "error",
    group="captures",
    needs="captures with their layer numbers, and a contract that names layers (or a set that changes during the run)",
    message="One writer captures other layers than the rest: {words}.",
    expected="{expected}",
    actual="{actual}",
    evidence="{onset}",
    help="one rank runs other code or reads another config: compare its layer ids with the others'",
)
def layer_set(view: View) -> Sets:
    """The captured layers are not those of the contract, or change during the run."""
    made = Sets()
    stages = [group[2] for group in view.tables.groups]
    staged = (
        np.array([stage is not None for stage in stages], np.bool_)[np.maximum(view.group, 0)] if stages else view.edge
    )
    # Without its end or its join a pass is a single print, or a piece of the next one.
    whole = (view.join >= 0) | (view.end >= 0) | staged
    looked = view.target & (view.captured > 0) & view.judged & view.clean & whole
    rows = np.flatnonzero(looked)
    made.looked = len(rows)
    targets = np.flatnonzero(view.target).tolist()
    made.ends = {view.tables.groups[int(view.group[row])]: int(view.number[row]) for row in targets[-_EDGE:]}
    if not len(rows):
        return made
    asked = view.contract is not None and any(0 in reading.layers for reading in view.contract.readings())
    mine = _decoders(view, view.layers, asked=asked)
    copies = view.taken(view.captures)["copies"] // np.maximum(view.expected, 1)[:, None]
    sets, which = distinct(np.concatenate([mine, np.where(mine >= 0, copies, -1)], axis=1)[rows])
    del sets
    for number in np.unique(which).tolist():
        mask = which == number
        members = rows[mask]
        first = int(members[0])
        order = [
            layer
            for layer, times in zip(mine[first].tolist(), copies[first].tolist(), strict=True)
            if layer >= 0
            for _ in range(max(1, times))
        ]
        once = list(dict.fromkeys(order))
        twice = tuple(sorted(layer for layer in once if order.count(layer) > 1))
        key = _Layers(tuple(sorted(once)), twice, once == sorted(once))
        _enter(view, made, key, members, int(np.flatnonzero(mask)[0]), stages)
    _befores(view, made, rows, which)
    if view.differing.height:
        made.alone = _alone(view, looked, mine, asked=asked)
    return made


def _decoders(view: View, layers: Array, *, asked: bool) -> Array:
    """Return the decoder layers of each pass, -1 elsewhere.

    The embedding is H104's, unless the contract asks for it; a state that is printed and not joined is none.
    """
    embeds = (layers == 0) & (not asked or ((view.states > 0) & (view.states < view.captured))[:, None])
    return np.where(embeds, -1, layers)


def _enter(view: View, made: Sets, key: _Layers, members: Array, start: int, stages: Sequence[Any]) -> None:
    """Add the passes of one set, by pipeline rank."""
    of_stage = [stages[group] for group in view.group[members].tolist()]
    for stage in dict.fromkeys(of_stage):
        own = members[[one == stage for one in of_stage]]
        first = int(own[0])
        phases = np.unique(view.phase[own], return_counts=True)
        last = {view.tables.groups[int(view.group[row])]: int(row) for row in own.tolist()}
        names = {int(phase): view.seen(int(own[view.phase[own] == phase][0])).phase for phase in phases[0]}
        seen = view.seen(first, int(view.records["line"][view.first[first]]))
        mine = made.stages.setdefault(stage, {})
        if key in mine or len(mine) >= _MOST_SETS:
            continue
        mine[key] = _Set(
            len(own),
            seen,
            start,
            {},
            int(view.states[first]) if view.states[first] > 0 else None,
            view.records["line"][view.captures[first][: view.captured[first]]].tolist(),
            set(last),
            {names[int(phase)]: int(times) for phase, times in zip(*phases, strict=True)},
            {source: view.seen(row) for source, row in last.items()},
        )


def _befores(view: View, made: Sets, rows: Array, which: Array) -> None:
    """Note for every set the last pass of each other one before its first, from the same source."""
    if len(np.unique(which)) < 2:
        return
    row_of = {int(view.number[row]): at for at, row in enumerate(rows.tolist())}
    for sets in made.stages.values():
        keys = {key: int(which[row_of[one.first.number]]) for key, one in sets.items() if one.first.number in row_of}
        for key, one in sets.items():
            at = row_of.get(one.first.number)
            if at is None:
                continue
            group = view.group[rows[at]]
            for other, number in keys.items():
                mine = np.flatnonzero((which[:at] == number) & (view.group[rows[:at]] == group))
                if len(mine) and other != key:
                    one.before[other] = view.seen(int(rows[mine[-1]]))


def _alone(view: View, looked: Array, mine: Array, *, asked: bool) -> dict[tuple[_Layers, _Layers], Onset]:
    """Return where one writer captures other layers than the rest: in the places of theirs."""
    theirs = _decoders(view, view.taken(view.captures, others=True)["layer"], asked=asked)
    parted = looked & view.full & (theirs != mine).any(axis=1)
    found: dict[tuple[_Layers, _Layers], Onset] = {}
    for row in np.flatnonzero(parted).tolist():
        pair = tuple(
            _Layers(tuple(sorted(layer for layer in one[row].tolist() if layer >= 0))) for one in (mine, theirs)
        )
        if pair in found or len(found) >= _MOST_SETS:
            continue
        same = parted & (mine == mine[row]).all(axis=1) & (theirs == theirs[row]).all(axis=1)
        places = view.captures[row][: view.captured[row]]
        place = int(places[view.parted[places]][0])
        line = int(view.others["line"][place])
        onset = view.onset(looked, same, np.full(view.size, line))
        found[pair[0], pair[1]] = replace(onset, first=onset.first._replace(detail={"writers": view.writers(place)}))
    return found


@layer_set.answer
def _(part: Sets, life: Life) -> Iterator[Finding]:
    if part.stages:
        yield from _LayerSet(part, life).findings()
    for server in life.facts.get("named", {}).values():
        yield from _named(server, life)


@layer_set.checked
def _(part: Sets, life: Life) -> Checked:
    named = life.facts.get("named", {}).values()
    if named and not part.looked:
        said = [layers for server in named for layers, _ in server]
        return Checked(sum(map(len, _prints(named))), "start-up line", "; ".join(map(layer_list, dict.fromkeys(said))))
    every = list(dict.fromkeys(one.layers for sets in part.stages.values() for one in sets))
    worth = part.looked if life.contract is not None or len(every) > 1 or part.looked > 1 else 0
    return Checked(worth, "pass", "; ".join(map(layer_list, every[:4])) or None)


def _prints(servers: Iterable[Any]) -> list[dict[str, First]]:
    return [prints for server in servers for prints in server.values()]


def _named(server: dict[tuple[tuple[int, ...], str], dict[str, First]], life: Life) -> Iterator[Finding]:
    """Answer for the layers that the workers of one server name when they start (vLLM), where no pass prints any."""
    every = sorted(server.items(), key=lambda one: min(print_.value.line for print_ in one[1].values()))
    (layers, source), prints = every[0]
    place = min((print_.value for print_ in prints.values()), key=lambda one: one.line)
    if len({said for said, _ in server}) > 1:
        other = next(one for one in every if one[0][0] != layers)
        again = sorted(prints.keys() & other[1].keys())
        names = [f"{layer_list(said)} ({and_list(list(who)[:4])})" for (said, _), who in every[:4]]
        yield layer_set.finding(
            f"The captured layers that {again[0] or 'a process'} names change: two starts may stand here."
            if again
            else f"Workers name different captured layers: {_compare(other[0][0], layers)}.",
            min((print_.value for print_ in other[1].values()), key=lambda one: one.line),
            severity="note" if again else None,
            expected=layer_list(layers),
            actual=layer_list(other[0][0]),
            evidence="; ".join(names),
            help="workers of one server must capture the same: compare what each of them loaded",
        )
        return
    default = source == "model"
    how = (
        "a default of the engine that nobody asked for: the draft's config names no layers"
        if default
        else f"from the {source}"
    )
    readings = life.contract.vllm_readings() if life.contract is not None else ()
    texts = {
        "actual": f"{layer_list(layers)}, the {outputs_of(layers)}",
        "evidence": f"{how}; named by {count(len(prints), 'process')} at start-up",
    }
    if not readings:
        if default:
            yield layer_set.finding(
                f"{layer_list(layers).capitalize()} are captured by default: the draft's config names none.",
                place,
                severity="note",
                help="right only for a draft that was trained on just these: name the layers in its config",
                **texts,
            )
        return
    fits = next((at for at, reading in enumerate(readings) if reading.layers == layers), None)
    if fits == 0:
        return
    texts["expected"] = " or ".join(f"{layer_list(one.layers)} ({one.why})" for one in readings)
    if fits is not None:
        yield layer_set.finding(
            f"The captured layers fit the contract if {readings[fits].when}, and are one off if {readings[0].when}:"
            " the line alone cannot decide between both readings.",
            place,
            severity="note",
            help="write aux_layers, the inputs of blocks that the draft was trained on, in the contract",
            **texts,
        )
        return
    yield layer_set.finding(
        f"The captured layers are not the contract's under any counting: {_compare(layers, readings[0].layers)}.",
        place,
        help="the draft's config.json that the server loaded names no layers: write them under eagle_config"
        if default
        else "compare the ids of the contract with the config.json the server loaded",
        **texts,
    )


class _LayerSet:
    """What the sets of one life say."""

    def __init__(self, part: Sets, life: Life) -> None:
        self.part, self.life = part, life
        self.readings = life.readings
        self.phases: dict[str, int] = {}
        for sets in part.stages.values():
            for one in sets.values():
                self.phases = add(self.phases, one.phases)

    def reference(self, sets: dict[_Layers, _Set]) -> _Layers:
        """Return what the run is measured by: the set the contract asks for, else what the run begins with.

        A single pass that lacks layers comes after the others: the first pass may be the odd one. The most frequent set
        is no measure: after a fault it is the faulty one.
        """
        asked = {reading.layers for reading in self.readings}
        most = max(len(one.layers) for one in sets)

        def odd(one: _Layers) -> bool:
            lacks = len(one.layers) < most and len(one.layers) != DEFAULT_STATES
            return sets[one].count == 1 and (lacks or bool(one.twice) or not one.rising)

        return min(sets, key=lambda one: (one.layers not in asked or bool(one.twice), odd(one), sets[one].start))

    def usual(self) -> Usual | None:
        """Return what this server life captures, to be compared with the lives before and after it."""
        if len(self.part.stages) != 1:
            return None  # a pipeline's layers are known only when all its ranks are
        (sets,) = self.part.stages.values()
        main = self.reference(sets)
        return Usual(self.life.segment, main.layers, sets[main].place)

    def findings(self) -> Iterator[Finding]:
        """Answer for the run's first set against the contract, then for every set that differs from it."""
        stages = self.part.stages
        usual = {stage: self.reference(sets) for stage, sets in stages.items()}
        seen = min((stages[stage][one] for stage, one in usual.items()), key=lambda one: one.place.line)
        main = next(iter(usual.values()))
        if len(usual) > 1:
            main = _Layers(tuple(sorted({layer for one in usual.values() for layer in one.layers})))
        writer = self._writer(main)
        if writer is None or not any(main.layers == reading.layers for reading in self.readings):
            yield from self._against_contract(main, seen)
        if writer is not None:
            yield writer
            return
        for stage, sets in stages.items():
            yield from self._changes(usual[stage], sets)

    def _writer(self, main: _Layers) -> Finding | None:
        """Answer for one writer that captures other layers than the rest, in the same passes."""
        found = [(pair, onset) for pair, onset in self.part.alone.items() if onset.bad]
        if not found or not self.life.copies_known:
            return None
        pair, onset = min(found, key=lambda one: one[1].first.place.line)
        good, bad = pair if pair[1] != main else (pair[1], pair[0])
        first = onset.first
        words = _compare(bad.layers, good.layers)
        detail = {**first.detail, "words": words, "expected": layer_list(good.layers), "actual": layer_list(bad.layers)}
        # Which of two sets is one writer's is the print's to say, so the same passes count whichever it is.
        every = add(self.part.alone.get(pair), self.part.alone.get((pair[1], pair[0])))
        every = replace(
            every, bad=every.bad, seen=max(onset.seen, self.part.looked), first=first._replace(detail=detail)
        )
        return layer_set.told(every, alone=True)

    def _changes(self, main: _Layers, sets: dict[_Layers, _Set]) -> Iterator[Finding]:
        # The last pass of a log may be cut.
        others = [(key, one) for key, one in sets.items() if key != main and not self._cut(key, one, main)]
        others.sort(key=lambda pair: pair[1].place.line)
        twice = sum(seen.count for other, seen in others if other.twice)
        less = sum(seen.count for other, seen in others if len(other.layers) < len(main.layers))
        if twice >= _MIXED and less >= _MIXED:
            yield layer_set.finding(
                f"In {count(twice + less, 'target pass', 'target passes')} layers are missing or stand twice: several"
                " writers print unmarked into this log, and their passes cannot be told apart.",
                others[0][1].place,
                severity="note",
                help="give each rank a prefix or a file of its own to have its layers checked",
            )
            return
        if main.twice:
            yield self._twice(main, sets[main])
        latest = _latest(sets)
        for other, seen in others:
            yield self._change(main, other, seen, latest)

    def _cut(self, key: _Layers, one: _Set, main: _Layers) -> bool:
        last = self.part.ends.get(one.first.source) == one.first.number
        return last and one.count == 1 and len(key.layers) < len(main.layers)

    def _twice(self, main: _Layers, seen: _Set) -> Finding:
        """Answer for a run whose usual passes print a layer more than once, by one writer."""
        return layer_set.finding(
            f"{layer_list(main.twice).capitalize()} {'is' if len(main.twice) == 1 else 'are'} captured twice (extra) in"
            " every pass of one writer.",
            seen.place,
            expected=layer_list(main.layers),
            actual=f"{layer_list(main.layers)}, {layer_list(main.twice)} twice",
            evidence=f"{self._share(seen)}; captures at lines {', '.join(map(str, seen.lines))}",
            help="the capture, or its print, runs twice in a forward",
        )

    def _against_contract(self, main: _Layers, seen: _Set) -> Iterator[Finding]:
        contract, life = self.life.contract, self.life
        if contract is None:
            return
        era, readings, target = life.era, self.readings, life.watch.target_type
        if not readings:
            yield from self._default(main, seen)
            return
        if any(main.layers == reading.layers for reading in readings):
            if len(readings) > 1:
                yield self._either(
                    main,
                    seen,
                    readings,
                    f"{era.how}{'' if target else '; no line names the target' + chr(39) + 's class'}",
                )
            return
        other = next((reading for reading in contract.readings(None, target) if reading.layers == main.layers), None)
        expected = readings[0]
        how = "" if era.era is None or expected.era is None else f" ({era.how})"
        yield layer_set.finding(
            f"The captured layers are not the contract's: {_compare(main.layers, expected.layers)}.",
            seen.place,
            severity="warning" if other is not None else "error",
            expected=" or ".join(layer_list(reading.layers) for reading in readings),
            actual=layer_list(main.layers),
            evidence=f"{self._share(seen)}; {expected.why}{how}",
            help=self._advice(main, other),
        )

    def _either(self, main: _Layers, seen: _Set, readings: Sequence[Reading], how: str) -> Finding:
        fits = next(reading for reading in readings if reading.layers == main.layers)
        misses = next(reading for reading in readings if reading.layers != main.layers)
        return layer_set.finding(
            f"The captured layers fit the contract if this is {fits.when}; {misses.when} should capture"
            f" {layer_list(misses.layers)}.",
            seen.place,
            severity="note",
            expected=f"{layer_list(fits.layers)} ({fits.when}), {layer_list(misses.layers)} ({misses.when})",
            actual=layer_list(main.layers),
            evidence=f"{how}; {self._share(seen)}",
            help="the same ids mean other layers there, silently: write aux_layers in the contract, or give"
            " --sglang-version where only that is open",
        )

    def _default(self, main: _Layers, seen: _Set) -> Iterator[Finding]:
        """Compare with the layers SGLang takes when the config names none: 2, n/2, n - 3."""
        contract = self.life.contract
        if contract is None or contract.states not in (None, DEFAULT_STATES) or not main.layers:
            return
        known = contract.target_num_hidden_layers
        depth = known or main.layers[-1] + 3
        if main.layers == default_layers(depth):
            return
        yield layer_set.finding(
            "The contract names no layers, and the captured ones are not what SGLang takes then.",
            seen.place,
            severity="warning" if known else "note",
            expected=layer_list(default_layers(depth))
            if known
            else "layers 2, n/2 and n - 3 of a target with n layers",
            actual=layer_list(main.layers),
            evidence=self._share(seen),
            help="the draft's config.json should name eagle_aux_hidden_state_layer_ids under eagle_config",
        )

    def _advice(self, main: _Layers, other: Reading | None) -> str:
        contract = self.life.contract
        asked = contract.readings(None, self.life.watch.target_type) if contract is not None else ()
        if contract is not None and any(set(one.layers) - set(main.layers) == {0} for one in asked):
            if -1 in (contract.aux_layer_ids or ()):
                return "SGLang 0.5.15 drops an id of -1 without a word: id 0 is the embedding there"
            return "only the embedding is missing: compare the ids with the config.json the server loaded"
        if main.layers and main.layers == default_layers(main.layers[-1] + 3):
            hint = (
                "these are the layers SGLang takes when the draft's config names none: ids that stand outside of"
                " eagle_config are not read"
            )
            return hint if other is None else f"{hint}; or the contract's ids are meant as {other.when} reads them"
        if other is not None:
            return f"the ids are meant as {other.when} reads them: shift eagle_aux_hidden_state_layer_ids by one"
        named = "aux_layers" if contract is not None and contract.aux_layers else "eagle_aux_hidden_state_layer_ids"
        return f"compare {named} of the contract with the config.json the server loaded"

    def _share(self, seen: _Set) -> str:
        return f"{seen.count:,} of {count(self.part.looked, 'target pass', 'target passes')}"

    def _change(self, main: _Layers, other: _Layers, seen: _Set, latest: Any) -> Finding:
        missing = tuple(layer for layer in main.layers if layer not in other.layers)
        extra = tuple(layer for layer in other.layers if layer not in main.layers)
        parts = [_compare(other.layers, main.layers)] if missing or extra else []
        if other.twice and not main.twice:
            parts.append(f"{layer_list(other.twice)} captured twice (extra)")
        if main.twice and not other.twice:
            parts.append(f"{layer_list(main.twice)} captured once")
        if other.rising != main.rising:
            parts.append("printed in layer order again" if other.rising else "printed out of layer order")
        lost = bool(missing) and not extra and seen.states == len(main.layers)
        since = self.part.looked - seen.start
        later = "" if seen.count == 1 else f"; {seen.count:,} of {since:,} since then"
        good = seen.before.get(main)
        before = "" if good is None else f"; the last good one before it is pass {good.number} ({good.place})"
        words = ", ".join(parts) or layer_list(other.layers)
        message = f"The captured layers change at {pass_name(seen.first)}: {words}."
        phase = next(iter(seen.phases))
        again = any(main in sets and sets[main].place.line > seen.place.line for sets in latest.values())
        if len(seen.phases) == 1 < seen.count == self.phases[phase] and again and "unknown" not in self.phases:
            # It is no change in time: a condition around the capture looks at the phase.
            message = f"All {count(seen.count, f'{phase} pass', f'{phase} passes')} capture other layers: {words}."
            later = before = ""
        return layer_set.finding(
            message,
            seen.place,
            severity="warning" if lost else "error",
            expected=layer_list(main.layers),
            actual=layer_list(other.layers) + (f", {layer_list(other.twice)} twice" if other.twice else ""),
            evidence=f"{self._share(seen)}{later}; captures at lines {', '.join(map(str, seen.lines))}{before}"
            f"{at_fault(seen.first, seen.sources, latest)}",
            help="the joined state still has all of them: the line is missing in the log, not the state in the join"
            if lost
            else "something switches captures on and off while the server runs",
        )


def _compare(have: tuple[int, ...], want: tuple[int, ...]) -> str:
    shifts = {one - other for one, other in zip(have, want, strict=False)}
    if len(have) == len(want) and len(shifts) == 1:
        by = shifts.pop()
        return f"{layer_list(have)} are shifted by {'one' if abs(by) == 1 else abs(by)} from {layer_list(want)}"
    parts = []
    for name, layers in (("missing", set(want) - set(have)), ("extra", set(have) - set(want))):
        if layers:
            parts.append(f"{layer_list(sorted(layers))} {name}")
    return "; ".join(parts)


class Usual(NamedTuple):
    """The decoder layers one server life captures, and the first place that shows them."""

    segment: Segment
    layers: tuple[int, ...]
    place: Place


def between_lives(lives: Iterable[Life]) -> Iterator[Finding]:
    """Yield a note where two lives in a row of one file capture other layers for the draft of the same path.

    Each may be right by its own version of SGLang; the draft was trained on one of the two.
    """
    before: Usual | None = None
    parts = [(life, life.parts.get("H103")) for life in lives]
    usual = [_LayerSet(part, life).usual() for life, part in parts if part is not None and part.stages]
    for life in sorted(filter(None, usual), key=lambda one: (one.segment.file, one.segment.number)):
        if before is not None and before.segment.file == life.segment.file and before.layers != life.layers:
            drafts = [one.segment.server_args.get("speculative_draft_model_path") for one in (before, life)]
            if drafts[0] is not None and drafts[0] == drafts[1]:
                numbers = [one.segment.number for one in (before, life)]
                yield Finding(
                    "H103",
                    "note",
                    f"Run {numbers[1]} captures {layer_list(life.layers)} where run {numbers[0]} captured"
                    f" {layer_list(before.layers)}, for the same draft.",
                    life.place,
                    expected=layer_list(before.layers),
                    actual=layer_list(life.layers),
                    evidence=f"run {numbers[0]} at {before.place}; both name {drafts[0]}",
                    help="unless the draft was exchanged, one of them is not what it was trained on: config ids mean"
                    " other layers from SGLang 0.5.13 on; aux_layers in the contract decides which",
                )
        before = life


# ------------------------------------------------------------------------------------------- the embedding, the depth


@rule(
    "H104",
    "embedding",
    "error",
    group="captures",
    needs="target passes that print both their captures and how many states they joined",
    message="The embedding output is among the {joined} joined states: {width}.",
    expected="decoder layers only",
    actual="the embedding and {others}",
    help="remove its id from eagle_aux_hidden_state_layer_ids, or give the contract of a draft that reads it",
)
def embedding(view: View) -> Onset:
    """The embedding output is among the joined states, and the contract does not ask for it."""
    layers, found = view.layers, sums_of(view)
    held = found.joined.sum(axis=1)
    decoders = view.captured - (layers == 0).sum(axis=1)
    # Told by the count, by the norms, else the embedding is what was printed and not joined.
    told = (view.states == view.captured) | ((found.holds == 1) & (held == view.states)) | (view.states == decoders)
    told |= (view.states < 0) & (view.join >= 0)
    among = np.where(
        (view.states == view.captured) | (view.states < 0),
        (layers == 0).any(axis=1),
        (found.holds == 1) & (held == view.states) & ((layers == 0) & found.joined).any(axis=1),
    )
    looked = view.target & (view.captured > 0) & (view.rows != 0) & ~view.edge & ~view.piece & told

    def detail(row: int) -> dict[str, Any]:
        place = int(view.captures[row][layers[row] == 0][0])
        joined = int(view.states[row]) if view.states[row] > 0 else int(view.captured[row])
        width = int(view.taken(view.join)["width"][row])
        hidden = int(view.hidden[row])
        proof = " (residual_is_none=True)" if view.payload(place).fields.get("residual_is_none") is True else ""
        return {
            "joined": joined,
            "width": states(width, hidden) if width > 0 else count(joined, "state"),
            "others": count(joined - 1, "layer"),
            "line": f"line {view.records['line'][place]}{proof}",
        }

    lines = np.full(view.size, -1)
    places = np.flatnonzero((view.event == EMBED) | (view.records["layer"] == 0))[::-1]
    lines[view.of[places]] = view.records["line"][places]
    return view.onset(looked, among, lines, detail)


@embedding.answer
def _(onset: Onset, life: Life) -> Iterator[Finding]:
    readings = life.readings
    if not onset.bad or any(0 in reading.layers for reading in readings):
        return
    named = life.contract is not None and life.contract.names_layers
    asked = (
        f"the contract asks for {layer_list(readings[0].layers)}"
        if named
        else "no contract says that the draft reads it"
    )
    evidence = f"{onset.first.detail['line']}; {asked}; {onset.words}"
    yield embedding.told(onset, evidence=evidence, severity="error" if named else "warning")


@rule(
    "H105",
    "impossible-layer",
    "error",
    group="captures",
    needs="the target's number of layers: a capture plan, the target's config, or target_num_hidden_layers",
)
def impossible_layer(view: View) -> dict[str, Any]:
    """A requested layer can never be captured in this target."""
    part: dict[str, Any] = {"captured": frozenset(layer for layers in view.sets[0] for layer in layers)}
    targets = np.flatnonzero(view.target & ~view.piece)
    joined = np.flatnonzero(view.target & (view.join >= 0) & (view.states > 0))
    if len(targets):
        part["first"] = First(view.seen(int(targets[0])).place)
    if len(joined):
        row = int(joined[0])
        part["joined"] = First((int(view.states[row]), Place(view.file, int(view.records["line"][view.join[row]]))))
    return part


def _asked(part: dict[str, Any], life: Life) -> tuple[tuple[int, ...], int, Place | None, str, Payload | None] | None:
    """Return (layers asked for, depth of the target, where, how it is known, the plan)."""
    depth = life.contract.target_num_hidden_layers if life.contract is not None else None
    plan = life.fact("plan")
    if plan is not None:
        payload, place = plan
        planned = whole_numbers(payload.fields.get("layers_to_capture"))
        printed = payload.fields.get("num_hidden_layers")
        depth = printed if isinstance(printed, int) else depth
        if planned is not None and depth is not None:
            return tuple(planned), depth, place, "the capture plan", payload
    readings = life.readings
    if depth is None or not readings:
        return None
    # With two readings only what is impossible in both is certain.
    common = set(readings[0].layers).intersection(*(reading.layers for reading in readings[1:]))
    beyond = {layer for layer in readings[0].layers if all(max(one.layers) >= depth for one in readings)}
    layers = sorted(common if len(readings) == 1 else common | beyond)
    first = part.get("first")
    return tuple(layers), depth, first.value if first else None, "the contract", None


@impossible_layer.answer
def _(part: dict[str, Any], life: Life) -> Iterator[Finding]:
    asked = _asked(part, life)
    if asked is None:
        return
    layers, depth, place, how, plan = asked
    # vLLM's last index is the output of the last block.
    last = depth if plan is not None and plan.site is None else depth - 1
    never = [layer for layer in layers if not 0 <= layer <= last and layer not in part["captured"]]
    joined = part["joined"].value if "joined" in part else None
    printed = len(part["captured"] - {0})
    if not never or (joined is not None and joined[0] >= max(len(layers), printed + 1)):
        return  # newer targets can capture the state behind their last layer: it arrives without a capture line
    arrived = f"; {count(joined[0], 'state')} arrived ({joined[1]})" if joined is not None else ""
    requested = whole_numbers(plan.fields.get("requested")) if plan is not None else None
    moved = requested is not None and [one + 1 for one in requested] == list(layers)
    shifted = f"; the plan is shifted by one from the ids {requested}" if moved else ""
    yield impossible_layer.finding(
        f"{layer_list(never).capitalize()} can never be captured: the target has {depth} layers, 0 to {depth - 1}.",
        place,
        expected=f"layers 0 to {last}",
        actual=layer_list(layers),
        evidence=f"{how}{shifted}{arrived}",
        help="a layer's input is captured: an id beyond the last layer is never reached",
    )


@impossible_layer.checked
def _(part: dict[str, Any], life: Life) -> Checked:
    return Checked(0 if _asked(part, life) is None else 1, "plan")
