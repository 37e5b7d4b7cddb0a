"""Command lines, host lists and error explanations for ssh, Slurm, MPI, clouds."""
