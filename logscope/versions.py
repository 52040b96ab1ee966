"""Which SGLang wrote a log, and what a draft's config ids mean there as printed layers.

This module is responsible for the signs by which a release is told from a log, and for the rule of layer ids. It must
not know contracts or rules.

SGLang captures *before* a decoder layer, and prints that layer's number. A config id means "the output of this layer",
so it is captured before ``id + 1``: by every target class up to 0.5.12, and by every class but one family since. From
0.5.13 on (sgl-project/sglang pull request 25454) targets of the DeepSeek family capture before the layer the id names,
unless the first id is 1, the sign of a checkpoint that was trained for the old meaning. docs/explanation/versions.md
has the whole story.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from logscope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logscope.model import Payload, Segment

Era: TypeAlias = Literal["until 0.5.12", "from 0.5.13"]
OLD: Era = "until 0.5.12"
NEW: Era = "from 0.5.13"
# How an era is put into a sentence.
ERA_WORDS: dict[Era, str] = {OLD: "SGLang up to 0.5.12", NEW: "SGLang from 0.5.13 on"}

# Releases are told within 0.5: a number here is the last one of a release's name, post-releases are not told apart.
_BORDER = 13
NEWEST = 23


def _names(table: Mapping[int, str]) -> Mapping[int, frozenset[str]]:
    return {release: frozenset(names.split()) for release, names in table.items()}


# Names of server_args by the release they came with (and stayed to NEWEST), and by the last release that had them.
# Taken from the option tables of every released package from 0.5.9 to NEWEST: all names of the EAGLE-3 settings, and
# some that stand early in the line. Names that came and went are left out, so one of these is enough.
CAME: Mapping[int, frozenset[str]] = _names(
    {
        10: "gc_threshold linear_attn_backend speculative_ngram_max_trie_depth use_ray",
        11: "speculative_adaptive speculative_adaptive_config speculative_dflash_block_size",
        12: "detokenizer_worker_num model_config_parser speculative_draft_window_size",
        13: "asr_max_buffer_seconds asr_max_concurrent_sessions deepep_dispatcher_output_dtype "
        "disable_attn_tp_gather dsa_decode_backend dsa_prefill_backend dsa_topk_backend "
        "enable_deepseek_v4_fp4_indexer encoder_bootstrap_port kv_canary kv_canary_sweep_interval "
        "lmcache_config_file load_snapshot_publish_interval radix_cache_backend trace_modules",
        14: "cp_strategy cuda_graph_bs_decode cuda_graph_config speculative_use_rejection_sampling",
        15: "bf16_gemm_backend dcp_size decoupled_spec_role enable_unified_memory spec_trace_dir",
        16: "mm_feature_transport retraction_policy sidecar speculative_dspark_block_size",
        17: "dwdp_size linear_attn_verify_backend return_hidden_states_mode weight_cache_mode",
        18: "image_processor_backend speculative_draft_kv_cache_dtype startup_weight_load_mode",
        19: "gated_launch_port prefill_decode_interval speculative_dsa_topk_backend",
        20: "return_output_ids speculative_domino_candidate_pool_size uno_lora_path",
        21: "otlp_service_name speculative_boundary_reduction speculative_draft_sink_size",
        22: "attn_dp_size enable_watermark speculative_use_block_verification",
        23: "aux_hidden_state_capture enable_paged_experts return_aux_hidden_state_layer_ids",
    }
)
WENT: Mapping[int, frozenset[str]] = _names(
    {
        9: "disable_hicache_numa_detect speculative_ngram_branch_length stream_output",
        10: "collect_tokens_histogram ds_channel_config_path ds_heavy_channel_num enable_double_sparsity",
        12: "enable_nan_detection enable_nsa_prefill_context_parallel nsa_decode_backend nsa_prefill_backend "
        "nsa_prefill_cp_mode record_nolora_graph",
        13: "enable_breakable_cuda_graph mamba_scheduler_strategy piecewise_cuda_graph_tokens",
        15: "enable_deepep_waterfill optimistic_prefill_retries",
        17: "enable_expert_distribution_metrics torchao_config",
        19: "dsa_prefill_cp_mode prefill_cp_mode",
        20: "elastic_ep_rejoin keep_mm_feature_on_device",
        21: "cuda_graph_tc_compiler",
        22: "speculative_skip_dp_mlp_sync",
    }
)
# A line with so many arguments is whole: the oldest release prints 328. Only there does a missing name say anything.
_WHOLE_LINE = 300

# Graph captures by the release that named them so first.
_GRAPHS: Mapping[str, int] = {"target verify": 14, "draft decode": 14, "UNO tree draft": 20}
# Keys of lines by the release that printed them first, below zero: last; no key: the line itself.
_STATISTICS = tuple(
    (key, release, f"'{key}' is printed")
    for release, keys in {
        16: ("cap len", "block accept len", "est uncap acc len", "#optimistic-req"),
        21: ("#host-receive-req", "#replay-token", "fwd+idle occupancy"),
    }.items()
    for key in keys
)
_GRAPH = (
    ("num_tokens_per_bs", -15, "a graph's line has 'num_tokens_per_bs'"),
    ("num_tokens_per_req", 16, "a graph's line has 'num_tokens_per_req'"),
)
_SIZED = (("", 16, "the KV cache is sized after graph capture"),)
_LINES: Mapping[str, tuple[tuple[str, int, str], ...]] = {
    "load_weight_end": (("committed_s", 18, "weights are committed after graph capture"),),
    "kv_cache": (("label", 17, "the KV cache line names its pool"), ("dtype", 13, "the KV cache line names its dtype")),
    "kv_cache_bound": _SIZED,
    "kv_sizing": _SIZED,
    "graph_replay": (("", 16, "replays of decode graphs are logged"),),
    "graph_capture_begin": _GRAPH,
    "graph_capture_end": _GRAPH,
    "decode_stats": _STATISTICS,
    "prefill_stats": _STATISTICS,
}
# Events whose lines can say which release wrote them, or which classes it loaded.
SIGNS = frozenset({*_LINES, "probe_header"})

# Targets that capture before the layer an id names: DeepSeek's class, what inherits from it or wraps it, and one class
# that does the same. All others capture before id + 1, so a class that is not here follows the rule.
ID_ITSELF: frozenset[str] = frozenset((
    "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "Glm4MoeLiteForCausalLM",
    "GlmMoeDsaForCausalLM", "KimiK25ForConditionalGeneration", "MistralLarge3ForCausalLM",
))  # fmt: skip
# A loaded class that is a draft by its name, whatever the order of loading.
DRAFT_CLASS = re.compile(r"Eagle|EAGLE|NextN|MTP|Medusa|DFlash|DSpark")


class Known(NamedTuple):
    """An era and how it is known; None when the log cannot tell, with the reason in ``how``.

    ``release`` is what is known beyond the era, in words: ``0.5.17``, ``0.5.16 to 0.5.18``, ``0.5.23 or newer``.
    """

    era: Era | None
    how: str
    release: str | None = None


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
    return NEW if number >= (0, 5, _BORDER) else OLD


class EraWatch:
    """Collects what the lines of one segment say about its release and about the classes it loaded."""

    __slots__ = ("_installed", "_least", "_most", "_segment", "draft_type", "target_type")

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        # The newest of the releases that lines ask for at least, the oldest of those they ask for at most; and why.
        self._least: tuple[int, str] | None = None
        self._most: tuple[int, str] | None = None
        self._installed: str | None = None
        self.target_type: str | None = None
        self.draft_type: str | None = None

    def server(self, payload: Payload) -> None:
        """Read a server line: the loaded classes, and the signs of a release in lines other than server_args."""
        event, fields = payload.event, payload.fields
        if event == "load_weight_end" and isinstance(name := fields.get("type"), str):
            if self.target_type is None and DRAFT_CLASS.search(name) is None:
                self.target_type = name
            elif self.target_type is not None and name != self.target_type and self.draft_type is None:
                self.draft_type = name
        if event == "probe_header":
            target, draft, version = (fields.get(name) for name in ("target", "draft", "sglang"))
            self.target_type = target if isinstance(target, str) else self.target_type
            self.draft_type = draft if isinstance(draft, str) else self.draft_type
            if isinstance(version, str) and re.match(r"\d+\.\d", version):
                self._installed = version
        if event == "kv_cache" and not payload.usable:
            return
        for key, release, how in _LINES.get(event, ()):
            if not key or key in fields:
                self._asks(release, how)
        if event == "kv_cache" and fields and not fields.keys() & {"label", "dtype"}:
            self._asks(-12, "the KV cache line names no dtype")
        what = str(fields.get("what", "")).strip() if event in ("graph_capture_begin", "graph_capture_end") else ""
        if what in _GRAPHS:
            self._asks(_GRAPHS[what], f"graphs are captured for '{what}'")
        if what == "target verify" and "bs" in fields:
            last = event == "graph_capture_end"
            self._asks(22 if last else -21, f"the verify graph's {'last' if last else 'first'} line has 'bs'")

    def _asks(self, release: int, how: str) -> None:
        """Take what a line asks for: a release at least, or, below zero, at most."""
        if release > 0 and (self._least is None or release > self._least[0]):
            self._least = (release, how)
        if release < 0 and (self._most is None or -release < self._most[0]):
            self._most = (-release, how)

    def known(self) -> Known:
        """Return the release the lines agree on; the option names of ``server_args`` are read when asked."""
        if self._installed is not None:
            return Known(parse_version(self._installed), "the probe's header says it", self._installed)
        self._arguments()
        least, most = self._least, self._most
        if least is None and most is None:
            return Known(None, "no start-up line of the log tells SGLang's version")
        how = "; ".join(dict.fromkeys(sign[1] for sign in (least, most) if sign is not None))
        if least is not None and most is not None and least[0] > most[0]:
            how = f"its lines contradict each other: {least[1]} but {most[1]}"
            if most[0] < _BORDER <= least[0]:
                return Known(None, how)
            return Known(NEW if most[0] >= _BORDER else OLD, how)
        release = _release(None if least is None else least[0], None if most is None else most[0])
        if least is not None and least[0] >= _BORDER:
            return Known(NEW, how, release)
        return Known(OLD if most is not None and most[0] < _BORDER else None, how, release)

    def _arguments(self) -> None:
        names = self._segment.server_args.keys()
        for release, some in CAME.items():
            if found := sorted(some & names):
                self._asks(release, f"server_args has '{found[0]}'")
            elif len(names) >= _WHOLE_LINE:
                self._asks(1 - release, f"server_args has no '{min(some)}'")
        for release, some in WENT.items():
            if found := sorted(some & names):
                self._asks(-release, f"server_args has '{found[0]}'")


def _release(least: int | None, most: int | None) -> str:
    """Return the releases between two, in words. What is newer than the newest known one is not told from it."""
    if least is None:
        return f"0.5.{most} or older"
    if most is None or most >= NEWEST:
        return f"0.5.{least} or newer"
    return f"0.5.{least}" if least == most else f"0.5.{least} to 0.5.{most}"


def shift_of(ids: tuple[int, ...], era: Era, *, itself: bool) -> int:
    """Return what is added to every config id to get the printed layer, in one era and for one kind of target."""
    return 1 if era == OLD or not itself or ids[:1] == (1,) else 0


def default_layers(depth: int) -> tuple[int, int, int]:
    """Return the layers SGLang captures when the draft's config names none, for a target of ``depth`` layers."""
    return (2, depth // 2, depth - 3)
