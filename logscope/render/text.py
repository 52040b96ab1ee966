"""The pieces every text form is made of: safe text, numbers, sparklines, the accounting in words.

This module is responsible for making any value of a report into one line of text that cannot harm or confuse who
reads it. It must not know which form (terminal, CSV, Markdown, HTML) the line ends in, and imports nothing heavy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from logscope.errors import Message
    from logscope.model import Accounting, Finding, Place
    from logscope.report import Column, Report, Table

# Printable in Python's sense, yet nothing is seen: Hangul fillers, the empty braille cell, variation selectors.
_INVISIBLE = frozenset("\u115f\u1160\u3164\uffa0\u2800\u034f\u17b4\u17b5")
_SELECTORS = (range(0xFE00, 0xFE10), range(0x180B, 0x1810), range(0xE0100, 0xE01F0))
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
BLOCKS = "▁▂▃▄▅▆▇█"
# Eight levels that every encoding has, from low to high.
ASCII_BLOCKS = "_.-~=+*#"


@dataclass(frozen=True, slots=True)
class Style:
    """How text is set for one reader.

    width
        columns of the window; None: no window, lines are as long as they are (a pipe, a file).
    color
        whether ANSI colours may be used.
    unicode
        False when the reader's encoding lacks block characters.
    quiet, verbose
        headline and findings only; facts too.
    """

    width: int | None = None
    color: bool = False
    unicode: bool = True
    quiet: bool = False
    verbose: bool = False


PLAIN = Style()


def visible(text: str) -> str:
    r"""Return the text with everything a terminal would obey, reorder or hide written out: ``\x1b``, ``\u202e``.

    Control characters, bidirectional and zero-width characters, unusual blanks, lone surrogates and unassigned
    characters are written as escapes; all that is left is seen as it is and takes the room it seems to take.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if _harmless(character) else _escape(character) for character in text)


def _harmless(character: str) -> bool:
    """Tell whether a character can be shown as it is."""
    if not character.isprintable() or character in _INVISIBLE:
        return False
    return character.isascii() or not any(ord(character) in selectors for selectors in _SELECTORS)


def _escape(character: str) -> str:
    """Write a character as the escape Python and most languages read."""
    if character in _NAMED:
        return _NAMED[character]
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def cells(text: str) -> int:
    """Return how many terminal columns a text takes: wide East Asian characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    import unicodedata  # noqa: PLC0415 - only names that are not ASCII need the tables

    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def decimals(values: Iterable[Any]) -> int:
    """Return how many decimals a column's numbers are shown with.

    Four digits of the largest, three of the smallest, never more than five decimals nor more than any value has.
    """
    floats = [abs(v) for v in values if isinstance(v, float) and math.isfinite(v) and v]
    if not floats:
        return 1
    wanted = max(3 - _magnitude(max(floats)), 2 - _magnitude(min(floats)))
    printed = max(len(f"{value:.5f}".rstrip("0").partition(".")[2]) for value in floats)
    return max(0 if max(floats) >= 1000 else 1, min(wanted, printed, 5))


def _magnitude(value: float) -> int:
    """Return the power of ten of a positive number's first digit."""
    return math.floor(math.log10(value))


def number(value: float, places: int | None = None) -> str:
    """Return a number as shown: with its column's decimals, else with seven digits.

    One that the decimals would round to nothing keeps its own digits.
    """
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if places is None:
        return f"{value:.7g}"
    if 10_000 <= abs(value) < 1e15:
        # Five digits say enough; the column's decimals are for the small ones.
        places = 0
    if (value and round(value, places) == 0) or abs(value) >= 1e15:
        return f"{value:.3g}"
    return f"{value:.{places}f}"


def cell(value: Any, places: int | None = None) -> str:
    """Return any value of a report as one line of safe text; ``-`` for what is not known.

    An empty text is shown as ``-`` too: a cell that is nothing would move the columns of who reads with awk.
    """
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value, places)
    if isinstance(value, (list, tuple)):
        inner = ", ".join(cell(item) for item in value)
        return f"[{inner}]" if any(isinstance(item, (int, float)) for item in value) else inner or "-"
    if isinstance(value, (set, frozenset)):
        return cell(sorted(value, key=str))
    if isinstance(value, dict):
        return ", ".join(f"{visible(str(key))}={cell(item)}" for key, item in value.items()) or "-"
    return visible(str(value))


def is_number(value: Any) -> bool:
    """Tell whether a value is a number (True and False are words)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def column_texts(column: Column, values: Sequence[Any], style: Style = PLAIN) -> list[str]:
    """Return the cells of one column: numbers with the same decimals, a series as a sparkline."""
    if column.spark:
        return [sparkline(v, style.unicode) if isinstance(v, (list, tuple)) else cell(v) for v in values]
    # A column of mixed values is set at the left; its numbers have nothing to stand under.
    places = decimals(values) if column.align == "right" else None
    return [cell(value, places) for value in values]


def sparkline(
    values: Sequence[float | None], unicode: bool = True, low: float | None = None, high: float | None = None
) -> str:
    """Return one character for each value, low to high; a blank where there is none, ``!`` for nan and inf.

    The axis goes from ``low`` to ``high``, by default from the least to the largest value.
    """
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not values:
        return "-"
    blocks = BLOCKS if unicode else ASCII_BLOCKS
    low = min(finite, default=0.0) if low is None else low
    high = max(finite, default=0.0) if high is None else high
    out = []
    for value in values:
        if value is None:
            out.append(" ")
        elif not math.isfinite(value):
            out.append("!")
        else:
            # All equal: neither high nor low, so the middle.
            share = (value - low) / (high - low) if high > low else 0.5
            out.append(blocks[max(0, min(len(blocks) - 1, int(share * len(blocks))))])
    return "".join(out)


def body_tables(report: Report) -> dict[str, Table]:
    """Return the tables that stand below the findings: a table of the findings themselves would say them twice."""
    return {name: table for name, table in report.tables.items() if name != "findings"}


def table_title(name: str, table: Table) -> str:
    """Return what stands above a table, as it is: its title, else its name in words."""
    return table.title or name.replace("_", " ")


def slots(finding: Finding) -> Iterator[tuple[str, str]]:
    """Yield the slots of a finding that say something, each with its text as it is."""
    for name in ("expected", "actual", "evidence", "help"):
        text = getattr(finding, name)
        if text:
            yield name, text


def place(where: Place | None) -> str:
    """Return ``file:line`` as safe text, or nothing."""
    return "" if where is None else visible(str(where))


def size(count: int) -> str:
    """Return a number of bytes in words: ``812 bytes``, ``1.2 MB`` (powers of ten)."""
    if count < 1000:
        return plural(count, "byte")
    amount = float(count)
    for unit in ("kB", "MB", "GB", "TB"):
        amount /= 1000
        if amount < 999.95 or unit == "TB":
            break
    return f"{amount:.1f} {unit}"


def plural(count: int, noun: str) -> str:
    """Return ``1 record``, ``2 records``; thousands are set apart, as these are sentences and no columns."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def accounting_words(accounting: Accounting) -> str:
    """Return what became of every byte, in one sentence."""
    a = accounting
    kinds = [
        (a.whole, "whole"),
        (a.partial, "partial"),
        (a.rejoined, "rejoined"),
        (a.cut, "cut"),
        (a.unparsed, "not understood"),
    ]
    if a.records and a.whole == a.records:
        fate = "all whole" if a.records > 1 else "whole"
    else:
        fate = ", ".join(f"{count:,} {word}" for count, word in kinds if count)
    parts = [
        f"{plural(a.records, 'record')} in {plural(a.lines, 'line')} ({size(a.bytes)})" + (fate and f": {fate}"),
        plural(a.other_lines, "other line"),
    ]
    if a.glued:
        parts.append(f"{plural(a.glued, 'record')} glued to other text")
    if a.quoted:
        parts.append(f"{a.quoted:,} quoted and not counted")
    if a.invalid_utf8_bytes:
        parts.append(f"{plural(a.invalid_utf8_bytes, 'byte')} not UTF-8")
    return "Read " + "; ".join(parts) + "."


def message_lines(message: Message, kind: str) -> list[str]:
    """Return a message's five slots as safe lines; ``kind`` (``error``, ``warning``, ``bug``) leads the first.

    The caret stays under its place although escapes make the text before it longer.
    """
    first, *more = message.what.splitlines() or [""]
    out = [f"{kind}: {visible(first)}", *("  " + visible(line) for line in more)]
    if message.where is not None:
        out.append(f" --> {visible(str(message.where))}")
        caret = message.where.caret()
        if caret:
            shown, marks = caret
            start = len(marks) - len(marks.lstrip())
            before, meant, after = shown[:start], shown[start : len(marks)], shown[len(marks) :]
            out.append(f"  | {visible(before)}{visible(meant)}{visible(after)}")
            out.append("  | " + " " * cells(visible(before)) + "^" * max(1, cells(visible(meant))))
    for name in ("why", "note", "help"):
        text = getattr(message, name)
        if text:
            first, *more = str(text).splitlines()
            out.append(f"  {name}: {visible(first)}")
            out.extend("  " + " " * (len(name) + 2) + visible(line) for line in more)
    return out
