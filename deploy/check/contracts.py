"""What must hold between engines' flags, their artefacts, their chips and the gateway's configuration.

Each rule takes a rendered overlay and yields what is wrong in words; it says nothing where it does not apply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, Final

from deploy.check.documents import OVERLAYS, Document, Engine, Rendered, containers, labels, overlays, render
from deploy.check.vllm import IMAGES, read
from gateway.config import Config, ConfigError, PoolConfig, load

Rule = Callable[[Rendered], Iterator[str]]
CORES_PER_CHIP: Final = 8  # of Trainium2
_ARTEFACTS: Final = re.compile(r"/artefacts/(?P<models>.+)-tp(\d+)-bs(\d+)-len(\d+)-k(\d+)-sdk([\d.]+)$")


class Anything(dict[str, str]):
    """An environment in which every variable that a configuration asks for is set, each to something of its own."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value for any name."""
        del default
        return f"value of {key}"

    def __missing__(self, key: str) -> str:
        return f"value of {key}"


def config_of(rendered: Rendered) -> Config | None:
    """Return the gateway's configuration as it lies in the ConfigMap; None where the overlay has none."""
    held = rendered.named("ConfigMap", "draftlane")
    if held is None:
        return None
    path = OVERLAYS / rendered.name / "config.toml"
    assert held["data"]["config.toml"] == path.read_text(encoding="utf-8")
    return load(path, Anything())


def configuration_is_read(rendered: Rendered) -> Iterator[str]:
    """The gateway takes its configuration, and finds every environment variable and path that it names."""
    gateway = rendered.named("Deployment", "draftlane")
    if gateway is None:
        return
    try:
        config = config_of(rendered)
    except ConfigError as error:
        yield from error.problems
        return
    if config is None:
        yield "there is no ConfigMap draftlane"
        return
    pod = gateway["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    given = {entry["name"] for entry in container.get("env", ())}
    for name in sorted(_named_variables(config) - given):
        yield f"config.toml names the environment variable {name}, which the pod does not have"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for name, port in (("http", config.server.port), ("admin", config.server.admin_port)):
        if ports.get(name) != port:
            yield f"the pod's port {name} is {ports.get(name)}, config.toml says {port}"
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    for path in (config.store.journal, config.store.path, container["args"][-1]):
        if path is not None and not any(path.startswith(f"{mount}/") for mount in mounts):
            yield f"{path} lies on no volume, and the root file system is read-only"
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    if pod["terminationGracePeriodSeconds"] < config.server.drain_seconds + pause + 10:
        yield "terminationGracePeriodSeconds leaves running streams less than server.drain_seconds"


def _named_variables(config: Config) -> set[str]:
    named = [config.server.admin_key_env, config.store.url_env, *(pool.key_env for pool in config.pools)]
    return {name for name in (*named, *(key for tenant in config.tenants for key in tenant.key_env)) if name}


def commands_are_known(rendered: Rendered) -> Iterator[str]:
    """Every `vllm serve` is one that the vLLM of its image takes."""
    for engine in (*rendered.engines.values(), *rendered.jobs.values()):
        for problem in read(engine.args, engine.image).problems:
            yield f"{engine.name}: {problem}"


def variables_are_read(rendered: Rendered) -> Iterator[str]:
    """Every environment variable of an engine is one that something in its image reads."""
    for engine in (*rendered.engines.values(), *rendered.jobs.values()):
        release = IMAGES.get(engine.image)
        known = release.variables | {"NEURON_SDK"} if release else frozenset(engine.env)  # the SDK is for compile.sh
        for name in sorted(engine.env.keys() - known):
            yield f"{engine.name}: nothing in {engine.image} reads {name}"


def drafts_are_no_longer_than_targets(rendered: Rendered) -> Iterator[str]:
    """A draft's max_model_len does not exceed the target's."""
    for engine in rendered.engines.values():
        values = read(engine.args, engine.image).values
        draft = values.get("--speculative-config", {}).get("max_model_len", 0)
        if draft > values.get("--max-model-len", 0):
            yield f"{engine.name}: the draft's max_model_len {draft} is over the target's {values.get('--max-model-len')}"


def artefacts_are_named_by_what_they_are(rendered: Rendered) -> Iterator[str]:
    """An artefact path names models, tensor parallel, sequences, length, window and SDK, and they are those of the flags."""
    for engine in (*rendered.engines.values(), *rendered.jobs.values()):
        path = engine.env.get("NEURON_COMPILED_ARTIFACTS")
        if path is None:
            continue
        named = _ARTEFACTS.match(path)
        if named is None:
            yield f"{engine.name}: {path} does not say -tp<n>-bs<n>-len<n>-k<n>-sdk<version>"
            continue
        command = read(engine.args, engine.image)
        draft = command.values.get("--speculative-config", {})
        models = "+".join(model.rpartition("/")[2] for model in (command.model, draft.get("model")) if model)
        sdk = re.search(r"sdk([\d.]+)", engine.image)
        flags = [command.values.get(f"--{name}") for name in ("tensor-parallel-size", "max-num-seqs", "max-model-len")]
        should = [models, *flags, draft.get("num_speculative_tokens", 0), sdk and sdk[1]]
        if [str(part) for part in should] != list(named.groups()):
            yield f"{engine.name}: {path} is named for {named.groups()}, its flags say {tuple(should)}"
        for container in containers(engine.pod):
            for entry in container.get("env", ()):
                if entry["name"] == "NEURON_COMPILED_ARTIFACTS" and entry["value"] != path:
                    yield f"{engine.name}: {container['name']} looks at {entry['value']}"


def chips_make_the_tensor_parallel_degree(rendered: Rendered) -> Iterator[str]:
    """TP = chips · 8 / LNC, by the device plugin or by DRA and never by both in one overlay."""
    ways = set()
    for engine in (*rendered.engines.values(), *rendered.jobs.values()):
        if "NEURON_LOGICAL_NC_CONFIG" not in engine.env:
            continue
        logical = int(engine.env["NEURON_LOGICAL_NC_CONFIG"])
        chips, configured, way = _chips(rendered, engine)
        ways.add(way)
        degree = read(engine.args, engine.image).values.get("--tensor-parallel-size")
        if degree != chips * CORES_PER_CHIP // logical:
            yield f"{engine.name}: tensor parallel {degree} on {chips} chips with LNC {logical}"
        if configured not in (None, logical):
            yield f"{engine.name}: LNC is {logical} in the environment and {configured} in the claim"
    if len(ways) > 1:
        yield f"chips come by {' and '.join(sorted(ways))}; a node has one way"


def _chips(rendered: Rendered, engine: Engine) -> tuple[int, int | None, str]:
    """Return how many chips an engine gets, the LNC that its claim sets, and by which way."""
    limits = engine.container["resources"].get("limits", {})
    plugged = int(limits.get("aws.amazon.com/neuron", 0))
    claims = engine.pod.get("resourceClaims", ())
    if plugged:
        return plugged, None, "both" if claims else "device plugin"
    if not claims:
        return 0, None, "nothing"
    template = rendered.named("ResourceClaimTemplate", claims[0]["resourceClaimTemplateName"])
    if template is None:
        return 0, None, "a claim that is not there"
    devices = template["spec"]["spec"]["devices"]
    count = sum(request["exactly"]["count"] for request in devices["requests"])
    return count, devices["config"][0]["opaque"]["parameters"]["logicalNeuronCore"], "DRA"


def pools_are_the_engines(rendered: Rendered) -> Iterator[str]:
    """What the gateway believes of a pool is what its engines are started with, and their addresses are right."""
    if not rendered.engines:
        return
    config = config_of(rendered)
    assert config is not None
    pools = {pool.name: pool for pool in config.pools}
    if pools.keys() != rendered.engines.keys():
        yield f"pools are {sorted(pools)}, engines {sorted(rendered.engines)}"
        return
    for name, engine in rendered.engines.items():
        for what, believed, real in _compared(pools[name], engine):
            if believed != real:
                yield f"pool {name}: {what} is {believed!r}, its engines say {real!r}"


def _compared(pool: PoolConfig, engine: Engine) -> Iterator[tuple[str, object, object]]:
    """Yield what, as the gateway has it, as the engine has it."""
    command = read(engine.args, engine.image)
    values = command.values
    draft = values.get("--speculative-config", {})
    spec = engine.document["spec"]
    name, port = engine.document["metadata"]["name"], values.get("--port")
    drafters = {"ngram": "ngram", "eagle3": "eagle", "draft_model": "draft_model"}
    neuron = values.get("--additional-config", {}).get("override_neuron_config", {})
    real = "eagle" if neuron.get("enable_eagle_speculation") else drafters.get(draft.get("method"), "draft_model")
    version = re.search(r":v?(\d+\.\d+\.\d+)", engine.image)
    sdk = re.search(r"sdk[\d.]+", engine.image)
    engine_name = f"vllm-{version[1] if version else '?'}" + (f"-{sdk[0]}" if sdk else "")
    yield "kind", pool.kind, "speculative" if draft else "baseline"
    yield "served_model", pool.served_model, values.get("--served-model-name")
    yield "slots", pool.slots, values.get("--max-num-seqs")
    yield "max_model_len", pool.max_model_len, values.get("--max-model-len")
    yield "target", (pool.target or "").lower(), command.model.rpartition("/")[2]
    yield "engine", pool.engine, engine_name
    urls = [f"http://{name}-{i}.{spec['serviceName']}:{port}" for i in range(spec["replicas"])]
    yield "replica urls", [replica.url for replica in pool.replicas], urls
    if draft:
        yield "window", pool.window, draft.get("num_speculative_tokens")
        yield "draft", (pool.draft or "").lower(), str(draft.get("model")).rpartition("/")[2]
        yield "drafter", pool.drafter, real
        yield "greedy_only", pool.greedy_only, "enable_fused_speculation" in json.dumps(engine.args)


def pools_differ_in_speculation_alone(rendered: Rendered) -> Iterator[str]:
    """Baseline and speculative engines are one but for name, pool label, speculative configuration and artefact path."""
    plain = {pool: _without_speculation(engine.document, pool) for pool, engine in rendered.engines.items()}
    if len(plain) == 2 and plain["baseline"] != plain["speculative"]:
        yield from _differences(plain["baseline"], plain["speculative"], "engine")


def _without_speculation(document: Document, pool: str) -> Any:
    """Return a copy without what may differ."""
    copy: Any = deepcopy(document)
    # Names that end in the pool's, but for flags that begin like it.
    copy = json.loads(re.sub(rf'(?<!-)-{pool}(?=["-])', "", json.dumps(copy)).replace(f'"{pool}"', '"POOL"'))
    pod = copy["spec"]["template"]["spec"]
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        container["args"] = _plain_args(container.get("args", []))
        for entry in container.get("env", ()):
            if entry["name"] == "NEURON_COMPILED_ARTIFACTS":
                entry["value"] = "ARTEFACTS"
        container["env"] = sorted(container.get("env", []), key=lambda entry: str(entry["name"]))
    return copy


def _plain_args(args: list[str]) -> list[str]:
    plain: list[str] = []
    rest = iter(args)
    for arg in rest:
        if arg in ("--speculative-config", "--per-request-spec-decode-metrics"):
            next(rest)
        elif arg.startswith("{"):
            plain.append(json.dumps(_plain_json(json.loads(arg)), sort_keys=True))
        else:
            plain.append(arg)
    return plain


def _plain_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {k: _plain_json(v) for k, v in value.items() if not k.endswith("_speculation") and k != "is_eagle3"}


def _differences(one: Any, other: Any, path: str) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            yield from _differences(one.get(key), other.get(key), f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _differences(left, right, f"{path}[{index}]")
    elif one != other:
        yield f"baseline and speculative differ in {path}: {one!r}, {other!r}"


def labels_are_those_of_the_pool(rendered: Rendered) -> Iterator[str]:
    """An engine, its Service and its budget carry the same pool."""
    for pool, engine in rendered.engines.items():
        for kind in ("Service", "PodDisruptionBudget"):
            other = next((d for d in rendered.of_kind(kind) if labels(d).get("draftlane.dev/pool") == pool), None)
            if other is None or other["metadata"]["name"] != engine.document["metadata"]["name"]:
                yield f"pool {pool} has no {kind} of its own"


def what_is_compiled_is_what_is_served(rendered: Rendered) -> Iterator[str]:
    """Each compile Job has the image, flags and environment of its pool's engine, and every claim is made beforehand."""
    before = f"{rendered.name}/prepare"
    if before not in overlays():
        return
    prepared = render(before)
    for pool, job in prepared.jobs.items():
        engine = rendered.engines.get(pool)
        if engine is None:
            yield f"{job.name} compiles for no pool"
            continue
        if (job.image, job.args) != (engine.image, engine.args):
            yield f"{job.name} runs {job.image} {job.args}, the engine {engine.image} {engine.args}"
        extra = {"NEURON_SDK": re.search(r"sdk([\d.]+)", job.image)[1]}  # type: ignore[index]
        if job.env != {**engine.env, **extra}:
            yield f"{job.name} has the environment {job.env}, the engine {engine.env}"
    made = {claim["metadata"]["name"] for claim in prepared.of_kind("PersistentVolumeClaim")}
    for one in (*rendered.engines.values(), *prepared.jobs.values()):
        for volume in one.pod["volumes"]:
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim is not None and claim not in made:
                yield f"{one.name} claims {claim}, which nothing makes"
    wanted = {path for one in rendered.engines.values() for path in _models(one)}
    fetched = {line.split()[1] for line in (prepared.named("ConfigMap", "models") or {"data": {}})["data"].values()}
    for path in sorted(wanted - {f"/models/{folder}" for folder in fetched}):
        yield f"{path} is served, and nothing downloads it"


def _models(engine: Engine) -> list[str]:
    command = read(engine.args, engine.image)
    draft = command.values.get("--speculative-config", {}).get("model")
    return [command.model, *([draft] if draft else [])]


RULES: Final[tuple[Rule, ...]] = (
    configuration_is_read,
    commands_are_known,
    variables_are_read,
    drafts_are_no_longer_than_targets,
    artefacts_are_named_by_what_they_are,
    chips_make_the_tensor_parallel_degree,
    pools_are_the_engines,
    pools_differ_in_speculation_alone,
    labels_are_those_of_the_pool,
    what_is_compiled_is_what_is_served,
)
