"""State that outlives a cell or a notebook: the journal, its replay and export, and detachable clusters."""
