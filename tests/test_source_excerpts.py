"""The raw text behind events is found again, however the source was cut into blocks."""

from __future__ import annotations

import itertools
import random

import pytest

from logscope.sources.blocks import Block
from logscope.sources.excerpts import LONGEST, lines_around, physical_lines, texts

DATA = b"".join(b"%d:%s\n" % (number, b"x" * (number * 7 % 23)) for number in range(1, 60)) + b"the end"


def blocks(data: bytes, seed: int) -> list[Block]:
    """Cut data anywhere: at newlines mostly, inside a line sometimes (a line too long for one block)."""
    chance = random.Random(seed)
    cuts = {0, len(data)}
    for at, byte in enumerate(data):
        if chance.random() < (0.3 if byte == 10 else 0.01):
            cuts.add(at + 1)
    marks = sorted(cuts)
    out = []
    for start, end in itertools.pairwise(marks):
        part = data[start:end]
        begun = start > 0 and data[start - 1] != 10
        line = data.count(b"\n", 0, start) + 1
        out.append(Block("f", start, line, part, end == len(data), begun, newlines=part.count(b"\n")))
    return out


@pytest.mark.parametrize("seed", range(20))
def test_spans_are_found_again(seed):
    """Every span gives exactly its bytes, also when spans overlap or lie in one another."""
    chance = random.Random(seed)
    starts = sorted(chance.randrange(len(DATA)) for _ in range(30))
    spans = [(start, chance.randrange(1, 60)) for start in starts]
    got = list(texts(blocks(DATA, seed), spans))
    assert got == [DATA[start : start + length] for start, length in spans]


@pytest.mark.parametrize("seed", range(20))
def test_lines_are_those_of_the_file(seed):
    """Physical lines and their numbers do not depend on where the blocks were cut."""
    assert list(physical_lines(blocks(DATA, seed))) == list(enumerate(DATA.split(b"\n"), 1))


@pytest.mark.parametrize("around", [0, 1, 3, 100])
@pytest.mark.parametrize("seed", range(5))
def test_context_is_that_of_grep(seed, around):
    """Every wanted line with its neighbours, each line once, a mark where lines were left out."""
    chance = random.Random(seed)
    lines = DATA.split(b"\n")
    wanted = sorted(chance.sample(range(1, len(lines) + 1), 6))
    expected = sorted({n for w in wanted for n in range(w - around, w + around + 1) if 1 <= n <= len(lines)})
    got = list(lines_around(blocks(DATA, seed), wanted, around))
    shown = [line for line in got if line is not None]
    assert [line.number for line in shown] == expected
    assert [line.text for line in shown] == [lines[number - 1] for number in expected]
    assert [line.number for line in shown if line.wanted] == wanted
    gaps = sum(b > a + 1 for a, b in itertools.pairwise(expected))
    assert got.count(None) == gaps


def test_a_line_as_long_as_a_file_is_not_held():
    """Of a very long line only its beginning is kept."""
    data = b"a" * 100_000 + b"\nb\n"
    (first, second) = physical_lines(
        [Block("f", 0, 1, data[:50_000]), Block("f", 50_000, 1, data[50_000:], True, True)]
    )
    assert first == (1, b"a" * LONGEST)
    assert second == (2, b"b")


def test_gaps_of_a_filtered_copy_keep_true_places():
    """Blocks of a filtered copy have gaps; places behind them are still the original's."""
    parts = [Block("f", 0, 1, b"one\n"), Block("f", 100, 11, b"eleven\ntwelve\n", True, gap=True)]
    assert list(texts(parts, [(0, 3), (100, 6), (107, 6)])) == [b"one", b"eleven", b"twelve"]
    assert [line.number for line in lines_around(parts, [1, 12], 1) if line] == [1, 11, 12]


def test_crlf_is_no_part_of_a_line():
    """A line that ends in CR LF is shown without either."""
    assert list(physical_lines([Block("f", 0, 1, b"a\r\nb\r\n", True)])) == [(1, b"a"), (2, b"b")]
