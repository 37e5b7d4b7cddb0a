"""The srun commands, compared in full, and the parsed output of squeue and srun."""

from __future__ import annotations

import argparse
import re
from dataclasses import fields, replace
from typing import Any

import pytest

from mhnb.cluster.flags import add_start_flags, start_arguments
from mhnb.core.cluster_spec import ClusterSpec
from mhnb.core.export import format_sbatch
from mhnb.core.launch.slurm import (
    SlurmOptions,
    allocation_command,
    batch_args,
    describe_queue,
    explain_srun,
    is_inside_job,
    srun_command,
    step_command,
)
from mhnb.core.launch.tasks import HOLD_FOR_INPUT, make_task_script
from mhnb.errors import InvalidRequest
from mhnb.launchers.profiles import format_restart_note, load_profile

_REMOTE_SHELL = ["sh", "-c", make_task_script(HOLD_FOR_INPUT)]
_FIXED_OPTIONS = ["--input=all", "--label", "--kill-on-bad-exit=1", "--mpi=none"]
_ALL_OPTIONS = SlurmOptions(
    partition="debug", account="it's mine", qos="high", time="1-12", nodes=4, cpus_per_rank=8, gpus_per_rank=1, memory="16G",
    constraint="a&b", extra=("--exclusive", "--reservation=my class"), srun="/opt/slurm/bin/srun",
)  # fmt: skip


def test_command_without_options() -> None:
    """The command has only what every start needs; the site decides the rest."""
    assert srun_command(SlurmOptions(), 4) == ["srun", "--job-name=mhnb", "--ntasks=4", *_FIXED_OPTIONS, *_REMOTE_SHELL]


def test_the_command_with_every_option() -> None:
    """Every option is one word, whatever its value contains; the user's own words are last and take precedence."""
    assert srun_command(_ALL_OPTIONS, 16, name="mhnb-x.1.1") == [
        "/opt/slurm/bin/srun", "--job-name=mhnb-x.1.1", "--ntasks=16", "--partition=debug", "--account=it's mine", "--qos=high",
        "--time=1-12", "--constraint=a&b", "--nodes=4", "--cpus-per-task=8", "--gpus-per-task=1", "--mem=16G",
        *_FIXED_OPTIONS, "--exclusive", "--reservation=my class", *_REMOTE_SHELL,
    ]  # fmt: skip


def test_step_has_no_allocation_options() -> None:
    """Inside a job, partition, account, time and the like are fixed; the step shares the notebook's own resources."""
    assert srun_command(_ALL_OPTIONS, 4, is_step=True)[:5] == [
        "/opt/slurm/bin/srun", "--job-name=mhnb", "--ntasks=4", "--overlap", "--nodes=4",
    ]  # fmt: skip
    assert is_inside_job({"SLURM_JOB_ID": "1"})
    assert not is_inside_job({})


def test_an_allocation_and_a_step_in_it() -> None:
    """Each command has its own options, and task placement is in both; salloc is in the same folder as srun."""
    mixed = replace(
        _ALL_OPTIONS, extra=("--exclusive", "--reservation=r", "--cpu-bind=none", "--export=ALL,A=1", "--gres=gpu:1")
    )
    placement = ["--nodes=4", "--cpus-per-task=8", "--gpus-per-task=1", "--mem=16G"]
    words = allocation_command(mixed, 16, name="mhnb-x.1.1", file="/run/it's")
    assert words[:-4] == [
        "/opt/slurm/bin/salloc", "--no-bell", "--job-name=mhnb-x.1.1", "--ntasks=16", "--partition=debug", "--account=it's mine",
        "--qos=high", "--time=1-12", "--constraint=a&b", *placement, "--exclusive", "--reservation=r", "--gres=gpu:1",
    ]  # fmt: skip
    assert (words[-4:-2], words[-1]) == (["sh", "-c"], "/run/it's")
    step = step_command(mixed, 16, name="mhnb-x.1.1", file="/run/it's")
    assert (step[:2], step[3:]) == (["sh", "-c"], [
        "/run/it's", "/opt/slurm/bin/srun", "--job-name=mhnb-x.1.1", "--ntasks=16", "--overlap", *placement, *_FIXED_OPTIONS,
        "--cpu-bind=none", "--export=ALL,A=1", "--gres=gpu:1", *_REMOTE_SHELL,
    ])  # fmt: skip


def test_restart_that_must_queue_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a detachable job queues again: other jobs keep their hosts, and a step of the user's own job needs none."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    spec = ClusterSpec(2, None, profile="/my/own", kind="slurm")
    assert "requests machines again" in format_restart_note(spec, is_detachable=True)
    assert (
        format_restart_note(spec, is_detachable=False)
        == format_restart_note(ClusterSpec(2, 2), is_detachable=True)
        == ""
    )
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert format_restart_note(spec, is_detachable=True) == ""


def test_several_ranks_on_a_host() -> None:
    """A host is a node, with one task that has the resources of all its ranks."""
    words = srun_command(SlurmOptions(cpus_per_rank=4, gpus_per_rank=1), 2, ranks_per_task=4)
    assert words[2:7] == ["--ntasks=2", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=16", "--gpus-per-task=4"]
    with pytest.raises(InvalidRequest, match=r"--nodes 3 does not fit: 8 ranks with 4 per host need 2 nodes"):
        srun_command(SlurmOptions(nodes=3), 2, ranks_per_task=4)


_RESOURCE_FLAGS = ["--gpus-per-rank", "2", "--mem", "16G", "--qos", "high", "--constraint", "a100|h100"]


def test_resource_flags_become_options_of_slurm() -> None:
    """The flags for GPUs, memory, quality of service and features are requested from Slurm by srun, and by salloc and its step."""
    parser = argparse.ArgumentParser()
    add_start_flags(parser)
    given = start_arguments(parser.parse_args([*_RESOURCE_FLAGS, "-n", "3"]))
    settings = {name: given[name] for name in ("gpus_per_rank", "memory", "qos", "constraint")}
    options = load_profile("slurm", settings).settings.build_options(SlurmOptions)
    assert options == SlurmOptions(gpus_per_rank=2, memory="16G", qos="high", constraint="a100|h100")
    allocation = ["--qos=high", "--constraint=a100|h100"]
    placement = ["--gpus-per-task=2", "--mem=16G"]
    assert srun_command(options, 3)[3:7] == allocation + placement
    assert allocation_command(options, 3, file="f")[4:8] == allocation + placement
    step = step_command(options, 3, file="f")
    assert set(placement) <= set(step)
    assert not set(allocation) & set(step)


def test_batch_script_requests_the_same_resources() -> None:
    """An exported batch script requests the resources of the cluster, without the hint about GPUs if it requests some."""
    options = SlurmOptions(partition="gpu", nodes=9, gpus_per_rank=2, memory="16G")
    text = format_sbatch("a.py", nodes=4, tasks_per_node=1, resources=list(batch_args(options)))
    assert [line for line in text.splitlines() if line.startswith("#SBATCH")] == [
        "#SBATCH --job-name=a",
        "#SBATCH --nodes=4",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --output=%x-%j.log",
        "#SBATCH --partition=gpu",
        "#SBATCH --gpus-per-task=2",
        "#SBATCH --mem=16G",
    ]
    assert "With GPUs" not in text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"nodes": 0}, "nodes=0: expected a number from 1"),
        ({"gpus_per_rank": -1}, "gpus_per_rank=-1"),
        ({"time": "soon"}, "time='soon': expected minutes"),
        ({"time": "1;rm"}, "time='1;rm'"),
        ({"extra": ("debug",)}, "extra: 'debug' is not an srun option"),
    ],
)
def test_invalid_options_are_refused(given: dict[str, Any], said: str) -> None:
    """The error names the setting, its value and what was expected."""
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        SlurmOptions(**given)


@pytest.mark.parametrize("time", ["30", "2:00", "2:00:00", "1-12", "1-12:30", "UNLIMITED", "infinite"])
def test_valid_times_are_accepted(time: str) -> None:
    """These are the forms in Slurm's manual."""
    assert SlurmOptions(time=time).time == time


_QUEUE = """\
12|PENDING|Resources|debug|theirs
11|RUNNING|None|debug|running
14|PENDING|(Priority)|gpu|other partition
13|PENDING|Priority|debug|name|with|bars
15|CONFIGURING|None|debug|mine
"""


def test_queue_position_is_described() -> None:
    """Only jobs that wait in the same partition count, in Slurm's own order; a running or unknown job does not wait."""
    assert describe_queue(_QUEUE, "mine") == "Slurm job 15 is CONFIGURING, number 3 of 3 waiting in debug"
    assert describe_queue(_QUEUE, "theirs") == "Slurm job 12 is PENDING (Resources), number 1 of 3 waiting in debug"
    assert describe_queue(_QUEUE, "name|with|bars").startswith("Slurm job 13 is PENDING (Priority), number 2 of 3")
    for name in ("running", "nowhere", ""):
        assert describe_queue(_QUEUE, name) == ""
    assert describe_queue("slurm_load_jobs error: Unable to contact slurm controller", "mine") == ""


def test_job_that_may_never_start_is_explained() -> None:
    """Slurm queues jobs that their partition can never run; the message says so, and what to request instead."""
    for reason, hint in (("PartitionTimeLimit", "less time"), ("AccountNotAllowed", "--account")):
        text = describe_queue(f"1|PENDING|{reason}|debug|mine", "mine")
        assert "; it may never start: interrupt it" in text
        assert hint in text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("srun: error: invalid partition specified: moon", "list the partitions with sinfo"),
        ("srun: error: Unable to allocate resources: Invalid account or account/partition combination specified", "--account"),
        ("srun: error: Unable to allocate resources: Requested node configuration is not available", "request fewer"),
        ("slurmstepd: error: *** STEP 9.0 ON alpha CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***", "longer --time"),
        ("2: mhnb: no python: /opt/py", "choose one that exists on the nodes"),
        ("0: /usr/bin/python3: No module named mhnb", "install mhnb into that Python"),
    ],
)  # fmt: skip
def test_srun_failure_is_explained(line: str, said: str) -> None:
    """The explanation quotes Slurm without its prefixes, and says what to do."""
    first, hint = explain_srun(["1: something before", line, "srun: error: later"]).split("\n")
    assert not first.startswith(("srun:", "slurmstepd:", "error:"))
    assert first in line
    assert said in hint


def test_unknown_failure_is_shown() -> None:
    """Of an unknown failure the last lines are shown unchanged."""
    assert explain_srun([f"line {number}" for number in range(20)]).startswith("line 12\n")
    assert explain_srun([]) == "it printed nothing"


def test_no_option_is_secret() -> None:
    """No option is secret, because all of them are visible in a process list."""
    assert not [part.name for part in fields(SlurmOptions) if re.search("key|token|password", part.name)]
