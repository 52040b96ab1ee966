"""Writers without a mark: what they print is put together again, however far apart they run, and no label is guessed."""

from __future__ import annotations

import phaselab as lab
import pytest
from conftest import REAL_RUNS

from logscope.copies import Census, unmistakable
from logscope.model import ForwardPass, Payload

RUNS = [run for run in REAL_RUNS if run not in {"fault-embed-captured", "no-speculation"}]
V1, V2 = "healthy-topk1-specv1", "healthy-topk1"


def check(log, *, unknown, copies=8):
    """Score a log: nothing is wrong or lost, and no larger share than ``unknown`` has no phase."""
    score = lab.score(log, copies=copies)
    assert (score.wrong, score.lost) == (0, 0), score.mistakes
    assert score.share <= unknown, score.reasons
    return score


@pytest.mark.parametrize("run", [run for run in RUNS if run.startswith(("fault", "cuda", "load"))])
def test_ranks_that_wait_for_each_other(run):
    """As tensor-parallel ranks run: every record has its copies and every line its label, nan or not."""
    score = check(lab.copied(lab.units(run), 8, seed=0, skew="pass"), unknown=0.0)
    assert score.miscounted == 0


@pytest.mark.parametrize("writers", [2, 8])
@pytest.mark.parametrize("run", [V1, V2, "cuda-graph", "fault-stale-states"])
def test_ranks_that_print_in_turn(run, writers):
    """Each rank prints a whole pass in one go: that is no one rank that prints every pass several times."""
    score = check(lab.copied(lab.units(run), writers, seed=0, skew="turns"), unknown=0.0, copies=writers)
    assert score.miscounted == 0
    assert lab.segments(score.items)[0].writers == writers


@pytest.mark.parametrize("skew", [12, "loose"])
@pytest.mark.parametrize("run", ["fault-stale-states", "fault-embed-captured-wide-fc", "cuda-graph", "load-topk1"])
def test_ranks_in_any_order(run, skew):
    """A few texts that are printed again do not put the order of a whole log in doubt."""
    score = check(lab.copied(lab.units(run), 8, seed=0, skew=skew), unknown=0.006)
    assert score.miscounted == 0


def test_states_that_are_nan_in_any_order():
    """Ranks that run many passes apart, and print nan in each: most is told, what fits two phases is not guessed."""
    score = check(lab.copied(lab.units("fault-nan-layer30"), 8, seed=0, skew="loose"), unknown=0.3)
    assert all(score.reasons)


@pytest.mark.parametrize("run", [V1, V2, "healthy-topk4"])
@pytest.mark.parametrize(
    "change",
    [lambda log: lab.nan_from(log, 0.1), lab.without_draft_values, lab.without_values],
    ids=["nan", "draft", "shapes"],
)
def test_records_that_are_printed_word_for_word(run, change):
    """Records without values, or with nan: their place follows from who has printed what stands around them."""
    log = change(lab.units(run))
    score = check(lab.copied(log[: len(log) // 3], 8, seed=0, skew="pass"), unknown=0.0)
    assert score.miscounted == 0


@pytest.mark.parametrize("run", [V1, V2])
def test_lost_lines(run):
    """A lost copy is no new record: the pass around it keeps its label."""
    log = lab.lossy(lab.copied(lab.units(run), 8, seed=0, skew="pass"), 0.005, seed=1)
    check(log, unknown=0.002, copies=None)


def test_slow_ranks_are_counted():
    """Ranks that have not come to what is served count, though server_args tells of none."""
    log = lab.without_args(lab.copied(lab.units(V2), 8, seed=0, skew=300))
    (segment,) = lab.segments(check(log, unknown=0.006).items)
    assert segment.writers == 8


def test_dummy_passes_are_run_twice():
    """Each run of a dummy pass has its eight copies, though ranks ahead of others print its text again meanwhile."""
    log = lab.copied(lab.units("cuda-graph"), 8, seed=0, skew="loose")
    dummies = [
        item
        for item in lab.score(log).items
        if isinstance(item, ForwardPass) and item.during == "graph_capture" and item.phase != "unknown"
    ]
    single = [item for item in lab.forwards(lab.label(_bytes("cuda-graph"))) if item.during == "graph_capture"]
    assert len(dummies) == len(single)
    assert {record.copies for item in dummies for record in item.records} == {8}


def test_census_waits_for_writers_that_are_behind():
    """Five of eight writers serve already: what they print is counted only when the others have come to it."""
    records = [_capture(number) for number in range(2000)]
    census = Census()
    for payload in records[:20]:
        for _ in range(5):
            census.add(payload, counts=False)
    enough = []
    for step, payload in enumerate(records[20:]):
        enough += [census.add(payload, counts=True) for _ in range(5)]
        enough += [census.add(records[step // 4], counts=True) for _ in range(3 if step % 4 == 0 else 0)]
        if step == 120:
            assert not any(enough)
    assert any(enough)
    assert census.writers(None)[0] == 8


def test_first_values_make_a_record_one_of_a_kind():
    """A joined state with a nan in it has a norm of nan, and the first values of its first state."""
    told = _capture(0, norm=float("nan"), head=(0.5, -0.25, 1.0, 0.125, 2.0))
    assert unmistakable(told)
    assert not unmistakable(_capture(0, norm=float("nan"), head=(float("nan"),) * 5))
    assert not unmistakable(_capture(0, norm=0.0, head=(0.0,) * 5))
    assert not unmistakable(_capture(0, norm=None, head=None))


def _capture(number, norm=None, head=(0.5, 1.5)):
    return Payload(
        "event",
        "layer_capture",
        "dsv2",
        "target",
        3,
        (4, 7168),
        4,
        7168,
        float(number) + 1.5 if norm is None and head == (0.5, 1.5) else norm,
        head=head,
    )


def _bytes(run):
    return b"".join(unit.text for unit in lab.units(run))


def test_whole_copies_behind_a_damaged_one():
    """The first copy of a forward_end is torn: the whole ones are copies of each other, and none differs."""
    log = list(lab.copied(lab.units("healthy-topk1"), 4, seed=0, skew="tight"))
    at = next(at for at, unit in enumerate(log[200:], 200) if b"forward end" in unit.text)
    log[at] = lab.replace(log[at], text=log[at].text.replace(b"hidden_shape=torch.Size([", b"hidden_shape=torch.Si\n"))
    (record,) = [
        record
        for made in lab.forwards(lab.score(log).items)
        for record in made.records
        if record.payload.event == "forward_end" and any(other[3].intact == "cut" for other in record.others)
    ]
    assert record.payload.intact == "whole"
    assert (record.copies, record.variants) == (4, [])


def test_a_copy_without_its_values():
    """A copy whose values are torn off is still a copy of the record in its place."""
    log = list(lab.copied(lab.units("healthy-topk1"), 4, seed=0, skew="tight"))
    places = [at for at, unit in enumerate(log) if at > 400 and b"eagle3] forward" in unit.text]
    at = places[2]
    log[at] = lab.replace(log[at], text=log[at].text.partition(b" norm=")[0] + b"\n")
    score = check(log, unknown=0.0, copies=4)
    assert score.miscounted == 0
