"""Displays other than cells: the start, the status, the variables, the hang report, the preflight report."""
