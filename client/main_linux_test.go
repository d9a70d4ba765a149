package client_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/dozehq/doze/internal/testkit"
)

// TestMain starts a platform for the examples. Without one, none of them runs.
func TestMain(m *testing.M) {
	flag.Parse()
	_, err := os.Stat(filepath.Join(testkit.Root(), "bin", "dozed"))
	if testing.Short() || os.Geteuid() != 0 || err != nil {
		fmt.Fprintln(os.Stderr, "SKIPPED: the examples need real sandboxes: make build, root, and no short mode")
		if err := flag.Set("test.skip", "^Example"); err != nil {
			panic(err)
		}
		m.Run()
		return
	}
	if err := withPlatform(m); err != nil {
		panic(err)
	}
}

// withPlatform runs the tests while a platform runs, which the examples know.
func withPlatform(m *testing.M) (err error) {
	dir, err := os.MkdirTemp("", "doze-client-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	p, err := testkit.Start(context.Background(), testkit.Options{Dir: dir}) //nolint:forbidigo // nobody calls us
	if p != nil {
		defer func() { err = errors.Join(err, p.Close()) }()
	}
	if err != nil {
		return err
	}
	address, key = p.Address, p.Key
	m.Run()
	return nil
}
