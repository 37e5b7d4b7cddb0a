"""What lasts longer than a cell or a notebook: the journal, its replay and export, and clusters that are kept or let go of."""
