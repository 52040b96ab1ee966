"""Several schedulers that print into one file without a mark: their records are told apart by state.

This module is responsible for :class:`Tangle`: which scheduler a record belongs to, by what that scheduler prints next
and by what its numbers must be. It must not know how passes are labelled or handed out.

What tells two schedulers apart (field identities of a healthy or faulty run alike): the head of a joined state is the
head of its first capture; the squares of the captures' norms add up to that of the joined state; the draft reads the
joined state, and then its own output. Where none of these decides and the candidates are not in the same state, a
record is given to no pass.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from logscope.assembly import continues, role_of
from logscope.model import CAPTURE_EVENTS
from logscope.phases import is_decode, no_verify

if TYPE_CHECKING:
    from logscope.assembly import Open
    from logscope.copies import Form, Slot
    from logscope.model import Payload, Role, Segment
    from logscope.phases import Habits
    from logscope.segments import Lives


class Track:
    """The passes of one scheduler, one after the other: the current one."""

    __slots__ = ("current", "number", "served")

    def __init__(self, number: int) -> None:
        self.number = number
        self.current: Open | None = None
        self.served = False


class Tangle:
    """Several schedulers in one stream of records."""

    def __init__(self, schedulers: int, form: Form, habits: Habits, lives: Lives) -> None:
        self.tracks = [Track(number) for number in range(1, schedulers + 1)]
        self._form = form
        self._habits = habits
        self._lives = lives
        self._owner: dict[Open, Track] = {}
        self._either: dict[Slot, list[Open]] = {}
        self._strays = 0

    def began(self, made: Open, track: Track) -> None:
        """Note whose pass it is that has begun."""
        self._owner[made] = track

    def name_of(self, made: Open) -> str:
        """Return the name of the scheduler a pass was given to, and forget the pass."""
        for slot in made.slots:
            self._either.pop(slot, None)
        track = self._owner.pop(made, None)
        return f"scheduler {track.number if track is not None else 1}"

    def report(self, segment: Segment) -> None:
        """Say in the segment's notes that schedulers are mixed, and what could not be told apart."""
        said = f"records of {len(self.tracks)} schedulers stand mixed without a mark; they are told apart by state"
        if self._strays:
            said += f" ({self._strays} records fit more than one, or none, and are in no pass)"
        segment.notes.append(said)

    def place(self, payload: Payload, role: Role | None) -> tuple[Open | None, Track] | None:
        """Return the pass a record goes on with, or (None, track) when it begins one there; None when undecided."""
        going = [
            track
            for track in self.tracks
            if track.current is not None
            and continues(track.current, payload, role)
            and self._form.due(track.current, payload)
        ]
        if going:
            track = self._going_on(payload, going)
            if track is None:
                self._strays += 1
                return None
            return track.current, track
        begins = role_of(payload, role)
        free = [track for track in self.tracks if track.current is None or self._whole(track.current)]
        found = None
        if begins is not None and free:
            found = self._target(payload, free) if begins == "target" else self._draft(payload, free)
        if found is None:
            self._strays += 1
            return None
        return None, found

    def placed(self, slot: Slot, made: Open) -> None:
        """Note where a record went; a joined state shows whether its captures were the right ones."""
        payload = slot.payload
        if payload.event == "aux_concat" and made.role == "target":
            self._repair(made, payload)
        elif payload.event in CAPTURE_EVENTS:
            others = [
                track.current
                for track in self.tracks
                if track.current is not None
                and track.current is not made
                and track.current.role == "target"
                and track.current.rows == made.rows
                and track.current.join is None
            ]
            if others:
                self._either[slot] = others

    def _whole(self, made: Open) -> bool:
        end = self._form.ends[made.role]
        return end is None or made.last_kind == end

    def _going_on(self, payload: Payload, going: list[Track]) -> Track | None:
        if payload.event == "aux_concat":
            going = self._joined(payload, going) or going
        if len(going) > 1:
            made = [track.current for track in going if track.current is not None]
            states = {(one.role, one.wide, self._guess(one)) for one in made}
            if len(states) > 1:
                return None
        return min(going, key=lambda track: track.current.slots[-1].first[1] if track.current is not None else 0)

    def _joined(self, payload: Payload, going: list[Track]) -> list[Track]:
        """Return those of the passes whose joined state this can be."""
        fits = []
        for track in going:
            made = track.current
            if made is None:
                continue
            if made.role == "target":
                first = made.slots[0].payload
                if first.head is not None and payload.head is not None and _equal_heads(first.head, payload.head):
                    fits.append(track)
            elif made.wide is False:
                if payload.rows == made.rows and payload.mode not in self._habits.full_names:
                    fits.append(track)
            else:
                full = payload.mode in self._habits.full_names
                phase = self._guess(made)
                if full and payload.rows == made.rows and phase != "extend":
                    fits.append(track)
                elif not full and (phase != "draft_extend" or self._habits.version != "v2"):
                    fits.append(track)
        return fits

    def _guess(self, made: Open) -> str:
        """Return what a pass seems to be, by order alone."""
        if made.decided:
            return made.phase
        back = made.back
        if made.role == "target":
            return "verify" if back is not None and is_decode(back, self._habits) else "extend"
        if back is not None and back.role == "target" and made.wide is not False:
            return "draft_extend" if self._guess(back) == "verify" else "extend"
        return "decode"

    def _repair(self, made: Open, joined: Payload) -> None:
        """Exchange captures with another pass in progress when only that makes the squares of the norms add up."""
        captures = [slot for slot in made.slots if slot.payload.event in CAPTURE_EVENTS]
        if joined.norm is None or any(slot.payload.norm is None for slot in captures):
            return
        if _adds_up([slot.payload.norm or 0.0 for slot in captures], joined):
            return
        choices: list[list[tuple[Slot, Slot | None]]] = []
        for slot in captures:
            options: list[tuple[Slot, Slot | None]] = [(slot, None)]
            for other in self._either.get(slot, ()):
                options += [
                    (slot, there)
                    for there in other.slots
                    if there.payload.layer == slot.payload.layer and there.payload.event in CAPTURE_EVENTS
                ]
            choices.append(options)
        for picks in itertools.islice(itertools.product(*choices), 256):
            norms = [(there or slot).payload.norm or 0.0 for slot, there in picks]
            if _adds_up(norms, joined):
                for slot, there in picks:
                    if there is not None:
                        _exchange(slot, there)
                return

    def _draft(self, payload: Payload, free: list[Track]) -> Track | None:
        embeds = payload.fields.get("embeds")
        wide = None
        if payload.width is not None and isinstance(embeds, list) and embeds and isinstance(embeds[-1], int):
            wide = payload.width > embeds[-1]
        after = [(track, track.current) for track in free if track.current is not None]
        targets = [(track, made) for track, made in after if made.role == "target" and made.join is not None]
        drafts = [(track, made) for track, made in after if made.role == "draft" and made.join is not None]
        same = [track for track, made in targets if made.join is not None and _same_state(payload, made.join)]
        if same and wide is not False:
            return same[0]
        if wide is not False and targets:
            heads = [
                track
                for track, made in targets
                if made.join is not None
                and (payload.rows or 0) <= (made.rows or 0)
                and made.join.head is not None
                and payload.head is not None
                and _equal_heads(made.join.head, payload.head)
            ]
            if heads:
                return heads[0]
            fits = [track for track, made in targets if (payload.rows or 0) <= (made.rows or 0)]
            return fits[0] if len(fits) == 1 else None
        if wide:
            return None
        same = [track for track, made in drafts if made.join is not None and _same_state(payload, made.join)]
        if same:
            return same[0]
        fits = []
        for track, made in drafts:
            read = self._habits.reads(made)
            if read == "LAST" and (made.join is not None and made.join.rows == payload.rows):
                continue  # With one candidate a request the draft reads exactly what it put out.
            if (payload.rows or 0) <= (made.rows or 0):
                fits.append(track)
        return fits[0] if fits else (drafts[0][0] if len(drafts) == 1 else None)

    def _target(self, payload: Payload, free: list[Track]) -> Track | None:
        rows, tokens = payload.rows, self._lives.draft_tokens
        verifies, extends = [], []
        for track in free:
            made = track.current
            if made is not None and is_decode(made, self._habits):
                if rows is None or not no_verify(rows, tokens, self._habits.verify_rows):
                    verifies.append(track)
            else:
                extends.append(track)
        if tokens is not None and rows is not None:
            segment = self._lives.segment
            topk = segment.topk if segment is not None and segment.topk else 1
            exact = [
                track for track in verifies if track.current is not None and (track.current.rows or 0) * tokens == rows * topk
            ]
            verifies = exact or ([] if extends else verifies)
        return (verifies or extends or [None])[0]


def _exchange(one: Slot, other: Slot) -> None:
    """Let two records change places, copies and all."""
    first, second = one.owner, other.owner
    at, to = first.slots.index(one), second.slots.index(other)
    first.slots[at], second.slots[to] = other, one
    one.owner, other.owner = second, first


def _equal_heads(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(a == b or (a != a and b != b) for a, b in zip(one, other, strict=False))  # noqa: PLR0124


def _same_state(one: Payload, other: Payload) -> bool:
    """Tell whether two records print the same tensor."""
    if one.shape != other.shape or one.norm != other.norm:
        return False
    return one.head is not None and other.head is not None and _equal_heads(one.head, other.head)


def _adds_up(norms: list[float], joined: Payload) -> bool:
    """Tell whether squares of norms add up to that of the joined state (to 5e-6, and the printed digits)."""
    want = joined.norm or 0.0
    total = sum(norm * norm for norm in norms)
    slack = 5e-6 * want * want + 2 * joined.norm_resolution * (want + sum(map(abs, norms)))
    return abs(total - want * want) <= slack
