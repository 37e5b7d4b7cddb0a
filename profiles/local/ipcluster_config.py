"""Simulated hosts on this machine: every rank is a process here.

    %mhjax start -n 4 --devices 2              in a notebook; this is the default profile
    ipcluster start --profile-dir DIR          the same ranks for ipyparallel's own tools: engine id = rank

The settings of the hub and the engines are in the folder above, for all profiles; a file of the same name here replaces them.
This is a real IPython profile. `mhnb profile new NAME` makes a copy that you can edit; `mhnb profile show local` lists the settings.
"""

c = get_config()  # noqa: F821  # IPython puts it there

# How the ranks are started. The hub runs on this machine.
c.Cluster.engine_launcher_class = "mhnb-local"
c.Cluster.controller_launcher_class = "mhnb"
# No delay is needed, because engines wait for the hub's connection file themselves.
c.Cluster.delay = 0

# Number of ranks, and CPU devices per rank.
c.Cluster.n = 4
c.MhnbLocal.devices = 2
