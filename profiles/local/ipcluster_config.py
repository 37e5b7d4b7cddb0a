"""Simulated hosts on this machine: every rank is a process here.

    %mhjax start -n 4 --devices 2              in a notebook; this is the profile without a --profile
    ipcluster start --profile-dir DIR          the same ranks for ipyparallel's own tools: engine id = rank

The settings of the hub and of the ranks' engines are those of all profiles, in the folder above; a file of the same name here replaces one.
A real IPython profile. `mhnb profile new NAME` makes a copy that is yours; `mhnb profile show local` lists the settings.
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
