"""Diff on logs changed on purpose: one line, one fault, one order at a time, and exactly that is reported."""

from __future__ import annotations

import io
import math
import random
import re
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from conftest import real_bytes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import logscope
from logscope.diffing.align import Points, Side, in_order
from logscope.diffing.compare import EQUAL, RTOL, judge
from logscope.run import load

QUICK = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
HIDDEN = 7168
CAPTURE = re.compile(
    r"(layer (\d+) capture: shape=torch\.Size\(\[(\d+), 7168\]\), residual_is_none=False, norm=)(\S+)(, first5=\[)(.*)\]"
)
JOIN = re.compile(r"(aux concat: num_aux=3, shape=torch\.Size\(\[(\d+), 21504\]\).*norm=)(\S+)(, first5=\[)(.*)\]")
READ = re.compile(r"(forward: hidden_states=torch\.Size\(\[(\d+), 21504\]\).*norm=)(\S+)(, first5=\[)(.*)\]")
DRAFT = re.compile(r"(num_aux=1, shape=torch\.Size\(\[1, 7168\]\).*norm=)(\S+)(, first5=\[)(.*)\]")


@cache
def lines_of(stop):
    """Return the first lines of a healthy run, cut in front of a target pass at or behind ``stop``."""
    lines = real_bytes("healthy-topk1").decode().split("\n")
    while "layer 3 capture" not in lines[stop]:
        stop += 1
    return tuple(lines[:stop])


def run_of(lines):
    return load(io.BytesIO("\n".join(lines).encode()))


@cache
def baseline(stop=400):
    return run_of(lines_of(stop))


def records(lines):
    return [at for at, line in enumerate(lines) if line.startswith("EAGLE3_DEBUG[")]


def serious(report):
    return [finding for finding in report.findings if finding.severity != "note"]


def nothing_else(report):
    """Return whether no other pass was left out or left over, so that the rest still lines up."""
    return report.facts["not_comparable"] == [] and report.facts["only_in"] == {"baseline": 0, "candidate": 0}


# ------------------------------------------------------------------------------------------------------------ one line


@QUICK
@given(st.data())
def test_one_line_removed_is_all_that_is_reported(data):
    """One record less: that record is missing in that pass, and the rest still lines up."""
    lines = lines_of(400)
    at = data.draw(st.sampled_from(records(lines)[:-1]))
    report = logscope.diff(baseline(), run_of(lines[:at] + lines[at + 1 :]))
    first = report.first_divergence
    assert first["what"] == "record"
    assert first["baseline"]["line"] == at + 1
    assert first["candidate"]["line"] is None
    assert first["passes"] == 1
    assert len(serious(report)) == 1
    assert nothing_else(report)


@QUICK
@given(st.data())
def test_one_line_repeated_is_all_that_is_reported(data):
    """One record twice: it stands once more in that pass, and the rest still lines up."""
    lines = lines_of(400)
    at = data.draw(st.sampled_from(records(lines)[:-1]))
    report = logscope.diff(baseline(), run_of(lines[: at + 1] + lines[at:]))
    first = report.first_divergence
    assert first["what"] in ("record", "copies")
    assert first["candidate"]["line"] in (at + 1, at + 2)
    assert len(serious(report)) == 1
    assert nothing_else(report)


@QUICK
@given(st.data(), st.sampled_from([1.01, 0.99]))
def test_one_norm_off_by_one_percent_is_all_that_is_reported(data, factor):
    """One norm of one record changed by 1 %: that state differs by it in that pass, and nothing else does."""
    lines = lines_of(400)
    at = data.draw(st.sampled_from([at for at in records(lines) if "norm=" in lines[at]]))
    found = re.search(r"norm=([\d.]+)", lines[at])
    changed = lines[at].replace(found[0], f"norm={float(found[1]) * factor:.4f}")
    report = logscope.diff(baseline(), run_of((*lines[:at], changed, *lines[at + 1 :])))
    first = report.first_divergence
    assert first["what"] == "norm"
    assert first["baseline"]["line"] == first["candidate"]["line"] == at + 1
    assert first["relative"] == pytest.approx(factor - 1, abs=1e-4)
    assert first["passes"] == 1
    assert len(serious(report)) == 1
    assert sum(row["beyond"] for row in report.tables["states"]) == 1
    assert nothing_else(report)


def test_the_smallest_difference_that_counts_is_the_tolerance():
    """A norm off by less than 2^-9 agrees within tolerance and is counted there, one beyond it is a difference."""
    lines = lines_of(400)
    at = next(at for at in records(lines) if "layer 59 capture" in lines[at])
    norm = re.search(r"norm=([\d.]+)", lines[at])
    for factor, verdict in ((1 + 0.9 * RTOL, "ok"), (1 + 1.1 * RTOL, "findings")):
        changed = lines[at].replace(norm[0], f"norm={float(norm[1]) * factor:.4f}")
        report = logscope.diff(baseline(), run_of((*lines[:at], changed, *lines[at + 1 :])))
        assert report.verdict == verdict
        row = next(row for row in report.tables["states"] if row["state"] == "layer 59" and row["phase"] == "extend")
        assert (row["within"], row["beyond"]) == ((1, 0) if verdict == "ok" else (0, 1))


# -------------------------------------------------------------------------------------------------------------- faults


def rewritten(lines, change, when):
    """Return the lines with the captures of some passes changed, and the joined states and draft inputs with them.

    ``change`` takes rows, layer, norm and head of a capture; ``when`` the number of the target pass and its phase.
    """
    out, norms, head, joined, number, decoded = [], [], "", None, 0, False
    for line in lines:
        found = CAPTURE.search(line)
        if found:
            number += not norms
            if when(number, "verify" if decoded else "extend"):
                values = [float(value) for value in found[6].split(",")]
                norm, values = change(int(found[3]), int(found[2]), float(found[4]), values)
                line = f"{line[: found.start()]}{found[1]}{norm:.4f}{found[5]}{', '.join(map(repr, values))}]"  # noqa: PLW2901
                found = CAPTURE.search(line)
            head = head if norms else found[6]
            norms.append(float(found[4]))
        found = JOIN.search(line)
        if found:
            joined = (math.sqrt(sum(norm**2 for norm in norms)), head)
            norms = []
        found = found or READ.search(line)
        if found:
            line = f"{line[: found.start()]}{found[1]}{joined[0]:.4f}{found[4]}{joined[1]}]"  # noqa: PLW2901
        if "[eagle3] forward" in line:
            decoded = "21504" not in line
        out.append(line)
    return out


def without_residual(_rows, layer, norm, head):
    rng = random.Random(layer)
    return 0.6 * norm, [0.6 * value * rng.choice([-1, 1]) for value in reversed(head)]


def normalised(rows, _layer, norm, head):
    rms = norm / math.sqrt(rows * HIDDEN)
    return math.sqrt(rows * HIDDEN), [value / rms for value in head]


def always(_number, _phase):
    return True


@pytest.mark.parametrize(
    ("change", "words"),
    [(without_residual, "as without the residual"), (normalised, "normalised before it was captured")],
)
def test_the_lowest_state_of_the_first_prefills_is_a_divergence_when_it_differs(change, words):
    """The same requests in the same order with another lowest state: not another input, and the kind is named."""
    report = logscope.diff(baseline(1500), run_of(rewritten(lines_of(1500), change, always)))
    first = report.first_divergence
    assert (first["role"], first["phase"], first["layer"], first["ground"]) == ("target", "extend", 3, "first")
    assert first["baseline"]["pass"] == first["candidate"]["pass"] == 1
    finding = report.findings[0]
    assert "first prefills of both runs have the same rows in the same order" in finding.evidence
    assert finding.help.startswith("not another input but another state; in the candidate")
    assert words in finding.help
    mirror = logscope.diff(run_of(rewritten(lines_of(1500), change, always)), baseline(1500))
    assert "in the baseline" in mirror.findings[0].help
    assert words in mirror.findings[0].help


def test_prompts_of_one_length_are_no_evidence_of_one_input():
    """Several prefills of the same rows whose states differ, without a warm-up: another input, not a divergence."""

    def benchmark(seed):
        rng = random.Random(seed)
        out = []
        for _ in range(6):
            norm = rng.uniform(250, 260)
            head = ", ".join(repr(rng.uniform(-0.2, 0.2)) for _ in range(5))
            shape = "shape=torch.Size([128, 7168]), residual_is_none=False"
            out += [
                f"EAGLE3_DEBUG[dsv2] layer 3 capture: {shape}, norm={norm:.4f}, first5=[{head}]",
                f"EAGLE3_DEBUG[dsv2] layer 31 capture: {shape}, norm={3 * norm:.4f}, first5=[{head}]",
                "EAGLE3_DEBUG[logits] aux concat: num_aux=2, shape=torch.Size([128, 14336]), "
                f"capture_hidden_mode=CaptureHiddenMode.FULL, norm={math.sqrt(10) * norm:.4f}, first5=[{head}]",
                "EAGLE3_DEBUG[eagle3] forward: hidden_states=torch.Size([128, 14336]), embeds=torch.Size([128, 7168]), "
                f"norm={math.sqrt(10) * norm:.4f}, first5=[{head}]",
                f"EAGLE3_DEBUG[logits] aux concat: num_aux=1, shape=torch.Size([1, 7168]), "
                f"capture_hidden_mode=CaptureHiddenMode.LAST, norm=33.0949, first5=[{head}]",
            ]
        return run_of(out)

    report = logscope.diff(benchmark(1), benchmark(2))
    assert report.first_divergence is None
    assert report.verdict == "unknown"
    assert "nothing could be compared" in report.headline
    assert {row["reason"] for row in report.facts["not_comparable"]} == {"state"}


def test_a_lowest_state_that_differs_from_the_first_verify_on_is_found_there():
    """Extends agree; the first verify has the same input, because everything in the round before is equal."""
    candidate = run_of(rewritten(lines_of(1500), without_residual, lambda _, phase: phase == "verify"))
    first = logscope.diff(baseline(1500), candidate).first_divergence
    assert (first["phase"], first["layer"], first["ground"]) == ("verify", 3, "follows")
    assert first["candidate"]["ordinal"] == 1
    assert first["identical_before"] == 4  # extend and its draft, two draft steps


def test_a_fault_that_begins_in_the_middle_is_found_at_its_onset():
    """Layer 59 drifts by 6.3 % from the 31st target pass on: named there, with everything before it identical."""

    def drift(_rows, layer, norm, head):
        return (1.063 * norm if layer == 59 else norm), head

    report = logscope.diff(baseline(1500), run_of(rewritten(lines_of(1500), drift, lambda number, _: number > 30)))
    first = report.first_divergence
    assert (first["layer"], first["what"]) == (59, "norm")
    assert first["relative"] == pytest.approx(0.063, abs=1e-4)
    assert first["agreeing_states"] == ["layer 3", "layer 31"]
    target_passes = [item for item in baseline(1500).forwards if item.role == "target"]
    assert first["baseline"]["pass"] == target_passes[30].number
    assert first["identical_before"] == target_passes[30].number - 1
    assert "layer 59 first differs by +6.3 %" in report.headline
    assert f"identical for {first['identical_before']} passes, layers 3, 31 of the same pass agree" in report.headline


def test_states_normalised_before_the_join_part_at_the_join():
    """The captures agree, the joined state does not: named as such."""

    def joined(found):
        return f"{found[1]}{math.sqrt(3 * HIDDEN * int(found[2])):.4f}{found[4]}{found[5]}]"

    lines = [JOIN.sub(joined, line) for line in lines_of(400)]
    report = logscope.diff(baseline(), run_of(lines))
    assert report.first_divergence["state"] == "joined state"
    assert report.first_divergence["agreeing_states"] == ["layer 3", "layer 31", "layer 59"]
    assert report.findings[0].help.startswith("the captures agree")


def test_a_draft_that_makes_other_states_of_the_same_input_is_found_in_its_first_step():
    """A wrong vocabulary map or other weights: what the draft reads agrees, its output does not."""
    rng = random.Random(7)
    lines = list(lines_of(400))
    for at, line in enumerate(lines):
        if "[eagle3] forward" in lines[at - 1] and "21504" not in lines[at - 1]:
            head = ", ".join(repr(rng.uniform(-0.5, 0.5)) for _ in range(5))
            lines[at] = DRAFT.sub(
                lambda found, head=head: f"{found[1]}{float(found[2]) * 1.02:.4f}{found[3]}{head}]", line
            )
    report = logscope.diff(baseline(), run_of(lines))
    first = report.first_divergence
    assert (first["role"], first["phase"], first["state"]) == ("draft", "decode", "output state")
    assert first["agreeing_states"] == ["input state"]
    assert "vocabulary map" in report.findings[0].help
    assert all(row["beyond"] == 0 for row in report.tables["states"] if row["role"] == "target")


def test_another_sampled_token_is_no_fault_of_the_draft():
    """Where the next verify shows another first token, the draft's output may differ and proves nothing."""
    rng = random.Random(11)
    lines = list(lines_of(400))
    extends = [at for at, line in enumerate(lines) if JOIN.search(line)]
    draft = next(at for at in range(extends[0], len(lines)) if "num_aux=1" in lines[at])
    head = ", ".join(repr(rng.uniform(-0.5, 0.5)) for _ in range(5))
    lines[draft] = DRAFT.sub(lambda found: f"{found[1]}{float(found[2]) * 1.02:.4f}{found[3]}{head}]", lines[draft])
    for at in range(draft + 1, extends[1] + 1):
        lines[at] = re.sub(
            r"norm=([\d.]+), first5=\[.*\]",
            lambda found: f"norm={float(found[1]) * 1.013:.4f}, first5=[{head}]",
            lines[at],
        )
    report = logscope.diff(baseline(), run_of(lines))
    assert report.first_divergence is None or report.first_divergence["role"] == "target"


# --------------------------------------------------------------------------------------------------------------- order


def rounds(lines):
    """Return the places where target passes begin, and the end."""
    return [at for at, line in enumerate(lines) if "layer 3 capture" in line] + [len(lines)]


def test_a_missing_round_does_not_shift_the_rest():
    """Four passes of one verify round left out: only in baseline, and every other pass is identical."""
    lines = lines_of(800)
    starts = rounds(lines)
    begin, end = starts[20], starts[21]
    candidate = run_of(lines[:begin] + lines[end:])
    report = logscope.diff(run_of(lines), candidate)
    assert report.facts["only_in"]["candidate"] == 0
    assert report.facts["only_in"]["baseline"] == sum("forward: " in line for line in lines[begin:end]) + 1
    target = report.facts["passes"]["target"]
    assert target["identical"]["state"] == target["candidate"] == target["baseline"] - 1
    assert report.first_divergence is None


def test_rounds_in_another_order_are_paired_and_counted():
    """Two rounds exchanged: both are found, one of them is said to stand elsewhere, nothing differs."""
    lines = lines_of(800)
    a, b, c = rounds(lines)[20:23]
    report = logscope.diff(run_of(lines), run_of(lines[:a] + lines[b:c] + lines[a:b] + lines[c:]))
    target = report.facts["passes"]["target"]
    assert target["pairs"] == target["baseline"]
    assert target["moved"] == 1
    assert report.first_divergence is None


@pytest.mark.parametrize("marked", [True, False])
def test_tensor_parallel_copies_collapse_before_anything_is_compared(marked):
    """Eight ranks that print alike, with or without rank prefixes, are one run: the same as one rank alone."""
    out = []
    for line in lines_of(400):
        if line.startswith("EAGLE3_DEBUG["):
            out += [f"[2026-11-29 12:14:25 TP{rank}] {line}" if marked else line for rank in range(8)]
        else:
            out.append(line)
    report = logscope.diff(baseline(), run_of(out))
    assert report.first_divergence is None
    assert report.facts["passes"]["target"]["identical"] == {"state": report.facts["passes"]["target"]["baseline"]}
    assert report.verdict == "ok"


def test_two_schedulers_in_one_file_are_aligned_rank_by_rank():
    """Which of two data-parallel ranks prints first is chance: the same passes are found in both orders."""

    def mixed(first, second):
        stamp = "[2026-11-29 12:14:25"
        return [
            f"{stamp} DP{rank}] {line}"
            for line in lines_of(400)
            if line.startswith("EAGLE3_DEBUG[")
            for rank in (first, second)
        ]

    one, other = run_of(mixed(0, 1)), run_of(mixed(1, 0))
    report = logscope.diff(one, other)
    assert report.verdict == "ok"
    target = report.facts["passes"]["target"]
    assert target["pairs"] == target["baseline"] == target["candidate"]


# ------------------------------------------------------------------------------------------------------- little to go by


def test_a_log_of_draft_lines_alone_is_compared_draft_pass_by_draft_pass():
    """Without target passes what each draft pass reads tells which it is."""
    lines = [line for line in lines_of(800) if "dsv2" not in line and "num_aux=3" not in line]
    report = logscope.diff(run_of(lines), run_of(lines[:200] + lines[204:]))
    draft = report.facts["passes"]["draft"]
    assert draft["pairs"] >= draft["candidate"] - 1
    assert all(row["beyond"] == 0 for row in report.tables["states"])
    both = logscope.diff(run_of(lines_of(800)), run_of(lines))
    assert any("only the baseline prints" in note and "of the target: not compared" in note for note in both.notes)
    assert both.first_divergence is None


def test_captures_that_one_run_does_not_print_are_no_difference_of_what_is_captured():
    """Only joins are printed: three states are joined all the same; the joined states are compared."""
    lines = [line for line in lines_of(800) if "dsv2" not in line]
    report = logscope.diff(run_of(lines_of(800)), run_of(lines))
    assert report.verdict == "ok"
    row = next(row for row in report.tables["states"] if row["state"] == "joined state" and row["phase"] == "verify")
    assert row["equal"] == row["pairs"] > 20


def test_one_captured_layer_is_enough():
    """A single layer is recognised and compared; against three layers the number of states is the finding."""
    lines = [
        re.sub(r"num_aux=3", "num_aux=1", line)
        for line in lines_of(800)
        if "layer 31" not in line and "layer 59" not in line
    ]
    lines = [
        line
        for line in lines
        if "aux concat: num_aux=1, shape=torch.Size([4, 21504" not in line and "forward end" not in line
    ]
    run = run_of(lines)
    assert logscope.diff(run, run).verdict == "ok"
    first = logscope.diff(baseline(800), run).first_divergence
    assert first["what"] == "captures"
    assert first["candidate"]["value"] == (3,)


# ------------------------------------------------------------------------------------------------------------- measures


CLASSES = st.lists(st.integers(-1, 12), max_size=40)


@settings(max_examples=300, derandomize=True)
@given(CLASSES, CLASSES)
def test_pairs_in_order_rise_on_both_sides_and_hold_the_same(one, other):
    """The patience diff pairs equal classes only, each place once, rising on both sides; -1 is never paired."""
    pairs = in_order(one, other)
    assert all(one[mine] == other[theirs] != -1 for mine, theirs in pairs)
    for (a, b), (c, d) in pairwise(pairs):
        assert a < c
        assert b < d


@settings(max_examples=100, derandomize=True)
@given(st.lists(st.integers(0, 12), max_size=40), st.data())
def test_removing_places_leaves_the_others_paired(sequence, data):
    """What is left of a sequence of different classes is paired completely with the sequence."""
    distinct = list(dict.fromkeys(sequence))
    kept = [value for value in distinct if data.draw(st.booleans())]
    assert [distinct[place] for place, _ in in_order(distinct, kept)] == kept


HEADS = st.lists(st.floats(-10, 10), min_size=1, max_size=5)


def state(norm, head):
    """Return one state of four rows, printed exactly."""
    values = np.full((1, 8), np.nan)
    values[0, : len(head)] = head
    columns = [np.array([number]) for number in (1, 4, norm, 5e-5, 1, len(head), 0.0)]
    return Points(*columns, values)


@settings(max_examples=200, derandomize=True)
@given(HEADS, HEADS, st.floats(0.1, 1e4), st.floats(0.1, 1e4))
def test_judging_does_not_depend_on_the_side(one_head, other_head, one_norm, other_norm):
    """Both orders give the same grade, and a state is equal to itself."""
    one, other, heads = state(one_norm, one_head), state(other_norm, other_head), np.array([True])
    assert judge(one, other, RTOL, heads)[0] == judge(other, one, RTOL, heads)[0]
    assert judge(one, one, RTOL, heads)[0] == EQUAL
    assert one.distance(other) == pytest.approx(other.distance(one))


def test_a_run_is_kept_in_flat_memory():
    """White box: a record costs less than 120 bytes whatever its text, and no text is held."""
    side = Side()
    side.add(baseline(1500).tables)
    side.settle()
    held = side.records.estimated_size() + side.passes.estimated_size()
    assert held < 120 * side.records.height
