"""A rank's engine, in every profile that has no ipengine_config.py of its own.

The supervisor watches it, not a nanny, and it does not end because the hub is slow.
"""

c = get_config()  # noqa: F821  # IPython puts it there

# The supervisor of the host reaps and signals every rank; a nanny would add one Python process per rank.
c.IPEngine.enable_nanny = False
# The hub may still be starting when the first rank is ready to register.
c.IPEngine.timeout = 60.0
c.IPEngine.wait_for_url_file = 60.0
# The supervisor detects the loss of the hub; a rank must not decide that alone.
c.IPEngine.max_heartbeat_misses = 0
