"""A growing file on a node, byte for byte, through rotation, truncation and lost connections.

This module is responsible for the promise that a follower sees every byte once and in order, as far as the node still
has it, and is told where it has not. It must not know what the bytes mean.

The node is asked again and again (nothing runs there between two questions). Whether a file is still the one that was
read is told by content: its first bytes and the bytes just before the place reading has got to; by its inode while
nothing of it was read. A file that is another one begins the next *generation*, at offset 0; first the rest of the old
one is read, from the open descriptor or from where a rotation put it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from logscope.fetch.link import Link, Options
from logscope.fetch.node import FileError, Stat
from logscope.fetch.rotation import lost_file, successors
from logscope.fetch.spec import shown
from logscope.fetch.ssh import SshError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from logscope.fetch.node import Node
    from logscope.fetch.spec import Spec

_REMEMBERED = 4096
_OVERLAP = 256
_AT_ONCE = 4 << 20


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
        self._node: Node | None = None  # the connection on which the file is open
        self._stat: Stat | None = None  # of the file, when it was last seen
        self._quiet = False
        self._waiting = False

    def step(self) -> bytes:
        """Return what is new, at :attr:`offset` before the call; empty when there is nothing.

        Raises:
            SshError: the connection was lost; the next call makes a new one and goes on.
            FileError: the file cannot be read, at the first step.

        """
        node = self.link.node
        if node is not self._node and not self._find(node):
            return b""
        self._node = node
        overlap = self._tail[-_OVERLAP:]
        data, stat, named = node.next(self.path, self.offset - len(overlap), self.offset, _AT_ONCE)
        self.link.progress()
        if stat.size < self.offset or (data and not data.startswith(overlap)):
            # Truncated. A copy may have been made before (copytruncate): it is looked for.
            self._node = None
            return b""
        self._stat = stat
        if data := data[len(overlap) :]:
            self._take(data)
            return data
        if named is None or (named.device, named.inode) != (stat.device, stat.inode):
            self._leave(node, stat, named)
        return b""

    def _take(self, data: bytes) -> None:
        self._quiet = self._waiting = False
        if self.offset == len(self._head):
            self._head += data[: _REMEMBERED - len(self._head)]
        self._tail = (self._tail + data)[-_REMEMBERED:]
        self.offset += len(data)

    def _find(self, node: Node) -> bool:
        """Open the file that goes on where reading has got to; False when there is nothing to read now."""
        try:
            stat = node.open(self.path)
        except FileError as error:
            if error.kind != "missing" or self._stat is None:
                raise
        else:
            if self._stat is None:
                self._begin_at(node, stat)
            if self._same(node, stat):
                self._stat = stat
                return True
        between: list[tuple[bytes, Stat]] = []
        if self._stat is not None:
            found = lost_file(node, self.path, self._stat.inode, lambda stat: self._same(node, stat))
            if found is not None:
                self._stat = found[1]
                return True
            between = successors(self.path, self._stat, node.beside(self.path))
            if self.offset and not self._waiting:
                self.link.notice(
                    f"{self.name} was truncated, replaced or deleted; what it held after byte {self.offset}, "
                    "if anything, was not found on the node"
                )
        return self._go_on(node, between[0] if between else (self.path, None))

    def _begin_at(self, node: Node, stat: Stat) -> None:
        """Look at what stands before the place where reading begins."""
        self._stat = stat
        self.offset = min(self.offset, stat.size)
        length = min(_REMEMBERED, self.offset)
        self._head = bytearray(node.read(0, length))
        self._tail = node.read(self.offset - length, length)

    def _same(self, node: Node, stat: Stat) -> bool:
        """Tell whether the open file holds what was read of the current generation."""
        if not self.offset and self._stat is not None:
            return (stat.device, stat.inode) == (self._stat.device, self._stat.inode)
        if stat.size < self.offset:
            return False
        tail = len(self._tail)
        return node.read(0, len(self._head)) == self._head and node.read(self.offset - tail, tail) == self._tail

    def _leave(self, node: Node, stat: Stat, named: Stat | None) -> None:
        """Go on to the next file, once the open one is read to its end and stays quiet."""
        if not self._quiet:
            # Its writer may not know yet that it was renamed.
            self._quiet = True
            return
        # It may have been rotated more than once since the last look.
        between = successors(self.path, stat, node.beside(self.path))
        if between or named is not None:
            self._go_on(node, between[0] if between else (self.path, named))
        elif not self._waiting:
            self._waiting = True
            self.link.notice(f"there is no {self.name} any more; waiting for it to come back")

    def _go_on(self, node: Node, expected: tuple[bytes, Stat | None]) -> bool:
        """Begin the next generation with a file, if it is still the expected one; False when it is not there."""
        path, wanted = expected
        try:
            stat = node.open(path)
        except FileError as error:
            self._node = None
            if not self._waiting:
                self._waiting = True
                self.link.notice(f"{error.message.what}; waiting for it")
            return False
        if wanted is not None and stat.inode != wanted.inode:
            # Names were shifted in between: look again.
            self._node = None
            return False
        self.generation += 1
        self.link.notice(f"{self.name} was rotated or truncated: generation {self.generation} begins")
        self.offset = 0
        self._head, self._tail = bytearray(), b""
        self._quiet = self._waiting = False
        self._stat = stat
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
    # A stop ends waiting for a connection, too.
    link.cancelled = ended = stop or threading.Event()
    idle = 1
    follower: Follower | None = None
    try:
        while not ended.is_set():
            try:
                if follower is None:
                    follower = Follower(link, _the_one(link, spec), start)
                data = follower.step()
            except SshError as failure:
                try:
                    link.recover(failure, endless=True)
                except SshError:
                    if ended.is_set():
                        break
                    raise
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
