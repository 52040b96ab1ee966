"""One scheduler's prints: copies are collapsed, the records become passes, the passes get their labels.

This module is responsible for :class:`Group`. It must not know how the occurrences of different schedulers and of the
server are told apart (passes.py), nor the rules of the phases (phases.py).

How copies without a rank are collapsed. All n writers print the same sequence, each in its own order. A record that is
one of a kind (a finite norm) is found by its text: its first print is the next record of the sequence, whoever runs
ahead, and the others are copies of it. A record that later passes print word for word (no norm, nan, zero) is counted:
the first n prints are those of the first pass, the next n of the second. Where that leaves the order of whole passes
open, they are said to be unknown instead of being guessed.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from logscope.assembly import KNOWN, Open, continues, gap, reads_join, role_of
from logscope.copies import Census, Form, Slot, compatible, kind_of, near, text_key, unmistakable
from logscope.model import ForwardPass, num_aux
from logscope.phases import Habits, decide, no_verify, printed_phase
from logscope.rounds import Rounds
from logscope.segments import ANY
from logscope.tangle import Move, Tangle, Track

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logscope.model import During, Occurrence, Payload, Role, Segment, ServerEvent
    from logscope.rounds import Option
    from logscope.segments import Lives

# A pass waits for its label, or for late copies, no longer than this many later passes of its scheduler.
PATIENCE = 48
# Copies of one record are expected within this many records of the canonical sequence.
WINDOW = 4096
UNCOUNTED = 1 << 30
# So many passes before a disorder are in doubt with it.
BLUR = 4
# So many records tell that nobody stands before the next one.
_CERTAIN = 3
# So many disorders within so many rounds, and no order is told from here on.
_DISORDERS, _AMONG = 3, 16
# A writer that fits nowhere is followed once it prints so many records and nobody else any.
_LONE = 64
# A marked writer has fallen silent when the log goes on for so many passes without it.
_SILENT = 24
# A marked writer's record is looked for among so many that come behind its last one; a damaged one among so many.
_AHEAD = 256
_BEHIND = 32


_SEVERAL = "several writers print the same text in pass after pass, so their order cannot be told"


class Doubt:
    """A copy that several passes may have printed: it belongs to none of them unless they are of one phase.

    ``owners`` are these passes, or the rounds they belong to.
    """

    __slots__ = ("alone", "occurrence", "owners", "slot")

    def __init__(self, occurrence: Occurrence, slot: Slot, owners: Sequence[Open | Option]) -> None:
        self.occurrence = occurrence
        self.slot = slot
        self.owners = owners
        self.alone: bool | None = None

    @property
    def decided(self) -> bool:
        """Whether all passes in question have their labels."""
        return all(owner.decided for owner in self.owners)

    def settle(self, made: Open | None = None) -> bool:
        """Tell whether the copy stays outside of the passes; ``made`` is the one it was put into."""
        if self.alone is None:
            phases = {owner.phase for owner in self.owners} - {None}
            self.alone = len(phases) > 1 or (made is not None and made.phase not in phases)
        return self.alone


class Later:
    """A record of which it is not told yet where it belongs, and where we were when it was printed."""

    __slots__ = ("during", "made", "occurrence", "region", "settled", "slot", "stray", "time")

    def __init__(self, occurrence: Occurrence, slot: Slot, scene: Scene) -> None:
        self.occurrence = occurrence
        self.slot = slot
        self.during: During = scene.lives.during_serving
        self.region = scene.lives.region
        self.time = occurrence[2].time or scene.time
        self.settled = False
        self.stray = False
        self.made: Open | None = None


@dataclass
class _Standing:
    """How many writers have printed the input of a dummy draft pass of some rows, and not yet its output.

    ``wide`` has what kinds of inputs they printed, since nobody stood there last.
    """

    writers: int = 0
    wide: set[bool | None] = field(default_factory=set)


@dataclass
class Scene:
    """What the groups of one file share: where in which life we are, and the queue of what is to be handed out."""

    file: str
    keep_copies: bool
    lives: Lives
    queue: deque[Open | Segment | ServerEvent | Doubt | Later] = field(default_factory=deque)
    time: str | None = None


class Writer:
    """One printing process of a group whose prefix names it: the last record it printed, and its line.

    ``missed`` counts the passes that were let go without it since that line.
    """

    __slots__ = ("_since", "at", "line", "missed", "position", "records")

    def __init__(self) -> None:
        self.at: Slot | None = None
        self.position = 0
        self.records = 0
        self.line = 0
        self.missed = 0
        self._since = 0

    def miss(self) -> None:
        """Count a pass that is over without it."""
        if self.line != self._since:
            self._since, self.missed = self.line, 0
        self.missed += 1


class Group:
    """One scheduler: the writers that print the same records, and the passes these records make."""

    def __init__(self, scene: Scene, key: tuple[Any, ...], *, marked: bool) -> None:
        self.scene = scene
        self.key = key
        self.marked = marked
        self.writers: dict[tuple[Any, ...], Writer] = {}
        self.number = 1 if not marked else UNCOUNTED
        self.expected: int | None = 1
        self.open: dict[Payload, Slot] = {}
        self.form = Form(Census().kinds)
        self.habits = Habits()
        self.tangle: Tangle | None = None
        self.latent = 1  # schedulers the server has, of which one alone printed when the writers were counted
        self.last_seen = 0
        self.emitted = 0  # passes handed out: the number of the last one
        self._keep = scene.keep_copies
        self._track = Track(0)
        self._texts: dict[tuple[Any, ...], Slot] = {}
        self._vague: dict[tuple[Any, ...], list[Slot]] = {}
        # Texts all writers have printed: once more is a repetition. (A dict is slow at losing its first key.)
        self._repeated: OrderedDict[tuple[Any, ...], None] = OrderedDict()
        self._doubts: dict[Slot, list[Doubt]] = {}
        self._head: Slot | None = None
        self._tail: Slot | None = None
        self._position = 0
        self._sites: dict[str | None, Role] = {}
        self._pending: deque[Open] = deque()
        self._held: deque[Open] = deque()
        self._waiting: deque[Open] = deque()
        self._live: deque[Open] = deque()
        self._left = -1  # passes before this one have been left by every writer
        self._blurred = False
        self._disorders: deque[int] = deque(maxlen=_DISORDERS)  # rounds that showed one
        self._served = False
        self._serving = False
        self._warm = 0
        self._warm_extends = 0
        self._ahead: int | None = None  # rows of the last extend before "ready", when it is not the first
        self._strayed: Writer | None = None
        self._strays = 0
        self._later: deque[Later] = deque()
        # Prints, since the last new record, of a text that no writer stands before.
        self._spare: list[Later] = []
        self._again: dict[tuple[Any, ...], list[Slot]] = {}  # further places of texts that are printed again
        self._rounds: Rounds | None = None
        self._dummy_inputs: dict[int | None, _Standing] = {}
        self._dummies: dict[tuple[Any, ...], Open] = {}  # texts of dummy passes: in which they were printed last
        self._index = 0

    @property
    def several(self) -> bool:
        """Whether several writers print its records."""
        return len(self.writers) > 1 if self.marked else self.number != 1

    def untangle(self, schedulers: int) -> None:
        """Take the records for those of several schedulers that print without marks."""
        self.tangle = Tangle(schedulers, self.form, self.habits, self.scene.lives)

    # -- copies ---------------------------------------------------------------------------------------------------

    def take(self, occurrence: Occurrence, writer: Writer | None) -> bool:
        """Give a debug record its place; False when it belongs to no pass."""
        payload = occurrence[3]
        role = payload.role
        if role is None:
            role = self._sites.get(payload.site)
        elif payload.site not in self._sites:
            self._sites[payload.site] = role
        if writer is not None:
            return self._take_marked(occurrence, payload, role, writer)
        if self.number == 1:
            if self.tangle is not None:
                return self._take_tangled(occurrence, payload, role) is not None
            current = self._track.current
            made = current if current is not None and continues(current, payload, role) else None
            if made is None and self.latent > 1 and current is not None and self._broken(current, payload, role):
                self.untangle(self.latent)
                current.told = ("unknown", False)  # What it has taken last may be the other scheduler's.
                return self._take_tangled(occurrence, payload, role) is not None
            return self._append(occurrence, payload, role, made, self._track) is not None
        return self._take_unmarked(occurrence, payload, role)

    def _broken(self, current: Open, payload: Payload, role: Role | None) -> bool:
        """Tell whether a record begins a pass inside another one: it may be another scheduler's."""
        return (
            payload.usable
            and current.region is None
            and self.scene.lives.region is None
            and not self._whole(current)
            and role_of(payload, role) is not None
        )

    def _take_unmarked(self, occurrence: Occurrence, payload: Payload, role: Role | None) -> bool:
        placed = self._place_unmarked(occurrence, payload, role)
        if payload.event == "forward" and self._dummies:
            made = self._dummies.get(text_key(payload))
            if made is not None:
                standing = self._dummy_inputs.setdefault(payload.rows, _Standing())
                standing.writers += 1
                standing.wide.add(made.wide)
        return placed

    def _place_unmarked(self, occurrence: Occurrence, payload: Payload, role: Role | None) -> bool:
        clear = unmistakable(payload)
        key = text_key(payload)
        if not clear and payload.usable and self._rounds is not None and key not in self._dummies:
            placed = self._take_in_round(occurrence, payload, role, key)
            if placed is not None:
                return placed
        owners = self._owners(payload, role, key) if self.tangle is None else []
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
        if self.tangle is not None:
            slot = self._take_tangled(occurrence, payload, role)
        else:
            if self._spare:
                self._settle_spare(payload, role, clear=clear)
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
            self.open.pop(self._texts[key].payload, None)
            return
        self._texts[key] = slot
        if slot.owner.region is None or slot.owner.role == "target":
            self.open[slot.payload] = slot

    def _clear_home(self, occurrence: Occurrence, key: tuple[Any, ...]) -> Slot | None:
        """Return where a copy of a text belongs that is seldom printed again: a place some writer stands before.

        None for a text that is not expected, or when no writer stands before its places: then the print is kept until
        the next new record, which shows whether the writer ahead has printed it.
        """
        first = self._texts.get(key)
        if first is None or self.tangle is not None or first.owner.region is not None:
            return first
        places = [first, *self._again.get(key, ())]
        stood = [slot for slot in places if slot.total < self.number and _stands_before(slot)]
        if stood:
            return stood[0]
        if len(self._spare) >= WINDOW:
            return first
        later = Later(occurrence, Slot(occurrence), self.scene)
        self.scene.queue.append(later)
        self._spare.append(later)
        return None

    def _settle_spare(self, payload: Payload | None = None, role: Role | None = None, *, clear: bool = False) -> None:
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
            own = one.role or self._sites.get(one.site)
            current = self._track.current
            made = current if current is not None and continues(current, one, own) else None
            slot = self._append(occurrence, one, own, made, self._track, later=later)
            if slot is None:
                later.stray = True
            else:
                self._expect(slot, key)

    def _place_for(self, key: tuple[Any, ...]) -> Slot | None:
        """Return the place of a text that has room: one some writer stands before, or the first."""
        first = self._texts.get(key)
        if first is None:
            return None
        room = [slot for slot in (first, *self._again.get(key, ())) if slot.total < self.number]
        return next((slot for slot in room if _stands_before(slot)), room[0] if room else None)

    def _between(
        self, spare: list[Later], payload: Payload, role: Role | None, *, clear: bool
    ) -> set[Later]:
        """Return which of the prints that were kept stand between the last record and a new one."""
        trial = self._track.current
        if trial is None:
            return set()
        trial = copy(trial)
        trial.slots = list(trial.slots)
        taken = set()
        for later in spare:
            one = later.occurrence[3]
            own = one.role or self._sites.get(one.site)
            if not (continues(trial, one, own) and self.form.due(trial, one, clear=True)):
                begins = role_of(one, own)
                if begins is None or not self._whole(trial) or not self.form.opens(one):
                    continue
                trial = Open(self, begins, trial.index + 1)
            trial.add(Slot(later.occurrence), one)
            taken.add(later)
        if continues(trial, payload, role) and self.form.due(trial, payload, clear=clear):
            return taken
        return taken if self._whole(trial) and self.form.opens(payload) else set()

    def _owners(self, payload: Payload, role: Role | None, key: tuple[Any, ...]) -> list[Open]:
        """Return the passes a record may belong to, where its text alone does not tell; none for any other record."""
        if payload.event == "forward_end":
            return self._standing_at_end(payload) if payload.usable else []
        if payload.event != "aux_concat" or num_aux(payload) != 1 or not payload.usable:
            return []
        standing = self._dummy_inputs.get(payload.rows)
        if standing is not None:
            return self._dummies_before_output(payload, key, standing)
        if key not in self._vague:
            return []
        return [
            made
            for made in self._not_left()
            if made.role == "draft"
            and made.region is None
            and made.rows == payload.rows
            and (made.joined is None or text_key(made.joined.payload) == key)
        ]

    def _dummies_before_output(self, payload: Payload, key: tuple[Any, ...], standing: _Standing) -> list[Open]:
        """Return the dummy draft passes an output may belong to; none where it has a text no dummy pass puts out.

        Dummy input makes draft passes of both phases put out the same, but a writer has printed the input before.
        """
        known: list[Open] = []
        unknown: list[Open] = []
        for made in self._not_left():
            if made.role != "draft" or made.region is None or made.rows != payload.rows:
                continue
            if made.wide not in standing.wide:
                continue
            put_out = made.joined or (made.first_run.joined if made.first_run is not None else None)
            if put_out is None:
                # A text that is printed for the first time is the writer's that is ahead.
                if key in self._dummies or made is self._track.current:
                    unknown.append(made)
            elif text_key(put_out.payload) == key:
                known.append(made)
        found = known + unknown
        if found:
            standing.writers -= 1
            if not standing.writers:
                del self._dummy_inputs[payload.rows]
        return found

    def _standing_at_end(self, payload: Payload) -> list[Open]:
        """Return the passes of which some writer may print a ``forward_end`` now; none where nothing tells.

        It stands behind the last capture, before the joined state: where both are one of a kind, they tell how many
        writers stand there. Where some passes have records that are not, a writer may stand in any of those too, and
        in any that is not known to have come so far.
        """
        layers = self.form.layers
        standing: list[Open] = []
        begun: list[Open] = []
        clear = vague = False
        for made in self._not_left() if layers else ():
            tail = made.tail
            if tail is None or made.rows != payload.rows:
                continue
            after = made.joined if self.form.joins else made.joined or made.end
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
        live, left = self._live, self._left
        while live and live[0].index < left:
            live.popleft()
        return live

    def _take_doubtful(
        self, occurrence: Occurrence, payload: Payload, key: tuple[Any, ...], owners: list[Open]
    ) -> None:
        """Place a record in the first of the passes it may belong to that has room."""
        slots = [made.end if payload.event == "forward_end" else made.joined for made in owners]
        at = next((at for at, slot in enumerate(slots) if slot is None or slot.total < self.number), 0)
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
            self._chain(slot, made)
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
        if self._dummies:
            slot = self._take_rerun(occurrence, payload, key)
            if slot is not None:
                return slot
        current = self._track.current
        # Where all writers stand at its end, what goes on with the current pass is its own, whatever it leaves out.
        if (
            current is not None
            and continues(current, payload, role)
            and ((clear and self.form.due(current, payload, clear=True)) or self._all_at_end(current))
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
        return self._append(occurrence, payload, role, made, self._track, at)

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
            self._settle_spare(payload, role)
            last = rounds.last or last
        place = rounds.place(options, payload)
        if place is None:
            return False
        option, slot, made, at = place
        if slot is not None:
            slot.copies += 1
            if self._keep or len(options) > 1 or option not in options:
                slot.others.append(occurrence)
        else:
            slot = Slot(occurrence)
            if made is None:
                made = self._begin_in_round(option, occurrence)
            made.add(slot, payload, at if at < len(made.slots) else None)
            if len(made.slots) == 1:
                rounds.join(made, option)
            self._chain(slot, made, option.round.before_pass(made))
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
        self.scene.queue.append(doubt)

    def _begin_in_round(self, option: Option, occurrence: Occurrence) -> Open:
        """Begin a draft pass of a round: behind what the writer ahead has printed, or, found late, beside it."""
        rounds = self._rounds
        if rounds is not None and option.round is rounds.last:
            made = self._begin("draft", occurrence, self._track)
        else:
            made = self._begin_aside("draft", option.round.target, occurrence)
        made.by_round = True
        return made

    def _take_rerun(self, occurrence: Occurrence, payload: Payload, key: tuple[Any, ...]) -> Slot | None:
        """Place a record of a dummy pass that is run once more: it prints the same text as before; None for another.

        Its first print is found late, when all writers have printed the run before, so it is no part of what the
        writer ahead prints now.
        """
        before = self._dummies.get(key)
        if before is None:
            return None
        made = before.rerun
        if made is None:
            # What is served may print the text of a dummy pass that has run twice, or that shows no values.
            over = self._served and (payload.norm is None or before.first_run is not None)
            if over or not self.form.opens(payload):
                return None
            made = before.rerun = self._begin_aside(before.role, before, occurrence)
            made.first_run = before
        elif any(kind_of(slot.payload) == kind_of(payload) for slot in made.slots):
            return None
        slot = Slot(occurrence)
        made.add(slot, payload)
        self._chain(slot, made, before.slots[-1])
        self._dummies[key] = made
        return slot

    def _begin_aside(self, role: Role, like: Open, occurrence: Occurrence) -> Open:
        """Begin a pass that is found late: the writer ahead prints another one now. It is of the time of ``like``."""
        made = Open(self, role, self._index)
        self._index += 1
        made.offset = occurrence[1]
        made.segment, made.setting = like.segment, like.setting
        made.time = occurrence[2].time or self.scene.time
        made.region, made.during = like.region, like.during
        made.closed = True
        for queue in (self._pending, self._held, self._waiting, self._live, self.scene.queue):
            queue.append(made)
        return made

    def _counted_home(self, payload: Payload, key: tuple[Any, ...]) -> Slot | None:
        """Return where a copy of a record that later passes print word for word belongs: the first place with room.

        A place all writers have left (a record that is one of a kind behind it has all its copies) has no room any
        more, so that a lost copy is missed where it is lost.
        """
        for slot in self._vague.get(key, ()):
            if slot.total < self.number and slot.owner.index >= self._left:
                current = self._track.current
                dummy = slot.owner.region is not None
                if current is not None and not dummy and self.form.opens(payload) and self._whole(current):
                    # It may as well begin the next pass of a writer that runs ahead.
                    self._blur(slot.owner)
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
            if continues(made, payload, role) and self.form.due(made, payload, clear=clear):
                if not made.closed or not self._whole(made):
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
                if slot.total < self.number and compatible(payload, slot.payload):
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
        whole = self._whole(current) or (last is not None and last.blurred)
        for made in (current,) if whole else self._not_left():
            for slot in made.slots:
                if kind_of(slot.payload) != kind or slot.total >= self.number:
                    continue
                alike = payload.head and slot.payload.head and near(payload, slot.payload)
                # What has another shape is of another pass: dummy passes of other rows differ in them alone.
                here = made is current and not whole and payload.shape == slot.payload.shape
                if alike or compatible(payload, slot.payload) or here:
                    return slot
        return None

    def _copy(self, slot: Slot, occurrence: Occurrence) -> None:
        slot.copies += 1
        if self._keep:
            slot.others.append(occurrence)
        if slot.copies >= self.number:
            self.filled(slot)

    def _alike(self, home: Slot, occurrence: Occurrence) -> Slot:
        other = Slot(occurrence)
        other.owner = home.owner
        home.add_alike(other)
        payload = other.payload
        if not self.marked and unmistakable(payload):
            other.key = text_key(payload)
            self.open[payload] = self._texts[other.key] = other
        if home.total >= self.number:
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
        if made.region is not None and not self.marked:
            left = made.first_run.index + 1 if made.first_run is not None else -1
        self._left = max(self._left, left)
        if self._rounds is not None:
            self._rounds.leave(self._left)

    def _close_text(self, slot: Slot, key: tuple[Any, ...]) -> None:
        """Expect no more copies in a place; those that come belong to the next place of the text, if there is one."""
        again = self._again.get(key)
        if again is not None and slot in again:
            again.remove(slot)
        elif self._texts.get(key) is slot:
            self.open.pop(slot.payload, None)
            del self._texts[key]
            if again:
                first = self._texts[key] = again.pop(0)
                if not again:
                    self.open[first.payload] = first
        if again is not None and not again:
            del self._again[key]

    @property
    def _mixed(self) -> bool:
        """Whether several writers print without a mark."""
        return self.number != 1 and not self.marked

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
        for other in self._pending:
            if other.index >= made.index - BLUR:
                other.blurred = True

    def _sharpen(self) -> None:
        """End the doubt when every record was printed by all writers."""
        self._blurred = not self._together()

    def _together(self) -> bool:
        """Tell whether all writers stand at one place: each has printed every record."""
        return all(slot.total >= self.number for made in self._not_left() for slot in made.slots)

    def _all_at_end(self, current: Open) -> bool:
        """Tell whether all writers stand at the end of the current pass: each has printed all there is of it."""
        return self._left >= current.index and all(slot.total >= self.number for slot in current.slots)

    def _take_marked(self, occurrence: Occurrence, payload: Payload, role: Role | None, writer: Writer) -> bool:
        """Place a record of a writer that its prefix names: behind the last record of that writer."""
        writer.records += 1
        writer.line = occurrence[0]
        at = writer.at
        due = at.next if at is not None else self._head
        known = payload.event in KNOWN
        clear = known and unmistakable(payload)
        # A writer whose first passes are handed out stands in any of them, until it prints a record that is known.
        late = at is None and self._left > 0
        slot = _ahead(due, payload, far=clear) if clear or not late else None
        if slot is not None:
            self._step(writer, slot, occurrence, payload)
            return True
        if late:
            due = None
        slot = _instead(due, payload)
        if slot is not None:
            self._alike(slot, occurrence)
            writer.at, writer.position = slot, slot.position
            return True
        slot = self._missed(occurrence, role, at, due)
        if slot is not None:
            writer.at, writer.position = slot, slot.position
            return True
        slot = _ahead(due, payload, far=True) if known and not clear else None
        if slot is not None:
            self._step(writer, slot, occurrence, payload)
            return True
        edge = self._past_the_last(payload, role, due)
        self._strays = self._strays + 1 if self._strayed is writer else 1
        self._strayed = writer
        if not edge and self._strays < _LONE and (due is not None or (writer.at is None and self._index)):
            # It stands somewhere among passes that are known, or handed out, and prints none of their records; unless
            # it is the only one that still prints.
            return False
        self._strays = 0
        current = self._track.current
        made = current if current is not None and continues(current, payload, role) else None
        slot = self._append(occurrence, payload, role, made, self._track)
        if slot is None:
            return False
        writer.at, writer.position = slot, slot.position
        return True

    def _missed(self, occurrence: Occurrence, role: Role | None, at: Slot | None, due: Slot | None) -> Slot | None:
        """Place a record that the writers before did not print: between a writer's last record and the one due.

        None where the order within a pass leaves it no place there.
        """
        payload = occurrence[3]
        rank, begins = Form.rank(payload), role_of(payload, role)
        if rank is None or due is None:
            return None
        for made, inside in ((at.owner if at is not None else None, True), (due.owner, False)):
            if made is None or made not in self._held or made.role != begins:
                continue
            if payload.event != "aux_concat" and payload.rows != made.rows:
                continue
            before = Form.rank(at.payload) if at is not None and inside else -1
            after = Form.rank(due.payload) if due.owner is made else None
            if before is None or before >= rank or (after is not None and rank >= after):
                continue
            if not inside and due is not made.slots[0]:
                continue
            slot = Slot(occurrence)
            made.add(slot, payload, made.slots.index(at) + 1 if inside and at is not None else 0)
            self._chain(slot, made)
            return slot
        return None

    def _past_the_last(self, payload: Payload, role: Role | None, due: Slot | None) -> bool:
        """Tell whether a record comes behind all that is printed so far, though its writer left out what is due.

        What is due is then the last of the current pass, and the record goes on with that pass or begins the next.
        """
        current = self._track.current
        if current is None or due is None or due.owner is not current or payload.event not in KNOWN:
            return False
        if continues(current, payload, role):
            return True
        return self._whole(current) and self.form.opens(payload) and role_of(payload, role) is not None

    def _step(self, writer: Writer, slot: Slot, occurrence: Occurrence, payload: Payload) -> None:
        writer.at, writer.position = slot, slot.position
        self._strayed = None
        if slot.payload is not payload and slot.alike is not None:
            key = text_key(payload)
            slot = next((other for other in slot.alike if text_key(other.payload) == key), slot)
        slot.copies += 1
        if self._keep:
            slot.others.append(occurrence)

    def _take_tangled(self, occurrence: Occurrence, payload: Payload, role: Role | None) -> Slot | None:
        """Give a record to the tangle, and place those before it that are told apart now."""
        scene, tangle = self.scene, self.tangle
        if not payload.usable or role_of(payload, role) is None:
            return None  # It tells nothing of its place.
        if tangle is None or scene.lives.region is not None:
            # Dummy passes have their phase from what is being captured.
            current = self._track.current
            made = current if current is not None and continues(current, payload, role) else None
            return self._append(occurrence, payload, role, made, self._track)
        if self._track.current is not None:
            self._close(self._track.current)
            self._track.current = None
        scene.lives.active = scene.lives.served = True
        later = Later(occurrence, Slot(occurrence), scene)
        scene.queue.append(later)
        self._later.append(later)
        self._place(tangle, tangle.see(payload))
        return later.slot

    def _place(self, tangle: Tangle, moves: list[tuple[Move, bool]]) -> None:
        """Put the records that are told apart where they belong."""
        for move, certain in moves:
            later = self._later.popleft()
            later.settled = True
            track = tangle.tracks[move.track] if move.track is not None else None
            payload = later.occurrence[3]
            made = track.current if track is not None and certain else None
            if track is not None and move.begins:
                made = later.made = self._begin(_role_of_move(payload, move), later.occurrence, track, later)
                made.told = (move.phase, certain)
            if made is None:
                later.stray = True
                continue
            made.add(later.slot, payload)
            if self.number != 1:
                self._chain(later.slot, made)

    # -- passes ---------------------------------------------------------------------------------------------------

    def _append(
        self,
        occurrence: Occurrence,
        payload: Payload,
        role: Role | None,
        made: Open | None,
        track: Track,
        at: int | None = None,
        later: Later | None = None,
    ) -> Slot | None:
        """Put a new record into a pass, or (None) into a new one; None when it can begin none."""
        if made is None:
            begins = role_of(payload, role)
            if begins is None:
                return None
            made = self._begin(begins, occurrence, track, later)
            if later is not None:
                later.made = made
        slot = Slot(occurrence) if later is None else later.slot
        made.add(slot, payload, at)
        if len(made.slots) == 1 and self._mixed and self.tangle is None and made.region is None:
            if self._rounds is None:
                self._rounds = Rounds(self.form, self.habits, self.scene.lives, self.number)
            self._rounds.began(made, payload)
        if self._rounds is not None and self._rounds.last is not None:
            self._rounds.last.hear(payload)
        if made.printed is None:
            made.printed = printed_phase(payload)
        if self.number != 1:
            self._chain(slot, made)
            if self._mixed and made.region is not None:
                self._dummies[text_key(payload)] = made
        return slot

    def _chain(self, slot: Slot, made: Open, before: Slot | None = None) -> None:
        """Link a record behind the one before it in the order a single writer prints (``before``: the pass)."""
        at = made.slots.index(slot)
        if at > 0:
            back: Slot | None = made.slots[at - 1]
        elif before is not None:
            back = before
        elif len(made.slots) > 1:
            back = made.slots[1].back
        else:
            back = self._tail
        after = back.next if back is not None else self._head
        self._position += 1
        slot.position = self._position if after is None else after.position
        slot.back, slot.next = back, after
        if back is not None:
            back.next = slot
        else:
            self._head = slot
        if after is not None:
            after.back = slot
        else:
            self._tail = slot

    def _begin(self, role: Role, occurrence: Occurrence, track: Track, later: Later | None = None) -> Open:
        back = track.current
        if back is not None:
            back.apart = self._mixed and not self._together()
            self._close(back)
        if self._blurred:
            self._sharpen()
        scene = self.scene
        lives = scene.lives
        made = Open(self, role, self._index)
        self._index += 1
        made.blurred = self._blurred
        made.offset = occurrence[1]
        made.segment = lives.segment
        made.setting = lives.setting
        made.time = occurrence[2].time or scene.time if later is None else later.time
        if (
            role == "draft"
            and back is not None
            and back.role == "target"
            and back.region == ANY
            and reads_join(occurrence[3], back)
        ):
            # Dummy input is no joined state: what seemed to be captured into a graph was served.
            back.region, back.back, back.fresh = None, None, True
            back.during = lives.during_serving
            self._served = track.served = True
        made.region = self._region(role, occurrence[3].rows) if later is None else None
        if back is not None and back.region == made.region:
            made.back, back.next = back, made
        elif made.region is None:
            made.fresh = lives.started and not lives.turned and not track.served
        if made.region is None:
            self._served = track.served = lives.active = lives.served = True
            made.during = lives.during_serving if later is None else later.during
        else:
            made.during = "graph_capture"
        track.current = made
        if self.tangle is not None:
            self.tangle.began(made, track)
        self._pending.append(made)
        self._held.append(made)
        self._waiting.append(made)
        self._hurry()
        if self._mixed:
            self._live.append(made)
        if later is None:
            scene.queue.append(made)
        return made

    def _region(self, role: Role, rows: int | None) -> str | None:
        """Return what is being captured into a graph, as far as it concerns a pass of this role.

        Other writers run ahead of the one that logs. They print the target's dummy passes, then the draft's, and what
        is served begins with a target pass: so a draft pass before that one is a dummy, whatever was logged, and a
        target pass behind the draft's dummies is served. Nothing is captured any more once serving began (except by a
        line after "ready").
        """
        lives, habits = self.scene.lives, self.habits
        region = lives.region
        if self._served and not lives.ready:
            return None
        if region is None:
            ahead = role == "draft" and self.several and lives.graphs and habits.targets and not lives.ready
            return ANY if ahead else None
        if region == ANY and habits.capture_over:
            return None
        if role == "target":
            if "draft" in region or (habits.captured_drafts and (region == ANY or self.several)):
                # The target's graphs are captured before the draft's.
                return None
            tokens = lives.draft_tokens
            if self.number != 1 and tokens and rows is not None and no_verify(rows, tokens, 0):
                return None
        return region

    def _whole(self, made: Open) -> bool:
        """Tell whether a pass has reached the record its kind usually ends with."""
        return self.form.ends(made.role, made.last_rank)

    def _close(self, made: Open) -> None:
        """End a pass: what it showed is learned, and what waits may be labelled."""
        if not made.closed:
            made.closed = True
            self.habits.note(made, self.scene.lives)
            self._label(final=False)

    def _label(self, *, final: bool, until: Open | None = None) -> None:
        """Label the passes that can be labelled, in order; ``until`` one of them."""
        pending, habits, lives = self._pending, self.habits, self.scene.lives
        segment = lives.segment
        if habits.version is not None and segment is not None and segment.spec_version is None:
            segment.spec_version, segment.spec_evidence = habits.version, habits.version_why
        ahead = 2 * BLUR if self._mixed and not final else 0
        while len(pending) > ahead and pending[0].closed:
            made = pending[0]
            for shown in (made, pending[min(BLUR, len(pending) - 1)]) if ahead or final else ():
                if shown.apart and not shown.blurred and self._disordered(shown):
                    self._blur(shown)
            patience = PATIENCE if made.round is None or not made.round.blurred else 8 * PATIENCE
            label = decide(made, habits, lives, final=final or len(pending) > patience)
            if label is None:
                return
            pending.popleft()
            made.phase, made.evidence, made.reason = label
            made.decided = True
            self._finish_off(made)
            if made is until:
                return

    def _disordered(self, made: Open) -> bool:
        """Tell whether a pass shows that records are found in another order than any writer prints them.

        It begins or ends in the middle, though its late records have been found by now; or all its records are such
        that other passes print word for word, so that nothing shows where it stands.
        """
        if made.region is not None or not made.index:
            return False
        if made.round is not None and (made.by_round or made.round.blurred or made.round.blurred_before):
            return False  # What it lacks may have been taken for another round's.
        whole = self._whole(made) and self.form.begins(made.role, made.first_rank)
        return not whole or all(slot.key is None or slot.again for slot in made.slots)

    def _finish_off(self, made: Open) -> None:
        """Fill in what follows from a pass's phase, and from the records it has at its end."""
        begun = self.form.begins(made.role, made.first_rank) or made.has_all_joined
        made.complete = self._whole(made) and begun
        if made.region is None:
            made.during = self._warmth(made)

    def _warmth(self, made: Open) -> During:
        """Return whether a pass printed behind "ready" is still the warm-up's, as late prints are.

        Serving begins with an extend. One that has the rows of the warm-up's own Prefill line is the warm-up's, when
        no extend was printed before.
        """
        lives = self.scene.lives
        # Where no target prints, the draft's own extend tells.
        extends = made.phase == "extend" and (made.role == "target" or not self.habits.targets)
        if made.during == "warmup":
            if extends:
                self._ahead = made.rows if self._warm_extends and self.several else None
            if lives.ready and self._served_ahead:
                self._serving = True
                return "serving"
            self._warm += 1
            self._warm_extends += extends
        elif made.during == "serving" and lives.ready and not self._serving:
            own = not self._warm_extends and made.rows in lives.warm_tokens
            if not self._served_ahead and made.phase != "unknown" and (own or (self._warm and not extends)):
                self._warm_extends += extends
                self._warm += 1
                lives.late()
                return "warmup"
            self._serving = True
        return made.during

    @property
    def _served_ahead(self) -> bool:
        """Whether a writer ahead of the one that logs has begun to serve before "ready" is printed.

        The last extend before it is then not the first, and has other rows than the warm-up's Prefill lines name.
        """
        said = self.scene.lives.warm_tokens
        return self._ahead is not None and bool(said) and self._ahead not in said

    # -- handing out ----------------------------------------------------------------------------------------------

    def _ready(self, made: Open) -> bool:
        """Tell whether a pass has its label, and every writer has printed all it will print of it."""
        if not made.decided:
            return False
        if self._doubts and not all(doubt.decided for slot in made.slots for doubt in self._doubts.get(slot, ())):
            return False
        if self.number == 1 or made.index < self._left:
            return True
        if self.marked:
            last = made.slots[-1].position
            return all(writer.position >= last for writer in self.writers.values())
        return all(slot.total >= self.number for slot in made.slots)

    def _hurry(self) -> None:
        """Let nothing wait for more than enough of what comes after it: for a label, for late copies."""
        waiting = self._waiting
        while waiting:
            first = waiting[0]
            if self.number == 1:
                late = len(waiting) > 2 * PATIENCE
            else:
                late = bool(first.slots) and self._position - first.slots[-1].position > WINDOW
            if not self._ready(first):
                if not late:
                    return
                self._expire(first)
            waiting.popleft()
            self._let_go(first)

    def _let_go(self, made: Open) -> None:
        """Take a pass as it is from now on: nothing that comes belongs to it."""
        made.done = True
        self._left = max(self._left, made.index + 1)
        if self._rounds is not None:
            self._rounds.leave(self._left)
        made.expected = len(self.writers) if self.marked else self.expected
        if self.number != 1:
            self._forget(made)
        if self._doubts:
            self._settle_doubts(made)
        if made.doubted:
            self._even_out(made)

    def _expire(self, made: Open) -> None:
        """Label a pass with what is known now, and take it as it is."""
        if not made.closed:
            for track in self._tracks():
                if track.current is made:
                    track.current = None
            self._close(made)
        while not made.decided:
            first = self._pending[0]
            if first.closed:
                self._label(final=True, until=first)
            else:
                self._expire(first)

    def _tracks(self) -> list[Track]:
        return [self._track, *(self.tangle.tracks if self.tangle is not None else ())]

    def _name(self, writer: tuple[Any, ...]) -> str:
        """Return what the prefix of a writer names, as it is printed."""
        (_, dp_rank, pp_rank), (pid, tp_rank, ep_rank, _) = self.key, writer
        names = (("DP", dp_rank), ("PP", pp_rank), ("TP", tp_rank), ("EP", ep_rank), ("PID", pid))
        return " ".join(f"{name}{value}" for name, value in names if value is not None)

    def rest(self) -> None:
        """Wait for nothing more of what was printed: label what is left."""
        if self._spare:
            self._settle_spare()
        if self.tangle is not None:
            self._place(self.tangle, self.tangle.end())
        for track in self._tracks():
            if track.current is not None:
                self._close(track.current)
                track.current = None
        self._label(final=True)
        self._left = self._index
        while self._waiting:
            self._let_go(self._waiting.popleft())

    def finish(self) -> None:
        """End with the life: label what is left, and say what could not be told apart, and who fell silent."""
        self.rest()
        for name, writer in self.writers.items() if len(self.writers) > 1 else ():
            if writer.line and writer.missed >= _SILENT:
                self.scene.lives.here.notes.append(
                    f"{self._name(name)} prints no debug record behind line {writer.line}: "
                    f"{writer.missed} later passes of the other ranks are without it"
                )
        if self.tangle is not None:
            self.tangle.report(self.scene.lives.here)

    def hand_out(self, made: Open) -> ForwardPass:
        """Return a finished pass, and let go of it."""
        self.emitted += 1
        self._held.remove(made)
        if made.back is not None:
            made.back.back = None
        if made.round is not None:
            made.round.drop(made)
            made.round = None
        key = self.key
        if self.tangle is not None:
            key = (*key, self.tangle.name_of(made))
        records = [slot.record(keep=self._keep) for slot in made.slots]
        for slot in made.slots:
            # Nothing is to refer to itself: a pass is freed when it was seen, not when the collector finds it.
            slot.owner = slot.back = None
            for other in slot.alike or ():
                other.owner = other.home = None
        return ForwardPass(
            number=self.emitted,
            segment=made.segment.number,
            group=key,
            role=made.role,
            file=self.scene.file,
            phase=made.phase,
            evidence=made.evidence,
            reason=made.reason,
            during=made.during,
            complete=made.complete,
            expected_copies=made.expected,
            time=made.time,
            records=records,
        )

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
                    made.phase, made.evidence, made.reason = "unknown", "none", _SEVERAL

    def _even_out(self, made: Open) -> None:
        """Count the ``forward_end`` copies of a pass by what stands around them, where their places are in doubt.

        A writer that printed the last capture and the joined state has printed the end between them.
        """
        end = made.end
        if end is None or end.total == self.number:
            return
        at = made.slots.index(end)
        around = made.slots[at - 1 : at] + made.slots[at + 1 : at + 2]
        if len(around) == 2 and all(slot.total == self.number for slot in around):
            end.copies += self.number - end.total

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
        self._unlink(made.slots[-1])

    def _unlink(self, last: Slot) -> None:
        """Cut the sequence behind a record that is done with: nobody is to stand before it."""
        for writer in self.writers.values():
            if writer.records and writer.position < last.position:
                writer.at, writer.position = last, last.position
                writer.miss()
        last.back = None
        if self._head is not None and self._head.position <= last.position:
            self._head = last.next


def _role_of_move(payload: Payload, move: Move) -> Role:
    """Return the role of a pass that a tangle lets begin with a record."""
    if payload.event == "aux_concat" and move.phase in ("draft_extend", "decode"):
        return "draft"
    return role_of(payload, payload.role) or "target"


def _stands_before(slot: Slot) -> bool:
    """Tell whether some writer may be about to print a record: more have printed one of the last certain ones.

    One alone does not tell: where a copy of it is lost, a writer seems to have gone by.
    """
    back, seen = slot.back, 0
    while back is not None and seen < _CERTAIN:
        if back.key is not None:
            if back.total > slot.total:
                return True
            seen += 1
        back = back.back
    return seen < _CERTAIN


def _copies_of(slot: Slot | None) -> int:
    return slot.total if slot is not None else 0


def _ahead(due: Slot | None, payload: Payload, *, far: bool) -> Slot | None:
    """Return the next record with this text, from the one that is due on: in its pass, or ``far`` behind it too."""
    slot, steps = due, 0
    while slot is not None and due is not None and steps < _AHEAD and (far or slot.owner is due.owner):
        if slot.payload is payload or _prints(slot, payload):
            return slot
        slot, steps = slot.next, steps + 1
    return None


def _instead(due: Slot | None, payload: Payload) -> Slot | None:
    """Return the record in the place of which a writer prints another one: of the same kind, in the pass that is due.

    A damaged record is looked for a little behind that pass too.
    """
    kind, slot, steps = kind_of(payload), due, 0
    while slot is not None and due is not None and steps < _BEHIND:
        if slot.owner is due.owner and kind_of(slot.payload) == kind:
            return slot
        if not payload.usable and compatible(payload, slot.payload):
            return slot
        slot, steps = slot.next, steps + 1
    return None


def _prints(slot: Slot, payload: Payload) -> bool:
    """Tell whether some writer has printed the same text in this place."""
    if slot.payload.event != payload.event or not payload.usable:
        return False
    key = text_key(payload)
    return text_key(slot.payload) == key or (
        slot.alike is not None and any(text_key(other.payload) == key for other in slot.alike)
    )
