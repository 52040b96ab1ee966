"""One file on a node and its copy: taking up, going on, and noticing that the file is another one.

This module is responsible for the promise that a copy is always the beginning of one file on the node, whatever was
interrupted where, and that nothing which was copied once is thrown away. It must not know how a connection is made.

Everything that happened stands on disk (the manifest, the part file, the copy), so an attempt after a lost connection
and a new process after SIGKILL go the same way: look, compare with the node, go on. What has arrived counts as
*confirmed* when, after it was read, the file on the node still had its beginning and was no smaller: a file that is
truncated and grows again during the copy cannot leave a mixture behind.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

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
    now,
    sync_folder,
    when,
)
from logscope.fetch.node import FileError, Stat
from logscope.fetch.rotation import lost_file, successors
from logscope.fetch.spec import shown
from logscope.fetch.ssh import SshError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logscope.fetch.link import Link
    from logscope.fetch.node import Node, Pack

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
        link: the host.
        path: the file there.
        file: the local name.
        advance: told how many bytes of how many have arrived.

    """

    form: Literal["whole", "filtered"]

    def __init__(self, link: Link, path: bytes, file: Path, advance: Callable[[int, int], None]) -> None:
        self.link = link
        self.options = link.options
        self.path = path
        self.file = file
        self.part = beside(file, PART)
        self.advance = advance
        self.name = f"{link.host}:{shown(path)}"
        self.manifest = Manifest(str(link.host), os.fsdecode(path))
        self.target: int | None = None
        self.adopting = False
        self.fresh = True
        self.beginning = Edge(0, "")
        self.result = Fetched(str(link.host), os.fsdecode(path), str(file), form=self.form)

    def run(self) -> Fetched:
        """Copy what is new, and return what was done.

        Raises:
            LogscopeError: nothing that was copied before is lost then, and the next call goes on.

        """
        began, received = time.monotonic(), self.link.received
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.file):
                self.take_up()
                self.result.added = -self.manifest.size
                self._persist()
        except OSError as error:
            self.link.drop()
            raise local_trouble(error, self.file) from error
        manifest, result = self.manifest, self.result
        result.size, result.generation = manifest.size, manifest.generation
        result.added += manifest.size
        result.sha256, result.verified = manifest.sha256, manifest.verified
        result.generations = [generation.file for generation in manifest.generations]
        result.moved = self.link.received - received
        result.seconds = round(time.monotonic() - began, 3)
        return result

    def notice(self, text: str) -> None:
        """Say something that the user should know, and keep it in the result."""
        self.result.notices.append(text)
        self.link.notice(text)

    @abstractmethod
    def local_is_ours(self) -> bool:
        """Tell whether the local file is what the manifest says it is."""

    @abstractmethod
    def fits(self, node: Node, stat: Stat) -> bool:
        """Tell whether what has arrived and is not joined yet is of the open file; what is not confirmed may go."""

    @abstractmethod
    def cut_back(self) -> None:
        """Forget what has arrived and is not confirmed."""

    @abstractmethod
    def transfer(self, node: Node, stat: Stat, target: int) -> None:
        """Bring the copy up to ``target`` bytes of the open file, and join what arrived."""

    @abstractmethod
    def join(self) -> None:
        """Join the complete part to the copy, without a note: doing it again after an interruption does no harm."""

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
        manifest = load(self.file)
        there = os.path.lexists(self.file)
        if there and not self.file.is_file():
            raise LogscopeError(f"{self.file} is no regular file", help="give another destination")
        if manifest is None:
            self.part.unlink(missing_ok=True)
            self.adopting = there
            return
        self.manifest = manifest
        if manifest.generations and manifest.size == 0 and there:
            # Interrupted between the note that the copy is kept and its new name.
            last = manifest.generations[-1]
            kept = self.file.with_name(last.file)
            if not kept.exists() and self.file.stat().st_size == last.size:
                self.file.rename(kept)
                there = False
        if manifest.part is None:
            self.part.unlink(missing_ok=True)
        elif manifest.part.complete:
            self.join()
            self.joined()
            there = self.file.exists()
        if not there and manifest.size:
            self.notice(f"{self.file} is gone: it is fetched again from its beginning")
            self.manifest = Manifest(
                manifest.host, manifest.path, manifest.generation, generations=manifest.generations
            )
            self.part.unlink(missing_ok=True)
        elif there and not self.local_is_ours():
            raise LogscopeError(
                f"{self.file} was changed here since it was fetched",
                why="it is not the beginning of the file on the node any more, so nothing is appended to it",
                help="move it and its .logscope.json away, or give another destination",
            )

    def _persist(self) -> None:
        changes = 0
        while True:
            try:
                self._attempt(self.link.node)
            except Changed:
                changes += 1
                self.target = None
                if changes > _MOST_CHANGES:
                    raise RemoteError(
                        f"{self.name} changes faster than it can be copied",
                        why="it was truncated or replaced every time",
                    ) from None
            except SshError as failure:
                self.link.recover(failure)
            else:
                return

    def _attempt(self, node: Node) -> None:
        manifest = self.manifest
        try:
            stat = node.open(self.path)
        except FileError as error:
            if error.kind == "missing" and manifest.head is not None and self._finish_elsewhere(node, error):
                return
            raise
        if self.adopting:
            self._adopt(node, stat)
        if manifest.head is not None and not self._continues(node, stat):
            if (manifest.host, manifest.path) != (str(self.link.host), os.fsdecode(self.path)):
                raise LogscopeError(
                    f"{self.file} is the copy of another file",
                    why=f"it came from {manifest.host}:{shown(manifest.path)}, and is not the beginning of {self.name}",
                    help="give another destination",
                )
            self._retire(node, stat)
            stat = node.open(self.path)
        self.fresh = False
        manifest = self.manifest
        manifest.host, manifest.path = str(self.link.host), os.fsdecode(self.path)
        if self.target is None or stat.size < self.target:
            self.target = stat.size
        self._bring(node, stat, self.target)

    def _bring(self, node: Node, stat: Stat, target: int) -> None:
        """Note what makes the open file recognisable, before its first byte is copied; then copy."""
        manifest = self.manifest
        length = min(EDGE, target)
        self.beginning = Edge(length, node.sums((0, length))[0])
        if manifest.head is None:
            manifest.head = self.beginning
        manifest.device, manifest.inode = stat.device, stat.inode
        self.transfer(node, stat, target)

    def _continues(self, node: Node, stat: Stat) -> bool:
        """Tell whether the open file begins with everything the copy holds, by its edges, and by the part's.

        Where the copy holds nothing yet, its inode tells.
        """
        manifest = self.manifest
        if not manifest.size and manifest.part is None:
            return (stat.device, stat.inode) == (manifest.device, manifest.inode)
        edges = [(0, manifest.head)] if manifest.head else []
        if manifest.tail is not None:
            edges.append((manifest.size - manifest.tail.bytes, manifest.tail))
        if stat.size < max([manifest.size, *(start + edge.bytes for start, edge in edges)]):
            return False
        sums = node.sums(*((start, edge.bytes) for start, edge in edges))
        return sums == [edge.sha256 for _, edge in edges] and self.fits(node, stat)

    def _adopt(self, node: Node, stat: Stat) -> None:
        """Go on from a file that something else copied, when it is the beginning of the one on the node."""
        size = self.file.stat().st_size
        if self.form != "whole" or stat.size < size or node.sums((0, size))[0] != digest(self.file):
            raise LogscopeError(
                f"{self.file} is there already, and is not the beginning of {self.name}",
                why="it was not written by logscope fetch, so it is left alone",
                help="move it away, or give another destination",
            )
        self.adopting = False
        self.manifest.size = size
        self.result.added -= size
        self.note_edges()
        self.manifest.save(self.file)

    def note_edges(self) -> None:
        """Compute head and tail from the copy, which holds the same bytes as the node."""
        manifest = self.manifest
        length = min(EDGE, manifest.size)
        manifest.head = Edge(length, digest(self.file, 0, length))
        manifest.tail = Edge(length, digest(self.file, manifest.size - length, length))

    def confirm(self, node: Node, size: int) -> None:
        """Tell whether the open file was still the same and of at least this size after a range of it was read.

        Raises:
            Changed: it was truncated or written anew meanwhile.

        """
        after, beginning = node.after()
        if after.size < size or beginning != self.beginning.sha256:
            raise Changed

    def done(self, stat: Stat) -> None:
        """Note that the copy is up to date."""
        manifest = self.manifest
        manifest.filtered = self.form == "filtered"
        manifest.device, manifest.inode, manifest.mtime = stat.device, stat.inode, when(stat.mtime)
        manifest.last_fetched = now()
        manifest.first_fetched = manifest.first_fetched or manifest.last_fetched
        self.joined()

    def _find_rest(self, node: Node) -> tuple[bytes, Stat] | None:
        """Open the file that holds the rest of what was copied, under the name a rotation gave it."""
        manifest = self.manifest
        return lost_file(node, self.path, manifest.inode, lambda stat: self._continues(node, stat))

    def _finish_elsewhere(self, node: Node, error: FileError) -> bool:
        """Copy the rest, as the name is gone, from where a rotation put it; False when there is no copy to finish."""
        self.cut_back()
        found = self._find_rest(node)
        if found is not None:
            path, stat = found
            self.notice(f"there is no {self.name} now; the copy was brought up to date from {shown(path)}")
            self._bring(node, stat, stat.size)
            return True
        if self.manifest.size or self.manifest.part:
            raise FileError(
                "missing",
                f"{self.name} is gone from the node",
                why=error.message.why,
                help=f"what was copied stays: {self.file if self.manifest.size else self.part}",
            ) from error
        return False

    def _retire(self, node: Node, stat: Stat) -> None:
        """Complete the copy of a file that lost its name, if its rest can be found, and keep it."""
        manifest = self.manifest
        in_place = (stat.device, stat.inode) == (manifest.device, manifest.inode)
        self.cut_back()
        found = self._find_rest(node)
        if found is not None:
            self._bring(node, found[1], found[1].size)
        elif manifest.part is not None:
            self.close_part()
            self.joined()
        self.archive("truncated" if in_place else "replaced", None if found is None else found[0])
        if found is not None and (between := successors(self.path, found[1], node.beside(self.path))):
            names = ", ".join(shown(path) for path, _ in between)
            self.notice(f"{self.name} was rotated more than once; fetch these too for what lies between: {names}")

    @abstractmethod
    def close_part(self) -> None:
        """Join what has arrived and is confirmed although more was expected."""

    def archive(self, reason: str, found: bytes | None) -> None:
        """Keep the copy under a name of its own and begin the next generation."""
        manifest = self.manifest
        kept = list(manifest.generations)
        number = manifest.generation
        if manifest.size:
            target = self.file.with_name(f"{self.file.name}.generation-{number}")
            while os.path.lexists(target):
                number += 1
                target = self.file.with_name(f"{self.file.name}.generation-{number}")
            stored = self.file.stat().st_size
            rest = None if found is None else os.fsdecode(found)
            kept.append(Generation(number, target.name, stored, reason, rest is not None, manifest.inode, now(), rest))
            end = (
                f"its end was copied from {shown(found)}"
                if found is not None
                else f"what it held after byte {manifest.size}, if anything, was not found on the node"
            )
            self.notice(f"{self.name} was {reason}: the copy so far is kept as {target.name}; {end}")
        self.manifest = Manifest(manifest.host, manifest.path, number + 1, generations=kept)
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

    def __init__(self, link: Link, path: bytes, file: Path, advance: Callable[[int, int], None]) -> None:
        super().__init__(link, path, file, advance)
        # Of the bytes since the file's beginning, as long as they pass through this process in one row.
        self._hash = hashlib.sha256()
        self._hashed = 0

    def local_is_ours(self) -> bool:
        """Compare size and edges."""
        manifest = self.manifest
        if self.file.stat().st_size != manifest.size:
            return False
        edges = [(0, manifest.head), (manifest.size - (manifest.tail.bytes if manifest.tail else 0), manifest.tail)]
        return not manifest.size or all(
            edge is not None and digest(self.file, start, edge.bytes) == edge.sha256 for start, edge in edges
        )

    def held(self) -> int:
        """Return the size of the part file."""
        return self.part.stat().st_size if self.part.exists() else 0

    def fits(self, node: Node, stat: Stat) -> bool:
        """Compare the part: all of it when another process wrote it, else its end."""
        part = self.manifest.part
        if part is None:
            return True
        for held in dict.fromkeys((self.held(), part.confirmed)):
            length = held if self.fresh else min(EDGE, held)
            if stat.size >= part.base + held:
                start = held - length
                if not length or node.sums((part.base + start, length))[0] == digest(self.part, start, length):
                    part.confirmed = held
                    return True
            self.cut_back()
        return False

    def cut_back(self) -> None:
        """Cut the part to what is confirmed."""
        part = self.manifest.part
        if part is not None and self.held() > part.confirmed:
            os.truncate(self.part, part.confirmed)
            self._hashed = -1

    def transfer(self, node: Node, stat: Stat, target: int) -> None:
        """Read what is missing in pieces, check that it is of one file, and join it."""
        manifest = self.manifest
        begun = manifest.part is not None or not self.file.exists() or manifest.size < target
        if begun:
            self.result.compress = pack = self.link.pack(self.path)
            if manifest.part is None:
                manifest.part = Part(manifest.size)
                self.part.unlink(missing_ok=True)
                if manifest.size == 0:
                    self._hash, self._hashed = hashlib.sha256(), 0
                manifest.save(self.file)
            self._receive(node, target, manifest.part, pack)
            self.result.action = "new" if manifest.part.base == 0 else "appended"
        verified = self.options.verify and self._verify(node, target)
        if begun:
            self.close_part()
        manifest.verified = verified or (manifest.verified and not begun)
        if verified or (self.options.digest and manifest.sha256 is None):
            manifest.sha256 = self._hash.hexdigest() if self._hashed == target else digest(self.file)
        self.done(stat)

    def _receive(self, node: Node, target: int, part: Part, pack: Pack) -> None:
        at = part.base + self.held()
        # Bytes that are appended stand in the part and in the copy for a moment.
        check_room(self.file, (target - at) * (2 if part.base else 1))
        ranges = [(start, min(_PIECE, target - start)) for start in range(at, target, _PIECE)]
        out = os.open(self.part, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            for number, (start, length) in enumerate(ranges):
                # One piece ahead, so that the wire does not idle between two pieces.
                for ahead in ranges[number + 1 if number else 0 : number + 2]:
                    node.ask(pack, *ahead, self.beginning.bytes)
                got = 0
                for data in node.answer(pack):
                    write(out, data)
                    got += len(data)
                    if self._hashed == start + got - len(data):
                        self._hash.update(data)
                        self._hashed += len(data)
                    self.link.progress()
                    self.advance(start + got, target)
                self.confirm(node, start + length)
                if got < length:
                    raise SshError("lost", f"{self.name} could not be read to its end", why="the node sent too little")
                part.confirmed = start + length - part.base
                if start + length < target:
                    os.fsync(out)
                    self.manifest.save(self.file)
            os.fsync(out)
            self._check_end(node, target, part)
        except Changed:
            os.truncate(self.part, part.confirmed)
            self._hashed = -1
            self.link.drop()
            raise
        except OSError:
            self.link.drop()
            raise
        finally:
            os.close(out)

    def _check_end(self, node: Node, target: int, part: Part) -> None:
        """Compare the last bytes of the part with the node's: they went through two pipes and a decompressor."""
        length = min(EDGE, target - part.base)
        start = target - part.base - length
        if length and node.sums((target - length, length))[0] != digest(self.part, start, length):
            part.confirmed = 0
            raise Changed

    def _verify(self, node: Node, target: int) -> bool:
        """Let the node compute the SHA-256 of everything that was copied, and compare."""
        theirs = node.sums((0, target))[0]
        if self._hashed == target:
            ours = self._hash.hexdigest()
        else:
            both = hashlib.sha256()
            for file in (self.file, self.part):
                if file.exists():
                    digest(file, into=both)
            ours = both.hexdigest()
        if theirs == ours:
            return True
        manifest = self.manifest
        manifest.part = None
        self.part.unlink(missing_ok=True)
        self._hashed = -1
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
            self.join()

    def join(self) -> None:
        """Rename the part when it is the whole file, else append it."""
        manifest = self.manifest
        part = manifest.part
        if part is None:
            return
        if not self.part.exists() and not self.file.exists():
            manifest.part = None
            return
        if self.part.exists():
            if part.base == 0:
                self.part.replace(self.file)
            else:
                with self.file.open("r+b") as out, self.part.open("rb") as rest:
                    out.truncate(part.base)
                    out.seek(part.base)
                    shutil.copyfileobj(rest, out, 1 << 20)
                    out.flush()
                    os.fsync(out.fileno())
        manifest.size = part.base + part.confirmed
        manifest.part = None
        manifest.sha256 = None
        manifest.verified = False
        self.note_edges()


def write(handle: int, data: bytes) -> None:
    """Write all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def digest(file: Path, start: int = 0, length: int | None = None, into: Any = None) -> str:
    """Return the SHA-256 of a range of a file, in hex; ``into`` may be a hash that already saw something."""
    made = into if into is not None else hashlib.sha256()
    with file.open("rb") as data:
        data.seek(start)
        left = length
        while left is None or left > 0:
            piece = data.read(1 << 20 if left is None else min(1 << 20, left))
            if not piece:
                break
            made.update(piece)
            left = None if left is None else left - len(piece)
    return str(made.hexdigest())


def check_room(file: Path, needed: int) -> None:
    """Raise the error of a full disk before it is full."""
    free = shutil.disk_usage(file.parent).free
    if needed > free:
        raise no_room(file, f"{needed:,} bytes are still to come, and {free:,} are free")


def no_room(file: Path, why: str) -> LogscopeError:
    """Return the error of a full disk."""
    return LogscopeError(
        f"there is no room for {file}",
        why=why,
        note="what has arrived is kept, and the copy is as it was before",
        help="make room, or give another destination; --debug-only or --last 200M move less. "
        "The same command then goes on where it stopped",
    )


def local_trouble(error: OSError, file: Path) -> LogscopeError:
    """Turn a failure on this machine into an error that says what to do."""
    text = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return no_room(file, text)
    return LogscopeError(f"cannot write {file}", why=text, help="give another destination")
