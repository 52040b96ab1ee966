"""Lines of one kind: the same text but for its digits, read by one regular expression instead of the whole grammar.

This module is responsible for learning, from a text and a way to read it exactly, where its numbers stand and which
value each becomes. It must not know records, prefixes or lines; how a text is read exactly is handed in.

Nothing is assumed of how a text is read. A template is learned by *probing*: the digits of the text are replaced, the
probes are read exactly, and a value is tied to the place whose digits it follows in every one of them. A template is
kept only when further probes, with numbers of other lengths, come out as the exact reading says; texts it does not
match, and texts whose values cannot be tied to places, are read exactly every time.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Values = Mapping[str, Any]

DIGITS = b"0123456789"
# Longest run of digits a template takes: what is longer may not fit a float exactly as read_value keeps it.
LONGEST = 15
_WIDE = 7
_PROBES = 3
_RUN = re.compile(r"\d+")
_TOKEN = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_PIECE = re.compile(r"\d+(?:[-:.]\d+)*")


@dataclass(slots=True)
class _Slot:
    """How one value is made: of the groups of a match, by a type, or by joining pieces of text."""

    name: str
    kind: type
    spans: tuple[tuple[int, int], ...]
    form: str = ""


@dataclass(slots=True)
class Template:
    """What one kind of text says: values that never change, and those that follow its digits."""

    pattern: re.Pattern[bytes]
    constant: dict[str, Any]
    numbers: list[tuple[str, type, int]]
    texts: list[tuple[str, str, tuple[int, ...]]]

    def fits(self, text: bytes) -> bool:
        """Tell whether a text is of this kind: :meth:`read` reads it as it is read exactly."""
        return self.pattern.fullmatch(text) is not None

    def read(self, text: bytes) -> dict[str, Any] | None:
        """Return the values of a text of this kind, None when it is to be read exactly."""
        found = self.pattern.fullmatch(text)
        if found is None:
            return None
        groups = found.groups()
        values = self.constant.copy()
        for name, kind, group in self.numbers:
            values[name] = kind(groups[group])
        for name, form, pieces in self.texts:
            values[name] = form % tuple([groups[piece].decode("ascii") for piece in pieces])
        return values


def learn(text: str, read: Callable[[str], Values | None]) -> Template | None:
    """Return a template of a text's kind, None when its values cannot be tied to places.

    ``read`` reads a text of one character per byte exactly: its values by name, in order, or None when it is not
    what the template is for. Equal values must compare equal (no nan).
    """
    first = read(text)
    if first is None or not text.isascii():
        return None
    # The same text gives the same template, whenever and in whatever process it is learned.
    rnd = random.Random(text)  # noqa: S311 - no secret
    probes = [(text, first)]
    for _ in range(_PROBES):
        probe = _RUN.sub(lambda run: _number(rnd, len(run[0])), text)
        values = read(probe)
        if values is None or list(values) != list(first):
            return None
        probes.append((probe, values))
    slots: list[_Slot] = []
    for name, value in first.items():
        if all(values[name] == value and type(values[name]) is type(value) for _, values in probes):
            continue
        slot = _tie(name, probes)
        if slot is None:
            return None
        slots.append(slot)
    return _widened(text, dict(first), slots, read, rnd)


def _number(rnd: random.Random, length: int) -> str:
    """Return random digits that begin with none that could be left out."""
    if length == 1:
        return rnd.choice("0123456789")
    return rnd.choice("123456789") + "".join(rnd.choices("0123456789", k=length - 1))


def _tie(name: str, probes: list[tuple[str, Values]]) -> _Slot | None:
    """Find the place a value follows in every probe."""
    text, values = probes[0]
    kind = type(values[name])
    if any(type(other[name]) is not kind for _, other in probes):
        return None
    if kind in (int, float):
        spans = [span for token in _TOKEN.finditer(text) for span in _signed(text, token.start(), token.end())]
        span = next((span for span in spans if all(_is(kind, p[slice(*span)], v[name]) for p, v in probes)), None)
        return None if span is None else _Slot(name, kind, (span,))
    if kind is not str:
        return None
    shapes = {_PIECE.sub("\0", other[name]) for _, other in probes}
    if len(shapes) != 1:
        return None
    spans = []
    pieces = [_PIECE.findall(other[name]) for _, other in probes]
    for number, piece in enumerate(pieces[0]):
        starts = (found.start() for found in re.finditer(f"(?={re.escape(piece)})", text))
        places = [(start, start + len(piece)) for start in starts]
        span = next(
            (
                span
                for span in places
                if all(p[slice(*span)] == parts[number] for (p, _), parts in zip(probes, pieces, strict=True))
            ),
            None,
        )
        if span is None:
            return None
        spans.append(span)
    return _Slot(name, str, tuple(spans), shapes.pop().replace("%", "%%").replace("\0", "%s"))


def _signed(text: str, start: int, end: int) -> list[tuple[int, int]]:
    if start and text[start - 1] in "+-":
        return [(start - 1, end), (start, end)]
    return [(start, end)]


def _is(kind: type, printed: str, value: Any) -> bool:
    try:
        return bool(kind(printed) == value)
    except ValueError:
        return False


def _widened(
    text: str, first: dict[str, Any], slots: list[_Slot], read: Callable[[str], Values | None], rnd: random.Random
) -> Template | None:
    """Let the numbers be shorter and longer than in the text, as far as the exact reading agrees."""
    runs = [found.span() for found in _RUN.finditer(text)]
    lengths = [(end - start, end - start) for start, end in runs]
    template = _compile(text, first, slots, runs, lengths)
    if template is None or any(high > LONGEST for _, high in lengths):
        return None
    for number, (start, _) in enumerate(runs):
        if start and text[start - 1] == ".":
            continue  # decimals, whose number a printer keeps
        tried = list(lengths)
        tried[number] = (1, max(_WIDE, lengths[number][1]))
        wide = _compile(text, first, slots, runs, tried)
        if wide is None:
            continue
        drawn = [low for low, _ in lengths]
        probes = []
        for length in {1, 2, _WIDE}:
            drawn[number] = length
            probes.append(_filled(text, runs, drawn, rnd))
        if all(_agrees(wide, probe, read) for probe in probes):
            lengths = tried
    template = _compile(text, first, slots, runs, lengths)
    if template is None:
        return None
    mixed = [[rnd.randint(low, high) for low, high in lengths] for _ in range(_PROBES)]
    return template if all(_agrees(template, _filled(text, runs, one, rnd), read) for one in mixed) else None


def _filled(text: str, runs: list[tuple[int, int]], lengths: list[int], rnd: random.Random) -> str:
    """Return the text with numbers of these lengths."""
    parts = []
    at = 0
    for (start, end), length in zip(runs, lengths, strict=True):
        parts += [text[at:start], _number(rnd, length)]
        at = end
    return "".join([*parts, text[at:]])


def _agrees(template: Template, probe: str, read: Callable[[str], Values | None]) -> bool:
    """Tell whether a template reads a probe as it is read exactly (or leaves it to that)."""
    found = template.read(probe.encode("ascii"))
    if found is None:
        return False
    exact = read(probe)
    return exact is not None and list(found.items()) == list(exact.items()) and _types(found) == _types(exact)


def _types(values: Values) -> list[type]:
    return [type(value) for value in values.values()]


def _compile(
    text: str,
    first: dict[str, Any],
    slots: list[_Slot],
    runs: list[tuple[int, int]],
    lengths: list[tuple[int, int]],
) -> Template | None:
    """Build the expression: literal text, runs of digits, a group around every place a value follows."""
    spans = sorted({span for slot in slots for span in slot.spans})
    if any(one[1] > other[0] for one, other in pairwise(spans)):
        return None
    whole = {slot.spans[0][0] + (text[slot.spans[0][0]] in "+-") for slot in slots if slot.kind is not str}
    opens, closes = {start for start, _ in spans}, {end for _, end in spans}
    run_at = {start: (end, bounds) for (start, end), bounds in zip(runs, lengths, strict=True)}
    parts: list[str] = []
    at = 0
    while at <= len(text):
        if at in closes:
            parts.append(")")
        if at in opens:
            parts.append("(")
        if at == len(text):
            break
        if at in run_at:
            end, (low, high) = run_at[at]
            if at in whole:
                # A number with a leading zero is read in a way of its own.
                number = rf"[1-9]\d{{{low - 1},{high - 1}}}"
                parts.append(f"(?:0|{number})" if low == 1 else number)
            else:
                parts.append(rf"\d{{{low},{high}}}")
            at = end
        else:
            parts.append(re.escape(text[at]))
            at += 1
    groups = {span: number for number, span in enumerate(spans)}
    return Template(
        re.compile("".join(parts).encode("ascii")),
        first,
        [(slot.name, slot.kind, groups[slot.spans[0]]) for slot in slots if slot.kind is not str],
        [(slot.name, slot.form, tuple(groups[span] for span in slot.spans)) for slot in slots if slot.kind is str],
    )
