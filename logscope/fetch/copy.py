"""One file on a node and its copy: taking up, going on, and noticing that the file is another one.

This module is responsible for the promise that a copy is always the beginning of one file on the node, whatever was
interrupted where, and that nothing which was copied once is thrown away. It must not know how a connection is made.

Everything that happened stands on disk (the manifest, the part file, the copy), so an attempt after a lost connection
and a new process after SIGKILL go the same way: look, compare with the node, go on. What has arrived counts as
*confirmed* when, after it was read, the file on the node still had its beginning and was no smaller: a file that is
truncated and grows again during the copy cannot leave a mixture behind.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import time
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import IO, TYPE_CHECKING, Any, Literal

from logscope.errors import LogscopeError, RemoteError
from logscope.fetch.manifest import (
    EDGE,
    PART,
    Edge,
    Generation,
    Manifest,
    Part,
    beside,
    load,
    locked,
    sync_folder,
    when,
)
from logscope.fetch.node import FileError, Stat
from logscope.fetch.rotation import lost_file, successors
from logscope.fetch.spec import shown
from logscope.fetch.ssh import SshError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logscope.fetch.node import Node

_PIECE = 32 << 20
_MOST_CHANGES = 20


@dataclass(slots=True)
class Fetched:
    """What became of one file. ``size`` is the original's size as far as it was copied, ``moved`` the bytes that came
    over the wire for it, ``added`` the bytes of the original that are new.
    """  # noqa: D205 - one sentence

    host: str
    path: str
    file: str
    action: Literal["new", "appended", "unchanged"] = "unchanged"
    form: Literal["whole", "filtered"] = "whole"
    size: int = 0
    added: int = 0
    moved: int = 0
    generation: int = 1
    generations: list[str] = field(default_factory=list)
    sha256: str | None = None
    verified: bool = False
    compress: str = "none"
    seconds: float = 0.0
    notices: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


class Changed(Exception):  # noqa: N818 - no error: the copy begins again from what the node has now
    """The file on the node became another one while it was read."""


class Copy(ABC):
    """One file on a node and its copy; :meth:`run` brings the copy up to what the node has.

    Args:
        node: the host.
        path: the file there.
        file: the local name.
        advance: told how many bytes of how many have arrived.

    """

    form: Literal["whole", "filtered"]

    def __init__(self, node: Node, path: bytes, file: Path, advance: Callable[[int, int], None]) -> None:
        self.node = node
        self.options = node.options
        self.path = path
        self.file = file
        self.part = beside(file, PART)
        self.advance = advance
        self.name = f"{node.host}:{shown(path)}"
        self.source = (str(node.host), os.fsdecode(path))
        self.manifest = Manifest(*self.source)
        self.target: int | None = None
        self.adopting = False
        self.fresh = True
        self.beginning = Edge(0, "")
        self.result = Fetched(*self.source, str(file), form=self.form)

    def run(self) -> Fetched:
        """Copy what is new, and return what was done.

        Raises:
            LogscopeError: nothing that was copied before is lost then, and the next call goes on.

        """
        began, received = time.monotonic(), self.node.received
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.file):
                self.take_up()
                self.result.added = -self.manifest.size
                self._persist()
        except OSError as error:
            raise local_trouble(error, self.file) from error
        manifest, result = self.manifest, self.result
        result.size, result.generation = manifest.size, manifest.generation
        result.added += manifest.size
        result.sha256, result.verified = manifest.sha256, manifest.verified
        result.generations = [generation.file for generation in manifest.generations]
        result.moved = self.node.received - received
        result.seconds = round(time.monotonic() - began, 3)
        return result

    def notice(self, text: str) -> None:
        """Say something that the user should know, and keep it in the result."""
        self.result.notices.append(text)
        self.node.notice(text)

    @abstractmethod
    def finish(self) -> None:
        """Finish what an interruption kept from being noted: what has arrived and is complete is of the copy."""

    @abstractmethod
    def local_is_ours(self) -> bool:
        """Tell whether the local file is what the manifest says it is."""

    @abstractmethod
    def fits(self, stat: Stat) -> bool:
        """Tell whether the part is of the open file; what is not confirmed may go."""

    @abstractmethod
    def cut_back(self) -> None:
        """Forget what has arrived and is not confirmed."""

    @abstractmethod
    def transfer(self, target: int) -> None:
        """Bring the copy up to ``target`` bytes of the open file."""

    @abstractmethod
    def close_part(self) -> None:
        """Join what is confirmed to the copy, although more was expected."""

    @abstractmethod
    def sum_of(self, start: int, length: int) -> str:
        """Return the SHA-256 of an edge of what the copy stands for."""

    def held(self) -> int:
        """Return the size of the part file."""
        return self.part.stat().st_size if self.part.exists() else 0

    def joined(self) -> None:
        """Note that the part is part of the copy now; only then it may go."""
        self.manifest.save(self.file)
        sync_folder(self.file.parent)
        self.part.unlink(missing_ok=True)

    def take_up(self) -> None:
        """Read what an earlier fetch left, and finish what it was interrupted in.

        Raises:
            LogscopeError: the local file is not what was fetched, so nothing may be written over it.

        """
        there = os.path.lexists(self.file)
        if there and not self.file.is_file():
            raise LogscopeError(f"{self.file} is no regular file", help="give another destination")
        manifest = load(self.file)
        if manifest is None:
            self.part.unlink(missing_ok=True)
            self.adopting = there
            return
        self.manifest = manifest
        if there and manifest.generations and not manifest.size:
            # Interrupted between the note that the copy is kept and its new name.
            last = manifest.generations[-1]
            kept = self.file.with_name(last.file)
            if not kept.exists() and self.file.stat().st_size == last.size:
                self.file.rename(kept)
        self.finish()
        if self.file.exists() and not self.local_is_ours():
            raise LogscopeError(
                f"{self.file} was changed here since it was fetched",
                why="it is not the beginning of the file on the node any more, so nothing is appended to it",
                help="move it and its .logscope.json away, or give another destination",
            )
        if not self.file.exists() and manifest.size:
            self.notice(f"{self.file} is gone: it is fetched again from its beginning")
            self.manifest = Manifest(*self.source, manifest.generation, generations=manifest.generations)
            self.part.unlink(missing_ok=True)

    def _persist(self) -> None:
        for _ in range(_MOST_CHANGES):
            try:
                if self.node.persist(self._attempt):
                    return
            except Changed:
                self.target = None
        raise RemoteError(
            f"{self.name} changes faster than it can be copied", why="it was truncated or replaced every time"
        )

    def _attempt(self) -> bool:
        """Go on from what stands on disk; False when the name leads to another file now, which is still to come."""
        stat: Stat | None = None
        gone: FileError | None = None
        try:
            stat = self.node.open(self.path)
            if self.adopting:
                self._adopt(stat)
        except FileError as error:
            if error.kind != "missing" or self.manifest.head is None:
                raise
            gone = error
        manifest = self.manifest
        if stat is None or (manifest.head is not None and not self._continues(stat)):
            return self._leave(stat, gone)
        self.fresh = False
        manifest.host, manifest.path = self.source
        self.target = min(stat.size, stat.size if self.target is None else self.target)
        self._bring(stat, self.target)
        return True

    def _bring(self, stat: Stat, target: int) -> None:
        """Note what makes the open file recognisable, before its first byte is copied; then copy."""
        manifest = self.manifest
        length = min(EDGE, target)
        self.beginning = Edge(length, self.node.sums((0, length))[0])
        manifest.head = manifest.head or self.beginning
        manifest.device, manifest.inode = stat.device, stat.inode
        self.transfer(target)
        head, tail = (Edge(length, self.sum_of(start, length)) for start in (0, target - length))
        manifest.size, manifest.head, manifest.tail = target, head, tail
        manifest.filtered = self.form == "filtered"
        manifest.mtime = when(stat.mtime)
        manifest.last_fetched = when()
        manifest.first_fetched = manifest.first_fetched or manifest.last_fetched
        self.joined()

    def edges(self) -> list[tuple[int, Edge]]:
        """Return where the edges of the copy begin, and the edges."""
        manifest = self.manifest
        end = manifest.size - (manifest.tail.bytes if manifest.tail else 0)
        return [(start, edge) for start, edge in ((0, manifest.head), (end, manifest.tail)) if edge is not None]

    def _continues(self, stat: Stat) -> bool:
        """Tell whether the open file begins with everything the copy holds, by its edges, and by the part's.

        Where nothing is held yet, its inode tells.
        """
        manifest = self.manifest
        if not manifest.size and not self.held():
            return (stat.device, stat.inode) == (manifest.device, manifest.inode)
        edges = self.edges()
        if stat.size < max([manifest.size, *(start + edge.bytes for start, edge in edges)]):
            return False
        sums = self.node.sums(*((start, edge.bytes) for start, edge in edges))
        return sums == [edge.sha256 for _, edge in edges] and self.fits(stat)

    def _adopt(self, stat: Stat) -> None:
        """Go on from a file that something else copied, when it is the beginning of the one on the node."""
        size = self.file.stat().st_size
        if self.form != "whole" or stat.size < size or self.node.sums((0, size))[0] != digest(self.file):
            raise LogscopeError(
                f"{self.file} is there already, and is not the beginning of {self.name}",
                why="it was not written by logscope fetch, so it is left alone",
                help="move it away, or give another destination",
            )
        self.adopting = False
        length = min(EDGE, size)
        self.manifest.size, self.manifest.head = size, Edge(length, self.sum_of(0, length))
        self.result.added -= size

    def pieces(self, start: int, target: int) -> Iterator[tuple[bytes, int]]:
        """Yield the bytes of the open file from one offset to another; after each piece, without bytes, its end.

        The piece was confirmed then: the open file was still the same and no smaller after it was read.

        Raises:
            Changed: it was truncated or written anew meanwhile.

        """
        pack = self.node.pack(self.path)
        ranges = [(at, min(_PIECE, target - at)) for at in range(start, target, _PIECE)]
        for number, (at, length) in enumerate(ranges):
            # One piece ahead, so that the wire does not idle between two pieces.
            for ahead in ranges[number + 1 if number else 0 : number + 2]:
                self.node.ask(pack, *ahead, self.beginning.bytes)
            came = at
            for data in self.node.answer(pack):
                came += len(data)
                yield data, came
                self.advance(came, target)
            self.confirm(at + length)
            if came < at + length:
                raise SshError("lost", f"{self.name} could not be read to its end", why="the node sent too little")
            yield b"", came

    def confirm(self, size: int) -> None:
        """Make sure that the open file was still the same and of at least this size after a range of it was read.

        Raises:
            Changed: it was truncated or written anew meanwhile.

        """
        after, beginning = self.node.after()
        if after.size < size or beginning != self.beginning.sha256:
            raise Changed

    @contextlib.contextmanager
    def writing(self) -> Iterator[IO[bytes]]:
        """Open the part file for what arrives; its bytes are on the disk in the end."""
        try:
            with self.part.open("ab") as out:
                yield out
                sync(out)
        except BaseException as error:
            # Replies that nobody reads any more may be under way.
            self.node.drop()
            if isinstance(error, Changed):
                self.cut_back()
            raise

    def _leave(self, stat: Stat | None, gone: FileError | None) -> bool:
        """Complete the copy of a file that lost its name, if its rest can be found, and keep it.

        True when no other file has the name (``gone``).
        """
        manifest = self.manifest
        if (manifest.host, manifest.path) != self.source:
            raise gone or LogscopeError(
                f"{self.file} is the copy of another file",
                why=f"it came from {manifest.host}:{shown(manifest.path)}, and is not the beginning of {self.name}",
                help="give another destination",
            )
        in_place = stat is not None and (stat.device, stat.inode) == (manifest.device, manifest.inode)
        self.cut_back()
        found = lost_file(self.node, self.path, manifest.inode, self._continues)
        if found is not None:
            self._bring(found[1], found[1].size)
        if gone is not None:
            if found is not None:
                self.notice(f"there is no {self.name} now; the copy was brought up to date from {shown(found[0])}")
                return True
            kept = self.file if manifest.size else self.part if self.held() else None
            if kept is None:
                raise gone
            what = f"{self.name} is gone from the node"
            raise FileError("missing", what, why=gone.message.why, help=f"what was copied stays: {kept}") from gone
        self.close_part()
        self.archive("truncated" if in_place else "replaced", found and found[0])
        if found is not None and (between := successors(self.path, found[1], self.node.beside(self.path))):
            names = ", ".join(shown(path) for path, _ in between)
            self.notice(f"{self.name} was rotated more than once; fetch these too for what lies between: {names}")
        return False

    def archive(self, reason: str, found: bytes | None) -> None:
        """Keep the copy under a name of its own and begin the next generation."""
        manifest = self.manifest
        kept = list(manifest.generations)
        number = manifest.generation
        if manifest.size:
            while os.path.lexists(target := self.file.with_name(f"{self.file.name}.generation-{number}")):
                number += 1
            stored, rest = self.file.stat().st_size, None if found is None else os.fsdecode(found)
            kept.append(Generation(number, target.name, stored, reason, rest is not None, manifest.inode, when(), rest))
            end = f"what it held after byte {manifest.size}, if anything, was not found on the node"
            if found is not None:
                end = f"its end was copied from {shown(found)}"
            self.notice(f"{self.name} was {reason}: the copy so far is kept as {target.name}; {end}")
        self.manifest = Manifest(*self.source, number + 1, generations=kept)
        # First the note, then the name: an interruption between them is mended by take_up.
        self.joined()
        if manifest.size:
            self.file.rename(target)
        self.result.added += manifest.size
        self.result.action = "new"
        self.target = None


class WholeCopy(Copy):
    """A copy that holds the same bytes as the file on the node."""

    form = "whole"

    def finish(self) -> None:
        """Join a complete part once more; doing it again does no harm."""
        part = self.manifest.part
        if part is None:
            self.part.unlink(missing_ok=True)
        elif part.complete:
            self._join(part)
            self.joined()

    def local_is_ours(self) -> bool:
        """Compare size and edges."""
        size = self.manifest.size
        return self.file.stat().st_size == size and all(
            not size or self.sum_of(start, edge.bytes) == edge.sha256 for start, edge in self.edges()
        )

    def fits(self, stat: Stat) -> bool:
        """Compare the part: all of it when another process wrote it, else its end."""
        part = self.manifest.part
        if part is None:
            return True
        for _ in ("all that arrived", "what is confirmed"):
            held = self.held()
            start = 0 if self.fresh else max(0, held - EDGE)
            there = (self.manifest.size + start, held - start)
            if not held or (stat.size >= sum(there) and self.node.sums(there)[0] == digest(self.part, start=start)):
                part.confirmed = held
                return True
            self.cut_back()
        return False

    def sum_of(self, start: int, length: int) -> str:
        """Read the copy, which holds these bytes: the node's may be others by now."""
        return digest(self.file, start=start, length=length)

    def cut_back(self) -> None:
        """Cut the part to what is confirmed."""
        part = self.manifest.part
        if part is not None and self.held() > part.confirmed:
            os.truncate(self.part, part.confirmed)

    def transfer(self, target: int) -> None:
        """Read what is missing in pieces, check that it is of one file, and join it."""
        manifest = self.manifest
        if manifest.part is not None or manifest.size < target or not self.file.exists():
            self.result.action = "appended" if manifest.size else "new"
            self._receive(target)
        verified = self._verified(target) if self.options.verify else None
        self.close_part()
        if verified:
            manifest.sha256, manifest.verified = verified, True
        elif self.options.digest and manifest.sha256 is None:
            manifest.sha256 = digest(self.file)

    def _receive(self, target: int) -> None:
        manifest = self.manifest
        self.result.compress = self.node.pack(self.path)
        if manifest.part is None:
            manifest.part = Part()
            self.part.unlink(missing_ok=True)
            manifest.save(self.file)
        part, base = manifest.part, manifest.size
        at = base + self.held()
        # Bytes that are appended stand in the part and in the copy for a moment.
        check_room(self.file, (target - at) * (2 if base else 1))
        with self.writing() as out:
            for data, end in self.pieces(at, target):
                out.write(data)
                if not data and end < target:
                    sync(out)
                    part.confirmed = end - base
                    manifest.save(self.file)
            # What arrived went through two pipes and a decompressor: its end is compared with the node's.
            out.flush()
            length = min(EDGE, target - base)
            if length and self.node.sums((target - length, length))[0] != digest(self.part, start=self.held() - length):
                part.confirmed = 0
                raise Changed
        part.confirmed = self.held()

    def _verified(self, target: int) -> str:
        """Let the node compute the SHA-256 of everything that was copied; return it when it is that of the copy."""
        theirs = self.node.sums((0, target))[0]
        ours = digest(*(file for file in (self.file, self.part) if file.exists()))
        if theirs == ours:
            return theirs
        manifest = self.manifest
        manifest.part = None
        self.part.unlink(missing_ok=True)
        if manifest.size:
            self.archive("found to differ from the node (--verify)", None)
            raise Changed
        manifest.head = None
        manifest.save(self.file)
        raise RemoteError(
            f"the copy of {self.name} is not what the node has",
            why=f"SHA-256 there {theirs}, here {ours}",
            help="was the file rewritten while it was read? Nothing was kept; call this again",
        )

    def close_part(self) -> None:
        """Join the confirmed part."""
        part = self.manifest.part
        if part is not None:
            self.part.touch()
            part.complete = True
            part.confirmed = self.held()
            self.manifest.save(self.file)
            self._join(part)

    def _join(self, part: Part) -> None:
        """Rename the part when it is the whole file, else append it."""
        manifest = self.manifest
        manifest.part = None
        if self.part.exists():
            if not manifest.size:
                self.part.replace(self.file)
            else:
                with self.file.open("r+b") as out, self.part.open("rb") as rest:
                    out.truncate(manifest.size)
                    out.seek(0, os.SEEK_END)
                    shutil.copyfileobj(rest, out, 1 << 20)
                    sync(out)
        if self.file.exists():
            manifest.size += part.confirmed
            manifest.tail, manifest.sha256, manifest.verified = None, None, False


def sync(out: IO[bytes]) -> None:
    """Make what was written outlive a power cut."""
    out.flush()
    os.fsync(out.fileno())


def digest(*files: Path, start: int = 0, length: int | None = None) -> str:
    """Return the SHA-256 of files one behind the other, in hex; from an offset on, and of an edge's length at most."""
    made = hashlib.sha256()
    for file in files:
        with file.open("rb") as data:
            data.seek(start)
            while piece := data.read(1 << 20 if length is None else length):
                made.update(piece)
                if length is not None:
                    break
    return made.hexdigest()


def check_room(file: Path, needed: int) -> None:
    """Raise the error of a full disk before it is full."""
    free = shutil.disk_usage(file.parent).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"{needed:,} bytes are still to come, and {free:,} are free")


def local_trouble(error: OSError, file: Path) -> LogscopeError:
    """Turn a failure on this machine into an error that says what to do."""
    why = error.strerror or str(error)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return LogscopeError(f"cannot write {file}", why=why, help="give another destination")
    return LogscopeError(
        f"there is no room for {file}",
        why=why,
        note="what has arrived is kept, and the copy is as it was before",
        help="make room, or give another destination; --debug-only or --last 200M move less. "
        "The same command then goes on where it stopped",
    )
