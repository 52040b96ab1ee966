"""Labels every shared real log from its text alone and compares with the forward mode the server recorded beside it.

    python benchmarks/phases.py                    every real run: events, wrong, unknown
    python benchmarks/phases.py --variants         the logs made from them too, a few seeds each
    python benchmarks/phases.py --variants --seeds 10 --only tp8

``events`` are debug records, copies of other ranks included; ``unknown`` those in a pass without a phase, or in no pass;
``passes`` the forwards they belong to; ``copies`` the records of serving passes with another number of copies than
there are writers.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import phaselab as lab
from conftest import REAL_RUNS

HEAD = f"{'log':58} {'events':>8} {'wrong':>6} {'unknown':>8} {'share':>7} {'passes':>7} {'copies':>7}"


def served_later(log):
    """Return a run as a second scheduler's: the same warm-up, then the second half of its requests."""
    first = next(at for at, unit in enumerate(log) if unit.debug)
    ready = next(at for at, unit in enumerate(log) if b"ready to roll" in unit.text)
    rest = log[ready + 1 :]
    half = next(
        at
        for at in range(len(rest) // 2, len(rest))
        if rest[at].labels[:1] == (("target", "extend"),) and rest[at - 1].labels[:1] != (("target", "extend"),)
    )
    return [unit for unit in log[first:ready] if unit.debug] + [unit for unit in rest[half:] if unit.debug]


def two_schedulers(log, seed, *, marked):
    """Let two schedulers of one server print into one file, line by line."""
    first = next(at for at, unit in enumerate(log) if unit.debug)
    one, other = list(log[first:]), served_later(log)
    if marked:
        one, other = lab.ranked(one, dp=0), lab.ranked(other, dp=1)
    return lab.edited(log[:first], dp_size=2) + lab.together(one, other, seed)


def variants(seeds):
    """Yield (name, transformation of a run, writers of every record, runs it makes no sense for)."""
    yield "prefixed [date TP0]", lab.ranked, None, ()
    yield "without Prefill and Decode lines", lab.without_stats, None, ()
    yield "without server_args", lab.without_args, None, ()
    yield "without both", lambda log: lab.without_args(lab.without_stats(log)), None, ()
    yield "debug lines only", lab.without_server, None, ()
    yield "mode numbers", lab.numbered_modes, None, ("style-alt",)
    yield "one captured layer", lab.one_layer, None, ("style-alt",)
    yield "num_steps 5", partial(lab.more_steps, steps=5), None, ("style-alt",)
    yield "16 draft tokens", partial(lab.wider_tree, factor=4), None, ("style-alt",)
    yield "num_steps 1", lab.one_step, None, ()
    yield "num_steps 1, without Prefill lines", lambda log: lab.without_stats(lab.one_step(log)), None, ()
    for seed in range(seeds):
        yield f"cut at both ends, seed {seed}", partial(lab.cut, seed=seed), None, ()
        yield f"cut off at a debug line, seed {seed}", partial(lab.head_cut, seed=seed), None, ()
        for skew in ("tight", "blocks", "burst", "loose", 300):
            name = f"tp8, {skew}, seed {seed}"
            yield name, partial(lab.copied, writers=8, seed=seed, skew=skew), 8, ()
            yield f"{name}, marked", partial(_marked, seed=seed, skew=skew), 8, ()
        yield f"tp8, tight, cut, seed {seed}", partial(_cut_copies, seed=seed), None, ()
        for marked in (False, True):
            name = f"two schedulers, {'DP0 and DP1' if marked else 'unmarked'}, seed {seed}"
            hidden = ("cuda-graph", "0.5.15.post1-cuda-graph", "fault-embed-captured")
            yield name, partial(two_schedulers, seed=seed, marked=marked), None, hidden


def _marked(log, seed, skew):
    return lab.ranked(lab.copied(log, 8, seed, skew=skew))


def _cut_copies(log, seed):
    return lab.cut(lab.copied(log, 8, seed, skew="tight"), seed)


def show(name, score):
    """Print one row of the table; the mistakes and reasons below it."""
    print(
        f"{name:58} {score.events:8} {score.wrong + score.lost:6} {score.unknown:8} {100 * score.share:6.2f}% "
        f"{len(score.unknown_forwards):7} {score.miscounted:7}",
        flush=True,
    )


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--variants", action="store_true", help="the logs made from the real ones too")
    options.add_argument("--seeds", type=int, default=2, help="seeds of the random variants (default: 2)")
    options.add_argument("--only", default="", help="only variants whose name contains this")
    options.add_argument("--runs", default="", help="only these runs, with commas between them")
    options.add_argument(
        "--every", action="store_true", help="every run of a variant, not only those with something to show"
    )
    given = options.parse_args()
    runs = given.runs.split(",") if given.runs else REAL_RUNS
    print(HEAD)
    worst = 0
    for run in runs:
        result = lab.score(lab.units(run))
        show(run, result)
        worst += result.wrong + result.lost
    for name, make, writers, without in variants(given.seeds) if given.variants else ():
        if given.only not in name:
            continue
        began = time.monotonic()
        total = lab.Score()
        for run in runs:
            if run in without or run == "no-speculation":
                continue
            result = lab.score(make(lab.units(run)), copies=writers)
            if given.every or result.wrong or result.lost or result.share > 0.005:
                show(f"  {name}: {run}", result)
                for text, times in [*result.mistakes.most_common(2), *result.reasons.most_common(2)]:
                    print(f"      {times} x {text}")
            for key in ("events", "wrong", "lost", "unknown", "miscounted"):
                setattr(total, key, getattr(total, key) + getattr(result, key))
            total.unknown_forwards |= {(run, forward) for forward in result.unknown_forwards}
        show(f"{name} ({time.monotonic() - began:.0f} s)", total)
        worst += total.wrong + total.lost
    return 1 if worst else 0


if __name__ == "__main__":
    sys.exit(main())
