package disk

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// filled is a library with many images, the records of which are as those of pulls. Some
// have a reference besides that is of one workspace.
func filled(tb testing.TB, images int) *Library {
	tb.Helper()
	dir := filepath.Join(tb.TempDir(), "images")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	for i := range images {
		ref := fmt.Sprintf("registry.example/team/app-%d:1", i)
		sum := sha256.Sum256([]byte(ref))
		name := hex.EncodeToString(sum[:])
		r := record{
			Image: Image{Ref: ref, Digest: "sha256:" + name, Bytes: 4},
			Refs:  map[string]time.Time{ref: time.Now(), ref + ownerMark + "main": time.Now(), ref + "-also": time.Now()},
		}
		raw, err := json.MarshalIndent(r, "", "  ")
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name+recordSuffix), raw, recordMode), os.WriteFile(filepath.Join(dir, name+imageSuffix), []byte("data"), 0o600))
		if err != nil {
			tb.Fatal(err)
		}
	}
	l, err := Open(filepath.Dir(dir), Options{Owner: tb.TempDir()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close() })
	return l
}

// onDisk are the references that the records of a library have.
func (l *Library) onDisk(tb testing.TB) (refs []string) {
	tb.Helper()
	all, err := l.Stored()
	if err != nil {
		tb.Fatal(err)
	}
	for _, i := range all {
		refs = append(refs, i.Refs...)
	}
	slices.Sort(refs)
	return slices.Compact(refs)
}

// TestRefs: what is in memory is what is on the disk, also after images went.
func TestRefs(t *testing.T) {
	t.Parallel()
	l := filled(t, 9)
	if diff := cmp.Diff(l.onDisk(t), l.Refs()); diff != "" || len(l.Refs()) != 18 {
		t.Errorf("-disk +memory:\n%s", diff)
	}
	for i := range 4 {
		l.Release(fmt.Sprintf("registry.example/team/app-%d:1", i))
	}
	gone, err := l.Collect(nil, nil, 0)
	if err != nil || len(gone) != 4 {
		t.Fatalf("%d images went: %v", len(gone), err)
	}
	if diff := cmp.Diff(l.onDisk(t), l.Refs()); diff != "" || len(l.Refs()) != 10 {
		t.Errorf("after some went (-disk +memory):\n%s", diff)
	}
}

// BenchmarkRefs is what a node pays for its images with each renewal of its lease, next to
// reading their records.
func BenchmarkRefs(b *testing.B) {
	for _, n := range []int{10, 300} {
		l := filled(b, n)
		b.Run(fmt.Sprintf("images=%d/memory", n), func(b *testing.B) {
			for b.Loop() {
				l.Refs()
			}
		})
		b.Run(fmt.Sprintf("images=%d/disk", n), func(b *testing.B) {
			for b.Loop() {
				l.onDisk(b)
			}
		})
	}
}
