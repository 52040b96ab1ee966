"""``logscope report`` and ``logscope rule``: several answers on one page, and the page of a rule.

This module is responsible for which answers stand on the page. It must not know what any of them says.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from logscope.cli.evidence import page_text
from logscope.cli.output import Target, redactor, show, target, write
from logscope.cli.reading import answers, explain, loading
from logscope.cli.session import OK
from logscope.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logscope.cli.options import Shared, Speaking

_FORMS = ("html", "md")
_SUFFIXES = {".html": "html", ".htm": "html", ".md": "md"}


def report_page(logs: Sequence[str], shared: Shared, contract: str | None) -> int:
    """Write one page with every question's answer, the check's first."""
    if shared.explain_python:
        call = f"run.check({contract!r})" if contract else "run.check()"
        lines = [
            *loading(logs, shared),
            "questions = (run.summarize, run.captures, run.norms, run.shapes, run.accept, run.errors, run.config)",
            f"print(page([{call}, *(ask() for ask in questions)]))",
        ]
        return explain(["from logscope.render.html import page", "", *lines])
    wanted = target(shared, _SUFFIXES, _FORMS)
    if wanted.form == "table":  # none was named
        wanted = replace(wanted, form="html")
    if wanted.path is None and sys.stdout.isatty():
        raise UsageError("a page is nothing for a terminal", help="-o report.html")
    from logscope.check import Checker  # noqa: PLC0415 - each command pays for its own imports only
    from logscope.queries.acceptance import Accept  # noqa: PLC0415
    from logscope.queries.captures import Captures  # noqa: PLC0415
    from logscope.queries.config import Config  # noqa: PLC0415
    from logscope.queries.errors import Errors  # noqa: PLC0415
    from logscope.queries.norms import Norms  # noqa: PLC0415
    from logscope.queries.points import Charts  # noqa: PLC0415
    from logscope.queries.shapes import Shapes  # noqa: PLC0415
    from logscope.queries.summarize import Summarize  # noqa: PLC0415
    from logscope.render.markdown import to_markdown  # noqa: PLC0415

    accept = Accept()
    queries: list[Any] = [
        Checker(contract), Summarize(), Captures(), Norms(), Shapes(), accept, Errors(), Config(), Charts(),
    ]  # fmt: skip
    *reports, points = answers(logs, shared, queries)
    if wanted.form == "html":
        title = f"logscope: {', '.join(logs)}"
        text = page_text(reports, shared, title, points=points, accept=reports[queries.index(accept)])
    else:
        if shared.redact:
            reports = redactor(shared).value(reports)
        text = "\n".join(map(to_markdown, reports))
    write(text, wanted, shared)
    return OK


def rule_page(code: str, speaking: Speaking) -> int:
    """Print the page of one rule, or the list of all."""
    from logscope.check import page, rules  # noqa: PLC0415 - each command pays for its own imports only
    from logscope.diffing import CODES  # noqa: PLC0415
    from logscope.report import Column, Report, Table  # noqa: PLC0415

    known = rules()
    needs = "two runs: logscope diff BASELINE CANDIDATE"
    if code.lower() == "list":
        columns = [
            Column("code", always=True),
            Column("name", always=True),
            Column("severity", always=True),
            Column("group"),
            Column("needs"),
        ]
        rows = [{column.name: getattr(rule, column.name) for column in columns} for rule in known.values()]
        rows += [
            {"code": code, "name": name, "severity": severity, "group": "diff", "needs": needs}
            for code, (name, severity) in CODES.items()
        ]
        return show(Report("rules", f"{len(rows)} rules", tables={"rules": Table(columns, rows)}), speaking, speaking)
    wanted = code.upper()
    if wanted not in known and wanted not in CODES:
        names = {rule.name: rule.code for rule in known.values()}
        if code.lower() not in names:
            near = did_you_mean(wanted, [*known, *CODES]) or did_you_mean(code.lower(), names)
            raise UsageError(f"no rule '{code}'", help=near or "logscope rule list")
        wanted = names[code.lower()]
    write(page(wanted).rstrip("\n") + "\n", Target("md"), speaking)
    return OK
