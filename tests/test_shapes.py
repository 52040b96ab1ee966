"""``shapes``: rows are told from states in every sentence, and every pair that looks alike is explained."""

from __future__ import annotations

import re
from functools import lru_cache

import pytest
from conftest import CASE_LOGS, CASES, REAL_RUNS, real_bytes, real_log, sidecar
from doors import answered

from logscope.model import ForwardPass, Payload, Prefix, Record, Segment
from logscope.queries.captures import Captures
from logscope.queries.norms import Norms
from logscope.queries.shapes import Shapes
from logscope.queries.summarize import Summarize
from logscope.queries.words import axes, count, layer_list, percent
from logscope.render import render
from logscope.render.text import Style
from logscope.run import answer, load

# Two bare numbers with an x between them: nobody can tell rows from states there.
BARE = re.compile(r"\b\d+\s?x\s?\d+\b")
# The form that says what the numbers are: a width as k x hidden, with the width itself.
SAID = re.compile(r"\b\d+ x \d+ = \d+\b|\b1 x \d+\b")


@lru_cache
def of(path):
    """Return the shapes of a log; several tests look at the same ones."""
    return answer(Shapes(), [str(path)])


def case(number):
    """Return the log of a case by the start of its name."""
    (log,) = CASES.glob(f"{number}-*.log")
    return log


def notes(path, words):
    """Return the notes of a log that contain some words."""
    return [note for note in of(path).notes if words in note]


def forward(number, role, phase, *records, during="serving"):
    """Return a pass with records of (event, layer, shape), hidden size 8."""
    item = ForwardPass(number, 1, (None, None, None), role, "x", phase, "order", during=during)
    item.records = [
        Record(
            (
                number + at,
                0,
                Prefix(),
                Payload(
                    "event", event, "m", role if event != "aux_concat" else None, layer, shape, shape[0], shape[-1]
                ),
            )
        )
        for at, (event, layer, shape) in enumerate(records)
    ]
    return item


def asked(*items, **setup):
    """Return the answer over items in one segment."""
    return answered(Shapes(), [Segment(1, "x", 1, **setup), *items])


@pytest.mark.parametrize(
    ("shape", "hidden", "words"),
    [
        ((21, 7168), 7168, "21 rows x 7168 hidden"),
        ((4, 21504), 7168, "4 rows x 3 states x 7168"),
        ((1, 28672), 7168, "1 row x 4 states x 7168"),
        ((4, 3, 7168), 7168, "4 rows x 3 states x 7168"),
        ((4, 21504), None, "4 rows x 21504 wide"),
        ((4, 5000), 7168, "4 rows x 5000 wide"),
        ((0, 7168), 7168, "0 rows x 7168 hidden"),
        ((7168,), 7168, "7168 hidden, one axis: no rows"),
        ((8192, 7168), 7168, "8,192 rows x 7168 hidden"),
        ((2, 16, 4, 128), 7168, "2 rows x axis 1 of 16 x axis 2 of 4 x 128 wide"),
        ((), 7168, "a single number"),
    ],
)
def test_every_axis_has_a_name(shape, hidden, words):
    """A shape in words says what each of its numbers counts."""
    assert axes(shape, hidden) == words


def test_shares_never_flatter():
    """Only all of them is 100 %, only none is 0 %; everything between is cut, not rounded up."""
    assert percent(431, 431) == "100 %"
    assert percent(99_999, 100_000) == "99.9 %"
    assert percent(1, 100_000) == "0.1 %"
    assert percent(0, 5) == "0 %"
    assert percent(220, 222) == "99.0 %"
    assert count(1, "pass") == "1 pass"
    assert count(1200, "pass") == "1,200 passes"
    assert layer_list([0, 3, None]) == "embedding, layer 3 and 1 unnamed layer"


@pytest.mark.parametrize(
    "log", [*CASE_LOGS, *(real_log(run) for run in REAL_RUNS)], ids=lambda log: log.parent.name[:24] + log.name[:3]
)
def test_no_report_prints_two_bare_numbers(log):
    """``4x7168`` stands nowhere: not in headlines, notes or cells of any of the four reports."""
    run = load(str(log))
    for query in (Summarize(), Captures(), Shapes(), Norms()):
        report = run.ask(query)
        texts = [report.headline, *report.notes]
        # The first screen is one: 24 lines of 80 columns, but for a command that is to be copied.
        screen = render(report, "table", Style(width=80)).rstrip("\n").split("\n")
        assert sum(max(1, -(-len(line) // 80)) for line in screen) <= 24
        assert all(len(line) <= 80 or line.startswith(("next: ", str(log))) for line in screen)
        for table in report.tables.values():
            texts += [str(row.get(column.name)) for row in table for column in table.columns if column.name != "sizes"]
        for text in texts:
            # What the log itself says in an error is quoted, not said.
            quoted = "cannot be multiplied" in text
            assert quoted or not BARE.search(SAID.sub("", text)), text


def test_every_shape_of_a_log_is_listed_with_its_first_line():
    """A healthy log: the distinct shapes of its text, all of them, each with its count and first place."""
    text = real_bytes("healthy-topk1").decode("utf-8", "replace").split("\n")
    ready = next(at for at, line in enumerate(text, 1) if "fired up and ready to roll" in line)
    first, number = {}, {}
    for at, line in enumerate(text, 1):
        if at <= ready or "EAGLE3_DEBUG[" not in line:
            continue
        # The lists of single states in forward_end repeat its captures; its own shape is the last one.
        sizes = re.findall(r"(\w+)=torch\.Size\(\[([\d, ]+)\]\)", line)
        for key, found in sizes:
            if key in ("shape", "hidden_states", "embeds", "hidden_shape"):
                shape = tuple(int(size) for size in found.split(","))
                first.setdefault(shape, at)
                number[shape] = number.get(shape, 0) + 1
    rows = {tuple(row["sizes"]): row for row in of(real_log("healthy-topk1")).tables["shapes"]}
    assert set(rows) == set(first)
    for shape, row in rows.items():
        assert row["count"] == number[shape], shape
        assert row["first"] == f"{real_log('healthy-topk1')}:{first[shape]}"


def test_a_width_error_names_the_extra_state():
    """Case 08, run 1: 4 x 7168 against 3 x 7168 are states there, and the embedding is the fourth."""
    expected = sidecar(case("08"))["run1_fc"]
    (note,) = notes(case("08"), "was due")
    got, hidden, arrived = re.findall(r"\d+", expected["got"])
    want, _, due = re.findall(r"\d+", expected["want"])
    assert note.startswith(
        f"{arrived} = {got} states x {hidden} arrived where {due} = {want} states x {hidden} was due"
    )
    assert "the embedding is the extra state" in note
    assert "layers 2, 30, 58" in note
    assert "the 21 rows are the tokens of the pass and no part of the mismatch" in note


def test_rows_and_states_of_the_same_number_are_told_apart():
    """Case 36a: 4 rows of a verify are not the 4 joined states."""
    (note,) = notes(case("36a"), "are different things")
    assert "4 rows = 1 request x 4 draft tokens" in note
    assert "4 states (embedding and layers 3, 31, 59)" in note
    assert not notes(case("36b"), "are different things")


def test_rows_that_differ_between_runs_are_configuration():
    """Case 08: verify reads 4 rows in runs 1 and 2 and 3 in run 3; that is num_draft_tokens, no mismatch."""
    (note,) = notes(case("08"), "configuration")
    assert "4 rows a request in runs 1 and 2 and 3 rows a request in run 3" in note
    assert "not an error" in note
    assert of(case("08")).verdict == "ok"


def test_the_same_rows_can_be_extend_or_verify():
    """Case 08, run 2: 4 rows are an extend after the second prefill and a verify elsewhere; how it is known is said."""
    (note,) = notes(case("08"), "can be either")
    assert note.startswith("run 2: 4 rows can be either")
    assert "08-four-states-or-four-rows.log:28" in note
    assert "known by server" in note


def test_rows_that_no_verify_can_have():
    """Case 08, run 3: 1 row is no multiple of 3 draft tokens and is not called a verify."""
    (note,) = notes(case("08"), "no multiple of")
    assert note.startswith("run 3: 1 row at")
    assert note.count(":38") == 1


def test_accepted_rows_are_explained():
    """Spec v1: 4 rows verified and 3 kept are one request's draft tokens and what was accepted of them."""
    (note,) = notes(real_log("healthy-topk1-specv1"), "differ in rows, not in states")
    assert note.startswith("4 rows and 3 rows of the same width")
    assert "verify reads 1 request x 4 draft tokens" in note
    assert "draft_extend kept 3 accepted rows" in note
    # The two places are the joined state of a verify of 4 rows and the draft pass of 3 rows after it.
    text = real_bytes("healthy-topk1-specv1").decode("utf-8", "replace").split("\n")
    verify, kept = (int(line) for line in re.findall(r"server\.log\.gz:(\d+)\)", note))
    assert "aux concat: num_aux=3, shape=torch.Size([4, 21504])" in text[verify - 1]
    assert "forward: hidden_states=torch.Size([3, 21504])" in text[kept - 1]
    assert not notes(real_log("healthy-topk1"), "differ in rows, not in states")


@pytest.mark.parametrize("run", ["healthy-chunked", "0.5.15.post1-healthy-chunked"])
def test_a_prompt_in_pieces_is_recognised_by_the_servers_own_setting(run):
    """300 new tokens with a chunk size of 64: five extends are one prompt, and the setting is the evidence."""
    (note,) = notes(real_log(run), "read in pieces")
    assert "5 extend passes of 44 to 64 rows" in note
    assert "one prompt of 300 rows" in note
    assert "chunked_prefill_size is 64" in note


def test_a_prompt_in_pieces_without_the_setting():
    """Case 20b: four long extends of equal rows in a row; the evidence is that they follow each other."""
    rows, pieces = sidecar(case("20b"))["compare_20a_20b"]["rows"]
    assert pieces == "4 x 8192"
    (note,) = notes(case("20b"), "read in pieces")
    assert "4 extend passes of 8,192 rows" in note
    assert f"{rows:,} rows" in note
    assert not notes(case("20a"), "read in pieces")


def test_short_prompts_of_equal_length_are_no_pieces():
    """Two requests of 21 tokens one after the other are two prompts unless the server's setting says otherwise."""
    extends = [forward(at, "target", "extend", ("layer_capture", 3, (21, 8))) for at in (1, 2)]
    verify = forward(9, "target", "verify", ("layer_capture", 3, (4, 8)))
    assert not any("pieces" in note for note in asked(*extends, verify).notes)
    known = asked(*extends, verify, server_args={"chunked_prefill_size": 21})
    assert any("chunked_prefill_size is 21" in note for note in known.notes)


def test_two_models_are_counted_apart():
    """Case 26: 7168 and 4096 wide states belong to two models, and their shapes are not one row."""
    (note,) = notes(case("26"), "different models")
    assert "dsv2 is 7168 wide" in note
    assert "qwen3_moe is 4096 wide" in note
    shapes = [row["shape"] for row in of(case("26")).tables["shapes"]]
    assert "4 rows x 4096 hidden" in shapes
    assert "4 rows x 7168 hidden" in shapes


def test_hidden_is_known_with_its_evidence():
    """The hidden size comes from the captures where there are any, else from what was joined; else it is not claimed."""
    (fact,) = [fact for fact in of(real_log("healthy-topk1")).facts["hidden"] if fact["site"] == "dsv2"]
    assert fact["size"] == 7168
    assert re.fullmatch(r"[\d,]+ hidden captures are 7168 wide", fact["evidence"])
    join = Payload("event", "aux_concat", "logits", None, None, (4, 24), 4, 24, fields={"num_aux": 3})
    item = ForwardPass(1, 1, (None, None, None), "target", "x", "verify", "order")
    item.records = [Record((1, 0, Prefix(), join))]
    (fact,) = asked(item).facts["hidden"]
    assert (fact["size"], fact["evidence"]) == (8, "3 states joined to 24 in 1 pass")
    bare = forward(1, "draft", "decode", ("forward", None, (4, 24)))
    assert asked(bare).facts["hidden"] == []
    assert asked(bare).tables["shapes"].rows[0]["shape"] == "4 rows x 24 wide"


def test_missing_states_are_counted():
    """Case 06: two states against a draft of three; one is missing, and tensor parallelism is not blamed."""
    (note,) = notes(case("06"), "was due")
    assert note.startswith("5760 = 2 states x 2880 arrived where 8640 = 3 states x 2880 was due")
    assert "1 state is missing" in note
    assert "tp" not in note.replace("tp-tracebacks", "")


def test_the_unit_of_a_width_error_has_its_evidence():
    """Case 07 prints no capture: the state's size is the weight's output, and the other reading stands beside it."""
    expected = sidecar(case("07"))
    (note,) = notes(case("07"), "was due")
    assert note.startswith("151552 = 37 states x 4096 arrived where 12288 = 3 states x 4096 was due")
    assert "the 112 rows are the tokens of the pass" in note
    assert "4096 is the width the weight gives" in note
    assert "151552 is also a vocabulary size in use" in note
    assert expected["events"]["matmul_mismatch"] == 1


def test_a_log_without_passes():
    """Nothing printed: an honest empty answer."""
    report = of(real_log("no-speculation"))
    assert report.headline.startswith("no forward pass is printed")
    assert report.notes == []
