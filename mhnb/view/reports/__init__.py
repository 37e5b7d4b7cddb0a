"""Reports beside the outputs of cells: each module builds a document."""
