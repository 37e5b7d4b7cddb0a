"""Pure computations about shardings, layouts and collectives: plain values in, plain values out, no JAX."""
