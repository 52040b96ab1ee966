"""Which functions of SGLang are wrapped, under the names they have in each version, and the hook that wraps them.

This module is responsible for that table and for the import hook: a function is wrapped when its module loads, or at
once where it is loaded already. What is not there, or takes other parameters than the wrapper needs, is left alone and
named in the header (``not_wrapped``). It must not know what the wrappers do.

Names and parameters are those of the released packages; benchmarks/probe_signatures.py reads them out of a new one and
says what changed, and docs/reference/probe.md says which of them were seen running.
"""

from __future__ import annotations

import importlib.abc
import inspect
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from logscope_probe import passes

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class Place(NamedTuple):
    """A function that is wrapped.

    Attributes:
        module: where it stands, in ``sglang.srt``.
        owner: its class, or an empty text for a function of the module.
        names: the names it has, of which the first one found is taken.
        needs: parameters that it must take.
        wrap: makes the wrapper.
        optional: SGLang runs EAGLE-3 without it in some version, so it may be missing without a word.

    """

    module: str
    owner: str
    names: tuple[str, ...]
    needs: tuple[str, ...]
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
    optional: bool = False

    def __str__(self) -> str:
        """Return ``module.Class.name``."""
        return ".".join(filter(None, (self.module, self.owner, "|".join(self.names))))


_CAPTURE = ("capture_one_shape", "capture_one_batch_size")
_REPLAY = ("execute", "replay")
_STEPS = ("speculative.eagle_draft_cuda_graph_runner", "EAGLEDraftCudaGraphRunner")
_EXTEND = ("speculative.eagle_draft_extend_cuda_graph_runner", "EAGLEDraftExtendCudaGraphRunner")

PLACES = (
    Place("managers.scheduler", "", ("configure_logger",), ("server_args", "prefix"), passes.wrap_configure_logger),
    Place("model_executor.model_runner", "ModelRunner", ("load_model",), (), passes.wrap_load_model),
    Place("model_executor.model_runner", "ModelRunner", ("forward",), ("forward_batch",), passes.wrap_runner_forward),
    Place(
        "layers.logits_processor",
        "LogitsProcessor",
        ("_get_hidden_states_to_store",),
        ("hidden_states", "aux_hidden_states", "logits_metadata"),
        passes.wrap_store,
    ),
    Place(
        "speculative.eagle_worker_v2",
        "EagleDraftWorker",
        ("draft_forward",),
        ("forward_batch",),
        passes.wrap_draft_forward,
    ),
    # The worker before spec v2, gone from 0.5.13 on.
    Place(
        "speculative.eagle_worker",
        "EAGLEWorker",
        ("draft_forward",),
        ("forward_batch",),
        passes.wrap_draft_forward,
        optional=True,
    ),
    Place(*_STEPS, _CAPTURE, ("forward",), partial(passes.wrap_capture, kind="steps")),
    Place(*_STEPS, _REPLAY, ("forward_batch",), partial(passes.wrap_replay, kind="steps")),
    Place(*_EXTEND, _CAPTURE, ("forward",), partial(passes.wrap_capture, kind="extend")),
    Place(*_EXTEND, _REPLAY, ("forward_batch",), partial(passes.wrap_replay, kind="extend")),
)
MODULES = {f"sglang.srt.{place.module}" for place in PLACES}


def wrap(module: ModuleType) -> None:
    """Wrap the places of one module; those that cannot be are noted."""
    for place in PLACES:
        if f"sglang.srt.{place.module}" != module.__name__:
            continue
        owner = getattr(module, place.owner, None) if place.owner else module
        name = next((name for name in place.names if name in vars(owner or object)), None)
        original = getattr(owner, name) if name else None
        if name is None or original is None or not set(place.needs) <= set(inspect.signature(original).parameters):
            if not place.optional:
                passes.PROCESS.not_wrapped.append(str(place))
            continue
        setattr(owner, name, place.wrap(original))


class _Loader(importlib.abc.Loader):
    """Runs a module as its own loader would, wraps its places, and leaves no trace of itself."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def create_module(self, spec: ModuleSpec) -> Any:
        """Make the module as its own loader would."""
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then wrap its places."""
        module.__loader__ = self.inner
        if module.__spec__ is not None:
            module.__spec__.loader = self.inner
        self.inner.exec_module(module)
        passes.guarded(wrap)(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules with places in them through the other finders."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find one of the modules, with a loader that wraps."""
        if name not in MODULES or self not in sys.meta_path:
            return None
        # Only those behind this one: another tool's finder of this kind asks this one in turn.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


def watch() -> None:
    """Wrap what is loaded already, and the rest when it loads."""
    sys.meta_path.insert(0, _Finder())
    # Of the workers one is enough, and only the one in use is loaded.
    passes.PROCESS.expected = {
        f"sglang.srt.{place.module}": str(place) for place in PLACES if place.wrap is not passes.wrap_draft_forward
    }
    for name in MODULES & set(sys.modules):
        passes.guarded(wrap)(sys.modules[name])
