"""check: faults that were injected into real servers are named, and healthy servers of every setting stay silent."""

from __future__ import annotations

import io
import json
import re
from functools import lru_cache

import pytest
from conftest import CASES, DATA, REAL_RUNS, real_bytes, real_log, sidecar, truth
from doors import batches, tables

from logscope import cli
from logscope.asking import Asked
from logscope.check import Checker, check
from logscope.contract import Contract
from logscope.errors import UsageError
from logscope.report import Context
from logscope.rules import rules
from logscope.rules.headline import EXPLAINS, ORDER
from logscope.run import load

DRAFT = str(DATA / "draft-config.json")
HEALTHY = [run for run in REAL_RUNS if "fault" not in run and "default" not in run and run != "no-speculation"]


@lru_cache(maxsize=64)
def report_of(run, contract=None, version=None):
    """Return the check of a real run; the loaded run is kept for the next contract."""
    return check(loaded(run), contract, sglang_version=version)


@lru_cache(maxsize=32)
def loaded(run):
    return load(str(real_log(run)))


def case(number):
    return next(CASES.glob(f"{number}-*.log"))


def check_lines(lines, contract=None, **options):
    """Check a log that exists in memory only."""
    return check(load(io.BytesIO("\n".join(lines).encode())), contract, **options)


def rules_of(report, *severities):
    return {finding.rule for finding in report.findings if not severities or finding.severity in severities}


def the(report, rule):
    """Return the one finding of a rule."""
    found = [finding for finding in report.findings if finding.rule == rule]
    assert len(found) == 1, [finding.message for finding in report.findings]
    return found[0]


def lines_of(run):
    return real_bytes(run).decode("utf-8", "replace").split("\n")


def fired(report):
    """Return the rules with an error or a warning, damage left out."""
    return rules_of(report, "error", "warning") - {"L101", "L102"}


# ---------------------------------------------------------------------------------------------------- healthy servers


@pytest.mark.parametrize("run", HEALTHY)
@pytest.mark.parametrize("contract", [None, DRAFT], ids=["bare", "contract"])
def test_healthy_servers_are_silent(run, contract):
    """No error and no warning on any healthy run, with or without the contract, and something was really checked."""
    report = report_of(run, contract)
    assert fired(report) == set(), report.headline
    assert report.ok
    assert report.verdict == "ok"
    looked = {row["rule"]: row["looked_at"] for row in report.tables["checked"].rows}
    assert looked["N104"] > 0
    assert looked["N105"] > 0
    assert looked["N106"] > 0
    assert (looked.get("H103", 0) > 0) or contract is None


def test_what_was_checked_is_what_the_server_did():
    """The passes that rules looked at are the forwards the ground truth counts, graph capture left out."""
    run = "healthy-topk1"
    forwards = [row for row in truth(run) if row["kind"] == "forward" and row["line_count"]]
    target = sum(row["model"] == "target" for row in forwards)
    report = report_of(run, DRAFT)
    looked = {row["rule"]: row["looked_at"] for row in report.tables["checked"].rows}
    assert looked["N104"] == looked["N105"] == looked["H102"] == target
    assert looked["N101"] == len(forwards)
    reads = sum(row["model"] == "draft" and row["forward_mode"] != "DECODE" for row in forwards)
    assert looked["N106"] == reads


def test_dummy_input_of_graph_capture_is_not_judged():
    """Graph capture prints identical dummy states, zero ones among them: none of it is a finding, the hiding is a note."""
    for run in ("cuda-graph", "0.5.15.post1-cuda-graph"):
        report = report_of(run, DRAFT)
        assert rules_of(report) == {"L103"}
        assert the(report, "L103").severity == "note"
        reasons = {row["rule"]: row["because"] for row in report.tables["not_checked"].rows}
        assert "graph" in reasons["H101"]


def test_no_speculation_is_unknown_and_no_fault():
    """A server without a draft: nothing to judge, verdict unknown, exit 0; the contract is not contradicted."""
    for contract in (None, DRAFT):
        report = report_of("no-speculation", contract)
        assert report.verdict == "unknown"
        assert report.findings == []
        assert report.ok


def test_default_layer_ids_against_a_contract_that_names_others():
    """2, 30, 58 were captured, 3, 31, 59 are due on 0.5.11, which the start-up lines tell: a warning, nothing else."""
    assert fired(report_of("default-layer-ids")) == set()
    finding = the(report_of("default-layer-ids", DRAFT), "H103")
    assert finding.severity == "warning"
    assert "2, 30, 58" in finding.actual
    assert "3, 31, 59" in finding.expected
    assert rules_of(report_of("default-layer-ids", DRAFT)) == {"H103"}


# ------------------------------------------------------------------------------------------------------------- faults


def test_embedding_captured_stops_the_draft():
    """4 x 7168 = 28672 into an fc that takes 3 x 7168 = 21504, the embedding named as the extra state."""
    report = report_of("fault-embed-captured", DRAFT)
    finding = report.findings[0]
    assert finding.rule == "S101"
    assert finding.actual == "4 x 7168 = 28672"
    assert finding.expected == "3 x 7168 = 21504"
    assert "embedding" in finding.message
    assert {"S101", "H104", "E101", "E102"} == rules_of(report)
    assert "E102" in report.headline, "the size error is explained, not a second cause"
    bare = report_of("fault-embed-captured")
    assert the(bare, "S101").severity == "error", "without a contract the size error tells what the fc takes"


def test_embedding_captured_into_a_wide_fc():
    """The same from the captures alone: nothing fails there."""
    report = report_of("fault-embed-captured-wide-fc", DRAFT)
    assert rules_of(report) == {"S101", "H104"}
    assert the(report, "H104").severity == "error"
    assert the(report_of("fault-embed-captured-wide-fc"), "H104").severity == "warning"


def test_reversed_join():
    """The states are joined in falling order: N105 from the first pass on, and the acceptance explained by it."""
    report = report_of("fault-concat-reversed", DRAFT)
    finding = the(report, "N105")
    assert "begins with layer 59, not with layer 3" in finding.message
    assert report.findings[0] is finding
    assert rules_of(report) == {"N105", "A101"}
    assert "A101" in report.headline


@pytest.mark.parametrize("run", ["fault-stale-states", "0.5.15.post1-fault-stale-states"])
def test_stale_states(run):
    """N106 with its share and onset: the first bad input and the last good one stand at their lines."""
    report = report_of(run, DRAFT)
    finding = the(report, "N106")
    assert report.findings[0] is finding
    lines = lines_of(run)
    assert "forward: hidden_states=torch.Size([4, 21504])" in lines[finding.where.line - 1]
    joined = [line for line in lines[: finding.where.line - 1] if "aux concat: num_aux=3" in line]
    value = re.compile(r"norm=.*")
    read = value.search(lines[finding.where.line - 1])[0]
    assert read == value.search(joined[-2])[0], "it is the state before the last one"
    assert read != value.search(joined[-1])[0]
    assert re.search(r"\d+\.\d % of \d+ inputs", finding.message)
    good = int(re.search(r"last good one before it is pass \d+ \(.*?:(\d+)\)", finding.evidence)[1])
    assert good < finding.where.line


def test_nan_at_a_layer():
    """N101 at layer 31, pass and line of the first one, and the rise of accept len explained by it."""
    run = "fault-nan-layer30"
    report = report_of(run, DRAFT)
    finding = the(report, "N101")
    first = next(number for number, line in enumerate(lines_of(run), 1) if "norm=nan" in line)
    assert finding.where.line == first
    assert "layer 31" in finding.message
    assert report.findings[0] is finding
    assert "A102" in report.headline
    assert rules_of(report) == {"N101", "A102"}


def test_layers_off_by_one_on_both_versions():
    """H103 says shifted by one; with the start-up lines gone the newer log fits one reading: a note with both."""
    assert "shifted by one" in the(report_of("fault-off-by-one-layers", DRAFT), "H103").message
    run = "0.5.15.post1-fault-off-by-one-layers"
    known = the(report_of(run, DRAFT), "H103")
    assert known.severity == "warning"
    assert "shifted by one" in known.message
    lines = lines_of(run)
    start = next(number for number, line in enumerate(lines) if "ready to roll" in line)
    cut = check_lines(lines[start + 1 :], DRAFT)
    note = the(cut, "H103")
    assert note.severity == "note"
    assert "0.5.12" in note.expected
    assert "0.5.13" in note.expected
    assert fired(cut) == set()
    given = the(check_lines(lines[start + 1 :], DRAFT, sglang_version="0.5.15.post1"), "H103")
    assert given.severity == "note", "whether the target is one of the family that changed is still open"
    assert "no line names the target's class" in given.evidence
    loads = [line for line in lines if "Load weight end." in line]
    given = the(check_lines([*loads, *lines[start + 1 :]], DRAFT, sglang_version="0.5.15.post1"), "H103")
    assert given.severity == "warning"
    assert "DeepseekV3ForCausalLM" in given.evidence


def test_layers_that_fit_no_reading_are_an_error():
    """Version unknown, and the captured layers fit neither reading: an error."""
    lines = lines_of("fault-off-by-one-layers")
    start = next(number for number, line in enumerate(lines) if "ready to roll" in line)
    assert the(check_lines(lines[start + 1 :], DRAFT), "H103").severity == "error"


def test_verify_in_mode_last():
    """H102 from the first verify on, and nothing about the extends, which are FULL."""
    report = report_of("fault-verify-last", DRAFT)
    finding = the(report, "H102")
    assert "verify" in finding.message
    assert "LAST" in finding.actual
    verifies = sum(
        row["kind"] == "forward" and row["forward_mode"] == "TARGET_VERIFY" for row in truth("fault-verify-last")
    )
    assert f"{verifies:,}" in finding.evidence


# -------------------------------------------------------------------------------------------------------------- cases


def test_a_layer_that_is_never_reached():
    """Case 06: layer 37 of 36 blocks is the cause; two states against three and the exception follow from it."""
    report = check(load(str(case("06"))))
    values = sidecar(case("06"))
    assert report.findings[0].rule == "H105"
    assert str(values["unreachable_layer"]) in report.findings[0].message
    assert the(report, "S101").expected == "3 x 2880 = 8640"
    assert the(report, "S101").actual == "2 x 2880 = 5760"
    assert "S101" in report.headline
    assert "E101" in report.headline


def test_thirty_seven_states():
    """Case 07: rows are not the problem; 37 states were joined where 3 were due."""
    report = check(load(str(case("07"))))
    finding = report.findings[0]
    assert finding.rule == "E102"
    assert "37 x 4096 = 151552" in finding.message
    assert "112" not in finding.message


def test_four_states_once_and_four_rows_never():
    """Case 08: only the first of three runs has a state too many; 4 rows and 3 rows are a setting, not a fault."""
    report = check(load(str(case("08"))))
    assert {finding.where.line for finding in report.findings if finding.rule == "S101"} == {8}
    second = next(number for number, line in enumerate(case("08").read_text().split("\n"), 1) if "15:20:00" in line)
    assert all(finding.where.line < second for finding in report.findings)


def test_graphs_hide_verifies():
    """Case 10: verify prints are hidden by graphs, a note with the advice; never a fault."""
    report = check(load(str(case("10"))))
    assert rules_of(report) == {"L103"}
    assert "--disable-cuda-graph" in the(report, "L103").help


def test_inf_before_nan():
    """Case 11: the first non-finite value is the inf of layer 30; the zero embedding is a finding of its own."""
    report = check(load(str(case("11"))))
    values = sidecar(case("11"))["first_non_finite"]
    finding = report.findings[0]
    assert finding.rule == "N101"
    assert finding.where.line == values["line"]
    assert f"layer {values['layer']}" in finding.message
    assert values["kind"] in finding.message
    assert "8 processes" in finding.evidence
    assert the(report, "N102").where.line == 19
    assert "A102" in report.headline


def test_the_first_error_among_five():
    """Case 24: Worker_TP1 at line 12 is the root; the engine and the API server only follow."""
    report = check(load(str(case("24"))))
    values = sidecar(case("24"))
    assert the(report, "E101").where.line == values["root"]["line"]
    assert values["root"]["process"] in the(report, "E101").message
    assert len([finding for finding in report.findings if finding.rule == "E102"]) == 1, "the quoted one is no third"
    assert "EngineDead" not in report.headline


def test_a_record_that_contradicts_its_name():
    """Case 26: an embedding capture with residual_is_none=False is flagged; prints that stop on purpose are not."""
    report = check(load(str(case("26"))))
    assert the(report, "L104").where.line == sidecar(case("26"))["residual_not_none_line"]
    assert fired(report) == set()


def test_acceptance_that_decays_for_two_hours():
    """Case 02: the decline is a warning that says since when and beside what."""
    report = check(load(str(case("02"))))
    finding = the(report, "A103")
    assert finding.severity == "warning"
    assert "3.33 to 1.90" in finding.message
    assert "token usage 0.36 to 0.47" in finding.evidence


def test_the_story_and_its_revert():
    """36a: the embedding, found with and without the contract; 36b: silent."""
    assert "H104" in fired(check(load(str(case("36a")))))
    assert fired(check(load(str(case("36a"))), DRAFT)) == {"H104", "S101"}
    for contract in (None, DRAFT):
        assert fired(check(load(str(case("36b"))), contract)) == set()


# ----------------------------------------------------------------------------------------------------------- headline


def test_consistent_states_and_nothing_accepted_point_at_the_vocabulary_map():
    """When acceptance is 1.00 and every identity holds, the headline says so and where to look."""
    lines = [re.sub(r"accept len: [\d.]+, accept rate: [\d.]+", "accept len: 1.00, accept rate: 0.25", line)
             for line in lines_of("healthy-topk1")]  # fmt: skip
    report = check_lines(lines, DRAFT)
    assert fired(report) == {"A101"}
    assert "hidden states are consistent" in report.headline
    assert "d2t" in report.headline


def test_every_rule_has_its_place_among_the_causes():
    """The order of causes names every rule once, and explains only rules there are, without circles."""
    assert sorted(ORDER) == sorted(rules())
    for cause, effects in EXPLAINS.items():
        assert effects <= set(ORDER)
        for effect in effects:
            assert cause not in EXPLAINS.get(effect, frozenset()), f"{cause} and {effect} explain each other"


def test_findings_come_most_causal_first_and_name_their_place():
    """Findings are ranked by causality; every error and warning has file and line, expected or actual, and help."""
    for run in ("fault-embed-captured", "fault-nan-layer30", "fault-stale-states"):
        findings = report_of(run, DRAFT).findings
        assert all(finding.where is not None and finding.where.line for finding in findings)
        assert all(finding.evidence and finding.help for finding in findings)
        places = [ORDER.index(finding.rule) for finding in findings]
        assert places == sorted(places)


# ------------------------------------------------------------------------------------------------- select, live, files


def test_select_and_ignore_take_codes_and_their_beginnings():
    """Only the selected rules run, without the ignored ones; a word that begins no code is refused with the nearest."""
    report = check(loaded("fault-concat-reversed"), DRAFT, select=["N", "A101"], ignore=["N105"])
    assert rules_of(report) == {"A101"}
    assert {row["rule"][0] for row in report.tables["checked"].rows} == {"N", "A"}
    with pytest.raises(UsageError, match="no rule is called 'N999'"):
        check(loaded("fault-concat-reversed"), select=["N999"])


def test_a_live_check_answers_at_any_moment():
    """Asked again and again while the log grows, the answer of the end is the answer of the whole; onset stays put."""
    data = real_bytes("fault-stale-states")
    asked, at_once, seen = Asked(Checker(DRAFT)), Asked(Checker(DRAFT)), []
    for batch in batches(data, step=len(data) // 9):
        asked.add(batch)
        seen.append(asked.report(Context()))
    at_once.add(tables(data))
    whole = at_once.report(Context())
    assert [finding.as_dict() for finding in seen[-1].findings] == [finding.as_dict() for finding in whole.findings]
    assert {table: seen[-1].tables[table].rows for table in seen[-1].tables} == {
        table: whole.tables[table].rows for table in whole.tables
    }
    onsets = {finding.where.line for report in seen for finding in report.findings if finding.rule == "N106"}
    assert onsets == {the(whole, "N106").where.line}


@pytest.mark.parametrize("run", ["fault-off-by-one-layers", "fault-embed-captured-wide-fc", "fault-verify-last"])
def test_small_batches_say_what_one_says(run):
    """However a log is cut, every rule looks at as much and finds the same."""
    data, said = real_bytes(run), []
    for step in (None, len(data) // 40):
        asked = Asked(Checker(DRAFT))
        for batch in batches(data, step=step):
            asked.add(batch)
        said.append(asked.report(Context()).as_dict())
    assert said[0] == said[1]


def test_ranks_in_a_file_each(tmp_path):
    """Files of ranks are compared pass by pass: equal ones are silent, a differing one is R101 at its first bad line."""
    lines = [line for line in lines_of("healthy-topk1") if "EAGLE3_DEBUG[" in line][:600]
    paths = [tmp_path / f"rank{rank}.log" for rank in range(3)]
    for path in paths:
        path.write_text("\n".join(lines) + "\n")
    assert fired(check(load(*map(str, paths)), DRAFT)) == set()
    at = next(number for number, line in enumerate(lines) if number > 300 and "layer 31" in line)
    bad = [*lines]
    bad[at] = re.sub(r"norm=([\d.]+)", lambda found: f"norm={float(found[1]) * 1.1:.4f}", bad[at])
    paths[2].write_text("\n".join(bad) + "\n")
    finding = the(check(load(*map(str, paths)), select=["R"]), "R101")
    assert finding.where.file == str(paths[2])
    assert finding.where.line == at, "the pass begins with layer 3, on the line before layer 31"


def test_two_servers_are_not_two_ranks():
    """Two runs of the same server are not compared as ranks, however alike they are."""
    pair = load(str(real_log("healthy-topk1")), str(real_log("healthy-topk1-again")))
    assert fired(check(pair, DRAFT)) == set()


def test_segments_are_judged_apart(tmp_path):
    """A good life after a bad one in the same file: findings stand in the bad one only."""
    path = tmp_path / "two.log"
    path.write_bytes(real_bytes("fault-embed-captured") + real_bytes("healthy-topk1"))
    report = check(load(str(path)), DRAFT)
    border = len(lines_of("fault-embed-captured"))
    assert {"S101", "H104", "E101", "E102"} == fired(report)
    assert all(finding.where.line < border for finding in report.findings)
    assert len(report.facts["segments"]) == 2


def test_contracts_may_be_given_as_values():
    """A contract is a path, a mapping of TOML's keys, or a Contract."""
    for contract in ({"aux_layers": [4, 32, 60]}, Contract(aux_layers=(4, 32, 60))):
        report = check(loaded("healthy-topk1"), contract)
        assert the(report, "H103").severity == "error"


@pytest.mark.parametrize(
    ("contract", "options", "words"),
    [
        ('{"model_type": "bert"}', (), "says nothing about a draft"),
        (None, ("--since", "2031-01-01"), "leaves nothing to check"),
    ],
)
def test_a_check_of_nothing_is_no_success(contract, options, words, tmp_path, capsys):
    """A contract that says nothing, a selection that matches nothing: exit 2 with the reason, JSON says unknown."""
    path = tmp_path / "config.json"
    if contract:
        path.write_text(contract)
        options = ("--contract", str(path))
    assert cli.main(["check", str(real_log("healthy-topk1")), *options, "-f", "json"]) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    report = json.loads(printed.out)
    assert report["verdict"] == "unknown"
    assert words in report["headline"]
