"""The tables: what goes in comes out, batches add up, the frames say what the records say."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from itertools import pairwise, permutations
from typing import Any

import polars as pl
import pytest
from conftest import CASE_LOGS, real_log
from from_items import from_items, tables_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import logscope as ls
from logscope.model import Payload, Prefix, Record, Segment, ServerEvent
from logscope.tables import frames
from logscope.tables.event import Event
from logscope.tables.schema import EVENTS, FORWARDS, TABLES, UNPARSED
from logscope.tables.tables import Tables, value_keys

LOGS = [*CASE_LOGS, *map(real_log, ("style-alt", "cuda-graph"))]
NAMES = [log.stem if log in CASE_LOGS else log.parent.name for log in LOGS]


def plainly(value: Any) -> Any:
    """Return a value of nested dataclasses as one that compares by what it says; nan is nan."""
    if is_dataclass(value):
        return type(value).__name__, [plainly(getattr(value, one.name)) for one in fields(value)]
    if isinstance(value, (list, tuple)):
        return [plainly(one) for one in value]
    return repr(value)


@pytest.fixture(scope="module", params=LOGS, ids=NAMES)
def both(request: pytest.FixtureRequest) -> tuple[ls.Run, Tables]:
    """Return a log read the old way, and its tables."""
    run = ls.load(request.param)
    return run, from_items(run.items, files=list(run.files), accounting=run.accounting)


def test_what_goes_in_comes_out(both: tuple[ls.Run, Tables]) -> None:
    """The tables hold everything that segments, passes with their copies, and server lines say, in their order."""
    run, tables = both
    assert [plainly(item) for item in tables.items()] == [plainly(item) for item in run.items]
    for name, schema in TABLES.items():
        assert getattr(tables, name).schema == schema
    assert tables.passes["key"].is_sorted()


def test_events_are_what_the_records_say(both: tuple[ls.Run, Tables]) -> None:
    """The frame and the fixed event records say the same as the occurrences, cell by cell, in file order."""
    run, tables = both
    found = tables.events()
    assert found.schema == EVENTS
    want = [labelled.as_dict() for labelled in run.labelled()]
    assert list(tables.event_rows()) == want
    assert list(tables.event_rows(3, 7)) == want[3:7]
    for row, record in zip(found.iter_rows(named=True), want, strict=True):
        assert json.loads(row["fields"]) == record["fields"]
        assert row["time_printed"] == record["time"]
        assert [repr(value) for value in row["head"] or []] == [repr(float(value)) for value in record["head"] or []]
        assert row["shape"] == (None if record["shape"] is None else "x".join(map(str, record["shape"])))


def test_a_typed_event_is_made_of_a_row(both: tuple[ls.Run, Tables]) -> None:
    """The row is a valid event, and gives itself again; nan is a number in it."""
    _, tables = both
    for row in tables.event_rows():
        event = Event.model_validate(row)
        assert json.loads(event.model_dump_json(by_alias=True)) == row
        assert event.norm is None or isinstance(event.norm, float)


def test_passes_and_unparsed(both: tuple[ls.Run, Tables]) -> None:
    """One row per pass and per unparsed record, with what its objects say."""
    run, tables = both
    held = frames.Held(tables)
    found = frames.forwards(held)
    assert found.schema == FORWARDS
    assert_frame_equal(found.drop("time").rename({"time_printed": "time"}).select(run.passes.columns), run.passes)
    assert frames.unparsed(held).schema == UNPARSED
    assert_frame_equal(frames.unparsed(held), run.unparsed)


def spans(items: list[Any]) -> list[tuple[int, int]]:
    """Return the offsets of the first and the last print of every item."""
    found = []
    for item in items:
        records = [Record(item.occurrence)] if isinstance(item, ServerEvent) else getattr(item, "records", [])
        offsets = [one[1] for record in records for one in (record.first, *record.others, *record.variants)]
        found.append((min(offsets, default=0), max(offsets, default=0)))
    return found


def test_batches_add_up(both: tuple[ls.Run, Tables]) -> None:
    """Cut where nothing goes on behind the cut, and added up again, a run is the same; each segment is told once."""
    run, tables = both
    items = [item for item in run.items if not isinstance(item, Segment)]
    at, last = spans(items), 0
    cuts = [0]
    for number, (begin, end) in enumerate(at):
        if begin > last and number > cuts[-1] + len(items) // 4 and all(begin <= first for first, _ in at[number:]):
            cuts.append(number)
        last = max(last, end)
    parts = [
        from_items([*run.segments, *items[start:stop]], key=1000 * start)
        for start, stop in pairwise([*cuts, len(items)])
    ]
    whole = Tables.concat(parts)
    assert [plainly(item) for item in whole.items()] == [plainly(item) for item in run.items]
    assert_frame_equal(whole.events(), tables.events())
    known: set[int] = set()
    streamed = [item for part in parts for item in part.items(known=known)]
    assert [item for item in streamed if isinstance(item, Segment)] == run.segments


def test_files_add_up() -> None:
    """Runs of several files follow each other; lists that are the same are shared."""
    run = ls.load(real_log("style-alt"), real_log("cuda-graph"))
    one, two = (
        from_items([item for item in run.items if item.file == file], key=at << 40) for at, file in enumerate(run.files)
    )
    whole = Tables.concat([one, two])
    assert whole.files == run.files
    assert list(whole.event_rows()) == [labelled.as_dict() for labelled in run.labelled()]
    assert Tables.concat([one]) is one
    assert not list(Tables.concat([]).items())


def test_copies_may_be_left_out() -> None:
    """Without copies those remain that are damaged or say something else; the numbers of copies stay."""
    tables = tables_of(next(log for log in CASE_LOGS if log.stem.startswith("36a")))
    every, few = list(tables.items()), list(tables.items(copies=False))
    assert [getattr(item, "records", None) and item.records[0].copies for item in few] == [
        getattr(item, "records", None) and item.records[0].copies for item in every
    ]
    assert sum(len(r.others) for item in few if hasattr(item, "records") for r in item.records) < sum(
        len(r.others) for item in every if hasattr(item, "records") for r in item.records
    )


def test_sql_asks_for_the_columns_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query sees the documented frames; what is not named is not looked up; a mistake is the user's, with the tables."""
    held = frames.Held(tables_of(real_log("healthy-topk1")))
    asked: set[str] = set()
    column = frames.Held.column
    monkeypatch.setattr(frames.Held, "column", lambda self, table, name: asked.add(name) or column(self, table, name))
    query = "select layer, count(*) as n from events where event = 'layer_capture' group by layer order by layer"
    assert frames.sql(held, query).rows() == [(3, 266), (31, 266), (59, 266)]
    assert not asked & {"values", "norm", "fields", "time", "offset"}
    assert frames.sql(held, "select count(*) as n from passes where role = 'target'").item() == 266
    with pytest.raises(ls.UsageError, match="not understood") as error:
        frames.sql(held, "select nothing from nowhere")
    assert "events, passes, unparsed" in str(error.value.message.note)
    with pytest.raises(ls.UsageError) as error:
        frames.sql(held, "select nrom from events")
    assert "capture_hidden_mode" in str(error.value.message.help)
    assert frames.sql(held, "select COUNT(*) from events").item() == 3198
    assert frames.sql(held, "select * from events limit 2").columns == list(EVENTS)


@pytest.mark.parametrize(
    ("printed", "time"),
    [
        ("2026-02-10T12:00:00", "2026-02-10 12:00:00"),
        ("2026-02-10T12:00:00.25", "2026-02-10 12:00:00.250000"),
        ("2026-02-10T12:00:00.271828182Z", "2026-02-10 12:00:00.271828"),
        ("2026-02-10T12:00:00+02:00", "2026-02-10 12:00:00"),
        ("02-10T12:00:00", None),
        ("12:00:00", None),
        (None, None),
    ],
)
def test_a_time_is_a_datetime_where_all_of_it_is_printed(printed: str | None, time: str | None) -> None:
    """A clock without a date is no point in time; zones are not converted."""
    item = ServerEvent((1, 0, Prefix(time=printed), Payload("event", "ready")), 1, "serving", "f")
    [(found, as_printed)] = from_items([item]).events(["time", "time_printed"]).rows()
    assert (None if found is None else str(found), as_printed) == (time, printed)


def test_accept_len_is_a_column() -> None:
    """What decode lines say stands in a column of its own, and nothing else has it."""
    tables = tables_of(real_log("healthy-topk1"))
    found = tables.events(["event", "accept_len"])
    said = [row["fields"].get("accept_len") for row in tables.event_rows()]
    assert found["accept_len"].to_list() == said
    assert found["accept_len"].drop_nulls().len() > 5


numbers = st.floats(width=16) | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.none() | st.lists(numbers, max_size=5), max_size=20))
def test_keys_of_values(lists: list[list[float] | None]) -> None:
    """Equal keys are equal values, whatever stands beside them: 0 is -0, nan is nan."""
    keys = value_keys(pl.Series(lists, dtype=pl.List(pl.Float64)))
    said = [None if one is None else tuple("nan" if value != value else value + 0.0 for value in one) for one in lists]
    for at, key in enumerate(keys):
        assert [other == key for other in keys] == [other == said[at] for other in said]
        assert (key is None) == (lists[at] is None)
        assert key == value_keys(pl.Series([lists[at]], dtype=pl.List(pl.Float64)))[0]


def test_keys_of_many_values_differ() -> None:
    """Numbers of few bits have keys that differ all the same, also when the same numbers change places."""
    lists = [list(values) for values in permutations([1.0, 2.0, 0.5, -1.0, 0.25, 4.0, -2.0, 8.0], 5)]
    assert len(set(value_keys(pl.Series(lists, dtype=pl.List(pl.Float64))))) == len(lists) == 6720


def test_a_text_is_read_when_it_is_asked_for() -> None:
    """What a server row says may be kept as text; without a reader that is told."""
    item = ServerEvent((1, 0, Prefix(), Payload("event", "ready", fields={"a": math.nan})), 1, "serving", "f")
    tables = from_items([item])
    assert tables.fields(0) == {"a": "nan"}
    tables.said[0] = b"b=1"
    with pytest.raises(TypeError, match="read"):
        tables.payload(0)
    tables.read = lambda text: Payload("event", "ready", fields={"text": text.decode()})
    assert tables.fields(0) == {"text": "b=1"}
