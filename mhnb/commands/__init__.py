"""What the shell's `mhnb VERB` does beyond asking a cluster: the tour, scripts, profiles, leftovers."""
