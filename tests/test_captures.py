"""``captures``: counts per pass and in total, requested against captured, what is hidden and what is missing."""

from __future__ import annotations

import itertools
import re
from functools import lru_cache

import pytest
from conftest import CASES, real_log, sidecar, truth
from doors import answered
from from_items import from_items

from logscope.model import ForwardPass, Payload, Place, Prefix, Record, Segment, ServerEvent
from logscope.queries.captures import Captures
from logscope.report import Context
from logscope.run import answer, load


@lru_cache
def of(path):
    """Return the captures of a log; several tests look at the same ones."""
    return answer(Captures(), [str(path)])


def case(number):
    """Return the log of a case by the start of its name."""
    (log,) = CASES.glob(f"{number}-*.log")
    return log


def capture(line, layer, rows=4, norm=1.0, event="layer_capture", copies=1, site="dsv2"):
    """Return the record of one hidden capture, hidden size 8."""
    payload = Payload("event", event, site, "target", layer, (rows, 8), rows, 8, norm, 5e-5)
    return Record((line, 0, Prefix(), payload), copies)


def target(line, layers, *, during="serving", phase="verify", complete=True, extra=()):
    """Return a target pass that captured these layers."""
    records = [capture(line + at, layer) for at, layer in enumerate(layers)]
    item = ForwardPass(line, 1, (None, None, None), "target", "x.log", phase, "order", during=during)
    item.records = [*records, *extra]
    item.complete = complete
    return item


def asked(*items):
    """Return the answer over these items in one segment of x.log."""
    return answered(Captures(), [Segment(1, "x.log", 1), *items])


@pytest.mark.parametrize(
    ("run", "layers"), [("healthy-topk1", "3, 31, 59"), ("0.5.15.post1-healthy-topk1", "2, 30, 58")]
)
def test_three_per_target_pass_in_extend_and_verify(run, layers):
    """A healthy run: three captures per target pass in both phases, the layers the server captured, 3 x 7168 joined."""
    captured = next(line for line in truth(run) if line["kind"] == "layers")["captured_before"]
    assert ", ".join(map(str, captured)) == layers
    report = of(real_log(run))
    rows = {row["phase"]: row for row in report.tables["phases"]}
    assert set(rows) == {"extend", "verify"}
    for row in rows.values():
        assert row["per_pass"] == 3
        assert row["captures"] == 3 * row["passes"]
        assert row["layers"] == layers
        assert row["joined"] == "3 x 7168 = 21504"
        assert row["mode"] == "FULL"
        assert row["copies"] == "1"
    assert report.headline == (
        f"hidden captures: 3 per target pass (layers {layers}) in extend and verify, joined width 3 x 7168 = 21504."
    )
    assert report.facts["hidden_captures"] == 3 * report.facts["target_passes"]
    assert report.facts["layers"] == captured
    assert "deviations" not in report.tables


@pytest.mark.parametrize("run", ["cuda-graph", "0.5.15.post1-cuda-graph"])
def test_hidden_by_graphs_is_said_with_the_advice(run):
    """With graphs no verify is served, the dummy passes stand apart, and the way to see the verifies is given."""
    report = of(real_log(run))
    assert [row["phase"] for row in report.tables["phases"]] == ["extend"]
    assert {row["during"] for row in report.tables["not_serving"]} == {"graph_capture", "warmup"}
    assert "verify is hidden by CUDA graphs" in report.headline
    assert "--disable-cuda-graph" in report.notes[0]
    assert report.facts["hidden_by_graph"] == [1]


def test_what_is_hidden_needs_evidence():
    """Graphs are blamed only where a decode line or start-up shows them; a run without verifies alone proves nothing."""
    extend = target(1, [3], phase="extend")
    assert asked(extend).notes == []

    def decode(line, value):
        fields = {"accept_len": 2.0, "cuda_graph": value}
        return ServerEvent((line, 0, Prefix(), Payload("event", "decode_stats", fields=fields)), 1, "serving", "x.log")

    (note,) = asked(extend, decode(5, True), decode(6, False)).notes
    assert "1 of 2 decode lines say cuda graph: True (first x.log:5)" in note
    (note,) = asked(extend, target(3, [3]), decode(5, True)).notes
    assert note.startswith("some verify prints are hidden")
    assert asked(extend, decode(5, False)).notes == []
    captured = Segment(1, "x.log", 1, graphs_captured=True, num_draft_tokens=4)
    (note,) = answered(Captures(), [captured, extend]).notes
    assert note.startswith("verify prints are probably hidden")
    # Nothing is printed at all: there is no print to be hidden.
    assert answered(Captures(), [captured, decode(5, True)]).notes == []


@pytest.mark.parametrize("name", ["36a", "36b"])
def test_copies_are_not_captures(name):
    """Eight writers and four (three) captures a pass are never 32 (24) captures."""
    expected = sidecar(case(name))
    report = of(case(name))
    for row in report.tables["phases"]:
        assert row["per_pass"] == expected["hidden_captures_per_target_pass"]
        assert row["captures"] == row["per_pass"] * expected["target_passes_serving"][row["phase"]]
        assert row["joined"] == expected["joined_width"]
        assert row["copies"] == "8"
    assert report.facts["hidden_captures"] == 4 * expected["hidden_captures_per_target_pass"]
    assert report.notes[0].startswith("8 writers print the same records")


def test_the_same_with_a_rank_on_every_line(tmp_path):
    """Eight marked writers: the same counts, and every writer's own prints when the run is kept."""
    # The eight copies of every record stand one after the other.
    rank = itertools.cycle(range(8))
    lines = [
        f"[2026-02-10 14:10:20 TP{next(rank)}] {line}" if line.startswith("EAGLE3_DEBUG") else line
        for line in case("36a").read_text(encoding="utf-8").split("\n")
    ]
    log = tmp_path / "marked.log"
    log.write_text("\n".join(lines), encoding="utf-8")
    report = load(str(log)).captures()
    assert [(row["phase"], row["captures"], row["per_pass"], row["copies"]) for row in report.tables["phases"]] == [
        ("extend", 4, 4, "8"),
        ("verify", 12, 4, "8"),
    ]
    writers = report.tables["writers"].rows
    assert sorted(row["writer"] for row in writers) == [f"TP{rank}" for rank in range(8)]
    assert {row["captures"] for row in writers} == {16}
    assert {row["layers"] for row in writers} == {"embedding, 3, 31, 59"}
    # Read in flat memory the answer is the same.
    quick = answer(Captures(), [str(log)])
    assert quick.as_dict() == report.as_dict()
    assert any(note.startswith("8 writers print the same records") for note in quick.notes)


def test_a_missing_capture_is_named_with_its_place():
    """Case 29b lacks layer 2 in its second verify: the pass, its line and the layer."""
    log = case("29b")
    lines = log.read_text(encoding="utf-8").split("\n")
    expected = sidecar(log)["compare_29a_29b"]["missing_in_b"]
    starts = [at for at, line in enumerate(lines, 1) if "embed capture" in line]
    (row,) = of(log).tables["deviations"].rows
    assert row["where"] == f"{log}:{starts[expected['step']]}"
    assert (row["phase"], row["missing"], row["extra"]) == (expected["phase"], str(expected["layer"]), "")
    assert "deviations" not in of(case("29a")).tables


def test_pieces_of_a_prompt_are_passes_of_their_own():
    """Case 20b: four extends of four captures each, not sixteen captures of one pass, nor three too many."""
    report = of(case("20b"))
    (row,) = report.tables["phases"].rows
    assert (row["passes"], row["captures"], row["per_pass"]) == (4, 16, 4)
    assert "deviations" not in report.tables


def test_deviations_need_a_usual_set_and_complete_passes():
    """A pass at a cut edge is counted but not compared; an added state is named; halves have no usual set."""
    report = asked(*(target(line, [3, 31, 59]) for line in range(1, 40, 4)), target(50, [3], complete=False))
    assert "deviations" not in report.tables
    (row,) = report.tables["phases"].rows
    assert (row["passes"], row["per_pass"], row["captures"], row["incomplete"]) == (11, 3, 31, 1)
    report = asked(*(target(line, [3, 31, 59]) for line in range(1, 40, 4)), target(50, [0, 3, 31, 59]))
    (row,) = report.tables["deviations"].rows
    assert (row["where"], row["missing"], row["extra"]) == ("x.log:50", "", "embedding")
    report = asked(target(1, [3, 31]), target(5, [31, 59]))
    assert "deviations" not in report.tables
    assert report.tables["phases"].rows[0]["layers"] == "varies"


def test_layers_that_change_for_good_are_a_change_not_odd_passes():
    """Ten passes of one set, then thirty of another: where it changes. Passes that alternate, or a last one, do not."""
    sets = [3, 31, 59], [4, 32, 60]
    report = asked(*(target(1 + 4 * at, sets[at >= 10]) for at in range(40)))
    assert [note for note in report.notes if "change" in note] == [
        "the captured layers change in verify: 3, 31, 59 until x.log:37, 4, 32, 60 from x.log:41 on"
    ]
    assert not [note for note in report.notes if "not every pass" in note]
    for other in (lambda at: at % 5 == 4, lambda at: at == 39):
        report = asked(*(target(1 + 4 * at, sets[other(at)]) for at in range(40)))
        assert not [note for note in report.notes if "change" in note]
        assert [note for note in report.notes if "not every pass" in note]


def test_requested_layers_are_compared_with_the_captured_ones():
    """A capture plan that asks for a layer nobody captured: the plan's line, what is missing, what came besides."""
    plan = Payload("event", "capture_plan", "dsv2", "target", fields={"layers_to_capture": [3, 31, 61]})
    event = ServerEvent((2, 0, Prefix(), plan), 1, "startup", "x.log")
    (row,) = asked(event, target(5, [3, 31, 59])).tables["requested"].rows
    assert row["where"] == "x.log:2"
    assert row["requested"] == "3, 31, 61"
    assert row["captured"] == "3, 31, 59 (without layer 61, and layer 59 besides)"
    plan.fields["layers_to_capture"] = [3, 31, 59]
    (row,) = asked(event, target(5, [3, 31, 59])).tables["requested"].rows
    assert row["captured"] == "3, 31, 59 (the same)"


def test_states_that_are_counted_but_not_captured():
    """Case 08, run 2: four captures are printed and three joined; that is said, not called an error."""
    (note,) = [note for note in of(case("08")).notes if "aux_concat" in note]
    assert "counts 3 states where 4 hidden captures are printed, so 1 captured and not joined" in note
    assert of(case("08")).verdict == "ok"


def test_modes_that_differ_between_phases_are_said():
    """The real server whose verify joins with LAST: a fact with both phases, no verdict."""
    report = of(real_log("fault-verify-last"))
    assert {row["phase"]: row["mode"] for row in report.tables["phases"]} == {"extend": "FULL", "verify": "LAST"}
    assert "capture_hidden_mode is FULL in extend and LAST in verify" in report.notes


def test_a_server_that_died_in_warm_up():
    """Nothing was served; what warm-up captured is told as warm-up."""
    report = of(real_log("fault-embed-captured"))
    assert len(report.tables["phases"]) == 0
    assert report.headline.startswith("no hidden capture while serving; during warm-up: 4 per target pass")
    assert report.facts["hidden_captures"] == 0


def test_three_lines_without_anything_around_them():
    """Case 00: one state of 21 rows; how many writers there are cannot be told, and it is not claimed."""
    report = of(case("00"))
    assert any("how many writers print cannot be told" in note for note in report.notes)
    assert {row["rows"] for row in report.tables["layers"]} == {"21"}
    (row,) = report.tables["phases"].rows
    # By rows alone at best, and that evidence said; or unknown, with the reason.
    said = any(note.startswith("the phase of 1 pass is unknown: ") for note in report.notes)
    assert said if row["phase"] == "unknown" else report.facts["evidence"] == {"target extend": "rows"}
    assert not re.search(r"TP\d|rank \d", str(report.as_dict()))


def test_nothing_is_captured():
    """A log without debug prints: an honest empty answer."""
    report = of(real_log("no-speculation"))
    assert report.headline == "no hidden capture is printed in this log."
    assert report.facts["layers"] == []


def test_memory_stays_flat():
    """Hundreds of distinct layer sets, as damage makes them, are kept only up to a bound; the passes are all counted."""
    question = Captures()
    segment = Segment(1, "x.log", 1)
    lines = range(1, 1001)
    parts = [
        question.partial(
            from_items([segment, *(target(line, [3, 1000 + line]) for line in lines[start : start + 100])])
        )
        for start in range(0, 1000, 100)
    ]
    part = question.combine(parts)
    (row,) = question.report(part, Context()).tables["phases"].rows
    assert row["passes"] == 1000
    (bucket,) = part[0].buckets.values()
    assert len(bucket.of("set")) <= 64


def test_places_are_files_and_lines():
    """The first place of every captured layer can be opened in an editor."""
    for row in of(case("36b")).tables["layers"]:
        file, _, line = row["first"].rpartition(":")
        text = case("36b").read_text(encoding="utf-8").split("\n")[int(line) - 1]
        assert Place(file, int(line)).file == str(case("36b"))
        assert f"{row['layer']} capture" in text
