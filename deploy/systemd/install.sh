#!/usr/bin/env bash
# Installs genesis-fp16 as a service, or upgrades it in place. `make install` runs it, as root.
#
# A release is a virtual environment of its own below /opt/genesis-fp16/releases, and the link
# `current` names the one in use: the daemon that serves meanwhile never sees a half-written one,
# and the way back is to name the old one again. Settings and data are left as they are.
#
#   DEVICE=cuda   let the service see GPUs
set -euo pipefail
cd "$(dirname "$0")/../.."

prefix=/opt/genesis-fp16 config=/etc/genesis-fp16 home=/var/lib/genesis-fp16 user=genesis-fp16
units=/etc/systemd/system

[ "$(id -u)" = 0 ] || { echo "install.sh writes below /opt and /etc: run it as root" >&2; exit 1; }

umask 022
release=$prefix/releases/$(date -u +%Y%m%dT%H%M%SZ)
source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT
cp -r pyproject.toml README.md LICENSE genesis_fp16 infrastructure agents "$source"

mkdir -p "$prefix/releases"
"${PYTHON:-python3}" -m venv "$release"
install="$release/bin/python -m pip install --quiet --disable-pip-version-check"
$install --constraint constraints.txt "$source[postgres]"
if [ -f "$config/plugins.txt" ]; then
    $install --constraint constraints.txt --requirement "$config/plugins.txt"
fi
cp -r docs deploy/drill "$release/"

getent passwd $user >/dev/null ||
    useradd --system --user-group --home-dir $home --shell /usr/sbin/nologin $user
install -d -m 0750 -o root -g $user $config
install -d -m 0700 -o $user -g $user $home
[ -f $config/.env ] || install -m 0640 -o root -g $user .env.example $config/.env
[ -f $config/plugins.txt ] || install -m 0644 deploy/systemd/plugins.txt $config/plugins.txt

install -m 0644 deploy/systemd/genesis-fp16.service $units/
install -m 0755 deploy/systemd/genesis-fp16.sh /usr/local/bin/genesis-fp16
if [ "${DEVICE:-}" = cuda ]; then
    install -D -m 0644 deploy/systemd/gpu.conf $units/genesis-fp16.service.d/gpu.conf
fi

# The settings must suit the new release, or the old one goes on.
before=$(readlink $prefix/current || true)
ln -sfn "$release" $prefix/current.new
RELEASE=$release genesis-fp16 config show >/dev/null
mv -T $prefix/current.new $prefix/current
for old in "$prefix"/releases/*; do
    case $old in "$release" | "$before") ;; *) rm -rf "$old" ;; esac
done

if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl try-restart genesis-fp16.service
fi
echo "installed $release; settings are in $config/.env"
systemctl is-active --quiet genesis-fp16.service || echo "next: systemctl enable --now genesis-fp16"
