"""This machine, as every process of mhnb sees it: its files, ports, processes, signals and GPUs, and the cipher between machines."""
