"""Grammars: TOML files that say which records there are, how each is written, and prove it with samples.

This module is responsible for finding, loading, compiling and checking grammars, and for joining several into one
:class:`Grammar`. It must not know files of logs, lines or runs; how a record's text is read stands in exact.py.

A grammar is data. A file that does not load says where (file:line:column), why, and what would help: unknown keys,
bad patterns, samples that are not read as they say, events that no sample shows. The checks run on every load, for
the shipped grammars too.

To add an event: one ``[[event]]`` with its anchor and form, and one ``[[sample]]`` that shows it.
``docs/reference/grammars.md`` explains every key.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import regex

from logscope.errors import GrammarError, InputError, Message, Where, did_you_mean
from logscope.exact import READERS, TIME_LIMIT, Dialect, Reading, read_record
from logscope.values import as_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logscope.model import Payload

SCHEMA = 1
SHIPPED = ("eagle3-debug", "sglang-server", "vllm", "llamacpp", "tensorrt-llm", "crashes", "sglang-dumper")

_TOP = frozenset({"schema", "name", "title", "description", "family", "event", "sample"})
_EVENT: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "family": str,
    "anchors": list,
    "reader": str,
    "strict": bool,
    "hot": bool,
    "kind": str,
    "role": str,
    "label": str,
    "pattern": str,
    "lead": str,
    "keys": dict,
    "bare": list,
    "has": list,
    "usual": list,
    "types": dict,
    "lists": list,
    "decimals": dict,
    "layer": int,
}
# What stands inside: every list is one of texts, every table gives texts for texts but this one.
_NUMBERS = "decimals"
_SAMPLE: dict[str, type | tuple[type, ...]] = {"text": str, "event": str, "expect": dict}
_COLUMNS = ("site", "role", "layer", "rows", "width", "norm", "mode", "intact")


@dataclass(slots=True)
class Sample:
    """A record's text and what must be read from it. ``event = "unparsed"``: no event may match.

    ``index`` is its place among the file's samples.
    """

    text: str
    event: str
    expect: dict[str, Any]
    index: int


@dataclass(slots=True)
class GrammarFile:
    """One loaded file: its dialects in order (the first that matches wins) and its samples."""

    name: str
    title: str
    description: str
    path: str
    dialects: list[Dialect] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)


@dataclass(slots=True)
class Grammar:
    """Several grammar files as one: which literal texts begin a record, and how each can be read.

    anchors
        the dialects by anchor text, longest anchors first where one begins like another.
    keys
        what is searched for: of every anchor the part from its rarest character on, with the anchors it may belong
        to and how far before it they begin. Searching for ``ze mismatch for`` is several times faster than for
        ``size mismatch for``, since fewer places of a log have to be looked at twice.
    undigited_finder
        the same over bytes without their digits, keys without theirs: what it does not find holds no anchor.
    digited_finder
        the same for the keys that have digits: where it finds something, other digits can make an anchor.
    steady
        the anchors none of whose patterns names a digit: texts that differ in digits only are read alike.
    hot
        the anchor most records of a large log have; the scanner has a fast way for it.
    """

    files: list[GrammarFile]
    anchors: dict[str, tuple[Dialect, ...]]
    strict: frozenset[str]
    keys: dict[str, tuple[tuple[str, int], ...]]
    text_finder: re.Pattern[str]
    byte_finder: re.Pattern[bytes]
    undigited_finder: re.Pattern[bytes]
    digited_finder: re.Pattern[bytes]
    steady: frozenset[str]
    hot: str | None

    @property
    def events(self) -> list[str]:
        """The names of all events, in order, each once."""
        return list(dict.fromkeys(dialect.event for file in self.files for dialect in file.dialects))

    def find(self, text: str, start: int = 0, end: int | None = None) -> tuple[int, str] | None:
        """Return where the next anchor stands in one-character-per-byte text, and which; None when there is none."""
        limit = len(text) if end is None else end
        search = start
        while True:
            found = self.text_finder.search(text, search, limit)
            if found is None:
                return None
            for anchor, before in self.keys[found[0]]:
                at = found.start() - before
                if at >= start and at + len(anchor) <= limit and text.startswith(anchor, at):
                    return at, anchor
            search = found.start() + 1

    def read(self, text: str, at: int, anchor: str, limit: int, reach: int | None = None) -> Reading | None:
        """Read the record whose anchor stands at ``at`` in one-character-per-byte text.

        It ends at ``limit`` at the latest, or at ``reach`` (the limit when not given) where it quotes what follows.
        """
        return read_record(self.anchors[anchor], text, at, limit, limit if reach is None else reach)

    def begin_file(self) -> None:
        """Try every pattern again, those too that took too long in another file."""
        for file in self.files:
            for dialect in file.dialects:
                dialect.overtimes = 0


def grammar_folders() -> list[Path]:
    """Return where shipped grammars may stand: inside the package (wheel) or beside it (checkout, editable)."""
    package = Path(__file__).resolve().parent
    return [package / "grammars", package.parent / "grammars"]


def user_folder() -> Path:
    """Return the folder whose ``*.toml`` files are loaded besides the shipped grammars (XDG)."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "logscope" / "grammars"


def find_shipped(name: str) -> Path:
    """Return the path of a shipped grammar.

    Raises
    ------
    GrammarError
        the installation is incomplete.

    """
    for folder in grammar_folders():
        path = folder / f"{name}.toml"
        if path.is_file():
            return path
    raise GrammarError(
        f"the shipped grammar '{name}' is not there",
        why="looked in " + " and ".join(map(str, grammar_folders())),
        help="this installation of logscope is incomplete: install it again",
    )


def available() -> list[Path]:
    """Return the files of every grammar loaded by default: shipped ones, then the user's, by name."""
    folder = user_folder()
    try:
        own = sorted(folder.glob("*.toml")) if folder.is_dir() else []
    except PermissionError:
        # A home that may not be entered (sudo -u, a service's account) holds no grammars for whoever runs this.
        own = []
    return [*(find_shipped(name) for name in SHIPPED), *own]


def load(extra: Iterable[str | Path] = ()) -> Grammar:
    """Load the shipped grammars, the user's, and the given files; a user's event comes before a shipped one.

    Raises
    ------
    GrammarError
        a file does not load; the message has the place and what would help.
    InputError
        a given file is not there.

    """
    return _join(tuple(str(path) for path in available()), tuple(str(path) for path in extra))


@lru_cache(maxsize=8)
def _join(standard: tuple[str, ...], extra: tuple[str, ...]) -> Grammar:
    own = (*extra, *reversed(standard[len(SHIPPED) :]))
    # The shipped ones prove themselves in the tests of the version they are shipped with, not at every start.
    shipped = [load_file(path, prove=False) for path in standard[: len(SHIPPED)]]
    return join([*map(load_file, own), *shipped])


def join(files: Sequence[GrammarFile]) -> Grammar:
    """Join loaded files into one grammar; earlier files are asked first."""
    anchors: dict[str, list[Dialect]] = {}
    for file in files:
        for dialect in file.dialects:
            for anchor in dialect.anchors:
                anchors.setdefault(anchor, []).append(dialect)
    # Alternatives are tried in order: of two anchors that begin alike the longer must come first, and the shorter
    # one's dialects are a fallback for it.
    ordered = sorted(anchors, key=lambda anchor: (-len(anchor), anchor))
    table: dict[str, tuple[Dialect, ...]] = {}
    for anchor in ordered:
        dialects = list(anchors[anchor])
        for shorter in ordered:
            if shorter != anchor and anchor.startswith(shorter):
                dialects.extend(anchors[shorter])
        table[anchor] = tuple(dialects)
    keys = _keys(ordered)
    union = _any_of(keys)
    hot = next((d.anchors[0] for file in files for d in file.dialects if d.hot), None)
    return Grammar(
        files=list(files),
        anchors=table,
        strict=frozenset(anchor for anchor in ordered if any(d.strict for d in anchors[anchor])),
        keys=keys,
        text_finder=re.compile(union),
        byte_finder=re.compile(union.encode("latin-1")),
        undigited_finder=_undigited(keys),
        digited_finder=_undigited(key for key in keys if re.search(r"[0-9]", key)),
        steady=frozenset(anchor for anchor, dialects in table.items() if all(map(_is_steady, dialects))),
        hot=hot,
    )


def _is_steady(dialect: Dialect) -> bool:
    """Tell whether no pattern of a dialect names a digit; counts (``{3}``) and classes (``0-9``) name none."""
    patterns = (found.pattern for found in (dialect.pattern, dialect.label, dialect.lead) if found is not None)
    return not any(re.search(r"[0-9]", re.sub(r"\{\d+(?:,\d*)?\}|0-9", "", pattern)) for pattern in patterns)


def _undigited(keys: Iterable[str]) -> re.Pattern[bytes]:
    return re.compile(_any_of({re.sub(r"[0-9]", "", key) for key in keys}).encode("latin-1"))


def _any_of(keys: Iterable[str]) -> str:
    """Return the pattern of any of these texts, the longest first; of none it is one that nothing matches.

    Texts are told apart by their first character first: a place of a log is then compared with a few, not with all.
    """
    groups: dict[str, list[str]] = {}
    for key in sorted(keys, key=lambda key: (-len(key), key)):
        groups.setdefault(key[:1], []).append(re.escape(key[1:]))
    return "|".join(f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in sorted(groups.items())) or r"(?!)"


def _rarity(char: str) -> int:
    """Return how often a character stands in server logs, as a rank: small letters and digits are everywhere."""
    if char in "qzxj!<" or (char.isupper() and char not in "TPIEN"):
        return 1
    if char.isupper() or char == "#":
        return 2
    return {"v": 3, "k": 3, "w": 3, "y": 4, "(": 4, "[": 5, "_": 6, "=": 6}.get(char, 9 if char.isdigit() else 7)


def _keys(anchors: Sequence[str]) -> dict[str, tuple[tuple[str, int], ...]]:
    """Return what to search for, and for each which anchors may stand around it, the longest first."""
    before = {anchor: min(range(len(anchor) - 2), key=lambda at: (_rarity(anchor[at]), at)) for anchor in anchors}
    keys = {anchor[at:] for anchor, at in before.items()}
    return {key: tuple((anchor, at) for anchor, at in before.items() if key.startswith(anchor[at:])) for key in keys}


def load_file(path: str | Path, *, prove: bool = True) -> GrammarFile:
    """Load and check one grammar file; ``prove``: with its samples.

    Raises
    ------
    InputError
        it cannot be read.
    GrammarError
        it is not a grammar, or one of its samples is not read as it says.

    """
    name = str(path)
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read the grammar '{name}'", why=error.strerror, help="see `logscope grammar list`"
        ) from error
    try:
        text = raw.decode("utf-8")
        table = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise GrammarError(f"'{name}' is not UTF-8 text", why=str(error), help="save the file as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise GrammarError(_toml_message(name, raw.decode("utf-8"), error)) from error
    return _Builder(name, text, table).build(prove=prove)


def _toml_message(name: str, text: str, error: tomllib.TOMLDecodeError) -> Message:
    found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
    lines = text.splitlines()
    if found is not None:
        line, column = int(found[1]), int(found[2])
        shown = lines[line - 1] if line <= len(lines) else ""
        where = Where(name, line, column, shown)
    else:
        where = Where(name, len(lines), len(lines[-1]) + 1 if lines else 1, lines[-1] if lines else "")
    why = re.sub(r" \(at .*\)$", "", str(error))
    return Message("this grammar is not valid TOML", where, why, help="patterns are best written in 'single quotes'")


class _Builder:
    """Turns one TOML table into a GrammarFile, with the place of whatever is wrong."""

    def __init__(self, name: str, text: str, table: dict[str, Any]) -> None:
        self.name = name
        self.lines = text.splitlines()
        self.table = table

    def where(self, header: str | None = None, index: int = 0, key: str | None = None) -> Where:
        """Return the line of the ``index``-th ``[[header]]`` (or ``[header]``), or of ``key`` below it."""
        start = 0
        if header is not None:
            seen = -1
            for number, line in enumerate(self.lines):
                if re.match(rf"\s*\[\[?{re.escape(header)}\]\]?", line):
                    seen += 1
                    start = number
                    if seen == index:
                        break
        if key is not None:
            for number in range(start, len(self.lines)):
                found = re.match(rf'\s*"?({re.escape(key)})"?\s*=', self.lines[number])
                if found is not None:
                    return Where(self.name, number + 1, found.start(1) + 1, self.lines[number], len(key))
                if header is not None and number > start and re.match(r"\s*\[\[", self.lines[number]):
                    break
        shown = self.lines[start] if self.lines else ""
        return Where(self.name, start + 1, 1, shown, max(1, len(shown)))

    def fail(self, what: str, where: Where, *, why: str | None = None, advice: str | None = None) -> GrammarError:
        return GrammarError(Message(what, where, why, None, advice))

    def build(self, *, prove: bool = True) -> GrammarFile:
        for key in self.table:
            if key not in _TOP:
                advice = did_you_mean(key, _TOP) or "a grammar has: " + ", ".join(sorted(_TOP))
                raise self.fail(f"a grammar has no '{key}'", self.where(key=key), advice=advice)
        schema = self.table.get("schema")
        if schema != SCHEMA:
            raise self.fail(
                f"this grammar is of schema {schema!r}, logscope reads schema {SCHEMA}",
                self.where(key="schema"),
                advice=f"put `schema = {SCHEMA}` first",
            )
        name = self.table.get("name")
        if not isinstance(name, str) or not name:
            raise self.fail("this grammar has no name", self.where(key="name"), advice='add `name = "my-grammar"`')
        file = GrammarFile(name, str(self.table.get("title", name)), str(self.table.get("description", "")), self.name)
        events = self.table.get("event", [])
        if not isinstance(events, list) or not events:
            raise self.fail("this grammar has no [[event]]", self.where(), advice="a grammar describes events")
        for index, event in enumerate(events):
            file.dialects.append(self.dialect(index, event))
        samples = self.table.get("sample", [])
        if not isinstance(samples, list) or not samples:
            raise self.fail(
                "this grammar has no [[sample]]",
                self.where(),
                why="a grammar that cannot prove itself does not load",
                advice="add a [[sample]] with text, event and expect for every event",
            )
        for index, sample in enumerate(samples):
            file.samples.append(self.sample(index, sample))
        if prove:
            self.check(file)
        return file

    def typed(self, header: str, index: int, table: Any, known: dict[str, type | tuple[type, ...]]) -> None:
        if not isinstance(table, dict):
            raise self.fail(f"'{header}' is a {type(table).__name__}, not a table", self.where(header, index))
        for key, value in table.items():
            if key not in known:
                advice = did_you_mean(key, known) or f"{header} has: " + ", ".join(known)
                raise self.fail(f"{header} has no key '{key}'", self.where(header, index, key), advice=advice)
            if not isinstance(value, known[key]) or (known[key] is int and isinstance(value, bool)):
                wanted = known[key]
                kind = wanted.__name__ if isinstance(wanted, type) else "/".join(one.__name__ for one in wanted)
                raise self.fail(f"'{key}' is a {type(value).__name__}, not a {kind}", self.where(header, index, key))
            if key != "expect":
                self.inner(header, index, key, value)

    def inner(self, header: str, index: int, key: str, value: Any) -> None:
        """Demand that a list holds texts, and a table texts (or the numbers of decimals)."""
        held = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
        kind: type = int if key == _NUMBERS else str
        wrong = next((one for one in held if not isinstance(one, kind) or isinstance(one, bool)), None)
        if wrong is not None:
            raise self.fail(
                f"'{key}' holds a {type(wrong).__name__}, not only {'numbers' if kind is int else 'texts'}",
                self.where(header, index, key),
            )

    def dialect(self, index: int, event: dict[str, Any]) -> Dialect:
        self.typed("event", index, event, _EVENT)
        families = self.table.get("family", {})
        if not isinstance(families, dict):
            raise self.fail("'family' is no table", self.where(key="family"), advice="a family is [family.NAME]")
        merged: dict[str, Any] = {}
        if "family" in event:
            if event["family"] not in families:
                raise self.fail(
                    f"there is no [family.{event['family']}]",
                    self.where("event", index, "family"),
                    advice=did_you_mean(event["family"], families),
                )
            self.typed("event", index, families[event["family"]], _EVENT)
            merged.update(families[event["family"]])
        merged.update(event)
        merged.pop("family", None)
        for key in ("name", "anchors", "reader"):
            if not merged.get(key):
                raise self.fail(f"this event has no '{key}'", self.where("event", index))
        if merged["reader"] not in READERS:
            raise self.fail(
                f"there is no reader '{merged['reader']}'",
                self.where("event", index, "reader"),
                advice=did_you_mean(merged["reader"], READERS) or "readers: " + ", ".join(READERS),
            )
        for anchor in merged["anchors"]:
            if not isinstance(anchor, str) or len(anchor) < 4 or "\n" in anchor or not anchor.isascii():
                raise self.fail(
                    f"{anchor!r} cannot be an anchor",
                    self.where("event", index, "anchors"),
                    why="an anchor is a literal ASCII text of at least four characters without a line end",
                )
        if "pattern" not in merged:
            raise self.fail("this event has no 'pattern'", self.where("event", index))
        if merged.get("kind", "event") not in ("event", "mark"):
            raise self.fail("'kind' is event or mark", self.where("event", index, "kind"))
        if merged.get("role") not in (None, "target", "draft"):
            raise self.fail("'role' is target or draft", self.where("event", index, "role"))
        return Dialect(
            event=merged["name"],
            reader=merged["reader"],
            anchors=tuple(merged["anchors"]),
            source=f"{self.name}, event {index + 1} ({merged['name']})",
            strict=merged.get("strict", True),
            kind=merged.get("kind", "event"),
            role=merged.get("role"),
            label=self.pattern(index, "label", merged.get("label")),
            pattern=self.pattern(index, "pattern", merged["pattern"]),
            lead=self.pattern(index, "lead", f"(?:{merged['lead']})$" if "lead" in merged else None),
            keys=dict(merged.get("keys", {})),
            bare=tuple(merged.get("bare", ())),
            has=tuple(merged.get("has", ())),
            usual=tuple(merged.get("usual", ())),
            types=dict(merged.get("types", {})),
            lists=tuple(merged.get("lists", ())),
            decimals=dict(merged.get("decimals", {})),
            layer=merged.get("layer"),
            hot=merged.get("hot", False),
        )

    def pattern(self, index: int, key: str, source: str | None) -> Any:
        if source is None:
            return None
        try:
            return regex.compile(source)
        except regex.error as error:
            place = self.where("event", index, key)
            shown = place.text or ""
            column = shown.find(source)
            at = getattr(error, "pos", None)
            if column >= 0 and at is not None:
                place = Where(self.name, place.line, column + at + 1, shown)
            raise self.fail(
                f"'{key}' is not a valid pattern", place, why=str(error), advice="patterns are those of Python's regex"
            ) from error

    def sample(self, index: int, sample: dict[str, Any]) -> Sample:
        self.typed("sample", index, sample, _SAMPLE)
        for key in ("text", "event"):
            if not sample.get(key):
                raise self.fail(f"this sample has no '{key}'", self.where("sample", index))
        return Sample(sample["text"], sample["event"], dict(sample.get("expect", {})), index)

    def check(self, file: GrammarFile) -> None:
        """Read every sample and compare; demand that every event is shown by one."""
        grammar = join([file])
        shown = {self._check_sample(grammar, sample) for sample in file.samples}
        for index, dialect in enumerate(file.dialects):
            if id(dialect) not in shown:
                raise self.fail(
                    f"no sample shows this form of '{dialect.event}'",
                    self.where("event", index),
                    why="an event that is never shown is never tested, or an earlier event takes its samples",
                    advice="add a [[sample]] that only this form reads",
                )

    def _check_sample(self, grammar: Grammar, sample: Sample) -> int | None:
        """Read one sample; return the identity of the form that read it."""
        text = sample.text.encode("utf-8").decode("latin-1")
        found = grammar.find(text)
        if found is None:
            raise self._sample_error(sample, 0, "no anchor of this grammar stands in it")
        at, anchor = found
        reading = grammar.read(text, at, anchor, len(text))
        if sample.event == "unparsed":
            if reading is not None and reading.payload.kind == "event":
                raise self._sample_error(sample, 0, f"it is read as '{reading.payload.event}'")
            return None
        if reading is None or reading.payload.kind == "unparsed":
            column, why = furthest(grammar.anchors[anchor], text, at)
            raise self._sample_error(sample, column, why)
        payload = reading.payload
        if payload.event != sample.event:
            raise self._sample_error(sample, 0, f"it is read as '{payload.event}', not as '{sample.event}'")
        wrong = differences(payload, sample.expect)
        if wrong:
            raise self._sample_error(sample, 0, wrong)
        return id(reading.dialect)

    def _sample_error(self, sample: Sample, column: int, why: str) -> GrammarError:
        place = self.where("sample", sample.index, "text")
        shown = place.text or ""
        start = shown.find(sample.text[:20])
        if start >= 0:
            place = Where(self.name, place.line, start + column + 1, shown)
        return self.fail(
            f"this sample is not read as '{sample.event}'",
            place,
            why=why,
            advice="change the sample or the event; `logscope grammar explain LINE` shows how a line is read",
        )


def furthest(dialects: Sequence[Dialect], text: str, at: int) -> tuple[int, str]:
    """Return how far the best of the patterns matches, as a column, and what it says about it."""
    best, name = at, ""
    for dialect in dialects:
        try:
            end = _reach(dialect.pattern, text, at)
        except TimeoutError:
            return at, f"the pattern of '{dialect.event}' takes longer than {TIME_LIMIT:g} s on this text"
        if end > best:
            best, name = end, dialect.event
    rest = as_text(text[best : best + 20])
    what = f"the pattern of '{name}' matches up to here" if name else "no pattern matches its beginning"
    return best, f"{what}; then comes {rest!r}" if rest else what


def _reach(pattern: Any, text: str, at: int) -> int:
    """Return where the longest part of a text ends that the pattern matches as a beginning. Raises TimeoutError."""
    low, high = at, len(text)
    while low < high:
        # What matches as a beginning does so when it is cut shorter: halving finds the end.
        middle = (low + high + 1) // 2
        if pattern.fullmatch(text, at, middle, partial=True, timeout=TIME_LIMIT):
            low = middle
        else:
            high = middle - 1
    return low


def differences(payload: Payload, expect: dict[str, Any]) -> str | None:
    """Compare a payload with expected values (``"null"`` stands for none); return what differs, in words."""
    for key, wanted in expect.items():
        if key in _COLUMNS:
            # `rows` of a size error is a field, not the column of a tensor's shape.
            got: Any = payload.fields.get(key, getattr(payload, key))
        elif key == "shape":
            got = list(payload.shape) if payload.shape is not None else None
        elif key == "head":
            got = list(payload.head) if payload.head is not None else None
        else:
            got = payload.fields.get(key)
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
