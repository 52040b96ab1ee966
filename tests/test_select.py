"""Selection: the words a user writes, and which passes, records, lines and events of the tables belong to them."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import CASE_LOGS, real_log
from from_items import from_items

from logscope import load
from logscope.errors import UsageError
from logscope.model import NO_PREFIX, ForwardPass, Payload, Prefix, Record, Segment, ServerEvent
from logscope.tables.select import Select, read_time


def forward(
    phase: Any = "verify", role: Any = "target", layers: Any = (3, 31), time: Any = None, prefix: Prefix = NO_PREFIX
) -> ForwardPass:
    """Return a pass with one capture for each layer."""
    records = [
        Record((line, line, prefix, Payload("event", "layer_capture", site="dsv2", layer=layer)))
        for line, layer in enumerate(layers, 1)
    ]
    return ForwardPass(1, 1, (), role, "f", phase, time=time, records=records)


def line(time: str | None = None, prefix: Prefix | None = None) -> ServerEvent:
    """Return a server line."""
    return ServerEvent((1, 0, prefix or Prefix(time=time), Payload("event", "decode_stats")), 1, "serving", "f")


def kept(select: Select, *items: Any) -> list[int]:
    """Return which of some items, each behind the one before it, a selection keeps."""
    for number, item in enumerate(items):
        if isinstance(item, ServerEvent):
            item.occurrence = (number, 100 * number, *item.occurrence[2:])
        elif isinstance(item, ForwardPass):
            for record in item.records:
                record.first = (number, 100 * number + record.line, *record.first[2:])
    found = select.filter(from_items([Segment(1, "f", 1), *items])).items()
    return [item.line for item in found if not isinstance(item, Segment)]


@pytest.mark.parametrize(
    ("word", "phase"),
    [
        ("verify", "verify"),
        ("TARGET_VERIFY", "verify"),
        ("draft-extend", "draft_extend"),
        ("DRAFT_EXTEND_V2", "draft_extend"),
        ("ForwardMode.MIXED", "extend"),
        ("prefill", "extend"),
    ],
)
def test_phases_are_known_by_sglang_names_too(word: str, phase: str) -> None:
    """Names of SGLang's forward modes mean their phase."""
    assert Select.of(phase=[word]).phase == (phase,)


@pytest.mark.parametrize(
    "words",
    [
        {"phase": ["verfy"]}, {"phase": ["2"]}, {"role": ["drft"]}, {"during": ["warm"]}, {"layer": ["x"]}, {"layer": ["9-3"]},
        {"rank": ["x1"]}, {"since": "yesterday"}, {"until": "25:00"}, {"since": "2026-13-01"}, {"since": ""}, {"since": "12"},
    ],
)  # fmt: skip
def test_words_that_name_nothing_are_refused_with_help(words: dict[str, Any]) -> None:
    """A selection that names nothing is refused, and the message says what there is."""
    with pytest.raises(UsageError) as error:
        Select.of(**words)
    assert error.value.message.help


def test_one_word_is_one_word() -> None:
    """A single word needs no list around it."""
    assert Select.of(phase="verify, extend") == Select.of(phase=["verify", "extend"])
    assert Select.of(layer="31", rank="3") == Select.of(layer=["31"], rank=["3"])


def test_an_empty_selection_keeps_everything() -> None:
    """Nothing given: everything accepted, and the selection is false."""
    select = Select.of()
    assert not select
    assert kept(select, forward(), line()) == [0, 1]


def test_selection_of_passes_and_records() -> None:
    """A pass is kept by phase and role, narrowed to the selected layers; server lines and segments stay."""
    select = Select.of(phase=["verify"], layer=["31,40-59"])
    assert kept(select, forward(), forward("extend"), forward(layers=(3,)), line()) == [0, 3]
    segment, one = select.filter(from_items([Segment(1, "f", 1), forward()])).items()
    assert isinstance(segment, Segment)
    assert [record.payload.layer for record in one.records] == [31]


def test_events_of_no_pass_belong_to_no_phase() -> None:
    """For events a phase leaves server lines out; for reports they stay, as they say what the passes mean."""
    tables = from_items([line("12:00:00")])
    for words, events in [({"phase": "verify"}, 0), ({"during": "serving"}, 1), ({"during": "warmup"}, 0)]:
        assert tables.events(select=Select.of(**words)).height == events
    assert Select.of(phase="verify").filter(tables).server.height == 1


@pytest.mark.parametrize(
    ("word", "prefix", "belongs"),
    [
        ("3", Prefix(tp_rank=3), True),
        ("3", Prefix(tp_rank=2, dp_rank=3), False),
        ("3", Prefix(dp_rank=3), True),
        ("3", Prefix(origin="rank3"), True),
        ("rank3", Prefix(tp_rank=3), True),
        ("3", Prefix(), False),
        ("dp1", Prefix(dp_rank=1, tp_rank=0), True),
        ("DP1.TP0", Prefix(dp_rank=1, tp_rank=0), True),
        ("dp1.tp1", Prefix(dp_rank=1, tp_rank=0), False),
        ("0,1", Prefix(tp_rank=1), True),
    ],
)
def test_selection_of_ranks(word: str, prefix: Prefix, belongs: bool) -> None:
    """A bare number is the tensor-parallel rank; named ranks must all match; no printed rank, no selection."""
    select = Select.of(rank=[word])
    assert kept(select, forward(prefix=prefix), line(prefix=prefix)) == [0, 1] * belongs
    assert from_items([line(prefix=prefix)]).events(select=select).height == belongs


@pytest.mark.parametrize(
    ("since", "until", "time", "belongs"),
    [
        ("12:30", None, "2026-02-10T12:30:00", True),
        ("12:30", None, "2026-02-10T12:29:59.999", False),
        (None, "12:30", "2026-02-10T12:30:59.9", True),
        (None, "12:30", "2026-02-10T12:31:00", False),
        ("2026-02-10", "2026-02-10", "2026-02-10T23:59:59", True),
        ("2026-02-10", "2026-02-10", "2026-02-11T00:00:00", False),
        ("2026-02-10T12:00", None, "2026-02-11T01:00:00", True),
        ("2026-02-10 12:00", None, "02-10T11:59:59", False),
        ("02-10 12:00", None, "2025-02-10T12:00:00", True),
        ("23:00", "01:00", "2026-02-10T23:30:00", True),
        ("23:00", "01:00", "2026-02-11T00:30:00", True),
        ("23:00", "01:00", "2026-02-11T12:00:00", False),
        ("12:00", None, "12:00:01", True),
        ("2026-02-10", None, "12:00:01", False),
        ("12:00", None, "2026-02-10T12:00:00.271828182Z", True),
        ("12:00", None, None, False),
    ],
)
def test_selection_of_times(since: str | None, until: str | None, time: str | None, belongs: bool) -> None:
    """Both ends are included and compared by the parts they share with the printed time."""
    select = Select.of(since=since, until=until)
    assert kept(select, line(time), forward(time=time)) == [0, 1] * belongs
    assert from_items([line(time)]).events(select=select).height == belongs


def test_lines_without_a_time_take_the_last_one() -> None:
    """A traceback without a stamp belongs to the time of the line before it, in its own file."""
    items = [line("12:29:00"), line(), line("12:31:00"), line(), forward(time="12:32:00"), line()]
    assert kept(Select.of(since="12:30"), *items) == [2, 3, 4, 5]
    # The pass has two records.
    assert from_items(items).events(select=Select.of(since="12:30")).height == 5


def test_times_are_read_as_far_as_they_go() -> None:
    """A time keeps what it does not say open; what is none is none."""
    assert read_time("2026-02-10T12:00:00,5") == ("2026", "02-10", "12:00:00.5")
    assert read_time("07-20T18:11:49") == (None, "07-20", "18:11:49")
    assert read_time("04:40") == (None, None, "04:40")
    for text in ("", "T", "12", "2026", "10.02.2026", "24:61", "2026-02-10T"):
        assert read_time(text) is None


def test_a_selection_says_itself() -> None:
    """The words of a selection read as they were given."""
    select = Select.of(phase=["verify"], rank=["3", "dp1.tp0"], layer=["31", "0-5"], since="2026-02-10 12:30")
    assert str(select) == "phase verify; rank 3, dp1.tp0; layer 31, 0-5; since 2026-02-10T12:30"
    assert str(Select()) == "everything"


@pytest.mark.parametrize("log", [*CASE_LOGS, real_log("style-alt")], ids=lambda p: p.parent.name + p.stem)
def test_selected_events_are_those_that_say_so(log: Any) -> None:
    """What is selected has the words asked for, in order, and nothing that has them is left out."""
    tables = load(log).tables
    every = list(tables.event_rows())
    for words, says in [
        ({"phase": "verify,decode"}, lambda e: e["phase"] in ("verify", "decode")),
        ({"role": "draft", "during": "serving"}, lambda e: e["role"] == "draft" and e["during"] == "serving"),
        ({"layer": "0-31"}, lambda e: e["layer"] is not None and e["layer"] <= 31),
        ({"site": "dsv2"}, lambda e: e["site"] == "dsv2"),
        ({"rank": "dp0"}, lambda e: e["dp_rank"] == 0),
    ]:
        select = Select.of(**words)
        assert list(tables.event_rows(select=select)) == [event for event in every if says(event)]
        # A part of the tables holds all of them, too.
        assert list(select.filter(tables).event_rows(select=select)) == [event for event in every if says(event)]
