#!/usr/bin/env bash
# Chromium for the tests of the report's page. Where it cannot be installed, those tests are skipped.
set -euo pipefail
if command -v chromium >/dev/null || command -v chromium-browser >/dev/null; then
  echo "Chromium is there."
  exit 0
fi
if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
  echo "note: Chromium is not there, and installing it needs apt-get and root; browser tests will be skipped" >&2
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } >/dev/null 2>&1; then
  echo "note: Chromium could not be installed; browser tests will be skipped" >&2
fi
