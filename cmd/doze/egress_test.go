package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
)

func TestEgressRows(t *testing.T) {
	t.Parallel()
	got := egressRows([]doze.EgressDestination{
		{Protocol: "tcp", Host: "b.test", Port: 443, Verdict: doze.EgressDenied, Rule: "allowedDomains", Reason: "change spec.network", Count: 2},
		{Protocol: "icmp", Host: "2001:db8::7", Verdict: doze.EgressAllowed, Rule: "default", Count: 1},
		{Protocol: "tcp", Host: "2001:db8::7", Port: 22, Verdict: doze.EgressAllowed, Rule: "default", Count: 1},
	})
	want := [][]string{
		{"DESTINATION", "PROTOCOL", "VERDICT", "RULE", "COUNT", "LAST", "+FIRST", "+REASON"},
		{"b.test:443", "tcp", "deny", "allowedDomains", "2", "", "", "change spec.network"},
		{"2001:db8::7", "icmp", "allow", "default", "1", "", "", ""},
		{"[2001:db8::7]:22", "tcp", "allow", "default", "1", "", "", ""},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
