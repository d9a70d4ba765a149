//go:build !faults

package failpoint

// Armed reports whether this binary was built for tests that do harm.
const Armed = false

// Reach is called where a machine reaches a step at which something can go
// wrong, and returns what does. It returns nil.
func Reach(Point, string) error { return nil }

// Pass is called where a machine reaches a step at which nothing can go wrong
// but the end of a process. It does nothing.
func Pass(Point, string) {}

// Environ is what a process that is started needs in its environment for its
// steps to be seen. It is nothing.
func Environ() []string { return nil }
