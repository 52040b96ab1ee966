"""Logs whose lines are wrapped: the text comes out, and every byte of it knows where it stood in the file.

The wrapped files are made here, byte by byte, by writers that note where each byte of the text goes: the places that
``unwrap`` finds are compared with those.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logscope.cli import main
from logscope.cli.evidence import contexts
from logscope.model import Finding, Place, Prefix
from logscope.report import Report
from logscope.sources.blocks import Block
from logscope.sources.excerpts import lines_around, physical_lines, texts
from logscope.sources.inputs import expand
from logscope.sources.tail import follow
from logscope.sources.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LINES = [
    "[2026-09-26 10:00:00 TP0] Decode batch, #running-req: 2, accept len: 2.80",
    '  File "/srv/x.py", line 7, in run\t\\batch',
    "",
    "é ☃ \U0001f600 behind signs of two, three and four bytes: shape=torch.Size([4, 2880])",
    "[2026-09-26 10:00:01 TP1] \x1b[32mgreen\x1b[0m",
    "RuntimeError: sizes differ",
]


@dataclass
class Made:
    """A file as it is written, and where each byte of its text stands."""

    raw: bytearray = field(default_factory=bytearray)
    text: bytearray = field(default_factory=bytearray)
    offsets: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    line: int = 1

    def put(self, raw: str | bytes) -> None:
        """Write what is not of the text."""
        raw = raw.encode() if isinstance(raw, str) else raw
        self.line += raw.count(b"\n")
        self.raw += raw

    def say(self, text: str | bytes, escaped: Callable[[str], str] = lambda sign: sign) -> None:
        """Write text, one sign after the other, each as ``escaped`` has it."""
        for sign in text if isinstance(text, str) else text.decode("latin-1"):
            encoded = sign.encode() if isinstance(text, str) else sign.encode("latin-1")
            self.text += encoded
            self.offsets += [len(self.raw)] + [-1] * (len(encoded) - 1)  # inside a sign nothing is promised
            self.lines += [self.line] * len(encoded)
            self.raw += escaped(sign).encode() if isinstance(text, str) else encoded
            self.line += sign == "\n" and escaped(sign) == "\n"

    def end(self) -> None:
        """End a line of the text that has no newline in the file; where that stands is not looked at."""
        self.text += b"\n"
        self.offsets.append(-1)
        self.lines.append(-1)


def in_json(sign: str) -> str:
    return json.dumps(sign)[1:-1]


def in_plain_json(sign: str) -> str:
    return json.dumps(sign, ensure_ascii=False)[1:-1]


def docker(made: Made, text: str, *, stream: str = "stderr", end: str = "\n", newline: str = "\n", **_: Any) -> None:
    made.put('{"log":"')
    made.say(text + end, in_plain_json)
    made.put(f'","stream":"{stream}","time":"2026-09-26T10:00:00.123456789Z"}}{newline}')


def logger(made: Made, text: str, *, label: str = "sglang-0", newline: str = "\n", **_: Any) -> None:
    made.put(f'{{"timestamp": "2026-09-26 10:00:00,123", "level": "INFO", "pod": "{label}", "rank": 3, "message": "')
    made.say(text, in_json)
    made.end()
    made.put(f'", "lineno": 12, "pathname": "/srv/a.py"}}{newline}')


def cloud(made: Made, text: str, *, label: str = "sglang-0", newline: str = "\n", **_: Any) -> None:
    resource = json.dumps({"labels": {"container_name": "main", "pod_name": label}, "type": "k8s_container"})
    made.put('{"insertId":"x7","jsonPayload":{"message":"')
    made.say(text, in_plain_json)
    made.end()
    made.put(f'"}},"resource":{resource},"severity":"ERROR","timestamp":"2026-09-26T10:00:00.123Z"}}{newline}')


def kibana(made: Made, text: str, *, label: str = "sglang-0", newline: str = "\n", **_: Any) -> None:
    made.put('{"_index":"logs","_source":{"@timestamp":"2026-09-26T10:00:00.123Z","host":{"name":"gpu-01"},')
    made.put(f'"kubernetes":{{"pod":{{"name":"{label}"}}}},"log":{{"level":"info","offset":7}},"message":"')
    made.say(text, in_plain_json)
    made.end()
    made.put(f'"}},"sort":[1,2]}}{newline}')


def fluentd(made: Made, text: str, *, label: str = "sglang-0", newline: str = "\n", **_: Any) -> None:
    made.put(f'2026-09-26T10:00:00+00:00\tkube.{label}\t{{"stream":"stdout","logtag":"F","log":"')
    made.say(text, in_plain_json)
    made.end()
    made.put(f'"}}{newline}')


def logcli(made: Made, text: str, *, label: str = "sglang-0", newline: str = "\n", **_: Any) -> None:
    made.put(f'{{"labels":{{"app":"sglang","pod":"{label}"}},"line":"')
    made.say(text, in_plain_json)
    made.end()
    made.put(f'","timestamp":"2026-09-26T10:00:00.123Z"}}{newline}')


def journald(made: Made, text: str, *, label: str = "sglang-0", newline: str = "\n", **_: Any) -> None:
    made.put(f'{{"__REALTIME_TIMESTAMP":"1790416800123456","_HOSTNAME":"gpu-01","_SYSTEMD_UNIT":"{label}.service",')
    made.put('"_PID":"4211","PRIORITY":"6","MESSAGE":')
    if text.isprintable():
        made.put('"')
        made.say(text, in_plain_json)
        made.end()
        made.put(f'"}}{newline}')
        return
    made.put("[")  # journald prints the bytes of what has control codes in it
    for index, byte in enumerate(text.encode()):
        made.put("," if index else "")
        made.offsets.append(len(made.raw))
        made.lines.append(made.line)
        made.text.append(byte)
        made.put(str(byte))
    made.end()
    made.put(f"]}}{newline}")


def pretty(made: Made, text: str, *, label: str = "sglang-0", newline: str = "\n", **_: Any) -> None:
    made.put(
        f'  {{{newline}    "labels": {{{newline}      "pod": "{label}"{newline}    }},{newline}    "textPayload": "'
    )
    made.say(text, in_json)
    made.end()
    made.put(f'",{newline}    "timestamp": "2026-09-26T10:00:00Z"{newline}  }},{newline}')


def cri(made: Made, text: str, *, stream: str = "stdout", tag: str = "F", newline: str = "\n", **_: Any) -> None:
    made.put(f"2026-09-26T10:00:00.123456789+08:00 {stream} {tag} ")
    made.say(text + (newline if tag == "F" else ""))
    made.put("" if tag == "F" else newline)


KINDS = {kind.__name__: kind for kind in (docker, logger, cloud, kibana, fluentd, logcli, journald, pretty, cri)}


def blocks_of(raw: bytes, *, size: int = 8 << 20, packed: bool = False) -> tuple[list[Block], list[str]]:
    """Return the unwrapped blocks of a file, and what was said about it."""
    (source,) = expand(io.BytesIO(gzip.compress(raw) if packed else raw))
    found = [block for block in unwrap(source.blocks(size=size), source.warn) if block is not None]
    return found, [warning.partition(": ")[2] for warning in source.warnings]


def check(made: Made, blocks: Iterable[Block]) -> None:
    """Compare text and places with those of the file that was made."""
    blocks = list(blocks)
    assert b"".join(block.data for block in blocks) == bytes(made.text)
    assert [block.final for block in blocks] == [False] * (len(blocks) - 1) + [True]
    start = 0
    for block in blocks:
        end = start + len(block.data)
        assert block.newlines == block.data.count(b"\n")
        if block.places is not None:
            line, offset, record = block.places.find(np.arange(len(block.data)))
            assert len(block.places.times) == len(block.places.origin)
            assert record.max() < len(block.places.times)
        else:
            line = [block.line + block.data.count(b"\n", 0, at) for at in range(len(block.data))]
            offset = [block.offset + at for at in range(len(block.data))]
        known = [at for at in range(start, end) if made.offsets[at] >= 0]
        assert [offset[at - start] for at in known] == [made.offsets[at] for at in known]
        assert [line[at - start] for at in known] == [made.lines[at] for at in known]
        if known and known[0] == start:
            assert (block.line, block.offset) == (made.lines[start], made.offsets[start])
        start = end


def origins(blocks: Iterable[Block]) -> list[tuple[str | None, Any]]:
    """Return time and origin of each line of the text."""
    found = []
    for block in blocks:
        starts = [0, *(at + 1 for at, byte in enumerate(block.data) if byte == 10)]
        assert block.places is not None
        _, _, record = block.places.find([start for start in starts if start < len(block.data)])
        found += [(block.places.times[at], block.places.origins[block.places.origin[at]]) for at in record]
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 100, 1000, 8 << 20])
@pytest.mark.parametrize("variant", ["whole", "gz", "crlf", "many"])
def test_the_text_comes_out_with_its_places(kind, size, variant):
    """Every kind, whole, packed, with CRLF and with many lines, in blocks of any size: each byte knows its place."""
    made = Made()
    for text in LINES * (40 if variant == "many" else 1):
        KINDS[kind](made, text, newline="\r\n" if variant == "crlf" else "\n")
    found, warnings = blocks_of(bytes(made.raw), size=size, packed=variant == "gz")
    check(made, found)
    assert warnings == []


@pytest.mark.parametrize(
    ("kind", "time", "label", "said"),
    [
        ("docker", "2026-09-26T10:00:00.123456789Z", None, {}),
        ("logger", "2026-09-26T10:00:00.123", "sglang-0", {"extra": (("level", "INFO"), ("rank", 3))}),
        ("cloud", "2026-09-26T10:00:00.123Z", "sglang-0/main", {"extra": (("level", "ERROR"),)}),
        ("kibana", "2026-09-26T10:00:00.123Z", "gpu-01/sglang-0", {"extra": (("level", "info"),)}),
        ("fluentd", "2026-09-26T10:00:00+00:00", "kube.sglang-0", {}),
        ("logcli", "2026-09-26T10:00:00.123Z", "sglang/sglang-0", {}),
        (
            "journald",
            "2026-09-26T10:00:00.123456Z",
            "gpu-01/sglang-0.service",
            {"extra": (("level", "6"),), "pid": 4211},
        ),
        ("pretty", "2026-09-26T10:00:00Z", "sglang-0", {}),
        ("cri", "2026-09-26T10:00:00.123456789+08:00", None, {}),
    ],
)
def test_what_the_wrapper_says_is_kept(kind, time, label, said):
    """Time, label, level, rank and process stand beside each line."""
    made = Made()
    for text in LINES[:2]:
        KINDS[kind](made, text)
    found, _ = blocks_of(bytes(made.raw))
    for when, origin in origins(found):
        assert when == time
        assert origin == Prefix(origin=label, **said)


@pytest.mark.parametrize("kind", ["logger", "cloud", "kibana", "fluentd", "logcli", "journald", "pretty"])
def test_two_labels_stay_apart(kind):
    """Lines of two pods in turn keep the label each of them has, in the order of the file."""
    made = Made()
    names = ["sglang-a", "sglang-b", "sglang-b", "sglang-a", "sglang-b"]
    for name, text in zip(names, itertools.cycle(LINES)):
        KINDS[kind](made, text, label=name)
    found, _ = blocks_of(bytes(made.raw), size=300)
    check(made, found)
    assert [next(name for name in names if name in origin.origin) for _, origin in origins(found)] == names


def parts_of(made: Made, write: Callable[..., None], texts: list[tuple[str, str, bool]]) -> None:
    """Write lines in parts: stream, text, whether it is the last part of its line."""
    for stream, text, last in texts:
        if write is cri:
            write(made, text, stream=stream, tag="F" if last else "P")
        else:
            write(made, text, stream=stream, end="\n" if last else "")


@pytest.mark.parametrize("write", [cri, docker])
@pytest.mark.parametrize("size", [1, 150, 8 << 20])
def test_parts_are_joined(write, size):
    """A line in two and in five parts is one line; each part keeps its own physical line and offset."""
    made = Made()
    texts = [
        ("stderr", "first line", True),
        ("stderr", "server_args=ServerArgs(a=1, ", False),
        ("stderr", "b=2)", True),
    ]
    texts += [("stderr", f"part {number} é, ", number == 5) for number in range(1, 6)]
    parts_of(made, write, [*texts, ("stderr", "last line", True)])
    found, warnings = blocks_of(bytes(made.raw), size=size)
    check(made, found)
    assert made.text.count(b"\n") == 4
    assert warnings == []


@pytest.mark.parametrize("write", [cri, docker])
@pytest.mark.parametrize("size", [1, 150, 8 << 20])
def test_parts_of_two_streams_in_turn(write, size):
    """Parts of stdout and stderr that stand in turn are joined each with its own, in the place of the first part."""
    made = Made()
    order = [
        ("stdout", "a0", True),
        ("stdout", "a1 ", False),
        ("stderr", "b1 ", False),
        ("stdout", "a2 ", False),
        ("stderr", "b2", True),
    ]
    order += [("stdout", "a3", True), ("stderr", "b3", True)]
    parts_of(made, write, order)
    found, warnings = blocks_of(bytes(made.raw), size=size)
    assert b"".join(block.data for block in found) == b"a0\na1 a2 a3\nb1 b2\nb3\n"
    assert warnings == []
    for block in found:
        assert block.places is not None
        for at, byte in enumerate(block.data):
            if chr(byte) in "ab0123":
                _, offset, _ = block.places.find([at])
                assert made.raw[offset[0]] == byte


@pytest.mark.parametrize("write", [cri, docker])
def test_a_part_without_its_end_is_passed_on(write):
    """Where the last part is lost, the next line stays a line of its own; at the end what is there is given."""
    made = Made()
    parts_of(
        made, write, [("stderr", "[2026-09-26 10:00:00] whole", True), ("stderr", "[2026-09-26 10:00:00] cut ", False)]
    )
    made.end()
    parts_of(
        made, write, [("stderr", "[2026-09-26 10:00:01] next", True), ("stderr", "[2026-09-26 10:00:02] end", False)]
    )
    made.end()
    for size in (1, 8 << 20):
        found, warnings = blocks_of(bytes(made.raw), size=size)
        check(made, found)
        assert len(warnings) == 1
        assert "2 lines that came in parts" in warnings[0]


def test_a_part_waits_for_its_end_only_so_long():
    """Lines behind a part whose end never comes are held back at most 512 lines."""
    made = Made()
    cri(made, "lost ", stream="stdout", tag="P")
    made.end()
    for number in range(5000):
        cri(made, f"line {number}", stream="stderr")
    (source,) = expand(io.BytesIO(bytes(made.raw)))
    given = 0
    for block in unwrap(source.blocks(size=1000)):
        given += block.data.count(b"\n")
        assert block.final or block.offset + len(block.data) < len(made.raw)
    assert given == 5001
    check(made, blocks_of(bytes(made.raw), size=1000)[0])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("cri", "pretty")])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_json_that_is_cut_keeps_the_text_before_the_cut(kind, share):
    """Of a line cut in its middle the text comes as far as it goes; cut before it, the line stands as it is."""
    whole, cut = Made(), Made()
    for text in LINES[:2]:
        KINDS[kind](whole, text)
    KINDS[kind](cut, LINES[0])
    last = bytes(cut.raw)[: int(len(cut.raw) * share)]
    found, warnings = blocks_of(bytes(whole.raw) + last)
    text = b"".join(block.data for block in found)
    assert text.startswith(bytes(whole.text))
    rest = text[len(whole.text) :].rstrip(b"\n")
    assert rest == last or (rest and LINES[0].encode().startswith(rest))
    known = sum(0 <= offset < len(last) for offset in cut.offsets)
    if known and kind != "fluentd":
        assert rest == LINES[0].encode()[:known]
    assert warnings == ["1 of 3 lines are no JSON like the others and stand as they are"]


@pytest.mark.parametrize("kind", ["docker", "logger", "cloud", "kibana", "logcli"])
@pytest.mark.parametrize("size", [1, 8 << 20])
def test_a_line_that_breaks_off_where_another_begins(kind, size):
    """A writer that is torn inside its text, with a whole line glued behind: both texts come, at their places."""
    made = Made()
    for text in LINES[:2]:
        KINDS[kind](made, text)
    begun, at = len(made.raw), len(made.text)
    KINDS[kind](made, LINES[0])
    torn = next(place for place in range(begun, len(made.raw)) if place == made.offsets[at + 30])
    del made.raw[torn:], made.text[at + 30 :], made.offsets[at + 30 :], made.lines[at + 30 :]
    made.line = 3
    made.end()
    KINDS[kind](made, LINES[4])
    found, warnings = blocks_of(bytes(made.raw), size=size)
    check(made, found)
    assert "1 of 3 lines" in warnings[0]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "pretty"])
def test_a_file_that_begins_inside_a_line(kind):
    """What ``tail -c`` leaves of the first line is passed on, and the others are unwrapped."""
    made = Made()
    for text in LINES[:2] * 3:
        KINDS[kind](made, text)
    raw = bytes(made.raw)[30:]
    found, _ = blocks_of(raw)
    text = b"".join(block.data for block in found)
    assert text.endswith(bytes(made.text)[made.text.index(b"\n") + 1 :])
    assert LINES[0].encode() in text


@pytest.mark.parametrize("kind", ["docker", "logger", "cri"])
def test_lines_that_do_not_fit_stand_as_they_are(kind):
    """A banner before, a plain line between and broken ones: all are there, where they were, and are counted."""
    made = Made()
    made.say(b"=== start of container ===\n")
    for text in [*LINES, *LINES]:
        KINDS[kind](made, text)
    made.say(b"\xff\xfeplain } line\n")
    made.say(b"\n")
    KINDS[kind](made, LINES[3])
    made.say(b'{"other": 1}\n{"message": 3}\n[1, 2]\n{\n')
    KINDS[kind](made, LINES[4])
    found, warnings = blocks_of(bytes(made.raw))
    check(made, found)
    assert "6 of 21 lines" in warnings[0]


@pytest.mark.parametrize("kind", ["docker", "cri"])
def test_wrapped_lines_behind_a_long_banner_are_found(kind):
    """Where plain lines come first, more than are looked at, the wrapper is found behind them."""
    made = Made()
    for number in range(2000):
        made.say(b"loading shard %d of 2000, please wait a while\n" % number)
    banner = len(made.raw)
    for _ in range(1000):
        for text in LINES[:3]:
            KINDS[kind](made, text)
    assert banner > 64 << 10
    check(made, blocks_of(bytes(made.raw))[0])


@pytest.mark.parametrize("order", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("size", [1, 7, 100, 8 << 20])
@pytest.mark.parametrize("variant", ["whole", "gz", "crlf", "odd", "cut"])
def test_utf16(order, size, variant):
    """UTF-16 of both orders, cut anywhere: signs of one to four bytes, signs that hold a newline's byte, half a sign."""
    made = Made()
    made.put("\ufeff".encode(order))
    for text in [*LINES, "ਊ Ċ 上 ऊ਀", "end"]:
        for sign in text + ("\r\n" if variant == "crlf" else "\n"):
            encoded = sign.encode()
            made.text += encoded
            made.offsets += [len(made.raw)] + [-1] * (len(encoded) - 1)
            made.lines += [made.line] * len(encoded)
            made.raw += sign.encode(order)
            made.line += sign == "\n"
    if variant == "cut":  # inside a line
        del made.raw[-6:], made.text[-3:], made.offsets[-3:], made.lines[-3:]
    if variant == "odd":
        made.text += b"A"
        made.offsets.append(-1)
        made.lines.append(-1)
        made.raw += b"A"
    found, warnings = blocks_of(bytes(made.raw), size=size, packed=variant == "gz")
    check(made, found)
    assert any("odd byte" in warning for warning in warnings) == (variant == "odd")


def test_a_lone_surrogate_is_not_lost():
    """Half a pair becomes the bytes that UTF-8 would have for it, which are counted as wrong ones later."""
    raw = b"\xff\xfe" + "a".encode("utf-16-le") + b"\x3d\xd8" + "b\n".encode("utf-16-le")
    assert blocks_of(raw)[0][0].data == b"a\xed\xa0\xbdb\n"


@pytest.mark.parametrize("size", [1, 200, 8 << 20])
def test_wrappers_in_wrappers(size):
    """A JSON logger in docker's file, in CRI, and CRI saved as UTF-16: places hold through all layers."""
    inner = Made()
    for text in LINES:
        logger(inner, text)
    rows = bytes(inner.raw).decode().splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, map(str.encode, rows)))]

    def wrapped(write: Callable[..., None]) -> Made:
        outer = Made()
        for row in rows:
            write(outer, row.rstrip("\n"))
        return outer

    for outer in (wrapped(docker), wrapped(cri)):
        assert bytes(outer.text) == bytes(inner.raw)
        made = Made(outer.raw, inner.text)
        made.offsets = [outer.offsets[at] if at >= 0 else -1 for at in inner.offsets]
        made.lines = [outer.lines[at] if at >= 0 else -1 for at in inner.offsets]
        found, warnings = blocks_of(bytes(outer.raw), size=size)
        check(made, found)
        assert warnings == []
        assert {origin.origin for _, origin in origins(found)} == {"sglang-0"}
        wide = Made(bytearray("\ufeff".encode("utf-16-le") + bytes(outer.raw).decode().encode("utf-16-le")), inner.text)
        before = bytes(outer.raw)
        wide.offsets = [2 + len(before[:at].decode().encode("utf-16-le")) if at >= 0 else -1 for at in made.offsets]
        wide.lines = made.lines
        found, warnings = blocks_of(bytes(wide.raw), size=size)
        check(wide, found)
    assert len(starts) == len(LINES) + 1


def test_a_traceback_beside_the_message_is_text_too():
    """JSON loggers put a traceback under a key of its own: it follows its message, at its own place."""
    made = Made()
    for text in ("fine", "Scheduler hit an exception"):
        made.put('{"message": "')
        made.say(text, in_json)
        made.end()
        made.put('", "level": "ERROR"')
        if text != "fine":
            made.put(', "exc_info": "')
            made.say('Traceback (most recent call last):\n  File "a.py", line 1, in f\nRuntimeError: x', in_json)
            made.end()
            made.put('"')
        made.put("}\n")
    check(made, blocks_of(bytes(made.raw))[0])


def test_text_before_the_object_stays():
    """What a collector puts before the object is of the line: its own prefix is read later."""
    made = Made()
    for text in LINES[:3]:
        made.say("[pod/sglang-0/main] ")
        logger(made, text)
    check(made, blocks_of(bytes(made.raw))[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 300, 8 << 20])
def test_the_text_is_found_again(kind, size):
    """What stood at an offset of the file is found in the unwrapped blocks, over the ends of blocks too."""
    made = Made()
    for text in LINES * 3:
        KINDS[kind](made, text)
    chance = random.Random(size)
    starts = sorted(at for at in range(len(made.text)) if made.offsets[at] >= 0 and chance.random() < 0.2)
    spans = [(start, chance.randrange(1, 150)) for start in starts]
    found = texts(blocks_of(bytes(made.raw), size=size)[0], [(made.offsets[start], length) for start, length in spans])
    assert list(found) == [bytes(made.text[start : start + length]) for start, length in spans]


def test_lines_around_have_the_lines_of_the_file():
    """Context of a wrapped log is its text, under the numbers of the file's own lines."""
    made = Made()
    cri(made, "one")
    for number in range(2):
        cri(made, f"part {number} ", tag="P")
    for text in ("end", "five"):
        cri(made, text)
    found = blocks_of(bytes(made.raw))[0]
    assert list(physical_lines(found)) == [(1, b"one"), (2, b"part 0 part 1 end"), (5, b"five")]
    around = [(line.number, line.wanted) for line in lines_around(found, [2], 1) if line is not None]
    assert around == [(1, False), (2, True), (5, False)]


@pytest.mark.parametrize("kind", KINDS)
def test_evidence_is_the_text_with_the_line_of_the_file(kind, tmp_path, capsys):
    """What --raw, --context and a page show of a wrapped log is what the server printed; lines are those of the file."""
    said = [
        "[2026-09-26 10:00:00 TP0] Decode batch, #running-req: 2, accept len: 2.80",
        "  at the end of é",
        "EAGLE3_DEBUG[dsv2] layer 3 capture: shape=torch.Size([4, 2880]), norm=1.2500, first5=[0.5000, 0.2500]",
    ]
    made, begun = Made(), []
    for text in said * 3:
        begun.append(len(made.text))
        KINDS[kind](made, text)
    log = tmp_path / "server.log"
    log.write_bytes(made.raw)
    lines = [made.lines[start] for start in begun]
    assert main(["events", str(log), "--raw"]) == 0
    records = capsys.readouterr().out.splitlines()
    assert records == [said[0].partition("] ")[2], said[2]] * 3
    assert main(["events", str(log), "--context", "0"]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if line != "--"]
    assert shown == [f"{line}:{text}" for line, text in zip(lines, said * 3, strict=True) if "é" not in text]
    place = Place(str(log), lines[-1])
    finding = Finding("E101", "error", "failed", place)
    assert contexts([Report("check", "failed", findings=[finding])])[place][-1] == (lines[-1], said[2], True)


def test_newest_first_is_said():
    """Exports stand newest first: the times tell, and it is said."""
    rows = [
        {"textPayload": f"line {second}", "timestamp": f"2026-09-26T10:00:{second:02}Z"} for second in range(9, 0, -1)
    ]
    raw = "".join(json.dumps(row) + "\n" for row in rows).encode()
    assert "newest first" in blocks_of(raw)[1][0]
    assert blocks_of(b"".join(reversed(raw.splitlines(keepends=True))))[1] == []


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\n\n",
        b"plain\nlines\n" * 50,
        b'[2026-09-26 10:00:00 TP0] Receive: obj={"text": "hi"}\n' * 50,
        b'{"text": "a prompt", "ids": [1, 2]}\n' * 50,  # data, no log: nothing else of a log stands in it
        b'{"a": 1}\n' * 50,
        b"{" * 5000 + b"\n",
    ],
)
def test_what_is_not_wrapped_passes_untouched(raw):
    """Plain text, data in JSON without anything of a log, and brackets only are given byte for byte."""
    (source,) = expand(io.BytesIO(raw))
    assert list(unwrap(source.blocks(size=100))) == list(source.blocks(size=100))


def test_a_line_too_long_to_be_held_stands_as_it_is():
    """A JSON line longer than a block may be passes in pieces; the lines around it are unwrapped."""
    made = Made()
    docker(made, LINES[0])
    made.say('{"log":"' + "x" * 5000 + '\\n","stream":"stderr","time":"2026-09-26T10:00:00Z"}\n')
    docker(made, LINES[1])
    (source,) = expand(io.BytesIO(bytes(made.raw)))
    check(made, [block for block in unwrap(source.blocks(size=500, slack=500)) if block is not None])


def test_a_growing_file_is_unwrapped_as_it_comes(tmp_path: Path):
    """Lines come with the poll that completes them, parts with their last one; a rotated file begins anew."""
    path = tmp_path / "0.log"
    first, part, second = Made(), Made(), Made()
    cri(first, "one")
    cri(part, "two ", tag="P")
    cri(second, "three")
    path.write_bytes(bytes(first.raw))
    blocks = unwrap(follow(path, poll=0.003, idle=2))

    def given() -> bytes:
        found = []
        quiet = 0
        while quiet < 4:
            block = next(blocks)
            quiet = quiet + 1 if block is None else 0
            found += [] if block is None else [block.data]
        return b"".join(found)

    assert given() == b"one\n"
    with path.open("ab") as file:
        file.write(part.raw)
        file.flush()
        assert given() == b""
        file.write(second.raw)
    assert given() == b"two three\n"
    path.rename(tmp_path / "0.log.1")
    path.write_bytes(b"plain again\n")
    assert given() == b"plain again\n"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=20), max_size=12),
    st.sampled_from(sorted(KINDS)),
    st.integers(1, 300),
)
def test_any_text_comes_back(texts, kind, size):
    """Whatever the lines say, they are given with their places, in blocks of any size."""
    made = Made()
    for text in ["[start]", *texts]:
        KINDS[kind](made, text)
    check(made, blocks_of(bytes(made.raw), size=size)[0])


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400), st.sampled_from(sorted(KINDS)), st.integers(1, 300))
def test_damage_loses_no_line(noise, kind, size):
    """Whatever stands between wrapped lines, reading ends well, and the lines that are whole are there."""
    made = Made()
    for text in LINES[:2]:
        KINDS[kind](made, text)
    raw = bytes(made.raw)
    found, _ = blocks_of(raw + noise + b"\n" + raw, size=size)
    text = b"".join(block.data for block in found)
    assert text.startswith(bytes(made.text))
    assert LINES[0].encode() in text[len(made.text) :]
    assert found[-1].final
