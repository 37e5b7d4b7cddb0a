"""The sharding wing, with texts of real compiled programs."""
