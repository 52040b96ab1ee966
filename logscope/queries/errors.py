"""``logscope errors``: what failed first and where, what only followed from it, and the last sign of life of a process.

This module is responsible for gathering exceptions, aborts, size errors, timeouts and endings, for grouping equal
ones, and for putting what only follows under its origin. What sizes mean is known by sizes.py. It must not claim which
process an unmarked line belongs to.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import polars as pl

from logscope.model import CAPTURE_EVENTS, Finding, Place
from logscope.queries.clock import Clock, Moment, writers
from logscope.queries.sizes import SIZE_EVENTS, SizeReading, explain_count, explain_sizes
from logscope.queries.tables import add, columns
from logscope.queries.words import and_list, axes, count, source_name
from logscope.report import Line, Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logscope.report import Context
    from logscope.tables.tables import Tables

# Each event in words: the first sentence whose fields are all printed, else the last one.
# What waited for somebody else, and may still be the cause where nothing stands before it.
_TIMEOUTS = {
    "watchdog_timeout": ("watchdog timeout after {seconds} s without a forward", "watchdog timeout"),
    "collective_timeout": ("a collective operation timed out: {work}",),
    "health_check_failed": ("the health check failed: no answer from the detokenizer for {seconds} s",),
    "hang_detected": ("hang detected on rank {rank}",),
    "lost_heartbeat": ("a heartbeat is missing",),
}
# What says that a child is gone: no error of its own where one stands before it.
_CHILD = {
    "sigquit": ("sigquit: a child process failed",),
    "child_crashed": ("the process {name} (pid {child_pid}) crashed with exit code {exit_code}",),
    "child_exit": ("{process} (pid {pid}) ended", "{process} ended", "a child process ended"),
    "process_died": ("{process} died unexpectedly",),
    "closing_signal": ("process {pid} is sent {signal}",),
}
# Ends without a Python exception line. One process prints several of them within a few lines: the first counts.
_ABORTS = {
    "process_group_abort": ("rank {rank}: {message}", "{message}"),
    "device_assert": ("device-side assert: {condition}",), "cpp_terminate": ("terminate called",),
    "assertion_failed": ("Assertion `{condition}' failed",), "fatal_python_error": ("Fatal Python error: {message}",),
    "fatal_signal": ("fatal signal: {signal}",), "out_of_memory": ("out of memory: tried to allocate {tried} {unit}",),
    "cuda_error": ("{backend} error: {message}",), "ggml_abort": ("{message}",),
    "draft_refused": ("the draft model is refused: {reason}",),
    "oom_kill": ("the OOM killer of the kernel killed process {pid} ({process})",),
}  # fmt: skip
# What only tells more of the error before it.
_DETAILS = ("raised_from", "cuda_error_place", "thread_dump", "pyspy_dump", "cpp_what")
# Headlines of an error that follows, with its traceback.
_HEADERS = ("process_failed", "graph_capture_failed")
_PROBES = {
    "http_access": ("{method} {path} answered {status}",), "probe_failed": ("{probe} probe failed: {message}",),
}  # fmt: skip
_SIZES = {
    "matmul_mismatch": (
        "mat1 and mat2 shapes cannot be multiplied ({rows} rows of {got_width}, {want_width} due for {out_width})",
    ),
    "size_mismatch": ("sizes {a} and {b} do not match",),
    "weight_shape_mismatch": ("a weight of shape {loaded} does not fit a parameter of {parameter_shape}",),
}
_WORDS = {**_TIMEOUTS, **_CHILD, **_ABORTS, **_PROBES, **_SIZES}
_WORDS["header"] = ("{process} {what}", "graph capture failed: {message}")
_WARNINGS = {"nan_logits_warning": "NaN in the logits", "invalid_tree_warning": "invalid draft tree"}
_SET_UP = ("capture_plan", "fc", "aux_concat")
_HEARD = ({*_WORDS} - {"header"}) | {"traceback", "shutdown", *_DETAILS, *_HEADERS, *_SET_UP, *_WARNINGS}
# What is told elsewhere, or as an error itself: never among the last events before an error.
_QUIET = frozenset(("traceback", *SIZE_EVENTS, *_TIMEOUTS, *_CHILD, *_ABORTS, *_DETAILS))
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
_INTERRUPTED = ("KeyboardInterrupt", "asyncio.CancelledError")
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


@dataclass(slots=True)
class Failure:
    """A line about an error or an end, as it was printed; ``before``: the last events of its process.

    process
        as the prefix names it; empty when lines carry no mark.
    """

    file: str
    segment: int
    line: int
    time: str | None
    process: str
    during: str
    event: str
    fields: dict[str, Any]
    before: list[dict[str, Any]] = field(default_factory=list)
    moment: Moment | None = None

    @property
    def opened(self) -> Place:
        """Where it, or its traceback, opens."""
        return Place(self.file, self.line)

    @property
    def place(self) -> Place:
        """Where its own line stands: of a traceback the exception's line where it is known, else where it opens."""
        end = self.fields.get("mismatch_line") if self.event == "traceback" else None
        return Place(self.file, end) if isinstance(end, int) else self.opened

    @property
    def pointed(self) -> list[int]:
        """The line of the exception a traceback points to: that record is not an error of its own."""
        return [self.place.line] if self.place != self.opened else []

    def text(self, *names: str) -> str | None:
        """Return the first of some fields that is printed as text."""
        return next((said for name in names if isinstance(said := self.fields.get(name), str)), None)

    @property
    def exception(self) -> str | None:
        """The name of the exception."""
        return self.text("exception")

    @property
    def message(self) -> str | None:
        """What it says: its own message, or the event in words."""
        if self.event == "traceback" or (self.exception and self.event != "cpp_terminate"):
            return self.text("message")
        return self.text("what") if self.event == "cpp_terminate" and self.text("what") else _words(self)

    @property
    def last_frame(self) -> str | None:
        """The last frame, as far as it is printed."""
        return self.text("last_frame", "top_frame")

    @property
    def what(self) -> str:
        """The exception and its message in one line."""
        if self.exception is None:
            return self.message or "a traceback without its exception line"
        return f"{self.exception}: {self.message}" if self.message else self.exception

    def within(self, other: Moment | None, least: float, most: float) -> bool:
        """Tell whether it is so many seconds behind a moment, as far as the two times can be compared."""
        mine = self.moment
        return mine is None or other is None or mine.kind != other.kind or least <= mine.seconds - other.seconds <= most


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
    last: Failure
    end: int = 0
    reading: SizeReading | None = None
    sizes: tuple[str, dict[str, Any]] | None = None
    count: int = 0
    processes: Counter[str] = field(default_factory=Counter)
    places: list[Place] = field(default_factory=list)
    again: list[Place] = field(default_factory=list)
    relayed: list[tuple[Failure, str]] = field(default_factory=list)
    relayed_count: int = 0
    passed_on: bool = False
    lost: bool = False

    def add(self, failure: Failure) -> None:
        """Take one more of the same."""
        self.count += 1
        self.last, self.end = failure, failure.line
        self.processes[failure.process] += 1
        self.places = [*self.places, failure.place][:_MOST_PLACES]

    def relay(self, failure: Failure, why: str) -> None:
        """Take an error that follows from this one."""
        self.relayed_count += 1
        failure.fields = failure.fields | {"follows": None}  # a death that another one explains needs no guess
        self.relayed = [*self.relayed, (failure, why)][:_MOST_RELAYED]


@dataclass(slots=True)
class Life:
    """What is known of one server life: its hidden size and joined widths, its capture plan, its groups of errors.

    ``hidden``: how good the evidence is (0: the best), the size, and what shows it.
    """

    hidden: tuple[int, int, str] | None = None
    delivered: list[int] = field(default_factory=list)
    plan: tuple[Place, dict[str, Any]] | None = None
    groups: dict[Any, Group] = field(default_factory=dict)
    # exception lines that a traceback points to, and lines at which tracebacks of a group open
    claimed: dict[int, Group | None] = field(default_factory=dict)
    opened: dict[int, Group] = field(default_factory=dict)
    headers: list[Failure] = field(default_factory=list)
    # what told it to end
    ending: Failure | None = None
    ended: int = 0
    alone: Place | None = None
    left_out: int = 0

    def learn(self, other: Life) -> None:
        """Take what a later part knows of sizes, the best evidence first."""
        self.hidden = min((one for one in (self.hidden, other.hidden) if one), key=lambda one: one[0], default=None)
        self.plan = self.plan or other.plan
        self.delivered = list(dict.fromkeys(self.delivered + other.delivered))[:_MOST_PLACES]


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
        self.first, self.last = self.first or other.first, other.last or self.last
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
    heard: list[Failure] = field(default_factory=list)
    recent: dict[tuple[str, int, str], list[dict[str, Any]]] = field(default_factory=dict)
    signs: dict[tuple[str, int, str], Sign] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)
    warned: Counter[str] = field(default_factory=Counter)
    first_warned: dict[str, Place] = field(default_factory=dict)
    looked: int = 0

    def merge(self, other: Part) -> None:
        """Add a later part, which stays as it is."""
        if other.clocks:  # it has folded: a part of other files, or the first
            self.fold()
            lives, clocks = copy.deepcopy((other.lives, other.clocks))
            self.lives, self.clocks = lives | self.lives, clocks | self.clocks
        for key, life in other.lives.items():
            self.lives.setdefault(key, Life()).learn(life)
        for heard in other.heard:
            known = [
                one for name in {heard.process, ""} for one in self.recent.get((heard.file, heard.segment, name), ())
            ]
            before = sorted([*known, *heard.before], key=lambda one: one["line"])[-_REMEMBERED:]
            self.heard.append(replace(heard, before=before))
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
            heard.moment = self.clocks.setdefault(heard.file, Clock()).read(heard.time, heard.line)
            _take(self.lives.setdefault((heard.file, heard.segment), Life()), heard)
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
        for part in parts:
            whole.merge(part)
        return whole

    def report(self, part: Part, context: Context) -> Report:
        """Answer."""
        part = self.combine([part])
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
        report.verdict = "findings" if found else "ok"
        _screen(found, part, report, context)
        return report


def groups(part: Part) -> list[Group]:
    """Return every group of equal errors, the earliest first, sizes read. Folds what the part has heard.

    The order is that of the file; of several files it is that of their times, where all are dated.
    """
    part.fold()
    found = []
    for life in part.lives.values():
        if life.headers and not life.groups:
            _enter(life, replace(life.headers[0], event="header"))
        for group in life.groups.values():
            first = group.first
            if group.sizes is not None:
                _, hidden, known = life.hidden or (None, None, None)
                loading = bool(_LOADS.search(first.last_frame or ""))
                told = {"hidden": hidden, "hidden_from": known, "delivered": life.delivered, "loading": loading}
                group.reading = explain_sizes(*group.sizes, **told)  # type: ignore[arg-type]
            elif first.message:
                group.reading = explain_count(first.message)
            found.append(group)
    several = len({group.first.file for group in found}) > 1
    if several and all(group.first.moment is not None and group.first.moment.kind == "dated" for group in found):
        found.sort(key=lambda group: group.first.moment.seconds if group.first.moment else 0.0)
    return found


def silences(part: Part) -> list[Silence]:
    """Return the processes that fell silent while others of their log went on, the longest silence first."""
    clock, out = Clock(), []
    ends: dict[tuple[str, int], Moment] = {}
    moments = {where: clock.read(sign.time, sign.line) for where, sign in part.signs.items()}
    for where, moment in moments.items():
        if moment is not None:
            ends[where[:2]] = max(moment, ends.get(where[:2], moment))
    for where, sign in part.signs.items():
        end, own = ends.get(where[:2]), moments[where]
        first, last = clock.read(sign.first, 0), clock.read(sign.last, 0)
        if sign.regular < _FEWEST or end is None or own is None or first is None or last is None:
            continue
        usual, seconds = (last.seconds - first.seconds) / (sign.regular - 1), end.seconds - own.seconds
        if end.kind == own.kind and seconds > max(_SILENT, _INTERVALS * usual):
            out.append(Silence(where[2], Place(where[0], sign.line), sign.time, seconds))
    return sorted(out, key=lambda one: -one.seconds)


def silence_words(one: Silence) -> str:
    """Return a silence as a sentence."""
    at = f" ({one.time})" if one.time else ""
    last = f"{one.process or 'the process without a mark'} printed its last line at {one.place}{at}"
    return f"{last}, {one.seconds:,.0f} s before the others printed theirs"


# ---------------------------------------------------------------------------------------------------------- gathering


def _gather(tables: Tables) -> Part:
    part = Part(lives={(one.file, one.number): Life() for one in tables.segments})
    part.looked = tables.server.height + tables.passes.height
    _learn(tables, part)
    events = _signs(tables, part)
    where, seen = ["file", "segment"], set[Any]()
    heard = tables.server.join(writers(tables, tables.server["prefix"]), on="prefix", maintain_order="left")
    heard = heard.filter((pl.col("kind") == "event") & pl.col("event").is_in(list(_HEARD)))
    for said, at, segment, line, process, time, during, event in heard.select(
        "said", *where, "line", "origin", "time_right", "during", "event"
    ).iter_rows():
        text, file = tables.said[said], tables.files[at]
        if event == "http_access" and isinstance(text, bytes) and _FAILED.search(text) is None:
            continue
        payload = tables.saying(said)
        fields, place = payload.fields, Place(file, line)
        if event in _WARNINGS:
            part.warned[event] += 1
            part.first_warned.setdefault(event, place)
        elif event in _SET_UP and payload.usable:
            _size(part.lives.setdefault((file, segment), Life()), event, fields, payload.width, place)
        status = fields.get("status")
        failed = event != "http_access" or (isinstance(status, int) and status >= 500)
        if event in _WARNINGS or event in _SET_UP or not failed:
            continue
        failure = Failure(file, segment, line, time, process, during, event, fields)
        kind = (event, fields.get("exception"), _DIGITS.sub("N", str(fields.get("message")))[:300], process)
        if kind not in seen and len(seen) < _MOST_BEFORE and event not in _DETAILS:
            own = (pl.col("file") == at) & (pl.col("segment") == segment) & pl.col("origin").is_in([process, ""])
            failure.before = [
                told for _, told in _told(tables, part, events.filter(own & (pl.col("line") < line)).tail(_REMEMBERED))
            ]
        seen.add(kind)
        part.heard.append(failure)
    # For an error at the beginning of the next batch.
    for name, told in _told(tables, part, events.group_by(*where, "origin", maintain_order=True).tail(_REMEMBERED)):
        part.recent.setdefault(name, []).append(told)
    return part


def _signs(tables: Tables, part: Part) -> pl.DataFrame:
    """Note the last sign of life of every process; return what each printed and each pass, by file and line.

    Columns: file, segment, line, origin (the process), row (of the table of passes or of server lines), of_pass.
    """
    where, regular = ("file", "segment"), pl.col("event").is_in(list(_REGULAR)).fill_null(value=False)
    records = tables.records.select(where)[tables.prints["record"]]
    printed = tables.prints.select("prefix", "line", records["file"], records["segment"], often=pl.lit(value=False))
    # Of prints behind one prefix the last one counts: it names their process and their time.
    printed = printed.group_by("prefix", *where, "often").agg(pl.col("line").max()).select(printed.columns)
    rows = pl.concat([tables.server.select("prefix", "line", *where, often=regular), printed])
    named = writers(tables, rows["prefix"])
    ends = rows.join(named, on="prefix").sort("line").group_by(*where, "origin", maintain_order=True)
    timed = pl.col("time").filter("often").drop_nulls()
    for file, segment, name, *sign in ends.agg(
        pl.col("line").last(), pl.col("time").drop_nulls().last(), pl.col("often").sum(), first=timed.first(),
        last=timed.last(),
    ).iter_rows():  # fmt: skip
        part.signs[tables.files[file], segment, name] = Sign(*sign)
    groups_ = pl.Series([source_name(group) for group in tables.groups], dtype=pl.String)
    passes = tables.passes.with_row_index("row").with_columns(origin=groups_.gather(tables.passes["group"]))
    server = tables.server.with_row_index("row").join(named, on="prefix", maintain_order="left")
    server = server.filter((pl.col("kind") == "event") & ~pl.col("event").is_in(list(_QUIET)))
    kept = (*where, "line", "origin", "row")
    parts = [server.select(*kept, of_pass=pl.lit(value=False)), passes.select(*kept, of_pass=pl.lit(value=True))]
    return pl.concat(parts).sort("file", "line", maintain_order=True)


def _learn(tables: Tables, part: Part) -> None:
    """Learn the hidden size, and what was joined, of every life."""
    names = ("file", "segment", "event", "width", "line", "head")
    told = tables.records.filter(pl.col("usable") & pl.col("event").is_in([*CAPTURE_EVENTS, *_SET_UP]))
    told = told.unique(names[:4], keep="first", maintain_order=True)
    for file, segment, event, width, line, head in told.select(names).iter_rows():
        life = part.lives.setdefault((tables.files[file], segment), Life())
        _size(life, event, tables.heads[head].fields, width, Place(tables.files[file], line))


def _size(life: Life, event: str, fields: dict[str, Any], width: int | None, place: Place) -> None:
    """Learn from one record."""
    told, weight = Life(), fields.get("weight")
    if event == "capture_plan":
        told.plan, size = (place, fields), fields.get("hidden_size")
        if life.plan is None and isinstance(size, int) and size > 0:
            told.hidden = (0, size, f"hidden_size of the capture plan at {place}")
    elif event == "aux_concat" and width:
        told.delivered = [width]
    elif event in CAPTURE_EVENTS and width:
        told.hidden = (1, width, f"the width of the hidden capture at {place}")
    elif isinstance(weight, list) and len(weight) == 2 and isinstance(weight[0], int):
        told.hidden = (1, weight[0], f"what the fc weight at {place} gives")
    life.learn(told)


def _told(tables: Tables, part: Part, events: pl.DataFrame) -> list[tuple[tuple[str, int, str], dict[str, Any]]]:
    """Return events in a few words, each with the process they are of."""
    out = []
    order = ("file", "segment", "line", "origin", "row", "of_pass")
    for at, segment, line, name, row, of_pass in (
        events.select(order).sort("file", "line", maintain_order=True).iter_rows()
    ):
        file = tables.files[at]
        known = part.lives[file, segment].hidden if (file, segment) in part.lives else None
        words = (_pass_words if of_pass else _brief)(tables, row, known[1] if known else None)
        out.append(((file, segment, name), {"line": line, "process": name or "no mark", "event": words}))
    return out


def _pass_words(tables: Tables, at: int, hidden: int | None) -> str:
    role, phase, rows, captures, join = tables.passes.select("role", "phase", "rows", "captures", "join").row(at)
    parts = [f"{role} pass, {phase}"]
    if rows is not None:
        parts.append(count(rows, "row"))
    if captures:
        parts.append(count(captures, "hidden capture"))
    shape = [] if join is None else [one for one in tables.records.select("rows", "width").row(join) if one is not None]
    return ", ".join([*parts, *([f"joined {axes(shape, hidden)}"] if shape else [])])


_NAMED = {
    "new_token": "new tokens", "running_req": "running", "accept_len": "accept len", "type": "type", "what": "",
    "requested": "requested layers", "layers_to_capture": "layers to capture", "path": "path", "status": "status",
    "weight": "weight", "input": "input",
}  # fmt: skip


def _brief(tables: Tables, row: int, hidden: int | None) -> str:
    """Return a server row in a few words."""
    payload = tables.payload(row)
    shape = f" {axes(payload.shape, hidden)}" if payload.shape is not None else ""
    named = [
        f"{name} {payload.fields[key]}".strip()
        for key, name in _NAMED.items()
        if payload.fields.get(key) not in (None, "")
    ]
    return payload.event.replace("_", " ") + shape + (": " + ", ".join(named) if named else "")


# ------------------------------------------------------------------------------------------------------------ folding


def _take(life: Life, heard: Failure) -> None:
    """Put one line where it belongs: an error of its own, more of one, what follows from one, or an end on demand."""
    event, fields = heard.event, heard.fields
    if event in SIZE_EVENTS and heard.line in life.claimed:
        # The exception line of a traceback that was counted: it only brings the numbers.
        claimed = life.claimed.pop(heard.line)
        if claimed is not None and claimed.sizes is None:
            claimed.sizes = (event, fields)
        return
    if event == "shutdown":
        wanted = fields.get("signal") or fields.get("number")
        wanted = wanted or fields.get("step") in ("Shutdown initiated", "Gracefully exiting")
        if wanted and not life.groups and life.ending is None:
            life.ending = heard
        return
    if event in _HEADERS:
        life.headers = [*life.headers[-8:], heard]
        return
    near = next((group for group in reversed(life.groups.values()) if 0 <= heard.line - group.end <= _NEAR), None)
    # Unmarked lines may be anybody's.
    if near is not None and heard.process and near.last.process not in ("", heard.process):
        near = None
    if event in _DETAILS:
        if near is not None:
            _detail(near, heard)
        return
    if life.ending is not None and _of_the_end(life.ending, heard):
        life.ended += 1
        return
    # One end of one process is told again by whoever notices it next; thousands of threads print one assertion.
    more = near is not None and near.first.event == event == "device_assert"
    told = near is not None and not more and near.first.event in {*_ABORTS, *_TIMEOUTS, "traceback"}
    if near is not None and told and event in _ABORTS and event != "oom_kill":
        near.relay(heard, "tells of the same end")
        _detail(near, heard)
        return
    chained = fields.get("chained")
    group = life.opened.get(chained) if isinstance(chained, int) else None
    if group is None:
        _enter(life, heard)
        return
    group.end, life.opened[heard.line] = heard.line, group
    life.claimed.update(dict.fromkeys(heard.pointed, group))
    if _key(heard) == _key(group.first):
        group.add(heard)
    else:
        group.again.append(heard.opened)


def _enter(life: Life, failure: Failure) -> None:
    """Group a failure, under its origin where it only follows from one."""
    why, event, fields = _relayed(failure), failure.event, failure.fields
    origin = _origin(life, failure) if why is not None else None
    if origin is not None and why is not None:
        origin.relay(failure, why)
        life.claimed.update(dict.fromkeys(failure.pointed))
        return
    if event in ("http_access", "closing_signal") or (event == "probe_failed" and fields.get("probe") != "Liveness"):
        # Without an error before it, an answer of 503 is a server that is not ready yet.
        return
    if event == "process_died" and fields.get("follows") == "client":
        # Offline scripts end so: alone it is no proof of a crash.
        life.alone = life.alone or failure.place
        return
    key = _key(failure)
    if key not in life.groups:
        if len(life.groups) >= _MOST_GROUPS:
            life.left_out += 1
            return
        lost = why == _LOST or event in ("process_died", "child_exit", "child_crashed")
        group = Group(failure, failure, lost=lost)
        group.passed_on = why is not None and not lost and event not in _TIMEOUTS and event != "probe_failed"
        if why is None:
            _take_lost(life, group)
        life.groups[key] = group
    group = life.groups[key]
    group.add(failure)
    life.opened[failure.line] = group
    life.headers = [one for one in life.headers if one.process != failure.process]
    if event in SIZE_EVENTS:
        group.sizes = (event, fields)
    life.claimed.update(dict.fromkeys(failure.pointed, group))


def _detail(group: Group, heard: Failure) -> None:
    """Take what only tells more of an error: a message, a place, the top frame of a dump."""
    group.end, first, said = heard.line, group.first, heard.fields
    if heard.event == "cpp_what" and first.event == "cpp_terminate":
        first.fields = first.fields | {"what": said.get("message")}
    frame = heard.text("top_frame") or (heard.text("place") if heard.event in _ABORTS else None)
    if heard.event in ("cuda_error_place", "raised_from"):
        frame = frame or f"{said.get('place')} in {said.get('function')}"
    first.fields = first.fields | {"last_frame": first.last_frame or frame}


def _of_the_end(ending: Failure, heard: Failure) -> bool:
    """Tell whether a line only says that what was told to end did."""
    event, exception, code = heard.event, heard.exception or "", heard.fields.get("exit_code")
    return heard.within(ending.moment, -_ENDING * 1e9, _ENDING) and (
        event in ("sigquit", "closing_signal", "http_access", "probe_failed")
        or (event in ("child_exit", "child_crashed") and code in (None, -15, -2, 15, 2, 143, 130))
        or (event == "process_died" and heard.fields.get("kind") == "Engine core")
        or (event == "traceback" and bool(_BROKEN.search(exception) or exception in _INTERRUPTED))
    )


def _take_lost(life: Life, group: Group) -> None:
    """Put what was printed a moment before its cause, by another process, under it."""
    for key, lost in list(life.groups.items()):
        mine = group.first.process in lost.processes and lost.first.event in ("traceback", group.first.event)
        if not lost.lost or mine or not group.first.within(lost.first.moment, -_MOMENT, _MOMENT):
            continue
        del life.groups[key]
        group.relay(lost.first, _LOST if lost.first.event == "traceback" else "says that a child failed")
        group.relayed_count += lost.count - 1 + lost.relayed_count
        group.relayed += lost.relayed[: _MOST_RELAYED - len(group.relayed)]
        life.claimed.update({line: None for line, one in life.claimed.items() if one is lost})


def _words(failure: Failure) -> str:
    """Return what a record that is no traceback says, in words; what is not printed is ``?``."""
    event, code = failure.event, failure.fields.get("exit_code")
    said = {key: value for key, value in failure.fields.items() if value is not None}
    *better, form = _WORDS[event]
    form = next((one for one in better if set(re.findall(r"{(\w+)}", one)) <= said.keys()), form)
    text = re.sub(r"{(\w+)}", lambda name: str(said.get(name[1], "?")), form)
    if event == "process_died" and said.get("follows") == "executor":
        text += ": killed from outside (the OOM killer, a person) or by the driver"
    if event in ("child_exit", "process_died") and code is not None:
        text += f" with exit code {code}"
    if isinstance(code, int) and code in _SIGNALS:
        return f"{text} ({_SIGNALS[code]})"
    return f"{text} of {said['signal']}" if event == "child_exit" and said.get("signal") else text


def _key(failure: Failure) -> Any:
    """Return what equal errors share: exception and message without their numbers, but the widths of a size error."""
    message = failure.message or ""
    if "cannot be multiplied" in message or failure.event in SIZE_EVENTS:
        # Rows differ from request to request; the widths are the error.
        return (failure.exception, re.sub(r"\(\d+(?=x| rows)", "(N", message))
    if "must match" in message:
        return (failure.exception, message)
    return (failure.event if failure.exception is None else failure.exception, _DIGITS.sub("N", message)[:300])


def _relayed(failure: Failure) -> str | None:
    """Return why an error only passes on another one, None where it may be the cause itself."""
    exception, message, event = failure.exception or "", failure.message or "", failure.event
    child = "says that a child ended" if failure.fields.get("exit_code") == 0 else "says that a child failed"
    for holds, why in (
        (event == "oom_kill", None),
        (event == "probe_failed", "has no answer from the server"),
        (event in _CHILD, child),
        (event == "http_access", "answers a client"),
        (failure.fields.get("quoted") is True, "quotes another error"),
        (_POINTS_ELSEWHERE.search(message), "says that the cause stands elsewhere"),
        (_DEAD.search(exception), "says that another process is dead"),
        (_BROKEN.search(exception) or _GONE.search(message), _LOST),
        (event in _TIMEOUTS, "waited for a process that no longer answers"),
    ):
        if holds:
            return why
    return None


def _origin(life: Life, failure: Failure) -> Group | None:
    """Return the error another one follows from: the one it quotes, else the first of the last minutes."""
    found, message = list(life.groups.values()), failure.message or ""
    quoted = [group for group in found if group.first.message and group.first.message in message]
    soon = [group for group in found if failure.within(group.last.moment, -_SOON * 1e9, _SOON)]
    return next(iter([*quoted, *soon, *found[-1:]]), None)


# --------------------------------------------------------------------------------------------------------- the answer


def first_error(group: Group, plan: tuple[Place, dict[str, Any]] | None) -> Finding:
    """Return the finding E101: the first error of a server life, with its capture plan if one was printed."""
    first = group.first
    by = f" in {first.process}" if first.process else ""
    during = f" during {first.during.replace('_', ' ')}" if first.during in ("graph_capture", "startup") else ""
    origin = "; it only passes on an error that is not in this log" if group.passed_on else ""
    again = and_list([str(place) for place in group.again[:3]])
    before = next((one for one, _ in group.relayed if one.place.line < first.line), None)
    where = "after it" if before is None else f"beside it; {before.place} stands before it and {_LOST}"
    evidence = (
        f"opened at {first.opened}" * (first.opened != first.place),
        f"last frame {first.last_frame}" * bool(first.last_frame),
        f"{count(group.count, 'time')}: {_processes(group)}" * (group.count > 1),
        f"raised again while it was handled, at {again}" * bool(again),
        f"{count(group.relayed_count, 'relayed error')} {where}" * bool(group.relayed_count),
        _unreachable(plan) or "",
    )
    return Finding(
        rule="E101",
        severity="error",
        message=f"the first error{by}{during}: {first.what}{origin}",
        where=first.place,
        evidence="; ".join(filter(None, evidence)) or None,
        help=next((hint for pattern, hint in _HINTS.items() if re.search(pattern, first.message or "")), None),
    )


def _unreachable(plan: tuple[Place, dict[str, Any]] | None) -> str | None:
    """Say which layers of a capture plan the model never reaches: layers are numbered from 0."""
    place, fields = plan or (None, {})
    depth, layers = fields.get("num_hidden_layers"), fields.get("layers_to_capture")
    if not isinstance(depth, int) or not isinstance(layers, list):
        return None
    beyond = [str(layer) for layer in layers if isinstance(layer, int) and layer >= depth]
    requested = f" (requested {fields['requested']})" if "requested" in fields else ""
    return (
        f"the capture plan at {place} asks for layer {', '.join(beyond)}{requested}, and the model has {depth} layers "
        f"(0 to {depth - 1}): it is never reached"
        if beyond
        else None
    )


def size_error(group: Group, reading: SizeReading) -> Finding:
    """Return the finding E102 of a group whose sizes were read."""
    first = group.first
    return Finding("E102", "error", reading.text, first.place, reading.want, reading.got, first.message)


def _processes(group: Group) -> str:
    """Return who reports it and how often: ``TP0, TP1 (3 times)``."""
    return ", ".join(
        (name or "no mark") + f" ({number} times)" * (number > 1) for name, number in group.processes.items()
    )


def _followed(group: Group) -> str | None:
    """Return the first of what only follows from an error, and how many more do."""
    if not group.relayed:
        return None
    one, more = group.relayed[0][0], group.relayed_count - 1
    return f"{one.what} (:{one.place.line}){f'; {more:,} more' if more else ''}"


def _headline(found: list[Group]) -> str:
    if not found:
        return "no exception, no size error, no timeout and no crash in the log"
    group = found[0]
    first, followed = group.first, group.relayed_count
    others = [name for name in group.processes if name and name != first.process]
    also = f", the same on {and_list(others)}" if others else ""
    by = f" on {first.process}" if first.process else ""
    said = f"; {count(followed, 'line only follows', 'lines only follow')} from it" if followed else ""
    more = f"; {count(len(found) - 1, 'other error')} after it" if len(found) > 1 else ""
    return f"first error{by}{also}, {first.place}: {first.what}{said}{more}"


_ERRORS = columns(
    "number=#!> file segment=run> line!> time process! error! count=times> processes=seen_by followed=followed_by> "
    "last_frame"
)
_RELAYED = columns("origin=follows_#!> file line!> time process! error! why=because_it!")
_SIZE_ROWS = columns("number=#!> line> rows> got! want! unit=one_state> unit_from=known_from")
_BEFORE = columns("number=before_#> line!> process event!")


def _row(failure: Failure) -> dict[str, Any]:
    told = {"file": failure.file, "line": failure.place.line, "time": failure.time}
    return told | {"process": failure.process or "no mark", "error": failure.what}


def _errors(found: list[Group], part: Part, report: Report) -> None:
    """Add the findings and the tables."""
    rows, sizes, relayed, before = [], [], [], []
    lives: dict[tuple[str, int], Group] = {}
    for number, group in enumerate(found, 1):
        first, reading = group.first, group.reading
        told = {"count": group.count, "processes": _processes(group), "followed": group.relayed_count}
        told |= {"during": first.during, "last_frame": first.last_frame, "means": reading.text if reading else None}
        where = {"number": number, "segment": first.segment, "opened": first.line}
        rows.append({**where, **_row(first), **told})
        life = (first.file, first.segment)
        if lives.setdefault(life, group) is group:
            report.findings.append(first_error(group, part.lives[life].plan))
        relayed += [{"origin": number, **_row(one), "why": why} for one, why in group.relayed]
        before += [{"number": number, **event} for event in first.before] if number <= 10 else []
        if reading is not None:
            report.findings.append(size_error(group, reading))
            names = ("rows", "got", "want", "got_states", "want_states", "unit", "unit_from")
            numbers = {name: getattr(reading, name) for name in names}
            sizes.append({"number": number, "line": first.place.line, **numbers, "means": reading.text})
    add(report, "errors", _ERRORS, rows, "errors, the first first")
    add(report, "relayed", _RELAYED, relayed, "what only follows")
    add(report, "sizes", _SIZE_ROWS, sizes, "sizes that do not fit")
    caption = "lines without a mark may be of any process"
    add(report, "before", _BEFORE, before, "the last events before it", caption)


def _remarks(found: list[Group], part: Part, report: Report) -> None:
    notes = report.notes
    notes += [
        f"{count(part.warned[event], 'warning')} of {_WARNINGS[event]}, first at {place}: no exception, but acceptance "
        "after it means nothing"
        for event, place in part.first_warned.items()
    ]
    notes += [
        f"the tracebacks of {and_list([name or 'an unmarked process' for name in group.processes])} are interleaved "
        "and their lines carry no mark: which frame belongs to which process cannot be told"
        for group in found
        if group.first.fields.get("interleaved") is True
    ]
    for life in part.lives.values():
        if life.ending is not None:
            belongs = f"; {count(life.ended, 'line')} behind it belong to that" if life.ended else ""
            notes.append(f"the server was told to end at {life.ending.place}{belongs}")
        if life.alone is not None and not life.groups:
            notes.append(f"{life.alone} says that an engine is gone: scripts end so, alone it is no proof of a crash")
    notes += map(silence_words, silences(part)[:3])
    if left := sum(life.left_out for life in part.lives.values()):
        notes.append(f"{count(left, 'error')} behind the first {_MOST_GROUPS} kinds are not listed")
    undated = any(group.first.moment is None or group.first.moment.kind != "dated" for group in found)
    if undated and len({group.first.file for group in found}) > 1:
        notes.append("not every error has a date: those of different files stand in the order of the files")


def _screen(found: list[Group], part: Part, report: Report, context: Context) -> None:
    """Set the first screen: every error with its own words, what it means, and who else is concerned."""
    for group in found:
        first = group.first
        facts = {
            "last frame": first.last_frame,
            "sizes": group.reading and group.reading.text,
            "plan": _unreachable(part.lives[first.file, first.segment].plan),
            "seen by": _processes(group) if group.count > 1 else None,
            "followed by": _followed(group),
        }
        below: list[Any] = [first.what, *((name, value) for name, value in facts.items() if value)]
        below += [(context.at(Place(first.file, one["line"])), one["event"]) for one in first.before[-2:]]
        at = f"{context.at(first.place)}{f'   {first.time}' if first.time else ''}"
        report.screen.append(Line("error", first.process or "no mark", at, below))
    if found:
        report.screen += ["", *(Line(None, note) for note in report.notes[:4])]
    else:
        report.screen.append(Line("ok", "errors", f"none in {count(part.looked, 'line or pass', 'lines and passes')}"))
        report.screen += [Line("warning" if "last line at" in note else None, note) for note in report.notes]
    report.next = context.command("check")


def _fact(group: Group) -> dict[str, Any]:
    first = group.first
    return {
        "file": first.file, "segment": first.segment, "line": first.place.line, "opened": first.line,
        "process": first.process or None, "exception": first.exception, "message": first.message,
        "count": group.count, "processes": {name or "no mark": number for name, number in group.processes.items()},
        "places": [str(place) for place in group.places], "again": [str(place) for place in group.again],
        "relayed": [
            {"process": one.process or None, "line": one.place.line, "error": one.what, "why": why}
            for one, why in group.relayed
        ],
        "relayed_count": group.relayed_count,
    }  # fmt: skip
