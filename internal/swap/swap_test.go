package swap

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"doze"
)

func TestParseSize(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text string
		want Size
		ok   bool
	}{
		"some":     {"MemTotal:  5 kB\nSwapTotal:       2048 kB\nSwapFree:        1024 kB\n", Size{2 << 20, 1 << 20}, true},
		"none":     {"SwapTotal:       0 kB\nSwapFree:        0 kB\n", Size{}, true},
		"nothing":  {"", Size{}, true},
		"nonsense": {"SwapTotal: much\n", Size{}, false},
	} {
		got, err := parseSize(strings.NewReader(tc.text))
		if got != tc.want || (err == nil) != tc.ok {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Choice{
		"off": {Kind: Off}, "host": {Kind: Host}, "encrypted": {Kind: Encrypted}, "plain": {Kind: Plain},
		"encrypted:64M": {Encrypted, 64 << 20}, "plain:8G": {Plain, 8 << 30}, "plain:16T": {Plain, 16 << 40},
		"": {}, "on": {}, "off:1G": {}, "host:": {}, "plain:": {}, "plain:8": {}, "plain:G": {}, "plain:63M": {}, "plain:17T": {},
		"plain:-1G": {}, "plain:1g": {}, "plain:8G ": {}, "plain:99999999999999999999G": {}, "encrypted:8G:8G": {},
	} {
		got, err := Parse(text)
		if ok := want != (Choice{}); (err == nil) != ok || ok && got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"off", "plain:8G", "encrypted:1T", "plain:", "encrypted:\x80G"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if c, err := Parse(text); err == nil && c.Bytes != 0 && (c.Bytes < Smallest || c.Bytes > largest) {
			t.Errorf("%q is %d bytes", text, c.Bytes)
		}
	})
}

func TestDecide(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		kind           string
		some, encrypts bool
		makes          bool
		why            string
	}{
		"of the host":                      {Host, true, true, false, ""},
		"none of the host":                 {Host, false, true, false, "allow a file with --swap encrypted"},
		"encrypted":                        {Encrypted, false, true, true, ""},
		"encrypted, besides":               {Encrypted, true, true, true, ""},
		"no mapper":                        {Encrypted, false, false, false, "allow a readable file with --swap plain"},
		"of the host instead of encrypted": {Encrypted, true, false, false, ""},
		"plain":                            {Plain, false, false, true, ""},
		"plain, besides":                   {Plain, true, true, true, ""},
	} {
		makes, why := decide(tc.kind, tc.some, tc.encrypts)
		if makes != tc.makes || (why == "") != (tc.why == "") || !strings.Contains(why, tc.why) {
			t.Errorf("%s: %v, %q", name, makes, why)
		}
	}
}

// TestSteps: an encrypted file is never made into swap itself, and its key is
// written nowhere.
func TestSteps(t *testing.T) {
	t.Parallel()
	f := at("/data/swap")
	device := "/dev/mapper/" + f.mapper
	for name, tc := range map[string]struct {
		plain bool
		want  []step
	}{
		"plain": {true, []step{{"mkswap", "/data/swap"}, {"swapon", "/data/swap"}}},
		"encrypted": {false, []step{
			{
				"cryptsetup", "open", "--type", "plain", "--cipher", "aes-xts-plain64", "--key-size", "512",
				"--key-file", "/dev/urandom", "/data/swap", f.mapper,
			},
			{"mkswap", device},
			{"swapon", device},
		}},
	} {
		if diff := cmp.Diff(tc.want, f.steps(tc.plain)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if at("/data/swap") != f || at("/other/swap").mapper == f.mapper {
		t.Error("the name of a device does not go by the path")
	}
}

// TestMake uses the real thing.
func TestMake(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: swap needs root")
	}
	dir, err := os.MkdirTemp("/var/tmp", "doze-swap-") //nolint:usetesting // it must be on a disk
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "with a space")
	t.Cleanup(func() {
		for range 2 {
			if err := Remove(context.WithoutCancel(t.Context()), path); err != nil {
				t.Error(err)
			}
		}
		if err := os.Remove(dir); err != nil {
			t.Error("something is left:", err)
		}
	})
	if err := os.WriteFile(path, make([]byte, 4096), 0o644); err != nil { // what a crash left
		t.Fatal(err)
	}
	if err := Make(t.Context(), path, Smallest, true); err != nil {
		t.Skip("SKIPPED: this host does not let us:", err)
	}
	first, err := os.Stat(path)
	if err != nil || first.Mode().Perm() != 0o600 || !on(path) {
		t.Fatalf("%+v, %v", first, err)
	}
	if size, err := Look(); err != nil || size.Total < Smallest/2 {
		t.Errorf("%+v, %v", size, err)
	}
	for _, tc := range []struct {
		bytes int64
		same  bool
	}{{Smallest, true}, {2 * Smallest, false}} {
		if err := Make(t.Context(), path, tc.bytes, true); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || first.ModTime().Equal(info.ModTime()) != tc.same || info.Size() != tc.bytes || !on(path) {
			t.Errorf("%d MB: %+v, %v", tc.bytes>>20, info, err)
		}
	}
	// A choice that allows no file takes it away.
	if why, err := Provide(t.Context(), Choice{Kind: Off}, path); why == "" || err != nil || on(path) {
		t.Errorf("%q, %v, and it is on: %v", why, err, on(path))
	}
}

func TestMakeFails(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: swap needs root")
	}
	path := filepath.Join(t.TempDir(), "swap")
	if err := Make(t.Context(), path, 1<<60, true); err == nil {
		t.Error("an exabyte fits")
	}
	if !Encrypts() {
		if err := Make(t.Context(), path, Smallest, false); doze.Public(err).Kind != doze.Unsupported {
			t.Errorf("without a device mapper: %v", err)
		}
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file is left: %v", err)
	}
}
