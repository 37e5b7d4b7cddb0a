"""Values and files on their way between the notebook and the ranks: what is held where, and which piece comes from whom."""
