"""Which prints are copies of one record: several ranks print the same, and nothing says who printed what.

This module is responsible for :func:`gather`, which gives every print of one group of writers its record, and for
:func:`count_writers`. It must not know passes or phases, nor what a record means beyond its kind.

Writers of a tensor-parallel group stand together after every record (flushed prints) or every buffer: the collectives
hold them together (docs/explanation/phases.md has the measurements). Where they do is a *sync point*: the first print
of a one-of-a-kind text around which no such text waits for copies. Between two sync points lies a segment of prints,
mostly one record. A segment is *regular* when it is one sequence said n times, or when every text stands there n times;
that is told in bulk. Any other is walked print by print: by neighbours where prints are flushed, by places where they
are buffered or where prefixes name the writers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from logscope.passes.sequences import rising

if TYPE_CHECKING:
    from collections.abc import Iterator

# How many prints are looked at to count the writers, and to tell whether they buffer.
CENSUS = 512
# Distinct records below which the writers are not counted, where nothing else says how many there are.
FEW = 3
# Prints that wait for a sync point before their records are told without one: bounds memory.
WINDOW = 1 << 16
# A record takes no differing copy any more when so many prints per writer stand behind its last one.
_STALE = 4
# The share of records without all their copies from which on buffers do not explain how writers print.
_LOST = 0.25
# How many records a named writer may lack in a row, and how many kinds must agree behind them.
_SKIPPED, _ALIKE = 64, 6
# The place of a join within its forward, the last one.
JOINED = (1 << 30) + 1


class Prints(NamedTuple):
    """The prints of one group, in file order, as columns.

    text, kind, family
        names of the text, of the kind of record (site, event, layer, shape), and of the kind without its layer.
    own
        whether the text is one of a kind: it holds a finite norm other than zero.
    opens, ends, captures
        whether a record of this kind begins a pass; is a ``forward_end``, on which no phase depends; is a capture.
    order
        place of the kind within its forward; the last one is the join.
    writer
        number of the writer that a prefix names, -1 where none is named.
    """

    text: np.ndarray
    kind: np.ndarray
    family: np.ndarray
    own: np.ndarray
    opens: np.ndarray
    ends: np.ndarray
    captures: np.ndarray
    order: np.ndarray
    writer: np.ndarray

    def part(self, start: int, stop: int) -> Prints:
        """Return a stretch of them."""
        return Prints(*(column[start:stop] for column in self))


def count_writers(prints: Prints, said: int | None) -> tuple[int, str]:
    """Return how many writers print every record of a group, and how that is known.

    ``said`` is the tp_size of the server's arguments. Asked with the first :data:`CENSUS` prints of a life.
    """
    marked = np.unique(prints.writer[prints.writer >= 0])
    if len(marked):
        return len(marked), "as many ranks or processes are named in the prefixes of debug records"
    total = len(prints.text)
    if not total:
        return 1, "nothing is printed"
    _, times = np.unique(prints.text[prints.own], return_counts=True)
    seen = Counter(times.tolist())
    weight = {number: number * count for number, count in seen.items()}
    usual = max(weight, key=lambda number: (weight[number], number)) if weight else 1
    if said is not None and said > 1:
        if usual == said or _neighbours(prints, said) or _walked(prints, said):
            return said, "tp_size, and records stand there as often"
        if usual == 1 and said <= 64 and sum(weight.values()) >= 4 * said:
            return 1, "records stand there once, though tp_size says more: one rank prints"
        if usual > 1 and said / 2 < usual <= said:
            return said, "tp_size; some copies are lost"
    if usual == 1 and said is None:
        for number in (2, 4, 8):
            if _neighbours(prints, number):
                return number, "records of one kind and shape stand side by side so often"
    return usual, "most records with values of their own stand there so often"


def _neighbours(prints: Prints, number: int) -> bool:
    """Tell whether records of one kind and shape stand in runs of so many, whatever their values."""
    if len(prints.kind) < number:
        return False
    starts = np.flatnonzero(np.concatenate(([True], prints.family[1:] != prints.family[:-1])))
    runs = np.diff(np.append(starts, len(prints.kind)))
    runs = runs[:-1] if len(prints.kind) >= CENSUS else runs
    return bool(len(runs)) and float((runs % number == 0).mean()) > 0.6


def _walked(prints: Prints, number: int) -> bool:
    """Tell whether so many writers that buffer explain the prints: most records then have as many copies."""
    copies = np.bincount(_by_places(prints, number))
    return float((copies[: max(1, len(copies) - 64)] == number).mean()) > 0.6


def are_buffered(prints: Prints, number: int) -> bool:
    """Tell whether writers hand over whole buffers: the copies of a record stand many prints apart."""
    if number < 2:
        return False
    order = np.argsort(prints.text, kind="stable")
    same = prints.text[order][1:] == prints.text[order][:-1]
    apart = np.diff(order)[same & prints.own[order][1:]]
    if len(apart) < number:
        # Every writer has its own values: then the kinds tell.
        changes = np.count_nonzero(prints.kind[1:] != prints.kind[:-1])
        return bool(len(prints.kind) > 4 * number and changes > 0.9 * len(prints.kind))
    return float(np.median(apart)) > 4 * number


def gather(prints: Prints, number: int, *, buffered: bool, final: bool) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the record of each print (-1: it cannot be told), which are in doubt, and how many are told.

    Records are numbered in true order.

    number
        how many writers print every record.
    final
        nothing follows: all prints are told. Else those behind the last sync point wait for more.
    """
    total = len(prints.text)
    if number == 1 or not total:
        return np.arange(total), np.zeros(total, np.bool_), total
    if (prints.writer >= 0).all():
        record, told = _by_names(prints, number, final=final)
        return record, np.zeros(total, np.bool_), told
    doubt = np.zeros(total, np.bool_)
    stop = total
    record = np.full(total, -1, np.int64)
    starts, regular = _segments(prints, number)
    if not final:
        stop = int(starts[-1]) if len(starts) else 0
        if not stop and total >= WINDOW:
            stop = total
    made = 0
    at = 0
    while at < len(starts) and starts[at] < stop:
        # Regular segments in bulk, then the odd ones up to the next regular one, which begins where all stand together.
        end = at
        while end < len(starts) and starts[end] < stop and regular[end] == regular[at]:
            end += 1
        first = int(starts[at])
        last = min(int(starts[end]) if end < len(starts) else total, stop)
        part = prints.part(first, last)
        if regular[at]:
            numbers = _regular(part, np.asarray(starts[at:end]) - first, number)
        else:
            numbers, doubt[first:last] = _odd(part, number, buffered=buffered)
        record[first:last] = np.where(numbers >= 0, numbers + made, -1)
        made += int(numbers.max()) + 1
        at = end
    return record, doubt, stop


def _by_names(prints: Prints, number: int, *, final: bool) -> tuple[np.ndarray, int]:
    """Return the record of each print where prefixes name the writers, and how many prints are told."""
    record, told = _alike(prints, number)
    left = len(record) - told
    if not left or (told and not final and left <= number * _SKIPPED):
        return record, told
    rest = _by_writers(prints.part(told, len(record)))
    record[told:] = rest + (int(record[:told].max()) + 1 if told else 0)
    return record, told + (left if final else _together(rest, number))


def _alike(prints: Prints, number: int) -> tuple[np.ndarray, int]:
    """Return records by how many prints of its writer stand before each, and as far as that tells.

    Named writers print one sequence: it tells up to the last place where all have printed as much, if all of it is of
    the same kinds.
    """
    total = len(prints.text)
    nth = _ordinals(prints.writer.astype(np.uint64))[0]
    order = np.argsort(nth, kind="stable")
    ordered, families = nth[order], prints.family[order]
    same = (ordered[1:] != ordered[:-1]) | (families[1:] == families[:-1])
    bad = int(ordered[1:][~same].min()) if not same.all() else total
    so_far = np.maximum.accumulate(nth)
    places = np.arange(1, total + 1)
    together = np.flatnonzero((places == (so_far + 1) * number) & (so_far < bad))
    return nth, int(together[-1]) + 1 if len(together) else 0


def _together(record: np.ndarray, number: int) -> int:
    """Return the last place where all writers stand at one record, with whole records behind it; 0: nowhere."""
    total, count = len(record), int(record.max()) + 1
    first, last = np.full(count, total), np.zeros(count, np.int64)
    np.minimum.at(first, record, np.arange(total))
    np.maximum.at(last, record, np.arange(total))
    whole = np.bincount(record, minlength=count) == number
    alike = np.convolve(whole, np.ones(_ALIKE), "full")[_ALIKE - 1 :] == _ALIKE  # this one, and those behind it
    begins = np.minimum.accumulate(first[::-1])[::-1]
    places = np.flatnonzero(alike[1:] & (np.maximum.accumulate(last)[:-1] < begins[1:]))
    return int(begins[places[-1] + 1]) if len(places) else total if total >= WINDOW else 0


def _sorted(names: np.ndarray) -> np.ndarray:
    """Return the stable order of well mixed names: high bits with the place below sort several times faster."""
    count = len(names)
    bits = np.uint64(max(1, (count - 1).bit_length()))
    mixed = names.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    packed = (mixed >> bits << bits) | np.arange(count, dtype=np.uint64)
    packed.sort()
    order = (packed & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)
    ordered, high = names[order], packed >> bits
    # Equal high bits of different names would tear a run of equal names apart.
    if ((high[1:] == high[:-1]) & (ordered[1:] != ordered[:-1])).any():
        return np.argsort(names, kind="stable")
    return order


def _ordinals(names: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for every place, how many equal names stand before it, how many there are, and the stable order."""
    order = _sorted(names)
    ordered = names[order]
    new = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    starts = np.flatnonzero(new)
    sizes = np.diff(np.append(starts, len(names)))
    nth = np.empty(len(names), np.int64)
    count = np.empty(len(names), np.int64)
    nth[order] = np.arange(len(names)) - np.repeat(starts, sizes)
    count[order] = np.repeat(sizes, sizes)
    return nth, count, order


def _segments(prints: Prints, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where segments begin, and which of them are regular."""
    total = len(prints.text)
    nth, count, order = _ordinals(prints.text)
    whole = prints.own & (count % number == 0)
    opens = whole & (nth % number == 0)
    closes = whole & (nth % number == number - 1)
    cover = np.zeros(total + 1, np.int64)
    cover[:-1] += opens
    cover[1:] -= closes
    missing = prints.own & ~whole & (count < number)
    if missing.any():
        # What lacks a copy keeps its segment open until a later text is complete.
        firsts = np.flatnonzero(missing & (nth == 0))
        lasts = np.flatnonzero(missing & (nth == count - 1))
        begins = np.flatnonzero(opens)
        # The close that belongs to each open: the same text's, n - 1 places further in the stable order.
        place = np.empty(total, np.int64)
        place[order] = np.arange(total)
        ends = order[place[begins] + number - 1]
        # Of every missing text, its last print; texts with one print stand in both lists.
        last_of = np.full(total, 0)
        last_of[order] = np.arange(total)
        lasts = order[place[firsts] + count[firsts] - 1]
        later = np.searchsorted(begins, lasts, side="right")
        until = (
            np.where(later < len(begins), ends[np.minimum(later, len(begins) - 1)], total - 1)
            if len(begins)
            else np.full(len(firsts), total - 1)
        )
        np.add.at(cover, firsts, 1)
        np.add.at(cover, until + 1, -1)
    standing = np.cumsum(cover[:-1])
    sync = opens & (standing == 1)
    if total:
        sync[0] = True
    starts = np.flatnonzero(sync)
    segment = np.cumsum(sync) - 1
    sizes = np.diff(np.append(starts, total))
    # One sequence, said n times.
    length = sizes // number
    divides = sizes % number == 0
    block = length[segment]
    behind = np.minimum(np.arange(total) + block, total - 1)
    inside = np.arange(total) + block < (starts + sizes)[segment]
    wrong = inside & (prints.text[behind] != prints.text)
    repeats = divides & (np.bincount(segment[wrong], minlength=len(starts)) == 0)
    # Every text n times.
    odd = np.bincount(segment[missing], minlength=len(starts)) > 0
    rest = ~repeats & ~odd
    if rest.any():
        places = np.flatnonzero(rest[segment])
        names = prints.text[places] ^ (segment[places].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        _, times, _ = _ordinals(names)
        odd |= np.bincount(segment[places[times != number]], minlength=len(starts)) > 0
    return starts, repeats | ~odd


def _regular(prints: Prints, starts: np.ndarray, number: int) -> np.ndarray:
    """Give numbers to the records of regular segments, by the place of their first print."""
    total = len(prints.text)
    segment = np.zeros(total, np.int64)
    segment[starts] = 1
    segment = np.cumsum(segment) - 1
    sizes = np.diff(np.append(starts, total))
    length = np.maximum(sizes // number, 1)[segment]
    block = starts[segment] + (np.arange(total) - starts[segment]) % length
    repeats = prints.text[block] == prints.text
    bad = np.bincount(segment[~repeats], minlength=len(starts)) > 0
    first = block
    if bad.any():
        places = np.flatnonzero(bad[segment])
        names = prints.text[places] ^ (segment[places].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        _, firsts, inverse = np.unique(names, return_index=True, return_inverse=True)
        first[places] = places[firsts[inverse]]
    return np.unique(first, return_inverse=True)[1]


def _odd(prints: Prints, number: int, *, buffered: bool) -> tuple[np.ndarray, np.ndarray]:
    """Give numbers to the records of prints that are not regular (-1: it cannot be told), and say which are in doubt.

    A text of its own that stands there n times is one record, wherever the others stand. What is left (copies that are
    lost or differ, texts that passes repeat) is told by its kind and neighbours, as long as ranks stay in one pass.
    """
    total = len(prints.text)
    doubt = np.zeros(total, np.bool_)
    if buffered:
        record = _by_places(prints, number)
        sizes = np.bincount(record)[: -2 * CENSUS // number]
        if len(sizes) and (sizes != number).mean() > _LOST:
            doubt[:] = True  # No buffers of these writers explain it.
        return record, doubt
    nth, count, order = _ordinals(prints.text)
    whole = prints.own & (count % number == 0)
    place = np.empty(total, np.int64)
    place[order] = np.arange(total)
    first = np.where(whole, order[place - nth % number], -1)
    last = order[np.minimum(place - nth % number + number - 1, total - 1)]
    opens = whole & prints.opens & prints.captures & (nth % number == 0)
    begins, closes = nth % number == 0, nth % number == number - 1
    core = whole & prints.captures
    standing = np.cumsum(core & begins) - np.cumsum(core & closes)
    epoch = np.cumsum(opens)
    skewed = (whole & prints.opens & begins & (standing > prints.captures)).any()
    if not skewed:
        # What spans passes although ranks do not is no record: a rank that reads a state once more (stale).
        whole &= epoch[np.maximum(first, 0)] == epoch[last]
        first = np.where(whole, first, -1)
    left = np.flatnonzero(~whole)
    if skewed:
        whole &= count == number
        first = np.where(whole, first, -1)
        left = np.flatnonzero(~whole)
        # A pass begins before every writer has ended the one before: the order of what repeats is lost.
        doubt[:] = not prints.ends[left].all()
    else:
        rest = Prints(*(column[left] for column in prints))
        first[left] = left[_left_over(rest, epoch[left], left, number)]
    told = np.flatnonzero(first >= 0)
    record = np.full(total, -1, np.int64)
    record[told] = np.unique(first[told], return_inverse=True)[1]
    return record, doubt


def _left_over(prints: Prints, epoch: np.ndarray, places: np.ndarray, number: int) -> np.ndarray:
    """Return for each of these prints the first print of its record. ``epoch`` counts passes begun before it."""
    total = len(prints.text)
    first = np.zeros(total, np.int64)
    at, step = 0, 64
    while at < total:
        stop = min(at + step, total)
        part = prints.part(at, stop)
        numbers, told = _by_kinds(part, epoch[at:stop], number, final=stop == total)
        if told:
            step = min(step * 4, WINDOW)
        else:
            step = 64
            stop = min(at + step, total)
            part = prints.part(at, stop)
            numbers, told = _by_neighbours(part, epoch[at:stop], places[at:stop], number, final=stop == total)
        _, firsts, inverse = np.unique(numbers[:told], return_index=True, return_inverse=True)
        first[at : at + told] = at + firsts[inverse]
        at += told
    return first


def _by_kinds(prints: Prints, epoch: np.ndarray, number: int, *, final: bool) -> tuple[np.ndarray, int]:
    """Give numbers to records by family: n neighbours of one kind and shape are n copies, whatever their values.

    Returns numbers and how many prints from the beginning are told; 0 when a copy is missing or stands elsewhere.
    """
    total = len(prints.family)
    nth, count, order = _ordinals(prints.family)
    turn = nth // number
    opens = nth % number == 0
    whole = (turn + 1) * number <= count
    closes = whole & (nth % number == number - 1)
    cover = np.cumsum(opens) - np.concatenate(([0], np.cumsum(closes)[:-1]))
    sync = opens & (cover == 1)
    place = np.empty(total, np.int64)
    place[order] = np.arange(total)
    first = order[place - nth % number]
    last = order[np.minimum(place - nth % number + number - 1, total - 1)]
    # A text that stands in two records of a kind, neither of which is all of it: a copy is missing.
    split = np.zeros(total, np.bool_)
    owns = np.flatnonzero(prints.own & (_ordinals(prints.text)[1] <= number))
    if len(owns):
        by_text = np.lexsort((owns, prints.text[owns]))
        one, other = owns[by_text[:-1]], owns[by_text[1:]]
        same = (prints.text[one] == prints.text[other]) & (first[one] != first[other])
        split[other[same]] = True
        split[one[same]] = True
    # Ranks stand together between two records of one family: the earlier one is complete before what follows it begins.
    records = np.flatnonzero(opens)
    again = records[nth[records] > 0]
    previous_last = order[place[again] - 1]
    behind = np.searchsorted(records, again) - 1
    late = previous_last >= records[np.maximum(behind, 0)]
    same_kind = prints.family[records[np.maximum(behind, 0)]] == prints.family[again]
    split[again[late & ~same_kind]] = True
    wrong = np.flatnonzero(split | ~whole | (epoch != epoch[first]))
    limit = int(wrong[0]) if len(wrong) else total
    if limit == total and final:
        told = total
    else:
        syncs = np.flatnonzero(sync[: limit + 1])
        told = int(syncs[-1]) if len(syncs) else 0
        if told and int(last[:told].max()) >= told:
            told = 0
    return np.unique(first[:told], return_inverse=True)[1] if told else first, told


def _by_neighbours(
    prints: Prints, epoch: np.ndarray, places: np.ndarray, number: int, *, final: bool
) -> tuple[np.ndarray, int]:
    """Give numbers to records print by print where prints are flushed: a record is closed when ranks have gone past it.

    Returns numbers and how many prints are told: up to the last place where no record of the pass lacks a copy.
    """
    total = len(prints.text)
    text, kind, own = prints.text.tolist(), prints.kind.tolist(), prints.own.tolist()
    family, opens = prints.family.tolist(), prints.opens.tolist()
    where, begun_at = places.tolist(), epoch.tolist()
    record = np.zeros(total, np.int64)
    size: list[int] = []
    last: list[int] = []
    of_text: dict[int, int] = {}
    begun = told = 0  # begun: the first record of the pass that is being printed

    def takes(older: int, at: int) -> bool:
        """Tell whether a record may still take this print as another value of it."""
        near = where[at] - where[last[older]] <= _STALE * number and begun_at[at] == begun_at[last[older]]
        return family[last[older]] == family[at] and size[older] < number and near

    for at in range(total):
        found = of_text.get(text[at])
        if found is not None and (size[found] >= number or (not own[at] and (found < begun or not takes(found, at)))):
            found = None
        if found is None:
            near = range(len(size) - 1, begun - 1, -1)
            found = next((older for older in near if kind[last[older]] == kind[at] and takes(older, at)), None)
            if found is None:
                found = next((older for older in near if takes(older, at)), None)
        if found is None:
            found = len(size)
            if (opens[at] and (not size or kind[at] != kind[last[-1]])) or (
                size and begun_at[at] != begun_at[last[-1]]
            ):
                begun = found
                told = at if all(one >= number for one in size) or at - told > 8 * number else told
            size.append(0)
            last.append(at)
            of_text[text[at]] = found
        record[at] = found
        size[found] += 1
        last[found] = at
    return record, total if final or not told else told


def _by_writers(prints: Prints) -> np.ndarray:
    """Give numbers to records where prefixes name the writers: what each printed is laid beside what others did.

    Writers print one sequence of records. A text of its own that two of them have once is one record; between such
    texts the kinds tell, in order, and what only one has is a record of its own (lost, or not printed, by the others).
    """
    writers, sizes = np.unique(prints.writer, return_counts=True)
    merged: list[list[int]] = []  # the prints of each record, in order
    for writer in writers[np.argsort(-sizes, kind="stable")].tolist():
        mine = np.flatnonzero(prints.writer == writer)
        merged = _merged(merged, mine.tolist(), prints)
    record = np.zeros(len(prints.text), np.int64)
    for number, members in enumerate(merged):
        record[members] = number
    return record


def _merged(merged: list[list[int]], mine: list[int], prints: Prints) -> list[list[int]]:
    """Return the records with what one more writer printed."""
    if not merged:
        return [[at] for at in mine]
    firsts = [one[0] for one in merged]
    kinds, families, places = (
        (column[firsts].tolist(), column[mine].tolist()) for column in (prints.kind, prints.family, prints.order)
    )
    if families[0] == families[1]:
        return [[*one, at] for one, at in zip(merged, mine, strict=True)]
    out: list[list[int]] = []
    one = other = 0
    for left, right in [*_anchors(merged, mine, prints), (len(merged), len(mine))]:
        gap = slice(one, left), slice(other, right)
        for i, j in _pairs(
            *(
                list(zip(*(column[part] for column in columns), strict=True))
                for columns, part in zip(zip(kinds, families, places, strict=True), gap, strict=True)
            )
        ):
            out.append([*(merged[one + i] if i >= 0 else []), *([mine[other + j]] if j >= 0 else [])])
        if left < len(merged):
            out.append([*merged[left], mine[right]])
        one, other = left + 1, right + 1
    return out


def _anchors(merged: list[list[int]], mine: list[int], prints: Prints) -> list[tuple[int, int]]:
    """Return the records that are a writer's by a text that either has once: the longest chain in the order of both."""
    times = Counter(prints.text[mine].tolist())
    known: dict[int, int] = {}
    for at, members in enumerate(merged):
        for text in set(prints.text[members].tolist()):
            known[text] = -1 if text in known else at
    found = [
        (at, known[text])
        for at, (text, own) in enumerate(zip(prints.text[mine].tolist(), prints.own[mine].tolist(), strict=True))
        if own and times[text] == 1 and known.get(text, -1) >= 0
    ]
    return [(place, at) for at, place in rising(found)]


def _pairs(one: list[tuple[int, ...]], other: list[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    """Yield which places of two sequences belong together, in order; -1: the other has none there.

    Of each print its kind, its family and its place within the forward.
    """
    i = j = 0

    def families(some: list[tuple[int, ...]], at: int) -> list[int]:
        return [family for _, family, _ in some[at : at + _ALIKE]]

    def behind(some: list[tuple[int, ...]], at: int) -> list[tuple[int, ...]]:
        return some[at + 1 : at + 1 + _ALIKE]

    while i < len(one) and j < len(other):
        if (
            one[i] == other[j]
            # Of another shape in its place, and both go on alike.
            or (one[i][2] == other[j][2] and behind(one, i) == behind(other, j))
            or (i + _ALIKE <= len(one) and families(one, i) == families(other, j))
        ):
            yield i, j
            i, j = i + 1, j + 1
            continue
        # The shorter way to where both go on alike; else another kind stands in its place.
        lost = more = 1
        for skip in range(1, _SKIPPED):
            if i + skip <= len(one) and one[i + skip : i + skip + _ALIKE] == other[j : j + _ALIKE]:
                lost, more = skip, 0
                break
            if j + skip <= len(other) and other[j + skip : j + skip + _ALIKE] == one[i : i + _ALIKE]:
                lost, more = 0, skip
                break
        yield from ((i + step, -1) for step in range(lost))
        yield from ((-1, j + step) for step in range(more))
        i, j = i + lost, j + more
    yield from ((at, -1) for at in range(i, len(one)))
    yield from ((-1, at) for at in range(j, len(other)))


def _by_places(prints: Prints, number: int) -> np.ndarray:
    """Give numbers to records by the place rule: every writer stands at a place of one sequence of records.

    A print is the next record of a writer behind, by its text; else, of a writer behind whose next record is of the
    same kind, another value: that writer differs; else a new record. Where prints are buffered, lines in a row are one
    writer's: a text of its own says whose, one that passes repeat stays with the writer that is printing.
    """
    walk = _Walk(number, Counter(prints.text.tolist()))
    text, family, own = prints.text.tolist(), prints.family.tolist(), prints.own.tolist()
    opens, order = prints.opens.tolist(), prints.order.tolist()
    for at in range(len(text)):
        walk.anybody(at, text[at], family[at], own=own[at], order=order[at], opens=opens[at])
    record = np.zeros(len(text), np.int64)
    for number_of, members in enumerate(walk.records()):
        record[members] = number_of
    return record


class _Walk:
    """The walk of :func:`_by_places`: a sequence of records, and where in it each writer stands."""

    def __init__(self, number: int, often: Counter[int]) -> None:
        self.number = number
        self.often = often
        self.families: list[int] = []
        self.texts: list[int] = []
        self.members: list[list[int]] = []
        self.at: dict[int, int] = defaultdict(lambda: -1)
        for writer in range(number):
            self.at[writer] = -1
        self.current = 0
        self.order = JOINED  # place within its forward of the print before

    def records(self) -> list[list[int]]:
        """Return the prints of each record, in order."""
        return [members for members in self.members if members]

    def anybody(self, at: int, text: int, family: int, *, own: bool, order: int, opens: bool) -> None:
        """Take a print of nobody knows whom, where prints are buffered."""
        follows = opens if self.order >= JOINED else order > self.order
        self.order = order
        place, current, last = self.at, self.current, len(self.texts) - 1
        often = self.often[text]
        writer: int | None = None
        if place[current] < last and self.texts[place[current] + 1] == text:
            writer = current
        if writer is None and own and often <= self.number:
            hit = next(
                (
                    (k, w)
                    for w in sorted(range(self.number), key=lambda w: w != current)
                    for k in range(place[w] + 1, last + 1)
                    if self.texts[k] == text
                ),
                None,
            )
            if hit is not None:
                writer = self._moved(hit[0], hit[1], at)
                last = len(self.texts) - 1
        if (
            writer is None
            and place[current] < last
            and self.families[place[current] + 1] == family
            and often < self.number
        ):
            writer = current  # another value: this writer differs
        if writer is None and not follows:
            # The writer that prints cannot go on like this: another one's buffer begins, where that one stands.
            due = (w for w in range(self.number) if w != current and place[w] < last)
            writer = next((w for w in due if self.families[place[w] + 1] == family), None)
        if writer is None:
            writer = (
                current
                if place[current] == last
                else next((w for w in range(self.number) if place[w] == last), current)
            )
            if place[writer] != last:
                # Nobody stands at the end: what this writer lost stands between.
                place[writer] = self._insert(place[writer] + 1, text, family) - 1
            else:
                self._insert(last + 1, text, family)
        place[writer] += 1
        self.members[place[writer]].append(at)
        self.current = writer

    def _moved(self, k: int, writer: int, at: int) -> int:
        """Give a writer that is found at a later place the prints put at the end just before, which were its own."""
        place, last = self.at, len(self.texts) - 1
        back = last
        while (
            back > k
            and k - (last - back) - 1 > place[writer]
            and self.members[back] == [at - 1 - (last - back)]
            and self._alike(back, k - (last - back) - 1)
        ):
            back -= 1
        for q in range(last, back, -1):
            self.members[k - (last - q) - 1].extend(self.members[q])
            self.members[q].clear()
        if back < last:
            del self.texts[back + 1 :], self.families[back + 1 :], self.members[back + 1 :]
            for w in place:
                place[w] = min(place[w], back)
        place[writer] = k - 1
        return writer

    def _alike(self, one: int, other: int) -> bool:
        if self.texts[one] == self.texts[other]:
            return True
        few = self.often[self.texts[one]] < self.number and self.often[self.texts[other]] < self.number
        return self.families[one] == self.families[other] and few

    def _insert(self, place: int, text: int, family: int) -> int:
        """Put a record into the sequence; return its place."""
        self.texts.insert(place, text)
        self.families.insert(place, family)
        self.members.insert(place, [])
        if place < len(self.texts) - 1:
            for writer, at in self.at.items():
                if at >= place:
                    self.at[writer] = at + 1
        return place
