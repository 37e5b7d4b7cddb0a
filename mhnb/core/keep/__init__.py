"""What lasts longer than a cluster: the journal, its replay, and the export to a script."""
