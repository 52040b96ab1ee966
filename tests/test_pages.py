"""Pages in a real browser: drawn without a network, without errors, and with nothing of a log coming alive."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import DATA, need_tool, real_log

from logscope.cli import main

REAL = {
    name: str(real_log(name)) for name in ("healthy-topk1", "fault-stale-states", "fault-nan-layer30", "style-logger")
}
CONTRACT = str(DATA / "draft-config.json")


def need_package(name: str) -> None:
    """Skip with the reason when an extra is missing; LOGSCOPE_TEST_ALL=1 turns the skip into a failure."""
    if importlib.util.find_spec(name) is None:
        if os.environ.get("LOGSCOPE_TEST_ALL") == "1":
            pytest.fail(f"{name} is not installed, and LOGSCOPE_TEST_ALL=1 asks for every test")
        pytest.skip(f"{name} is not installed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Start the system's chromium, headless."""
    need_package("playwright")
    need_package("altair")
    need_package("vl_convert")
    chromium = need_tool("chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
        started = play.chromium.launch(executable_path=chromium, args=flags)
        yield started
        started.close()


def write(arguments: list[str], path: Path) -> None:
    """Write a page with the command, in this process."""
    assert main([*arguments, "-q", "-o", str(path)]) in (0, 1)


def hostile(tmp_path: Path) -> Path:
    """Return a log whose names, values and lines try to become part of the page."""
    evil = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=2>\"'`${7*7}"
    lines = [
        f"[2026-02-10 14:00:00] server_args=ServerArgs(model_path={evil!r}, tp_size=1, speculative_algorithm='EAGLE3', "
        "speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4, disable_cuda_graph=True)",
        "[2026-02-10 14:00:01] The server is fired up and ready to roll!",
        "x" * 1_000_000,
    ]
    site = "a<b>&\"'x"
    for number in range(12):
        lines.append(
            f"EAGLE3_DEBUG[{site}] layer 3 capture: shape=torch.Size([21, 7168]), residual_is_none=False, "
            f"norm=nan, first5=[{number}.5, nan], note='</script><script>window.hacked=3</script>'"
        )
        lines.append(
            f"[2026-02-10 14:00:{number + 10} TP0] Decode batch, #running-req: 1, #token: 84, token usage: 0.00, "
            f"accept len: 1.00, accept rate: 0.00, <b>key</b>: {number}, cuda graph: False, "
            "gen throughput (token/s): 54.8, #queue-req: 0"
        )
    lines.append(f"RuntimeError: {evil}")
    path = tmp_path / "a<img src=x onerror=alert(1)>.log"
    path.write_text("\n".join(lines) + "\n")
    return path


PAGES = {
    "healthy": ["report", REAL["healthy-topk1"]],
    "stale": ["report", REAL["fault-stale-states"], "--contract", CONTRACT],
    "check": ["check", REAL["fault-nan-layer30"], "--contract", CONTRACT],
    "diff": ["diff", REAL["healthy-topk1"], REAL["fault-nan-layer30"]],
    "hostile": [],
}


@pytest.mark.parametrize("name", PAGES)
def test_page_opens(browser: Any, tmp_path: Path, name: str) -> None:
    """Each page opens without a console error or a request, wide and narrow; every chart is drawn, nothing sticks out."""
    path = tmp_path / "page.html"
    write(PAGES[name] or ["report", str(hostile(tmp_path))], path)
    for width in (1400, 500):
        page = browser.new_page(viewport={"width": width, "height": 1000})
        said: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message, into=said: into.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error, into=said: into.append(str(error)))
        page.on("request", lambda request, into=asked: into.append(request.url))
        page.goto(path.as_uri())
        places = page.locator(".chart > div")
        count = places.count()
        assert count >= 1
        for index in range(count):
            places.nth(index).locator("svg").first.wait_for(timeout=20_000)
            assert places.nth(index).get_attribute("data-drawn") == "yes"
        assert said == []
        assert asked == [path.as_uri()]
        assert page.evaluate("window.hacked") is None
        assert page.evaluate("document.images.length") == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= width + 1
        folder = os.environ.get("LOGSCOPE_SCREENSHOTS")
        if folder:
            page.screenshot(path=Path(folder) / f"{name}-{width}.png", full_page=True)
        page.close()


def test_legend_filters(browser: Any, tmp_path: Path) -> None:
    """A click on a legend entry leaves only its marks in full strength; a double click brings all back."""
    path = tmp_path / "page.html"
    write(PAGES["check"], path)
    page = browser.new_page(viewport={"width": 1400, "height": 1200})
    page.goto(path.as_uri())
    chart = page.locator("#chart-norms")
    chart.locator("svg").wait_for(timeout=20_000)

    def faint() -> int:
        return page.evaluate(
            "[...document.querySelectorAll('#chart-norms .mark-symbol path')]"
            ".filter(mark => parseFloat(mark.getAttribute('opacity') ?? '1') < 0.5).length"
        )

    assert faint() == 0
    chart.locator("text=layer 3").first.click()
    page.wait_for_timeout(300)
    assert faint() > 10
    page.close()


def test_findings_link_to_their_lines(tmp_path: Path) -> None:
    """Every finding with a place links to the raw lines around it, the line itself marked."""
    path = tmp_path / "page.html"
    write(PAGES["stale"], path)
    text = path.read_text(encoding="utf-8")
    targets = re.findall(r'href="#(line-\d+)"', text)
    assert targets
    for target in targets:
        assert f'id="{target}"' in text
    block = text.split(f'id="{targets[0]}"')[1].split("</figure>")[0]
    assert block.count("<mark>") == 1
    assert "EAGLE3_DEBUG[eagle3] forward" in block.split("<mark>")[1].split("</mark>")[0]


def test_page_without_charts_still_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra for charts a page has its tables, and no script at all."""
    monkeypatch.setattr("logscope.render.charts.available", lambda: False)
    path = tmp_path / "page.html"
    write(PAGES["healthy"], path)
    text = path.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "<table>" in text


def test_size_of_a_large_run_is_bounded() -> None:
    """However many passes there are, a series keeps a bounded number of points, its extremes among them, in order."""
    from doors import tables

    from logscope.queries.points import SERIES, Charts
    from logscope.report import Context

    line = "EAGLE3_DEBUG[dsv2] layer 3 capture: shape=torch.Size([4, 8]), norm={:.4f}, first5=[{:.4f}]\n"
    norms = [1.0 + number / 1e4 + (50.0 if number == 2_777 else 0.0) for number in range(4_000)]
    question = Charts()
    parts = [
        question.partial(tables("".join(line.format(norm, norm) for norm in norms[start : start + 1000]).encode()))
        for start in range(0, 4_000, 1000)
    ]
    report = question.report(question.combine(parts), Context())
    kept = report.tables["rms"].rows
    assert 0 < len(kept) <= 2 * SERIES * len({row["phase"] for row in kept})
    assert max(point["rms"] for point in kept) == pytest.approx(norms[2_777] / 32**0.5)
    assert report.headline == "4000 passes drawn."


@pytest.mark.parametrize("kind", ["norms", "captures", "rows", "accept", "ranks"])
def test_notebook_charts(kind: str) -> None:
    """``run.plot`` gives Altair charts that know their data."""
    need_package("altair")
    import altair as alt

    import logscope as ls

    run = ls.load(REAL["style-logger"])
    chart = getattr(run.plot, kind)()
    assert isinstance(chart, alt.TopLevelMixin)
    assert chart.to_dict()["$schema"].startswith("https://vega.github.io/schema/vega-lite/")
