"""Pure decisions about cells, ranks and outputs, from plain values alone."""
