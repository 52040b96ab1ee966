"""``summarize``: the counts, names and first things to know of every kind of log."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections import Counter
from functools import lru_cache

import pytest
from conftest import CASE_LOGS, CASES, REAL_RUNS, real_bytes, real_log, sidecar, truth
from doors import answered
from from_items import from_items

from logscope.asking import Asked
from logscope.errors import NothingRecognised
from logscope.model import ForwardPass, Payload, Prefix, Record, Segment
from logscope.queries.captures import Captures
from logscope.queries.norms import Norms
from logscope.queries.shapes import Shapes
from logscope.queries.summarize import Summarize
from logscope.report import Context, Line
from logscope.run import answer, load

# Columns that scripts outside this repository read.
FIXED = {
    "phases": ["role", "phase", "passes", "rows_min", "rows_max", "hidden_captures", "per_pass", "copies"],
    "captures": ["site", "event", "layer", "role", "phase", "count", "copies", "shapes"],
    "accept": ["segment", "origin", "lines", "accept_len_mean", "min", "max", "rate_definition"],
}
FACTS = ["segments", "tp_size", "num_draft_tokens", "topk", "num_steps", "hidden", "layers", "cuda_graph"]
PHASES = {
    "EXTEND": "extend",
    "TARGET_VERIFY": "verify",
    "DECODE": "decode",
    "DRAFT_EXTEND": "draft_extend",
    "DRAFT_EXTEND_V2": "draft_extend",
}
EAGER = [
    "healthy-topk1",
    "healthy-topk1-specv1",
    "healthy-topk4",
    "healthy-chunked",
    "load-topk1",
    "style-alt",
    "fault-nan-layer30",
    "cuda-graph",
    "0.5.15.post1-healthy-topk4",
]


@lru_cache
def of(path):
    """Return the summary of a log; several tests look at the same ones."""
    return answer(Summarize(), [str(path)])


def case(number):
    """Return the log of a case by the start of its name."""
    (log,) = CASES.glob(f"{number}-*.log")
    return log


def passes(report):
    """Return the passes by (role, phase), those counted apart by (during, role, phase)."""
    found = Counter({(row["role"], row["phase"]): row["passes"] for row in report.tables["phases"]})
    apart = Counter()
    for row in report.tables.get("not_serving", []):
        for phase, number in row["by_phase"].items():
            apart[row["during"], row["role"], phase] += number
    return found, apart


def test_names_and_columns_are_the_fixed_ones():
    """Scripts find the tables, columns and facts of the fixed form in every log, whatever it holds."""
    for log in [*CASE_LOGS, real_log("no-speculation"), real_log("healthy-topk1")]:
        form = of(log).as_dict()
        assert form["kind"] == "summarize"
        assert form["verdict"] == "ok"
        for name, columns in FIXED.items():
            for row in form["tables"][name]:
                assert [column for column in columns if column not in row] == [], (log.name, name)
        assert [fact for fact in FACTS if fact not in form["facts"]] == []


@pytest.mark.parametrize("run", EAGER)
def test_every_forward_of_the_server_is_counted_once(run):
    """Passes by role and phase, served and warm-up together, are the forwards that the server itself recorded."""
    forwards = Counter(
        (line["model"], PHASES[line["forward_mode"]])
        for line in truth(run)
        if line["kind"] == "forward" and line["line_first"] is not None
    )
    served, apart = passes(of(real_log(run)))
    total = served + Counter({key[1:]: number for key, number in apart.items()})
    assert total == forwards


def test_serving_is_told_from_warm_up_by_the_ready_line():
    """Only what comes after "ready to roll" counts as serving: one extend and six verifies of warm-up stand apart."""
    served, apart = passes(of(real_log("healthy-topk1")))
    assert served == {
        ("target", "extend"): 15,
        ("target", "verify"): 244,
        ("draft", "extend"): 15,
        ("draft", "decode"): 488,
        ("draft", "draft_extend"): 244,
    }
    assert apart["warmup", "target", "extend"] == 1
    assert apart["warmup", "target", "verify"] == 6


def test_hidden_captures_of_a_healthy_run():
    """Three captures a target pass, one copy of each, layers and set-up as the server printed them."""
    report = of(real_log("healthy-topk1"))
    rows = {(row["role"], row["phase"]): row for row in report.tables["phases"]}
    for phase, number in (("extend", 15), ("verify", 244)):
        row = rows["target", phase]
        assert (row["hidden_captures"], row["per_pass"], row["copies"]) == (3 * number, 3, 1)
    assert rows["target", "verify"]["rows_min"] == 4
    assert rows["draft", "decode"]["hidden_captures"] is None
    facts = report.facts
    assert facts["layers"] == [3, 31, 59]
    assert facts["hidden"] == 7168
    assert (facts["num_steps"], facts["topk"], facts["num_draft_tokens"], facts["tp_size"]) == (3, 1, 4, 1)
    assert facts["cuda_graph"] is False
    assert facts["segments"] == 1
    assert report.notes == []
    assert "3 per target pass (layers 3, 31, 59) in extend and verify" in report.headline


@pytest.mark.parametrize("run", ["cuda-graph", "0.5.15.post1-cuda-graph"])
def test_dummy_passes_are_never_serving(run):
    """With CUDA graphs only extends are printed while serving; the verify prints are hidden, and the advice is given."""
    report = of(real_log(run))
    served, apart = passes(report)
    direct = Counter(
        (line["model"], PHASES[line["forward_mode"]])
        for line in truth(run)
        if line["kind"] == "forward" and line["via"] == "direct" and line["line_first"] is not None
    )
    assert served == {("target", "extend"): 15, ("draft", "extend"): 15}
    captured = {key[1:]: number for key, number in apart.items() if key[0] == "graph capture"}
    assert captured["target", "verify"] == direct["target", "verify"] > 0
    assert report.facts["cuda_graph"] is True
    assert report.notes[0].startswith("verify prints are hidden by CUDA graphs")
    assert "--disable-cuda-graph" in report.notes[0]
    assert "hidden by CUDA graphs" in report.headline


def test_graphs_of_every_device_are_counted():
    """Case 22: decode lines say cuda, npu or cpu graph; the one of a cpu says that none was used."""
    report = of(case("22"))
    assert [row["graphs"] for row in report.tables["segments"].rows] == ["replayed in 6 of 7 decode lines"]


@pytest.mark.parametrize("name", ["36a", "36b"])
def test_copies_of_eight_writers_are_one_capture(name):
    """Eight unmarked writers: passes, captures and joined width are those of one of them, and copies says eight."""
    expected = sidecar(case(name))
    report = of(case(name))
    served, _ = passes(report)
    for role in ("target", "draft"):
        for phase, number in expected[f"{role}_passes_serving"].items():
            assert served[role, phase] == number
    for row in report.tables["phases"]:
        assert row["copies"] == expected["writers"]
        if row["role"] == "target":
            assert row["per_pass"] == expected["hidden_captures_per_target_pass"]
            assert row["hidden_captures"] == row["per_pass"] * row["passes"]
    assert report.facts["joined"] == [expected["joined_width"]]
    assert any(note.startswith("8 writers print the same records") for note in report.notes)


def test_the_embedding_among_the_joined_states_is_said():
    """Case 36a joins the embedding: captures hold it in every verify too, and a note points at it."""
    report = of(case("36a"))
    embeds = {row["phase"]: row["count"] for row in report.tables["captures"] if row["event"] == "embed_capture"}
    assert embeds == {"extend": 1, "verify": 3}
    assert any("embedding and layers 3, 31, 59" in note for note in report.notes)
    assert not any("embedding" in note for note in of(case("36b")).notes)


def test_runs_in_one_file_are_never_merged():
    """Case 08 holds three servers: captures of the embedding are counted by run and phase."""
    expected = sidecar(case("08"))
    report = of(case("08"))
    assert report.facts["segments"] == 3
    found = [Counter(), Counter(), Counter()]
    for row in report.tables["captures"]:
        if row["event"] == "embed_capture":
            found[row["segment"] - 1][row["phase"]] += row["count"]
    assert [sum(run.values()) for run in found] == expected["embed_by_run"]
    for run, phases in zip(found, expected["embed_by_phase_per_run"], strict=True):
        either = phases.pop("decode_or_unknown", 0)
        assert run["decode"] + run["unknown"] == either
        assert {phase: run[phase] for phase in phases} == phases
    assert report.facts["num_draft_tokens"] == [4, 3]


def test_a_width_error_is_the_headline():
    """Case 08, run 1, and the real server that died the same way: which state is too many stands first."""
    for log in (case("08"), real_log("fault-embed-captured")):
        report = of(log)
        said = report.notes[0]
        assert "28672 = 4 states x 7168 arrived where 21504 = 3 states x 7168 was due" in said
        assert "the embedding is the extra state" in said
        assert report.headline.startswith("28672 = 4 states x 7168 arrived")


def test_graph_capture_warm_up_and_requests_are_counted_apart():
    """Case 10: captures by region are those of the sidecar, and no verify is served."""
    expected = sidecar(case("10"))["embed_by_region"]
    report = of(case("10"))
    apart = {row["during"]: row["hidden_captures"] for row in report.tables["not_serving"]}
    assert apart == {"graph capture": expected["graph_capture"], "warmup": expected["warm_up_request"]}
    assert [(row["phase"], row["hidden_captures"]) for row in report.tables["phases"]] == [
        ("extend", expected["requests"])
    ]
    assert "hidden by CUDA graphs" in report.headline


def test_models_are_not_mixed():
    """Case 26: two models print under one tag; their captures and hidden sizes stand apart."""
    found = Counter()
    shapes = {}
    for row in of(case("26")).tables["captures"]:
        found[row["site"]] += row["count"]
        shapes[row["site"]] = row["shapes"]
    assert found == sidecar(case("26"))["models"]
    assert "4096 hidden" in shapes["qwen3_moe"]
    # One of its seven is printed with one axis: it has no rows, not none of them.
    assert shapes["dsv2"] == "4 to 21 rows x 7168 hidden; 7168 hidden, one axis: no rows"


def test_processes_are_known_by_their_whole_prefix():
    """Case 17: every source has its own acceptance, and the capture belongs to the pod that printed it."""
    report = of(case("17"))
    expected = sidecar(case("17"))["decode_by_source"]
    rows = report.tables["accept"].rows
    assert sum(row["lines"] for row in rows) == sum(expected.values())
    for source, lines in expected.items():
        parts = source.split("/")
        (row,) = [row for row in rows if all(part in row["origin"] for part in parts)]
        assert row["lines"] == lines, source
        assert row["throughput_median"] is not None
    by_pod = {row["origin"].split()[0]: row["accept_len_mean"] for row in rows if row["origin"].startswith("pod/")}
    assert by_pod == {"pod/decode-0/sglang": 2.0, "pod/decode-1/sglang": 1.2}
    captures = [*report.tables["captures"], *report.tables.get("not_serving", [])]
    assert [row["source"] for row in captures] == ["pod/decode-1/sglang"]
    assert any("7 repeated lines" in note for note in report.notes)


def test_the_first_non_finite_state_is_pointed_at():
    """The real run whose layer 31 turns to nan: the first such line of the file, found here by its text alone."""
    text = real_bytes("fault-nan-layer30").decode("utf-8", "replace").split("\n")
    first = next(at for at, line in enumerate(text, 1) if "norm=nan" in line)
    assert "layer 31 capture" in text[first - 1]
    report = of(real_log("fault-nan-layer30"))
    note = next(note for note in report.notes if "nan or inf" in note)
    assert note.startswith(f"layer 31 is nan or inf since {real_log('fault-nan-layer30')}:{first}")
    assert "layer 3 stays finite" in note
    assert report.headline.startswith("layer 31 is nan or inf since")
    for row in report.tables["captures"]:
        bad = sum(
            1
            for line in text[real_ready(text) :]
            if f"layer {row['layer']} capture" in line and "norm=nan" in line and rows_of(line, row["phase"])
        )
        assert (row["non_finite"] or 0) <= bad
    served = sum(1 for line in text[real_ready(text) :] if "layer 31 capture" in line and "nan" in line)
    assert sum(row["non_finite"] for row in report.tables["captures"] if row["layer"] == 31) == served


@pytest.mark.parametrize(
    ("run", "begins"),
    [
        (
            "fault-concat-reversed",
            "460 of 460 joined states (extend and verify) begin with layer 59 and not with the lowest",
        ),
        (
            "fault-stale-states",
            "434 of 438 draft_extend inputs of the draft are not the joined state of the target pass",
        ),
        ("fault-verify-last", "capture_hidden_mode is FULL in extend and LAST in verify;"),
    ],
)
def test_what_is_odd_leads_the_headline(run, begins):
    """Servers with a fault: the first words of the summary are what a reader would not expect of a healthy one."""
    assert of(real_log(run)).headline.startswith(begins)


STATS = (
    "[2026-03-02 10:02:{:02d} TP0] Decode batch, #running-req: 4, #token: 2048, token usage: 0.10, accept len: 2.80, "
    "accept rate: 0.70, cuda graph: True, gen throughput (token/s): 350.00, #queue-req: 0"
)
ENDS = [
    (["[2026-03-02 10:02:41] Child process unexpectedly failed with exitcode=9. pid=4242"], "errors", "exit code 9"),
    (["Mar  2 10:02:41 gpu7 kernel: Out of memory: Killed process 4242 (sglang::schedul) total-vm:123456kB"],
     "errors", "the OOM killer of the kernel killed process 4242"),
    (["Fatal Python error: Segmentation fault", "", "Thread 0x00007f1 (most recent call first):",
      '  File "/sgl/x.py", line 33 in forward'], "errors", "Segmentation fault"),
    (["t.cu:1: block: [1,0,0], thread: [0,0,0] Assertion `a < b` failed."] * 64, "errors", "a < b, 64 times"),
    ([f'[2026-03-02 10:1{at}:00] INFO:     127.0.0.1:5000 - "GET /health HTTP/1.1" 200 OK' for at in range(9)],
     "silent", "TP0 printed its last line at :40"),
]  # fmt: skip


@pytest.mark.parametrize(("end", "name", "words"), ENDS, ids=[words for *_, words in ENDS])
def test_an_end_without_a_traceback_is_on_the_first_screen(end, name, words):
    """What `errors` finds, `summarize` names in its first line, above an accept len that is fine."""
    report = answer(Summarize(), [io.BytesIO("\n".join([*map(STATS.format, range(40)), *end]).encode())])
    first = next(line for line in report.screen if isinstance(line, Line))
    assert (first.name, words in first.text) == (name, True), first


@pytest.mark.parametrize(
    "run", [run for run in REAL_RUNS if "healthy" in run or run.startswith(("load", "style", "default"))]
)
def test_a_healthy_run_has_no_trouble_in_its_headline(run):
    """Healthy servers of both versions, every print style: the headline begins with what was captured."""
    assert of(real_log(run)).headline.startswith("hidden captures: 3 per target pass")


def real_ready(text):
    """Return the index of the first line after the ready line."""
    return next(at for at, line in enumerate(text, 1) if "fired up and ready to roll" in line)


def rows_of(line, phase):
    """Return whether a capture can belong to a phase: verify rows are multiples of the four draft tokens."""
    rows = int(re.search(r"Size\(\[(\d+)", line)[1])
    return phase != "verify" or rows % 4 == 0


def test_accounting_and_damage_are_shown():
    """The accounting is that of the reader, and damaged records are said to enter no number."""
    report = of(case("09"))
    accounting = report.as_dict()["accounting"]
    assert accounting["records"] == sum(
        accounting[name] for name in ("whole", "partial", "rejoined", "cut", "unparsed")
    )
    damaged = accounting["cut"] + accounting["rejoined"]
    assert damaged
    assert any(f"{damaged} records are damaged" in note for note in report.notes)
    assert not any("damaged" in note for note in of(case("36b")).notes)


def test_eight_torn_writers_are_three_passes():
    """Case 09: one extend and two verifies, eight copies each, however torn; the copy that differs is named."""
    report = of(case("09"))
    served, _ = passes(report)
    assert served == {("target", "extend"): 1, ("target", "verify"): 2}
    assert {row["copies"] for row in report.tables["phases"]} == {8}
    assert any("1 copy differs from what the other writers print" in note for note in report.notes)
    (accept,) = report.tables["accept"].rows
    assert accept["lines"] == 1


def test_a_log_without_debug_prints_says_so():
    """No forward pass is invented, throughput is still shown, and nothing is said to be hidden."""
    report = of(real_log("no-speculation"))
    assert len(report.tables["phases"]) == 0
    assert report.headline.startswith("no forward pass is printed; 44 decode lines")
    assert report.notes == []
    (row,) = report.tables["accept"].rows
    assert row["lines"] == 0
    speeds = [
        float(found) for found in re.findall(rb"gen throughput \(token/s\): ([\d.]+)", real_bytes("no-speculation"))
    ]
    assert row["throughput_max"] == max(speeds)


def test_where_fetched_files_came_from_is_shown():
    """The origin of a fetched file is shown, and stands in the facts as the fetcher gave it."""
    known = {"host": "gpu-1", "path": "/var/log/a.log", "last_fetched": "2026-11-29T12:00:00+00:00", "filtered": True}
    report = answered(Summarize(), [], Context(origins={"a.log": known}))
    assert report.facts["origins"] == {"a.log": known}
    (row,) = report.tables["origins"].rows
    assert row["origin"] == "gpu-1:/var/log/a.log"
    assert row["fetched"] == known["last_fetched"]
    assert "not all lines" in row["copy"]


def lines_of(report):
    """Return the lines of the first screen by what they are about."""
    return {line.name: line for line in reversed(report.screen) if isinstance(line, Line)}


def test_the_first_screen_names_what_is_wrong():
    """Each fault of a real server on its line, with its place; what was looked at and is fine has its mark, too."""
    lines = lines_of(of(real_log("fault-stale-states")))
    assert lines["draft reads"].mark == "error"
    assert lines["draft reads"].text.startswith("the previous pass's state since :")
    assert [lines[name].mark for name in ("captured", "joined", "values", "ranks")] == ["ok"] * 4
    assert lines["accept len"].mark == "warning"
    assert lines["accept len"].chart is not None
    lines = lines_of(of(real_log("fault-nan-layer30")))
    assert lines["values"].mark == "error"
    assert lines["values"].text.startswith("layer 31 is nan or inf since :")
    assert "beside" in lines_of(of(real_log("fault-embed-captured")))["errors"].text
    assert all(line.mark == "ok" for line in lines_of(of(real_log("healthy-topk1"))).values())


def test_a_decline_is_named_without_any_debug_print():
    """Case 02: two hours in which acceptance falls; the line says so and draws it."""
    line = lines_of(of(case("02")))["accept len"]
    assert line.mark == "warning"
    assert "falls" in line.text
    assert line.chart.worst is not None


def test_a_rank_that_differs_is_named(tmp_path):
    """Case 36a with a rank on every line, one of which prints another layer 31: which one, where first, how often."""
    ranks, lines = itertools.cycle(range(8)), []
    for text in case("36a").read_text(encoding="utf-8").split("\n"):
        said = text
        if text.startswith("EAGLE3_DEBUG"):
            rank = next(ranks)
            if rank == 3 and "layer 31 capture" in text:
                said = re.sub(r"norm=(\d+)", lambda found: f"norm={int(found[1]) + 7}", text)
            said = f"[2026-02-10 14:10:20 TP{rank}] {said}"
        lines.append(said)
    log = tmp_path / "ranks.log"
    log.write_text("\n".join(lines), encoding="utf-8")
    first = next(at for at, line in enumerate(lines, 1) if "TP3]" in line and "layer 31 capture" in line)
    line = lines_of(of(log))["ranks"]
    assert line.mark == "error"
    assert line.text.startswith(f"TP3 of 8 writers differ, first in layer 31 at :{first}, in ")


def target_pass(number, rows, layers=(3, 31, 59)):
    """Return a target pass with captures of norm 1."""
    records = [
        Record((number, 0, Prefix(), Payload("event", "layer_capture", "m", "target", layer, (rows, 8), rows, 8, 1.0)))
        for layer in layers
    ]
    return ForwardPass(number, 1, (None, None, None), "target", "x", "verify", "order", records=records)


def test_a_log_that_never_gets_ready_is_still_shown():
    """Start-up without the ready line: its passes are warm-up, shown in full, and the reason is said."""
    items = [target_pass(number, 4) for number in (1, 2)]
    for item in items:
        item.during = "warmup"
    report = answered(Summarize(), [Segment(1, "x", 1), *items])
    assert len(report.tables["phases"]) == 0
    (row,) = report.tables["not_serving"].rows
    assert (row["during"], row["passes"], row["rows_max"], row["hidden_captures"]) == ("warmup", 2, 4, 6)
    assert any("no 'ready to roll' line" in note for note in report.notes)
    assert "hidden captures in warm-up: 3 per target pass" in report.headline


def test_it_can_be_asked_again_as_the_log_grows():
    """A live log: the same answer for the same items however often it is asked, and larger counts later."""
    asked = Asked(Summarize())
    asked.add(from_items([Segment(1, "x", 1), target_pass(1, 4)]))
    once = asked.report(Context()).as_dict()
    assert asked.report(Context()).as_dict() == once
    asked.add(from_items([Segment(1, "x", 1), target_pass(2, 4)], key=1))
    assert asked.report(Context()).tables["phases"].rows[0]["passes"] == 2


def test_a_pass_that_lacks_a_capture_does_not_hide_in_a_mean():
    """per_pass stays the usual number, and the odd pass is named with its place."""
    items = [target_pass(number, 4, (3, 59) if number == 7 else (3, 31, 59)) for number in range(1, 11)]
    report = answered(Summarize(), [Segment(1, "x", 1), *items])
    (row,) = report.tables["phases"].rows
    assert (row["per_pass"], row["hidden_captures"]) == (3, 29)
    assert any("(first x:7)" in note for note in report.notes)


def test_what_a_run_in_memory_says_is_what_the_stream_says():
    """Keeping the run or not changes nothing but the writers of copies."""
    log = case("36a")
    assert load(str(log)).summarize().as_dict() == of(log).as_dict()


@pytest.mark.parametrize("query", [Summarize, Captures, Shapes, Norms])
def test_a_log_cut_or_damaged_anywhere_is_answered(query):
    """Cut at any byte, with text and sizes overwritten: every question answers, in the JSON form, and nothing is nan."""
    whole = case("36a").read_bytes()[:30_000] + real_bytes("fault-nan-layer30")[-30_000:]
    for at in range(0, len(whole), 1777):
        damaged = whole[at : at + 9000].replace(b"7168]", b"7nan8]", at % 3).replace(b"3, ", b"x, ", at % 2)
        try:
            run = load(io.BytesIO(damaged))
        except NothingRecognised:
            continue
        assert json.dumps(run.ask(query()).as_dict(), allow_nan=False)
