#!/bin/bash
# machine.sh boot|enter NAME NETWORK DIR [IMAGES|COMMAND]: a machine that has just been installed.
# It has the programs of this host, and ours in PROGRAMS. It has a network, processes, mounts and control groups of its
# own. What it has in /etc, it may change. /var/lib/doze is empty, in DIR, and so are /run, /tmp
# and the home directory. IMAGES are there as /run/images.
set -e
what=$1 name=$2 network=$3 dir=$4
for group in /sys/fs/cgroup/*/; do
	[ -e "$group/cgroup.procs" ] || continue
	[ -e /sys/fs/cgroup/cgroup.procs ] && group=/sys/fs/cgroup/
	mkdir -p "$group/$name"
	for f in cpuset.cpus cpuset.mems; do
		if [ "$group" != /sys/fs/cgroup/ ] && [ -e "$group/$f" ]; then cat "$group/$f" >"$group/$name/$f"; fi
	done
	echo $$ >"$group/$name/cgroup.procs"
done
if [ "$what" = enter ]; then
	exec nsenter -t "$(cat "$dir/pid")" -a -- env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C DOZED_IMAGES_DIR=/run/images DOZED_SWAP=off bash -ec "cd; $5"
fi
# The first process of the machine reaps, as an init does.
exec nsenter --net="$network" unshare --mount --pid --uts --ipc --cgroup --fork --kill-child --propagation private bash -c '
set -e
dir=$1 name=$2 images=$3
hostname "$name"
mount -t proc proc /proc
mount -t sysfs sysfs /sys
if [ -e /sys/fs/cgroup/cgroup.procs ]; then
	mount -t cgroup2 cgroup2 /sys/fs/cgroup
else
	mount -t tmpfs tmpfs /sys/fs/cgroup -o mode=755
	for c in cpu cpuacct cpuset memory devices freezer blkio pids; do
		mkdir /sys/fs/cgroup/$c
		mount -t cgroup -o $c cgroup /sys/fs/cgroup/$c
	done
fi
mkdir -p "$dir/data" /var/lib/doze
mount --bind "$dir/data" /var/lib/doze
mount --bind "$PROGRAMS" /usr/local/bin
mount -t tmpfs tmpfs /mnt -o mode=755
mkdir /mnt/etc /mnt/etc-work /mnt/images /mnt/images-work /mnt/run
mount -t overlay -o "lowerdir=/etc,upperdir=/mnt/etc,workdir=/mnt/etc-work" overlay /etc
rm -rf /etc/doze*
cat "$dir/hosts" >>/etc/hosts
rm -f /etc/ssl/certs/ca-certificates.crt
cp "$dir/authority" /etc/ssl/certs/ca-certificates.crt
cp "$dir/doze.crt" "$dir/doze.pem" /etc
mkdir /mnt/run/images
mount -t overlay -o "lowerdir=$images,upperdir=/mnt/images,workdir=/mnt/images-work" overlay /mnt/run/images
mount --rbind /mnt/run /run
mount -t tmpfs tmpfs /root -o mode=700
exec 3>"$dir/ready"
mount -t tmpfs tmpfs /tmp -o mode=1777
echo >&3
sleep infinity & wait
' sh "$dir" "$name" "$5"
