"""One cell on a rank: the shell that runs it, what it says, and how it is interrupted and looked at."""
