"""The exact grammar at work: one record's text in, one payload out, or where and why reading stopped.

This module is responsible for the five ways a record is written (``tagged``, ``pairs``, ``call``, ``pattern``,
``traceback``) and for telling a whole record from a partial or cut one. It must not know files, lines or blocks; what
events there are is data (grammar.py). Text is one character per byte (latin-1): positions are byte offsets.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import regex

from logscope.model import CAPTURE_EVENTS, Payload, Role
from logscope.prefix import strip_colours
from logscope.values import (
    TensorText,
    Unfinished,
    Unreadable,
    Value,
    as_json,
    as_text,
    exact_in_half_precision,
    read_value,
    resolution,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Seconds one pattern of a grammar may take on one record: no pattern can hang logscope.
TIME_LIMIT = 0.25
# So many texts it may take longer on, in one file; it is not tried on any other.
OVERTIMES = 4
# Characters before an anchor that its patterns may look at.
_LOOK_BEHIND = 64

# regex looks for a text that a pattern requires as far as the limit, before it matches: asked at every word of a long
# text, that is not linear. This one is asked at every word.
_KEY = re.compile(r"([^\s=,:()\[\]{}'\"]+)=(?!=)")
# The patterns give nothing back that they took (++, *+) where other text must follow: linear whatever the text.
_PAIR_KEY = regex.compile(r"\s*+([^:=,\s]++(?:\s++[^:=,\s]++)*+)\s*+(?::(?=\s|$|,)|=)[ \t]*+")
_PAIR_NUMBER = regex.compile(
    r"([-+]?(?:nan|inf)\b|[-+]?(?:\d++\.?+\d*+|\.\d++)(?:[eE][-+]?\d++)?)(?:\s?(%|[A-Za-z][\w/]*+))?$"
)
_NUMBER_WORD = regex.compile(r"[-+]?(?:nan|inf|\d++(?:\.\d++)?+)")
# Printed in a list where there is no value (``0.900, 0.375, -----``).
_NO_VALUE = regex.compile(r"-{2,}$")
_PAIR_END = regex.compile(r",(?=\s|$)|\.(?=\s|$)")
_SEPARATOR = regex.compile(r"[:=]")
_REPEATED_WORDS = "[repeated "
_REPEATED = regex.compile(r"\[repeated (\d{1,9})x across cluster\]\s*+$")
_WORD = r"[^\s:=\[\](),]++"
_NAMED = r"[^\s=:,]++="
# Words up to a colon, a key, a bracket or the end; no words where a key follows at once.
_LABEL = regex.compile(
    rf"\s*+(?::\s*+)?+(?P<label>{_WORD}(?:\s++(?!{_NAMED}|$|[(\[]){_WORD})*+)?+"
    rf"(?:\s*+:(?=\s|$)|(?=\s++{_NAMED})|\s*+$|(?=\s*+[(\[]))|\s*+:(?=\s)|\s++(?={_NAMED})"
)
_PLACEHOLDER = regex.compile(r"%[-+ #0]*+\d*+(?:\.\d++)?[sdrfgi]|\{[A-Za-z_][\w.\[\]()!]*(?::[^{}]*)?\}")
_SLUG = regex.compile(r"[^a-z0-9]+")
_INTEGER_WORD = regex.compile(r"\d+")
_DTYPES = frozenset({"bf16", "fp16", "fp32", "f16", "f32", "bfloat16", "float16", "float32", "fp8", "int8", "half"})
_MODES = {"NULL", "LAST", "FULL"}
# A layer's number has no more digits than this.
_LAYER_DIGITS = 9
# Axes and numbers of a tensor, as torch bounds them.
_MOST_AXES = 64
_MOST_NUMBERS = 2**63 - 1
_AXIS_DIGITS = len(str(_MOST_NUMBERS))
# No norm or state is near this, in any precision models are run in; what is was glued together from two numbers.
_LARGEST = 1e100


@dataclass(slots=True)
class Dialect:
    """One way an event is written. See grammar.py for what each key of the TOML means.

    ``overtimes`` counts the texts of this file on which one of its patterns ran into the time limit.
    """

    event: str
    reader: str
    anchors: tuple[str, ...]
    source: str = ""
    strict: bool = True
    kind: str = "event"
    role: Role | None = None
    label: Any = None
    pattern: Any = None
    lead: Any = None
    keys: dict[str, str] = field(default_factory=dict)
    bare: tuple[str, ...] = ()
    has: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()
    types: dict[str, str] = field(default_factory=dict)
    lists: tuple[str, ...] = ()
    decimals: dict[str, int] = field(default_factory=dict)
    layer: int | None = None
    hot: bool = False
    overtimes: int = 0


@dataclass(slots=True)
class Reading:
    """What came of one record: its payload, where it ended, and whether more text could finish it.

    ``dialect`` is the form it was read in. ``open`` is ``tensor`` when a tensor's text goes on (torch breaks it over
    lines), ``tail`` when the text broke off inside a value, None when nothing is missing. ``label`` is the label of a
    record of the form for any label, where the text ends with it.
    """

    payload: Payload
    end: int
    open: str | None = None
    dialect: Dialect | None = None
    label: str | None = None


@dataclass(slots=True)
class _Pairs:
    """Keys and values collected from one record, in order, with what is known of the last one."""

    values: dict[str, Value] = field(default_factory=dict)
    bare: list[Value] = field(default_factory=list)
    end: int = 0
    stopped: int | None = None
    reason: str | None = None
    open: str | None = None
    last: str | None = None
    placeholder: bool = False


def _match(pattern: Any, text: str, at: int, limit: int) -> Any:
    """Match a grammar's pattern at a place, within the time limit. Raises TimeoutError when it takes too long."""
    return pattern.match(text, at, limit, timeout=TIME_LIMIT)


def read_record(dialects: Sequence[Dialect], text: str, at: int, limit: int, reach: int) -> Reading | None:
    """Read the record whose anchor stands at ``at``; its text ends at ``limit`` at the latest.

    Only a ``call`` may end later, at ``reach`` at the latest: what looks like the next record may stand in its quotes.
    Returns None when no dialect matches and none of them is strict: the anchor's words stood in other text.
    """
    # A line may be megabytes long and hold thousands of records: each gets its own part of it, copied once.
    begin = max(0, at - _LOOK_BEHIND)
    if any(dialect.reader == "call" for dialect in dialects):
        text = text[begin:reach]
    elif begin or limit < len(text):
        text = text[begin:limit]
    reading = _read_record(dialects, text, at - begin, limit - begin)
    if reading is not None:
        reading.end += begin
    return reading


def _read_record(dialects: Sequence[Dialect], text: str, at: int, limit: int) -> Reading | None:
    strict = False
    refused: Reading | None = None
    for dialect in dialects:
        if dialect.overtimes >= OVERTIMES:
            reason = f"a pattern of {dialect.source} took longer than {TIME_LIMIT:g} s on {OVERTIMES} texts before"
            refused = Reading(_unparsed(dialects, text, at, limit, reason), limit)
            continue
        try:
            reading = _READERS[dialect.reader](dialect, text, at, limit)
        except TimeoutError:
            dialect.overtimes += 1
            reason = f"a pattern of {dialect.source} took longer than {TIME_LIMIT:g} s on this text"
            refused = Reading(_unparsed(dialects, text, at, limit, reason), limit)
            continue
        if reading is not None:
            reading.dialect = dialect
            if reading.label is not None:
                unclear = _cut_in_its_label(reading.label, reading.payload, dialects)
                if unclear is not None:
                    return Reading(_unparsed(dialects, text, at, limit, unclear), limit)
                reading.open = "tail" if reading.payload.intact == "cut" else reading.open
            return reading
        strict = strict or dialect.strict
    if refused is not None:
        return refused
    if not strict:
        return None
    return Reading(_unparsed(dialects, text, at, limit, _why_not(dialects, text, at, limit)), limit)


def _cut_in_its_label(label: str, payload: Payload, dialects: Sequence[Dialect]) -> str | None:
    """Take back a record whose text ends in the middle of a known label: it is no event of its own.

    Named cut where only one event has such a label; else the reason is returned.
    """
    named = (dialect for dialect in dialects if dialect.label is not None)
    known = [dialect for dialect in named if dialect.label.fullmatch(label, partial=True, timeout=TIME_LIMIT)]
    if not known:
        return None
    reason = f"the text ends inside a label, {label!r}"
    if len({dialect.event for dialect in known}) > 1:
        return reason
    payload.event, payload.role = known[0].event, known[0].role
    payload.intact, payload.reason, payload.column = "cut", reason, payload.length
    if label[-1].isdigit():
        # `layer 3` may be the beginning of `layer 31 capture`.
        payload.layer = None
    return None


def _unparsed(dialects: Sequence[Dialect], text: str, at: int, limit: int, reason: str) -> Payload:
    """Name what no event matched after the anchor it begins with."""
    anchors = (anchor for dialect in dialects for anchor in dialect.anchors if text.startswith(anchor, at))
    name = _SLUG.sub("_", max(anchors, key=len, default="record").lower()).strip("_")
    return Payload("unparsed", name, reason=reason, length=limit - at)


def _why_not(dialects: Sequence[Dialect], text: str, at: int, limit: int) -> str:
    """Say how far the best of the dialects got."""
    names = sorted({dialect.event for dialect in dialects})
    kinds = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    shown = as_text(text[at : min(limit, at + 60)])
    return f"begins like a record ({kinds}) but goes on in no form the grammar knows: {shown!r}"


# ---------------------------------------------------------------------------------------------- key = value texts


def _collect(text: str, at: int, limit: int, *, loose: bool, alone: bool = False) -> _Pairs:
    """Collect ``key=value`` and bare values, separated by commas or blanks, from ``at`` to ``limit``.

    ``loose``: words without a key are kept too (records of no known event: ``freed=4 rejected slots``).
    ``alone``: the first value may be any, without a key.
    """
    found = _Pairs(end=at)
    position = at
    after_comma = alone
    while position < limit:
        char = text[position]
        if char in ", \t;":
            after_comma = after_comma or char == ","
            position += 1
            continue
        if text.startswith("->", position):
            position += 2
            after_comma = True
            continue
        if text.startswith("...", position):
            # An ellipsis is the printer's own (`[0, 1]...`); at the very end it is a cut made by a person's tool.
            if position + 3 >= limit:
                found.stopped, found.reason = position, "the text ends in '...'"
                break
            position += 3
            continue
        key = _KEY.match(text, position, limit)
        if key is None and not _may_stand_alone(text, position, limit, after_comma=after_comma, loose=loose):
            break
        name = as_text(key[1]) if key is not None else None
        start = key.end() if key is not None else position
        try:
            value = _bounded(text, start, limit)
        except Unfinished as error:
            found.stopped = position
            found.last = name
            found.open = "tensor" if error.inside == "a tensor" else "tail"
            found.reason = f"the text ends inside {error.inside}" + (f" of '{name}'" if name else "")
            break
        except Unreadable as error:
            found.stopped = position
            found.last = name
            found.reason = f"expected {error.expected}, found {as_text(text[error.at : error.at + 12])!r}"
            if name is not None and _PLACEHOLDER.match(text, start, limit):
                found.placeholder = True
            break
        if name is not None and _PLACEHOLDER.match(text, start, limit) and value.kind in ("dict", "word"):
            found.placeholder = True
        after_comma = False
        if name is None:
            found.bare.append(value)
        else:
            found.values.setdefault(name, value)
        found.last = name
        position = found.end = value.end
    return found


_ALONE = regex.compile(r"\(\s*\d|torch\.Size\(|\w+")


def _may_stand_alone(text: str, at: int, limit: int, *, after_comma: bool, loose: bool) -> bool:
    """Tell whether a value without a key may begin here, or other text begins that only follows the record."""
    found = _ALONE.match(text, at, limit)
    if found is None:
        return after_comma and text[at] not in "])}>'\"`"
    word = found[0]
    return after_comma or loose or not word[0].isalnum() or word in _DTYPES or word.startswith("torch")


def _bounded(text: str, at: int, limit: int) -> Value:
    """Read one value that must not reach beyond the limit (another record begins there)."""
    if limit < len(text):
        text = text[:limit]
    return read_value(text, at)


def _tagged(dialect: Dialect, text: str, at: int, limit: int) -> Reading | None:
    """``EAGLE3_DEBUG[<site>] <label>: key=value, ...`` and its relatives."""
    head = _match(dialect.pattern, text, at, limit)
    if head is None:
        return None
    named = head.groupdict()
    site = as_text(named["site"]) if named.get("site") else None
    begin = head.end()
    if named.get("label") is not None:
        label, begin_fields = as_text(named["label"]), begin
    else:
        found = _LABEL.match(text, begin, limit)
        if found is None:
            return None
        label, begin_fields = as_text(found["label"] or "").strip(), found.end()
    layer: int | None = None
    if dialect.label is not None:
        spelled = dialect.label.fullmatch(label, timeout=TIME_LIMIT)
        if spelled is None:
            return None
        number = spelled.groupdict().get("layer")
        if number:
            if len(number) > _LAYER_DIGITS:
                return None
            layer = int(number)
        event = dialect.event
    else:
        event, layer = slug(label)
    pairs = _collect(text, begin_fields, limit, loose=dialect.label is None)
    if not event:
        if not pairs.values:
            # Nothing but a tag, or a sentence that mentions it: no record can be made of it.
            return None
        event = dialect.event
    if any(key not in pairs.values for key in dialect.has):
        # What the dialect is told by may be in the part that was cut off: a later dialect of the event says so.
        return None
    if pairs.placeholder or _PLACEHOLDER.search(text, at, min(limit, begin_fields)):
        return Reading(Payload("quoted", event, reason="source code: a placeholder stands where a value would"), limit)
    reading = _build(dialect, text, at, limit, event, site, layer, pairs)
    if dialect.label is None and label and begin_fields == limit and text[at:limit].rstrip().endswith(label):
        reading.label = label
    return reading


def slug(label: str) -> tuple[str, int | None]:
    """Return a label as an event name, and the integer inside it: ``layer 3 capture`` is layer_capture, 3."""
    found = _INTEGER_WORD.search(label)
    if found is None or len(found[0]) > _LAYER_DIGITS:
        return _SLUG.sub("_", label.lower()).strip("_"), None
    without = label[: found.start()] + " " + label[found.end() :]
    return _SLUG.sub("_", without.lower()).strip("_"), int(found[0])


def _build(
    dialect: Dialect, text: str, at: int, limit: int, event: str, site: str | None, layer: int | None, pairs: _Pairs
) -> Reading:
    """Sort the collected values into columns and fields, and judge how intact the record is."""
    payload = Payload("event", event, site, dialect.role, layer, length=pairs.end - at)
    values = {dialect.keys.get(key, key): (key, value) for key, value in pairs.values.items()}
    bare = list(pairs.bare)
    for name in dialect.bare:
        if bare and name not in values:
            wanted = next((v for v in bare if _fits(name, v)), None)
            if wanted is not None:
                values[name] = (name, wanted)
                bare.remove(wanted)
    end = pairs.end
    reason, opened = pairs.reason, pairs.open
    missing = [key for key in dialect.usual if key not in values]
    last_is_bare = bool(bare) and bare[-1].end == pairs.end and bare[-1].kind == "word"
    if reason is None and missing and last_is_bare and str(bare[-1].value) not in _DTYPES:
        reason = f"the text ends inside a key, {bare.pop().text(text)!r}, and {missing[0]} is missing"
        opened = "tail"
    if reason is None and missing and pairs.last is not None:
        key, value = values.get(dialect.keys.get(pairs.last, pairs.last), (pairs.last, None))
        if value is not None and _unfinished(dialect, key, value, text):
            del values[dialect.keys.get(key, key)]
            reason = f"'{key}' ends in {value.text(text)!r}, shorter than it is printed, and {missing[0]} is missing"
            opened = "tail"
    spoilt = _spoilt(values, text)
    if spoilt is not None:
        key, value = values.pop(spoilt)
        if reason is None:
            reason = f"'{key}' is {as_text(value.text(text))[:24]!r}: foreign text stands in it"
            pairs.stopped = value.start
    _columns(payload, values, text)
    for value in bare:
        if value.kind == "word" and str(value.value) in _DTYPES:
            payload.fields.setdefault("dtype", value.value)
        else:
            payload.fields.setdefault("values", []).append(as_json(value.value))
    if dialect.layer is not None and payload.layer is None:
        payload.layer = dialect.layer
    if payload.role is None and payload.event in CAPTURE_EVENTS:
        payload.role = "target"
    if payload.norm is None and reason is None:
        _derive_norm(payload, values, text)
    if reason is not None:
        payload.intact, payload.reason = "cut", reason
        payload.column = (pairs.stopped if pairs.stopped is not None else pairs.end) - at
        if missing or pairs.stopped is not None:
            end = max(end, limit if pairs.open == "tail" else end)
    elif missing:
        payload.intact, payload.reason = "partial", f"{', '.join(missing)} missing"
        opened = "tail" if _rest(text, end, limit) == "" else None
    # A record that lost no value may still be followed by text of another kind: that text is not part of it.
    return Reading(payload, limit if opened else end, opened)


def _spoilt(values: Mapping[str, tuple[str, Value]], text: str) -> str | None:
    """Return the known column whose value is of no form that column can have."""
    for name in ("shape", "norm", "head"):
        if name in values and values[name][1].value is not None and not _has_form(name, values[name][1], text):
            return name
    return None


def _has_form(name: str, value: Value, text: str) -> bool:
    """Tell whether a value can stand in a known column."""
    if name == "shape":
        return _is_shape(value)
    return (_one_number(value, text) if name == "norm" else _numbers(value, text)) is not None


def _rest(text: str, at: int, limit: int) -> str:
    return text[at:limit].strip(" ,;\t\r")


def _fits(name: str, value: Value) -> bool:
    if name == "shape":
        return value.kind in ("shape", "tuple", "list")
    return True


def _unfinished(dialect: Dialect, key: str, value: Value, text: str) -> bool:
    """Tell whether the last value of a record that lacks usual fields may be only the beginning of what was printed."""
    if value.kind == "number":
        printed = value.text(text)
        if not printed[-1:].isdigit():
            return printed[-1:] in "+-._eE"
        wanted = dialect.decimals.get(key, dialect.decimals.get(dialect.keys.get(key, key)))
        mantissa, _, exponent = printed.lower().partition("e")
        if exponent:
            return len(exponent.lstrip("+-")) < 2
        decimals = len(mantissa.partition(".")[2])
        return decimals < wanted if wanted is not None else decimals == 0
    if value.kind == "word":
        word = str(value.value).rpartition(".")[2]
        return word not in _MODES and word not in _DTYPES
    return False


def _columns(payload: Payload, values: Mapping[str, tuple[str, Value]], text: str) -> None:
    """Move the known keys to their columns; keep every other one as a typed field."""
    for name, (key, value) in values.items():
        if name == "shape" and _is_shape(value) and (shape := tuple(as_json(value.value))):
            payload.shape = shape
            payload.width = shape[-1]
            payload.rows = shape[0] if len(shape) > 1 else None
        elif name == "norm" and (one := _one_number(value, text)) is not None:
            number, printed = one
            payload.norm, payload.norm_resolution = number, resolution(printed)
        elif name == "head" and (many := _numbers(value, text)) is not None:
            numbers, printed_all, rounded = many
            payload.head = tuple(numbers)
            if rounded:
                payload.head_resolution = tuple(resolution(one) for one in printed_all)
        elif name == "mode":
            payload.mode = _mode(value)
        elif name == "layer" and _is_layer(value.value):
            payload.layer = value.value
        elif name == "residual_is_none" and key != name and isinstance(value.value, str):
            # A dialect may print the opposite (`res=yes` says that a residual is there).
            payload.fields[name] = value.value.lower() in ("no", "false", "none", "0")
        else:
            payload.fields[name] = as_json(value.value)


def _is_layer(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and abs(number) < 10**_LAYER_DIGITS


def _is_shape(value: Value) -> bool:
    """Tell whether a value can be a tensor's shape: whole numbers, as many and as large as torch can hold."""
    inner = as_json(value.value)
    if not isinstance(inner, list) or len(inner) > _MOST_AXES:
        return False
    axes = all(isinstance(axis, int) and not isinstance(axis, bool) and axis >= 0 for axis in inner)
    return axes and max(inner, default=0) <= _MOST_NUMBERS and math.prod(inner) <= _MOST_NUMBERS


def _mode(value: Value) -> str:
    """``CaptureHiddenMode.FULL``, ``<CaptureHiddenMode.FULL: 2>``, ``FULL``, or the bare number as text."""
    text = str(value.value).strip("<>").partition(":")[0].strip()
    return text.rpartition(".")[2]


def _one_number(value: Value, text: str) -> tuple[float, str] | None:
    """Return the number a value is, with its printed text; a tensor of one number counts as one."""
    inner = value.value
    if isinstance(inner, TensorText):
        if len(inner.numbers) != 1:
            return None
        number, printed = inner.numbers[0], inner.texts[0]
    elif value.kind == "number" and isinstance(inner, (int, float)):
        number, printed = float(inner), value.text(text)
    else:
        return None
    return (number, printed) if _can_be(number) else None


def _can_be(number: float) -> bool:
    """Tell whether a tensor can hold a number (nan and inf it can): digits glued together make larger ones."""
    return abs(number) < _LARGEST or not math.isfinite(number)


def _numbers(value: Value, text: str) -> tuple[list[float], list[str], bool] | None:
    """Return the numbers of a list or tensor, their printed texts, and whether they were rounded when printed.

    Tensors print four decimals. A Python list prints every digit: it was rounded before when one of its values is
    no half-precision number though it has few digits.
    """
    inner = value.value
    if isinstance(inner, TensorText):
        return (inner.numbers, inner.texts, True) if all(map(_can_be, inner.numbers)) else None
    if not isinstance(inner, list) or not all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in inner):
        return None
    numbers = [float(number) for number in inner]
    if not all(map(_can_be, numbers)):
        return None
    rounded = not all(map(exact_in_half_precision, numbers))
    texts = [part.strip() for part in value.text(text).strip("[]() ").split(",")] if rounded else []
    if len(texts) != len(numbers):
        texts = [repr(number) for number in numbers]
    return numbers, texts, rounded


def _derive_norm(payload: Payload, values: Mapping[str, tuple[str, Value]], text: str) -> None:
    """Derive the norm from a printed mean and (unbiased) standard deviation: ||x||^2 = (n - 1) std^2 + n mean^2.

    Its resolution follows from the printed digits of both, by the first derivative.
    """
    if "mean" not in values or "std" not in values or payload.shape is None:
        return
    mean, std = _one_number(values["mean"][1], text), _one_number(values["std"][1], text)
    n = math.prod(payload.shape)
    if mean is None or std is None or n < 1:
        return
    norm = math.sqrt(max(0.0, (n - 1) * std[0] ** 2 + n * mean[0] ** 2)) if math.isfinite(std[0] + mean[0]) else std[0]
    payload.norm, payload.norm_derived = norm, True
    if norm and math.isfinite(norm):
        off = (n - 1) * abs(std[0]) * resolution(std[1]) + n * abs(mean[0]) * resolution(mean[1])
        payload.norm_resolution = off / norm


# ------------------------------------------------------------------------------------------------ key: value lines


def _pairs(dialect: Dialect, text: str, at: int, limit: int) -> Reading | None:
    """``Decode batch, #running-req: 1, token usage: 0.00, ...``: tolerant pairs, whatever the set and order."""
    head = _match(dialect.pattern, text, at, limit)
    if head is None:
        return None
    payload = Payload("event", dialect.event, role=dialect.role)
    fields = payload.fields
    for name, printed in head.groupdict().items():
        if printed is not None:
            fields[name] = _typed(dialect, name, printed)
    units: dict[str, str] = {}
    words = text.rfind(_REPEATED_WORDS, at, limit)
    repeated = _REPEATED.match(text, words, limit) if words >= 0 else None
    if repeated is not None:
        fields["repeated"] = int(repeated[1])
        limit = at + len(text[at:words].rstrip())
        text = text[:limit]
    position = head.end()
    last_closing = text.rfind(")", position, limit)
    last: str | None = None
    last_printed = ""
    while position < limit:
        if text[position] in ", \t.":
            position += 1
            continue
        stop = _pair_end(text, position, limit, last_closing)
        key = _PAIR_KEY.match(text, position, stop)
        if key is None:
            chunk = text[position:stop].strip()
            if last is not None and last in dialect.lists and isinstance(fields.get(last), list) and _listed(chunk):
                fields[last].append(None if _NO_VALUE.match(chunk) else _typed(dialect, last, chunk))
                last_printed = chunk
                position = stop
                continue
            break
        printed_key = as_text(strip_colours(key[1]).strip())
        name = dialect.keys.get(printed_key, printed_key)
        if key.end() < limit and text[key.end()] in "[({'\"":
            try:
                value = _bounded(text, key.end(), limit)
            except (Unfinished, Unreadable):
                last, last_printed = name, ""
                payload.intact, payload.reason = "cut", f"the text ends inside '{printed_key}'"
                payload.column = key.end() - at
                position = limit
                break
            fields[name] = as_json(value.value)
            last, last_printed = name, value.text(text)
            position = value.end
            continue
        printed = text[key.end() : stop].strip()
        if name in dialect.lists:
            empty = _NO_VALUE.match(printed) is not None
            fields[name] = [None if empty else _typed(dialect, name, printed)] if printed else []
        elif name not in fields:
            fields[name] = _with_unit(dialect, name, printed, units)
        last, last_printed = name, printed
        position = stop
    if units:
        fields["units"] = units
    missing = [name for name in dialect.usual if name not in fields]
    if payload.intact == "whole" and missing:
        _judge_pairs(dialect, payload, text, at, (position, limit), last, last_printed, missing)
    payload.length = position - at
    if not set(fields) - set(head.groupdict()) - {"repeated"} and dialect.usual:
        return None
    return Reading(payload, position, "tail" if payload.intact == "cut" else None)


def _listed(printed: str) -> bool:
    """Tell whether printed text is one more value of a list: a number, or the dashes of a place without one."""
    return bool(_PAIR_NUMBER.match(printed) or _NO_VALUE.match(printed))


def _judge_pairs(
    dialect: Dialect,
    payload: Payload,
    text: str,
    at: int,
    stopped: tuple[int, int],
    last: str | None,
    last_printed: str,
    missing: list[str],
) -> None:
    """Tell partial from cut: whether the last value is complete, though usual fields are missing behind it."""
    position, limit = stopped
    fields = payload.fields
    rest = text[position:limit].strip(" ,\t")
    if rest:
        payload.intact, payload.reason = "cut", f"the text ends inside a key, {as_text(rest[:20])!r}"
        payload.column = position - at
        return
    closed = text[:position].rstrip(" \t").endswith(",") or text[position:limit].lstrip(" \t").startswith(",")
    number = _PAIR_NUMBER.match(last_printed)
    wanted = dialect.decimals.get(last or "")
    complete = closed
    if not complete and number is not None and wanted is not None:
        complete = len(number[1].partition(".")[2]) >= wanted
    elif not complete and last_printed in ("True", "False", "None"):
        complete = True
    if complete:
        payload.intact, payload.reason = "partial", f"{', '.join(missing)} missing"
        return
    if last is not None and last in fields:
        fields[last] = None
    payload.intact = "cut"
    payload.reason = f"'{last}' ends in {as_text(last_printed)!r} and {missing[0]} is missing behind it"
    payload.column = position - at


def _pair_end(text: str, at: int, limit: int, last_closing: int) -> int:
    """Return where a pair ends: at a comma or full stop followed by a blank, outside parentheses.

    ``last_closing`` is the place of the last closing parenthesis before the limit. Every character is looked at once.
    """
    position = seen = at
    opened = 0
    separated = False
    while True:
        found = _PAIR_END.search(text, position, limit)
        if found is None:
            return limit
        end: int = found.start()
        separated = separated or _SEPARATOR.search(text, seen, end) is not None
        opened += text.count("(", seen, end) - text.count(")", seen, end)
        seen = end
        if found[0] == "." and not separated:
            # The full stop of an abbreviation inside a key: `est. read BW (GB/s per GPU)`.
            position = found.end()
        elif opened <= 0 or last_closing < end:
            return end
        else:
            position = text.find(")", end, limit)


def _with_unit(dialect: Dialect, name: str, printed: str, units: dict[str, str]) -> Any:
    """Return a value as its type; a unit or percent sign behind a number goes to ``units``."""
    kind = dialect.types.get(name)
    if kind == "text":
        return as_text(printed)
    found = _PAIR_NUMBER.match(printed)
    if found is not None:
        if found[2]:
            units[name] = found[2]
        return _typed(dialect, name, found[1])
    return _typed(dialect, name, printed)


def _typed(dialect: Dialect, name: str, printed: str) -> Any:
    """Return printed text as int, float, True/False/None, or text."""
    kind = dialect.types.get(name)
    if kind == "text":
        return as_text(strip_colours(printed).strip())
    if kind == "shape":
        axes = _INTEGER_WORD.findall(printed)
        # Digits that were glued together are kept as they stand.
        return [int(axis) for axis in axes] if all(len(axis) < _AXIS_DIGITS for axis in axes) else as_text(printed)
    if kind == "count" and (digits := printed.replace(",", "")).isdigit() and len(digits) < _AXIS_DIGITS:
        return int(digits)
    if kind == "numbers":
        return [_typed(dialect, "", number) for number in _NUMBER_WORD.findall(printed)]
    try:
        value = read_value(printed, 0)
    except (Unfinished, Unreadable):
        return as_text(strip_colours(printed))
    if value.end != len(printed) or value.kind in ("word", "call", "object"):
        return as_text(strip_colours(printed))
    inner = as_json(value.value)
    return float(inner) if kind == "float" and isinstance(inner, int) and not isinstance(inner, bool) else inner


# ------------------------------------------------------------------------------------------- Python reprs, patterns


def _call(dialect: Dialect, text: str, at: int, limit: int) -> Reading | None:
    """``server_args=ServerArgs(a=1, b='x')``, ``server_args={'a': 1}``, ``Finish: obj=...``: repr, never evaluated."""
    head = _match(dialect.pattern, text, at, len(text))
    if head is None:
        return None
    if text.startswith("{", head.end()):
        return _dict(dialect, text, at, head.end(), limit)
    # The repr is read past the next anchor: what looks like a record inside its quotes is none.
    payload = Payload("event", dialect.event, role=dialect.role)
    closing = text[head.end() - 1] == "("
    position, reason = _keywords(text, head.end(), len(text), payload.fields, closing=closing)
    if reason is not None and limit < len(text):
        payload.fields.clear()
        position, reason = _keywords(text, head.end(), limit, payload.fields, closing=closing)
    for name, printed in head.groupdict().items():
        if printed is not None:
            payload.fields.setdefault(name, _typed(dialect, name, printed))
    payload.length = position - at
    if reason is not None:
        payload.intact, payload.reason, payload.column = "cut", reason, position - at
    return Reading(payload, position, "tail" if reason is not None else None)


def _dict(dialect: Dialect, text: str, at: int, opening: int, limit: int) -> Reading:
    """Read a record that is one dict: its entries are the fields; a dict that breaks off has none."""
    payload = Payload("event", dialect.event, role=dialect.role)
    try:
        value = read_value(text, opening)
    except (Unfinished, Unreadable) as error:
        payload.intact, payload.reason = "cut", f"the dict is unfinished: {error}"
        payload.column, payload.length = opening - at, limit - at
        return Reading(payload, limit, "tail")
    inner = as_json(value.value)
    payload.fields.update(inner if isinstance(inner, dict) else {"value": inner})
    payload.length = value.end - at
    return Reading(payload, value.end)


def _keywords(text: str, at: int, limit: int, into: dict[str, Any], *, closing: bool) -> tuple[int, str | None]:
    """Read ``key=value, key=value`` up to the closing bracket or the end; return where, and why it broke off."""
    bounded = text if limit == len(text) else text[:limit]
    position = at
    while True:
        while position < limit and bounded[position] in ", \t":
            position += 1
        if position >= limit:
            return position, ("the text ends before the closing bracket" if closing else None)
        if bounded[position] == ")":
            return position + 1, None
        key = _KEY.match(bounded, position)
        if key is None:
            if not closing:
                return position, None
            return position, f"expected 'name=', found {as_text(bounded[position : position + 12])!r}"
        try:
            value = read_value(bounded, key.end())
        except Unfinished as error:
            return position, f"the text ends inside {error.inside} of '{key[1]}'"
        except Unreadable as error:
            return position, f"'{key[1]}': expected {error.expected}"
        into[as_text(key[1])] = as_json(value.value)
        position = value.end


def _pattern(dialect: Dialect, text: str, at: int, limit: int) -> Reading | None:
    """Read a line with a fixed form: named groups become fields, under the types the grammar gives."""
    found = _match(dialect.pattern, text, at, limit)
    if found is None:
        return None
    payload = Payload(dialect.kind, dialect.event, role=dialect.role, length=found.end() - at)  # type: ignore[arg-type]
    for name, printed in found.groupdict().items():
        if printed is not None:
            payload.fields[name] = _typed(dialect, name, printed.strip())
    return Reading(payload, found.end())


def _keyvalue(dialect: Dialect, text: str, at: int, limit: int) -> Reading | None:
    """Read a fixed head, then ``key=value`` separated by blanks or commas (the dumper's lines)."""
    head = _match(dialect.pattern, text, at, limit)
    if head is None:
        return None
    pairs = _collect(text, head.end(), limit, loose=False, alone=True)
    reading = _build(dialect, text, at, limit, dialect.event, None, None, pairs)
    for name, printed in head.groupdict().items():
        if printed is not None:
            kept = _typed(dialect, name, printed)
            if name == "layer" and _is_layer(kept):
                reading.payload.layer = kept
            else:
                reading.payload.fields[name] = kept
    return reading


def _traceback(dialect: Dialect, text: str, at: int, limit: int) -> Reading | None:
    """Read the first line of a traceback; the lines after it are gathered by parse.py, which knows lines."""
    found = _match(dialect.pattern, text, at, limit)
    if found is None:
        return None
    payload = Payload("event", dialect.event, length=found.end() - at)
    return Reading(payload, found.end(), "traceback")


_READERS = {
    "tagged": _tagged,
    "pairs": _pairs,
    "call": _call,
    "pattern": _pattern,
    "keyvalue": _keyvalue,
    "traceback": _traceback,
}
READERS = tuple(_READERS)
