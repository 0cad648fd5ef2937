"""Measurements of Draftlane's own cost; each prints lines of JSON."""
