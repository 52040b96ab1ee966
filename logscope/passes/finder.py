"""Chunks of one file to batches of tables: lives, schedulers, passes, in file order.

This module is responsible for :class:`Finder`: which life and which scheduler a print belongs to, what may be handed
out, and the frames of a batch. It must not know how passes are found (:mod:`logscope.passes.group`), nor what is asked.
"""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from logscope.model import NO_PREFIX, Payload, Prefix, Segment, num_aux
from logscope.passes.group import Columns, Group
from logscope.passes.heads import Heads
from logscope.passes.lineage import STATE
from logscope.passes.naming import group_key, has_rank, naming
from logscope.passes.phases import WHY
from logscope.passes.segments import OPENERS, PAST, STARTUP, Lives
from logscope.scan.chunk import joined, taken, whole
from logscope.tables import schema
from logscope.tables.tables import Tables, with_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from logscope.scan.chunk import Chunk

# Lists of heads and prefixes that are longer are begun anew.
_LISTED = 1 << 15
# Prints that are held before they are handed out although passes overlap.
_HELD = 1 << 19
# More server lines do not wait for the passes before them once they were handed out early.
_LINES = 1 << 9
_HEARD = STARTUP | OPENERS | PAST | {"prefill_stats", "adaptive_switch"}


class Finder:
    """Finds the passes of one file.

    file
        its name as given.
    read
        reads the text of a server line by the grammar.
    keys
        where the unique numbers of passes come from.
    goes_on
        the finder of the file whose place this one took: its last life goes on.

    """

    def __init__(
        self,
        file: str,
        read: Callable[[bytes], Payload],
        *,
        keys: count[int] | None = None,
        goes_on: Finder | None = None,
    ) -> None:
        self.file = file
        self._read = read
        self._keys = keys or count(1)
        self._heads = Heads()
        self._prefixes: list[Prefix] = []
        self._numbers: dict[Prefix, int] = {}
        self.segments: list[Segment] = []
        self._lives: Lives | None = None
        self._turned: Lives | None = None
        self._groups: dict[tuple[Any, ...], Group] = {}
        self._keyed: list[tuple[Any, ...]] = []
        self._channel: dict[int, tuple[int, int]] = {}
        self._keys_of: dict[int, tuple[Any, ...]] = {}
        self._waiting: dict[tuple[Any, ...], list[Columns]] = {}
        self._naming: dict[tuple[Any, ...], str] = {}
        self._ready: dict[str, list[Columns]] = {"passes": [], "records": [], "prints": []}
        self._server: list[Columns] = []
        self._said: list[Any] = []
        self._time: str | None = None
        self._count = 0
        self._last_numbers: dict[tuple[Any, ...], int] = {}
        self._given = -1  # everything up to this offset was handed out early
        if goes_on is not None:
            goes_on.hand_over(self)

    def hand_over(self, other: Finder) -> None:
        """Let another finder go on with this one's life, as its file took the place of this one's."""
        if self._lives is not None:
            other._count = self._count - 1
            other._turned = self._lives
            other._last_numbers = self._last_numbers

    # -- chunks ----------------------------------------------------------------------------------------------------

    def add(self, chunk: Chunk) -> Tables | None:
        """Take the next chunk; return the next batch, if something is known now."""
        prints = self._columns(chunk)
        times = self._times(chunk, prints)
        lines, lives = chunk.lines, self._lives
        begun = 0
        print_lines = None
        heard_from = 0
        offsets = prints["offset"]
        for at, (line, offset, said) in enumerate(zip(lines.line, lines.offset, lines.said, strict=True)):
            payload = said[0] if said.__class__ is tuple else said
            if lives is None:
                first = len(offsets) and offsets[0] < offset
                lives = self._open(int(prints["line"][0]), int(offsets[0])) if first else self._open(line, offset)
            prefix = chunk.prefixes[lines.prefix[at]]
            if payload.event not in _HEARD:
                if payload.event == "decode_stats":
                    lives.see(line, offset, prefix, payload)
                if not prefix.peeled and payload.kind == "event":
                    if print_lines is None:
                        print_lines = set(prints["line"].tolist())
                    if line in print_lines and lives.here.writers in (1, None):
                        lives.buffers()
                continue
            if said.__class__ is tuple:
                payload = self._read(said[1])
            if payload.event in OPENERS:
                stop = int(np.searchsorted(offsets, offset))
                if lives.ends_with(payload, prefix, served=self._served(prints, begun, stop)):
                    self._take(taken(prints, slice(begun, stop)))
                    self._lines(chunk, heard_from, at, times)
                    begun, heard_from = stop, at
                    self._close()
                    lives = self._open(line, offset)
            if lives.cut:
                lives.foretell(payload)
            lives.see(line, offset, prefix, payload)
        if lives is None and len(offsets):
            lives = self._open(int(prints["line"][0]), int(offsets[0]))
        if lives is not None:
            self._take(taken(prints, slice(begun, None)))
            self._lines(chunk, heard_from, len(lines), times)
            self._work(final=False)
        return self._batch(final=False)

    def end(self) -> Tables | None:
        """End the file: return what is left."""
        if self._lives is not None:
            self._close()
        return self._batch(final=True)

    def early(self) -> Tables | None:
        """Return what is held as if the file ended here; it is handed out once more when it is known. None: nothing."""
        if self._lives is None:
            return None
        # What only grows is shared with the copy that is ended.
        shared = [self._heads, self._read, self._prefixes, self._numbers]
        shared += [said for part in self._server for name in ("said", "kind") for said in part[name]]
        like = deepcopy(self, {id(one): one for one in shared} | {id(self._keys): count(1)})
        tables = like.end()
        assert tables is not None
        tables.early = True
        offsets = pl.concat([tables.prints["offset"], tables.server["offset"]]).to_list()
        self._given = max([self._given, *offsets])
        return tables

    def _columns(self, chunk: Chunk) -> Columns:
        """Return the prints of a chunk as columns whose numbers count in this finder."""
        if len(self._prefixes) > _LISTED or len(self._heads.payloads) > _LISTED:
            self._relist()
        payload = chunk.prints["payload"]
        made: Columns = {name: chunk.prints[name] for name in ("line", "offset", "text")}
        heads = self._heads.numbers(chunk.heads)
        for name in ("norm", "slack", "key", "count", "rounded", "length"):
            made[name] = chunk.payloads[name][payload]
        made["head"] = heads[chunk.payloads["head"][payload]]
        made["values"] = chunk.values[payload]
        numbers = np.array([self._prefix(prefix) for prefix in chunk.prefixes], np.int64)
        self._numbers_of_chunk = numbers
        made["prefix"] = numbers[chunk.prints["prefix"]]
        return made

    def _prefix(self, prefix: Prefix) -> int:
        number = self._numbers.get(prefix)
        if number is None:
            number = self._numbers[prefix] = len(self._prefixes)
            self._prefixes.append(prefix)
        return number

    def _relist(self) -> None:
        """Begin the lists of heads and prefixes anew, with what is still waiting."""
        tables = [part for name in ("prints", "records") for part in self._ready[name]]
        tables += [part for group in self._groups.values() for part in group.columns()]
        tables += [part for parts in self._waiting.values() for part in parts]
        heads, prefixes = self._heads.payloads, self._prefixes
        self._heads.reset()
        self._prefixes, self._numbers = [], {}
        self._channel.clear()
        self._keys_of.clear()
        for part in [*tables, *self._server]:
            if "head" in part:
                used = np.unique(part["head"])
                moved = np.zeros(len(heads), np.int64)
                moved[used] = self._heads.numbers([heads[at] for at in used.tolist()])
                part["head"] = moved[part["head"]]
            used = np.unique(part["prefix"])
            moved = np.zeros(len(prefixes), np.int64)
            moved[used] = [self._prefix(prefixes[at]) for at in used.tolist()]
            part["prefix"] = moved[part["prefix"]]

    def _times(self, chunk: Chunk, prints: Columns) -> tuple[np.ndarray, list[str | None]]:
        """Return, by offset, the last time printed before on a server line."""
        offsets, times = [-1], [self._time]
        lines = chunk.lines
        for offset, number in zip(lines.offset, lines.prefix, strict=True):
            time = chunk.prefixes[number].time
            if time is not None and time != times[-1]:
                offsets.append(offset)
                times.append(time)
        self._time = times[-1]
        prints["time"] = np.array(times, object)[np.searchsorted(offsets, prints["offset"], side="right") - 1]
        return np.array(offsets), times

    # -- lives and schedulers --------------------------------------------------------------------------------------

    def _open(self, line: int, offset: int) -> Lives:
        self._count += 1
        turned, self._turned = self._turned, None
        if turned is not None:
            # The life goes on in the file that took the place of the one before.
            segment = turned.here
            lives = turned.moved(offset)
        else:
            segment = Segment(self._count, self.file, line)
            lives = Lives(segment, offset)
            self._last_numbers = {}
        self._lives = lives
        self.segments.append(segment)
        return lives

    def _close(self) -> None:
        """End a life: everything it holds is known."""
        self._work(final=True)
        # The life may go on in another file.
        self._last_numbers |= {key: group.emitted for key, group in self._groups.items()}
        self._groups.clear()
        self._channel.clear()
        self._naming.clear()

    def _served(self, prints: Columns, start: int, stop: int) -> bool:
        """Tell whether debug records show that the life was served."""
        assert self._lives is not None
        if any(group.served_from is not None for group in self._groups.values()):
            return True
        waiting = [part["offset"] for parts in self._waiting.values() for part in parts]
        offsets = [prints["offset"][start:stop], *waiting, *(group.waiting() for group in self._groups.values())]
        return any(bool((self._lives.at(some)["region"] < 0).any()) for some in offsets if len(some))

    def _take(self, prints: Columns) -> None:
        """Give prints to their schedulers; the first ones of each wait until it is clear who prints them."""
        if not len(prints["line"]):
            return
        keys: list[tuple[Any, ...]] = []
        number_of = np.zeros(int(prints["prefix"].max()) + 1, np.int64)
        for number in np.unique(prints["prefix"]).tolist():
            key = self._keys_of.get(number)
            if key is None:
                key = self._keys_of[number] = group_key(self._prefixes[number])
            if key not in keys:
                keys.append(key)
            number_of[number] = keys.index(key)
        mine = number_of[prints["prefix"]]
        for at, key in enumerate(keys):
            self._waiting.setdefault(key, []).append(prints if len(keys) == 1 else taken(prints, mine == at))

    def _route(self, *, final: bool) -> None:
        """Give the prints that wait to the groups of their writers, where these are known."""
        assert self._lives is not None
        for key in list(self._waiting):
            prints = joined(self._waiting[key])
            if key not in self._naming:
                named = naming(prints["text"], prints["prefix"], self._prefixes, self._lives, final=final)
                if named is None:
                    self._waiting[key] = [prints]
                    continue
                self._naming[key] = named
            del self._waiting[key]
            numbers = np.unique(prints["prefix"])
            channels = np.zeros((int(numbers.max()) + 1, 2), np.int64)
            for number in numbers.tolist():
                channels[number] = self._channel.get(number) or self._find(key, number)
            mine, writer = channels[prints["prefix"]].T
            prints["writer"] = writer
            several = np.unique(mine).tolist()
            for number in several:
                part = prints if len(several) == 1 else taken(prints, mine == number)
                self._groups[self._keyed[number]].add(part)

    def _find(self, key: tuple[Any, ...], number: int) -> tuple[int, int]:
        """Return the scheduler a prefix belongs to, and its writer, -1: it names none."""
        assert self._lives is not None
        prefix = self._prefixes[number]
        how = self._naming[key]
        name = (prefix.pid, prefix.tp_rank, prefix.ep_rank, prefix.extra)
        marked = how == "ranks" or (how == "both" and has_rank(prefix))
        full = (*key, marked)
        if how == "pids" and prefix.pid is not None:
            full = (f"{prefix.origin} pid={prefix.pid}" if prefix.origin else f"pid={prefix.pid}", *key[1:], False)
        if full not in self._keyed:
            self._keyed.append(full)
        group = self._groups.get(full)
        if group is None:
            group = self._groups[full] = Group(full[:3], self._lives, self._heads)
            group.emitted = self._last_numbers.get(full, 0)
        writer = group.names.setdefault(name, len(group.names)) if marked else -1
        found = self._channel[number] = (self._keyed.index(full), writer)
        return found

    def _lines(self, chunk: Chunk, start: int, stop: int, times: tuple[np.ndarray, list[str | None]]) -> None:
        """Keep server lines until they are handed out."""
        if start == stop:
            return
        lines = chunk.lines
        said = list(lines.said[start:stop])
        kinds = [one[0] if one.__class__ is tuple else one for one in said]
        kept = [at for at, payload in enumerate(kinds) if payload.kind in ("event", "unparsed")]
        if not kept:
            return
        assert self._lives is not None
        offsets = np.array(lines.offset[start:stop], np.int64)[kept]
        numbers = self._numbers_of_chunk[np.array(lines.prefix[start:stop], np.int64)[kept]]
        rows: Columns = {
            "line": np.array(lines.line[start:stop], np.int64)[kept],
            "offset": offsets,
            "prefix": numbers,
            "segment": np.full(len(kept), self._lives.here.number),
            "lives": np.array([self._lives] * len(kept), object),
            "time": np.array(times[1], object)[np.searchsorted(times[0], offsets, side="right") - 1],
            "said": np.array(
                [said[at][1] if said[at].__class__ is tuple else said[at] for at in kept] + [None], object
            )[:-1],
            "kind": np.array([kinds[at] for at in kept] + [None], object)[:-1],
        }
        self._server.append(rows)

    # -- handing out -----------------------------------------------------------------------------------------------

    def _work(self, *, final: bool) -> None:
        """Let every scheduler say which of its passes are known."""
        self._route(final=final)
        for key, group in self._groups.items():
            out = group.work(final=final)
            if out is not None:
                self._keep(key, out)

    def _keep(self, key: tuple[Any, ...], out: Columns) -> None:
        """Keep passes of a scheduler until they are handed out."""
        assert self._lives is not None
        passes, records, prints, strays = out["passes"], out["records"], out["prints"], out["strays"]
        amount = len(passes["offset"])
        passes["group"] = np.full(amount, self._keyed.index(key))
        passes["segment"] = np.full(amount, self._lives.here.number)
        regions = [*self._lives.regions, None]
        passes["region"] = np.array(regions, object)[passes["region"]]
        if len(prints["record"]):
            last = np.full(amount, -1)
            np.maximum.at(last, records["pass"][prints["record"]], prints["offset"])
        else:
            last = passes["offset"]
        passes["until"] = last
        records["segment"] = np.full(len(records["line"]), self._lives.here.number)
        bases = {
            name: sum(len(part["line" if name != "passes" else "offset"]) for part in self._ready[name])
            for name in self._ready
        }
        for name in ("first", "last", "join", "input", "fc", "end"):
            passes[name] = np.where(passes[name] >= 0, passes[name] + bases["records"], -1)
        records["pass"] = records["pass"] + bases["passes"]
        prints["record"] = prints["record"] + bases["records"]
        self._ready["passes"].append(passes)
        self._ready["records"].append(records)
        self._ready["prints"].append(prints)
        if len(strays["line"]):
            self._stray(strays)

    def _stray(self, prints: Columns) -> None:
        """Keep debug records that belong to no pass as lines of their own."""
        assert self._lives is not None
        amount = len(prints["line"])
        payloads = [self._whole(prints, at) for at in range(amount)]
        self._server.append(
            {
                "line": prints["line"],
                "offset": prints["offset"],
                "prefix": prints["prefix"],
                "segment": np.full(amount, self._lives.here.number),
                "lives": np.array([self._lives] * amount, object),
                "time": prints["time"],
                "said": np.array([*payloads, None], object)[:-1],
                "kind": np.array([*payloads, None], object)[:-1],
            }
        )

    def _whole(self, prints: Columns, at: int) -> Payload:
        """Return the payload of one print."""
        head = self._heads.payloads[int(prints["head"][at])]
        values = prints["values"][at][: int(prints["count"][at])].tolist()
        return whole(head, float(prints["norm"][at]), float(prints["slack"][at]), values, int(prints["length"][at]))

    def _batch(self, *, final: bool) -> Tables | None:
        """Return what can be handed out: everything up to a place behind which all later passes begin."""
        edge = 1 << 62
        if not final:
            waiting = [int(part["offset"][0]) for parts in self._waiting.values() for part in parts[:1]]
            edge = min([*(group.held_from for group in self._groups.values()), *waiting], default=edge)
        parts = self._ready["passes"]
        passes = joined(parts) if parts else None
        if passes is not None:
            order = np.argsort(passes["offset"], kind="stable")
            begins, until = passes["offset"][order], np.maximum.accumulate(passes["until"][order])
            later = np.append(begins[1:], edge)
            free = (until < later) & (later <= edge)
            held = sum(len(part["line"]) for part in self._ready["prints"])
            if held > _HELD:
                free |= later <= edge
            places = np.flatnonzero(free)
            edge = int(later[places[-1]]) if len(places) else min(edge, int(begins[0]))
        server = joined(self._server) if self._server else None
        mine = passes["offset"] < edge if passes is not None else np.zeros(0, np.bool_)
        lines = server["offset"] < edge if server is not None else np.zeros(0, np.bool_)
        if server is not None and len(lines) > _LINES:
            lines |= server["offset"] <= self._given
        if not mine.any() and not lines.any() and not final:
            return None
        return self._tables(passes, mine, server, lines)

    def _tables(self, passes: Columns | None, mine: np.ndarray, server: Columns | None, lines: np.ndarray) -> Tables:
        """Return a batch of these passes and server lines; keep the others."""
        tables = Tables([self.file], [key[:3] for key in self._keyed], list(self.segments), given=self._given)
        tables.heads, tables.prefixes, tables.read = self._heads.payloads, self._prefixes or [NO_PREFIX], self._read
        if passes is not None and mine.any():
            records, prints = joined(self._ready["records"]), joined(self._ready["prints"])
            order = np.argsort(np.where(mine, passes["offset"], 1 << 62), kind="stable")
            amount = int(mine.sum())
            place = np.full(len(mine), -1)
            place[order] = np.arange(len(order))
            of_pass = place[records["pass"]]
            rows = np.argsort(of_pass, kind="stable")
            row_of = np.empty(len(rows), np.int64)
            row_of[rows] = np.arange(len(rows))
            taken_rows = int((of_pass < amount).sum())
            passes = taken(passes, order)
            for name in ("first", "last", "join", "input", "fc", "end"):
                column = passes[name]
                passes[name] = np.where(column >= 0, row_of[column], -1)
            records = taken(records, rows)
            records["pass"] = of_pass[rows]
            prints["record"] = row_of[prints["record"]]
            prints = taken(prints, np.argsort(prints["offset"], kind="stable"))
            out = prints["record"] < taken_rows
            self._fill(
                tables, taken(passes, slice(0, amount)), taken(records, slice(0, taken_rows)), taken(prints, out)
            )
            rest = {"passes": taken(passes, slice(amount, None)), "records": taken(records, slice(taken_rows, None))}
            rest["prints"] = taken(prints, ~out)
            for name in ("first", "last", "join", "input", "fc", "end"):
                column = rest["passes"][name]
                rest["passes"][name] = np.where(column >= 0, column - taken_rows, -1)
            rest["records"]["pass"] = rest["records"]["pass"] - amount
            rest["prints"]["record"] = rest["prints"]["record"] - taken_rows
            self._ready = {name: [part] if len(part["offset"]) else [] for name, part in rest.items()}
        if server is not None and lines.any():
            self._fill_server(tables, taken(server, lines))
            left = taken(server, ~lines)
            self._server = [left] if len(left["line"]) else []
        return tables

    def _fill(self, tables: Tables, passes: Columns, records: Columns, prints: Columns) -> None:
        """Make the frames of passes, records and prints."""
        amount = len(passes["offset"])
        keys = np.array([next(self._keys) for _ in range(amount)], np.int64)
        heads = self._heads.payloads
        head = records["head"]
        # Of each record the print that speaks, then the others.
        speaks = np.flatnonzero(prints["speaks"])
        where = np.full(len(head), -1)
        where[prints["record"][speaks]] = speaks
        records["print"] = where
        made: Columns = {
            "pass": keys[records["pass"]],
            "file": np.zeros(len(head), np.int64),
            "segment": records["segment"],
            "line": records["line"],
            "offset": records["offset"],
            "norm": _nothing(records["norm"], records["slack"] >= 0),
            "slack": np.maximum(records["slack"], 0.0),
            "rounded": records["rounded"],
            "copies": records["copies"],
            "differ": records["differ"],
            "head": head,
            "length": records["length"],
            "print": records["print"],
            "values": _lists(records, heads),
            "values_key": _nothing(records["key"], records["count"] > 0),
        }
        made |= _of_heads(heads, head)
        tables.records = schema.frame(schema.RECORDS, made)
        # What stands there in other words: of another value, or damaged.
        usable = self._heads.usable[prints["head"]]
        shown = (prints["text"] != records["text"][prints["record"]]) | (~usable & ~prints["speaks"])
        printed: Columns = {
            "record": prints["record"],
            "line": prints["line"],
            "offset": prints["offset"],
            "prefix": prints["prefix"],
            "same": ~prints["differs"],
            "norm": _nothing(prints["norm"], shown & (prints["slack"] >= 0)),
            "slack": _nothing(np.maximum(prints["slack"], 0.0), shown),
            "values": _lists(prints, heads, shown),
            "values_key": _nothing(prints["key"], shown & (prints["count"] > 0)),
            "head": _nothing(prints["head"], shown),
            "length": _nothing(prints["length"], shown),
        }
        tables.prints = schema.frame(schema.PRINTS, printed)
        lead = records["prefix"][passes["first"]]
        times = [self._prefixes[number].time for number in lead.tolist()]
        spoken = records["time"][passes["first"]] if "time" in records else np.full(amount, None, object)
        frame: Columns = {
            "key": keys,
            "file": np.zeros(amount, np.int64),
            "line": records["line"][passes["first"]],
            "time": [own_time or said for own_time, said in zip(times, spoken.tolist(), strict=True)],
            "why": [
                WHY[number].format(rows=rows, tokens=tokens) if number else None
                for number, rows, tokens in zip(
                    *(passes[name].tolist() for name in ("why", "rows", "tokens")), strict=True
                )
            ],
            "rows": _nothing(passes["rows"], passes["rows"] >= 0),
            "wide": _nothing(passes["wide"] == 1, passes["wide"] >= 0),
            "traced": _nothing(passes["traced"] == 1, passes["traced"] >= 0),
            "ago": _nothing(passes["ago"], passes["ago"] >= 0),
            "how": np.array([*schema.HOW.categories, None], object)[passes["how"]].tolist(),
            "region": passes["region"].tolist(),
            "printed": passes["printed"],
        }
        for name in (
            "segment",
            "group",
            "number",
            "role",
            "phase",
            "evidence",
            "during",
            "complete",
            "offset",
            "captures",
            "due_fresh",
        ):
            frame[name] = passes[name]
        frame["expected"] = _nothing(passes["expected"], passes["expected"] >= 0)
        for name in ("first", "last", "join", "input", "fc", "end"):
            frame[name] = _nothing(passes[name], passes[name] >= 0)
        for side in ("due", "own"):
            there = passes[f"{side}_line"] >= 0
            for name in STATE:
                column = passes[f"{side}_{name}"]
                if name in ("rows", "width", "slack"):
                    frame[f"{side}_{name}"] = _nothing(column, there & (column >= 0))
                elif name == "norm":
                    frame[f"{side}_{name}"] = _nothing(column, there & (passes[f"{side}_slack"] >= 0))
                else:
                    frame[f"{side}_{name}"] = _nothing(column, there)
        tables.passes = with_records(schema.frame(schema.PASSES, frame), tables.records)

    def _fill_server(self, tables: Tables, server: Columns) -> None:
        """Make the frame of server lines."""
        server = taken(server, np.argsort(server["offset"], kind="stable"))
        kinds = server["kind"].tolist()
        during = np.zeros(len(kinds), np.int64)
        every = dict.fromkeys(server["lives"].tolist())
        for lives in every:
            mine = slice(None) if len(every) == 1 else np.array([one is lives for one in server["lives"].tolist()])
            during[mine] = lives.during(server["offset"][mine], served_from=lives.served_from)
        tables.said = server["said"].tolist()
        made: Columns = {
            "file": np.zeros(len(kinds), np.int64),
            "segment": server["segment"],
            "during": during,
            "line": server["line"],
            "offset": server["offset"],
            "prefix": server["prefix"],
            "time": [
                self._prefixes[number].time or said
                for number, said in zip(server["prefix"].tolist(), server["time"].tolist(), strict=True)
            ],
            "kind": [payload.kind for payload in kinds],
            "event": [payload.event for payload in kinds],
            "site": [payload.site for payload in kinds],
            "intact": [payload.intact for payload in kinds],
            "said": np.arange(len(kinds)),
        }
        rows = [at for at, payload in enumerate(kinds) if payload.event in ("decode_stats", "prefill_stats")]
        stats = [kinds[at].fields for at in rows]
        for name, dtype in schema.SERVER_VALUES.items() if rows else ():
            values = pl.Series(_values(stats, schema.SERVER_FIELDS.get(name, (name,)), dtype), dtype=dtype)
            where = np.full(len(kinds), len(rows))
            where[rows] = np.arange(len(rows))
            made[name] = pl.concat([values, pl.Series([None], dtype=dtype)]).gather(where)
        tables.server = schema.frame(schema.SERVER, made)


def _values(stats: list[dict[str, Any]], names: tuple[str, ...], dtype: Any) -> list[Any]:
    """Return a field of statistics lines, None where it is not printed or of another kind."""
    wanted = {pl.Float64: float, pl.Int64: int, pl.Boolean: bool}[dtype]
    found: list[Any] = []
    for fields in stats:
        value = None
        for name in names:
            if name in fields:
                value = fields[name]
                break
        kind = type(value)  # a bool is no number here
        if kind is int and wanted is not bool:
            found.append(_whole(value, 64))
        else:
            found.append(value if kind is wanted else None)
    return found


def _nothing(column: np.ndarray, there: np.ndarray) -> pl.Series:
    """Return a column that is null where a mask does not hold."""
    said = pl.Series(column)
    return said if there.all() else pl.select(pl.when(pl.Series(there)).then(said)).to_series()


def _lists(table: Columns, heads: list[Payload], shown: np.ndarray | None = None) -> pl.Series:
    """Return first values as lists, null where none are printed (or shown)."""
    amount = table["count"] if shown is None else np.where(shown, table["count"], 0)
    values = pl.Series("v", table["values"], dtype=pl.Array(pl.Float64, table["values"].shape[1])).arr.to_list()
    lists = pl.col("v") if (amount == table["values"].shape[1]).all() else pl.col("v").list.head("n")
    made = pl.DataFrame({"v": values, "n": amount}).select(pl.when(pl.col("n") > 0).then(lists)).to_series()
    full = np.flatnonzero(amount == table["values"].shape[1])
    of, which = np.unique(table["head"][full], return_inverse=True)
    longer = full[np.array([len(heads[head].head or ()) > table["values"].shape[1] for head in of], np.bool_)[which]]
    if len(longer):
        whole = made.to_list()
        for at in longer.tolist():
            whole[at] = list(heads[table["head"][at]].head or ())
        made = pl.Series(whole, dtype=pl.List(pl.Float64))
    return made


def _whole(value: Any, bits: int) -> int | None:
    """Return a whole number that a column of so many bits holds: digits that were glued together are none."""
    return value if isinstance(value, int) and abs(value) < 1 << bits - 1 else None


def _of_heads(heads: list[Payload], numbers: np.ndarray) -> Columns:
    """Return the columns of records that their heads say."""
    used, places = np.unique(numbers, return_inverse=True)
    some = [heads[number] for number in used.tolist()]

    number = partial(_whole, bits=32)

    def last(value: Any) -> int | None:
        return number(value[-1]) if isinstance(value, list) and value else None

    def truth(value: Any) -> bool | None:
        return value if isinstance(value, bool) else None

    columns: dict[str, Iterable[Any]] = {
        "event": [head.event for head in some],
        "site": [head.site for head in some],
        "role": [head.role for head in some],
        "layer": [number(head.layer) for head in some],
        "rows": [number(head.rows) for head in some],
        "width": [number(head.width) for head in some],
        "derived": [head.norm_derived for head in some],
        "num_aux": [number(num_aux(head)) for head in some],
        "mode": [head.mode for head in some],
        "embeds": [last(head.fields.get("embeds")) for head in some],
        "residual_none": [truth(head.fields.get("residual_is_none")) for head in some],
        "intact": [head.intact for head in some],
        "usable": [head.usable for head in some],
    }
    return {name: schema.series(name, values, schema.RECORDS[name]).gather(places) for name, values in columns.items()}
