#!/bin/bash
# Makes a release of the binaries in a directory. make release calls it:
#   release.sh VERSION BINARIES OUTPUT "PACKAGE…"
# The packages are what dozed needs. Equal binaries make equal files: each time is
# SOURCE_DATE_EPOCH, each owner is root, and each list is sorted.
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
put 644 "$here/dozed.service" usr/lib/systemd/system/dozed.service
put 600 "$here/config.json" etc/doze/config.json
put 644 "$root/LICENSE" usr/share/doc/doze/copyright
put 644 "$root/docs/operations.md" usr/share/doc/doze/operations.md
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
(cd "$out" && sha256sum ./*.deb ./*.tar.gz ./*.json ./install.sh | sed 's, \./, ,' >SHA256SUMS)
find "$out" -exec touch -d "@$SOURCE_DATE_EPOCH" {} +
