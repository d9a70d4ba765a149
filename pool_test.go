package doze_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
)

func TestAddressPool(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		in   []string
		want string // the addresses
		err  string
	}{
		"none":              {nil, "", ""},
		"an address":        {[]string{"203.0.113.7"}, "203.0.113.7", ""},
		"a network":         {[]string{"203.0.113.8/30", "203.0.113.1/32"}, "203.0.113.8 203.0.113.9 203.0.113.10 203.0.113.11 203.0.113.1", ""},
		"the last address":  {[]string{"223.255.255.255"}, "223.255.255.255", ""},
		"a private one":     {[]string{"10.0.0.7"}, "10.0.0.7", ""}, // which a router outside translates
		"a name":            {[]string{"example.com"}, "", "must be an address"},
		"empty":             {[]string{""}, "", "must be an address"},
		"spaces":            {[]string{" 203.0.113.7"}, "", "must be an address"},
		"version 6":         {[]string{"2001:db8::1"}, "", "IPv4"},
		"mapped":            {[]string{"::ffff:203.0.113.7"}, "", "IPv4"},
		"bits behind":       {[]string{"203.0.113.7/24"}, "", "203.0.113.0/24"},
		"loopback":          {[]string{"127.0.0.1"}, "", "host"},
		"link-local":        {[]string{"169.254.88.252/30"}, "", "host"},
		"multicast":         {[]string{"224.0.0.1"}, "", "host"},
		"twice":             {[]string{"203.0.113.7", "203.0.113.7"}, "", "overlaps"},
		"in another":        {[]string{"203.0.113.0/24", "203.0.113.7"}, "", "overlaps"},
		"too large":         {[]string{"20.0.0.0/8"}, "", "at most"},
		"too large in sum":  {[]string{"20.0.0.0/20", "20.1.0.0"}, "", "at most"},
		"the whole of it":   {[]string{"0.0.0.0/0"}, "", "host"},
		"as large as it is": {[]string{"128.0.0.0/1"}, "", "at most"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, err := doze.ParseAddressPool(test.in)
			if test.err != "" {
				if err == nil || doze.Public(err).Kind != doze.Invalid || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("the error is %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for a := range pool.All() {
				got = append(got, a.String())
			}
			if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParsePrivateNetworks(t *testing.T) {
	good, err := doze.ParsePrivateNetworks([]string{"10.1.0.0/16", "192.168.7.9"})
	if err != nil || len(good) != 2 || good[1].String() != "192.168.7.9/32" {
		t.Errorf("%v, %v", good, err)
	}
	if none, err := doze.ParsePrivateNetworks(nil); err != nil || len(none) != 0 {
		t.Errorf("none: %v, %v", none, err)
	}
	for text, says := range map[string]string{
		"mirror":                         "must be an address or a network",
		"fd00::/8":                       "IPv4",
		"10.0.0.1/8":                     "bits behind its network",
		"169.254.169.254":                "stays closed",
		"0.0.0.0/0":                      "stays closed",
		"127.0.0.1":                      "stays closed",
		"10.0.0.0/8,10.1.0.0/16":         "overlaps",
		"198.18.0.0/16":                  "stays closed",
		strings.Repeat("10.0.0.1,", 300): "at most",
	} {
		if _, err := doze.ParsePrivateNetworks(strings.Split(text, ",")); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.40s: %v, want %q", text, err, says)
		}
	}
}
