"""Running pods, one host per pod, reached by `kubectl exec -i`.

    %mhjax start --profile kubernetes -n 4 --set pod=trainer-{}          in a notebook
    ipcluster start --profile-dir DIR          the same ranks for ipyparallel's own tools: engine id = rank

This is a real IPython profile. `mhnb profile new NAME --from kubernetes` makes a copy that you can edit;
settings that are missing here come from kubectl's current context.
`%mhjax start --set NAME=VALUE` overrides a setting once; `mhnb profile show kubernetes` lists them all.
"""

c = get_config()  # noqa: F821  # IPython puts it there

# How the ranks are started. The hub runs on this machine.
c.Cluster.engine_launcher_class = "mhnb-kubernetes"
c.Cluster.controller_launcher_class = "mhnb"
# No delay is needed, because engines wait for the hub's connection file themselves.
c.Cluster.delay = 0
# For `ipcluster start` only: the address of this machine that hosts connect to, if its name does not resolve to it.
# c.Cluster.controller_ip = "10.0.0.1"

# -- pods of a StatefulSet or an indexed Job; {} is replaced by the number

c.Cluster.n = 4
# c.MhnbKubernetes.pod = "trainer-{}"
# c.MhnbKubernetes.namespace = "default"
# c.MhnbKubernetes.container = "main"
# c.MhnbKubernetes.context = "my-cluster"
# c.MhnbKubernetes.extra = ["--kubeconfig=file"]

# -- environment on the hosts; by default the path of this notebook's interpreter, which needs a shared file system

# c.MhnbKubernetes.python = "/opt/python/bin/python"
# c.MhnbKubernetes.venv = "~/venvs/jax"
# c.MhnbKubernetes.conda = "jax"
# c.MhnbKubernetes.setup = ". /etc/profile && module load cuda"
# c.MhnbKubernetes.cwd = "~/work"
# c.MhnbKubernetes.environment = {"NCCL_DEBUG": "INFO"}
# Divide the GPUs of a host among its ranks.
# c.MhnbKubernetes.share_gpus = True
