"""Which SGLang wrote a log, as far as one question needs it: what a draft's config ids mean as printed layers.

This module is responsible for the table of what changed at one version border and for reading the era of a segment
from what it prints. It must not know contracts or rules.

SGLang captures *before* a decoder layer, and prints that layer's number. Up to 0.5.12 a config id meant "the output of
this layer", so it was captured before ``id + 1``. From 0.5.13 on (sgl-project/sglang pull request 25454) targets of the
DeepSeek family capture before the layer the id names, unless the first id is 1, the sign of a checkpoint that was
trained for the old meaning. The other families kept ``id + 1``. docs/explanation/versions.md has the whole story.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from logscope.errors import UsageError

if TYPE_CHECKING:
    from logscope.model import Payload, Segment

Era: TypeAlias = Literal["until 0.5.12", "from 0.5.13"]
OLD: Era = "until 0.5.12"
NEW: Era = "from 0.5.13"
BORDER = (0, 5, 13)
# How an era is put into a sentence.
ERA_WORDS: dict[Era, str] = {OLD: "SGLang up to 0.5.12", NEW: "SGLang from 0.5.13 on"}

# Options of server_args that were there before the border and never after it, and the other way round. Taken from the
# option tables of the released packages 0.5.9, 0.5.12 | 0.5.13, 0.5.15.post1, 0.5.23; names that came or went between
# other versions are left out, so one of these is enough.
ARGS_UNTIL: frozenset[str] = frozenset(
    {
        "collect_tokens_histogram",
        "disable_hicache_numa_detect",
        "ds_channel_config_path",
        "ds_heavy_channel_num",
        "enable_double_sparsity",
        "enable_nan_detection",
        "enable_nsa_prefill_context_parallel",
        "nsa_decode_backend",
        "nsa_prefill_backend",
        "nsa_prefill_cp_mode",
        "record_nolora_graph",
        "speculative_ngram_branch_length",
        "stream_output",
    }
)
ARGS_FROM: frozenset[str] = frozenset(
    {
        "asr_max_buffer_seconds",
        "asr_max_concurrent_sessions",
        "deepep_dispatcher_output_dtype",
        "disable_attn_tp_gather",
        "dsa_decode_backend",
        "dsa_prefill_backend",
        "dsa_topk_backend",
        "enable_deepseek_v4_fp4_indexer",
        "encoder_bootstrap_port",
        "kv_canary",
        "kv_canary_sweep_interval",
        "lmcache_config_file",
        "load_snapshot_publish_interval",
        "radix_cache_backend",
        "trace_modules",
    }
)
# What a graph capture was called after the border only ("Capture target verify CUDA graph begin.").
GRAPHS_FROM: frozenset[str] = frozenset({"target verify", "draft decode"})

# Targets whose reading changed at the border: DeepSeek's class and what inherits from it or wraps it.
CHANGED_TARGETS: frozenset[str] = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "GlmMoeDsaForCausalLM",
        "KimiK25ForConditionalGeneration",
        "MistralLarge3ForCausalLM",
    }
)
# Targets that captured before id + 1 on both sides of it.
UNCHANGED_TARGETS: frozenset[str] = frozenset(
    {
        "ApertusForCausalLM",
        "BailingMoEForCausalLM",
        "BailingMoeForCausalLM",
        "BailingMoeV2ForCausalLM",
        "ExaoneMoEForCausalLM",
        "Gemma3ForCausalLM",
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Glm4MoeForCausalLM",
        "GptOssForCausalLM",
        "LlamaForCausalLM",
        "LongcatFlashForCausalLM",
        "MiniMaxM2ForCausalLM",
        "Phi3ForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3VLForConditionalGeneration",
    }
)


class Known(NamedTuple):
    """An era and how it is known; None when the log cannot tell, with the reason in ``how``."""

    era: Era | None
    how: str


def parse_version(text: str) -> Era:
    """Return the era of a version as a user types it (``0.5.12``, ``v0.5.15.post1``, ``0.5.13rc1``).

    Raises
    ------
    UsageError
        when it is no version number.

    """
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text.strip())
    if found is None:
        raise UsageError(
            f"'{text}' is no SGLang version",
            why="a version is two or three numbers with dots",
            help="give it as it is installed, for example --sglang-version 0.5.12",
        )
    number = tuple(int(part or 0) for part in found.groups())
    return NEW if number >= BORDER else OLD


class EraWatch:
    """Collects what the lines of one segment say about its era."""

    __slots__ = ("_seen", "_segment", "draft_type", "target_type")

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._seen: dict[Era, str] = {}
        self.target_type: str | None = None
        self.draft_type: str | None = None

    def server(self, payload: Payload) -> None:
        """Read a start-up line: the KV cache line, a graph capture's name, the loaded classes."""
        event, fields = payload.event, payload.fields
        if event == "load_weight_end":
            name = fields.get("type")
            if isinstance(name, str):
                if self.target_type is None and "Eagle" not in name:
                    self.target_type = name
                elif self.target_type is not None and name != self.target_type and self.draft_type is None:
                    self.draft_type = name
        elif event == "kv_cache" and payload.usable:
            if "dtype" in fields:
                self._seen.setdefault(NEW, "the KV cache line names its dtype")
            elif fields:
                self._seen.setdefault(OLD, "the KV cache line names no dtype")
        elif event == "graph_capture_begin" and fields.get("what") in GRAPHS_FROM:
            self._seen.setdefault(NEW, f"graphs are captured for '{fields['what']}'")

    def known(self) -> Known:
        """Return the era the lines agree on; the option names of ``server_args`` are read when asked."""
        seen: dict[Era, str] = {}
        for era, names in ((OLD, ARGS_UNTIL), (NEW, ARGS_FROM)):
            found = sorted(names & self._segment.server_args.keys())
            if found:
                seen[era] = f"server_args has '{found[0]}'"
        seen = {**self._seen, **seen}
        if len(seen) == 1:
            ((known, how),) = seen.items()
            return Known(known, how)
        if seen:
            return Known(None, f"its lines contradict each other: {' but '.join(seen.values())}")
        return Known(None, "no start-up line of the log tells SGLang's version")


def shift_of(ids: tuple[int, ...], era: Era, target_type: str | None = None) -> int:
    """Return what is added to every config id to get the printed layer, in one era and for one kind of target."""
    if era == OLD or target_type in UNCHANGED_TARGETS:
        return 1
    return 1 if ids and ids[0] == 1 else 0


def default_layers(depth: int) -> tuple[int, int, int]:
    """Return the layers SGLang captures when the draft's config names none, for a target of ``depth`` layers."""
    return (2, depth // 2, depth - 3)
