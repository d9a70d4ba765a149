package client

import (
	"net/url"
	"strings"

	"github.com/dozehq/doze"
)

// Agent calls the API inside one sandbox. Every call wakes the sandbox, and
// holds it awake until the call is over.
type Agent struct {
	c    *Client
	base string // without a slash at its end
}

// Agent returns the inside of s, which must come from the server: its URL is
// there.
func (c *Client) Agent(s doze.Sandbox) (*Agent, error) {
	u, err := url.Parse(s.Metadata.URL)
	if err != nil || u.Host == "" {
		return nil, doze.Errorf(doze.Conflict, "the sandbox %s has no address", s.Metadata.Name)
	}
	return &Agent{c: c, base: strings.TrimRight(s.Metadata.URL, "/")}, nil
}
