"""`python -m deploy.check`: run every check of deploy/ and print what is wrong; exits 1 when anything is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator

from deploy.check import contracts, integrations, manifests, privileges, rules, schemas, tools, vllm
from deploy.check.documents import DEPLOY, Finding, RenderError, overlays, render


def every_overlay() -> Iterator[Finding]:
    """Render every overlay, and check it by schemas, rules of good manifests, and contracts with the gateway."""
    customs = []
    for name in overlays():
        try:
            rendered = render(name)
        except RenderError as error:
            yield Finding("kustomize", str(error))
            continue
        plain = [document for document in rendered.documents if not schemas.is_custom(document)]
        customs += [document for document in rendered.documents if schemas.is_custom(document)]
        yield from (Finding(f"{name}: {found.where}", found.what) for found in schemas.core(plain))
        for rule in (*contracts.RULES, *manifests.RULES):
            yield from (Finding(f"{name}: {rule.__name__}", what) for what in rule(rendered))
        yield from _real_parser(name)
    yield from schemas.custom(customs)


def _real_parser(name: str) -> Iterator[Finding]:
    """Give stock command lines to a real vLLM, where the lab has one."""
    if not vllm.lab_is_there():
        return
    for engine in render(name).engines.values():
        if vllm.IMAGES.get(engine.image) is vllm.STOCK:
            refused = vllm.ask_vllm(engine.args)
            if refused:
                yield Finding(f"{name}: {engine.name}", refused)


def other_tools() -> Iterator[Finding]:
    """Let the tools look at what is theirs."""
    docker = DEPLOY / "docker"
    yield from tools.yamllint([DEPLOY])
    yield from tools.hadolint([docker / "Dockerfile", docker / "lab.Dockerfile"])
    yield from tools.prometheus(DEPLOY)
    yield from tools.compose(docker / "compose.yaml")
    for path in (docker / "Dockerfile", docker / "lab.Dockerfile"):
        yield from tools.dockerfile_images(path)
        yield from privileges.image(path)
    yield from privileges.compose(docker / "compose.yaml")
    for look in (tools.systemd, privileges.unit):
        yield from look(DEPLOY / "systemd" / "draftlane.service")
    for path in sorted((DEPLOY / "cloudwatch" / "iam").glob("*.json")):
        yield from tools.iam(path)
    yield from integrations.envoy(DEPLOY / "integrations" / "envoy.yaml")
    yield from integrations.gateway_api(DEPLOY / "integrations" / "gateway-api.yaml")
    if rules.FILE.read_text(encoding="utf-8") != rules.text():
        yield Finding("rules.yaml", "is not what deploy/prometheus/rules says: run python -m deploy.check.rules")


Check = Callable[[], Iterator[Finding]]
CHECKS: tuple[Check, ...] = (every_overlay, other_tools)


def main(checks: Iterable[Check] = CHECKS) -> int:
    """Run all; 1 when something is wrong."""
    found = [finding for check in checks for finding in check()]
    for finding in found:
        print(finding, file=sys.stderr)
    print(f"deploy: {len(overlays())} overlays, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
