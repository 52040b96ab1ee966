"""What a page shows besides answers: the lines around every finding, and the charts.

This module is responsible for reading those lines a second time and for joining them and the charts to the answers.
It must not know what a rule means or how a chart is drawn.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logscope import __version__
from logscope.cli.output import redactor
from logscope.errors import LogscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logscope.cli.options import Shared
    from logscope.model import Finding, Place
    from logscope.report import Report

# Lines before and after the one a finding names, and characters of each that are shown.
AROUND = 3
LONGEST = 600
# Places whose lines are shown: a page is read by a person.
PLACES = 60


def contexts(reports: Sequence[Report]) -> dict[Place, list[tuple[int, str, bool]]]:
    """Return the lines around every place a finding names: number, text, whether it is the place.

    What cannot be read again (standard input, a log that is gone) has no lines: the finding still names its place.
    """
    from logscope.sources.excerpts import lines_around, read_again  # noqa: PLC0415 - pages only
    from logscope.sources.inputs import expand  # noqa: PLC0415

    places = [finding.where for report in reports for finding in report.findings if finding.where is not None]
    wanted: dict[str, list[Place]] = {}
    for where in list(dict.fromkeys(places))[:PLACES]:
        wanted.setdefault(where.file, []).append(where)
    found: dict[Place, list[tuple[int, str, bool]]] = {}
    for file, group in wanted.items():
        if not Path(file).is_file():
            continue
        try:
            (source,) = expand([file])
        except (LogscopeError, ValueError):
            continue
        numbers = sorted({where.line for where in group})
        lines: dict[int, str] = {}
        for line in lines_around(read_again(source), numbers, AROUND):
            if line is not None:
                text = line.text.decode("utf-8", "backslashreplace")
                lines[line.number] = text if len(text) <= LONGEST else text[:LONGEST] + " ..."
        for where in group:
            near = range(where.line - AROUND, where.line + AROUND + 1)
            found[where] = [(number, lines[number], number == where.line) for number in near if number in lines]
    return found


def drawn(
    points: Report | None,
    accept: Report | None,
    differences: Report | None = None,
    findings: Sequence[Finding] = (),
) -> tuple[str, str, list[str]]:
    """Return the charts of a page, or nothing when the extra for charts is not installed."""
    from logscope.render import charts  # noqa: PLC0415 - pages only

    if not charts.available():
        return "", "", []
    specifications = charts.of_page(points, accept, findings) if points is not None else []
    if differences is not None:
        specifications += charts.of_diff(differences)
    return charts.embedded(specifications)


def page_text(
    reports: Sequence[Report],
    shared: Shared,
    title: str,
    *,
    points: Report | None = None,
    accept: Report | None = None,
    differences: Report | None = None,
) -> str:
    """Return a page of answers with charts and the lines behind the findings; what --redact names is taken out."""
    from logscope.render.html import page  # noqa: PLC0415 - pages only

    around: Any = contexts(reports)
    if shared.redact:
        take_out = redactor(shared)
        shown = list(take_out.value(list(reports)))
        # The same redactor gives the same stand-ins to the places of the lines.
        around = dict(
            zip(
                (take_out.value(where) for where in around),
                ([(n, take_out.value(text), hit) for n, text, hit in lines] for lines in around.values()),
                strict=True,
            )
        )
        points, accept, differences = (
            None if one is None else take_out.value(one) for one in (points, accept, differences)
        )
        title = "logscope"
    else:
        shown = list(reports)
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    made = f"made {now} by logscope {__version__}"
    figures = drawn(points, accept, differences, shown[0].findings)
    return page(shown, title, made=made, charts=figures, contexts=around)
