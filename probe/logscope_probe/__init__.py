"""Debug records of every forward pass of a stock SGLang server, inside replayed CUDA graphs too.

This package is responsible for loading itself into the processes of a server that was started with it, and for nothing
in any other process. It imports the standard library and torch only, torch only where SGLang has loaded it, and it
must not know logscope: one folder copied to a node is enough.

    options   what is recorded, read from two environment variables
    places    which functions of SGLang are wrapped, by version, and the import hook that wraps them
    passes    what the wrappers do: passes counted, states handed on
    device    a state's norms and first values, computed on the device, brought over without waiting
    findings  nan, inf, zero and stale states, told by a few comparisons
    lines     the text of a record
    writer    the thread that writes: files, rotation, the switch
    startup   a sitecustomize.py that loads the package where no entry point does
"""

from __future__ import annotations

import os

__version__ = "0.1.0"

_installed = False


def install() -> None:
    """Wrap SGLang's functions in this process if ``LOGSCOPE_PROBE`` asks for it; safe to call twice; raises nothing.

    SGLang calls it in every process of its own, by the entry point ``sglang.srt.plugins``.
    """
    global _installed  # noqa: PLW0603 - once for each process
    if _installed or not os.environ.get("LOGSCOPE_PROBE"):
        return
    _installed = True
    try:
        from logscope_probe import places

        places.watch()
    except Exception as error:  # noqa: BLE001 - a probe must never take a server down
        os.write(2, f"logscope probe: not installed: {type(error).__name__}: {error}\n".encode())
