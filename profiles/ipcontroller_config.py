"""Settings of the hub for every profile without its own ipcontroller_config.py: one process that stores no results.

The hub listens on loopback, so that only this machine can reach it. If ranks run on other machines, each start finds the address
of this machine that they can reach (or --address sets it), and encrypts the hub's traffic.
"""

c = get_config()  # noqa: F821  # IPython puts it there

# A start replaces it if hosts are other machines. Never use "*": the hub authenticates clients by its key alone.
c.IPController.ip = "127.0.0.1"
# Run the schedulers as threads: saves five processes and half a second of CPU time.
c.IPController.use_threads = True
# Cells are not sent through the hub, so it has nothing to store.
c.IPController.db_class = "ipyparallel.controller.dictdb.NoDB"
# Registration completes on a heartbeat; a rank that computes on a busy machine can miss many.
c.HeartMonitor.period = 500
c.HeartMonitor.max_heartmonitor_misses = 60
