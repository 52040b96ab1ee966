"""What every rule is made of: its code and promise, what it may ask, and how it keeps the onset of a fault.

This module is responsible for the registry of rules, for :class:`Scene` (what is known of the server life a rule
looks at), :class:`View` (one forward pass as rules see it) and :class:`Onset` (first bad pass, last good one, share).
It must not know any single rule, nor how findings are put into a headline.

A rule lives for one segment. It sees every pass and server line of it once and answers at the end; it keeps counts and
the onset, never the passes, so a check runs on a stream with flat memory.
"""

from __future__ import annotations

from collections import Counter, deque
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from logscope.model import CAPTURE_EVENTS, Finding, Place, num_aux
from logscope.queries.folded import Accepted, Failed
from logscope.queries.lineage import Follower, Identity, Trace, identity, same_head, same_norm
from logscope.queries.words import count, layer_name, percent, source_name
from logscope.versions import EraWatch, Known

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from logscope.contract import Contract, Reading
    from logscope.model import ForwardPass, Occurrence, Payload, Phase, Record, Segment, ServerEvent, Severity

# Passes without a join that are remembered as possible pieces of the next one with a join.
_PIECES = 8
# Whole passes after which several writers that never agree are taken to be past the cut beginning of a log.
_EDGE = 16
# Passes they must agree on until then, and those at the very beginning that show that nothing was cut off.
_AGREED = 4
_UNCUT = 2
_CUT = -1
_USABLE = frozenset({"whole", "partial"})
# In a log in doubt, so few bad passes, or fewer than one in so many since the first, are no more than a note.
_FEW = 4
# Captures that single passes lack before it is asked whether others have them; sets of layers that are counted.
_SCATTERED = 4
_MOST_SHOWN = 64
_MARKED_GROUP = 3
GROUPS = ("shapes", "captures", "norms", "ranks", "acceptance", "failures", "parsing")

_RULES: dict[str, type[Rule]] = {}
_R = TypeVar("_R", bound="type[Rule]")


def register(code: str, name: str, severity: Severity, *, group: str, needs: str) -> Any:
    """Register a rule class under its fixed code.

    ``severity`` is what the rule answers with when nothing lessens it; ``needs`` says what the log, or the contract,
    must show for it to be decided, and becomes part of the reason when it is not.
    """

    def enter(rule: _R) -> _R:
        rule.code, rule.name, rule.severity, rule.group, rule.needs = code, name, severity, group, needs
        if code in _RULES:
            raise ValueError(f"two rules are called {code}")
        _RULES[code] = rule
        return rule

    return enter


def rules() -> dict[str, type[Rule]]:
    """Return every rule by code, in the order of the codes' families (S, H, N, A, R, C, E, L)."""
    return {code: _RULES[code] for code in sorted(_RULES, key=lambda code: ("SHNARCEL".index(code[0]), code))}


def page(code: str) -> str:
    """Return the documentation page of a rule, Markdown.

    The pages of docs/rules are the one source: a wheel carries them beside this package, a checkout finds them there.
    """
    packed = resources.files("logscope.rules").joinpath("pages", f"{code}.md")
    if packed.is_file():
        return packed.read_text(encoding="utf-8")
    return (Path(__file__).parents[2] / "docs" / "rules" / f"{code}.md").read_text(encoding="utf-8")


class Checked(NamedTuple):
    """How much a rule looked at: a number, what was counted, and the worst value it saw (in words)."""

    looked: int
    unit: str = "pass"
    worst: str | None = None


class Scene:
    """What is known of one server life: its contract, settings, era and, as passes go by, its widths and lineage.

    hidden
        width of one state of the target, from the captures; from ``forward_end``, the contract or the plan where
        captures are not printed.
    draft_hidden
        width of the draft's own state, from the embeddings it reads.
    accept, failures
        the folds of the accept and errors queries over this segment, shared by the rules about them.
    """

    def __init__(self, segment: Segment, contract: Contract | None, given: Known | None) -> None:
        self.segment = segment
        self.contract = contract
        self._given = given
        self.watch = EraWatch(segment)
        self.accept = Accepted()
        self.failures = Failed()
        self.accept.see(segment)
        self.failures.see(segment)
        self.hidden: int | None = None
        self.draft_hidden: int | None = None
        self._followers: dict[tuple[Any, ...], Follower] = {}
        self._since_target: dict[tuple[Any, ...], int] = {}
        self._loose: dict[tuple[Any, ...], list[View]] = {}
        self._whole: dict[tuple[tuple[Any, ...], str], int] = {}
        self._begun: dict[tuple[Any, ...], int] = {}
        self._full: dict[tuple[tuple[Any, ...], str], tuple[int, int]] = {}
        self._topk: int | None = None
        self._unmarked = self._tangled = False
        self._excess: deque[float] = deque(maxlen=8)
        self._shown: dict[tuple[Any, ...], Counter[tuple[int, ...]]] = {}
        # Findings that a log in doubt made no more than notes; they are told as one.
        self.lessened: list[Finding] = []
        # From this line on a rank is out of step, so that passes of all ranks cannot be put together; who says so.
        self.out_of_step: int | None = None
        self.absences: list[Finding] = []
        self.last_join: dict[tuple[Any, ...], View] = {}

    @property
    def era(self) -> Known:
        """The era of SGLang: as the user gives it, else as the log tells it."""
        return self._given if self._given is not None else self.watch.known()

    @property
    def readings(self) -> tuple[Reading, ...]:
        """The contract's layers as this era and target print them; none without a contract that names layers."""
        return () if self.contract is None else self.contract.readings(self.era.era, self.watch.target_type)

    @property
    def is_eagle3(self) -> bool:
        """False when server_args names another way of speculating (EAGLE, NEXTN, NGRAM) or none."""
        args = self.segment.server_args
        if "speculative_algorithm" not in args:
            return not args or len(args) < 50  # a shortened line need not name it
        return str(args["speculative_algorithm"]).upper() == "EAGLE3"

    @property
    def rows_may_differ(self) -> str | None:
        """Return why rows of one pass need not agree (padding and scattering under data-parallel attention)."""
        args = self.segment.server_args
        if args.get("enable_dp_attention") or (self.segment.dp_size or 1) > 1:
            return "under data-parallel attention rows are padded and scattered over ranks"
        return None

    @property
    def topk(self) -> int | None:
        """The topk of server_args; 1 when a draft decode of one row was seen, which no tree has."""
        return self.segment.topk if self.segment.topk is not None else self._topk

    @property
    def doubt(self) -> str | None:
        """Return why single odd passes may be the log's doing: schedulers that print into one file without a mark."""
        if self._unmarked and self.rows_may_differ is not None:
            return "data-parallel schedulers print unmarked into this log, so single passes may be mixed up"
        if self._tangled:
            return "records of several schedulers are mixed in this log, without a mark"
        if any(map(_scattered, self._shown.values())):
            return "passes lack layers that others have too many of: several schedulers print unmarked into this log"
        return None

    def _weigh(self, view: View) -> None:
        """Look for two near passes whose captures and joins only add up together: their records are exchanged."""
        found, join = view.identity, view.join
        if found is None or join is None or found.holds is not False or found.residual is None:
            return
        square = (join.payload.norm or 0.0) ** 2
        excess = found.residual * square
        slack = 2 * found.tolerance * square
        self._tangled = self._tangled or any(abs(excess + other) <= slack for other in self._excess)
        self._excess.append(excess)

    def enter(self, item: ForwardPass, damaged: Sequence[Occurrence], *, clean: bool) -> View:
        """Return the view of the next pass, in order; ``damaged`` are its damaged records and copies."""
        key = item.group
        # A group of more than origin, DP and PP rank is one of several that were told apart without a mark.
        self._tangled = self._tangled or len(key) > _MARKED_GROUP
        prefix = item.records[0].first[2]
        self._unmarked = self._unmarked or (prefix.dp_rank is None and prefix.tp_rank is None and prefix.pid is None)
        order = self._since_target.get(key)
        if item.role == "target":
            self._since_target[key] = 0
            order = None
        elif order is not None:
            self._since_target[key] = order + 1
        edge = not self._left_edge(item)
        view = View(self, item, order, damaged, clean=clean, edge=edge, told_apart=self._told_apart(item))
        if item.role == "draft" and item.phase == "decode" and view.rows == 1 and item.during != "graph_capture":
            self._topk = 1
        loose = self._loose.setdefault(key, [])
        if loose and (loose[-1].item.role != item.role or loose[-1].item.during != item.during):
            loose.clear()
        if view.join is None:
            loose.append(view)
            del loose[:-_PIECES]
        else:
            view.take_pieces(loose)
            loose.clear()
        self.hidden = self.hidden or view.hidden
        self.draft_hidden = self.draft_hidden or view.draft_hidden
        if item.during != "graph_capture":
            self._follow(view)
            self._show(view)
        return view

    def _show(self, view: View) -> None:
        """Count which layers a pass captures; what stood as passes of their own counts as one with it."""
        shown = self._shown.setdefault(view.item.group, Counter())
        for piece in view.pieces:
            shown[_layers_of(piece.captures)] -= 1
        layers = _layers_of(view.all_captures)
        if layers and (layers in shown or len(shown) < _MOST_SHOWN):
            shown[layers] += 1

    def _left_edge(self, item: ForwardPass) -> bool:
        """Return whether the log is past its cut beginning, where passes lack records without a fault.

        One writer is past it with its first whole pass. Several writers are cut at different places. They were not cut
        when server_args stands before them, or when all of them agree on the first two passes; else they are past it
        when they have agreed on a few, at the latest after some whole ones (one rank may always differ).
        """
        group, side = item.group, (item.group, item.role)
        alike = all(one.copies >= (item.expected_copies or 2) and not one.variants for one in item.records)
        agreed = item.complete and alike
        begun = self._begun.get(group, 0)
        if 0 <= begun < _UNCUT:
            begun = self._begun[group] = begun + 1 if agreed else _CUT
        if begun > 0:
            return True
        whole = self._whole.get(side, 0)
        if (item.expected_copies == 1 or alike) and whole < _EDGE and self.segment.server_args_line is not None:
            # A log that begins with the server: nothing was cut off, even if no pass is ever whole.
            whole = self._whole[side] = _EDGE
        if item.complete and whole < _EDGE:
            if item.expected_copies == 1 or self.segment.server_args_line is not None:
                whole = _EDGE
            else:
                whole += _EDGE // _AGREED if agreed else 1
            self._whole[side] = whole
        return whole >= _EDGE

    def _told_apart(self, item: ForwardPass) -> bool:
        """Return whether the copies of this pass are told apart from its neighbours': every record has all of them.

        Where writers interleave, a record that misses a copy may have given it to another pass, or taken one. A
        group in which hardly any pass has all copies is judged all the same: one writer prints less than the others.
        """
        expected = item.expected_copies
        if expected is None or expected == 1:
            # Dummy passes come twice with equal values: without the number of writers they cannot be told from copies.
            return expected == 1 or item.during != "graph_capture"
        if all(record.first[2].tp_rank is not None for record in item.records):
            # Every rank says who it is: one that prints start-up lines only, or fewer records, takes nothing away.
            return True
        side = (item.group, item.role)
        full, partial = self._full.get(side, (0, 0))
        if all(record.copies == expected for record in item.records):
            self._full[side] = (full + 1, partial)
            return True
        self._full[side] = (full, partial + 1)
        return partial > 4 * full + _EDGE

    def _follow(self, view: View) -> None:
        item = view.item
        follower = self._followers.setdefault(item.group, Follower())
        if item.role == "target":
            follower.target(item)
            self._weigh(view)
            if view.join is not None:
                self.last_join[item.group] = view
            else:
                self.last_join.pop(item.group, None)
        else:
            view.trace = follower.draft(item, self.topk)


class View:
    """One forward pass as rules see it; what several rules need is worked out once, when first asked.

    first, join, read
        its first usable record of every event but captures; the joined state; what a draft pass read.
    order
        for a draft pass: how many draft passes came since the target's last one (0 = the first after it); None when
        no target pass is known before it.
    damaged
        its records and copies that are cut or rejoined.
    clean
        False when damaged records stand among its lines: what is missing may have been lost in the log.
    told_apart
        False when copies of several interleaving writers may have got into another pass.
    edge
        True while its writers have not printed a whole pass of this role yet: the log begins in the middle of one.
    pieces
        passes before it that belong to the same forward although order, rows or layers do not fit: one forward prints
        rising layers with equal rows, so a repeated or contradicting record begins a new pass.
    """

    __slots__ = (
        "_identity", "captures", "clean", "damaged", "draft_hidden", "edge", "first", "hidden", "item", "join", "order",
        "pieces", "read", "rows", "scene", "told_apart", "trace",
    )  # fmt: skip

    def __init__(
        self,
        scene: Scene,
        item: ForwardPass,
        order: int | None,
        damaged: Sequence[Occurrence],
        *,
        clean: bool,
        edge: bool,
        told_apart: bool,
    ) -> None:
        self.scene = scene
        self.item = item
        self.order = order
        self.captures: list[Record] = []
        self.damaged = damaged
        self.clean = clean
        self.edge = edge
        self.told_apart = told_apart
        self.pieces: tuple[View, ...] = ()
        self.first: dict[str, Record] = {}
        for record in item.records:
            payload = record.first[3]
            event = payload.event
            if payload.intact not in _USABLE:
                self.clean = False
            elif event in CAPTURE_EVENTS:
                self.captures.append(record)
            elif event not in self.first:
                self.first[event] = record
        self.join = self.first.get("aux_concat")
        self.read = self.first.get("forward")
        self.rows = item.rows
        self.hidden = self._hidden()
        self.draft_hidden = _last_of(self.read.first[3].fields.get("embeds")) if self.read is not None else None
        self.trace: Trace | None = None
        self._identity: Identity | None = None

    def take_pieces(self, loose: Sequence[View]) -> None:
        """Take the passes without a join right before this one as pieces of it, when only together they are one.

        Target: together they capture as many layers as were joined, or everything was captured there and only the join
        stands here. Draft: the input stands there, the rest here.
        """
        if not self.clean or not all(view.clean for view in loose):
            return
        for start in range(len(loose) - 1, -1, -1):
            pieces = loose[start:]
            if self._fits(pieces):
                self.pieces = tuple(pieces)
                self.edge = pieces[0].edge
                return

    def _fits(self, pieces: Sequence[View]) -> bool:
        if self.item.role == "draft":
            return len(pieces) == 1 and pieces[0].read is not None and self.read is None
        theirs = [record for view in pieces for record in view.captures]
        if not self.captures:
            return bool(theirs) and len(theirs) == self.num_aux
        if self.num_aux is None or any("forward_end" in view.first for view in pieces):
            return False
        layers: dict[int | None, Payload] = {}
        for record in (*theirs, *self.captures):
            before = layers.setdefault(record.payload.layer, record.payload)
            # The same layer twice is a piece only when it says the same twice; else it is a pass of its own.
            if not (same_norm(before, record.payload) and same_head(before, record.payload)):
                return False
        return len(layers) == self.num_aux

    @property
    def records(self) -> list[Record]:
        """All records of the forward, those of earlier pieces included."""
        return [record for view in self.pieces for record in view.item.records] + self.item.records

    @property
    def all_captures(self) -> list[Record]:
        """All usable captures of the forward in printed order, those of earlier pieces included."""
        return [record for view in self.pieces for record in view.captures] + self.captures

    def _hidden(self) -> int | None:
        """Return the width of one state of the target, as this pass prints it."""
        if self.item.role != "target":
            return None
        for record in self.captures:
            if record.payload.width:
                return record.payload.width
        end = self.first.get("forward_end")
        if end is not None:
            return end.payload.width or _last_of(_last_of(end.payload.fields.get("shapes")))
        return None

    @property
    def judged(self) -> bool:
        """True when norm and capture rules may look at it: real input, its own records, not at the log's cut edge."""
        return self.item.during != "graph_capture" and not self.edge and self.told_apart and self.rows != 0

    @property
    def num_aux(self) -> int | None:
        """How many states were joined, as the join prints it, else as ``forward_end`` does; a count of rows is none."""
        if self.join is not None and counts_rows(self.join.payload, self.hidden):
            return (self.join.payload.width or 0) // (self.hidden or 1)
        end = self.first.get("forward_end")
        for record in (self.join, end):
            value = num_aux(record.payload) if record is not None else None
            if value is not None:
                return value
        shapes = end.payload.fields.get("shapes") if end is not None else None
        return len(shapes) if isinstance(shapes, list) else None

    @property
    def identity(self) -> Identity | None:
        """How its joined state relates to its captures; None without both, or when not all rows were kept."""
        if self._identity is None and self.join is not None and self.captures:
            rows = self.captures[0].payload.rows
            if rows is None or self.join.payload.rows in (rows, None):
                self._identity = identity(self.captures, self.join.payload, self.num_aux)
        return self._identity

    @property
    def joined(self) -> tuple[Record, ...] | None:
        """The captures that were joined, None when that cannot be told.

        All of them when as many were joined; without the embedding when one fewer was (it is printed, not joined);
        the subset whose norms fit otherwise.
        """
        wanted = self.num_aux
        if wanted is None or wanted == len(self.captures):
            return tuple(self.captures) if wanted is not None or self.join is not None else None
        found = self.identity
        if found is not None and found.holds and len(found.joined) == wanted:
            return found.joined
        layers = [record for record in self.captures if not is_embedding(record.payload)]
        return tuple(layers) if len(layers) == wanted else None

    def lines(self, *records: Record | None) -> str:
        """Return ``lines 80, 83, 86``, the records' places for the eye."""
        numbers = [str(record.line) for record in records if record is not None]
        return f"line{'s' * (len(numbers) > 1)} {', '.join(numbers)}"


def counts_rows(payload: Payload, hidden: int | None) -> bool:
    """Tell whether a join's ``num_aux`` is its rows: a list's print of one packed [rows, states x hidden] tensor.

    Targets of the DeepSeek family hand their captures on in this form from SGLang 0.5.17 on.
    """
    printed, width = num_aux(payload), payload.width
    if printed is None or printed != payload.rows or not hidden or not width or width % hidden:
        return False
    return width // hidden not in (1, printed)


def is_embedding(payload: Payload) -> bool:
    """Return whether a capture is the embedding output: layer 0, the state before any decoder layer."""
    return payload.event == "embed_capture" or payload.layer == 0


def _layers_of(captures: Sequence[Record]) -> tuple[int, ...]:
    return tuple(record.payload.layer or 0 for record in captures)


def _scattered(shown: Counter[tuple[int, ...]]) -> bool:
    """Return whether passes lack layers, and other passes have just those: nothing is missing, passes are mixed up.

    A line that is not printed, or not captured, is missing from the whole file; one that got into another scheduler's
    pass is not.
    """
    if not shown:
        return False
    usual = max(shown, key=lambda layers: shown[layers])
    parts = {layers: times for layers, times in shown.items() if layers != usual and set(layers) <= set(usual)}
    lacking = sum(times * len(set(usual) - set(layers)) for layers, times in parts.items())
    totals = Counter[int]()
    for layers, times in shown.items():
        for layer in layers:
            totals[layer] += times
    each = [totals[layer] for layer in usual]
    return lacking >= _SCATTERED and (max(each) - min(each)) * _FEW <= lacking


def _last_of(value: Any) -> Any:
    return value[-1] if isinstance(value, (list, tuple)) and value else None


class Onset:
    """First bad pass, the last good one before it from the same source, how many of how many are bad, and where from.

    ``seen`` and ``last_good`` are the good passes before it was begun, when what it watches shows up late. A source is
    an origin (a pod, a service) with its DP and PP rank: one log may hold several, and only one of them be at fault.
    """

    __slots__ = ("_bad_in", "_last_good", "_phases", "bad", "detail", "first", "good_before", "place", "seen", "since")

    def __init__(self, seen: int = 0, last_good: ForwardPass | None = None) -> None:
        self.seen = seen
        self.bad = self.since = 0
        self.first: ForwardPass | None = None
        self.place: Place | None = None
        self.detail: Any = None
        self.good_before: ForwardPass | None = None
        # By source: its last good pass before the first bad one of all, None when it had none.
        self._last_good: dict[tuple[Any, ...], ForwardPass | None] = {}
        self._bad_in: set[tuple[Any, ...]] = set()
        # By phase: how many good and how many bad passes.
        self._phases: dict[Phase, list[int]] = {}
        if last_good is not None:
            self._last_good[source_of(last_good)] = last_good

    @classmethod
    def of(cls, bad: int, seen: int) -> Onset:
        """Return an onset of so many bad passes of so many, when only the counts are known."""
        onset = cls()
        onset.bad, onset.seen, onset.since = bad, seen, seen
        return onset

    def good(self, item: ForwardPass) -> None:
        """Take a pass that is as it should be."""
        self.seen += 1
        self._phases.setdefault(item.phase, [0, 0])[0] += 1
        if self.first is not None:
            self.since += 1
            self._last_good.setdefault(source_of(item), None)
        else:
            self._last_good[source_of(item)] = item

    def fault(self, item: ForwardPass, record: Record | None = None, detail: Any = None) -> bool:
        """Take a pass that is not, with the record that shows it; return whether it is the first."""
        self.seen += 1
        self.bad += 1
        self.since += 1
        self._phases.setdefault(item.phase, [0, 0])[1] += 1
        source = source_of(item)
        self._bad_in.add(source)
        before = self._last_good.setdefault(source, None)
        if self.first is not None:
            return False
        self.first = item
        self.place = Place(item.file, record.line) if record is not None else item.place
        self.detail = detail
        self.good_before = before
        return True

    def __bool__(self) -> bool:
        """Return whether something is bad."""
        return self.bad > 0

    @property
    def words(self) -> str:
        """Since when and how often, for the evidence of a finding."""
        if self.first is None:
            return "never"
        share = f"{self.bad:,} of {count(self.seen, 'pass')} ({percent(self.bad, self.seen)})"
        if self.bad == self.seen:
            return f"in {'the only pass' if self.seen == 1 else f'all {self.seen:,} passes'} looked at"
        phase = self._only_phase
        if phase is not None:
            others = f"none of {self.seen - self.bad:,} others"
            return f"in all {self.bad:,} {phase} passes looked at, and in {others}{self._where}"
        if self.good_before is None:
            return f"from the first pass on, {share}{self._where}"
        number, place = self.good_before.number, self.good_before.place
        later = "" if self.since == self.seen or self.bad == 1 else f"; {self.bad:,} of {self.since:,} since then"
        return (
            f"{share}; first in {pass_name(self.first)}{later}; the last good one before it is pass {number} ({place})"
            f"{self._where}"
        )

    @property
    def _only_phase(self) -> Phase | None:
        """The phase all bad passes have and no good one has; None when it is not that simple, or not known."""
        bad = [phase for phase, (_, times) in self._phases.items() if times]
        known = sum(map(sum, self._phases.values())) == self.seen and "unknown" not in self._phases
        # Good passes behind the first bad one: else it may as well be a change in time.
        only = len(bad) == 1 and known and 1 < self.bad < self.since and not self._phases[bad[0]][0]
        return bad[0] if only else None

    @property
    def _where(self) -> str:
        return "" if self.first is None else at_fault(self.first, self._bad_in, self._last_good)


def source_of(item: ForwardPass) -> tuple[Any, ...]:
    """Return the source of a pass: its origin with its DP and PP rank, None where lines carry no mark."""
    return item.group[:_MARKED_GROUP]


def at_fault(first: ForwardPass, bad: Collection[tuple[Any, ...]], every: Collection[tuple[Any, ...]]) -> str:
    """Say which source is at fault, where the log holds several; nothing when its lines carry no mark."""
    name = source_name(first.group) if len(every) > 1 else ""
    if not name:
        return ""
    if len(bad) == 1:
        return f"; all of them in {name}"
    return f"; first in {name}, in {len(bad)} of {len(every)} sources"


def pass_name(item: ForwardPass) -> str:
    """Return ``target verify pass 12``; the phase is left out where it is not known."""
    phase = "" if item.phase == "unknown" else f"{item.phase} "
    return f"{item.role} {phase}pass {item.number}"


def record_name(record: Record, role: str) -> str:
    """Return ``layer 31``, ``the joined state``, ``the fc output``, ``the draft's input`` for a record."""
    payload = record.payload
    if payload.event in ("embed_capture", "layer_capture"):
        return layer_name(payload.event, payload.layer)
    names = {
        "aux_concat": "the joined state" if role == "target" else "the draft's output state",
        "fc_output": "the fc output",
        "forward": "the draft's input",
    }
    return names.get(payload.event, payload.event.replace("_", " "))


def _is_few(onset: Onset) -> bool:
    return onset.bad < _FEW or onset.bad * _FEW < onset.since


class Rule:
    """One rule, for one segment. A subclass says what it sees and what it answers."""

    code: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[Severity]
    group: ClassVar[str]
    needs: ClassVar[str]

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.looked = 0

    def see(self, view: View) -> None:
        """Take one forward pass."""

    def server(self, event: ServerEvent) -> None:
        """Take one server line, unparsed or stray record."""

    def findings(self) -> Iterator[Finding]:
        """Answer. May be asked again after more was seen."""
        yield from ()

    def checked(self) -> Checked:
        """How much was looked at; 0 means that the rule could not be decided."""
        return Checked(self.looked)

    def why_not(self) -> str:
        """Why it could not be decided."""
        return f"this log does not show what it needs: {self.needs}"

    def finding(
        self,
        message: str,
        where: Place | None,
        *,
        severity: Severity | None = None,
        expected: str | None = None,
        actual: str | None = None,
        evidence: str | None = None,
        help: str | None = None,  # noqa: A002 - the field's own name
        onset: Onset | None = None,
    ) -> Finding:
        """Return a finding of this rule; a note when it rests on a few passes (``onset``) of a log in doubt."""
        doubt = self.scene.doubt if onset is not None and _is_few(onset) else None
        if doubt is not None:
            severity = "note"
            evidence = f"{evidence}; {doubt}" if evidence else doubt
        found = Finding(self.code, severity or self.severity, message, where, expected, actual, evidence, help)
        if doubt is not None:
            self.scene.lessened.append(found)
        return found
