package disk

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const bootstrapOutput = `I: automatically chosen mode: root
I: running apt-get update...
Get:1 http://mirror.example/debian bookworm InRelease [151 kB]
I: downloading packages with apt...
0 upgraded, 2 newly installed, 0 to remove and 0 not upgraded.
Get:1 http://mirror.example/debian bookworm/main amd64 bash [1 kB]
Get:2 http://mirror.example/debian bookworm/main amd64 dash [1 kB]
I: extracting archives...
I: installing essential packages...
Unpacking bash (5.2) ...
Setting up bash (5.2) ...
I: installing remaining packages inside the chroot...
0 upgraded, 1 newly installed, 0 to remove and 0 not upgraded.
Get:1 http://mirror.example/debian bookworm/main amd64 curl [1 kB]
Unpacking curl (8) ...
Setting up curl (8) ...
Setting up one too many ...
I: cleaning package lists and apt cache...
E: and then it broke
`

func TestFollow(t *testing.T) {
	t.Parallel()
	var got []int
	last := follow(strings.NewReader(bootstrapOutput), func(p Progress) { got = append(got, p.Percent) })
	if want := []int{1, 8, 14, 20, 20, 24, 28, 32, 40, 57, 74, 92, 92, 92}; !slices.Equal(got, want) {
		t.Errorf("percents %v, want %v", got, want)
	}
	if !strings.HasSuffix(last, "E: and then it broke") || strings.Contains(last, "mode: root") {
		t.Errorf("last lines: %s", last)
	}
}

const indexTargets = `MetaKey: main/binary-amd64/Packages
Codename: bookworm-security
Component: main
Repo-URI: http://user:secret@mirror.example/security/
Sourcesentry: /etc/apt/sources.list.d/debian.sources:2

Codename: bookworm
Component: main
Repo-URI: http://mirror.example/debian/
Sourcesentry: /etc/apt/sources.list.d/debian.sources:1

Codename: bookworm
Component: contrib
Repo-URI: http://mirror.example/debian/
Sourcesentry: /etc/apt/sources.list.d/debian.sources:1

Codename: bookworm
Component: stable
Repo-URI: https://vendor.example/
Sourcesentry: /etc/apt/sources.list.d/vendor.list:1

Codename: bookworm-backports
Component: main
Repo-URI: http://mirror.example/debian/
Sourcesentry: /etc/apt/sources.list.d/backports.list:1
`

func TestSources(t *testing.T) {
	t.Parallel()
	got := sources(indexTargets, "bookworm")
	want := aptSetup{
		suite:   "bookworm",
		files:   []string{"/etc/apt/sources.list.d/debian.sources"},
		sources: "deb http://mirror.example/debian/ bookworm main\ndeb http://mirror.example/security/ bookworm-security main\n",
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(aptSetup{})); diff != "" {
		t.Error(diff)
	}
	if got := sources("", "trixie"); len(got.files) != 0 || got.sources != "" {
		t.Errorf("of nothing: %+v", got)
	}
}

func TestReach(t *testing.T) {
	t.Parallel()
	got := reach("Acquire::http::Proxy \"http://proxy.example:3142\";\nAcquire::Languages \"none\";\nAcquire::Retries \"3\";\nAcquire::AllowInsecureRepositories \"1\";\nAPT::Get::Assume-Yes \"1\";\n")
	if want := "Acquire::http::Proxy \"http://proxy.example:3142\";\nAcquire::Retries \"3\";\n"; got != want {
		t.Errorf("got %q", got)
	}
}

func TestCodename(t *testing.T) {
	t.Parallel()
	for release, want := range map[string]string{
		"NAME=x\nVERSION_CODENAME=bookworm\n": "bookworm", "VERSION_CODENAME=\"noble\"": "noble",
		"VERSION_CODENAME=": "", "VERSION_CODENAME=../x": "", "": "",
	} {
		if got := codename(release); got != want {
			t.Errorf("%q is %q", release, got)
		}
	}
}

// FuzzFollow: whatever a program prints, progress stays in bounds.
func FuzzFollow(f *testing.F) {
	f.Add(bootstrapOutput)
	f.Add("I: downloading packages with apt\n0 upgraded, 999999 newly installed\nGet:\n")
	f.Fuzz(func(t *testing.T, output string) {
		follow(strings.NewReader(output), func(p Progress) {
			if p.Step == "" || p.Percent < 0 || p.Percent > 94 {
				t.Errorf("%+v", p)
			}
		})
	})
}

// FuzzSources: no password and no foreign line gets into an image.
func FuzzSources(f *testing.F) {
	f.Add(indexTargets)
	f.Fuzz(func(t *testing.T, targets string) {
		for line := range strings.Lines(sources(targets, "bookworm").sources) {
			fields := strings.Fields(line)
			if len(fields) != 4 || fields[0] != "deb" || fields[3] != "main" {
				t.Fatalf("%q leads to %q", targets, line)
			}
			if uri, err := url.Parse(fields[1]); err != nil || uri.User != nil || uri.Scheme == "" {
				t.Errorf("%q leads to %q, %v", targets, line, err)
			}
		}
	})
}
