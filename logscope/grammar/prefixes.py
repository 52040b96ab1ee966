"""Peels what stands before a record on its line: colours, container and pod names, stamps, workers, ranks.

This module is responsible for the forms a prefix can have, in any order and number, and for the ranks, process,
origin and time they name. It must not know any record. Text is one character per byte (latin-1).

Sources of the forms: docs/reference/prefixes.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logscope.grammar import OVERTIMES, TIME_LIMIT
from logscope.grammar.literals import as_text
from logscope.model import NO_PREFIX, Prefix

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Colour codes whole, without the ESC byte, and with U+FFFD (EF BF BD) in its place: collectors do all three.
# No two of the forms begin alike: a run of codes can be read in one way only, so no run of them can take long.
_COLOUR = re.compile(
    r"\[(?:\d{1,3}(?:;\d{1,3})*m|m(?![\w.]))|\xef\xbf\xbd\[[0-9;]{0,12}m|\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*\x07"
)
# A number of a prefix; what has more digits is none.
_N = r"\d{1,9}"
_RANK = re.compile(rf"([A-Z][A-Z_]*?)({_N})")
_COLUMNS = {"DP": "dp_rank", "PP": "pp_rank", "TP": "tp_rank", "EP": "ep_rank", "PID": "pid"}
# Worker_TP1, EngineCore_DP0: vLLM puts the rank into the process name.
_NAME_RANK = re.compile(rf"_(DP|PP|TP|EP)({_N})(?!\d)")
_LABEL = re.compile(r'([\w.]+)="((?:[^"\\]|\\.)*)"')
# Labels that differ between the lines of one process.
_NO_ORIGIN = frozenset({"level", "detected_level", "stream"})
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(slots=True)
class Form:
    """One form of a prefix: a pattern whose named groups are the parts of :class:`~logscope.model.Prefix`.

    ``time``, or ``date`` (or ``year``, ``month``, ``day``), ``clock`` and ``zone``; ``pid``, ``dp_rank``, ``pp_rank``,
    ``tp_rank``, ``ep_rank``; ``ranks`` (`` TP0 EP1``); ``rank``, of no known kind, and what begins so; ``labels``
    (``a="b", c="d"``); ``origin``, and whatever begins so, joined in the order of the pattern; ``level``. ``first``:
    the characters it can begin with (``0`` any digit, ``a`` any letter). An ``outer`` form is a bare word that only
    a collector prints: it is none behind what the process itself prints. ``taught`` forms stand in a grammar file,
    and their patterns are those of ``regex``; ``overtimes`` counts the texts on which one ran into the time limit.
    """

    name: str
    pattern: Any
    first: str = ""
    outer: bool = False
    taught: bool = False
    overtimes: int = 0

    def match(self, text: str, at: int) -> Any:
        """Match at a place; None when it does not, or is given up."""
        if not self.taught:
            if isinstance(self.pattern, str):
                # Most logs show few of the forms: the others are never compiled.
                self.pattern = re.compile(self.pattern)
            return self.pattern.match(text, at)
        try:
            return self.pattern.match(text, at, timeout=TIME_LIMIT) if self.overtimes < OVERTIMES else None
        except TimeoutError:
            self.overtimes += 1
            return None


# ruff: noqa: ISC004 - long patterns are written in pieces
_LEVEL = "(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL|TRACE)"
_CLOCK = r"(?P<clock>\d\d:\d\d:\d\d(?:[.,]\d+)?)"
_DAY = r"(?P<date>\d{4}-\d\d-\d\d)"
_STAMP = rf"{_DAY}[T ]{_CLOCK}(?P<zone>Z|[+-]\d\d:?\d\d)?"
_IP = r"[0-9a-fA-F.:]+"
# Names that Kubernetes makes end in letters without vowels, or in a number; a container's is one more word.
_MADE = r"[a-z0-9][a-z0-9.-]{0,60}-[bcdfghjklmnpqrstvwxz2456789]{5}"
_UNIT = rf"(?P<origin_unit>[^\s\[\]:]+)\[(?P<pid>{_N})\]: ?"
# What a process prints itself, and the bare words that collectors print.
OWN = frozenset({"SGLang", "Rust tracing", "formatter", "logging", "glog", "vLLM", "TensorRT-LLM", "llama.cpp"})
_BARE = frozenset({"docker compose", "llama.cpp router", "stern", "srun", "pdsh"})
_FORMS = tuple(
    Form(name, pattern, first, outer=name in _BARE)
    for name, first, pattern in (
        ("SGLang", "[", rf"\[(?:{_DAY} )?{_CLOCK}(?P<ranks>(?: [A-Z][A-Z_]*{_N})*)\] ?"),
        ("Rust tracing", "0", rf"{_STAMP}[ \t]+{_LEVEL}[ \t]+[\w.:-]+:(?:[ \t]+|$)"),
        (
            "formatter",
            "0",
            rf"{_STAMP} +{_LEVEL} +(?P<pid>{_N}) +\[ *(?P<ranks>(?:[A-Z][A-Z_]*{_N} +)*)[\w./-]+:\d+\] ?",
        ),
        ("logging", "0", rf"{_STAMP} +[-|] +{_LEVEL} +[-|](?: +[\w.]+ +[-|])? ?"),
        ("logcli", "0", rf'{_STAMP}[ \t]+\{{(?P<labels>(?:[\w.]+="(?:[^"\\]|\\.)*+"(?:, *)?)*+)\}}[ \t]+'),
        (
            "journald",
            "[0a",
            rf"(?:(?:[A-Z][a-z]{{2}} )?{_STAMP}(?: [A-Z]{{3,4}})?|\d{{10}}\.\d{{6}}|\[ *\d+\.\d{{6}}\]) "
            rf"(?P<origin_host>[\w.-]+) {_UNIT}",
        ),
        (
            "syslog",
            "<a",
            rf"(?:<\d{{1,3}}>)?(?P<month>{'|'.join(_MONTHS)}) (?P<day>[ \d]\d) {_CLOCK} "
            rf"(?:(?P<origin_host>[\w.:-]+) )?(?P<origin_unit>[^\s\[\]:]+)(?:\[(?P<pid>{_N})\])?: ?",
        ),
        (
            "syslog",
            "<a",
            rf"<\d{{1,3}}>\d{{1,2}} (?:{_STAMP}|-) (?P<origin_host>\S+) (?P<origin_unit>\S+) "
            rf'(?:(?P<pid>{_N})|\S+) \S+ (?:-|(?:\[[^\]"]*(?:"(?:[^"\\]|\\.)*+"[^\]"]*)*+\])+) ?',
        ),
        ("stamp", "0", rf"{_STAMP}[ \t]+"),
        ("Ray", "(", rf"\((?:(?P<origin>[A-Za-z_][\w.:<>-]*) )?pid=(?P<pid>{_N})(?:, ip=(?P<origin_ip>{_IP}))?\) ?"),
        ("Ray", "(", rf"\((?P<origin>raylet|gcs_server|autoscaler)(?:, ip=(?P<origin_ip>{_IP}))?(?: [\w+]+)?\) ?"),
        (
            "glog",
            "[a",
            rf"\[?[IWEF](?P<month>\d\d?)(?P<day>\d\d) {_CLOCK} +(?:(?P<pid>{_N}) +)?[\w./-]+:\d+\] ?",
        ),
        ("vLLM", "a", rf"{_LEVEL} (?P<date>\d\d-\d\d) (?P<clock>\d\d:\d\d:\d\d)(?:\.\d+)? \[?[\w./-]+:\d+\] ?"),
        ("kubectl", "[", r"\[(?P<origin>pod/[^\]\s]+)\] ?"),
        ("torchrun", "[", r"\[(?P<origin>[A-Za-z_][\w-]*?\d+)\]: ?"),
        ("docker compose", "a", r"(?P<origin>[A-Za-z][\w.-]*?[-_]\d+|[A-Za-z][\w.@-]*(?= {2})) +\| "),
        (
            "TensorRT-LLM",
            "[",
            rf"(?:\[(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>\d{{4}})-{_CLOCK}\] )?\[TRT(?:-LLM)?\] "
            rf"(?:\[(?:MPI_Rank|RANK) (?P<rank>{_N})\] ?)?\[[A-Z]\] ?(?:\[_torch\] ?)?"
            rf"(?:\[(?:MPI_Rank|RANK) (?P<rank_behind>{_N})\] ?)?(?:\[[^\]]*\] )*",
        ),
        ("llama.cpp", "0", r"\d+\.\d\d\.\d{3}\.\d{3} [IWEDF] "),
        ("llama.cpp router", "[", r"\[(?P<origin>\d{4,5})\] +"),
        (
            "stern",
            "a0",
            rf"(?:(?:(?P<origin_space>[a-z0-9-]+) )?(?P<origin_pod>{_MADE})|(?P<origin>[a-z][a-z0-9.-]*-\d{{1,4}})) "
            r"(?P<origin_word>[a-z0-9-]+)(?: (?P<date>\d\d-\d\d) (?P<clock>\d\d:\d\d:\d\d))? ",
        ),
        ("srun", "0", rf"(?P<origin>{_N}): "),
        ("pdsh", "a0", r"(?P<origin>(?=[a-z.-]*\d)[a-z0-9]+(?:[.-]+[a-z0-9]+)*): "),
        # A process letter stuck to the stamp behind it: p0, d0 (prefill and decode workers).
        ("trace letter", "a", r"(?P<origin>[A-Za-z]\d{1,4}?)(?=\d{4}-\d\d-\d\d[T ])"),
        ("byte order mark", "a", r"\xef\xbb\xbf"),
    )
)
# The forms that can begin with a character, by the character or its kind: a digit, a letter.
_BY_FIRST = {kind: tuple(form for form in _FORMS if kind in form.first) for kind in "[(<0a"}
_BLANKS = re.compile(r"[ \t]+")
# Where a chain of prefixes can begin when other text stands before it (a bar, the rest of another record).
_START = re.compile(r"[\[(]|\d{4}-\d\d-\d\d|(?:DEBUG|INFO|WARN|ERROR)")
# A prefix chain longer than this is none; keeps the search linear in hostile lines.
_LONGEST = 600


def layers(text: str, at: int = 0, taught: Sequence[Form] = ()) -> Iterator[tuple[Form, Any]]:
    """Yield the forms that stand one behind the other from ``at`` on, each with its match; colours are none."""
    outside = True
    while True:
        blanks = _BLANKS.match(text, at)
        begin = blanks.end() if blanks is not None else at
        char = text[begin : begin + 1]
        kind = "0" if char.isdigit() else "a" if char.isalpha() else char
        for form in (*taught, *_BY_FIRST.get(kind, ())):
            found = form.match(text, begin) if outside or not form.outer else None
            if found is not None and found.end() > begin:
                break
        else:
            return
        outside = outside and form.name not in OWN
        at = found.end()
        yield form, found


def peel(text: str, at: int = 0, taught: Sequence[Form] = ()) -> tuple[int, Prefix]:
    """Peel every prefix form from ``at`` on; return where they end and what they said.

    A prefix peeled to the end of ``text`` is complete; otherwise what follows is the line's own text. Blanks before
    that text are its indentation. ``taught`` forms are tried before those known to all.
    """
    codes = [(found.start() - at, found.end() - found.start()) for found in _COLOUR.finditer(text, at)]
    plain, end, start = (_COLOUR.sub("", text[at:]), 0, at) if codes else (text, at, 0)
    into: dict[str, Any] = {}
    for form, found in layers(plain, end, taught):
        _take(form, found, into)
        end = found.end()
    if (blanks := _BLANKS.match(plain, end)) is not None and blanks.end() == len(plain):
        end = len(plain)
    for code in codes:
        # Codes that stand where the prefixes end belong to them.
        if code[0] > end:
            break
        end += code[1]
    end += start
    if not into:
        return end, NO_PREFIX
    origin, extra = into.pop("origin", None), into.pop("extra", ())
    return end, Prefix(origin="/".join(origin) if origin else None, extra=tuple(extra), **into)


def _take(form: Form, found: Any, into: dict[str, Any]) -> None:
    """Put what one form says into the parts of a prefix; what stands further in overrides."""
    said = {name: part for name, part in found.groupdict().items() if part}
    if "clock" in said:
        month = said.get("month", "")
        number = f"{_MONTHS.index(month) + 1:02}" if month in _MONTHS else month and month.zfill(2)
        days = (said.get("year"), number, said.get("day", "").replace(" ", "0"))
        date = said.get("date") or "-".join(part for part in days if part)
        clock = said["clock"].replace(",", ".") + said.get("zone", "")
        into["time"] = f"{date}T{clock}" if date else clock
    for name, part in said.items():
        if name.startswith("origin") and part != "-":
            into.setdefault("origin", []).append(as_text(part))
            into.update((_COLUMNS[rank], int(number)) for rank, number in _NAME_RANK.findall(part))
        elif name == "labels":
            values = [as_text(value) for label, value in _LABEL.findall(part) if label not in _NO_ORIGIN]
            into.setdefault("origin", []).extend(values)
        elif name == "ranks":
            for rank, number in _RANK.findall(part):
                if rank in _COLUMNS:
                    into[_COLUMNS[rank]] = int(number)
                else:
                    into.setdefault("extra", []).append((rank, int(number)))
        elif name.startswith("rank"):
            into.setdefault("extra", []).append(("rank", int(part)))
        elif name in _COLUMNS.values() and part.isdecimal():
            into[name] = int(part[:9])
        elif name == "time":
            into["time"] = as_text(part)
        elif name == "level" and form.taught:
            into.setdefault("extra", []).append(("level", as_text(part)))


def peel_back(text: str, taught: Sequence[Form] = ()) -> tuple[int, Prefix]:
    """Find the prefix that ends where ``text`` ends, whatever stands before it; return where it begins.

    When no prefix ends there, returns ``(len(text), NO_PREFIX)``.
    """
    length = len(text)
    low = max(0, length - _LONGEST)
    starts = {found.start() for found in _START.finditer(text, low)}
    starts.update(at for form in taught for at in range(low, length) if form.match(text, at))
    for start in sorted(starts):
        end, prefix = peel(text, start, taught)
        if end == length and prefix is not NO_PREFIX:
            return start, prefix
    return length, NO_PREFIX


def strip_colours(text: str) -> str:
    """Return the text without colour codes."""
    return _COLOUR.sub("", text) if "[" in text else text
