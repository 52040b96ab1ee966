"""Server lives inside one file: where one begins, what its lines say about the set-up, and where in it we are.

This module is responsible for :class:`Lives`: one life, its facts, and for every place in it whether it is start-up,
graph capture, warm-up or serving. It must not know forward passes or how their phases are found.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from logscope.model import DURING, Payload, Segment

if TYPE_CHECKING:
    from logscope.model import Prefix

# Lines that only a starting server prints.
STARTUP = frozenset(
    {
        "server_args",
        "load_weight_begin",
        "load_weight_end",
        "kv_cache",
        "graph_capture_begin",
        "graph_capture_end",
        "graph_capture_progress",
        "spec_v1",
        "spec_v2",
        "tree_cache_initialized",
        "graph_prefill_disabled",
    }
)
# Those that open the next life once the one before has served (or died).
OPENERS = frozenset(
    {"server_args", "spec_v1", "spec_v2", "load_weight_begin", "engine_init", "engine_args", "server_version"}
)
# Lines that show that start-up is over, or that the process is.
PAST = frozenset({"ready", "decode_stats", "request_finish", "sigquit", "traceback", "engine_stats", "spec_metrics"})
# A life has two of these lines of every process: the target's and the draft's.
LOADS = "load_weight_begin"
# Lines no server prints while it captures graphs: a region whose end was lost ends here.
_NOT_CAPTURING = frozenset(
    {"ready", "prefill_stats", "decode_stats", "load_weight_begin", "http_access", "server_args"}
)
# More draft tokens a request than any server is started with.
MOST_DRAFT_TOKENS = 64
# A region of which no line says what is captured.
ANY = "any"


# More draft tokens, steps or ranks than any server has.
_MOST = 1 << 31


def begins_again(event: str | None, *, past: bool, served: bool, loads: int, several: bool) -> bool:
    """Tell whether a line of a starting server begins the next life, by what stands before it.

    ``past``: a server line says that start-up was over. ``served``: a debug record shows it; where ``several`` ranks
    print, another one may be ahead of the process that loads its draft, which has said so once before (``loads``).
    """
    return event in OPENERS and (past or (served and not (several and event == LOADS and loads < 2)))


STARTING, CAPTURING, WARMING, SERVING = (DURING.index(d) for d in ("startup", "graph_capture", "warmup", "serving"))
# Columns of the marks of a life: from this offset on, what holds.
_MARKS = ("offset", "ready", "loaded", "started", "active", "region", "steps", "tokens")


class Lives:
    """One life of a server, read from its lines in order.

    Attributes
    ----------
    segment
        what is known of its set-up.
    began
        whether its beginning stands in the log: a line that only a starting server prints.
    speculating
        whether the server drafts at all, as far as its own lines say.
    regions
        names of what was captured into graphs (``""`` the target's own, ``draft``, ..., ``"any"`` when the line that
        names it is lost); a region is a number of this list.
    past
        whether a server line shows that start-up is over.
    adaptive
        whether steps and draft tokens change while it serves.
    padded
        data-parallel attention: passes of ranks without a request look like real ones.

    """

    def __init__(self, segment: Segment, offset: int, *, turned: bool = False) -> None:
        self.here = segment
        self.offset = offset
        self.turned = turned
        self.regions: list[str] = []
        self._regions: dict[tuple[object, ...], str] = {}
        self.region: str | None = None
        self.started = self.ready = self.active = self.past = self.loaded = self.foretold = False
        self.begun = False
        self.loads: Counter[tuple[object, ...]] = Counter()
        self.args_origin: tuple[object, ...] | None = None
        self.speculating: bool | None = None
        self.warm_tokens: set[int] = set()
        self.prefills: list[tuple[int, int]] = []  # offset, new tokens
        self.running: int | None = None
        self.most_running = self._announced = 0
        self._rates: frozenset[int] | None = None
        self.adaptive = False
        self.steps_now = self.tokens_now = -1
        self.padded = False
        self.draft_graphs = False
        self.belated = False
        self.served_from: int | None = None
        self._marks: list[tuple[int, ...]] = []
        self._mark(offset)

    @property
    def prefill_lines(self) -> int:
        """How many ``Prefill batch`` lines stand in it so far."""
        return len(self.prefills)

    @property
    def cut(self) -> bool:
        """Whether its beginning is lost: no line of a starting server stands in it so far."""
        return not self.started

    def ends_with(self, payload: Payload, prefix: Prefix, *, served: bool) -> bool:
        """Tell whether a line begins the next life; ``served``: debug records show that this one was served."""
        event = payload.event
        if event not in OPENERS or payload.kind not in ("event", "mark"):
            return False
        several = self.here.writers is not None and self.here.writers > 1
        if begins_again(event, past=self.past, served=served, loads=self.loads[prefix.writer], several=several):
            return True
        # Two servers of one launch (nodes, actors) print their arguments one after the other: one life.
        return event == "server_args" and self.args_origin is not None and self.args_origin == prefix.writer

    def moved(self, offset: int) -> Lives:
        """Return the same life in the file that took the place of this one: places begin anew."""
        self.turned, self.offset, self.served_from = True, offset, None
        self.prefills.clear()
        self._marks.clear()
        self._mark(offset)
        return self

    def late(self) -> None:
        """Note a pass of the warm-up that is printed behind "ready"."""
        if not self.belated:
            self.belated = True
            self.here.notes.append(
                'passes of the warm-up are printed behind "ready": serving is taken to begin with the next extend'
            )

    def buffers(self) -> None:
        """Note a server line behind a record on its line: the prints are block-buffered, if one process prints."""
        if not self.here.buffered:
            self.here.buffered = True
            self.here.notes.append(
                "debug prints are block-buffered: they come late beside server lines, and the last ones may be lost"
            )

    # -- where a place stands ------------------------------------------------------------------------------------------

    def _mark(self, offset: int) -> None:
        """Remember what holds from an offset on."""
        region = -1
        if self.region is not None:
            if self.region not in self.regions:
                self.regions.append(self.region)
            region = self.regions.index(self.region)
        now = (
            self.ready,
            self.loaded or self.foretold,
            self.started,
            self.active,
            region,
            self.steps_now,
            self.tokens_now,
        )
        if not self._marks or self._marks[-1][1:] != now:
            self._marks.append((offset, *map(int, now)))

    def at(self, offsets: np.ndarray) -> dict[str, np.ndarray]:
        """Return what holds at these offsets, by the names of _MARKS."""
        table = np.array(self._marks, np.int64)
        rows = np.maximum(np.searchsorted(table[:, 0], offsets, side="right") - 1, 0)
        return dict(zip(_MARKS, table[rows].T, strict=True))

    def during(self, offsets: np.ndarray, *, served_from: int | None) -> np.ndarray:
        """Return where in the life server lines stand; ``served_from``: offset of the first pass that was served."""
        marks = self.at(offsets)
        active = marks["active"] > 0
        if served_from is not None:
            active |= offsets >= served_from
        warm = np.where(active | (marks["started"] == 0), WARMING, STARTING)
        cold = np.where((marks["started"] > 0) & ~active, STARTING, SERVING)
        found = np.where(marks["ready"] > 0, SERVING, np.where(marks["loaded"] > 0, warm, cold))
        return np.where(marks["region"] >= 0, CAPTURING, found)

    def of_passes(self, offsets: np.ndarray) -> np.ndarray:
        """Return the same for passes outside graph capture."""
        marks = self.at(offsets)
        return np.where(marks["ready"] > 0, SERVING, np.where(marks["loaded"] > 0, WARMING, SERVING))

    def foretell(self, line: Payload) -> None:
        """Look at a line of a life whose beginning is lost: it may say what the first lines were.

        A graph capture that ends without having begun was running from the start; a server that gets ready without
        having started was warming up.
        """
        event = line.event
        if event == "ready":
            self.foretold = True
            self._marks = [(*mark[:2], 1, *mark[3:]) for mark in self._marks]
        elif self.begun:
            return
        elif event in ("graph_capture_begin", "load_weight_begin", "server_args", "prefill_stats", "decode_stats"):
            self.begun = True
        elif event in ("graph_capture_end", "graph_capture_progress"):
            self.begun = self.started = self.loaded = True
            self.region = str(line.fields.get("what", ANY))
            self._regions[()] = self.region
            self._marks.clear()
            self._mark(self.offset)

    # -- Prefill lines -------------------------------------------------------------------------------------------------

    def said_behind(self, offsets: np.ndarray, rows: np.ndarray, *, passes: int = 2) -> np.ndarray:
        """Tell whether a Prefill line of so many tokens stands behind a pass: between the one so many on and the next.

        ``passes`` 2: right behind the draft pass that follows a target pass (as spec v1 has it); 1: behind itself.
        """
        said = np.zeros(len(offsets), np.bool_)
        if not self.prefills:
            return said
        edges = np.append(offsets, 1 << 62)
        for offset, tokens in self.prefills:
            behind = int(np.searchsorted(offsets, offset)) - passes
            if behind >= 0 and behind + passes < len(edges) and rows[behind] == tokens:
                said[behind] = True
        return said

    def named(
        self, offsets: np.ndarray, rows: np.ndarray, tokens: np.ndarray, reach: int, *, apart: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tell which target passes a Prefill line names by their rows, and which it may name.

        A line stands before its extend, or up to ``reach`` passes behind it: a log has its usual place, which is
        learned from rows that no verify has. Without it, a line names a pass where it may name no other.
        """
        may, places = np.zeros(len(offsets), np.bool_), []
        learned: Counter[int] = Counter()
        odd = (tokens > 0) & (rows % np.maximum(tokens, 1) != 0)
        for offset, count in self.prefills:
            at = int(np.searchsorted(offsets, offset))
            fits = [place for place in range(max(at - reach, 0), min(at + 1, len(offsets))) if rows[place] == count]
            may[fits] = True
            places.append((at, fits))
            if len(fits) == 1 and odd[fits[0]]:
                learned[at - fits[0]] += 1
        usual = learned.most_common(1)
        known = usual[0][0] if usual and usual[0][1] >= 0.8 * learned.total() else None
        named = np.zeros(len(offsets), np.bool_)
        for at, fits in places:
            own = [place for place in fits if at - place == known]
            if len(fits) == 1 and (known is None or odd[fits[0]] or own):
                own = fits
            named[own] = True
        if known is not None and not apart:
            # A line that names the pass in its usual place names no other.
            may = named | np.isin(
                np.arange(len(offsets)), [p for at, fits in places if at - known not in fits for p in fits]
            )
        return named, may

    def may_hide(self, version: str | None) -> bool:
        """Tell whether verifies may print nothing, so that one may stand between a decode step and an extend."""
        return version == "v1" and bool(self.regions) and not self.here.buffered

    # -- its lines -----------------------------------------------------------------------------------------------------

    def see(self, line: int, offset: int, prefix: Prefix, payload: Payload) -> None:
        """Take a server line or a mark: keep its facts, and follow where we are."""
        segment = self.here
        event = payload.event
        if event in STARTUP:
            self.started = True
            self.loaded = self.loaded or event not in ("server_args", "spec_v1", "spec_v2")
        if event in PAST:
            self.past = True
        elif event == LOADS:
            self.loads[prefix.writer] += 1
        if self.region is not None and event in _NOT_CAPTURING:
            self._regions.clear()
            self.region = None
        if event == "decode_stats":
            self._decode(payload)
        elif event == "prefill_stats":
            self.active = True
            new_token = payload.fields.get("new_token")
            running, new = payload.fields.get("running_req"), payload.fields.get("new_seq")
            if isinstance(running, int) and isinstance(new, int) and payload.usable:
                # Requests end unseen, and lines are lost: no more can run than were ever announced, that is certain.
                self._announced += new
                self.most_running = max(self.most_running, running + new, self._announced)
            if isinstance(new_token, int) and payload.usable:
                if not self.ready:
                    self.warm_tokens.add(new_token)
                self.prefills.append((offset, new_token))
        elif event == "ready":
            self.ready = True
            if segment.ready_line is None:
                segment.ready_line = line
        elif event == "graph_capture_begin":
            what = str(payload.fields.get("what", ANY))
            self._regions.pop((), None)
            self._regions[prefix.writer] = self.region = what
            self.draft_graphs |= "draft" in what and "extend" not in what
            segment.graphs_captured = True
            if "draft" in what or "verify" in what:
                self.speculating = True
        elif event == "graph_capture_end":
            segment.graphs_captured = True
            self._regions.pop((), None)
            self._regions.pop(prefix.writer, None)
            self.region = next(iter(self._regions.values()), None)
        elif event == "graph_capture_progress":
            segment.graphs_captured = True
            if self.region is None and not self.ready:
                self._regions[()] = self.region = ANY
        elif event == "server_args":
            self._args(segment, payload)
            segment.server_args_line = line
            self.args_origin = prefix.writer
        elif event in ("spec_v1", "spec_v2"):
            if self.speculating is None:
                self.speculating = True
            segment.spec_version = event[-2:]
            segment.spec_evidence = f"line {line} says so"
        elif event == "load_weight_end":
            if re.search(r"eagle|nextn|mtp", str(payload.fields.get("type", "")), re.IGNORECASE):
                self.speculating = True
        elif event == "adaptive_switch":
            self._switch(payload)
        self._mark(offset)

    def _args(self, segment: Segment, payload: Payload) -> None:
        args = payload.fields
        segment.server_args = args
        for name, key in (
            ("tp_size", "tp_size"),
            ("dp_size", "dp_size"),
            ("num_draft_tokens", "speculative_num_draft_tokens"),
            ("num_steps", "speculative_num_steps"),
            ("topk", "speculative_eagle_topk"),
            ("decode_log_interval", "decode_log_interval"),
        ):
            value = args.get(key)
            # Damage may print any number; a size or a count of nought or of many digits is none.
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST:
                setattr(segment, name, value)
        self.steps_now = segment.num_steps or -1
        self.tokens_now = segment.num_draft_tokens or -1
        self.padded |= args.get("enable_dp_attention") is True
        if payload.usable:
            self.speculating = bool(args.get("speculative_algorithm"))

    def _switch(self, payload: Payload) -> None:
        """Follow the number of steps and draft tokens, which adaptive drafting changes while it serves."""
        fields = payload.fields
        self.adaptive = True
        self.steps_now, self.tokens_now = _setting(fields.get("steps_to"), fields.get("draft_tokens_to"))

    def _decode(self, payload: Payload) -> None:
        """Read what a ``Decode batch`` line says of the batch, and of the draft tokens when no argument does."""
        fields = payload.fields
        running = fields.get("running_req")
        if not payload.usable:
            return
        if isinstance(running, int):
            self.running = running
            self.most_running = max(self.most_running, running)
        length, rate = fields.get("accept_len"), fields.get("accept_rate")
        if self.speculating is None:
            self.speculating = isinstance(length, (int, float))
        if isinstance(length, (int, float)) and isinstance(rate, (int, float)) and not self.adaptive:
            fits = draft_tokens(length, rate)
            self._rates = fits if self._rates is None else self._rates & fits
            if self.here.num_draft_tokens is None:
                self.tokens_now = next(iter(self._rates)) if len(self._rates) == 1 else -1


def _setting(steps: object, tokens: object) -> tuple[int, int]:
    if not isinstance(steps, int) or not isinstance(tokens, int) or not 0 < tokens < _MOST:
        return -1, -1
    return steps, tokens


@lru_cache(maxsize=4096)
def draft_tokens(length: float, rate: float) -> frozenset[int]:
    """Return the draft tokens N (2 to 64) for which an accept rate of two decimals fits an accept len.

    Two definitions name N: rate = len / N, and rate = (len - 1) / (N - 1) (docs/explanation/accept-rate.md).
    """
    slack = 0.005 + 1e-9
    fits = set()
    for number in range(2, MOST_DRAFT_TOKENS + 1):
        for numerator, denominator in ((length, number), (length - 1, number - 1)):
            low, high = (numerator - slack) / denominator, (numerator + slack) / denominator
            if low - slack <= rate <= high + slack:
                fits.add(number)
    return frozenset(fits)
