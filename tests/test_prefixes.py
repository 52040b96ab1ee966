"""What stands before a record: every form of a collector, in layers, in colours, and wrappers taught in a grammar file."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from doors import Parser

from logscope import grammar as grammars
from logscope.cli.explain import explain_line
from logscope.errors import GrammarError
from logscope.grammar import load_file, peel
from logscope.model import NO_PREFIX, Prefix
from logscope.sources.blocks import Block

INNER = "[2026-02-10 12:00:00 TP3] "
RECORD = "Decode batch, #running-req: 1, #token: 9, token usage: 0.00, accept len: 2.50, gen throughput (token/s): 9.00, #queue-req: 0"
# Each form with the parts its author would say it has: time, origin, pid, ranks; what is not named is None.
FORMS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "syslog, RFC 3164": [
        ("<134>Feb 10 12:00:00 gpu-01 sglang[4211]: ", {"time": "02-10T12:00:00", "origin": "gpu-01/sglang", "pid": 4211}),
        ("<13>Oct  3 01:02:03 10.0.0.5 sglang-b: ", {"time": "10-03T01:02:03", "origin": "10.0.0.5/sglang-b"}),
        ("Dec 31 23:59:59 node.example.org python3[7]: ", {"time": "12-31T23:59:59", "origin": "node.example.org/python3", "pid": 7}),
        ("May  1 00:00:00 sglang[88]: ", {"time": "05-01T00:00:00", "origin": "sglang", "pid": 88}),
        ("<165>Aug 24 05:34:00.123 h200-3 docker/llm0[1]: ", {"time": "08-24T05:34:00.123", "origin": "h200-3/docker/llm0", "pid": 1}),
    ],
    "syslog, RFC 5424": [
        ("<165>1 2026-02-10T12:00:00.003Z gpu-01 sglang 4211 ID47 - ", {"time": "2026-02-10T12:00:00.003Z", "origin": "gpu-01/sglang", "pid": 4211}),
        ("<14>1 2026-02-10T12:00:00+01:00 gpu-01 sglang - - - ", {"time": "2026-02-10T12:00:00+01:00", "origin": "gpu-01/sglang"}),
        ('<34>1 2026-02-10T12:00:00Z h app 8710 - [meta@32473 sequenceId="29"] ', {"time": "2026-02-10T12:00:00Z", "origin": "h/app", "pid": 8710}),
        (r'<34>1 2026-02-10T12:00:00Z h app x1 M [a@1 b="c\"]d"][e@2] ', {"time": "2026-02-10T12:00:00Z", "origin": "h/app"}),
        ("<0>1 - - sglang 5 - - ", {"origin": "sglang", "pid": 5}),
    ],
    "journald": [
        ("Feb 10 12:00:00 gpu-01 sglang-a[4211]: ", {"time": "02-10T12:00:00", "origin": "gpu-01/sglang-a", "pid": 4211}),
        ("Feb 10 12:00:00.123456 gpu-01 sglang.sh[4211]: ", {"time": "02-10T12:00:00.123456", "origin": "gpu-01/sglang.sh", "pid": 4211}),
        ("2026-02-10T12:00:00+0000 gpu-01 sglang[9]: ", {"time": "2026-02-10T12:00:00+0000", "origin": "gpu-01/sglang", "pid": 9}),
        ("Tue 2026-02-10 12:00:00 UTC gpu-01 sglang@2.service[9]: ", {"time": "2026-02-10T12:00:00", "origin": "gpu-01/sglang@2.service", "pid": 9}),
        ("1770724800.123456 gpu-01 sglang[9]: ", {"origin": "gpu-01/sglang", "pid": 9}),
    ],
    "srun -l": [
        ("3: ", {"origin": "3"}),
        ("0: ", {"origin": "0"}),
        (" 3: ", {"origin": "3"}),
        ("127: ", {"origin": "127"}),
        ("07: ", {"origin": "07"}),
    ],
    "pdsh": [
        ("node1: ", {"origin": "node1"}),
        ("gpu-a-12: ", {"origin": "gpu-a-12"}),
        ("h200-0.cluster.local: ", {"origin": "h200-0.cluster.local"}),
        ("10.0.0.3: ", {"origin": "10.0.0.3"}),
        ("dgx02: ", {"origin": "dgx02"}),
    ],
    "torchrun": [
        ("[default0]:", {"origin": "default0"}),
        ("[default12]:", {"origin": "default12"}),
        ("[trainer3]: ", {"origin": "trainer3"}),
        ("[rank0]: ", {"origin": "rank0"}),
        ("[eagle3-worker_1]:", {"origin": "eagle3-worker_1"}),
    ],
    "stern": [
        ("sglang-decode-0 sglang ", {"origin": "sglang-decode-0/sglang"}),
        ("sglang-7d9f8b6c5d-x2k4q main ", {"origin": "sglang-7d9f8b6c5d-x2k4q/main"}),
        ("ml sglang-7d9f8b6c5d-x2k4q main ", {"origin": "ml/sglang-7d9f8b6c5d-x2k4q/main"}),
        ("kindnet-hqn2k kindnet-cni 03-12 09:29:53 ", {"time": "03-12T09:29:53", "origin": "kindnet-hqn2k/kindnet-cni"}),
        ("lws-0-1 worker 2026-02-10T12:00:00.000000000Z ", {"time": "2026-02-10T12:00:00.000000000Z", "origin": "lws-0-1/worker"}),
    ],
    "kubectl": [
        ("[pod/decode-0/sglang] ", {"origin": "pod/decode-0/sglang"}),
        ("[pod/decode-0/sglang] 2026-02-10T12:00:00.1Z ", {"time": "2026-02-10T12:00:00.1Z", "origin": "pod/decode-0/sglang"}),
        ("2026-02-10T12:00:00.1Z ", {"time": "2026-02-10T12:00:00.1Z"}),
        ("[pod/sglang-7d9f8b6c5d-x2k4q/main] 2026-02-10T12:00:00+08:00 ", {"time": "2026-02-10T12:00:00+08:00", "origin": "pod/sglang-7d9f8b6c5d-x2k4q/main"}),
        ("[pod/a/b] 2026-02-10T12:00:00Z (Worker_TP1 pid=4) ", {"time": "2026-02-10T12:00:00Z", "origin": "pod/a/b/Worker_TP1", "pid": 4, "tp_rank": 1}),
    ],
    "docker compose": [
        ("llm0-1  | ", {"origin": "llm0-1"}),
        ("llm_prefill_1 | ", {"origin": "llm_prefill_1"}),
        ("sglang      | ", {"origin": "sglang"}),
        ("my.server-12 | ", {"origin": "my.server-12"}),
        ("llm0-1  | 2026-02-10T12:00:00.5Z ", {"time": "2026-02-10T12:00:00.5Z", "origin": "llm0-1"}),
    ],
    "Ray": [
        ("(SGLangEngine pid=111711, ip=192.0.2.7) ", {"pid": 111711, "origin": "SGLangEngine/192.0.2.7"}),
        ("(RolloutManager.start pid=5) ", {"pid": 5, "origin": "RolloutManager.start"}),
        ("(pid=77) ", {"pid": 77}),
        ("(raylet, ip=192.0.2.9) ", {"origin": "raylet/192.0.2.9"}),
        ("(Worker_TP1_EP2 pid=412) ", {"pid": 412, "origin": "Worker_TP1_EP2", "tp_rank": 1, "ep_rank": 2}),
    ],
    "logcli": [
        ('2026-02-10T12:00:00Z {app="sglang", pod="decode-0"} ', {"time": "2026-02-10T12:00:00Z", "origin": "sglang/decode-0"}),
        ("2026-02-10T12:00:00+01:00 {} ", {"time": "2026-02-10T12:00:00+01:00"}),
        ('2026-02-10T12:00:00Z {pod="decode-0", stream="stderr"}   ', {"time": "2026-02-10T12:00:00Z", "origin": "decode-0"}),
        ('2026-02-10T12:00:00.5Z\t{detected_level="info", host="g1"} ', {"time": "2026-02-10T12:00:00.5Z", "origin": "g1"}),
        (r'2026-02-10T12:00:00Z {a="say \"x\", {y}"} ', {"time": "2026-02-10T12:00:00Z", "origin": r'say \"x\", {y}'}),
    ],
    "llama.cpp": [
        ("0.06.896.015 I ", {}),
        ("12.59.001.999 W ", {}),
        ("[39385] ", {"origin": "39385"}),
        ("Apr 27 08:12:09 host-a llama-server[888649]: [39385] ", {"time": "04-27T08:12:09", "origin": "host-a/llama-server/39385", "pid": 888649}),
        ("[8081] 0.06.896.057 E ", {"origin": "8081"}),
    ],
}  # fmt: skip
CASES = [(name, text, said) for name, rows in FORMS.items() for text, said in rows]


def parts(prefix: Prefix) -> dict[str, Any]:
    """Return what a prefix says."""
    names = ("time", "origin", "pid", "dp_rank", "pp_rank", "tp_rank", "ep_rank")
    return {name: getattr(prefix, name) for name in names if getattr(prefix, name) is not None}


@pytest.mark.parametrize(("name", "text", "said"), CASES, ids=[f"{name}-{text}" for name, text, _ in CASES])
def test_forms_are_peeled(name: str, text: str, said: dict[str, Any]) -> None:
    """Each form is peeled to its end and says its parts; behind it the process's own prefix goes on."""
    assert peel(text) == (len(text), peel(text)[1])
    assert parts(peel(text)[1]) == said
    end, prefix = peel(text + INNER)
    assert end == len(text + INNER)
    assert parts(prefix) == {**said, "time": "2026-02-10T12:00:00", "tp_rank": 3}
    found = Parser(grammars.load(), name).feed(Block(name, 0, 1, (text + INNER + RECORD).encode(), final=True))
    assert [(one[3].event, one[3].intact, one[2]) for one in found] == [("decode_stats", "whole", prefix)]


@pytest.mark.parametrize(("name", "text", "said"), CASES, ids=[f"{name}-{text}" for name, text, _ in CASES])
def test_colours_inside_prefixes_change_nothing(name: str, text: str, said: dict[str, Any]) -> None:
    """Codes around every word of a form, whole, without ESC or with U+FFFD in its place, are peeled with it."""
    del name
    for code in ("\x1b[0;36m", "[0;36m", "\xef\xbf\xbd[36m"):
        words = re.split(r"(?<=\S)(?=\s)", text)
        painted = code + "\x1b[0m".join(words) + code
        assert peel(painted + RECORD)[0] == len(painted)
        assert parts(peel(painted + RECORD)[1]) == said


@pytest.mark.parametrize("inner", [INNER, "INFO 07-20 18:11:49 [metrics.py:101] ", "[rank0]: "])
def test_layers_in_any_order(inner: str) -> None:
    """Two collectors, one inside the other, in either order: both origins are kept, the outermost first."""
    labels = [
        ("[pod/d-0/m] ", "pod/d-0/m"), ("node1: ", "node1"), ("(A pid=1) ", "A"), ("llm0-1  | ", "llm0-1"),
        ("Feb 10 12:00:00 h u[5]: ", "h/u"), ("[default0]:", "default0"), ("2: ", "2"),
    ]  # fmt: skip
    for (one, first), (two, second) in itertools.permutations(labels, 2):
        end, prefix = peel(one + two + inner)
        assert end == len(one + two + inner), one + two
        assert (prefix.origin or "").startswith(f"{first}/{second}")


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: mat1 and mat2", "error: no such file", "12:34 noon", "INFO: started", "{'a': 1}", "3 : x", "step 3: x",
        "Traceback (most recent call last):", "cuda-graph main loop", "a | b", "[main] x", "[12] x", "fp8_e4m3: no",
        '{"log": "x"}', "Febr 10 12:00:00 h u: x", "0.06 I x", "loss-scale x y", "(see pid) x",
    ],
)  # fmt: skip
def test_text_that_is_no_prefix(text: str) -> None:
    """What is no collector's form stays the line's own text."""
    assert peel(text) == (0, NO_PREFIX)


def test_bare_words_are_labels_only_outside_the_process() -> None:
    """Behind a process's own prefix `3: `, `node1: `, `a-0 b ` are its words."""
    for label in ("3: ", "node1: ", "a-0 b ", "llm0-1  | "):
        assert peel(INNER + label + "x")[0] == len(INNER)
        assert peel(label + INNER + "x")[0] == len(label + INNER)


OWN = r"""
schema = 1
name = "own"

[[prefix]]
name = "site collector"
pattern = '<(?P<origin>[\w-]+)\|(?P<level>[A-Z]+)\|(?P<time>[\d:]+)\|p(?P<pid>\d+)r(?P<tp_rank>\d+)> ?'

[[sample]]
text = "<node-g|WARN|12:00:01|p9r3> "
prefix = "site collector"
expect = { origin = "node-g", level = "WARN", time = "12:00:01", pid = 9, tp_rank = 3, ep_rank = "null" }
"""
WRAPPED = "<node-g|WARN|12:00:01|p9r3> "


def own(tmp_path: Path, text: str = OWN) -> Path:
    """Return a grammar file."""
    path = tmp_path / "own.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("before", ["", "node1: ", "2026-02-10T12:00:00Z ", "\x1b[36m", "[pod/a/b] "])
def test_taught_prefixes_are_layers_too(tmp_path: Path, before: str) -> None:
    """A wrapper taught in a grammar file is peeled wherever it stands in the chain, and names the writer."""
    known = grammars.load([own(tmp_path)])
    text = before + WRAPPED + "[DP" + "1] " + RECORD
    end, prefix = known.peel(before + WRAPPED)
    assert end == len(before + WRAPPED)
    assert (prefix.pid, prefix.tp_rank, prefix.extra) == (9, 3, (("level", "WARN"),))
    assert (prefix.origin or "").endswith("node-g")
    assert peel(before + WRAPPED)[0] < end
    begin, again = known.peel_back("10%|#   | 1/8" + WRAPPED)
    assert (begin, again.origin) == (13, "node-g")
    [(_, _, said, payload)] = Parser(known, "x").feed(Block("x", 0, 1, text.replace("[DP1] ", "").encode(), final=True))
    assert (payload.event, said) == ("decode_stats", prefix)


def test_explain_shows_a_taught_prefix(tmp_path: Path) -> None:
    """`grammar explain` names the wrapper and says what each of its parts is."""
    report = explain_line(WRAPPED + RECORD, [own(tmp_path)]).report
    assert "behind the prefix 'site collector'" in report.headline
    [table] = report.tables.values()
    said = {row["field"]: row["value"] for row in table.rows if row["from"] == "prefix"}
    assert said == {"time": "12:00:01", "origin": "node-g", "pid": 9, "tp_rank": 3, "level": "WARN"}


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (("pid = 9", "pid = 8"), 9, "pid is 9, not 8"),
        (('text = "<', 'text = "<<'), 10, "no prefix of this grammar stands there"),
        (('r3> "', 'r3> x"'), 10, "the prefix ends before 'x'"),
        (("(?P<origin>", "(?P<origin>("), 7, "not a valid pattern"),
        (('prefix = "site', 'prefix = "other'), 10, "it is read as 'site collector'"),
        (('\nprefix = "site collector"', ""), 9, "no event and no prefix"),
        (("pattern =", "pattren ="), 7, "did you mean 'pattern'?"),
    ],
)  # fmt: skip
def test_a_wrong_wrapper_says_where_and_why(tmp_path: Path, change: tuple[str, str], line: int, words: str) -> None:
    """A wrapper whose sample is not read as it says does not load; the message has the place."""
    assert change[0] in OWN
    with pytest.raises(GrammarError) as caught:
        load_file(own(tmp_path, OWN.replace(*change, 1)))
    assert caught.value.message.where is not None
    assert words in str(caught.value)
    assert caught.value.message.where.line in (line, line + 1)


def test_a_slow_wrapper_is_given_up(tmp_path: Path) -> None:
    """A taught pattern that takes too long is tried on four texts, and no text is lost."""
    slow = OWN.replace(r"<(?P<origin>[\w-]+)", r"(?:(?:a|b|ab)+)*<(?P<origin>[\w-]+)")
    known = grammars.join([load_file(own(tmp_path, slow)), *grammars.load().files])
    for number in range(8):
        assert known.peel("ab" * 400 + f"{number}<") == (0, NO_PREFIX)
    assert known.prefixes[0].overtimes == grammars.OVERTIMES
