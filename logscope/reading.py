"""From sources to batches of tables, finished or growing: the one way that bytes become something to ask.

This module is responsible for joining sources, scan and finder, for reading a little ahead of who asks, and for what is
known of the files (:class:`Reading`). It must not know what is asked, nor how a file is followed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from logscope.errors import InputError, LogscopeError, NothingRecognised, RemoteError, UsageError
from logscope.grammar.forms import Forms
from logscope.model import Accounting, Place
from logscope.passes.finder import Finder
from logscope.report import Context, is_hardly_known
from logscope.scan.labels import Labels
from logscope.scan.scanner import Scanner
from logscope.sources.inputs import expand, is_remote
from logscope.sources.tail import follow
from logscope.sources.unwrap import unwrap
from logscope.tables.tables import Tables

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator

    from logscope.grammar import Grammar
    from logscope.model import Payload
    from logscope.scan.chunk import Chunk
    from logscope.sources.blocks import Block
    from logscope.sources.streams import Source

_MANIFEST = ".logscope.json"
# Texts that look like records and are none that are kept, to be shown when nothing else is found.
MISSES = 3
# Bytes of a block: polars pays for every call, a small file is one block anyway.
BLOCK = 16 << 20
# From this size on a file is scanned in a thread of its own.
_AHEAD = 32 << 20
# Seconds without a debug record, in a log that is followed, after which nobody waits for the rest of a pass.
QUIET = 1.0
_ROWS = 20_000  # that a batch holds, at least, when it is asked
_FORMS = 3  # of lines that no grammar reads, that are shown
_LISTED = 5  # lines that a warning names
_KEPT = 5  # notices that a report repeats: of a connection lost every hour, more would hide the report


@dataclass(slots=True)
class Reading:
    """What is known of the files while and after they are read: counts, warnings, origins, near misses."""

    files: list[str] = field(default_factory=list)
    accounting: Accounting = field(default_factory=Accounting)
    warnings: list[str] = field(default_factory=list)
    origins: dict[str, dict[str, Any]] = field(default_factory=dict)
    forms: Forms | None = None
    misses: list[tuple[Place, str | None]] = field(default_factory=list)
    keys: count[int] = field(default_factory=lambda: count(1))

    def begin(self, source: Source) -> None:
        """Note that a source is being read, and where it came from when `logscope fetch` brought it."""
        self.files.append(source.name)
        path = source.path
        # Only a copy that was fetched has a manifest beside it; nobody else pays for the import.
        if path is not None and os.path.isfile(f"{os.fspath(path)}{_MANIFEST}"):  # noqa: PTH113 - a name, not a Path
            from logscope.fetch import origin  # noqa: PLC0415

            known = origin(path)
            if known is not None:
                self.origins[source.name] = known

    def note(self, accounting: Accounting, tables: Tables | None) -> Iterator[Tables]:
        """Count what was read, keep where and why the first texts only look like records; hand on a batch."""
        self.accounting.add(accounting)
        if tables is not None:
            server = tables.server
            for row in (server["kind"] == "unparsed").arg_true().head(MISSES - len(self.misses)).to_list():
                place = Place(tables.files[server["file"][row]], server["line"][row])
                self.misses.append((place, tables.payload(row).reason))
            yield tables

    def context(self) -> Context:
        """Return what questions may ask for."""
        found = self.forms.commonest(_FORMS) if self.forms is not None else []
        unread = [(one.text, one.share, Place(one.file, one.line)) for one in found]
        return Context(list(self.files), self.accounting, list(self.warnings), dict(self.origins), unread)


def sources_of(
    inputs: Iterable[Any], *, quiet: bool = False, failed: list[LogscopeError] | None = None
) -> list[Source]:
    """Return the sources the inputs name; remote ones are fetched first, through the user's ssh.

    On a terminal it is shown how far a fetch has got, unless ``quiet``. With ``failed``, an input that cannot be had is
    put there while another one can.

    Raises
    ------
    InputError, NothingRecognised, RemoteError
        an input that is missing, unreadable, empty of logs, or not to be had.

    """
    local: list[Any] = []
    remote: list[Source] = []
    wrong: list[LogscopeError] = []
    for item in inputs:
        try:
            if isinstance(item, str) and is_remote(item):
                from logscope.sources.remote import remote_sources  # noqa: PLC0415 - only remote logs pay for it

                remote += remote_sources(item, quiet=quiet)
            else:
                if failed is not None:
                    with contextlib.suppress(NothingRecognised):  # a folder without logs is told by all together
                        expand(item)
                local.append(item)
        except (InputError, RemoteError) as error:
            if failed is None:
                raise
            wrong.append(error)
    if wrong and not local and not remote:
        raise wrong[0]
    if failed is not None:
        failed += wrong
    return [*(expand(local) if local or not remote else []), *remote]


def batches(
    sources: Iterable[Source],
    grammar: Grammar,
    reading: Reading,
    *,
    on_block: Callable[[int, str], None] | None = None,
) -> Iterator[Tables]:
    """Read the sources one after the other; yield a batch of tables whenever something is known.

    ``on_block`` is told how many further bytes were read, of which file.

    Raises
    ------
    InputError
        when a source cannot be read.

    """
    scanner: Scanner | None = None
    for source in sources:
        reading.begin(source)
        scanner = Scanner(grammar, scanner)
        finder = Finder(source.name, reader(grammar), keys=reading.keys)
        invalid: list[int] = []
        wrong = size = 0
        for chunk in _chunks(source, scanner, reading):
            size += chunk.size
            wrong += chunk.accounting.invalid_utf8_bytes
            invalid += chunk.invalid_lines
            yield from reading.note(chunk.accounting, finder.add(chunk))
            if on_block is not None:
                on_block(chunk.size, source.name)
        yield from reading.note(Accounting(), finder.end())
        reading.warnings.extend(source.warnings)
        if not size:
            reading.warnings.append(f"{source.name}: is empty")
        if wrong:
            lines = ", ".join(map(str, invalid[:_LISTED])) + (", ..." if len(invalid) > _LISTED else "")
            reading.warnings.append(f"{source.name}: {wrong} bytes are not UTF-8 (lines {lines}); kept as they are")


def gathered(found: Iterable[Tables]) -> Iterator[Tables]:
    """Yield batches with small ones joined: of many short logs each costs a question some hundred calls of polars."""
    held: list[Tables] = []
    for tables in found:
        held.append(tables)
        if sum(one.prints.height + one.server.height for one in held) >= _ROWS:
            yield Tables.concat(held)
            held = []
    if held:
        yield Tables.concat(held)


def reader(grammar: Grammar) -> Callable[[bytes], Payload]:
    """Return what reads the text of a server line."""

    def read(text: bytes) -> Payload:
        latin = text.decode("latin-1")
        found = grammar.find(latin)
        reading = grammar.read(latin, 0, found[1], len(latin)) if found is not None else None
        if reading is None:
            raise ValueError("a text that was read once is read again")
        return reading.payload

    return read


def _chunks(source: Source, scanner: Scanner, reading: Reading) -> Iterator[Chunk]:
    """Yield what each block of a source says; of a large one from a thread that reads ahead."""

    def scanned(block: Block) -> Chunk:
        chunk = scanner.feed(block)
        if is_hardly_known(chunk.accounting):
            reading.forms = reading.forms or Forms(scanner.grammar)
            reading.forms.take(source.name, block.data, block.line)
        return chunk

    blocks = unwrap(source.blocks(size=BLOCK), source.warn, lambda: Labels(scanner.grammar))
    chunks = (scanned(block) for block in blocks if block is not None)
    # A pipe is read where Ctrl-C is heard: a thread that waits for its next byte could not be ended.
    if source.size is None or source.size < _AHEAD:
        yield from chunks
        return
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - only a large file pays for it

    with ThreadPoolExecutor(1, "scan") as thread:
        ahead = thread.submit(next, chunks, None)
        while (chunk := ahead.result()) is not None:
            ahead = thread.submit(next, chunks, None)
            yield chunk


def followed_batches(
    what: Any,
    grammar: Grammar,
    reading: Reading,
    *,
    stop: threading.Event | None = None,
    idle: float | None = None,
    quiet: float = QUIET,
    warn: Callable[[str], None] = lambda _: None,
) -> Iterator[Tables | None]:
    """Yield what each new part of a growing log tells, as batches of tables; None when nothing is new.

    What waits for the rest of its pass is yielded early (``Tables.early``) when no debug record came for ``quiet``
    seconds.
    ``warn`` is told at once what became of the log or of the connection; the last of it stands in the reading, too.

    Raises
    ------
    UsageError
        what was named is not one log.
    InputError, RemoteError
        it cannot be read.

    """
    if isinstance(what, (list, tuple)):
        if len(what) != 1:
            advice = "follow each log in a terminal of its own"
            raise UsageError(f"--follow takes one log, not {len(what)}", help=advice)
        what = what[0]
    warn = _noting(reading, warn)
    if isinstance(what, str) and is_remote(what):
        from logscope.sources.remote import follow_blocks  # noqa: PLC0415 - only who names a remote log pays for it

        blocks = follow_blocks(what, stop=stop, idle=idle, warn=warn)
    else:
        blocks = follow(what, stop=stop, idle=idle, warn=warn)
    finder: Finder | None = None
    last: Finder | None = None
    scanner = Scanner(grammar)
    news, printed, spent = False, 0.0, 0.0  # whether anything came since the last look at what waits; when
    for block in unwrap(blocks, warn, lambda: Labels(grammar)):
        now = time.monotonic()
        # A busy log is not looked at all the time.
        if finder is not None and news and now >= max(printed + quiet, spent):
            yield finder.early()
            news, spent = False, now + 5 * (time.monotonic() - now)
        if block is None:
            yield None
            continue
        if finder is None:
            # A rotated or truncated file is the same life of the server in another file.
            finder, scanner = Finder(block.file, reader(grammar), keys=reading.keys, goes_on=last), Scanner(grammar)
            if block.file not in reading.files:
                reading.files.append(block.file)
        chunk = scanner.feed(block)
        yield from reading.note(chunk.accounting, finder.add(chunk))
        news, printed = True, time.monotonic() if len(chunk.prints["line"]) else printed
        if block.final:
            yield from reading.note(Accounting(), finder.end())
            finder, last, news = None, finder, False


def _noting(reading: Reading, warn: Callable[[str], None]) -> Callable[[str], None]:
    """Return what tells every notice at once, and keeps the last few among the warnings of the reading."""
    kept: deque[str] = deque()

    def note(text: str) -> None:
        if len(kept) == _KEPT:
            reading.warnings.remove(kept.popleft())
        kept.append(text)
        reading.warnings.append(text)
        warn(text)

    return note
