"""A fake Kubernetes API server on loopback, with the parts that the real `kubectl exec -i` requests. Pods are simulated machines.

`python -m tests.system.hosts.kube PODS`, with PODS as JSON: a pod's name -> the words that run a command in it.
It prints its port when it listens.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tornado.httpserver
import tornado.netutil
import tornado.web
import tornado.websocket

from tests.support.source import ROOT
from tests.system.hosts.hostnet import HostNet

__all__ = ["serve_pods", "why_absent"]

_KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{{name: made-up, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
contexts: [{{name: made-up, context: {{cluster: made-up, user: me}}}}]
users: [{{name: me, user: {{}}}}]
current-context: made-up
"""
_STDIN, _STDOUT, _STDERR, _STATUS, _CLOSE = b"\x00", b"\x01", b"\x02", b"\x03", b"\xff"
"""The channels of the protocol v5.channel.k8s.io: the first byte of each message."""


def why_absent() -> str | None:
    """Return the reason why kubectl cannot be tested; None if it can."""
    if shutil.which("kubectl") is None:
        return "not installed: kubectl"
    done = subprocess.run(["kubectl", "version", "--client"], capture_output=True, check=False)
    return None if done.returncode == 0 else "kubectl does not run"


@contextmanager
def serve_pods(net: HostNet, folder: Path) -> Iterator[Path]:
    """Serve the pods trainer-0 to trainer-3, one machine of the net each; yield the path of the kubeconfig."""
    enter = [["nsenter", "-t", str(host._init), "-m", "-u", "-i", "-n", "-p"] for host in net]
    pods = {f"trainer-{number}": words for number, words in enumerate(enter)}
    command = [sys.executable, "-m", "tests.system.hosts.kube", json.dumps(pods)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdout is not None
        file = folder / "kubeconfig"
        file.write_text(_KUBECONFIG.format(port=int(server.stdout.readline())))
        try:
            yield file
        finally:
            server.kill()


class _Api(tornado.web.RequestHandler):
    def initialize(self, pods: dict[str, list[str]]) -> None:
        self.pods = pods

    def data_received(self, chunk: bytes) -> None:
        """Ignore the body, because no client sends one."""

    def get(self, name: str) -> None:
        """Return the description of a pod."""
        if name not in self.pods:
            self.set_status(404)
            self.finish(
                {"kind": "Status", "status": "Failure", "reason": "NotFound", "message": f'pods "{name}" not found'}
            )
            return
        container = {"name": "main", "image": "none"}
        self.finish({
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [container], "nodeName": "none"},
            "status": {"phase": "Running"},
        })  # fmt: skip


_API_RESOURCES: dict[str, dict[str, Any]] = {
    "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0-made-up"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [{"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["get"]}],
    },
}
"""The API resources, which kubectl requests before it requests a pod."""


class _ApiResources(tornado.web.RequestHandler):
    def data_received(self, chunk: bytes) -> None:
        """Ignore the body, because no client sends one."""

    def get(self) -> None:
        """Return the API resources."""
        self.finish(_API_RESOURCES[self.request.path])


class _Exec(tornado.websocket.WebSocketHandler):
    def initialize(self, pods: dict[str, list[str]]) -> None:
        self.pods = pods
        self.arrived: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.process: asyncio.subprocess.Process | None = None

    def data_received(self, chunk: bytes) -> None:
        """Ignore the body, because clients send WebSocket messages only."""

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        """Select version 5, which signals the end of standard input."""
        return "v5.channel.k8s.io" if "v5.channel.k8s.io" in subprotocols else None

    async def open(self, *args: str, **_: str) -> None:
        """Run the command in the pod."""
        words = [*self.pods[args[0]], *self.get_query_arguments("command", strip=False)]
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe)
        self.tasks = [asyncio.create_task(self._feed()), asyncio.create_task(self._serve(self.process))]

    async def _feed(self) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        while (data := await self.arrived.get()) is not None:
            self.process.stdin.write(data)
            await self.process.stdin.drain()
        self.process.stdin.close()

    async def _serve(self, process: asyncio.subprocess.Process) -> None:
        await asyncio.gather(self._forward(process.stdout, _STDOUT), self._forward(process.stderr, _STDERR))
        code = await process.wait()
        status: dict[str, Any] = {"status": "Success"}
        if code != 0:
            cause = {"reason": "ExitCode", "message": str(code)}
            status = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]}}
        await self.write_message(_STATUS + json.dumps(status).encode(), binary=True)
        self.close(1000)

    async def _forward(self, stream: Any, channel: bytes) -> None:
        while data := await stream.read(32768):
            await self.write_message(channel + data, binary=True)

    def on_message(self, message: str | bytes) -> None:
        """Receive standard input, or its end."""
        data = message.encode() if isinstance(message, str) else message
        if data[:1] == _STDIN:
            self.arrived.put_nowait(data[1:])
        elif data[:2] == _CLOSE + _STDIN:
            self.arrived.put_nowait(None)

    def on_close(self) -> None:
        """End the command's standard input with the connection, as the real server does."""
        self.arrived.put_nowait(None)


async def _main(pods: dict[str, list[str]]) -> None:
    place = r"/api/v1/namespaces/default/pods/([^/]+)"
    routes: list[Any] = [(place, _Api, {"pods": pods}), (f"{place}/exec", _Exec, {"pods": pods})]
    routes += [(path, _ApiResources) for path in _API_RESOURCES]
    (listening,) = tornado.netutil.bind_sockets(0, "127.0.0.1")
    server = tornado.httpserver.HTTPServer(tornado.web.Application(routes))
    server.add_sockets([listening])
    print(listening.getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(json.loads(sys.argv[1])))
