"""Levels and trends of a series of numbers."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from logscope.queries.acceptance.trend import (
    level_starts,
    noise,
    rank_difference,
    rank_trend,
)

VALUES = st.lists(st.sampled_from([1.0, 1.5, 2.0, 2.25, 3.0, 4.0]), min_size=4, max_size=40)


@given(VALUES)
def test_the_rank_trend_is_that_of_the_textbook(values):
    """The z equals the O(n^2) definition of Mann and Kendall with the correction for ties."""
    score = sum((b > a) - (b < a) for a, b in combinations(values, 2))
    n = len(values)
    ties = [count for count in Counter(values).values() if count > 1]
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    expected = 0.0 if not variance or not score else (score - (1 if score > 0 else -1)) / variance**0.5
    found = rank_trend(values)
    assert found is not None
    assert abs(found - expected) < 1e-9


@given(VALUES, VALUES)
def test_the_rank_difference_is_that_of_the_textbook(before, after):
    """The z equals the pair-counting definition of Mann and Whitney with the correction for ties."""
    m, n = len(before), len(after)
    above = sum((b > a) + 0.5 * (b == a) for a in before for b in after)
    ties = sum(t**3 - t for t in Counter(before + after).values())
    variance = m * n / 12 * (m + n + 1 - ties / ((m + n) * (m + n - 1)))
    off = above - m * n / 2
    expected = 0.0 if variance <= 0 or abs(off) <= 0.5 else (off - (0.5 if off > 0 else -0.5)) / variance**0.5
    found = rank_difference(before, after)
    assert found is not None
    assert abs(found - expected) < 1e-9


def test_steps_are_found_where_they_are():
    """Borders of noisy steps lie at most one value from the truth, whatever the seed."""
    for seed in range(20):
        draw = random.Random(seed)
        values = [round(level + draw.uniform(-0.08, 0.08), 2) for level in (3.3, 3.0, 2.4, 2.8) for _ in range(12)]
        starts = level_starts(values)
        assert len(starts) == 4, seed
        assert all(abs(found - true) <= 1 for found, true in zip(starts, (0, 12, 24, 36), strict=True)), seed


def test_noise_alone_has_one_level():
    """Of 300 series of pure noise hardly any is cut into levels."""
    cut = 0
    for seed in range(300):
        draw = random.Random(seed)
        values = [round(draw.gauss(2.0, 0.4), 2) for _ in range(draw.choice([10, 25, 80]))]
        cut += len(level_starts(values)) > 1
    assert cut <= 9


def test_a_constant_and_a_short_series_have_one_level():
    """Nothing changes in a constant, and five values are too few to tell."""
    assert level_starts([2.0] * 50) == [0]
    assert level_starts([1.0, 1.0, 4.0, 4.0, 4.0]) == [0]
    assert level_starts([]) == []


def test_a_change_smaller_than_three_percent_is_no_level():
    """A significant step of one percent is not reported."""
    assert level_starts([3.00] * 40 + [3.03] * 40) == [0]


def test_noise_ignores_the_steps_between_levels():
    """The noise of two flat levels is that of the print, not their distance."""
    assert noise([1.0] * 20 + [4.0] * 20, resolution=0.01) < 0.01
