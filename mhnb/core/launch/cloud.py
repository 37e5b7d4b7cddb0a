"""gcloud and kubectl command lines that reach one TPU worker or pod.

Both pass on standard input and the exit code of one process, as ssh does: one command per host, the rest on standard input.
This module starts no process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mhnb.core.launch.ssh import READ_LINE, READ_LINE_WORDS
from mhnb.errors import InvalidRequest

_TPU = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_POD = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class TpuOptions:
    """Which TPU, and how to reach it; None defers to gcloud's configuration."""

    tpu: str | None = None
    """The TPU VM's name. Each of its workers is a host."""
    zone: str | None = None
    project: str | None = None
    internal_ip: bool = False
    """Reach the workers at their internal addresses, from a machine of the same network."""
    extra: tuple[str, ...] = ()
    """Further options of `gcloud compute tpus tpu-vm ssh`, one word each: `--tunnel-through-iap`."""
    gcloud: str = "gcloud"


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """Which pods, and how to reach them; None defers to kubectl's context."""

    pod: str | None = None
    """A pod's name with `{}` in place of its number, as a StatefulSet or an indexed Job names them: `trainer-{}`."""
    namespace: str | None = None
    container: str | None = None
    context: str | None = None
    extra: tuple[str, ...] = ()
    """Further options of kubectl, before `exec`: `--kubeconfig=file`."""
    kubectl: str = "kubectl"


def tpu_command(options: TpuOptions, worker: int) -> list[str]:
    """Return the command that starts a supervisor on one worker.

    Raises:
        InvalidRequest: the name is missing, or not possible for a TPU.

    >>> tpu_command(TpuOptions("pod", zone="us-east1-d"), 3)[4:8]
    ['ssh', 'pod', '--worker=3', '--quiet']
    """
    if options.tpu is None or not _TPU.fullmatch(options.tpu):
        raise InvalidRequest(
            f"tpu={options.tpu!r}: expected the name of a TPU VM, such as --set tpu=my-pod; list them with gcloud compute tpus tpu-vm list"
        )
    arguments = [options.gcloud, "compute", "tpus", "tpu-vm", "ssh", options.tpu, f"--worker={worker}", "--quiet"]
    arguments += [f"--zone={options.zone}"] if options.zone is not None else []
    arguments += [f"--project={options.project}"] if options.project is not None else []
    arguments += ["--internal-ip"] if options.internal_ip else []
    # gcloud runs ssh and passes it one text for the remote shell.
    return [*arguments, *options.extra, f"--command={READ_LINE}"]


def kubectl_command(options: KubernetesOptions, number: int) -> list[str]:
    """Return the command that starts a supervisor in one pod.

    Raises:
        InvalidRequest: the name is missing, or not possible for a pod.

    >>> kubectl_command(KubernetesOptions("trainer-{}"), 2)[:5]
    ['kubectl', 'exec', '-i', 'trainer-2', '--']
    """
    name = "" if options.pod is None else options.pod.replace("{}", str(number))
    if options.pod is None or "{}" not in options.pod or not _POD.fullmatch(name):
        raise InvalidRequest(
            f"pod={options.pod!r}: expected the pods' name with {{}} for the number, such as --set pod=trainer-{{}}; list them with "
            "kubectl get pods"
        )
    arguments = [options.kubectl]
    arguments += [f"--context={options.context}"] if options.context is not None else []
    arguments += [f"--namespace={options.namespace}"] if options.namespace is not None else []
    arguments += [*options.extra, "exec", "-i", name]
    arguments += [f"--container={options.container}"] if options.container is not None else []
    return [*arguments, "--", *READ_LINE_WORDS]
