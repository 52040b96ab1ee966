"""What the wrapped functions of SGLang do besides what they did: count passes, and hand every state on.

This module is responsible for telling one pass from the next, for which states belong to it and how many of their rows
are real, and for recording some passes and not others. It must not know which names the wrapped functions have in which
version (places.py), nor files.

Every function here that runs beside SGLang's own is guarded: what goes wrong in it is said, three times at most, and
dropped; after a hundred the probe gives up.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any

from logscope_probe import __version__, lines
from logscope_probe.options import Options, from_environment
from logscope_probe.writer import Job, Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from logscope_probe.device import Buffers

SAID, GIVEN_UP = 3, 100  # failures that are said, and after which the probe does nothing more
ROWS = (2048, 32768)  # the fewest and the most rows that buffers are made for
# Where a model keeps the part that captures: a language model inside a model of several kinds of input.
INSIDE = ("model", "language_model", "llm", "thinker")
NO_STEPS = "the draft steps in graphs: no draft_forward began them"
# Where SGLang says that it captures graphs, newest first.
CAPTURE_MODULES = (
    "sglang.srt.model_executor.runner_utils.capture_mode",
    "sglang.srt.model_executor.cuda_graph_runner",
)


class Runner:
    """One model runner of SGLang: the target's or the draft's."""

    def __init__(self, runner: Any, buffers: Buffers) -> None:
        self.runner, self.model = runner, runner.model
        self.draft = bool(getattr(runner, "is_draft_worker", False))
        self.buffers = buffers
        # Of each graph runner (by its id; 0: the model's own): what its graphs show, and how many passes they make.
        self.plans: dict[int, tuple[list[lines.State], int]] = {}
        self.depth = 0  # of passes that run, captures not counted
        self.grouped = False  # several forwards are captured into one graph
        self.began = False  # and their first one was seen
        self.inner: Any = None

    def layers(self) -> list[int]:
        """Return the layers before which the target captures, sorted; the list is filled after the model is loaded."""
        if self.inner is None:
            self.inner = capturing_part(self.model)
        return sorted(getattr(self.inner, "layers_to_capture", None) or [])


class Process:
    """What is known of this process, once."""

    def __init__(self) -> None:
        self.options = Options()
        self.server: Any = None
        self.rank = ""
        self.passes = 0
        self.targets = 0
        self.dropped = 0
        self.failures = 0
        self.recording = False  # the pass that runs, or the last one, is wanted
        self.current: Runner | None = None
        self.runners: dict[int, Runner] = {}
        self.slots: Any = None
        self.cuda = False
        self.writer: Writer | None = None
        self.not_wrapped: list[str] = []
        self.expected: dict[str, str] = {}  # modules whose places cannot be done without, and those places
        self._header: tuple[int, dict[str, object]] = (-1, {})

    def header(self) -> dict[str, object]:
        """Return the header's values, made anew when a model was loaded since."""
        if self._header[0] != len(self.runners):
            self._header = (len(self.runners), header(self))
        return self._header[1]


PROCESS = Process()


def say(text: str) -> None:
    """Say something in the server's own output."""
    os.write(2, f"logscope probe: {text}\n".encode())


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function that never raises; it returns None where it would have, and when the probe has given up."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        if PROCESS.failures >= GIVEN_UP:
            return None
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a probe must never take a server down
            PROCESS.failures += 1
            if PROCESS.failures <= SAID:
                say(f"{function.__name__}: {type(error).__name__}: {error}")
            if PROCESS.failures == GIVEN_UP:
                say(f"gives up after {GIVEN_UP} failures; the server runs on")
            return None

    return inner


def capturing() -> bool:
    """Tell whether a CUDA graph is being captured, or warmed up for that."""
    import torch

    for name in CAPTURE_MODULES:
        asked = getattr(sys.modules.get(name), "get_is_capture_mode", None)
        if asked is not None and asked():
            return True
    return PROCESS.cuda and torch.cuda.is_current_stream_capturing()


def batch_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the forward batch among a call's arguments."""
    for value in (*args, *kwargs.values()):
        if hasattr(value, "forward_mode") and hasattr(value, "batch_size"):
            return value
    return None


def tokens_of(batch: Any) -> int:
    """Return the rows of a batch's input; a draft batch that a graph will replay may have no input ids."""
    for x in (getattr(batch, "input_ids", None), getattr(batch, "positions", None)):
        if x is not None:
            return int(x.shape[-1])
    return 0


def capturing_part(model: Any) -> Any:
    """Return the part of a model that knows the layers to capture, or None."""
    parts = [model]
    for _ in range(4):
        for part in parts:
            if getattr(part, "layers_to_capture", None):
                return part
        parts = [inner for part in parts for name in INSIDE if (inner := getattr(part, name, None)) is not None]
    return None


# ---------------------------------------------------------------------------------------------- a process, its models


@guarded
def name_process(given: inspect.BoundArguments) -> None:
    """Take the words that SGLang itself puts in front of this rank's lines."""
    PROCESS.server = given.arguments.get("server_args")
    PROCESS.rank = given.arguments.get("prefix", "")
    if PROCESS.writer is not None:
        PROCESS.writer.rank = PROCESS.rank


@guarded
def model_loaded(runner: Any) -> None:
    """Make a model's buffers and wrap what it has of its own: its forward, its fc."""
    from logscope_probe import device

    server = PROCESS.server = PROCESS.server or getattr(runner, "server_args", None)
    if getattr(server, "enable_torch_compile", False):
        PROCESS.not_wrapped.append("the model: --enable-torch-compile compiles what is wrapped")
        say("nothing is recorded of a model that torch.compile rewrites; the server runs on")
        return
    known = PROCESS.runners.get(id(runner))
    if known is not None and known.model is runner.model:
        return
    start()
    wanted = max(getattr(server, name, None) or 0 for name in ("chunked_prefill_size", "max_prefill_tokens"))
    rows = min(max(wanted, ROWS[0]), ROWS[1])
    one = PROCESS.runners[id(runner)] = Runner(runner, device.Buffers(runner.device, rows))
    if PROCESS.slots is None:
        PROCESS.cuda = one.buffers.cells.is_cuda
        PROCESS.slots = device.Slots(rows, pinned=PROCESS.cuda)
    model = one.model
    model.forward = wrap_model_forward(model.forward, one)
    fc: Any = getattr(getattr(model, "model", None), "fc", None) or getattr(model, "fc", None)
    if one.draft and hasattr(fc, "register_forward_hook"):
        fc.register_forward_hook(lambda _module, _args, out: fc_ran(one, out))


def start() -> None:
    """Read the options and start the writer, once."""
    if PROCESS.writer is None:
        from logscope_probe.findings import Watch

        PROCESS.options = from_environment()
        PROCESS.writer = Writer(PROCESS.options, PROCESS.header, slot_free, Watch())
        PROCESS.writer.rank = PROCESS.rank
        PROCESS.writer.start()
        say(f"{__version__} writes to {PROCESS.writer.path()}")
        for place in PROCESS.not_wrapped:
            say(f"could not wrap {place}; what it shows will be missing")


def slot_free(slot: Any) -> None:
    """Give a slot back; they are made once the first model says how many rows it may see."""
    PROCESS.slots.free(slot)


def sglang_version() -> str | None:
    """Return SGLang's version."""
    try:
        from sglang.version import __version__ as version
    except ImportError:
        return getattr(sys.modules.get("sglang"), "__version__", None)
    return str(version)


def header(process: Process) -> dict[str, object]:
    """Return the header's values, in the order of lines.HEADER."""
    import torch

    server, options = process.server, process.options
    absent = [place for module, place in process.expected.items() if module not in sys.modules]
    values: dict[str, object] = {
        "schema": lines.SCHEMA,
        "probe": __version__,
        "sglang": sglang_version(),
        "torch": torch.__version__,
        "pid": os.getpid(),
        "dp_attention": getattr(server, "enable_dp_attention", None),
        "cuda_graph": None if server is None else not getattr(server, "disable_cuda_graph", False),
        "states": list(options.states),
        "every": options.every,
        "from_pass": options.first,
        "until_finding": options.until_finding,
        "not_wrapped": process.not_wrapped + absent,
    }
    ranks = {name.lower(): int(number) for name, number in re.findall(r"([A-Z_]+?)(\d+)", process.rank)}
    for name in ("tp", "dp", "pp", "ep"):
        size = getattr(server, f"{name}_size", None)
        values |= {f"{name}_size": size, f"{name}_rank": ranks.get(name, 0 if size == 1 else None)}
    for one in process.runners.values():
        name = "draft" if one.draft else "target"
        config = getattr(getattr(one.runner, "model_config", None), "hf_config", None)
        text = getattr(config, "text_config", None) or config
        values[name] = type(one.model).__name__
        values[f"{name}_layers"] = getattr(text, "num_hidden_layers", None)
        values[f"{name}_width"] = getattr(text, "hidden_size", None)
        if one.draft:
            eagle = getattr(config, "eagle_config", None) or {}
            values["layer_ids"] = eagle.get("eagle_aux_hidden_state_layer_ids")
            values["fc_in"] = getattr(getattr(one.model.model, "fc", None), "in_features", None)
        else:
            values["layers_to_capture"] = one.layers()
    for name in lines.HEADER:
        if name.startswith("speculative_"):
            values[name] = getattr(server, name, None)
    return {name: values.get(name) for name in lines.HEADER}


# ---------------------------------------------------------------------------------------------- states


def wanted(name: str, one: Runner) -> bool:
    """Tell whether a state is to be computed now: always into a graph, else when its pass is recorded."""
    return name in PROCESS.options.states and (PROCESS.recording or not one.depth)


@guarded
def fc_ran(one: Runner, out: Any) -> None:
    """Take the output of the draft's fc."""
    if PROCESS.current is one and wanted("fc", one):
        one.buffers.add("eagle3", "fc output", "shape", out)


@guarded
def states_stored(given: dict[str, Any], joined: Any) -> None:
    """Take the target's hidden captures and what they were joined to: a list, or from 0.5.17 on one packed tensor."""
    one, aux = PROCESS.current, given.get("aux_hidden_states")
    if one is None or one.draft or aux is None:
        return
    ids = one.layers()
    if hasattr(aux, "chunk"):
        count = len(ids) or max(1, aux.shape[-1] // given["hidden_states"].shape[-1])
        aux = aux.chunk(count, dim=-1)
    if wanted("captures", one):
        tag = type(one.model).__module__.rpartition(".")[2]
        for at, x in enumerate(aux):
            layer = ids[at] if len(ids) == len(aux) else None
            label = "layer capture" if layer is None else f"layer {layer} capture" if layer else "embed capture"
            one.buffers.add(tag, label, "shape", x, f", residual_is_none={layer == 0}")
    if joined is not None and wanted("join", one):
        mode = given["logits_metadata"].capture_hidden_mode.name
        one.buffers.add("logits", "aux concat", "shape", joined, f", num_aux={len(aux)}, capture_hidden_mode={mode}")


@guarded
def draft_given(one: Runner, batch: Any) -> None:
    """Take what the draft reads."""
    hidden = getattr(getattr(batch, "spec_info", None), "hidden_states", None)
    if hidden is not None and wanted("input", one):
        width = getattr(getattr(one.model, "config", None), "hidden_size", 0)
        one.buffers.add("eagle3", "forward", "hidden_states", hidden, f", embeds=torch.Size([ROWS, {width}])")


# ---------------------------------------------------------------------------------------------- passes


@guarded
def pass_begins(runner: Any, batch: Any) -> tuple[Runner, lines.Pass] | None:
    """Count a pass of a model runner; None where there is none to tell of: a capture, a runner that is not known."""
    one = PROCESS.runners.get(id(runner))
    if one is None or batch is None or one.depth or capturing():
        return None
    begun = count_pass(one, batch, tokens_of(batch), 1, graph=False)
    one.buffers.begin()
    one.depth += 1
    return one, begun


def count_pass(one: Runner, batch: Any, tokens: int, passes: int, *, graph: bool) -> lines.Pass:
    """Count passes and decide whether they are recorded: a draft's are when those of the target before them were."""
    options, writer = PROCESS.options, PROCESS.writer
    number = PROCESS.passes + 1
    PROCESS.passes += passes
    if not one.draft:
        PROCESS.targets += 1
        PROCESS.recording = PROCESS.targets % options.every == 0 and number >= options.first
    PROCESS.recording = PROCESS.recording and bool(writer and writer.on)
    if writer is not None and writer.stop_after is not None and number > writer.stop_after:
        PROCESS.recording, writer.reached = False, True
    rids = tuple(getattr(batch, "rids", None) or ()) if options.rids else ()
    return lines.Pass(number, time.time(), batch.forward_mode.name, int(batch.batch_size), tokens, graph, rids)


@guarded
def pass_ends(one: Runner, begun: lines.Pass, output: Any) -> None:
    """Hand on what a pass has shown: the states Python saw, or those that the replayed graph was captured with."""
    if not PROCESS.recording:
        return
    graph = bool(getattr(output, "can_run_graph", False))
    seen = one.buffers.seen or (one.plans.get(0, ([], 1))[0] if graph else [])
    hand_on(one, begun._replace(graph=graph), seen, replayed=not one.buffers.seen)


@guarded
def hand_on(one: Runner, begun: lines.Pass, seen: list[lines.State], *, replayed: bool) -> None:
    """Queue the copies of a pass's results and give it to the writer."""
    if not seen or PROCESS.writer is None:
        return
    # A padded batch has more rows than tokens, and a graph was captured with the rows of its size.
    states = [
        (
            state._replace(extra=state.extra.replace("ROWS", str(begun.tokens))),
            begun.tokens if replayed else min(state.rows, begun.tokens),
        )
        for state in seen
    ]
    rows = min(one.buffers.rows, max(rows for _, rows in states))
    count = max(state.at for state, _ in states) + 1
    slot = PROCESS.slots.take(count, rows)
    job = Job(slot, begun, states, not one.draft, PROCESS.dropped)
    if slot is None:
        PROCESS.dropped += job.passes
        return
    slot.fill(one.buffers, count, rows)
    PROCESS.dropped = 0
    PROCESS.writer.put(job)


# ---------------------------------------------------------------------------------------------- wrappers


def wrap_configure_logger(original: Callable[..., Any]) -> Callable[..., Any]:
    """Hear what a scheduler process puts in front of its lines."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def configure_logger(*args: Any, **kwargs: Any) -> Any:
        got = original(*args, **kwargs)
        name_process(signature.bind(*args, **kwargs))  # what was just taken can be bound
        return got

    return configure_logger


def wrap_load_model(original: Callable[..., Any]) -> Callable[..., Any]:
    """Prepare for a model when it is there."""

    @functools.wraps(original)
    def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        got = original(self, *args, **kwargs)
        model_loaded(self)
        return got

    return load_model


def wrap_runner_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tell of one pass of a model, eager or replayed."""

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        begun = pass_begins(self, batch_of(args, kwargs))
        if begun is None:
            return original(self, *args, **kwargs)
        outer, PROCESS.current = PROCESS.current, begun[0]
        try:
            output = original(self, *args, **kwargs)
        finally:
            PROCESS.current = outer
            begun[0].depth -= 1
        pass_ends(*begun, output)
        return output

    return forward


def wrap_model_forward(original: Callable[..., Any], one: Runner) -> Callable[..., Any]:
    """Tell of a run of the loaded model: in a pass, or to be captured."""

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        outer, PROCESS.current = PROCESS.current, one
        forward_begins(one, batch_of(args, kwargs))
        try:
            return original(*args, **kwargs)
        finally:
            PROCESS.current = outer
            forward_ends(one)

    return forward


@guarded
def forward_begins(one: Runner, batch: Any) -> None:
    """Begin a model's forward; outside of passes it is a graph's, of which the last one captured is kept."""
    if not one.depth and not one.grouped:
        one.buffers.begin()
    one.buffers.steps += 1
    if one.draft and batch is not None:
        draft_given(one, batch)


@guarded
def forward_ends(one: Runner) -> None:
    """Keep what a graph of one forward shows."""
    if not one.depth and not one.grouped and not one.draft and one.buffers.seen and capturing():
        one.plans[0] = (one.buffers.seen, 1)


def wrap_store(original: Callable[..., Any]) -> Callable[..., Any]:
    """Take what the logits processor joins: the target's hidden captures, whichever model the target is."""
    names = list(inspect.signature(original).parameters)

    @functools.wraps(original)
    def store(self: Any, *args: Any, **kwargs: Any) -> Any:
        joined = original(self, *args, **kwargs)
        if PROCESS.current is not None:
            states_stored(dict(zip(names[1:], args, strict=False)) | kwargs, joined)
        return joined

    return store


def wrap_draft_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    """Begin the draft's steps; captured, they all go into one graph, so its buffers begin here."""

    @functools.wraps(original)
    def draft_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps_begin(self)
        return original(self, *args, **kwargs)

    return draft_forward


@guarded
def steps_begin(worker: Any) -> None:
    """Begin the buffers of a graph that several forwards go into."""
    runner = getattr(worker, "draft_runner", None) or getattr(worker, "draft_model_runner", None)
    one = PROCESS.runners.get(id(runner))
    if one is not None and one.grouped:
        one.began = True
        one.buffers.begin()


def wrap_capture(original: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """Keep what a captured graph of the draft's holds. ``kind`` is ``steps`` (several forwards) or ``extend``."""

    @functools.wraps(original)
    def capture_one(self: Any, *args: Any, **kwargs: Any) -> Any:
        one = PROCESS.runners.get(id(getattr(self, "model_runner", None)))
        if one is None:
            return original(self, *args, **kwargs)
        one.grouped, one.began = kind == "steps", False
        try:
            return original(self, *args, **kwargs)
        finally:
            # Without a beginning the states of warming up would be taken for those of the graph.
            whole = one.began or not one.grouped
            one.grouped = False
            one.plans[id(self)] = (one.buffers.seen, one.buffers.steps) if whole else ([], 1)
            if not whole and NO_STEPS not in PROCESS.not_wrapped:
                PROCESS.not_wrapped.append(NO_STEPS)

    return capture_one


def wrap_replay(original: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """Tell of a replayed graph of the draft's."""

    @functools.wraps(original)
    def replay(self: Any, *args: Any, **kwargs: Any) -> Any:
        begun = replay_begins(self, batch_of(args, kwargs), kind)
        output = original(self, *args, **kwargs)
        if begun is not None:
            replay_ends(*begun, self)
        return output

    return replay


@guarded
def replay_begins(graphs: Any, batch: Any, kind: str) -> tuple[Runner, lines.Pass] | None:
    """Count the passes of a replayed graph."""
    one = PROCESS.runners.get(id(getattr(graphs, "model_runner", None)))
    if one is None or batch is None:
        return None
    # A draft step has one row for each branch of each request; its input ids can be older.
    tokens = int(batch.batch_size) * int(getattr(graphs, "topk", 1) or 1) if kind == "steps" else tokens_of(batch)
    steps = max(1, one.plans.get(id(graphs), ([], 1))[1])
    return one, count_pass(one, batch, tokens, steps, graph=True)


@guarded
def replay_ends(one: Runner, begun: lines.Pass, graphs: Any) -> None:
    """Hand on what a replayed graph has shown."""
    if PROCESS.recording:
        hand_on(one, begun, one.plans.get(id(graphs), ([], 1))[0], replayed=True)
