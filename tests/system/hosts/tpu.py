"""A fake Cloud TPU and Compute API on loopback, with the parts that the real `gcloud compute tpus tpu-vm ssh` requests.

The TPU's workers are simulated machines, so gcloud runs a real ssh, which logs in to these machines only.
"""

from __future__ import annotations

import email
import http.server
import json
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.system.hosts.hostnet import HostNet

__all__ = ["PROJECT", "TPU", "ZONE", "login_options", "serve_tpu", "why_absent"]

PROJECT, ZONE, TPU = "made-up-project", "us-x1-a", "my-pod"
_NODE = f"projects/{PROJECT}/locations/{ZONE}/nodes/{TPU}"


def why_absent() -> str | None:
    """Return the reason why gcloud cannot be tested; None if it can."""
    return None if shutil.which("gcloud") else "not installed: google-cloud-cli"


class _Api(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answers: dict[str, dict[str, Any]]

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kind = "application/json; charset=UTF-8"
        if self.path.startswith("/batch"):
            text, kind = self._batch(body), 'multipart/mixed; boundary="B"'
            self._send(200, text, kind)
            return
        found = self._find(self.path)
        self._send(
            404 if found is None else 200, json.dumps(found or {"error": {"code": 404, "message": self.path}}), kind
        )

    def _find(self, path: str) -> dict[str, Any] | None:
        return self.answers.get(path.split("?", maxsplit=1)[0].removeprefix("/compute/v1"))

    def _batch(self, body: bytes) -> str:
        """Answer the parts of a batch request to the Compute API."""
        message: Any = email.message_from_bytes(
            b"Content-Type: " + self.headers["Content-Type"].encode() + b"\r\n\r\n" + body
        )
        parts = []
        for part in message.get_payload():
            _, url, _ = part.get_payload().lstrip().split("\n")[0].split(" ", 2)
            text = json.dumps(self._find(re.sub(r"^https?://[^/]+", "", url)))
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n{text}\r\n"
            number = part["Content-ID"].strip("<>")
            parts.append(f"--B\r\nContent-Type: application/http\r\nContent-ID: <response-{number}>\r\n\r\n{head}")
        return "".join(parts) + "--B--\r\n"

    def _send(self, code: int, said: str, kind: str) -> None:
        data = said.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = _answer  # noqa: N815  # the library's names


def _answers(net: HostNet) -> dict[str, dict[str, Any]]:
    key = " ".join((net.folder / "id_ed25519.pub").read_text().split()[:2])
    places = [{"ipAddress": host.address, "port": 8470, "accessConfig": {"externalIp": host.address}} for host in net]
    node = {"name": _NODE, "acceleratorType": "v5litepod-16", "state": "READY", "health": "HEALTHY", "apiVersion": "V2"}
    hostkeys = [
        {
            "queryPath": "hostkeys/",
            "queryValue": {"items": [{"namespace": "hostkeys", "key": "hostname", "value": host.name}]},
        }
        for host in net
    ]
    meta = {"kind": "compute#metadata", "items": [{"key": "ssh-keys", "value": f"root:{key} root"}]}
    return {
        f"/v2/{_NODE}": node | {"networkConfig": {"enableExternalIps": True}, "networkEndpoints": places},
        f"/v2/{_NODE}:getGuestAttributes": {"guestAttributes": hostkeys},
        f"/projects/{PROJECT}": {"kind": "compute#project", "name": PROJECT, "id": "1", "commonInstanceMetadata": meta},
    }  # fmt: skip


def login_options(net: HostNet) -> list[str]:
    """Return the options with which gcloud's ssh can log in to the machines of the net."""
    key, known = f"--ssh-key-file={net.folder}/id_ed25519", "--ssh-flag=-oUserKnownHostsFile=/dev/null"
    return [key, "--strict-host-key-checking=no", known]


@contextmanager
def serve_tpu(net: HostNet, config_dir: str) -> Iterator[dict[str, str]]:
    """Serve the API; yield the environment that points gcloud to it, with a configuration of its own."""
    handler = type("_OwnApi", (_Api,), {"answers": _answers(net)})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield {
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{url}/compute/v1/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{url}/",
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_CONFIG": config_dir,
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "true",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
        }
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
