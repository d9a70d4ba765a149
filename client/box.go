package client

import (
	"net/url"
	"strings"

	"github.com/dozehq/doze"
)

// Box calls the API inside one sandbox. Every call wakes the sandbox, and
// holds it awake until the call is over.
type Box struct {
	c    *Client
	base string // without a slash at its end
}

// Box returns the inside of s, which must come from the server: its URL is
// there.
func (c *Client) Box(s doze.Sandbox) (*Box, error) {
	u, err := url.Parse(s.Metadata.URL)
	if err != nil || u.Host == "" {
		return nil, doze.Errorf(doze.Conflict, "the sandbox %s has no address", s.Metadata.Name)
	}
	return &Box{c: c, base: strings.TrimRight(s.Metadata.URL, "/")}, nil
}
