"""`make bench [B=NAME]`: all benchmarks, or one."""

from __future__ import annotations

import importlib
import sys

NAMES = ("engine", "one-machine", "api", "kube")


def main() -> int:
    wanted = sys.argv[1:] or list(NAMES)
    code = 0
    for name in wanted:
        if name not in NAMES:
            print(f'No benchmark called "{name}". There are: {", ".join(NAMES)}.', file=sys.stderr)
            return 2
        code = max(code, importlib.import_module(f"bench.{name.replace('-', '_')}").main())
    return code


if __name__ == "__main__":
    sys.exit(main())
