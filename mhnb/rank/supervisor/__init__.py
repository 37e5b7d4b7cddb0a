"""How the supervisor of a machine makes its processes, where it settles, and what it keeps for them."""
