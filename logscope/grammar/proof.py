"""The proof of a user's grammar file: its form, and that its samples are read as they say.

This module is responsible for saying where (file:line:column), why, and what would help: unknown keys, bad patterns,
samples that come out otherwise, events and prefixes that no sample shows. It must not know where grammars are searched
for. It imports pydantic, and is imported only where a file is to be proved.
"""

from __future__ import annotations

import math
import re
import tomllib
from typing import TYPE_CHECKING, Annotated, Any, Literal

import regex
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from logscope.errors import GrammarError, Message, Where, did_you_mean
from logscope.grammar import TIME_LIMIT
from logscope.grammar.files import build, join
from logscope.grammar.literals import as_text
from logscope.grammar.prefixes import layers, peel
from logscope.model import Role  # noqa: TC001 - pydantic reads it at run time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logscope.grammar.files import Grammar, GrammarFile, Sample
    from logscope.grammar.records import Dialect

# Columns of a payload or parts of a prefix; anything else a sample expects is a field.
_COLUMNS = frozenset({"site", "role", "layer", "shape", "rows", "width", "norm", "head", "mode", "intact"})


def _pattern(text: str) -> str:
    try:
        regex.compile(text)
    except regex.error as error:
        why = {"why": str(error), "at": getattr(error, "pos", None) or 0, "source": text}
        raise PydanticCustomError("pattern", "is not a valid pattern", why) from error
    return text


def _anchor(text: str) -> str:
    if len(text) < 4 or "\n" in text or not text.isascii():
        why = "an anchor is a literal ASCII text of at least four characters without a line end"
        raise PydanticCustomError("anchor", "{shown} cannot be an anchor", {"shown": repr(text), "why": why})
    return text


_Pattern = Annotated[str, Field(min_length=1), AfterValidator(_pattern)]
_Text = Annotated[str, Field(min_length=1)]
_Texts = list[str]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Event(_Table):
    """``[[event]]``, with the keys of its family: see docs/reference/grammars.md."""

    name: _Text
    family: str = ""
    anchors: Annotated[list[Annotated[str, AfterValidator(_anchor)]], Field(min_length=1)]
    reader: Literal["tagged", "pairs", "call", "pattern", "keyvalue", "traceback", "frames"]
    pattern: _Pattern
    strict: bool = True
    hot: bool = False
    kind: Literal["event", "mark"] = "event"
    role: Role | None = None
    label: _Pattern | None = None
    lead: _Pattern | None = None
    keys: dict[str, str] = {}
    bare: _Texts = []
    has: _Texts = []
    usual: _Texts = []
    types: dict[str, str] = {}
    lists: _Texts = []
    decimals: dict[str, int] = {}
    layer: int | None = None


class Taught(_Table):
    """``[[prefix]]``: what a collector of one's own puts before a line."""

    name: _Text
    pattern: _Pattern


class Shown(_Table):
    """``[[sample]]``: a text, and what must be read from it."""

    text: _Text
    event: _Text | None = None
    prefix: _Text | None = None
    expect: dict[str, Any] = {}

    @model_validator(mode="after")
    def _shows_something(self) -> Shown:
        if self.event is None and self.prefix is None:
            raise PydanticCustomError("sample", "this sample has no event and no prefix")
        return self


class File(_Table):
    """A grammar file."""

    form: Literal[1] = Field(alias="schema")
    name: _Text
    title: str = ""
    description: str = ""
    family: dict[str, dict[str, Any]] = {}
    event: list[Event] = []
    prefix: list[Taught] = []
    sample: Annotated[list[Shown], Field(min_length=1)]


def parsed(path: str, raw: bytes) -> tuple[str, dict[str, Any]]:
    """Return a grammar file's text and its table. Raises GrammarError."""
    try:
        text = raw.decode()
        return text, tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise GrammarError(f"'{path}' is not UTF-8 text", why=str(error), help="save the file as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        lines = raw.decode().splitlines() or [""]
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line, column = (int(found[1]), int(found[2])) if found else (len(lines), len(lines[-1]) + 1)
        where = Where(path, line, column, lines[line - 1] if line <= len(lines) else "")
        why = re.sub(r" \(at .*\)$", "", str(error))
        advice = "patterns are best written in 'single quotes'"
        raise GrammarError(Message("this grammar is not valid TOML", where, why, None, advice)) from error


def proved(path: str, text: str, table: dict[str, Any]) -> GrammarFile:
    """Return the file a table describes, its form checked and its samples read. Raises GrammarError."""
    try:
        File.model_validate(_with_families(path, text, table))
    except ValidationError as errors:
        # A key that is missing is often there under a wrong name.
        first = min(errors.errors(), key=lambda error: error["type"] == "missing")
        raise _error(path, text, first) from errors
    if not table.get("event") and not table.get("prefix"):
        where = _place(path, text, ())
        raise GrammarError("this grammar has no [[event]]", where=where, help="a grammar describes events or prefixes")
    file = build(path, table)
    _read_samples(file, text)
    return file


def _with_families(path: str, text: str, table: dict[str, Any]) -> dict[str, Any]:
    """Return the table with every event's family in its place."""
    events, families = table.get("event"), table.get("family", {})
    if not isinstance(events, list) or not isinstance(families, dict):
        return table
    merged = []
    for index, event in enumerate(events):
        family = event.get("family") if isinstance(event, dict) else None
        if isinstance(family, str) and family not in families:
            where, advice = _place(path, text, ("event", index, "family")), did_you_mean(family, families)
            raise GrammarError(f"there is no [family.{family}]", where=where, help=advice)
        keys = families.get(family) if isinstance(family, str) else None
        merged.append({**keys, **event} if isinstance(keys, dict) else event)
    return {**table, "event": merged}


def _error(path: str, text: str, error: Any) -> GrammarError:
    """Say one thing that is wrong with a file's form, with its place."""
    at, kind, context = error["loc"], error["type"], error.get("ctx", {})
    where = _place(path, text, at)
    header, key = (at[0], at[2] if len(at) > 2 else at[1]) if len(at) > 1 else ("grammar", at[0])
    tables: dict[str, type[_Table]] = {"event": Event, "prefix": Taught, "sample": Shown}
    known = [field.alias or name for name, field in tables.get(header, File).model_fields.items()]
    why = context.get("why")
    advice: str | None = None
    if kind == "extra_forbidden":
        what = f"this {header} has no key '{key}'"
        advice = did_you_mean(str(key), known) or f"there are: {', '.join(known)}"
    elif at == ("schema",):
        what, advice = (
            f"this grammar is of schema {None if kind == 'missing' else error['input']!r}, logscope reads schema 1",
            "put `schema = 1` first",
        )
    elif at == ("sample",):
        what, why = "this grammar has no [[sample]]", "a grammar that cannot prove itself does not load"
        advice = "add a [[sample]] with text, event and expect for every event"
    elif kind in ("missing", "too_short", "string_too_short"):
        what = f"this {header} has no {key}"
    elif kind == "pattern":
        what, advice = f"'{key}' is not a valid pattern", "patterns are those of Python's regex"
        column = where.text.find(context["source"]) if where.text else -1
        if column >= 0:
            where = Where(path, where.line, column + context["at"] + 1, where.text)
    elif kind in ("anchor", "sample"):
        what = error["msg"]
    else:
        what = f"'{key}': {error['msg']}"
        advice = did_you_mean(str(error["input"]), re.findall(r"'(\w+)'", str(context.get("expected", ""))))
    return GrammarError(Message(what, where, why, None, advice))


def _place(path: str, text: str, at: Sequence[str | int]) -> Where:
    """Return where a part of a file stands: the key (or, of a list's tables, its header) that ``at`` leads to."""
    lines = text.splitlines() or [""]
    start, keys = 0, [part for part in at if isinstance(part, str)]
    stop = len(lines)
    if len(at) > 1 and isinstance(at[1], int):
        heads = [number for number, line in enumerate(lines) if re.match(rf"\s*\[\[{re.escape(keys[0])}\]\]", line)]
        if at[1] < len(heads):
            start = heads[at[1]]
        following = [number for number, line in enumerate(lines) if number > start and re.match(r"\s*\[\[", line)]
        stop = following[0] if following else stop
        keys = keys[1:]
    if keys:
        pattern = re.compile(rf'\s*(?:\[\w+\.)?"?({re.escape(keys[0])})"?\s*[=\]]')
        for number in range(start, stop):
            found = pattern.match(lines[number])
            if found is not None:
                return Where(path, number + 1, found.start(1) + 1, lines[number], len(keys[0]))
    return Where(path, start + 1, 1, lines[start], max(1, len(lines[start])))


# ------------------------------------------------------------------------------------------------------------ samples


def _read_samples(file: GrammarFile, text: str) -> None:
    """Read every sample and compare; demand that every event and prefix is shown by one. Raises GrammarError."""
    grammar = join([file])
    shown = set()
    for sample in file.samples:
        column, why, form = _read(grammar, sample)
        if why is not None:
            where = _place(file.path, text, ("sample", sample.index, "text"))
            start = where.text.find(sample.text[:20]) if where.text else -1
            if start >= 0:
                where = Where(file.path, where.line, start + column + 1, where.text)
            advice = "change the sample or the event; `logscope grammar explain LINE` shows how a line is read"
            what = f"this sample is not read as '{sample.event or sample.prefix}'"
            raise GrammarError(Message(what, where, why, None, advice))
        shown.add(id(form))
    named = [("event", index, one.event, one) for index, one in enumerate(file.dialects)]
    named += [("prefix", index, one.name, one) for index, one in enumerate(file.prefixes)]  # type: ignore[misc]
    for header, index, name, form in named:
        if id(form) not in shown:
            why = "a form that is never shown is never tested, or an earlier one takes its samples"
            advice = "add a [[sample]] that only this form reads"
            where = _place(file.path, text, (header, index))
            raise GrammarError(Message(f"no sample shows this form of '{name}'", where, why, None, advice))


def _read(grammar: Grammar, sample: Sample) -> tuple[int, str | None, Any]:
    """Read one sample; return where and why it is not read as it says, and the form that read it."""
    text = sample.text.encode("utf-8").decode("latin-1")
    if sample.prefix is not None:
        form = next((form for form, _ in layers(text, 0, grammar.prefixes) if form.taught), None)
        end, prefix = peel(text, 0, grammar.prefixes)
        if form is None or form.name != sample.prefix:
            return 0, f"it is read as {form.name!r}" if form else "no prefix of this grammar stands there", form
        if text[end:].strip():
            return end, f"the prefix ends before {as_text(text[end : end + 20])!r}", form
        said = {name: getattr(prefix, name) for name in type(prefix).__slots__} | dict(prefix.extra)
        return 0, _difference(said, sample.expect), form
    found = grammar.find(text)
    if found is None:
        return 0, "no anchor of this grammar stands in it", None
    reading = grammar.read(text, *found, len(text))
    if sample.event == "unparsed":
        wrong = reading is not None and reading.payload.kind == "event"
        return 0, f"it is read as '{reading.payload.event}'" if reading and wrong else None, None
    if reading is None or reading.payload.kind == "unparsed":
        return *_furthest(grammar.anchors[found[1]], text, found[0]), None
    payload = reading.payload
    if payload.event != sample.event:
        return 0, f"it is read as '{payload.event}', not as '{sample.event}'", None
    # `rows` of a size error is a field, not the column of a tensor's shape.
    said = {name: getattr(payload, name) for name in _COLUMNS} | payload.fields
    return 0, _difference(said, sample.expect), reading.dialect


def _difference(said: dict[str, Any], expect: dict[str, Any]) -> str | None:
    """Compare what was read with expected values (``"null"`` stands for none); return what differs, in words."""
    for key, wanted in expect.items():
        got = said.get(key)
        got = list(got) if isinstance(got, tuple) else got
        if not _same(got, wanted):
            return f"{key} is {got!r}, not {wanted!r}"
    return None


def _same(got: Any, wanted: Any) -> bool:
    if wanted == "null":
        return got is None
    if isinstance(got, list) and isinstance(wanted, list):
        return len(got) == len(wanted) and all(map(_same, got, wanted))
    if isinstance(got, float) and isinstance(wanted, (int, float)) and math.isnan(got):
        return math.isnan(wanted)
    return bool(got == wanted)


def _furthest(dialects: Sequence[Dialect], text: str, at: int) -> tuple[int, str]:
    """Return how far the best of the patterns matches, as a column, and what it says about it."""
    best, name = at, ""
    for dialect in dialects:
        low, high = best, len(text)
        try:
            while low < high:
                # What matches as a beginning does so when it is cut shorter: halving finds the end.
                middle = (low + high + 1) // 2
                if dialect.pattern.fullmatch(text, at, middle, partial=True, timeout=TIME_LIMIT):
                    low = middle
                else:
                    high = middle - 1
        except TimeoutError:
            return at, f"the pattern of '{dialect.event}' takes longer than {TIME_LIMIT:g} s on this text"
        if low > best:
            best, name = low, dialect.event
    rest = as_text(text[best : best + 20])
    what = f"the pattern of '{name}' matches up to here" if name else "no pattern matches its beginning"
    return best, f"{what}; then comes {rest!r}" if rest else what
