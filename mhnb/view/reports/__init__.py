"""What is shown beside the outputs of cells: one module per report, each of which builds a document."""
