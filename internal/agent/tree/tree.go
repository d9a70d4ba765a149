// Package tree reads and writes many files of one directory at once.
package tree

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/body"
	"github.com/dozehq/doze/internal/agent/file"
	"github.com/dozehq/doze/internal/agent/mistake"
	"github.com/dozehq/doze/internal/agent/owner"
	"github.com/dozehq/doze/internal/agent/place"
	"github.com/dozehq/doze/internal/agent/route"
	"github.com/dozehq/doze/internal/agent/scratch"
	"github.com/dozehq/doze/internal/agent/subtree"
	"github.com/dozehq/doze/internal/agent/text"
	"github.com/dozehq/doze/internal/agent/upload"
	"github.com/dozehq/doze/internal/httpx"
)

const (
	// besideMax bounds the names of a tree, which are held in memory.
	besideMax = 4 << 20
	// nameCost is what a byte of these takes, at most: many short names become
	// maps and lists of them.
	nameCost = 16
)

// Calls answers the calls about trees.
type Calls struct {
	places place.Finder
	files  *file.Calls
	temp   func() (*os.File, error)
}

// New returns the calls about trees. What is too much for memory goes
// into a file of temp.
func New(places place.Finder, files *file.Calls, temp func() (*os.File, error)) *Calls {
	return &Calls{places: places, files: files, temp: temp}
}

// Files maps paths below the tree's root to contents; nil is an empty one.
type Files struct {
	Files map[string]*string `json:"files"`

	names map[string]string // clean → as sent
}

// Check finds out what the names mean, and adds those that mean nothing, or the
// same as another.
func (in *Files) Check(p *doze.Problems) {
	in.names = map[string]string{}
	var parts []string // clean, with a NUL for each slash: a directory is right before what is in it
	for _, sent := range slices.Sorted(maps.Keys(in.Files)) {
		name, wrong := nameOf(sent)
		if other, twice := in.names[name]; twice {
			wrong = fmt.Sprintf("which is the same file as %q", mistake.Clip(other))
		}
		if wrong != "" {
			if p.Add("files", "has %q, %s", mistake.Clip(sent), wrong); len(*p) >= mistake.Max {
				return
			}
			continue
		}
		in.names[name] = sent
		parts = append(parts, strings.ReplaceAll(name, "/", "\x00"))
	}
	slices.Sort(parts)
	for i, file := range parts[:max(len(parts)-1, 0)] {
		if len(*p) < mistake.Max && strings.HasPrefix(parts[i+1], file+"\x00") {
			p.Add("files", "has %q, which cannot be a file, since others are in it", mistake.Clip(strings.ReplaceAll(file, "\x00", "/")))
		}
	}
}

// input is the body of a tree. Its contents are kept until all of it has come:
// in memory while they are few, then on the disk.
type input struct {
	text.Body
	asked Files // without contents
	spool spool
	last  string // the name whose content comes
	parts map[string]stretch
}

// newInput returns a body that spools into a file of temp, if it has to.
func newInput(temp func() (*os.File, error)) *input {
	t := &input{Body: text.Body{At: []string{"files", text.AnyName}, Most: besideMax, Cost: nameCost}, spool: spool{temp: temp}, parts: map[string]stretch{}}
	t.Begin, t.Finish = t.turn, t.understand
	return t
}

// turn is called when the content of a file begins: there the one before it ended.
func (t *input) turn(name string, from int64) error {
	t.end(from)
	t.last, t.parts[name] = name, stretch{from, from}
	return nil
}

// end says where the last content ends.
func (t *input) end(at int64) {
	if s, ok := t.parts[t.last]; ok {
		t.parts[t.last] = stretch{s.from, at}
	}
}

// understand reads what is beside the contents.
func (t *input) understand(beside []byte) (err error) {
	t.end(t.Size())
	t.asked, err = body.Parse[Files](beside)
	return err
}

// receive reads the body to its end.
func (t *input) receive() error {
	from := &upload.Source{Reader: &t.Body}
	err := scratch.Copy(&t.spool, from)
	switch {
	case from.Err != nil:
		return body.CutOff(from.Err, "send it again")
	case err != nil:
		return owner.WriteError(err)
	}
	return nil
}

// content returns what a file is to have.
func (t *input) content(name string) io.Reader {
	if t.asked.Files[name] == nil {
		return strings.NewReader("")
	}
	return t.spool.part(t.parts[name])
}

func (t *input) close() { t.spool.close() }

// Read lists one level of a tree.
func (c *Calls) Read(_ *http.Request, arg string) (file.Directory, error) {
	at, err := c.places.Find(arg)
	if err != nil {
		return file.Directory{}, err
	}
	info, err := os.Stat(at.Abs)
	if err != nil || !info.IsDir() {
		return file.Directory{}, doze.Wrap(err, doze.Invalid, "path is not a directory")
	}
	return file.List(at)
}

// Write creates the root and writes files below it.
func (c *Calls) Write(w http.ResponseWriter, r *http.Request, arg string) error {
	at, err := c.places.Find(arg)
	if err != nil {
		return err
	}
	in := newInput(c.temp)
	defer in.close()
	if err := in.Open(w, r); err != nil {
		return err
	}
	if err := in.receive(); err != nil {
		return err
	}
	d, err := write(c.files.Owner(), at, in)
	if err == nil {
		httpx.WriteJSON(w, http.StatusOK, d)
	}
	return err
}

// write writes a tree that has come whole, and nowhere but below its root: a
// name or a link that leads out of it is refused. Files before the first one that
// fails stay.
func write(o owner.Owner, at place.Place, in *input) (file.Directory, error) {
	if err := o.MkdirAll(owner.Whole{}, at.Abs, owner.DirMode); err != nil {
		return file.Directory{}, owner.WriteError(err)
	}
	root, err := os.OpenRoot(at.Abs)
	if err != nil {
		return file.Directory{}, owner.WriteError(err)
	}
	defer func() { _ = root.Close() }()
	if err := ordinary(root); err != nil {
		return file.Directory{}, err
	}
	made := "."
	for _, name := range slices.Sorted(maps.Keys(in.asked.names)) {
		if dir := path.Dir(name); dir != made {
			if err := o.MkdirAll(root, dir, owner.DirMode); err != nil {
				return file.Directory{}, owner.WriteError(err)
			}
			made = dir
		}
		if err := o.Replace(root, name, owner.Always(owner.FileMode), in.content(in.asked.names[name])); err != nil {
			return file.Directory{}, err
		}
	}
	return file.List(at)
}

// ordinary refuses a root whose links lead out of it even if they are not
// followed.
func ordinary(root *os.Root) error {
	dir, err := root.Open(".")
	if err != nil {
		return owner.WriteError(err)
	}
	defer func() { _ = dir.Close() }()
	if subtree.Kernel(dir) {
		return doze.Errorf(doze.Unprocessable, "%s is the kernel's: no tree can be written there", root.Name())
	}
	return nil
}

// nameOf returns the clean path below the root that a caller's name means, or
// what is wrong with it.
func nameOf(sent string) (clean, wrong string) {
	name := strings.TrimPrefix(place.Collapse(sent), "/")
	switch {
	case slices.Contains(strings.Split(name, "/"), ".."):
		return "", "which leads out of the tree; use names without .."
	case strings.ContainsRune(name, 0) || len(name) > place.Max:
		return "", fmt.Sprintf("which has a NUL byte or more than %d bytes", place.Max)
	case path.Clean(name) == ".", strings.HasSuffix(name, "/"):
		return "", "which is no name of a file"
	}
	return path.Clean(name), ""
}

// Delete removes a tree.
func (c *Calls) Delete(r *http.Request, arg string) (route.Success, error) {
	at, err := c.places.Find(arg)
	if err != nil {
		return route.Success{}, err
	}
	if info, err := os.Stat(at.Abs); err != nil || !info.IsDir() {
		return route.Success{}, doze.Wrap(err, doze.Unprocessable, "path is not a directory")
	}
	return c.files.Delete(r, arg)
}
