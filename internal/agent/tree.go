package agent

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
	"github.com/dozehq/doze/internal/agent/scratch"
	"github.com/dozehq/doze/internal/agent/subtree"
	"github.com/dozehq/doze/internal/agent/upload"
	"github.com/dozehq/doze/internal/httpx"
)

const (
	// treeBesideMax bounds the names of a tree, which are held in memory.
	treeBesideMax = 4 << 20
	// nameCost is what a byte of these takes, at most: many short names become
	// maps and lists of them.
	nameCost = 16
)

// treeCalls answers the calls about trees.
type treeCalls struct {
	places places
	files  *fileCalls
	temp   func() (*os.File, error)
}

// newTreeCalls returns the calls about trees. What is too much for memory goes
// into a file of temp.
func newTreeCalls(places places, files *fileCalls, temp func() (*os.File, error)) *treeCalls {
	return &treeCalls{places: places, files: files, temp: temp}
}

// treeWrite maps paths below the tree's root to contents; nil is an empty one.
type treeWrite struct {
	Files map[string]*string `json:"files"`

	names map[string]string // clean → as sent
}

// check finds out what the names mean, and adds those that mean nothing, or the
// same as another.
func (in *treeWrite) Check(p *doze.Problems) {
	in.names = map[string]string{}
	var parts []string // clean, with a NUL for each slash: a directory is right before what is in it
	for _, sent := range slices.Sorted(maps.Keys(in.Files)) {
		name, wrong := treeName(sent)
		if other, twice := in.names[name]; twice {
			wrong = fmt.Sprintf("which is the same file as %q", clip(other))
		}
		if wrong != "" {
			if p.Add("files", "has %q, %s", clip(sent), wrong); len(*p) >= mistakesMax {
				return
			}
			continue
		}
		in.names[name] = sent
		parts = append(parts, strings.ReplaceAll(name, "/", "\x00"))
	}
	slices.Sort(parts)
	for i, file := range parts[:max(len(parts)-1, 0)] {
		if len(*p) < mistakesMax && strings.HasPrefix(parts[i+1], file+"\x00") {
			p.Add("files", "has %q, which cannot be a file, since others are in it", clip(strings.ReplaceAll(file, "\x00", "/")))
		}
	}
}

// treeBody is the body of a tree. Its contents are kept until all of it has come:
// in memory while they are few, then on the disk.
type treeBody struct {
	textBody
	asked treeWrite // without contents
	spool spool
	last  string // the name whose content comes
	parts map[string]stretch
}

// newTree returns a body that spools into a file of temp, if it has to.
func newTree(temp func() (*os.File, error)) *treeBody {
	t := &treeBody{textBody: textBody{at: []string{"files", anyMember}, most: treeBesideMax, cost: nameCost}, spool: spool{temp: temp}, parts: map[string]stretch{}}
	t.begin, t.finish = t.turn, t.understand
	return t
}

// turn is called when the content of a file begins: there the one before it ended.
func (t *treeBody) turn(name string, from int64) error {
	t.end(from)
	t.last, t.parts[name] = name, stretch{from, from}
	return nil
}

// end says where the last content ends.
func (t *treeBody) end(at int64) {
	if s, ok := t.parts[t.last]; ok {
		t.parts[t.last] = stretch{s.from, at}
	}
}

// understand reads what is beside the contents.
func (t *treeBody) understand(beside []byte) (err error) {
	t.end(t.size())
	t.asked, err = parse[treeWrite](beside)
	return err
}

// receive reads the body to its end.
func (t *treeBody) receive() error {
	from := &upload.Source{Reader: &t.textBody}
	err := scratch.Copy(&t.spool, from)
	switch {
	case from.Err != nil:
		return cutOff(from.Err, "send it again")
	case err != nil:
		return writeError(err)
	}
	return nil
}

// content returns what a file is to have.
func (t *treeBody) content(name string) io.Reader {
	if t.asked.Files[name] == nil {
		return strings.NewReader("")
	}
	return t.spool.part(t.parts[name])
}

func (t *treeBody) close() { t.spool.close() }

func (c *treeCalls) readTree(_ *http.Request, arg string) (directory, error) {
	at, err := c.places.find(arg)
	if err != nil {
		return directory{}, err
	}
	info, err := os.Stat(at.abs)
	if err != nil || !info.IsDir() {
		return directory{}, doze.Wrap(err, doze.Invalid, "path is not a directory")
	}
	return list(at)
}

// writeTree creates the root and writes files below it.
func (c *treeCalls) writeTree(w http.ResponseWriter, r *http.Request, arg string) error {
	at, err := c.places.find(arg)
	if err != nil {
		return err
	}
	in := newTree(c.temp)
	defer in.close()
	if err := in.open(w, r); err != nil {
		return err
	}
	if err := in.receive(); err != nil {
		return err
	}
	d, err := writeTree(c.files.owner(), at, in)
	if err == nil {
		httpx.WriteJSON(w, http.StatusOK, d)
	}
	return err
}

// writeTree writes a tree that has come whole, and nowhere but below its root: a
// name or a link that leads out of it is refused. Files before the first one that
// fails stay.
func writeTree(o owner, at place, in *treeBody) (directory, error) {
	if err := o.mkdirAll(whole{}, at.abs, dirMode); err != nil {
		return directory{}, writeError(err)
	}
	root, err := os.OpenRoot(at.abs)
	if err != nil {
		return directory{}, writeError(err)
	}
	defer func() { _ = root.Close() }()
	if err := ordinary(root); err != nil {
		return directory{}, err
	}
	made := "."
	for _, name := range slices.Sorted(maps.Keys(in.asked.names)) {
		if dir := path.Dir(name); dir != made {
			if err := o.mkdirAll(root, dir, dirMode); err != nil {
				return directory{}, writeError(err)
			}
			made = dir
		}
		if err := o.replace(root, name, always(fileMode), in.content(in.asked.names[name])); err != nil {
			return directory{}, err
		}
	}
	return list(at)
}

// ordinary refuses a root whose links lead out of it even if they are not
// followed.
func ordinary(root *os.Root) error {
	dir, err := root.Open(".")
	if err != nil {
		return writeError(err)
	}
	defer func() { _ = dir.Close() }()
	if subtree.Kernel(dir) {
		return doze.Errorf(doze.Unprocessable, "%s is the kernel's: no tree can be written there", root.Name())
	}
	return nil
}

// treeName returns the clean path below the root that a caller's name means, or
// what is wrong with it.
func treeName(sent string) (clean, wrong string) {
	name := strings.TrimPrefix(collapse(sent), "/")
	switch {
	case slices.Contains(strings.Split(name, "/"), ".."):
		return "", "which leads out of the tree; use names without .."
	case strings.ContainsRune(name, 0) || len(name) > pathMax:
		return "", fmt.Sprintf("which has a NUL byte or more than %d bytes", pathMax)
	case path.Clean(name) == ".", strings.HasSuffix(name, "/"):
		return "", "which is no name of a file"
	}
	return path.Clean(name), ""
}

func (c *treeCalls) deleteTree(r *http.Request, arg string) (success, error) {
	at, err := c.places.find(arg)
	if err != nil {
		return success{}, err
	}
	if info, err := os.Stat(at.abs); err != nil || !info.IsDir() {
		return success{}, doze.Wrap(err, doze.Unprocessable, "path is not a directory")
	}
	return c.files.deleteFile(r, arg)
}
