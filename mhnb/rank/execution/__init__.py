"""Run cells on a rank: shell, output, interrupts, debugger, stack sampler."""
