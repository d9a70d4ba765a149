package vault_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/vault"
)

func sum(raw []byte) []byte { s := sha256.Sum256(raw); return s[:8] }

// machine is a tree like that of a machine: small files, memory with holes, layers.
var machine = content{
	"manifest.json": {1}, "empty": {}, "image/pages.img": {2, 0, 3, 0, 0, 0, 4}, "image/pages-1.img": {0, nought, 0},
	"image/index.img": {2}, "disk/disk.img": {3, 3, 0, 5, 6},
}

// TestSaveLoad saves a tree, brings it back, and sends no chunk a second time.
func TestSaveLoad(t *testing.T) {
	t.Parallel()
	for server, serve := range servers {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			p := serve(t)
			v := p.open(t, false, vault.Options{Prefix: "fleet/"})
			if err := v.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			if ids, err := v.List(t.Context()); err != nil || len(ids) != 0 {
				t.Errorf("an empty bucket has %v, %v", ids, err)
			}
			want, tree := machine.write(t)
			first := save(t, v, "a", gen(1, 1), tree)
			// Half of a part, which ends a file, is content of its own.
			if first.Chunks != 7 || first.Sent != 7 || first.ChunkBytes != 7*mib || first.SentBytes > 4*mib {
				t.Errorf("the first save: %+v", first)
			}
			got, g := load(t, v, "a")
			if g != gen(1, 1) {
				t.Errorf("loaded %v", g)
			}
			same(t, want, got)
			if w, g := taken(t, want), taken(t, got); g > w {
				t.Errorf("what was loaded takes %d bytes on disk, and what was saved %d", g, w)
			}
			if again := save(t, v, "a", gen(1, 2), tree); again.Sent != 0 {
				t.Errorf("a second save sent %+v", again)
			}
			other := p.open(t, false, vault.Options{Prefix: "fleet/"}) // it has to ask
			if again := save(t, other, "a", gen(2, 1), tree); again.Sent != 0 || again.Chunks != first.Chunks {
				t.Errorf("a save of another node sent %+v", again)
			}
			changed := maps.Clone(machine)
			changed["disk/disk.img"] = []byte{3, 3, 0, 7, 6}
			want, tree = changed.write(t)
			if again := save(t, other, "a", gen(2, 2), tree); again.Sent != 1 {
				t.Errorf("a save with one new chunk sent %+v", again)
			}
			got, _ = load(t, v, "a")
			same(t, want, got)
			if head, err := v.Head(t.Context(), "a"); err != nil || head != gen(2, 2) {
				t.Errorf("head is %v, %v", head, err)
			}
			save(t, v, "b", gen(1, 1), tree)
			if ids, err := v.List(t.Context()); err != nil || !slices.Equal(ids, []string{"a", "b"}) {
				t.Errorf("the bucket has %v, %v", ids, err)
			}
			for key := range p.objects(t, "fleet/a/p/") {
				t.Errorf("a save left %s", key)
			}
		})
	}
}

// TestSizes: files of any length come back, with whatever is zero in them.
func TestSizes(t *testing.T) {
	t.Parallel()
	p := memory(t)
	v := p.open(t, false, vault.Options{})
	want := t.TempDir()
	for i, size := range []int{0, 1, 4095, 4096, 4097, 12289, mib - 1, mib, mib + 1, 2*mib + 5000} {
		raw := make([]byte, size)
		for at := range raw {
			if at/5000%2 == i%2 {
				raw[at] = byte(at*7 + i)
			}
		}
		if err := os.WriteFile(filepath.Join(want, fmt.Sprint(size)), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tree, err := vault.Tree(want)
	if err != nil {
		t.Fatal(err)
	}
	save(t, v, "a", gen(1, 1), tree)
	got, _ := load(t, v, "a")
	same(t, want, got)
}

// TestCopy reads files and chunks of a tree one by one.
func TestCopy(t *testing.T) {
	t.Parallel()
	p := memory(t)
	v := p.open(t, false, vault.Options{})
	want, tree := machine.write(t)
	save(t, v, "a", gen(1, 1), tree)
	c, err := v.Open(t.Context(), "a", keyOf(t, "a"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Generation() != gen(1, 1) {
		t.Errorf("it is %v", c.Generation())
	}
	var names []string
	for _, f := range c.Files() {
		names = append(names, f.Name)
		if f.Name == "image/pages.img" && (f.Size != 6*mib+mib/2 || f.Data != 2*mib+mib/2 || f.Mode != 0o640) {
			t.Errorf("%+v", f)
		}
	}
	if diff := cmp.Diff([]string{"disk/disk.img", "empty", "image/index.img", "image/pages-1.img", "image/pages.img", "manifest.json"}, names); diff != "" {
		t.Error(diff)
	}
	to, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	if err := c.Fetch(t.Context(), "image/pages.img", to); err != nil {
		t.Fatal(err)
	}
	a, err1 := os.ReadFile(to.Name())
	b, err2 := os.ReadFile(filepath.Join(want, "image/pages.img"))
	if err := errors.Join(err1, err2); err != nil || !bytes.Equal(a, b) {
		t.Errorf("the file differs, %v", err)
	}
	for number, want := range map[int64][]byte{0: part(2, false), 1: nil, 6: part(4, true), 7: nil, -1: nil} {
		if got, err := c.Chunk(t.Context(), "image/pages.img", number); err != nil || !bytes.Equal(got, want) {
			t.Errorf("chunk %d has %d bytes, %v", number, len(got), err)
		}
	}
	if err := c.Fetch(t.Context(), "none", to); !errors.Is(err, vault.ErrNotFound) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// TestSecret looks for what must not be readable: in the bucket, and where keys print.
func TestSecret(t *testing.T) {
	t.Parallel()
	p := memory(t)
	v := p.open(t, false, vault.Options{})
	const canary = "canary-of-the-sandbox"
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, canary+".img"), bytes.Repeat([]byte(canary), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	tree, err := vault.Tree(dir)
	if err != nil {
		t.Fatal(err)
	}
	save(t, v, "a", gen(1, 1), tree)
	save(t, v, "b", gen(1, 1), tree)
	names := map[string]string{}
	for key := range p.objects(t, "") {
		if bytes.Contains(p.read(t, key), []byte("canary")) || strings.Contains(key, "canary") {
			t.Errorf("%s can be read", key)
		}
		if id, rest, _ := strings.Cut(key, "/c/"); rest != "" {
			name, _, _ := strings.Cut(rest, "-")
			if names[name] != "" {
				t.Errorf("%s and %s show that they have the same content", id, names[name])
			}
			names[name] = id
		}
	}
	if len(names) != 2 {
		t.Errorf("%d chunks", len(names))
	}
	k := keyOf(t, "a")
	raw := fmt.Sprintf("%x", master[:4])
	for _, form := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		if text := fmt.Sprintf(form, k) + fmt.Sprintf(form, struct{ K vault.Key }{k}); strings.Count(text, "[hidden]") != 2 || strings.Contains(text, raw) {
			t.Errorf("%s prints %s", form, text)
		}
	}
	if text, err := json.Marshal(k); err != nil || string(text) != `"[hidden]"` {
		t.Errorf("as JSON: %s, %v", text, err)
	}
	if _, err := vault.Derive(master[:31], "a"); err == nil {
		t.Error("a short master key is taken")
	}
}

// TestDamage: each harm to an object is a clear error, and no directory appears.
func TestDamage(t *testing.T) {
	t.Parallel()
	p := memory(t)
	v := p.open(t, false, vault.Options{})
	_, tree := content{"f": {1, 2}}.write(t)
	one := func(id, kind string) string {
		for _, key := range slices.Sorted(maps.Keys(p.objects(t, id+"/"+kind+"/"))) {
			return key
		}
		t.Fatalf("%s has no %s", id, kind)
		return ""
	}
	alter := func(key string, at int) {
		raw := p.read(t, key)
		raw[(at+len(raw))%len(raw)] ^= 1
		p.put(t, key, raw)
	}
	for name, tc := range map[string]struct {
		harm func(id string)
		want error
	}{
		"a bit of a chunk": {func(id string) { alter(one(id, "c"), 99) }, vault.ErrDamaged},
		"a missing chunk":  {func(id string) { p.remove(t, one(id, "c")) }, vault.ErrDamaged},
		"an empty chunk":   {func(id string) { p.put(t, one(id, "c"), nil) }, vault.ErrDamaged},
		"a huge chunk":     {func(id string) { p.put(t, one(id, "c"), make([]byte, 2*mib)) }, vault.ErrDamaged},
		"a foreign chunk": {func(id string) {
			save(t, v, "x"+id, gen(1, 1), tree)
			p.put(t, one(id, "c"), p.read(t, one("x"+id, "c")))
		}, vault.ErrDamaged},
		"a bit of a manifest": {func(id string) { alter(one(id, "m"), -1) }, vault.ErrDamaged},
		"half of a manifest":  {func(id string) { k := one(id, "m"); p.put(t, k, p.read(t, k)[:5]) }, vault.ErrDamaged},
		"a foreign manifest": {func(id string) {
			save(t, v, "x"+id, gen(1, 1), tree)
			p.put(t, one(id, "m"), p.read(t, one("x"+id, "m")))
		}, vault.ErrKey},
		"an older manifest": {func(id string) {
			old := p.read(t, one(id, "m"))
			save(t, v, id, gen(1, 2), tree)
			p.remove(t, one(id, "m"))
			p.put(t, one(id, "m"), old)
		}, vault.ErrDamaged},
		"a newer version": {func(id string) { k := one(id, "m"); raw := p.read(t, k); raw[0] = 9; p.put(t, k, raw) }, vault.ErrNewer},
		"an odd base": {func(id string) {
			if _, err := v.Claim(t.Context(), id, 2); err != nil {
				t.Fatal(err)
			}
			p.put(t, id+"/b/0000000000000002", []byte(gen(2, 1).String()))
		}, vault.ErrDamaged},
		"nothing at all": {func(id string) {
			for key := range p.objects(t, id+"/") {
				p.remove(t, key)
			}
		}, vault.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			id := strings.ReplaceAll(name, " ", "-")
			save(t, v, id, gen(1, 1), tree)
			tc.harm(id)
			dir := filepath.Join(t.TempDir(), "loaded")
			if _, err := v.Load(t.Context(), id, keyOf(t, id), dir); !errors.Is(err, tc.want) {
				t.Errorf("it says %v, want %v", err, tc.want)
			}
			if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("there is a directory: %v", err)
			}
		})
	}
	save(t, v, "a", gen(1, 1), tree)
	if _, err := v.Open(t.Context(), "a", keyOf(t, "b")); !errors.Is(err, vault.ErrKey) {
		t.Errorf("with another key: %v", err)
	}
	if _, err := v.Save(t.Context(), "a", vault.Key{}, gen(1, 2), tree); !errors.Is(err, vault.ErrKey) {
		t.Errorf("without a key: %v", err)
	}
	there := p.objects(t, "a/")
	if _, err := v.Sweep(t.Context(), "a", keyOf(t, "b"), 1, 0); !errors.Is(err, vault.ErrKey) {
		t.Errorf("a sweep with another key: %v", err)
	}
	for key := range there {
		p.read(t, key) // all are there
	}
	// A save repairs what it notices: a chunk that is missing is sent again.
	p.remove(t, one("a", "c"))
	if saved := save(t, v, "a", gen(1, 2), tree); saved.Sent != 1 {
		t.Errorf("without one chunk: %+v", saved)
	}
	load(t, v, "a")
}

// TestBounds: what nobody may store is an error that says so, before anything is sent.
func TestBounds(t *testing.T) {
	t.Parallel()
	p := memory(t)
	v := p.open(t, false, vault.Options{})
	file := func(name string, size int64, mode fs.FileMode) vault.File {
		return vault.File{Name: name, Size: size, Mode: mode, Open: func() (*os.File, error) { return nil, fs.ErrNotExist }}
	}
	for name, tc := range map[string]struct {
		id   string
		g    vault.Generation
		tree []vault.File
		want string
	}{
		"no id":           {"", gen(1, 1), nil, "is no id"},
		"a path":          {"a/b", gen(1, 1), nil, "is no id"},
		"dots":            {"..", gen(1, 1), nil, "is no id"},
		"a long id":       {strings.Repeat("a", 129), gen(1, 1), nil, "is no id"},
		"no epoch":        {"a", gen(0, 1), nil, "epoch"},
		"a huge epoch":    {"a", gen(vault.EpochMost+1, 1), nil, "epoch"},
		"up":              {"a", gen(1, 1), []vault.File{file("../x", 1, 0o600)}, "no relative path"},
		"the root":        {"a", gen(1, 1), []vault.File{file("/x", 1, 0o600)}, "no relative path"},
		"no name":         {"a", gen(1, 1), []vault.File{file(".", 1, 0o600)}, "no relative path"},
		"a zero in it":    {"a", gen(1, 1), []vault.File{file("a\x00b", 1, 0o600)}, "no relative path"},
		"a long name":     {"a", gen(1, 1), []vault.File{file(strings.Repeat("a", 1025), 1, 0o600)}, "may have 1024"},
		"twice":           {"a", gen(1, 1), []vault.File{file("x", 1, 0o600), file("x", 1, 0o600)}, "twice"},
		"below a file":    {"a", gen(1, 1), []vault.File{file("x", 1, 0o600), file("x-", 1, 0), file("x/y", 1, 0o600)}, "is a file and a directory"},
		"a link":          {"a", gen(1, 1), []vault.File{file("x", 1, fs.ModeSymlink)}, "more than permissions"},
		"a negative size": {"a", gen(1, 1), []vault.File{file("x", -1, 0o600)}, "bytes"},
		"a huge file":     {"a", gen(1, 1), []vault.File{file("x", vault.FileMost+1, 0o600)}, "bytes"},
		"many files": {"a", gen(1, 1), func() (all []vault.File) {
			for i := range vault.FilesMost + 1 {
				all = append(all, file(fmt.Sprint(i), 1, 0o600))
			}
			return all
		}(), "may have 4096"},
	} {
		if _, err := v.Save(t.Context(), tc.id, keyOf(t, "a"), tc.g, tc.tree); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := v.Save(t.Context(), "b", keyOf(t, "b"), gen(1, 1), []vault.File{file("x", 1, 0o600)}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that cannot be opened: %v", err)
	}
	if len(p.objects(t, "a/")) != 0 {
		t.Errorf("the bucket has %v", p.objects(t, "a/"))
	}
	for name, o := range map[string]vault.Options{"a prefix without end": {Prefix: "a"}, "a root": {Prefix: "/"}, "up": {Prefix: "../"}, "less than none": {Parallel: -1}, "back": {Bandwidth: -1}} {
		if _, err := vault.New(p.client(t, p.direct), p.bucket, o); err == nil {
			t.Errorf("%s is no mistake", name)
		}
	}
	if _, err := v.Sweep(t.Context(), "a", keyOf(t, "a"), 0, 0); err == nil {
		t.Error("a sweep may remove everything")
	}
	dir := t.TempDir()
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := vault.Tree(dir); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a link in a tree: %v", err)
	}
}

// TestManyObjects: lists have pages, and one that is cut goes on.
func TestManyObjects(t *testing.T) {
	t.Parallel()
	for server, serve := range servers {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			const many = 1100 // a page has 1,000
			p := serve(t)
			for i := range many {
				p.put(t, fmt.Sprintf("a/c/%04d", i), nil)
				if server == "memory" {
					p.put(t, fmt.Sprintf("b%04d/c/x", i), nil)
				}
			}
			v := p.open(t, true, vault.Options{})
			pages := map[string]int{}
			p.does(func(w http.ResponseWriter, r *http.Request, pass func()) {
				if token := r.URL.Query().Get("continuation-token"); token != "" {
					if pages[token]++; pages[token] == 1 {
						w.WriteHeader(http.StatusServiceUnavailable)
						return
					}
				}
				pass()
			})
			if err := v.Drop(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			if left := p.objects(t, "a/"); len(left) != 1 || len(pages) == 0 {
				t.Errorf("%d objects are left, after %d pages", len(left), len(pages))
			}
			ids, err := v.List(t.Context())
			if want := len(p.objects(t, "")); err != nil || len(ids) != want || !slices.IsSorted(ids) {
				t.Errorf("%d ids of %d, %v", len(ids), want, err)
			}
		})
	}
}

// TestBandwidth: a save takes no more than its share. The burst is free.
func TestBandwidth(t *testing.T) {
	t.Parallel()
	p := memory(t)
	v := p.open(t, false, vault.Options{Bandwidth: 8 * mib})
	dir := t.TempDir()
	var raw []byte
	for n := byte(1); n < 25; n++ { // a quarter of each does not compress
		raw = append(raw, part(n, false)[:mib/4]...)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	tree, err := vault.Tree(dir)
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	saved := save(t, v, "a", gen(1, 1), tree)
	if took := time.Since(begun); took < time.Second/2 || saved.SentBytes < 6*mib {
		t.Errorf("%+v took %v: 6 MiB without the burst of 2 take at least half a second", saved, took)
	}
}

// TestNow: the bucket has the present, and nothing is left of the question. It also says what something takes.
func TestNow(t *testing.T) {
	t.Parallel()
	for server, serve := range servers {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			p := serve(t)
			v := p.open(t, false, vault.Options{Prefix: "p/"})
			p.put(t, "p/now", nil) // of a call that was cut off
			first, err := v.Now(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			second, err := v.Now(t.Context())
			if err != nil || second.Before(first) || time.Since(second).Abs() > time.Minute {
				t.Errorf("it is %v, and later %v, %v", first, second, err)
			}
			if left := p.objects(t, ""); len(left) != 0 {
				t.Errorf("left are %v", left)
			}
			_, tree := content{"f": {1}}.write(t)
			save(t, v, "a", gen(1, 1), tree)
			want := int64(0)
			for _, size := range p.objects(t, "p/a/") {
				want += size
			}
			if got, err := v.Bytes(t.Context(), "a"); err != nil || got != want || got == 0 {
				t.Errorf("it takes %d bytes, %v, want %d", got, err, want)
			}
			if got, err := v.Bytes(t.Context(), "b"); err != nil || got != 0 {
				t.Errorf("nothing takes %d bytes, %v", got, err)
			}
		})
	}
}

// TestSaveIf: a save that is not let count can be found until then, with all that it has, and is not what
// counts. Later it counts if it is let.
func TestSaveIf(t *testing.T) {
	t.Parallel()
	for server, serve := range servers {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			p := serve(t)
			v := p.open(t, false, vault.Options{})
			found := func() (all []vault.Generation) {
				t.Helper()
				err := v.EachNewest(t.Context(), "a", keyOf(t, "a"), func(ctx context.Context, c *vault.Copy) error {
					_, err := c.Chunk(ctx, "f", 0)
					all = append(all, c.Generation())
					return err
				})
				if err != nil {
					t.Error(err)
				}
				return all
			}
			if all := found(); len(all) != 0 {
				t.Errorf("before all, there are %v", all)
			}
			_, old := content{"f": {1}}.write(t)
			_, now := content{"f": {2}}.write(t)
			save(t, v, "a", gen(1, 1), old)
			no := errors.New("no")
			_, err := v.SaveIf(t.Context(), "a", keyOf(t, "a"), gen(1, 2), now, func(context.Context) error {
				if all := found(); !slices.Equal(all, []vault.Generation{gen(1, 2), gen(1, 1)}) {
					t.Errorf("when it is asked, there are %v", all)
				}
				return no
			})
			if !errors.Is(err, no) {
				t.Errorf("it says %v", err)
			}
			if all := found(); !slices.Equal(all, []vault.Generation{gen(1, 2), gen(1, 1)}) {
				t.Errorf("when it was not let, there are %v", all)
			}
			for _, may := range []bool{false, true} {
				asked := 0
				err := v.FinishIf(t.Context(), "a", keyOf(t, "a"), 1, func(_ context.Context, c *vault.Copy) (bool, error) {
					if asked++; c.Generation() != gen(1, 2) {
						t.Errorf("it asks for %v", c.Generation())
					}
					return may, nil
				})
				want := gen(1, 1)
				if may {
					want = gen(1, 2)
				}
				if g, none := v.Head(t.Context(), "a"); err != nil || none != nil || g != want || asked != 1 {
					t.Errorf("it counts if %t, and %v is the newest, %v, %v", may, g, err, none)
				}
			}
			if all := found(); !slices.Equal(all, []vault.Generation{gen(1, 2)}) {
				t.Errorf("in the end, there are %v", all)
			}
			// A save that was cut names a chunk that nobody has any more.
			_, err = v.SaveIf(t.Context(), "a", keyOf(t, "a"), gen(1, 3), old, func(context.Context) error { return no })
			if !errors.Is(err, no) {
				t.Errorf("it says %v", err)
			}
			for key := range p.objects(t, "a/c/") {
				p.remove(t, key)
			}
			_, last := content{"f": {3}}.write(t)
			save(t, p.open(t, false, vault.Options{}), "a", gen(2, 1), last)
			if all := found(); !slices.Contains(all, gen(2, 1)) {
				t.Errorf("there are %v", all)
			}
		})
	}
}
