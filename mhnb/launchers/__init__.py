"""Launchers of supervisors: local, ssh, Slurm, MPI, cloud and ipcluster."""
