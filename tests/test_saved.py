"""Saved runs: the same tables again from disk, small, and asked without reading more than a query names."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import CASE_LOGS, real_bytes, real_log
from polars.testing import assert_frame_equal
from test_tables import plainly

import logscope as ls
from logscope.tables import frames
from logscope.tables.saved import Saved, save, write_events
from logscope.tables.tables import Tables


@pytest.fixture(scope="module")
def tables() -> Tables:
    """Return the tables of a real run, read once."""
    return ls.load(real_log("healthy-topk1")).tables


@pytest.mark.parametrize("log", [*CASE_LOGS, real_log("style-alt")], ids=lambda p: p.parent.name + p.stem)
def test_a_saved_run_is_the_run(log: Path, tmp_path: Path) -> None:
    """Everything is there again: looked up column by column, and as tables."""
    tables = ls.load(log).tables
    save(tables, tmp_path / "a.run", {"warnings": ["one"]})
    saved = Saved(tmp_path / "a.run")
    held = frames.Held(tables)
    for made in (frames.events, frames.forwards, frames.unparsed):
        assert_frame_equal(made(saved), made(held))
    assert (saved.more, saved.files) == ({"warnings": ["one"]}, tables.files)
    again = saved.tables()
    assert [plainly(item) for item in again.items()] == [plainly(item) for item in tables.items()]
    for name in ("records", "prints", "passes"):
        assert_frame_equal(
            getattr(again, name).drop("head", strict=False), getattr(tables, name).drop("head", strict=False)
        )


def test_what_became_of_the_bytes_is_kept(tmp_path: Path) -> None:
    """An opened run counts the bytes, lines and records of its log, also when it was saved from an opened one."""
    run = ls.load(real_log("healthy-topk1"))
    data = real_bytes("healthy-topk1")
    run.save(tmp_path / "a.run")
    ls.open(tmp_path / "a.run").save(tmp_path / "b.run")
    for name in ("a.run", "b.run"):
        opened = ls.open(tmp_path / name)
        assert (opened.accounting.bytes, opened.accounting.lines) == (len(data), data.count(b"\n"))
        assert opened.accounting == run.accounting
        assert opened.accounting.records > data.count(b"EAGLE3_DEBUG[")


def test_several_files_stay_in_order(tmp_path: Path) -> None:
    """The events of several files come one file after the other, as they were read."""
    tables = ls.load(real_log("style-alt"), real_log("cuda-graph")).tables
    save(tables, tmp_path / "a.run", {})
    assert_frame_equal(frames.events(Saved(tmp_path / "a.run")), tables.events())


def test_what_is_said_once_is_written_once(tmp_path: Path) -> None:
    """Eight ranks that print the same cost a place each, and their text once; lines and offsets are written as steps."""
    log = next(log for log in CASE_LOGS if log.stem.startswith("36a"))
    tables = ls.load(log).tables
    save(tables, tmp_path / "a.run", {})
    found = {path.stem: pl.read_parquet(path) for path in (tmp_path / "a.run").glob("*.parquet")}
    assert found["lines"].height == tables.prints.height + tables.server.height
    assert found["lines"]["values"].drop_nulls().len() == tables.prints["values"].drop_nulls().len() < 3
    assert found["payloads"].height <= len(tables.heads) + tables.server.height < tables.records.height
    assert found["lines"]["line"].max() < 10
    assert "values_key" not in found["records"].columns


def test_a_query_reads_the_columns_it_names(tmp_path: Path, tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events are looked up in the tables; first values and fields stay on disk."""
    save(tables, tmp_path / "a.run", {})
    asked: list[str] = []
    read = pl.read_parquet
    monkeypatch.setattr(pl, "read_parquet", lambda path, columns: asked.extend(columns) or read(path, columns=columns))
    query = "select site, event, layer, count(*) as n, avg(norm) as mean from events group by 1, 2, 3 order by 1, 2, 3"
    assert_frame_equal(frames.sql(Saved(tmp_path / "a.run"), query), frames.sql(frames.Held(tables), query))
    assert not {"values", "fields", "offset", "time"} & set(asked)


def test_a_damaged_table_is_told(tmp_path: Path, tables: Tables) -> None:
    """A table that is damaged behind its sound end is told when it is read."""
    save(tables, tmp_path / "a.run", {})
    path = tmp_path / "a.run" / "payloads.parquet"
    data = bytearray(path.read_bytes())
    data[10:2000] = bytes(1990)
    path.write_bytes(data)
    with pytest.raises(ls.SavedRunError, match="damaged"):
        Saved(tmp_path / "a.run").tables()
    with pytest.raises(ls.SavedRunError, match="damaged"):
        frames.events(Saved(tmp_path / "a.run"))


def test_what_is_no_saved_run_is_refused(tmp_path: Path, tables: Tables) -> None:
    """A missing, foreign, damaged, older or newer folder is a SavedRunError that says which, and what to do."""
    with pytest.raises(ls.SavedRunError, match="not a saved run"):
        Saved(tmp_path / "missing.run")
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("x")
    with pytest.raises(ls.SavedRunError, match="holds something"):
        save(tables, other, {})
    folder = tmp_path / "a.run"
    save(tables, folder, {})
    (folder / "passes.parquet").write_bytes(b"PAR1")
    with pytest.raises(ls.SavedRunError, match="damaged"):
        Saved(folder)
    save(tables, folder, {})
    assert Saved(folder).heads
    manifest = folder / "manifest.json"
    values = json.loads(manifest.read_text())
    for version, age in ((99, "newer"), (2, "an older")):
        manifest.write_text(json.dumps(values | {"logscope_run": version}))
        with pytest.raises(ls.SavedRunError, match=age) as error:
            Saved(folder)
        assert f"logscope.load({tables.files[0]!r}).save({str(folder)!r})" in str(error.value.message.help)


def test_events_are_written_batch_by_batch(tmp_path: Path, tables: Tables) -> None:
    """Written in batches, the table is the same as in one piece; what goes wrong on the way is raised as it is."""
    events = tables.events()
    write_events((events[start : start + 500] for start in range(0, events.height, 500)), tmp_path / "e.parquet")
    assert_frame_equal(pl.read_parquet(tmp_path / "e.parquet"), events)

    def broken() -> Any:
        yield events
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_events(broken(), tmp_path / "f.parquet")
    assert [path.name for path in tmp_path.iterdir() if path.name != "f.parquet"] == ["e.parquet"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_an_error_of_the_system(tables: Tables) -> None:
    """A disk that is full while a table is written is an OSError with its number."""
    with pytest.raises(OSError, match=r".") as error:
        write_events([tables.events()], Path("/dev/full"))
    assert error.value.errno in (errno.ENOSPC, errno.EACCES, errno.EPERM)
