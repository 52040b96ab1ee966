"""What the probe itself can tell of a state: nan, inf, zero rows, and a draft input that is not what the target joined.

This module is responsible for those comparisons, made on numbers that are recorded anyway. It must not know SGLang or
files. They are few on purpose: they say when to stop recording, logscope says what is wrong.
"""

from __future__ import annotations

import math

import torch

# Norms of equal rows from kernels of another launch shape differ in the last bits of fp32; rows that differ, by more.
TOLERANCE = 1e-5
# Rows of a draft input that are looked up one by one among those of the join.
LOOKED_UP = 1024
# Forward modes in which the draft is given what the target pass before it has joined.
FED = ("EXTEND", "MIXED", "DRAFT_EXTEND", "DRAFT_EXTEND_V2")


class Watch:
    """Looks at each state in turn and remembers the last join of the target."""

    def __init__(self) -> None:
        self._join: torch.Tensor | None = None

    def forget(self) -> None:
        """Forget the join: another target pass begins, or one was missed."""
        self._join = None

    def look(self, label: str, mode: str, norms: torch.Tensor) -> tuple[str, int] | None:
        """Return what is wrong with a state and the row that shows it, or None.

        Args:
            label: the record's label: ``aux concat`` is the join, ``forward`` the draft's input.
            mode: the pass's forward mode.
            norms: the norm of each row, shape [rows].

        """
        if not norms.numel():
            return None
        found = self._value(norms)
        if label == "aux concat":
            self._join = norms.clone()  # they lie in a slot that will be used again
        elif label == "forward" and found is None and mode in FED and self._join is not None:
            found = self._stale(norms, self._join)
        return found

    @staticmethod
    def _value(norms: torch.Tensor) -> tuple[str, int] | None:
        if not math.isfinite(total := float(norms.sum())):
            what = "nan" if math.isnan(total) else "inf"
            wrong = torch.isnan(norms) if what == "nan" else torch.isinf(norms)
        elif float(norms.min()) == 0:
            what, wrong = "zero", norms == 0
        else:
            return None
        return what, int(wrong.to(torch.uint8).argmax())

    @staticmethod
    def _stale(given: torch.Tensor, joined: torch.Tensor) -> tuple[str, int] | None:
        """Compare with the joined rows, which the draft is given: all of them in order, or those that were accepted."""
        if given.numel() == joined.numel() and not _apart(given, joined).any():
            return None
        if max(given.numel(), joined.numel()) > LOOKED_UP:
            wrong = _apart(given, joined) if given.numel() == joined.numel() else torch.zeros(1)
        else:
            nearest = (given[:, None] - joined[None, :]).abs().argmin(1)
            wrong = _apart(given, joined[nearest])
        return ("stale", int(wrong.to(torch.uint8).argmax())) if bool(wrong.any()) else None


def _apart(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one - other).abs() > TOLERANCE * one
