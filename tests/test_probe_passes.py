"""The probe on stand-ins of SGLang as released versions have it: every pass, role, mode, size, norm and value.

Skipped where torch is not installed: it is no part of the test extra.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data" / "probe"
VERSIONS = ["0.5.11", "0.5.15.post1", "0.5.17", "0.5.23"]
RECORD = re.compile(
    r"\[(?P<time>[\d :-]{19})(?P<rank>[^\]]*)\] EAGLE3_DEBUG\[(?P<tag>\w+)\] (?P<label>[^:]+): "
    r"(?:shape|hidden_states)=torch\.Size\(\[(?P<rows>\d+), (?P<width>\d+)\]\)(?P<more>.*?), pass=(?P<pass>\d+), "
    r"forward_mode=(?P<mode>\w+), batch_size=(?P<size>\d+), graph=(?P<graph>True|False)(?:, rids=(?P<rids>\[.*?\]))?"
    r"(?:, row_norms=(?P<norms>\[.*?\]))?, norm=(?P<norm>[\d.naif]+), first5=(?P<first>\[.*?\])(?:, dropped=(?P<dropped>\d+))?"
)
sys.path[:0] = [str(DATA), str(ROOT / "probe")]

import standin  # noqa: E402 - the path is set above


class Run:
    """A served stand-in: what the probe wrote, what was so."""

    def __init__(self, folder: Path, version: str, options: list[str], without: str = "", **words: Any) -> None:
        """Serve."""
        standin.build(folder / "site", version, without=without)
        env = {key: value for key, value in os.environ.items() if not key.startswith("LOGSCOPE")}
        env["PYTHONPATH"] = os.pathsep.join([str(DATA), str(folder / "site"), str(ROOT / "probe")])
        serve = [sys.executable, str(DATA / "standin.py"), str(folder / "truth.jsonl"), f"version={version}"]
        serve += [f"{key}={value}" for key, value in words.items()]
        self.folder = folder / "out"
        command = [sys.executable, "-m", "logscope_probe", "-o", str(self.folder), *options, "--", *serve]
        self.done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
        assert self.done.returncode == 0, self.done.stderr
        self.truth = [json.loads(line) for line in (folder / "truth.jsonl").read_text().splitlines()]
        self.files = sorted(self.folder.glob("*.log"))
        self.lines = [line for file in self.files for line in file.read_text().splitlines()]
        self.notes = [line for line in self.lines if "EAGLE3_DEBUG[probe]" in line]
        self.records = [match for line in self.lines if (match := RECORD.fullmatch(line))]
        assert len(self.notes) + len(self.records) == len(self.lines), "a line is neither"

    def passes(self) -> dict[int, list[re.Match[str]]]:
        """Return the records by pass."""
        found: dict[int, list[re.Match[str]]] = {}
        for record in self.records:
            found.setdefault(int(record["pass"]), []).append(record)
        return found


def same(run: Run, number: int, records: list[re.Match[str]]) -> None:
    """Compare one pass with the truth."""
    true = run.truth[number - 1]
    assert [record["label"] for record in records] == [state["label"] for state in true["states"]], number
    for record, state in zip(records, true["states"], strict=True):
        assert record["mode"] == true["mode"]
        assert int(record["size"]) == true["batch_size"]
        assert record["graph"] == str(true["graph"])
        assert [int(record["rows"]), int(record["width"])] == state["shape"], (number, state["label"])
        assert float(record["norm"]) == pytest.approx(state["norm"], rel=1e-5, abs=1e-4, nan_ok=True)
        assert json.loads(record["first"]) == pytest.approx(state["first"], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("words", [{}, {"graphs": 0}, {"topk": 2, "twice": 1}, {"steps": 5, "embed": 1}], ids=str)
def test_every_pass_is_what_it_was(tmp_path: Path, version: str, words: dict[str, int]):
    """Roles, modes, sizes, rows of real tokens, norms and first values, eager and out of replayed, padded graphs."""
    run = Run(tmp_path, version, [], **words)
    passes = run.passes()
    assert sorted(passes) == list(range(1, len(run.truth) + 1))
    for number, records in passes.items():
        same(run, number, records)
    assert len(run.notes) == 1, "a header and no finding"
    header = run.notes[0]
    assert f"sglang={version!r}" in header
    assert "layer_ids=[0, 2, 4], layers" if words.get("embed") else "layer_ids=[1, 2, 4], " in header
    assert "target='Target'" in header
    assert "fc_in=48" in header
    assert "not_wrapped=[]" in header


def test_row_norms_and_request_ids(tmp_path: Path):
    """`--row-norms N` prints the norms of at most N rows, `--rids` the requests, in every record."""
    run = Run(tmp_path, "0.5.17", ["--row-norms", "3", "--rids"])
    for number, records in run.passes().items():
        for record, state in zip(records, run.truth[number - 1]["states"], strict=True):
            assert json.loads(record["norms"]) == pytest.approx(state["rows"][:3], rel=1e-5)
            assert record["rids"] == str([f"r{k}" for k in range(run.truth[number - 1]["batch_size"])])


def test_chosen_states_and_passes(tmp_path: Path):
    """`--states` and `--every`: other passes keep their numbers, and a round is recorded whole."""
    run = Run(tmp_path, "0.5.15.post1", ["--states", "join,input", "--every", "2", "--from-pass", "7"], rounds=4)
    assert {record["label"] for record in run.records} == {"aux concat", "forward"}
    targets = [at for at, true in enumerate(run.truth, 1) if true["role"] == "target"]
    chosen = [at for at in targets[1::2] if at >= 7]
    rounds = {at: next((other for other in targets if other > at), len(run.truth) + 1) for at in chosen}
    assert sorted(run.passes()) == [number for at, end in rounds.items() for number in range(at, end)]


@pytest.mark.parametrize("what", ["nan", "inf", "zero", "stale"])
@pytest.mark.parametrize("graphs", [1, 0])
def test_a_finding_ends_the_recording(tmp_path: Path, what: str, graphs: int):
    """The first nan, inf, zero or stale draft input is said, and recording ends so many passes behind it."""
    run = Run(tmp_path, "0.5.15.post1", ["--until-finding", "2"], rounds=5, spoil=what, graphs=graphs)
    targets = [at for at, true in enumerate(run.truth, 1) if true["role"] == "target"]
    spoilt = targets[4] + 1  # the draft input behind the extend of the third round
    findings = [note for note in run.notes if "] finding: " in note]
    assert f"finding: what={what!r}, state='forward', row=" in findings[0]
    assert f"pass={spoilt}" in findings[0]
    assert max(run.passes()) in (spoilt + 2, spoilt + 3)  # a graph's two passes stand or fall together
    assert json.loads((run.folder / "found").read_text())["stop"] == spoilt + 2


def test_a_healthy_run_has_no_finding(tmp_path: Path):
    """Nothing is said of a run that is as it should be, accepted rows of the older worker included."""
    for version in ("0.5.11", "0.5.23"):
        run = Run(tmp_path / version, version, ["--until-finding", "0"], rounds=6)
        assert len(run.passes()) == len(run.truth)


@pytest.mark.parametrize(
    ("without", "missing"),
    [
        ("LogitsProcessor._get_hidden_states_to_store", {"aux concat", "layer 1 capture"}),
        ("EagleDraftWorker.draft_forward", set()),
    ],
)
def test_an_unknown_version_runs_on(tmp_path: Path, without: str, missing: set[str]):
    """What cannot be wrapped is said and named in the header; the rest is recorded, the server is not disturbed."""
    run = Run(tmp_path, "0.5.15.post1", [], without=without)
    module = "layers.logits_processor" if without.startswith("Logits") else "speculative.eagle_worker_v2"
    assert f"not_wrapped=['{module}." in run.notes[-1]
    labels = {record["label"] for record in run.records}
    assert "forward" in labels
    assert not labels & missing
    modes = {record["mode"] for record in run.records}
    assert ("DECODE" in modes) == (module == "layers.logits_processor"), "no step is told of that may be a warm-up's"


def test_ranks_have_files_of_their_own(tmp_path: Path):
    """The file's name and every line carry the rank as SGLang writes it."""
    run = Run(tmp_path, "0.5.17", [], prefix=" DP1 TP0")
    assert re.fullmatch(r"dp1\.tp0\.\d+\.log", run.files[0].name)
    assert {record["rank"] for record in run.records} == {" DP1 TP0"}
    assert "tp_size=2, tp_rank=0" in run.notes[0]
    assert "dp_rank=1" in run.notes[0]


def test_off_at_the_start(tmp_path: Path):
    """`--off` records nothing; the server serves."""
    run = Run(tmp_path, "0.5.17", ["--off"])
    assert not run.lines
    assert run.truth


def test_a_failure_of_the_probe_stays_with_the_probe(tmp_path: Path):
    """Options nobody can read, a folder nobody can write to: said, and the server serves."""
    standin.build(tmp_path / "site", "0.5.17")
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT / "probe" / "logscope_probe" / "startup"), str(DATA), str(tmp_path / "site")]
        ),
        "LOGSCOPE_PROBE": "/proc/no/such/folder",
    }
    for options, said in (("", "rank0"), ("nonsense=1", "'nonsense=1' is no option")):
        serve = [sys.executable, str(DATA / "standin.py"), str(tmp_path / "truth.jsonl"), "version=0.5.17"]
        done = subprocess.run(
            serve, env={**env, "LOGSCOPE_PROBE_OPTIONS": options}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert said in done.stderr


# ---------------------------------------------------------------------------------------------- on the device


def test_norms_are_accumulated_in_fp32():
    """A bf16 state's norm is that of its values, not one rounded to bf16; views of a packed state need no copy."""
    import torch
    from logscope_probe.device import LEAD, Buffers

    torch.manual_seed(3)
    packed = (torch.randn(40, 3 * 7168) * 30).to(torch.bfloat16)
    buffers = Buffers("cpu", 64)
    for part in packed.chunk(3, dim=-1):
        buffers.add("a", "layer 1 capture", "shape", part)
    for at, part in enumerate(packed.chunk(3, dim=-1)):
        true = part.double().norm(dim=-1)
        assert torch.allclose(buffers.cells[at, LEAD : LEAD + 40].double(), true, rtol=1e-6)
        assert buffers.cells[at, :5].tolist() == part[0, :5].tolist()


def test_more_rows_than_cells_keep_the_norm():
    """The last cell holds the norm of all rows that have none of their own."""
    import torch
    from logscope_probe.device import LEAD, Buffers, Slots

    x = torch.randn(100, 8)
    buffers = Buffers("cpu", 16)
    buffers.add("a", "b", "shape", x)
    slots = Slots(16, pinned=False, small=1, large=0)
    slot = slots.take(1, 16)
    assert slot is not None
    slot.fill(buffers, 1, 16)
    assert slot.ready()
    first, norm, norms = slot.values(0, 100)
    assert first == x[0, :5].tolist()
    assert norm == pytest.approx(float(x.norm()), rel=1e-6)
    assert norms[:15].tolist() == pytest.approx(x.norm(dim=-1)[:15].tolist(), rel=1e-6)
    assert slots.take(1, 16) is None, "bounded: none is made anew"
    slots.free(slot)
    assert not slot.ready()
    assert slots.take(1, 16) is slot
    assert LEAD == 8


def test_empty_and_odd_states_are_harmless():
    """No rows, more states than lines, other numbers of axes."""
    import torch
    from logscope_probe.device import STATES, Buffers

    buffers = Buffers("cpu", 16)
    buffers.add("a", "b", "shape", torch.randn(0, 8))
    buffers.add("a", "b", "shape", torch.randn(8))
    for _ in range(2 * STATES):
        buffers.add("a", "b", "shape", torch.randn(2, 2))
    assert len(buffers.seen) == STATES
    assert [state.rows for state in buffers.seen[:2]] == [0, 2]
