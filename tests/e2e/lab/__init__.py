"""End-to-end tests on real engines: vLLM on the CPU, as `make lab` builds it."""
