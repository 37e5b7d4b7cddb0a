"""Services of the local machine, such as processes and private files."""
