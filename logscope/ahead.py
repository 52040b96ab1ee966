"""One file, read and parsed a little ahead, in a process of its own, of who labels its records.

This module is responsible for :func:`parsed`, which gives a file's occurrences block by block, and for carrying them
from one process to another. It must not know what is done with them. Both ways give the same occurrences, and the
other process reads the file from its beginning to its end like this one would: nothing depends on where it is cut.

What is carried is small: every distinct payload and prefix once, and four numbers for an occurrence.
"""

from __future__ import annotations

import contextlib
import gc
import marshal
import os
import signal
import sys
import threading
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logscope.errors import InputError
from logscope.model import NO_PREFIX, Accounting, Occurrence, Payload, Prefix
from logscope.parse import Parser
from logscope.sources.streams import widen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from logscope.grammar import Grammar
    from logscope.sources.streams import Source

# Plain bytes from which a second process pays; of packed ones fewer do.
WORTH = 32 << 20
WORTH_PACKED = 2 << 20
# Distinct payloads remembered on both sides; bounds memory, never changes a result.
REMEMBERED = 1 << 15
_HEADER = 8
_PAYLOAD = tuple(Payload.__slots__)
_PREFIX = tuple(Prefix.__slots__)
_ACCOUNTING = tuple(Accounting.__slots__)


@dataclass(slots=True)
class Step:
    """What one block held: its records, to be taken once; counts and lines that are not UTF-8, so far; its bytes."""

    occurrences: Iterable[Occurrence]
    accounting: Accounting
    invalid_lines: Sequence[int]
    size: int


def parsed(source: Source, grammar: Grammar, *, ahead: bool | None = None) -> Iterator[Step]:
    """Yield what each block of a source holds, in file order; the last step may hold what waited for the end.

    ``ahead``: in a process of its own; None: where that pays and can be done.

    Raises
    ------
    InputError
        when the source cannot be read.

    """
    if ahead is None:
        ahead = _pays(source)
    return _ahead(source, grammar) if ahead else _here(source, grammar)


def _pays(source: Source) -> bool:
    """Tell whether a second process is worth its start, and may be forked from this one."""
    size = source.size
    if size is None and source.compressed is not None and source.path is not None:
        with contextlib.suppress(OSError):
            size = Path(source.path).stat().st_size * (WORTH // WORTH_PACKED)
    if size is None or size < WORTH or not hasattr(os, "fork"):
        return False
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # A fork knows nothing of the threads of its parent, whose locks it inherits.
    return cores > 1 and threading.active_count() == 1 and "polars" not in sys.modules


def _here(source: Source, grammar: Grammar) -> Iterator[Step]:
    parser = Parser(grammar, source.name)
    for block in source.blocks():
        yield Step(parser.feed(block), parser.accounting, parser.invalid_lines, len(block.data))
    yield Step(parser.close(), parser.accounting, parser.invalid_lines, 0)


def _ahead(source: Source, grammar: Grammar) -> Iterator[Step]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _work(source, grammar, read, write)
    os.close(write)
    unpacker = _Unpacker()
    ended = False
    try:
        while (frame := _receive(read)) is not None:
            if frame[0] == "step":
                yield unpacker.step(frame)
                continue
            ended = True
            if frame[0] == "error":
                import pickle  # noqa: PLC0415 - for errors only

                raise pickle.loads(frame[1])  # noqa: S301 - made by this very program
            source.warnings[:], source.compressed, source.original = frame[1:]
    finally:
        os.close(read)
        if not ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if not ended:
        how = f"by signal {status & 127}" if status & 127 else "early"
        raise InputError(f"'{source.name}' was not read to its end", why=f"the process that read it was ended {how}")


def _receive(read: int) -> tuple[Any, ...] | None:
    """Return the next frame, None when there is none."""
    header = _exactly(read, _HEADER)
    if header is None:
        return None
    body = _exactly(read, int.from_bytes(header, "little"))
    return None if body is None else marshal.loads(body)  # noqa: S302 - made by this very program


def _exactly(read: int, count: int) -> bytes | bytearray | None:
    data = os.read(read, count)
    if len(data) == count:
        return data
    whole = bytearray(data)
    while len(whole) < count:
        more = os.read(read, min(count - len(whole), 1 << 20))
        if not more:
            return None
        whole += more
    return whole


# ------------------------------------------------------------------------------------------------- the other process


def _work(source: Source, grammar: Grammar, read: int, write: int) -> None:
    """Be the process that reads: send every step, then end without a trace of what was inherited."""
    status = 1
    try:
        # Nothing made here refers to itself, and the search for such things costs a third of the time.
        gc.disable()
        os.close(read)
        widen(write)
        packer = _Packer()
        last: tuple[Any, ...]
        try:
            for step in _here(source, grammar):
                _send(write, packer.frame(step))
            last = ("end", source.warnings, source.compressed, source.original)
        except Exception as error:  # noqa: BLE001 - raised again where it can be shown
            import pickle  # noqa: PLC0415 - for errors only

            last = ("error", pickle.dumps(error))
        _send(write, last)
        status = 0
    except BaseException:  # noqa: BLE001, S110 - nobody listens any more, or the user interrupts both processes
        pass
    finally:
        os._exit(status)


def _send(write: int, frame: tuple[Any, ...]) -> None:
    body = marshal.dumps(frame)
    for part in (len(body).to_bytes(_HEADER, "little"), body):
        view = memoryview(part)
        while view:
            view = view[os.write(write, view) :]


class _Packer:
    """Turns steps into frames of plain values; payloads and prefixes are sent once and named by number."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._payloads: dict[Payload, int] = {}
        self._prefixes: dict[int, int] = {id(NO_PREFIX): 0}
        self._kept: list[Prefix] = []  # their ids stay their own
        self._forms: dict[int, tuple[int, Payload]] = {}

    def frame(self, step: Step) -> tuple[Any, ...]:
        """Return a step as a frame."""
        fresh = len(self._payloads) > REMEMBERED or len(self._kept) > REMEMBERED
        if fresh:
            self._forget()
        lines, offsets, prefixes, payloads = tuple(zip(*step.occurrences, strict=True)) or ((), (), (), ())
        return (
            "step",
            fresh,
            self._new_prefixes(prefixes),
            self._new_payloads(payloads),
            array("q", lines).tobytes(),
            array("q", offsets).tobytes(),
            array("I", map(self._prefixes.__getitem__, map(id, prefixes))).tobytes(),
            array("I", map(self._payloads.__getitem__, payloads)).tobytes(),
            tuple([getattr(step.accounting, name) for name in _ACCOUNTING]),
            list(step.invalid_lines),
            step.size,
        )

    def _new_prefixes(self, prefixes: tuple[Prefix, ...]) -> list[tuple[Any, ...]]:
        known, kept = self._prefixes, self._kept
        new = []
        for number, prefix in dict(zip(map(id, prefixes), prefixes, strict=True)).items():
            if number not in known:
                known[number] = len(known)
                kept.append(prefix)
                new.append(tuple([getattr(prefix, name) for name in _PREFIX]))
        return new

    def _new_payloads(self, payloads: tuple[Payload, ...]) -> list[tuple[Any, ...]]:
        known, forms = self._payloads, self._forms
        rows: list[tuple[Any, ...]] = []
        for payload in dict.fromkeys(payloads):
            if payload in known:
                continue
            known[payload] = len(known)
            form = forms.get(id(payload.fields))
            # Payloads read the quick way share the fields, and all else but these three, with the first of their kind.
            if form is not None and payload.reason is None and payload.head_resolution is None:
                rows.append((form[0], payload.norm, payload.head, payload.length))
                continue
            if payload.intact == "whole" and payload.reason is None and payload.head is not None:
                forms[id(payload.fields)] = (len(known) - 1, payload)
            rows.append(tuple([getattr(payload, name) for name in _PAYLOAD]))
        return rows


class _Unpacker:
    """Turns frames back into steps."""

    def __init__(self) -> None:
        self._payloads: list[Payload] = []
        self._prefixes: list[Prefix] = [NO_PREFIX]

    def step(self, frame: tuple[Any, ...]) -> Step:
        """Return the step a frame was made of."""
        _, fresh, prefixes, rows, lines, offsets, prefix_numbers, payload_numbers, counts, invalid, size = frame
        if fresh:
            self._payloads = []
            self._prefixes = [NO_PREFIX]
        known = self._prefixes
        known.extend([Prefix(*values) for values in prefixes])
        self._add_payloads(rows)
        occurrences = zip(
            _numbers("q", lines),
            _numbers("q", offsets),
            map(known.__getitem__, _numbers("I", prefix_numbers)),
            map(self._payloads.__getitem__, _numbers("I", payload_numbers)),
            strict=True,
        )
        return Step(occurrences, Accounting(*counts), invalid, size)

    def _add_payloads(self, rows: list[tuple[Any, ...]]) -> None:
        payloads = self._payloads
        for row in rows:
            if len(row) > 4:
                payloads.append(Payload(*row))
                continue
            number, *values = row
            payloads.append(payloads[number].sibling(*values))


def _numbers(kind: str, data: bytes) -> array[int]:
    numbers: array[int] = array(kind)
    numbers.frombytes(data)
    return numbers
