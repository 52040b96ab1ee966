"""Accept len in a few microseconds a line: what the summary says of it, without the series behind it.

This module is responsible for the mean, the extremes and the rate definition of every process, as the ``accept``
question counts them (a test holds the two together). It must not keep lines: a log of one gigabyte may hold millions of
them, and whoever wants them over time asks ``accept``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from logscope.queries.clock import server_label, writer_label
from logscope.queries.fold import Running
from logscope.queries.intervals import DEFAULT_ROUNDS, INTERVAL_EVENTS, bonus_of, number
from logscope.queries.rates import RateRanges

if TYPE_CHECKING:
    from logscope.model import Segment, ServerEvent
    from logscope.queries.accept import Accept

# Lines of other servers are few (one in ten seconds); they go the long way, and so does what names their engines.
_OTHERS = (INTERVAL_EVENTS | {"engine_stats"}) - {"decode_stats"}


class Process:
    """What the decode lines of one process say."""

    __slots__ = (
        "first",
        "largest",
        "last",
        "last_running",
        "lines",
        "server",
        "smallest",
        "speed",
        "weight",
        "weighted",
    )

    def __init__(self, server: tuple[str, int, str]) -> None:
        self.server = server
        self.lines = 0
        self.first = self.last = 0
        self.weight = self.weighted = 0.0
        self.smallest, self.largest = math.inf, -math.inf
        self.last_running: float | None = None
        self.speed = Running()


class Lengths:
    """The fold over statistics lines."""

    __slots__ = ("_keys", "_others", "_ranges", "_segments", "processes", "repeated")

    def __init__(self) -> None:
        self._keys: dict[tuple[Any, ...], Process] = {}
        self._ranges: dict[tuple[str, int, str], RateRanges] = {}
        self._segments: list[Segment] = []
        self._others: Accept | None = None
        self.processes: dict[tuple[str, int, str], Process] = {}
        self.repeated = 0

    def segment(self, segment: Segment) -> None:
        """Take a segment, before its lines."""
        self._segments.append(segment)
        if self._others is not None:
            self._others.see(segment)

    def see(self, item: ServerEvent, segment: Segment | None) -> None:
        """Take a server line of any kind."""
        payload = item.occurrence[3]
        event = payload.event
        if event == "decode_stats":
            if payload.usable:
                self._decode(item, payload.fields, segment)
        elif event in _OTHERS:
            if self._others is None:
                from logscope.queries.accept import Accept  # noqa: PLC0415 - most logs never need it

                self._others = Accept()
                for known in self._segments:
                    self._others.see(known)
            self._others.see(item)

    def _process(self, item: ServerEvent) -> Process:
        prefix = item.occurrence[2]
        key = (item.file, item.segment, prefix.writer, prefix.extra)
        process = self._keys.get(key)
        if process is None:
            label = (item.file, item.segment, writer_label(prefix))
            process = self.processes.get(label)
            if process is None:
                process = self.processes[label] = Process((item.file, item.segment, server_label(prefix)))
            self._keys[key] = process
        return process

    def _decode(self, item: ServerEvent, fields: dict[str, Any], segment: Segment | None) -> None:
        process = self._process(item)
        self.repeated += fields.get("repeated", 0)
        speed = fields.get("gen_throughput")
        # bool is an int, nan fails every comparison: both stay out.
        if isinstance(speed, float) and 0.0 <= speed < math.inf:
            process.speed.add(speed)
        length, running = number(fields.get("accept_len")), number(fields.get("running_req"))
        weight = self._weight(process, running, segment)
        tokens, rounds = number(fields.get("spec tokens")), number(fields.get("spec rounds"))
        # A fork prints what stands behind the length: better than any estimate.
        if tokens is not None and rounds:
            length, weight = number(tokens / rounds), rounds
        if length is None:
            return
        process.last_running = running
        line = item.occurrence[0]
        if not process.lines:
            process.first = line
        process.last = line
        process.lines += 1
        process.weight += weight
        process.weighted += weight * length
        if length < process.smallest:
            process.smallest = length
        if length > process.largest:
            process.largest = length
        rate = number(fields.get("accept_rate"))
        if rate is not None:
            ranges = self._ranges.get(process.server)
            if ranges is None:
                ranges = self._ranges[process.server] = RateRanges(bonus_of(segment))
            ranges.add(line, length, rate, weight)

    @staticmethod
    def _weight(process: Process, running: float | None, segment: Segment | None) -> float:
        """Return how many verifies a line stands for: rounds x mean of the requests at both ends of the interval."""
        requests = 1.0 if running is None else running
        if running is not None and process.last_running is not None:
            requests = (requests + process.last_running) / 2
        rounds = (segment.decode_log_interval if segment is not None else None) or DEFAULT_ROUNDS
        return rounds * (requests or 1.0)

    def rows(self, segments: dict[tuple[str, int], Segment]) -> list[dict[str, Any]]:
        """Return the rows of summarize's ``accept`` table, one per segment and process (and engine).

        A process that prints a throughput but no length has a row as well: ``lines`` counts lengths, so it is 0 there.
        """
        rows = []
        for (file, ordinal, label), process in self.processes.items():
            if not process.lines and not process.speed.count:
                continue
            definition, rule = self._definition(process, segments.get((file, ordinal)))
            rows.append(
                {
                    "file": file,
                    "segment": ordinal,
                    "origin": label,
                    "lines": process.lines,
                    "accept_len_mean": round(process.weighted / process.weight, 4) if process.lines else None,
                    "min": round(process.smallest, 2) if process.lines else None,
                    "max": round(process.largest, 2) if process.lines else None,
                    "rate_definition": definition,
                    "rate_rule": rule,
                    "throughput_median": process.speed.median,
                    "throughput_max": process.speed.largest,
                }
            )
        return rows if self._others is None else rows + self._others.summary_rows()

    def _definition(self, process: Process, segment: Segment | None) -> tuple[str | None, str | None]:
        """Return the definition of accept rate in force over the lines of a process, and its formula."""
        ranges = self._ranges.get(process.server)
        steps, tokens = (segment.num_steps, segment.num_draft_tokens) if segment is not None else (None, None)
        here = [
            found.decide(steps, tokens)
            for found in (ranges.ranges if ranges is not None else [])
            if found.first_line <= process.last and found.last_line >= process.first
        ]
        rules = sorted({(verdict.definition, verdict.rule) for verdict in here})
        if not rules:
            return None, None
        names = {name for name, _ in rules}
        # One letter with several formulas is one definition only where the bonus token is left out (N changed).
        name = names.pop() if len(rules) == 1 or names == {"C"} else "mixed"
        return name, ", ".join(rule for _, rule in rules[:4]) + (", ..." if len(rules) > 4 else "")
