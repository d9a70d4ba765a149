package disk

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/dozehq/doze/internal/catalogue"
)

// A recipe is an image that is made on this machine out of Debian packages and
// packages of npm.
type recipe struct {
	name     string
	packages []string // of Debian
	programs []program
	files    map[string]string // contents by path, written at the end
	links    map[string]string // targets by path
	env      []string
}

const pathDefault = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

var (
	slim = recipe{
		name:     catalogue.Slim,
		packages: []string{"bash", "coreutils", "procps", "iproute2", "curl", "ca-certificates"},
		env:      []string{pathDefault, "LANG=C.UTF-8"},
	}
	base = recipe{
		name: catalogue.Base,
		packages: slices.Concat(slim.packages, []string{
			"git", "jq", "unzip", "zip", "xz-utils", "less", "file", "openssh-client",
			"make", "gcc", "g++", "libc6-dev",
			"python3", "python3-pip", "python3-venv", "python3-dev", "python-is-python3",
		}),
		programs: []program{nodeProgram, npmProgram},
		files: map[string]string{
			// In a sandbox, pip and apt may share a Python: nobody else uses it.
			"etc/pip.conf": "[global]\nbreak-system-packages = true\nroot-user-action = ignore\ndisable-pip-version-check = true\n",
		},
		links: map[string]string{
			"usr/local/bin/npm": "../lib/node_modules/npm/bin/npm-cli.js",
			"usr/local/bin/npx": "../lib/node_modules/npm/bin/npx-cli.js",
		},
		env: slim.env,
	}
	recipes = []*recipe{&base, &slim}
)

// cooking is the version of what happens to the packages of every recipe. Raise it when
// the same recipe gives other files.
const cooking = 2

// revisionMark is between a name and a revision in a key. No reference has it.
const revisionMark = "+"

// revisionLen is how many digits of a sum are a revision.
const revisionLen = 12

// revisionForm finds the keys of images of ours, of this release and of others.
var revisionForm = regexp.MustCompile(`^[a-z0-9-]+\+[0-9a-f]{12}$`)

// revision is another one when the image would be another one.
func (r *recipe) revision() string {
	return sumOf(fmt.Sprintf("%d %+v", cooking, *r))[:revisionLen]
}

// stacking is the version of what happens to what a Dockerfile of ours makes. Raise it
// when the same Dockerfile gives other files.
const stacking = 1

// An own is an image of ours: its name, and what makes it.
type own struct {
	name   string
	recipe *recipe // nil: the Dockerfile of that name does
}

// key is the key of an image of ours. A release with another recipe has another
// key, so it makes the image anew. The old one stays for the sandboxes that have it.
func (o own) key() string { return ownKeys()[o.name] }

// ownKeys are the keys of all images of ours, by name.
var ownKeys = sync.OnceValue(func() map[string]string {
	keys := map[string]string{}
	for _, r := range recipes {
		keys[r.name] = r.name + revisionMark + r.revision()
	}
	for _, row := range catalogue.Rows() {
		if row.Recipe == catalogue.Dockerfile {
			sum, _ := catalogue.Sum(row.Name) // of files in this binary: never fails
			keys[row.Name] = row.Name + revisionMark + sumOf(fmt.Sprintf("%d %s %s", stacking, sum, keys[catalogue.Base]))[:revisionLen]
		}
	}
	return keys
})

// reference is what makes an image of ours, under a key.
func (o own) reference(key string) reference {
	r := reference{key: key, recipe: o.recipe}
	if o.recipe == nil {
		r.built = o.name
	}
	return r
}

// platform returns the image that a path means. ours is false for a path that is not a
// name of ours; missing is what a name of ours lacks.
func platform(path string) (o own, missing string, ours bool) {
	row, ours := catalogue.Lookup(path)
	if !ours || row.Missing != "" {
		return own{}, row.Missing, ours
	}
	if row.Recipe == catalogue.Dockerfile {
		return own{name: row.Name}, "", true
	}
	for _, r := range recipes {
		if r.name == row.Recipe {
			return own{name: r.name, recipe: r}, "", true
		}
	}
	return own{}, "", false // never: see TestTable
}

// revised returns what makes the image under a key of ours, unless that is the key of
// another release.
func revised(key string) (own, bool) {
	name, _, _ := strings.Cut(key, revisionMark)
	for _, ref := range []string{name, "doze/" + name} {
		if o, _, ok := platform(ref); ok && o.name == name && o.key() == key {
			return o, true
		}
	}
	return own{}, false
}
