#!/bin/sh
# genesis-fp16 beside the installed service: its settings, its home and, from root, its user, so
# that no file of root's gets in the service's way.
export GENESIS_ENV_FILE=/etc/genesis-fp16/.env GENESIS_HOME=/var/lib/genesis-fp16
export HOME=/var/lib/genesis-fp16 PYTHONSAFEPATH=1
release=${RELEASE:-/opt/genesis-fp16/current}
case $(id -un) in
genesis-fp16) exec "$release/bin/genesis-fp16" "$@" ;;
root)
    cd $HOME || exit
    exec setpriv --reuid=genesis-fp16 --regid=genesis-fp16 --init-groups \
        "$release/bin/genesis-fp16" "$@"
    ;;
*) echo "genesis-fp16 works on the service's files: run it with sudo" >&2 && exit 77 ;;
esac
