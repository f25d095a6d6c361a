#!/bin/bash
# Run a command (default: make check) on a copy of the project in a fresh Debian.
#
# usage: tools/in-debian.sh [--tree] [--fresh] [--programs FOLDER] SUITE [COMMAND [ARGUMENT...]]
#
#   SUITE       bookworm (Debian 12) or trixie (Debian 13)
#   --tree      with what the work tree has changed, not HEAD alone
#   --fresh     remove the Debian root that an earlier run made, and make a new one
#   --programs  a folder with the programs of a control plane, as `make programs`
#               prints it: they need a network to be built, and are there in the root
#
# As root, on Debian or Ubuntu. The first run makes the root with debootstrap;
# later ones reuse it, with its packages and its .venv as far as they still fit.
# Set-up has the host's network, the command has none but a loopback of its own.
# Mounts, processes and links live in namespaces that end with the run, however
# it ends. The exit status is the command's.
#
# Environment:
#   NODEPROXY_DEBIAN_ROOTS   folder of the roots (default: ~/.cache/nodeproxy)
#   NODEPROXY_DEBIAN_MIRROR  Debian mirror (default: the one that the host's apt
#                            uses, else debootstrap's own)
#   https_proxy, PIP_INDEX_URL and the like reach set-up, as do the host's
#   pip.conf, certificates, resolv.conf and apt's proxies.
#
# shellcheck disable=SC2317 # functions are reached from traps and other shells too
set -euo pipefail
export PATH="$PATH:/usr/sbin:/sbin" # an ordinary user's PATH, kept by su, lacks them

readonly KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
readonly CA_IN_ROOT=/usr/local/share/host-ca-certificates.crt

say() { printf 'in-debian: %s\n' "$*" >&2; }
die() {
    printf 'in-debian: error: %s\n' "$1" >&2
    shift
    if (($#)); then printf '       %s\n' "$@" >&2; fi
    exit 1
}
usage() {
    sed -n 's/^# usage: /usage: /p' "$0" >&2
    exit 2
}

# --- in namespaces of its own ------------------------------------------------

# Runs a command with its own mounts and processes, in the background so that a
# signal is heeded at once, and takes all of it along when this script ends.
in_namespaces() { # command...
    # Background jobs of a script would ignore Ctrl-C and read from /dev/null.
    setpriv --pdeathsig KILL env --default-signal=INT,QUIT \
        unshare --mount --pid --fork --kill-child --mount-proc --propagation private -- "$@" <&0 &
    running=$!
    local status=0
    wait "$running" || status=$?
    running=
    return "$status"
}

interrupted() { # exit status
    trap '' INT TERM HUP
    # unshare holds signals back; its end kills the first process of the
    # namespace, and with that one all others in it.
    if [[ $running ]]; then
        kill -KILL "$running" 2>/dev/null || true
        wait "$running" 2>/dev/null || true
    fi
    say "interrupted"
    exit "$1"
}

# The functions below run in another shell: `declare -f` carries them over.

keep_only() { # extended regular expression of the variables that stay exported
    local name
    for name in $(compgen -e); do
        [[ $name =~ ^($1)$ ]] || unset -v "$name"
    done
}

# First process of the namespaces: makes the root its own file system, then sets up.
enter() { # root, CA bundle in it (or empty), folder of programs (or empty), command...
    local root=$1 ca=$2 programs=$3 device
    shift 3
    mount --bind "$root" "$root" # pivot_root wants a mount
    cd "$root"
    mount -t proc proc proc
    mount -t tmpfs -o mode=755 tmpfs run
    mount -t tmpfs -o mode=1777 tmpfs tmp
    mount -t tmpfs -o mode=755 tmpfs dev
    for device in null zero full random urandom tty; do
        : >"dev/$device"
        mount --bind "/dev/$device" "dev/$device"
    done
    mkdir dev/pts dev/shm
    mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts dev/pts
    mount -t tmpfs -o mode=1777 tmpfs dev/shm
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    ln -s fd/0 dev/stdin
    ln -s fd/1 dev/stdout
    ln -s fd/2 dev/stderr
    if [[ -d /lib/modules ]]; then # modprobe in the root serves the host's kernel
        mkdir -p lib/modules
        mount --bind -o ro /lib/modules lib/modules
    fi
    unset NODEPROXY_CLUSTER_PROGRAMS # names a folder of the host's, if set
    if [[ $programs ]]; then
        mkdir run/programs
        mount --bind -o ro "$programs" run/programs # they are linked statically
        export NODEPROXY_CLUSTER_PROGRAMS=/run/programs
    fi
    # Not chroot: the kernel lets no user namespace be made in one.
    mkdir -p run/host
    pivot_root . run/host
    cd /
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    hash -r
    umount -l /run/host

    local network='(https?|all|no)_proxy|(HTTPS?|ALL|NO)_PROXY'
    network+='|PIP_(INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|PROXY|DEFAULT_TIMEOUT|RETRIES)'
    keep_only "PATH|TERM|NODEPROXY_CLUSTER_PROGRAMS|$network"
    export HOME=/root USER=root LOGNAME=root LANG=C.UTF-8 CI=true
    cd /src
    # The certificates that the root will have are Debian's; a proxy's may be among the host's only.
    env ${ca:+"PIP_CERT=$ca" "SSL_CERT_FILE=$ca" "REQUESTS_CA_BUNDLE=$ca"} make setup </dev/null >&2

    keep_only 'PATH|TERM|HOME|USER|LOGNAME|LANG|CI|NODEPROXY_CLUSTER_PROGRAMS'
    say "running in $PWD, without a network: $*"
    exec unshare --net -- /bin/bash -euc "$(declare -f without_network); without_network \"\$@\"" without-network "$@"
}

without_network() { # command...
    ip link set lo up
    mount -t sysfs sysfs /sys # shows the links of the namespace that mounts it
    # Not exec: this is the first process, and orphans of the tests need one that reaps.
    local status=0
    "$@" || status=$?
    exit "$status"
}

# --- on the host -------------------------------------------------------------

ensure_programs() {
    local -a packages=()
    command -v debootstrap >/dev/null || packages+=(debootstrap)
    command -v gpgv >/dev/null || packages+=(gpgv)
    command -v git >/dev/null || packages+=(git)
    [[ -f $KEYRING ]] || packages+=(debian-archive-keyring)
    if ((${#packages[@]} == 0)); then return; fi
    command -v apt-get >/dev/null || die "this is not Debian or Ubuntu (no apt-get), and these are missing: ${packages[*]}"
    say "installing on this machine: ${packages[*]}"
    apt_get install --no-install-recommends "${packages[@]}" >/dev/null ||
        { apt_get update && apt_get install --no-install-recommends "${packages[@]}" >/dev/null; } ||
        die "apt-get could not install them (its messages are above)"
}

apt_get() {
    DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 "$@"
}

# Prints the URI of the Debian mirror in the host's apt configuration; nothing
# where there is none, as on Ubuntu.
host_mirror() {
    local uri
    # apt knows who signed a repository from the lists that it has fetched.
    # shellcheck disable=SC2016 # apt-get expands it
    uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' \
        'Origin: Debian' 'Label: Debian' 'Component: main' | head -n 1)
    case $uri in
    mirror+file:*) # a file with one mirror a line, as cloud images have
        uri=${uri#mirror+file:} uri=${uri%/}
        awk '$1 ~ /^https?:/ { print $1; exit }' "/${uri##+(/)}"
        ;;
    *) printf '%s\n' "$uri" ;;
    esac
}

find_mirror() {
    mirror=${NODEPROXY_DEBIAN_MIRROR:-$(host_mirror)}
    if [[ ! $mirror ]]; then
        say "reading package lists (apt-get update)"
        apt_get update || true # a third party's repository may fail
        mirror=$(host_mirror)
    fi
    say "mirror: ${mirror:-the default of debootstrap}"
}

make_root() {
    local log=$root.log http_proxy=${http_proxy:-}
    local -a arguments=(--variant=minbase "--include=make,git" --force-check-gpg "--keyring=$KEYRING" "$suite" "$root.part")
    find_mirror
    if [[ $mirror ]]; then arguments+=("$mirror"); fi
    say "making $root with debootstrap (a few minutes)"
    # debootstrap does not read this one from apt's configuration.
    [[ $http_proxy ]] || eval "$(apt-config shell http_proxy Acquire::http::Proxy)"
    if [[ $http_proxy && $http_proxy != DIRECT ]]; then export http_proxy; fi
    remove "$root.part"
    mkdir -p "$root.part"
    chmod 755 "$root.part"
    # Redirected in there, so that what this script says itself is still seen.
    # shellcheck disable=SC2016 # the other shell expands it
    if ! in_namespaces /bin/bash -c 'exec debootstrap "$@" </dev/null >"$0" 2>&1' "$log" "${arguments[@]}"; then
        tail -n 15 "$log" >&2
        die "debootstrap failed (the end of $log is above)" "Another mirror can be given in NODEPROXY_DEBIAN_MIRROR."
    fi
    mv "$root.part" "$root" # so that a root by that name is a whole one
    rm -f "$log"
    say "made it in $SECONDS s"
}

remove() { # path of a root or of something in one
    rm -rf --one-file-system "$1"
}

copy_in() { # file on the host (may be missing), its path in the root
    rm -f "$root$2"
    if [[ -f $1 && -r $1 ]]; then install -D -m 644 "$1" "$root$2"; fi
}

copy_configuration() {
    local bundle=${PIP_CERT:-${REQUESTS_CA_BUNDLE:-${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}}}
    local user_pip=${XDG_CONFIG_HOME:-$HOME/.config}/pip/pip.conf
    local apt_conf=$root/etc/apt/apt.conf.d/90host
    [[ -f $user_pip ]] || user_pip=$HOME/.pip/pip.conf
    copy_in /etc/resolv.conf /etc/resolv.conf
    copy_in /etc/hosts /etc/hosts
    copy_in /etc/pip.conf /etc/pip.conf
    copy_in "${PIP_CONFIG_FILE:-$user_pip}" /root/.config/pip/pip.conf
    copy_in "$bundle" "$CA_IN_ROOT"
    # What concerns the way to the mirror, without paths of files that only the host has.
    apt-config dump | awk '
        /^Acquire::(http|https)::/ && !/Auto-?Detect|CAInfo|CAPath|SslCert|SslKey/ && !/ "";$/
        /^Acquire::(Check-Valid-Until|Check-Date|Max-FutureTime|Retries|ForceIPv4|ForceIPv6) /
    ' >"$apt_conf"
    ca=
    if [[ -f $root$CA_IN_ROOT ]]; then
        ca=$CA_IN_ROOT
        printf 'Acquire::https::CAInfo "%s";\n' "$ca" >>"$apt_conf"
    fi
}

copy_project() {
    local new=$root/src.new
    remove "$new"
    git clone --quiet --no-hardlinks "$project" "$new"
    if [[ $with_tree ]]; then
        # Tracked and new files as they are now; ignored and deleted ones are not there.
        git -C "$project" ls-files -z --deleted | (cd "$new" && xargs -0 --no-run-if-empty rm -f --)
        git -C "$project" ls-files -z --cached --others --exclude-standard |
            (cd "$project" && while IFS= read -rd '' file; do
                if [[ -e $file || -L $file ]]; then printf '%s\0' "$file"; fi
            done | tar --create --null --no-recursion --files-from=-) |
            tar --extract --no-same-owner --directory="$new"
    fi
    # Set-up decides whether the virtual environment of the last run still fits.
    if [[ -d $root/src/.venv ]]; then mv "$root/src/.venv" "$new/.venv"; fi
    remove "$root/src"
    mv "$new" "$root/src"
    say "testing $(git -C "$root/src" log -1 --format='%h (%s)')${with_tree:+ and what the work tree has changed}"
}

# --- from the top ------------------------------------------------------------

shopt -s extglob

# One function, read whole before it starts: editing this file during a long run does no harm.
main() {
    local status=0
    with_tree='' fresh='' running='' ca='' mirror='' programs=''
    while [[ ${1:-} == -* ]]; do
        case $1 in
        --tree) with_tree=yes ;;
        --fresh) fresh=yes ;;
        --programs)
            [[ -d ${2:-} ]] || usage
            programs=$(realpath "$2")
            shift
            ;;
        *) usage ;;
        esac
        shift
    done
    suite=${1:-}
    [[ $suite == bookworm || $suite == trixie ]] || usage
    shift
    if (($# == 0)); then set -- make check; fi
    ((EUID == 0)) || die "this needs root, to make a Debian root and to enter it" "sudo tools/in-debian.sh $suite"

    # A git hook's variables would point clone and ls-files elsewhere.
    unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
    project=$(cd -P "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    roots=$(realpath -m "${NODEPROXY_DEBIAN_ROOTS:-${XDG_CACHE_HOME:-$HOME/.cache}/nodeproxy}")
    [[ $roots/ != "$project"/* ]] || die "$roots lies in the work tree" "Set NODEPROXY_DEBIAN_ROOTS to a folder outside of it."
    root=$roots/$suite
    mkdir -p "$roots"

    trap 'interrupted 129' HUP
    trap 'interrupted 130' INT
    trap 'interrupted 143' TERM

    # Everything that runs in the root inherits the lock, so that it is free only
    # when nothing does any more.
    exec {lock}>"$root.lock"
    if ! flock --nonblock "$lock"; then
        say "waiting for another run in $root"
        flock "$lock" & # in the background: signals are heeded
        running=$!
        wait "$running"
        running=
    fi

    ensure_programs
    if [[ $fresh ]]; then remove "$root"; fi
    if [[ ! -d $root ]]; then make_root; fi
    copy_project
    copy_configuration
    in_namespaces /bin/bash -euo pipefail -c \
        "$(declare -f say keep_only without_network enter); enter \"\$@\"" enter "$root" "$ca" "$programs" "$@" || status=$?
    say "exit status $status after $SECONDS s"
    exit "$status"
}

main "$@"
