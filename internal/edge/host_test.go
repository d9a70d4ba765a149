package edge

import (
	"testing"

	"github.com/dozehq/doze/internal/fleet"
)

// TestHost is whose names may have a certificate.
func TestHost(t *testing.T) {
	t.Parallel()
	a, err := NewAddresses([]string{"eu-1"}, "doze.example", "https://api.doze.example:8443")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, echo)
	w.Addresses = a
	w.previews.PutDomain(fleet.Domain{Name: "open.example", Workspace: "acme", Fallback: "www"})
	for name, domain := range map[string]string{
		"api.doze.example":                         "api.doze.example",
		"API.Doze.Example.":                        "api.doze.example",
		"sbx-web-acme.eu-1.doze.example":           "doze.example",
		"sbx-off-acme.eu-1.doze.example":           "doze.example",
		"open.eu-1.preview.doze.example":           "doze.example",
		"www.preview.shop.example":                 "shop.example",
		"anything.preview.open.example":            "open.example",
		"":                                         "",
		"localhost":                                "",
		"127.0.0.1":                                "",
		"sbx-web-acme.eu-1.localhost":              "",
		"open.eu-1.preview.localhost":              "",
		"doze.example":                             "",
		"sbx-none-acme.eu-1.doze.example":          "",
		"sbx-web-acme.us-1.doze.example":           "",
		"over.eu-1.preview.doze.example":           "", // its time has passed
		"nothing.eu-1.preview.doze.example":        "",
		"nothing.preview.shop.example":             "",
		"theirs.preview.shop.example":              "", // of a workspace that may not use the domain
		"a.b.preview.open.example":                 "",
		".preview.open.example":                    "",
		"www.preview.unknown.example":              "",
		"shop.example":                             "",
		"www.preview.shop.example.evil.example":    "",
		"sbx-web-acme.eu-1.doze.example.evil.test": "",
	} {
		if got, ok := w.Host(name); ok != (domain != "") || ok && got != domain {
			t.Errorf("%q is below %q, %t, want %q", name, got, ok, domain)
		}
	}
}
