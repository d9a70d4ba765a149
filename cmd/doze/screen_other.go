//go:build !unix

package main

import "time"

// screenPoll is how often the size of the screen is looked at where nothing tells when it
// changes.
const screenPoll = 250 * time.Millisecond

// screenChanges returns a channel that says when the size of the screen may have changed,
// until stop is called.
func screenChanges() (changed <-chan time.Time, stop func()) {
	t := time.NewTicker(screenPoll)
	return t.C, t.Stop
}
