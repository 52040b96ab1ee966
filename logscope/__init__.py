"""logscope: what EAGLE-3 speculative decoding really did, read from the log.

The public names are resolved when they are first used: importing logscope costs next to nothing, and polars is
imported only by who asks for a frame.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "load": "logscope.run",
    "stream": "logscope.run",
    "open": "logscope.run",
    "Run": "logscope.run",
    "diff": "logscope.diffing",
    "Event": "logscope.event",
    "Report": "logscope.report",
    "Table": "logscope.report",
    "Finding": "logscope.model",
    "Accounting": "logscope.model",
    "ForwardPass": "logscope.model",
    "Segment": "logscope.model",
    "Select": "logscope.select",
    "Contract": "logscope.contract",
    "LogscopeError": "logscope.errors",
    "UsageError": "logscope.errors",
    "InputError": "logscope.errors",
    "NothingRecognised": "logscope.errors",
    "GrammarError": "logscope.errors",
    "ContractError": "logscope.errors",
    "SavedRunError": "logscope.errors",
    "RemoteError": "logscope.errors",
}
__all__ = ["__version__", *sorted(_PUBLIC)]  # noqa: PLE0604 - the table above is the one list


def __getattr__(name: str) -> Any:
    """Resolve a public name on first use."""
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'logscope' has no attribute '{name}'")
    from importlib import import_module  # noqa: PLC0415 - part of the lazy resolution

    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
