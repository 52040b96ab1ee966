"""Grammar files: TOML that says which records and prefixes there are, how each is written, and proves it with samples.

This module is responsible for finding and loading grammar files and for joining several into one :class:`Grammar`. It
must not know files of logs, lines or runs; how a record's text is read stands in records.py.

To add an event: one ``[[event]]`` with its anchor and form, and one ``[[sample]]`` that shows it; a wrapper: one
``[[prefix]]`` and its sample. ``docs/reference/grammars.md`` explains every key. The shipped files prove themselves in
the tests of the version they are shipped with; a user's file does on every load (proof.py).
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import regex

from logscope.errors import GrammarError, InputError, did_you_mean
from logscope.grammar.prefixes import Form, peel, peel_back
from logscope.grammar.records import Dialect, Reading, read_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logscope.model import Prefix

SHIPPED = ("eagle3-debug", "sglang-server", "vllm", "llamacpp", "tensorrt-llm", "crashes", "sglang-dumper")


@dataclass(slots=True)
class Sample:
    """A record's text and what must be read from it. ``event = "unparsed"``: no event may match.

    A sample of a wrapper names its ``prefix`` instead of an event. ``index`` is its place among the file's samples.
    """

    index: int
    text: str
    event: str | None = None
    prefix: str | None = None
    expect: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class GrammarFile:
    """One loaded file: its dialects and prefixes in order (the first that matches wins), and its samples."""

    name: str
    title: str
    description: str
    path: str
    dialects: list[Dialect]
    prefixes: list[Form]
    samples: list[Sample]


@dataclass(slots=True)
class Grammar:
    """Several grammar files as one: which literal texts begin a record, and how each can be read.

    The package's docstring says what its parts are for.
    """

    files: list[GrammarFile]
    anchors: dict[str, tuple[Dialect, ...]]
    strict: frozenset[str]
    text_finder: re.Pattern[str]
    undigited_finder: re.Pattern[bytes]
    digited_finder: re.Pattern[bytes]
    steady: frozenset[str]
    hot: str | None
    prefixes: tuple[Form, ...]

    @property
    def events(self) -> list[str]:
        """The names of all events, in order, each once."""
        return list(dict.fromkeys(dialect.event for file in self.files for dialect in file.dialects))

    def find(self, text: str, start: int = 0, end: int | None = None) -> tuple[int, str] | None:
        """Return where the next anchor stands in one-character-per-byte text, and which; None when there is none."""
        found = self.text_finder.search(text, start, len(text) if end is None else end)
        return None if found is None else (found.start(), found[0])

    def read(self, text: str, at: int, anchor: str, limit: int, reach: int | None = None) -> Reading | None:
        """Read the record whose anchor stands at ``at`` in one-character-per-byte text.

        It ends at ``limit`` at the latest, or at ``reach`` (the limit when not given) where it quotes what follows.
        """
        return read_record(self.anchors[anchor], text, at, limit, limit if reach is None else reach)

    def peel(self, text: str, at: int = 0) -> tuple[int, Prefix]:
        """Peel every known and taught prefix from ``at`` on: see :func:`logscope.grammar.prefixes.peel`."""
        return peel(text, at, self.prefixes)

    def peel_back(self, text: str) -> tuple[int, Prefix]:
        """Find the prefix that ends where ``text`` ends: see :func:`logscope.grammar.prefixes.peel_back`."""
        return peel_back(text, self.prefixes)

    def begin_file(self) -> None:
        """Try every pattern again, those too that took too long in another file."""
        for file in self.files:
            for dialect in file.dialects:
                dialect.overtimes = 0
        for form in self.prefixes:
            form.overtimes = 0


def user_folder() -> Path:
    """Return the folder whose ``*.toml`` files are loaded besides the shipped grammars (XDG)."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "logscope" / "grammars"


def find_shipped(name: str) -> Path:
    """Return the path of a shipped grammar: inside the package (wheel) or beside it (checkout, editable).

    Raises
    ------
    GrammarError
        the installation is incomplete.

    """
    package = Path(__file__).resolve().parents[1]
    folders = (package / "grammars", package.parent / "grammars")
    found = next((folder / f"{name}.toml" for folder in folders if (folder / f"{name}.toml").is_file()), None)
    if found is None:
        why, advice = f"looked in {folders[0]} and {folders[1]}", "this installation is incomplete: install it again"
        raise GrammarError(f"the shipped grammar '{name}' is not there", why=why, help=advice)
    return found


def available() -> list[Path]:
    """Return the files of every grammar loaded by default: shipped ones, then the user's, by name."""
    folder = user_folder()
    try:
        own = sorted(folder.glob("*.toml")) if folder.is_dir() else []
    except PermissionError:
        # A home that may not be entered (sudo -u, a service's account) holds no grammars for whoever runs this.
        own = []
    return [*(find_shipped(name) for name in SHIPPED), *own]


def load(extra: Iterable[str | os.PathLike[str]] = ()) -> Grammar:
    """Load the shipped grammars, the user's, and the given files; a user's event comes before a shipped one.

    The name of one that is loaded anyway may be given, too.

    Raises
    ------
    GrammarError
        a file does not load; the message has the place and what would help.
    InputError
        a given file is not there.

    """
    standard = available()
    named = {path.stem for path in standard}
    own = tuple(path for path in map(str, extra) if path not in named or Path(path).is_file())
    return _load(tuple(map(str, standard)), own)


@lru_cache(maxsize=8)
def _load(standard: tuple[str, ...], extra: tuple[str, ...]) -> Grammar:
    own = (*extra, *reversed(standard[len(SHIPPED) :]))
    shipped = [load_file(path, prove=False) for path in standard[: len(SHIPPED)]]
    return join([*map(load_file, own), *shipped])


def load_file(path: str | Path, *, prove: bool = True) -> GrammarFile:
    """Load one grammar file; ``prove``: check its form, and read its samples.

    Raises
    ------
    InputError
        it cannot be read.
    GrammarError
        it is not a grammar, or one of its samples is not read as it says.

    """
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        near = did_you_mean(str(path), [one.stem for one in available()])
        advice = near or "a file of your own; 'logscope grammar list' shows those that are always read"
        raise InputError(f"cannot read the grammar '{path}'", why=error.strerror, help=advice) from error
    if not prove:
        return build(str(path), tomllib.loads(raw.decode()))
    # pydantic, which checks the form, costs more to import than a small log costs to read.
    from logscope.grammar.proof import parsed, proved  # noqa: PLC0415

    return proved(str(path), *parsed(str(path), raw))


def build(path: str, table: dict[str, Any]) -> GrammarFile:
    """Return the file a table of the right form describes."""
    families = table.get("family", {})
    dialects = []
    for number, event in enumerate(table.get("event", []), 1):
        keys = {**families.get(event.get("family"), {}), **event}
        keys.pop("family", None)
        keys |= {key: tuple(value) for key, value in keys.items() if isinstance(value, list)}
        keys |= {key: regex.compile(keys[key]) for key in ("label", "pattern") if key in keys}
        if "lead" in keys:
            keys["lead"] = regex.compile(f"(?:{keys['lead']})$")
        name = keys.pop("name")
        dialects.append(Dialect(name, source=f"{path}, event {number} ({name})", **keys))
    prefixes = [Form(one["name"], regex.compile(one["pattern"]), taught=True) for one in table.get("prefix", [])]
    samples = [Sample(index, **sample) for index, sample in enumerate(table.get("sample", []))]
    name = table["name"]
    title, description = table.get("title", name), table.get("description", "")
    return GrammarFile(name, title, description, path, dialects, prefixes, samples)


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
    ways = {anchor: [one for one in ordered if anchor.startswith(one)] for anchor in ordered}
    table = {anchor: tuple(way for one in ones for way in anchors[one]) for anchor, ones in ways.items()}
    return Grammar(
        files=list(files),
        anchors=table,
        strict=frozenset(anchor for anchor in ordered if any(d.strict for d in anchors[anchor])),
        text_finder=re.compile(_any_of(ordered)),
        undigited_finder=_undigited(ordered),
        digited_finder=_undigited(one for one in ordered if re.search(r"[0-9]", one)),
        steady=frozenset(anchor for anchor, dialects in table.items() if all(map(_is_steady, dialects))),
        hot=next((d.anchors[0] for file in files for d in file.dialects if d.hot), None),
        prefixes=tuple(form for file in files for form in file.prefixes),
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
