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

	"github.com/dozehq/doze"
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
		"auto": {Kind: Auto}, "off": {Kind: Off}, "host": {Kind: Host}, "zram": {Kind: Zram}, "zram:1G": {Zram, 1 << 30}, "encrypted": {Kind: Encrypted}, "plain": {Kind: Plain},
		"encrypted:64M": {Encrypted, 64 << 20}, "plain:8G": {Plain, 8 << 30}, "plain:16T": {Plain, 16 << 40},
		"": {}, "on": {}, "off:1G": {}, "host:": {}, "auto:1G": {}, "zram:": {}, "plain:": {}, "plain:8": {}, "plain:G": {}, "plain:63M": {}, "plain:17T": {},
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

func TestParseAreas(t *testing.T) {
	t.Parallel()
	const text = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n" +
		"/dev/zram1                              partition\t1048572\t\t0\t\t100\n" +
		"/var/tmp/with\\040a\\040space               file\t\t2048\t\t0\t\t-2\n" +
		"/gone\\040(deleted)               file\t\t4\t\t0\t\t-3\n"
	want := []area{{"/dev/zram1", 1048572 << 10}, {"/var/tmp/with a space", 2 << 20}, {"/gone (deleted)", 4 << 10}}
	if diff := cmp.Diff(want, parseAreas(text), cmp.AllowUnexported(area{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	const (
		mega = 1 << 20
		giga = 1 << 30
		no   = "this kernel cannot"
	)
	host := func(change func(*Facts)) Facts {
		f := Facts{Memory: 4 * giga, ZramMax: giga, Room: 40 * giga}
		if change != nil {
			change(&f)
		}
		return f
	}
	bare := func(f *Facts) { f.NoZram, f.NoEncryption = "no zram", "no mapper" }
	for name, tc := range map[string]struct {
		choice Choice
		facts  Facts
		kind   string
		bytes  int64
		why    string // a part of it
	}{
		"off": {Choice{Kind: Off}, host(func(f *Facts) { f.Host = 8 * giga }), Off, 0, "it is off"},

		"auto, swap of the host":     {Choice{Kind: Auto}, host(func(f *Facts) { f.Host = giga }), Host, 0, "has 1024 MB of swap"},
		"auto, little of it":         {Choice{Kind: Auto}, host(func(f *Facts) { f.Host = giga - 1 }), Zram, 512 * mega, "less than the 1024 MB"},
		"auto, enough on large ones": {Choice{Kind: Auto}, host(func(f *Facts) { f.Memory, f.Host = 512*giga, 16*giga }), Host, 0, "of swap"},
		"auto, none":                 {Choice{Kind: Auto}, host(nil), Zram, 512 * mega, "no swap, and compressed memory never reaches a disk"},
		"auto, a large host":         {Choice{Kind: Auto}, host(func(f *Facts) { f.Memory, f.ZramMax = 512*giga, 128*giga }), Zram, 16 * giga, ""},
		"auto, little to spare":      {Choice{Kind: Auto}, host(func(f *Facts) { f.ZramMax = 100*mega + 1 }), Zram, 100 * mega, ""},
		"auto, too little to spare":  {Choice{Kind: Auto}, host(func(f *Facts) { f.ZramMax = 15 * mega }), Encrypted, 2 * giga, "may take 15 MB here"},
		"auto, nothing to spare":     {Choice{Kind: Auto}, host(func(f *Facts) { f.ZramMax = -giga }), Encrypted, 2 * giga, "may take 0 MB here"},
		"auto, no zram":              {Choice{Kind: Auto}, host(func(f *Facts) { f.NoZram = "no zram" }), Encrypted, 2 * giga, "the host has no swap; no zram"},
		"auto, a small disk":         {Choice{Kind: Auto}, host(func(f *Facts) { f.NoZram, f.Room = "no zram", giga }), Encrypted, 256 * mega, ""},
		"auto, a full disk":          {Choice{Kind: Auto}, host(func(f *Facts) { f.NoZram, f.Room = "no zram", 100*mega }), Off, 0, "the disk has 100 MB above its reserve"},
		"auto, a disk over it":       {Choice{Kind: Auto}, host(func(f *Facts) { f.NoZram, f.Room = "no zram", -giga }), Off, 0, "the disk has 0 MB"},
		"auto, nothing":              {Choice{Kind: Auto}, host(bare), Off, 0, "the host has no swap; no zram; no mapper"},
		"auto, nothing but little":   {Choice{Kind: Auto}, host(func(f *Facts) { bare(f); f.Host = mega }), Host, 0, "has 1 MB of swap, less than"},
		"auto, an earlier zram":      {Choice{Kind: Auto}, host(func(f *Facts) { f.Host, f.Ours, f.OursBytes = 8*giga, Zram, 300*mega }), Zram, 300 * mega, "an earlier start made it"},
		"auto, one that is too much": {Choice{Kind: Auto}, host(func(f *Facts) { f.Ours, f.OursBytes = Zram, 2*giga }), Zram, 512 * mega, "no swap"},
		"auto, an earlier file":      {Choice{Kind: Auto}, host(func(f *Facts) { f.Ours, f.OursBytes = Encrypted, giga }), Encrypted, giga, "an earlier start made it"},
		"auto, a readable file":      {Choice{Kind: Auto}, host(func(f *Facts) { bare(f); f.Ours, f.OursBytes = Plain, giga }), Off, 0, "no mapper"},

		"of the host":      {Choice{Kind: Host}, host(func(f *Facts) { f.Host = mega }), Host, 0, "has 1 MB of swap"},
		"none of the host": {Choice{Kind: Host}, host(nil), Off, 0, "allow --swap auto"},

		"zram":               {Choice{Kind: Zram}, host(func(f *Facts) { f.Host = 8 * giga }), Zram, 512 * mega, ""},
		"zram, sized":        {Choice{Zram, giga}, host(nil), Zram, giga, ""},
		"zram, too much":     {Choice{Zram, giga + mega}, host(nil), Off, 0, "may take 1024 MB here: choose less"},
		"zram, not here":     {Choice{Kind: Zram}, host(bare), Off, 0, "no zram: "},
		"zram, of the host":  {Choice{Kind: Zram}, host(func(f *Facts) { bare(f); f.Host = mega }), Host, 0, "has 1 MB"},
		"zram, a tiny host":  {Choice{Kind: Zram}, host(func(f *Facts) { f.Memory = 100 * mega }), Off, 0, "choose less"},
		"encrypted":          {Choice{Kind: Encrypted}, host(nil), Encrypted, 2 * giga, ""},
		"encrypted, besides": {Choice{Encrypted, giga}, host(func(f *Facts) { f.Host = 8 * giga }), Encrypted, giga, ""},
		"no mapper":          {Choice{Kind: Encrypted}, host(bare), Off, 0, "can be read on disk with --swap plain"},
		"the host's instead": {Choice{Kind: Encrypted}, host(func(f *Facts) { bare(f); f.Host = mega }), Host, 0, "has 1 MB"},
		"plain":              {Choice{Kind: Plain}, host(bare), Plain, 2 * giga, "can read it"},
		"plain, besides":     {Choice{Plain, giga}, host(func(f *Facts) { f.Host = 8 * giga }), Plain, giga, ""},
	} {
		p := Decide(tc.choice, tc.facts)
		if p.Kind != tc.kind || p.Bytes != tc.bytes || p.Why == "" || !strings.Contains(p.Why, tc.why) {
			t.Errorf("%s: %+v", name, p)
		}
		if tc.choice.Kind == Auto && p.Kind == Plain {
			t.Errorf("%s: nobody asked for a file that can be read", name)
		}
		if held := p.Held(); p.Kind == Zram && (held < p.Bytes || held > p.Bytes+p.Bytes/16) || p.Kind != Zram && held != 0 {
			t.Errorf("%s: it holds %d of %d bytes", name, held, p.Bytes)
		}
	}
	// What turned out not to work is not tried again.
	f := host(nil)
	for _, want := range []string{Zram, Encrypted, Off} {
		p := Decide(Choice{Kind: Auto}, f)
		if p.Kind != want {
			t.Errorf("it is %+v, not %s", p, want)
		}
		f = f.without(p.Kind, errors.New(no))
	}
	if why := Decide(Choice{Kind: Auto}, f).Why; strings.Count(why, no) != 2 {
		t.Errorf("it does not say why: %s", why)
	}
}

func TestSwapLabel(t *testing.T) {
	t.Parallel()
	page := make([]byte, 4096)
	copy(page[1052:], "doze-0123456789")
	if _, ok := swapLabel(page); ok {
		t.Error("a page without the magic is one of swap")
	}
	copy(page[4086:], "SWAPSPACE2")
	if label, ok := swapLabel(page); !ok || label != "doze-0123456789" {
		t.Errorf("%q, %v", label, ok)
	}
	if _, ok := swapLabel(page[4000:]); ok {
		t.Error("a part of a page is one of swap")
	}
	if label := zramAt(strings.Repeat("/long", 100)).label; len(label) > 16 {
		t.Errorf("%s is too long for a header", label)
	}
}

func TestParseCompressed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"  4096  74 12288 0 12288 0 0 0 0\n": 12288, "": 0, "1 2": 0, "1 2 x": 0, "1 2 -3": 0,
	} {
		if got := parseCompressed(text); got != want {
			t.Errorf("%q: %d", text, got)
		}
	}
}

// TestZram uses the real thing: what is made has its bounds, a second start adopts
// it, and whatever a start that was killed left goes.
func TestZram(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: swap needs root")
	}
	if why := noZram(t.Context()); why != "" {
		t.Skip("SKIPPED:", why)
	}
	ctx := context.WithoutCancel(t.Context())
	o := Options{Path: filepath.Join(t.TempDir(), "swap"), ZramMax: 1 << 30}
	z := zramAt(o.Path)
	t.Cleanup(func() {
		d, _ := z.find()
		if err := Remove(ctx, o.Path); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(d.node()); d > 0 && err == nil {
			t.Errorf("%s is left", d.node())
		}
		if _, err := os.Stat(z.record); err == nil {
			t.Error("its record is left")
		}
	})
	provide := func(c Choice) (Plan, zramDevice) {
		t.Helper()
		p, err := Provide(ctx, c, o)
		if err != nil {
			t.Fatal(err)
		}
		d, state := z.find()
		if state != zramMade || !on(d.node()) {
			t.Fatalf("%+v: the device is in state %d", p, state)
		}
		return p, d
	}
	p, first := provide(Choice{Zram, Smallest})
	if raw, err := os.ReadFile(first.file("disksize")); err != nil || strings.TrimSpace(string(raw)) != "268435456" {
		t.Errorf("its size is %q, %v", raw, err)
	}
	const limitColumn = 3
	if raw, err := os.ReadFile(first.file("mm_stat")); err != nil || strings.Fields(string(raw))[limitColumn] != "67108864" {
		t.Errorf("the kernel does not bound what it takes: %q, %v", raw, err)
	}
	if p.Held() <= Smallest || Compressed(o.Path) > Smallest {
		t.Errorf("%+v takes %d bytes", p, Compressed(o.Path))
	}
	f, err := Examine(ctx, o)
	if err != nil || f.Ours != Zram || f.OursBytes != Smallest {
		t.Errorf("it is not found: %+v, %v", f, err)
	}
	for _, c := range []Choice{{Zram, Smallest}, {Kind: Auto}} { // adopted, not doubled
		if again, d := provide(c); d != first || again.Bytes != Smallest {
			t.Errorf("%+v: %+v on %s, and it was %s", c, again, d.node(), first.node())
		}
	}
	if p, _ := provide(Choice{Zram, 2 * Smallest}); p.Bytes != 2*Smallest {
		t.Errorf("another size is %+v", p)
	}
	// A start that was killed before the swap, before the size, and a restart.
	for name, spoil := range map[string]func() error{
		"no swap": func() error {
			d, _ := z.find()
			if err := (step{"swapoff", d.node()}).run(ctx); err != nil {
				return err
			}
			return os.WriteFile(d.node(), make([]byte, os.Getpagesize()), 0)
		},
		"no size": func() error {
			d, _ := z.find()
			if err := (step{"swapoff", d.node()}).run(ctx); err != nil {
				return err
			}
			return os.WriteFile(d.file("reset"), []byte("1"), 0)
		},
	} {
		if err := spoil(); err != nil {
			t.Fatal(name, err)
		}
		before, state := z.find()
		if state != zramBegun {
			t.Errorf("%s: the device is in state %d", name, state)
		}
		if f, err := Examine(ctx, o); err != nil || f.Ours != "" {
			t.Errorf("%s: it is used: %+v, %v", name, f, err)
		}
		if _, after := provide(Choice{Zram, Smallest}); after != before {
			if _, err := os.Stat(before.node()); err == nil {
				t.Errorf("%s: %s is left, and there is %s", name, before.node(), after.node())
			}
		}
	}
	// Its data directory is gone, with the record: another start removes it.
	gone := Options{Path: filepath.Join(t.TempDir(), "data", "swap"), ZramMax: 1 << 30}
	if err := os.Mkdir(filepath.Dir(gone.Path), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Provide(ctx, Choice{Zram, Smallest}, gone); err != nil {
		t.Fatal(err)
	}
	lost, _ := zramAt(gone.Path).find()
	if err := os.RemoveAll(filepath.Dir(gone.Path)); err != nil {
		t.Fatal(err)
	}
	if !on(lost.node()) {
		t.Fatalf("%s is off", lost.node())
	}
	provide(Choice{Zram, Smallest})
	for _, name := range []string{lost.node(), lost.owner()} {
		if _, err := os.Stat(name); err == nil {
			t.Errorf("%s is left of a directory that is gone", name)
		}
	}

	d, _ := z.find()
	if p, err := Provide(ctx, Choice{Kind: Off}, o); err != nil || p.Some() || on(d.node()) {
		t.Errorf("%+v, %v, and it is on: %v", p, err, on(d.node()))
	}
	// The record of an earlier boot names a device that is somebody else's now.
	if err := os.WriteFile(z.record, []byte(`{"boot":"earlier","device":0,"bytes":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Remove(ctx, o.Path); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(zramDevice(0).node()); err != nil && zramDevice(0).blank() {
		t.Error("somebody else's device is gone")
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
		"plain": {true, []step{{"mkswap", "/data/swap"}, {"swapon", "--priority", "50", "/data/swap"}}},
		"encrypted": {false, []step{
			{
				"cryptsetup", "open", "--type", "plain", "--cipher", "aes-xts-plain64", "--key-size", "512",
				"--key-file", "/dev/urandom", "/data/swap", f.mapper,
			},
			{"mkswap", device},
			{"swapon", "--priority", "50", device},
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
	if p, err := Provide(t.Context(), Choice{Kind: Off}, Options{Path: path}); p.Some() || err != nil || on(path) {
		t.Errorf("%+v, %v, and it is on: %v", p, err, on(path))
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
	if noEncryption(t.Context()) != "" {
		if err := Make(t.Context(), path, Smallest, false); doze.Public(err).Kind != doze.Unsupported {
			t.Errorf("without a device mapper: %v", err)
		}
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file is left: %v", err)
	}
}
