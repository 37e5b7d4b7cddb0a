"""How machines are named and reached: by ssh, Slurm, MPI and pods, and what they say when that fails."""
