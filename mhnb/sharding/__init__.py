"""Pure computations about shardings, layouts and collectives, without JAX."""
