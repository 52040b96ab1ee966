"""``logscope events``: the stream of records in the form that was asked for.

This module is responsible for joining the library's event stream with its writers. It must not know how events are
found or written.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from logscope.cli.output import Target, redactor, replace_file, show, style_of, target, write
from logscope.cli.reading import (
    Missed,
    answer,
    arguments,
    explain,
    loading,
    open_run,
    progress,
    recognised,
    sources_named,
    warn,
)
from logscope.cli.session import OK, say, until_interrupted
from logscope.errors import InputError, Message, UsageError
from logscope.render.events import FORMS, SUFFIXES, EventWriter
from logscope.render.text import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from logscope.cli.options import Shared
    from logscope.sources.streams import Source
    from logscope.tables.tables import Tables


def stream(logs: Sequence[str], shared: Shared, *, follow: bool) -> int:
    """Write every selected event, in flat memory (JSON, being one value, keeps them)."""
    wanted = target(shared, SUFFIXES, (*FORMS, "parquet"))
    if shared.explain_python:
        return explain(_python(logs, shared, wanted, follow=follow))
    if wanted.form == "parquet":
        if follow:
            raise UsageError("--follow cannot be joined with Parquet", help="write ndjson or csv")
        return _parquet(logs, shared, wanted)
    asked = shared.format or shared.output or shared.verbose or follow or shared.select()
    if sys.stdout.isatty() and not asked:
        # Thousands of lines are no answer: first what there is.
        from logscope.queries.census import Census  # noqa: PLC0415

        return show(answer(logs, shared, Census()), shared, shared)
    from logscope import grammar  # noqa: PLC0415 - help must not pay for the parser
    from logscope import reading as readings  # noqa: PLC0415

    known, reading = grammar.load(shared.grammar or ()), readings.Reading()
    if follow:
        with until_interrupted() as stop, _writer(wanted, shared, several=False) as writer:
            found = readings.followed_batches(logs, known, reading, stop=stop, warn=lambda text: warn([text], shared))
            _copy(found, writer, shared, live=True)
            recognised(reading)
            writer.close(reading.accounting)
        return OK
    sources = sources_named(logs, shared)
    if any(source.saved_run for source in sources):
        saved = open_run(logs, replace(shared))
        with _writer(wanted, shared, several=len(saved.files) > 1) as writer:
            _copy(Missed(shared).over([saved.tables]), writer, shared)
            writer.close(saved.accounting)
        return OK
    with progress(sources, shared) as on_block, _writer(wanted, shared, several=len(sources) > 1) as writer:
        _copy(Missed(shared).over(readings.batches(sources, known, reading, on_block=on_block)), writer, shared)
        recognised(reading)
        writer.close(reading.accounting)
    warn(reading.warnings, shared)
    return OK


def _copy(found: Iterable[Tables | None], writer: EventWriter, shared: Shared, *, live: bool = False) -> None:
    """Write the selected events; of a live log each one at once."""
    select = shared.select() or None
    hide = redactor(shared).value if shared.redact else None
    for tables in found:
        if tables is None:
            # Nothing new: what was read so far should be seen.
            writer.flush()
            if live:
                sys.stdout.flush()
            continue
        for row in tables.event_rows(select=select):
            writer.add(hide(row) if hide else row)


@contextmanager
def _writer(wanted: Target, shared: Shared, *, several: bool) -> Iterator[EventWriter]:
    """Give a writer to stdout, or to a file that is put in its place when everything was written."""
    if wanted.path is None:
        yield EventWriter(wanted.form, _to_stdout, style_of(sys.stdout, shared.color), several_files=several)
        return
    part = wanted.path.with_name(f".{wanted.path.name}.writing")
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            yield EventWriter(wanted.form, file.write, several_files=several)
        replace_file(wanted.path, part.replace)
    except OSError as error:
        raise InputError(f"'{wanted.path}' cannot be written", why=error.strerror) from error
    finally:
        part.unlink(missing_ok=True)
    _say_written(wanted, shared)


def _to_stdout(text: str) -> None:
    """Write to standard output; a full disk is trouble, a closed pipe is not."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError("the result cannot be written to standard output", why=error.strerror) from error


def _say_written(wanted: Target, shared: Shared) -> None:
    """Say which file was written."""
    if not shared.quiet:
        say(Message(f"wrote {wanted.path}"), "note")


def _parquet(logs: Sequence[str], shared: Shared, wanted: Target) -> int:
    """Write the events as a Parquet file."""
    if wanted.path is None:
        raise UsageError("Parquet goes to a file", help="-o events.parquet")
    if shared.redact:
        raise UsageError("--redact cannot be joined with Parquet", help="write ndjson or csv")
    from logscope import grammar  # noqa: PLC0415 - help must not pay for the parser
    from logscope import reading as readings  # noqa: PLC0415
    from logscope.tables.saved import write_events  # noqa: PLC0415 - writes Parquet

    sources, select = sources_named(logs, shared), shared.select() or None
    if any(source.saved_run for source in sources):
        replace_file(wanted.path, open_run(logs, shared).events.write_parquet)
    else:
        known, reading = grammar.load(shared.grammar or ()), readings.Reading()
        with progress(sources, shared) as on_block:
            found = Missed(shared).over(readings.batches(sources, known, reading, on_block=on_block))

            def fill(part: Path) -> None:
                write_events((tables.events(select=select) for tables in found), part)
                recognised(reading)

            replace_file(wanted.path, fill)
        warn(reading.warnings, shared)
    _say_written(wanted, shared)
    return OK


def query(logs: Sequence[str], shared: Shared, sql: str) -> int:
    """Answer a query over the frames ``events``, ``passes`` and ``unparsed``."""
    if shared.explain_python:
        return explain([*loading(logs, shared), f"print(run.sql({sql!r}))"])
    from logscope.report import Column, Report, Table  # noqa: PLC0415 - kept beside its only use

    run = open_run(logs, shared)
    wanted = target(shared, SUFFIXES, (*FORMS, "md", "html", "parquet"))
    frame = run.sql(sql)
    if wanted.form == "parquet":
        if wanted.path is None:
            raise UsageError("Parquet goes to a file", help="-o result.parquet")
        replace_file(wanted.path, frame.write_parquet)
        _say_written(wanted, shared)
        return OK
    columns = [
        Column(name, name, align="right" if kind.is_numeric() else "left", always=True)
        for name, kind in frame.schema.items()
    ]
    table = Table(columns, frame.to_dicts())
    report = Report("sql", plural(frame.height, "row"), tables={"result": table}, accounting=run.accounting)
    report.screen = [report.headline, "", table]
    if shared.quiet:
        # Quiet leaves out what is said about an answer; here the table is the answer.
        shared = replace(shared, quiet=False)
    return show(report, shared, shared)


def raw_text(logs: Sequence[str], shared: Shared, around: int | None) -> int:
    """Print the records' own text, or the physical lines around them, as they stand in the log."""
    if shared.explain_python:
        raise UsageError("--raw and --context have no equal in Python", help="logscope.sources.excerpts reads again")
    wanted = target(shared, {}, ("table",)) if shared.format else Target("table")
    if shared.output and shared.output != "-":
        from pathlib import Path  # noqa: PLC0415 - kept beside its only use

        wanted = replace(wanted, path=Path(shared.output))
    from logscope import grammar  # noqa: PLC0415 - help must not pay for the parser
    from logscope import reading as readings  # noqa: PLC0415
    from logscope.tables.frames import Held, spans  # noqa: PLC0415

    known = grammar.load(shared.grammar or ())
    pieces: list[str] = []
    put: Callable[[str], None] = _to_stdout if wanted.path is None else pieces.append
    sources = sources_named(logs, shared)
    several = len(sources) > 1
    reading = readings.Reading()
    select = shared.select() or None
    hide = redactor(shared).text if shared.redact else None
    for source in sources:
        found = readings.batches([source], known, reading)
        places = [place for tables in found for place in spans(Held(tables), select)]
        lines = _records(source, places) if around is None else _around(source, places, around, several=several)
        for line in lines:
            put((hide(line) if hide else line) + "\n")
    recognised(reading)
    if wanted.path is not None:
        write("".join(pieces), wanted, shared)
    warn(reading.warnings, shared)
    return OK


def _records(source: Source, places: Iterable[tuple[int, int, int]]) -> Iterator[str]:
    """Yield each record's own text on one line, made safe to print."""
    from logscope.render.text import visible  # noqa: PLC0415
    from logscope.sources.excerpts import read_again, texts  # noqa: PLC0415 - kept beside its only use

    for text in texts(read_again(source), ((offset, length) for _, offset, length in places)):
        yield visible(text.decode("utf-8", "surrogateescape"))


def _around(source: Source, places: Iterable[tuple[int, int, int]], around: int, *, several: bool) -> Iterator[str]:
    """Yield lines as grep does: ``file:12:text`` for a record's line, ``file-11-text`` for one beside it."""
    from logscope.render.text import visible  # noqa: PLC0415
    from logscope.sources.excerpts import lines_around, read_again  # noqa: PLC0415 - kept beside its only use

    wanted = sorted({line for line, _, _ in places})
    name = f"{visible(source.name)}" if several else ""
    for line in lines_around(read_again(source), wanted, around):
        if line is None:
            yield "--"
            continue
        mark = ":" if line.wanted else "-"
        lead = f"{name}{mark}" if name else ""
        yield f"{lead}{line.number}{mark}{visible(line.text.decode('utf-8', 'surrogateescape'))}"


def _python(logs: Sequence[str], shared: Shared, wanted: Target, *, follow: bool) -> list[str]:
    """Return the lines of Python that give the same events."""
    if wanted.form == "parquet":
        return [*loading(logs, shared), f"run.events.write_parquet({str(wanted.path)!r})"]
    (load,) = loading(logs, shared)
    inside = load.removeprefix("run = ls.load(").removesuffix(")")
    more: dict[str, Any] = {"follow": follow}
    call = ", ".join(filter(None, [inside, arguments(**more)]))
    return [f"for event in ls.stream({call}):", "    print(event.model_dump_json(by_alias=True))"]
