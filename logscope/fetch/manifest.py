"""What is known of a copy: where it comes from, how far it goes, and what stood there before.

This module is responsible for the manifest (a JSON file beside the copy), for its versions, for writing it so that it
is always whole, and for the lock that keeps two fetches from writing one copy. It must not know how bytes arrive.

    NAME                  the copy: always the first bytes of the file on the node, and nothing else
    NAME.logscope.json    the manifest
    NAME.logscope-part    what has arrived and is not joined yet
    NAME.logscope-lock    held while a fetch runs
    NAME.generation-N     what NAME held before the file on the node was rotated, replaced or truncated
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logscope.errors import LogscopeError

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = 1
MANIFEST, PART, LOCK, NEW = ".logscope.json", ".logscope-part", ".logscope-lock", ".logscope-new"
# How many bytes at the beginning and at the end are compared before anything is appended.
EDGE = 1 << 16


@dataclass(slots=True)
class Edge:
    """The first or last bytes of a copy: how many, and their SHA-256."""

    bytes: int
    sha256: str


@dataclass(slots=True)
class Part:
    """The part file of a whole copy: what has arrived of the bytes behind the copy's.

    ``confirmed`` bytes of it are known to be of one file; ``complete`` is set before it is joined to the copy. (That of
    a filtered copy says all this itself.)
    """

    confirmed: int = 0
    complete: bool = False


@dataclass(slots=True)
class Generation:
    """A copy that was kept when the file on the node became another one.

    ``complete`` is True when its end was found on the node afterwards (in ``found``), so that nothing is missing.
    """

    number: int
    file: str
    size: int
    reason: str
    complete: bool
    inode: int
    retired: str
    found: str | None = None


@dataclass(slots=True)
class Manifest:
    """All that is known of one copy. Times are ISO 8601 in UTC, sizes are bytes, paths hold the node's bytes
    (``os.fsdecode``).

    ``size`` is what the file beside holds, or, in the filtered form, how much of the original it stands for. ``head``
    and ``tail`` are of the file on the node. ``sha256`` is of the local file, and ``verified`` says that the node
    computed the same.
    """  # noqa: D205 - one sentence

    host: str
    path: str
    generation: int = 1
    size: int = 0
    inode: int = 0
    device: int = 0
    mtime: str | None = None
    head: Edge | None = None
    tail: Edge | None = None
    sha256: str | None = None
    verified: bool = False
    first_fetched: str | None = None
    last_fetched: str | None = None
    part: Part | None = None
    filtered: bool = False
    generations: list[Generation] = field(default_factory=list)

    def save(self, file: Path) -> None:
        """Write it beside the copy, as a new file that replaces the old one: after a crash either of them is there."""
        text = json.dumps({"logscope_fetch": VERSION, **asdict(self)}, indent=1) + "\n"
        new = beside(file, MANIFEST + "-new")
        with new.open("w", encoding="ascii") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        new.replace(beside(file, MANIFEST))


def beside(file: Path, suffix: str) -> Path:
    """Return the companion of a copy."""
    return file.with_name(file.name + suffix)


def load(file: Path) -> Manifest | None:
    """Return the manifest beside a copy, or None when there is none.

    Raises:
        LogscopeError: it cannot be read, or is of a newer version.

    """
    name = beside(file, MANIFEST)
    try:
        values: dict[str, Any] = json.loads(name.read_text(encoding="ascii"))
        version = values.pop("logscope_fetch")
        if version != VERSION:
            raise LogscopeError(
                f"{name} is of version {version}; this logscope reads version {VERSION}",
                help="use the logscope that wrote it, or fetch into another folder",
            )
        for key, kind in {"head": Edge, "tail": Edge, "part": Part}.items():
            values[key] = values[key] and kind(**values[key])
        values["generations"] = [Generation(**value) for value in values["generations"]]
        return Manifest(**values)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LogscopeError(
            f"cannot read {name}",
            why=f"it is no manifest of logscope fetch ({error})",
            help="move it away and fetch again",
        ) from error


def origin(file: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return where a local file came from, when ``logscope fetch`` brought it; else None.

    The keys are those of :class:`Manifest` without its inner bookkeeping. A manifest that cannot be read is no reason
    not to read the log: then, too, None.
    """
    try:
        manifest = load(Path(file))
    except (LogscopeError, OSError):
        return None
    if manifest is None or not manifest.last_fetched:
        return None
    inner = ("head", "tail", "part", "device")
    return {name: value for name, value in asdict(manifest).items() if name not in inner}


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Keep every other fetch away from a copy.

    Raises:
        LogscopeError: another fetch is at work on it.

    """
    name = beside(file, LOCK)
    with contextlib.ExitStack() as stack:
        while True:
            lock = stack.enter_context(name.open("a"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LogscopeError(f"another fetch is writing {file}", help="wait until it has ended") from None
            # Whoever held it before may have removed the name just now; only a lock that has a name counts.
            if os.fstat(lock.fileno()).st_nlink:
                break
        stack.callback(name.unlink, missing_ok=True)
        yield


def sync_folder(folder: Path) -> None:
    """Make a new name in a folder outlive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def when(epoch: float | None = None) -> str:
    """Return an epoch time (else now) in ISO 8601, in UTC, to the second."""
    return datetime.fromtimestamp(time.time() if epoch is None else epoch, UTC).isoformat(timespec="seconds")
