"""A rank's engine: the supervisor watches it, not a nanny, and it does not end because the hub is slow."""

c = get_config()  # noqa: F821  # IPython puts it there

# The supervisor of the machine reaps and signals every rank; a nanny each would be another Python process each.
c.IPEngine.enable_nanny = False
# The hub may still be starting when the first rank is ready to register.
c.IPEngine.timeout = 60.0
c.IPEngine.wait_for_url_file = 60.0
# The supervisor knows when the hub is gone; a rank must not decide it alone.
c.IPEngine.max_heartbeat_misses = 0
