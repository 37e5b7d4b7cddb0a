"""The gcloud and kubectl commands, compared in full."""

from __future__ import annotations

import re

import pytest

from mhnb.core.launch.cloud import KubernetesOptions, TpuOptions, kubectl_command, tpu_command
from mhnb.core.launch.ssh import READ_LINE
from mhnb.errors import InvalidRequest


def test_tpu_worker_command() -> None:
    """There is one command per worker; the remote shell gets the same fixed words as over ssh."""
    assert tpu_command(TpuOptions("my-pod"), 0) == [
        "gcloud", "compute", "tpus", "tpu-vm", "ssh", "my-pod", "--worker=0", "--quiet", f"--command={READ_LINE}",
    ]  # fmt: skip
    options = TpuOptions("my-pod", "us-east1-d", "proj", internal_ip=True, extra=("--tunnel-through-iap",), gcloud="/g")
    assert tpu_command(options, 3) == [
        "/g", "compute", "tpus", "tpu-vm", "ssh", "my-pod", "--worker=3", "--quiet", "--zone=us-east1-d", "--project=proj",
        "--internal-ip", "--tunnel-through-iap", f"--command={READ_LINE}",
    ]  # fmt: skip


def test_kubernetes_pod_command() -> None:
    """There is one command per pod, with standard input; no shell but the one in the pod parses the words."""
    remote_shell = ["sh", "-c", 'IFS= read -r line && eval "$line"']
    assert kubectl_command(KubernetesOptions("t-{}"), 2) == ["kubectl", "exec", "-i", "t-2", "--", *remote_shell]
    options = KubernetesOptions("t-{}-x", "ns", "main", "prod", ("--kubeconfig=my file",), "/k")
    assert kubectl_command(options, 0) == [
        "/k", "--context=prod", "--namespace=ns", "--kubeconfig=my file", "exec", "-i", "t-0-x", "--container=main", "--", *remote_shell,
    ]  # fmt: skip


@pytest.mark.parametrize("name", [None, "", "My Pod", "--all", "a;b"])
def test_invalid_names_are_refused(name: str | None) -> None:
    """The error names the setting, its value, and the command that lists the valid names."""
    with pytest.raises(InvalidRequest, match=re.escape(f"tpu={name!r}: expected the name")):
        tpu_command(TpuOptions(name), 0)
    with pytest.raises(InvalidRequest, match=re.escape(f"pod={name!r}: expected the pods' name with {{}}")):
        kubectl_command(KubernetesOptions(name), 0)
    with pytest.raises(InvalidRequest, match="kubectl get pods"):
        kubectl_command(KubernetesOptions("-x-{}"), 0)
