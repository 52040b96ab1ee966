"""``logscope config``: what was really configured, what start-up adds to it, and what differs between servers.

This module is responsible for collecting start-up lines per run and for showing them. Whether they contradict each
other is for the rules of ``check`` to say; what an argument is about, and what differs, is known by arguments.py.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import polars as pl

from logscope.model import Place, Segment
from logscope.queries.arguments import (
    NOT_PRINTED,
    SHOWN,
    Difference,
    differences,
    group_of,
    is_off,
    order_of,
    shown,
    without_secrets,
)
from logscope.queries.clock import Clock, writer_label
from logscope.queries.tables import add, columns
from logscope.queries.words import and_list, count, whole_numbers
from logscope.report import Column, Line, Report, Table, plain
from logscope.versions import DRAFT_CLASS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logscope.report import Context
    from logscope.tables.tables import Tables

__all__ = ["Config", "Difference", "Life", "differences", "settings"]

# Start-up lines of one life that are kept: eight ranks print some dozens.
_MOST = 1024
_STARTUP = (
    "load_weight_begin", "load_weight_end", "kv_cache", "graph_capture_begin", "graph_capture_end", "ready",
    "kv_cache_size", "graphs_captured", "engine_init_end", "startup_complete", "draft_implementation",
    "llamacpp_build", "model_loaded",
)  # fmt: skip
_ENGINE = ("server_version", "engine_args", "engine_init", "engine_dump")
_HEARD = (*_STARTUP, *_ENGINE, "server_args", "capture_plan")
# Drafting by other methods: shown only where it is used, or asked for.
_OTHER_METHODS = re.compile(r"speculative_(ngram|dflash|lookahead)_.*")
# Drafts that come in the target's own checkpoint, and so in its quantisation.
_SAME_CHECKPOINT = re.compile(r"MTP|NextN", re.IGNORECASE)
_FROM_PLAN = {
    "requested": "requested_layers", "layers_to_capture": "layers_to_capture",
    "num_hidden_layers": "num_hidden_layers", "hidden_size": "hidden_size",
}  # fmt: skip
# The arguments that decide most, in words; of several sizes the one that is printed.
_DECIDE = {
    "speculative_num_steps": "{} steps", "speculative_eagle_topk": "topk {}",
    "speculative_num_draft_tokens": "{} draft tokens", "num_speculative_tokens": "{} draft tokens",
}  # fmt: skip
_SIZES = {
    "TP": ("tp_size", "tensor_parallel_size"), "DP": ("dp_size", "data_parallel_size"),
    "PP": ("pp_size", "pipeline_parallel_size"),
}  # fmt: skip
_ARGUMENTS = columns("file segment=run> group argument! value!")
_STARTED = columns("file segment=run> what! value! processes! seconds> memory>GB line>")
# Lines of a run that are looked at for its first time.
_FIRST_TIME = 64
# Sides that are listed one by one where they differ.
_FEW = 12


@dataclass(slots=True)
class Start:
    """One start-up line: who printed it, where, when, and what it says."""

    event: str
    process: str
    place: Place
    time: str | None
    fields: dict[str, Any]
    usable: bool = True


@dataclass(slots=True)
class Life:
    """What the lines of one run say about its set-up. ``engine``: settings of vLLM, from the line that tells most."""

    segment: Segment
    starts: list[Start] = field(default_factory=list)
    args: list[Start] = field(default_factory=list)
    plan: dict[str, Any] | None = None
    engine: dict[str, Any] = field(default_factory=dict)
    engine_line: int | None = None
    first: str | None = None
    ready: Start | None = None
    left_out: int = 0

    @property
    def server_args(self) -> dict[str, Any]:
        """What the server was started with: SGLang's server_args, or vLLM's configuration."""
        return self.segment.server_args or self.engine

    @property
    def where(self) -> dict[str, Any]:
        """What names it in the row of a table."""
        return {"file": self.segment.file, "segment": self.segment.number}

    @property
    def place(self) -> Place:
        """Where its arguments stand, or else where it begins."""
        return Place(self.segment.file, self.segment.server_args_line or self.engine_line or self.segment.line)

    def loads(self) -> list[tuple[str, Start]]:
        """Return every load with its role: the second of a process is the draft, the first the target."""
        seen: Counter[str] = Counter()
        out = []
        for start in self.starts:
            if start.event == "load_weight_end":
                seen[start.process] += 1
                name = str(start.fields.get("type", ""))
                draft = seen[start.process] > 1 or DRAFT_CLASS.search(name) is not None
                out.append(("draft" if draft else "target", start))
        return out

    def caches(self) -> list[Start]:
        """Return what was said of KV caches."""
        return [start for start in self.starts if start.event in ("kv_cache", "kv_cache_size")]

    def graphs(self, event: str) -> dict[str, list[Start]]:
        """Return the lines about the capture of each kind of graph."""
        found: dict[str, list[Start]] = {}
        for start in self.starts:
            if start.event.startswith(event):
                found.setdefault(str(start.fields.get("what", "")).strip() or "target", []).append(start)
        return found

    def seconds_to_ready(self) -> float | None:
        """Return the time from the first printed line to the ready line, None where a time is missing."""
        clock = Clock()
        first, ready = (clock.read(time, 0) for time in (self.first, self.ready.time if self.ready else None))
        return None if first is None or ready is None or first.kind != ready.kind else ready.seconds - first.seconds

    def add(self, other: Life) -> None:
        """Take what a later part knows."""
        room = _MOST - len(self.starts)
        self.left_out += other.left_out + max(0, len(other.starts) - room)
        self.starts += other.starts[: max(0, room)]
        self.args = (self.args + other.args)[:_MOST]
        self.plan = self.plan or other.plan
        self.engine = other.engine | self.engine if self.engine_line else self.engine | other.engine
        self.engine_line = self.engine_line or other.engine_line
        self.first, self.ready = self.first or other.first, _earlier(self.ready, other.ready)


Part = dict[tuple[str, int], Life]


class Config:
    """The question behind ``logscope config``. ``every`` shows all arguments, also those that decide nothing here."""

    kind: ClassVar[str] = "config"

    def __init__(self, *, every: bool = False) -> None:
        self.every = every

    def partial(self, tables: Tables) -> Part:
        """Return what a batch says of set-up."""
        part = {(one.file, one.number): Life(one) for one in tables.segments}
        server = tables.server.with_row_index("row")
        firsts = server.group_by("file", "segment").head(_FIRST_TIME).sort("row").select("file", "segment", "prefix")
        for file, segment, prefix in firsts.iter_rows():
            if life := part.get((tables.files[file], segment)):
                life.first = life.first or tables.prefixes[prefix].time
        names = ("file", "segment", "line", "prefix", "event", "row")
        heard = server.filter((pl.col("kind") == "event") & pl.col("event").is_in(list(_HEARD)))
        for file, segment, line, prefix, event, row in heard.select(names).iter_rows():
            payload, mark, place = tables.payload(row), tables.prefixes[prefix], Place(tables.files[file], line)
            if life := part.get((place.file, segment)):
                _hear(life, Start(event, writer_label(mark), place, mark.time, payload.fields, payload.usable))
        plans = tables.records.filter(pl.col("event") == "capture_plan")
        for file, segment, head in plans.select("file", "segment", "head").iter_rows():
            if life := part.get((tables.files[file], segment)):
                life.plan = life.plan or tables.heads[head].fields
        return part

    def combine(self, parts: Sequence[Part]) -> Part:
        """Add parts up, in order."""
        whole: Part = {}
        for part in parts:
            for key, life in part.items():
                whole.setdefault(key, Life(life.segment)).add(life)
        return whole

    def report(self, part: Part, context: Context) -> Report:
        """Answer."""
        lives = [one for one in part.values() if one.server_args or one.starts or one.plan]
        report = Report(self.kind, _headline(lives), accounting=context.accounting)
        report.notes.extend(context.warnings)
        if not lives:
            report.verdict = "unknown"
        sides = compared(part)
        if len(sides) > 1:
            self._differences(sides, report)
        self._arguments(lives, report)
        report.facts["runs"] = [_fact(life) for life in lives]
        self._screen(report, context)
        return report

    def _arguments(self, lives: list[Life], report: Report) -> None:
        rows, hidden = [], 0
        for life in lives:
            args = life.server_args
            known = [key for key in sorted(args, key=order_of) if self.every or _worth_showing(key, args)]
            hidden += len(args) - len(known)
            rows += [
                {**life.where, "group": group_of(key), "argument": key, "value": shown(key, args[key])} for key in known
            ]
            if args and any(not line.usable for line in life.args):
                report.notes.append(
                    f"the server_args line at {life.place} is cut: only its complete arguments are known"
                )
            for line in life.args:
                if line.place.line != life.segment.server_args_line:
                    found = [difference.key for difference in differences(args, line.fields) if difference.matters]
                    names = ", ".join(found[:8]) + ", ..." * (len(found) > 8)
                    same = f"other arguments: {names}" if found else "the same arguments"
                    report.notes.append(f"{line.process or 'another process'} prints {same} at {line.place}")
            report.notes += _traps(life)
        # The speculative group first; where two lives are shown, life by life.
        rows.sort(key=lambda row: (row["file"], row["segment"], row["group"] != "speculative"))
        add(report, "arguments", _ARGUMENTS, rows, "server arguments")
        if hidden:
            why = "at a default or without influence here; --all shows them, JSON has all"
            report.notes.append(f"{count(hidden, 'argument')} not shown: {why}")
        add(report, "startup", _STARTED, [row for life in lives for row in _start_rows(life)], "what start-up adds")
        for life in lives:
            if life.left_out:
                report.notes.append(f"{count(life.left_out, 'start-up line')} of {life.place} are not listed")

    def _differences(self, sides: list[Life], report: Report) -> None:
        rows: list[dict[str, Any]] = []
        unimportant = 0
        apart: dict[str, list[str]] = {}
        # The shortest names that tell the sides apart.
        one_each = len({life.segment.file for life in sides}) == len(sides)
        names = [
            life.segment.file if one_each else f"run {life.segment.number} (line {life.place.line})" for life in sides
        ]
        pairs, alike = _pairs(sides)
        for one, other in pairs:
            a, b = sides[one], sides[other]
            found = differences(settings(a), settings(b))
            if mattering := [difference.key for difference in found if difference.matters]:
                apart[names[other]] = mattering
            else:
                report.notes.append(f"nothing that matters differs between {names[one]} and {names[other]}")
            for difference in found:
                if not difference.matters and not self.every and NOT_PRINTED in (difference.a, difference.b):
                    unimportant += 1
                    continue
                place = {"a_where": str(a.place), "b_where": str(b.place)}
                values = {side: shown(difference.key, getattr(difference, side)) for side in "ab"}
                told = {"argument": difference.key, "group": difference.group, **values}
                rows.append({**place, **told, "matters": difference.matters, "reason": difference.reason})
        different = sum(map(len, apart.values()))
        report.facts["differences_that_matter"] = different
        two = len(sides) == 2
        heads = [f"{side}: {name}" if two else side for side, name in zip("AB", names, strict=False)]
        shown_ = columns("argument!" if two else "a_where=A b_where=B argument!")
        shown_ += [Column(name, head, always=True) for name, head in zip("ab", heads, strict=True)]
        shown_ += columns("matters reason=why_not")
        add(report, "differences", shown_, rows, "differences, what matters first")
        if unimportant:
            why = "printed on one side only, off or of no interest there; --all lists them"
            report.notes.append(f"{count(unimportant, 'argument')} {why}")
        if two:
            words = count(different, "difference that matters", "differences that matter")
            said = f": {', '.join(apart[names[1]][:6])}" if different else ""
            said = f"{words if different else 'nothing that matters differs'} between {names[0]} and {names[1]}{said}"
            report.headline = said
        elif alike is not None:
            said = "; ".join(f"{name} ({', '.join(keys[:3])})" for name, keys in list(apart.items())[:_FEW])
            more = f"; {len(apart)} differ: {said}" if apart else ""
            report.headline = f"{alike} of {count(len(sides), 'server')} are configured alike{more}"

    def _screen(self, report: Report, context: Context) -> None:
        """Set the first screen: what differs, worst first, or the arguments that decide; then what to know."""
        report.screen, tables = [report.headline, ""], report.tables
        different = tables.get("differences", Table([]))
        rows = [row for row in different.rows if row["matters"]]
        told = different if rows else tables.get("arguments")
        if told is not None:
            kept = [column for column in told.columns if column.name not in ("matters", "reason", "group")]
            report.screen.append(Table(kept, rows or told.rows))
        if "startup" in tables and not rows:
            started = tables["startup"].rows
            listed: list[Any] = [(row["what"], row["value"]) for row in started[:6]]
            report.screen += ["", Line(None, "start-up", f"{len(started)} facts", listed)]
        report.screen += [Line("warning", note) for note in report.notes if note.startswith("the draft")]
        report.next = context.command("check")


def compared(part: Part) -> list[Life]:
    """Return the lives to compare: the last of every file, or all lives of a single file."""
    known = [life for life in part.values() if life.server_args]
    files = {life.segment.file: life for life in known}
    return list(files.values()) if len(files) > 1 else known


def settings(life: Life) -> dict[str, Any]:
    """Return everything comparable of a life: its arguments, and what its start-up lines show beyond them.

    Keys that are no argument: ``requested_layers``, ``layers_to_capture``, ``num_hidden_layers``, ``hidden_size``
    (capture plan), ``spec_version``, ``target_type``, ``draft_type``, and likewise ``quant`` and ``dtype``,
    ``kv_tokens``, ``graphs_captured``.
    """
    out = dict(life.server_args)
    if life.plan is not None:
        out.update({name: life.plan[key] for key, name in _FROM_PLAN.items() if key in life.plan})
    if life.segment.spec_version is not None:
        out["spec_version"] = life.segment.spec_version
    for role, start in life.loads():
        for what in ("type", "quant", "dtype") if start.usable else ():
            if what in start.fields:
                out.setdefault(f"{role}_{what}", start.fields[what])
    tokens = [start.fields.get("tokens") for start in life.caches()]
    if known := [value for value in tokens if isinstance(value, int)]:
        out["kv_tokens"] = max(known)
    if graphs := life.graphs("graph_capture_"):
        out["graphs_captured"] = sorted(graphs)
    return out


def _hear(life: Life, start: Start) -> None:
    """Take one line."""
    if start.event == "capture_plan":
        life.plan = life.plan or start.fields
    if start.event == "capture_plan" and "source" not in start.fields:
        return
    if start.event == "server_args":
        life.args.append(start)
    elif start.event in _ENGINE:
        # What is in force tells more than what the user gave: the latter only adds what the former leaves out.
        said = {key: value for key, value in start.fields.items() if key != "speculative_config" and value is not None}
        nested = start.fields.get("speculative_config")
        if isinstance(nested, dict):
            said |= {"draft_model" if key == "model" else str(key): value for key, value in nested.items()}
        whole = start.event in ("engine_init", "engine_dump")
        life.engine = life.engine | said if whole else said | life.engine
        life.engine_line = life.engine_line or start.place.line
    elif start.event in ("ready", "startup_complete"):
        life.ready = _earlier(life.ready, start)
    elif len(life.starts) < _MOST:
        life.starts.append(start)
    else:
        life.left_out += 1


def _earlier(one: Start | None, other: Start | None) -> Start | None:
    """Return the first line that says that a server is ready; uvicorn's word counts where the server has none."""
    return next((start for start in (one, other) if start is not None and start.event == "ready"), one or other)


def _pairs(sides: list[Life]) -> tuple[Iterator[tuple[int, int]], int | None]:
    """Return the pairs to compare, and how many of many files are configured as most are.

    Lives of one file are compared in order, two files with each other, many with the set-up that most of them have.
    """
    if len(sides) == 2 or len({life.segment.file for life in sides}) == 1:
        return pairwise(range(len(sides))), None
    kinds = []
    for life in sides:
        told = {key: str(plain(value)) for key, value in settings(life).items() if group_of(key) != "harmless"}
        kinds.append(json.dumps(told, sort_keys=True))
    usual, alike = Counter(kinds).most_common(1)[0]
    return ((kinds.index(usual), at) for at, one in enumerate(kinds) if one != usual), alike


def _traps(life: Life) -> Iterator[str]:
    """Yield what does not fit between target and draft of one run, where that is known to cost acceptance."""
    known = settings(life)
    target, draft = (known.get(f"{role}_quant", NOT_PRINTED) for role in ("target", "draft"))
    loose = target is not NOT_PRINTED and not is_off(target) and draft is not NOT_PRINTED and is_off(draft)
    if loose and _SAME_CHECKPOINT.search(str(known.get("draft_type"))):
        yield (
            f"the draft of {life.place} is loaded without the quantization of its checkpoint: quant {draft} against "
            f"{target} of the target"
        )


def _worth_showing(key: str, args: dict[str, Any]) -> bool:
    """Tell whether an argument is shown without being asked for."""
    group = group_of(key)
    if group == "speculative":
        method = _OTHER_METHODS.fullmatch(key)
        return method is None or method[1] in str(args.get("speculative_algorithm", "")).lower()
    return group in SHOWN and not is_off(args[key])


def _headline(lives: list[Life]) -> str:
    if not lives:
        return "no line of the log says how the server was configured"
    if len(lives) == 1:
        return _summary(lives[0])
    said = "; ".join([*map(_summary, lives[:3]), *["..."] * (len(lives) > 3)])
    return f"{count(len(lives), 'run')}: {said}"


def _summary(life: Life) -> str:
    """Return the settings that decide most, in one phrase."""
    args, seconds = life.server_args, life.seconds_to_ready()
    if not args:
        return f"no server_args line (run {life.segment.number}); only start-up lines tell of the set-up"
    algorithm = args.get("speculative_algorithm") or args.get("method")
    parts = [str(algorithm) if algorithm else "no speculation"]
    if algorithm:
        parts += [words.format(args[key]) for key, words in _DECIDE.items() if args.get(key) is not None]
    for word, (key, longer) in _SIZES.items():
        size = args.get(key, args.get(longer))
        parts += [f"{word} {size}"] if isinstance(size, int) and size > 1 else []
    parts += ["CUDA graphs off"] if args.get("disable_cuda_graph") is True else []
    parts += [f"vLLM {args['version']}"] if life.engine and "version" in args else []
    return ", ".join([*parts, *([] if seconds is None else [f"ready after {seconds:.0f} s"])])


def _start_rows(life: Life) -> list[dict[str, Any]]:
    """Return what start-up adds, equal lines of several ranks in one row."""
    grouped: dict[tuple[str, str], list[Start]] = {}
    for role, start in life.loads():
        said, quant = start.fields, start.fields.get("quant")
        words = [str(said.get("type") or "type not printed"), f"quant {quant}" if quant not in (None, "None") else None]
        words.append(str(said["dtype"]) if "dtype" in said else None)
        grouped.setdefault((f"{role} loaded", ", ".join(filter(None, words))), []).append(start)
    pools: Counter[str] = Counter()
    for start in life.caches():
        label = str(start.fields.get("label", "")).lower()
        pools[start.process] += not label
        # Pools with a name are the target's, one beside the other (Full, SWA), but for the one named so.
        role = "draft" if label == "draft" or (not label and pools[start.process] > 1) else "target"
        what = f"KV cache of the {role}" + (f" ({label})" if label not in ("", "draft") else "")
        grouped.setdefault((what, _pool_words(start.fields)), []).append(start)
    for start in life.starts:
        if start.event == "capture_plan" and (layers := whole_numbers(start.fields.get("layers_to_capture"))):
            source = start.fields["source"]
            why = "a default: the draft's config names none" if source == "model" else f"from the {source}"
            grouped.setdefault(("captured layers", f"{', '.join(map(str, layers))} ({why})"), []).append(start)
    ended = life.graphs("graph_capture_end")
    begun = {name: starts for name, starts in life.graphs("graph_capture_begin").items() if name not in ended}
    grouped |= {("graph capture", name): starts for name, starts in ended.items()}
    grouped |= {("graph capture", f"{name}, begun and not ended"): starts for name, starts in begun.items()}
    rows = [_start_row(life, what, value, starts) for (what, value), starts in grouped.items()]
    if life.ready is not None:
        row = _start_row(life, "ready", life.ready.time or "time not printed", [life.ready])
        rows.append(row | {"seconds": life.seconds_to_ready()})
    return rows


def _start_row(life: Life, what: str, value: str, starts: list[Start]) -> dict[str, Any]:
    def most(key: str) -> Any:
        known = [start.fields.get(key) for start in starts]
        return max((number for number in known if isinstance(number, (int, float))), default=None)

    processes = and_list([start.process for start in starts if start.process])
    told = {"what": what, "value": value, "processes": processes, "seconds": most("elapsed")}
    return {**life.where, **told, "memory": most("mem_usage"), "line": starts[0].place.line}


def _pool_words(fields: dict[str, Any]) -> str:
    units = fields.get("units") or {}
    parts = [f"{fields['tokens']:,} tokens"] if isinstance(fields.get("tokens"), int) else []
    for key, name in (("kv_size", "KV"), ("k_size", "K"), ("v_size", "V")):
        if key in fields:
            parts.append(f"{name} {fields[key]} {units.get(key, '')}".strip())
    if "dtype" in fields:
        parts.append(str(fields["dtype"]))
    return ", ".join(parts) or "size not printed"


def _fact(life: Life) -> dict[str, Any]:
    """Return a life whole, as JSON holds it."""
    args = life.server_args
    return {
        **life.where,
        "line": life.segment.server_args_line or life.engine_line,
        "server_args": without_secrets(args),
        "derived": {key: value for key, value in settings(life).items() if key not in args},
        "seconds_to_ready": life.seconds_to_ready(),
        "ready_line": life.segment.ready_line,
        "complete": all(line.usable for line in life.args),
    }
