"""Tables and reports outside of cells: the start, the status, the variables, the hang report, the preflight report."""
