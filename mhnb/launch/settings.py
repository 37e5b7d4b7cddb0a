"""Traitlets settings of each kind of profile: `c.MhnbSlurm.partition = "debug"` in its ipcluster_config.py.

Each class declares the settings with their types and help, which `mhnb profile show NAME` prints. They only hold values:
`core` interprets them, with frozen options made of them.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar, TypeVar

from traitlets import Bool, Dict, Enum, Integer, List, Unicode
from traitlets.config import Configurable

from mhnb.core.reach.ssh import SshOptions

__all__ = [
    "KINDS",
    "MhnbGpu",
    "MhnbKubernetes",
    "MhnbLocal",
    "MhnbMpi",
    "MhnbSlurm",
    "MhnbSsh",
    "MhnbTpu",
    "Settings",
]

_Options = TypeVar("_Options")


def _text(about: str, default: str | None = None) -> Any:
    trait: Any = Unicode(default, allow_none=True, help=about) if default is None else Unicode(default, help=about)
    return trait.tag(config=True)


def _count(about: str, default: int | None = None) -> Any:
    if default is None:
        return Integer(None, allow_none=True, min=1, help=about).tag(config=True)
    return Integer(default, min=1, help=about).tag(config=True)


def _words(about: str) -> Any:
    return List(Unicode(), help=about).tag(config=True)


def _switch(about: str) -> Any:
    return Bool(default_value=False, help=about).tag(config=True)


class Settings(Configurable):
    """Settings of every kind of profile."""

    kind: ClassVar[str] = ""
    ranks_per_host = _count("Ranks on each host (--per-host).", 1)
    devices = _count("Simulated CPU devices per rank (--devices); none: what each machine has.")

    def build_options(self, cls: type[_Options]) -> _Options:
        """Build the frozen options of a kind from the settings of the same names."""
        values = {part.name: getattr(self, part.name) for part in fields(cls) if self.has_trait(part.name)}  # type: ignore[arg-type]
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


class MhnbLocal(Settings):
    """Simulated hosts on this machine."""

    kind = "local"


class MhnbGpu(Settings):
    """The GPUs of this machine."""

    kind = "gpu"
    process_per = Enum(
        ("gpu", "host"), default_value="gpu", help="A rank for each GPU, or one rank for all of this machine."
    ).tag(config=True)


class _RemoteSettings(Settings):
    """Settings of every kind of profile whose ranks run on other machines."""

    python = _text("The interpreter over there; none: this notebook's own, by its path.")
    venv = _text("The folder of a virtual environment over there.")
    conda = _text("Name or folder of a conda environment over there.")
    setup = _text("One line of shell to run first: '. /etc/profile && module load cuda'.")
    cwd = _text("The folder to run in over there; none: this notebook's, or the home where there is no such folder.")
    environment = Dict(key_trait=Unicode(), value_trait=Unicode(), help="Variables to set over there.").tag(config=True)
    share_gpus = _switch("Give each rank of a host its own part of the host's GPUs.")

    def remote_options(self) -> SshOptions:
        """Return the options of the remote side, for kinds that are not reached by our own ssh."""
        return SshOptions(
            python=self.python,
            venv=self.venv,
            conda=self.conda,
            setup=self.setup,
            cwd=self.cwd,
            environment=dict(self.environment),
        )


class MhnbSsh(_RemoteSettings):
    """Machines reached by ssh, with one login per machine."""

    kind = "ssh"
    hosts = _text("The machines: 'a,b,c', 'me@node[01-16]' (--hosts).")
    hostfile = _text("A file that names them, one a line (--hostfile).")
    user = _text("Whom to log in as; none: as your ssh config says.")
    port = _count("The port of sshd; none: as your ssh config says.")
    key_file = _text("A private key to log in with (--key); none: as your ssh config says.")
    config_file = _text("Another ssh config than your own.")
    extra = _words("More settings as in an ssh config, 'ProxyJump=gate'.")
    connect_timeout_s = _count("Seconds to wait for a machine to answer.", 10)


class MhnbSlurm(_RemoteSettings):
    """Machines allocated by Slurm: one srun, as a job of its own or a step of the job this notebook is in."""

    kind = "slurm"
    partition = _text("Which partition; none: the site's default.")
    account = _text("Whose budget.")
    qos = _text("Which quality of service.")
    time = _text("Limit of the job: minutes, '2:00:00', '1-12'.")
    nodes = _count("Machines to spread the ranks over; none: as Slurm places them.")
    cpus_per_rank = _count("CPUs of each rank.")
    gpus_per_rank = _count("GPUs of each rank.")
    memory = _text("Memory of each machine, '16G'.")
    constraint = _text("Features that the machines must have.")
    extra = _words("Further options of srun, a word each: '--exclusive', '--reservation=class'.")
    srun = _text("The program.", "srun")


class MhnbMpi(_RemoteSettings):
    """Processes started by an mpiexec, here or on machines that it reaches."""

    kind = "mpi"
    hosts = _text("The machines, 'a,b,node[1-4]' (--hosts); none: where mpiexec places them by itself.")
    hostfile = _text("A file that names them, one a line (--hostfile).")
    mpiexec = _text("The program.", "mpiexec")
    extra = _words("Further words for mpiexec, before the program.")


class MhnbTpu(_RemoteSettings):
    """The workers of a TPU VM, reached by gcloud."""

    kind = "tpu"
    tpu = _text("The TPU VM's name.")
    zone = _text("Its zone; none: as gcloud is configured.")
    project = _text("Its project; none: as gcloud is configured.")
    internal_ip = _switch("Reach the workers by their internal addresses.")
    extra = _words("Further options of `gcloud compute tpus tpu-vm ssh`, a word each.")
    gcloud = _text("The program.", "gcloud")


class MhnbKubernetes(_RemoteSettings):
    """Pods, reached by kubectl."""

    kind = "kubernetes"
    pod = _text("The pods' name with {} where the number stands: 'trainer-{}'.")
    namespace = _text("Their namespace; none: as kubectl is configured.")
    container = _text("The container in each pod; none: its first.")
    context = _text("The cluster; none: kubectl's current context.")
    extra = _words("Further options of kubectl, a word each: '--kubeconfig=file'.")
    kubectl = _text("The program.", "kubectl")


KINDS: dict[str, type[Settings]] = {
    cls.kind: cls for cls in (MhnbGpu, MhnbKubernetes, MhnbLocal, MhnbMpi, MhnbSlurm, MhnbSsh, MhnbTpu)
}
"""By the suffix of a profile's `c.Cluster.engine_launcher_class = "mhnb-slurm"`."""
