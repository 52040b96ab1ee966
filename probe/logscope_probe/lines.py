"""The text of a record: the form of EAGLE-3 debug prints that logscope reads best.

This module is responsible for how things are written. It must not know where the values come from, nor files.
"""

from __future__ import annotations

import time
from typing import NamedTuple

# The version of the header's form: docs/reference/schemas/probe-header.schema.json.
SCHEMA = 1
# The header's keys, in order: the type of each and what it says. What this SGLang does not tell is None.
HEADER = {
    "schema": ("integer", "version of this form"),
    "probe": ("text", "version of the probe"),
    "sglang": ("text or null", "version of SGLang"),
    "torch": ("text", "version of torch"),
    "pid": ("integer", "number of the process"),
    "tp_size": ("integer or null", "tensor-parallel ranks"),
    "tp_rank": ("integer or null", "this one"),
    "dp_size": ("integer or null", "data-parallel ranks"),
    "dp_rank": ("integer or null", "this one"),
    "pp_size": ("integer or null", "pipeline stages"),
    "pp_rank": ("integer or null", "this one"),
    "ep_size": ("integer or null", "expert-parallel ranks"),
    "ep_rank": ("integer or null", "this one"),
    "dp_attention": ("boolean or null", "data-parallel attention: ranks hold different requests and run idle passes"),
    "target": ("text or null", "class of the target"),
    "target_layers": ("integer or null", "its decoder layers"),
    "target_width": ("integer or null", "its hidden size"),
    "layers_to_capture": ("list or null", "layers before which the target captures, sorted; 0 is the embedding"),
    "draft": ("text or null", "class of the draft"),
    "draft_layers": ("integer or null", "its decoder layers"),
    "draft_width": ("integer or null", "its hidden size"),
    "layer_ids": ("list or null", "layer ids that the draft's config asks for, as written there"),
    "fc_in": ("integer or null", "width that the draft's fc takes"),
    "speculative_algorithm": ("text or null", "as in server_args"),
    "speculative_num_steps": ("integer or null", "as in server_args"),
    "speculative_eagle_topk": ("integer or null", "as in server_args"),
    "speculative_num_draft_tokens": ("integer or null", "as in server_args"),
    "cuda_graph": ("boolean or null", "CUDA graphs are not switched off"),
    "states": ("list", "states that are recorded"),
    "every": ("integer", "one target pass in so many is recorded, with its draft passes"),
    "from_pass": ("integer", "none before this pass is"),
    "until_finding": ("integer", "passes recorded after the first finding; -1: no end"),
    "not_wrapped": ("list", "functions of SGLang that could not be wrapped; what they show is missing"),
}


class State(NamedTuple):
    """What is known of a recorded state when its kernels are queued; in a graph: when the graph is captured.

    Attributes:
        at: its line of the buffers.
        step: which forward of the graph it belongs to, from 0.
        tag: the word in the record's brackets.
        label: the record's label.
        key: the key its shape is printed under.
        rows: its rows when queued.
        width: its columns.
        extra: more of the record's text.

    """

    at: int
    step: int
    tag: str
    label: str
    key: str
    rows: int
    width: int
    extra: str


class Pass(NamedTuple):
    """One forward pass, or all the passes that one replayed graph makes, as the batch said it when it began.

    Attributes:
        number: the pass, counted from 1 in each process; the first one of a graph that makes several.
        time: when it began, seconds since the epoch.
        mode: the forward mode's name.
        batch_size: requests.
        tokens: rows of the batch's input, padding not counted.
        graph: a CUDA graph was replayed.
        rids: the request ids, or none.

    """

    number: int
    time: float
    mode: str
    batch_size: int
    tokens: int
    graph: bool
    rids: tuple[str, ...] = ()


def stamp(when: float, rank: str) -> str:
    """Return what stands in front of every record: ``[2026-11-30 19:33:33 DP0 TP1] ``."""
    return f"[{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(when))}{rank}] "


def state_text(state: State, one: Pass, rows: int, norm: float, first: list[float], row_norms: list[float]) -> str:
    """Return the record of one state, without what stands in front."""
    text = f"EAGLE3_DEBUG[{state.tag}] {state.label}: {state.key}=torch.Size([{rows}, {state.width}]){state.extra}"
    text += f", pass={one.number + state.step}, forward_mode={one.mode}, batch_size={one.batch_size}, graph={one.graph}"
    if one.rids:
        text += f", rids={list(one.rids)}"
    if row_norms:
        text += f", row_norms={[float(f'{value:.6g}') for value in row_norms]}"
    # Four decimals as debug prints have them, more where they would say nothing.
    return f"{text}, norm={norm:.{4 if not norm < 1 else 8}f}, first5={first if rows else []}"


def note_text(label: str, **values: object) -> str:
    """Return a record of the probe about itself; ``header`` is the first of every file."""
    return f"EAGLE3_DEBUG[probe] {label}: " + ", ".join(f"{name}={value!r}" for name, value in values.items())
