"""`draftlane doctor`: what to look at before a deployment: models, memory, flags, endpoints, sizes."""
