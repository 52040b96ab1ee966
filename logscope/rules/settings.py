"""The rule about settings: what the contract says against what the server was told, and what it printed of itself.

This module is responsible for C101. Which layers were captured is captures.py's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logscope.model import Place
from logscope.rules.registry import Checked, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logscope.model import Finding
    from logscope.rules.evidence import Life, View

_DTYPES = {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "float": "float32", "fp32": "float32"}
_SETTINGS = (
    ("num_steps", "speculative_num_steps"),
    ("topk", "speculative_eagle_topk"),
    ("num_draft_tokens", "speculative_num_draft_tokens"),
)


@rule(
    "C101",
    "contract",
    "warning",
    group="captures",
    needs="a contract, and server_args or hidden states to compare it with",
)
def contract_agrees(_view: View) -> None:
    """The contract and the server's own lines disagree."""


def _compared(life: Life) -> Iterator[tuple[str, Any, Any, Place | None]]:
    """Yield (what, contract's value, server's value, where) for everything that both sides name."""
    contract, segment = life.contract, life.segment
    if contract is None:
        return
    args = segment.server_args
    place = Place(segment.file, segment.server_args_line) if segment.server_args_line else None
    algorithm = args.get("speculative_algorithm")
    if algorithm and (contract.names_layers or contract.states):
        yield "speculative_algorithm", "EAGLE3", str(algorithm).upper(), place
    if algorithm:
        for name, key in _SETTINGS:
            mine, theirs = getattr(contract, name), args.get(key)
            if mine is not None and isinstance(theirs, int):
                yield key, mine, theirs, place
        dtype = _dtype(args.get("dtype"))
        if contract.dtype is not None and dtype not in (None, "auto"):
            yield "dtype", _dtype(contract.dtype), dtype, place
    draft = life.fact("draft_hidden")
    if contract.state_width is not None and life.hidden is not None:
        yield "the width of one state", contract.state_width, life.hidden, life.fact("first_hidden")
    if contract.hidden_size is not None and draft is not None:
        yield "the draft's width", contract.hidden_size, draft, life.fact("first_draft_hidden")
    plan = life.fact("plan")
    if plan is not None:
        fields, place = plan[0].fields, plan[1]
        requested, depth = fields.get("requested"), fields.get("num_hidden_layers")
        if contract.aux_layer_ids is not None and isinstance(requested, list):
            yield "the requested layer ids", list(contract.aux_layer_ids), requested, place
        if contract.target_num_hidden_layers is not None and isinstance(depth, int):
            yield "the target's number of layers", contract.target_num_hidden_layers, depth, place


@contract_agrees.answer
def _(_part: None, life: Life) -> Iterator[Finding]:
    for what, mine, theirs, place in _compared(life):
        if mine != theirs and life.contract is not None:
            yield contract_agrees.finding(
                f"The contract and the server disagree on {what}: {mine} against {theirs}.",
                place,
                expected=str(mine),
                actual=str(theirs),
                evidence=f"contract: {life.contract.source}",
                help="is this the contract of the draft that was served?",
            )


@contract_agrees.checked
def _(_part: None, life: Life) -> Checked:
    return Checked(len(list(_compared(life))), "value")


@contract_agrees.why_not
def _(_part: None, life: Life) -> str:
    if life.contract is None:
        return "no contract was given (--contract)"
    return "neither server_args nor hidden states name what the contract does (0 values compared)"


def _dtype(name: Any) -> str | None:
    """Return a dtype under its torch name."""
    if not isinstance(name, str):
        return None
    short = name.lower().removeprefix("torch.")
    return _DTYPES.get(short, short)
