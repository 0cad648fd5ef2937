"""What an operator applies: dashboards, alerts, images and manifests. The Python here writes files; none of it serves."""
