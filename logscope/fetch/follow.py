"""A growing file on a node, byte for byte, through rotation, truncation and lost connections.

This module is responsible for the promise that a follower sees every byte once and in order, as far as the node still
has it, and is told where it has not. It must not know what the bytes mean.

The node is asked again and again (nothing runs there between two questions). Whether a file is still the one that was
read is told by content: its first bytes and the bytes just before the place reading has got to. A file that is another
one begins the next *generation*, at offset 0; first the rest of the old one is read, from the open descriptor or from
where a rotation put it.
"""

from __future__ import annotations

import contextlib
import re
import threading
from typing import TYPE_CHECKING, NamedTuple

from logscope.fetch.link import Link, Options
from logscope.fetch.node import FileError, Stat
from logscope.fetch.spec import shown
from logscope.fetch.ssh import SshError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from logscope.fetch.node import Node
    from logscope.fetch.spec import Spec

_REMEMBERED = 4096
_OVERLAP = 256
_AT_ONCE = 4 << 20
# Names that logrotate and its like give: server.log.1, server.log-20260210, server-2026-02-10.log.
_FAMILY = re.compile(rb"[._-]?\d[\d._:T-]*(?:\.[A-Za-z]+)?")


class Chunk(NamedTuple):
    """Some bytes of a file: ``offset`` is that of the first one, in the file's ``generation`` (counted from 1).

    Offsets rise without a gap within a generation. ``data`` is empty when there was nothing new.
    """

    data: bytes
    offset: int
    generation: int


class Follower:
    """Where following has got to, and the steps that bring it further."""

    def __init__(self, link: Link, path: bytes, start: int) -> None:
        self.link = link
        self.path = path
        self.name = f"{link.host}:{shown(path)}"
        self.offset = start
        self.generation = 1
        self._head = bytearray()
        self._tail = b""
        self._begun = start > 0
        self._open_now: Stat | None = None
        self._node: Node | None = None
        self._queue: list[bytes] = []
        self._quiet = False
        self._waiting = False

    def step(self) -> bytes:
        """Return what is new, at :attr:`offset` before the call; empty when there is nothing.

        Raises:
            SshError: the connection was lost; the next call makes a new one and goes on.
            FileError: the file cannot be read, at the first step.

        """
        node = self.link.node
        if node is not self._node or self._open_now is None:
            self._open_now = None
            self._node = node
            if not self._find(node):
                return b""
        overlap = self._tail[-_OVERLAP:]
        data, stat, named = node.next(self.path, self.offset - len(overlap), self.offset, _AT_ONCE)
        self.link.progress()
        if stat.size < self.offset or (data and not data.startswith(overlap)):
            # Truncated. A copy may have been made before (copytruncate): it is looked for.
            self._open_now = None
            return b""
        if data := data[len(overlap) :]:
            self._take(data)
            return data
        if named is None or (named.device, named.inode) != (stat.device, stat.inode):
            self._leave(node, named)
        return b""

    def _take(self, data: bytes) -> None:
        self._quiet = self._waiting = False
        self._begun = True
        self.offset += len(data)
        self._head += (
            data[: max(0, _REMEMBERED - len(self._head))] if self.offset - len(data) == len(self._head) else b""
        )
        self._tail = (self._tail + data)[-_REMEMBERED:]

    def _same(self, node: Node, stat: Stat) -> bool:
        """Tell whether the open file holds what was read of the current generation."""
        if stat.size < self.offset:
            return False
        tail = len(self._tail)
        return node.read(0, len(self._head)) == self._head and node.read(self.offset - tail, tail) == self._tail

    def _find(self, node: Node) -> bool:
        """Open the file that goes on where reading has got to; False when there is nothing to read now."""
        try:
            stat = node.open(self.path)
        except FileError as error:
            if error.kind != "missing" or not self._begun:
                raise
        else:
            if not self._begun or self._same(node, stat):
                self._remember(node, stat)
                return True
        if self._elsewhere(node):
            return True
        if self.offset and not self._waiting:
            self.link.notice(
                f"{self.name} was truncated, replaced or deleted; what it held after byte {self.offset}, if anything, "
                "was not found on the node"
            )
        return self._next_file(node)

    def _remember(self, node: Node, stat: Stat) -> None:
        """Take the open file as the current one; of a file that is not read from its beginning, look at that."""
        self._open_now = stat
        self._begun = True
        self.offset = min(self.offset, stat.size)
        if not self._tail and self.offset:
            length = min(_REMEMBERED, self.offset)
            self._head = bytearray(node.read(0, length))
            self._tail = node.read(self.offset - length, length)

    def _elsewhere(self, node: Node) -> bool:
        """Open the rest of the current generation under another name, and line up what was rotated after it."""
        if not self.offset:
            return False
        candidates = node.beside(self.path, self._open_now.inode if self._open_now else 0)
        for path, _ in candidates:
            with contextlib.suppress(FileError):
                stat = node.open(path)
                if self._same(node, stat):
                    self._open_now = stat
                    later = [(other.mtime, name) for name, other in candidates if self._is_later(name, other, stat)]
                    self._queue = [name for _, name in sorted(later)]
                    return True
        return False

    def _is_later(self, name: bytes, other: Stat, than: Stat) -> bool:
        folder, slash, base = self.path.rpartition(b"/")
        stem = base.rpartition(b".")[0] or base
        rest = name[len(folder + slash) :]
        rotated = any(rest.startswith(start) and _FAMILY.fullmatch(rest[len(start) :]) for start in (base, stem))
        return rotated and other.inode != than.inode and other.mtime >= than.mtime

    def _leave(self, node: Node, named: Stat | None) -> None:
        """Go on to what the name leads to, once the open file is read to its end and stays quiet."""
        if not self._quiet:
            # Its writer may not know yet that it was renamed.
            self._quiet = True
        elif self._queue or named is not None:
            self._next_file(node)
        elif not self._waiting:
            self._waiting = True
            self.link.notice(f"there is no {self.name} any more; waiting for it to come back")

    def _next_file(self, node: Node) -> bool:
        """Begin the next generation; False when there is no file for it yet."""
        while True:
            path = self._queue.pop(0) if self._queue else self.path
            try:
                stat = node.open(path)
                break
            except FileError as error:
                if path != self.path:
                    continue
                self._open_now = None
                if not self._waiting:
                    self._waiting = True
                    self.link.notice(f"{error.message.what}; waiting for it")
                return False
        if self._begun and (self.offset or self._open_now is not None):
            self.generation += 1
            self.link.notice(f"{self.name} was rotated or truncated: generation {self.generation} begins")
        self.offset = 0
        self._head, self._tail = bytearray(), b""
        self._quiet = self._waiting = False
        self._open_now = stat
        return True


def remote_follow(
    spec: Spec,
    options: Options | None = None,
    *,
    start: int = 0,
    notice: Callable[[str], None] = lambda _: None,
    stop: threading.Event | None = None,
    interval: float = 0.1,
) -> Generator[Chunk, None, None]:
    """Yield what stands in a remote file and what is appended to it, until ``stop`` is set or the caller ends.

    Every byte comes once, in order. A lost connection is made again for as long as it takes. When nothing was new an
    empty chunk comes, about every ``interval`` to ``3 * interval`` seconds, so that the caller can act in between.

    Args:
        spec: the file; a pattern must fit exactly one.
        options: how to connect.
        start: begin at this byte (or at the end of a file that is smaller).
        notice: told in words about lost connections, rotation and truncation.
        stop: ends the iteration when it is set.
        interval: seconds between two looks while the file grows.

    Raises:
        RemoteError: the host cannot be reached or the file cannot be read, at the start; or the host answers with
            another key, or no longer accepts ours.

    """
    link = Link(spec.host, options or Options(), notice)
    ended = stop or threading.Event()
    idle = 1
    follower: Follower | None = None
    try:
        while not ended.is_set():
            try:
                if follower is None:
                    follower = Follower(link, _the_one(link, spec), start)
                data = follower.step()
            except SshError as failure:
                link.recover(failure, endless=True)
                data = b""
                if follower is None:
                    continue
            yield Chunk(data, follower.offset - len(data), follower.generation)
            idle = 1 if data else min(3, idle + 1)
            if len(data) < _AT_ONCE - _OVERLAP:
                ended.wait(interval * idle)
    finally:
        link.drop()


def _the_one(link: Link, spec: Spec) -> bytes:
    paths = link.node.expand(spec)
    if len(paths) > 1:
        raise FileError(
            "several",
            f"{shown(spec.text)} fits {len(paths)} files",
            why=", ".join(shown(path) for path in paths[:5]),
            help="one file can be followed at a time",
        )
    return paths[0]
