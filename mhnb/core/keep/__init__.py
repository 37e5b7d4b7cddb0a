"""What outlives a cluster: the journal, its replay, and the export to a script."""
