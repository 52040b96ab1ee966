"""How the queries put numbers into words: axes of a shape, names of layers and writers, shares that never flatter.

This module is responsible for wording that several reports share. It must not know how a report is laid out or shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logscope.model import CAPTURE_EVENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

EMBEDDING = "embedding"


def layer_name(event: str, layer: int | None) -> str:
    """Return ``layer 31`` or ``embedding (layer 0)``: layer 0 is the state before the first decoder layer."""
    if event == "embed_capture" or layer == 0:
        return f"{EMBEDDING} (layer 0)"
    return "layer not printed" if layer is None else f"layer {layer}"


def layer_list(layers: Iterable[int | None]) -> str:
    """Return ``embedding and layers 3, 31, 59`` for a set of captured layers, in the order given."""
    known = list(layers)
    numbers = [str(layer) for layer in known if layer]
    parts = [EMBEDDING] * (0 in known)
    if numbers:
        parts.append(f"layer{'s' * (len(numbers) > 1)} {', '.join(numbers)}")
    unknown = known.count(None)
    if unknown:
        parts.append(f"{count(unknown, 'unnamed layer')}")
    return and_list(parts) if parts else "none"


def outputs_of(layers: Iterable[int]) -> str:
    """Return ``outputs of blocks 1, 39 and 76`` for inputs 2, 40 and 77: the input of a block is the output before."""
    blocks = [str(layer - 1) for layer in layers if layer > 0]
    return f"output{'s' * (len(blocks) > 1)} of block{'s' * (len(blocks) > 1)} {and_list(blocks)}"


def and_list(parts: Sequence[str]) -> str:
    """Return ``a``, ``a and b``, ``a, b and c``."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 pass``, ``2 passes``: the number, with thousands set apart by commas, and its noun."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {plural if plural is not None else plural_of(noun)}"


def plural_of(noun: str) -> str:
    """Return the regular plural."""
    if noun.endswith(("s", "sh", "ch", "x")):
        return noun + "es"
    return noun[:-1] + "ies" if noun.endswith("y") and noun[-2] not in "aeiou" else noun + "s"


def percent(part: int, whole: int) -> str:
    """Return a share in percent, cut and not rounded: only all of them is ``100 %``, only none ``0 %``."""
    if not whole:
        return "none to compare"
    if part in (0, whole):
        return "100 %" if part else "0 %"
    tenths = min(max(1000 * part // whole, 1), 999)
    return f"{tenths / 10:.1f} %"


def width_words(width: int | None, hidden: int | None) -> str:
    """Return a width in words: ``7168 hidden``, ``3 states x 7168``, ``5000 wide`` when it is no multiple of hidden."""
    if width is None:
        return "width not printed"
    if not hidden or width % hidden:
        return f"{width} wide"
    return f"{width} hidden" if width == hidden else f"{width // hidden} states x {hidden}"


def state_name(event: str, layer: int | None, role: str) -> str:
    """Return what a record holds, in words: ``layer 31``, ``joined state``, ``draft input``.

    The event names of two dialects mean the same tensor.
    """
    if event in CAPTURE_EVENTS:
        return layer_name(event, layer)
    if event == "aux_concat":
        return "joined state" if role == "target" else "draft output"
    known = {"forward": "draft input", "fc_output": "fc output", "forward_end": "target output"}
    return known.get(event, event.replace("_", " "))


def axes(shape: Sequence[int], hidden: int | None) -> str:
    """Return a shape with its axes named: ``21 rows x 7168 hidden``, ``4 rows x 3 states x 7168``.

    Never two bare numbers with an x between them: 4 rows and 4 states look the same there, and are not.
    """
    if not shape:
        return "a single number"
    last = width_words(shape[-1], hidden)
    if len(shape) == 1:
        return f"{last}, one axis: no rows"
    rows = count(shape[0], "row")
    if len(shape) == 2:
        return f"{rows} x {last}"
    if len(shape) == 3 and hidden and shape[-1] == hidden:
        return f"{rows} x {count(shape[1], 'state')} x {hidden}"
    middle = " x ".join(f"axis {at} of {size}" for at, size in enumerate(shape[1:-1], 1))
    return f"{rows} x {middle} x {last}"


def whole_numbers(value: Any) -> list[int] | None:
    """Return a printed list when it holds whole numbers only, as sizes and layers do; damage may leave others."""
    if not isinstance(value, list) or not value:
        return None
    return value if all(isinstance(each, int) and not isinstance(each, bool) for each in value) else None


def most_common(counts: Mapping[Any, int]) -> Any:
    """Return the key with the highest count (the first seen among equals), None when there is none."""
    return max(counts, key=counts.__getitem__) if counts else None


def span(low: float | None, high: float | None, form: str = ",") -> str:
    """Return ``4`` or ``1 to 400``."""
    if low is None or high is None:
        return ""
    one, other = f"{low:{form}}", f"{high:{form}}"
    return one if one == other else f"{one} to {other}"


def rounded(value: float | None, digits: int) -> float | None:
    """Return a number as JSON shows it, None where there is none."""
    return None if value is None else round(value, digits)


def phase_list(phases: Iterable[str]) -> str:
    """Return ``extend and verify``, with ``passes of unknown phase`` for what no evidence told."""
    known = dict.fromkeys("passes of unknown phase" if phase == "unknown" else phase for phase in phases)
    return and_list(list(known))


def source_name(group: Sequence[Any]) -> str:
    """Return what names a writer group: ``pod/decode-1 DP1``, or nothing when its lines carry no mark."""
    origin, dp_rank, pp_rank = group[:3]
    parts = [] if origin is None else [str(origin)]
    parts += [f"{tag}{rank}" for tag, rank in (("DP", dp_rank), ("PP", pp_rank)) if rank is not None]
    return " ".join(parts)
