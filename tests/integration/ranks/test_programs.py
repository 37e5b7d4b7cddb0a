"""Whole programs, pasted cell by cell: every rank outputs what the same program outputs in N plain processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mhnb.cluster.cluster import Cluster
from mhnb.core.launch.environment import rank_environment
from mhnb.transport.addresses import find_free_port
from tests.integration.ranks import plain_rank

RANKS, DEVICES = 4, 2
PROGRAMS = sorted(path.stem for path in plain_rank.PROGRAMS.glob("[!_]*.py") if path.stem != "conftest")
MARKS = {
    "explicit_axes": pytest.mark.soak,
    "first_steps": pytest.mark.other_python,
    "host_utils": pytest.mark.other_python,
}
Outputs = dict[str, list[list[dict[str, str | None]]]]
"""Outputs by program, rank and cell."""


def _selected_programs(session: pytest.Session) -> list[str]:
    """Return the programs that this run's tests need; with `-k` or `-m` no other program is run."""
    specs = [getattr(item, "callspec", None) for item in session.items]
    found = {spec.params.get("program") for spec in specs if spec is not None}
    return [program for program in PROGRAMS if program in found]


def _spawn(rank: int, port: int, folder: Path, programs: list[str]) -> subprocess.Popen[bytes]:
    environment = os.environ | rank_environment(os.environ, devices=DEVICES, simulated=True)
    script = Path(plain_rank.__file__)
    command = [sys.executable, str(script), str(rank), str(RANKS), str(port), str(folder), *programs]
    with (folder / f"{rank}.log").open("wb") as log:
        return subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)


@pytest.fixture(scope="module")
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    """Outputs of plain processes; one set of processes runs all programs."""
    folder, programs, port = tmp_path_factory.mktemp("plain"), _selected_programs(request.session), find_free_port()
    with contextlib.ExitStack() as stack:
        processes = [_spawn(rank, port, folder, programs) for rank in range(RANKS)]
        for process in processes:
            stack.callback(process.wait)
            stack.callback(process.kill)
        codes = [process.wait(timeout=300) for process in processes]
    assert codes == [0] * RANKS, (folder / "0.log").read_text()[-4000:]
    by_rank = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
    return {program: [said[program] for said in by_rank] for program in programs}


_GLOBAL = re.compile(
    r"Array\(shape=\((?P<shape>[\d, ]*)\), dtype=(?P<dtype>\w)\w*\)|(?P<ours>\w)[^\s\[]*\[(?P<dims>[\d,]*)\] on mesh .*"
)


def _normalize_array(text: str | None) -> str | None:
    """Reduce the text of a global array to type and shape, because mhnb's text for a last value differs from JAX's."""
    if text is None:
        return None
    *value, last = text.splitlines() or [""]
    if value and _GLOBAL.fullmatch(last):
        # For a replicated array, JAX's text with the numbers is above mhnb's.
        return "\n".join(value)
    if (found := _GLOBAL.fullmatch(text)) is None:
        return text
    numbers = re.findall(r"\d+", found["shape"] or found["dims"] or "")
    return f"global {found['dtype'] or found['ours']}[{','.join(numbers)}]"


def _sort_debug_prints(source: str, text: str) -> str:
    """Sort what a cell prints from inside a program: two devices of one rank print in no order, in plain processes too."""
    return "".join(sorted(text.splitlines(keepends=True))) if "jax.debug.print" in source else text


@pytest.mark.timeout(480)
@pytest.mark.parametrize(
    "program",
    [pytest.param(name, marks=MARKS.get(name, ())) for name in PROGRAMS],
)
@pytest.mark.sample(5)
def test_program_output_equals_plain_processes(program: str, cluster: Cluster, plain: Outputs) -> None:
    """For every cell and rank, stdout and the last expression are the same, and the cluster stays clean throughout."""
    for number, source in enumerate(plain_rank.read_cells(program)):
        result = cluster.run(source, timeout_s=60)
        assert (result.ok, result.state) == (True, "clean"), (number, result.notes, result.summary())
        for rank in result:
            expected = plain[program][rank.rank][number]
            assert _sort_debug_prints(source, rank.stdout) == _sort_debug_prints(source, expected["stdout"] or ""), (
                number,
                rank.rank,
            )
            assert _normalize_array(rank.text) == _normalize_array(expected["text"]), (number, rank.rank)
