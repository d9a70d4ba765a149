package instance

import (
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/host"
)

// TestGreetHidesTheKeyFromJournals: a journal keeps what a service prints, for
// more readers than the file of the key has.
func TestGreetHidesTheKeyFromJournals(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		key      string // that this start made
		terminal bool
		want     []string
		shown    bool
	}{
		"a first start in a terminal": {"dz_new", true, []string{"shown this once and kept in /d/admin.key", "Bearer dz_new"}, true},
		"a first start of a service":  {"dz_new", false, []string{"The admin key is in /d/admin.key", "Bearer $(cat /d/admin.key)"}, false},
		"a later start":               {"", true, []string{"Bearer $(cat /d/admin.key)"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := Greeting{Data: "/d", URL: "http://doze.test", API: "/v0", Key: test.key, Terminal: test.terminal}
			var b strings.Builder
			g.Print(&b)
			for _, part := range append(test.want, "Doze is ready at http://doze.test") {
				if !strings.Contains(b.String(), part) {
					t.Errorf("%q lacks %q", b.String(), part)
				}
			}
			if strings.Contains(b.String(), "dz_new") != test.shown {
				t.Errorf("the key is shown: %q", b.String())
			}
		})
	}
}

// TestGreetSaysWhatSandboxesReach: each setting has its line.
func TestGreetSaysWhatSandboxesReach(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, egress := range []string{host.EgressClosed, host.EgressOpen, host.EgressDirect} {
		var b strings.Builder
		Greeting{Egress: egress}.Print(&b)
		line := reaches[egress]
		if line == "" || seen[line] || !strings.Contains(b.String(), line) {
			t.Errorf("with egress %s it says %q", egress, b.String())
		}
		seen[line] = true
	}
}
