"""Reads one printed value: Python literals, torch shapes and tensors, enums, object reprs, bare words.

This module is responsible for turning text into typed JSON values without ever evaluating it, and for saying where a
value is unfinished. It must not know which record or key a value belongs to. Text is one character per byte
(latin-1), so that a position is a byte offset; :func:`as_text` turns such text into what was meant.

Reading is linear in the length of the text and bounded in depth: whatever is nested deeper than ``MAX_DEPTH`` is kept
as text.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 40

_NUMBER_FORM = r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_NON_FINITE_FORM = r"[-+]?(?i:nan|inf|infinity)\b"
_NUMBER = re.compile(_NUMBER_FORM)
_INTEGER = re.compile(r"[-+]?\d+")
_NON_FINITE = re.compile(_NON_FINITE_FORM)
_WORD = re.compile(r"[^\s,()\[\]{}<>'\"=]+")
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_BLANK: Any = re.compile(r"\s*")
_STRING = re.compile(r"(?:[rbuRBU]{0,2})('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")", re.DOTALL)
_STRING_OPEN = re.compile(r"[rbuRBU]{0,2}['\"]")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{1,3})|(.))", re.DOTALL)
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\n": ""}
_BRACKET_OR_QUOTE = re.compile(r"[\[\](){}'\"]")
_ANGLE = re.compile(r"[<>]")
# What stands inside a tensor's text. A number that begins with its point is the rest of a longer one.
_IN_TENSOR = re.compile(
    r"(?P<bracket>[\[\]()])|(?P<blank>[ ,\n\r\t]+|\.\.\.)|(?P<keyword>[A-Za-z_]\w*\s*=(?!=))"
    rf"|(?P<number>(?!\.)(?:{_NON_FINITE_FORM}|{_NUMBER_FORM}))|(?P<constant>(?:True|False|None)(?![\w.]))"
)
_CONSTANTS = {"True": True, "False": False, "None": None}
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_CONTAINERS = {"[": "list", "(": "tuple", "{": "dict"}
# An int with more digits than this stays text: Python refuses to convert thousands of digits, JSON readers many more.
_MAX_DIGITS = 300


class Unfinished(Exception):  # noqa: N818 - not an error: the text ended inside a value
    """The text ends, or breaks off, inside a value. ``at`` is where, ``inside`` what was being read."""

    def __init__(self, at: int, inside: str) -> None:
        super().__init__(f"the text ends inside {inside}")
        self.at = at
        self.inside = inside


class Unreadable(Exception):  # noqa: N818 - caught by the reader of the record, which explains it
    """The text at ``at`` is no value; ``expected`` says what would have been one."""

    def __init__(self, at: int, expected: str) -> None:
        super().__init__(f"expected {expected}")
        self.at = at
        self.expected = expected


@dataclass(slots=True)
class TensorText:
    """A printed ``tensor(...)``: its numbers in order, and as printed, for their resolution."""

    numbers: list[float]
    texts: list[str]


@dataclass(slots=True)
class Value:
    """A value read: what it is, its own text, and where it ends. ``kind`` names its form."""

    value: Any
    kind: str
    start: int
    end: int

    def text(self, source: str) -> str:
        """Return the value as it stood in the source."""
        return source[self.start : self.end]


def as_text(latin: str) -> str:
    r"""Return what one-character-per-byte text means as UTF-8; bytes that are not UTF-8 are shown as ``\xNN``."""
    if latin.isascii():
        return latin
    return latin.encode("latin-1", "replace").decode("utf-8", "backslashreplace")


def resolution(text: str) -> float:
    """Return half of the last printed digit: 5e-5 for ``10.6277`` and for ``1.06277e+01``; 0 for nan and inf."""
    mantissa, _, exponent = text.lower().partition("e")
    if mantissa.strip("+-0123456789._") or not any(map(str.isdigit, mantissa)):
        return 0.0
    decimals = len(mantissa.partition(".")[2])
    try:
        return 0.5 * 10.0 ** (int(exponent or 0) - decimals)
    except (OverflowError, ValueError):
        return 0.0


def exact_in_half_precision(value: float) -> bool:
    """Tell whether a value is exactly a bfloat16 or float16 number: at most 11 significant bits.

    Such a number is printed in full by Python; a list in which every value is one was not rounded when printed.
    """
    if not math.isfinite(value) or value == 0:
        return True
    mantissa, _ = math.frexp(value)
    return (mantissa * 2048).is_integer()


def read_value(source: str, at: int, *, depth: int = 0) -> Value:
    """Read one value beginning at ``at``.

    Raises
    ------
    Unfinished
        the text ends inside it.
    Unreadable
        there is no value here.

    """
    if at >= len(source):
        raise Unfinished(at, "a value")
    char = source[at]
    if char in "[({":
        return _read_container(source, at, depth)
    if char in "'\"" or (char in "rbuRBU" and _STRING_OPEN.match(source, at)):
        return _read_string(source, at)
    if char == "<":
        return _read_object(source, at)
    found = _NON_FINITE.match(source, at)
    if found is not None:
        return Value(float(found[0]), "number", at, found.end())
    found = _NUMBER.match(source, at)
    if found is not None and not _continues_word(source, found.end()):
        return Value(_number(found[0]), "number", at, found.end())
    found = _NAME.match(source, at)
    if found is not None:
        word, end = found[0], found.end()
        if end < len(source) and source[end] == "(":
            return _read_call(source, at, word, end, depth)
        if word in _CONSTANTS and not _continues_word(source, end):
            return Value(_CONSTANTS[word], "constant", at, end)
    found = _WORD.match(source, at)
    if found is None:
        raise Unreadable(at, "a value")
    return Value(as_text(found[0]), "word", at, found.end())


def _continues_word(source: str, at: int) -> bool:
    """Tell whether a word goes on here: ``3x21504`` and ``12ab`` are words, not numbers."""
    return at < len(source) and (source[at].isalnum() or source[at] in "_.:/@\x00")


def _number(text: str) -> int | float | str:
    """Return an int or a float; text when it is too long or too large to be either."""
    if _INTEGER.fullmatch(text):
        return int(text) if len(text) <= _MAX_DIGITS else text
    try:
        number = float(text.replace("_", ""))
    except ValueError:
        return text
    # 1e999 is no infinity that somebody printed.
    return number if math.isfinite(number) else text


def _read_string(source: str, at: int) -> Value:
    found = _STRING.match(source, at)
    if found is None:
        raise Unfinished(len(source), "a quoted text")
    body = found[1][1:-1]
    raw = "r" in source[at : found.start(1)].lower()
    if "\\" in body and not raw:
        # Bytes that are not UTF-8 are shown as \\xNN only after the printed escapes were read.
        body = body.encode("latin-1", "replace").decode("utf-8", "surrogateescape")
        body = _ESCAPE.sub(_unescape, body).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    else:
        body = as_text(body)
    return Value(body, "string", at, found.end())


def _unescape(found: re.Match[str]) -> str:
    for group, base in ((1, 16), (2, 16), (3, 16), (4, 8)):
        if found[group]:
            code = int(found[group], base)
            # A lone surrogate cannot be written as UTF-8, and chr() refuses what is no code point: kept as printed.
            return chr(code) if code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF else found[0]
    return _SIMPLE.get(found[5], found[5])


def _read_object(source: str, at: int) -> Value:
    """``<CaptureHiddenMode.FULL: 2>``, ``<class 'torch.Tensor'>``: kept as text, brackets included."""
    depth = 0
    for found in _ANGLE.finditer(source, at):
        depth += 1 if found[0] == "<" else -1
        if depth == 0:
            return Value(as_text(source[at : found.end()]), "object", at, found.end())
    raise Unfinished(len(source), "an object in angle brackets")


def _read_call(source: str, at: int, name: str, opening: int, depth: int) -> Value:
    """``torch.Size([21, 7168])`` is a list, ``tensor(...)`` a TensorText, any other call keeps its text."""
    last = name.rpartition(".")[2]
    if depth < MAX_DEPTH and last in ("tensor", "Tensor", "Parameter"):
        return _read_tensor(source, at, opening, depth)
    if depth < MAX_DEPTH and last == "Size":
        inner = _read_container(source, opening, depth)
        value = inner.value
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
            value = value[0]
        return Value(value, "shape", at, inner.end)
    end = _skip(source, opening)
    return Value(as_text(source[at:end]), "call", at, end)


def _skip(source: str, opening: int) -> int:
    """Return the end of a bracketed text, minding quotes; linear, whatever the depth."""
    stack: list[str] = []
    index = opening
    while (found := _BRACKET_OR_QUOTE.search(source, index)) is not None:
        char, index = found[0], found.end()
        if char in "'\"":
            quoted = _STRING.match(source, found.start())
            if quoted is None:
                raise Unfinished(len(source), "a quoted text")
            index = quoted.end()
        elif char in _CLOSING:
            stack.append(_CLOSING[char])
        elif char != (wanted := stack.pop()):
            raise Unreadable(found.start(), f"'{wanted}'")
        elif not stack:
            return index
    raise Unfinished(len(source), "brackets")


def _read_container(source: str, at: int, depth: int) -> Value:
    """Read lists and tuples as lists, dicts as dicts (keys as text), sets as lists."""
    opening = source[at]
    closing, kind = _CLOSING[opening], _CONTAINERS[opening]
    if depth >= MAX_DEPTH:
        end = _skip(source, at)
        return Value(as_text(source[at:end]), "text", at, end)
    items: list[Any] = []
    pairs: dict[str, Any] = {}
    elided = False
    index = _next_item(source, at + 1, kind)
    while source[index] != closing:
        if source.startswith("...", index):
            elided, index = True, index + 3
        else:
            item = read_value(source, index, depth=depth + 1)
            index = _BLANK.match(source, item.end).end()
            if opening == "{" and source.startswith(":", index):
                value = read_value(source, _BLANK.match(source, index + 1).end(), depth=depth + 1)
                pairs[str(item.value)], index = value.value, value.end
            else:
                items.append(item.value)
        index = _next_item(source, index, kind)
        if source[index] == ",":
            index = _next_item(source, index + 1, kind)
        elif source[index] != closing:
            raise Unreadable(index, f"',' or '{closing}'")
    if elided:
        items.append("...")
    return Value(items or pairs if kind == "dict" else items, kind, at, index + 1)


def _next_item(source: str, at: int, kind: str) -> int:
    """Return where the next item or the end of a container stands. Raises Unfinished when the text ends before it."""
    index: int = _BLANK.match(source, at).end()
    if index >= len(source):
        raise Unfinished(index, f"a {kind}")
    return index


def _read_tensor(source: str, at: int, opening: int, depth: int) -> Value:
    """Read the text of a tensor's repr, over as many lines as it takes; nan and inf are numbers."""
    tensor = TensorText([], [])
    level, index = 1, opening + 1
    while (found := _IN_TENSOR.match(source, index)) is not None:
        kind, text, index = found.lastgroup, found[0], found.end()
        if kind == "bracket":
            level += 1 if text in "[(" else -1
            if level == 0:
                return Value(tensor, "tensor", at, index)
        elif kind == "keyword":
            index = read_value(source, index, depth=depth + 1).end
        elif kind == "number" and index < len(source):
            number = float(text.replace("_", ""))
            if math.isinf(number) and "n" not in text.lower():
                raise Unreadable(found.start(), "a number a tensor can hold")
            tensor.numbers.append(number)
            tensor.texts.append(text)
    if index < len(source):
        raise Unreadable(index, "a number")
    raise Unfinished(len(source), "a tensor")


def as_json(value: Any) -> Any:
    """Return a read value as plain JSON types: tensors as lists, or as the number when they hold one without axes."""
    if isinstance(value, TensorText):
        return value.numbers
    if isinstance(value, list):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    return value
