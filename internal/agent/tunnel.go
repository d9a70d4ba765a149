package agent

import (
	"encoding/base64"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"strconv"

	"doze"
)

// tunnelRequest is the body that configures a tunnel.
type tunnelRequest struct {
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

// parseTunnel reads and checks a configuration. Errors are Unprocessable and
// never repeat a key.
func parseTunnel(config string) (t tunnel, err error) {
	bad := func(format string, args ...any) (tunnel, error) {
		return tunnel{}, doze.Errorf(doze.Unprocessable, "invalid tunnel config: "+format, args...)
	}
	b, err := base64.StdEncoding.DecodeString(config)
	if err != nil {
		return bad("config is not base64")
	}
	if err := json.Unmarshal(b, &t); err != nil {
		return bad("what config stands for is not the JSON object we expect")
	}
	if _, err := netip.ParsePrefix(t.LocalIP); err != nil {
		return bad("local_ip must be like 10.0.0.2/32")
	}
	host, port, err := net.SplitHostPort(t.Endpoint)
	if n, e := strconv.Atoi(port); err != nil || host == "" || e != nil || n < 1 || n > portMax {
		return bad("peer_endpoint must be like vpn.example.com:51820")
	}
	for name, key := range map[string]string{"peer_public_key": t.PeerKey, "private_key": t.PrivateKey} {
		if raw, err := base64.StdEncoding.DecodeString(key); err != nil || len(raw) != keySize {
			return bad("%s must be a key of %d bytes in base64", name, keySize)
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
			return bad("%s must be %d to %d", n.name, n.min, n.max)
		}
	}
	if name := t.InterfaceName; name != nil && (*name == "" || len(*name) > interfaceNameMax) {
		return bad("interface_name must have 1 to %d bytes", interfaceNameMax)
	}
	if len(t.AllowedIPs) > allowedIPsMax {
		return bad("allowed_ips has %d entries; at most %d are allowed", len(t.AllowedIPs), allowedIPsMax)
	}
	for _, prefix := range t.AllowedIPs {
		if _, err := netip.ParsePrefix(prefix); err != nil {
			return bad("allowed_ips has %q, which is not like 0.0.0.0/0", clip(prefix))
		}
	}
	return t, nil
}

// setTunnel checks a configuration. Sandboxes have no tunnels of their own: what
// they reach is decided outside, where nothing inside can change it.
func (a *Agent) setTunnel(_ string, in tunnelRequest) (success, error) {
	if in.Config == "" {
		return success{}, doze.Errorf(doze.Invalid, "config is required")
	}
	if _, err := parseTunnel(in.Config); err != nil {
		return success{}, err
	}
	return success{}, doze.Errorf(doze.Internal, "failed to apply tunnel config: sandboxes have no tunnels; use the network settings of the sandbox")
}

func (a *Agent) deleteTunnel(*http.Request, string) (success, error) {
	return success{}, doze.Errorf(doze.Invalid, "no WireGuard client is running")
}
