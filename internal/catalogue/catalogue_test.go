package catalogue

import (
	"archive/tar"
	"bytes"
	"cmp"
	"io/fs"
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

// TestTable: each row is complete. One with a Dockerfile has a directory, and each directory
// has such a row.
func TestTable(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	dirs := map[string]bool{}
	entries, err := images.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		dirs[e.Name()] = true
	}
	for _, row := range rows {
		if seen[row.Name] {
			t.Errorf("%s is there twice", row.Name)
		}
		seen[row.Name] = true
		if row.Recipe != "" && row.Recipe != Slim && row.Recipe != Base && row.Recipe != Dockerfile {
			t.Errorf("%s: there is no recipe %s", row.Name, row.Recipe)
		}
		if dirs[row.Name] != (row.Recipe == Dockerfile) {
			t.Errorf("%s: a directory: %v, a Dockerfile: %v", row.Name, dirs[row.Name], row.Recipe == Dockerfile)
		}
		delete(dirs, row.Name)
		if (row.Recipe == "") != (row.Missing != "") {
			t.Errorf("%s has a recipe, or is missing", row.Name)
		}
		if row.Missing == "" && (row.Display == "" || row.About == "" || row.Memory < doze.MemoryMin) {
			t.Errorf("%s: the hub has nothing to show: %+v", row.Name, row)
		}
	}
	for name := range dirs {
		t.Errorf("no row is made of the directory %s", name)
	}
}

// TestDockerfiles: each begins with the base image, pins what it gets of npm, and leaves
// neither caches nor lists.
func TestDockerfiles(t *testing.T) {
	t.Parallel()
	for _, row := range rows {
		if row.Recipe != Dockerfile {
			continue
		}
		files, err := Files(row.Name)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := fs.ReadFile(files, "Dockerfile")
		if err != nil {
			t.Errorf("%s: %v", row.Name, err)
			continue
		}
		text := string(raw)
		if !strings.HasPrefix(text, "FROM "+doze.ImageDefault+"\n") {
			t.Errorf("%s does not begin with %s", row.Name, doze.ImageDefault)
		}
		for of, clean := range map[string]string{"npm ": "npm cache clean", "apt-get install": "/var/lib/apt/lists"} {
			if strings.Contains(text, of) && !strings.Contains(text, clean) {
				t.Errorf("%s: %s without %s", row.Name, of, clean)
			}
		}
		if strings.Contains(text, "npm install") || strings.Contains(text, "npx ") {
			t.Errorf("%s installs what nothing pins: write npm ci, with a package-lock.json", row.Name)
		}
	}
}

// TestContext: a directory is packed as it is, and its sum follows its contents.
func TestContext(t *testing.T) {
	t.Parallel()
	var first, second bytes.Buffer
	if err := cmp.Or(Context("ts-app", &first), Context("ts-app", &second)); err != nil || !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Fatalf("two archives differ: %v", err)
	}
	got := map[string]int64{}
	for r := tar.NewReader(&first); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		got[h.Name] = h.Size
	}
	if got["Dockerfile"] == 0 || got["src/index.ts"] == 0 {
		t.Errorf("the archive has %v", got)
	}
	sums := map[string]string{}
	for _, row := range rows {
		if row.Recipe != Dockerfile {
			continue
		}
		sum, err := Sum(row.Name)
		if err != nil || sums[sum] != "" {
			t.Errorf("%s has the sum %s of %q, %v", row.Name, sum, sums[sum], err)
		}
		sums[sum] = row.Name
	}
	if _, err := Sum("no-such-image"); err == nil {
		t.Error("a directory that is not there has a sum")
	}
}

// TestLookup: a name has a prefix, but for the names of recipes.
func TestLookup(t *testing.T) {
	t.Parallel()
	for ref, want := range map[string]string{
		"blaxel/nextjs": "nextjs", "doze/nextjs": "nextjs", "slim": "slim", "base": "base", "blaxel/base-image": "base-image",
		"nextjs": "", "blaxel/": "", "other/nextjs": "", "blaxel/blaxel/nextjs": "", "base-image": "",
	} {
		if row, ok := Lookup(ref); row.Name != want || ok != (want != "") {
			t.Errorf("%q is %q, %v", ref, row.Name, ok)
		}
	}
}

// TestHub: the default is offered, with what clients expect of an offer.
func TestHub(t *testing.T) {
	t.Parallel()
	found := false
	for _, o := range Hub() {
		name, tag, _ := strings.Cut(o.Image, ":")
		if row, ok := Lookup(name); !ok || row.Missing != "" || tag != doze.TagDefault || o.Ports == nil {
			t.Errorf("offer %+v", o)
		}
		found = found || o.Image == doze.ImageDefault
	}
	if !found {
		t.Errorf("%s is not on offer", doze.ImageDefault)
	}
}
