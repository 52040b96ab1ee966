"""A report that changes while it is read, drawn again and again on the terminal's second screen.

This module is responsible for drawing and for giving the first screen back. It must not know what is drawn.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self, TextIO


class Screen:
    """The second screen of a terminal, while the ``with`` block lasts."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __enter__(self) -> Self:
        """Turn to the second screen and hide the cursor."""
        self._stream.write("\x1b[?1049h\x1b[?25l")
        self._stream.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give cursor and first screen back."""
        self._stream.write("\x1b[?25h\x1b[?1049l")
        self._stream.flush()

    def draw(self, text: str, status: str) -> None:
        """Draw as much of the text as the window holds, and a status in its last line; nothing flickers."""
        height = shutil.get_terminal_size().lines
        lines = text.rstrip("\n").split("\n")[: height - 1]
        lines += [""] * (height - 1 - len(lines)) + [status]
        self._stream.write("\x1b[H" + "\r\n".join(line + "\x1b[K" for line in lines))
        self._stream.flush()
