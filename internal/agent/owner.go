package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// owner is who owns what callers make.
type owner struct{ uid, gid int }

// asAgent leaves new files to whom the kernel gives them.
var asAgent = owner{-1, -1}

// owner returns who owns new files. Those of a user that nobody knows are the
// agent's: files must be writable to mend that.
func (w workload) owner() owner {
	if w.self() {
		return asAgent
	}
	a, err := w.account()
	if err != nil {
		return asAgent
	}
	return owner{int(a.uid), int(a.gid)}
}

// take makes f the owner's. A file system without owners is fine as well.
func (o owner) take(f *os.File) {
	if o != asAgent {
		_ = f.Chown(o.uid, o.gid) // best effort: see above
	}
}

// tree is what directories are made in.
type tree interface {
	Lstat(name string) (fs.FileInfo, error)
	MkdirAll(name string, perm fs.FileMode) error
	Lchown(name string, uid, gid int) error
}

// whole is the tree of the system.
type whole struct{}

func (whole) Lstat(name string) (fs.FileInfo, error)       { return os.Lstat(name) }
func (whole) MkdirAll(name string, perm fs.FileMode) error { return os.MkdirAll(name, perm) }
func (whole) Lchown(name string, uid, gid int) error       { return os.Lchown(name, uid, gid) }

// mkdirAll makes a directory with its missing parents.
func (o owner) mkdirAll(in tree, dir string, perm fs.FileMode) error {
	var made []string
	for d := dir; o != asAgent && d != "/" && d != "."; d = filepath.Dir(d) {
		if _, err := in.Lstat(d); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		made = append(made, d)
	}
	if err := in.MkdirAll(dir, perm); err != nil {
		return err
	}
	for _, d := range made {
		_ = in.Lchown(d, o.uid, o.gid) // best effort, as for files
	}
	return nil
}
