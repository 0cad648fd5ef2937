"""Measuring: what routing is worth, on live pools, on recorded traffic and in simulation."""
