"""Run one cell on a rank: the shell, its output, its interrupts, and the stack sampler."""
