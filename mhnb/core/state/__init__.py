"""State machine of a cluster and its cells: events in, commands out."""
