// Package durable makes what was written outlast a loss of power.
package durable

import (
	"errors"
	"os"
)

// Variable is of the environment. In a binary that was built with the tag "faults",
// and in no other, [Sync] does nothing if it is set.
const Variable = "DOZE_UNSYNCED"

// Sync returns when a file is on disk with its content, or a directory with its
// names: a file that was created or renamed needs both.
func Sync(name string) error {
	if unsynced {
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
