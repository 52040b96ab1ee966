"""Tracebacks and dumps of threads: which of the lines behind a record say where the process was.

This module is responsible for the frames, the exception line and the chained halves of tracebacks, and for the top
frame of dumps, whoever else prints in between. It must not know how a line is read, nor what an error means.

A line belongs to a traceback when it is marked as the lines of that one are: a collector marks every line, a server
often the first line only. Source: "traceback" and "faulthandler" of Python's library reference, py-spy's manual.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logscope.grammar.literals import as_text
from logscope.grammar.records import inside_quotes

if TYPE_CHECKING:
    from logscope.grammar import Grammar
    from logscope.model import Prefix
    from logscope.scan.pending import Found

# Lines that one is waited for: a traceback from its head on, a chained half behind the exception line, a top frame.
_PATIENCE = {"traceback": 400, "ended": 40, "frames": 40}
_MOST = 256  # that are waited for at once; the oldest gives up first

_EXCEPTION = re.compile(r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?:: (?P<message>.*))?$", re.DOTALL)
_SURE = re.compile(r"(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Interrupt|Exit|Warning|Iteration)(?:: |$)")
_FRAME = re.compile(r"\s*File \"(?P<file>[^\"]*)\", line (?P<line>\d+)(?:, in (?P<function>.*)|\s*$)")
# faulthandler's and py-spy's frames; a frame of py-spy outside Python has no line.
_DUMPED = re.compile(r"\s*File \"([^\"]*)\", line (\d+),? in (.+)|\s*([^\s(]+) \(([^()]+):(\d+)\)\s*$")
_CHAINS = ("During handling of the above exception,", "The above exception was the direct cause")


@dataclass(slots=True)
class _Trace:
    """One that more lines may belong to.

    ``state`` is a key of :data:`_PATIENCE`; ``body``: how its lines are marked, None before the first; ``bare``: its
    last line was a frame without indentation, behind which its statement has none either; ``number``: its line's.
    """

    entry: Found
    state: str
    number: int
    body: tuple[Any, ...] | None = None
    waited: int = 0
    bare: bool = False
    chained: bool = False
    statement: str = ""

    def takes(self, prefix: Prefix) -> bool:
        """Tell whether a line marked so may belong to it."""
        head, marks = self.entry.prefix, prefix.writer
        return marks == head.writer or (self.body in (None, marks) and may_be_of(prefix, head))


class Traces:
    """Those of one file that are open; ``waiting`` is True while there are any."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.waiting: list[_Trace] = []

    def age(self) -> None:
        """Give up, on a new line, what was waited for long enough."""
        for trace in self.waiting:
            trace.waited += 1
        self._close([trace for trace in self.waiting if trace.waited > _PATIENCE[trace.state]])

    def begin(self, entry: Found, number: int, before: str) -> None:
        """Take a record that frames follow; ``before`` is what stands before it on its line."""
        fields = entry.payload.fields
        if entry.open == "traceback":
            end, _ = self.grammar.peel(before)
            header = as_text(before[end:]).strip().rstrip(":")
            fields.update(process=writer_name(entry.prefix), exception=None, message=None, last_frame=None)
            fields.update(header=header or None, quoted=False, mismatch_line=None)
            first = next((one for one in self.waiting if one.chained and one.takes(entry.prefix)), None)
            if first is not None:
                said = first.entry.payload.fields
                fields.update(process=said["process"], chained=said.get("chained", first.entry.line))
                self._close([first])
        else:
            fields["top_frame"] = None
            event = entry.payload.event
            self._close([one for one in self.waiting if one.entry.payload.event == event and one.takes(entry.prefix)])
        self.waiting.append(_Trace(entry, entry.open or "", number))
        self._close(self.waiting[:-_MOST])

    def take(self, text: str, prefix: Prefix, number: int) -> bool:
        """Take text that is no record; tell whether it is a part of one."""
        mine = [trace for trace in self.waiting if trace.number != number and trace.takes(prefix)]
        found = _DUMPED.match(text)
        dumps = [trace for trace in mine if trace.state == "frames"]
        if dumps and found is not None:
            function, file, line = (found[3], found[1], found[2]) if found[1] else found.groups()[3:]
            for trace in dumps:
                trace.entry.payload.fields["top_frame"] = as_text(f"{file}:{line} in {function.strip()}")
            self._close(dumps)
            return True
        if text.startswith(_CHAINS):
            for trace in mine:
                trace.chained, trace.waited = trace.state == "ended", 0
        mine = [trace for trace in mine if trace.state == "traceback"]
        if not mine:
            return False
        frame = _FRAME.match(text)
        indented = text[:1] in (" ", "\t")
        if frame is None and not indented and (not mine[0].bare or _SURE.match(text)):
            return self.end(text, prefix, number)
        function = f" in {frame['function'].strip()}" if frame is not None and frame["function"] else ""
        for trace in mine:
            trace.body = trace.body or prefix.writer
            trace.bare = frame is not None and not indented
            if frame is not None:
                trace.entry.payload.fields["last_frame"] = as_text(f"{frame['file']}:{frame['line']}{function}")
            elif text.strip(" \t^~"):
                trace.statement = text.strip()
            if len(mine) > 1:
                trace.entry.payload.fields["interleaved"] = True
        return True

    def end(self, text: str, prefix: Prefix, number: int, line: int | None = None) -> bool:
        """Take an exception's own line, a record (on this line) or not: it ends the traceback that was opened first."""
        end, _ = self.grammar.peel(text)
        found = _EXCEPTION.match(text[end:].strip())
        mine = (one for one in self.waiting if one.state == "traceback" and one.number != number and one.takes(prefix))
        trace = next(mine, None) if found is not None else None
        if trace is None or found is None:
            return False
        fields, message = trace.entry.payload.fields, found["message"]
        fields["exception"] = as_text(found["type"])
        if message is None and found["type"] == "AssertionError" and trace.statement.startswith("assert "):
            message = trace.statement
        fields["message"] = as_text(message) if message is not None else None
        if line is not None:
            fields["mismatch_line"] = line
        elif message is not None:
            anchor = self.grammar.find(message)
            fields["quoted"] = anchor is not None and inside_quotes(message, anchor[0])
        trace.entry.open, trace.state, trace.waited = None, "ended", 0
        return True

    def close(self) -> None:
        """Give up all: nothing follows."""
        self._close(self.waiting)

    def _close(self, gone: list[_Trace]) -> None:
        if gone:
            for trace in gone:
                trace.entry.open = None
            self.waiting = [trace for trace in self.waiting if trace not in gone]


def may_be_of(line: Prefix, head: Prefix) -> bool:
    """Tell whether a line may be of the process that wrote a record: what it is marked with marks that one too."""
    origin = line.origin is None or f"{head.origin or ''}/".startswith(f"{line.origin}/")
    return origin and all(one in (None, two) for one, two in zip(line.writer[1:], head.writer[1:], strict=True))


def writer_name(prefix: Prefix) -> str | None:
    """Return the process a prefix names, in words: ``Worker_TP1 pid=412``, ``DP1 TP1``; None when it names none."""
    parts = [prefix.origin] if prefix.origin else []
    ranks = (("DP", prefix.dp_rank), ("PP", prefix.pp_rank), ("TP", prefix.tp_rank), ("EP", prefix.ep_rank))
    if not prefix.origin or not any(f"{name}{rank}" in prefix.origin for name, rank in ranks if rank is not None):
        parts.extend(f"{name}{rank}" for name, rank in ranks if rank is not None)
    if prefix.pid is not None:
        parts.append(f"pid={prefix.pid}")
    return " ".join(parts) or None
