"""What is no cell: the start, the status, the variables, the hang card, what a look at the machines found."""
