"""The shim: runs one container's process and outlives the server that asked for it.

Started as `python -I -S shim.py FOLDER`, where FOLDER/spec.json says what to run. It forks twice into
a session of its own, starts the process in another, copies its output into the log, and leaves behind

    FOLDER/started.json   {"pid", "pid_born", "shim", "shim_born", "boot", "started_at"}
    FOLDER/exit.json      {"exit_code", "finished_at", "message"?}

The first process stays until `started.json` (or, if the program cannot be started, `exit.json`) is
there, so that whoever started it knows where things stand when it ends. A file `stopping` in FOLDER
says that the end is wanted: then the rest of the process group may finish what it is saving.

This file imports nothing but small modules of the standard library: it starts in about 15 ms.
"""

import json
import os
import select
import signal
import sys
import time

CHUNK = 65536
# As container runtimes do: a longer line is written in parts, marked P.
LONGEST_LINE = 16384
LOOK_AT_GROUP_EVERY_S = 0.05
START_FAILED = 128


def main(folder: str, claim: str = "") -> int:
    # Whatever the server had open is not ours to keep open.
    os.closerange(3, 4096)
    with open(os.path.join(folder, "spec.json"), "rb") as file:  # noqa: PTH118, PTH123
        spec = json.load(file)
    ready, told = os.pipe()
    if os.fork():
        os.close(told)
        # Ends when the grandchild has written what there is to know.
        os.read(ready, 1)
        return 0
    os.close(ready)
    os.setsid()
    if os.fork():
        os._exit(0)
    if _claim(claim):
        _watch_over(folder, spec, told)
    return 0


def _claim(claim: str) -> bool:
    """Whether the process is ours to start: a server that came back meanwhile may have given this start up."""
    if not claim:
        return True
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError:
        return False
    return True


def _watch_over(folder: str, spec: dict, told: int) -> None:  # type: ignore[type-arg]
    _let_go_of_the_terminal()
    log = _Log(spec["log"], spec.get("log_limit_bytes", 10 << 20))
    started_at = time.time_ns() / 1e9
    pid, out, err, failure = _start(spec)
    if failure:
        _write(
            folder,
            "exit.json",
            {"exit_code": START_FAILED, "finished_at": started_at, "message": failure},
        )
        os.close(told)
        return
    _write(
        folder,
        "started.json",
        {
            "pid": pid,
            "pid_born": _born(pid),
            "shim": os.getpid(),
            "shim_born": _born(os.getpid()),
            "boot": _boot(),
            "started_at": started_at,
        },
    )
    os.close(told)
    code = _copy_until_exit(pid, out, err, log)
    _end_group(folder, pid)
    log.drain()
    _write(folder, "exit.json", {"exit_code": code, "finished_at": time.time_ns() / 1e9})


def _let_go_of_the_terminal() -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)


def _start(spec: dict) -> "tuple[int, int, int, str]":  # type: ignore[type-arg]
    """The process, the ends of its output, and why it could not be started, if so."""
    out, out_end = os.pipe()
    err, err_end = os.pipe()
    said, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _become(spec, out_end, err_end)
        except BaseException as error:
            os.write(say, _complaint(spec, error).encode(errors="replace")[:4000])
        os._exit(127)
    for end in (out_end, err_end, say):
        os.close(end)
    failure = b""
    # Closed by a successful exec: then there is nothing to read.
    while piece := os.read(said, 4096):
        failure += piece
    os.close(said)
    if failure:
        os.waitpid(pid, 0)
    return pid, out, err, failure.decode(errors="replace")


def _become(spec: dict, out: int, err: int) -> None:  # type: ignore[type-arg]
    os.setsid()
    if spec.get("cgroup"):
        with open(spec["cgroup"], "w") as file:  # noqa: PTH123
            file.write("0")
    os.dup2(out, 1)
    os.dup2(err, 2)
    # Before the change of user: the home is closed to others, its own folder is not.
    os.chdir(spec["cwd"])
    if spec.get("uid") is not None:
        os.setgroups([])
        os.setgid(spec.get("gid", spec["uid"]))
        os.setuid(spec["uid"])
    os.umask(0o022)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    # Not execvpe: it imports a module first, which another user may not be allowed to read.
    os.execve(_program(spec), spec["argv"], spec["env"])


def _program(spec: dict) -> str:  # type: ignore[type-arg]
    name: str = spec["argv"][0]
    if "/" in name:
        return name
    for folder in spec["env"].get("PATH", "").split(":"):
        path = os.path.join(folder, name)  # noqa: PTH118
        if os.path.isfile(path) and os.access(path, os.X_OK):  # noqa: PTH113
            return path
    raise FileNotFoundError(name)


def _complaint(spec: dict, error: BaseException) -> str:  # type: ignore[type-arg]
    program = spec["argv"][0]
    if isinstance(error, FileNotFoundError):
        if not os.path.isdir(spec["cwd"]):  # noqa: PTH112
            return f"working directory {spec['cwd']} does not exist"
        if "/" in program:
            return f'exec: "{program}": no such file or directory'
        return f'exec: "{program}": executable file not found in $PATH'
    if isinstance(error, PermissionError):
        return f'exec: "{program}": permission denied ({error})'
    return f'exec: "{program}": {error}'


def _copy_until_exit(pid: int, out: int, err: int, log: "_Log") -> int:
    """Copy output until the process has ended; what others in its group still say, too."""
    streams = {out: b"stdout", err: b"stderr"}
    ended, code = False, 0
    poll = select.poll()
    for end in streams:
        os.set_blocking(end, False)
        poll.register(end, select.POLLIN | select.POLLHUP)
    waker = _wake_on_child()
    poll.register(waker, select.POLLIN)
    while not ended:
        for end, _ in poll.poll(1000):
            if end == waker:
                os.read(waker, 4096)
            elif not _copy(end, streams[end], log):
                poll.unregister(end)
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            ended, code = True, os.waitstatus_to_exitcode(status)
    for end, stream in streams.items():
        while _copy(end, stream, log):
            pass
    log.keep(streams)
    return code if code >= 0 else 128 - code


def _wake_on_child() -> int:
    waker, wake = os.pipe()
    for end in (waker, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return waker


def _copy(end: int, stream: bytes, log: "_Log") -> bool:
    """False when there is nothing more to read now."""
    try:
        piece = os.read(end, CHUNK)
    except BlockingIOError:
        return False
    if not piece:
        return False
    log.write(stream, piece)
    return True


def _end_group(folder: str, group: int) -> None:
    """The main process has ended, and with it the container.

    Where the end was asked for, only the main process was told, as in a container: a training
    loop saves while its loaders still run. A shell that dies at once leaves its child behind,
    though; so the rest is told now and waited for, and the runner kills it at the end of the
    grace. Otherwise the rest goes with the main process.
    """
    stopping = os.path.join(folder, "stopping")  # noqa: PTH118
    if os.path.exists(stopping):  # noqa: PTH110
        _signal_group(group, signal.SIGTERM)
    while os.path.exists(stopping) and _lives(group):  # noqa: PTH110
        time.sleep(LOOK_AT_GROUP_EVERY_S)
    _signal_group(group, signal.SIGKILL)


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def _lives(group: int) -> bool:
    """Whether a process of the group does more than wait to be buried."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    if not os.path.isdir("/proc/self"):  # noqa: PTH112
        return True
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            fields = _stat(int(name))
            if len(fields) > 2 and fields[2] == str(group) and fields[0] != "Z":
                return True
    return False


def _stat(pid: int) -> "list[str]":
    """The fields of /proc/PID/stat after the name, which may itself hold spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _born(pid: int) -> str:
    """When the process started, in clock ticks since boot; tells it from a later one of its number."""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else ""


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return ""


def _write(folder: str, name: str, content: dict) -> None:  # type: ignore[type-arg]
    """Whole or not at all."""
    path = os.path.join(folder, name)  # noqa: PTH118
    with open(path + ".new", "w") as file:  # noqa: PTH123
        json.dump(content, file)
    os.replace(path + ".new", path)  # noqa: PTH105


class _Log:
    """Lines as container runtimes write them: `TIME STREAM F text`, rotated by size."""

    def __init__(self, path: str, limit: int) -> None:
        self._path = path
        self._limit = limit
        self._file = open(path, "ab", buffering=0)  # noqa: PTH123, SIM115
        self._size = self._file.tell()
        self._rest: dict[bytes, bytes] = {}
        self._streams: dict[int, bytes] = {}

    def write(self, stream: bytes, piece: bytes) -> None:
        *whole, rest = (self._rest.pop(stream, b"") + piece).split(b"\n")
        now = _now()
        lines = [entry for line in whole for entry in _entries(now, stream, line, b"F")]
        while len(rest) > LONGEST_LINE:
            lines += _entries(now, stream, rest[:LONGEST_LINE], b"P")
            rest = rest[LONGEST_LINE:]
        if rest:
            self._rest[stream] = rest
        self._append(lines)

    def keep(self, streams: "dict[int, bytes]") -> None:
        self._streams = streams

    def drain(self) -> None:
        """What the rest of the group said at last, and lines without an end."""
        for end, stream in self._streams.items():
            while _copy(end, stream, self):
                pass
        for stream, rest in list(self._rest.items()):
            self._append(_entries(_now(), stream, rest, b"F"))
        self._rest.clear()

    def _append(self, lines: "list[bytes]") -> None:
        """In one write as a rule; in several where the limit falls between."""
        batch: list[bytes] = []
        for line in lines:
            if self._size + len(line) > self._limit and self._size:
                self._flush(batch)
                self._rotate()
                batch = []
            batch.append(line)
            self._size += len(line)
        self._flush(batch)

    def _flush(self, batch: "list[bytes]") -> None:
        try:
            self._file.write(b"".join(batch))
        except OSError:
            # A full disk loses lines, not the process.
            return

    def _rotate(self) -> None:
        self._file.close()
        os.replace(self._path, self._path + ".1")  # noqa: PTH105
        self._file = open(self._path, "ab", buffering=0)  # noqa: PTH123, SIM115
        self._size = 0


def _entries(now: bytes, stream: bytes, line: bytes, tag: bytes) -> "list[bytes]":
    parts = [line[at : at + LONGEST_LINE] for at in range(0, len(line), LONGEST_LINE)] or [b""]
    tags = [b"P"] * (len(parts) - 1) + [tag]
    return [
        b"%s %s %s %s\n" % (now, stream, mark, part) for mark, part in zip(tags, parts, strict=True)
    ]


def _now() -> bytes:
    nanoseconds = time.time_ns()
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(nanoseconds // 1_000_000_000))
    return f"{seconds}.{nanoseconds % 1_000_000_000:09d}Z".encode()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
