"""Forms of the lines that no grammar reads: which are commonest, and a grammar file proposed from them.

This module is responsible for what lines have in common once numbers and quoted texts are left out, and for a proposal
that proves itself: each of its samples is read as it says. It must not know files of logs, runs or answers; what the
events of a proposal mean is for who knows the prints to say.
"""

from __future__ import annotations

import json
import re
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from logscope.errors import GrammarError
from logscope.grammar.files import join

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logscope.grammar.files import Grammar
    from logscope.model import Payload

# What varies from line to line: quoted texts, ids (eight hexadecimal digits or more, one of them a digit), numbers
# (but the one digit of a name: l2).
_VARIES = re.compile(
    r"""'[^'\n]*'|"[^"\n]*"|\b(?=[a-f-]*\d)[0-9a-fA-F]{8}[0-9a-fA-F-]*\b|\b(?:nan|inf)\b"""
    r"""|(?:(?<![\w.)\]])[-+])?(?:(?<![A-Za-z])\d|(?<=[A-Za-z])\d\d)\d*(?:\.\d+)?(?:[eE][-+]?\d+)?""",
    re.IGNORECASE,
)
_LIST = re.compile(r"#(?:,\s*#)+")
_LONGEST = 120  # characters of a form; a line of more is told by its beginning
_LOOKED = 4000  # lines of one block that are looked at, evenly spread
LEAST = 0.01  # of the lines are of a form, at least, for which an event is proposed
_SHORTEST = 4  # letters of what a record is found by
_MOST = 2000  # forms that are told apart; a log of more has none that is common
_KEY = re.compile(r"([A-Za-z_]\w*)=")
_SHAPE = re.compile(r"(?:torch\.Size\()?[(\[]\d+(?:, ?\d+)+[)\]]")
# Keys of prints in the wild, by the name that has a meaning.
_NAMES = {"norm": ("norm", "l2", "l2norm", "l2_norm"), "head": ("head", "first5", "first", "vals", "values")}


class Unread(NamedTuple):
    """A form: the share of the lines that were looked at, the first line of it, and that line's text."""

    text: str
    share: float
    file: str
    line: int
    sample: str


class Forms:
    """The forms of the unread lines of one log, counted while it is read."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._looked = 0
        self._found: dict[str, list[Any]] = {}

    def take(self, file: str, data: bytes, line: int) -> None:
        """Count some lines of a block of a file, which begins with ``line``; lines that go on others are left out."""
        lines = data.split(b"\n")
        step = max(1, len(lines) // _LOOKED)
        for at in range(0, len(lines), step):
            text = lines[at][: 4 * _LONGEST].decode("latin-1").rstrip("\r")
            self._looked += bool(text)
            rest = text[self._grammar.peel(text)[0] :]
            if not rest[:1].strip() or self._grammar.find(text) is not None:
                continue
            form = _LIST.sub("#, ...", _VARIES.sub("#", rest))[:_LONGEST].rstrip()
            known = self._found.get(form)
            if known is not None:
                known[0] += 1
            elif len(self._found) < _MOST:
                self._found[form] = [1, file, line + at, lines[at].decode("latin-1").rstrip("\r")]

    def commonest(self, most: int) -> list[Unread]:
        """Return the commonest forms, each seen twice or more."""
        found = sorted(self._found.items(), key=lambda item: -item[1][0])[:most]
        return [Unread(form, number / self._looked, *first) for form, (number, *first) in found if number > 1]


def proposal(known: Grammar, found: list[Unread], name: str) -> str | None:
    """Return a grammar file that reads some forms, None where none of them has ``key=value`` fields.

    It is proved: a form whose own sample is not read, or that is found by less than four letters, is left out.
    """
    title = (
        "proposed from lines that no grammar reads: give events the names of docs/reference/events.md they stand for"
    )
    head = f'# {title}\nschema = 1\nname = {_toml(name)}\ntitle = "Prints of my own"'
    events: dict[str, str] = {}
    for form, number in zip(found, count(1), strict=False):
        if form.share >= LEAST and (made := _event(known, form, number)) is not None:
            events.setdefault(*made)
    return "\n\n".join([head, *events.values()]) + "\n" if events else None


def _event(known: Grammar, form: Unread, number: int) -> tuple[str, str] | None:
    """Return what one form begins with, and the tables that read it, with its sample; None where it is not read."""
    text = form.sample[known.peel(form.sample)[0] :]
    first = _KEY.search(text)
    before = text[: first.start()].rstrip() if first else ""
    anchor = max(re.split(r"\d+", before), key=len).strip()
    if first is None or len(anchor) < _SHORTEST:
        return None
    begin = before.find(anchor)
    before, text = before[begin:], text[begin:]
    printed = dict(_values(text[len(before) :]))
    keys = {key: name for key, value in printed.items() if (name := _column(key, value)) not in (None, key)}
    label = re.sub(r"\d+", r"\\d+", re.escape(before).replace("\\ ", " "))
    layered = re.sub(r"(?i)(layer[ _:]?)\\d\+", r"\1(?P<layer>\\d+)", label, count=1)
    capture = layered != label and {"shape", "norm"} <= {*keys.values(), *printed}
    # A record of a forward pass has a site: the first word.
    sited = re.sub(r"(?<![A-Za-z\\])[A-Za-z]\w*", r"(?P<site>\g<0>)", label, count=1)
    words = re.sub(r"\W+", "_", re.sub(r"\d+", "", before).lower()).strip("_") or f"event_{number}"
    event = "layer_capture" if capture else words
    lines = [
        f"# {form.share:.0%} of the lines, the first is line {form.line}",
        "[[event]]", f"name = {_toml(event)}", f"anchors = [{_toml(anchor)}]", 'reader = "tagged"',
        f"pattern = {_toml(f'(?P<label>{sited})', pattern=True)}", f"label = {_toml(layered, pattern=True)}",
    ]  # fmt: skip
    lines += ['role = "target"'] * capture
    lines += [f"keys = {{ {', '.join(f'{key} = {_toml(name)}' for key, name in keys.items())} }}"] * bool(keys)
    sample = ["", "[[sample]]", f"text = {_toml(text)}", f"event = {_toml(event)}"]
    read = _read("\n".join([*lines, *sample]))
    if read is None:
        return None
    told = ("layer", read.layer), ("shape", read.shape), ("norm", read.norm)
    expect = ", ".join(f"{name} = {json.dumps(value)}" for name, value in told if value is not None)
    return label, "\n".join([*lines, *sample, *[f"expect = {{ {expect} }}"] * bool(expect)])


def _read(tables: str) -> Payload | None:
    """Return what the one event of a proposal reads from its sample, None where that is not the whole of it."""
    from logscope.grammar.proof import parsed, proved  # noqa: PLC0415 - pydantic is for who wants a proposal

    text = f"schema = 1\nname = {_toml('proposal')}\n{tables}\n"
    try:
        file = proved("proposal", *parsed("proposal", text.encode()))
    except GrammarError:
        return None
    sample, grammar = file.samples[0].text.encode().decode("latin-1"), join([file])
    found = grammar.find(sample)
    reading = grammar.read(sample, *found, len(sample)) if found else None
    one = None if reading is None else reading.payload
    return one if one and one.intact == "whole" and (one.fields or one.shape or one.norm is not None) else None


def _values(text: str) -> Iterator[tuple[str, str]]:
    """Yield keys and what is printed for them."""
    found = list(_KEY.finditer(text))
    for one, end in zip(found, [*(other.start() for other in found[1:]), len(text)], strict=True):
        yield one[1], text[one.end() : end].rstrip(", ")


def _column(key: str, value: str) -> str | None:
    """Return the name of a column that a printed key and its value stand for, None for none."""
    if _SHAPE.match(value):
        return "shape" if key.lower() in ("shape", "size", "hidden") else None
    return next((name for name, words in _NAMES.items() if key.lower() in words), None)


def _toml(text: str, *, pattern: bool = False) -> str:
    return f"'{text}'" if pattern and "'" not in text else json.dumps(text, ensure_ascii=False)
