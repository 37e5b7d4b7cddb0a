"""Prepare the hosts of a cluster before a cell can run there: the user's own code, and third-party packages."""
