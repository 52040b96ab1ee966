"""Writers that run apart, and logs whose lines are lost: what fits two places is unknown, and no place is guessed."""

from __future__ import annotations

from itertools import pairwise

import phaselab as lab
import pytest
from conftest import REAL_RUNS

from logscope.copies import Census

GRAPHS = ["cuda-graph", "0.5.15.post1-cuda-graph"]
SINGLE = [run for run in REAL_RUNS if run not in {*GRAPHS, "fault-embed-captured", "no-speculation"}]


@pytest.mark.parametrize("skew", ["burst", "loose", 300])
@pytest.mark.parametrize("run", GRAPHS)
def test_ranks_ahead_of_the_one_that_logs(run, skew):
    """Ranks that serve while the one that logs still captures graphs: they are counted, and no dummy is served."""
    log = lab.copied(lab.units(run), 8, seed=0, skew=skew)
    unmarked, marked = lab.score(log), lab.score(lab.ranked(log), copies=8)
    assert (unmarked.wrong, unmarked.lost) == (0, 0), unmarked.mistakes
    assert (marked.wrong, marked.lost, marked.unknown, marked.miscounted) == (0, 0, 0, 0), (
        marked.mistakes,
        marked.reasons,
    )
    for score in (unmarked, marked):
        (segment,) = lab.segments(score.items)
        assert segment.writers == 8


@pytest.mark.parametrize(
    ("run", "skew"), [("fault-nan-layer30", "burst"), ("fault-nan-layer30", 300), ("style-alt", 300)]
)
def test_copies_that_are_not_one_of_a_kind(run, skew):
    """A copy that may be of passes of two phases (nan, coarse or no values) is given to none of them."""
    score = lab.score(lab.copied(lab.units(run), 8, seed=0, skew=skew))
    assert (score.wrong, score.lost) == (0, 0), score.mistakes
    assert all(score.reasons)


def test_warm_up_printed_by_a_second_scheduler():
    """What was printed before "ready" too does not say how many writers print each record."""
    census = Census()
    records = [item.payload for made in lab.forwards(lab.label(_text("healthy-topk1"))) for item in made.records]
    for payload in records[:40]:
        census.add(payload, counts=False)
    for payload in records[:200]:
        census.add(payload, counts=True)
    assert census.writers(None)[0] == 1


def test_coarse_norms_do_not_swap_schedulers():
    """Norms derived from a mean and a deviation add up as far as these are printed; what fits both has no phase."""
    score = lab.score(lab.two_schedulers(lab.units("style-alt"), 0, marked=False))
    assert (score.wrong, score.lost) == (0, 0), score.mistakes
    assert score.share <= 0.005


@pytest.mark.parametrize("run", SINGLE)
def test_second_scheduler_prints_what_a_server_prints(run):
    """The variant with two schedulers holds whole passes, in an order that the real log has too."""
    real, made = _passes(lab.units(run)), _passes(lab.served_later(lab.units(run)))
    assert set(made) <= set(real)
    assert _orders(made) <= _orders(real)


@pytest.mark.parametrize("run", ["healthy-topk1", "healthy-topk1-specv1"])
def test_log_that_begins_among_the_copies_of_a_record(run):
    """A log cut inside the copies of a verify's ``forward_end`` begins in that pass, and it is one pass."""
    log = lab.without_args(lab.copied(lab.units(run), 8, seed=0, skew="tight"))
    ends = [at for at, unit in enumerate(log) if b"forward end" in unit.text and unit.labels[0][1] == "verify"]
    score = lab.score(log[ends[-100] :])
    assert (score.wrong, score.lost) == (0, 0), score.mistakes


def _text(run):
    return b"".join(unit.text for unit in lab.units(run))


def _passes(log):
    """Return the passes of a log: their number, label and how many records each has."""
    made = []
    for unit in log:
        for label in unit.labels:
            if made and made[-1][0] == unit.forward:
                made[-1] = (unit.forward, label, made[-1][2] + 1)
            else:
                made.append((unit.forward, label, 1))
    return made


def _orders(passes):
    return {(one[1], other[1]) for one, other in pairwise(passes)}
