"""Charts from reduced points: Altair charts for notebooks, and a self-contained block for a page.

This module is responsible for what is drawn how: marks, colours, interaction, and the library inlined into a page. It
must not know how points are chosen. Altair writes Vega-Lite, the most complete declarative form with hover, zoom and
linked filters; vl-convert carries the library itself, so that a page needs no network. Both are an extra
(``logscope-eagle3[report]``): a page without them has tables only.
"""

from __future__ import annotations

import base64
import hashlib
import json
from bisect import bisect_left
from functools import cache
from typing import TYPE_CHECKING, Any

from logscope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logscope.model import Finding, Place
    from logscope.report import Report

# Okabe and Ito's palette: told apart by every kind of colour vision; shapes and dashes repeat what colours say.
PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#6f6f6f", "#000000"]
PHASES = ["extend", "verify", "decode", "draft_extend", "idle", "unknown"]
_MISSING = "charts need altair and vl-convert-python"
_HELP = "pip install 'altair>=5.5' 'vl-convert-python>=1.7' (the extra [report])"


def _altair() -> Any:
    """Import altair when a chart is wanted.

    Raises
    ------
    UsageError
        the extra is not installed.

    """
    try:
        import altair as alt  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError(_MISSING, why=str(error), help=_HELP) from error
    return alt


def available() -> bool:
    """Tell whether the extra for charts is installed."""
    from importlib.util import find_spec  # noqa: PLC0415 - needed here only

    return find_spec("altair") is not None and find_spec("vl_convert") is not None


def _rows(report: Report, name: str) -> list[dict[str, Any]]:
    table = report.tables.get(name)
    return list(table.rows) if table is not None else []


def _data(alt: Any, rows: Sequence[dict[str, Any]]) -> Any:
    with alt.utils.schemapi.debug_mode(False):  # checked value by value, a page of points takes seconds
        return alt.Data(values=[{key: _plain(value) for key, value in row.items()} for row in rows])


def _plain(value: Any) -> Any:
    """Round what is only looked at; a page of ten thousand points is half as large for it."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def norms(points: Report) -> Any:
    """Return rms per state over passes; the phases and states are chosen by clicking the legends.

    Raises
    ------
    UsageError
        altair is not installed.

    """
    alt = _altair()
    rows = _rows(points, "rms")
    by_state = alt.selection_point(fields=["state"], bind="legend", name="state")
    by_phase = alt.selection_point(fields=["phase"], bind="legend", name="phase")
    states = sorted({row["state"] for row in rows}, key=_state_order)
    base = (
        alt.Chart(_data(alt, rows), title="rms per state over passes")
        .mark_point(size=18, filled=True)
        .encode(
            x=alt.X("pass:Q", title="pass", scale=alt.Scale(zero=False, nice=False)),
            y=alt.Y("rms:Q", title="rms = norm / sqrt(rows x width)", scale=alt.Scale(zero=False)),
            color=alt.Color("state:N", scale=alt.Scale(domain=states, range=_colours(len(states))), title="state"),
            shape=alt.Shape("phase:N", scale=alt.Scale(domain=PHASES), title="phase"),
            opacity=alt.condition(by_state & by_phase, alt.value(0.9), alt.value(0.04)),
            tooltip=_tips(alt, "pass", "phase", "role", "state", "rms", "file", "line"),
        )
        .add_params(by_state, by_phase)
        .properties(width="container", height=280)
        .interactive()
    )
    odd = _rows(points, "odd")
    if not odd:
        return base
    marks = (
        alt.Chart(_data(alt, odd))
        .mark_text(text="✕", size=14, color="#b3261e", baseline="bottom")
        .encode(
            x=alt.X("pass:Q", title="pass"),
            y=alt.value(276),
            tooltip=_tips(alt, "pass", "phase", "state", "value", "file", "line"),
        )
    )
    # A chart without any point has no scale to draw.
    return alt.layer(*([base] if rows else []), marks).properties(width="container", height=280)


def captures(points: Report) -> Any:
    """Return hidden captures per target pass as a timeline: a stretch with fewer or more stands out.

    Raises
    ------
    UsageError
        altair is not installed.

    """
    alt = _altair()
    rows = [{**row, "end": row["last"] + 1} for row in _rows(points, "captures")]
    return (
        alt.Chart(_data(alt, rows), title="hidden captures per target pass")
        .mark_bar(height=18)
        .encode(
            x=alt.X("first:Q", title="pass", scale=alt.Scale(zero=False, nice=False)),
            x2="end:Q",
            y=alt.Y("phase:N", title=None, sort=PHASES),
            color=alt.Color(
                "compared:N",
                title="captures in the pass",
                scale=alt.Scale(
                    domain=["as usual", "fewer than usual", "more than usual"], range=["#56B4E9", "#D55E00", "#CC79A7"]
                ),
            ),
            tooltip=_tips(
                alt, "first", "last", "passes", "phase", "captures", "usual", "width", "states", "file", "line"
            ),
        )
        .properties(width="container", height=30 * max(1, len({row["phase"] for row in rows})))
        .interactive(bind_y=False)
    )


def rows(points: Report) -> Any:
    """Return rows of every target pass, coloured by how many states were joined.

    Raises
    ------
    UsageError
        altair is not installed.

    """
    alt = _altair()
    found = [{**row, "joined": _joined(row["states"])} for row in _rows(points, "rows")]
    by_phase = alt.selection_point(fields=["phase"], bind="legend", name="phase")
    return (
        alt.Chart(_data(alt, found), title="rows and joined states per target pass")
        .mark_point(size=22, filled=True)
        .encode(
            x=alt.X("pass:Q", title="pass", scale=alt.Scale(zero=False, nice=False)),
            y=alt.Y("rows:Q", title="rows", scale=alt.Scale(type="symlog"), axis=alt.Axis(tickCount=5)),
            color=alt.Color("joined:N", title="joined width", scale=alt.Scale(range=PALETTE)),
            shape=alt.Shape("phase:N", scale=alt.Scale(domain=PHASES), title="phase"),
            opacity=alt.condition(by_phase, alt.value(0.9), alt.value(0.05)),
            tooltip=_tips(alt, "pass", "phase", "rows", "joined", "file", "line"),
        )
        .add_params(by_phase)
        .properties(width="container", height=220)
        .interactive()
    )


def _joined(states: int | None) -> str:
    return f"{states} states x hidden" if states else "not printed"


def accept(answer: Report) -> Any:
    """Return accept len over the log, one line per process, with the levels it moved between.

    Raises
    ------
    UsageError
        altair is not installed.

    """
    alt = _altair()
    points: list[dict[str, Any]] = []
    for series in answer.facts.get("series", []):
        name = series.get("origin") or "server"
        if series.get("engine"):
            name = f"{name} engine {series['engine']}"
        points.extend(
            {"process": name, "file": series.get("file"), "segment": series.get("segment"), **point}
            for point in series["points"]
        )
    # From nothing accepted to all there can be: what scatters is not to look like a fall.
    shown = [point["accept_len"] for point in points if point["accept_len"] is not None]
    known = [row["maximum"] for row in _rows(answer, "accept") if row.get("maximum")]
    low, high = min([1.0, *shown]), max([2.0, *shown, *known])
    levels = [
        {**row, "process": row.get("origin") or "server", "end": row.get("last_line", row["first_line"])}
        for row in _rows(answer, "levels")
    ]
    by_process = alt.selection_point(fields=["process"], bind="legend", name="process")
    line = (
        alt.Chart(_data(alt, points), title="accept len over the log (1.00 = nothing accepted)")
        .mark_line(point=alt.OverlayMarkDef(size=20))
        .encode(
            x=alt.X("line:Q", title="line of the log", scale=alt.Scale(zero=False, nice=False)),
            y=alt.Y("accept_len:Q", title="accept len", scale=alt.Scale(domain=[low, high], nice=False)),
            color=alt.Color("process:N", title="process", scale=alt.Scale(range=PALETTE)),
            strokeDash=alt.StrokeDash("process:N", legend=None),
            opacity=alt.condition(by_process, alt.value(1), alt.value(0.1)),
            tooltip=_tips(alt, "time", "line", "process", "accept_len", "min", "max", "running", "token_usage"),
        )
        .add_params(by_process)
    )
    rule = (
        alt.Chart(_data(alt, levels))
        .mark_rule(size=3, opacity=0.5)
        .encode(
            x="first_line:Q",
            x2="end:Q",
            y="accept_len_mean:Q",
            tooltip=_tips(alt, "level", "accept_len_mean", "change_percent", "from", "first_line", "lines"),
        )
    )
    return alt.layer(line, *([rule] if levels else [])).properties(width="container", height=240).interactive()


def ranks(points: Report) -> Any:
    """Return the norms of copies that differ from the other writers' copies.

    Raises
    ------
    UsageError
        altair is not installed.

    """
    alt = _altair()
    rows_ = [{**row, "off": _off(row)} for row in _rows(points, "ranks")]
    return (
        alt.Chart(_data(alt, rows_), title="copies that disagree with the other writers'")
        .mark_point(size=40, filled=True)
        .encode(
            x=alt.X("pass:Q", title="pass", scale=alt.Scale(zero=False, nice=False)),
            y=alt.Y("off:Q", title="off by (%)"),
            color=alt.Color("state:N", scale=alt.Scale(range=PALETTE), title="state"),
            tooltip=_tips(alt, "pass", "phase", "state", "norm", "majority", "off", "file", "line"),
        )
        .properties(width="container", height=180)
        .interactive()
    )


def _off(row: dict[str, Any]) -> float | None:
    norm, majority = row["norm"], row["majority"]
    return 100 * (norm / majority - 1) if norm is not None and majority else None


def _tips(alt: Any, *names: str) -> list[Any]:
    types = {"rms": "Q", "accept_len": "Q", "accept_len_mean": "Q", "off": "Q", "norm": "Q", "majority": "Q"}
    return [
        alt.Tooltip(f"{name}:{types[name]}", format=".4~f") if name in types else alt.Tooltip(f"{name}:N")
        for name in names
    ]


def _state_order(state: str) -> tuple[int, int, str]:
    """Sort states as they follow each other in a pass: embedding, layers, join, draft."""
    if state == "embedding":
        return (0, 0, "")
    if state.startswith("layer "):
        number = state.removeprefix("layer ")
        return (1, int(number) if number.lstrip("-").isdigit() else 0, state)
    order = ["joined state", "draft input", "fc output", "draft output"]
    return (2, order.index(state) if state in order else len(order), state)


def _colours(count: int) -> list[str]:
    return [PALETTE[index % len(PALETTE)] for index in range(count)]


def of_page(points: Report, answer: Report | None, findings: Sequence[Finding] = ()) -> list[tuple[str, str, Any]]:
    """Return the charts of a page that have something to show: identifier, description, Vega-Lite specification.

    Findings are marked where they begin: by their line, or by the pass that is printed there.
    """
    found: list[tuple[str, str, Any]] = []
    lines = [(one.rule, one.where) for one in findings if one.where is not None and one.severity != "note"]
    passes = sorted((row["file"], row["line"], row["pass"]) for row in _rows(points, "rms") or _rows(points, "rows"))
    begun = [(rule, where, bisect_left(passes, (where.file, where.line))) for rule, where in lines]
    at_pass = [
        (rule, where, passes[at][2]) for rule, where, at in begun if at < len(passes) and passes[at][0] == where.file
    ]
    if _rows(points, "captures"):
        found.append(("captures", "Hidden captures per target pass over the run", captures(points)))
    if _rows(points, "rms"):
        found.append(("norms", "Rms of every state over passes, by phase", _marked(norms(points), at_pass)))
    if _rows(points, "rows"):
        found.append(("rows", "Rows and joined width of every target pass", _marked(rows(points), at_pass)))
    if answer is not None and any(series["points"] for series in answer.facts.get("series", [])):
        at_line = [(rule, where, where.line) for rule, where in lines]
        found.append(("accept", "Accept len over the log", _marked(accept(answer), at_line)))
    if _rows(points, "ranks"):
        found.append(("ranks", "Copies that disagree between writers", ranks(points)))
    return [(name, words, chart.to_dict(validate=False)) for name, words, chart in found]


def _marked(chart: Any, marks: Sequence[tuple[str, Place, int]]) -> Any:
    """Return a chart with a dashed line and a code where each finding begins."""
    if not marks:
        return chart
    alt = _altair()
    data = _data(alt, [{"rule": rule, "where": str(where), "at": at} for rule, where, at in marks])
    base = alt.Chart(data).encode(x=alt.X("at:Q"), tooltip=_tips(alt, "rule", "where"))
    rule = base.mark_rule(color="#b3261e", strokeDash=[4, 3])
    text = base.mark_text(color="#b3261e", align="left", baseline="top", dx=3).encode(text="rule:N", y=alt.value(2))
    return alt.layer(chart, rule, text).properties(width="container", height=chart.height)


def differences(answer: Report) -> Any:
    """Return, for every state and phase of two runs, how many pairs are equal, within tolerance, and beyond it.

    Raises
    ------
    UsageError
        altair is not installed.

    """
    alt = _altair()
    kinds = ["equal", "within", "beyond"]
    found = [
        {
            "state": f"{row['role']} {row['state']}",
            "phase": row["phase"],
            "what": kind,
            "pairs": row[kind],
            "of": row["pairs"],
        }
        for row in _rows(answer, "states")
        for kind in kinds
        if row.get(kind)
    ]
    order = list(dict.fromkeys(row["state"] for row in found))
    pick = alt.selection_point(fields=["what"], bind="legend", name="what")
    return (
        alt.Chart(_data(alt, found), title="pairs of states: equal, within tolerance, beyond it")
        .mark_bar()
        .encode(
            x=alt.X("pairs:Q", title="pairs", stack="normalize", axis=alt.Axis(format="%")),
            y=alt.Y("state:N", title=None, sort=order),
            row=alt.Row("phase:N", title=None, sort=PHASES, header=alt.Header(labelAngle=0, labelAlign="left")),
            color=alt.Color(
                "what:N",
                title="pairs",
                sort=kinds,
                scale=alt.Scale(domain=kinds, range=["#0072B2", "#E69F00", "#D55E00"]),
            ),
            order=alt.Order("what:N", sort="descending"),
            opacity=alt.condition(pick, alt.value(1), alt.value(0.2)),
            tooltip=[alt.Tooltip(f"{name}:N") for name in ("state", "phase", "what", "pairs", "of")],
        )
        .add_params(pick)
        .properties(width=420, height=alt.Step(18))
    )


def of_diff(answer: Report) -> list[tuple[str, str, Any]]:
    """Return the chart of a diff's page, if any state was compared."""
    if not any(row.get("pairs") for row in _rows(answer, "states")):
        return []
    return [
        ("differences", "Pairs of states that are equal, within tolerance, or beyond it", differences(answer).to_dict())
    ]


_DRAW = """
const dark = matchMedia('(prefers-color-scheme: dark)').matches;
for (const script of document.querySelectorAll('script[data-chart]')) {
  const place = document.getElementById(script.dataset.chart);
  const options = {actions: false, renderer: 'svg', theme: dark ? 'dark' : undefined,
    config: {background: 'transparent', axis: {labelFontSize: 12, titleFontSize: 12},
      legend: dark ? {symbolBaseFillColor: '#ddd', symbolBaseStrokeColor: '#ddd'} : {}}};
  vegaEmbed(place, JSON.parse(script.textContent), options)
    .then(() => place.setAttribute('data-drawn', 'yes'))
    .catch(error => { place.textContent = 'This chart could not be drawn: ' + error; });
}
"""


@cache
def library() -> str:
    """Return the drawing library with the code that draws every chart of a page.

    Raises
    ------
    UsageError
        vl-convert is not installed.

    """
    try:
        import vl_convert  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError(_MISSING, why=str(error), help=_HELP) from error
    text: str = vl_convert.javascript_bundle(_DRAW)
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def embedded(specifications: Iterable[tuple[str, str, Any]]) -> tuple[str, str, list[str]]:
    """Return the charts' places, the scripts that draw them, and what a content security policy must allow.

    The data of a chart stands in a script element of type ``application/json``: it is text, and what the log says in
    it cannot end the element, since ``<`` is written as an escape.
    """
    figures: list[str] = []
    scripts: list[str] = []
    for name, words, specification in specifications:
        place = f"chart-{name}"
        figures.append(
            f'<figure class="chart"><div id="{place}" role="img" aria-label="{words}" tabindex="0"></div></figure>'
        )
        data = json.dumps(specification, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
        scripts.append(f'<script type="application/json" data-chart="{place}">{data}</script>')
    if not figures:
        return "", "", []
    code = library()
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    scripts.append(f'<script type="module">{code}</script>')
    return "\n".join(figures), "\n".join(scripts), [f"'sha256-{digest}'", "'unsafe-eval'"]
