"""Processes on a host: the supervisor and, in each rank, the start of JAX, the shell and the launch records."""
