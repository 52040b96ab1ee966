"""Copies without a mark: which prints of several writers are one record, where no prefix names the writer.

This module is responsible for :class:`Unmarked`. It must not know how passes get their labels, nor how they are handed
out.

All n writers print the same sequence, each in its own order. A record that is one of a kind (a finite norm) is found by
its text: its first print is the next record of the sequence, whoever runs ahead, and the others are copies of it. A
text that is printed again although no writer stands before its place is the writer's that is ahead, once what that one
prints next shows it. A record that later passes print word for word (no norm, nan, zero) is placed by the rounds its
writer may be in (rounds.py), or else counted: the first n prints are those of the first pass, the next n of the second.
Where that leaves open which passes there are, or in which order, they are unknown instead of being guessed.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from copy import copy
from typing import TYPE_CHECKING

from logscope.assembly import Open, continues, gap, role_of
from logscope.copies import Slot, alike, compatible, kind_of, near, text_key, unmistakable
from logscope.dummies import Dummies
from logscope.model import num_aux
from logscope.phases import ORDER_OPEN
from logscope.rounds import Rounds
from logscope.scene import Doubt, Later

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from logscope.groups import Group
    from logscope.model import Occurrence, Payload, Role
    from logscope.rounds import Option

# Copies of one record are expected within this many records of the canonical sequence.
WINDOW = 4096
# So many passes before a disorder are in doubt with it.
BLUR = 4
# So many records tell that nobody stands before the next one.
_CERTAIN = 3
# So many disorders within so many rounds, and no order is told from here on.
_DISORDERS, _AMONG = 3, 16


class Unmarked:
    """Finds the copies of one group, and the place of each new record."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._texts: dict[tuple[Any, ...], Slot] = {}
        self._again: dict[tuple[Any, ...], list[Slot]] = {}  # further places of texts that are printed again
        self._vague: dict[tuple[Any, ...], list[Slot]] = {}
        # Texts all writers have printed: once more is a repetition. (A dict is slow at losing its first key.)
        self._repeated: OrderedDict[tuple[Any, ...], None] = OrderedDict()
        # Prints, since the last new record, of a text that no writer stands before.
        self._spare: list[Later] = []
        self._doubts: dict[Slot, list[Doubt]] = {}
        self._live: deque[Open] = deque()
        self._dummies = Dummies(group)
        self._rounds: Rounds | None = None
        self._blurred = False
        self._open: Open | None = None  # a pass of which a copy may have begun another pass of the writer ahead
        self._disorders: deque[int] = deque(maxlen=_DISORDERS)  # rounds that showed one

    # -- what the group tells -------------------------------------------------------------------------------------

    def began(self, made: Open, *, aside: bool = False) -> None:
        """Note a pass that has begun; ``aside``: found late, beside what the writer ahead prints."""
        if not aside:
            if (self._blurred or self._open is not None) and self.together():
                # Nobody has printed more than the others: no copy was another pass's.
                self._blurred = False
            elif self._open is not None:
                self._blur(self._open)
            self._open = None
            made.blurred = self._blurred
        self._live.append(made)

    def added(self, made: Open, payload: Payload) -> None:
        """Note a new record of a pass that is not found late."""
        group = self._group
        if made.region is not None:
            self._dummies.add(text_key(payload), made)
        elif len(made.slots) == 1 and group.tangle is None:
            if self._rounds is None:
                self._rounds = Rounds(group.form, group.habits, group.scene.lives, group.number)
            self._rounds.began(made, payload)
        if self._rounds is not None and made.round is not None:
            self._rounds.added(made, payload)

    def look_at(self, made: Open) -> None:
        """Doubt the order around a pass that shows a disorder."""
        if made.apart and not made.blurred and self._disordered(made):
            self._blur(made)

    def ready(self, made: Open) -> bool:
        """Tell whether every writer has printed all it will print of a pass, and it is told what of that is its own."""
        doubts = self._doubts
        if doubts and not all(doubt.decided for slot in made.slots for doubt in doubts.get(slot, ())):
            return False
        group = self._group
        return made.index < group.left or all(slot.total >= group.number for slot in made.slots)

    def let_go(self, made: Open) -> None:
        """Expect no more copies of a pass."""
        if self._rounds is not None:
            self._rounds.leave(self._group.left)
        self._forget(made)
        if self._doubts:
            self._settle_doubts(made)
        if made.doubted:
            self._even_out(made)

    # -- places ---------------------------------------------------------------------------------------------------

    def take(self, occurrence: Occurrence, payload: Payload, role: Role | None) -> bool:
        """Give a record its place; False when it belongs to no pass."""
        placed = self._take(occurrence, payload, role)
        self._dummies.heard(payload)
        return placed

    def _take(self, occurrence: Occurrence, payload: Payload, role: Role | None) -> bool:
        clear = unmistakable(payload)
        key = text_key(payload)
        if not clear and payload.intact == "partial":
            # A copy of which the values are torn off fits a whole record as far as it can be read.
            whole = self._damaged_home(payload)
            if whole is not None and whole.key is not None:
                self._alike(whole, occurrence)
                return True
        if not clear and payload.usable and self._rounds is not None and key not in self._dummies:
            placed = self._take_in_round(occurrence, payload, role, key)
            if placed is not None:
                return placed
        owners = self._owners(payload, key) if self._group.tangle is None else []
        if owners:
            self._take_doubtful(occurrence, payload, key, owners)
            return True
        if clear:
            home = self._clear_home(occurrence, key)
            if home is None and key in self._texts:
                return True
        elif payload.usable:
            home = self._counted_home(payload, key)
        else:
            home = self._damaged_home(payload)
        if home is not None:
            if payload.usable:
                self._copy(home, occurrence)
            else:
                self._alike(home, occurrence)
            return True
        if self._group.tangle is not None:
            slot = self._group.take_tangled(occurrence, payload, role)
        else:
            if self._spare:
                self.settle_spare(payload, role, clear=clear)
            slot = self._take_first(occurrence, payload, role, key, clear=clear)
            if slot is not None and slot.home is not None:
                return True
        if slot is None:
            return False
        if clear:
            self._expect(slot, key)
        elif payload.usable:
            self._vague.setdefault(key, []).append(slot)
        return True

    def _expect(self, slot: Slot, key: tuple[Any, ...]) -> None:
        """Expect copies of a record that is one of a kind, or of another place of one that is printed again."""
        slot.key = key
        slot.again = key in self._repeated or key in self._texts
        if key in self._texts:
            self._again.setdefault(key, []).append(slot)
            self._group.open.pop(self._texts[key].payload, None)
            return
        self._texts[key] = slot
        if slot.owner.region is None or slot.owner.role == "target":
            self._group.open[slot.payload] = slot

    def _clear_home(self, occurrence: Occurrence, key: tuple[Any, ...]) -> Slot | None:
        """Return where a copy of a text belongs that is seldom printed again: a place some writer stands before.

        None for a text that is not expected, or when no writer stands before its places: then the print is kept until
        the next new record, which shows whether the writer ahead has printed it.
        """
        first = self._texts.get(key)
        if first is None or self._group.tangle is not None or first.owner.region is not None:
            return first
        places: list[Slot] = [first, *self._again.get(key, ())]
        stood = [slot for slot in places if slot.total < self._group.number and self._stands_before(slot)]
        if stood:
            return stood[0]
        if len(self._spare) >= WINDOW:
            return first
        later = Later(occurrence, Slot(occurrence), self._group.scene)
        self._group.scene.queue.append(later)
        self._spare.append(later)
        return None

    def settle_spare(self, payload: Payload | None = None, role: Role | None = None, *, clear: bool = False) -> None:
        """Place the prints that were kept: before a new record, where that makes the passes whole, else as copies."""
        spare, self._spare = self._spare, []
        taken = self._between(spare, payload, role, clear=clear) if payload is not None else set()
        for later in spare:
            later.settled = True
            occurrence = later.occurrence
            one = occurrence[3]
            key = text_key(one)
            if later not in taken:
                home = self._place_for(key)
                if home is not None:
                    self._copy(home, occurrence)
                    continue
            own = one.role or self._group.sites.get(one.site)
            current = self._group.track.current
            made = current if current is not None and continues(current, one, own) else None
            slot = self._group.append(occurrence, one, own, made, self._group.track, later=later)
            if slot is None:
                later.stray = True
            else:
                self._expect(slot, key)

    def _stands_before(self, slot: Slot) -> bool:
        """Tell whether some writer may be about to print a record: more have printed one of the last certain ones.

        One alone does not tell: where a copy of it is lost, a writer seems to have gone by. Nor does a kind of record
        that some writers never print.
        """
        back, seen = slot.back, 0
        while back is not None and back.owner is not None and seen < _CERTAIN:
            if back.key is not None and kind_of(back.payload) in self._group.shared:
                if back.total > slot.total:
                    return True
                seen += 1
            back = back.back
        return seen < _CERTAIN

    def _place_for(self, key: tuple[Any, ...]) -> Slot | None:
        """Return the place of a text that has room: one some writer stands before, or the first."""
        first = self._texts.get(key)
        if first is None:
            return None
        room = [slot for slot in (first, *self._again.get(key, ())) if slot.total < self._group.number]
        return next((slot for slot in room if self._stands_before(slot)), room[0] if room else None)

    def _between(self, spare: list[Later], payload: Payload, role: Role | None, *, clear: bool) -> set[Later]:
        """Return which of the prints that were kept stand between the last record and a new one."""
        trial = self._group.track.current
        if trial is None:
            return set()
        trial = copy(trial)
        trial.slots = list(trial.slots)
        taken = set()
        for later in spare:
            one = later.occurrence[3]
            own = one.role or self._group.sites.get(one.site)
            if not (continues(trial, one, own) and self._group.form.due(trial, one, clear=True)):
                begins = role_of(one, own)
                if begins is None or not self._group.whole(trial) or not self._group.form.opens(one):
                    continue
                trial = Open(self, begins, trial.index + 1)
            trial.add(Slot(later.occurrence), one)
            taken.add(later)
        if continues(trial, payload, role) and self._group.form.due(trial, payload, clear=clear):
            return taken
        return taken if self._group.whole(trial) and self._group.form.opens(payload) else set()

    def _owners(self, payload: Payload, key: tuple[Any, ...]) -> list[Open]:
        """Return the passes a record may belong to, where its text alone does not tell; none for any other record."""
        if payload.event == "forward_end":
            return self._standing_at_end(payload) if payload.usable else []
        if payload.event != "aux_concat" or num_aux(payload) != 1 or not payload.usable:
            return []
        dummies = self._dummies.before_output(payload, key, self._not_left())
        if dummies is not None:
            return dummies
        if key not in self._vague:
            return []
        return [made for made in self._not_left() if self._puts_out(made, payload, key)]

    def _puts_out(self, made: Open, payload: Payload, key: tuple[Any, ...]) -> bool:
        """Tell whether a draft pass may lack a copy of an output: one of all its rows, or of fewer."""
        rows, kept = made.rows, payload.rows
        if made.role != "draft" or made.region is not None or rows is None or kept is None:
            return False
        fewer = made.wide and self._group.habits.reads_rows(payload, None) != "FULL"
        if rows != kept and not (fewer and rows > kept):
            return False
        joined = made.joined
        return joined is None or (text_key(joined.payload) == key and joined.total < self._group.number)

    def _standing_at_end(self, payload: Payload) -> list[Open]:
        """Return the passes of which some writer may print a ``forward_end`` now; none where nothing tells.

        It stands behind the last capture, before the joined state: where both are one of a kind, they tell how many
        writers stand there. Where some passes have records that are not, a writer may stand in any of those too, and
        in any that is not known to have come so far.
        """
        layers = self._group.form.layers
        standing: list[Open] = []
        begun: list[Open] = []
        clear = vague = False
        for made in self._not_left() if layers else ():
            tail = made.tail
            if tail is None or made.rows != payload.rows:
                continue
            after = made.joined if self._group.form.joins else made.joined or made.end
            if not unmistakable(tail.payload) or (made.joined is not None and not unmistakable(made.joined.payload)):
                vague = True
                begun.append(made)
                continue
            clear = True
            if made.last_layer < layers[-1]:
                begun.append(made)
            elif tail.total > _copies_of(after):
                standing.append(made)
        if vague and clear:
            return sorted((*standing, *begun), key=lambda made: made.index)
        return standing

    def _not_left(self) -> deque[Open]:
        """Return the passes that some writer may still print records of."""
        live, left = self._live, self._group.left
        while live and live[0].index < left:
            live.popleft()
        return live

    def _take_doubtful(
        self, occurrence: Occurrence, payload: Payload, key: tuple[Any, ...], owners: list[Open]
    ) -> None:
        """Place a record in the first of the passes it may belong to that has room."""
        slots = [made.end if payload.event == "forward_end" else made.joined for made in owners]
        at = next((at for at, slot in enumerate(slots) if slot is None or slot.total < self._group.number), 0)
        slot = self._put(owners[at], slots[at], occurrence, payload, key)
        if slot is not None and len(owners) > 1:
            self._doubt(occurrence, slot, owners)
            for made in owners:
                made.doubted = True

    def _put(
        self, made: Open, slot: Slot | None, occurrence: Occurrence, payload: Payload, key: tuple[Any, ...]
    ) -> Slot | None:
        """Put a record into a pass, as a copy of ``slot``, and return its slot; None when it says something else."""
        if slot is None:
            slot = Slot(occurrence)
            made.add(slot, payload, gap(made, payload))
            self._group.chain(slot, made)
            self._vague.setdefault(key, []).append(slot)
        elif text_key(slot.payload) == key:
            # Every place is kept for now: one may turn out to be another pass's.
            slot.copies += 1
            slot.others.append(occurrence)
        else:
            self._alike(slot, occurrence)
            return None
        return slot

    def _take_first(
        self, occurrence: Occurrence, payload: Payload, role: Role | None, key: tuple[Any, ...], *, clear: bool
    ) -> Slot | None:
        """Place the first print of a record: in the current pass, an unfinished one, as a variant, in a new pass."""
        rerun = self._dummies.take(occurrence, payload, key)
        if rerun is not None:
            return rerun
        current = self._group.track.current
        # Where all writers stand at its end, what goes on with the current pass is its own, whatever it leaves out.
        if (
            current is not None
            and continues(current, payload, role)
            and ((clear and self._group.form.due(current, payload, clear=True)) or self._all_at_end(current))
        ):
            made: Open | None = current
            at: int | None = None
        else:
            repeats = not clear or key in self._repeated
            made = at = None
            if clear and self._rounds is not None:
                made, at = self._rounds.lacking(payload)
            if made is None:
                made, at = self._unfinished(payload, role, clear=clear, repeats=repeats)
        if made is None and current is not None and key not in self._repeated:
            home = self._twin(payload, current)
            if home is not None:
                return self._alike(home, occurrence)
        return self._group.append(occurrence, payload, role, made, self._group.track, at)

    def _take_in_round(
        self, occurrence: Occurrence, payload: Payload, role: Role | None, key: tuple[Any, ...]
    ) -> bool | None:
        """Place a record that later passes print word for word by the rounds its writers may be in.

        None where no round may have it.
        """
        rounds = self._rounds
        last = rounds.last if rounds is not None else None
        if rounds is None or last is None or (payload.event == "forward_end" and not rounds.vague):
            return None
        last.hear(payload)
        options = rounds.options(payload)
        if not options:
            return None
        if self._spare:
            self.settle_spare(payload, role)
            last = rounds.last or last
        place = rounds.place(options, payload)
        if place is None:
            return False
        option, slot, made, at = place
        if slot is not None:
            slot.copies += 1
            if self._group.keep or len(options) > 1 or option not in options:
                slot.others.append(occurrence)
        else:
            slot = Slot(occurrence)
            if made is None:
                made = self._begin_in_round(option, occurrence)
            made.add(slot, payload, at if at < len(made.slots) else None)
            if len(made.slots) == 1:
                rounds.join(made, option)
            rounds.added(made, payload)
            self._group.chain(slot, made, option.round.before_pass(made))
            self._vague.setdefault(key, []).append(slot)
        if len(options) > 1 or option not in options:
            for other in options:
                other.round.doubtful.add(other.part)
            if last in (option.round, options[-1].round) and payload.event != "forward_end":
                last.blurred = True
            self._doubt(occurrence, slot, options)
        return True

    def _doubt(self, occurrence: Occurrence, slot: Slot, owners: Sequence[Open | Option]) -> None:
        """Doubt a copy that was put into a slot: it may be that of any of the owners."""
        doubt = Doubt(occurrence, slot, owners)
        self._doubts.setdefault(slot, []).append(doubt)
        self._group.scene.queue.append(doubt)

    def _begin_in_round(self, option: Option, occurrence: Occurrence) -> Open:
        """Begin a draft pass of a round: behind what the writer ahead has printed, or, found late, beside it."""
        rounds = self._rounds
        if rounds is not None and option.round is rounds.last:
            made = self._group.begin("draft", occurrence, self._group.track)
        else:
            made = self._group.begin_aside("draft", option.round.target, occurrence)
        made.by_round = True
        return made

    def _counted_home(self, payload: Payload, key: tuple[Any, ...]) -> Slot | None:
        """Return where a copy of a record that later passes print word for word belongs: the first place with room.

        A place all writers have left (a record that is one of a kind behind it has all its copies) has no room any
        more, so that a lost copy is missed where it is lost.
        """
        for slot in self._vague.get(key, ()):
            if slot.total < self._group.number and slot.owner.index >= self._group.left:
                current = self._group.track.current
                dummy = slot.owner.region is not None
                if current is not None and not dummy and self._group.form.opens(payload) and self._group.whole(current):
                    # It may as well begin the next pass of a writer that runs ahead.
                    self._open = self._open or slot.owner
                return slot
        return None

    def _unfinished(
        self, payload: Payload, role: Role | None, *, clear: bool, repeats: bool
    ) -> tuple[Open | None, int | None]:
        """Return the first pass that a record goes on with, or in which it fills a gap, and where.

        Records that later passes repeat are found late (their first prints were taken for an earlier pass), so the
        pass they belong to need not be the current one; it may even be joined already.
        """
        for made in self._not_left():
            if continues(made, payload, role) and self._group.form.due(made, payload, clear=clear):
                if not made.closed or not self._group.whole(made):
                    return made, None
            elif repeats:
                at = gap(made, payload)
                if at is not None:
                    return made, at
        return None, None

    def _damaged_home(self, payload: Payload) -> Slot | None:
        """Return the record a damaged copy was to be: the first with room that it fits as far as it can be read."""
        for made in self._not_left():
            for slot in made.slots:
                if slot.total < self._group.number and compatible(payload, slot.payload):
                    return slot
        return None

    def _twin(self, payload: Payload, current: Open) -> Slot | None:
        """Return the record another writer printed in this place with other values, one not all have printed yet.

        That is the one of its kind in the current pass, when that pass is not finished (then nothing else can come),
        or when the values are nearly the same; or, in an unfinished pass, one with nearly the same values before it.
        A norm alone is no such value: those of other passes are often as near.
        """
        kind = kind_of(payload)
        last = self._rounds.last if self._rounds is not None else None
        # What a pass lacks may have been taken for another round's.
        whole = self._group.whole(current) or (last is not None and last.blurred)
        for made in (current,) if whole else self._not_left():
            for slot in made.slots:
                if kind_of(slot.payload) != kind or slot.total >= self._group.number:
                    continue
                alike = payload.head and slot.payload.head and near(payload, slot.payload)
                # What has another shape is of another pass: dummy passes of other rows differ in them alone.
                here = made is current and payload.shape == slot.payload.shape
                here = here and (not whole or self._next_of_all(slot, made))
                if alike or compatible(payload, slot.payload) or here:
                    return slot
        return None

    def _next_of_all(self, slot: Slot, made: Open) -> bool:
        """Tell whether the writers that have not printed a record can print nothing else, and no other writer can.

        All stand right before it, within its pass, and a record of its kind begins none.
        """
        back, after = slot.back, slot.next
        if back is None or back.owner is not made or self._group.form.opens(slot.payload):
            return False
        return back.total >= self._group.number > slot.total and (after is None or after.total <= slot.total)

    def _copy(self, slot: Slot, occurrence: Occurrence) -> None:
        slot.copies += 1
        if self._group.keep:
            slot.others.append(occurrence)
        if slot.copies >= self._group.number:
            self.filled(slot)

    def _alike(self, home: Slot, occurrence: Occurrence) -> Slot:
        other = alike(home, occurrence)
        payload = other.payload
        if unmistakable(payload):
            other.key = text_key(payload)
            self._group.open[payload] = self._texts[other.key] = other
        if home.total >= self._group.number:
            self.filled(home)
        return other

    def filled(self, slot: Slot) -> None:
        """Close a record that every writer has printed: all of them have left the passes before it.

        Only a record that is one of a kind shows that; the copies of others may be those of later passes. Those of a
        dummy pass, which is run twice, may be those of the second run: that one tells when all have left the first.
        """
        if slot.key is None:
            return
        self._close_text(slot, slot.key)
        self._repeated[slot.key] = None
        if len(self._repeated) > WINDOW:
            self._repeated.popitem(last=False)
        made = slot.owner
        left = made.index
        if made.region is not None:
            left = made.first_run.index + 1 if made.first_run is not None else -1
        if left > self._group.left:
            self._group.left = left
            if self._rounds is not None:
                self._rounds.leave(left)

    def _close_text(self, slot: Slot, key: tuple[Any, ...]) -> None:
        """Expect no more copies in a place; those that come belong to the next place of the text, if there is one."""
        again = self._again.get(key) if self._again else None
        if again is not None and slot in again:
            again.remove(slot)
        elif self._texts.get(key) is slot:
            self._group.open.pop(slot.payload, None)
            del self._texts[key]
            if again:
                first = self._texts[key] = again.pop(0)
                if not again:
                    self._group.open[first.payload] = first
        if again is not None and not again:
            del self._again[key]

    def _blur(self, made: Open) -> None:
        """Doubt the order of the passes from a little before one on, until all writers are seen to stand at one place.

        A pass that begins in the middle, or ends there, shows that the order in which records are found is not the
        one in which any writer prints them.
        """
        one = made.round
        if one is not None and self._rounds is not None and not self._blurred:
            # A text that is seldom printed again was: what tells a round from another by order is in doubt here.
            self._disorders.append(one.number)
            if self._disorders[0] < one.number - _AMONG or len(self._disorders) < _DISORDERS:
                self._rounds.blur(one)
                return
        self._blurred = True
        for other in self._group.pending:
            if other.index >= made.index - BLUR:
                other.blurred = True

    def together(self) -> bool:
        """Tell whether all writers stand at one place: each has printed every record."""
        return all(slot.total >= self._group.number for made in self._not_left() for slot in made.slots)

    def _all_at_end(self, current: Open) -> bool:
        """Tell whether all writers stand at the end of the current pass: each has printed all there is of it."""
        return self._group.left >= current.index and all(slot.total >= self._group.number for slot in current.slots)

    def _disordered(self, made: Open) -> bool:
        """Tell whether a pass shows that records are found in another order than any writer prints them.

        It begins or ends in the middle, though its late records have been found by now; or all its records are such
        that other passes print word for word, so that nothing shows where it stands.
        """
        if made.region is not None or not made.index:
            return False
        if made.round is not None and (made.by_round or made.round.blurred or made.round.blurred_before):
            return False  # What it lacks may have been taken for another round's.
        whole = self._group.whole(made) and self._group.form.begins(made.role, made.first_rank)
        return not whole or all(slot.key is None or slot.again for slot in made.slots)

    def _settle_doubts(self, made: Open) -> None:
        """Take out of a pass the copies that passes of other phases may have printed."""
        for slot in list(made.slots):
            for doubt in self._doubts.pop(slot, ()):
                if not doubt.settle(made):
                    continue
                if doubt.occurrence is not slot.first:
                    slot.others.remove(doubt.occurrence)
                elif slot.others:
                    slot.first = slot.others.pop(0)
                elif slot in made.slots and len(made.slots) > 1:
                    made.slots.remove(slot)
                    if made.end is slot:
                        made.end = None
                    else:
                        made.join = made.joined = None
                else:
                    made.phase, made.evidence, made.reason = "unknown", "none", ORDER_OPEN

    def _even_out(self, made: Open) -> None:
        """Count the ``forward_end`` copies of a pass by what stands around them, where their places are in doubt.

        A writer that printed the last capture and the joined state has printed the end between them.
        """
        end = made.end
        if end is None or end.total == self._group.number:
            return
        at = made.slots.index(end)
        around = made.slots[at - 1 : at] + made.slots[at + 1 : at + 2]
        if len(around) == 2 and all(slot.total == self._group.number for slot in around):
            end.copies += self._group.number - end.total

    def _forget(self, made: Open) -> None:
        for slot in made.slots:
            for one in (slot, *(slot.alike or [])):
                if one.key is not None:
                    self._close_text(one, one.key)
            if slot.key is None and self._vague:
                key = text_key(slot.payload)
                same = self._vague.get(key)
                if same is not None and slot in same:
                    same.remove(slot)
                    if not same:
                        del self._vague[key]


def _copies_of(slot: Slot | None) -> int:
    return slot.total if slot is not None else 0
