"""Grafana dashboards as code. `python -m deploy.grafana` writes the JSON beside it, which is committed."""
