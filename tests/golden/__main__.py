"""`python -m tests.golden DIR`: replays recordings on makeway and compares what a user sees.

DIR is a situation, a folder of them, or a tree. Prints a line for each situation and a last one for all.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.e2e.backends import BACKEND, WITHOUT_ADMISSION
from tests.e2e.harness import chosen_backend
from tests.golden.recording import Situation, find
from tests.golden.running import Report, run

# The recorded API server gave pods no account and no token.
UNRECORDED_ADMISSION = "ServiceAccount"


def main() -> int:
    args = _arguments()
    situations = [s for s in find(args.dir) if args.k in s.name and _is_for(s, args)]
    # Read by the processes that run the situations.
    os.environ[BACKEND] = args.backend
    os.environ[WITHOUT_ADMISSION] = UNRECORDED_ADMISSION
    if not situations:
        print(f"golden: no situations under {args.dir}", file=sys.stderr)
        return 2
    total = Counter[str]()
    for report in _reports(situations, args):
        total += report.count
        _print(report, args.verbose, args.why)
    facts = sum(total.values())
    print(
        f"golden: {len(situations)} situations, {facts} facts, {total['equal']} equal,"
        f" {total['wanted']} wanted, {total['different']} different"
    )
    return 1 if total["different"] else 0


def _is_for(situation: Situation, args: argparse.Namespace) -> bool:
    if args.backend == "kube" and situation.needs_an_operator:
        return False
    return situation.tagged or not args.tagged


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("dir", type=Path, help="a situation, a folder of them, or a tree")
    parser.add_argument("-k", default="", help="only situations whose name contains this")
    parser.add_argument("-j", type=int, default=os.cpu_count() or 1, help="so many at once")
    parser.add_argument("-v", "--verbose", action="store_true", help="show each difference")
    parser.add_argument("--why", action="store_true", help="show each wanted difference and why")
    parser.add_argument(
        "--backend",
        choices=("embedded", "kube"),
        default=chosen_backend(),
        help="the embedded API, or a real API server",
    )
    parser.add_argument(
        "--tagged", action="store_true", help="only the third that every run on a cluster replays"
    )
    parser.add_argument(
        "--promises",
        action="store_true",
        help="run under least-loss and check the promises instead of the recorded outcome",
    )
    return parser.parse_args()


def _reports(situations: list[Situation], args: argparse.Namespace) -> list[Report]:
    """In the order of the situations, several at once; each machine has a process of its own."""
    if args.j <= 1 or len(situations) == 1:
        return [run(situation, args.promises) for situation in situations]
    with ProcessPoolExecutor(args.j, mp_context=get_context("spawn")) as pool:
        # The longest first, so that no core waits for them at the end.
        longest_first = sorted(situations, key=lambda s: -len(s.steps))
        running = {s.path: pool.submit(run, s, args.promises) for s in longest_first}
        return [running[situation.path].result() for situation in situations]


def _print(report: Report, verbose: bool, why: bool) -> None:
    count = report.count
    print(
        f"{report.situation}: {sum(count.values())} facts, {count['equal']} equal,"
        f" {count['wanted']} wanted, {count['different']} different"
        f" ({report.seconds:.1f} s{', played twice' if report.plays > 1 else ''})"
    )
    for outcome in report.outcomes:
        if (verbose and outcome.verdict == "different") or (why and outcome.verdict == "wanted"):
            print(f"  {outcome.step}: {outcome.key}")
            print(f"    want {outcome.want}\n    got  {outcome.got}")
            if outcome.why:
                print(f"    {outcome.why}")


if __name__ == "__main__":
    sys.exit(main())
