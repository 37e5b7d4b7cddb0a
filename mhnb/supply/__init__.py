"""What the hosts of a cluster need before a cell can run there: the user's own code, and others' packages."""
