"""``logscope errors``: what failed first and where, what only followed from it, and the last sign of life of a process.

This module is responsible for gathering exceptions, aborts, size errors, timeouts and endings, for grouping equal
ones, and for putting what only follows under its origin. What sizes mean is known by sizes.py. It must not claim which
process an unmarked line belongs to.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import polars as pl

from logscope.model import Finding, Place
from logscope.queries.clock import Clock, Moment, writers
from logscope.queries.sizes import SIZE_EVENTS, SizeReading, explain_count, explain_sizes
from logscope.queries.tables import add
from logscope.queries.words import and_list, axes, count, source_name
from logscope.report import Column, Line, Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logscope.report import Context
    from logscope.tables.tables import Tables

# What waited for somebody else, and may still be the cause where nothing stands before it.
_TIMEOUTS = {
    "watchdog_timeout": "watchdog timeout after {seconds} s without a forward",
    "collective_timeout": "a collective operation timed out: {work}",
    "health_check_failed": "the health check failed: no answer from the detokenizer for {seconds} s",
    "hang_detected": "hang detected on rank {rank}",
    "lost_heartbeat": "a heartbeat is missing",
}
# What says that a child is gone: no error of its own where one stands before it.
_CHILD = {
    "sigquit": "sigquit: a child process failed",
    "child_crashed": "the process {name} (pid {child_pid}) crashed with exit code {exit_code}",
    "child_exit": "{process} (pid {pid}) ended",
    "process_died": "{process} died unexpectedly",
    "closing_signal": "process {pid} is sent {signal}",
}
# Ends without a Python exception line. One process prints several of them within a few lines: the first counts.
_ABORTS = {
    "process_group_abort": "{message}", "device_assert": "device-side assert: {condition}",
    "cpp_terminate": "terminate called", "assertion_failed": "Assertion `{condition}' failed",
    "fatal_python_error": "Fatal Python error: {message}", "fatal_signal": "fatal signal: {signal}",
    "out_of_memory": "out of memory: tried to allocate {tried} {unit}", "cuda_error": "{backend} error: {message}",
    "ggml_abort": "{message}", "draft_refused": "the draft model is refused: {reason}",
    "oom_kill": "the OOM killer of the kernel killed process {pid} ({process})",
}  # fmt: skip
# What only tells more of the error before it.
_DETAILS = ("raised_from", "cuda_error_place", "thread_dump", "pyspy_dump", "cpp_what")
# Headlines of an error that follows, with its traceback.
_HEADERS = {"process_failed": "{process} {what}", "graph_capture_failed": "{message}"}
_OTHERS = ("traceback", "http_access", "shutdown", "probe_failed", "capture_plan", "fc", "aux_concat")
_WARNINGS = {"nan_logits_warning": "NaN in the logits", "invalid_tree_warning": "invalid draft tree"}
_HEARD = (*_TIMEOUTS, *_CHILD, *_ABORTS, *_DETAILS, *_HEADERS, *_OTHERS, *_WARNINGS, *SIZE_EVENTS)
# Lines that a serving process prints again and again.
_REGULAR = ("decode_stats", "prefill_stats", "engine_stats", "spec_metrics")
# How many events of a process are remembered, and shown before its first error.
_REMEMBERED = 6
# Bounds on a log that does nothing but fail; what they leave out is counted.
_MOST_GROUPS, _MOST_PLACES, _MOST_RELAYED, _MOST_HEARD, _MOST_BEFORE = 500, 20, 200, 4096, 50
# An error that follows from another comes within minutes; a watchdog waits longer.
_SOON = 900.0
# A lost connection may be printed so many seconds before the error of the process that died.
_MOMENT = 60.0
# Lines within which one process prints the several parts of one end; a shut-down and what it ends.
_NEAR, _ENDING = 60, 120.0
# A process fell silent: so many seconds, and so many of its usual intervals, before others printed their last.
_SILENT, _INTERVALS, _FEWEST = 60.0, 5.0, 3

# What says of itself that the cause is elsewhere.
_POINTS_ELSEWHERE = re.compile(r"stack trace|root cause|see (?:the )?(?:log|error|above)", re.IGNORECASE)
_DEAD = re.compile(
    r"(?:Dead|Died|Exited|Crashed|RaisedException|ActorUnavailable|BrokenProcessPool)\w*$", re.IGNORECASE
)
_BROKEN = re.compile(
    r"(?:^|\.)(?:EOFError|BrokenPipeError|ConnectionResetError|ConnectionRefusedError|ConnectionError)$"
)
# The same in the words of Gloo and NCCL, whose exceptions have general names.
_GONE = re.compile(r"connection (?:closed|reset) by peer|remote process exited|communicator was aborted", re.IGNORECASE)
_LOST = "lost its connection to another process"
# Frames in which weights are loaded: sizes there are of weights.
_LOADS = re.compile(r"load_weights|weight_loader|load_model|_loader\.py")
# An answer of a server that failed, before it is read: there are thousands of others.
_FAILED = re.compile(rb'" 5\d\d\b')
_DIGITS = re.compile(r"0x[0-9a-fA-F]+|\d+")
_SIGNALS = {-2: "SIGINT", -6: "SIGABRT", -9: "SIGKILL: the OOM killer, or a person", -11: "SIGSEGV", -15: "SIGTERM"}
# Messages of SGLang's own that do not say what to do.
_HINTS: dict[str, str] = {
    r"captured \d+ of \d+ aux hidden states": "compare eagle_aux_hidden_state_layer_ids with the target's depth: an id"
    " equal to the number of layers, or one that stands twice, is never captured (H105)",
    r"does not implement set_eagle3_layers_to_capture": "this SGLang cannot capture hidden states of that class: take"
    " one that can, or a target of another class",
    r"--return-aux-hidden-state-layer-ids names": "one of the layers named there cannot be captured, mostly the last:"
    " ids count decoder layers from 0",
    r"aux hidden output buffer is .*, captures need": "states of another shape were captured than those before them in"
    " this pass: look at what a patch captures",
    r"exceeds the fixed CUDA graph capture mode": "a request asks for more hidden states than the graphs were captured"
    " with: set --return-hidden-states-mode, or start with --disable-cuda-graph",
    r"Missing DP spec/prefill coordination metadata": "a rank that prefills shared a pass with one that verifies"
    " and was not told so: leave SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION off",
}


class Heard(NamedTuple):
    """A line about an error or an end, as it was printed; ``before``: the last events of its process."""

    life: tuple[str, int]
    line: int
    time: str | None
    process: str
    during: str
    event: str
    fields: dict[str, Any]
    before: list[dict[str, Any]]


@dataclass(slots=True)
class Failure:
    """One error of one process.

    place
        where its own line stands: of a traceback the exception's line where it is known, else where it opens.
    opened
        where its traceback opens.
    process
        as the prefix names it; empty when lines carry no mark.
    """

    place: Place
    opened: Place
    process: str
    time: str | None
    moment: Moment | None
    event: str
    during: str
    exception: str | None
    message: str | None
    last_frame: str | None = None
    quoted: bool = False
    interleaved: bool = False
    before: list[dict[str, Any]] = field(default_factory=list)

    @property
    def what(self) -> str:
        """The exception and its message in one line."""
        if self.exception is None:
            return self.message or "a traceback without its exception line"
        return f"{self.exception}: {self.message}" if self.message else self.exception


@dataclass(slots=True)
class Group:
    """Equal errors of one server life: the first, the others by process, and what only followed from it.

    last, end
        the last of them, and the last line of the same end (a dump behind an abort).
    again
        where the same error was raised anew while it was handled.
    passed_on
        True when it says itself that the cause is elsewhere, and nothing earlier in the log is that cause.
    lost
        True when it says that a connection was lost, or a process killed: the cause may be printed a moment later.
    """

    first: Failure
    segment: int
    last: Failure
    end: int = 0
    reading: SizeReading | None = None
    sizes: tuple[str, dict[str, Any]] | None = None
    count: int = 0
    processes: dict[str, int] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)
    again: list[Place] = field(default_factory=list)
    relayed: list[tuple[Failure, str]] = field(default_factory=list)
    relayed_count: int = 0
    passed_on: bool = False
    lost: bool = False

    def add(self, failure: Failure) -> None:
        """Take one more of the same."""
        self.count += 1
        self.last, self.end = failure, failure.opened.line
        self.processes[failure.process] = self.processes.get(failure.process, 0) + 1
        if len(self.places) < _MOST_PLACES:
            self.places.append(failure.place)

    def relay(self, failure: Failure, why: str) -> None:
        """Take an error that follows from this one."""
        self.relayed_count += 1
        if len(self.relayed) < _MOST_RELAYED:
            self.relayed.append((failure, why))


@dataclass(slots=True)
class Life:
    """What is known of one server life: its hidden size and joined widths, its capture plan, its groups of errors."""

    hidden: int | None = None
    hidden_from: str | None = None
    delivered: dict[int, Place] = field(default_factory=dict)
    plan: tuple[Place, dict[str, Any]] | None = None
    groups: dict[Any, Group] = field(default_factory=dict)
    # exception lines that a traceback points to, and lines at which tracebacks of a group open
    claimed: dict[int, Group | None] = field(default_factory=dict)
    opened: dict[int, Group] = field(default_factory=dict)
    headers: list[Heard] = field(default_factory=list)
    # when, and where, it was told to end
    ending: tuple[Place, Moment | None] | None = None
    ended: int = 0
    alone: Place | None = None
    left_out: int = 0

    def learn(self, other: Life) -> None:
        """Take what a later part knows of sizes, the best evidence first."""
        better = (
            other.hidden_from is not None and "plan" in other.hidden_from and "plan" not in (self.hidden_from or "")
        )
        if self.hidden is None or (better and self.plan is None):
            self.hidden, self.hidden_from = other.hidden, other.hidden_from
        self.plan = self.plan or other.plan
        for width, place in other.delivered.items():
            if len(self.delivered) < _MOST_PLACES:
                self.delivered.setdefault(width, place)


@dataclass(slots=True)
class Sign:
    """The signs of life of one process: the last one, and those that it prints again and again."""

    line: int = 0
    time: str | None = None
    regular: int = 0
    first: str | None = None
    last: str | None = None

    def merge(self, other: Sign) -> None:
        """Take later ones."""
        if other.line >= self.line:
            self.line, self.time = other.line, other.time or self.time
        self.first = self.first or other.first
        self.last = other.last or self.last
        self.regular += other.regular


@dataclass(slots=True)
class Silence:
    """A process that printed nothing more while others went on: its last line, and for how long."""

    process: str
    place: Place
    time: str | None
    seconds: float


@dataclass(slots=True)
class Part:
    """What some batches say of errors. ``lives`` hold the groups of what was folded, ``heard`` the rest, in order."""

    lives: dict[tuple[str, int], Life] = field(default_factory=dict)
    heard: list[Heard] = field(default_factory=list)
    recent: dict[tuple[str, int, str], list[dict[str, Any]]] = field(default_factory=dict)
    signs: dict[tuple[str, int, str], Sign] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)
    warned: Counter[str] = field(default_factory=Counter)
    first_warned: dict[str, Place] = field(default_factory=dict)
    looked: int = 0

    def merge(self, other: Part) -> None:
        """Add a later part."""
        for key, life in other.lives.items():
            self.lives.setdefault(key, Life()).learn(life)
        for heard in other.heard:
            known = [one for name in {heard.process, ""} for one in self.recent.get((*heard.life, name), ())]
            before = (
                sorted([*known, *heard.before], key=lambda one: one["line"])[-_REMEMBERED:] if known else heard.before
            )
            self.heard.append(heard._replace(before=before))
        for where, events in other.recent.items():
            self.recent[where] = [*self.recent.get(where, []), *events][-_REMEMBERED:]
        for where, sign in other.signs.items():
            self.signs.setdefault(where, Sign()).merge(sign)
        self.warned.update(other.warned)
        self.first_warned = other.first_warned | self.first_warned
        self.looked += other.looked
        if len(self.heard) > _MOST_HEARD:
            self.fold()

    def fold(self) -> None:
        """Group what was heard."""
        for heard in self.heard:
            _take(self, heard)
        self.heard = []


class Errors:
    """The question behind ``logscope errors``; the rules ask :func:`groups` and :func:`silences` of its parts."""

    kind: ClassVar[str] = "errors"

    def partial(self, tables: Tables) -> Part:
        """Return what a batch says of errors."""
        return _gather(tables)

    def combine(self, parts: Sequence[Part]) -> Part:
        """Add parts up, in order."""
        whole = Part()
        for number, part in enumerate(parts):
            if number == 0 and any(life.groups for life in part.lives.values()):
                whole = copy.deepcopy(part)
            else:
                whole.merge(part)
        return whole

    def report(self, part: Part, context: Context) -> Report:
        """Answer."""
        part = copy.deepcopy(part)
        found = groups(part)
        report = Report(self.kind, _headline(found), accounting=context.accounting)
        report.notes.extend(context.warnings)
        _errors(found, part, report)
        _remarks(found, part, report)
        report.facts["errors"] = [_fact(group) for group in found]
        report.facts["last_signs"] = [
            {"file": file, "segment": segment, "process": name or None, "line": sign.line, "time": sign.time}
            for (file, segment, name), sign in part.signs.items()
        ]
        if found:
            report.verdict = "findings"
        _screen(found, part, report, context)
        return report


def groups(part: Part) -> list[Group]:
    """Return every group of equal errors, the earliest first, sizes read. Folds what the part has heard.

    The order is that of the file; of several files it is that of their times, where all are dated.
    """
    part.fold()
    found = []
    for key, life in part.lives.items():
        for heard in [] if life.groups else life.headers[:1]:
            _enter(part, life, heard._replace(event="header"), None)
        for group in life.groups.values():
            first = group.first
            if group.sizes is not None and group.reading is None:
                group.reading = explain_sizes(
                    *group.sizes,
                    hidden=life.hidden,
                    hidden_from=life.hidden_from,
                    delivered=life.delivered,
                    loading=bool(_LOADS.search(first.last_frame or "")),
                )
            elif group.reading is None and first.message:
                group.reading = explain_count(first.message)
            found.append(group)
        del key
    several = len({group.first.place.file for group in found}) > 1
    if several and all(group.first.moment is not None and group.first.moment.kind == "dated" for group in found):
        found.sort(key=lambda group: group.first.moment.seconds if group.first.moment else 0.0)
    return found


def silences(part: Part) -> list[Silence]:
    """Return the processes that fell silent while others of their log went on, the longest silence first."""
    clock, out = Clock(), []
    ends: dict[tuple[str, int], Moment] = {}
    moments = {where: clock.read(sign.time, sign.line) for where, sign in part.signs.items()}
    for where, moment in moments.items():
        if moment is not None and (where[:2] not in ends or moment > ends[where[:2]]):
            ends[where[:2]] = moment
    for where, sign in part.signs.items():
        end, own = ends.get(where[:2]), moments[where]
        first, last = clock.read(sign.first, 0), clock.read(sign.last, 0)
        if sign.regular < _FEWEST or None in (end, own, first, last) or end.kind != own.kind:  # type: ignore[union-attr]
            continue
        usual = (last.seconds - first.seconds) / (sign.regular - 1)  # type: ignore[union-attr]
        seconds = end.seconds - own.seconds  # type: ignore[union-attr]
        if seconds > max(_SILENT, _INTERVALS * usual):
            out.append(Silence(where[2], Place(where[0], sign.line), sign.time, seconds))
    return sorted(out, key=lambda one: -one.seconds)


# ---------------------------------------------------------------------------------------------------------- gathering


def _gather(tables: Tables) -> Part:
    part = Part(lives={(one.file, one.number): Life() for one in tables.segments})
    part.looked = tables.server.height + tables.passes.height
    server = tables.server.with_row_index("row")
    labels = _signs(tables, part)
    _learn(tables, part)
    heard = server.filter((pl.col("kind") == "event") & pl.col("event").is_in(list(_HEARD)))
    seen: set[Any] = set()
    for row, said, file, segment, line, prefix, during, event in heard.select(
        "row", "said", "file", "segment", "line", "prefix", "during", "event"
    ).iter_rows():
        place = Place(tables.files[file], line)
        text = tables.said[said]
        if event == "http_access" and isinstance(text, bytes) and _FAILED.search(text) is None:
            continue
        payload = tables.saying(said)
        fields = payload.fields
        if event in _WARNINGS:
            part.warned[event] += 1
            part.first_warned.setdefault(event, place)
            continue
        if event in ("capture_plan", "fc", "aux_concat"):
            if payload.usable:
                _size(part.lives.setdefault((place.file, segment), Life()), event, fields, payload.width, place)
            continue
        status = fields.get("status")
        if event == "http_access" and not (isinstance(status, int) and status >= 500):
            continue
        process = labels[prefix]
        kind = (event, fields.get("exception"), _DIGITS.sub("N", str(fields.get("message")))[:300], process)
        before = []
        if kind not in seen and len(seen) < _MOST_BEFORE and event not in _DETAILS:
            before = _before(tables, labels, row, place, segment, process, part)
        seen.add(kind)
        time = tables.prefixes[prefix].time
        part.heard.append(Heard((place.file, segment), line, time, process, during, event, fields, before))
    _recent(tables, labels, part)
    return part


def _signs(tables: Tables, part: Part) -> dict[int, str]:
    """Note the last sign of life of every process; return the process of every prefix."""
    regular = pl.col("event").is_in(list(_REGULAR))
    printed = tables.prints.select(
        "prefix",
        "line",
        file=tables.records["file"].gather(tables.prints["record"]),
        segment=tables.records["segment"].gather(tables.prints["record"]),
        often=pl.lit(False),
    )
    rows = pl.concat(
        [tables.server.select("prefix", "line", "file", "segment", often=regular.fill_null(False)), printed]
    )
    named = writers(tables, rows["prefix"])
    ends = rows.join(named, on="prefix").sort("line").group_by("file", "segment", "origin", maintain_order=True)
    timed = pl.col("time").filter("often").drop_nulls()
    for file, segment, name, *sign in ends.agg(
        pl.col("line").last(),
        pl.col("time").drop_nulls().last(),
        pl.col("often").sum(),
        first=timed.first(),
        last=timed.last(),
    ).iter_rows():
        part.signs[tables.files[file], segment, name] = Sign(*sign)
    return dict(zip(named["prefix"], named["origin"], strict=True))


def _learn(tables: Tables, part: Part) -> None:
    """Learn the hidden size, and what was joined, of every life."""
    told = tables.records.filter(
        pl.col("usable") & pl.col("event").is_in(["embed_capture", "layer_capture", "aux_concat", "fc", "capture_plan"])
    ).unique(["file", "segment", "event", "width"], keep="first", maintain_order=True)
    for file, segment, event, width, line, head in told.select(
        "file", "segment", "event", "width", "line", "head"
    ).iter_rows():
        life = part.lives.setdefault((tables.files[file], segment), Life())
        _size(life, event, tables.heads[head].fields, width, Place(tables.files[file], line))


def _size(life: Life, event: str, fields: dict[str, Any], width: int | None, place: Place) -> None:
    """Learn from one record, the best evidence first."""
    if event == "capture_plan":
        life.plan = life.plan or (place, fields)
        size = fields.get("hidden_size")
        if life.plan[0] == place and isinstance(size, int) and size > 0:
            life.hidden, life.hidden_from = size, f"hidden_size of the capture plan at {place}"
    elif event in ("embed_capture", "layer_capture") and width and life.hidden is None:
        life.hidden, life.hidden_from = width, f"the width of the hidden capture at {place}"
    elif event == "fc":
        weight = fields.get("weight")
        if life.hidden is None and isinstance(weight, list) and len(weight) == 2 and isinstance(weight[0], int):
            life.hidden, life.hidden_from = weight[0], f"what the fc weight at {place} gives"
    elif event == "aux_concat" and width and len(life.delivered) < _MOST_PLACES:
        life.delivered.setdefault(width, place)


def _before(
    tables: Tables, labels: dict[int, str], row: int, place: Place, segment: int, process: str, part: Part
) -> list[dict[str, Any]]:
    """Return the last events of a process before a server row, and those of unmarked lines, which may be anybody's."""
    mine = {process, ""}
    hidden = part.lives[place.file, segment].hidden if (place.file, segment) in part.lives else None
    out: list[dict[str, Any]] = []
    for at in range(row - 1, max(row - 400, -1), -1):
        line, prefix, life, event = tables.server.select("line", "prefix", "segment", "event").row(at)
        if len(out) == _REMEMBERED or life != segment:
            break
        if labels[prefix] in mine and event not in _QUIET and line < place.line:
            out.append({"line": line, "process": labels[prefix] or "no mark", "event": _brief(tables, at, hidden)})
    passes = tables.passes.with_row_index("row").filter((pl.col("segment") == segment) & (pl.col("line") < place.line))
    for at in passes.tail(40)["row"].to_list():
        name = source_name(tables.groups[tables.passes.item(at, "group")])
        if name in mine:
            line = tables.passes.item(at, "line")
            out.append({"line": line, "process": name or "no mark", "event": _pass_words(tables, at, hidden)})
    return sorted(out, key=lambda one: one["line"])[-_REMEMBERED:]


# What is told elsewhere, or as an error itself.
_QUIET = frozenset({"traceback", *SIZE_EVENTS, *_TIMEOUTS, *_CHILD, *_ABORTS, *_DETAILS})


def _recent(tables: Tables, labels: dict[int, str], part: Part) -> None:
    """Remember the last events of every process at the end of a batch, for an error at the beginning of the next."""
    tail = tables.server.with_row_index("row").tail(64).filter(~pl.col("event").is_in(list(_QUIET)))
    events: list[tuple[tuple[str, int, str], dict[str, Any]]] = []
    for row, file, segment, line, prefix in tail.select("row", "file", "segment", "line", "prefix").iter_rows():
        name = labels[prefix]
        known = part.lives.get((tables.files[file], segment))
        brief = _brief(tables, row, known.hidden if known else None)
        events.append(
            ((tables.files[file], segment, name), {"line": line, "process": name or "no mark", "event": brief})
        )
    for at in range(max(0, tables.passes.height - 16), tables.passes.height):
        file, segment, line, group = tables.passes.select("file", "segment", "line", "group").row(at)
        name = source_name(tables.groups[group])
        known = part.lives.get((tables.files[file], segment))
        words = _pass_words(tables, at, known.hidden if known else None)
        events.append(
            ((tables.files[file], segment, name), {"line": line, "process": name or "no mark", "event": words})
        )
    for where, event in sorted(events, key=lambda one: one[1]["line"]):
        part.recent[where] = [*part.recent.get(where, []), event][-_REMEMBERED:]


def _pass_words(tables: Tables, at: int, hidden: int | None) -> str:
    role, phase, rows, captures, join = tables.passes.select("role", "phase", "rows", "captures", "join").row(at)
    parts = [f"{role} pass, {phase}"]
    if rows is not None:
        parts.append(count(rows, "row"))
    if captures:
        parts.append(count(captures, "hidden capture"))
    if join is not None:
        shape = [one for one in tables.records.select("rows", "width").row(join) if one is not None]
        if shape:
            parts.append(f"joined {axes(shape, hidden)}")
    return ", ".join(parts)


_NAMED = (
    ("new_token", "new tokens"), ("running_req", "running"), ("accept_len", "accept len"), ("type", "type"),
    ("what", "of"), ("requested", "requested layers"), ("layers_to_capture", "layers to capture"), ("path", "path"),
    ("status", "status"), ("weight", "weight"), ("input", "input"),
)  # fmt: skip


def _brief(tables: Tables, row: int, hidden: int | None) -> str:
    """Return a server row in a few words."""
    payload = tables.payload(row)
    text = payload.event.replace("_", " ")
    if payload.shape is not None:
        text += f" {axes(payload.shape, hidden)}"
    fields = payload.fields
    named = [f"{name} {fields[key]}" for key, name in _NAMED if fields.get(key) not in (None, "")]
    return text + (": " + ", ".join(named) if named else "")


# ------------------------------------------------------------------------------------------------------------ folding


def _take(part: Part, heard: Heard) -> None:
    """Put one line where it belongs: an error of its own, more of one, what follows from one, or an end on demand."""
    life = part.lives.setdefault(heard.life, Life())
    event, fields = heard.event, heard.fields
    if event in SIZE_EVENTS and heard.line in life.claimed:
        # The exception line of a traceback that was counted: it only brings the numbers.
        claimed = life.claimed.pop(heard.line)
        if claimed is not None and claimed.sizes is None:
            claimed.sizes = (event, fields)
        return
    moment = _clock(part, heard).read(heard.time, heard.line)
    if event == "shutdown":
        wanted = (
            fields.get("signal")
            or fields.get("number")
            or fields.get("step") in ("Shutdown initiated", "Gracefully exiting")
        )
        if wanted and not life.groups and life.ending is None:
            life.ending = (Place(heard.life[0], heard.line), moment)
        return
    if event in _HEADERS:
        life.headers = [*life.headers[-8:], heard]
        return
    near = next((group for group in reversed(life.groups.values()) if 0 <= heard.line - group.end <= _NEAR), None)
    near = near if near is not None and _same_writer(heard.process, near) else None
    if event in _DETAILS:
        if near is not None:
            _detail(near, heard)
        return
    if life.ending is not None and _of_the_end(life.ending, heard, moment):
        life.ended += 1
        return
    if (
        near is not None
        and event in _ABORTS
        and event != "oom_kill"
        and near.first.event in {*_ABORTS, *_TIMEOUTS, "traceback"}
        and not _alike(near, heard)
    ):
        # One end of one process, told again by whoever notices it next.
        near.end = heard.line
        near.first.last_frame = near.first.last_frame or _text(fields.get("place")) or _text(fields.get("top_frame"))
        return
    chained = fields.get("chained")
    group = life.opened.get(chained) if isinstance(chained, int) else None
    if group is not None:
        failure = _failure(part, heard)
        group.end = heard.line
        life.opened[heard.line] = group
        life.claimed.update(dict.fromkeys(_pointed(failure), group))
        if _key(failure) == _key(group.first):
            group.add(failure)
        else:
            group.again.append(failure.opened)
        return
    _enter(part, life, heard, moment)


def _clock(part: Part, heard: Heard) -> Clock:
    return part.clocks.setdefault(heard.life[0], Clock())


def _enter(part: Part, life: Life, heard: Heard, moment: Moment | None) -> None:
    """Group a failure, under its origin where it only follows from one."""
    failure = _failure(part, heard)
    failure.moment = failure.moment or moment
    why = _relayed(failure, heard.fields)
    origin = _origin(life, failure) if why is not None else None
    if origin is not None and why is not None:
        origin.relay(failure, why)
        life.claimed.update(dict.fromkeys(_pointed(failure)))
        return
    if failure.event in ("http_access", "closing_signal") or (
        failure.event == "probe_failed" and heard.fields.get("probe") != "Liveness"
    ):
        # Without an error before it, an answer of 503 is a server that is not ready yet.
        return
    if failure.event == "process_died" and heard.fields.get("follows") == "client":
        # Offline scripts end so: alone it is no proof of a crash.
        life.alone = life.alone or failure.place
        return
    key = _key(failure)
    group = life.groups.get(key)
    if group is None:
        if len(life.groups) >= _MOST_GROUPS:
            life.left_out += 1
            return
        killed = failure.event in ("process_died", "child_exit", "child_crashed") and failure.event != "oom_kill"
        itself = failure.event in _TIMEOUTS or killed or why == _LOST or failure.event == "probe_failed"
        group = Group(
            failure, heard.life[1], failure, passed_on=why is not None and not itself, lost=why == _LOST or killed
        )
        if why is None or failure.event == "oom_kill":
            _take_lost(life, group)
        life.groups[key] = group
    group.add(failure)
    life.opened[failure.opened.line] = group
    life.headers = [one for one in life.headers if one.process != failure.process]
    if failure.event in SIZE_EVENTS:
        group.sizes = (failure.event, heard.fields)
    life.claimed.update(dict.fromkeys(_pointed(failure), group))


def _same_writer(process: str, group: Group) -> bool:
    """Tell whether a line may be of the process of an error: unmarked lines may be anybody's."""
    return not process or not group.last.process or process == group.last.process


def _alike(group: Group, heard: Heard) -> bool:
    """Tell whether an abort is one more of the same, as thousands of threads print it."""
    return group.first.event == heard.event and heard.event == "device_assert"


def _detail(group: Group, heard: Heard) -> None:
    """Take what only tells more of an error: a message, a place, the top frame of a dump."""
    group.end, first = heard.line, group.first
    said = heard.fields
    if heard.event == "cpp_what" and first.event == "cpp_terminate":
        first.message = _text(said.get("message"))
    frame = _text(said.get("top_frame"))
    if heard.event == "cuda_error_place":
        frame = f"{said.get('place')} in {said.get('function')}"
    if frame is None and heard.event == "raised_from":
        frame = f"{said.get('place')} in {said.get('function')}"
    first.last_frame = first.last_frame or frame


def _of_the_end(ending: tuple[Place, Moment | None], heard: Heard, moment: Moment | None) -> bool:
    """Tell whether a line only says that what was told to end did."""
    then = ending[1]
    if (
        moment is not None
        and then is not None
        and (moment.kind != then.kind or moment.seconds - then.seconds > _ENDING)
    ):
        return False
    code = heard.fields.get("exit_code")
    exception = str(heard.fields.get("exception") or "")
    return (
        heard.event in ("sigquit", "closing_signal", "http_access", "probe_failed")
        or (heard.event in ("child_exit", "child_crashed") and code in (None, -15, -2, 15, 2, 143, 130))
        or (heard.event == "process_died" and heard.fields.get("kind") == "Engine core")
        or (
            heard.event == "traceback"
            and bool(_BROKEN.search(exception) or exception in ("KeyboardInterrupt", "asyncio.CancelledError"))
        )
    )


def _take_lost(life: Life, group: Group) -> None:
    """Put what was printed a moment before its cause, by another process, under it."""
    for key, lost in list(life.groups.items()):
        mine = group.first.process in lost.processes and lost.first.event == group.first.event
        unmarked = lost.first.event == "traceback" and group.first.process in lost.processes
        if not lost.lost or mine or unmarked or not _close(lost.first, group.first):
            continue
        del life.groups[key]
        group.relay(lost.first, _LOST if lost.first.event == "traceback" else "says that a child failed")
        group.relayed_count += lost.count - 1 + lost.relayed_count
        group.relayed += lost.relayed[: _MOST_RELAYED - len(group.relayed)]
        life.claimed.update({line: None for line, one in life.claimed.items() if one is lost})


def _failure(part: Part, heard: Heard) -> Failure:
    fields, file = heard.fields, heard.life[0]
    own = heard.event == "traceback"
    end = fields.get("mismatch_line") if own else None
    opened = Place(file, heard.line)
    exception = _text(fields.get("exception"))
    return Failure(
        place=Place(file, end) if isinstance(end, int) else opened, opened=opened, process=heard.process,
        time=heard.time, moment=_clock(part, heard).read(heard.time, heard.line), event=heard.event,
        during=heard.during, exception=exception,
        message=_text(fields.get("message"))
        if own or (exception and heard.event != "cpp_terminate")
        else _words(heard),
        last_frame=_text(fields.get("last_frame")) or _text(fields.get("top_frame")),
        quoted=fields.get("quoted") is True, interleaved=fields.get("interleaved") is True, before=heard.before,
    )  # fmt: skip


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


class _Said(dict[str, Any]):
    """Fields for a sentence; one that is not printed is ``?``."""

    def __missing__(self, key: str) -> str:
        return "?"


def _words(heard: Heard) -> str:
    """Return what a record that is no traceback says, in words."""
    event, fields = heard.event, heard.fields
    said = _Said({key: value for key, value in fields.items() if value is not None})
    if event == "matmul_mismatch":
        form = "mat1 and mat2 shapes cannot be multiplied ({rows} rows of {got_width}, "
        form += "the weight takes {want_width} and gives {out_width})"
    elif event == "size_mismatch":
        form = "sizes {a} and {b} do not match"
    elif event == "weight_shape_mismatch":
        form = "a weight of shape {loaded} does not fit a parameter of {parameter_shape}"
    elif event == "header":
        form = "{process} {what}" if "what" in fields else "graph capture failed: {message}"
    elif event == "http_access":
        form = "{method} {path} answered {status}"
    elif event == "probe_failed":
        form = "{probe} probe failed: {message}"
    else:
        form = {**_TIMEOUTS, **_CHILD, **_ABORTS}[event]
    if event == "watchdog_timeout" and "seconds" not in said:
        form = "watchdog timeout"
    if event == "process_group_abort" and "rank" in said:
        form = "rank {rank}: {message}"
    if event == "process_died":
        form += (
            ": killed from outside (the OOM killer, a person) or by the driver"
            if fields.get("follows") == "executor"
            else ""
        )
    if event == "child_exit" and "pid" not in said:
        form = "{process} ended" if "process" in said else "a child process ended"
    text = form.format_map(said)
    code = fields.get("exit_code")
    if event in ("child_exit", "process_died") and code is not None:
        text += f" with exit code {code}"
    if isinstance(code, int) and code in _SIGNALS:
        text += f" ({_SIGNALS[code]})"
    elif event == "child_exit" and fields.get("signal"):
        text += f" of {fields['signal']}"
    return text


def _key(failure: Failure) -> Any:
    """Return what equal errors share: exception and message without their numbers, but the widths of a size error."""
    message = failure.message or ""
    if "cannot be multiplied" in message or failure.event in SIZE_EVENTS:
        # Rows differ from request to request; the widths are the error.
        return (failure.exception, re.sub(r"\(\d+(?=x| rows)", "(N", message))
    if "must match" in message:
        return (failure.exception, message)
    return (failure.event if failure.exception is None else failure.exception, _DIGITS.sub("N", message)[:300])


def _relayed(failure: Failure, fields: dict[str, Any]) -> str | None:
    """Return why an error only passes on another one, None where it may be the cause itself."""
    exception, message = failure.exception or "", failure.message or ""
    if failure.event == "oom_kill":
        return None
    if failure.event == "probe_failed":
        return "has no answer from the server"
    if failure.event in _CHILD:
        return "says that a child failed" if fields.get("exit_code") != 0 else "says that a child ended"
    if failure.event == "http_access":
        return "answers a client"
    if failure.quoted:
        return "quotes another error"
    if _POINTS_ELSEWHERE.search(message):
        return "says that the cause stands elsewhere"
    if _DEAD.search(exception):
        return "says that another process is dead"
    if _BROKEN.search(exception) or _GONE.search(message):
        return _LOST
    if failure.event in _TIMEOUTS:
        return "waited for a process that no longer answers"
    return None


def _pointed(failure: Failure) -> list[int]:
    """Return the line of the exception a traceback points to: that record is not an error of its own."""
    return [failure.place.line] if failure.place != failure.opened else []


def _origin(life: Life, failure: Failure) -> Group | None:
    """Return the error another one follows from: the one it quotes, else the first of the last minutes."""
    found = list(life.groups.values())
    message = failure.message or ""
    for group in found:
        if group.first.message and group.first.message in message:
            return group
    for group in found:
        last, now = group.last.moment, failure.moment
        if last is None or now is None or last.kind != now.kind or now.seconds - last.seconds <= _SOON:
            return group
    return found[-1] if found else None


def _close(one: Failure, other: Failure) -> bool:
    """Return whether two errors were printed within a minute, as far as their times can be compared."""
    first, second = one.moment, other.moment
    return (
        first is None or second is None or first.kind != second.kind or abs(second.seconds - first.seconds) <= _MOMENT
    )


# --------------------------------------------------------------------------------------------------------- the answer


def first_error(group: Group, plan: tuple[Place, dict[str, Any]] | None) -> Finding:
    """Return the finding E101: the first error of a server life, with its capture plan if one was printed."""
    first = group.first
    by = f" in {first.process}" if first.process else ""
    during = f" during {first.during.replace('_', ' ')}" if first.during in ("graph_capture", "startup") else ""
    origin = "; it only passes on an error that is not in this log" if group.passed_on else ""
    evidence = [f"opened at {first.opened}"] if first.opened != first.place else []
    if first.last_frame:
        evidence.append(f"last frame {first.last_frame}")
    if len(group.processes) > 1 or group.count > 1:
        evidence.append(f"{count(group.count, 'time')}: {_processes(group)}")
    if group.again:
        evidence.append(f"raised again while it was handled, at {and_list([str(place) for place in group.again[:3]])}")
    if group.relayed_count:
        before = next((one for one, _ in group.relayed if one.place.line < first.opened.line), None)
        where = "after it" if before is None else f"beside it; {before.place} stands before it and {_LOST}"
        evidence.append(f"{count(group.relayed_count, 'relayed error')} {where}")
    beyond = _unreachable(plan)
    if beyond:
        evidence.append(beyond)
    return Finding(
        rule="E101",
        severity="error",
        message=f"the first error{by}{during}: {first.what}{origin}",
        where=first.place,
        evidence="; ".join(evidence) or None,
        help=next((hint for pattern, hint in _HINTS.items() if re.search(pattern, first.message or "")), None),
    )


def _unreachable(plan: tuple[Place, dict[str, Any]] | None) -> str | None:
    """Say which layers of a capture plan the model never reaches: layers are numbered from 0."""
    if plan is None:
        return None
    place, fields = plan
    depth, layers = fields.get("num_hidden_layers"), fields.get("layers_to_capture")
    if not isinstance(depth, int) or not isinstance(layers, list):
        return None
    beyond = [layer for layer in layers if isinstance(layer, int) and layer >= depth]
    if not beyond:
        return None
    requested = f" (requested {fields['requested']})" if "requested" in fields else ""
    return (
        f"the capture plan at {place} asks for layer {', '.join(map(str, beyond))}{requested}, and the model has "
        f"{depth} layers (0 to {depth - 1}): it is never reached"
    )


def size_error(group: Group, reading: SizeReading) -> Finding:
    """Return the finding E102 of a group whose sizes were read."""
    return Finding(
        rule="E102", severity="error", message=reading.text, where=group.first.place, expected=reading.want,
        actual=reading.got, evidence=group.first.message,
    )  # fmt: skip


def _processes(group: Group) -> str:
    """Return who reports it and how often: ``TP0, TP1 (3 times)``."""
    return ", ".join(
        (name or "no mark") + (f" ({number} times)" if number > 1 else "") for name, number in group.processes.items()
    )


def _headline(found: list[Group]) -> str:
    if not found:
        return "no exception, no size error, no timeout and no crash in the log"
    group = found[0]
    first = group.first
    others = [name for name in group.processes if name and name != first.process]
    also = f", the same on {and_list(others)}" if others else ""
    by = f" on {first.process}" if first.process else ""
    more = f"; {count(len(found) - 1, 'other error')} after it" if len(found) > 1 else ""
    followed = f"; {count(group.relayed_count, 'line')} only follow from it" if group.relayed_count else ""
    followed = followed.replace("1 line only follow", "1 line only follows")
    return f"first error{by}{also}, {first.place}: {first.what}{followed}{more}"


_ERRORS = (
    Column("number", "#", "right", always=True), Column("file"), Column("segment", "run", "right"),
    Column("line", align="right", always=True), Column("time"), Column("process", always=True),
    Column("error", always=True), Column("count", "times", "right"), Column("processes", "seen by"),
    Column("followed", "followed by", "right"), Column("last_frame", "last frame"),
)  # fmt: skip
_RELAYED = (
    Column("origin", "follows #", "right", always=True), Column("file"), Column("line", align="right", always=True),
    Column("time"), Column("process", always=True), Column("error", always=True), Column("why", "because it"),
)  # fmt: skip
_SIZES = (
    Column("number", "#", "right", always=True), Column("line", align="right"), Column("rows", align="right"),
    Column("got", always=True), Column("want", always=True), Column("unit", "one state", "right"),
    Column("unit_from", "known from"),
)  # fmt: skip
_BEFORE = (
    Column("number", "before #", "right"), Column("line", align="right", always=True), Column("process"),
    Column("event", always=True),
)  # fmt: skip


def _errors(found: list[Group], part: Part, report: Report) -> None:
    """Add the findings and the tables."""
    rows, sizes, relayed, before = [], [], [], []
    seen: set[tuple[str, int]] = set()
    for number, group in enumerate(found, 1):
        first, reading = group.first, group.reading
        where = {"file": first.place.file, "line": first.place.line, "time": first.time}
        named = {"process": first.process or "no mark", "error": first.what}
        rows.append(
            {"number": number, "segment": group.segment, "opened": first.opened.line, **where, **named}
            | {"count": group.count, "processes": _processes(group), "followed": group.relayed_count}
            | {"during": first.during, "last_frame": first.last_frame, "means": reading.text if reading else None}
        )
        life = (first.place.file, group.segment)
        if life not in seen:
            seen.add(life)
            report.findings.append(first_error(group, part.lives[life].plan))
        relayed += [
            {"origin": number, "file": one.place.file, "line": one.place.line, "time": one.time}
            | {"process": one.process or "no mark", "error": one.what, "why": why}
            for one, why in group.relayed
        ]
        before += [{"number": number, **event} for event in first.before] if number <= 10 else []
        if reading is not None:
            report.findings.append(size_error(group, reading))
            names = ("rows", "got", "want", "got_states", "want_states", "unit", "unit_from")
            told = {name: getattr(reading, name) for name in names}
            sizes.append({"number": number, "line": first.place.line, **told, "means": reading.text})
    for name, columns, listed, title in (
        ("errors", _ERRORS, rows, "errors, the first first"),
        ("relayed", _RELAYED, relayed, "what only follows"),
        ("sizes", _SIZES, sizes, "sizes that do not fit"),
        ("before", _BEFORE, before, "the last events before it"),
    ):
        if listed:
            caption = "lines without a mark may be of any process" if name == "before" else None
            add(report, name, columns, listed, title, caption)


def _remarks(found: list[Group], part: Part, report: Report) -> None:
    notes = report.notes
    for event, place in part.first_warned.items():
        notes.append(
            f"{count(part.warned[event], 'warning')} of {_WARNINGS[event]}, first at {place}: no exception, "
            "but acceptance after it means nothing"
        )
    for group in found:
        if group.first.interleaved:
            names = and_list([name or "an unmarked process" for name in group.processes])
            notes.append(
                f"the tracebacks of {names} are interleaved and their lines carry no mark: which frame belongs to "
                "which process cannot be told"
            )
    for life in part.lives.values():
        if life.ending is not None:
            belongs = f"; {count(life.ended, 'line')} behind it belong to that" if life.ended else ""
            notes.append(f"the server was told to end at {life.ending[0]}{belongs}")
        if life.alone is not None and not life.groups:
            notes.append(f"{life.alone} says that an engine is gone: scripts end so, alone it is no proof of a crash")
    for one in silences(part)[:3]:
        notes.append(
            f"{one.process or 'the process without a mark'} printed its last line at {one.place}"
            f"{f' ({one.time})' if one.time else ''}, {one.seconds:.0f} s before the others printed theirs"
        )
    left = sum(life.left_out for life in part.lives.values())
    if left:
        notes.append(f"{count(left, 'error')} behind the first {_MOST_GROUPS} kinds are not listed")
    undated = [group for group in found if group.first.moment is None or group.first.moment.kind != "dated"]
    if len({group.first.place.file for group in found}) > 1 and undated:
        notes.append("not every error has a date: those of different files stand in the order of the files")


def _screen(found: list[Group], part: Part, report: Report, context: Context) -> None:
    """Set the first screen: every error with its own words, what it means, and who else is concerned."""
    report.screen = []
    for group in found:
        first = group.first
        at = f"{context.at(first.place)}{f'   {first.time}' if first.time else ''}"
        below: list[Any] = [first.what]
        facts = [("last frame", first.last_frame), ("sizes", group.reading.text if group.reading else None)]
        facts.append(("plan", _unreachable(part.lives[first.place.file, group.segment].plan)))
        facts.append(("seen by", _processes(group) if group.count > 1 else None))
        facts.append(("followed by", f"{group.relayed_count} that only follow" if group.relayed_count else None))
        below += [(name, value) for name, value in facts if value]
        below += [(context.at(Place(first.place.file, one["line"])), one["event"]) for one in first.before[-2:]]
        report.screen.append(Line("error", first.process or "no mark", at, below))
    if not found:
        report.screen.append(Line("ok", "errors", f"none in {part.looked:,} lines and passes"))
        report.screen += [Line("warning" if "last line at" in note else None, note) for note in report.notes]
    else:
        report.screen += ["", *(Line(None, note) for note in report.notes[:4])]
    report.next = context.command("check")


def _fact(group: Group) -> dict[str, Any]:
    first = group.first
    return {
        "file": first.place.file, "segment": group.segment, "line": first.place.line, "opened": first.opened.line,
        "process": first.process or None, "exception": first.exception, "message": first.message,
        "count": group.count, "processes": {name or "no mark": number for name, number in group.processes.items()},
        "places": [str(place) for place in group.places], "again": [str(place) for place in group.again],
        "relayed": [
            {"process": one.process or None, "line": one.place.line, "error": one.what, "why": why}
            for one, why in group.relayed
        ],
        "relayed_count": group.relayed_count,
    }  # fmt: skip
