"""Pure decisions about cells, ranks and outputs: plain values in, plain values out."""
