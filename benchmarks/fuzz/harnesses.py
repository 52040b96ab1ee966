"""What the fuzzers feed and what must hold: one function per door through which foreign bytes come in.

Each takes bytes and raises AssertionError (or whatever broke) when a promise is broken: the reader gives every byte
once, the parser loses and invents nothing in any block size, loaders answer with their own error or a value, the
literal reader stays within its text. ``fuzz.py`` drives them by coverage; ``tests/test_fuzz.py`` replays what was found.
"""

# ruff: noqa: S101, PT017 - a broken promise is an AssertionError here: fuzzers and tests look for it.

from __future__ import annotations

import io
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logscope.contract import load_contract
from logscope.errors import ContractError, GrammarError, InputError
from logscope.grammar import Grammar, load, load_file, peel, peel_back
from logscope.grammar.literals import Unfinished, Unreadable, as_json, read_value
from logscope.sources.blocks import FILTERED, Block, Window, cut_blocks
from logscope.sources.streams import Source, form_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logscope.model import Occurrence

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from doors import Parser

_GRAMMAR: list[Grammar] = []


def grammar() -> Grammar:
    """Return the shipped grammars, loaded once."""
    if not _GRAMMAR:
        _GRAMMAR.append(load())
    return _GRAMMAR[0]


def columns(occurrence: Occurrence) -> tuple[Any, ...]:
    """Return everything an occurrence says, in a form where nan equals nan."""
    line, offset, prefix, payload = occurrence
    return line, offset, repr(prefix), repr({name: getattr(payload, name) for name in type(payload).__slots__})


def pieces(data: bytes, size: int) -> Iterator[Block]:
    """Yield bytes as blocks the reader would make, whatever their first bytes look like."""
    stream = io.BytesIO(data)
    yield from cut_blocks(Window(lambda _: stream.read(64)), "x.log", size=size, slack=2 * len(data) + 64)


def parsed(blocks: Iterator[Block], *, quick: bool) -> tuple[Parser, list[Occurrence]]:
    """Parse blocks of one file."""
    parser = Parser(grammar(), "x.log", quick=quick)
    found = [occurrence for block in blocks for occurrence in parser.feed(block)]
    return parser, found + parser.close()


def parse(data: bytes) -> None:
    """Parse the same bytes quickly, exactly and in small blocks: alike, in order, and accounted for."""
    fast_parser, fast = parsed(iter([Block("x.log", 0, 1, data, final=True)]), quick=True)
    slow_parser, slow = parsed(iter([Block("x.log", 0, 1, data, final=True)]), quick=False)
    small_parser, small = parsed(pieces(data, 7), quick=True)
    known = list(map(columns, fast))
    assert known == list(map(columns, slow)), "the quick and the exact way differ"
    assert known == list(map(columns, small)), "the block size changes what is read"
    accounting = fast_parser.accounting
    assert accounting == slow_parser.accounting == small_parser.accounting
    counted = [payload for _, _, _, payload in fast if payload.kind != "mark"]
    assert accounting.records == len(counted), "records are lost between the parser and its accounting"
    assert accounting.bytes == len(data)
    assert accounting.lines == data.count(b"\n") + (bool(data) and not data.endswith(b"\n"))
    assert 0 <= accounting.other_lines <= accounting.lines
    assert accounting.invalid_utf8_bytes == sum(
        0xDC80 <= ord(char) <= 0xDCFF for char in data.decode("utf-8", "surrogateescape")
    )
    offsets = [offset for _, offset, _, _ in fast]
    assert offsets == sorted(offsets)
    for line, offset, _, payload in fast:
        assert line == data.count(b"\n", 0, offset) + 1
        assert 0 <= offset < len(data)
        assert payload.length <= len(data) - offset


def read(data: bytes) -> None:
    """Read bytes as a stream and as a file, in two block sizes: the same bytes, true places, one final block."""
    size, data = (data[0] % 40 + 1, data[1:]) if data else (1, b"")
    sources = [Source("x.log", stream=io.BytesIO(data)), Source("x.log", stream=io.BytesIO(data))]
    try:
        small, large = (list(source.blocks(size=step)) for source, step in zip(sources, (size, 4096), strict=True))
    except InputError:
        return
    for blocks in (small, large):
        assert [block.final for block in blocks] == [False] * (len(blocks) - 1) + [True]
        for before, after in pairwise(blocks):
            if not after.gap:
                assert after.offset == before.offset + len(before.data)
                assert after.line == before.line + before.newlines
                assert after.continues == (bool(before.data) and not before.data.endswith(b"\n"))
        assert all(block.newlines == block.data.count(b"\n") for block in blocks)
    if not data.startswith(FILTERED):
        assert b"".join(block.data for block in small) == b"".join(block.data for block in large)
        if form_of(data[:18]) is None:
            assert b"".join(block.data for block in small) == data
    assert sources[0].warnings == sources[1].warnings


def _file(data: bytes, name: str, load_it: Callable[[Path], Any], errors: tuple[type[Exception], ...]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        try:
            return load_it(path)
        except errors as error:
            assert str(error).strip()
    return None


def grammar_file(data: bytes) -> None:
    """Load bytes as a grammar: a grammar, or a GrammarError."""
    _file(data, "own.toml", load_file, (GrammarError,))


def contract_file(data: bytes) -> None:
    """Load bytes as a contract: a contract that survives its own TOML form, or a ContractError."""
    contract = _file(data, "contract.toml", load_contract, (ContractError,))
    if contract is not None:
        again = _file(contract.to_toml().encode(), "contract.toml", load_contract, ())
        ignored = {"source"}
        assert again.model_dump(exclude=ignored) == contract.model_dump(exclude=ignored)


def literal(data: bytes) -> None:
    """Read bytes as one printed value: a value within the text, or a place in it where reading stopped."""
    text = data.decode("latin-1")
    for begin in {0, len(text) // 2}:
        try:
            value = read_value(text, begin)
        except (Unfinished, Unreadable) as stopped:
            assert begin <= stopped.at <= len(text)
            continue
        assert begin < value.end <= len(text)
        as_json(value.value)
    end, _ = peel(text)
    assert 0 <= end <= len(text)
    begin, _ = peel_back(text)
    assert 0 <= begin <= len(text)


HARNESSES: dict[str, Callable[[bytes], None]] = {
    "parse": parse,
    "read": read,
    "grammar": grammar_file,
    "contract": contract_file,
    "literal": literal,
}
