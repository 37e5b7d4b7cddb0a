"""Before a cluster runs: what was asked for, the look at the machines, the start itself, and ranks in reserve."""
