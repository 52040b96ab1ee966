"""Which columns of a table a window has room for, and how wide each is.

This module is responsible for fitting a table into a number of columns. It must not know colours, rich, or where the
text goes; it sees cells that are safe text already.

The order in which room is given up: headings fold, texts fold to a readable width, columns that are not ``always``
are left out (empty ones, then from the right), texts fold further. A number is never folded: a window too narrow even
then is left to the terminal to wrap.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from logscope.render.text import PLAIN, Style, cells, column_texts, is_number, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logscope.report import Column, Table

GAP = 2
# Texts first fold to a width that still reads as text, and only when columns are gone, to a narrow one.
READABLE = 24
NARROW = 10


@dataclass(slots=True, eq=False)
class Set:
    """One column ready to be set: its cells as text, its width, whether its cells may be folded.

    ``natural`` is the width at which nothing folds, ``word`` that of the heading's longest word, ``body`` that of the
    longest cell: measured once, as fitting a table asks for them over and over.
    """

    column: Column
    heading: str
    texts: list[str]
    folds: bool
    natural: int = field(init=False)
    word: int = field(init=False)
    body: int = field(init=False)
    width: int = field(init=False)

    def __post_init__(self) -> None:
        """Measure the column and give it its natural width."""
        self.word = max((cells(word) for word in self.heading.split()), default=1)
        self.body = max((cells(text) for text in self.texts), default=1)
        self.natural = max(cells(self.heading), self.body) if self.texts else cells(self.heading)
        self.width = self.natural

    @property
    def empty(self) -> bool:
        """True when no cell says anything."""
        return all(text == "-" for text in self.texts)

    @property
    def right(self) -> bool:
        """True when the cells stand at the right edge."""
        return self.column.align == "right"


def prepare(table: Table, style: Style = PLAIN) -> list[Set]:
    """Return every column of a table as text, at its natural width."""
    out = []
    for column in table.columns:
        values = [row.get(column.name) for row in table.rows]
        texts = column_texts(column, values, style)
        out.append(Set(column, visible(column.heading), texts, folds=_may_fold(column, values)))
    return out


def _may_fold(column: Column, values: Sequence[Any]) -> bool:
    """Tell whether cells are texts: a column of numbers (or of their lists) stays on one line."""
    if column.align == "right" or column.spark:
        return False
    return not all(value is None or is_number(value) for value in values)


def fit(columns: list[Set], width: int | None) -> list[str]:
    """Set the widths so that the table fits, drop what must go; return the headings of the dropped columns."""
    if width is None or total(columns) <= width:
        return []
    whole = list(columns)
    _shrink(columns, width, READABLE)
    while total(columns) > width and (loose := [column for column in columns if not column.column.always]):
        columns.remove(next((column for column in reversed(loose) if column.empty), loose[-1]))
        _restore(columns)
        _shrink(columns, width, READABLE)
    # The last one to go may have been wide: what was dropped before it may have room after all, leftmost first.
    for column in whole:
        if column not in columns:
            tried = [other for other in whole if other in columns or other is column]
            _restore(tried)
            _shrink(tried, width, READABLE)
            if total(tried) <= width:
                columns[:] = tried
    _restore(columns)
    _shrink(columns, width, READABLE)
    _shrink(columns, width, NARROW)
    return [column.heading for column in whole if column not in columns]


def lines(columns: list[Set]) -> Iterator[tuple[bool, str]]:
    """Yield the physical lines of prepared and fitted columns, each with whether it belongs to the headings."""
    for number, row in enumerate(rows(columns)):
        yield from ((not number, line) for line in row)


def rows(columns: list[Set]) -> Iterator[list[str]]:
    """Yield the physical lines of the headings, then those of every row."""
    if not columns:
        return
    texts = zip(*(column.texts for column in columns), strict=True)
    for number, row in enumerate([tuple(column.heading for column in columns), *texts]):
        folded = [
            wrap(text, column.width) if column.folds or not number else [text]
            for text, column in zip(row, columns, strict=True)
        ]
        height = max(map(len, folded))
        if not number:
            # Headings stand on the rule, cells hang from the line above.
            folded = [[""] * (height - len(part)) + part for part in folded]
        made = []
        for index in range(height):
            parts = [
                pad(part[index] if index < len(part) else "", column.width, column.right)
                for part, column in zip(folded, columns, strict=True)
            ]
            made.append((" " * GAP).join(parts).rstrip())
        yield made


def pad(text: str, width: int, right: bool) -> str:
    """Fill a cell up to its column's width."""
    fill = " " * (width - cells(text))
    return fill + text if right else text + fill


def total(columns: list[Set]) -> int:
    """Return the columns a table takes."""
    return sum(column.width for column in columns) + GAP * (len(columns) - 1)


def _restore(columns: list[Set]) -> None:
    """Give every column its natural width again."""
    for column in columns:
        column.width = column.natural


def _least(column: Set, floor: int) -> int:
    """Return how narrow a column may get: a heading folds at its blanks, a text down to ``floor``."""
    return max(column.word, min(column.body, floor) if column.folds else column.body)


def _shrink(columns: list[Set], width: int, floor: int) -> None:
    """Take room from the widest column that can give some, until the table fits or none can."""
    while (excess := total(columns) - width) > 0:
        able = [column for column in columns if column.width > _least(column, floor)]
        if not able:
            return
        widest = max(able, key=lambda column: column.width)
        # Down to the next widest at once, so that a long text gives way before a heading does.
        next_widest = max((c.width for c in able if c is not widest and c.width < widest.width), default=0)
        widest.width -= max(1, min(excess, widest.width - max(next_widest, _least(widest, floor))))


def wrap(text: str, width: int) -> list[str]:
    """Fold a text at blanks, else behind a comma, slash or bracket, else anywhere."""
    if cells(text) <= width:
        return [text]
    lines: list[str] = []
    rest = text
    while cells(rest) > width:
        end = _cut(rest, width)
        lines.append(rest[:end].rstrip())
        rest = rest[end:].lstrip()
    if rest:
        lines.append(rest)
    return lines


def _cut(text: str, width: int) -> int:
    """Return how many characters of a too long text go on the first line (at least one)."""
    room = taken = 0
    for character in text:
        taken += cells(character)
        if taken > width:
            break
        room += 1
    room = max(1, room)
    blank = text.rfind(" ", 1, room + 1)
    if blank > 0:
        return blank
    mark = max(text.rfind(mark, 0, room) for mark in ",/:;)]=")
    # A break that leaves a stub is worse than one inside the word.
    return mark + 1 if mark + 1 > room // 3 else room
