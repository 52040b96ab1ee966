"""What the grammars know, and how they read one line: the answers behind ``logscope grammar``.

This module is responsible for saying in words what a line is, where reading stopped and what was expected there. It
must not know how records are read (grammar/, scan/) nor how a report is shown.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from logscope import grammar as grammars
from logscope.errors import GrammarError, Message, NothingRecognised, Where, did_you_mean
from logscope.grammar.forms import LEAST, Forms, proposal
from logscope.grammar.prefixes import layers
from logscope.report import Column, Report, Table
from logscope.scan.pending import Here, Pending

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logscope.grammar import Grammar, GrammarFile
    from logscope.model import Occurrence

_INTACT = {
    "whole": "whole",
    "partial": "complete values, but a field that such records have is missing",
    "cut": "cut inside a value, or too early",
    "rejoined": "cut, and completed by a following line",
}


def listing(extra: Iterable[str | Path] = ()) -> Report:
    """Return the loaded grammars in the order they are asked, with their events and prefixes."""
    known = grammars.load(extra)
    table = _table(known.files)
    samples = sum(row["samples"] for row in table.rows)
    headline = f"{len(table.rows)} grammars, {len(known.events)} events, {samples} samples, all read as they say."
    return Report("grammar list", headline, tables={"grammars": table}, facts={"events": known.events})


def _table(files: list[GrammarFile]) -> Table:
    """Return grammars as a table."""
    columns = [Column("grammar", always=True), Column("title"), Column("events", align="right", always=True)]
    columns += [Column("samples", align="right"), Column("names", "event names"), Column("prefixes"), Column("path")]
    rows = []
    for file in files:
        names = list(dict.fromkeys(dialect.event for dialect in file.dialects))
        prefixes = [form.name for form in file.prefixes]
        numbers = {"events": len(names), "samples": len(file.samples)}
        rows.append({"grammar": file.name, "title": file.title, **numbers, "names": names, "path": file.path})
        rows[-1]["prefixes"] = prefixes or None
    return Table([column for column in columns if any(row[column.name] is not None for row in rows)], rows)


def grammar_text(name: str, extra: Iterable[str | Path] = ()) -> str:
    """Return the text of a loaded grammar's file.

    Raises
    ------
    GrammarError
        no loaded grammar has this name.

    """
    files = {file.name: file for file in grammars.load(extra).files}
    if name not in files:
        near = did_you_mean(name, files)
        raise GrammarError(f"no grammar is called '{name}'", help=near or f"there are: {', '.join(files)}")
    return Path(files[name].path).read_text(encoding="utf-8")


def checked(paths: Iterable[str | Path]) -> Report:
    """Load grammar files, each with all its samples, and together with the shipped ones; say what they hold.

    Raises
    ------
    InputError, GrammarError
        one cannot be read, or does not load.

    """
    files = [grammars.load_file(path) for path in paths]
    grammars.load(paths)
    table = _table(files)
    total = sum(row["samples"] for row in table.rows)
    headline = f"{total} sample{'' if total == 1 else 's'} read as they say: {', '.join(map(str, paths))}"
    return Report("grammar check", headline, tables={"grammars": table})


def suggestion(logs: Sequence[str], extra: Iterable[str | Path] = (), most: int = 12) -> str:
    """Return a grammar file proposed from the commonest lines that no grammar reads.

    Raises
    ------
    InputError
        a log cannot be read.
    NothingRecognised
        no form of line recurs, or none of those that do has ``key=value`` fields.

    """
    from logscope.reading import sources_of  # noqa: PLC0415 - what explains a line reads no log
    from logscope.scan.labels import Labels  # noqa: PLC0415
    from logscope.sources.unwrap import unwrap  # noqa: PLC0415

    known = grammars.load(extra)
    forms = Forms(known)
    sources = sources_of(logs)
    for source in sources:
        for block in unwrap(source.blocks(), source.warn, lambda: Labels(known)):
            if block is not None:
                forms.take(source.name, block.data, block.line)
    found = forms.commonest(most)
    text = proposal(known, found, "my-prints")
    if text is None:
        said = [
            f"{one.share:.0%} are like {one.file}:{one.line}  {one.text}" for one in found[:3] if one.share >= LEAST
        ]
        why = (
            "none of the lines that no grammar reads holds key=value"
            if said
            else "next to no line recurs that none reads"
        )
        raise NothingRecognised("no grammar can be proposed", why=why, note="\n".join(said) or None)
    return text


def snippet() -> str:
    """Return the Python that makes a model print what logscope reads best."""
    return resources.files("logscope").joinpath("snippets", "eagle3_debug.py.txt").read_text(encoding="utf-8")


class Explanation(NamedTuple):
    """How a line was read, and a message with a caret for every place where reading stopped."""

    report: Report
    stops: list[Message]


def explain_line(line: str, extra: Iterable[str | Path] = ()) -> Explanation:
    """Say how a line is read: what stands before the record, the event, every field, and what is wrong with it.

    Raises
    ------
    NothingRecognised
        nothing in it is a record, with the place where reading stopped.

    """
    known = grammars.load(extra)
    data = line.rstrip("\r\n").encode("utf-8", "surrogateescape")
    parser = Pending(known)
    for number, text in enumerate(data.split(b"\n")):
        parser.line(text, Here(1 + number, data.find(text) if number else 0))
    parser.close()
    found = [(one.line, one.offset, one.prefix, one.payload) for one in parser.out]
    records = [one for one in found if one[3].kind != "mark"]
    if not any(one[3].kind == "event" for one in records):
        raise NothingRecognised(_why_nothing(known, data, records, parser))
    report = Report("grammar explain", "; ".join(_sentence(known, data, one) for one in records) + ".")
    stops: list[Message] = []
    for number, one in enumerate(records, 1):
        name = "record" if len(records) == 1 else f"record_{number}"
        report.tables[name] = _fields(one)
        if one[3].column is not None:
            stops.append(_stop(data, one))
        elif one[3].reason:
            report.notes.append(one[3].reason)
    if stops:
        places = [(stop.where.column if stop.where else None, stop.why) for stop in stops]
        report.facts["stopped"] = [{"column": column, "reason": reason} for column, reason in places]
    report.accounting = parser.accounting
    return Explanation(report, stops)


def _sentence(known: Grammar, data: bytes, one: Occurrence) -> str:
    """Return one record in words."""
    _, offset, prefix, payload = one
    if payload.kind != "event":
        return f"text at column {_column(data, offset)} that is no record: {payload.reason or payload.kind}"
    text = data[offset:].decode("latin-1")
    sources = [
        file.name
        for file in known.files
        for dialect in file.dialects
        if dialect.event == payload.event and text.startswith(dialect.anchors)
    ]
    site = f" of site {payload.site}" if payload.site else ""
    glued = ", glued to the text before it" if not prefix.peeled else ""
    taught = _taught(known, data[:offset])
    by = f" by {' and '.join(dict.fromkeys(sources))}" if sources else ""
    where = f"{payload.event}{site} at column {_column(data, offset)}{taught}{glued}"
    return f"{where}, read{by}: {_INTACT[payload.intact]}"


def _taught(known: Grammar, before: bytes) -> str:
    """Name the taught prefixes that a text begins with."""
    taught = [f"'{form.name}'" for form, _ in layers(before.decode("latin-1"), 0, known.prefixes) if form.taught]
    return f", behind the prefix {' and '.join(taught)}" if taught else ""


def _fields(one: Occurrence) -> Table:
    """Return all that was read of a record: first what stood before it, then its columns, then its other fields."""
    _, _, prefix, payload = one
    before = ("time", "origin", "pid", "dp_rank", "pp_rank", "tp_rank", "ep_rank")
    columns = ("role", "layer", "shape", "rows", "width", "norm", "head", "mode")
    said = [(name, getattr(prefix, name), "prefix") for name in before]
    said += [(name, value, "prefix") for name, value in prefix.extra]
    said += [("capture_hidden_mode" if name == "mode" else name, getattr(payload, name), "column") for name in columns]
    rows = [
        {"field": name, "value": list(value) if isinstance(value, tuple) else value, "from": source}
        for name, value, source in said
        if value is not None
    ]
    rows += [{"field": name, "value": value, "from": "field"} for name, value in payload.fields.items()]
    return Table([Column("field", always=True), Column("value", always=True), Column("from")], rows, payload.event)


def _stop(data: bytes, one: Occurrence) -> Message:
    """Return where reading stopped, and why."""
    _, offset, _, payload = one
    text = data.decode("utf-8", "surrogateescape")
    return Message(
        "reading stopped here",
        Where("line", 1, _column(data, offset + (payload.column or 0)), text),
        why=payload.reason,
    )


def _why_nothing(known: Grammar, data: bytes, records: list[Occurrence], parser: Pending) -> Message:
    """Return the message for a line without any event: a caret where reading stopped, or what there is to look for."""
    text = data.decode("utf-8", "surrogateescape")
    if not records:
        if parser.accounting.quoted:
            return Message(
                "the line holds text that looks like a record, but it is quoted: part of a value or of source code",
                Where("line", 1, 1, text, len(text)),
            )
        firsts = (file.dialects[0].anchors[0] for file in known.files if file.dialects)
        anchors = ", ".join(f"'{anchor}'" for anchor in firsts)
        return Message(
            "no record in this line",
            Where("line", 1, 1, text, max(1, len(text))),
            why="none of the texts a record begins with stands in it" + _taught(known, data),
            help=f"records begin with {anchors} ... ('logscope grammar list' shows all events);\n"
            "a grammar of your own adds others",
        )
    _, offset, _, payload = records[0]
    column = _column(data, offset + (payload.column or 0))
    return Message(
        f"this looks like a record ({payload.event}) and is none",
        Where("line", 1, column, text),
        why=payload.reason,
        help="a grammar of your own can add the form: copy the nearest event with 'logscope grammar show NAME'",
    )


def _column(data: bytes, at: int) -> int:
    """Return the 1-based column, in characters, of a byte."""
    return len(data[:at].decode("utf-8", "surrogateescape")) + 1
