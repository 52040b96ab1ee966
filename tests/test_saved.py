"""Frames and saved runs: the same run, as tables, and again from disk."""

from __future__ import annotations

import json

import polars as pl
import pytest
from conftest import CASE_LOGS, real_log

import logscope as ls
from logscope import frames


@pytest.fixture(scope="module")
def run() -> ls.Run:
    """Return a real run, read once."""
    return ls.load(real_log("healthy-topk1"))


def test_event_frame_has_every_event(run: ls.Run) -> None:
    """The events table has one row per record, in file order, under the documented schema."""
    assert run.events.schema == frames.EVENTS_SCHEMA
    assert run.events.height == run.accounting.records
    assert run.events["offset"].is_sorted()
    assert run.passes.schema == frames.PASSES_SCHEMA
    assert run.passes.height == len(run.forwards)
    assert run.unparsed.height == 0


def test_event_frame_equals_event_records(run: ls.Run) -> None:
    """The table and the fixed event records say the same, cell by cell."""
    for row, labelled in zip(run.events.iter_rows(named=True), run.labelled(), strict=True):
        record = labelled.as_dict()
        record["fields"] = json.dumps(record["fields"], ensure_ascii=False)
        record["shape"] = None if record["shape"] is None else "x".join(map(str, record["shape"]))
        assert row == record


def test_sql(run: ls.Run) -> None:
    """A query sees the tables; one that is not understood is the user's error, with the tables named."""
    found = run.sql(
        "select layer, count(*) as n from events where event = 'layer_capture' group by layer order by layer"
    )
    assert found.rows() == [(3, 266), (31, 266), (59, 266)]
    with pytest.raises(ls.UsageError, match="not understood"):
        run.sql("select nothing from nowhere")


@pytest.mark.parametrize("name", ["healthy-topk1", "style-alt", "fault-nan-layer30", "no-speculation", "cuda-graph"])
def test_saved_run_answers_the_same(name: str, tmp_path) -> None:
    """A saved run gives the same tables and the same answers as the log."""
    run = ls.load(real_log(name))
    run.save(tmp_path / "a.run")
    again = ls.open(tmp_path / "a.run")
    assert run.events.equals(again.events, null_equal=True)
    assert run.passes.equals(again.passes, null_equal=True)
    assert run.accounting == again.accounting
    assert run.summarize().as_dict() == again.summarize().as_dict()
    assert ls.load(tmp_path / "a.run").accounting == run.accounting


@pytest.mark.parametrize(
    "log", [log for log in CASE_LOGS if log.stem[:2] in ("09", "17", "22", "26", "36")], ids=lambda p: p.stem
)
def test_saved_cases(log, tmp_path) -> None:
    """Copies, variants, ranks without a column and damaged records survive saving."""
    run = ls.load(log)
    run.save(tmp_path / "a.run")
    assert ls.open(tmp_path / "a.run").events.equals(run.events, null_equal=True)


def test_saved_run_errors(tmp_path, run: ls.Run) -> None:
    """A missing, foreign, damaged or newer folder is a SavedRunError that says which."""
    with pytest.raises(ls.SavedRunError, match="not a saved run"):
        ls.open(tmp_path / "missing.run")
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("x")
    with pytest.raises(ls.SavedRunError, match="holds something"):
        run.save(other)
    run.save(tmp_path / "a.run")
    (tmp_path / "a.run" / "items.parquet").write_bytes(b"PAR1")
    with pytest.raises(ls.SavedRunError, match="damaged"):
        ls.open(tmp_path / "a.run")
    manifest = tmp_path / "a.run" / "manifest.json"
    values = json.loads(manifest.read_text())
    values["logscope_run"] = 99
    manifest.write_text(json.dumps(values))
    with pytest.raises(ls.SavedRunError, match="newer logscope"):
        ls.open(tmp_path / "a.run")


def test_event_batches_add_up(run: ls.Run) -> None:
    """Written in batches, the table is the same as in one piece."""
    pieces = list(frames.event_batches(run.labelled(), size=500))
    assert len(pieces) > 5
    assert pl.concat(pieces).equals(run.events, null_equal=True)
