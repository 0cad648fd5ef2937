"""Inputs nobody would write: whatever comes in, parsers answer or refuse by their own errors, and their laws hold."""
