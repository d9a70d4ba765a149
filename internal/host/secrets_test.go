package host

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/egress"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/intercept"
)

// TestSecretsOpen: secrets open in their workspace, with the key that they were
// sealed for, and what does not open puts no rules in force.
func TestSecretsOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r, err := openSecrets(filepath.Join(dir, "egress.key"), intercept.Defaults{})
	if err != nil {
		t.Fatal(err)
	}
	again, err := openSecrets(filepath.Join(dir, "egress.key"), intercept.Defaults{})
	if err != nil {
		t.Fatal(err)
	}
	other, err := openSecrets(filepath.Join(dir, "other.key"), intercept.Defaults{})
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := r.opener.Sealer().Seal([]byte("hunter2"), fleet.SecretPlace("main"))
	if err != nil {
		t.Fatal(err)
	}
	network := &doze.Network{Proxy: &doze.Proxy{Routing: []doze.ProxyTarget{{
		Destinations: []string{"api.test"}, Headers: map[string]string{"A": "{{SECRET:key}}"}, Sealed: map[string][]byte{"key": sealed},
	}}}}
	for name, tt := range map[string]struct {
		secrets   *secrets
		workspace string
		want      string // of the error; empty is none
	}{
		"the same":           {r, "main", ""},
		"after a restart":    {again, "main", ""},
		"another workspace":  {r, "other", "restore the file egress.key"},
		"another key":        {other, "main", "restore the file egress.key"},
		"one that is nobody": {r, "", "restore the file egress.key"},
	} {
		who := egress.Guest{UID: name, Workspace: tt.workspace, IP: netip.MustParseAddr("10.0.0.1")}
		err := tt.secrets.admit(who, "of "+name, network)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v", name, err)
		}
		if of := tt.secrets.of(who); (of.who == who && of.authority == "of "+name) != (tt.want == "") {
			t.Errorf("%s: the rules of %+v are in force", name, of)
		}
		if of := tt.secrets.of(egress.Guest{UID: "next", IP: who.IP}); of.authority != "" || of.rules.For(doze.Address{Host: "api.test", Port: 443}) != nil {
			t.Errorf("%s: who has the address next gets %+v", name, of)
		}
		tt.secrets.forget(who.IP)
		if len(tt.secrets.rules) != 0 {
			t.Errorf("%s: it is not forgotten", name)
		}
	}
}
