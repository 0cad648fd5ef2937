"""What must hold in any good manifest: pinned images, references that exist, selectors that select, modest pods, closed doors.

Each rule takes a rendered overlay and yields what is wrong in words; it says nothing where it does not apply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from deploy.check.contracts import Rule
from deploy.check.documents import Document, Rendered, containers, pods

_APPLY_LIMIT: Final = 256 * 1024  # kubectl apply keeps a copy in an annotation, which may not be longer
_IMAGE: Final = re.compile(r"^[\w.\-/:]+?:(?P<tag>[\w.\-]+)(@sha256:[0-9a-f]{64})?$")


def images_are_pinned(rendered: Rendered) -> Iterator[str]:
    """Every image has a tag, and none is latest."""
    for name, pod in pods(rendered):
        for container in containers(pod):
            problem = image_problem(container["image"])
            if problem:
                yield f"{name}: {problem}"


def image_problem(image: str) -> str | None:
    """Return what is wrong with an image's name."""
    found = _IMAGE.match(image)
    if found is None or "/" in found["tag"]:
        return f"{image} has no tag"
    return f"{image} moves" if found["tag"] in {"latest", "main", "nightly", "stable"} else None


def references_exist(rendered: Rendered) -> Iterator[str]:
    """Every ConfigMap and ServiceAccount that a pod names is there, and every port that something names is one of the pod's."""
    there = {(document["kind"], document["metadata"]["name"]) for document in rendered.documents}
    for name, pod in pods(rendered):
        account = pod.get("serviceAccountName")
        if account and ("ServiceAccount", account) not in there:
            yield f"{name}: there is no ServiceAccount {account}"
        maps = [volume["configMap"]["name"] for volume in pod.get("volumes", ()) if "configMap" in volume]
        maps += [source["configMapRef"]["name"] for c in containers(pod) for source in c.get("envFrom", ())]
        for held in maps:
            if ("ConfigMap", held) not in there:
                yield f"{name}: there is no ConfigMap {held}"
        volumes = {volume["name"] for volume in pod.get("volumes", ())} | _claimed(rendered, name)
        for container in containers(pod):
            for mount in container.get("volumeMounts", ()):
                if mount["name"] not in volumes:
                    yield f"{name}: there is no volume {mount['name']}"
            yield from _probed(name, container)


def _claimed(rendered: Rendered, name: str) -> set[str]:
    """Return the volumes that a StatefulSet makes by itself."""
    return {
        template["metadata"]["name"]
        for document in rendered.of_kind("StatefulSet")
        if name == f"StatefulSet {document['metadata']['name']}"
        for template in document["spec"].get("volumeClaimTemplates", ())
    }


def _probed(name: str, container: Mapping[str, Any]) -> Iterator[str]:
    ports = {port["name"] for port in container.get("ports", ())}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        for way in ("httpGet", "tcpSocket"):
            port = container.get(probe, {}).get(way, {}).get("port")
            if port is not None and port not in ports:
                yield f"{name}: {probe} asks port {port}, which {container['name']} does not have"


def selectors_select(rendered: Rendered) -> Iterator[str]:
    """Services, budgets, policies and monitors select pods that are there, and name ports that those have."""
    running = [
        (document["spec"]["template"]["metadata"]["labels"], document["spec"]["template"]["spec"])
        for document in rendered.of_kind("Deployment", "StatefulSet", "Job")
    ]
    for document in rendered.of_kind("Service", "PodDisruptionBudget", "PodMonitor", "NetworkPolicy"):
        name = f"{document['kind']} {document['metadata']['name']}"
        wanted, ports = _selected(document)
        found = [pod for given, pod in running if wanted.items() <= given.items()]
        if not found:
            # A policy may be for pods that another overlay brings: those of the engines, where they are embedded.
            if document["kind"] != "NetworkPolicy":
                yield f"{name} selects no pod"
            continue
        have = {p[key] for pod in found for c in containers(pod) for p in c.get("ports", ()) for key in p}
        for port in ports:
            if port not in have:
                yield f"{name}: none of its pods has the port {port}"
    for scaler in rendered.of_kind("HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        if rendered.named(target["kind"], target["name"]) is None:
            yield f"the autoscaler's {target['kind']} {target['name']} is not there"


def _selected(document: Document) -> tuple[Mapping[str, str], list[str | int]]:
    """Return the labels that an object selects by, and the ports that it names."""
    spec = document["spec"]
    match document["kind"]:
        case "Service":
            return spec["selector"], [port["targetPort"] for port in spec["ports"]]
        case "PodMonitor":
            return spec["selector"]["matchLabels"], [endpoint["port"] for endpoint in spec["podMetricsEndpoints"]]
        case "NetworkPolicy":
            entries = [port["port"] for rule in spec.get("ingress", ()) for port in rule.get("ports", ())]
            return spec["podSelector"].get("matchLabels", {}), entries
    return spec["selector"]["matchLabels"], []


def pods_are_modest(rendered: Rendered) -> Iterator[str]:
    """Every container asks for what it needs and gains no privileges; the gateway is nobody, on a read-only file system."""
    for name, pod in pods(rendered):
        if pod.get("automountServiceAccountToken") is not False:
            yield f"{name} carries a token for the API server that it has no use for"
        for container in pod["containers"]:
            if not container.get("resources", {}).get("requests"):
                yield f"{name}: {container['name']} requests no resources"
            if container.get("securityContext", {}).get("allowPrivilegeEscalation") is not False:
                yield f"{name}: {container['name']} may gain privileges"
    gateway = rendered.named("Deployment", "draftlane")
    if gateway is not None:
        pod = gateway["spec"]["template"]["spec"]
        held = pod["containers"][0]["securityContext"]
        if not pod["securityContext"].get("runAsNonRoot") or not held.get("readOnlyRootFilesystem"):
            yield "the gateway may run as root or write to its image"
        if held.get("capabilities") != {"drop": ["ALL"]}:
            yield "the gateway keeps capabilities"


def objects_can_be_applied(rendered: Rendered) -> Iterator[str]:
    """No object is larger than kubectl apply takes, all are in the namespace, and none stands twice."""
    seen = set()
    for document in rendered.documents:
        key = (document["kind"], document["metadata"]["name"])
        if key in seen:
            yield f"{' '.join(key)} stands twice"
        seen.add(key)
        size = len(json.dumps(document))
        if size > _APPLY_LIMIT:
            yield f"{' '.join(key)} takes {size} bytes; kubectl apply takes {_APPLY_LIMIT}"
        cluster = document["kind"] in {"Namespace", "PersistentVolume"}
        if not cluster and document["metadata"].get("namespace") != "draftlane":
            yield f"{' '.join(key)} is in no namespace of ours"


def egress_is_closed(rendered: Rendered) -> Iterator[str]:
    """Pods that serve are under a policy for both directions, and engines reach nothing."""
    policies = rendered.of_kind("NetworkPolicy")
    if rendered.named("Deployment", "draftlane") is None:
        return
    names = {policy["metadata"]["name"]: policy["spec"] for policy in policies}
    if names.get("default-deny", {}).get("podSelector") != {} or names["default-deny"].get("ingress"):
        yield "what no policy names is not denied"
    if names.get("engines", {}).get("egress") != []:
        yield "engines may reach the network"


RULES: Final[tuple[Rule, ...]] = (
    images_are_pinned,
    references_exist,
    selectors_select,
    pods_are_modest,
    objects_can_be_applied,
    egress_is_closed,
)
