"""Write what is generated in the documentation: ``python docs/generate.py [PAGE...]``.

Reference pages and JSON Schema files come from the live program, and console blocks of every page are printed anew.
``--check`` changes nothing, says what is not current, and exits with 1 then.
"""

# ruff: noqa: INP001, T201 - documentation holds no package, and a program says what it did

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "_tools"))

import console


def pages() -> list[Path]:
    """Return every Markdown page whose console blocks are run."""
    root = console.ROOT
    return [root / "README.md", *sorted(root.glob("samples/**/*.md")), *sorted(root.glob("docs/**/*.md"))]


def main(words: list[str]) -> int:
    """Generate, or check."""
    check = "--check" in words
    named = [Path(word).resolve() for word in words if not word.startswith("-")]
    stale = False
    for page in named or pages():
        with tempfile.TemporaryDirectory() as name:
            folder = console.scratch(Path(name))
            if check:
                found = console.problems(page, folder)
                print("\n\n".join(found), end="\n\n" if found else "")
                stale |= bool(found)
            elif console.renew(page, folder):
                print(f"renewed {page.relative_to(console.ROOT)}")
    return int(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
