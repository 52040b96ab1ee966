"""Which forward pass of one run is which pass of another: by what the passes hold, not by where they stand.

This module is responsible for pairing the passes of two runs, each pair with the ground it stands on, and for saying
why a pass stays alone. It must not judge whether a pair agrees above the state it was recognised by.

A target pass is recognised by its *lowest common state*, the lowest hidden capture that both runs print: what the pass
was given shows there, and what went wrong above does not yet. A *round* is a target pass with the draft passes that
follow it; the draft passes go where their target pass goes. Runs without target passes are paired draft pass by draft
pass, by what each reads.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from logscope.diffing.states import CAPTURE, FORWARD, Slot, State, close, head_distance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from logscope.diffing.states import Kind, PassStore

# How far the lowest states of one pass may lie apart in two runs that compute in bf16, in norm (as a share of the
# tolerance for values: whatever is let in here is compared above) and in head. Noise between healthy runs whose batches
# were composed differently: up to 4.3e-4 in norm and 0.018 in head.
NEAR_SHARE = 0.25
NEAR_HEAD = 0.025
# How exactly a norm must be printed to recognise a pass by it alone, where row order hides the head.
FINE = 1e-5
# How many neighbours in norm a state is held against: bounds the work where all norms are alike (normalised states).
_NEIGHBOURS = 64
# More pieces than this no prefill is looked for in.
_MOST_PIECES = 4096

Ground: TypeAlias = Literal["state", "other", "near", "order", "pieces", "follows", "first", "place"]
Reason: TypeAlias = Literal["rows", "state", "layers"]


class Pair(NamedTuple):
    """Rounds of both runs that hold the same work.

    ground
        ``state``: rows and lowest common state agree at the coarser print. ``other``: a state above it does, and the
        lowest one is missing or differs. ``near``: the lowest states differ by no more than bf16 noise. ``order``:
        equal rows and norms, another head: the rows stand in another order. ``pieces``: one prefill cut differently;
        several rounds on a side. ``follows``: the lowest states differ, but everything in the round before is equal,
        so the input is. ``first``: the lowest states differ in the first prefills of both runs, which have the same
        rows in the same order. ``place``: nothing tells them apart, because no lowest state of one or both is printed
        whole; they have the same rows and stand between the same pairs.
    moved
        True when it stands in another order than the pairs around it.
    supported
        False when the ground is weak (only the embedding agrees, or no head is printed) and no neighbour agrees too.
    """

    ground: Ground
    baseline: tuple[int, ...]
    candidate: tuple[int, ...]
    moved: bool = False
    supported: bool = True


class Rest(NamedTuple):
    """Rounds without a partner: two that stand in the same place, or one where the other run has none.

    ``baseline`` and ``candidate`` are rounds, -1 for none; ``reason`` is why two are not a pair; ``at_end`` is True
    behind the last pair.
    """

    baseline: int
    candidate: int
    reason: Reason | None
    at_end: bool


class Rounds:
    """The passes of a store cut into rounds, lane by lane; a lane is what one scheduler printed in one server life."""

    def __init__(self, store: PassStore, *, by_target: bool) -> None:
        self.store = store
        self.left_out = 0
        orders: dict[tuple[str, int, tuple[object, ...]], array[int]] = {}
        for index in range(len(store)):
            kind = store.kind(index)
            if kind.during == "graph_capture":
                self.left_out += 1
            elif by_target or kind.role == "draft":
                orders.setdefault((kind.file, kind.segment, kind.group), array("Q")).append(index)
        self._passes = array("Q")
        self._start = array("Q")
        self.lanes: dict[tuple[str, int, tuple[object, ...]], range] = {}
        for lane, order in orders.items():
            first = len(self._start)
            for at, index in enumerate(order):
                if at == 0 or not by_target or store.kind(index).role == "target":
                    self._start.append(len(self._passes) + at)
            self._passes.extend(order)
            self.lanes[lane] = range(first, len(self._start))
        self._start.append(len(self._passes))

    def __len__(self) -> int:
        """Return the number of rounds."""
        return len(self._start) - 1

    def lead(self, number: int) -> int:
        """Return the pass that leads a round."""
        return self._passes[self._start[number]]

    def kind(self, number: int) -> Kind:
        """Return the kind of the leading pass."""
        return self.store.kind(self.lead(number))

    def edges(self) -> tuple[frozenset[int], frozenset[int]]:
        """Return the first and the last pass of every lane: a cut log may have lost a part of these."""
        lanes = self.lanes.values()
        return (
            frozenset(self._passes[self._start[numbers[0]]] for numbers in lanes),
            frozenset(self._passes[self._start[numbers[-1] + 1] - 1] for numbers in lanes),
        )

    def followers(self, number: int) -> array[int]:
        """Return the draft passes that follow it."""
        return self._passes[self._start[number] + 1 : self._start[number + 1]]


@dataclass(slots=True)
class Lane:
    """Two sequences of rounds that belong together, and what became of them.

    ``lowest`` is the slot passes were recognised by, ``common`` all states both sides print, lowest first.
    """

    pairs: list[Pair] = field(default_factory=list)
    rest: list[Rest] = field(default_factory=list)
    lowest: Slot | None = None
    common: list[Slot] = field(default_factory=list)


@dataclass(slots=True)
class Alignment:
    """The pairs of two runs. ``role`` is the role the rounds are led by, None when nothing can be paired at all."""

    baseline: Rounds
    candidate: Rounds
    lanes: list[Lane]
    role: Literal["target", "draft"] | None
    merged: bool = False


def align(baseline: PassStore, candidate: PassStore, rtol: float) -> Alignment:
    """Pair the passes of two runs that share their tables. ``rtol`` is the relative tolerance of a norm."""
    role = _leading_role(baseline, candidate)
    by_target = role != "draft"
    one, other = Rounds(baseline, by_target=by_target), Rounds(candidate, by_target=by_target)
    sequences, merged = _lanes(one, other)
    lanes = [_Pairing(one, mine, other, theirs, role, rtol).run() for mine, theirs in sequences]
    return Alignment(one, other, lanes, role, merged)


def _leading_role(baseline: PassStore, candidate: PassStore) -> Literal["target", "draft"] | None:
    """Return the role both runs print states of, the target's before the draft's."""
    roles = [
        {kind.role for kind in map(store.kind, range(len(store))) if kind.during != "graph_capture"}
        for store in (baseline, candidate)
    ]
    both = roles[0] & roles[1]
    return "target" if "target" in both else "draft" if "draft" in both else None


def _lanes(one: Rounds, other: Rounds) -> tuple[list[tuple[list[int], list[int]]], bool]:
    """Put the lanes of both runs side by side; when their numbers differ, everything goes into one, in file order."""
    if len(one.lanes) == len(other.lanes):
        return [(list(mine), list(theirs)) for mine, theirs in zip(_sorted(one), _sorted(other), strict=True)], False
    return [(sorted(range(len(one)), key=one.lead), sorted(range(len(other)), key=other.lead))], True


def _sorted(rounds: Rounds) -> list[range]:
    """Return the lanes by file and server life as they came, then by rank: which rank prints first is chance."""
    lives: dict[tuple[str, int], int] = {}
    keyed = []
    for (file, segment, group), numbers in rounds.lanes.items():
        life = lives.setdefault((file, segment), len(lives))
        keyed.append(((life, *((part is not None, str(part).rjust(12)) for part in reversed(group))), numbers))
    keyed.sort(key=lambda pair: pair[0])
    return [numbers for _, numbers in keyed]


class _Pairing:
    """The pairing of one lane, ground by ground, from the strongest to the weakest."""

    def __init__(
        self,
        one: Rounds,
        mine: list[int],
        other: Rounds,
        theirs: list[int],
        role: Literal["target", "draft"] | None,
        rtol: float,
    ) -> None:
        self.rounds = (one, other)
        self.numbers = (mine, theirs)
        self.role = role
        self.rtol = rtol
        self.partner = (array("q", [-1]) * len(mine), array("q", [-1]) * len(theirs))
        self.backbone: list[tuple[int, int]] = []
        self.lane = Lane()
        self.same_captures = True

    def run(self) -> Lane:
        """Pair what can be paired and return the lane."""
        self._find_common()
        if self.lane.lowest is not None:
            lowest = self.lane.lowest
            self._stage("state", self._by_print(lowest), moved=True)
            self._stage("state", self._by_likeness(lowest, _printed_alike), moved=True)
            self._stage("state", self._by_likeness(lowest, _known_by_norm), accept=self._one_without_head)
            for slot in self.lane.common[1:]:
                self._stage("other", self._by_print(slot))
            if lowest.layer != 0:
                self._stage("near", self._by_likeness(lowest, self._near))
            for slot in self.lane.common:
                self._stage("order", self._by_likeness(slot, self._row_order), accept=self._norms_agree)
            if self.role == "target":
                self._pieces(lowest)
                self._follows()
                self._first(lowest)
        self._leftovers()
        if self.lane.lowest is not None:
            self._support(self.lane.lowest)
        self.lane.pairs.sort(key=lambda pair: (pair.baseline[0] + pair.candidate[0], pair.baseline[0]))
        return self.lane

    # what there is

    def lead(self, side: int, at: int) -> int:
        """Return the leading pass of the round at a position of the lane."""
        return self.rounds[side].lead(self.numbers[side][at])

    def kind(self, side: int, at: int) -> Kind:
        """Return its kind."""
        return self.rounds[side].kind(self.numbers[side][at])

    def record(self, side: int, at: int, slot: Slot) -> int:
        """Return its record in a slot, -1 for none; of a draft pass that leads a round of a cut log, its first."""
        store, lead = self.rounds[side].store, self.lead(side, at)
        if slot == self.lane.lowest and store.kind(lead).role != self.role:
            slot = FORWARD
        return store.find(lead, store.tables.slots.of(slot))

    def free(self, side: int) -> list[int]:
        """Return the positions without a partner."""
        return [at for at, partner in enumerate(self.partner[side]) if partner < 0]

    def _find_common(self) -> None:
        """Find the states that the leading passes of both sides print, lowest first."""
        counts = (self._printed(0), self._printed(1))
        captured = [{slot for slot, number in found.items() if slot.event == CAPTURE} for found in counts]
        usual = [
            {slot for slot in slots if 2 * found[slot] > sum(1 for _ in self.numbers[side])}
            for side, (slots, found) in enumerate(zip(captured, counts, strict=True))
        ]
        self.same_captures = usual[0] == usual[1]
        common = sorted(counts[0].keys() & counts[1].keys(), key=lambda slot: slot.order)
        if all(captured) and not captured[0] & captured[1]:
            common = []  # no layer in common: their join may be compared no more than they
        often = [slot for slot in common if all(2 * found[slot] >= max(found.values()) for found in counts)]
        if common:
            self.lane.lowest = often[0] if often else common[0]
            self.lane.common = [self.lane.lowest, *(slot for slot in common if slot != self.lane.lowest)]

    def _printed(self, side: int) -> Counter[Slot]:
        """Count in how many leading passes each slot holds a state: a norm of usable text."""
        store = self.rounds[side].store
        found: Counter[int] = Counter()
        for at in range(len(self.numbers[side])):
            if self.kind(side, at).role == self.role:
                found.update(
                    store.slot(record) for record in store.records(self.lead(side, at)) if store.key(record) is not None
                )
        slots = {store.tables.slots.values[slot]: number for slot, number in found.items()}
        return Counter({slot: number for slot, number in slots.items() if slot.nth == 0})

    # classes: the same number for the same state, on both sides; -1 for none

    def _by_print(self, slot: Slot) -> tuple[list[int], list[int]]:
        """Return classes of states whose shape, norm and head are printed equal."""
        codes: dict[tuple[str, bytes], int] = {}

        def classes(side: int) -> Iterator[int]:
            store = self.rounds[side].store
            for at, partner in enumerate(self.partner[side]):
                key = store.key(self.record(side, at, slot)) if partner < 0 else None
                yield -1 if key is None else codes.setdefault((self.kind(side, at).role, key), len(codes))

        return list(classes(0)), list(classes(1))

    def _by_likeness(self, slot: Slot, alike: Callable[[State, State], bool]) -> tuple[list[int], list[int]]:
        """Return classes of states that are alike, each held against its neighbours in norm."""
        states: dict[State, int] = {}
        found: tuple[list[int], list[int]] = ([-1] * len(self.numbers[0]), [-1] * len(self.numbers[1]))
        for side in (0, 1):
            store = self.rounds[side].store
            for at in self.free(side):
                state = store.state(self.record(side, at, slot))
                if state is not None and math.isfinite(state.norm):
                    found[side][at] = states.setdefault(state, len(states))
        root = list(range(len(states)))

        def top(code: int) -> int:
            while root[code] != code:
                root[code] = root[root[code]]
                code = root[code]
            return code

        ordered = sorted(states.items(), key=lambda item: (item[0].shape, item[0].norm))
        for at, (state, code) in enumerate(ordered):
            for other, other_code in ordered[max(0, at - _NEIGHBOURS) : at]:
                if other.shape == state.shape and alike(other, state):
                    root[top(code)] = top(other_code)
        mine, theirs = ([-1 if code < 0 else top(code) for code in codes] for codes in found)
        return mine, theirs

    def _near(self, one: State, other: State) -> bool:
        """Return whether two lowest states may be one, up to the noise of bf16."""
        return (
            one.printed_head
            and other.printed_head
            and abs(one.norm - other.norm) <= NEAR_SHARE * self.rtol * max(one.norm, other.norm)
            and head_distance(one.head, other.head) <= NEAR_HEAD
        )

    @staticmethod
    def _row_order(one: State, other: State) -> bool:
        """Return whether two states may be the same rows in another order: their norms agree to many digits."""
        slack = one.slack + other.slack
        return one.rows > 1 and slack <= FINE * one.norm and close(one.norm, other.norm, slack)

    def _norms_agree(self, mine: int, theirs: int) -> bool:
        """Return whether the norms of all states both passes print agree, and there are at least two."""
        agreeing = 0
        for slot in self.lane.common:
            one = self.rounds[0].store.state(self.record(0, mine, slot))
            other = self.rounds[1].store.state(self.record(1, theirs, slot))
            if one is None or other is None:
                continue
            slack = one.slack + other.slack + self.rtol * max(abs(one.norm), abs(other.norm))
            if one.shape != other.shape or not close(one.norm, other.norm, slack):
                return False
            agreeing += 1
        return agreeing > 1

    # stages

    def _stage(
        self,
        ground: Ground,
        classes: tuple[list[int], list[int]],
        *,
        moved: bool = False,
        accept: Callable[[int, int], bool] | None = None,
    ) -> None:
        """Pair equal classes: in order between the pairs there are, then, where allowed, wherever they stand."""
        found = []
        for mine, theirs in list(self._gaps()):
            pairs = in_order([classes[0][at] for at in mine], [classes[1][at] for at in theirs])
            found += [(mine[one], theirs[other]) for one, other in pairs]
        for one, other in found:
            if accept is None or accept(one, other):
                self._join(ground, one, other)
                self.backbone.append((one, other))
        self.backbone.sort()
        if moved:
            waiting: dict[int, list[int]] = {}
            for at in reversed(self.free(1)):
                waiting.setdefault(classes[1][at], []).append(at)
            for at in self.free(0):
                partners = waiting.get(classes[0][at])
                if classes[0][at] >= 0 and partners and self._has_head(0, at):
                    self._join(ground, at, partners.pop(), moved=True)

    def _has_head(self, side: int, at: int) -> bool:
        """Return whether the lowest state of a pass is printed with first values."""
        lowest = self.lane.lowest
        state = self.rounds[side].store.state(self.record(side, at, lowest)) if lowest is not None else None
        return state is not None and state.printed_head

    def _one_without_head(self, mine: int, theirs: int) -> bool:
        """Return whether one of two passes prints first values and the other does not."""
        return self._has_head(0, mine) != self._has_head(1, theirs)

    def _gaps(self) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the positions without a partner between one pair of the backbone and the next, of both sides."""
        ends = (len(self.numbers[0]), len(self.numbers[1]))
        for (one, other), (next_one, next_other) in pairwise([(-1, -1), *self.backbone, ends]):
            mine = [at for at in range(one + 1, next_one) if self.partner[0][at] < 0]
            theirs = [at for at in range(other + 1, next_other) if self.partner[1][at] < 0]
            if mine or theirs:
                yield mine, theirs

    def _join(self, ground: Ground, one: int, other: int, *, moved: bool = False) -> None:
        """Make two positions a pair."""
        self.partner[0][one], self.partner[1][other] = other, one
        self.lane.pairs.append(Pair(ground, (self.numbers[0][one],), (self.numbers[1][other],), moved))

    def _pieces(self, lowest: Slot) -> None:
        """Pair prefills cut differently: rows add up, norms add in quadrature, the first piece's head is equal."""
        extends = [[at for at in self.free(side) if self.kind(side, at).phase == "extend"] for side in (0, 1)]
        states = [
            [self.rounds[side].store.state(self.record(side, at, lowest)) for at in extends[side]] for side in (0, 1)
        ]
        starts = sorted(
            (state.head[0], place) for place, state in enumerate(states[1]) if state is not None and state.head
        )
        used: set[int] = set()
        place = 0
        while place < len(extends[0]):
            found = None
            for start in _beginning_alike(states[0][place], states[1], starts):
                found = self._same_prefill(extends, place, start, lowest)
                if found is not None and used.isdisjoint(range(start, start + len(found[1]))):
                    used.update(range(start, start + len(found[1])))
                    break
                found = None
            if found is None:
                place += 1
                continue
            for one in found[0]:
                self.partner[0][one] = found[1][0]
            for other in found[1]:
                self.partner[1][other] = found[0][0]
            mine, theirs = (tuple(self.numbers[side][at] for at in found[side]) for side in (0, 1))
            self.lane.pairs.append(Pair("pieces", mine, theirs))
            place += len(mine)

    def _same_prefill(
        self, extends: list[list[int]], mine: int, theirs: int, lowest: Slot
    ) -> tuple[list[int], list[int]] | None:
        """Return the extends from two places on that add up to the same rows and norm, None when they do not."""
        places, rows, squares = [mine, theirs], [0, 0], [0.0, 0.0]
        taken: tuple[list[int], list[int]] = ([], [])
        while not taken[0] or rows[0] != rows[1]:
            side = 0 if rows[0] <= rows[1] and (taken[1] or not taken[0]) else 1
            if places[side] >= len(extends[side]) or len(taken[side]) >= _MOST_PIECES:
                return None
            at = extends[side][places[side]]
            state = self.rounds[side].store.state(self.record(side, at, lowest))
            if state is None:
                return None
            taken[side].append(at)
            rows[side] += state.rows
            squares[side] += state.norm**2
            places[side] += 1
        norms = [math.sqrt(square) for square in squares]
        if len(taken[0]) == len(taken[1]) == 1:
            return None  # nothing was cut: two prefills of the same length
        return taken if close(norms[0], norms[1], self.rtol * max(norms)) else None

    def _follows(self) -> None:
        """Pair verify passes whose lowest states differ although all the draft passes before them are equal.

        What a verify pass is given comes from those: the same drafts on the same states are the same input.
        """
        before = {pair.baseline[0]: pair for pair in self.lane.pairs if pair.ground in ("state", "other")}
        for one in self.free(0):
            other = self.partner[0][one - 1] + 1 if one else 0
            if not 0 < other < len(self.numbers[1]) or self.partner[1][other] >= 0:
                continue
            kinds = self.kind(0, one), self.kind(1, other)
            pair = before.get(self.numbers[0][one - 1])
            if (
                pair is not None
                and all(kind.role == "target" and kind.phase == "verify" for kind in kinds)
                and self.rounds[0].store.rows(self.lead(0, one)) == self.rounds[1].store.rows(self.lead(1, other))
                and self._same_followers(pair)
            ):
                self._join("follows", one, other)
                self.backbone.append((one, other))
        self.backbone.sort()

    def _same_followers(self, pair: Pair) -> bool:
        """Return whether the draft passes of two rounds are the same and print the same, and there are any."""
        followers = [rounds.followers(numbers[0]) for rounds, numbers in zip(self.rounds, pair[1:3], strict=True)]
        if not followers[0] or len(followers[0]) != len(followers[1]):
            return False
        stores = [rounds.store for rounds in self.rounds]
        for mine, theirs in zip(*followers, strict=True):
            records = stores[0].records(mine), stores[1].records(theirs)
            if len(records[0]) != len(records[1]):
                return False
            for one, other in zip(*records, strict=True):
                states = stores[0].state(one), stores[1].state(other)
                if stores[0].slot(one) != stores[1].slot(other) or (states[0] is None) != (states[1] is None):
                    return False
                if states[0] is not None and states[1] is not None and not states[0].printed_alike(states[1]):
                    return False
        return True

    def _first(self, lowest: Slot) -> None:
        """Pair the first prefills while they have the same rows in the same order, and no prefill has a partner.

        Only where both runs capture the same states: with other states joined, other values prove nothing. Several
        prefills of one length prove nothing either (a benchmark with prompts cut to size), unless the first is the
        server's own warm-up.
        """
        extends = [
            [at for at in range(len(self.numbers[side])) if self.kind(side, at).phase == "extend"] for side in (0, 1)
        ]
        if not self.same_captures or any(self.partner[side][at] >= 0 for side in (0, 1) for at in extends[side]):
            return
        found = []
        rows = set()
        for one, other in zip(*extends, strict=False):  # the shorter run decides how far
            mine = self.rounds[0].store.state(self.record(0, one, lowest))
            theirs = self.rounds[1].store.state(self.record(1, other, lowest))
            if mine is None or theirs is None or mine.shape != theirs.shape:
                break
            found.append((one, other))
            rows.add(mine.rows)
        warm = found and all(self.kind(side, at).during == "warmup" for side, at in enumerate(found[0]))
        if len(rows) > 1 or len(found) == 1 or warm:
            for one, other in found:
                self._join("first", one, other)
            self.backbone = sorted([*self.backbone, *found])

    # what is weak, and what is left

    def _support(self, lowest: Slot) -> None:
        """Mark pairs that rest on the embedding alone, or on a norm without a head, and have no pair beside them.

        The embedding shows the tokens and not what stands before them; a norm alone may be met by chance.
        """
        by_embedding = lowest.event == CAPTURE and lowest.layer == 0
        places = [{number: at for at, number in enumerate(numbers)} for numbers in self.numbers]
        for index, pair in enumerate(self.lane.pairs):
            if pair.ground != "state":
                continue
            one, other = places[0][pair.baseline[0]], places[1][pair.candidate[0]]
            prefill = {self.kind(0, one).phase, self.kind(1, other).phase} <= {"extend", "unknown"}
            known = self._has_head(0, one) and self._has_head(1, other)
            if known and (prefill or not by_embedding):
                continue
            before = one > 0 and other > 0 and self.partner[0][one - 1] == other - 1
            first = one == 0 and other == 0
            after = one + 1 < len(self.numbers[0]) and self.partner[0][one + 1] == other + 1
            if not (before or first or (after and not by_embedding)):
                self.lane.pairs[index] = pair._replace(supported=False)

    def _leftovers(self) -> None:
        """Put what is left between two pairs side by side, phase by phase, and say why it is no pair."""
        end = self.backbone[-1] if self.backbone else (-1, -1)
        for mine, theirs in self._gaps():
            waiting: dict[tuple[str, str], list[int]] = {}
            for at in theirs:
                kind = self.kind(1, at)
                waiting.setdefault((kind.role, kind.phase), []).append(at)
            for queue in waiting.values():
                queue.reverse()
            for at in mine:
                kind = self.kind(0, at)
                queue = waiting.get((kind.role, kind.phase), [])
                if queue:
                    other = queue.pop()
                    numbers = self.numbers[0][at], self.numbers[1][other]
                    reason = self._reason(at, other)
                    if reason is None:
                        self._join("place", at, other)
                    else:
                        self.lane.rest.append(Rest(*numbers, reason, at > end[0] and other > end[1]))
                else:
                    self.lane.rest.append(Rest(self.numbers[0][at], -1, None, at > end[0]))
            alone = sorted(at for queue in waiting.values() for at in queue)
            self.lane.rest += [Rest(-1, self.numbers[1][at], None, at > end[1]) for at in alone]

    def _reason(self, one: int, other: int) -> Reason | None:
        """Say why two rounds in one place are not a pair; None when nothing printed speaks against it."""
        rows = [
            rounds.store.rows(self.lead(side, at))
            for side, rounds, at in zip((0, 1), self.rounds, (one, other), strict=True)
        ]
        if rows[0] != rows[1]:
            return "rows"
        if self.lane.lowest is None:
            return "layers" if any(self._has_state(side, at) for side, at in ((0, one), (1, other))) else None
        lowest = [
            rounds.store.state(self.record(side, at, self.lane.lowest))
            for side, rounds, at in zip((0, 1), self.rounds, (one, other), strict=True)
        ]
        return "state" if lowest[0] is not None and lowest[1] is not None else None

    def _has_state(self, side: int, at: int) -> bool:
        """Return whether a pass prints any state whole."""
        store = self.rounds[side].store
        return any(store.state(record) is not None for record in store.records(self.lead(side, at)))


def _printed_alike(one: State, other: State) -> bool:
    """Return whether two prints may be of one state: with first values both, or without them both."""
    return one.printed_head == other.printed_head and one.printed_alike(other)


def _known_by_norm(one: State, other: State) -> bool:
    """Return whether two prints may be of one state, of which only one has first values."""
    return one.printed_head != other.printed_head and one.same_norm(other)


def _beginning_alike(
    state: State | None, states: Sequence[State | None], starts: Sequence[tuple[float, int]]
) -> Iterator[int]:
    """Yield the places of states whose first values are near to those of one; ``starts`` are sorted first values."""
    if state is None or not state.head:
        return
    reach = NEAR_HEAD * math.hypot(*state.head) + 2 * max(state.head_slack)
    for value, place in starts[bisect_left(starts, (state.head[0] - reach, -1)) :]:
        if value > state.head[0] + reach:
            return
        other = states[place]
        if other is not None and (state.same_head(other) or head_distance(state.head, other.head) <= NEAR_HEAD):
            yield place


def in_order(one: Sequence[int], other: Sequence[int]) -> list[tuple[int, int]]:
    """Return pairs of places that hold the same class, rising on both sides; -1 is no class.

    A patience diff: equal beginnings and ends first, then the classes that stand once on each side, of these the
    longest rising sequence, then the same between them. Repeated classes are paired first with first.
    """
    found: list[tuple[int, int]] = []
    waiting = [(0, len(one), 0, len(other))]
    while waiting:
        first, last, begin, end = waiting.pop()
        while first < last and begin < end and one[first] == other[begin] != -1:
            found.append((first, begin))
            first, begin = first + 1, begin + 1
        while first < last and begin < end and one[last - 1] == other[end - 1] != -1:
            last, end = last - 1, end - 1
            found.append((last, end))
        if first == last or begin == end:
            continue
        anchors = _anchors(one, other, first, last, begin, end)
        found += anchors
        for place, partner in anchors:
            waiting.append((first, place, begin, partner))
            first, begin = place + 1, partner + 1
        if anchors:
            waiting.append((first, last, begin, end))
    return sorted(found)


def _anchors(
    one: Sequence[int], other: Sequence[int], first: int, last: int, begin: int, end: int
) -> list[tuple[int, int]]:
    """Return the longest rising sequence of places that hold a class found once on each side, else k-th with k-th."""
    places: tuple[dict[int, list[int]], dict[int, list[int]]] = ({}, {})
    for side, (sequence, low, high) in enumerate(((one, first, last), (other, begin, end))):
        for at in range(low, high):
            if sequence[at] != -1:
                places[side].setdefault(sequence[at], []).append(at)
    both = [(mine, places[1][code]) for code, mine in places[0].items() if code in places[1]]
    pairs = [(mine[0], theirs[0]) for mine, theirs in both if len(mine) == len(theirs) == 1]
    if not pairs:
        pairs = [pair for mine, theirs in both for pair in zip(mine, theirs, strict=False)]  # the rest stays alone
    return _longest_rising(sorted(pairs))


def _longest_rising(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest subsequence whose second numbers rise (patience sorting)."""
    tops: list[int] = []
    piles: list[int] = []
    before = [-1] * len(pairs)
    for index, (_, partner) in enumerate(pairs):
        pile = bisect_left(tops, partner)
        before[index] = piles[pile - 1] if pile else -1
        if pile == len(tops):
            tops.append(partner)
            piles.append(index)
        else:
            tops[pile], piles[pile] = partner, index
    found = []
    index = piles[-1] if piles else -1
    while index >= 0:
        found.append(pairs[index])
        index = before[index]
    return found[::-1]
