"""What the ranks said: folded into outputs, compared, and kept as a result."""
