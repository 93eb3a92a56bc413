"""The same random pods and nodes given to the real kube-scheduler and to makeway, on one API server.

    python -m tests.differential --worlds 1000 --seed 1

Compared per world: is the pod that asks schedulable; whom would it evict (policy `kube`); and is the node that we chose one
that kube-scheduler finds feasible. Prints each difference with its seed; exit code 1 when there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time

from tools.control_plane import ControlPlane

from tests.differential.compare import compare


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--worlds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--together", type=int, default=100, help="worlds on the server at once")
    parser.add_argument("--only", type=int, nargs="+", help="these worlds, to look at them again")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    differences = 0
    began = time.monotonic()
    seeds = options.only or [options.seed + n for n in range(options.worlds)]
    with ControlPlane.start(scheduler=True) as plane:
        for at in range(0, len(seeds), options.together):
            report = asyncio.run(compare(plane, seeds[at : at + options.together]))
            for line in report.differences:
                print(line, flush=True)
            differences += len(report.differences)
            print(report.summary(), flush=True)
    took = time.monotonic() - began
    print(f"differential: {len(seeds)} worlds, {differences} different, {took:.0f} s")
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
