"""Messages between the notebook and the ranks: framing, encryption, the server, the client, and addresses."""
