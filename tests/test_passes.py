"""Forward passes and phases: the labels of real logs, and of logs made from them, against the recorded truth."""

from __future__ import annotations

from functools import partial

import phaselab as lab
import pytest
from conftest import REAL_RUNS

# Of every kind: two versions, spec v1 and v2, topk 1 and 4, load, graphs, faults, prints of three styles.
SAMPLE = (
    "healthy-topk1",
    "healthy-topk1-specv1",
    "0.5.15.post1-healthy-topk4",
    "load-topk1",
    "cuda-graph",
    "0.5.15.post1-cuda-graph",
    "fault-embed-captured",
    "fault-verify-last",
    "fault-nan-layer30",
    "style-noflush",
)
PLAIN = ("healthy-topk1", "healthy-topk1-specv1", "0.5.15.post1-healthy-topk4", "load-topk1")


@pytest.mark.parametrize("run", REAL_RUNS)
def test_every_label_of_a_real_log(run):
    """On every real log no debug record has a wrong phase and none is unknown, from the text alone."""
    score = lab.score(lab.units(run))
    assert (score.wrong, score.lost, score.unknown) == (0, 0, 0), (score.mistakes, score.reasons)


@pytest.mark.parametrize("run", SAMPLE)
@pytest.mark.parametrize(
    "change",
    [lab.ranked, lab.without_stats, lab.without_args, lab.numbered_modes, partial(lab.more_steps, steps=5)],
    ids=["prefixed", "without stats", "without args", "mode numbers", "five steps"],
)
def test_labels_need_no_server_lines(run, change):
    """Prefixes, missing statistics or arguments, mode numbers and more draft steps change no label."""
    score = lab.score(change(lab.units(run)))
    assert (score.wrong, score.lost, score.unknown) == (0, 0, 0), (score.mistakes, score.reasons)


@pytest.mark.parametrize("run", PLAIN)
@pytest.mark.parametrize(
    "change", [lab.one_layer, partial(lab.wider_tree, factor=4), lab.without_modes, lab.without_values]
)
def test_labels_need_no_width_and_no_values(run, change):
    """One captured layer, sixteen draft tokens, no capture_hidden_mode, or shapes only: the order still tells."""
    score = lab.score(change(lab.units(run)))
    assert (score.wrong, score.lost, score.unknown) == (0, 0, 0), (score.mistakes, score.reasons)


@pytest.mark.parametrize("run", ["healthy-topk1", "0.5.15.post1-healthy-topk4", "load-topk1"])
def test_one_draft_step_of_spec_v2(run):
    """With one draft step what follows decides: FULL behind a verify, LAST behind an extend."""
    score = lab.score(lab.one_step(lab.units(run)))
    assert (score.wrong, score.lost) == (0, 0), score.mistakes
    assert score.share <= 0.005, score.reasons


def test_one_draft_step_of_spec_v1_is_never_guessed():
    """Spec v1 with one step and no Prefill lines is ambiguous when everything was accepted: unknown, with the reason."""
    score = lab.score(lab.without_stats(lab.one_step(lab.units("healthy-topk1-specv1"))))
    assert (score.wrong, score.lost) == (0, 0), score.mistakes
    assert score.unknown
    assert all(score.reasons)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("run", SAMPLE)
def test_cut_logs(run, seed):
    """A log cut at a random line at either end has no wrong label, and unknown at most the pass at each cut edge.

    Where that pass is a target's, the draft pass that takes its phase from it may be unknown with it.
    """
    for cut in (lab.cut, lab.head_cut):
        score = lab.score(cut(lab.units(run), seed))
        assert (score.wrong, score.lost) == (0, 0), (cut, score.mistakes)
        assert len(score.unknown_forwards) <= 2, (cut, score.reasons)


@pytest.mark.parametrize(
    "run", ["healthy-topk1-specv1", "load-topk1", "cuda-graph", "fault-nan-layer30", "style-noflush"]
)
@pytest.mark.parametrize("skew", ["tight", "blocks"])
def test_copies_of_eight_ranks(run, skew):
    """Eight ranks, marked or not, become one pass with eight copies of every record; no label changes.

    Unmarked and in blocks far apart, what several passes may have printed is in no pass: never guessed.
    """
    for change in (lambda log: log, lab.ranked):
        log = change(lab.copied(lab.units(run), 8, seed=1, skew=skew))
        score = lab.score(log, copies=8)
        assert (score.wrong, score.lost) == (0, 0), score.mistakes
        if skew == "tight":
            assert (score.unknown, score.miscounted) == (0, 0), score.reasons
        elif change is lab.ranked:
            assert score.unknown == 0, score.reasons
            assert score.miscounted == 0 or run == "fault-nan-layer30"  # nan says nothing of whose it is


@pytest.mark.parametrize("run", ["healthy-topk1", "load-topk1"])
@pytest.mark.parametrize("skew", ["loose", "burst", 300])
def test_ranks_far_apart(run, skew):
    """Ranks hundreds of records apart keep their labels where they are marked; unmarked, nothing is guessed."""
    log = lab.copied(lab.units(run), 8, seed=2, skew=skew)
    unmarked, marked = lab.score(log, copies=8), lab.score(lab.ranked(log), copies=8)
    assert (unmarked.wrong, unmarked.lost) == (0, 0), unmarked.mistakes
    assert all(unmarked.reasons)
    assert (marked.wrong, marked.lost, marked.unknown, marked.miscounted) == (0, 0, 0, 0), marked.mistakes


@pytest.mark.parametrize("run", PLAIN)
def test_two_schedulers_with_marks(run):
    """DP ranks that are printed keep two schedulers apart."""
    score = lab.score(lab.two_schedulers(lab.units(run), 1, marked=True))
    assert (score.wrong, score.lost, score.unknown) == (0, 0, 0), (score.mistakes, score.reasons)


@pytest.mark.parametrize("run", PLAIN)
def test_two_schedulers_without_marks(run):
    """Two schedulers mixed line by line: what rows and values prove is labelled, the rest says that it cannot be told."""
    score = lab.score(lab.two_schedulers(lab.units(run), 1, marked=False))
    assert (score.wrong, score.lost) == (0, 0), score.mistakes
    assert 0 < score.share < 1
    assert all("two schedulers" in reason for reason in score.reasons)


def test_evidence_is_the_best_there_is():
    """A printed mode wins; else order; every unknown pass says why."""
    log = lab.units("healthy-topk1")
    assert {item.evidence for item in lab.forwards(lab.score(log).items)} == {"order"}
    assert {item.evidence for item in lab.forwards(lab.score(lab.said(log)).items)} == {"printed"}
    lone = lab.score(lab.only_events(lab.without_server(log), b"layer 3 "))
    assert lone.wrong == 0
    assert all(item.reason for item in lab.forwards(lone.items) if item.phase == "unknown")
