"""What a run says about its set-up: hidden size and CUDA graphs, each with how it is known.

This module is responsible for inferring what is not printed outright and for saying so. It must not judge, and it must
not guess: what nothing in the log shows is None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from logscope.model import Place
from logscope.queries.counts import Seens
from logscope.queries.words import count

if TYPE_CHECKING:
    from logscope.model import Segment
    from logscope.queries.counts import Bucket, Counts

ADVICE = "rerun with --disable-cuda-graph to see them"


class Hidden(NamedTuple):
    """The hidden size of one model in one segment, and what shows it."""

    size: int
    evidence: str


class Sizes(dict[tuple[str, int, "str | None"], Hidden]):
    """Hidden sizes by (file, segment, site)."""

    def of(self, bucket: Bucket) -> int | None:
        """Return the hidden size of the model whose passes a bucket holds, None when it is not known."""
        size = self.get((bucket.key.file, bucket.key.segment, bucket.key.site))
        return size.size if size is not None else None

    def in_segment(self, file: str, segment: int) -> Hidden | None:
        """Return the first hidden size of a segment."""
        return next((size for key, size in self.items() if key[:2] == (file, segment)), None)

    def facts(self) -> list[dict[str, Any]]:
        """Return every hidden size and what shows it, as plain values."""
        return [
            {"file": file, "segment": segment, "site": site, "size": size.size, "evidence": size.evidence}
            for (file, segment, site), size in self.items()
        ]


def hidden_sizes(counts: Counts) -> Sizes:
    """Return the hidden size per (file, segment, site).

    Best evidence first: the width of the captures; a joined width over the number of joined states; the output of the
    draft's fc; a capture plan. A draft site without a width of its own takes the target's.
    """
    sizes = Sizes()
    targets: dict[tuple[str, int], Hidden] = {}
    for evidence in (_from_captures, _from_joins, _from_fc):
        for bucket in counts.buckets.values():
            found = evidence(bucket) if sizes.of(bucket) is None else None
            if found is not None:
                sizes[bucket.key.file, bucket.key.segment, bucket.key.site] = found
                if bucket.key.role == "target":
                    targets.setdefault((bucket.key.file, bucket.key.segment), found)
    for file, segment, payload, place in counts.plans:
        size = payload.fields.get("hidden_size")
        if isinstance(size, int) and size > 0:
            targets.setdefault((file, segment), Hidden(size, f"hidden_size of the capture plan at {place}"))
    for file, segment, site in [bucket.key[:2] + bucket.key[3:4] for bucket in counts.buckets.values()]:
        if (file, segment) in targets:
            sizes.setdefault((file, segment, site), targets[file, segment])
    return sizes


def _from_captures(bucket: Bucket) -> Hidden | None:
    widths = Seens()
    for cell in bucket.cells.values():
        for shape, seen in cell.of("shape").items() if cell.captured else ():
            widths.add("width", shape[-1], seen)
    width = widths.mostly("width")
    number = widths.numbers("width").get(width, 0)
    return Hidden(width, f"{count(number, 'hidden capture is', 'hidden captures are')} {width} wide") if width else None


def _from_joins(bucket: Bucket) -> Hidden | None:
    for (number, width), seen in bucket.of("join").items():
        if number and width and width % number == 0:
            said = f"{count(number, 'state')} joined to {width} in {count(seen.number, 'pass')}"
            return Hidden(width // number, said)
    return None


def _from_fc(bucket: Bucket) -> Hidden | None:
    shapes = [shape for cell in bucket.cells.values() if cell.event == "fc_output" for shape in cell.of("shape")]
    return Hidden(shapes[0][-1], f"the draft's fc gives {shapes[0][-1]}") if shapes else None


def graphs(counts: Counts, segment: Segment) -> tuple[bool | None, str | None]:
    """Return whether decoding ran in CUDA graphs (decode lines first, start-up next), and what says so."""
    said = counts.lines.get((segment.file, segment.number), Seens()).numbers("graph")
    replayed, eager = said.get(True, 0), said.get(False, 0)
    if replayed:
        return True, f"replayed in {replayed:,} of {count(replayed + eager, 'decode line')}"
    if segment.server_args.get("disable_cuda_graph") is True:
        return False, "disabled"
    if eager:
        return False, f"not used in {count(eager, 'decode line')}"
    return (True, "captured at start-up") if segment.graphs_captured else (None, None)


def hidden_by_graphs(counts: Counts, segment: Segment) -> str | None:
    """Return the sentence that says that verify prints are hidden by graphs, or None where that is not so.

    Only a segment whose forward passes are printed at all can have hidden ones, and only where the server speculates
    there is a verify to hide.
    """
    where = (segment.file, segment.number)
    said = counts.lines.get(where, Seens())
    buckets = [bucket for bucket in counts.buckets.values() if bucket.key[:2] == where]
    drafts = any(bucket.key.role == "draft" for bucket in buckets)
    verify = sum(bucket.passes for bucket in buckets if bucket.key[4:] == ("serving", "target", "verify"))
    speculating = drafts or True in said.of("speculating") or segment.num_draft_tokens is not None
    if not buckets or not speculating:
        return None
    replayed = said.of("graph").get(True)
    if replayed is not None:
        lines = count(replayed.number + said.numbers("graph").get(False, 0), "decode line")
        words = f"{replayed.number:,} of {lines} say cuda graph: True (first {Place(segment.file, replayed.first)})"
        if verify:
            seen = count(verify, "verify is", "verifies are")
            return f"some verify prints are hidden by CUDA graphs: {words}, yet {seen} printed; {ADVICE}"
        why = "Python prints do not run in a replayed graph"
        return f"verify prints are hidden by CUDA graphs: {words}, and {why}; {ADVICE}"
    if segment.graphs_captured and not verify and False not in said.of("graph"):
        return (
            "verify prints are probably hidden by CUDA graphs: graphs were captured at start-up, no verify is "
            f"printed, and no decode line says whether they were replayed; {ADVICE}"
        )
    return None
