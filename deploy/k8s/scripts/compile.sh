# Compile by starting the engine with the very flags it will serve with, and keep what it leaves once it answers.
# Usage: compile.sh VLLM-SERVE-ARGUMENTS, with NEURON_COMPILED_ARTIFACTS naming where to keep it and NEURON_SDK the SDK.
set -eu

final="$NEURON_COMPILED_ARTIFACTS"
if python3 /scripts/check_artefacts.py "$final"; then
  echo "already compiled: $final"
  exit 0
fi
if [ -e "$final/neuron_config.json" ]; then
  echo "$final holds something else; name another folder, or empty it first" >&2
  exit 1
fi

# Models come by a Job of their own, which marks each as complete.
for model in $(printf '%s\n' "$@" | grep -o '/models/[A-Za-z0-9._-]*'); do
  until [ -e "$model/REVISION" ]; do
    echo "waiting for $model"
    sleep 10
  done
done

# The compiler renames and locks, which object storage cannot: it works on local disk, and the result is copied.
scratch="/scratch/$(basename "$final")"
NEURON_COMPILED_ARTIFACTS="$scratch" vllm serve "$@" &
engine=$!
until python3 -c 'import urllib.request; urllib.request.urlopen("http://127.0.0.1:8000/health", timeout=5)' 2>/dev/null; do
  kill -0 "$engine" # the engine has failed: its log says why
  sleep 10
done
kill -TERM "$engine"
wait "$engine" || true

printf '{"sdk": "%s"}\n' "$NEURON_SDK" > "$scratch/draftlane.json"
python3 /scripts/check_artefacts.py "$scratch"
cp -R "$scratch" "$(dirname "$final")/"
python3 /scripts/check_artefacts.py "$final"
