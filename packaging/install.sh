#!/bin/sh
# Installs or upgrades Doze from the files of a release beside this script:
#   sudo sh install.sh                 # the .deb, or the archive where there is no dpkg
#   sudo sh install.sh --archive       # the archive, into /usr/local
#   sudo sh install.sh --uninstall     # ends all sandboxes; records and checkpoints stay
#   sudo sh install.sh --purge         # deletes all sandboxes, records and keys, too
# It downloads nothing itself. apt gets the packages that dozed needs.
set -eu

prefix=/usr/local
here=$(cd "$(dirname "$0")" && pwd)
units=/etc/systemd/system

refuse() {
	echo "install.sh: $1" >&2
	exit 1
}

# supported refuses hosts where nothing of Doze can run. dozed doctor looks at the rest.
supported() {
	[ "$(uname -s)" = Linux ] || refuse "this is $(uname -s): use a Linux host"
	[ "$(uname -m)" = x86_64 ] || refuse "the processor is $(uname -m): this release is for x86_64. Build Doze from its source on other hosts"
	release=$(uname -r)
	major=${release%%.*}
	minor=${release#*.}
	minor=${minor%%[!0-9]*}
	if [ "$major" -lt 5 ] || { [ "$major" -eq 5 ] && [ "$minor" -lt 10 ]; }; then
		refuse "the kernel is Linux $release: install Linux 5.10 or newer"
	fi
	[ -e /sys/fs/cgroup ] || refuse "there is no /sys/fs/cgroup: mount cgroups"
	[ "$(id -u)" = 0 ] || refuse "not running as root: use sudo sh install.sh"
}

# verified checks a file against SHA256SUMS.
verified() {
	[ -f "$here/SHA256SUMS" ] || refuse "there is no SHA256SUMS beside install.sh: get all files of the release"
	name=$(basename "$1")
	line=$(grep -F "  $name" "$here/SHA256SUMS") || refuse "SHA256SUMS has no line for $name: get all files of one release"
	(cd "$here" && echo "$line" | sha256sum --check --status) ||
		refuse "$name is damaged: its checksum is not the one in SHA256SUMS. Get it again"
}

# only prints the one file of the release that a pattern names.
only() {
	set -- "$here"/$1
	[ $# -eq 1 ] || refuse "there are several releases beside install.sh: leave one"
	[ -f "$1" ] || refuse "there is no $(basename "$1") beside install.sh: get all files of the release"
	echo "$1"
}

# packaged says whether the package is installed. One that was removed has files of configuration.
packaged() { dpkg-query --show --showformat '${Status}' doze 2>/dev/null | grep -q ' installed$'; }
configured() { dpkg-query --show doze >/dev/null 2>&1; }

install_package() {
	package=$(only 'doze_*_amd64.deb')
	verified "$package"
	if [ -e "$prefix/lib/doze/withdraw" ]; then
		refuse "$prefix has Doze from an archive: run install.sh --archive to upgrade it, or install.sh --uninstall first"
	fi
	if ! dpkg --install "$package"; then
		# It is unpacked. apt installs what it needs, and configures it.
		DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends --fix-broken
	fi
}

install_archive() {
	archive=$(only 'doze-*-linux-amd64.tar.gz')
	verified "$archive"
	if packaged; then
		refuse "the package doze is installed: run install.sh without --archive to upgrade it"
	fi
	for program in mmdebstrap mkfs.erofs mkfs.ext4 ip; do
		PATH=$PATH:/usr/sbin:/sbin command -v $program >/dev/null || refuse "$program is missing: install mmdebstrap, erofs-utils, e2fsprogs and iproute2"
	done
	new=$(mktemp -d)
	trap 'rm -rf "$new"' EXIT
	tar --extract --gzip --file "$archive" --directory "$new" --strip-components 1 --no-same-owner
	# A rename replaces a program that runs.
	(cd "$new" && find bin lib/doze share -type f) | while read -r f; do
		mkdir -p "$prefix/$(dirname "$f")"
		cp -p "$new/$f" "$prefix/$f.new"
		mv "$prefix/$f.new" "$prefix/$f"
	done
	mkdir -p /etc/doze
	[ -e /etc/doze/config.json ] || cp -p "$new/etc/doze/config.json" /etc/doze/config.json
	if [ -d $units ]; then
		for unit in "$new"/lib/systemd/system/*.service; do
			sed "s,/usr/bin/dozed,$prefix/bin/dozed,; s,/usr/share,$prefix/share," "$unit" >"$units/$(basename "$unit")"
		done
	fi
	if [ -d /run/systemd/system ]; then
		systemctl daemon-reload
		if systemctl is-active --quiet dozed; then
			systemctl reload dozed
			echo "dozed is being replaced; sandboxes run on"
			return
		fi
	fi
	echo "Doze is in $prefix. Next: dozed doctor, then systemctl enable --now dozed, or dozed all --config /etc/doze/config.json"
}

# uninstall ends all sandboxes and removes Doze. With --all it deletes their data, too.
uninstall() {
	for lib in /usr/lib/doze "$prefix/lib/doze"; do
		if [ -x "$lib/withdraw" ]; then "$lib/withdraw" "$@"; fi
	done
	if [ "${1:-}" = --all ] && configured; then
		dpkg --purge doze
	elif packaged; then
		dpkg --remove doze
	fi
	if [ -e "$prefix/lib/doze/withdraw" ]; then
		share=$prefix/share
		rm -rf "$prefix/lib/doze" "$share/doc/doze" $units/dozed.service $units/dozed-control@.service $units/dozed-node@.service $units/dozed-edge@.service
		rm -f "$prefix/bin/doze" "$prefix/bin/dozed" "$share/bash-completion/completions/doze" \
			"$share/zsh/vendor-completions/_doze" "$share/fish/vendor_completions.d/doze.fish"
		for dir in bash-completion/completions bash-completion zsh/vendor-completions zsh fish/vendor_completions.d fish doc; do
			rmdir "$share/$dir" 2>/dev/null || : # somebody else has files there
		done
		if [ -d /run/systemd/system ]; then
			systemctl daemon-reload
		fi
	fi
	if [ "${1:-}" = --all ]; then
		rm -rf --one-file-system /var/lib/doze /run/doze /etc/doze
	fi
}

case ${1:-} in
'' | --archive)
	supported
	if [ "${1:-}" = --archive ] || ! command -v dpkg >/dev/null; then
		install_archive
	else
		install_package
	fi
	;;
--uninstall | --purge)
	[ "$(id -u)" = 0 ] || refuse "not running as root: use sudo sh install.sh $1"
	if [ "$1" = --purge ]; then uninstall --all; else uninstall; fi
	;;
*) refuse "unknown argument $1: use no argument, --archive, --uninstall or --purge" ;;
esac
