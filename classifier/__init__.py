"""Predicts, from a request alone, how many tokens per verification step a draft model will get accepted."""
