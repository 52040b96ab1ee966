"""Changes of level and trends in a series of numbers.

This module is responsible for finding where the level of a noisy series changes, and for testing whether it rises or
falls. It must not know what the numbers mean.

* Levels: binary segmentation with least squares (Scott and Knott 1974), each border then moved to the best place
  between its neighbours. The noise is estimated from the differences of neighbouring values, so that the levels
  themselves do not count as noise.
* Trend: the rank test of Mann (1945) and Kendall (1975), with the correction for ties. It counts which of every two
  values is larger and so needs no normal distribution. A step late in a long series is no trend: two levels are
  compared by the rank test of Mann and Whitney (1947).
"""

from __future__ import annotations

import heapq
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

# A level holds for at least so many values.
SHORTEST_LEVEL = 3
# More levels than this describe noise that is not noise (a day's rhythm), not events.
MOST_LEVELS = 32
# Gain of a border over the noise, in units of variance x log(n): one in some hundreds of pure noise series passes.
_PENALTY = 4.0
# The same border must also stand out from the spread inside the two levels, whatever their order.
_STANDS_OUT = 12.0
# Median of |a - b| of two normal values, in standard deviations.
_MEDIAN_DIFFERENCE = 0.954


def rank_trend(values: Sequence[float]) -> float | None:
    """Return z of the Mann-Kendall test: below 0 falling, above 0 rising, beyond 4 either way hardly by chance.

    None for fewer than 4 values; 0 when all are equal.
    """
    count = len(values)
    if count < 4:
        return None
    distinct, place, ties = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    variance = count * (count - 1) * (2 * count + 5) - int((ties * (ties - 1) * (2 * ties + 5)).sum())
    score = _concordance(place.tolist(), len(distinct))
    if variance <= 0 or score == 0:
        return 0.0
    # One is taken off for continuity.
    return (score - math.copysign(1, score)) / math.sqrt(variance / 18)


def rank_difference(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Return z of the Mann-Whitney test with the correction for ties: below 0 when ``after`` lies lower.

    None when a side is empty; 0 when all values are equal.
    """
    m, n = len(before), len(after)
    if not m or not n:
        return None
    ranks, ties = _ranks([*before, *after])
    total = m + n
    variance = m * n / 12 * (total + 1 - float((ties**3 - ties).sum()) / (total * (total - 1))) if total > 1 else 0.0
    score = math.fsum(ranks[m:]) - n * (total + 1) / 2
    if variance <= 0 or abs(score) <= 0.5:
        return 0.0
    return (score - math.copysign(0.5, score)) / math.sqrt(variance)


def _concordance(places: list[int], size: int) -> int:
    """Return how many pairs rise minus how many fall, in n log k steps (a Fenwick tree over the k distinct values)."""
    tree = [0] * (size + 1)

    def upto(walk: int) -> int:
        total = 0
        while walk:
            total += tree[walk]
            walk &= walk - 1
        return total

    score = 0
    for seen, at in enumerate(places):
        score += upto(at) - (seen - upto(at + 1))
        walk = at + 1
        while walk <= size:
            tree[walk] += 1
            walk += walk & -walk
    return score


def _ranks(values: Sequence[float]) -> tuple[Any, Any]:
    """Return the rank of every value from 1, equal values sharing the middle of their ranks, and how often each is."""
    _, place, ties = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    return (np.cumsum(ties) - (ties - 1) / 2)[place], ties


def noise(values: Sequence[float], *, resolution: float = 0.0) -> float:
    """Return the standard deviation of a series around its own local level.

    The median difference of neighbours ignores the few steps between levels. A series that never changes still has
    the noise of its print: ``resolution`` is the last printed digit.
    """
    middle = float(np.median(np.abs(np.diff(values)))) / _MEDIAN_DIFFERENCE if len(values) > 1 else 0.0
    return max(middle, resolution / math.sqrt(12))


def level_starts(values: Sequence[float], *, smallest_change: float = 0.03, resolution: float = 0.01) -> list[int]:
    """Return where each level begins, 0 first: one entry means that the level never changes.

    A change is reported when it stands out from the noise and is at least ``smallest_change`` of the level before it.
    The position is where squares are least: for steps above the noise it is exact or next to it.
    """
    count = len(values)
    if count < 2 * SHORTEST_LEVEL:
        return [0] if count else []
    column = np.asarray(values, np.float64)
    sums, squares = (np.concatenate(([0.0], np.cumsum(one))) for one in (column, column * column))
    threshold = _PENALTY * math.log(count) * noise(values, resolution=resolution) ** 2
    borders: list[int] = []
    heap = _offers(sums, (0, count))
    while heap and len(borders) < MOST_LEVELS - 1:
        gain, at, start, stop = heapq.heappop(heap)
        if -gain < threshold:
            break
        if -gain >= _STANDS_OUT * _spread(sums, squares, start, at, stop):
            borders.append(at)
            for offer in _offers(sums, (start, at), (at, stop)):
                heapq.heappush(heap, offer)
    borders.sort()
    for index in range(len(borders)):
        left = borders[index - 1] if index else 0
        right = borders[index + 1] if index + 1 < len(borders) else count
        borders[index] = _best(sums, left, right)[1]
    starts = [0, *borders]
    while len(starts) > 1:  # leave out borders between levels that hardly differ, the least first
        means = [(sums[b] - sums[a]) / (b - a) for a, b in pairwise([*starts, count])]
        changes = [abs(b - a) / (abs(a) or 1.0) for a, b in pairwise(means)]
        if min(changes) >= smallest_change:
            break
        del starts[changes.index(min(changes)) + 1]
    return starts


def _offers(sums: Any, *parts: tuple[int, int]) -> list[tuple[float, int, int, int]]:
    offers = []
    for start, stop in parts:
        if stop - start >= 2 * SHORTEST_LEVEL:
            gain, at = _best(sums, start, stop)
            offers.append((-gain, at, start, stop))
    return offers


def _best(sums: Any, start: int, stop: int) -> tuple[float, int]:
    """Return the border between two levels that takes most off the sum of squares, and how much."""
    count = stop - start
    left = np.arange(SHORTEST_LEVEL, count - SHORTEST_LEVEL + 1)
    off = sums[start + left] - sums[start] - (sums[stop] - sums[start]) * left / count
    gains = off * off * count / (left * (count - left))
    best = int(gains.argmax())
    return float(gains[best]), start + int(left[best])


def _spread(sums: Any, squares: Any, start: int, at: int, stop: int) -> float:
    """Return the variance inside the two levels."""
    inside = sum(squares[b] - squares[a] - (sums[b] - sums[a]) ** 2 / (b - a) for a, b in ((start, at), (at, stop)))
    return max(0.0, float(inside)) / max(1, stop - start - 2)
