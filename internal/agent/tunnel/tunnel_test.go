package tunnel

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

func FuzzTunnel(f *testing.F) {
	f.Add([]byte(`{"local_ip":"10.0.0.2/32","peer_endpoint":"h:1","peer_public_key":"","private_key":"","mtu":1420}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parse(base64.StdEncoding.EncodeToString(b))
		if err != nil {
			if p := doze.Public(err); p.Kind != doze.Unprocessable || !strings.HasPrefix(p.Message, "invalid tunnel config") {
				t.Errorf("got %v", err)
			}
			return
		}
		if len(got.PeerKey) != 44 || got.MTU != nil && *got.MTU < mtuMin {
			t.Errorf("accepted %+v", got)
		}
	})
}
