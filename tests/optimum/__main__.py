"""`make optimum`: at least 2,000 generated clusters against the exact solver."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tests.optimum.clusters import FAMILIES, generate
from tests.optimum.compare import Outcome, compare

MEAN, P99 = 1.01, 1.10


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--count", type=int, default=2000, help="clusters in which somebody has to fall"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    outcomes = run(options.count, options.seed, progress=sys.stderr.isatty())
    return report(outcomes)


def run(count: int, seed: int, *, progress: bool = False) -> list[Outcome]:
    outcomes: list[Outcome] = []
    while len(outcomes) < count:
        outcome = compare(generate(seed))
        seed += 1
        if outcome is not None:
            outcomes.append(outcome)
            if progress and len(outcomes) % 50 == 0:
                print(f"\r{len(outcomes)} of {count}", end="", file=sys.stderr)
    return outcomes


def ratios(outcomes: list[Outcome]) -> list[float]:
    return sorted(o.ratio for o in outcomes if o.optimum and o.victims and o.optimum.loss_gpu_s)


def report(outcomes: list[Outcome]) -> int:
    problems = [o for o in outcomes if o.problem]
    for outcome in problems[:20]:
        print(f"seed {outcome.case.seed} ({outcome.case.family}): {outcome.problem}")
    for outcome in [o for o in outcomes if o.ratio > P99][:20]:
        print(
            f"seed {outcome.case.seed} ({outcome.case.family}): {outcome.victims} loses {outcome.ratio:.2f} times {outcome.optimum}"
        )
    found = ratios(outcomes)
    mean = sum(found) / len(found)
    p99 = found[min(len(found) - 1, int(len(found) * 0.99))]
    by_family = Counter(o.case.family for o in outcomes)
    for family in FAMILIES:
        print(f"{family:18} {by_family[family]:5} clusters")
    solved = [o for o in outcomes if o.victims]
    proven = sum(o.proven for o in solved)
    print(
        f"optimum: {len(outcomes)} clusters, {len(found)} with loss; ratio mean {mean:.4f} (<= {MEAN}),"
        f" 99th percentile {p99:.4f} (<= {P99}), worst {found[-1]:.3f};"
        f" proven optimal {proven} of {len(solved)}; {len(problems)} with another ceiling, or illegal"
    )
    return 0 if not problems and mean <= MEAN and p99 <= P99 else 1


if __name__ == "__main__":
    sys.exit(main())
