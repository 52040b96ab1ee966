"""The one value every question is answered with: headline, findings, tables, facts, accounting.

This module is responsible for :class:`Report` and its fixed JSON form. It must not know how a report is shown
(:mod:`logscope.render`), nor how a question comes to its answer (:mod:`logscope.asking`).

What a person sees first is :attr:`Report.screen`, a view of the same answer that no machine-readable form holds: a list
of sentences, :class:`Line` and :class:`Table`, the verdict first, worst first. :mod:`logscope.render.screen` sets it on
24 lines, cuts what is too much and says so (``and 31 more: -v``): evidence below the last lines first, then rows of
tables, then the last lines (those that are fine first). Notes, findings, tables, facts and accounting stand behind
``-v``, one table behind ``--table NAME``; ``-q`` shows headline and findings. Without a screen all is shown::

    report.screen = [
        "server.log   5,508 lines, all 5,472 records whole",   # a sentence: always shown, folded
        "",                                                    # an empty line
        Line("warning", "accept len", "1.04 of 4", chart=Chart([1.0, 1.2], low=1, high=4, worst=(0, 1))),
        Line("ok", "captured", "layers 3, 31, 59 in every extend and verify"),
        Line("error", "N106 draft-input", context.at(place), [
            "The draft reads the previous pass's state",       # below it: a sentence
            (":72", "joined", "norm 128.7467", "[0.0830 -0.1016 ...]"),    # rows of cells that follow each other
            (":73", "input", "norm 128.8214", "[-0.0674 0.0605 ...]"),     # are aligned
        ]),
        Table([Column("phase", ""), Column("passes", align="right")], rows),   # no title, no caption
    ]
    report.next = context.command("check")                     # "next: logscope check server.log     all tables: -v"
"""

from __future__ import annotations

import math
import os
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from logscope.model import Accounting, Finding, ForwardPass, Place, Segment, ServerEvent, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

SCHEMA = 1
# More logs than these are named by their folder.
MANY_LOGS = 3
Mark: TypeAlias = Literal["error", "warning", "ok", "unknown"]
Item: TypeAlias = Segment | ForwardPass | ServerEvent


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its key in the rows (and in the JSON), its heading, how it is set.

    ``unit`` is shown behind the heading; ``always`` columns are the last to go when a terminal is narrow. The cells of
    a ``spark`` column are lists of numbers (None where there is none), shown as a small chart and in JSON as they are.
    """

    name: str
    title: str | None = None
    align: Literal["left", "right"] = "left"
    unit: str | None = None
    always: bool = False
    spark: bool = False

    @property
    def heading(self) -> str:
        """The heading as shown."""
        title = self.title if self.title is not None else self.name.replace("_", " ")
        return f"{title} ({self.unit})" if self.unit else title


@dataclass(slots=True)
class Table:
    """Rows of plain values under named columns; ``caption`` says in one sentence how to read it."""

    columns: list[Column]
    rows: list[dict[str, Any]] = field(default_factory=list)
    title: str | None = None
    caption: str | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Iterate over the rows."""
        return iter(self.rows)

    def _repr_html_(self) -> str:
        """Return the table as a notebook shows it."""
        from logscope.render.html import fragment  # noqa: PLC0415 - only who shows a table pays for it

        return fragment(self)

    @property
    def frame(self) -> pl.DataFrame:
        """The rows as a polars frame."""
        import polars as pl  # noqa: PLC0415 - only who asks for a frame pays for polars

        names = [column.name for column in self.columns]
        return pl.DataFrame(
            {name: pl.Series(name, [row.get(name) for row in self.rows], strict=False) for name in names}
        )


@dataclass(slots=True)
class Chart:
    """Numbers in order, one character each, None where there is none; the axis goes from ``low`` to ``high``.

    ``worst`` (first, one behind the last) is set in brackets.
    """

    values: list[float | None]
    low: float | None = None
    high: float | None = None
    worst: tuple[int, int] | None = None


@dataclass(slots=True)
class Line:
    """One line of a first screen: its mark, what it is about, what is said of it, and the evidence below it.

    The texts of all lines begin in one column. ``mark`` None: nothing to judge. ``below`` holds sentences and rows of
    cells (tuples); ``chart`` stands behind the text.
    """

    mark: Mark | None
    name: str
    text: str = ""
    below: list[str | tuple[Any, ...]] = field(default_factory=list)
    chart: Chart | None = None


@dataclass(slots=True)
class Report:
    """The answer to one question about a run.

    kind
        the command's name: ``summarize``, ``captures``, ``check``, ``diff``, ...
    headline
        one sentence: the answer.
    findings
        ordered, the most causal first.
    notes
        short sentences a reader must know first, in order of importance.
    tables
        by name; the names and columns of ``summarize`` are fixed.
    facts
        plain values by name; some names are fixed.
    screen, next
        what a person sees first, and the command that follows; in no machine-readable form (see the module).
    """

    kind: str
    headline: str
    verdict: Verdict = "ok"
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tables: dict[str, Table] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    accounting: Accounting = field(default_factory=Accounting)
    screen: list[str | Line | Table] = field(default_factory=list)
    next: str | None = None

    @property
    def ok(self) -> bool:
        """True when no error and no warning stands. ``unknown`` is not a fault."""
        return self.verdict != "findings"

    def __rich__(self) -> Any:
        """Return the report as rich shows it."""
        from logscope.render.terminal import rich_report  # noqa: PLC0415 - only who shows a report pays for rich

        return rich_report(self)

    def _repr_html_(self) -> str:
        """Return the report as a notebook shows it."""
        from logscope.render.html import fragment  # noqa: PLC0415 - as above

        return fragment(self)

    def __str__(self) -> str:
        """Return the report as plain text: what the command prints into a pipe."""
        from logscope.render.terminal import plain_report  # noqa: PLC0415 - as above

        return plain_report(self)

    def as_dict(self) -> dict[str, Any]:
        """Return the fixed JSON form. Numbers JSON has no name for become ``"nan"``, ``"inf"``, ``"-inf"``."""
        facts = dict(self.facts)
        if self.notes:
            facts["notes"] = list(self.notes)
        if self.accounting.quoted:
            facts["quoted"] = self.accounting.quoted
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "verdict": self.verdict,
            "headline": self.headline,
            "findings": [finding.as_dict() for finding in self.findings],
            "tables": {name: [plain(row) for row in table.rows] for name, table in self.tables.items()},
            "facts": plain(facts),
            "accounting": self.accounting.as_dict(),
        }


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: tuples as lists, keys as text, nan and inf as their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=str)
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)


# A log of which less than one line in so many is known is hardly known; a shorter one is told by its lines.
_HARDLY, _SHORT = 20, 40


def is_hardly_known(found: Accounting) -> bool:
    """Tell whether so few lines are known that nothing follows from what is not in them."""
    return found.lines >= _SHORT and (found.lines - found.other_lines) * _HARDLY < found.lines


@dataclass(slots=True)
class Context:
    """What a query may ask of the run when it answers: files as given, accounting, warnings about the input.

    ``files`` are the names as the user gave them; ``warnings`` are sentences from the reader (a truncated archive);
    ``origins`` say where a fetched file came from, by file; ``unread`` are the commonest lines that no grammar reads:
    form and share, with the place of the first.
    """

    files: list[str] = field(default_factory=list)
    accounting: Accounting = field(default_factory=Accounting)
    warnings: list[str] = field(default_factory=list)
    origins: dict[str, dict[str, Any]] = field(default_factory=dict)
    unread: list[tuple[str, float, Place]] = field(default_factory=list)

    @property
    def hardly_known(self) -> str | None:
        """Say that next to nothing of a log is known, where that is so: then finding nothing proves nothing."""
        lines, other = self.accounting.lines, self.accounting.other_lines
        return f"only {lines - other:,} of {lines:,} lines are known" if is_hardly_known(self.accounting) else None

    def unread_lines(self) -> list[str]:
        """Return the commonest lines that no grammar reads, a sentence each."""
        return [f"{share:.0%} are like {self.at(place)}  {form}" for form, share, place in self.unread]

    def heading(self) -> str:
        """Return what opens a screen: the log's name, its lines, what became of its records."""
        found = self.accounting
        name = self.files[0] if len(self.files) == 1 else f"{len(self.files)} logs"
        kinds = zip(
            ("cut", "rejoined", "partial", "not understood"),
            (found.cut, found.rejoined, found.partial, found.unparsed), strict=True,
        )  # fmt: skip
        fates = ", ".join(f"{number:,} {kind}" for kind, number in kinds if number)
        whole = {0: "no record", 1: "1 record"}.get(found.records, f"all {found.records:,} records whole")
        return f"{name}   {found.lines:,} lines, {f'{found.records:,} records: {fates}' if fates else whole}"

    def at(self, place: Place | None) -> str:
        """Return where something stands: ``:73`` where one log is read, whose name is said once, else ``file:73``."""
        if place is None:
            return ""
        return f":{place.line}" if len(self.files) < 2 else str(place)

    def named(self, place: Place | None) -> str:
        """Return where something stands, with its file, as a screen needs it that has not named the log."""
        if place is None:
            return ""
        return f"{Path(place.file).name}:{place.line}" if len(self.files) < 2 else str(place)

    def short(self, line: Line) -> Line:
        """Return a line that names places as ``:73`` where one log is read."""
        if len(self.files) != 1:
            return line
        name = f"{self.files[0]}:"
        # What is said of the whole log (``server.log: the archive ends``) needs no name at all.
        return replace(
            line, **{key: getattr(line, key).replace(f"{name} ", "").replace(name, ":") for key in ("name", "text")}
        )

    def command(self, name: str) -> str | None:
        """Return the command that asks another question of the same logs; None when a pipe was read."""
        if not self.files or not all(map(os.path.exists, self.files)):
            return None
        logs = self.files
        if len(logs) > MANY_LOGS:
            folders = list(dict.fromkeys(map(os.path.dirname, logs)))
            logs = folders if len(folders) == 1 and folders[0] else ["LOG..."]
        return " ".join(["logscope", name, *(log if log == "LOG..." else shlex.quote(log) for log in logs)])
