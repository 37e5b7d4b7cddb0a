"""Services of the local machine: processes, private files, run directories, capacity, and packaged resources."""
