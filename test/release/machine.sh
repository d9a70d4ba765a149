#!/bin/bash
# machine.sh ROOT NAME IMAGES: becomes systemd of a machine of its own, with the root ROOT
# and namespaces and control groups of its own. It has a copy of IMAGES in /run/images.
set -e
root=$1 name=$2 images=$3
for group in /sys/fs/cgroup/*/; do
	[ -e "$group/cgroup.procs" ] || continue
	[ -e /sys/fs/cgroup/cgroup.procs ] && group=/sys/fs/cgroup/
	mkdir -p "$group/$name"
	for f in cpuset.cpus cpuset.mems; do
		if [ "$group" != /sys/fs/cgroup/ ] && [ -e "$group/$f" ]; then cat "$group/$f" >"$group/$name/$f"; fi
	done
	echo $$ >"$group/$name/cgroup.procs"
done
exec unshare --mount --pid --net --uts --ipc --cgroup --fork --kill-child --propagation private bash -c '
set -e
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount -t sysfs sysfs sys
if [ -e /sys/fs/cgroup/cgroup.procs ]; then
	mount -t cgroup2 cgroup2 sys/fs/cgroup
else
	mount -t tmpfs tmpfs sys/fs/cgroup -o mode=755
	for c in cpu cpuacct cpuset memory devices freezer blkio pids; do
		mkdir sys/fs/cgroup/$c
		mount -t cgroup -o $c cgroup sys/fs/cgroup/$c
	done
	mkdir sys/fs/cgroup/systemd sys/fs/cgroup/unified
	mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
	mount -t cgroup2 cgroup2 sys/fs/cgroup/unified
fi
mount -t tmpfs tmpfs dev -o mode=755
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for n in null zero full random urandom tty loop-control; do cp -a /dev/$n dev/; done
: >dev/console
mount -t tmpfs tmpfs run -o mode=755
mount -t tmpfs tmpfs tmp -o mode=1777
mkdir -p run/images run/written/files run/written/work
mount -t overlay -o "lowerdir=$2,upperdir=run/written/files,workdir=run/written/work" overlay run/images
ip link set lo up
mkdir -p run/before
pivot_root . run/before
cd /
umount -l /run/before
rmdir /run/before
export container=doze
exec /lib/systemd/systemd --log-target=console
' sh "$root" "$images"
