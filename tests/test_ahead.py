"""Reading in a process of its own: the same occurrences, errors that arrive, and no process left behind."""

from __future__ import annotations

import gzip
import os
from typing import TYPE_CHECKING

import pytest
from conftest import CASE_LOGS, real_bytes
from test_parse import GRAMMAR, columns

from logscope import ahead
from logscope.ahead import parsed
from logscope.errors import InputError
from logscope.queries.summarize import Summarize
from logscope.run import answer
from logscope.sources.inputs import expand

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    # From 3.12 on Python warns where threads run, and those of a test runner do.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


class Blocks:
    """A source whose blocks are small."""

    def __init__(self, path: Path, size: int) -> None:
        self._source = expand(str(path))[0]
        self._size = size
        self.name = self._source.name
        self.warnings = self._source.warnings
        self.compressed = None
        self.original = None

    def blocks(self):
        """Yield small blocks."""
        return self._source.blocks(size=self._size)


@pytest.mark.parametrize("log", CASE_LOGS, ids=lambda log: log.stem)
@pytest.mark.parametrize("size", [200, 5000])
def test_same_occurrences(log: Path, size: int) -> None:
    """Every column of every occurrence and every count is the same, whichever process read it, at any block size."""
    here = list(parsed(Blocks(log, size), GRAMMAR, ahead=False))
    there = list(parsed(Blocks(log, size), GRAMMAR, ahead=True))
    assert [list(map(columns, step.occurrences)) for step in here] == [
        list(map(columns, step.occurrences)) for step in there
    ]
    assert here[-1].accounting == there[-1].accounting
    assert list(here[-1].invalid_lines) == list(there[-1].invalid_lines)


def test_tables_are_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the remembered payloads are forgotten on both sides, the occurrences stay the same."""
    monkeypatch.setattr(ahead, "REMEMBERED", 10)
    path = tmp_path / "a.log"
    path.write_bytes(real_bytes("healthy-topk1")[:300_000])
    here = [columns(o) for step in parsed(Blocks(path, 20_000), GRAMMAR, ahead=False) for o in step.occurrences]
    there = [columns(o) for step in parsed(Blocks(path, 20_000), GRAMMAR, ahead=True) for o in step.occurrences]
    assert here == there


def test_same_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A summary of a packed log says the same, warnings included, when its end is cut off."""
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(real_bytes("style-logger"))[:-2000])
    monkeypatch.setattr(ahead, "_pays", lambda _: False)
    here = answer(Summarize(), [str(path)])
    monkeypatch.setattr(ahead, "_pays", lambda _: True)
    there = answer(Summarize(), [str(path)])
    assert here.as_dict() == there.as_dict()
    assert any("gz archive" in note for note in here.notes)


def test_errors_arrive(tmp_path: Path) -> None:
    """What the other process cannot open is said here, in the same words."""
    path = tmp_path / "a.log"
    path.write_text("x\n")
    (source,) = expand(str(path))
    path.unlink()
    with pytest.raises(InputError) as here:
        list(parsed(source, GRAMMAR, ahead=False))
    with pytest.raises(InputError) as there:
        list(parsed(source, GRAMMAR, ahead=True))
    assert str(here.value) == str(there.value)


def test_no_process_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who stops reading in the middle leaves no process behind."""
    fork, started = os.fork, []

    def noted() -> int:
        started.append(fork())
        return started[-1]

    monkeypatch.setattr(os, "fork", noted)
    path = tmp_path / "a.log"
    path.write_bytes(real_bytes("healthy-topk1"))
    steps = parsed(Blocks(path, 1000), GRAMMAR, ahead=True)
    next(steps)
    steps.close()
    (child,) = started
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_reader_that_dies_is_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is ended in the middle is an error, never a shorter log."""
    path = tmp_path / "a.log"
    path.write_bytes(real_bytes("healthy-topk1")[:100_000])
    original = ahead._send
    sent = []

    def dies(write: int, frame: tuple[object, ...]) -> None:
        sent.append(frame)
        if len(sent) == 3:
            os._exit(9)
        original(write, frame)

    monkeypatch.setattr(ahead, "_send", dies)
    with pytest.raises(InputError, match="not read to its end"):
        list(parsed(Blocks(path, 1000), GRAMMAR, ahead=True))
