"""Several hosts at once: what to bring from where to which local name.

This module is responsible for the destinations, for one thread per host, and for the result as a whole. It must not
know how a file is copied.
"""

from __future__ import annotations

import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from logscope.errors import LogscopeError, UsageError
from logscope.fetch.copy import Copy, Fetched, WholeCopy
from logscope.fetch.filtered import FilteredCopy
from logscope.fetch.manifest import LOCK, MANIFEST, NEW, PART, beside
from logscope.fetch.node import Node
from logscope.fetch.progress import drawn
from logscope.fetch.spec import Options, Spec, local_name, shown
from logscope.fetch.ssh import SshError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from logscope.fetch.progress import Advance
    from logscope.fetch.spec import Host

# Seconds after which Ctrl-C is heard.
_HEARD = 0.1


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
        slots = ("what", "why", "note", "help")
        errors = [
            {"source": source, **{slot: getattr(error.message, slot) for slot in slots}}
            for source, error in self.failures
        ]
        return {"schema": 1, "kind": "fetch", "files": [file.as_dict() for file in self.files], "errors": errors}


def fetch(
    specs: Sequence[Spec],
    dest: str | os.PathLike[str],
    options: Options | None = None,
    *,
    notice: Callable[[str], None] = lambda _: None,
    terminal: TextIO | None = None,
) -> Outcome:
    """Bring files from hosts, and what is new of files that were brought before.

    Args:
        specs: what to bring; patterns are expanded on the node.
        dest: a folder when it is one, ends with a slash or several files come; else the new name of the one file.
            Files of several hosts go to a folder per host.
        options: how to connect and what to bring.
        notice: told in words about anything unusual, from any thread.
        terminal: where to draw how far it has got, if it is a terminal.

    Raises:
        KeyboardInterrupt: after Ctrl-C, once every ssh has ended; its text says what is kept. Failures of one source
            stand in the result instead, and do not keep the others from arriving.

    """
    options = options or Options()
    base = Path(dest)
    folder = len(specs) > 1 or specs[0].is_pattern or base.is_dir() or os.fspath(dest).endswith(os.sep)
    lock = threading.Lock()

    def say(text: str) -> None:
        with lock:
            notice(text)

    nodes = {spec.host: Node(spec.host, options, say) for spec in specs}
    # In the order of the arguments, whichever host answers first.
    results: dict[Spec, list[Fetched | tuple[str, LogscopeError]]] = {spec: [] for spec in specs}
    taken: dict[Path, bytes] = {}

    def bring(node: Node, advance: Advance) -> None:
        here = base / _folder_name(node.host) if len(nodes) > 1 else base
        dead: SshError | None = None
        for spec, found in results.items():
            if spec.host != node.host:
                continue
            source = spec.text
            try:
                if dead is not None:
                    raise dead
                for path in node.persist(partial(node.expand, spec)):
                    source = spec.text if path == spec.path else f"{node.host}:{shown(path)}"
                    file = here / local_name(spec, path) if folder else base
                    try:
                        found.append(_copy(node, path, file, taken, advance).run())
                    except SshError:
                        raise
                    except LogscopeError as error:  # of this file alone
                        found.append((source, error))
            except LogscopeError as error:
                dead = error if isinstance(error, SshError) else None
                found.append((source, error))
        node.drop()

    with drawn(terminal) as advance, ThreadPoolExecutor(max(1, options.jobs), thread_name_prefix="fetch") as pool:
        try:
            under_way = {pool.submit(bring, node, advance) for node in nodes.values()}
            while under_way:
                # polars lets an interrupted wait go on, so Ctrl-C would not be heard in one without an end.
                done, under_way = wait(under_way, _HEARD)
                for one in done:
                    one.result()
        except BaseException as error:
            for node in nodes.values():
                node.cancel()
            pool.shutdown(cancel_futures=True)
            if isinstance(error, KeyboardInterrupt) and (kept := _kept(taken)):
                raise KeyboardInterrupt(f"{kept} kept; call again: it goes on where it stopped") from None
            raise
    outcome = Outcome()
    for result in (result for found in results.values() for result in found):
        if isinstance(result, Fetched):
            outcome.files.append(result)
        else:
            outcome.failures.append(result)
    return outcome


def _kept(files: Iterable[Path]) -> str:
    """Return how much there is of copies, or nothing where there is nothing."""
    from rich.filesize import decimal  # noqa: PLC0415 - after Ctrl-C only

    there = [path for file in files for path in (file, beside(file, PART)) if path.exists()]
    size = sum(path.stat().st_size for path in there)
    return decimal(size) if size else ""


def cached(
    spec: Spec,
    options: Options | None = None,
    *,
    notice: Callable[[str], None] = lambda _: None,
    terminal: TextIO | None = None,
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
    outcome = fetch([spec], f"{folder}/", options or Options(digest=False), notice=notice, terminal=terminal)
    for _, failure in outcome.failures:
        raise failure
    return outcome.files


def _copy(node: Node, path: bytes, file: Path, taken: dict[Path, bytes], advance: Advance) -> Copy:
    """Return the copy that fits the options, under the name that fits it.

    Raises:
        UsageError: the local name is taken, or is one that the bookkeeping uses.

    """
    if node.options.anchors and "grep" not in node.persist(lambda: node.session.greeting):
        node.notice(f"{node.host}: its grep has no -a or -b (BusyBox), which --debug-only needs: every line is brought")
        node.options = replace(node.options, anchors=())
    options = node.options
    chosen = {"debug-only": options.anchors, "last": options.last is not None, "since": options.since is not None}
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
    return (FilteredCopy if kinds else WholeCopy)(node, path, file, partial(advance, file))


def _folder_name(host: Host) -> str:
    return re.sub(r"[^A-Za-z0-9._@-]", "_", str(host))
