package mtls

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

// TestContract: roles work together if their versions are one apart. Others say so.
func TestContract(t *testing.T) {
	t.Parallel()
	const silently = 0 // says none
	tests := map[string]struct {
		client, server int
		works          bool
	}{
		"the same":               {7, 7, true},
		"an older client":        {6, 7, true},
		"a newer client":         {8, 7, true},
		"a client that is old":   {5, 7, false},
		"a client that is new":   {9, 7, false},
		"a silent client":        {silently, Contract, true},
		"a silent server":        {Contract, silently, true},
		"a client that is older": {silently, 3, false},
		"a server that is older": {3, silently, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			served := false
			var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				served = true
				_, _ = io.WriteString(w, r.Header.Get("Authorization"))
			})
			if tt.server != silently {
				h = speaks(tt.server, h)
			}
			s := httptest.NewServer(h)
			t.Cleanup(s.Close)
			transport := s.Client().Transport
			if tt.client != silently {
				transport = speaker{transport, tt.client}
			}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader("x"))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "key")
			resp, err := transport.RoundTrip(r)
			said := fmt.Sprint(err)
			if err == nil {
				raw, none := io.ReadAll(resp.Body)
				if err := errors.Join(none, resp.Body.Close()); err != nil {
					t.Fatal(err)
				}
				if said = string(raw); resp.StatusCode != http.StatusOK {
					err = errors.New(resp.Status)
				}
				if tt.client != silently && resp.Header.Get(contractHeader) != "" {
					t.Error("callers of an edge would see the version")
				}
				if tt.works && said != "key" {
					t.Errorf("the answer is %q: %v", said, err)
				}
			}
			if works := err == nil; works != tt.works {
				t.Errorf("it works: %t, want %t: %s", works, tt.works, said)
			}
			if !tt.works && (!strings.Contains(said, "upgrade the older one") || served && tt.server != silently) {
				t.Errorf("served: %t; it says %q", served, said)
			}
			if r.Header.Get(contractHeader) != "" {
				t.Error("the transport changed the request that it got")
			}
		})
	}
}

// FuzzContract: what a peer says is a version that works with ours, or an error.
func FuzzContract(f *testing.F) {
	for _, said := range []string{"", "1", "2", "3", "-1", "02", "999999999999999999999", "2, 2", " 2"} {
		f.Add(said)
	}
	f.Fuzz(func(t *testing.T, said string) {
		err := apart(Contract, said)
		n, bad := strconv.Atoi(said)
		if said == "" {
			n, bad = silent, nil
		}
		if want := bad == nil && n >= Contract-1 && n <= Contract+1; (err == nil) != want {
			t.Errorf("%q: %v", said, err)
		}
		if err != nil && doze.Public(err).Kind != doze.Unsupported {
			t.Errorf("%q: %v", said, err)
		}
	})
}
