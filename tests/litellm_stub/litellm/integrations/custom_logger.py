"""The base class of LiteLLM's callbacks, as far as one needs it."""


class CustomLogger:
    """Does nothing."""
