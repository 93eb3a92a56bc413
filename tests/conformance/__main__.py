"""`python -m tests.conformance DIR`: run Kueue's own cases against the engine and say how many come out as in Kueue."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.conformance.run import Tally, run_directory

USAGE = "usage: python -m tests.conformance DIR"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(USAGE, file=sys.stderr)
        return 2
    results = run_directory(Path(arguments[0]))
    if not results:
        print(f"{arguments[0]}: no case file found. {USAGE}", file=sys.stderr)
        return 2
    total = Tally()
    for name, outcomes in results.items():
        tally = Tally.of(outcomes)
        total += tally
        print(f"{name}: {tally}")
        for outcome in outcomes:
            if outcome.problems:
                mark = " (exotic)" if outcome.exotic else ""
                print(f"  FAIL{mark} {outcome.name}")
                for problem in outcome.problems:
                    print(f"       {problem}")
    print(f"conformance: {total}")
    return 0 if total.mainstream_passed == total.mainstream else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
