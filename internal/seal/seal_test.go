package seal_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/dozehq/doze/internal/seal"
)

func TestOnlyTheSameKeyAndPlaceOpen(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "seal.key")
	first, err := seal.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	again, err := seal.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	other, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	sealed := first.Seal([]byte("hunter2"), "here")
	if bytes.Contains(sealed, []byte("hunter2")) || bytes.Equal(sealed, first.Seal([]byte("hunter2"), "here")) {
		t.Errorf("sealed as %q", sealed)
	}
	if plain, err := again.Unseal(sealed, "here"); err != nil || string(plain) != "hunter2" {
		t.Errorf("%q, %v", plain, err)
	}
	if _, err := again.Unseal(sealed, "there"); err == nil {
		t.Error("it opens in another place")
	}
	if _, err := other.Unseal(sealed, "here"); err == nil {
		t.Error("it opens with another key")
	}
	for i := range sealed {
		bad := bytes.Clone(sealed)
		bad[i] ^= 1
		if _, err := again.Unseal(bad, "here"); err == nil {
			t.Errorf("with another byte %d it opens", i)
		}
	}
}

func TestDamagedKeys(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"empty": "", "short": "00ff\n", "no hex": "zz"} {
		file := filepath.Join(t.TempDir(), "seal.key")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := seal.Open(file); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
}

// FuzzUnseal opens anything but what was sealed: nothing opens, and nothing
// panics.
func FuzzUnseal(f *testing.F) {
	b, err := seal.New()
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(nil))
	f.Add(make([]byte, 64))
	f.Fuzz(func(t *testing.T, sealed []byte) {
		if _, err := b.Unseal(sealed, "here"); err == nil {
			t.Error("it opens")
		}
	})
}
