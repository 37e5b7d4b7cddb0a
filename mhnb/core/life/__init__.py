"""State of a cluster and its cells: events in, commands out."""
