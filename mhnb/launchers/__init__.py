"""Start supervisors on hosts and end them: this machine, ssh, Slurm, MPI, cloud VMs, ipcluster."""
