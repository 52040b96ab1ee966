"""A stand-in of SGLang for the probe's tests: its modules, classes and parameters as a released version has them.

``build`` writes a package ``sglang`` whose functions take what the signatures say (signatures.json, read out of the
released wheels) and hand it to the bodies below: a small target and a small draft, rounds of extend, draft steps, verify
and draft extend, and graphs. A graph here records the operations that torch dispatches while it is captured and makes
them again in a replay, with nothing of Python in between, as a CUDA graph does.

``python standin.py OUT.jsonl [key=value ...]`` serves; OUT gets what every pass really was, computed beside it.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace as Bag

HID, LAYERS, VOCAB = 16, 6, 40


# ---------------------------------------------------------------------------------------------- the package on disk


def build(folder: Path, version: str, *, without: str = "") -> None:
    """Write the package; ``without`` leaves one function out, as a version that nobody knows yet might."""
    kept = json.loads((Path(__file__).parent / "signatures.json").read_text())[version]
    package = folder / "sglang"
    modules: dict[str, list[str]] = {"__init__": [], "version": [f"__version__ = {version!r}"]}
    for key, found in kept.items():
        module, _, owner = key.partition(":")
        lines = modules.setdefault(f"srt/{module.replace('.', '/')}", [])
        if owner:
            lines.append(f"class {owner}(standin.Base):\n    pass")
        for name, parameters in found.items():
            if f"{owner}.{name}" == without:
                continue
            parameters = "server_args, prefix=''" if parameters == "(imported)" else parameters
            names = [part.split("=")[0].strip() for part in parameters.split(",") if part.strip()]
            call = f"standin.BODIES[{f'{owner}.{name}'!r}]({', '.join(names)})"
            lines.append(f"def {name}({parameters}):\n    return {call}")
            if owner:
                lines.append(f"{owner}.{name} = {name}\ndel {name}")
    for name, lines in modules.items():
        path = package / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(["import standin" if name.startswith("srt") else "", *lines, ""]))
    for path in package.rglob("*"):
        if path.is_dir():
            (path / "__init__.py").touch()


# ---------------------------------------------------------------------------------------------- the bodies


class Base:
    """Has whatever it is given."""

    def __init__(self, **given):
        self.__dict__.update(given)


class Serving:
    """What the stand-in knows while it serves."""

    capture_mode = False
    packed = False
    truth: list = []
    spoil = None


@contextlib.contextmanager
def capture_mode():
    """Say that graphs are captured."""
    Serving.capture_mode = True
    yield
    Serving.capture_mode = False


class Graph:
    """Operations, recorded while they are made, and made again."""

    def __init__(self, run):
        from torch.utils._python_dispatch import TorchDispatchMode

        made = self.made = []

        class Recorder(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                out = func(*args, **(kwargs or {}))
                made.append((func, args, kwargs or {}, out))
                return out

        with Recorder():
            self.out = run()

    def replay(self):
        import torch

        for func, args, kwargs, out in self.made:
            new = func(*args, **kwargs)
            olds, news = (x if isinstance(x, (list, tuple)) else [x] for x in (out, new))
            for old, fresh in zip(olds, news):
                if isinstance(old, torch.Tensor) and old.data_ptr() != fresh.data_ptr():
                    old.copy_(fresh)
        return self.out


def models():
    """Make the two models, seeded; torch is imported here only."""
    import torch

    torch.manual_seed(7)

    class Inner(torch.nn.Module):
        def __init__(self, layers):
            super().__init__()
            self.embed = torch.nn.Parameter(torch.randn(VOCAB, HID), requires_grad=False)
            self.weights = torch.nn.ParameterList(
                torch.nn.Parameter(torch.randn(HID, HID) * 0.3, requires_grad=False) for _ in range(layers)
            )
            self.layers_to_capture = []

    class Target(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = Inner(LAYERS)
            self.config = Bag(hidden_size=HID)

        def forward(self, input_ids, positions, forward_batch):
            hidden, aux = states(self, input_ids)
            if Serving.packed:
                aux = torch.cat(aux, dim=-1)
            metadata = Bag(capture_hidden_mode=forward_batch.capture_hidden_mode)
            join = getattr(Serving.processor, "_get_hidden_states_to_store", lambda *args: store(None, *args))
            return join(hidden, None, aux, hidden, None, aux, None, metadata)

    class Draft(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = Inner(1)
            self.model.fc = torch.nn.Linear(3 * HID, HID, bias=False)
            self.model.fc.weight.requires_grad = False
            self.config = Bag(hidden_size=HID)

        def forward(self, input_ids, positions, forward_batch):
            hidden = forward_batch.spec_info.hidden_states
            if hidden.shape[-1] != HID:
                hidden = self.model.fc(hidden)
            return (hidden + self.model.embed[input_ids]) @ self.model.weights[0]

    return Target(), Draft()


def states(target, input_ids):
    """Return the target's last state and the kept ones: what the model computes, and what the truth is."""
    hidden, aux = target.model.embed[input_ids], []
    for at, weight in enumerate(target.model.weights):
        if at in target.model.layers_to_capture:
            aux.append(hidden * 1.0)
        hidden = hidden + (hidden @ weight).tanh()
    return hidden, aux


def store(self, hidden, _before, aux, *rest):
    """Join, as the logits processor does."""
    import torch

    metadata = rest[-1]
    if metadata.capture_hidden_mode.name == "NULL":
        return None
    return torch.cat(aux, dim=-1) if isinstance(aux, list) else aux


def batch(mode, tokens, requests, hidden=None, full="FULL"):
    """Make a forward batch."""
    return Bag(
        forward_mode=Bag(name=mode),
        batch_size=requests,
        input_ids=tokens,
        positions=tokens,
        spec_info=Bag(hidden_states=hidden),
        capture_hidden_mode=Bag(name=full),
        rids=[f"r{k}" for k in range(requests)],
    )


def runner_forward(self, forward_batch, *_rest):
    """Replay the verify graph where there is one, else run the model."""
    rows = forward_batch.input_ids.shape[0]
    size = next((size for size in sorted(self.graphs) if size >= rows), None)
    if forward_batch.forward_mode.name != "TARGET_VERIFY" or size is None or Serving.capture_mode:
        out = self.model.forward(forward_batch.input_ids, forward_batch.positions, forward_batch)
        return Bag(hidden_states=out, can_run_graph=False)
    graph, static = self.graphs[size]
    static.fill_(3)
    static[:rows].copy_(forward_batch.input_ids)
    return Bag(hidden_states=graph.replay()[:rows], can_run_graph=True)


def capture_verify(runner, sizes):
    """Capture the target's graphs, each after a run to warm up."""
    import torch

    with capture_mode():
        for size in sizes:
            static = torch.zeros(size, dtype=torch.int64)
            fb = batch("TARGET_VERIFY", static, 1)

            def run(fb=fb, static=static):
                return runner.model.forward(static, static, fb)

            run()
            runner.graphs[size] = (Graph(run), static)


def draft_forward(self, forward_batch):
    """Make the draft's steps."""
    hidden, tokens = forward_batch.spec_info.hidden_states, forward_batch.input_ids
    for _ in range(self.steps - 1):
        forward_batch.spec_info.hidden_states, forward_batch.input_ids = hidden, tokens
        hidden = self.draft_runner.forward(forward_batch).hidden_states
        tokens = hidden.abs().argmax(-1)
    return tokens


def capture_draft(self, size, forward, *_rest):
    """Capture a graph of the draft's: its steps, or one extend."""
    import torch

    rows = size * self.topk if self.kind == "steps" else size
    width = HID if self.kind == "steps" else 3 * HID
    static = Bag(tokens=torch.zeros(rows, dtype=torch.int64), hidden=torch.zeros(rows, width))
    mode = "DECODE" if self.kind == "steps" else self.mode

    def run():
        fb = batch(mode, static.tokens, size, static.hidden)
        if self.kind == "steps":
            return self.eagle_worker.draft_forward(fb)
        return self.model_runner.model.forward(fb.input_ids, fb.positions, fb)

    with capture_mode():
        run()
        run()
        self.graphs[rows] = (Graph(run), static)


def execute_draft(self, forward_batch, *_rest):
    """Replay it."""
    hidden = forward_batch.spec_info.hidden_states
    rows = hidden.shape[0]
    size = min(size for size in self.graphs if size >= rows)
    graph, static = self.graphs[size]
    static.tokens.fill_(1)
    static.hidden.fill_(9.0)
    static.tokens[:rows].copy_(forward_batch.input_ids)
    static.hidden[:rows].copy_(hidden)
    return graph.replay()[:rows]


BODIES = {
    ".configure_logger": lambda server_args, prefix: None,
    ".get_is_capture_mode": lambda: Serving.capture_mode,
    ".load_plugins": lambda: None,
    "ModelRunner.load_model": lambda self: None,
    "ModelRunner.forward": runner_forward,
    "LogitsProcessor._get_hidden_states_to_store": store,
    "EagleDraftWorker.draft_forward": draft_forward,
    "EAGLEWorker.draft_forward": draft_forward,
    **{
        f"{name}.{method}": body
        for name in ("EAGLEDraftCudaGraphRunner", "EAGLEDraftExtendCudaGraphRunner")
        for methods, body in (
            (("capture_one_shape", "capture_one_batch_size"), capture_draft),
            (("execute", "replay"), execute_draft),
        )
        for method in methods
    },
}


# ---------------------------------------------------------------------------------------------- serving


def note(role, mode, requests, graph, *shown):
    """Keep what a pass really was; shown are (label, state) pairs."""
    Serving.truth.append(
        {
            "role": role,
            "mode": mode,
            "batch_size": requests,
            "graph": graph,
            "states": [
                {
                    "label": label,
                    "shape": list(x.shape),
                    "norm": x.double().norm().item(),
                    "rows": x.double().norm(dim=-1).tolist(),
                    "first": x[0, :5].tolist() if len(x) else [],
                }
                for label, x in shown
            ],
        }
    )


def serve(
    truth, *, version="0.5.15.post1", graphs=1, topk=1, steps=3, rounds=3, prefix="", spoil="", at=2, embed=0, twice=0
):
    """Serve a few rounds of one, three and two requests and write the truth."""
    import importlib

    import torch

    def module(name):
        return importlib.import_module(f"sglang.srt.{name}")

    server = Bag(
        tp_size=2 if "TP" in prefix else 1, dp_size=1, pp_size=1, ep_size=1, enable_dp_attention=False,
        chunked_prefill_size=64, max_prefill_tokens=64, disable_cuda_graph=not graphs, enable_torch_compile=False,
        speculative_algorithm="EAGLE3", speculative_num_steps=steps, speculative_eagle_topk=topk,
        speculative_num_draft_tokens=4,
    )  # fmt: skip
    module("managers.scheduler").configure_logger(server, prefix=prefix)
    for name in ("runner_utils.capture_mode", "cuda_graph_runner"):
        with contextlib.suppress(ImportError):
            module(f"model_executor.{name}")
    runner_class = module("model_executor.model_runner").ModelRunner
    old = version == "0.5.11"
    extend_mode = "DRAFT_EXTEND" if old else "DRAFT_EXTEND_V2"
    Serving.packed = tuple(int(x) for x in version.split(".")[:3]) >= (0, 5, 17)
    Serving.processor = module("layers.logits_processor").LogitsProcessor()
    target_model, draft_model = models()
    ids = [0, 2, 4] if embed else [1, 2, 4]
    config = Bag(num_hidden_layers=LAYERS, hidden_size=HID)
    draft_config = Bag(**vars(config), eagle_config={"eagle_aux_hidden_state_layer_ids": ids})
    draft_config.num_hidden_layers = 1
    common = {"device": "cpu", "server_args": server}
    target = runner_class(
        model=target_model, is_draft_worker=False, graphs={}, model_config=Bag(hf_config=config), **common
    )
    for _ in range(1 + twice):
        target.load_model()
    draft = runner_class(
        model=draft_model, is_draft_worker=True, graphs={}, model_config=Bag(hf_config=draft_config), **common
    )
    draft.load_model()
    target_model.model.layers_to_capture = ids
    worker_module = module("speculative.eagle_worker" if old else "speculative.eagle_worker_v2")
    worker = (worker_module.EAGLEWorker if old else worker_module.EagleDraftWorker)(draft_runner=draft, steps=steps)
    if not hasattr(worker, "draft_forward"):
        worker.draft_forward = lambda fb: draft_forward(worker, fb)
    classes = {
        "steps": module("speculative.eagle_draft_cuda_graph_runner").EAGLEDraftCudaGraphRunner,
        "extend": module("speculative.eagle_draft_extend_cuda_graph_runner").EAGLEDraftExtendCudaGraphRunner,
    }
    drafts = {}
    if graphs:
        capture_verify(target, (4, 16))
        for kind, made in classes.items():
            one = drafts[kind] = made(
                model_runner=draft, eagle_worker=worker, topk=topk, kind=kind, mode=extend_mode, graphs={}
            )
            capture = getattr(one, "capture_one_batch_size" if old else "capture_one_shape")
            for size in (4, 16):
                capture(size, None)
    labels = [f"layer {i} capture" if i else "embed capture" for i in ids]

    def run_target(mode, tokens, requests, number):
        fb = batch(mode, tokens, requests)
        out = target.forward(fb)
        _, aux = states(target_model, tokens)
        joined = torch.cat(aux, dim=-1)
        note("target", mode, requests, out.can_run_graph, *zip(labels, aux), ("aux concat", joined))
        assert torch.allclose(out.hidden_states, joined)
        if spoil and number >= at:
            if spoil == "stale":
                joined = Serving.truth[0]["joined"] if len(joined) == 0 else joined.roll(1, 0) * 1.01
            else:
                joined = joined.clone()
                joined[-1] = {"nan": float("nan"), "inf": float("inf"), "zero": 0.0}[spoil]
        return joined

    def run_draft(mode, tokens, requests, hidden, *, graph):
        fb = batch(mode, tokens, requests, hidden)
        if graph:
            execute = getattr(drafts["extend"], "replay" if old else "execute")
            extra = (None,) if version == "0.5.23" else ()
            execute(fb, *extra)
        else:
            draft.forward(fb)
        note("draft", mode, requests, graph, ("forward", hidden), ("fc output", draft_model.model.fc(hidden)))

    torch.manual_seed(11)
    for number in range(rounds):
        requests = (1, 3, 2)[number % 3]
        tokens = torch.randint(0, VOCAB, (5 * requests + number,))
        joined = run_target("EXTEND", tokens, requests, number)
        run_draft("EXTEND", tokens, requests, joined, graph=False)
        hidden = torch.randn(requests * topk, HID)
        first = torch.randint(0, VOCAB, (requests * topk,))
        fb = batch("DECODE", first, requests, hidden)
        if graphs:
            getattr(drafts["steps"], "replay" if old else "execute")(fb)
        else:
            worker.draft_forward(fb)
        step, chosen = hidden, first
        for _ in range(steps - 1):
            note("draft", "DECODE", requests, bool(graphs), ("forward", step))
            step = (step + draft_model.model.embed[chosen]) @ draft_model.model.weights[0]
            chosen = step.abs().argmax(-1)
        tokens = torch.randint(0, VOCAB, (4 * requests,))
        joined = run_target("TARGET_VERIFY", tokens, requests, number)
        keep = torch.arange(len(tokens))
        if old:  # the accepted rows only
            keep = keep[keep % 4 < 2]
        run_draft(extend_mode, tokens[keep], requests, joined[keep], graph=bool(graphs))
    Path(truth).write_text("".join(json.dumps(line) + "\n" for line in Serving.truth))


if __name__ == "__main__":
    import standin

    words = dict(word.split("=", 1) for word in sys.argv[2:])
    standin.serve(sys.argv[1], **{key: int(value) if value.isdigit() else value for key, value in words.items()})
