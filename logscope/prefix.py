"""Peels what stands before a record on its line: colours, container and pod names, stamps, workers, ranks.

This module is responsible for the forms a prefix can have, in any order and number, and for the ranks, process,
origin and time they name. It must not know any record. Text is one character per byte (latin-1).

Sources of the forms: docs/reference/prefixes.md.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from logscope.model import NO_PREFIX, Prefix
from logscope.values import as_text

if TYPE_CHECKING:
    from collections.abc import Callable

# Colour codes whole, without the ESC byte, and with U+FFFD (EF BF BD) in its place: collectors do all three.
# No two of the forms begin alike: a run of codes can be read in one way only, so no run of them can take long.
_CODE = r"(?:(?:\xef\xbf\xbd)?\[(?:\d{1,3}(?:;\d{1,3})*)?m|\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*\x07)"
_COLOUR = re.compile(_CODE)
_STAMP = r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d(?:[.,]\d+)?)(Z|[+-]\d\d:?\d\d)?"
# A number of a prefix; what has more digits is none.
_N = r"\d{1,9}"
_RANK = re.compile(rf"([A-Z][A-Z_]*?)({_N})")
_COLUMNS = {"DP": "dp_rank", "PP": "pp_rank", "TP": "tp_rank", "EP": "ep_rank", "PID": "pid"}
# Worker_TP1, EngineCore_DP0: vLLM puts the rank into the process name.
_NAME_RANK = re.compile(rf"_(DP|PP|TP|EP)({_N})(?!\d)")
_LEVELS = "DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL|TRACE"

_Found = dict[str, "str | int | list[str] | list[tuple[str, int]]"]


def _time(found: re.Match[str], into: _Found) -> None:
    date, clock, zone = found[1], found[2], found[3]
    into["time"] = f"{date}T{clock.replace(',', '.')}{zone or ''}"


def _sglang(found: re.Match[str], into: _Found) -> None:
    """``[2026-02-10 12:00:00.123 DP0 PP1 TP3 EP3 PID7] ``; the oldest releases print no date."""
    date = found[1]
    into["time"] = f"{date}T{found[2]}" if date else found[2]
    _ranks(found[3], into)


def _ranks(text: str, into: _Found) -> None:
    for name, number in _RANK.findall(text):
        column = _COLUMNS.get(name)
        if column is not None:
            into[column] = int(number)
        else:
            into.setdefault("extra", []).append((name, int(number)))  # type: ignore[union-attr,arg-type]


def _formatter(found: re.Match[str], into: _Found) -> None:
    """``2025-12-02 14:56:34 ERROR 128139 [ TP0 EP0 scheduler.py:2885] ``: a formatter of the user's own."""
    into["time"] = f"{found[1]}T{found[2].replace(',', '.')}"
    into["pid"] = int(found[4])
    _ranks(found[5] or "", into)


def _worker(found: re.Match[str], into: _Found) -> None:
    """``(SGLangEngine pid=111711, ip=192.0.2.7) `` (Ray) and ``(Worker_TP1 pid=412) `` (vLLM)."""
    into["pid"] = int(found[2])
    name = as_text(found[1])
    for rank, number in _NAME_RANK.findall(name):
        into[_COLUMNS[rank]] = int(number)
    _origin(f"{name}/{found[3]}" if found[3] else name, into)


def _origin(name: str, into: _Found) -> None:
    into.setdefault("origin", []).append(name)  # type: ignore[union-attr,arg-type]


def _vllm(found: re.Match[str], into: _Found) -> None:
    """``INFO 07-20 18:11:49 [metrics.py:101] ``: no year is printed, and none is invented."""
    into["time"] = f"{found[1]}T{found[2]}"


def _trtllm(found: re.Match[str], into: _Found) -> None:
    """``[04/28/2025-09:56:44] [TRT-LLM] [I] ``: month first."""
    into["time"] = f"{found[3]}-{found[1]}-{found[2]}T{found[4]}"


def _named(found: re.Match[str], into: _Found) -> None:
    _origin(as_text(found[1]), into)


def _nothing(found: re.Match[str], into: _Found) -> None:
    del found, into


# ruff: noqa: ISC004 - long patterns are written in pieces
_FORMS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], _Found], None]], ...] = tuple(
    (re.compile(pattern), take)
    for pattern, take in (
        (rf"\[(?:(\d{{4}}-\d\d-\d\d) )?(\d\d:\d\d:\d\d(?:[.,]\d+)?)((?: [A-Z][A-Z_]*{_N})*)\][ ]?", _sglang),
        # Rust tracing: stamp, level, module, each between colour codes.
        (
            rf"{_STAMP}{_CODE}*[ \t]+(?:{_CODE}+[ \t]*)?(?:{_LEVELS}){_CODE}*[ \t]+"
            rf"{_CODE}*[\w.:-]+?{_CODE}*(?::{_CODE}*)?:{_CODE}*[ \t]*",
            _time,
        ),
        (
            rf"(\d{{4}}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:[.,]\d+)?) +({_LEVELS}) +({_N}) +"
            rf"\[ *((?:[A-Z][A-Z_]*{_N} +)*)[\w./-]+:\d+\][ ]?",
            _formatter,
        ),
        (rf"{_STAMP} +(?:-|\|) +(?:{_LEVELS}) +(?:-|\|)(?: +[\w.]+ +(?:-|\|))?[ ]?", _time),
        (rf"{_STAMP}[ \t]+", _time),
        (rf"\(([A-Za-z_][\w.:-]*) pid=({_N})(?:, ip=([0-9a-fA-F.:]+))?\)[ ]?", _worker),
        (rf"(?:{_LEVELS}) (\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.\d+)? \[?[\w./-]+:\d+\][ ]?", _vllm),
        (r"\[(pod/[^\]\s]+)\][ ]?", _named),
        (r"\[(rank\d+)\]:[ ]?", _named),
        (r"([A-Za-z][\w.-]*?-\d+) +\| ", _named),
        (r"\[(\d\d)/(\d\d)/(\d{4})-(\d\d:\d\d:\d\d)\] \[[\w-]+\] \[[A-Z]\][ ]?(?:\[[^\]]*\] )*", _trtllm),
        (r"\xef\xbb\xbf", _nothing),
    )
)
_BLANKS = re.compile(r"[ \t]+")
# A process letter stuck to the colour code of the stamp behind it: p0, d0 (prefill and decode workers).
_STUCK = re.compile(rf"([A-Za-z]\d{{1,4}}){_CODE}(?={_STAMP})")
# Where a chain of prefixes can begin when other text stands before it (a bar, the rest of another record).
_START = re.compile(r"[\[(]|\d{4}-\d\d-\d\d|(?:DEBUG|INFO|WARN|ERROR)")
# A prefix chain longer than this is none; keeps the search linear in hostile lines.
_LONGEST = 600


def peel(text: str, at: int = 0) -> tuple[int, Prefix]:
    """Peel every prefix form from ``at`` on; return where they end and what they said.

    A prefix peeled to the end of ``text`` is complete; otherwise what follows is the line's own text.
    """
    into: _Found = {}
    position = at
    length = len(text)
    indented_at: int | None = None
    while position < length:
        blanks = _BLANKS.match(text, position)
        if blanks is not None:
            # Blanks between prefixes belong to them; blanks before the line's own text are its indentation.
            indented_at, position = position, blanks.end()
            continue
        colour = _COLOUR.match(text, position)
        if colour is not None:
            indented_at, position = None, colour.end()
            continue
        for pattern, take in _FORMS:
            found = pattern.match(text, position)
            if found is not None:
                take(found, into)
                indented_at, position = None, found.end()
                break
        else:
            stuck = _STUCK.match(text, position)
            if stuck is None:
                if indented_at is not None:
                    position = indented_at
                break
            _origin(stuck[1], into)
            indented_at, position = None, stuck.end()
    if not into:
        return position, NO_PREFIX
    return position, _build(into)


def _build(into: _Found) -> Prefix:
    origin = into.pop("origin", None)
    extra = into.pop("extra", None)
    return Prefix(
        origin="/".join(origin) if isinstance(origin, list) else None,  # type: ignore[arg-type]
        extra=tuple(extra) if isinstance(extra, list) else (),  # type: ignore[arg-type]
        **into,  # type: ignore[arg-type]
    )


def peel_back(text: str) -> tuple[int, Prefix]:
    """Find the prefix that ends where ``text`` ends, whatever stands before it; return where it begins.

    When no prefix ends there, returns ``(len(text), NO_PREFIX)``.
    """
    length = len(text)
    for found in _START.finditer(text, max(0, length - _LONGEST)):
        end, prefix = peel(text, found.start())
        if end == length and prefix is not NO_PREFIX:
            return found.start(), prefix
    return length, NO_PREFIX


def strip_colours(text: str) -> str:
    """Return the text without colour codes."""
    return _COLOUR.sub("", text) if "[" in text else text
