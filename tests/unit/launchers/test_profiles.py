"""Profiles: those that mhnb provides, a user's own, mistakes in a profile, and settings that a start overrides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from ipyparallel import Cluster
from ipyparallel.controller.app import IPController
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from mhnb.cli.main import main
from mhnb.core.cluster_spec import ClusterSpec
from mhnb.core.launch.cloud import KubernetesOptions, TpuOptions
from mhnb.core.launch.mpi import MpiOptions
from mhnb.core.launch.slurm import SlurmOptions
from mhnb.core.launch.ssh import SshOptions
from mhnb.errors import InvalidRequest
from mhnb.launchers.base import Launcher
from mhnb.launchers.cloud import CloudLauncher
from mhnb.launchers.ipcluster import MhnbControllerLauncher
from mhnb.launchers.mpi import MpiLauncher
from mhnb.launchers.profiles import KINDS, find_profile, load_profile, user_profile_dir
from mhnb.launchers.slurm import SlurmLauncher
from mhnb.launchers.ssh import SshLauncher
from mhnb.system.resources import HUB_SETTINGS, list_profiles, profile_dir

Write = Callable[[str], str]
_OPTIONS: dict[str, type[Any]] = {
    "kubernetes": KubernetesOptions, "mpi": MpiOptions, "slurm": SlurmOptions, "ssh": SshOptions, "tpu": TpuOptions,
}  # fmt: skip


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a profile with this text, and return its folder."""

    def make(text: str) -> str:
        (tmp_path / "ipcluster_config.py").write_text(f"c = get_config()\n{text}\n")
        return str(tmp_path)

    return make


def test_each_kind_has_a_profile() -> None:
    """Each kind has a profile that is named like its launcher and can be loaded unchanged."""
    assert list_profiles() == sorted(KINDS)
    for name in KINDS:
        assert load_profile(name).kind == name
        assert load_profile(name).folder == profile_dir(name)
        assert {file.name for file in profile_dir(name).iterdir()} == {"ipcluster_config.py"}


@pytest.mark.parametrize("kind", sorted(_OPTIONS))
def test_every_option_is_a_setting(kind: str) -> None:
    """Every option of a kind is a setting of the same name and default, so that users can set each one."""
    settings, options = KINDS[kind](), _OPTIONS[kind]()
    assert settings.build_options(type(options)) == options
    for part in fields(options):
        assert settings.has_trait(part.name), part.name


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_commented_suggestions_are_valid(kind: str, tmp_path: Path) -> None:
    """A profile loads with all its commented suggestions enabled, so none is misspelled or has the wrong type."""
    text = (profile_dir(kind) / "ipcluster_config.py").read_text()
    lines = [line.removeprefix("# ") if line.startswith("# c.") else line for line in text.splitlines()]
    (tmp_path / "ipcluster_config.py").write_text("\n".join(lines))
    assert load_profile(str(tmp_path)).kind == kind


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("c.MhnbSlurm.partitoin = 'x'", "line 2: c.MhnbSlurm: unknown setting 'partitoin'. Did you mean 'partition'?"),
        ("c.MhnbSlrum.partition = 'x'", "line 2: unknown class 'c.MhnbSlrum'. Did you mean 'c.MhnbSlurm'?"),
        ("\nc.MhnbLocal.devices = 'two'", "line 3: devices is 'two'; expected an int"),
        ("c.MhnbLocal.devices = 0", "line 2: devices is 0"),
        ("c.Cluster.engine_launcher_class = 'slurm'", "line 2: unknown launcher 'slurm'. Did you mean 'mhnb-slurm'?"),
        ("c.MhnbLocal.devices = (", "line 2: '(' was never closed"),
        ("c.MhnbLocal.devices = 1 / 0", "line 2: ZeroDivisionError: division by zero"),
        ("import nowhere_at_all", "line 2: ModuleNotFoundError"),
    ],
)
def test_mistake_names_file_and_line(write: Write, text: str, said: str) -> None:
    """The error names file and line for errors in spelling, type, value, syntax or the user's own code."""
    folder = write(text)
    with pytest.raises(InvalidRequest) as failed:
        load_profile(folder)
    assert str(failed.value).startswith(f"{folder}/ipcluster_config.py, {said}")


def test_start_options_override_the_profile(write: Write) -> None:
    """Typed options are converted to the setting's type, values are used as they are, and the profile provides the rest."""
    folder = write(
        "c.Cluster.engine_launcher_class = 'mhnb-slurm'\nc.MhnbSlurm.partition = 'debug'\nc.MhnbSlurm.account = 'mine'"
    )
    typed = {"partition": "short", "nodes": "4", "extra": "--a '--b c'", "share_gpus": "True", "time": "10"}
    settings: Any = load_profile(folder, typed).settings
    assert (settings.partition, settings.account, settings.nodes, settings.time) == ("short", "mine", 4, "10")
    assert settings.extra == ["--a", "--b c"]
    assert settings.share_gpus is True
    from_values: Any = load_profile(folder, {"extra": ["--a", "--b c"], "nodes": 2, "environment": {"A": "1"}}).settings
    assert (from_values.extra, from_values.nodes, from_values.environment) == (["--a", "--b c"], 2, {"A": "1"})
    assert load_profile(folder, {"environment": ["A=1", "B=x=y"]}).settings.environment == {"A": "1", "B": "x=y"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("reach", "said"),
    [
        ({"nodes": "four"}, "nodes='four': expected an int"),
        ({"nodes": -1}, "nodes=-1: nodes is -1"),
        ({"user": "me"}, "profile slurm: unknown setting 'user'; expected account, "),
        ({"time": "soon"}, "time='soon': expected minutes"),
    ],
)
def test_invalid_start_setting_is_refused(reach: dict[str, Any], said: str) -> None:
    """The error for an invalid setting contains its name and its value."""
    with pytest.raises(InvalidRequest) as failed:
        load_profile("slurm", reach).settings.create_launcher(ClusterSpec(2, None, profile="slurm"))
    assert said in str(failed.value)


def test_settings_of_another_start_replace_the_first(write: Write) -> None:
    """A profile takes other settings without its file, which may be gone: its own come back where the new start sets none."""
    folder = write("c.Cluster.engine_launcher_class = 'mhnb-ssh'\nc.MhnbSsh.user = 'me'\nc.MhnbSsh.port = 22")
    first = load_profile(folder, {"user": "you", "key_file": "k"})
    Path(folder, "ipcluster_config.py").unlink()
    second: Any = first.with_settings({"port": "2222"})
    assert (second.settings.user, second.settings.port, second.settings.key_file) == ("me", 2222, None)
    assert first.settings.user == "you"  # type: ignore[attr-defined]
    with pytest.raises(InvalidRequest, match=r"profile .*: unknown setting 'partition'; expected conda, config_file"):
        first.with_settings({"partition": "x"})


def test_each_kind_creates_its_launcher(tmp_path: Path) -> None:
    """Each kind creates its own launcher, also if the profile is a folder of the user."""
    user_profile = tmp_path / "own"
    main(["profile", "new", str(user_profile), "--from", "mpi"])
    assert isinstance(_launcher("ssh", {}, "a", "b"), SshLauncher)
    assert isinstance(_launcher("slurm", {}), SlurmLauncher)
    assert isinstance(_launcher(str(user_profile), {}), MpiLauncher)
    assert isinstance(_launcher("tpu", {"tpu": "x"}), CloudLauncher)
    with pytest.raises(InvalidRequest, match=r"--nodelist=a,b"):
        _launcher("slurm", {}, "a", "b")
    with pytest.raises(InvalidRequest, match=r"needs the names of the hosts\n  Fix: --hosts"):
        _launcher("ssh", {})


def _launcher(profile: str, settings: dict[str, Any], *machines: str) -> Launcher:
    return load_profile(profile, settings).settings.create_launcher(
        ClusterSpec(2, None, profile=profile, machines=machines)
    )


@pytest.mark.parametrize(("kind", "is_encrypted"), [("local", False), ("ssh", True)])
def test_created_profile_has_every_file(kind: str, tmp_path: Path, *, is_encrypted: bool) -> None:
    """`mhnb profile new` gives the user every file to change; the hub encrypts its traffic if hosts are other machines."""
    folder = tmp_path / "own"
    assert main(["profile", "new", str(folder), "--from", kind]) == 0
    assert {file.name for file in folder.iterdir()} == {"ipcluster_config.py", HUB_SETTINGS, "ipengine_config.py"}
    hub = PyFileConfigLoader(HUB_SETTINGS, path=str(folder)).load_config().IPController
    assert (hub.ip, hub.get("enable_curve", False)) == ("127.0.0.1", is_encrypted)
    # A copy of the copy has the user's own file, as it is.
    (folder / HUB_SETTINGS).write_text("mine = True\n")
    assert main(["profile", "new", str(tmp_path / "second"), "--from", str(folder)]) == 0
    assert (tmp_path / "second" / HUB_SETTINGS).read_text() == "mine = True\n"


def _hub_settings(folder: Path, kind: str, *arguments: str) -> Config:
    """Return the settings of the hub that `ipcluster start` starts for a profile, as ipyparallel reads them."""
    cluster = Cluster(profile_dir=str(folder), engine_launcher_class=f"mhnb-{kind}")
    launcher = MhnbControllerLauncher(parent=cluster, profile_dir=str(folder), controller_args=list(arguments))
    hub = IPController()
    hub.parse_command_line([*launcher.find_args()[len(launcher.controller_cmd) :], f"--profile-dir={folder}"])
    hub.init_profile_dir()
    hub.init_config_files()
    hub.load_config_file()
    settings: Config = hub.config.IPController
    return settings


def test_hub_of_ipcluster_has_the_default_settings(tmp_path: Path) -> None:
    """`ipcluster start` gives the hub the default settings, which a file of the profile replaces and an argument overrides."""
    assert _hub_settings(tmp_path, "local").use_threads is True
    assert "enable_curve" not in _hub_settings(tmp_path, "local")
    assert _hub_settings(tmp_path, "ssh").enable_curve is True
    assert _hub_settings(tmp_path, "ssh", "--IPController.enable_curve=False").enable_curve is False
    (tmp_path / HUB_SETTINGS).write_text("c = get_config()\nc.IPController.registration_timeout = 7\n")
    own = _hub_settings(tmp_path, "ssh")
    assert own.registration_timeout == 7
    assert "use_threads" not in own


def test_user_profile_is_created_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """`mhnb profile new` copies a profile to IPython's folder; it is then found by name, listed and shown with its settings."""
    assert main(["profile", "new", "mine", "--from", "slurm"]) == 0
    folder = user_profile_dir("mine")
    assert find_profile("mine") == folder
    with (folder / "ipcluster_config.py").open("a") as file:
        file.write("c.MhnbSlurm.partition = 'debug'\n")
    capsys.readouterr()
    assert main(["profile", "list"]) == 0
    listed = capsys.readouterr().out
    assert all(f"{name} " in listed for name in KINDS)
    assert str(folder) in listed
    assert main(["profile", "show", "mine"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"mine · slurm · {folder}"
    assert "    c.MhnbSlurm.partition = 'debug'" in shown
    assert "  # c.MhnbSlurm.account = None" in shown
    assert main(["profile", "new", "mine"]) == 1
    assert "already has an ipcluster_config.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "nowhere"], "unknown profile 'nowhere'; expected gpu, kubernetes"),
        (["show", "./nowhere"], "that folder does not contain ipcluster_config.py\n  Fix: mhnb profile new ./nowhere"),
        (["new", "slurm"], "comes with mhnb"),
        (["new", "a b"], "expected letters, digits"),
    ],
)
def test_unknown_or_invalid_profile_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error for an unknown or invalid profile name says which names are valid."""
    assert main(["profile", *words]) == 1
    assert said in capsys.readouterr().err
