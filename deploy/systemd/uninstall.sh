#!/usr/bin/env bash
# Removes what install.sh has installed. Settings, data and user are kept unless PURGE=1.
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "uninstall.sh must delete below /opt and /etc: run it as root" >&2; exit 1; }

if [ -d /run/systemd/system ] && [ -e /etc/systemd/system/genesis-fp16.service ]; then
    systemctl disable --quiet --now genesis-fp16.service
fi
rm -rf /opt/genesis-fp16 /etc/systemd/system/genesis-fp16.service{,.d} /usr/local/bin/genesis-fp16
[ ! -d /run/systemd/system ] || systemctl daemon-reload
if [ "${PURGE:-}" = 1 ]; then
    rm -rf /etc/genesis-fp16 /var/lib/genesis-fp16
    if getent passwd genesis-fp16 >/dev/null; then userdel genesis-fp16; fi
else
    echo "kept: /etc/genesis-fp16, /var/lib/genesis-fp16 and the user (PURGE=1 removes them)"
fi
