"""One record, many writers: the copies that tensor-parallel ranks print of every record become one.

This module is responsible for :class:`Slot` (a record in the making, with its copies), for :class:`Census` (how many
writers print, found in the first records of a life) and for telling whether two payloads are the same as far as they
can be read. It must not know what a forward pass or a phase is.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from logscope.model import CAPTURE_EVENTS, Record, num_aux

# The order of the records that are no captures within a pass (captures have their layer).
_END, _JOIN = 1 << 30, (1 << 30) + 1
_USABLE = ("whole", "partial")
# So many first values make a record one of a kind.
_TELLING = 3
# A record of serving comes again no later than so many others where writers print in turn; so many writers at most.
_NEAR, _MOST = 64, 64
_DRAFT_RANK = {"forward": 0, "fc": 1, "fc_output": 2}

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from logscope.assembly import Open
    from logscope.model import Occurrence, Payload, Role

    Kind = tuple[str, int | None, int | None]


class Slot:
    """A record of the canonical sequence while its copies arrive.

    ``copies`` counts the writers that printed exactly ``payload``; ``alike`` holds the slots of writers that printed
    something else in the same place (a damaged copy, another value). ``back`` and ``next`` are its neighbours in the
    order every single writer prints. ``key`` is its text when that is one of a kind, ``again``
    whether all writers had printed that text before.
    """

    __slots__ = (
        "again",
        "alike",
        "back",
        "copies",
        "first",
        "home",
        "key",
        "next",
        "others",
        "owner",
        "payload",
        "position",
    )

    def __init__(self, occurrence: Occurrence) -> None:
        self.first = occurrence
        self.payload: Payload = occurrence[3]
        self.copies = 1
        self.others: list[Occurrence] = []
        self.alike: list[Slot] | None = None
        self.home: Slot | None = None
        self.next: Slot | None = None
        self.back: Slot | None = None
        self.owner: Any = None
        self.key: tuple[Any, ...] | None = None
        self.again = False
        self.position = 0

    @property
    def total(self) -> int:
        """How many writers printed it, the differing ones included."""
        if self.alike is None:
            return self.copies
        return self.copies + sum(other.copies for other in self.alike)

    def add_alike(self, other: Slot) -> None:
        """Take another slot as what some writer printed in this place."""
        if self.alike is None:
            self.alike = []
        self.alike.append(other)
        other.home = self
        if other.alike:
            for inner in other.alike:
                inner.home = self
            self.alike.extend(other.alike)
            other.alike = None

    def record(self, *, keep: bool) -> Record:
        """Return the record: what most writers printed, the rest as variants, damaged copies among the others.

        ``keep``: with the places of all copies; else of the damaged ones only.
        """
        if self.alike is None:
            return Record(self.first, self.copies, self.others if keep else [])
        every = [self, *self.alike]
        # A whole copy speaks for the place before a damaged one, then the majority, then the first.
        main = max(every, key=lambda slot: (slot.payload.usable, slot.copies, -slot.first[1]))
        others: list[Occurrence] = list(main.others) if keep else []
        variants: list[Occurrence] = []
        for slot in every:
            payload = slot.payload
            if slot is main:
                continue
            if not payload.usable:
                others += (slot.first, *slot.others)
            elif text_key(payload) == text_key(main.payload):
                # The first print was damaged: these are copies of each other.
                others += (slot.first, *slot.others) if keep else ()
            elif payload.intact == main.payload.intact or not compatible(payload, main.payload):
                variants += (slot.first, *slot.others)
            elif keep:
                others += (slot.first, *slot.others)
        others.sort(key=lambda occurrence: occurrence[1])
        variants.sort(key=lambda occurrence: occurrence[1])
        return Record(main.first, self.total, others, variants)


def alike(home: Slot, occurrence: Occurrence) -> Slot:
    """Take a record as what some writer printed in the place of another one, and return its slot."""
    other = Slot(occurrence)
    other.owner = home.owner
    home.add_alike(other)
    return other


def kind_of(payload: Payload) -> Kind:
    """Return what kind of record it is: the event, its layer, and how many states an ``aux_concat`` joined."""
    return (payload.event, payload.layer, num_aux(payload) if payload.event == "aux_concat" else None)


def text_key(payload: Payload) -> tuple[Any, ...]:
    """Return what makes two payloads the same print; nan is the same print as nan."""
    norm: Any = payload.norm
    head: Any = payload.head
    if norm is not None and norm != norm:  # only nan differs from itself
        norm = "nan"
    # A sum is nan only when a value is, or two are infinite.
    if head is not None and (total := sum(head)) != total and any(value != value for value in head):
        head = tuple(map(str, head))
    return (payload.event, payload.site, payload.layer, payload.shape, norm, head, payload.mode, num_aux(payload))


def unmistakable(payload: Payload) -> bool:
    """Tell whether its values make it one of a kind: a finite norm that is not zero, or such first values.

    Records without values, and nan or all-zero ones, are printed again word for word by later passes. A joined state
    with a nan in a later part has a norm of nan, and first values like no other.
    """
    if payload.intact not in _USABLE:
        return False
    # x - x is 0 for every finite x.
    norm, head = payload.norm, payload.head
    if norm is not None and norm != 0.0 and norm - norm == 0.0:
        return True
    return norm != 0.0 and head is not None and sum(value != 0.0 and value - value == 0.0 for value in head) >= _TELLING


def compatible(one: Payload, other: Payload) -> bool:
    """Tell whether two payloads can be the same record as far as both can be read."""
    if one.event != other.event or one.site != other.site or one.layer != other.layer:
        return False
    if one.shape is not None and other.shape is not None and one.shape != other.shape:
        return False
    if one.norm is not None and other.norm is not None and not _same(one.norm, other.norm):
        return False
    if one.head and other.head:
        return all(_same(a, b) for a, b in zip(one.head, other.head, strict=False))
    return True


def near(one: Payload, other: Payload) -> bool:
    """Tell whether two payloads differ only by noise: the same shape, norm and head within one per cent."""
    if one.shape != other.shape or one.norm is None or other.norm is None:
        return False
    if abs(one.norm - other.norm) > 0.01 * max(abs(one.norm), abs(other.norm)):
        return False
    if one.head and other.head:
        size = max(map(abs, (*one.head, *other.head)))
        return all(abs(a - b) <= 0.01 * size for a, b in zip(one.head, other.head, strict=False))
    return True


def _same(one: float, other: float) -> bool:
    return one == other or (one != one and other != other)  # nan is the same print as nan


class Form:
    """How the passes of a log are printed: which kinds of records usually begin and end them.

    Read from how often each kind occurs; a kind that is not half as frequent as the others of its role is not usual.
    Kinds have a rank: their order within a pass. None: no such pass is printed.
    """

    __slots__ = ("_first", "_last", "ended", "fc", "forwards", "joins", "layers", "outputs")

    def __init__(self, kinds: Counter[Kind]) -> None:
        target: Counter[int] = Counter()
        draft: Counter[int] = Counter()
        for (event, layer, joined), count in kinds.items():
            if event in CAPTURE_EVENTS:
                if layer is not None:
                    target[layer] += count
            elif event == "forward_end":
                target[_END] += count
            elif event == "aux_concat" and joined != 1:
                target[_JOIN] += count
            elif event in _DRAFT_RANK:
                draft[_DRAFT_RANK[event]] += count
        outputs = kinds["aux_concat", None, 1]
        forwards = draft[0]
        if outputs and len([rank for rank in target if rank < _END]) == 1 and outputs > 1.25 * forwards:
            # One captured layer: what the target joins is one state too.
            target[_JOIN] += outputs - forwards
            outputs = forwards
        draft[_JOIN] += outputs
        common = {"target": _usual(target), "draft": _usual(draft)}
        self._first = {role: ranks[0] if ranks else None for role, ranks in common.items()}
        self._last = {role: ranks[-1] if ranks else None for role, ranks in common.items()}
        self.layers = [rank for rank in common["target"] if rank < _END]
        self.ended = _END in common["target"]
        self.joins = _JOIN in common["target"]
        self.outputs = _JOIN in common["draft"]
        self.forwards = _DRAFT_RANK["forward"] in common["draft"]
        self.fc = any(draft[rank] for rank in (1, 2))

    @staticmethod
    def rank(payload: Payload) -> int | None:
        """Return where in a pass a kind of record stands; None for one that has no place of its own."""
        event = payload.event
        if event in CAPTURE_EVENTS:
            return payload.layer
        if event == "forward_end":
            return _END
        return _JOIN if event == "aux_concat" else _DRAFT_RANK.get(event)

    def begins(self, role: Role, rank: int | None) -> bool:
        """Tell whether a pass that begins with a kind of this rank has its usual beginning."""
        first = self._first[role]
        return first is None or (rank is not None and rank <= first)

    def ends(self, role: Role, rank: int | None) -> bool:
        """Tell whether a pass that has come to a kind of this rank has reached its usual end."""
        last = self._last[role]
        return last is None or (rank is not None and rank >= last)

    def opens(self, payload: Payload) -> bool:
        """Tell whether a record is of the kind that usually begins a pass."""
        rank = self.rank(payload)
        if rank is None:
            return False
        role = "draft" if payload.event in _DRAFT_RANK else "target"
        return rank == self._first[role]

    def inner(self, kind: Kind) -> bool:
        """Tell whether a kind is usually followed by another one of its own pass."""
        event, layer, _ = kind
        if event in CAPTURE_EVENTS or event == "forward_end":
            last = self._last["target"]
            return last is not None and (_END if event == "forward_end" else (layer or 0)) < last
        last = self._last["draft"]
        return event in _DRAFT_RANK and last == _JOIN

    def breaks_off(self, last: Kind, here: Kind, *, same: bool) -> bool:
        """Tell whether one writer cannot print two kinds one after the other: a pass would begin inside another.

        Within a target pass only a later layer, ``forward_end`` or the joined state may follow, within a draft pass
        only ``fc`` and its output, with the ``same`` rows.
        """
        event, layer, _ = last
        after, later, joined = here
        known = after in CAPTURE_EVENTS or after in _DRAFT_RANK or after in ("forward_end", "aux_concat")
        if not known or not self.inner(last):
            return False
        if event in CAPTURE_EVENTS:
            if after in CAPTURE_EVENTS:
                return (later or 0) <= (layer or 0) or not same
            return after not in ("forward_end", "aux_concat")
        if event == "forward_end":
            return after != "aux_concat"
        return after not in ("fc_output", "fc", "aux_concat") or joined not in (None, 1)

    def due(self, made: Open, payload: Payload, *, clear: bool = False) -> bool:
        """Tell whether a pass has everything that is usually printed before a record of it; more is no matter.

        A record that is ``clear`` (one of a kind) may come before a ``forward_end``, whose copies are found late.
        """
        event = payload.event
        if event in CAPTURE_EVENTS:
            before = [layer for layer in self.layers if payload.layer is not None and layer < payload.layer]
            return not before or made.last_layer >= before[-1]
        cut = made.index == 0 and made.captures == 0  # The log begins in it, behind its captures.
        complete = cut or not self.layers or made.last_layer >= self.layers[-1]
        if event == "forward_end":
            return complete
        if event == "aux_concat" and made.role == "target":
            return complete and (clear or made.ended or not self.ended)
        if event == "aux_concat":
            return clear or made.fc or not made.wide or not self.fc
        return True


def _usual(ranks: Counter[int]) -> list[int]:
    most = max(ranks.values(), default=0)
    return sorted(rank for rank, count in ranks.items() if count and 2 * count >= most)


class Census:
    """Counts who prints: the first debug records of a life, before any of them is interpreted.

    The records of one unmarked group (no rank in the prefix) are looked at until it is clear how many writers there
    are, at most :attr:`LIMIT` of them. Those of a start-up tell less: the dummy passes of graph capture are printed
    twice by each writer, and the warm-up requests of two schedulers are the same.
    """

    LIMIT = 16384
    FIRST = 128

    def __init__(self, tp_size: int | None = None) -> None:
        self.tp_size = tp_size
        self.records = 0
        self.serving = 0
        self.kinds: Counter[Kind] = Counter()
        self._pairs: Counter[tuple[Kind, Kind, bool]] = Counter()
        self._copies: dict[tuple[Any, ...], int] = {}
        self._vague: Counter[tuple[Any, ...]] = Counter()
        self._early: Counter[tuple[Any, ...]] = Counter()
        self._belated: dict[tuple[Any, ...], int] = {}  # printed before "ready" too: by writers ahead, or a warm-up
        self._at: dict[tuple[Any, ...], int] = {}  # where each was printed last
        self._near = self._far = 0  # printed again a little later, or long after
        self._runs: Counter[int] = Counter()
        self._run: tuple[tuple[Any, ...] | None, int] = (None, 0)
        self.most_open = 0
        self._last: tuple[Kind, int | None] | None = None
        self._next = self.FIRST
        self._usual: int | None = None

    def add(self, payload: Payload, *, counts: bool) -> bool:
        """Count a record (``counts``: of serving); tell whether enough was seen."""
        self.records += 1
        kind = kind_of(payload)
        self.kinds[kind] += 1
        if payload.event == "forward":
            ends = self.kinds["aux_concat", None, 1] + self.kinds["aux_concat", None, None]
            self.most_open = max(self.most_open, self.kinds[kind] - ends)
        if self._last is not None:
            last, rows = self._last
            self._pairs[last, kind, rows == payload.rows] += 1
        self._last = (kind, payload.rows)
        key = text_key(payload)
        if counts:
            self.serving += 1
            if not unmistakable(payload):
                self._vague[key] += 1
            elif key in self._early:
                self._belated[key] = self._belated.get(key, self._early[key]) + 1
            else:
                self._copies[key] = self._copies.get(key, 0) + 1
                at = self._at.get(key)
                if at is not None:
                    near = self.serving - at <= _NEAR
                    self._near += near
                    self._far += not near
                self._at[key] = self.serving
            before, length = self._run
            if key != before:
                self._runs[length] += 1
                length = 0
            self._run = (key, length + 1)
        else:
            self._early[key] += 1
        if self.serving >= self._next or self.records >= self.LIMIT:
            self._next *= 2
            return self.records >= self.LIMIT or self._clear()
        return False

    def add_marked(self, payload: Payload, names: Mapping[Any, int]) -> bool:
        """Count a record of a writer that its prefix names; tell whether all writers have been heard."""
        self.records += 1
        self.kinds[kind_of(payload)] += 1
        if self.records < self._next:
            return self.records >= self.LIMIT
        self._next *= 2
        heard = len(names)
        before, self._usual = self._usual, heard
        if heard == self.tp_size or self.records >= self.LIMIT:
            return True
        # Ranks that print in bursts are heard late; where one alone prints, none is waited for.
        awaited = 1 < heard < (self.tp_size or 0) and self.records < 8 * self.FIRST
        return before == heard and min(names.values()) >= 8 and not awaited

    @property
    def texts(self) -> Collection[tuple[Any, ...]]:
        """The records of serving that are one of a kind."""
        return self._copies.keys()

    @property
    def shared(self) -> frozenset[Kind]:
        """The kinds of records that all writers seem to print: each stands there about as often as any other."""
        counts: dict[Kind, list[int]] = {}
        for (event, _, layer, *_, joined), times in self._copies.items():
            counts.setdefault((event, layer, joined if event == "aux_concat" else None), []).append(times)
        usual = {kind: sum(times) / len(times) for kind, times in counts.items()}
        return frozenset(kind for kind, times in usual.items() if 2 * times >= max(usual.values()))

    def schedulers(self, writers: int | None, dp_size: int | None) -> int:
        """Return how many schedulers print without a mark: more passes are unfinished at a time than one can have."""
        if writers != 1 or not self.tangled:
            return 1
        if dp_size is not None and dp_size > 1:
            return dp_size
        return min(self.most_open, 8) if self.breaks >= 0.05 * self.records else 1

    @property
    def tangled(self) -> bool:
        """Whether passes seem to begin inside others, and to go on there: several schedulers, or a damaged log."""
        return self.most_open >= 2 and not self.one_voice

    @property
    def breaks(self) -> int:
        """How often a record cannot be one writer's next: a pass would begin inside another."""
        form = Form(self.kinds)
        return sum(count for (last, here, same), count in self._pairs.items() if form.breaks_off(last, here, same=same))

    @property
    def one_voice(self) -> bool:
        """Whether the records follow each other as one writer prints them, but for a little damage."""
        form = Form(self.kinds)
        inner = len(self.kinds) > 1 and any(map(form.inner, self.kinds))
        return inner and self.breaks <= 1 + self.records // 200 and not self.in_turn

    @property
    def in_turn(self) -> bool:
        """Whether several writers print in turn, each a whole pass or more: what one prints comes again soon after."""
        old = self._old()
        if len(old) < 2 or self._near < 4 * self._far:
            return False
        if (self.tp_size or 1) > 1:
            # Some kinds of records may be one rank's alone.
            return 5 * old.count(self.tp_size or 1) >= len(old)
        usual, times = Counter(old).most_common(1)[0]
        return 1 < usual <= _MOST and len(old) >= 16 and times >= 0.8 * len(old)

    def _old(self) -> list[int]:
        """How often the oldest of the distinct records were printed: every writer has passed them, it is hoped."""
        counts = list(self._copies.values())
        return counts[: max(1, len(counts) // 4)]

    def _clear(self) -> bool:
        """Tell whether the count no longer moves: the same at two looks, the second over twice as many records."""
        old = self._old()
        before = self._usual
        if self.tangled and self.records < 8 * self.FIRST:
            return False  # A warm-up, or long bursts, make several schedulers look like one with damage.
        if not old and not self._belated and self.records >= 4 * self.FIRST:
            return True
        usual, times = Counter(old).most_common(1)[0] if old else (0, 0)
        self._usual = usual if len(old) >= 8 and times >= 0.8 * len(old) else None
        if self.one_voice and (usual <= 1 or self.breaks == 0):
            return True
        if self._usual is None:
            return False
        if self._usual == self.tp_size:
            return True
        if any(count > usual and count % usual for count in self._belated.values()):
            return False  # Some writers have not come to what is served.
        return before == self._usual and (self.tp_size is None or self._usual > self.tp_size)

    def _by_runs(self, tp_size: int | None) -> tuple[int | None, str]:
        """Count the writers of records that are printed word for word again and again: by how many stand in a row."""
        if self.one_voice:
            return 1, f"{self.records} records follow each other as one writer prints them"
        weight = Counter({length: length * times for length, times in self._runs.items()})
        usual, _ = weight.most_common(1)[0] if weight else (1, 1)
        if tp_size is not None and tp_size > 1:
            return tp_size, f"tp_size in server_args; the same record stands {usual} times in a row"
        return usual, f"the same record stands {usual} times in a row"

    def writers(self, tp_size: int | None) -> tuple[int | None, str]:
        """Return how many writers print every record, None when that cannot be told, and the evidence in words."""
        clear = self._copies or (self._belated if tp_size != 1 else {})
        counts: Mapping[Any, int] = clear or self._vague or self._early
        if not clear and self._vague and self.records >= 64:
            return self._by_runs(tp_size)
        if not counts:
            return (None, "no record outside graph capture") if tp_size is None else (tp_size, "tp_size in server_args")
        weight: Counter[int] = Counter()
        old = self._old() if len(self._copies) >= 64 else list(counts.values())
        for number in old:
            weight[number] += number
        usual, _ = max(weight.items(), key=lambda item: (item[1], item[0]))
        times = sum(1 for number in old if number == usual)
        several = tp_size is not None and tp_size > 1
        if several and self.breaks and usual % (tp_size or 1) == 0:
            return tp_size, f"tp_size in server_args; {times} of {len(old)} records stand there {usual} times"
        if self.one_voice and (usual == 1 or self.breaks == 0):
            said = f"; tp_size is {tp_size}, so one rank prints" if several else ""
            return 1, f"{self.records} records follow each other as one writer prints them{said}"
        if tp_size == 1 and usual == 1:
            return 1, "tp_size in server_args, and no record stands there twice"
        if several and tp_size is not None and tp_size / 2 < usual <= tp_size:
            return tp_size, f"tp_size in server_args; {times} of {len(old)} records stand there {usual} times"
        if len(counts) < 2 and usual != tp_size:
            return None, f"one distinct record ({usual} times): too few to count writers"
        said = f"; tp_size is {tp_size}" if tp_size is not None and tp_size != usual else ""
        return usual, f"{times} of {len(old)} distinct records stand there {usual} times{said}"
