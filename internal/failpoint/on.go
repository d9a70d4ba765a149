//go:build faults

package failpoint

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"syscall"
)

// Armed reports whether this binary was built for tests that do harm.
const Armed = true

// Reach is called where a machine reaches a step at which something can go
// wrong, and returns what does.
func Reach(s Point, id string) error {
	if tell(s, id) == Fail {
		return fmt.Errorf("%s: %w", s, syscall.ENOSPC)
	}
	return nil
}

// Pass is called where a machine reaches a step at which nothing can go wrong
// but the end of a process.
func Pass(s Point, id string) { tell(s, id) }

// tell returns the answer of the test, or nothing if none listens.
func tell(s Point, id string) string {
	conn, err := net.Dial("unix", os.Getenv(Variable)) //nolint:forbidigo,noctx,gosec // it is as long as the test wants it to be, and where the test is
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintln(conn, s, id); err != nil {
		return ""
	}
	answer := bufio.NewScanner(conn)
	answer.Scan() // a test that went away says nothing
	return answer.Text()
}

// Environ is what a process that is started needs in its environment for its
// steps to be seen.
func Environ() []string {
	return []string{Variable + "=" + os.Getenv(Variable)} //nolint:forbidigo // it is handed on
}
