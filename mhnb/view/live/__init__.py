"""Displays of a running cell: the widget, the lines of a terminal, the placeholder in the file, and the panel over a result."""
