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
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Values = Mapping[str, Any]
    Read = Callable[[str], Values | None]

Span: TypeAlias = tuple[int, int]

DIGITS = b"0123456789"
# Longest run of digits a template takes: what is longer may not fit a float exactly as read_value keeps it.
LONGEST = 15
_WIDE = 7
_PROBES = 3
_RUN = re.compile(r"\d+")
_TOKEN = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


class _Slot(NamedTuple):
    """How one value is made: of the places of a text by a type (int, float), or by joining them in a form."""

    name: str
    made: type | str
    spans: tuple[Span, ...]


@dataclass(slots=True)
class Template:
    """What one kind of text says: values that never change, and those that follow its digits."""

    pattern: re.Pattern[bytes]
    constant: dict[str, Any]
    numbers: list[tuple[str, type, int]]
    texts: list[tuple[str, str, list[int]]]

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


def learn(text: str, read: Read) -> Template | None:
    """Return a template of a text's kind, None when its values cannot be tied to places.

    ``read`` reads a text of one character per byte exactly: its values by name, in order, or None when it is not
    what the template is for. Equal values must compare equal (no nan).
    """
    first = read(text)
    if first is None or not text.isascii():
        return None
    # The same text gives the same template, whenever and in whatever process it is learned.
    rnd = random.Random(text)  # noqa: S311 - no secret
    runs = [found.span() for found in _RUN.finditer(text)]
    lengths = [(end - start, end - start) for start, end in runs]
    probes = [(text, first)]
    for _ in range(_PROBES):
        probe = _filled(text, runs, lengths, rnd)
        values = read(probe)
        if values is None or list(values) != list(first):
            return None
        probes.append((probe, values))
    slots: list[_Slot] = []
    for name, value in first.items():
        if any(values[name] != value or type(values[name]) is not type(value) for _, values in probes):
            slot = _tie(name, probes, runs)
            if slot is None:
                return None
            slots.append(slot)
    template = _compile(text, first, slots, runs, lengths)
    if template is None or any(high > LONGEST for _, high in lengths):
        return None
    # Let the numbers be shorter and longer than in the text, as far as the exact reading agrees.
    for number, (start, _) in enumerate(runs):
        if text[start - 1 : start] == ".":
            continue  # decimals, whose number a printer keeps
        tried = [*lengths[:number], (1, max(_WIDE, lengths[number][1])), *lengths[number + 1 :]]
        wide = _compile(text, first, slots, runs, tried)
        drawn = [[*lengths[:number], (length, length), *lengths[number + 1 :]] for length in (1, 2, _WIDE)]
        if wide is not None and all(_agrees(wide, _filled(text, runs, one, rnd), read) for one in drawn):
            lengths, template = tried, wide
    return template if all(_agrees(template, _filled(text, runs, lengths, rnd), read) for _ in range(_PROBES)) else None


def _filled(text: str, runs: list[Span], lengths: list[Span], rnd: random.Random) -> str:
    """Return the text with random numbers of these lengths, that begin with no digit that could be left out."""
    parts, at = [], 0
    for (start, end), bounds in zip(runs, lengths, strict=True):
        length = rnd.randint(*bounds)
        first = rnd.choice("0123456789" if length == 1 else "123456789")
        parts += [text[at:start], first, *rnd.choices("0123456789", k=length - 1)]
        at = end
    return "".join([*parts, text[at:]])


def _tie(name: str, probes: list[tuple[str, Values]], runs: list[Span]) -> _Slot | None:
    """Find the places a value follows in every probe."""
    text, values = probes[0]
    kind = type(values[name])
    if any(type(other[name]) is not kind for _, other in probes):
        return None
    if kind in (int, float):
        tokens = [token.span() for token in _TOKEN.finditer(text)]
        signed = [(start - (text[start - 1 : start] in ("+", "-")), end) for start, end in tokens]
        for span in (one for pair in zip(signed, tokens, strict=True) for one in pair):
            if all(_is(kind, probe[slice(*span)], other[name]) for probe, other in probes):
                return _Slot(name, kind, (span,))
    if kind is not str:
        return None
    forms = {_RUN.sub("%s", other[name].replace("%", "%%")) for _, other in probes}
    spans = []
    for pieces in zip(*(_RUN.findall(other[name]) for _, other in probes), strict=False):
        same = (all(p[slice(*run)] == piece for (p, _), piece in zip(probes, pieces, strict=True)) for run in runs)
        spans += [run for run, fits in zip(runs, same, strict=True) if fits][:1] or [(-1, -1)]
    return _Slot(name, forms.pop(), tuple(spans)) if len(forms) == 1 and (-1, -1) not in spans else None


def _is(kind: type, printed: str, value: Any) -> bool:
    try:
        return bool(kind(printed) == value)
    except ValueError:
        return False


def _agrees(template: Template, probe: str, read: Read) -> bool:
    """Tell whether a template reads a probe as it is read exactly (or leaves it to that)."""
    found, exact = template.read(probe.encode("ascii")), read(probe)
    return found is not None and exact is not None and _typed(found) == _typed(exact)


def _typed(values: Values) -> list[tuple[str, type, Any]]:
    return [(name, type(value), value) for name, value in values.items()]


def _compile(text: str, first: Values, slots: list[_Slot], runs: list[Span], lengths: list[Span]) -> Template | None:
    """Build the expression: literal text, runs of digits, a group around every place a value follows."""
    spans = sorted({span for slot in slots for span in slot.spans})
    if any(one[1] > other[0] for one, other in pairwise(spans)):
        return None
    whole = {start + (text[start] in "+-") for slot in slots if slot.made in (int, float) for start, _ in slot.spans}
    opens, closes = {start for start, _ in spans}, {end for _, end in spans}
    run_at = {start: (end, bounds) for (start, end), bounds in zip(runs, lengths, strict=True)}
    pattern, at = "", 0
    while at <= len(text):
        pattern += ")" * (at in closes) + "(" * (at in opens)
        end, (low, high) = run_at.get(at, (at + 1, (0, 0)))
        if not high:
            pattern += re.escape(text[at:end])
        elif at in whole:  # a number with a leading zero is read in a way of its own
            number = rf"[1-9]\d{{{low - 1},{high - 1}}}"
            pattern += f"(?:0|{number})" if low == 1 else number
        else:
            pattern += rf"\d{{{low},{high}}}"
        at = end
    groups = {span: number for number, span in enumerate(spans)}
    return Template(
        re.compile(pattern.encode("ascii")),
        dict(first),
        [(name, made, groups[places[0]]) for name, made, places in slots if isinstance(made, type)],
        [(name, made, [groups[one] for one in places]) for name, made, places in slots if isinstance(made, str)],
    )
