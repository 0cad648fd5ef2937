"""Manifests as data: overlays rendered by kubectl, and the few questions that checks ask of them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parent.parent.parent
DEPLOY: Final = ROOT / "deploy"
OVERLAYS: Final = DEPLOY / "k8s" / "overlays"
BIN: Final = ROOT / ".venv" / "bin"
Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong: where, and what."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class RenderError(Exception):
    """kubectl could not build a kustomization; the message is its own."""


@dataclass(frozen=True)
class Rendered:
    """An overlay as it would be applied."""

    name: str
    documents: tuple[Document, ...]

    def of_kind(self, *kinds: str) -> list[Document]:
        """Return the objects of these kinds."""
        return [document for document in self.documents if document["kind"] in kinds]

    def named(self, kind: str, name: str) -> Document | None:
        """Return the object of this kind and name, a generated name's suffix aside."""
        for document in self.of_kind(kind):
            found = document["metadata"]["name"]
            if found == name or found.rpartition("-")[0] == name:
                return document
        return None

    @cached_property
    def engines(self) -> dict[str, Engine]:
        """The vLLM engines by their pool."""
        sets = (document for document in self.of_kind("StatefulSet") if labels(document).get("draftlane.dev/pool"))
        return {labels(document)["draftlane.dev/pool"]: Engine(document) for document in sets}

    @cached_property
    def jobs(self) -> dict[str, Engine]:
        """The compile Jobs by their pool."""
        found = (document for document in self.of_kind("Job") if labels(document).get("draftlane.dev/pool"))
        return {labels(document)["draftlane.dev/pool"]: Engine(document) for document in found}


@dataclass(frozen=True)
class Engine:
    """A workload that runs `vllm serve`: its image, flags and environment."""

    document: Document

    @property
    def name(self) -> str:
        """Kind and name."""
        return f"{self.document['kind']} {self.document['metadata']['name']}"

    @property
    def pod(self) -> Mapping[str, Any]:
        """Its pod's specification."""
        return self.document["spec"]["template"]["spec"]  # type: ignore[no-any-return]

    @property
    def container(self) -> Mapping[str, Any]:
        """The container that runs vLLM."""
        return self.pod["containers"][0]  # type: ignore[no-any-return]

    @property
    def image(self) -> str:
        """Its image, tag included."""
        return str(self.container["image"])

    @property
    def args(self) -> list[str]:
        """What follows `vllm serve`."""
        return list(self.container["args"])

    @property
    def env(self) -> dict[str, str]:
        """Environment variables that have a plain value."""
        return {entry["name"]: entry["value"] for entry in self.container.get("env", ()) if "value" in entry}


def labels(document: Document) -> Mapping[str, str]:
    """Return an object's labels."""
    return document["metadata"].get("labels") or {}


def overlays() -> list[str]:
    """Return all kustomizations that an engineer applies, by their path below overlays/."""
    return sorted(str(path.parent.relative_to(OVERLAYS)) for path in OVERLAYS.rglob("kustomization.yaml"))


@lru_cache(maxsize=32)
def render(overlay: str) -> Rendered:
    """Build an overlay; raises RenderError with kubectl's words."""
    done = subprocess.run(
        [BIN / "kubectl", "kustomize", OVERLAYS / overlay], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RenderError(f"{overlay}: {done.stderr.strip()}")
    return Rendered(overlay, tuple(yaml.load_all(done.stdout, Loader=yaml.CSafeLoader)))


def pods(rendered: Rendered) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every pod specification with the name of what makes it."""
    for document in rendered.of_kind("Deployment", "StatefulSet", "Job", "DaemonSet"):
        yield f"{document['kind']} {document['metadata']['name']}", document["spec"]["template"]["spec"]


def containers(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a pod's containers, those that run first included."""
    return [*pod.get("initContainers", ()), *pod["containers"]]
