"""Commands inside pods of this machine, files in and out, what they use, and tokens: by the real kubectl."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli import Makeway, machine_of_its_own
from tests.e2e.harness import kubectl_path

POD = """
apiVersion: v1
kind: Pod
metadata: {name: box, labels: {app: box}}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: local
    command: [sh, -c, "while true; do echo tick; sleep 0.2; done"]
    env: [{name: COLOUR, value: green}]
    resources: {requests: {cpu: 100m, memory: 16Mi}}
"""

pytestmark = pytest.mark.skipif(not kubectl_path(), reason="no kubectl on this machine")


class Kubectl:
    def __init__(self, makeway: Makeway) -> None:
        self.makeway = makeway
        self.pod = makeway.until("the pod runs", lambda: makeway.running("app=box"))

    def __call__(
        self, *arguments: str, code: int = 0, text: str = "", timeout_s: float = 30
    ) -> str:
        done = subprocess.run(
            [kubectl_path(), "--kubeconfig", str(self.makeway.home / "kubeconfig"), *arguments],
            capture_output=True,
            text=True,
            input=text,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == code, (
            f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    with machine_of_its_own("--capacity", "cpu=4,memory=8Gi") as makeway:
        manifest = tmp_path_factory.mktemp("pod") / "pod.yaml"
        manifest.write_text(POD)
        makeway("apply", "-f", str(manifest))
        yield Kubectl(makeway)


def test_a_command_sees_what_the_container_sees(kubectl: Kubectl) -> None:
    assert kubectl("exec", "box", "--", "sh", "-c", "echo $COLOUR") == "green\n"
    where = kubectl("exec", "box", "--", "pwd").strip()
    assert where.endswith(f"{kubectl.pod['metadata']['uid']}/work")


def test_input_output_errors_and_the_exit_code_pass_through(kubectl: Kubectl) -> None:
    assert kubectl("exec", "-i", "box", "--", "cat", text="hello\n") == "hello\n"
    said = kubectl("exec", "box", "--", "sh", "-c", "echo oh >&2; exit 3", code=3)
    assert said.startswith("oh\n")
    assert "not found in $PATH" in kubectl("exec", "box", "--", "no-such-program", code=1)
    assert "not found" in kubectl("exec", "nobody", "--", "true", code=1)


def test_much_output_arrives_whole(kubectl: Kubectl) -> None:
    assert len(kubectl("exec", "box", "--", "head", "-c", "3000000", "/dev/zero")) == 3_000_000


def test_files_go_in_and_out(kubectl: Kubectl, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("content")
    work = kubectl("exec", "box", "--", "pwd").strip()
    kubectl("cp", str(tmp_path / "in.txt"), f"box:{work}/there.txt")
    kubectl("cp", f"box:{work}/there.txt", str(tmp_path / "out.txt"))
    assert (tmp_path / "out.txt").read_text() == "content"


def test_a_command_ends_with_its_client(kubectl: Kubectl) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        kubectl("exec", "box", "--", "sleep", "4321", timeout_s=2)

    def gone() -> bool:
        found = subprocess.run(["pgrep", "-fx", "sleep 4321"], capture_output=True, check=False)
        return found.returncode == 1

    assert kubectl.makeway.until("the command is gone", gone)


def test_attaching_shows_what_is_written(kubectl: Kubectl) -> None:
    arguments = [kubectl_path(), "--kubeconfig", str(kubectl.makeway.home / "kubeconfig")]
    with subprocess.Popen([*arguments, "attach", "box"], stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "tick\n"
        one.kill()


def test_top_tells_what_is_used(kubectl: Kubectl) -> None:
    rows = [line.split() for line in kubectl("top", "pods", "--no-headers").splitlines()]
    (row,) = [row for row in rows if row[0] == "box"]
    assert row[1].endswith("m")
    assert row[2].endswith("Mi")
    assert len(kubectl("top", "nodes", "--no-headers").splitlines()) == 1


def test_a_token_opens_the_api_and_a_made_up_one_does_not(kubectl: Kubectl) -> None:
    token = kubectl("create", "token", "default").strip()
    assert token.count(".") == 2
    config = kubectl.makeway.home / "kubeconfig"
    text = config.read_text()
    own = (kubectl.makeway.home / "token").read_text().strip()
    for number, (given, code) in enumerate([(token, 0), (token[:-2] + "xx", 1)]):
        other = kubectl.makeway.home / f"kubeconfig-{number}"
        other.write_text(text.replace(own, given))
        done = subprocess.run(
            [kubectl_path(), "--kubeconfig", str(other), "get", "pods"],
            capture_output=True,
            timeout=30,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == code, done.stderr
    assert "less than 10 minutes" in kubectl("create", "token", "default", "--duration=5s", code=1)
