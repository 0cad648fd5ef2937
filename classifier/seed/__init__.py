"""Requests with answers of the project's own, for measuring acceptance on kinds of traffic that other data lack."""
