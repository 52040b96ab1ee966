"""Where one forward ends and the next begins, from the order in which a forward prints its records.

This module is responsible for :func:`cut`: records of one scheduler, in order, become passes, with what each shows
(rows, whether it reads several states). It must not know how copies are told, nor what the phase of a pass is.

A target pass prints captures with rising layers, ``forward_end``, ``aux_concat``; a draft pass ``forward``, ``fc`` or
``fc_output``, ``aux_concat`` with one state. A new pass begins where that order does not rise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from logscope.model import CAPTURE_EVENTS, num_aux

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logscope.model import Payload

OTHER, CAPTURE, END, JOIN, FORWARD, FC, FC_OUTPUT = range(7)
_CLASSES = {"forward_end": END, "aux_concat": JOIN, "forward": FORWARD, "fc": FC, "fc_output": FC_OUTPUT}
_CLASSES |= dict.fromkeys(CAPTURE_EVENTS, CAPTURE)
_ORDER = np.array([-1, 0, 1 << 30, (1 << 30) + 1, 0, 1, 2])
TARGET, DRAFT = 0, 1
NONE = -1


class Kinds(NamedTuple):
    """What heads say that matters for passes, as columns (-1: not printed)."""

    what: np.ndarray  # OTHER .. FC_OUTPUT
    layer: np.ndarray
    rows: np.ndarray
    width: np.ndarray
    embeds: np.ndarray
    num: np.ndarray  # num_aux as printed
    role: np.ndarray  # the record's own: TARGET, DRAFT, -1
    site: np.ndarray
    usable: np.ndarray


def kinds(heads: Sequence[Payload], sites: dict[str | None, int]) -> Kinds:
    """Return the columns of heads; ``sites`` numbers the words in brackets and is added to."""

    def number(value: object) -> int:
        return value if isinstance(value, int) and not isinstance(value, bool) and value < 1 << 62 else NONE

    printed = [
        (
            _CLASSES.get(head.event, OTHER),
            number(head.layer),
            number(head.rows),
            number(head.width),
            number(_last(head.fields.get("embeds"))),
            number(num_aux(head)),
            NONE if head.role is None else int(head.role == "draft"),
            sites.setdefault(head.site, len(sites)),
            head.usable,
        )
        for head in heads
    ]
    table = np.array(printed, np.int64).reshape(-1, 9)
    what, layer, rows, width, embeds, num, role, site, usable = table.T
    return Kinds(what, layer, rows, width, embeds, num, role, site, usable.astype(np.bool_))


def _last(value: object) -> object:
    return value[-1] if isinstance(value, list) and value else None


class Passes(NamedTuple):
    """Passes of one scheduler as columns (-1: not known): records ``first`` to ``last``; else -1 or a record."""

    first: np.ndarray
    last: np.ndarray
    role: np.ndarray
    rows: np.ndarray
    wide: np.ndarray  # 1: the draft reads more than one state a row; 0: one
    captures: np.ndarray
    join: np.ndarray
    input: np.ndarray
    fc: np.ndarray
    end: np.ndarray


def usual(values: np.ndarray) -> int:
    """Return the most frequent of some numbers."""
    found, times = np.unique(values, return_counts=True)
    return int(found[times.argmax()])


def order_of(of: Kinds) -> np.ndarray:
    """Return the place of each record within its forward."""
    return np.where(of.what == CAPTURE, of.layer, _ORDER[of.what])


def cut(of: Kinds, region: np.ndarray, hidden: int) -> tuple[np.ndarray, Passes]:
    """Return the pass of each record (-1: it belongs to none), and the passes.

    region
        number of the graph that is being captured, -1 outside graph capture.
    hidden
        width of one state, -1 when it is not known.
    """
    total = len(of.what)
    role, _states = _roles(of, hidden)
    known = np.flatnonzero((of.what != OTHER) & (role >= 0))
    what = of.what[known]
    order = order_of(of)[known]
    rows, sites, mine, at = of.rows[known], of.site[known], role[known], region[known]
    begins = np.ones(len(known), np.bool_)
    if len(known) > 1:
        nameless = (what[1:] == CAPTURE) & (what[:-1] == CAPTURE) & (order[1:] < 0) & (order[:-1] < 0)
        both = (rows[1:] >= 0) & (rows[:-1] >= 0)
        differ = np.where(what[1:] == JOIN, rows[1:] > rows[:-1], rows[1:] != rows[:-1]) & both
        model = (what[1:] <= END) & (what[:-1] <= END) & (sites[1:] != sites[:-1])
        begins[1:] = (
            (mine[1:] != mine[:-1])
            | (what[:-1] == JOIN)
            | ((order[1:] <= order[:-1]) & ~nameless)
            | differ
            | model
            | (at[1:] != at[:-1])
        )
        # A draft pass that reads one state a row has no fc.
        narrow = (what[:-1] == FORWARD) & (of.embeds[known[:-1]] >= 0)
        narrow &= (of.width[known[:-1]] >= 0) & (of.width[known[:-1]] <= of.embeds[known[:-1]])
        begins[1:] |= narrow & (what[1:] >= FC)
    number = np.full(total, NONE)
    number[known] = np.cumsum(begins) - 1
    # Records of unknown labels go with the pass they stand in; behind its join only those of nobody known.
    others = np.flatnonzero(number < 0)
    if len(others) and len(known):
        before = np.searchsorted(known, others) - 1
        placed = before >= 0
        back = known[np.maximum(before, 0)]
        mine_of = of.role[others]
        fits = placed & ((mine_of < 0) | ((mine_of == role[back]) & (of.what[back] != JOIN)))
        fits &= region[back] == region[others]
        number[others[fits]] = number[back[fits]]
    return number, passes_of(of, number, mine[begins])


def _roles(of: Kinds, hidden: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the role of each record, and how many states each join holds (-1: not known).

    A record says its role, or its site does; a join is of the model that prints before it. How many states it holds
    follows from its width: a print may count rows instead (packed states).
    """
    role = of.role.copy()
    joins = of.what == JOIN
    for site in np.unique(of.site[(role < 0) & ~joins]):
        said = role[(of.site == site) & (role >= 0)]
        if len(said):
            role[(of.site == site) & (role < 0) & ~joins] = said[0]
    states = np.full(len(role), NONE)
    whole = joins & (of.width > 0)
    if hidden > 0:
        whole &= of.width % hidden == 0
        states[whole] = of.width[whole] // hidden
    unsure = joins & (states < 0)
    states[unsure] = of.num[unsure]
    where = np.flatnonzero(joins)
    if not len(where):
        return role, states
    model = np.flatnonzero(((role >= 0) | joins) & (of.what != OTHER))
    place = np.searchsorted(model, where) - 1
    before = np.where(place >= 0, model[np.maximum(place, 0)], 0)
    follows = (place >= 0) & ~joins[before]
    # Captures since the last record that is none: of the pass before the join.
    counted = np.cumsum(of.what == CAPTURE)
    edges = np.where((of.what == FORWARD) | joins, np.arange(len(role)), 0)
    edge = np.maximum.accumulate(edges)[before]
    captures = counted[before] - counted[edge]
    several = states[where] > 1
    role[where] = np.where(
        follows & (role[before] == TARGET),
        np.where(several | (captures <= 1) | (states[where] < 0), TARGET, DRAFT),
        np.where(several, TARGET, DRAFT),
    )
    return role, states


def passes_of(of: Kinds, number: np.ndarray, role: np.ndarray) -> Passes:
    """Return what each pass shows; ``number`` is the pass of each record, ``role`` that of each pass."""
    count = len(role)
    total = len(number)
    first = np.full(count, total, np.int64)
    last = np.full(count, NONE, np.int64)
    placed = np.flatnonzero(number >= 0)
    np.minimum.at(first, number[placed], placed)
    np.maximum.at(last, number[placed], placed)

    def only(mask: np.ndarray) -> np.ndarray:
        """Return the first record of each pass for which this holds."""
        found = np.full(count, NONE, np.int64)
        where = placed[mask[placed]][::-1]
        found[number[where]] = where
        return found

    join = only((of.what == JOIN) & of.usable)
    read = only((of.what == FORWARD) & of.usable)
    fc = only((of.what == FC) | (of.what == FC_OUTPUT))
    end = only((of.what == END) & of.usable)
    sized = (of.rows >= 0) & (of.what != OTHER)
    rows_at = only(sized & (of.what != JOIN))
    of_join = only(sized & (of.what == JOIN))
    rows_at = np.where((rows_at < 0) & (role == TARGET), of_join, rows_at)
    rows = np.where(rows_at >= 0, of.rows[rows_at], NONE)
    width = np.where(read >= 0, of.width[read], NONE)
    embeds = np.where(read >= 0, of.embeds[read], NONE)
    out = np.where(join >= 0, of.width[join], NONE)
    against = np.where(embeds >= 0, embeds, out)
    wide = np.where((width >= 0) & (against >= 0), (width > against).astype(np.int64), NONE)
    wide = np.where(role == DRAFT, np.where(fc >= 0, 1, wide), NONE)
    captures = np.bincount(number[placed][of.what[placed] == CAPTURE], minlength=count)
    return Passes(first, last, role, rows, wide, captures, join, read, fc, end)
