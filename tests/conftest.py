"""Fixtures that every test may use."""

from __future__ import annotations

import os

import pytest

from makeway.testing import Harness


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


@pytest.fixture
def h() -> Harness:
    return Harness()
