"""The hub of simulated hosts: on loopback, in one process, keeping no results."""

c = get_config()  # noqa: F821  # IPython puts it there

# The hub authenticates clients by its key alone, so only this machine may connect.
c.IPController.ip = "127.0.0.1"
# Run the schedulers as threads: saves five processes and half a second of CPU time.
c.IPController.use_threads = True
# Cells are not sent through the hub, so it has nothing to store.
c.IPController.db_class = "ipyparallel.controller.dictdb.NoDB"
# Registration completes on a heartbeat; a rank that computes on a busy machine can miss many.
c.HeartMonitor.period = 500
c.HeartMonitor.max_heartmonitor_misses = 60
