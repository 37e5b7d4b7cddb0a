"""What runs beside JAX: the supervisor of a machine, and inside each rank its start, its shell and its records."""
