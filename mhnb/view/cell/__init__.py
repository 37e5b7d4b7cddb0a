"""A cell's result, as HTML and text that need no kernel, and the card of one that failed."""
