"""The tutorial notebook: it runs from top to bottom in a fresh kernel and shows what it speaks of."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from pages import ROOT, need_modules

NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"


def cells() -> list[dict[str, Any]]:
    """Return the notebook's cells of code."""
    return [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def test_notebook_is_stored_without_outputs():
    """Nothing in the file can be out of date: outputs are made when it runs."""
    assert [cell["outputs"] for cell in cells()] == [[]] * len(cells())
    assert {cell["execution_count"] for cell in cells()} == {None}


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Run the notebook in a kernel of its own, in docs/, with nobody's settings; return the cells of code."""
    need_modules("nbclient", "ipykernel", "altair", "vl_convert")
    home = str(tmp_path_factory.mktemp("home"))
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        for name in ("HOME", "XDG_CONFIG_HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
            patch.setenv(name, home)
        # Jupyter's own packages warn about themselves (event loops, folders to come).
        warnings.simplefilter("ignore")
        import nbformat
        from nbclient import NotebookClient

        notebook = nbformat.read(NOTEBOOK, as_version=4)
        NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def shown(cells: list[dict[str, Any]], source: str) -> dict[str, Any]:
    """Return what the cell that ends in this source shows, by kind."""
    [cell] = [cell for cell in cells if cell["source"].endswith(source)]
    [output] = [output for output in cell["outputs"] if output["output_type"] == "execute_result"]
    data: dict[str, Any] = output["data"]
    return data


def test_notebook_runs(executed: list[dict[str, Any]]):
    """Every cell runs; none ends in an error."""
    assert len(executed) == len(cells())
    assert not [output for cell in executed for output in cell["outputs"] if output["output_type"] == "error"]


def test_run_and_reports_show_themselves(executed: list[dict[str, Any]]):
    """A run says what it holds; a report shows headline, findings and tables as HTML."""
    run = shown(executed, "\nrun")
    assert "stale-states" in "".join(run.get("text/html", run["text/plain"]))
    html = "".join(shown(executed, "\nreport")["text/html"])
    assert "N106" in html
    assert "<table" in html
    assert "3, 31, 59" in "".join(shown(executed, "run.captures()")["text/html"])


def test_notebook_gets_to_the_cause(executed: list[dict[str, Any]]):
    """The notebook ends where the tutorial does: rule N106 at line 73."""
    said = "".join(shown(executed, "str(first.where), first.help")["text/plain"])
    assert " ".join(said.split()).startswith("('N106', 'samples/stale-states/server.log:73',")


def test_charts_are_drawn(executed: list[dict[str, Any]]):
    """A chart is shown as a chart, not as the name of an object."""
    for source in ("run.plot.norms()", "run.plot.accept()"):
        assert any("vega" in kind or "html" in kind for kind in shown(executed, source))
