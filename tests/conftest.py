"""Fixtures that every test may use."""

from __future__ import annotations

import os

import pytest

from makeway.testing import Harness

# The long ones start first, so that none of them is left running alone at the end.
_LONGEST = (
    "golden/test_recordings.py",
    "e2e/test_kill.py",
    "e2e/test_training.py",
    "e2e/test_walkthroughs.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend",
        choices=("embedded", "kube"),
        default=os.environ.get("MAKEWAY_BACKEND") or "embedded",
        help="where the end-to-end tests run: the embedded API, or a real kube-apiserver",
    )
    parser.addoption(
        "--cluster",
        choices=("own", "existing"),
        default=os.environ.get("MAKEWAY_CLUSTER") or "own",
        help="with --backend kube: start one, or use the cluster that KUBECONFIG names",
    )


def pytest_configure(config: pytest.Config) -> None:
    # By environment, so that whatever the tests start sees it too.
    os.environ["MAKEWAY_BACKEND"] = config.getoption("--backend")
    os.environ["MAKEWAY_CLUSTER"] = config.getoption("--cluster")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    """When an item's file comes: the long ones by their place in the list, all others after them as they were."""
    file = item.nodeid.partition("::")[0]
    return next((i for i, name in enumerate(_LONGEST) if file.endswith(name)), len(_LONGEST))


@pytest.fixture
def h() -> Harness:
    return Harness()
