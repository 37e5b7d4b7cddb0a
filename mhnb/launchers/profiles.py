"""Profiles, their settings, host files, and the launchers created from them.

Profiles are IPython profile directories that define how hosts are reached.
A profile's kind is the launcher that its ipcluster_config.py names: `c.Cluster.engine_launcher_class = "mhnb-slurm"`.
Each kind has a class of traitlets settings, as in `c.MhnbSlurm.partition = "debug"`, with types and help, which
`mhnb profile show NAME` prints. The classes hold values and create the launcher: `core` interprets the values, as frozen options.
`KINDS` lists the classes; a start needs nothing else to know a kind.
The machines are those that `--hosts` or a host file names; a host file may also set the number of ranks per host.
"""

from __future__ import annotations

import ast
import os
import shlex
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
from IPython.paths import get_ipython_dir
from traitlets import Bool, Dict, Enum, Integer, List, TraitError, TraitType, Unicode
from traitlets.config import Config, Configurable
from traitlets.config.loader import PyFileConfigLoader

from mhnb.core.arguments import format_unknown
from mhnb.core.cluster_spec import ClusterSpec
from mhnb.core.launch.cloud import KubernetesOptions, TpuOptions, kubectl_command, tpu_command
from mhnb.core.launch.hosts import HostName, parse_host, parse_hostfile, parse_hosts
from mhnb.core.launch.mpi import MpiOptions
from mhnb.core.launch.slurm import REQUEUE_NOTE, SlurmOptions, is_inside_job
from mhnb.core.launch.ssh import SshOptions
from mhnb.core.messages import HostSpec
from mhnb.errors import InvalidRequest
from mhnb.launchers.base import Launcher
from mhnb.launchers.cloud import CloudLauncher
from mhnb.launchers.mpi import MpiLauncher
from mhnb.launchers.slurm import SlurmLauncher
from mhnb.launchers.ssh import SshLauncher
from mhnb.system.resources import list_profiles, profile_dir
from mhnb.system.run_dir import expand_user

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
    is_remote: ClassVar[bool] = False
    """Whether its hosts are other machines, to which the hub encrypts its traffic."""
    shares_machines: ClassVar[bool] = False
    """Whether its launcher may place several hosts on one machine, which is then checked once."""
    ranks_per_host = _count("Number of ranks on each host, as --per-host (default: 1).", 1)
    devices = _count(
        "Number of simulated CPU devices per rank, as --devices (default: the devices that each machine has;"
        " 2 on this machine)."
    )

    def build_options(self, cls: type[_Options]) -> _Options:
        """Build frozen options from the settings with the same names."""
        values = {part.name: getattr(self, part.name) for part in fields(cls) if self.has_trait(part.name)}  # type: ignore[arg-type]
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})

    def create_launcher(self, cluster_spec: ClusterSpec) -> Launcher:
        """Create the launcher for a spec; only remote kinds have one.

        Raises:
            InvalidRequest: a setting is invalid, or the spec has machines missing, or has machines that the kind chooses itself.
        """
        raise NotImplementedError(f"the ranks of {cluster_spec.describe()} need no launcher")

    def apply_to(self, spec: HostSpec) -> HostSpec:
        """Return a host's spec with the settings for its side."""
        return spec


class MhnbLocal(Settings):
    """Simulated hosts on this machine."""

    kind = "local"


class MhnbGpu(Settings):
    """The GPUs of this machine."""

    kind = "gpu"
    process_per = Enum(
        ("gpu", "host"),
        default_value="gpu",
        help="Start one rank per GPU (gpu), or one rank with all GPUs of this machine (host) (default: gpu).",
    ).tag(config=True)


class _RemoteSettings(Settings):
    """Settings of every kind of profile whose ranks run on other machines."""

    is_remote = True
    python = _text("Path of the Python interpreter on the hosts (default: the path of this notebook's interpreter).")
    venv = _text("Folder of a virtual environment on the hosts (default: not set).")
    conda = _text("Name or folder of a conda environment on the hosts (default: not set).")
    setup = _text(
        "One line of shell that runs first on the hosts, such as '. /etc/profile && module load cuda' (default: not set)."
    )
    cwd = _text(
        "Working directory on the hosts (default: the notebook's directory, or the home directory on a host without it)."
    )
    environment = Dict(
        key_trait=Unicode(),
        value_trait=Unicode(),
        help="Environment variables to set on the hosts, by name (default: no variables).",
    ).tag(config=True)
    share_gpus = _switch("Divide the GPUs of a host among its ranks (default: False, every rank sees all GPUs).")

    def remote_options(self) -> SshOptions:
        """Return the options of the remote side; kind ssh adds its login."""
        return SshOptions(
            python=self.python,
            venv=self.venv,
            conda=self.conda,
            setup=self.setup,
            cwd=self.cwd,
            environment=dict(self.environment),
        )

    def apply_to(self, spec: HostSpec) -> HostSpec:
        """Return a host's spec with the settings for its side."""
        # The shell enters a configured folder before the interpreter starts, or reports that it is missing.
        return msgspec.structs.replace(spec, share_gpus=self.share_gpus, cwd="." if self.cwd else spec.cwd)


class MhnbSsh(_RemoteSettings):
    """Machines reached by ssh, with one login per machine."""

    kind = "ssh"
    hosts = _text("Names of the hosts, as --hosts, such as 'a,b,c' or 'me@node[01-16]' (default: not set).")
    hostfile = _text("File with one host name per line, as --hostfile (default: not set).")
    user = _text("User name for the login, as --user (default: as in your ssh config).")
    port = _count("Port of sshd on the hosts, as --port (default: as in your ssh config).")
    key_file = _text("File of the private key for the login, as --key (default: as in your ssh config).")
    config_file = _text("File of an ssh config, as --ssh-config (default: ~/.ssh/config).")
    extra = _words("Further settings of an ssh config, such as 'ProxyJump=gate' (default: no settings).")
    connect_timeout_s = _count("Time limit for each ssh login, in seconds (default: 10).", 10)

    def remote_options(self) -> SshOptions:
        """Return the options of the login and of the remote side."""
        return replace(self.build_options(SshOptions), environment=dict(self.environment))

    def create_launcher(self, cluster_spec: ClusterSpec) -> Launcher:
        """Create the launcher; the spec must name the machines."""
        if not cluster_spec.machines:
            raise InvalidRequest(
                "profile ssh needs the names of the hosts\n"
                "  Fix: --hosts a,b[1-3]\n  Or: --hostfile FILE\n  Or: set c.MhnbSsh.hosts in the profile"
            )
        return SshLauncher(_parse_machines(cluster_spec), self.remote_options())


class MhnbSlurm(_RemoteSettings):
    """Machines allocated by Slurm, in a new job or the current one."""

    kind = "slurm"
    shares_machines = True
    partition = _text("Slurm partition, as --partition (default: the site's default).")
    account = _text("Slurm account that the job is charged to, as --account (default: your default account).")
    qos = _text("Slurm quality of service (QOS) (default: the site's default).")
    time = _text(
        "Time limit of the job, as --time: minutes, hours:minutes:seconds or days-hours, such as '30', '2:00:00' or '1-12'"
        " (default: the partition's limit)."
    )
    nodes = _count("Number of nodes for the ranks, as --nodes (default: as Slurm places them).")
    cpus_per_rank = _count("Number of CPUs per rank (default: the site's default).")
    gpus_per_rank = _count("Number of GPUs per rank (default: no GPUs are requested).")
    memory = _text("Memory per node, in megabytes or with a unit, such as '16G' (default: the site's default).")
    constraint = _text("Features that the nodes must have, such as 'a100' (default: no constraint).")
    extra = _words(
        "Further options of srun, one per word, such as '--exclusive' or '--reservation=class' (default: no options)."
    )
    srun = _text("Path or name of the srun program (default: srun).", "srun")

    def create_launcher(self, cluster_spec: ClusterSpec) -> Launcher:
        """Create the launcher; the spec must name no machine."""
        if cluster_spec.machines:
            raise InvalidRequest(
                f"--hosts {','.join(cluster_spec.machines)} does not apply to profile slurm: Slurm chooses the machines\n"
                f"  Fix: --set extra=--nodelist={','.join(cluster_spec.machines)}"
            )
        return SlurmLauncher(self.build_options(SlurmOptions), self.remote_options())


class MhnbMpi(_RemoteSettings):
    """Processes started by an mpiexec, here or on machines that it reaches."""

    kind = "mpi"
    shares_machines = True
    hosts = _text("Names of the hosts, as --hosts, such as 'a,b,node[1-4]' (default: mpiexec places the ranks).")
    hostfile = _text("File with one host name per line, as --hostfile (default: not set).")
    mpiexec = _text("Path or name of the mpiexec program (default: mpiexec).", "mpiexec")
    extra = _words("Further options of mpiexec, one per word (default: no options).")

    def create_launcher(self, cluster_spec: ClusterSpec) -> Launcher:
        """Create the launcher."""
        return MpiLauncher(
            self.build_options(MpiOptions), self.remote_options(), _parse_machines(cluster_spec), os.environ
        )


class MhnbTpu(_RemoteSettings):
    """The workers of a TPU VM, reached by gcloud."""

    kind = "tpu"
    tpu = _text("Name of the TPU VM; required.")
    zone = _text("Zone of the TPU VM (default: as gcloud is configured).")
    project = _text("Project of the TPU VM (default: as gcloud is configured).")
    internal_ip = _switch("Connect to the internal addresses of the workers (default: False).")
    extra = _words("Further options of `gcloud compute tpus tpu-vm ssh`, one per word (default: no options).")
    gcloud = _text("Path or name of the gcloud program (default: gcloud).", "gcloud")

    def create_launcher(self, cluster_spec: ClusterSpec) -> Launcher:  # noqa: ARG002  # the workers have numbers
        """Create the launcher."""
        options = self.build_options(TpuOptions)
        return CloudLauncher(options.gcloud, partial(tpu_command, options), self.remote_options())


class MhnbKubernetes(_RemoteSettings):
    """Pods, reached by kubectl."""

    kind = "kubernetes"
    pod = _text("Name of the pods, with {} in place of the number, such as 'trainer-{}'; required.")
    namespace = _text("Namespace of the pods (default: as kubectl is configured).")
    container = _text("Container in each pod (default: the first container).")
    context = _text("Context of kubectl, which selects the Kubernetes cluster (default: the current context).")
    extra = _words("Further options of kubectl, one per word, such as '--kubeconfig=file' (default: no options).")
    kubectl = _text("Path or name of the kubectl program (default: kubectl).", "kubectl")

    def create_launcher(self, cluster_spec: ClusterSpec) -> Launcher:  # noqa: ARG002  # the pods have numbers
        """Create the launcher."""
        options = self.build_options(KubernetesOptions)
        return CloudLauncher(options.kubectl, partial(kubectl_command, options), self.remote_options())


def _parse_machines(cluster_spec: ClusterSpec) -> list[HostName]:
    return [parse_host(name) for name in cluster_spec.machines]


KINDS: dict[str, type[Settings]] = {
    cls.kind: cls for cls in (MhnbGpu, MhnbKubernetes, MhnbLocal, MhnbMpi, MhnbSlurm, MhnbSsh, MhnbTpu)
}
"""Every kind of profile, by the suffix of its `c.Cluster.engine_launcher_class = "mhnb-slurm"`."""


# -- find and read profiles


_FILE = "ipcluster_config.py"
_PREFIX = "mhnb-"


@dataclass(frozen=True, slots=True)
class Profile:
    """A snapshot of a profile, shared by a start and its restarts."""

    name: str
    """Name as requested."""
    folder: Path
    kind: str
    """One of `KINDS`."""
    count: int | None
    """Its number of ranks, `c.Cluster.n`; None if it sets none."""
    config: Config = field(repr=False)
    """What the file has set."""
    settings: Settings = field(compare=False)
    """Its own, with those of a start over them. Not compared, because traitlets compares identities; `StartOptions.reach` is."""

    def with_settings(self, profile_settings: Mapping[str, Any]) -> Profile:
        """Return a copy with these settings over the file's own.

        Args:
            profile_settings: settings by name; texts are parsed as the setting's type.

        Raises:
            InvalidRequest: an unknown setting, or a value of the wrong type.
        """
        cls = type(self.settings)
        settings = cls(**self.config.get(cls.__name__, {}))
        known = cls.class_traits(config=True)
        for key, value in profile_settings.items():
            if key not in known:
                raise InvalidRequest(f"profile {self.name}: {format_unknown('setting', key, sorted(known))}")
            if value is not None:
                _set(settings, key, _parse_setting(known[key], value, key), f"{key}={value!r}")
        return replace(self, settings=settings)


def user_profile_dir(name: str) -> Path:
    """Return the folder of a user's own profile, in IPython's directory."""
    return Path(get_ipython_dir()) / f"profile_{name}"


def user_profiles() -> list[str]:
    """Return the names of the user's profiles with a launcher of mhnb."""
    files = sorted(Path(get_ipython_dir()).glob(f"profile_*/{_FILE}"))
    return [
        file.parent.name.removeprefix("profile_") for file in files if f'"{_PREFIX}' in file.read_text(encoding="utf-8")
    ]


def is_path(name: str) -> bool:
    """Return whether a profile is named by its folder."""
    return "/" in name or name.startswith((".", "~"))


def find_profile(name: str) -> Path:
    """Find a profile's folder by path, or by name: mhnb's, then user's.

    Raises:
        InvalidRequest: unknown profile; the message lists the existing ones.
    """
    if not is_path(name) and name in list_profiles():
        return profile_dir(name)
    folder = expand_user(name, "--profile").absolute() if is_path(name) else user_profile_dir(name)
    if (folder / _FILE).is_file():
        return folder
    if is_path(name):
        raise InvalidRequest(
            f"--profile {name}: that folder does not contain {_FILE}\n  Fix: mhnb profile new {name} --from ssh"
        )
    raise InvalidRequest(
        f"{format_unknown('profile', name, [*list_profiles(), *user_profiles()])}"
        "\n  `mhnb profile list` lists all; a name with a / is the folder of a profile"
    )


def load_profile(name: str, profile_settings: Mapping[str, Any] | None = None) -> Profile:
    """Load a profile; settings of this start override its own.

    Args:
        name: its name or directory.
        profile_settings: as for `Profile.with_settings`.

    Raises:
        InvalidRequest: an unknown profile, a file that cannot be run, an unknown setting, a value of the wrong type; the message names
            the file and the line, or the option.
    """
    folder = find_profile(name)
    path = folder / _FILE
    config = _run_config(path)
    kind = _find_kind(config, path)
    cls = KINDS[kind]
    _check_settings(config, path)
    settings = cls()
    for key, value in config.get(cls.__name__, {}).items():
        _set(settings, key, value, _locate_setting(path, cls.__name__, key))
    profile = Profile(name, folder, kind, config.get("Cluster", {}).get("n"), config, settings)
    return profile.with_settings(profile_settings) if profile_settings else profile


def _run_config(path: Path) -> Config:
    """Run the file as IPython would.

    Raises:
        InvalidRequest: it cannot be run; the message names the line.
    """
    try:
        return PyFileConfigLoader(path.name, path=str(path.parent)).load_config()
    except SyntaxError as error:
        line = error.lineno if error.filename == str(path) else None
        raise InvalidRequest(f"{_format_position(path, line)}: {error.msg}: {(error.text or '').strip()}") from error
    except Exception as error:  # a profile is the user's own code
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        raise InvalidRequest(
            f"{_format_position(path, lines[-1] if lines else None)}: {type(error).__name__}: {error}"
        ) from error


def _format_position(path: Path, line: int | None) -> str:
    return f"{path}, line {line}" if line else str(path)


def _find_kind(config: Config, path: Path) -> str:
    named = config.get("Cluster", {}).get("engine_launcher_class", f"{_PREFIX}local")
    kind = str(named).removeprefix(_PREFIX)
    if not str(named).startswith(_PREFIX) or kind not in KINDS:
        where = _locate_setting(path, "Cluster", "engine_launcher_class")
        raise InvalidRequest(
            f"{where}: {format_unknown('launcher', str(named), [_PREFIX + kind for kind in sorted(KINDS)])}"
        )
    return kind


def _check_settings(config: Config, path: Path) -> None:
    """Raise for unknown classes and settings, which would have no effect."""
    classes = {cls.__name__: cls for cls in KINDS.values()}
    for owner, settings in config.items():
        if owner.startswith("Mhnb") and owner not in classes:
            raise InvalidRequest(
                f"{_locate_setting(path, owner)}: {format_unknown('class', f'c.{owner}', [f'c.{each}' for each in sorted(classes)])}"
            )
        known = classes[owner].class_trait_names(config=True) if owner in classes else list(settings)
        for name in settings:
            if name not in known:
                raise InvalidRequest(
                    f"{_locate_setting(path, owner, name)}: c.{owner}: {format_unknown('setting', name, sorted(known))}"
                )


def _locate_setting(path: Path, owner: str, name: str | None = None) -> str:
    """Return the position of a setting: file, and line if found."""
    wanted = f"c.{owner}" if name is None else f"c.{owner}.{name}"
    lines = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8-sig")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == wanted
    ]
    return _format_position(path, max(lines, default=None))


def _set(settings: Settings, name: str, value: object, where: str) -> None:
    try:
        setattr(settings, name, value)
    except TraitError as error:
        trait = settings.traits()[name]
        raise InvalidRequest(f"{where}: {name} is {value!r}; expected {trait.info()}. {trait.help}") from error


def _parse_setting(trait: TraitType[Any, Any], value: object, name: str) -> object:
    """Convert text from flags to the setting's type; keep other values."""
    if isinstance(trait, List):
        return (
            shlex.split(value) if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else value
        )
    if isinstance(trait, Dict) and isinstance(value, str | list):
        pairs = [text.partition("=") for text in ([value] if isinstance(value, str) else value)]
        return {key: setting for key, _, setting in pairs}
    if isinstance(value, list):
        # If a flag was given twice, the last value counts.
        value = value[-1]
    if not isinstance(value, str) or isinstance(trait, Unicode):
        return value
    try:
        return trait.from_string(value)
    except (TraitError, ValueError) as error:
        raise InvalidRequest(f"{name}={value!r}: expected {trait.info()}. {trait.help}") from error


def format_restart_note(cluster_spec: ClusterSpec, *, is_detachable: bool) -> str:
    """Return a note if a restart queues for machines again; otherwise empty."""
    queues = is_detachable and (cluster_spec.kind or cluster_spec.profile) == "slurm" and not is_inside_job(os.environ)
    return REQUEUE_NOTE if queues else ""


# -- read `--hosts` and host files


def read_hosts(spec: str) -> tuple[HostName, ...]:
    """Parse host names `a,b,c`, or a host file `@FILE` or `DIR/FILE`.

    Raises:
        InvalidRequest: an invalid machine name, or a file that cannot be read.
    """
    if not spec.startswith("@") and "/" not in spec:
        return parse_hosts(spec)
    return read_hostfile(spec.removeprefix("@"))


def read_hostfile(name: str) -> tuple[HostName, ...]:
    """Read a host file.

    Raises:
        InvalidRequest: it cannot be read, or contains an invalid machine name.
    """
    path = expand_user(name, "--hostfile")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"cannot read the host file {path}: {error}; expected a file with one host name per line"
        ) from error
    return parse_hostfile(text, str(path))


def ranks_per_host(hosts: Sequence[HostName]) -> int | None:
    """Return the hosts' common number of ranks; None if not set.

    Raises:
        InvalidRequest: the numbers differ between hosts.
    """
    slots = {host.slots for host in hosts}
    if len(slots) > 1:
        first: dict[int | None, HostName] = {}
        for host in hosts:
            first.setdefault(host.slots, host)
        details = "".join(f"\n  {host.source}: {host} has {_format_slots(host.slots)}" for host in first.values())
        least = min(number or 1 for number in slots)
        raise InvalidRequest(
            f"the slots of hosts differ, but every host needs the same number of ranks{details}\n"
            f"  Fix: --per-host {least} (overrides the file)\n  Or: write the same slots= on each line"
        )
    return slots.pop() if slots else None


def _format_slots(slots: int | None) -> str:
    return "no slots=" if slots is None else f"slots={slots}"
