"""A run: what logs hold, and the questions one can ask of it.

This module is responsible for the facade: :func:`load`, :func:`stream`, :func:`open` and :class:`Run`. It must not know
any rule or rendering; a question is imported when it is asked. Only the command line and ``import logscope`` import it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from os import fspath
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias

from logscope import grammar as grammars_module
from logscope.asking import Asked
from logscope.errors import NothingRecognised
from logscope.model import Accounting, ForwardPass, ServerEvent
from logscope.reading import Reading, batches, followed_batches, gathered, sources_of
from logscope.tables.tables import Tables

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from logscope.contract import Contract
    from logscope.diffing.report import DiffReport
    from logscope.model import Segment
    from logscope.plot import Plot
    from logscope.queries.acceptance import Window
    from logscope.queries.acceptance.report import By
    from logscope.report import Report
    from logscope.tables.event import Event
    from logscope.tables.frames import Columns
    from logscope.tables.saved import Saved
    from logscope.tables.select import Select

# What load, stream and open take: `-`, paths, globs, folders, host:/path; open files, binary or text.
Input: TypeAlias = "str | os.PathLike[str] | IO[bytes] | IO[str]"
# Names of frames.
TableName: TypeAlias = Literal["events", "passes", "unparsed"]


def answer(question: Any, inputs: Iterable[Any], *, grammars: Iterable[str | os.PathLike[str]] = ()) -> Report:
    """Ask one question of logs without keeping a run in memory."""
    reading, asked = Reading(), Asked(question)
    for tables in gathered(batches(sources_of(inputs), grammars_module.load(grammars), reading)):
        asked.add(tables)
    return asked.report(reading.context())


def load(*inputs: Input, grammars: Iterable[str | os.PathLike[str]] = (), select: Select | None = None) -> Run:
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

    Examples
    --------
    >>> run = logscope.load("server.log", "rank1.log.zst")

    """
    if not inputs:
        raise NothingRecognised("no log was named", help="logscope.load('server.log')")
    sources = sources_of(inputs)
    saved = [source for source in sources if source.saved_run]
    if saved:
        if len(sources) > 1:
            raise NothingRecognised("a saved run cannot be joined with other logs", help="name it alone")
        opened = open(saved[0].name)
        return opened if select is None else opened.selected(select)
    reading = Reading()
    found = batches(sources, grammars_module.load(grammars), reading)
    return Run(reading, Tables.concat(found if select is None else map(select.filter, found)), select)


def stream(
    *inputs: Input,
    follow: bool = False,
    grammars: Iterable[str | os.PathLike[str]] = (),
    select: Select | None = None,
) -> Iterator[Event]:
    """Yield typed events in file order, in flat memory; with ``follow``, go on as the log grows.

    Raises
    ------
    InputError, GrammarError, RemoteError
        see :mod:`logscope.errors`.

    Examples
    --------
    >>> for event in logscope.stream("server.log", follow=True):
    ...     print(event.line, event.event)

    """
    from logscope.tables.event import Event  # noqa: PLC0415 - pydantic is for who wants typed events

    reading, grammar = Reading(), grammars_module.load(grammars)
    found: Iterable[Tables | None]
    found = followed_batches(inputs, grammar, reading) if follow else batches(sources_of(inputs), grammar, reading)
    for tables in found:
        for row in () if tables is None else tables.event_rows(select=select):
            yield Event.model_validate(row)


@dataclass(slots=True, eq=False)
class Run:
    """What logs hold: segments, forward passes and server lines, in file order, and the questions to ask.

    ``events``, ``passes`` and ``unparsed`` are polars frames (schema: docs/reference/frames.md); the questions return
    a :class:`Report`.
    """

    reading: Reading = field(default_factory=Reading)
    _tables: Tables | None = None
    select: Select | None = None
    _saved: Saved | None = None
    _items: list[Any] = field(default_factory=list)
    _frames: dict[str, pl.DataFrame] = field(default_factory=dict)

    # -- what was read ---------------------------------------------------------------------------------------------

    @property
    def tables(self) -> Tables:
        """Records, passes, prints and server lines, as the engine has them (docs/reference/frames.md)."""
        if self._tables is None:
            self._tables = self._saved.tables() if self._saved is not None else Tables()
        return self._tables

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
    def items(self) -> list[Any]:
        """Segments, forward passes and server lines as objects, in file order."""
        if not self._items:
            self._items.extend(self.tables.items())
        return self._items

    @property
    def segments(self) -> Sequence[Segment]:
        """Server lives, in order."""
        return self._saved.segments if self._saved is not None else self.tables.segments

    @property
    def forwards(self) -> Sequence[ForwardPass]:
        """Forward passes of target and draft, in order."""
        return [item for item in self.items if isinstance(item, ForwardPass)]

    @property
    def server(self) -> Sequence[ServerEvent]:
        """Server lines, unparsed text included."""
        return [item for item in self.items if isinstance(item, ServerEvent)]

    def selected(self, select: Select) -> Run:
        """Return the part of this run that a selection keeps."""
        return Run(self.reading, select.filter(self.tables), select)

    # -- questions -------------------------------------------------------------------------------------------------

    def ask(self, question: Any) -> Report:
        """Ask a question (:mod:`logscope.asking`)."""
        asked = Asked(question)
        asked.add(self.tables)
        return asked.report(self.reading.context())

    def summarize(self) -> Report:
        """Return what is in the log: segments, phases, captures, speculation, damage.

        Examples
        --------
        >>> print(run.summarize().headline)

        """
        from logscope.queries.summarize import Summarize  # noqa: PLC0415 - a question is loaded when it is asked

        return self.ask(Summarize())

    def captures(self) -> Report:
        """Return hidden captures per phase: layers, shapes, rms, copies.

        Examples
        --------
        >>> run.captures().tables["layers"]

        """
        from logscope.queries.captures import Captures  # noqa: PLC0415 - see summarize

        return self.ask(Captures())

    def shapes(self) -> Report:
        """Return every shape with its axes named.

        Examples
        --------
        >>> run.shapes().tables["shapes"]

        """
        from logscope.queries.shapes import Shapes  # noqa: PLC0415 - see summarize

        return self.ask(Shapes())

    def norms(self) -> Report:
        """Return norm fingerprints (rms: norm / sqrt(rows x width)) and where the draft's inputs come from.

        Examples
        --------
        >>> run.norms().headline

        """
        from logscope.queries.norms import Norms  # noqa: PLC0415 - see summarize

        return self.ask(Norms())

    def accept(
        self,
        *,
        by: By = "rank",
        window: Window | str | None = None,
        min: float | None = None,  # noqa: A002 - the option's name
        below: float | None = None,
        above: float | None = None,
        year: int | None = None,
    ) -> Report:
        """Return acceptance over time.

        Parameters
        ----------
        by
            one row for each process (``rank``), server (``segment``) or vLLM engine.
        window
            also per window: ``"30s"``, ``"5m"``, ``"1h"``, ``"1d"``, or ``"100"`` lines of each process.
        min
            tokens per verify, bonus token included (1.0 and up): a finding for every row whose mean is below.
        below
            tokens per verify: count the lines below it.
        above
            accept rate, 0 to 1 (as the log defines it): count the lines above it.
        year
            of the first printed time, where the log prints none.

        Raises
        ------
        UsageError
            a window or a grouping there is not.

        Examples
        --------
        >>> run.accept(window="5m", min=2.0).ok

        """
        from logscope.queries.acceptance import Accept  # noqa: PLC0415 - see summarize

        return self.ask(Accept(by=by, window=window, min=min, below=below, above=above, year=year))

    def config(self, *, every: bool = False) -> Report:
        """Return how the server was started; ``every``: all arguments, not only those that matter.

        Examples
        --------
        >>> run.config(every=True).tables

        """
        from logscope.queries.config import Config  # noqa: PLC0415 - see summarize

        return self.ask(Config(every=every))

    def errors(self) -> Report:
        """Return exceptions, the first and its process before the relayed ones.

        Examples
        --------
        >>> run.errors().headline

        """
        from logscope.queries.errors import Errors  # noqa: PLC0415 - see summarize

        return self.ask(Errors())

    def check(
        self,
        contract: Contract | str | os.PathLike[str] | Mapping[str, object] | None = None,
        *,
        select: Iterable[str] | None = None,
        ignore: Iterable[str] | None = None,
        sglang_version: str | None = None,
    ) -> Report:
        """Return what contradicts how the draft was trained.

        Parameters
        ----------
        contract
            a draft's ``config.json`` or the folder it stands in, a TOML file, a mapping of its keys, a Contract.
            Without one, rules that need it say so under *not checked*.
        select, ignore
            codes of rules or their beginnings (``"N"``, ``"N10"``); a lone string is one code.
        sglang_version
            ``"0.5.11"``; None: read from the log.

        Raises
        ------
        ContractError, UsageError
            a contract that does not load; a code no rule has, a version that is none.

        Examples
        --------
        >>> run.check("draft/config.json").findings

        """
        from logscope.check import check  # noqa: PLC0415 - a question is loaded when it is asked

        chosen = [select] if isinstance(select, str) else select
        left_out = [ignore] if isinstance(ignore, str) else ignore
        return check(self, contract, select=chosen, ignore=left_out, sglang_version=sglang_version)

    def diff(
        self,
        candidate: Run | Input | Sequence[Input],
        *,
        rtol: float | None = None,
        grammars: Iterable[str | os.PathLike[str]] = (),
    ) -> DiffReport:
        """Return where a candidate parts from this run, the baseline; ``rtol`` is relative, of a norm.

        Examples
        --------
        >>> good.diff("bad.log").first_divergence

        """
        from logscope.diffing.report import diff  # noqa: PLC0415 - a question is loaded when it is asked

        given = {} if rtol is None else {"rtol": rtol}
        return diff(self, candidate, grammars=grammars, **given)

    # -- tables ----------------------------------------------------------------------------------------------------

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

    def _columns(self) -> Columns:
        from logscope.tables.frames import Held  # noqa: PLC0415 - frames only

        return self._saved if self._saved is not None else Held(self.tables)

    def _frame(self, name: str) -> pl.DataFrame:
        if name not in self._frames:
            from logscope.tables import frames  # noqa: PLC0415 - frames only

            source = self._columns()
            made = {
                "events": lambda: frames.events(source, select=self.select),
                "passes": lambda: frames.forwards(source),
                "unparsed": lambda: frames.unparsed(source),
            }
            self._frames[name] = made[name]()
        return self._frames[name]

    def lazy(self, name: TableName) -> pl.LazyFrame:
        """Return one of the tables ``events``, ``passes`` and ``unparsed`` for a query of your own."""
        return self._frame(name).lazy()

    def sql(self, query: str) -> pl.DataFrame:
        """Run a query over the tables ``events``, ``passes`` and ``unparsed``.

        Raises
        ------
        UsageError
            the query is not understood; its tables and columns are named.

        Examples
        --------
        >>> run.sql("select layer, avg(norm) from events where phase = 'verify' group by layer")

        """
        from logscope.tables.frames import sql  # noqa: PLC0415 - frames only

        return sql(self._columns(), query, self.select)

    def save(self, path: str | Path) -> None:
        """Write the run into a folder (Parquet and a manifest); ``logscope.open`` reads it again.

        Raises
        ------
        SavedRunError
            the folder holds something else, or cannot be written.

        """
        from logscope.tables.saved import save  # noqa: PLC0415 - writes Parquet

        reading = self.reading
        more = {name: getattr(reading, name) for name in ("files", "warnings", "origins")}
        save(self.tables, path, more | {"accounting": asdict(reading.accounting)})

    @property
    def plot(self) -> Plot:
        """The run's charts, each an Altair chart: norms(), captures(), rows(), accept(), ranks()."""
        from logscope.plot import Plot  # noqa: PLC0415 - charts are an extra

        return Plot(self)

    def _repr_html_(self) -> str:
        """Return the run as a notebook shows it: what is in it, in short."""
        report = self.summarize()
        names = ("segments", "phases", "accept")
        report.tables = {name: table for name, table in report.tables.items() if name in names}
        report.kind, report.notes, report.facts = "run", [f"read from {', '.join(self.files)}"], {}
        return report._repr_html_()

    def __repr__(self) -> str:
        """Say what it holds in one line."""
        passes = self._columns().column("passes", "key").len()
        files = ", ".join(self.files) or "nothing"
        return f"<Run of {files}: {passes:,} passes, {self.accounting.records:,} records>"


def open(path: str | os.PathLike[str]) -> Run:  # noqa: A001 - logscope.open reads as it should
    """Open a saved run.

    Raises
    ------
    SavedRunError
        it is not there, is damaged, or was written by another version of logscope.

    """
    from logscope.tables.saved import Saved  # noqa: PLC0415 - reads Parquet

    saved = Saved(fspath(path))
    more = saved.more
    reading = Reading(
        files=more.get("files", saved.files),
        accounting=Accounting(**more.get("accounting", {})),
        warnings=more.get("warnings", []),
        origins=more.get("origins", {}),
    )
    return Run(reading, _saved=saved)
