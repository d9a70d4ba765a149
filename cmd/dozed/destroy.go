package main

import (
	"context"
	"fmt"
	"os"

	"github.com/dozehq/doze/internal/instance"
)

// destroy ends everything that a dozed left on this host.
func destroy(ctx context.Context, args []string) error {
	var d instance.Destruction
	s, rest, err := load("destroy", args, d.Bind)
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return fmt.Errorf("dozed destroy takes no argument %q: name a data directory with --data", rest[0])
	}
	d.Data, d.Run, d.Cgroup, d.ImagesDir = s.Data, s.Run, s.Cgroup, s.ImagesDir
	d.In, d.Out = os.Stdin, os.Stdout
	return d.Do(ctx)
}
