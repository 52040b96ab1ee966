"""Logs in the forms of SGLang 0.5.23, with the right values of their sidecar (data/sg/sg-newest-sglang.md).

Everything is asked as a user does: through the command line, with JSON output.
"""

from __future__ import annotations

import json
import re

import pytest
from conftest import DATA

from logscope import cli

SG = DATA / "sg"
STARTUP = SG / "sg-a-startup-and-serving.log"
CONFIG = SG / "sg-a-draft-config.json"
PACKED = SG / "sg-d-packed-states.log"


@pytest.fixture
def answer(capsys):
    """Return a function that asks one command about a log and gives its JSON."""

    def ask(command, log, *options):
        code = cli.main([*command.split(), str(log), *map(str, options), "-f", "json"])
        printed = capsys.readouterr()
        assert code in (0, 1), printed.err
        return json.loads(printed.out)

    return ask


@pytest.fixture
def events(capsys):
    """Return a function that gives the events of a log, one dict each."""

    def ask(log):
        assert cli.main(["events", str(log), "-f", "ndjson"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return ask


def test_everything_is_read_whole(events):
    """No line of the log with known words is cut, unparsed or without its event."""
    found = events(STARTUP)
    assert {one["intact"] for one in found} == {"whole"}
    assert not [one for one in found if one["event"] == "unparsed"]
    (replay,) = [one for one in found if one["event"] == "graph_replay"]
    assert {key: replay["fields"][key] for key in ("worker", "mode", "raw_bs")} == {
        "worker": "target",
        "mode": "TARGET_VERIFY",
        "raw_bs": 2,
    }
    occupancy = [one["fields"]["fwd+idle occupancy"] for one in found if one["event"] == "decode_stats"]
    assert occupancy == [93.4] * 4


def test_the_set_up(answer):
    """EAGLE3, 3 steps, topk 1, N 4; MiniMax M3 in fp8; 16384 tokens of KV cache after graph capture, 1.07 GB."""
    report = answer("config", STARTUP)
    (run,) = report["facts"]["runs"]
    args = run["server_args"]
    assert args["speculative_algorithm"] == "EAGLE3"
    assert [args[f"speculative_{name}"] for name in ("num_steps", "eagle_topk", "num_draft_tokens")] == [3, 1, 4]
    assert run["derived"]["target_type"] == "MiniMaxM3SparseForCausalLM"
    assert run["derived"]["kv_tokens"] == 16384, "131072 are address space, not memory"
    rows = {row["what"]: row["value"] for row in report["tables"]["startup"]}
    assert "fp8" in rows["target loaded"]
    assert "16,384 tokens" in rows["KV cache of the target"]
    assert "1.07 GB" in rows["KV cache of the target"]
    assert "0.04 GB" in rows["KV cache of the draft"]
    assert not any("131" in value for value in rows.values())


def test_the_release(answer):
    """The names of server_args say 0.5.23; what is newer cannot be told from it."""
    (row,) = answer("summarize", STARTUP)["tables"]["segments"]
    assert row["version"] == "0.5.23 or newer"


def test_acceptance(answer):
    """Four decode lines, accept len mean 3.025 (2.80 to 3.25), definition C with N 4."""
    report = answer("accept", STARTUP)
    (row,) = report["tables"]["accept"]
    assert row["lines"] == 4
    assert row["accept_len_mean"] == pytest.approx(3.025)
    assert (row["min"], row["max"]) == (2.8, 3.25)
    (rate,) = report["tables"]["rates"]
    assert (rate["definition"], rate["draft_tokens"]) == ("C", 4)


def test_passes_and_layers(answer, events):
    """One extend of 96 rows with layers 3, 31, 57; a draft output of 2 rows; the warm-up's prefill is one of two."""
    rows = answer("summarize", STARTUP)["tables"]["phases"]
    assert [(row["role"], row["phase"], row["passes"], row["hidden_captures"]) for row in rows] == [
        ("target", "extend", 1, 3),
        ("draft", "extend", 1, None),
    ]
    found = events(STARTUP)
    assert [one["layer"] for one in found if one["event"] == "layer_capture"] == [3, 31, 57]
    assert [(one["role"], one["rows"]) for one in found if one["event"] == "aux_concat"] == [
        ("target", 96),
        ("draft", 2),
    ]
    prefills = [(one["fields"]["new_token"], one["during"]) for one in found if one["event"] == "prefill_stats"]
    assert prefills == [(3, "warmup"), (96, "serving")]


def test_verify_is_hidden_by_graphs(answer):
    """Graphs were captured and replayed, so no verify prints; L103 says so and nothing else is found."""
    report = answer("check", STARTUP, "--contract", CONFIG)
    assert [one["rule"] for one in report["findings"]] == ["L103"]
    assert report["verdict"] == "ok"
    assert "hidden by CUDA graphs" in answer("summarize", STARTUP)["headline"]


def test_ids_of_a_target_that_is_not_deepseeks(answer, tmp_path):
    """Ids 2, 30, 56 mean layers 3, 31, 57 here: silent; one layer off is found."""
    report = answer("check", STARTUP, "--contract", CONFIG, "--select", "H103")
    assert report["findings"] == []
    assert report["tables"]["checked"][0]["looked_at"] == 1
    log = tmp_path / "off.log"
    text = STARTUP.read_text(encoding="utf-8")
    log.write_text(re.sub(r"layer (\d+) capture", lambda m: f"layer {int(m[1]) - 1} capture", text), encoding="utf-8")
    (found,) = answer("check", log, "--contract", CONFIG, "--select", "H103")["findings"]
    assert found["severity"] == "error"
    assert "MiniMaxM3SparseForCausalLM" in found["evidence"]


def test_start_up_lines_of_a_rank_that_prints_nothing_else(answer, tmp_path):
    """TP 2: TP0 prints, of TP1 there are start-up lines only; the layers are looked at all the same."""
    lines = []
    for line in STARTUP.read_text(encoding="utf-8").splitlines():
        marked = line.replace("'tp_size': 1", "'tp_size': 2")
        if "server_args" not in line and "INFO" not in line and "fired up" not in line:
            marked = re.sub(r"^(\[[\d: -]+)\]", r"\1 TP0]", marked)
        lines.append(marked)
        if "Load weight" in line or "KV Cache" in line or "Init torch" in line:
            lines.append(marked.replace("TP0", "TP1"))
    log = tmp_path / "tp2.log"
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    report = answer("check", log, "--contract", CONFIG)
    assert [one["rule"] for one in report["findings"]] == ["L103"]
    looked = {row["rule"]: row["looked_at"] for row in report["tables"]["checked"]}
    assert looked["H103"] == 1
    assert looked["N104"] == 1


# ------------------------------------------------------------------------------------------------------- packed states


def test_packed_layers(events):
    """Both extends capture layers 2, 30, 58, of 8 rows and of 1 row."""
    found = [one for one in events(PACKED) if one["event"] == "layer_capture"]
    assert [(one["layer"], one["rows"]) for one in found] == [(2, 8), (30, 8), (58, 8), (2, 1), (30, 1), (58, 1)]


def test_packed_passes(answer):
    """Two extends of the target and two of the draft, no pass of unknown phase, and no draft pass more."""
    rows = answer("summarize", PACKED)["tables"]["phases"]
    assert sorted((row["role"], row["phase"], row["passes"]) for row in rows) == [
        ("draft", "extend", 2),
        ("target", "extend", 2),
    ]


def test_packed_joins(events):
    """The states of 21504 are the target's joins, of 8 rows and of 1 row; never a draft's output."""
    joins = [(one["role"], one["rows"], one["width"]) for one in events(PACKED) if one["event"] == "aux_concat"]
    assert joins == [("target", 8, 21504), ("draft", 1, 7168), ("target", 1, 21504), ("draft", 1, 7168)]


def test_packed_widths_are_told_as_states(answer):
    """Three states of 7168, joined 21504: the number of states is the width by the hidden size."""
    rows = answer("shapes", PACKED)["tables"]
    text = json.dumps(rows)
    assert "21504" in text
    assert (
        "3 states" in answer("summarize", PACKED)["headline"] or "3 x 7168" in answer("summarize", PACKED)["headline"]
    )


def test_packed_states_are_what_the_draft_reads(answer):
    """The draft reads the state joined before it in 2 of 2; norms of captures and joins agree in both."""
    report = answer("check", PACKED)
    looked = {row["rule"]: row["looked_at"] for row in report["tables"]["checked"]}
    assert looked["N106"] == 2
    assert looked["N104"] == looked["N105"] == looked["H104"] == looked["H103"] == 2
    assert "2 of 2" in answer("summarize", PACKED)["headline"]


def test_one_note_names_the_cause_and_the_cure(answer):
    """The count that is printed is the rows; the print needs width / hidden: one note, not one for each row count."""
    notes = [one for one in answer("check", PACKED)["findings"] if one["rule"] == "L104"]
    assert len(notes) == 1
    text = " ".join(str(notes[0][key]) for key in ("message", "evidence", "help"))
    assert "rows" in text
    assert "chunk" in text


def test_packed_states_are_no_fault(answer):
    """A healthy draft on packed states: no finding above a note, with ids that name the layers themselves."""
    report = answer("check", PACKED)
    assert not [one for one in report["findings"] if one["severity"] != "note"]
