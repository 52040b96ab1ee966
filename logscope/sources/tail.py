"""A log that grows, followed like ``tail -F`` does: whole lines as they come, through rotation and truncation.

This module is responsible for noticing what became of the file and for giving every line exactly once. It must not
know what a line says, nor how a live table is drawn. It looks every ``poll`` seconds rather than being told: that
works on every file system, and 25 ms are below what a reader notices.
"""

from __future__ import annotations

import os
import select
import stat
import time
from typing import TYPE_CHECKING, Any

from logscope.errors import InputError, RemoteError
from logscope.sources.blocks import BLOCK_SIZE, FILTERED, LINE_SLACK, Block, Window, cut
from logscope.sources.inputs import missing, name_of
from logscope.sources.streams import HEAD, PIPE_SIZE, form_of, standard_input, unreadable, widen

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

_QUIET_POLLS = 4  # so long the old file must be still before its successor is turned to
_REMEMBERED = 64  # bytes before the place of reading that must not change


def follow(
    path: str | os.PathLike[str] | Any,
    *,
    poll: float = 0.025,
    stop: threading.Event | None = None,
    idle: float | None = None,
    size: int = BLOCK_SIZE,
    slack: int = LINE_SLACK,
    warn: Callable[[str], None] | None = None,
) -> Iterator[Block | None]:
    """Yield the lines of a growing file as blocks, and None at every poll that brought nothing.

    path
        a file, a pipe, ``-`` for standard input, or an object with a descriptor nobody has read from.
    poll
        seconds between two looks.
    stop
        ends the following within one poll.
    idle
        seconds without anything new after which the following ends; None: never.
    warn
        is told in a sentence when the file was rotated, truncated or deleted.

    A last line without its newline waits for it. Every life of the file (*generation*) begins at line 1 and offset 0
    and ends with a final block, which may be empty: after a rotation the old file is read to its end first, until it
    is still and its successor has something to read; a truncated file, or one that was written anew, begins again. A
    writer that goes on in the old file after that is not followed. A pipe ends with its writer. At the end comes a
    final block with what is left.

    Raises
    ------
    InputError
        When there is no such file, it cannot be read, or it is compressed or filtered and so does not grow by lines.

    """
    return tail_blocks(_open(path, size, slack, warn or (lambda _: None)), poll, stop, idle)


def tail_blocks(tail: Tail, poll: float, stop: threading.Event | None, idle: float | None) -> Iterator[Block | None]:
    """Yield what a tail has, and None at every poll that brought nothing, until it is over, stopped or idle.

    When it cannot be read any more, the final block comes all the same, before the error.
    """
    begun = False
    try:
        news = time.monotonic()
        while stop is None or not stop.is_set():
            if tail.is_over():
                yield tail.rest()
                tail.renew()
            block = tail.next()
            if block is not None:
                begun = True
                yield block
                news = time.monotonic()
                continue
            if tail.ended or (idle is not None and time.monotonic() - news >= idle):
                break
            yield None
            tail.wait(poll, stop)
        yield tail.rest()
    except (OSError, RemoteError) as error:
        if begun:
            yield tail.rest()
        if isinstance(error, RemoteError):
            raise
        raise unreadable(tail.name, error) from error
    finally:
        tail.close()


class Tail:
    """What is followed: whole lines that are there now, then the rest."""

    def __init__(self, fd: int, name: str, size: int, slack: int, *, owned: bool) -> None:
        self.name = name
        self.ended = False  # for good: nothing can follow
        self._fd, self._owned = fd, owned
        self._size, self._slack = size, slack
        self._begin()

    def _begin(self) -> None:
        self._window = Window(lambda _: self._read())
        self._waiting = 0  # bytes of a line that has no newline yet
        self._offset, self._line, self._continues = 0, 1, False

    def _read(self) -> bytes:
        """Return what is there now, without waiting."""
        raise NotImplementedError

    def wait(self, poll: float, stop: threading.Event | None) -> None:
        """Wait for news, at most so many seconds."""
        raise NotImplementedError

    def is_over(self) -> bool:
        """Tell whether this generation has ended and :meth:`renew` would begin the next."""
        return False

    def renew(self) -> None:
        """Begin the next generation."""

    def next(self) -> Block | None:
        """Return the whole lines that are there now, or a piece of a very long one; None when there are none."""
        if self._window.fill(self._waiting + 1) <= self._waiting:
            return None
        length = cut(self._window, self._size, self._slack)
        if self._window.fill(length + 1) == length:  # the end for now, and what has no newline may still grow
            length = self._window.find(b"\n", 0, length, last=True) + 1
        if not length:
            self._waiting = self._window.held
            return None
        self._waiting = 0
        return self._take(length, final=False)

    def rest(self) -> Block:
        """Return what is left, as the last block of this generation."""
        return self._take(self._window.held, final=True)

    def _take(self, length: int, *, final: bool) -> Block:
        data = self._window.take(length)
        if not self._offset:
            _refuse(self.name, data)
        newlines = data.count(b"\n")
        block = Block(self.name, self._offset, self._line, data, final, self._continues, newlines=newlines)
        self._offset += length
        self._line += newlines
        self._continues = not data.endswith(b"\n")
        return block

    def close(self) -> None:
        """Close what was opened here."""
        if self._owned:
            os.close(self._fd)


class _PipeTail(Tail):
    """A followed pipe or terminal."""

    def __init__(self, fd: int, name: str, size: int, slack: int, *, owned: bool) -> None:
        self._poller = select.poll()
        self._poller.register(fd, select.POLLIN)
        widen(fd)
        super().__init__(fd, name, size, slack, owned=owned)

    def _read(self) -> bytes:
        if self.ended or not self._poller.poll(0):
            return b""
        data = os.read(self._fd, PIPE_SIZE)
        self.ended = not data
        return data

    def wait(self, poll: float, stop: threading.Event | None) -> None:  # noqa: ARG002 - a poll is short enough
        """See :class:`Tail`."""
        self._poller.poll(poll * 1000)


class _FileTail(Tail):
    """A followed file; without a path (redirected standard input) only its descriptor is looked at."""

    def __init__(
        self, fd: int, name: str, size: int, slack: int, path: str | None, warn: Callable[[str], None]
    ) -> None:
        self._path, self._warn = path, warn
        super().__init__(fd, name, size, slack, owned=path is not None)

    def _begin(self) -> None:
        super()._begin()
        self._at = os.lseek(self._fd, 0, os.SEEK_CUR)
        self._last = b""  # what stands before it
        self._seen = (-1, -1)
        self._quiet = 0  # polls that brought nothing
        self._missed = False
        self._successor: int | None = None

    def _read(self) -> bytes:
        data = os.read(self._fd, PIPE_SIZE)
        if data:
            self._at += len(data)
            self._last = (self._last + data[-_REMEMBERED:])[-_REMEMBERED:]
            self._quiet = 0
        return data

    def wait(self, poll: float, stop: threading.Event | None) -> None:
        """See :class:`Tail`."""
        self._quiet += 1
        (stop.wait if stop else time.sleep)(poll)

    def is_over(self) -> bool:
        """See :class:`Tail`."""
        status = os.fstat(self._fd)
        if (seen := (status.st_size, status.st_mtime_ns)) != self._seen:
            self._seen = seen
            before = os.pread(self._fd, len(self._last), self._at - len(self._last))
            if status.st_size < self._at or before != self._last:
                self._warn(f"{self.name}: was truncated or written anew; it is read from its beginning")
                return True
        quiet = self._quiet >= _QUIET_POLLS and status.st_size <= self._at
        return self._path is not None and quiet and self._is_replaced(self._path, status)

    def _is_replaced(self, path: str, own: os.stat_result) -> bool:
        """Tell whether another file stands in the place of this one, and has something to read."""
        try:
            status = os.stat(path)  # noqa: PTH116 - the name as given
            if os.path.samestat(status, own) or not status.st_size or not stat.S_ISREG(status.st_mode):
                return False
            between = _between(path, own)
            self._successor = os.open(between or path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if not self._missed:
                self._missed = True
                reason = (error.strerror or str(error)).lower()
                self._warn(f"{self.name}: is not there any more ({reason}); waiting for it to come back")
            return False
        what = "was replaced by a new file; it is read from its beginning"
        if between is not None:
            what = f"was rotated more than once; {between} is read first"
        self._warn(f"{self.name}: {what}")
        return True

    def renew(self) -> None:
        """See :class:`Tail`."""
        if self._successor is None:
            os.lseek(self._fd, 0, os.SEEK_SET)
        else:
            os.close(self._fd)
            self._fd = self._successor
        self._begin()


def _between(path: str, own: os.stat_result) -> str | None:
    """Return the file that stood under a path right after the one with this status, where it was rotated away since."""
    from logscope.fetch.node import Stat  # noqa: PLC0415 - rotations only
    from logscope.fetch.rotation import successors  # noqa: PLC0415

    def known(status: os.stat_result) -> Stat:
        return Stat(status.st_dev, status.st_ino, status.st_size, int(status.st_mtime))

    folder, name = os.path.split(path)
    with os.scandir(folder or ".") as entries:
        found = [
            (os.fsencode(os.path.join(folder, entry.name)), known(entry.stat()))  # noqa: PTH118 - the name as given
            for entry in entries
            if entry.name != name and entry.is_file()
        ]
    # Only where the file itself is still found do names tell what came after it.
    if all(status.inode != own.st_ino for _, status in found):
        return None
    later = successors(os.fsencode(path), known(own), found)
    return os.fsdecode(later[0][0]) if later else None


def _open(path: Any, size: int, slack: int, warn: Callable[[str], None]) -> Tail:
    """Open what is to be followed."""
    if path == "-" or hasattr(path, "fileno"):
        stream = standard_input() if path == "-" else path
        name = "-" if path == "-" else name_of(stream)
        try:
            fd = stream.fileno()
        except (OSError, AttributeError) as error:
            raise InputError(f"'{name}' cannot be followed: it has no descriptor") from error
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return _FileTail(fd, name, size, slack, None, warn)
        return _PipeTail(fd, name, size, slack, owned=False)
    name = os.fsdecode(path)
    try:
        mode = os.stat(name).st_mode  # noqa: PTH116 - the name as given
        if stat.S_ISDIR(mode):
            raise InputError(f"'{name}' is a directory", help="name the one file to follow")
        # A pipe without a writer would wait here; a plain file does not care.
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise missing(name) from error
    except (OSError, ValueError) as error:
        raise unreadable(name, error) from error
    if not stat.S_ISREG(mode):
        return _PipeTail(fd, name, size, slack, owned=True)
    try:
        _refuse(name, os.pread(fd, max(HEAD, len(FILTERED)), 0))
    except InputError:
        os.close(fd)
        raise
    return _FileTail(fd, name, size, slack, name, warn)


def _refuse(name: str, head: bytes) -> None:
    """Raise InputError for what does not grow by lines."""
    form = form_of(head)
    what = f"{form} archive" if form else "filtered copy" if head.startswith(FILTERED) else None
    if what:
        raise InputError(f"'{name}' is a {what}, which cannot be followed", help="read it without --follow")
