"""One scheduler's prints: the records become passes, the passes get their labels and are handed out.

This module is responsible for :class:`Group`. It must not know how the occurrences of different schedulers and of the
server are told apart (passes.py), which prints are copies of one record (ranks.py, unmarked.py), nor the rules of the
phases (phases.py).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from logscope.assembly import Open, continues, reads_join, role_of
from logscope.copies import Census, Form, Slot
from logscope.model import ForwardPass
from logscope.phases import Habits, decide, no_verify, printed_phase
from logscope.ranks import Ranks
from logscope.scene import Later
from logscope.segments import ANY
from logscope.tangle import Move, Tangle, Track
from logscope.unmarked import BLUR, WINDOW, Unmarked

if TYPE_CHECKING:
    from logscope.copies import Kind
    from logscope.model import During, Occurrence, Payload, Role
    from logscope.ranks import Writer
    from logscope.scene import Scene

# A pass waits for its label, or for late copies, no longer than this many later passes of its scheduler.
PATIENCE = 48
UNCOUNTED = 1 << 30
# A marked writer has fallen silent when the log goes on for so many passes without it.
_SILENT = 24


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
        self.shared: frozenset[Kind] = frozenset()  # kinds of records that all its writers print
        self.habits = Habits()
        self.tangle: Tangle | None = None
        self.latent = 1  # schedulers the server has, of which one alone printed when the writers were counted
        self.last_seen = 0
        self.emitted = 0  # passes handed out: the number of the last one
        self.keep = scene.keep_copies
        self.track = Track(0)
        self.head: Slot | None = None
        self._tail: Slot | None = None
        self._position = 0
        self.sites: dict[str | None, Role] = {}
        self.pending: deque[Open] = deque()
        self.held: deque[Open] = deque()
        self._waiting: deque[Open] = deque()
        self.left = -1  # passes before this one have been left by every writer
        self.served = False
        self._serving = False
        self._warm = 0
        self._warm_extends = 0
        self._ahead: int | None = None  # rows of the last extend before "ready", when it is not the first
        self._later: deque[Later] = deque()
        self.index = 0
        self._ranks = Ranks(self)
        self._unmarked = Unmarked(self)
        self.filled = self._unmarked.filled  # told of every record that has all its copies

    @property
    def several(self) -> bool:
        """Whether several writers print its records."""
        return len(self.writers) > 1 if self.marked else self.number != 1

    def untangle(self, schedulers: int) -> None:
        """Take the records for those of several schedulers that print without marks."""
        self.tangle = Tangle(schedulers, self.form, self.habits, self.scene.lives)

    def take(self, occurrence: Occurrence, writer: Writer | None) -> bool:
        """Give a debug record its place; False when it belongs to no pass."""
        payload = occurrence[3]
        role = payload.role
        if role is None:
            role = self.sites.get(payload.site)
        elif payload.site not in self.sites:
            self.sites[payload.site] = role
        if writer is not None:
            return self._ranks.take(occurrence, payload, role, writer)
        if self.number == 1:
            if self.tangle is not None:
                return self.take_tangled(occurrence, payload, role) is not None
            current = self.track.current
            made = current if current is not None and continues(current, payload, role) else None
            if made is None and self.latent > 1 and current is not None and self._broken(current, payload, role):
                self.untangle(self.latent)
                current.told = ("unknown", False)  # What it has taken last may be the other scheduler's.
                return self.take_tangled(occurrence, payload, role) is not None
            return self.append(occurrence, payload, role, made, self.track) is not None
        return self._unmarked.take(occurrence, payload, role)

    def _broken(self, current: Open, payload: Payload, role: Role | None) -> bool:
        """Tell whether a record begins a pass inside another one: it may be another scheduler's."""
        return (
            payload.usable
            and current.region is None
            and self.scene.lives.region is None
            and not self.whole(current)
            and role_of(payload, role) is not None
        )

    def begin_aside(self, role: Role, like: Open, occurrence: Occurrence) -> Open:
        """Begin a pass that is found late: the writer ahead prints another one now. It is of the time of ``like``."""
        made = Open(self, role, self.index)
        self.index += 1
        made.offset = occurrence[1]
        made.segment, made.setting = like.segment, like.setting
        made.time = occurrence[2].time or self.scene.time
        made.region, made.during = like.region, like.during
        made.closed = True
        for queue in (self.pending, self.held, self._waiting, self.scene.queue):
            queue.append(made)
        self._unmarked.began(made, aside=True)
        return made

    @property
    def _mixed(self) -> bool:
        """Whether several writers print without a mark."""
        return self.number != 1 and not self.marked

    def take_tangled(self, occurrence: Occurrence, payload: Payload, role: Role | None) -> Slot | None:
        """Give a record to the tangle, and place those before it that are told apart now."""
        scene, tangle = self.scene, self.tangle
        if not payload.usable or role_of(payload, role) is None:
            return None  # It tells nothing of its place.
        if tangle is None or scene.lives.region is not None:
            # Dummy passes have their phase from what is being captured.
            current = self.track.current
            made = current if current is not None and continues(current, payload, role) else None
            return self.append(occurrence, payload, role, made, self.track)
        if self.track.current is not None:
            self._close(self.track.current)
            self.track.current = None
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
                made = later.made = self.begin(_role_of_move(payload, move), later.occurrence, track, later)
                made.told = (move.phase, certain)
            if made is None:
                later.stray = True
                continue
            made.add(later.slot, payload)
            if self.number != 1:
                self.chain(later.slot, made)

    def append(
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
            made = self.begin(begins, occurrence, track, later)
            if later is not None:
                later.made = made
        slot = Slot(occurrence) if later is None else later.slot
        made.add(slot, payload, at)
        if made.printed is None:
            made.printed = printed_phase(payload)
        if self.number != 1:
            self.chain(slot, made)
            if self._mixed:
                self._unmarked.added(made, payload)
        return slot

    def chain(self, slot: Slot, made: Open, before: Slot | None = None) -> None:
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
        after = back.next if back is not None else self.head
        self._position += 1
        slot.position = self._position if after is None else after.position
        slot.back, slot.next = back, after
        if back is not None:
            back.next = slot
        else:
            self.head = slot
        if after is not None:
            after.back = slot
        else:
            self._tail = slot

    def begin(self, role: Role, occurrence: Occurrence, track: Track, later: Later | None = None) -> Open:
        """Begin the next pass of a scheduler; the one before it is over."""
        back = track.current
        if back is not None:
            back.apart = self._mixed and not self._unmarked.together()
            self._close(back)
        scene = self.scene
        lives = scene.lives
        made = Open(self, role, self.index)
        self.index += 1
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
            self.served = track.served = True
        made.region = self._region(role, occurrence[3].rows) if later is None else None
        if back is not None and back.region == made.region:
            made.back, back.next = back, made
        elif made.region is None:
            made.fresh = lives.started and not lives.turned and not track.served
        if made.region is None:
            self.served = track.served = lives.active = lives.served = True
            made.during = lives.during_serving if later is None else later.during
        else:
            made.during = "graph_capture"
        track.current = made
        if self.tangle is not None:
            self.tangle.began(made, track)
        if self._mixed:
            self._unmarked.began(made)
        self.pending.append(made)
        self.held.append(made)
        self._waiting.append(made)
        self._hurry()
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
        if self.served and not lives.ready:
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

    def whole(self, made: Open) -> bool:
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
        pending, habits, lives = self.pending, self.habits, self.scene.lives
        segment = lives.segment
        if habits.version is not None and segment is not None and segment.spec_version is None:
            segment.spec_version, segment.spec_evidence = habits.version, habits.version_why
        ahead = 2 * BLUR if self._mixed and not final else 0
        while len(pending) > ahead and pending[0].closed:
            made = pending[0]
            for shown in (made, pending[min(BLUR, len(pending) - 1)]) if self._mixed else ():
                self._unmarked.look_at(shown)
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

    def _finish_off(self, made: Open) -> None:
        """Fill in what follows from a pass's phase, and from the records it has at its end."""
        begun = self.form.begins(made.role, made.first_rank) or made.has_all_joined
        made.complete = self.whole(made) and begun
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

    def _ready(self, made: Open) -> bool:
        """Tell whether a pass has its label, and every writer has printed all it will print of it."""
        if not made.decided:
            return False
        if self.number == 1:
            return True
        if self.marked:
            last = made.slots[-1].position
            return made.index < self.left or all(writer.position >= last for writer in self.writers.values())
        return self._unmarked.ready(made)

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
        self.left = max(self.left, made.index + 1)
        made.expected = len(self.writers) if self.marked else self.expected
        if self._mixed:
            self._unmarked.let_go(made)
        if self.number != 1:
            self.unlink(made.slots[-1])

    def _expire(self, made: Open) -> None:
        """Label a pass with what is known now, and take it as it is."""
        if not made.closed:
            for track in self._tracks():
                if track.current is made:
                    track.current = None
            self._close(made)
        while not made.decided:
            first = self.pending[0]
            if first.closed:
                self._label(final=True, until=first)
            else:
                self._expire(first)

    def _tracks(self) -> list[Track]:
        return [self.track, *(self.tangle.tracks if self.tangle is not None else ())]

    def _name(self, writer: tuple[Any, ...]) -> str:
        """Return what the prefix of a writer names, as it is printed."""
        (_, dp_rank, pp_rank), (pid, tp_rank, ep_rank, _) = self.key, writer
        names = (("DP", dp_rank), ("PP", pp_rank), ("TP", tp_rank), ("EP", ep_rank), ("PID", pid))
        return " ".join(f"{name}{value}" for name, value in names if value is not None)

    def rest(self) -> None:
        """Wait for nothing more of what was printed: label what is left."""
        if self._mixed:
            self._unmarked.settle_spare()
        if self.tangle is not None:
            self._place(self.tangle, self.tangle.end())
        for track in self._tracks():
            if track.current is not None:
                self._close(track.current)
                track.current = None
        self._label(final=True)
        self.left = self.index
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
        self.held.remove(made)
        if made.back is not None:
            made.back.back = None
        if made.round is not None:
            made.round.drop(made)
            made.round = None
        key = self.key
        if self.tangle is not None:
            key = (*key, self.tangle.name_of(made))
        records = [slot.record(keep=self.keep) for slot in made.slots]
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

    def unlink(self, last: Slot) -> None:
        """Cut the sequence behind a record that is done with: nobody is to stand before it."""
        for writer in self.writers.values():
            if writer.records and writer.position < last.position:
                writer.at, writer.position = last, last.position
                writer.miss()
        last.back = None
        if self.head is not None and self.head.position <= last.position:
            self.head = last.next


def _role_of_move(payload: Payload, move: Move) -> Role:
    """Return the role of a pass that a tangle lets begin with a record."""
    if payload.event == "aux_concat" and move.phase in ("draft_extend", "decode"):
        return "draft"
    return role_of(payload, payload.role) or "target"
