package preview_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/plane/planetest"
	"github.com/dozehq/doze/internal/testkit/dnstest"
)

// domainWorld is a platform that asks the zone.
func domainWorld(t *testing.T) (*planetest.Platform, *dnstest.Zone) {
	t.Helper()
	z := dnstest.Serve(t)
	z.A(planetest.Target, [4]byte{192, 0, 2, 1})
	p := planetest.Start(t, false)
	p.Stop()
	p.DNS = z.Resolver()
	p.Open(true)
	return p, z
}

func verifyDomain(p *planetest.Platform, headers ...string) doze.CustomDomain {
	p.T.Helper()
	return planetest.Want[doze.CustomDomain](p, 200, "POST", "/customdomains/shop.example/verify", "", headers...)
}

// prove writes into the DNS what a domain asks for.
func prove(z *dnstest.Zone, d doze.CustomDomain) {
	for name, value := range d.Spec.TXTRecords {
		z.TXT(name, value)
	}
	z.CNAME("doze-probe.preview."+d.Metadata.Name, d.Spec.CNAMERecords)
}

// TestAddressesOnADomainAreTakenOver: with force, unless it is the only one that
// the other preview has there.
func TestAddressesOnADomainAreTakenOver(t *testing.T) {
	t.Parallel()
	p, z := domainWorld(t)
	prove(z, planetest.Want[doze.CustomDomain](p, 200, "POST", "/customdomains", `{"metadata":{"name":"shop.example"}}`))
	verifyDomain(p)
	p.Create(planetest.Named("a"))
	body := func(name, prefix string) string {
		return `{"metadata":{"name":"` + name + `"},"spec":{"port":3000,"prefixUrl":"` + prefix + `","customDomain":"shop.example"}}`
	}
	expose(p, body("web", "www"))
	planetest.Want[any](p, 409, "POST", "/sandboxes/a/previews", body("rival", "www"))
	planetest.Want[any](p, 200, "POST", "/sandboxes/a/previews?force=true", body("rival", "www"))
	web := planetest.Want[doze.Preview](p, 200, "GET", "/sandboxes/a/previews/web", "")
	own := label(web)
	if len(own) != 16 || web.Spec.URL != "http://"+own+".preview.shop.example.preview.test" {
		t.Errorf("it is at %s", web.Spec.URL)
	}
	e := planetest.Want[map[string]any](p, 409, "POST", "/sandboxes/a/previews?force=true", body("thief", own))
	if says := e["message"].(string); !strings.Contains(says, "another prefixUrl") {
		t.Errorf("%s", says)
	}
	for name, at := range map[string]string{"web": own + ".preview.shop.example", "rival": "www.preview.shop.example"} {
		if known, ok := p.Previews.Find(at, time.Now()); !ok || known.Sandbox != "a" {
			t.Errorf("%s is not at %s", name, at)
		}
	}
	planetest.Want[any](p, 404, "GET", "/sandboxes/a/previews/thief", "")
}

// TestDomainsFollowTheConfiguration: where a domain has to lead is what the
// platform is called now, not what it was called when the domain was added.
func TestDomainsFollowTheConfiguration(t *testing.T) {
	t.Parallel()
	p, z := domainWorld(t)
	d := planetest.Want[doze.CustomDomain](p, 200, "POST", "/customdomains", `{"metadata":{"name":"shop.example"}}`)
	prove(z, d)
	look := func() doze.CustomDomainSpec {
		t.Helper()
		got := planetest.Want[doze.CustomDomain](p, 200, "GET", "/customdomains/shop.example", "").Spec
		if all := planetest.Want[[]doze.CustomDomain](p, 200, "GET", "/customdomains", ""); len(all) != 1 || all[0].Spec.CNAMERecords != got.CNAMERecords {
			t.Errorf("the list has %+v, not %+v", all, got)
		}
		return got
	}
	p.Target = "there-2.preview.other.test"
	p.Reopen()
	if got := look(); got.CNAMERecords != p.Target || got.VerificationError != "" {
		t.Errorf("%+v", got)
	}
	for _, nameless := range []string{"192.0.2.7", "localhost", "2001:db8::7"} {
		p.Target = nameless
		p.Reopen()
		got := look()
		if says := got.VerificationError; got.CNAMERecords != "" || !strings.Contains(says, "--domain") || !strings.Contains(says, nameless) || !strings.Contains(says, "*.preview.shop.example") {
			t.Errorf("%s: %+v", nameless, got)
		}
	}
	p.Target = "192.0.2.7"
	p.Reopen()
	if got := verifyDomain(p).Spec; got.Status != doze.DomainFailed || !strings.Contains(got.VerificationError, "the address of 192.0.2.7") {
		t.Errorf("%+v", got)
	}
	z.A(planetest.Target, [4]byte{192, 0, 2, 7}) // which its name is an alias of
	if got := verifyDomain(p).Spec; got.Status != doze.DomainVerified || got.VerificationError != "" || got.CNAMERecords != "" {
		t.Errorf("%+v", got)
	}
}

func TestCustomDomains(t *testing.T) {
	t.Parallel()
	p, z := domainWorld(t)
	d := planetest.Want[doze.CustomDomain](p, 200, "POST", "/customdomains", `{"metadata":{"name":"Shop.Example","labels":{"a":"b"}},"spec":{"status":"verified"}}`)
	if d.Metadata.Name != "shop.example" || d.Spec.Status != doze.DomainPending || d.Spec.CNAMERecords != planetest.Target || len(d.Spec.TXTRecords) != 1 || d.Spec.AlternativeNames[0] != "*.preview.shop.example" {
		t.Errorf("%+v", d)
	}
	p.Create(planetest.Named("a"))
	const preview = `{"metadata":{"name":"web"},"spec":{"port":3000,"public":true,"prefixUrl":"www","customDomain":"shop.example"}}`
	planetest.Want[any](p, 400, "POST", "/sandboxes/a/previews", preview) // not verified yet

	if got := verifyDomain(p); got.Spec.Status != doze.DomainFailed || !strings.Contains(got.Spec.VerificationError, "TXT") || !strings.Contains(got.Spec.VerificationError, "CNAME") || !got.Spec.LastVerifiedAt.IsZero() {
		t.Errorf("nothing in the DNS: %+v", got.Spec)
	}
	z.TXT("_doze-challenge.shop.example", d.Spec.TXTRecords["_doze-challenge.shop.example"])
	if got := verifyDomain(p); got.Spec.Status != doze.DomainFailed || !strings.HasPrefix(got.Spec.VerificationError, "the CNAME") {
		t.Errorf("half in the DNS: %+v", got.Spec)
	}
	prove(z, d)
	if got := verifyDomain(p); got.Spec.Status != doze.DomainVerified || got.Spec.VerificationError != "" || got.Spec.LastVerifiedAt.IsZero() {
		t.Fatalf("all in the DNS: %+v", got.Spec)
	}
	v := expose(p, preview)
	if v.Spec.URL != "http://www.preview.shop.example.preview.test" { // as the test spells addresses
		t.Errorf("address %s", v.Spec.URL)
	}
	serves := func() bool {
		_, ok := p.Previews.Find("www.preview.shop.example", time.Now())
		return ok
	}
	planetest.Want[any](p, 409, "DELETE", "/customdomains/shop.example", "") // a preview uses it
	planetest.Want[any](p, 200, "PUT", "/customdomains/shop.example", `{"spec":{"fallbackPreviewId":"www"}}`)
	if edge, ok := p.Previews.Domain("shop.example"); !ok || edge.Fallback != "www" {
		t.Errorf("the edge knows %+v", edge)
	}

	// A DNS that does not answer changes nothing; one that says no does.
	z.Silence(true)
	if got := verifyDomain(p); got.Spec.Status != doze.DomainVerified || got.Spec.VerificationError == "" || !serves() {
		t.Errorf("a silent DNS: %+v", got.Spec)
	}
	z.Silence(false)
	z.ForgetTXT()
	if got := verifyDomain(p); got.Spec.Status != doze.DomainFailed || serves() {
		t.Errorf("without its record it is %s, served %t", got.Spec.Status, serves())
	}
	planetest.Want[any](p, 200, "POST", "/sandboxes/a/previews/web/tokens", `{"metadata":{"name":"t"}}`)
	if serves() {
		t.Error("with a new token it is served again")
	}
	p.Reopen()
	if serves() {
		t.Error("after a restart it is served again")
	}
	prove(z, d)
	if verifyDomain(p); !serves() {
		t.Error("verified again, it is not served")
	}
	planetest.Want[any](p, 200, "DELETE", "/sandboxes/a/previews/web", "")
	planetest.Want[any](p, 200, "DELETE", "/customdomains/shop.example", "")
	planetest.Want[any](p, 404, "POST", "/customdomains/shop.example/verify", "")
}

// TestAddressesInsteadOfAnAlias: providers resolve some aliases themselves.
func TestAddressesInsteadOfAnAlias(t *testing.T) {
	t.Parallel()
	p, z := domainWorld(t)
	d := planetest.Want[doze.CustomDomain](p, 200, "POST", "/customdomains", `{"metadata":{"name":"shop.example"}}`)
	for name, value := range d.Spec.TXTRecords {
		z.TXT(name, value)
	}
	const probe = "doze-probe.preview.shop.example"
	for _, tt := range []struct {
		says   string
		change func()
		status string
	}{
		{"another address", func() { z.A(probe, [4]byte{192, 0, 2, 2}) }, doze.DomainFailed},
		{"ours", func() { z.A(probe, [4]byte{192, 0, 2, 1}) }, doze.DomainVerified},
		{"nobody knows ours", func() { z.Refuse(planetest.Target) }, doze.DomainVerified},
		{"nobody knows theirs", func() { z.Refuse(probe) }, doze.DomainVerified},
		{"another address again", func() { z.Refuse(""); z.A(probe, [4]byte{192, 0, 2, 2}) }, doze.DomainFailed},
	} {
		tt.change()
		if got := verifyDomain(p); got.Spec.Status != tt.status || (got.Spec.VerificationError == "") != (tt.says == "ours") {
			t.Errorf("%s: %s, %q", tt.says, got.Spec.Status, got.Spec.VerificationError)
		}
	}
}

// TestDomainsAreNotTakenOver: another workspace's proof is worth nothing, and
// who proves a domain that its owner left gets it.
func TestDomainsAreNotTakenOver(t *testing.T) {
	t.Parallel()
	p, z := domainWorld(t)
	planetest.Want[any](p, 200, "POST", "/workspaces", `{"name":"rival"}`)
	rival := []string{"X-Blaxel-Workspace", "rival"}
	const body = `{"metadata":{"name":"shop.example"}}`
	mine := planetest.Want[doze.CustomDomain](p, 200, "POST", "/customdomains", body)
	theirs := planetest.Want[doze.CustomDomain](p, 200, "POST", "/customdomains", body, rival...)
	prove(z, mine)
	verifyDomain(p)
	if got := verifyDomain(p, rival...); got.Spec.Status != doze.DomainFailed {
		t.Errorf("with another's proof: %+v", got.Spec)
	}
	p.Create(planetest.Named("a"))
	const preview = `{"metadata":{"name":"web"},"spec":{"port":3000,"prefixUrl":"www","customDomain":"shop.example"}}`
	expose(p, preview)
	prove(z, theirs) // the domain changed hands
	if got := verifyDomain(p, rival...); got.Spec.Status != doze.DomainFailed || !strings.Contains(got.Spec.VerificationError, "another workspace") {
		t.Errorf("while the first is verified: %+v", got.Spec)
	}
	if got := verifyDomain(p); got.Spec.Status != doze.DomainFailed {
		t.Errorf("the first, without its proof: %+v", got.Spec)
	}
	if got := verifyDomain(p, rival...); got.Spec.Status != doze.DomainVerified {
		t.Errorf("the second, with its proof: %+v", got.Spec)
	}
	planetest.Want[any](p, 200, "POST", "/sandboxes", planetest.Named("b"), rival...)
	planetest.Want[any](p, 200, "POST", "/sandboxes/b/previews", preview, rival...)
	if known, ok := p.Previews.Find("www.preview.shop.example", time.Now()); !ok || known.Workspace != "rival" {
		t.Errorf("the edge knows %+v", known)
	}
}

// TestDomainsAreShared: a workspace serves previews on another's domain for as
// long as it is shared, and cannot change it.
func TestDomainsAreShared(t *testing.T) {
	t.Parallel()
	p, z := domainWorld(t)
	planetest.Want[any](p, 200, "POST", "/workspaces", `{"name":"guest","displayName":"The Guests"}`)
	guest := []string{"X-Blaxel-Workspace", "guest"}
	d := planetest.Want[doze.CustomDomain](p, 200, "POST", "/customdomains", `{"metadata":{"name":"shop.example"}}`)
	const path = "/customdomains/shop.example"
	planetest.Want[any](p, 400, "POST", path+"/share", `{"targetWorkspace":"guest"}`) // not verified
	prove(z, d)
	verifyDomain(p)
	for body, status := range map[string]int{
		`{}`: 400, `{"targetWorkspace":7}`: 400, `{"targetWorkspace":"nobody"}`: 404, `{"targetWorkspace":"` + d.Metadata.Workspace + `"}`: 400,
	} {
		if w := p.Do("POST", path+"/share", body); w.Code != status {
			t.Errorf("%s: %d %s, want %d", body, w.Code, w.Body, status)
		}
	}
	planetest.Want[any](p, 404, "GET", path, "", guest...)
	planetest.Want[any](p, 404, "GET", path+"/share", "", guest...)
	planetest.Want[any](p, 200, "POST", "/sandboxes", planetest.Named("b"), guest...)
	const preview = `{"metadata":{"name":"web"},"spec":{"port":3000,"public":true,"prefixUrl":"www","customDomain":"shop.example"}}`
	planetest.Want[any](p, 400, "POST", "/sandboxes/b/previews", preview, guest...)

	planetest.Want[doze.CustomDomain](p, 200, "POST", path+"/share", `{"targetWorkspace":"guest"}`)
	planetest.Want[any](p, 409, "POST", path+"/share", `{"targetWorkspace":"guest"}`)
	planetest.Want[any](p, 409, "DELETE", path, "") // it is shared
	if got := planetest.Want[[]doze.DomainShare](p, 200, "GET", path+"/share", ""); len(got) != 1 || got[0] != (doze.DomainShare{Workspace: "guest", DisplayName: "The Guests", Status: "active"}) {
		t.Errorf("%+v", got)
	}
	got := planetest.Want[doze.CustomDomain](p, 200, "GET", path, "", guest...)
	if got.Metadata.Workspace != "guest" || got.Metadata.SharedFrom != d.Metadata.Workspace || got.Spec.Status != doze.DomainVerified {
		t.Errorf("%+v", got.Metadata)
	}
	if len(got.Spec.TXTRecords) > 0 {
		t.Errorf("a guest sees what proves whose the domain is: %v", got.Spec.TXTRecords)
	}
	if all := planetest.Want[[]doze.CustomDomain](p, 200, "GET", "/customdomains", "", guest...); len(all) != 1 || all[0].Metadata.SharedFrom == "" || len(all[0].Spec.TXTRecords) > 0 {
		t.Errorf("%+v", all)
	}
	for method, at := range map[string]string{"PUT": path, "DELETE": path, "POST": path + "/verify", "GET": path + "/share"} {
		planetest.Want[any](p, 403, method, at, `{}`, guest...)
	}
	planetest.Want[any](p, 200, "POST", "/sandboxes/b/previews", preview, guest...)
	p.Create(planetest.Named("a"))
	planetest.Want[any](p, 409, "POST", "/sandboxes/a/previews?force=true", preview) // the name is theirs
	serves := func() bool {
		_, ok := p.Previews.Find("www.preview.shop.example", time.Now())
		return ok
	}
	if !serves() {
		t.Error("the guest's preview is not served")
	}
	p.Reopen()
	if !serves() {
		t.Error("after a restart it is not served")
	}
	planetest.Want[any](p, 200, "DELETE", path+"/share/guest", "")
	planetest.Want[any](p, 404, "DELETE", path+"/share/guest", "")
	if serves() {
		t.Error("it is served though it is not shared any more")
	}
	planetest.Want[any](p, 200, "POST", "/sandboxes/a/previews", preview) // the name is free
	planetest.Want[any](p, 200, "DELETE", "/sandboxes/a/previews/web", "")

	planetest.Want[doze.CustomDomain](p, 200, "POST", path+"/share", `{"targetWorkspace":"account"}`)
	planetest.Want[any](p, 200, "POST", "/sandboxes/b/previews", preview, guest...)
	planetest.Want[any](p, 200, "DELETE", "/sandboxes/b", "", guest...)
	planetest.Want[any](p, 200, "DELETE", path+"/share/account", "")
	planetest.Want[any](p, 200, "DELETE", path, "")
}

// TestSharesEndWithTheirWorkspace: who takes its name later gets nothing.
func TestSharesEndWithTheirWorkspace(t *testing.T) {
	t.Parallel()
	p, z := domainWorld(t)
	d := planetest.Want[doze.CustomDomain](p, 200, "POST", "/customdomains", `{"metadata":{"name":"shop.example"}}`)
	prove(z, d)
	verifyDomain(p)
	const guest = `{"name":"guest"}`
	planetest.Want[any](p, 200, "POST", "/workspaces", guest)
	planetest.Want[any](p, 200, "POST", "/customdomains/shop.example/share", `{"targetWorkspace":"guest"}`)
	planetest.Want[any](p, 200, "DELETE", "/workspaces/guest", "")
	planetest.Want[any](p, 200, "POST", "/workspaces", guest)
	planetest.Want[any](p, 404, "GET", "/customdomains/shop.example", "", "X-Blaxel-Workspace", "guest")
	if got := planetest.Want[[]doze.DomainShare](p, 200, "GET", "/customdomains/shop.example/share", ""); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

func TestDomainMistakes(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	planetest.Want[any](p, 200, "POST", "/customdomains", `{"metadata":{"name":"a.example"}}`)
	for body, status := range map[string]int{
		`{}`:                                  400,
		`{"metadata":{"name":"localhost"}}`:   400,
		`{"metadata":{"name":"a.localhost"}}`: 400,
		`{"metadata":{"name":"127.0.0.1"}}`:   400,
		`{"metadata":{"name":"a_b.example"}}`: 400,
		`{"metadata":{"name":"` + strings.Repeat("a.", 100) + `example"}}`:       400,
		`{"metadata":{"name":"doze.test"}}`:                                      400, // ours
		`{"metadata":{"name":"b.example"},"spec":{"region":"mars"}}`:             400,
		`{"metadata":{"name":"b.example"},"spec":{"domainType":"applications"}}`: 400,
		`{"metadata":{"name":"b.example"},"spec":{"fallbackPreviewId":"a.b"}}`:   400,
		`{"metadata":{"name":"b.example"},"spec":{"fallbackPreviewId":7}}`:       400,
		`{"metadata":{"name":"A.example."}}`:                                     409,
	} {
		w := p.Do("POST", "/customdomains", body)
		if w.Code != status {
			t.Errorf("%s: %d %s, want %d", body, w.Code, w.Body, status)
		}
		planetest.CheckError(t, w)
	}
	planetest.Want[any](p, 400, "PUT", "/customdomains/a.example", `{"metadata":{"name":"b.example"}}`)
	planetest.Want[any](p, 400, "PUT", "/customdomains/a.example", `{"spec":{"region":"there-1"}}`)
	if got := planetest.Want[doze.CustomDomain](p, 200, "POST", "/customdomains", `{"metadata":{"name":"far.example"},"spec":{"region":"there-1"}}`); got.Spec.Region != "there-1" {
		t.Errorf("%+v", got)
	}
	planetest.Want[any](p, 200, "DELETE", "/customdomains/far.example", "")
	if got := planetest.Want[doze.CustomDomain](p, 200, "PUT", "/customdomains/A.example", `{"metadata":{"displayName":"A"},"spec":{"cnameRecords":"evil.test"}}`); got.Metadata.DisplayName != "A" || got.Spec.CNAMERecords != planetest.Target {
		t.Errorf("%+v", got)
	}
	for _, label := range []string{"www", ""} {
		if got := planetest.Want[doze.CustomDomain](p, 200, "PUT", "/customdomains/a.example", `{"spec":{"fallbackPreviewId":"`+label+`"}}`); got.Spec.FallbackPreviewID != label {
			t.Errorf("%+v", got)
		}
	}
	if all := planetest.Want[[]doze.CustomDomain](p, 200, "GET", "/customdomains", ""); len(all) != 1 {
		t.Errorf("%+v", all)
	}
}
