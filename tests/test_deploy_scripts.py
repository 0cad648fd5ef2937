"""The scripts that run inside of containers: artefacts are checked, compiled and kept, models are fetched once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from deploy.check.documents import DEPLOY, containers, render

SCRIPTS = DEPLOY / "k8s" / "scripts"
NAME = "qwen3-32b+qwen3-1.7b-tp32-bs4-len1024-k7-sdk2.26.1"
RIGHT = {"tp_degree": 32, "batch_size": 4, "seq_len": 1024, "speculation_length": 7}


def artefacts(folder: Path, *, sdk: str = "2.26.1", nested: str = "neuron_config", **changes: Any) -> Path:
    """Write what a compilation leaves."""
    folder.mkdir(parents=True)
    config = RIGHT | changes
    (folder / "neuron_config.json").write_text(json.dumps({nested: config} if nested else config))
    (folder / "draftlane.json").write_text(json.dumps({"sdk": sdk}))
    (folder / "model.pt").write_bytes(b"compiled")
    return folder


def check(folder: Path) -> tuple[int, str]:
    """Run the check as the init container does."""
    done = subprocess.run(
        [sys.executable, SCRIPTS / "check_artefacts.py", folder], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("nested", ["neuron_config", ""])
def test_artefacts_of_their_name_pass(tmp_path: Path, nested: str) -> None:
    """Tensor parallel, batch, length, window and SDK as named, whether the file nests its configuration or not."""
    assert check(artefacts(tmp_path / NAME, nested=nested)) == (0, "")


def test_a_baseline_has_no_window(tmp_path: Path) -> None:
    """k0 means no speculation, which the compiler says by 0 or not at all."""
    name = "qwen3-32b-tp32-bs4-len1024-k0-sdk2.26.1"
    assert check(artefacts(tmp_path / "a" / name, speculation_length=0))[0] == 0
    assert check(artefacts(tmp_path / "b" / name, speculation_length=None))[0] == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tp_degree": 16}, "tp_degree is 16"),
        ({"batch_size": 8}, "batch_size is 8"),
        ({"seq_len": 2048}, "seq_len is 2048"),
        ({"speculation_length": 5}, "speculation_length is 5"),
        ({"sdk": "2.25.0"}, "SDK '2.25.0'"),
    ],
)
def test_artefacts_of_other_flags_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    """What vLLM would take for its own, or compile again without a word, is refused with the figure that differs."""
    code, said = check(artefacts(tmp_path / NAME, **changes))

    assert code == 1
    assert words in said


def test_artefacts_that_are_not_there_are_refused(tmp_path: Path) -> None:
    """Nothing, half of it, something unreadable, a name that says nothing: each is refused with what to do."""
    assert "run the compile Job" in check(tmp_path / NAME)[1]
    folder = artefacts(tmp_path / "half" / NAME)
    (folder / "model.pt").unlink()
    assert "model.pt is missing" in check(folder)[1]
    (folder / "neuron_config.json").write_text("{")
    assert "run the compile Job" in check(folder)[1]
    assert "must end in" in check(artefacts(tmp_path / "latest"))[1]
    assert (
        subprocess.run([sys.executable, SCRIPTS / "check_artefacts.py"], capture_output=True, check=False).returncode
        == 2
    )


FAKE_VLLM = """#!{python}
import http.server, json, os, pathlib, signal, sys
place = pathlib.Path(os.environ["NEURON_COMPILED_ARTIFACTS"])
pathlib.Path({seen!r}).write_text(json.dumps(sys.argv[1:]))
if os.environ.get("FAILS"):
    sys.exit("out of memory")
place.mkdir(parents=True)
(place / "neuron_config.json").write_text(json.dumps({{"neuron_config": {config}}}))
(place / "model.pt").write_bytes(b"compiled")
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *words): pass
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
http.server.HTTPServer(("127.0.0.1", {port}), Health).serve_forever()
"""


def arguments(tmp_path: Path) -> list[str]:
    """Return what the engine of the speculative pool would be started with."""
    draft = json.dumps({"model": f"{tmp_path}/models/qwen3-1.7b", "num_speculative_tokens": 7})
    return [f"{tmp_path}/models/qwen3-32b", "--max-num-seqs", "4", "--speculative-config", draft]


def fetched(tmp_path: Path, *names: str) -> None:
    """Mark models as complete, as the download does."""
    for name in names:
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "REVISION").write_text("commit")


def compile_with(tmp_path: Path, port: int, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the compile Job's script with a vLLM that compiles by writing down what it was asked for."""
    binaries = tmp_path / "bin"
    binaries.mkdir(exist_ok=True)
    fake = binaries / "vllm"
    seen = str(tmp_path / "seen.json")
    fake.write_text(FAKE_VLLM.format(python=sys.executable, seen=seen, config=RIGHT, port=port))
    fake.chmod(0o755)
    script = (SCRIPTS / "compile.sh").read_text()
    local = script.replace("/scripts/", f"{SCRIPTS}/").replace("/scratch", str(tmp_path / "scratch"))
    local = local.replace("'/models/", f"'{tmp_path}/models/")
    (tmp_path / "compile.sh").write_text(
        local.replace("127.0.0.1:8000", f"127.0.0.1:{port}").replace("sleep 10", "sleep 0.1")
    )
    (tmp_path / "scratch").mkdir(exist_ok=True)
    (tmp_path / "artefacts").mkdir(exist_ok=True)
    return subprocess.run(
        ["/bin/sh", str(tmp_path / "compile.sh"), *arguments(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={
            **os.environ,
            "PATH": f"{binaries}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "NEURON_COMPILED_ARTIFACTS": str(tmp_path / "artefacts" / NAME),
            "NEURON_SDK": "2.26.1",
            **environment,
        },
    )


def test_compiling_keeps_what_the_engine_leaves(tmp_path: Path, unused_port: int) -> None:
    """The engine gets the flags as they are, is stopped once it answers, and what it compiled is kept and passes the check."""
    fetched(tmp_path, "qwen3-32b", "qwen3-1.7b")
    done = compile_with(tmp_path, unused_port)

    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "seen.json").read_text()) == ["serve", *arguments(tmp_path)]
    assert check(tmp_path / "artefacts" / NAME) == (0, "")


def test_compiling_waits_for_both_models(tmp_path: Path, unused_port: int) -> None:
    """While the draft is not marked as complete nothing starts; once it is, compilation goes on by itself."""
    fetched(tmp_path, "qwen3-32b")
    late = threading.Timer(1.0, fetched, (tmp_path, "qwen3-1.7b"))
    late.start()
    done = compile_with(tmp_path, unused_port)
    late.join()

    assert done.returncode == 0, done.stderr
    assert f"waiting for {tmp_path}/models/qwen3-1.7b" in done.stdout
    assert "models/qwen3-32b" not in done.stdout


def test_compiling_again_does_nothing(tmp_path: Path, unused_port: int) -> None:
    """A Job that runs once more finds its artefacts and starts no engine."""
    artefacts(tmp_path / "artefacts" / NAME)
    done = compile_with(tmp_path, unused_port)

    assert done.returncode == 0
    assert "already compiled" in done.stdout
    assert not (tmp_path / "seen.json").exists()


def test_other_artefacts_are_never_overwritten(tmp_path: Path, unused_port: int) -> None:
    """A folder that holds something else stops the Job before the engine starts."""
    artefacts(tmp_path / "artefacts" / NAME, batch_size=8)
    done = compile_with(tmp_path, unused_port)

    assert done.returncode == 1
    assert "holds something else" in done.stderr
    assert not (tmp_path / "seen.json").exists()


def test_an_engine_that_fails_fails_the_job(tmp_path: Path, unused_port: int) -> None:
    """The Job ends with an error rather than wait for an engine that is gone, and keeps nothing."""
    fetched(tmp_path, "qwen3-32b", "qwen3-1.7b")
    done = compile_with(tmp_path, unused_port, FAILS="1")

    assert done.returncode != 0
    assert "out of memory" in done.stderr
    assert not (tmp_path / "artefacts" / NAME).exists()


@pytest.fixture
def unused_port() -> int:
    """A port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


HUB = """
import json, os, pathlib
class Told:
    def __init__(self, sha): self.sha = sha
class HfApi:
    def model_info(self, repository, *, revision): return Told(f"commit of {repository} at {revision}")
def snapshot_download(repository, *, revision, local_dir, allow_patterns):
    with open(os.environ["ASKED"], "a") as asked: asked.write(f"{repository}\\n")
    place = pathlib.Path(local_dir)
    (place / ".cache").mkdir(parents=True)
    (place / ".cache" / "lock.json").write_text("")
    (place / "config.json").write_text("{}")
    (place / "model.safetensors").write_bytes(b"weights")
    assert "*.safetensors" in allow_patterns
"""


def test_models_are_fetched_once_and_marked_last(tmp_path: Path) -> None:
    """Both models land in their folders with the commit that they came from; a second run asks nobody."""
    (tmp_path / "huggingface_hub.py").write_text(HUB)
    models, asked = tmp_path / "models", tmp_path / "asked"
    wanted = {"TARGET": "Qwen/Qwen3-32B@v1 qwen3-32b", "DRAFT": "Qwen/Qwen3-1.7B qwen3-1.7b"}
    for _ in range(2):
        subprocess.run(
            [sys.executable, DEPLOY / "k8s" / "prepare" / "download.py", models, tmp_path / "scratch"],
            check=True,
            capture_output=True,
            env={**os.environ, **wanted, "PYTHONPATH": str(tmp_path), "ASKED": str(asked)},
        )

    assert asked.read_text().split() == ["Qwen/Qwen3-32B", "Qwen/Qwen3-1.7B"]
    assert (models / "qwen3-32b" / "REVISION").read_text() == "commit of Qwen/Qwen3-32B at v1\n"
    assert (models / "qwen3-1.7b" / "REVISION").read_text() == "commit of Qwen/Qwen3-1.7B at main\n"
    assert (models / "qwen3-1.7b" / "model.safetensors").read_bytes() == b"weights"
    assert not (models / "qwen3-32b" / ".cache").exists()


@pytest.mark.parametrize("overlay", ["trn2-fused-draft", "trn2-eagle3"])
def test_the_containers_run_these_scripts_where_they_are_mounted(overlay: str) -> None:
    """Init containers and Jobs name files that the mounted ConfigMap holds, with the text of this repository."""
    for name in (overlay, f"{overlay}/prepare"):
        rendered = render(name)
        for document in rendered.of_kind("StatefulSet", "Job"):
            pod = document["spec"]["template"]["spec"]
            for container in containers(pod):
                for word in container.get("command", ()):
                    if word.startswith("/scripts/"):
                        volume = next(volume for volume in pod["volumes"] if volume["name"] == "scripts")
                        held = next(
                            document["data"]
                            for document in rendered.of_kind("ConfigMap")
                            if document["metadata"]["name"] == volume["configMap"]["name"]
                        )
                        source = next(DEPLOY.rglob(Path(word).name))
                        assert held[Path(word).name] == source.read_text(), word


def test_shell_scripts_are_read_by_a_plain_shell() -> None:
    """The images' /bin/sh is dash: it parses the script."""
    assert subprocess.run(["/bin/sh", "-n", str(SCRIPTS / "compile.sh")], check=False).returncode == 0
