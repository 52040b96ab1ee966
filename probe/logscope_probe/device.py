"""The device side of a record: a state's norms and first values, computed where it lies, brought over without waiting.

This module is responsible for the buffers of one model and for the pinned slots that results travel in. It must not
know SGLang, files, or what the numbers mean.

Two kernels a state (a norm for each row, accumulated in fp32, and a copy of the first values) write into buffers whose
address never changes, so a CUDA graph that holds them fills the buffers in every replay. After a pass one asynchronous
copy brings them into a free slot, a second one behind it on the same stream sets the slot's flag. Whoever reads looks
at that flag, plain host memory: no call of CUDA, so nothing can disturb a graph capture or wait for the device. Slots
are made once; when none is free the pass is dropped.
"""

from __future__ import annotations

import math
from collections import deque

import torch

from logscope_probe.lines import State

# States of one pass, or of all the passes in one graph.
STATES = 32
# The first values of the first row, and the cells they stand in: rows begin at an aligned address.
FIRST, LEAD = 5, 8
SMALL, LARGE = 64, 8
SMALL_CELLS = 1 << 14


class Buffers:
    """The buffers of one model: a line for each state, the first values and then the norms of the rows.

    A state of more rows than there are cells has the norm of all its last rows in the last cell: the norm over the
    whole state stays right.
    """

    def __init__(self, device: torch.device | str, rows: int) -> None:
        self.rows = rows
        # SGLang serves in inference mode; what is made there could not be written to outside of it.
        with torch.inference_mode(mode=False):
            self.cells = torch.zeros(STATES, LEAD + rows, dtype=torch.float32, device=device)
            self.one = torch.ones(1, dtype=torch.int32, device=device)
        self.begin()

    def begin(self) -> None:
        """Start a pass, or a graph: the next state goes into the first line."""
        self.seen: list[State] = []
        self.steps = 0

    def add(self, tag: str, label: str, key: str, x: torch.Tensor, extra: str = "") -> None:
        """Queue the kernels for a state of shape [rows, width]; anything else is passed over."""
        at = len(self.seen)
        if at >= STATES or x.dim() != 2:
            return
        x = x.detach()
        rows, width = x.shape
        if rows and width:
            line = self.cells[at]
            single = min(rows, self.rows if rows <= self.rows else self.rows - 1)
            norms = line[LEAD : LEAD + single]
            torch.linalg.vector_norm(x[:single], 2, -1, dtype=torch.float32, out=norms)
            if rows > single:
                torch.linalg.vector_norm(x[single:], 2, dtype=torch.float32, out=line[LEAD + single])
            first = min(FIRST, width)
            line[:first].copy_(x[0, :first])
        self.seen.append(State(at, max(0, self.steps - 1), tag, label, key, rows, width, extra))


class Slot:
    """Host memory that the results of one pass travel in."""

    def __init__(self, cells: int, *, pinned: bool) -> None:
        with torch.inference_mode(mode=False):
            self.memory = torch.zeros(cells, dtype=torch.float32, device="cpu", pin_memory=pinned)
            self.flag = torch.zeros(1, dtype=torch.int32, device="cpu", pin_memory=pinned)
        self.view = self.memory

    def fill(self, buffers: Buffers, lines: int, rows: int) -> None:
        """Queue the copies: ``lines`` lines of ``rows`` rows each, then the flag."""
        columns = LEAD + rows
        self.view = self.memory[: lines * columns].view(lines, columns)
        self.view.copy_(buffers.cells[:lines, :columns], non_blocking=True)
        self.flag.copy_(buffers.one, non_blocking=True)

    def ready(self) -> bool:
        """Tell whether the copies are there."""
        return bool(self.flag[0])

    def values(self, at: int, rows: int) -> tuple[list[float], float, torch.Tensor]:
        """Return a state's first values, its norm and the norms of its rows; of more rows than cells, see Buffers."""
        line = self.view[at]
        norms = line[LEAD : LEAD + rows]
        return line[:FIRST].tolist(), math.sqrt(float(norms.double().square().sum())), norms


class Slots:
    """The slots of one process: many small ones, a few for the largest prefill."""

    def __init__(self, rows: int, *, pinned: bool, small: int = SMALL, large: int = LARGE) -> None:
        self._small = deque(Slot(SMALL_CELLS, pinned=pinned) for _ in range(small))
        self._large_cells = max(SMALL_CELLS, 8 * (LEAD + rows))
        self._large = deque(Slot(self._large_cells, pinned=pinned) for _ in range(large))

    def take(self, lines: int, rows: int) -> Slot | None:
        """Return a free slot for so many states of so many rows, or None."""
        cells = lines * (LEAD + rows)
        for free, size in ((self._small, SMALL_CELLS), (self._large, self._large_cells)):
            if cells <= size and free:
                return free.popleft()
        return None

    def free(self, slot: Slot) -> None:
        """Give a slot back."""
        slot.flag.zero_()
        (self._small if slot.memory.numel() == SMALL_CELLS else self._large).append(slot)
