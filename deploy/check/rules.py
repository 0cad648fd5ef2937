"""`python -m deploy.check.rules`: Prometheus' rule files as one PrometheusRule, which the operator takes instead of files."""

from __future__ import annotations

from typing import Final

import yaml

from deploy.check.documents import DEPLOY

FILE: Final = DEPLOY / "k8s" / "components" / "monitoring" / "rules.yaml"
_HEAD: Final = "# Written by `python -m deploy.check.rules` from deploy/prometheus/rules; edit those.\n"


def text() -> str:
    """Return what the file should hold."""
    groups = [
        group
        for path in sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    ]
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "draftlane", "labels": {"app.kubernetes.io/name": "draftlane"}},
        "spec": {"groups": groups},
    }
    return _HEAD + str(yaml.safe_dump(rule, sort_keys=False, width=1000, allow_unicode=True))


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
