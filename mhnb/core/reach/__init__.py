"""How machines are named and reached: ssh, Slurm, MPI and pods, and explanations of their errors."""
