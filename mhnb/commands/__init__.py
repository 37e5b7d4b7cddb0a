"""Shell commands that do more than send a request to a cluster: demo, run, profile, reap."""
