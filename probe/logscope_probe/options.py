"""What is recorded, and where: the options of one server's start.

This module is responsible for the options, their words on the command line and the two environment variables that
carry them into SGLang's processes: ``LOGSCOPE_PROBE`` (the folder) and ``LOGSCOPE_PROBE_OPTIONS`` (``key=value`` pairs
with commas between them). It must not know SGLang.
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# The states that can be chosen. `captures`: the target's hidden captures; `join`: them joined; `input`: what the draft
# is given; `fc`: what its fc makes of it.
STATES = ("captures", "join", "input", "fc")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of one start; every field has a default that records everything.

    Attributes:
        folder: where the files are written, one for each rank and process.
        states: which of STATES are recorded.
        every: record one target pass in so many, with the draft passes that follow it.
        first: record from this pass on.
        until_finding: stop so many passes after the first finding; -1: never stop.
        row_norms: print the norms of at most so many rows of a state; 0: none.
        rids: print the request ids.
        size: bytes after which a file is rotated.
        keep: how many rotated files of a rank are kept besides the one being written.

    """

    folder: str = ""
    states: tuple[str, ...] = STATES
    every: int = 1
    first: int = 0
    until_finding: int = -1
    row_norms: int = 0
    rids: bool = False
    size: int = 256 << 20
    keep: int = 3

    def as_text(self) -> str:
        """Return what ``LOGSCOPE_PROBE_OPTIONS`` carries: the options that differ from the defaults."""
        words = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "folder" and value != field.default:
                words.append(f"{field.name}={'+'.join(value) if isinstance(value, tuple) else int(value)}")
        return ",".join(words)


def from_environment(environ: Mapping[str, str] = os.environ) -> Options:
    """Read the options that a launcher, or a user, has put into the environment.

    Raises:
        ValueError: an option that is none, or a value it cannot have.

    """
    given: dict[str, Any] = {"folder": environ["LOGSCOPE_PROBE"]}
    kinds: dict[str, Any] = {field.name: type(field.default) for field in dataclasses.fields(Options)}
    for word in environ.get("LOGSCOPE_PROBE_OPTIONS", "").split(","):
        name, equal, value = word.strip().partition("=")
        if not name:
            continue
        if name not in kinds or name == "folder" or not equal:
            raise ValueError(f"{word!r} is no option; there are {', '.join(sorted(set(kinds) - {'folder'}))}")
        if name == "states":
            given[name] = states(value)
        elif name == "size":
            given[name] = size(value)
        else:
            given[name] = kinds[name](int(value))
    return Options(**given)


def states(text: str) -> tuple[str, ...]:
    """Read names of states with ``+`` or commas between them.

    Raises:
        ValueError: a name that is none of STATES.

    """
    chosen = re.split(r"[+,]", text)
    if wrong := [name for name in chosen if name not in STATES]:
        raise ValueError(f"{wrong[0]!r} is no state; there are {', '.join(STATES)}")
    return tuple(name for name in STATES if name in chosen)


def size(text: str) -> int:
    """Read a number of bytes: ``500000``, ``64M``, ``1G``.

    Raises:
        ValueError: text that is none, or less than 64 KiB.

    """
    found = re.fullmatch(r"(\d+)([kmg]?)(?:i?b)?", text.lower())
    if found is None or int(found[1]) * _UNITS[found[2]] < 1 << 16:
        raise ValueError(f"{text!r} is no size of at least 64K; write 64M, 1G")
    return int(found[1]) * _UNITS[found[2]]
