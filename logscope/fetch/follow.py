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

from logscope.fetch.node import FileError, Node
from logscope.fetch.rotation import lost_file, successors
from logscope.fetch.spec import Options, shown
from logscope.fetch.ssh import SshError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from logscope.fetch.node import Stat
    from logscope.fetch.spec import Spec
    from logscope.fetch.ssh import Session

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

    def __init__(self, node: Node, path: bytes, start: int) -> None:
        self.node = node
        self.path = path
        self.name = f"{node.host}:{shown(path)}"
        self.generation = 0
        self.offset = start
        self._head = self._tail = b""  # of what was read
        self._stat: Stat | None = None  # of the file, when it was last seen
        self._session: Session | None = None  # the connection on which it is open
        self._quiet = False
        self._waiting = False

    def step(self) -> bytes:
        """Return what is new, at :attr:`offset` before the call; empty when there is nothing.

        Raises:
            SshError: the connection was lost; the next call makes a new one and goes on.
            FileError: the file cannot be read, at the first step.

        """
        if self.node.session is not self._session and not self._find():
            return b""
        self._session = self.node.session
        overlap = self._tail[-_OVERLAP:]
        data, stat, named = self.node.next(self.path, self.offset - len(overlap), self.offset, _AT_ONCE)
        if stat.size < self.offset or (data and not data.startswith(overlap)):
            # Truncated. A copy may have been made before (copytruncate): it is looked for.
            self._session = None
            return b""
        self._stat = stat
        if data := data[len(overlap) :]:
            self._quiet = self._waiting = False
            if self.offset == len(self._head):
                self._head += data[: _REMEMBERED - len(self._head)]
            self._tail = (self._tail + data)[-_REMEMBERED:]
            self.offset += len(data)
        elif named is None or (named.device, named.inode) != (stat.device, stat.inode):
            if self._quiet:
                self._go_on(stat, named)
            # Else its writer may not know yet that it was renamed.
            self._quiet = True
        return data

    def _find(self) -> bool:
        """Open the file that goes on where reading has got to; False when there is nothing to read now."""
        last = self._stat
        try:
            stat = self.node.open(self.path)
            if last is None:
                self._begin(stat)
            if self._same(stat):
                return True
        except FileError as error:
            if error.kind != "missing" or last is None:
                raise
        assert last is not None  # noqa: S101 - the first file is the same as itself
        if lost_file(self.node, self.path, last.inode, self._same) is not None:
            return True
        if self.offset and not self._waiting:
            self.node.notice(
                f"{self.name} was truncated, replaced or deleted; what it held after byte {self.offset}, "
                "if anything, was not found on the node"
            )
        return self._go_on(last, None)

    def _same(self, stat: Stat) -> bool:
        """Tell whether the open file holds what was read of the current generation; if so it is that from now on."""
        same = stat.size >= self.offset
        if not self.offset and self._stat is not None:
            same = (stat.device, stat.inode) == (self._stat.device, self._stat.inode)
        for text, at in ((self._head, 0), (self._tail, self.offset - len(self._tail))):
            same = same and self.node.read(at, len(text)) == text
        self._stat = stat if same else self._stat
        return same

    def _go_on(self, current: Stat, named: Stat | None) -> bool:
        """Begin the next generation with the file that came next, else with what has the name; False without any."""
        # It may have been rotated more than once since the last look.
        between = successors(self.path, current, self.node.beside(self.path))
        path, expected = between[0] if between else (self.path, named)
        try:
            stat = self.node.open(path)
        except FileError as error:
            self._session = None
            if not self._waiting:
                self._waiting = True
                self.node.notice(f"{error.message.what}; waiting for it")
            return False
        if expected is not None and stat.inode != expected.inode:
            # Names were shifted in between: look again.
            self._session = None
            return False
        self.offset = 0
        self._begin(stat)
        self.node.notice(f"{self.name} was rotated or truncated: generation {self.generation} begins")
        return True

    def _begin(self, stat: Stat) -> None:
        """Begin a generation with the open file; what stands before the place where reading begins is remembered."""
        self.generation += 1
        self.offset = min(self.offset, stat.size)
        length = min(_REMEMBERED, self.offset)
        self._head, self._tail = (self.node.read(at, length) if length else b"" for at in (0, self.offset - length))
        self._stat = stat
        self._quiet = self._waiting = False


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
    node = Node(spec.host, options or Options(), notice)
    # A stop ends waiting for a connection, too.
    node.cancelled = ended = stop or threading.Event()
    follower: Follower | None = None
    idle = 1
    try:
        while not ended.is_set():
            try:
                follower = follower or Follower(node, _the_one(node, spec), start)
                data = follower.step()
            except SshError as failure:
                try:
                    node.recover(failure, endless=True)
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
        node.drop()


def _the_one(node: Node, spec: Spec) -> bytes:
    paths = node.expand(spec)
    if len(paths) > 1:
        raise FileError(
            "several",
            f"{shown(spec.text)} fits {len(paths)} files",
            why=", ".join(shown(path) for path in paths[:5]),
            help="one file can be followed at a time",
        )
    return paths[0]
