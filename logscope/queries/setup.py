"""What a run says about its set-up: hidden size, CUDA graphs, speculation, each with how it is known.

This module is responsible for inferring what is not printed outright and for saying so. It must not judge, and it must
not guess: what nothing in the log shows is None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from logscope.model import CAPTURE_EVENTS, Place, Segment, ServerEvent
from logscope.queries.words import count, most_common

if TYPE_CHECKING:
    from logscope.queries.tally import Bucket, Tally

# What a decode line calls its graphs: other devices print theirs in the same place, and hide prints as well.
GRAPHS = ("cuda_graph", "npu graph", "cpu graph")
ADVICE = "rerun with --disable-cuda-graph to see them"


class Hidden(NamedTuple):
    """The hidden size of one model in one segment, and what shows it."""

    size: int
    evidence: str


# By (file, segment, site).
Sizes: TypeAlias = dict[tuple[str, int, str | None], Hidden]


def hidden_of(bucket: Bucket, sizes: Sizes) -> int | None:
    """Return the hidden size of the model whose passes a bucket holds, None when it is not known."""
    size = sizes.get((bucket.key.file, bucket.key.segment, bucket.key.site))
    return size.size if size is not None else None


def hidden_facts(sizes: Sizes) -> list[dict[str, Any]]:
    """Return every hidden size and what shows it, as plain values."""
    return [
        {"file": file, "segment": segment, "site": site, "size": size.size, "evidence": size.evidence}
        for (file, segment, site), size in sizes.items()
    ]


def hidden_sizes(tally: Tally) -> Sizes:
    """Return the hidden size per (file, segment, site).

    Best evidence first: the width of the captures; a joined width over the number of joined states; the output of the
    draft's fc; a capture plan. A draft site without a width of its own takes the target's.
    """
    sizes: Sizes = {}
    targets: dict[tuple[str, int], Hidden] = {}
    for evidence in (_from_captures, _from_joins, _from_fc):
        for bucket in tally.buckets.values():
            where = (bucket.key.file, bucket.key.segment, bucket.key.site)
            found = evidence(bucket) if where not in sizes else None
            if found is not None:
                sizes[where] = found
                if bucket.key.role == "target":
                    targets.setdefault(where[:2], found)
    for file, segment, payload, place in tally.plans:
        size = payload.fields.get("hidden_size")
        if isinstance(size, int) and size > 0:
            targets.setdefault((file, segment), Hidden(size, f"hidden_size of the capture plan at {place}"))
    for bucket in tally.buckets.values():
        where = (bucket.key.file, bucket.key.segment, bucket.key.site)
        if where not in sizes and where[:2] in targets:
            sizes[where] = targets[where[:2]]
    return sizes


def _from_captures(bucket: Bucket) -> Hidden | None:
    widths: dict[int, int] = {}
    for cell in bucket.cells.values():
        if cell.event in CAPTURE_EVENTS:
            for shape, (number, _) in cell.shapes.items():
                widths[shape[-1]] = widths.get(shape[-1], 0) + number
    width = most_common(widths)
    if not width:
        return None
    return Hidden(width, f"{count(widths[width], 'hidden capture is', 'hidden captures are')} {width} wide")


def _from_joins(bucket: Bucket) -> Hidden | None:
    for (number, width), (passes, _) in bucket.joins.items():
        if number and width and width % number == 0:
            states = count(number, "state")
            return Hidden(width // number, f"{states} joined to {width} in {count(passes, 'pass')}")
    return None


def _from_fc(bucket: Bucket) -> Hidden | None:
    for cell in bucket.cells.values():
        if cell.event == "fc_output":
            for shape in cell.shapes:
                return Hidden(shape[-1], f"the draft's fc gives {shape[-1]}")
    return None


class Graphs:
    """What the server lines of each segment say about CUDA graphs, and whether prints are hidden by them."""

    __slots__ = ("_eager", "_first_replay", "_replayed", "_speculating")

    def __init__(self) -> None:
        self._replayed: dict[tuple[str, int], int] = {}
        self._eager: dict[tuple[str, int], int] = {}
        self._first_replay: dict[tuple[str, int], Place] = {}
        self._speculating: set[tuple[str, int]] = set()

    def see(self, item: ServerEvent) -> None:
        """Take one ``decode_stats`` line."""
        payload = item.occurrence[3]
        if not payload.usable:
            return
        key = (item.file, item.segment)
        if payload.fields.get("accept_len") is not None:
            self._speculating.add(key)
        said = next((payload.fields[name] for name in GRAPHS if name in payload.fields), None)
        if said is True:
            self._replayed[key] = self._replayed.get(key, 0) + 1
            self._first_replay.setdefault(key, item.place)
        elif said is False:
            self._eager[key] = self._eager.get(key, 0) + 1

    def in_use(self, segment: Segment) -> bool | None:
        """Return whether decoding ran in CUDA graphs: decode lines first, start-up next; None when nothing says so."""
        key = (segment.file, segment.number)
        if key in self._replayed:
            return True
        if key in self._eager or segment.server_args.get("disable_cuda_graph") is True:
            return False
        return True if segment.graphs_captured else None

    def words(self, segment: Segment) -> str | None:
        """Return in a few words what is known: ``replayed in 12 of 13 decode lines``; None when nothing is."""
        key = (segment.file, segment.number)
        replayed, eager = self._replayed.get(key, 0), self._eager.get(key, 0)
        if replayed:
            return f"replayed in {replayed:,} of {count(replayed + eager, 'decode line')}"
        if segment.server_args.get("disable_cuda_graph") is True:
            return "disabled"
        if eager:
            return f"not used in {count(eager, 'decode line')}"
        return "captured at start-up" if segment.graphs_captured else None

    def hidden(self, segment: Segment, tally: Tally) -> str | None:
        """Return the sentence that says that verify prints are hidden by graphs, or None where that is not so.

        Only a segment whose forward passes are printed at all can have hidden ones, and only where the server
        speculates there is a verify to hide.
        """
        key = (segment.file, segment.number)
        verify = passes = 0
        speculating = key in self._speculating or segment.num_draft_tokens is not None
        for bucket in tally.buckets.values():
            if bucket.key[:2] == key:
                passes += bucket.passes
                speculating = speculating or bucket.key.role == "draft"
                if bucket.key[4:] == ("serving", "target", "verify"):
                    verify += bucket.passes
        if not passes or not speculating:
            return None
        replayed, eager = self._replayed.get(key, 0), self._eager.get(key, 0)
        if replayed and not verify:
            return (
                f"verify prints are hidden by CUDA graphs: {replayed:,} of {count(replayed + eager, 'decode line')} "
                f"say cuda graph: True (first {self._first_replay[key]}), and Python prints do not run in a replayed "
                f"graph; {ADVICE}"
            )
        if replayed:
            lines = count(replayed + eager, "decode line")
            return (
                f"some verify prints are hidden by CUDA graphs: {replayed:,} of {lines} say cuda graph: True (first "
                f"{self._first_replay[key]}), yet {count(verify, 'verify is', 'verifies are')} printed; {ADVICE}"
            )
        if segment.graphs_captured and not verify and not eager:
            return (
                "verify prints are probably hidden by CUDA graphs: graphs were captured at start-up, no verify is "
                f"printed, and no decode line says whether they were replayed; {ADVICE}"
            )
        return None
