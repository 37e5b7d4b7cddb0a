"""Messages between notebook and ranks: framing, encryption, sockets, addresses."""
