// Package durable makes what was written outlast a loss of power.
package durable

import (
	"errors"
	"os"
)

// Sync returns when a file is on disk with its content, or a directory with its
// names: a file that was created or renamed needs both.
func Sync(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
