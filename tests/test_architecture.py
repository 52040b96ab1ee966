"""The house: imports run one way, heavy packages stay out of light commands, every module says what it is for."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import logscope

PACKAGE = Path(logscope.__file__).parent

# From the ground up. A module may import what stands in an earlier row, and its own row. docs/explanation/design.md
# draws the same picture.
ROWS: list[tuple[str, list[str]]] = [
    ("errors", ["errors"]),
    ("model", ["model", "versions"]),
    ("sources", ["sources"]),
    ("grammar", ["grammar"]),
    ("scan", ["scan"]),
    ("report", ["report"]),
    ("tables", ["tables"]),
    ("passes", ["passes"]),
    ("reading", ["reading"]),
    ("asking", ["asking"]),
    ("queries", ["queries"]),
    ("check", ["contract", "rules", "check"]),
    ("diff", ["diffing"]),
    ("render", ["redact", "settings", "snippets", "render"]),
    ("run", ["plot", "run"]),
    ("cluster", ["cluster"]),
    ("cli", ["cli", "__main__"]),
]
LEVEL = {module: level for level, (_, modules) in enumerate(ROWS) for module in modules}
# fetch stands apart: it may use errors only, and those that are handed a remote log may use it.
LEVEL["fetch"] = LEVEL["errors"]
FETCHES = {"fetch", "sources", "reading", "cli"}

# Imports inside functions that go upwards on purpose: who shows a report pays for it; a diff opens a run's logs itself.
DELEGATED = {("model", "render"), ("report", "render"), ("diffing", "run")}

HEAVY = {"polars", "pydantic", "rich", "typer", "numpy", "altair"}
# Rooms whose columns are arrays and frames.
ARRAYS = {"scan", "tables", "passes", "queries", "rules", "check", "diffing"}
# Where a heavy package may be imported when a module is loaded: rooms, or modules.
ALLOWED = {
    "typer": {"cli"},
    "rich": {"render", "cli"},
    # What proves a user's grammar file is imported where there is one to prove.
    "pydantic": {"contract", "tables/event.py", "grammar/proof.py"},
    "numpy": {"sources/places.py", "sources/unwrap.py", *ARRAYS},
    "polars": ARRAYS,
}


def modules() -> list[Path]:
    """Return every module of the package."""
    return sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)


def top(path: Path) -> str:
    """Return a module's name below the package: ``queries/accept.py`` is ``queries``."""
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports(path: Path, *, inside_functions: bool) -> set[str]:
    """Return the modules a file imports when it is loaded, or those its functions import."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()

    def visit(node: ast.AST, depth: int) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            deeper = depth + isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            if (depth > 0) == inside_functions:
                if isinstance(child, ast.Import):
                    found.update(alias.name for alias in child.names)
                elif isinstance(child, ast.ImportFrom) and child.module:
                    found.add(child.module)
                    found.update(f"{child.module}.{alias.name}" for alias in child.names)
            visit(child, deeper)

    visit(tree, 0)
    return found


def ours(names: set[str]) -> set[str]:
    """Return the top-level modules of logscope among imported names."""
    return {name.split(".")[1] for name in names if name.startswith("logscope.") and name.split(".")[1] in LEVEL}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_one_way(path: Path) -> None:
    """No module imports one that stands above it; only listed delegations do so, and inside functions."""
    name = top(path)
    if name == "__init__":
        return
    assert name in LEVEL, f"{name} has no place in the house: add it to ROWS"
    for other in ours(imports(path, inside_functions=False)):
        assert LEVEL[other] <= LEVEL[name], f"{name} imports {other}, which stands above it"
        if other == "fetch":
            assert name in FETCHES
    for other in ours(imports(path, inside_functions=True)):
        assert LEVEL[other] <= LEVEL[name] or (name, other) in DELEGATED, f"{name} delegates to {other}: not listed"
    if name == "fetch":
        assert ours(imports(path, inside_functions=False)) <= {"errors", "fetch"}


def test_no_circle() -> None:
    """No two modules need each other to be loaded, not even through others."""
    names = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in modules()}
    names = {name.removesuffix(".__init__"): path for name, path in names.items()}
    needs = {name: (imports(path, inside_functions=False) & names.keys()) - {name} for name, path in names.items()}
    TopologicalSorter(needs).prepare()


def test_picture() -> None:
    """The page on the design shows these rooms, in this order."""
    page = (PACKAGE.parent / "docs" / "explanation" / "design.md").read_text(encoding="utf-8")
    picture = page.split("## Rooms")[1].split("```")[1]
    assert re.findall(r"(?m)^([a-z]+)", picture.removeprefix("text")) == [room for room, _ in ROWS]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_heavy_packages_stay_where_they_belong(path: Path) -> None:
    """Only cli imports typer, only render imports rich, and arrays begin where a log is scanned."""
    loaded = {name.split(".")[0] for name in imports(path, inside_functions=False)} & HEAVY
    for package in loaded:
        assert {top(path), path.relative_to(PACKAGE).as_posix()} & ALLOWED.get(package, set()), f"{package} in {path}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    """Each module opens with a paragraph; larger ones say what they are responsible for and what they must not know."""
    text = path.read_text(encoding="utf-8")
    said = ast.get_docstring(ast.parse(text))
    assert said, f"{path.name} does not say what it is for"
    if len(text.splitlines()) > 60 and path.name != "__init__.py":
        words = " ".join(said.split())
        assert "responsible for" in words, path.name


def loaded_by(code: str) -> set[str]:
    """Return the modules a fresh interpreter has loaded after running some code."""
    result = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules, sep='\\n', file=sys.stderr)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(result.stderr.split())


def test_import_is_light() -> None:
    """``import logscope`` loads neither polars nor pydantic nor rich nor typer."""
    assert not loaded_by("import logscope") & HEAVY


@pytest.mark.parametrize(
    "words",
    ["--version", "--help", "summarize --help", "check --help", "grammar explain 'a line'", "contract --help"],
)
def test_commands_that_read_no_log_are_light(words: str) -> None:
    """What only says something of logscope, or of one line, loads neither arrays nor what shows tables."""
    code = f"from logscope.cli import main\nmain({shlex.split(words)!r})"
    assert not loaded_by(code) & (HEAVY - {"typer"})


def test_summary_is_light(tmp_path: Path) -> None:
    """A summary loads arrays, but neither pydantic nor what a terminal or a notebook needs."""
    log = tmp_path / "a.log"
    log.write_text("[2026-02-10 14:10:02] The server is fired up and ready to roll!\n")
    code = f"from logscope.run import answer\nfrom logscope.queries.summarize import Summarize\nanswer(Summarize(), [{str(log)!r}])"
    assert not loaded_by(code) & (HEAVY - {"numpy", "polars"})


def test_public_names_exist() -> None:
    """Every public name resolves, and nothing else is public."""
    for name in logscope.__all__:
        assert getattr(logscope, name) is not None
    assert set(dir(logscope)) == set(logscope.__all__)
    with pytest.raises(AttributeError):
        _ = logscope.nothing
