"""`makeway up --detach`, the part that stays: what the command line said, without the command line.

Started by `cli/up.py` only. The parser of the command line takes longer to load than the API takes to start, and its words were
understood already.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from makeway.cli.home import Home
from makeway.cli.output import out
from makeway.cli.up import read_options, run_here
from makeway.errors import UserError


def main() -> None:
    home, port = Home(Path(sys.argv[1])), int(sys.argv[2])
    try:
        run_here(home, port, read_options(os.environ.pop("MAKEWAY_OPTIONS")))
    except UserError as error:
        out.complain(f"Error: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
