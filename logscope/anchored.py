"""One text of a line, looked through from left to right: which anchors are quoted, where a record must end.

This module is responsible for looking at every character once, however many anchors stand in the text: a hostile or
broken line may be megabytes long and hold thousands of them. It must not know what a record says.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from logscope.prefix import peel_back

if TYPE_CHECKING:
    from logscope.grammar import Grammar

_QUOTES = re.compile(r"\\.|['\"]", re.DOTALL)
# What stands before a record is looked at so far back: no chain of prefixes is longer.
LONGEST_BEFORE = 2048


class Quotes:
    """Tells whether places of a text stand inside quotes: one opened before, and closes behind it.

    An apostrophe opens a quote only where a value may begin (behind ``=``, a bracket, a comma, a colon, a blank), so
    that ``can't`` opens none. Places are asked for in rising order.
    """

    def __init__(self, text: str, start: int, last: dict[str, int]) -> None:
        """Read from ``start`` on; ``last`` is the last place of either quote in the text, see :func:`last_quotes`."""
        self._text = text
        self._seen = start
        self._last = last
        self._opened: str | None = None

    def inside(self, at: int) -> bool:
        """Tell whether a place stands inside a quoted text."""
        if at > 0 and self._text[at - 1] in "'\"`":
            return True
        if at > self._seen:
            self._read(at)
        return self._opened is not None and self._last[self._opened] >= at

    def _read(self, at: int) -> None:
        text = self._text
        end = self._seen
        for found in _QUOTES.finditer(text, end, at):
            end = found.end()
            char = found[0]
            if len(char) > 1:
                continue
            if self._opened is None:
                before = text[found.start() - 1] if found.start() else " "
                if char == '"' or before in "=([{,: \t":
                    self._opened = char
            elif char == self._opened:
                self._opened = None
        # A backslash at the very end belongs to the character behind it.
        self._seen = at - 1 if end < at and text[at - 1] == "\\" else at


def last_quotes(text: str) -> dict[str, int]:
    """Return where the last apostrophe and the last quotation mark stand, -1 for none."""
    return {"'": text.rfind("'"), '"': text.rfind('"')}


def inside_quotes(text: str, at: int) -> bool:
    """Tell whether one place of a text stands inside quotes."""
    return Quotes(text, 0, last_quotes(text)).inside(at)


class Anchored:
    """The anchors of one text. Places are asked for in rising order."""

    def __init__(self, grammar: Grammar, text: str) -> None:
        self._grammar = grammar
        self._text = text
        self._last: dict[str, int] | None = None
        self._from_start: Quotes | None = None
        self._from: tuple[int, Quotes] | None = None
        self._asked = 0
        self._next = -1

    def quoted(self, at: int, start: int) -> bool:
        """Tell whether a place stands inside quotes, when only the text from ``start`` on is looked at."""
        if self._from is None or self._from[0] != start:
            self._from = (start, self._quotes(start))
        return self._from[1].inside(at)

    def limit(self, after: int) -> int:
        """Return where the record ends at the latest: where the next anchored record, with its prefix, begins."""
        at = self._next_record(after)
        text = self._text
        if at == len(text):
            return at
        begin = max(after, at - LONGEST_BEFORE)
        return begin + peel_back(text[begin:at])[0]

    def _next_record(self, after: int) -> int:
        """Return the next anchor from ``after`` on that begins a record, whatever follows it."""
        if self._asked <= after <= self._next:
            return self._next
        grammar, text = self._grammar, self._text
        self._asked = after
        found = grammar.find(text, after)
        while found is not None:
            at, anchor = found
            if anchor in grammar.strict:
                if self._from_start is None:
                    self._from_start = self._quotes(0)
                if not self._from_start.inside(at):
                    self._next = at
                    return at
            found = grammar.find(text, at + len(anchor))
        self._next = len(text)
        return self._next

    def _quotes(self, start: int) -> Quotes:
        if self._last is None:
            self._last = last_quotes(self._text)
        return Quotes(self._text, start, self._last)
