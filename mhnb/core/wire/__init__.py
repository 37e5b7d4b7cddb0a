"""Messages between processes: what they are, how they are written, framed and signed."""
