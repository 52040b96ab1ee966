"""Changes of level and trends in a series of numbers, without any library.

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
from collections import Counter
from itertools import accumulate, pairwise
from statistics import median
from typing import TYPE_CHECKING

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
    ties = Counter(values)
    variance = count * (count - 1) * (2 * count + 5) - sum(n * (n - 1) * (2 * n + 5) for n in ties.values() if n > 1)
    if variance <= 0:
        return 0.0
    score = _concordance(values, ties)
    if score == 0:
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
    ranks = _ranks([*before, *after])
    ties = sum(count**3 - count for count in Counter([*before, *after]).values())
    total = m + n
    variance = m * n / 12 * (total + 1 - ties / (total * (total - 1))) if total > 1 else 0.0
    if variance <= 0:
        return 0.0
    score = math.fsum(ranks[m:]) - n * (total + 1) / 2
    if abs(score) <= 0.5:
        return 0.0
    return (score - math.copysign(0.5, score)) / math.sqrt(variance)


def _concordance(values: Sequence[float], distinct: Counter[float]) -> int:
    """Return how many pairs rise minus how many fall, in n log k steps (a Fenwick tree over the k distinct values)."""
    place = {value: at for at, value in enumerate(sorted(distinct), 1)}
    size = len(place)
    tree = [0] * (size + 1)
    score = 0
    for seen, value in enumerate(values):
        at = place[value]
        below, walk = 0, at - 1
        while walk:
            below += tree[walk]
            walk &= walk - 1
        upto, walk = 0, at
        while walk:
            upto += tree[walk]
            walk &= walk - 1
        score += below - (seen - upto)
        walk = at
        while walk <= size:
            tree[walk] += 1
            walk += walk & -walk
    return score


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation (-1 to 1); None for fewer than 4 pairs or when one side never changes."""
    if len(one) < 4:
        return None
    ranks_one, ranks_other = _ranks(one), _ranks(other)
    middle = (len(one) + 1) / 2
    spread_one = math.fsum((rank - middle) ** 2 for rank in ranks_one)
    spread_other = math.fsum((rank - middle) ** 2 for rank in ranks_other)
    if not spread_one or not spread_other:
        return None
    together = math.fsum((a - middle) * (b - middle) for a, b in zip(ranks_one, ranks_other, strict=True))
    return together / math.sqrt(spread_one * spread_other)


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of every value from 1, equal values sharing the middle of their ranks."""
    first: dict[float, float] = {}
    taken = 0
    for value, count in sorted(Counter(values).items()):
        first[value] = taken + (count + 1) / 2
        taken += count
    return [first[value] for value in values]


def same_order(one: Sequence[float], other: Sequence[float]) -> int:
    """Return 1 when both sequences order their places alike without ties, -1 when exactly the other way, else 0."""
    for sign in (1, -1):
        order = sorted(range(len(one)), key=lambda at: one[at])
        turned = [sign * other[at] for at in order]
        if all(one[a] < one[b] for a, b in pairwise(order)) and all(a < b for a, b in pairwise(turned)):
            return sign
    return 0


def noise(values: Sequence[float], *, resolution: float = 0.0) -> float:
    """Return the standard deviation of a series around its own local level.

    The median difference of neighbours ignores the few steps between levels. A series that never changes still has
    the noise of its print: ``resolution`` is the last printed digit.
    """
    differences = [abs(a - b) for a, b in pairwise(values)]
    middle = median(differences) / _MEDIAN_DIFFERENCE if differences else 0.0
    return max(middle, resolution / math.sqrt(12))


def level_starts(values: Sequence[float], *, smallest_change: float = 0.03, resolution: float = 0.01) -> list[int]:
    """Return where each level begins, 0 first: one entry means that the level never changes.

    A change is reported when it stands out from the noise and is at least ``smallest_change`` of the level before it.
    The position is where squares are least: for steps above the noise it is exact or next to it.
    """
    count = len(values)
    if count < 2 * SHORTEST_LEVEL:
        return [0] if count else []
    sums = [0.0, *accumulate(values)]
    squares = [0.0, *accumulate(value * value for value in values)]
    threshold = _PENALTY * math.log(count) * noise(values, resolution=resolution) ** 2
    borders: list[int] = []
    heap: list[tuple[float, int, int, int]] = []
    _offer(heap, sums, 0, count)
    while heap and len(borders) < MOST_LEVELS - 1:
        gain, at, start, stop = heapq.heappop(heap)
        if -gain < threshold:
            break
        if -gain < _STANDS_OUT * _spread(sums, squares, start, at, stop):
            continue
        borders.append(at)
        _offer(heap, sums, start, at)
        _offer(heap, sums, at, stop)
    borders.sort()
    for index in range(len(borders)):
        left = borders[index - 1] if index else 0
        right = borders[index + 1] if index + 1 < len(borders) else count
        borders[index] = _best(sums, left, right)[1]
    return _merged([0, *borders], sums, count, smallest_change)


def _offer(heap: list[tuple[float, int, int, int]], sums: Sequence[float], start: int, stop: int) -> None:
    if stop - start >= 2 * SHORTEST_LEVEL:
        gain, at = _best(sums, start, stop)
        heapq.heappush(heap, (-gain, at, start, stop))


def _best(sums: Sequence[float], start: int, stop: int) -> tuple[float, int]:
    """Return the border between two levels that takes most off the sum of squares, and how much."""
    total, count = sums[stop] - sums[start], stop - start
    base = sums[start]
    best, where = -1.0, start + SHORTEST_LEVEL
    for at in range(start + SHORTEST_LEVEL, stop - SHORTEST_LEVEL + 1):
        left = at - start
        off = (sums[at] - base) - total * left / count
        gain = off * off * count / (left * (count - left))
        if gain > best:
            best, where = gain, at
    return best, where


def _spread(sums: Sequence[float], squares: Sequence[float], start: int, at: int, stop: int) -> float:
    """Return the variance inside the two levels."""
    inside = 0.0
    for a, b in ((start, at), (at, stop)):
        inside += squares[b] - squares[a] - (sums[b] - sums[a]) ** 2 / (b - a)
    return max(0.0, inside) / max(1, stop - start - 2)


def _merged(starts: list[int], sums: Sequence[float], count: int, smallest_change: float) -> list[int]:
    """Leave out borders between levels that hardly differ, the least first."""
    while len(starts) > 1:
        stops = [*starts[1:], count]
        means = [(sums[b] - sums[a]) / (b - a) for a, b in zip(starts, stops, strict=True)]
        changes = [abs(b - a) / (abs(a) or 1.0) for a, b in pairwise(means)]
        least = min(changes)
        if least >= smallest_change:
            break
        del starts[changes.index(least) + 1]
    return starts
