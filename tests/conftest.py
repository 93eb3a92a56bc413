"""Fixtures that every test may use."""

from __future__ import annotations

import pytest

from makeway.testing import Harness


@pytest.fixture
def h() -> Harness:
    return Harness()
