"""A line on the terminal that says how far a fetch has got: bytes, rate, time left.

This module is responsible for that line. It must not know what is fetched; nothing is printed unless the stream is a
terminal.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Hashable

_EVERY = 0.1
_SPAN = 5.0


def in_words(count: float) -> str:
    """Return a number of bytes with three digits or so: ``1.2 GB`` (1 GB is 10^9 bytes)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


class Bar:
    """The progress of all files together. Several threads may tell it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._files: dict[Hashable, tuple[int, int]] = {}
        self._first: dict[Hashable, int] = {}
        self._marks: list[tuple[float, int]] = []
        self._drawn = 0.0
        self._width = 0

    @classmethod
    def on(cls, stream: TextIO) -> Bar | None:
        """Return a bar when the stream is a terminal, else None."""
        return cls(stream) if stream.isatty() else None

    def advance(self, file: Hashable, done: int, total: int) -> None:
        """Tell how many bytes of a file are there."""
        with self._lock:
            self._files[file] = (done, total)
            self._first.setdefault(file, done)
            now = time.monotonic()
            if now - self._drawn >= _EVERY:
                self._drawn = now
                self._draw(now)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        with self._lock:
            self._wipe()
            self._stream.write(text + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Remove the line."""
        with self._lock:
            self._wipe()
            self._stream.flush()

    def line(self, now: float) -> str:
        """Return the line for a time (of the monotonic clock)."""
        done = sum(done for done, _ in self._files.values())
        total = sum(total for _, total in self._files.values())
        moved = done - sum(self._first.values())
        self._marks = [*(mark for mark in self._marks if mark[0] > now - _SPAN), (now, moved)]
        then, before = self._marks[0]
        span = now - then
        rate = (moved - before) / span if span > 0 else 0.0
        left = f", {_clock((total - done) / rate)} left" if rate > 0 and total > done else ""
        share = f"{100 * done / total:3.0f} %" if total else "100 %"
        files = f"{len(self._files)} files: " if len(self._files) > 1 else ""
        return f"{files}{share}  {in_words(done)} of {in_words(total)}, {in_words(rate)}/s{left}"

    def _draw(self, now: float) -> None:
        text = self.line(now)
        self._stream.write("\r" + text.ljust(self._width))
        self._stream.flush()
        self._width = len(text)

    def _wipe(self) -> None:
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._width = 0


def _clock(seconds: float) -> str:
    whole = int(seconds + 0.5)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
