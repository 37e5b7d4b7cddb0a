"""The workers of a TPU VM, one host per worker, reached by `gcloud compute tpus tpu-vm ssh`.

    %mhjax start --profile tpu -n 4 --set tpu=my-pod          in a notebook
    ipcluster start --profile-dir DIR          the same ranks for ipyparallel's own tools: engine id = rank

This is a real IPython profile. `mhnb profile new NAME --from tpu` makes a copy that you can edit;
settings that are missing here come from gcloud's configuration.
`%mhjax start --set NAME=VALUE` overrides a setting once; `mhnb profile show tpu` lists them all.
"""

c = get_config()  # noqa: F821  # IPython puts it there

# How the ranks are started. The hub runs on this machine.
c.Cluster.engine_launcher_class = "mhnb-tpu"
c.Cluster.controller_launcher_class = "mhnb"
# No delay is needed, because engines wait for the hub's connection file themselves.
c.Cluster.delay = 0
# For `ipcluster start` only: the address of this machine that hosts connect to, if its name does not resolve to it.
# c.Cluster.controller_ip = "10.0.0.1"

# -- the TPU VM, and its number of workers

c.Cluster.n = 4
# c.MhnbTpu.tpu = "my-pod"
# c.MhnbTpu.zone = "us-east1-d"
# c.MhnbTpu.project = "my-project"
# c.MhnbTpu.internal_ip = True
# c.MhnbTpu.extra = ["--tunnel-through-iap"]

# -- environment on the hosts; by default the path of this notebook's interpreter, which needs a shared file system

# c.MhnbTpu.python = "/opt/python/bin/python"
# c.MhnbTpu.venv = "~/venvs/jax"
# c.MhnbTpu.conda = "jax"
# c.MhnbTpu.setup = ". /etc/profile && module load cuda"
# c.MhnbTpu.cwd = "~/work"
# c.MhnbTpu.environment = {"NCCL_DEBUG": "INFO"}
# Divide the GPUs of a host among its ranks.
# c.MhnbTpu.share_gpus = True
