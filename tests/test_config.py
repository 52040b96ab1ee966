"""``config``: what was configured, what start-up adds, what differs."""

from __future__ import annotations

import ast
import json
import re
from functools import cache

import pytest
from conftest import CASES, REAL_RUNS, real_bytes, real_log, sidecar
from from_items import from_items

from logscope.model import Payload, Prefix, Segment, ServerEvent
from logscope.queries.arguments import NOT_PRINTED, differences, group_of, order_of, shown
from logscope.queries.config import Config
from logscope.report import Context
from logscope.run import load


def case(number):
    """Return the log of a case by its number, as text."""
    (found,) = CASES.glob(f"{number}-*.log")
    return str(found)


@cache
def run_of(*logs):
    return load(*logs)


def config(*logs, **options):
    """Ask these logs."""
    return run_of(*logs).ask(Config(**options))


def ask(question, items):
    """Ask about these items."""
    return question.report(question.combine([question.partial(from_items(items))]), Context())


def rows(report, name):
    return report.tables[name].rows


def python_args(run):
    """Return the arguments of a real run, read by Python's own parser where it can."""
    (text,) = re.findall(rb"server_args=ServerArgs\((.*)\)\r?\n", real_bytes(run))
    call = ast.parse(f"f({text.decode()})", mode="eval").body
    assert isinstance(call, ast.Call)
    out = {}
    for keyword in call.keywords:
        try:
            out[keyword.arg] = ast.literal_eval(keyword.value)
        except ValueError:
            continue
    return out


@pytest.mark.parametrize("run", [REAL_RUNS[0], "healthy-topk1", "0.5.15.post1-healthy-topk4"])
def test_json_has_every_argument(run):
    """The whole argument dict stands in the facts, with the values Python itself reads."""
    (fact,) = config(str(real_log(run))).facts["runs"]
    want = python_args(run)
    assert len(want) > 300
    assert {key: fact["server_args"][key] for key in want} == want
    json.dumps(fact)


def test_the_speculative_group_comes_first_and_all_means_all():
    """Without --all the arguments that decide something, speculative ones first; with it every one."""
    log = str(real_log("healthy-topk1"))
    brief = rows(config(log), "arguments")
    assert [row["argument"] for row in brief[:4]] == [
        "speculative_algorithm",
        "speculative_num_steps",
        "speculative_eagle_topk",
        "speculative_num_draft_tokens",
    ]
    groups = [row["group"] for row in brief]
    assert groups == sorted(groups, key=lambda group: (group != "speculative", groups.index(group)))
    assert {"port", "log_level", "random_seed"}.isdisjoint(row["argument"] for row in brief)
    whole = rows(config(log, every=True), "arguments")
    assert {row["argument"] for row in whole} == set(config(log).facts["runs"][0]["server_args"])


def test_start_up_lines_of_a_real_server():
    """Two loads (the second is the draft), two caches, three graph captures, and the time to ready."""
    log = str(real_log("0.5.15.post1-cuda-graph"))
    found = {(row["what"], row["value"].split(",")[0]): row for row in rows(config(log), "startup")}
    assert found["target loaded", "DeepseekV3ForCausalLM"]["seconds"] == 1.11
    assert found["draft loaded", "LlamaForCausalLMEagle3"]["memory"] == 0.47
    assert ("KV cache of the target", "16") in found
    assert [value for what, value in found if what == "graph capture"] == [
        "target verify",
        "draft decode",
        "draft extend",
    ]
    # The server_args line is stamped 13:38:29.
    assert found["ready", "2026-11-29T13:38:54"]["seconds"] == 25.0
    derived = config(log).facts["runs"][0]["derived"]
    assert derived["draft_type"] == "LlamaForCausalLMEagle3"
    assert derived["kv_tokens"] == 16384
    assert derived["graphs_captured"] == ["draft decode", "draft extend", "target verify"]


def test_ranks_that_load_the_same_share_a_row():
    """Case 06: TP0 and TP1 load the target; that is no draft."""
    (row,) = rows(config(case("06")), "startup")
    assert (row["what"], row["processes"]) == ("target loaded", "TP0 and TP1")
    assert config(case("06")).facts["runs"][0]["derived"]["layers_to_capture"] == [25, 31, 37]


def test_the_difference_of_two_logs():
    """Cases 12a and 12b differ in exactly the options the sidecar names."""
    report = config(case("12a"), case("12b"))
    want = sidecar(CASES / "12b-data-parallel-drop.log")["compare_12a_12b"]["configuration_differences"]
    assert [row["argument"] for row in rows(report, "differences")] == want
    assert [(row["a"], row["b"]) for row in rows(report, "differences")] == [("1", "4"), ("False", "True")]
    assert all(row["matters"] for row in rows(report, "differences"))
    assert report.headline.startswith("2 differences that matter")


def test_lives_of_one_file_are_compared_in_order():
    """Case 08: the second restart changed steps and draft tokens, the first nothing."""
    report = config(case("08"))
    assert [row["argument"] for row in rows(report, "differences")] == [
        "speculative_num_steps",
        "speculative_num_draft_tokens",
    ]
    assert any("nothing that matters differs between run 1" in note for note in report.notes)


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        ("healthy-chunked", {"chunked_prefill_size"}),
        ("healthy-topk4", {"speculative_eagle_topk", "speculative_num_draft_tokens"}),
        ("cuda-graph", {"disable_cuda_graph"}),
        ("healthy-topk1-again", set()),
    ],
)
def test_real_servers_differ_in_what_their_command_lines_say(candidate, expected):
    """What the commands changed comes first among what matters; ports never matter."""
    report = config(str(real_log("healthy-topk1")), str(real_log(candidate)))
    found = rows(report, "differences") if "differences" in report.tables else []
    mattering = [row["argument"] for row in found if row["matters"]]
    assert expected <= set(mattering[: max(1, len(expected))])
    assert "port" not in mattering
    order = [row["matters"] for row in found]
    assert order == sorted(order, reverse=True)


def test_an_upgrade_is_not_a_hundred_differences():
    """Options that only one version prints are counted, not listed among what matters."""
    report = config(str(real_log("healthy-topk1")), str(real_log("0.5.15.post1-healthy-topk1")))
    listed = rows(report, "differences")
    assert len([row for row in listed if row["matters"]]) < 10
    assert any("printed on one side only" in note for note in report.notes)


def test_differences_are_a_pure_function():
    """Order, harmless settings, moved folders, types, and absent options."""
    a = {
        "port": 1,
        "speculative_num_steps": 3,
        "dtype": "bfloat16",
        "model_path": "/a/model",
        "enable_x": True,
        "tp_size": 8,
        "mem_fraction_static": 1,
        "log_level": "info",
    }
    b = {
        "port": 2,
        "speculative_num_steps": 5,
        "dtype": "float16",
        "model_path": "/b/model",
        "enable_x": 1,
        "tp_size": 8,
        "mem_fraction_static": 1.0,
        "pp_size": 1,
        "speculative_token_map": "/x/map.pt",
    }
    found = differences(a, b)
    assert [one.key for one in found if one.matters] == [
        "speculative_num_steps",
        "speculative_token_map",
        "dtype",
        "enable_x",
    ]
    assert {one.key for one in found if not one.matters} == {"port", "model_path", "log_level", "pp_size"}
    assert next(one for one in found if one.key == "log_level").b is NOT_PRINTED
    assert "another folder" in next(one for one in found if one.key == "model_path").reason
    assert differences(a, a) == []


@pytest.mark.parametrize(
    ("key", "group"),
    [
        ("speculative_num_steps", "speculative"),
        ("layers_to_capture", "layers"),
        ("chunked_prefill_size", "chunking"),
        ("enable_dp_attention", "parallel"),
        ("kv_cache_dtype", "precision"),
        ("cuda_graph_bs", "graphs"),
        ("attention_backend", "kernels"),
        ("random_seed", "harmless"),
        ("disaggregation_bootstrap_port", "harmless"),
        ("log_requests_level", "harmless"),
        ("download_dir", "harmless"),
        ("some_new_option", "other"),
    ],
)
def test_groups_go_by_name(key, group):
    """An option of tomorrow is placed by its name, an unknown one under other."""
    assert group_of(key) == group


def test_what_matters_most_is_first():
    """Layers, steps, topk, draft tokens, version, chunking, sizes, precision, graphs; harmless ones last."""
    keys = [
        "layers_to_capture",
        "speculative_num_steps",
        "speculative_eagle_topk",
        "speculative_num_draft_tokens",
        "spec_version",
        "chunked_prefill_size",
        "tp_size",
        "dtype",
        "disable_cuda_graph",
        "whatever",
        "port",
    ]
    turned = keys[::-1]
    assert sorted(turned, key=order_of) == keys


def test_secrets_are_not_printed():
    """A key given on the command line stands in no table and in no fact."""
    segment = Segment(1, "x.log", 1, server_args={"api_key": "sk-very-secret", "tp_size": 2}, server_args_line=1)
    report = ask(Config(every=True), [segment])
    assert "sk-very-secret" not in json.dumps(report.as_dict())
    assert shown("api_key", "sk-very-secret") == "set, not shown"
    assert shown("api_key", None) == "None"


def test_nodes_of_one_launch_are_compared():
    """Two server_args lines of one life: the second is said to be the same or not."""

    def line(number, **args):
        payload = Payload("event", "server_args", fields=args)
        prefix = Prefix(origin=f"node-{number}")
        return ServerEvent((number, number, prefix, payload), 1, "startup", "x.log")

    args = {"tp_size": 2, "speculative_num_steps": 3}
    segment = Segment(1, "x.log", 1, server_args=args, server_args_line=1)
    report = ask(Config(), [segment, line(1, **args), line(2, **(args | {"speculative_num_steps": 5}))])
    assert any("node-2 prints other arguments: speculative_num_steps" in note for note in report.notes)


def test_a_log_without_start_up_says_so():
    """Nothing is configured by silence: the verdict is unknown."""
    report = config(case("02"))
    assert report.verdict == "unknown"
    assert "no line of the log says" in report.headline
