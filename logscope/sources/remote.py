"""Logs on other hosts as what the rest of logscope reads: sources and blocks.

This module is responsible for joining :mod:`logscope.fetch`, which knows nothing of logs, to sources and blocks. It
must not know how a host is reached, nor what stands in a log.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from logscope.errors import UsageError
from logscope.fetch import Chunk, Options, Spec, cached, parse, remote_follow, ssh_command
from logscope.sources.blocks import BLOCK_SIZE, LINE_SLACK, Block
from logscope.sources.inputs import expand
from logscope.sources.tail import Tail, tail_blocks

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Generator, Iterator

    from logscope.sources.streams import Source


def remote_sources(text: str, options: Options | None = None, *, quiet: bool = False) -> list[Source]:
    """Bring what is new of ``host:/path`` to the cache; return it as sources that carry the remote name.

    ``path`` of each is the local copy, which :func:`logscope.fetch.origin` knows. Where stderr is a terminal it shows
    how far this has got, unless ``quiet``.

    Raises
    ------
    RemoteError, UsageError, InputError
        it cannot be brought or read.

    """
    options = options or Options(ssh=ssh_command(), digest=False)
    sources = []
    for file in cached(_spec(text), options, terminal=None if quiet else sys.stderr):
        [source] = expand(Path(file.file))
        source.name = f"{file.host}:{file.path}"
        # That the log was rotated, and what of it is missing, belongs to the answer.
        source.warnings += file.notices
        sources.append(source)
    return sources


def follow_blocks(
    text: str,
    options: Options | None = None,
    *,
    stop: threading.Event | None = None,
    idle: float | None = None,
    warn: Callable[[str], None] = lambda _: None,
) -> Iterator[Block | None]:
    """Yield the lines of a growing remote log as blocks, as :func:`logscope.sources.tail.follow` does for a local one.

    Raises
    ------
    RemoteError, UsageError
        it cannot be reached or read, at the start.

    """
    chunks = remote_follow(_spec(text), options or Options(ssh=ssh_command()), notice=warn, stop=stop)
    return tail_blocks(_RemoteTail(chunks, os.fsdecode(text)), 0.0, stop, idle)


def _spec(text: str) -> Spec:
    spec = parse(text)
    if spec is None:
        raise UsageError(f"'{text}' is not on another host")
    return spec


class _RemoteTail(Tail):
    """A followed remote file. Waiting and looking are one step there: the news of a wait is kept until it is read."""

    def __init__(self, chunks: Generator[Chunk, None, None], name: str) -> None:
        self._chunks = chunks
        self._held: Chunk | None = None
        self._generation = 1
        super().__init__(-1, name, BLOCK_SIZE, LINE_SLACK, owned=False)

    def _read(self) -> bytes:
        chunk = self._held
        if chunk is None or chunk.generation != self._generation:
            return b""
        self._held = None
        return chunk.data

    def wait(self, poll: float, stop: threading.Event | None) -> None:  # noqa: ARG002 - the chunks keep time
        """See :class:`Tail`."""
        self._held = next(self._chunks, None)
        self.ended = self._held is None

    def is_over(self) -> bool:
        """See :class:`Tail`."""
        return self._held is not None and self._held.generation != self._generation

    def renew(self) -> None:
        """See :class:`Tail`."""
        if self._held is not None:
            self._generation = self._held.generation
        self._begin()

    def close(self) -> None:
        """End the connection."""
        self._chunks.close()
