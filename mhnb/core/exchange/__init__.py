"""Transfer of values and files between the notebook and the ranks: which rank holds what, and which rank sends each part."""
