"""Dummy passes: what a server runs while it captures graphs, where several writers print without a mark.

This module is responsible for :class:`Dummies`: every dummy pass is run more than once with the same input, so a text
that all writers have printed belongs to the next run of the pass, whoever printed what in between; and draft passes of
both phases put out the same. It must not know how passes that are served are told apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logscope.copies import Slot, kind_of, text_key

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from logscope.assembly import Open
    from logscope.groups import Group
    from logscope.model import Occurrence, Payload


@dataclass
class _Standing:
    """How many writers have printed the input of a dummy draft pass of some rows, and not yet its output.

    ``wide`` has what kinds of inputs they printed, since nobody stood there last.
    """

    writers: int = 0
    wide: set[bool | None] = field(default_factory=set)


class Dummies:
    """The dummy passes of a group, by the texts they print."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._last: dict[tuple[Any, ...], Open] = {}  # in which pass a text was printed last
        self._inputs: dict[int | None, _Standing] = {}

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        """Tell whether a dummy pass has printed a text."""
        return key in self._last

    def add(self, key: tuple[Any, ...], made: Open) -> None:
        """Note the pass that prints a text."""
        self._last[key] = made

    def heard(self, payload: Payload) -> None:
        """Count who stands before the output of a draft pass: a record was placed."""
        made = self._last.get(text_key(payload)) if self._last and payload.event == "forward" else None
        if made is not None:
            standing = self._inputs.setdefault(payload.rows, _Standing())
            standing.writers += 1
            standing.wide.add(made.wide)

    def before_output(self, payload: Payload, key: tuple[Any, ...], live: Iterable[Open]) -> list[Open] | None:
        """Return which of the passes an output of a dummy draft pass may belong to; None: it is of no dummy pass.

        Dummy input makes draft passes of both phases put out the same, but a writer has printed the input before.
        """
        standing = self._inputs.get(payload.rows)
        if standing is None:
            return None
        known: list[Open] = []
        unknown: list[Open] = []
        for made in live:
            if made.role != "draft" or made.region is None or made.rows != payload.rows:
                continue
            if made.wide not in standing.wide:
                continue
            put_out = made.joined or (made.first_run.joined if made.first_run is not None else None)
            if put_out is None:
                # A text that is printed for the first time is the writer's that is ahead.
                if key in self._last or made is self._group.track.current:
                    unknown.append(made)
            elif text_key(put_out.payload) == key:
                known.append(made)
        found = known + unknown
        if found:
            standing.writers -= 1
            if not standing.writers:
                del self._inputs[payload.rows]
        return found

    def take(self, occurrence: Occurrence, payload: Payload, key: tuple[Any, ...]) -> Slot | None:
        """Place a record of a dummy pass that is run once more: it prints the same text as before; None for another.

        Its first print is found late, when all writers have printed the run before, so it is no part of what the
        writer ahead prints now.
        """
        before = self._last.get(key)
        if before is None:
            return None
        made = before.rerun
        if made is None:
            # What is served may print the text of a dummy pass that has run twice, or that shows no values.
            over = self._group.served and (payload.norm is None or before.first_run is not None)
            if over or not self._group.form.opens(payload):
                return None
            made = before.rerun = self._group.begin_aside(before.role, before, occurrence)
            made.first_run = before
        elif any(kind_of(slot.payload) == kind_of(payload) for slot in made.slots):
            return None
        slot = Slot(occurrence)
        made.add(slot, payload)
        self._group.chain(slot, made, before.slots[-1])
        self._last[key] = made
        return slot
