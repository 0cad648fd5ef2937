"""Sending a trace of requests to an endpoint and measuring every answer; what `replay`, `compare` and `sweep` stand on."""
