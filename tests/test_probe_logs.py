"""Records that the probe wrote in real servers, CUDA graphs on: against the truth, by identities, and what `check` says."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import logscope

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "tests" / "data" / "probe" / "logs"
RUNS = sorted(path.name for path in LOGS.iterdir())
FILES = sorted(f"{path.parent.name}/{path.name}" for path in LOGS.glob("*/*.log.gz"))
SCHEMA = json.loads((ROOT / "docs" / "reference" / "schemas" / "probe-header.schema.json").read_text())
# What was put in, and the rules that have to name it; every other run is healthy. Dummy weights make all captured
# states of the small models alike, and N103 says so.
FAULTS = {
    "fault-0.5.15.post1-off-by-one": {"H103"},
    "fault-0.5.15.post1-tp2-rank1-nan": {"N101", "R101"},
    "fault-0.5.15.post1-tp2-rank1-scaled": {"R101"},
    "fault-0.5.15.post1-tp2-rank1-stale": {"N106", "R101"},
    "fault-0.5.15.post1-zero": {"N102"},
    "fault-0.5.17-nan": {"N101"},
    "fault-0.5.17-off-by-one": {"H103"},
    "fault-0.5.17-stale": {"N106"},
    "fault-0.5.17-tp2-rank1-scaled": {"R101"},
    "fault-0.5.17-zero": {"N102"},
    "0.5.11-llama": {"N103"},
    "0.5.15.post1-llama-prefill-graphs": {"N103"},
    "0.5.15.post1-qwen3": {"N103"},
}
FINDINGS = {"nan": "nan", "rank1-nan": "nan", "zero": "zero", "stale": "stale", "rank1-stale": "stale"}


def events(file: str) -> list[Any]:
    """Return a file's events."""
    return list(logscope.stream(LOGS / file))


def passes(file: str) -> dict[int, list[Any]]:
    """Return the records of each printed pass."""
    found: dict[int, list[Any]] = {}
    for event in events(file):
        if event.site != "probe":
            found.setdefault(event.fields["pass"], []).append(event)
    return found


@pytest.mark.parametrize("file", FILES)
def test_every_pass_is_what_it_was(file: str):
    """Role, forward mode, batch size, rows and graph of every pass, none missing, none too many."""
    with (LOGS / file.replace(".log.gz", ".truth.csv")).open() as lines:
        truth = list(csv.DictReader(lines))
    found = passes(file)
    assert sorted(found) == list(range(1, len(truth) + 1))
    for true in truth:
        records = found[int(true["pass"])]
        assert records[0].role == true["role"], true
        for record in records:
            assert record.intact == "whole"
            assert record.fields["forward_mode"] == true["forward_mode"], true
            assert record.fields["batch_size"] == int(true["batch_size"]), true
            assert record.fields["graph"] == bool(int(true["graph"])), true
            assert record.evidence == "printed"
        assert records[0].rows == int(true["rows"]), true


@pytest.mark.parametrize("file", FILES)
def test_norms_fit_each_other(file: str):
    """The join's norm is that of its parts, and what the draft is given is the join, but where a fault says otherwise."""
    joined, looked = None, 0
    for records in passes(file).values():
        by = {record.event: record for record in records}
        parts = [record.norm for record in records if record.event.endswith("_capture")]
        if "aux_concat" in by:
            joined = by["aux_concat"]
            if joined.rows == records[0].rows and math.isfinite(joined.norm):
                looked += 1
                assert joined.norm == pytest.approx(math.sqrt(sum(part**2 for part in parts)), rel=1e-5, abs=2e-4)
        given = by.get("forward")
        fed = given is not None and joined is not None and given.fields["forward_mode"] != "DECODE"
        if fed and given.rows == joined.rows and "stale" not in file and "topk" not in file:
            assert (given.norm, given.head) == (joined.norm, joined.head) or math.isnan(given.norm)
    assert looked > 5


@pytest.mark.parametrize("file", FILES)
def test_the_header_says_what_ran(file: str):
    """First record, valid by the schema: version, ranks, models, layers, spec settings."""
    run, first = file.split("/", maxsplit=1)[0], events(file)[0]
    assert first.event == "probe_header"
    said = first.fields
    jsonschema.validate(said, SCHEMA)
    assert said["sglang"] == run.removeprefix("fault-").split("-")[0]
    assert said["tp_size"] == (2 if "tp2" in run or "dp-attention" in run else 1)
    assert said["tp_rank"] == int(first.tp_rank or 0)
    assert said["speculative_eagle_topk"] == (4 if "topk4" in run else 1)
    assert said["not_wrapped"] == []
    assert said["cuda_graph"] == ("eager" not in run)
    assert said["draft"] == "LlamaForCausalLMEagle3"
    small = "llama" in run or "qwen3" in run
    asked = [1, 5, 9] if small else [3, 31, 59] if "off-by-one" in run else [2, 30, 58]
    assert said["layer_ids"] == asked
    # DeepSeek of 0.5.11, and other families, capture before the layer behind the one that the id names.
    behind = small or said["sglang"] == "0.5.11"
    assert said["layers_to_capture"] == [layer + behind for layer in asked]
    assert said["fc_in"] == 3 * said["target_width"]


@pytest.mark.parametrize("run", RUNS)
def test_the_probes_own_findings(run: str):
    """It finds what was put in, on the rank that has it, and nothing in any other run."""
    wanted = next((FINDINGS[end] for end in FINDINGS if run.endswith(f"-{end}")), None)
    for file in (name for name in FILES if name.startswith(f"{run}/")):
        found = {event.fields["what"] for event in events(file) if event.event == "probe_finding"}
        other = "rank1" in run and "/tp0" in file
        # A rank beside one with nan soon reads nan too: it is given the other's tokens.
        assert found == ({wanted} if wanted and not (other and wanted == "stale") else set())


@pytest.mark.parametrize("run", RUNS)
def test_check_names_the_fault(run: str):
    """`check DIR/` names what was put in, with CUDA graphs on, and finds nothing in a healthy run."""
    version = run.removeprefix("fault-").split("-")[0]
    small = "llama" in run or "qwen3" in run
    contract = None if small else ROOT / "samples" / "draft-config.json"
    report = logscope.load(LOGS / run).check(contract, sglang_version=version)
    found = {finding.rule for finding in report.findings if finding.severity != "note"}
    assert found == FAULTS.get(run, set())
