"""The hub: in one process, keeping no results, reached by the ranks at one address of this machine.

Which address, each start finds out by itself (or --address says it); until then it is loopback, so that nobody else can reach the hub.
"""

c = get_config()  # noqa: F821  # IPython puts it there

# A start replaces it by the one address that hosts connect to. Never use "*": the hub authenticates by its key alone.
c.IPController.ip = "127.0.0.1"
# Encrypt the network traffic, including that of the hub.
c.IPController.enable_curve = True
# Run the schedulers as threads: saves five processes and half a second of CPU time.
c.IPController.use_threads = True
# Cells are not sent through the hub, so it has nothing to store.
c.IPController.db_class = "ipyparallel.controller.dictdb.NoDB"
# Registration completes on a heartbeat; a rank that computes on a busy machine can miss many.
c.HeartMonitor.period = 500
c.HeartMonitor.max_heartmonitor_misses = 60
