#!/bin/bash
# Set up everything the other commands need: Debian packages, then .venv.
#
# Debian 12, Debian 13 and Ubuntu 24.04, as root or as a user with sudo. What
# is there already is left alone: a second run takes a few milliseconds and
# needs neither the network nor root.
#
# Elsewhere (no apt-get) it goes on if the same things are installed by other
# means, and says what is missing if not.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

# python3-nftables sees only the distribution's own Python, so a python3 that
# comes first on PATH (pyenv, /usr/local, conda) would not do.
readonly SYSTEM_PYTHON=/usr/bin/python3
readonly VENV=.venv
readonly STAMP=$VENV/.setup-done
readonly PACKAGES=(
    python3 python3-venv                  # the agent
    python3-nftables libnftables1         # the rules' way into the kernel
    nftables iproute2 util-linux          # nft, ip, ss, unshare: tests and demo
    procps kmod                           # sysctl and modprobe: tests, demo and init
    ca-certificates                       # the package index is reached by HTTPS
)

# What is set for another Python must not reach this one, and packages in
# ~/.local must not count as installed: they are gone for the next user.
unset PYTHONHOME PYTHONPATH VIRTUAL_ENV PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV
export PYTHONNOUSERSITE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Nothing here may wait for an answer that nobody is there to give.
export DEBIAN_FRONTEND=noninteractive PIP_NO_INPUT=1

lists_are_new=false

say() { printf 'setup: %s\n' "$*"; }
die() {
    printf 'setup: error: %s\n' "$1" >&2
    shift
    if (($#)); then printf '       %s\n' "$@" >&2; fi
    exit 1
}

# --- Debian packages ---------------------------------------------------------

missing_packages() {
    local package status
    for package in "${PACKAGES[@]}"; do
        status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
        [[ $status == installed ]] || printf '%s\n' "$package"
    done
}

as_root() {
    if ((EUID == 0)); then "$@"; else sudo "$@"; fi
}

require_root() { # packages...
    if ((EUID == 0)); then return; fi
    if ! command -v sudo >/dev/null; then
        die "packages are missing, and you are neither root nor is there sudo" \
            "Run this as root, then try again:  apt-get install $*"
    fi
    # With a terminal sudo may ask for a password; without one it can't.
    if [[ ! -t 0 ]] && ! sudo -n true 2>/dev/null; then
        die "packages are missing, sudo wants a password and there is no terminal to ask for it" \
            "Run this first, then try again:  sudo apt-get install $*"
    fi
}

# Waits for a lock (unattended-upgrades on a fresh machine) and retries, but not for ever.
apt() {
    as_root env DEBIAN_FRONTEND="$DEBIAN_FRONTEND" apt-get -qq -y \
        -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -o Acquire::http::Timeout=60 -o Dpkg::Use-Pty=0 "$@"
}

# True if apt's lists name a version for each of the packages.
lists_know() { # packages...
    local package
    for package in "$@"; do
        [[ $(apt-cache policy "$package" 2>/dev/null) =~ Candidate:\ *[0-9] ]] || return 1
    done
}

update_lists() {
    say "reading package lists (apt-get update)"
    lists_are_new=true
    apt update
}

install_packages() { # packages...
    say "installing Debian packages: $*"
    apt install --no-install-recommends "$@" >"$log" 2>&1
}

ensure_packages() {
    local -a missing
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        ensure_without_apt
        return
    fi
    mapfile -t missing < <(missing_packages)
    if ((${#missing[@]} == 0)); then return; fi
    require_root "${missing[@]}"

    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    # A mirror that fails, perhaps a third party's, need not stop the packages
    # from being found: installing them tells.
    lists_know "${missing[@]}" || update_lists || true
    if install_packages "${missing[@]}"; then return; fi
    # Old lists name versions that mirrors have dropped: fetch new ones and try once more.
    if [[ $lists_are_new == false ]] && { update_lists || true; } && install_packages "${missing[@]}"; then return; fi
    tail -n 15 "$log" >&2
    die "apt-get could not install the packages (its messages are above)" \
        "Is there a network, and are the mirrors in /etc/apt right? By hand:  apt-get install ${missing[*]}"
}

ensure_without_apt() {
    local program
    local -a lacking=()
    [[ -x $SYSTEM_PYTHON ]] || lacking+=("$SYSTEM_PYTHON")
    for program in nft ip ss unshare sysctl modprobe; do
        PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null || lacking+=("$program")
    done
    if [[ -x $SYSTEM_PYTHON ]]; then
        "$SYSTEM_PYTHON" -c 'import nftables' 2>/dev/null || lacking+=("the module nftables for $SYSTEM_PYTHON")
        "$SYSTEM_PYTHON" -c 'import ensurepip' 2>/dev/null || lacking+=("the modules venv and ensurepip for $SYSTEM_PYTHON")
    fi
    if ((${#lacking[@]})); then
        die "this is not Debian or Ubuntu (no apt-get), and these are missing:" "${lacking[@]}" \
            "On Debian they come from: ${PACKAGES[*]}"
    fi
}

# --- the virtual environment -------------------------------------------------

# Everything .venv depends on. Its place counts too: virtual environments can't be moved.
fingerprint() {
    local python version
    python=$(readlink -f "$SYSTEM_PYTHON")
    version=$("$SYSTEM_PYTHON" -c 'import sys; print(sys.version)')
    {
        printf '%s\n' "$PWD" "$python" "$version"
        cat pyproject.toml tools/setup.sh
    } | sha256sum | cut -d ' ' -f 1
}

# True if .venv belongs to the system's Python of today, lies where it was made, and has a pip.
venv_usable() {
    local python minor
    python=$(readlink -f "$SYSTEM_PYTHON")
    minor=$("$SYSTEM_PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    [[ -x $VENV/bin/python && -f $VENV/pyvenv.cfg && $(readlink -f "$VENV/bin/python") == "$python" ]] &&
        grep -qx 'include-system-site-packages = true' "$VENV/pyvenv.cfg" &&
        grep -q "^version = $minor\\." "$VENV/pyvenv.cfg" &&
        [[ $(head -n 1 "$VENV/bin/pip" 2>/dev/null) == "#!$PWD/$VENV/bin/python"* ]] &&
        "$VENV/bin/python" -m pip --version >/dev/null 2>&1
}

pip_install() {
    "$VENV/bin/python" -m pip install --quiet --retries 3 "$@" ||
        die "pip could not install the dependencies (its messages are above)" \
            "Is there a network? Behind a proxy or with an index of your own: set https_proxy, or pip's configuration."
}

ensure_venv() {
    if [[ -e $VENV && ! -w $VENV ]]; then
        die "$PWD/$VENV belongs to another user" "Remove it (an earlier 'sudo make' made it?):  sudo rm -rf $PWD/$VENV"
    fi
    if ! venv_usable; then
        say "making $VENV with $("$SYSTEM_PYTHON" --version) ($SYSTEM_PYTHON)"
        "$SYSTEM_PYTHON" -m venv --clear --system-site-packages "$VENV" || die "$SYSTEM_PYTHON -m venv failed"
    fi
    # Dependency groups (PEP 735) need pip 25.1; Debian 12 has 23.0, Ubuntu 24.04 has 24.0.
    say "installing pip"
    pip_install --upgrade 'pip>=25.1'
    # The system's packages are visible: those in range are used, the others
    # get a newer copy in .venv, which comes first on the path.
    say "installing nodeproxy, its dependencies and the tools for tests (about a minute)"
    pip_install --editable . --group dev
    "$VENV/bin/python" -c 'import nftables; nftables.Nftables()' ||
        die "$VENV does not see the module nftables, or libnftables can't be loaded" \
            "Reinstall them:  apt-get install --reinstall python3-nftables libnftables1"
}

main() {
    ensure_packages
    "$SYSTEM_PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "$SYSTEM_PYTHON is $("$SYSTEM_PYTHON" --version); 3.11 or newer is needed" \
            "Debian 12 and Ubuntu 24.04 are the oldest releases that have it."
    local want
    want=$(fingerprint)
    if [[ -f $STAMP && $(<"$STAMP") == "$want" ]]; then return; fi
    ensure_venv
    printf '%s\n' "$want" >"$STAMP"
    say "done"
}

main
