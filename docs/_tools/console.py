"""Console blocks of Markdown pages: found, run, compared with what stands below them, and written anew.

This module is responsible for the blocks marked ``console`` and for nothing else on a page. It must not know what any
command means.

A block holds commands behind ``$ `` and, below each, what it prints. It is run by bash in a scratch folder that looks
like the checkout (``samples``, ``docs`` and ``grammars`` stand in it), one page after the other command, so what an
earlier command wrote is there for a later one. A line ``...`` stands for any number of lines, `` ...`` at the end of a
line for the rest of it.
"""

# ruff: noqa: INP001 - documentation holds no package

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent.parent
SEEN = ("samples", "docs", "grammars", "README.md", "pyproject.toml")
ANY = "..."
HOME = "/home/me"
BUG = "this is a bug in logscope"
_FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>[\w-]*)[^\n]*$")
_MARK = "\x1e"


@dataclass
class Command:
    """One command, its 1-based line on the page, and the lines that should follow it."""

    line: int
    text: str
    expected: list[str] = field(default_factory=list)


@dataclass
class Block:
    """One fenced block: the kind written behind its fence, its first line, and its lines without the fences."""

    kind: str
    line: int
    indent: str
    lines: list[str]

    def commands(self) -> list[Command]:
        """Return the commands of a console block. Raises ValueError when text stands before the first one."""
        out: list[Command] = []
        more = False
        for number, text in enumerate(self.lines, self.line):
            if more:
                out[-1].text += "\n" + text.removeprefix("> ")
            elif text.startswith("$ "):
                out.append(Command(number, text[2:]))
            elif out:
                out[-1].expected.append(text)
            else:
                raise ValueError(f"line {number}: a console block begins with '$ '")
            more = out[-1].text.endswith("\\") and not out[-1].expected
        return out


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    current: Block | None = None
    for number, line in enumerate(text.splitlines(), 1):
        found = _FENCE.match(line)
        if current is None:
            if found:
                current = Block(found["kind"], number + 1, found["indent"], [])
        elif found and not found["kind"]:
            yield current
            current = None
        else:
            current.lines.append(line.removeprefix(current.indent))


def scratch(folder: Path) -> Path:
    """Make a folder look like the checkout: what commands read is linked, what they write stays there."""
    for name in SEEN:
        (folder / name).symlink_to(ROOT / name)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Return the surroundings of a command: this Python's programs first, nobody's settings, a plain terminal."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("LOGSCOPE_", "XDG_"))}
    return kept | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "LC_ALL": "C.UTF-8",
        "TERM": "dumb",
        "COLUMNS": "100",
    }


def run(commands: list[Command], folder: Path) -> list[list[str]]:
    """Run commands in one bash, stdout and stderr together as a terminal shows them; return the lines of each."""
    script = "".join(f"{command.text}\n__code=$?; printf '{_MARK}'; (exit $__code)\n" for command in commands)
    done = subprocess.run(
        ["bash", "-c", script],  # noqa: S607 - the bash of whoever runs it
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
        check=False,
    )
    # Nobody's page should show where this one was made.
    texts = done.stdout.decode("utf-8").replace(str(folder), HOME).split(_MARK)
    return [plain(text) for text in texts[: len(commands)]]


def plain(text: str) -> list[str]:
    """Return the lines of an output as a page shows them: no blanks at line ends, no empty lines around."""
    lines = [line.rstrip() for line in text.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    while lines and not lines[0]:
        lines.pop(0)
    return lines


def matches(expected: list[str], actual: list[str]) -> bool:
    """Tell whether an output is what a page says, ``...`` standing for anything."""
    pattern = "".join(
        r"(?:[^\n]*\n)*?" if line.strip() == ANY else _line_pattern(line) + r"\n" for line in plain("\n".join(expected))
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in actual)) is not None


def _line_pattern(line: str) -> str:
    """Return the pattern of one line."""
    if line.endswith(" " + ANY):
        return re.escape(line.removesuffix(ANY)) + r"[^\n]*"
    return re.escape(line)


def renewed(expected: list[str], actual: list[str]) -> list[str]:
    """Return what a page should say: the lines that stand there, as they are printed now, ``...`` kept in place."""
    if ANY not in [line.strip() for line in expected]:
        return actual
    out: list[str] = []
    position = 0
    for piece in _pieces(expected):
        if piece == [ANY]:
            out.append(ANY)
            continue
        start = _nearest(piece[0], actual, position) if out else 0
        out += actual[start : start + len(piece)]
        position = start + len(piece)
    return out


def _pieces(expected: list[str]) -> Iterator[list[str]]:
    """Cut lines at the ``...`` among them, which are pieces of their own."""
    piece: list[str] = []
    for line in expected:
        if line.strip() == ANY:
            if piece:
                yield piece
            yield [ANY]
            piece = []
        else:
            piece.append(line)
    if piece:
        yield piece


def _nearest(line: str, actual: list[str], position: int) -> int:
    """Return the index of the line that is most like a given one, from a position on."""

    def likeness(index: int) -> float:
        return difflib.SequenceMatcher(None, line, actual[index], autojunk=False).ratio()

    rest = range(position, len(actual))
    exact = next((index for index in rest if actual[index] == line), None)
    return exact if exact is not None else max(rest, key=likeness, default=position)


def problems(page: Path, folder: Path) -> list[str]:
    """Run every console block of a page and return what does not print as the page says."""
    out = []
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.kind != "console":
            continue
        commands = block.commands()
        for command, actual in zip(commands, run(commands, folder), strict=True):
            if not matches(command.expected, actual):
                shown = difflib.unified_diff(plain("\n".join(command.expected)), actual, "page", "printed", lineterm="")
                out.append("\n".join([f"{page.relative_to(ROOT)}:{command.line}: $ {command.text}", *shown]))
    return out


def renew(page: Path, folder: Path) -> bool:
    """Write the outputs on a page anew; tell whether anything changed.

    Raises ValueError when a command ends in a bug: no page should show that as its output.
    """
    text = page.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = [block for block in blocks(text) if block.kind == "console"]
    outputs = [run(block.commands(), folder) for block in found]
    if any(BUG in line for block_printed in outputs for output in block_printed for line in output):
        raise ValueError(f"a command of {page} ends in a bug; nothing was written")
    for block, printed in reversed(list(zip(found, outputs, strict=True))):
        new: list[str] = []
        for command, actual in zip(block.commands(), printed, strict=True):
            expected = plain("\n".join(command.expected))
            kept = expected if matches(expected, actual) else renewed(expected, actual)
            blank = [""] if command.expected and not command.expected[-1] else []
            new += [f"$ {command.text}", *kept, *blank]
        start = block.line - 1
        lines[start : start + len(block.lines)] = [
            block.indent + line if line else "" for line in "\n".join(new).split("\n")
        ]
    changed = "\n".join(lines) + "\n" != text
    if changed:
        page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return changed
