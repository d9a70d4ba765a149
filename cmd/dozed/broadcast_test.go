package main

import (
	"net/netip"
	"testing"
)

func TestBroadcast(t *testing.T) {
	t.Parallel()
	for network, want := range map[string]netip.Addr{
		"9.9.9.1/24":   netip.MustParseAddr("9.9.9.255"),
		"9.9.9.130/30": netip.MustParseAddr("9.9.9.131"),
		"9.9.9.1/31":   {},
		"9.9.9.1/32":   {},
		"2001:db8::/8": {},
	} {
		if got := broadcast(netip.MustParsePrefix(network)); got != want {
			t.Errorf("all in %s are %s", network, got)
		}
	}
}
