"""What an API process loads before it answers: nothing that only its clients need."""

from __future__ import annotations

import subprocess
import sys

LOADED = "import sys, makeway.embedded.api.app; print('aiohttp' in sys.modules)"


def test_the_api_does_not_wait_for_what_only_its_clients_need() -> None:
    told = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "False"
