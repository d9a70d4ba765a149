// Package tunnel checks configurations of tunnels, which sandboxes then do not get.
package tunnel

import (
	"encoding/base64"
	"net"
	"net/http"
	"net/netip"
	"strconv"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/body"
	"github.com/dozehq/doze/internal/agent/mistake"
	"github.com/dozehq/doze/internal/agent/route"
)

// Request is the body that configures a tunnel.
type Request struct {
	Config string `json:"config"` // base64 of the JSON of a tunnel
}

// tunnel is a WireGuard interface.
type tunnel struct {
	LocalIP       string   `json:"local_ip"`        // with the length of its prefix
	Endpoint      string   `json:"peer_endpoint"`   // host:port
	PeerKey       string   `json:"peer_public_key"` // base64, as is the other
	PrivateKey    string   `json:"private_key"`
	MTU           *int     `json:"mtu"`
	ListenPort    *int     `json:"listen_port"`
	InterfaceName *string  `json:"interface_name"`
	AllowedIPs    []string `json:"allowed_ips"`
	KeepAlive     *int     `json:"persistent_keepalive"` // seconds; 0 is off
	RouteAll      bool     `json:"route_all"`
}

// The bounds of a tunnel are those of the protocol and of the kernel.
const (
	keySize          = 32
	mtuMin           = 68
	portMax          = 65535
	interfaceNameMax = 15
	allowedIPsMax    = 1024
)

// parse reads and checks a configuration. Errors are Unprocessable and
// never repeat a key.
func parse(config string) (t tunnel, err error) {
	const invalid = "invalid tunnel config: "
	b, err := base64.StdEncoding.DecodeString(config)
	if err != nil {
		return t, doze.Errorf(doze.Unprocessable, invalid+"config is not base64")
	}
	t, p, err := body.Unchecked[tunnel](b)
	if err != nil {
		return t, doze.Errorf(doze.Unprocessable, invalid+"what config stands for is not the JSON object we expect")
	}
	t.Check(&p)
	if len(p) > 0 {
		p[0] = invalid + p[0] // once, before all of them
	}
	return t, p.As(doze.Unprocessable)
}

// Check adds what is wrong with a configuration.
func (t *tunnel) Check(p *doze.Problems) {
	if _, err := netip.ParsePrefix(t.LocalIP); err != nil {
		p.Add("local_ip", "must be like 10.0.0.2/32")
	}
	host, port, err := net.SplitHostPort(t.Endpoint)
	if n, e := strconv.Atoi(port); err != nil || host == "" || e != nil || n < 1 || n > portMax {
		p.Add("peer_endpoint", "must be like vpn.example.com:51820")
	}
	for _, key := range []struct{ name, value string }{{"peer_public_key", t.PeerKey}, {"private_key", t.PrivateKey}} {
		if raw, err := base64.StdEncoding.DecodeString(key.value); err != nil || len(raw) != keySize {
			p.Add(key.name, "must be a key of %d bytes in base64", keySize)
		}
	}
	for _, n := range []struct {
		name     string
		value    *int
		min, max int
	}{
		{"mtu", t.MTU, mtuMin, portMax},
		{"listen_port", t.ListenPort, 0, portMax},
		{"persistent_keepalive", t.KeepAlive, 0, portMax},
	} {
		if n.value != nil && (*n.value < n.min || *n.value > n.max) {
			p.Add(n.name, "must be %d to %d", n.min, n.max)
		}
	}
	if name := t.InterfaceName; name != nil && (*name == "" || len(*name) > interfaceNameMax) {
		p.Add("interface_name", "must have 1 to %d bytes", interfaceNameMax)
	}
	if len(t.AllowedIPs) > allowedIPsMax {
		p.Add("allowed_ips", "has %d entries; at most %d are allowed", len(t.AllowedIPs), allowedIPsMax)
	}
	for _, prefix := range t.AllowedIPs {
		if _, err := netip.ParsePrefix(prefix); err != nil && len(*p) < mistake.Max {
			p.Add("allowed_ips", "has %q, which is not like 0.0.0.0/0", mistake.Clip(prefix))
		}
	}
}

// Check adds the mistakes of a request.
func (in *Request) Check(p *doze.Problems) {
	if in.Config == "" {
		p.Missing("config")
	}
}

// Set checks a configuration. Sandboxes have no tunnels of their own: what
// they reach is decided outside, where nothing inside can change it.
func Set(_ string, in Request) (route.Success, error) {
	if _, err := parse(in.Config); err != nil {
		return route.Success{}, err
	}
	return route.Success{}, doze.Errorf(doze.Internal, "failed to apply tunnel config: sandboxes have no tunnels; use the network settings of the sandbox")
}

// Delete finds no tunnel.
func Delete(*http.Request, string) (route.Success, error) {
	return route.Success{}, doze.Errorf(doze.Invalid, "no WireGuard client is running")
}
