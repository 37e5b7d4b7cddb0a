"""Simulated hosts on this machine: every rank is a process here. For ipyparallel's own tools; mhnb starts by itself.

The settings of the hub and of the ranks' engines are in the two files beside this one.
A real IPython profile: copy the folder, change it, name it with --profile-dir.
"""

c = get_config()  # noqa: F821  # IPython puts it there

# As many as `%mhjax start` starts unless it is told otherwise.
c.Cluster.n = 4
# Engines wait for the hub's connection file themselves; nobody needs to wait for them.
c.Cluster.delay = 0
