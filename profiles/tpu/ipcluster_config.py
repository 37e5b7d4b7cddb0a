"""The workers of a TPU VM: a host each, reached by `gcloud compute tpus tpu-vm ssh`.

    %mhjax start --profile tpu -n 4 --set tpu=my-pod          in a notebook
    ipcluster start --profile-dir DIR          the same ranks for ipyparallel's own tools: engine id = rank

A real IPython profile. `mhnb profile new NAME --from tpu` makes a copy that is yours;
what is not set here is left to gcloud's configuration.
`%mhjax start --set NAME=VALUE` overrides a setting once; `mhnb profile show tpu` lists them all.
"""

c = get_config()  # noqa: F821  # IPython puts it there

# How the ranks are started. The hub runs on this machine.
c.Cluster.engine_launcher_class = "mhnb-tpu"
c.Cluster.controller_launcher_class = "mhnb"
# Engines wait for the hub's connection file themselves; nobody needs to wait for them.
c.Cluster.delay = 0
# `ipcluster start` alone: the address of this machine that the hosts are to reach, where its name does not stand for it.
# c.Cluster.controller_ip = "10.0.0.1"

# -- which, and how many workers it has

c.Cluster.n = 4
# c.MhnbTpu.tpu = "my-pod"
# c.MhnbTpu.zone = "us-east1-d"
# c.MhnbTpu.project = "my-project"
# c.MhnbTpu.internal_ip = True
# c.MhnbTpu.extra = ["--tunnel-through-iap"]

# -- what there is over there; without any of it, this notebook's own interpreter by its path (a file system that is shared)

# c.MhnbTpu.python = "/opt/python/bin/python"
# c.MhnbTpu.venv = "~/venvs/jax"
# c.MhnbTpu.conda = "jax"
# c.MhnbTpu.setup = ". /etc/profile && module load cuda"
# c.MhnbTpu.cwd = "~/work"
# c.MhnbTpu.environment = {"NCCL_DEBUG": "INFO"}
# Each rank of a host gets its own part of the host's GPUs.
# c.MhnbTpu.share_gpus = True
