package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/machine"
)

const someEngine = "engine-1"

// Files of an engine that has its state in two.
const fileState, fileMore = "state.img", "more.img"

var someLayout = Layout{fileState, fileMore}

// making returns a machine with the engine's files of a checkpoint, not committed.
func making(t *testing.T) machine.Config {
	t.Helper()
	c := machine.Config{ID: "a", Dir: t.TempDir(), Root: "/images/root.erofs", Agent: "/images/agent.erofs"}
	dir := Making(Dir(c))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int{fileState: 1000, fileMore: 0, FilePages: 2*SumChunk + 5} {
		if err := os.WriteFile(filepath.Join(dir, name), bytes.Repeat([]byte{7}, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// parse does what Read does with the bytes on disk.
func parse(raw []byte, c machine.Config) (Manifest, error) {
	m, err := unseal(raw)
	if err != nil {
		return m, err
	}
	return m, someLayout.check(m, c)
}

func seal(tb testing.TB, m Manifest) []byte {
	tb.Helper()
	dir := tb.TempDir()
	if err := m.Write(dir); err != nil {
		tb.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, FileManifest))
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

func sound() Manifest {
	return Manifest{
		Format: FormatWhole, ID: "a", Engine: someEngine, Root: "root.erofs", Agent: "agent.erofs",
		Files: []File{{Name: fileState, Bytes: 1, Chunks: []uint32{1}}, {Name: fileMore}, {Name: FilePages}},
	}
}

func TestParseManifest(t *testing.T) {
	t.Parallel()
	c := machine.Config{ID: "a", Root: "/other/place/root.erofs", Agent: "agent.erofs"}
	if _, err := parse(seal(t, sound()), c); err != nil {
		t.Error("a sound manifest:", err)
	}
	for name, change := range map[string]func(*Manifest){
		"other format":  func(m *Manifest) { m.Format = 4 },
		"other machine": func(m *Manifest) { m.ID = "b" },
		"other root":    func(m *Manifest) { m.Root = "b.erofs" },
		"other agent":   func(m *Manifest) { m.Agent = "b.erofs" },
		"no files":      func(m *Manifest) { m.Files = nil },
		"file twice":    func(m *Manifest) { m.Files[1] = m.Files[0] },
		"foreign file":  func(m *Manifest) { m.Files[1].Name = "../../" + fileMore },
	} {
		m := sound()
		change(&m)
		if _, err := parse(seal(t, m), c); !errors.Is(err, machine.ErrDamaged) {
			t.Errorf("%s: %v, want ErrDamaged", name, err)
		}
	}
	raw := seal(t, sound())
	for i := range raw {
		corrupted := bytes.Clone(raw)
		for _, bit := range []byte{1, 0x20} { // 0x20 is the case of a letter
			corrupted[i] = raw[i] ^ bit
			if _, err := parse(corrupted, c); !errors.Is(err, machine.ErrDamaged) {
				t.Errorf("byte %d altered to %q: %v, want ErrDamaged", i, corrupted[i], err)
			}
		}
	}
}

func FuzzParseManifest(f *testing.F) {
	f.Add(seal(f, sound()))
	f.Add([]byte(`{"manifest":{},"sum":0}`))
	f.Add([]byte(`{"manifest":null,"sum":1}`))
	f.Add([]byte(``))
	c := machine.Config{ID: "a", Root: "root.erofs", Agent: "agent.erofs"}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := parse(raw, c)
		if err != nil {
			if !errors.Is(err, machine.ErrDamaged) {
				t.Errorf("%v is not ErrDamaged", err)
			}
			return
		}
		// What is accepted is what we would write.
		body, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var again Manifest
		if err := json.Unmarshal(body, &again); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m, again); diff != "" {
			t.Error(diff)
		}
	})
}
