"""Rules about widths and rows: how many states were joined, whether rows agree, whether ranks agree, whether fc ran.

This module is responsible for S101 to S104. It must not look at values: norms and heads are norms.py's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from logscope.contract import DEFAULT_STATES
from logscope.model import Place, states
from logscope.queries.words import and_list, count, layer_list
from logscope.rules.evidence import (
    DRAFT_EXTEND,
    EXTEND,
    FC,
    FC_OUTPUT,
    VERIFY,
    First,
    Onset,
    pass_name,
)  # fmt: skip
from logscope.rules.registry import Checked, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logscope.model import Finding
    from logscope.rules.evidence import Array, Kinds, Life, Seen, View

_MOST_ERRORS = 16


class _Due(NamedTuple):
    """The width the draft's fc takes, and how that is known.

    ``proven`` is False for the published default; ``begun`` is True when it is the width the run began with.
    """

    width: int
    how: str
    proven: bool = True
    begun: bool = False


@rule(
    "S101",
    "aux-width",
    "error",
    group="shapes",
    needs="a joined state (aux concat) or the draft's input, with its shape, and the width of one state",
)
def aux_width(view: View) -> dict[str, Any]:
    """The joined width is not (number of states the draft takes) x hidden."""
    join, read = view.taken(view.join), view.taken(view.read)
    real = (view.rows != 0) & ~view.edge & ~view.piece
    part: dict[str, Any] = {
        "joins": _widths(view, view.target & real & (join["width"] > 0), view.join),
    }
    own = read["embeds"]
    fed = ~view.target & view.real & (own > 0) & (read["width"] > 0) & (read["width"] != own)
    one = np.where(view.hidden > 0, view.hidden, own)
    part["reads"] = _widths(view, fed & (read["width"] % np.maximum(one, 1) == 0), view.read)
    weights: dict[int, First] = {}
    for place in np.flatnonzero((view.event == FC) & view.usable)[:_MOST_ERRORS].tolist():
        size = view.payload(place).fields.get("weight")
        if isinstance(size, list) and len(size) == 2 and isinstance(size[1], int):
            weights.setdefault(size[1], First(Place(view.file, int(view.records["line"][place]))))
    part["weights"] = weights
    errors: list[tuple[int, int, Place]] = []
    for event in view.lines("matmul_mismatch", "size_mismatch"):
        fields = event.payload.fields
        names = ("got_width", "want_width") if event.payload.event == "matmul_mismatch" else ("a", "b")
        one_, other = (fields.get(name) for name in names)
        if isinstance(one_, int) and isinstance(other, int):
            errors.append((one_, other, event.place))
            if names[0] == "a":
                errors.append((other, one_, event.place))
    part["errors"] = errors[:_MOST_ERRORS]
    return part


def _widths(view: View, looked: Array, record: Array) -> Kinds:
    read = view.taken(record)
    width = read["width"]
    detail = lambda row: _shown(view, row, int(record[row]))  # noqa: E731
    return view.kinds(looked, width, lambda row: int(width[row]), read["line"], detail)


def _shown(view: View, row: int, place: int) -> dict[str, Any]:
    """Return what the first pass of a width shows: what was captured, and which of it was joined."""
    if not view.target[row]:
        # Where no join is printed, the target pass before the draft's shows what was captured.
        before = np.flatnonzero(view.target[:row] & (view.group[:row] == view.group[row]) & (view.captured[:row] > 0))
        row = int(before[-1]) if len(before) else row
    records, layers = view.records, view.layers[row][: view.captured[row]].tolist()
    captured = tuple(None if layer < 0 else layer for layer in layers)
    width, hidden = int(records["width"][place]), int(view.hidden[row])
    shown = captured if view.target[row] and hidden > 0 and width == len(captured) * hidden else ()
    norms = records["norm"][view.captures[row][: view.captured[row]]]
    lacking = float(records["norm"][place]) ** 2 - float((norms**2).sum())
    fits = [
        layer
        for layer, norm in zip(captured, norms.tolist(), strict=True)
        if abs(lacking - norm**2) <= 2e-5 * float(records["norm"][place]) ** 2
    ]
    return {
        "hidden": hidden if hidden > 0 else None,
        "captured": captured,
        "joined": shown or captured,
        "embedding": 0 in shown or (width > len(captured) * hidden and 0 in captured),
        "twice": fits[0] if len(fits) == 1 and view.target[row] and view.join[row] >= 0 else None,
    }


class _Joined:
    """The widths of a life and what they are measured by."""

    def __init__(self, part: dict[str, Any], life: Life) -> None:
        found = part["joins"] if part["joins"].every.seen or not part["reads"].every.seen else part["reads"]
        self.every, self.widths = found.every, found.found
        self.life, self.weights, self.errors = life, part["weights"], part["errors"]
        plan = life.fact("plan")
        fields = plan[0].fields if plan else {}
        layers, size = fields.get("layers_to_capture"), fields.get("hidden_size")
        self.planned = len(layers) if isinstance(layers, list) and layers else None
        contract = life.contract
        self.hidden = life.hidden or (size if isinstance(size, int) else None)
        self.hidden = self.hidden or (contract.state_width if contract else None) or life.fact("draft_hidden")

    def due(self, got: int) -> _Due | None:
        """Return the width that is due, None when nothing tells."""
        contract, hidden = self.life.contract, self.hidden
        if contract is not None and contract.states is not None:
            width = contract.state_width or hidden
            if width is not None:
                return _Due(contract.states * width, f"the contract takes {count(contract.states, 'state')}")
        if self.weights and got not in self.weights:
            width, place = next(iter(self.weights.items()))
            return _Due(width, f"the fc's weight is printed at {place.value}")
        for arrived, wanted, place in self.errors:
            if arrived == got and wanted != got and (hidden is None or wanted % hidden == 0):
                return _Due(wanted, f"the size error at {place} names it")
        if hidden is None:
            return None
        if self.planned is not None and self.planned * hidden != got:
            return _Due(self.planned * hidden, f"the capture plan has {count(self.planned, 'layer')}")
        usual = self._usual(got)
        if usual is not None:
            return usual
        if got % hidden == 0 and not self.weights:
            return _Due(DEFAULT_STATES * hidden, "three states are usual, and no contract says otherwise", proven=False)
        return None

    def _usual(self, got: int) -> _Due | None:
        """Return the width the run begins with, where this one is another: an fc takes one width only.

        A width whose states are just the captured ones comes before others, one that several passes join (or of the
        usual three states) before a single pass's, then the earlier one: what comes later is what changed.
        """
        first = {width: onset.first for width, onset in self.widths.items() if onset.bad}
        mine = first[got]
        others = {width: seen for width, seen in first.items() if seen.detail["hidden"] == mine.detail["hidden"]}

        def weight(width: int) -> tuple[bool, bool, int]:
            seen, hidden = others[width], others[width].detail["hidden"] or 0
            whole = bool(hidden) and width == len(seen.detail["captured"]) * hidden
            usual = self.widths[width].bad > 1 or width == DEFAULT_STATES * hidden
            return (whole, usual, -seen.place.line)

        usual = max(others, key=weight)
        if usual == got:
            return None
        begun = others[usual].place.line < mine.place.line
        return _Due(usual, f"{count(self.widths[usual].bad, 'pass')} of the same run join it", begun=begun)


@aux_width.answer
def _(part: dict[str, Any], life: Life) -> Iterator[Finding]:
    joined = _Joined(part, life)
    for got, onset in sorted(joined.widths.items(), key=lambda pair: pair[1].first.place.line if pair[1].first else 0):
        due = joined.due(got)
        if due is None or due.width == got or not onset.bad:
            continue
        detail, hidden = onset.first.detail, joined.hidden
        captured = f"captured: {layer_list(detail['captured'])}; " if detail["captured"] else ""
        advice = "compare the draft's layer ids with what the target captures (logscope captures)"
        if not due.proven:
            advice = "give the draft's config.json as --contract to have this decided"
        elif got > due.width and detail["embedding"]:
            advice = "take the embedding out of the layers the target captures, or serve a draft that reads it"
        yield aux_width.finding(
            _message(got, due, onset.first, joined),
            onset.first.place,
            severity="error" if due.proven else "note",
            expected=states(due.width, hidden),
            actual=states(got, hidden),
            evidence=f"{due.how}; {captured}{onset.words}",
            help=advice,
        )


def _message(got: int, due: _Due, first: Seen, joined: _Joined) -> str:
    hidden = joined.hidden
    if not hidden or got % hidden or due.width % hidden:
        return f"The joined state is {got} wide where the draft takes {due.width}."
    have, want = got // hidden, due.width // hidden
    named = _named(have, want, first.detail, joined.life)
    text = f"{count(have, 'hidden state')} {'is' if have == 1 else 'are'} joined, {states(got, hidden)}"
    takes = f"the draft takes {states(due.width, hidden)}" if due.proven else f"{DEFAULT_STATES} are usual"
    if due.begun:
        text = f"The joined width changes at {pass_name(first)}: {text}"
        takes = f"the run began with {states(due.width, hidden)}"
    return f"{text}, where {takes}{f': {named}' if named else ''}."


def _named(have: int, want: int, detail: dict[str, Any], life: Life) -> str:
    """Name the extra or the missing state, as far as the captures tell."""
    known = [layer for layer in detail["joined"] if layer is not None]
    readings = [reading.layers for reading in life.readings]
    asked = set(readings[0]) if len(readings) == 1 else None
    if have > want:
        if detail["embedding"] and not any(0 in layers for layers in readings):
            more = have - want - 1
            return "the embedding output is the extra state" + (f", with {more} more" if more else "")
        if asked is not None and set(known) - asked:
            extra = sorted(set(known) - asked)
            return f"{layer_list(extra)} {'is' if len(extra) == 1 else 'are'} extra"
        if have == len(known) + 1 and detail["twice"] is not None:
            return f"the state of layer {detail['twice']} stands twice in it"
        captured = len(detail["captured"])
        return f"{count(have - captured, 'state')} of it no capture line shows" if have > captured > 0 else ""
    missing = [layer for layers in readings[:1] for layer in layers if layer not in known]
    if len(readings) == 1 and len(missing) == want - have:
        return f"{layer_list(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    return f"{count(want - have, 'state')} {'is' if want - have == 1 else 'are'} missing"


@aux_width.checked
def _(part: dict[str, Any], life: Life) -> Checked:
    joined = _Joined(part, life)
    decidable = any(joined.due(width) is not None or width in joined.weights for width in joined.widths)
    seen = and_list([states(width, joined.hidden) for width in sorted(joined.widths)])
    return Checked(joined.every.seen if decidable else 0, "pass", seen or None)


@aux_width.why_not
def _(part: dict[str, Any], life: Life) -> str | None:
    if _Joined(part, life).widths:
        return "the log shows joined widths, but neither the width of one state nor a contract"
    return None


# --------------------------------------------------------------------------------------------------------------- rows


@rule(
    "S102",
    "rows",
    "error",
    group="shapes",
    needs="passes whose records print their rows, without data-parallel attention",
    message="In {pass_} {name} has {actual} where {due}: {why}.",
    expected="{expected}",
    actual="{actual}",
    evidence="{onset}",
    help="rows are tokens, never states: look at what slices or pads this tensor",
)
def rows(view: View) -> dict[str, Any]:
    """The rows of one pass contradict each other, or what its phase allows."""
    records = view.records
    captures, join, end = view.taken(view.captures), view.taken(view.join), view.taken(view.end)
    read, own = view.taken(view.read), view.target
    begin = view.taken(view.capture(np.zeros(view.size, np.int64)))["rows"]
    begin = np.where(own, np.where(view.captured > 0, begin, end["rows"]), read["rows"])
    #: by pass: the record that is at odds, the rows that are due there, and why, by number.
    odd, due, why = (np.full(view.size, -1) for _ in range(3))

    def fault(mask: Array, places: Array, wanted: Array, reason: int) -> None:
        new = mask & (odd < 0) & (begin >= 0)
        odd[new], due[new], why[new] = places[new], wanted[new], reason

    for column in range(captures["rows"].shape[1]):
        have = captures["rows"][:, column]
        fault(own & (have >= 0) & (have != begin), view.captures[:, column], begin, 0)
    fault(own & (view.end >= 0) & (end["rows"] >= 0) & (end["rows"] != begin), view.end, begin, 0)
    embeds = _embeds(view)
    fault(~own & (embeds >= 0) & (embeds != begin), view.read, embeds, 1)
    outs = view.lead((view.event == FC_OUTPUT) & view.usable)
    out = view.taken(outs)
    fault(~own & (outs >= 0) & (out["rows"] >= 0) & (out["rows"] != begin), outs, begin, 2)
    kept = join["rows"]
    full = (view.join >= 0) & (kept >= 0) & ((kept > begin) | ((kept != begin) & _modes(view, "FULL")))
    fault(full, view.join, begin, 3)
    compared = (begin >= 0) & np.where(
        own, (view.captured + (view.end >= 0) > 1) | ((view.join >= 0) & (kept >= 0)), view.read >= 0
    )
    units = _units(view)
    verifies = own & (view.phase == VERIFY) & (view.passes["evidence"] != "rows").to_numpy() & bool(units)
    compared |= verifies & (begin >= 0)
    looked = compared & view.judged & view.clean
    plain = odd >= 0
    for unit in units[:1]:
        uneven = verifies & np.logical_and.reduce([begin % one != 0 for one in units])
        fault(uneven, view.first, np.full(view.size, unit), 4)

    def detail(row: int) -> dict[str, Any]:
        place, wanted, reason = int(odd[row]), int(due[row]), int(why[row])
        have = int(records["rows"][place])
        what = count(int(begin[row]), "row")
        reasons = (
            f"its first capture has {what}",
            f"it embeds {count(wanted, 'token')}",
            f"its input has {what}",
            f"its {'captures have' if own[row] else 'input has'} {what}, and all are kept",
            f"a verify reads {wanted} draft tokens of every request",
        )
        expected = f"a multiple of {wanted} rows" if reason == 4 else count(wanted, "row")
        return {
            "name": view.name(place),
            "actual": count(have, "row"),
            "expected": expected,
            "due": f"{expected} {'is' if wanted == 1 or reason == 4 else 'are'} due",
            "why": reasons[reason],
        }

    line = records["line"][odd] if len(view.of) else None
    switched = {
        one
        for event in view.lines("adaptive_switch")
        for side in ("from", "to")
        if isinstance(one := event.payload.fields.get(f"draft_tokens_{side}"), int)
    }
    # Prints may lag behind the line that tells of a switch, so no verify is odd for its number in such a life.
    return {
        "every": view.onset(looked, odd >= 0, line, detail),
        "switched": switched,
        "plain": view.onset(looked, plain, line, detail),
    }


def _embeds(view: View) -> Array:
    """Return the rows of the embeddings that draft passes read."""
    reads = view.read >= 0
    heads, which = np.unique(view.records["head"][view.read[reads]], return_inverse=True)
    shapes = [view.tables.heads[head].fields.get("embeds") for head in heads.tolist()]
    fits = [isinstance(shape, list) and len(shape) == 2 and isinstance(shape[0], int) for shape in shapes]
    rows = np.array([shape[0] if fit else -1 for shape, fit in zip(shapes, fits, strict=True)], np.int64)
    found = np.full(view.size, -1)
    found[reads] = rows[which]
    return found


def _modes(view: View, *names: str) -> Array:
    """Return which passes print one of these modes with their join."""
    mode = view.table["mode"].is_in(list(names)).fill_null(value=False).to_numpy()
    return (view.join >= 0) & (mode[view.join] if len(mode) else False)


def _units(view: View) -> list[int]:
    """Return what verify rows must be a multiple of: N, or num_steps + 1, to which SGLang sets N when topk is 1."""
    segment = view.segment
    if not segment.num_draft_tokens or segment.server_args.get("speculative_adaptive"):
        return []
    chain = segment.num_steps + 1 if segment.topk == 1 and segment.num_steps else segment.num_draft_tokens
    return [segment.num_draft_tokens, chain]


@rows.answer
def _(part: dict[str, Any], life: Life) -> Iterator[Finding]:
    if life.rows_may_differ is None:
        yield from rows.first_fault(part["plain" if part["switched"] else "every"], life)


@rows.checked
def _(part: dict[str, Any], life: Life) -> Checked:
    return Checked(0 if life.rows_may_differ else part["every"].seen)


@rows.why_not
def _(_part: dict[str, Any], life: Life) -> str | None:
    return life.rows_may_differ


# ------------------------------------------------------------------------------------------------------ ranks, the fc


@rule(
    "S103",
    "rank-shape",
    "error",
    group="ranks",
    needs="several copies of one record: ranks that print to one file, or one file for each rank",
    message="Ranks of one {pass_} disagree on the shape of its {event}.",
    expected="{expected}",
    actual="{actual}",
    evidence="{lines}; {onset}",
    help="a tensor is sharded, sliced or padded on one rank only",
)
def rank_shape(view: View) -> Onset:
    """Writers of one pass disagree on a shape."""
    place = np.full(view.size, -1)
    others: dict[int, tuple[int, Any]] = {}
    if view.differing.height:
        known: dict[tuple[int, int], bool] = {}
        heads = view.tables.heads
        columns = view.differing.select("record", "line", "head")
        for record, line, head in columns.reverse().iter_rows() if view.parted.any() else ():
            at = record - view.base
            pair = (int(view.records["head"][at]), head)
            if pair not in known:
                one, other = heads[pair[0]], heads[head]
                known[pair] = other.shape is not None and other.shape != one.shape and view.usable[at] and other.usable
            if known[pair]:
                place[view.of[at]], others[int(view.of[at])] = at, (line, heads[head].shape)

    # Or the other shape cut the pass in two.
    for row in np.flatnonzero(view.split).tolist():
        before = int(view.last[row - 1])
        place[row], others[row] = int(view.first[row]), (int(view.records["line"][before]), view.payload(before).shape)

    def detail(row: int) -> dict[str, Any]:
        line, shape = others[row]
        hidden = int(view.hidden[row]) if view.target[row] else None
        return {
            "event": view.event_name(int(place[row])).replace("_", " "),
            "expected": shape_words(view.payload(int(place[row])).shape, hidden),
            "actual": shape_words(shape, hidden),
            "lines": f"lines {view.records['line'][place[row]]} and {line}",
        }

    line = np.array([others[row][0] if row in others else -1 for row in range(view.size)], np.int64)
    return view.onset(view.real & ~view.edge & (view.compared | view.split), place >= 0, line, detail)


def shape_words(shape: tuple[int, ...] | None, hidden: int | None) -> str:
    """Return ``4 rows, 3 x 7168 = 21504`` for a shape."""
    if not shape:
        return "no shape"
    return (f"{count(shape[0], 'row')}, " if len(shape) > 1 else "") + states(shape[-1], hidden)


@rule(
    "S104",
    "fc-skipped",
    "error",
    group="shapes",
    needs="the draft's first pass after a target pass, with the shapes of its input and its embeddings",
    help="SGLang runs fc only when the widths differ: let the target capture every layer the draft reads",
)
def fc_skipped(view: View) -> Onset:
    """The draft reads one state where k x hidden was due: input and embeddings are equally wide, so fc is skipped."""
    read = view.taken(view.read)
    due = view.passes["due_width"].fill_null(-1).to_numpy()
    wide = (view.phase == EXTEND) | (view.phase == DRAFT_EXTEND)
    looked = ~view.target & view.judged & view.clean & (read["embeds"] > 0) & (read["width"] > 0) & wide
    looked &= view.passes["due_fresh"].to_numpy() | (due < 0)

    def detail(row: int) -> dict[str, Any]:
        hidden = int(view.hidden[view.target][0]) if view.target.any() else int(read["embeds"][row])
        return {"own": int(read["embeds"][row]), "width": int(due[row]), "hidden": hidden}

    return view.onset(looked, (read["width"] == read["embeds"]) & (view.fc < 0), read["line"], detail)


@fc_skipped.answer
def _(onset: Onset, life: Life) -> Iterator[Finding]:
    if not onset.bad or not life.is_eagle3:
        return
    own, width, contract = onset.first.detail["own"], onset.first.detail["width"], life.contract
    hidden = life.hidden or own
    one = width <= own
    due = (
        contract.states
        if contract is not None and contract.states
        else width // hidden
        if width > hidden
        else DEFAULT_STATES
    )
    if due <= 1:
        return
    cause = "only one hidden state is joined" if one else "it does not read the joined state"
    yield fc_skipped.finding(
        f"The draft skips its fc: its input is as wide as its embeddings ({own}), because {cause}.",
        onset.first.place,
        severity=fc_skipped.severity if contract is not None or not one else "warning",
        expected=states(due * hidden, hidden),
        actual=states(own, hidden),
        evidence=onset.words,
        help=fc_skipped.says["help"],
    )
