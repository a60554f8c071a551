#!/bin/sh
# genesis-fp16 with the settings and home of the installed service. From root it switches to the
# service's user, so that it creates no files that the service cannot write.
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
*) echo "genesis-fp16 needs access to the service's files: run it with sudo" >&2 && exit 77 ;;
esac
