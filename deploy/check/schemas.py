"""Manifests against published schemas: Kubernetes' own by kubernetes-validate, custom resources by their npm packages."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator
from typing import Any, Final

import kubernetes_validate

from deploy.check.documents import ROOT, Document, Finding

VERSION: Final = "1.34"  # the oldest that has DRA as resource.k8s.io/v1
_CUSTOM: Final = frozenset({"monitoring.coreos.com", "gateway.networking.k8s.io"})
_SCRIPT: Final = ROOT / "tests" / "node" / "crds.mjs"


def is_custom(document: Document) -> bool:
    """Whether an object is of a resource that a cluster does not know by itself."""
    return str(document["apiVersion"]).partition("/")[0] in _CUSTOM


def core(documents: Iterable[Document]) -> Iterator[Finding]:
    """Check objects of Kubernetes itself, strictly: a field that is not there is wrong."""
    for document in documents:
        where = f"{document['kind']} {document['metadata']['name']}"
        try:
            kubernetes_validate.validate(document, VERSION, strict=True)
        except kubernetes_validate.ValidationError as wrong:
            path = ".".join(str(part) for part in wrong.path)
            yield Finding(where, f"{path}: {wrong.message}")
        except (
            kubernetes_validate.InvalidSchemaError,
            kubernetes_validate.SchemaNotFoundError,
            kubernetes_validate.VersionNotSupportedError,
        ) as wrong:
            yield Finding(where, str(wrong))


def custom(documents: Iterable[Document]) -> list[Finding]:
    """Check custom resources, all in one run of Node."""
    found: list[dict[str, Any]] = json.loads(
        subprocess.run(
            ["node", str(_SCRIPT)], input=json.dumps(list(documents)), capture_output=True, text=True, check=True
        ).stdout
    )
    return [Finding(entry["where"], entry["what"]) for entry in found]
