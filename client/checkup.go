package client

import (
	"context"
	"net/http"

	"github.com/dozehq/doze"
)

// Checkup returns what is amiss with the host of the platform. It is for operators.
func (c *Client) Checkup(ctx context.Context) (doze.Checkup, error) {
	return exchange[doze.Checkup](ctx, c, http.MethodGet, c.base+"/platform/doctor", nil)
}
