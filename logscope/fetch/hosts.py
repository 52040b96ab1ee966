"""Several hosts at once: what to bring from where to which local name.

This module is responsible for the destinations, for one thread per host, and for the result as a whole. It must not
know how a file is copied.
"""

from __future__ import annotations

import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logscope.errors import LogscopeError, UsageError
from logscope.fetch.copy import Copy, Fetched, WholeCopy
from logscope.fetch.filtered import FilteredCopy
from logscope.fetch.follow import Chunk
from logscope.fetch.link import Link, Options
from logscope.fetch.manifest import LOCK, MANIFEST, NEW, PART
from logscope.fetch.spec import Spec, local_name, shown
from logscope.fetch.ssh import SshError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from logscope.fetch.progress import Bar
    from logscope.fetch.spec import Host

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_BLOCK = 4 << 20


@dataclass(slots=True)
class Outcome:
    """What became of a whole fetch: the files in the order of the arguments, and what failed."""

    files: list[Fetched] = field(default_factory=list)
    failures: list[tuple[str, LogscopeError]] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """2 when anything failed, else 0."""
        return 2 if self.failures else 0

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values. Bytes of a name that are no UTF-8 stand as lone surrogates: dump it as ASCII."""
        errors = [
            {
                "source": source,
                "what": error.message.what,
                "why": error.message.why,
                "note": error.message.note,
                "help": error.message.help,
            }
            for source, error in self.failures
        ]
        return {"schema": 1, "kind": "fetch", "files": [file.as_dict() for file in self.files], "errors": errors}


def size_of(text: str) -> int:
    """Read ``200M``, ``1.5G``, ``4096``: bytes, with units of 1024.

    Raises:
        UsageError: it is none of these.

    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text, re.IGNORECASE)
    if found is None or float(found[1]) == 0:
        raise UsageError(f"{text!r} is no size", help="write 200M, 1.5G or a number of bytes")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def checked(options: Options) -> Options:
    """Return options whose parts go together.

    Raises:
        UsageError: they do not.

    """
    if options.verify and options.filtered:
        raise UsageError(
            "--verify compares whole files",
            help="leave it away with --debug-only, --last and --since, or fetch the whole file",
        )
    if options.since is not None and not re.fullmatch(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d)?)?", options.since):
        raise UsageError(
            f"{options.since!r} is no time that a log can be searched for",
            help="write it as the log prints it: 2026-02-10, '2026-02-10 12:00' or 2026-02-10T12:00:30",
        )
    if any(not anchor or b"\n" in anchor or b"\0" in anchor for anchor in options.anchors):
        raise UsageError("an anchor has to be a text within one line")
    return options


def fetch(
    specs: Sequence[Spec],
    dest: str | os.PathLike[str],
    options: Options | None = None,
    *,
    notice: Callable[[str], None] = lambda _: None,
    bar: Bar | None = None,
) -> Outcome:
    """Bring files from hosts, and what is new of files that were brought before.

    Args:
        specs: what to bring; patterns are expanded on the node.
        dest: a folder when it is one, ends with a slash or several files come; else the new name of the one file.
            Files of several hosts go to a folder per host.
        options: how to connect and what to bring.
        notice: told in words about anything unusual, from any thread.
        bar: told how far it has got.

    Raises:
        UsageError: options that do not go together. Failures of one source stand in the result instead, and do not
            keep the others from arriving.

    """
    options = checked(options or Options())
    hosts: dict[Host, list[Spec]] = {}
    for spec in dict.fromkeys(specs):
        hosts.setdefault(spec.host, []).append(spec)
    base = Path(dest)
    folder = len(specs) > 1 or specs[0].is_pattern or base.is_dir() or os.fspath(dest).endswith(os.sep)
    tell = threading.Lock()

    def say(text: str) -> None:
        with tell:
            notice(text)

    links = {host: Link(host, options, say) for host in hosts}
    # What each host's thread found, told apart by its spec, so that the order of the arguments can be kept.
    found: dict[Spec, list[Fetched]] = {}
    failed: dict[Spec, list[tuple[str, LogscopeError]]] = {}

    def bring(host: Host) -> None:
        here = base / _folder_name(host) if len(hosts) > 1 else base
        taken: dict[Path, bytes] = {}
        link = links[host]
        dead: SshError | None = None
        try:
            for spec in hosts[host]:
                found[spec], failed[spec] = [], []
                try:
                    if dead is not None:
                        raise dead
                    paths = _expand(link, spec)
                except LogscopeError as error:
                    dead = error if isinstance(error, SshError) else None
                    failed[spec].append((spec.text, error))
                    continue
                for path in paths:
                    if link.cancelled.is_set():
                        return
                    try:
                        file = here / local_name(spec, path) if folder else base
                        found[spec].append(_copy(link, path, file, taken, bar).run())
                    except LogscopeError as error:
                        dead = error if isinstance(error, SshError) and error.kind != "no_tool" else None
                        source = spec.text if path == spec.path else f"{host}:{shown(path)}"
                        failed[spec].append((source, error))
                        if dead is not None:
                            break
        finally:
            link.drop()

    with ThreadPoolExecutor(max_workers=max(1, options.jobs), thread_name_prefix="fetch") as pool:
        try:
            for done in [pool.submit(bring, host) for host in hosts]:
                done.result()
        except BaseException:
            for link in links.values():
                link.cancel()
            pool.shutdown(cancel_futures=True)
            raise
    outcome = Outcome()
    for spec, files in found.items():
        outcome.files += files
        outcome.failures += failed[spec]
    return outcome


def cached(
    spec: Spec,
    options: Options | None = None,
    *,
    notice: Callable[[str], None] = lambda _: None,
    bar: Bar | None = None,
) -> list[Fetched]:
    """Bring the files of one remote argument to the cache folder, or what is new of them; read them there.

    The cache is ``$XDG_CACHE_HOME/logscope/remote`` (``~/.cache/...``), readable for the user alone. Removing it costs
    nothing but time.

    Raises:
        LogscopeError: a file cannot be brought.

    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "logscope" / "remote"
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise LogscopeError(
            f"cannot write the cache {root}",
            why=error.strerror,
            help="name another folder with XDG_CACHE_HOME, or bring the log with: logscope fetch",
        ) from error
    folder = root / _folder_name(spec.host) / sha256(spec.path.rpartition(b"/")[0]).hexdigest()[:16]
    outcome = fetch([spec], f"{folder}/", options or Options(digest=False), notice=notice, bar=bar)
    for _, failure in outcome.failures:
        raise failure
    return outcome.files


def remote_blocks(
    spec: Spec, options: Options | None = None, *, notice: Callable[[str], None] = lambda _: None
) -> Iterator[Chunk]:
    """Yield a remote file once, in blocks of 4 MiB, through the cache; several files of a pattern one after the other.

    Raises:
        LogscopeError: a file cannot be brought.

    """
    for file in cached(spec, options, notice=notice):
        with Path(file.file).open("rb") as data:
            offset = 0
            while block := data.read(_BLOCK):
                yield Chunk(block, offset, file.generation)
                offset += len(block)


def _expand(link: Link, spec: Spec) -> list[bytes]:
    while True:
        try:
            return link.node.expand(spec)
        except SshError as failure:
            link.recover(failure)


def _copy(link: Link, path: bytes, file: Path, taken: dict[Path, bytes], bar: Bar | None) -> Copy:
    """Return the copy that fits the options, under the name that fits it.

    Raises:
        UsageError: the local name is taken, or is one that the bookkeeping uses.

    """
    options = link.options
    anchors = options.anchors
    if anchors and "grep" not in link.node.tools:
        link.notice(f"{link.host}: its grep has no -a or -b (BusyBox), which --debug-only needs: every line is brought")
        anchors = ()
    chosen = {"debug-only": bool(anchors), "last": options.last is not None, "since": options.since is not None}
    kinds = [name for name, wanted in chosen.items() if wanted]
    if kinds:
        # Before the suffix, so that a pattern such as *.log finds it, and beside a whole copy.
        file = file.with_name(".".join([file.stem, *kinds]) + file.suffix)
    if file.name.endswith((MANIFEST, PART, LOCK, NEW)) or ".generation-" in file.name:
        raise UsageError(
            f"{file.name} is a name that logscope keeps for itself", help="fetch this file alone, under another name"
        )
    if taken.setdefault(file, path) != path:
        raise UsageError(
            f"two files would become {file}",
            why=f"{shown(taken[file])} and {shown(path)}",
            help="fetch them into different folders",
        )

    def advance(done: int, total: int) -> None:
        if bar is not None:
            bar.advance(file, done, total)

    if kinds:
        return FilteredCopy(link, path, file, advance, anchors)
    return WholeCopy(link, path, file, advance)


def _folder_name(host: Host) -> str:
    return re.sub(r"[^A-Za-z0-9._@-]", "_", str(host))
