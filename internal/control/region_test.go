package control_test

import (
	"net/netip"
	"strings"
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
	region := func(name string) object {
		return object{
			"name": name, "location": name, "infoGeneration": "mk3.1", "mk31Available": true,
			"drivesAvailable": true, "egressAvailable": false, "proxyAvailable": false,
		}
	}
	location := func(name string) object {
		return object{"location": name, "region": name, "status": "healthy", "flavors": none}
	}
	addresses := object{"description": "the addresses of this host, which its operator knows", "ipv4Cidrs": none, "ipv6Cidrs": none}
	for path, answer := range map[string]any{
		"/configuration": object{
			"continents": none, "countries": none, "privateLocations": none, "detectedRegion": "here-1",
			"regions": []any{region("here-1"), region("there-1")},
		},
		"/locations":                []any{location("here-1"), location("there-1")},
		"/publicIps":                object{"here-1": addresses, "there-1": addresses},
		"/publicIps?region=there-1": object{"there-1": addresses},
		"/publicIps?region=moon":    object{},
		"/features":                 object{"features": object{}},
		"/features/any":             object{"featureKey": "any", "enabled": false, "variant": "", "payload": nil},
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
	p.Pool = doze.AddressPool{netip.MustParsePrefix("203.0.113.0/31")}
	p.Reopen()
	if r := planetest.Want[doze.Configuration](p, 200, "GET", "/configuration", "").Regions[0]; !r.Egress || !r.Proxy {
		t.Errorf("with a pool of addresses: %+v", r)
	}
}

// TestRegionsOfResources: a resource has the region that its caller named, or the first
// one. It keeps this region.
func TestRegionsOfResources(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	type object = map[string]any
	in := func(region string) string { return `{"metadata":{"name":"a"},"spec":{"region":"` + region + `"}}` }
	for _, path := range []string{"/sandboxes", "/volumes", "/drives"} {
		for asked, has := range map[string]string{"": "here-1", "auto": "here-1", "here-1": "here-1", "there-1": "there-1"} {
			for _, made := range []object{
				planetest.Want[object](p, 200, "POST", path, in(asked)),
				planetest.Want[object](p, 200, "PUT", path+"/a", in(asked)),
				planetest.Want[object](p, 200, "PUT", path+"/a", in("auto")),
			} {
				if region := made["spec"].(object)["region"]; region != has {
					t.Errorf("%s: %q is %v", path, asked, region)
				}
			}
			other := map[string]string{"here-1": "there-1", "there-1": "here-1"}[has]
			for _, elsewhere := range []string{other, "mars"} {
				if w := p.Do("PUT", path+"/a", in(elsewhere)); w.Code != 400 || !strings.Contains(w.Body.String(), "spec.region cannot be changed") {
					t.Errorf("%s: from %s to %s: %d %s", path, has, elsewhere, w.Code, w.Body)
				}
			}
			planetest.Want[any](p, 200, "DELETE", path+"/a", "")
		}
		if w := p.Do("POST", path, in("mars")); !strings.Contains(w.Body.String(), "this platform has the regions here-1, there-1") {
			t.Errorf("%s: %s", path, w.Body)
		}
	}
}

// TestVolumeOfAnotherRegion: all regions are one place.
func TestVolumeOfAnotherRegion(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	planetest.Want[any](p, 200, "POST", "/volumes", `{"metadata":{"name":"v"},"spec":{"region":"there-1"}}`)
	planetest.Want[any](p, 200, "POST", "/sandboxes", `{"metadata":{"name":"a"},"spec":{"region":"here-1","volumes":[{"name":"v","mountPath":"/v"}]}}`)
}

func TestHub(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	hub := planetest.Want[[]control.HubImage](p, 200, "GET", "/sandbox/hub", "")
	if len(hub) != 1 || hub[0].Image != doze.ImageDefault {
		t.Errorf("%+v", hub)
	}
}
