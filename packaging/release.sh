#!/bin/bash
# Makes a release of the binaries in a directory. make release calls it:
#   release.sh VERSION BINARIES OUTPUT "PACKAGE…"
# The packages are what dozed needs. Equal binaries make equal files: each time is
# SOURCE_DATE_EPOCH, each owner is root, and each list is sorted. BASE is a tar of a Debian
# with these packages, for the image. Without it, mmdebstrap makes one of the day.
set -euo pipefail
version=$1 bin=$2 out=$3 needs=$4
: "${SOURCE_DATE_EPOCH:?}"
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
umask 022
here=$(cd "$(dirname "$0")" && pwd)
root=$here/..
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
tree=$stage/doze # as it is in a host

put() { install -D -m "$1" "$2" "$tree/$3"; } # MODE FILE PATH
for b in doze dozed; do put 755 "$bin/$b" "usr/bin/$b"; done
for b in doze-sentry doze-agent doze-builder; do put 755 "$bin/$b" "usr/lib/doze/$b"; done
put 755 "$here/withdraw" usr/lib/doze/withdraw
for unit in "$here"/systemd/*.service; do put 644 "$unit" "usr/lib/systemd/system/$(basename "$unit")"; done
put 600 "$here/config.json" etc/doze/config.json
put 644 "$root/LICENSE" usr/share/doc/doze/copyright
put 644 "$root/docs/operations.md" usr/share/doc/doze/operations.md
chart() { # VERSION OUTPUT: Helm takes versions of three numbers alone
	mkdir -p "$stage/chart"
	cp -r "$here/helm/doze" "$stage/chart/doze"
	sed -i "s/^version:.*/version: $1/; s/^appVersion:.*/appVersion: \"$version\"/" "$stage/chart/doze/Chart.yaml"
	tar --directory "$stage/chart" --create --sort=name --format=ustar --owner=0 --group=0 --numeric-owner \
		--mode='u=rwX,go=rX' --mtime="@$SOURCE_DATE_EPOCH" doze | gzip --no-name >"$2"
}
shell() { # SHELL PATH
	mkdir -p "$tree/$(dirname "$2")"
	"$bin/doze" completion "$1" >"$tree/$2"
}
shell bash usr/share/bash-completion/completions/doze
shell zsh usr/share/zsh/vendor-completions/_doze
shell fish usr/share/fish/vendor_completions.d/doze.fish

rm -rf "$out"
mkdir -p "$out"
(cd "$root/tools" && go build -o "$stage/sbom" ./sbom)
for b in doze dozed doze-sentry doze-agent doze-builder; do
	"$stage/sbom" -version "$version" "$bin/$b" >"$out/$b.cdx.json"
	put 644 "$out/$b.cdx.json" "usr/share/doc/doze/$b.cdx.json"
done

settle() { find "$tree" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +; }
settle
tar --directory "$tree" --create --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
	--transform "s,^usr,doze-$version," --transform "s,^etc,doze-$version/etc," etc usr |
	gzip --no-name >"$out/doze-$version-linux-amd64.tar.gz"

# The image has the same files, over a Debian with what dozed needs.
if [ -z "${BASE:-}" ]; then
	BASE=$stage/base.tar
	mmdebstrap --quiet --variant=minbase --include="$(echo $needs ca-certificates kmod | tr ' ' ,)" \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' bookworm "$BASE"
fi
tar --directory "$tree" --create --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" usr >"$stage/doze.tar"
(cd "$root" && go build -o "$stage/image" ./packaging/image)
"$stage/image" -version "$version" -created "$SOURCE_DATE_EPOCH" -out "$out/doze-$version-linux-amd64.image.tar" "$BASE" "$stage/doze.tar"
case $version in # 0~TIME.HASH is 0.0.0-TIME.HASH there
0~*) number=0.0.0-$(echo "${version#0~}" | sed 's/\.0\+\([0-9]\+\)$/.h\1/') ;;
*.*.*) number=$version ;;
*) number=$version.0 ;;
esac
chart "$number" "$out/doze-$number.chart.tgz"

mkdir "$tree/DEBIAN"
for script in postinst prerm postrm; do put 755 "$here/deb/$script" "DEBIAN/$script"; done
echo /etc/doze/config.json >"$tree/DEBIAN/conffiles"
(cd "$tree" && find usr -type f | sort | xargs md5sum) >"$tree/DEBIAN/md5sums"
cat >"$tree/DEBIAN/control" <<END
Package: doze
Version: $version
Architecture: amd64
Maintainer: Doze <doze@localhost>
Section: admin
Priority: optional
Depends: $(echo $needs | sed 's/ /, /g')
Recommends: ca-certificates, kmod, cryptsetup-bin
Installed-Size: $(du -sk --apparent-size "$tree/usr" | cut -f 1)
Description: self-hosted sandboxes that sleep
 Doze runs small isolated machines on gVisor. They sleep with their memory when
 nobody uses them, and wake for the next request.
END
settle
dpkg-deb --build --root-owner-group -Zzstd --threads-max=1 "$tree" "$out/doze_${version}_amd64.deb" >/dev/null

install -m 755 -T "$here/install.sh" "$out/install.sh"
(cd "$out" && sha256sum ./*.deb ./*.tar.gz ./*.image.tar ./*.tgz ./*.json ./install.sh | sed 's, \./, ,' >SHA256SUMS)
find "$out" -exec touch -d "@$SOURCE_DATE_EPOCH" {} +
