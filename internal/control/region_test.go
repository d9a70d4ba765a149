package control_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRegion compares what clients read before they choose a region.
func TestRegion(t *testing.T) {
	t.Parallel()
	p := start(t, false)
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
	} {
		if diff := cmp.Diff(answer, want[any](p, 200, "GET", path, "")); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
}
