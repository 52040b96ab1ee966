"""What a prefix names: a rank, the process that many ranks print under, or one rank beside others that print no mark."""

from __future__ import annotations

import phaselab as lab
import pytest

RUNS = ["healthy-topk1", "healthy-topk1-specv1"]
STAMP = b"[2026-02-10 12:00:00 TP%d] "


def made(run, writers=4, skew="burst"):
    """Return a real run printed by several ranks."""
    return lab.copied(lab.units(run), writers, seed=1, skew=skew)


def read(log, copies):
    """Label a log in which every record has so many copies; return its segment."""
    score = lab.score(log, copies=copies)
    assert (score.wrong, score.lost, score.unknown) == (0, 0, 0), (score.mistakes, score.reasons)
    assert score.miscounted == 0
    (segment,) = lab.segments(score.items)
    assert segment.writers == copies
    return segment


@pytest.mark.parametrize("args", [True, False])
@pytest.mark.parametrize("run", RUNS)
def test_one_pid_for_all_ranks(run, args):
    """All ranks of an engine print under its actor's pid: their copies are collapsed as without it."""
    log = made(run, skew="tight")
    read(lab.prefixed(log if args else lab.without_args(log), b"(SGLangEngine pid=111, ip=192.0.2.7) "), 4)


@pytest.mark.parametrize("run", RUNS)
def test_one_pid_for_one_rank(run):
    """A pid of which one rank prints is that rank, as it was."""
    read(lab.prefixed(lab.units(run), b"(SGLangEngine pid=111, ip=192.0.2.7) "), 1)


@pytest.mark.parametrize("skew", ["tight", "burst", "loose"])
@pytest.mark.parametrize(
    "name",
    [
        lambda unit: b"(SGLangEngine pid=%d, ip=192.0.2.7) " % (111 + unit.writer),
        lambda unit: b"(Worker_TP%d pid=%d) " % (unit.writer, 412 + unit.writer),
        lambda unit: b"(SGLangEngine pid=111, ip=192.0.2.7) " + STAMP % unit.writer,
    ],
    ids=["a pid a rank", "vLLM", "one pid, marks inside"],
)
def test_every_rank_has_its_name(name, skew):
    """A pid or a mark that tells ranks apart names them."""
    read(lab.prefixed(made(RUNS[0], skew=skew), name), 4)


def test_two_pids_with_ranks_of_their_own():
    """Two actors of one name, each with its own requests and ranks: no pass of one is taken for the other's."""
    logs = []
    for pid, run in ((111, "healthy-topk1"), (222, "load-topk1")):
        log = lab.without_server(made(run, 2, skew="tight"))
        logs.append(lab.prefixed(log, b"(SGLangEngine pid=%d) " % pid))
    size = min(map(len, logs))
    log = [unit for at in range(0, size, 32) for one in logs for unit in one[at : at + 32]]
    score = lab.score(log)
    assert (score.wrong, score.lost) == (0, 0), score.mistakes
    assert score.share <= 0.01
    assert {item.group[0] for item in lab.forwards(score.items)} == {"SGLangEngine pid=111", "SGLangEngine pid=222"}
    copies = [record.copies for item in lab.forwards(score.items) for record in item.records]
    assert copies.count(2) >= 0.99 * len(copies)


@pytest.mark.parametrize("inside", [b"", b"(SGLangEngine pid=111, ip=192.0.2.7) "])
@pytest.mark.parametrize("run", RUNS)
def test_one_marked_rank_beside_plain_ones(run, inside):
    """A rank that prints its mark, beside others that print none, is one of them."""
    log = made(run, skew="tight")
    read(lab.prefixed(log, lambda unit: inside + (STAMP % 0 if unit.writer == 0 else b"")), 4)
