package doze_test

import (
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

func TestCheckDomain(t *testing.T) {
	t.Parallel()
	label := strings.Repeat("a", doze.LabelMax)
	for name, ok := range map[string]bool{
		"example.com":            true,
		"a.b-c.example.com":      true,
		label + ".com":           true,
		"example." + label:       true,
		label + "a.com":          false,
		"www." + label + "a.com": false,
		"com":                    false,
		"-a.com":                 false,
		"a-.com":                 false,
		"a..com":                 false,
		"a.1com":                 false,
		"127.0.0.1":              false,
		"a.localhost":            false,
		strings.Repeat("a.", doze.DomainMax/2) + "com": false,
	} {
		var p doze.Problems
		if doze.CheckDomain(&p, "spec.name", name); (len(p) == 0) != ok {
			t.Errorf("%s: %v", name, p)
		}
	}
}
