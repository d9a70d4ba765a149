//go:build !faults

package durable

// unsynced reports whether [Sync] is to do nothing. It never is.
const unsynced = false
