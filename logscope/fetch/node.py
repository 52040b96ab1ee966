"""What logscope asks of a host: the sh functions, and their typed counterparts.

This module is responsible for everything that runs on the node. It must not know what is kept locally. On the node it
needs sh, ``/proc``, and from coreutils and grep only: stat, head, tail, wc, cat, sha256sum, grep; zstd and gzip are
used when they are there. Nothing is written or left there: the sh ends when its input ends.

A file is opened once, as descriptor 3 of that sh, and everything is asked of the descriptor: whatever happens to the
name meanwhile (rotation, replacement, deletion), no two files can be mixed within one session.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Literal, NamedTuple

from logscope.errors import RemoteError
from logscope.fetch.spec import pattern_word, quote, shown
from logscope.fetch.ssh import Session

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence

    from logscope.fetch.spec import Host, Spec

Pack = Literal["zstd", "gzip", "none"]
_MOST_LOOKS = 5

# - Functions and options of the user's shell (exported, they reach every sh that is bash) and grep's own settings are
#   put away.
# - /proc/self/fd/3, opened anew, has a position of its own, also when the name is gone already.
# - tail seeks on a file, and ends by SIGPIPE when head has what it needs.
# - `{ :; } 3<file` fails without ending the sh, which `exec 3<file` would.
_SCRIPT = rb"""
unset -f stat head tail wc cat sha256sum grep zstd gzip printf command test cd
unset GREP_OPTIONS GREP_COLOR GREP_COLORS POSIXLY_CORRECT
set +efux
cd
exec 2>/dev/null 5>&1
l_open() {
  exec 3<&-
  if [ -d "$1" ]; then l_end directory
  elif [ -e "$1" ] && [ ! -f "$1" ]; then l_end special
  elif { :; } 3<"$1"; then exec 3<"$1"; l_end ok $(l_stat)
  elif why=$( { : <"$1"; } 2>&1 ) && [ -z "$why" ]; then l_open "$1"
  else printf %s "$why"; l_end failed
  fi
}
l_stat() { stat -L -c '%d %i %s %Y' /proc/self/fd/0 <&3; }
l_range() {
  if [ "$1" -eq 0 ]; then head -c "$2"; else tail -c "+$(($1 + 1))" | head -c "$2"; fi </proc/self/fd/3
}
l_sum() { l_range "$1" "$2" | sha256sum | head -c 64; }
l_sums() { while [ $# -gt 1 ]; do l_sum "$1" "$2"; shift 2; done; l_end ok; }
l_pack() {
  case $1 in
    zstd) zstd -q -c ;;
    gzip) gzip -1 -c ;;
    *) cat ;;
  esac
}
l_get() { l_range "$2" "$3" | l_pack "$1"; l_end ok $(l_stat) "$(l_sum 0 "$4")"; }
l_next() {
  set -- "$1" "$2" "$3" "$4" $(stat -L -c '%d %i %s %Y' -- /proc/self/fd/0 "$1" <&3)
  [ "$7" -le "$3" ] || l_range "$2" "$4"
  shift 4
  l_end ok "$@"
}
l_grep() {
  pack=$1 from=$2 size=$3 head=$4
  shift 4
  status=$( { { l_range "$from" "$size" | grep -anbF -A 3 "$@"; echo $? >&4; } | l_pack "$pack" >&5; } 4>&1 )
  l_end ok $(l_stat) "$(l_sum 0 "$head")" "$status"
}
l_count() { l_end ok $(l_range "$1" "$2" | wc -l) $(l_range $(($1 + $2 - 1)) 1 | wc -l); }
l_tail() { l_end ok $(l_range "$1" "$2" | tail -n 1 | wc -c); }
l_head() { l_end ok $(l_range "$1" "$2" | head -n 1 | wc -c); }
l_list() {
  for f do
    kind=missing
    if [ -f "$f" ]; then kind=file
    elif [ -d "$f" ]; then kind=directory
    elif [ -e "$f" ]; then kind=special
    fi
    printf '%s %s %s' "$kind" "${#f}" "$f"
  done
  l_end ok
}
l_stats() {
  for f do
    [ -f "$f" ] && s=$(stat -L -c '%d %i %s %Y' -- "$f") && printf '%s %s %s' "$s" "${#f}" "$f"
  done
  l_end ok
}
have=
for tool in zstd gzip; do ! command -v $tool >/dev/null || have="$have $tool"; done
[ "$(printf 'x\n' | grep -anbF -A 3 -e x)" != 1:0:x ] || have="$have grep"
[ "$(printf abc | tail -c +2 | head -c 1)" != b ] || have="$have range"
[ "$(printf abc | sha256sum | head -c 4)" != ba78 ] || have="$have sha256sum"
[ -z "$(stat -L -c %i /proc/self/fd/0 </dev/null)" ] || have="$have stat"
l_end $have
"""


class Stat(NamedTuple):
    """What stat says of a file: device, inode, size in bytes, time of the last change in epoch seconds."""

    device: int
    inode: int
    size: int
    mtime: int


class Lines(NamedTuple):
    """Newlines in a range, and the bytes behind the last of them (an unfinished line)."""

    newlines: int
    unfinished: int


def unpacker(pack: Pack) -> tuple[Callable[[bytes], bytes], type[Exception]]:
    """Return a fresh decompressor of one stream, and the error it raises when it is fed something else."""
    if pack == "gzip":
        return zlib.decompressobj(31).decompress, zlib.error
    if pack == "zstd":
        import zstandard  # noqa: PLC0415 - paid for only when the node has zstd

        return zstandard.ZstdDecompressor().decompressobj().decompress, zstandard.ZstdError
    return bytes, ValueError


class FileError(RemoteError):
    """A path on the node that cannot be read; ``kind`` is missing, denied, directory, special or failed."""

    def __init__(self, kind: str, what: str, *, why: str | None = None, help: str | None = None) -> None:  # noqa: A002
        super().__init__(what, why=why, help=help)
        self.kind = kind


class Node:
    """A session with the functions above, and at most one open file.

    Raises:
        SshError: from every method, when the connection is lost.

    """

    def __init__(
        self,
        host: Host,
        ssh: tuple[str, ...],
        *,
        interactive: bool = False,
        connect_timeout: int = 15,
        cancelled: threading.Event | None = None,
    ) -> None:
        """Connect.

        Raises:
            RemoteError: the node lacks a tool that nothing can replace.

        """
        self.host = host
        self.session = Session(
            host, ssh, _SCRIPT, interactive=interactive, connect_timeout=connect_timeout, cancelled=cancelled
        )
        self.tools = frozenset(self.session.words)
        needed = {"range": "head and tail", "sha256sum": "sha256sum", "stat": "stat and /proc"}
        if missing := [text for tool, text in needed.items() if tool not in self.tools]:
            self.session.close()
            raise RemoteError(
                f"{host} lacks {' and '.join(missing)}",
                help="logscope needs POSIX sh, coreutils and grep on a Linux node; elsewhere pipe the log: "
                f"ssh {host.name} cat /path | logscope summarize -",
            )

    def expand(self, spec: Spec) -> list[bytes]:
        """Return the files a path or pattern names, sorted. A path without a pattern is returned as it is.

        A file whose very name is the pattern (``log[1].txt``) is among them.

        Raises:
            FileError: no file fits the pattern.

        """
        if not spec.is_pattern:
            return [spec.path]
        self.session.send_words("l_list", quote(spec.path), pattern_word(spec.path))
        found = _records(b"".join(self.session.receive()), 1)
        files = sorted({path for (kind,), path in found if kind == "file"})
        if not files:
            why = "it names folders or devices only" if any(kind != ["missing"] for kind, _ in found) else None
            raise FileError("missing", f"no file on {self.host} fits {shown(spec.path)}", why=why)
        return files

    def open(self, path: bytes) -> Stat:
        """Open a file as the session's one file.

        Raises:
            FileError: it cannot be opened.

        """
        why = shown(self.session.call("l_open", path).strip()) or None
        status, *rest = self.session.words
        if status == "ok":
            return _stat(rest)
        name = f"{self.host}:{shown(path)}"
        if status == "directory":
            raise FileError("directory", f"{name} is a folder", help="name its files: " + name.rstrip("/") + "/*.log")
        if status == "special":
            raise FileError("special", f"{name} is no regular file", why="it is a device, a socket or a pipe")
        if why and "permission denied" in why.lower():
            raise FileError(
                "denied",
                f"{name} may not be read",
                why=why,
                help="use an account that may read it, or have it made readable (chmod, setfacl); "
                "docs/howto/fetch.md has a part on permissions",
            )
        if why and "no such file" in why.lower():
            raise FileError("missing", f"there is no {name}", why=why, help="a pattern works too: host:'/logs/*.log'")
        raise FileError("failed", f"{name} cannot be read", why=why)

    def sums(self, *ranges: tuple[int, int]) -> list[str]:
        """Return the SHA-256 of each range (start, length) of the open file, in hex."""
        payload = self.session.call("l_sums", *(number for pair in ranges for number in pair)).decode(
            "ascii", "replace"
        )
        return [payload[at : at + 64] for at in range(0, len(payload), 64)]

    def ask(self, pack: Pack, start: int, length: int, head: int) -> None:
        """Ask for a range; :meth:`answer` reads it. Several may be asked for before the first is read."""
        self.session.send("l_get", pack, start, length, head)

    def answer(self, pack: Pack) -> Iterator[bytes]:
        """Yield the bytes of the range asked for first; then :meth:`after` tells how the file stood behind it.

        Raises:
            RemoteError: what came is not what this method of compression makes.

        """
        unpack, damaged = unpacker(pack)
        for piece in self.session.receive():
            try:
                data = unpack(piece)
            except damaged as error:
                raise RemoteError(f"what {self.host} sent cannot be unpacked ({pack})", why=str(error)) from error
            if data:
                yield data

    def after(self) -> tuple[Stat, str]:
        """Return how the open file stood after the last range: its stat, and the SHA-256 of its first bytes."""
        words = self.session.words
        return _stat(words[1:5]), words[5]

    def read(self, start: int, length: int) -> bytes:
        """Return a small range at once; shorter when the file ends before."""
        self.ask("none", start, length, 0)
        return b"".join(self.answer("none"))

    def grep(self, pack: Pack, start: int, length: int, head: int, anchors: Sequence[bytes]) -> Iterator[bytes]:
        """Yield grep's output for the lines of a range that hold an anchor, and 3 lines after each.

        Line numbers and offsets count from the start of the range. :meth:`after` tells how the file stood behind it.

        Raises:
            RemoteError: grep itself failed.

        """
        words = [word for anchor in anchors for word in (b"-e", anchor)]
        self.session.send("l_grep", pack, start, length, head, *words)
        yield from self.answer(pack)
        if self.session.words[-1] not in ("0", "1"):
            raise RemoteError(f"grep failed on {self.host}", why=f"exit status {self.session.words[-1]}")

    def count(self, start: int, length: int) -> Lines:
        """Count the lines of a range that begins at a line's first byte."""
        if length <= 0:
            return Lines(0, 0)
        self.session.call("l_count", start, length)
        newlines, ends = (int(word) for word in self.session.words[1:3])
        if ends:
            return Lines(newlines, 0)
        self.session.call("l_tail", start, length)
        return Lines(newlines, int(self.session.words[1]))

    def line_start(self, offset: int, size: int) -> int:
        """Return the first line start at or behind an offset; ``size`` when there is none before it."""
        if offset <= 0:
            return 0
        self.session.call("l_head", offset - 1, size - offset + 1)
        return min(size, offset - 1 + int(self.session.words[1]))

    def next(self, path: bytes, start: int, known: int, limit: int) -> tuple[bytes, Stat, Stat | None]:
        """Return what is new in the open file, its stat, and the stat of what the path names now (None: nothing).

        Args:
            path: the name to look at beside the open file.
            start: where to begin reading.
            known: when the open file is not larger than this, nothing is read.
            limit: read so many bytes at most.

        """
        data = self.session.call("l_next", path, start, known, limit)
        words = self.session.words[1:]
        return data, _stat(words[:4]), _stat(words[4:8]) if len(words) > 4 else None

    def beside(self, path: bytes) -> list[tuple[bytes, Stat]]:
        """Return the files that a rotation may have made of a path: ``NAME?*``, and ``STEM?*`` for ``STEM.EXT``."""
        folder, slash, name = path.rpartition(b"/")
        stem = name.rpartition(b".")[0] or name
        words = [quote(folder + slash + start) + b"?*" for start in dict.fromkeys((name, stem))]
        found: dict[bytes, Stat] = {}
        for _ in range(_MOST_LOOKS):
            before = {name: stat.inode for name, stat in found.items()}
            self.session.send_words("l_stats", *words)
            found = {name: _stat(fields) for fields, name in _records(b"".join(self.session.receive()), 4)}
            # While names are shifted a file may be missed: two looks have to agree.
            if before == {name: stat.inode for name, stat in found.items()}:
                break
        return [(name, stat) for name, stat in found.items() if name != path]

    def close(self) -> None:
        """End the session."""
        self.session.close()


def _records(payload: bytes, words: int) -> list[tuple[list[str], bytes]]:
    """Read records of some words, the length of a path, and the path."""
    out = []
    at = 0
    while at < len(payload):
        *fields, length, rest = payload[at:].split(b" ", words + 1)
        path = rest[: int(length)]
        at = len(payload) - len(rest) + len(path)
        out.append(([field.decode("ascii", "replace") for field in fields], path))
    return out


def _stat(words: Sequence[str]) -> Stat:
    try:
        device, inode, size, mtime = (int(word) for word in words)
    except ValueError:
        raise RemoteError("stat on the node said something unexpected", why=" ".join(words)) from None
    return Stat(device, inode, size, mtime)
