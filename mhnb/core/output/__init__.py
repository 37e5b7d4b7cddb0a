"""The ranks' output: combined into notebook outputs, compared, and kept as results."""
