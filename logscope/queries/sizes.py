"""What the numbers of a size error mean: rows told apart from widths, widths as a number of hidden states.

This module is responsible for arithmetic on the sizes of one message, and for naming the state that is too many or
missing from the captures before it (:class:`WidthErrors`). It names a reading only where the numbers allow it; a second
one that fits as well is said beside the first. It must not know contracts: what was due is what the log says was due.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from logscope.model import CAPTURE_EVENTS, Place
from logscope.queries.counts import together
from logscope.queries.words import count, layer_list, whole_numbers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from logscope.queries.counts import Counts
    from logscope.queries.setup import Sizes
    from logscope.tables.tables import Tables

SIZE_EVENTS = frozenset({"matmul_mismatch", "size_mismatch", "weight_shape_mismatch"})

# Vocabulary sizes of models in use: a width that is one of them may be logits, whatever it is a multiple of.
VOCABULARIES = frozenset((
    32000, 32064, 50257, 102400, 128256, 129280, 131072, 151552, 151936, 152064, 163840, 200064, 201088, 256000, 262144,
))  # fmt: skip
# "captured 2 of 3 aux hidden states"; "The model captured 2 aux hidden states, but --return-... names 3 layers".
_COUNTED = re.compile(
    r"captured (\d{1,4}) (?:of (\d{1,4}) aux hidden states|aux hidden states, but \S+ names (\d{1,4}) layers)"
)
MAX_KEPT = 64
# (layer, line) of the hidden captures of one target pass.
Captured = list[tuple[int | None, int]]
# A hidden size below this is no model's, and more states than this no model has.
_SMALLEST_HIDDEN = 256
_MOST_STATES = 130


@dataclass(frozen=True, slots=True)
class SizeReading:
    """What two sizes that do not fit mean.

    text
        one sentence with the first reading, and the second where there is one.
    got, want
        the two sides in words, ``37 x 4096 = 151552``. For a ``size_mismatch`` of two tensors torch does not say which
        side is which: ``got`` is then the one the log itself delivered, else tensor b.
    got_states, want_states, unit, unit_from
        the same as numbers; ``unit`` is the hidden size or what stands for it, ``unit_from`` how it is known. None
        where the sizes are no multiples of anything that could be a hidden size.
    rows
        rows of the input where the message names them: tokens, never a width.
    """

    text: str
    got: str
    want: str
    got_states: int | None = None
    want_states: int | None = None
    unit: int | None = None
    unit_from: str | None = None
    rows: int | None = None


def explain_sizes(
    event: str,
    fields: Mapping[str, Any],
    *,
    hidden: int | None = None,
    hidden_from: str | None = None,
    delivered: Collection[int] = (),
    loading: bool = False,
) -> SizeReading | None:
    """Return what a size error says, None when its numbers are not known.

    ``event`` and ``fields`` as the grammar names them: ``matmul_mismatch`` (rows, got_width, want_width, out_width),
    ``size_mismatch`` (a, b, dimension), ``weight_shape_mismatch`` (loaded, parameter_shape); ``hidden`` and
    ``hidden_from``: the hidden size as the log shows it, and where; ``delivered``: widths of joined states that the log
    printed; ``loading``: weights were being loaded, so that sizes are never of hidden states.
    """
    if event == "weight_shape_mismatch":
        return _weights(fields, hidden)
    matmul, out, rows = event == "matmul_mismatch", _whole(fields.get("out_width")), _whole(fields.get("rows"))
    got, want = (_whole(fields.get(name)) for name in (("got_width", "want_width") if matmul else ("b", "a")))
    if event not in SIZE_EVENTS or got is None or want is None:
        return None
    if loading:
        return _loaded(*((got, want) if matmul else (want, got)), fields.get("dimension"))
    # "Expected size a but got size b" names its sides, as a matrix product does; "size of tensor a must match b" does
    # not.
    named = matmul or "tensor" in fields
    if not named and want in delivered and got not in delivered:
        got, want = want, got
    seen = not matmul and got in delivered
    unit, known = _unit(got, want, hidden, hidden_from, out if matmul else None)
    came, due = multiple(got, unit), multiple(want, unit)
    had, asked = (None, None) if unit is None else (got // unit, want // unit)
    parts = [f"expected {due}, got {came}" if named else f"{due} against {came}"]
    if matmul:
        parts = [f"the input is {came} wide, the weight takes {due}{f' and gives {out}' if out is not None else ''}"]
    if had is not None and asked is not None:
        parts.append(_states_words(had, asked) if named or seen else f"{count(asked, 'state')} against {had}")
        parts += [f"the log prints a joined state {got} wide, so that side was delivered"] * seen
        parts.append(f"{unit} is {known}")
    elif matmul:
        parts.append("the two widths are no multiples of one hidden size")
    elif max(got, want) < _SMALLEST_HIDDEN:
        parts.append("too small for widths of hidden states; both may count rows (tokens)")
    parts += _vocabulary(got, want)
    if matmul and rows is not None:
        alike = f" ({rows} = {rows // unit} x {unit} by accident)" if unit is not None and rows % unit == 0 else ""
        parts.append(f"{rows} counts rows, not a width{alike}, and is not the problem")
    return SizeReading("; ".join(parts), came, due, had, asked, unit, known, rows if matmul else None)


def explain_count(message: str) -> SizeReading | None:
    """Return what an exception says that counts captured states; None where it counts none (SGLang's own words)."""
    found = _COUNTED.search(message)
    if found is None:
        return None
    got, want = int(found[1]), int(found[2] or found[3])
    off = f"{want - got} missing" if got < want else f"{got - want} too many"
    text = (
        f"{count(got, 'hidden state')} captured where {want} were asked for: {off}; a layer id equal to the number of"
        " layers, or one that stands twice, is never captured"
    )
    return SizeReading(text, count(got, "state"), count(want, "state"), got_states=got, want_states=want)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _unit(
    got: int, want: int, hidden: int | None, hidden_from: str | None, out: int | None
) -> tuple[int, str] | tuple[None, None]:
    """Return the size of one state: the log's hidden size, the weight's output, or the largest common divisor."""
    for unit, known in (
        (hidden, hidden_from or "the log's hidden size"),
        (out, "the width the weight gives"),
        (gcd(got, want), "the largest number that divides both"),
    ):
        fits = unit is not None and unit >= _SMALLEST_HIDDEN and got % unit == 0 and want % unit == 0
        if unit is not None and fits and max(got, want) // unit <= _MOST_STATES:
            return unit, known
    return None, None


def multiple(width: int, unit: int | None) -> str:
    """Return ``3 x 4096 = 12288``, or the bare number when it is no multiple."""
    return str(width) if unit is None or width % unit else f"{width // unit} x {unit} = {width}"


def _states_words(got: int, want: int) -> str:
    """Say how many states there are and how many were due; no reading goes further than the numbers."""
    if want == 1:
        part = {2: "half", 3: "a third", 4: "a quarter", 8: "an eighth"}.get(got, f"one {got}th")
        return f"{count(got, 'state')} where one was due, or a whole tensor where {part} of it was meant"
    off = abs(got - want)
    much = "missing" if got < want else "too many"
    text = f"{count(got, 'state')} where {want} were due: {off} {much}"
    if got > want + 8:
        text += f" ({got} would be every state of a model with {got - 1} layers, the embedding included)"
    return text


def _vocabulary(*widths: int) -> list[str]:
    found = [str(width) for width in widths if width in VOCABULARIES]
    if not found:
        return []
    what = "is also a vocabulary size" if len(found) == 1 else "are also vocabulary sizes"
    return [f"{' and '.join(found)} {what} in use: logits would be as wide"]


def _loaded(first: int, second: int, dimension: Any) -> SizeReading:
    """Compare one axis of two weights: what a checkpoint holds, and what the parameter it is loaded into takes."""
    axis = "" if dimension is None else f" on axis {dimension}"
    factor, rest = divmod(max(first, second), min(first, second))
    held = {2: "two values of 4 bits in a byte", 4: "four values of 8 bits in 32", 8: "eight values of 4 bits in 32"}
    packed = f" ({held[factor]})" if factor in held else ""
    said = (
        ": another layout of the checkpoint, or a weight that is sharded on one side only" if rest else
        f", a factor of {factor}: packing{packed}, or a weight that is sharded over {factor} ranks on one side only"
    )  # fmt: skip
    return SizeReading(f"while weights are loaded: {first} against {second}{axis}{said}", str(second), str(first))


def _weights(fields: Mapping[str, Any], hidden: int | None) -> SizeReading | None:
    """Compare the axes of a weight in the checkpoint with the parameter it is loaded into."""
    loaded, parameter = fields.get("loaded"), fields.get("parameter_shape")
    if not isinstance(loaded, list) or not isinstance(parameter, list):
        return None
    name = f" {fields['parameter']}" if fields.get("parameter") else ""
    got, want = (" by ".join(map(str, shape)) or "no axis" for shape in (loaded, parameter))
    parts = [f"the checkpoint's weight is {got}, the parameter{name} is {want}"]
    if len(loaded) != len(parameter):
        parts.append(f"{count(len(loaded), 'axis', 'axes')} where {len(parameter)} were due")
    for axis, (one, other) in enumerate(zip(loaded, parameter, strict=False)):
        if one != other and len(loaded) == len(parameter):
            whole = hidden and one % hidden == 0 == other % hidden
            reading = f" ({multiple(one, hidden)} against {multiple(other, hidden)})" if whole else ""
            parts.append(f"axis {axis} differs: {one} against {other}{reading}")
    parts += _vocabulary(*{size for size in (*loaded, *parameter) if isinstance(size, int)})
    return SizeReading("; ".join(parts), got, want)


class Wrong(NamedTuple):
    """One width that did not fit: what the message says, where, and what the target pass before it captured."""

    event: str
    fields: dict[str, Any]
    place: Place
    segment: int
    before: Captured | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from another."""
        sizes = [self.fields.get(name) for name in ("got_width", "want_width", "a", "b")]
        return (self.place.file, self.segment, *sizes)


@dataclass(slots=True)
class WidthErrors:
    """The distinct width errors of every run, and the captures of its last target pass."""

    found: list[Wrong] = field(default_factory=list)
    last: dict[tuple[str, int], Captured] = field(default_factory=dict)

    @classmethod
    def of(cls, tables: Tables) -> WidthErrors:
        """Find those of a batch."""
        passes = tables.passes.filter(pl.col("role") == "target").select("file", "segment", "line", "first", "last")
        last = {
            (tables.files[file], segment): _captured(tables, some.tail(1)) or []
            for (file, segment), some in passes.group_by("file", "segment")
        }
        made: dict[tuple[Any, ...], Wrong] = {}
        for error in sorted([*_lines(tables), *_fc_calls(tables)], key=lambda one: one.place.line):
            if error.key not in made and len(made) < MAX_KEPT:
                here = (pl.col("file") == tables.files.index(error.place.file)) & (pl.col("segment") == error.segment)
                before = _captured(tables, passes.filter(here & (pl.col("line") < error.place.line)).tail(1))
                made[error.key] = error._replace(before=before)
        return cls(list(made.values()), last)

    @classmethod
    def sum(cls, parts: Iterable[WidthErrors]) -> WidthErrors:
        """Return those of several batches, in their order."""
        made: dict[tuple[Any, ...], Wrong] = {}
        last: dict[tuple[str, int], Captured] = {}
        for part in parts:
            for error in part.found:
                before = last.get((error.place.file, error.segment)) if error.before is None else error.before
                made.setdefault(error.key, error._replace(before=before))
            last |= part.last
        return cls(list(made.values())[:MAX_KEPT], last)

    def words(self, counts: Counts, sizes: Sizes) -> list[tuple[Wrong, str]]:
        """Explain each that is a matter of states: which came, which were due, and that rows are not states."""
        out = []
        for wrong in self.found:
            where = (wrong.place.file, wrong.segment)
            hidden = sizes.in_segment(*where)
            size, known = hidden or (None, None)
            joined = together(one for one in counts.buckets.values() if one.key[:2] == where).of("join")
            delivered = {width for _, width in joined if width is not None}
            told: dict[str, Any] = {"hidden": size, "hidden_from": known, "delivered": delivered}
            reading = explain_sizes(wrong.event, wrong.fields, **told)
            # Two tensors of other sizes than states (rows, heads) are for the errors question to explain.
            if reading is not None and (wrong.event == "matmul_mismatch" or reading.unit is not None):
                out.append((wrong, _words(wrong, reading, counts, known=hidden is not None)))
        return out


def _lines(tables: Tables) -> Iterable[Wrong]:
    """Yield the size errors that are raised."""
    sizes = pl.col("event").cast(pl.String).is_in(["matmul_mismatch", "size_mismatch"])
    wanted = tables.server.with_row_index("row").filter(sizes)
    for row, file, segment, line in wanted.select("row", "file", "segment", "line").iter_rows():
        payload = tables.payload(row)
        yield Wrong(payload.event, payload.fields, Place(tables.files[file], line), segment)


def _fc_calls(tables: Tables) -> Iterable[Wrong]:
    """Yield calls of the draft's fc whose input does not fit its weight: an error before it is raised."""
    calls = tables.records.filter(pl.col("event") == "fc").unique("head", keep="first", maintain_order=True)
    for head, file, segment, line in calls.select("head", "file", "segment", "line").iter_rows():
        fields = tables.heads[head].fields
        weight, given = whole_numbers(fields.get("weight")), whole_numbers(fields.get("input"))
        if weight is not None and given is not None and weight[-1] != given[-1]:
            sizes = {"got_width": given[-1], "want_width": weight[-1], "rows": given[0] if len(given) > 1 else None}
            yield Wrong("matmul_mismatch", {**sizes, "out_width": weight[0]}, Place(tables.files[file], line), segment)


def _captured(tables: Tables, passes: pl.DataFrame) -> Captured | None:
    """Return the captures of a pass (of no or one row), None without one."""
    for *_, first, last in passes.iter_rows():
        records = tables.records[first : last + 1]
        captured = records.filter(pl.col("event").cast(pl.String).is_in(list(CAPTURE_EVENTS)))
        return list(captured.select("layer", "line").iter_rows())
    return None


def _words(wrong: Wrong, reading: SizeReading, counts: Counts, *, known: bool) -> str:
    rows = ""
    if reading.rows is not None:
        rows = f"; the {count(reading.rows, 'row is', 'rows are')} the tokens of the pass and no part of the mismatch"
    got, want, unit = reading.got_states, reading.want_states, reading.unit
    if got is None or want is None or unit is None:
        return f"{reading.got} arrived where {reading.want} was due ({wrong.place}){rows}"
    arrived, due = (f"{number * unit} = {count(number, 'state')} x {unit}" for number in (got, want))
    plan = next((plan for plan in counts.plans if plan[:2] == (wrong.place.file, wrong.segment)), None)
    requested = whole_numbers(plan[2].fields.get("layers_to_capture")) if plan is not None else None
    which = _which(got, want, wrong.before, requested)
    unit_from = "" if known else f"; {unit} is {reading.unit_from}"
    also = f"; {got * unit} is also a vocabulary size in use" if got * unit in VOCABULARIES else ""
    return f"{arrived} arrived where {due} was due ({wrong.place}): {which}{rows}{unit_from}{also}"


def _which(got: int, want: int, before: Captured | None, requested: Sequence[int] | None) -> str:
    """Name the state that is too many or missing."""
    layers = [layer for layer, _ in before or []]
    captured = f"; captured: {layer_list(layers)}" if layers else ""
    if got < want:
        return f"{count(want - got, 'state is', 'states are')} missing{captured}"
    embedding = next((line for layer, line in before or [] if layer == 0), None)
    if embedding is not None and got - want == 1 and len(layers) == got:
        others = layer_list([layer for layer in layers if layer != 0])
        return f"the embedding is the extra state (captured at line {embedding} beside {others})"
    if requested is not None:
        extra = [layer for layer in layers if layer not in requested]
        if extra:
            return f"{layer_list(extra)} was not asked for by the capture plan"
    part = f", or a whole tensor came where a part of 1 in {got} was meant" if want == 1 else ""
    return f"{count(got - want, 'state is', 'states are')} too many{part}{captured}"
