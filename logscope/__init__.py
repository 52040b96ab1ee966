"""logscope: what EAGLE-3 speculative decoding really did, read from the log.

The public names are resolved when they are first used: importing logscope costs next to nothing, and polars is
imported only by who asks for a frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The table below as type checkers and editors read it; a test holds the two together.
    from logscope.contract import Contract as Contract
    from logscope.diffing.report import diff as diff
    from logscope.errors import (
        ContractError as ContractError,
        GrammarError as GrammarError,
        InputError as InputError,
        LogscopeError as LogscopeError,
        NothingRecognised as NothingRecognised,
        RemoteError as RemoteError,
        SavedRunError as SavedRunError,
        UsageError as UsageError,
    )
    from logscope.tables.event import Event as Event
    from logscope.model import (
        Accounting as Accounting,
        Finding as Finding,
        ForwardPass as ForwardPass,
        Segment as Segment,
    )
    from logscope.report import Report as Report, Table as Table
    from logscope.run import Run as Run, load as load, open as open, stream as stream
    from logscope.tables.select import Select as Select

__version__ = "0.1.0"

_PUBLIC = {
    "load": "logscope.run",
    "stream": "logscope.run",
    "open": "logscope.run",
    "Run": "logscope.run",
    "diff": "logscope.diffing.report",
    "Event": "logscope.tables.event",
    "Report": "logscope.report",
    "Table": "logscope.report",
    "Finding": "logscope.model",
    "Accounting": "logscope.model",
    "ForwardPass": "logscope.model",
    "Segment": "logscope.model",
    "Select": "logscope.tables.select",
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

if not TYPE_CHECKING:  # a checker would take every name for one that is here

    def __getattr__(name: str) -> object:
        """Resolve a public name on first use."""
        module = _PUBLIC.get(name)
        if module is None:
            raise AttributeError(f"module 'logscope' has no attribute '{name}'")
        from importlib import import_module

        value = getattr(import_module(module), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
