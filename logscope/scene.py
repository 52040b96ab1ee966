"""What the groups of one file share: where in which life we are, and what waits to be handed out.

This module is responsible for :class:`Scene` and for what stands in its queue beside passes, segments and server
records: a record that is placed later (:class:`Later`), a copy that several passes may have printed (:class:`Doubt`).
It must not know how records are placed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logscope.assembly import Open
    from logscope.copies import Slot
    from logscope.model import During, Occurrence, Segment, ServerEvent
    from logscope.rounds import Option
    from logscope.segments import Lives


class Doubt:
    """A copy that several passes may have printed: it belongs to none of them unless they are of one phase.

    ``owners`` are these passes, or the rounds they belong to.
    """

    __slots__ = ("alone", "occurrence", "owners", "slot")

    def __init__(self, occurrence: Occurrence, slot: Slot, owners: Sequence[Open | Option]) -> None:
        self.occurrence = occurrence
        self.slot = slot
        self.owners = owners
        self.alone: bool | None = None

    @property
    def decided(self) -> bool:
        """Whether all passes in question have their labels."""
        return all(owner.decided for owner in self.owners)

    def settle(self, made: Open | None = None) -> bool:
        """Tell whether the copy stays outside of the passes; ``made`` is the one it was put into."""
        if self.alone is None:
            phases = {owner.phase for owner in self.owners} - {None}
            self.alone = len(phases) > 1 or (made is not None and made.phase not in phases)
        return self.alone


class Later:
    """A record of which it is not told yet where it belongs, and where we were when it was printed."""

    __slots__ = ("during", "made", "occurrence", "region", "settled", "slot", "stray", "time")

    def __init__(self, occurrence: Occurrence, slot: Slot, scene: Scene) -> None:
        self.occurrence = occurrence
        self.slot = slot
        self.during: During = scene.lives.during_serving
        self.region = scene.lives.region
        self.time = occurrence[2].time or scene.time
        self.settled = False
        self.stray = False
        self.made: Open | None = None


@dataclass
class Scene:
    """What the groups of one file share: where in which life we are, and the queue of what is to be handed out."""

    file: str
    keep_copies: bool
    lives: Lives
    queue: deque[Open | Segment | ServerEvent | Doubt | Later] = field(default_factory=deque)
    time: str | None = None
