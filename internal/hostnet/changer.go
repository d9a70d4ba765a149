package hostnet

import (
	"errors"
	"fmt"
	"sync"

	"github.com/google/nftables"
)

// A changer changes tables of a namespace. It keeps its connection to the kernel:
// to close one takes the kernel 10 ms and more.
type changer struct {
	ns netns

	mu   sync.Mutex
	conn *nftables.Conn // guarded by mu; nil before the first change
}

// change makes one step out of what do asks for.
func (c *changer) change(do func(*nftables.Conn) error) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		if c.conn, err = nftables.New(nftables.WithNetNSFd(c.ns.fd()), nftables.AsLasting()); err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
	}
	if err = do(c.conn); err == nil {
		err = c.conn.Flush()
	}
	if err != nil { // nobody knows what it has left to say
		err = errors.Join(err, c.conn.CloseLasting())
		c.conn = nil
	}
	return err
}

func (c *changer) close() error {
	if c.conn == nil {
		return nil
	}
	return c.conn.CloseLasting()
}
