"""ipyparallel's controller as a child process of the supervisor."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mhnb.core.messages import HostSpec, parse_hostspec
from mhnb.system.private_files import write_private
from mhnb.system.processes import end_with_parent
from mhnb.transport.addresses import reserve_hub_ports

if TYPE_CHECKING:
    from ipyparallel.controller.app import IPController

_PORT_COUNT = 24
"""The controller uses 19. If it needed more than this, it would choose the rest itself."""


def define_controller(port_locks: ExitStack) -> type[IPController]:
    """Define the controller; `port_locks` reserve its ports on this machine until closed."""
    from ipyparallel.controller.app import IPController
    from traitlets import default

    class Controller(IPController):
        @default("ports")
        def _free_ports(self) -> list[int]:
            # By itself it takes ports that the system assigns: any socket opened before it listens there may get the
            # same one.
            return reserve_hub_ports(_PORT_COUNT, port_locks, self.ip)

        def save_connection_dict(self, fname: str, cdict: dict[str, Any]) -> None:
            # By itself it creates the file and then fills it. An engine waits for the file only, and would find it empty.
            write_private(Path(self.profile_dir.security_dir, fname), json.dumps(cdict, indent=2))

    return Controller


def run_hub(spec: HostSpec) -> None:
    """Run the controller until killed; `ipcontroller_config.py` has its address and limits."""
    port_locks = ExitStack()
    controller = define_controller(port_locks)

    # Its heart monitor is a process of its own and would outlive a hub that is killed.
    hub = os.getpid()
    os.register_at_fork(after_in_child=lambda: end_with_parent(hub))
    profile = Path(spec.run_dir) / "profile"
    # ipyparallel leaves the mode of some files, such as its list of engines, to the umask. The hub runs no code of the user's.
    os.umask(0o077)
    with port_locks:
        controller.launch_instance(argv=[f"--profile-dir={profile}", "--log-level=WARN"])


def main() -> None:
    """Run the controller with the spec read from standard input."""
    end_with_parent(int(sys.argv[1]))
    run_hub(parse_hostspec(sys.stdin.readline()))


if __name__ == "__main__":
    main()
