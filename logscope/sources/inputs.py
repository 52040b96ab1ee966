"""What the user named, as sources: paths, globs, directories, standard input, file objects, pipes and devices.

This module is responsible for finding the inputs, each once, and for saying what is missing and what was left out. It
must not know what stands in a log, and it never asks another host: a remote path is recognised here and opened
elsewhere. How a source is read stands in :mod:`logscope.sources.streams`.
"""

# Names are shown as the user gave them, and pathlib would tidy "./a" and "a//b".
# ruff: noqa: PTH112, PTH114, PTH115, PTH116, PTH118, PTH119, PTH122, PTH123, PTH207, PTH208

from __future__ import annotations

import contextlib
import glob
import io
import json
import os
import re
import stat
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from logscope.errors import InputError, NothingRecognised, did_you_mean
from logscope.sources.streams import Source, form_of, standard_input, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable

Input: TypeAlias = "str | bytes | os.PathLike[str] | Any"

_SNIFF = 4 << 10

LOG_SUFFIXES = frozenset({".log", ".txt", ".out", ".err"})
_PACKED = (".gz", ".bz2", ".xz", ".zst")
_ROTATED = re.compile(r"[.-]\d[\dT_.:-]*$")  # server.log.1, server.log-20260210, 0.log.20260210-101010
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_REMOTE = re.compile(r"(?:[^\s/:@]+@)?(?:\[[0-9A-Za-z:.%]+\]|[^\s/:@\[\]]+):")
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\b\t\n\f\r\x1b")


def is_remote(text: str) -> bool:
    r"""Tell whether a text names a file on another host: ``ssh://...`` or ``[user@]host:path``.

    A local file of that name wins, and so do a local glob that matches and a Windows drive (``C:\logs``).
    """
    if text.startswith("ssh://"):
        return True
    if _SCHEME.match(text) or _DRIVE.match(text) or _REMOTE.match(text) is None:
        return False
    return not os.path.lexists(text) and not (glob.has_magic(text) and glob.glob(text))


def expand(inputs: Input | Iterable[Input]) -> list[Source]:
    """Return what the user named as sources, each file once, in the order named.

    Taken are paths, globs (as a shell would match them, ``**`` too), directories, ``-`` for standard input, and
    binary or text file objects. A directory gives, recursively and sorted, its ``*.log *.txt *.out *.err`` (rotated
    and compressed forms too) and its text files without a suffix; links are followed, once; hidden files and folders
    are not looked at. What may hold a log and cannot be read is said in a warning, other files only where no log is.

    Warnings that concern no single source stand with the first one.

    Raises
    ------
    InputError
        For an input that is missing or unreadable, or stands on another host.
    NothingRecognised
        When directories are all that was named, and none holds a log.

    """
    if isinstance(inputs, (str, bytes, os.PathLike)) or hasattr(inputs, "read"):
        inputs = [inputs]
    found = _Expansion()
    for item in inputs:
        found.add(item)
    return found.result()


class _Expansion:
    """The state of one :func:`expand`."""

    def __init__(self) -> None:
        self._sources: list[Source] = []
        self._by_file: dict[object, Source] = {}
        self._empty: list[tuple[str, list[str], bool]] = []  # directory, what was left out, was any file refused

    def result(self) -> list[Source]:
        """Return the sources, or say that there are none."""
        for directory, left_out, refused in self._empty:
            if not self._sources:
                what = f"there are no logs in '{directory}'"
                note = _listed("left out: ", left_out) if left_out else None
                kind = InputError if refused else NothingRecognised
                raise kind(what, note=note, help="name the files themselves to read whatever they are")
            self._sources[0].warnings.append(f"{directory}: holds no logs" + _listed("; left out: ", left_out))
        if not self._sources:
            raise InputError("no input was named")
        return self._sources

    def add(self, item: Input) -> None:
        """Add what one argument names."""
        if hasattr(item, "read"):
            self._add_stream(item)
        elif isinstance(item, os.PathLike):
            self._add_path(os.fsdecode(item))
        elif not isinstance(item, (str, bytes)):
            raise InputError(f"{item!r} is neither a path nor a file object")
        elif (text := os.fsdecode(item)) == "-":
            stream = standard_input()
            if stream is None:
                raise InputError("standard input is closed")
            self._add_stream(stream, "-")
        elif os.path.lexists(text):  # a file of that name wins
            self._add_path(text)
        elif is_remote(text):
            raise InputError(f"'{text}' is on another host", help=f"bring it here first: logscope fetch {text}")
        else:
            for path in (glob.has_magic(text) and sorted(glob.glob(text, recursive=True))) or [text]:
                self._add_path(path)

    def _add_stream(self, stream: Any, name: str | None = None) -> None:
        buffer = getattr(stream, "buffer", None) if isinstance(stream, io.TextIOBase) else None
        if buffer is not None:
            if stream.seekable():  # what it has decoded ahead is not read yet
                stream.seek(stream.tell())
            stream = buffer
        key: object = id(stream)
        with contextlib.suppress(OSError, ValueError, AttributeError):
            status = os.fstat(stream.fileno())
            if stat.S_ISREG(status.st_mode) or name == "-":
                key = _identity(status)
        self._keep(key, Source(name or name_of(stream), stream=stream))

    def _add_path(self, path: str) -> None:
        try:
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode):
                self._add_file(path, status)
                return
        except FileNotFoundError as error:
            raise missing(path) from error
        except (OSError, ValueError) as error:
            raise unreadable(path, error) from error
        if stat.S_ISDIR(status.st_mode):
            self._add_directory(path)
        elif stat.S_ISSOCK(status.st_mode):
            raise InputError(f"'{path}' is a socket, which cannot be read like a file")
        elif not os.access(path, os.R_OK):
            raise unreadable(path, PermissionError(13, "Permission denied"))
        else:  # a pipe is not opened before it is read: opening waits for its writer
            self._keep(_identity(status), Source(path, path=path))

    def _add_file(self, path: str, status: os.stat_result) -> Source:
        """Add a plain file. Raises OSError when it cannot be opened."""
        form = form_of(_head(path))
        source = Source(path, path=path, compressed=form, size=None if form else status.st_size)
        return self._keep(_identity(status), source)

    def _keep(self, key: object, source: Source) -> Source:
        """Add a source, unless it is a file that is there already. Return the one that is kept."""
        kept = self._by_file.setdefault(key, source)
        if kept is not source:
            kept.warn(f"was also named as '{source.name}' and is read once")
            return kept
        self._sources.append(source)
        return source

    def _add_directory(self, top: str) -> None:
        if _is_saved_run(top):
            self._sources.append(Source(top, path=top, saved_run=True))
            return
        logs, left_out, foreign = _walk(top)
        added: list[Source] = []
        refused = False
        for path, status in sorted(logs.items()):
            try:
                added.append(self._add_file(path, status))
            except OSError as error:
                refused = True
                left_out.append(_left_out(top, path, error))
        if not added:
            self._empty.append((top, sorted([*left_out, *foreign]), refused))
            return
        twins = [path for path in sorted(logs) if path.endswith(_PACKED) and os.path.splitext(path)[0] in logs]
        both = "stand beside an unpacked file of the same name, and both are read: "
        for said in (_listed("left out: ", left_out), _listed(both, twins)):
            if said:
                added[0].warnings.append(f"{top}: {said}")


def _walk(top: str) -> tuple[dict[str, os.stat_result], list[str], list[str]]:
    """Return the logs below a directory, each once, under its own name rather than a link's.

    With them what was left out though it may hold a log, and what is none.
    """
    logs: dict[str, os.stat_result] = {}
    left_out: list[str] = []
    foreign: list[str] = []
    seen = {_identity(os.stat(top))}
    for above in Path(os.path.realpath(top)).parents:  # a link out of the folder would bring in everything beside it
        with contextlib.suppress(OSError):
            seen.add(_identity(above.stat()))
    starts = deque([top])

    def enter(path: str) -> bool:
        """Keep a log; tell whether this is a folder to walk. Nothing is looked at twice."""
        try:
            status = os.stat(path)
        except OSError as error:
            left_out.append(_left_out(top, path, error))
            return False
        if (key := _identity(status)) in seen:
            return False
        seen.add(key)
        if stat.S_ISDIR(status.st_mode) and not _is_saved_run(path):
            return True
        if stat.S_ISDIR(status.st_mode):
            left_out.append(_left_out(top, path, "a saved run"))
        elif not stat.S_ISREG(status.st_mode):
            left_out.append(_left_out(top, path, "not a plain file"))
        elif _looks_like_log(path):
            logs[path] = status
        else:
            reason = "not a log by its name" if os.path.splitext(path)[1] else "not a text"
            foreign.append(_left_out(top, path, reason))
        return False

    def failed(error: OSError) -> None:
        if error.filename == top:
            raise unreadable(top, error) from error
        left_out.append(_left_out(top, error.filename, error))

    while starts:  # links last: what has a name of its own is met under it
        start = starts.popleft()
        if start != top and not enter(start):
            continue
        for folder, folders, files in os.walk(start, onerror=failed):
            inside = {name: os.path.join(folder, name) for name in sorted(folders + files) if name[0] != "."}
            starts.extend(path for path in inside.values() if os.path.islink(path))
            folders[:] = [name for name, path in inside.items() if not os.path.islink(path) and enter(path)]
    return logs, left_out, foreign


def _left_out(top: str, path: str, reason: str | OSError) -> str:
    """Return what is not read below a directory, and why."""
    if isinstance(reason, OSError):
        reason = reason.strerror or str(reason)
    return f"{os.path.relpath(path, top)} ({reason.lower()})"


def name_of(stream: Any) -> str:
    """Return what a file object is called."""
    given = getattr(stream, "name", None)
    return given if isinstance(given, str) else f"<{type(stream).__name__}>"


def _identity(status: os.stat_result) -> tuple[int, int]:
    """Return what two names of one file share."""
    return (status.st_dev, status.st_ino)


def _looks_like_log(path: str) -> bool:
    """Tell a log by its name, or, where that has no suffix, by its first bytes. Unreadable files are let through."""
    name = os.path.basename(path)
    packed = name.endswith(_PACKED)
    name = _ROTATED.sub("", os.path.splitext(name)[0] if packed else name)
    suffix = os.path.splitext(name)[1].lower()
    if suffix or packed:
        return not suffix or suffix in LOG_SUFFIXES
    try:
        head = _head(path)
    except OSError:
        return True  # said when it is opened
    return form_of(head) is not None or len(head) - len(head.translate(None, _CONTROLS)) <= len(head) // 20


def _head(path: str) -> bytes:
    """Return the first bytes of a plain file."""
    with open(path, "rb", buffering=0) as file:
        return file.read(_SNIFF)


def _is_saved_run(directory: str) -> bool:
    """Tell whether ``Run.save`` wrote this folder: its ``manifest.json`` has the key ``logscope_run``."""
    try:
        with open(os.path.join(directory, "manifest.json"), "rb") as file:
            manifest = json.load(file)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and "logscope_run" in manifest


def _listed(before: str, names: list[str], most: int = 5) -> str:
    """Return a few names as text, and how many more there are; nothing for none."""
    if not names:
        return ""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return before + ", ".join(names[:most]) + more


def missing(text: str) -> InputError:
    """Return the error for something that is not there, with the nearest name that is."""
    if os.path.islink(text):
        return InputError(f"'{text}' is a link to '{os.readlink(text)}', which is not there")
    if _SCHEME.match(text):
        return InputError(
            f"'{text}' is an address, not a file", help="download it, or pipe it: curl ADDRESS | logscope COMMAND -"
        )
    if glob.has_magic(text):
        return InputError(f"no file matches '{text}'")
    folder, name = os.path.split(text)
    while folder and not os.path.isdir(folder):
        folder, name = os.path.split(folder)
    first = os.path.join(folder, name)
    known: list[str] = []
    with contextlib.suppress(OSError):
        known = os.listdir(folder or ".")
    why = f"there is no '{first}'" if first != text else None
    return InputError(f"there is no file '{text}'", why=why, help=did_you_mean(name, known))
