"""Inference of the definition of accept rate."""

from __future__ import annotations

import re

import pytest
from conftest import CASES, sidecar
from hypothesis import given
from hypothesis import strategies as st

from logscope.queries.acceptance.rates import RateRanges, Reading, candidates, decide, mixed

# (accept len, accept rate) -> definition, denominator of the formula; pairs as printed in public reports and the cases.
PAIRS = [
    (2.17, 0.54, "A|B", 4),
    (2.3377, 0.7795, "A|B", 3),
    (1.95, 0.49, "A|B", 4),
    (1.57, 0.39, "A|B", 4),
    (2.80, 0.70, "A|B", 4),
    (2.90, 0.72, "A|B", 4),
    (2.80, 0.35, "A|B", 8),
    (2.90, 0.36, "A|B", 8),
    (1.00, 0.25, "A|B", 4),
    (1.00, 0.33, "A|B", 3),
    (2.80, 0.26, "C", 7),
    (2.90, 0.27, "C", 7),
    (3.33, 0.78, "C", 3),
    (3.07, 0.69, "C", 3),
    (2.84, 0.61, "C", 3),
    (2.44, 0.48, "C", 3),
    (1.90, 0.30, "C", 3),
    (1.57, 0.19, "C", 3),
    (3.10, 0.70, "C", 3),
]


@pytest.mark.parametrize(("length", "rate", "definition", "denominator"), PAIRS)
def test_one_pair_tells_its_definition_and_denominator(length, rate, definition, denominator):
    """A pair that only one formula fits is read so, and the formula's denominator is named."""
    verdict = decide(candidates(length, rate).best)
    assert verdict.definition == definition
    name = "(len-1)" if definition == "C" else "len"
    assert verdict.rule == f"{name}/{denominator}"


def test_a_pair_that_fits_two_definitions_is_ambiguous():
    """2.00 / 0.33 is 2/6 or 1/3: both are said, neither is chosen."""
    verdict = decide(candidates(2.00, 0.33).best)
    assert (verdict.definition, verdict.rule) == ("ambiguous", "len/6 or (len-1)/3")
    assert verdict.draft_tokens is None


def test_nothing_accepted_under_definition_c_leaves_the_denominator_open():
    """1.00 / 0.00 is definition C with any number of draft tokens: none is invented."""
    verdict = decide(candidates(1.00, 0.00).best)
    assert (verdict.definition, verdict.draft_tokens) == ("C", None)


def test_a_pair_no_formula_fits_is_named_as_such():
    """A rate above one follows nothing known."""
    verdict = decide(candidates(2.0, 1.5).best)
    assert (verdict.definition, verdict.rule) == ("ambiguous", "no known definition")


@pytest.mark.parametrize(
    ("length", "rate", "steps", "tokens", "expected"),
    [
        (2.00, 0.33, 3, 4, "C"),
        (2.00, 0.33, 5, 6, "A|B"),
        (2.00, 0.33, 2, 6, "B"),
        (2.80, 0.70, 3, 8, "A"),
        (2.80, 0.35, 3, 8, "B"),
        (2.80, 0.26, 3, 8, "C"),
        (4.00, 1.00, 3, 4, "ambiguous"),
    ],
)
def test_server_settings_decide_what_pairs_leave_open(length, rate, steps, tokens, expected):
    """With steps and draft tokens known, A and B are told apart; with topk 1 they are the same formula."""
    assert decide(candidates(length, rate).best, steps, tokens).definition == expected


def test_settings_that_fit_nothing_are_said_to_contradict():
    """A rate of len/8 under four draft tokens is reported as it is, with the contradiction."""
    verdict = decide(candidates(2.80, 0.35).best, 3, 4)
    assert verdict.contradicts
    assert verdict.rule == "len/8"


@given(
    definition=st.sampled_from("ABC"),
    steps=st.integers(1, 8),
    extra=st.integers(0, 24),
    verifies=st.integers(1, 2000),
    data=st.data(),
)
def test_the_truth_is_always_among_the_readings(definition, steps, extra, verifies, data):
    """Whatever is printed with two decimals, the formula that made it is never ruled out (independent formulas)."""
    tokens = steps + 1 + extra
    accepted = data.draw(st.integers(0, steps * verifies))
    length = 1 + accepted / verifies
    rate = {"A": length / (steps + 1), "B": length / tokens, "C": (length - 1) / (tokens - 1)}[definition]
    found = candidates(round(length, 2), round(rate, 2))
    divisor = {"A": steps + 1, "B": tokens, "C": tokens - 1}[definition]
    assert Reading(definition == "C", divisor) in found.loose
    assert found.strict <= found.loose


def test_ranges_of_a_file_that_grew_across_releases():
    """Each definition holds over the lines the sidecar of case 04 gives; nothing is averaged across them."""
    log = CASES / "04-one-file-many-releases.log"
    ranges = RateRanges()
    for number, line in enumerate(log.read_text(encoding="utf-8").splitlines(), 1):
        found = re.search(r"accept len: ([\d.]+), accept rate: ([\d.]+)", line)
        if found:
            ranges.add(number, float(found[1]), float(found[2]))
    expected = sidecar(log)["rate_rules"]
    assert {one.decide().rule: [one.first_line, one.last_line] for one in ranges.ranges} == {
        rule: [lines[0], lines[-1]] for rule, lines in expected.items()
    }
    assert mixed([one.decide() for one in ranges.ranges])


def test_lines_together_decide_what_one_leaves_open():
    """2.50 / 0.50 fits two formulas; the next line of the same server fits one of them only."""
    ranges = RateRanges()
    ranges.add(6, 2.50, 0.50)
    assert ranges.ranges[0].decide().definition == "ambiguous"
    ranges.add(8, 3.10, 0.70)
    assert [one.decide().rule for one in ranges.ranges] == ["(len-1)/3"]


def test_a_line_no_definition_explains_ends_no_range():
    """A damaged rate in between is counted, and the range goes on."""
    ranges = RateRanges()
    for line, rate in ((1, 0.54), (2, 1.70), (3, 0.54)):
        ranges.add(line, 2.17, rate)
    assert [(one.first_line, one.last_line, one.lines, one.unexplained) for one in ranges.ranges] == [(1, 3, 2, 1)]


def test_another_number_of_draft_tokens_is_not_another_definition():
    """Adaptive drafting changes N: two ranges, one definition."""
    verdicts = [decide(candidates(2.80, 0.60).best), decide(candidates(1.60, 0.60).best, 1, 2)]
    assert [(verdict.definition, verdict.draft_tokens) for verdict in verdicts] == [("C", 4), ("C", 2)]
    assert not mixed(verdicts)
