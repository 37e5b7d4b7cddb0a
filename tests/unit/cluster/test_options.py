"""Start options become a cluster spec: numbers, names, host files and profiles; options that conflict are refused."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from IPython.core.magic_arguments import MagicArgumentParser

from mhnb.cluster.attach import select_cluster
from mhnb.cluster.flags import add_doctor_flags, add_start_flags, cluster_start_arguments, start_arguments
from mhnb.cluster.options import StartRequest, check_same_options, resolve_start
from mhnb.cluster.preflight import run_doctor
from mhnb.core.cluster_spec import INITIALIZE_FLAGS, ClusterSpec
from mhnb.errors import AlreadyStarted, InvalidRequest, LaunchError, NotStarted
from mhnb.magics.lifecycle import add_start_command_flags


def _options(line: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_start_flags(parser)
    return start_arguments(parser.parse_args(shlex.split(line)))


def _request(line: str) -> StartRequest:
    return resolve_start(**_options(line))


def _spec(line: str) -> ClusterSpec:
    return _request(line).shape


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "4 hosts x 2 devices"),
        ("-n 8 --devices 4", "8 hosts x 4 devices"),
        ("-n 4 --per-host 2", "2 hosts x 2 ranks x 2 devices"),
        ("--hosts a,b[1-2]", "3 hosts (a, b1, b2), profile ssh"),
        ("--hosts a,b --per-host 2 --devices 1", "2 hosts (a, b) x 2 ranks x 1 device, profile ssh"),
        ("--hosts a,b -n 4", "2 hosts (a, b) x 2 ranks, profile ssh"),
        ("--profile slurm", "4 hosts, profile slurm"),
        ("--profile slurm -n 16 --per-host 4 --partition x", "4 hosts x 4 ranks, profile slurm"),
        ("--profile mpi --hosts a,b", "2 hosts (a, b), profile mpi"),
    ],
)
def test_options_become_a_spec(line: str, said: str) -> None:
    """`-n` counts ranks; with host names or ranks per host, it determines the rest."""
    assert _spec(line).describe() == said


def test_added_kind_of_profile_is_resolved(split_profile: str) -> None:
    """A kind that is added to the known ones is resolved as they are; it has the default number of hosts."""
    assert _spec(f"--profile {split_profile} -n 2 --devices 2") == ClusterSpec(
        2, 2, profile=split_profile, kind="split"
    )
    assert _spec(f"--profile {split_profile}") == ClusterSpec(4, None, profile=split_profile, kind="split")


def test_host_file_sets_the_number_of_ranks(tmp_path: Path) -> None:
    """Equal slots on each host are the ranks per host; `--per-host` overrides them, and different slots are refused."""
    file = tmp_path / "hosts"
    file.write_text("a slots=2\nb slots=2\n")
    assert _spec(f"--hostfile {file}").describe() == "2 hosts (a, b) x 2 ranks, profile ssh"
    assert _spec(f"--hostfile {file} --per-host 3").ranks_per_host == 3
    file.write_text("a slots=2\nb\n")
    with pytest.raises(InvalidRequest) as refused:
        _spec(f"--hostfile {file}")
    assert str(refused.value) == (
        "the slots of hosts differ, but every host needs the same number of ranks\n"
        f"  {file}, line 1: a has slots=2\n  {file}, line 2: b has no slots=\n"
        "  Fix: --per-host 1 (overrides the file)\n  Or: write the same slots= on each line"
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--per-host 0", "ranks_per_host=0: expected a number from 1, .*--per-host 1"),
        ("-n 4 --per-host 0", "ranks_per_host=0: expected a number from 1"),
        ("--hosts a,b --per-host -1", "ranks_per_host=-1: expected a number from 1"),
        ("-n 0", "hosts=0: expected a number from 1 to"),
        ("--hosts a,b -n 0", "hosts=0: expected a number from 1 to"),
        ("--hosts a,b -n 1", "-n 1 does not fit: 2 hosts with 1 rank each need -n 2"),
        ("--devices 0", "devices=0: expected the number of devices per host"),
        ("--hosts a,a", "a is named twice"),
    ],
)
def test_invalid_numbers_are_refused(line: str, said: str) -> None:
    """The numbers are refused when the spec is built, so also while a cluster of that name runs."""
    with pytest.raises(InvalidRequest, match=said):
        _spec(line)


@pytest.mark.parametrize(
    ("first", "line", "said"),
    [
        ("--hosts a --user me", "--hosts a --user you", "user='me', requested user='you'"),
        ("--hosts a", "--hosts a --port 2222", "no port, requested port=2222"),
        ("--hosts a --key /dev/null", "--hosts a --key /dev/zero", "key_file='/dev/null', requested key_file='/dev/zero'"),
        ("--hosts a", "--hosts a --python /opt/python", "no python, requested python='/opt/python'"),
        ("--hosts a --env A=1 --env B=2", "--hosts a --env A=secret --env C=3",
         "environment: C is not set; environment: B is set, but was not requested; environment: A has a different value"),
        ("--hosts a", "--hosts a --sync /tmp", "no sync, requested sync='/tmp'"),
        ("--hosts a", "--hosts a --no-encrypt", "encrypt=True, requested encrypt=False"),
        ("--profile slurm --partition x", "--profile slurm --partition y", "partition='x', requested partition='y'"),
    ],
)  # fmt: skip
def test_different_option_of_a_running_cluster_is_refused(first: str, line: str, said: str) -> None:
    """The error names each option that differs and what to type, but never the value of a variable."""
    with pytest.raises(AlreadyStarted) as refused:
        _check_same(first, line)
    head, hint, *_ = str(refused.value).splitlines()
    assert head == f"cluster 'a' is already running with different options: {said}"
    assert "Fix: %mhjax stop a, then run this line again" in hint


@pytest.mark.parametrize(
    ("first", "line"),
    [
        ("--hosts a --user me --port 22 --env A=1", "--hosts a --user me --port 22 --env A=1"),
        ("--hosts a --port 22", "--hosts a --set port=22"),
        ("--hosts a --user me --no-encrypt", "--hosts a"),
    ],
)
def test_same_options_attach_to_a_running_cluster(first: str, line: str) -> None:
    """The same options attach to the running cluster; an option that is not given is not compared."""
    _check_same(first, line)


def _check_same(first: str, line: str) -> None:
    running = _request(first)
    check_same_options("a", running.options, running.profile, _request(line))


def test_options_are_compared_with_the_profile_of_the_start(tmp_path: Path) -> None:
    """A start is compared with the settings that the running cluster was started with, though its profile was changed since."""
    file, line = tmp_path / "ipcluster_config.py", f"--profile {tmp_path} -n 2 "
    file.write_text("c.Cluster.engine_launcher_class = 'mhnb-slurm'\nc.MhnbSlurm.partition = 'debug'\n")
    running = _request(line)
    file.write_text(file.read_text().replace("debug", "short"))
    check_same_options("a", running.options, running.profile, _request(line))
    check_same_options("a", running.options, running.profile, _request(f"{line} --partition debug"))
    with pytest.raises(AlreadyStarted, match="partition='debug', requested partition='short'"):
        check_same_options("a", running.options, running.profile, _request(f"{line} --partition short"))


def test_hosts_at_file_is_a_host_file(tmp_path: Path) -> None:
    """`--hosts @FILE` is the same as `--hostfile FILE`, as for `doctor`."""
    file = tmp_path / "hosts"
    file.write_text("a slots=2\nb slots=2\n")
    assert _spec(f"--hosts @{file}") == _spec(f"--hosts {file}") == _spec(f"--hostfile {file}")


def test_login_flags_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Login flags, which `doctor` has too, are settings; a variable without a value uses the local one, and flags may repeat."""
    monkeypatch.setenv("HERE", "its value")
    line = "--hosts a --ssh-port 22 --env HERE --env A=b=c --ssh-option X=1 --ssh-option Y=2 --connect-timeout 3"
    assert _options(line) == {
        "hosts": ["a"], "port": "22", "environment": {"HERE": "its value", "A": "b=c"}, "extra": ["X=1", "Y=2"],
        "connect_timeout_s": "3",
    }  # fmt: skip
    with pytest.raises(InvalidRequest, match="--env GONE: the notebook has no such environment variable"):
        _options("--hosts a --env GONE")
    with pytest.raises(
        InvalidRequest, match="--ssh-option X=1 works only with --profile ssh, but --profile slurm was given"
    ):
        _options("--profile slurm --ssh-option X=1")


def test_doctor_and_start_have_the_same_host_flags() -> None:
    """`doctor` has every host flag of `start`, from one declaration, and one flag of its own."""
    start, doctor = argparse.ArgumentParser(), argparse.ArgumentParser()
    add_start_flags(start)
    add_doctor_flags(doctor)
    # argparse has no public way to list its options.
    assert set(doctor._option_string_actions) - set(start._option_string_actions) == {"--coordinator-port"}
    assert set(start._option_string_actions) <= set(doctor._option_string_actions)
    args = doctor.parse_args(shlex.split("--hosts a --set user=me --set port=7 --set extra=X=1 --set extra=Y=2"))
    assert start_arguments(args) == {"hosts": ["a"], "user": "me", "port": "7", "extra": ["X=1", "Y=2"]}


def test_attach_without_a_cluster_names_the_command() -> None:
    """The error appears once, with the command that creates a detachable cluster."""
    with pytest.raises(NotStarted) as failed:
        select_cluster(None, [], [])
    assert str(failed.value) == (
        "no cluster that can be attached is running on this machine. "
        "Clusters started with --keep continue without their notebook\n  Fix: %mhjax start --keep"
    )


def test_missing_login_files_are_refused() -> None:
    """ssh would only warn of a missing key, and then log in with another key or be refused."""
    for line in ("--hosts a --key /no/key", "--hosts a --ssh-config /no/config"):
        with pytest.raises(InvalidRequest, match=r"/no/\w+: this file does not exist on this machine"):
            _options(line)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--hosts a --key /no/key", "--key /no/key: this file does not exist"),
        ("--hosts a --set foo=1", "unknown option 'foo'; expected hosts"),
        ("--set user", "--set user: expected NAME=VALUE"),
        ("--hosts a --set port=x", "port='x': expected an int"),
        ("--hostfile /no/file", "cannot read the host file /no/file"),
        ("--hosts a --hostfile b", "--hosts a cannot be combined with --hostfile b"),
        ("--hosts a --venv a --conda b", "choose one of them"),
        ("--profile nowhere", "unknown profile 'nowhere'; expected gpu"),
        ("--set keep=yes", "keep='yes': expected True or False"),
        ("--sync /no/folder", "sync /no/folder: /no/folder does not exist"),
        ("--profile slurm --hosts a", "Slurm chooses the machines\n  Fix: --set extra=--nodelist=a"),
        ("--profile kubernetes --address 127.0.0.1", "expected the pods' name with {} for the number"),
    ],
)
@pytest.mark.slow
def test_invalid_doctor_options_are_refused(line: str, said: str) -> None:
    """The error has the flag, its value and what was expected, as for `start`, and no login happens."""
    doctor = argparse.ArgumentParser()
    add_doctor_flags(doctor)
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        run_doctor(doctor.parse_args(shlex.split(line)))


def test_profile_sets_missing_options(tmp_path: Path) -> None:
    """A profile sets machines, ranks per host and devices, and the spec has the profile's directory as its name."""
    (tmp_path / "ipcluster_config.py").write_text(
        "c = get_config()\nc.Cluster.engine_launcher_class = 'mhnb-ssh'\nc.MhnbSsh.hosts = 'a,b'\n"
        "c.MhnbSsh.ranks_per_host = 2\nc.MhnbSsh.devices = 3\n"
    )
    spec = _spec(f"--profile {tmp_path}")
    assert (spec.machines, spec.ranks_per_host, spec.devices) == (("a", "b"), 2, 3)
    assert (spec.profile, spec.kind, spec.is_local) == (str(tmp_path), "ssh", False)
    assert _spec(f"--profile {tmp_path} --hosts c --devices 1").machines == ("c",)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-n 3 --per-host 2", "-n 3 does not fit: 1 host with 2 ranks each need -n 2"),
        ("--hosts a,b -n 3", "-n 3 does not fit: 2 hosts with 1 rank each need -n 2"),
        ("--hosts a --hostfile b", "--hosts a cannot be combined with --hostfile b"),
        ("--hostfile /no/file", "cannot read the host file /no/file"),
        ("--profile nowhere", "unknown profile 'nowhere'; expected gpu"),
        ("--profile local --hosts a", "--profile local does not accept host names, got a"),
        ("--user me", "'user' is a setting of profile ssh, not of local\n  Fix: --profile ssh"),
        ("--set x=1", "start: unknown option 'x'; expected hosts, "),
        ("--set host=4", "start: unknown option 'host'. Did you mean 'hosts'?"),
        (
            "--set python=py",
            "'python' is a setting of profile kubernetes or mpi or slurm or ssh or tpu, not of local\n  Fix: --profile ssh",
        ),
        ("--set x", "--set x: expected NAME=VALUE"),
        ("--set process_id=1", "'process_id' is an argument of jax.distributed.initialize that mhnb sets itself"),
        ("--set hosts=a,b", "hosts has its own flag\n  Fix: --hosts a,b"),
        ("--profile slurm --set nodes=many", "nodes='many': expected an int"),
    ],
)
def test_conflicting_options_are_refused(line: str, said: str) -> None:
    """The error names the option, its value, and an option that would work."""
    with pytest.raises(InvalidRequest) as failed:
        _spec(line)
    assert said in str(failed.value)


@pytest.mark.parametrize("argument", INITIALIZE_FLAGS)
def test_argument_of_initialize_is_refused_with_a_hint(argument: str) -> None:
    """An argument of `initialize` is not an option of `start`; the error names two ways to pass it, and both work."""
    with pytest.raises(InvalidRequest) as failed:
        resolve_start(hosts=2, devices=1, **{argument: "a:1"})
    assert str(failed.value) == (
        f"start: {argument!r} is an argument of jax.distributed.initialize\n"
        f"  Fix: initialize={{{argument!r}: 'a:1'}}\n"
        f"  Or: %mhjax start --{argument.replace('_', '-')} a:1"
    )
    try:
        arrived = str(resolve_start(initialize={argument: "a:1"}).shape.initialize)
    except InvalidRequest as refused:
        # Not a value that it can have.
        arrived = str(refused)
    assert arrived.startswith((f"{{{argument!r}: 'a:1'}}", f"{argument}='a:1'"))
    parser = MagicArgumentParser()
    add_start_command_flags(parser)
    assert getattr(parser.parse_args(str(failed.value).rpartition("%mhjax start ")[2].split()), argument) == "a:1"


def test_any_argument_of_initialize_can_be_given() -> None:
    """`--init` accepts arguments that only a newer JAX has, and the named flags beside it; the ranks check the names."""
    parser = MagicArgumentParser()
    add_start_command_flags(parser)
    line = "--init mtls_cert_file=/a=b.pem --init verify_secure_credentials=True --shutdown-timeout-seconds 5"
    arguments = cluster_start_arguments(parser.parse_args(line.split()))
    assert resolve_start(**arguments).shape.initialize == {
        "mtls_cert_file": "/a=b.pem", "verify_secure_credentials": True, "shutdown_timeout_seconds": 5,
    }  # fmt: skip
    with pytest.raises(InvalidRequest, match="--init process_id: expected NAME=VALUE, for example --init heartbeat"):
        cluster_start_arguments(parser.parse_args(["--init", "process_id"]))


@pytest.mark.parametrize("hosts", [0, -1, 1000])
def test_invalid_number_is_not_treated_as_missing(hosts: int) -> None:
    """An invalid number is not treated as missing: it is refused with its own value."""
    for count, ranks in ((hosts, None), (None, hosts)):
        with pytest.raises(InvalidRequest, match=f"hosts={hosts}"):
            resolve_start(hosts=count, ranks=ranks)
    with pytest.raises(InvalidRequest, match="ranks_per_host=0"):
        resolve_start(hosts=4, ranks_per_host=0)
    with pytest.raises(InvalidRequest, match="devices=0"):
        resolve_start(hosts=4, devices=0)


def test_every_flag_is_a_setting(tmp_path: Path) -> None:
    """Common settings have flags of their own, and `--set` accepts the others, also as a list."""
    assert _options(f"--key {__file__} --port 22 --venv v --time 1:00 --set extra=--a --set extra=b --set qos=high") == {
        "key_file": __file__, "port": "22", "venv": "v", "time": "1:00", "extra": ["--a", "b"], "qos": "high",
    }  # fmt: skip
    assert _options("--address 10.0.0.1 --no-encrypt") == {"address": "10.0.0.1", "encrypt": False}


def _fake_nvidia_smi(folder: Path, count: int) -> None:
    program = folder / "nvidia-smi"
    rows = "".join(f"{index}, GPU-{index}000\\n" for index in range(count))
    program.write_text(f"#!/bin/sh\nprintf '{rows}'\n")
    program.chmod(0o755)


def test_gpu_profile_has_a_rank_per_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi and CUDA_VISIBLE_DEVICES give the ranks of one host, unless there is one rank per host or a number is given."""
    _fake_nvidia_smi(tmp_path, 4)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert _spec("--profile gpu").describe() == "1 host x 4 ranks, profile gpu"
    assert _spec("--profile gpu --set process_per=host").describe() == "1 host, profile gpu"
    assert _spec("--profile gpu -n 2").describe() == "1 host x 2 ranks, profile gpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    assert _spec("--profile gpu").process_count == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(LaunchError, match="CUDA_VISIBLE_DEVICES='' selects no GPU"):
        _spec("--profile gpu")
