"""From LOG arguments to a shown answer, the same way for every command that reads; and the Python that does the same.

This module is responsible for calling the library as a reading command does, and for what is said when there was
nothing to read. It must not know any command's own options.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logscope.cli.output import exit_code, show, style_of, target, write
from logscope.cli.session import OK, say, until_interrupted
from logscope.errors import InputError, LogscopeError, Message, NothingRecognised, UsageError, did_you_mean
from logscope.render.text import plural, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from logscope.asking import Asked, Question
    from logscope.cli.options import Shared
    from logscope.reading import Reading
    from logscope.report import Report
    from logscope.run import Run
    from logscope.sources.streams import Source
    from logscope.tables.tables import Tables


# How often the answer to a growing log is shown anew at most, in seconds.
REDRAW = 0.1


def ask(
    logs: Sequence[str],
    shared: Shared,
    query: Question,
    call: str,
    fail_on: str | None = None,
    *,
    follow: bool = False,
    charts: bool = False,
) -> int:
    """Ask one question of the logs and show the answer.

    ``call`` is the same in Python: ``captures()``. ``charts``: a page of it shows the run as charts too.
    """
    if shared.explain_python:
        return explain([*loading(logs, shared), f"print(run.{call})"])
    if follow:
        report, failure = followed(logs, shared, query)
        code = show(report, shared, shared, fail_on)
        if failure is not None:
            raise failure
        return code
    if charts and target(shared).form == "html":
        return _ask_page(logs, shared, query, fail_on)
    return show(answer(logs, shared, query), shared, shared, fail_on)


def on_engine(
    logs: Sequence[str], shared: Shared, query: Question, engine: str, address: str | None, *, follow: bool
) -> int:
    """Ask one question of many files that are read on a cluster; each file that is done is said on a terminal."""
    from logscope import cluster  # noqa: PLC0415 - an engine is an extra
    from logscope.reading import Reading  # noqa: PLC0415 - see answers

    if follow or shared.words():
        raise UsageError(
            "--engine reads whole files",
            why="a live log, or a part of one, is not worth a cluster",
            help="leave out --follow and the options under Selection",
        )
    if shared.explain_python:
        words = arguments(engine=engine, address=address)
        lines = ["from logscope import cluster", "from logscope.queries.summarize import Summarize", ""]
        return explain([*lines, f"print(cluster.answer(Summarize(), {list(logs)!r}, {words}))"])

    def done(name: str, count: int, total: int) -> None:
        if sys.stderr is not None and sys.stderr.isatty() and not shared.quiet:
            say(Message(f"{count} of {total} files: {name}"), "note")

    report = cluster.answer(query, logs, engine=engine, address=address, grammars=shared.grammar or (), on_file=done)
    recognised(Reading(list(logs), report.accounting))
    return show(report, shared, shared)


def _ask_page(logs: Sequence[str], shared: Shared, query: Question, fail_on: str | None) -> int:
    """Show the answer as a page, with charts and the lines behind its findings."""
    from logscope.cli.evidence import page_text  # noqa: PLC0415 - pages only
    from logscope.queries.acceptance import Accept  # noqa: PLC0415
    from logscope.queries.points import Charts  # noqa: PLC0415

    report, accept, points = answers(logs, shared, [query, Accept(), Charts()])
    text = page_text([report], shared, f"logscope {report.kind}: {', '.join(logs)}", points=points, accept=accept)
    write(text, target(shared), shared)
    return exit_code(report, fail_on)


def answer(logs: Sequence[str], shared: Shared, query: Question) -> Report:
    """Return the answer to one question."""
    (report,) = answers(logs, shared, [query])
    return report


def answers(logs: Sequence[str], shared: Shared, queries: Sequence[Any]) -> list[Report]:
    """Return the answers to several questions, reading once and in flat memory; warnings go to stderr."""
    from logscope import grammar, run  # noqa: PLC0415 - help must not pay for the parser
    from logscope import reading as readings  # noqa: PLC0415
    from logscope.asking import Asked  # noqa: PLC0415

    select = shared.select()
    failed: list[LogscopeError] = []
    sources = sources_named(logs, shared, failed)
    for error in failed:
        say(error.message, "error")
    asked = [Asked(query) for query in queries]
    if any(source.saved_run for source in sources):
        saved = run.load(*logs)
        reading, shown = saved.reading, ExitStack()
        found: Iterable[Tables] = [saved.tables]
    else:
        reading = readings.Reading()
        shown = ExitStack()
        known, on_block = grammar.load(shared.grammar or ()), shown.enter_context(progress(sources, shared))
        found = readings.gathered(readings.batches(sources, known, reading, on_block=on_block))
    with shown:
        missed = Missed(shared)
        for tables in missed.over(found):
            part = select.filter(tables) if select else tables
            for one in asked:
                one.add(part)
    recognised(reading, beside=bool(failed))
    reports = [one.report(reading.context()) for one in asked]
    if failed:
        for report in reports:
            report.facts["unread"] = [error.message.what for error in failed]
    if select:
        for report in reports:
            report.notes.insert(0, f"selected: {select}; nothing else is counted")
            if report.screen:
                report.screen.insert(1, report.notes[0])
            if missed.all and "undecided" not in report.facts:
                report.headline = f"The selection leaves nothing: {select}."
    # What stands in the answer is not said twice; a first screen has no notes.
    brief = target(shared).form == "table" and not shared.verbose
    said = {note for report in reports for note in report.notes if not (brief and report.screen)}
    warn([text for text in reading.warnings if text not in said], shared)
    return reports


class Missed:
    """What there was, when a selection leaves nothing of it: an empty answer is not to be taken for an empty log."""

    def __init__(self, shared: Shared) -> None:
        self._select, self._quiet = shared.select(), shared.quiet
        self._there: dict[str, set[str]] = {}
        self.all = False

    def over(self, found: Iterable[Tables]) -> Iterator[Tables]:
        """Hand batches on; at their end say so when nothing of them is left, and what there is."""
        select = self._select
        kept = not select
        for tables in found:
            if not kept and (tables.passes.height or tables.server.height):
                self.all = True
                kept = bool(select.found(select.filter(tables)))
                for name, values in select.there(tables).items():
                    self._there.setdefault(name, set()).update(values)
            yield tables
        self.all = self.all and not kept
        if self.all and not self._quiet:
            what = "pass" if select.of_passes else "record"
            advice = "\n".join(self._advice()) or None
            say(Message(f"the selection leaves no {what}", note=f"selected: {select}", help=advice), "warning")

    def _advice(self) -> Iterator[str]:
        """Yield what could have been selected instead."""
        for name, values in self._there.items():
            words = map(str, getattr(self._select, name)) if name in ("site", "event") else ()
            yield from filter(None, (did_you_mean(word, values) for word in words if word not in values))
            shown = sorted(values, key=lambda word: (len(word), word) if word.isdigit() else (0, word))
            if name == "time" and shown:
                shown = [f"{shown[0]} to {shown[-1]}"]
            yield f"in the log: {name} {', '.join(shown)}" if shown else f"no {name} is known in the log"


def followed(logs: Sequence[str], shared: Shared, query: Any) -> tuple[Report, LogscopeError | None]:
    """Return the last answer to a growing log: when its writer has ended (a pipe), or Ctrl-C ends the following.

    On a terminal the answer is drawn anew while it changes; into a pipe what is new of it is a line, where it is text
    at all. A log that could not be read any more after a while (the
    host no longer accepts the key) has an answer, too: the failure comes with it.
    """
    from logscope import grammar  # noqa: PLC0415 - help must not pay for the parser
    from logscope import reading as readings  # noqa: PLC0415
    from logscope.asking import Asked  # noqa: PLC0415

    select = shared.select()
    reading, asked = readings.Reading(), Asked(query)
    live = _Live(asked, reading)
    drawn = None
    if not shared.output and sys.stdout.isatty():
        live = drawn = _Drawn(logs, shared, asked, reading)
    elif not shared.output and target(shared).form == "table":
        live = _Told(asked, reading)
    with until_interrupted() as stop, drawn.screen if drawn else nullcontext():
        notice = drawn.notice if drawn else lambda text: warn([text], shared)
        known = grammar.load(shared.grammar or ())
        # What is drawn is what the log says so far, the pass that is still printed included.
        found = readings.followed_batches(list(logs), known, reading, stop=stop, warn=notice, quiet=0.0)
        failure = None
        try:
            for tables in live.between(found):
                if tables is not None:
                    asked.add(select.filter(tables) if select else tables)
        except LogscopeError as error:
            if not reading.accounting.records:
                raise
            failure = error
    if drawn:
        # The last ones stand in the answer.
        warn([text for text in drawn.notices if text not in reading.warnings], shared)
    recognised(reading)
    return asked.report(reading.context()), failure


class _Live:
    """The answer to a growing log, while it changes: shown by those that are made from this one."""

    def __init__(self, asked: Asked, reading: Reading) -> None:
        self._asked, self._reading = asked, reading

    def between(self, found: Iterable[Tables | None]) -> Iterator[Tables | None]:
        """Pass what is found on, and show the answer when it was taken."""
        shown, news = 0.0, True
        for tables in found:
            yield tables
            news = news or tables is not None
            if news and time.monotonic() - shown >= REDRAW:
                shown, news = time.monotonic(), False
                self._show()

    def _show(self) -> None:
        """Show the answer as it stands; a JSON value, or a file, is written once."""

    def _report(self) -> Report:
        return self._asked.report(self._reading.context())


class _Told(_Live):
    """The answer to a growing log in a pipe: a line for each finding when it stands, and for each new headline."""

    _said: frozenset[object] = frozenset()

    def _show(self) -> None:
        report = self._report()
        lines: dict[object, str] = {
            (one.rule, one.where): f"{one.severity} {one.rule} {one.where or ''}: {one.message}"
            for one in report.findings
            if one.severity != "note"
        }
        if report.kind != "check" and self._reading.accounting.records:
            lines[report.headline] = report.headline
        for key in (key for key in lines if key not in self._said):
            sys.stdout.write(f"{visible(lines[key])}\n")
        sys.stdout.flush()
        self._said |= lines.keys()


class _Drawn(_Live):
    """The answer to a growing log on a terminal, drawn anew while it changes."""

    def __init__(self, logs: Sequence[str], shared: Shared, asked: Asked, reading: Reading) -> None:
        from logscope.render.live import Screen  # noqa: PLC0415 - live logs only

        super().__init__(asked, reading)
        self.notices: list[str] = []
        self.screen = Screen(sys.stdout)
        self._shared = shared
        self._status = f"following {visible(', '.join(logs))}; Ctrl-C ends"

    def notice(self, text: str) -> None:
        """Show at once what became of the log: while a connection is lost, nothing else comes to be drawn."""
        self.notices.append(text)
        self._show()

    def _show(self) -> None:
        from logscope.render import render  # noqa: PLC0415 - live logs only

        shared = self._shared
        style = style_of(sys.stdout, shared.color, quiet=shared.quiet, verbose=shared.verbose)
        self.screen.draw(render(self._report(), "table", style), self._status)


def open_run(logs: Sequence[str], shared: Shared) -> Run:
    """Load logs into a run kept in memory, for what needs all of it."""
    from logscope.run import load  # noqa: PLC0415 - help must not pay for the parser

    spare_inputs(logs, shared)
    run = load(*logs, grammars=list(shared.grammar or ()), select=shared.select() or None)
    recognised(run.reading)
    warn(run.warnings, shared)
    return run


def sources_named(logs: Sequence[str], shared: Shared, failed: list[LogscopeError] | None = None) -> list[Source]:
    """Return what the arguments name as sources; with ``failed``, what cannot be had beside others is put there."""
    from logscope.reading import sources_of  # noqa: PLC0415 - help must not pay for the parser

    spare_inputs(logs, shared)
    return sources_of(logs, quiet=shared.quiet, failed=failed)


def spare_inputs(logs: Sequence[str], shared: Shared) -> None:
    """Raise :class:`UsageError` when the result would be written over one of the logs."""
    if not shared.output or not Path(shared.output).is_file():
        return
    for log in logs:
        if Path(log).is_file() and Path(log).samefile(shared.output):
            raise UsageError(f"the result would be written over the log '{log}'", help="give -o another name")


def recognised(reading: Reading, *, beside: bool = False) -> None:
    """Raise :class:`NothingRecognised` when no record at all was understood in what was read.

    ``beside`` inputs that could not be read that is :class:`InputError`: trouble wins.
    """
    nothing = InputError if beside else NothingRecognised
    accounting, files = reading.accounting, reading.files
    if accounting.records > accounting.unparsed:
        return
    names = f"'{files[0]}'" if len(files) == 1 else f"{len(files)} files"
    if not accounting.bytes:
        raise nothing(f"{names} {'is' if len(files) == 1 else 'are'} empty")
    near = [f"{place} looks like a record and is none: {why}" for place, why in reading.misses]
    if accounting.quoted:
        near.append(f"{accounting.quoted} texts look like records but are quoted, in source code or a prompt")
    near += [*reading.warnings, *reading.context().unread_lines()]
    if any(name.endswith((".json", ".toml")) for name in files):
        near.append("a contract, or the draft's config.json, is named with --contract")
    raise nothing(
        f"nothing is recognised in {names}",
        why=f"none of {plural(accounting.lines, 'line')} holds a record that a grammar knows",
        note="\n".join(near) or None,
        help="'logscope grammar list' shows what is known, 'logscope grammar explain LINE' how a line is read;\n"
        "'logscope grammar suggest LOG' proposes one that adds records of your own, --grammar FILE reads it",
    )


def warn(warnings: Iterable[str], shared: Shared) -> None:
    """Say what was wrong with the input, unless -q asks for silence."""
    if not shared.quiet:
        for warning in warnings:
            say(Message(warning), "warning")


@contextmanager
def progress(sources: Sequence[Source], shared: Shared) -> Iterator[Callable[[int, str], None] | None]:
    """Give what draws a line of progress, None when nobody would see it, or wants to, or the input is small."""
    from logscope.render.progress import WORTH_SHOWING, Progress  # noqa: PLC0415 - read commands only

    sizes = [source.size for source in sources]
    known = None if None in sizes else sum(filter(None, sizes))
    if shared.quiet or sys.stderr is None or not sys.stderr.isatty() or (known is not None and known < WORTH_SHOWING):
        yield None
        return
    line = Progress(sys.stderr, known)
    try:
        yield line.add
    finally:
        line.close()


def explain(lines: Iterable[str]) -> int:
    """Print the lines of Python that do what the command would have done."""
    sys.stdout.write("\n".join(["import logscope as ls", "", *lines]) + "\n")
    return OK


def loading(logs: Sequence[str], shared: Shared, name: str = "run") -> list[str]:
    """Return the lines of Python that load these logs."""
    words = [repr(log) for log in logs]
    if shared.grammar:
        words.append(f"grammars={shared.grammar!r}")
    if shared.words():
        words.append(f"select=ls.Select.of({arguments(**shared.words())})")
    return [f"{name} = ls.load({', '.join(words)})"]


def arguments(**given: Any) -> str:
    """Return keyword arguments as Python, those that say nothing left out."""
    return ", ".join(f"{name}={value!r}" for name, value in given.items() if value not in (None, False, [], ()))
