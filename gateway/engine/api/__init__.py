"""The endpoints: reading requests and giving answers the shape that vLLM gives them."""
