from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from makeway.embedded.node.process import Run, Spec


def spec(folder: Path, *argv: str, limit: int = 10 << 20) -> Spec:
    return Spec(
        argv=argv,
        env={"PATH": "/usr/bin:/bin"},
        cwd=str(folder),
        log=str(folder / "main.log"),
        log_limit_bytes=limit,
    )


def entries(folder: Path, name: str = "main.log") -> list[tuple[str, str, str]]:
    lines = (folder / name).read_text().splitlines()
    return [(stream, tag, text) for _, stream, tag, text in (each.split(" ", 3) for each in lines)]


def has_ended(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


async def ends(pid: int) -> None:
    async with asyncio.timeout(5):
        while not has_ended(pid):
            await asyncio.sleep(0.01)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "0")


async def end(run: Run) -> int:
    return (await asyncio.wait_for(run.wait(), 5)).exit_code


async def test_output_and_exit_code(run: Run, tmp_path: Path) -> None:
    await run.start(spec(tmp_path, "sh", "-c", "echo a; echo b >&2; printf end; exit 4"))
    assert await end(run) == 4
    assert sorted(entries(tmp_path)) == [
        ("stderr", "F", "b"),
        ("stdout", "F", "a"),
        ("stdout", "F", "end"),
    ]
    time = (tmp_path / "main.log").read_text().split(" ", 1)[0]
    assert len(time) == len("2026-11-16T02:24:22.528704869Z")


async def test_long_lines_are_written_in_parts(run: Run, tmp_path: Path) -> None:
    await run.start(
        spec(tmp_path, "sh", "-c", "head -c 40000 /dev/zero | tr '\\0' x; echo; echo z")
    )
    await end(run)
    found = entries(tmp_path)
    assert [tag for _, tag, _ in found][-1] == "F"
    assert "".join(text for _, _, text in found[:-1]) == "x" * 40000
    assert found[-1] == ("stdout", "F", "z")
    assert all(len(text) <= 16384 for _, _, text in found)


async def test_the_log_is_rotated_by_size(run: Run, tmp_path: Path) -> None:
    script = "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); done"
    await run.start(spec(tmp_path, "sh", "-c", script, limit=2000))
    await end(run)
    assert (tmp_path / "main.log").stat().st_size <= 2000
    assert (tmp_path / "main.log.1").exists()
    assert entries(tmp_path)[-1][2] == "line 199"


async def test_children_left_behind_go_with_the_main_process(run: Run, tmp_path: Path) -> None:
    await run.start(spec(tmp_path, "sh", "-c", "sleep 60 & echo $!"))
    await end(run)
    child = int(entries(tmp_path)[0][2])
    await ends(child)


async def test_another_process_of_the_same_number_is_not_taken_for_this_one(
    run: Run, tmp_path: Path
) -> None:
    await run.start(spec(tmp_path, "sleep", "60"))
    seen = [run.alive]
    file = run.folder / "started.json"
    true = file.read_text()
    file.write_text(true.replace('"shim_born": "', '"shim_born": "9'))
    seen.append(run.alive)
    file.write_text(true)
    assert seen == [True, False]
    run.kill()
    assert await end(run) == 137


async def test_a_lost_shim_is_told_and_its_process_ended(run: Run, tmp_path: Path) -> None:
    await run.start(spec(tmp_path, "sleep", "60"))
    started = run.started
    assert started is not None
    os.kill(started.shim, signal.SIGKILL)
    ended = await asyncio.wait_for(run.wait(), 5)
    assert (ended.exit_code, ended.lost) == (137, True)
    await ends(started.pid)


async def test_what_cannot_start_says_why(run: Run, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("not a program")
    await run.start(spec(tmp_path, "./plain"))
    ended = await asyncio.wait_for(run.wait(), 5)
    assert ended.exit_code == 128
    assert ended.message.startswith('exec: "./plain": permission denied')


async def test_a_missing_working_directory_is_named(run: Run, tmp_path: Path) -> None:
    wrong = Spec(argv=("true",), env={}, cwd="/no/such/place", log=str(tmp_path / "main.log"))
    await run.start(wrong)
    assert (await run.wait()).message == "working directory /no/such/place does not exist"
