"""Forward passes in the making: which records of one scheduler belong to the same forward.

This module is responsible for :class:`Open`, a pass while its records arrive, and for :func:`continues`, the order in
which one forward prints. It must not know how copies are collapsed, nor how a phase is found.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from logscope.copies import Form
from logscope.model import CAPTURE_EVENTS, num_aux

if TYPE_CHECKING:
    from logscope.copies import Slot
    from logscope.model import During, Evidence, Payload, Phase, Role

MODEL_EVENTS = frozenset({"forward_end", "forward", "fc_output", "fc"})
_FC = frozenset({"fc_output", "fc"})
# The records whose place in a forward is known; any other label may be printed anywhere, between two forwards too.
KNOWN = CAPTURE_EVENTS | MODEL_EVENTS | {"aux_concat"}


@dataclass(slots=True, eq=False, repr=False)
class Open:
    """A pass while its records arrive: what was printed, and what it is known to be.

    back, next
        the passes of the same scheduler before and after it, None where the file, the segment or a graph capture cuts
        them off.
    region, first_run, rerun, fresh
        what was being captured into a graph, None outside; the dummy pass that is run again in it, and the one in which
        it is run again; whether it is the first that is served after a start-up.
    setting
        draft steps and draft tokens, where adaptive drafting had changed them before it began.
    first_rank, last_rank
        the kinds it begins and ends with (:meth:`logscope.copies.Form.rank`).
    closed, decided, done
        no new record comes any more (the next pass has begun); it has its label; no copy is taken any more either.
    apart
        the writers did not all stand at its end when the next pass began.
    blurred, told, doubted
        its place among the others is in doubt; what a tangle of schedulers says of it (phase, certain); some copy of
        its ``forward_end`` may be another pass's.
    round, by_round
        the round of a scheduler it belongs to (rounds.py); whether its place there is all that tells its phase.
    """

    group: Any
    role: Role
    index: int
    offset: int = -1
    segment: Any = None
    time: str | None = None
    slots: list[Slot] = field(default_factory=list)
    back: Open | None = None
    next: Open | None = None
    region: str | None = None
    first_run: Open | None = None
    rerun: Open | None = None
    fresh: bool = False
    setting: tuple[int, int] | None = None
    during: During = "serving"
    phase: Phase = "unknown"
    evidence: Evidence = "none"
    reason: str | None = None
    complete: bool = True
    expected: int | None = None
    closed: bool = False
    decided: bool = False
    done: bool = False
    apart: bool = False
    blurred: bool = False
    doubted: bool = False
    told: tuple[Phase, bool] | None = None
    round: Any = None
    by_round: bool = False
    printed: Phase | None = None
    site: str | None = None
    rows: int | None = None
    captures: int = 0
    last_layer: int = -1
    first_rank: int | None = None
    last_rank: int | None = None
    ended: bool = False
    fc: bool = False
    input: Payload | None = None
    join: Payload | None = None
    tail: Slot | None = None
    end: Slot | None = None
    joined: Slot | None = None

    @property
    def wide(self) -> bool | None:
        """Whether a draft pass read more than one state a row; None when its records do not tell."""
        if self.fc:
            return True
        source = self.input
        if source is None or source.width is None:
            return None
        wide = reads_wide(source)
        if wide is None and self.join is not None and self.join.width:
            return source.width > self.join.width
        return wide

    def add(self, slot: Slot, payload: Payload, at: int | None = None) -> None:
        """Take a record: at the end, or, when it is found late, in its place."""
        event = payload.event
        slot.owner = self
        late = at is not None
        self.slots.insert(len(self.slots) if at is None else at, slot)
        if event in CAPTURE_EVENTS:
            self.captures += 1
            if payload.layer is None or payload.layer > self.last_layer:
                self.tail = slot
                self.last_layer = self.last_layer if payload.layer is None else payload.layer
            if self.site is None:
                self.site = payload.site
        elif event == "forward_end":
            self.ended = True
            self.end = slot
        elif event == "aux_concat":
            self.join = payload
            self.joined = slot
        elif event == "forward":
            self.input = payload
        elif event in _FC:
            self.fc = True
        if self.rows is None and event in KNOWN and (event != "aux_concat" or self.role == "target"):
            self.rows = payload.rows
        rank = Form.rank(payload)
        if rank is not None:
            if self.first_rank is None or at == 0:
                self.first_rank = rank
            if not late or self.last_rank is None or rank > self.last_rank:
                self.last_rank = rank

    @property
    def has_all_joined(self) -> bool:
        """Whether a target pass has as many captures as it says it joined: it is whole from its beginning on."""
        last = self.joined or self.end
        return self.role == "target" and last is not None and num_aux(last.payload) == self.captures > 0

    def has(self, event: str) -> bool:
        """Tell whether a record of this event is in it."""
        return any(slot.payload.event == event for slot in self.slots)


def reads_wide(payload: Payload) -> bool | None:
    """Tell whether a draft's input has more than one state a row; None when it does not print both widths."""
    embeds = payload.fields.get("embeds")
    if payload.width is not None and isinstance(embeds, list) and embeds and isinstance(embeds[-1], int):
        return payload.width > embeds[-1]
    return None


def continues(current: Open, payload: Payload, role: Role | None) -> bool:
    """Tell whether a record goes on with a pass: the order in which one forward prints its records.

    Target: captures with rising layers, ``forward_end``, ``aux_concat``. Draft: ``forward``, ``fc``/``fc_output``,
    ``aux_concat`` with one state. All model records of a pass have the same rows. ``role`` is the record's own, or the
    one its site is known for.
    """
    event = payload.event
    if current.join is not None:
        # Only records of the logits processor, or of nobody known, still belong to a pass that was joined.
        return event not in CAPTURE_EVENTS and event not in MODEL_EVENTS and event != "aux_concat" and role is None
    rows = payload.rows
    if event in CAPTURE_EVENTS:
        return (
            current.role == "target"
            and not current.ended
            and (payload.layer is None or payload.layer > current.last_layer)
            and (rows is None or current.rows is None or rows == current.rows)
            and (current.site is None or payload.site == current.site)
        )
    if event == "aux_concat":
        joined = num_aux(payload)
        if rows is not None and current.rows is not None and rows > current.rows:
            return False
        if current.role == "draft":
            return joined is None or joined == 1
        return joined is None or joined > 1 or current.captures <= 1
    if event == "forward_end":
        return (
            current.role == "target"
            and not current.ended
            and (rows is None or current.rows is None or rows == current.rows)
        )
    if event == "forward":
        return current.role == "draft" and current.input is None and not current.fc and current.first_rank is None
    if event in _FC:
        return (
            current.role == "draft"
            and current.wide is not False
            and not current.has(event)
            and (rows is None or current.rows is None or rows == current.rows)
        )
    return role is None or role == current.role


def role_of(payload: Payload, role: Role | None) -> Role | None:
    """Return the role of the pass a record begins; None when it can begin none.

    An ``aux_concat`` without a model record before it is the target's when it joins several states, else the draft's.
    A record of an unknown label begins none: it tells neither that a forward has begun, nor how many rows it has.
    """
    if payload.event == "aux_concat":
        joined = num_aux(payload)
        return "target" if joined is not None and joined > 1 else "draft"
    return role if payload.event in KNOWN else None


def gap(made: Open, payload: Payload) -> int | None:
    """Return where in a pass a record belongs that is found late; None when the pass has no gap for it.

    A gap is a kind of record that usually stands before one that is there, with the rows of the pass.
    """
    rank, last = Form.rank(payload), made.last_rank
    draft = payload.event in _FC or payload.event == "forward"
    if rank is None or last is None or rank >= last or (made.role == "draft") is not draft:
        return None
    ranks = [Form.rank(slot.payload) for slot in made.slots]
    if rank in ranks or not _rows_fit(made, payload):
        return None
    return next(at for at, other in enumerate(ranks) if other is not None and other > rank)


def _rows_fit(made: Open, payload: Payload) -> bool:
    """Tell whether a pass can have the rows of a record: its own, or, where none is printed, those around it."""
    rows = payload.rows
    if made.rows is not None:
        return rows == made.rows and not (payload.event in _FC and made.wide is False)
    kept, back = made.join.rows if made.join is not None else None, made.back
    if rows is None or kept is None:
        return False
    if payload.event == "forward" and reads_wide(payload) is False:
        return kept == rows and (back is None or back.role == "draft")
    return kept <= rows and back is not None and back.role == "target" and back.rows == rows


def reads_join(payload: Payload, target: Open) -> bool:
    """Tell whether a draft's input is the joined state of a target pass: the same rows, norm and head."""
    join = target.join
    return (
        join is not None
        and payload.shape == join.shape
        and payload.head is not None
        and join.head is not None
        and payload.norm is not None
        and join.norm is not None
        and abs(payload.norm - join.norm) <= payload.norm_resolution + join.norm_resolution
        and all(abs(a - b) <= 1e-3 * abs(a) + 5e-5 for a, b in zip(payload.head, join.head, strict=False))
    )
