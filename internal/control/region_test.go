package control_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/control"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// TestRegion compares what clients read before they choose a region.
func TestRegion(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	type object = map[string]any
	none := []any{}
	for path, answer := range map[string]any{
		"/configuration": object{
			"continents": none, "countries": none, "privateLocations": none, "detectedRegion": "here-1",
			"regions": []any{object{
				"name": "here-1", "location": "here-1", "infoGeneration": "mk3.1", "mk31Available": true,
				"drivesAvailable": true, "egressAvailable": false, "proxyAvailable": false,
			}},
		},
		"/locations":             []any{object{"location": "here-1", "region": "here-1", "status": "healthy", "flavors": none}},
		"/publicIps":             object{"here-1": object{"description": "the addresses of this host, which its operator knows", "ipv4Cidrs": none, "ipv6Cidrs": none}},
		"/publicIps?region=moon": object{},
		"/features":              object{"features": object{}},
		"/features/any":          object{"featureKey": "any", "enabled": false, "variant": "", "payload": nil},
	} {
		got := planetest.Want[any](p, 200, "GET", path, "")
		if of, ok := got.(object); ok && path == "/features/any" {
			if at, err := doze.ParseTime(of["evaluatedAt"].(string)); err != nil || time.Since(at) > time.Hour {
				t.Errorf("evaluated at %v, %v", at, err)
			}
			delete(of, "evaluatedAt")
		}
		if diff := cmp.Diff(answer, got); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
	for at, body := range map[string]string{ // who asks for any region has ours, and keeps it
		"/sandboxes": `{"metadata":{"name":"a"},"spec":{"region":"auto"}}`,
		"/volumes":   `{"metadata":{"name":"a"},"spec":{"region":"auto"}}`,
		"/drives":    `{"metadata":{"name":"a"},"spec":{"region":"auto"}}`,
	} {
		for _, made := range []object{planetest.Want[object](p, 200, "POST", at, body), planetest.Want[object](p, 200, "PUT", at+"/a", body)} {
			if region := made["spec"].(object)["region"]; region != "here-1" {
				t.Errorf("%s is in %v", at, region)
			}
		}
	}
	p.Pool = doze.AddressPool{netip.MustParsePrefix("203.0.113.0/31")}
	p.Reopen()
	if r := planetest.Want[doze.Configuration](p, 200, "GET", "/configuration", "").Regions[0]; !r.Egress || !r.Proxy {
		t.Errorf("with a pool of addresses: %+v", r)
	}
}

func TestHub(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	hub := planetest.Want[[]control.HubImage](p, 200, "GET", "/sandbox/hub", "")
	if len(hub) != 1 || hub[0].Image != doze.ImageDefault {
		t.Errorf("%+v", hub)
	}
}
