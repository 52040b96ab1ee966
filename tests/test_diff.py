"""Diff on the shared logs and cases: what must be found, and what must not be called drift."""

from __future__ import annotations

import importlib
import io
import json
from functools import cache

import pytest
from conftest import CASE_LOGS, CASES, DATA, REAL_RUNS, real_bytes, real_log, sidecar
from simulated import Server, join

import logscope
from logscope.cli import main
from logscope.run import load

FIFTY_FIVE = ("55a-vllm-mtp-native.log", "55b-vllm-mtp-converted.log")


@cache
def run_of(name):
    return load(str(real_log(name)))


@cache
def report_of(baseline, candidate):
    return logscope.diff(run_of(baseline), run_of(candidate))


def case(name):
    return next(log for log in CASE_LOGS if log.name.startswith(f"{name}-"))


def case_report(one, other):
    return logscope.diff(str(case(one)), str(case(other)))


def serious(report):
    return [finding for finding in report.findings if finding.severity != "note"]


def states(report, **wanted):
    return [row for row in report.tables["states"] if all(row[key] == value for key, value in wanted.items())]


# ------------------------------------------------------------------------------------------------------------ the same


@pytest.mark.parametrize("name", REAL_RUNS)
def test_a_run_is_the_same_as_itself(name):
    """Any log against itself is the same: no finding, every pass paired, nothing left over."""
    report = report_of(name, name)
    assert report.verdict == "ok"
    assert report.findings == []
    assert report.first_divergence is None
    assert report.facts["only_in"] == {"baseline": 0, "candidate": 0}
    assert report.facts["not_comparable"] == []


@pytest.mark.parametrize("log", CASE_LOGS, ids=lambda log: log.stem)
def test_a_case_is_the_same_as_itself(log):
    """The same holds for damaged, torn, mixed and empty logs."""
    run = load(str(log))
    report = logscope.diff(run, run)
    assert report.verdict == "ok"
    assert report.findings == []
    assert report.facts["only_in"] == {"baseline": 0, "candidate": 0}
    assert report.facts["not_comparable"] == []


def test_two_identical_runs_are_the_same_though_requests_were_admitted_in_another_order():
    """Rows in another order are row order, not a difference: 261 passes equal, 5 with permuted rows."""
    report = report_of("healthy-topk1", "healthy-topk1-again")
    assert report.verdict == "ok"
    assert serious(report) == []
    assert report.facts["passes"]["target"]["by_ground"] == {"state": 261, "order": 5}
    assert "row order, no difference" in " ".join(report.notes)


def test_a_shorter_workload_is_no_difference():
    """What only a longer run has at its end is counted, and the exit code stays 0."""
    report = report_of("healthy-topk1", "style-logger")
    assert report.verdict == "ok"
    assert report.facts["passes"]["target"]["identical"] == {"state": 165}
    # 101 target passes, and the draft passes after them: 1032 - 642 passes of ground truth
    assert report.facts["only_in"] == {"baseline": 390, "candidate": 0}
    assert any(note.startswith("only in baseline: 390 passes") for note in report.notes)


def test_another_print_style_is_compared_at_its_coarser_print():
    """Rounded heads and norms derived from mean and std are compared as far as they go, and that is said."""
    report = report_of("healthy-topk1", "style-alt")
    assert report.verdict == "ok"
    assert any("coarser print" in note for note in report.notes)
    paired = report.facts["passes"]["target"]
    assert paired["pairs"] > 230
    assert all(row["beyond"] == 0 for row in report.tables["states"])


def test_prints_of_a_block_buffered_server_are_the_same():
    """Lines that come late, glued or not at all are no drift."""
    report = report_of("healthy-topk1", "style-noflush")
    assert report.verdict == "ok"
    assert all(row["beyond"] == 0 for row in report.tables["states"])


# ------------------------------------------------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("candidate", "argument", "shared"),
    [
        # of 251, 277 and 231 passes of the candidate, counted with a separate program
        ("healthy-topk1-specv1", "spec_version", 172),
        ("healthy-chunked", "chunked_prefill_size", 203),
        ("healthy-topk4", "speculative_eagle_topk", 12),
    ],
)
def test_another_setting_is_the_finding_and_comparable_passes_agree(candidate, argument, shared):
    """Configuration is what differs; passes that share their lowest state are identical above it, and none drifts."""
    report = report_of("healthy-topk1", candidate)
    assert report.verdict == "findings"
    assert report.first_divergence is None
    assert {finding.rule for finding in serious(report)} == {"D101"}
    assert argument in report.facts["configuration"]
    assert argument in report.headline
    assert report.facts["passes"]["target"]["by_ground"]["state"] == shared
    assert report.facts["passes"]["target"]["identical"]["state"] == shared
    assert all(row["beyond"] == 0 for row in report.tables["states"])


def test_passes_that_are_not_comparable_carry_the_reason():
    """Other rows and another input are counted with their reason, never called drift."""
    report = report_of("healthy-topk1", "healthy-topk4")
    reasons = {row["reason"] for row in report.facts["not_comparable"] if row["role"] == "target"}
    assert reasons == {"rows", "state"}
    paired = report.facts["passes"]["target"]
    apart = sum(row["candidate"] for row in report.facts["not_comparable"] if row["role"] == "target")
    alone = sum(
        row["passes"] for row in report.tables["only_in"] if row["role"] == "target" and row["only_in"] == "candidate"
    )
    assert paired["pairs"] + apart + alone == paired["candidate"] == 231


def test_a_prefill_in_chunks_is_recognised_by_its_sums():
    """300 rows in one piece are 64 + 64 + 64 + 64 + 44 rows: one prefill, cut differently."""
    report = report_of("healthy-topk1", "healthy-chunked")
    assert report.facts["passes"]["target"]["by_ground"]["pieces"] == 1


def test_ports_hosts_folders_seeds_and_logging_never_matter():
    """The two identical runs differ in port and seed-like arguments only; those are listed and do not matter."""
    report = report_of("healthy-topk1", "healthy-topk1-again")
    rows = report.tables["configuration"].rows if "configuration" in report.tables else []
    assert all(not row["matters"] for row in rows)
    lines = real_bytes("healthy-topk1").decode()
    for old, new in (
        ("port=30000", "port=31999"),
        ("host='127.0.0.1'", "host='0.0.0.0'"),
        ("random_seed=1234", "random_seed=99"),
        ("log_level='info'", "log_level='debug'"),
        ("model_path='/models/target'", "model_path='/elsewhere/target'"),
    ):
        assert old in lines
        lines = lines.replace(old, new)
    changed = logscope.diff(run_of("healthy-topk1"), load(io.BytesIO(lines.encode())))
    assert changed.verdict == "ok"
    assert {"port", "host", "random_seed", "log_level"} <= {row["argument"] for row in changed.tables["configuration"]}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("speculative_num_steps=3", "speculative_num_steps=5"),
        ("speculative_num_draft_tokens=4", "speculative_num_draft_tokens=6"),
        ("tp_size=1", "tp_size=8"),
        ("dtype='bfloat16'", "dtype='float16'"),
        ("chunked_prefill_size=8192", "chunked_prefill_size=64"),
    ],
)
def test_settings_that_decide_about_states_set_the_verdict(old, new):
    """Steps, draft tokens, parallel sizes, dtype and chunking differ: a finding even where every state agrees."""
    lines = real_bytes("style-logger").decode()
    assert old in lines
    report = logscope.diff(run_of("style-logger"), load(io.BytesIO(lines.replace(old, new).encode())))
    assert report.verdict == "findings"
    assert report.first_divergence is None
    assert old.partition("=")[0] in report.facts["configuration"]


def test_other_layers_have_nothing_in_common():
    """default-layer-ids captures 2, 30, 58: nothing can be compared, and that is the finding."""
    report = report_of("healthy-topk1", "default-layer-ids")
    first = report.first_divergence
    assert first["what"] == "captures"
    assert first["baseline"]["value"] == (3, 31, 59)
    assert first["candidate"]["value"] == (2, 30, 58)
    assert "no layer in common" in report.headline
    assert report.facts["passes"]["target"]["pairs"] == 0


def test_replayed_graphs_are_no_missing_passes():
    """With CUDA graphs only extends print: the rest is hidden, the extends agree, the setting is the finding."""
    report = report_of("healthy-topk1", "cuda-graph")
    assert report.facts["configuration"] == ["disable_cuda_graph"]
    assert any("verify" in note and "CUDA graphs, which hide them" in note for note in report.notes)
    assert report.facts["passes"]["target"]["candidate"] == 16
    assert report.first_divergence is None


def test_a_run_without_speculation_has_only_its_configuration_to_compare():
    """No debug line at all: said so, no divergence invented."""
    report = report_of("healthy-topk1", "no-speculation")
    assert "speculative_algorithm" in report.facts["configuration"]
    assert report.first_divergence is None


# -------------------------------------------------------------------------------------------------------------- faults


def first_of(candidate, baseline="healthy-topk1"):
    report = report_of(baseline, candidate)
    assert report.verdict == "findings"
    assert report.first_divergence is not None
    return report.first_divergence


def test_a_reversed_join_parts_at_the_join_of_the_first_extend():
    """All three captures agree, the joined state begins with the highest layer: from the first pass on."""
    first = first_of("fault-concat-reversed")
    assert (first["role"], first["phase"], first["state"], first["what"]) == (
        "target",
        "extend",
        "joined state",
        "head",
    )
    assert first["baseline"]["pass"] == first["candidate"]["pass"] == 1
    assert first["agreeing_states"] == ["layer 3", "layer 31", "layer 59"]
    help_text = report_of("healthy-topk1", "fault-concat-reversed").findings[0].help
    assert "begins with layer 59" in help_text


def test_what_follows_from_another_difference_claims_no_agreement():
    """A reversed join changes what the draft reads too: no word that the joined state agrees there."""
    logs = []
    for turned in (False, True):
        server = Server(3)
        server.extend(5)
        for _ in range(4):
            states = server.states(4)
            server.round(states=states, joined=join(states[::-1] if turned else states))
        logs.append(load(io.BytesIO("\n".join(server.lines).encode())))
    first, behind = logscope.diff(*logs).findings
    assert first.help == "the captures agree; in the candidate the joined state begins with layer 59"
    assert "(behind joined state of the same round)" in behind.message
    assert behind.help is None


@pytest.mark.parametrize("silent", [True, False])
def test_verifies_that_only_one_run_goes_on_printing(silent):
    """The same requests; the candidate prints no verify any more from some round on, though its draft goes on."""
    logs = []
    for hides in (False, silent):
        server = Server(3)
        for turn in range(4):
            server.extend(5)
            for _ in range(5):
                at = len(server.lines)
                server.round()
                if hides and turn:
                    server.lines[at:] = [line for line in server.lines[at:]
                                         if "[dsv2]" not in line and "num_aux=3" not in line]  # fmt: skip
        logs.append(load(io.BytesIO("\n".join(server.lines).encode())))
    report = logscope.diff(*logs)
    assert [finding.rule for finding in serious(report)] == (["D102"] if silent else [])
    assert report.same is not silent
    if silent:
        assert "only 5 verify passes" in report.headline


@pytest.mark.parametrize("candidate", ["fault-embed-captured", "fault-embed-captured-wide-fc"])
def test_a_captured_embedding_parts_at_the_first_extend(candidate):
    """Four states are joined instead of three, and the extra one is the embedding; the layers themselves agree."""
    first = first_of(candidate)
    assert (first["role"], first["phase"], first["layer"], first["what"]) == ("target", "extend", 0, "captures")
    assert first["candidate"]["pass"] == 1
    assert first["baseline"]["value"] == (3, 31, 59)
    assert first["candidate"]["value"] == (0, 3, 31, 59)
    report = report_of("healthy-topk1", candidate)
    assert "4 x 7168 = 28672" in report.headline
    assert all(row["beyond"] == 0 for row in report.tables["states"])


def test_an_error_that_only_the_candidate_prints_is_a_finding():
    """The server that died says so: the exception is named, behind the states that explain it."""
    report = report_of("healthy-topk1", "fault-embed-captured")
    errors = [finding for finding in report.findings if finding.rule == "D105"]
    assert len(errors) == 1
    assert errors[0].severity == "error"
    assert "3x28672" in errors[0].message
    assert report.findings.index(errors[0]) > 0


def test_nan_parts_at_layer_31_of_the_first_pass_that_has_it():
    """The first NaN of the log is line 273, a verify pass; layer 3 of it agrees and everything before is identical."""
    lines = real_bytes("fault-nan-layer30").decode().split("\n")
    first_nan = next(number for number, line in enumerate(lines, 1) if "norm=nan" in line)
    first = first_of("fault-nan-layer30")
    assert (first["role"], first["phase"], first["layer"], first["what"]) == ("target", "verify", 31, "not_finite")
    assert first["candidate"]["line"] == first_nan
    assert first["agreeing_states"] == ["layer 3"]
    assert first["identical_before"] == first["agreeing_before"] > 0
    assert int(first["last_agreeing"]["candidate"].rpartition(":")[2]) < first_nan
    notes = [
        finding for finding in report_of("healthy-topk1", "fault-nan-layer30").findings if "layer 59" in finding.message
    ]
    assert notes[0].severity == "note"


def test_shifted_layers_are_named_with_their_shift():
    """4, 32, 60 against 3, 31, 59: no layer in common, each shifted by one."""
    first = first_of("fault-off-by-one-layers")
    assert (first["role"], first["phase"], first["what"]) == ("target", "extend", "captures")
    assert "each shifted by +1" in first["sentence"]


def test_stale_states_part_at_what_the_draft_reads():
    """The draft reads the joined state of the pass before: its first draft_extend whose input is another one."""
    first = first_of("fault-stale-states")
    assert (first["role"], first["phase"], first["state"]) == ("draft", "draft_extend", "input state")
    # pass 10: the second verify's draft; the first has no older verify to read
    assert first["candidate"]["pass"] == 10
    assert first["identical_before"] == 9


def test_a_wrong_hidden_mode_parts_at_the_first_verify():
    """LAST instead of FULL from the first verify on; extends and all values agree."""
    first = first_of("fault-verify-last")
    assert (first["role"], first["phase"], first["what"]) == ("target", "verify", "mode")
    assert (first["baseline"]["value"], first["candidate"]["value"]) == ("FULL", "LAST")
    assert first["candidate"]["ordinal"] == 1
    assert {row["beyond"] for row in report_of("healthy-topk1", "fault-verify-last").tables["states"]} == {0}


@pytest.mark.parametrize(
    ("candidate", "role", "phase", "what"),
    [
        ("fault-stale-states", "draft", "draft_extend", {"norm", "head"}),
        ("fault-off-by-one-layers", "target", "extend", {"captures"}),
    ],
)
def test_faults_of_the_newer_version_part_at_the_same_place(candidate, role, phase, what):
    """The same faults on the newer server."""
    first = first_of(f"0.5.15.post1-{candidate}", "0.5.15.post1-healthy-topk1")
    assert (first["role"], first["phase"]) == (role, phase)
    assert first["what"] in what


@pytest.mark.parametrize("candidate", ["healthy-chunked", "healthy-topk4", "layer-ids-from-1", "cuda-graph"])
def test_healthy_runs_of_the_newer_version_do_not_drift(candidate):
    """Other settings of the newer server: the configuration differs, no state does."""
    report = report_of("0.5.15.post1-healthy-topk1", f"0.5.15.post1-{candidate}")
    assert report.first_divergence is None
    assert report.facts["configuration"]


def test_two_versions_that_capture_the_same_layers_do_not_drift():
    """Ids of the newer server name the layers that defaults of the older one do: noise of kernels, no drift."""
    report = report_of("0.5.15.post1-healthy-topk1", "default-layer-ids")
    assert report.first_divergence is None
    assert report.facts["passes"]["target"]["pairs"] > 90


# --------------------------------------------------------------------------------------------------------------- cases


def test_a_prefill_in_four_chunks_parts_at_layer_30_behind_its_first_piece():
    """Case 20: 32768 = 4 x 8192 rows, norms in quadrature; embedding and layer 2 equal, 30 and 58 drift later."""
    wanted = sidecar(case("20b"))["compare_20a_20b"]
    report = case_report("20a", "20b")
    first = report.first_divergence
    assert first["layer"] == wanted["first_divergence"]["layer"]
    assert first["pieces"] == [1, 4]
    assert first["same_head"] is True  # row 0 stands in the first piece: it parts behind it
    for layer in ("2", "30", "58"):
        row = states(report, state=f"layer {layer}")[0]
        share = wanted["relative_difference"][layer]
        assert row["beyond"] == (share > 0)
        assert row["equal"] == (share == 0)
    assert states(report, state="embedding (layer 0)")[0]["equal"] == 1
    assert first["relative"] == pytest.approx(wanted["relative_difference"]["30"], abs=1e-5)
    assert first["baseline"]["value"] == wanted["norm_a"]["30"]
    assert first["candidate"]["value"] == pytest.approx(wanted["joined_norm_b"]["30"], abs=1e-4)
    accept = next(finding for finding in report.findings if finding.rule == "D104")
    assert accept.severity == "note"
    assert "3.40 -> 2.20" in accept.message
    assert "weak evidence" in accept.message
    assert report.facts["not_comparable"] == []


def test_noise_and_a_missing_capture_do_not_hide_the_drift_of_layer_58():
    """Case 29: noise at 2 and 30 agrees, layer 58 parts in the first verify by 6.3 %, one capture is missing."""
    wanted = sidecar(case("29b"))["compare_29a_29b"]
    report = case_report("29a", "29b")
    first = report.first_divergence
    assert (first["phase"], first["layer"]) == (
        wanted["first_divergence"]["phase"],
        wanted["first_divergence"]["layer"],
    )
    assert first["candidate"]["pass"] == wanted["first_divergence"]["step"] + 1
    assert first["relative"] == pytest.approx(wanted["drift_relative"], abs=5e-4)
    assert first["passes"] == wanted["diverging_captures"]
    assert first["agreeing_states"] == ["embedding (layer 0)", "layer 2", "layer 30"]
    embeddings = states(report, state="embedding (layer 0)")
    assert sum(row["equal"] for row in embeddings) == wanted["embed_identical"]
    assert states(report, phase="extend", state="layer 58")[0]["beyond"] == 0
    missing = next(finding for finding in report.findings if finding.rule == "D103")
    assert "layer 2 is missing in the candidate, in verify pass 2" in missing.message
    assert sum(row["only_baseline"] for row in report.tables["states"]) == 1


def test_one_tolerance_decides_and_can_be_set():
    """With a tolerance above 6.3 % the drift of case 29 agrees; only the missing capture is left."""
    report = logscope.diff(str(case("29a")), str(case("29b")), rtol=0.1)
    assert [finding.rule for finding in report.findings] == ["D103"]
    with pytest.raises(logscope.UsageError, match="no tolerance"):
        logscope.diff(str(case("29a")), str(case("29b")), rtol=-1)


def test_data_parallel_costs_a_third_of_the_acceptance():
    """Case 12: all four ranks are compared, definitions agree, two options differ, the load is the same."""
    wanted = sidecar(case("12b"))["compare_12a_12b"]
    report = case_report("12a", "12b")
    assert sorted(report.facts["configuration"]) == wanted["configuration_differences"]
    acceptance = report.facts["acceptance"]
    means = [acceptance[side]["accept_len_mean"] for side in ("baseline", "candidate")]
    assert means == pytest.approx(wanted["accept_len"], abs=5e-5)
    assert 100 * acceptance["change"] == pytest.approx(wanted["change_percent"], abs=0.05)
    assert acceptance["rates_comparable"] is True
    assert acceptance["baseline"]["running"] == acceptance["candidate"]["running"] == 8
    by_rank = {
        row["process"]: row["accept_len_mean"] for row in report.tables["acceptance"] if row["side"] == "candidate"
    }
    for rank, mean in sidecar(case("12b"))["mean_by_rank"].items():
        assert by_rank[rank] == mean
    accept = next(finding for finding in report.findings if finding.rule == "D104")
    assert accept.severity == "warning"
    assert "-36 %" in accept.message
    assert "over 4 processes" in accept.evidence


def test_the_added_embedding_is_the_difference_and_its_values_are_not_drift():
    """Case 36: the number of joined states, in the first extend; norms and heads of other inputs are not blamed."""
    report = case_report("36a", "36b")
    first = report.first_divergence
    assert (first["what"], first["phase"], first["layer"]) == ("captures", "extend", 0)
    assert "embedding only in the baseline" in report.headline
    assert "4 x 7168 = 28672" in first["sentence"]
    assert not any(finding.rule == "N201" for finding in report.findings)
    accept = next(finding for finding in report.findings if finding.rule == "D104")
    assert "1.57 -> 2.41" in accept.message
    assert "0.19 -> 0.47" in accept.message
    assert report.facts["acceptance"]["baseline"]["definition"] == "C"
    assert report.facts["acceptance"]["candidate"]["definition"] == "C"


# ------------------------------------------------------------------------------------------------------------ the form


MIRRORED = [
    ("healthy-topk1", "healthy-topk1-again"),
    ("healthy-topk1", "healthy-topk1-specv1"),
    ("healthy-topk1", "healthy-chunked"),
    ("healthy-topk1", "style-alt"),
    ("healthy-topk1", "fault-concat-reversed"),
    ("healthy-topk1", "fault-embed-captured-wide-fc"),
    ("healthy-topk1", "fault-nan-layer30"),
    ("healthy-topk1", "fault-stale-states"),
    ("healthy-topk1", "default-layer-ids"),
]


@pytest.mark.parametrize(("one", "other"), MIRRORED)
def test_a_diff_and_its_mirror_say_the_same(one, other):
    """diff(a, b) and diff(b, a) find the same differences, pairs and leftovers, with the sides exchanged."""
    there, back = report_of(one, other), report_of(other, one)
    assert there.verdict == back.verdict
    assert len(there.findings) == len(back.findings)
    for mine, theirs in zip(_places(there), _places(back), strict=True):
        assert mine == theirs[::-1]
    for role, passes in there.facts["passes"].items():
        mirror = back.facts["passes"][role]
        assert passes["pairs"] == mirror["pairs"]
        assert passes["identical"] == mirror["identical"]
        assert passes["baseline"] == mirror["candidate"]
    only = there.facts["only_in"]
    assert back.facts["only_in"] == {"baseline": only["candidate"], "candidate": only["baseline"]}


def _places(report):
    table = report.tables.get("differences")
    return [(row["baseline_at"], row["candidate_at"]) for row in table.rows] if table else []


def test_the_report_has_the_fixed_form():
    """A diff is a Report as everywhere: fixed keys, JSON without nan, both sides' accounting added up."""
    report = report_of("healthy-topk1", "fault-nan-layer30")
    value = report.as_dict()
    assert list(value) == ["schema", "kind", "verdict", "headline", "findings", "tables", "facts", "accounting"]
    assert value["kind"] == "diff"
    json.dumps(value, allow_nan=False)
    assert value["facts"]["first_divergence"]["candidate"]["value"] == "nan"
    assert value["accounting"]["records"] == sum(
        value["facts"][side]["accounting"]["records"] for side in ("baseline", "candidate")
    )
    assert report.findings[0].where is not None


def test_logs_are_compared_without_being_held():
    """Paths, several files of one run, file objects and runs in memory give the same answer."""
    one, other = CASES / "29a-layers-run-a.log", CASES / "29b-layers-run-b.log"
    expected = logscope.diff(load(str(one)), load(str(other)))
    for baseline, candidate in ((str(one), str(other)), (one, other), ([str(one)], [str(other)])):
        found = logscope.diff(baseline, candidate)
        assert found.headline == expected.headline
        assert found.facts["first_divergence"] == expected.facts["first_divergence"]
    assert load(str(one)).diff(load(str(other))).headline == expected.headline


def test_the_library_name_is_a_function_whatever_was_imported_before():
    """``logscope.diff`` is the function also after the package behind it was imported."""
    module = importlib.import_module("logscope.diffing.report")
    assert module.DiffReport is type(report_of("style-logger", "style-logger"))
    assert logscope.diff(run_of("style-logger"), run_of("style-logger")).same


def test_nothing_compared_is_no_success_and_no_difference(tmp_path, capsys):
    """A log against one that holds nothing: exit 2 with the reason, and the JSON is written with verdict unknown."""
    empty = tmp_path / "empty.log"
    empty.write_text("nothing of a server\n")
    out = tmp_path / "diff.json"
    assert main(["diff", str(real_log("style-logger")), str(empty), "-o", str(out)]) == 2
    value = json.loads(out.read_text())
    assert value["verdict"] == "unknown"
    assert "nothing could be compared" in value["headline"]
    assert not logscope.diff(run_of("style-logger"), load(io.BytesIO(b"nothing\n"))).same
    capsys.readouterr()
    assert main(["diff", str(real_log("style-logger")), str(empty)]) == 2
    assert "nothing compared" in capsys.readouterr().out


def test_evidence_is_verify_rounds_not_lines():
    """Case 55: one line a side, of 5,000 and 6,590 verifies: different beyond doubt."""
    fact = "V: 5000 = 10000 / 2 drafts, 6590 = 13180 / 2; means 1 + 8056 / 5000 and 1 + 240 / 6590"
    report = logscope.diff(*(str(DATA / "field" / name) for name in FIFTY_FIVE))
    assert [finding.severity for finding in report.findings if finding.rule == "D104"] == ["warning"], fact
    acceptance = report.facts["acceptance"]
    assert [acceptance[side]["rounds"] for side in ("baseline", "candidate")] == [5000, 6590]
    assert acceptance["change"] == pytest.approx((240 / 6590 - 8056 / 5000) / (1 + 8056 / 5000), abs=1e-3)
