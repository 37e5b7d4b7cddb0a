"""How a cluster and its cells go on: events in, commands out, and the state that a cell leaves."""
