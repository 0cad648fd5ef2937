"""Everything under deploy/ passes its checks, and every check notices what it is there for."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.check import contracts, integrations, manifests, privileges, rules, schemas, tools, vllm
from deploy.check.__main__ import CHECKS, main
from deploy.check.documents import BIN, DEPLOY, Finding, Rendered, RenderError, containers, overlays, pods, render
from deploy.check.manifests import image_problem

FUSED = "trn2-fused-draft"
Change = Callable[[dict[str, Any]], None]


def test_all_of_deploy_is_without_findings() -> None:
    """`make deploy-check` finds nothing: overlays, schemas, contracts, Dockerfiles, YAML, rules, Compose, IAM, Envoy."""
    assert [str(finding) for check in CHECKS for finding in check()] == []
    assert set(overlays()) >= {"trn2-fused-draft", "trn2-fused-draft-dra", "trn2-eagle3", "gpu", "local"}


def test_findings_are_printed_and_fail(capsys: pytest.CaptureFixture[str]) -> None:
    """A finding is told with its place, and the command exits with 1."""

    def broken() -> Iterator[Finding]:
        yield Finding("somewhere", "something")

    assert main((broken,)) == 1
    assert "somewhere: something" in capsys.readouterr().err


def test_the_operators_rules_are_those_of_prometheus() -> None:
    """The PrometheusRule is written from the rule files, and is up to date."""
    assert rules.FILE.read_text(encoding="utf-8") == rules.text()


def changed(overlay: str, kind: str, name: str, change: Change) -> Rendered:
    """Return an overlay with one object changed."""
    documents = deepcopy(render(overlay).documents)
    for document in documents:
        found = document["metadata"]["name"]
        if document["kind"] == kind and (found == name or found.rpartition("-")[0] == name):
            change(document)  # type: ignore[arg-type]
            return Rendered(overlay, documents)
    raise AssertionError(f"{overlay} has no {kind} {name}")


def container(document: dict[str, Any]) -> dict[str, Any]:
    """Return the first container of a workload."""
    return document["spec"]["template"]["spec"]["containers"][0]  # type: ignore[no-any-return]


def flag(name: str, value: str) -> Change:
    """Set a flag of vLLM."""

    def change(document: dict[str, Any]) -> None:
        args = container(document)["args"]
        args[args.index(name) + 1] = value

    return change


def speculation(**fields: Any) -> Change:
    """Change the speculative configuration."""

    def change(document: dict[str, Any]) -> None:
        args = container(document)["args"]
        at = args.index("--speculative-config") + 1
        args[at] = json.dumps(json.loads(args[at]) | fields)

    return change


def env(name: str, value: str) -> Change:
    """Set an environment variable of the first container."""

    def change(document: dict[str, Any]) -> None:
        entries = container(document)["env"]
        entries[:] = [{**entry, "value": value} if entry["name"] == name else entry for entry in entries]

    return change


def at(path: str, value: Any) -> Change:
    """Set what lies at a dotted path; numbers are places in lists, % stands for a slash in a key."""

    def change(document: dict[str, Any]) -> None:
        *way, last = (part.replace("%", "/") for part in path.split("/"))
        place: Any = document
        for part in way:
            place = place[int(part)] if part.isdigit() else place[part]
        place[int(last) if last.isdigit() else last] = value

    return change


POD = "spec/template/spec"
SPEC, BASE, GATEWAY = (
    ("StatefulSet", "engine-speculative"),
    ("StatefulSet", "engine-baseline"),
    ("Deployment", "draftlane"),
)
BROKEN: list[tuple[contracts.Rule, tuple[str, str], Change, str]] = [
    (contracts.drafts_are_no_longer_than_targets, SPEC, speculation(max_model_len=2048), "2048"),
    (contracts.artefacts_are_named_by_what_they_are, SPEC, flag("--max-num-seqs", "8"), "bs|8"),
    (contracts.artefacts_are_named_by_what_they_are, SPEC, speculation(num_speculative_tokens=5), "named"),
    (contracts.artefacts_are_named_by_what_they_are, BASE, flag("--max-model-len", "2048"), "2048"),
    (contracts.artefacts_are_named_by_what_they_are, BASE, env("NEURON_COMPILED_ARTIFACTS", "/artefacts/x"), "tp<n>"),
    (
        contracts.artefacts_are_named_by_what_they_are,
        BASE,
        at(f"{POD}/initContainers/0/env/0/value", "/artefacts/other"),
        "looks at",
    ),
    (contracts.chips_make_the_tensor_parallel_degree, SPEC, flag("--tensor-parallel-size", "64"), "64 on 8 chips"),
    (contracts.chips_make_the_tensor_parallel_degree, SPEC, env("NEURON_LOGICAL_NC_CONFIG", "1"), "LNC 1"),
    (
        contracts.chips_make_the_tensor_parallel_degree,
        SPEC,
        at(f"{POD}/containers/0/resources/limits/aws.amazon.com%neuron", "4"),
        "on 4 chips",
    ),
    (contracts.pools_are_the_engines, SPEC, flag("--max-num-seqs", "8"), "slots is 4"),
    (contracts.pools_are_the_engines, BASE, flag("--max-model-len", "4096"), "max_model_len is 1024"),
    (contracts.pools_are_the_engines, BASE, flag("--served-model-name", "qwen"), "served_model"),
    (contracts.pools_are_the_engines, BASE, flag("--port", "8001"), "replica urls"),
    (contracts.pools_are_the_engines, SPEC, speculation(num_speculative_tokens=5), "window is 7"),
    (contracts.pools_are_the_engines, SPEC, speculation(model="/models/qwen3-0.6b"), "draft is"),
    (contracts.pools_are_the_engines, BASE, at("spec/replicas", 2), "replica urls"),
    (contracts.pools_are_the_engines, BASE, at(f"{POD}/containers/0/image", "vllm/vllm-openai:v0.32.0"), "engine is"),
    (contracts.pools_differ_in_speculation_alone, BASE, flag("--max-num-seqs", "8"), "args"),
    (contracts.pools_differ_in_speculation_alone, SPEC, env("VLLM_USE_V1", "1"), "env"),
    (contracts.pools_differ_in_speculation_alone, SPEC, at("spec/replicas", 2), "replicas"),
    (contracts.commands_are_known, SPEC, flag("--override-neuron-config", '{"fused": true}'), "no field 'fused'"),
    (
        contracts.commands_are_known,
        SPEC,
        at(f"{POD}/containers/0/args/13", "--additional-config"),
        "has no --additional-config",
    ),
    (contracts.variables_are_read, SPEC, at(f"{POD}/containers/0/env/1/name", "VLLM_USE_V2"), "reads VLLM_USE_V2"),
    (contracts.what_is_compiled_is_what_is_served, BASE, flag("--max-num-seqs", "8"), "compile-baseline"),
    (contracts.what_is_compiled_is_what_is_served, SPEC, env("VLLM_USE_V1", "1"), "compile-speculative"),
    (contracts.what_is_compiled_is_what_is_served, SPEC, speculation(model="/models/qwen3-8b"), "nothing downloads"),
    (contracts.labels_are_those_of_the_pool, ("Service", "engine-baseline"), at("metadata/name", "other"), "Service"),
    (contracts.configuration_is_read, GATEWAY, at(f"{POD}/containers/0/env/0/name", "OTHER"), "DRAFTLANE_ADMIN_KEY"),
    (contracts.configuration_is_read, GATEWAY, at(f"{POD}/containers/0/ports/1/containerPort", 9090), "8081"),
    (contracts.configuration_is_read, GATEWAY, at(f"{POD}/terminationGracePeriodSeconds", 30), "drain_seconds"),
    (
        contracts.configuration_is_read,
        GATEWAY,
        at(f"{POD}/containers/0/volumeMounts/1/mountPath", "/data"),
        "journal|outbox",
    ),
    (manifests.images_are_pinned, GATEWAY, at(f"{POD}/containers/0/image", "draftlane:latest"), "moves"),
    (manifests.images_are_pinned, BASE, at(f"{POD}/initContainers/0/image", "engine"), "no tag"),
    (manifests.references_exist, GATEWAY, at(f"{POD}/serviceAccountName", "nobody"), "ServiceAccount"),
    (manifests.references_exist, GATEWAY, at(f"{POD}/volumes/0/configMap/name", "none"), "ConfigMap none"),
    (manifests.references_exist, GATEWAY, at(f"{POD}/volumes/1/name", "other"), "volume journal"),
    (manifests.references_exist, GATEWAY, at(f"{POD}/containers/0/readinessProbe/httpGet/port", "web"), "web"),
    (manifests.selectors_select, ("Service", "draftlane"), at("spec/ports/0/targetPort", "web"), "web"),
    (manifests.selectors_select, ("Service", "valkey"), at("spec/selector", {"a": "b"}), "no pod"),
    (
        manifests.selectors_select,
        ("PodMonitor", "engines"),
        at("spec/podMetricsEndpoints/0/port", "metrics"),
        "metrics",
    ),
    (
        manifests.selectors_select,
        ("HorizontalPodAutoscaler", "draftlane"),
        at("spec/scaleTargetRef/name", "x"),
        "x is not",
    ),
    (manifests.pods_are_modest, GATEWAY, at(f"{POD}/securityContext/runAsNonRoot", value=False), "root"),
    (manifests.pods_are_modest, GATEWAY, at(f"{POD}/containers/0/resources", {}), "requests"),
    (manifests.pods_are_modest, BASE, at(f"{POD}/containers/0/securityContext", {}), "privileges"),
    (manifests.pods_are_modest, BASE, at(f"{POD}/automountServiceAccountToken", value=True), "token"),
    (manifests.objects_can_be_applied, GATEWAY, at("metadata/annotations", {"x": "y" * 300_000}), "bytes"),
    (manifests.objects_can_be_applied, GATEWAY, at("metadata/namespace", "default"), "namespace"),
    (manifests.egress_is_closed, ("NetworkPolicy", "engines"), at("spec/egress", [{}]), "engines"),
    (manifests.egress_is_closed, ("NetworkPolicy", "default-deny"), at("spec/ingress", [{}]), "denied"),
]


@pytest.mark.parametrize(
    ("rule", "place", "change", "words"), BROKEN, ids=[f"{i}-{case[0].__name__}" for i, case in enumerate(BROKEN)]
)
def test_every_rule_notices_what_it_is_there_for(
    rule: contracts.Rule, place: tuple[str, str], change: Change, words: str
) -> None:
    """One thing changed in an overlay that is right, and its rule says so in words that name it."""
    found = list(rule(changed(FUSED, *place, change)))

    assert found
    assert any(word in problem for problem in found for word in words.split("|")), found


def test_every_rule_has_been_broken() -> None:
    """There is no rule without a case above, but those that only a folder's absence could break."""
    assert {rule for rule, *_ in BROKEN} == {*contracts.RULES, *manifests.RULES}


def test_chips_come_one_way_only() -> None:
    """An engine by the device plugin and another by a claim is told, and so is a claim whose LNC differs."""
    dra = f"{FUSED}-dra"
    both = changed(dra, *BASE, at(f"{POD}/containers/0/resources/limits/aws.amazon.com%neuron", "8"))
    other = changed(dra, "ResourceClaimTemplate", "eight-neurons", _lnc_one)
    fewer = changed(dra, "ResourceClaimTemplate", "eight-neurons", at("spec/spec/devices/requests/0/exactly/count", 4))

    assert any("one way" in problem for problem in contracts.chips_make_the_tensor_parallel_degree(both))
    assert any("in the claim" in problem for problem in contracts.chips_make_the_tensor_parallel_degree(other))
    assert any("on 4 chips" in problem for problem in contracts.chips_make_the_tensor_parallel_degree(fewer))


def _lnc_one(document: dict[str, Any]) -> None:
    document["spec"]["spec"]["devices"]["config"][0]["opaque"]["parameters"]["logicalNeuronCore"] = 1


def test_unknown_fields_and_resources_are_told_by_the_schemas() -> None:
    """Strictly: a field that Kubernetes, DRA or the operator does not know, a wrong type, a kind that does not exist."""
    wrong = changed(FUSED, *GATEWAY, at("spec/replica", 2)).of_kind("Deployment")
    claim = changed(
        f"{FUSED}-dra",
        "ResourceClaimTemplate",
        "eight-neurons",
        at("spec/spec/devices/requests/0/deviceClassName", "x"),
    ).of_kind("ResourceClaimTemplate")
    monitor = changed(FUSED, "PodMonitor", "engines", at("spec/podMetricsEndpoints/0/intervall", "15s"))
    rule = changed(FUSED, "PrometheusRule", "draftlane", at("spec/groups/0/rules/0/for", "one minute"))

    assert "replica" in str(next(schemas.core(wrong)))
    assert "deviceClassName" in str(next(schemas.core(claim)))
    told = schemas.custom([*monitor.of_kind("PodMonitor"), *rule.of_kind("PrometheusRule"), _strange()])
    assert [finding.where.split()[0] for finding in told] == ["PodMonitor", "PrometheusRule", "PodMonitr"]


def _strange() -> dict[str, Any]:
    return {"apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitr", "metadata": {"name": "x"}}


def test_what_does_not_render_is_told() -> None:
    """A kustomization that is not there is an error in kubectl's words."""
    with pytest.raises(RenderError, match="nowhere"):
        render("nowhere")


STOCK = "vllm/vllm-openai:v0.32.0"
V0 = next(image for image, release in vllm.IMAGES.items() if release is vllm.V0)
PLUGIN = next(image for image, release in vllm.IMAGES.items() if release is vllm.PLUGIN)


@pytest.mark.parametrize(
    ("image", "args", "words"),
    [
        (STOCK, ["/m", "--override-neuron-config", "{}"], "has no --override-neuron-config"),
        (PLUGIN, ["/m", "--override-neuron-config", "{}"], "has no --override-neuron-config"),
        (PLUGIN, ["/m", "--additional-config", '{"neuron_config": {}}'], "no field 'neuron_config'"),
        (V0, ["/m", "--per-request-spec-decode-metrics", "summary"], "has no --per-request"),
        (STOCK, ["/m", "--max-num-seqs", "four"], "takes int"),
        (STOCK, ["/m", "--max-num-seqs"], "lacks its value"),
        (STOCK, ["/m", "--port", "1", "--port=2"], "stands twice"),
        (STOCK, ["--port", "1"], "the model comes first"),
        (STOCK, ["/m", "--speculative-config", "{"], "takes JSON"),
        (STOCK, ["/m", "--speculative-config", "[]"], "takes a JSON object"),
        (STOCK, ["/m", "--speculative-config", '{"method": "magic", "num_speculative_tokens": 5}'], "magic"),
        (STOCK, ["/m", "--speculative-config", '{"method": "ngram"}'], "num_speculative_tokens"),
        (STOCK, ["/m", "--speculative-config", '{"method": "eagle3", "num_speculative_tokens": 5}'], "draft's model"),
        (PLUGIN, ["/m", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 5}'], "ngram"),
        ("vllm/vllm-openai:v9.9.9", ["/m"], "nothing is known"),
    ],
)
def test_a_command_line_of_another_vllm_is_refused(image: str, args: list[str], words: str) -> None:
    """Flags, fields and drafting methods belong to an image; what it would not take is told."""
    assert words in "; ".join(vllm.read(args, image).problems)


def test_a_command_line_is_read_into_typed_values() -> None:
    """Numbers, switches and JSON come out as what they are, with = or without."""
    read = vllm.read(["/m", "--port=8000", "--enforce-eager", "--gpu-memory-utilization", "0.9"], STOCK)

    assert read.problems == []
    assert (read.model, read.values) == (
        "/m",
        {"--port": 8000, "--enforce-eager": True, "--gpu-memory-utilization": 0.9},
    )


def test_stock_command_lines_are_taken_by_the_reader_of_choice() -> None:
    """Where the lab has a real vLLM its own parser takes them, elsewhere the table of its flags does."""
    for engine in render("gpu").engines.values():
        assert vllm.IMAGES[engine.image] is vllm.STOCK
        refused = vllm.ask_vllm(engine.args) if vllm.lab_is_there() else vllm.read(engine.args, engine.image).problems
        assert not refused


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        ("valkey/valkey:8.1.4", None),
        ("valkey/valkey", "no tag"),
        ("valkey/valkey:latest", "moves"),
        ("host.example:5000/valkey", "no tag"),
        ("host.example:5000/valkey:8.1.4", None),
    ],
)
def test_images_without_a_fixed_tag_are_told(image: str, problem: str | None) -> None:
    """A registry's port is no tag, latest is none either."""
    told = image_problem(image)

    assert told is None if problem is None else problem in str(told)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"Action": ["logs:*"]}, "wildcard"),
        ({"Action": ["logs:PutLogEvent"]}, "no action"),
        ({"Resource": "*"}, "every resource"),
        ({"Resource": "*", "Condition": {"StringEquals": {"logs:namespace": "x"}}}, "no condition"),
    ],
)
def test_a_policy_that_allows_too_much_is_told(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """Wildcards, actions and conditions that do not exist, and everything as a resource are findings."""
    right = {
        "Sid": "Write",
        "Effect": "Allow",
        "Action": ["logs:PutLogEvents"],
        "Resource": "arn:aws:logs:::log-group:x",
    }
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({"Version": "2012-10-17", "Statement": [right | change]}))

    assert words in " ".join(str(finding) for finding in tools.iam(path))


def test_a_policy_that_is_no_json_is_told(tmp_path: Path) -> None:
    """What does not parse is a finding, not a traceback."""
    (tmp_path / "policy.json").write_text("{")

    assert "no JSON" in str(next(tools.iam(tmp_path / "policy.json")))


def test_bad_dockerfiles_yaml_compose_and_units_are_told(tmp_path: Path) -> None:
    """Each tool speaks when there is something to say: an unpinned base, a bad line, an unknown key, a wrong setting."""
    (tmp_path / "Dockerfile").write_text("FROM debian\nRUN cd /tmp && sudo ls\n")
    (tmp_path / "bad.yaml").write_text("a: 1\na: 2\n")
    (tmp_path / "compose.yaml").write_text(
        "services:\n  x:\n    image: valkey\n    port: []\n    volumes: ['./none:/x']\n"
    )
    unit = tmp_path / "x.service"
    unit.write_text("[Service]\nExecStart=/bin/true\nTyp=exec\n")

    assert any("DL3006" in finding.what for finding in tools.hadolint([tmp_path / "Dockerfile"]))
    assert any("no tag" in finding.what for finding in tools.dockerfile_images(tmp_path / "Dockerfile"))
    assert any("duplication" in finding.what for finding in tools.yamllint([tmp_path]))
    told = "; ".join(str(finding) for finding in tools.compose(tmp_path / "compose.yaml"))
    assert all(words in told for words in ("'port'", "no tag", "not there"))
    assert any("Typ" in finding.what for finding in tools.systemd(unit))


COMPOSE, UNIT = "docker/compose.yaml", "systemd/draftlane.service"


@pytest.mark.parametrize(
    ("check", "name", "old", "new"),
    [
        (privileges.image, "docker/Dockerfile", "USER 10001:10001\n", ""),
        (privileges.image, "docker/Dockerfile", "USER 10001:10001", "USER 0:0"),
        (privileges.image, "docker/lab.Dockerfile", "USER 10001:10001", "USER draftlane"),
        (privileges.compose, COMPOSE, "    read_only: true\n", ""),
        (privileges.compose, COMPOSE, "ALL", "NET_RAW"),
        (privileges.compose, COMPOSE, "no-new-privileges:true", "label:disable"),
        (privileges.compose, COMPOSE, "    read_only: true\n", "    read_only: true\n    privileged: true\n"),
        (privileges.unit, UNIT, "User=draftlane\n", ""),
        (privileges.unit, UNIT, "NoNewPrivileges=yes\n", ""),
        (privileges.unit, UNIT, "CapabilityBoundingSet=\n", "CapabilityBoundingSet=CAP_SYS_ADMIN\n"),
    ],
)
def test_any_privilege_too_many_is_told(
    check: Callable[[Path], Iterator[Finding]], name: str, old: str, new: str, tmp_path: Path
) -> None:
    """Images, Compose and the unit give the gateway nothing that it does not need, and what would is noticed."""
    text, changed = (DEPLOY / name).read_text(), tmp_path / Path(name).name
    assert text.count(old) == 1
    changed.write_text(text.replace(old, new))

    assert list(check(DEPLOY / name)) == []
    assert len(list(check(changed))) == 1


def test_bad_rules_are_told(tmp_path: Path) -> None:
    """Promtool refuses an expression that does not parse."""
    rule = tmp_path / "rules.yml"
    rule.write_text("groups:\n  - name: x\n    rules:\n      - record: y\n        expr: sum(\n")
    tool = tools.promtool()

    assert tool is not None
    assert tools.run([tool, "check", "rules", rule], where="promtool")


def test_envoys_unknown_fields_are_told(tmp_path: Path) -> None:
    """A misspelt field deep inside a filter is found, and so is a filter that Envoy does not have."""
    text = (DEPLOY / "integrations" / "envoy.yaml").read_text(encoding="utf-8")
    for right, wrong in (("path_prefix: ", "path_prefx: "), ("ext_authz.v3.ExtAuthz\n", "ext_authz.v3.ExtAuth\n")):
        path = tmp_path / "envoy.yaml"
        path.write_text(text.replace(right, wrong))
        assert list(integrations.envoy(path))


def test_the_readme_speaks_of_what_is_there() -> None:
    """Files and overlays that it names exist, every overlay is in its table, and its Secret has the keys that pods ask for."""
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:deploy/|k8s/|integrations/|cloudwatch/|systemd/|tests/)[\w./-]+)`", text))
    missing = [name for name in named if not any((base / name).exists() for base in (DEPLOY, DEPLOY.parent))]
    asked = {
        entry["valueFrom"]["secretKeyRef"]["key"]
        for name in overlays()
        for _, pod in pods(render(name))
        for container in containers(pod)
        for entry in container.get("env", ())
        if "secretKeyRef" in entry.get("valueFrom", {})
    }

    assert missing == []
    assert all(f"`{name}`" in text for name in overlays() if "/" not in name)
    assert asked == set(re.findall(r"--from-literal=([\w-]+)=", text))


def test_an_external_redis_takes_valkeys_place(tmp_path: Path) -> None:
    """With the component there is nothing of Valkey left, and the gateway still asks the Secret for the address."""
    k8s = os.path.relpath(DEPLOY / "k8s", tmp_path)
    kustomization = {"resources": [f"{k8s}/overlays/gpu"], "components": [f"{k8s}/components/external-redis"]}
    (tmp_path / "kustomization.yaml").write_text(json.dumps(kustomization))
    done = subprocess.run([BIN / "kubectl", "kustomize", tmp_path], capture_output=True, text=True, check=True)
    documents = list(yaml.safe_load_all(done.stdout))
    rendered = Rendered("gpu", tuple(documents))
    named = {document["metadata"]["name"].rpartition("-")[0] or document["metadata"]["name"] for document in documents}

    assert "valkey" not in named
    assert len(documents) == len(render("gpu").documents) - 4
    assert not [problem for rule in manifests.RULES for problem in rule(rendered)]


@pytest.mark.parametrize("name", ["Dockerfile", "lab.Dockerfile"])
def test_what_an_image_copies_is_there_and_not_ignored(name: str) -> None:
    """Every file that is copied from the repository exists, and the ignore file beside the Dockerfile lets it through."""
    lines = (DEPLOY / "docker" / name).read_text(encoding="utf-8").splitlines()
    ignored = (DEPLOY / "docker" / f"{name}.dockerignore").read_text(encoding="utf-8").split()
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    copied = [
        source for line in lines if line.startswith("COPY ") and "--from" not in line for source in line.split()[1:-1]
    ]

    assert copied
    assert [source for source in copied if not (DEPLOY.parent / source).exists()] == []
    assert [source for source in copied if source not in allowed] == []
