"""Logs made from real ones, with the true label of every debug line: what the phase tests and benchmark share.

A log is a list of :class:`Unit`: the physical lines of one record, and for every debug tag in them the model and phase
that the server recorded beside the log. Transformations return new lists; :func:`score` labels a log from its text
alone and counts what is wrong, unknown or miscounted.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain

from conftest import real_bytes, truth
from doors import label

from logscope.model import ForwardPass, Segment, ServerEvent

TAG = b"EAGLE3_DEBUG["
PHASES = {
    "EXTEND": "extend",
    "MIXED": "extend",
    "TARGET_VERIFY": "verify",
    "DECODE": "decode",
    "DRAFT_EXTEND": "draft_extend",
    "DRAFT_EXTEND_V2": "draft_extend",
    "IDLE": "idle",
}


@dataclass(frozen=True)
class Unit:
    """The lines of one record (or one other line), and what is true of the debug records in them.

    ``labels`` has a (role, phase) for every tag; ``forward`` numbers the forward the record belongs to; ``writer`` is
    the process that prints it in a log of several.
    """

    text: bytes
    labels: tuple[tuple[str, str], ...] = ()
    forward: int = 0
    writer: int = 0

    @property
    def debug(self):
        """Whether it holds a debug record."""
        return bool(self.labels)


@dataclass
class Score:
    """How the labels of a log compare with the truth. ``events`` are debug records, copies included."""

    events: int = 0
    wrong: int = 0
    unknown: int = 0
    lost: int = 0
    miscounted: int = 0
    unknown_forwards: set = field(default_factory=set)
    reasons: Counter = field(default_factory=Counter)
    mistakes: Counter = field(default_factory=Counter)
    items: list = field(default_factory=list)

    @property
    def share(self):
        """Share of the debug records that are unknown."""
        return self.unknown / self.events if self.events else 0.0


@lru_cache(maxsize=4)
def units(run):
    """Return a real run as units, with its recorded truth."""
    labels = {}
    for row in truth(run):
        if row["kind"] == "forward" and row["line_first"]:
            for ordinal in range(row["line_first"], row["line_first"] + row["line_count"]):
                labels[ordinal] = ((row["model"], PHASES[row["forward_mode"]]), row["seq"])
    made, ordinal = [], 0
    for line in real_bytes(run).splitlines(keepends=True):
        tags = line.count(TAG)
        if not tags and made and made[-1].debug and line[:1] in b" \t" and line.strip():
            made[-1] = replace(made[-1], text=made[-1].text + line)
            continue
        found = [labels[ordinal + step] for step in range(1, tags + 1)]
        ordinal += tags
        made.append(Unit(line, tuple(label for label, _ in found), found[0][1] if found else 0))
    return tuple(made)


def score(log, *, copies=None):
    """Label a log from its text alone and compare with the truth; ``copies`` is how many writers printed each record."""
    expected, line = {}, 1
    for unit in log:
        if unit.debug:
            for number, (part, at) in enumerate(_tags(unit.text)):
                expected[line + part, at] = (unit.labels[number], unit.forward)
        line += unit.text.count(b"\n")
    result = Score(events=len(expected))
    result.items = label(b"".join(unit.text for unit in log))
    seen = Counter()
    places = []
    for item in result.items:
        if isinstance(item, ForwardPass):
            for record in item.records:
                if copies is not None and item.during != "graph_capture" and record.copies != copies:
                    result.miscounted += 1
                places += ((at, item) for at in (record.first, *record.others, *record.variants))
        elif isinstance(item, ServerEvent) and item.payload.site is not None:
            places.append((item.occurrence, None))
    places.sort(key=lambda place: place[0][1])
    for (at_line, _, _, _), item in places:
        key = (at_line, seen[at_line])
        seen[at_line] += 1
        if key not in expected:
            continue
        (role, phase), forward = expected.pop(key)
        if item is None or item.phase == "unknown":
            result.unknown += 1
            result.unknown_forwards.add(forward)
            result.reasons[item.reason if item is not None else "in no pass"] += 1
        elif (item.role, item.phase) != (role, phase):
            result.wrong += 1
            result.mistakes[f"{role} {phase} called {item.role} {item.phase} by {item.evidence}"] += 1
    result.lost = len(expected)
    return result


def _tags(text):
    """Yield (line within the unit, number of the tag on that line) for every tag."""
    for part, line in enumerate(text.split(b"\n")):
        for at in range(line.count(TAG)):
            yield part, at


# -- transformations -----------------------------------------------------------------------------------------------


def only(log, keep):
    """Leave out the lines that are no debug records and that ``keep`` refuses."""
    return [unit for unit in log if unit.debug or keep(unit.text)]


def without_stats(log):
    """Leave out ``Prefill batch`` and ``Decode batch`` lines."""
    return only(log, lambda text: b" batch, #" not in text and b" batch. #" not in text)


def without_args(log):
    """Leave out the ``server_args`` line."""
    return only(log, lambda text: b"server_args=" not in text)


def without_server(log):
    """Leave only the debug records."""
    return [unit for unit in log if unit.debug]


def edited(log, **values):
    """Write other values into ``server_args``."""
    made = []
    for unit in log:
        text = unit.text
        if b"server_args=" in text:
            for name, value in values.items():
                text = re.sub(rb"\b%s=[^,)]+" % name.encode(), b"%s=%s" % (name.encode(), str(value).encode()), text)
        made.append(replace(unit, text=text))
    return made


def prefixed(log, prefix):
    """Put a prefix before every debug record, behind a bar too; ``prefix`` is a text or made from the unit."""
    made = []
    for unit in log:
        text = unit.text
        if unit.debug:
            text = text.replace(TAG, (prefix(unit) if callable(prefix) else prefix) + TAG)
        made.append(replace(unit, text=text))
    return made


def ranked(log, *, dp=None):
    """Put ``[date DPn TPn]`` before every debug record."""
    group = f" DP{dp}" if dp is not None else ""
    return prefixed(log, lambda unit: f"[2026-02-10 12:00:00{group} TP{unit.writer}] ".encode())


def copied(log, writers, seed, *, skew):
    """Let several writers print every debug record, each in its own order; only the first prints other lines.

    ``skew`` is how far apart they run: ``tight`` (all copies of a record stand together, shuffled), ``pass`` (they
    wait for each other at the end of each pass, as the collectives of a target's layers make them), ``turns`` (the
    same, and each prints its pass in one go, as a buffered pipe does), ``blocks`` (they
    run freely between server lines and wait for each other there), ``loose`` (the next writer is drawn at random
    every time), ``burst`` (a writer prints a buffer of up to 40 records at a time), or a number (writers of unequal
    speed, the fastest at most so many records ahead). Nobody prints before the lines that come first in the log.
    """
    drawn = random.Random(seed)
    log = edited(log, tp_size=writers)
    start = next((number for number, unit in enumerate(log) if unit.debug), len(log))
    made, rest = list(log[:start]), log[start:]
    if skew in ("blocks", "pass", "tight", "turns"):
        block = []
        for unit in (*rest, Unit(b"")):
            over = (
                not unit.debug
                or skew == "tight"
                or (skew in ("pass", "turns") and block and unit.forward != block[-1].forward)
            )
            if block and over:
                streams = _streams(block, writers)
                if skew == "turns":
                    made += chain.from_iterable(drawn.sample(streams, len(streams)))
                else:
                    made += _merged(streams, drawn, skew)
                block = []
            if unit.debug:
                block.append(unit)
            elif unit.text:
                made.append(unit)
        return made
    return made + _merged(_streams(rest, writers), drawn, skew)


def _streams(log, writers):
    others = [unit for unit in log if unit.debug]
    return [[replace(unit, writer=0) for unit in log]] + [
        [replace(unit, writer=writer) for unit in others] for writer in range(1, writers)
    ]


def _merged(streams, drawn, skew):
    """Merge the streams of several writers in random order, each keeping its own."""
    at, done = [0] * len(streams), [0] * len(streams)
    made, total = [], sum(map(len, streams))
    while len(made) < total:
        choices = [writer for writer, stream in enumerate(streams) if at[writer] < len(stream)]
        if isinstance(skew, int):
            behind = min(done[writer] for writer in choices)
            choices = [writer for writer in choices if done[writer] - behind < skew]
            writer = drawn.choices(choices, [1 + 4 * (writer % 3) for writer in choices])[0]
        else:
            writer = drawn.choice(choices)
        for _ in range(drawn.randint(1, 40) if skew == "burst" else 1):
            if at[writer] < len(streams[writer]):
                unit = streams[writer][at[writer]]
                made.append(unit)
                at[writer] += 1
                done[writer] += unit.debug
    return made


def cut(log, seed):
    """Cut a log at a random line at either end, with at least a third left."""
    drawn = random.Random(seed)
    first = drawn.randrange(len(log) // 3)
    last = drawn.randrange(2 * len(log) // 3, len(log) + 1)
    return log[first:last]


def head_cut(log, seed):
    """Cut off the beginning at a random debug line."""
    places = [number for number, unit in enumerate(log) if unit.debug]
    return log[random.Random(seed).choice(places[: max(1, 3 * len(places) // 4)]) :]


def one_step(log):
    """Leave out the draft's decode passes, as with one draft step."""
    kept = [unit for unit in log if ("draft", "decode") not in unit.labels]
    return edited(kept, speculative_num_steps=1)


def more_steps(log, steps):
    """Repeat the draft's decode passes (with other numbers) until a round has ``steps - 1`` of them."""
    made, rounds, place = [], [], 0
    for unit in (*log, Unit(b"")):
        if ("draft", "decode") in unit.labels:
            rounds.append(unit)
            continue
        if (rounds and unit.debug) or not unit.text:
            forwards = sorted({inner.forward for inner in rounds})
            extra = [inner for inner in rounds if forwards and inner.forward == forwards[-1]]
            for turn in range(steps - 1 - len(forwards)):
                place += 1
                made += [
                    replace(inner, text=_other_norm(inner.text, place), forward=-1000 * inner.forward - turn)
                    for inner in extra
                ]
            rounds = []
        elif rounds:
            # A server line between the passes of a round stays where it is.
            made.append(unit)
            continue
        made.append(unit)
    kept = made[:-1] if made and not made[-1].text else made
    return edited(kept, speculative_num_steps=steps)


def _other_norm(text, place):
    return re.sub(rb"(norm=\d+\.)\d{4}", lambda found: found[1] + b"%04d" % (place % 10000), text)


def wider_tree(log, factor):
    """Give every verify and draft_extend (with all rows) ``factor`` times the rows, as with more draft tokens."""
    made = []
    for unit in log:
        text = unit.text
        if unit.labels and unit.labels[0] in {("target", "verify"), ("draft", "draft_extend")}:
            text = re.sub(rb"Size\(\[(\d+),", lambda found: b"Size([%d," % (int(found[1]) * factor), text)
        made.append(replace(unit, text=text))
    return edited(made, speculative_num_draft_tokens=4 * factor)


def without_events(log, *words):
    """Leave out the debug records whose label is one of ``words`` (``b"forward end"``, ...)."""
    return [unit for unit in log if not unit.debug or not any(b"] " + word in unit.text for word in words)]


def only_events(log, *words):
    """Leave only the debug records whose label is one of ``words``, and all other lines."""
    return [unit for unit in log if not unit.debug or any(b"] " + word in unit.text for word in words)]


def one_layer(log):
    """Capture one layer only: the joined state is as wide as a hidden state, and the draft skips its fc."""
    found = {int(layer) for unit in log if unit.debug for layer in re.findall(rb"\] layer (\d+) capture", unit.text)}
    others = [b"layer %d capture" % layer for layer in sorted(found)[1:]]
    made = []
    for unit in without_events(log, b"embed", b"fc output", *others):
        text = unit.text
        if unit.debug:
            text = re.sub(rb"num_aux=[34]", b"num_aux=1", text)
            text = re.sub(rb"(\d+), (21504|28672)\]", rb"\1, 7168]", text)
            text = re.sub(rb"shapes=\[(torch\.Size\(\[\d+, 7168\]\)), .*?\], hidden", rb"shapes=[\1], hidden", text)
        made.append(replace(unit, text=text))
    return made


def numbered_modes(log):
    """Print capture_hidden_mode as a number, as an IntEnum in an f-string does."""
    names = {b"CaptureHiddenMode.FULL": b"2", b"CaptureHiddenMode.LAST": b"1"}
    return [
        replace(unit, text=re.sub(rb"CaptureHiddenMode\.(FULL|LAST)", lambda found: names[found[0]], unit.text))
        for unit in log
    ]


def without_modes(log):
    """Leave capture_hidden_mode out."""
    return [
        replace(unit, text=re.sub(rb"capture_hidden_mode=[^,]+, ", b"", unit.text)) if unit.debug else unit
        for unit in log
    ]


def without_values(log):
    """Print shapes only: no norm, no head."""
    return [
        replace(unit, text=re.sub(rb", norm=[^,]+, first5=\[[^\]]*\]", b"", unit.text)) if unit.debug else unit
        for unit in log
    ]


def without_draft_values(log):
    """Print shapes only in the draft's records."""
    return [
        shown if unit.labels and unit.labels[0][0] == "draft" else unit
        for unit, shown in zip(log, without_values(log), strict=True)
    ]


def nan_from(log, share):
    """Let the target's states be nan behind its first layer, from a pass on that stands at a share of the log."""
    targets = [at for at, unit in enumerate(log) if unit.labels and unit.labels[0][0] == "target"]
    start = targets[int(len(targets) * share)]
    while log[start - 1].forward == log[start].forward or ("target" not in [role for role, _ in log[start].labels]):
        start += 1
    made = list(log[:start])
    for unit in log[start:]:
        text = unit.text
        first = made and unit.debug and unit.labels[0][0] == "target" and unit.forward != made[-1].forward
        if unit.debug and not first:
            text = re.sub(rb"norm=[0-9.e+-]+", b"norm=nan", text)
            # The first values of what is joined are those of its first state.
            if b"num_aux=3" not in text and b"21504" not in text:
                text = re.sub(rb"first5=\[[^\]]*\]", b"first5=[nan, nan, nan, nan, nan]", text)
        made.append(replace(unit, text=text))
    return made


def lossy(log, share, seed):
    """Leave out a share of the debug records at random."""
    drawn = random.Random(seed)
    return [unit for unit in log if not unit.debug or drawn.random() >= share]


def said(log):
    """Let every debug record print its forward mode."""
    names = {"extend": b"EXTEND", "verify": b"TARGET_VERIFY", "decode": b"DECODE", "draft_extend": b"DRAFT_EXTEND_V2"}
    return [
        replace(
            unit, text=unit.text.replace(b"shape=", b"forward_mode=ForwardMode.%s, shape=" % names[unit.labels[0][1]])
        )
        if unit.debug
        else unit
        for unit in log
    ]


def together(one, other, seed, *, burst=1):
    """Let two servers print into one file, line by line."""
    drawn = random.Random(seed)
    left, right = list(one), [replace(unit, forward=-unit.forward) for unit in other]
    made, at, to = [], 0, 0
    while at < len(left) or to < len(right):
        if to >= len(right) or (at < len(left) and drawn.random() < len(left) / (len(left) + len(right))):
            made += left[at : at + burst]
            at += burst
        else:
            made += right[to : to + burst]
            to += burst
    return made


def served_later(log):
    """Return a run as a second scheduler's: the same warm-up, then the second half of its requests.

    Where prints are buffered, "ready" stands inside the warm-up: that goes on to the extend that serves first.
    """
    first = next(at for at, unit in enumerate(log) if unit.debug)
    ready = next(at for at, unit in enumerate(log) if b"ready to roll" in unit.text)
    served = next(at for at in range(ready, len(log)) if _begins_extend(log, at))
    half = next(at for at in range((ready + len(log)) // 2, len(log)) if _begins_extend(log, at))
    return [unit for unit in (*log[first:served], *log[half:]) if unit.debug]


def _begins_extend(log, at):
    extend = (("target", "extend"),)
    return log[at].labels[:1] == extend and log[at - 1].labels[:1] != extend


def two_schedulers(log, seed, *, marked):
    """Let two schedulers of one server print into one file, line by line."""
    first = next(at for at, unit in enumerate(log) if unit.debug)
    one, other = list(log[first:]), served_later(log)
    if marked:
        one, other = ranked(one, dp=0), ranked(other, dp=1)
    return edited(log[:first], dp_size=2) + together(one, other, seed)


def variants(seeds):
    """Yield (name, transformation of a run, writers of every record, runs it makes no sense for)."""
    yield "prefixed [date TP0]", ranked, None, ()
    yield "without Prefill and Decode lines", without_stats, None, ()
    yield "without server_args", without_args, None, ()
    yield "without both", lambda log: without_args(without_stats(log)), None, ()
    yield "debug lines only", without_server, None, ()
    yield "mode numbers", numbered_modes, None, ("style-alt",)
    yield "one captured layer", one_layer, None, ("style-alt",)
    yield "num_steps 5", partial(more_steps, steps=5), None, ("style-alt",)
    yield "16 draft tokens", partial(wider_tree, factor=4), None, ("style-alt",)
    yield "num_steps 1", one_step, None, ()
    yield "num_steps 1, without Prefill lines", lambda log: without_stats(one_step(log)), None, ()
    for seed in range(seeds):
        yield f"cut at both ends, seed {seed}", partial(cut, seed=seed), None, ()
        yield f"cut off at a debug line, seed {seed}", partial(head_cut, seed=seed), None, ()
        for skew in ("tight", "pass", "turns", 12, "blocks", "burst", "loose", 300):
            name = f"tp8, {skew}, seed {seed}"
            yield name, partial(copied, writers=8, seed=seed, skew=skew), 8, ()
            yield f"{name}, marked", partial(marked_copies, seed=seed, skew=skew), 8, ()
        yield f"tp8, tight, cut, seed {seed}", partial(cut_copies, seed=seed), None, ()
        for marked in (False, True):
            name = f"two schedulers, {'DP0 and DP1' if marked else 'unmarked'}, seed {seed}"
            hidden = ("cuda-graph", "0.5.15.post1-cuda-graph", "fault-embed-captured")
            yield name, partial(two_schedulers, seed=seed, marked=marked), None, hidden


def marked_copies(log, seed, skew):
    return ranked(copied(log, 8, seed, skew=skew))


def cut_copies(log, seed):
    return cut(copied(log, 8, seed, skew="tight"), seed)


def segments(items):
    """Return the segments among items."""
    return [item for item in items if isinstance(item, Segment)]


def forwards(items):
    """Return the passes among items."""
    return [item for item in items if isinstance(item, ForwardPass)]
