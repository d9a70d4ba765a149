// Package durable makes what was written outlast a loss of power.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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

// NewSuffix is of the file that [Replace] writes. A crash leaves it behind.
const NewSuffix = ".new"

// Replace writes a file so that a loss of power leaves the old one or the new one.
// If it fails, the old one is there.
func Replace(name string, raw []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(name+NewSuffix, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return err
	}
	return Sync(filepath.Dir(name))
}
