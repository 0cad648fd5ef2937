"""Two pools on the same prompts: measuring in pairs, intervals, a verdict in words, and other load generators' files."""
