"""A cluster over ssh: four machines with addresses, names and process trees of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mhnb.cluster import manager
from mhnb.cluster.reports import REPORTS
from mhnb.cluster.sharding import request_layout
from mhnb.errors import InvalidRequest, LaunchError, PreflightFailed
from mhnb.sharding.mesh import MeshShape, warn_cross_host_axes
from mhnb.types import StartProgress
from tests.support.source import ROOT
from tests.support.typed_lines import User
from tests.system.hosts.cluster import Begin, check_no_key_is_visible, check_sum
from tests.system.hosts.debugger import check_debugger
from tests.system.hosts.faults import jax_metadata
from tests.system.hosts.hostnet import HostNet, wait_until


@pytest.mark.cold_start
def test_cluster_over_four_machines(net: HostNet, begin: Begin) -> None:
    """Ranks are on their hosts in order, and a collective includes them all."""
    cluster = begin()
    result = cluster.run("import socket, jax\nprint(socket.gethostname(), jax.process_index())").check()
    assert [rank.stdout for rank in result] == [f"{host.name} {at}\n" for at, host in enumerate(net)]
    assert [rank.hostname for rank in cluster.ranks] == [host.name for host in net]
    check_sum(cluster)


_FIRST_CELL = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((jax.device_count(),), ("x",))
x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("x")))
float(jax.jit(jnp.sum)(x)), mesh.axis_types
"""


def test_first_cell_of_the_readme_works_over_machines(net: HostNet, begin: Begin) -> None:
    """`jax.make_mesh` works over machines with its usual axes, although JAX treats machines as slices."""
    result = begin().run(f"import jax\nprint([d.slice_index for d in jax.devices()])\n{_FIRST_CELL}").check()
    assert {rank.stdout for rank in result} == {"[0, 0, 1, 1, 2, 2, 3, 3]\n"}
    assert {rank.text for rank in result} == {"(28.0, (Explicit,))"}


_MESHES = """
import jax, numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

def order(devices):
    return [jax.devices().index(d) for d in np.asarray(devices).flat]

def refusal(make):
    try:
        return str(make())
    except ValueError as error:
        return str(error).split(". ")[0].split(", but")[0]

auto = (AxisType.Auto,) * 2
two = jax.make_mesh([2, 2], ("a", "b"), axis_types=auto)
print(two.axis_types == auto, dict(two.shape), order(two.devices))
print(order(jax.make_mesh((2,), ("x",), devices=jax.devices()[1:]).devices))
print(order(jax.make_mesh((2,), ("x",), devices=jax.local_devices()).devices) == order(jax.local_devices()))
print(order(mesh_utils.create_device_mesh((4,))))
for by_process in (False, True):
    print(order(mesh_utils.create_hybrid_device_mesh((2, 1), (1, 2), process_is_granule=by_process)))
print(refusal(lambda: jax.make_mesh((5,), ("x",))))
print(refusal(lambda: jax.make_mesh((4,), ("x", "y"))))
"""


def test_all_kinds_of_meshes_work_over_machines(net: HostNet, begin: Begin) -> None:
    """Axis types, fewer devices, explicit devices and hybrid meshes are as in JAX, and so are its other errors."""
    result = begin(2, 2).run(_MESHES).check()
    assert result[0].stdout.splitlines() == [
        "True {'a': 2, 'b': 2} [0, 1, 2, 3]",
        "[1, 2]",
        "True",
        "[0, 1, 2, 3]",
        "[0, 2, 1, 3]",
        "[0, 2, 1, 3]",
        "Number of devices 4 must be >= the product of mesh_shape (5,)",
        "Mesh requires the ndim of its first argument (`devices`) to equal the length of its second argument (`axis_names`)",
    ]
    assert result[0].stdout == result[1].stdout


_REFUSED = """
import jax
from jax.experimental import mesh_utils

class Gpu:
    platform = "gpu"
    def __init__(self, device): self.device = device
    def __getattr__(self, name): return getattr(self.device, name)

own, gpus = jax.devices, [Gpu(device) for device in jax.devices()]
jax.devices = lambda: gpus
try:
    jax.make_mesh((4, 2), ("data", "model"))
finally:
    jax.devices = own
"""
_RUN_LINE = """
import numpy as np, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
print(dict(mesh.shape), [[device.slice_index for device in row] for row in mesh.devices])
print({type.name for type in mesh.axis_types})
x = jax.device_put(np.arange(8.0), NamedSharding(mesh, P(("data", "model"))))
float(jax.jit(jnp.sum)(x))
"""


def test_line_for_a_mesh_over_gpu_nodes_works(net: HostNet, begin: Begin) -> None:
    """The hint of a mesh that JAX refuses over GPU nodes has a line that makes it, with model inside a node.

    The nodes are real machines for JAX; only the platform of their devices is made up.
    """
    cluster = begin(2, devices=4)
    hints = {rank.error.hint for rank in cluster.run(_REFUSED) if rank.error}
    assert len(hints) == 1
    line = (hints.pop() or "").partition("Write instead: ")[2]
    assert "create_hybrid_device_mesh((2, 2), (2, 1))" in line
    result = cluster.run(f"{line}\n{_RUN_LINE}").check()
    assert {rank.stdout for rank in result} == {
        "{'data': 4, 'model': 2} [[0, 0], [0, 0], [1, 1], [1, 1]]\n{'Explicit'}\n"
    }
    assert {rank.text for rank in result} == {"28.0"}


def test_layout_gives_the_line_of_a_hybrid_mesh(net: HostNet, begin: Begin) -> None:
    """The layout of a mesh whose model axis crosses slices has a line that keeps it inside one."""
    cluster = begin(2, devices=4)
    cluster.run("import jax\nmesh = jax.make_mesh((2, 4), ('model', 'data'))").check()
    (view,) = request_layout(cluster, "mesh")
    assert isinstance(view.view, MeshShape)
    (warning,) = warn_cross_host_axes(view.view)
    line = warning.partition("to keep it inside a slice: ")[2]
    assert "create_hybrid_device_mesh((2, 2), (1, 2))" in line
    result = cluster.run(f"{line}\nprint([[device.slice_index for device in row] for row in mesh.devices])").check()
    assert result[0].stdout == "[[0, 0, 1, 1], [0, 0, 1, 1]]\n"


def test_several_ranks_per_host(net: HostNet, begin: Begin) -> None:
    """Neighbouring ranks share a host, also in the progress of the start; a restart keeps the hosts."""
    reports: list[StartProgress] = []
    cluster = begin(2, ranks_per_host=2, on_progress=reports.append)
    assert reports[0].status == "waiting for 2 hosts"
    assert reports[-1].status == ""
    assert [rank.host for rank in reports[0].ranks] == ["host0"] * 2 + ["host1"] * 2
    where = [(rank.host, rank.hostname) for rank in cluster.ranks]
    assert where == [("host0", net[0].name)] * 2 + [("host1", net[1].name)] * 2
    fresh = cluster.restart()
    assert [(rank.host, rank.hostname) for rank in fresh.ranks] == where
    check_sum(fresh)
    fresh.stop()


@pytest.mark.cold_start
def test_key_is_in_no_command_line_or_environment(net: HostNet, begin: Begin) -> None:
    """The key is in no command line, and in no environment that a subprocess of a cell inherits."""
    cluster = begin(2, 1)
    key = cluster._resources.key.hex()
    for host in list(net)[:2]:
        assert not any(key in words for words in host.pids().values())
    check_no_key_is_visible(cluster)


def test_host_name_on_loopback_does_not_break_gloo(net: HostNet, begin: Begin) -> None:
    """gloo works although the host's own name is 127.0.1.1, as Debian writes it; other hosts must not get that address."""
    for host in list(net)[:2]:
        host.replace_file("/etc/hosts", net.hosts_file(own=(host.name, "127.0.1.1")))
    check_sum(begin(2, 1))


@pytest.mark.parametrize("setting", [{"partition": "debug"}, {"venv": "a", "conda": "b"}])
def test_setting_unknown_to_ssh_is_refused(begin: Begin, setting: dict[str, str]) -> None:
    """A setting that the ssh profile does not have is named before any process starts."""
    with pytest.raises(InvalidRequest, match=r"partition|venv"):
        begin(2, 1, **setting)


@pytest.mark.parametrize("what", ["python", "venv"])
def test_missing_interpreter_is_reported(begin: Begin, what: str, tmp_path: Path) -> None:
    """The error names the host and the missing interpreter, and no process is left."""
    with pytest.raises(LaunchError, match=r"✗ alpha: has no such .*nowhere"):
        begin(2, 1, **{what: str(tmp_path / "nowhere")})


def test_host_that_is_off_is_reported(net: HostNet, begin: Begin) -> None:
    """The error names a host that does not answer."""
    net[1].cut_power()
    with pytest.raises(LaunchError, match=rf"{net[1].name}"):
        begin(2, 1, connect_timeout_s=2)


def test_notebook_attaches_to_cluster_on_hosts(net: HostNet, own_environment: None) -> None:
    """After its notebook is killed, another one attaches to the ranks where they are; a stop ends them."""
    program = (
        "import mhnb, os\n"
        f"cluster = mhnb.start({[host.name for host in list(net)[:2]]!r}, 1, keep=True, config_file={str(net.ssh_config)!r}, "
        f"environment={{'PYTHONPATH': {str(ROOT)!r}}})\n"
        "cluster.run('x = 41').check()\nprint('ready', flush=True)\nos.kill(os.getpid(), 9)"
    )
    marker = net.new_file("")
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert completed.stdout == "ready\n", completed.stderr
    # Only newer logs count, and errors are ignored: a folder of another test may vanish during the search.
    wrote = f"find /tmp/mhnb-* -path '*/log/supervisor.log' -newer {marker} || true"
    wait_until(lambda: len(net[0].run("sh", "-c", wrote).split()) >= 2, "supervisors that nobody hears write to logs")
    cluster = manager.attach()
    try:
        assert cluster.run("print(x + 1)").check()[1].stdout == "42\n"
        check_sum(cluster)
    finally:
        cluster.stop()


def test_lockstep_works_across_hosts(begin: Begin) -> None:
    """Lockstep works across hosts: a collective that one host never launches raises on the others, and the next one is right."""
    cluster = begin(3, 1)
    check_sum(cluster)
    failed = cluster.run("if jax.process_index() != 1: m.process_allgather(jnp.float32(1))")
    assert {rank.rank: rank.error.ename for rank in failed.failed if rank.error} == {
        0: "OrderMismatch",
        2: "OrderMismatch",
    }
    assert cluster.state == "clean"
    check_sum(cluster)


def test_debugger_works_across_hosts(begin: Begin, user: User, capsys: pytest.CaptureFixture[str]) -> None:
    """A rank on another host stops and answers while the others wait; the cell goes on, or `q` ends it on all hosts."""
    check_debugger(begin(3, 1), user, capsys)


def test_start_behind_a_firewall_is_refused(net: HostNet, begin: Begin) -> None:
    """A port that a firewall closes would end as an abort of JAX; preflight names host, port and fix before any rank starts."""
    net[0].block_port("1024-65535")
    with pytest.raises(PreflightFailed, match="beta cannot reach JAX's coordinator on alpha at"):
        begin(2)
    wait_until(lambda: not any(host.pids() for host in net), "every host is without a process")


def _refuse_login(net: HostNet) -> None:
    net[1].replace_file(net.folder / "authorized_keys", "")


def _change_jax_version(net: HostNet) -> None:
    net[1].replace_file(*jax_metadata("0.99.1"))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (_refuse_login, "✗ beta: refused the login"),
        (_change_jax_version, "✗ beta has jax 0.99.1"),
    ],
)
def test_start_with_a_faulty_host_is_refused(
    net: HostNet, begin: Begin, fault: Callable[[HostNet], None], words: str
) -> None:
    """The error names the host and its fault, and no process is left on any host."""
    fault(net)
    with pytest.raises(PreflightFailed, match=words):
        begin(2)
    wait_until(lambda: not any(host.pids() for host in net), "every host is without a process")


def test_status_shows_memory_and_last_cell(begin: Begin) -> None:
    """The status has the memory of each remote rank, and its last cell."""
    cluster = begin(2, 1)
    cluster.run("1")
    wait_until(lambda: all(rank.nbytes for rank in cluster.ranks), "every supervisor has said what its ranks weigh")
    lines = REPORTS["status"](cluster).format().splitlines()
    assert lines[1].split() == ["rank", "host", "pid", "state", "devices", "memory", "last", "cell", "log"]
    for rank, line in zip(cluster.ranks, lines[2:4], strict=True):
        assert line.split()[:2] == [str(rank.rank), rank.host]
        assert re.search(r" MiB +1 ok ", line)
    cell = cluster.submit("import time; time.sleep(300)", ranks="1")
    wait_until(lambda: cluster.state == "running", "it runs")
    assert [rank.last_cell for rank in cluster.ranks] == ["1 ok", "2 running"]
    cluster.interrupt()
    cluster.follow(cell)
    assert [rank.last_cell for rank in cluster.ranks] == ["1 ok", "2 interrupted"]
