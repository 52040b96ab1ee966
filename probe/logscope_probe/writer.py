"""The thread that turns finished passes into records and writes them, and that watches the switch.

This module is responsible for files, their rotation, what is dropped, and for the files beside the records by which a
running server is switched: ``off`` (nothing is recorded while it is there) and ``found`` (a rank's first finding, and
the pass after which all ranks stop). It must not know SGLang, and it makes no call of CUDA: it only looks at slots.

A pass is written with one ``write`` to a file opened for appending; what a full disk takes only a part of is taken
back, so a record is whole or not there. A file that cannot be written loses passes, never the server: they are counted,
and the next record that can be written says so (``dropped=N``).
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from logscope_probe import lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from logscope_probe.device import Slot
    from logscope_probe.options import Options

POLL = 1.0
SAID = 3  # failures that are said
# How long a process that ends waits for its last records.
FAREWELL = 1.0


class Job(NamedTuple):
    """A pass whose results are on their way."""

    slot: Slot
    one: lines.Pass
    states: list[tuple[lines.State, int]]
    target: bool
    dropped: int

    @property
    def passes(self) -> int:
        """How many passes it is: a graph may hold several."""
        return 1 + max(state.step for state, _ in self.states)


class Seen(Protocol):
    """What looks at states; :class:`logscope_probe.findings.Watch`."""

    def forget(self) -> None:
        """Another target pass begins, or one was missed."""

    def look(self, label: str, mode: str, norms: Any) -> tuple[str, int] | None:
        """Return what is wrong, and the row."""


class Writer:
    """The writing side of one process.

    Attributes:
        on: whether passes are wanted; the serving side reads it, this side sets it.
        stop_after: the last pass that is wanted, None while that is open.
        reached: the serving side has come past that pass.

    """

    def __init__(
        self, options: Options, header: Callable[[], dict[str, object]], free: Callable[[Slot], None], watch: Seen
    ) -> None:
        """Prepare; nothing is opened before the first record, and nothing runs before ``start``.

        Args:
            options: the options of this start.
            header: makes the header's values; asked when a file begins and when models were loaded since.
            free: takes a slot back.
            watch: looks at the states.

        """
        self.options = options
        self.on = True
        self.stop_after: int | None = None
        self.reached = False
        self.rank = ""
        self._header, self._free, self._watch = header, free, watch
        self._header_text = ""
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._fd = -1
        self._size = 0
        self._lost = self._failures = 0
        self._told: set[tuple[str, str]] = set()
        self._stopped = False
        self._polled = self._began = time.time()
        self._given = self._done = 0
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ the serving side's calls

    def start(self) -> None:
        """Start the thread, once."""
        if self._thread is None:
            self._look_at_switch()
            self._thread = threading.Thread(target=self._run, daemon=True, name="logscope-probe")
            self._thread.start()
            atexit.register(self.drain)

    def put(self, job: Job) -> None:
        """Hand a pass over."""
        self._given += 1
        self._jobs.put(job)

    def drain(self, seconds: float = FAREWELL) -> bool:
        """Wait a moment for what was handed over; True when all of it is written."""
        until = time.monotonic() + seconds
        while self._done < self._given and time.monotonic() < until:
            time.sleep(0.002)
        return self._done == self._given

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=POLL)
            except queue.Empty:
                self._look_at_switch()
                continue
            pause = 0.0005
            while not job.slot.ready():
                time.sleep(pause)
                pause = min(0.005, pause * 1.5)
                self._look_at_switch()
            try:
                self.write(job)
            except Exception as error:  # noqa: BLE001 - a probe must never take a server down
                self._lost += job.passes
                self._failures += 1
                if self._failures <= SAID:
                    os.write(2, f"logscope probe: a pass was not written: {type(error).__name__}: {error}\n".encode())
            finally:
                self._free(job.slot)
                self._done += 1
            self._look_at_switch()

    def write(self, job: Job) -> None:
        """Write one pass whose results are there."""
        if self.stop_after is not None and job.one.number > self.stop_after:
            return
        if job.target or job.dropped or self._lost:
            self._watch.forget()
        ahead = lines.stamp(job.one.time, self.rank)
        texts, notes = [], []
        for state, rows in job.states:
            first, norm, norms = job.slot.values(state.at, rows)
            shown = norms[: self.options.row_norms].tolist()
            texts.append(ahead + lines.state_text(state, job.one, rows, norm, first, shown))
            if (found := self._watch.look(state.label, job.one.mode, norms)) is not None:
                notes += self._found(found, state, job.one, ahead)
        missing = job.dropped + self._lost
        if missing and texts:
            texts[0] += f", dropped={missing}"
        written = self._append([*texts, *notes], job.one.time)
        self._lost = 0 if written and texts else missing + (0 if written else job.passes)

    def _found(self, found: tuple[str, int], state: lines.State, one: lines.Pass, ahead: str) -> list[str]:
        """Say a finding once for each kind and state; the first one may set the end."""
        what, row = found
        number = one.number + state.step
        if self.options.until_finding >= 0 and self.stop_after is None:
            self.stop_after = number + self.options.until_finding
            self._tell_others(what, number)
            self._hear_others()
        if (what, state.label) in self._told:
            return []
        self._told.add((what, state.label))
        text = lines.note_text(
            "finding", what=what, state=state.label, row=row, forward_mode=one.mode, graph=one.graph, **{"pass": number}
        )
        return [ahead + text]

    def _stop(self) -> None:
        """Say that the end is reached, once."""
        self.on, self._stopped, now = False, True, time.time()
        text = lines.note_text("stop", reason="until-finding", **{"pass": self.stop_after})
        self._append([lines.stamp(now, self.rank) + text], now)

    # ------------------------------------------------------------------ files

    def path(self) -> str:
        """Return the file of this process: its rank and its number."""
        rank = self.rank.strip().replace(" ", ".").lower() or "rank0"
        return os.path.join(self.options.folder, f"{rank}.{os.getpid()}.log")

    def _append(self, texts: list[str], when: float) -> bool:
        """Write lines at once, a header before them where one is due; False when they are lost."""
        if not texts:
            return True
        data = ("\n".join(texts) + "\n").encode()
        try:
            header = lines.note_text("header", **self._header())
            if self._fd >= 0 and self._size + len(data) > self.options.size:
                self._rotate()
            if self._fd < 0:
                os.makedirs(self.options.folder, exist_ok=True)
                self._fd = os.open(self.path(), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
                self._size = os.fstat(self._fd).st_size
                self._header_text = ""
            if header != self._header_text:
                data = f"{lines.stamp(when, self.rank)}{header}\n".encode() + data
            if os.write(self._fd, data) < len(data):
                os.ftruncate(self._fd, self._size)
                return False
        except OSError:
            return False
        self._size += len(data)
        self._header_text = header
        return True

    def _rotate(self) -> None:
        """Rename the full file: ``.1`` is the youngest of the old ones."""
        path = self.path()
        for number in range(self.options.keep, 0, -1):
            older = f"{path}.{number - 1}" if number > 1 else path
            if os.path.exists(older):
                os.replace(older, f"{path}.{number}")
        if not self.options.keep:
            os.unlink(path)
        os.close(self._fd)
        self._fd = -1

    # ------------------------------------------------------------------ the switch

    def _look_at_switch(self) -> None:
        """Look, once a second, whether the file `off` is there and whether another rank has found something."""
        now = time.time()
        if now - self._polled < POLL and self._thread is not None:
            return
        self._polled = now
        if self.options.until_finding >= 0 and self.stop_after is None:
            self._hear_others()
        if self.reached and not self._stopped and self._jobs.empty():
            self._stop()
        self.on = not self._stopped and not os.path.exists(os.path.join(self.options.folder, "off"))

    def _tell_others(self, what: str, number: int) -> None:
        text = json.dumps({"what": what, "pass": number, "rank": self.rank.strip(), "stop": self.stop_after})
        try:
            fd = os.open(os.path.join(self.options.folder, "found"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError:
            return
        os.write(fd, text.encode())
        os.close(fd)

    def _hear_others(self) -> None:
        """Take the end over from the rank that found something first."""
        path = os.path.join(self.options.folder, "found")
        try:
            # A file of an earlier start says nothing about this one; half a file is read the next time.
            if os.stat(path).st_mtime >= self._began - 1:
                with open(path, encoding="utf-8") as file:
                    self.stop_after = int(json.load(file)["stop"])
        except (OSError, ValueError):
            return
