//go:build faults

package durable

import "os"

// unsynced reports whether [Sync] is to do nothing: a test wants to see that what
// is not synced is lost.
var unsynced = os.Getenv(Variable) != "" //nolint:forbidigo // of a test
