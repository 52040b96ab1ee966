"""From one file's blocks to chunks: every record once, with its damage named; most lines in bulk, the others exactly.

This module is responsible for :class:`Scanner`: which lines hold a record, which of them repeat a text that was read,
and which have to be read one by one (:mod:`logscope.scan.pending`). It must not know what events mean, which pass or
segment a record belongs to, or how anything is shown.

Eight ranks print the same text, and most of a record is one of a few thousand *heads* (all before ``, norm=``). So a
block is cut into lines in bulk, equal texts are told by their hash, heads and prefixes are read once, norms and first
values are read as columns. Lines without the debug anchor are told by their *kind* (the line without its digits).
What is not plain goes through the exact grammar; both ways give the same (a property test compares every column).
"""

from __future__ import annotations

import codecs
import re
from dataclasses import replace
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from logscope.grammar.records import LARGEST, Anchored
from logscope.model import NO_PREFIX, Accounting, Payload, Prefix, within
from logscope.scan.chunk import PAYLOADS, PRINTS, VALUES, Chunk, Lines, taken, value_keys
from logscope.scan.line_kinds import DIGITS, Template, learn
from logscope.scan.pending import REMEMBERED, Found, Here, Pending

if TYPE_CHECKING:
    from logscope.grammar import Grammar
    from logscope.sources.blocks import Block
    from logscope.sources.places import Places

# Lines with bytes that are not UTF-8 that are listed by number.
LISTED_LINES = 6
# A kind of line gets a template when it has been read so often, and none when there are that many kinds.
_SIGHTINGS = 8
_KINDS = 4096
_NONE = -1  # sightings of a kind that is no record, whatever its digits so far
# A line longer than this is not remembered, nor learned from.
_LONG_LINE = 4096
_NUMBER = r"-?(?:\d{1,15}(?:\.\d{1,20})?(?:e[-+]\d\d)?|nan|inf)"
_TAIL = rf"^(?:\d{{1,15}}\.\d{{4}}|nan|inf), first5=\[{_NUMBER}(?:, {_NUMBER}){{0,{VALUES - 1}}}\]$"
_NORM_SLACK = 5e-5  # half the last of four printed decimals
_COLUMNS = tuple(name for name in Payload.__slots__ if name not in ("fields", "length"))
# Kinds of lines whose numbers are wanted in every question: read where they are found.
_READ = frozenset({"decode_stats", "prefill_stats"})
_ESCAPED = re.compile("[\udc80-\udcff]")
_NOUGHTS = bytes.maketrans(DIGITS, b"0" * 10)


class Kind(NamedTuple):
    """A kind of line that is one record behind a prefix: its anchor, a template of its text, a payload of the kind."""

    anchor: bytes
    template: Template
    payload: Payload


class Scanner:
    """Reads one file's blocks, in order.

    grammar
        what records there are.
    before
        what read another file of the same grammar: kinds of lines it has learned are known from the start.
    exact
        True sends every line through the exact grammar (for the differential test).

    """

    def __init__(self, grammar: Grammar, before: Scanner | None = None, *, exact: bool = False) -> None:
        self.grammar = grammar
        grammar.begin_file()
        self._pending = Pending(grammar)
        self._exact = exact
        hot = grammar.hot or "\n"
        self._hot, self._hot_bytes = hot, hot.encode("latin-1")
        self._wanted = _one_pass(tuple(grammar.anchors), grammar.hot)
        self._heads: dict[str, Payload | None] = {}
        self._texts: dict[str, Payload | None] = {}
        self._prefixes: dict[bytes, Prefix | None] = {b"": NO_PREFIX}
        self._before_kinds: dict[bytes, int | Template] = {}
        known = {} if before is None else before._kinds  # noqa: SLF001 - one of its own kind
        self._kinds: dict[bytes, int | Kind] = {key: kind for key, kind in known.items() if isinstance(kind, Kind)}
        self._boring: dict[bytes, None] = {}
        self._refused: dict[bytes, None] = {}
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._undecoded = False
        self._open_line = False
        self._counted = Accounting()
        self._listed = 0

    def feed(self, block: Block) -> Chunk:
        """Take the next block; return what is complete."""
        if block.gap:
            self._pending.close("lines were left out behind it")
        size, lines = block.read or (len(block.data), block.newlines or block.data.count(b"\n"))
        build = _Build(block, size)
        build.chunk.accounting.bytes, build.chunk.accounting.lines = size, lines
        if block.data:
            self._lines(block, build)
        self._open_line = bool(block.data) and not block.data.endswith(b"\n") and block.read is None
        if block.final:
            self._pending.close()
            if self._undecoded:
                build.chunk.accounting.invalid_utf8_bytes += _surrogates(self._decoder.decode(b"", final=True))
                self._undecoded = False
        return self._done(build, block)

    # ------------------------------------------------------------------------------------------------- a block's lines

    def _lines(self, block: Block, build: _Build) -> None:
        """Find the records of a block: in bulk, then what is left one by one."""
        data, first_line = block.data, block.line
        lines, odd, wrong = _cut(data)
        self._wrong_bytes(block, odd, wrong, build.chunk)
        total = len(lines)
        lengths = lines.str.len_bytes().to_numpy().astype(np.int64)
        starts = np.cumsum(lengths + 1) - lengths - 1
        if starts[-1] + lengths[-1] + data.endswith(b"\n") != len(data):
            # Carriage returns before newlines were taken off.
            newlines = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
            starts = np.concatenate(([0], newlines + 1))[:total]
        if self._exact:
            odd = np.arange(total)
        else:
            if b"\r" in data:
                odd = np.union1d(odd, lines.str.contains("\r", literal=True).arg_true().to_numpy())
            hot = lines.str.contains(self._hot, literal=True).to_numpy()
            hot[odd] = False
            where = np.flatnonzero(hot)
            parts = [odd, where[self._debug(lines.filter(pl.Series(hot)), where, starts, block, build)]]
            if self._wanted is not None:
                hot[odd] = True
                rest = lines.filter(pl.Series(~hot))
                found = rest.str.contains(self._wanted)
                others = np.flatnonzero(~hot)[found.to_numpy()]
                parts.append(self._others(rest.filter(found), others, starts, block, build))
            odd = np.concatenate(parts)
        if block.continues or self._pending.waiting:
            odd = np.append(odd, 0)
        self._one_by_one(np.unique(odd).tolist(), starts, block, build, first_line, total)

    def _one_by_one(
        self, odd: list[int], starts: np.ndarray, block: Block, build: _Build, first_line: int, total: int
    ) -> None:
        """Read lines exactly, and those behind them while a record waits for what follows it."""
        pending, data = self._pending, memoryview(block.data)
        ends = np.append(starts[1:] - 1, len(block.data) - block.data.endswith(b"\n"))
        read = np.zeros(total, np.bool_)
        for number in odd:
            at = number
            # Behind it too, while a record waits for what follows it.
            while at < total and not read[at] and (at == number or pending.waiting):
                start = int(starts[at])
                raw = bytes(data[start : int(ends[at])])
                pending.line(raw, Here.of(block, first_line + at, start), continues=block.continues and at == 0)
                read[at] = True
                at += 1
        build.drop(np.flatnonzero(read) + first_line)

    # -------------------------------------------------------------------------------------------------- debug records

    def _debug(self, said: pl.Series, where: np.ndarray, starts: np.ndarray, block: Block, build: _Build) -> np.ndarray:
        """Take the lines with the debug anchor that are one plain record each; return which are not."""
        if not len(where):
            return np.zeros(0, np.bool_)
        mark = said.str.find(self._hot, literal=True)
        at = mark.to_numpy().astype(np.int64)
        prefix = np.full(len(said), build.prefix(NO_PREFIX), np.int32)
        prefix_odd = np.zeros(len(said), np.bool_)
        texts = said
        if at.any():
            raw = said.cast(pl.Binary)
            before = raw.bin.slice(0, mark)  # type: ignore[arg-type] # lengths may be a column
            first, number = distinct(before.hash().to_numpy())
            numbers = np.array([build.prefix(self._prefix(text)) for text in before.gather(first).to_list()], np.int32)
            prefix = numbers[number]
            prefix_odd = prefix < 0
            texts = raw.bin.slice(mark).cast(pl.String)  # type: ignore[arg-type] # the same
        names = texts.hash().to_numpy()
        first, number = distinct(names)
        payload = self._payloads(texts if len(first) == len(texts) else texts.gather(first), build)[number]
        odd: np.ndarray = prefix_odd | (payload < 0)
        good = ~odd
        places = where[good]
        build.prints.append(
            {
                "line": places + block.line,
                "offset": starts[places] + at[good] + block.offset,
                "prefix": prefix[good],
                "payload": payload[good],
                "text": names[good],
            }
        )
        return odd

    def _payloads(self, texts: pl.Series, build: _Build) -> np.ndarray:
        """Read distinct texts; return which payload each is, -1 for what is not one plain whole record."""
        parts = texts.to_frame("t").select(pl.col("t").str.splitn(", norm=", 2)).unnest("t")
        head, rest = parts["field_0"], parts["field_1"]
        alone = rest.is_null().to_numpy()
        plain = rest.str.contains(_TAIL).fill_null(value=False).to_numpy()
        several = texts.str.count_matches(self._hot, literal=True).to_numpy() > 1
        first, number = distinct(head.hash().to_numpy() * np.uint64(2) + plain)
        sample = texts.gather(first).to_list()
        quick = plain[first].tolist()
        heads = np.array(
            [build.head(self._head(text)) if tail else -1 for text, tail in zip(sample, quick, strict=True)], np.int32
        )[number]
        numbers = rest.to_frame("r").select(pl.col("r").str.splitn(", first5=[", 2)).unnest("r")
        norms = numbers["field_0"].cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
        values = np.full((len(texts), VALUES), np.nan)
        count = np.zeros(len(texts), np.int16)
        if plain.any():
            lists = numbers["field_1"].str.strip_suffix("]").str.split(", ")
            count = np.where(plain, lists.list.len().fill_null(0).to_numpy(), 0).astype(np.int16)
            flat = lists.filter(pl.Series(plain)).list.explode().cast(pl.Float64, strict=False).to_numpy()
            values[np.arange(VALUES) < count[:, None]] = flat
        mantissa = np.frexp(values)[0] * 2048  # bfloat16 and half precision have at most 11 bits
        exact = (((mantissa == np.rint(mantissa)) & (np.abs(values) < LARGEST)) | ~np.isfinite(values)).all(axis=1)
        made = np.where((heads >= 0) & exact & ~several, 0, -1)
        ours = np.flatnonzero(made == 0)
        made[ours] = build.add_payloads(
            values=values[ours],
            head=heads[ours],
            norm=norms[ours],
            slack=np.where(np.isfinite(norms[ours]), _NORM_SLACK, 0.0),
            count=count[ours],
            rounded=np.zeros(len(ours), np.bool_),
            length=texts.str.len_bytes().to_numpy()[ours],
        )
        # A record without numbers of its own, or printed in another way: read whole, once for each text.
        rest_of = np.flatnonzero((made < 0) & ~several)
        for at, text in zip(rest_of.tolist(), texts.gather(rest_of).to_list(), strict=True):
            payload = self._texts[text] if text in self._texts else self._plain(text)
            if alone[at] and text not in self._texts:
                _remember(self._texts, text, payload)
            if payload is not None:
                made[at] = build.add_payload(payload)
        return made

    def _head(self, text: str) -> Payload | None:
        """Return what the beginning of a record says that goes on with a norm and first values; None: read it whole."""
        key = text[: text.index(", norm=")]
        if key not in self._heads:
            payload = self._plain(text)
            if payload is not None and (payload.norm is None or payload.head is None or payload.norm_derived):
                payload = None
            elif payload is not None:
                payload = replace(payload, head=None, head_resolution=None)  # each record's own
            _remember(self._heads, key, payload)
        return self._heads[key]

    def _plain(self, text: str) -> Payload | None:
        """Read a text that is one whole record and nothing else; None when it is more or less than that."""
        grammar = self.grammar
        latin = text.encode().decode("latin-1")
        found = grammar.find(latin)
        if found is None or found[0] != 0 or grammar.find(latin, len(found[1])) is not None:
            return None
        if Anchored(grammar, latin).limit(len(found[1])) != len(latin):
            return None
        payload = self._entire(latin, found[1])
        return payload if payload is not None and payload.site and payload.event != "capture_plan" else None

    def _entire(self, text: str, anchor: str) -> Payload | None:
        """Read a text (of one character per byte) that is one whole event; None when it is more or less than that."""
        reading = self.grammar.read(text, 0, anchor, len(text))
        if reading is None or reading.open is not None or reading.end != len(text):
            return None
        return reading.payload if (reading.payload.kind, reading.payload.intact) == ("event", "whole") else None

    # ---------------------------------------------------------------------------------------------------- other lines

    def _others(
        self, lines: pl.Series, where: np.ndarray, starts: np.ndarray, block: Block, build: _Build
    ) -> np.ndarray:
        """Take the lines without the debug anchor that are of a known kind; return which are to be read exactly."""
        if not len(where):
            return where
        texts = [text.encode() for text in lines.to_list()]
        kinds = b"\n".join(texts).translate(None, DIGITS).split(b"\n")
        boring, known, refused = self._boring, self._kinds, self._refused
        odd: list[int] = []
        for at, (text, key) in enumerate(zip(texts, kinds, strict=True)):
            if key in boring:
                continue
            kind = known.get(key)
            number = int(where[at])
            if kind.__class__ is Kind:
                found = self._by_kind(text, kind, build)
                if found is not None:
                    mark, prefix, said = found
                    place = number + block.line, int(starts[number]) + mark + block.offset
                    build.lines.append((*place, prefix, said))
                    continue
            elif kind is None and self.grammar.undigited_finder.search(key) is None:
                if len(key) <= _LONG_LINE:
                    _remember(boring, key, None)
                continue
            elif text.translate(_NOUGHTS) in refused:
                continue
            else:
                self._learn_kind(text, key)
            odd.append(number)
        return np.array(odd, np.int64)

    def _by_kind(self, line: bytes, kind: Kind, build: _Build) -> tuple[int, int, Any] | None:
        """Read a line of a known kind by its template; None when it is to be read exactly."""
        at = line.find(kind.anchor)
        prefix = self._prefix(line[:at])
        if prefix is None:
            return None
        text = line[at:]
        if kind.payload.event not in _READ:
            return (at, build.prefix(prefix), (kind.payload, text)) if kind.template.fits(text) else None
        fields = kind.template.read(text)
        if fields is None:
            return None
        one = kind.payload
        payload = Payload("event", one.event, one.site, one.role, fields=fields, length=len(text))
        return at, build.prefix(prefix), payload

    def _learn_kind(self, line: bytes, key: bytes) -> None:
        """Count a line's kind, and make a template of it once it was read a few times; remember what is no record."""
        grammar = self.grammar
        text = line.decode("latin-1")
        found = grammar.find(text)
        if found is None or len(text) > _LONG_LINE:
            return
        at, anchor = found
        seen = self._kinds.get(key, 0)
        if anchor not in grammar.steady or seen == _SIGHTINGS or len(grammar.undigited_finder.findall(key)) != 1:
            return
        if Anchored(grammar, text).quoted(at, 0):
            return  # It is counted every time.
        if seen != _NONE and not _due(self._kinds, key):
            return
        if grammar.read(text, at, anchor, len(text)) is None:
            if grammar.digited_finder.search(key) is None:
                self._kinds[key] = _NONE
                _remember(self._refused, line.translate(_NOUGHTS), None)
            return
        payload = self._entire(text[at:], anchor)
        if payload is None or payload.site is not None:
            return
        same = [getattr(payload, name) for name in _COLUMNS]

        def read(probe: str) -> dict[str, Any] | None:
            said = self._entire(probe, anchor) if probe.startswith(anchor) else None
            if said is None or said.length != len(probe) or [getattr(said, name) for name in _COLUMNS] != same:
                return None
            return said.fields

        template = learn(text[at:], read)
        if template is not None:
            self._kinds[key] = Kind(anchor.encode("latin-1"), template, payload)

    def _prefix(self, before: bytes) -> Prefix | None:
        """Return what stands before a record on its line; None when some of it is no prefix."""
        known = self._prefixes
        if before in known:
            return known[before]
        prefix: Prefix | None = None
        kind = before.translate(None, DIGITS)
        template = self._before_kinds.get(kind)
        values = template.read(before) if isinstance(template, Template) else None
        if values is not None:
            prefix = Prefix(**values)
        else:
            text = before.decode("latin-1")
            end, prefix = self.grammar.peel(text)
            if text[end:].strip():
                prefix = None
            elif kind != before and len(before) <= _LONG_LINE and _due(self._before_kinds, kind):
                learned = learn(text, self._peeled)
                if learned is not None:
                    self._before_kinds[kind] = learned
        _remember(known, before, prefix)
        return prefix

    def _peeled(self, probe: str) -> dict[str, Any] | None:
        end, prefix = self.grammar.peel(probe)
        return None if probe[end:].strip() else {name: getattr(prefix, name) for name in Prefix.__slots__}

    # ------------------------------------------------------------------------------------------------------ accounting

    def _wrong_bytes(self, block: Block, lines: np.ndarray, wrong: int, chunk: Chunk) -> None:
        """Count bytes that are not UTF-8, and list their first lines."""
        if self._undecoded or not block.data.endswith(b"\n"):
            # A piece of a long line may end inside a character.
            wrong = _surrogates(self._decoder.decode(block.data))
            self._undecoded = bool(self._decoder.getstate()[0])
        if wrong:
            chunk.accounting.invalid_utf8_bytes += wrong
            chunk.invalid_lines = (lines[: LISTED_LINES - self._listed] + block.line).tolist()
            self._listed += len(chunk.invalid_lines)

    def _done(self, build: _Build, block: Block) -> Chunk:
        """Put together what was found in bulk and what was read exactly."""
        pending = self._pending
        for found in pending.out:
            build.found(found)
        pending.out.clear()
        counts = build.chunk.accounting
        now, before = pending.accounting, self._counted
        for name in ("whole", "partial", "rejoined", "cut", "unparsed", "glued", "quoted"):
            setattr(counts, name, getattr(counts, name) + getattr(now, name) - getattr(before, name))
            setattr(before, name, getattr(now, name))
        with_part = pending.lines_with_part - before.other_lines
        before.other_lines = pending.lines_with_part
        chunk = build.finish()
        if block.final and self._open_line:
            counts.lines += 1
        counts.other_lines = counts.lines - with_part - build.bulk
        return chunk


class _Build:
    """A chunk while it is filled: ``prints`` in parts, ``lines`` as rows of what :class:`Lines` has."""

    def __init__(self, block: Block, size: int) -> None:
        self.chunk = Chunk.empty()
        self.chunk.end, self.chunk.size = block.offset + len(block.data), size
        self._block = block
        self.prints: list[dict[str, np.ndarray]] = []
        self.lines: list[tuple[int, int, int, Any]] = []
        self.bulk = 0
        self._numbers: dict[int, int] = {}
        self._payloads: list[dict[str, Any]] = []
        self._count = 0
        self._known: dict[int, int] = {}
        self._exact: list[tuple[int, int, int, int, str]] = []

    def prefix(self, prefix: Prefix | None) -> int:
        """Return the number of a prefix, -1 for none."""
        return self._number(prefix, self.chunk.prefixes)

    def head(self, payload: Payload | None) -> int:
        """Return the number of a head, -1 for none."""
        return self._number(payload, self.chunk.heads)

    def _number(self, one: Any, known: list[Any]) -> int:
        number = -1 if one is None else self._numbers.get(id(one))
        if number is None:
            number = self._numbers[id(one)] = len(known)
            known.append(one)
        return number

    def add_payloads(self, **table: Any) -> np.ndarray:
        """Add payloads (columns, but for their key, and ``values``); return their numbers."""
        self._payloads.append(table)
        self._count += len(table["head"])
        return np.arange(self._count - len(table["head"]), self._count)

    def add_payload(self, payload: Payload) -> int:
        """Add a payload that was read exactly; return its number."""
        if id(payload) not in self._known:
            values = (payload.head or ())[:VALUES]
            self._known[id(payload)] = self._count
            self.add_payloads(
                values=[[*values, *[np.nan] * (VALUES - len(values))]],
                head=[self.head(payload)],
                norm=[np.nan if payload.norm is None else payload.norm],
                slack=[-1.0 if payload.norm is None else payload.norm_resolution],
                count=[len(values)],
                rounded=[payload.head_resolution is not None],
                length=[payload.length],
            )
        return self._known[id(payload)]

    def drop(self, lines: np.ndarray) -> None:
        """Forget what was found in bulk on lines that had to be read exactly after all; count the rest."""
        if len(lines):
            self.prints = [taken(part, ~np.isin(part["line"], lines)) for part in self.prints]
            gone = set(lines.tolist())
            self.lines = [row for row in self.lines if row[0] not in gone]
        self.bulk = sum(len(part["line"]) for part in self.prints) + len(self.lines)
        self.chunk.accounting.whole += self.bulk
        if self._block.places is not None:
            self._into_the_file(self._block.places)

    def _into_the_file(self, places: Places) -> None:
        """Give what was found in bulk its place in the file, and what a collector said around it."""
        server = {
            name: np.array([row[at] for row in self.lines], np.int64) for at, name in ((1, "offset"), (2, "prefix"))
        }
        for part in (*self.prints, server):
            line, offset, record = places.find(part["offset"] - self._block.offset)
            first, number = distinct(part["prefix"].astype(np.int64) * len(places.times) + record)
            pairs = zip(record[first].tolist(), part["prefix"][first].tolist(), strict=True)
            around = [self.prefix(within(places.prefix(one), self.chunk.prefixes[inner])) for one, inner in pairs]
            part |= {"line": line, "offset": offset, "prefix": np.array(around, np.int32)[number]}
        columns = (server[name].tolist() for name in ("line", "offset", "prefix"))
        self.lines = [(*where, row[3]) for *where, row in zip(*columns, self.lines, strict=True)]

    def found(self, found: Found) -> None:
        """Add what was read exactly."""
        payload = found.payload
        where = found.line, found.offset, self.prefix(found.prefix)
        if payload.kind == "event" and payload.site is not None and payload.event != "capture_plan":
            # The texts are hashed together, when the chunk is finished.
            self._exact.append((*where, self.add_payload(payload), found.text))
        else:
            self.lines.append((*where, payload))

    def finish(self) -> Chunk:
        """Return the chunk, its rows in file order."""
        chunk = self.chunk
        if self._exact:
            *made, said = zip(*self._exact, strict=True)
            texts = [text.encode("latin-1").decode("utf-8", "replace") for text in said]
            rows: dict[str, Any] = dict(zip(("line", "offset", "prefix", "payload"), made, strict=True))
            self.prints.append(rows | {"text": pl.Series(texts).hash().to_numpy()})
        if self.prints:
            prints = {
                name: np.concatenate([part[name] for part in self.prints]).astype(PRINTS[name]) for name in PRINTS
            }
            several = len(self.prints) > 1
            chunk.prints = taken(prints, np.argsort(prints["offset"], kind="stable")) if several else prints
        if self._payloads:
            chunk.values = np.concatenate([part["values"] for part in self._payloads])
            table = {
                name: np.concatenate([part[name] for part in self._payloads]).astype(kind)
                for name, kind in PAYLOADS.items()
                if name != "key"
            }
            chunk.payloads = table | {"key": value_keys(chunk.values, table["count"])}
        self.lines.sort(key=itemgetter(1))
        if self.lines:
            chunk.lines = Lines(*map(list, zip(*self.lines, strict=True)))
        return chunk


def distinct(names: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first place of each distinct name, in order of appearance, and for every place its number there."""
    _, first, number = np.unique(names, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return first[order], rank[number]


def _cut(data: bytes) -> tuple[pl.Series, np.ndarray, int]:
    """Return a block's lines as text, which of them hold bytes that are not UTF-8 (``?`` there), and how many bytes."""
    # polars would unpack what begins like an archive.
    before = b"\n" if data[:1] in (b"x", b"\x1f", b"(") else b""
    try:
        return pl.read_lines(before + data).to_series()[len(before) :], np.zeros(0, np.int64), 0
    except pl.exceptions.ComputeError:
        raw = np.frombuffer(data, np.uint8)
        high = np.flatnonzero(raw > 127)
        # Only they are decoded, each run behind one byte for the plain ones before it.
        places = np.arange(len(high)) + np.cumsum(np.diff(high, prepend=-2) > 1)
        runs = np.zeros(places[-1] + 1, np.uint8)
        runs[places] = raw[high]
        decoded = _ESCAPED.sub("?", runs.tobytes().decode("utf-8", "surrogateescape")).encode()
        bad = high[np.frombuffer(decoded, np.uint8)[places] < 128]
        raw = raw.copy()
        raw[bad] = ord("?")
        fixed = raw.tobytes()
        lines = np.unique(np.searchsorted(np.flatnonzero(raw == ord("\n")), bad))
        return pl.read_lines(before + fixed).to_series()[len(before) :], lines, len(bad)


@lru_cache(maxsize=8)
def _one_pass(anchors: tuple[str, ...], hot: str | None) -> str | None:
    """Return an expression that finds any anchor but the debug anchor's."""
    keys = [key for key in anchors if hot is None or key not in hot]
    keys = [key for key in keys if not any(other != key and other in key for other in keys)]
    return "|".join(re.sub(r"([.^$*+?{}()|\[\]\\])", r"\\\1", key) for key in keys) or None


def _due(kinds: dict[bytes, Any], kind: bytes) -> bool:
    """Count one more sighting of a kind; tell whether it is the one on which a template is made of it."""
    seen = kinds.get(kind, 0)
    if not isinstance(seen, int) or (not seen and len(kinds) >= _KINDS):
        return False
    kinds[kind] = seen + 1
    return seen + 1 == _SIGHTINGS


def _remember(memory: dict[Any, Any], key: Any, thing: Any) -> None:
    """Add to a memory, which is emptied first when it is full."""
    if len(memory) >= REMEMBERED:
        memory.clear()
    memory[key] = thing


def _surrogates(text: str) -> int:
    return len(_ESCAPED.findall(text))
