package client_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/dozehq/doze"
)

// TestSecretsOfRoutingAreSent: what encodes as nothing by itself, a server gets.
func TestSecretsOfRoutingAreSent(t *testing.T) {
	t.Parallel()
	var got string
	c, _ := served(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = string(b)
		answer(200, "application/json", `{}`)(w, r)
	})
	rules := []doze.ProxyTarget{
		{Destinations: []string{"a.test"}, Headers: map[string]string{"A": "{{SECRET:k}}"}, Secrets: doze.Hide(map[string]string{"k": "v"})},
		{Destinations: []string{"b.test"}},
		{Destinations: []string{"c.test"}, Secrets: doze.Hide(map[string]string{})},
	}
	for want, network := range map[string]*doze.Network{
		`{"metadata":{"name":"web"},"spec":{"runtime":{}}}`:                                                               nil,
		`{"metadata":{"name":"web"},"spec":{"runtime":{},"network":{"allowedDomains":["a.test"]}}}`:                       {AllowedDomains: []string{"a.test"}},
		`{"metadata":{"name":"web"},"spec":{"runtime":{},"network":{"allowedDomains":[],"proxy":{"allowedDomains":[]}}}}`: {AllowedDomains: []string{}, Proxy: &doze.Proxy{AllowedDomains: []string{}}},
		`{"metadata":{"name":"web"},"spec":{"runtime":{},"network":{"proxy":{"bypass":["d.test"],"routing":[` +
			`{"destinations":["a.test"],"headers":{"A":"{{SECRET:k}}"},"secrets":{"k":"v"}},` +
			`{"destinations":["b.test"]},{"destinations":["c.test"],"secrets":{}}]}}}}`: {Proxy: &doze.Proxy{Bypass: []string{"d.test"}, Routing: rules}},
	} {
		in := doze.Sandbox{Metadata: doze.Metadata{Name: "web"}, Spec: doze.SandboxSpec{Network: network}}
		if _, err := c.Update(t.Context(), in); err != nil || got != want {
			t.Errorf("%s was sent, %v, want %s", got, err, want)
		}
	}
}
