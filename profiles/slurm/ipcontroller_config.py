"""The hub: in one process, keeping no results, reached by the ranks at one address of this machine.

Which address, each start finds out by itself (or --address says it); until then it is loopback, so that nobody else can reach the hub.
"""

c = get_config()  # noqa: F821  # IPython puts it there

# A start replaces it by the one address that the hosts reach. Never "*": the hub asks nobody for more than its key.
c.IPController.ip = "127.0.0.1"
# What goes over the network is encrypted, the hub's own part too.
c.IPController.enable_curve = True
# Its schedulers as threads: five processes fewer, and half a second of CPU time.
c.IPController.use_threads = True
# Cells do not travel through the hub, so there is nothing to keep.
c.IPController.db_class = "ipyparallel.controller.dictdb.NoDB"
# Registration completes on a heartbeat; a rank that computes on a busy machine may miss many.
c.HeartMonitor.period = 500
c.HeartMonitor.max_heartmonitor_misses = 60
