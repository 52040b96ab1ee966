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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import phaselab as lab
from conftest import REAL_RUNS

HEAD = f"{'log':58} {'events':>8} {'wrong':>6} {'unknown':>8} {'share':>7} {'passes':>7} {'copies':>7}"


def show(name: str, score: lab.Score) -> None:
    """Print one row of the table; the mistakes and reasons below it."""
    print(
        f"{name:58} {score.events:8} {score.wrong + score.lost:6} {score.unknown:8} {100 * score.share:6.2f}% "
        f"{len(score.unknown_forwards):7} {score.miscounted:7}",
        flush=True,
    )


def main() -> int:
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
    for name, make, writers, without in lab.variants(given.seeds) if given.variants else ():
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
