"""What the tests of pages share: the tools that also write the pages (docs/_tools), and running a page's Python."""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs" / "_tools"))

import console  # noqa: E402 - found through the line above

ALL = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "samples").rglob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def need_modules(*names: str) -> None:
    """Skip with the reason where a module is missing; LOGSCOPE_TEST_ALL=1 turns the skip into a failure."""
    missing = ", ".join(name for name in names if importlib.util.find_spec(name) is None)
    if missing and os.environ.get("LOGSCOPE_TEST_ALL") == "1":
        pytest.fail(f"not installed: {missing}, and LOGSCOPE_TEST_ALL=1 asks for every test")
    if missing:
        pytest.skip(f"not installed: {missing} (pip install -e '.[docs,report]')")


def name_of(page: Path) -> str:
    """Return a page's path below the checkout, as a test's name."""
    return str(page.relative_to(ROOT))


def kinds(page: Path) -> set[str]:
    """Return the kinds of fenced blocks a page has."""
    return {block.kind for block in console.blocks(page.read_text(encoding="utf-8"))}


def python_problems(page: Path, folder: Path) -> list[str]:
    """Run a page's Python blocks in order in one namespace; return what went wrong.

    ``python`` blocks must run; ``pycon`` blocks must also print what stands below ``>>>``, ``...`` standing for anything.
    """
    space: dict[str, Any] = {"__name__": "__page__"}
    out: list[str] = []
    before = Path.cwd()
    os.chdir(folder)
    try:
        for block in console.blocks(page.read_text(encoding="utf-8")):
            text = "\n".join(block.lines) + "\n"
            place = f"{name_of(page)}:{block.line}"
            if block.kind == "python":
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(text, place, "exec"), space)  # noqa: S102 - our own pages
            elif block.kind == "pycon":
                example = doctest.DocTestParser().get_doctest(text, space, place, str(page), block.line - 1)
                said = io.StringIO()
                runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
                if runner.run(example, out=said.write, clear_globs=False).failed:
                    out.append(said.getvalue())
                space.update(example.globs)
    finally:
        os.chdir(before)
    return out


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them: a second heading of the same words gets ``-1``."""
    out: set[str] = set()
    inside = False
    for line in page.read_text(encoding="utf-8").splitlines():
        inside ^= line.lstrip().startswith("```")
        heading = re.match(r"#{1,6} +(.*)", line)
        if heading and not inside:
            text = re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading[1])
            anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            out.add(next(name for n in range(len(out) + 1) if (name := f"{anchor}-{n}" if n else anchor) not in out))
    return out
