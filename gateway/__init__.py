"""Draftlane's gateway: an OpenAI-compatible front that routes each request by how predictable its answer is."""
