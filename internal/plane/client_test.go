package plane_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// TestRegisteredClients: the page of the login shows the name of a program, and leads
// back to its own addresses only.
func TestRegisteredClients(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	client := planetest.Want[doze.OAuthClient](p, 200, "POST", "/oauth/clients", `{"client_name":"Nightly builds","redirect_uris":["https://builds.test/back"]}`)
	for redirect, want := range map[string]int{"https://builds.test/back": http.StatusOK, "https://evil.test/back": http.StatusBadRequest} {
		q := url.Values{
			"response_type": {"code"}, "client_id": {client.ClientID}, "redirect_uri": {redirect},
			"code_challenge": {strings.Repeat("a", 43)}, "code_challenge_method": {"S256"},
		}
		w := p.Do("GET", "/oauth/authorize?"+q.Encode(), "", "Authorization", "")
		if w.Code != want || strings.Contains(w.Body.String(), "Nightly builds") != (want == http.StatusOK) {
			t.Errorf("%s: %d %s", redirect, w.Code, w.Body)
		}
	}
}
