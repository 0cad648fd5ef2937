"""Of LiteLLM, what a callback imports."""
