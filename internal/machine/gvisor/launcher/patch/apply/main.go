// Command apply makes the changed gVisor that doze-sentry is built with, in the
// directory of its argument. It runs in the root of the module.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/dozehq/doze/internal/machine/gvisor/launcher/patch"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "apply:", err)
		os.Exit(1) //nolint:forbidigo // the command of make build
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: apply DIRECTORY")
	}
	return patch.Apply(context.Background(), ".", args[0]) //nolint:forbidigo // of main
}
