"""From records to forward passes: segments, writers, passes, phases, while the log is still being read.

This module is responsible for :class:`Labeller`, which turns the occurrences of one file into items in file order:
segments, forward passes of target and draft, server lines. It must not know how text is matched, nor any question that
is asked of the items.

An occurrence goes through these rooms: :mod:`logscope.segments` (which server life, and where in it),
:mod:`logscope.groups` (which scheduler's; is it a copy of a record that is already there, with
:mod:`logscope.copies`; which forward it belongs to, with :mod:`logscope.assembly` and :mod:`logscope.tangle`), and
:mod:`logscope.phases` (what that forward was).
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any

from logscope.assembly import KNOWN, Open
from logscope.copies import Census, Form, text_key, unmistakable
from logscope.groups import UNCOUNTED, Group
from logscope.model import Segment, ServerEvent
from logscope.ranks import Writer
from logscope.scene import Doubt, Later, Scene
from logscope.segments import LOADS, PAST, STARTUP, Lives, begins_again

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from logscope.copies import Slot
    from logscope.model import Occurrence, Payload, Prefix
    from logscope.report import Item

    Numbers = dict[tuple[Any, ...], int]  # the number of a group's last pass

# A scheduler that prints nothing more is not waited for longer than this many records of others.
_SILENCE = 32768
# Prefixes remembered with their group: a stamp makes one of every second.
_CHANNELS = 8192
# Records held back at most while the writers are counted.
_LOOK_AHEAD = 4 * Census.LIMIT


class Labeller:
    """Turns the occurrences of one file into segments, forward passes and server lines, in file order.

    Parameters
    ----------
    file
        the name the items carry.
    keep_copies
        keep every copy's place in ``Record.others``; else only damaged and differing copies are kept.
    goes_on
        what :meth:`hand_on` gives of the file that stood here before it was rotated: the life it was in, and the
        numbers of its last passes.

    ``feed`` may be called with any cut of the occurrences: the items are the same. The first records of a life are
    held back until it is clear how many writers print them, a pass until its phase and copies are known.

    """

    def __init__(self, file: str, *, keep_copies: bool = False, goes_on: tuple[Lives, Numbers] | None = None) -> None:
        lives, self._numbers = goes_on or (Lives(file), {})
        self._scene = Scene(file, keep_copies, lives)
        self._groups: dict[tuple[Any, ...], Group] = {}
        self._channels: dict[int, tuple[Prefix, Group, Writer | None]] = {}
        self._look = _Look()
        self._seen = 0
        self._end = 0
        self._debug_line = 0

    def hand_on(self) -> tuple[Lives, Numbers]:
        """Return what is known for the file that takes the place of this one, which has ended."""
        lives = self._scene.lives
        lives.turn()
        return lives, self._numbers | {key: group.emitted for key, group in self._groups.items()}

    @property
    def watermark(self) -> int:
        """Byte offset below which every occurrence has been handed out."""
        for head in self._scene.queue:
            if isinstance(head, Open):
                return head.offset
            if not isinstance(head, Segment):
                return head.occurrence[1]
        if self._look.held:
            return self._look.held[0][1]
        return self._end

    def feed(self, occurrences: Iterable[Occurrence]) -> list[Item]:
        """Take the next occurrences of the file, return the items that are complete."""
        self._read(iter(occurrences))
        return self._hand_out()

    def close(self) -> list[Item]:
        """End the file: return what is left."""
        while self._look.held:
            self._read(iter(self._end_look()))
        for group in self._groups.values():
            group.finish()
        return self._hand_out()

    # -- the stream -----------------------------------------------------------------------------------------------

    def _read(self, stream: Iterator[Occurrence]) -> None:
        """Read on; the first records of every life are looked at before any of them is read."""
        while True:
            look = self._look
            if look.going_on:
                for occurrence in stream:
                    if look.beyond(occurrence):
                        stream = chain((occurrence,), stream)
                        break
                    if look.take(occurrence):
                        break
                else:
                    return
                stream = chain(self._end_look(), stream)
            if not self._run(stream):
                return

    def _end_look(self) -> list[Occurrence]:
        """End the look-ahead and return what was held back."""
        held = self._look.end()
        if held:
            lives = self._scene.lives
            if lives.segment is None:
                self._open_life(held[0])
            lives.foretell(held)
        return held

    def _run(self, stream: Iterator[Occurrence]) -> bool:
        """Read until the stream ends (False) or a new life begins (True)."""
        channels = self._channels
        keep = self._scene.keep_copies
        last: Prefix | None = None
        group: Group
        writer: Writer | None = None
        copies: dict[Payload, Slot] = {}
        number = 0
        for occurrence in stream:
            _, _, prefix, payload = occurrence
            if prefix is not last:
                last, group, writer = channels.get(id(prefix)) or self._channel(prefix)
                copies, number = group.open, group.number
            if writer is None:
                slot = copies.get(payload)
                # Where nobody is seen to stand before a record, the group decides whether it is a copy.
                if slot is not None and ((back := slot.back) is None or back.copies > slot.copies):
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
                        writer.line = occurrence[0]
                        continue
            self._seen += 1
            if self._seen % _SILENCE == 0:
                self._rest()
            if payload.kind == "event" and payload.site is not None and payload.event != "capture_plan":
                group.last_seen = self._seen
                self._end = occurrence[1] + 1
                self._debug_line = occurrence[0]
                if not group.take(occurrence, writer):
                    self._scene.queue.append(self._event(occurrence))
                continue
            if self._server(occurrence):
                self._look = _Look()
                self._open_life(occurrence)
                self._look.beyond(occurrence)
                self._look.take(occurrence)
                return True
        return False

    def _rest(self) -> None:
        """Wait no longer for schedulers that have printed nothing for long."""
        for group in self._groups.values():
            if self._seen - group.last_seen >= _SILENCE:
                group.rest()

    def _channel(self, prefix: Prefix) -> tuple[Prefix, Group, Writer | None]:
        """Return the group a prefix belongs to and, when it names one, its writer."""
        channels = self._channels
        if len(channels) > _CHANNELS:
            channels.clear()
        full = self._look.place(prefix)
        key, marked = full[:-1], full[-1]
        group = self._groups.get(full)
        if group is None:
            group = self._groups[full] = Group(self._scene, key, marked=marked)
            group.emitted = self._numbers.get(full, 0)
            self._count_writers(group, full)
        writer = None
        if marked:
            name = (prefix.pid, prefix.tp_rank, prefix.ep_rank, prefix.extra)
            writer = group.writers.get(name)
            if writer is None:
                writer = group.writers[name] = Writer()
        # The prefix is kept with its entry, so that its id stays its own.
        found = channels[id(prefix)] = (prefix, group, writer)
        return found

    def _count_writers(self, group: Group, full: tuple[Any, ...]) -> None:
        """Fix how many writers a group has, and how its passes look, from what was counted."""
        segment = self._scene.lives.here
        census = self._look.counted.get(full)
        if census is not None:
            group.form = Form(census.kinds)
            group.shared = census.shared
        if group.marked:
            for name in self._look.marked.get(full, ()):
                group.writers[name] = Writer()
            if group.writers and segment.writers is None:
                segment.writers = len(group.writers)
                segment.writers_evidence = "as many ranks or processes are named in the prefixes of debug records"
            return
        number: int | None = segment.writers or 1
        evidence = "as the other writers of the log"
        if census is not None:
            number, evidence = census.writers(self._look.tp_size)
        group.expected = number
        group.number = number if number is not None else UNCOUNTED
        if census is not None:
            if segment.writers is None:
                segment.writers, segment.writers_evidence = number, evidence
            said = self._look.schedulers if group.key[1] is None else None
            schedulers = census.schedulers(number, said)
            if schedulers > 1:
                group.untangle(schedulers)
            elif said is not None and number == 1:
                group.latent = said

    def _open_life(self, occurrence: Occurrence) -> None:
        for group in self._groups.values():
            group.finish()
        self._groups.clear()
        self._numbers.clear()
        self._channels.clear()
        self._scene.queue.append(self._scene.lives.open(occurrence[0]))

    def _server(self, occurrence: Occurrence) -> bool:
        """Take a record of the server, or one that belongs to no pass; True when it begins a new life."""
        line, offset, prefix, payload = occurrence
        scene = self._scene
        lives = scene.lives
        if lives.opens(payload, prefix.writer):
            return True
        if prefix.time is not None:
            scene.time = prefix.time
        if payload.kind in ("event", "mark"):
            lives.see(occurrence)
            if not prefix.peeled and line == self._debug_line and payload.site is None and payload.kind == "event":
                lives.glued()
        self._end = offset + 1
        if payload.kind in ("event", "unparsed"):
            scene.queue.append(self._event(occurrence))
        return False

    def _event(self, occurrence: Occurrence) -> ServerEvent:
        lives = self._scene.lives
        return ServerEvent(occurrence, lives.here.number, lives.during, self._scene.file)

    # -- handing out ----------------------------------------------------------------------------------------------

    def _hand_out(self) -> list[Item]:
        queue = self._scene.queue
        out: list[Item] = []
        while queue:
            head = queue[0]
            if isinstance(head, Later):
                if not head.settled:
                    break
                if head.made is not None:
                    queue[0] = head.made
                    continue
                if head.stray:
                    out.append(self._event(head.occurrence))
            elif isinstance(head, Open):
                group: Group = head.group
                if not head.done:
                    break
                out.append(group.hand_out(head))
            elif isinstance(head, Doubt):
                if head.settle():
                    out.append(self._stray(head))
            else:
                out.append(head)
            queue.popleft()
        return out

    def _stray(self, doubt: Doubt) -> ServerEvent:
        owner = doubt.owners[0]
        return ServerEvent(doubt.occurrence, owner.segment.number, owner.during, self._scene.file)


class _Look:
    """The first records of a life, held back until it is clear who prints them."""

    def __init__(self, nameless: dict[tuple[Any, ...], frozenset[int]] | None = None) -> None:
        self.held: list[Occurrence] = []
        self.going_on = True
        self.counted: dict[tuple[Any, ...], Census] = {}
        self.marked: dict[tuple[Any, ...], dict[tuple[Any, ...], int]] = {}
        # Groups whose prefixes name no process, each with the pids that are one scheduler's; another pid is another's.
        self._nameless = nameless or {}
        self._by_pid: dict[tuple[Any, ...], dict[int, Census]] = {}
        self._heard: set[tuple[Any, ...]] = set()
        self._clear: set[Census] = set()
        self._capturing = False
        self._started = False
        self._ready = False
        self._past = False
        self._served = False
        self._loads: Counter[tuple[Any, ...]] = Counter()
        self._args: tuple[Any, ...] | None = None
        self.tp_size: int | None = None
        self.dp_size: int | None = None
        self._dp_ranks: set[int] = set()

    @property
    def schedulers(self) -> int | None:
        """How many schedulers the server has, as far as its lines say: ``dp_size``, or the ranks in their prefixes."""
        if self._dp_ranks:
            # A prefix names the rank only where there are several.
            return max(self.dp_size or 2, max(self._dp_ranks) + 1)
        return self.dp_size

    def beyond(self, occurrence: Occurrence) -> bool:
        """Tell whether an occurrence is no longer of the life that is looked at."""
        payload, prefix = occurrence[3], occurrence[2]
        event = payload.event
        again = event == "server_args" and self._args == prefix.writer
        if self.held and (again or self._begins_again(event, prefix)):
            return True
        if event == "server_args":
            self._args = prefix.writer
            self.tp_size = _number(payload.fields.get("tp_size"))
            self.dp_size = _number(payload.fields.get("dp_size"))
        elif event == LOADS:
            self._loads[prefix.writer] += 1
        elif not self._capturing:
            self._past = self._past or event in PAST
            self._served = self._served or event in KNOWN
        return False

    def _begins_again(self, event: str | None, prefix: Prefix) -> bool:
        several = (self.tp_size or 1) > 1 or any(len(names) > 1 for names in self.marked.values())
        loads = self._loads[prefix.writer]
        return begins_again(event, past=self._past, served=self._served, loads=loads, several=several)

    def take(self, occurrence: Occurrence) -> bool:
        """Hold an occurrence back; True when enough was seen to count the writers."""
        payload, prefix = occurrence[3], occurrence[2]
        event = payload.event
        self.held.append(occurrence)
        if len(self.held) > _LOOK_AHEAD:
            return True
        if prefix.dp_rank is not None and payload.site is None:
            self._dp_ranks.add(prefix.dp_rank)
        if payload.kind == "event" and payload.site is not None and event != "capture_plan":
            if not payload.usable:
                return False
            full = self.place(prefix)
            census = self.counted.get(full)
            if census is None:
                census = self.counted[full] = Census(self.tp_size)
            counts = not self._capturing and (self._ready or not self._started)
            if full[-1]:
                names = self.marked.setdefault(full, {})
                name = (prefix.pid, prefix.tp_rank, prefix.ep_rank, prefix.extra)
                names[name] = names.get(name, 0) + 1
                enough = census.add_marked(payload, names)
                if prefix.pid is not None and not _has_rank(prefix):
                    return self._take_pid(full, prefix.pid, payload, enough=enough, counts=counts)
                return enough
            return census.add(payload, counts=counts)
        if event in STARTUP:
            self._started = True
        elif event == "ready":
            self._ready = True
        if event in ("graph_capture_begin", "graph_capture_progress"):
            self._capturing = True
        elif event in ("graph_capture_end", "ready", "prefill_stats"):
            self._capturing = False
        return False

    def _take_pid(self, full: tuple[Any, ...], pid: int, payload: Payload, *, enough: bool, counts: bool) -> bool:
        """Count a record that a pid alone names; tell whether it is clear how many print under every such pid."""
        inner = self._by_pid.setdefault(full, {})
        census = inner.get(pid)
        if census is None:
            census = inner[pid] = Census(self.tp_size)
        clear = census.add(payload, counts=counts)
        if clear:
            self._clear.add(census)
        if enough:
            self._heard.add(full)
        if full not in self._heard or not (clear or enough):
            return False
        if not all(one in self._clear or one.one_voice for one in inner.values()):
            return False
        return len(inner) == 1 or _print_the_same(inner.values()) or self.counted[full].records >= 8 * Census.FIRST

    def end(self) -> list[Occurrence]:
        """End it, and return what was held back."""
        held, self.held, self.going_on = self.held, [], False
        self._nameless = self._find_nameless(held)
        if self._nameless:
            again = _Look(self._nameless)
            for occurrence in held:
                again.beyond(occurrence)
                again.take(occurrence)
            self.counted, self.marked = again.counted, again.marked
        return held

    def place(self, prefix: Prefix) -> tuple[Any, ...]:
        """Return the key of the group a prefix belongs to; its last part tells whether the prefix names a process."""
        key = group_key(prefix)
        pids = self._nameless.get(key)
        if pids is None:
            return (*key, is_marked(prefix))
        pid = prefix.pid
        if pid is None or pid in pids:
            return (*key, False)
        return (f"{prefix.origin} pid={pid}" if prefix.origin else f"pid={pid}", *key[1:], False)

    def _find_nameless(self, held: list[Occurrence]) -> dict[tuple[Any, ...], frozenset[int]]:
        """Return the groups whose prefixes name no process, though they hold a pid or a rank.

        A pid alone is that of a process which several ranks print under, unless it tells them apart: each prints a
        record once, and several print the same. A rank that prints its mark beside others of its group that print
        none is one of them.
        """
        found: dict[tuple[Any, ...], frozenset[int]] = {}
        for full, names in self.marked.items():
            key = full[:-1]
            inner = self._by_pid.get(full, {})
            if (*key, False) in self.counted or 0 < len(inner) < len(names):
                if self._beside(key, held):
                    found[key] = frozenset(inner)
            elif len(inner) == 1:
                ((pid, census),) = inner.items()
                if self._hides(census):
                    found[key] = frozenset({pid})
            elif inner:
                copied = any(census.texts and self._hides(census) for census in inner.values())
                if _print_the_same(inner.values()):
                    if copied:
                        found[key] = frozenset(inner)
                elif copied or min(len(census.texts) for census in inner.values()) >= Census.FIRST // 4:
                    found[key] = frozenset()
        return found

    def _hides(self, census: Census) -> bool:
        """Tell whether more than one writer, or scheduler, prints what was counted."""
        if census.one_voice:
            return False
        number, _ = census.writers(self.tp_size)
        return number != 1 or census.schedulers(number, self.schedulers) > 1

    def _beside(self, key: tuple[Any, ...], held: list[Occurrence]) -> bool:
        """Tell whether those of a group that print a rank print the same records as those that print none."""
        texts: tuple[set[Any], set[Any]] = (set(), set())
        for _, _, prefix, payload in held:
            debug = payload.kind == "event" and payload.site is not None
            if debug and unmistakable(payload) and group_key(prefix) == key:
                texts[_has_rank(prefix)].add(text_key(payload))
        both = len(texts[0] & texts[1])
        return both > 0 and 2 * both >= min(map(len, texts))


def _print_the_same(counted: Iterable[Census]) -> bool:
    """Tell whether several writers print the same records: a good part of what any of them prints."""
    texts = Counter(text for census in counted for text in census.texts)
    return 4 * sum(times > 1 for times in texts.values()) >= len(texts)


def group_key(prefix: Prefix) -> tuple[Any, ...]:
    """Return what the writers of one scheduler share: origin, DP and PP rank.

    Where the origin is the name of a worker, it holds the rank too: ``Worker_TP1`` is one of the workers ``Worker``.
    """
    origin = prefix.origin
    if origin is not None and _has_rank(prefix):
        for name, rank in (("TP", prefix.tp_rank), ("EP", prefix.ep_rank)):
            origin = re.sub(rf"_{name}{rank}(?![0-9])", "", origin)
    return (origin, prefix.dp_rank, prefix.pp_rank)


def is_marked(prefix: Prefix) -> bool:
    """Tell whether a prefix names the one process that prints."""
    return prefix.pid is not None or prefix.tp_rank is not None or prefix.ep_rank is not None


def _has_rank(prefix: Prefix) -> bool:
    """Tell whether a prefix names a rank within its group, not only a pid."""
    return prefix.tp_rank is not None or prefix.ep_rank is not None or bool(prefix.extra)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None
