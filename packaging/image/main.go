// Command image makes an image of layers, which are tars of their own: an archive that
// docker, podman and containerd load. The same layers make the same bytes.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1) //nolint:forbidigo // of main
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	version := flags.String("version", "", "version of the release")
	created := flags.Int64("created", 0, "time of the image, in `seconds` since 1970")
	out := flags.String("out", "", "`file` to write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *version == "" || *out == "" || flags.NArg() == 0 {
		return fmt.Errorf("give --version, --out and at least one tar: image --version 1.0 --out FILE LAYER.tar …")
	}
	tag, err := name.NewTag("doze:" + tagOf(*version))
	if err != nil {
		return fmt.Errorf("the version %q: %w", *version, err)
	}
	img, err := compose(*version, time.Unix(*created, 0).UTC(), flags.Args())
	if err != nil {
		return err
	}
	return tarball.WriteToFile(*out, tag, img)
}

// tagOf is a version as a tag of an image, which has fewer letters than that of a package.
func tagOf(version string) string {
	return strings.Map(func(r rune) rune {
		if r == '~' || r == '+' {
			return '-'
		}
		return r
	}, version)
}

// compose makes the image. The first layer is the lowest.
func compose(version string, created time.Time, layers []string) (v1.Image, error) {
	img := empty.Image
	for _, file := range layers {
		layer, err := tarball.LayerFromFile(file)
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", file, err)
		}
		at := v1.Time{Time: created}
		if img, err = mutate.Append(img, mutate.Addendum{Layer: layer, History: v1.History{Created: at, CreatedBy: filepath.Base(file)}}); err != nil {
			return nil, fmt.Errorf("layer %s: %w", file, err)
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Created, config.OS, config.Architecture = v1.Time{Time: created}, "linux", "amd64"
	config.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/dozed"}, Cmd: []string{"all", "--data", "/var/lib/doze", "--listen", ":7080"},
		Env:          []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		ExposedPorts: map[string]struct{}{"7080/tcp": {}}, Volumes: map[string]struct{}{"/var/lib/doze": {}},
		Labels: map[string]string{"org.opencontainers.image.title": "doze", "org.opencontainers.image.version": version},
	}
	return mutate.ConfigFile(img, config)
}
