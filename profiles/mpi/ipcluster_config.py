"""Processes that an mpiexec starts: rank = its number. Open MPI, or MPICH and its relatives; no mpi4py is needed.

    %mhjax start --profile mpi -n 4          in a notebook
    ipcluster start --profile-dir DIR          the same ranks for ipyparallel's own tools: engine id = rank

A real IPython profile. `mhnb profile new NAME --from mpi` makes a copy that is yours;
what is not set here is left to mpiexec.
`%mhjax start --set NAME=VALUE` overrides a setting once; `mhnb profile show mpi` lists them all.
"""

c = get_config()  # noqa: F821  # IPython puts it there

# How the ranks are started. The hub runs on this machine.
c.Cluster.engine_launcher_class = "mhnb-mpi"
c.Cluster.controller_launcher_class = "mhnb"
# Engines wait for the hub's connection file themselves; nobody needs to wait for them.
c.Cluster.delay = 0
# `ipcluster start` alone: the address of this machine that the hosts are to reach, where its name does not stand for it.
# c.Cluster.controller_ip = "10.0.0.1"

# -- how many ranks, and where: without names as mpiexec places them, with names a supervisor on each

c.Cluster.n = 4
# c.MhnbMpi.hosts = "a,b,node[1-4]"
# c.MhnbMpi.ranks_per_host = 1
# Simulated CPU devices per rank; without it, what each machine has.
# c.MhnbMpi.devices = 2

# -- how

# c.MhnbMpi.mpiexec = "/opt/openmpi/bin/mpiexec"
# c.MhnbMpi.extra = ["--mca", "oob_tcp_if_include", "10.0.0.0/8"]

# -- what there is over there; without any of it, this notebook's own interpreter by its path (a file system that is shared)

# c.MhnbMpi.python = "/opt/python/bin/python"
# c.MhnbMpi.venv = "~/venvs/jax"
# c.MhnbMpi.conda = "jax"
# c.MhnbMpi.setup = ". /etc/profile && module load cuda"
# c.MhnbMpi.cwd = "~/work"
# c.MhnbMpi.environment = {"NCCL_DEBUG": "INFO"}
# Each rank of a host gets its own part of the host's GPUs.
# c.MhnbMpi.share_gpus = True
