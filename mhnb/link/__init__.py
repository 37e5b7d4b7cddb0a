"""Transport between the notebook and the ranks: commands out, events in."""
