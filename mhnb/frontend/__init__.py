"""The notebook side of a cell: send it, show it while it runs, raise its errors; and help while the user types."""
