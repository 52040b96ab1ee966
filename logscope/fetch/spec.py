"""Names of remote files, and the one way in which they are written into a shell script.

This module is responsible for reading ``[user@]host:PATH`` and ``ssh://user@host:port/path``, for refusing hosts that
could be taken for something else, for the quoting of POSIX sh, and for the local name of a remote file. It must not
know how a connection is made, nor what stands in a file.

Remote paths are bytes: a node's file name need not be UTF-8. Text and bytes meet only through ``os.fsencode`` and
``os.fsdecode``, which lose nothing.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
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
    host = found["v6"] or found["host"]
    port = found.groupdict().get("port")
    if not host or not _HOST.fullmatch(host):
        raise _refused(text, f"{host!r} cannot be a host: it begins with '-' or holds a character a shell could read")
    if user is not None and not _USER.fullmatch(user):
        raise _refused(text, f"{user!r} cannot be a user: it begins with '-' or holds a character a shell could read")
    if port is not None and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise _refused(text, f"{port!r} is not a port")
    if path.startswith(b"~/"):
        path = path[2:]
    if path in (b"", b"/"):
        raise _refused(text, "the path on the host is missing")
    if path.startswith(b"~"):
        raise _refused(text, "another user's home folder has to be written out: /home/name/...")
    if b"\0" in path:
        raise _refused(text, "a path holds no NUL")
    return Spec(text, Host(host, user, int(port) if port else None), path)


def arguments(texts: list[str]) -> tuple[list[Spec], str]:
    """Return the sources and the destination of ``fetch SOURCE... [DEST]``; without DEST it is the current folder.

    Raises:
        UsageError: no remote source, or a local name anywhere but at the end.

    """
    specs = [parse(text) for text in texts]
    dest = "."
    if specs and specs[-1] is None:
        dest, specs = texts[-1], specs[:-1]
    if not specs:
        raise UsageError("fetch needs a file on a host", help="for example: logscope fetch node1:/logs/server.log")
    for text, spec in zip(texts, specs, strict=False):
        if spec is None:
            raise UsageError(
                f"{text} is not on a host", help="write host:/path; only the last argument is a local folder"
            )
    return [spec for spec in specs if spec is not None], dest


def quote(text: bytes) -> bytes:
    """Return the text as one word of POSIX sh that means exactly these bytes: in single quotes, whatever it holds."""
    if b"\0" in text:
        raise UsageError("a word for the shell holds no NUL")
    return b"'" + text.replace(b"'", b"'\\''") + b"'"


def pattern_word(pattern: bytes) -> bytes:
    """Return a pattern as one word of POSIX sh in which only ``*``, ``?`` and ``[...]`` stand outside quotes."""
    out, literal, at = [], bytearray(), 0
    while at < len(pattern):
        piece, end = pattern[at : at + 1], at + 1
        if piece == b"[":
            inner = at + 1 + (pattern[at + 1 : at + 2] in (b"!", b"^"))
            # A "]" that stands first is a member, not the end.
            close = pattern.find(b"]", inner + 1)
            if close > 0:
                members = (bytes([c]) if c == ord("-") else quote(bytes([c])) for c in pattern[inner:close])
                piece, end = b"[" + b"!" * (inner - at - 1) + b"".join(members) + b"]", close + 1
        if piece in (b"*", b"?") or end > at + 1:
            out += [quote(bytes(literal)), piece]
            literal.clear()
        else:
            literal += piece
        at = end
    return b"".join([*out, quote(bytes(literal))])


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
