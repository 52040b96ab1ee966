"""The words of logscope as types: what a log holds, from a prefix to a forward pass.

This module is responsible for the one data model that terminal, JSON, HTML and notebook show. It must not know how
bytes are read, how text is matched, or how anything is printed; it imports nothing heavy, because every command pays
for it. The pydantic form of an event, for users, stands in :mod:`logscope.tables.event`.

From small to large::

    Prefix       what stands before a record on its line (time, ranks, origin), parsed once per distinct text
    Payload      what a record says, parsed once per distinct text: eight ranks print the same one
    Occurrence   one place where a payload stands: a plain tuple, since a gigabyte holds four million of them
    Record       a payload of one forward pass or one server line, with all its copies
    ForwardPass  the records of one forward of the target or of the draft, with phase and evidence
    Segment      one server life inside a file
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

Role: TypeAlias = Literal["target", "draft"]
Phase: TypeAlias = Literal["extend", "decode", "verify", "draft_extend", "idle", "unknown"]
Evidence: TypeAlias = Literal["printed", "rows", "order", "server", "none"]
During: TypeAlias = Literal["startup", "graph_capture", "warmup", "serving"]
Intact: TypeAlias = Literal["whole", "partial", "cut", "rejoined"]
Kind: TypeAlias = Literal["event", "unparsed", "quoted", "mark"]

ROLES: tuple[Role, ...] = ("target", "draft")
PHASES: tuple[Phase, ...] = ("extend", "decode", "verify", "draft_extend", "idle", "unknown")
DURING: tuple[During, ...] = ("startup", "graph_capture", "warmup", "serving")

# The events of the debug tag that have a meaning of their own; any other label becomes an event under its slug.
CAPTURE_EVENTS = frozenset({"embed_capture", "layer_capture"})
DEBUG_EVENTS = frozenset(
    {"embed_capture", "layer_capture", "forward_end", "aux_concat", "forward", "fc_output", "fc", "capture_plan"}
)


# The keys of an event record, in their fixed order.
EVENT_KEYS = (
    "file", "line", "offset", "segment", "during", "time", "origin", "pid", "dp_rank", "pp_rank", "tp_rank",
    "ep_rank", "site", "event", "role", "phase", "evidence", "pass", "layer", "rows", "width", "shape", "norm", "head",
    "capture_hidden_mode", "intact", "fields",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prefix:
    """What stands before a record: ranks, process and time, as far as the text says so. None means not printed.

    ``origin`` joins the parts that name a source but no rank (container, pod, Ray actor, worker name, trace letter),
    outermost first, with ``/``. ``extra`` holds ranks without a column of their own (ATTN_CP, MOE_DP), and the level
    that a taught prefix names.
    ``peeled`` is False when text stood before the record that is no prefix (a bar, another record's rest):
    the record is then *glued*.
    """

    time: str | None = None
    origin: str | None = None
    pid: int | None = None
    dp_rank: int | None = None
    pp_rank: int | None = None
    tp_rank: int | None = None
    ep_rank: int | None = None
    extra: tuple[tuple[str, int | str], ...] = ()
    peeled: bool = True

    @property
    def writer(self) -> tuple[str | None, int | None, int | None, int | None, int | None, int | None]:
        """Return what tells one printing process from another: origin, pid, DP, PP, TP, EP rank."""
        return (self.origin, self.pid, self.dp_rank, self.pp_rank, self.tp_rank, self.ep_rank)


NO_PREFIX = Prefix()


def within(outer: Prefix, inner: Prefix) -> Prefix:
    """Return what is known from a wrapper and from what stands in it, which overrides."""
    if outer is NO_PREFIX:
        return inner
    labels = [label for label in (outer.origin, inner.origin) if label]
    columns = {
        name: getattr(outer if getattr(inner, name) is None else inner, name)
        for name in ("time", "pid", "dp_rank", "pp_rank", "tp_rank", "ep_rank")
    }
    return Prefix(origin="/".join(labels) or None, extra=outer.extra + inner.extra, peeled=inner.peeled, **columns)


@dataclass(slots=True, eq=False)
class Payload:
    """What a record says, without where it stands; one object per distinct text, compared by identity.

    kind
        ``event``; ``unparsed``: an anchor no event matched; ``quoted``: record-like text inside a quoted value or
        source code, no record at all; ``mark``: text that is no record either but tells where we are (a bar of graph
        capture), used by the phase classifier only.
    event, site
        event name (``layer_capture``, ``decode_stats``) and, for the debug tag, the word in its brackets (``dsv2``).
    role
        what the record itself says (``target`` for captures, ``draft`` for the draft's own lines), else None: a
        ``logits`` record takes its role from the model record before it.
    layer
        as printed, never shifted; 0 for the embedding.
    shape, rows, width
        all axes; the first; the last. One axis: rows is None. None: not printed.
    norm, norm_resolution
        as printed, and half the last printed digit (5e-5 for ``10.6277``), or what a derived norm may be off by.
    norm_derived
        True when the norm was computed from mean and std.
    head, head_resolution
        the first values, and half the last printed digit of each, None when the values are printed exactly.
    mode
        capture_hidden_mode as a name (``FULL``) or as the printed number (``2``), never interpreted here.
    fields
        every other key = value as typed JSON.
    intact, reason, column
        see the house rules: ``cut`` payloads keep complete fields only and enter no statistic. ``reason`` says in
        words why a record is not whole or was not parsed; ``column`` is the 0-based byte in the record where reading
        stopped.
    length
        bytes of the record's own text.
    """

    kind: Kind
    event: str
    site: str | None = None
    role: Role | None = None
    layer: int | None = None
    shape: tuple[int, ...] | None = None
    rows: int | None = None
    width: int | None = None
    norm: float | None = None
    norm_resolution: float = 0.0
    norm_derived: bool = False
    head: tuple[float, ...] | None = None
    head_resolution: tuple[float, ...] | None = None
    mode: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    intact: Intact = "whole"
    reason: str | None = None
    column: int | None = None
    length: int = 0

    def filled(self, norm: float | None, slack: float, values: Sequence[float] | None, length: int) -> Payload:
        """Return the payload of a record from what many share and what is its own."""
        made = copy(self)
        made.norm, made.norm_resolution, made.head, made.length = norm, slack, tuple(values) if values else None, length
        return made

    @property
    def usable(self) -> bool:
        """True when its values may enter a statistic: whole or partial."""
        return self.intact in ("whole", "partial")


# line (1-based), byte offset of the anchor, prefix, payload. A plain tuple: a gigabyte of log holds four million.
Occurrence: TypeAlias = tuple[int, int, Prefix, Payload]


class Place(NamedTuple):
    """Where a record stands: the file as given by the user, and the 1-based physical line."""

    file: str
    line: int

    def __str__(self) -> str:
        """Return ``file:line``."""
        return f"{self.file}:{self.line}"


@dataclass(slots=True, eq=False)
class Record:
    """One record of a pass, or one server line, with all the copies that other writers printed of it.

    first
        the first occurrence.
    copies
        how many writers printed it, the differing ones included.
    others
        the further occurrences, in file order.
    variants
        occurrences of writers that printed another value in the same place.
    """

    first: Occurrence
    copies: int = 1
    others: list[Occurrence] = field(default_factory=list)
    variants: list[Occurrence] = field(default_factory=list)

    @property
    def payload(self) -> Payload:
        """What it says."""
        return self.first[3]

    @property
    def line(self) -> int:
        """Line of the first occurrence."""
        return self.first[0]


@dataclass(slots=True, eq=False)
class ForwardPass:
    """One forward of the target or of the draft, as its debug records show it.

    number
        1-based, per file (and per writer group where several print different things).
    group
        what the passes of one scheduler share: (origin, dp_rank, pp_rank) as far as printed. Tensor-parallel copies
        are in one group.
    phase, evidence, reason
        the label, how it is known, and, for ``unknown``, why not.
    complete
        False for a pass at a cut edge of the file or segment, or one that damage left without its usual end.
    expected_copies
        how many writers usually print a record of this group; None when it cannot be told.
    time
        the last time seen before it, as printed.
    """

    number: int
    segment: int
    group: tuple[Any, ...]
    role: Role
    file: str = ""
    phase: Phase = "unknown"
    evidence: Evidence = "none"
    reason: str | None = None
    during: During = "serving"
    complete: bool = True
    expected_copies: int | None = None
    time: str | None = None
    records: list[Record] = field(default_factory=list)

    def first_of(self, *events: str) -> Record | None:
        """Return its first usable record of one of these events, or None."""
        return next((one for one in self.records if one.payload.event in events and one.payload.usable), None)

    @property
    def captures(self) -> list[Record]:
        """Its hidden captures (embedding and layers), in printed order, damaged ones included."""
        return [record for record in self.records if record.payload.event in CAPTURE_EVENTS]

    @property
    def join(self) -> Record | None:
        """The ``aux_concat`` record: of a target pass the joined state, of a draft pass its output state."""
        return self.first_of("aux_concat")

    @property
    def input(self) -> Record | None:
        """The ``forward`` record of a draft pass: the hidden states it read."""
        return self.first_of("forward")

    @property
    def rows(self) -> int | None:
        """Rows of the pass: of the first record that prints them (a LAST join has fewer and is asked last)."""
        by_turn = sorted(self.records, key=lambda record: record.payload.event == "aux_concat")
        return next((one.payload.rows for one in by_turn if one.payload.rows is not None), None)

    @property
    def line(self) -> int:
        """Line of its first record."""
        return self.records[0].line

    @property
    def place(self) -> Place:
        """Where it begins."""
        return Place(self.file, self.line)


@dataclass(slots=True, eq=False)
class ServerEvent:
    """A record that belongs to no forward pass: a server line, an unparsed or a stray debug record."""

    occurrence: Occurrence
    segment: int
    during: During
    file: str = ""

    @property
    def payload(self) -> Payload:
        """What it says."""
        return self.occurrence[3]

    @property
    def prefix(self) -> Prefix:
        """What stood before it."""
        return self.occurrence[2]

    @property
    def line(self) -> int:
        """Its physical line."""
        return self.occurrence[0]

    @property
    def place(self) -> Place:
        """Where it stands."""
        return Place(self.file, self.line)


@dataclass(slots=True, eq=False)
class Segment:
    """One server life inside a file, and what its lines say about the set-up.

    ``server_args`` is the whole argument dict, empty when the line is not in the log. ``num_draft_tokens``,
    ``num_steps``, ``topk``, ``tp_size`` come from it; what the log does not say is None. ``spec_version`` is ``v1``
    or ``v2`` when start-up lines or the rows of the draft's passes tell it, with ``spec_evidence``.
    ``buffered`` is True when prints are seen to be block-buffered (a server line glued to a record's end).
    ``seen_mixed`` is True when passes stand in each other as only those of several schedulers do.
    """

    number: int
    file: str
    line: int
    server_args: dict[str, Any] = field(default_factory=dict)
    server_args_line: int | None = None
    tp_size: int | None = None
    dp_size: int | None = None
    num_draft_tokens: int | None = None
    num_steps: int | None = None
    topk: int | None = None
    decode_log_interval: int | None = None
    spec_version: str | None = None
    spec_evidence: str | None = None
    ready_line: int | None = None
    graphs_captured: bool = False
    buffered: bool = False
    seen_mixed: bool = False
    writers: int | None = None
    writers_evidence: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def schedulers(self) -> int:
        """How many schedulers print into the log: ``dp_size``, or 2 where the passes show that one does not."""
        return self.dp_size if self.dp_size is not None and self.dp_size > 1 else 2 if self.seen_mixed else 1


@dataclass(slots=True)
class Accounting:
    """What became of every byte: ``records = whole + partial + rejoined + cut + unparsed``, always.

    ``lines`` counts physical lines, an unterminated last one included; ``other_lines`` lines that hold no part of a
    record; ``glued`` records that do not start their line after prefixes are peeled. ``quoted`` is record-like text
    inside a quoted value or source code: no record, shown under facts.
    """

    bytes: int = 0
    lines: int = 0
    whole: int = 0
    partial: int = 0
    rejoined: int = 0
    cut: int = 0
    unparsed: int = 0
    other_lines: int = 0
    invalid_utf8_bytes: int = 0
    glued: int = 0
    quoted: int = 0

    @property
    def records(self) -> int:
        """All records, however they ended."""
        return self.whole + self.partial + self.rejoined + self.cut + self.unparsed

    def add(self, other: Accounting) -> None:
        """Add another file's or block's counts to these."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def as_dict(self) -> dict[str, int]:
        """Return the fixed JSON form (``quoted`` is a fact, not part of it)."""
        counts = {name: getattr(self, name) for name in self.__slots__ if name != "quoted"}
        return {"bytes": counts.pop("bytes"), "lines": counts.pop("lines"), "records": self.records} | counts


Severity: TypeAlias = Literal["error", "warning", "note"]
Verdict: TypeAlias = Literal["ok", "findings", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about the run that a person should act on, with where it stands and how it is known.

    The fields are the fixed JSON form, in its order. ``expected`` and ``actual`` are short texts (``3 x 7168 =
    21504``); ``evidence`` is what a person can check by eye; ``help`` says what to do.
    """

    rule: str
    severity: Severity
    message: str
    where: Place | None = None
    expected: str | None = None
    actual: str | None = None
    evidence: str | None = None
    help: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fixed JSON form."""
        where = self.where and {"file": self.where.file, "line": self.where.line}
        return {name: getattr(self, name) for name in self.__slots__} | {"where": where}

    def _repr_html_(self) -> str:
        """Return the finding as a notebook shows it."""
        from logscope.render.html import fragment  # noqa: PLC0415 - only who shows a finding pays for it

        return fragment(self)


def num_aux(payload: Payload) -> int | None:
    """Return the number of joined states a ``forward_end`` or ``aux_concat`` prints, under whichever key."""
    fields = payload.fields
    value = fields["num_aux"] if "num_aux" in fields else fields.get("count")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def states(width: int | None, hidden: int | None) -> str:
    """Return a width in words: ``3 x 7168 = 21504``, or the bare number when it is not a multiple of hidden."""
    if width is None:
        return "unknown"
    if not hidden or width % hidden:
        return str(width)
    return f"{width // hidden} x {hidden} = {width}" if width != hidden else f"1 x {hidden}"
