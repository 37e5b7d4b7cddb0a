"""Notebook side of a cluster: start, cells, transfers, attach, replay, stop."""
