"""How far the reading of a large input has come, on one line of a terminal that is wiped at the end.

This module is responsible for that line. It must not know what is read.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from logscope.render.text import size, visible

if TYPE_CHECKING:
    from typing import TextIO

# Below this an input is read before a reader could read the line.
WORTH_SHOWING = 200_000_000
_EVERY = 0.1  # seconds between two states of the line


class Progress:
    """A line of progress on a stream; ``total`` bytes, None when they are not known (a pipe, an archive)."""

    def __init__(self, stream: TextIO, total: int | None, width: int = 80) -> None:
        self._stream = stream
        self._total = total
        self._width = width
        self._start = self._shown = time.monotonic()
        self._done = 0
        self._drawn = False

    def add(self, count: int, name: str) -> None:
        """Take ``count`` further bytes of the input called ``name``."""
        self._done += count
        now = time.monotonic()
        if self._done >= WORTH_SHOWING // 10 and now - self._shown >= _EVERY:
            self._shown = now
            self._draw(self.line(name, now - self._start))

    def line(self, name: str, seconds: float) -> str:
        """Return the line: the share, the amount, the rate, what is read."""
        rate = self._done / seconds if seconds > 0 else 0.0
        share = (
            f"{min(100, 100 * self._done // self._total)} % of {size(self._total)}" if self._total else size(self._done)
        )
        return f"reading {visible(name)}: {share}, {size(int(rate))}/s"[: self._width - 1]

    def _draw(self, text: str) -> None:
        self._drawn = True
        self._stream.write(f"\r{text}\x1b[K")
        self._stream.flush()

    def close(self) -> None:
        """Wipe the line."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
