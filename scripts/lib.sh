# shellcheck shell=bash
# Shared by the scripts beside it: the virtual environment, pinned installs, the CPU library, the demo model.
# Source it from bash; it leaves the shell in the project's root.
#
# VENV=DIR     where the virtual environment lies (default: .venv)
# PYTHON=FILE  the interpreter to make it with (default: the newest of 3.13, 3.12 and 3.11 found)

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
ROOT=$PWD
VENV=${VENV:-$ROOT/.venv}
DEMO_MODEL=models/smollm2-135m-instruct
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '\n== %s\n' "$*" >&2; }

die() {
  printf '%s\n' "$*" >&2
  exit 1
}

# apt_install PACKAGE...: as root on Debian or Ubuntu; elsewhere it dies with what to install.
apt_install() {
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    die "Missing: $*. Install them (Debian, Ubuntu: apt-get install $*), or run this as root where there is apt-get."
  fi
  say "apt-get install $*"
  apt-get update -qq >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}

# Prints an interpreter of a supported version that can make a virtual environment; dies with what to install.
find_python() {
  local candidate version without_venv=''
  for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3 python}; do
    # A candidate may be a shim that exists and cannot run.
    version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    case $version in 3.11 | 3.12 | 3.13) ;; *) continue ;; esac
    if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
      "$candidate" -c 'import sys; print(sys.executable)'
      return
    fi
    without_venv=${without_venv:-$version}
  done
  if [ -n "$without_venv" ]; then
    die "Python $without_venv is here, but without its venv module: apt-get install python$without_venv-venv"
  elif [ -n "${PYTHON:-}" ]; then
    die "PYTHON=$PYTHON is not a Python 3.11, 3.12 or 3.13 that runs"
  fi
  die "No Python 3.11, 3.12 or 3.13 was found. On Debian 12 or Ubuntu 24.04: apt-get install python3 python3-venv." \
    "Another one is taken with PYTHON=/path/to/python3.12"
}

# install EXTRA...: the project, editable, with these extras at the versions of constraints.txt. Does nothing where
# the last install had them and neither pyproject.toml nor constraints.txt has changed since, nor has a `pip install .`
# put a copy of the sources in its place.
install() {
  local stamp=$VENV/.installed state extras wanted='' extra
  if [ -e "$VENV" ] && [ ! -f "$VENV/pyvenv.cfg" ]; then
    die "$VENV is there and is no virtual environment; name another with VENV=DIR"
  fi
  if [ -e "$VENV" ] && ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    say "$VENV does not run any more (moved, or its Python is gone); making it anew"
    rm -rf "$VENV"
  fi
  if [ ! -e "$VENV" ]; then
    local python
    python=$(find_python)
    say "Making $VENV with $("$python" --version) ($python)"
    "$python" -m venv "$VENV"
  fi
  state=$({ printf '%s\n' "$ROOT"; cat pyproject.toml constraints.txt; } | sha256sum)
  extras=
  if [ -f "$stamp" ] && [ "$(sed -n 1p "$stamp")" = "$state" ] &&
    ! compgen -G "$VENV/lib/python3*/site-packages/pilotlight/__init__.py" >/dev/null; then
    extras=$(sed -n 2p "$stamp")
  fi
  for extra in "$@"; do
    case ",$extras," in *",$extra,"*) ;; *) wanted=$wanted${wanted:+,}$extra ;; esac
  done
  [ -n "$wanted" ] || return 0
  extras=$extras${extras:+,}$wanted
  say "Installing pilotlight[$extras] into $VENV"
  rm -f "$stamp"
  local index=()
  case ,$wanted, in *,reference,*) has_cpu_torch || index=(--extra-index-url https://download.pytorch.org/whl/cpu) ;; esac
  "$VENV/bin/python" -m pip install -c constraints.txt -e ".[$extras]" "${index[@]}" >&2
  printf '%s\n%s\n' "$state" "$extras" >"$stamp"
}

# Whether pip, as it is set up here, finds torch's CPU build. (PyPI's Linux build needs other CUDA bindings than ours.)
has_cpu_torch() {
  "$VENV/bin/python" -m pip install --quiet --dry-run --no-deps "$(grep '^torch==' constraints.txt)+cpu" 2>/dev/null
}

# The CPU library beside its sources, made again where they have changed.
build_native() {
  command -v g++ >/dev/null || command -v clang++ >/dev/null || install compiler
  "$VENV/bin/pilotlight" build native >&2
}

# build_demo_model [DTYPE]: the snapshot of the demo model, in bfloat16 or in DTYPE, made once; DEMO_SNAPSHOT says where.
build_demo_model() {
  local gguf dtype=${1:-bfloat16}
  DEMO_SNAPSHOT=$DEMO_MODEL
  [ "$dtype" = bfloat16 ] || DEMO_SNAPSHOT=$DEMO_MODEL-$dtype
  [ ! -f "$DEMO_SNAPSHOT/manifest.json" ] || return 0
  say "Getting the demo model, SmolLM2-135M-Instruct (98 MB)"
  gguf=$("$VENV/bin/python" scripts/get_demo_model models)
  say "Building its snapshot in $DEMO_SNAPSHOT"
  "$VENV/bin/pilotlight" build snapshot "$gguf" --dtype "$dtype" -o "$DEMO_SNAPSHOT" >&2
}
