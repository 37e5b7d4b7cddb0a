"""Processes started by mpiexec (Open MPI, MPICH or a relative). The rank is the MPI rank; mpi4py is not needed.

    %mhjax start --profile mpi -n 4          in a notebook
    ipcluster start --profile-dir DIR          the same ranks for ipyparallel's own tools: engine id = rank

This is a real IPython profile. `mhnb profile new NAME --from mpi` makes a copy that you can edit;
settings that are missing here are left to mpiexec.
`%mhjax start --set NAME=VALUE` overrides a setting once; `mhnb profile show mpi` lists them all.
"""

c = get_config()  # noqa: F821  # IPython puts it there

# How the ranks are started. The hub runs on this machine.
c.Cluster.engine_launcher_class = "mhnb-mpi"
c.Cluster.controller_launcher_class = "mhnb"
# No delay is needed, because engines wait for the hub's connection file themselves.
c.Cluster.delay = 0
# For `ipcluster start` only: the address of this machine that hosts connect to, if its name does not resolve to it.
# c.Cluster.controller_ip = "10.0.0.1"

# -- number of ranks and hosts: without names mpiexec places the ranks; with names each host gets one supervisor

c.Cluster.n = 4
# c.MhnbMpi.hosts = "a,b,node[1-4]"
# c.MhnbMpi.ranks_per_host = 1
# Simulated CPU devices per rank; by default the real devices of each host.
# c.MhnbMpi.devices = 2

# -- how to start them

# c.MhnbMpi.mpiexec = "/opt/openmpi/bin/mpiexec"
# c.MhnbMpi.extra = ["--mca", "oob_tcp_if_include", "10.0.0.0/8"]

# -- environment on the hosts; by default the path of this notebook's interpreter, which needs a shared file system

# c.MhnbMpi.python = "/opt/python/bin/python"
# c.MhnbMpi.venv = "~/venvs/jax"
# c.MhnbMpi.conda = "jax"
# c.MhnbMpi.setup = ". /etc/profile && module load cuda"
# c.MhnbMpi.cwd = "~/work"
# c.MhnbMpi.environment = {"NCCL_DEBUG": "INFO"}
# Divide the GPUs of a host among its ranks.
# c.MhnbMpi.share_gpus = True
