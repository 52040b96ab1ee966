"""Field cases through the command line: a row names an input, a command, and what its JSON must say.

Responsible for running a command on files and for the words in which right values are stated. It must not know any case.
A right value is looked for where the fixed forms have a place for it (``table``, ``value``), and in the texts of the
report (headline, findings, notes, cells) where they have none (``says``).
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from logscope import cli

Holds = Callable[["Answer"], None]


@dataclass(frozen=True)
class Answer:
    """What a command said: its exit code, its JSON (a report, or a list of events), and stderr."""

    code: int
    said: Any
    err: str

    def text(self) -> str:
        """Return all of the report but the names of files, as JSON text."""
        return json.dumps(_without_files(self.said), ensure_ascii=False)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a table; none when the report has no such table."""
        assert isinstance(self.said, dict), self.err
        rows: list[dict[str, Any]] = self.said["tables"].get(name, [])
        return rows


@dataclass(frozen=True)
class Row:
    """One right value: files (``{0}``, ``{1}`` of the command), the command, what holds, where that is from."""

    files: str
    command: str
    holds: Holds
    source: str


def _without_files(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_files(inner) for key, inner in value.items() if key not in ("file", "command")}
    if isinstance(value, list):
        return [_without_files(inner) for inner in value]
    return value


def ask(command: str, files: list[str], capsys: Any) -> Answer:
    """Run a command in this process. ``{0}`` is the first file; a command without a format prints JSON."""
    words = [word.format(*files) for word in shlex.split(command)]
    if not any("{" in word for word in shlex.split(command)):
        words += files
    if "-f" not in words:
        words += ["-f", "ndjson" if words[0] == "events" else "json"]
    code = cli.main(words)
    out, err = capsys.readouterr()
    if not out.strip():
        return Answer(code, {"headline": err, "findings": [], "tables": {}, "facts": {}}, err)
    said = [json.loads(line) for line in out.splitlines()] if "ndjson" in words else json.loads(out)
    for file in files:
        err = err.replace(file, "LOG")
    return Answer(code, said, err)


def same(got: Any, wanted: Any, within: float) -> bool:
    """Tell whether a value is the wanted one; numbers within a distance, texts by a pattern when one is given."""
    if isinstance(wanted, re.Pattern):
        return isinstance(got, str) and wanted.search(got) is not None
    if isinstance(wanted, list):
        return isinstance(got, list) and len(got) == len(wanted) and all(map(same, got, wanted, [within] * len(got)))
    if isinstance(wanted, (int, float)) and not isinstance(wanted, bool):
        return isinstance(got, (int, float)) and not isinstance(got, bool) and math.fabs(got - wanted) <= within
    return bool(got == wanted)


def table(name: str, within: float = 0.0, /, **columns: list[Any]) -> Holds:
    """Hold when a table's columns are these, row by row, in any order of the rows."""

    def holds(answer: Answer) -> None:
        assert "accounting" in answer.said, answer.err
        rows = [[row.get(column) for column in columns] for row in answer.rows(name)]
        left = list(rows)
        for wanted in zip(*columns.values(), strict=True):
            found = next((row for row in left if same(row, list(wanted), within)), None)
            assert found is not None, f"{name} has no row {list(wanted)}: {rows}"
            left.remove(found)
        assert not left, f"{name} has more rows: {left}"

    return holds


def value(path: str, wanted: Any, within: float = 0.0) -> Holds:
    """Hold when a path of keys and positions leads to this value."""

    def holds(answer: Answer) -> None:
        got = answer.said
        for part in path.split("."):
            try:
                got = got[int(part)] if isinstance(got, list) else got[part]
            except (IndexError, KeyError, TypeError):
                got = None
                break
        assert same(got, wanted, within), f"{path} is {got!r}"

    return holds


def says(*patterns: str) -> Holds:
    """Hold when every pattern is found in the report's text, whatever its case."""

    def holds(answer: Answer) -> None:
        text = answer.text()
        for pattern in patterns:
            assert re.search(pattern, text, re.IGNORECASE), f"nothing says {pattern!r}: {answer.said['headline']}"

    return holds


def lacks(*patterns: str) -> Holds:
    """Hold when the report answers and no pattern is found in its text."""

    def holds(answer: Answer) -> None:
        assert "accounting" in answer.said, answer.err
        for pattern in patterns:
            found = re.search(pattern, answer.text(), re.IGNORECASE)
            assert not found, f"it says {found and found[0]!r}"

    return holds


def fires(*rules: str) -> Holds:
    """Hold when the rules have a finding each."""

    def holds(answer: Answer) -> None:
        found = {finding["rule"] for finding in answer.said["findings"]}
        assert set(rules) <= found, f"{rules} wanted, found {sorted(found)}: {answer.said['headline']}"

    return holds


def silent(*rules: str) -> Holds:
    """Hold when the report answers and none of the rules has a finding; without rules: no error and no warning."""

    def holds(answer: Answer) -> None:
        assert "accounting" in answer.said, answer.err
        found = {f["rule"] for f in answer.said["findings"] if rules or f["severity"] != "note"}
        wrong = found & set(rules) if rules else found
        assert not wrong, f"{sorted(wrong)}: {answer.said['headline']}"

    return holds


def exits(code: int) -> Holds:
    """Hold when the command ends with this exit code, having answered."""

    def holds(answer: Answer) -> None:
        assert "accounting" in answer.said, answer.err
        assert answer.code == code

    return holds


def numbers(*wanted: float, within: float = 0.0005) -> Holds:
    """Hold when this list of numbers stands somewhere in the report."""

    def holds(answer: Answer) -> None:
        assert any(same(one, list(wanted), within) for one in _lists(answer.said)), f"no list {wanted}"

    return holds


def _lists(said: Any) -> list[list[Any]]:
    inner = said.values() if isinstance(said, dict) else said if isinstance(said, list) else ()
    own = [said] if isinstance(said, list) else []
    return own + [found for one in inner for found in _lists(one)]


def event(name: str, line: int, /, **fields: Any) -> Holds:
    """Hold when an event of this name begins on this line, with these fields (or keys of the record)."""

    def holds(answer: Answer) -> None:
        found = [one for one in answer.said if isinstance(one, dict) and (one["event"], one["line"]) == (name, line)]
        assert found, f"no {name} at line {line}: {[(one['event'], one['line']) for one in answer.said]}"
        kept = {**found[0], **found[0]["fields"]}
        for key, wanted in fields.items():
            assert same(kept.get(key), wanted, 1e-9), f"{key} is {kept.get(key)!r}"

    return holds


def both(*all_of: Holds) -> Holds:
    """Hold when each of these holds."""

    def holds(answer: Answer) -> None:
        for one in all_of:
            one(answer)

    return holds
