"""What a server argument is about, which ones matter to speculative decoding, and what differs between two servers.

This module is responsible for ordering arguments by what they decide, and for comparing two sets of them. It must not
know where they were read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# "harmless" is asked before all others: addresses, folders, seeds and logging change nothing about what is accepted or
# captured.
_HARMLESS = re.compile(
    r"(?:.*_)?(?:host|ports?|addr|ip|endpoints?|dir|folder|seed|rid)"
    r"|(?:.*_)?(?:log|logs|logging|metrics|metric|trace|traces|otlp|ssl|tracing|buckets?)(?:_.*)?"
    r"|(?:admin_)?api_key|file_storage_path|served_model_name|weight_version|fastapi_root_path|(?:soft_)?watchdog_.*"
    r"|grpc_.*|show_time_cost|node_rank|base_gpu_id|gpu_id_step|(?:de)?tokenizer_worker_num|custom_sigquit_handler"
    r"|gc_warning_.*|kv_events_config|tokenizer_metrics_.*|uvicorn_.*|stat_loggers"
)
# What an argument is about, in the order in which a reader wants it, by the names it takes; the first that fits wins.
_GROUPS: Final = {
    "layers": r".*(?:layers_to_capture|requested_layers|num_hidden_layers|hidden_size|aux_layers)",
    "speculative": r"spec_.*|speculative_.*|decoupled_spec_.*|draft_(?:type|model)|enable_multi_layer_eagle"
    r"|enable_draft_.*|method|num_speculative_tokens",
    "chunking": r"chunked_prefill_size|enable_mixed_chunk|max_prefill_tokens|.*dynamic_chunking|prefill_.*",
    "parallel": r"(?:.*_)?(?:tp|dp|pp|ep|cp|dcp)_size|(?:tensor|pipeline|data)_parallel_size|nnodes|enable_dp_.*"
    r"|disable_attn_tp_gather|.*_context_parallel|cp_strategy|load_balance_method|disaggregation_mode",
    "precision": r"dtype|.*_dtype|quantization|.*_quantization|.*quant.*|torchao_config|.*fp32.*|.*tf32.*",
    "graphs": r".*cuda_?graph.*|graphs_captured|enable_torch_compile|torch_compile_.*|.*_graph",
    "model": r"model|version|model_.*|tokenizer_path|tokenizer_mode|revision|context_length|json_model_override_args"
    r"|load_format|trust_remote_code|target_type|.*_override_.*",
    "kernels": r".*_backend|.*_runner_.*|.*_fusion|disable_custom_all_reduce|.*deterministic.*",
    "memory": r"mem_fraction_static|max_.*|page_size|kv_tokens|.*radix.*|schedule_.*|.*overlap.*|swa_.*|.*hicache.*"
    r"|.*hierarchical_cache|cpu_offload_gb",
    "other": r".*",
    "harmless": r".*",
}
# Within a group, these first.
_FIRST = (
    "layers_to_capture", "requested_layers", "speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk",
    "speculative_num_draft_tokens", "method", "num_speculative_tokens", "spec_version", "draft_type",
    "speculative_draft_model_path", "chunked_prefill_size", "tp_size", "dp_size", "pp_size", "ep_size", "dtype",
    "quantization", "target_quant", "draft_quant", "disable_cuda_graph", "version", "target_type", "model_path",
)  # fmt: skip
# What start-up lines tell besides arguments: a log whose start is lost tells nothing of them.
DERIVED: Final = frozenset(
    {
        "requested_layers", "layers_to_capture", "num_hidden_layers", "hidden_size", "spec_version", "kv_tokens",
        "graphs_captured", *(f"{role}_{what}" for role in ("target", "draft") for what in ("type", "quant", "dtype")),
    }
)  # fmt: skip
# The groups whose arguments are shown without being asked for.
SHOWN: Final = frozenset({"layers", "speculative", "chunking", "parallel", "precision", "graphs", "model"})
_SECRET = re.compile(r".*(?:api_key|password|secret)")
_OFF: tuple[Any, ...] = (None, False, "", 0, "auto", "none", "null", "None", "default", "{}", [], {})


class _NotPrinted:
    """The value of an argument that one side does not print."""

    def __repr__(self) -> str:
        return "not printed"

    def __bool__(self) -> bool:
        return False


NOT_PRINTED: Final = _NotPrinted()


@dataclass(frozen=True, slots=True)
class Difference:
    """One argument that two servers do not share.

    a, b
        the values, :data:`NOT_PRINTED` where a side does not print the argument.
    matters
        False for addresses, folders, seeds and logging, for the same model in another folder, and for an argument that
        one side does not print and that is off on the other (versions print other sets).
    reason
        why it does not matter, None where it does.
    """

    key: str
    a: Any
    b: Any
    group: str
    matters: bool
    reason: str | None = None


def group_of(key: str) -> str:
    """Return what an argument is about, from its name."""
    if _HARMLESS.fullmatch(key):
        return "harmless"
    return next(group for group, pattern in _GROUPS.items() if re.fullmatch(pattern, key))


def order_of(key: str) -> tuple[int, int, str]:
    """Return where an argument stands among others: what matters most comes first."""
    return (list(_GROUPS).index(group_of(key)), _FIRST.index(key) if key in _FIRST else len(_FIRST), key)


def is_off(value: Any) -> bool:
    """Tell whether a value is what an argument has when nobody set it: None, False, 0, empty, auto, none."""
    return any(value is off or (type(value) is type(off) and value == off) for off in _OFF)


def shown(key: str, value: Any) -> str:
    """Return a value as text for a table: long lists by their ends, secrets not at all."""
    if _SECRET.fullmatch(key) and not is_off(value) and value is not NOT_PRINTED:
        return "set, not shown"
    if isinstance(value, list) and len(value) > 12:
        ends = ", ".join(map(str, value[:3]))
        return f"[{ends}, ..., {value[-1]}] ({len(value)} values)"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 200 else f"{text[:190]}... ({len(text)} characters)"


def without_secrets(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with the values of keys and passwords replaced."""
    return {
        key: shown(key, value) if _SECRET.fullmatch(key) and not is_off(value) else value for key, value in args.items()
    }


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Difference]:
    """Return what differs between two sets of settings, what matters first."""
    out = []
    for key in {*a, *b}:
        one, other = a.get(key, NOT_PRINTED), b.get(key, NOT_PRINTED)
        # 1 and 1.0 are one value, True and 1 are not.
        if one == other and isinstance(one, bool) is isinstance(other, bool):
            continue
        group = group_of(key)
        reason = _reason(key, group, one, other)
        out.append(Difference(key, one, other, group, reason is None, reason))
    out.sort(key=lambda found: (not found.matters, order_of(found.key)))
    return out


def _reason(key: str, group: str, one: Any, other: Any) -> str | None:
    """Return why a difference does not matter, None where it does."""
    if group == "harmless":
        return "changes neither what is captured nor what is accepted"
    if one is NOT_PRINTED or other is NOT_PRINTED:
        if key in DERIVED:
            return "not told by one of the logs"
        value = other if one is NOT_PRINTED else one
        # Sizes of one are no parallelism. Graph options, and the groups that are not shown, come and go with every
        # version, so that their absence says nothing.
        if is_off(value) or (group == "parallel" and value == 1) or group not in SHOWN - {"graphs"}:
            return "printed on one side only"
        return None
    if isinstance(one, str) and isinstance(other, str) and "/" in one + other:
        names = [path.rstrip("/").rpartition("/")[2] for path in (one, other)]
        if names[0] and names[0] == names[1]:
            return "the same name in another folder"
    return None
