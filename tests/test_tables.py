"""The tables: every record stands once, batches and files add up, the frames say what the objects say."""

from __future__ import annotations

import io
import json
import math
from bisect import bisect
from dataclasses import replace
from datetime import datetime
from itertools import accumulate, pairwise, permutations
from typing import Any, NamedTuple

import polars as pl
import pytest
from conftest import CASE_LOGS, real_bytes, real_log
from doors import batches, tables
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal, assert_series_equal

import logscope as ls
from logscope.model import ForwardPass, Segment, ServerEvent
from logscope.tables import frames
from logscope.tables.event import Event
from logscope.tables.schema import EVENTS, FORWARDS, TABLES, UNPARSED
from logscope.tables.tables import Tables, value_keys

LOGS = {log.stem: log.read_bytes() for log in CASE_LOGS} | {
    name: real_bytes(name) for name in ("style-alt", "cuda-graph")
}
NAMED = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}


class Read(NamedTuple):
    """A log's bytes, the run they make, and its event records as its objects say them."""

    data: bytes
    run: ls.Run
    rows: list[dict[str, Any]]


@pytest.fixture(scope="module", params=LOGS)
def read(request: pytest.FixtureRequest) -> Read:
    """Return a log that was read."""
    run = ls.load(io.BytesIO(LOGS[request.param]))
    return Read(LOGS[request.param], run, event_records(run))


def prints(item: Any) -> list[Any]:
    """Return every place where an item is printed."""
    if isinstance(item, ServerEvent):
        return [item.occurrence]
    return [one for record in item.records for one in (record.first, *record.others, *record.variants)]


def event_records(run: ls.Run) -> list[dict[str, Any]]:
    """Return the fixed event records of a run's objects, in file order."""
    found = []
    for item in run.items:
        if isinstance(item, Segment) or (isinstance(item, ServerEvent) and item.payload.kind == "unparsed"):
            continue
        made = item if isinstance(item, ForwardPass) else None
        for line, offset, prefix, said in prints(item):
            row = {
                "file": item.file, "line": line, "offset": offset, "segment": item.segment, "during": item.during,
                "time": prefix.time, "origin": prefix.origin, "pid": prefix.pid, "dp_rank": prefix.dp_rank,
                "pp_rank": prefix.pp_rank, "tp_rank": prefix.tp_rank, "ep_rank": prefix.ep_rank, "site": said.site,
                "event": said.event, "role": said.role or (made and made.role), "phase": made and made.phase,
                "evidence": made and made.evidence, "pass": made and made.number, "layer": said.layer,
                "rows": said.rows, "width": said.width, "shape": said.shape, "norm": said.norm, "head": said.head,
                "capture_hidden_mode": said.mode, "intact": said.intact, "fields": said.fields | dict(prefix.extra),
            }  # fmt: skip
            found.append(json.loads(json.dumps(row), parse_constant=NAMED.__getitem__))
    return sorted(found, key=lambda row: (run.files.index(row["file"]), row["offset"]))


def as_time(printed: str | None) -> datetime | None:
    """Return a printed time that is whole, as it stands there."""
    try:
        return datetime.fromisoformat(printed or "").replace(tzinfo=None)
    except ValueError:
        return None


def plainly(value: Any) -> Any:
    """Return a value of nested dataclasses as one that compares by what it says; nan is nan."""
    if hasattr(value, "__dataclass_fields__"):
        return type(value).__name__, [plainly(getattr(value, name)) for name in value.__dataclass_fields__]
    if isinstance(value, (list, tuple)):
        return [plainly(one) for one in value]
    return repr(value)


def test_every_record_stands_once_where_it_is_printed(read: Read) -> None:
    """The tables hold as many prints as the scan counted, each on the line of its byte, in order and fully typed."""
    found = read.run.tables
    assert found.prints.height + found.server.height == read.run.accounting.records
    places = sorted(
        (one[1], one[0]) for item in read.run.items if not isinstance(item, Segment) for one in prints(item)
    )
    ends = list(accumulate(len(line) + 1 for line in read.data.split(b"\n")))
    assert [line for _, line in places] == [bisect(ends, offset) + 1 for offset, _ in places]
    assert all(offset < behind for (offset, _), (behind, _) in pairwise(places))
    for name, schema in TABLES.items():
        assert getattr(found, name).schema == schema
    for table in (found.records, found.prints):
        assert_series_equal(table["values_key"], value_keys(table["values"]), check_names=False)
    assert found.passes["key"].is_sorted()
    assert found.passes["key"].is_unique().all()


def test_events_are_what_the_objects_say(read: Read) -> None:
    """The fixed event records and the frame say the same as the objects, cell by cell, in file order."""
    want, found = read.rows, read.run.tables
    assert list(map(json.dumps, found.event_rows())) == list(map(json.dumps, want))
    cells = [
        row
        | {
            "time": as_time(row["time"]),
            "time_printed": row["time"],
            "shape": row["shape"] and "x".join(map(str, row["shape"])),
            "norm": row["norm"] if row["norm"] is None else float(row["norm"]),
            "head": row["head"] and list(map(float, row["head"])),
            "accept_len": row["fields"].get("accept_len") if row["event"] == "decode_stats" else None,
            "fields": json.dumps(row["fields"], ensure_ascii=False),
        }
        for row in want
    ]
    assert_frame_equal(read.run.events, pl.DataFrame(cells, EVENTS).select(*EVENTS), check_exact=True)


def test_a_typed_event_is_made_of_a_row(read: Read) -> None:
    """The row is a valid event, and gives itself again; nan is a number in it."""
    for row, want in zip(read.run.tables.event_rows(), read.rows, strict=True):
        event = Event.model_validate(row)
        assert json.loads(event.model_dump_json(by_alias=True)) == want
        assert event.norm is None or isinstance(event.norm, float)


def test_passes_are_what_the_objects_say(read: Read) -> None:
    """One row per forward pass, in order of first lines."""
    rows = []
    for one in read.run.forwards:
        join, taken = one.join and one.join.payload, one.input and one.input.payload
        layers = [record.payload.layer for record in one.captures if record.payload.layer is not None]
        rows.append((
            one.file, one.line, one.segment, one.number, one.role, one.phase, one.evidence, one.reason, one.during,
            one.complete, as_time(one.time), one.time, one.rows, len(one.captures), layers,
            join and join.width, join and join.norm, join and join.mode, taken and taken.width, taken and taken.norm,
            max(record.copies for record in one.records), one.expected_copies,
            sum(len(record.variants) for record in one.records),
        ))  # fmt: skip
    assert_frame_equal(read.run.passes, pl.DataFrame(rows, FORWARDS, orient="row"), check_exact=True)


def test_unparsed_are_what_the_objects_say(read: Read) -> None:
    """One row per text that no event matched, with the reason; the scan counted as many."""
    rows = [
        (one.file, one.line, one.occurrence[1], one.payload.event, one.payload.column, one.payload.reason)
        for one in read.run.server
        if one.payload.kind == "unparsed"
    ]
    assert len(rows) == read.run.accounting.unparsed
    assert_frame_equal(read.run.unparsed, pl.DataFrame(rows, UNPARSED, orient="row"))


def test_batches_add_up(read: Read) -> None:
    """Read in small blocks and added up, in one go or one after the other, a log is what it is in one piece.

    But for what shows how many write: that is whatever shows it first.
    """
    parts = batches(read.data, step=max(len(read.data) // 7, 500), file=read.run.files[0])
    whole = Tables.concat(parts)
    segments = [replace(one, writers_evidence=None) for one in read.run.segments]
    assert plainly([replace(one, writers_evidence=None) for one in whole.segments]) == plainly(segments)
    objects = (
        [plainly(item) for item in of.items() if not isinstance(item, Segment)] for of in (whole, read.run.tables)
    )
    assert next(objects) == next(objects)
    assert list(whole.event_rows()) == read.rows
    assert_frame_equal(frames.forwards(frames.Held(whole)), read.run.passes)
    stepwise = Tables()
    for part in parts:
        stepwise = Tables.concat([stepwise, part])
    for name in TABLES:
        columns = [column for column in TABLES[name] if column not in ("head", "prefix", "said", "group")]
        assert_frame_equal(getattr(stepwise, name)[columns], getattr(whole, name)[columns])
    assert list(stepwise.event_rows()) == read.rows


def test_files_add_up() -> None:
    """Runs of several files follow each other; one part is itself, none is nothing."""
    logs = real_log("style-alt"), real_log("cuda-graph")
    one, two = map(ls.load, logs)
    both = ls.load(*logs)
    assert both.files == [*one.files, *two.files]
    want = [*event_records(one), *event_records(two)]
    assert list(both.tables.event_rows()) == want
    assert_frame_equal(both.passes, pl.concat([one.passes, two.passes]))
    assert both.tables.passes["key"].is_unique().all()
    assert Tables.concat([one.tables]) is one.tables
    assert not list(Tables.concat([]).items())


def test_lists_that_are_the_same_are_shared() -> None:
    """Batches of one reading hold the same heads and prefixes; so does their sum."""
    parts = batches(real_bytes("style-alt"), step=20000)
    assert len(parts) > 2
    whole = Tables.concat(parts)
    assert all(part.heads is whole.heads and part.prefixes is whole.prefixes for part in parts)


def test_sql_asks_for_the_columns_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query sees the documented frames; what is not named is not looked up; a mistake is the user's, with the tables."""
    run = ls.load(real_log("healthy-topk1"))
    asked: set[str] = set()
    column = frames.Held.column
    monkeypatch.setattr(frames.Held, "column", lambda self, table, name: asked.add(name) or column(self, table, name))
    query = "select layer, count(*) as n from events where event = 'layer_capture' group by layer order by layer"
    assert run.sql(query).rows() == [(3, 266), (31, 266), (59, 266)]
    assert not asked & {"values", "norm", "fields", "time", "offset"}
    assert run.sql("select count(*) as n from passes where role = 'target'").item() == 266
    with pytest.raises(ls.UsageError, match="not understood") as error:
        run.sql("select nothing from nowhere")
    assert "events, passes, unparsed" in str(error.value.message.note)
    with pytest.raises(ls.UsageError) as error:
        run.sql("select nrom from events")
    assert "capture_hidden_mode" in str(error.value.message.help)
    debug = real_bytes("healthy-topk1").count(b"EAGLE3_DEBUG[")
    assert run.sql("select COUNT(*) from events where site is not null").item() == debug
    assert run.sql("select COUNT(*) from events").item() == run.accounting.records > debug
    assert run.sql("select * from events limit 2").columns == list(EVENTS)


def test_a_time_is_a_datetime_where_all_of_it_is_printed() -> None:
    """A clock without a date is no point in time; zones are not converted."""
    times = {
        "2026-02-10T12:00:00": "2026-02-10 12:00:00",
        "2026-02-10T12:00:00.25": "2026-02-10 12:00:00.250000",
        "2026-02-10T12:00:00.271828182Z": "2026-02-10 12:00:00.271828",
        "2026-02-10T12:00:00+02:00": "2026-02-10 12:00:00",
        "02-10T12:00:00": None,
        "12:00:00": None,
        None: None,
    }
    found = frames.as_time(pl.Series(list(times), dtype=pl.String))
    assert [None if time is None else str(time) for time in found] == list(times.values())


def test_accept_len_is_a_column() -> None:
    """What decode lines say stands in a column of its own, and nothing else has it."""
    printed = [
        float(line.split(b"accept len: ")[1].split(b",")[0]) if b"accept len: " in line else None
        for line in real_bytes("healthy-topk1").split(b"\n")
    ]
    found = ls.load(real_log("healthy-topk1")).events
    assert found["accept_len"].to_list() == [printed[line - 1] for line in found["line"]]
    assert found["accept_len"].drop_nulls().len() == sum(value is not None for value in printed) > 5


numbers = st.floats(width=16) | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.none() | st.lists(numbers, max_size=5), max_size=20))
def test_keys_of_values(lists: list[list[float] | None]) -> None:
    """Equal keys are equal values, whatever stands beside them: 0 is -0, nan is nan; none have none."""
    keys = value_keys(pl.Series(lists, dtype=pl.List(pl.Float64)))
    said = [tuple("nan" if value != value else value + 0.0 for value in one or []) for one in lists]
    for at, key in enumerate(keys):
        assert [other == key for other in keys] == [other == said[at] for other in said]
        assert (key is None) == (not lists[at])
        assert key == value_keys(pl.Series([lists[at]], dtype=pl.List(pl.Float64)))[0]


def test_keys_of_many_values_differ() -> None:
    """Numbers of few bits have keys that differ all the same, also when the same numbers change places."""
    lists = [list(values) for values in permutations([1.0, 2.0, 0.5, -1.0, 0.25, 4.0, -2.0, 8.0], 5)]
    assert len(set(value_keys(pl.Series(lists, dtype=pl.List(pl.Float64))))) == len(lists) == 6720


def test_a_text_is_read_when_it_is_asked_for() -> None:
    """What a server row says may be kept as text; nan has a name in its fields; without a reader that is told."""
    nan = b"[2026-02-10 12:00:00] Decode batch, #running-req: 1, token usage: nan, accept len: 2.50\n"
    found = tables(real_bytes("healthy-topk1") + nan)
    assert found.fields(found.server.height - 1).items() >= {("token_usage", "nan"), ("accept_len", 2.5)}
    texts = {row: found.said[said] for row, said in enumerate(found.server["said"])}
    texts = {row: text for row, text in texts.items() if isinstance(text, bytes)}
    assert texts
    for row, text in texts.items():
        assert found.payload(row).event == found.server["event"][row] == "http_access"
        assert text.endswith(f"{found.fields(row)['status']} OK".encode())
    found.read = None
    with pytest.raises(TypeError, match="read"):
        found.payload(next(iter(texts)))
