"""Several schedulers that print into one file without a mark: their records are told apart by state.

This module is responsible for :class:`Tangle`: which scheduler printed a record, and in which pass of which phase. It
follows every assignment that the records allow (a *story*), drops those that later records contradict, and decides a
record when all stories that are left agree on it. It must not know how passes are built or handed out.

What a scheduler prints next follows from what it printed before: the order of a round, the rows of its batch, and the
identities of its numbers (the head of a joined state is the head of its first capture; the squares of the captures'
norms add up to that of the joined state; the draft reads the joined state, then its own output). A broken identity
costs a story something, since faults break them too; a broken order is impossible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from logscope.assembly import reads_wide
from logscope.model import CAPTURE_EVENTS, Phase, num_aux

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logscope.assembly import Open
    from logscope.copies import Form
    from logscope.model import Payload, Segment
    from logscope.phases import Habits
    from logscope.segments import Lives

_IDLE, _TARGET, _JOINED, _DRAFT, _READ = range(5)
_AFTER: dict[Phase, Phase] = {"extend": "extend", "verify": "draft_extend"}
# What a story pays for: a wrong head, norms that do not add up, another batch, a stray record, a pass broken off.
_HEAD, _NORM, _ROWS, _STRAY, _BREAK = 1, 2, 3, 6, 8
_STORIES = 48
_WORSE = 12
# Records that stay open at most, and how often that may happen before the schedulers are given up as mixed.
_WINDOW = 192
_OVERFLOWS = 64


class Track:
    """The passes of one scheduler, one after the other: the current one."""

    __slots__ = ("current", "number", "served")

    def __init__(self, number: int) -> None:
        self.number = number
        self.current: Open | None = None
        self.served = False


class _State(NamedTuple):
    """Where one scheduler stands: in which pass, and what that pass has printed."""

    stage: int = _IDLE
    phase: Phase = "unknown"
    rows: int | None = None
    layer: int = -1
    ended: bool = False
    first: Payload | None = None
    squares: float | None = 0.0
    slack: float = 0.0
    join: Payload | None = None
    decodes: int = 0

    def key(self) -> tuple[object, ...]:
        """Return what matters for what comes; two schedulers with one key are the same to any later record."""
        join: object = id(self.join)
        if self.stage == _READ and self.join is not None and self.join.rows != 1 and self.phase == "draft_extend":
            # The draft goes on with one row of many: which one, its numbers do not tell.
            join = self.join.rows
        first = id(self.first)
        return (self.stage, self.phase, self.rows, self.layer, self.ended, first, self.squares, join, self.decodes)


class Move(NamedTuple):
    """Where a record goes: the scheduler (None: nowhere), whether it begins a pass there, and the pass's phase."""

    track: int | None
    begins: bool = False
    phase: Phase = "unknown"


class _Story:
    """One assignment of all records so far: its cost, where the schedulers stand, the moves not yet decided."""

    __slots__ = ("cost", "doubts", "moves", "states")

    def __init__(self, cost: int, states: tuple[_State, ...], moves: tuple[Move, ...], doubts: frozenset[int]) -> None:
        self.cost = cost
        self.states = states
        self.moves = moves
        self.doubts = doubts


class Tangle:
    """Several schedulers in one stream of records.

    ``see`` takes a record and returns the moves of the oldest records that are decided now, with whether the phase
    of each is certain; ``end`` decides the rest.
    """

    def __init__(self, schedulers: int, form: Form, habits: Habits, lives: Lives) -> None:
        self.tracks = [Track(number) for number in range(1, schedulers + 1)]
        self._form = form
        self._habits = habits
        self._lives = lives
        self._stories = [_Story(0, (_State(),) * schedulers, (), frozenset())]
        self._decided = 0
        self._uncertain = 0
        self._overflows = 0
        self._owner: dict[Open, Track] = {}

    # -- what the group asks --------------------------------------------------------------------------------------

    def began(self, made: Open, track: Track) -> None:
        """Note whose pass it is that has begun."""
        self._owner[made] = track

    def name_of(self, made: Open) -> str:
        """Return the name of the scheduler a pass was given to, and forget the pass.

        What was printed before a second scheduler was heard is the first one's.
        """
        owner = self._owner.pop(made, None)
        return f"scheduler {owner.number if owner is not None else 1}"

    def report(self, segment: Segment) -> None:
        """Say in the segment's notes that schedulers are mixed, and what could not be told apart."""
        said = f"records of {len(self.tracks)} schedulers stand mixed without a mark; they are told apart by state"
        if self._overflows > _OVERFLOWS:
            said += "; soon they could not be told apart any more, and what they print has no phase"
        elif self._uncertain:
            said += f" ({self._uncertain} records fit more than one place, or none, and have no phase)"
        segment.notes.append(said)

    def see(self, payload: Payload) -> list[tuple[Move, bool]]:
        """Take the next record."""
        if self._overflows > _OVERFLOWS:
            self._uncertain += 1
            return [*self.end(), (Move(None), False)]
        found: dict[tuple[object, ...], _Story] = {}
        for story in self._stories:
            for cost, number, state, move in self._moves(story, payload):
                self._keep(found, story, cost, number, state, move)
        if not found:
            for story in self._stories:
                for cost, number, state, move in self._repairs(story, payload):
                    self._keep(found, story, cost, number, state, move)
        stories = sorted(found.values(), key=lambda story: story.cost)[:_STORIES]
        best = stories[0].cost
        self._stories = [story for story in stories if story.cost <= best + _WORSE]
        return self._agreed()

    def end(self) -> list[tuple[Move, bool]]:
        """Decide everything that is open, with what is known."""
        return self._decide(len(self._stories[0].moves))

    # -- stories --------------------------------------------------------------------------------------------------

    def _keep(
        self,
        found: dict[tuple[object, ...], _Story],
        story: _Story,
        cost: int,
        number: int | None,
        state: _State | None,
        move: Move,
    ) -> None:
        states = story.states
        if number is not None and state is not None:
            states = (*states[:number], state, *states[number + 1 :])
        key = tuple(sorted((one.key() for one in states), key=repr))
        told = _Story(story.cost + cost, states, (*story.moves, move), story.doubts)
        other = found.get(key)
        if other is None:
            found[key] = told
            return
        # Two stories that cannot be told apart by any later record: where they differ, nothing will ever decide.
        if other.cost == told.cost:
            apart = {
                self._decided + at
                for at, (one, two) in enumerate(zip(other.moves, told.moves, strict=True))
                if one.phase != two.phase
            }
            other.doubts = other.doubts | told.doubts | apart
        elif told.cost < other.cost:
            found[key] = told

    def _agreed(self) -> list[tuple[Move, bool]]:
        first = self._stories[0].moves
        if len(self._stories) == 1:
            return self._decide(len(first))
        if len(first) % 4:
            return []
        agreed = 0
        for column in zip(*(story.moves for story in self._stories), strict=True):
            if any(move != column[0] for move in column):
                break
            agreed += 1
        if not agreed and len(first) > _WINDOW:
            agreed = _WINDOW // 2
            self._overflows += 1
        return self._decide(agreed) if agreed else []

    def _decide(self, count: int) -> list[tuple[Move, bool]]:
        """Decide the oldest moves as the best story has them; certain where no other tells another phase."""
        best = self._stories[0]
        decided = []
        for at in range(count):
            move = best.moves[at]
            certain = self._decided + at not in best.doubts and all(
                story.moves[at].phase == move.phase for story in self._stories
            )
            self._uncertain += not certain or move.track is None
            decided.append((move, certain))
        self._decided += count
        kept = [story for story in self._stories if story.moves[:count] == best.moves[:count]]
        for story in kept:
            story.moves = story.moves[count:]
            story.doubts = frozenset(at for at in story.doubts if at >= self._decided)
        self._stories = kept
        return decided

    # -- what a scheduler may print next --------------------------------------------------------------------------

    def _moves(self, story: _Story, payload: Payload) -> Iterator[tuple[int, int | None, _State | None, Move]]:
        """Yield every way a record can go on in a story: cost, scheduler, its new state, the move."""
        tried = set()
        for number, state in enumerate(story.states):
            key = state.key()
            if key in tried:
                continue
            tried.add(key)
            for cost, new, begins in self._next(state, payload):
                yield cost, number, new, Move(number, begins, new.phase)

    def _repairs(self, story: _Story, payload: Payload) -> Iterator[tuple[int, int | None, _State | None, Move]]:
        """Yield what may have happened when no scheduler can print a record: lines are lost, or it is a stray one."""
        yield _STRAY, None, None, Move(None)
        for number in range(len(story.states)):
            for cost, new, begins in self._next(_State(), payload):
                yield _BREAK + cost, number, new, Move(number, begins, new.phase)
            for state in _as_after_loss(payload):
                yield _BREAK, number, state, Move(number, True, "unknown")

    def _next(self, state: _State, payload: Payload) -> Iterator[tuple[int, _State, bool]]:
        event = payload.event
        if event in CAPTURE_EVENTS:
            yield from self._capture(state, payload)
        elif event == "forward_end":
            if state.stage == _TARGET and not state.ended and payload.rows == state.rows and self._last(state):
                yield 0, state._replace(ended=True), False
        elif event == "forward":
            yield from self._forward(state, payload)
        elif event in ("fc_output", "fc"):
            here = state.stage == _DRAFT and state.phase != "decode" and payload.rows in (state.rows, None)
            if here and (event == "fc" or not state.ended):
                yield 0, state._replace(ended=state.ended or event == "fc_output"), False
        elif event == "aux_concat":
            joined = num_aux(payload)
            if joined != 1 or len(self._form.layers) == 1:
                yield from self._join(state, payload)
            if joined in (1, None):
                yield from self._output(state, payload)
        elif state.stage != _IDLE:
            yield 0, state, False

    def _last(self, state: _State) -> bool:
        layers = self._form.layers
        return not layers or state.layer == layers[-1]

    def _capture(self, state: _State, payload: Payload) -> Iterator[tuple[int, _State, bool]]:
        layers = self._form.layers
        layer = payload.layer
        if layer is None:
            return
        square, slack = None, 0.0
        if payload.norm is not None and payload.norm == payload.norm:  # nan adds up to anything
            square, slack = payload.norm * payload.norm, 2 * payload.norm * payload.norm_resolution
        if state.stage == _TARGET and not state.ended and payload.rows == state.rows and layer > state.layer:
            between = [one for one in layers if state.layer < one < layer]
            if not between:
                total = None if square is None or state.squares is None else state.squares + square
                yield 0, state._replace(layer=layer, squares=total, slack=state.slack + slack), False
        if not layers or layer == layers[0]:
            phases: tuple[Phase, ...] = ("extend", "verify")
            for phase in phases:
                cost = self._begin(state, phase, payload.rows)
                if cost is not None:
                    begun = _State(_TARGET, phase, payload.rows, layer, first=payload, squares=square, slack=slack)
                    yield cost, begun, True

    def _begin(self, state: _State, phase: Phase, rows: int | None) -> int | None:
        """Return what it costs a scheduler to run the target now, None when it cannot."""
        tokens, segment = self._lives.draft_tokens, self._lives.segment
        steps = segment.num_steps if segment is not None else None
        topk = (segment.topk if segment is not None else None) or 1
        if phase == "extend":
            if state.stage == _IDLE:
                return 0
            if state.stage == _READ and not state.decodes:
                return 0
            # Spec v1 leaves the draft pass out when every request has just ended.
            return 0 if state.stage == _JOINED and state.phase == "verify" and self._habits.version != "v2" else None
        if tokens is not None and rows is not None and rows % tokens:
            return None
        if state.stage == _IDLE:
            return _ROWS
        if state.stage != _READ or (steps is not None and state.decodes != steps - 1):
            return None
        if steps is None and not state.decodes and self._habits.decodes:
            return None
        if tokens is None or rows is None or state.rows is None:
            return 0
        batch = state.rows if state.decodes else None
        if batch is not None and batch % topk == 0:
            return 0 if rows == batch // topk * tokens else None
        return 0

    def _join(self, state: _State, payload: Payload) -> Iterator[tuple[int, _State, bool]]:
        if state.stage != _TARGET or not self._last(state) or (self._form.ended and not state.ended):
            return
        if payload.rows is not None and state.rows is not None and payload.rows > state.rows:
            return
        cost = 0
        first = state.first
        if first is not None and first.head is not None and payload.head is not None:
            cost += 0 if _equal_heads(first.head, payload.head) else _HEAD
        if payload.norm is not None and state.squares is not None:
            cost += 0 if _adds_up(state.squares, state.slack, payload) else _NORM
        yield cost, _State(_JOINED, state.phase, state.rows, join=payload), False

    def _forward(self, state: _State, payload: Payload) -> Iterator[tuple[int, _State, bool]]:
        wide = reads_wide(payload)
        rows = payload.rows
        if state.stage == _JOINED and (wide is not False or not self._habits.wide) and state.join is not None:
            if rows is not None and state.rows is not None and rows > state.rows:
                return
            cost = 0
            if rows != state.rows:
                if state.phase == "extend" or self._habits.version == "v2":
                    return
            elif state.join.norm is not None and payload.norm is not None and not _near(state.join, payload):
                cost += _NORM
            if state.join.head is not None and payload.head is not None:
                cost += 0 if _equal_heads(state.join.head, payload.head) else _HEAD
            # What follows a target pass of which the beginning is lost has no phase either.
            phase: Phase = _AFTER.get(state.phase, "unknown")
            yield cost, _State(_DRAFT, phase, rows, ended=wide is False), True
        if state.stage == _READ and not wide and state.join is not None:
            segment = self._lives.segment
            steps = segment.num_steps if segment is not None else None
            if steps is not None and state.decodes >= steps - 1:
                return
            costs = self._reads(state, payload)
            if costs is not None:
                yield costs, _State(_DRAFT, "decode", rows, ended=True, decodes=state.decodes), True

    def _reads(self, state: _State, payload: Payload) -> int | None:
        """Return what it costs that a draft decode reads what the draft pass before it put out; None: it cannot."""
        join, rows = state.join, payload.rows
        segment = self._lives.segment
        topk = (segment.topk if segment is not None else None) or 1
        if join is None or rows is None or join.rows is None:
            return 0
        if state.phase == "decode" or state.phase == "extend" or self._habits.reads_rows(join, state.rows) == "LAST":
            batch = join.rows if state.phase == "decode" else join.rows * topk
            if rows == batch and topk == 1:
                if join.norm is None or payload.norm is None:
                    return 0
                return 0 if _near(join, payload) else _NORM
            if state.phase == "extend":
                # Requests that were running already join the batch.
                return None if rows < batch else (0 if rows == batch else _HEAD)
            return 0 if rows == batch else _ROWS
        tokens = self._lives.draft_tokens
        if tokens is not None and rows * tokens != join.rows * topk:
            return _ROWS
        return 0

    def _output(self, state: _State, payload: Payload) -> Iterator[tuple[int, _State, bool]]:
        if state.stage != _DRAFT or not (state.ended or not self._form.fc):
            return
        kept, rows = payload.rows, state.rows
        if kept is not None and rows is not None and kept > rows:
            return
        full = payload.mode in self._habits.full_names
        last = payload.mode in self._habits.last_names
        if state.phase == "decode":
            wrong = kept != rows or full
        elif state.phase == "extend":
            wrong = full and rows != 1
        elif state.phase == "unknown":
            wrong = False
        else:
            version = self._habits.version
            wrong = (version == "v2" and (last or kept != rows)) or (version == "v1" and full)
        if wrong:
            return
        decodes = state.decodes + (state.phase == "decode")
        yield 0, _State(_READ, state.phase, rows, join=payload, decodes=decodes), False


def _as_after_loss(payload: Payload) -> Iterator[_State]:
    """Yield the states a record can leave behind when everything before it in its pass is lost."""
    event = payload.event
    if event in CAPTURE_EVENTS:
        yield _State(_TARGET, "unknown", payload.rows, payload.layer or 0, squares=None)
    elif event == "forward_end":
        yield _State(_TARGET, "unknown", payload.rows, 1 << 30, ended=True, squares=None)
    elif event == "forward":
        yield _State(_DRAFT, "unknown", payload.rows)
    elif event in ("fc_output", "fc"):
        yield _State(_DRAFT, "unknown", payload.rows, ended=True)
    elif event == "aux_concat":
        joined = num_aux(payload)
        if joined is not None and joined > 1:
            yield _State(_JOINED, "unknown", payload.rows, join=payload)
        else:
            yield _State(_READ, "unknown", payload.rows, join=payload)


def _equal_heads(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(
        a == b or (a != a and b != b) or abs(a - b) <= 5e-5 + 1e-3 * abs(a) for a, b in zip(one, other, strict=False)
    )


def _near(one: Payload, other: Payload) -> bool:
    """Tell whether two norms are the same print, as far as both are printed."""
    if one.norm is None or other.norm is None:
        return True
    if one.norm != one.norm or other.norm != other.norm:
        return True
    slack = 2 * (one.norm_resolution + other.norm_resolution)
    return abs(one.norm - other.norm) <= slack


def _adds_up(squares: float, slack: float, joined: Payload) -> bool:
    """Tell whether a sum of squared norms, off by ``slack`` at most, is that of the joined state.

    To 5e-6, and the printed digits: a norm derived from other values may be off by much more than a printed one.
    """
    want = joined.norm or 0.0
    slack += 5e-6 * want * want + 8 * (joined.norm_resolution + 5e-5) * abs(want)
    return not abs(squares - want * want) > slack
