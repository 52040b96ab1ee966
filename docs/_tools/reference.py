"""Reference from the live program: commands, settings, events, frames, rules, public names, contracts.

This module is responsible for turning what the program is into Markdown: :data:`SECTIONS` has a function for every
part of a page that is generated, and :func:`filled` puts them where a page says ``<!-- generated: NAME -->``. What a
column means is said here, next to its name, and a column nobody explains is an error.
"""

# ruff: noqa: INP001 - documentation holds no package

from __future__ import annotations

import contextlib
import inspect
import io
import re
import textwrap
from functools import partial
from typing import TYPE_CHECKING, Any

import typer
from schemas import event_schema, probe_header_fields

import logscope
from logscope import grammar
from logscope.cli import app, main
from logscope.cli.commands import COMMANDS
from logscope.contract import Contract
from logscope.diffing import CODES
from logscope.rules import page, rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WIDTH = 100

# ------------------------------------------------------------------------------------------------ what columns mean

EVENT_KEYS = {
    "file": "the log, as given (`-` for standard input)",
    "line": "physical line where the record starts, from 1",
    "offset": "byte offset of the record's anchor in the (decompressed) log",
    "segment": "which server life of the file, from 1",
    "during": "`startup`, `graph_capture`, `warmup` or `serving`",
    "time": "ISO 8601 as far as it is printed: what is missing (a date, a year) is left out, not invented",
    "origin": "what names the source but is no rank: container, pod, Ray actor, worker, trace letter; joined with `/`",
    "pid": "process number, where a prefix prints it",
    "dp_rank": "data-parallel rank",
    "pp_rank": "pipeline-parallel rank",
    "tp_rank": "tensor-parallel rank",
    "ep_rank": "expert-parallel rank",
    "site": "the word in `EAGLE3_DEBUG[...]`; only debug records have one",
    "event": "what kind of record it is, see [event names](#event-names)",
    "role": "`target` or `draft`; a `logits` record takes it from the model record before it on the same writer",
    "phase": "`extend`, `decode`, `verify`, `draft_extend`, `idle` or `unknown`; null for server lines",
    "evidence": "how the phase is known: `printed`, `rows`, `order`, `server` or `none`",
    "pass": "which forward pass, from 1 for each file (and writer)",
    "layer": "the layer's number as printed, never shifted; 0 for the embedding",
    "rows": "first axis of the shape; null when there is one axis only",
    "width": "last axis of the shape",
    "shape": "all axes. Of `forward` the hidden states', of `forward_end` the hidden shape",
    "norm": "as printed, over the whole tensor; derived when only mean and std are printed",
    "head": "the first values printed (`first5`), row 0 of the tensor",
    "capture_hidden_mode": "`FULL`, `LAST`, `NULL`, or the number that was printed",
    "intact": "`whole`, `partial`, `cut` or `rejoined`, see [Parsing and damage](../explanation/parsing.md)",
    "fields": "every other key of the record, under its printed name, as typed JSON",
}

PASS_COLUMNS = {
    "file": "the log, as given",
    "line": "line of the first record",
    "segment": "which server life of the file",
    "pass": "its number, from 1 for each file (and writer)",
    "role": "`target` or `draft`",
    "phase": "see the events",
    "evidence": "how the phase is known",
    "reason": "why the phase is `unknown`",
    "during": "`startup`, `graph_capture`, `warmup` or `serving`",
    "complete": "false for a pass at a cut edge of the log, or one that damage left without its end",
    "time": "the last time seen before it; null where date or year is not printed",
    "time_printed": "the same as printed",
    "rows": "rows of the pass",
    "hidden_captures": "how many hidden states were captured, copies of other ranks not counted",
    "layers": "the layers captured, as printed; 0 is the embedding",
    "joined_width": "width of the joined state of a target pass; of a draft pass, of its output",
    "joined_norm": "its norm",
    "mode": "its capture hidden mode, as printed",
    "input_width": "width of the hidden states a draft pass read",
    "input_norm": "their norm",
    "copies": "how many writers printed each record, at most",
    "expected_copies": "how many writers usually print one; null when that cannot be told",
    "variants": "how many records a writer printed with other values than the rest",
}

# The tables underneath. Of a state: what is said of it, under the prefix of the table's columns.
_STATE = {
    "norm": "norm",
    "slack": "half its last printed digit",
    "key": "key of its first values",
    "rows": "rows",
    "width": "width",
    "line": "line",
    "rounded": "its values were printed rounded",
}
TABLE_COLUMNS = {
    "passes": {
        "key": "unique in a run, rising",
        "file": "row of `files`",
        "segment": "which server life of the file",
        "group": "row of `groups`: origin, DP and PP rank",
        "number": "the public number of the pass",
        "role": "`target` or `draft`",
        "phase": "its phase",
        "evidence": "how the phase is known",
        "why": "why the phase is `unknown`",
        "during": "where in the server's life",
        "complete": "it has the records such a pass begins and ends with",
        "line": "line of its first record",
        "offset": "byte offset of its first print",
        "time": "the last time printed before it",
        "rows": "rows of the pass",
        "hidden": "width of one state",
        "states": "how many states its join holds",
        "captures": "how many hidden states were captured",
        "layers": "their layers, in printed order; 0 is the embedding",
        "copies": "how many writers printed each record, at most",
        "expected": "how many writers print; null when that cannot be told",
        "differ": "how many of them differ anywhere in the pass",
        "wide": "of a draft pass: it reads more than one state a row",
        "printed": "a record names the phase",
        "region": "which graph was being captured",
        "first": "its first record; `first` to `last` are all of them",
        "last": "its last record",
        "join": "its joined state",
        "input": "what the draft read",
        "fc": "what went into, or came out of, the fc",
        "end": "its `forward end`",
        **{f"due_{name}": f"the joined state it should have read: {text}" for name, text in _STATE.items()},
        "due_fresh": "no other input was compared with that state before",
        "ago": "its input equals the state so many target passes back; 0: the right one",
        "traced": "its input is what was due (of a decode step: its own last output); null: cannot be told",
        "how": "what shows it",
        **{f"own_{name}": f"the draft's own last output: {text}" for name, text in _STATE.items()},
    },
    "records": {
        "pass": "`key` of its pass",
        "file": "row of `files`",
        "segment": "which server life of the file",
        "line": "line of the print that speaks for it",
        "offset": "its byte offset",
        "event": "what kind of record it is",
        "site": "the word in `EAGLE3_DEBUG[...]`",
        "role": "the record's own",
        "layer": "as printed; 0 for the embedding",
        "rows": "first axis",
        "width": "last axis",
        "norm": "as printed",
        "slack": "half its last printed digit, or the error of a derived norm",
        "derived": "the norm was derived from mean and std",
        "values": "the first values, of row 0",
        "values_key": "equal keys are equal values, where neither is rounded",
        "rounded": "the values were printed rounded",
        "num_aux": "as printed",
        "mode": "capture hidden mode, as printed",
        "embeds": "last axis of `embeds`",
        "residual_none": "as printed",
        "intact": "`whole`, `partial`, `cut` or `rejoined`",
        "usable": "whole or partial",
        "copies": "how many writers printed it, differing ones included",
        "differ": "how many of them printed another value",
        "head": "row of `heads`: everything else that is said",
        "length": "bytes of its own text",
        "print": "the print that speaks for it",
    },
    "prints": {
        "record": "its record",
        "line": "physical line",
        "offset": "byte offset",
        "prefix": "row of `prefixes`",
        "same": "false where this writer printed another value",
        "norm": "from here on null where it says word for word what its record says",
        "slack": "see the records",
        "values": "see the records",
        "values_key": "see the records",
        "head": "see the records",
        "length": "see the records",
    },
    "server": {
        "file": "row of `files`",
        "segment": "which server life of the file",
        "during": "where in the server's life",
        "line": "physical line",
        "offset": "byte offset",
        "prefix": "row of `prefixes`",
        "time": "the last time printed up to it",
        "kind": "`event` or `unparsed`",
        "event": "what kind of line it is; of an unparsed one, its anchor",
        "site": "of a debug record in no pass",
        "intact": "`whole`, `partial`, `cut` or `rejoined`",
        "said": "row of `said`: what the line says",
        **dict.fromkeys(
            ("accept_len", "accept_rate", "gen_throughput", "token_usage", "running", "queue", "token", "new_token"),
            "as printed on a statistics line",
        ),
        **dict.fromkeys(("new_seq", "iteration"), "as printed on a statistics line"),
        "graph": "whether it ran in a CUDA graph",
    },
}

UNPARSED_COLUMNS = {
    "file": "the log, as given",
    "line": "physical line",
    "offset": "byte offset of the anchor",
    "anchor": "what the record begins like",
    "column": "byte in the record where reading stopped, from 0",
    "reason": "why no event matched, in words",
}


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def explained(names: list[str], meaning: dict[str, str], kinds: dict[str, str]) -> str:
    """Return the table of columns; raises ValueError when one is not explained, or an explanation has no column."""
    if set(names) != set(meaning):
        raise ValueError(f"not explained, or not there: {sorted(set(names) ^ set(meaning))}")
    return table(["name", "type", "meaning"], [[f"`{name}`", kinds[name], meaning[name]] for name in names])


# --------------------------------------------------------------------------------------------------------- commands


def tree() -> Iterator[tuple[str, Any]]:
    """Yield every command with its words, groups and their members, in the order of the help."""
    root = typer.main.get_command(app)
    yield "logscope", root
    for name in COMMANDS:
        command = COMMANDS[name]
        yield f"logscope {name}", command
        for member in getattr(command, "commands", {}):
            yield f"logscope {name} {member}", command.commands[member]


def options_of(command: Any) -> list[Any]:
    """Return the options of a command, typer's own help left out."""
    return [one for one in command.params if one.param_type_name == "option"]


def help_text(path: str, command: Any) -> str:
    """Return a command's help as it is printed into a pipe."""
    context = command.make_context(path, [], resilient_parsing=True, max_content_width=WIDTH, terminal_width=WIDTH)
    return "\n".join(line.rstrip() for line in context.get_help().splitlines())


def in_python(path: str, command: Any) -> str | None:
    """Return the lines of Python equal to a command, as it prints them itself; None where it has none."""
    if not any(one.name == "explain_python" for one in command.params):
        return None
    logs = ["good.log", "bad.log"] if path == "logscope diff" else ["server.log"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        code = main([*path.split()[1:], *logs, "--explain-python"])
    return said.getvalue().strip() if code == 0 else None


# Where more is said about a command than its help says.
MORE = {
    "fetch": "How: [Fetch logs from other machines](../howto/fetch.md).",
    "probe": "How: [Record a stock server with the probe](../howto/probe.md); what it writes: [The probe](probe.md).",
    "check": "What it looks for: [Rules](rules.md).",
    "contract": "What stands in a contract: [Contract files](contract.md).",
    "events": "What an event holds: [Events](events.md). The tables for `--sql`: [Frames](frames.md).",
    "grammar": "How a grammar is written: [Grammar files](grammars.md).",
    "rule": "All of them: [Rules](rules.md).",
    "diff": "How runs are compared: [Comparing two runs](../explanation/diff.md).",
    "accept": "What the numbers mean: [Accept len and accept rate](../explanation/accept-rate.md).",
    "norms": "What is compared with what: [Identities](../explanation/identities.md).",
    "captures": "How phases are known: [Phases](../explanation/phases.md).",
    "report": "[Share a log or a report](../howto/share-a-log.md).",
}


def commands() -> str:
    """Return the help of every command."""
    parts = []
    for path, command in tree():
        level = "##" if path.count(" ") < 2 else "###"
        parts.append(f"{level} {path}\n\n```text\n{help_text(path, command)}\n```\n")
        python = in_python(path, command)
        if python:
            parts.append(f"In Python:\n\n```text\n{python}\n```\n")
        more = MORE.get(path.removeprefix("logscope "))
        if more:
            parts.append(more + "\n")
    return "\n".join(parts)


def settings() -> str:
    """Return every option as a key of the settings and as an environment variable."""
    commands = {path.removeprefix("logscope "): command for path, command in tree() if is_leaf(path, command)}
    readers = [path for path, command in commands.items() if any(one.name == "phase" for one in command.params)]
    words = {tuple(commands): "every command", tuple(readers): "every command that reads logs"}
    found: dict[str, tuple[Any, list[str]]] = {}
    for path, command in commands.items():
        for one in options_of(command):
            if one.envvar and one.name != "explain_python":
                found.setdefault(one.name, (one, []))[1].append(path)
    rows = []
    for name, (one, paths) in sorted(found.items()):
        long = next(word for word in one.opts if word.startswith("--"))
        where = words.get(tuple(paths), ", ".join(f"`{path}`" for path in paths))
        if len(paths) > len(readers) and where != "every command":
            where = "every command that reads logs, " + ", ".join(f"`{path}`" for path in paths if path not in readers)
        rows.append([f"`{name}`", f"`{long}`", f"`{one.envvar}`", "list" if one.multiple else kind_of(one), where])
    return table(["key", "option", "environment", "value", "commands"], rows)


def is_leaf(path: str, command: Any) -> bool:
    """Tell a command from the root and from a group."""
    return path != "logscope" and not getattr(command, "commands", None)


def kind_of(option: Any) -> str:
    """Return what a setting's value is in TOML."""
    if option.is_flag:
        return "true or false"
    kind = str(option.type.name)
    return "whole number" if kind.startswith("int") else "number" if kind.startswith("float") else "text"


# ----------------------------------------------------------------------------------------------------- events, frames


def event_keys() -> str:
    """Return the keys of the event record."""
    properties = event_schema()["properties"]
    return explained(list(properties), EVENT_KEYS, {name: json_type(part) for name, part in properties.items()})


def event_names() -> str:
    """Return every event of the shipped grammars, with what begins it and what it usually has."""
    parts = []
    for file in grammar.load().files:
        rows: dict[str, list[set[str]]] = {}
        for dialect in file.dialects:
            if dialect.kind == "event":
                row = rows.setdefault(dialect.event, [set(), set()])
                row[0].update(anchor.strip() for anchor in dialect.anchors)
                row[1].update(dialect.usual)
        shown = [
            [f"`{name}`", *(", ".join(f"`{word}`" for word in sorted(cell)) for cell in row)]
            for name, row in rows.items()
        ]
        heads = ["event", "known by", "usually has"]
        parts.append(f"### {file.title}\n\nGrammar `{file.name}`. {file.description}\n\n" + table(heads, shown))
    return "\n".join(parts)


def json_type(part: dict[str, Any]) -> str:
    """Return a JSON Schema type in words."""
    if "anyOf" in part:
        return " or ".join(dict.fromkeys(json_type(one) for one in part["anyOf"]))
    kind = part.get("type", "text")
    kinds = kind if isinstance(kind, list) else [kind]
    words = {"string": "text", "object": "object", "array": "list", "boolean": "true or false"}
    return " or ".join(words.get(one, one) for one in kinds)


def frame(columns: str, meaning: dict[str, str]) -> str:
    """Return the columns of one of the frames, or of a table underneath."""
    from logscope.tables import schema  # noqa: PLC0415 - imports polars

    kinds = getattr(schema, columns)
    # Enum(categories=[...]), Datetime(time_unit=...): what stands in the brackets says nothing to a reader.
    words = {name: re.sub(r"\(\w+=.*", "", str(kind)) for name, kind in kinds.items()}
    return explained(list(kinds), meaning, {name: f"`{word}`" for name, word in words.items()})


IN_FRAME = {
    **EVENT_KEYS,
    "time": "as printed, without its zone; null where date or year is not printed",
    "time_printed": "ISO 8601 as far as it is printed: what is missing is left out, not invented",
    "shape": 'all axes as text, `"4x7168"`; `rows` and `width` are the numbers',
    "accept_len": "of a statistics line",
    "fields": "every other key, as JSON text",
    "event": "what kind of record it is, see [event names](events.md#event-names)",
}


# -------------------------------------------------------------------------------------------------- rules, contracts


def rule_table() -> str:
    """Return every rule of `check`."""
    rows = [[link(rule.code), rule.name, rule.severity, fires(rule.code), rule.needs] for rule in rules().values()]
    return table(["code", "name", "severity", "fires when", "needs"], rows)


def diff_table() -> str:
    """Return every code of `diff` that is no rule of `check`."""
    rows = [[link(code), name, severity, fires(code)] for code, (name, severity) in CODES.items()]
    return table(["code", "name", "severity", "fires when"], rows)


def link(code: str) -> str:
    """Return a code as a link to its page."""
    return f"[{code}](../rules/{code}.md)"


def fires(code: str) -> str:
    """Return what a rule's page says of when it fires."""
    found = re.search(r"(?m)^Fires when (.*?)\.?$", page(code))
    if found is None:
        raise ValueError(f"the page of {code} does not say when it fires")
    return found[1]


def probe_header() -> str:
    """Return the keys of the probe's header."""
    rows = [[f"`{name}`", kind, meaning] for name, (kind, meaning) in probe_header_fields().items()]
    return table(["name", "type", "meaning"], rows)


def contract_keys() -> str:
    """Return the keys of a contract."""
    said = dict(described(inspect.getdoc(Contract) or ""))
    rows = [
        [f"`{name}`", type_words(field.annotation), said[name]]
        for name, field in Contract.model_fields.items()
        if name != "source"
    ]
    return table(["key", "value", "meaning"], rows)


def described(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield the names a docstring describes: a line ``name, other`` and an indented text below it."""
    for found in re.finditer(r"(?m)^(?P<names>[a-z_]+(?:, [a-z_]+)*)\n(?P<text>(?:    .*\n?)+)", docstring):
        for name in found["names"].split(", "):
            yield name, " ".join(textwrap.dedent(found["text"]).split())


def type_words(kind: Any) -> str:
    """Return a field's type in words."""
    text = str(kind)
    if "tuple" in text:
        return "list of whole numbers"
    return "whole number" if "int" in text else "text"


# ------------------------------------------------------------------------------------------------------ public names


def public_names() -> str:
    """Return every public name with its signature, docstring and members."""
    parts = []
    for name in sorted(logscope._PUBLIC, key=lambda word: (word[0].isupper(), word)):  # noqa: SLF001 - its own list
        value = getattr(logscope, name)
        parts.append(f"## logscope.{name}\n\n{signature(name, value)}{prose(value)}")
        if inspect.isclass(value) and not issubclass(value, BaseException):
            parts += [member_text(name, member, found) for member, found in members(value)]
    return "\n".join(parts)


def signature(name: str, value: Any) -> str:
    """Return the signature as a block; a class that is only read has none."""
    if inspect.isclass(value) and name != "Select":
        return ""
    try:
        shown = re.sub(r"'([^']*)'", r"\1", str(inspect.signature(value)))
    except ValueError:
        return ""
    shown = re.sub(r"logscope\.[\w.]+\.|typing\.|collections\.abc\.", "", shown)
    return f"```text\n{name}{shown}\n```\n\n"


def prose(value: Any) -> str:
    """Return a docstring as Markdown."""
    text = inspect.getdoc(value) or ""
    text = re.sub(r":\w+:`~?(?:logscope\.)?([\w.]+)`", r"`\1`", text).replace("``", "`")
    text = re.sub(r"(?m)^(\w[\w ]*)\n-{3,}\n", r"**\1**\n\n", text)
    # An example is shown without its prompts.
    text = re.sub(
        r"(?m)^>>> .*(?:\n(?:>>>|\.\.\.) .*)*",
        lambda found: "```py\n" + re.sub(r"(?m)^(?:>>>|\.\.\.) ", "", found[0]) + "\n```",
        text,
    )
    # `name` and an indented text below it become a list.
    text = re.sub(
        r"(?m)^(?P<names>[\w]+(?:, [\w]+)*)\n(?P<text>(?:    .*\n?)+)",
        lambda found: f"- `{found['names']}`: {' '.join(textwrap.dedent(found['text']).split())}\n",
        text,
    )
    return text.strip() + "\n"


def members(value: type) -> Iterator[tuple[str, Any]]:
    """Yield a class's own public members that say what they are for, in the order they are written."""
    if hasattr(value, "model_fields"):
        inherited = set(dir(next(base for base in value.__mro__ if base.__name__ == "BaseModel")))
    else:
        inherited = set()
    for name, member in vars(value).items():
        public = not name.startswith("_") and name not in inherited
        if public and (callable(member) or isinstance(member, property)) and inspect.getdoc(member):
            yield name, member


def member_text(owner: str, name: str, member: Any) -> str:
    """Return the text of one member of a class."""
    if isinstance(member, property):
        return f"### {owner}.{name}\n\n{prose(member.fget)}"
    member = getattr(member, "__func__", member)
    shown = re.sub(r"'([^']*)'", r"\1", str(inspect.signature(member)))
    shown = re.sub(r"^\((?:self|cls)(?:, )?", "(", shown)
    return f"### {owner}.{name}\n\n```text\n{name}{shown}\n```\n\n{prose(member)}"


# -------------------------------------------------------------------------------------------------------------- all

SECTIONS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "settings": settings,
    "event keys": event_keys,
    "event names": event_names,
    "events frame": lambda: frame("EVENTS", IN_FRAME),
    "passes frame": lambda: frame("FORWARDS", PASS_COLUMNS),
    "unparsed frame": lambda: frame("UNPARSED", UNPARSED_COLUMNS),
    **{f"table of {name}": partial(frame, name.upper(), meaning) for name, meaning in TABLE_COLUMNS.items()},
    "rules": rule_table,
    "codes of diff": diff_table,
    "contract keys": contract_keys,
    "public names": public_names,
    "probe header": probe_header,
}
_SECTION = re.compile(r"(?s)(<!-- generated: (?P<name>[a-z ]+) -->\n).*?(<!-- end of generated -->)")


def filled(text: str) -> str:
    """Return a page with its generated parts written anew."""
    return _SECTION.sub(lambda found: f"{found[1]}\n{SECTIONS[found['name']]()}\n{found[3]}", text)
