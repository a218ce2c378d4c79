#!/usr/bin/env bash
# Becomes the first process of a machine of its own: processes, cgroups and changes to the file system apart from
# this host's, and systemd.
#
#   machine.sh FOLDER BOOT_ID
#
# FOLDER is on a file system of its own, and keeps what the machine writes; MUSTER is the program under test, which
# is /opt/muster there; CGROUP names its cgroups. Network and kernel are this host's.
set -eu
folder=$1
boot_id=$2
root=$folder/root

# Each hierarchy of cgroups, with a cgroup of the machine's own for its root.
if [ "${3-}" != inside ]; then
    while read -r _ _ _ _ point _ rest; do
        type=${rest#*- }
        case "$type" in cgroup\ * | cgroup2\ *) ;; *) continue ;; esac
        mkdir -p "$point/$CGROUP"
        # That of cpusets takes nobody in before it is told some; it is not needed.
        { echo 0 >"$point/$CGROUP/cgroup.procs"; } 2>/dev/null || true
    done </proc/self/mountinfo
    exec unshare --mount --pid --uts --ipc --cgroup --fork --kill-child=KILL bash "$0" "$folder" "$boot_id" inside
fi

mkdir -p "$folder/upper" "$folder/work" "$root"
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$root"
mount -t proc proc "$root/proc"
printf '%s\n' "$boot_id" >"$folder/boot_id"
mount --bind "$folder/boot_id" "$root/proc/sys/kernel/random/boot_id"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/sys/fs/cgroup"
# Read before it grows.
mounts=$(cat /proc/self/mountinfo)
while read -r _ _ _ _ point _ rest; do
    rest=${rest#*- }
    type=${rest%% *}
    # Its controllers, or `name=`, among options such as `rw`.
    options=${rest##* }
    options=${options#rw,}
    case "$type" in
        cgroup) ;;
        cgroup2) options= ;;
        *) continue ;;
    esac
    mkdir -p "$root$point"
    if [ "$options" = "" ]; then
        mount -t cgroup2 cgroup2 "$root$point"
    else
        case "$options" in *name=*) options=none,$options ;; esac
        mount -t cgroup -o "$options" cgroup "$root$point"
    fi
done <<<"$mounts"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir -p "$root/dev/shm" "$root/dev/pts"
# Services with devices of their own (PrivateDevices) need one.
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mkdir -p "$root/opt"
touch "$root/opt/muster"
mount --bind "$MUSTER" "$root/opt/muster"

# Nothing but what a test puts there is started.
if [ ! -e "$folder/bare" ]; then
    find "$root/etc/systemd/system" -mindepth 1 -delete
    # An agent of this host's own is none of the machine's.
    rm -rf "$root"/var/lib/muster* "$root/etc/muster" "$root"/{usr/bin,usr/local/bin}/muster \
        "$root"/{usr/lib,lib}/systemd/system/muster-*.service
    ln -s /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
    for unit in getty.target systemd-logind.service systemd-udevd.service systemd-networkd.service \
        systemd-timesyncd.service systemd-resolved.service systemd-update-utmp.service; do
        ln -s /dev/null "$root/etc/systemd/system/$unit"
    done
    touch "$folder/bare"
fi
exec env -i container=muster-test PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    chroot "$root" /lib/systemd/systemd </dev/null
