"""Rules about values: finite, not zero, not twins, and the identities that hold in every healthy run.

This module is responsible for N101 to N107, and for saying that N201 is ``diff``'s. How two prints are compared, and
how a joined state or a draft's input is traced, is :mod:`logscope.queries.lineage`'s; what a broken identity means is
said here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from logscope.model import Place
from logscope.queries.lineage import Trace, same_head, same_norm
from logscope.queries.words import and_list, count, layer_name, most_common, percent
from logscope.rules.base import Checked, Onset, Rule, is_embedding, pass_name, record_name, register

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from logscope.model import Finding, Payload, Record, ServerEvent
    from logscope.queries.lineage import Identity
    from logscope.rules.base import Scene, View

# Inputs of spec v1 that must be comparable before their share means anything.
_LEAST_V1_INPUTS = 5
# Passes in a row that print an unchanged state before it is called frozen.
_FROZEN = 3
_STATES = frozenset({"embed_capture", "layer_capture", "aux_concat", "fc_output"})


@register("N101", "not-finite", "error", group="norms", needs="records that print a norm or first values")
class NotFinite(Rule):
    """A norm or a first value is nan or inf."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._onset = Onset()
        self._warned: dict[tuple[Any, ...], Place] = {}
        self._warnings = 0

    def see(self, view: View) -> None:
        """Look at every value of one pass, the differing copies included."""
        item = view.item
        if item.during == "graph_capture":
            return
        seen = False
        finite: list[Record] = []
        for record in item.records:
            payload = record.first[3]
            if payload.norm is None and payload.head is None:
                continue
            seen = True
            if record.variants or not payload.finite:
                bad = next((one for one in _copies(record) if one[1].usable and not one[1].finite), None)
                if bad is not None:
                    self.looked += 1
                    names = tuple(record_name(one, item.role) for one in finite)
                    self._onset.fault(item, record, (record, bad, names, payload.finite))
                    return
            finite.append(record)
        if seen:
            self.looked += 1
            self._onset.good(item)

    def server(self, event: ServerEvent) -> None:
        """Take the server's own warning about nan in the logits."""
        if event.payload.event == "nan_logits_warning":
            self._warnings += 1
            self._warned.setdefault(event.prefix.writer, event.place)

    def findings(self) -> Iterator[Finding]:
        """Answer with the first non-finite value, else with the server's warning."""
        warned = ""
        if self._warnings:
            first = next(iter(self._warned.values()))
            writers = count(len(self._warned), "process", "processes")
            warned = f"NaN in the logits was reported by {writers}, first at {first}; their order says nothing"
        if self._onset and self._onset.first is not None:
            record, (line, payload), finite, main_finite = self._onset.detail
            item = self._onset.first
            kinds = _kinds(payload)
            name = record_name(record, item.role)
            where = "" if main_finite is False else " in one copy of several"
            norm = "" if payload.norm is None else f"norm={payload.norm}"
            elsewhere = " with finite first values" if payload.head and all(map(math.isfinite, payload.head)) else ""
            before = f"; {and_list(finite)} before it in the same pass {'is' if len(finite) == 1 else 'are'} finite"
            yield self.finding(
                f"Non-finite values from {name} on: {kinds} first in {pass_name(item)}{where}.",
                Place(item.file, line),
                expected="finite values",
                actual=f"{norm}{elsewhere}" or kinds,
                evidence=f"{self._onset.words}{before if finite else ''}{f'; {warned}' if warned else ''}",
                help=self._help(payload, name),
            )
        elif warned:
            yield self.finding(
                "The server reports NaN in the logits, and no printed hidden state shows where it begins.",
                next(iter(self._warned.values())),
                actual=count(self._warnings, "warning"),
                evidence=warned,
                help="print norms of more layers, or run with --disable-cuda-graph so that verify passes print",
            )

    def _help(self, payload: Payload, name: str) -> str:
        dtype = str(self.scene.segment.server_args.get("dtype", ""))
        if payload.norm is not None and math.isinf(payload.norm):
            half = (
                " (the server runs in float16, whose largest number is 65504)" if dtype in ("float16", "half") else ""
            )
            return f"an overflow{half}: look at the layer below {name}; a rising accept len is no good sign then"
        return f"look at what computes {name}; with NaN logits accept len rises to its maximum or falls to 1.00"

    def checked(self) -> Checked:
        """Return the passes looked at, and whether the server warned."""
        return Checked(self.looked + (self._warnings > 0))


def _copies(record: Record) -> Iterable[tuple[int, Payload]]:
    yield record.first[0], record.first[3]
    for other in record.variants:
        yield other[0], other[3]


def _kinds(payload: Payload) -> str:
    values = [*([payload.norm] if payload.norm is not None else []), *(payload.head or ())]
    found = [name for name, test in (("inf", math.isinf), ("nan", math.isnan)) if any(map(test, values))]
    return and_list(found)


@register("N102", "zero", "error", group="norms", needs="captures or joined states that print a norm")
class Zero(Rule):
    """A captured, joined or combined state is all zero."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._onset = Onset()

    def see(self, view: View) -> None:
        """Look at the states of one pass."""
        if view.item.during == "graph_capture" or view.edge or not view.told_apart:
            return
        states = [
            record
            for record in view.item.records
            if record.payload.event in _STATES and record.payload.usable and record.payload.norm is not None
        ]
        if not states:
            return
        self.looked += 1
        record = next((one for one in states if _is_zero(one.payload)), None)
        if record is None:
            self._onset.good(view.item)
        else:
            self._onset.fault(view.item, record, record)

    def findings(self) -> Iterator[Finding]:
        """Answer with the first state that is all zero."""
        if self._onset and self._onset.first is not None:
            record = self._onset.detail
            name = record_name(record, self._onset.first.role)
            yield self.finding(
                f"All values of {name} are zero in {pass_name(self._onset.first)}.",
                self._onset.place,
                onset=self._onset,
                expected="a norm above 0",
                actual=f"norm={record.payload.norm:.4f}, first values 0",
                evidence=self._onset.words,
                help="a buffer that was allocated and never written, or a weight that was not loaded",
            )


def _is_zero(payload: Payload) -> bool:
    return payload.norm == 0 and payload.rows != 0 and bool(payload.width) and not any(payload.head or ())


@register(
    "N103",
    "twin-layers",
    "error",
    group="norms",
    needs="target passes with two or more captures that print norm and first values",
)
class TwinLayers(Rule):
    """Two layers print the same state."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._onset = Onset()

    def see(self, view: View) -> None:
        """Compare the captures of one pass with each other."""
        if view.item.role != "target" or view.item.during == "graph_capture" or len(view.captures) < 2:
            return
        states = [record for record in view.captures if _telling(record.payload)]
        if len(states) < 2:
            return
        self.looked += 1
        twins = next(
            (
                (one, other)
                for at, one in enumerate(states)
                for other in states[at + 1 :]
                if one.payload.layer != other.payload.layer
                and same_norm(one.payload, other.payload)
                and same_head(one.payload, other.payload)
            ),
            None,
        )
        if twins is None:
            self._onset.good(view.item)
        else:
            self._onset.fault(view.item, twins[1], twins)

    def findings(self) -> Iterator[Finding]:
        """Answer with the first pair."""
        if self._onset:
            one, other = self._onset.detail
            names = [layer_name(record.payload.event, record.payload.layer) for record in (one, other)]
            yield self.finding(
                f"{names[0].capitalize()} and {names[1]} print the same state.",
                self._onset.place,
                onset=self._onset,
                expected="two different states",
                actual=f"norm={one.payload.norm} and the same first values twice",
                evidence=f"lines {one.line} and {other.line}; {self._onset.words}",
                help="one buffer is captured twice, or the layers between them are skipped",
            )


def _telling(payload: Payload) -> bool:
    """Return whether a print tells one state from another: a finite norm above 0 and two or more first values."""
    return bool(payload.norm) and payload.finite and payload.head is not None and len(payload.head) > 1


@register(
    "N104",
    "join-norm",
    "error",
    group="norms",
    needs="target passes that print the norm of every capture and of the joined state",
)
class JoinNorm(Rule):
    """norm(joined)^2 is not the sum of the captures' norm^2: what was joined is not what was captured."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._onset = Onset()
        self._worst: tuple[float, float] | None = None

    def see(self, view: View) -> None:
        """Compare one joined state with its captures."""
        if view.item.role != "target" or not view.judged:
            return
        found = view.identity
        join = view.join
        if found is None or join is None or found.holds is None or found.residual is None:
            return
        # A number of states that does not fit the captures is S101's or H103's, unless more was captured than joined.
        wanted = view.num_aux
        if wanted is not None and wanted > len(found.joined):
            return
        if wanted is not None and wanted < len(found.joined) and not found.holds:
            return
        self.looked += 1
        holds = found.holds or self._rounded(found, join.payload)
        if self._worst is None or abs(found.residual) > abs(self._worst[0]):
            self._worst = (found.residual, found.tolerance)
        if holds:
            self._onset.good(view.item)
        else:
            self._onset.fault(view.item, join, (view, found))

    @staticmethod
    def _rounded(found: Identity, join: Payload) -> bool:
        """Return whether the identity holds for norms that were computed in a short float type before printing."""
        norms = [join.norm or 0.0, *(record.payload.norm or 0.0 for record in found.joined)]
        half = next((bits for bits in (8, 11) if all(_fits_mantissa(norm, bits) for norm in norms)), None)
        if half is None or found.residual is None:
            return False
        # Half of the last bit of each norm; twice that in its square; once for the join, once for the sum.
        return abs(found.residual) <= 4 * 2.0**-half + found.tolerance

    def findings(self) -> Iterator[Finding]:
        """Answer with the first pass whose join is not its captures."""
        if self._onset and self._onset.first is not None:
            view, found = self._onset.detail
            join = view.join
            total = sum((record.payload.norm or 0.0) ** 2 for record in found.joined)
            factor = _factor(found.joined, join.payload, math.sqrt(total))
            as_if = f": the join is {factor:.4g} times its captures" if factor is not None else ""
            yield self.finding(
                f"What is joined is not what was captured: norm^2 of the joined state differs from the sum over its"
                f" captures by {abs(found.residual):.1e} in {pass_name(self._onset.first)}{as_if}.",
                self._onset.place,
                onset=self._onset,
                expected=f"norm {math.sqrt(total):.4f} (the root of the captures' squares)",
                actual=f"norm {join.payload.norm:.4f}",
                evidence=f"{view.lines(*found.joined, join)}; tolerance {found.tolerance:.1e}; {self._onset.words}",
                help="a state is changed, exchanged or read from another pass between its capture and the join",
            )

    def checked(self) -> Checked:
        """Return the joins looked at, and the largest residual."""
        worst = None if self._worst is None else f"{abs(self._worst[0]):.1e} of {self._worst[1]:.1e} allowed"
        return Checked(self.looked, "pass", worst)


def _fits_mantissa(value: float, bits: int) -> bool:
    """Return whether a number has no more than so many significant bits."""
    mantissa, _ = math.frexp(value)
    return float.is_integer(mantissa * 2.0**bits)


def _factor(joined: Sequence[Record], join: Payload, norm: float) -> float | None:
    """Return the one factor between the captures and the join, None when there is none.

    It must be the same for every first value and for the norms (``norm``: of all captures together): a factor of the
    first state alone, or of another one, is none of the join.
    """
    first = joined[0].payload
    if not first.head or not join.head or not join.norm or not norm:
        return None
    ratios = [b / a for a, b in zip(first.head, join.head, strict=False) if a]
    if len(ratios) < 2 or abs(ratios[0] - 1) < 1e-3 or max(ratios) - min(ratios) > 1e-2 * abs(ratios[0]):
        return None
    factor = sum(ratios) / len(ratios)
    whole = join.norm / norm
    # First values are printed as a short float type holds them; the distance from 1 must agree, not only the size.
    return whole if abs(abs(factor) - whole) <= 0.2 * abs(whole - 1) else None


@register(
    "N105",
    "join-order",
    "error",
    group="norms",
    needs="first values of the captures and of the joined state (or of the draft's input, when it has the join's norm)",
)
class JoinOrder(Rule):
    """The first values of the joined state are not those of its first capture: order or content differs."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._onset = Onset()
        self._headless: dict[tuple[Any, ...], View] = {}

    def see(self, view: View) -> None:
        """Compare heads; where the join prints none, the draft's input stands for it."""
        item, join = view.item, view.join
        if item.role == "draft":
            self._by_input(view)
            return
        self._headless.pop(item.group, None)
        if join is None or not view.judged or not view.captures:
            return
        if self._untold(view):
            return
        if join.payload.head:
            self._compare(view, join)
        else:
            self._headless[item.group] = view

    def _untold(self, view: View) -> bool:
        """Return whether it cannot be told which captured state comes first in the join."""
        joined, found = view.joined, view.identity
        if joined is None or found is None or not joined:
            return True
        return view.num_aux is not None and len(joined) != view.num_aux

    def _by_input(self, view: View) -> None:
        before = self._headless.pop(view.item.group, None)
        read = view.read
        if before is None or before.join is None or read is None or view.order != 0 or not view.judged:
            return
        join = before.join.payload
        if read.payload.shape == join.shape and same_norm(read.payload, join):
            self._compare(before, read)

    def _compare(self, view: View, printed: Record) -> None:
        joined = view.joined
        if not joined:
            return
        holds = same_head(joined[0].payload, printed.payload)
        if holds is None:
            return
        self.looked += 1
        if holds:
            self._onset.good(view.item)
            return
        of = next((one for one in view.captures if same_head(one.payload, printed.payload)), None)
        self._onset.fault(view.item, printed, (view, joined[0], of, printed))

    def findings(self) -> Iterator[Finding]:
        """Answer with the first join that begins with something else."""
        if self._onset and self._onset.first is not None:
            view, first, of, printed = self._onset.detail
            name = layer_name(first.payload.event, first.payload.layer)
            if of is not None:
                begins = f"begins with {layer_name(of.payload.event, of.payload.layer)}, not with {name}"
                advice = "the states are joined in another order than the layers': the draft's fc expects rising layers"
            else:
                begins = f"does not begin with its first capture, {name}, nor with another"
                advice = "the first part of the join is another tensor, or other rows of this one"
            yield self.finding(
                f"The joined state {begins}, in {pass_name(self._onset.first)}.",
                self._onset.place,
                onset=self._onset,
                expected=head_words(first.payload),
                actual=head_words(printed.payload),
                evidence=f"{view.lines(first, of, printed)}; {self._onset.words}",
                help=advice,
            )


def head_words(payload: Payload) -> str:
    """Return the first printed values, three of them."""
    if not payload.head:
        return "no first values"
    return f"first values {', '.join(f'{value:.6g}' for value in payload.head[:3])}"


@register(
    "N106",
    "draft-input",
    "error",
    group="norms",
    needs="the joined state of a target pass and the draft's input right after it, with norm or first values",
)
class DraftInput(Rule):
    """The draft's k x hidden input is not the last joined state: stale, or wrong rows."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._whole = Onset()
        self._kept = Onset()
        self._stale: dict[int, int] = {}
        self._untold: dict[str, int] = {}

    def see(self, view: View) -> None:
        """Take the trace of one draft input."""
        trace = view.trace
        if trace is None or not view.judged or view.read is None:
            return
        before = self.scene.last_join.get(view.item.group)
        if before is not None and not before.item.complete:
            return
        width = view.read.payload.width
        if before is not None and before.join is not None and width == view.draft_hidden != before.join.payload.width:
            return  # one state where several were joined is S104's
        if before is not None and before.join is not None and not before.join.payload.head and self.scene.topk != 1:
            trace = self._by_capture(before, view.read, trace)
        if trace.traced is None:
            self._untold[trace.reason or ""] = self._untold.get(trace.reason or "", 0) + 1
            return
        self.looked += 1
        # Spec v1 keeps the accepted rows of the requests that go on: when request 0 has just ended, row 0 is another.
        fewer = trace.rows_kept is not None and self.scene.segment.spec_version != "v2"
        onset = self._kept if fewer else self._whole
        if trace.traced:
            onset.good(view.item)
            return
        if trace.passes_ago is not None:
            self._stale[trace.passes_ago] = self._stale.get(trace.passes_ago, 0) + 1
        onset.fault(view.item, view.read, (trace, view.read, before))

    @staticmethod
    def _by_capture(before: View, read: Record, trace: Trace) -> Trace:
        """Trace an input of a tree by its first values alone, where the join prints none: by those of its first state.

        With topk above 1 equal rows may be gathered in another order, so a norm says nothing against them.
        """
        if trace.traced or before.join is None or read.payload.width != before.join.payload.width:
            return trace
        first = before.joined
        same = same_head(read.payload, first[0].payload) if first else None
        if same is None:
            return trace._replace(
                traced=None, reason="rows of a tree change their order, and no first values are printed"
            )
        if same:
            return Trace("head", traced=True, rows_kept=trace.rows_kept)
        return trace._replace(traced=False, reason="the first values differ")

    def findings(self) -> Iterator[Finding]:
        """Answer for inputs of equal rows; for kept rows only when most of them are another state."""
        kept = self._kept
        most = kept.seen >= _LEAST_V1_INPUTS and kept.bad * 2 > kept.seen
        onsets = [one for one in (self._whole, kept if most else None) if one is not None and one.first is not None]
        if not onsets:
            return
        onset = min(onsets, key=lambda one: 0 if one.place is None else one.place.line)
        trace, read, before = onset.detail
        bad, seen = self._whole.bad + kept.bad * most, self._whole.seen + kept.seen * most
        stale = most_common(self._stale)
        is_stale = stale is not None and self._stale[stale] * 2 > bad
        if _is_zero(read.payload):
            what = "it is all zero"
            advice = "a buffer that was never written reaches the draft: look at what copies the joined state"
        elif is_stale:
            past = "the one before it" if stale == 1 else f"{stale} target passes older"
            what = f"it is {past} in {self._stale[stale or 0]:,} of {bad:,} cases"
            advice = "a buffer is read before the new states are written into it: look at the order of copy and forward"
        else:
            what = trace.reason or "other values"
            advice = "other rows, or another buffer, reach the draft: compare both lines"
        source = (
            "" if trace.source is None else f"; the joined state before it stands at line {_join_line(before, trace)}"
        )
        yield self.finding(
            f"The draft's input is not the state that was joined last: {what}; {percent(bad, seen)} of"
            f" {count(seen, 'input')}.",
            onset.place,
            onset=onset,
            expected=_fingerprint(before.join.payload) if before is not None and before.join is not None else None,
            actual=_fingerprint(read.payload),
            evidence=f"{onset.words}{source}",
            help=advice,
        )

    def why_not(self) -> str:
        """Say why none could be told."""
        if self._untold:
            return str(most_common(self._untold))
        return super().why_not()

    def checked(self) -> Checked:
        """Return the inputs looked at, and how many of spec v1 begin with another row."""
        worst = (
            f"{self._kept.bad} of {self._kept.seen} inputs of spec v1 begin with another row" if self._kept else None
        )
        return Checked(self.looked, "input", worst)


def _join_line(before: View | None, trace: Any) -> int:
    return before.join.line if before is not None and before.join is not None else trace.source.line


def _fingerprint(payload: Payload) -> str:
    norm = "" if payload.norm is None else f"norm {payload.norm:.4f}, "
    return f"{count(payload.rows or 0, 'row')}, {norm}{head_words(payload)}"


@register(
    "N107",
    "frozen",
    "error",
    group="norms",
    needs="target passes with two or more layer captures that print first values",
)
class Frozen(Rule):
    """A captured state does not change from pass to pass while the others do, or none changes from verify to verify."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._before: dict[tuple[Any, ...], dict[int, Payload]] = {}
        self._streaks: dict[tuple[Any, ...], tuple[int, View, Record]] = {}
        # The first streak of a layer that is long enough: what comes later does not move the place.
        self._found: dict[int, tuple[View, Record, int]] = {}
        self._layers = 0

    def see(self, view: View) -> None:
        """Compare the captures of one pass with those of the pass before it."""
        item = view.item
        if item.role != "target" or not view.judged:
            return
        # The embedding of a token is the same wherever it stands, so an unchanged one says nothing.
        now = {
            record.payload.layer: record
            for record in view.captures
            if record.payload.layer is not None and not is_embedding(record.payload) and _telling(record.payload)
        }
        before = self._before.get(item.group, {})
        self._before[item.group] = {layer: record.payload for layer, record in now.items()}
        both = [layer for layer in now if layer in before]
        if len(both) < 2:
            return
        self.looked += 1
        still = [layer for layer in both if same_head(now[layer].payload, before[layer])]
        # All of them unchanged is the same prompt again, unless it is a verify: its tokens are new every time.
        if len(still) == len(both) and not (item.phase == "verify" and self._all_norms(now, before)):
            still = []
        for layer in both:
            key = (item.group, layer)
            if layer not in still:
                self._streaks.pop(key, None)
                continue
            times, first, record = self._streaks.get(key, (0, view, now[layer]))
            self._streaks[key] = (times + 1, first, record)
            known = self._found.get(layer)
            if times + 1 >= _FROZEN and (known is None or known[1] is record):
                self._found[layer] = (first, record, times + 1)
        self._layers = max(self._layers, len(both))

    @staticmethod
    def _all_norms(now: dict[int, Record], before: dict[int, Payload]) -> bool:
        return all(same_norm(now[layer].payload, before[layer]) for layer in now if layer in before)

    def findings(self) -> Iterator[Finding]:
        """Answer once for each frozen layer, or once for all of them."""
        if len(self._found) == self._layers > 1:
            view, record, times = min(self._found.values(), key=lambda found: found[1].line)
            yield self._frozen("No captured state changes", "new tokens change every state", view, record, times)
            return
        for layer, (view, record, times) in sorted(self._found.items()):
            what = f"The state of layer {layer} does not change"
            yield self._frozen(what, "other layers' do", view, record, times)

    def _frozen(self, what: str, but: str, view: View, record: Record, times: int) -> Finding:
        return self.finding(
            f"{what} from pass to pass, while {but}.",
            Place(view.item.file, record.line),
            expected="another state in every pass",
            actual=f"{head_words(record.payload)} in {times + 1} passes in a row",
            evidence=f"the first repetition is in {pass_name(view.item)}, line {record.line}",
            help="what is captured is a view of a buffer that is not written any more",
        )


@register("N201", "drift", "warning", group="norms", needs="a second run to compare with: logscope diff GOOD THIS")
class Drift(Rule):
    """A state's rms differs from that of a good run. ``check`` never decides it: it is ``diff``'s."""

    def why_not(self) -> str:
        """Say what one log alone can never show."""
        return (
            "whether the fc's output is right, whether two states after the first are exchanged before they are"
            " captured, and whether a whole pass is scaled cannot be decided without a baseline: logscope diff GOOD"
            " THIS"
        )
