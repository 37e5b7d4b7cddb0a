"""The notebook's side of a cell: sent, watched, shown and raised; and what helps while it is typed."""
