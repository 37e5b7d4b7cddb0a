"""A cluster while it runs: the thread that reads, what it hears, the cells that somebody waits for, and the processes behind."""
