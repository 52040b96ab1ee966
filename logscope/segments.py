"""Server lives inside one file: where one begins, what its lines say about the set-up, and where in it we are.

This module is responsible for :class:`Lives`: it opens segments, fills in their facts, and tells for every line whether
it is start-up, graph capture, warm-up or serving. It must not know forward passes or how their phases are found.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

from logscope.model import Segment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logscope.model import During, Occurrence, Payload

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
OPENERS = frozenset({"server_args", "spec_v1", "spec_v2", "load_weight_begin"})
# Lines that show that start-up is over, or that the process is.
PAST = frozenset({"ready", "decode_stats", "request_finish", "sigquit", "traceback"})
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


class Prefill:
    """One ``Prefill batch`` line: where it stands, how many tokens it computed, and whether a pass was found for it."""

    __slots__ = ("dp_rank", "new_token", "offset", "taken")

    def __init__(self, offset: int, new_token: int, dp_rank: int | None) -> None:
        self.offset = offset
        self.new_token = new_token
        self.dp_rank = dp_rank
        self.taken = False


class Lives:
    """The segments of one file, opened by their lines in order.

    Attributes
    ----------
    segment
        the life we are in, None before the first record.
    region
        what is being captured into a graph right now (``""`` the target's own, ``draft``, ...), None outside graph
        capture, ``"any"`` when the line that names it is lost.
    turned
        whether it began in a file before this one.
    speculating
        whether the server drafts at all, as far as its own lines say.
    prefills
        the last ``Prefill batch`` lines, oldest first.
    running, most_running
        ``#running-req`` of the last ``Decode batch`` line, and the most requests that can have run at once.
    past, served
        whether a server line, a debug record shows that start-up is over.
    adaptive, setting, first_setting
        whether steps and draft tokens change while it serves; the pair in force since the last line that says so, and
        the one before the first such line.

    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.segment: Segment | None = None
        self._count = 0
        self.fresh()

    def turn(self) -> None:
        """Go on in the file that took the place of this one: the life is the same, places begin anew."""
        self.prefills.clear()
        self.turned = True

    def fresh(self) -> None:
        """Forget everything about the life before."""
        self.region: str | None = None
        self._regions: dict[tuple[object, ...], str] = {}
        self.turned = False
        self.started = False
        self.ready = False
        self.active = False
        self.past = False
        self.served = False
        self._loads: Counter[tuple[object, ...]] = Counter()
        self.loaded = False
        self.foretold = False
        self.warm_tokens: set[int] = set()
        self.speculating: bool | None = None
        self.prefills: list[Prefill] = []
        self.prefill_lines = 0
        self.running: int | None = None
        self.most_running = 0
        self.announced = 0
        self.decode_lines = 0
        self._rates: frozenset[int] | None = None
        self._args_origin: tuple[object, ...] | None = None
        self.graphs: set[str] = set()
        self.adaptive = False
        self.setting: tuple[int, int] | None = None
        self.first_setting: tuple[int, int] | None = None
        self.belated = False

    @property
    def during(self) -> During:
        """Where in the segment's life a line stands that is printed now."""
        return "graph_capture" if self.region is not None else self.during_serving

    @property
    def during_serving(self) -> During:
        """The same for what is printed while no graph is captured."""
        if self.ready:
            return "serving"
        if self.loaded or self.foretold:
            return "warmup" if self.active or not self.started else "startup"
        # Arguments alone, and no "ready" soon after them: an excerpt, not a start-up.
        return "startup" if self.started and not self.active else "serving"

    @property
    def here(self) -> Segment:
        """The life we are in; asked only behind the first record of the file."""
        if self.segment is None:
            raise RuntimeError("no record has opened a segment yet")
        return self.segment

    def opens(self, payload: Payload, prefix_origin: tuple[object, ...]) -> bool:
        """Tell whether a line begins a new life."""
        if self.segment is None:
            return True
        event = payload.event
        if event not in OPENERS or payload.kind not in ("event", "mark"):
            return False
        several = self.segment.writers is not None and self.segment.writers > 1
        loads = self._loads[prefix_origin]
        if begins_again(event, past=self.past, served=self.served, loads=loads, several=several):
            return True
        # Two servers of one launch (nodes, actors) print their arguments one after the other: one life.
        return event == "server_args" and self._args_origin is not None and self._args_origin == prefix_origin

    def open(self, line: int) -> Segment:
        """Open the next segment at a line."""
        self._count += 1
        self.fresh()
        self.segment = Segment(self._count, self.file, line)
        return self.segment

    def foretell(self, ahead: Iterable[Occurrence]) -> None:
        """Look at the first lines of a life: where its beginning is lost, a later one may say what the first ones were.

        A graph capture that ends without having begun was running from the start; a server that gets ready without
        having started was warming up.
        """
        begun = False
        for _, _, _, payload in ahead:
            event = payload.event
            if event == "ready":
                self.foretold = True
                return
            if begun:
                continue
            if event in ("graph_capture_begin", "load_weight_begin", "server_args", "prefill_stats", "decode_stats"):
                begun = True
            elif event in ("graph_capture_end", "graph_capture_progress"):
                begun = self.started = self.loaded = True
                self.region = str(payload.fields.get("what", ANY))
                self._regions[()] = self.region

    def glued(self) -> None:
        """Note a server line behind a record on its line: the prints are block-buffered, if one process prints."""
        segment = self.segment
        if segment is not None and not segment.buffered and segment.writers == 1:
            segment.buffered = True
            segment.notes.append(
                "debug prints are block-buffered: they come late beside server lines, and the last ones may be lost"
            )

    def late(self) -> None:
        """Note a pass of the warm-up that is printed behind "ready"."""
        segment = self.segment
        if segment is not None and not self.belated:
            self.belated = True
            segment.notes.append(
                'passes of the warm-up are printed behind "ready": serving is taken to begin with the next extend'
            )

    def see(self, occurrence: Occurrence) -> None:
        """Take a server line or a mark: keep its facts, and follow where we are."""
        line, offset, prefix, payload = occurrence
        segment = self.here
        event = payload.event
        if event in STARTUP:
            self.started = True
            self.loaded = self.loaded or event not in ("server_args", "spec_v1", "spec_v2")
        if event in PAST:
            self.past = True
        elif event == LOADS:
            self._loads[prefix.writer] += 1
        if self.region is not None and event in _NOT_CAPTURING:
            self._regions.clear()
            self.region = None
        if event == "decode_stats":
            self._decode(payload)
        elif event == "prefill_stats":
            self.active = True
            new_token = payload.fields.get("new_token")
            self.prefill_lines += 1
            running, new = payload.fields.get("running_req"), payload.fields.get("new_seq")
            if isinstance(running, int) and isinstance(new, int) and payload.usable:
                # Requests end unseen, and lines are lost: no more can run than were ever announced, that is certain.
                self.announced += new
                self.most_running = max(self.most_running, running + new, self.announced)
            if isinstance(new_token, int) and payload.usable:
                if not self.ready:
                    self.warm_tokens.add(new_token)
                self.prefills.append(Prefill(offset, new_token, prefix.dp_rank))
                if len(self.prefills) > 256:
                    del self.prefills[:128]
        elif event == "ready":
            self.ready = True
            if segment.ready_line is None:
                segment.ready_line = line
        elif event == "graph_capture_begin":
            what = str(payload.fields.get("what", ANY))
            self._regions.pop((), None)
            self._regions[prefix.writer] = self.region = what
            self.graphs.add(what)
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
            self._args_origin = prefix.writer
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
        if payload.usable:
            self.speculating = bool(args.get("speculative_algorithm"))

    def _switch(self, payload: Payload) -> None:
        """Follow the number of steps and draft tokens, which adaptive drafting changes while it serves."""
        fields = payload.fields
        if not self.adaptive:
            self.first_setting = _setting(fields.get("steps_from"), fields.get("draft_tokens_from"))
        self.adaptive = True
        self.setting = _setting(fields.get("steps_to"), fields.get("draft_tokens_to"))

    def _decode(self, payload: Payload) -> None:
        """Read what a ``Decode batch`` line says of the batch, and of the draft tokens when no argument does."""
        fields = payload.fields
        running = fields.get("running_req")
        self.decode_lines += 1
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

    @property
    def draft_tokens(self) -> int | None:
        """Draft tokens a round: from server_args, else from the printed accept len and rate when they leave one."""
        if self.adaptive or self.segment is None:
            return None
        if self.segment.num_draft_tokens is not None:
            return self.segment.num_draft_tokens
        return next(iter(self._rates)) if self._rates is not None and len(self._rates) == 1 else None


def _setting(steps: object, tokens: object) -> tuple[int, int] | None:
    if not isinstance(steps, int) or not isinstance(tokens, int) or not 0 < tokens < _MOST:
        return None
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
