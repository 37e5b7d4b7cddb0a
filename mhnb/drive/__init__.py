"""Notebook-side runtime of a cluster: event loop, event listener, submitted cells, and supervisor processes."""
