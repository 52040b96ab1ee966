"""Every way logscope can fail, and the form in which it says so.

This module is responsible for the exception tree and for the message of five slots (what, where, why, note, help)
that every one of them carries. It must not know what a log, a grammar or a terminal is, and it imports nothing of
logscope.

    LogscopeError            exit 2 unless a subclass says otherwise
    |- UsageError            options that contradict each other or name nothing there is
    |- InputError            an input that is missing, unreadable or not what it claims to be
    |- NothingRecognised     exit 1: readable input in which nothing at all is recognised, or no log at all
    |- GrammarError          a grammar file that does not load
    |- ContractError         a contract that does not load
    |- SavedRunError         a saved run that cannot be opened
    |- RemoteError           the user's ssh, or the far side, refused or failed
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Where:
    """A place in a text: file, 1-based line and column, the line's own text, and how many characters are meant."""

    file: str
    line: int | None = None
    column: int | None = None
    text: str | None = None
    length: int = 1

    def __str__(self) -> str:
        """Return ``file[:line[:column]]``, the form editors and terminals turn into a link."""
        parts = [self.file]
        if self.line is not None:
            parts.append(str(self.line))
            if self.column is not None:
                parts.append(str(self.column))
        return ":".join(parts)

    def caret(self) -> list[str]:
        """Return the source line and a caret under the place, or nothing when the text is not known."""
        if self.text is None or self.column is None:
            return []
        # Long lines are shown around the place: a server_args line has several kilobytes.
        start = max(0, self.column - 1 - 60)
        shown = self.text[start : start + 120].replace("\t", " ")
        left = "..." if start else ""
        right = "..." if start + 120 < len(self.text) else ""
        at = len(left) + self.column - 1 - start
        return [f"{left}{shown}{right}", " " * at + "^" * max(1, min(self.length, 120 - (self.column - 1 - start)))]


@dataclass(frozen=True, slots=True)
class Message:
    """What happened, where, why, a further fact, and what to do about it. Only ``what`` is always there."""

    what: str
    where: Where | None = None
    why: str | None = None
    note: str | None = None
    help: str | None = None

    def lines(self) -> list[str]:
        """Return the message as plain lines, without a leading word such as ``error:``."""
        out = [self.what]
        if self.where is not None:
            out.append(f" --> {self.where}")
            out.extend(f"  | {line}" for line in self.where.caret())
        for name in ("why", "note", "help"):
            text = getattr(self, name)
            if text:
                first, *rest = str(text).splitlines()
                out.append(f"  {name}: {first}")
                out.extend("  " + " " * (len(name) + 2) + line for line in rest)
        return out

    def __str__(self) -> str:
        """Return the lines joined."""
        return "\n".join(self.lines())


class LogscopeError(Exception):
    """The root: carries a :class:`Message` and the exit code the command line answers with."""

    exit_code: ClassVar[int] = 2

    def __init__(
        self,
        what: str | Message,
        *,
        where: Where | None = None,
        why: str | None = None,
        note: str | None = None,
        help: str | None = None,  # noqa: A002 - the slot is called help everywhere
    ) -> None:
        self.message = what if isinstance(what, Message) else Message(what, where, why, note, help)
        super().__init__(str(self.message))


class UsageError(LogscopeError):
    """Options that contradict each other, or that name a rule, a phase or a format there is not."""


class InputError(LogscopeError):
    """An input that is missing, unreadable, or not what it claims to be."""


class NothingRecognised(LogscopeError):  # noqa: N818 - not a fault of the input: the answer is "nothing"
    """Readable input in which nothing at all is recognised, an empty file, or a directory without logs."""

    exit_code: ClassVar[int] = 1


class GrammarError(LogscopeError):
    """A grammar file that does not load: bad TOML, an unknown key, or a sample that is not read as it says."""


class ContractError(LogscopeError):
    """A contract that does not load."""


class SavedRunError(LogscopeError):
    """A saved run that is not there, is damaged, or was written by a newer logscope."""


class RemoteError(LogscopeError):
    """The user's ssh, or the far side, refused or failed."""


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """Return ``did you mean 'x'?`` for the nearest of the known words, or None when nothing is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else None
