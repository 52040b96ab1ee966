"""Frames and saved runs: the same run, as tables, and again from disk."""

from __future__ import annotations

import json

import polars as pl
import pytest
from conftest import CASE_LOGS, real_log
from polars.testing import assert_frame_equal

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


@pytest.mark.parametrize("log", CASE_LOGS, ids=lambda p: p.stem)
def test_saved_cases(log, tmp_path) -> None:
    """Copies, variants, ranks without a column and damaged records survive saving: looked up, and made anew."""
    run = ls.load(log)
    run.save(tmp_path / "a.run")
    again = ls.open(tmp_path / "a.run")
    assert again.events.equals(run.events, null_equal=True)
    assert frames.events(again).equals(run.events, null_equal=True)
    assert again.passes.equals(run.passes, null_equal=True)
    assert again.unparsed.equals(run.unparsed, null_equal=True)


def test_several_files_stay_in_order(tmp_path) -> None:
    """The events of several files come one file after the other, as they were read."""
    run = ls.load(real_log("style-alt"), real_log("healthy-topk1"))
    run.save(tmp_path / "a.run")
    assert ls.open(tmp_path / "a.run").events.equals(run.events, null_equal=True)


def test_a_query_of_a_saved_run_makes_no_passes(tmp_path, run: ls.Run, monkeypatch) -> None:
    """Events are looked up in the tables: a gigabyte of log is asked without an object per record."""
    run.save(tmp_path / "a.run")
    query = "select site, event, layer, count(*) as n, avg(norm) as mean from events group by 1, 2, 3 order by 1, 2, 3"
    want = run.sql(query)
    again = ls.open(tmp_path / "a.run")
    monkeypatch.setattr("logscope.saved.Tables.items", lambda *_: pytest.fail("items were made"))
    assert_frame_equal(again.sql(query), want)


def test_a_damaged_table_is_told(tmp_path, run: ls.Run) -> None:
    """A table that is damaged behind its sound end is told when it is read."""
    run.save(tmp_path / "a.run")
    path = tmp_path / "a.run" / "payloads.parquet"
    data = bytearray(path.read_bytes())
    data[10:2000] = bytes(1990)
    path.write_bytes(data)
    with pytest.raises(ls.SavedRunError, match="damaged"):
        _ = ls.open(tmp_path / "a.run").passes
    with pytest.raises(ls.SavedRunError, match="damaged"):
        _ = ls.open(tmp_path / "a.run").events


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
    values["logscope_run"] = 1
    manifest.write_text(json.dumps(values))
    with pytest.raises(ls.SavedRunError, match="an older logscope"):
        ls.open(tmp_path / "a.run")


def test_event_batches_add_up(run: ls.Run) -> None:
    """Written in batches, the table is the same as in one piece."""
    pieces = list(frames.event_batches(run.labelled(), size=500))
    assert len(pieces) > 5
    assert pl.concat(pieces).equals(run.events, null_equal=True)
