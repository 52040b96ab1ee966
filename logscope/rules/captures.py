"""Rules about what is captured: in which passes, in which mode, from which layers.

This module is responsible for H101 to H105. It must not look at norms beyond what tells a printed state from a joined
one.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from logscope.contract import DEFAULT_STATES
from logscope.model import Place, states
from logscope.queries.words import and_list, count, layer_list, outputs_of, source_name, whole_numbers
from logscope.rules.evidence import (
    DRAFT_EXTEND,
    EMBED,
    EXTEND,
    LAYER,
    SERVING,
    VERIFY,
    First,
    Onset,
    distinct,
    pass_name,
)  # fmt: skip
from logscope.rules.norms import sums_of
from logscope.rules.registry import Checked, rule
from logscope.versions import default_layers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from logscope.contract import Contract, Reading
    from logscope.model import Finding, Payload
    from logscope.rules.evidence import Array, Kinds, Life, Seen, View

# Signs of rounds between two printed extends before silent verifies are believed in; and where verifies were printed
# until then, the rounds of the draft without one, to the end, that show that they are printed no more.
_SIGNS = 2
_STOPPED = 8
# Passes that lack layers, and passes that have them twice, from which on both come from mixed-up writers.
_MIXED = 3


# ------------------------------------------------------------------------------------------------- verifies without


class Silent(NamedTuple):
    """Rounds of one scheduler behind its last verify, of which none is printed, and extends around them.

    ``signs``, ``first``: draft_extends without a verify, and statistics lines of rounds without a graph; from the first
    extend on where there is no verify. ``extend``: the last extend with captures; where it stands behind the first
    sign, prints were not simply switched off.
    """

    verify: Seen | None = None
    signs: int = 0
    first: Place | None = None
    extend: Place | None = None

    def __add__(self, other: Silent) -> Silent:  # type: ignore[override]
        """Return both as one."""
        if other.verify is not None:
            return other
        first = self.first or other.first
        return Silent(self.verify, self.signs + other.signs, first, other.extend or self.extend)

    @property
    def told(self) -> bool:
        """Whether rounds and extends go on without a verify."""
        enough = self.signs >= (_STOPPED if self.verify else _SIGNS)
        return bool(enough and self.extend and self.first and self.extend.line > self.first.line)


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
        silent[view.tables.groups[group]] = Silent(
            view.seen(int(last[-1])) if len(last) else None,
            len(signs),
            Place(view.file, signs[0]) if signs else None,
            Place(view.file, extends[-1]) if extends else None,
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
    return next((one for one in part["silent"].values() if one.told), None)


@none_in_verify.answer
def _(part: dict[str, Any], life: Life) -> Iterator[Finding]:
    onset, silent = part["onset"], _silent(part, life)
    if onset.bad and life.fact("target_lines") and not life.segment.graphs_captured:
        if onset.bad * 2 > onset.since:
            yield none_in_verify.told(onset)
    elif silent is not None:
        verify = silent.verify
        before = f"the last verify is pass {verify.number} ({verify.place})" if verify else "no verify is printed"
        where = source_name(verify.source) if verify and len(part["silent"]) > 1 else ""
        yield none_in_verify.finding(
            f"No verify is printed from {silent.first} on, while rounds without CUDA graphs and extends go on.",
            silent.first,
            severity="warning",
            expected=none_in_verify.says["expected"],
            actual=f"{count(silent.signs, 'round')} without one",
            evidence=f"{before}; the extend at {silent.extend} prints captures{f'; in {where}' if where else ''}",
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


class _Set(NamedTuple):
    """The decoder layers one pass captured, sorted, on a pipeline rank (-1: not marked).

    ``twice``: those it captured more than once; ``rising``: printed in layer order.
    """

    stage: int
    layers: tuple[int, ...]
    twice: tuple[int, ...]
    rising: bool


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
def layer_set(view: View) -> dict[str, Kinds]:
    """The captured layers are not those of the contract, or change during the run."""
    stage = np.array([-1 if group[2] is None else group[2] for group in view.tables.groups] + [-1])[view.group]
    # Without its end or its join a pass is a single print, or a piece of the next one.
    whole = (view.join >= 0) | (view.end >= 0) | (stage >= 0)
    looked = view.target & (view.captured > 0) & view.judged & view.clean & whole
    asked = view.contract is not None and any(0 in reading.layers for reading in view.contract.readings())
    mine = _decoders(view, view.layers, asked=asked)
    copies = view.taken(view.captures)["copies"] // np.maximum(view.expected, 1)[:, None]

    def key(row: int) -> _Set:
        order = [layer for layer, times in zip(mine[row], copies[row], strict=True) for _ in range(max(1, times))]
        once = tuple(dict.fromkeys(int(layer) for layer in order if layer >= 0))
        twice = tuple(sorted(layer for layer in once if order.count(layer) > 1))
        return _Set(int(stage[row]), tuple(sorted(once)), twice, once == tuple(sorted(once)))

    def detail(row: int) -> dict[str, Any]:
        lines = view.records["line"][view.captures[row][: view.captured[row]]].tolist()
        return {"states": int(view.states[row]), "lines": f"captures at lines {', '.join(map(str, lines))}"}

    which = distinct(np.concatenate([mine, np.where(mine >= 0, copies, -1), stage[:, None]], axis=1))
    line = view.records["line"][view.first] if view.size else None
    part = {"sets": view.kinds(looked, which, key, line, detail)}
    if view.differing.height:
        # One writer captures other layers than the rest: in the places of theirs.
        others = _decoders(view, view.taken(view.captures, others=True)["layer"], asked=asked)
        theirs = np.where(view.full[:, None], others, mine)

        first = view.lead(view.parted & np.isin(view.event, (LAYER, EMBED)))

        def pair(row: int) -> tuple[tuple[int, ...], ...]:
            return tuple(tuple(sorted(layer for layer in one[row].tolist() if layer >= 0)) for one in (mine, theirs))

        both = distinct(np.concatenate([mine, theirs], axis=1))
        lines = view.others["line"][first]
        part["alone"] = view.kinds(looked, both, pair, lines, lambda row: {"writers": view.writers(int(first[row]))})
    return part


def _decoders(view: View, layers: Array, *, asked: bool) -> Array:
    """Return the decoder layers of each pass, -1 elsewhere.

    The embedding is H104's, unless the contract asks for it; a state that is printed and not joined is none.
    """
    embeds = (layers == 0) & (not asked or ((view.states > 0) & (view.states < view.captured))[:, None])
    return np.where(embeds, -1, layers)


@layer_set.answer
def _(part: dict[str, Kinds], life: Life) -> Iterator[Finding]:
    if part["sets"].found:
        yield from _LayerSets(part, life).findings()
    for server in life.facts.get("named", {}).values():
        yield from _named(server, life)


@layer_set.checked
def _(part: dict[str, Kinds], life: Life) -> Checked:
    named = life.facts.get("named", {}).values()
    if named and not part["sets"].every.seen:
        said = [layers for server in named for layers, _ in server]
        return Checked(sum(map(len, _prints(named))), "start-up line", "; ".join(map(layer_list, dict.fromkeys(said))))
    every = list(dict.fromkeys(one.layers for one in part["sets"].found))
    looked = part["sets"].every.seen
    worth = looked if life.contract is not None or len(every) > 1 or looked > 1 else 0
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
    texts: dict[str, Any] = {
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


class _LayerSets:
    """What the sets of one life say: ``stages`` by pipeline rank the passes of every set."""

    def __init__(self, part: dict[str, Kinds], life: Life) -> None:
        self.life, self.readings, self.looked = life, life.readings, part["sets"].every.seen
        self.alone = part["alone"].found if "alone" in part else {}
        self.stages: dict[int, dict[_Set, Onset]] = {}
        for one, onset in part["sets"].found.items():
            self.stages.setdefault(one.stage, {})[one] = onset

    def reference(self, sets: dict[_Set, Onset]) -> _Set:
        """Return what the run is measured by: the set the contract asks for, else what the run begins with.

        A single pass that lacks layers comes after the others: the first pass may be the odd one. The most frequent set
        is no measure: after a fault it is the faulty one.
        """
        asked = {reading.layers for reading in self.readings}
        most = max(len(one.layers) for one in sets)

        def weight(one: _Set) -> tuple[bool, bool, int]:
            lacks = len(one.layers) < most and len(one.layers) != DEFAULT_STATES
            odd = sets[one].bad == 1 and (lacks or bool(one.twice) or not one.rising)
            return (one.layers not in asked or bool(one.twice), odd, sets[one].first.place.line)

        return min(sets, key=weight)

    def findings(self) -> Iterator[Finding]:
        """Answer for the run's first set against the contract, then for every set that differs from it."""
        usual = {stage: self.reference(sets) for stage, sets in self.stages.items()}
        main = tuple(sorted({layer for one in usual.values() for layer in one.layers}))
        writer = self._writer(main)
        if writer is None or not any(main == reading.layers for reading in self.readings):
            onsets = [self.stages[stage][one] for stage, one in usual.items()]
            found = self._against_contract(main, min(onsets, key=lambda one: one.first.place.line))
            yield from [found] if found else []
        if writer is not None:
            yield writer
            return
        for stage, sets in self.stages.items():
            yield from self._changes(usual[stage], sets)

    def _writer(self, main: tuple[int, ...]) -> Finding | None:
        """Answer for one writer that captures other layers than the rest, in the same passes."""
        found = [(pair, onset) for pair, onset in self.alone.items() if pair[0] != pair[1] and onset.bad]
        if not found or not self.life.copies_known:
            return None
        (one, other), onset = min(found, key=lambda each: each[1].first.place.line)
        good, bad = (one, other) if other != main else (other, one)
        words = {"words": _compare(bad, good), "expected": layer_list(good), "actual": layer_list(bad)}
        # Which of two sets is one writer's is the print's to say, so the same passes count whichever it is.
        both = sum(each.bad for pair, each in found if set(pair) == {one, other})
        first = onset.first._replace(detail=onset.first.detail | words)
        return layer_set.told(replace(onset, bad=both, since=max(both, onset.since), first=first), alone=True)

    def _changes(self, main: _Set, sets: dict[_Set, Onset]) -> Iterator[Finding]:
        # The last pass of a log may be cut.
        def cut(one: _Set, onset: Onset) -> bool:
            last = onset.bad == 1 and onset.since <= len(onset.last_good)
            return last and len(one.layers) < len(main.layers)

        others = {one: onset for one, onset in sets.items() if one != main and not cut(one, onset)}
        order = sorted(others, key=lambda one: others[one].first.place.line)
        twice = sum(others[one].bad for one in order if one.twice)
        less = sum(others[one].bad for one in order if len(one.layers) < len(main.layers))
        if twice >= _MIXED and less >= _MIXED:
            yield layer_set.finding(
                f"In {count(twice + less, 'target pass', 'target passes')} layers are missing or stand twice: several"
                " writers print unmarked into this log, and their passes cannot be told apart.",
                others[order[0]].first.place,
                severity="note",
                help="give each rank a prefix or a file of its own to have its layers checked",
            )
            return
        if main.twice:
            yield self._twice(main, sets[main])
        for one in order:
            yield self._change(main, one, others[one], first=one == order[0])

    def _twice(self, main: _Set, onset: Onset) -> Finding:
        """Answer for a run whose usual passes print a layer more than once, by one writer."""
        twice = layer_list(main.twice)
        return layer_set.finding(
            f"{twice.capitalize()} {'is' if len(main.twice) == 1 else 'are'} captured twice (extra) in every pass.",
            onset.first.place,
            expected=layer_list(main.layers),
            actual=f"{layer_list(main.layers)}, {twice} twice",
            evidence=f"{self._share(onset)}; {onset.first.detail['lines']}",
            help="the capture, or its print, runs twice in a forward",
        )

    def _against_contract(self, main: tuple[int, ...], onset: Onset) -> Finding | None:
        contract, readings, place, have = self.life.contract, self.readings, onset.first.place, layer_list(main)
        if contract is None:
            return None
        if not readings:
            return self._default(main, onset)
        era, target = self.life.era, self.life.watch.target_type
        fits = next((reading for reading in readings if reading.layers == main), None)
        misses = next((reading for reading in readings if reading.layers != main), None)
        if fits is not None:
            open_ = "" if target else "; no line names the target's class"
            return misses and layer_set.finding(
                f"The captured layers fit the contract if this is {fits.when}; {misses.when} should capture"
                f" {layer_list(misses.layers)}.",
                place,
                severity="note",
                expected=f"{layer_list(fits.layers)} ({fits.when}), {layer_list(misses.layers)} ({misses.when})",
                actual=have,
                evidence=f"{era.how}{open_}; {self._share(onset)}",
                help="the same ids mean other layers there, silently: write aux_layers in the contract, or give"
                " --sglang-version where only that is open",
            )
        other = next((reading for reading in contract.readings(None, target) if reading.layers == main), None)
        how = "" if era.era is None or readings[0].era is None else f" ({era.how})"
        return layer_set.finding(
            f"The captured layers are not the contract's: {_compare(main, readings[0].layers)}.",
            place,
            severity="warning" if other is not None else "error",
            expected=" or ".join(layer_list(reading.layers) for reading in readings),
            actual=have,
            evidence=f"{self._share(onset)}; {readings[0].why}{how}",
            help=self._advice(main, other, contract),
        )

    def _default(self, main: tuple[int, ...], onset: Onset) -> Finding | None:
        """Compare with the layers SGLang takes when the config names none: 2, n/2, n - 3."""
        contract = self.life.contract
        if contract is None or contract.states not in (None, DEFAULT_STATES) or not main:
            return None
        known = contract.target_num_hidden_layers
        due = default_layers(known or main[-1] + 3)
        return None if main == due else layer_set.finding(
            "The contract names no layers, and the captured ones are not what SGLang takes then.",
            onset.first.place,
            severity="warning" if known else "note",
            expected=layer_list(due) if known else "layers 2, n/2 and n - 3 of a target with n layers",
            actual=layer_list(main),
            evidence=self._share(onset),
            help="the draft's config.json should name eagle_aux_hidden_state_layer_ids under eagle_config",
        )  # fmt: skip

    def _advice(self, main: tuple[int, ...], other: Reading | None, contract: Contract) -> str:
        asked = contract.readings(None, self.life.watch.target_type)
        if any(set(one.layers) - set(main) == {0} for one in asked):
            if -1 in (contract.aux_layer_ids or ()):
                return "SGLang 0.5.15 drops an id of -1 without a word: id 0 is the embedding there"
            return "only the embedding is missing: compare the ids with the config.json the server loaded"
        if main and main == default_layers(main[-1] + 3):
            hint = (
                "these are the layers SGLang takes when the draft's config names none: ids that stand outside of"
                " eagle_config are not read"
            )
            return hint if other is None else f"{hint}; or the contract's ids are meant as {other.when} reads them"
        if other is not None:
            return f"the ids are meant as {other.when} reads them: shift eagle_aux_hidden_state_layer_ids by one"
        named = "aux_layers" if contract.aux_layers else "eagle_aux_hidden_state_layer_ids"
        return f"compare {named} of the contract with the config.json the server loaded"

    def _share(self, onset: Onset) -> str:
        return f"{onset.bad:,} of {count(self.looked, 'target pass', 'target passes')}"

    def _change(self, main: _Set, other: _Set, onset: Onset, *, first: bool) -> Finding:
        changed = set(main.layers) != set(other.layers)
        parts = [_compare(other.layers, main.layers)] if changed else []
        if other.twice and not main.twice:
            parts.append(f"{layer_list(other.twice)} captured twice (extra)")
        if main.twice and not other.twice:
            parts.append(f"{layer_list(main.twice)} captured once")
        if other.rising != main.rising:
            parts.append("printed in layer order again" if other.rising else "printed out of layer order")
        words = ", ".join(parts) or layer_list(other.layers)
        lost = set(other.layers) < set(main.layers) and onset.first.detail["states"] == len(main.layers)
        phase, good = onset.only_phase, onset.good_before if first else None
        message = f"The captured layers change at {pass_name(onset.first)}: {words}."
        later = f"; {onset.bad:,} of {onset.since:,} since then" if onset.bad > 1 else ""
        before = f"; the last good one before it is pass {good.number} ({good.place})" if good else ""
        if phase is not None:
            # It is no change in time: a condition around the capture looks at the phase.
            message = f"All {count(onset.bad, f'{phase} pass', f'{phase} passes')} capture other layers: {words}."
            later = before = ""
        return layer_set.finding(
            message,
            onset.first.place,
            severity="warning" if lost else "error",
            expected=layer_list(main.layers),
            actual=layer_list(other.layers) + (f", {layer_list(other.twice)} twice" if other.twice else ""),
            evidence=f"{self._share(onset)}{later}; {onset.first.detail['lines']}{before}{onset.at_fault}",
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


def between_lives(lives: Iterable[Life]) -> Iterator[Finding]:
    """Yield a note where two lives in a row of one file capture other layers for the draft of the same path.

    Each may be right by its own version of SGLang; the draft was trained on one of the two. A pipeline's layers are
    known only when all its ranks are.
    """
    usual = []
    for life in sorted(lives, key=lambda one: (one.segment.file, one.segment.number)):
        stages = _LayerSets(life.parts["H103"], life).stages if "H103" in life.parts else {}
        if len(stages) == 1:
            (sets,) = stages.values()
            main = _LayerSets(life.parts["H103"], life).reference(sets)
            usual.append((life.segment, main.layers, sets[main].first.place))
    for (one, before, at), (other, now, place) in pairwise(usual):
        draft, path = (each.server_args.get("speculative_draft_model_path") for each in (one, other))
        if one.file == other.file and before != now and draft is not None and draft == path:
            yield layer_set.finding(
                f"Run {other.number} captures {layer_list(now)} where run {one.number} captured {layer_list(before)},"
                " for the same draft.",
                place,
                severity="note",
                expected=layer_list(before),
                actual=layer_list(now),
                evidence=f"run {one.number} at {at}; both name {draft}",
                help="unless the draft was exchanged, one of them is not what it was trained on: config ids mean"
                " other layers from SGLang 0.5.13 on; aux_layers in the contract decides which",
            )


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

    first = view.lead((view.event == EMBED) | (view.records["layer"] == 0))
    return view.onset(looked, among, view.taken(first)["line"], detail)


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
    part: dict[str, Any] = {"captured": frozenset(np.unique(view.layers[view.layers >= 0]).tolist())}
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
