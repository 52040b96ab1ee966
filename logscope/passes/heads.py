"""Heads as columns: what distinct beginnings of debug records say that passes are made from.

This module is responsible for :class:`Heads`, which numbers heads once for all chunks of a file and keeps the columns
that are looked up for every print. It must not know how passes are made of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logscope.model import CAPTURE_EVENTS
from logscope.passes.cut import CAPTURE, END, Kinds, kinds, order_of
from logscope.passes.phases import printed_phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logscope.model import Payload


class Heads:
    """Heads of one file. ``payloads`` lists them; the columns have one value for each.

    kind, family
        names of site, event, layer and shape; of the same without the layer.
    opens, ends, captures
        whether a record of this head begins a pass: the lowest layer that is captured, or the draft's input; is a
        ``forward_end``; is a capture.
    usable, printed
        whether it is whole or partial; the phase it prints, -1: none.
    """

    def __init__(self) -> None:
        self.payloads: list[Payload] = []
        self._sites: dict[str | None, int] = {}
        self._numbers: dict[int, int] = {}
        self._modes: list[str | None] = []
        self._columns: dict[str, np.ndarray] = {}
        self._kinds: list[Kinds] = []
        self._lowest = 1 << 62
        self.reset()

    def reset(self) -> None:
        """Begin anew: a list that was handed out stays as it is."""
        self.payloads, self._numbers, self._modes, self._kinds = [], {}, [], []
        empty = np.zeros(0, np.int64)
        self.kind = self.family = empty
        self.opens = self.ends = self.captures = self.usable = empty.astype(np.bool_)
        self.printed = self.order = empty
        self._all: Kinds | None = None

    def numbers(self, heads: Sequence[Payload]) -> np.ndarray:
        """Return the numbers of heads; new ones are added."""
        new = [head for head in heads if id(head) not in self._numbers]
        for head in new:
            self._numbers[id(head)] = len(self.payloads)
            self.payloads.append(head)
        if new:
            self._add(new)
        return np.array([self._numbers[id(head)] for head in heads], np.int64)

    def _add(self, new: list[Payload]) -> None:
        made = kinds(new, self._sites)
        self._all = made if self._all is None else Kinds(*map(np.concatenate, zip(self._all, made, strict=True)))
        self._modes += [head.mode for head in new]
        kind = [hash((head.site, head.event, head.layer, head.shape)) for head in new]
        family = [hash((head.site, head.event, head.shape)) for head in new]
        self.kind = np.append(self.kind, np.array(kind, np.int64))
        self.family = np.append(self.family, np.array(family, np.int64))
        self.usable = self._all.usable
        self.printed = np.append(self.printed, np.array([printed_phase(head) for head in new], np.int64))
        layers = [head.layer for head in new if head.event in CAPTURE_EVENTS and head.layer is not None and head.usable]
        self._lowest = min([self._lowest, *layers])
        opens = [
            head.event == "forward" or (head.event in CAPTURE_EVENTS and head.layer == self._lowest)
            for head in self.payloads
        ]
        self.opens = np.array(opens, np.bool_)
        self.ends, self.captures = self._all.what == END, self._all.what == CAPTURE
        self.order = order_of(self._all)

    def kinds(self, heads: np.ndarray) -> Kinds:
        """Return what these heads say, as columns."""
        assert self._all is not None
        return Kinds(*(column[heads] for column in self._all))

    def modes(self, names: dict[str, int]) -> np.ndarray:
        """Return the numbers of the modes heads print, by these names, which are added to; -1: none is printed."""
        return np.array(
            [-1 if mode is None else names.setdefault(mode, len(names) + 1) for mode in self._modes], np.int64
        )

    def alike(self, damaged: int, other: int) -> bool:
        """Tell whether a damaged record may be a copy of another: all that can be read of it agrees."""
        one, two = self.payloads[damaged], self.payloads[other]
        pairs: list[tuple[Any, Any]] = [(one.layer, two.layer), (one.shape, two.shape), (one.mode, two.mode)]
        return (
            one.site == two.site
            and (one.event == two.event or two.event.startswith(one.event))
            and all(mine is None or mine == theirs for mine, theirs in pairs)
        )
