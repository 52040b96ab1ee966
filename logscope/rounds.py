"""Rounds: a target pass and the draft passes behind it, where several writers print without a mark.

This module is responsible for :class:`Rounds`: in which round a writer may stand that prints a record which other
passes print word for word (no norm, nan, zero), and which place there has room for it. It must not know how records
that are one of a kind are found, nor how passes are handed out.

The records that are one of a kind tell how many writers have come to them. So a writer may print a record in a round
when more have printed the last such record before it than the next one behind it. Where several rounds are left, the
first with room takes it: whatever order the writers really have, that gives every place the copies it must have, so the
counts are right; which line belongs to which round stays open, and its phase is told where all these rounds agree.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from logscope.assembly import reads_wide
from logscope.copies import Form, kind_of, text_key, unmistakable
from logscope.model import CAPTURE_EVENTS, num_aux
from logscope.phases import AFTER, REACH, no_verify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from logscope.assembly import Open
    from logscope.copies import Slot
    from logscope.model import Payload, Phase
    from logscope.phases import Habits
    from logscope.segments import Lives

# Writers so many rounds apart may print a text again before all have printed it: no order is told any more.
_FAR_APART = 32
# A disorder in one round puts so many on either side in doubt; so many are remembered for that.
_AROUND, _REMEMBERED = 2, 64
TARGET, WIDE, DECODE = range(3)
_ANY_PHASE: frozenset[Phase] = frozenset(AFTER)
_EXTEND: frozenset[Phase] = frozenset(("extend",))
_VERIFY: frozenset[Phase] = frozenset(("verify",))


@dataclass(slots=True, eq=False)
class Round:
    """One target pass and the draft passes behind it: the one that reads the joined state, and the decode steps.

    blurred, blurred_before
        the writer that is ahead may have printed records here, or in the round before, that were taken for those of
        another round.
    edge, left, said
        the byte offset behind which what the server says of it stands; whether all writers have left it, and the last
        Prefill line before they had.
    heard, heard_before
        the draft's inputs and outputs, with their rows, that anybody printed while it, or the round before, was the
        last one: the writer ahead printed no others.
    doubtful
        its parts of which it is open how many writers have printed them.
    """

    target: Open
    number: int = 0
    next: Round | None = None
    wide: Open | None = None
    decodes: list[Open] = field(default_factory=list)
    blurred: bool = False
    blurred_before: bool = False
    edge: int = -1
    left: bool = False
    said: int = -1
    heard: set[tuple[str, int | None]] | None = field(default_factory=set)
    heard_before: set[tuple[str, int | None]] | None = None
    doubtful: set[int] = field(default_factory=set)

    def passes(self) -> Iterator[tuple[int, Open]]:
        """Yield its passes in order, each with its part."""
        yield TARGET, self.target
        if self.wide is not None:
            yield WIDE, self.wide
        for made in self.decodes:
            yield DECODE, made

    def blur(self) -> None:
        """Doubt what the writer ahead has printed in it: something was taken for a copy that was none, or is lost."""
        self.blurred = True
        self.heard = None
        if self.next is not None:
            self.next.blurred_before = True
            self.next.heard_before = None

    def drop(self, made: Open) -> None:
        """Let go of a pass that is handed out."""
        if made is self.wide:
            self.wide = None
        elif made in self.decodes:
            self.decodes.remove(made)

    def hear(self, payload: Payload) -> None:
        """Note what somebody prints while it is the last round."""
        if self.heard is None:
            return
        if payload.event == "forward":
            self.heard.add(("decode" if reads_wide(payload) is False else "read", payload.rows))
        elif payload.event == "aux_concat" and num_aux(payload) == 1:
            self.heard.add(("output", payload.rows))

    def before_pass(self, made: Open) -> Slot | None:
        """Return the last record before a pass of it."""
        back = None
        for _, one in self.passes():
            if one is made:
                break
            back = one.slots[-1]
        return back

    @property
    def entered(self) -> int:
        """How many writers have come to it."""
        return next((slot.total for slot in self.target.slots if slot.key is not None), 0)


@dataclass(slots=True, frozen=True)
class Option:
    """A round in which a record may have been printed, and in which of its parts.

    ``fits``: the phases of the round's target pass with which it can be.
    """

    round: Round
    part: int
    fits: frozenset[Phase] = _ANY_PHASE

    @property
    def decided(self) -> bool:
        """Whether its phase is told."""
        after = self.round.next
        if self.part == DECODE:
            return after is None or after.target.decided
        return self.round.target.decided

    @property
    def phase(self) -> Phase | None:
        """The phase the record would have; None when it cannot be: only a verify follows decode steps."""
        if self.part == DECODE:
            after = self.round.next
            return None if after is not None and after.target.phase == "extend" else "decode"
        phase = self.round.target.phase
        if self.part == TARGET:
            return phase
        if phase in AFTER and phase not in self.fits:
            return None
        return AFTER.get(phase, "unknown")

    @property
    def segment(self) -> Any:
        """The segment of its round."""
        return self.round.target.segment

    @property
    def during(self) -> Any:
        """What the server did in its round."""
        return self.round.target.during


class Place(NamedTuple):
    """Where a record goes: to the copies of ``slot``, or new into ``made``, at a place there; else into a new pass."""

    option: Option
    slot: Slot | None = None
    made: Open | None = None
    at: int = 0


class Rounds:
    """The rounds that some writer may still be in."""

    def __init__(self, form: Form, habits: Habits, lives: Lives, writers: int) -> None:
        self._form = form
        self._habits = habits
        self._lives = lives
        self._writers = writers
        self._rounds: deque[Round] = deque()
        self._number = 0
        self._recent: deque[Round] = deque(maxlen=_REMEMBERED)
        self._blurred_to = 0
        self._vague = 0  # the last round with such a capture

    def began(self, made: Open, payload: Payload) -> None:
        """Note a pass that the writer ahead has begun with a record."""
        rounds = self._rounds
        last = rounds[-1] if rounds else None
        if made.role == "target":
            if unmistakable(payload):
                self._number += 1
                made.round = Round(made, self._number)
                if last is not None:
                    last.next = made.round
                    made.round.blurred_before = last.blurred
                    made.round.heard_before = last.heard
                    made.round.edge = rounds[-min(len(rounds), REACH)].target.offset
                    made.blurred |= last.blurred and len(rounds) >= _FAR_APART
                rounds.append(made.round)
                self._recent.append(made.round)
                if made.round.number <= self._blurred_to:
                    made.round.blur()
            else:
                rounds.clear()  # Nothing tells who stands before it.
        elif last is not None:
            part: int | None = DECODE
            if made.wide or (last.wide is None and not self._form.forwards):
                part = WIDE
            elif made.wide is None and self._form.forwards:
                part = None  # Its beginning is found late, or lost.
            self._join(made, last, part)

    def join(self, made: Open, option: Option) -> None:
        """Note a draft pass that was found in a round."""
        self._join(made, option.round, option.part)

    def _join(self, made: Open, one: Round, part: int | None) -> None:
        if part == DECODE:
            one.decodes.append(made)
        elif part == WIDE and one.wide is None:
            one.wide = made
        made.round = one

    def blur(self, one: Round) -> None:
        """Doubt what was printed in a round that shows a disorder, and around it."""
        self._blurred_to = max(self._blurred_to, one.number + _AROUND)
        for other in self._recent:
            if abs(other.number - one.number) <= _AROUND:
                other.blur()

    def leave(self, index: int) -> None:
        """Let go of the rounds that all writers have left: they have come to a pass with this index."""
        rounds = self._rounds
        while len(rounds) > 1 and rounds[1].target.index <= index:
            gone = rounds.popleft()
            gone.left = True
            gone.said = self._lives.prefills[-1].offset if self._lives.prefills else -1

    @property
    def last(self) -> Round | None:
        """The round of the writer that is ahead."""
        return self._rounds[-1] if self._rounds else None

    def added(self, made: Open, payload: Payload) -> None:
        """Note a new record of a pass of a round."""
        if made.role == "draft":
            if self._rounds:
                self._rounds[-1].hear(payload)
        elif payload.event in CAPTURE_EVENTS and not unmistakable(payload):
            self._vague = made.round.number

    @property
    def vague(self) -> bool:
        """Whether some capture in a round is not one of a kind."""
        return bool(self._rounds) and self._vague >= self._rounds[0].number

    def options(self, payload: Payload) -> list[Option]:
        """Return the rounds in which a record may have been printed, in order."""
        rank = Form.rank(payload)
        if rank is None:
            return []
        return [option for option in self._printing(payload) if self._somebody(option.round, option.part, rank)]

    def _printing(self, payload: Payload) -> Iterator[Option]:
        """Yield the rounds that print such a record, in order, whoever stands there now."""
        for one in self._rounds:
            for part, fits in self._parts(one, payload):
                # What stands before it is there, unless it was taken for another round's.
                if part != TARGET or one.blurred or self._form.due(one.target, payload, clear=True):
                    yield Option(one, part, fits)

    def _parts(self, one: Round, payload: Payload) -> Iterator[tuple[int, frozenset[Phase]]]:
        """Yield the parts of a round that print such a record, as far as its rows tell, and with which phases."""
        event, rows, due = payload.event, payload.rows, one.target.rows
        output = event == "aux_concat" and num_aux(payload) == 1
        if not output and event not in ("forward", "fc_output", "fc"):
            if rows == due:
                yield TARGET, _ANY_PHASE
            return
        narrow = event == "forward" and reads_wide(payload) is False
        kept = self._habits.reads_rows(payload, None) if output else None
        if not narrow and rows is not None and due is not None and rows <= due:
            fits = self._fits_phases(kept, output=output, whole=rows == due)
            if fits:
                yield WIDE, fits
        if (narrow or output) and kept != "FULL" and self._decodes(one, rows):
            yield DECODE, _ANY_PHASE

    def _fits_phases(self, kept: str | None, *, output: bool, whole: bool) -> frozenset[Phase]:
        """Return behind which target passes a draft pass prints a record with all its rows (``whole``), or with fewer.

        Spec v2 keeps all rows (FULL) behind a verify, and one a request (LAST) behind an extend.
        """
        if self._habits.version != "v2":
            return _ANY_PHASE
        extend = kept != "FULL" if output else whole
        verify = whole and kept != "LAST"
        return _ANY_PHASE if extend and verify else _EXTEND if extend else _VERIFY if verify else frozenset()

    def _decodes(self, one: Round, rows: int | None) -> bool:
        """Tell whether a round may have decode steps of so many rows: the verify behind it has their requests."""
        lives, after = self._lives, one.next
        steps = lives.here.num_steps
        if steps == 1 and not lives.adaptive:
            return False
        tokens, topk = lives.draft_tokens, lives.here.topk
        if lives.adaptive or after is None or tokens is None or topk is None:
            return True
        verified = after.target.rows
        return rows is None or verified is None or rows * tokens == verified * topk

    def _somebody(self, one: Round, part: int, rank: int) -> bool:
        """Tell whether some writer may stand before such a record: more came to the last sure one than to the next."""
        if part == DECODE and part not in one.doubtful:
            return self._before_decode(one, rank)
        before, behind = None, None
        for where, made in one.passes():
            for slot in made.slots:
                if slot.key is None and where in one.doubtful:
                    continue
                at = Form.rank(slot.payload)
                if where < part or (where == part != DECODE and at is not None and at < rank):
                    before = slot.total
                elif behind is None and (where > part or (part != DECODE and at is not None and at >= rank)):
                    behind = slot.total
        if behind is None:
            behind = one.next.entered if one.next is not None else 0
        return before is None or before > behind

    def _before_decode(self, one: Round, rank: int) -> bool:
        """Tell whether some writer stands before such a record of a decode step, where all are known."""
        reached = one.entered
        for where, made in one.passes():
            there = where != DECODE
            for slot in made.slots:
                if not there and (at := Form.rank(slot.payload)) is not None and at >= rank:
                    if slot.total < reached or at > rank:
                        return True
                    there = True
                reached = slot.total
            if not there and reached:
                return True
        left = one.next.entered if one.next is not None else 0
        return self._form.begins("draft", rank) and reached > left

    def place(self, options: list[Option], payload: Payload) -> Place | None:
        """Return the first place with room for a record among its options; None when no place has.

        Those where the rows of the target pass suit come before those where it would have to be an extend by chance.
        Where none has room, a copy was put into one of them that another round lacks: that one takes this in its stead.
        """
        key = text_key(payload)
        for rounds in (options, self._printing(payload)):
            for option in sorted(rounds, key=lambda option: not self._likely(option)):
                found = self._place_in(option, payload, key)
                if found is not None:
                    return found
        return None

    def _likely(self, option: Option) -> bool:
        target, verified = option.round.target, 0 if self._lives.adaptive else self._habits.verify_rows
        if option.part != WIDE or target.rows is None:
            return True
        extend = no_verify(target.rows, self._lives.draft_tokens, verified)
        return ("extend" if extend else "verify") in option.fits

    def _place_in(self, option: Option, payload: Payload, key: tuple[Any, ...]) -> Place | None:
        one, part = option.round, option.part
        kind, rank = kind_of(payload), Form.rank(payload)
        reached = one.entered
        for where, made in one.passes():
            if where > part:
                break
            if where < part or made.done:
                reached = made.slots[-1].total
                continue
            at = len(made.slots)
            there: Slot | None = None
            for number, slot in enumerate(made.slots):
                if kind_of(slot.payload) == kind:
                    there = slot
                    break
                other = Form.rank(slot.payload)
                if other is not None and rank is not None and other > rank:
                    at = number
                    break
                reached = slot.total
            if there is not None:
                if text_key(there.payload) == key and there.total < min(reached, self._writers):
                    return Place(option, slot=there)
            elif reached > 0 and self._fits(made, payload, part):
                return Place(option, made=made, at=at)
            reached = made.slots[-1].total
        if part == TARGET or not reached or (one.left and one.target.done):
            return None
        return Place(option) if self._begins(one, part, payload) else None

    def lacking(self, payload: Payload) -> tuple[Open | None, int | None]:
        """Return the pass of the last round that a new record goes on with, and where, whatever it seems to lack.

        What is one of a kind is printed first by the writer ahead; what it printed before may have been taken for
        another round's.
        """
        one, rank = self.last, Form.rank(payload)
        if one is None or not one.blurred or rank is None or self._form.opens(payload):
            return None, None
        output = payload.event == "aux_concat" and num_aux(payload) == 1
        draft = output or payload.event in ("fc_output", "fc")
        made = one.wide if draft else one.target
        if made is None or (payload.rows != made.rows and not output) or (draft and one.decodes):
            return None, None
        ranks = [Form.rank(slot.payload) for slot in made.slots]
        if rank in ranks:
            return None, None
        return made, next((at for at, other in enumerate(ranks) if other is not None and other > rank), None)

    def _fits(self, made: Open, payload: Payload, part: int) -> bool:
        """Tell whether a pass may have a record it lacks."""
        if part == TARGET or payload.event == "aux_concat":
            return True
        return made.rows is None or made.rows == payload.rows

    def _begins(self, one: Round, part: int, payload: Payload) -> bool:
        """Tell whether a record may begin a draft pass that a round lacks so far."""
        if part == WIDE:
            return one.wide is None and self._form.begins("draft", Form.rank(payload))
        steps = self._lives.here.num_steps
        more = steps is None or self._lives.adaptive or len(one.decodes) < steps - 1
        return more and self._form.begins("draft", Form.rank(payload))
