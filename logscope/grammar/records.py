"""The exact reading of one text: one record's text in, one payload out, with the place where reading stopped.

This module is responsible for the ways a record is written (:data:`READERS`), for telling a whole record from a partial
or cut one, and for where the records of one text end. It must not know files, lines or blocks; what events there are is
data (files.py). Text is one character per byte (latin-1): positions are byte offsets.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import regex

from logscope.grammar import OVERTIMES, TIME_LIMIT
from logscope.grammar.literals import (
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
from logscope.grammar.prefixes import strip_colours
from logscope.model import CAPTURE_EVENTS, Kind, Payload, Role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logscope.grammar.files import Grammar

# Characters before an anchor that its patterns may look at.
_LOOK_BEHIND = 64

# regex looks for a text that a pattern requires as far as the limit, before it matches: asked at every word of a long
# text, that is not linear. This one is asked at every word.
_KEY = re.compile(r"([^\s=,:()\[\]{}'\"]+)=(?!=)")
_GAP = regex.compile(r"(?:[, \t;]|->|\.\.\.)*+")
# The patterns give nothing back that they took (++, *+) where other text must follow: linear whatever the text.
_PAIR_KEY = regex.compile(r"\s*+([^:=,\s]++(?:\s++[^:=,\s]++)*+)\s*+(?::(?=\s|$|,)|=)[ \t]*+")
_PAIR_NUMBER = regex.compile(
    r"([-+]?(?:nan|inf)\b|[-+]?(?:\d++\.?+\d*+|\.\d++)(?:[eE][-+]?\d++)?)(?:\s?(%|[A-Za-z][\w/]*+))?$"
)
_PAIR_END = regex.compile(r",(?=\s|$)|\.(?=\s|$)")
# A number with its bounds: `4.22 [4.05, 4.39]`.
_PAIR_SPAN = regex.compile(r"(\d++(?:\.\d*+)?+) \[(\d++(?:\.\d*+)?+), (\d++(?:\.\d*+)?+)\]")
_PAIR_SPAN_OPEN = regex.compile(r"\d++(?:\.\d*+)?+ \[[^\]]*+")
_SEPARATOR = regex.compile(r"[:=]")
_CLOSING = regex.compile(r"[)\]]")
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
_NUMBER_WORD = regex.compile(r"[-+]?(?:nan|inf|\d++(?:\.\d++)?+)")
# Printed in a list where there is no value (``0.900, 0.375, -----``).
_NO_VALUE = regex.compile(r"-{2,}$")
_DTYPES = frozenset({"bf16", "fp16", "fp32", "f16", "f32", "bfloat16", "float16", "float32", "fp8", "int8", "half"})
_MODES = frozenset({"NULL", "LAST", "FULL"})
# A layer's number has no more digits than this.
_LAYER_DIGITS = 9
# Axes and numbers of a tensor, as torch bounds them.
_MOST_AXES = 64
_MOST_NUMBERS = 2**63 - 1
_AXIS_DIGITS = len(str(_MOST_NUMBERS))
# No norm or state is near this, in any precision models are run in; what is was glued together from two numbers.
LARGEST = 1e100
# What stands before a record is looked at so far back: no chain of prefixes is longer.
LONGEST_BEFORE = 2048


class _Style(NamedTuple):
    """How keys and values are written: what stands between two pairs, what a key is, and which values may have none.

    ``bare``: ``comma`` (only behind one, and what has the form of a shape or dtype), ``first`` (the first too),
    ``any``, ``number`` (goes on with a list), None. ``printed``: a value is
    what stands up to the pair's end, else a literal.
    """

    between: Any
    key: Any
    bare: str | None = None
    printed: bool = False


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
    kind: Kind = "event"
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
    """Keys and values read from one record, in order: the printed key and the value by the name the dialect gives it.

    ``bare`` values have no key. ``end`` is where the last value ends, ``at`` where reading ended; ``stopped`` and
    ``reason`` are where and why it broke off, if it did, and ``open`` what could go on there. ``last`` and
    ``value`` are the last key, as printed, and value; a bare value of ``pairs`` has the name of the list that it goes
    on with as its kind. ``placeholder``: one of source code (``%s``, ``{x}``) stands where a value would.
    """

    values: dict[str, tuple[str, Value]] = field(default_factory=dict)
    bare: list[Value] = field(default_factory=list)
    end: int = 0
    at: int = 0
    stopped: int | None = None
    reason: str | None = None
    open: str | None = None
    last: str | None = None
    value: Value | None = None
    placeholder: bool = False


def read_record(dialects: Sequence[Dialect], text: str, at: int, limit: int, reach: int) -> Reading | None:
    """Read the record whose anchor stands at ``at``; its text ends at ``limit`` at the latest.

    Only a ``call`` may end later, at ``reach`` at the latest: what looks like the next record may stand in its quotes.
    Returns None when no dialect matches and none of them is strict: the anchor's words stood in other text.
    """
    # A line may be megabytes long and hold thousands of records: each gets its own part of it, copied once. A repr is
    # read past the next anchor: what looks like a record inside its quotes is none.
    begin = max(0, at - _LOOK_BEHIND)
    text = text[begin : reach if any(dialect.reader == "call" for dialect in dialects) else limit]
    at, limit = at - begin, limit - begin
    reading = None
    reasons = []
    for dialect in dialects:
        slow = f"a pattern of {dialect.source} took longer than {TIME_LIMIT:g} s on"
        if dialect.overtimes >= OVERTIMES:
            reasons.append(f"{slow} {OVERTIMES} texts before")
            continue
        try:
            end = len(text) if dialect.reader == "call" else limit
            head = dialect.pattern.match(text, at, end, timeout=TIME_LIMIT)
            reading = _READERS[dialect.reader](dialect, head, text, at, limit) if head is not None else None
        except TimeoutError:
            dialect.overtimes += 1
            reasons.append(f"{slow} this text")
            continue
        if reading is not None:
            reading.dialect = dialect
            break
    if reading is not None and reading.label is not None:
        unclear = _cut_in_its_label(reading.label, reading.payload, dialects)
        if unclear is not None:
            reading = _unparsed(dialects, text, at, limit, unclear)
        elif reading.payload.intact == "cut":
            reading.open = "tail"
    if reading is None and not reasons and any(dialect.strict for dialect in dialects):
        names = sorted({dialect.event for dialect in dialects})
        kinds = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        shown = as_text(text[at : min(limit, at + 60)])
        reasons.append(f"begins like a record ({kinds}) but goes on in no form the grammar knows: {shown!r}")
    if reading is None and reasons:
        reading = _unparsed(dialects, text, at, limit, reasons[-1])
    if reading is not None:
        reading.end += begin
    return reading


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


def _unparsed(dialects: Sequence[Dialect], text: str, at: int, limit: int, reason: str) -> Reading:
    """Name what no event matched after the anchor it begins with."""
    anchors = (anchor for dialect in dialects for anchor in dialect.anchors if text.startswith(anchor, at))
    name = _SLUG.sub("_", max(anchors, key=len, default="record").lower()).strip("_")
    return Reading(Payload("unparsed", name, reason=reason, length=limit - at), limit)


# -------------------------------------------------------------------------------------------------- keys and values

_TAGGED = _Style(_GAP, _KEY, "comma")
_LOOSE = _Style(_GAP, _KEY, "any")
_SPACED = _Style(_GAP, _KEY, "first")
_CALLED = _Style(regex.compile(r"[, \t]*+"), _KEY)
_SPOKEN = _Style(regex.compile(r"[, \t.]*+"), _PAIR_KEY, "number", printed=True)


def _collect(dialect: Dialect, text: str, at: int, limit: int, style: _Style) -> _Pairs:
    """Read keys and values in one style from ``at`` up to what has no form of it, to ``limit`` at the latest."""
    text = text[:limit]
    found = _Pairs(end=at, at=at)
    comma = style.bare == "first"
    last_closing = max(text.rfind(")", at), text.rfind("]", at)) if style.printed else -1
    while True:
        gap = style.between.match(text, found.at)[0]
        comma = comma or "," in gap or "->" in gap
        found.at += len(gap)
        if found.at >= limit:
            if gap.endswith("..."):
                # An ellipsis is the printer's own (`[0, 1]...`); at the very end it is a cut made by a person's tool.
                found.at = found.stopped = limit - 3
                found.reason = "the text ends in '...'"
            return found
        stop = _pair_end(text, found.at, limit, last_closing) if style.printed else limit
        key = style.key.match(text, found.at, stop)
        if key is None and not _may_stand_alone(dialect, text, found, stop, style, comma=comma):
            return found
        begin = key.end() if key is not None else found.at
        name = as_text(strip_colours(key[1]).strip()) if key is not None else None
        broken: Unfinished | Unreadable | None = None
        try:
            if not style.printed or (key is not None and text.startswith(("[", "(", "{", "'", '"'), begin)):
                value = read_value(text, begin)
            else:
                value = Value(text[begin:stop].strip(), "printed", begin, stop)
        except (Unfinished, Unreadable) as error:
            broken = error
        if name is not None and (broken is not None or value.kind in ("dict", "word")):
            found.placeholder = found.placeholder or _PLACEHOLDER.match(text, begin) is not None
        if broken is not None:
            found.stopped, found.last = found.at, name
            of = f" of '{name}'" if name else ""
            if isinstance(broken, Unfinished):
                found.open = "tensor" if broken.inside == "a tensor" else "tail"
                found.reason = f"the text ends inside {broken.inside}{of}"
            else:
                found.reason = f"expected {broken.expected}{of}, found {as_text(text[broken.at : broken.at + 12])!r}"
            return found
        comma = False
        if name is None:
            if style.printed:
                value.kind = dialect.keys.get(found.last or "", found.last or "")
            found.bare.append(value)
        else:
            found.values.setdefault(dialect.keys.get(name, name), (name, value))
        if name is not None or not style.printed:
            found.last = name
        found.at, found.end, found.value = value.end, value.end, value


_ALONE = regex.compile(r"\(\s*\d|torch\.Size\(|\w+")


def _may_stand_alone(dialect: Dialect, text: str, found: _Pairs, stop: int, style: _Style, *, comma: bool) -> bool:
    """Tell whether a value without a key may begin here, or other text begins that only follows the record."""
    if style.bare == "number":
        goes_on = found.last is not None and dialect.keys.get(found.last, found.last) in dialect.lists
        word = text[found.at : stop].strip()
        return goes_on and bool(_PAIR_NUMBER.match(word) or _NO_VALUE.match(word))
    if style.bare is None:
        return False
    form = _ALONE.match(text, found.at)
    if form is None:
        return comma and text[found.at] not in "])}>'\"`"
    word = form[0]
    return comma or style.bare == "any" or not word[0].isalnum() or word in _DTYPES or word.startswith("torch")


def _tagged(dialect: Dialect, head: Any, text: str, at: int, limit: int) -> Reading | None:
    """``EAGLE3_DEBUG[<site>] <label>: key=value, ...`` and its relatives."""
    named = head.groupdict()
    site = as_text(named["site"]) if named.get("site") else None
    label, begin_fields = named.get("label"), head.end()
    if label is None:
        found = _LABEL.match(text, begin_fields, limit)
        if found is None:
            return None
        label, begin_fields = (found["label"] or "").strip(), found.end()
    label = as_text(label)
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
    pairs = _collect(dialect, text, begin_fields, limit, _LOOSE if dialect.label is None else _TAGGED)
    if not event:
        if not pairs.values:
            # Nothing but a tag, or a sentence that mentions it: no record can be made of it.
            return None
        event = dialect.event
    if not set(dialect.has) <= {key for key, _ in pairs.values.values()}:
        # What the dialect is told by may be in the part that was cut off: a later dialect of the event says so.
        return None
    if pairs.placeholder or _PLACEHOLDER.search(text, at, min(limit, begin_fields)):
        return Reading(Payload("quoted", event, reason="source code: a placeholder stands where a value would"), limit)
    reading = _build(dialect, Payload("event", event, site, dialect.role, layer), pairs, text, at, limit)
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


def _build(dialect: Dialect, payload: Payload, pairs: _Pairs, text: str, at: int, limit: int) -> Reading:
    """Sort the collected values into columns and fields, and judge how intact the record is."""
    payload.length = pairs.end - at
    values, bare = pairs.values, pairs.bare
    for name in dialect.bare:
        wanted = next((one for one in bare if name != "shape" or one.kind in ("shape", "tuple", "list")), None)
        if wanted is not None and name not in values:
            values[name] = (name, wanted)
            bare.remove(wanted)
    reason, stopped, opened = pairs.reason, pairs.stopped, pairs.open
    missing = [key for key in dialect.usual if key not in values]
    if reason is None and missing:
        name = dialect.keys.get(pairs.last or "", pairs.last or "")
        tail = bare[-1] if bare and bare[-1].end == pairs.end else None
        if tail is not None and tail.kind == "word" and str(tail.value) not in _DTYPES:
            bare.remove(tail)
            reason = f"the text ends inside a key, {tail.text(text)!r}, and {missing[0]} is missing"
        elif name in values and _unfinished(dialect, *values[name], text):
            key, value = values.pop(name)
            reason = f"'{key}' ends in {value.text(text)!r}, shorter than it is printed, and {missing[0]} is missing"
        opened = opened if reason is None else "tail"
    for name, (key, value) in values.items():
        if not _put(payload, name, key, value, text) and reason is None:
            reason, stopped = f"'{key}' is {as_text(value.text(text))[:24]!r}: foreign text stands in it", value.start
    for value in bare:
        if value.kind == "word" and str(value.value) in _DTYPES:
            payload.fields.setdefault("dtype", value.value)
        else:
            payload.fields.setdefault("values", []).append(as_json(value.value))
    if dialect.layer is not None and payload.layer is None:
        payload.layer = dialect.layer
    if payload.role is None and payload.event in CAPTURE_EVENTS:
        payload.role = "target"
    if reason is not None:
        payload.intact, payload.reason = "cut", reason
        payload.column = (pairs.end if stopped is None else stopped) - at
    else:
        if payload.norm is None:
            _derive_norm(payload, values, text)
        if missing:
            payload.intact, payload.reason = "partial", f"{', '.join(missing)} missing"
            opened = "tail" if not text[pairs.end : limit].strip(" ,;\t\r") else None
    # A record that lost no value may still be followed by text of another kind: that text is not part of it.
    return Reading(payload, limit if opened else pairs.end, opened)


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


def _put(payload: Payload, name: str, key: str, value: Value, text: str) -> bool:
    """Put a value into its column, or keep it as a typed field; False when it is of no form its column can have."""
    inner = value.value
    if name == "shape" and inner is not None and as_json(inner) != []:
        if not _is_shape(value):
            return False
        payload.shape = tuple(as_json(inner))
        payload.width = payload.shape[-1]
        payload.rows = payload.shape[0] if len(payload.shape) > 1 else None
    elif name == "norm" and inner is not None:
        one = _one_number(value, text)
        if one is None:
            return False
        payload.norm, payload.norm_resolution = one[0], resolution(one[1])
    elif name == "head" and inner is not None:
        many = _numbers(value, text) if value.kind != "number" else None
        if many is None:
            return False
        payload.head = tuple(many[0])
        # Tensors print four decimals. A Python list prints every digit: it was rounded before when one of its values
        # is no half-precision number though it has few digits.
        if isinstance(inner, TensorText) or not all(map(exact_in_half_precision, many[0])):
            payload.head_resolution = tuple(map(resolution, many[1]))
    elif name == "mode":
        payload.mode = _mode(value)
    elif name == "layer" and _is_layer(inner):
        payload.layer = inner
    elif name == "residual_is_none" and key != name and isinstance(inner, str):
        # A dialect may print the opposite (`res=yes` says that a residual is there).
        payload.fields[name] = inner.lower() in ("no", "false", "none", "0")
    else:
        payload.fields[name] = as_json(inner)
    return True


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


def _numbers(value: Value, text: str) -> tuple[list[float], list[str]] | None:
    """Return the numbers of a value, also as printed; None where it is something else.

    Numbers too large for any tensor (nan and inf are not) were glued together: no numbers either.
    """
    inner = value.value
    if isinstance(inner, TensorText):
        numbers, texts = inner.numbers, inner.texts
    else:
        some = inner if isinstance(inner, list) else [inner] if value.kind == "number" else None
        if some is None or not all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in some):
            return None
        numbers = [float(number) for number in some]
        texts = [part.strip() for part in value.text(text).strip("[]() ").split(",")]
        texts = texts if len(texts) == len(numbers) else [repr(number) for number in numbers]
    return (numbers, texts) if all(abs(n) < LARGEST or not math.isfinite(n) for n in numbers) else None


def _one_number(value: Value, text: str) -> tuple[float, str] | None:
    """Return the number a value is, with its printed text; a tensor of one number counts as one."""
    many = None if isinstance(value.value, list) else _numbers(value, text)
    return (many[0][0], many[1][0]) if many is not None and len(many[0]) == 1 else None


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


def _pairs(dialect: Dialect, head: Any, text: str, at: int, limit: int) -> Reading | None:
    """``Decode batch, #running-req: 1, token usage: 0.00, ...``: tolerant pairs, whatever the set and order."""
    payload = Payload("event", dialect.event, role=dialect.role)
    fields = payload.fields
    _named(dialect, head, fields)
    words = text.rfind(_REPEATED_WORDS, at, limit)
    repeated = _REPEATED.match(text, words, limit) if words >= 0 else None
    if repeated is not None:
        fields["repeated"] = int(repeated[1])
        limit = at + len(text[at:words].rstrip())
    said = set(fields)
    pairs = _collect(dialect, text, head.end(), limit, _SPOKEN)
    units: dict[str, str] = {}
    ranges: dict[str, list[Any]] = {}
    broken: str | None = None
    for name, (_, value) in pairs.values.items():
        span = _PAIR_SPAN.fullmatch(value.value) if value.kind == "printed" else None
        if value.kind != "printed":
            fields[name] = as_json(value.value)
        elif span is not None:
            fields[name], *ranges[name] = (_typed(dialect, name, one) for one in span.groups())
        elif dialect.types.get(name) != "text" and _PAIR_SPAN_OPEN.fullmatch(value.value):
            fields[name], broken = None, name
        elif name in dialect.lists:
            on = [one.value for one in pairs.bare if one.kind == name]
            listed = (one for one in (value.value, *on) if one)
            fields[name] = [None if _NO_VALUE.match(one) else _typed(dialect, name, one) for one in listed]
        elif name not in said:
            # A unit or percent sign behind a number is kept apart.
            number = _PAIR_NUMBER.match(value.value) if dialect.types.get(name) != "text" else None
            fields[name] = _typed(dialect, name, number[1] if number is not None else value.value)
            if number is not None and number[2]:
                units[name] = number[2]
    if units:
        fields["units"] = units
    if ranges:
        fields["ranges"] = ranges
    payload.length = pairs.at - at
    missing = [name for name in dialect.usual if name not in fields]
    if pairs.reason is not None:
        payload.intact, payload.reason, payload.column = "cut", pairs.reason, payload.length
        pairs.at, payload.length = limit, limit - at
    elif broken is not None:
        payload.intact, payload.reason = "cut", f"the bounds of '{broken}' are not closed"
        payload.column = payload.length
    elif missing:
        _judge_pairs(dialect, payload, text, at, limit, pairs, missing)
    if not pairs.values and dialect.usual:
        return None
    return Reading(payload, pairs.at, "tail" if payload.intact == "cut" else None)


def _named(dialect: Dialect, found: Any, fields: dict[str, Any]) -> None:
    """Put the named groups of a match into the fields, under the types the grammar gives."""
    fields.update(
        (name, _typed(dialect, name, said.strip())) for name, said in found.groupdict().items() if said is not None
    )


def _judge_pairs(
    dialect: Dialect, payload: Payload, text: str, at: int, limit: int, pairs: _Pairs, missing: list[str]
) -> None:
    """Tell partial from cut: whether the last value is complete, though usual fields are missing behind it."""
    rest = text[pairs.at : limit].strip(" ,\t")
    name = dialect.keys.get(pairs.last or "", pairs.last or "")
    printed = "" if pairs.value is None else pairs.value.text(text).strip()
    number, wanted = _PAIR_NUMBER.match(printed), dialect.decimals.get(name)
    if rest:
        payload.reason = f"the text ends inside a key, {as_text(rest[:20])!r}"
    elif "," in text[pairs.end : limit] or (
        len(number[1].partition(".")[2]) >= wanted
        if number is not None and wanted is not None
        else printed in ("True", "False", "None")
    ):
        payload.intact, payload.reason = "partial", f"{', '.join(missing)} missing"
        return
    else:
        payload.reason = f"'{name}' ends in {as_text(printed)!r} and {missing[0]} is missing behind it"
        if name in payload.fields:
            payload.fields[name] = None
    payload.intact, payload.column = "cut", pairs.at - at


def _pair_end(text: str, at: int, limit: int, last_closing: int) -> int:
    """Return where a pair ends: at a comma or full stop followed by a blank, outside parentheses and brackets.

    ``last_closing`` is the place of the last closing one before the limit. Every character is looked at once.
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
        opened += sum(text.count(one, seen, end) for one in "([") - sum(text.count(one, seen, end) for one in ")]")
        seen = end
        if found[0] == "." and not separated:
            # The full stop of an abbreviation inside a key: `est. read BW (GB/s per GPU)`.
            position = found.end()
        elif opened <= 0 or last_closing < end:
            return end
        else:
            closing = _CLOSING.search(text, end)
            position = len(text) if closing is None else closing.start()


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


def _call(dialect: Dialect, head: Any, text: str, at: int, limit: int) -> Reading | None:
    """``server_args=ServerArgs(a=1, b='x')``, ``server_args={'a': 1}``, ``Finish: obj=...``: repr, never evaluated."""
    payload = Payload("event", dialect.event, role=dialect.role)
    if text.startswith("{", head.end()):
        # A record that is one dict: its entries are the fields; a dict that breaks off has none.
        try:
            value = read_value(text, head.end())
        except (Unfinished, Unreadable) as error:
            payload.intact, payload.reason = "cut", f"the dict is unfinished: {error}"
            payload.column, payload.length = head.end() - at, limit - at
            return Reading(payload, limit, "tail")
        inner, payload.length = as_json(value.value), value.end - at
        payload.fields.update(inner if isinstance(inner, dict) else {"value": inner})
        return Reading(payload, value.end)
    closing = text[head.end() - 1] == "("
    for end in dict.fromkeys((len(text), limit)):
        pairs = _collect(dialect, text, head.end(), end, _CALLED)
        reason = pairs.reason
        if text.startswith(")", pairs.at) and pairs.at < end:
            pairs.at += 1
        elif reason is None and closing:
            here = as_text(text[pairs.at : min(end, pairs.at + 12)])
            reason = f"expected 'name=', found {here!r}" if here else "the text ends before the closing bracket"
        if reason is None:
            break
    payload.length = pairs.at - at
    payload.fields.update((name, as_json(value.value)) for name, (_, value) in pairs.values.items())
    named: dict[str, Any] = {}
    _named(dialect, head, named)
    payload.fields |= named | payload.fields
    if reason is not None:
        payload.intact, payload.reason, payload.column = "cut", reason, payload.length
    return Reading(payload, pairs.at, "tail" if reason is not None else None)


def _pattern(dialect: Dialect, head: Any, text: str, at: int, limit: int) -> Reading | None:  # noqa: ARG001 - as all
    """Read a line with a fixed form: named groups become fields, under the types the grammar gives."""
    payload = Payload(dialect.kind, dialect.event, role=dialect.role, length=head.end() - at)
    _named(dialect, head, payload.fields)
    # The lines after the first are gathered by who knows lines.
    return Reading(payload, head.end(), dialect.reader if dialect.reader in ("traceback", "frames") else None)


def _keyvalue(dialect: Dialect, head: Any, text: str, at: int, limit: int) -> Reading | None:
    """Read a fixed head, then ``key=value`` separated by blanks or commas (the dumper's lines)."""
    pairs = _collect(dialect, text, head.end(), limit, _SPACED)
    reading = _build(dialect, Payload("event", dialect.event, role=dialect.role), pairs, text, at, limit)
    fields = reading.payload.fields
    _named(dialect, head, fields)
    if head.groupdict().get("layer") is not None and _is_layer(fields["layer"]):
        reading.payload.layer = fields.pop("layer")
    return reading


_READERS = {
    "tagged": _tagged,
    "pairs": _pairs,
    "call": _call,
    "pattern": _pattern,
    "keyvalue": _keyvalue,
    "traceback": _pattern,
    "frames": _pattern,
}
READERS = tuple(_READERS)


# ------------------------------------------------------------------------------------------- where records may stand

_QUOTES = re.compile(r"\\.|['\"]", re.DOTALL)


class Quotes:
    """Tells whether places of a text stand inside quotes: one opened before, and closes behind it.

    An apostrophe opens a quote only where a value may begin (behind ``=``, a bracket, a comma, a colon, a blank), so
    that ``can't`` opens none. Places are asked for in rising order: every character is looked at once.
    """

    def __init__(self, text: str, start: int = 0) -> None:
        self._text, self.start, self._seen = text, start, start
        self._opened: str | None = None
        self._last: dict[str, int] = {}

    def inside(self, at: int) -> bool:
        """Tell whether a place stands inside a quoted text."""
        text = self._text
        if at > 0 and text[at - 1] in "'\"`":
            return True
        end = self._seen
        for found in _QUOTES.finditer(text, end, max(end, at)):
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
        if at > self._seen:
            # A backslash at the very end belongs to the character behind it.
            self._seen = at - 1 if end < at and text[at - 1] == "\\" else at
        if self._opened is None:
            return False
        if self._opened not in self._last:
            self._last[self._opened] = text.rfind(self._opened)
        return self._last[self._opened] >= at


def inside_quotes(text: str, at: int) -> bool:
    """Tell whether one place of a text stands inside quotes."""
    return Quotes(text).inside(at)


class Anchored:
    """The anchors of one text: which are quoted, and where a record must end. Places are asked for in rising order.

    Every character is looked at once, however many anchors there are: a hostile or broken line may be megabytes long
    and hold thousands of them.
    """

    def __init__(self, grammar: Grammar, text: str) -> None:
        self._grammar, self._text = grammar, text
        self._from_start = Quotes(text)
        self._from = self._from_start
        self._asked, self._next = 0, -1

    def quoted(self, at: int, start: int) -> bool:
        """Tell whether a place stands inside quotes, when only the text from ``start`` on is looked at."""
        if self._from is self._from_start or self._from.start != start:
            self._from = Quotes(self._text, start)
        return self._from.inside(at)

    def limit(self, after: int) -> int:
        """Return where the record ends at the latest: where the next anchored record, with its prefix, begins."""
        if not self._asked <= after <= self._next:
            self._asked, self._next = after, self._next_record(after)
        if self._next == len(self._text):
            return self._next
        begin = max(after, self._next - LONGEST_BEFORE)
        return begin + self._grammar.peel_back(self._text[begin : self._next])[0]

    def _next_record(self, after: int) -> int:
        """Return the next anchor from ``after`` on that begins a record, whatever follows it."""
        found = self._grammar.find(self._text, after)
        while found is not None:
            at, anchor = found
            if anchor in self._grammar.strict and not self._from_start.inside(at):
                return at
            found = self._grammar.find(self._text, at + len(anchor))
        return len(self._text)
