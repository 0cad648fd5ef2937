"""Random kills of engines, Redis and gateway processes under load, and whether the ledger is right to the token in the end."""
