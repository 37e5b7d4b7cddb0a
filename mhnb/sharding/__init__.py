"""Pure decisions about shardings, layouts and collectives: plain values in, plain values out, and no JAX."""
