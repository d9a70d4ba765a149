package tunnel_test

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"testing"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

func TestTunnel(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	key := base64.StdEncoding.EncodeToString(make([]byte, 32))
	config := func(over map[string]any) string {
		c := map[string]any{
			"local_ip": "10.0.0.2/32", "peer_endpoint": "vpn.example.com:51820", "peer_public_key": key, "private_key": key,
			"mtu": 1420, "allowed_ips": []string{"0.0.0.0/0", "::/0"}, "unknown": 1,
		}
		maps.Copy(c, over)
		b, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		return agenttest.Object(t, map[string]string{"config": base64.StdEncoding.EncodeToString(b)})
	}
	s.Fails(t, 500, "failed to apply tunnel config", "PUT", "/network/tunnel/config", config(nil))
	for _, body := range []string{`{}`, `{"config":""}`} {
		s.Fails(t, 400, "config is required", "PUT", "/network/tunnel/config", body)
	}
	for _, body := range []string{
		`{"config":"?"}`, `{"config":"e30"}`, `{"config":"e30="}`, `{"config":"W10="}`,
		config(map[string]any{"local_ip": "10.0.0.2"}), config(map[string]any{"peer_endpoint": "x"}), config(map[string]any{"peer_endpoint": "x:0"}),
		config(map[string]any{"private_key": "AAAA"}), config(map[string]any{"mtu": 67}), config(map[string]any{"mtu": 65536}), config(map[string]any{"mtu": "x"}),
		config(map[string]any{"listen_port": -1}), config(map[string]any{"persistent_keepalive": 70000}), config(map[string]any{"interface_name": "a-name-that-is-too-long"}),
		config(map[string]any{"allowed_ips": []string{"all"}}),
	} {
		s.Fails(t, 422, "invalid tunnel config", "PUT", "/network/tunnel/config", body)
	}
	s.Fails(t, 422, "invalid tunnel config: local_ip must be like 10.0.0.2/32; mtu must be 68 to 65535", "PUT", "/network/tunnel/config",
		config(map[string]any{"local_ip": "x", "mtu": 67}))
	s.Fails(t, 400, "no WireGuard client is running", "DELETE", "/network/tunnel", "")
}
