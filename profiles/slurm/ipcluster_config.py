"""Machines allocated by Slurm: one srun, as a job of its own or as a step of the job that the notebook runs in.

    %mhjax start --profile slurm -n 16          in a notebook
    ipcluster start --profile-dir DIR          the same ranks for ipyparallel's own tools: engine id = rank

This is a real IPython profile. `mhnb profile new NAME --from slurm` makes a copy that you can edit;
settings that are missing here come from your site's defaults.
`%mhjax start --set NAME=VALUE` overrides a setting once; `mhnb profile show slurm` lists them all.
"""

c = get_config()  # noqa: F821  # IPython puts it there

# How the ranks are started. The hub runs on this machine.
c.Cluster.engine_launcher_class = "mhnb-slurm"
c.Cluster.controller_launcher_class = "mhnb"
# No delay is needed, because engines wait for the hub's connection file themselves.
c.Cluster.delay = 0
# For `ipcluster start` only: the address of this machine that hosts connect to, if its name does not resolve to it.
# c.Cluster.controller_ip = "10.0.0.1"

# -- number of ranks: one task per rank; with ranks_per_host, one machine for that many ranks

c.Cluster.n = 4
# c.MhnbSlurm.ranks_per_host = 1

# -- resources to request; flags of a start: --partition, --account, --qos, --time, --nodes, --gpus-per-rank, --mem, --constraint

# c.MhnbSlurm.partition = "debug"
# c.MhnbSlurm.account = "project"
# c.MhnbSlurm.qos = "normal"
# c.MhnbSlurm.time = "1:00:00"
# c.MhnbSlurm.nodes = 4
# c.MhnbSlurm.cpus_per_rank = 8
# c.MhnbSlurm.gpus_per_rank = 1
# c.MhnbSlurm.memory = "16G"
# c.MhnbSlurm.constraint = "a100"
# c.MhnbSlurm.extra = ["--exclusive", "--reservation=class"]

# -- environment on the hosts; by default the path of this notebook's interpreter, which needs a shared file system

# c.MhnbSlurm.python = "/opt/python/bin/python"
# c.MhnbSlurm.venv = "~/venvs/jax"
# c.MhnbSlurm.conda = "jax"
# c.MhnbSlurm.setup = ". /etc/profile && module load cuda"
# c.MhnbSlurm.cwd = "~/work"
# c.MhnbSlurm.environment = {"NCCL_DEBUG": "INFO"}
# Divide the GPUs of a host among its ranks.
# c.MhnbSlurm.share_gpus = True
