"""A cell while it runs: the widget, the lines of a terminal, the draft in the file, and the panel over a result."""
