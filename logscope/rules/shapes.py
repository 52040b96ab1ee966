"""Rules about widths and rows: how many states were joined, whether rows agree, whether ranks agree, whether fc ran.

This module is responsible for S101 to S104. It must not look at values: norms and heads are norms.py's.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from logscope.contract import DEFAULT_STATES
from logscope.model import Place, states
from logscope.queries.words import and_list, count, layer_list
from logscope.rules.base import Checked, Onset, Rule, View, is_embedding, pass_name, record_name, register

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logscope.model import Finding, ForwardPass, Payload, Record, ServerEvent
    from logscope.rules.base import Scene

# First draft passes in a row that read one state, before they are taken for what they are under another name.
_SUSPECTS = 3
# Widths that a run is likely to show; a log that prints more of them is described by the first ones.
_MOST_WIDTHS = 64


class _Due(NamedTuple):
    """The width the draft's fc takes, and how that is known.

    ``proven`` is False for the published default; ``begun`` is True when it is the width the run began with.
    """

    width: int
    how: str
    proven: bool = True
    begun: bool = False


class _Joined:
    """All passes of a segment that joined one width."""

    __slots__ = ("captured", "embedding", "hidden", "joined", "onset", "record", "twice")

    def __init__(self, view: View, record: Record, before: Onset) -> None:
        """``view`` is the pass that shows what was captured: where no join is printed, the one before the draft's."""
        self.onset = before
        self.hidden = view.hidden
        self.record = record
        self.captured = tuple(one.payload.layer for one in view.captures)
        joined = view.joined
        self.joined = None if joined is None else tuple(one.payload.layer for one in joined)
        shown = view.captures if joined is None else joined
        # Without a join, only as many captures as were read tell which they were.
        if joined is None and len(shown) * (view.hidden or 0) != record.payload.width:
            shown = []
        self.embedding = next((one for one in shown if is_embedding(one.payload)), None)
        self.twice = _joined_twice(view)


def _joined_twice(view: View) -> int | None:
    """Return the layer whose state stands twice in the join: its norm^2 is what the sum over captures lacks."""
    join = view.join
    if join is None or join.payload.norm is None or not view.captures:
        return None
    squares = [(one.payload.layer, (one.payload.norm or math.nan) ** 2) for one in view.captures]
    lacking = join.payload.norm**2 - sum(square for _, square in squares)
    fits = [layer for layer, square in squares if abs(lacking - square) <= 2e-5 * join.payload.norm**2]
    return fits[0] if len(fits) == 1 else None


@register(
    "S101",
    "aux-width",
    "error",
    group="shapes",
    needs="a joined state (aux concat) or the draft's input, with its shape, and the width of one state",
)
class AuxWidth(Rule):
    """The joined width is not (number of states the draft takes) x hidden."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._widths: dict[int, _Joined] = {}
        self._weights: dict[int, Place] = {}
        self._errors: list[tuple[int, int, Place]] = []
        self._planned: int | None = None
        self._hidden: int | None = None
        self._last: ForwardPass | None = None
        self._target: dict[tuple[Any, ...], View] = {}

    def see(self, view: View) -> None:
        """Take the joined width of a target pass; of a draft's input where no join is printed."""
        item = view.item
        if item.role == "target" and view.captures:
            self._target[item.group] = view
        weight = view.first.get("fc")
        if weight is not None:
            size = weight.payload.fields.get("weight")
            if isinstance(size, list) and len(size) == 2:
                self._weights.setdefault(size[1], Place(item.file, weight.line))
        plan = view.first.get("capture_plan")
        if plan is not None:
            self._plan(plan.payload)
        if item.role == "target":
            self._hidden = view.hidden or self._hidden
            if view.join is not None and view.rows != 0 and not view.edge and view.told_apart:
                self._take(view, view.join)
        elif view.read is not None and self._only_drafts(view, view.read):
            self._take(view, view.read)

    def _only_drafts(self, view: View, read: Record) -> bool:
        width = read.payload.width
        hidden = self.scene.hidden or view.draft_hidden
        return (
            not view.scene.last_join
            and view.item.during != "graph_capture"
            and bool(width and hidden and width != view.draft_hidden and width % hidden == 0)
        )

    def _take(self, view: View, record: Record) -> None:
        width = record.payload.width
        if width is None:
            return
        self.looked += 1
        known = self._widths.get(width)
        if known is None:
            if len(self._widths) >= _MOST_WIDTHS:
                return
            shows = self._target.get(view.item.group, view) if view.item.role == "draft" else view
            known = self._widths[width] = _Joined(shows, record, Onset(self.looked - 1, self._last))
        for other, joined in self._widths.items():
            if other == width:
                joined.onset.fault(view.item, record)
            else:
                joined.onset.good(view.item)
        self._last = view.item

    def server(self, event: ServerEvent) -> None:
        """Take a size error, which shows what the fc takes, and a plan that stands between passes."""
        payload = event.payload
        if payload.event == "capture_plan":
            self._plan(payload)
        elif payload.event == "matmul_mismatch":
            got, want = payload.fields.get("got_width"), payload.fields.get("want_width")
            if isinstance(got, int) and isinstance(want, int):
                self._errors.append((got, want, event.place))
        elif payload.event == "size_mismatch":
            one, other = payload.fields.get("a"), payload.fields.get("b")
            if isinstance(one, int) and isinstance(other, int):
                self._errors += [(one, other, event.place), (other, one, event.place)]
        del self._errors[16:]

    def _plan(self, payload: Payload) -> None:
        layers = payload.fields.get("layers_to_capture")
        if isinstance(layers, list) and layers:
            self._planned = len(layers)
        hidden = payload.fields.get("hidden_size")
        if isinstance(hidden, int) and self._hidden is None:
            self._hidden = hidden

    @property
    def hidden(self) -> int | None:
        """Width of one state."""
        contract = self.scene.contract
        return self._hidden or (contract.state_width if contract is not None else None) or self.scene.draft_hidden

    def _due(self, got: int) -> _Due | None:
        contract, hidden = self.scene.contract, self.hidden
        if contract is not None and contract.states is not None:
            width = contract.state_width or hidden
            if width is not None:
                return _Due(contract.states * width, f"the contract takes {count(contract.states, 'state')}")
        if self._weights and got not in self._weights:
            width, place = next(iter(self._weights.items()))
            return _Due(width, f"the fc's weight is printed at {place}")
        for arrived, wanted, place in self._errors:
            if arrived == got and wanted != got and (hidden is None or wanted % hidden == 0):
                return _Due(wanted, f"the size error at {place} names it")
        if hidden is None:
            return None
        if self._planned is not None and self._planned * hidden != got:
            return _Due(self._planned * hidden, f"the capture plan has {count(self._planned, 'layer')}")
        usual = self._usual(got)
        if usual is not None:
            return usual
        if got % hidden == 0 and not self._weights:
            return _Due(DEFAULT_STATES * hidden, "three states are usual, and no contract says otherwise", proven=False)
        return None

    def _usual(self, got: int) -> _Due | None:
        """Return the width the run begins with, where this one is another: an fc takes one width only.

        A width whose states are just the captured ones comes before others, one that several passes join (or of the
        usual three states) before a single pass's, then the earlier one: what comes later is what changed.
        """
        mine = self._widths[got]
        others = {width: seen for width, seen in self._widths.items() if seen.hidden == mine.hidden}

        def weight(width: int) -> tuple[bool, bool, int]:
            seen = others[width]
            whole = bool(seen.hidden) and width == len(seen.captured) * (seen.hidden or 0)
            usual = seen.onset.bad > 1 or width == DEFAULT_STATES * (seen.hidden or 0)
            return (whole, usual, -seen.record.line)

        usual = max(others, key=weight)
        if usual == got:
            return None
        begun = others[usual].record.line < mine.record.line
        return _Due(usual, f"{count(others[usual].onset.bad, 'pass')} of the same run join it", begun=begun)

    def findings(self) -> Iterator[Finding]:
        """Answer one finding for each width that is not the due one."""
        for got, seen in sorted(self._widths.items(), key=lambda pair: pair[1].record.line):
            due = self._due(got)
            if due is None or due.width == got:
                continue
            hidden = self.hidden
            captured = f"captured: {layer_list(seen.captured)}; " if seen.captured else ""
            yield self.finding(
                self._message(got, due, seen),
                seen.onset.place,
                onset=seen.onset,
                severity="error" if due.proven else "note",
                expected=states(due.width, hidden),
                actual=states(got, hidden),
                evidence=f"{due.how}; {captured}{seen.onset.words}",
                help=self._help(got, due, seen),
            )

    def _message(self, got: int, due: _Due, seen: _Joined) -> str:
        hidden = self.hidden
        if not hidden or got % hidden or due.width % hidden:
            return f"The joined state is {got} wide where the draft takes {due.width}."
        have, want = got // hidden, due.width // hidden
        named = self._named(have, want, seen)
        joined = f"{count(have, 'hidden state')} {'is' if have == 1 else 'are'} joined, {states(got, hidden)}"
        takes = f"the draft takes {states(due.width, hidden)}" if due.proven else f"{DEFAULT_STATES} are usual"
        if due.begun and seen.onset.first is not None:
            joined = f"The joined width changes at {pass_name(seen.onset.first)}: {joined}"
            takes = f"the run began with {states(due.width, hidden)}"
        return f"{joined}, where {takes}{f': {named}' if named else ''}."

    def _named(self, have: int, want: int, seen: _Joined) -> str:
        """Name the extra or the missing state, as far as the captures tell."""
        known = [layer for layer in (seen.joined if seen.joined is not None else seen.captured) if layer is not None]
        readings = [reading.layers for reading in self.scene.readings]
        asked = set(readings[0]) if len(readings) == 1 else None
        if have > want:
            if seen.embedding is not None and not any(0 in layers for layers in readings):
                more = have - want - 1
                return "the embedding output is the extra state" + (f", with {more} more" if more else "")
            if asked is not None and set(known) - asked:
                extra = sorted(set(known) - asked)
                return f"{layer_list(extra)} {'is' if len(extra) == 1 else 'are'} extra"
            if have == len(known) + 1 and seen.twice is not None:
                return f"the state of layer {seen.twice} stands twice in it"
            if have > len(seen.captured) > 0:
                return f"{count(have - len(seen.captured), 'state')} of it no capture line shows"
            return ""
        missing = [layer for layers in readings[:1] for layer in layers if layer not in known] if readings else []
        if len(readings) == 1 and len(missing) == want - have:
            return f"{layer_list(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        return f"{count(want - have, 'state')} {'is' if want - have == 1 else 'are'} missing"

    def _help(self, got: int, due: _Due, seen: _Joined) -> str:
        if not due.proven:
            return "give the draft's config.json as --contract to have this decided"
        if got > due.width and seen.embedding is not None:
            return "take the embedding out of the layers the target captures, or serve a draft that reads it"
        return "compare the draft's layer ids with what the target captures (logscope captures)"

    def checked(self) -> Checked:
        """Return the joins looked at, and every width that was seen."""
        seen = and_list([states(width, self.hidden) for width in sorted(self._widths)])
        return Checked(self.looked if self._decidable() else 0, "pass", seen or None)

    def _decidable(self) -> bool:
        return any(self._due(width) is not None or width in self._weights for width in self._widths)

    def why_not(self) -> str:
        """Say what is missing."""
        if self._widths:
            return "the log shows joined widths, but neither the width of one state nor a contract"
        return super().why_not()


@register(
    "S102",
    "rows",
    "error",
    group="shapes",
    needs="passes whose records print their rows, without data-parallel attention",
)
class Rows(Rule):
    """The rows of one pass contradict each other, or what its phase allows."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._onset = Onset()
        # Draft tokens that adaptive drafting has switched between. Prints may lag behind the line that tells of it, so
        # an earlier number stays possible.
        self._switched: list[int] = []

    def server(self, event: ServerEvent) -> None:
        """Take a switch of adaptive drafting: verifies read another number of draft tokens from now on."""
        if event.payload.event == "adaptive_switch":
            numbers = [event.payload.fields.get(f"draft_tokens_{side}") for side in ("from", "to")]
            self._switched += [one for one in numbers if isinstance(one, int) and one not in self._switched]

    def see(self, view: View) -> None:
        """Compare all rows of one pass."""
        if not view.judged or not view.clean or self.scene.rows_may_differ:
            return
        compared, fault = self._target(view) if view.item.role == "target" else self._draft(view)
        if not compared:
            return
        self.looked += 1
        if fault is None:
            self._onset.good(view.item)
        else:
            record, expected, actual, why = fault
            self._onset.fault(view.item, record, (record, expected, actual, why))

    def _target(self, view: View) -> tuple[bool, tuple[Record, int | str, int, str] | None]:
        captures = view.all_captures
        rows = captures[0].payload.rows if captures else None
        end, join = view.first.get("forward_end"), view.join
        printed = [
            (one, one.payload.rows) for one in (*captures, *([end] if end else [])) if one.payload.rows is not None
        ]
        if rows is None and printed:
            rows = printed[0][1]
        if rows is None:
            return False, None
        for record, have in printed:
            if have != rows:
                return True, (record, rows, have or 0, f"its first capture has {count(rows, 'row')}")
        kept = join.payload.rows if join is not None else None
        if join is not None and kept is not None and (kept > rows or (kept != rows and join.payload.mode == "FULL")):
            return True, (join, rows, kept, f"its captures have {count(rows, 'row')}, and all are kept")
        return len(printed) > 1 or kept is not None or bool(self._unit(view)), self._verify(view, rows)

    def _unit(self, view: View) -> tuple[int, ...]:
        """Return what verify rows must be a multiple of: N, or num_steps + 1, to which SGLang sets N when topk is 1."""
        segment = self.scene.segment
        if view.item.phase != "verify" or view.item.evidence == "rows" or segment.num_draft_tokens is None:
            return ()
        if segment.server_args.get("speculative_adaptive"):
            return ()
        chain = segment.num_steps + 1 if segment.topk == 1 and segment.num_steps else segment.num_draft_tokens
        return (segment.num_draft_tokens, chain, *self._switched)

    def _verify(self, view: View, rows: int) -> tuple[Record, int | str, int, str] | None:
        units = self._unit(view)
        if not units or any(rows % unit == 0 for unit in units if unit):
            return None
        why = f"a verify reads {units[0]} draft tokens of every request"
        return (view.item.records[0], f"a multiple of {units[0]}", rows, why)

    def _draft(self, view: View) -> tuple[bool, tuple[Record, int | str, int, str] | None]:
        read = view.read or (view.pieces[0].read if view.pieces else None)
        rows = read.payload.rows if read is not None else None
        if read is None or rows is None:
            return False, None
        embeds = read.payload.fields.get("embeds")
        if isinstance(embeds, list) and len(embeds) == 2 and embeds[0] != rows:
            return True, (read, embeds[0], rows, f"it embeds {count(embeds[0], 'token')}")
        out, join = view.first.get("fc_output"), view.join
        if out is not None and out.payload.rows not in (rows, None):
            return True, (out, rows, out.payload.rows or 0, f"its input has {count(rows, 'row')}")
        have = join.payload.rows if join is not None else None
        if join is not None and have is not None and (have > rows or (have != rows and join.payload.mode == "FULL")):
            return True, (join, rows, have, f"its input has {count(rows, 'row')}, and all are kept")
        return True, None

    def findings(self) -> Iterator[Finding]:
        """Answer with the first contradiction."""
        if self._onset and self._onset.first is not None:
            record, expected, actual, why = self._onset.detail
            rows = count(expected, "row") if isinstance(expected, int) else f"{expected} rows"
            due = f"{rows} {'is' if expected == 1 or isinstance(expected, str) else 'are'} due"
            name = record_name(record, self._onset.first.role)
            yield self.finding(
                f"In {pass_name(self._onset.first)} {name} has {count(actual, 'row')} where {due}: {why}.",
                self._onset.place,
                onset=self._onset,
                expected=rows,
                actual=count(actual, "row"),
                evidence=self._onset.words,
                help="rows are tokens, never states: look at what slices or pads this tensor",
            )

    def why_not(self) -> str:
        """Say why."""
        return self.scene.rows_may_differ or super().why_not()


@register(
    "S104",
    "fc-skipped",
    "error",
    group="shapes",
    needs="the draft's first pass after a target pass, with the shapes of its input and its embeddings",
)
class FcSkipped(Rule):
    """The draft reads one state where k x hidden was due: input and embeddings are equally wide, so fc is skipped."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._onset = Onset()
        # First draft passes that read one state under another phase, while none reads the joined one.
        self._suspects: dict[tuple[Any, ...], list[tuple[ForwardPass, Record, tuple[int, int | None]]]] = {}

    def see(self, view: View) -> None:
        """Look at the first draft pass after a target pass."""
        item = view.item
        if item.role != "draft" or not self.scene.is_eagle3:
            return
        read = view.read
        if "fc_output" in view.first or "fc" in view.first:
            # The joined state is read after all: the passes before this one were others than they looked.
            self._suspects.pop(item.group, None)
        if view.order != 0 or not view.judged or not view.clean:
            return
        if read is None or read.payload.width is None:
            return
        named = item.phase in ("extend", "draft_extend")
        own = view.draft_hidden
        if own is None or "fc_output" in view.first or "fc" in view.first:
            if own is not None and named:
                self.looked += 1
                self._onset.good(item)
            return
        joined = self.scene.last_join.get(item.group)
        width = joined.join.payload.width if joined is not None and joined.join is not None else None
        skipped = read.payload.width == own and self._due(width) > 1
        if named:
            self.looked += 1
            if skipped:
                self._onset.fault(item, read, (own, width))
            else:
                self._onset.good(item)
        elif skipped and width is not None and width > own:
            self._suspect(item, read, (own, width))

    def _suspect(self, item: ForwardPass, read: Record, detail: tuple[int, int | None]) -> None:
        """Take a first draft pass that looks like a draft step: one may be, several in a row are none.

        A draft step never comes first: the draft reads the joined state after every target pass, whatever it prints.
        """
        waiting = self._suspects.setdefault(item.group, [])
        waiting.append((item, read, detail))
        if len(waiting) < _SUSPECTS:
            return
        for one in waiting:
            self.looked += 1
            self._onset.fault(*one)
        waiting.clear()

    def _due(self, joined: int | None) -> int:
        """Return how many states are due: by the contract, else by what was joined, else the usual three."""
        contract, hidden = self.scene.contract, self.scene.hidden
        if contract is not None and contract.states is not None:
            return contract.states
        if joined is not None and hidden and joined > hidden:
            return joined // hidden
        return DEFAULT_STATES

    def findings(self) -> Iterator[Finding]:
        """Answer with the first pass that skipped its fc."""
        if self._onset:
            own, width = self._onset.detail
            due = self._due(width)
            hidden = self.scene.hidden or own
            one = width is None or width <= own
            cause = "only one hidden state is joined" if one else "it does not read the joined state"
            known = self.scene.contract is not None or not one
            yield self.finding(
                f"The draft skips its fc: its input is as wide as its embeddings ({own}), because {cause}.",
                self._onset.place,
                onset=self._onset,
                severity=self.severity if known else "warning",
                expected=states(due * hidden, hidden),
                actual=states(own, hidden),
                evidence=self._onset.words,
                help="SGLang runs fc only when the widths differ: let the target capture every layer the draft reads",
            )
