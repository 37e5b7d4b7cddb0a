"""Services of the local machine: files, ports, processes, signals, GPUs, and encryption of messages to other machines."""
