"""What a look at the machines finds before a start, from facts alone."""
