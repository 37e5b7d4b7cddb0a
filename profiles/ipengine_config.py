"""Settings of a rank's engine for every profile without its own ipengine_config.py.

The supervisor watches the engine instead of a nanny process, and a slow hub does not end it.
"""

c = get_config()  # noqa: F821  # IPython puts it there

# The supervisor of the host reaps and signals every rank; a nanny would add one Python process per rank.
c.IPEngine.enable_nanny = False
# The hub may still be starting when the first rank is ready to register.
c.IPEngine.timeout = 60.0
c.IPEngine.wait_for_url_file = 60.0
# The supervisor detects the loss of the hub; a rank must not decide that alone.
c.IPEngine.max_heartbeat_misses = 0
