"""Pictures as HTML: what the parts of a document cannot describe."""
