"""What is asked for: names of remote files and options, and the one way names are written into a shell script.

This module is responsible for reading ``[user@]host:PATH`` and ``ssh://user@host:port/path``, for refusing hosts that
could be taken for something else and options that do not go together, for the quoting of POSIX sh, and for the local
name of a remote file. It must not know how a connection is made, nor what stands in a file.

Remote paths are bytes: a node's file name need not be UTF-8. Text and bytes meet only through ``os.fsencode`` and
``os.fsdecode``, which lose nothing.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote_to_bytes

from logscope.errors import UsageError

# ssh hands host and user to the user's own ProxyCommand, which a shell reads: nothing that means something to a shell
# may stand in them. A backslash is let through in a user's name (DOMAIN\user), where OpenSSH allows it too.
_SHELL = r"""\s\x00-\x1f\x7f'"`$;&<>|(){}\[\]*?!#~/"""
_HOST = re.compile(rf"(?!-)[^{_SHELL}\\@,=^]+")
_USER = re.compile(rf"(?!-)[^{_SHELL}:]+(?<!\\)")
_URL = re.compile(
    r"ssh://(?:(?P<user>[^/]*)@)?(?:\[(?P<v6>[^\]/]*)\]|(?P<host>[^/:@]*))(?::(?P<port>[^/]*))?(?P<path>/.*)?",
    re.DOTALL,
)
_SCP = re.compile(r"(?:(?P<user>[^/:\[]*)@)?(?:\[(?P<v6>[^\]/]*)\]|(?P<host>[^/:\[\]@]*)):(?P<path>.*)", re.DOTALL)
_GLOB = re.compile(rb"[*?\[]")
_TIME = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d)?)?")
# One piece of a pattern. A "]" that stands first between brackets is a member, not their end.
_PIECE = re.compile(rb"[*?]|\[([!^]?+)(.[^\]]*)\]|\[|[^*?\[]+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Host:
    """Where ssh connects to. ``name`` may be an alias of the user's ssh_config; user and port may come from there."""

    name: str
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        """Return ``[user@]host[:port]``, an IPv6 address in brackets."""
        name = f"[{self.name}]" if ":" in self.name else self.name
        return (f"{self.user}@" if self.user else "") + name + (f":{self.port}" if self.port else "")


@dataclass(frozen=True, slots=True)
class Spec:
    """One remote argument: its text as given, the host, and the path or pattern there."""

    text: str
    host: Host
    path: bytes

    @property
    def is_pattern(self) -> bool:
        """True when the path holds a character that a pattern may use; a file of just that name still goes first."""
        return _GLOB.search(self.path) is not None


@dataclass(frozen=True, slots=True)
class Options:
    """How to reach hosts, and what to bring.

    Args:
        ssh: the ssh program and its first arguments (:func:`logscope.fetch.ssh.ssh_command`).
        interactive: let ssh ask on the terminal; else it runs in batch mode and nothing ever waits for an answer.
        connect_timeout: seconds.
        compress: on the wire: what the node has (``auto``), or one method that must be there, or ``none``.
        verify: let the node compute the SHA-256 of the whole range that was copied, and compare.
        anchors: fixed texts: bring only lines that hold one, and 3 lines after each, in the filtered form.
        last: bring only about so many bytes from the end, from a line start on, in the filtered form.
        since: bring only what follows this time (``YYYY-MM-DD[ HH:MM[:SS]]``, as the log prints it), in the filtered
            form.
        digest: compute the SHA-256 of the copy when it changed.
        tries: so many failures in a row, without one byte between them, end the fetch (2 before a connection stood).
        delay: seconds before the first new try; doubled each time, 15 at most.
        jobs: hosts at the same time.

    Raises:
        UsageError: they do not go together.

    """

    ssh: tuple[str, ...] = ("ssh",)
    interactive: bool = False
    connect_timeout: int = 15
    compress: Literal["auto", "zstd", "gzip", "none"] = "auto"
    verify: bool = False
    anchors: tuple[bytes, ...] = ()
    last: int | None = None
    since: str | None = None
    digest: bool = True
    tries: int = 8
    delay: float = 0.2
    jobs: int = 8

    def __post_init__(self) -> None:
        if self.verify and (self.anchors or self.last is not None or self.since is not None):
            raise UsageError(
                "--verify compares whole files",
                help="leave it away with --debug-only, --last and --since, or fetch the whole file",
            )
        if self.since is not None and not _TIME.fullmatch(self.since):
            raise UsageError(
                f"{self.since!r} is no time that a log can be searched for",
                help="write it as the log prints it: 2026-02-10, '2026-02-10 12:00' or 2026-02-10T12:00:30",
            )
        if any(not anchor or b"\n" in anchor or b"\0" in anchor for anchor in self.anchors):
            raise UsageError("an anchor has to be a text within one line")


def parse(text: str) -> Spec | None:
    """Return the remote file a text names, or None when it names something local.

    As with scp: a colon behind a slash belongs to a local path (``./a:b``). A local file of exactly this name goes
    first.

    Raises:
        UsageError: a remote form whose host, user, port or path cannot be used.

    """
    if text.startswith("ssh://"):
        found = _URL.fullmatch(text)
        if found is None:
            raise _refused(text, "it is not of the form ssh://[user@]host[:port]/path")
        path = unquote_to_bytes(os.fsencode(found["path"] or ""))
        path = path[1:] if path.startswith(b"/~/") else path
        user = os.fsdecode(unquote_to_bytes(found["user"])) if found["user"] else found["user"]
    else:
        found = _SCP.fullmatch(text)
        if found is None or not (found["host"] or found["v6"]) or os.path.lexists(text):
            return None
        path, user = os.fsencode(found["path"]), found["user"]
    host = found["v6"] or found["host"] or ""
    port = found.groupdict().get("port")
    path = path[2:] if path.startswith(b"~/") else path
    could = "it begins with '-' or holds a character a shell could read"
    for wrong, why in (
        (not _HOST.fullmatch(host), f"{host!r} cannot be a host: {could}"),
        (user is not None and not _USER.fullmatch(user), f"{user!r} cannot be a user: {could}"),
        (
            port is not None and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536),
            f"{port!r} is no port",
        ),
        (path in (b"", b"/"), "the path on the host is missing"),
        (path.startswith(b"~"), "another user's home folder has to be written out: /home/name/..."),
        (b"\0" in path, "a path holds no NUL"),
    ):
        if wrong:
            raise _refused(text, why)
    return Spec(text, Host(host, user, int(port) if port else None), path)


def arguments(texts: list[str]) -> tuple[list[Spec], str]:
    """Return the sources and the destination of ``fetch SOURCE... [DEST]``; without DEST it is the current folder.

    Raises:
        UsageError: no remote source, or a local name anywhere but at the end.

    """
    specs = [parse(text) for text in texts]
    local = [text for text, spec in zip(texts, specs, strict=True) if spec is None]
    if len(local) == len(texts):
        raise UsageError("fetch needs a file on a host", help="for example: logscope fetch node1:/logs/server.log")
    dest = "." if specs[-1] else local.pop()
    if local:
        why = "write host:/path; only the last argument is a local folder"
        raise UsageError(f"{local[0]} is not on a host", help=why)
    return [spec for spec in specs if spec], dest


def size_of(text: str) -> int:
    """Read ``200M``, ``1.5G``, ``4096``: bytes, with units of 1024.

    Raises:
        UsageError: it is none of these.

    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text, re.IGNORECASE)
    if found is None or float(found[1]) == 0:
        raise UsageError(f"{text!r} is no size", help="write 200M, 1.5G or a number of bytes")
    return int(float(found[1]) * 1024 ** " kmgt".index(found[2].lower() or " "))


class Word(bytes):
    """A word of POSIX sh; what is no Word yet has to be quoted."""

    __slots__ = ()


def quote(text: bytes) -> Word:
    """Return the text as one word that means exactly these bytes: in single quotes, whatever it holds."""
    if b"\0" in text:
        raise UsageError("a word for the shell holds no NUL")
    return Word(b"'" + text.replace(b"'", b"'\\''") + b"'")


def pattern_word(pattern: bytes) -> Word:
    """Return a pattern as one word in which only ``*``, ``?`` and ``[...]`` stand outside quotes."""

    def piece(found: re.Match[bytes]) -> bytes:
        if found[2] is None:
            return found[0] if found[0] in (b"*", b"?") else quote(found[0])
        members = (bytes([c]) if c == ord("-") else quote(bytes([c])) for c in found[2])
        return b"[" + b"!" * len(found[1]) + b"".join(members) + b"]"

    return Word(_PIECE.sub(piece, pattern))


def local_name(spec: Spec, path: bytes) -> str:
    """Return the local name of one remote file, relative to the destination.

    It is the last part of the path; behind a pattern it is what stands behind the last folder without one, so that
    ``/logs/*/server.log`` gives ``a/server.log`` and ``b/server.log``.
    """
    found = _GLOB.search(spec.path)
    relative = path.rsplit(b"/", 1)[-1]
    if found and path != spec.path:
        fixed = spec.path[: spec.path.rfind(b"/", 0, found.start()) + 1]
        relative = path[len(fixed) :] if path.startswith(fixed) else relative
    parts = relative.split(b"/")
    if any(part in (b"", b".", b"..") for part in parts):
        parts = parts[-1:]
    return os.fsdecode(b"/".join(parts))


def shown(path: bytes | str) -> str:
    """Return a path for a message: nothing in it can move a terminal's cursor or end a line."""
    text = path if isinstance(path, str) else path.decode("utf-8", "surrogateescape")
    return "".join(c if c.isprintable() else "".join(f"\\x{b:02x}" for b in os.fsencode(c)) for c in text)


def _refused(text: str, why: str) -> UsageError:
    return UsageError(
        f"cannot use {shown(text)!r}", why=why, help="write [user@]host:/path or ssh://user@host:port/path"
    )
