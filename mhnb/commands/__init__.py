"""Commands of both `%mhjax` and `mhnb`, described once."""
