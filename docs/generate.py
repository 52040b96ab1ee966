"""Write what is generated in the documentation: ``python docs/generate.py [PAGE...]``.

Parts between ``<!-- generated: NAME -->`` and the JSON Schema files come from the live program, and the console blocks
of every page are printed anew. ``--check`` changes nothing, says what is not current, and exits with 1 then.
"""

# ruff: noqa: INP001, T201 - documentation holds no package, and a program says what it did

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "_tools"))

import console
import reference
import schemas

DOCS = Path(__file__).resolve().parent


def pages() -> list[Path]:
    """Return every Markdown page whose console blocks are run."""
    root = console.ROOT
    return [root / "README.md", *sorted(root.glob("samples/**/*.md")), *sorted(DOCS.rglob("*.md"))]


def generated(page: Path) -> str:
    """Return what a page, or a schema, should hold besides its console blocks."""
    if page.suffix == ".json":
        return schemas.as_text(schemas.SCHEMAS[page.name.split(".")[0]]())
    return reference.filled(page.read_text(encoding="utf-8"))


def schema_files() -> list[Path]:
    """Return the JSON Schema files."""
    return [DOCS / "reference" / "schemas" / f"{name}.schema.json" for name in schemas.SCHEMAS]


def main(words: list[str]) -> int:
    """Generate, or check."""
    check = "--check" in words
    named = [Path(word).resolve() for word in words if not word.startswith("-")]
    stale = False
    for page in named or [*schema_files(), *pages()]:
        old = page.read_text(encoding="utf-8") if page.exists() else ""
        new = generated(page)
        found = [f"{page.relative_to(console.ROOT)}: generated parts are not current"] if new != old else []
        if not check and found:
            page.parent.mkdir(exist_ok=True, parents=True)
            page.write_text(new, encoding="utf-8")
        with tempfile.TemporaryDirectory() as name:
            folder = console.scratch(Path(name))
            if page.suffix == ".md" and check:
                found += console.problems(page, folder)
            elif page.suffix == ".md":
                console.renew(page, folder)
        if check:
            stale |= bool(found)
            print("\n\n".join(found), end="\n\n" if found else "")
        elif page.read_text(encoding="utf-8") != old:
            print(f"renewed {page.relative_to(console.ROOT)}")
    return int(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
