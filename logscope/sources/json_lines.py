"""Lines that are JSON objects: docker's json-file, JSON loggers, exports of journald and of log stores.

This module is responsible for the keys that such objects have for a text, its time and its origin, and for where the
text stands inside them. It must not know blocks, nor what the text says.

Sources of the forms: json-file, the manual of docker's logging drivers (parts of 16 KiB without a newline at their
end); journald, systemd's "Journal Export Formats" and "systemd.journal-fields"; Google Cloud, the reference of
LogEntry; keys of collectors and loggers, the manuals of fluentd, Fluent Bit, Loki and the Elastic Common Schema.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from logscope.model import NO_PREFIX, Prefix, within
from logscope.sources.places import Line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SAMPLE = 32  # lines that tell whether texts end with a newline of their own
_PREFIX = 256  # text before an object, such as a tag
_LONGEST = 1 << 20  # bytes of a pretty-printed object
_TEMPLATES, _KNOWN = 16, 4096
_TRIES = 16  # places in a broken line where a whole object may begin

_SURE = 3  # so many keys of messages are enough alone; the others need a time, a label or a level beside them
_RANK_COLUMNS = ("tp_rank", "dp_rank", "pp_rank", "ep_rank", "rank", "pid")
# What keys are about (small letters and digits alone), the most telling first within a kind, the outermost label first.
_KEYS = {
    name: (kind, place)
    for kind, groups in {
        "message": ("log", "message", "msg", "textpayload", "line", "text", "body", "shortmessage"),
        "time": (
            "time", "timestamp", "asctime", "ts", "datetime", "sourcerealtimetimestamp", "realtimetimestamp", "date"
        ),
        "label": (
            "hostname host node nodename machine", "systemdunit unit service servicename app appname job",
            "pod podname syslogidentifier logstream", "container containername tag", "replica worker instance",
        ),
        "level": ("level levelname severity loglevel lvl priority",),
        "trace": ("excinfo exctext exception traceback stacktrace stack",),
        "stream": ("stream",), "part": ("p logtag partialmessage",), "last": ("partiallast",),
        "rank": ("rank globalrank localrank workerrank",), "pid": ("pid processid process",),
        **{f"{one}_rank": (f"{one} {one}rank",) for one in ("tp", "dp", "pp", "ep")},
    }.items()
    for place, names in enumerate(groups)
    for name in names.split()
}  # fmt: skip
_TEXT = rb'[^"\\\n]*+(?:\\.[^"\\\n]*+)*+'  # of a JSON string
_STRING = re.compile(_TEXT)
_NUMERAL = rb"-?\d[\d.eE+-]*"
_TOKEN = re.compile(rb'("%s"\s*:)|("%s")|(-?\d[\d.eE+-]*)|[{\[]|[}\]]|[^"{}\[\]\d-]+' % (_TEXT, _TEXT))
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[^u])", re.DOTALL)
_NUMBER = re.compile(rb"\d+")
_PRETTY = re.compile(rb"\s*(?:\[|\{|\[\s*\{)[ \t]*\r?\n")
# fluentd's file and stdout outputs put time and tag before the object.
_TAGGED = re.compile(rb"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.]*(?:Z| ?[+-]\d\d:?\d\d)?)[ \t]+([^\s:]+):?[ \t]+")
_OBJECT = re.compile(rb'(?<!:)(?<!: )\{\s*"')  # none that is a value of another
_OPENS = re.compile(rb"([ \t]*)(?:\[[ \t]*)?\{[ \t]*\r?\n")


class _Found(NamedTuple):
    """What a JSON object says: its message, under which key, and everything else that is known."""

    key: str
    message: str | list[int]
    trace: tuple[str, str] | None  # its key and text
    time: str | None
    origin: Prefix
    stream: str | None
    part: bool | None  # printed: the text goes on in the next line, or not


def said_by(text: bytes) -> _Found | None:
    """Return what the JSON object that ends a text says; None where there is none, or no message in it."""
    begin = text.find(b"{", 0, _PREFIX)
    if begin < 0 or not text.rstrip(b" \t\r\n,]").endswith(b"}"):
        return None
    try:
        thing = json.loads(text[begin:].rstrip(b" \t\r\n,]").decode("utf-8", "surrogateescape"), strict=False)
    except (ValueError, RecursionError):
        return None
    said: dict[str, list[tuple[int, int, str, Any]]] = defaultdict(list)  # by kind: depth, place, key, value
    objects: list[tuple[dict[str, Any], int, str]] = [(thing, 0, "")]
    for inside, depth, parent in objects:
        for key, value in inside.items():
            if isinstance(value, dict):
                objects.append((value, depth + 1, key))
                continue
            kind, place = _kind(key, parent)
            if kind and _FITS.get(kind, _is_said)(value):
                said[kind].append((depth, place, key, value))
    messages = said.pop("message", [])
    known = any(kind not in _RANK_COLUMNS for kind in said)
    if not messages:
        return None
    _, place, key, message = min(messages, key=itemgetter(0, 1))
    if place >= _SURE and not known:
        return None

    def first(kind: str) -> tuple[str, str]:
        return next(((key, str(value)) for _, _, key, value in said[kind]), ("", ""))

    labels = dict.fromkeys(value for *_, value in sorted(said["label"], key=itemgetter(1)))
    numbers = [(kind, str(value)) for kind in _RANK_COLUMNS for *_, value in said[kind]]
    columns: dict[str, Any] = {kind: int(text) for kind, text in numbers if text.isdigit() and len(text) < 10}
    # A rank of no known kind tells no writers apart.
    extra = [("level", first("level")[1]), ("rank", columns.pop("rank", None))]
    origin = Prefix(
        origin="/".join(labels) or None, extra=tuple(one for one in extra if one[1] not in ("", None)), **columns
    )
    part = None
    if said["part"]:
        part = first("part")[1] in ("P", "true", "True") and first("last")[1] not in ("true", "True")
    trace = first("trace")
    stream, time = first("stream")[1], _stamp(min(said["time"], key=itemgetter(1))[3]) if said["time"] else None
    return _Found(key, message, trace if "\n" in trace[1] else None, time, origin, stream, part)


@lru_cache(maxsize=4096)
def _kind(key: str, parent: str) -> tuple[str, int]:
    """Return what a key of an object is about, and its place among those of its kind."""
    name, above = (re.sub(r"[^a-z0-9]", "", one.lower()) for one in (key, parent))
    return _KEYS.get(above if name == "name" else name, ("", 0))  # {"pod": {"name": ...}}


def _is_bytes(value: Any) -> bool:
    """Tell whether journald printed a text as its bytes, as it does when there are control codes in it."""
    return isinstance(value, list) and all(type(byte) is int and 0 <= byte < 256 for byte in value)


def _stamp(value: Any) -> str | None:
    """Return a time as ISO 8601 text: as printed, or made from seconds (or ms, us, ns) since 1970."""
    if isinstance(value, str) and value[10:11] == "T" and "," not in value:
        return value
    if isinstance(value, str) and not value.replace(".", "", 1).isdigit():
        return value.replace(" ", "T", 1).replace(",", ".", 1) or None
    try:
        seconds = float(value)
        while seconds > 1e11:
            seconds /= 1000
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def _is_said(value: Any) -> bool:
    return isinstance(value, (str, int))


# Which values of a kind count.
_FITS: dict[str, Callable[[Any], bool]] = {
    "message": lambda value: isinstance(value, str) or _is_bytes(value),
    "label": lambda value: isinstance(value, str) and value != "",
    "time": lambda value: _stamp(value) is not None,
}


@lru_cache(maxsize=4096)
def _unescaped(escape: bytes) -> bytes:
    """Return the text of one JSON escape; as it stands where it is none."""
    try:
        text: str = json.loads(b'"%s"' % escape)
    except ValueError:
        return escape
    return text.encode("utf-8", "surrogatepass")


def _pieces(raw: bytes, place: int) -> list[tuple[bytes, int]]:
    """Return the text of a JSON string, and where its pieces stand when it begins at a place."""
    if b"\\" not in raw:
        return [(raw, place)]
    if raw.endswith(b"\\n") and raw.count(b"\\") == 1:
        return [(raw[:-2] + b"\n", place)]
    pieces: list[tuple[bytes, int]] = []
    end = 0
    for escape in _ESCAPE.finditer(raw):
        if escape.start() > end:
            pieces.append((raw[end : escape.start()], place + end))
        pieces.append((_unescaped(escape[0]), place + escape.start()))
        end = escape.end()
    if end < len(raw):
        pieces.append((raw[end:], place + end))
    return pieces


class _Template:
    """The shape of a line: others of this shape are read by one pattern, and most of them share their origin."""

    def __init__(self, text: bytes, said: _Found) -> None:
        self.known: dict[object, tuple[bool | None, Prefix, str | None]] = {}
        pattern: list[bytes] = []
        groups: list[str] = []
        stack: list[tuple[bytes, str]] = []  # open brackets, under which key
        name = ""
        for token in _TOKEN.finditer(text):
            piece = token[0]
            pattern.append(re.escape(piece))
            if token[1]:
                name = json.loads(piece[:-1])
            elif piece in (b"{", b"["):
                stack.append((piece, name))
            elif piece in (b"}", b"]"):
                stack.pop()
            elif (token[2] or token[3]) and all(bracket == b"{" for bracket, _ in stack):
                kind, value = _kind(name, stack[-1][1])[0], json.loads(piece)
                if name == said.key and value == said.message and "text" not in groups:
                    kind = "text"
                elif kind == "time" and "when" not in groups and _stamp(value) == said.time:
                    kind = "when"
                elif kind in ("time", "message"):
                    kind = ""
                if kind != "trace":  # stays as it is: a line with a traceback is read in full
                    shape = b'"%s"' % (b"(%s)" if kind else b"%s") if token[2] else b"(%s)" if kind else b"%s"
                    pattern[-1] = shape % (_TEXT if token[2] else _NUMERAL)
                    groups += [kind] if kind else []
        self.fits = re.compile(b"".join(pattern)).match
        self.text = groups.index("text") + 1 if "text" in groups else 0
        self.when = groups.index("when") + 1 if "when" in groups else 0
        self.others = [number for number, kind in enumerate(groups, 1) if kind not in ("text", "when")]


class JsonLines:
    """Reads the lines of one file; see :class:`.unwrap.Form`."""

    name = "JSON"

    def __init__(self) -> None:
        self._key = b""  # under which the text stood last
        self._ended = False  # texts end with their newline: one that does not goes on in the next line
        self._templates: list[_Template] = []

    @staticmethod
    def fits(data: bytes, start: int, end: int) -> bool:
        """Tell whether a line is wrapped so."""
        return said_by(data[start:end]) is not None

    def lines(self, data: bytes, *, final: bool) -> Iterator[Line]:
        """See :class:`.unwrap.Form`."""
        if not self._ended:
            found = [said for line in data.split(b"\n", _SAMPLE)[:_SAMPLE] if (said := said_by(line)) is not None]
            ended = sum(isinstance(said.message, str) and said.message.endswith("\n") for said in found)
            self._ended = ended > 0 and (2 * ended >= len(found) or found[0].key == "log")
        start, length = 0, len(data)
        while start < length:
            line, end = self._quick(data, start) or self._read(data, start, final=final)
            yield line
            if not line.pieces:
                return
            start = end

    def _quick(self, data: bytes, start: int) -> tuple[Line, int] | None:
        """Return a line of a known shape, and where it ends."""
        for template in self._templates:
            if found := template.fits(data, start):
                others = found.group(*template.others) if template.others else None
                known = template.known.get(others)
                if known is None:
                    said = said_by(found[0])
                    if said is None:
                        return None
                    if len(template.known) >= _KNOWN:
                        template.known.clear()
                    known = template.known[others] = (said.part, said.origin, said.stream)
                when = _stamp(found[template.when].decode("utf-8", "replace")) if template.when else None
                pieces = _pieces(found[template.text], found.start(template.text))
                return self._line(start, pieces, when, *known), found.end()
        return None

    def _read(self, data: bytes, start: int, *, final: bool) -> tuple[Line, int]:
        """Return one line, or pretty-printed object, read in full, and where it ends."""
        end = data.find(b"\n", start) + 1 or len(data)
        if opens := _OPENS.match(data, start):
            closes = re.compile(rb"\n%s\}[ \t]*[],]?[ \t\r]*(?:\n|\Z)" % opens[1]).search(data, end - 1)
            if closes is None and not final and len(data) - start < _LONGEST:
                return Line(start, []), end
            end = closes.end() if closes is not None else end
        text = data[start:end]
        said = said_by(text)
        if said is None:
            return self._broken(text, start), end
        self._key = said.key.encode("utf-8", "surrogateescape")
        time, origin = said.time, said.origin
        pieces: list[tuple[bytes, int]] = []
        before = text[: text.find(b"{")]
        if tagged := _TAGGED.fullmatch(before):
            time = time or _stamp(tagged[1].decode())
            origin = within(Prefix(origin=tagged[2].decode("utf-8", "surrogateescape")), origin)
        elif before.strip(b" \t[,\r\n"):
            pieces.append((before, start))
        elif not opens and not said.trace and text.endswith(b"\n") and len(self._templates) < _TEMPLATES:
            self._learn(text, said)
        if isinstance(said.message, str):
            pieces += _string(text, start, said.key, said.message)
        else:
            at = re.search(rb'"%s"\s*:\s*\[' % re.escape(self._key), text)
            numbers = _NUMBER.finditer(text, at.end() if at else 0)
            signs = zip(said.message, numbers, strict=False)
            pieces += [(bytes([byte]), start + place.start()) for byte, place in signs]
        line = self._line(start, pieces, time, said.part, origin, said.stream)
        if said.trace:
            line.pieces.extend(_string(text, start, *said.trace))
            end_line(line.pieces, start)
        return line, end

    def _line(
        self,
        start: int,
        pieces: list[tuple[bytes, int]],
        time: str | None,
        part: bool | None,
        origin: Prefix,
        stream: str | None,
    ) -> Line:
        """Return a line with its text, ended unless it goes on in the next one."""
        more = part if part is not None else self._ended
        if pieces and pieces[-1][0].endswith(b"\n"):
            more = False
        elif not more:
            end_line(pieces, start)
        return Line(start, pieces or [(b"", start)], (origin.origin, stream), more, time, origin)

    def _learn(self, text: bytes, said: _Found) -> None:
        """Keep the shape of a line, where its own pattern reads it right."""
        template = _Template(text, said)
        found = template.fits(text)
        if found and template.text and json.loads(b'"%s"' % found[template.text], strict=False) == said.message:
            self._templates.append(template)

    def _broken(self, text: bytes, start: int) -> Line:
        """Return a line that is no whole object: of one whose end is cut off, the text as far as it goes.

        A whole object may follow where it breaks off: two writers, or a writer that was killed and began again.
        """
        begin, key = text.find(b"{", 0, _PREFIX), re.compile(rb'"%s"\s*:\s*"' % re.escape(self._key))
        again, follows = 0, None
        for object_ in islice(_OBJECT.finditer(text, max(begin, 0) + 1), _TRIES):
            again = object_.start()
            if follows := said_by(text[again:]):
                break
        cut = text[:again] if follows else text
        pieces = [(cut, start)]
        if self._key and begin >= 0 and (place := key.search(cut, begin)):
            raw = cut[place.end() :].rstrip(b"\r\n")
            string = _STRING.match(raw)
            if string and string[0] and raw[string.end() : string.end() + 2] in (b"", b"\\", b'"', b'",', b'"}'):
                pieces = _pieces(string[0], start + place.end())
        if follows and isinstance(follows.message, str):
            end_line(pieces, start)
            pieces += _string(text[again:], start + again, follows.key, follows.message)
        if follows or pieces[0][0] is not cut:
            end_line(pieces, start)
        return Line(start, pieces, time=follows and follows.time, origin=follows.origin if follows else NO_PREFIX)


def _string(text: bytes, start: int, key: str, value: str) -> list[tuple[bytes, int]]:
    """Return the pieces of a string that stands under a key."""
    places = list(re.finditer(rb'"%s"\s*:\s*"(%s)' % (re.escape(key.encode("utf-8", "surrogateescape")), _TEXT), text))
    for place in places:
        pieces = _pieces(place[1], start + place.start(1))
        if len(places) == 1 or b"".join(piece for piece, _ in pieces).decode("utf-8", "surrogateescape") == value:
            return pieces
    return [(value.encode("utf-8", "replace"), start)]  # its key is escaped


def is_pretty(data: bytes) -> bool:
    """Tell whether a file begins as pretty-printed objects do, one behind the other or in an array."""
    return _PRETTY.match(data) is not None


def end_line(pieces: list[tuple[bytes, int]], start: int) -> None:
    """Let a text end with a newline; it stands where the text ended."""
    if not pieces or not pieces[-1][0].endswith(b"\n"):
        pieces.append((b"\n", pieces[-1][1] + len(pieces[-1][0]) if pieces else start))
