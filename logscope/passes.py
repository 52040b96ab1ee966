"""From records to forward passes: segments, writers, passes, phases, while the log is still being read.

This module is responsible for :class:`Labeller`, which turns the occurrences of one file into items in file order:
segments, forward passes of target and draft, server lines. It must not know how text is matched, nor any question that
is asked of the items.

An occurrence goes through four rooms: :mod:`logscope.segments` (which server life, and where in it),
:mod:`logscope.copies` (is it a copy another rank printed of a record that is already there),
:mod:`logscope.assembly` (which forward does the record belong to), :mod:`logscope.phases` (what was that forward).
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Any

from logscope.assembly import Open, continues, role_of
from logscope.copies import Census, Form, Slot, compatible, kind_of, near, text_key, unmistakable
from logscope.model import ForwardPass, Segment, ServerEvent
from logscope.phases import Habits, decide, printed_phase
from logscope.segments import OPENERS, PAST, Lives

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from logscope.model import Occurrence, Payload, Prefix, Role
    from logscope.report import Item

# A pass waits for its label, or for late copies, no longer than this many later passes of its scheduler ...
_PATIENCE = 48
# ... and a scheduler that prints nothing more is not waited for longer than this many occurrences of others.
_SILENCE = 65536
# Copies of one record are expected within this many records of the canonical sequence.
_WINDOW = 4096
_UNCOUNTED = 1 << 30


class Writer:
    """One printing process of a group whose prefix names it: the last record it printed."""

    __slots__ = ("at", "group", "position")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.at: Slot | None = None
        self.position = 0


class Group:
    """One scheduler: the writers that print the same records, and the passes these records make."""

    def __init__(self, labeller: Labeller, key: tuple[Any, ...], *, marked: bool) -> None:
        self.labeller = labeller
        self.key = key
        self.marked = marked
        self.keep = labeller.keep_copies
        self.writers: dict[tuple[Any, ...], Writer] = {}
        self.expected: int | None = 1
        self.number = 1 if not marked else _UNCOUNTED
        self.open: dict[Payload, Slot] = {}
        self.texts: dict[tuple[Any, ...], Slot] = {}
        self.vague: dict[tuple[Any, ...], list[Slot]] = {}
        self.tail: Slot | None = None
        self.head: Slot | None = None
        self.position = 0
        self.sites: dict[str | None, Role] = {}
        self.form = Form(Census().kinds)
        self.habits = Habits()
        self.current: Open | None = None
        self.pending: deque[Open] = deque()
        self.held: deque[Open] = deque()
        self.passed = -1
        self.index = 0
        self.emitted = 0
        self.last_seen = 0
        self.settled_serving = False

    # -- copies ---------------------------------------------------------------------------------------------------

    def take(self, occurrence: Occurrence, writer: Writer | None) -> bool:
        """Give a debug record its place; False when it belongs to no pass."""
        payload = occurrence[3]
        role = payload.role
        if role is None:
            role = self.sites.get(payload.site)
        elif payload.site not in self.sites:
            self.sites[payload.site] = role
        if writer is not None:
            return self._take_marked(occurrence, payload, role, writer)
        if self.number == 1:
            current = self.current
            made = current if current is not None and continues(current, payload, role) else None
            return self._append(occurrence, payload, role, made) is not None
        return self._take_unmarked(occurrence, payload, role)

    def _take_unmarked(self, occurrence: Occurrence, payload: Payload, role: Role | None) -> bool:
        clear = unmistakable(payload)
        key = text_key(payload)
        if clear:
            home = self.texts.get(key)
        elif payload.usable:
            home = self._vague_home(key)
        else:
            home = self._damaged_home(payload)
        if home is not None:
            if payload.usable:
                self._copy(home, occurrence)
            else:
                self._alike(home, occurrence)
            return True
        current = self.current
        if clear and current is not None and continues(current, payload, role):
            made: Open | None = current
        else:
            made = self._unfinished(payload, role, clear=clear)
        if made is None and current is not None and not self._whole(current):
            home = self._twin(payload)
            if home is not None:
                self._alike(home, occurrence)
                return True
        slot = self._append(occurrence, payload, role, made)
        if slot is None:
            return False
        if clear:
            self.open[payload] = self.texts[key] = slot
        elif payload.usable:
            self.vague.setdefault(key, []).append(slot)
        return True

    def _vague_home(self, key: tuple[Any, ...]) -> Slot | None:
        """Return where a copy of a record that later passes print word for word belongs: the first place with room.

        The first n prints are taken for the first pass, the next n for the second, whoever printed them. A place all
        writers have left (one of a kind behind it has all its copies) has no room any more, so that a lost copy is
        missed where it is lost.
        """
        for slot in self.vague.get(key, ()):
            if slot.total < self.number and slot.owner.index >= self.passed:
                return slot
        return None

    def _unfinished(self, payload: Payload, role: Role | None, *, clear: bool) -> Open | None:
        """Return the first pass that is not finished and that a record goes on with.

        Records that later passes repeat are found late (their first prints were taken for an earlier pass), so the
        pass they belong to need not be the current one; it may even be joined already. They go where everything that
        comes before them in a pass is there.
        """
        for made in self.held:
            if made.index < self.passed:
                continue
            if continues(made, payload, role) and (clear or self.form.due(made, payload)):
                if not made.closed or not self._whole(made):
                    return made
            elif (
                payload.event == "forward_end"
                and made.role == "target"
                and made.join is not None
                and not made.ended
                and made.rows == payload.rows
            ):
                return made
        return None

    def _damaged_home(self, payload: Payload) -> Slot | None:
        """Return the record a damaged copy was to be: the first with room that it fits as far as it can be read."""
        for made in self.held:
            for slot in made.slots:
                if slot.total < self.number and compatible(payload, slot.payload):
                    return slot
        return None

    def _twin(self, payload: Payload) -> Slot | None:
        """Return the record another writer printed in this place with other values: nearest first, then earliest."""
        kind = kind_of(payload)
        first = None
        for made in self.held:
            for slot in made.slots:
                if slot.total < self.number and kind_of(slot.payload) == kind:
                    if near(payload, slot.payload) or compatible(payload, slot.payload):
                        return slot
                    if first is None and (slot.back is None or slot.back.total > slot.total):
                        first = slot
        return first

    def _copy(self, slot: Slot, occurrence: Occurrence) -> None:
        slot.copies += 1
        if self.keep:
            slot.others.append(occurrence)
        if slot.copies >= self.number:
            self.filled(slot)

    def _alike(self, home: Slot, occurrence: Occurrence) -> None:
        other = Slot(occurrence)
        other.owner = home.owner
        home.add_alike(other)
        payload = other.payload
        if not self.marked and unmistakable(payload):
            self.open[payload] = self.texts[text_key(payload)] = other
        if home.total >= self.number:
            self.filled(home)

    def filled(self, slot: Slot) -> None:
        """Close a record that every writer has printed: all of them have left the passes before it.

        Only a record that is one of a kind shows that; the copies of others may be those of later passes.
        """
        payload = slot.payload
        if not unmistakable(payload):
            return
        self.open.pop(payload, None)
        self.texts.pop(text_key(payload), None)
        if slot.owner.index > self.passed:
            self.passed = slot.owner.index

    def _take_marked(self, occurrence: Occurrence, payload: Payload, role: Role | None, writer: Writer) -> bool:
        at = writer.at.next if writer.at is not None else self.head
        slot, steps = at, 0
        while slot is not None and steps < 96:
            if slot.payload is payload or self._prints(slot, payload):
                self._step(writer, slot, occurrence, payload)
                return True
            slot, steps = slot.next, steps + 1
        if at is not None:
            kind, slot, steps = kind_of(payload), at, 0
            while slot is not None and steps < 32:
                if kind_of(slot.payload) == kind or (not payload.usable and compatible(payload, slot.payload)):
                    self._alike(slot, occurrence)
                    writer.at, writer.position = slot, slot.position
                    return True
                slot, steps = slot.next, steps + 1
        current = self.current
        made = current if current is not None and continues(current, payload, role) else None
        slot = self._append(occurrence, payload, role, made)
        if slot is None:
            return False
        writer.at, writer.position = slot, slot.position
        return True

    @staticmethod
    def _prints(slot: Slot, payload: Payload) -> bool:
        """Tell whether some writer has printed the same text in this place."""
        if slot.payload.event != payload.event or not payload.usable:
            return False
        key = text_key(payload)
        return text_key(slot.payload) == key or (
            slot.alike is not None and any(text_key(other.payload) == key for other in slot.alike)
        )

    def _step(self, writer: Writer, slot: Slot, occurrence: Occurrence, payload: Payload) -> None:
        writer.at, writer.position = slot, slot.position
        if slot.payload is not payload and slot.alike is not None:
            key = text_key(payload)
            slot = next((other for other in slot.alike if text_key(other.payload) == key), slot)
        slot.copies += 1
        if self.keep:
            slot.others.append(occurrence)

    # -- passes ---------------------------------------------------------------------------------------------------

    def _append(self, occurrence: Occurrence, payload: Payload, role: Role | None, made: Open | None) -> Slot | None:
        """Put a new record into a pass, or (None) into a new one; None when it can begin none."""
        if made is None:
            begins = role_of(payload, role)
            if begins is None:
                return None
            made = self._begin(begins, occurrence)
        slot = Slot(occurrence)
        made.add(slot, payload)
        if made.printed is None and payload.fields:
            made.printed = printed_phase(payload)
        if self.number != 1:
            self._chain(slot, made)
        made.end_offset = occurrence[1]
        return slot

    def _chain(self, slot: Slot, made: Open) -> None:
        """Link a record behind the one before it in the order a single writer prints."""
        at = made.slots.index(slot) if made.slots[-1] is not slot or made is not self.current else -1
        if at > 0:
            back: Slot | None = made.slots[at - 1]
        elif at == 0 and len(made.slots) > 1:
            back = made.slots[1].back
        else:
            back = self.tail
        after = back.next if back is not None else self.head
        self.position += 1
        slot.position = self.position if after is None else after.position
        slot.back, slot.next = back, after
        if back is not None:
            back.next = slot
        else:
            self.head = slot
        if after is not None:
            after.back = slot
        else:
            self.tail = slot

    def _begin(self, role: Role, occurrence: Occurrence) -> Open:
        if self.current is not None:
            self.close_current()
        made = Open(self, role, self.index)
        self.index += 1
        labeller = self.labeller
        lives = labeller.lives
        made.offset = occurrence[1]
        made.segment = lives.segment
        made.region = self._region(role)
        made.time = occurrence[2].time or labeller.time
        if made.region is None:
            lives.active = lives.past = True
        made.during = "graph_capture" if made.region is not None else lives.during_serving
        back = self.current
        if back is not None and (back.region is None) == (made.region is None) and back.region == made.region:
            made.back, back.next = back, made
        elif made.region is None:
            made.fresh = lives.started and not self.settled_serving
        if made.region is None:
            self.settled_serving = True
        self.current = made
        self.pending.append(made)
        self.held.append(made)
        labeller.queue.append(made)
        return made

    def _region(self, role: Role) -> str | None:
        """Return what is being captured into a graph, as far as it concerns a pass of this role.

        Other writers run a little ahead of the one that logs: a target pass while the draft's graphs are captured
        is already served, and nothing is captured any more once serving began (except by a line after "ready").
        """
        lives = self.labeller.lives
        region = lives.region
        if region is None or (self.settled_serving and not lives.ready):
            return None
        if role == "target" and "draft" in region:
            return None
        return region

    def _whole(self, made: Open) -> bool:
        """Tell whether a pass has reached the record its kind usually ends with."""
        end = self.form.ends[made.role]
        return end is None or made.last_kind == end

    def close_current(self) -> None:
        """End the current pass: what it showed is learned, and what waits may be labelled."""
        current = self.current
        if current is None or current.closed:
            return
        current.closed = True
        self.habits.note(current, self.labeller.lives)
        self.advance()

    def advance(self, *, final: bool = False) -> None:
        """Label the passes that can be labelled, in order."""
        pending = self.pending
        lives = self.labeller.lives
        habits, segment = self.habits, lives.segment
        if habits.version is not None and segment is not None and segment.spec_version is None:
            segment.spec_version, segment.spec_evidence = habits.version, habits.version_why
        while pending:
            made = pending[0]
            if not made.closed:
                return
            late = final or len(pending) > _PATIENCE
            label = decide(made, self.habits, lives, final=late)
            if label is None:
                return
            made.phase, made.evidence, made.reason = label
            made.decided = True
            made.complete = self._is_complete(made)
            pending.popleft()

    def _is_complete(self, made: Open) -> bool:
        form = self.form
        if made.role == "target":
            first, last = form.target_first, form.target_last
        else:
            first, last = form.draft_first, form.draft_last
        return (first is None or made.first_kind == first) and (last is None or made.last_kind == last)

    def settled(self, made: Open) -> bool:
        """Tell whether every writer has printed all it will print of a pass."""
        if not made.closed:
            return False
        if self.number == 1 or made.index < self.passed:
            return True
        if self.marked:
            last = made.slots[-1].position
            return all(writer.position >= last for writer in self.writers.values())
        return all(slot.total >= self.number for slot in made.slots)

    def finish(self) -> None:
        """Take it that nothing more comes: label what is left."""
        self.close_current()
        self.advance(final=True)
        self.passed = self.index + 1
        self.current = None

    def forget(self, made: Open) -> None:
        """Let go of a pass that was handed out."""
        self.held.popleft()
        if made.back is not None:
            made.back.back = None
        if self.number == 1:
            return
        for slot in made.slots:
            for one in (slot, *(slot.alike or ())):
                payload = one.payload
                if self.open.get(payload) is one:
                    del self.open[payload]
                    self.texts.pop(text_key(payload), None)
            if not unmistakable(slot.payload):
                key = text_key(slot.payload)
                same = self.vague.get(key)
                if same is not None and slot in same:
                    same.remove(slot)
                    if not same:
                        del self.vague[key]
        last = made.slots[-1]
        for writer in self.writers.values():
            if writer.position < last.position:
                writer.at, writer.position = last, last.position
        last.back = None
        if self.head is not None and self.head.position <= last.position:
            self.head = last.next


class Labeller:
    """Turns the occurrences of one file into segments, forward passes and server lines, in file order.

    Parameters
    ----------
    file
        the name the items carry.
    keep_copies
        keep every copy's place in ``Record.others``; else only damaged and differing copies are kept.

    ``feed`` may be called with any cut of the occurrences: the items are the same. The first records of a life are
    held back until it is clear how many writers print them, a pass until its phase and copies are known.

    """

    def __init__(self, file: str, *, keep_copies: bool = False) -> None:
        self.file = file
        self.keep_copies = keep_copies
        self.lives = Lives(file)
        self.queue: deque[Open | Segment | ServerEvent] = deque()
        self.time: str | None = None
        self._out: list[Item] = []
        self._groups: dict[tuple[Any, ...], Group] = {}
        self._channels: dict[int, tuple[Prefix, Group, Writer | None]] = {}
        self._ahead: list[Occurrence] | None = []
        self._census: dict[tuple[Any, ...], Census] = {}
        self._capturing = False
        self._ahead_past = False
        self._ahead_args: tuple[Any, ...] | None = None
        self._ahead_tp: int | None = None
        self._seen = 0
        self._end = 0
        self._last: Occurrence | None = None

    @property
    def watermark(self) -> int:
        """Byte offset below which every occurrence has been handed out."""
        if self.queue:
            head = self.queue[0]
            if isinstance(head, Open):
                return head.offset
            if isinstance(head, ServerEvent):
                return head.occurrence[1]
        if self._ahead:
            return self._ahead[0][1]
        return self._end

    def feed(self, occurrences: Iterable[Occurrence]) -> list[Item]:
        """Take the next occurrences of the file, return the items that are complete."""
        self._read(iter(occurrences))
        return self._hand_out()

    def close(self) -> list[Item]:
        """End the file: return what is left."""
        while self._ahead:
            self._read(iter(self._counted()))
        for group in self._groups.values():
            group.finish()
        return self._hand_out()

    # -- the first records of a life ------------------------------------------------------------------------------

    def _beyond(self, occurrence: Occurrence) -> bool:
        """Tell whether an occurrence is no longer of the life that is looked at."""
        payload = occurrence[3]
        event = payload.event
        if event in OPENERS and self._ahead:
            return self._ahead_past or (event == "server_args" and self._ahead_args == occurrence[2].writer)
        if event == "server_args":
            self._ahead_args = occurrence[2].writer
            tp_size = payload.fields.get("tp_size")
            self._ahead_tp = tp_size if isinstance(tp_size, int) else None
        elif event in PAST or payload.site is not None:
            self._ahead_past = self._ahead_past or not self._capturing
        return False

    def _look(self, occurrence: Occurrence) -> bool:
        """Hold an occurrence back; True when enough was seen to count the writers."""
        assert self._ahead is not None
        payload = occurrence[3]
        event = payload.event
        if len(self._ahead) > 4 * Census.LIMIT:
            self._ahead.append(occurrence)
            return True
        if payload.kind == "event" and payload.site is not None and event != "capture_plan":
            self._ahead.append(occurrence)
            if not payload.usable:
                return False
            key = group_key(occurrence[2])
            census = self._census.get(key)
            if census is None:
                census = self._census[key] = Census(self._ahead_tp)
            return census.add(payload, capturing=self._capturing)
        if event == "graph_capture_begin" or event == "graph_capture_progress":
            self._capturing = True
        elif event in ("graph_capture_end", "ready", "prefill_stats"):
            self._capturing = False
        self._ahead.append(occurrence)
        return False

    def _counted(self) -> list[Occurrence]:
        """End the look-ahead and return what was held back."""
        ahead = self._ahead or []
        self._ahead = None
        if self.lives.segment is None and ahead:
            self._open_life(ahead[0])
            self.lives.foretell(ahead)
        return ahead

    def _settle_writers(self, group: Group) -> None:
        """Fix how many writers a group has, from what was counted."""
        lives = self.lives
        segment = lives.segment
        assert segment is not None
        census = self._census.get(group.key)
        if census is not None:
            group.form = Form(census.kinds)
        if group.marked:
            return
        if census is None:
            number, evidence = segment.writers or 1, "as the other writers of the log"
        else:
            number, evidence = census.writers(segment.tp_size)
        group.expected = number
        group.number = number if number is not None else _UNCOUNTED
        if segment.writers is None:
            segment.writers, segment.writers_evidence = number, evidence

    # -- the stream -----------------------------------------------------------------------------------------------

    def _read(self, stream: Iterator[Occurrence]) -> None:
        """Read on; the first records of every life are looked at before any of them is read."""
        while True:
            if self._ahead is not None:
                for occurrence in stream:
                    if self._beyond(occurrence):
                        stream = chain((occurrence,), stream)
                        break
                    if self._look(occurrence):
                        break
                else:
                    return
                stream = chain(self._counted(), stream)
            if not self._run(stream):
                return

    def _run(self, stream: Iterator[Occurrence]) -> bool:
        """Read until the stream ends (False) or a new life begins (True)."""
        channels = self._channels
        keep = self.keep_copies
        last: Prefix | None = None
        group: Group
        writer: Writer | None = None
        copies: dict[Payload, Slot] = {}
        number = 0
        for occurrence in stream:
            _, _, prefix, payload = occurrence
            if prefix is not last:
                found = channels.get(id(prefix))
                if found is None:
                    found = self._channel(prefix)
                last, group, writer = found
                copies, number = group.open, group.number
            if writer is None:
                slot = copies.get(payload)
                if slot is not None:
                    slot.copies += 1
                    if keep:
                        slot.others.append(occurrence)
                    if slot.copies >= number:
                        group.filled(slot)
                    continue
            else:
                at = writer.at
                if at is not None:
                    slot = at.next
                    if slot is not None and slot.payload is payload:
                        slot.copies += 1
                        if keep:
                            slot.others.append(occurrence)
                        writer.at = slot
                        writer.position = slot.position
                        continue
            self._seen += 1
            if payload.kind == "event" and payload.site is not None and payload.event != "capture_plan":
                group.last_seen = self._seen
                self._end = occurrence[1] + 1
                if not group.take(occurrence, writer):
                    self.queue.append(self._event(occurrence))
                continue
            if not self._server(occurrence):
                continue
            self._ahead = []
            self._census = {}
            self._capturing = self._ahead_past = False
            self._ahead_args = self._ahead_tp = None
            self._open_life(occurrence)
            self._beyond(occurrence)
            self._look(occurrence)
            return True
        return False

    def _channel(self, prefix: Prefix) -> tuple[Prefix, Group, Writer | None]:
        """Return the group a prefix belongs to and, when it names one, its writer."""
        channels = self._channels
        found = channels.get(id(prefix))
        if found is not None:
            return found
        if len(channels) > 65536:
            channels.clear()
        key = group_key(prefix)
        marked = is_marked(prefix)
        full = (*key, "marked") if marked else key
        group = self._groups.get(full)
        if group is None:
            group = self._groups[full] = Group(self, key, marked=marked)
            if self.lives.segment is not None:
                self._settle_writers(group)
        writer = None
        if marked:
            name = (prefix.pid, prefix.tp_rank, prefix.ep_rank, prefix.extra)
            writer = group.writers.get(name)
            if writer is None:
                writer = group.writers[name] = Writer(group)
        found = channels[id(prefix)] = (prefix, group, writer)
        return found

    def _open_life(self, occurrence: Occurrence) -> None:
        for group in self._groups.values():
            group.finish()
        self._groups.clear()
        self._channels.clear()
        self.queue.append(self.lives.open(occurrence[0]))

    def _server(self, occurrence: Occurrence) -> bool:
        """Take a record of the server, or one that belongs to no pass; True when it begins a new life."""
        payload = occurrence[3]
        prefix = occurrence[2]
        lives = self.lives
        if lives.opens(payload, prefix.writer):
            return True
        if prefix.time is not None:
            self.time = prefix.time
        if payload.kind in ("event", "mark"):
            lives.see(occurrence)
        self._end = occurrence[1] + 1
        if payload.kind in ("event", "unparsed"):
            self.queue.append(self._event(occurrence))
        return False

    def _event(self, occurrence: Occurrence) -> ServerEvent:
        segment = self.lives.segment
        assert segment is not None
        return ServerEvent(occurrence, segment.number, self.lives.during, self.file)

    # -- handing out ----------------------------------------------------------------------------------------------

    def _hand_out(self) -> list[Item]:
        queue = self.queue
        out: list[Item] = []
        while queue:
            head = queue[0]
            if isinstance(head, Open):
                group = head.group
                if not (head.decided and group.settled(head)):
                    if not self._overdue(head):
                        break
                out.append(self._finished(head))
                group.forget(head)
            else:
                out.append(head)
            queue.popleft()
        return out

    def _overdue(self, made: Open) -> bool:
        """Tell whether a pass has waited long enough; label it then with what is known."""
        group: Group = made.group
        silent = self._seen - group.last_seen > _SILENCE
        if not silent and len(group.held) <= 2 * _PATIENCE and len(self.queue) < _SILENCE:
            if group.position - made.slots[-1].position < _WINDOW:
                return False
        if not made.closed:
            group.finish()
        while not made.decided:
            group.advance(final=True)
        return True

    def _finished(self, made: Open) -> ForwardPass:
        group: Group = made.group
        group.emitted += 1
        return ForwardPass(
            number=group.emitted,
            segment=made.segment.number,
            group=group.key,
            role=made.role,
            file=self.file,
            phase=made.phase,
            evidence=made.evidence,
            reason=made.reason,
            during=made.during,
            complete=made.complete,
            expected_copies=group.expected if not group.marked else len(group.writers),
            time=made.time,
            records=[slot.record() for slot in made.slots],
        )


def group_key(prefix: Prefix) -> tuple[Any, ...]:
    """Return what the writers of one scheduler share: origin, DP and PP rank."""
    return (prefix.origin, prefix.dp_rank, prefix.pp_rank)


def is_marked(prefix: Prefix) -> bool:
    """Tell whether a prefix names the one process that prints."""
    return prefix.pid is not None or prefix.tp_rank is not None or prefix.ep_rank is not None
