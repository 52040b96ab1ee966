"""What a release of SGLang changed of what logscope leans on: log lines, layer ids, arguments, names a probe wraps.

    python benchmarks/sglang_versions.py 0.5.17 0.5.23
    python benchmarks/sglang_versions.py --keep 0.5.24

Each wheel is downloaded (pip download --no-deps) into a folder of its own that is removed afterwards, read without
being run, and compared: the first with the release that `sglang_versions.json` holds, each further one with the one
before it. ``--keep`` writes the last one to that file. A path of a wheel may stand in a version's place.

A log line is every text of the package that holds an anchor of the shipped grammar, and the texts with placeholders
beside a statistics line's; so a new anchor in the grammar is followed from then on.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any, TypeAlias

HERE = Path(__file__).resolve().parent
KNOWN = HERE / "sglang_versions.json"
GRAMMAR = HERE.parent / "grammars" / "sglang-server.toml"
SETTER = "set_eagle3_layers_to_capture"
# What else is printed on a statistics line stands in its function, in pieces.
STATISTICS = ("Decode batch", "Prefill batch")
# Words of lines whose anchor is put together when they are printed, and of errors that are explained.
PIECES = (
    "#tokens: ",
    " graph begin.",
    " graph end.",
    "Subprocess {}",
    "est uncap acc len",
    "occupancy: ",
    "aux hidden states",
    "aux hidden output buffer",
    "exceeds the fixed CUDA graph capture mode",
    "set_eagle3_layers_to_capture, which",
    "DP spec/prefill coordination metadata",
    "spec_correct_drafts_histogram",
    "spec_accept_histogram",
)
# Lines that torch writes, not SGLang.
OTHERS = {"traceback", "matmul_mismatch", "size_mismatch", "weight_shape_mismatch", "collective_timeout"}
# Functions by name, with the class they belong to where the name alone says too little.
SIGNATURES = {
    "ModelRunner.load_model",
    "ModelRunner.forward",
    "LogitsProcessor._get_hidden_states_to_store",
    "AuxHiddenStatePacker.append",
    "AuxHiddenStatePacker.finalize",
    "EagleDraftWorker.draft_forward",
    "get_is_capture_mode",
    "run_scheduler_process",
}
WRAPPED = ("capture_one_shape", "execute")
ENUMS = {"ForwardMode", "CaptureHiddenMode", "SpeculativeAlgorithm"}

# One release: section -> name -> what stands there.
State: TypeAlias = dict[str, dict[str, str]]


def anchors() -> list[str]:
    """Return the anchors of the shipped grammar that are long enough to be somebody's own words."""
    events = tomllib.loads(GRAMMAR.read_text(encoding="utf-8"))["event"]
    own = (anchor for event in events if event["name"] not in OTHERS for anchor in event["anchors"])
    return sorted({anchor for anchor in own if len(anchor) >= 12})


def text_of(node: ast.AST) -> str | None:
    """Return a literal with ``{}`` for what is put in, None when the node is no text."""
    if isinstance(node, ast.Constant):
        return re.sub(r"%[-+ #0]*\d*(?:\.\d+)?[sdrfg]", "{}", node.value) if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else _placeholder(part) for part in node.values
        )
    return None


def _placeholder(part: ast.AST) -> str:
    """Return ``{}``, with the format behind a colon: two decimals are part of what a line looks like."""
    spec = getattr(part, "format_spec", None)
    return "{}" if spec is None else f"{{:{text_of(spec)}}}"


def texts(tree: ast.AST) -> list[str]:
    """Return the literals of a tree, each whole, without documentation."""
    found, inside = [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            inside.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            inside.update(id(child) for child in ast.walk(node) if child is not node)
        if id(node) not in inside and (text := text_of(node)) is not None:
            found.append(text)
    return found


class Reader:
    """Collects the state of one package from its files."""

    def __init__(self) -> None:
        self.state: State = {"lines": {}, "signatures": {}, "enums": {}, "arguments": {}}
        self._classes: dict[str, tuple[list[str], str | None]] = {}
        self._entries: set[str] = set()
        self._wanted = re.compile("|".join(map(re.escape, [*anchors(), *PIECES])))

    def file(self, name: str, source: str) -> None:
        """Take one file of the package."""
        try:
            tree = ast.parse(source.lstrip("\ufeff"))
        except SyntaxError as error:
            print(f"not read: {name}: {error}", file=sys.stderr)
            return
        self._lines(name, tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self._class(name, node)
            elif isinstance(node, ast.FunctionDef) and node.name in SIGNATURES:
                self.state["signatures"][node.name] = ast.unparse(node.args)
        if "/models/" in name:
            self._models(tree)

    def _lines(self, name: str, tree: ast.AST) -> None:
        wanted = {text for text in texts(tree) if self._wanted.search(text)}
        statistics = any(text.startswith(STATISTICS) for text in wanted)
        for node in ast.walk(tree) if statistics else ():
            if isinstance(node, ast.FunctionDef):
                here = texts(node)
                if any(text.startswith(STATISTICS) for text in here):
                    wanted |= {text for text in here if re.search(r": \{", text)}
        for text in wanted:
            self.state["lines"].setdefault(text, name.rpartition("/")[2])

    def _class(self, name: str, node: ast.ClassDef) -> None:
        if node.name in ENUMS:
            members = [ast.unparse(one) for one in node.body if isinstance(one, ast.Assign)]
            self.state["enums"][node.name] = ", ".join(members)
        for one in node.body:
            if isinstance(one, ast.FunctionDef):
                full = f"{node.name}.{one.name}"
                wrapped = one.name in WRAPPED and "raph" in node.name and "Runner" in node.name
                if full in SIGNATURES or wrapped:
                    self.state["signatures"][full] = ast.unparse(one.args)
            # Up to 0.5.19 one class of server_args.py, later one class for each group of arguments.
            elif isinstance(one, ast.AnnAssign) and (node.name == "ServerArgs" or "/arg_groups/fields/" in name):
                self.state["arguments"][ast.unparse(one.target)] = ""

    def _models(self, tree: ast.Module) -> None:
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                bases = [
                    base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases
                ]
                own = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == SETTER), None)
                self._classes[node.name] = (bases, None if own is None else _rule(ast.unparse(own)))
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "EntryClass":
                self._entries.update(name.id for name in ast.walk(node.value) if isinstance(name, ast.Name))

    def done(self) -> State:
        """Return what was collected, with the rule of layer ids of every class that can be a target."""
        rules = {name: self._rule_of(name, set()) for name in self._entries}
        self.state["layer ids"] = {name: rule for name, rule in rules.items() if rule is not None}
        return {section: dict(sorted(found.items())) for section, found in self.state.items()}

    def _rule_of(self, name: str, seen: set[str]) -> str | None:
        if name not in self._classes or name in seen:
            return None
        bases, rule = self._classes[name]
        return rule or next((found for base in bases if (found := self._rule_of(base, seen | {name}))), None)


def _rule(source: str) -> str:
    """Return the rule a setter follows: of ids, of ids under a condition, or another object's."""
    plus, same = "+ 1 for" in source, "list(layer_ids)" in source or "layers_to_capture = layer_ids" in source
    if plus and same:
        return "id, or id + 1: " + "; ".join(re.findall(r"if (layer_ids and .*):", source))
    return "id + 1" if plus else "id" if same else "delegated"


def read_wheel(path: Path) -> State:
    """Return the state of one wheel; nothing in it is run."""
    reader = Reader()
    with zipfile.ZipFile(path) as wheel:
        for name in sorted(wheel.namelist()):
            if name.startswith("sglang/srt/") and name.endswith(".py"):
                reader.file(name, wheel.read(name).decode("utf-8", "replace"))
    return reader.done()


def fetch(version: str) -> State:
    """Return the state of a released version, or of a wheel that is there already."""
    if version.endswith(".whl"):
        return read_wheel(Path(version))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", f"sglang=={version}", "-d", folder]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        (wheel,) = Path(folder).glob("*.whl")
        return read_wheel(wheel)


def differences(old: State, new: State) -> list[str]:
    """Return what differs, a line each: ``-`` gone, ``+`` new, ``~`` changed."""
    out = []
    for section in new:
        before, after = old.get(section, {}), new[section]
        found = [f"- {name}" for name in before.keys() - after.keys()]
        found += [f"+ {name}{_value(section, after[name])}" for name in after.keys() - before.keys()]
        if section != "lines":
            both = before.keys() & after.keys()
            found += [f"~ {name}: {before[name]} -> {after[name]}" for name in both if before[name] != after[name]]
        # What is changed a little stands together: by its words, not by its sign.
        out += (
            [f"{section}:", *(f"  {one}" for one in sorted(found, key=lambda one: (one[2:], one[0])))] if found else []
        )
    return out


def _value(section: str, value: str) -> str:
    return f" ({value})" if section == "lines" else f": {value}" if value else ""


def _version(wanted: str) -> str:
    """Return a version as it is, and that of a wheel from its name (``sglang-0.5.23-cp311-...whl``)."""
    return wanted if not wanted.endswith(".whl") else Path(wanted).name.split("-")[1]


def main(arguments: list[str]) -> None:
    """Compare the versions named on the command line."""
    keep = "--keep" in arguments
    known: dict[str, Any] = json.loads(KNOWN.read_text(encoding="utf-8")) if KNOWN.exists() else {}
    before, state = known.get("version", "nothing"), known.get("state", {})
    for wanted in (one for one in arguments if one != "--keep"):
        found = fetch(wanted)
        version = _version(wanted)
        changes = differences(state, found)
        number = sum(line.startswith("  ") for line in changes)
        print(f"{version} against {before}: {number or 'no'} differences", *changes, sep="\n", flush=True)
        before, state = version, found
    if keep:
        text = json.dumps({"version": before, "state": state}, indent=0, ensure_ascii=False)
        KNOWN.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
