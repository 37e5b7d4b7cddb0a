"""Tests of `mhnb.sharding`, with texts of real compiled programs."""
