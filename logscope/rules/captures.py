"""Rules about what is captured: in which passes, in which mode, from which layers.

This module is responsible for H101 to H105. It must not look at norms beyond what tells a printed state from a joined
one.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from logscope.contract import DEFAULT_STATES
from logscope.model import Finding, Place, states
from logscope.queries.setup import GRAPHS
from logscope.queries.words import count, layer_list, source_name, whole_numbers
from logscope.rules.base import Checked, Onset, Rule, at_fault, is_embedding, pass_name, register, source_of
from logscope.versions import default_layers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from logscope.contract import Reading
    from logscope.model import ForwardPass, Payload, Segment, ServerEvent
    from logscope.rules.base import Scene, View

_MOST_SETS = 64
# Signs of rounds between two printed extends before silent verifies are believed in; and where verifies were printed
# until then, the rounds of the draft without one, to the end, that show that they are printed no more.
_SIGNS = 2
_STOPPED = 8
# Passes that lack layers, and passes that have them twice, from which on both come from mixed-up writers.
_MIXED = 3


class _Stop:
    """What came after a scheduler's last verify: rounds of the draft, the first of them, an extend behind that."""

    __slots__ = ("extend", "first", "rounds", "verify")

    def __init__(self, verify: ForwardPass) -> None:
        self.verify = verify
        self.rounds = 0
        self.first: Place | None = None
        self.extend: Place | None = None


@register(
    "H101",
    "none-in-verify",
    "error",
    group="captures",
    needs="verify passes of real requests, or rounds of the draft around them, outside CUDA graphs",
)
class NoneInVerify(Rule):
    """Serving verify passes have no hidden capture, and no graph explains it."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._onset = Onset()
        self._graph = False
        # Signs of rounds since the last printed target pass: statistics lines, draft_extends without a verify.
        self._signs = 0
        self._first_sign: Place | None = None
        self._any_verify = False
        self._extends = 0
        self._silent: tuple[Place, Place] | None = None
        self._stops: dict[tuple[Any, ...], _Stop] = {}
        # Whether the target's own lines are printed at all: where none is, a missing one says nothing.
        self._printed = False

    def see(self, view: View) -> None:
        """Look for captures in a verify pass; for rounds that no target pass belongs to."""
        item = view.item
        self._printed = self._printed or bool(view.captures) or "forward_end" in view.first
        if item.during != "serving":
            return
        if item.role == "draft":
            # A second draft_extend without a target pass between them: a verify ran and printed nothing.
            if item.phase == "draft_extend" and (view.order or 0) > 0:
                self._sign(item.place)
                if (stop := self._stops.get(item.group)) is not None:
                    stop.rounds += 1
                    stop.first = stop.first or item.place
            return
        if item.phase != "extend":
            self._any_verify = True
            self._stops[item.group] = _Stop(item)
        if item.phase == "verify" and item.complete:
            self.looked += 1
            if view.captures:
                self._onset.good(item)
            elif view.clean:
                self._onset.fault(item)
        elif item.phase == "extend" and view.captures and item.complete:
            # Prints go on after the silent rounds, so they were not simply switched off.
            if self._extends and self._signs >= _SIGNS and self._first_sign is not None:
                self._silent = self._silent or (self._first_sign, item.place)
            if (stop := self._stops.get(item.group)) is not None and stop.first is not None:
                stop.extend = stop.extend or item.place
            self._extends += 1
        self._signs, self._first_sign = 0, None

    def _sign(self, place: Place) -> None:
        self._signs += 1
        self._first_sign = self._first_sign or place

    def server(self, event: ServerEvent) -> None:
        """Take a statistics line: rounds were run; with or without a graph."""
        fields = event.payload.fields
        if event.payload.event != "decode_stats" or event.during != "serving":
            return
        if any(fields.get(name) is True for name in GRAPHS):
            self._graph = True
        elif fields.get("accept_len") is not None and fields.get("cuda_graph") is False:
            self._sign(event.place)

    def findings(self) -> Iterator[Finding]:
        """Answer when most verify passes have no capture, or none is printed at all."""
        graphs = self.scene.segment.graphs_captured
        if self._onset and self._printed and not graphs and self._onset.bad * 2 > self._onset.since:
            yield self.finding(
                "Verify passes have no hidden capture, and no CUDA graph explains it.",
                self._onset.place,
                onset=self._onset,
                expected="hidden captures in every verify",
                actual="none",
                evidence=self._onset.words,
                help="the target captures in extend only: look at the condition around its capture code",
            )
        elif self._silent is not None and not (self._any_verify or self._graph or graphs):
            first, last = self._silent
            yield self.finding(
                "Extends print hidden captures, verifies print none, and the rounds ran without CUDA graphs.",
                first,
                severity="warning",
                expected="hidden captures in every verify",
                actual="no verify is printed",
                evidence=f"rounds were run at {first}, and the next extend at {last} prints captures again",
                help="the target captures in extend only, or its prints stand in the extend branch only",
            )
        elif (stop := self._stopped()) is not None and not (self._graph or graphs):
            where = source_name(stop.verify.group)
            yield self.finding(
                f"No verify is printed any more from {stop.first} on, while the draft's rounds and extends go on.",
                stop.first,
                severity="warning",
                expected="hidden captures in every verify",
                actual=f"{count(stop.rounds, 'round')} of the draft without one",
                evidence=f"the last verify is pass {stop.verify.number} ({stop.verify.place}); the next extend at"
                f" {stop.extend} prints captures again, and the rounds ran without CUDA graphs"
                f"{f'; in {where}' if where and len(self._stops) > 1 else ''}",
                help="something switches captures, or their prints, off in verify while the server runs",
            )

    def _stopped(self) -> _Stop | None:
        """Return since when one scheduler prints extends and rounds of the draft, and no verify to the end."""
        stops = self._stops.values() if self._printed else ()
        return next((stop for stop in stops if stop.rounds >= _STOPPED and stop.extend is not None), None)

    def checked(self) -> Checked:
        """Verify passes looked at."""
        silent = self._silent is not None and not (self._any_verify or self._graph)
        return Checked((self.looked if self._printed else 0) + silent)

    def why_not(self) -> str:
        """Graphs hide verifies; else nothing tells that there were any."""
        if self._graph or self.scene.segment.graphs_captured:
            return "verify passes ran in CUDA graphs, where nothing prints (L103)"
        if self.looked and not self._printed:
            return "no line of the target's own is in this log: captures are not printed at all"
        return super().why_not()


@register(
    "H102",
    "hidden-mode",
    "error",
    group="captures",
    needs="the joined state of a target pass with its capture_hidden_mode, or with fewer rows than its captures",
)
class HiddenMode(Rule):
    """capture_hidden_mode is not FULL where the draft needs every row: in target extend and verify."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._onsets: dict[str, Onset] = {}

    def see(self, view: View) -> None:
        """Look at the mode of a target pass's join; a mode that is printed as a number is confirmed by rows."""
        item, join = view.item, view.join
        if item.role != "target" or join is None or not view.judged or not self.scene.is_eagle3:
            return
        mode = join.payload.mode
        rows = view.captures[0].payload.rows if view.captures else item.rows
        have = join.payload.rows
        fewer = rows is not None and have is not None and have < rows
        if mode is not None and not mode.isdigit():
            fault = mode not in ("FULL", "2")
        elif rows is not None and have is not None and not self.scene.rows_may_differ:
            fault = fewer
        else:
            return
        self.looked += 1
        onset = self._onsets.setdefault(item.phase, Onset())
        if fault:
            onset.fault(item, join, (mode, rows, have))
        else:
            onset.good(item)

    def findings(self) -> Iterator[Finding]:
        """Answer once for each phase."""
        for phase, onset in self._onsets.items():
            if not onset:
                continue
            mode, rows, have = onset.detail
            name = mode if mode is not None and not mode.isdigit() else f"{mode or 'a mode'} that keeps fewer rows"
            kept = f": {count(have, 'row')} of {rows} kept" if rows is not None and have is not None else ""
            if have is not None and have == rows:
                kept = f"; all {count(rows, 'row')} stand in the join all the same" if rows != 1 else ""
            what = "" if phase == "unknown" else f" {phase}"
            yield self.finding(
                f"The target's{what} passes keep hidden states in mode {name} where the draft needs FULL{kept}.",
                onset.place,
                onset=onset,
                expected="FULL",
                actual=name,
                evidence=onset.words,
                help="the draft reads a state for every token: use FULL for target extend and verify",
            )


class _Set:
    """All passes that captured one set of layers.

    ``before``: the last pass of every other set before its first one, from the same source. ``start``: how many passes
    had been looked at.
    """

    __slots__ = ("before", "count", "first", "lines", "phases", "place", "sources", "start", "states")

    def __init__(self, view: View, before: dict[_Layers, tuple[int, Place]], start: int) -> None:
        self.count = 0
        self.first = view.item
        self.place = Place(view.item.file, view.records[0].line)
        self.before = before
        self.start = start
        self.states = view.num_aux
        self.lines = [record.line for record in view.all_captures]
        self.sources: set[tuple[Any, ...]] = set()
        self.phases: Counter[str] = Counter()


class Usual(NamedTuple):
    """The decoder layers one server life captures, and the first place that shows them."""

    segment: Segment
    layers: tuple[int, ...]
    place: Place


def between_lives(lives: Iterable[Usual]) -> Iterator[Finding]:
    """Yield a note where two lives in a row of one file capture other layers for the draft of the same path.

    Each may be right by its own version of SGLang; the draft was trained on one of the two.
    """
    before: Usual | None = None
    for life in sorted(lives, key=lambda one: (one.segment.file, one.segment.number)):
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


class _Layers(NamedTuple):
    """The decoder layers one pass captured, sorted; ``twice`` more than once; ``rising``: printed in layer order."""

    layers: tuple[int, ...]
    twice: tuple[int, ...] = ()
    rising: bool = True


@register(
    "H103",
    "layers",
    "error",
    group="captures",
    needs="captures with their layer numbers, and a contract that names layers (or a set that changes during the run)",
)
class LayerSet(Rule):
    """The captured layers are not those of the contract, or change during the run."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        # By pipeline rank, None where none is printed: each captures the layers it runs, together they are one target.
        self._stages: dict[int | None, dict[_Layers, _Set]] = {}
        self._phases: Counter[str] = Counter()
        # By source: its last pass with each set.
        self._latest: dict[tuple[Any, ...], dict[_Layers, tuple[int, Place]]] = {}
        self._asked_embedding = scene.contract is not None and any(
            0 in reading.layers for reading in scene.contract.readings()
        )

    def see(self, view: View) -> None:
        """Take the layers of one target pass."""
        item = view.item
        if item.role != "target" or not view.all_captures or not view.judged or not view.clean:
            return
        stage = item.records[0].first[2].pp_rank
        if view.join is None and "forward_end" not in view.first and stage is None:
            return  # single prints, or a piece of the next pass
        self.looked += 1
        captured = self._layers(view)
        sets = self._stages.setdefault(stage, {})
        known = sets.get(captured)
        latest = self._latest.setdefault(source_of(item), {})
        if known is None and len(sets) < _MOST_SETS:
            known = sets[captured] = _Set(view, {**latest}, self.looked - 1)
        if known is not None:
            known.count += 1
            known.sources.add(source_of(item))
            known.phases[item.phase] += 1
            self._phases[item.phase] += 1
            latest[captured] = (item.number, item.place)

    def _layers(self, view: View) -> _Layers:
        order: list[int] = []
        joined = view.joined
        for record in view.all_captures:
            layer = record.payload.layer
            # The embedding is H104's, unless the contract asks for it; a state that is printed and not joined is none.
            if layer is None or (is_embedding(record.payload) and not self._asked_embedding):
                continue
            if layer == 0 and joined is not None and record not in joined:
                continue
            copies = record.copies // view.item.expected_copies if view.item.expected_copies else 1
            order += [layer] * max(1, copies)
        once = list(dict.fromkeys(order))
        twice = tuple(sorted(layer for layer in once if order.count(layer) > 1))
        return _Layers(tuple(sorted(once)), twice, once == sorted(once))

    def _reference(self, sets: dict[_Layers, _Set]) -> _Layers:
        """Return what the run is measured by: the set the contract asks for, else what the run begins with.

        A single pass that lacks layers comes after the others: the first pass may be the odd one. The most frequent set
        is no measure: after a fault it is the faulty one.
        """
        asked = {reading.layers for reading in self.scene.readings}
        most = max(len(one.layers) for one in sets)

        def odd(one: _Layers) -> bool:
            lacks = len(one.layers) < most and len(one.layers) != DEFAULT_STATES
            return sets[one].count == 1 and (lacks or bool(one.twice) or not one.rising)

        return min(sets, key=lambda one: (one.layers not in asked or bool(one.twice), odd(one), sets[one].start))

    def findings(self) -> Iterator[Finding]:
        """Answer for the run's first set against the contract, then for every set that differs from it."""
        if not self._stages:
            return
        usual = {stage: self._reference(sets) for stage, sets in self._stages.items()}
        if len(usual) == 1:
            (main,) = usual.values()
            (seen,) = [sets[main] for sets in self._stages.values()]
        else:
            layers = sorted({layer for one in usual.values() for layer in one.layers})
            main = _Layers(tuple(layers))
            seen = min((self._stages[stage][one] for stage, one in usual.items()), key=lambda one: one.place.line)
        yield from self._against_contract(main, seen)
        for stage, sets in self._stages.items():
            yield from self._changes(usual[stage], sets)

    def usual(self) -> Usual | None:
        """Return what this server life captures, to be compared with the lives before and after it."""
        if len(self._stages) != 1:
            return None  # a pipeline's layers are known only when all its ranks are
        (sets,) = self._stages.values()
        main = self._reference(sets)
        return Usual(self.scene.segment, main.layers, sets[main].place)

    def _changes(self, main: _Layers, sets: dict[_Layers, _Set]) -> Iterator[Finding]:
        others = sorted((pair for pair in sets.items() if pair[0] != main), key=lambda pair: pair[1].first.line)
        twice = sum(seen.count for other, seen in others if other.twice)
        less = sum(seen.count for other, seen in others if len(other.layers) < len(main.layers))
        if twice >= _MIXED and less >= _MIXED:
            self.scene.lessened.append(self._mixed(twice + less, others[0][1]))
            return
        if main.twice:
            yield self._twice(main, sets[main])
        for other, seen in others:
            yield self._change(main, other, seen)

    def _twice(self, main: _Layers, seen: _Set) -> Finding:
        """Answer for a run whose usual passes print a layer more than once, by one writer."""
        return self.finding(
            f"{layer_list(main.twice).capitalize()} {'is' if len(main.twice) == 1 else 'are'} captured twice (extra) in"
            f" every pass of one writer.",
            seen.place,
            onset=Onset.of(seen.count, self.looked),
            expected=layer_list(main.layers),
            actual=f"{layer_list(main.layers)}, {layer_list(main.twice)} twice",
            evidence=f"{self._share(seen)}; captures at lines {', '.join(map(str, seen.lines))}",
            help="the capture, or its print, runs twice in a forward",
        )

    def _mixed(self, times: int, seen: _Set) -> Finding:
        """Answer where passes both lack layers and have them twice: prints of several writers that look like one."""
        return self.finding(
            f"In {count(times, 'target pass', 'target passes')} layers are missing or stand twice: several writers"
            " print unmarked into this log, and their passes cannot be told apart.",
            seen.place,
            severity="note",
            help="give each rank a prefix or a file of its own to have its layers checked",
        )

    def _against_contract(self, main: _Layers, seen: _Set) -> Iterator[Finding]:
        contract = self.scene.contract
        if contract is None:
            return
        era, readings = self.scene.era, self.scene.readings
        if not readings:
            yield from self._default(main, seen)
            return
        if any(main.layers == reading.layers for reading in readings):
            if len(readings) > 1:
                yield self._either(main, seen, readings, era.how)
            return
        every = contract.readings(None, self.scene.watch.target_type)
        other = next((reading for reading in every if reading.layers == main.layers), None)
        expected = readings[0]
        how = "" if era.era is None or expected.era is None else f" ({era.how})"
        yield self.finding(
            f"The captured layers are not the contract's: {self._compare(main.layers, expected.layers)}.",
            seen.place,
            severity="warning" if other is not None else self.severity,
            expected=" or ".join(layer_list(reading.layers) for reading in readings),
            actual=layer_list(main.layers),
            evidence=f"{self._share(seen)}; {expected.why}{how}",
            help=self._advice(main, other),
        )

    def _either(self, main: _Layers, seen: _Set, readings: Sequence[Reading], how: str) -> Finding:
        fits = next(reading for reading in readings if reading.layers == main.layers)
        misses = next(reading for reading in readings if reading.layers != main.layers)
        return self.finding(
            f"The captured layers fit the contract if this is {fits.when}; {misses.when} should capture"
            f" {layer_list(misses.layers)}.",
            seen.place,
            severity="note",
            expected=f"{layer_list(fits.layers)} ({fits.when}), {layer_list(misses.layers)} ({misses.when})",
            actual=layer_list(main.layers),
            evidence=f"{how}{self._class()}; {self._share(seen)}",
            help="the same ids mean other layers there, silently: write aux_layers in the contract, or give"
            " --sglang-version where only that is open",
        )

    def _class(self) -> str:
        return "; no line names the target's class" if self.scene.watch.target_type is None else ""

    def _default(self, main: _Layers, seen: _Set) -> Iterator[Finding]:
        """Compare with the layers SGLang takes when the config names none: 2, n/2, n - 3."""
        contract = self.scene.contract
        if contract is None or contract.states not in (None, 3) or not main.layers:
            return
        depth = contract.target_num_hidden_layers or main.layers[-1] + 3
        if main.layers == default_layers(depth):
            return
        known = contract.target_num_hidden_layers is not None
        yield self.finding(
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

    @staticmethod
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

    def _advice(self, main: _Layers, other: Reading | None) -> str:
        contract = self.scene.contract
        asked = contract.readings(None, self.scene.watch.target_type) if contract is not None else ()
        if contract is not None and any(set(one.layers) - set(main.layers) == {0} for one in asked):
            if -1 in (contract.aux_layer_ids or ()):
                return "SGLang 0.5.15 drops an id of -1 without a word: id 0 is the embedding there"
            return "only the embedding is missing: compare the ids with the config.json the server loaded"
        if main.layers and main.layers == default_layers(main.layers[-1] + 3):
            hint = (
                "these are the layers SGLang takes when the draft's config names none: ids that stand outside of"
                " eagle_config are not read"
            )
            if other is None:
                return hint
            return f"{hint}; or the contract's ids are meant as {other.when} reads them"
        if other is not None:
            return f"the ids are meant as {other.when} reads them: shift eagle_aux_hidden_state_layer_ids by one"
        named = "aux_layers" if contract is not None and contract.aux_layers else "eagle_aux_hidden_state_layer_ids"
        return f"compare {named} of the contract with the config.json the server loaded"

    def _share(self, seen: _Set) -> str:
        return f"{seen.count:,} of {count(self.looked, 'target pass', 'target passes')}"

    def _change(self, main: _Layers, other: _Layers, seen: _Set) -> Finding:
        missing = tuple(layer for layer in main.layers if layer not in other.layers)
        extra = tuple(layer for layer in other.layers if layer not in main.layers)
        parts = [self._compare(other.layers, main.layers)] if missing or extra else []
        if other.twice and not main.twice:
            parts.append(f"{layer_list(other.twice)} captured twice (extra)")
        if main.twice and not other.twice:
            parts.append(f"{layer_list(main.twice)} captured once")
        if other.rising != main.rising:
            parts.append("printed in layer order again" if other.rising else "printed out of layer order")
        lost = missing and not extra and seen.states is not None and seen.states == len(main.layers)
        since = self.looked - seen.start
        later = "" if seen.count == 1 else f"; {seen.count:,} of {since:,} since then"
        good = seen.before.get(main)
        before = "" if good is None else f"; the last good one before it is pass {good[0]} ({good[1]})"
        words = ", ".join(parts) or layer_list(other.layers)
        message = f"The captured layers change at {pass_name(seen.first)}: {words}."
        phase = next(iter(seen.phases))
        again = any(main in latest and latest[main][1].line > seen.place.line for latest in self._latest.values())
        if len(seen.phases) == 1 < seen.count == self._phases[phase] and again and "unknown" not in self._phases:
            # It is no change in time: a condition around the capture looks at the phase.
            message = f"All {count(seen.count, f'{phase} pass', f'{phase} passes')} capture other layers: {words}."
            later = before = ""
        return self.finding(
            message,
            seen.place,
            onset=Onset.of(seen.count, since),
            severity="warning" if lost else self.severity,
            expected=layer_list(main.layers),
            actual=layer_list(other.layers) + (f", {layer_list(other.twice)} twice" if other.twice else ""),
            evidence=f"{self._share(seen)}{later}; captures at lines {', '.join(map(str, seen.lines))}{before}"
            f"{at_fault(seen.first, seen.sources, self._latest)}",
            help="the joined state still has all of them: the line is missing in the log, not the state in the join"
            if lost
            else "something switches captures on and off while the server runs",
        )

    def checked(self) -> Checked:
        """Target passes looked at, when there is something to compare them with."""
        contract = self.scene.contract
        every = list(dict.fromkeys(one.layers for sets in self._stages.values() for one in sets))
        worth = self.looked if contract is not None or len(every) > 1 or self.looked > 1 else 0
        return Checked(worth, "pass", "; ".join(map(layer_list, every[:4])) or None)


@register(
    "H104",
    "embedding",
    "error",
    group="captures",
    needs="target passes that print both their captures and how many states they joined",
)
class Embedding(Rule):
    """The embedding output is among the joined states, and the contract does not ask for it."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._onset = Onset()

    def see(self, view: View) -> None:
        """Look whether the embedding was joined."""
        if view.item.role != "target" or not view.captures or view.rows == 0 or view.edge:
            return
        if not view.told_apart:
            return
        joined = view.joined
        if joined is None:
            return
        self.looked += 1
        record = next((one for one in joined if is_embedding(one.payload)), None)
        if record is None:
            self._onset.good(view.item)
        else:
            self._onset.fault(view.item, record, (record, view.join, len(joined)))

    def findings(self) -> Iterator[Finding]:
        """Answer unless the contract asks for layer 0."""
        if not self._onset:
            return
        contract, readings = self.scene.contract, self.scene.readings
        if any(0 in reading.layers for reading in readings):
            return
        record, join, joined = self._onset.detail
        hidden = self.scene.hidden
        if contract is not None and contract.names_layers:
            severity, asked = self.severity, f"the contract asks for {layer_list(readings[0].layers)}"
        else:
            severity, asked = "warning", "no contract says that the draft reads it"
        width = states(join.payload.width, hidden) if join is not None else count(joined, "state")
        residual = record.payload.fields.get("residual_is_none")
        proof = " (residual_is_none=True)" if residual is True else ""
        yield self.finding(
            f"The embedding output is among the {joined} joined states: {width}.",
            self._onset.place,
            onset=self._onset,
            severity=severity,
            expected="decoder layers only",
            actual=f"the embedding and {count(joined - 1, 'layer')}",
            evidence=f"line {record.line}{proof}; {asked}; {self._onset.words}",
            help="remove its id from eagle_aux_hidden_state_layer_ids, or give the contract of a draft that reads it",
        )


@register(
    "H105",
    "impossible-layer",
    "error",
    group="captures",
    needs="the target's number of layers: a capture plan, the target's config, or target_num_hidden_layers",
)
class ImpossibleLayer(Rule):
    """A requested layer can never be captured in this target."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._plan: tuple[Payload, Place] | None = None
        self._captured: set[int] = set()
        self._joined: tuple[int, Place] | None = None
        self._first: Place | None = None

    def see(self, view: View) -> None:
        """Take a capture plan, and what was really captured and joined."""
        item = view.item
        plan = view.first.get("capture_plan")
        if plan is not None:
            self._take(plan.payload, Place(item.file, plan.line))
        if item.role != "target":
            return
        self._first = self._first or item.place
        for record in view.captures:
            if record.payload.layer is not None:
                self._captured.add(record.payload.layer)
        if view.join is not None and view.num_aux is not None and self._joined is None:
            self._joined = (view.num_aux, Place(item.file, view.join.line))

    def server(self, event: ServerEvent) -> None:
        """Take a capture plan that stands between passes."""
        if event.payload.event == "capture_plan":
            self._take(event.payload, event.place)

    def _take(self, payload: Payload, place: Place) -> None:
        if self._plan is None and payload.usable:
            self._plan = (payload, place)

    def _asked(self) -> tuple[tuple[int, ...], int, Place | None, str] | None:
        """Return (layers asked for, depth of the target, where, how it is known)."""
        contract = self.scene.contract
        depth = contract.target_num_hidden_layers if contract is not None else None
        if self._plan is not None:
            payload, place = self._plan
            planned = whole_numbers(payload.fields.get("layers_to_capture"))
            printed = payload.fields.get("num_hidden_layers")
            depth = printed if isinstance(printed, int) else depth
            if planned is not None and depth is not None:
                return tuple(planned), depth, place, "the capture plan"
        readings = self.scene.readings
        if depth is None or not readings:
            return None
        # With two readings only what is impossible in both is certain.
        common = set(readings[0].layers).intersection(*(reading.layers for reading in readings[1:]))
        beyond = {layer for layer in readings[0].layers if all(max(one.layers) >= depth for one in readings)}
        layers = sorted(common if len(readings) == 1 else common | beyond)
        return tuple(layers), depth, self._first, "the contract"

    def findings(self) -> Iterator[Finding]:
        """Answer for the layers that no pass of this target can reach."""
        asked = self._asked()
        if asked is None:
            return
        layers, depth, place, how = asked
        never = [layer for layer in layers if (layer >= depth or layer < 0) and layer not in self._captured]
        printed = len(self._captured - {0})
        if not never or (self._joined is not None and self._joined[0] >= max(len(layers), printed + 1)):
            return  # newer targets can capture the state behind their last layer: it arrives without a capture line
        arrived = f"; {count(self._joined[0], 'state')} arrived ({self._joined[1]})" if self._joined is not None else ""
        shifted = ""
        requested = whole_numbers(self._plan[0].fields.get("requested")) if self._plan is not None else None
        if requested is not None and [one + 1 for one in requested] == list(layers):
            shifted = f"; the plan is shifted by one from the ids {requested}"
        yield self.finding(
            f"{layer_list(never).capitalize()} can never be captured: the target has {depth} layers, 0 to {depth - 1}.",
            place,
            expected=f"layers 0 to {depth - 1}",
            actual=layer_list(layers),
            evidence=f"{how}{shifted}{arrived}",
            help="SGLang captures before a layer runs: a layer id equal to the number of layers is never reached",
        )

    def checked(self) -> Checked:
        """Plans looked at."""
        return Checked(0 if self._asked() is None else 1, "plan")
