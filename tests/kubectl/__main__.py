"""Transcripts by hand: `python -m tests.kubectl embedded|kube [--kubectl BINARY]` prints one."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tools.kubectl import kubectl

from tests.kubectl.transcript import record, text_of
from tests.kubectl.worlds import WORLDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("world", choices=WORLDS)
    parser.add_argument("--kubectl", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mw-") as scratch, WORLDS[options.world]() as config:
        steps = record(options.kubectl or kubectl(), config, Path(scratch))
    sys.stdout.write(text_of(steps))


if __name__ == "__main__":
    main()
