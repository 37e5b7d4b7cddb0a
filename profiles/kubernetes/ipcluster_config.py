"""Pods that run already: a host each, reached by `kubectl exec -i`.

    %mhjax start --profile kubernetes -n 4 --set pod=trainer-{}          in a notebook
    ipcluster start --profile-dir DIR          the same ranks for ipyparallel's own tools: engine id = rank

A real IPython profile. `mhnb profile new NAME --from kubernetes` makes a copy that is yours;
what is not set here is left to kubectl's current context.
`%mhjax start --set NAME=VALUE` overrides a setting once; `mhnb profile show kubernetes` lists them all.
"""

c = get_config()  # noqa: F821  # IPython puts it there

# How the ranks are started. The hub runs on this machine.
c.Cluster.engine_launcher_class = "mhnb-kubernetes"
c.Cluster.controller_launcher_class = "mhnb"
# Engines wait for the hub's connection file themselves; nobody needs to wait for them.
c.Cluster.delay = 0
# `ipcluster start` alone: the address of this machine that the hosts are to reach, where its name does not stand for it.
# c.Cluster.controller_ip = "10.0.0.1"

# -- which: the pods of a StatefulSet or an indexed Job, {} stands for the number

c.Cluster.n = 4
# c.MhnbKubernetes.pod = "trainer-{}"
# c.MhnbKubernetes.namespace = "default"
# c.MhnbKubernetes.container = "main"
# c.MhnbKubernetes.context = "my-cluster"
# c.MhnbKubernetes.extra = ["--kubeconfig=file"]

# -- what there is over there; without any of it, this notebook's own interpreter by its path (a file system that is shared)

# c.MhnbKubernetes.python = "/opt/python/bin/python"
# c.MhnbKubernetes.venv = "~/venvs/jax"
# c.MhnbKubernetes.conda = "jax"
# c.MhnbKubernetes.setup = ". /etc/profile && module load cuda"
# c.MhnbKubernetes.cwd = "~/work"
# c.MhnbKubernetes.environment = {"NCCL_DEBUG": "INFO"}
# Each rank of a host gets its own part of the host's GPUs.
# c.MhnbKubernetes.share_gpus = True
