"""The rule about settings: what the contract says against what the server was told, and what it printed of itself.

This module is responsible for C101. Which layers were captured is captures.py's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logscope.model import Place
from logscope.queries.words import count
from logscope.rules.base import Checked, Rule, register

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logscope.contract import Contract
    from logscope.model import Finding, Payload, ServerEvent
    from logscope.rules.base import Scene, View

_DTYPES = {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "float": "float32", "fp32": "float32"}
_SETTINGS = (
    ("num_steps", "speculative_num_steps"),
    ("topk", "speculative_eagle_topk"),
    ("num_draft_tokens", "speculative_num_draft_tokens"),
)


@register(
    "C101",
    "contract",
    "warning",
    group="captures",
    needs="a contract, and server_args or hidden states to compare it with",
)
class ContractAgrees(Rule):
    """The contract and the server's own lines disagree."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._plan: tuple[Payload, Place] | None = None
        self._first_target: Place | None = None
        self._first_draft: Place | None = None

    def see(self, view: View) -> None:
        """Remember where the widths are first printed, and the plan."""
        item = view.item
        plan = view.first.get("capture_plan")
        if plan is not None:
            self._plan = self._plan or (plan.payload, Place(item.file, plan.line))
        if view.hidden is not None:
            self._first_target = self._first_target or item.place
        if view.draft_hidden is not None:
            self._first_draft = self._first_draft or item.place

    def server(self, event: ServerEvent) -> None:
        """Take a plan that stands between passes."""
        if event.payload.event == "capture_plan":
            self._plan = self._plan or (event.payload, event.place)

    def _compared(self) -> Iterator[tuple[str, Any, Any, Place | None]]:
        """Yield (what, contract's value, server's value, where) for everything that both sides name."""
        contract, segment = self.scene.contract, self.scene.segment
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
        if contract.state_width is not None and self.scene.hidden is not None:
            yield "the width of one state", contract.state_width, self.scene.hidden, self._first_target
        if contract.hidden_size is not None and self.scene.draft_hidden is not None:
            yield "the draft's width", contract.hidden_size, self.scene.draft_hidden, self._first_draft
        yield from self._planned(contract)

    def _planned(self, contract: Contract) -> Iterator[tuple[str, Any, Any, Place | None]]:
        if self._plan is None:
            return
        payload, place = self._plan
        requested, depth = payload.fields.get("requested"), payload.fields.get("num_hidden_layers")
        if contract.aux_layer_ids is not None and isinstance(requested, list):
            yield "the requested layer ids", list(contract.aux_layer_ids), requested, place
        if contract.target_num_hidden_layers is not None and isinstance(depth, int):
            yield "the target's number of layers", contract.target_num_hidden_layers, depth, place

    def findings(self) -> Iterator[Finding]:
        """Answer once for each thing the two sides say differently."""
        contract = self.scene.contract
        for what, mine, theirs, place in self._compared():
            if mine == theirs:
                continue
            yield self.finding(
                f"The contract and the server disagree on {what}: {mine} against {theirs}.",
                place,
                expected=str(mine),
                actual=str(theirs),
                evidence=f"contract: {contract.source}" if contract is not None else None,
                help="is this the contract of the draft that was served?",
            )

    def checked(self) -> Checked:
        """Values compared."""
        return Checked(len(list(self._compared())), "value")

    def why_not(self) -> str:
        """Say which side is missing."""
        if self.scene.contract is None:
            return "no contract was given (--contract)"
        return f"neither server_args nor hidden states name what the contract does ({count(0, 'value')} compared)"


def _dtype(name: Any) -> str | None:
    """Return a dtype under its torch name."""
    if not isinstance(name, str):
        return None
    short = name.lower().removeprefix("torch.")
    return _DTYPES.get(short, short)
