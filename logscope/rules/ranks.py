"""Rules about ranks: tensor-parallel writers print the same records, so what differs between copies is a fault.

This module is responsible for S103 and R101, inside one file (copies of one record; what each marked rank prints at
all) and across files (each rank's prints in a file of its own). It must not know what the values mean.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, NamedTuple

from logscope.model import CAPTURE_EVENTS, Finding, Place, states
from logscope.queries.lineage import same_head, same_norm
from logscope.queries.words import and_list, count, layer_name, percent
from logscope.rules.base import Checked, Onset, Rule, pass_name, register

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logscope.model import ForwardPass, Occurrence, Payload, Record, Segment, ServerEvent, Severity
    from logscope.rules.base import Scene, View

# Below this two ranks may differ by the order in which they add numbers up (the largest noise of two equal runs).
_NOISE = 2e-4
# Passes two files must share, and the share of them that must have the same form, before they are ranks of one run.
_LEAST_COMMON = 3
_SAME_FORM = 0.95
_MARKED_OR_EQUAL = 0.5
# A record that one writer never prints: so many passes, and more than half of them.
_LEAST_MISSING = 3
# Passes without a copy of every writer behind the last one that had them, before a writer has stopped printing.
_LASTING = 16
# Passes that only a few writers print: so many, and more than half as many as the common ones.
_LEAST_ALONE = 6
# Passes on each side in which a differing copy is looked for before it is called one: what another pass prints is that
# pass's record, put into this one because its writer was ahead or behind.
_AROUND = 16
# Records that a rank is behind the others before it is called silent: more than a buffer of one process holds.
_SILENT = 128
# Lines that are remembered to say where a rank began to be behind.
_BEHIND = 4096
# So many prints of a kind between two looks at which of those lines every rank has passed.
_PRUNED = 64
# Records of a rank that are counted by their kind: what a join is, target or draft, only its pass tells.
_COUNTED = frozenset({"embed_capture", "layer_capture", "forward_end", "forward", "fc_output"})
_TARGETS = CAPTURE_EVENTS | {"forward_end"}
_NEEDS = "several copies of one record: ranks that print to one file, or one file for each rank"


class _Copies(Rule):
    """What the rules of this module share: the differing copies of a pass, without those that are another pass's."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._waiting: dict[tuple[Any, ...], deque[View]] = {}
        self._passed: dict[tuple[Any, ...], deque[View]] = {}
        # Passes that were judged before their turn, by group and number.
        self._judged: set[tuple[tuple[Any, ...], int]] = set()

    def see(self, view: View) -> None:
        """Take one pass; it is judged when the passes behind it are known."""
        if view.item.during == "graph_capture":
            return
        waiting = self._waiting.setdefault(view.item.group, deque())
        waiting.append(view)
        if len(waiting) > _AROUND:
            self._next(view.item.group)

    def _next(self, group: tuple[Any, ...]) -> None:
        waiting, passed = self._waiting[group], self._passed.setdefault(group, deque(maxlen=_AROUND))
        view = waiting.popleft()
        records = [record for record in view.item.records if record.copies > 1 and record.payload.usable]
        key = (group, view.item.number)
        if key in self._judged:
            self._judged.remove(key)
        elif records and view.told_apart and not view.edge:
            self.looked += 1
            differing = [(record, other) for record in records for other in record.variants if other[3].usable]
            if differing:
                around = {
                    _value(one[3])
                    for close in (*passed, *waiting)
                    for record in close.item.records
                    for one in _printed(record)
                }
                differing = [pair for pair in differing if _value(pair[1][3]) not in around]
            self.judge(view.item, differing)
        passed.append(view)

    def judge(self, item: ForwardPass, differing: list[tuple[Record, Occurrence]]) -> None:
        """Take one pass and its (record, differing copy) pairs."""
        raise NotImplementedError

    def settle(self) -> None:
        """Judge what waits: nothing more comes, or an answer is wanted now."""
        for group, waiting in self._waiting.items():
            while waiting:
                self._next(group)

    def checked(self) -> Checked:
        """Return the passes with copies to compare."""
        self.settle()
        return Checked(self.looked)


@register("S103", "rank-shape", "error", group="ranks", needs=_NEEDS)
class RankShape(_Copies):
    """Writers of one pass disagree on a shape."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._onset = Onset()

    def judge(self, item: ForwardPass, differing: list[tuple[Record, Occurrence]]) -> None:
        """Compare the shapes of the copies of every record of one pass."""
        for record, other in differing:
            shape = other[3].shape
            if shape is not None and shape != record.payload.shape:
                self._onset.fault(item, record, (record, other[0], shape))
                return
        self._onset.good(item)

    def findings(self) -> Iterator[Finding]:
        """Answer with the first disagreement."""
        self.settle()
        if self._onset and self._onset.first is not None:
            record, line, shape = self._onset.detail
            hidden = self.scene.hidden
            yield self.finding(
                f"Ranks of one {pass_name(self._onset.first)} disagree on the shape of its"
                f" {record.payload.event.replace('_', ' ')}.",
                Place(self._onset.first.file, line),
                onset=self._onset,
                expected=shape_words(record.payload.shape, hidden),
                actual=shape_words(shape, hidden),
                evidence=f"lines {record.line} and {line}; {self._onset.words}",
                help="a tensor is sharded, sliced or padded on one rank only",
            )


def shape_words(shape: tuple[int, ...] | None, hidden: int | None) -> str:
    """Return ``4 rows, 3 x 7168 = 21504`` for a shape."""
    if not shape:
        return "no shape"
    rows = f"{count(shape[0], 'row')}, " if len(shape) > 1 else ""
    return rows + states(shape[-1], hidden)


def disagreement(one: Payload, other: Payload) -> str | None:
    """Return in words how two copies of one record differ in value, None when they agree at the coarser print."""
    parts = []
    if same_norm(one, other) is False:
        parts.append(f"norm {one.norm} against {other.norm}")
    if same_head(one, other) is False and one.head and other.head:
        parts.append("first values differ" if parts else f"first values {one.head[0]:.6g} against {other.head[0]:.6g}")
    if one.mode != other.mode:
        parts.append(f"mode {one.mode} against {other.mode}")
    residual = [payload.fields.get("residual_is_none") for payload in (one, other)]
    if residual[0] != residual[1] and None not in residual:
        parts.append(f"residual_is_none={residual[0]} against {residual[1]}")
    return "; ".join(parts) or None


def _is_noise(one: Payload, other: Payload) -> bool:
    """Return whether two copies differ by no more than rounding: norms within 2e-4, first values within 1 %."""
    if one.norm is None or other.norm is None or not one.finite or not other.finite or one.mode != other.mode:
        return False
    if abs(one.norm - other.norm) > _NOISE * abs(one.norm):
        return False
    pairs = list(zip(one.head or (), other.head or (), strict=False))
    size = max((abs(value) for pair in pairs for value in pair), default=0.0)
    return all(abs(a - b) <= 0.01 * size for a, b in pairs)


class _Kind:
    """How often each rank printed one kind of record, and where the others printed what one of them lacks."""

    __slots__ = ("counts", "last", "lines", "top")

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.last: dict[int, int] = {}
        self.lines: deque[tuple[int, int]] = deque()
        self.top = 0

    def take(self, rank: int, line: int, ranks: set[int]) -> None:
        """Count one print of a rank."""
        self.counts[rank] += 1
        self.last[rank] = line
        if self.counts[rank] <= self.top:
            return
        self.top = self.counts[rank]
        if self.top % _PRUNED == 0:
            least = min(self.counts[one] for one in ranks)
            while self.lines and self.lines[0][0] <= least:
                self.lines.popleft()
        if len(self.lines) < _BEHIND:
            self.lines.append((self.top, line))

    def behind(self, rank: int) -> int:
        """Return how many a rank lacks of what another one printed."""
        return self.top - self.counts[rank]

    def since(self, rank: int) -> int | None:
        """Return the line at which another rank printed the first one that this rank lacks."""
        return next((line for number, line in self.lines if number > self.counts[rank]), None)


class _Absence(NamedTuple):
    """A rank that lacks one kind of record (None: every kind) that the others print."""

    rank: int
    kind: tuple[str, int | None] | None
    line: int
    last: int | None
    lacking: int
    of: int
    ranks: int


class _Marked:
    """What each rank of one scheduler prints, by its mark: no record has to be put into a pass for that."""

    def __init__(self) -> None:
        self.kinds: dict[tuple[str, int | None], _Kind] = {}
        self.ranks: set[int] = set()

    def take(self, occurrence: Occurrence) -> None:
        """Count one print."""
        line, _, prefix, payload = occurrence
        if prefix.tp_rank is None or payload.event not in _COUNTED:
            return
        self.ranks.add(prefix.tp_rank)
        kind = self.kinds.setdefault((payload.event, payload.layer), _Kind())
        kind.take(prefix.tp_rank, line, self.ranks)

    def absences(self) -> Iterator[_Absence]:
        """Yield the ranks that went silent, else those that lack one kind while they print the rest."""
        for rank in sorted(self.ranks):
            lacking = {key: kind.behind(rank) for key, kind in self.kinds.items()}
            if all(lacking.values()) and sum(lacking.values()) >= _SILENT:
                lines = [line for kind in self.kinds.values() if (line := kind.since(rank)) is not None]
                last = max(kind.last.get(rank, 0) for kind in self.kinds.values())
                every = sum(kind.top for kind in self.kinds.values())
                if lines and self._few(None):
                    yield _Absence(
                        rank, None, max(last, min(lines)), last, sum(lacking.values()), every, len(self.ranks)
                    )
                continue
            usual = min((number for (event, _), number in lacking.items() if event in _TARGETS), default=0)
            for key, kind in self.kinds.items():
                line = kind.since(rank)
                if key[0] in CAPTURE_EVENTS and lacking[key] - usual >= _LEAST_MISSING and line and self._few(key):
                    yield _Absence(
                        rank, key, line, kind.last.get(rank), lacking[key] - usual, kind.top - usual, len(self.ranks)
                    )

    def _few(self, key: tuple[str, int | None] | None) -> bool:
        """Return whether the ranks that are behind are no more than the others: else nothing says who is right."""
        kinds = self.kinds.values() if key is None else [self.kinds[key]]
        behind = sum(all(kind.behind(rank) >= _LEAST_MISSING for kind in kinds) for rank in self.ranks)
        return 2 * behind <= len(self.ranks)


class _Missing:
    """Passes in which one kind of record has fewer copies than writers; ``waiting``: those since the last full one."""

    __slots__ = ("full", "onset", "waiting")

    def __init__(self) -> None:
        self.onset = Onset()
        self.full: ForwardPass | None = None
        self.waiting: list[tuple[ForwardPass, Record]] = []

    def lasting(self) -> Onset | None:
        """Return since when copies are missing, None when they are not missing throughout, or from some pass on.

        A copy that is missing now and then may stand in another pass, whose writers are ahead or behind.
        """
        onset = self.onset
        if len(self.waiting) >= (_LEAST_MISSING if self.full is None else _LASTING):
            since = Onset(onset.seen, self.full)
            for late, one in self.waiting:
                since.fault(late, one, (one.copies, late.expected_copies or one.copies))
            return since
        return onset if onset.bad >= _LEAST_MISSING and onset.bad * 2 > onset.seen else None


@register("R101", "rank-disagreement", "error", group="ranks", needs=_NEEDS)
class RankDisagreement(_Copies):
    """Copies of one record differ between writers, or one writer never prints it."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._values = Onset()
        self._noise = Onset()
        self._missing: dict[tuple[str, str, int | None], _Missing] = {}
        self._part: dict[tuple[Any, ...], ForwardPass] = {}
        self._before: dict[tuple[Any, ...], ForwardPass] = {}
        # By role: what one rank prints under a condition (the draft's lines, say) is not compared with the rest.
        self._few: dict[str, Onset] = {}
        self._marked: dict[tuple[Any, ...], _Marked] = {}
        self._all_kept = True

    def server(self, event: ServerEvent) -> None:
        """Count a print that belongs to no pass, since its rank is behind the others."""
        if event.during != "graph_capture" and event.payload.event in _COUNTED:
            self._mark(event.occurrence)

    def _mark(self, occurrence: Occurrence) -> None:
        prefix = occurrence[2]
        if prefix.tp_rank is not None:
            group = (prefix.origin, prefix.dp_rank, prefix.pp_rank)
            self._marked.setdefault(group, _Marked()).take(occurrence)

    def see(self, view: View) -> None:
        """Take one pass: count its copies, and compare them when the passes behind it are known."""
        super().see(view)
        item = view.item
        if item.during != "graph_capture" and item.records[0].first[2].tp_rank is not None:
            for record in item.records:
                places = (record.first, *record.others, *record.variants)
                self._all_kept = self._all_kept and len(places) >= record.copies
                for occurrence in places:
                    self._mark(occurrence)
        expected = item.expected_copies or 1
        if expected > 1 and item.during != "graph_capture" and item.complete and not view.edge:
            self._split(item, expected)
        if expected > 1 and view.clean and not view.edge and item.during != "graph_capture":
            if not self._apart(item, expected):
                self._count(item, expected)
            self._before[item.group] = item

    def judge(self, item: ForwardPass, differing: list[tuple[Record, Occurrence]]) -> None:
        """Compare the values of the copies of every record of one pass."""
        value: tuple[Record, Occurrence, str] | None = None
        noise: tuple[Record, Occurrence, str] | None = None
        for record, other in differing:
            what = disagreement(record.payload, other[3]) if other[3].shape == record.payload.shape else None
            if what is None:
                continue
            if _is_noise(record.payload, other[3]):
                noise = noise or (record, other, what)
            else:
                value = value or (record, other, what)
        for onset, found in ((self._values, value), (self._noise, noise)):
            if found is None:
                onset.good(item)
            else:
                onset.fault(item, found[0], found)

    def _split(self, item: ForwardPass, expected: int) -> None:
        """Look for one pass that stands as two: most writers print one value, the rest another, right behind it.

        Then no record of either has all copies, together they have exactly that many, and the records are the same.
        """
        copies = {record.copies for record in item.records}
        before = self._part.pop(item.group, None)
        if len(copies) != 1 or min(copies) >= expected:
            return
        if before is not None and before.records[0].copies + item.records[0].copies == expected:
            most, rest = sorted((before, item), key=lambda one: one.records[0].copies)[::-1]
            pairs = list(zip(most.records, rest.records, strict=False))
            same = len(most.records) == len(rest.records) and all(
                (one.payload.event, one.payload.layer, one.payload.shape)
                == (other.payload.event, other.payload.layer, other.payload.shape)
                for one, other in pairs
            )
            differing = [(one, other.first) for one, other in pairs if disagreement(one.payload, other.payload)]
            alike = all(near(one.payload, other.payload) for one, other in pairs if one.payload.norm is not None)
            if same and alike and differing and before.role == item.role:
                self.looked += 1
                self.judge(most, differing)
                return
        self._part[item.group] = item

    def _apart(self, item: ForwardPass, expected: int) -> bool:
        """Return whether a pass is only the copies that the one before it lacks, with other values.

        A record that ends a pass, printed once more with another value, begins a pass of its own: it is not missing.
        """
        before, own = self._before.get(item.group), {record.copies for record in item.records}
        if before is None or before.role != item.role or len(own) != 1 or min(own) >= expected:
            return False
        if all(record.copies < expected for record in before.records):
            return False  # its writers are cut, or ahead and behind
        lacking = {_form(record): record for record in before.records if record.copies + min(own) == expected}
        pairs = [(lacking.get(_form(record)), record.first) for record in item.records]
        found = [(record, other) for record, other in pairs if record is not None]
        if len(found) < len(pairs) or not all(disagreement(record.payload, other[3]) for record, other in found):
            return False
        for record, _ in found:
            seen = self._missing.get((item.role, record.payload.event, record.payload.layer))
            if seen is not None and seen.waiting and seen.waiting[-1][0] is before:
                seen.waiting.pop()
        self.looked += 1
        others = [(one, other) for one in before.records for other in one.variants if other[3].usable]
        self.judge(before, [*others, *found])
        self._judged.add((before.group, before.number))
        return True

    def _next(self, group: tuple[Any, ...]) -> None:
        view = self._waiting[group][0]
        super()._next(group)
        expected = view.item.expected_copies or 1
        if expected > 1 and view.item.complete and not view.edge:
            self._alone(view, expected)

    def _alone(self, view: View, expected: int) -> None:
        """Count passes that most writers print, and passes that only a few do, with values that no pass near by has."""
        item = view.item
        most = max(record.copies for record in item.records)
        few = self._few.setdefault(item.role, Onset())
        if most * 3 <= expected:
            close = [one for one in (*self._passed[item.group], *self._waiting[item.group]) if one is not view]
            known = {_value(one[3]) for other in close for record in other.item.records for one in _printed(record)}
            if any(_value(record.payload) not in known for record in item.records):
                few.fault(item, item.records[0], (most, expected))
        elif most * 2 > expected:
            few.good(item)

    def _count(self, item: ForwardPass, expected: int) -> None:
        for record in item.records:
            key = (item.role, record.payload.event, record.payload.layer)
            seen = self._missing.get(key)
            if seen is None:
                seen = self._missing[key] = _Missing()
            if record.copies >= expected:
                # Only now is it certain that the missing ones were not simply still to come.
                for late, one in seen.waiting:
                    seen.onset.fault(late, one, (one.copies, expected))
                seen.waiting.clear()
                seen.full = item
                seen.onset.good(item)
            elif len(seen.waiting) < 1024:
                seen.waiting.append((item, record))

    def findings(self) -> Iterator[Finding]:
        """Answer with the first difference of values (noise: a note), and with records one writer never prints."""
        self.settle()
        absent = [one for marked in self._marked.values() for one in marked.absences()] if self._in_step else []
        if absent:
            for one in absent:
                yield self._gone(one)
            return
        if self._values.first is not None:
            yield self._differ(self._values, self._values.first, None)
        elif self._noise.first is not None:
            yield self._differ(self._noise, self._noise.first, "note")
        alone = next((few for few in self._few.values() if _others_values(few)), None)
        if alone is not None:
            few, all_ = alone.detail
            who = f"{count(few, 'writer')} of about {all_}"
            yield self.finding(
                f"{who} {'prints' if few == 1 else 'print'} other values than the rest, beside the common passes.",
                alone.place,
                expected="equal copies",
                actual=f"{count(alone.bad, 'pass')} of a few writers alone, {alone.seen - alone.bad:,} common ones",
                evidence=alone.words,
                help="one rank computes something else throughout: give each rank a file of its own to see which",
            )
            return
        # When no record has a copy of every writer, their number is in doubt, not the run.
        if any(seen.onset.seen > seen.onset.bad for seen in self._missing.values()):
            yield from self._lacking()

    def _lacking(self) -> Iterator[Finding]:
        """Answer for records that do not have a copy of every writer, those of one model at once where all lack some.

        What most writers never print is printed under a condition: nobody can say that it is missing.
        """
        every = {key: seen.lasting() for key, seen in self._missing.items()}
        lacking = {key: onset for key, onset in every.items() if onset is not None and onset.place is not None}
        for role in ("target", "draft"):
            whole = all(key in lacking for key in every if key[0] == role)
            mine = {key: onset for key, onset in lacking.items() if key[0] == role and _on_purpose(onset, whole=whole)}
            # One print in the code serves all layers: a condition around it holds for each of them, or for none.
            layers = [key in mine for key in every if key[0] == role and key[1] in CAPTURE_EVENTS]
            if mine and (all(layers) or not any(layers)):
                yield self._some_print(role, [key[1:] for key in mine], next(iter(mine.values())))
                lacking = {key: onset for key, onset in lacking.items() if key not in mine}
        if len(lacking) * 4 >= len(every) * 3 and len(lacking) > 1:
            yield self._fewer(min(lacking.values(), key=lambda onset: onset.place or Place("", 0)))
            return
        for role in ("target", "draft"):
            mine = {key: onset for key, onset in lacking.items() if key[0] == role}
            if (
                len(mine) > 1
                and len({onset.detail for onset in mine.values()}) == 1
                and all(key in mine for key in every if key[0] == role)
            ):
                first = min(mine.values(), key=lambda onset: onset.place or Place("", 0))
                yield self._absent(role, f"anything of {role} passes", first)
                continue
            for (_, event, layer), onset in mine.items():
                yield self._absent(role, f"{_name(event, layer)} of {role} passes", onset)

    @property
    def _in_step(self) -> bool:
        """True when every print of every rank is known, and ranks are known to print the same."""
        return self._all_kept and self.scene.rows_may_differ is None

    def _gone(self, one: _Absence) -> Finding:
        """Answer for a rank that stops printing; passes behind that line cannot be put together any more."""
        file = self.scene.segment.file
        others = f"{count(one.ranks - 1, 'other rank')} {'goes' if one.ranks == 2 else 'go'} on"
        if one.kind is None:
            what, lacks, noun = "nothing more", "", "record"
        else:
            name = _name(*one.kind)
            what, lacks, noun = f"no {name}" + (" any more" if one.last else ""), f" of {name}", "print"
        self.scene.out_of_step = min(one.line, self.scene.out_of_step or one.line)
        last = f"its last one stands at line {one.last}" if one.last else "it never does"
        found = self.finding(
            f"TP{one.rank} prints {what} from line {one.line:,} on, while {others}.",
            Place(file, one.line),
            severity="warning",
            expected=f"{count(one.of, noun)}{lacks}, as other ranks print",
            actual=count(one.of - one.lacking, noun),
            evidence=f"{last}; behind that line its copies cannot be put beside the others', so they are not judged",
            help="the rank stopped, or prints into another file"
            if one.kind is None
            else "one rank captures something else: compare its code and its layer ids with the others'",
        )
        self.scene.absences.append(found)
        return found

    def _differ(self, onset: Onset, first: ForwardPass, severity: Severity | None) -> Finding:
        record, other, what = onset.detail
        rank = "" if other[2].tp_rank is None else f" (TP{other[2].tp_rank})"
        name = _name(record.payload.event, record.payload.layer)
        little = "by rounding only " if severity == "note" else ""
        return self.finding(
            f"Ranks disagree {little}on {name} in {pass_name(first)}: {what}.",
            Place(first.file, other[0]),
            onset=onset,
            severity=severity,
            expected=f"{count(record.copies, 'equal copy', 'equal copies')}",
            actual=f"{count(max(1, len(record.variants)), 'copy differs', 'copies differ')}{rank}",
            evidence=f"lines {record.line} and {other[0]}; {onset.words}",
            help="one rank computes, or receives, something else: compare its weights, its device and its collectives",
        )

    def _some_print(self, role: str, kinds: Sequence[tuple[str, int | None]], onset: Onset) -> Finding:
        """Answer for records that only some writers print, throughout: a note, since nothing says who is right."""
        have, expected = onset.detail
        return self.finding(
            f"Only {count(have, 'writer')} of {expected} {'prints' if have == 1 else 'print'}"
            f" {and_list([_name(*kind) for kind in kinds])} of {role} passes.",
            onset.place,
            severity="note",
            expected=count(expected, "copy", "copies"),
            actual=count(have, "copy", "copies"),
            evidence=onset.words,
            help="prints of one rank only (if rank == 0) look like this, and nothing is missing then",
        )

    def _absent(self, role: str, what: str, onset: Onset) -> Finding:
        """Answer for a record, or a whole pass, that a writer does not print."""
        place = onset.place
        found = self._less(
            onset,
            ("does", "do"),
            f"not print {what}",
            "one rank captures something else, or its lines are lost on the way into the log",
        )
        if role == "target" and place is not None:
            self.scene.out_of_step = min(place.line, self.scene.out_of_step or place.line)
            self.scene.absences.append(found)
        return found

    def _fewer(self, onset: Onset) -> Finding:
        """Answer for a writer that prints nothing more."""
        return self._less(
            onset,
            ("prints", "print"),
            f"nothing more from line {onset.place.line if onset.place else 0:,} on",
            "a rank stopped, or prints into another file; marks on the lines would name it",
        )

    def _less(self, onset: Onset, verb: tuple[str, str], what: str, advice: str) -> Finding:
        """Answer for copies that are missing; ``verb``: what their writers do, for one writer and for several."""
        have, expected = onset.detail
        lacking = expected - have
        return self.finding(
            f"{count(lacking, 'writer')} of {expected} {verb[lacking != 1]} {what}.",
            onset.place,
            onset=onset,
            severity="warning",
            expected=count(expected, "copy", "copies"),
            actual=count(have, "copy", "copies"),
            evidence=onset.words,
            help=advice,
        )


def _others_values(few: Onset) -> bool:
    """Return whether passes of a few writers stand beside the common ones of the same model too often for chance."""
    return few.bad >= _LEAST_ALONE and few.bad * 2 > few.seen - few.bad > 0


def _on_purpose(onset: Onset, *, whole: bool) -> bool:
    """Return whether copies are missing throughout, of most writers, or of all but one for a ``whole`` model."""
    have, expected = onset.detail
    return onset.bad == onset.seen and (have * 2 < expected or (whole and have == 1))


def _name(event: str, layer: int | None) -> str:
    return layer_name(event, layer) if event in CAPTURE_EVENTS else event.replace("_", " ")


class _Pass(NamedTuple):
    """What is kept of one pass to compare it with the same pass of another file."""

    form: int
    shapes: int
    values: int
    line: int


class RankFile:
    """The passes of one file in brief, to be compared with the other files of a run (32 bytes a pass)."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.segments: list[Segment] = []
        self.ranks: set[int] = set()
        self._columns = tuple(array("q") for _ in _Pass._fields)

    def __len__(self) -> int:
        """Return the number of passes."""
        return len(self._columns[0])

    def add(self, item: ForwardPass) -> None:
        """Keep one pass of real requests."""
        if item.during == "graph_capture" or not item.records:
            return
        rank = item.records[0].first[2].tp_rank
        if rank is not None and len(self.ranks) < 2:
            self.ranks.add(rank)
        payloads = [record.first[3] for record in item.records]
        form = hash((item.role, len(payloads), payloads[0].rows))
        shapes = hash(tuple([(payload.layer, payload.shape) for payload in payloads]))
        values = hash(tuple([_brief(payload) for payload in payloads]))
        for column, value in zip(self._columns, (form, shapes, values, item.line), strict=True):
            column.append(value)

    def at(self, index: int) -> _Pass:
        """Return one pass."""
        return _Pass(*(column[index] for column in self._columns))

    def find(self, other: RankFile) -> int:
        """Return at which of its passes the other file's first one stands, by values, 0 when it does not."""
        first = other._columns[2][0]
        values = self._columns[2]
        return next((at for at in range(min(len(values), 256)) if values[at] == first), 0)


def _brief(payload: Payload) -> tuple[Any, ...]:
    """Return norm and first value as something that can be hashed: nan as its name, since it equals nothing."""
    first = payload.head[0] if payload.head else None
    norm = payload.norm
    if norm == norm and first == first:
        return (norm, first)
    return (str(norm), str(first))


def _form(record: Record) -> tuple[Any, ...]:
    """Return what a record is, without its values."""
    return (record.payload.event, record.payload.layer, record.payload.shape)


def _printed(record: Record) -> tuple[Occurrence, ...]:
    """Return one print of every value a record has."""
    return (record.first, *record.variants)


def _value(payload: Payload) -> tuple[Any, ...]:
    """Return what is printed as something that can be hashed: nan as its name, since it equals nothing."""
    head = payload.head or ()
    return (
        payload.event,
        payload.layer,
        *(str(one) if one is not None and math.isnan(one) else one for one in (payload.norm, *head)),
    )


def across(files: Sequence[RankFile], select: set[str]) -> Iterator[Finding]:
    """Compare files that are ranks of one run with the first of them; yield S103 and R101.

    Files are ranks of one run when at most one of them is a server's own log, their passes have the same form in the
    same order, and either their prefixes name different ranks or most of their values are equal.
    """
    whole = [file for file in files if len(file) >= _LEAST_COMMON]
    for other in whole[1:]:
        yield from _pair(whole[0], other, select)


def _pair(one: RankFile, other: RankFile, select: set[str]) -> Iterator[Finding]:
    if not _one_server(one, other):
        return
    start = one.find(other)
    common = min(len(one) - start, len(other))
    if common < _LEAST_COMMON:
        return
    alike = equal = 0
    shape: tuple[_Pass, _Pass] | None = None
    value: tuple[_Pass, _Pass, int] | None = None
    for at in range(common):
        mine, theirs = one.at(start + at), other.at(at)
        if mine.form != theirs.form:
            continue
        alike += 1
        if mine.values == theirs.values:
            equal += 1
        elif mine.shapes == theirs.shapes:
            value = value or (mine, theirs, at)
        if mine.shapes != theirs.shapes:
            shape = shape or (mine, theirs)
    marked = bool(one.ranks and other.ranks and not one.ranks & other.ranks)
    if alike < _SAME_FORM * common or (not marked and equal < _MARKED_OR_EQUAL * common):
        return
    share = f"{equal:,} of {count(common, 'pass')} equal ({percent(equal, common)})"
    if shape is not None and "S103" in select:
        yield Finding(
            "S103",
            "error",
            f"Two ranks disagree on a shape: {one.file} and {other.file}.",
            Place(other.file, shape[1].line),
            evidence=f"{one.file}:{shape[0].line} against {other.file}:{shape[1].line}; {share}",
            help="a tensor is sharded, sliced or padded on one rank only",
        )
    if value is not None and "R101" in select:
        yield Finding(
            "R101",
            "error",
            f"Two ranks print different values: {one.file} and {other.file}.",
            Place(other.file, value[1].line),
            evidence=f"first at {one.file}:{value[0].line} against"
            f" {other.file}:{value[1].line}, after {value[2]:,} equal passes; {share}",
            help="one rank computes, or receives, something else: `logscope diff` shows where it begins",
        )


def _one_server(one: RankFile, other: RankFile) -> bool:
    """Return whether two files can be of one server: one of them has no start-up lines, or they are its nodes."""
    nodes = []
    for file in (one, other):
        args = [segment.server_args for segment in file.segments if segment.server_args]
        if len(args) > 1:
            return False
        nodes.append(args[0] if args else None)
    if nodes[0] is None or nodes[1] is None:
        return True
    return nodes[0].get("nnodes", 1) > 1 and nodes[0].get("node_rank") != nodes[1].get("node_rank")


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
