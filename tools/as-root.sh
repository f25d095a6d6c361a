#!/bin/bash
# Run a command that makes network namespaces and loads nft rules in them.
#
# usage: tools/as-root.sh COMMAND [ARGUMENT...]
#
# As root it runs directly. As an ordinary user it runs in a user namespace
# where it is root over namespaces of its own and over nothing else. Where
# unprivileged user namespaces are switched off (Ubuntu's AppArmor, some
# hardened kernels) it runs through sudo, if there is any.
set -euo pipefail

# nft, ip and sysctl lie there; an ordinary user's PATH lacks it on Debian.
export PATH="$PATH:/usr/sbin:/sbin"

if ((EUID == 0)); then exec "$@"; fi

# AppArmor lets the namespace be made and then takes its capabilities away, so
# that only use tells.
in_namespace=(unshare --user --map-root-user --net --mount)
if "${in_namespace[@]}" ip link set lo up 2>/dev/null; then
    exec "${in_namespace[@]}" -- bash -c 'ip link set lo up && exec "$@"' as-root "$@"
fi

if command -v sudo >/dev/null && { [[ -t 0 ]] || sudo -n true 2>/dev/null; }; then
    echo "user namespaces are not available to $(id -un): using sudo" >&2
    # Files that root leaves in the tree would be in the user's way.
    exec sudo --preserve-env=CI,PYTHONNOUSERSITE -- env PYTHONDONTWRITEBYTECODE=1 \
        PYTEST_ADDOPTS="-p no:cacheprovider" HYPOTHESIS_STORAGE_DIRECTORY="$PWD/.cache-0" "$@"
fi
echo "error: this needs root, sudo, or unprivileged user namespaces" >&2
echo "       (sysctl kernel.unprivileged_userns_clone=1, on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0)" >&2
exit 1
