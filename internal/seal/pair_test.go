package seal_test

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/dozehq/doze/internal/seal"
)

func opener(t *testing.T, file string) *seal.Opener {
	t.Helper()
	key, err := seal.Key(file)
	if err != nil {
		t.Fatal(err)
	}
	o, err := seal.NewOpener(key)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestOnlyTheOpenerOpens(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "egress.key")
	o := opener(t, file)
	sealed, err := o.Sealer().Seal([]byte("hunter2"), "here")
	if err != nil || bytes.Contains(sealed, []byte("hunter2")) {
		t.Fatalf("sealed as %q, %v", sealed, err)
	}
	if plain, err := opener(t, file).Unseal(sealed, "here"); err != nil || string(plain) != "hunter2" {
		t.Errorf("%q, %v", plain, err)
	}
	if _, err := o.Unseal(sealed, "there"); err == nil {
		t.Error("it opens in another place")
	}
	if _, err := opener(t, filepath.Join(t.TempDir(), "other.key")).Unseal(sealed, "here"); err == nil {
		t.Error("it opens with another key")
	}
	for i := range sealed {
		bad := bytes.Clone(sealed)
		bad[i] ^= 1
		if _, err := o.Unseal(bad, "here"); err == nil {
			t.Errorf("with another byte %d it opens", i)
		}
	}
	if _, err := o.Unseal(nil, "here"); err == nil {
		t.Error("nothing opens")
	}
}
