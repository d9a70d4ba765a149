//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// screenChanges returns a channel that says when the size of the screen may have changed,
// until stop is called.
func screenChanges() (changed <-chan os.Signal, stop func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGWINCH)
	return c, func() { signal.Stop(c) }
}
