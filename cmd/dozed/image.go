package main

import (
	"context"
	"os"

	"github.com/dozehq/doze/internal/host"
)

// images makes or lists images.
func images(ctx context.Context, args []string) error {
	s, do, names, err := loadFor("image", args, "build", "ls")
	if err != nil {
		return err
	}
	library, err := s.OpenLibrary()
	if err != nil {
		return err
	}
	defer func() { _ = library.Close() }()
	if do == "ls" {
		return host.ListImages(library, os.Stdout)
	}
	if len(names) == 0 {
		names = s.Images
	}
	return host.BuildImages(ctx, library, names, os.Stderr, os.Stdout)
}
