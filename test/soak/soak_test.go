package main

import (
	"os"
	"testing"
	"time"
)

// TestSoak: the soak finds nothing wrong in a run that met each kind of harm. A slow host takes
// longer until it did.
func TestSoak(t *testing.T) {
	if testing.Short() || os.Getuid() != 0 {
		t.Skip("SKIPPED: real sandboxes need root and time")
	}
	const least, most = 30 * time.Second, 4 * time.Minute
	began := time.Now()
	met := func(c counts) bool {
		return c.dozeds > 0 && c.launchers > 0 && c.engines > 0 && c.cuts > 0 && c.fromPaused > 0 && c.fromSaved > 0 && c.fromDisk > 0 &&
			c.made > 0 && c.forked > 0 && c.restored > 0 && c.archived > 0
	}
	c, err := soak(t.Context(), options{
		length: most, met: func(c counts) bool { return time.Since(began) > least && met(c) },
		seed: uint64(time.Now().UnixNano()), sandboxes: 4, megabytes: 16,
	})
	t.Log(c)
	if err != nil {
		t.Fatal(err)
	}
	if !met(c) {
		t.Error("something was never met")
	}
}
