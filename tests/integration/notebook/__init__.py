"""Integration tests of the notebook interface: magics, completion, `?`, auto mode, a real kernel and a terminal."""
