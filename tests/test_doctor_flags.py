"""Engines' flags: commands and manifests read, and what contradicts itself, its image, its artefacts or its callers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from deploy.check.documents import render
from gateway.__main__ import main
from gateway.measure.doctor import serving
from gateway.measure.doctor.finding import Checkup
from gateway.measure.doctor.flags import Calls
from gateway.measure.doctor.inspection import inspect
from gateway.measure.doctor.releases import IMAGES, NATIVE, PLUGIN, STOCK, V0, of_image
from gateway.measure.doctor.serving import Serving, ServingError

V0_IMAGE, PLUGIN_IMAGE, NATIVE_IMAGE, STOCK_IMAGE = (
    next(image for image, release in IMAGES.items() if release is wanted) for wanted in (V0, PLUGIN, NATIVE, STOCK)
)
FUSED: dict[str, Any] = {
    "--tensor-parallel-size": 32,
    "--max-num-seqs": 4,
    "--max-model-len": 1024,
    "--override-neuron-config": {"save_sharded_checkpoint": True, "enable_fused_speculation": True},
    "--speculative-config": {
        "model": "/m/small",
        "num_speculative_tokens": 7,
        "max_model_len": 1024,
        "method": "eagle",
    },
}
ARTEFACTS = "/artefacts/large+small-tp32-bs4-len1024-k7-sdk2.26.1"
ENV = {"VLLM_USE_V1": "0", "NEURON_COMPILED_ARTIFACTS": ARTEFACTS, "NEURON_LOGICAL_NC_CONFIG": "2"}
DRAFTED: dict[str, Any] = {
    "--max-model-len": 8192,
    "--max-num-seqs": 32,
    "--speculative-config": {"method": "draft_model", "model": "/m/small", "num_speculative_tokens": 5},
    "--per-request-spec-decode-metrics": "summary",
}


KEYS = "kind metadata labels name items spec template containers image command args env value resources limits".split()
KEYS += ["services", "entrypoint", "environment", "aws.amazon.com/neuron", "draftlane.dev/pool"]
WORDS = [
    "/m",
    "--max-model-len",
    "8k",
    "1024",
    "-5",
    "--max-num-seqs",
    "--tensor-parallel-size",
    "-tp",
    "0",
    "--max-num-batched-tokens",
]
WORDS += [
    "--speculative-config",
    '{"method": "eagle", "num_speculative_tokens": 7}',
    '{"num_speculative_tokens": "x"}',
    "[]",
    "{",
]
WORDS += [
    "--speculative-config.model",
    "--override-neuron-config",
    '{"tp_degree": "x", "enable_fused_speculation": true}',
]
WORDS += [
    "--additional-config",
    '{"neuron_config": 3}',
    '{"override_neuron_config": {"batch_size": 2}}',
    "--stream-interval",
    "9",
]


def words(flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Return flags as a command line has them, behind a model."""
    found = ["/m/large"]
    for name, value in flags.items():
        if value is not None:
            found += [name] if value is True else [name, json.dumps(value) if isinstance(value, dict) else str(value)]
    return tuple(found)


def fused(
    flags: Mapping[str, Any] | None = None, env: Mapping[str, str | None] | None = None, **options: Any
) -> Serving:
    """Return the study's speculative engine with changes; None takes a flag or variable out."""
    chosen = {name: value for name, value in {**ENV, **(env or {})}.items() if value is not None}
    named = {"image": V0_IMAGE, "chips": 8, **options}
    return Serving(where="it", args=words({**FUSED, **(flags or {})}), env=chosen, **named)


def drafted(flags: Mapping[str, Any] | None = None, **options: Any) -> Serving:
    """Return an engine of stock vLLM with a draft model, and changes."""
    return Serving(where="it", args=words({**DRAFTED, **(flags or {})}), **{"image": STOCK_IMAGE, **options})


def spec(engine: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a speculative configuration with changes, as a flag."""
    return {"--speculative-config": {**engine["--speculative-config"], **changes}}


def told(found: list[Checkup], severity: str) -> str:
    """Return all findings of one severity as text."""
    return "\n".join(str(one) for checkup in found for one in checkup.findings if one.severity == severity)


def test_the_studys_engine_is_sound() -> None:
    """Nothing to fix or look at, and its window is told as NxD Inference means it."""
    found = inspect([fused()])

    assert told(found, "fix") + told(found, "warn") == ""
    assert "drafts 7 and uses 6: at most 7 tokens a step" in told(found, "note")
    assert '"eagle" is only a label' in told(found, "note")
    assert found[0].facts["most_tokens_per_step"] == 7


def test_a_stock_engine_is_sound() -> None:
    """With a draft model in vLLM a step has up to k + 1 tokens."""
    found = inspect([drafted()])

    assert told(found, "fix") + told(found, "warn") == ""
    assert found[0].facts["most_tokens_per_step"] == 6


@pytest.mark.parametrize(
    ("one", "severity", "expected"),
    [
        (fused(spec(FUSED, max_model_len=2048)), "fix", "max_model_len 2048 is over the target's 1024"),
        (fused(spec(FUSED, max_model_len=512)), "warn", "the draft ends at 512 of 1024"),
        (fused({"--max-model-len": None}), "fix", "shapes are static on Neuron"),
        (fused({"--max-num-seqs": 8}), "fix", "named bs4, --max-num-seqs is 8"),
        (fused({"--tensor-parallel-size": 16}), "fix", "named tp32, --tensor-parallel-size is 16"),
        (fused({"--tensor-parallel-size": 64}), "fix", "8 chips are 32 logical cores"),
        (fused({"--tensor-parallel-size": 16}), "warn", "16 of 32 logical cores are used"),
        (fused(spec(FUSED, num_speculative_tokens=5)), "fix", "num_speculative_tokens is 5"),
        (fused(spec(FUSED, num_speculative_tokens=1)), "fix", "can win nothing here"),
        (fused(image=V0_IMAGE.replace("2.26.1", "2.27.0")), "fix", "compiled with SDK 2.26.1, the image has 2.27.0"),
        (fused(env={"VLLM_USE_V1": None}), "fix", "VLLM_USE_V1: is not set"),
        (fused(env={"VLLM_USE_V1": "1"}), "fix", "VLLM_USE_V1: is 1"),
        (fused(env={"NEURON_COMPILED_ARTIFACTS": None}), "warn", "compiles at every start"),
        (fused(env={"NEURON_COMPILED_ARTIFACTS": "/artefacts/x"}), "note", "does not say by its name"),
        (fused({"--override-neuron-config": {}}), "fix", "lacks enable_fused_speculation"),
        (fused({"--speculative-config": None}), "fix", "there is no --speculative-config"),
        (
            fused({"--override-neuron-config": {"enable_fused_speculation": True, "speculation_length": 5}}),
            "fix",
            "is 5",
        ),
        (fused({"--override-neuron-config": {"batch_size": 2}}), "fix", "batch_size is 2, --max-num-seqs is 4"),
        (fused(spec(FUSED, model="/m/large-eagle")), "fix", "looks like EAGLE heads"),
        (fused(image=PLUGIN_IMAGE), "fix", "--override-neuron-config: is what vLLM V0 Neuron fork 0.9.1 reads"),
        (fused(image=PLUGIN_IMAGE), "fix", "VLLM_USE_V1: is 0"),
        (fused(image=PLUGIN_IMAGE), "fix", "is real EAGLE here, and /m/small looks like an ordinary model"),
        (fused(image=STOCK_IMAGE), "fix", "take it out: this is no Neuron engine"),
        (
            fused(
                {"--override-neuron-config": None, "--additional-config": {"override_neuron_config": {}}},
                image=NATIVE_IMAGE,
            ),
            "fix",
            "its place here is --additional-config neuron_config",
        ),
        (drafted({"--stream-interval": 4}), "warn", "merges steps into one event"),
        (drafted({"--disable-log-stats": True}), "warn", "takes the counters out"),
        (drafted({"--per-request-spec-decode-metrics": None}), "note", "tells each answer's acceptance exactly"),
        (drafted({"--max-num-batched-tokens": 64}), "warn", "64 is below 32 sequences x 6"),
        (drafted(spec(DRAFTED, num_speculative_tokens=24)), "warn", "beyond what has been found useful"),
        (drafted(spec(DRAFTED, draft_tensor_parallel_size=2)), "fix", "draft_tensor_parallel_size is 2"),
        (drafted(spec(DRAFTED, method="ngram", prompt_lookup_min=5, prompt_lookup_max=2)), "fix", "min 5 is over"),
        (drafted(spec(DRAFTED, method="eagle3")), "warn", "looks like an ordinary model"),
        (drafted({"--speculative-model": "/m/small"}), "fix", "is gone from vLLM"),
        (drafted({"--device": "neuron"}), "fix", "it belongs to vLLM V0 Neuron fork 0.9.1"),
        (drafted({"--some-new-flag": "x"}), "note", "not among the flags"),
        (drafted(swallows=True), "warn", "swallows SIGTERM"),
        (drafted(image=None), "note", "read as vLLM 0.32"),
    ],
)
def test_contradictions_are_found(one: Serving, severity: str, expected: str) -> None:
    """Each contradiction is told with its flag, weighed by what it would do."""
    found = inspect([one])

    assert expected in told(found, severity)
    assert all(checkup.ok for checkup in found) == (told(found, "fix") == "")


@pytest.mark.parametrize(
    ("one", "prompt", "most", "expected"),
    [
        (fused(), 400, 600, None),
        (fused(), 424, 600, "424 + 600 tokens are over 1024 less the window of 7; shapes are static"),
        (drafted(), 8000, 187, None),
        (drafted(), 8000, 188, "set at least 8193"),
        (drafted({"--speculative-config": None}), 8000, 192, None),
    ],
)
def test_calls_go_into_the_length(one: Serving, prompt: int, most: int, expected: str | None) -> None:
    """Prompt and answer must fit, and a speculative engine keeps a window free for its last step."""
    fixes = told(inspect([one], calls=Calls(prompt, most)), "fix")

    assert expected is None or expected in fixes
    assert (fixes == "") == (expected is None)


def test_what_was_compiled_is_compared() -> None:
    """A neuron_config.json at hand goes before names."""
    compiled = {"tp_degree": 32, "max_batch_size": 4, "seq_len": 2048, "speculation_length": 5}
    fixes = told(inspect([fused()], compiled=compiled), "fix")

    assert "seq_len is 2048, --max-model-len is 1024" in fixes
    assert "speculation_length is 5" in fixes
    assert "tp_degree" not in fixes
    assert "batch_size" not in fixes


def test_engines_are_compared_with_each_other() -> None:
    """Pools of one manifest differ in speculation alone, and do not share artefacts."""
    plain = {"--speculative-config": None, "--override-neuron-config": {}}
    none = {"NEURON_COMPILED_ARTIFACTS": ARTEFACTS.replace("k7", "k0")}
    assert told(inspect([fused(plain, none), fused()]), "fix") == ""

    found = inspect([fused({**plain, "--max-num-seqs": 8}), fused()])
    assert "is 8 of baseline and 4 of speculative" in told(found, "warn")
    assert "whichever loads ignores its own" in told(found, "fix")
    other = drafted({"--speculative-config": None}, image="vllm/vllm-openai:v0.31.0")
    assert "image: is vllm/vllm-openai:v0.31.0" in told(inspect([other, drafted()]), "warn")


@pytest.mark.parametrize(
    ("image", "release"),
    [
        (None, None),
        ("public.ecr.aws/neuron/pytorch-inference-vllm-neuronx:0.9.1-neuronx-py310-sdk2.25.0-ubuntu22.04", V0),
        ("mirror.example/neuron-vllm:0.16.3-sdk2.31.2", PLUGIN),
        ("mirror.example/vllm-neuronx:0.24.1", NATIVE),
        ("mirror.example/neuron:latest", None),
        ("vllm/vllm-openai:v0.33.0", STOCK),
        ("engine", None),
    ],
)
def test_images_are_known_by_family(image: str | None, release: object) -> None:
    """A mirror or another patch release is read as its family; what says nothing is guessed from the flags."""
    assert of_image(image) is release


@pytest.mark.parametrize(
    ("flags", "env", "release"),
    [
        (("--override-neuron-config", "{}"), {}, V0),
        ((), {"VLLM_USE_V1": "0"}, V0),
        (("--additional-config", '{"override_neuron_config": {}}'), {}, PLUGIN),
        (("--additional-config", '{"neuron_config": {}}'), {}, NATIVE),
        ((), {"VLLM_NEURON_FRAMEWORK": "x"}, PLUGIN),
        ((), {}, STOCK),
    ],
)
def test_without_an_image_flags_say_which_vllm(flags: tuple[str, ...], env: dict[str, str], release: Any) -> None:
    """Where a configuration stands gives its generation away."""
    (found,) = inspect([Serving(where="it", args=("/m", "--max-model-len", "8", *flags), env=env)])

    assert (found.facts["release"], found.facts["release_guessed"]) == (release.name, True)


def test_commands_are_read_as_shells_and_vllm_read_them() -> None:
    """Assignments, containers, short and dotted flags, underscores, units: all come out the same."""
    line = (
        "VLLM_USE_V1=0 docker run --rm -e HF_HUB_OFFLINE=1 registry.example/vllm:1.0 vllm serve /m/large "
        "--max_model_len=8K -tp 2 --speculative-config.method ngram --speculative_config.num_speculative_tokens 5 > log"
    )
    one = serving.of_words([line])

    assert one.args[0] == "/m/large"
    assert "log" not in one.args
    assert one.env == {"VLLM_USE_V1": "0", "HF_HUB_OFFLINE": "1"}
    assert one.image == "registry.example/vllm:1.0"
    (found,) = inspect([Serving(where="it", args=one.args, image=STOCK_IMAGE)])
    assert found.facts["flags"] == {
        "--max-model-len": 8192,
        "--tensor-parallel-size": 2,
        "--speculative-config": {"method": "ngram", "num_speculative_tokens": 5},
    }
    module = serving.of_words(["python", "-m", "vllm.entrypoints.openai.api_server", "--port", "1", "--model", "/m"])
    assert module.args == ("/m", "--port", "1")


def manifest(command: list[str] | None, args: list[str], **container: Any) -> str:
    """Return a StatefulSet as YAML, behind another document."""
    held = {"name": "engine", "args": args, **({"command": command} if command else {}), **container}
    pod = {"spec": {"containers": [held], "initContainers": [{"name": "look", "image": "busybox", "args": ["ls"]}]}}
    document = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "fast", "labels": {"draftlane.dev/pool": "speculative"}},
        "spec": {"template": pod},
    }
    return yaml.safe_dump_all([{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}}, document])


@pytest.mark.parametrize(
    ("command", "swallows"),
    [
        (None, False),
        (["vllm", "serve"], False),
        (["/bin/sh", "-c", 'exec vllm serve "$@"', "vllm"], False),
        (["/bin/sh", "-c", 'vllm serve "$@"', "vllm"], True),
    ],
)
def test_manifests_are_read(command: list[str] | None, swallows: bool) -> None:  # noqa: FBT001
    """A container's engine is found however it is started, with its image, variables and chips."""
    text = manifest(
        command,
        list(words(FUSED)),
        image=V0_IMAGE,
        env=[{"name": "VLLM_USE_V1", "value": "0"}, {"name": "SECRET", "valueFrom": {}}],
        resources={"limits": {"aws.amazon.com/neuron": "8"}},
    )
    (one,) = serving.of_text(text, "engine.yaml")
    listed = json.dumps({"kind": "List", "items": list(yaml.safe_load_all(text))})

    assert one.args == words(FUSED)
    assert (one.where, one.image, one.env) == ("StatefulSet fast", V0_IMAGE, {"VLLM_USE_V1": "0"})
    assert (one.chips, one.pool, one.swallows) == (8, "speculative", swallows)
    assert serving.of_text(listed, "engine.json") == [one]


def test_compose_files_and_scripts_are_read() -> None:
    """Compose's commands, in words or as a list, and a script's lines, folded ones too."""
    compose = """
services:
  plain: {image: "vllm/vllm-openai:v0.32.0", command: "vllm serve /m --max-model-len 4096"}
  fast:
    image: vllm/vllm-openai:v0.32.0
    environment: [A=1]
    command: [/m, --max-model-len, "4096", --max-num-seqs, "4"]
  other: {image: redis}
"""
    script = "#!/bin/sh\n# vllm serve /not/this\nexport A=1\nexec vllm serve /m \\\n  --max-model-len 4096 &\n"

    assert [(one.where, one.args[0], one.env) for one in serving.of_text(compose, "compose.yaml")] == [
        ("compose.yaml plain", "/m", {}),
        ("compose.yaml fast", "/m", {"A": "1"}),
    ]
    assert [one.args for one in serving.of_text(script, "run.sh")] == [("/m", "--max-model-len", "4096")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("apiVersion: v1\nkind: [", "no YAML"),
        ("kind: Service\n", "holds no engine"),
        ("echo hello\n", "holds no engine"),
        ("kind: List\nitems: 3\n", "holds no engine"),
        ("kind: List\nitems: [3]\n", "holds no engine"),
        ("vllm serve '\n", "no command line"),
    ],
)
def test_a_file_without_an_engine_is_told(text: str, expected: str) -> None:
    """What holds no engine is said to, with its name."""
    with pytest.raises(ServingError, match=expected) as raised:
        serving.of_text(text, "some.yaml")

    assert "some.yaml" in str(raised.value)


@pytest.mark.parametrize("overlay", ["trn2-fused-draft", "trn2-fused-draft-dra", "trn2-eagle3", "gpu"])
def test_the_shipped_overlays_are_sound(overlay: str) -> None:
    """Every overlay's engines, as kubectl renders them, have nothing to fix and nothing to look at."""
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "doctor", "flags", "-", "--json"],
        input=yaml.safe_dump_all(render(overlay).documents),
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout)

    assert [one["check"] for one in said["checks"]][:3] == ["flags", "flags", "pair"]
    assert [one for check in said["checks"] for one in check["findings"] if one["severity"] == "warn"] == []


def test_the_command_reads_files_and_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Words after --, one string, and files; 1 when something is to fix, 2 for what is no engine."""
    bad = ["vllm", "serve", *words({**DRAFTED, **spec(DRAFTED, max_model_len=9000)})]
    assert main(["doctor", "flags", "--image", STOCK_IMAGE, "--", *bad]) == 1
    assert "9000 is over the target's 8192" in capsys.readouterr().out
    assert main(["doctor", "flags", "vllm serve /m --max-model-len 8192"]) == 0
    path = tmp_path / "engine.yaml"
    path.write_text(manifest(None, list(words(FUSED)), image=V0_IMAGE, env=[{"name": "VLLM_USE_V1", "value": "0"}]))
    (tmp_path / "neuron_config.json").write_text('{"neuron_config": {"tp_degree": 8}}')
    assert main(["doctor", "flags", str(path)]) == 0
    assert main(["doctor", "flags", str(path), "--compiled", str(tmp_path), "--prompt-tokens", "2000"]) == 1
    said = capsys.readouterr().out
    assert "tp_degree is 8" in said
    assert "2000 + 0 tokens" in said
    for wrong in (["nothing.yaml"], ["--", "echo", "vllm"], [str(path), "--compiled", str(path)]):
        assert main(["doctor", "flags", *wrong]) == 2


def test_secrets_are_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    """What an engine's environment holds of keys and tokens stays out of what is printed."""
    assert (
        main(["doctor", "flags", "--json", "VLLM_API_KEY=sesame HF_TOKEN=sesame vllm serve /m --api-key sesame"]) == 0
    )
    assert "sesame" not in capsys.readouterr().out


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 300)
    | st.sampled_from(["vllm serve", "x", "--max-model-len", "8", "-c", "'"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=25,
)


@given(JSON)
def test_any_manifest_is_read_or_refused(document: Any) -> None:
    """Whatever a file holds: engines come out and can be looked at, or it is said that none is in it."""
    text = json.dumps({"kind": "StatefulSet", "spec": document})
    try:
        found = serving.of_text(text, "some.json")
    except ServingError:
        return
    assert inspect(found)


@given(st.lists(st.sampled_from(WORDS), max_size=12))
def test_any_command_line_is_looked_at(line: list[str]) -> None:
    """Whatever follows `vllm serve` is looked at without an error of our own, by every release's rules."""
    for image in (V0_IMAGE, PLUGIN_IMAGE, NATIVE_IMAGE, STOCK_IMAGE, None):
        one = serving.of_words(["NEURON_COMPILED_ARTIFACTS=/a-tp1-bs1-len1-k1", "vllm", "serve", *line])
        assert inspect([Serving(where="it", args=one.args, image=image, env=one.env)])
