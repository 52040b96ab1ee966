"""``norms``: fingerprints without NaN, what was joined, where the draft's input came from, and running statistics."""

from __future__ import annotations

import math
import re
import statistics
from functools import lru_cache

import numpy as np
import pytest
from conftest import CASES, REAL_RUNS, real_bytes, real_log, sidecar, truth
from doors import answered
from from_items import from_items

from logscope.model import ForwardPass, Payload, Prefix, Record, Segment
from logscope.queries.counts import RELATIVE, Cell, Spread
from logscope.queries.lineage import joined_states
from logscope.queries.norms import Norms
from logscope.report import Context
from logscope.run import answer

HEALTHY_V2 = [
    "healthy-topk1",
    "healthy-chunked",
    "load-topk1",
    "style-alt",
    "style-logger",
    "style-noflush",
    "default-layer-ids",
    "0.5.15.post1-healthy-topk1",
    "0.5.15.post1-healthy-topk4",
    "0.5.15.post1-healthy-chunked",
]
JOIN = re.compile(r"\[logits\] aux concat: num_aux=3, shape=torch\.Size\(\[(\d+), 21504\]\).*?(norm=.*)$")
READ = re.compile(r"\[eagle3\] forward: hidden_states=torch\.Size\(\[(\d+), 21504\]\).*?(norm=.*)$")


@lru_cache
def of(path):
    """Return the norms of a log; several tests look at the same ones."""
    return answer(Norms(), [str(path)])


def case(number):
    """Return the log of a case by the start of its name."""
    (log,) = CASES.glob(f"{number}-*.log")
    return log


def lineage(report):
    """Return the rows of the lineage table by phase."""
    return {row["phase"]: row for row in report.tables["lineage"]}


def reads(run):
    """Return [(line, same text, same head, rows read, rows joined)] of a log, by its raw text alone.

    One entry for each k x hidden input of the draft, compared with the target's joined state before it.
    """
    out = []
    rows, said = 0, ""
    for number, line in enumerate(real_bytes(run).decode("utf-8", "replace").split("\n"), 1):
        if found := JOIN.search(line):
            rows, said = int(found[1]), found[2]
        elif found := READ.search(line):
            same_first = found[2].partition("first5")[2] == said.partition("first5")[2]
            out.append((number, found[2] == said, same_first, int(found[1]), rows))
    return out


# ------------------------------------------------------------------------------------------------- running statistics


def spread(values, batch=None):
    """Return the spread of values, taken at once or in batches, one value a pass."""
    made = Spread()
    values = np.asarray(values, float)
    for start in range(0, len(values), batch or max(1, len(values))):
        stop = min(len(values), start + (batch or len(values)))
        made.add(Spread.of(values[start:stop], np.arange(start, stop)))
    return made


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e12])
@pytest.mark.parametrize("count", [1, 2, 3, 100, 20_000])
def test_medians_are_within_the_stated_error(scale, count):
    """The bins keep the promise of the docstring, number and extremes are exact, in any batches."""
    # Spread over nine powers of ten, in no order.
    values = [scale * math.exp(20 * math.sin(at * at)) for at in range(count)]
    made, parts = spread(values), spread(values, 700)
    assert made.median == pytest.approx(statistics.median_low(values), rel=2 * RELATIVE)
    assert (made.number, made.low, made.high) == (count, min(values), max(values))
    assert (parts.number, parts.low, parts.high) == (made.number, made.low, made.high)
    assert parts.median == pytest.approx(made.median)
    assert len(parts.stretches) <= 512


def test_zeros_have_a_median():
    """Values that are mostly zero have the median zero, in the bins as well."""
    assert spread([0.0 if at % 3 else 1.0 for at in range(10_000)]).median == 0.0


def test_no_values_no_statistics():
    """Nothing printed: nothing claimed."""
    assert (Spread().median, Spread().change, Spread().number) == (None, None, 0)


@pytest.mark.parametrize("count", [400, 10_000])
def test_a_trend_is_told_from_scatter(count):
    """Scatter around a level has no trend; a level that rises by a tenth has one of about that size."""
    noise = [0.04 * math.sin(at * at) for at in range(count)]
    assert spread([1 + each for each in noise]).change is None
    rising = [1 + 0.2 * at / count + each for at, each in enumerate(noise)]
    # Mean of the last quarter against the first: 1.175 / 1.025.
    assert spread(rising).change == pytest.approx(1.175 / 1.025 - 1, abs=0.02)
    assert spread(rising, 100).change == pytest.approx(spread(rising).change, rel=0.05)


def test_the_digest_is_stable_and_short():
    """Equal first values give equal names whatever follows; another value gives another name; it never changes."""
    one, other, empty = (Cell("aux_concat", None, None) for _ in range(3))
    one.prints = [(10.6277, 0.01, -0.5), (4.7,)]
    other.prints = [(10.7277, 0.01, -0.5), (4.7,)]
    assert one.digest != other.digest
    assert re.fullmatch(r"[0-9a-f]{8}", one.digest)
    assert empty.digest == ""


# ---------------------------------------------------------------------------------------------------------- comparing


def state(role, phase, number, event, rows, head, norm, width=24):
    """Return a pass of one state."""
    payload = Payload("event", event, "m", role, None, (rows, width), rows, width, norm, 5e-5, head=head)
    item = ForwardPass(number, 1, (None, None, None), role, "x", phase, "order")
    item.records = [Record((number, 0, Prefix(), payload))]
    return item


def joined(captures, join, number=None):
    """Return the identity of a pass that captured (layer, norm, half the last digit, first values) and joined."""
    shape = {"shape": (4, 8), "rows": 4, "width": 8}
    records = [
        Payload("event", "layer_capture", "m", "target", layer, norm=norm, norm_resolution=slack, head=head, **shape)
        for layer, norm, slack, head in captures
    ]
    norm, slack, head = join
    whole = {"shape": (4, 24), "rows": 4, "width": 24, "fields": {} if number is None else {"num_aux": number}}
    records.append(Payload("event", "aux_concat", "logits", norm=norm, norm_resolution=slack, head=head, **whole))
    item = ForwardPass(1, 1, (None, None, None), "target", "x", "verify", "order")
    item.records = [Record((at, at, Prefix(), payload)) for at, payload in enumerate(records, 1)]
    item.complete = True
    return joined_states(from_items([Segment(1, "x", 1), item])).row(0, named=True)


def test_the_norm_identity_has_the_tolerance_it_states():
    """3-4-5: a deviation of 4e-6 of the square holds, one of 4e-5 does not, a missing norm cannot be checked."""
    captures = [(3, 3.0, 0.0, None), (31, 4.0, 0.0, None)]
    assert joined(captures, (5.0 * (1 + 2e-6), 0.0, None))["holds"] is True
    assert joined(captures, (5.0 * (1 + 2e-5), 0.0, None))["holds"] is False
    assert joined(captures, (5.0 * (1 + 2e-5), 5e-4, None))["holds"] is True
    # Rounded captures allow 2 x norm x half a digit each: 0.004 of 25 here, and no more.
    rounded = [(layer, norm, 3e-4, None) for layer, norm, _, _ in captures]
    assert joined(rounded, (math.sqrt(25.004), 0.0, None))["holds"] is True
    assert joined(rounded, (math.sqrt(25.006), 0.0, None))["holds"] is False
    assert joined(captures, (math.nan, 0.0, None))["holds"] is None
    assert joined(captures, (None, 0.0, None))["holds"] is None


def test_the_joined_subset_is_found_by_its_norm():
    """Four captures and three joined: the only three whose squares add up are the joined ones."""
    captures = [(0, 2.0, 5e-5, None), (3, 3.0, 5e-5, None), (31, 4.0, 5e-5, None), (59, 12.0, 5e-5, None)]
    found = joined(captures, (13.0, 5e-5, None), 3)
    assert (found["holds"], found["joined"]) == (True, [3, 31, 59])
    assert joined(captures, (13.0, 5e-5, None))["holds"] is False


def test_a_join_begins_with_its_lowest_capture():
    """First values: those of the lowest capture, of another, of none; nan equals nan; not printed is not compared."""
    captures = [(3, 3.0, 0.0, (1.0, math.nan)), (31, 4.0, 0.0, (2.0, 0.5))]
    for head, holds, of in (
        ((1.0, math.nan), True, None),
        ((2.0, 0.5), False, 31),
        ((7.0, 0.5), False, None),
        (None, None, None),
    ):
        found = joined(captures, (5.0, 0.0, head))
        assert (found["head_holds"], found["head_of"]) == (holds, of)


# -------------------------------------------------------------------------------------------------------- whole logs


def test_rms_of_the_line_this_project_began_with():
    """Case 00: norm 10.6277 of 21 rows x 7168 is an rms of 0.0274, whatever the copies."""
    (row,) = of(case("00")).tables["norms"].rows
    assert row["rms_median"] == pytest.approx(10.6277 / math.sqrt(21 * 7168))
    assert round(row["rms_median"], 4) == 0.0274
    assert row["state"] == "embedding (layer 0)"


def test_nan_enters_no_statistic():
    """Case 11: three records are not finite, one state is all zero; the first is layer 30 at line 4; nothing is nan."""
    expected = sidecar(case("11"))
    report = of(case("11"))
    rows = report.tables["norms"].rows
    assert sum(row["non_finite"] for row in rows) == expected["non_finite_records"]
    assert sum(row["zero"] for row in rows) == expected["all_zero_records"]
    first = expected["first_non_finite"]
    assert report.headline.startswith(f"layer {first['layer']} is nan or inf first, at {case('11')}:{first['line']}")
    for row in rows:
        for name in ("rms_min", "rms_median", "rms_max"):
            assert row[name] is None or math.isfinite(row[name])
    assert any("embedding (layer 0) is all zero" in note for note in report.notes)


def test_non_finite_is_counted_by_record():
    """A head with inf beside a finite norm is not finite; eight copies of one record are one; both stay out of rms."""
    items = [Segment(1, "x", 1)]
    for number, head, norm, copies in ((1, (1.0,), 5.0, 8), (2, (math.inf,), 5.0, 8), (3, (1.0,), math.nan, 8)):
        item = state("target", "verify", number, "aux_concat", 4, head, norm)
        item.records[0].copies = copies
        items.append(item)
    (row,) = answered(Norms(), items).tables["norms"].rows
    assert (row["count"], row["non_finite"], row["first_non_finite"]) == (3, 2, "x:2")
    assert row["rms_min"] == row["rms_max"] == pytest.approx(5.0 / math.sqrt(4 * 24))


@pytest.mark.parametrize("run", HEALTHY_V2)
def test_lineage_of_a_healthy_v2_run_is_complete(run):
    """Every k x hidden input of the draft is the joined state of the target pass before it."""
    report = of(real_log(run))
    forwards = [line for line in truth(run) if line["kind"] == "forward" and line["line_first"] is not None]
    by_phase = lineage(report)
    for phase, modes in (("extend", {"EXTEND"}), ("draft_extend", {"DRAFT_EXTEND_V2"})):
        row = by_phase[phase]
        printed = sum(1 for line in forwards if line["model"] == "draft" and line["forward_mode"] in modes)
        lost = 2 if run == "style-noflush" else 0
        assert printed - lost <= row["inputs"] <= printed
        assert row["traced"] == row["inputs"]
        assert (row["share"], row["not_traced"], row["cannot_tell"]) == ("100 %", 0, 0)
        assert row["reads"] == "target's joined state"
    assert by_phase["decode"]["reads"] == "draft's own output"
    assert by_phase["decode"]["not_traced"] == 0
    assert not any("joined" in note for note in report.notes)
    for row in report.tables["joins"]:
        held, total = row["norm"].split(" of ")
        assert held == total
    inputs = by_phase["extend"]["inputs"] + by_phase["draft_extend"]["inputs"]
    assert f"the draft reads the state joined before it in {inputs} of {inputs} passes" in report.headline


@pytest.mark.parametrize("run", ["healthy-topk1-specv1", "healthy-topk4"])
def test_lineage_of_spec_v1_is_a_share_by_head(run):
    """Accepted rows only: heads agree but where request 0 had just finished; the counts are those of the raw text."""
    found = reads(run)
    kept = [entry for entry in found if entry[3] <= entry[4]]
    extends = sum(
        1
        for line in truth(run)
        if line["kind"] == "forward" and line["model"] == "draft" and line["forward_mode"] == "EXTEND"
    )
    row = lineage(of(real_log(run)))["draft_extend"]
    assert row["inputs"] == len(kept) - extends
    assert row["traced"] == sum(1 for entry in kept if entry[2]) - extends
    assert row["not_traced"] == sum(1 for entry in kept if not entry[2])
    if run == "healthy-topk1-specv1":
        assert (row["traced"], row["inputs"]) == (220, 222)
    (note,) = [note for note in of(real_log(run)).notes if "not the joined state" in note]
    assert "request 0 has just finished" in note
    assert of(real_log(run)).headline.startswith("all norms are finite")


@pytest.mark.parametrize("run", ["fault-stale-states", "0.5.15.post1-fault-stale-states"])
def test_stale_states_are_counted_and_dated(run):
    """How many inputs are not the joined state before them, since which line, and that they are one pass old."""
    found = [entry for entry in reads(run) if not entry[1]]
    report = of(real_log(run))
    row = lineage(report)["draft_extend"]
    assert row["not_traced"] == len(found)
    assert row["since"] == f"{real_log(run)}:{found[0][0]}"
    assert report.facts["draft_inputs_not_traced"] == len(found)
    inputs = report.facts["draft_inputs"]
    assert report.headline.startswith(
        f"{len(found)} of {inputs} draft inputs are not the state joined before them, since"
    )
    note = report.notes[0]
    assert note.startswith(f"{len(found)} of {row['inputs']} draft_extend inputs of the draft are not the joined state")
    assert "equal the state joined 1 target pass earlier: stale" in note
    assert row["stale"][1] > 0.9 * len(found)
    assert lineage(report)["extend"]["not_traced"] == 0


def test_a_reversed_join_keeps_its_norm_and_loses_its_head():
    """The real server that joined in reverse: the norm identity holds, the head is that of layer 59."""
    report = of(real_log("fault-concat-reversed"))
    for row in report.tables["joins"]:
        assert row["norm"] == f"{row['passes']} of {row['passes']}"
        assert row["head"] == f"0 of {row['passes']}"
    assert any("begin with layer 59 and not with the lowest layer" in note for note in report.notes)


def test_pieces_of_a_prompt_keep_their_norms():
    """Case 20b: the joined squares of the four pieces are those of the sidecar."""
    expected = sidecar(case("20b"))["compare_20a_20b"]["joined_norm_b"]
    text = case("20b").read_text(encoding="utf-8")
    for row in of(case("20b")).tables["norms"]:
        name = "embed" if row["layer"] == 0 else str(row["layer"])
        label = "embed capture:" if row["layer"] == 0 else f"layer_id={row['layer']},"
        norms = [float(found) for found in re.findall(re.escape(label) + r".*norm=([\d.]+)", text)]
        assert math.sqrt(sum(norm * norm for norm in norms)) == pytest.approx(expected[name], abs=6e-5)
        assert row["count"] == 4
        assert row["rms_max"] == pytest.approx(max(norms) / math.sqrt(8192 * 7168))


def test_two_runs_of_one_workload_have_one_fingerprint():
    """The same server started twice: the digest of every state is the same, and the joined state's is its reader's."""
    names = {}
    for run in ("healthy-topk1", "healthy-topk1-again"):
        rows = of(real_log(run)).tables["norms"].rows
        names[run] = {(row["role"], row["phase"], row["state"]): row["digest"] for row in rows}
    assert names["healthy-topk1"] == names["healthy-topk1-again"]
    assert (
        names["healthy-topk1"]["target", "verify", "joined state"]
        == (names["healthy-topk1"]["draft", "draft_extend", "draft input"])
    )


def test_dummy_passes_have_no_part_in_the_fingerprint():
    """Graph capture and warm-up stand in a table of their own; what is served is counted alone."""
    report = of(real_log("cuda-graph"))
    assert {row["phase"] for row in report.tables["norms"]} == {"extend"}
    assert all(row["count"] == 15 for row in report.tables["norms"])
    assert {row["during"] for row in report.tables["not_serving"]} == {"graph_capture", "warmup"}
    assert report.facts["draft_inputs"] == 16


@pytest.mark.parametrize("run", REAL_RUNS)
def test_no_norm_identity_is_broken_in_any_real_run(run):
    """None of the real faults joins anything but its captures: a broken norm identity would be an invention."""
    for row in of(real_log(run)).tables.get("joins", []):
        if row["norm"] != "not checked":
            held, total = row["norm"].split(" of ")
            assert held == total


def test_damaged_records_enter_no_statistic():
    """Case 09: the record cut at norm=4.6 is counted, and no rms is made of it."""
    rows = [row for row in of(case("09")).tables["norms"] if row["phase"] == "verify"]
    smallest = min(row["rms_min"] for row in rows)
    assert smallest == pytest.approx(4.6311 / math.sqrt(4 * 7168))


def test_nothing_printed_nothing_said():
    """A log without debug prints."""
    assert of(real_log("no-speculation")).headline.startswith("no forward pass is printed")


def test_memory_is_flat_over_many_passes():
    """Ten thousand passes: what a cell holds stays bounded, the counts are exact."""
    question, segment = Norms(), Segment(1, "x", 1)
    parts = []
    for start in range(1, 10_001, 1000):
        numbers = range(start, start + 1000)
        items = [state("target", "verify", number, "aux_concat", 4, (1.0,), 5.0 + number % 7) for number in numbers]
        parts.append(question.partial(from_items([segment, *items])))
    part = question.combine(parts)
    (row,) = question.report(part, Context()).tables["norms"].rows
    assert row["count"] == 10_000
    (bucket,) = part[0].buckets.values()
    (cell,) = bucket.cells.values()
    assert len(cell.rms.bins) == 7
    assert len(cell.rms.stretches) <= 512
    assert answered(Norms(), []).tables["norms"].rows == []
