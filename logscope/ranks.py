"""Writers that the prefix names: a record of one stands behind the last record of that writer.

This module is responsible for :class:`Ranks`, which places the records of a group whose writers print their rank or
their process, and for :class:`Writer`, what is known of one. It must not know how records without a mark are placed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logscope.assembly import KNOWN, continues, role_of
from logscope.copies import Form, Slot, alike, compatible, kind_of, text_key, unmistakable

if TYPE_CHECKING:
    from logscope.groups import Group
    from logscope.model import Occurrence, Payload, Role

# A writer that fits nowhere is followed once it prints so many records and nobody else any.
_LONE = 64
# A writer's record is looked for among so many that come behind its last one; a damaged one among so many.
_AHEAD = 256
_BEHIND = 32


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


class Ranks:
    """Places the records of a group's writers, each behind the last one of its writer."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._strayed: Writer | None = None
        self._strays = 0

    def take(self, occurrence: Occurrence, payload: Payload, role: Role | None, writer: Writer) -> bool:
        """Place a record of a writer that its prefix names: behind the last record of that writer."""
        writer.records += 1
        writer.line = occurrence[0]
        at = writer.at
        due = at.next if at is not None else self._group.head
        known = payload.event in KNOWN
        clear = known and unmistakable(payload)
        # A writer whose first passes are handed out stands in any of them, until it prints a record that is known.
        late = at is None and self._group.left > 0
        slot = _ahead(due, payload, far=clear) if clear or not late else None
        if slot is not None:
            self._step(writer, slot, occurrence, payload)
            return True
        if late:
            due = None
        slot = _instead(due, payload)
        if slot is not None:
            alike(slot, occurrence)
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
        if not edge and self._strays < _LONE and (due is not None or (writer.at is None and self._group.index)):
            # It stands somewhere among passes that are known, or handed out, and prints none of their records; unless
            # it is the only one that still prints.
            return False
        self._strays = 0
        current = self._group.track.current
        made = current if current is not None and continues(current, payload, role) else None
        slot = self._group.append(occurrence, payload, role, made, self._group.track)
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
            if made is None or made not in self._group.held or made.role != begins:
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
            self._group.chain(slot, made)
            return slot
        return None

    def _past_the_last(self, payload: Payload, role: Role | None, due: Slot | None) -> bool:
        """Tell whether a record comes behind all that is printed so far, though its writer left out what is due.

        What is due is then the last of the current pass, and the record goes on with that pass or begins the next.
        """
        current = self._group.track.current
        if current is None or due is None or due.owner is not current or payload.event not in KNOWN:
            return False
        if continues(current, payload, role):
            return True
        return self._group.whole(current) and self._group.form.opens(payload) and role_of(payload, role) is not None

    def _step(self, writer: Writer, slot: Slot, occurrence: Occurrence, payload: Payload) -> None:
        writer.at, writer.position = slot, slot.position
        self._strayed = None
        if slot.payload is not payload and slot.alike is not None:
            key = text_key(payload)
            slot = next((other for other in slot.alike if text_key(other.payload) == key), slot)
        slot.copies += 1
        if self._group.keep:
            slot.others.append(occurrence)


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
