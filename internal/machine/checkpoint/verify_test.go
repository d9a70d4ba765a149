package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/dozehq/doze/internal/machine"
)

func TestVerify(t *testing.T) {
	t.Parallel()
	c := making(t)
	if err := someLayout.Commit(t.Context(), new(sync.WaitGroup), c, someEngine, Dir(c)); err != nil {
		t.Fatal(err)
	}
	m, err := someLayout.Read(Dir(c), c)
	if err != nil {
		t.Fatal(err)
	}
	pages := filepath.Join(Dir(c), FilePages)
	whole, err := os.ReadFile(pages)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{0, SumChunk - 1, SumChunk, 2 * SumChunk, len(whole) - 1} {
		damaged := bytes.Clone(whole)
		damaged[at]++
		if err := os.WriteFile(pages, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Verify(t.Context(), Dir(c), m); !errors.Is(err, machine.ErrDamaged) {
			t.Errorf("altered at %d: %v, want ErrDamaged", at, err)
		}
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Verify(cancelled, Dir(c), m); !errors.Is(err, context.Canceled) || errors.Is(err, machine.ErrDamaged) {
		t.Errorf("cancelled: %v, which is no damage", err)
	}
}
