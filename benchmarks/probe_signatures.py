"""What a release of SGLang changed of the functions that the probe wraps.

    python benchmarks/probe_signatures.py sglang-0.5.24-*.whl ...      # what differs from what is kept
    python benchmarks/probe_signatures.py --keep sglang-0.5.24-*.whl   # and keep it for the tests

The wheels come from `pip download --no-deps sglang==0.5.24`; nothing of them is run: their source is parsed. Kept are
the parameters of every name in the probe's own table of places, in tests/data/probe/signatures.json, from which the
tests build their stand-ins. Exit code 1: some version lacks a place, or a parameter that the probe needs.
"""

from __future__ import annotations

import ast
import json
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "tests" / "data" / "probe" / "signatures.json"
sys.path.insert(0, str(ROOT / "probe"))

from logscope_probe.places import PLACES  # noqa: E402 - the path is set above

# Read besides: what the wrapped functions call, and attributes that the probe reads by name.
ALSO = {
    "model_executor.runner_utils.capture_mode": ("", "get_is_capture_mode"),
    "model_executor.cuda_graph_runner": ("", "get_is_capture_mode"),
    "plugins": ("", "load_plugins"),
}


def parameters(function: ast.FunctionDef) -> str:
    """Return a function's parameters as source, annotations left out."""
    arguments = function.args
    for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if one is not None:
            one.annotation = None
    return ast.unparse(arguments)


def functions(source: str, owner: str) -> dict[str, str]:
    """Return the functions of a class, or of the module, by name."""
    body = ast.parse(source).body
    if owner:
        body = next((node.body for node in body if isinstance(node, ast.ClassDef) and node.name == owner), [])
    return {node.name: parameters(node) for node in body if isinstance(node, ast.FunctionDef)}


def imported(source: str) -> set[str]:
    """Return the names a module imports from elsewhere."""
    found = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom))
    return {alias.asname or alias.name for node in found for alias in node.names}


def read(wheel: Path) -> tuple[str, dict[str, dict[str, str]]]:
    """Return a wheel's version, and for each ``module:Class`` the parameters of the names that are wrapped."""
    wanted: dict[tuple[str, str], set[str]] = {}
    for place in PLACES:
        wanted.setdefault((place.module, place.owner), set()).update(place.names)
    for module, (owner, name) in ALSO.items():
        wanted.setdefault((module, owner), set()).add(name)
    found: dict[str, dict[str, str]] = {}
    with zipfile.ZipFile(wheel) as files:
        there = set(files.namelist())
        for (module, owner), names in sorted(wanted.items()):
            path = f"sglang/srt/{module.replace('.', '/')}"
            path = f"{path}.py" if f"{path}.py" in there else f"{path}/__init__.py"
            if path not in there:
                continue
            source = files.read(path).decode()
            here = functions(source, owner)
            # A function that a module only imports is wrapped under the module's own name all the same.
            elsewhere = set() if owner else imported(source)
            found[f"{module}:{owner}"] = {
                name: here.get(name, "(imported)") for name in sorted(names) if name in here or name in elsewhere
            }
    return wheel.name.split("-")[1], found


def lacking(found: dict[str, dict[str, str]]) -> list[str]:
    """Return the places that a version does not have as the probe needs them."""
    problems = []
    for place in PLACES:
        here = found.get(f"{place.module}:{place.owner}", {})
        name = next((name for name in place.names if name in here), None)
        if name is None:
            if not place.optional:
                problems.append(f"{place}: not there")
        elif here[name] != "(imported)":
            has = {part.strip().split("=")[0].lstrip("*") for part in here[name].split(",")}
            problems += [f"{place}: no parameter {need}" for need in place.needs if need not in has]
    return problems


def changes(old: dict[str, dict[str, str]], new: dict[str, dict[str, str]]) -> list[str]:
    """Return what differs between two versions, a line each."""
    lines = []
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key, {}), new.get(key, {})
        for name in sorted(was.keys() | now.keys()):
            if was.get(name) != now.get(name):
                lines.append(f"  {key} {name}")
                lines += [f"    - ({was[name]})"] if name in was else []
                lines += [f"    + ({now[name]})"] if name in now else []
    return lines


def main(words: list[str]) -> int:
    """Read the wheels, say what changed, and keep it where asked."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    code = 0
    for word in [word for word in words if not word.startswith("-")]:
        version, found = read(Path(word))
        before = max((key for key in kept if order(key) < order(version)), key=order, default=None)
        print(f"{version}: against {before or 'nothing'}")
        print("\n".join(changes(kept.get(before, {}), found)) or "  nothing that is wrapped changed")
        for problem in lacking(found):
            print(f"  ! {problem}")
            code = 1
        kept[version] = found
    if "--keep" in words:
        KEPT.write_text(json.dumps(dict(sorted(kept.items(), key=lambda item: order(item[0]))), indent=1) + "\n")
    return code


def order(version: str) -> list[int]:
    """Return a version as numbers: 0.5.15.post1 comes behind 0.5.15."""
    return [int(part.removeprefix("post")) for part in version.split(".")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
