#!/bin/sh
# renew.sh VERSION gets the viewer of the page of the APIs from npm. Run it by hand, name the
# version in reference.go and reference_test.go, and run TestReferencePage (test/e2e).
set -eu
cd "$(dirname "$0")"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
npm pack --silent --pack-destination "$dir" "rapidoc@$1" >/dev/null
tar xzf "$dir"/*.tgz -C "$dir"
sed '/^\/\/# sourceMappingURL/d' "$dir/package/dist/rapidoc-min.js" | gzip -9n >viewer.js.gz
cp "$dir/package/LICENSE.txt" LICENSE.rapidoc
cp "$dir/package/dist/rapidoc-min.js.LICENSE.txt" LICENSE.parts
