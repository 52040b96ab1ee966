"""A difference between two runs in words: what differs, where, what agrees before it, and what it may mean.

This module is responsible for turning a :class:`~logscope.diffing.compare.Difference` into a finding and into a row. It
must not know how passes were compared, nor what else stands in the report.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from logscope.diffing.states import CAPTURE, FORWARD, JOIN, Slot, State
from logscope.model import Finding, Place, Severity
from logscope.queries.words import and_list, count, layer_list, layer_name, width_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logscope.diffing.align import Alignment, Ground
    from logscope.diffing.compare import Difference, What

SIDES = ("baseline", "candidate")
# The rule a difference is reported under, and how grave it is.
RULES: dict[What, tuple[str, Severity]] = {
    "norm": ("N201", "warning"),
    "head": ("N201", "warning"),
    "not_finite": ("N201", "error"),
    "captures": ("D102", "error"),
    "joined": ("D102", "error"),
    "shape": ("D102", "error"),
    "mode": ("D102", "error"),
    "record": ("D103", "warning"),
    "copies": ("D103", "warning"),
    "rank": ("D103", "warning"),
}
# The codes of differences beside N201: name and usual severity. Their pages are docs/rules/CODE.md.
CODES: dict[str, tuple[str, Severity]] = {
    "D101": ("configuration", "warning"),
    "D102": ("form", "error"),
    "D103": ("records", "warning"),
    "D104": ("acceptance", "warning"),
    "D105": ("error", "error"),
}
GROUNDS: dict[Ground, str] = {
    "state": "the same pass: rows and lowest common state agree",
    "other": "the same pass: another of its states agrees in norm and first values",
    "near": "the same pass by all that is printed: its lowest state agrees up to bf16 noise",
    "order": "the same pass with its rows in another order: rows and norms agree, first values do not",
    "pieces": "one prefill cut differently: rows add up, norms add in quadrature, the first values agree",
    "follows": "the same input: everything printed in the round before is equal in both runs",
    "place": "the same rows in the same place; no lowest state is printed whole on both sides",
    "first": "the same input: the first prefills of both runs have the same rows in the same order",
}
# What differs in value, not in form.
_VALUES: tuple[What, ...] = ("norm", "head", "not_finite")
# Head values whose ratios spread less than this are one vector, scaled: two roundings of bf16 and a little.
_PROPORTIONAL = 0.03
_NOT_INPUT = "not another input but another state"
# rms over the captured layers: alike, and growing, as the residual stream of a decoder does.
_LEVEL = 1.1
_GROWING = 1.5


def state_name(role: str, slot: Slot) -> str:
    """Return what a record of a pass is called: ``layer 31``, ``joined state``, ``input state``."""
    names = {
        "aux_concat": "joined state" if role == "target" else "output state",
        "forward": "input state",
        "fc_output": "fc output",
    }
    name = layer_name("", slot.layer) if slot.event == CAPTURE else names.get(slot.event, slot.event.replace("_", " "))
    return name if slot.nth == 0 else f"{name} (record {slot.nth + 1} of the pass)"


def pass_name(difference: Difference, side: int = 0) -> str:
    """Return ``verify pass 14 of the target``, counted on one side."""
    phase = "pass" if difference.phase == "unknown" else f"{difference.phase} pass"
    warm = ", in the warm-up" if difference.during == "warmup" else ""
    return f"{phase} {difference.sides[side].ordinal} of the {difference.role}{warm}"


def signed(relative: float | None) -> str | None:
    """Return a relative difference as ``+6.3 %``, None for none."""
    if relative is None:
        return None
    if not relative:
        return "0 %"
    percent = 100 * relative
    return f"{percent:+.1f} %" if abs(percent) >= 1 else f"{percent:+.2g} %"


class Words:
    """Words for the differences of one comparison. ``hidden`` is the hidden size, None when it cannot be told."""

    def __init__(self, alignment: Alignment, hidden: int | None) -> None:
        self.alignment = alignment
        self.hidden = hidden

    def findings(self, differences: Sequence[Difference], most: int) -> list[Finding]:
        """Return the first differences as findings: captured layers once, and what follows from another as a note."""
        captures = [difference for difference in differences if difference.what == "captures"]
        out: list[Finding] = []
        for difference in differences:
            if difference.what == "captures" and difference is not captures[0]:
                continue
            if len(out) == most:
                break
            rule, severity = RULES[difference.what]
            message = self.message(difference)
            if difference.what == "captures" and len(captures) > 1:
                message += f"; {and_list([other.phase for other in captures[1:]])} passes alike"
            cause = next((other for other in differences if _causes(other, difference)), None)
            if cause is not None:
                severity = "note"
                message += f" (behind {state_name(cause.role, cause.slot)} of the same round)"
            place = next(Place(spot.file, spot.line) for spot in reversed(difference.sides) if spot.line)
            values = self.value(difference, 0), self.value(difference, 1)
            # What a value means is told by what agrees before it: behind another difference nothing is.
            follows = difference.what in _VALUES and any(_before(other, difference) for other in differences)
            told = None if follows else self.help(difference)
            out.append(Finding(rule, severity, message, place, *values, self.evidence(difference), told))
        return out

    def message(self, difference: Difference) -> str:
        """Return what differs and how often."""
        more = ""
        if difference.count > 1:
            more = f"; so in {count(difference.count, 'pass')}"
            if signed(difference.largest) != signed(difference.relative):
                more += f", at most {signed(difference.largest)}"
        return f"{self.clause(difference)}{more}"

    def clause(self, difference: Difference) -> str:
        """Return the first place of a difference in one clause."""
        name, where = state_name(difference.role, difference.slot), pass_name(difference)
        values = f"{self.value(difference, 0)} against {self.value(difference, 1)}"
        lacking = SIDES[0] if difference.sides[0].line == 0 else SIDES[1]
        match difference.what:
            case "norm":
                cut = ", its pieces added in quadrature" if difference.pieces != (1, 1) else ""
                change = signed(difference.relative) or "from zero"
                return f"{name} first differs by {change} in {where} (norm {values}{cut})"
            case "head":
                return f"{name} has other first values in {where} while its norm agrees: other content or another order"
            case "not_finite":
                ill = SIDES[1] if _is_finite(difference.sides[0].value) else SIDES[0]
                return f"{name} is not finite in the {ill}, first in {where} (norm {values})"
            case "captures":
                return f"{self._captures(difference)}, from {where} on"
            case "record" if difference.slot.nth:
                return f"{name} stands only in the {SIDES[lacking == SIDES[0]]}, in {where}"
            case "record":
                return f"{name} is missing in the {lacking}, in {where}"
            case "mode":
                return f"hidden mode of the {name} first differs in {where}: {values}"
            case "joined":
                return f"number of joined states first differs in {where}: {values}"
            case "shape":
                return f"shape of the {name} first differs in {where}: {values}"
            case "copies":
                return f"{name} is printed by another number of writers in {where}: {values}"
            case "rank":
                return f"the ranks of one run disagree on {name} in {where}: {values}"

    def _captures(self, difference: Difference) -> str:
        """Return in which way the captured layers differ."""
        one, other = difference.sides[0].value, difference.sides[1].value
        values = f"{self.value(difference, 0)} against {self.value(difference, 1)}"
        if not set(one) & set(other):
            steps = {theirs - mine for mine, theirs in zip(one, other, strict=False) if None not in (mine, theirs)}
            shift = ""
            if len(one) == len(other) and len(steps) == 1:
                by = steps.pop()
                shift = f", each shifted by {by:+d}"
            return f"no layer in common: {values}{shift}"
        only = [
            f"{layer_list(sorted(mine - theirs, key=_layer))} only in the {name}"
            for name, mine, theirs in ((SIDES[0], set(one), set(other)), (SIDES[1], set(other), set(one)))
            if mine - theirs
        ]
        if len(one) != len(other):
            return f"number of joined states differs, {and_list(only)}: {values}"
        return f"other layers are captured, {and_list(only)}: {values}"

    def value(self, difference: Difference, side: int) -> str:
        """Return one side's value in words."""
        value: Any = difference.sides[side].value
        match difference.what:
            case "head":
                return f"[{', '.join(f'{number:g}' for number in value)}]"
            case "captures":
                width = f" ({len(value)} x {self.hidden} = {len(value) * self.hidden})" if self.hidden and value else ""
                return f"{layer_list(value)}{width}"
            case "shape":
                return _axes(value, self.hidden)
            case "record":
                return "not printed" if difference.sides[side].line == 0 else "printed"
            case "copies":
                return count(value, "copy", "copies")
            case "joined":
                return count(value, "state")
            case "rank":
                return "all alike" if value is None else f"one prints norm {value.norm} in line {value.line}"
            case "mode":
                return str(value)
            case _:
                return f"{value:.4f}"

    def evidence(self, difference: Difference) -> str:
        """Say where both sides stand, what agrees before, and how the passes are known to be the same."""
        places = [
            f"{name} {spot.file}:{spot.line}" for name, spot in zip(SIDES, difference.sides, strict=True) if spot.line
        ]
        ground = GROUNDS[difference.ground] if difference.ground else "first passes of both runs, which are no pair"
        if difference.ground == "pieces" and difference.same_head:
            ground += "; its own first values agree as well, so it parts after the first piece"
        return f"{' and '.join(places)}; {self.before(difference)}; {ground}"

    def before(self, difference: Difference) -> str:
        """Return ``identical for 126 passes, embedding and layers 3, 31 of this one agree``."""
        agreeing, equal = difference.agreeing_before, difference.equal_before
        if not agreeing:
            passes = "nothing was compared before it"
        elif agreeing == equal:
            passes = f"identical for {count(agreeing, 'pass')}"
        else:
            passes = f"{count(agreeing, 'pass')} before it agree{'s' * (agreeing == 1)}, {equal} of them identical"
        layers = [slot.layer for slot in difference.agreeing if slot.event == CAPTURE]
        names = [layer_list(layers)] if layers else []
        names += [state_name(difference.role, slot) for slot in difference.agreeing if slot.event != CAPTURE]
        if not names:
            return passes
        one = len(layers) + len(names) - bool(layers) == 1
        return f"{passes}, {and_list(names)} of the same pass agree{'s' * one}"

    def help(self, difference: Difference) -> str | None:
        """Say what a difference may mean, as far as the values tell."""
        if difference.what in ("norm", "head") and difference.ground in ("first", "follows"):
            return self._lowest_help(difference.ground)
        if difference.what == "captures":
            if not set(difference.sides[0].value) & set(difference.sides[1].value):
                return "states of other layers cannot be compared; make both runs capture the same layers"
            return "other states are joined, so the joined states and what the draft makes of them are not compared"
        if difference.role == "target" and difference.slot == JOIN and difference.what in ("norm", "head"):
            return self._join_help(difference)
        if difference.role == "draft" and difference.slot == FORWARD and difference.what in _VALUES:
            return "the target's joined state agrees, the draft reads another one: stale, or other rows"
        if difference.role == "draft" and difference.what in ("norm", "head"):
            return "what the draft read agrees: its weights, its token (vocabulary map) or its cache differ"
        return None

    def _join_help(self, difference: Difference) -> str | None:
        """Say what was joined where the captures agree and the joined states do not."""
        states = [self._states(side, index) for side, index in enumerate(difference.passes)]
        heads = [found[JOIN].head if JOIN in found else () for found in states]
        for name, head, found in zip(SIDES, heads, states, strict=True):
            layers = [slot for slot, state in found.items() if slot.event == CAPTURE and head and state.head == head]
            if layers and layers[0] != min(slot for slot in found if slot.event == CAPTURE):
                return (
                    f"the captures agree; in the {name} the joined state begins with {state_name('target', layers[0])}"
                )
        if _ratio(*heads) is not None and difference.what == "norm":
            return "the captures agree, the joined state is theirs times a factor: normalised or scaled before the join"
        return "the captures agree: what was joined is not what was captured"

    def _lowest_help(self, ground: Ground) -> str:
        """Say which kind of fault changes the lowest state of the same input."""
        rounds = self.alignment.baseline, self.alignment.candidate
        pairs = [
            (
                _captured(self._states(0, rounds[0].lead(pair.baseline[0]))),
                _captured(self._states(1, rounds[1].lead(pair.candidate[0]))),
            )
            for lane in self.alignment.lanes
            for pair in lane.pairs
            if pair.ground == ground
        ]
        factors = "; every state is the other run's times a factor" if _proportional(pairs) else ""
        for name, mine, theirs in ((SIDES[1], 0, 1), (SIDES[0], 1, 0)):
            sound, ill = [pair[mine] for pair in pairs], [pair[theirs] for pair in pairs]
            if all(_levels(states) < _LEVEL for states in ill) and all(_levels(states) > _GROWING for states in sound):
                return (
                    f"{_NOT_INPUT}; in the {name} all layers have one rms{factors}: normalised before it was captured"
                )
            if not factors and _smaller(sound, ill):
                return (
                    f"{_NOT_INPUT}; in the {name} every state is smaller and points elsewhere: as without the residual"
                )
        if factors:
            return f"{_NOT_INPUT}{factors}: one of the runs scales what it captures"
        return f"{_NOT_INPUT}, or other weights: neither a missing residual nor a normalisation fits the values"

    def _states(self, side: int, index: int) -> dict[Slot, State]:
        """Return the states of a pass that are finite."""
        store = (self.alignment.baseline, self.alignment.candidate)[side].store
        states = ((store.slot_of(record), store.state(record)) for record in store.records(index))
        return {slot: state for slot, state in states if state is not None and math.isfinite(state.norm)}


def _captured(states: dict[Slot, State]) -> dict[Slot, State]:
    return {slot: state for slot, state in states.items() if slot.event == CAPTURE}


def _causes(one: Difference, other: Difference) -> bool:
    """Return whether one difference of values stands before another on the way through the same round."""
    return one.what in _VALUES and other.what in _VALUES and _before(one, other)


def _before(one: Difference, other: Difference) -> bool:
    """Return whether one difference stands before another on the way through the same round."""
    return one.order[0] == other.order[0] and one.order < other.order


def _proportional(pairs: Sequence[tuple[dict[Slot, State], dict[Slot, State]]]) -> bool:
    """Return whether every state of one run is the other's times a factor."""
    ratios = [_ratio(one[slot].head, other[slot].head) for one, other in pairs for slot in one.keys() & other.keys()]
    return bool(ratios) and None not in ratios


def _smaller(sound: Sequence[dict[Slot, State]], ill: Sequence[dict[Slot, State]]) -> bool:
    """Return whether every state of one run is smaller than the other's."""
    shared = [
        (mine[slot].norm, theirs[slot].norm)
        for mine, theirs in zip(sound, ill, strict=True)
        for slot in mine.keys() & theirs.keys()
    ]
    return bool(shared) and all(theirs < 0.95 * mine for mine, theirs in shared)


def _ratio(one: Iterable[float], other: Iterable[float]) -> float | None:
    """Return the factor between two vectors of first values, None when they are not proportional."""
    ratios = [theirs / mine for mine, theirs in zip(one, other, strict=False) if mine and theirs]
    if len(ratios) < 3 or min(ratios) <= 0 or max(ratios) > (1 + _PROPORTIONAL) * min(ratios):
        return None
    return sum(ratios) / len(ratios)


def _levels(states: dict[Slot, State]) -> float:
    """Return largest over smallest norm of the layers of a pass: they have the same rows and width."""
    norms = [state.norm for state in states.values() if state.norm]
    return max(norms) / min(norms) if len(norms) > 1 else math.nan


def _axes(shape: tuple[int, ...] | None, hidden: int | None) -> str:
    if not shape:
        return "no shape"
    width = width_words(shape[-1], hidden)
    return f"{count(shape[0], 'row')} x {width}" if len(shape) > 1 else width


def _layer(layer: int | None) -> int:
    return -1 if layer is None else layer


def _is_finite(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)
