"""The hub of the GPUs of this machine: on loopback, in one process, keeping no results."""

c = get_config()  # noqa: F821  # IPython puts it there

# The hub asks nobody for more than its key, so only this machine may reach it.
c.IPController.ip = "127.0.0.1"
# Its schedulers as threads: five processes fewer, and half a second of CPU time.
c.IPController.use_threads = True
# Cells do not travel through the hub, so there is nothing to keep.
c.IPController.db_class = "ipyparallel.controller.dictdb.NoDB"
# Registration completes on a heartbeat; a rank that computes on a busy machine may miss many.
c.HeartMonitor.period = 500
c.HeartMonitor.max_heartmonitor_misses = 60
