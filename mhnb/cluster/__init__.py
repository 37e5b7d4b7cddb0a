"""Notebook side of a cluster: start it, drive it, transfer values, attach to it, replay it, and stop it."""
