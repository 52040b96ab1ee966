"""What paired forward passes hold on each side: state by state, equal, within tolerance or beyond, and what is missing.

This module is responsible for judging the pairs that :mod:`logscope.diffing.align` found: which of their states may be
compared at all, how far they lie apart, and where each difference begins. It must not know configuration, acceptance
or words for people.

Tolerances, and what they rest on (docs/explanation/diff.md has the measurements):

``RTOL`` of a norm is 2^-9, the rounding of one single bf16 value; a norm over thousands of them is far better known.
Noise of equal inputs stays under 0.02 %, the smallest real drift on record is 0.9 %. ``HEAD_TOLERANCE`` of the first
values, taken as a vector, is a quarter of its length: noise reached 0.18 of it at layer 59, unrelated values stand at
about 1.4.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from logscope.diffing.states import CAPTURE, FORWARD, JOIN, Slot, State, close, head_distance

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from logscope.diffing.align import Alignment, Ground, Lane, Pair
    from logscope.diffing.states import PassStore

RTOL = 2.0**-9
HEAD_TOLERANCE = 0.25
# Above a lowest state that agrees only up to noise, the noise grows, and rows that are not printed may hold other
# tokens: only beyond this many tolerances, and in most such pairs, is it a difference.
NEAR_FACTOR = 10.0
# The most rounds between a round and the verify pass that shows which token it sampled.
_REACH = 4

Grade: TypeAlias = Literal["equal", "within", "beyond"]
What: TypeAlias = Literal[
    "norm", "head", "not_finite", "mode", "joined", "shape", "record", "copies", "rank", "captures"
]
Why: TypeAlias = Literal["rows", "state", "layers", "context", "joined", "draft", "pieces", "spec"]
_VALUES = frozenset({"norm", "head", "not_finite"})


class Terms(NamedTuple):
    """What the comparison must know of both set-ups. ``topk`` is the larger of the two, 1 when unknown."""

    rtol: float = RTOL
    topk: int = 1
    same_spec: bool = True


class Spot(NamedTuple):
    """Where one side of a difference stands; line 0: nowhere, the record is not there.

    ``number`` is the pass's own, ``ordinal`` which of its role and phase it is. ``value`` is a norm, first values, a
    mode, a shape, a number of states or copies, the deviating copy, or the captured layers, as the difference says.
    """

    file: str
    line: int
    number: int
    ordinal: int
    value: Any


@dataclass(slots=True)
class Difference:
    """One way in which the runs differ: its first place, and how often it comes again.

    ``sides`` are baseline and candidate, ``passes`` their passes in the stores. ``relative`` is (candidate - baseline)
    over baseline of the first norm, ``largest`` the largest of all; None where norms say nothing. ``equal_before`` and
    ``agreeing_before`` count the passes compared before it, ``agreeing`` are the states of the same pass that agree,
    ``previous`` is the last pass that does. ``pieces`` are the numbers of passes when a prefill was cut.
    """

    what: What
    role: str
    phase: str
    during: str
    slot: Slot
    ground: Ground | None
    order: tuple[int, int, tuple[int, int, int]]
    sides: tuple[Spot, Spot]
    passes: tuple[int, int]
    rows: tuple[int | None, int | None]
    relative: float | None = None
    largest: float | None = None
    pieces: tuple[int, int] = (1, 1)
    same_head: bool | None = None
    count: int = 1
    equal_before: int = 0
    agreeing_before: int = 0
    agreeing: list[Slot] = field(default_factory=list)
    previous: tuple[Spot, Spot] | None = None


@dataclass(slots=True)
class Cell:
    """One state of one role and phase: pairs compared and how they came out, records that only one side has."""

    pairs: int = 0
    equal: int = 0
    within: int = 0
    beyond: int = 0
    largest: float | None = None
    largest_lines: tuple[int, int] | None = None
    only: list[int] = field(default_factory=lambda: [0, 0])
    not_compared: int = 0

    def count(self, grade: Grade, relative: float | None, lines: tuple[int, int]) -> None:
        """Count one pair."""
        self.pairs += 1
        if grade == "equal":
            self.equal += 1
        elif grade == "within":
            self.within += 1
        else:
            self.beyond += 1
        if relative is not None and (self.largest is None or abs(relative) > abs(self.largest)):
            self.largest, self.largest_lines = relative, lines


class Alone(NamedTuple):
    """Passes that one run (0 baseline, 1 candidate) has and the other does not, behind the last pair or before it."""

    side: int
    role: str
    phase: str
    at_end: bool


class Fragment(NamedTuple):
    """A pass only one run has that lacks what its like have: a record printed once too often."""

    side: int
    role: str
    phase: str
    spot: Spot


@dataclass(slots=True)
class Comparison:
    """What pairs and leftovers say.

    ``paired`` counts pairs by role and ground, ``identical`` those that print equal states throughout. ``apart`` counts
    passes that are not comparable by (side, role, phase, reason); ``alone`` those only one run has, with the first.
    """

    cells: dict[tuple[str, str, Slot], Cell] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    paired: Counter[tuple[str, Ground]] = field(default_factory=Counter)
    identical: Counter[tuple[str, Ground]] = field(default_factory=Counter)
    drafts: int = 0
    identical_drafts: int = 0
    moved: int = 0
    apart: Counter[tuple[int, str, str, Why]] = field(default_factory=Counter)
    alone: dict[Alone, tuple[int, Spot]] = field(default_factory=dict)
    fragments: list[Fragment] = field(default_factory=list)


def compare(alignment: Alignment, terms: Terms) -> Comparison:
    """Judge every pair of an alignment, in the order of the runs."""
    return _Comparer(alignment, terms).run()


def judge(one: State, other: State, rtol: float, *, heads: bool) -> tuple[Grade, float | None, What]:
    """Return how two states agree, the relative difference of their norms, and what differs when they do not.

    Equal is meant at the coarser of the two prints. ``heads`` tells whether the first rows are the same row.
    """
    if _finite((one.norm,)) != _finite((other.norm,)) or (heads and _finite(one.head) != _finite(other.head)):
        return "beyond", None, "not_finite"
    relative = (other.norm - one.norm) / one.norm if one.norm and math.isfinite(one.norm) else None
    slack = one.slack + other.slack + rtol * max(abs(one.norm), abs(other.norm))
    if not one.same_norm(other) and not close(one.norm, other.norm, slack):
        return "beyond", relative, "norm"
    same_head = not heads or one.same_head(other)
    if not same_head and head_distance(one.head, other.head) > HEAD_TOLERANCE:
        return "beyond", relative, "head"
    return ("equal" if same_head and one.same_norm(other) else "within"), relative, "norm"


def _ordinals(store: PassStore) -> array[int]:
    """Return for every pass which of its lane, role and phase it is, from 1; graph capture counts by itself."""
    groups: dict[tuple[object, ...], int] = {}
    group_of: dict[int, int] = {}
    seen: list[int] = []
    found = array("Q")
    for index in range(len(store)):
        code = store.kind_code(index)
        group = group_of.get(code)
        if group is None:
            kind = store.kind(index)
            key = (kind.file, kind.segment, kind.group, kind.role, kind.phase, kind.during == "graph_capture")
            group = group_of[code] = groups.setdefault(key, len(groups))
            seen += [0] * (len(groups) - len(seen))
        seen[group] += 1
        found.append(seen[group])
    return found


@dataclass(slots=True)
class _Case:
    """Two passes under comparison (or the pieces of one prefill), and what was found so far.

    ``place`` is 0 for the leading pass of a round, then 1, 2, ... for those that follow. A ``weak`` case rests on its
    place alone: equal values are equal, others prove nothing.
    """

    pair: Pair
    mine: Sequence[int]
    theirs: Sequence[int]
    role: str
    phase: str
    place: int = 0
    weak: bool = False
    grades: dict[Slot, Grade] = field(default_factory=dict)
    sound: bool = True

    @property
    def heads(self) -> bool:
        """Whether the first rows are the same row, and known to hold the same."""
        return self.pair.ground not in ("order", "near")

    @property
    def single(self) -> bool:
        """Whether there is one pass on each side."""
        return len(self.mine) == len(self.theirs) == 1

    @property
    def identical(self) -> bool:
        """Whether all that was compared is equal, and nothing is missing."""
        return self.sound and all(grade == "equal" for grade in self.grades.values())

    @property
    def agrees(self) -> bool:
        """Whether nothing is beyond tolerance, and nothing is missing."""
        return self.sound and all(grade != "beyond" for grade in self.grades.values())


class _Comparer:
    """Walks the pairs in order and keeps the books."""

    def __init__(self, alignment: Alignment, terms: Terms) -> None:
        self.alignment = alignment
        self.rounds = (alignment.baseline, alignment.candidate)
        self.stores = (alignment.baseline.store, alignment.candidate.store)
        self.terms = terms
        self.usual = (self.stores[0].usual(), self.stores[1].usual())
        self.joined = (self.stores[0].joined(), self.stores[1].joined())
        self.ordinals = (_ordinals(self.stores[0]), _ordinals(self.stores[1]))
        self.edges = (self.rounds[0].edges(), self.rounds[1].edges())
        self.out = Comparison()
        self.known: dict[tuple[object, ...], Difference] = {}
        self.doubtful: dict[tuple[str, str, Slot], list[Difference]] = {}
        self.near: Counter[tuple[str, str, Slot]] = Counter()
        # Where the passes stand that agree, and those of them that are equal.
        self.agreed = array("Q")
        self.equal = array("Q")
        self.previous: tuple[int, int] | None = None
        # How the first pass of a form came out that is printed equal on both sides, and how often that came again.
        self.forms: dict[tuple[str, str, bytes], dict[Slot, Grade]] = {}
        self.repeats: Counter[tuple[str, str, bytes]] = Counter()

    def run(self) -> Comparison:
        """Compare every pair, then account for what has no partner."""
        pairs = [(pair, lane) for lane in self.alignment.lanes for pair in lane.pairs]
        pairs.sort(key=lambda both: self._order(both[0]))
        for pair, lane in pairs:
            self.out.moved += pair.moved
            self._round(pair, lane)
        for lane in self.alignment.lanes:
            self._rest(lane)
        for key, found in self.doubtful.items():
            self._settle(key, found)
        self._other_captures()
        self._count_repeats()
        self.out.differences.sort(key=lambda difference: difference.order)
        return self.out

    def _order(self, pair: Pair) -> tuple[int, int]:
        """Return where a pair stands in both runs together: the same whichever run comes first."""
        leads = self.rounds[0].lead(pair.baseline[0]), self.rounds[1].lead(pair.candidate[0])
        return (sum(leads), min(leads))

    # one round

    def _round(self, pair: Pair, lane: Lane) -> None:
        """Compare the leading passes of a pair, then the draft passes that follow them."""
        mine = [self.rounds[0].lead(number) for number in pair.baseline]
        theirs = [self.rounds[1].lead(number) for number in pair.candidate]
        if not pair.supported:
            self._apart(mine, theirs, "context")
            self._followers_apart(pair, "context")
            return
        case = self._case(pair, mine, theirs)
        self._states(case)
        self.out.paired[case.role, pair.ground] += 1
        self.out.identical[case.role, pair.ground] += case.identical
        if case.role == "target" and self.alignment.role == "target":
            self._followers(pair, lane, case)

    def _case(self, pair: Pair, mine: Sequence[int], theirs: Sequence[int], place: int = 0) -> _Case:
        """Return two passes as a case: its phase is the baseline's, the candidate's where that is unknown."""
        kinds = self.stores[0].kind(mine[0]), self.stores[1].kind(theirs[0])
        phase = kinds[0].phase if kinds[0].phase != "unknown" else kinds[1].phase
        return _Case(pair, mine, theirs, kinds[0].role, phase, place, pair.ground == "place")

    def _followers(self, pair: Pair, lane: Lane, target: _Case) -> None:
        """Compare the draft passes of a round, as far as what they were given agrees."""
        if pair.ground == "pieces":
            self._followers_apart(pair, "pieces")
            return
        joined = target.grades.get(JOIN)
        trusted = joined in ("equal", "within") or (
            joined is None and target.agrees and not target.weak and not self._captures_differ(target)
        )
        mine = self.rounds[0].followers(pair.baseline[0])
        theirs = self.rounds[1].followers(pair.candidate[0])
        before: tuple[int, int] | None = None
        for place, (one, other) in enumerate(_side_by_side(self.stores, mine, theirs), 1):
            if one is None or other is None:
                for side, index in enumerate((one, other)):
                    if index is not None:
                        self._alone(side, index, at_end=False)
                continue
            case = self._case(pair, [one], [other], place)
            why = self._draft(case, lane, before, trusted=trusted)
            if why is None:
                before = (one, other)
                self.out.drafts += 1
                self.out.identical_drafts += case.identical
            else:
                before = None
                self._apart(case.mine, case.theirs, why)

    def _draft(self, case: _Case, lane: Lane, before: tuple[int, int] | None, *, trusted: bool) -> Why | None:
        """Compare two draft passes; return why they are not comparable, None when they were compared.

        ``before`` is the draft pass before them in the round, when it was compared; ``trusted`` tells whether the
        joined states of the target agree, so that what the draft reads has to.
        """
        reads_target = case.phase in ("extend", "draft_extend")
        if case.phase == "draft_extend" and not self.terms.same_spec:
            return "spec"
        if not reads_target and before is None:
            return "draft"
        if self._alike(case):
            self._states(case)
            return None
        one, other = self._state(0, case.mine[0], FORWARD), self._state(1, case.theirs[0], FORWARD)
        if one is None or other is None:
            case.weak = not self._any_alike(case)
            if case.weak and not trusted:
                return "joined"
            self._draft_states(case, lane)
            return None
        if one.rows != other.rows:
            return "rows"
        if one.shape != other.shape and not trusted:
            return "joined"
        grade, _, what = judge(one, other, self.terms.rtol, heads=case.heads)
        if one.shape != other.shape or grade != "beyond" or self._any_alike(case):
            self._draft_states(case, lane)
            return None
        if reads_target:
            if not trusted:
                return "joined"
            if self._left_out_rows(case) or (what == "norm" and self.terms.topk > 1):
                return "rows"
        elif before is None or not self._handed_otherwise(case, before):
            return "draft"
        self._states(case, only=FORWARD)
        return None

    def _left_out_rows(self, case: _Case) -> bool:
        """Return whether the draft passes read only some rows of the joined state, so that others may be left out."""
        leads = [
            store.rows(rounds.lead(numbers[0]))
            for store, rounds, numbers in zip(self.stores, self.rounds, case.pair[1:3], strict=True)
        ]
        return [self.stores[0].rows(case.mine[0]), self.stores[1].rows(case.theirs[0])] != leads

    def _handed_otherwise(self, case: _Case, before: tuple[int, int]) -> bool:
        """Return whether one run hands on the output of the draft pass before, and the other something else."""
        given = self._state(0, before[0], JOIN), self._state(1, before[1], JOIN)
        got = self._state(0, case.mine[0], FORWARD), self._state(1, case.theirs[0], FORWARD)
        if given[0] is None or given[1] is None or got[0] is None or got[1] is None:
            return False
        handed = given[0].printed_alike(got[0]), given[1].printed_alike(got[1])
        return given[0].printed_alike(given[1]) and handed[0] != handed[1]

    def _draft_states(self, case: _Case, lane: Lane) -> None:
        """Compare all states of two draft passes, without an output that only shows another sampled token."""
        one, other = self._state(0, case.mine[0], JOIN), self._state(1, case.theirs[0], JOIN)
        skip = None
        if one is not None and other is not None and one.shape == other.shape:
            grade, _, what = judge(one, other, self.terms.rtol, heads=case.heads)
            if grade == "beyond" and what != "not_finite" and self._other_token(case.pair, lane, what):
                skip = JOIN
        self._states(case, skip=skip)

    def _other_token(self, pair: Pair, lane: Lane, what: What) -> bool:
        """Return whether the next verify pass shows that the draft was given another token in the two runs.

        The draft also reads the token the target just sampled, which no line prints. It is the first row of the next
        verify pass, whose lowest state tells whether the tokens were the same. Without such a pass they are assumed to
        be.
        """
        if lane.lowest is None:
            return False
        one = self._next_verify(0, pair.baseline[0], lane.lowest)
        other = self._next_verify(1, pair.candidate[0], lane.lowest)
        if one is None or other is None or one.printed_alike(other):
            return False
        same_first = one.same_head(other) or head_distance(one.head, other.head) <= HEAD_TOLERANCE / 10
        return not same_first or what == "norm"

    def _next_verify(self, side: int, number: int, lowest: Slot) -> State | None:
        """Return the lowest state of the next verify pass of the lane, a few rounds on at most."""
        rounds = self.rounds[side]
        for later in range(number + 1, min(number + 1 + _REACH, len(rounds))):
            if rounds.kind(later)[4:7] != rounds.kind(number)[4:7]:
                return None
            if rounds.kind(later).phase == "verify":
                return self._state(side, rounds.lead(later), lowest)
        return None

    # one pair of passes

    def _alike(self, case: _Case) -> bool:
        """Return whether two single passes print the very same."""
        if not case.single or case.weak:
            return False
        printed = self.stores[0].printed(case.mine[0])
        return printed is not None and printed == self.stores[1].printed(case.theirs[0])

    def _same(self, case: _Case) -> bool:
        """Count two passes that print the very same, the way the first of their form came out; False for others."""
        if not self._alike(case) or self._captures_differ(case):
            return False
        key = (case.role, case.phase, self.stores[0].form(case.mine[0]))
        grades = self.forms.get(key)
        if grades is None:
            return False
        self.repeats[key] += 1
        case.grades = grades
        self._agree(case)
        return True

    def _count_repeats(self) -> None:
        """Add the passes that were counted by their form to the cells."""
        for (role, phase, form), number in self.repeats.items():
            for slot in self.forms[role, phase, form]:
                cell = self._cell(role, phase, slot)
                cell.pairs += number
                cell.equal += number

    def _agree(self, case: _Case) -> None:
        """Note that a pass agrees, and whether all of it is equal."""
        place = self._order(case.pair)[0]
        self.agreed.append(place)
        self.previous = (case.mine[0], case.theirs[0])
        if case.identical:
            self.equal.append(place)

    def _states(self, case: _Case, *, only: Slot | None = None, skip: Slot | None = None) -> None:
        """Compare two passes slot by slot, in the order of the data's way through them."""
        if only is None and skip is None and self._same(case):
            return
        records = self._records(0, case.mine), self._records(1, case.theirs)
        captures_differ = self._captures_differ(case)
        for slot in sorted(records[0].keys() | records[1].keys(), key=lambda slot: slot.order):
            if only is not None and slot != only:
                continue
            cell = self._cell(case.role, case.phase, slot)
            one, other = records[0].get(slot), records[1].get(slot)
            if one is None or other is None:
                self._one_sided(case, slot, one, other)
            elif slot == skip or (captures_differ and slot.event not in (CAPTURE, "forward_end")):
                cell.not_compared += 1
            else:
                self._form(case, slot, one, other, captures_differ=captures_differ)
                grade = self._value(case, slot, one, other)
                if grade is not None:
                    case.grades[slot] = grade
        if case.agrees and case.grades:
            self._agree(case)
            if case.identical and case.heads and not captures_differ and self._alike(case):
                self.forms[case.role, case.phase, self.stores[0].form(case.mine[0])] = case.grades

    def _one_sided(self, case: _Case, slot: Slot, one: list[int] | None, other: list[int] | None) -> None:
        """Keep a record that only one of two passes has, unless a cut edge or a way of printing explains it."""
        side = 0 if other is None else 1
        lacking = 1 - side
        self._cell(case.role, case.phase, slot).only[side] += 1
        passes = (case.mine[0], case.theirs[0])
        if not case.single or self._cut(lacking, passes[lacking], slot):
            return
        kinds = self.stores[0].kind(passes[0]), self.stores[1].kind(passes[1])
        usual = [slot in self.usual[at].get((kinds[at].role, kinds[at].phase), ()) for at in (0, 1)]
        if usual[side] and not usual[lacking] and not slot.nth:
            if slot.event == CAPTURE and self._captures_differ(case):
                self._differ(
                    "captures", case, slot, None, None, (self._captured(0, passes[0]), self._captured(1, passes[1]))
                )
            return
        case.sound = False
        self._differ("record", case, slot, one, other)

    def _cut(self, side: int, index: int, slot: Slot) -> bool:
        """Return whether a record may be missing because the log is cut: before its first or behind its last one."""
        orders = [self.stores[side].slot_of(record).order for record in self.stores[side].records(index)]
        first, last = self.edges[side]
        # A warm-up is known by the start-up lines before it: nothing is cut off there.
        begins = index in first and self.stores[side].kind(index).during != "warmup"
        return (begins and slot.order < min(orders)) or (index in last and slot.order > max(orders))

    def _form(self, case: _Case, slot: Slot, one: list[int], other: list[int], *, captures_differ: bool) -> None:
        """Compare mode, number of joined states, copies and agreement of the ranks."""
        details = self.stores[0].detail(one[0]), self.stores[1].detail(other[0])
        modes = details[0].mode, details[1].mode
        # A number and a name are two prints of a mode that nothing in the log sets equal.
        if modes[0] and modes[1] and modes[0] != modes[1] and modes[0].isdigit() == modes[1].isdigit():
            self._differ("mode", case, slot, one, other, modes)
        numbers = details[0].num_aux, details[1].num_aux
        if not captures_differ and None not in numbers and numbers[0] != numbers[1]:
            self._differ("joined", case, slot, one, other, numbers)
        if not case.single:
            return
        kinds = self.stores[0].kind(case.mine[0]), self.stores[1].kind(case.theirs[0])
        copies = self.stores[0].copies(one[0]), self.stores[1].copies(other[0])
        odd = [kind.copies is not None and kind.copies != number for kind, number in zip(kinds, copies, strict=True)]
        if odd[0] != odd[1] and copies[0] != copies[1]:
            self._differ("copies", case, slot, one, other, copies)
        variants = self.stores[0].variants.get(one[0]), self.stores[1].variants.get(other[0])
        if (variants[0] is None) != (variants[1] is None):
            values = variants[0][0] if variants[0] else None, variants[1][0] if variants[1] else None
            self._differ("rank", case, slot, one, other, values)

    def _value(self, case: _Case, slot: Slot, one: list[int], other: list[int]) -> Grade | None:
        """Compare shape, norm and first values of one state; return None where nothing can be compared."""
        cell = self._cell(case.role, case.phase, slot)
        lines = self.stores[0].line(one[0]), self.stores[1].line(other[0])
        shapes = self.stores[0].shape(one[0]), self.stores[1].shape(other[0])
        if not all(map(self.stores[0].usable, one)) or not all(map(self.stores[1].usable, other)):
            cell.not_compared += 1
            return None
        if shapes[0] and shapes[1] and (shapes[0] != shapes[1] if case.single else shapes[0][1:] != shapes[1][1:]):
            cell.count("beyond", None, lines)
            self._differ("shape", case, slot, one, other, shapes)
            return "beyond"
        states = _joined(self.stores[0], one), _joined(self.stores[1], other)
        if states[0] is None or states[1] is None or states[0].rows != states[1].rows:
            cell.not_compared += states[0] is not states[1]
            return None
        grade, relative, what = judge(states[0], states[1], self.terms.rtol, heads=case.heads)
        if case.weak and grade != "equal":
            cell.not_compared += 1
            return None
        if case.pair.ground == "near":
            self.near[case.role, case.phase, slot] += 1
            if grade == "beyond" and what == "norm":
                if relative is None or abs(relative) > NEAR_FACTOR * self.terms.rtol:
                    difference = self._difference(what, case, slot, one, other, None, (states[0], states[1]), relative)
                    self.doubtful.setdefault((case.role, case.phase, slot), []).append(difference)
                else:
                    cell.not_compared += 1
                return "within"
        cell.count(grade, relative, lines)
        if grade == "beyond":
            self._keep(self._difference(what, case, slot, one, other, None, (states[0], states[1]), relative))
        return grade

    def _settle(self, key: tuple[str, str, Slot], found: list[Difference]) -> None:
        """Decide what pairs that agree only up to noise showed: a difference where most do, else other tokens."""
        cell = self._cell(*key)
        if 2 * len(found) <= self.near[key]:
            cell.not_compared += len(found)
            return
        for difference in found:
            cell.count("beyond", difference.relative, (difference.sides[0].line, difference.sides[1].line))
            self._keep(difference)

    # differences

    def _differ(
        self,
        what: What,
        case: _Case,
        slot: Slot,
        one: list[int] | None,
        other: list[int] | None,
        values: tuple[Any, Any] = (None, None),
    ) -> None:
        """Keep a difference of form: the pass is no longer sound."""
        case.sound = False
        self._keep(self._difference(what, case, slot, one, other, values))

    def _difference(
        self,
        what: What,
        case: _Case,
        slot: Slot,
        one: list[int] | None,
        other: list[int] | None,
        values: tuple[Any, Any] | None,
        states: tuple[State, State] | None = None,
        relative: float | None = None,
    ) -> Difference:
        """Describe a difference at its place."""
        if values is None and states is not None:
            values = (states[0].head, states[1].head) if what == "head" else (states[0].norm, states[1].norm)
        place = self._order(case.pair)[0]
        return Difference(
            what,
            case.role,
            case.phase,
            self.stores[0].kind(case.mine[0]).during,
            slot,
            case.pair.ground,
            (place, case.place, slot.order),
            (
                self._spot(
                    0, case.mine[0], one, values[0] if values else None, missing=one is None and what == "record"
                ),
                self._spot(
                    1, case.theirs[0], other, values[1] if values else None, missing=other is None and what == "record"
                ),
            ),
            (case.mine[0], case.theirs[0]),
            (self.stores[0].rows(case.mine[0]), self.stores[1].rows(case.theirs[0])),
            relative,
            relative,
            (len(case.mine), len(case.theirs)),
            states[0].same_head(states[1]) if states and states[0].head and states[1].head else None,
            1,
            len(self.equal),
            len(self.agreed),
            [slot for slot, grade in case.grades.items() if grade != "beyond"],
            (self._spot(0, self.previous[0]), self._spot(1, self.previous[1])) if self.previous else None,
        )

    def _keep(self, difference: Difference) -> None:
        """Count a difference with those like it: value with value, record missing with record missing."""
        what = "value" if difference.what in _VALUES else difference.what
        slot = None if what == "captures" else difference.slot
        key = (what, difference.role, difference.phase, slot, difference.sides[0].line == 0)
        first = self.known.get(key)
        if first is None:
            self.known[key] = difference
            self.out.differences.append(difference)
            return
        first.count += difference.slot == first.slot
        if difference.largest is not None and (first.largest is None or abs(difference.largest) > abs(first.largest)):
            first.largest = difference.largest

    def _spot(
        self, side: int, index: int, records: list[int] | None = None, value: Any = None, *, missing: bool = False
    ) -> Spot:
        """Return where a record, or a pass, stands."""
        store = self.stores[side]
        line = 0 if missing else store.line(records[0]) if records else store.first_line(index)
        return Spot(store.kind(index).file, line, store.number(index), self.ordinals[side][index], value)

    def _other_captures(self) -> None:
        """Name other captured layers also where no pass of the phase could be paired: at the first of both runs."""
        for role, phase in self.usual[0].keys() & self.usual[1].keys():
            slot = self._captured_apart((role, phase), (role, phase)) if role == "target" else None
            if slot is None or ("captures", role, phase, None, False) in self.known:
                continue
            one, other = self._first_of(0, role, phase), self._first_of(1, role, phase)
            place = one + other
            difference = Difference(
                "captures",
                role,
                phase,
                self.stores[0].kind(one).during,
                slot,
                None,
                (place, 0, slot.order),
                (
                    self._spot(0, one, None, self._captured(0, one)),
                    self._spot(1, other, None, self._captured(1, other)),
                ),
                (one, other),
                (self.stores[0].rows(one), self.stores[1].rows(other)),
                equal_before=bisect_left(self.equal, place),
                agreeing_before=bisect_left(self.agreed, place),
            )
            self._keep(difference)

    def _first_of(self, side: int, role: str, phase: str) -> int:
        """Return the first complete pass of a role and phase that is no dummy of graph capture, else the first one."""
        store = self.stores[side]
        codes = [code for code, kind in enumerate(store.tables.kinds.values) if kind[:2] == (role, phase)]
        found = [
            index
            for index in range(len(store))
            if store.kind_code(index) in codes and store.kind(index).during != "graph_capture"
        ]
        return next((index for index in found if store.kind(index).complete), found[0])

    def _captured(self, side: int, index: int) -> tuple[int | None, ...]:
        """Return the layers a pass captures, the embedding as 0."""
        store = self.stores[side]
        slots = map(store.slot_of, store.records(index))
        return tuple(slot.layer for slot in slots if slot.event == CAPTURE and slot.nth == 0)

    # what has no partner

    def _rest(self, lane: Lane) -> None:
        """Account for rounds without a partner, their draft passes with them."""
        for rest in lane.rest:
            for side, number in enumerate(rest[:2]):
                if number < 0:
                    continue
                passes = [self.rounds[side].lead(number), *self.rounds[side].followers(number)]
                if rest.reason is None:
                    for index in passes:
                        self._alone(side, index, at_end=rest.at_end)
                else:
                    self._count_apart(side, passes, rest.reason)

    def _alone(self, side: int, index: int, *, at_end: bool) -> None:
        """Count a pass that only one run has; keep it by itself when it is a fragment."""
        kind = self.stores[side].kind(index)
        key = Alone(side, kind.role, kind.phase, at_end)
        spot = self._spot(side, index)
        number, first = self.out.alone.get(key, (0, spot))
        self.out.alone[key] = (number + 1, first)
        store = self.stores[side]
        lacks = self.usual[side].get(kind[:2], set()) - {store.slot_of(record) for record in store.records(index)}
        if any(not self._cut(side, index, slot) for slot in lacks):
            self.out.fragments.append(Fragment(side, kind.role, kind.phase, spot))

    def _apart(self, mine: Iterable[int], theirs: Iterable[int], why: Why) -> None:
        """Count passes that have a partner and cannot be compared with it."""
        self._count_apart(0, mine, why)
        self._count_apart(1, theirs, why)

    def _count_apart(self, side: int, passes: Iterable[int], why: Why) -> None:
        for index in passes:
            kind = self.stores[side].kind(index)
            self.out.apart[side, kind.role, kind.phase, why] += 1

    def _followers_apart(self, pair: Pair, why: Why) -> None:
        """Count the draft passes of a round as not comparable."""
        for side, (rounds, numbers) in enumerate(zip(self.rounds, pair[1:3], strict=True)):
            self._count_apart(side, (index for number in numbers for index in rounds.followers(number)), why)

    # small questions

    def _state(self, side: int, index: int, slot: Slot) -> State | None:
        """Return the state of a pass in a slot."""
        store = self.stores[side]
        return store.state(store.find(index, store.tables.slots.of(slot)))

    def _any_alike(self, case: _Case) -> bool:
        """Return whether any state with first values is printed alike by two passes."""
        one, other = case.mine[0], case.theirs[0]
        for record in self.stores[0].records(one):
            mine = self.stores[0].state(record)
            if mine is not None and mine.head:
                theirs = self.stores[1].state(self.stores[1].find(other, self.stores[0].slot(record)))
                if theirs is not None and mine.printed_alike(theirs):
                    return True
        return False

    def _cell(self, role: str, phase: str, slot: Slot) -> Cell:
        return self.out.cells.setdefault((role, phase, slot), Cell())

    def _records(self, side: int, passes: Sequence[int]) -> dict[Slot, list[int]]:
        """Return the records of a pass by slot; of several pieces only the slots that every piece has."""
        store = self.stores[side]
        found: dict[Slot, list[int]] = {}
        for index in passes:
            for record in store.records(index):
                found.setdefault(store.slot_of(record), []).append(record)
        return {slot: records for slot, records in found.items() if len(records) == len(passes)}

    def _captures_differ(self, case: _Case) -> bool:
        """Return whether the two runs usually capture other states in target passes like these."""
        if case.role != "target":
            return False
        kinds = self.stores[0].kind(case.mine[0]), self.stores[1].kind(case.theirs[0])
        return self._captured_apart(kinds[0][:2], kinds[1][:2]) is not None

    def _captured_apart(self, one: tuple[str, str], other: tuple[str, str]) -> Slot | None:
        """Return the lowest slot that only one run captures in passes of a role and phase, None when there is none.

        A run that joins as many states and prints only some of them, or none, captures them all the same.
        """
        captured = _captures(self.usual[0].get(one, ())), _captures(self.usual[1].get(other, ()))
        fewer = captured[0] <= captured[1] or captured[1] <= captured[0]
        numbers = self.joined[0].get(one), self.joined[1].get(other)
        if fewer and (not captured[0] or not captured[1] or (numbers[0] is not None and numbers[0] == numbers[1])):
            return None
        return min(captured[0] ^ captured[1], key=lambda slot: slot.order, default=None)


def _captures(slots: Iterable[Slot]) -> set[Slot]:
    """Return the slots of captured states."""
    return {slot for slot in slots if slot.event == CAPTURE and slot.nth == 0}


def _finite(values: Iterable[float]) -> bool:
    return all(map(math.isfinite, values))


def _joined(store: PassStore, records: Sequence[int]) -> State | None:
    """Return the state of one record, or of the pieces of one prefill: rows add up, norms add in quadrature.

    The head is the first piece's: row 0 is in it.
    """
    states = [state for state in map(store.state, records) if state is not None]
    if len(states) < len(records):
        return None
    if len(states) == 1:
        return states[0]
    norm = math.sqrt(sum(state.norm**2 for state in states))
    slack = sum(state.norm * state.slack for state in states) / norm if norm else 0.0
    return states[0]._replace(rows=sum(state.rows for state in states), norm=norm, slack=slack)


def _side_by_side(
    stores: tuple[PassStore, PassStore], mine: Sequence[int], theirs: Sequence[int]
) -> Iterator[tuple[int | None, int | None]]:
    """Yield the draft passes of two rounds side by side: in order where there are equally many, else by phase."""
    if len(mine) == len(theirs):
        yield from zip(mine, theirs, strict=True)
        return
    phases = [[store.kind(at).phase for at in passes] for store, passes in zip(stores, (mine, theirs), strict=True)]
    waiting: dict[str, list[int]] = {}
    for index, phase in zip(reversed(theirs), reversed(phases[1]), strict=True):
        waiting.setdefault(phase, []).append(index)
    for index, phase in zip(mine, phases[0], strict=True):
        queue = waiting.get(phase)
        yield index, queue.pop() if queue else None
    for queue in waiting.values():
        yield from ((None, index) for index in reversed(queue))
