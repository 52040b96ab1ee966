"""What two sequences have in common, in the order of both: pairs of places.

This module is responsible for choosing among such pairs. It must not know what the sequences are of.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest of the pairs whose second numbers rise; the first ones do already (patience sorting)."""
    tops: list[int] = []  # the smallest end of a chain of each length
    piles: list[int] = []
    before = [-1] * len(pairs)
    for index, (_, partner) in enumerate(pairs):
        pile = bisect_left(tops, partner)
        before[index] = piles[pile - 1] if pile else -1
        tops[pile : pile + 1], piles[pile : pile + 1] = [partner], [index]
    found = []
    index = piles[-1] if piles else -1
    while index >= 0:
        found.append(pairs[index])
        index = before[index]
    return found[::-1]
