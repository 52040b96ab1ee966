"""Labelling while a log is read: nothing lost or doubled, file order, the same items however it is cut."""

from __future__ import annotations

import gc
import random

import phaselab as lab
import pytest

from logscope.assembly import Open
from logscope.model import NO_PREFIX, ForwardPass, Payload, Segment, ServerEvent
from logscope.parse import Parser
from logscope.passes import Labeller
from logscope.sources.blocks import Block

MADE = {
    "one writer": lambda log: log,
    "eight ranks far apart": lambda log: lab.copied(log, 8, seed=1, skew="loose"),
    "eight ranks in bursts": lambda log: lab.copied(log, 8, seed=2, skew="burst"),
    "eight marked ranks": lambda log: lab.ranked(lab.copied(log, 8, seed=3, skew=300)),
    "two schedulers": lambda log: lab.two_schedulers(log, 1, marked=False),
    "cut": lambda log: lab.cut(log, 3),
    "two lives": lambda log: [*log, *log],
}


def occurrences(log):
    parser = Parser(lab._grammar(), "log")
    data = b"".join(unit.text for unit in log)
    return [*parser.feed(Block("log", 0, 1, data, final=True)), *parser.close()]


def places(item):
    if isinstance(item, ForwardPass):
        return [place for record in item.records for place in (record.first, *record.others, *record.variants)]
    return [item.occurrence] if isinstance(item, ServerEvent) else []


def told(item):
    """Return everything an item says, as plain values."""
    if isinstance(item, Segment):
        return (item.number, item.line, item.writers, item.spec_version, tuple(item.notes))
    if isinstance(item, ServerEvent):
        return (item.occurrence[1], item.segment, item.during)
    return (
        *(item.number, item.segment, item.group, item.role, item.phase, item.evidence, item.reason, item.during),
        *(item.complete, item.expected_copies, item.time),
        tuple((record.copies, [place[1] for place in places_of(record)]) for record in item.records),
    )


def places_of(record):
    return [record.first, *record.others, *record.variants]


@pytest.mark.parametrize("made", MADE)
def test_every_record_once_and_in_file_order(made):
    """Every record is handed out exactly once, and items come in the order of their first lines."""
    log = occurrences(MADE[made](lab.units("load-topk1")))
    labeller = Labeller("log", keep_copies=True)
    items = labeller.feed(log) + labeller.close()
    handed = sorted(place[1] for item in items for place in places(item))
    assert handed == sorted(place[1] for place in log if place[3].kind in ("event", "unparsed"))
    first = [min(place[1] for place in places(item)) for item in items if places(item)]
    assert first == sorted(first)


@pytest.mark.parametrize("made", MADE)
def test_any_cut_gives_the_same_items(made):
    """Fed one by one, in random pieces or at once, a log gives the same items."""
    log = occurrences(MADE[made](lab.units("load-topk1")))
    whole = Labeller("log", keep_copies=True)
    expected = [told(item) for item in whole.feed(log) + whole.close()]
    drawn = random.Random(5)
    for length in (lambda: 1, lambda: drawn.randint(1, 500)):
        labeller, items, at = Labeller("log", keep_copies=True), [], 0
        while at < len(log):
            step = length()
            items += labeller.feed(log[at : at + step])
            at += step
        items += labeller.close()
        assert [told(item) for item in items] == expected


@pytest.mark.parametrize("made", MADE)
def test_watermark(made):
    """Everything below the watermark has been handed out, and it never falls back."""
    log = occurrences(MADE[made](lab.units("load-topk1")))
    labeller, handed, last = Labeller("log", keep_copies=True), set(), 0
    for at in range(0, len(log), 97):
        for item in labeller.feed(log[at : at + 97]):
            handed.update(place[1] for place in places(item))
        mark = labeller.watermark
        assert mark >= last
        last = mark
        late = [place for place in log[: at + 97] if place[1] < mark and place[1] not in handed]
        assert all(place[3].kind not in ("event", "unparsed") for place in late)


def test_copies_are_counted_without_being_kept():
    """Without keep_copies the counts are the same and only damaged or differing copies are kept."""
    log = occurrences(lab.copied(lab.units("load-topk1"), 8, seed=1, skew="blocks"))
    labeller = Labeller("log")
    passes = lab.forwards(labeller.feed(log) + labeller.close())
    assert {record.copies for item in passes for record in item.records} == {8}
    assert not any(record.others or record.variants for item in passes for record in item.records)


def test_a_label_waits_for_passes_not_for_the_end():
    """In a long log passes are handed out while it is read: what is held back stays small."""
    log = occurrences(lab.units("healthy-topk1"))
    labeller, handed, most = Labeller("log"), 0, 0
    for at, place in enumerate(log):
        handed += sum(len(places(item)) for item in labeller.feed([place]))
        most = max(most, at + 1 - handed)
    assert most < 400


def test_a_scheduler_that_falls_silent_holds_nothing_back():
    """A pass whose scheduler prints nothing more is handed out after a while of other lines."""
    log = occurrences(lab.units("fault-embed-captured"))
    labeller = Labeller("log")
    items = labeller.feed(log)
    line, offset = log[-1][0], log[-1][1]
    noise = Payload("event", "cache_flush")
    for step in range(1, 70_001):
        items += labeller.feed([(line + step, offset + step, NO_PREFIX, noise)])
        if lab.forwards(items):
            break
    assert [item.phase for item in lab.forwards(items)] == ["extend", "extend"]


@pytest.mark.parametrize("made", MADE)
def test_what_was_handed_out_is_let_go(made):
    """A log as long as one likes takes no more memory, and leaves nothing to the collector of cycles."""
    log = occurrences(MADE[made](lab.units("healthy-topk1")))
    labeller = Labeller("log")
    gc.collect()
    gc.disable()
    try:
        alive = [
            sum(isinstance(thing, Open) for thing in gc.get_objects())
            for start in range(0, len(log), 1000)
            if labeller.feed(log[start : start + 1000]) is not None
        ]
        assert gc.collect() < 1000
    finally:
        gc.enable()
    assert max(alive) < 400, alive
