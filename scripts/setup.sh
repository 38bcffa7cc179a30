#!/usr/bin/env bash
# Makes or renews the virtual environment from the pinned requirements (`make setup`).
#
# Plain pip, so that the user's own pip configuration (index, proxy, certificates) is honoured. Everything is checked
# against a hash, also what builds the requirements that come as source only: hence no build isolation, which would
# fetch build tools unpinned.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
log=$venv/setup.log

fail() {
    printf 'make setup: %s\n' "$1" >&2
    exit 1
}

is_python_311() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        is_python_311 "$PYTHON" || fail "PYTHON=$PYTHON is not a Python 3.11 or newer: name one that is, e.g. 'make setup PYTHON=python3.12'."
        echo "$PYTHON"
        return
    fi
    for candidate in python3 python3.13 python3.12 python3.11 python3.14; do
        if is_python_311 "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or newer was found: install one, or name it with 'make setup PYTHON=/path/to/python3'."
}

# One sentence for the failures a newcomer can do something about; the log for all others.
explain() {
    if grep -q 'No space left on device' "$log"; then
        fail "the disk is full: free about 3 GB here and in ${TMPDIR:-/tmp}, then run it again (details: $log)."
    elif grep -qE 'DO NOT MATCH THE HASHES' "$log"; then
        fail "a package is not the one that was pinned: the index or a proxy served something else, ask whoever runs it (details: $log)."
    elif grep -qE 'Failed to establish a new connection|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError|SSLCertVerificationError|Connection (refused|reset|aborted)|Max retries exceeded|HTTP error|No matching distribution found|Could not fetch URL' "$log"; then
        fail "the Python package registry is out of reach: check the network and 'pip config list', then run it again (details: $log)."
    fi
    fail "installing the requirements failed: the reason is at the end of $log."
}

pip_install() {
    "$venv/bin/python" -m pip --disable-pip-version-check install --progress-bar off "$@" >>"$log" 2>&1 || explain
}

# A virtual environment whose Python was upgraded or removed does not start any more: make it anew.
if ! is_python_311 "$venv/bin/python" || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    rm -rf "$venv"
    mkdir "$venv" 2>/dev/null || fail "cannot write to $(pwd): make it writable and run it again."
    "$python" -m venv "$venv" >"$log" 2>&1 ||
        { grep -q 'No space left on device' "$log" && explain; fail "'$python -m venv' failed: on Debian and Ubuntu install the package python3-venv (details: $log)."; }
fi

echo "installing the pinned requirements into $venv (700 MB, about a minute; pip's output is in $log)"
: >"$log"
pip_install --require-hashes -r requirements/build.txt
pip_install --require-hashes --no-build-isolation -r requirements/dev.txt
pip_install --no-deps --no-build-isolation --editable .
