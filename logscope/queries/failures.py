"""``logscope errors``: what failed first and where, what only followed from it, and what the process did before.

This module is responsible for collecting exceptions, size errors and timeouts, for grouping equal ones, and for putting
relayed ones under their origin. What sizes mean is known by sizes.py. It must not claim which process an unmarked line
belongs to.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from logscope.model import Finding, ForwardPass, Place, Segment
from logscope.queries.clock import Clock, Moment, writer_label
from logscope.queries.sizes import SIZE_EVENTS, SizeReading, explain_count, explain_sizes
from logscope.queries.tables import table, without_empty
from logscope.queries.words import and_list, axes, count, source_name
from logscope.report import Column, Report

if TYPE_CHECKING:
    from logscope.model import Payload, ServerEvent
    from logscope.report import Context, Item

_TIMEOUTS = frozenset({"watchdog_timeout", "collective_timeout", "health_check_failed"})
# What says that a child is gone: no error of its own where one stands before it.
_CHILD = frozenset({"sigquit", "child_crashed"})
_WARNINGS = {"nan_logits_warning": "NaN in the logits", "invalid_tree_warning": "invalid draft tree"}
# How many events of a process are remembered, and shown before its first error.
_REMEMBERED = 6
# Passes of a life that the hidden size is looked for in.
_LEARN_FROM = 64
# Bounds on a log that does nothing but fail; what they leave out is counted.
_MOST_GROUPS = 500
_MOST_PLACES = 20
_MOST_RELAYED = 200

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
# An error that follows from another comes within minutes; a watchdog waits longer.
_SOON = 900.0
# A lost connection may be printed so many seconds before the error of the process that died.
_MOMENT = 60.0
_DIGITS = re.compile(r"0x[0-9a-fA-F]+|\d+")
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
    exception: str | None
    message: str | None
    last_frame: str | None = None
    header: str | None = None
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

    relayed_without_origin
        True when it says itself that the cause is elsewhere, and nothing earlier in the log is that cause.
    lost
        True when it says that a connection was lost: what took it may be printed a moment later.
    """

    first: Failure
    segment: int
    last: Failure | None = None
    reading: SizeReading | None = None
    sizes: tuple[str, dict[str, Any]] | None = None
    count: int = 0
    processes: dict[str, int] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)
    relayed: list[tuple[Failure, str]] = field(default_factory=list)
    relayed_count: int = 0
    relayed_without_origin: bool = False
    lost: bool = False

    def add(self, failure: Failure) -> None:
        """Take one more of the same."""
        self.count += 1
        self.last = failure
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
    # exception lines that a traceback points to
    claimed: dict[int, Group | None] = field(default_factory=dict)
    passes: int = 0
    left_out: int = 0


class Failures:
    """The fold behind ``logscope errors``."""

    kind: ClassVar[str] = "errors"

    def __init__(self) -> None:
        self.lives: dict[tuple[str, int], Life] = {}
        self._clocks: dict[str, Clock] = {}
        self._recent: dict[tuple[str, int, str], deque[ForwardPass | ServerEvent]] = {}
        self._warned: Counter[str] = Counter()
        self._first_warned: dict[str, Place] = {}

    def see(self, item: Item) -> None:
        """Take one item."""
        if isinstance(item, Segment):
            self.lives[item.file, item.number] = Life()
            return
        life = self.lives.setdefault((item.file, item.segment), Life())
        if isinstance(item, ForwardPass):
            self._pass(life, item)
            return
        event = item.payload.event
        if event in ("capture_plan", "fc", "aux_concat"):
            self._sizes(life, item.payload, item.place)
        if event in _WARNINGS:
            self._warned[event] += 1
            self._first_warned.setdefault(event, item.place)
        elif event == "traceback" or event in SIZE_EVENTS or event in _TIMEOUTS or event in _CHILD:
            self._fail(life, item)
            return
        elif event == "http_access":
            status = item.payload.fields.get("status")
            if isinstance(status, int) and status >= 500:
                self._fail(life, item)
                return
        self._remember(item, writer_label(item.prefix))

    def _remember(self, item: ForwardPass | ServerEvent, process: str) -> None:
        self._recent.setdefault((item.file, item.segment, process), deque(maxlen=_REMEMBERED)).append(item)

    def _pass(self, life: Life, item: ForwardPass) -> None:
        """Remember a pass. Sizes are learnt from the first ones; those just before an error are read when it comes."""
        if life.passes < _LEARN_FROM:
            life.passes += 1
            self._learn(life, item)
        self._remember(item, source_name(item.group))

    def _learn(self, life: Life, item: ForwardPass) -> None:
        for record in item.records:
            self._sizes(life, record.payload, Place(item.file, record.line))

    def _sizes(self, life: Life, payload: Payload, place: Place) -> None:
        """Learn the hidden size and what was delivered, best evidence first."""
        if not payload.usable:
            return
        fields, width = payload.fields, payload.width
        if payload.event == "capture_plan":
            life.plan = life.plan or (place, fields)
            size = fields.get("hidden_size")
            if life.plan[0] == place and isinstance(size, int) and size > 0:
                life.hidden, life.hidden_from = size, f"hidden_size of the capture plan at {place}"
        elif payload.event in ("embed_capture", "layer_capture") and width and life.hidden is None:
            life.hidden, life.hidden_from = width, f"the width of the hidden capture at {place}"
        elif payload.event == "fc":
            weight = fields.get("weight")
            if life.hidden is None and isinstance(weight, list) and len(weight) == 2 and isinstance(weight[0], int):
                life.hidden, life.hidden_from = weight[0], f"what the fc weight at {place} gives"
        elif payload.event == "aux_concat" and width and len(life.delivered) < _MOST_PLACES:
            life.delivered.setdefault(width, place)

    def _fail(self, life: Life, item: ServerEvent) -> None:
        payload = item.payload
        if payload.event in SIZE_EVENTS and item.line in life.claimed:
            # The exception line of a traceback that was counted: it only brings the numbers.
            claimed = life.claimed.pop(item.line)
            if claimed is not None and claimed.sizes is None:
                claimed.sizes = (payload.event, payload.fields)
            return
        failure = self._failure(item)
        why = _relayed(failure)
        origin = _origin(life, failure) if why is not None else None
        if origin is not None and why is not None:
            origin.relay(failure, why)
            life.claimed.update(dict.fromkeys(_pointed(failure)))
            return
        if failure.event == "http_access":
            # Without an error before it, an answer of 503 is a server that is not ready yet.
            return
        key = _same(failure, payload)
        group = life.groups.get(key)
        if group is None:
            if len(life.groups) >= _MOST_GROUPS:
                life.left_out += 1
                return
            failure.before = self._before(item, failure.process)
            itself = failure.event in _TIMEOUTS or failure.event == "child_crashed" or why == _LOST
            only_passes_on = why is not None and not itself
            group = Group(failure, item.segment, relayed_without_origin=only_passes_on, lost=why == _LOST)
            if why is None:
                self._take_lost(life, group)
            life.groups[key] = group
        group.add(failure)
        if payload.event in SIZE_EVENTS:
            group.sizes = (payload.event, payload.fields)
        life.claimed.update(dict.fromkeys(_pointed(failure), group))

    def _take_lost(self, life: Life, group: Group) -> None:
        """Put lost connections that were printed a moment before an error of another process under that error."""
        for key, lost in list(life.groups.items()):
            if not lost.lost or group.first.process in lost.processes or not _close(lost.first, group.first):
                continue
            del life.groups[key]
            group.relay(lost.first, _LOST)
            group.relayed_count += lost.count - 1 + lost.relayed_count
            group.relayed += lost.relayed[: _MOST_RELAYED - len(group.relayed)]
            life.claimed.update({line: None for line, one in life.claimed.items() if one is lost})

    def _failure(self, item: ServerEvent) -> Failure:
        payload, prefix = item.payload, item.prefix
        fields = payload.fields
        moment = self._clocks.setdefault(item.file, Clock()).read(prefix.time, item.line)
        process = writer_label(prefix)
        end = fields.get("mismatch_line") if payload.event == "traceback" else None
        return Failure(
            place=Place(item.file, end) if isinstance(end, int) else item.place,
            opened=item.place,
            process=process,
            time=prefix.time,
            moment=moment,
            event=payload.event,
            exception=_text(fields.get("exception")),
            message=_text(fields.get("message")) if payload.event == "traceback" else _words(payload),
            last_frame=_text(fields.get("last_frame")),
            header=_text(fields.get("header")),
            quoted=fields.get("quoted") is True,
            interleaved=fields.get("interleaved") is True,
        )

    def _before(self, item: ServerEvent, process: str) -> list[dict[str, Any]]:
        """Return the last events of a process, and those of unmarked lines, which may be anybody's."""
        recent = [
            (found.line, name, found)
            for name in {process, ""}
            for found in self._recent.get((item.file, item.segment, name), ())
        ]
        recent.sort(key=lambda entry: entry[:2])
        life = self.lives[item.file, item.segment]
        for _, _, found in recent:
            if isinstance(found, ForwardPass):
                self._learn(life, found)
        return [
            {
                "line": line,
                "process": name or "no mark",
                "event": _brief(found, life.hidden),
            }
            for line, name, found in recent[-_REMEMBERED:]
            if line < item.line
        ]

    # ------------------------------------------------------------------------------------------------ for the rules

    def groups(self) -> list[Group]:
        """Return every group of equal errors, the earliest first, sizes read.

        The order is that of the file; of several files it is that of their times, where all are dated.
        """
        found = []
        for life in self.lives.values():
            for group in life.groups.values():
                if group.sizes is not None and group.reading is None:
                    group.reading = explain_sizes(
                        *group.sizes,
                        hidden=life.hidden,
                        hidden_from=life.hidden_from,
                        delivered=life.delivered,
                    )
                elif group.reading is None and group.first.message:
                    group.reading = explain_count(group.first.message)
                found.append(group)
        several = len({group.first.place.file for group in found}) > 1
        if several and all(group.first.moment is not None and group.first.moment.kind == "dated" for group in found):
            found.sort(key=lambda group: group.first.moment.seconds if group.first.moment else 0.0)
        return found

    # ---------------------------------------------------------------------------------------------------- the answer

    def report(self, context: Context) -> Report:
        """Answer."""
        groups = self.groups()
        report = Report(self.kind, _headline(groups), accounting=context.accounting)
        report.notes.extend(context.warnings)
        self._errors(groups, report)
        _relayed_table(groups, report)
        _sizes_table(groups, report)
        _before_table(groups, report)
        self._remarks(groups, report)
        report.facts["errors"] = [_fact(group) for group in groups]
        if groups:
            report.verdict = "findings"
        return report

    def _errors(self, groups: list[Group], report: Report) -> None:
        rows = []
        seen: set[tuple[str, int]] = set()
        for number, group in enumerate(groups, 1):
            first = group.first
            life = (first.place.file, group.segment)
            rows.append(
                {
                    "number": number,
                    "file": first.place.file,
                    "segment": group.segment,
                    "line": first.place.line,
                    "opened": first.opened.line,
                    "time": first.time,
                    "process": first.process or "no mark",
                    "error": first.what,
                    "count": group.count,
                    "processes": _processes(group),
                    "followed": group.relayed_count,
                    "last_frame": first.last_frame,
                    "means": group.reading.text if group.reading else None,
                }
            )
            if life not in seen:
                seen.add(life)
                report.findings.append(first_error(group, self.lives[life].plan))
            if group.reading is not None:
                report.findings.append(size_error(group, group.reading))
        if rows:
            columns = [
                Column("number", "#", "right", always=True),
                Column("file"),
                Column("segment", "run", "right"),
                Column("line", align="right", always=True),
                Column("time"),
                Column("process", always=True),
                Column("error", always=True),
                Column("count", "times", "right"),
                Column("processes", "seen by"),
                Column("followed", "followed by", "right"),
                Column("last_frame", "last frame"),
            ]
            report.tables["errors"] = table(
                without_empty(columns, rows),
                rows,
                title="errors, the first first",
                optional=("file", "segment", "processes"),
            )

    def _remarks(self, groups: list[Group], report: Report) -> None:
        for event, place in self._first_warned.items():
            report.notes.append(
                f"{count(self._warned[event], 'warning')} of {_WARNINGS[event]}, first at {place}: no exception, "
                "but acceptance after it means nothing"
            )
        for group in groups:
            if group.first.interleaved:
                names = and_list([name or "an unmarked process" for name in group.processes])
                report.notes.append(
                    f"the tracebacks of {names} are interleaved and their lines carry no mark: which frame belongs to "
                    "which process cannot be told"
                )
        left = sum(life.left_out for life in self.lives.values())
        if left:
            report.notes.append(f"{count(left, 'error')} behind the first {_MOST_GROUPS} kinds are not listed")
        files = {group.first.place.file for group in groups}
        undated = [group for group in groups if group.first.moment is None or group.first.moment.kind != "dated"]
        if len(files) > 1 and undated:
            report.notes.append("not every error has a date: those of different files stand in the order of the files")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _words(payload: Payload) -> str | None:
    """Return what a record that is no traceback says, in words."""
    fields = payload.fields
    if payload.event == "matmul_mismatch":
        return (
            f"mat1 and mat2 shapes cannot be multiplied ({fields.get('rows')} rows of {fields.get('got_width')}, "
            f"the weight takes {fields.get('want_width')} and gives {fields.get('out_width')})"
        )
    if payload.event == "size_mismatch":
        return f"sizes {fields.get('a')} and {fields.get('b')} do not match"
    if payload.event == "weight_shape_mismatch":
        return f"a weight of shape {fields.get('loaded')} does not fit a parameter of {fields.get('parameter_shape')}"
    if payload.event == "watchdog_timeout":
        seconds = fields.get("seconds")
        return "watchdog timeout" + (f" after {seconds} s without a forward" if seconds is not None else "")
    if payload.event == "health_check_failed":
        return f"the health check failed: no answer from the detokenizer for {fields.get('seconds')} s"
    if payload.event == "child_crashed":
        name, pid, code = (fields.get(key) for key in ("name", "child_pid", "exit_code"))
        return f"the process {name} (pid {pid}) crashed with exit code {code}"
    if payload.event == "collective_timeout":
        return f"a collective operation timed out: {fields.get('work')}"
    if payload.event == "http_access":
        return f"{fields.get('method')} {fields.get('path')} answered {fields.get('status')}"
    return "sigquit: a child process failed"


def _same(failure: Failure, payload: Payload) -> Any:
    """Return what equal errors share: exception and message without their numbers, but the widths of a size error."""
    message = failure.message or ""
    if "cannot be multiplied" in message or payload.event in SIZE_EVENTS:
        # Rows differ from request to request; the widths are the error.
        return (failure.exception, re.sub(r"\(\d+(?=x| rows)", "(N", message))
    if "must match" in message:
        return (failure.exception, message)
    return (failure.event if failure.exception is None else failure.exception, _DIGITS.sub("N", message)[:300])


def _relayed(failure: Failure) -> str | None:
    """Return why an error only passes on another one, None where it may be the cause itself."""
    exception, message = failure.exception or "", failure.message or ""
    if failure.event in _CHILD:
        return "says that a child failed"
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
    groups = list(life.groups.values())
    message = failure.message or ""
    for group in groups:
        if group.first.message and group.first.message in message:
            return group
    for group in groups:
        last = group.last.moment if group.last is not None else None
        now = failure.moment
        if last is None or now is None or last.kind != now.kind or now.seconds - last.seconds <= _SOON:
            return group
    return groups[-1] if groups else None


def _close(one: Failure, other: Failure) -> bool:
    """Return whether two errors were printed within a minute, as far as their times can be compared."""
    first, second = one.moment, other.moment
    return (
        first is None or second is None or first.kind != second.kind or abs(second.seconds - first.seconds) <= _MOMENT
    )


def _brief(item: ForwardPass | ServerEvent, hidden: int | None) -> str:
    """Return an event in a few words."""
    if isinstance(item, ForwardPass):
        parts = [f"{item.role} pass, {item.phase}"]
        if item.rows is not None:
            parts.append(count(item.rows, "row"))
        if item.captures:
            parts.append(count(len(item.captures), "hidden capture"))
        join = item.join
        if join is not None and join.payload.shape is not None:
            parts.append(f"joined {axes(join.payload.shape, hidden)}")
        return ", ".join(parts)
    payload = item.payload
    fields = payload.fields
    text = payload.event.replace("_", " ")
    named = [
        (key, name)
        for key, name in (
            ("new_token", "new tokens"),
            ("running_req", "running"),
            ("accept_len", "accept len"),
            ("type", "type"),
            ("what", "of"),
            ("requested", "requested layers"),
            ("layers_to_capture", "layers to capture"),
            ("path", "path"),
            ("status", "status"),
            ("weight", "weight"),
            ("input", "input"),
        )
        if fields.get(key) not in (None, "")
    ]
    if payload.shape is not None:
        text += f" {axes(payload.shape, hidden)}"
    return text + (": " + ", ".join(f"{name} {fields[key]}" for key, name in named) if named else "")


def _processes(group: Group) -> str:
    """Return who reports it and how often: ``TP0, TP1 (3 times)``."""
    return ", ".join(
        (name or "no mark") + (f" ({number} times)" if number > 1 else "") for name, number in group.processes.items()
    )


def _headline(groups: list[Group]) -> str:
    if not groups:
        return "no exception, no size error and no timeout in the log"
    group = groups[0]
    first = group.first
    others = [name for name in group.processes if name and name != first.process]
    also = f", the same on {and_list(others)}" if others else ""
    by = f" on {first.process}" if first.process else ""
    more = f"; {count(len(groups) - 1, 'other error')} after it" if len(groups) > 1 else ""
    followed = f"; {count(group.relayed_count, 'line')} only follow from it" if group.relayed_count else ""
    followed = followed.replace("1 line only follow", "1 line only follows")
    return f"first error{by}{also}, {first.place}: {first.what}{followed}{more}"


def first_error(group: Group, plan: tuple[Place, dict[str, Any]] | None) -> Finding:
    """Return the finding E101: the first error of a server life, with its capture plan if one was printed."""
    first = group.first
    by = f" in {first.process}" if first.process else ""
    origin = "; it only passes on an error that is not in this log" if group.relayed_without_origin else ""
    evidence = [f"opened at {first.opened}"] if first.opened != first.place else []
    if first.last_frame:
        evidence.append(f"last frame {first.last_frame}")
    if len(group.processes) > 1 or group.count > 1:
        evidence.append(f"{count(group.count, 'time')}: {_processes(group)}")
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
        message=f"the first error{by}: {first.what}{origin}",
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
        rule="E102",
        severity="error",
        message=reading.text,
        where=group.first.place,
        expected=reading.want,
        actual=reading.got,
        evidence=group.first.message,
    )


def _relayed_table(groups: list[Group], report: Report) -> None:
    rows = [
        {
            "origin": number,
            "file": failure.place.file,
            "line": failure.place.line,
            "time": failure.time,
            "process": failure.process or "no mark",
            "error": failure.what,
            "why": why,
        }
        for number, group in enumerate(groups, 1)
        for failure, why in group.relayed
    ]
    if rows:
        report.tables["relayed"] = table(
            [
                Column("origin", "follows #", "right", always=True),
                Column("file"),
                Column("line", align="right", always=True),
                Column("time"),
                Column("process", always=True),
                Column("error", always=True),
                Column("why", "because it"),
            ],
            rows,
            title="what only follows",
            optional=("file",),
        )


def _sizes_table(groups: list[Group], report: Report) -> None:
    rows = [
        {
            "number": number,
            "line": group.first.place.line,
            "rows": group.reading.rows,
            "got": group.reading.got,
            "want": group.reading.want,
            "got_states": group.reading.got_states,
            "want_states": group.reading.want_states,
            "unit": group.reading.unit,
            "unit_from": group.reading.unit_from,
            "means": group.reading.text,
        }
        for number, group in enumerate(groups, 1)
        if group.reading is not None
    ]
    if rows:
        columns = [
            Column("number", "#", "right", always=True),
            Column("line", align="right"),
            Column("rows", align="right"),
            Column("got", always=True),
            Column("want", always=True),
            Column("unit", "one state", "right"),
            Column("unit_from", "known from"),
        ]
        report.tables["sizes"] = table(without_empty(columns, rows), rows, title="sizes that do not fit", optional=())


def _before_table(groups: list[Group], report: Report) -> None:
    rows = [{"number": number, **event} for number, group in enumerate(groups[:10], 1) for event in group.first.before]
    if rows:
        report.tables["before"] = table(
            [
                Column("number", "before #", "right"),
                Column("line", align="right", always=True),
                Column("process"),
                Column("event", always=True),
            ],
            rows,
            title="the last events before it",
            caption="lines without a mark may be of any process",
            optional=("number",),
        )


def _fact(group: Group) -> dict[str, Any]:
    first = group.first
    return {
        "file": first.place.file,
        "segment": group.segment,
        "line": first.place.line,
        "opened": first.opened.line,
        "process": first.process or None,
        "exception": first.exception,
        "message": first.message,
        "count": group.count,
        "processes": {name or "no mark": number for name, number in group.processes.items()},
        "places": [str(place) for place in group.places],
        "relayed": [
            {"process": failure.process or None, "line": failure.place.line, "error": failure.what, "why": why}
            for failure, why in group.relayed
        ],
        "relayed_count": group.relayed_count,
    }
