"""Releases of SGLang up to 0.5.23: layer ids by class, lines by release, the release told from the log.

The rows come from reading the released packages (docs/explanation/versions.md); real logs are of 0.5.11, 0.5.15.post1
and 0.5.17. Everything goes through the command line, as a user's log would.
"""

from __future__ import annotations

import importlib.util
import json
import re
import zipfile

import pytest
from conftest import DATA, real_bytes

from logscope import cli

CONFIG = DATA / "draft-config.json"
# id itself from 0.5.13 on: DeepSeek's class, what inherits from it or wraps it, and GLM 4 MoE Lite.
FAMILY = (
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "GlmMoeDsaForCausalLM",
    "KimiK25ForConditionalGeneration",
    "MistralLarge3ForCausalLM",
)
# id + 1 in every version; the last one is nobody's.
RULE = (
    "ApertusForCausalLM",
    "BailingMoEForCausalLM",
    "BailingMoeForCausalLM",
    "BailingMoeV2ForCausalLM",
    "ExaoneMoEForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "Glm4MoeForCausalLM",
    "Glm5NextForConditionalGeneration",
    "GptOssForCausalLM",
    "IQuestCoderForCausalLM",
    "InternLM3ForCausalLM",
    "InternS1ProForConditionalGeneration",
    "InternS2PreviewForConditionalGeneration",
    "Llama4ForCausalLM",
    "Llama4ForConditionalGeneration",
    "LlamaForCausalLM",
    "LongcatFlashForCausalLM",
    "MiniMaxM2ForCausalLM",
    "MiniMaxM3SparseForCausalLM",
    "MiniMaxM3SparseForConditionalGeneration",
    "Ministral3ForCausalLM",
    "MistralForCausalLM",
    "Phi3ForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
    "Qwen4ExpForConditionalGeneration",
    "SarvamMoEForCausalLM",
    "TeleFLMForCausalLM",
    "NobodyHasHeardOfForCausalLM",
)


@pytest.fixture
def answer(tmp_path, capsys):
    """Return a function that asks one command about lines and gives its JSON."""

    def ask(command, lines, *options):
        path = tmp_path / "server.log"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        code = cli.main([*command.split(), str(path), *map(str, options), "-f", "json"])
        printed = capsys.readouterr()
        assert code in (0, 1), printed.err
        return json.loads(printed.out)

    return ask


@pytest.fixture
def events(tmp_path, capsys):
    """Return a function that gives the events of lines, one dict each."""

    def ask(lines):
        path = tmp_path / "server.log"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        assert cli.main(["events", str(path), "-f", "ndjson"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return ask


def fired(report, *, least="warning"):
    """Return the codes of the findings of a check, notes left out unless they are asked for."""
    return {one["rule"] for one in report["findings"] if least == "note" or one["severity"] != "note"}


# ----------------------------------------------------------------------------------------------------------- layer ids


def served(target, shift, *, head=None):
    """Return the first passes of a healthy real log whose ids are 2, 30, 58, as a target of another class prints them.

    The real one captures the ids themselves; ``shift`` is added to every layer.
    """
    lines = real_bytes("0.5.15.post1-healthy-topk1").decode().splitlines()[:160]
    ready = next(at for at, line in enumerate(lines) if "ready to roll" in line)
    lines = lines if head is None else [*head, *lines[ready:]]
    lines = [line.replace("type=DeepseekV3ForCausalLM", f"type={target}") for line in lines]
    return [re.sub(r"\] layer (\d+) capture", lambda m: f"] layer {int(m[1]) + shift} capture", line) for line in lines]


@pytest.mark.parametrize("target", [*FAMILY, *RULE])
def test_layers_of_a_healthy_target_are_silent_and_one_off_is_not(answer, target):
    """H103 says nothing where the layers are what the class captures, and says so where they are one off."""
    right = 0 if target in FAMILY else 1
    report = answer("check", served(target, right), "--contract", CONFIG, "--select", "H103")
    assert report["findings"] == []
    assert report["tables"]["checked"][0]["looked_at"] > 0
    for wrong in {-1, 0, 1} - {right}:
        report = answer("check", served(target, wrong), "--contract", CONFIG, "--select", "H103")
        (found,) = report["findings"]
        assert found["severity"] in ("error", "warning"), wrong
        assert "shifted by" in found["message"]
        assert target in found["evidence"], "which reading was taken, and why"


def test_ids_that_begin_with_1_mean_id_plus_1_everywhere(answer, tmp_path):
    """The sign of a checkpoint that was trained for the old meaning; no class makes a difference."""
    config = tmp_path / "config.json"
    values = json.loads(CONFIG.read_text(encoding="utf-8"))
    values["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [1, 29, 57]
    config.write_text(json.dumps(values), encoding="utf-8")
    for target in ("DeepseekV3ForCausalLM", "LlamaForCausalLM"):
        assert answer("check", served(target, 0), "--contract", config, "--select", "H103")["findings"] == []


def test_without_a_class_both_readings_stand(answer):
    """The line that names the class is lost: a note for either reading, an error for neither."""
    args = [line for line in served("x", 0) if "server_args=" in line]
    for shift, severity in ((0, "note"), (1, "note"), (2, "error")):
        report = answer("check", served("x", shift, head=args), "--contract", CONFIG, "--select", "H103")
        (found,) = report["findings"]
        assert found["severity"] == severity
        if severity == "note":
            assert "no line names the target's class" in found["evidence"]
            assert "DeepSeek" in found["expected"]


def test_start_up_lines_of_another_rank_leave_layers_checked(answer):
    """Two ranks load, one prints: its prints say who they are, so nothing can be mixed up."""
    for shift, codes in ((0, set()), (1, {"H103"})):
        marked = []
        for line in served("DeepseekV3ForCausalLM", shift):
            own = re.sub(r"^(\[[\d: -]+)\] (?=Load weight|KV Cache|Prefill|Decode)", r"\1 TP0] ", line)
            own = re.sub(r"^(?=EAGLE3_DEBUG)", "[2026-11-29 13:35:14 TP0] ", own).replace("tp_size=1,", "tp_size=2,")
            marked.append(own)
            if "Load weight" in line or "KV Cache" in line:
                marked.append(own.replace("TP0", "TP1"))
        report = answer("check", marked, "--contract", CONFIG, "--select", "H103")
        assert fired(report) == codes
        assert report["tables"]["checked"][0]["looked_at"] > 0


# ------------------------------------------------------------------------------------------------------------- release


def told(answer, lines):
    """Return the release and how it is known, as summarize says it of the only run."""
    (row,) = answer("summarize", lines)["tables"]["segments"]
    return row["version"], row["version_evidence"]


@pytest.mark.parametrize(
    ("run", "release"), [("healthy-topk1", "0.5.11"), ("0.5.15.post1-healthy-topk1", "0.5.15"), (None, "0.5.17")]
)
def test_a_whole_server_args_line_tells_the_release(answer, run, release):
    """Real logs, whose releases are known: told to the number, by what is there and what is not."""
    text = real_bytes(run).decode() if run else (DATA / "versions" / "0.5.17-start-up.log").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if "EAGLE3_DEBUG" not in line][:60]
    assert told(answer, lines)[0] == release


STAMP = "[2026-11-30 19:33:04 TP0] "
KV = "KV Cache is allocated. "
STATISTICS = "gen throughput (token/s): 236.00, #queue-req: 0"
DECODE = (
    f"Decode batch, #running-req: 2, #token: 500, token usage: 0.03, accept len: 2.95, accept rate: 0.65, {STATISTICS}"
)


@pytest.mark.parametrize(
    ("line", "release"),
    [
        ("server_args=ServerArgs(model_path='m', stream_output=False)", "0.5.9 or older"),
        ("server_args=ServerArgs(model_path='m', nsa_decode_backend=None)", "0.5.12 or older"),
        ("server_args=ServerArgs(model_path='m', nsa_decode_backend=None, speculative_adaptive=False)", "0.5.11 to 0.5.12"),
        ("server_args=ServerArgs(model_path='m', dsa_decode_backend=None)", "0.5.13 or newer"),
        ("server_args=ServerArgs(model_path='m', cuda_graph_config=None, torchao_config='')", "0.5.14 to 0.5.17"),
        ("server_args=ServerArgs(model_path='m', spec_trace_dir=None, enable_deepep_waterfill=False)", "0.5.15"),
        ("server_args=ServerArgs(model_path='m', return_hidden_states_mode=None)", "0.5.17 or newer"),
        ("server_args={'model_path': 'm', 'speculative_draft_kv_cache_dtype': None}", "0.5.18 or newer"),
        ("server_args={'model_path': 'm', 'prefill_decode_interval': 1, 'prefill_cp_mode': None}", "0.5.19"),
        ("server_args={'model_path': 'm', 'uno_lora_path': None, 'elastic_ep_rejoin': False}", "0.5.20"),
        ("server_args={'model_path': 'm', 'speculative_boundary_reduction': None}", "0.5.21 or newer"),
        ("server_args={'model_path': 'm', 'speculative_use_block_verification': False}", "0.5.22 or newer"),
        ("server_args={'model_path': 'm', 'aux_hidden_state_capture': None}", "0.5.23 or newer"),
        (KV + "#tokens: 16384, K size: 0.03 GB, V size: 0.03 GB", "0.5.12 or older"),
        (KV + "dtype: torch.bfloat16, #tokens: 16384, K size: 0.03 GB, V size: 0.03 GB", "0.5.13 or newer"),
        ("Full " + KV + "dtype: torch.bfloat16, #tokens: 16384, K size: 0.03 GB, V size: 0.03 GB", "0.5.17 or newer"),
        ("KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 131072, KV size: 8.60 GB", "0.5.16 or newer"),
        ("Capture target verify CUDA graph begin. backend=full, num_tokens_per_bs=4, bs=[1], avail mem=1.00 GB", "0.5.14 to 0.5.15"),
        ("Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=4, bs=[1], avail mem=1.00 GB", "0.5.16 to 0.5.21"),
        ("Capture target verify CUDA graph end. bs=[1], elapsed=2.40 s, mem usage=0.19 GB, avail mem=1.00 GB.", "0.5.22 or newer"),
        ("Capture UNO tree draft CUDA graph begin. num_tokens_per_req=4, avail mem=1.00 GB", "0.5.20 or newer"),
        ("Decode graph replay: worker=target key_size=2 (bs) mode=TARGET_VERIFY raw_bs=2", "0.5.16 or newer"),
        (
            "Load weight end. Committed real weights after CUDA graph capture in 3.41 s (capture overlap window 12.07 s,"
            " startup overlap total 21.50 s)",
            "0.5.18 or newer",
        ),
        (DECODE.replace("gen through", "cap len: 4.10, gen through"), "0.5.16 or newer"),
        (DECODE + ", fwd occupancy: 91.20%, fwd+idle occupancy: 93.40%", "0.5.21 or newer"),
    ],
)  # fmt: skip
def test_one_sign_gives_a_range(answer, line, release):
    """Each sign of the table alone: what it says and no more; what is newer than 0.5.23 is not told from it."""
    assert told(answer, [STAMP + "Load weight begin. avail mem=139.13 GB", STAMP + line])[0] == release


def test_signs_that_contradict_each_other_tell_nothing(answer):
    """Names of 0.5.12 and of 0.5.13 in one line: no release, and both are named."""
    line = "server_args=ServerArgs(model_path='m', nsa_decode_backend=None, dsa_decode_backend=None)"
    release, how = told(answer, [STAMP + line])
    assert release is None
    assert "nsa_decode_backend" in how
    assert "dsa_decode_backend" in how
    assert told(answer, [STAMP + "Load weight begin. avail mem=139.13 GB"])[0] is None, "no sign"


# --------------------------------------------------------------------------------------------------------------- lines


@pytest.mark.parametrize(
    ("line", "event", "fields"),
    [
        (
            DECODE.replace("gen through", "est uncap acc len: 4.22 [4.05, 4.39], gen through"),
            "decode_stats",
            {"accept_len": 2.95, "accept_rate": 0.65, "est uncap acc len": 4.22, "queue_req": 0},
        ),
        (
            "Full KV Cache is allocated. dtype: torch.bfloat16, #tokens: 16384, K size: 0.30 GB, V size: 0.31 GB",
            "kv_cache",
            {"label": "Full", "tokens": 16384, "v_size": 0.31},
        ),
        (
            "SWA KV Cache is allocated. dtype: torch.bfloat16, #tokens: 4096, KV size: 0.30 GB",
            "kv_cache",
            {"label": "SWA", "tokens": 4096, "kv_size": 0.3},
        ),
        ("Some new pool KV Cache is allocated. dtype: torch.bfloat16, #tokens: 4096", "kv_cache", {"tokens": 4096}),
        (
            "KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 513,"
            " #new_token_ratio: 0.4182 -> 0.7350",
            "retract",
            {"retracted": 2, "new_tokens_gained": 513, "new_token_ratio_from": 0.4182, "new_token_ratio_to": 0.735},
        ),
        (
            "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
            "watchdog_timeout",
            {"name": "Scheduler", "seconds": 300, "soft": False},
        ),
        (
            "Subprocess scheduler_0 (pid=77) crashed with exit code -9. Triggering SIGQUIT for cleanup...",
            "child_crashed",
            {"name": "scheduler_0", "child_pid": 77, "exit_code": -9},
        ),
        (
            "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. tic start time:"
            " 19:33:05. last_heartbeat time: 19:32:44",
            "health_check_failed",
            {"seconds": 20},
        ),
        (
            "NaN detected in sampler: next_token_logits; values were sanitized before sampling. This usually indicates",
            "nan_logits_warning",
            {"where": "sampler: next_token_logits"},
        ),
        (
            "ReqTimeStats(rid=a1, input_len=8, cached_input_len=0, output_len=5, type=unified): queue_duration=0.31ms,"
            " forward_duration=12.04ms, entry_time=1796067201.123",
            "request_times",
            {"rid": "a1", "output_len": 5, "type": "unified", "queue_duration": 0.31, "forward_duration": 12.04},
        ),
        (
            "Decode graph replay: worker=target key_size=2 (bs) mode=TARGET_VERIFY raw_bs=2",
            "graph_replay",
            {"worker": "target", "mode": "TARGET_VERIFY", "raw_bs": 2},
        ),
        ("Capture Frozen-KV MTP draft cuda graph begin.", "graph_capture_begin", {"what": "Frozen-KV MTP draft"}),
        ("Capture target decode XPU graph begin. backend=full", "graph_capture_begin", {"what": "target decode"}),
        (
            "Finish: obj=GenerateReqInput(rid='n1'), out={'text': 'a', 'meta_info': {'spec_verify_ct': 80,"
            " 'spec_num_correct_drafts': 130, 'spec_num_proposed_drafts': 240, 'spec_correct_drafts_histogram': [9, 40]}}",
            "request_finish",
            {
                "out": {
                    "text": "a",
                    "meta_info": {
                        "spec_verify_ct": 80,
                        "spec_num_correct_drafts": 130,
                        "spec_num_proposed_drafts": 240,
                        "spec_correct_drafts_histogram": [9, 40],
                    },
                }
            },
        ),
    ],
)
def test_a_line_is_read_with_its_values_and_its_rank(events, line, event, fields):
    """Every row of the table that was not read: the event, its values, and the rank in front of it."""
    (found,) = events(["[2026-11-30 19:33:04 DP1 TP3] " + line])
    assert found["event"] == event
    assert found["intact"] == "whole"
    assert (found["dp_rank"], found["tp_rank"], found["time"]) == (1, 3, "2026-11-30T19:33:04")
    assert {key: found["fields"].get(key) for key in fields} == fields


def test_bounds_that_break_off_are_cut(events):
    """A record that ends inside the bounds of an estimate keeps what stands before it, and no half of a number."""
    whole = DECODE.replace("gen through", "est uncap acc len: 4.22 [4.05, 4.39], gen through")
    (found,) = events([STAMP + whole[: whole.index("4.39") + 3]])
    assert found["intact"] == "cut"
    assert found["fields"]["accept_len"] == 2.95
    assert found["fields"]["est uncap acc len"] is None


def decodes(*pairs):
    """Return decode lines of these lengths and rates, a second apart."""
    line = DECODE.replace("2.95", "{:.2f}").replace("0.65", "{:.2f}")
    return [f"[2026-11-30 19:33:{at:02d}] " + line.format(*pair) for at, pair in enumerate(pairs)]


def arguments(**more):
    """Return a short server_args line."""
    args = {"model_path": "m", "speculative_algorithm": "EAGLE3", "speculative_num_steps": 3}
    args |= {"speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4, **more}
    return f"[2026-11-30 19:32:41] server_args={args}"


def test_drafting_switched_off_is_not_nothing_accepted(answer):
    """Adaptive drafting goes to 0 steps for 12 lines and back: 1.00 is all there can be, and no decline."""
    switch = "[2026-11-30 19:33:{:02d}] Switch adaptive runtime state: steps {} -> {}, draft_tokens {} -> {}"
    on, off = (2.9, 0.63), (1.0, 0.0)
    lines = [arguments(speculative_adaptive=True), *decodes(*[on] * 5), switch.format(5, 3, 0, 4, 1)]
    lines += decodes(*[off] * 12)
    assert fired(answer("check", lines), least="note") & {"A101", "A102", "A103"} == set()
    assert any("drafting switched off" in note for note in answer("accept", lines)["facts"]["notes"])
    lines += [switch.format(20, 0, 3, 1, 4), *decodes(*[off] * 12)]
    assert "A101" in fired(answer("check", lines)), "it is on again"
    static = [arguments(speculative_num_steps=0, speculative_num_draft_tokens=1), *decodes(*[off] * 12)]
    assert "A101" not in fired(answer("check", static), least="note")
    assert "A101" in fired(answer("check", [arguments(), *decodes(*[off] * 12)]))


def test_unos_rounds_give_two_tokens_for_nothing(answer):
    """Accept len is (accepted + 2n) / n, accept rate accepted / (n (N - 1)): the rate is (len - 2) / (N - 1)."""
    rates = (0.1, 0.35, 0.5, 0.42, 0.27)
    lines = [arguments(speculative_algorithm="UNO"), *decodes(*((2 + 3 * rate, rate) for rate in rates))]
    (row,) = answer("accept", lines)["tables"]["rates"]
    assert (row["definition"], row["rule"], row["draft_tokens"]) == ("D", "(len-2)/3", 4)
    (row,) = answer("summarize", lines)["tables"]["accept"]
    assert row["rate_definition"] == "D"
    nothing = [arguments(speculative_algorithm="UNO"), *decodes(*[(2.0, 0.0)] * 6)]
    (found,) = [one for one in answer("check", nothing)["findings"] if one["rule"] == "A101"]
    assert found["actual"] == "2.00"
    everything = [arguments(speculative_algorithm="UNO"), *decodes(*[(5.0, 1.0)] * 6)]
    assert "A102" in fired(answer("check", everything))
    full = [arguments(speculative_algorithm="UNO"), *decodes(*[(4.0, 0.67)] * 6)]
    assert "A102" not in fired(answer("check", full), least="note"), "one of three is not accepted"


# -------------------------------------------------------------------------------------------------------------- errors


def failing(exception):
    """Return a server that dies of an exception."""
    return [
        STAMP + "Load weight end. elapsed=2.14 s, type=DeepseekV3ForCausalLM, avail mem=106.08 GB, mem usage=21.84 GB.",
        STAMP + "Scheduler hit an exception: Traceback (most recent call last):",
        '  File "/sgl/python/sglang/srt/managers/scheduler.py", line 3222, in run_scheduler_process',
        "    scheduler.event_loop_overlap()",
        exception,
        "",
        "[2026-11-30 19:33:06] Subprocess scheduler_0 (pid=77) crashed with exit code 1. Triggering SIGQUIT for cleanup...",
    ]


@pytest.mark.parametrize("kind", ["AssertionError", "RuntimeError"])
def test_too_few_captures_are_explained_with_both_numbers(answer, kind):
    """The target itself fails where an id is never reached: E102 names both numbers, E101 what to compare."""
    report = answer("check", failing(f"{kind}: captured 2 of 3 aux hidden states"))
    found = {one["rule"]: one for one in report["findings"]}
    assert (found["E102"]["actual"], found["E102"]["expected"]) == ("2 states", "3 states")
    assert "1 missing" in found["E102"]["message"]
    assert "eagle_aux_hidden_state_layer_ids" in found["E101"]["help"]
    assert "1 relayed error" in found["E101"]["evidence"], "the crash of the child only follows"


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("ValueError: Model FooForCausalLM does not implement set_eagle3_layers_to_capture, which EAGLE3 aux", "class"),
        (
            "ValueError: The model captured 2 aux hidden states, but --return-aux-hidden-state-layer-ids names 3 layers.",
            "last",
        ),
        (
            "ValueError: aux hidden output buffer is (8, 14336) torch.bfloat16, captures need (8, 21504) torch.bfloat16",
            "shape",
        ),
        (
            "RuntimeError: The runtime hidden-state mode exceeds the fixed CUDA graph capture mode (LAST).",
            "--return-hidden-states-mode",
        ),
        ("RuntimeError: Missing DP spec/prefill coordination metadata", "PREFILL_COORDINATION"),
    ],
)
def test_new_errors_say_what_to_do(answer, message, hint):
    """Each new message of SGLang's own has a hint that names what to look at."""
    found = {one["rule"]: one for one in answer("check", failing(message))["findings"]}
    assert hint in found["E101"]["help"]
    assert ("E102" in found) == ("captured 2" in message)


def test_a_child_that_is_killed_is_the_first_error(answer):
    """No exception stands before it: the crash is named, and what follows from it is not counted as another."""
    lines = [
        "[2026-11-30 19:33:06] Subprocess detokenizer (pid=77) crashed with exit code -9. Triggering SIGQUIT for cleanup...",
        "[2026-11-30 19:33:06] SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
        "[2026-11-30 19:33:26] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.",
    ]
    report = answer("errors", lines)
    (error,) = report["facts"]["errors"]
    assert error["line"] == 1
    assert "exit code -9" in report["headline"]
    assert error["relayed_count"] == 2
    (watchdog,) = answer("errors", [STAMP + "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)"])[
        "facts"
    ]["errors"]
    assert "300" in watchdog["message"]


# ---------------------------------------------------------------------------------------------------- the next release


def wheel(path, *, accept):
    """Write a wheel with one model, one statistics line and one argument."""
    files = {
        "models/foo.py": "class Foo:\n    def set_eagle3_layers_to_capture(self, layer_ids=None):\n"
        "        self.model.layers_to_capture = [val + 1 for val in layer_ids]\n"
        "class Bar(Foo):\n    pass\nEntryClass = [Foo, Bar]\n",
        "managers/metrics.py": "def report(self):\n"
        f'    msg = f"Decode batch, #running-req: {{n}}, "\n    msg += f"{accept}: {{x:.2f}}, "\n    log(msg)\n',
        "server_args.py": "class ServerArgs:\n    model_path: str\n",
        "runner.py": "class ModelRunner:\n    def load_model(self): pass\n",
    }
    with zipfile.ZipFile(path, "w") as out:
        for name, text in files.items():
            out.writestr(f"sglang/srt/{name}", text)
    return path


def test_a_maintainer_sees_what_a_release_changed(tmp_path, capsys):
    """benchmarks/sglang_versions.py reads wheels without running them, and prints what differs."""
    path = DATA.parents[1] / "benchmarks" / "sglang_versions.py"
    spec = importlib.util.spec_from_file_location("sglang_versions", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    old, new = (
        wheel(tmp_path / "sglang-1-any.whl", accept="accept len"),
        wheel(tmp_path / "sglang-2-any.whl", accept="accepted length"),
    )
    state = module.read_wheel(old)
    assert state["layer ids"] == {"Bar": "id + 1", "Foo": "id + 1"}
    assert state["arguments"].keys() == {"model_path"}
    assert state["signatures"] == {"ModelRunner.load_model": "self"}
    module.main([str(old), str(new)])
    printed = capsys.readouterr().out.split("2 against 1: ")[1]
    assert "2 differences" in printed
    assert "  - accept len: {:.2f}, \n" in printed
    assert "  + accepted length: {:.2f},  (metrics.py)\n" in printed
