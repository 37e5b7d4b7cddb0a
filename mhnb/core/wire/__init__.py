"""Messages between processes: their definition, encoding, framing and signing."""
