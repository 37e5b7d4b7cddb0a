"""Steps before a cluster runs: options, preflight checks, the start itself, and standby ranks."""
