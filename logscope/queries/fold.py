"""Running statistics in flat memory: count, smallest, median, largest, trend, and a short digest.

This module is responsible for summing up a stream of numbers without keeping it. It must not know what the numbers
mean, nor anything else of logscope.

A median needs all values at once. Up to :data:`EXACT` values are kept and the median is exact; beyond that they move
into buckets whose bounds grow by a constant factor, so that any quantile is known within :data:`RELATIVE` of its value
whatever the distribution (the scheme of DDSketch, Masson, Rim and Lee 2019, VLDB 12(12)). Smallest, largest, count and
mean are always exact.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

EXACT = 4096
RELATIVE = 0.005
_LOG_GAMMA = math.log((1 + RELATIVE) / (1 - RELATIVE))
# Means over time: eight blocks for every EXACT values, merged two by two when there are more than this.
_BLOCKS = 256
_BLOCK = EXACT // 8


class Running:
    """Statistics of a stream of finite, non-negative numbers (rms, accepted length, throughput).

    ``add`` costs one list append; everything else happens every :data:`EXACT` values or when asked.
    """

    __slots__ = ("_blocks", "_buckets", "_buffer", "_count", "_largest", "_smallest", "_squares", "_sum", "_zeros")

    def __init__(self) -> None:
        self._buffer: list[float] = []
        self._buckets: dict[int, int] = {}
        self._blocks: list[tuple[int, float]] = []
        self._count = self._zeros = 0
        self._sum = self._squares = 0.0
        self._smallest, self._largest = math.inf, -math.inf

    def add(self, value: float) -> None:
        """Take one value."""
        buffer = self._buffer
        buffer.append(value)
        if len(buffer) > EXACT:
            self._fold()

    def _fold(self) -> None:
        """Move the kept values into the sketch."""
        buffer, buckets = self._buffer, self._buckets
        for start in range(0, len(buffer), _BLOCK):
            block = buffer[start : start + _BLOCK]
            self._blocks.append((len(block), math.fsum(block)))
        while len(self._blocks) > _BLOCKS:
            pairs = [self._blocks[at : at + 2] for at in range(0, len(self._blocks), 2)]
            self._blocks = [(sum(count for count, _ in pair), sum(total for _, total in pair)) for pair in pairs]
        for value in buffer:
            if value > 0:
                at = math.ceil(math.log(value) / _LOG_GAMMA)
                buckets[at] = buckets.get(at, 0) + 1
            else:
                self._zeros += 1
        self._count += len(buffer)
        self._sum += math.fsum(buffer)
        self._squares += math.fsum(value * value for value in buffer)
        self._smallest = min(self._smallest, *buffer)
        self._largest = max(self._largest, *buffer)
        buffer.clear()

    @property
    def count(self) -> int:
        """How many values were taken."""
        return self._count + len(self._buffer)

    @property
    def exact(self) -> bool:
        """True while the median is exact; else it is within :data:`RELATIVE` of its value."""
        return not self._count

    @property
    def smallest(self) -> float | None:
        """The smallest value, None without values."""
        return min((self._smallest, *self._buffer)) if self.count else None

    @property
    def largest(self) -> float | None:
        """The largest value, None without values."""
        return max((self._largest, *self._buffer)) if self.count else None

    @property
    def mean(self) -> float | None:
        """The arithmetic mean, None without values."""
        return (self._sum + math.fsum(self._buffer)) / self.count if self.count else None

    @property
    def median(self) -> float | None:
        """The middle value (mean of the two middle ones while exact), None without values."""
        if self.exact:
            ordered = sorted(self._buffer)
            half = len(ordered) // 2
            if not ordered:
                return None
            return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
        self._fold_rest()
        rank = (self._count - 1) // 2
        seen = self._zeros
        if seen > rank:
            return 0.0
        for at in sorted(self._buckets):
            seen += self._buckets[at]
            if seen > rank:
                # The middle of a bucket in the relative sense: at most RELATIVE away from either bound.
                return 2 * math.exp(at * _LOG_GAMMA) / (math.exp(_LOG_GAMMA) + 1)
        return self._largest

    def _fold_rest(self) -> None:
        if self._buffer:
            self._fold()

    @property
    def change(self) -> float | None:
        """Mean of the last quarter over mean of the first, minus one; None below 16 values or without a clear change.

        Clear means: larger than three standard errors of the difference of two such means. A stream that merely
        scatters has no trend.
        """
        count = self.count
        if count < 16:
            return None
        blocks: Sequence[tuple[int, float]] = [*self._blocks, *((1, value) for value in self._buffer)]
        first, last = _mean_of_first(blocks, count // 4), _mean_of_first(blocks[::-1], count // 4)
        mean = self.mean or 0.0
        squares = self._squares + math.fsum(value * value for value in self._buffer)
        variance = max(0.0, squares / count - mean * mean)
        error = math.sqrt(2 * variance / (count // 4))
        if first <= 0 or abs(last - first) <= max(3 * error, 1e-9 * first):
            return None
        return last / first - 1


def _mean_of_first(blocks: Iterable[tuple[int, float]], wanted: int) -> float:
    """Return the mean of about the first ``wanted`` values of blocks of (count, sum)."""
    count, total = 0, 0.0
    for block_count, block_sum in blocks:
        if count >= wanted:
            break
        count += block_count
        total += block_sum
    return total / count


class Digest:
    """A short name for the first values of a stream: equal streams have equal names on every machine.

    Values are rounded to three significant digits first, so that two prints of one tensor with different precision
    nearly always agree. Only the first ``first`` items count: runs of different length stay comparable.
    """

    __slots__ = ("_items", "left")

    def __init__(self, first: int = 8) -> None:
        self._items: list[str] = []
        # how many further items still count; lets the caller skip the work
        self.left = first

    def add(self, norm: float | None, head: Sequence[float] | None) -> None:
        """Take one tensor's norm and head."""
        if self.left > 0:
            self.left -= 1
            self._items.append(" ".join("-" if value is None else f"{value:.2e}" for value in (norm, *(head or ()))))

    def __str__(self) -> str:
        """Return eight hexadecimal digits, or nothing when no item was taken."""
        if not self._items:
            return ""
        import hashlib  # noqa: PLC0415 - OpenSSL takes a hundredth of the time a small log takes

        return hashlib.blake2s("\n".join(self._items).encode(), digest_size=4).hexdigest()
