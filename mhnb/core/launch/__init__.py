"""Command lines and host lists as plain values: ssh, Slurm, MPI, cloud VMs, and explanations of their errors."""
