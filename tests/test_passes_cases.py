"""The field cases: passes, phases, copies and regions as their sidecars say."""

from __future__ import annotations

from collections import Counter

import phaselab as lab
import pytest
from conftest import CASES, sidecar


def read(name):
    """Return (segments, passes, exact values) of a case."""
    (log,) = CASES.glob(f"{name}-*.log")
    items = lab.label(log.read_bytes())
    return lab.segments(items), lab.forwards(items), sidecar(log)


def embeds(passes):
    """Return the records of embedding captures, copies once."""
    return [record for item in passes for record in item.records if record.payload.event == "embed_capture"]


def test_00_three_lines_are_too_few_to_count_writers():
    """Case 00: one embedding capture printed three times, one of them cut; the number of writers is not invented."""
    (segment,), (only,), values = read("00")
    (record,) = only.records
    assert record.copies == values["events"]["embed_capture_whole"] + values["events"]["embed_capture_torn"]
    assert record.payload.rows == values["rows"]
    assert segment.writers is None
    assert "too few" in segment.writers_evidence
    assert only.expected_copies is None
    assert only.phase == "unknown"
    assert only.reason


def test_06_two_unprefixed_copies_are_two_ranks():
    """Case 06: one joined state of two hidden states, printed by both ranks, in the prefill that its line names."""
    (segment,), (only,), _ = read("06")
    assert (segment.writers, segment.tp_size) == (2, 2)
    (join,) = only.records
    assert (join.copies, only.phase, only.rows) == (2, "extend", 64)


def test_08_three_runs_in_one_file():
    """Case 08: counts and phases per run; the 4-row extend is told from verifies by its Prefill line, never by rows."""
    runs, passes, values = read("08")
    assert len(runs) == values["events"]["server_args"]
    by_run = [[item for item in passes if item.segment == run.number] for run in runs]
    assert [len(embeds(each)) for each in by_run] == values["embed_by_run"]
    for each, expected in zip(by_run, values["embed_by_phase_per_run"], strict=True):
        found = Counter(item.phase for item in each if item.role == "target")
        wanted = Counter(expected)
        loose = wanted.pop("decode_or_unknown", 0)
        assert found["decode"] + found["unknown"] == loose
        assert {phase: found[phase] for phase in wanted} == dict(wanted)
    assert [run.num_draft_tokens for run in runs] == [4, 4, 3]
    (lone,) = [item for item in by_run[2] if item.phase == "unknown"]
    assert lone.rows == 1
    assert "3 draft tokens" in lone.reason


def test_09_eight_ranks_torn_and_glued():
    """Case 09: one extend and two verifies of eight writers; the torn copies count, one differing copy is a variant."""
    (segment,), passes, values = read("09")
    assert segment.writers == 8
    assert [(item.phase, item.rows) for item in passes] == [("extend", 21), ("verify", 4), ("verify", 4)]
    assert [record.copies for record in embeds(passes)] == [8, 8, 8]
    torn = [place for record in embeds(passes) for place in record.others if not place[3].usable]
    assert len(torn) == values["events"]["embed_capture_torn"]
    ((differing,),) = [record.variants for record in embeds(passes) if record.variants]
    assert differing[3].norm == values["one_copy_differs"]["norm"]
    assert passes[2].records[0].payload.norm == values["one_copy_differs"]["others"]


def test_10_dummy_passes_are_no_requests():
    """Case 10: eight captures while graphs are captured, one in the warm-up, two requests, both extends."""
    _, passes, values = read("10")
    found = Counter(item.during for item in passes)
    regions = values["embed_by_region"]
    assert found["graph_capture"] == regions["graph_capture"]
    assert found["warmup"] == regions["warm_up_request"]
    serving = [item for item in passes if item.during == "serving"]
    assert len(serving) == regions["requests"]
    assert Counter(item.phase for item in serving) == {"extend": values["embed_by_phase_in_requests"]["extend"]}


def test_11_nan_and_zero_are_passes_too():
    """Case 11: the prefill with inf and nan is one extend of four captures; nan and zero records get a pass each."""
    _, passes, values = read("11")
    assert len(embeds(passes)) == values["events"]["embed_capture"]
    assert passes[0].phase == "extend"
    assert [record.payload.layer for record in passes[0].records] == [0, 2, 30, 58]
    assert passes[1].phase == "extend"


@pytest.mark.parametrize(("name", "passes"), [("20a", 1), ("20b", 4)])
def test_20_chunks_are_extends(name, passes):
    """Cases 20: a prefill in one piece is one extend, in four chunks four, all named by their Prefill lines."""
    _, found, _ = read(name)
    assert [(item.phase, item.evidence) for item in found] == [("extend", "server")] * passes
    assert sum(item.rows for item in found) == 32768


def test_26_another_model_is_not_mixed_in():
    """Case 26: every embedding capture is a pass of its own site; other dialects of the tag are in no pass."""
    _, passes, values = read("26")
    assert len(passes) == values["events"]["embed_capture"] + values["events"]["embed_capture_partial"]
    assert Counter(item.records[0].payload.site for item in passes) == values["models"]


@pytest.mark.parametrize("name", ["29a", "29b"])
def test_29_a_missing_capture_shifts_nothing(name):
    """Cases 29: one extend and six verifies; a capture that one verify lacks leaves the others where they are."""
    _, passes, values = read(name)
    assert [item.phase for item in passes] == ["extend"] + ["verify"] * 6
    layers = [[record.payload.layer for record in item.records] for item in passes]
    missing = values.get("compare_29a_29b", {}).get("missing_in_b")
    for step, found in enumerate(layers):
        wanted = [0, 2, 30, 58]
        if missing is not None and step == missing["step"]:
            wanted.remove(missing["layer"])
        assert found == wanted


@pytest.mark.parametrize("name", ["36a", "36b"])
def test_36_the_story(name):
    """Cases 36: passes per role and phase, hidden captures per pass, eight agreeing copies of every record."""
    (segment,), passes, values = read(name)
    assert segment.writers == values["writers"]
    for role in ("target", "draft"):
        found = Counter(item.phase for item in passes if item.role == role)
        assert found == values[f"{role}_passes_serving"]
    targets = [item for item in passes if item.role == "target"]
    assert {len(item.captures) for item in targets} == {values["hidden_captures_per_target_pass"]}
    assert all(record.copies == 8 and not record.variants for item in passes for record in item.records)
    assert all(item.complete and item.during == "serving" for item in passes)


@pytest.mark.parametrize("run", ["healthy-topk1", "healthy-topk4", "0.5.15.post1-healthy-topk4", "no-speculation"])
def test_facts_of_a_real_segment(run):
    """A segment knows its arguments, its ready line and the version of speculation with the evidence."""
    (segment,) = lab.segments(lab.label(b"".join(unit.text for unit in lab.units(run))))
    speculating = run != "no-speculation"
    topk = 4 if "topk4" in run else 1
    assert (segment.tp_size, segment.dp_size, segment.decode_log_interval) == (1, 1, 10)
    assert segment.num_steps == (3 if speculating else None)
    assert segment.topk == (topk if speculating else None)
    assert segment.num_draft_tokens == ({1: 4, 4: 8}[topk] if speculating else None)
    assert segment.spec_version == ("v1" if run == "healthy-topk4" else "v2" if speculating else None)
    assert (segment.spec_evidence is None) is not speculating
    assert segment.ready_line is not None
    assert not segment.graphs_captured
    assert not segment.buffered


def test_late_prints_of_the_warm_up():
    """Where prints are block-buffered the warm-up goes on behind the ready line, up to the second extend."""
    log = lab.units("style-noflush")
    items = lab.label(b"".join(unit.text for unit in log))
    (segment,) = lab.segments(items)
    assert segment.buffered
    assert segment.notes
    warm = [item for item in lab.forwards(items) if item.during == "warmup"]
    assert warm[-1].line > segment.ready_line
    assert [item.rows for item in warm if item.phase == "extend" and item.role == "target"] == [3]
    behind = [item for item in lab.forwards(items) if item.during == "serving"]
    assert (behind[0].role, behind[0].phase, behind[0].rows) == ("target", "extend", 1)
