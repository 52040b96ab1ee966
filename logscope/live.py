"""A growing log as items or events, as they are written: parsing and labelling joined to following.

This module is responsible for carrying parser and labeller through the generations of a followed log (a rotated or
truncated file begins a new one). It must not know how a file is followed, nor how a live answer is drawn.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from logscope.errors import UsageError
from logscope.labelled import FileOrder, Labelled
from logscope.model import Accounting
from logscope.parse import Parser
from logscope.passes import Labeller
from logscope.sources.inputs import is_remote
from logscope.sources.tail import follow

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from logscope.grammar import Grammar
    from logscope.report import Item
    from logscope.run import Reading
    from logscope.sources.blocks import Block


_KEPT = 5  # notices that a report repeats: of a connection lost every hour, more would hide the report


class _Generation:
    """Parser and labeller of what one file holds under the name that is followed."""

    def __init__(self, file: str, grammar: Grammar, *, keep_copies: bool, before: _Generation | None) -> None:
        self.parser = Parser(grammar, file)
        goes_on = before.labeller.hand_on() if before is not None else None
        self.labeller: Labeller = Labeller(file, keep_copies=keep_copies, goes_on=goes_on)
        self.counted = Accounting()

    def take(self, block: Block) -> list[Item]:
        items = self.labeller.feed(self.parser.feed(block))
        if block.final:
            items += self.labeller.close()
        return items

    def account(self, reading: Reading) -> None:
        """Add to the reading what the counts have grown by."""
        for name in Accounting.__slots__:
            now = getattr(self.parser.accounting, name)
            setattr(reading.accounting, name, getattr(reading.accounting, name) + now - getattr(self.counted, name))
            setattr(self.counted, name, now)


def followed_blocks(
    what: Any, *, stop: threading.Event | None = None, idle: float | None = None, warn: Callable[[str], None]
) -> Iterator[Block | None]:
    """Yield the blocks of a growing local or remote log; None when nothing is new."""
    if isinstance(what, str) and is_remote(what):
        from logscope.sources.remote import follow_blocks  # noqa: PLC0415 - only who names a remote log pays for it

        return follow_blocks(what, stop=stop, idle=idle, warn=warn)
    return follow(what, stop=stop, idle=idle, warn=warn)


def follow_items(what: Any, grammar: Grammar, reading: Reading, **options: Any) -> Iterator[tuple[str, Item] | None]:
    """Yield every item of a growing log with its file's name, and None whenever nothing is new.

    Options and errors are those of :func:`follow_steps`.
    """
    for step in follow_steps(what, grammar, reading, **options):
        if step is None:
            yield None
            continue
        file, items, _ = step
        for item in items:
            yield file, item


def follow_events(what: Any, grammar: Grammar, reading: Reading, **options: Any) -> Iterator[Labelled | None]:
    """Yield every event of a growing log, in file order, as soon as its labels are known; None when nothing is new.

    Options and errors are those of :func:`follow_steps`.
    """
    order = FileOrder()
    for step in follow_steps(what, grammar, reading, keep_copies=True, **options):
        yield from (None,) if step is None else order.take(*step)


def follow_steps(
    what: Any,
    grammar: Grammar,
    reading: Reading,
    *,
    keep_copies: bool = False,
    stop: threading.Event | None = None,
    idle: float | None = None,
    warn: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[str, list[Item], int | None] | None]:
    """Yield what each new part of a growing log completes, as :func:`logscope.run.steps_of`; None when nothing is new.

    ``warn`` is told at once what became of the log or of the connection; the last of it stands in the reading, too.

    Raises
    ------
    UsageError
        what was named is not one log.
    InputError, RemoteError
        it cannot be read.

    """
    generation: _Generation | None = None
    last: _Generation | None = None
    for block in followed_blocks(_one(what), stop=stop, idle=idle, warn=_noting(reading, warn)):
        if block is None:
            yield None
            continue
        if generation is None:
            generation = _Generation(block.file, grammar, keep_copies=keep_copies, before=last)
            if block.file not in reading.files:
                reading.files.append(block.file)
        items = generation.take(block)
        reading.note_misses(items)
        yield block.file, items, None if block.final else generation.labeller.watermark
        generation.account(reading)
        if block.final:
            generation, last = None, generation


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


def _one(what: Any) -> Any:
    """Return the one log that was named."""
    if isinstance(what, (list, tuple)):
        if len(what) != 1:
            raise UsageError(
                f"--follow takes one log, not {len(what)}", help="follow each log in a terminal of its own"
            )
        return what[0]
    return what
