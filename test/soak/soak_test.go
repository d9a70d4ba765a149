package main

import (
	"os"
	"testing"
	"time"
)

func TestSoak(t *testing.T) {
	if testing.Short() || os.Getuid() != 0 {
		t.Skip("SKIPPED: real sandboxes need root and time")
	}
	const length = 60 * time.Second
	c, err := soak(t.Context(), options{length: length, seed: uint64(time.Now().UnixNano()), sandboxes: 4, megabytes: 16})
	t.Log(c)
	if err != nil {
		t.Fatal(err)
	}
	if c.dozeds == 0 || c.launchers == 0 || c.engines == 0 || c.cuts == 0 || c.fromPaused == 0 || c.fromSaved == 0 || c.fromDisk == 0 || c.made == 0 ||
		c.forked == 0 || c.restored == 0 || c.archived == 0 {
		t.Error("something was never met")
	}
}
