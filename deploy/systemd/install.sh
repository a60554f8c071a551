#!/usr/bin/env bash
# Installs genesis-fp16 as a service, or upgrades it in place. `make install` runs it, as root.
#
# A release is a virtual environment below /opt/genesis-fp16/releases, and the link `current` names
# the one in use, so that a running daemon never sees an incomplete one. Unit, command and link are
# replaced by renaming, and only after the new release has accepted the settings. After any failure
# or interruption the previous state is restored. Settings and data are not changed.
#
#   DEVICE=cuda   let the service see GPUs
#   PYTHON=...    the Python to build the release with, 3.11 or newer
set -euo pipefail
cd "$(dirname "$0")/../.."

prefix=/opt/genesis-fp16 config=/etc/genesis-fp16 home=/var/lib/genesis-fp16 user=genesis-fp16
units=/etc/systemd/system command=/usr/local/bin/genesis-fp16 python=${PYTHON:-python3}

fail() { echo "install.sh: $1" >&2; exit 1; }

[ "$(id -u)" = 0 ] || fail "must write below /opt and /etc: run it as root"
for tool in "$python" flock getent install mktemp setpriv systemctl useradd; do
    command -v "$tool" >/dev/null || fail "needs $tool, which is not on the PATH; nothing was changed"
done
"$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' ||
    fail "$python must be 3.11 or newer with venv (python3-venv); nothing was changed"

umask 022
mkdir -p $prefix/releases
exec 9>$prefix/.lock
flock -n 9 || fail "another install.sh is running"

placed=("$units/genesis-fp16.service" "$command" "$prefix/current")
if [ "${DEVICE:-}" = cuda ]; then placed+=("$units/genesis-fp16.service.d/gpu.conf"); fi
source=$(mktemp -d)
release=$(mktemp -d "$prefix/releases/$(date -u +%Y%m%dT%H%M%SZ).XXXX")
before=$(readlink $prefix/current || true)
replaced='' finished=''

there() { [ -e "$1" ] || [ -L "$1" ]; }

serves=''  # whether a daemon is running and must be restarted
case $(systemctl is-active genesis-fp16.service 2>/dev/null || true) in
active | activating | reloading) serves=yes ;;
esac

restart() {
    [ -d /run/systemd/system ] || return 0
    systemctl daemon-reload
    [ ! "$serves" ] || systemctl restart genesis-fp16.service
}

leave() {  # on any exit
    trap '' INT TERM HUP
    if [ "$replaced" ] && [ ! "$finished" ]; then
        for path in "${placed[@]}"; do
            if there "$path.old"; then mv -T "$path.old" "$path"; else rm -f "$path"; fi
        done
        restart || echo "install.sh: the old release does not start either: systemctl status genesis-fp16" >&2
    fi
    if [ ! "$finished" ]; then
        rm -rf "$release"
        echo "install.sh: not installed; still in use: ${before:-nothing}" >&2
    fi
    for path in "${placed[@]}"; do rm -f "$path.new" "$path.old" || true; done
    rm -rf "$source"
}
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

chmod 0755 "$release"
[ -f genesis_fp16/api/page/site/index.html ] ||
    echo "install.sh: the page will lack the documentation under /docs: run 'make docs' before, as yourself" >&2
cp -r pyproject.toml README.md LICENSE genesis_fp16 infrastructure agents "$source"
"$python" -m venv "$release"
install="$release/bin/python -m pip install --quiet --disable-pip-version-check"
$install --constraint constraints.txt "${source}[postgres]"
if [ -f $config/plugins.txt ]; then
    $install --constraint constraints.txt --requirement $config/plugins.txt
fi
cp -r docs deploy/drill deploy/systemd "$release/"

getent passwd $user >/dev/null ||
    useradd --system --user-group --home-dir $home --shell /usr/sbin/nologin $user
install -d -m 0750 -o root -g $user $config
install -d -m 0710 -o $user -g $user $home
[ -f $config/.env ] || install -m 0640 -o root -g $user .env.example $config/.env
[ -f $config/plugins.txt ] || install -m 0644 deploy/systemd/plugins.txt $config/plugins.txt

# If the new release does not accept the settings, the old one stays in use.
RELEASE=$release sh deploy/systemd/genesis-fp16.sh config show >/dev/null ||
    fail "the new release does not run for $user, see above: fix $config/.env, or set PYTHON=/usr/bin/python3"

# Everything that needs disk space comes before the first rename.
for path in "${placed[@]}"; do
    mkdir -p "${path%/*}"
    rm -f "$path.old"
    if there "$path"; then cp -P --preserve=all "$path" "$path.old"; fi
done
install -T -m 0644 deploy/systemd/genesis-fp16.service $units/genesis-fp16.service.new
install -T -m 0755 deploy/systemd/genesis-fp16.sh $command.new
ln -sfT "$release" $prefix/current.new
if [ "${DEVICE:-}" = cuda ]; then
    install -T -m 0644 deploy/systemd/gpu.conf $units/genesis-fp16.service.d/gpu.conf.new
fi
replaced=yes
for path in "${placed[@]}"; do mv -T "$path.new" "$path"; done
restart || fail "the new release does not start: journalctl -u genesis-fp16"
finished=yes

for old in "$prefix"/releases/*; do
    case $old in "$release" | "$before") ;; *) rm -rf "$old" ;; esac
done
echo "installed $release; settings are in $config/.env"
[ "$serves" ] || echo "next: systemctl enable --now genesis-fp16"
