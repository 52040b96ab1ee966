"""From blocks of bytes to occurrences: every record once, in file order, with its damage named.

This module is responsible for lines: where records begin and end on them, what stood before, text that goes on in the
next line (tensors, tracebacks), cut records and their tails, and the accounting. It must not know what events mean,
which pass or segment they belong to, or how anything is shown.

Most lines of a large log say what another line said: eight ranks print the same text. A line whose text was read
before costs two dictionary look-ups; only new text reaches the exact grammar, and most new text only for its numbers
(see :meth:`Parser._quick`). Both ways give the same payloads; a property test compares every column.
"""

from __future__ import annotations

import codecs
import math
import re
from collections import deque
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import regex

from logscope.grammar import OVERTIMES, TIME_LIMIT
from logscope.grammar.literals import as_text, exact_in_half_precision
from logscope.grammar.records import LONGEST_BEFORE, Anchored, inside_quotes
from logscope.model import NO_PREFIX, Accounting, Occurrence, Payload, Prefix
from logscope.templates import DIGITS, Template, learn

if TYPE_CHECKING:
    from logscope.blocks import Block
    from logscope.grammar import Grammar
    from logscope.grammar.records import Dialect, Reading

# How many physical lines a record may wait for what it lacks.
_PATIENCE = {"tail": 4, "tensor": 24, "traceback": 400}
TENSOR_CHARACTERS = 1 << 16
# How many records may wait at once, how long a waiting one may be, how often it is read again with more text, and how
# much may wait behind it: hostile input costs a bounded multiple of its length. The oldest gives up first.
_WAITING = {"tail": 32, "tensor": 16, "traceback": 256}
_LONGEST_TORN = 1 << 20
_TRIES = 64
_QUEUED = 1 << 16
# Texts of a line may be looked at so many times its length in vain; reading a repr costs more than trying a pattern.
_IN_VAIN = 64
_COST_OF_REPR = 16
# Distinct texts remembered; beyond it the memory is emptied and fills again. Bounds memory, never changes a result.
REMEMBERED = 1 << 15
REMEMBERED_BYTES = 16 << 20
# A line longer than this is not remembered beyond its block, nor learned from.
_LONG_LINE = 4096
_LONG_BEFORE = 256
# How far before its anchor a record's own words (`RuntimeError: `) are looked for.
_LONGEST_LEAD = 600
# Lines with bytes that are not UTF-8 that are listed by number.
LISTED_LINES = 50

_QUICK_TAIL = re.compile(rb", norm=(\d+\.\d{4}), first5=\[(-?\d[\d.e+-]*(?:, -?\d[\d.e+-]*)*)\]")
_QUICK_NUMBER = re.compile(rb"-?\d[\d.e+-]*")
_EXCEPTION = re.compile(r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?:: (?P<message>.*))?$", re.DOTALL)
_FRAME = re.compile(r"\s*File \"(?P<file>[^\"]*)\", line (?P<line>\d+)(?:, in (?P<function>.*))?")
_MISMATCH = frozenset({"matmul_mismatch", "weight_shape_mismatch", "size_mismatch"})
_SURROGATE = re.compile("[\udc80-\udcff]")


_NEWLINE = 10
_BETWEEN_CR = re.compile(r"[^\r]+")
_BRACKET = ord("]")
# The same text with every digit a nought: what was refused in this form is refused again.
_NOUGHTS = bytes.maketrans(DIGITS, b"0" * 10)
# A kind of line gets a template when it has been read so often, and none when there are that many kinds.
_SIGHTINGS = 48
_KINDS = 512
_COLUMNS = tuple(name for name in Payload.__slots__ if name not in ("fields", "length"))
_BEFORE_FIELDS = _COLUMNS.index("intact")
# What a line says that is one record: its payload when it begins the line, else where it begins, its prefix, itself.
_Said: TypeAlias = Payload | tuple[int, Prefix, Payload]
_Key = TypeVar("_Key")
_Thing = TypeVar("_Thing")
# What a line says that holds no anchor.
_BORING = Payload("mark", "")
_NEVER_SEEN = Payload("mark", "")
# Blocks with fewer debug records than one in so many lines have few lines that are said twice.
_SPARSE = 4


def _wrong_bytes(data: bytes) -> int:
    """Return how many bytes of a text are not UTF-8."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return len(data) - len(data.decode("utf-8", "ignore").encode("utf-8"))
    return 0


def _remember(memory: dict[_Key, _Thing], key: _Key, thing: _Thing) -> None:
    """Add to a memory, which is emptied first when it is full."""
    if len(memory) >= REMEMBERED:
        memory.clear()
    memory[key] = thing


def _index_of_none(known: list[_Said | None], start: int, total: int) -> int:
    try:
        return known.index(None, start)
    except ValueError:
        return total


@dataclass(slots=True)
class _Entry:
    """A record on its way out; ``open`` while following lines may still complete it.

    ``waited``: lines since it was last added to; ``tries``: how often more text was tried; ``level``: brackets open in
    the text of its tensor; ``source``: the number of the text it stands in, the rest of which is its own.
    """

    line: int
    offset: int
    prefix: Prefix
    payload: Payload
    open: str | None = None
    text: str = ""
    anchor: str = ""
    waited: int = 0
    tries: int = 0
    level: int = 0
    source: int = 0
    marked: bool = False


@dataclass(slots=True)
class _Known:
    """A kind of line that is one record behind a prefix: its anchor, and the template of the record's text.

    ``columns`` are those of its payload up to the fields, which are the same for every line of the kind.
    """

    anchor: bytes
    template: Template
    columns: tuple[Any, ...]


class Parser:
    """Reads one file's blocks, in order.

    grammar
        what records there are.
    file
        its name as the user gave it.
    quick
        False sends every text through the exact grammar (for the differential test).

    """

    def __init__(self, grammar: Grammar, file: str = "-", *, quick: bool = True) -> None:
        self.grammar = grammar
        grammar.begin_file()
        self.file = file
        self.accounting = Accounting()
        self.invalid_lines: list[int] = []
        self._quick_allowed = quick
        self._out: list[Occurrence] = []
        self._queue: deque[_Entry] = deque()
        self._pending: list[_Entry] = []
        self._hot = (grammar.hot or "\n").encode("latin-1")
        self._seen: dict[bytes, _Said | None] = {}
        self._held = 0
        self._boring: dict[bytes, Payload] = {}
        self._refused: set[bytes] = set()
        self._kinds: dict[bytes, int | _Known] = {}
        self._before_kinds: dict[bytes, int | Template] = {}
        self._heads: dict[bytes, Payload] = {}
        self._wholes: dict[bytes, Payload] = {}
        self._numbers: dict[bytes, float] = {}
        self._prefixes: dict[bytes, Prefix] = {b"": NO_PREFIX}
        self._befores: dict[str, tuple[int, Prefix]] = {}
        self._counted_line = 0
        self._lines_with_part = 0
        self._open_line = False
        self._last_line = 0
        self._texts = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._undecoded = False
        self._newlines = 0

    # ------------------------------------------------------------------------------------------------ the fast loop

    def feed(self, block: Block) -> list[Occurrence]:
        """Take the next block; return the records that are complete, in file order."""
        self._count_bytes(block)
        if block.gap:
            self._close_pending("lines were left out behind it")
        data = block.data
        lines = data.split(b"\n")
        if not lines[-1]:
            lines.pop()
        number = block.line
        # Offsets without the newlines; those add one for every line before.
        offsets = list(accumulate(map(len, lines), initial=block.offset - number))
        if b"\r\n" in data:
            # The CR of CRLF belongs to the line end: equal records of such a log are one payload too.
            lines = [line.removesuffix(b"\r") for line in lines]
        at = 0
        if lines and (self._pending or block.continues):
            self._line(lines[0], number, block.offset, continues=block.continues)
            at = self._slow(lines, offsets, number, 1)
        known = self._know(lines, data)
        total = len(lines)
        while at < total:
            # Up to the next line that has to be looked at by itself, everything was said before.
            stop = _index_of_none(known, at, total)
            if stop > at:
                self._repeat(known, offsets, number, at, stop)
            if stop < total:
                self._single(lines[stop], number + stop, offsets[stop] + number + stop)
                at = self._slow(lines, offsets, number, stop + 1)
            else:
                at = total
        self._open_line = bool(data) and data[-1] != _NEWLINE
        if block.final:
            return self.close()
        return self._take()

    def _slow(self, lines: list[bytes], offsets: list[int], number: int, at: int) -> int:
        """Read lines one by one while a record waits for what follows it; return the first line not read."""
        total = len(lines)
        while self._pending and at < total:
            self._line(lines[at], number + at, offsets[at] + number + at)
            at += 1
        return at

    def _know(self, lines: list[bytes], data: bytes) -> list[_Said | None]:
        """Return what each line says if it is known: one whole record, or nothing at all (_BORING); else None."""
        seen = self._seen
        if len(seen) >= REMEMBERED or self._held > REMEMBERED_BYTES:
            seen.clear()
            self._held = 0
        if not self._quick_allowed:
            return [None] * len(lines)
        if data.count(self._hot) * _SPARSE < len(lines):
            return self._know_kinds(lines, data)
        for line in dict.fromkeys(lines):
            if line not in seen:
                seen[line] = self._first_look(line)
                self._held += len(line)
        return list(map(seen.__getitem__, lines))

    def _know_kinds(self, lines: list[bytes], data: bytes) -> list[_Said | None]:
        """Do the same where few lines repeat another one: most are told to hold nothing by their kind, in bulk."""
        seen = self._seen
        known: list[_Said | None] = list(map(self._boring.get, data.translate(None, DIGITS).split(b"\n")))
        del known[len(lines) :]
        total = len(lines)
        at = _index_of_none(known, 0, total)
        while at < total:
            line = lines[at]
            said = seen.get(line, _NEVER_SEEN)
            if said is _NEVER_SEEN:
                said = seen[line] = self._first_look(line)
                self._held += len(line)
            if said is not None:
                known[at] = said
            at = _index_of_none(known, at + 1, total)
        return known

    def _first_look(self, line: bytes) -> _Said | None:
        """Return what a line says that was never seen, if it says it in the plainest way.

        A payload alone stands at the beginning of its line, without a prefix.
        """
        mark = line.find(self._hot)
        if mark > 0:
            return self._behind_prefix(line, mark)
        if mark == 0:
            return self._quick(line) or self._plain(line)
        # Most lines without a record differ from others of their kind in numbers only.
        kind = line.translate(None, DIGITS)
        if kind in self._boring:
            return _BORING
        known = self._kinds.get(kind)
        if known is not None:
            return None if isinstance(known, int) else self._by_template(line, known)
        if self.grammar.undigited_finder.search(kind) is None:
            if len(kind) <= _LONG_LINE:
                _remember(self._boring, kind, _BORING)
            return _BORING
        if self.grammar.byte_finder.search(line) is None or line.translate(_NOUGHTS) in self._refused:
            return _BORING
        return None

    def _behind_prefix(self, line: bytes, mark: int) -> tuple[int, Prefix, Payload] | None:
        """Read a line of which only the prefix or the numbers are new."""
        text, before = line[mark:], line[:mark]
        payload = self._seen.get(text)
        if payload.__class__ is not Payload:
            payload = self._quick(text)
            if payload is None:
                return None
            self._seen[text] = payload
        prefix = self._prefixes.get(before) or self._prefix(before)
        return None if prefix is None else (mark, prefix, payload)

    def _by_template(self, line: bytes, known: _Known) -> tuple[int, Prefix, Payload] | None:
        """Read a line of a known kind by its template; None when it is to be read exactly."""
        if line.endswith(b"\r"):
            line = line[:-1]
        at = line.find(known.anchor)
        prefix = self._prefix(line[:at])
        if prefix is None:
            return None
        text = line[at:]
        fields = known.template.read(text)
        if fields is None:
            return None
        return at, prefix, Payload(*known.columns, fields, "whole", None, None, len(text))  # type: ignore[call-arg]

    def _prefix(self, before: bytes) -> Prefix | None:
        """Return a prefix that was seen, or is of a kind that was."""
        prefix = self._prefixes.get(before)
        if prefix is None:
            template = self._before_kinds.get(before.translate(None, DIGITS))
            if template is None or isinstance(template, int):
                return None
            values = template.read(before)
            if values is None:
                return None
            prefix = Prefix(**values)
            self._remember_prefix(before, prefix)
        return prefix

    def _remember_prefix(self, before: bytes, prefix: Prefix) -> None:
        if len(self._prefixes) >= REMEMBERED:
            self._prefixes.clear()
            self._prefixes[b""] = NO_PREFIX
        self._prefixes[before] = prefix

    def _repeat(self, known: list[Any], offsets: list[int], number: int, start: int, stop: int) -> None:
        """Send out a stretch of lines that say what was read before."""
        out = self._out
        count = len(out)
        stretch = zip(range(number + start, number + stop), offsets[start:stop], known[start:stop], strict=True)
        out += [
            (line, before + line, NO_PREFIX, said)
            if said.__class__ is Payload
            else (line, before + line + said[0], said[1], said[2])
            for line, before, said in stretch
            if said is not _BORING
        ]
        # Only whole records of one line are known, so each counts as one whole record on a line of its own.
        records = len(out) - count
        self.accounting.whole += records
        self._lines_with_part += records
        if records:
            self._counted_line = out[-1][0]

    def _single(self, line: bytes, number: int, offset: int) -> None:
        """Read one line: quickly when what came before it in the block makes it known."""
        if self._quick_allowed:
            # What begins with the anchor and was not read plainly before will not be now, but for its numbers.
            plain = line.startswith(self._hot)
            said = self._seen.get(line) or self._quick(line) if plain else self._first_look(line)
            if said is _BORING:
                return
            if said is not None:
                at, prefix, payload = (0, NO_PREFIX, said) if isinstance(said, Payload) else said
                self._out.append((number, offset + at, prefix, payload))
                self.accounting.whole += 1
                self._part_of(number)
                return
        self._line(line, number, offset)

    def close(self) -> list[Occurrence]:
        """End of the file: what waited for a following line is closed as it stands."""
        self._close_pending(None)
        if self._undecoded:
            self.accounting.invalid_utf8_bytes += len(_SURROGATE.findall(self._decoder.decode(b"", final=True)))
            self._undecoded = False
        return self._take()

    def _take(self) -> list[Occurrence]:
        out, self._out = self._out, []
        accounting = self.accounting
        accounting.lines = self._newlines + (1 if self._open_line else 0)
        accounting.other_lines = accounting.lines - self._lines_with_part
        return out

    def _count_bytes(self, block: Block) -> None:
        data = block.data
        self.accounting.bytes += len(data)
        self._newlines += block.newlines or data.count(b"\n")
        if data.isascii() and not self._undecoded:
            return
        if self._undecoded or not data.endswith(b"\n"):
            # A piece of a long line may end inside a character.
            text = self._decoder.decode(data)
            self._undecoded = bool(self._decoder.getstate()[0])
            wrong = len(_SURROGATE.findall(text))
        else:
            wrong = _wrong_bytes(data)
        if wrong:
            self.accounting.invalid_utf8_bytes += wrong
            self._list_invalid(block)

    def _list_invalid(self, block: Block) -> None:
        """Remember the first lines that hold bytes which are not UTF-8."""
        for number, raw in enumerate(block.data.split(b"\n"), block.line):
            if len(self.invalid_lines) >= LISTED_LINES:
                return
            try:
                raw.decode("utf-8")
            except UnicodeDecodeError:
                self.invalid_lines.append(number)

    def _count(self, payload: Payload) -> None:
        """Account for one record that is done."""
        accounting = self.accounting
        if payload.kind == "event":
            intact = payload.intact
            setattr(accounting, intact, getattr(accounting, intact) + 1)
        elif payload.kind == "unparsed":
            accounting.unparsed += 1

    def _part_of(self, line: int) -> None:
        """Remember that this line holds a part of a record."""
        if line != self._counted_line:
            self._counted_line = line
            self._lines_with_part += 1

    def _quick(self, text: bytes) -> Payload | None:
        """Read a record whose beginning was read before: only its norm and head are new.

        The form is the plain one (``, norm=12.3456, first5=[...]`` at the end of the line); anything else is left to
        the exact grammar, and so are heads whose values were rounded when printed.
        """
        cut = text.rfind(b", norm=")
        if cut < 0:
            return self._wholes.get(text)
        first = self._heads.get(text[:cut])
        if first is None:
            return None
        norm, opened, values = text[cut + 7 : -1].partition(b", first5=[")
        if (
            not opened
            or text[-1] != _BRACKET
            or not 5 < len(norm) < 24
            or norm[-5:-4] != b"."
            or not norm.replace(b".", b"", 1).isdigit()
        ):
            return None
        tokens = values.split(b", ")
        numbers = self._numbers
        try:
            head = tuple([numbers[token] for token in tokens])
        except KeyError:
            if not all(map(self._is_plain_number, tokens)):
                return None
            head = tuple(map(float, tokens))
        return first.sibling(float(norm), head, len(text))

    def _is_plain_number(self, token: bytes) -> bool:
        """Tell whether a printed value was not rounded, and remember it: a log has few different ones."""
        if token in self._numbers:
            return True
        if _QUICK_NUMBER.fullmatch(token) is None:
            return False
        try:
            number = float(token)
        except ValueError:
            return False
        if not math.isfinite(number) or not exact_in_half_precision(number):
            return False
        _remember(self._numbers, token, number)
        return True

    def _plain(self, text: bytes) -> Payload | None:
        """Read a line that is one whole record and nothing else; None when it is more or less than that."""
        latin = text.decode("latin-1").removesuffix("\r")
        found = self.grammar.find(latin)
        if found is None or found[0] != 0 or "\r" in latin or self.grammar.find(latin, len(found[1])) is not None:
            return None
        if Anchored(self.grammar, latin).limit(len(found[1])) != len(latin):
            return None
        reading = self.grammar.read(latin, 0, found[1], len(latin))
        if reading is None or reading.open is not None or reading.end != len(latin):
            return None
        payload = reading.payload
        if payload.kind != "event" or payload.intact != "whole":
            return None
        self._learn_head(text, payload)
        return payload

    def _learn_head(self, text: bytes, payload: Payload) -> None:
        """Remember a record's beginning, if what follows it is only a norm and a head; all of it, if it has none.

        Texts without numbers of their own are few, and wanted in every block.
        """
        cut = text.rfind(b", norm=")
        if cut < 0:
            _remember(self._wholes, text, payload)
        elif cut > 0 and payload.head is not None and not payload.norm_derived and _QUICK_TAIL.fullmatch(text, cut):
            _remember(self._heads, text[:cut], payload)

    # ------------------------------------------------------------------------------------------------ one whole line

    def _line(self, raw: bytes, line: int, offset: int, *, continues: bool = False) -> None:
        """Read one physical line exactly. A lone CR separates texts on it; the CR of CRLF belongs to the line end."""
        self._age(line)
        text = raw.decode("latin-1")
        text = text.removesuffix("\r")
        if "\r" not in text:
            quoted = self.accounting.quoted
            waiting = bool(self._pending)
            count = self._text(text, line, offset, first=not continues, alone=not continues)
            if not count and not waiting and not continues and quoted == self.accounting.quoted:
                self._refuse(raw)
        else:
            first = not continues
            # One by one: a line may hold nothing but millions of CRs.
            for found in _BETWEEN_CR.finditer(text):
                part = found[0]
                self._text(part, line, offset + found.start(), first=first, alone=False)
                first = first and not part.strip()
        self._flush()

    def _text(self, text: str, line: int, offset: int, *, first: bool, alone: bool) -> int:
        """Read one text of a line: the records on it from left to right, and what stands between them.

        Returns how many records and marks stand on it.
        """
        grammar = self.grammar
        self._texts += 1
        anchored = Anchored(grammar, text)
        # Characters that may be read in vain, in all: a repr beyond the next record, what turns out to be no record.
        spare = _IN_VAIN * len(text)
        position = search = 0
        records = marks = 0
        while True:
            found = grammar.find(text, search)
            if found is None:
                break
            at, anchor = found
            after = at + len(anchor)
            if anchored.quoted(at, position):
                self.accounting.quoted += self._would_be(text, at, anchor)
                search = after
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
            payload = reading.payload
            if payload.kind == "quoted":
                self.accounting.quoted += 1
                search = max(reading.end, after)
                continue
            start = max(position, at - LONGEST_BEFORE)
            begin, prefix = self._before(text[start:at], anchor)
            begin += start
            if payload.kind == "mark":
                self._queue.append(_Entry(line, offset + at, prefix, payload))
                marks += 1
                search = max(reading.end, after)
                continue
            if self._pending and text[position:begin].strip():
                self._offer(text[position:begin], NO_PREFIX, line)
            glued = begin > 0 or not first
            if glued:
                prefix = replace(prefix, peeled=False)
                self.accounting.glued += 1
            self._count_quoted(text, after, reading.end)
            entry = _Entry(line, offset + at, prefix, payload)
            self._admit(entry, reading, text, at, anchor, limit)
            if payload.event in _MISMATCH and self._pending:
                self._end_traceback(prefix, text[begin:limit], payload, line)
            records += 1
            position = search = max(reading.end, after)
            if alone and records == 1 and not glued and reading.open is None:
                self._learn(text, at, anchor, reading)
        rest = text[position:]
        if self._pending and (rest.strip() or records == 0):
            end, prefix = self.grammar.peel(rest) if records == 0 else (0, NO_PREFIX)
            self._offer(rest[end:], prefix, line)
        return records + marks

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
            _remember(self._befores, key, known)
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

    def _learn(self, text: str, at: int, anchor: str, reading: Reading) -> None:
        """Remember a text that is one whole record up to the line's end, and its beginning, for the fast loop.

        One that holds another anchor is read again every time: what it quotes is counted.
        """
        payload = reading.payload
        if payload.kind != "event" or not payload.usable or reading.end != len(text) or not self._quick_allowed:
            return
        if len(text) > _LONG_LINE:
            return
        before = text[:at].encode("latin-1")
        if before not in self._prefixes:
            self._remember_prefix(before, self._before(text[:at], anchor)[1])
            self._learn_prefix(before)
        if payload.intact != "whole" or self.grammar.find(text, at + len(anchor)) is not None:
            return
        if anchor == self.grammar.hot:
            raw = text[at:].encode("latin-1")
            self._seen[raw] = payload
            self._learn_head(raw, payload)
        else:
            self._learn_kind(text, at, anchor, payload)

    def _learn_kind(self, text: str, at: int, anchor: str, payload: Payload) -> None:
        """Count a line's kind, and make a template of it once it was read a few times."""
        kind = text.encode("latin-1").translate(None, DIGITS)
        if not _is_due(self._kinds, kind) or anchor not in self.grammar.steady:
            return
        if len(self.grammar.undigited_finder.findall(kind)) != 1:
            return
        columns = [getattr(payload, name) for name in _COLUMNS]

        def read(probe: str) -> dict[str, Any] | None:
            found = self.grammar.read(probe, 0, anchor, len(probe)) if probe.startswith(anchor) else None
            if found is None or found.open is not None or found.end != len(probe):
                return None
            said = found.payload
            if said.length != len(probe) or [getattr(said, name) for name in _COLUMNS] != columns:
                return None
            return said.fields

        template = learn(text[at:], read)
        if template is not None:
            self._kinds[kind] = _Known(anchor.encode("latin-1"), template, tuple(columns[:_BEFORE_FIELDS]))

    def _learn_prefix(self, before: bytes) -> None:
        """Count a prefix's kind, and make a template of it once it was read a few times."""
        kind = before.translate(None, DIGITS)
        if kind == before or not _is_due(self._before_kinds, kind):
            return

        def read(probe: str) -> dict[str, Any] | None:
            end, prefix = self.grammar.peel(probe)
            if probe[end:].strip():
                return None
            return {name: getattr(prefix, name) for name in Prefix.__slots__}

        template = learn(before.decode("latin-1"), read)
        if template is not None:
            self._before_kinds[kind] = template

    def _refuse(self, raw: bytes) -> None:
        """Remember a line on which an anchor's words stood in other text: its like is no record either."""
        text = raw.decode("latin-1")
        if self.grammar.digited_finder.search(raw.translate(None, DIGITS)) is not None:
            return
        found = self.grammar.find(text)
        while found is not None:
            at, anchor = found
            if anchor not in self.grammar.steady:
                return
            found = self.grammar.find(text, at + len(anchor))
        if len(self._refused) >= REMEMBERED:
            self._refused.clear()
        if len(raw) <= _LONG_LINE:
            self._refused.add(raw.translate(_NOUGHTS))

    # ------------------------------------------------------------------------------------- records over several lines

    def _admit(self, entry: _Entry, reading: Reading, text: str, at: int, anchor: str, limit: int) -> None:
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
            if opened == "traceback":
                self._begin_traceback(entry, text[max(0, at - LONGEST_BEFORE) : at])
            else:
                entry.text, entry.source = text[at:limit], self._texts
                entry.level = _level(entry)
            self._pending.append(entry)
            alike = [other for other in self._pending if other.open == opened]
            if len(alike) > _WAITING[opened]:
                alike[0].open = None
                self._pending = [other for other in self._pending if other.open is not None]
        self._queue.append(entry)
        # While something waits, later lines are counted before it is sent out: this is the line's turn.
        self._part_of(entry.line)
        if len(self._queue) > _QUEUED:
            self._close_pending(None)

    def _flush(self) -> None:
        """Send out what is complete, in file order."""
        queue = self._queue
        while queue and queue[0].open is None:
            entry = queue.popleft()
            self._out.append((entry.line, entry.offset, entry.prefix, entry.payload))
            self._count(entry.payload)

    def _age(self, line: int) -> None:
        """Close what has waited long enough."""
        if not self._pending or line == self._last_line:
            return
        self._last_line = line
        for entry in self._pending:
            entry.waited += 1
            if entry.open is not None and entry.waited > _PATIENCE[entry.open]:
                entry.open = None
        self._pending = [entry for entry in self._pending if entry.open is not None]

    def _close_pending(self, gap: str | None) -> None:
        for entry in self._pending:
            if gap is not None and entry.payload.intact == "cut":
                entry.payload = replace(entry.payload, intact="partial", reason=gap)
            entry.open = None
        self._pending = []
        self._flush()

    def _offer(self, text: str, prefix: Prefix, line: int) -> None:
        """Offer text that is no record to what waits for it: a tensor that goes on, a traceback, a torn record."""
        if (
            self._continue_tensor(text, line)
            or self._continue_traceback(text, prefix, line)
            or self._rejoin(text, prefix)
        ):
            self._part_of(line)
        self._pending = [entry for entry in self._pending if entry.open is not None]

    def _continue_tensor(self, text: str, line: int) -> bool:
        """Append a line to the first open tensor that it continues."""
        waiting = [entry for entry in self._pending if entry.open == "tensor" and entry.line != line]
        if not waiting or not text.strip():
            return False
        level = _change_of_level(text)
        for entry in waiting:
            if len(entry.text) + len(text) > TENSOR_CHARACTERS:
                continue
            joined = entry.text + "\n" + text
            if level is not None and entry.level + level[1] > 0:
                # Rows of numbers, and the tensor does not end with them: nothing is known of it before its end.
                entry.text, entry.level, entry.waited = joined, entry.level + level[0], 0
                return True
            entry.tries += 1
            if entry.tries > _TRIES:
                continue
            reading = self.grammar.read(joined, 0, entry.anchor, len(joined))
            if reading is None or reading.payload.kind != "event" or reading.payload.event != entry.payload.event:
                continue
            if reading.open not in (None, "tensor"):
                continue
            if reading.open is None and joined[reading.end :].strip():
                continue
            if reading.open == "tensor" and not _more_of_a_tensor(text):
                continue
            payload = reading.payload
            if len(waiting) > 1 and payload.usable and _has_numbers(text):
                # Several writers' tensors are open: which of them goes on here is a guess.
                payload.intact = "rejoined"
                payload.reason = f"{len(waiting)} tensors were open when it went on"
            entry.text, entry.payload, entry.waited = joined, payload, 0
            entry.level = _level(entry)
            if reading.open is None:
                entry.open = None
            return True
        return False

    def _rejoin(self, text: str, prefix: Prefix) -> bool:
        """Join a torn record with the text that completes it, if exactly one torn record fits."""
        if prefix.time is not None or len(text) > TENSOR_CHARACTERS or not text.strip():
            return False
        joined: list[tuple[_Entry, Payload]] = []
        for entry in reversed(self._pending):
            if (
                entry.open != "tail"
                or entry.source == self._texts
                or (prefix is not NO_PREFIX and prefix.writer != entry.prefix.writer)
            ):
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
        entry.payload, entry.open = payload, None
        return True

    # ----------------------------------------------------------------------------------------------------- tracebacks

    def _begin_traceback(self, entry: _Entry, before: str) -> None:
        end, _ = self.grammar.peel(before)
        header = as_text(before[end:]).strip().rstrip(":")
        entry.payload.fields.update(
            process=writer_name(entry.prefix), exception=None, message=None, last_frame=None, header=header or None
        )
        entry.payload.fields.update(quoted=False, mismatch_line=None)

    def _tracebacks(self, prefix: Prefix) -> list[_Entry]:
        """Return the open tracebacks a line with this prefix can belong to, the first opened first.

        A marked line belongs to its own process. An unmarked one belongs to a traceback whose lines are unmarked.
        """
        opened = [entry for entry in self._pending if entry.open == "traceback"]
        if any(part is not None for part in prefix.writer):
            return [entry for entry in opened if entry.prefix.writer == prefix.writer]
        return [entry for entry in opened if not entry.marked]

    def _continue_traceback(self, text: str, prefix: Prefix, line: int) -> bool:
        entries = [entry for entry in self._tracebacks(prefix) if entry.line != line]
        if not entries:
            return False
        marked = any(part is not None for part in prefix.writer)
        frame = _FRAME.match(text)
        if frame is not None or text[:1] in (" ", "\t"):
            for entry in entries:
                entry.marked = entry.marked or marked
                if frame is not None:
                    function = f" in {frame['function'].strip()}" if frame["function"] else ""
                    entry.payload.fields["last_frame"] = as_text(f"{frame['file']}:{frame['line']}{function}")
                if len(entries) > 1:
                    entry.payload.fields["interleaved"] = True
            return True
        return self._end_traceback(prefix, text, None, line)

    def _end_traceback(self, prefix: Prefix, text: str, mismatch: Payload | None, line: int) -> bool:
        """Take the exception's own line: it ends the traceback that was opened first."""
        end, _ = self.grammar.peel(text)
        found = _EXCEPTION.match(text[end:].strip())
        if found is None:
            return False
        entries = [entry for entry in self._tracebacks(prefix) if entry.line != line]
        if not entries:
            return False
        entry = entries[0]
        fields = entry.payload.fields
        fields["exception"] = as_text(found["type"])
        message = found["message"]
        fields["message"] = as_text(message) if message is not None else None
        if mismatch is not None:
            fields["mismatch_line"] = line
        elif message is not None:
            anchor = self.grammar.find(message)
            fields["quoted"] = anchor is not None and inside_quotes(message, anchor[0])
        entry.open = None
        return True


def _is_due(kinds: dict[bytes, Any], kind: bytes) -> bool:
    """Count one more sighting of a kind; tell whether it is the one on which a template is made of it."""
    seen = kinds.get(kind, 0)
    if not isinstance(seen, int) or (not seen and len(kinds) >= _KINDS):
        return False
    kinds[kind] = seen + 1
    return seen + 1 == _SIGHTINGS


def writer_name(prefix: Prefix) -> str | None:
    """Return the process a prefix names, in words: ``Worker_TP1 pid=412``, ``DP1 TP1``; None when it names none."""
    parts = [prefix.origin] if prefix.origin else []
    ranks = (("DP", prefix.dp_rank), ("PP", prefix.pp_rank), ("TP", prefix.tp_rank), ("EP", prefix.ep_rank))
    if not prefix.origin or not any(f"{name}{rank}" in prefix.origin for name, rank in ranks if rank is not None):
        parts.extend(f"{name}{rank}" for name, rank in ranks if rank is not None)
    if prefix.pid is not None:
        parts.append(f"pid={prefix.pid}")
    return " ".join(parts) or None


# Text that can stand inside a tensor, up to a keyword or the end.
_TENSOR_LINE = regex.compile(r"[\s\d.,eE+\-\[\]()nainftTrueFls]*+(?:\w++=|(?<=\w)=|$)")
# Rows of numbers and nothing else. A number is bounded, so that a digit is looked at a bounded number of times.
_ROWS = re.compile(
    r"(?:[\s,\[\]()]|(?:[-+]?\d{1,40}(?:\.\d{0,40})?(?:e[-+]\d{1,4})?|-?inf|nan|True|False)(?=[\s,\[\]()]|$))*$"
)
_DIGITS = re.compile(r"\d\.\d|\d,")


def _level(entry: _Entry) -> int:
    """Return how many brackets of a waiting tensor are open, 0 when its text so far is not plain."""
    text = entry.text[entry.payload.column or 0 :]
    if "'" in text or '"' in text or "<" in text:
        return 0
    return text.count("[") + text.count("(") - text.count("]") - text.count(")")


def _change_of_level(text: str) -> tuple[int, int] | None:
    """Return how many more brackets are open after rows of numbers, and the fewest on the way; None for other text."""
    if len(text) > TENSOR_CHARACTERS or _ROWS.match(text) is None:
        return None
    change = lowest = 0
    for char in text:
        if char in "[(":
            change += 1
        elif char in "])":
            change -= 1
            lowest = min(lowest, change)
    return change, lowest


def _more_of_a_tensor(text: str) -> bool:
    return _TENSOR_LINE.match(text) is not None


def _has_numbers(text: str) -> bool:
    return _DIGITS.search(text.partition("=")[0]) is not None
