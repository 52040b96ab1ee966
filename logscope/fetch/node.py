"""A host that stays reachable: what logscope asks of it, and when it is called again.

This module is responsible for the sh functions that run on the node, for their typed counterparts, and for when to try
again and when to give up. It must not know what is kept locally. On the node it needs sh, ``/proc``, and from
coreutils and grep only: stat, head, tail, wc, cat, sha256sum, grep; zstd and gzip are used when they are there. Nothing
is written or left there: the sh ends when its input ends.

A file is opened once, as descriptor 3 of that sh, and everything is asked of the descriptor: whatever happens to the
name meanwhile (rotation, replacement, deletion), no two files can be mixed within one session.
"""

from __future__ import annotations

import math
import threading
import zlib
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from logscope.errors import RemoteError
from logscope.fetch.spec import Word, pattern_word, quote, shown
from logscope.fetch.ssh import Session, SshError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from logscope.fetch.spec import Host, Options, Spec

Pack = Literal["zstd", "gzip", "none"]
T = TypeVar("T")
_LONGEST_WAIT = 15.0
_FIRST_TRIES = 2
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
l_stat() { stat -L -c '%d %i %s %Y' -- /proc/self/fd/0 "$@" <&3; }
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
  set -- "$1" "$2" "$3" "$4" $(l_stat "$1")
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
l_count() {
  rest=0
  [ $(l_range $(($1 + $2 - 1)) 1 | wc -l) = 1 ] || rest=$(l_range "$1" "$2" | tail -n 1 | wc -c)
  l_end ok $(l_range "$1" "$2" | wc -l) $rest
}
l_head() { l_end ok $(l_range "$1" "$2" | head -n 1 | wc -c); }
l_list() {
  for f do
    kind=missing s='0 0 0 0'
    if [ -f "$f" ]; then kind=file s=$(stat -L -c '%d %i %s %Y' -- "$f") || kind=missing s='0 0 0 0'
    elif [ -d "$f" ]; then kind=directory
    elif [ -e "$f" ]; then kind=special
    fi
    printf '%s %s %s %s' "$kind" "$s" "${#f}" "$f"
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
_NEEDED = {"range": "head and tail", "sha256sum": "sha256sum", "stat": "stat and /proc"}


class Stat(NamedTuple):
    """What stat says of a file: device, inode, size in bytes, time of the last change in epoch seconds."""

    device: int
    inode: int
    size: int
    mtime: int


class FileError(RemoteError):
    """A path on the node that cannot be read; ``kind`` is missing, denied, directory, special, several or failed."""

    def __init__(self, kind: str, what: str, *, why: str | None = None, help: str | None = None) -> None:  # noqa: A002
        super().__init__(what, why=why, help=help)
        self.kind = kind


class Node:
    """One host, connected when something is asked of it, and at most one open file there. Not for several threads.

    ``notice`` is told, in words for the user, when something unusual goes on. Which file is open is forgotten with the
    connection: who asked opens it again.

    Raises:
        SshError: from whatever asks the node, when it cannot be reached or the connection is lost; a new connection
            may be made after :meth:`recover`.

    """

    def __init__(self, host: Host, options: Options, notice: Callable[[str], None]) -> None:
        self.host = host
        self.options = options
        self.notice = notice
        self.cancelled = threading.Event()
        self._session: Session | None = None
        self._received = 0
        self._failures = 0
        self._stood = False
        self._said = ""

    @property
    def session(self) -> Session:
        """The connection, made when there is none.

        Raises:
            RemoteError: the node lacks a tool that nothing can replace.

        """
        if self._session is None:
            made = Session(self.host, self.options, _SCRIPT, self.cancelled)
            if missing := [text for tool, text in _NEEDED.items() if tool not in made.greeting]:
                made.close()
                raise RemoteError(
                    f"{self.host} lacks {' and '.join(missing)}",
                    help="logscope needs POSIX sh, coreutils and grep on a Linux node; elsewhere pipe the log: "
                    f"ssh {self.host.name} cat /path | logscope summarize -",
                )
            self._session = made
            if self._failures:
                self.notice(f"connected to {self.host} again")
            self._stood = True
        return self._session

    @property
    def received(self) -> int:
        """Bytes that came from the host so far, over all connections."""
        return self._received + (self._session.received if self._session else 0)

    def drop(self) -> None:
        """End the connection; the next use makes a new one."""
        if self._session is not None:
            self._received += self._session.received
            self._session.close()
            self._session = None

    def cancel(self) -> None:
        """End everything from another thread."""
        self.cancelled.set()
        if self._session is not None:
            self._session.kill()

    def persist(self, attempt: Callable[[], T]) -> T:
        """Do something over new connections until it is done.

        Raises:
            SshError: the last failure, when trying again cannot help or was tried often enough.

        """
        while True:
            try:
                return attempt()
            except SshError as failure:
                self.recover(failure)

    def recover(self, failure: SshError, *, endless: bool = False) -> None:
        """Wait before the next try, or give up.

        Raises:
            SshError: the failure itself, when trying again cannot help or was tried often enough.

        """
        self.drop()
        self._failures += 1
        # A host that never answered is not asked often: it may be shutting out who knocks too much.
        tries: float = min(self.options.tries, math.inf if self._stood else _FIRST_TRIES)
        tries = math.inf if endless and self._stood else tries
        may_pass = failure.later if self._stood else failure.passing
        if self.cancelled.is_set() or not may_pass or self._failures > tries:
            raise failure
        delay = min(_LONGEST_WAIT, self.options.delay * 2.0 ** min(self._failures - 1, 10))
        why = (failure.message.why or "").splitlines()
        what = f"{failure.message.what}{f' ({why[-1]})' if why else ''}"
        if tries < math.inf:
            self.notice(f"{what}: trying again in {delay:.1f} s")
        elif self._failures == 1 or failure.message.what != self._said:
            # Who is called until he answers is spoken of once, not at every try.
            self.notice(f"{what}: trying again until it answers")
        self._said = failure.message.what
        self.cancelled.wait(delay)

    def pack(self, path: bytes) -> Pack:
        """Return the method to compress with on the wire.

        Raises:
            RemoteError: the node lacks the one asked for.

        """
        wanted, tools = self.options.compress, self.session.greeting
        if wanted == "auto":
            packed = path.endswith((b".gz", b".zst", b".xz", b".bz2"))
            return "none" if packed else "zstd" if "zstd" in tools else "gzip" if "gzip" in tools else "none"
        if wanted != "none" and wanted not in tools:
            raise RemoteError(
                f"{self.host} has no {wanted}",
                why=f"--compress {wanted} was asked for, and {wanted} is not in the PATH of a command over ssh there",
                help="leave --compress away (auto takes what the node has), or give --compress "
                + ("gzip" if "gzip" in tools else "none"),
            )
        return wanted

    def expand(self, spec: Spec) -> list[bytes]:
        """Return the files a path or pattern names, sorted. A path without a pattern is returned as it is.

        A file whose very name is the pattern (``log[1].txt``) is among them.

        Raises:
            FileError: no file fits the pattern.

        """
        if not spec.is_pattern:
            return [spec.path]
        found = self._list(quote(spec.path), pattern_word(spec.path))
        files = sorted({path for kind, _, path in found if kind == "file"})
        if not files:
            why = "it names folders or devices only" if any(kind != "missing" for kind, _, _ in found) else None
            raise FileError("missing", f"no file on {self.host} fits {shown(spec.path)}", why=why)
        return files

    def beside(self, path: bytes) -> list[tuple[bytes, Stat]]:
        """Return the files that a rotation may have made of a path: ``NAME?*``, and ``STEM?*`` for ``STEM.EXT``."""
        folder, slash, name = path.rpartition(b"/")
        stem = name.rpartition(b".")[0] or name
        words = [Word(quote(folder + slash + start) + b"?*") for start in dict.fromkeys((name, stem))]
        found: dict[bytes, Stat] = {}
        for _ in range(_MOST_LOOKS):
            before = {name: stat.inode for name, stat in found.items()}
            found = {name: stat for kind, stat, name in self._list(*words) if kind == "file" and name != path}
            # While names are shifted a file may be missed: two looks have to agree.
            if before == {name: stat.inode for name, stat in found.items()}:
                break
        return list(found.items())

    def _list(self, *words: Word) -> list[tuple[str, Stat, bytes]]:
        """Return what stands under names: its kind, its stat where it is a file, its name."""
        rest = self.session.call("l_list", *words)
        out = []
        while rest:
            kind, *stat, length, rest = rest.split(b" ", 6)
            out.append((kind.decode(), _stat(stat), rest[: int(length)]))
            rest = rest[int(length) :]
        return out

    def open(self, path: bytes) -> Stat:
        """Open a file as the session's one file.

        Raises:
            FileError: it cannot be opened.

        """
        why = shown(self.session.call("l_open", path).strip()) or None
        status, *stat = self.session.words
        if status == "ok":
            return _stat(stat)
        name = f"{self.host}:{shown(path)}"
        what, todo = f"{name} cannot be read", None
        if status == "directory":
            what, todo = f"{name} is a folder", "name its files: " + name.rstrip("/") + "/*.log"
        elif status == "special":
            what, why = f"{name} is no regular file", "it is a device, a socket or a pipe"
        elif "permission denied" in (why or "").lower():
            status, what = "denied", f"{name} may not be read"
            todo = "use an account that may read it, or have it made readable (chmod, setfacl); "
            todo += "docs/howto/fetch.md has a part on permissions"
        elif "no such file" in (why or "").lower():
            status, what, todo = "missing", f"there is no {name}", "a pattern works too: host:'/logs/*.log'"
        raise FileError(status, what, why=why, help=todo)

    def sums(self, *ranges: tuple[int, int]) -> list[str]:
        """Return the SHA-256 of each range (start, length) of the open file, in hex."""
        payload = self.session.call("l_sums", *(number for pair in ranges for number in pair)).decode()
        return [payload[at : at + 64] for at in range(0, len(payload), 64)]

    def ask(self, pack: Pack, start: int, length: int, head: int) -> None:
        """Ask for a range; :meth:`answer` reads it. Several may be asked for before the first is read."""
        self.session.send("l_get", pack, start, length, head)

    def answer(self, pack: Pack) -> Iterator[bytes]:
        """Yield the bytes of the range asked for first; then :meth:`after` tells how the file stood behind it.

        Raises:
            RemoteError: what came is not what this method of compression makes.

        """
        unpack: Callable[[bytes], bytes] = bytes
        damaged: type[Exception] = zlib.error
        if pack == "gzip":
            unpack = zlib.decompressobj(31).decompress
        elif pack == "zstd":
            import zstandard  # noqa: PLC0415 - paid for only when the node has zstd

            unpack, damaged = zstandard.ZstdDecompressor().decompressobj().decompress, zstandard.ZstdError
        for piece in self.session.receive():
            try:
                data = unpack(piece)
            except damaged as error:
                raise RemoteError(f"what {self.host} sent cannot be unpacked ({pack})", why=str(error)) from error
            if data:
                self._failures = 0
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
        self.session.send("l_grep", pack, start, length, head, *(word for text in anchors for word in (b"-e", text)))
        yield from self.answer(pack)
        if (status := self.session.words[-1]) not in ("0", "1"):
            raise RemoteError(f"grep failed on {self.host}", why=f"exit status {status}")

    def count(self, start: int, length: int) -> tuple[int, int]:
        """Count a range that begins at a line's first byte: its newlines, and the bytes behind the last of them."""
        if length <= 0:
            return 0, 0
        self.session.call("l_count", start, length)
        newlines, unfinished = self.session.words[1:]
        return int(newlines), int(unfinished)

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
        self._failures = 0
        words = self.session.words[1:]
        return data, _stat(words[:4]), _stat(words[4:8]) if len(words) > 4 else None


def _stat(words: Sequence[str | bytes]) -> Stat:
    try:
        device, inode, size, mtime = (int(word) for word in words)
    except ValueError:
        raise RemoteError("stat on the node said something unexpected", why=" ".join(map(str, words))) from None
    return Stat(device, inode, size, mtime)
