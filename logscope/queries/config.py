"""``logscope config``: what was really configured, what start-up adds to it, and what differs between two servers.

This module is responsible for collecting start-up lines per segment and for showing them. Whether they contradict each
other is for the rules of ``check`` to say; what an argument is about, and what differs, is known by arguments.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from logscope.model import ForwardPass, Place, Segment
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
from logscope.queries.clock import Clock, Moment, writer_label
from logscope.queries.tables import table, without_empty
from logscope.queries.words import and_list, count
from logscope.report import Column, Report
from logscope.versions import DRAFT_CLASS

if TYPE_CHECKING:
    from logscope.model import Payload, ServerEvent
    from logscope.report import Context, Item

__all__ = ["Config", "Difference", "differences", "settings"]

# Start-up lines of one life that are kept: eight ranks print some dozens.
_MOST = 1024
_STARTUP = frozenset(
    {"load_weight_begin", "load_weight_end", "kv_cache", "graph_capture_begin", "graph_capture_end", "ready"}
)
# Drafting by other methods: shown only where it is used, or asked for.
_OTHER_METHODS = re.compile(r"speculative_(ngram|dflash|lookahead)_.*")


@dataclass(slots=True)
class Start:
    """One start-up line: who printed it, where, when."""

    event: str
    process: str
    place: Place
    time: str | None
    moment: Moment | None
    payload: Payload


@dataclass(slots=True)
class Life:
    """What the lines of one segment say about its set-up."""

    segment: Segment
    starts: list[Start] = field(default_factory=list)
    # server_args lines, one for each node or actor of the same life: process, place, arguments
    args: list[tuple[str, Place, dict[str, Any]]] = field(default_factory=list)
    args_cut: bool = False
    plan: dict[str, Any] | None = None
    first: Moment | None = None
    ready: Start | None = None
    left_out: int = 0

    @property
    def place(self) -> Place:
        """Where its arguments stand, or else where it begins."""
        return Place(self.segment.file, self.segment.server_args_line or self.segment.line)

    def loads(self) -> list[tuple[str, Start]]:
        """Return every load with its role: the second of a process is the draft, the first the target."""
        seen: dict[str, int] = {}
        out = []
        for start in self.starts:
            if start.event == "load_weight_end":
                seen[start.process] = seen.get(start.process, 0) + 1
                name = str(start.payload.fields.get("type", ""))
                draft = seen[start.process] > 1 or DRAFT_CLASS.search(name) is not None
                out.append(("draft" if draft else "target", start))
        return out

    def seconds_to_ready(self) -> float | None:
        """Return the time from the first printed line to the ready line, None where a time is missing."""
        ready = self.ready.moment if self.ready is not None else None
        if ready is None or self.first is None or self.first.kind != ready.kind:
            return None
        return ready.seconds - self.first.seconds


class Config:
    """The fold behind ``logscope config``. ``every`` shows all arguments, also those that decide nothing here."""

    kind: ClassVar[str] = "config"

    def __init__(self, *, every: bool = False) -> None:
        self.every = every
        self.lives: dict[tuple[str, int], Life] = {}
        self._clocks: dict[str, Clock] = {}

    def see(self, item: Item) -> None:
        """Take one item."""
        if isinstance(item, Segment):
            self.lives[item.file, item.number] = Life(item)
            return
        life = self.lives.get((item.file, item.segment))
        if life is None:
            return
        if isinstance(item, ForwardPass):
            if life.plan is None:
                for record in item.records:
                    self._plan(life, record.payload)
            return
        self._server(life, item)

    def _plan(self, life: Life, payload: Payload) -> None:
        if payload.event == "capture_plan" and life.plan is None:
            life.plan = payload.fields

    def _server(self, life: Life, item: ServerEvent) -> None:
        payload, prefix = item.payload, item.prefix
        moment: Moment | None = None
        if life.ready is None:
            moment = self._clocks.setdefault(item.file, Clock()).read(prefix.time, item.line)
            if life.first is None:
                life.first = moment
        self._plan(life, payload)
        if payload.event == "server_args":
            life.args_cut = life.args_cut or not payload.usable
            if len(life.args) < _MOST:
                life.args.append((writer_label(prefix), item.place, payload.fields))
        elif payload.event in _STARTUP:
            start = Start(payload.event, writer_label(prefix), item.place, prefix.time, moment, payload)
            if payload.event == "ready":
                life.ready = life.ready or start
            elif len(life.starts) < _MOST:
                life.starts.append(start)
            else:
                life.left_out += 1

    # ---------------------------------------------------------------------------------------------------- the answer

    def report(self, context: Context) -> Report:
        """Answer."""
        lives = [life for life in self.lives.values() if life.segment.server_args or life.starts or life.plan]
        report = Report(self.kind, _headline(lives), accounting=context.accounting)
        report.notes.extend(context.warnings)
        if not lives:
            report.verdict = "unknown"
        sides = self.sides()
        if len(sides) > 1:
            self._differences(sides, report)
        self._arguments(lives, report)
        self._startup(lives, report)
        report.facts["runs"] = [_fact(life) for life in lives]
        return report

    def sides(self) -> list[Life]:
        """Return the lives to compare: the last of every file, or all lives of a single file."""
        known = [life for life in self.lives.values() if life.segment.server_args]
        files = {life.segment.file: life for life in known}
        return list(files.values()) if len(files) > 1 else known

    def _arguments(self, lives: list[Life], report: Report) -> None:
        rows = []
        hidden = 0
        for life in lives:
            args = life.segment.server_args
            for key in sorted(args, key=order_of):
                group, value = group_of(key), args[key]
                if self.every or _worth_showing(key, value, args):
                    rows.append(
                        {
                            "file": life.segment.file,
                            "segment": life.segment.number,
                            "group": group,
                            "argument": key,
                            "value": shown(key, value),
                        }
                    )
                else:
                    hidden += 1
            if args and life.args_cut:
                report.notes.append(
                    f"the server_args line at {life.place} is cut: only its complete arguments are known"
                )
            for process, place, other in life.args:
                if place.line == life.segment.server_args_line:
                    continue
                found = [difference for difference in differences(args, other) if difference.matters]
                same = "the same arguments" if not found else f"other arguments: {_names(found)}"
                report.notes.append(f"{process or 'another process'} prints {same} at {place}")
        # The speculative group first; where two lives are shown, life by life.
        rows.sort(key=lambda row: (row["file"], row["segment"], row["group"] != "speculative"))
        if rows:
            report.tables["arguments"] = table(
                [
                    Column("file"),
                    Column("segment", "run", "right"),
                    Column("group"),
                    Column("argument", always=True),
                    Column("value", always=True),
                ],
                rows,
                title="server arguments",
                optional=("file", "segment"),
            )
        if hidden:
            report.notes.append(
                f"{count(hidden, 'argument')} not shown: at a default or without influence here; --all shows them, "
                "JSON has all"
            )

    def _startup(self, lives: list[Life], report: Report) -> None:
        rows = [row for life in lives for row in _start_rows(life)]
        if rows:
            columns = [
                Column("file"),
                Column("segment", "run", "right"),
                Column("what", always=True),
                Column("value", always=True),
                Column("processes"),
                Column("seconds", align="right"),
                Column("memory", align="right", unit="GB"),
                Column("line", align="right"),
            ]
            report.tables["startup"] = table(
                without_empty(columns, rows), rows, title="what start-up adds", optional=("file", "segment")
            )
        for life in lives:
            if life.left_out:
                report.notes.append(f"{count(life.left_out, 'start-up line')} of {life.place} are not listed")

    def _differences(self, sides: list[Life], report: Report) -> None:
        rows = []
        different = unimportant = 0
        for one, other in pairwise(sides):
            found = differences(settings(one), settings(other))
            mattering = [difference for difference in found if difference.matters]
            different += len(mattering)
            names = f"{_side(one, sides)} and {_side(other, sides)}"
            if not mattering:
                report.notes.append(f"nothing that matters differs between {names}")
            for difference in found:
                if not difference.matters and not self.every and NOT_PRINTED in (difference.a, difference.b):
                    unimportant += 1
                    continue
                rows.append(
                    {
                        "a_where": str(one.place),
                        "b_where": str(other.place),
                        "argument": difference.key,
                        "group": difference.group,
                        "a": shown(difference.key, difference.a),
                        "b": shown(difference.key, difference.b),
                        "matters": difference.matters,
                        "reason": difference.reason,
                    }
                )
        report.facts["differences_that_matter"] = different
        if rows:
            report.tables["differences"] = table(
                [
                    Column("a_where", "A"),
                    Column("b_where", "B"),
                    Column("argument", always=True),
                    Column("a", f"A: {_side(sides[0], sides)}" if len(sides) == 2 else "A", always=True),
                    Column("b", f"B: {_side(sides[1], sides)}" if len(sides) == 2 else "B", always=True),
                    Column("matters"),
                    Column("reason", "why not"),
                ],
                rows,
                title="differences, what matters first",
                optional=("a_where", "b_where") if len(sides) == 2 else (),
            )
        if unimportant:
            report.notes.append(
                f"{count(unimportant, 'argument')} printed on one side only, off or of no interest there; "
                "--all lists them"
            )
        if len(sides) == 2:
            words = "nothing that matters differs" if not different else f"{count(different, 'difference')} that matter"
            words = "1 difference that matters" if different == 1 else words
            keys = [str(row["argument"]) for row in rows if row["matters"]][:6]
            named = f": {', '.join(keys)}" if keys else ""
            report.headline = f"{words} between {_side(sides[0], sides)} and {_side(sides[1], sides)}{named}"


def settings(life: Life) -> dict[str, Any]:
    """Return everything comparable of a life: its arguments, and what its start-up lines show beyond them.

    Keys that are no server argument: ``requested_layers``, ``layers_to_capture``, ``num_hidden_layers``,
    ``hidden_size`` (capture plan), ``spec_version``, ``target_type``, ``draft_type``, ``kv_tokens``,
    ``graphs_captured``.
    """
    out = dict(life.segment.server_args)
    if life.plan is not None:
        names = {"requested": "requested_layers", "layers_to_capture": "layers_to_capture"}
        names |= {"num_hidden_layers": "num_hidden_layers", "hidden_size": "hidden_size"}
        out.update({name: life.plan[key] for key, name in names.items() if key in life.plan})
    if life.segment.spec_version is not None:
        out["spec_version"] = life.segment.spec_version
    for role, start in life.loads():
        if start.payload.usable:
            out.setdefault(f"{role}_type", start.payload.fields.get("type"))
    tokens = [start.payload.fields.get("tokens") for start in life.starts if start.event == "kv_cache"]
    known = [value for value in tokens if isinstance(value, int)]
    if known:
        out["kv_tokens"] = max(known)
    graphs = {_graph_name(start) for start in life.starts if start.event.startswith("graph_capture")}
    if graphs:
        out["graphs_captured"] = sorted(graphs)
    return out


def _worth_showing(key: str, value: Any, args: dict[str, Any]) -> bool:
    """Tell whether an argument is shown without being asked for."""
    group = group_of(key)
    if group not in SHOWN:
        return False
    if group == "speculative":
        method = _OTHER_METHODS.fullmatch(key)
        used = str(args.get("speculative_algorithm", "")).lower()
        return method is None or method[1] in used
    return not is_off(value)


def _headline(lives: list[Life]) -> str:
    if not lives:
        return "no line of the log says how the server was configured"
    if len(lives) > 1:
        return f"{count(len(lives), 'run')}: {'; '.join(_summary(life) for life in lives[:3])}" + (
            "; ..." if len(lives) > 3 else ""
        )
    return _summary(lives[0])


def _summary(life: Life) -> str:
    """Return the settings that decide most, in one phrase."""
    args = life.segment.server_args
    if not args:
        return f"no server_args line (run {life.segment.number}); only start-up lines tell of the set-up"
    algorithm = args.get("speculative_algorithm")
    parts = [str(algorithm) if algorithm else "no speculation"]
    for key, words in (
        ("speculative_num_steps", "{} steps"),
        ("speculative_eagle_topk", "topk {}"),
        ("speculative_num_draft_tokens", "{} draft tokens"),
    ):
        if algorithm and args.get(key) is not None:
            parts.append(words.format(args[key]))
    for key, word in (("tp_size", "TP"), ("dp_size", "DP"), ("pp_size", "PP")):
        if isinstance(args.get(key), int) and args[key] > 1:
            parts.append(f"{word} {args[key]}")
    if args.get("disable_cuda_graph") is True:
        parts.append("CUDA graphs off")
    seconds = life.seconds_to_ready()
    if seconds is not None:
        parts.append(f"ready after {seconds:.0f} s")
    return ", ".join(parts)


def _start_rows(life: Life) -> list[dict[str, Any]]:
    """Return what start-up adds, equal lines of several ranks in one row."""
    grouped: dict[tuple[str, str], list[Start]] = {}
    for role, start in life.loads():
        fields = start.payload.fields
        name = str(fields.get("type") or "type not printed")
        quant = fields.get("quant")
        extra = [f"quant {quant}"] if quant not in (None, "None") else []
        extra += [str(fields["dtype"])] if "dtype" in fields else []
        grouped.setdefault((f"{role} loaded", ", ".join([name, *extra])), []).append(start)
    pools: dict[str, int] = {}
    for start in life.starts:
        if start.event == "kv_cache":
            label = str(start.payload.fields.get("label", "")).lower()
            if not label:
                pools[start.process] = pools.get(start.process, 0) + 1
            # Pools with a name are the target's, one beside the other (Full, SWA), but for the one named so.
            role = "draft" if label == "draft" or (not label and pools[start.process] > 1) else "target"
            what = f"KV cache of the {role}" + (f" ({label})" if label not in ("", "draft") else "")
            grouped.setdefault((what, _pool_words(start.payload.fields)), []).append(start)
        elif start.event == "graph_capture_end":
            grouped.setdefault(("graph capture", _graph_name(start)), []).append(start)
    ended = {value for what, value in grouped if what == "graph capture"}
    for start in life.starts:
        if start.event == "graph_capture_begin" and _graph_name(start) not in ended:
            key = ("graph capture", f"{_graph_name(start)}, begun and not ended")
            grouped.setdefault(key, []).append(start)
    rows = [_start_row(life, what, value, starts) for (what, value), starts in grouped.items()]
    if life.ready is not None:
        seconds = life.seconds_to_ready()
        row = _start_row(life, "ready", life.ready.time or "time not printed", [life.ready])
        rows.append(row | {"seconds": seconds})
    return rows


def _start_row(life: Life, what: str, value: str, starts: list[Start]) -> dict[str, Any]:
    def most(key: str) -> Any:
        known = [start.payload.fields.get(key) for start in starts]
        numbers = [number for number in known if isinstance(number, (int, float))]
        return max(numbers) if numbers else None

    return {
        "file": life.segment.file,
        "segment": life.segment.number,
        "what": what,
        "value": value,
        "processes": and_list([start.process for start in starts if start.process]),
        "seconds": most("elapsed"),
        "memory": most("mem_usage"),
        "line": starts[0].place.line,
    }


def _pool_words(fields: dict[str, Any]) -> str:
    units = fields.get("units") or {}
    parts = [f"{fields['tokens']:,} tokens"] if isinstance(fields.get("tokens"), int) else []
    for key, name in (("kv_size", "KV"), ("k_size", "K"), ("v_size", "V")):
        if key in fields:
            parts.append(f"{name} {fields[key]} {units.get(key, '')}".strip())
    if "dtype" in fields:
        parts.append(str(fields["dtype"]))
    return ", ".join(parts) or "size not printed"


def _graph_name(start: Start) -> str:
    what = str(start.payload.fields.get("what", "")).strip()
    return what or "target"


def _side(life: Life, sides: list[Life]) -> str:
    """Return the shortest name that tells a side from the others."""
    if len({one.segment.file for one in sides}) == len(sides):
        return life.segment.file
    return f"run {life.segment.number} (line {life.place.line})"


def _names(found: list[Difference]) -> str:
    return ", ".join(difference.key for difference in found[:8]) + (", ..." if len(found) > 8 else "")


def _fact(life: Life) -> dict[str, Any]:
    """Return a life whole, as JSON holds it."""
    extra = {key: value for key, value in settings(life).items() if key not in life.segment.server_args}
    return {
        "file": life.segment.file,
        "segment": life.segment.number,
        "line": life.segment.server_args_line,
        "server_args": without_secrets(life.segment.server_args),
        "derived": extra,
        "seconds_to_ready": life.seconds_to_ready(),
        "ready_line": life.segment.ready_line,
        "complete": not life.args_cut,
    }
