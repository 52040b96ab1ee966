"""Fuzz one door by coverage, with atheris (which is no dependency: pip install atheris).

    python benchmarks/fuzz/fuzz.py parse CORPUS -max_total_time=600
    python benchmarks/fuzz/fuzz.py literal CORPUS -max_total_time=600

The doors are those of ``harnesses.py``. What follows the door goes to libFuzzer: the folder that collects inputs with
new coverage, and its options. An input that breaks a promise is written to ``crash-...``; keep it under
``tests/data/fuzz/<door>/``, where ``tests/test_fuzz.py`` replays it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent))

with atheris.instrument_imports(include=["logscope"]):
    import harnesses

SEEDS = Path(__file__).resolve().parents[2] / "tests" / "data" / "fuzz"


def main() -> None:
    """Run libFuzzer on the door named first."""
    door = sys.argv[1] if len(sys.argv) > 1 else ""
    if door not in harnesses.HARNESSES:
        sys.exit(f"name one of: {', '.join(harnesses.HARNESSES)}")
    harnesses.grammar()
    seeds = [str(SEEDS / door)] if (SEEDS / door).is_dir() else []
    options = ["-max_len=4096", "-timeout=20", "-rss_limit_mb=2048"]
    atheris.Setup([sys.argv[0], *options, *sys.argv[2:], *seeds], harnesses.HARNESSES[door])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
