# Shared by scripts/build, scripts/test and scripts/demo; sourced, never run.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PYTHON=/usr/bin/python3  # Debian's: python3-numpy and python3-torch belong to it; PATH may have another Python
RELEASE=$(. /etc/os-release 2>/dev/null && echo "${VERSION_CODENAME:-}" || true)  # bookworm is Debian 12, trixie is Debian 13
JOBS=${ADDEND_JOBS:-$(nproc)}
# ccache hashes paths below the checkout relative to it, so that sanitizer and fault builds share its entries.
export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1

fail() {  # STATUS SENTENCE
  echo "$(basename "$0"): $2" >&2
  exit "$1"
}

# Prints the packages of the given groups in scripts/packages.txt that this release of Debian has.
packages_of() {
  local group
  for group in "$@"; do
    awk -v group="$group" -v release="$RELEASE" '$1 == group && ($3 == "" || $3 == release) { print $2 }' "$ROOT/scripts/packages.txt"
  done
}

# Prints the given packages that are neither installed nor provided by an installed package (another nodejs provides npm).
missing_packages() {
  local package provided
  provided=" $(dpkg-query -W -f='${db:Status-Status}, ${Provides}\n' | sed -n 's/^installed, //p' | sed 's/([^)]*)//g' | tr ',\n' '  ') "
  for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || [[ $provided == *" $package "* ]] || echo "$package"
  done
}

# Installs the missing packages of the groups in scripts/packages.txt. Exits with 77 and a sentence if it may not.
require_packages() {
  local missing log
  command -v dpkg-query >/dev/null || fail 77 "this is not a Debian system: install what scripts/packages.txt lists, then build with 'cmake --preset release'."
  mapfile -t missing < <(missing_packages $(packages_of "$@"))
  [ ${#missing[@]} -eq 0 ] && return
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null ||
      fail 77 "these Debian packages are missing and only root can install them: ${missing[*]}."
    as_root=(sudo -n)
  fi
  echo "Installing ${#missing[@]} Debian packages that scripts/packages.txt lists for: $*"
  printf '  %s\n' "${missing[@]}"
  log=$(mktemp)
  # The package lists may be absent (a fresh image) or stale (a package was replaced): then it updates them and retries.
  local install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}")
  if ! "${install[@]}" >"$log" 2>&1; then
    "${as_root[@]}" apt-get update -q >>"$log" 2>&1
    if ! "${install[@]}" >>"$log" 2>&1; then
      tail -n 30 "$log" >&2
      fail 77 "apt-get could not install the packages above; its whole output is in $log."
    fi
  fi
  rm -f "$log"
}

# Configures a preset; further arguments are cmake's. A new build folder uses a unity build, which takes half the time. To
# edit sources, configure first by 'cmake --preset release', which compiles each file alone.
configure_preset() {
  local preset=$1 directory=$ROOT/build-$1
  shift
  [ "$preset" != release ] || directory=$ROOT/build
  [ -f "$directory/CMakeCache.txt" ] || set -- -DCMAKE_UNITY_BUILD=ON "$@"
  (cd "$ROOT" && cmake --preset "$preset" "$@")
}

# Configures and builds a preset of CMakePresets.json; further arguments are targets. Prints nothing unless it fails.
build_preset() {
  local preset=$1 directory log
  shift
  case $preset in release) directory=$ROOT/build ;; *) directory=$ROOT/build-$preset ;; esac
  mkdir -p "$directory"
  log=$directory/build.log
  if ! (cd "$ROOT" && cmake --preset "$preset" && cmake --build --preset "$preset" -j "$JOBS" ${1:+--target "$@"}) >"$log" 2>&1; then
    grep -v '^\[[0-9/]*\] ' "$log" | tail -n 60 >&2
    echo "$(basename "$0"): the $preset build failed; its whole output is in $log." >&2
    return 1
  fi
}
