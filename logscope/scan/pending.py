"""Records that one look at one line does not tell: torn, glued, quoted, or going on in the lines that follow.

This module is responsible for reading a physical line exactly: where records begin and end on it, what stood before,
text that goes on in the next line (tensors), cut records and their tails, and what each counts as. It must not know
which lines it is given, what events mean, or which pass or segment a record belongs to.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import regex

from logscope.grammar import OVERTIMES, TIME_LIMIT
from logscope.grammar.records import LONGEST_BEFORE, Anchored
from logscope.model import NO_PREFIX, Accounting, Payload, Prefix, within
from logscope.scan.traces import Traces, may_be_of

if TYPE_CHECKING:
    from logscope.grammar import Grammar
    from logscope.grammar.records import Dialect, Reading
    from logscope.sources.blocks import Block
    from logscope.sources.places import Places

# How many physical lines a record may wait for what it lacks.
_PATIENCE = {"tail": 4, "tensor": 24}
TENSOR_CHARACTERS = 1 << 16
# How many records may wait at once, how long a waiting one may be, how often it is read again with more text, and how
# much may wait behind it: hostile input costs a bounded multiple of its length. The oldest gives up first.
_WAITING = {"tail": 32, "tensor": 16}
_LONGEST_TORN = 1 << 20
_TRIES = 160
_QUEUED = 1 << 16
# Texts of a line may be looked at so many times its length in vain; reading a repr costs more than trying a pattern.
_IN_VAIN = 64
_COST_OF_REPR = 16
# Distinct beginnings of lines remembered; beyond it the memory is emptied and fills again. Never changes a result.
REMEMBERED = 1 << 15
_LONG_BEFORE = 256
# How far before its anchor a record's own words (`RuntimeError: `) are looked for.
_LONGEST_LEAD = 600

_MISMATCH = frozenset({"matmul_mismatch", "weight_shape_mismatch", "size_mismatch"})
# Records that are an exception's own line where its name stands before them: one behind a traceback is said there.
_CRASHES = frozenset({"cuda_error", "out_of_memory"})
_RAISED = re.compile(r"(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception): ")
_BETWEEN_CR = re.compile(r"[^\r]+")


@dataclass(slots=True)
class Here:
    """Where a line of text begins: line and offset in the file, position in its block, and what stood around it."""

    line: int
    offset: int
    start: int = 0
    outer: Prefix = NO_PREFIX
    places: Places | None = None

    @classmethod
    def of(cls, block: Block, line: int, start: int) -> Here:
        """Return where a line of a block's text stands; ``line`` is its number where the text is the file's own."""
        places = block.places
        if places is None:
            return cls(line, block.offset + start)
        lines, offsets, records = places.find([start])
        return cls(int(lines[0]), int(offsets[0]), start, places.prefix(int(records[0])), places)

    def place(self, at: int) -> tuple[int, int]:
        """Return line and offset in the file of the byte at a position of the line."""
        if self.places is None:
            return self.line, self.offset + at
        line, offset, _ = self.places.find([self.start + at])
        return int(line[0]), int(offset[0])


@dataclass(slots=True)
class Found:
    """One record or mark: where it stands, what stood before it, what it says, and its own text.

    ``open`` while following lines may still complete it. ``waited``: lines since it was last added to; ``tries``: how
    often more text was tried; ``source``, ``number``: which text and line it stands in, the rest of which is its own.
    """

    line: int
    offset: int
    prefix: Prefix
    payload: Payload
    text: str = ""
    open: str | None = None
    anchor: str = ""
    waited: int = 0
    tries: int = 0
    source: int = 0
    number: int = 0


class Pending:
    """Reads lines one by one; ``out`` has the records that are complete, in file order.

    ``waiting`` is True while a record may go on in the next line, which then must be read here too.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.accounting = Accounting()
        self.lines_with_part = 0
        self.out: list[Found] = []
        self._queue: deque[Found] = deque()
        self._pending: list[Found] = []
        self._befores: dict[str, tuple[int, Prefix]] = {}
        self._traces = Traces(grammar)
        self._here = Here(0, 0)
        self._counted_line = 0
        self._texts = self._number = 0

    @property
    def waiting(self) -> bool:
        """Whether a record may go on in the next line."""
        return bool(self._pending or self._traces.waiting)

    def line(self, raw: bytes, here: Here, *, continues: bool = False) -> None:
        """Read one line. A lone CR separates texts on it; the CR of CRLF belongs to the line end."""
        self._here = here
        if not continues:
            self._number += 1
            self._age()
        text = raw.decode("latin-1").removesuffix("\r")
        first = not continues
        # One by one: a line may hold nothing but millions of CRs.
        for found in _BETWEEN_CR.finditer(text):
            part = found[0]
            self._text(part, found.start(), first=first)
            first = first and not part.strip()
        self._flush()

    def close(self, gap: str | None = None) -> None:
        """Close what waits for a following line, as it stands; ``gap`` says why nothing follows."""
        for entry in self._pending:
            if gap is not None and entry.payload.intact == "cut":
                entry.payload = replace(entry.payload, intact="partial", reason=gap)
            entry.open = None
        self._pending = []
        self._traces.close()
        self._flush()

    def _text(self, text: str, begins: int, *, first: bool) -> None:
        """Read one text of a line, which begins there: its records from left to right, and what stands between."""
        grammar = self.grammar
        self._texts += 1
        anchored = Anchored(grammar, text)
        # Characters that may be read in vain, in all: a repr beyond the next record, what turns out to be no record.
        spare = _IN_VAIN * len(text)
        position = search = 0
        records = 0
        while (found := grammar.find(text, search)) is not None:
            at, anchor = found
            after = search = at + len(anchor)
            if anchored.quoted(at, position):
                self.accounting.quoted += self._would_be(text, at, anchor)
                continue
            limit = reach = anchored.limit(after)
            if spare > 0:
                reach = len(text)
            elif anchor not in grammar.strict:
                following = grammar.find(text, after)
                limit = reach = min(limit, following[0]) if following is not None else limit
            reading = grammar.read(text, at, anchor, limit, reach)
            if limit < reach and reading is not None and reading.end <= limit:
                spare -= _COST_OF_REPR * (reach - at)
            if reading is None:
                spare -= limit - at
                search = at + 1
                continue
            search = max(reading.end, after)
            payload = reading.payload
            if payload.kind == "quoted":
                self.accounting.quoted += 1
                continue
            start = max(position, at - LONGEST_BEFORE)
            begin, prefix = self._before(text[start:at], anchor)
            begin, prefix = begin + start, within(self._here.outer, prefix)
            line, offset = self._here.place(begins + at)
            if payload.kind == "mark":
                self._queue.append(Found(line, offset, prefix, payload))
                continue
            raised = None
            if not position and (self._traces.waiting or payload.event in _CRASHES):
                raised = _RAISED.match(text, self.grammar.peel(text)[0], at)
            if raised is not None:
                mismatch = line if payload.event in _MISMATCH else None
                ended = self._traces.end(text[:limit], prefix, self._number, mismatch)
                if ended and mismatch is None and anchor not in grammar.strict:
                    self._part_of()
                    continue
            elif self.waiting and text[position:begin].strip():
                self._offer(text[position:begin], NO_PREFIX)
            if payload.event in _CRASHES:
                if raised is None and _RAISED.search(text, position, at):  # in the middle of a sentence
                    continue
                if raised is not None:
                    payload.fields["exception"] = raised[0][:-2]
            glued = begin > 0 or not first
            if glued:
                prefix = replace(prefix, peeled=False)
                self.accounting.glued += 1
            self._count_quoted(text, after, reading.end)
            entry = Found(line, offset, prefix, payload, text[at : max(reading.end, at + payload.length)])
            self._admit(entry, reading, text, at, anchor, limit)
            records += 1
            position = search
        rest = text[position:]
        if self.waiting and (rest.strip() or records == 0):
            end, prefix = self.grammar.peel(rest) if records == 0 else (0, NO_PREFIX)
            self._offer(rest[end:], prefix)

    def _would_be(self, text: str, at: int, anchor: str) -> bool:
        """Tell whether quoted text would have been a record (a bare `Capture ` in a sentence would not)."""
        if anchor in self.grammar.strict:
            return True
        following = self.grammar.find(text, at + len(anchor))
        limit = len(text) if following is None else following[0]
        reading = self.grammar.read(text, at, anchor, limit)
        return reading is not None and reading.payload.kind == "event"

    def _before(self, before: str, anchor: str) -> tuple[int, Prefix]:
        """Return where a record's prefix begins in the text before it, and the prefix."""
        if not before:
            return 0, NO_PREFIX
        if len(before) > _LONG_BEFORE:
            return self._peel(before, anchor)
        key = anchor + before
        known = self._befores.get(key)
        if known is None:
            known = self._peel(before, anchor)
            if len(self._befores) >= REMEMBERED:
                self._befores.clear()
            self._befores[key] = known
        return known

    def _peel(self, before: str, anchor: str) -> tuple[int, Prefix]:
        end, prefix = self.grammar.peel(before)
        if not before[end:].strip():
            return 0, prefix
        for dialect in self.grammar.anchors[anchor]:
            # Words that belong to the record though they stand before its anchor: `RuntimeError: `.
            lead = self._lead(dialect, before)
            if lead is not None:
                end, prefix = self.grammar.peel(before[: lead.start()])
                if end >= lead.start() or not before[end : lead.start()].strip():
                    return 0, prefix
                return self.grammar.peel_back(before[: lead.start()])
        return self.grammar.peel_back(before)

    def _lead(self, dialect: Dialect, before: str) -> Any:
        """Return where a record's own words before its anchor begin, None when there are none."""
        if dialect.lead is None or dialect.overtimes >= OVERTIMES:
            return None
        try:
            return dialect.lead.search(before, max(0, len(before) - _LONGEST_LEAD), timeout=TIME_LIMIT)
        except TimeoutError:
            dialect.overtimes += 1
            return None

    def _count_quoted(self, text: str, start: int, end: int) -> None:
        """Count what looks like a record inside a value of the record just read."""
        found = self.grammar.find(text, start, end)
        while found is not None:
            at, anchor = found
            self.accounting.quoted += self._would_be(text, at, anchor)
            found = self.grammar.find(text, at + len(anchor), end)

    def _admit(self, entry: Found, reading: Reading, text: str, at: int, anchor: str, limit: int) -> None:
        """Put a record into the queue; keep it open when a following line may complete it."""
        opened = reading.open
        payload = entry.payload
        torn = limit < len(text)
        if opened == "tail" and payload.intact == "partial" and not torn:
            # Nothing shows that the record was torn: it is of a kind that never prints the missing field.
            opened = None
        if opened == "tensor" and torn:
            opened = "tail"
        if opened in ("tail", "tensor") and limit - at > _LONGEST_TORN:
            opened = None
        if opened is not None:
            entry.open, entry.anchor = opened, anchor
            if opened not in _WAITING:
                self._traces.begin(entry, self._number, text[max(0, at - LONGEST_BEFORE) : at])
            else:
                entry.text, entry.source, entry.number = text[at:limit], self._texts, self._number
                self._pending.append(entry)
                alike = [other for other in self._pending if other.open == opened]
                if len(alike) > _WAITING[opened]:
                    alike[0].open = None
                    self._pending = [other for other in self._pending if other.open is not None]
        self._queue.append(entry)
        # While something waits, later lines are counted before it is sent out: this is the line's turn.
        self._part_of()
        if len(self._queue) > _QUEUED:
            self.close()

    def _flush(self) -> None:
        """Send out what is complete, in file order."""
        queue = self._queue
        while queue and queue[0].open is None:
            entry = queue.popleft()
            self.out.append(entry)
            self._count(entry.payload)

    def _age(self) -> None:
        """Close what has waited long enough."""
        for entry in self._pending:
            entry.waited += 1
            if entry.open is not None and entry.waited > _PATIENCE[entry.open]:
                entry.open = None
        self._pending = [entry for entry in self._pending if entry.open is not None]
        self._traces.age()

    def _offer(self, text: str, inner: Prefix) -> None:
        """Offer text that is no record to what waits for it: a tensor that goes on, a traceback, a torn record."""
        prefix = within(self._here.outer, inner)
        taken = self._continue_tensor(text) or self._traces.take(text, prefix, self._number)
        # What has a stamp of its own is no rest of another line.
        if taken or (inner.time is None and self._rejoin(text, prefix)):
            self._part_of()
        self._pending = [entry for entry in self._pending if entry.open is not None]

    def _continue_tensor(self, text: str) -> bool:
        """Append a line to the first open tensor that it continues."""
        waiting = [entry for entry in self._pending if entry.open == "tensor" and entry.number != self._number]
        if not waiting or not text.strip():
            return False
        for entry in waiting:
            joined = entry.text + "\n" + text
            entry.tries += 1
            if entry.tries > _TRIES or len(joined) > TENSOR_CHARACTERS:
                continue
            reading = self.grammar.read(joined, 0, entry.anchor, len(joined))
            if reading is None or (reading.payload.kind, reading.payload.event) != ("event", entry.payload.event):
                continue
            more = reading.open == "tensor" and _TENSOR_LINE.match(text) is not None
            if not more and (reading.open is not None or joined[reading.end :].strip()):
                continue
            payload = reading.payload
            if len(waiting) > 1 and payload.usable and _DIGITS.search(text.partition("=")[0]):
                # Several writers' tensors are open: which of them goes on here is a guess.
                payload.intact = "rejoined"
                payload.reason = f"{len(waiting)} tensors were open when it went on"
            entry.text, entry.payload, entry.waited = joined, payload, 0
            if not more:
                entry.open = None
            return True
        return False

    def _rejoin(self, text: str, prefix: Prefix) -> bool:
        """Join a torn record with the text that completes it, if exactly one torn record fits."""
        if len(text) > TENSOR_CHARACTERS or not text.strip():
            return False
        joined: list[tuple[Found, Payload]] = []
        for entry in reversed(self._pending):
            if entry.open != "tail" or entry.source == self._texts or not may_be_of(prefix, entry.prefix):
                continue
            entry.tries += 1
            if entry.tries > _TRIES:
                continue
            whole = entry.text + text
            reading = self.grammar.read(whole, 0, entry.anchor, len(whole))
            if reading is None or reading.open is not None or whole[reading.end :].strip(" ,;\t"):
                continue
            payload = reading.payload
            if payload.kind == "event" and payload.intact == "whole" and payload.event == entry.payload.event:
                joined.append((entry, payload))
        texts = {entry.text for entry, _ in joined}
        if len(texts) != 1:
            return False
        entry, payload = joined[0]
        payload.reason = f"torn, and joined with the text on a following line: {entry.payload.reason}"
        payload.intact = "rejoined"
        entry.payload, entry.open, entry.text = payload, None, entry.text + text
        return True

    def _count(self, payload: Payload) -> None:
        """Account for one record that is done."""
        if payload.kind == "event":
            setattr(self.accounting, payload.intact, getattr(self.accounting, payload.intact) + 1)
        elif payload.kind == "unparsed":
            self.accounting.unparsed += 1

    def _part_of(self) -> None:
        """Remember that this line of the file holds a part of a record."""
        if self._here.line != self._counted_line:
            self._counted_line = self._here.line
            self.lines_with_part += 1


# Text that can stand inside a tensor, up to a keyword or the end.
_TENSOR_LINE = regex.compile(r"[\s\d.,eE+\-\[\]()nainftTrueFls]*+(?:\w++=|(?<=\w)=|$)")
_DIGITS = re.compile(r"\d\.\d|\d,")
