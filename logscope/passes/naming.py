"""What a prefix says of who prints: the scheduler it belongs to, and whether it names one of its writers.

This module is responsible for :func:`group_key` and :func:`naming`. It must not know records or passes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from logscope.passes.writers import CENSUS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logscope.model import Prefix
    from logscope.passes.segments import Lives


def group_key(prefix: Prefix) -> tuple[Any, ...]:
    """Return what the writers of one scheduler share: origin, DP and PP rank.

    Where the origin is the name of a worker, it holds the rank too: ``Worker_TP1`` is one of the workers ``Worker``.
    """
    origin = prefix.origin
    if origin is not None and has_rank(prefix):
        for name, rank in (("TP", prefix.tp_rank), ("EP", prefix.ep_rank)):
            origin = re.sub(rf"_{name}{rank}(?![0-9])", "", origin)
    return (origin, prefix.dp_rank, prefix.pp_rank)


def has_rank(prefix: Prefix) -> bool:
    """Tell whether a prefix names a rank within its group, not only a pid."""
    return prefix.tp_rank is not None or prefix.ep_rank is not None or bool(prefix.extra)


def naming(
    texts: np.ndarray, numbers: np.ndarray, prefixes: Sequence[Prefix], lives: Lives, *, final: bool
) -> str | None:
    """Return what the prefixes of a group's prints name, None while too few were seen.

    ``ranks``: each names one writer. ``none``: no writer is named (a pid may be that of a process which several ranks
    print under). ``pids``: each pid is another scheduler, whose ranks are not named. ``both``: those that name a rank
    and those that do not print different things.
    """
    used = {number: prefixes[number] for number in np.unique(numbers).tolist()}
    plain = [number for number, prefix in used.items() if prefix.pid is None and not has_rank(prefix)]
    ranked = [number for number, prefix in used.items() if has_rank(prefix)]
    settled = final or len(texts) >= CENSUS
    if not settled and not (len(plain) == len(used) and lives.here.tp_size == 1 and not lives.cut):
        return None
    if len(plain) == len(used):
        return "none"
    if len(ranked) == len(used):
        return "ranks"
    if plain or ranked:
        rest = np.isin(numbers, ranked)
        return "none" if _share(texts[rest], texts[~rest]) else "both"
    by_pid: dict[int | None, list[int]] = {}
    for number, prefix in used.items():
        by_pid.setdefault(prefix.pid, []).append(number)
    parts = [texts[np.isin(numbers, some)] for some in by_pid.values()]
    if len(parts) == 1:
        return "none"
    several = max(float(np.median(np.unique(part, return_counts=True)[1])) for part in parts)
    if any(_share(one, other) for at, one in enumerate(parts) for other in parts[at + 1 :]):
        return "none" if several > 1 else "ranks"
    return "pids"


def _share(one: np.ndarray, other: np.ndarray) -> bool:
    """Tell whether two writers print the same records: a good part of what either prints."""
    mine, theirs = np.unique(one), np.unique(other)
    both = len(np.intersect1d(mine, theirs))
    return 4 * both >= min(len(mine), len(theirs)) > 0
