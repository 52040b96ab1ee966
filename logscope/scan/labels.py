"""Learned wrappers: what stands before known beginnings of lines, line after line in the same form.

This module is responsible for finding such a form in the first lines of a file, and for what recurs in it: a label. It
must not know blocks beyond their text, nor the forms of prefixes known to all (:mod:`logscope.grammar.prefixes`).

Only the first lines decide, one after the other, so that blocks of any size give the same; those from the first odd one
on are held back meanwhile. What does not recur (a bar, the rest of another record, the number of a request) stays.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from logscope.grammar.prefixes import OWN, layers
from logscope.model import Prefix
from logscope.sources.places import Line, part_of
from logscope.sources.unwrap import Lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logscope.grammar import Grammar
    from logscope.sources.blocks import Block

_CLEAN = 8  # lines that begin as known: nothing stands before them
_ENOUGH, _LEAST = 8, 3  # lines of one form that decide at once, or at the end
_HELD = 64  # lines held back at most
_LOOKED = 1024  # lines looked at, when they begin with nothing known
_LABELS = 4096
_LONGEST = 160

# What a process prints before its text: SGLang's stamp, vLLM's process or stamp.
_BEGINS = re.compile(
    r"\[(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(?:\.\d+)?(?: [A-Z_]+\d+)*\] "
    r"|\(\w+ pid=\d+\) |[A-Z]{4,8} \d\d-\d\d \d\d:\d\d:\d\d "
)
_STAMP = rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?|\d\d:\d\d:\d\d(?:[.,]\d+)?"
_WORD = rb"[\w\x80-\xff][\w\x80-\xff./@-]*"
_BLANK = rb"(?:\x1b\[[\d;]*m|[ \t])+"  # colours are none of a label
_PIECE = re.compile(b"(%s)|(%s)|%s" % (_STAMP, _WORD, _BLANK))
# Text that can be a wrapper: it ends in what separates, and holds nothing that bars, values or quotes have.
_WRAPS = re.compile(rb"[^=,%\"'{}\r]*[^=,%\"'{}\r\w]")
_LEVELS = frozenset({b"DEBUG", b"INFO", b"WARN", b"WARNING", b"ERROR", b"CRITICAL", b"FATAL", b"TRACE", b"NOTICE"})


class Labels:
    """Looks for the wrapper of one file; a layer of :func:`~logscope.sources.unwrap.unwrap`."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._lines: Lines | None = None
        self._over = False
        self._held: list[Block] = []
        self._odd: dict[bytes, list[bytes]] = defaultdict(list)  # what stands before a line, by its form
        self._clean = self._looked = self._waited = 0
        self._apart: list[bytes] = []

    def take(self, block: Block) -> list[Block]:
        """Return the text of a block, with what was held of those before, as far as it is told."""
        if self._over:
            return [block] if self._lines is None else self._lines.take(block)
        if block.gap or block.continues:
            self._settle(last=True)
        at, begin = 0, 0 if self._held else len(block.data)  # from where on it is held
        while not self._over and at < len(block.data):
            end = block.data.find(b"\n", at) + 1 or len(block.data)
            if self._see(block.data[at:end].rstrip(b"\r\n")):
                begin = min(begin, at)
            self._waited += begin <= at
            at = end
            self._settle(last=self._waited >= _HELD or self._looked >= _LOOKED)
        if block.final:
            self._settle(last=True)
        if begin == len(block.data) and not self._held:
            ready = [block]
        else:
            ready = [part_of(block, 0, begin)] if begin else []
            self._held.append(part_of(block, begin, final=block.final) if begin else block)
            if not self._over:
                return ready
            ready, self._held = ready + self._held, []
        return ready if self._lines is None else [one for part in ready for one in self._lines.take(part)]

    def tell(self, warn: Callable[[str], None]) -> None:
        """Say what looks like labels and cannot be told."""
        if self._apart:
            shown = ", ".join(repr(one.decode("utf-8", "replace").strip()) for one in self._apart[:3])
            warn(f"{len(self._apart)} different labels are not told apart: lines begin with {shown}, and none recurs")

    def _see(self, line: bytes) -> bool:
        """Look at a line; tell whether unknown text that can be a wrapper stands before what is known."""
        self._looked += 1
        before = _before(line[: 4 * _LONGEST], self._grammar)
        self._clean += before == b""
        if not before or len(before) > _LONGEST or not _WRAPS.fullmatch(before):
            return False
        self._odd[_form(before)].append(before)
        return True

    def _settle(self, *, last: bool) -> None:
        """Decide whether lines are wrapped, when enough of them were seen, or nothing else will come."""
        for form, seen in self._odd.items() if not self._over else ():
            if max(_LEAST if last else _ENOUGH, self._clean) > len(seen):
                continue
            learned = _Learned(form, seen, self._grammar)
            if learned.known:
                self._lines, self._over = Lines(learned), True
                return
            if last:
                self._apart = [one for one in dict.fromkeys(seen) if re.search(rb"[A-Za-z]", one)]
        self._over = self._over or last or self._clean >= _CLEAN + sum(map(len, self._odd.values()))


def _before(line: bytes, grammar: Grammar) -> bytes | None:
    """Return what stands before the known beginning of a line, b"" where nothing does, None where none is known."""
    text, end = line.decode("latin-1"), 0
    for form, found in layers(text, 0, grammar.prefixes):
        if form.taught or form.name in OWN:
            return b""
        end = found.end()
    anchor, begins = grammar.find(text, end), _BEGINS.search(text, end)
    places = [anchor[0]] if anchor is not None and anchor[1] in grammar.strict else []
    places += [begins.start()] if begins is not None else []
    if not places:
        return None
    return line[: min(places)] if text[end : min(places)].strip() else b""


def _form(before: bytes) -> bytes:
    """Return a text with its words and stamps left out."""
    return _PIECE.sub(lambda piece: b"\1" if piece[1] else b"\2" if piece[2] else b" ", before)


class _Learned:
    """The wrapper of a file, taken off; ``known`` are its labels, none where nothing recurs."""

    name = "labelled lines"

    def __init__(self, form: bytes, seen: list[bytes], grammar: Grammar) -> None:
        parts = {b"\1": b"(%s)" % _STAMP, b"\2": b"(%s)" % _WORD, b" ": _BLANK}
        signs = [form[at : at + 1] for at in range(len(form))]
        self._match = re.compile(b"".join(parts.get(sign, re.escape(sign)) for sign in signs)).match
        self._grammar = grammar
        groups = [sign for sign in signs if sign in (b"\1", b"\2")]
        self._stamp = 1 + groups.index(b"\1") if b"\1" in groups else 0
        rows = [found.groups() for one in seen if (found := self._match(one))]
        # What recurs: on average a word stands there twice.
        self._labels = [
            at
            for at, (sign, column) in enumerate(zip(groups, map(set, zip(*rows, strict=True)), strict=True))
            if sign == b"\2" and 2 * len(column) <= len(seen) and not column <= _LEVELS
        ]
        self.known = {tuple(row[at] for at in self._labels) for row in rows} if self._labels or self._stamp else set()

    def lines(self, data: bytes, *, final: bool) -> Iterator[Line]:  # noqa: ARG002 - a line is complete
        """See :class:`~logscope.sources.unwrap.Form`. A new label is one before a known beginning only."""
        start, length = 0, len(data)
        while start < length:
            end = data.find(b"\n", start) + 1 or length
            line = Line(start, [(data[start:end], start)], ())
            if found := self._match(data, start, end):
                label = tuple(found[at + 1] for at in self._labels)
                head = data[start : min(end, start + 4 * _LONGEST)]
                if label not in self.known and len(self.known) < _LABELS and _before(head, self._grammar) == found[0]:
                    self.known.add(label)
                if label in self.known:
                    time = found[self._stamp].decode().replace(" ", "T").replace(",", ".") if self._stamp else None
                    origin = Prefix(origin=b"/".join(label).decode("utf-8", "surrogateescape") or None)
                    line = Line(start, [(data[found.end() : end], found.end())], (), time=time, origin=origin)
            yield line
            start = end
