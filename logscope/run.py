"""A run: one or more logs read into segments, forward passes and server lines, and the questions one can ask of it.

This module is responsible for :func:`load`, :func:`stream` and :func:`items_of`, which join reading, parsing and
labelling, and for :class:`Run`. It must not know any rule or rendering; ``Run.check`` and the like import what they
delegate to when they are called.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from logscope import grammar as grammars_module
from logscope.errors import NothingRecognised
from logscope.labelled import FileOrder, Labelled
from logscope.model import Accounting, ForwardPass, Segment, ServerEvent
from logscope.reading import Reading, batches, followed_batches, sources_of
from logscope.report import Item, Query, Report, ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import polars as pl

    from logscope.ahead import Step
    from logscope.event import Event
    from logscope.grammar import Grammar
    from logscope.plot import Plot
    from logscope.sources.streams import Source
    from logscope.saved import Tables
    from logscope.select import Select


def items_of(
    sources: Iterable[Source],
    grammar: Grammar,
    reading: Reading,
    *,
    keep_copies: bool = False,
    on_block: Callable[[Block], None] | None = None,
) -> Iterator[tuple[str, Item]]:
    """Read the sources one after the other; yield every item with its file's name, in file order."""
    for file, items, _ in steps_of(sources, grammar, reading, keep_copies=keep_copies, on_block=on_block):
        for item in items:
            yield file, item


def steps_of(
    sources: Iterable[Source],
    grammar: Grammar,
    reading: Reading,
    *,
    keep_copies: bool = False,
    on_block: Callable[[Block], None] | None = None,
) -> Iterator[tuple[str, list[Item], int | None]]:
    """Read the sources one after the other; yield the items that each part of a file completes, with its name."""
    known: set[int] = set()
    for tables in batches(sources, grammar, reading, on_block=on_block):
        items = list(tables.items(copies=keep_copies, known=known))
        reading.note_misses(items)
        yield tables.files[0], items, None


def labelled_events(
    sources: Iterable[Source],
    grammar: Grammar,
    reading: Reading,
    *,
    on_block: Callable[[Block], None] | None = None,
) -> Iterator[Labelled]:
    """Yield every event of the sources, in file order, as soon as its labels are known."""
    order = FileOrder()
    for step in steps_of(sources, grammar, reading, keep_copies=True, on_block=on_block):
        yield from order.take(*step)


def answer(query: Query, inputs: Iterable[Any], *, grammars: Iterable[str | Path] = ()) -> Report:
    """Ask one question of logs without keeping a run in memory."""
    reading = Reading()
    sources = sources_of(inputs)
    for _, item in items_of(sources, grammars_module.load(grammars), reading):
        query.see(item)
    return query.report(reading.context())


def load(*inputs: Any, grammars: Iterable[str | Path] = (), select: Select | None = None) -> Run:
    """Read logs into a :class:`Run`.

    Parameters
    ----------
    inputs
        paths, globs, directories, ``-``, file objects, ``host:/path``; a saved run is opened.
    grammars
        further grammar files.
    select
        which part to keep.

    Raises
    ------
    InputError, GrammarError, NothingRecognised, RemoteError
        see :mod:`logscope.errors`.

    """
    if not inputs:
        raise NothingRecognised("no log was named", help="logscope.load('server.log')")
    sources = sources_of(inputs)
    saved = [source for source in sources if source.saved_run]
    if saved:
        from logscope.saved import open_run  # noqa: PLC0415 - reads Parquet

        if len(sources) > 1:
            raise NothingRecognised("a saved run cannot be joined with other logs", help="name it alone")
        opened = open_run(saved[0].name)
        return opened if select is None else opened.selected(select)
    grammar = grammars_module.load(grammars)
    reading = Reading()
    run = Run(reading=reading, select=select)
    found = (item for _, item in items_of(sources, grammar, reading, keep_copies=True))
    for item in found if select is None else select.filter(found):
        run.add(item.file, item)
    return run


def stream(
    *inputs: Any, follow: bool = False, grammars: Iterable[str | Path] = (), select: Select | None = None
) -> Iterator[Event]:
    """Yield typed events in file order, in flat memory; with ``follow``, go on as the log grows.

    Raises
    ------
    InputError, GrammarError, RemoteError
        see :mod:`logscope.errors`.

    """
    from logscope.event import Event  # noqa: PLC0415 - pydantic is for who wants typed events

    reading = Reading()
    grammar = grammars_module.load(grammars)
    events: Iterable[Labelled | None]
    if follow:
        events = follow_events(inputs, grammar, reading)
    else:
        events = labelled_events(sources_of(inputs), grammar, reading)
    arrived = (labelled for labelled in events if labelled is not None)
    for labelled in arrived if select is None else select.filter_events(arrived):
        yield Event.from_labelled(labelled)


def follow_events(inputs: Any, grammar: Grammar, reading: Reading, **options: Any) -> Iterator[Labelled | None]:
    """Yield events of one growing log as they are written; None whenever nothing is new."""
    order = FileOrder()
    known: set[int] = set()
    for tables in followed_batches(inputs, grammar, reading, **options):
        if tables is None:
            yield None
            continue
        items = list(tables.items(known=known))
        reading.note_misses(items)
        yield from order.take(tables.files[0], items, None)


def follow_items(inputs: Any, grammar: Grammar, reading: Reading, **options: Any) -> Iterator[tuple[str, Item] | None]:
    """Yield items of one growing log as they are written; None whenever nothing is new."""
    known: set[int] = set()
    for tables in followed_batches(inputs, grammar, reading, **options):
        if tables is None:
            yield None
            continue
        items = list(tables.items(copies=False, known=known))
        reading.note_misses(items)
        yield from ((tables.files[0], item) for item in items)


@dataclass(slots=True, eq=False)
class Run:
    """What logs hold: segments, forward passes and server lines, in file order, and the questions to ask.

    ``events``, ``passes`` and ``unparsed`` are polars frames (schema: docs/reference/frames.md); the questions return
    a :class:`Report`.
    """

    reading: Reading = field(default_factory=Reading)
    select: Select | None = None
    _items: list[Item] = field(default_factory=list)
    _files: list[tuple[str, int]] = field(default_factory=list)
    _frames: dict[str, pl.DataFrame] = field(default_factory=dict)
    _saved: Tables | None = None

    @classmethod
    def kept(cls, reading: Reading, saved: Tables) -> Run:
        """Return a saved run: its items are made when they are asked for, its events looked up in its tables."""
        return cls(reading=reading, _saved=saved)

    def add(self, file: str, item: Item) -> None:
        """Append an item of a file."""
        if not self._files or self._files[-1][0] != file:
            self._files.append((file, len(self._items)))
        self._items.append(item)

    @property
    def items(self) -> list[Item]:
        """Segments, forward passes and server lines, in file order."""
        if self._saved is not None and not self._items:
            for file, item in self._saved.items():
                self.add(file, item)
        return self._items

    def selected(self, select: Select) -> Run:
        """Return the part of this run that a selection keeps."""
        part = Run(reading=self.reading, select=select)
        for item in select.filter(self.items):
            part.add(item.file, item)
        return part

    @property
    def files(self) -> list[str]:
        """The logs' names, as given."""
        return self.reading.files

    @property
    def accounting(self) -> Accounting:
        """What became of every byte."""
        return self.reading.accounting

    @property
    def warnings(self) -> list[str]:
        """What was wrong with the inputs, in sentences."""
        return self.reading.warnings

    @property
    def segments(self) -> list[Segment]:
        """Server lives, in order."""
        return [item for item in self.items if isinstance(item, Segment)]

    @property
    def forwards(self) -> list[ForwardPass]:
        """Forward passes of target and draft, in order."""
        return [item for item in self.items if isinstance(item, ForwardPass)]

    @property
    def server(self) -> list[ServerEvent]:
        """Server lines, unparsed text included."""
        return [item for item in self.items if isinstance(item, ServerEvent)]

    def by_file(self) -> Iterator[tuple[str, list[Item]]]:
        """Yield every file's items."""
        items = self.items
        if not self._files:
            return
        ends = [start for _, start in self._files[1:]] + [len(items)]
        for (file, start), end in zip(self._files, ends, strict=True):
            yield file, items[start:end]

    def labelled(self) -> Iterator[Labelled]:
        """Yield every event with its labels, file by file, in file order."""
        for file, items in self.by_file():
            for labelled in FileOrder().take(file, items, None):
                if self.select is None or self.select.accepts_event(labelled):
                    yield labelled

    def ask(self, query: Query) -> Report:
        """Ask a question."""
        return ask(query, self.items, self.reading.context())

    def summarize(self) -> Report:
        """Return the one-screen summary. Command: ``logscope summarize``."""
        from logscope.queries.summarize import Summarize  # noqa: PLC0415 - a question is loaded when it is asked

        return self.ask(Summarize())

    def captures(self) -> Report:
        """Return hidden captures per phase. Command: ``logscope captures``."""
        from logscope.queries.captures import Captures  # noqa: PLC0415 - see summarize

        return self.ask(Captures())

    def shapes(self) -> Report:
        """Return every shape with its axes named. Command: ``logscope shapes``."""
        from logscope.queries.shapes import Shapes  # noqa: PLC0415 - see summarize

        return self.ask(Shapes())

    def norms(self) -> Report:
        """Return norm fingerprints and lineage. Command: ``logscope norms``."""
        from logscope.queries.norms import Norms  # noqa: PLC0415 - see summarize

        return self.ask(Norms())

    def accept(self, **options: Any) -> Report:
        """Return acceptance over time. Command: ``logscope accept``."""
        from logscope.queries.accept import Accept  # noqa: PLC0415 - see summarize

        return self.ask(Accept(**options))

    def config(self, **options: Any) -> Report:
        """Return what was configured. Command: ``logscope config``."""
        from logscope.queries.config import Config  # noqa: PLC0415 - see summarize

        return self.ask(Config(**options))

    def errors(self) -> Report:
        """Return exceptions, the first and its process before the relayed ones. Command: ``logscope errors``."""
        from logscope.queries.failures import Failures  # noqa: PLC0415 - see summarize

        return self.ask(Failures())

    def check(self, contract: Any = None, **options: Any) -> Report:
        """Return what contradicts how the draft was trained. Command: ``logscope check``."""
        from logscope.check import check  # noqa: PLC0415 - run must not import check when it is loaded

        return check(self, contract, **options)

    def diff(self, candidate: Run, **options: Any) -> Report:
        """Return where a candidate parts from this run, the baseline. Command: ``logscope diff``."""
        from logscope.diffing.answer import diff  # noqa: PLC0415 - run must not import diff when it is loaded

        return diff(self, candidate, **options)

    @property
    def events(self) -> pl.DataFrame:
        """One row per event, copies included, in file order."""
        return self._frame("events")

    @property
    def passes(self) -> pl.DataFrame:
        """One row per forward pass."""
        return self._frame("passes")

    @property
    def unparsed(self) -> pl.DataFrame:
        """One row per record that no event matched, with the reason."""
        return self._frame("unparsed")

    def _frame(self, name: str) -> pl.DataFrame:
        if name not in self._frames:
            from logscope import frames  # noqa: PLC0415 - imports polars

            looked_up = self._saved.events() if self._saved is not None and name == "events" else None
            self._frames[name] = getattr(frames, name)(self) if looked_up is None else looked_up
        return self._frames[name]

    def lazy(self, name: str) -> pl.LazyFrame:
        """Return one of the tables ``events``, ``passes`` and ``unparsed``, as cheap as it is to be had."""
        if self._saved is not None and name == "events" and name not in self._frames:
            looked_up = self._saved.lazy_events()
            if looked_up is not None:
                return looked_up
        return self._frame(name).lazy()

    @property
    def plot(self) -> Plot:
        """The run's charts, each an Altair chart: norms(), captures(), rows(), accept(), ranks()."""
        from logscope.plot import Plot  # noqa: PLC0415 - charts are an extra

        return Plot(self)

    def sql(self, query: str) -> pl.DataFrame:
        """Run a query over the tables ``events``, ``passes`` and ``unparsed``.

        Raises
        ------
        UsageError
            the query is not understood.

        """
        from logscope import frames  # noqa: PLC0415 - imports polars

        return frames.sql(self, query)

    def save(self, path: str | Path) -> None:
        """Write the run into a folder (Parquet and a manifest); ``logscope.open`` reads it again."""
        from logscope.saved import save_run  # noqa: PLC0415 - writes Parquet

        save_run(self, path)

    def __repr__(self) -> str:
        """Say what it holds in one line."""
        records = self.accounting.records
        return f"<Run of {', '.join(self.files) or 'nothing'}: {len(self.forwards)} passes, {records} records>"


def open(path: str | Path) -> Run:  # noqa: A001 - logscope.open reads as it should
    """Open a saved run.

    Raises
    ------
    SavedRunError
        it is not there, is damaged, or was written by a newer logscope.

    """
    from logscope.saved import open_run  # noqa: PLC0415 - reads Parquet

    return open_run(path)
