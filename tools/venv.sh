#!/bin/sh
# Makes a virtual environment with pip: `sh tools/venv.sh DIR`. Takes the newest suitable Python
# that has venv, else uv; with neither, says how to get one and fails.
set -eu
dir=$1
PATH=$PATH:${HOME:-}/.local/bin  # where installers of uv leave it

suitable() { "$1" -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null; }

rm -rf "$dir"
for python in python3.14 python3.13 python3.12 python3.11 python3; do
    if suitable "$python" && "$python" -c "import venv, ensurepip" 2>/dev/null; then
        echo "Making $dir with $("$python" --version)"
        exec "$python" -m venv "$dir"
    fi
done
if command -v uv >/dev/null; then
    echo "Making $dir with uv"
    exec uv venv --quiet --seed --python ">=3.11" "$dir"
fi

sudo="sudo "
[ "$(id -u)" -ne 0 ] || sudo=""
if command -v apt-get >/dev/null && { suitable python3 || ! command -v python3 >/dev/null; }; then
    install="${sudo}apt-get install python3-venv"
elif command -v dnf >/dev/null; then
    install="${sudo}dnf install python3.12"
elif command -v brew >/dev/null; then
    install="brew install python@3.13"
else
    install="curl -LsSf https://astral.sh/uv/install.sh | sh"
fi
echo "kvsim needs Python 3.11 or newer with venv, or uv. This installs it: $install" >&2
exit 1
