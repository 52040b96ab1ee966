"""Lines on the terminal that say how far a fetch has got: bytes, rate, time left of each file that is under way.

This module is responsible for these lines. It must not know what is fetched.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rich.progress import TaskID

    Advance = Callable[[Path, int, int], None]


@contextlib.contextmanager
def drawn(stream: TextIO | None, clock: Callable[[], float] | None = None) -> Iterator[Advance]:
    """Give what is told how many bytes of how many there are of a file, from any thread; the lines go with the block.

    Nothing is printed unless the stream is a terminal. What is written to stderr meanwhile stands above the lines.
    """
    if stream is None or not stream.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda _file, _done, _total: None
        return
    from rich import progress  # noqa: PLC0415 - paid for by who sees it
    from rich.console import Console  # noqa: PLC0415

    tasks: dict[Path, TaskID] = {}
    with progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=20),
        progress.TextColumn("{task.percentage:3.0f} %"),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(file=stream),
        get_time=clock,
        transient=True,
    ) as lines:

        def advance(file: Path, done: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = lines.add_task(file.name, completed=done, total=total)
            lines.update(tasks[file], completed=done, total=total, visible=done < total)

        yield advance
