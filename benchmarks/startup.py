"""What it costs to start: `--help` and `summarize` of a 1 MB log, as multiples of `python -c pass`.

    python benchmarks/startup.py [--rounds 15]

All programs are timed in turn in every round; the ratio is the median over the rounds. Both the time on the clock and
the time of the processor are shown: on a busy machine the latter is the steadier.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from compare import ENVIRONMENT, run
from generate import generate

TARGETS = {"summarize 1 MB": 20.0, "--help": 8.0}
HEAVY = ("polars", "rich", "pydantic", "numpy", "asyncio")


def loaded(arguments: list[str]) -> list[str]:
    """Return which heavy modules a command imports."""
    code = (
        "import sys; sys.argv = ['logscope', *sys.argv[1:]]\n"
        "from logscope.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"sys.stderr.write(' '.join(name for name in {HEAVY!r} if name in sys.modules))"
    )
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    return done.stderr.split()


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "small.log"
        generate(log, 10**6)
        commands = {
            "python -c pass": ["-c", "pass"],
            "--help": ["-m", "logscope", "--help"],
            "summarize 1 MB": ["-m", "logscope", "summarize", str(log)],
        }
        clock: dict[str, list[float]] = {name: [] for name in commands}
        cpu: dict[str, list[float]] = {name: [] for name in commands}
        for command in commands.values():
            run([sys.executable, *command])
        for _ in range(rounds):
            for name, command in commands.items():
                took, used, _, _ = run([sys.executable, *command])
                clock[name].append(took)
                cpu[name].append(used)
        print("| command | x python (clock) | x python (processor) | ms (clock) | ms (processor) | target |")
        print("|---|---|---|---|---|---|")
        for name in commands:
            ratios = []
            for times in (clock, cpu):
                pairs = zip(times[name], times["python -c pass"], strict=True)
                ratios.append(statistics.median(one / max(other, 1e-3) for one, other in pairs))
            middle = [1000 * statistics.median(times[name]) for times in (clock, cpu)]
            target = f"under {TARGETS[name]:g} x" if name in TARGETS else ""
            print(f"| {name} | {ratios[0]:.1f} | {ratios[1]:.1f} | {middle[0]:.0f} | {middle[1]:.0f} | {target} |")
        for name in list(commands)[1:]:
            print(f"{name} imports of {', '.join(HEAVY)}: {loaded(commands[name][2:]) or 'none'}")


if __name__ == "__main__":
    main()
