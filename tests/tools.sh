#!/usr/bin/env bash
# tools.sh FOLDER: see to it that prometheus, promtool and chromium are there, from Debian's archive where they are missing.
#
# Prometheus is unpacked into FOLDER and not installed, since its package would start a service. Chromium is installed, since it
# needs libraries; that takes root. Elsewhere than on Debian and its kin, put all three on the PATH.
set -euo pipefail
folder=$1
mkdir -p "$folder"

have() { command -v "$1" >/dev/null || [ -x "$folder/usr/bin/$1" ]; }

missing() {
  echo "tools.sh: $1 is missing and cannot be had from apt-get here; put it on the PATH" >&2
  exit 1
}

refreshed=
refresh() {
  [ -n "$refreshed" ] || apt-get update -qq || true # a list that is there already may do
  refreshed=yes
}

if ! have prometheus || ! have promtool; then
  command -v apt-get >/dev/null || missing prometheus
  refresh
  (
    cd "$folder"
    apt-get download -qq prometheus 2>/dev/null || missing prometheus
    dpkg-deb -x prometheus_*.deb .
    rm prometheus_*.deb
  )
fi

if ! have chromium; then
  command -v apt-get >/dev/null || missing chromium
  refresh
  as_root=
  [ "$(id -u)" = 0 ] || as_root="sudo -n"
  DEBIAN_FRONTEND=noninteractive $as_root apt-get install -qq -y --no-install-recommends chromium >/dev/null || missing chromium
fi
