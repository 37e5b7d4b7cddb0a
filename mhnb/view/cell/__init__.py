"""Format a cell's result as HTML and text that need no kernel."""
