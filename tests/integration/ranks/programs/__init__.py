"""Programs as JAX's users write them, in cells; each runs as plain processes and on a cluster (test_programs.py)."""
