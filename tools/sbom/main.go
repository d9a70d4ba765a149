// Command sbom prints the bill of materials of a Go binary as CycloneDX JSON. It reads
// what the linker recorded, so it lists the modules that are in the binary and no others.
// Equal binaries have equal bills: there is no time and no random serial number.
package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1) //nolint:forbidigo // only main exits, and this is main
	}
}

// run writes the bill of the binary that args name.
func run(w io.Writer, args []string) error {
	flags := flag.NewFlagSet("sbom", flag.ContinueOnError)
	version := flags.String("version", "", "version of the binary")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 || *version == "" {
		return errors.New("usage: sbom -version VERSION BINARY")
	}
	raw, err := os.ReadFile(flags.Arg(0))
	if err != nil {
		return err
	}
	info, err := buildinfo.Read(bytes.NewReader(raw))
	if err != nil {
		return fmt.Errorf("%s: %w: give a binary that Go linked", flags.Arg(0), err)
	}
	sum := sha256.Sum256(raw)
	e := cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true)
	return e.EncodeVersion(bill(filepath.Base(flags.Arg(0)), *version, hex.EncodeToString(sum[:]), info), cdx.SpecVersion1_6)
}

// bill lists the modules of a binary, and the standard library. Sum is the SHA-256 of
// the binary in hexadecimal.
func bill(name, version, sum string, info *debug.BuildInfo) *cdx.BOM {
	subject := cdx.Component{
		BOMRef: name, Type: cdx.ComponentTypeApplication, Name: name, Version: version,
		Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: sum}},
	}
	parts := []cdx.Component{library("std", strings.TrimPrefix(info.GoVersion, "go"), "")}
	for _, m := range info.Deps {
		switch r := m.Replace; {
		case r == nil:
			parts = append(parts, library(m.Path, m.Version, m.Sum))
		case strings.HasPrefix(r.Path, ".") || filepath.IsAbs(r.Path): // a directory: the module with changes of ours
			changed := library(m.Path, m.Version, "")
			changed.Properties = &[]cdx.Property{{Name: "doze:changed", Value: "true"}}
			parts = append(parts, changed)
		default:
			parts = append(parts, library(r.Path, r.Version, r.Sum))
		}
	}
	slices.SortFunc(parts, func(a, b cdx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })
	refs := make([]string, len(parts))
	for i, p := range parts {
		refs[i] = p.BOMRef
	}
	b := cdx.NewBOM()
	b.Metadata = &cdx.Metadata{Component: &subject}
	b.Components = &parts
	b.Dependencies = &[]cdx.Dependency{{Ref: name, Dependencies: &refs}}
	return b
}

// library is a module. Its sum is that of go.sum: of a tree of files, and so no hash
// in the sense of CycloneDX.
func library(path, version, sum string) cdx.Component {
	url := "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
	c := cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: url}
	if sum != "" {
		c.Properties = &[]cdx.Property{{Name: "go:sum", Value: sum}}
	}
	return c
}
