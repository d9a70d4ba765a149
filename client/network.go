package client

import (
	"context"
	"net/http"

	"github.com/dozehq/doze"
)

// VPCs returns those of the workspace, [doze.DefaultVPC] first.
func (c *Client) VPCs(ctx context.Context) ([]doze.NetworkResource, error) {
	return resource[[]doze.NetworkResource](ctx, c, http.MethodGet, nil, "vpcs")
}

// CreateVPC makes a VPC, which sandboxes are in by their [doze.SandboxSpec].
func (c *Client) CreateVPC(ctx context.Context, name string) (doze.NetworkResource, error) {
	return resource[doze.NetworkResource](ctx, c, http.MethodPost, named(name, doze.NetworkSpec{}), "vpcs")
}

// DeleteVPC removes a VPC. While a sandbox or a gateway is in it, that is a
// Conflict.
func (c *Client) DeleteVPC(ctx context.Context, name string) error {
	_, err := resource[any](ctx, c, http.MethodDelete, nil, "vpcs", name)
	return err
}

// Gateways returns the egress gateways of all VPCs.
func (c *Client) Gateways(ctx context.Context) ([]doze.NetworkResource, error) {
	return resource[[]doze.NetworkResource](ctx, c, http.MethodGet, nil, "egressgateways")
}

// GatewayUsage returns the names of the sandboxes that leave by each gateway.
func (c *Client) GatewayUsage(ctx context.Context) (map[string][]string, error) {
	return resource[map[string][]string](ctx, c, http.MethodGet, nil, "egressgateways", "usage")
}

// CreateGateway makes an egress gateway in a VPC; sandboxes leave by those of
// [doze.DefaultVPC] only. It has no address until an egress IP is made in it.
func (c *Client) CreateGateway(ctx context.Context, vpc, name string) (doze.NetworkResource, error) {
	return resource[doze.NetworkResource](ctx, c, http.MethodPost, named(name, doze.NetworkSpec{Region: doze.AnyRegion}), "vpcs", vpc, "egressgateways")
}

// DeleteGateway removes the gateway that has this metadata. While an egress IP
// is in it, that is a Conflict.
func (c *Client) DeleteGateway(ctx context.Context, g doze.NetworkMetadata) error {
	_, err := resource[any](ctx, c, http.MethodDelete, nil, "vpcs", g.VPCName, "egressgateways", g.Name)
	return err
}

// EgressIPs returns those of all gateways.
func (c *Client) EgressIPs(ctx context.Context) ([]doze.NetworkResource, error) {
	return resource[[]doze.NetworkResource](ctx, c, http.MethodGet, nil, "egressips")
}

// CreateEgressIP makes an egress IP in the gateway that has this metadata. While
// the platform has no address for it, its status is FAILED, and its last event
// says why.
func (c *Client) CreateEgressIP(ctx context.Context, g doze.NetworkMetadata, name string) (doze.NetworkResource, error) {
	return resource[doze.NetworkResource](ctx, c, http.MethodPost, named(name, doze.NetworkSpec{}), "vpcs", g.VPCName, "egressgateways", g.Name, "ips")
}

// DeleteEgressIP returns the address of the egress IP that has this metadata. The
// last one of a gateway that sandboxes leave by is a Conflict.
func (c *Client) DeleteEgressIP(ctx context.Context, ip doze.NetworkMetadata) error {
	_, err := resource[any](ctx, c, http.MethodDelete, nil, "vpcs", ip.VPCName, "egressgateways", ip.GatewayName, "ips", ip.Name)
	return err
}

// named is a resource of the network that is to be made.
func named(name string, spec doze.NetworkSpec) any {
	return map[string]any{"metadata": map[string]string{"name": name}, "spec": spec}
}
