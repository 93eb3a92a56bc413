"""Commands inside pods of this machine, files in and out, their ports, what they use, and tokens: by every kubectl that is found here.

Those before 1.30 speak SPDY, later ones WebSocket; ports are forwarded over SPDY inside a WebSocket from 1.31 on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import socket
import socketserver
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from _pytest.mark import ParameterSet
from tools.kubectl import others

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
    def __init__(self, makeway: Makeway, binary: str) -> None:
        self.makeway = makeway
        self.command = [binary, "--kubeconfig", str(makeway.home / "kubeconfig")]
        self.pod = makeway.until("the pod runs", lambda: makeway.running("app=box"))

    def __call__(
        self, *arguments: str, code: int = 0, text: str = "", timeout_s: float = 30
    ) -> str:
        done = subprocess.run(
            [*self.command, *arguments],
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
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Makeway]:
    with machine_of_its_own("--capacity", "cpu=4,memory=8Gi") as makeway:
        manifest = tmp_path_factory.mktemp("pod") / "pod.yaml"
        manifest.write_text(POD)
        makeway("apply", "-f", str(manifest))
        yield makeway


def kubectls() -> list[ParameterSet]:
    """Every day those that speak differently: the newest and the oldest."""
    old = [str(path) for path in others()]
    everyday = [kubectl_path(), *old[:1]]
    return [
        pytest.param(path, id=Path(path).name, marks=() if path in everyday else pytest.mark.slow)
        for path in [*everyday, *old[1:]]
    ]


@pytest.fixture(scope="module", params=kubectls())
def kubectl(machine: Makeway, request: pytest.FixtureRequest) -> Kubectl:
    return Kubectl(machine, str(request.param))


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


def commands(mark: str) -> list[psutil.Process]:
    """Running commands of this name, kubectl's own aside."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            if line[-1:] == [mark] and Path(line[0]).name == "sleep":
                found.append(process)
    return found


def test_a_command_ends_with_its_client(kubectl: Kubectl) -> None:
    command = [*kubectl.command, "exec", "box", "--", "sleep", "4321"]
    with subprocess.Popen(command) as one:
        kubectl.makeway.until("it runs", lambda: commands("4321"))
        one.kill()
    kubectl.makeway.until("the command is gone", lambda: not commands("4321"))


def test_a_command_ends_with_the_server() -> None:
    with machine_of_its_own("--capacity", "cpu=4,memory=8Gi") as makeway:
        (makeway.home / "pod.yaml").write_text(POD)
        makeway("apply", "-f", str(makeway.home / "pod.yaml"))
        kubectl = Kubectl(makeway, str(kubectl_path()))
        command = [*kubectl.command, "exec", "box", "--", "sleep", "4322"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL):
            (running,) = makeway.until("it runs", lambda: commands("4322"))
            server = running.parent()
            assert server is not None
            server.kill()
            makeway.until("the command is gone", lambda: not commands("4322"))
        makeway("up", "--detach")


def test_attaching_shows_what_is_written(kubectl: Kubectl) -> None:
    command = [*kubectl.command, "attach", "box"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "tick\n"
        one.kill()


def test_a_terminal_is_one_and_has_the_size_of_the_window(kubectl: Kubectl) -> None:
    ours, theirs = pty.openpty()
    resize(ours, rows=31, columns=77)
    command = [*kubectl.command, "exec", "-it", "box", "--", "sh"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as shell:
        os.close(theirs)
        os.write(ours, b"test -t 0 && echo is-$((1+1)) && stty size\n")
        assert read_until(ours, b"31 77").count(b"is-2") == 1
        resize(ours, rows=20, columns=50)
        shell.send_signal(signal.SIGWINCH)
        os.write(
            ours, b"until [ \"$(stty size)\" = '20 50' ]; do sleep 0.1; done; echo grown-$((2+2))\n"
        )
        read_until(ours, b"grown-4")
        os.write(ours, b"exit 5\n")
        assert shell.wait(20) == 5
    os.close(ours)


def resize(terminal: int, *, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def read_until(terminal: int, wanted: bytes) -> bytes:
    said = b""
    while wanted not in said:
        ready, _, _ = select.select([terminal], [], [], 20)
        assert ready, said
        said += os.read(terminal, 4096)
    return said


@contextlib.contextmanager
def forwarded(kubectl: Kubectl, port: int) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """The local port that leads to one of the pod's."""
    command = [*kubectl.command, "port-forward", "box", f":{port}"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as one:
        assert one.stdout is not None
        line = one.stdout.readline()
        found = re.match(r"Forwarding from 127\.0\.0\.1:(\d+)", line)
        assert found, line
        yield int(found[1]), one
        one.kill()


def echo(port: int, content: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_ports_of_a_pod_are_reached_from_here(kubectl: Kubectl) -> None:
    class Echo(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"you said " + self.rfile.read())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with (
            forwarded(kubectl, server.server_address[1]) as (port, _),
            ThreadPoolExecutor(8) as pool,
        ):
            much = [bytes([65 + number]) * 200_000 for number in range(16)]
            said = list(pool.map(lambda content: echo(port, content), much))
        server.shutdown()
    assert said == [b"you said " + content for content in much]


def test_a_port_that_nobody_listens_on_says_so(kubectl: Kubectl) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = unused.getsockname()[1]
        with forwarded(kubectl, nobody) as (port, one):
            # kubectl hangs up, and what it has not read by then resets the connection.
            with contextlib.suppress(ConnectionResetError):
                assert echo(port, b"hello?") == b""
            assert one.stdout is not None
            said = "".join(iter(one.stdout.readline, ""))  # kubectl ends by itself
    assert f"error forwarding port {nobody} to pod box" in said
    assert "connection refused" in said


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
            [kubectl.command[0], "--kubeconfig", str(other), "get", "pods"],
            capture_output=True,
            timeout=30,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == code, done.stderr
    assert "less than 10 minutes" in kubectl("create", "token", "default", "--duration=5s", code=1)
