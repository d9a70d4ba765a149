package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func TestVouch(t *testing.T) {
	t.Parallel()
	run := t.TempDir()
	vouchers := VouchersIn(run)
	c := making(t)
	if err := someLayout.Commit(t.Context(), new(sync.WaitGroup), c, someEngine, Dir(c)); err != nil {
		t.Fatal(err)
	}
	if vouchers.Vouched(Dir(c)) {
		t.Error("vouched for before anybody did")
	}
	file := func(name string) string { return filepath.Join(Dir(c), name) }
	for _, tc := range []struct {
		what  string
		touch func() error
	}{
		{"a byte", func() error {
			f, err := os.OpenFile(file(FilePages), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }()
			_, err = f.WriteAt([]byte{1}, 7)
			return err
		}},
		{"another file", func() error {
			raw, err := os.ReadFile(file(fileState))
			if err != nil {
				return err
			}
			return errors.Join(os.WriteFile(file("new"), raw, 0o600), os.Rename(file("new"), file(fileState)))
		}},
		{"the manifest", func() error { return os.Truncate(file(FileManifest), 1) }},
		{"no file", func() error { return os.Remove(file(fileMore)) }},
	} {
		if err := vouchers.Vouch(Dir(c)); err != nil {
			t.Fatal(err)
		}
		if !vouchers.Vouched(Dir(c)) {
			t.Errorf("%s: not vouched for", tc.what)
		}
		if err := tc.touch(); err != nil {
			t.Fatal(err)
		}
		if vouchers.Vouched(Dir(c)) {
			t.Errorf("%s: still vouched for", tc.what)
		}
	}
	if err := vouchers.Sweep(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(filepath.Join(run, dirVouched)); len(left) > 0 {
		t.Errorf("%d vouchers are left", len(left))
	}
}
