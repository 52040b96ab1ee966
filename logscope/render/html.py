"""A report as HTML: a page that stands alone, or a fragment for a notebook.

This module is responsible for a page without script, without network and without anything of the log coming alive in
it: every text passes :func:`escape`, and the page forbids scripts besides. Light and dark follow the reader's system;
it prints in black on white. It must not know what a report means.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from logscope.model import Finding
from logscope.render import layout
from logscope.render.text import accounting_words, body_tables, cell, place, slots, table_title, visible
from logscope.report import Line, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logscope.model import Place
    from logscope.report import Report

# Colours pass WCAG AA on their grounds, and severity is always said in words beside its colour.
STYLE = """
.logscope{--ink:#1b1f24;--soft:#57606a;--ground:#fff;--line:#d0d7de;--stripe:#f6f8fa;
--error:#b3261e;--warning:#8a5300;--note:#0b57d0;--ok:#1a6b34;
color:var(--ink);background:var(--ground);font:15px/1.5 system-ui,sans-serif}
@media (prefers-color-scheme:dark){.logscope{--ink:#e6edf3;--soft:#9da7b1;--ground:#0d1117;--line:#30363d;
--stripe:#161b22;--error:#ff8f88;--warning:#f0b429;--note:#7ab7ff;--ok:#6fd08c}}
@media print{.logscope{--ink:#000;--soft:#333;--ground:#fff;--line:#999;--stripe:#fff}}
.logscope .headline{font-size:1.25em;font-weight:600;border-left:.3em solid var(--line);padding-left:.6em;margin:.6em 0}
.logscope .headline.ok{border-color:var(--ok)}.logscope .headline.findings{border-color:var(--error)}
.logscope .headline.unknown{border-color:var(--warning)}
.logscope .finding{border:1px solid var(--line);border-radius:6px;padding:.5em .8em;margin:.5em 0;break-inside:avoid}
.logscope .finding p{margin:.1em 0}.logscope .error b{color:var(--error)}.logscope .warning b{color:var(--warning)}
.logscope .note b{color:var(--note)}
.logscope dl{display:grid;grid-template-columns:max-content 1fr;gap:.1em .8em;margin:.3em 0}
.logscope dt,.logscope figcaption,.logscope .accounting{color:var(--soft)}
.logscope dd{margin:0;overflow-wrap:anywhere}
.logscope figure{margin:1.2em 0;overflow-x:auto}
.logscope figcaption b{color:var(--ink)}
.logscope table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.93em}
.logscope th,.logscope td{padding:.25em .7em;text-align:left;vertical-align:top;border-bottom:1px solid var(--line);
color:var(--ink);background:transparent}
.logscope td{max-width:32em;overflow-wrap:anywhere}
@media (max-width:700px){.logscope table{width:max-content}}
.logscope tbody tr:nth-child(even) td{background:var(--stripe)}
.logscope .n{text-align:right;white-space:nowrap;overflow-wrap:normal}
.logscope .chart>div{width:100%;min-height:120px}
.logscope a{color:var(--note)}.logscope nav a{margin-right:1em}
.logscope h1{overflow-wrap:anywhere;margin-bottom:0}
.logscope pre{overflow-x:auto;font:13px/1.45 ui-monospace,monospace;background:var(--stripe);padding:.6em;margin:.3em 0}
.logscope mark{background:var(--line);color:var(--ink)}
.logscope code{font-family:ui-monospace,monospace;overflow-wrap:anywhere}
"""
_HINT = (
    "Drag to move, scroll to zoom, double-click to reset; click a legend entry to see only it, shift-click for more; "
    "hover for file and line. Large runs are drawn reduced, extremes kept."
)
PAGE_STYLE = """
body{margin:0}
main.logscope{max-width:78rem;margin:0 auto;padding:1rem;min-height:100vh;box-sizing:border-box}
:root{color-scheme:light dark;background:#fff}
@media (prefers-color-scheme:dark){:root{background:#0d1117}}
"""


def escape(text: str) -> str:
    """Return safe text as HTML shows it, also inside an attribute."""
    return html.escape(visible(text), quote=True)


def page(
    reports: Sequence[Report],
    title: str | None = None,
    *,
    made: str | None = None,
    charts: tuple[str, str, Sequence[str]] = ("", "", ()),
    contexts: Mapping[Place, Sequence[tuple[int, str, bool]]] | None = None,
) -> str:
    """Return one page that holds the reports one after the other, the first one's headline at the top.

    title, made
        what it is about (the logs), and when and with what it was made; they open the page.
    charts
        places of charts, the scripts that draw them, and what the page's policy must allow for them (see charts.py);
        they stand behind the first report's findings.
    contexts
        the lines around the places of findings (number, text, whether it is the place itself), shown at the end of
        the page and linked from the findings.

    """
    name = escape(title or f"logscope {reports[0].kind}")
    figures, scripts, allowed = charts
    names = {where: f"line-{number}" for number, where in enumerate(contexts or {}, 1)}
    drawn = (
        f'<details open id="charts"><summary>Charts</summary>\n<p>{_HINT}</p>\n{figures}\n</details>' if figures else ""
    )
    sections = [f"<h1>{name}</h1>", *([f'<p class="accounting">{escape(made)}</p>'] if made else [])]
    sections += [_section(report, 2, names, "" if index else drawn) for index, report in enumerate(reports)]
    targets = [(f"report-{report.kind}", report.kind) for report in reports]
    targets[1:1] = [("charts", "charts")] if figures else []
    targets += [("lines", "lines of the log")] if contexts else []
    if len(targets) > 1:
        # Below the verdict, which comes first.
        links = " ".join(f'<a href="#{anchor}">{escape(words)}</a>' for anchor, words in targets)
        at = sections[-len(reports)].index("</p>", sections[-len(reports)].index('class="headline')) + len("</p>")
        sections[-len(reports)] = f"{sections[-len(reports)][:at]}\n<nav>{links}</nav>{sections[-len(reports)][at:]}"
    if contexts:
        sections.append(_contexts(contexts, names))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    if scripts:
        policy += f"; script-src {' '.join(allowed)}; img-src data:"
        sections.append(scripts)
    body = "\n".join(sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{name}</title>\n<style>{STYLE}{PAGE_STYLE}</style>\n</head>\n"
        f'<body>\n<main class="logscope">\n{body}\n</main>\n</body>\n</html>\n'
    )


def fragment(shown: Report | Table | Finding) -> str:
    """Return a report, a table or a finding as a piece of a notebook's page, with the style it needs."""
    if isinstance(shown, Finding):
        body = _finding(shown, {})
    else:
        body = _table("", shown) if isinstance(shown, Table) else _section(shown, 3)
    return f'<style>{STYLE}</style>\n<div class="logscope">\n{body}\n</div>'


def _section(report: Report, level: int, names: Mapping[Place, str] | None = None, figures: str = "") -> str:
    """Return one report; findings link to the lines ``names`` has a place for; figures stand before the tables."""
    out = [
        "<section>" if names is None else f'<section id="report-{escape(report.kind)}">',
        f"<h{level}>{escape(report.kind)}</h{level}>",
        f'<p class="headline {_color(report)}">{escape(report.headline)}</p>',
        *(_finding(finding, names or {}) for finding in report.findings),
    ]
    if report.notes:
        out += ["<ul>", *(f"<li>{escape(note)}</li>" for note in report.notes), "</ul>"]
    if figures:
        out.append(figures)
    out += [_table(name, table) for name, table in body_tables(report).items()]
    if report.facts:
        pairs = "".join(
            f"<dt>{escape(name)}</dt><dd>{escape(cell(value))}</dd>" for name, value in report.facts.items()
        )
        out.append(f"<details><summary>Facts</summary><dl>{pairs}</dl></details>")
    if report.accounting.lines:
        out.append(f'<p class="accounting">{escape(accounting_words(report.accounting))}</p>')
    out.append("</section>")
    return "\n".join(out)


def _color(report: Report) -> str:
    """Return the class of a headline: no fault that a reader names stands in the colour of what is fine."""
    marks = {line.mark for line in report.screen if isinstance(line, Line)}
    return "findings" if marks & {"error", "warning"} else report.verdict


def _contexts(contexts: Mapping[Place, Sequence[tuple[int, str, bool]]], names: Mapping[Place, str]) -> str:
    """Return the lines around every place a finding names."""
    out = ['<section id="lines">', "<h2>lines of the log</h2>"]
    for where, lines in contexts.items():
        out.append(f'<figure id="{names[where]}"><figcaption><b>{escape(place(where))}</b></figcaption><pre>')
        for number, text, wanted in lines:
            line = f"{number:>8}  {escape(text)}"
            out.append(f"<mark>{line}</mark>" if wanted else line)
        out.append("</pre></figure>")
    return "\n".join([*out, "</section>"])


def _finding(finding: Finding, names: Mapping[Place, str]) -> str:
    """Return one finding."""
    where = ""
    if finding.where is not None:
        where = f" <code>{escape(place(finding.where))}</code>"
        if finding.where in names:
            where = f' <a href="#{names[finding.where]}">{where.strip()}</a>'
    pairs = "".join(f"<dt>{slot}</dt><dd>{escape(text)}</dd>" for slot, text in slots(finding))
    return (
        f'<article class="finding {finding.severity}"><p><b>{finding.severity} {escape(finding.rule)}</b>{where}</p>'
        f"<p>{escape(finding.message)}</p>" + (f"<dl>{pairs}</dl>" if pairs else "") + "</article>"
    )


def _table(name: str, table: Table) -> str:
    """Return one table with its caption."""
    caption = f" {escape(table.caption)}" if table.caption else ""
    head = f"<figure><figcaption><b>{escape(table_title(name, table))}</b>{caption}</figcaption>"
    if not table.rows:
        return head + "<p>(no rows)</p></figure>"
    columns = layout.prepare(table)
    marks = [' class="n"' if column.right else "" for column in columns]
    heads = "".join(
        f'<th scope="col"{mark}>{escape(column.heading)}</th>' for column, mark in zip(columns, marks, strict=True)
    )
    rows = "\n".join(
        "<tr>" + "".join(f"<td{mark}>{escape(text)}</td>" for text, mark in zip(row, marks, strict=True)) + "</tr>"
        for row in zip(*(column.texts for column in columns), strict=True)
    )
    return f"{head}\n<table><thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></figure>"
