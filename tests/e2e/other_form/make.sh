#!/bin/sh
# Makes what README.md describes, with the program of an older build, in namespaces of its own:
#   unshare --uts --net sh make.sh /path/to/muster /path/to/OUT.tar.xz
set -eu
muster=$1 out=$2 home=/tmp/fleet
export HOME=$home XDG_CONFIG_HOME=$home/config XDG_DATA_HOME= XDG_RUNTIME_DIR=
hostname shop-7
ip link set lo up
rm -rf "$home"
mkdir "$home"
cd "$home"
"$muster" backup key --out key.txt >key.out 2>&1
recipient=$(sed -n 's/.*"\(age1[^"]*\)".*/\1/p' key.out | head -n 1)
"$muster" up --data up --web-port 17080 --hosts-port 17443 --mqtt-port 18883 --backup-recipient "$recipient" >up.out 2>&1 &
up=$!
until "$muster" unit ls -o json 2>/dev/null | grep -q '"running"'; do sleep 1; done
"$muster" backup create one.tar.age
"$muster" simulate --hosts 2 --data simulate --for 3s >sim.out 2>&1
"$muster" yuno stop --all --yes
until "$muster" unit ls -o json | grep -q '"phase": *"stopped"'; do sleep 1; done
kill -INT "$up"
wait "$up"
# The manifest is in the first piece of a backup.
head -c 66000 one.tar.age >one
mv one one.tar.age
rm -rf key.out up.out sim.out up/agent/artifacts up/agent/shim-* up/agent/reserve up/agent/sealing.key
rm -rf up/console/artifacts up/console/backups up/console/reserve up/console/authority/*.key
mv config/muster/context.toml .
tar --sort=name --owner=0 --group=0 --mtime=2026-11-28 -cJf "$out" context.toml key.txt one.tar.age simulate up
